/* json_tree.c - trees of JSON values in arenas. May touch: the arena they were given.
 *
 * Objects keep their members in an array. From MANY members on a table of places finds them by
 * hash; its seed is an address, which outsiders do not know, so crafted names do not collide.
 */
#include "base/json_tree.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { MANY = 16 };

typedef struct member {
    tinkc_str key; /* terminated */
    tkc_tree *value;
} member;

typedef struct list { /* of an array or object */
    tkc_arena *home;
    union {
        tkc_tree **items;
        member *members;
    } of;
    uint32_t *slots; /* place + 1 of a member; 0 = free. NULL: there are few */
    uint32_t room, n_slots;
} list;

struct tkc_tree {
    int32_t kind;
    uint32_t n; /* members */
    union {
        bool yes;
        int64_t integer;
        double real;
        tinkc_str text; /* terminated */
        list list;
    } is;
};

static void *take_memory(tkc_arena *arena, size_t size)
{
    tinkc_error why; /* arena->failed says enough */
    why.code = TINKC_OK;
    return tkc_arena_alloc(arena, size, &why);
}

static tkc_tree *new_value(tkc_arena *arena, int kind)
{
    tkc_tree *v = take_memory(arena, sizeof *v);
    if (v)
        *v = (tkc_tree){ .kind = kind };
    return v;
}

/* ---- reading ---- */

int tkc_tree_kind(const tkc_tree *v)
{
    return v ? v->kind : 0;
}

bool tkc_tree_is_null(const tkc_tree *v)
{
    return tkc_tree_kind(v) == TKC_TREE_NULL;
}

bool tkc_tree_is_bool(const tkc_tree *v)
{
    return tkc_tree_kind(v) == TKC_TREE_BOOL;
}

bool tkc_tree_is_i64(const tkc_tree *v)
{
    return tkc_tree_kind(v) == TKC_TREE_I64;
}

bool tkc_tree_is_real(const tkc_tree *v)
{
    return tkc_tree_kind(v) == TKC_TREE_REAL;
}

bool tkc_tree_is_text(const tkc_tree *v)
{
    return tkc_tree_kind(v) == TKC_TREE_TEXT;
}

bool tkc_tree_is_array(const tkc_tree *v)
{
    return tkc_tree_kind(v) == TKC_TREE_ARRAY;
}

bool tkc_tree_is_object(const tkc_tree *v)
{
    return tkc_tree_kind(v) == TKC_TREE_OBJECT;
}

bool tkc_tree_is_number(const tkc_tree *v)
{
    return v && (v->kind == TKC_TREE_I64 || v->kind == TKC_TREE_REAL);
}

bool tkc_tree_is_true(const tkc_tree *v)
{
    return v && v->kind == TKC_TREE_BOOL && v->is.yes;
}

const char *tkc_tree_text(const tkc_tree *v)
{
    return tkc_tree_str(v).data;
}

tinkc_str tkc_tree_str(const tkc_tree *v)
{
    return v && v->kind == TKC_TREE_TEXT ? v->is.text : (tinkc_str){ NULL, 0 };
}

int64_t tkc_tree_i64(const tkc_tree *v)
{
    return v && v->kind == TKC_TREE_I64 ? v->is.integer : 0;
}

double tkc_tree_number(const tkc_tree *v)
{
    return v && v->kind == TKC_TREE_REAL ? v->is.real : (double)tkc_tree_i64(v);
}

size_t tkc_tree_length(const tkc_tree *v)
{
    return v && v->kind == TKC_TREE_ARRAY ? v->n : 0;
}

tkc_tree *tkc_tree_at(const tkc_tree *v, size_t i)
{
    return i < tkc_tree_length(v) ? v->is.list.of.items[i] : NULL;
}

size_t tkc_tree_members(const tkc_tree *v)
{
    return v && v->kind == TKC_TREE_OBJECT ? v->n : 0;
}

bool tkc_tree_member(const tkc_tree *v, size_t i, const char **key, tkc_tree **value)
{
    if (i >= tkc_tree_members(v))
        return false;
    *key = v->is.list.of.members[i].key.data;
    *value = v->is.list.of.members[i].value;
    return true;
}

