/* jinja_value.c - the values of a running template: making, comparing, looking things up.
 *
 * Python's rules: True is 1, 1 is 1.0, lists compare item by item, dicts keep their order. May
 * touch: the run's arena and counters.
 */
#include "jinja/jinja.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"

const tkc_jv tkc_jv_fail = { .kind = TKC_JV_FAIL };
const tkc_jv tkc_jv_missing = { .kind = TKC_JV_MISSING };
const tkc_jv tkc_jv_none = { .kind = TKC_JV_NONE };

enum {
    SMALL_DICT = 8,      /* up to this size a dict is searched linearly */
    STEPS_A_LOOK = 10000 /* between two checks of the clock */
};

/* ---- counters ---- */

/* Steps only estimate work; the clock is checked too, so that an operation that costs more than it
 * was charged cannot block a thread for long. */
static bool in_time(tkc_jev *ev)
{
    ev->next_look = ev->steps_left - STEPS_A_LOOK;
    if (tkc_thread_cpu_ns() <= ev->deadline_ns)
        return true;
    ev->steps_left = -1;
    tkc_j_fail(ev, "the template runs for more than %lld ms", (long long)ev->max_ms);
    return false;
}

bool tkc_j_charge(tkc_jev *ev, size_t steps)
{
    if (ev->steps_left < 0)
        return false;
    if (steps > (size_t)ev->steps_left) {
        ev->steps_left = -1;
        tkc_j_fail(ev, "the template takes more than %lld steps", (long long)ev->max_steps);
        return false;
    }
    ev->steps_left -= (int64_t)steps;
    return ev->steps_left > ev->next_look || in_time(ev);
}

void *tkc_j_alloc(tkc_jev *ev, size_t size)
{
    if (size > ev->mem_left) {
        tkc_j_fail(ev, "the template needs more than %zu bytes of memory", ev->max_mem);
        return NULL;
    }
    ev->mem_left -= size;
    return tkc_arena_alloc(ev->arena, size, ev->err);
}

bool tkc_j_enter(tkc_jev *ev)
{
    if (ev->depth >= TKC_JINJA_MAX_DEPTH) {
        tkc_j_fail(ev, "the template calls itself too deeply");
        return false;
    }
    if (tkc_stack_left() < TKC_JINJA_STACK) {
        tkc_j_fail(ev, "the template calls itself too deeply for the stack of this thread");
        return false;
    }
    ev->depth++;
    return tkc_j_charge(ev, 1);
}

/* ---- making ---- */

tkc_jv tkc_jv_bool(bool b)
{
    return (tkc_jv){ .kind = TKC_JV_BOOL, .i = b };
}

tkc_jv tkc_jv_int(int64_t i)
{
    return (tkc_jv){ .kind = TKC_JV_INT, .i = i };
}

tkc_jv tkc_jv_float(double f)
{
    return (tkc_jv){ .kind = TKC_JV_FLOAT, .f = f };
}

tkc_jv tkc_jv_undefined(void)
{
    return (tkc_jv){ .kind = TKC_JV_UNDEFINED };
}

tkc_jv tkc_jv_i128(tkc_jev *ev, tkc_i128 i)
{
    if (i >= INT64_MIN && i <= INT64_MAX)
        return tkc_jv_int((int64_t)i);
    tkc_i128 *big = tkc_j_alloc(ev, sizeof *big);
    if (!big)
        return tkc_jv_fail;
    *big = i;
    return (tkc_jv){ .kind = TKC_JV_BIG, .big = big };
}

tkc_jv tkc_jv_view(tkc_jev *ev, const char *data, size_t len)
{
    tkc_jstr *s = tkc_j_alloc(ev, sizeof *s);
    if (!s || !tkc_j_touch(ev, len)) /* charges for counting its characters, once */
        return tkc_jv_fail;
    *s = (tkc_jstr){ len ? data : "", len, SIZE_MAX };
    return (tkc_jv){ .kind = TKC_JV_STR, .s = s };
}

static tkc_jv copy_text(tkc_jev *ev, const char *data, size_t len)
{
    char *copy = tkc_j_alloc(ev, len);
    if (!copy)
        return tkc_jv_fail;
    if (len)
        memcpy(copy, data, len);
    return tkc_jv_view(ev, copy, len);
}

tkc_jv tkc_jv_cstr(tkc_jev *ev, const char *text)
{
    return copy_text(ev, text, strlen(text));
}

tkc_jv tkc_jv_take(tkc_jev *ev, size_t mark)
{
    size_t len = ev->out.len - mark;
    if (tkc_failed(ev->err))
        return tkc_jv_fail;
    if (len == 0)
        return tkc_jv_view(ev, "", 0);
    ev->out.len = mark;
    return copy_text(ev, ev->out.data + mark, len);
}

