/* jinja_eval.c - expressions of a running template, and calls.
 *
 * Every node costs a step and a level of depth, so time and C stack are bounded.
 * May touch: the run.
 */
#include "jinja/jinja.h"

#include <stdio.h>
#include <string.h>

tkc_jv tkc_j_fail(tkc_jev *ev, const char *format, ...)
{
    char text[360];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tkc_fail(ev->err, TINKC_E_TEMPLATE, "line %d: %s", ev->line, text);
    return tkc_jv_fail;
}

tkc_jv tkc_j_fail_undefined(tkc_jev *ev, tkc_jv v)
{
    int n = v.s ? (int)(v.s->len < 100 ? v.s->len : 100) : 0;
    if (v.flag & TKC_JV_UNSAFE)
        return tkc_j_fail(ev, "access to attribute '%.*s' of '%s' object is unsafe", n, v.s->data,
                          tkc_jv_type((tkc_jv){ .kind = (uint8_t)v.aux }));
    if (!v.s)
        return tkc_j_fail(ev, "a value is undefined");
    if (v.aux == TKC_JV_MISSING)
        return tkc_j_fail(ev, "parameter '%.*s' was not provided", n, v.s->data);
    if (v.aux == 0)
        return tkc_j_fail(ev, "'%.*s' is undefined", n, v.s->data);
    return tkc_j_fail(ev, "'%s object' has no attribute '%.*s'",
                      tkc_jv_type((tkc_jv){ .kind = (uint8_t)v.aux }), n, v.s->data);
}

/* ---- names ---- */

static tkc_jv *slot_at(tkc_jact *act, int32_t up, int32_t slot)
{
    while (up-- > 0)
        act = act->parent;
    return &act->slots[slot];
}

static tkc_jv eval_name(tkc_jact *act, const tkc_jnode *n)
{
    const tkc_jv *v = n->slot >= 0 ? slot_at(act, n->up, n->slot) : NULL;
    if (!v || v->kind == TKC_JV_MISSING)
        return (tkc_jv){ .kind = TKC_JV_UNDEFINED, .s = n->name };
    return *v;
}

void tkc_j_enter_frame(tkc_jev *ev, tkc_jact *act, const tkc_jframe *frame)
{
    for (size_t i = 0; i < frame->n_loads; i++) {
        const tkc_jload *l = &frame->loads[i];
        tkc_jv *slot = &act->slots[l->slot];
        if (l->action == TKC_JLOAD_RESOLVE)
            *slot = ev->globals[l->from];
        else if (l->action == TKC_JLOAD_ALIAS)
            *slot = *slot_at(act, l->up, l->from);
        else
            *slot = tkc_jv_missing;
    }
}

static bool unpack(tkc_jev *ev, tkc_jact *act, const tkc_jnode *target, tkc_jv value)
{
    tkc_jiter *it = tkc_j_iter(ev, value);
    tkc_jv item;
    size_t n = 0;
    if (!it)
        return false;
    while (tkc_j_next(ev, it, &item)) {
        if (n == target->list.len) {
            tkc_j_fail(ev, "too many values to unpack (expected %zu)", target->list.len);
            return false;
        }
        if (!tkc_j_assign(ev, act, target->list.items[n++], item))
            return false;
    }
    if (n < target->list.len && !tkc_failed(ev->err))
        tkc_j_fail(ev, "not enough values to unpack (expected %zu, got %zu)", target->list.len, n);
    return !tkc_failed(ev->err);
}

bool tkc_j_assign(tkc_jev *ev, tkc_jact *act, const tkc_jnode *target, tkc_jv value)
{
    if (tkc_jv_failed(value))
        return false;
    if (target->kind == TKC_JN_TUPLE)
        return unpack(ev, act, target, value);
    if (target->kind == TKC_JN_NAME) {
        *slot_at(act, target->up, target->slot) = value;
        return true;
    }
    tkc_jv ns = eval_name(act, target);
    if (ns.kind != TKC_JV_NAMESPACE) {
        tkc_j_fail(ev, "cannot assign attribute on non-namespace object");
        return false;
    }
    return tkc_jdict_set(ev, ns.d, target->value, value);
}

