/* jinja_exec.c - statements of a running template: output, conditions, loops, macros, blocks.
 *
 * All output goes into one buffer. The output of a macro or a set block is removed from its end
 * when it is done. May touch: the run.
 */
#include "jinja/jinja.h"

#include <string.h>

#include "base/clock.h"

typedef enum { NEXT, BREAK, CONTINUE, FAILED } outcome;

static outcome exec_list(tkc_jev *ev, tkc_jact *act, const tkc_jlistof *list);

static bool new_act(tkc_jev *ev, tkc_jact *parent, int32_t n_slots, tkc_jact **out)
{
    tkc_jact *act = tkc_j_alloc(ev, sizeof *act + (size_t)n_slots * sizeof(tkc_jv));
    if (!act)
        return false;
    act->parent = parent;
    act->slots = (tkc_jv *)(void *)(act + 1);
    for (int32_t i = 0; i < n_slots; i++)
        act->slots[i] = tkc_jv_missing;
    *out = act;
    return true;
}

/* Runs a body and removes its output from the buffer. The body may break out of a loop. */
static outcome capture(tkc_jev *ev, tkc_jact *act, const tkc_jlistof *body, tkc_jv *out)
{
    size_t mark = ev->out.len;
    ev->buffered++;
    outcome o = exec_list(ev, act, body);
    ev->buffered--;
    *out = o == FAILED ? tkc_jv_fail : tkc_jv_take(ev, mark);
    return tkc_jv_failed(*out) ? FAILED : o;
}

/* ---- macros ---- */

static bool bind_keyword(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n, const tkc_jkwarg *kw,
                         tkc_jv *rest, const tkc_jv **caller)
{
    tinkc_str name = { kw->name->data, kw->name->len };
    for (size_t i = 0; i < n->list.len; i++) {
        const tkc_jstr *arg = n->list.items[i]->name;
        if (!tkc_str_eq(name, (tinkc_str){ arg->data, arg->len }))
            continue;
        tkc_jv *slot = &act->slots[n->arg_slots[i]];
        if (slot->kind != TKC_JV_MISSING && n->kwargs_slot >= 0)
            break; /* already given by position: this one goes to kwargs */
        if (slot->kind != TKC_JV_MISSING) {
            tkc_j_fail(ev, "macro: argument '%.*s' is given twice",
                       (int)(name.len < 60 ? name.len : 60), name.data);
            return false;
        }
        *slot = kw->value;
        return true;
    }
    if (n->caller_slot >= 0 && tkc_str_is(name, "caller")) {
        *caller = &kw->value;
        return true;
    }
    if (n->kwargs_slot < 0) {
        tkc_j_fail(ev, "macro '%.*s' takes no keyword argument '%.*s'",
                   (int)(n->name->len < 60 ? n->name->len : 60), n->name->data,
                   (int)(name.len < 60 ? name.len : 60), name.data);
        return false;
    }
    return tkc_jdict_set(ev, rest->d, (tkc_jv){ .kind = TKC_JV_STR, .s = kw->name }, kw->value);
}

/* Puts positional, keyword and special arguments into the macro's slots. */
static bool bind_macro(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n, const tkc_jargs *args,
                       const tkc_jv *caller)
{
    size_t n_named = args->n_pos < n->list.len ? args->n_pos : n->list.len;
    tkc_jv rest = tkc_jv_missing, more = tkc_jv_missing;
    for (size_t i = 0; i < n_named; i++)
        act->slots[n->arg_slots[i]] = args->pos[i];
    if (n->kwargs_slot >= 0 && tkc_jv_failed(rest = tkc_jv_dict(ev, TKC_JV_DICT)))
        return false;
    for (size_t i = 0; i < args->n_kw; i++)
        if (!bind_keyword(ev, act, n, &args->kw[i], &rest, &caller))
            return false;
    if (args->n_pos > n->list.len && n->varargs_slot < 0) {
        tkc_j_fail(ev, "macro '%.*s' takes not more than %zu argument(s)",
                   (int)(n->name->len < 60 ? n->name->len : 60), n->name->data, n->list.len);
        return false;
    }
    if (n->varargs_slot >= 0) {
        more = tkc_jv_list(ev, TKC_JV_TUPLE, 0);
        for (size_t i = n->list.len; !tkc_jv_failed(more) && i < args->n_pos; i++)
            if (!tkc_jv_push(ev, more.l, args->pos[i]))
                return false;
        act->slots[n->varargs_slot] = more;
    }
    if (n->kwargs_slot >= 0)
        act->slots[n->kwargs_slot] = rest;
    if (n->caller_slot >= 0)
        act->slots[n->caller_slot] = caller ? *caller : tkc_jv_undefined();
    return !tkc_failed(ev->err);
}