/* Where a name is, or the free slot where it would be. */
static uint32_t *slot_of(const tkc_tree *v, tinkc_str key)
{
    const list *l = &v->is.list;
    uint64_t h = (uintptr_t)l->slots;
    for (size_t i = 0; i < key.len; i++)
        h = (h ^ (unsigned char)key.data[i]) * UINT64_C(1099511628211);
    h ^= h >> 32;
    for (uint32_t i = (uint32_t)h & (l->n_slots - 1);; i = (i + 1) & (l->n_slots - 1))
        if (!l->slots[i] || tkc_str_eq(l->of.members[l->slots[i] - 1].key, key))
            return &l->slots[i];
}

static member *find_member(const tkc_tree *v, tinkc_str key)
{
    if (!tkc_tree_members(v))
        return NULL;
    member *all = v->is.list.of.members;
    if (v->is.list.slots) {
        uint32_t place = *slot_of(v, key);
        return place ? &all[place - 1] : NULL;
    }
    for (size_t i = 0; i < v->n; i++)
        if (tkc_str_eq(all[i].key, key))
            return &all[i];
    return NULL;
}

tkc_tree *tkc_tree_get_str(const tkc_tree *v, tinkc_str key)
{
    const member *m = find_member(v, key);
    return m ? m->value : NULL;
}

tkc_tree *tkc_tree_get(const tkc_tree *v, const char *key)
{
    return key ? tkc_tree_get_str(v, tkc_str(key)) : NULL;
}

const char *tkc_tree_get_text(const tkc_tree *v, const char *key)
{
    return tkc_tree_text(tkc_tree_get(v, key));
}

int64_t tkc_tree_get_i64(const tkc_tree *v, const char *key)
{
    return tkc_tree_i64(tkc_tree_get(v, key));
}

double tkc_tree_get_number(const tkc_tree *v, const char *key)
{
    return tkc_tree_number(tkc_tree_get(v, key));
}

bool tkc_tree_get_true(const tkc_tree *v, const char *key)
{
    return tkc_tree_is_true(tkc_tree_get(v, key));
}

static bool equal_members(const tkc_tree *a, const tkc_tree *b)
{
    for (size_t i = 0; i < a->n; i++) {
        const member *m = &a->is.list.of.members[i], *other = find_member(b, m->key);
        if (!other || !tkc_tree_equal(m->value, other->value))
            return false;
    }
    return true;
}

bool tkc_tree_equal(const tkc_tree *a, const tkc_tree *b)
{
    if (!a || !b || a->kind != b->kind || a->n != b->n)
        return false;
    switch (a->kind) {
    case TKC_TREE_BOOL:
        return a->is.yes == b->is.yes;
    case TKC_TREE_I64:
        return a->is.integer == b->is.integer;
    case TKC_TREE_REAL:
        return a->is.real == b->is.real;
    case TKC_TREE_TEXT:
        return tkc_str_eq(a->is.text, b->is.text);
    case TKC_TREE_OBJECT:
        return equal_members(a, b);
    default:
        for (size_t i = 0; i < tkc_tree_length(a); i++)
            if (!tkc_tree_equal(tkc_tree_at(a, i), tkc_tree_at(b, i)))
                return false;
        return true;
    }
}

/* ---- making ---- */

tkc_tree *tkc_tree_null(void)
{
    static tkc_tree null = { .kind = TKC_TREE_NULL }; /* no function changes it */
    return &null;
}

tkc_tree *tkc_tree_new_bool(bool value)
{
    static tkc_tree words[] = { { .kind = TKC_TREE_BOOL },
                                { .kind = TKC_TREE_BOOL, .is.yes = true } };
    return &words[value];
}

static bool is_text(tinkc_str s)
{
    for (size_t i = 0, n; i < s.len; i += n) {
        n = tkc_utf8_length(s.data + i, s.len - i);
        if (!n)
            return false;
    }
    return s.data != NULL;
}