/* ---- arguments ---- */

static bool add_keywords(tkc_jev *ev, tkc_jv dict, tkc_jargs *out)
{
    if (dict.kind != TKC_JV_DICT) {
        tkc_j_fail(ev, "argument after ** must be a mapping, not %s", tkc_jv_type(dict));
        return false;
    }
    for (size_t i = 0; i < dict.d->len; i++) {
        if (dict.d->entries[i].key.kind != TKC_JV_STR) {
            tkc_j_fail(ev, "keywords must be strings");
            return false;
        }
        out->kw[out->n_kw++] = (tkc_jkwarg){ dict.d->entries[i].key.s, dict.d->entries[i].value };
    }
    return true;
}

bool tkc_j_eval_args(tkc_jev *ev, tkc_jact *act, const tkc_jcall *call, tkc_jargs *out)
{
    memset(out, 0, sizeof *out);
    if (!call)
        return true;
    tkc_jv more = tkc_jv_missing, named = tkc_jv_missing;
    if (call->dyn_pos) {
        more = tkc_j_list(ev, tkc_j_eval(ev, act, call->dyn_pos), TKC_JV_LIST);
        if (tkc_jv_failed(more))
            return false;
    }
    if (call->dyn_kw && tkc_jv_failed(named = tkc_j_eval(ev, act, call->dyn_kw)))
        return false;
    size_t n_pos = call->pos.len + (call->dyn_pos ? more.l->len : 0);
    size_t n_kw = call->kw.len + (named.kind == TKC_JV_DICT ? named.d->len : 0);
    out->pos = n_pos ? tkc_j_alloc(ev, n_pos * sizeof *out->pos) : NULL;
    out->kw = n_kw ? tkc_j_alloc(ev, n_kw * sizeof *out->kw) : NULL;
    if ((n_pos && !out->pos) || (n_kw && !out->kw))
        return false;
    for (size_t i = 0; i < call->pos.len; i++) {
        out->pos[i] = tkc_j_eval(ev, act, call->pos.items[i]);
        if (tkc_jv_failed(out->pos[i]))
            return false;
    }
    for (size_t i = call->pos.len; i < n_pos; i++)
        out->pos[i] = more.l->items[i - call->pos.len];
    out->n_pos = n_pos;
    for (; out->n_kw < call->kw.len; out->n_kw++) {
        const tkc_jnode *k = call->kw.items[out->n_kw];
        tkc_jv v = tkc_j_eval(ev, act, k->a);
        if (tkc_jv_failed(v))
            return false;
        out->kw[out->n_kw] = (tkc_jkwarg){ k->name, v };
    }
    return !call->dyn_kw || add_keywords(ev, named, out);
}

bool tkc_j_bind(tkc_jev *ev, const tkc_jargs *args, const char *what, const char *const *params,
                size_t n_params, size_t n_required, tkc_jv *out)
{
    if (args->n_pos > n_params) {
        tkc_j_fail(ev, "%s: takes at most %zu arguments", what, n_params);
        return false;
    }
    for (size_t i = 0; i < n_params; i++)
        out[i] = i < args->n_pos ? args->pos[i] : tkc_jv_missing;
    for (size_t k = 0; k < args->n_kw; k++) {
        tinkc_str name = { args->kw[k].name->data, args->kw[k].name->len };
        size_t i = 0;
        while (i < n_params && !tkc_str_is(name, params[i]))
            i++;
        if (i == n_params || out[i].kind != TKC_JV_MISSING) {
            tkc_j_fail(ev, "%s: unexpected argument '%.*s'", what,
                       (int)(name.len < 60 ? name.len : 60), name.data);
            return false;
        }
        out[i] = args->kw[k].value;
    }
    for (size_t i = 0; i < n_required; i++)
        if (out[i].kind == TKC_JV_MISSING) {
            tkc_j_fail(ev, "%s: argument '%s' is missing", what, params[i]);
            return false;
        }
    return true;
}

