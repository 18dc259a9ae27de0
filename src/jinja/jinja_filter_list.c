/* jinja_filter_list.c - filters that take or return lists: sorting, grouping, selecting.
 * May touch: the run. */
#include "jinja/jinja_func.h"

#include <string.h>

/* A generator over a complete list. */
static tkc_jv lazy(tkc_jev *ev, tkc_jv list)
{
    tkc_jiter *it = tkc_j_iter(ev, list);
    return it ? (tkc_jv){ .kind = TKC_JV_ITER, .iter = it } : tkc_jv_fail;
}

static tkc_jv filter_length(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    int64_t n = tkc_j_bind(ev, args, "length", NULL, 0, 0, NULL) ? tkc_jv_length(ev, *v) : -1;
    return n < 0 ? tkc_jv_fail : tkc_jv_int(n);
}

static tkc_jv filter_list(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    return tkc_j_bind(ev, args, "list", NULL, 0, 0, NULL) ? tkc_j_list(ev, *v, TKC_JV_LIST)
                                                          : tkc_jv_fail;
}

static tkc_jv filter_items(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    (void)args;
    if (v->kind == TKC_JV_UNDEFINED)
        return lazy(ev, *v);
    if (v->kind != TKC_JV_DICT)
        return tkc_j_fail(ev, "can only get item pairs from a mapping");
    return lazy(ev, (tkc_jv){ .kind = TKC_JV_VIEW, .aux = TKC_JVIEW_ITEMS, .d = v->d });
}

static tkc_jv filter_first(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    tkc_jiter *it = tkc_j_bind(ev, args, "first", NULL, 0, 0, NULL) ? tkc_j_iter(ev, *v) : NULL;
    tkc_jv item;
    if (it && tkc_j_next(ev, it, &item))
        return item;
    return tkc_failed(ev->err) ? tkc_jv_fail : tkc_jv_undefined();
}

static tkc_jv filter_last(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    if (!tkc_j_bind(ev, args, "last", NULL, 0, 0, NULL))
        return tkc_jv_fail;
    if (v->kind == TKC_JV_ITER)
        return tkc_j_fail(ev, "'generator' object is not reversible");
    if (v->kind == TKC_JV_STR)
        return v->s->len ? tkc_j_item(ev, *v, tkc_jv_int(-1)) : tkc_jv_undefined();
    tkc_jv all = tkc_j_list(ev, *v, TKC_JV_LIST);
    if (tkc_jv_failed(all))
        return all;
    return all.l->len ? all.l->items[all.l->len - 1] : tkc_jv_undefined();
}

static tkc_jv filter_join(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    static const char *const params[] = { "d", "attribute" };
    tkc_jv a[2], item;
    if (!tkc_j_bind(ev, args, "join", params, 2, 0, a))
        return tkc_jv_fail;
    tkc_jv path = tkc_j_path(ev, a[1]);
    /* lazy items may write to the buffer while they are computed, so compute them all first */
    tkc_jv items = tkc_jv_failed(path) ? path : tkc_j_list(ev, *v, TKC_JV_LIST);
    tkc_jv between = a[0].kind == TKC_JV_MISSING ? tkc_jv_undefined() : tkc_jv_str(ev, a[0]);
    if (tkc_jv_failed(items) || tkc_jv_failed(between))
        return tkc_jv_fail;
    size_t mark = ev->out.len;
    for (size_t i = 0; i < items.l->len; i++) {
        item = tkc_j_follow(ev, items.l->items[i], path, NULL);
        if (tkc_jv_failed(item) || (i && !tkc_j_write(ev, between)) || !tkc_j_write(ev, item))
            return tkc_jv_fail;
    }
    return tkc_jv_take(ev, mark);
}

