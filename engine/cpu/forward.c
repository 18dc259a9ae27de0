/* forward.c - work space of a microbatch and the forward pass through its layers.
 *
 * May touch: the batch's buffers. Must not: allocate; know of losses.
 */
#include <assert.h>
#include <stdatomic.h>
#include "cpu/microbatch.h"

/* ---- work space ---- */

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
    size_t wide = size->n * c->hidden;
    assert(n_kept <= c->n_layers && (size->depth == TKE_DEPTH_ALL || !n_kept));
    tke_real *none;
    tke_layer_acts unused;
    tke_take(w, &u->h, wide);
    tke_take(w, &u->a, wide);
    tke_take(w, &u->b, wide);
    tke_take(w, &u->work, tke_layers_work(m, size));
    if (n_kept < c->n_layers)
        tke_take(w, &u->shared, tke_layers_keep(m, size));
    if (size->depth == TKE_DEPTH_ALL) {
        for (size_t i = 0; i < c->n_layers; i++)
            tke_take(w, w->at ? &u->h_in[i] : &none, wide);
        for (size_t i = c->n_layers - n_kept; i < c->n_layers; i++) {
            tke_take(w, w->at ? &u->kept[i] : &none, 0);
            tke_layer_keep(w, m, &m->layers[i], size, &unused);
        }
        tke_take(w, &u->dh, wide);
        tke_take(w, &u->tmp, wide);
        tke_take(w, &u->dlow, size->n * size->max_rank * tke_largest_group(m));
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
}

/* ---- forward ---- */

bool tke_batch_stopped(const tke_batch *u)
{
    return u->stop && atomic_load_explicit(u->stop, memory_order_relaxed);
}

void tke_batch_acts(const tke_batch *u, size_t layer, tke_layer_acts *out)
{
    const tke_model *m = u->rows.model;
    size_t n_layers = m->config.n_layers;
    assert(layer < n_layers);
    bool kept = u->job->size.depth == TKE_DEPTH_ALL && layer + u->n_kept >= n_layers;
    tke_walk keep = { .at = kept ? u->kept[layer] : u->shared }, work = { .at = u->work };
    tke_layer_keep(&keep, m, &m->layers[layer], &u->job->size, out);
    tke_layer_work(&work, &m->layers[layer], &u->job->size, out);
}

tke_turn tke_batch_turn(const tke_batch *u, size_t layer)
{
    const tke_microbatch *job = u->job;
    assert(job->starts[0] == 0 && (size_t)job->starts[job->n_seqs] == u->rows.n);
    return (tke_turn){ .rows = &u->rows,
                       .layer = &u->rows.model->layers[layer],
                       .n_seqs = job->n_seqs,
                       .starts = job->starts,
                       .dlow = u->dlow };
}

void tke_batch_layer(tke_batch *u, size_t layer, const tke_real *h, tke_real *h_out)
{
    tke_layer_acts t;
    tke_turn turn = tke_batch_turn(u, layer);
    tke_batch_acts(u, layer, &t);
    tke_layer_run(&turn, &t, h, u->a, u->b, h_out);
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
