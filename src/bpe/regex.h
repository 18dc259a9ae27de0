/* regex.h - patterns that have no scanner, through PCRE2 with its JIT.
 *
 * Tokenizer files use Oniguruma's syntax. It is rewritten where PCRE2 means something else, and
 * rejected with an error that names it where that is not possible. PCRE2's Unicode data is older
 * than the reference's: characters that have joined a property since are added to the pattern, and
 * properties for which they are not known are rejected.
 */
#ifndef TKC_TOKENIZER_REGEX_H
#define TKC_TOKENIZER_REGEX_H

#include "base/arena.h"
#include "base/buf.h"

typedef struct tkc_regex tkc_regex;

/* The pattern in PCRE2's syntax, appended to *out. */
bool tkc_regex_translate(tinkc_str pattern, tkc_buf *out, tinkc_error *err);

/* literal: searches for the text itself. Errors: TOKENIZER, with the position. */
tkc_regex *tkc_regex_new(tinkc_str pattern, bool literal, tinkc_error *err);
void tkc_regex_free(tkc_regex *);

/* Iterates over the matches in a text. Zeroed = at its beginning. */
typedef struct tkc_regex_walk {
    size_t from;       /* where the next search begins */
    size_t start, end; /* the current match; may be empty */
    bool any;          /* there was one */
} tkc_regex_walk;

/* How long the patterns of a tokenizer may take on one text. Patterns come from model files, and
 * some need exponential time. Zeroed = no limit. */
typedef struct tkc_regex_budget {
    int64_t allowed_ms; /* of the thread's own time: a busy machine must not fail a text */
    int64_t
        deadline_ns; /* of the machine's clock, which is quicker to read: before it, all is well */
    int64_t cpu_end_ns;
} tkc_regex_budget;

/* A second of this thread's time, plus ten microseconds per byte: a hundred times what real patterns
 * need. For use on this thread. */
void tkc_regex_budget_start(tkc_regex_budget *, size_t len);

/* The next match in well-formed text: 1 found, 0 none, -1 failed (budget, limits, memory: err is
 * set). budget may be NULL. Thread-safe. */
int tkc_regex_next(const tkc_regex *, const unsigned char *text, size_t len, tkc_regex_walk *,
                   const tkc_regex_budget *budget, tinkc_error *err);

#endif
