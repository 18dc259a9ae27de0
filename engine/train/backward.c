/* backward.c - gradients through linear layers with adapters and through the blocks.
 *
 * May touch: the unit's buffers and the gradient blocks of its segments. Must not: read losses.
 * Sums over tokens run in the order of the rows, so that the bits of an adapter's gradient do not
 * depend on how requests were cut into units.
 */
#include <assert.h>
#include <stdatomic.h>
#include <string.h>
#include "train/microbatch.h"

enum { CALLS = 64 };

typedef struct calls {
    tke_cpu *cpu;
    tke_gemm list[CALLS];
    size_t n;
} calls;

static void flush(calls *c)
{
    if (c->n)
        tke_gemm_run_all(c->cpu, c->list, c->n);
    c->n = 0;
}

static void add_call(calls *c, const tke_gemm *g)
{
    assert(c->n < CALLS);
    c->list[c->n++] = *g;
    if (c->n == CALLS)
        flush(c);
}

static const tke_lora_group *group_of(const tke_segment *s, size_t group)
{
    assert(s->begin <= s->end && (!s->lora || group < s->lora->layout->n_groups));
    const tke_lora_group *g = s->lora ? &s->lora->layout->groups[group] : NULL;
    return g && g->n ? g : NULL;
}

/* dlow_i = scale dy_i B_i */
static void add_dlow(calls *c, const tke_segment *s, const tke_lora_group *g, size_t i,
                     const tke_real *dy, tke_real *dlow, size_t ld)
{
    add_call(c, &(tke_gemm){ .form = TKE_NN,
                             .m = (int64_t)(s->end - s->begin),
                             .n = (int64_t)g->rank,
                             .k = (int64_t)g->out[i],
                             .alpha = s->lora->scale,
                             .a = dy + s->begin * g->out[i],
                             .lda = (int64_t)g->out[i],
                             .b = tke_matrix_real(s->lora->weights + g->b[i], (int64_t)g->rank),
                             .c = dlow + s->begin * ld + i * g->rank,
                             .ldc = (int64_t)ld });
}

/* dB_i += scale dy_i^T low_i */
static void add_db(calls *c, const tke_segment *s, const tke_lora_group *g, size_t i,
                   const tke_real *dy, const tke_real *low, size_t ld, tke_real *grads)
{
    add_call(c, &(tke_gemm){ .form = TKE_TN,
                             .accumulate = true,
                             .m = (int64_t)g->out[i],
                             .n = (int64_t)g->rank,
                             .k = (int64_t)(s->end - s->begin),
                             .alpha = s->lora->scale,
                             .a = dy + s->begin * g->out[i],
                             .lda = (int64_t)g->out[i],
                             .b = tke_matrix_real(low + s->begin * ld + i * g->rank, (int64_t)ld),
                             .c = grads + g->b[i],
                             .ldc = (int64_t)g->rank });
}

/* dA += dlow^T x, all matrices of the group at once */
static void add_da(calls *c, const tke_segment *s, const tke_lora_group *g, const tke_real *x,
                   const tke_real *dlow, size_t ld, tke_real *grads)
{
    add_call(c, &(tke_gemm){ .form = TKE_TN,
                             .accumulate = true,
                             .m = (int64_t)(g->n * g->rank),
                             .n = (int64_t)g->in,
                             .k = (int64_t)(s->end - s->begin),
                             .alpha = 1,
                             .a = dlow + s->begin * ld,
                             .lda = (int64_t)ld,
                             .b = tke_matrix_real(x + s->begin * g->in, (int64_t)g->in),
                             .c = grads + g->a,
                             .ldc = (int64_t)g->in });
}

