/* age.h - the age format (age-encryption.org/v1): files encrypted to X25519 recipients.
 *
 *     tkc_age_stream s;                                  a file is a header, then chunks in order
 *     tkc_age_begin(&s, recipients, &header, &err);      written: header, then each chunk sealed
 *     at = tkc_age_open(&s, file, identities, &err);     read: chunks of TKC_AGE_CHUNK + TKC_AGE_TAG from there
 *     tkc_age_close(&s);
 */
#ifndef TKC_CODEC_AGE_H
#define TKC_CODEC_AGE_H

#include "base/buf.h"

enum { TKC_AGE_KEY = 32, TKC_AGE_TAG = 16, TKC_AGE_CHUNK = 64 << 10 };

typedef struct tkc_age_stream {
    unsigned char key[TKC_AGE_KEY];
    uint64_t n_chunks; /* so far */
} tkc_age_stream;

/* The key of a recipient (age1...), of an identity (AGE-SECRET-KEY-1...). False: not one. */
bool tkc_age_recipient(const char *text, unsigned char out[TKC_AGE_KEY]);
bool tkc_age_identity(const char *text, unsigned char out[TKC_AGE_KEY]);

/* Appends the header; recipients is a list. */
bool tkc_age_begin(tkc_age_stream *, const char *const *recipients, tkc_buf *out, tinkc_error *err);
/* out = len + TKC_AGE_TAG bytes. Chunks are full, but for the last. */
bool tkc_age_seal(tkc_age_stream *, const void *text, size_t len, bool last, unsigned char *out,
                  tinkc_error *err);

/* Where the chunks begin; 0: err says why. ARGUMENT: none of the identities (a list) opens it. */
size_t tkc_age_open(tkc_age_stream *, tinkc_bytes file, const char *const *identities, tinkc_error *err);
/* out = len - TKC_AGE_TAG bytes. BAD_RESPONSE: these are not the bytes that were sealed, or not at this place. */
bool tkc_age_unseal(tkc_age_stream *, const unsigned char *sealed, size_t len, bool last,
                    unsigned char *out, tinkc_error *err);
void tkc_age_close(tkc_age_stream *);

#endif
