/* jinja_scope.c - gives every name of a template a numbered slot, before it ever runs.
 *
 * Each body (template, loop, macro, set block, ...) is a frame. A frame is first scanned without
 * entering the frames inside it, to find which names it reads and writes; then its names are
 * resolved and the inner frames follow. What a frame must do when it is entered is recorded as
 * loads: take a variable of the caller, copy a name of an outer frame (so that writes stay inside),
 * or begin without a value. The order of scanning decides corner cases and follows Jinja: a name
 * that only some branches of an `if` write still has its outer value in the others. Frames share
 * the slots of the function that contains them; macros, call blocks and recursive loops are
 * functions. May touch: the template's nodes and arena, scratch.
 */
#include "jinja/jinja.h"

#include <string.h>

enum { LOAD_NONE = -1, LOAD_PARAMETER = 100 };

typedef struct function {
    struct function *parent;
    int32_t n_slots, depth;
} function;

typedef struct entry entry;

typedef struct symbols {
    struct symbols *parent;
    function *func;
    entry *first;
    size_t n;
} symbols;

typedef struct state {
    bool has_ref, stored;
    int32_t action;
    entry *alias;
} state;

/* One name in one frame. */
struct entry {
    symbols *owner;
    tkc_jstr *name;
    entry *next;        /* of the same frame */
    entry *next_hashed; /* of the same hash */
    int32_t slot;
    state now;
    int32_t count;  /* branches that write it */
    uint32_t stamp; /* last branch that listed it */
};

typedef struct change {
    entry *e;
    state st;
} change;

typedef struct changes {
    change *items;
    size_t len, cap;
} changes;

typedef struct scoper {
    tkc_jtemplate *t;
    tkc_arena *arena, *scratch;
    tinkc_error *err;
    entry **table;
    size_t n_table;
    size_t n_entries;
    symbols *globals; /* a frame of its own: names of the caller's variables */
    changes journal;
    uint32_t stamp;
} scoper;

static bool visit(scoper *sc, symbols *s, const tkc_jnode *n);
static bool resolve(scoper *sc, symbols *s, tkc_jnode *n);

/* ---- the table ---- */

static size_t slot_of(const scoper *sc, const symbols *s, const tkc_jstr *name)
{
    uintptr_t x = (uintptr_t)s * 31 + (uintptr_t)name;
    x ^= x >> 17;
    x *= (uintptr_t)0x9E3779B97F4A7C15u;
    return (size_t)(x >> 20) & (sc->n_table - 1);
}

static entry *lookup(const scoper *sc, const symbols *s, const tkc_jstr *name)
{
    for (entry *e = sc->table[slot_of(sc, s, name)]; e; e = e->next_hashed)
        if (e->owner == s && e->name == name)
            return e;
    return NULL;
}

static bool grow_table(scoper *sc)
{
    size_t n = sc->n_table * 4;
    entry **old = sc->table, **grown = tkc_arena_array(sc->scratch, n, sizeof *grown, sc->err);
    if (!grown)
        return false;
    size_t n_old = sc->n_table;
    sc->table = grown;
    sc->n_table = n;
    for (size_t i = 0; i < n_old; i++)
        for (entry *e = old[i], *next; e; e = next) {
            next = e->next_hashed;
            size_t k = slot_of(sc, e->owner, e->name);
            e->next_hashed = grown[k];
            grown[k] = e;
        }
    return true;
}

static entry *obtain(scoper *sc, symbols *s, tkc_jstr *name)
{
    entry *e = lookup(sc, s, name);
    if (e)
        return e;
    if (sc->n_entries >= sc->n_table && !grow_table(sc))
        return NULL;
    e = tkc_arena_zalloc(sc->scratch, sizeof *e, sc->err);
    if (!e)
        return NULL;
    e->owner = s;
    e->name = name;
    e->slot = -1;
    e->now.action = LOAD_NONE;
    size_t k = slot_of(sc, s, name);
    e->next_hashed = sc->table[k];
    sc->table[k] = e;
    e->next = s->first;
    s->first = e;
    s->n++;
    sc->n_entries++;
    return e;
}

