/* json_tree.c - JSON trees through jansson. May touch: the buffer it was given.
 *
 * Trees live in jansson's own memory (malloc), not in a caller's allocator: they are short-lived.
 */
#include "codec/json_tree.h"

#include <assert.h>

json_t *tkc_json_tree(tinkc_str text, tinkc_error *err)
{
    json_error_t where;
    if (tkc_failed(err))
        return NULL;
    json_t *tree = json_loadb(text.data ? text.data : "", text.len,
                              JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &where);
    if (!tree && json_error_code(&where) == json_error_out_of_memory)
        tkc_fail_memory(err);
    else if (!tree)
        tkc_fail(err, TINKC_E_BAD_RESPONSE, "JSON: %s at line %d, column %d", where.text,
                 where.line, where.column);
    return tree;
}

typedef struct sink {
    tkc_buf *out;
    tinkc_error *err;
} sink;

static int take(const char *bytes, size_t len, void *user)
{
    sink *s = user;
    return tkc_buf_add(s->out, bytes, len, s->err) ? 0 : -1;
}

bool tkc_json_tree_write(const json_t *tree, bool canonical, tkc_buf *out, tinkc_error *err)
{
    assert(tree && out);
    sink s = { out, err };
    size_t flags = JSON_COMPACT | JSON_ENCODE_ANY | (canonical ? JSON_SORT_KEYS : 0);
    if (tkc_failed(err))
        return false;
    if (json_dump_callback(tree, take, &s, flags) != 0 && !tkc_failed(err))
        return tkc_fail(err, TINKC_E_ARGUMENT, "JSON: a tree that cannot be written");
    return !tkc_failed(err);
}
