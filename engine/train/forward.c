/* forward.c - work space of a unit and the forward pass through its layers.
 *
 * May touch: the unit's buffers. Must not: allocate; know of losses.
 */
#include <assert.h>
#include <stdatomic.h>
#include <string.h>
#include "train/microbatch.h"

/* ---- work space: one list of buffers, measured or placed by the same walk ---- */

enum { PAD = 16, CHUNK_MAX = 256, CHUNK_MIN = 16, CHUNK_REALS = 8 << 20 };

typedef struct walk {
    tke_real *at; /* NULL = only measure */
    size_t used;
} walk;

static void take(walk *w, tke_real **out, size_t count)
{
    count = (count + PAD - 1) / PAD * PAD;
    if (w->at)
        *out = w->at + w->used;
    w->used += count;
}

static size_t chunk_rows(const tke_microbatch_need *need)
{
    size_t vocab = tke_model_config(need->model)->vocab, rows = CHUNK_REALS / vocab;
    if (rows > CHUNK_MAX)
        rows = CHUNK_MAX;
    if (rows < CHUNK_MIN)
        rows = CHUNK_MIN;
    return rows < need->n ? rows : need->n;
}

/* What a layer must remember for its backward pass. */
static void take_memory(walk *w, const tke_microbatch_need *need, tke_acts *t)
{
    const tke_config *c = tke_model_config(need->model);
    size_t n = need->n, qd = n * c->n_heads * c->head_dim, kd = n * c->n_kv_heads * c->head_dim;
    take(w, &t->q, qd);
    take(w, &t->k, kd);
    take(w, &t->v, kd);
    if (c->qk_norm) {
        take(w, &t->q_pre, qd);
        take(w, &t->k_pre, kd);
    }
    take(w, &t->o, qd);
    take(w, &t->lse, n * c->n_heads);
    take(w, &t->h_mid, n * c->hidden);
    take(w, &t->g, n * c->inner);
    take(w, &t->u, n * c->inner);
    for (int g = 0; g < TKE_GROUPS; g++)
        take(w, &t->low[g], n * need->max_rank * tke_group_size(g));
}

static void take_backward(walk *w, const tke_microbatch_need *need, tke_microbatch *u)
{
    const tke_config *c = tke_model_config(need->model);
    size_t n = need->n, qd = n * c->n_heads * c->head_dim, kd = n * c->n_kv_heads * c->head_dim;
    take(w, &u->dh, n * c->hidden);
    take(w, &u->tmp, n * c->hidden);
    take(w, &u->d_o, qd);
    take(w, &u->dq, qd);
    take(w, &u->dk, kd);
    take(w, &u->dv, kd);
    take(w, &u->delta, n * c->n_heads);
    take(w, &u->dlow, n * need->max_rank * TKE_GROUP_MAX);
}

static void take_head(walk *w, const tke_microbatch_need *need, tke_microbatch *u)
{
    const tke_config *c = tke_model_config(need->model);
    size_t rows = chunk_rows(need);
    u->chunk = rows;
    take(w, &u->z, rows * c->vocab);
    take(w, &u->hf, rows * c->hidden);
    take(w, &u->dhf, rows * c->hidden);
    take(w, &u->hc, rows * c->hidden);
    take(w, &u->low_head, rows * need->max_rank);
    take(w, &u->low_c, rows * need->max_rank);
    take(w, &u->dlow_head, rows * need->max_rank);
    take(w, &u->lse, rows);
    take(w, &u->max, rows);
    take(w, &u->log_sum, rows);
    take(w, &u->scale, rows);
    take(w, &u->g, (rows + 1) * need->max_k); /* one more: room for long rows of log-probs */
}

static void walk_microbatch(walk *w, const tke_microbatch_need *need, tke_microbatch *u)
{
    const tke_config *c = tke_model_config(need->model);
    assert(need->n_kept <= c->n_layers && (need->depth == TKE_DEPTH_ALL || !need->n_kept));
    tke_real *none;
    tke_acts unused;
    take(w, &u->h, need->n * c->hidden);
    take(w, &u->shared.a, need->n * c->hidden);
    take(w, &u->shared.b, need->n * c->hidden);
    take(w, &u->shared.m, need->n * c->inner);
    if (need->depth != TKE_DEPTH_ALL || need->n_kept < c->n_layers)
        take_memory(w, need, &u->shared);
    if (need->depth == TKE_DEPTH_ALL) {
        for (size_t i = 0; i < c->n_layers; i++)
            take(w, w->at ? &u->h_in[i] : &none, need->n * c->hidden);
        for (size_t i = c->n_layers - need->n_kept; i < c->n_layers; i++)
            take_memory(w, need, w->at ? &u->kept[i] : &unused);
        take_backward(w, need, u);
    }
    take_head(w, need, u);
}

size_t tke_unit_reals(const tke_microbatch_need *need)
{
    walk w = { 0 };
    tke_microbatch unused = { 0 };
    walk_microbatch(&w, need, &unused);
    return w.used;
}

void tke_microbatch_place(tke_microbatch *u, const tke_microbatch_need *need, tke_real *block)
{
    walk w = { .at = block };
    u->max_k = need->max_k;
    u->n_kept = need->n_kept;
    assert(need->n > 0 && need->n == u->rows.n && need->depth == u->depth);
    walk_microbatch(&w, need, u);
    assert(w.used == tke_unit_reals(need)); /* measured and placed by one walk */
    for (size_t i = 0; u->kept && i < tke_model_config(need->model)->n_layers; i++) {
        u->kept[i].a = u->shared.a;
        u->kept[i].b = u->shared.b;
        u->kept[i].m = u->shared.m;
    }
}

/* ---- forward ---- */

tke_acts *tke_microbatch_acts(tke_microbatch *u, size_t layer)
{
    size_t n_layers = tke_model_config(u->rows.model)->n_layers;
    assert(layer < n_layers);
    if (u->depth == TKE_DEPTH_ALL && layer + u->n_kept >= n_layers)
        return &u->kept[layer];
    return &u->shared;
}

void tke_microbatch_layer(tke_microbatch *u, size_t layer, const tke_real *h, tke_real *h_out)
{
    tke_acts *t = tke_microbatch_acts(u, layer);
    assert(u->starts[0] == 0 && (size_t)u->starts[u->n_items] == u->rows.n);
    tke_attention shape = tke_block_attention(u->rows.model, layer);
    tke_block_before_attention(&u->rows, layer, h, t);
    tke_attention_forward(u->rows.cpu, &shape, (int64_t)u->n_items, u->starts, t->q, t->k, t->v,
                          t->o, t->lse);
    tke_block_after_attention(&u->rows, layer, h, t, h_out);
}

bool tke_microbatch_forward(tke_microbatch *u)
{
    const tke_config *c = tke_model_config(u->rows.model);
    int64_t n = (int64_t)u->rows.n, width = (int64_t)c->hidden;
    bool keep = u->depth == TKE_DEPTH_ALL;
    tke_real *h = keep ? u->h_in[0] : u->h;
    tke_embed(u->rows.cpu, n, width, u->ids, tke_model_embed(u->rows.model)->m, h);
    for (size_t i = 0; i < c->n_layers; i++) {
        if (u->stop && atomic_load_explicit(u->stop, memory_order_relaxed))
            return false;
        tke_real *out = keep && i + 1 < c->n_layers ? u->h_in[i + 1] : u->h;
        tke_microbatch_layer(u, i, h, out);
        h = out;
    }
    return true;
}
