/* forward.c - work space of a microbatch and the forward pass through its layers.
 *
 * May touch: the batch's buffers. Must not: allocate; know of losses.
 */
#include <assert.h>
#include <stdatomic.h>
#include "cpu/microbatch.h"

/* ---- work space ---- */

/* What a layer must remember for its backward pass. */
static void take_memory(tke_walk *w, const tke_model *m, const tke_microbatch_size *size,
                        tke_acts *t)
{
    const tke_config *c = &m->config;
    size_t n = size->n, qd = n * c->n_heads * c->head_dim, kd = n * c->n_kv_heads * c->head_dim;
    tke_take(w, &t->q, qd);
    tke_take(w, &t->k, kd);
    tke_take(w, &t->v, kd);
    if (c->qk_norm) {
        tke_take(w, &t->q_pre, qd);
        tke_take(w, &t->k_pre, kd);
    }
    tke_take(w, &t->o, qd);
    tke_take(w, &t->lse, n * c->n_heads);
    tke_take(w, &t->h_mid, n * c->hidden);
    tke_take(w, &t->g, n * c->inner);
    tke_take(w, &t->u, n * c->inner);
    for (size_t g = 0; g < m->layers[0].n_groups; g++)
        tke_take(w, &t->low[g], n * size->max_rank * m->layers[0].groups[g].n);
}

static void take_backward(tke_walk *w, const tke_model *m, const tke_microbatch_size *size,
                          tke_batch *u)
{
    const tke_config *c = &m->config;
    size_t n = size->n, qd = n * c->n_heads * c->head_dim, kd = n * c->n_kv_heads * c->head_dim;
    tke_take(w, &u->dh, n * c->hidden);
    tke_take(w, &u->tmp, n * c->hidden);
    tke_take(w, &u->d_o, qd);
    tke_take(w, &u->dq, qd);
    tke_take(w, &u->dk, kd);
    tke_take(w, &u->dv, kd);
    tke_take(w, &u->delta, n * c->n_heads);
    tke_take(w, &u->dlow, n * size->max_rank * TKE_GROUP_MAX);
}

static void take_head(tke_walk *w, const tke_model *m, const tke_microbatch_size *size,
                      tke_batch *u)
{
    enum { LEAST = 16, MOST = 256 };
    const tke_config *c = &m->config;
    size_t rows = tke_chunk_rows(m, LEAST, MOST, size->n);
    u->chunk = rows;
    tke_take(w, &u->logits.z, rows * c->vocab);
    tke_take(w, &u->logits.hf, rows * c->hidden);
    tke_take(w, &u->dhf, rows * c->hidden);
    tke_take(w, &u->hc, rows * c->hidden);
    tke_take(w, &u->logits.low, rows * size->max_rank);
    tke_take(w, &u->low_c, rows * size->max_rank);
    tke_take(w, &u->dlow_head, rows * size->max_rank);
    tke_take(w, &u->logits.max, rows);
    tke_take(w, &u->logits.sum, rows);
    tke_take(w, &u->lse, rows);
    tke_take(w, &u->scale, rows);
    tke_take(w, &u->lp, rows * size->max_k);
    tke_take(w, &u->g, rows * size->max_k);
}

static void walk_batch(tke_walk *w, const tke_model *m, const tke_microbatch_size *size,
                       size_t n_kept, tke_batch *u)
{
    const tke_config *c = &m->config;
    assert(n_kept <= c->n_layers && (size->depth == TKE_DEPTH_ALL || !n_kept));
    tke_real *none;
    tke_acts unused;
    tke_take(w, &u->h, size->n * c->hidden);
    tke_take(w, &u->shared.a, size->n * c->hidden);
    tke_take(w, &u->shared.b, size->n * c->hidden);
    tke_take(w, &u->shared.m, size->n * c->inner);
    if (n_kept < c->n_layers)
        take_memory(w, m, size, &u->shared);
    if (size->depth == TKE_DEPTH_ALL) {
        for (size_t i = 0; i < c->n_layers; i++)
            tke_take(w, w->at ? &u->h_in[i] : &none, size->n * c->hidden);
        for (size_t i = c->n_layers - n_kept; i < c->n_layers; i++)
            take_memory(w, m, size, w->at ? &u->kept[i] : &unused);
        take_backward(w, m, size, u);
    }
    take_head(w, m, size, u);
}

size_t tke_batch_reals(const tke_model *m, const tke_microbatch_size *size, size_t n_kept)
{
    tke_walk w = { 0 };
    tke_batch unused = { 0 };
    walk_batch(&w, m, size, n_kept, &unused);
    return w.used;
}

void tke_batch_place(tke_batch *u, tke_real *block)
{
    tke_walk w = { .at = block };
    const tke_model *m = u->rows.model;
    assert(u->rows.n > 0 && u->rows.n == u->job->size.n);
    walk_batch(&w, m, &u->job->size, u->n_kept, u);
    for (size_t i = 0; i < m->config.n_layers; i++) {
        u->kept[i].a = u->shared.a;
        u->kept[i].b = u->shared.b;
        u->kept[i].m = u->shared.m;
    }
}

/* ---- forward ---- */

bool tke_batch_stopped(const tke_batch *u)
{
    return u->stop && atomic_load_explicit(u->stop, memory_order_relaxed);
}

tke_acts *tke_batch_acts(tke_batch *u, size_t layer)
{
    size_t n_layers = u->rows.model->config.n_layers;
    assert(layer < n_layers);
    if (u->job->size.depth == TKE_DEPTH_ALL && layer + u->n_kept >= n_layers)
        return &u->kept[layer];
    return &u->shared;
}

void tke_batch_layer(tke_batch *u, size_t layer, const tke_real *h, tke_real *h_out)
{
    tke_acts *t = tke_batch_acts(u, layer);
    const tke_microbatch *job = u->job;
    assert(job->starts[0] == 0 && (size_t)job->starts[job->n_seqs] == u->rows.n);
    tke_attention shape = tke_block_attention(u->rows.model, layer);
    tke_block_before_attention(&u->rows, layer, h, t);
    tke_attention_forward(u->rows.cpu, &shape, (int64_t)job->n_seqs, job->starts, t->q, t->k, t->v,
                          t->o, t->lse);
    tke_block_after_attention(&u->rows, layer, h, t, h_out);
}

void tke_batch_forward(tke_batch *u)
{
    const tke_config *c = &u->rows.model->config;
    bool keep = u->job->size.depth == TKE_DEPTH_ALL;
    tke_real *h = keep ? u->h_in[0] : u->h;
    tke_embed(u->rows.cpu, (int64_t)u->rows.n, (int64_t)c->hidden, u->job->ids,
              u->rows.model->embed.m, h);
    for (size_t i = 0; i < c->n_layers && !tke_batch_stopped(u); i++) {
        tke_real *out = keep && i + 1 < c->n_layers ? u->h_in[i + 1] : u->h;
        tke_batch_layer(u, i, h, out);
        h = out;
    }
}
