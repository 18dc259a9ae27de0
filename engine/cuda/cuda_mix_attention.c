/* cuda_mix_attention.c - attention as a layer's mixer: packed sequences in training, paged ones in a step.
 *
 * May touch: its slots and the cache.
 */
#include <math.h>
#include "cuda/cuda_heads_any.h"
#include "cuda/cuda_part.h"

/* kept: q_proj's, k_proj's and v_proj's results side by side, heads after norm and rotation, A x of the groups */
enum { QKV, Q, K, O, LSE, LOW_QKV, LOW_O };
/* work; GATED: with a gate, what o_proj reads */
enum { GATED, D_O, DQ, DK, DQKV, DELTA };

static bool runs(const tke_model *m, const tke_layer *l, tinkc_error *err)
{
    const tke_attn *a = l->attn;
    size_t group = a->n_heads / a->n_kv_heads;
    (void)m;
    return (a->head_dim <= TCU_ANY_HEAD_DIM && group <= TCU_MAX_HEAD_GROUP) ||
           tkc_fail(err, TINKC_E_UNSUPPORTED,
                    "heads of %zu numbers, %zu to a key head (up to %d, %d)", a->head_dim, group,
                    TCU_ANY_HEAD_DIM, TCU_MAX_HEAD_GROUP);
}

static void weights(tcu_loader *loader, const tke_layer *from, tcu_layer *to)
{
    const tke_attn *a = from->attn;
    tcu_attn *x = &to->attn;
    size_t d = a->head_dim;
    tcu_side head = tcu_side_of(d);
    const tcu_side heads[] = { head, head, head };
    tcu_load_group(loader, a->qkv, NULL, heads, &x->qkv);
    tcu_load_group(loader, a->o, &head, NULL, &x->o);
    x->of = a;
    x->d = head.step;
    x->q_width = (int32_t)a->n_heads * x->d;
    x->k_width = (int32_t)a->n_kv_heads * x->d;
    tcu_load_vector(loader, a->sinks, a->n_heads, a->n_heads, &x->sinks);
    tcu_load_vector(loader, a->q_norm, d, (size_t)x->d, &x->q_norm);
    tcu_load_vector(loader, a->k_norm, d, (size_t)x->d, &x->k_norm);
}

static void keep(tcu_walk *w, const tcu_model *m, const tcu_layer *l, const tcu_size *s,
                 tcu_slots *t)
{
    const tcu_attn *a = &l->attn;
    size_t n = s->n;
    (void)m;
    TCU_SLOT(w, t, QKV, tcu_bf16, n * (size_t)a->qkv.rows);
    TCU_SLOT(w, t, Q, tcu_bf16, n * (size_t)a->q_width);
    TCU_SLOT(w, t, K, tcu_bf16, n * (size_t)a->k_width);
    TCU_SLOT(w, t, O, tcu_bf16, n * (size_t)a->q_width);
    TCU_SLOT(w, t, LSE, float, n * a->of->n_heads);
    TCU_SLOT(w, t, LOW_QKV, tcu_bf16, n * 3 * s->most);
    TCU_SLOT(w, t, LOW_O, tcu_bf16, n * s->most);
}

static void work(tcu_walk *w, const tcu_model *m, const tcu_layer *l, const tcu_size *s,
                 tcu_slots *t)
{
    const tcu_attn *a = &l->attn;
    size_t n = s->n;
    (void)m;
    if (a->of->gate)
        TCU_SLOT(w, t, GATED, tcu_bf16, n * (size_t)a->q_width);
    if (!s->n_data)
        return;
    TCU_SLOT(w, t, D_O, tcu_bf16, n * (size_t)a->q_width);
    TCU_SLOT(w, t, DQ, tcu_bf16, n * (size_t)a->q_width);
    TCU_SLOT(w, t, DK, tcu_bf16, n * (size_t)a->k_width);
    TCU_SLOT(w, t, DQKV, tcu_bf16, n * (size_t)a->qkv.rows);
    TCU_SLOT(w, t, DELTA, float, n * a->of->n_heads);
}

static size_t cache_numbers(const tcu_layer *l)
{
    return TKE_BLOCK_TOKENS * 2 * (size_t)l->attn.k_width;
}

/* ---- forward ---- */

