/* cuda_layer.c - which object computes which part, the memory of whole layers, and a layer's forward pass around its parts.
 *
 * Training and sampling run this same code. May touch: the buffers it is given.
 */
#include "cuda/cuda_part.h"

const tcu_part *tcu_mixer_part(int32_t kind)
{
    static const tcu_part *const parts[TKE_MIX_KINDS] = { [TKE_MIX_ATTENTION] = &tcu_part_attention,
                                                          [TKE_MIX_DELTA] = &tcu_part_delta,
                                                          [TKE_MIX_SPACE] = &tcu_part_space };
    return parts[kind];
}

const tcu_part *tcu_feed_part(int32_t kind)
{
    static const tcu_part *const parts[TKE_FEED_KINDS] = { [TKE_FEED_DENSE] = &tcu_part_dense,
                                                           [TKE_FEED_EXPERTS] = &tcu_part_experts };
    return parts[kind];
}

/* ---- memory ---- */

void tcu_layer_keep(tcu_walk *w, const tcu_model *m, const tcu_layer *l, const tcu_size *s,
                    tcu_acts *t)
{
    if (l->mixer)
        l->mixer->keep(w, m, l, s, &t->mixer);
    if (l->mixer && l->feed)
        TCU_TAKE(w, t->h_mid, s->n * (size_t)m->hidden);
    if (l->feed)
        l->feed->keep(w, m, l, s, &t->feed);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

size_t tcu_layers_keep(const tcu_model *m, const tcu_size *s)
{
    size_t most = 0;
    tcu_acts unused;
    for (size_t i = 0; i < m->config.n_layers; i++) {
        tcu_walk w = { 0 };
        tcu_layer_keep(&w, m, &m->layers[i], s, &unused);
        most = larger(most, w.used);
    }
    return most;
}

static size_t part_work(const tcu_part *part, const tcu_model *m, const tcu_layer *l,
                        const tcu_size *s)
{
    tcu_walk w = { 0 };
    tcu_slots unused;
    if (part)
        part->work(&w, m, l, s, &unused);
    return w.used;
}

/* Parts work one after the other, so all have the same memory. */
size_t tcu_layers_work(const tcu_model *m, const tcu_size *s)
{
    size_t most = 0;
    for (size_t i = 0; i < m->config.n_layers; i++) {
        const tcu_layer *l = &m->layers[i];
        most = larger(most, larger(part_work(l->mixer, m, l, s), part_work(l->feed, m, l, s)));
    }
    return most;
}

enum { LINEARS = 11 };
static size_t linears_of(const tcu_layer *l, const tcu_linear *out[LINEARS])
{
    const tcu_linear *all[LINEARS] = { &l->attn.qkv, &l->attn.o,    &l->delta.in,
                                       &l->delta.out, &l->space.in, &l->space.out,
                                       &l->dense.in, &l->dense.out, &l->experts.in,
                                       &l->experts.shared.in, &l->experts.shared.out };
    size_t n = 0;
    for (size_t i = 0; i < LINEARS; i++)
        if (all[i]->n)
            out[n++] = all[i];
    return n;
}

size_t tcu_widest_group(const tcu_model *m)
{
    size_t widest = (size_t)m->hidden;
    const tcu_linear *list[LINEARS];
    for (size_t i = 0; i < m->config.n_layers; i++)
        for (size_t j = linears_of(&m->layers[i], list); j-- > 0;)
            widest = larger(widest, list[j]->w || list[j]->n_coded ? (size_t)list[j]->rows : 0);
    return widest;
}

size_t tcu_largest_group(const tcu_model *m)
{
    size_t largest = 1;
    const tcu_linear *list[LINEARS];
    for (size_t i = 0; i < m->config.n_layers; i++)
        for (size_t j = linears_of(&m->layers[i], list); j-- > 0;)
            largest = larger(largest, (size_t)list[j]->n);
    return largest;
}

/* ---- forward ---- */

tcu_turn tcu_part_turn(const tcu_turn *u, const tcu_part *part, const tcu_slots *keep,
                       tcu_slots *work, const tcu_place *at)
{
    tcu_turn own = *u;
    tcu_walk w = { .at = at->work };
    part->work(&w, u->rows->model, u->layer, &at->size, work);
    own.keep = keep;
    own.work = work;
    return own;
}

/* The residual stream, written to h_out, plus the part's y. */
static bool run_part(const tcu_turn *u, const tcu_part *part, const tcu_slots *keep,
                     const tcu_place *at, const float *norm, float *h_out, bool output,
                     tcu_residual *r, tinkc_error *err)
{
    tcu_model *m = u->rows->model;
    tcu_device *d = m->device;
    tcu_slots work;
    tcu_turn own = tcu_part_turn(u, part, keep, &work, at);
    const tcu_normed normed = { .h = r->h,
                                .y = r->y,
                                .h_out = r->y || h_out != r->h ? h_out : NULL,
                                .weights = norm,
                                .a = at->a };
    if (u->cached && part->norms && part->norms(&own))
        own.normed = &normed;
    else if (!tcu_ok(d,
                     tcu_add_norm(normed.h, normed.y, normed.h_out, norm,
                                  (float)m->config.rms_eps, at->a, u->rows->n, m->hidden,
                                  d->stream),
                     "a norm", err))
        return false;
    r->h = h_out;
    r->y = at->y;
    return (u->cached ? part->step : part->forward)(&own, at->a, output ? at->y : NULL, err);
}

bool tcu_layer_run(const tcu_turn *u, const tcu_place *at, tcu_residual *r, bool output,
                   tinkc_error *err)
{
    const tcu_layer *l = u->layer;
    if (l->mixer && !run_part(u, l->mixer, &at->acts->mixer, at, l->mixer_norm, at->h_in,
                              output || l->feed, r, err))
        return false;
    /* in a step a norm that blocks make for themselves is not made in place */
    bool other = l->mixer || (u->cached && r->h == at->h_in);
    return !l->feed || run_part(u, l->feed, &at->acts->feed, at, l->feed_norm,
                                other ? at->acts->h_mid : at->h_in, output, r, err);
}