static tkc_jv filter_reverse(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    (void)args;
    if (v->kind == TKC_JV_STR)
        return tkc_j_slice(ev, *v, tkc_jv_none, tkc_jv_none, tkc_jv_int(-1));
    tkc_jv all = tkc_j_list(ev, *v, TKC_JV_LIST);
    if (tkc_jv_failed(all))
        return all;
    for (size_t i = 0; i < all.l->len / 2; i++) {
        tkc_jv t = all.l->items[i];
        all.l->items[i] = all.l->items[all.l->len - 1 - i];
        all.l->items[all.l->len - 1 - i] = t;
    }
    return v->kind == TKC_JV_ITER ? all : lazy(ev, all);
}

/* ---- map, select, reject ---- */

static tkc_jargs *copy_args(tkc_jev *ev, const tkc_jargs *args, size_t skip)
{
    tkc_jargs *copy = tkc_j_alloc(ev, sizeof *copy);
    if (!copy)
        return NULL;
    *copy = *args;
    skip = skip < args->n_pos ? skip : args->n_pos;
    copy->pos += skip;
    copy->n_pos -= skip;
    return copy;
}

/* None, 0 and similar values have no items to map or select; the arguments are then not checked. */
static tkc_jv nothing(tkc_jev *ev)
{
    tkc_jv empty = tkc_jv_list(ev, TKC_JV_LIST, 0);
    return tkc_jv_failed(empty) ? empty : lazy(ev, empty);
}

static tkc_jv map_attribute(tkc_jev *ev, tkc_jv v, const tkc_jargs *args)
{
    static const char *const params[] = { "attribute", "default" };
    tkc_jv a[2];
    tkc_jiter *it = tkc_j_stage(ev, v, TKC_JSTAGE_MAP_ATTR);
    if (!it || !tkc_j_bind(ev, args, "map", params, 2, 1, a))
        return tkc_jv_fail;
    it->path = tkc_j_path(ev, a[0]);
    it->fallback = a[1].kind == TKC_JV_NONE ? tkc_jv_missing : a[1];
    return tkc_jv_failed(it->path) ? tkc_jv_fail : (tkc_jv){ .kind = TKC_JV_ITER, .iter = it };
}

static tkc_jv filter_map(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    bool by_attribute = args->n_pos == 0;
    if (!tkc_jv_truth(*v))
        return nothing(ev);
    if (by_attribute && args->n_kw)
        return map_attribute(ev, *v, args);
    if (by_attribute || args->pos[0].kind != TKC_JV_STR)
        return tkc_j_fail(ev, "map: needs the name of a filter");
    tkc_jiter *it = tkc_j_stage(ev, *v, TKC_JSTAGE_MAP_FILTER);
    if (!it || !(it->args = copy_args(ev, args, 1)))
        return tkc_jv_fail;
    tinkc_str name = tkc_jv_text(args->pos[0]);
    it->fn = tkc_j_find_filter(name);
    if (!it->fn)
        return tkc_j_fail(ev, "no filter named '%.*s'", (int)(name.len < 60 ? name.len : 60),
                          name.data);
    return (tkc_jv){ .kind = TKC_JV_ITER, .iter = it };
}

static tkc_jv choose(tkc_jev *ev, tkc_jv v, const tkc_jargs *args, bool by_attribute, bool reject)
{
    size_t skip = by_attribute;
    if (!tkc_jv_truth(v))
        return nothing(ev);
    tkc_jiter *it = tkc_j_stage(ev, v, by_attribute ? TKC_JSTAGE_SELECT_ATTR : TKC_JSTAGE_SELECT);
    if (!it)
        return tkc_jv_fail;
    it->reject = reject;
    if (by_attribute) {
        if (args->n_pos == 0)
            return tkc_j_fail(ev, "missing parameter for attribute name");
        it->path = tkc_j_path(ev, args->pos[0]);
        if (tkc_jv_failed(it->path))
            return tkc_jv_fail;
    }
    if (args->n_pos > skip) {
        tkc_jv name = args->pos[skip];
        it->fn = name.kind == TKC_JV_STR ? tkc_j_find_test(tkc_jv_text(name)) : NULL;
        if (!it->fn)
            return tkc_j_fail(ev, "no test of that name");
        if (!(it->args = copy_args(ev, args, skip + 1)))
            return tkc_jv_fail;
    }
    return (tkc_jv){ .kind = TKC_JV_ITER, .iter = it };
}