static bool fill_defaults(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    size_t first = n->list.len - n->other.len;
    for (size_t i = 0; i < n->list.len; i++) {
        tkc_jv *slot = &act->slots[n->arg_slots[i]];
        if (slot->kind != TKC_JV_MISSING)
            continue;
        *slot = i >= first ? tkc_j_eval(ev, act, n->other.items[i - first])
                           : (tkc_jv){ .kind = TKC_JV_UNDEFINED,
                                       .aux = TKC_JV_MISSING,
                                       .s = n->list.items[i]->name };
        if (tkc_jv_failed(*slot))
            return false;
    }
    return true;
}

tkc_jv tkc_j_call_macro(tkc_jev *ev, const tkc_jmacro *macro, const tkc_jargs *args,
                        const tkc_jv *caller)
{
    const tkc_jnode *n = macro->node;
    tkc_jact *act;
    if (!tkc_j_enter(ev))
        return tkc_jv_fail;
    tkc_jv v = tkc_jv_fail;
    if (new_act(ev, macro->act, n->n_slots, &act) && bind_macro(ev, act, n, args, caller)) {
        tkc_j_enter_frame(ev, act, &n->frame);
        if (fill_defaults(ev, act, n))
            (void)capture(ev, act, &n->body, &v);
    }
    tkc_j_leave(ev);
    return v;
}

static tkc_jv make_macro(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    struct tkc_jmacro *m = tkc_j_alloc(ev, sizeof *m);
    if (!m)
        return tkc_jv_fail;
    *m = (struct tkc_jmacro){ n, act };
    return (tkc_jv){ .kind = TKC_JV_MACRO, .macro = m };
}

static outcome exec_macro(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    tkc_jv m = make_macro(ev, act, n);
    if (tkc_jv_failed(m))
        return FAILED;
    for (int32_t up = n->up; up > 0; up--)
        act = act->parent;
    act->slots[n->slot] = m;
    return NEXT;
}

static outcome exec_call_block(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    static tkc_jstr caller_name = { "caller", 6, 6 };
    tkc_jargs args;
    tkc_jv caller = make_macro(ev, act, n);
    tkc_jv callee = tkc_jv_failed(caller) ? caller : tkc_j_eval(ev, act, n->b->a);
    if (tkc_jv_failed(callee) || !tkc_j_eval_args(ev, act, n->b->call, &args))
        return FAILED;
    tkc_jv v;
    if (callee.kind == TKC_JV_MACRO && callee.macro->node->caller_slot >= 0) {
        v = tkc_j_call_macro(ev, callee.macro, &args, &caller);
    } else {
        tkc_jkwarg *kw = tkc_j_alloc(ev, (args.n_kw + 1) * sizeof *kw);
        if (!kw)
            return FAILED;
        if (args.n_kw)
            memcpy(kw, args.kw, args.n_kw * sizeof *kw);
        kw[args.n_kw] = (tkc_jkwarg){ &caller_name, caller };
        args.kw = kw;
        args.n_kw++;
        v = tkc_j_call(ev, callee, &args);
    }
    return !tkc_jv_failed(v) && tkc_j_write(ev, v) ? NEXT : FAILED;
}

/* ---- loops ---- */

