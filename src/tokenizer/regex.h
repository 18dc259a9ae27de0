/* regex.h - patterns that no scanner knows, through PCRE2 with its JIT.
 *
 * The files write Oniguruma's syntax; it is rewritten where PCRE2 means something else, and refused
 * by name where it cannot be. PCRE2's Unicode data is older than the reference's: what has joined a
 * property since is written into the pattern, and properties for which that is not known are
 * refused.
 */
#ifndef TKC_TOKENIZER_REGEX_H
#define TKC_TOKENIZER_REGEX_H

#include "base/arena.h"
#include "base/buf.h"

typedef struct tkc_regex tkc_regex;

/* The pattern in PCRE2's syntax, appended to *out. */
bool tkc_regex_translate(tinkc_str pattern, tkc_buf *out, tinkc_error *err);

/* literal: the text itself is looked for. Errors: TOKENIZER, with the place. */
tkc_regex *tkc_regex_new(tinkc_str pattern, bool literal, tinkc_error *err);
void tkc_regex_free(tkc_regex *);

/* Goes from match to match through a text. Zeroed = at its beginning. */
typedef struct tkc_regex_walk {
    size_t from;       /* where to look next */
    size_t start, end; /* the match at hand; it may be empty */
    bool any;          /* there was one */
} tkc_regex_walk;

/* How long the patterns of a tokenizer may take over one text. Patterns come from model files, and
 * some need exponential time. Zeroed = no limit. */
typedef struct tkc_regex_budget {
    int64_t deadline_ns, allowed_ms;
} tkc_regex_budget;

/* A second, and ten microseconds for each byte: a hundred times what patterns in use need. */
void tkc_regex_budget_start(tkc_regex_budget *, size_t len);

/* The next match in well-formed text: 1 found, 0 none, -1 failed (budget, limits, memory: err is
 * set). budget may be NULL. Thread-safe. */
int tkc_regex_next(const tkc_regex *, const unsigned char *text, size_t len, tkc_regex_walk *,
                   const tkc_regex_budget *budget, tinkc_error *err);

#endif