static tkc_jv filter_select(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    return choose(ev, *v, args, false, false);
}
static tkc_jv filter_reject(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    return choose(ev, *v, args, false, true);
}
static tkc_jv filter_selectattr(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    return choose(ev, *v, args, true, false);
}
static tkc_jv filter_rejectattr(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    return choose(ev, *v, args, true, true);
}

/* ---- sorting ---- */

typedef struct keyed {
    tkc_jv key, item;
} keyed;

/* How to order. listed: the reference compares lists of one key, so equal keys are never compared
 * with "<", even if they do not support it. */
typedef struct order {
    bool reverse, listed;
} order;

static bool comes_before(tkc_jev *ev, order how, tkc_jv a, tkc_jv b)
{
    return !(how.listed && tkc_jv_equal(ev, a, b)) && tkc_jv_less(ev, a, b, "<", false);
}

/* Merges two sorted runs; the left one wins ties, so the sort is stable. */
static bool merge(tkc_jev *ev, const keyed *in, size_t a, size_t mid, size_t end, order how,
                  keyed *out)
{
    size_t i = a, j = mid, k = a;
    while (i < mid && j < end) {
        bool right = how.reverse ? comes_before(ev, how, in[i].key, in[j].key)
                                 : comes_before(ev, how, in[j].key, in[i].key);
        if (tkc_failed(ev->err))
            return false;
        out[k++] = right ? in[j++] : in[i++];
    }
    while (i < mid)
        out[k++] = in[i++];
    while (j < end)
        out[k++] = in[j++];
    return true;
}

static bool sort_keyed(tkc_jev *ev, keyed **items, size_t n, order how)
{
    keyed *other = tkc_j_alloc(ev, (n + 1) * sizeof *other);
    if (!other)
        return false;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t a = 0; a < n; a += 2 * width) {
            size_t mid = a + width < n ? a + width : n, end = a + 2 * width < n ? a + 2 * width : n;
            if (!merge(ev, *items, a, mid, end, how, other))
                return false;
        }
        keyed *t = *items;
        *items = other;
        other = t;
    }
    return true;
}

/* The key of an item: the attribute at each of the paths, a list if there are several. */
static tkc_jv sort_key(tkc_jev *ev, tkc_jv item, tkc_jv paths, bool ignore_case,
                       const tkc_jv *fallback)
{
    tkc_jv keys = tkc_jv_list(ev, TKC_JV_LIST, paths.l->len);
    for (size_t i = 0; !tkc_jv_failed(keys) && i < paths.l->len; i++) {
        tkc_jv key = tkc_j_follow(ev, item, paths.l->items[i], fallback);
        if (ignore_case && !tkc_jv_failed(key))
            key = tkc_j_ignore_case(ev, key);
        if (paths.l->len == 1)
            return key;
        if (!tkc_jv_push(ev, keys.l, key))
            return tkc_jv_fail;
    }
    return keys;
}

/* "a,b.c" as a list of paths. */
static tkc_jv key_paths(tkc_jev *ev, tkc_jv attribute, bool several)
{
    tkc_jv out = tkc_jv_list(ev, TKC_JV_LIST, 1);
    if (tkc_jv_failed(out))
        return out;
    if (attribute.kind != TKC_JV_STR || !several)
        return tkc_jv_push(ev, out.l, tkc_j_path(ev, attribute)) ? out : tkc_jv_fail;
    tinkc_str rest = tkc_jv_text(attribute), part;
    while (tkc_str_cut(&rest, ',', &part)) {
        tkc_jv one = tkc_jv_view(ev, part.data, part.len);
        if (tkc_jv_failed(one) || !tkc_jv_push(ev, out.l, tkc_j_path(ev, one)))
            return tkc_jv_fail;
    }
    return out;
}