static tcu_heads heads_of(const tcu_turn *u)
{
    const tcu_model *m = u->rows->model;
    const tcu_attn *a = &u->layer->attn;
    return (tcu_heads){ .rows = u->rows->n,
                        .n_heads = (int32_t)a->of->n_heads,
                        .n_kv_heads = (int32_t)a->of->n_kv_heads,
                        .d = a->d,
                        .ld = a->qkv.rows,
                        .q_norm = a->q_norm,
                        .k_norm = a->k_norm,
                        .cosine = m->cosine,
                        .sine = m->sine,
                        .positions = u->rows->positions,
                        .eps = (float)m->config.rms_eps };
}

/* Do heads need the general kernels? Their bits are others, so a model's layers have one form always. */
static bool is_any(const tcu_turn *u, tcu_any_heads *p)
{
    const tcu_model *m = u->rows->model;
    const tcu_attn *a = &u->layer->attn;
    *p = (tcu_any_heads){ .h = heads_of(u),
                          .used = (int32_t)a->of->head_dim,
                          .rotary = (int32_t)m->config.rotary,
                          .gate = a->of->gate };
    return p->gate || p->rotary != p->used || p->used != a->d || a->d > TCU_MAX_HEAD_DIM;
}

static tcu_attention attention_of(const tcu_turn *u)
{
    const tcu_attn *a = &u->layer->attn;
    return (tcu_attention){ .n_heads = (int32_t)a->of->n_heads,
                            .n_kv_heads = (int32_t)a->of->n_kv_heads,
                            .d = a->d,
                            .window = (int32_t)a->of->window,
                            .sinks = a->sinks,
                            .scale = (float)(1.0 / sqrt((double)a->of->head_dim)),
                            .q = u->keep->at[Q],
                            .o = u->keep->at[O] };
}

/* a -> q and k or, with a cache, q alone. */
static bool make_heads(const tcu_turn *u, const tcu_bf16 *a, const tcu_paged *cache,
                       tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    const tcu_attn *x = &u->layer->attn;
    void *const *t = u->keep->at;
    tcu_heads heads = heads_of(u);
    tcu_any_heads any;
    tcu_lora p;
    if (is_any(u, &any))
        return tcu_group_forward(u, &x->qkv, a, t[LOW_QKV], t[QKV], err) &&
               tcu_ok(d, tcu_any_forward(&any, t[QKV], t[Q], t[K], cache, d->stream),
                      "the rotation", err);
    bool done;
    if (!tcu_group_once(u, &x->qkv, a, t[LOW_QKV], t[QKV], &done, err))
        return false;
    if (!done && cache && tcu_turn_fused(u) && x->d % 16 == 0)
        return tcu_group_halves(u, &x->qkv, a, t[LOW_QKV], &p, err) &&
               tcu_ok(d,
                      tcu_high_heads(&heads, &p, t[LOW_QKV], u->wide, x->qkv.bias, t[Q], cache,
                                     d->stream),
                      "the rotation", err);
    return (done || tcu_group_forward(u, &x->qkv, a, t[LOW_QKV], t[QKV], err)) &&
           tcu_ok(d, tcu_heads_forward(&heads, t[QKV], t[Q], t[K], cache, d->stream),
                  "the rotation", err);
}

static tcu_attention packed_of(const tcu_turn *u)
{
    const tcu_attn *a = &u->layer->attn;
    tcu_attention p = attention_of(u);
    void *const *t = u->keep->at;
    p.k = t[K];
    p.v = (tcu_bf16 *)t[QKV] + a->qkv.rows - a->k_width;
    p.ldk = a->k_width;
    p.ldv = a->qkv.rows;
    p.lse = t[LSE];
    p.spans = u->packed->spans;
    p.n_spans = u->packed->n_spans;
    p.grouped = u->packed->grouped;
    return p;
}

/* What o_proj reads: o, or with a gate o times its sigmoid. */
static const tcu_bf16 *gated(const tcu_turn *u, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    void *const *t = u->keep->at;
    tcu_any_heads any;
    if (!is_any(u, &any) || !any.gate)
        return t[O];
    return tcu_ok(d, tcu_gate(&any, t[QKV], t[O], u->work->at[GATED], d->stream), "a gate", err)
               ? u->work->at[GATED]
               : NULL;
}

