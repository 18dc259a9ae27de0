/* pretok.h - the chain of steps that cuts a text into pieces before BPE. */
#ifndef TKC_TOKENIZER_PRETOK_H
#define TKC_TOKENIZER_PRETOK_H

#include "base/json_read.h"
#include "bpe/regex.h"
#include "bpe/pretok_scan.h"

enum { TKC_MAX_STEPS = 8 };

typedef struct tkc_step {
    int scanner;      /* TKC_SCAN_*, or NONE: the regex */
    tkc_regex *regex; /* the step owns it */
    bool drop_matches, drop_gaps;
    bool prefix_space; /* a piece that does not begin with a space gets one */
    bool joined;       /* does not split: the step only adds the space */
} tkc_step;

typedef struct tkc_pretok {
    tkc_step steps[TKC_MAX_STEPS];
    size_t n;
    int fast; /* the scanner, if there is only one step and it only scans; else NONE */
} tkc_pretok;

/* Reads the "pre_tokenizer" of a tokenizer.json. Unsupported features are rejected with
 * an error that names them. The chain must end in ByteLevel. */
bool tkc_pretok_read(tkc_pretok *, tkc_json *j);
/* The chain of one scanner. */
void tkc_pretok_scanner(tkc_pretok *, int scanner);
/* The same for a vocabulary of pieces, whose words the fast path does not know. */
void tkc_pretok_spaces(tkc_pretok *, int scanner);
void tkc_pretok_free(tkc_pretok *);

/* Called for each piece. Its first `skew` bytes (0 or 1) are not in the text; the others are the
 * text at `origin`. Returning false stops. */
typedef bool tkc_piece_fn(void *self, const unsigned char *p, size_t len, size_t skew,
                          size_t origin);

/* True if a step uses a pattern that has no scanner. */
bool tkc_pretok_has_regex(const tkc_pretok *);

/* Runs the chain over well-formed text. budget: of the patterns; NULL = no limit. */
bool tkc_pretok_run(const tkc_pretok *, const unsigned char *text, size_t len, tkc_piece_fn *fn,
                    void *self, const tkc_regex_budget *budget, tinkc_error *err);

#endif
