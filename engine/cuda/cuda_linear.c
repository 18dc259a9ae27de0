/* cuda_linear.c - groups of matrices with one input: products with adapters and their gradients.
 *
 * Training and sampling run this same code, so a token has the same bits in both. May touch: the buffers it is given, the gradient
 * blocks of the batch's segments. Must not: do anything that depends on which rows share a call; how many there are only chooses
 * between kernels of equal bits. Sums over tokens run in the order of the rows, so that the bits of an adapter's gradient do not
 * depend on how requests were cut into microbatches.
 */
#include <assert.h>
#include "cuda/cuda_part.h"

static tcu_device *device_of(const tcu_turn *u)
{
    return u->rows->model->device;
}

tcu_lora tcu_lora_of(const tcu_linear *g, int32_t most)
{
    tcu_lora p = { .group = g->group,
                   .n = g->n,
                   .most = g->adapted ? most : 0,
                   .in = g->in,
                   .ld_out = g->rows,
                   .ld_low = g->n * most };
    for (int32_t i = 0; i < g->n; i++)
        p.out[i] = g->out[i];
    return p;
}

const tcu_coded *tcu_coded_of(const tcu_linear *g)
{
    return g->n_coded ? g->coded : NULL;
}

int tcu_embed_rows(const tcu_model *m, const int32_t *ids, float *h, int32_t n)
{
    const tcu_linear *e = &m->embed;
    return e->n_coded && e->coded->format
               ? tcu_embed_coded(ids, e->coded, h, n, m->device->stream)
               : tcu_embed(ids, e->w, h, n, m->hidden, m->device->stream);
}

tcu_lora tcu_rows_lora(const tcu_rows *r, const tcu_linear *g)
{
    tcu_lora p = tcu_lora_of(g, r->most);
    p.segments = r->lora.segments;
    p.tiles = r->lora.tiles;
    p.steps = r->lora.steps;
    p.n_segments = r->lora.n_segments;
    p.n_tiles = r->lora.n_tiles;
    p.tile_rows = r->lora.tile_rows;
    return p;
}

/* low of tiles of 16 rows, in a launch of its own. */
static int few_low(const tcu_device *d, const tcu_lora *p, const tcu_bf16 *x, tcu_bf16 *low,
                   tcu_stream stream)
{
    return d->gemm.few_here ? tcu_few_low(p, x, low, stream)
                            : tcu_small(false, x, NULL, NULL, 0, 0, 0, p->in, p, low, stream);
}

enum { SHORT = 3072 }; /* numbers along a chain */

static bool low_beside(tcu_device *d, const tcu_lora *p, const tcu_bf16 *x, tcu_bf16 *low,
                       tinkc_error *err)
{
    return tcu_ok(d,
                  p->tile_rows == 16 ? few_low(d, p, x, low, d->beside[0])
                                     : tcu_lora_low(p, x, low, d->beside[0]),
                  "multiplying with an adapter", err);
}

/* Base product and low: one launch for both if rows are few, else side by side. The product comes first: it leaves processors free
 * more often than low does, which is one long chain; but a short one of few rows is through before the product has begun. */
static bool multiply_both(const tcu_turn *u, const tcu_product *q, const tcu_lora *p, tcu_bf16 *low,
                          tinkc_error *err)
{
    tcu_device *d = device_of(u);
    bool few = p->tile_rows == 16, adapters = p->most > 0;
    if (few && tcu_prefers_small(d, q, err))
        return tcu_ok(
            d, tcu_small(q->wide, q->x, q->w, q->y, q->ldy, q->m, q->n, q->k, p, low, d->stream),
            "multiplying few rows", err);
    if (!adapters)
        return tcu_multiply(d, q, err);
    bool first = few && p->in <= SHORT;
    return tcu_plan_product(d, q, err) && tcu_fork(d, 1, err) &&
           (!first || low_beside(d, p, q->x, low, err)) && tcu_multiply(d, q, err) &&
           (first || low_beside(d, p, q->x, low, err)) && tcu_join(d, 1, err);
}

static tcu_product product_of(const tcu_turn *u, const tcu_linear *g, const tcu_bf16 *x, bool wide,
                              void *y)
{
    return (tcu_product){ .wide = wide,
                          .x = x,
                          .w = g->w,
                          .coded = tcu_coded_of(g),
                          .n_coded = g->n_coded,
                          .y = y,
                          .ldx = g->in,
                          .ldy = g->rows,
                          .m = u->rows->padded,
                          .n = g->rows,
                          .k = g->in,
                          .valid = u->rows->n };
}

static bool multiply_group(const tcu_turn *u, const tcu_linear *g, const tcu_lora *p,
                           const tcu_bf16 *x, tcu_bf16 *low, bool wide, void *y, tinkc_error *err)
{
    tcu_product q = product_of(u, g, x, wide, y);
    return multiply_both(u, &q, p, low, err);
}

bool tcu_group_wide(const tcu_turn *u, const tcu_linear *g, const tcu_bf16 *x, float *y,
                    tinkc_error *err)
{
    tcu_lora p = tcu_rows_lora(u->rows, g);
    assert(!g->adapted);
    return multiply_group(u, g, &p, x, NULL, true, y, err);
}

