/* block.c - norms, projections with adapters, rotation, SwiGLU: a block without its attention.
 *
 * May touch: the buffers it is given. Must not: do anything that depends on which rows share a
 * call.
 */
#include "model/block.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { CALLS = 64 }; /* products handed over at once */

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

size_t tke_head_group(const tke_model *m)
{
    return tke_model_config(m)->n_layers * TKE_GROUPS;
}

/* low[rows of segment] = A x */
static void add_low(calls *c, const tke_segment *s, const tke_lora_group *g, const tke_real *x,
                    tke_real *low, size_t ld)
{
    assert(low && g->n * g->rank <= ld); /* max_rank is the largest of all segments */
    add_call(c, &(tke_gemm){ .form = TKE_NT,
                             .m = (int64_t)(s->end - s->begin),
                             .n = (int64_t)(g->n * g->rank),
                             .k = (int64_t)g->in,
                             .alpha = 1,
                             .a = x + s->begin * g->in,
                             .lda = (int64_t)g->in,
                             .b = tke_matrix_real(s->lora->weights + g->a, (int64_t)g->in),
                             .c = low + s->begin * ld,
                             .ldc = (int64_t)ld });
}

/* y[rows of segment] += scale B low */
static void add_high(calls *c, const tke_segment *s, const tke_lora_group *g, size_t i,
                     const tke_real *low, size_t ld, tke_real *y)
{
    add_call(c, &(tke_gemm){ .form = TKE_NT,
                             .accumulate = true,
                             .m = (int64_t)(s->end - s->begin),
                             .n = (int64_t)g->out[i],
                             .k = (int64_t)g->rank,
                             .alpha = s->lora->scale,
                             .a = low + s->begin * ld + i * g->rank,
                             .lda = (int64_t)ld,
                             .b = tke_matrix_real(s->lora->weights + g->b[i], (int64_t)g->rank),
                             .c = y + s->begin * g->out[i],
                             .ldc = (int64_t)g->out[i] });
}

static void add_base(calls *c, const tke_rows *r, const tke_weight *w, const tke_real *x,
                     tke_real *y)
{
    if (w->bias)
        tke_fill_rows(r->cpu, (int64_t)r->n, (int64_t)w->out,
                      tke_matrix_real(w->bias, (int64_t)w->out), y, (int64_t)w->out);
    add_call(c, &(tke_gemm){ .form = TKE_NT,
                             .accumulate = w->bias != NULL,
                             .m = (int64_t)r->n,
                             .n = (int64_t)w->out,
                             .k = (int64_t)w->in,
                             .alpha = 1,
                             .a = x,
                             .lda = (int64_t)w->in,
                             .b = w->m,
                             .c = y,
                             .ldc = (int64_t)w->out });
}

static const tke_lora_group *group_of(const tke_segment *s, size_t group)
{
    assert(s->begin <= s->end && (!s->lora || group < s->lora->layout->n_groups));
    const tke_lora_group *g = s->lora ? &s->lora->layout->groups[group] : NULL;
    return g && g->n ? g : NULL;
}

void tke_group_forward(const tke_rows *r, const tke_weight *w, size_t n, size_t group,
                       const tke_real *x, tke_real *const *y, tke_real *low)
{
    calls c = { .cpu = r->cpu };
    size_t ld = n * r->max_rank;
    assert(n >= 1 && n <= TKE_GROUP_MAX);
    for (size_t i = 0; i < n; i++)
        add_base(&c, r, &w[i], x, y[i]);
    for (size_t s = 0; s < r->n_segments; s++) {
        const tke_lora_group *g = group_of(&r->segments[s], group);
        if (g)
            add_low(&c, &r->segments[s], g, x, low, ld);
    }
    flush(&c);
    for (size_t s = 0; s < r->n_segments; s++) {
        const tke_lora_group *g = group_of(&r->segments[s], group);
        assert(!g || g->n == n);
        for (size_t i = 0; g && i < n; i++)
            add_high(&c, &r->segments[s], g, i, low, ld, y[i]);
    }
    flush(&c);
}

void tke_group_low(const tke_rows *r, size_t n, size_t group, const tke_real *x, tke_real *low)
{
    calls c = { .cpu = r->cpu };
    for (size_t s = 0; s < r->n_segments; s++) {
        const tke_lora_group *g = group_of(&r->segments[s], group);
        if (g)
            add_low(&c, &r->segments[s], g, x, low, n * r->max_rank);
    }
    flush(&c);
}

/* Norm (where the model has one) and rotation of queries or keys. */
static void finish_heads(const tke_rows *r, size_t heads, const tke_real *norm, const tke_real *pre,
                         tke_real *x)
{
    const tke_config *c = tke_model_config(r->model);
    int64_t d = (int64_t)c->head_dim, n = (int64_t)r->n, h = (int64_t)heads;
    if (norm)
        tke_rmsnorm(r->cpu, n * h, d, pre, tke_matrix_real(norm, d), (tke_real)c->rms_eps, x);
    tke_rope(r->cpu, n, h, d, r->positions, r->cos_table, r->sin_table, false, x, h * d);
}