/* All items of v with their keys. */
static bool collect(tkc_jev *ev, tkc_jv v, tkc_jv paths, bool ignore_case, const tkc_jv *fallback,
                    keyed **out, size_t *n)
{
    tkc_jv all = tkc_jv_failed(paths) ? paths : tkc_j_list(ev, v, TKC_JV_LIST);
    if (tkc_jv_failed(all))
        return false;
    keyed *items = tkc_j_alloc(ev, (all.l->len + 1) * sizeof *items);
    if (!items)
        return false;
    for (size_t i = 0; i < all.l->len; i++) {
        items[i].item = all.l->items[i];
        items[i].key = sort_key(ev, all.l->items[i], paths, ignore_case, fallback);
        if (tkc_jv_failed(items[i].key))
            return false;
    }
    *out = items;
    *n = all.l->len;
    return true;
}

static tkc_jv list_of(tkc_jev *ev, const keyed *items, size_t n)
{
    tkc_jv out = tkc_jv_list(ev, TKC_JV_LIST, n);
    for (size_t i = 0; !tkc_jv_failed(out) && i < n; i++)
        if (!tkc_jv_push(ev, out.l, items[i].item))
            return tkc_jv_fail;
    return out;
}

static tkc_jv filter_sort(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    static const char *const params[] = { "reverse", "case_sensitive", "attribute" };
    tkc_jv a[3];
    keyed *items;
    size_t n;
    if (!tkc_j_bind(ev, args, "sort", params, 3, 0, a))
        return tkc_jv_fail;
    if (!collect(ev, *v, key_paths(ev, a[2], true), !tkc_jv_truth(a[1]), NULL, &items, &n) ||
        !sort_keyed(ev, &items, n, (order){ tkc_jv_truth(a[0]), true }))
        return tkc_jv_fail;
    return list_of(ev, items, n);
}

static tkc_jv filter_dictsort(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    static const char *const params[] = { "case_sensitive", "by", "reverse" };
    tkc_jv a[3];
    keyed *items;
    size_t n;
    if (!tkc_j_bind(ev, args, "dictsort", params, 3, 0, a))
        return tkc_jv_fail;
    if (v->kind == TKC_JV_UNDEFINED)
        return tkc_j_fail_undefined(ev, *v);
    if (v->kind != TKC_JV_DICT)
        return tkc_j_fail(ev, "dictsort: expected a mapping, not %s", tkc_jv_type(*v));
    bool by_value = a[1].kind == TKC_JV_STR && tkc_str_is(tkc_jv_text(a[1]), "value");
    if (a[1].kind != TKC_JV_MISSING && !by_value &&
        !(a[1].kind == TKC_JV_STR && tkc_str_is(tkc_jv_text(a[1]), "key")))
        return tkc_j_fail(ev, "you can only sort by either \"key\" or \"value\"");
    tkc_jv pairs = { .kind = TKC_JV_VIEW, .aux = TKC_JVIEW_ITEMS, .d = v->d };
    if (!collect(ev, pairs, key_paths(ev, tkc_jv_int(by_value), false), !tkc_jv_truth(a[0]), NULL,
                 &items, &n) ||
        !sort_keyed(ev, &items, n, (order){ tkc_jv_truth(a[2]), false }))
        return tkc_jv_fail;
    return list_of(ev, items, n);
}

static tkc_jv filter_groupby(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    static const char *const params[] = { "attribute", "default", "case_sensitive" };
    tkc_jv a[3], out, group = tkc_jv_none;
    keyed *items;
    size_t n;
    if (!tkc_j_bind(ev, args, "groupby", params, 3, 1, a))
        return tkc_jv_fail;
    const tkc_jv *fallback = a[1].kind == TKC_JV_MISSING || a[1].kind == TKC_JV_NONE ? NULL : &a[1];
    tkc_jv paths = key_paths(ev, a[0], false);
    if (!collect(ev, *v, paths, !tkc_jv_truth(a[2]), fallback, &items, &n) ||
        !sort_keyed(ev, &items, n, (order){ false, false }))
        return tkc_jv_fail;
    out = tkc_jv_list(ev, TKC_JV_LIST, 0);
    for (size_t i = 0; !tkc_jv_failed(out) && i < n; i++) {
        if (i == 0 || !tkc_jv_equal(ev, items[i].key, items[i - 1].key)) {
            group = tkc_jv_list(ev, TKC_JV_LIST, 0);
            tkc_jv pair = tkc_jv_pair(
                ev, tkc_j_follow(ev, items[i].item, paths.l->items[0], fallback), group);
            pair.flag = TKC_JV_GROUP;
            if (tkc_jv_failed(group) || !tkc_jv_push(ev, out.l, pair))
                return tkc_jv_fail;
        }
        if (!tkc_jv_push(ev, group.l, items[i].item))
            return tkc_jv_fail;
    }
    return tkc_failed(ev->err) ? tkc_jv_fail : out;
}

