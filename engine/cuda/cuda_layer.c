/* cuda_layer.c - the forward pass of one transformer block, before and after its mixer (cuda_mix_*.c).
 *
 * Training and sampling run this same code, so a token has the same bits in both. May touch: the buffers it is given.
 * Must not: do anything that depends on which rows share a call; how many there are only chooses between kernels of equal
 * bits.
 */
#include <math.h>
#include "cuda/cuda_state.h"

static const tcu_bf16 *matrix_of(const tcu_layer *l, int of)
{
    return of == TCU_QKV ? l->qkv : of == TCU_O ? l->o : of == TCU_GATE_UP ? l->gu : l->down;
}

static const float *bias_of(const tcu_layer *l, int of)
{
    return of == TCU_QKV       ? l->bias_qkv
           : of == TCU_O       ? l->bias_o
           : of == TCU_GATE_UP ? l->bias_gu
                               : l->bias_down;
}

tcu_lora tcu_rows_lora(const tcu_rows *r, size_t layer, int of)
{
    tcu_lora p = tcu_lora_of(r->model, layer, of, r->most);
    p.segments = r->lora.segments;
    p.tiles = r->lora.tiles;
    p.steps = r->lora.steps;
    p.n_segments = r->lora.n_segments;
    p.n_tiles = r->lora.n_tiles;
    p.tile_rows = r->lora.tile_rows;
    return p;
}

/* Base product and low: one launch for both if rows are few, else side by side. The product comes first: it leaves processors free
 * more often than low does, which is one long chain. */
static bool multiply_both(const tcu_rows *r, const tcu_product *q, const tcu_lora *p, tcu_bf16 *low,
                          tinkc_error *err)
{
    tcu_device *d = r->model->device;
    bool few = p->tile_rows == 16, adapters = p->most > 0;
    if (few && tcu_prefers_small(d, q, err))
        return tcu_ok(
            d, tcu_small(q->wide, q->x, q->w, q->y, q->ldy, q->m, q->n, q->k, p, low, d->stream),
            "multiplying few rows", err);
    if (!adapters)
        return tcu_multiply(d, q, err);
    return tcu_fork(d, 1, err) && tcu_multiply(d, q, err) &&
           tcu_ok(d,
                  few ? tcu_small(false, q->x, NULL, NULL, 0, 0, 0, p->in, p, low, d->beside[0])
                      : tcu_lora_low(p, q->x, low, d->beside[0]),
                  "multiplying with an adapter", err) &&
           tcu_join(d, 1, err);
}

/* With adapters the base product stays in fp32 until their part is added. Rounded before, it would swallow every
 * contribution below half of its last place, which is what the first steps of a training consist of. */
static bool multiply_group(const tcu_rows *r, size_t layer, int of, const tcu_bf16 *x,
                           const tcu_acts *t, const tcu_lora *p, tcu_bf16 *y, tinkc_error *err)
{
    bool adapters = p->most > 0;
    tcu_product q = { .wide = adapters,
                      .x = x,
                      .w = matrix_of(&r->model->layers[layer], of),
                      .y = adapters ? (void *)t->wide : y,
                      .ldx = p->in,
                      .ldy = p->ld_out,
                      .m = r->padded,
                      .n = p->ld_out,
                      .k = p->in,
                      .valid = r->n };
    return multiply_both(r, &q, p, t->low[of], err);
}

bool tcu_group_forward(const tcu_rows *r, size_t layer, int of, const tcu_bf16 *x,
                       const tcu_acts *t, tcu_bf16 *y, tinkc_error *err)
{
    tcu_device *d = r->model->device;
    const float *bias = bias_of(&r->model->layers[layer], of);
    tcu_lora p = tcu_rows_lora(r, layer, of);
    if (!multiply_group(r, layer, of, x, t, &p, y, err))
        return false;
    if (p.most > 0)
        return tcu_ok(d, tcu_lora_high(&p, t->low[of], t->wide, bias, y, d->stream),
                      "adding an adapter", err);
    return !bias || tcu_ok(d, tcu_add_bias(bias, y, r->n, p.ld_out, d->stream), "a bias", err);
}

/* Are sums with the adapters made where they are read next? Not if they are kept. */
static bool is_fused(const tcu_rows *r)
{
    return r->fused && r->most > 0 && r->most <= TCU_STRIP_RANK &&
           r->model->config.head_dim % 16 == 0;
}

