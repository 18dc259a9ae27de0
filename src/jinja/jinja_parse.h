/* jinja_parse.h - shared by the two halves of the parser: statements and expressions. */
#ifndef TKC_TOKENIZER_JINJA_PARSE_H
#define TKC_TOKENIZER_JINJA_PARSE_H

#include "jinja/jinja.h"

enum { TKC_JINJA_MAX_NODE_DEPTH = 1000 }; /* of one expression's tree: a + b + c + ... */

typedef struct tkc_jparser {
    tkc_jtemplate *t;
    tkc_arena *arena;   /* of the template: nodes */
    tkc_arena *scratch; /* for the parser's own lists */
    tinkc_error *err;
    const tkc_jtoken *at;
    int32_t nesting;
    int32_t loops;    /* how many loops enclose this position, inside the same function */
    int32_t in_for;   /* how many `for` tags enclose this position, across functions */
    tkc_jstr **names; /* interned; open addressing */
    size_t n_names, cap_names;
} tkc_jparser;

/* A list that grows while its end is not known. */
typedef struct tkc_jnodes {
    tkc_jnode **items;
    size_t len, cap;
} tkc_jnodes;

tkc_jnode *tkc_jp_node(tkc_jparser *, int kind, int32_t line);
/* Includes `child` in the depth of `node`; false = too deep. */
bool tkc_jp_adopt(tkc_jparser *, tkc_jnode *node, const tkc_jnode *child);
bool tkc_jp_push(tkc_jparser *, tkc_jnodes *, tkc_jnode *);
bool tkc_jp_finish(tkc_jparser *, const tkc_jnodes *, tkc_jlistof *out);
tkc_jstr *tkc_jp_intern(tkc_jparser *, tinkc_str);
tkc_jv tkc_jp_string(tkc_jparser *, tinkc_str);
void *tkc_jp_fail(tkc_jparser *, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "unexpected ..." at the current token. */
void *tkc_jp_unexpected(tkc_jparser *);
bool tkc_jp_deeper(tkc_jparser *);

bool tkc_jp_is_op(const tkc_jparser *, const char *op);
bool tkc_jp_is_name(const tkc_jparser *, const char *name);
bool tkc_jp_skip_op(tkc_jparser *, const char *op);
bool tkc_jp_skip_name(tkc_jparser *, const char *name);
bool tkc_jp_expect_op(tkc_jparser *, const char *op);

tkc_jnode *tkc_jp_expression(tkc_jparser *, bool with_condition);
/* `end`: a name at which a bare tuple may end ("in", "recursive"), or NULL. */
tkc_jnode *tkc_jp_tuple(tkc_jparser *, bool with_condition, const char *end, bool parenthesised);
/* An assignment target. */
tkc_jnode *tkc_jp_target(tkc_jparser *, const char *end, bool with_namespace, bool with_tuple);
tkc_jnode *tkc_jp_name_target(tkc_jparser *);
/* A filter chain: |f|g(x). start_inline: the first name has no "|". */
tkc_jnode *tkc_jp_filters(tkc_jparser *, tkc_jnode *input, bool start_inline);
tkc_jnode *tkc_jp_postfix(tkc_jparser *, tkc_jnode *);
tkc_jnode *tkc_jp_unary(tkc_jparser *, bool with_filters);

#endif
