/* cuda_feed_experts.c - a feed-forward of experts: a router, the chosen experts of each row, their weighted sum.
 *
 * Of the adapters of gate and up A is shared, so A x is computed once for a row; of down B is shared, so it is applied once to the
 * weighted sum of A_e h_e. Training and sampling run this same code. May touch: the buffers it is given.
 *
 * Rounding points: logits and weights are fp32; gate and up are bf16(fma(scale, B_e low, W_e x) + bias), an expert's result
 * bf16(W_e h + bias); the weighted sums are fp32, and y = bf16(fma(scale, B sum(w A_e h), sum(w result))).
 */
#include <string.h>
#include "cuda/cuda_state.h"

enum { FEW_ROWS = 256, ALIGN = 256 };

void tcu_walk_take(tcu_walk *w, void *out, size_t count, size_t size)
{
    void *p = w->at ? w->at + w->used : NULL;
    memcpy(out, &p, sizeof p);
    w->used += (count * size + ALIGN - 1) / ALIGN * ALIGN;
}

/* ---- memory ---- */

static int32_t tile_rows(size_t n)
{
    return n <= FEW_ROWS ? TCU_FEW_TILE : TCU_MANY_TILE;
}

void tcu_experts_keep(tcu_walk *w, const tcu_model *m, size_t n, size_t most, tcu_acts *t)
{
    const tcu_experts_size *x = &m->experts;
    size_t pairs = n * (size_t)x->top, experts = (size_t)x->n;
    size_t few_pairs = (n < FEW_ROWS ? n : FEW_ROWS) * (size_t)x->top;
    size_t few = (size_t)tcu_tile_room((int32_t)few_pairs, x->n, TCU_FEW_TILE),
           many = (size_t)tcu_tile_room((int32_t)pairs, x->n, TCU_MANY_TILE);
    TCU_TAKE(w, t->gu, pairs * 2 * (size_t)x->width);
    TCU_TAKE(w, t->low[TCU_GATE_UP], n * 2 * most);
    TCU_TAKE(w, t->low[TCU_DOWN], n * most);
    TCU_TAKE(w, t->pairs.chosen, pairs);
    TCU_TAKE(w, t->pairs.pair_of, pairs);
    TCU_TAKE(w, t->pairs.slot_of, pairs);
    TCU_TAKE(w, t->pairs.weight, pairs);
    TCU_TAKE(w, t->pairs.start, experts + 1);
    TCU_TAKE(w, t->pairs.tiles, few > many ? few : many);
    TCU_TAKE(w, t->pairs.counts, (size_t)tcu_order_chunks((int32_t)pairs) * experts);
    t->logits = NULL;
    if (x->all)
        TCU_TAKE(w, t->logits, n * (size_t)x->padded);
}

void tcu_experts_place(tcu_walk *w, const tcu_model *m, size_t n, size_t most, size_t n_data,
                       tcu_experts_work *t)
{
    const tcu_experts_size *x = &m->experts;
    size_t pairs = n * (size_t)x->top;
    TCU_TAKE(w, t->logits, n * (size_t)x->padded);
    TCU_TAKE(w, t->wide, pairs * (size_t)m->hidden);
    TCU_TAKE(w, t->low, pairs * 2 * most);
    TCU_TAKE(w, t->unpacked, x->unpacked);
    if (!n_data)
        return;
    TCU_TAKE(w, t->pair_low, pairs * 2 * most);
    TCU_TAKE(w, t->dweight, pairs);
    TCU_TAKE(w, t->dlogits, n * (size_t)x->padded);
    TCU_TAKE(w, t->steps, (size_t)tcu_steps_at((int32_t)pairs, x->n, (int32_t)n_data) + 1);
    TCU_TAKE(w, t->n_steps, (size_t)x->n);
}

/* ---- what forward and backward share ---- */

static const tcu_experts *experts_of(const tcu_rows *r, size_t layer)
{
    return &r->model->layers[layer].experts;
}

/* The tables of the rows at hand, which may be fewer than there is room for. */
static void describe_pairs(const tcu_rows *r, tcu_acts *t)
{
    t->pairs.n = r->n;
    t->pairs.top = r->model->experts.top;
    t->pairs.n_experts = r->model->experts.n;
    t->pairs.tile_rows = tile_rows((size_t)r->n);
}

