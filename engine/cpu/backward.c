/* backward.c - gradients down through the layers, from the top to the lowest part that is trained.
 *
 * May touch: the batch's buffers and the gradient blocks of its segments. Must not: know of losses.
 */
#include <assert.h>
#include "cpu/microbatch.h"

/* Is nothing trained below this part? Mixers are trained with the attention, feed-forwards without
 * it at least. */
static bool lowest(const tke_batch *u, size_t layer, bool feed)
{
    for (size_t i = 0; i <= layer; i++) {
        const tke_layer *l = &u->rows.model->layers[i];
        bool mixer_below = i < layer || feed;
        if (mixer_below && u->job->attn && l->mixer)
            return false;
        if (i < layer && l->feed)
            return false;
    }
    return true;
}

/* dh of the part's output -> dh of its input x; not where it is the lowest. */
static void part_backward(tke_batch *u, const tke_turn *turn, const tke_part *part,
                          const tke_real *norm, const tke_real *x, tke_real *a, bool last)
{
    const tke_rows *r = &u->rows;
    tke_rows_norm(r, r->n, x, norm, a);
    part->backward(turn, a, u->dh, last ? NULL : u->tmp);
    if (!last)
        tke_rows_norm_backward(r, r->n, x, norm, u->tmp, u->dh, true);
}

/* False when the lowest part is done. */
static bool layer_backward(tke_batch *u, size_t i)
{
    tke_layer_acts t;
    tke_turn turn = tke_batch_turn(u, i);
    const tke_layer *l = turn.layer;
    const tke_part *mixer = tke_mixer_of(l), *feed = tke_feed_of(l);
    tke_batch_acts(u, i, &t);
    if (feed) {
        bool last = lowest(u, i, true);
        turn.keep = &t.feed;
        turn.work = &t.feed_work;
        part_backward(u, &turn, feed, l->feed_norm, mixer ? t.h_mid : u->h_in[i], u->b, last);
        if (last)
            return false;
    }
    if (mixer) {
        bool last = lowest(u, i, false);
        turn.keep = &t.mixer;
        turn.work = &t.mixer_work;
        part_backward(u, &turn, mixer, l->mixer_norm, u->h_in[i], u->a, last);
        if (last)
            return false;
    }
    return true;
}

bool tke_batch_backward(tke_batch *u)
{
    size_t n_layers = u->rows.model->config.n_layers;
    assert(u->job->size.depth == TKE_DEPTH_ALL && u->dh);
    for (size_t i = n_layers; i-- > 0;) {
        if (tke_batch_stopped(u))
            return false;
        if (i + u->n_kept + 1 < n_layers) /* the last computed layer's activations still exist */
            tke_batch_layer(u, i, u->h_in[i], NULL);
        if (!layer_backward(u, i))
            break;
    }
    return true;
}