bool tkc_j_loop_test(tkc_jev *ev, const tkc_jiter *it, tkc_jv item, bool *keep)
{
    const tkc_jnode *n = it->loop;
    tkc_j_enter_frame(ev, it->act, &n->frame3);
    if (!tkc_j_assign(ev, it->act, n->target2, item))
        return false;
    tkc_jv v = tkc_j_eval(ev, it->act, n->c);
    *keep = tkc_jv_truth(v);
    return !tkc_jv_failed(v);
}

static tkc_jloop *new_loop(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n, tkc_jv over)
{
    tkc_jloop *loop = tkc_j_alloc(ev, sizeof *loop);
    if (!loop)
        return NULL;
    memset(loop, 0, sizeof *loop);
    loop->current = loop->before = loop->after = loop->changed = loop->whole = tkc_jv_missing;
    loop->index0 = -1;
    loop->length = -1;
    if (n->c) {
        loop->iter = tkc_j_stage(ev, over, TKC_JSTAGE_NONE);
        if (loop->iter) {
            loop->iter->loop = n;
            loop->iter->act = act;
        }
    } else {
        loop->iter = tkc_j_iter(ev, over);
        if (over.kind != TKC_JV_ITER)
            loop->whole = over;
    }
    return loop->iter ? loop : NULL;
}

static bool advance(tkc_jev *ev, tkc_jloop *loop)
{
    tkc_jv item;
    if (loop->after.kind != TKC_JV_MISSING) {
        item = loop->after;
        loop->after = tkc_jv_missing;
    } else if (!tkc_j_next(ev, loop->iter, &item)) {
        return false;
    }
    loop->index0++;
    loop->before = loop->current;
    loop->current = item;
    return true;
}

/* The iterations of a loop whose activation is `act`. */
static outcome run_loop(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n, tkc_jloop *loop)
{
    bool ran = false; /* a body ran to its end; one that was left early does not count */
    while (advance(ev, loop)) {
        tkc_j_enter_frame(ev, act, &n->frame);
        act->slots[n->loop_slot] = (tkc_jv){ .kind = TKC_JV_LOOP, .loop = loop };
        if (!tkc_j_assign(ev, act, n->a, loop->current))
            return FAILED;
        outcome o = exec_list(ev, act, &n->body);
        if (o == FAILED)
            return FAILED;
        if (o == BREAK)
            break;
        ran = ran || o == NEXT;
    }
    if (tkc_failed(ev->err))
        return FAILED;
    if (ran || n->other.len == 0)
        return NEXT;
    tkc_j_enter_frame(ev, act, &n->frame2);
    return exec_list(ev, act, &n->other);
}

/* A recursive loop is a function: it has its own variables and returns its text. */
static tkc_jv run_recursive(tkc_jev *ev, tkc_jact *outer, const tkc_jnode *n, tkc_jv over,
                            int64_t depth0)
{
    tkc_jact *act;
    if (!tkc_j_enter(ev))
        return tkc_jv_fail;
    tkc_jv v = tkc_jv_fail;
    tkc_jloop *loop = NULL;
    if (new_act(ev, outer, n->n_slots, &act) && (loop = new_loop(ev, act, n, over))) {
        loop->recursive = n;
        loop->act = outer;
        loop->depth0 = depth0;
        size_t mark = ev->out.len;
        ev->buffered++;
        outcome o = run_loop(ev, act, n, loop);
        ev->buffered--;
        v = o == FAILED ? tkc_jv_fail : tkc_jv_take(ev, mark);
    }
    tkc_j_leave(ev);
    return v;
}

tkc_jv tkc_j_call_loop(tkc_jev *ev, const tkc_jloop *loop, tkc_jv over)
{
    if (!loop->recursive)
        return tkc_j_fail(ev, "the loop must have the 'recursive' marker to be called");
    return run_recursive(ev, loop->act, loop->recursive, over, loop->depth0 + 1);
}