static const char *keep_copy(tkc_arena *arena, tinkc_str s)
{
    char *copy = take_memory(arena, s.len + 1);
    if (copy) {
        memcpy(copy, s.data, s.len);
        copy[s.len] = '\0';
    }
    return copy;
}

tkc_tree *tkc_tree_new_str(tkc_arena *arena, tinkc_str text)
{
    tkc_tree *v = is_text(text) ? new_value(arena, TKC_TREE_TEXT) : NULL;
    const char *copy = v ? keep_copy(arena, text) : NULL;
    if (!copy)
        return NULL;
    v->is.text = tkc_strn(copy, text.len);
    return v;
}

tkc_tree *tkc_tree_new_text(tkc_arena *arena, const char *text)
{
    return text ? tkc_tree_new_str(arena, tkc_str(text)) : NULL;
}

tkc_tree *tkc_tree_new_i64(tkc_arena *arena, int64_t value)
{
    tkc_tree *v = new_value(arena, TKC_TREE_I64);
    if (v)
        v->is.integer = value;
    return v;
}

tkc_tree *tkc_tree_new_real(tkc_arena *arena, double value)
{
    tkc_tree *v = isfinite(value) ? new_value(arena, TKC_TREE_REAL) : NULL;
    if (v)
        v->is.real = value;
    return v;
}

static tkc_tree *new_list(tkc_arena *arena, int kind)
{
    tkc_tree *v = new_value(arena, kind);
    if (v)
        v->is.list.home = arena;
    return v;
}

tkc_tree *tkc_tree_object(tkc_arena *arena)
{
    return new_list(arena, TKC_TREE_OBJECT);
}

tkc_tree *tkc_tree_array(tkc_arena *arena)
{
    return new_list(arena, TKC_TREE_ARRAY);
}

/* Where a list grows; NULL of what is none. */
static tkc_arena *home_of(const tkc_tree *v)
{
    return v && v->kind >= TKC_TREE_ARRAY ? v->is.list.home : NULL;
}

bool tkc_tree_whole(const tkc_tree *v)
{
    return v && !(home_of(v) && home_of(v)->failed);
}

/* ---- changing ---- */

/* Makes room for one more of `size` bytes. */
static bool make_member_room(tkc_tree *v, size_t size)
{
    list *l = &v->is.list;
    if (v->n < l->room)
        return true;
    if (l->room > UINT32_MAX / 4)
        return !(l->home->failed = true);
    size_t room = l->room ? (size_t)l->room * 2 : 4;
    void *grown = take_memory(l->home, room * size);
    if (!grown)
        return false;
    if (v->n)
        memcpy(grown, l->of.items, v->n * size);
    l->of.items = grown;
    l->room = (uint32_t)room;
    return true;
}

/* The table of an object's names, twice as large as its room, which is a power of two. */
static bool index_members(tkc_tree *v)
{
    list *l = &v->is.list;
    if (v->n < MANY)
        l->slots = NULL;
    else if (!l->slots || l->n_slots < l->room * 2) {
        l->n_slots = l->room * 2;
        l->slots = take_memory(l->home, l->n_slots * sizeof *l->slots);
        if (!l->slots)
            return false;
    }
    if (!l->slots)
        return true;
    memset(l->slots, 0, l->n_slots * sizeof *l->slots);
    for (uint32_t i = 0; i < v->n; i++)
        *slot_of(v, l->of.members[i].key) = i + 1;
    return true;
}

static bool add_member(tkc_tree *v, tinkc_str key, const tkc_tree *value)
{
    list *l = &v->is.list;
    const char *copy = make_member_room(v, sizeof(member)) ? keep_copy(l->home, key) : NULL;
    if (!copy)
        return false;
    l->of.members[v->n++] = (member){ tkc_strn(copy, key.len), (tkc_tree *)(uintptr_t)value };
    if (v->n < MANY)
        return true;
    if (!l->slots || l->n_slots < l->room * 2)
        return index_members(v) || (v->n--, false);
    *slot_of(v, key) = v->n;
    return true;
}

