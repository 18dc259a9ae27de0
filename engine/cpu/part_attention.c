/* part_attention.c - causal attention with grouped heads: norms of q and k, rotation, windows.
 *
 * Training attends within packed sequences, decoding over the paged cache; the kernels give both
 * the same bits. May touch: its slots and the cache.
 */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "cpu/part.h"

/* kept: after norm and rotation, before the norm (if there is one), the output, its log-sum-exp,
 * A x of the groups */
enum { Q, K, V, Q_PRE, K_PRE, O, LSE, LOW_QKV, LOW_O, GATE };
/* work: with a gate also q_proj's rows, queries and gates by heads, and the gated output */
enum { D_O, DQ, DK, DV, DELTA, BOTH, GATED };

static void keep(tke_walk *w, const tke_layer *l, const tke_microbatch_size *size, tke_slots *t)
{
    const tke_attn *a = l->attn;
    size_t n = size->n, qd = n * a->n_heads * a->head_dim, kd = n * a->n_kv_heads * a->head_dim;
    tke_take(w, &t->at[Q], qd);
    tke_take(w, &t->at[K], kd);
    tke_take(w, &t->at[V], kd);
    if (a->q_norm) {
        tke_take(w, &t->at[Q_PRE], qd);
        tke_take(w, &t->at[K_PRE], kd);
    }
    tke_take(w, &t->at[O], qd);
    tke_take(w, &t->at[LSE], n * a->n_heads);
    tke_take(w, &t->at[LOW_QKV], n * size->max_rank * a->qkv->n);
    tke_take(w, &t->at[LOW_O], n * size->max_rank * a->o->n);
    tke_take(w, &t->at[GATE], a->gate ? qd : 0);
}

static void work(tke_walk *w, const tke_layer *l, const tke_microbatch_size *size, tke_slots *t)
{
    const tke_attn *a = l->attn;
    size_t n = size->n, qd = n * a->n_heads * a->head_dim, kd = n * a->n_kv_heads * a->head_dim;
    tke_take(w, &t->at[BOTH], a->gate ? 2 * qd : 0);
    tke_take(w, &t->at[GATED], a->gate ? qd : 0);
    if (size->depth != TKE_DEPTH_ALL)
        return;
    tke_take(w, &t->at[D_O], qd);
    tke_take(w, &t->at[DQ], qd);
    tke_take(w, &t->at[DK], kd);
    tke_take(w, &t->at[DV], kd);
    tke_take(w, &t->at[DELTA], n * a->n_heads);
}

static tke_attention shape_of(const tke_attn *a)
{
    return (tke_attention){ .n_heads = (int32_t)a->n_heads,
                            .n_kv_heads = (int32_t)a->n_kv_heads,
                            .head_dim = (int32_t)a->head_dim,
                            .window = (int64_t)a->window,
                            .scale = (tke_real)(1.0 / sqrt((double)a->head_dim)),
                            .sinks = a->sinks };
}

/* ---- the gate: q_proj has d rows of the query and d of the gate for each head ---- */

static void split_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    const tke_attn *a = u->layer->attn;
    size_t d = a->head_dim, heads = a->n_heads, row = (size_t)task * heads * d;
    tke_real *query = u->keep->at[a->q_norm ? Q_PRE : Q] + row, *gate = u->keep->at[GATE] + row;
    const tke_real *both = u->work->at[BOTH] + 2 * row;
    (void)worker;
    for (size_t h = 0; h < heads; h++) {
        memcpy(query + h * d, both + 2 * h * d, d * sizeof *both);
        memcpy(gate + h * d, both + (2 * h + 1) * d, d * sizeof *both);
    }
}

static void gate_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    size_t width = u->layer->attn->n_heads * u->layer->attn->head_dim, row = (size_t)task * width;
    const tke_real *o = u->keep->at[O] + row, *gate = u->keep->at[GATE] + row;
    tke_real *out = u->work->at[GATED] + row;
    (void)worker;
    for (size_t i = 0; i < width; i++)
        out[i] = o[i] / (1 + tke_real_exp(-gate[i]));
}

