/* jinja_expr.c - the parser's half that reads expressions.
 *
 * Precedence, loosest first: a if b else c, or, and, not, comparisons, + -, ~, * / // %, **, unary
 * minus, filters and tests, then .name [item] (call). May touch: the parser's arenas.
 */
#include "jinja/jinja_parse.h"

#include <string.h>

static bool at_tuple_end(const tkc_jparser *p, const char *end)
{
    int32_t kind = p->at->kind;
    return kind == TKC_JT_VAR_END || kind == TKC_JT_BLOCK_END || tkc_jp_is_op(p, ")") ||
           (end && tkc_jp_is_name(p, end));
}

/* ---- literals ---- */

static tkc_jnode *constant(tkc_jparser *p, tkc_jv value)
{
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_CONST, p->at->line);
    if (n)
        n->value = value;
    return n;
}

static bool integer_value(tkc_jparser *p, tinkc_str text, tkc_jv *out)
{
    int base = 10;
    size_t i = 0;
    if (text.len > 2 && text.data[0] == '0') {
        char mark = (char)(text.data[1] | 0x20);
        base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
        i = base == 10 ? 0 : 2;
    }
    tkc_i128 value = 0;
    for (; i < text.len; i++) {
        char c = text.data[i];
        int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
        if (__builtin_mul_overflow(value, (tkc_i128)base, &value) ||
            __builtin_add_overflow(value, (tkc_i128)digit, &value))
            return tkc_jp_fail(p, "an integer of more than 127 bits") != NULL;
    }
    *out = tkc_jv_int((int64_t)value);
    if (value > INT64_MAX) {
        tkc_i128 *big = tkc_arena_alloc(p->arena, sizeof *big, p->err);
        if (!big)
            return false;
        *big = value;
        *out = (tkc_jv){ .kind = TKC_JV_BIG, .big = big };
    }
    return true;
}

static tkc_jnode *parse_number(tkc_jparser *p)
{
    tkc_jv value = tkc_jv_none;
    if (p->at->kind == TKC_JT_INT) {
        if (!integer_value(p, p->at->text, &value))
            return NULL;
    } else {
        double f;
        tinkc_str text = p->at->text;
        while (text.len > 1 && text.data[0] == '0' && text.data[1] >= '0' && text.data[1] <= '9') {
            text.data++; /* 00.5 is allowed here, not in JSON's grammar */
            text.len--;
        }
        if (!tkc_parse_double(text, false, &f))
            return tkc_jp_fail(p, "a number out of range");
        value = tkc_jv_float(f);
    }
    tkc_jnode *n = constant(p, value);
    p->at++;
    return n;
}

/* Adjacent string literals are joined. */
static tkc_jnode *parse_strings(tkc_jparser *p)
{
    size_t total = 0;
    const tkc_jtoken *first = p->at;
    for (const tkc_jtoken *k = first; k->kind == TKC_JT_STRING; k++)
        total += k->text.len;
    char *text = tkc_arena_alloc(p->arena, total + 1, p->err);
    if (!text)
        return NULL;
    size_t n = 0;
    for (; p->at->kind == TKC_JT_STRING; p->at++) {
        memcpy(text + n, p->at->text.data, p->at->text.len);
        n += p->at->text.len;
    }
    tkc_jv value = tkc_jp_string(p, tkc_strn(text, total));
    if (tkc_jv_failed(value))
        return NULL;
    tkc_jnode *node = constant(p, value);
    if (node)
        node->line = first->line;
    return node;
}

static tkc_jnode *parse_list(tkc_jparser *p)
{
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_LIST, p->at->line);
    tkc_jnodes items = { 0 };
    p->at++;
    while (n && !tkc_jp_is_op(p, "]")) {
        if (items.len && !tkc_jp_expect_op(p, ","))
            return NULL;
        if (tkc_jp_is_op(p, "]"))
            break;
        tkc_jnode *item = tkc_jp_expression(p, true);
        if (!item || !tkc_jp_adopt(p, n, item) || !tkc_jp_push(p, &items, item))
            return NULL;
    }
    if (!n || !tkc_jp_expect_op(p, "]") || !tkc_jp_finish(p, &items, &n->list))
        return NULL;
    return n;
}