static outcome exec_for(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    tkc_jv over = tkc_j_eval(ev, act, n->b);
    ev->line = n->line;
    if (tkc_jv_failed(over))
        return FAILED;
    if (n->recursive) {
        tkc_jv v = run_recursive(ev, act, n, over, 0);
        return !tkc_jv_failed(v) && tkc_j_write(ev, v) ? NEXT : FAILED;
    }
    tkc_jloop *loop = new_loop(ev, act, n, over);
    return loop ? run_loop(ev, act, n, loop) : FAILED;
}

/* ---- other statements ---- */

static outcome exec_if(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    for (;;) {
        tkc_jv test = tkc_j_eval(ev, act, n->a);
        if (tkc_jv_failed(test))
            return FAILED;
        if (tkc_jv_truth(test))
            return exec_list(ev, act, &n->body);
        if (n->other.len != 1 || !n->other.items[0]->is_elif)
            return exec_list(ev, act, &n->other);
        n = n->other.items[0];
        ev->line = n->line;
    }
}

static outcome exec_set_block(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    tkc_j_enter_frame(ev, act, &n->frame);
    tkc_jv v;
    outcome o = capture(ev, act, &n->body, &v);
    if (o != NEXT)
        return o;
    if (n->b)
        v = tkc_j_apply_filter(ev, act, n->b, &v);
    return tkc_j_assign(ev, act, n->a, v) ? NEXT : FAILED;
}

static outcome exec_filter_block(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    tkc_j_enter_frame(ev, act, &n->frame);
    tkc_jv v;
    outcome o = capture(ev, act, &n->body, &v);
    if (o != NEXT)
        return o;
    v = tkc_j_apply_filter(ev, act, n->b, &v);
    if (!tkc_jv_failed(v) && v.kind != TKC_JV_STR)
        v = tkc_j_fail(ev, "a filter block gives %s instead of text", tkc_jv_type(v));
    return !tkc_jv_failed(v) && tkc_j_write(ev, v) ? NEXT : FAILED;
}

static outcome exec_with(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    tkc_j_enter_frame(ev, act, &n->frame);
    for (size_t i = 0; i + 1 < n->list.len; i += 2)
        if (!tkc_j_assign(ev, act, n->list.items[i], tkc_j_eval(ev, act, n->list.items[i + 1])))
            return FAILED;
    return exec_list(ev, act, &n->body);
}

static bool note_span(tkc_jev *ev, size_t begin, size_t end)
{
    if (ev->n_spans == ev->cap_spans) {
        size_t cap = ev->cap_spans ? ev->cap_spans * 2 : 16;
        tkc_jspan *grown = tkc_j_alloc(ev, cap * sizeof *grown);
        if (!grown)
            return false;
        if (ev->n_spans)
            memcpy(grown, ev->spans, ev->n_spans * sizeof *grown);
        ev->spans = grown;
        ev->cap_spans = cap;
    }
    ev->spans[ev->n_spans++] = (tkc_jspan){ begin, end };
    return true;
}

static outcome exec_generation(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    size_t begin = ev->out.len;
    tkc_j_enter_frame(ev, act, &n->frame);
    outcome o = exec_list(ev, act, &n->body);
    if (ev->buffered)
        ev->nested_spans = true;
    else if (o != FAILED && !note_span(ev, begin, ev->out.len))
        return FAILED;
    return o;
}

