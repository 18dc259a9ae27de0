/* jinja_parse.c - the parser's half that reads statements, and functions for both halves.
 *
 * Creates nodes in the template's arena. Nesting is limited, so that no input makes the parser's
 * recursion deep. May touch: arenas, the tokens.
 */
#include "jinja/jinja_parse.h"

#include <stdio.h>
#include <string.h>

/* ---- tools ---- */

void *tkc_jp_fail(tkc_jparser *p, const char *format, ...)
{
    char text[300];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tkc_fail(p->err, TINKC_E_TEMPLATE, "line %d: %s", p->at->line, text);
    return NULL;
}

void *tkc_jp_unexpected(tkc_jparser *p)
{
    static const char *const kinds[] = { "text", "{%", "the end of the tag", "{{",
                                         "the end of the tag" };
    if (p->at->kind == TKC_JT_END)
        return tkc_jp_fail(p, "the template ends too early");
    if (p->at->kind < TKC_JT_NAME)
        return tkc_jp_fail(p, "unexpected %s", kinds[p->at->kind]);
    size_t n = p->at->text.len < 60 ? p->at->text.len : 60;
    return tkc_jp_fail(p, "unexpected '%.*s'", (int)n, p->at->text.data);
}

bool tkc_jp_deeper(tkc_jparser *p)
{
    if (p->nesting >= TKC_JINJA_MAX_NESTING)
        return tkc_jp_fail(p, "nested more than %d deep", TKC_JINJA_MAX_NESTING) != NULL;
    if (tkc_stack_left() < TKC_JINJA_STACK)
        return tkc_jp_fail(p, "nested too deeply for the stack of this thread") != NULL;
    p->nesting++;
    return true;
}

tkc_jnode *tkc_jp_node(tkc_jparser *p, int kind, int32_t line)
{
    tkc_jnode *n = tkc_arena_zalloc(p->arena, sizeof *n, p->err);
    if (n) {
        n->kind = (uint8_t)kind;
        n->line = line;
        n->value = tkc_jv_none;
    }
    return n;
}

bool tkc_jp_adopt(tkc_jparser *p, tkc_jnode *node, const tkc_jnode *child)
{
    if (child->depth >= TKC_JINJA_MAX_NODE_DEPTH)
        return tkc_jp_fail(p, "an expression of more than %d levels", TKC_JINJA_MAX_NODE_DEPTH) !=
               NULL;
    if (node->depth <= child->depth)
        node->depth = (uint16_t)(child->depth + 1);
    return true;
}

bool tkc_jp_push(tkc_jparser *p, tkc_jnodes *list, tkc_jnode *n)
{
    if (list->len == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 4;
        tkc_jnode **grown = tkc_arena_alloc(p->scratch, cap * sizeof *grown, p->err);
        if (!grown)
            return false;
        if (list->len)
            memcpy(grown, list->items, list->len * sizeof *grown);
        list->items = grown;
        list->cap = cap;
    }
    list->items[list->len++] = n;
    return true;
}

bool tkc_jp_finish(tkc_jparser *p, const tkc_jnodes *list, tkc_jlistof *out)
{
    out->len = list->len;
    if (list->len == 0)
        return true;
    out->items = tkc_arena_alloc(p->arena, list->len * sizeof *out->items, p->err);
    if (out->items)
        memcpy(out->items, list->items, list->len * sizeof *out->items);
    return out->items != NULL;
}

static tkc_jstr *new_string(tkc_jparser *p, tinkc_str s)
{
    tkc_jstr *str = tkc_arena_alloc(p->arena, sizeof *str, p->err);
    char *data = str ? tkc_arena_str(p->arena, s, p->err) : NULL;
    if (!data)
        return NULL;
    *str = (tkc_jstr){ data, s.len, SIZE_MAX };
    (void)tkc_jstr_chars(str); /* count now: threads share templates, a later write would race */
    return str;
}

tkc_jv tkc_jp_string(tkc_jparser *p, tinkc_str s)
{
    tkc_jstr *str = new_string(p, s);
    return str ? (tkc_jv){ .kind = TKC_JV_STR, .s = str } : tkc_jv_fail;
}

static bool grow_names(tkc_jparser *p)
{
    size_t cap = p->cap_names ? p->cap_names * 2 : 128;
    tkc_jstr **grown = tkc_arena_array(p->scratch, cap, sizeof *grown, p->err);
    if (!grown)
        return false;
    for (size_t i = 0; i < p->cap_names; i++) {
        if (!p->names[i])
            continue;
        size_t k = tkc_hash(p->names[i]->data, p->names[i]->len) & (cap - 1);
        while (grown[k])
            k = (k + 1) & (cap - 1);
        grown[k] = p->names[i];
    }
    p->names = grown;
    p->cap_names = cap;
    return true;
}