static tkc_jnode *parse_dict(tkc_jparser *p)
{
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_DICT, p->at->line);
    tkc_jnodes items = { 0 };
    p->at++;
    while (n && !tkc_jp_is_op(p, "}")) {
        if (items.len && !tkc_jp_expect_op(p, ","))
            return NULL;
        if (tkc_jp_is_op(p, "}"))
            break;
        tkc_jnode *key = tkc_jp_expression(p, true);
        if (!key || !tkc_jp_adopt(p, n, key) || !tkc_jp_push(p, &items, key) ||
            !tkc_jp_expect_op(p, ":"))
            return NULL;
        tkc_jnode *value = tkc_jp_expression(p, true);
        if (!value || !tkc_jp_adopt(p, n, value) || !tkc_jp_push(p, &items, value))
            return NULL;
    }
    if (!n || !tkc_jp_expect_op(p, "}") || !tkc_jp_finish(p, &items, &n->list))
        return NULL;
    return n;
}

static tkc_jnode *parse_name(tkc_jparser *p)
{
    tinkc_str name = p->at->text;
    tkc_jnode *n;
    if (tkc_str_is(name, "true") || tkc_str_is(name, "True"))
        n = constant(p, tkc_jv_bool(true));
    else if (tkc_str_is(name, "false") || tkc_str_is(name, "False"))
        n = constant(p, tkc_jv_bool(false));
    else if (tkc_str_is(name, "none") || tkc_str_is(name, "None"))
        n = constant(p, tkc_jv_none);
    else {
        n = tkc_jp_node(p, TKC_JN_NAME, p->at->line);
        if (n && !(n->name = tkc_jp_intern(p, name)))
            return NULL;
    }
    p->at++;
    return n;
}

static tkc_jnode *parse_primary(tkc_jparser *p)
{
    switch (p->at->kind) {
    case TKC_JT_NAME:
        return parse_name(p);
    case TKC_JT_STRING:
        return parse_strings(p);
    case TKC_JT_INT:
    case TKC_JT_FLOAT:
        return parse_number(p);
    default:
        break;
    }
    if (tkc_jp_is_op(p, "(")) {
        p->at++;
        tkc_jnode *n = tkc_jp_tuple(p, true, NULL, true);
        return n && tkc_jp_expect_op(p, ")") ? n : NULL;
    }
    if (tkc_jp_is_op(p, "["))
        return parse_list(p);
    if (tkc_jp_is_op(p, "{"))
        return parse_dict(p);
    return tkc_jp_unexpected(p);
}

tkc_jnode *tkc_jp_tuple(tkc_jparser *p, bool with_condition, const char *end, bool parenthesised)
{
    int32_t line = p->at->line;
    tkc_jnodes items = { 0 };
    bool is_tuple = false;
    for (;;) {
        if (items.len && !tkc_jp_expect_op(p, ","))
            return NULL;
        if (at_tuple_end(p, end))
            break;
        tkc_jnode *item = tkc_jp_expression(p, with_condition);
        if (!item || !tkc_jp_push(p, &items, item))
            return NULL;
        if (!tkc_jp_is_op(p, ","))
            break;
        is_tuple = true;
    }
    if (!is_tuple && items.len)
        return items.items[0];
    if (!is_tuple && !parenthesised)
        return tkc_jp_unexpected(p);
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_TUPLE, line);
    for (size_t i = 0; n && i < items.len; i++)
        if (!tkc_jp_adopt(p, n, items.items[i]))
            return NULL;
    return n && tkc_jp_finish(p, &items, &n->list) ? n : NULL;
}

/* ---- calls ---- */

static bool is_assignment(const tkc_jparser *p)
{
    return p->at->kind == TKC_JT_NAME && p->at[1].kind == TKC_JT_OP &&
           tkc_str_is(p->at[1].text, "=");
}