/* ---- calls ---- */

tkc_jv tkc_j_call(tkc_jev *ev, tkc_jv callee, const tkc_jargs *args)
{
    switch (callee.kind) {
    case TKC_JV_FAIL:
        return callee;
    case TKC_JV_METHOD:
        return callee.bound->fn->call(ev, &callee.bound->self, args);
    case TKC_JV_GLOBAL:
        return callee.global->call(ev, NULL, args);
    case TKC_JV_MACRO:
        return tkc_j_call_macro(ev, callee.macro, args, NULL);
    case TKC_JV_LOOP:
        if (args->n_pos != 1 || args->n_kw)
            return tkc_j_fail(ev, "loop: takes one argument");
        return tkc_j_call_loop(ev, callee.loop, args->pos[0]);
    case TKC_JV_UNDEFINED:
        return tkc_j_fail_undefined(ev, callee);
    default:
        return tkc_j_fail(ev, "'%s' object is not callable", tkc_jv_type(callee));
    }
}

/* obj.method(...) without creating a bound method first: by far the most common call. */
static bool method_of(tkc_jev *ev, tkc_jact *act, const tkc_jnode *callee, tkc_jv *self,
                      const tkc_jfunc **fn, tkc_jv *value)
{
    bool unsafe = false;
    *fn = NULL;
    if (callee->kind != TKC_JN_ATTR) {
        *value = tkc_j_eval(ev, act, callee);
        return !tkc_jv_failed(*value);
    }
    *self = tkc_j_eval(ev, act, callee->a);
    if (tkc_jv_failed(*self))
        return false;
    if (self->kind == TKC_JV_STR || self->kind == TKC_JV_DICT || self->kind == TKC_JV_LIST)
        *fn =
            tkc_j_find_method(*self, (tinkc_str){ callee->name->data, callee->name->len }, &unsafe);
    if (*fn && !unsafe)
        return true;
    *fn = NULL;
    *value = tkc_j_attr(ev, *self, callee->name);
    return !tkc_jv_failed(*value);
}

static tkc_jv eval_call(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    tkc_jv self = tkc_jv_none, callee = tkc_jv_none;
    const tkc_jfunc *fn;
    tkc_jargs args;
    if (!method_of(ev, act, n->a, &self, &fn, &callee) || !tkc_j_eval_args(ev, act, n->call, &args))
        return tkc_jv_fail;
    ev->line = n->line;
    return fn ? fn->call(ev, &self, &args) : tkc_j_call(ev, callee, &args);
}

tkc_jv tkc_j_apply_filter(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n, const tkc_jv *input)
{
    tkc_jargs args;
    tkc_jv v =
        n->a ? (n->a->kind == TKC_JN_FILTER && input ? tkc_j_apply_filter(ev, act, n->a, input)
                                                     : tkc_j_eval(ev, act, n->a))
             : *input;
    if (tkc_jv_failed(v))
        return v;
    ev->line = n->line;
    if (!n->func)
        return tkc_j_fail(ev, "no filter named '%.*s'",
                          (int)(n->name->len < 60 ? n->name->len : 60), n->name->data);
    if (!tkc_j_eval_args(ev, act, n->call, &args))
        return tkc_jv_fail;
    return n->func->call(ev, &v, &args);
}

static tkc_jv eval_test(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    tkc_jargs args;
    tkc_jv v = tkc_j_eval(ev, act, n->a);
    if (tkc_jv_failed(v))
        return v;
    ev->line = n->line;
    if (!n->func)
        return tkc_j_fail(ev, "no test named '%.*s'", (int)(n->name->len < 60 ? n->name->len : 60),
                          n->name->data);
    if (!tkc_j_eval_args(ev, act, n->call, &args))
        return tkc_jv_fail;
    return n->func->call(ev, &v, &args);
}