tkc_jstr *tkc_jp_intern(tkc_jparser *p, tinkc_str s)
{
    if (p->n_names * 2 >= p->cap_names && !grow_names(p))
        return NULL;
    size_t k = tkc_hash(s.data, s.len) & (p->cap_names - 1);
    while (p->names[k]) {
        if (tkc_str_eq((tinkc_str){ p->names[k]->data, p->names[k]->len }, s))
            return p->names[k];
        k = (k + 1) & (p->cap_names - 1);
    }
    tkc_jstr *str = new_string(p, s);
    if (str) {
        p->names[k] = str;
        p->n_names++;
    }
    return str;
}

bool tkc_jp_is_op(const tkc_jparser *p, const char *op)
{
    return p->at->kind == TKC_JT_OP && tkc_str_is(p->at->text, op);
}

bool tkc_jp_is_name(const tkc_jparser *p, const char *name)
{
    return p->at->kind == TKC_JT_NAME && tkc_str_is(p->at->text, name);
}

bool tkc_jp_skip_op(tkc_jparser *p, const char *op)
{
    bool here = tkc_jp_is_op(p, op);
    p->at += here;
    return here;
}

bool tkc_jp_skip_name(tkc_jparser *p, const char *name)
{
    bool here = tkc_jp_is_name(p, name);
    p->at += here;
    return here;
}

bool tkc_jp_expect_op(tkc_jparser *p, const char *op)
{
    return tkc_jp_skip_op(p, op) || tkc_jp_unexpected(p) != NULL;
}

static bool expect_block_end(tkc_jparser *p)
{
    if (p->at->kind != TKC_JT_BLOCK_END)
        return tkc_jp_unexpected(p) != NULL;
    p->at++;
    return true;
}

/* ---- statements ---- */

static tkc_jnode *parse_statement(tkc_jparser *p);

static bool at_one_of(const tkc_jparser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (tkc_jp_is_name(p, *ends))
            return true;
    return false;
}

/* Text and tags up to a tag whose name is in `ends`; stops after its "{%". ends NULL: up to the end
 * of the template. */
static bool parse_body(tkc_jparser *p, const char *const *ends, tkc_jlistof *out)
{
    tkc_jnodes items = { 0 };
    if (!tkc_jp_deeper(p))
        return false;
    for (;;) {
        tkc_jnode *n = NULL;
        if (p->at->kind == TKC_JT_TEXT) {
            n = tkc_jp_node(p, TKC_JN_TEXT, p->at->line);
            if (n)
                n->value = tkc_jp_string(p, p->at->text);
            p->at++;
        } else if (p->at->kind == TKC_JT_VAR_BEGIN) {
            p->at++;
            n = tkc_jp_node(p, TKC_JN_OUTPUT, p->at->line);
            if (n && !(n->a = tkc_jp_tuple(p, true, NULL, false)))
                return false;
            if (p->at->kind != TKC_JT_VAR_END)
                return tkc_jp_unexpected(p) != NULL;
            p->at++;
        } else if (p->at->kind == TKC_JT_BLOCK_BEGIN) {
            p->at++;
            if (at_one_of(p, ends))
                break;
            n = parse_statement(p);
        } else if (p->at->kind == TKC_JT_END && !ends) {
            break;
        } else {
            return tkc_jp_unexpected(p) != NULL;
        }
        if (!n || !tkc_jp_push(p, &items, n))
            return false;
    }
    p->nesting--;
    return tkc_jp_finish(p, &items, out);
}

/* The body of a tag up to its "{% endX %}", which is consumed. */
static bool parse_block(tkc_jparser *p, const char *end, tkc_jlistof *out)
{
    const char *const ends[] = { end, NULL };
    if (!expect_block_end(p) || !parse_body(p, ends, out))
        return false;
    p->at++;
    return expect_block_end(p);
}