/* The gradient of the gated output (in D_O) to those of o (in its place) and of the gate (GATED). */
static void gate_backward_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    size_t width = u->layer->attn->n_heads * u->layer->attn->head_dim, row = (size_t)task * width;
    const tke_real *o = u->keep->at[O] + row, *gate = u->keep->at[GATE] + row;
    tke_real *d_o = u->work->at[D_O] + row, *out = u->work->at[GATED] + row;
    (void)worker;
    for (size_t i = 0; i < width; i++) {
        tke_real open = 1 / (1 + tke_real_exp(-gate[i]));
        out[i] = d_o[i] * o[i] * (open * (1 - open));
        d_o[i] *= open;
    }
}

static void join_task(void *arg, int64_t task, int32_t worker)
{
    const tke_turn *u = arg;
    const tke_attn *a = u->layer->attn;
    size_t d = a->head_dim, heads = a->n_heads, row = (size_t)task * heads * d;
    const tke_real *query = u->work->at[DQ] + row, *gate = u->work->at[GATED] + row;
    tke_real *both = u->work->at[BOTH] + 2 * row;
    (void)worker;
    for (size_t h = 0; h < heads; h++) {
        memcpy(both + 2 * h * d, query + h * d, d * sizeof *both);
        memcpy(both + (2 * h + 1) * d, gate + h * d, d * sizeof *both);
    }
}

/* ---- forward ---- */

/* Where only a part of each head rotates, heads are taken one by one. */
static void rotate(const tke_turn *u, size_t heads, bool inverse, tke_real *x)
{
    const tke_rows *r = u->rows;
    size_t d = u->layer->attn->head_dim, part = r->model->config.rotary;
    int64_t n = (int64_t)r->n, ld = (int64_t)(heads * d);
    if (part == 0)
        return;
    if (part == d)
        tke_rope(r->cpu, n, (int64_t)heads, (int64_t)d, r->positions, r->cos_table, r->sin_table,
                 inverse, x, ld);
    for (size_t h = 0; part < d && h < heads; h++)
        tke_rope(r->cpu, n, 1, (int64_t)part, r->positions, r->cos_table, r->sin_table, inverse,
                 x + h * d, ld);
}

/* Norm (where the model has one) and rotation of queries or keys. */
static void finish_heads(const tke_turn *u, size_t heads, const tke_real *norm, const tke_real *pre,
                         tke_real *x)
{
    const tke_rows *r = u->rows;
    int64_t d = (int64_t)u->layer->attn->head_dim, n = (int64_t)r->n, h = (int64_t)heads;
    if (norm)
        tke_rmsnorm(r->cpu, n * h, d, pre, tke_matrix_real(norm, d),
                    (tke_real)r->model->config.rms_eps, x);
    rotate(u, heads, false, x);
}

static void make_qkv(const tke_turn *u, const tke_real *x)
{
    const tke_attn *a = u->layer->attn;
    tke_real *const *t = u->keep->at;
    bool norm = a->q_norm != NULL;
    assert(u->rows->n > 0 && norm == (a->k_norm != NULL));
    tke_real *y[3] = { a->gate ? u->work->at[BOTH]
                       : norm  ? t[Q_PRE]
                               : t[Q],
                       norm ? t[K_PRE] : t[K], t[V] };
    tke_group_forward(u->rows, a->qkv, x, y, t[LOW_QKV]);
    if (a->gate)
        tke_turn_spread(u, u->rows->n, split_task);
    finish_heads(u, a->n_heads, a->q_norm, t[Q_PRE], t[Q]);
    finish_heads(u, a->n_kv_heads, a->k_norm, t[K_PRE], t[K]);
}