void tke_block_before_attention(const tke_rows *r, size_t layer, const tke_real *h, tke_acts *t)
{
    const tke_config *c = tke_model_config(r->model);
    const tke_layer *l = tke_model_layer(r->model, layer);
    int64_t width = (int64_t)c->hidden;
    bool norm = l->q_norm != NULL;
    assert(r->n > 0 && norm == (l->k_norm != NULL) && h != t->a);
    tke_real *y[3] = { norm ? t->q_pre : t->q, norm ? t->k_pre : t->k, t->v };
    tke_rmsnorm(r->cpu, (int64_t)r->n, width, h, tke_matrix_real(l->norm_in, width),
                (tke_real)c->rms_eps, t->a);
    tke_group_forward(r, &l->module[TKE_Q], 3, tke_group_index(layer, TKE_GROUP_QKV), t->a, y,
                      t->low[TKE_GROUP_QKV]);
    finish_heads(r, c->n_heads, l->q_norm, t->q_pre, t->q);
    finish_heads(r, c->n_kv_heads, l->k_norm, t->k_pre, t->k);
}

void tke_block_after_attention(const tke_rows *r, size_t layer, const tke_real *h, tke_acts *t,
                               tke_real *h_out)
{
    const tke_config *c = tke_model_config(r->model);
    const tke_layer *l = tke_model_layer(r->model, layer);
    int64_t width = (int64_t)c->hidden, count = (int64_t)(r->n * c->hidden);
    tke_real *gu[2] = { t->g, t->u };
    assert(h != t->h_mid && h_out != t->h_mid);

    tke_group_forward(r, &l->module[TKE_O], 1, tke_group_index(layer, TKE_GROUP_O), t->o, &t->h_mid,
                      t->low[TKE_GROUP_O]);
    tke_add(r->cpu, count, h, t->h_mid);
    tke_rmsnorm(r->cpu, (int64_t)r->n, width, t->h_mid, tke_matrix_real(l->norm_post, width),
                (tke_real)c->rms_eps, t->b);
    tke_group_forward(r, &l->module[TKE_GATE], 2, tke_group_index(layer, TKE_GROUP_GATE_UP), t->b,
                      gu, t->low[TKE_GROUP_GATE_UP]);
    tke_swiglu(r->cpu, (int64_t)(r->n * c->inner), t->g, t->u, t->m);
    if (!h_out) {
        tke_group_low(r, 1, tke_group_index(layer, TKE_GROUP_DOWN), t->m, t->low[TKE_GROUP_DOWN]);
        return;
    }
    tke_group_forward(r, &l->module[TKE_DOWN], 1, tke_group_index(layer, TKE_GROUP_DOWN), t->m,
                      &h_out, t->low[TKE_GROUP_DOWN]);
    tke_add(r->cpu, count, t->h_mid, h_out);
}

tke_attention tke_block_attention(const tke_model *m, size_t layer)
{
    const tke_config *c = tke_model_config(m);
    return (tke_attention){ .n_heads = (int32_t)c->n_heads,
                            .n_kv_heads = (int32_t)c->n_kv_heads,
                            .head_dim = (int32_t)c->head_dim,
                            .window = (int64_t)tke_model_layer(m, layer)->window,
                            .scale = (tke_real)(1.0 / sqrt((double)c->head_dim)) };
}

/* ---- rotation tables ---- */

bool tke_rope_table_grow(tke_rope_table *t, const tke_config *c, size_t n, tinkc_error *err)
{
    enum { STEP = 1024, MAX_HALF = 2048 };
    size_t half = c->head_dim / 2, want = (n + STEP - 1) / STEP * STEP;
    double frequency[MAX_HALF], scale;
    assert(half > 0 && half <= MAX_HALF);
    if (n <= t->n)
        return true;
    tke_real *block = tkc_alloc_aligned(64, 2 * want * half * sizeof *block, err);
    if (!block)
        return false;
    tke_real *sines = block + want * half;
    tke_rope_frequencies(c, frequency, &scale);
    for (size_t p = 0; p < want; p++)
        for (size_t j = 0; j < half; j++) {
            double angle = (double)p * frequency[j];
            block[p * half + j] = (tke_real)(cos(angle) * scale);
            sines[p * half + j] = (tke_real)(sin(angle) * scale);
        }
    assert(want >= n);
    tke_rope_table_free(t);
    *t = (tke_rope_table){ block, sines, want };
    return true;
}

void tke_rope_table_free(tke_rope_table *t)
{
    tkc_release_aligned(t->cos_table);
    *t = (tke_rope_table){ 0 };
}