static tkc_jnode *parse_if(tkc_jparser *p)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    static const char *const last[] = { "endif", NULL };
    tkc_jnode *first = NULL, *n = NULL;
    for (;;) {
        tkc_jnode *next = tkc_jp_node(p, TKC_JN_IF, p->at->line);
        if (!next || !(next->a = tkc_jp_tuple(p, false, NULL, false)) || !expect_block_end(p) ||
            !parse_body(p, ends, &next->body))
            return NULL;
        if (n) { /* an elif is the whole else part of the one before it */
            tkc_jnodes one = { 0 };
            next->is_elif = true;
            if (!tkc_jp_push(p, &one, next) || !tkc_jp_finish(p, &one, &n->other))
                return NULL;
        }
        first = first ? first : next;
        n = next;
        if (!tkc_jp_skip_name(p, "elif"))
            break;
    }
    if (tkc_jp_skip_name(p, "else") && (!expect_block_end(p) || !parse_body(p, last, &n->other)))
        return NULL;
    p->at++;
    return expect_block_end(p) ? first : NULL;
}

static tkc_jnode *parse_for(tkc_jparser *p)
{
    static const char *const ends[] = { "else", "endfor", NULL };
    static const char *const last[] = { "endfor", NULL };
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_FOR, p->at->line);
    p->in_for++;
    if (!n || !(n->a = tkc_jp_target(p, "in", false, true)))
        return NULL;
    if (!tkc_jp_skip_name(p, "in"))
        return tkc_jp_unexpected(p);
    if (!(n->b = tkc_jp_tuple(p, false, "recursive", false)))
        return NULL;
    if (tkc_jp_skip_name(p, "if") && !(n->c = tkc_jp_expression(p, true)))
        return NULL;
    n->recursive = tkc_jp_skip_name(p, "recursive");
    p->loops++;
    if (!expect_block_end(p) || !parse_body(p, ends, &n->body))
        return NULL;
    p->loops--;
    if (tkc_jp_skip_name(p, "else") && (!expect_block_end(p) || !parse_body(p, last, &n->other)))
        return NULL;
    p->in_for--;
    p->at++;
    return expect_block_end(p) ? n : NULL;
}

static tkc_jnode *parse_set(tkc_jparser *p)
{
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_SET, p->at->line);
    if (!n || !(n->a = tkc_jp_target(p, NULL, true, true)))
        return NULL;
    if (tkc_jp_skip_op(p, "="))
        return (n->b = tkc_jp_tuple(p, true, NULL, false)) && expect_block_end(p) ? n : NULL;
    n->kind = TKC_JN_SET_BLOCK;
    if (tkc_jp_is_op(p, "|") && !(n->b = tkc_jp_filters(p, NULL, false)))
        return NULL;
    return parse_block(p, "endset", &n->body) ? n : NULL;
}

/* "(a, b=1)": arguments into list, the defaults of the last ones into other. */
static bool parse_signature(tkc_jparser *p, tkc_jnode *n)
{
    tkc_jnodes args = { 0 }, defaults = { 0 };
    if (!tkc_jp_expect_op(p, "("))
        return false;
    while (!tkc_jp_is_op(p, ")")) {
        if (args.len && !tkc_jp_expect_op(p, ","))
            return false;
        tkc_jnode *arg = tkc_jp_name_target(p);
        if (!arg || !tkc_jp_push(p, &args, arg))
            return false;
        if (tkc_jp_skip_op(p, "=")) {
            tkc_jnode *value = tkc_jp_expression(p, true);
            if (!value || !tkc_jp_push(p, &defaults, value))
                return false;
        } else if (defaults.len) {
            return tkc_jp_fail(p, "an argument without default follows one with default") != NULL;
        }
    }
    p->at++;
    return tkc_jp_finish(p, &args, &n->list) && tkc_jp_finish(p, &defaults, &n->other);
}

/* A body that is a separate function: loops outside do not count. */
static bool parse_function_body(tkc_jparser *p, const char *end, tkc_jnode *n)
{
    int32_t loops = p->loops;
    p->loops = 0;
    bool ok = parse_block(p, end, &n->body);
    p->loops = loops;
    return ok;
}

static tkc_jnode *parse_macro(tkc_jparser *p)
{
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_MACRO, p->at->line);
    tkc_jnode *name = n ? tkc_jp_name_target(p) : NULL;
    if (!name)
        return NULL;
    n->name = name->name;
    return parse_signature(p, n) && parse_function_body(p, "endmacro", n) ? n : NULL;
}

static tkc_jnode *parse_call_block(tkc_jparser *p)
{
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_CALL_BLOCK, p->at->line);
    if (!n || (tkc_jp_is_op(p, "(") && !parse_signature(p, n)))
        return NULL;
    if (!(n->name = tkc_jp_intern(p, tkc_str("caller"))) || !(n->b = tkc_jp_expression(p, true)))
        return NULL;
    if (n->b->kind != TKC_JN_CALL)
        return tkc_jp_fail(p, "a call block needs a call");
    return parse_function_body(p, "endcall", n) ? n : NULL;
}

