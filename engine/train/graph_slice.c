/* graph_slice.c - compiles x[index]: slices, single positions, new axes and masks.
 *
 * May touch: the builder. Must not: compute. Bounds are numbers of the request; whether they lie
 * within a datum is checked when it is there.
 */
#include "train/graph_state.h"

/* Two dimensions, two new ones, and an ellipsis. */
enum { MOST_ITEMS = 5 };

typedef struct slicing {
    tke_graph_builder *b;
    int rank;             /* of what is indexed */
    int next;             /* its dimension that the next item is for */
    int out;              /* dimensions of the result so far */
    int kept;             /* of them, those that x has too */
    bool new_last;        /* a new axis came after a kept one */
    tke_graph_cut cut[2]; /* by dimension */
} slicing;

static bool bound_of(slicing *s, const tke_graph_arg *arg, int64_t *value, bool *given)
{
    *given = arg->kind == TKE_ARG_INT;
    *value = arg->integer;
    return *given || arg->kind == TKE_ARG_NONE ||
           tke_graph_refuse(s->b, "the bounds of a slice must be integers");
}

static bool take_slice(slicing *s, const tke_graph_arg *item)
{
    tke_graph_cut *cut = &s->cut[s->next];
    bool has_step;
    if (!bound_of(s, &item->items[0], &cut->start, &cut->has_start) ||
        !bound_of(s, &item->items[1], &cut->stop, &cut->has_stop) ||
        !bound_of(s, &item->items[2], &cut->step, &has_step))
        return false;
    if (!has_step)
        cut->step = 1;
    if (cut->step < 1)
        return tke_graph_refuse(s->b, "the step of a slice must be positive");
    s->next++;
    s->out++;
    s->kept++;
    return true;
}

static bool take_item(slicing *s, const tke_graph_arg *item, int n_after)
{
    if (item->kind == TKE_ARG_NONE) {
        s->new_last = s->kept > 0;
        s->out++;
        return true;
    }
    if (item->kind == TKE_ARG_ELLIPSIS) {
        int skip = s->rank - s->next - n_after;
        for (int i = 0; i < skip; i++, s->next++, s->out++)
            s->kept++;
        return true;
    }
    if (s->next == s->rank)
        return tke_graph_refuse(s->b, "it has more indices than the tensor has dimensions");
    if (item->kind == TKE_ARG_SLICE)
        return take_slice(s, item);
    if (item->kind != TKE_ARG_INT)
        return tke_graph_refuse(s->b,
                                "an index must be an integer, a slice, None, ... or one mask");
    s->cut[s->next++] = (tke_graph_cut){ .start = item->integer, .is_one = true };
    return true;
}

static bool select_by_mask(tke_graph_builder *b, int32_t x, int32_t mask, tke_graph_arg *out)
{
    int rank = b->graph->instrs[x].rank, by = b->graph->instrs[mask].rank;
    if (by == 0 || by > rank)
        return tke_graph_refuse(b, "a tensor of rank %d cannot be indexed by one of rank %d", rank,
                                by);
    out->kind = TKE_ARG_VALUE;
    out->at = tke_graph_emit(b, (tke_graph_instr){ .op = TKE_G_SELECT,
                                                   .rank = (uint8_t)(by < rank ? 2 : 1),
                                                   .kind = -1,
                                                   .a = x,
                                                   .b = mask,
                                                   .c = -1 });
    return out->at >= 0;
}

/* How many of these items are for a dimension of the tensor? */
static int n_dimensions(const tke_graph_arg *items, size_t n)
{
    int count = 0;
    for (size_t i = 0; i < n; i++)
        count += items[i].kind != TKE_ARG_NONE && items[i].kind != TKE_ARG_ELLIPSIS;
    return count;
}

static bool finish(slicing *s, int32_t x, tke_graph_arg *out)
{
    tke_graph *g = s->b->graph;
    for (; s->next < s->rank; s->next++, s->out++)
        s->kept++;
    if (s->out > 2)
        return tke_graph_refuse(s->b, "a result of rank %d is not supported", s->out);
    tke_graph_cut *cut = tkc_arena_array(&g->arena, 2, sizeof *cut, s->b->err);
    if (!cut)
        return false;
    /* a list is one row in memory */
    cut[0] = s->rank == 2 ? s->cut[0] : (tke_graph_cut){ .step = 1 };
    cut[1] = s->cut[s->rank == 2];
    out->kind = TKE_ARG_VALUE;
    out->at = tke_graph_emit(s->b, (tke_graph_instr){ .op = TKE_G_SLICE,
                                                      .rank = (uint8_t)s->out,
                                                      .kind = -1,
                                                      .a = x,
                                                      .b = -1,
                                                      .c = -1,
                                                      .index = s->kept,
                                                      .column = s->new_last,
                                                      .cut = cut });
    return out->at >= 0;
}

bool tke_graph_getitem(tke_graph_builder *b, int32_t x, const tke_graph_arg *index,
                       tke_graph_arg *out)
{
    slicing s = { .b = b, .rank = b->graph->instrs[x].rank };
    const tke_graph_arg *items = index->kind == TKE_ARG_LIST ? index->items : index;
    size_t n = index->kind == TKE_ARG_LIST ? index->n : 1, n_ellipses = 0;
    *out = (tke_graph_arg){ .at = -1 };
    if (n == 1 && items->kind == TKE_ARG_VALUE)
        return select_by_mask(b, x, items->at, out);
    if (n > MOST_ITEMS)
        return tke_graph_refuse(b, "an index has more than %d items", MOST_ITEMS);
    s.cut[0].step = s.cut[1].step = 1;
    for (size_t i = 0; i < n; i++) {
        n_ellipses += items[i].kind == TKE_ARG_ELLIPSIS;
        if (n_ellipses > 1)
            return tke_graph_refuse(b, "an index has two ellipses");
        if (!take_item(&s, &items[i], n_dimensions(items + i + 1, n - i - 1)))
            return false;
    }
    return finish(&s, x, out);
}
