/* query.h - query strings, application/x-www-form-urlencoded.
 *
 *     tkc_query q;
 *     tkc_query_open(&q, &buf, '?', err);     // "?" before the first parameter
 *     tkc_query_i64(&q, "limit", 20);
 *     tkc_query_str(&q, "project_id", NULL);  // NULL and "" are left out
 */
#ifndef TKC_CODEC_QUERY_H
#define TKC_CODEC_QUERY_H

#include "base/arena.h"
#include "base/buf.h"

typedef struct tkc_query {
    tkc_buf *out;
    tinkc_error *err;
    char next; /* written before the next parameter: '?', '&', or 0 for nothing */
} tkc_query;

/* mark: '?' for a query after a path, 0 for a form body, '&' after other parameters. */
void tkc_query_open(tkc_query *, tkc_buf *out, char mark, tinkc_error *err);
void tkc_query_str(tkc_query *, const char *name, const char *value);
void tkc_query_i64(tkc_query *, const char *name, int64_t value);

/* Escapes one text: space becomes '+', letters, digits and -._~ stay. */
bool tkc_form_escape(tinkc_str text, tkc_buf *out, tinkc_error *err);

/* For a server: the value of the first parameter of this name, decoded, in the arena; NULL if it is
 * absent or not UTF-8. `query` is what follows the '?'. */
const char *tkc_query_find(tinkc_str query, const char *name, tkc_arena *, tinkc_error *err);

#endif
