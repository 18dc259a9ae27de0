/* backward.c - gradients down through the blocks, from the top layer to the lowest that is trained.
 *
 * May touch: the batch's buffers and the gradient blocks of its segments. Must not: know of losses.
 */
#include <assert.h>
#include "cpu/microbatch.h"

/* dh (of the layer's output) -> dh (of h_mid). */
static void mlp_backward(tke_batch *u, size_t layer, tke_acts *t)
{
    const tke_rows *r = &u->rows;
    const tke_layer *l = &r->model->layers[layer];
    int64_t count = (int64_t)(r->n * r->model->config.inner);
    const tke_real *dy = u->dh;
    const tke_real *dgu[2] = { t->g, t->u };
    bool lowest = layer == 0 && !u->job->attn; /* nothing below wants a gradient */

    tke_swiglu(r->cpu, count, t->g, t->u, t->m);
    tke_group_backward(r, l->down, t->m, &dy, t->low[l->down->slot], u->dlow, t->m); /* m: dm */
    tke_swiglu_backward(r->cpu, count, t->g, t->u, t->m, t->g, t->u);
    tke_rows_norm(r, r->n, t->h_mid, l->norm_post, t->b);
    tke_group_backward(r, l->gate_up, t->b, dgu, t->low[l->gate_up->slot], u->dlow,
                       lowest ? NULL : u->tmp);
    if (!lowest)
        tke_rows_norm_backward(r, r->n, t->h_mid, l->norm_post, u->tmp, u->dh, true);
}

/* Gradients of rotated heads back through rotation and norm, in place. */
static void heads_backward(const tke_rows *r, size_t heads, const tke_real *norm,
                           const tke_real *pre, tke_real *dx)
{
    const tke_config *c = &r->model->config;
    int64_t d = (int64_t)c->head_dim, n = (int64_t)r->n, h = (int64_t)heads;
    tke_rope(r->cpu, n, h, d, r->positions, r->cos_table, r->sin_table, true, dx, h * d);
    if (norm)
        tke_rmsnorm_backward(r->cpu, n * h, d, pre, tke_matrix_real(norm, d), (tke_real)c->rms_eps,
                             dx, dx, false);
}

/* dh (of h_mid) -> dh (of the layer's input). */
static void attention_backward(tke_batch *u, size_t layer, tke_acts *t)
{
    const tke_rows *r = &u->rows;
    const tke_config *c = &r->model->config;
    const tke_layer *l = &r->model->layers[layer];
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

    assert(u->job->attn || layer); /* else nothing reads the result */
    tke_group_backward(r, l->o, t->o, &dy, t->low[l->o->slot], u->dlow, u->d_o);
    tke_attention_backward(r->cpu, &shape, (int64_t)u->job->n_seqs, u->job->starts, &a);
    heads_backward(r, c->n_heads, l->q_norm, t->q_pre, u->dq);
    heads_backward(r, c->n_kv_heads, l->k_norm, t->k_pre, u->dk);
    tke_rows_norm(r, r->n, u->h_in[layer], l->norm_in, t->a);
    tke_group_backward(r, l->qkv, t->a, dqkv, t->low[l->qkv->slot], u->dlow, layer ? u->tmp : NULL);
    if (layer)
        tke_rows_norm_backward(r, r->n, u->h_in[layer], l->norm_in, u->tmp, u->dh, true);
}

bool tke_batch_backward(tke_batch *u)
{
    size_t n_layers = u->rows.model->config.n_layers;
    assert(u->job->size.depth == TKE_DEPTH_ALL && u->dh);
    for (size_t i = n_layers; i-- > 0;) {
        if (tke_batch_stopped(u))
            return false;
        tke_acts *t = tke_batch_acts(u, i);
        if (i + u->n_kept + 1 < n_layers) /* the last computed layer's activations still exist */
            tke_batch_layer(u, i, u->h_in[i], NULL);
        mlp_backward(u, i, t);
        if (i || u->job->attn)
            attention_backward(u, i, t);
    }
    return true;
}
