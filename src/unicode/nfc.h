/* nfc.h - Unicode normalisation form C with the reference's tables: Unicode 9.0. */
#ifndef TKC_TOKENIZER_NFC_H
#define TKC_TOKENIZER_NFC_H

#include "base/buf.h"

/* Where each byte of the normalised text comes from: two numbers per byte, the beginning and the
 * end in the text of the changed part that it belongs to. */
typedef struct tkc_origins {
    uint32_t (*data)[2];
    size_t len, cap;
} tkc_origins;
void tkc_origins_free(tkc_origins *);
/* The next n bytes come from [start, end): each from its own byte if `same`. NULL: nothing to do. */
bool tkc_origins_add(tkc_origins *, size_t n, size_t start, size_t end, bool same,
                     tinkc_error *err);

/* Replaces *out with the normal form of well-formed text. If no character can change, *changes is
 * false and *out is unchanged. origins may be NULL; with it, texts of 4 GiB and more are
 * rejected. */
bool tkc_nfc(const unsigned char *text, size_t len, tkc_buf *out, tkc_origins *origins,
             bool *changes, tinkc_error *err);

#endif