/* Ranks that the fused kernels know; in training the sums are kept. */
bool tcu_turn_fused(const tcu_turn *u)
{
    return u->rows->fused && u->rows->most > 0 && u->rows->most <= TCU_STRIP_RANK;
}

/* What launches for low and for adding it would take beside the product: a fork, a join, fp32 sums written and read. */
enum { SPARED_US = 8 };

bool tcu_group_once(const tcu_turn *u, const tcu_linear *g, const tcu_bf16 *x, tcu_bf16 *low,
                    tcu_bf16 *y, bool *done, tinkc_error *err)
{
    tcu_device *d = device_of(u);
    tcu_lora p = tcu_rows_lora(u->rows, g);
    tcu_product q = product_of(u, g, x, false, y);
    *done = tcu_turn_fused(u) && p.most > 0 && p.tile_rows == 16 &&
            tcu_prefers_few(d, &q, SPARED_US, err);
    return !tkc_failed(err) &&
           (!*done || tcu_ok(d,
                             tcu_few(false, x, q.w, y, q.ldy, q.m, q.n, q.k, g->bias, &p, low,
                                     d->gemm.turn, d->stream),
                             "multiplying with an adapter", err));
}

bool tcu_group_halves(const tcu_turn *u, const tcu_linear *g, const tcu_bf16 *x, tcu_bf16 *low,
                      tcu_lora *p, tinkc_error *err)
{
    *p = tcu_rows_lora(u->rows, g);
    return multiply_group(u, g, p, x, low, true, u->wide, err);
}

/* With adapters the base product stays in fp32 until their part is added. Rounded before, it would swallow every
 * contribution below half of its last place, which is what the first steps of a training consist of. */
bool tcu_group_forward(const tcu_turn *u, const tcu_linear *g, const tcu_bf16 *x, tcu_bf16 *low,
                       tcu_bf16 *y, tinkc_error *err)
{
    tcu_device *d = device_of(u);
    tcu_lora p = tcu_rows_lora(u->rows, g);
    bool adapters = p.most > 0, done;
    if (!tcu_group_once(u, g, x, low, y, &done, err))
        return false;
    if (done)
        return true;
    if (!multiply_group(u, g, &p, x, low, adapters, adapters ? (void *)u->wide : y, err))
        return false;
    if (adapters)
        return tcu_ok(d, tcu_lora_high(&p, low, u->wide, g->bias, y, d->stream),
                      "adding an adapter", err);
    return !g->bias ||
           tcu_ok(d, tcu_add_bias(g->bias, y, u->rows->n, g->rows, d->stream), "a bias", err);
}

bool tcu_group_low(const tcu_turn *u, const tcu_linear *g, const tcu_bf16 *x, tcu_bf16 *low,
                   tinkc_error *err)
{
    tcu_device *d = device_of(u);
    tcu_lora p = tcu_rows_lora(u->rows, g);
    if (!p.most)
        return true;
    int rc = p.tile_rows == 16 ? few_low(d, &p, x, low, d->stream)
                               : tcu_lora_low(&p, x, low, d->stream);
    return tcu_ok(d, rc, "multiplying with an adapter", err);
}

/* The choice of a kernel writes over the result, so it is made on scratch before a product is added to something. */
static bool plan_apart(const tcu_turn *u, tcu_product q, tinkc_error *err)
{
    q.y = u->wide;
    return tcu_plan_product(device_of(u), &q, err);
}

/* dx gets the adapters' part first, and the product is added to it: cheaper than to read dx again.
 * Gradients of the adapters leave most of the card idle, so they run beside the large product. x and dx are different
 * buffers, and nothing below writes what they read before the join. */
bool tcu_group_back(const tcu_turn *u, const tcu_linear *g, const tcu_bf16 *x, const tcu_bf16 *dy,
                    const tcu_bf16 *low, bool add, tcu_bf16 *dx, tinkc_error *err)
{
    tcu_device *d = device_of(u);
    tcu_lora p = tcu_rows_lora(u->rows, g);
    tcu_product q = { .transposed = true,
                      .add = p.most > 0 || add,
                      .x = dy,
                      .w = g->w,
                      .coded = tcu_coded_of(g),
                      .n_coded = g->n_coded,
                      .y = dx,
                      .ldx = g->rows,
                      .ldy = g->in,
                      .m = u->rows->padded,
                      .n = g->in,
                      .k = g->rows,
                      .valid = u->rows->n };
    assert(!add || !g->adapted);
    if (!p.most)
        return !dx || ((!add || plan_apart(u, q, err)) && tcu_multiply(d, &q, err));
    if (!tcu_ok(d, tcu_lora_dlow(&p, dy, u->dlow, d->stream), "dlow", err) ||
        !tcu_fork(d, 2, err) ||
        !tcu_ok(d, tcu_lora_db(&p, dy, low, d->beside[0]), "dB", err) ||
        !tcu_ok(d, tcu_lora_da(&p, u->dlow, x, d->beside[1]), "dA", err))
        return false;
    if (dx && (!tcu_plan_product(d, &q, err) ||
               !tcu_ok(d, tcu_lora_dx(&p, u->dlow, dx, d->stream), "dx of an adapter", err) ||
               !tcu_multiply(d, &q, err)))
        return false;
    return tcu_join(d, 2, err);
}
