/* jinja_iter.c - iteration over values, and the lazy filters that build on it.
 *
 * map, select and similar filters do their work when they are iterated, once, as Python's
 * generators do. May touch: the run.
 */
#include "jinja/jinja.h"

#include <string.h>

enum { MAX_STACKED = 100 }; /* iterators on iterators */

bool tkc_jv_iterable(tkc_jv v)
{
    return (v.kind >= TKC_JV_STR && v.kind <= TKC_JV_DICT) || v.kind == TKC_JV_RANGE ||
           v.kind == TKC_JV_ITER || v.kind == TKC_JV_VIEW || v.kind == TKC_JV_UNDEFINED ||
           v.kind == TKC_JV_LOOP;
}

tkc_jiter *tkc_j_iter(tkc_jev *ev, tkc_jv over)
{
    if (tkc_jv_failed(over))
        return NULL;
    if (over.kind == TKC_JV_ITER)
        return over.iter;
    if (!tkc_jv_iterable(over) || over.kind == TKC_JV_LOOP) {
        tkc_j_fail(ev, "'%s' object is not iterable", tkc_jv_type(over));
        return NULL;
    }
    tkc_jiter *it = tkc_j_alloc(ev, sizeof *it);
    if (!it)
        return NULL;
    memset(it, 0, sizeof *it);
    it->over = over;
    return it;
}

/* An iterator whose items come from `from`. */
tkc_jiter *tkc_j_stage(tkc_jev *ev, tkc_jv from, int stage)
{
    tkc_jiter *base = tkc_j_iter(ev, from);
    tkc_jiter *it = base ? tkc_j_alloc(ev, sizeof *it) : NULL;
    if (!it)
        return NULL;
    memset(it, 0, sizeof *it);
    it->from = base;
    it->stage = stage;
    it->depth = base->depth + 1;
    it->fallback = tkc_jv_missing;
    if (it->depth > MAX_STACKED) {
        tkc_j_fail(ev, "more than %d filters stand on each other", MAX_STACKED);
        return NULL;
    }
    return it;
}

static bool next_of_value(tkc_jev *ev, tkc_jiter *it, tkc_jv *item)
{
    tkc_jv over = it->over;
    switch (over.kind) {
    case TKC_JV_LIST:
    case TKC_JV_TUPLE:
        if (it->at >= over.l->len)
            return false;
        *item = over.l->items[it->at++];
        return true;
    case TKC_JV_STR: {
        size_t begin = it->at;
        if (begin >= over.s->len)
            return false;
        (void)tkc_j_char(tkc_jv_text(over), &it->at);
        *item = tkc_jv_view(ev, over.s->data + begin, it->at - begin);
        return !tkc_jv_failed(*item);
    }
    case TKC_JV_BYTES:
        if (it->at >= over.s->len)
            return false;
        *item = tkc_jv_int((unsigned char)over.s->data[it->at++]);
        return true;
    case TKC_JV_DICT:
    case TKC_JV_VIEW: {
        if (it->at >= over.d->len)
            return false;
        const tkc_jentry *e = &over.d->entries[it->at++];
        if (over.kind == TKC_JV_VIEW && over.aux == TKC_JVIEW_ITEMS)
            *item = tkc_jv_pair(ev, e->key, e->value);
        else
            *item = over.kind == TKC_JV_VIEW && over.aux == TKC_JVIEW_VALUES ? e->value : e->key;
        return !tkc_jv_failed(*item);
    }
    case TKC_JV_RANGE:
        if ((int64_t)it->at >= over.range->len)
            return false;
        *item = tkc_jv_int(over.range->start + (int64_t)it->at++ * over.range->step);
        return true;
    default:
        return false;
    }
}

/* The test of a select stage on a value. */
static bool passes(tkc_jev *ev, const tkc_jiter *it, tkc_jv v)
{
    if (!it->fn)
        return tkc_jv_truth(v) != it->reject;
    return tkc_jv_truth(it->fn->call(ev, &v, it->args)) != it->reject;
}

/* Applies a stage to an item; *keep false: the item is dropped. */
static bool through_stage(tkc_jev *ev, tkc_jiter *it, tkc_jv *item, bool *keep)
{
    *keep = true;
    if (it->loop)
        return tkc_j_loop_test(ev, it, *item, keep);
    switch (it->stage) {
    case TKC_JSTAGE_MAP_ATTR:
        *item = tkc_j_follow(ev, *item, it->path,
                             it->fallback.kind == TKC_JV_MISSING ? NULL : &it->fallback);
        break;
    case TKC_JSTAGE_MAP_FILTER:
        *item = it->fn->call(ev, item, it->args);
        break;
    case TKC_JSTAGE_SELECT:
        *keep = passes(ev, it, *item);
        break;
    case TKC_JSTAGE_SELECT_ATTR: {
        tkc_jv v = tkc_j_follow(ev, *item, it->path, NULL);
        *keep = !tkc_jv_failed(v) && passes(ev, it, v);
        break;
    }
    default:
        break;
    }
    return !tkc_jv_failed(*item) && !tkc_failed(ev->err);
}

bool tkc_j_next(tkc_jev *ev, tkc_jiter *it, tkc_jv *item)
{
    while (!it->done && tkc_j_charge(ev, 1)) {
        bool keep = true;
        if (it->from ? !tkc_j_next(ev, it->from, item) : !next_of_value(ev, it, item))
            break;
        if (it->from && !through_stage(ev, it, item, &keep))
            break;
        if (keep)
            return true;
    }
    it->done = true;
    return false;
}

tkc_jv tkc_j_list(tkc_jev *ev, tkc_jv over, uint8_t kind)
{
    if (over.kind == TKC_JV_LIST || over.kind == TKC_JV_TUPLE) {
        tkc_jv v = tkc_jv_list(ev, kind, over.l->len);
        if (tkc_jv_failed(v) || !tkc_j_charge(ev, over.l->len))
            return tkc_jv_fail;
        if (over.l->len)
            memcpy(v.l->items, over.l->items, over.l->len * sizeof *v.l->items);
        v.l->len = over.l->len;
        return v;
    }
    tkc_jiter *it = tkc_j_iter(ev, over);
    tkc_jv v = it ? tkc_jv_list(ev, kind, 0) : tkc_jv_fail;
    tkc_jv item;
    while (!tkc_jv_failed(v) && tkc_j_next(ev, it, &item))
        if (!tkc_jv_push(ev, v.l, item))
            return tkc_jv_fail;
    return tkc_failed(ev->err) ? tkc_jv_fail : v;
}