/* One argument of a call, of any form. */
static bool parse_argument(tkc_jparser *p, tkc_jnode *owner, tkc_jcall *call, tkc_jnodes *pos,
                           tkc_jnodes *kw)
{
    tkc_jnode *value, *named = NULL;
    if (tkc_jp_skip_op(p, "*")) {
        value = call->dyn_pos = call->dyn_pos ? NULL : tkc_jp_expression(p, true);
    } else if (tkc_jp_skip_op(p, "**")) {
        value = call->dyn_kw = call->dyn_kw ? NULL : tkc_jp_expression(p, true);
    } else if (is_assignment(p)) {
        named = tkc_jp_node(p, TKC_JN_OPERAND, p->at->line);
        if (!named || !(named->name = tkc_jp_intern(p, p->at->text)))
            return false;
        p->at += 2;
        value = named->a = tkc_jp_expression(p, true);
        if (!value || !tkc_jp_push(p, kw, named))
            return false;
    } else {
        if (kw->len || call->dyn_pos || call->dyn_kw)
            return tkc_jp_fail(p, "a positional argument follows a named one") != NULL;
        value = tkc_jp_expression(p, true);
        if (!value || !tkc_jp_push(p, pos, value))
            return false;
    }
    if (!value)
        return tkc_jp_unexpected(p) != NULL;
    return tkc_jp_adopt(p, owner, value);
}

/* At "(": fills in owner->call. */
static bool parse_call_args(tkc_jparser *p, tkc_jnode *owner)
{
    tkc_jcall *call = tkc_arena_zalloc(p->arena, sizeof *call, p->err);
    tkc_jnodes pos = { 0 }, kw = { 0 };
    if (!call || !tkc_jp_expect_op(p, "("))
        return false;
    bool first = true;
    while (!tkc_jp_is_op(p, ")")) {
        if (!first && !tkc_jp_expect_op(p, ","))
            return false;
        if (!first && tkc_jp_is_op(p, ")"))
            break;
        if (!parse_argument(p, owner, call, &pos, &kw))
            return false;
        first = false;
    }
    p->at++;
    owner->call = call;
    return tkc_jp_finish(p, &pos, &call->pos) && tkc_jp_finish(p, &kw, &call->kw);
}

static tkc_jnode *parse_call(tkc_jparser *p, tkc_jnode *callee)
{
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_CALL, p->at->line);
    if (!n || !tkc_jp_adopt(p, n, callee) || !parse_call_args(p, n))
        return NULL;
    n->a = callee;
    return n;
}

/* ---- .name, [item] ---- */

/* Inside brackets: an expression or a slice. */
static tkc_jnode *parse_subscribed(tkc_jparser *p)
{
    tkc_jnode *part[3] = { NULL, NULL, NULL };
    int32_t line = p->at->line;
    int n_colons = 0;
    for (;;) {
        if (!tkc_jp_is_op(p, ":") && !tkc_jp_is_op(p, "]") && !tkc_jp_is_op(p, ",")) {
            part[n_colons] = tkc_jp_expression(p, true);
            if (!part[n_colons])
                return NULL;
        }
        if (n_colons == 2 || !tkc_jp_skip_op(p, ":"))
            break;
        n_colons++;
    }
    if (n_colons == 0)
        return part[0] ? part[0] : tkc_jp_unexpected(p);
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_SLICE, line);
    for (int i = 0; n && i < 3; i++)
        if (part[i] && !tkc_jp_adopt(p, n, part[i]))
            return NULL;
    if (n) {
        n->a = part[0];
        n->b = part[1];
        n->c = part[2];
    }
    return n;
}

static tkc_jnode *parse_item(tkc_jparser *p, tkc_jnode *object)
{
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_ITEM, p->at->line);
    tkc_jnodes keys = { 0 };
    p->at++;
    while (n && !tkc_jp_is_op(p, "]")) {
        if (keys.len && !tkc_jp_expect_op(p, ","))
            return NULL;
        tkc_jnode *key = parse_subscribed(p);
        if (!key || !tkc_jp_adopt(p, n, key) || !tkc_jp_push(p, &keys, key))
            return NULL;
    }
    if (!n || !tkc_jp_expect_op(p, "]") || !tkc_jp_adopt(p, n, object))
        return NULL;
    n->a = object;
    if (keys.len == 1) {
        n->b = keys.items[0];
        return n;
    }
    n->b = tkc_jp_node(p, TKC_JN_TUPLE, n->line);
    if (!n->b || keys.len == 0)
        return tkc_jp_unexpected(p);
    for (size_t i = 0; i < keys.len; i++)
        if (keys.items[i]->kind == TKC_JN_SLICE)
            return tkc_jp_fail(p, "a slice among several keys");
    return tkc_jp_finish(p, &keys, &n->b->list) ? n : NULL;
}