/* ---- operators ---- */

static bool compare(tkc_jev *ev, int op, tkc_jv a, tkc_jv b)
{
    switch (op) {
    case TKC_JOP_EQ:
        return tkc_jv_equal(ev, a, b);
    case TKC_JOP_NE:
        return !tkc_jv_equal(ev, a, b);
    case TKC_JOP_LT:
        return tkc_jv_less(ev, a, b, "<", false);
    case TKC_JOP_LE:
        return tkc_jv_less(ev, a, b, "<=", true);
    case TKC_JOP_GT:
        return tkc_jv_less(ev, b, a, ">", false);
    case TKC_JOP_GE:
        return tkc_jv_less(ev, b, a, ">=", true);
    case TKC_JOP_IN:
        return tkc_jv_contains(ev, b, a);
    default:
        return !tkc_jv_contains(ev, b, a);
    }
}

static tkc_jv eval_compare(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    tkc_jv left = tkc_j_eval(ev, act, n->a);
    bool holds = true;
    for (size_t i = 0; holds && i < n->list.len; i++) {
        const tkc_jnode *o = n->list.items[i];
        if (tkc_jv_failed(left))
            return left;
        tkc_jv right = tkc_j_eval(ev, act, o->a);
        if (tkc_jv_failed(right))
            return right;
        ev->line = o->line;
        holds = compare(ev, o->op, left, right);
        left = right;
    }
    return tkc_failed(ev->err) ? tkc_jv_fail : tkc_jv_bool(holds);
}

static tkc_jv eval_concat(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    size_t mark = ev->out.len;
    tkc_jv few[8], *parts = few;
    if (n->list.len > 8 && !(parts = tkc_j_alloc(ev, n->list.len * sizeof *parts)))
        return tkc_jv_fail;
    for (size_t i = 0; i < n->list.len; i++) {
        parts[i] = tkc_j_eval(ev, act, n->list.items[i]);
        if (tkc_jv_failed(parts[i]))
            return tkc_jv_fail;
    }
    for (size_t i = 0; i < n->list.len; i++)
        if (!tkc_j_write(ev, parts[i]))
            return tkc_jv_fail;
    return tkc_jv_take(ev, mark);
}

static tkc_jv eval_sign(tkc_jev *ev, tkc_jv v, bool negative)
{
    if (tkc_jv_failed(v))
        return v;
    if (v.kind == TKC_JV_UNDEFINED)
        return tkc_j_fail_undefined(ev, v);
    if (v.kind == TKC_JV_FLOAT)
        return tkc_jv_float(negative ? -v.f : v.f);
    if (!tkc_jv_is_integer(v))
        return tkc_j_fail(ev, "bad operand type for unary %c: '%s'", negative ? '-' : '+',
                          tkc_jv_type(v));
    return tkc_j_binary(ev, negative ? TKC_JOP_SUB : TKC_JOP_ADD, tkc_jv_int(0), v);
}

static tkc_jv eval_list(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    tkc_jv v = tkc_jv_list(ev, n->kind == TKC_JN_LIST ? TKC_JV_LIST : TKC_JV_TUPLE, n->list.len);
    for (size_t i = 0; !tkc_jv_failed(v) && i < n->list.len; i++)
        if (!tkc_jv_push(ev, v.l, tkc_j_eval(ev, act, n->list.items[i])))
            return tkc_jv_fail;
    return v;
}

static tkc_jv eval_dict(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    tkc_jv v = tkc_jv_dict(ev, TKC_JV_DICT);
    for (size_t i = 0; !tkc_jv_failed(v) && i + 1 < n->list.len; i += 2) {
        tkc_jv key = tkc_j_eval(ev, act, n->list.items[i]);
        if (tkc_jv_failed(key) ||
            !tkc_jdict_set(ev, v.d, key, tkc_j_eval(ev, act, n->list.items[i + 1])))
            return tkc_jv_fail;
    }
    return v;
}