static tcu_router router_of(const tcu_rows *r, size_t layer)
{
    return (tcu_router){ .all = r->model->experts.all,
                         .ld = r->model->experts.padded,
                         .bias = experts_of(r, layer)->router_bias,
                         .present = r->positions };
}

static tcu_expert_act act_of(const tcu_rows *r)
{
    const tcu_experts_size *x = &r->model->experts;
    return (tcu_expert_act){ .width = x->width, .limit = x->limit, .alpha = x->alpha };
}

static float *logits_of(const tcu_acts *t)
{
    return t->logits ? t->logits : t->work->logits;
}

/* A stack that products can read: few rows read packed ones. */
static bool ready_stack(const tcu_rows *r, const tcu_stack *s, const tcu_acts *t, bool transposed,
                        tcu_stack *out, tinkc_error *err)
{
    tcu_device *d = r->model->device;
    *out = *s;
    if (s->w || (!transposed && t->pairs.tile_rows == TCU_FEW_TILE))
        return true;
    out->w = t->work->unpacked;
    return tcu_ok(d, tcu_unpack(s, &t->pairs, out->w, d->stream), "unpacking experts", err);
}

static tcu_grouped grouped_of(const tcu_rows *r, size_t layer, int of, const tcu_acts *t)
{
    return (tcu_grouped){ .pairs = t->pairs,
                          .parts = 1,
                          .lora = tcu_rows_lora(r, layer, of),
                          .segment_of = r->segment_of };
}

/* The experts' product with x; `how` says everything but the matrices. */
static bool multiply(const tcu_rows *r, const tcu_stack *s, const tcu_acts *t, tcu_grouped *how,
                     tinkc_error *err)
{
    tcu_device *d = r->model->device;
    how->bias = how->transposed ? NULL : s->bias;
    return ready_stack(r, s, t, how->transposed, &how->w, err) &&
           tcu_ok(d, tcu_grouped_product(how, d->stream), "experts", err);
}

/* ---- forward ---- */

static bool route(const tcu_rows *r, size_t layer, tcu_acts *t, tinkc_error *err)
{
    tcu_model *m = r->model;
    tcu_device *d = m->device;
    tcu_router router = router_of(r, layer);
    tcu_product q = { .wide = true,
                      .x = t->b,
                      .w = experts_of(r, layer)->router,
                      .y = logits_of(t),
                      .ldx = m->hidden,
                      .ldy = m->experts.padded,
                      .m = r->padded,
                      .n = m->experts.padded,
                      .k = m->hidden,
                      .valid = r->n };
    describe_pairs(r, t);
    return tcu_multiply(d, &q, err) &&
           tcu_ok(d, tcu_route(&router, logits_of(t), &t->pairs, d->stream), "routing", err);
}

/* A x of the adapters of gate and up, once for a row. */
static bool make_low(const tcu_rows *r, size_t layer, const tcu_acts *t, tinkc_error *err)
{
    tcu_device *d = r->model->device;
    tcu_lora p = tcu_rows_lora(r, layer, TCU_GATE_UP);
    if (!p.most)
        return true;
    int rc = p.tile_rows == 16 ? tcu_small(false, t->b, NULL, NULL, 0, 0, 0, p.in, &p,
                                           t->low[TCU_GATE_UP], d->stream)
                               : tcu_lora_low(&p, t->b, t->low[TCU_GATE_UP], d->stream);
    return tcu_ok(d, rc, "multiplying with an adapter", err);
}

/* b -> gu, m of pairs. */
static bool make_inner(const tcu_rows *r, size_t layer, tcu_acts *t, tinkc_error *err)
{
    tcu_device *d = r->model->device;
    tcu_grouped g = grouped_of(r, layer, TCU_GATE_UP, t);
    tcu_expert_act act = act_of(r);
    g.x = t->b;
    g.ldx = r->model->hidden;
    g.by_row = true;
    g.parts = 2;
    g.y = t->gu;
    g.low = t->low[TCU_GATE_UP];
    g.ld_low = g.lora.ld_low;
    return make_low(r, layer, t, err) && multiply(r, &experts_of(r, layer)->in, t, &g, err) &&
           tcu_ok(d, tcu_act(&act, t->gu, t->m, (int64_t)r->n * t->pairs.top, d->stream), "SwiGLU",
                  err);
}

