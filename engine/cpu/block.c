/* block.c - the parts of a transformer that training and sampling share: a block without its
 * attention, the logits, rotation tables.
 *
 * May touch: the buffers it is given. Must not: compute anything that depends on which rows share
 * a call.
 */
#include "cpu/block.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/mem.h"

void tke_take(tke_walk *w, tke_real **out, size_t count)
{
    enum { PAD = 16 };
    if (w->at)
        *out = w->at + w->used;
    w->used += (count + PAD - 1) / PAD * PAD;
}

size_t tke_chunk_rows(const tke_model *m, size_t least, size_t most, size_t n)
{
    enum { CHUNK_REALS = 8 << 20 };
    size_t rows = CHUNK_REALS / m->config.vocab;
    rows = rows > most ? most : rows < least ? least : rows;
    return rows < n ? rows : n;
}

/* ---- norms ---- */

void tke_rows_norm(const tke_rows *r, size_t n, const tke_real *x, const tke_real *w, tke_real *y)
{
    const tke_config *c = &r->model->config;
    tke_rmsnorm(r->cpu, (int64_t)n, (int64_t)c->hidden, x, tke_matrix_real(w, (int64_t)c->hidden),
                (tke_real)c->rms_eps, y);
}

void tke_rows_norm_backward(const tke_rows *r, size_t n, const tke_real *x, const tke_real *w,
                            const tke_real *dy, tke_real *dh, bool accumulate)
{
    const tke_config *c = &r->model->config;
    tke_rmsnorm_backward(r->cpu, (int64_t)n, (int64_t)c->hidden, x,
                         tke_matrix_real(w, (int64_t)c->hidden), (tke_real)c->rms_eps, dy, dh,
                         accumulate);
}

/* Norm (where the model has one) and rotation of queries or keys. */
static void finish_heads(const tke_rows *r, size_t heads, const tke_real *norm, const tke_real *pre,
                         tke_real *x)
{
    const tke_config *c = &r->model->config;
    int64_t d = (int64_t)c->head_dim, n = (int64_t)r->n, h = (int64_t)heads;
    if (norm)
        tke_rmsnorm(r->cpu, n * h, d, pre, tke_matrix_real(norm, d), (tke_real)c->rms_eps, x);
    tke_rope(r->cpu, n, h, d, r->positions, r->cos_table, r->sin_table, false, x, h * d);
}

/* ---- a block ---- */

void tke_block_before_attention(const tke_rows *r, size_t layer, const tke_real *h, tke_acts *t)
{
    const tke_config *c = &r->model->config;
    const tke_layer *l = &r->model->layers[layer];
    bool norm = l->q_norm != NULL;
    assert(r->n > 0 && norm == (l->k_norm != NULL) && h != t->a);
    tke_real *y[3] = { norm ? t->q_pre : t->q, norm ? t->k_pre : t->k, t->v };
    tke_rows_norm(r, r->n, h, l->norm_in, t->a);
    tke_group_forward(r, l->qkv, t->a, y, t->low[l->qkv->slot]);
    finish_heads(r, c->n_heads, l->q_norm, t->q_pre, t->q);
    finish_heads(r, c->n_kv_heads, l->k_norm, t->k_pre, t->k);
}

void tke_block_after_attention(const tke_rows *r, size_t layer, const tke_real *h, tke_acts *t,
                               tke_real *h_out)
{
    const tke_config *c = &r->model->config;
    const tke_layer *l = &r->model->layers[layer];
    int64_t count = (int64_t)(r->n * c->hidden);
    tke_real *gu[2] = { t->g, t->u };
    assert(h != t->h_mid && h_out != t->h_mid);

    tke_group_forward(r, l->o, t->o, &t->h_mid, t->low[l->o->slot]);
    tke_add(r->cpu, count, h, t->h_mid);
    tke_rows_norm(r, r->n, t->h_mid, l->norm_post, t->b);
    tke_group_forward(r, l->gate_up, t->b, gu, t->low[l->gate_up->slot]);
    tke_swiglu(r->cpu, (int64_t)(r->n * c->inner), t->g, t->u, t->m);
    if (!h_out) {
        tke_group_low(r, l->down, t->m, t->low[l->down->slot]);
        return;
    }
    tke_group_forward(r, l->down, t->m, &h_out, t->low[l->down->slot]);
    tke_add(r->cpu, count, t->h_mid, h_out);
}

tke_attention tke_block_attention(const tke_model *m, size_t layer)
{
    const tke_config *c = &m->config;
    return (tke_attention){ .n_heads = (int32_t)c->n_heads,
                            .n_kv_heads = (int32_t)c->n_kv_heads,
                            .head_dim = (int32_t)c->head_dim,
                            .window = (int64_t)m->layers[layer].window,
                            .scale = (tke_real)(1.0 / sqrt((double)c->head_dim)) };
}

/* ---- logits ---- */

void tke_rows_logits(const tke_rows *r, const tke_real *h, const tke_logits *out)
{
    int64_t n = (int64_t)r->n, vocab = (int64_t)r->model->config.vocab;
    tke_rows_norm(r, r->n, h, r->model->norm, out->hf);
    tke_group_forward(r, &r->model->head, out->hf, (tke_real *const *)&out->z, out->low);
    tke_lse_start(n, out->max, out->sum);
    tke_lse_update(r->cpu, n, vocab, out->z, vocab, out->max, out->sum);
}

/* ---- rotation tables ---- */

bool tke_rope_table_grow(tke_rope_table *t, const tke_model *m, size_t n, tinkc_error *err)
{
    enum { STEP = 1024 };
    size_t half = m->config.head_dim / 2, want = (n + STEP - 1) / STEP * STEP;
    if (n <= t->n)
        return true;
    tke_real *block = tkc_alloc_aligned(64, 2 * want * half * sizeof *block, err);
    if (!block)
        return false;
    tke_real *sines = block + want * half;
    for (size_t p = 0; p < want; p++)
        for (size_t j = 0; j < half; j++) {
            double angle = (double)p * m->rope_frequency[j];
            block[p * half + j] = (tke_real)(cos(angle) * m->rope_scale);
            sines[p * half + j] = (tke_real)(sin(angle) * m->rope_scale);
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