static tkc_jnode *parse_attribute(tkc_jparser *p, tkc_jnode *object)
{
    int32_t line = p->at->line;
    p->at++;
    if (p->at->kind == TKC_JT_INT) {
        tkc_jnode *n = tkc_jp_node(p, TKC_JN_ITEM, line);
        if (!n || !tkc_jp_adopt(p, n, object) || !(n->b = parse_number(p)))
            return NULL;
        n->a = object;
        return n;
    }
    if (p->at->kind != TKC_JT_NAME)
        return tkc_jp_unexpected(p);
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_ATTR, line);
    if (!n || !tkc_jp_adopt(p, n, object) || !(n->name = tkc_jp_intern(p, p->at->text)))
        return NULL;
    n->a = object;
    p->at++;
    return n;
}

tkc_jnode *tkc_jp_postfix(tkc_jparser *p, tkc_jnode *n)
{
    while (n) {
        if (tkc_jp_is_op(p, "."))
            n = parse_attribute(p, n);
        else if (tkc_jp_is_op(p, "["))
            n = parse_item(p, n);
        else if (tkc_jp_is_op(p, "("))
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

/* ---- filters and tests ---- */

/* A name that may have dots, looked up in a table when the node is created. */
static bool parse_function_name(tkc_jparser *p, tkc_jnode *n)
{
    if (p->at->kind != TKC_JT_NAME)
        return tkc_jp_unexpected(p) != NULL;
    tinkc_str name = p->at->text;
    p->at++;
    while (tkc_jp_is_op(p, ".") && p->at[1].kind == TKC_JT_NAME) {
        char *joined = tkc_arena_printf(p->arena, p->err, "%.*s.%.*s", (int)name.len, name.data,
                                        (int)p->at[1].text.len, p->at[1].text.data);
        if (!joined)
            return false;
        name = tkc_str(joined);
        p->at += 2;
    }
    n->name = tkc_jp_intern(p, name);
    n->func = n->kind == TKC_JN_FILTER ? tkc_j_find_filter(name) : tkc_j_find_test(name);
    return n->name != NULL;
}

tkc_jnode *tkc_jp_filters(tkc_jparser *p, tkc_jnode *input, bool start_inline)
{
    while (start_inline || tkc_jp_is_op(p, "|")) {
        if (!start_inline)
            p->at++;
        start_inline = false;
        tkc_jnode *n = tkc_jp_node(p, TKC_JN_FILTER, p->at->line);
        if (!n || (input && !tkc_jp_adopt(p, n, input)) || !parse_function_name(p, n))
            return NULL;
        n->a = input;
        if (tkc_jp_is_op(p, "(") && !parse_call_args(p, n))
            return NULL;
        input = n;
    }
    return input;
}

/* An argument of a test without parentheses: `x is divisibleby 3`. */
static bool parse_bare_argument(tkc_jparser *p, tkc_jnode *test)
{
    tkc_jnodes args = { 0 };
    if (tkc_jp_is_name(p, "is"))
        return tkc_jp_fail(p, "tests cannot be chained with is") != NULL;
    tkc_jnode *arg = tkc_jp_postfix(p, parse_primary(p));
    test->call = tkc_arena_zalloc(p->arena, sizeof *test->call, p->err);
    return arg && test->call && tkc_jp_adopt(p, test, arg) && tkc_jp_push(p, &args, arg) &&
           tkc_jp_finish(p, &args, &test->call->pos);
}

static tkc_jnode *parse_test(tkc_jparser *p, tkc_jnode *subject)
{
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_TEST, p->at->line);
    p->at++;
    bool negated = tkc_jp_skip_name(p, "not");
    if (!n || !tkc_jp_adopt(p, n, subject) || !parse_function_name(p, n))
        return NULL;
    n->a = subject;
    int32_t kind = p->at->kind;
    bool bare = kind == TKC_JT_STRING || kind == TKC_JT_INT || kind == TKC_JT_FLOAT ||
                tkc_jp_is_op(p, "[") || tkc_jp_is_op(p, "{") ||
                (kind == TKC_JT_NAME && !tkc_jp_is_name(p, "else") && !tkc_jp_is_name(p, "or") &&
                 !tkc_jp_is_name(p, "and"));
    if (tkc_jp_is_op(p, "(") ? !parse_call_args(p, n) : bare && !parse_bare_argument(p, n))
        return NULL;
    if (!negated)
        return n;
    tkc_jnode *not = tkc_jp_node(p, TKC_JN_NOT, n->line);
    if (!not || !tkc_jp_adopt(p, not, n))
        return NULL;
    not ->a = n;
    return not ;
}

static tkc_jnode *parse_filter_tail(tkc_jparser *p, tkc_jnode *n)
{
    while (n) {
        if (tkc_jp_is_op(p, "|"))
            n = tkc_jp_filters(p, n, false);
        else if (tkc_jp_is_name(p, "is"))
            n = parse_test(p, n);
        else if (tkc_jp_is_op(p, "("))
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

/* ---- operators ---- */

tkc_jnode *tkc_jp_unary(tkc_jparser *p, bool with_filters)
{
    tkc_jnode *n;
    if (!tkc_jp_deeper(p))
        return NULL;
    if (tkc_jp_is_op(p, "-") || tkc_jp_is_op(p, "+")) {
        n = tkc_jp_node(p, tkc_jp_is_op(p, "-") ? TKC_JN_NEG : TKC_JN_POS, p->at->line);
        p->at++;
        tkc_jnode *a = n ? tkc_jp_unary(p, false) : NULL;
        if (!a || !tkc_jp_adopt(p, n, a))
            return NULL;
        n->a = a;
    } else {
        n = parse_primary(p);
    }
    n = tkc_jp_postfix(p, n);
    if (with_filters)
        n = parse_filter_tail(p, n);
    p->nesting--;
    return n;
}

static tkc_jnode *binary(tkc_jparser *p, int op, int32_t line, tkc_jnode *a, tkc_jnode *b)
{
    tkc_jnode *n = a && b ? tkc_jp_node(p, TKC_JN_BINARY, line) : NULL;
    if (!n || !tkc_jp_adopt(p, n, a) || !tkc_jp_adopt(p, n, b))
        return NULL;
    n->op = (uint8_t)op;
    n->a = a;
    n->b = b;
    return n;
}

static tkc_jnode *parse_power(tkc_jparser *p)
{
    tkc_jnode *n = tkc_jp_unary(p, true);
    while (n && tkc_jp_is_op(p, "**")) {
        int32_t line = p->at->line;
        p->at++;
        n = binary(p, TKC_JOP_POW, line, n, tkc_jp_unary(p, true));
    }
    return n;
}

static tkc_jnode *parse_product(tkc_jparser *p)
{
    static const struct {
        const char *text;
        int op;
    } ops[] = {
        { "*", TKC_JOP_MUL }, { "/", TKC_JOP_DIV }, { "//", TKC_JOP_FLOORDIV }, { "%", TKC_JOP_MOD }
    };
    tkc_jnode *n = parse_power(p);
    for (size_t i = 0; n && i < 4; i++)
        if (tkc_jp_is_op(p, ops[i].text)) {
            int32_t line = p->at->line;
            p->at++;
            n = binary(p, ops[i].op, line, n, parse_power(p));
            i = (size_t)-1; /* start again with the first */
        }
    return n;
}

static tkc_jnode *parse_concat(tkc_jparser *p)
{
    tkc_jnode *first = parse_product(p);
    if (!first || !tkc_jp_is_op(p, "~"))
        return first;
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_CONCAT, p->at->line);
    tkc_jnodes parts = { 0 };
    if (!n || !tkc_jp_adopt(p, n, first) || !tkc_jp_push(p, &parts, first))
        return NULL;
    while (tkc_jp_skip_op(p, "~")) {
        tkc_jnode *part = parse_product(p);
        if (!part || !tkc_jp_adopt(p, n, part) || !tkc_jp_push(p, &parts, part))
            return NULL;
    }
    return tkc_jp_finish(p, &parts, &n->list) ? n : NULL;
}

static tkc_jnode *parse_sum(tkc_jparser *p)
{
    tkc_jnode *n = parse_concat(p);
    while (n && (tkc_jp_is_op(p, "+") || tkc_jp_is_op(p, "-"))) {
        int op = tkc_jp_is_op(p, "+") ? TKC_JOP_ADD : TKC_JOP_SUB;
        int32_t line = p->at->line;
        p->at++;
        n = binary(p, op, line, n, parse_concat(p));
    }
    return n;
}

/* Consumes a comparison operator and returns it; -1 = none. */
static int comparison(tkc_jparser *p)
{
    static const char *const ops[] = { "==", "!=", "<", "<=", ">", ">=" };
    for (int i = 0; i < 6; i++)
        if (tkc_jp_skip_op(p, ops[i]))
            return TKC_JOP_EQ + i;
    if (tkc_jp_skip_name(p, "in"))
        return TKC_JOP_IN;
    if (tkc_jp_is_name(p, "not") && p->at[1].kind == TKC_JT_NAME &&
        tkc_str_is(p->at[1].text, "in")) {
        p->at += 2;
        return TKC_JOP_NOT_IN;
    }
    return -1;
}

static tkc_jnode *parse_compare(tkc_jparser *p)
{
    tkc_jnode *first = parse_sum(p), *n = NULL;
    tkc_jnodes operands = { 0 };
    while (first) {
        int32_t line = p->at->line;
        int op = comparison(p);
        if (op < 0)
            break;
        tkc_jnode *o = tkc_jp_node(p, TKC_JN_OPERAND, line);
        tkc_jnode *value = parse_sum(p);
        if (!n) {
            n = tkc_jp_node(p, TKC_JN_COMPARE, line);
            if (!n || !tkc_jp_adopt(p, n, first))
                return NULL;
        }
        if (!o || !value || !tkc_jp_adopt(p, n, value) || !tkc_jp_push(p, &operands, o))
            return NULL;
        o->op = (uint8_t)op;
        o->a = value;
    }
    if (!n)
        return first;
    n->a = first;
    return tkc_jp_finish(p, &operands, &n->list) ? n : NULL;
}

static tkc_jnode *parse_not(tkc_jparser *p)
{
    if (!tkc_jp_is_name(p, "not"))
        return parse_compare(p);
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_NOT, p->at->line);
    p->at++;
    if (!n || !tkc_jp_deeper(p))
        return NULL;
    n->a = parse_not(p);
    p->nesting--;
    return n->a && tkc_jp_adopt(p, n, n->a) ? n : NULL;
}

static tkc_jnode *logic(tkc_jparser *p, int kind, int32_t line, tkc_jnode *a, tkc_jnode *b)
{
    tkc_jnode *n = a && b ? tkc_jp_node(p, kind, line) : NULL;
    if (!n || !tkc_jp_adopt(p, n, a) || !tkc_jp_adopt(p, n, b))
        return NULL;
    n->a = a;
    n->b = b;
    return n;
}

static tkc_jnode *parse_and(tkc_jparser *p)
{
    tkc_jnode *n = parse_not(p);
    while (n && tkc_jp_is_name(p, "and")) {
        int32_t line = p->at->line;
        p->at++;
        n = logic(p, TKC_JN_AND, line, n, parse_not(p));
    }
    return n;
}

static tkc_jnode *parse_or(tkc_jparser *p)
{
    tkc_jnode *n = parse_and(p);
    while (n && tkc_jp_is_name(p, "or")) {
        int32_t line = p->at->line;
        p->at++;
        n = logic(p, TKC_JN_OR, line, n, parse_and(p));
    }
    return n;
}

static tkc_jnode *parse_condition(tkc_jparser *p)
{
    tkc_jnode *n = parse_or(p);
    while (n && tkc_jp_is_name(p, "if")) {
        tkc_jnode *c = tkc_jp_node(p, TKC_JN_COND, p->at->line);
        p->at++;
        if (!c || !(c->a = parse_or(p)))
            return NULL;
        c->b = n;
        if (tkc_jp_skip_name(p, "else")) {
            if (!tkc_jp_deeper(p) || !(c->c = parse_condition(p)))
                return NULL;
            p->nesting--;
        }
        if (!tkc_jp_adopt(p, c, c->a) || !tkc_jp_adopt(p, c, c->b) ||
            (c->c && !tkc_jp_adopt(p, c, c->c)))
            return NULL;
        n = c;
    }
    return n;
}

tkc_jnode *tkc_jp_expression(tkc_jparser *p, bool with_condition)
{
    if (!tkc_jp_deeper(p))
        return NULL;
    tkc_jnode *n = with_condition ? parse_condition(p) : parse_or(p);
    p->nesting--;
    return n;
}

/* ---- targets of assignments ---- */

tkc_jnode *tkc_jp_name_target(tkc_jparser *p)
{
    if (p->at->kind != TKC_JT_NAME)
        return tkc_jp_unexpected(p);
    static const char *const fixed[] = { "true", "True", "false", "False", "none", "None" };
    for (size_t i = 0; i < 6; i++)
        if (tkc_str_is(p->at->text, fixed[i]))
            return tkc_jp_fail(p, "cannot assign to %s", fixed[i]);
    if (p->in_for && tkc_str_is(p->at->text, "loop"))
        return tkc_jp_fail(p, "cannot assign to the special loop variable");
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_NAME, p->at->line);
    if (!n || !(n->name = tkc_jp_intern(p, p->at->text)))
        return NULL;
    n->store = true;
    p->at++;
    return n;
}