/* dx += dlow A */
static void add_dx_low(calls *c, const tke_segment *s, const tke_lora_group *g,
                       const tke_real *dlow, size_t ld, tke_real *dx)
{
    add_call(c, &(tke_gemm){ .form = TKE_NN,
                             .accumulate = true,
                             .m = (int64_t)(s->end - s->begin),
                             .n = (int64_t)g->in,
                             .k = (int64_t)(g->n * g->rank),
                             .alpha = 1,
                             .a = dlow + s->begin * ld,
                             .lda = (int64_t)ld,
                             .b = tke_matrix_real(s->lora->weights + g->a, (int64_t)g->in),
                             .c = dx + s->begin * g->in,
                             .ldc = (int64_t)g->in });
}

static void add_base(calls *c, const tke_rows *r, const tke_weight *w, const tke_real *dy,
                     tke_real *dx, bool accumulate)
{
    add_call(c, &(tke_gemm){ .form = TKE_NN,
                             .accumulate = accumulate,
                             .m = (int64_t)r->n,
                             .n = (int64_t)w->in,
                             .k = (int64_t)w->out,
                             .alpha = 1,
                             .a = dy,
                             .lda = (int64_t)w->out,
                             .b = w->m,
                             .c = dx,
                             .ldc = (int64_t)w->in });
}

void tke_group_backward(const tke_rows *r, tke_real *const *grads, const tke_weight *w, size_t n,
                        size_t group, const tke_real *x, const tke_real *const *dy,
                        const tke_real *low, tke_real *dlow, tke_real *dx)
{
    calls c = { .cpu = r->cpu };
    size_t ld = n * r->max_rank;
    assert(n >= 1 && n <= TKE_GROUP_MAX && low != dlow);
    for (size_t s = 0; s < r->n_segments; s++) {
        const tke_lora_group *g = group_of(&r->segments[s], group);
        assert(!g || (g->n == n && g->rank <= r->max_rank));
        for (size_t i = 0; g && i < n; i++) {
            add_dlow(&c, &r->segments[s], g, i, dy[i], dlow, ld);
            if (grads[s])
                add_db(&c, &r->segments[s], g, i, dy[i], low, ld, grads[s]);
        }
    }
    flush(&c);
    for (size_t s = 0; s < r->n_segments; s++) {
        const tke_lora_group *g = group_of(&r->segments[s], group);
        if (g && grads[s])
            add_da(&c, &r->segments[s], g, x, dlow, ld, grads[s]);
    }
    flush(&c); /* before dx, which may lie where x is */
    if (!dx)
        return;
    for (size_t i = 0; i < n; i++) {
        add_base(&c, r, &w[i], dy[i], dx, i > 0);
        flush(&c); /* each adds to the one before */
    }
    for (size_t s = 0; s < r->n_segments; s++) {
        const tke_lora_group *g = group_of(&r->segments[s], group);
        if (g)
            add_dx_low(&c, &r->segments[s], g, dlow, ld, dx);
    }
    flush(&c);
}

/* ---- blocks ---- */

/* dh (of the layer's output) -> dh (of h_mid). */
static void mlp_backward(tke_microbatch *u, size_t layer, tke_acts *t)
{
    const tke_rows *r = &u->rows;
    const tke_config *c = tke_model_config(r->model);
    const tke_layer *l = tke_model_layer(r->model, layer);
    int64_t n = (int64_t)r->n, width = (int64_t)c->hidden;
    const tke_real *dy = u->dh;
    const tke_real *dgu[2] = { t->g, t->u };
    bool lowest = layer == 0 && !u->attn; /* nothing below wants a gradient */

    tke_swiglu(r->cpu, n * (int64_t)c->inner, t->g, t->u, t->m);
    tke_group_backward(r, u->grads, &l->module[TKE_DOWN], 1, tke_group_index(layer, TKE_GROUP_DOWN),
                       t->m, &dy, t->low[TKE_GROUP_DOWN], u->dlow, t->m); /* m becomes dm */
    tke_swiglu_backward(r->cpu, n * (int64_t)c->inner, t->g, t->u, t->m, t->g, t->u);
    tke_rmsnorm(r->cpu, n, width, t->h_mid, tke_matrix_real(l->norm_post, width),
                (tke_real)c->rms_eps, t->b);
    tke_group_backward(r, u->grads, &l->module[TKE_GATE], 2,
                       tke_group_index(layer, TKE_GROUP_GATE_UP), t->b, dgu,
                       t->low[TKE_GROUP_GATE_UP], u->dlow, lowest ? NULL : u->tmp);
    if (!lowest)
        tke_rmsnorm_backward(r->cpu, n, width, t->h_mid, tke_matrix_real(l->norm_post, width),
                             (tke_real)c->rms_eps, u->tmp, u->dh, true);
}

