/* added.h - finding added tokens in a text: leftmost, then longest. */
#ifndef TKC_TOKENIZER_ADDED_H
#define TKC_TOKENIZER_ADDED_H

#include "tokenizer/tokenizer_priv.h"

/* A set of tokens to find. `patterns` are the texts to search for, one for each token (empty ones
 * are left out); both must outlive the set. NULL with no error for an empty set. */
tkc_added_set *tkc_added_set_new(tkc_arena *, const tkc_added_token *const *tokens,
                                 const tinkc_str *patterns, size_t n, tinkc_error *err);

typedef struct tkc_added_match {
    size_t start, end; /* including the white space that the token takes */
    const tkc_added_token *token;
} tkc_added_match;

/* The state of a search. Zeroed = at the beginning. */
typedef struct tkc_added_search {
    size_t scan; /* where the search for the next match begins */
    size_t done; /* the end of the previous match */
} tkc_added_search;

/* The next match; set NULL: none. skip_special: matches of special tokens are skipped. */
bool tkc_added_next(const tkc_added_set *, const unsigned char *text, size_t len, bool skip_special,
                    tkc_added_search *, tkc_added_match *out);

#endif
