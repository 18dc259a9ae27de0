/* json_tree.h - JSON as a jansson tree, for the few places that need to look around in it. */
#ifndef TKC_CODEC_JSON_TREE_H
#define TKC_CODEC_JSON_TREE_H

#include <jansson.h>
#include "base/arena.h"
#include "base/buf.h"

/* Yours: json_decref. NULL: TINKC_E_BAD_RESPONSE naming line and column. Duplicate keys are
 * refused; U+0000 in strings too. */
json_t *tkc_json_tree(tinkc_str text, tinkc_error *err);
/* Appends compact UTF-8; keys sorted if `canonical`, so that equal values give equal bytes. */
bool tkc_json_tree_write(const json_t *, bool canonical, tkc_buf *out, tinkc_error *err);

#endif
