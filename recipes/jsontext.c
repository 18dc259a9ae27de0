/* jsontext.c - converts between JSON trees and text. */
#include "recipes/jsontext.h"

#include <math.h>

tkc_tree *tkr_json_parse(tkc_arena *arena, const char *text, size_t len, const char *what,
                         tinkc_error *err)
{
    if (tkc_failed(err))
        return NULL;
    tkc_tree *v = tkc_tree_parse(arena, tkc_strn(text, len), TKC_TREE_UNIQUE | TKC_TREE_ANY, err);
    (void)tkc_fail_before(err, "%s: not ", what);
    return v;
}

char *tkr_json_text(const tkc_tree *v, tinkc_error *err)
{
    tkc_buf text;
    if (tkc_failed(err))
        return NULL;
    tkc_buf_init(&text, NULL, TKC_BUF_NO_MAX);
    char *copy = tkc_tree_write(&text, v, TKC_TREE_COMPACT, err)
                     ? tkc_copy_str(NULL, tkc_buf_view(&text), err)
                     : NULL;
    tkc_buf_free(&text);
    return copy;
}

bool tkr_json_number(const tkc_tree *v, const char *key, double *out)
{
    const tkc_tree *n = tkc_tree_get(v, key);
    if (!tkc_tree_is_number(n))
        return false;
    *out = tkc_tree_number(n);
    return isfinite(*out);
}
