/* part_dense.c - the dense feed-forward: down(silu(gate x) * up x) or down(max(up x, 0)^2), as a part
 * and as a piece of another. May touch: its slots. */
#include "cpu/part.h"

enum { GATE, UP, LOW_IN, LOW_DOWN }; /* kept; squared: up x is in GATE */
enum { M };                          /* work: silu(gate) * up, then its gradient */
_Static_assert((int)LOW_DOWN + 1 == (int)TKE_DENSE_KEPT, "as many as part.h says");

void tke_dense_keep(tke_walk *w, const tke_dense *d, const tke_microbatch_size *size, tke_real **at)
{
    tke_take(w, &at[GATE], size->n * d->inner);
    tke_take(w, &at[UP], d->squared ? 0 : size->n * d->inner);
    tke_take(w, &at[LOW_IN], size->n * size->max_rank * d->gate_up->n);
    tke_take(w, &at[LOW_DOWN], size->n * size->max_rank * d->down->n);
}

static void act(const tke_turn *u, const tke_dense *d, tke_real *const *t, tke_real *m)
{
    int64_t count = (int64_t)(u->rows->n * d->inner);
    if (d->squared)
        tke_relu_squared(u->rows->cpu, count, t[GATE], m);
    else
        tke_swiglu(u->rows->cpu, count, t[GATE], t[UP], m);
}

void tke_dense_forward(const tke_turn *u, const tke_dense *d, tke_real *const *t, tke_real *m,
                       const tke_real *x, tke_real *y)
{
    tke_group_forward(u->rows, d->gate_up, x, &t[GATE], t[LOW_IN]);
    act(u, d, t, m);
    if (y)
        tke_group_forward(u->rows, d->down, m, &y, t[LOW_DOWN]);
    else
        tke_group_low(u->rows, d->down, m, t[LOW_DOWN]);
}

void tke_dense_backward(const tke_turn *u, const tke_dense *d, tke_real *const *t, tke_real *m,
                        const tke_real *x, const tke_real *dy, tke_real *dx)
{
    int64_t count = (int64_t)(u->rows->n * d->inner);
    const tke_real *dgu[2] = { t[GATE], t[UP] };
    act(u, d, t, m);
    tke_group_backward(u->rows, d->down, m, &dy, t[LOW_DOWN], u->dlow, m); /* m: dm */
    if (d->squared)
        tke_relu_squared_backward(u->rows->cpu, count, m, t[GATE]);
    else
        tke_swiglu_backward(u->rows->cpu, count, t[GATE], t[UP], m, t[GATE], t[UP]);
    tke_group_backward(u->rows, d->gate_up, x, dgu, t[LOW_IN], u->dlow, dx);
}

/* ---- the part ---- */

static void keep(tke_walk *w, const tke_layer *l, const tke_microbatch_size *size, tke_slots *t)
{
    tke_dense_keep(w, l->dense, size, t->at);
}

static void work(tke_walk *w, const tke_layer *l, const tke_microbatch_size *size, tke_slots *t)
{
    tke_take(w, &t->at[M], size->n * l->dense->inner);
}

static void forward(const tke_turn *u, const tke_real *x, tke_real *y)
{
    tke_dense_forward(u, u->layer->dense, u->keep->at, u->work->at[M], x, y);
}

static void backward(const tke_turn *u, const tke_real *x, const tke_real *dy, tke_real *dx)
{
    tke_dense_backward(u, u->layer->dense, u->keep->at, u->work->at[M], x, dy, dx);
}

const tke_part tke_part_dense = {
    .keep = keep, .work = work, .forward = forward, .backward = backward, .step = forward
};