static tkc_jnode *namespace_target(tkc_jparser *p)
{
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_NSREF, p->at->line);
    if (!n || !(n->name = tkc_jp_intern(p, p->at->text)))
        return NULL;
    p->at += 2;
    if (p->at->kind != TKC_JT_NAME)
        return tkc_jp_unexpected(p);
    n->value = tkc_jp_string(p, p->at->text);
    p->at++;
    return tkc_jv_failed(n->value) ? NULL : n;
}

static tkc_jnode *one_target(tkc_jparser *p, const char *end, bool with_namespace)
{
    if (with_namespace && p->at->kind == TKC_JT_NAME && p->at[1].kind == TKC_JT_OP &&
        tkc_str_is(p->at[1].text, "."))
        return namespace_target(p);
    if (!tkc_jp_is_op(p, "("))
        return tkc_jp_name_target(p);
    p->at++;
    if (!tkc_jp_deeper(p))
        return NULL;
    tkc_jnode *n = tkc_jp_target(p, end, with_namespace, true);
    p->nesting--;
    return n && tkc_jp_expect_op(p, ")") ? n : NULL;
}

tkc_jnode *tkc_jp_target(tkc_jparser *p, const char *end, bool with_namespace, bool with_tuple)
{
    int32_t line = p->at->line;
    tkc_jnodes items = { 0 };
    tkc_jnode *first = one_target(p, end, with_namespace);
    if (!first || !with_tuple || !tkc_jp_is_op(p, ","))
        return first;
    if (!tkc_jp_push(p, &items, first))
        return NULL;
    while (tkc_jp_skip_op(p, ",")) {
        /* `for a, in x` is not a tuple, as in the reference */
        if (tkc_jp_is_op(p, ")") || (!end && (at_tuple_end(p, end) || tkc_jp_is_op(p, "="))))
            break;
        tkc_jnode *next = one_target(p, end, with_namespace);
        if (!next || !tkc_jp_push(p, &items, next))
            return NULL;
    }
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_TUPLE, line);
    for (size_t i = 0; n && i < items.len; i++)
        if (!tkc_jp_adopt(p, n, items.items[i]))
            return NULL;
    return n && tkc_jp_finish(p, &items, &n->list) ? n : NULL;
}
