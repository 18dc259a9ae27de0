/* cuda_backward.c - the backward pass, down through the layers.
 *
 * May touch: the trainer's buffers and the gradient blocks of its segments.
 */
#include "cuda/cuda_trainer.h"

/* dh and dy of the part's output -> those of its input x; not where it is the lowest. */
static bool part_back(tcu_trainer *t, const tcu_turn *turn, const tcu_part *part,
                      const tcu_slots *keep, const tcu_place *at, const float *norm, const float *x,
                      bool lowest, tinkc_error *err)
{
    tcu_model *m = t->model;
    tcu_device *d = m->device;
    float eps = (float)m->config.rms_eps;
    int32_t n = t->rows.n;
    tcu_slots work;
    tcu_turn own = tcu_part_turn(turn, part, keep, &work, at);
    return tcu_ok(d, tcu_add_norm(x, NULL, NULL, norm, eps, t->a, n, m->hidden, d->stream),
                  "a norm", err) &&
           part->backward(&own, t->a, t->dy, lowest ? NULL : t->tmp, err) &&
           (lowest || tcu_ok(d,
                             tcu_norm_back(x, norm, eps, t->tmp, false, t->dh, t->dy, n, m->hidden,
                                           d->stream),
                             "a norm", err));
}

/* Nothing below the lowest part needs a gradient. */
static bool layer_back(tcu_trainer *t, size_t i, tinkc_error *err)
{
    const tcu_layer *l = &t->model->layers[i];
    tcu_acts acts;
    tcu_trainer_acts(t, i, &acts);
    tcu_turn turn = tcu_trainer_turn(t, i);
    tcu_place at = tcu_trainer_place(t, i, &acts);
    bool mixer = l->mixer && (i || t->batch->attn);
    if (l->feed && !part_back(t, &turn, l->feed, &acts.feed, &at, l->feed_norm,
                              l->mixer ? acts.h_mid : t->h_in[i], i == 0 && !mixer, err))
        return false;
    return !mixer || part_back(t, &turn, l->mixer, &acts.mixer, &at, l->mixer_norm, t->h_in[i],
                               i == 0, err);
}

bool tcu_trainer_backward(tcu_trainer *t, tinkc_error *err)
{
    size_t layers = t->model->config.n_layers;
    for (size_t i = layers; i-- > 0;) {
        tcu_residual r = { .h = t->h_in[i] };
        if (tcu_trainer_stopped(t, err))
            return false;
        if (i + t->n_kept + 1 < layers && /* the activations computed last are still there */
            !tcu_trainer_layer(t, i, &r, false, err))
            return false;
        if (!layer_back(t, i, err))
            return false;
    }
    return true;
}