tkc_jv tkc_jv_list(tkc_jev *ev, uint8_t kind, size_t cap)
{
    tkc_jlist *l = tkc_j_alloc(ev, sizeof *l);
    size_t bytes;
    if (!l)
        return tkc_jv_fail;
    *l = (tkc_jlist){ NULL, 0, cap };
    if (!tkc_mul_size(cap, sizeof *l->items, &bytes))
        return tkc_j_fail(ev, "a list is too long");
    if (cap && !(l->items = tkc_j_alloc(ev, bytes)))
        return tkc_jv_fail;
    return (tkc_jv){ .kind = kind, .l = l };
}

bool tkc_jv_push(tkc_jev *ev, tkc_jlist *l, tkc_jv item)
{
    if (tkc_jv_failed(item) || !tkc_j_charge(ev, 1))
        return false;
    if (l->len == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 8;
        tkc_jv *grown = tkc_j_alloc(ev, cap * sizeof *grown);
        if (!grown)
            return false;
        if (l->len)
            memcpy(grown, l->items, l->len * sizeof *grown);
        l->items = grown;
        l->cap = cap;
    }
    l->items[l->len++] = item;
    return true;
}

tkc_jv tkc_jv_pair(tkc_jev *ev, tkc_jv a, tkc_jv b)
{
    tkc_jv t = tkc_jv_list(ev, TKC_JV_TUPLE, 2);
    if (tkc_jv_failed(t) || !tkc_jv_push(ev, t.l, a) || !tkc_jv_push(ev, t.l, b))
        return tkc_jv_fail;
    return t;
}

tkc_jv tkc_jv_dict(tkc_jev *ev, uint8_t kind)
{
    tkc_jdict *d = tkc_j_alloc(ev, sizeof *d);
    if (!d)
        return tkc_jv_fail;
    memset(d, 0, sizeof *d);
    return (tkc_jv){ .kind = kind, .d = d };
}

/* ---- dicts ---- */

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

static uint64_t hash_bytes(uint64_t seed, const char *data, size_t len)
{
    uint64_t h = mix(seed, len);
    while (len >= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        h = mix(h, word);
        h = mix(h, seed);
        data += 8;
        len -= 8;
    }
    uint64_t tail = 0;
    if (len)
        memcpy(&tail, data, len);
    return mix(mix(h, tail), seed);
}

/* Equal values have equal hashes: True, 1 and 1.0 are the same key. Out of steps, any hash will do:
 * the error is recorded. */
static uint64_t hash_value(tkc_jev *ev, tkc_jv v)
{
    uint64_t seed = ev->seed, h = seed;
    switch (v.kind) {
    case TKC_JV_STR:
        if (!tkc_j_touch(ev, v.s->len))
            return h;
        return hash_bytes(seed, v.s->data, v.s->len);
    case TKC_JV_BOOL:
    case TKC_JV_INT:
        return mix(mix(seed, (uint64_t)v.i), 1);
    case TKC_JV_BIG:
        return mix(mix(seed, (uint64_t)*v.big), 1);
    case TKC_JV_FLOAT:
        if (v.f >= -9e18 && v.f <= 9e18 && v.f == floor(v.f))
            return mix(mix(seed, (uint64_t)(int64_t)v.f), 1);
        memcpy(&h, &v.f, sizeof h);
        return mix(seed, h);
    case TKC_JV_TUPLE:
        for (size_t i = 0; i < v.l->len && tkc_j_charge(ev, 1); i++)
            h = mix(h, hash_value(ev, v.l->items[i]));
        return h;
    default:
        return mix(seed, v.kind);
    }
}

static bool hashable_to(tkc_jev *ev, tkc_jv v, int depth)
{
    if (v.kind == TKC_JV_TUPLE) {
        if (depth == 0 || !tkc_j_charge(ev, v.l->len))
            return false;
        for (size_t i = 0; i < v.l->len; i++)
            if (!hashable_to(ev, v.l->items[i], depth - 1))
                return false;
        return true;
    }
    return v.kind != TKC_JV_LIST && v.kind != TKC_JV_DICT && v.kind != TKC_JV_NAMESPACE;
}

bool tkc_jv_hashable(tkc_jev *ev, tkc_jv v)
{
    return hashable_to(ev, v, 20);
}