static tkc_jv filter_unique(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    static const char *const params[] = { "case_sensitive", "attribute" };
    tkc_jv a[2], out = tkc_jv_list(ev, TKC_JV_LIST, 0), seen = tkc_jv_dict(ev, TKC_JV_DICT);
    keyed *items;
    size_t n;
    if (!tkc_j_bind(ev, args, "unique", params, 2, 0, a) || tkc_jv_failed(out) ||
        tkc_jv_failed(seen) ||
        !collect(ev, *v, key_paths(ev, a[1], false), !tkc_jv_truth(a[0]), NULL, &items, &n))
        return tkc_jv_fail;
    for (size_t i = 0; i < n; i++) {
        if (tkc_jv_hashable(ev, items[i].key) && tkc_jdict_find(ev, seen.d, items[i].key))
            continue;
        if (!tkc_jdict_set(ev, seen.d, items[i].key, tkc_jv_none) ||
            !tkc_jv_push(ev, out.l, items[i].item))
            return tkc_jv_fail;
    }
    return lazy(ev, out);
}

static tkc_jv extreme(tkc_jev *ev, tkc_jv v, const tkc_jargs *args, bool largest)
{
    static const char *const params[] = { "case_sensitive", "attribute" };
    tkc_jv a[2];
    keyed *items;
    size_t n, best = 0;
    if (!tkc_j_bind(ev, args, largest ? "max" : "min", params, 2, 0, a) ||
        !collect(ev, v, key_paths(ev, a[1], false), !tkc_jv_truth(a[0]), NULL, &items, &n))
        return tkc_jv_fail;
    for (size_t i = 1; i < n; i++)
        if (largest ? tkc_jv_less(ev, items[best].key, items[i].key, ">", false)
                    : tkc_jv_less(ev, items[i].key, items[best].key, "<", false))
            best = i;
    if (tkc_failed(ev->err))
        return tkc_jv_fail;
    return n ? items[best].item : tkc_jv_undefined();
}

static tkc_jv filter_min(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    return extreme(ev, *v, args, false);
}
static tkc_jv filter_max(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    return extreme(ev, *v, args, true);
}

static tkc_jv filter_sum(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    static const char *const params[] = { "attribute", "start" };
    tkc_jv a[2], item;
    if (!tkc_j_bind(ev, args, "sum", params, 2, 0, a))
        return tkc_jv_fail;
    tkc_jv path = tkc_j_path(ev, a[0]);
    tkc_jv total = a[1].kind == TKC_JV_MISSING ? tkc_jv_int(0) : a[1];
    if (total.kind == TKC_JV_STR)
        return tkc_j_fail(ev, "sum() can't sum strings");
    tkc_jiter *it = tkc_jv_failed(path) ? NULL : tkc_j_iter(ev, *v);
    while (it && tkc_j_next(ev, it, &item)) {
        total = tkc_j_binary(ev, TKC_JOP_ADD, total, tkc_j_follow(ev, item, path, NULL));
        if (tkc_jv_failed(total))
            return total;
    }
    return tkc_failed(ev->err) ? tkc_jv_fail : total;
}

/* ---- batches and slices ---- */

