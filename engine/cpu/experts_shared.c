/* experts_shared.c - the expert of every row beside those that a router chooses, weighted by a gate of
 * its own or not at all.
 *
 * May touch: the places it is given.
 */
#include <string.h>
#include "cpu/experts.h"

/* kept: the dense part's, its result, the gate before the sigmoid */
enum { DENSE, RESULT = DENSE + TKE_DENSE_KEPT, GATE };
enum { M, D }; /* work: the dense part's; gradients [n, H] */

void tke_shared_keep(tke_walk *w, const tke_experts *x, const tke_microbatch_size *size,
                     tke_real **at)
{
    tke_dense_keep(w, x->shared, size, at + DENSE);
    tke_take(w, &at[RESULT], size->n * x->out.out);
    tke_take(w, &at[GATE], size->n);
}

void tke_shared_work(tke_walk *w, const tke_experts *x, const tke_microbatch_size *size,
                     tke_real **at)
{
    tke_take(w, &at[M], size->n * x->shared->inner);
    if (size->depth == TKE_DEPTH_ALL)
        tke_take(w, &at[D], size->n * x->out.out);
}

typedef struct loop {
    size_t width;
    bool gated;
    tke_real *gate;
    const tke_real *result, *dy;
    tke_real *y;
} loop;

/* exp(-|x|) cannot overflow. */
static tke_real sigmoid(tke_real x)
{
    tke_real e = tke_real_exp(-tke_real_fabs(x));
    return (x < 0 ? e : 1) / (1 + e);
}

static void add_task(void *arg, int64_t row, int32_t worker)
{
    const loop *l = arg;
    tke_real weight = l->gated ? sigmoid(l->gate[row]) : 1;
    size_t at = (size_t)row * l->width;
    (void)worker;
    for (size_t i = at; i < at + l->width; i++)
        l->y[i] += weight * l->result[i];
}

/* y = the gradient of the result; gate = that of the gate's product. */
static void back_task(void *arg, int64_t row, int32_t worker)
{
    const loop *l = arg;
    tke_real weight = l->gated ? sigmoid(l->gate[row]) : 1, sum = 0;
    size_t at = (size_t)row * l->width;
    (void)worker;
    for (size_t i = at; i < at + l->width; i++) {
        sum += l->result[i] * l->dy[i];
        l->y[i] = weight * l->dy[i];
    }
    if (l->gated)
        l->gate[row] = sum * weight * (1 - weight);
}

static void gate_product(const tke_turn *u, const tke_weight *w, bool back, const tke_real *x,
                         tke_real *y)
{
    int64_t in = (int64_t)(back ? w->out : w->in), out = (int64_t)(back ? w->in : w->out);
    tke_gemm_run(u->rows->cpu, &(tke_gemm){ .form = back ? TKE_NN : TKE_NT,
                                            .accumulate = back,
                                            .exact = true,
                                            .m = (int64_t)u->rows->n,
                                            .n = out,
                                            .k = in,
                                            .alpha = 1,
                                            .a = x,
                                            .lda = in,
                                            .b = w->m,
                                            .c = y,
                                            .ldc = out });
}

void tke_shared_forward(const tke_turn *u, tke_real *const *keep, tke_real *const *work,
                        const tke_real *x, tke_real *y)
{
    const tke_experts *e = u->layer->experts;
    loop l = { .width = e->out.out,
               .gated = e->shared_gate.m.data != NULL,
               .gate = keep[GATE],
               .result = keep[RESULT],
               .y = y };
    tke_dense_forward(u, e->shared, keep + DENSE, work[M], x, keep[RESULT]);
    if (l.gated)
        gate_product(u, &e->shared_gate, false, x, keep[GATE]);
    if (y)
        tke_threads_run(tke_cpu_threads(u->rows->cpu), (int64_t)u->rows->n, add_task, &l);
}

void tke_shared_backward(const tke_turn *u, tke_real *const *keep, tke_real *const *work,
                         const tke_real *x, const tke_real *dy, tke_real *dx)
{
    const tke_experts *e = u->layer->experts;
    loop l = { .width = e->out.out,
               .gated = e->shared_gate.m.data != NULL,
               .gate = keep[GATE],
               .result = keep[RESULT],
               .dy = dy,
               .y = work[D] };
    tke_threads_run(tke_cpu_threads(u->rows->cpu), (int64_t)u->rows->n, back_task, &l);
    tke_dense_backward(u, e->shared, keep + DENSE, work[M], x, work[D], dx ? work[D] : NULL);
    if (!dx)
        return;
    tke_add(u->rows->cpu, (int64_t)(u->rows->n * l.width), work[D], dx);
    if (l.gated)
        gate_product(u, &e->shared_gate, true, keep[GATE], dx);
}