static bool same_key(tkc_jev *ev, tkc_jv a, tkc_jv b)
{
    if (a.kind == TKC_JV_STR && b.kind == TKC_JV_STR)
        return a.s == b.s || (a.s->len == b.s->len && tkc_j_touch(ev, a.s->len) &&
                              tkc_str_eq(tkc_jv_text(a), tkc_jv_text(b)));
    return tkc_jv_equal(ev, a, b);
}

/* The slot where the key is or would go. */
static size_t probe(tkc_jev *ev, const tkc_jdict *d, tkc_jv key)
{
    size_t i = (size_t)hash_value(ev, key) & (d->n_slots - 1);
    while (d->slots[i] && !same_key(ev, d->entries[d->slots[i] - 1].key, key))
        i = (i + 1) & (d->n_slots - 1);
    return i;
}

tkc_jv *tkc_jdict_find(tkc_jev *ev, const tkc_jdict *d, tkc_jv key)
{
    if (d->slots) {
        uint32_t slot = d->slots[probe(ev, d, key)];
        return slot ? &d->entries[slot - 1].value : NULL;
    }
    for (size_t i = 0; i < d->len; i++)
        if (same_key(ev, d->entries[i].key, key))
            return &d->entries[i].value;
    return NULL;
}

tkc_jv *tkc_jdict_str(tkc_jev *ev, const tkc_jdict *d, tinkc_str key)
{
    tkc_jstr s = { key.data, key.len, SIZE_MAX };
    return tkc_jdict_find(ev, d, (tkc_jv){ .kind = TKC_JV_STR, .s = &s });
}

static bool grow_dict(tkc_jev *ev, tkc_jdict *d)
{
    if (d->len == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 4;
        tkc_jentry *grown = tkc_j_alloc(ev, cap * sizeof *grown);
        if (!grown)
            return false;
        if (d->len)
            memcpy(grown, d->entries, d->len * sizeof *grown);
        d->entries = grown;
        d->cap = cap;
    }
    if (d->len < SMALL_DICT || (d->slots && d->len * 2 < d->n_slots))
        return true;
    if (d->len >= UINT32_MAX / 4)
        return !tkc_jv_failed(tkc_j_fail(ev, "a dict is too large"));
    d->n_slots = d->n_slots ? d->n_slots * 2 : 32;
    d->slots = tkc_j_alloc(ev, d->n_slots * sizeof *d->slots);
    if (!d->slots)
        return false;
    memset(d->slots, 0, d->n_slots * sizeof *d->slots);
    for (size_t i = 0; i < d->len; i++)
        d->slots[probe(ev, d, d->entries[i].key)] = (uint32_t)(i + 1);
    return true;
}

bool tkc_jdict_set(tkc_jev *ev, tkc_jdict *d, tkc_jv key, tkc_jv value)
{
    if (tkc_jv_failed(key) || tkc_jv_failed(value) || !tkc_j_charge(ev, 1))
        return false;
    if (!tkc_jv_hashable(ev, key)) {
        tkc_j_fail(ev, "unhashable type: '%s'", tkc_jv_type(key));
        return false;
    }
    tkc_jv *found = tkc_jdict_find(ev, d, key);
    if (found) {
        *found = value;
        return true;
    }
    if (tkc_failed(ev->err) || !grow_dict(ev, d))
        return false;
    if (d->slots)
        d->slots[probe(ev, d, key)] = (uint32_t)(d->len + 1);
    d->entries[d->len++] = (tkc_jentry){ key, value };
    return true;
}

/* ---- queries ---- */

bool tkc_jv_is_integer(tkc_jv v)
{
    return v.kind == TKC_JV_BOOL || v.kind == TKC_JV_INT || v.kind == TKC_JV_BIG;
}

bool tkc_jv_is_number(tkc_jv v)
{
    return tkc_jv_is_integer(v) || v.kind == TKC_JV_FLOAT;
}

bool tkc_jv_i64(tkc_jv v, int64_t *out)
{
    if (v.kind != TKC_JV_BOOL && v.kind != TKC_JV_INT)
        return false;
    *out = v.i;
    return true;
}

tkc_i128 tkc_jv_to_i128(tkc_jv v)
{
    return v.kind == TKC_JV_BIG ? *v.big : v.i;
}

double tkc_jv_to_double(tkc_jv v)
{
    return v.kind == TKC_JV_FLOAT ? v.f : v.kind == TKC_JV_BIG ? (double)*v.big : (double)v.i;
}

const char *tkc_jv_type(tkc_jv v)
{
    static const char *const views[] = { "dict_keys", "dict_values", "dict_items" };
    static const char *const names[] = {
        "failure", "missing",   "Undefined", "NoneType", "bool",        "int",    "int",
        "float",   "str",       "bytes",     "list",     "tuple",       "dict",   "Namespace",
        "range",   "generator", "view",      "Macro",    "LoopContext", "method", "function"
    };
    return v.kind == TKC_JV_VIEW ? views[v.aux] : names[v.kind];
}

