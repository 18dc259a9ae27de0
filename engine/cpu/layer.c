/* layer.c - which object computes which part, and the memory of whole layers.
 *
 * May touch: only the places it is given.
 */
#include <assert.h>
#include "cpu/part.h"

void tke_turn_spread(const tke_turn *u, size_t n_tasks, tke_task_fn *fn)
{
    tke_threads_run(tke_cpu_threads(u->rows->cpu), (int64_t)n_tasks, fn, (void *)(uintptr_t)u);
}

tke_real *tke_turn_state(const tke_turn *u, size_t seq)
{
    assert(u->state_of[seq] >= 0);
    return u->states + (size_t)u->state_of[seq] * u->state_stride;
}

const tke_part *tke_mixer_of(const tke_layer *l)
{
    static const tke_part *const parts[TKE_MIX_KINDS] = { [TKE_MIX_ATTENTION] = &tke_part_attention,
                                                          [TKE_MIX_DELTA] = &tke_part_delta,
                                                          [TKE_MIX_SPACE] = &tke_part_space };
    return parts[l->mixer];
}

const tke_part *tke_feed_of(const tke_layer *l)
{
    static const tke_part *const parts[TKE_FEED_KINDS] = {
        [TKE_FEED_DENSE] = &tke_part_dense, [TKE_FEED_EXPERTS] = &tke_part_experts
    };
    return parts[l->feed];
}

void tke_layer_keep(tke_walk *w, const tke_model *m, const tke_layer *l,
                    const tke_microbatch_size *size, tke_layer_acts *t)
{
    const tke_part *mixer = tke_mixer_of(l), *feed = tke_feed_of(l);
    assert(mixer || feed);
    if (mixer)
        mixer->keep(w, l, size, &t->mixer);
    tke_take(w, &t->h_mid, size->n * m->config.hidden);
    if (feed)
        feed->keep(w, l, size, &t->feed);
}

void tke_layer_work(tke_walk *w, const tke_layer *l, const tke_microbatch_size *size,
                    tke_layer_acts *t)
{
    const tke_part *mixer = tke_mixer_of(l), *feed = tke_feed_of(l);
    if (mixer)
        mixer->work(w, l, size, &t->mixer_work);
    if (feed)
        feed->work(w, l, size, &t->feed_work);
}

/* y = h + part(norm(h)); y may be NULL, or h where `room` is another place for the part's result. */
static void run_part(tke_turn *turn, const tke_part *part, const tke_real *norm, const tke_real *h,
                     tke_real *a, tke_real *room, tke_real *y)
{
    const tke_rows *r = turn->rows;
    tke_real *result = y == h ? room : y;
    tke_rows_norm(r, r->n, h, norm, a);
    if (turn->seqs)
        part->step(turn, a, result);
    else
        part->forward(turn, a, result);
    if (y)
        tke_add(r->cpu, (int64_t)(r->n * r->model->config.hidden), y == h ? room : h, y);
}

void tke_layer_run(tke_turn *turn, const tke_layer_acts *t, const tke_real *h, tke_real *a,
                   tke_real *b, tke_real *h_out)
{
    const tke_layer *l = turn->layer;
    const tke_part *mixer = tke_mixer_of(l), *feed = tke_feed_of(l);
    if (mixer) {
        turn->keep = &t->mixer;
        turn->work = &t->mixer_work;
        run_part(turn, mixer, l->mixer_norm, h, a, t->h_mid, feed ? t->h_mid : h_out);
    }
    if (feed) {
        turn->keep = &t->feed;
        turn->work = &t->feed_work;
        run_part(turn, feed, l->feed_norm, mixer ? t->h_mid : h, b, t->h_mid, h_out);
    }
}

size_t tke_layers_keep(const tke_model *m, const tke_microbatch_size *size)
{
    size_t most = 0;
    tke_layer_acts unused;
    for (size_t i = 0; i < m->config.n_layers; i++) {
        tke_walk w = { 0 };
        tke_layer_keep(&w, m, &m->layers[i], size, &unused);
        most = w.used > most ? w.used : most;
    }
    return most;
}

size_t tke_layers_work(const tke_model *m, const tke_microbatch_size *size)
{
    size_t most = 0;
    tke_layer_acts unused;
    for (size_t i = 0; i < m->config.n_layers; i++) {
        tke_walk w = { 0 };
        tke_layer_work(&w, &m->layers[i], size, &unused);
        most = w.used > most ? w.used : most;
    }
    return most;
}

size_t tke_largest_group(const tke_model *m)
{
    size_t most = 1;
    for (size_t i = 0; i < m->n_groups; i++)
        most = m->groups[i]->n > most ? m->groups[i]->n : most;
    return most;
}

size_t tke_layer_cache_reals(const tke_layer *l)
{
    const tke_part *mixer = tke_mixer_of(l);
    return mixer && mixer->cache_reals ? mixer->cache_reals(l) : 0;
}

size_t tke_layer_state_reals(const tke_layer *l)
{
    const tke_part *mixer = tke_mixer_of(l);
    return mixer && mixer->state_reals ? mixer->state_reals(l) : 0;
}
