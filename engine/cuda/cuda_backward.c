/* cuda_backward.c - gradients through linear layers with adapters and through the blocks.
 *
 * May touch: the trainer's buffers and the gradient blocks of its segments. Sums over tokens run in the order of the
 * rows, so that the bits of an adapter's gradient do not depend on how requests were cut into microbatches.
 */
#include "cuda/cuda_trainer.h"

/* dx gets the adapters' part first, and the product is added to it: cheaper than to read dx again.
 * Gradients of the adapters leave most of the card idle, so they run beside the large product. x and dx are different
 * buffers, and nothing below writes what they read before the join. */
bool tcu_group_back(tcu_device *d, const tcu_back *b, tinkc_error *err)
{
    const tcu_lora *p = &b->lora;
    tcu_product q = { .transposed = true,
                      .add = p->most > 0,
                      .x = b->dy,
                      .w = b->w,
                      .y = b->dx,
                      .ldx = p->ld_out,
                      .ldy = p->in,
                      .m = b->m,
                      .n = p->in,
                      .k = p->ld_out,
                      .valid = b->valid };
    if (!tcu_ok(d, tcu_lora_dlow(p, b->dy, b->dlow, d->stream), "dlow", err) ||
        !tcu_fork(d, 2, err) ||
        !tcu_ok(d, tcu_lora_db(p, b->dy, b->low, d->beside[0]), "dB", err) ||
        !tcu_ok(d, tcu_lora_da(p, b->dlow, b->x, d->beside[1]), "dA", err))
        return false;
    if (b->dx && (!tcu_plan_product(d, &q, err) ||
                  !tcu_ok(d, tcu_lora_dx(p, b->dlow, b->dx, d->stream), "dx of an adapter", err) ||
                  !tcu_multiply(d, &q, err)))
        return false;
    return tcu_join(d, 2, err);
}

tcu_back tcu_back_of(tcu_trainer *t, size_t layer, int of, const tcu_bf16 *x, const tcu_bf16 *dy,
                     tcu_bf16 *dx)
{
    const tcu_layer *l = &t->model->layers[layer];
    tcu_back b = { .lora = tcu_lora_of(t->model, layer, of, t->rows.most),
                   .x = x,
                   .dy = dy,
                   .dx = dx,
                   .dlow = t->dlow,
                   .m = t->rows.padded,
                   .valid = t->rows.n,
                   .low = tcu_trainer_acts(t, layer)->low[of] };
    b.w = of == TCU_QKV ? l->qkv : of == TCU_O ? l->o : of == TCU_GATE_UP ? l->gu : l->down;
    b.lora.segments = t->rows.lora.segments;
    b.lora.tiles = t->rows.lora.tiles;
    b.lora.steps = t->rows.lora.steps;
    b.lora.n_segments = t->rows.lora.n_segments;
    b.lora.n_tiles = t->rows.lora.n_tiles;
    b.lora.tile_rows = t->rows.lora.tile_rows;
    return b;
}

/* dy -> tmp, the gradient of b; lowest: not wanted. */
static bool dense_back(tcu_trainer *t, size_t layer, tcu_acts *a, bool lowest, tinkc_error *err)
{
    tcu_model *m = t->model;
    tcu_device *d = m->device;
    const tcu_layer *l = &m->layers[layer];
    float eps = (float)m->config.rms_eps;
    int32_t n = t->rows.n;
    tcu_back down = tcu_back_of(t, layer, TCU_DOWN, a->m, t->dy, t->dm),
             gu = tcu_back_of(t, layer, TCU_GATE_UP, a->b, a->gu, lowest ? NULL : t->tmp);
    return tcu_ok(d, tcu_swiglu(a->gu, a->m, n, m->inner, d->stream), "SwiGLU", err) &&
           tcu_group_back(d, &down, err) &&
           tcu_ok(d, tcu_swiglu_back(a->gu, t->dm, a->gu, n, m->inner, d->stream), "SwiGLU", err) &&
           tcu_ok(
               d,
               tcu_add_norm(a->h_mid, NULL, NULL, l->norm_post, eps, a->b, n, m->hidden, d->stream),
               "a norm", err) &&
           tcu_group_back(d, &gu, err);
}

static bool experts_back(tcu_trainer *t, size_t layer, tcu_acts *a, bool lowest, tinkc_error *err)
{
    tcu_model *m = t->model;
    tcu_device *d = m->device;
    tcu_experts_back b = { .rows = &t->rows,
                           .layer = layer,
                           .acts = a,
                           .dy = t->dy,
                           .dm = t->dm,
                           .dlow = t->dlow,
                           .dx = t->tmp,
                           .below = !lowest };
    return tcu_ok(d,
                  tcu_add_norm(a->h_mid, NULL, NULL, m->layers[layer].norm_post,
                               (float)m->config.rms_eps, a->b, t->rows.n, m->hidden, d->stream),
                  "a norm", err) &&
           tcu_experts_backward(&b, err);
}

/* In: dh and dy of the layer's output. Out: those of h_mid. */
static bool feed_back(tcu_trainer *t, size_t layer, tcu_acts *a, tinkc_error *err)
{
    tcu_model *m = t->model;
    tcu_device *d = m->device;
    const tcu_layer *l = &m->layers[layer];
    bool lowest = layer == 0 && !t->batch->attn; /* nothing below needs a gradient */
    if (!(l->sparse ? experts_back : dense_back)(t, layer, a, lowest, err))
        return false;
    return lowest || tcu_ok(d,
                            tcu_norm_back(a->h_mid, l->norm_post, (float)m->config.rms_eps, t->tmp,
                                          false, t->dh, t->dy, t->rows.n, m->hidden, d->stream),
                            "a norm", err);
}

bool tcu_trainer_backward(tcu_trainer *t, tinkc_error *err)
{
    size_t layers = t->model->config.n_layers;
    for (size_t i = layers; i-- > 0;) {
        tcu_acts *a = tcu_trainer_acts(t, i);
        if (tcu_trainer_stopped(t, err))
            return false;
        if (i + t->n_kept + 1 < layers && /* the activations computed last are still there */
            !tcu_trainer_layer(t, i, t->h_in[i], NULL, t->h_in[i], false, err))
            return false;
        if (!feed_back(t, i, a, err) || ((i || t->batch->attn) &&
                                          !tcu_mixer_of(&t->model->layers[i])->backward(t, i, a, err)))
            return false;
    }
    return true;
}