static entry *find_ref(const scoper *sc, const symbols *s, const tkc_jstr *name)
{
    for (; s; s = s->parent) {
        entry *e = lookup(sc, s, name);
        if (e && e->now.has_ref)
            return e;
    }
    return NULL;
}

static bool push_change(scoper *sc, changes *list, entry *e, state st)
{
    if (list->len == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 32;
        change *grown = tkc_arena_alloc(sc->scratch, cap * sizeof *grown, sc->err);
        if (!grown)
            return false;
        if (list->len)
            memcpy(grown, list->items, list->len * sizeof *grown);
        list->items = grown;
        list->cap = cap;
    }
    list->items[list->len++] = (change){ e, st };
    return true;
}

/* Every change of an entry must go through here, so that a branch can be undone. */
static bool change_to(scoper *sc, entry *e, state st)
{
    if (!push_change(sc, &sc->journal, e, e->now))
        return false;
    e->now = st;
    return true;
}

static bool define(scoper *sc, entry *e, int32_t action, entry *alias, bool stored)
{
    if (e->slot < 0)
        e->slot = e->owner->func->n_slots++;
    return change_to(sc, e, (state){ true, e->now.stored || stored, action, alias });
}

static bool load(scoper *sc, symbols *s, tkc_jstr *name)
{
    if (find_ref(sc, s, name))
        return true;
    entry *e = obtain(sc, s, name);
    return e && define(sc, e, TKC_JLOAD_RESOLVE, NULL, false);
}

static bool store(scoper *sc, symbols *s, tkc_jstr *name)
{
    entry *e = obtain(sc, s, name);
    if (!e)
        return false;
    if (e->now.has_ref) {
        state st = e->now;
        st.stored = true;
        return change_to(sc, e, st);
    }
    entry *outer = s->parent ? find_ref(sc, s->parent, name) : NULL;
    return define(sc, e, outer ? TKC_JLOAD_ALIAS : TKC_JLOAD_UNDEFINED, outer, true);
}

static entry *declare(scoper *sc, symbols *s, tkc_jstr *name)
{
    entry *e = obtain(sc, s, name);
    return e && define(sc, e, LOAD_PARAMETER, NULL, true) ? e : NULL;
}

/* ---- scanning a frame ---- */

static bool visit_list(scoper *sc, symbols *s, const tkc_jlistof *list)
{
    for (size_t i = 0; i < list->len; i++)
        if (!visit(sc, s, list->items[i]))
            return false;
    return true;
}

/* Undoes the changes since `mark` and records them in `out`. */
static bool end_branch(scoper *sc, size_t mark, changes *out)
{
    sc->stamp++;
    for (size_t i = mark; i < sc->journal.len; i++) {
        entry *e = sc->journal.items[i].e;
        if (e->stamp == sc->stamp)
            continue;
        e->stamp = sc->stamp;
        if (!push_change(sc, out, e, e->now))
            return false;
    }
    while (sc->journal.len > mark) {
        change *c = &sc->journal.items[--sc->journal.len];
        c->e->now = c->st;
    }
    return true;
}