static tkc_jv eval_item(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    tkc_jv object = tkc_j_eval(ev, act, n->a);
    if (tkc_jv_failed(object))
        return object;
    if (n->b->kind != TKC_JN_SLICE) {
        tkc_jv key = tkc_j_eval(ev, act, n->b);
        ev->line = n->line;
        return tkc_j_item(ev, object, key);
    }
    const tkc_jnode *part[3] = { n->b->a, n->b->b, n->b->c };
    tkc_jv v[3];
    for (int i = 0; i < 3; i++) {
        v[i] = part[i] ? tkc_j_eval(ev, act, part[i]) : tkc_jv_none;
        if (tkc_jv_failed(v[i]))
            return tkc_jv_fail;
    }
    ev->line = n->line;
    return tkc_j_slice(ev, object, v[0], v[1], v[2]);
}

static tkc_jv eval_binary(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    tkc_jv a = tkc_j_eval(ev, act, n->a);
    if (tkc_jv_failed(a))
        return a;
    tkc_jv b = tkc_j_eval(ev, act, n->b);
    ev->line = n->line;
    return tkc_j_binary(ev, n->op, a, b);
}

static tkc_jv eval_logic(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    tkc_jv a = tkc_j_eval(ev, act, n->a);
    if (tkc_jv_failed(a) || tkc_jv_truth(a) == (n->kind == TKC_JN_OR))
        return a;
    return tkc_j_eval(ev, act, n->b);
}

static tkc_jv eval_condition(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    tkc_jv test = tkc_j_eval(ev, act, n->a);
    if (tkc_jv_failed(test))
        return test;
    if (tkc_jv_truth(test))
        return tkc_j_eval(ev, act, n->b);
    return n->c ? tkc_j_eval(ev, act, n->c) : tkc_jv_undefined();
}

static tkc_jv eval_deep(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    tkc_jv v;
    switch (n->kind) {
    case TKC_JN_LIST:
    case TKC_JN_TUPLE:
        return eval_list(ev, act, n);
    case TKC_JN_DICT:
        return eval_dict(ev, act, n);
    case TKC_JN_ATTR:
        v = tkc_j_eval(ev, act, n->a);
        ev->line = n->line;
        return tkc_jv_failed(v) ? v : tkc_j_attr(ev, v, n->name);
    case TKC_JN_ITEM:
        return eval_item(ev, act, n);
    case TKC_JN_CALL:
        return eval_call(ev, act, n);
    case TKC_JN_FILTER:
        return tkc_j_apply_filter(ev, act, n, NULL);
    case TKC_JN_TEST:
        return eval_test(ev, act, n);
    case TKC_JN_NOT:
        v = tkc_j_eval(ev, act, n->a);
        return tkc_jv_failed(v) ? v : tkc_jv_bool(!tkc_jv_truth(v));
    case TKC_JN_NEG:
    case TKC_JN_POS:
        return eval_sign(ev, tkc_j_eval(ev, act, n->a), n->kind == TKC_JN_NEG);
    case TKC_JN_BINARY:
        return eval_binary(ev, act, n);
    case TKC_JN_CONCAT:
        return eval_concat(ev, act, n);
    case TKC_JN_COMPARE:
        return eval_compare(ev, act, n);
    case TKC_JN_AND:
    case TKC_JN_OR:
        return eval_logic(ev, act, n);
    case TKC_JN_COND:
        return eval_condition(ev, act, n);
    default:
        return tkc_j_fail(ev, "an expression that cannot be evaluated");
    }
}

tkc_jv tkc_j_eval(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    if (n->kind == TKC_JN_CONST)
        return n->value;
    if (n->kind == TKC_JN_NAME)
        return eval_name(act, n);
    if (!tkc_j_enter(ev))
        return tkc_jv_fail;
    tkc_jv v = eval_deep(ev, act, n);
    tkc_j_leave(ev);
    return v;
}
