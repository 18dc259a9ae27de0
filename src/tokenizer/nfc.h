/* nfc.h - Unicode normalisation form C as the reference does it: by Unicode 9.0. */
#ifndef TKC_TOKENIZER_NFC_H
#define TKC_TOKENIZER_NFC_H

#include "base/buf.h"

/* Where each byte of the normalised text comes from: two numbers a byte, where the changed part
 * that it belongs to begins and ends in the text. */
typedef struct tkc_origins {
    uint32_t (*data)[2];
    size_t len, cap;
} tkc_origins;
void tkc_origins_free(tkc_origins *);

/* Replaces *out by the normal form of well-formed text, unless no character of it can change: then
 * *changes is false and *out as it was. origins may be NULL; texts of 4 GiB and more are refused
 * with it. */
bool tkc_nfc(const unsigned char *text, size_t len, tkc_buf *out, tkc_origins *origins,
             bool *changes, tinkc_error *err);

#endif