/* What the frame knows after an `if`: everything its three parts know. */
static bool merge_branches(scoper *sc, symbols *s, const changes part[3])
{
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < part[k].len; i++)
            part[k].items[i].e->count = 0;
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < part[k].len; i++) {
            const change *c = &part[k].items[i];
            c->e->count += c->st.stored && !c->e->now.stored;
        }
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < part[k].len; i++) {
            const change *c = &part[k].items[i];
            state st = c->e->now;
            st.has_ref = st.has_ref || c->st.has_ref;
            st.stored = st.stored || c->st.stored;
            if (c->st.action != LOAD_NONE) {
                st.action = c->st.action;
                st.alias = c->st.alias;
            }
            if (!change_to(sc, c->e, st))
                return false;
        }
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < part[k].len; i++) {
            entry *e = part[k].items[i].e;
            if (e->count == 0 || e->count == 3)
                continue;
            e->count = 0;
            entry *outer = s->parent ? find_ref(sc, s->parent, e->name) : NULL;
            state st = e->now;
            st.action = outer ? TKC_JLOAD_ALIAS : TKC_JLOAD_RESOLVE;
            st.alias = outer;
            if (!change_to(sc, e, st))
                return false;
        }
    return true;
}

/* An `if` alone: its test, then its body against two parts that do nothing. */
static bool visit_alone(scoper *sc, symbols *s, const tkc_jnode *n)
{
    changes part[3] = { { 0 }, { 0 }, { 0 } };
    if (!visit(sc, s, n->a))
        return false;
    size_t mark = sc->journal.len;
    return visit_list(sc, s, &n->body) && end_branch(sc, mark, &part[0]) &&
           merge_branches(sc, s, part);
}

static const tkc_jnode *next_elif(const tkc_jnode *n)
{
    return n->other.len == 1 && n->other.items[0]->is_elif ? n->other.items[0] : NULL;
}

static bool visit_if(scoper *sc, symbols *s, const tkc_jnode *n)
{
    changes part[3] = { { 0 }, { 0 }, { 0 } };
    if (!visit(sc, s, n->a))
        return false;
    size_t mark = sc->journal.len;
    if (!visit_list(sc, s, &n->body) || !end_branch(sc, mark, &part[0]))
        return false;
    const tkc_jnode *last = n;
    for (const tkc_jnode *e = next_elif(n); e; e = next_elif(e)) {
        if (!visit_alone(sc, s, e))
            return false;
        last = e;
    }
    return end_branch(sc, mark, &part[1]) && visit_list(sc, s, &last->other) &&
           end_branch(sc, mark, &part[2]) && merge_branches(sc, s, part);
}

static bool visit_call(scoper *sc, symbols *s, const tkc_jcall *call)
{
    if (!call)
        return true;
    return visit_list(sc, s, &call->pos) && visit_list(sc, s, &call->kw) &&
           visit(sc, s, call->dyn_pos) && visit(sc, s, call->dyn_kw);
}

static bool visit_with_values(scoper *sc, symbols *s, const tkc_jnode *n)
{
    for (size_t i = 1; i < n->list.len; i += 2)
        if (!visit(sc, s, n->list.items[i]))
            return false;
    return true;
}

static bool visit(scoper *sc, symbols *s, const tkc_jnode *n)
{
    if (!n)
        return true;
    switch (n->kind) {
    case TKC_JN_NAME:
        return n->store ? store(sc, s, n->name) : load(sc, s, n->name);
    case TKC_JN_NSREF:
        return load(sc, s, n->name);
    case TKC_JN_IF:
        return visit_if(sc, s, n);
    case TKC_JN_FOR:
    case TKC_JN_CALL_BLOCK:
        return visit(sc, s, n->b);
    case TKC_JN_SET:
        return visit(sc, s, n->b) && visit(sc, s, n->a);
    case TKC_JN_SET_BLOCK:
        return visit(sc, s, n->a);
    case TKC_JN_FILTER_BLOCK:
        return visit(sc, s, n->b);
    case TKC_JN_MACRO:
        return store(sc, s, n->name);
    case TKC_JN_WITH:
        return visit_with_values(sc, s, n);
    case TKC_JN_GENERATION:
    case TKC_JN_TEXT:
    case TKC_JN_CONST:
        return true;
    default:
        return visit(sc, s, n->a) && visit(sc, s, n->b) && visit(sc, s, n->c) &&
               visit_list(sc, s, &n->list) && visit_call(sc, s, n->call);
    }
}

/* ---- resolving ---- */