static tkc_jnode *parse_filter_block(tkc_jparser *p)
{
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_FILTER_BLOCK, p->at->line);
    if (!n || !(n->b = tkc_jp_filters(p, NULL, true)))
        return NULL;
    return parse_block(p, "endfilter", &n->body) ? n : NULL;
}

static tkc_jnode *parse_with(tkc_jparser *p)
{
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_WITH, p->at->line);
    tkc_jnodes pairs = { 0 };
    while (n && p->at->kind != TKC_JT_BLOCK_END) {
        if (pairs.len && !tkc_jp_expect_op(p, ","))
            return NULL;
        tkc_jnode *target = tkc_jp_target(p, NULL, false, false);
        if (!target || !tkc_jp_expect_op(p, "="))
            return NULL;
        tkc_jnode *value = tkc_jp_expression(p, true);
        if (!value || !tkc_jp_push(p, &pairs, target) || !tkc_jp_push(p, &pairs, value))
            return NULL;
    }
    if (!n || !tkc_jp_finish(p, &pairs, &n->list))
        return NULL;
    return parse_block(p, "endwith", &n->body) ? n : NULL;
}

static tkc_jnode *parse_generation(tkc_jparser *p)
{
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_GENERATION, p->at->line);
    p->t->has_generation = true;
    return n && parse_function_body(p, "endgeneration", n) ? n : NULL;
}

static tkc_jnode *parse_jump(tkc_jparser *p, int kind)
{
    if (p->loops == 0)
        return tkc_jp_fail(p, "%s outside of a loop", kind == TKC_JN_BREAK ? "break" : "continue");
    tkc_jnode *n = tkc_jp_node(p, kind, p->at->line);
    return n && expect_block_end(p) ? n : NULL;
}

static tkc_jnode *parse_break(tkc_jparser *p)
{
    return parse_jump(p, TKC_JN_BREAK);
}

static tkc_jnode *parse_continue(tkc_jparser *p)
{
    return parse_jump(p, TKC_JN_CONTINUE);
}

static tkc_jnode *parse_print(tkc_jparser *p)
{
    tkc_jnode *n = tkc_jp_node(p, TKC_JN_OUTPUT, p->at->line);
    return n && (n->a = tkc_jp_expression(p, true)) && expect_block_end(p) ? n : NULL;
}

static tkc_jnode *parse_statement(tkc_jparser *p)
{
    static const struct {
        const char *name;
        tkc_jnode *(*parse)(tkc_jparser *);
    } tags[] = { { "if", parse_if },           { "for", parse_for },
                 { "set", parse_set },         { "macro", parse_macro },
                 { "call", parse_call_block }, { "filter", parse_filter_block },
                 { "with", parse_with },       { "generation", parse_generation },
                 { "break", parse_break },     { "continue", parse_continue },
                 { "print", parse_print } };
    if (p->at->kind != TKC_JT_NAME)
        return tkc_jp_unexpected(p);
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (tkc_str_is(p->at->text, tags[i].name)) {
            p->at++;
            return tags[i].parse(p);
        }
    size_t n = p->at->text.len < 60 ? p->at->text.len : 60;
    return tkc_jp_fail(p, "the tag '%.*s' is not supported here", (int)n, p->at->text.data);
}

bool tkc_jinja_parse(tkc_jtemplate *t, tinkc_str text, tinkc_error *err)
{
    tkc_arena scratch;
    tkc_arena_init(&scratch, t->arena.a, 0);
    tkc_jtoken *tokens = NULL;
    size_t n_tokens = 0;
    bool ok = tkc_jinja_lex(&scratch, text, &tokens, &n_tokens, err);
    if (ok) {
        tkc_jparser p = {
            .t = t, .arena = &t->arena, .scratch = &scratch, .err = err, .at = tokens
        };
        static const char *const special[4] = { "caller", "varargs", "kwargs", "loop" };
        for (int i = 0; ok && i < 4; i++)
            ok = (t->special_names[i] = tkc_jp_intern(&p, tkc_str(special[i]))) != NULL;
        ok = ok && parse_body(&p, NULL, &t->body) && tkc_jinja_scope(t, &scratch, err);
    }
    tkc_arena_free(&scratch);
    return ok && !tkc_failed(err);
}
