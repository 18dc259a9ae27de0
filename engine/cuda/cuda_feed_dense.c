/* cuda_feed_dense.c - a dense feed-forward, as a part and as a piece of another one.
 *
 * May touch: its slots.
 */
#include "cuda/cuda_part.h"

/* kept: gate and up, A x of the groups */
enum { GU, LOW_IN, LOW_OUT };
/* work */
enum { M, DM };

void tcu_dense_keep(tcu_walk *w, const tcu_dense *x, const tcu_size *s, tcu_slots *t, int first)
{
    TCU_SLOT(w, t, first + GU, tcu_bf16, s->n * (size_t)x->in.rows);
    TCU_SLOT(w, t, first + LOW_IN, tcu_bf16, s->n * (size_t)x->in.n * s->most);
    TCU_SLOT(w, t, first + LOW_OUT, tcu_bf16, s->n * s->most);
}

/* m from a, and what is kept between them. */
static bool make_m(const tcu_turn *u, const tcu_dense *x, void *const *t, const tcu_bf16 *a,
                   tcu_bf16 *m, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    const tcu_expert_act squared = { .width = x->inner, .squared = true };
    tcu_lora p;
    bool done;
    if (!tcu_group_once(u, &x->in, a, t[LOW_IN], t[GU], &done, err))
        return false;
    if (!done && !x->squared && tcu_turn_fused(u))
        return tcu_group_halves(u, &x->in, a, t[LOW_IN], &p, err) &&
               tcu_ok(d, tcu_high_swiglu(&p, t[LOW_IN], u->wide, x->in.bias, m, d->stream), "SwiGLU",
                      err);
    return (done || tcu_group_forward(u, &x->in, a, t[LOW_IN], t[GU], err)) &&
           (x->squared ? tcu_ok(d, tcu_act(&squared, t[GU], m, u->rows->n, d->stream),
                                "squared ReLU", err)
                       : tcu_ok(d, tcu_swiglu(t[GU], m, u->rows->n, x->inner, d->stream), "SwiGLU",
                                err));
}

bool tcu_dense_forward(const tcu_turn *u, const tcu_dense *x, int first, tcu_bf16 *m,
                       const tcu_bf16 *a, tcu_bf16 *y, tinkc_error *err)
{
    void *const *t = u->keep->at + first;
    return make_m(u, x, t, a, m, err) &&
           (y ? tcu_group_forward(u, &x->out, m, t[LOW_OUT], y, err)
              : tcu_group_low(u, &x->out, m, t[LOW_OUT], err));
}

bool tcu_dense_backward(const tcu_turn *u, const tcu_dense *x, int first, tcu_bf16 *m, tcu_bf16 *dm,
                        const tcu_bf16 *a, const tcu_bf16 *dy, tcu_bf16 *dx, tinkc_error *err)
{
    tcu_device *d = u->rows->model->device;
    int32_t n = u->rows->n;
    void *const *t = u->keep->at + first;
    const tcu_expert_act squared = { .width = x->inner, .squared = true };
    int64_t count = (int64_t)n * x->inner;
    return tcu_ok(d,
                  x->squared ? tcu_act(&squared, t[GU], m, n, d->stream)
                             : tcu_swiglu(t[GU], m, n, x->inner, d->stream),
                  "SwiGLU", err) &&
           tcu_group_back(u, &x->out, m, dy, t[LOW_OUT], false, dm, err) &&
           tcu_ok(d,
                  x->squared ? tcu_squared_back(t[GU], dm, count, d->stream)
                             : tcu_swiglu_back(t[GU], dm, t[GU], n, x->inner, d->stream),
                  "SwiGLU", err) &&
           tcu_group_back(u, &x->in, a, t[GU], t[LOW_IN], false, dx, err);
}

void tcu_dense_weights(tcu_loader *loader, const tke_dense *from, tcu_dense *to)
{
    tcu_load_group(loader, from->gate_up, NULL, NULL, &to->in);
    tcu_load_group(loader, from->down, NULL, NULL, &to->out);
    to->inner = to->out.in;
    to->squared = from->squared;
}

/* ---- the part ---- */

static bool runs(const tke_model *m, const tke_layer *l, tinkc_error *err)
{
    (void)m, (void)l, (void)err;
    return true;
}

static void weights(tcu_loader *loader, const tke_layer *from, tcu_layer *to)
{
    tcu_dense_weights(loader, from->dense, &to->dense);
}

static void keep(tcu_walk *w, const tcu_model *m, const tcu_layer *l, const tcu_size *s,
                 tcu_slots *t)
{
    (void)m;
    tcu_dense_keep(w, &l->dense, s, t, GU);
}

static void work(tcu_walk *w, const tcu_model *m, const tcu_layer *l, const tcu_size *s,
                 tcu_slots *t)
{
    (void)m;
    TCU_SLOT(w, t, M, tcu_bf16, s->n * (size_t)l->dense.inner);
    if (s->n_data)
        TCU_SLOT(w, t, DM, tcu_bf16, s->n * (size_t)l->dense.inner);
}

static bool forward(const tcu_turn *u, const tcu_bf16 *a, tcu_bf16 *y, tinkc_error *err)
{
    return tcu_dense_forward(u, &u->layer->dense, GU, u->work->at[M], a, y, err);
}

static bool backward(const tcu_turn *u, const tcu_bf16 *a, const tcu_bf16 *dy, tcu_bf16 *dx,
                     tinkc_error *err)
{
    return tcu_dense_backward(u, &u->layer->dense, GU, u->work->at[M], u->work->at[DM], a, dy, dx,
                              err);
}

const tcu_part tcu_part_dense = { .runs = runs,
                                  .weights = weights,
                                  .keep = keep,
                                  .work = work,
                                  .forward = forward,
                                  .backward = backward,
                                  .step = forward };