static void place(const scoper *sc, const symbols *s, const tkc_jstr *name, int32_t *up,
                  int32_t *slot)
{
    const entry *e = find_ref(sc, s, name);
    *up = e ? s->func->depth - e->owner->func->depth : 0;
    *slot = e ? e->slot : -1;
}

static int32_t global_index(scoper *sc, tkc_jstr *name)
{
    entry *e = obtain(sc, sc->globals, name);
    if (!e)
        return 0;
    if (e->slot < 0)
        e->slot = (int32_t)(sc->globals->n - 1);
    return e->slot;
}

/* Records what the frame does when it is entered. */
static bool finish_frame(scoper *sc, const symbols *s, tkc_jframe *out)
{
    out->loads = tkc_arena_array(sc->arena, s->n + 1, sizeof *out->loads, sc->err);
    if (!out->loads)
        return false;
    for (const entry *e = s->first; e; e = e->next) {
        if (!e->now.has_ref || e->now.action == LOAD_NONE || e->now.action == LOAD_PARAMETER)
            continue;
        tkc_jload *l = &out->loads[out->n_loads++];
        *l = (tkc_jload){ .action = e->now.action, .slot = e->slot };
        if (l->action == TKC_JLOAD_RESOLVE) {
            l->from = global_index(sc, e->name);
        } else if (l->action == TKC_JLOAD_ALIAS) {
            l->up = s->func->depth - e->now.alias->owner->func->depth;
            l->from = e->now.alias->slot;
        }
    }
    return !tkc_failed(sc->err);
}

static bool resolve_list(scoper *sc, symbols *s, const tkc_jlistof *list)
{
    for (size_t i = 0; i < list->len; i++)
        if (!resolve(sc, s, list->items[i]))
            return false;
    return true;
}

static symbols *inner(scoper *sc, symbols *parent, function *func)
{
    symbols *s = tkc_arena_zalloc(sc->scratch, sizeof *s, sc->err);
    if (s) {
        s->parent = parent;
        s->func = func ? func : parent->func;
    }
    return s;
}

static function *inner_function(scoper *sc, function *parent)
{
    function *f = tkc_arena_zalloc(sc->scratch, sizeof *f, sc->err);
    if (f) {
        f->parent = parent;
        f->depth = parent ? parent->depth + 1 : 0;
    }
    return f;
}

static bool declare_target(scoper *sc, symbols *s, const tkc_jnode *target)
{
    if (target->kind == TKC_JN_NAME)
        return declare(sc, s, target->name) != NULL;
    for (size_t i = 0; i < target->list.len; i++)
        if (!declare_target(sc, s, target->list.items[i]))
            return false;
    return true;
}

static tkc_jnode *copy_target(scoper *sc, const tkc_jnode *target)
{
    tkc_jnode *copy = tkc_arena_alloc(sc->arena, sizeof *copy, sc->err);
    if (!copy)
        return NULL;
    *copy = *target;
    if (target->list.len == 0)
        return copy;
    copy->list.items =
        tkc_arena_array(sc->arena, target->list.len, sizeof *copy->list.items, sc->err);
    for (size_t i = 0; copy->list.items && i < target->list.len; i++)
        if (!(copy->list.items[i] = copy_target(sc, target->list.items[i])))
            return NULL;
    return copy->list.items ? copy : NULL;
}

/* The condition of `for ... if`: it sees the target, and nothing of the loop's body. */
static bool resolve_loop_test(scoper *sc, symbols *outer, function *func, tkc_jnode *n)
{
    symbols *s = inner(sc, outer, func);
    if (!s || !(n->target2 = copy_target(sc, n->a)))
        return false;
    return declare_target(sc, s, n->target2) && visit(sc, s, n->c) && resolve(sc, s, n->c) &&
           resolve(sc, s, n->target2) && finish_frame(sc, s, &n->frame3);
}

