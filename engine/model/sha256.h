/* sha256.h - SHA-256, for fingerprints of weights. Not for secrets. */
#ifndef TKE_MODEL_SHA256_H
#define TKE_MODEL_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct tke_sha256 {
    uint32_t state[8];
    uint64_t n_bytes;
    unsigned char block[64];
} tke_sha256;

void tke_sha256_start(tke_sha256 *);
void tke_sha256_add(tke_sha256 *, const void *bytes, size_t len);
/* 64 hex digits and a NUL. */
void tke_sha256_finish(tke_sha256 *, char hex[65]);

#endif