tcu_heads tcu_heads_of(const tcu_rows *r, size_t layer)
{
    const tcu_model *m = r->model;
    return (tcu_heads){ .rows = r->n,
                        .n_heads = (int32_t)m->config.n_heads,
                        .n_kv_heads = (int32_t)m->config.n_kv_heads,
                        .d = (int32_t)m->config.head_dim,
                        .ld = m->qkv_width,
                        .q_norm = m->layers[layer].q_norm,
                        .k_norm = m->layers[layer].k_norm,
                        .cosine = m->cosine,
                        .sine = m->sine,
                        .positions = r->positions,
                        .eps = (float)m->config.rms_eps };
}

tcu_attention tcu_attention_of(const tcu_model *m, size_t layer)
{
    return (tcu_attention){ .n_heads = (int32_t)m->config.n_heads,
                            .n_kv_heads = (int32_t)m->config.n_kv_heads,
                            .d = (int32_t)m->config.head_dim,
                            .window = m->layers[layer].window,
                            .sinks = m->layers[layer].sinks,
                            .scale = (float)(1.0 / sqrt((double)m->config.head_dim)) };
}

bool tcu_make_heads(const tcu_rows *r, size_t layer, tcu_acts *t, const tcu_paged *cache,
                    tinkc_error *err)
{
    tcu_device *d = r->model->device;
    tcu_heads heads = tcu_heads_of(r, layer);
    tcu_lora p = tcu_rows_lora(r, layer, TCU_QKV);
    if (is_fused(r) && cache)
        return multiply_group(r, layer, TCU_QKV, t->a, t, &p, NULL, err) &&
               tcu_ok(d,
                      tcu_high_heads(&heads, &p, t->low[TCU_QKV], t->wide,
                                     r->model->layers[layer].bias_qkv, t->q, cache, d->stream),
                      "the rotation", err);
    return tcu_group_forward(r, layer, TCU_QKV, t->a, t, t->qkv, err) &&
           tcu_ok(d, tcu_heads_forward(&heads, t->qkv, t->q, t->k, cache, d->stream),
                  "the rotation", err);
}

bool tcu_block_before(const tcu_rows *r, size_t layer, const float *h, const tcu_bf16 *y,
                      float *h_in, tcu_acts *t, tinkc_error *err)
{
    tcu_model *m = r->model;
    tcu_device *d = m->device;
    return tcu_ok(d,
                  tcu_add_norm(h, y, y || h_in != h ? h_in : NULL, m->layers[layer].norm_in,
                               (float)m->config.rms_eps, t->a, r->n, m->hidden, d->stream),
                  "a norm", err);
}

/* b -> m. */
static bool make_inner(const tcu_rows *r, size_t layer, tcu_acts *t, tinkc_error *err)
{
    tcu_model *m = r->model;
    tcu_device *d = m->device;
    tcu_lora p = tcu_rows_lora(r, layer, TCU_GATE_UP);
    if (is_fused(r))
        return multiply_group(r, layer, TCU_GATE_UP, t->b, t, &p, NULL, err) &&
               tcu_ok(d,
                      tcu_high_swiglu(&p, t->low[TCU_GATE_UP], t->wide, m->layers[layer].bias_gu,
                                      t->m, d->stream),
                      "SwiGLU", err);
    return tcu_group_forward(r, layer, TCU_GATE_UP, t->b, t, t->gu, err) &&
           tcu_ok(d, tcu_swiglu(t->gu, t->m, r->n, m->inner, d->stream), "SwiGLU", err);
}

bool tcu_block_after(const tcu_rows *r, size_t layer, const float *h_in, tcu_acts *t, bool output,
                     tinkc_error *err)
{
    tcu_model *m = r->model;
    tcu_device *d = m->device;
    float eps = (float)m->config.rms_eps;
    if (!tcu_ok(d,
                tcu_add_norm(h_in, t->y, t->h_mid, m->layers[layer].norm_post, eps, t->b, r->n,
                             m->hidden, d->stream),
                "a norm", err))
        return false;
    if (m->layers[layer].sparse)
        return tcu_experts_forward(r, layer, t, output, err);
    if (!make_inner(r, layer, t, err))
        return false;
    if (output)
        return tcu_group_forward(r, layer, TCU_DOWN, t->m, t, t->y, err);
    tcu_lora p = tcu_rows_lora(r, layer, TCU_DOWN);
    return tcu_ok(d, tcu_lora_low(&p, t->m, t->low[TCU_DOWN], d->stream),
                  "multiplying with an adapter", err);
}

const tcu_mixer *tcu_mixer_of(const tcu_layer *l)
{
    (void)l; /* other kinds are refused when a model is loaded */
    return &tcu_mix_attention;
}
