/* digest.h - SHA-256 and SHA-1 over bytes as they come. For checking what was downloaded, not for
 * keeping secrets. */
#ifndef TKC_BASE_DIGEST_H
#define TKC_BASE_DIGEST_H

#include "base/err.h"

enum { TKC_SHA256_HEX = 65, TKC_SHA1_HEX = 41 }; /* with the NUL */

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
/* Lower-case hex, terminated: 64 or 40 digits. The digest is used up. */
void tkc_digest_hex(tkc_digest *, char *out);

#endif