static bool make_output(const tcu_turn *u, tcu_bf16 *y, tinkc_error *err)
{
    const tcu_linear *o = &u->layer->attn.o;
    void *const *t = u->keep->at;
    const tcu_bf16 *x = gated(u, err);
    return x && (y ? tcu_group_forward(u, o, x, t[LOW_O], y, err)
                   : tcu_group_low(u, o, x, t[LOW_O], err));
}

static bool forward(const tcu_turn *u, const tcu_bf16 *a, tcu_bf16 *y, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    tcu_attention p = packed_of(u);
    return make_heads(u, a, NULL, err) &&
           tcu_ok(d, tcu_attention_forward(&p, false, d->stream), "attention", err) &&
           make_output(u, y, err);
}

static bool step(const tcu_turn *u, const tcu_bf16 *a, tcu_bf16 *y, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    const tcu_cached *c = u->cached;
    tcu_attention p = attention_of(u);
    p.k = c->keys.data;
    p.v = c->keys.data + c->keys.values;
    p.ldk = p.ldv = c->keys.stride;
    p.tables = c->tables;
    p.spans = c->narrow;
    p.n_spans = c->n_narrow;
    if (!make_heads(u, a, &c->keys, err) ||
        !tcu_ok(d, tcu_attention_forward(&p, true, d->stream), "attention", err))
        return false;
    p.spans = c->wide;
    p.n_spans = c->n_wide;
    return tcu_ok(d, tcu_attention_forward(&p, false, d->stream), "attention", err) &&
           make_output(u, y, err);
}

/* ---- backward ---- */

/* dy -> d_o, and the gate's part of dqkv. */
static bool output_backward(const tcu_turn *u, const tcu_bf16 *dy, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    void *const *t = u->keep->at, *const *w = u->work->at;
    const tcu_bf16 *x = gated(u, err);
    tcu_any_heads any;
    is_any(u, &any);
    return x && tcu_group_back(u, &u->layer->attn.o, x, dy, t[LOW_O], false, w[D_O], err) &&
           (!any.gate || tcu_ok(d, tcu_gate_back(&any, t[QKV], t[O], w[D_O], w[DQKV], d->stream),
                                "a gate", err));
}

/* dq and dk, back through rotation and norm, go to dqkv. */
static bool heads_backward(const tcu_turn *u, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    void *const *t = u->keep->at, *const *w = u->work->at;
    tcu_any_heads any;
    int rc = is_any(u, &any)
                 ? tcu_any_back(&any, t[QKV], w[DQ], w[DK], w[DQKV], d->stream)
                 : tcu_heads_back(&any.h, t[QKV], w[DQ], w[DK], w[DQKV], d->stream);
    return tcu_ok(d, rc, "the rotation", err);
}

static bool backward(const tcu_turn *u, const tcu_bf16 *a, const tcu_bf16 *dy, tcu_bf16 *dx,
                     tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    const tcu_attn *x = &u->layer->attn;
    void *const *t = u->keep->at, *const *w = u->work->at;
    tcu_attention rows = packed_of(u), keys;
    rows.d_o = w[D_O];
    rows.delta = w[DELTA];
    rows.dq = w[DQ];
    rows.dk = w[DK];
    rows.dv = (tcu_bf16 *)w[DQKV] + x->qkv.rows - x->k_width;
    rows.lddv = x->qkv.rows;
    keys = rows;
    keys.spans = u->packed->key_spans;
    keys.n_spans = u->packed->n_key_spans;
    return output_backward(u, dy, err) &&
           tcu_ok(d,
                  tcu_attention_delta(w[D_O], t[O], w[DELTA],
                                      (int64_t)u->rows->n * rows.n_heads, rows.d, d->stream),
                  "attention delta", err) &&
           tcu_ok(d, tcu_attention_dq(&rows, d->stream), "attention dq", err) &&
           tcu_ok(d, tcu_attention_dkv(&keys, d->stream), "attention dk, dv", err) &&
           heads_backward(u, err) && tcu_group_back(u, &x->qkv, a, w[DQKV], t[LOW_QKV], false, dx, err);
}

const tcu_part tcu_part_attention = { .runs = runs,
                                      .weights = weights,
                                      .keep = keep,
                                      .work = work,
                                      .forward = forward,
                                      .backward = backward,
                                      .step = step,
                                      .cache_numbers = cache_numbers };