bool tkc_jv_truth(tkc_jv v)
{
    switch (v.kind) {
    case TKC_JV_UNDEFINED:
    case TKC_JV_NONE:
    case TKC_JV_FAIL:
    case TKC_JV_MISSING:
        return false;
    case TKC_JV_BOOL:
    case TKC_JV_INT:
        return v.i != 0;
    case TKC_JV_FLOAT:
        return v.f != 0;
    case TKC_JV_STR:
    case TKC_JV_BYTES:
        return v.s->len != 0;
    case TKC_JV_LIST:
    case TKC_JV_TUPLE:
        return v.l->len != 0;
    case TKC_JV_DICT:
    case TKC_JV_VIEW:
        return v.d->len != 0;
    case TKC_JV_RANGE:
        return v.range->len != 0;
    default:
        return true;
    }
}

bool tkc_jv_same(tkc_jv a, tkc_jv b)
{
    if (a.kind != b.kind)
        return false;
    if (a.kind == TKC_JV_STR)
        return a.s == b.s || tkc_str_eq(tkc_jv_text(a), tkc_jv_text(b));
    if (a.kind == TKC_JV_NONE)
        return true;
    if (a.kind == TKC_JV_BIG)
        return *a.big == *b.big;
    return a.i == b.i;
}

/* ---- comparing ---- */

static int compare_numbers(tkc_jv a, tkc_jv b) /* 2 = a NaN is among them */
{
    if (tkc_jv_is_integer(a) && tkc_jv_is_integer(b)) {
        tkc_i128 x = tkc_jv_to_i128(a), y = tkc_jv_to_i128(b);
        return x < y ? -1 : x > y;
    }
    long double x = a.kind == TKC_JV_FLOAT ? (long double)a.f : (long double)tkc_jv_to_i128(a);
    long double y = b.kind == TKC_JV_FLOAT ? (long double)b.f : (long double)tkc_jv_to_i128(b);
    if (isnan(x) || isnan(y))
        return 2;
    return x < y ? -1 : x > y;
}

static bool is_sequence(tkc_jv v)
{
    return v.kind == TKC_JV_LIST || v.kind == TKC_JV_TUPLE;
}

static bool equal_deep(tkc_jev *ev, tkc_jv a, tkc_jv b, int depth);

static bool equal_dicts(tkc_jev *ev, const tkc_jdict *a, const tkc_jdict *b, int depth)
{
    if (a->len != b->len)
        return false;
    for (size_t i = 0; i < a->len; i++) {
        const tkc_jv *other = tkc_jdict_find(ev, b, a->entries[i].key);
        if (!other || !equal_deep(ev, a->entries[i].value, *other, depth))
            return false;
    }
    return true;
}

static bool too_deep(tkc_jev *ev, int depth)
{
    if (depth < TKC_JINJA_MAX_VALUE_DEPTH)
        return false;
    tkc_j_fail(ev, "a value is nested more than %d deep", TKC_JINJA_MAX_VALUE_DEPTH);
    return true;
}

static bool equal_deep(tkc_jev *ev, tkc_jv a, tkc_jv b, int depth)
{
    bool text = a.kind == TKC_JV_STR || a.kind == TKC_JV_BYTES;
    if (!tkc_j_charge(ev, text ? 1 + a.s->len / TKC_JINJA_BYTES_A_STEP : 1))
        return false;
    if (tkc_jv_is_number(a) && tkc_jv_is_number(b))
        return compare_numbers(a, b) == 0;
    if (a.kind != b.kind || too_deep(ev, depth))
        return false;
    switch (a.kind) {
    case TKC_JV_STR:
    case TKC_JV_BYTES:
        return tkc_str_eq(tkc_jv_text(a), tkc_jv_text(b));
    case TKC_JV_LIST:
    case TKC_JV_TUPLE:
        if (a.l->len != b.l->len)
            return false;
        for (size_t i = 0; i < a.l->len; i++)
            if (!equal_deep(ev, a.l->items[i], b.l->items[i], depth + 1))
                return false;
        return true;
    case TKC_JV_DICT:
        return equal_dicts(ev, a.d, b.d, depth + 1);
    case TKC_JV_UNDEFINED:
        return true;
    case TKC_JV_RANGE:
        return a.range->len == b.range->len &&
               (a.range->len == 0 || (a.range->start == b.range->start &&
                                      (a.range->len == 1 || a.range->step == b.range->step)));
    default:
        return tkc_jv_same(a, b);
    }
}

