/* json_trees.h - JSON for tests: trees that live as long as the program. */
#ifndef TESTS_SUPPORT_JSON_TREES_H
#define TESTS_SUPPORT_JSON_TREES_H

#include "base/json_tree.h"

static tkc_arena json_arena;

/* NULL if it is not JSON. */
static inline tkc_tree *json_of(const char *text)
{
    return tkc_tree_read(&json_arena, tkc_str(text), TKC_TREE_ANY);
}

/* Trees hold no NUL: every \\u0000 of the text counts as \\u0001, which no length or type can tell. */
static inline tkc_tree *json_of_any(const char *text, size_t len)
{
    tinkc_error err = { 0 };
    char *copy = tkc_arena_str(&json_arena, tkc_strn(text, len), &err);
    for (char *p = copy; p && (p = strchr(p, '\\')); p += p[1] ? 2 : 1)
        if (memcmp(p, "\\u0000", 6) == 0)
            p[5] = '1';
    return json_of(copy);
}

static inline char *json_print(const tkc_tree *v)
{
    return tkc_tree_print(&json_arena, v, TKC_TREE_COMPACT);
}

#endif
