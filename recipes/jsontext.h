/* jsontext.h - jansson values in and out of text, with errors of ours. */
#ifndef TKR_JSONTEXT_H
#define TKR_JSONTEXT_H

#include <jansson.h>

#include "base/buf.h"

/* Parses a whole text (depth and duplicates checked). Yours; NULL with err set: `what` names it. */
json_t *tkr_json_parse(const char *text, size_t len, const char *what, tinkc_error *err);
/* One line, keys in order. Yours (tkr_json_text_free); NULL with err set. */
char *tkr_json_text(const json_t *, tinkc_error *err);
void tkr_json_text_free(char *);
/* The text of a member that is a string; NULL = none. */
const char *tkr_json_string(const json_t *, const char *key);
/* A member that is a finite number. */
bool tkr_json_number(const json_t *, const char *key, double *out);

#endif
