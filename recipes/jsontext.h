/* jsontext.h - JSON trees in and out of text, with errors that say what was read. */
#ifndef TKR_JSONTEXT_H
#define TKR_JSONTEXT_H

#include "base/json_tree.h"

/* Parses a whole text (depth and duplicates checked). NULL with err set: `what` names it. */
tkc_tree *tkr_json_parse(tkc_arena *, const char *text, size_t len, const char *what,
                         tinkc_error *err);
/* One line, keys in order. Yours (tkc_release_str); NULL with err set. */
char *tkr_json_text(const tkc_tree *, tinkc_error *err);
/* A member that is a finite number. */
bool tkr_json_number(const tkc_tree *, const char *key, double *out);

#endif
