/* json_trees.h - JSON for tests: trees that live as long as the program. */
#ifndef TESTS_SUPPORT_JSON_TREES_H
#define TESTS_SUPPORT_JSON_TREES_H

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json_tree.h"

static tkc_arena json_arena;

/* NULL if it is not JSON. */
static inline tkc_tree *json_of(const char *text)
{
    return tkc_tree_read(&json_arena, tkc_str(text), TKC_TREE_ANY);
}

/* The same of so many bytes, which may have \\u0000 in texts. */
static inline tkc_tree *json_of_any(const char *text, size_t len)
{
    return tkc_tree_read(&json_arena, tkc_strn(text, len), TKC_TREE_ANY | TKC_TREE_NULS);
}

/* NULL if it cannot be read. */
static inline tkc_tree *json_file(const char *path)
{
    tinkc_error err = { 0 };
    tinkc_bytes text = tkc_read_file(&json_arena, path, SIZE_MAX / 2, &err);
    return err.code ? NULL : json_of_any((const char *)text.data, text.len);
}

/* With reals of so many digits, so that rounding in a sum does not show. */
static inline tkc_tree *json_rounded(const tkc_tree *v, int digits)
{
    char text[40];
    const char *key;
    tkc_tree *member, *copy = tkc_tree_copy(&json_arena, v);
    (void)snprintf(text, sizeof text, "%.*g", digits, tkc_tree_number(v));
    if (tkc_tree_is_real(v))
        return tkc_tree_new_real(&json_arena, strtod(text, NULL));
    TKC_TREE_EACH (v, key, member)
        tkc_tree_set(copy, key, json_rounded(member, digits));
    for (size_t i = 0; i < tkc_tree_length(v); i++)
        tkc_tree_put(copy, i, json_rounded(tkc_tree_at(v, i), digits));
    return copy;
}

static inline char *json_print(const tkc_tree *v)
{
    return tkc_tree_print(&json_arena, v, TKC_TREE_COMPACT);
}

#endif
