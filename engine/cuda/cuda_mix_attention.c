/* cuda_mix_attention.c - attention as a layer's mixer: packed sequences in training, paged ones in a step.
 *
 * May touch: the buffers of its layer.
 */
#include "cuda/cuda_trainer.h"

static void keep(tcu_walk *w, const tcu_model *m, size_t n, size_t most, tcu_acts *t)
{
    (void)most;
    TCU_TAKE(w, t->qkv, n * (size_t)m->qkv_width);
    TCU_TAKE(w, t->q, n * (size_t)m->q_width);
    TCU_TAKE(w, t->k, n * (size_t)m->k_width);
    TCU_TAKE(w, t->o, n * (size_t)m->q_width);
    TCU_TAKE(w, t->lse, n * m->config.n_heads);
}

static tcu_attention attention_of(tcu_trainer *t, size_t layer, const tcu_acts *a)
{
    const tcu_model *m = t->model;
    tcu_attention p = tcu_attention_of(m, layer);
    p.q = a->q;
    p.k = a->k;
    p.v = a->qkv + m->q_width + m->k_width;
    p.ldk = m->k_width;
    p.ldv = m->qkv_width;
    p.o = a->o;
    p.lse = a->lse;
    p.d_o = t->d_o;
    p.delta = t->delta;
    p.dq = t->dq;
    p.dk = t->dk;
    p.dv = t->dqkv + m->q_width + m->k_width;
    p.lddv = m->qkv_width;
    p.spans = t->spans;
    p.n_spans = t->n_spans;
    p.grouped = t->grouped;
    return p;
}

static bool backward(tcu_trainer *t, size_t layer, tcu_acts *a, tinkc_error *err)
{
    tcu_model *m = t->model;
    tcu_device *d = m->device;
    const tcu_layer *l = &m->layers[layer];
    float eps = (float)m->config.rms_eps;
    int32_t n = t->rows.n;
    tcu_heads heads = tcu_heads_of(&t->rows, layer);
    tcu_attention rows = attention_of(t, layer, a), keys = rows;
    tcu_back o = tcu_back_of(t, layer, TCU_O, a->o, t->dy, t->d_o);
    tcu_back qkv = tcu_back_of(t, layer, TCU_QKV, a->a, t->dqkv, layer ? t->tmp : NULL);
    keys.spans = t->key_spans;
    keys.n_spans = t->n_key_spans;
    if (!tcu_group_back(d, &o, err) ||
        !tcu_ok(d,
                tcu_attention_delta(t->d_o, a->o, t->delta, (int64_t)n * heads.n_heads, heads.d,
                                    d->stream),
                "attention delta", err) ||
        !tcu_ok(d, tcu_attention_dq(&rows, d->stream), "attention dq", err) ||
        !tcu_ok(d, tcu_attention_dkv(&keys, d->stream), "attention dk, dv", err) ||
        !tcu_ok(d, tcu_heads_back(&heads, a->qkv, t->dq, t->dk, t->dqkv, d->stream), "the rotation",
                err) ||
        !tcu_ok(d,
                tcu_add_norm(t->h_in[layer], NULL, NULL, l->norm_in, eps, a->a, n, m->hidden,
                             d->stream),
                "a norm", err) ||
        !tcu_group_back(d, &qkv, err))
        return false;
    return !layer || tcu_ok(d,
                            tcu_norm_back(t->h_in[layer], l->norm_in, eps, t->tmp, false, t->dh,
                                          t->dy, n, m->hidden, d->stream),
                            "a norm", err);
}

static bool forward(tcu_trainer *t, size_t layer, tcu_acts *a, tinkc_error *err)
{
    tcu_device *d = t->model->device;
    tcu_attention p = attention_of(t, layer, a);
    return tcu_make_heads(&t->rows, layer, a, NULL, err) &&
           tcu_ok(d, tcu_attention_forward(&p, false, d->stream), "attention", err) &&
           tcu_group_forward(&t->rows, layer, TCU_O, a->o, a, a->y, err);
}

static bool step(const tcu_rows *r, size_t layer, tcu_acts *a, const tcu_cached *c,
                 tinkc_error *err)
{
    tcu_device *d = r->model->device;
    tcu_attention p = tcu_attention_of(r->model, layer);
    p.k = c->keys.data;
    p.v = c->keys.data + c->keys.values;
    p.ldk = p.ldv = c->keys.stride;
    p.tables = c->tables;
    p.q = a->q;
    p.o = a->o;
    p.spans = c->narrow;
    p.n_spans = c->n_narrow;
    if (!tcu_make_heads(r, layer, a, &c->keys, err) ||
        !tcu_ok(d, tcu_attention_forward(&p, true, d->stream), "attention", err))
        return false;
    p.spans = c->wide;
    p.n_spans = c->n_wide;
    return tcu_ok(d, tcu_attention_forward(&p, false, d->stream), "attention", err) &&
           tcu_group_forward(r, layer, TCU_O, a->o, a, a->y, err);
}

const tcu_mixer tcu_mix_attention = { .keep = keep,
                                      .forward = forward,
                                      .backward = backward,
                                      .step = step };