bool tkc_tree_set_str(tkc_tree *v, tinkc_str key, const tkc_tree *value)
{
    if (!tkc_tree_is_object(v) || !value || !is_text(key) || memchr(key.data, 0, key.len))
        return false;
    member *m = find_member(v, key);
    if (m)
        m->value = (tkc_tree *)(uintptr_t)value;
    return m || add_member(v, key, value);
}

bool tkc_tree_set(tkc_tree *v, const char *key, const tkc_tree *value)
{
    return key && tkc_tree_set_str(v, tkc_str(key), value);
}

bool tkc_tree_set_text(tkc_tree *v, const char *key, const char *text)
{
    return home_of(v) && tkc_tree_set(v, key, tkc_tree_new_text(home_of(v), text));
}

bool tkc_tree_set_i64(tkc_tree *v, const char *key, int64_t value)
{
    return home_of(v) && tkc_tree_set(v, key, tkc_tree_new_i64(home_of(v), value));
}

bool tkc_tree_set_real(tkc_tree *v, const char *key, double value)
{
    return home_of(v) && tkc_tree_set(v, key, tkc_tree_new_real(home_of(v), value));
}

bool tkc_tree_set_bool(tkc_tree *v, const char *key, bool value)
{
    return tkc_tree_set(v, key, tkc_tree_new_bool(value));
}

void tkc_tree_remove(tkc_tree *v, const char *key)
{
    member *m = key ? find_member(v, tkc_str(key)) : NULL;
    if (!m)
        return;
    member *end = v->is.list.of.members + v->n--;
    memmove(m, m + 1, (size_t)(end - (m + 1)) * sizeof *m);
    if (v->is.list.slots)
        (void)index_members(v); /* the table it has is large enough */
}

void tkc_tree_update(tkc_tree *v, const tkc_tree *from)
{
    const char *key;
    tkc_tree *value;
    TKC_TREE_EACH (from, key, value)
        (void)tkc_tree_set(v, key, value);
}

void tkc_tree_update_missing(tkc_tree *v, const tkc_tree *from)
{
    const char *key;
    tkc_tree *value;
    TKC_TREE_EACH (from, key, value)
        if (!tkc_tree_get(v, key))
            (void)tkc_tree_set(v, key, value);
}

bool tkc_tree_insert(tkc_tree *v, size_t i, const tkc_tree *value)
{
    if (!tkc_tree_is_array(v) || !value || i > v->n || !make_member_room(v, sizeof(tkc_tree *)))
        return false;
    tkc_tree **at = v->is.list.of.items + i;
    memmove(at + 1, at, (v->n++ - i) * sizeof *at);
    *at = (tkc_tree *)(uintptr_t)value;
    return true;
}

bool tkc_tree_add(tkc_tree *v, const tkc_tree *value)
{
    return tkc_tree_insert(v, tkc_tree_length(v), value);
}

bool tkc_tree_add_text(tkc_tree *v, const char *text)
{
    return home_of(v) && tkc_tree_add(v, tkc_tree_new_text(home_of(v), text));
}

bool tkc_tree_add_i64(tkc_tree *v, int64_t value)
{
    return home_of(v) && tkc_tree_add(v, tkc_tree_new_i64(home_of(v), value));
}

bool tkc_tree_add_real(tkc_tree *v, double value)
{
    return home_of(v) && tkc_tree_add(v, tkc_tree_new_real(home_of(v), value));
}

void tkc_tree_add_all(tkc_tree *v, const tkc_tree *from)
{
    for (size_t i = 0, n = tkc_tree_length(from); i < n; i++)
        (void)tkc_tree_add(v, tkc_tree_at(from, i));
}

void tkc_tree_put(tkc_tree *v, size_t i, const tkc_tree *value)
{
    if (value && i < tkc_tree_length(v))
        v->is.list.of.items[i] = (tkc_tree *)(uintptr_t)value;
}

void tkc_tree_take_out(tkc_tree *v, size_t i)
{
    if (i >= tkc_tree_length(v))
        return;
    tkc_tree **at = v->is.list.of.items + i;
    memmove(at, at + 1, (--v->n - i) * sizeof *at);
}

