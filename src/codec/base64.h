/* base64.h - bytes as text (RFC 4648), standard and URL alphabets. */
#ifndef TKC_CODEC_BASE64_H
#define TKC_CODEC_BASE64_H

#include "base/arena.h"

/* Length of the padded text of `len` bytes. len must be below SIZE_MAX / 2. */
static inline size_t tkc_base64_length(size_t len)
{
    return (len + 2) / 3 * 4;
}
/* Writes tkc_base64_length(len) characters, not terminated. */
void tkc_base64_encode(const void *bytes, size_t len, char *out);

/* Standard alphabet with padding. Strict: no white space, no stray bits. Terminated by a NUL that
 * is not counted. False without an error if it is not base64; false with an error if memory is
 * exhausted. */
bool tkc_base64_decode(tinkc_str text, tkc_arena *, tinkc_bytes *out, tinkc_error *err);
/* URL alphabet; padding optional. */
bool tkc_base64url_decode(tinkc_str text, tkc_arena *, tinkc_bytes *out, tinkc_error *err);

#endif