/* The weighted sum of A_e h_e, once for a row. */
static bool make_low_down(const tcu_rows *r, size_t layer, const tcu_acts *t, tinkc_error *err)
{
    tcu_device *d = r->model->device;
    tcu_grouped g = grouped_of(r, layer, TCU_DOWN, t);
    g.x = t->m;
    g.ldx = g.w.in = r->model->experts.width;
    int64_t ld = g.lora.ld_low;
    return !g.lora.most ||
           (tcu_ok(d, tcu_own_low(&g, false, t->work->low, ld, d->stream),
                   "multiplying with an adapter", err) &&
            tcu_ok(d,
                   tcu_pairs_low(&t->pairs, true, t->work->low, (int32_t)ld, t->low[TCU_DOWN],
                                 d->stream),
                   "adding experts", err));
}

static bool make_output(const tcu_rows *r, size_t layer, tcu_acts *t, tinkc_error *err)
{
    tcu_model *m = r->model;
    tcu_device *d = m->device;
    tcu_grouped g = grouped_of(r, layer, TCU_DOWN, t);
    bool adapters = g.lora.most > 0;
    g.x = t->m;
    g.ldx = m->experts.width;
    g.y = t->work->wide;
    return multiply(r, &experts_of(r, layer)->out, t, &g, err) &&
           tcu_ok(d,
                  tcu_pairs_combine(&t->pairs, g.y, m->hidden, adapters ? t->wide : NULL, t->y,
                                    d->stream),
                  "adding experts", err) &&
           (!adapters ||
            tcu_ok(d, tcu_lora_high(&g.lora, t->low[TCU_DOWN], t->wide, NULL, t->y, d->stream),
                   "adding an adapter", err));
}

bool tcu_experts_forward(const tcu_rows *r, size_t layer, tcu_acts *t, bool output, tinkc_error *err)
{
    return route(r, layer, t, err) && make_inner(r, layer, t, err) &&
           make_low_down(r, layer, t, err) && (!output || make_output(r, layer, t, err));
}

/* ---- backward ---- */

/* dy -> dm of each pair, before its weight; gradients of the shared B. */
static bool down_backward(const tcu_experts_back *b, tinkc_error *err)
{
    const tcu_rows *r = b->rows;
    tcu_device *d = r->model->device;
    tcu_acts *t = b->acts;
    tcu_grouped g = grouped_of(r, b->layer, TCU_DOWN, t);
    g.x = b->dy;
    g.ldx = r->model->hidden;
    g.by_row = g.transposed = true;
    g.y = b->dm;
    g.low = b->dlow;
    g.ld_low = g.lora.ld_low;
    return tcu_ok(d, tcu_lora_dlow(&g.lora, b->dy, b->dlow, d->stream), "dlow", err) &&
           tcu_ok(d, tcu_lora_db(&g.lora, b->dy, t->low[TCU_DOWN], d->stream), "dB", err) &&
           multiply(r, &experts_of(r, b->layer)->out, t, &g, err);
}

static tcu_own_gradient gradient_of(const tcu_experts_back *b, int of, const tcu_bf16 *dy,
                                    int32_t parts)
{
    tcu_own_gradient g = { .pairs = b->acts->pairs,
                           .lora = tcu_rows_lora(b->rows, b->layer, of),
                           .steps = b->acts->work->steps,
                           .n_steps = b->acts->work->n_steps,
                           .n_data = b->rows->n_data,
                           .dy = dy,
                           .low = b->acts->work->pair_low,
                           .width = b->rows->model->experts.width,
                           .parts = parts };
    g.ld_low = g.lora.ld_low;
    return g;
}

/* A_e += (w dlow)^T h; then dm -> the gradients of gate and up, over them, and of the router's weights. */
static bool inner_backward(const tcu_experts_back *b, tinkc_error *err)
{
    const tcu_rows *r = b->rows;
    tcu_device *d = r->model->device;
    tcu_acts *t = b->acts;
    tcu_expert_act act = act_of(r);
    tcu_own_gradient g = gradient_of(b, TCU_DOWN, t->m, 0);
    return tcu_ok(d,
                  tcu_pairs_spread(&t->pairs, true, b->dlow, (int32_t)g.ld_low, t->work->pair_low,
                                   d->stream),
                  "dlow", err) &&
           tcu_ok(d, tcu_own_grow(&g, d->stream), "dA", err) &&
           tcu_ok(d,
                  tcu_act_back(&act, &t->pairs, t->gu, t->m, b->dm,
                               experts_of(r, b->layer)->out.bias, b->dy, r->model->hidden,
                               t->work->dweight, d->stream),
                  "SwiGLU", err);
}