static void make_output(const tke_turn *u, tke_real *y)
{
    const tke_attn *a = u->layer->attn;
    tke_real *const *t = u->keep->at, *o = a->gate ? u->work->at[GATED] : t[O];
    if (a->gate)
        tke_turn_spread(u, u->rows->n, gate_task);
    if (y)
        tke_group_forward(u->rows, a->o, o, &y, t[LOW_O]);
    else
        tke_group_low(u->rows, a->o, o, t[LOW_O]);
}

static void forward(const tke_turn *u, const tke_real *x, tke_real *y)
{
    tke_attention shape = shape_of(u->layer->attn);
    tke_real *const *t = u->keep->at;
    make_qkv(u, x);
    tke_attention_forward(u->rows->cpu, &shape, (int64_t)u->n_seqs, u->starts, t[Q], t[K], t[V],
                          t[O], t[LSE]);
    make_output(u, y);
}

static void step(const tke_turn *u, const tke_real *x, tke_real *y)
{
    tke_attention shape = shape_of(u->layer->attn);
    tke_real *const *t = u->keep->at;
    int64_t n_seqs = (int64_t)u->n_seqs;
    make_qkv(u, x);
    tke_kv_store(u->rows->cpu, &shape, &u->cache, n_seqs, u->seqs, t[K], t[V]);
    tke_attention_cached(u->rows->cpu, &shape, &u->cache, n_seqs, u->seqs, t[Q], t[O]);
    make_output(u, y);
}

/* ---- backward ---- */

/* Gradients of rotated heads back through rotation and norm, in place. */
static void heads_backward(const tke_turn *u, size_t heads, const tke_real *norm,
                           const tke_real *pre, tke_real *dx)
{
    const tke_rows *r = u->rows;
    int64_t d = (int64_t)u->layer->attn->head_dim, n = (int64_t)r->n, h = (int64_t)heads;
    rotate(u, heads, true, dx);
    if (norm)
        tke_rmsnorm_backward(r->cpu, n * h, d, pre, tke_matrix_real(norm, d),
                             (tke_real)r->model->config.rms_eps, dx, dx, false);
}

static void backward(const tke_turn *u, const tke_real *x, const tke_real *dy, tke_real *dx)
{
    const tke_attn *a = u->layer->attn;
    tke_real *const *t = u->keep->at, *const *w = u->work->at;
    tke_attention shape = shape_of(a);
    const tke_real *dqkv[3] = { a->gate ? w[BOTH] : w[DQ], w[DK], w[DV] };
    tke_attention_grads g = { .q = t[Q],
                              .k = t[K],
                              .v = t[V],
                              .o = t[O],
                              .lse = t[LSE],
                              .d_o = w[D_O],
                              .dq = w[DQ],
                              .dk = w[DK],
                              .dv = w[DV],
                              .delta = w[DELTA] };
    if (a->gate)
        tke_turn_spread(u, u->rows->n, gate_task);
    tke_group_backward(u->rows, a->o, a->gate ? w[GATED] : t[O], &dy, t[LOW_O], u->dlow, w[D_O]);
    if (a->gate)
        tke_turn_spread(u, u->rows->n, gate_backward_task);
    tke_attention_backward(u->rows->cpu, &shape, (int64_t)u->n_seqs, u->starts, &g);
    heads_backward(u, a->n_heads, a->q_norm, t[Q_PRE], w[DQ]);
    heads_backward(u, a->n_kv_heads, a->k_norm, t[K_PRE], w[DK]);
    if (a->gate)
        tke_turn_spread(u, u->rows->n, join_task);
    tke_group_backward(u->rows, a->qkv, x, dqkv, t[LOW_QKV], u->dlow, dx);
}

static size_t cache_reals(const tke_layer *l)
{
    return TKE_BLOCK_TOKENS * 2 * l->attn->n_kv_heads * l->attn->head_dim;
}

const tke_part tke_part_attention = { .keep = keep,
                                      .work = work,
                                      .forward = forward,
                                      .backward = backward,
                                      .step = step,
                                      .cache_reals = cache_reals };