static outcome exec(tkc_jev *ev, tkc_jact *act, const tkc_jnode *n)
{
    tkc_jv v;
    ev->line = n->line;
    switch (n->kind) {
    case TKC_JN_TEXT:
        return tkc_j_put(ev, n->value.s->data, n->value.s->len) ? NEXT : FAILED;
    case TKC_JN_OUTPUT:
        v = tkc_j_eval(ev, act, n->a);
        return !tkc_jv_failed(v) && tkc_j_write(ev, v) ? NEXT : FAILED;
    case TKC_JN_IF:
        return exec_if(ev, act, n);
    case TKC_JN_FOR:
        return exec_for(ev, act, n);
    case TKC_JN_SET:
        return tkc_j_assign(ev, act, n->a, tkc_j_eval(ev, act, n->b)) ? NEXT : FAILED;
    case TKC_JN_SET_BLOCK:
        return exec_set_block(ev, act, n);
    case TKC_JN_MACRO:
        return exec_macro(ev, act, n);
    case TKC_JN_CALL_BLOCK:
        return exec_call_block(ev, act, n);
    case TKC_JN_FILTER_BLOCK:
        return exec_filter_block(ev, act, n);
    case TKC_JN_WITH:
        return exec_with(ev, act, n);
    case TKC_JN_GENERATION:
        return exec_generation(ev, act, n);
    case TKC_JN_BREAK:
        return BREAK;
    case TKC_JN_CONTINUE:
        return CONTINUE;
    default:
        tkc_j_fail(ev, "a statement that cannot be run");
        return FAILED;
    }
}

static outcome exec_list(tkc_jev *ev, tkc_jact *act, const tkc_jlistof *list)
{
    if (!tkc_j_enter(ev))
        return FAILED;
    outcome o = NEXT;
    for (size_t i = 0; o == NEXT && i < list->len; i++)
        o = tkc_j_charge(ev, 1) ? exec(ev, act, list->items[i]) : FAILED;
    tkc_j_leave(ev);
    return o;
}

/* ---- a run ---- */

enum { USUAL_STEPS = 10000000, USUAL_BYTES = 64 << 20, USUAL_MS = 10000 };

void tkc_jev_init(tkc_jev *ev, const tkc_jtemplate *t, tkc_arena *arena, const tkc_jlimits *limits,
                  tinkc_error *err)
{
    int64_t bytes = limits && limits->max_bytes > 0 ? limits->max_bytes : USUAL_BYTES;
    memset(ev, 0, sizeof *ev);
    ev->t = t;
    ev->arena = arena;
    ev->err = err;
    ev->max_steps = limits && limits->max_steps > 0 ? limits->max_steps : USUAL_STEPS;
    ev->steps_left = ev->max_steps;
    ev->next_look = ev->max_steps - 1;
    ev->max_ms = limits && limits->max_ms > 0 ? limits->max_ms : USUAL_MS;
    ev->deadline_ns = tkc_thread_cpu_ns() + ev->max_ms * 1000000;
    /* Strings that are built in pieces need more memory than their final text. */
    ev->max_mem = ((size_t)bytes < (size_t)1 << 40 ? (size_t)bytes : (size_t)1 << 40) * 4;
    if (ev->max_mem < (size_t)16 << 20)
        ev->max_mem = (size_t)16 << 20;
    ev->mem_left = ev->max_mem;
    ev->now_us = limits && limits->now_us ? limits->now_us : INT64_MIN;
    ev->seed = tkc_random(tkc_clock_real());
    tkc_buf_init(&ev->out, arena->a, (size_t)bytes);
}

bool tkc_jev_run(tkc_jev *ev, const tkc_jdict *variables)
{
    tkc_jact *act;
    ev->globals = tkc_j_alloc(ev, ((size_t)ev->t->n_globals + 1) * sizeof *ev->globals);
    if (!ev->globals)
        return false;
    for (int32_t i = 0; i < ev->t->n_globals; i++) {
        tkc_jstr *name = ev->t->globals[i];
        tinkc_str s = { name->data, name->len };
        const tkc_jv *v = tkc_jdict_str(ev, variables, s);
        const tkc_jfunc *f = v ? NULL : tkc_j_find_global(s);
        ev->globals[i] = v   ? *v
                         : f ? (tkc_jv){ .kind = TKC_JV_GLOBAL, .global = f }
                             : tkc_jv_missing;
    }
    if (!new_act(ev, NULL, ev->t->n_slots, &act))
        return false;
    tkc_j_enter_frame(ev, act, &ev->t->frame);
    return exec_list(ev, act, &ev->t->body) != FAILED && !tkc_failed(ev->err);
}

void tkc_jev_free(tkc_jev *ev)
{
    tkc_buf_free(&ev->out);
}