/* The gradients of gate and up -> those of their adapters; dlow of rows. */
static bool factors_backward(const tcu_experts_back *b, tinkc_error *err)
{
    const tcu_rows *r = b->rows;
    tcu_device *d = r->model->device;
    tcu_acts *t = b->acts;
    tcu_own_gradient own = gradient_of(b, TCU_GATE_UP, t->gu, 2);
    tcu_grouped g = grouped_of(r, b->layer, TCU_GATE_UP, t);
    g.x = t->gu;
    g.ldx = 2 * (int64_t)own.width;
    g.w.in = own.width;
    g.parts = 2;
    return tcu_ok(d,
                  tcu_pairs_spread(&t->pairs, false, t->low[TCU_GATE_UP], (int32_t)own.ld_low,
                                   t->work->pair_low, d->stream),
                  "low", err) &&
           tcu_ok(d, tcu_own_grow(&own, d->stream), "dB", err) &&
           tcu_ok(d, tcu_own_low(&g, true, t->work->low, own.ld_low, d->stream), "dlow", err) &&
           tcu_ok(d,
                  tcu_pairs_low(&t->pairs, false, t->work->low, (int32_t)own.ld_low, b->dlow,
                                d->stream),
                  "dlow", err) &&
           tcu_ok(d, tcu_lora_da(&g.lora, b->dlow, t->b, d->stream), "dA", err);
}

/* What the router passes on to b, in fp32 (t->wide). */
static bool router_backward(const tcu_experts_back *b, tinkc_error *err)
{
    const tcu_rows *r = b->rows;
    tcu_model *m = r->model;
    tcu_device *d = m->device;
    tcu_acts *t = b->acts;
    tcu_router router = router_of(r, b->layer);
    tcu_product q = { .transposed = true,
                      .wide = true,
                      .x = t->work->dlogits,
                      .w = experts_of(r, b->layer)->router,
                      .y = t->wide,
                      .ldx = m->experts.padded,
                      .ldy = m->hidden,
                      .m = r->padded,
                      .n = m->hidden,
                      .k = m->experts.padded,
                      .valid = r->n };
    return tcu_ok(d,
                  tcu_route_back(&router, logits_of(t), &t->pairs, t->work->dweight,
                                 t->work->dlogits, d->stream),
                  "routing", err) &&
           tcu_multiply(d, &q, err);
}

static bool input_backward(const tcu_experts_back *b, tinkc_error *err)
{
    const tcu_rows *r = b->rows;
    tcu_device *d = r->model->device;
    tcu_acts *t = b->acts;
    tcu_grouped g = grouped_of(r, b->layer, TCU_GATE_UP, t);
    tcu_lora p = g.lora;
    g.x = t->gu;
    g.ldx = 2 * (int64_t)r->model->experts.width;
    g.transposed = true;
    g.y = t->work->wide;
    return router_backward(b, err) && multiply(r, &experts_of(r, b->layer)->in, t, &g, err) &&
           tcu_ok(d, tcu_lora_dx(&p, b->dlow, b->dx, d->stream), "dx of an adapter", err) &&
           tcu_ok(d,
                  tcu_pairs_gradient(&t->pairs, g.y, r->model->hidden, t->wide, p.most > 0, b->dx,
                                     d->stream),
                  "adding experts", err);
}

bool tcu_experts_backward(const tcu_experts_back *b, tinkc_error *err)
{
    const tcu_rows *r = b->rows;
    tcu_device *d = r->model->device;
    tcu_acts *t = b->acts;
    tcu_expert_act act = act_of(r);
    describe_pairs(r, t);
    return tcu_ok(d, tcu_act(&act, t->gu, t->m, (int64_t)r->n * t->pairs.top, d->stream), "SwiGLU",
                  err) &&
           tcu_ok(d,
                  tcu_expert_steps(&t->pairs, r->starts, r->n_data, t->work->steps,
                                   t->work->n_steps, d->stream),
                  "steps of experts", err) &&
           down_backward(b, err) && inner_backward(b, err) && factors_backward(b, err) &&
           (!b->below || input_backward(b, err));
}