static bool resolve_for(scoper *sc, symbols *s, tkc_jnode *n, tkc_jstr *loop_name)
{
    if (!resolve(sc, s, n->b))
        return false;
    function *func = n->recursive ? inner_function(sc, s->func) : s->func;
    symbols *body = func ? inner(sc, s, func) : NULL, *other = func ? inner(sc, s, func) : NULL;
    if (!body || !other)
        return false;
    entry *loop = declare(sc, body, loop_name);
    if (!loop || !declare_target(sc, body, n->a) || !visit_list(sc, body, &n->body))
        return false;
    n->loop_slot = loop->slot;
    if (n->c && !resolve_loop_test(sc, s, func, n))
        return false;
    if (!visit_list(sc, other, &n->other) || !resolve(sc, body, n->a) ||
        !resolve_list(sc, body, &n->body) || !resolve_list(sc, other, &n->other) ||
        !finish_frame(sc, body, &n->frame) || !finish_frame(sc, other, &n->frame2))
        return false;
    n->n_slots = n->recursive ? func->n_slots : 0;
    return true;
}

/* Whether the body reads `name` before it writes it. */
static bool reads(const tkc_jnode *n, const tkc_jstr *name, bool *written);

static bool list_reads(const tkc_jlistof *list, const tkc_jstr *name, bool *written)
{
    for (size_t i = 0; i < list->len; i++)
        if (reads(list->items[i], name, written))
            return true;
    return false;
}

static bool reads(const tkc_jnode *n, const tkc_jstr *name, bool *written)
{
    if (!n || *written)
        return false;
    if (n->kind == TKC_JN_NAME) {
        if (n->name == name && n->store)
            *written = true;
        return n->name == name && !n->store;
    }
    if (n->call &&
        (list_reads(&n->call->pos, name, written) || list_reads(&n->call->kw, name, written) ||
         reads(n->call->dyn_pos, name, written) || reads(n->call->dyn_kw, name, written)))
        return true;
    return reads(n->a, name, written) || reads(n->b, name, written) || reads(n->c, name, written) ||
           list_reads(&n->list, name, written) || list_reads(&n->body, name, written) ||
           list_reads(&n->other, name, written);
}

static int32_t special_argument(scoper *sc, symbols *s, const tkc_jnode *n, tkc_jstr *name)
{
    bool written = false;
    for (size_t i = 0; i < n->list.len; i++)
        if (n->list.items[i]->name == name)
            return -1;
    if (!list_reads(&n->body, name, &written))
        return -1;
    entry *e = declare(sc, s, name);
    return e ? e->slot : -1;
}

static bool resolve_function(scoper *sc, symbols *outer, tkc_jnode *n, tkc_jstr *const *special)
{
    function *func = inner_function(sc, outer->func);
    symbols *s = func ? inner(sc, outer, func) : NULL;
    if (!s)
        return false;
    n->arg_slots = tkc_arena_array(sc->arena, n->list.len + 1, sizeof *n->arg_slots, sc->err);
    if (!n->arg_slots)
        return false;
    for (size_t i = 0; i < n->list.len; i++) {
        entry *e = declare(sc, s, n->list.items[i]->name);
        if (!e)
            return false;
        n->arg_slots[i] = e->slot;
    }
    n->caller_slot = special_argument(sc, s, n, special[0]);
    n->varargs_slot = special_argument(sc, s, n, special[1]);
    n->kwargs_slot = special_argument(sc, s, n, special[2]);
    if (!visit_list(sc, s, &n->other) || !visit_list(sc, s, &n->body) ||
        !resolve_list(sc, s, &n->other) || !resolve_list(sc, s, &n->body) ||
        !finish_frame(sc, s, &n->frame))
        return false;
    n->n_slots = func->n_slots;
    return true;
}