bool tkc_jv_equal(tkc_jev *ev, tkc_jv a, tkc_jv b)
{
    return equal_deep(ev, a, b, 0);
}

static bool less_deep(tkc_jev *ev, tkc_jv a, tkc_jv b, const char *op, bool or_equal, int depth)
{
    if (a.kind == TKC_JV_UNDEFINED || b.kind == TKC_JV_UNDEFINED) {
        tkc_j_fail_undefined(ev, a.kind == TKC_JV_UNDEFINED ? a : b);
        return false;
    }
    if (too_deep(ev, depth) || !tkc_j_charge(ev, 1))
        return false;
    if (tkc_jv_is_number(a) && tkc_jv_is_number(b)) {
        int order = compare_numbers(a, b);
        return order == -1 || (or_equal && order == 0);
    }
    if (a.kind == TKC_JV_STR && b.kind == TKC_JV_STR) {
        if (!tkc_j_touch(ev, a.s->len))
            return false;
        int order = tkc_str_compare(tkc_jv_text(a), tkc_jv_text(b));
        return order < 0 || (or_equal && order == 0);
    }
    if (!is_sequence(a) || a.kind != b.kind) {
        tkc_j_fail(ev, "'%s' not supported between instances of '%s' and '%s'", op, tkc_jv_type(a),
                   tkc_jv_type(b));
        return false;
    }
    size_t n = a.l->len < b.l->len ? a.l->len : b.l->len;
    for (size_t i = 0; i < n; i++)
        if (!equal_deep(ev, a.l->items[i], b.l->items[i], depth + 1))
            return !tkc_failed(ev->err) &&
                   less_deep(ev, a.l->items[i], b.l->items[i], op, or_equal, depth + 1);
    return a.l->len < b.l->len || (or_equal && a.l->len == b.l->len);
}

bool tkc_jv_less(tkc_jev *ev, tkc_jv a, tkc_jv b, const char *op, bool or_equal)
{
    return less_deep(ev, a, b, op, or_equal, 0);
}

static bool in_iterator(tkc_jev *ev, tkc_jv box, tkc_jv item)
{
    tkc_jiter *it = tkc_j_iter(ev, box);
    tkc_jv v;
    while (it && tkc_j_next(ev, it, &v))
        if (tkc_jv_equal(ev, v, item))
            return true;
    return false;
}

bool tkc_jv_contains(tkc_jev *ev, tkc_jv box, tkc_jv item)
{
    switch (box.kind) {
    case TKC_JV_STR:
        if (item.kind != TKC_JV_STR) {
            tkc_j_fail(ev, "'in <string>' requires string as left operand, not %s",
                       tkc_jv_type(item));
            return false;
        }
        return tkc_j_touch(ev, box.s->len) &&
               (item.s->len == 0 ||
                memmem(box.s->data, box.s->len, item.s->data, item.s->len) != NULL);
    case TKC_JV_LIST:
    case TKC_JV_TUPLE:
        for (size_t i = 0; i < box.l->len; i++)
            if (tkc_jv_equal(ev, box.l->items[i], item))
                return true;
        return false;
    case TKC_JV_DICT:
        if (!tkc_jv_hashable(ev, item)) {
            tkc_j_fail(ev, "unhashable type: '%s'", tkc_jv_type(item));
            return false;
        }
        return tkc_jdict_find(ev, box.d, item) != NULL;
    case TKC_JV_UNDEFINED:
        return false;
    default:
        if (!tkc_jv_iterable(box)) {
            tkc_j_fail(ev, "argument of type '%s' is not iterable", tkc_jv_type(box));
            return false;
        }
        return in_iterator(ev, box, item);
    }
}

int64_t tkc_jv_length(tkc_jev *ev, tkc_jv v)
{
    switch (v.kind) {
    case TKC_JV_STR:
        return (int64_t)tkc_jstr_chars(v.s);
    case TKC_JV_BYTES:
        return (int64_t)v.s->len;
    case TKC_JV_LIST:
    case TKC_JV_TUPLE:
        return (int64_t)v.l->len;
    case TKC_JV_DICT:
    case TKC_JV_VIEW:
        return (int64_t)v.d->len;
    case TKC_JV_RANGE:
        return v.range->len;
    case TKC_JV_UNDEFINED:
        return 0;
    case TKC_JV_LOOP:
        return tkc_j_loop_length(ev, v.loop);
    default:
        tkc_j_fail(ev, "object of type '%s' has no len()", tkc_jv_type(v));
        return -1;
    }
}