tkc_tree *tkc_tree_copy(tkc_arena *arena, const tkc_tree *v)
{
    if (!home_of(v))
        return (tkc_tree *)(uintptr_t)v;
    tkc_tree *copy = new_list(arena, v->kind);
    tkc_tree_add_all(copy, v);
    tkc_tree_update(copy, v);
    return copy;
}

/* Recursion is bounded by the depth of what a reader or a program has made. */
tkc_tree *tkc_tree_clone(tkc_arena *arena, const tkc_tree *v)
{
    switch (tkc_tree_kind(v)) {
    case 0:
        return NULL;
    case TKC_TREE_NULL:
        return tkc_tree_null();
    case TKC_TREE_BOOL:
        return tkc_tree_new_bool(v->is.yes);
    case TKC_TREE_I64:
        return tkc_tree_new_i64(arena, v->is.integer);
    case TKC_TREE_REAL:
        return tkc_tree_new_real(arena, v->is.real);
    case TKC_TREE_TEXT:
        return tkc_tree_new_str(arena, v->is.text);
    default:
        break;
    }
    tkc_tree *copy = tkc_tree_copy(arena, v);
    for (size_t i = 0; copy && i < copy->n; i++) {
        tkc_tree **at = v->kind == TKC_TREE_ARRAY ? &copy->is.list.of.items[i]
                                                  : &copy->is.list.of.members[i].value;
        tkc_tree *own = tkc_tree_clone(arena, *at);
        if (!own)
            return NULL;
        *at = own;
    }
    return copy;
}

/* ---- packing ---- */

typedef struct packing {
    tkc_arena *arena;
    const char *at;
    va_list args;
} packing;

static char next_mark(packing *p)
{
    while (*p->at == ' ' || *p->at == ',' || *p->at == ':')
        p->at++;
    return *p->at ? *p->at++ : '\0';
}

static tkc_tree *pack_value(packing *p, char mark, bool *left_out);

/* Up to the bracket that closes it. NULL if a value is not there. */
static tkc_tree *pack_list(packing *p, int kind)
{
    tkc_tree *all = new_list(p->arena, kind);
    bool whole = all != NULL;
    for (char mark = next_mark(p); mark != ']' && mark != '}'; mark = next_mark(p)) {
        bool left_out = false;
        const char *key = kind == TKC_TREE_OBJECT ? va_arg(p->args, const char *) : NULL;
        const tkc_tree *v = pack_value(p, key ? next_mark(p) : mark, &left_out);
        assert(mark); /* the format ends early */
        if (!left_out)
            whole = (key ? tkc_tree_set(all, key, v) : tkc_tree_add(all, v)) && whole;
    }
    return whole ? all : NULL;
}

static tkc_tree *pack_value(packing *p, char mark, bool *left_out)
{
    tkc_tree *v = NULL;
    switch (mark) {
    case '{':
        return pack_list(p, TKC_TREE_OBJECT);
    case '[':
        return pack_list(p, TKC_TREE_ARRAY);
    case 's': {
        const char *text = va_arg(p->args, const char *);
        v = tkc_tree_new_text(p->arena, text);
        if (text && !v)
            return NULL;
        break;
    }
    case 'o':
        v = va_arg(p->args, tkc_tree *);
        break;
    case 'i':
        return tkc_tree_new_i64(p->arena, va_arg(p->args, int));
    case 'I':
        return tkc_tree_new_i64(p->arena, va_arg(p->args, int64_t));
    case 'f':
        return tkc_tree_new_real(p->arena, va_arg(p->args, double));
    case 'b':
        return tkc_tree_new_bool(va_arg(p->args, int) != 0);
    default:
        assert(mark == 'n');
        return tkc_tree_null();
    }
    char more = *p->at == '?' || *p->at == '*' ? *p->at++ : '\0';
    *left_out = !v && more == '*';
    return !v && more == '?' ? tkc_tree_null() : v;
}

tkc_tree *tkc_tree_pack(tkc_arena *arena, const char *format, ...)
{
    packing p = { .arena = arena, .at = format };
    bool left_out;
    va_start(p.args, format);
    tkc_tree *v = pack_value(&p, next_mark(&p), &left_out);
    va_end(p.args);
    return v;
}
