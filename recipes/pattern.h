/* pattern.h - regular expressions of graders and schemas: PCRE2, UTF-8, bounded. */
#ifndef TKR_PATTERN_H
#define TKR_PATTERN_H

#include "base/err.h"

typedef struct tkr_pattern tkr_pattern;

/* Errors: ARGUMENT, with the place. */
tkr_pattern *tkr_pattern_new(const char *text, tinkc_error *err);
/* Whether it matches anywhere in the text. One that takes too many steps does not. */
bool tkr_pattern_matches(const tkr_pattern *, const char *text, tinkc_error *err);
void tkr_pattern_free(tkr_pattern *);
/* All three at once. */
bool tkr_pattern_found(const char *pattern, const char *text, tinkc_error *err);

#endif