/* Gradients of rotated heads back through rotation and norm, in place. */
static void heads_backward(tke_microbatch *u, size_t heads, const tke_real *norm,
                           const tke_real *pre, tke_real *dx)
{
    const tke_rows *r = &u->rows;
    const tke_config *c = tke_model_config(r->model);
    int64_t d = (int64_t)c->head_dim, n = (int64_t)r->n, h = (int64_t)heads;
    tke_rope(r->cpu, n, h, d, r->positions, r->cos_table, r->sin_table, true, dx, h * d);
    if (norm)
        tke_rmsnorm_backward(r->cpu, n * h, d, pre, tke_matrix_real(norm, d), (tke_real)c->rms_eps,
                             dx, dx, false);
}

/* dh (of h_mid) -> dh (of the layer's input). */
static void attention_backward(tke_microbatch *u, size_t layer, tke_acts *t)
{
    const tke_rows *r = &u->rows;
    const tke_config *c = tke_model_config(r->model);
    const tke_layer *l = tke_model_layer(r->model, layer);
    int64_t n = (int64_t)r->n, width = (int64_t)c->hidden;
    tke_attention shape = tke_block_attention(r->model, layer);
    const tke_real *dy = u->dh;
    const tke_real *dqkv[3] = { u->dq, u->dk, u->dv };
    tke_attention_grads a = { .q = t->q,
                              .k = t->k,
                              .v = t->v,
                              .o = t->o,
                              .lse = t->lse,
                              .d_o = u->d_o,
                              .dq = u->dq,
                              .dk = u->dk,
                              .dv = u->dv,
                              .delta = u->delta };

    tke_group_backward(r, u->grads, &l->module[TKE_O], 1, tke_group_index(layer, TKE_GROUP_O), t->o,
                       &dy, t->low[TKE_GROUP_O], u->dlow, u->d_o);
    tke_attention_backward(r->cpu, &shape, (int64_t)u->n_items, u->starts, &a);
    heads_backward(u, c->n_heads, l->q_norm, t->q_pre, u->dq);
    heads_backward(u, c->n_kv_heads, l->k_norm, t->k_pre, u->dk);
    tke_rmsnorm(r->cpu, n, width, u->h_in[layer], tke_matrix_real(l->norm_in, width),
                (tke_real)c->rms_eps, t->a);
    tke_group_backward(r, u->grads, &l->module[TKE_Q], 3, tke_group_index(layer, TKE_GROUP_QKV),
                       t->a, dqkv, t->low[TKE_GROUP_QKV], u->dlow, layer ? u->tmp : NULL);
    assert(u->attn || layer); /* else nobody asked */
    if (layer)
        tke_rmsnorm_backward(r->cpu, n, width, u->h_in[layer], tke_matrix_real(l->norm_in, width),
                             (tke_real)c->rms_eps, u->tmp, u->dh, true);
}

bool tke_microbatch_backward(tke_microbatch *u)
{
    size_t n_layers = tke_model_config(u->rows.model)->n_layers;
    assert(u->depth == TKE_DEPTH_ALL && u->dh);
    for (size_t i = n_layers; i-- > 0;) {
        if (u->stop && atomic_load_explicit(u->stop, memory_order_relaxed))
            return false;
        tke_acts *t = tke_microbatch_acts(u, i);
        if (i + u->n_kept + 1 < n_layers) /* the last that was computed is still there */
            tke_microbatch_layer(u, i, u->h_in[i], NULL);
        mlp_backward(u, i, t);
        if (i || u->attn)
            attention_backward(u, i, t);
    }
    return true;
}