/* Set blocks, filter blocks, with, generation: a frame inside the same function. */
static bool resolve_inner(scoper *sc, symbols *outer, tkc_jnode *n)
{
    symbols *s = inner(sc, outer, NULL);
    if (!s)
        return false;
    for (size_t i = 0; n->kind == TKC_JN_WITH && i + 1 < n->list.len; i += 2)
        if (!resolve(sc, outer, n->list.items[i + 1]) || !visit(sc, s, n->list.items[i]))
            return false;
    if (!visit_list(sc, s, &n->body) || !visit(sc, s, n->b) || !resolve_list(sc, s, &n->body) ||
        !resolve(sc, s, n->b))
        return false;
    for (size_t i = 0; n->kind == TKC_JN_WITH && i < n->list.len; i += 2)
        if (!resolve(sc, s, n->list.items[i]))
            return false;
    return finish_frame(sc, s, &n->frame);
}

static bool resolve_call(scoper *sc, symbols *s, tkc_jcall *call)
{
    if (!call)
        return true;
    return resolve_list(sc, s, &call->pos) && resolve_list(sc, s, &call->kw) &&
           resolve(sc, s, call->dyn_pos) && resolve(sc, s, call->dyn_kw);
}

static bool resolve_if(scoper *sc, symbols *s, tkc_jnode *n)
{
    for (;;) {
        if (!resolve(sc, s, n->a) || !resolve_list(sc, s, &n->body))
            return false;
        if (!next_elif(n))
            return resolve_list(sc, s, &n->other);
        n = n->other.items[0];
    }
}

static bool resolve(scoper *sc, symbols *s, tkc_jnode *n)
{
    if (!n)
        return true;
    tkc_jstr *const *special = sc->t->special_names;
    switch (n->kind) {
    case TKC_JN_NAME:
    case TKC_JN_NSREF:
        place(sc, s, n->name, &n->up, &n->slot);
        return true;
    case TKC_JN_IF:
        return resolve_if(sc, s, n);
    case TKC_JN_FOR:
        return resolve_for(sc, s, n, special[3]);
    case TKC_JN_MACRO:
        place(sc, s, n->name, &n->up, &n->slot);
        return resolve_function(sc, s, n, special);
    case TKC_JN_CALL_BLOCK:
        return resolve(sc, s, n->b) && resolve_function(sc, s, n, special);
    case TKC_JN_SET_BLOCK:
        return resolve(sc, s, n->a) && resolve_inner(sc, s, n);
    case TKC_JN_FILTER_BLOCK:
    case TKC_JN_WITH:
    case TKC_JN_GENERATION:
        return resolve_inner(sc, s, n);
    default:
        return resolve(sc, s, n->a) && resolve(sc, s, n->b) && resolve(sc, s, n->c) &&
               resolve_list(sc, s, &n->list) && resolve_call(sc, s, n->call);
    }
}

bool tkc_jinja_scope(tkc_jtemplate *t, tkc_arena *scratch, tinkc_error *err)
{
    scoper sc = { .t = t, .arena = &t->arena, .scratch = scratch, .err = err, .n_table = 256 };
    sc.table = tkc_arena_array(scratch, sc.n_table, sizeof *sc.table, err);
    function *func = inner_function(&sc, NULL);
    sc.globals = tkc_arena_zalloc(scratch, sizeof *sc.globals, err);
    symbols *root = tkc_arena_zalloc(scratch, sizeof *root, err);
    if (!sc.table || !func || !sc.globals || !root)
        return false;
    root->func = func;
    if (!visit_list(&sc, root, &t->body) || !resolve_list(&sc, root, &t->body) ||
        !finish_frame(&sc, root, &t->frame))
        return false;
    t->n_slots = func->n_slots;
    t->n_globals = (int32_t)sc.globals->n;
    t->globals = tkc_arena_array(&t->arena, sc.globals->n + 1, sizeof *t->globals, err);
    if (!t->globals)
        return false;
    for (const entry *e = sc.globals->first; e; e = e->next)
        t->globals[e->slot] = e->name;
    return true;
}
