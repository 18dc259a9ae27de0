/* digest.h - incremental SHA-256 and SHA-1. For checking downloads, not for protecting secrets. */
#ifndef TKC_BASE_DIGEST_H
#define TKC_BASE_DIGEST_H

#include "base/err.h"

enum { TKC_SHA256_HEX = 65, TKC_SHA1_HEX = 41 }; /* with the NUL */
enum { TKC_SHA256_BYTES = 32 };

typedef struct tkc_digest {
    uint32_t state[8];
    uint64_t total; /* bytes so far */
    unsigned char block[64];
    bool is_sha1;
    bool hardware; /* the processor has instructions for SHA-256 */
} tkc_digest;

void tkc_sha256_init(tkc_digest *);
void tkc_sha1_init(tkc_digest *);
void tkc_digest_add(tkc_digest *, const void *data, size_t len);
/* Writes 32 or 20 bytes and returns how many. Ends the digest, as does tkc_digest_hex. */
size_t tkc_digest_bytes(tkc_digest *, unsigned char *out);
/* Lower-case hex, terminated: 64 or 40 digits. */
void tkc_digest_hex(tkc_digest *, char *out);

#endif