static bool part_args(tkc_jev *ev, const tkc_jargs *args, const char *what, int64_t least,
                      int64_t *n, tkc_jv *fill)
{
    static const char *const params[] = { "n", "fill_with" };
    tkc_jv a[2];
    if (!tkc_j_bind(ev, args, what, params, 2, 1, a))
        return false;
    *fill = a[1].kind == TKC_JV_NONE ? tkc_jv_missing : a[1];
    if (!tkc_jv_i64(a[0], n) || *n < least || *n > 1000000) {
        tkc_j_fail(ev, "%s: expected a number of items", what);
        return false;
    }
    return true;
}

static tkc_jv filter_batch(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    int64_t n;
    tkc_jv fill, item, out = tkc_jv_list(ev, TKC_JV_LIST, 0);
    tkc_jv part = tkc_jv_list(ev, TKC_JV_LIST, 0);
    if (tkc_jv_failed(out) || tkc_jv_failed(part) ||
        !part_args(ev, args, "batch", INT64_MIN, &n, &fill))
        return tkc_jv_fail;
    tkc_jiter *it = tkc_j_iter(ev, *v);
    while (it && tkc_j_next(ev, it, &item)) {
        if ((int64_t)part.l->len == n) { /* n = 0: an empty part, then everything */
            if (!tkc_jv_push(ev, out.l, part))
                return tkc_jv_fail;
            part = tkc_jv_list(ev, TKC_JV_LIST, 0);
            if (tkc_jv_failed(part))
                return tkc_jv_fail;
        }
        if (!tkc_jv_push(ev, part.l, item))
            return tkc_jv_fail;
    }
    while (fill.kind != TKC_JV_MISSING && part.l->len && (int64_t)part.l->len < n)
        if (!tkc_jv_push(ev, part.l, fill))
            return tkc_jv_fail;
    if (part.l->len && !tkc_jv_push(ev, out.l, part))
        return tkc_jv_fail;
    return tkc_failed(ev->err) ? tkc_jv_fail : lazy(ev, out);
}

static tkc_jv filter_slice(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    int64_t n;
    tkc_jv fill, out = tkc_jv_list(ev, TKC_JV_LIST, 0);
    if (tkc_jv_failed(out) || !part_args(ev, args, "slice", 1, &n, &fill))
        return tkc_jv_fail;
    tkc_jv all = tkc_j_list(ev, *v, TKC_JV_LIST);
    if (tkc_jv_failed(all))
        return all;
    size_t each = all.l->len / (size_t)n, extra = all.l->len % (size_t)n, at = 0;
    for (size_t i = 0; i < (size_t)n; i++) {
        size_t count = each + (i < extra);
        tkc_jv part = tkc_jv_list(ev, TKC_JV_LIST, count + 1);
        for (size_t k = 0; !tkc_jv_failed(part) && k < count; k++)
            if (!tkc_jv_push(ev, part.l, all.l->items[at++]))
                return tkc_jv_fail;
        if (tkc_jv_failed(part) ||
            (fill.kind != TKC_JV_MISSING && i >= extra && !tkc_jv_push(ev, part.l, fill)))
            return tkc_jv_fail;
        if (!tkc_jv_push(ev, out.l, part))
            return tkc_jv_fail;
    }
    return lazy(ev, out);
}

const tkc_jfunc *tkc_j_list_filter(tinkc_str name)
{
    static const tkc_jfunc table[] = {
        /* sorted */
        { "batch", filter_batch },
        { "count", filter_length },
        { "dictsort", filter_dictsort },
        { "first", filter_first },
        { "groupby", filter_groupby },
        { "items", filter_items },
        { "join", filter_join },
        { "last", filter_last },
        { "length", filter_length },
        { "list", filter_list },
        { "map", filter_map },
        { "max", filter_max },
        { "min", filter_min },
        { "reject", filter_reject },
        { "rejectattr", filter_rejectattr },
        { "reverse", filter_reverse },
        { "select", filter_select },
        { "selectattr", filter_selectattr },
        { "slice", filter_slice },
        { "sort", filter_sort },
        { "sum", filter_sum },
        { "unique", filter_unique },
    };
    return tkc_j_find_func(table, sizeof table / sizeof *table, name);
}
