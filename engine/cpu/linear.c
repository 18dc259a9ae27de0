/* linear.c - groups of linear layers with the adapters of their segments, forward and backward.
 *
 * A product with the base weights takes all rows at once; the low-rank products take the rows of
 * their own segment. Products that do not depend on each other are handed to the kernels together.
 *
 * May touch: the buffers it is given, gradient blocks of segments. Must not: compute anything that
 * depends on which rows share a call. Sums over tokens run in the order of the rows, so that the
 * bits of an adapter's gradient do not depend on how requests were cut into microbatches.
 */
#include <assert.h>
#include "cpu/block.h"

typedef tke_calls calls;
typedef tke_adapter_part part;

void tke_calls_run(tke_calls *c)
{
    if (c->n)
        tke_gemm_run_all(c->cpu, c->list, c->n);
    c->n = 0;
}

void tke_calls_add(tke_calls *c, const tke_gemm *g)
{
    assert(c->n < TKE_CALLS);
    c->list[c->n++] = *g;
    if (c->n == TKE_CALLS)
        tke_calls_run(c);
}

tke_adapter_part tke_adapter_part_of(const tke_rows *r, size_t segment, const tke_group *group)
{
    const tke_segment *s = &r->segments[segment];
    assert(s->begin <= s->end && (!s->lora || group->index < s->lora->layout->n_groups));
    if (!s->lora || !s->lora->layout->groups[group->index].n)
        return (part){ 0 };
    const tke_lora_group *g = &s->lora->layout->groups[group->index];
    assert(g->n == group->n && g->rank <= r->max_rank);
    return (part){ .g = g,
                   .begin = s->begin,
                   .rows = (int64_t)(s->end - s->begin),
                   .weights = tke_block_reals(s->lora->weights),
                   .grads = s->grads ? tke_block_reals(s->grads) : NULL,
                   .scale = s->lora->scale };
}

static tke_matrix a_of(const part *p)
{
    return tke_matrix_real(p->weights + p->g->a, (int64_t)p->g->in);
}

static tke_matrix b_of(const part *p, size_t i)
{
    return tke_matrix_real(p->weights + p->g->b[i], (int64_t)p->g->rank);
}

/* ---- forward ---- */

/* low[rows of segment] = A x */
static void add_low(calls *c, const part *p, const tke_real *x, tke_real *low, size_t ld)
{
    assert(low && p->g->n * p->g->rank <= ld);
    tke_calls_add(c, &(tke_gemm){ .form = TKE_NT,
                                  .m = p->rows,
                                  .n = (int64_t)(p->g->n * p->g->rank),
                                  .k = (int64_t)p->g->in,
                                  .alpha = 1,
                                  .a = x + p->begin * p->g->in,
                                  .lda = (int64_t)p->g->in,
                                  .b = a_of(p),
                                  .c = low + p->begin * ld,
                                  .ldc = (int64_t)ld });
}

/* y[rows of segment] += scale B low */
static void add_high(calls *c, const part *p, size_t i, const tke_real *low, size_t ld, tke_real *y)
{
    tke_calls_add(c, &(tke_gemm){ .form = TKE_NT,
                                  .accumulate = true,
                                  .m = p->rows,
                                  .n = (int64_t)p->g->out[i],
                                  .k = (int64_t)p->g->rank,
                                  .alpha = p->scale,
                                  .a = low + p->begin * ld + i * p->g->rank,
                                  .lda = (int64_t)ld,
                                  .b = b_of(p, i),
                                  .c = y + p->begin * p->g->out[i],
                                  .ldc = (int64_t)p->g->out[i] });
}

static void add_base(calls *c, const tke_rows *r, const tke_weight *w, const tke_real *x,
                     tke_real *y)
{
    if (w->bias)
        tke_fill_rows(r->cpu, (int64_t)r->n, (int64_t)w->out,
                      tke_matrix_real(w->bias, (int64_t)w->out), y, (int64_t)w->out);
    tke_calls_add(c, &(tke_gemm){ .form = TKE_NT,
                                  .accumulate = w->bias != NULL,
                                  .m = (int64_t)r->n,
                                  .n = (int64_t)w->out,
                                  .k = (int64_t)w->in,
                                  .alpha = 1,
                                  .a = x,
                                  .lda = (int64_t)w->in,
                                  .b = w->m,
                                  .c = y,
                                  .ldc = (int64_t)w->out });
}

static void add_lows(calls *c, const tke_rows *r, const tke_group *group, const tke_real *x,
                     tke_real *low)
{
    for (size_t s = 0; s < r->n_segments; s++) {
        part p = tke_adapter_part_of(r, s, group);
        if (p.g)
            add_low(c, &p, x, low, group->n * r->max_rank);
    }
    tke_calls_run(c);
}

void tke_group_forward(const tke_rows *r, const tke_group *group, const tke_real *x,
                       tke_real *const *y, tke_real *low)
{
    calls c = { .cpu = r->cpu };
    for (size_t i = 0; i < group->n; i++)
        add_base(&c, r, &group->w[i], x, y[i]);
    add_lows(&c, r, group, x, low);
    for (size_t s = 0; s < r->n_segments; s++) {
        part p = tke_adapter_part_of(r, s, group);
        for (size_t i = 0; p.g && i < group->n; i++)
            add_high(&c, &p, i, low, group->n * r->max_rank, y[i]);
    }
    tke_calls_run(&c);
}

void tke_group_low(const tke_rows *r, const tke_group *group, const tke_real *x, tke_real *low)
{
    calls c = { .cpu = r->cpu };
    add_lows(&c, r, group, x, low);
}

/* ---- backward ---- */

/* dlow_i = scale dy_i B_i */
static void add_dlow(calls *c, const part *p, size_t i, const tke_real *dy, tke_real *dlow,
                     size_t ld)
{
    tke_calls_add(c, &(tke_gemm){ .form = TKE_NN,
                                  .m = p->rows,
                                  .n = (int64_t)p->g->rank,
                                  .k = (int64_t)p->g->out[i],
                                  .alpha = p->scale,
                                  .a = dy + p->begin * p->g->out[i],
                                  .lda = (int64_t)p->g->out[i],
                                  .b = b_of(p, i),
                                  .c = dlow + p->begin * ld + i * p->g->rank,
                                  .ldc = (int64_t)ld });
}

/* dB_i += scale dy_i^T low_i */
static void add_db(calls *c, const part *p, size_t i, const tke_real *dy, const tke_real *low,
                   size_t ld)
{
    const tke_real *low_i = low + p->begin * ld + i * p->g->rank;
    tke_calls_add(c, &(tke_gemm){ .form = TKE_TN,
                                  .accumulate = true,
                                  .m = (int64_t)p->g->out[i],
                                  .n = (int64_t)p->g->rank,
                                  .k = p->rows,
                                  .alpha = p->scale,
                                  .a = dy + p->begin * p->g->out[i],
                                  .lda = (int64_t)p->g->out[i],
                                  .b = tke_matrix_real(low_i, (int64_t)ld),
                                  .c = p->grads + p->g->b[i],
                                  .ldc = (int64_t)p->g->rank });
}

/* dA += dlow^T x, all matrices of the group at once */
static void add_da(calls *c, const part *p, const tke_real *x, const tke_real *dlow, size_t ld)
{
    const tke_real *rows = x + p->begin * p->g->in;
    tke_calls_add(c, &(tke_gemm){ .form = TKE_TN,
                                  .accumulate = true,
                                  .m = (int64_t)(p->g->n * p->g->rank),
                                  .n = (int64_t)p->g->in,
                                  .k = p->rows,
                                  .alpha = 1,
                                  .a = dlow + p->begin * ld,
                                  .lda = (int64_t)ld,
                                  .b = tke_matrix_real(rows, (int64_t)p->g->in),
                                  .c = p->grads + p->g->a,
                                  .ldc = (int64_t)p->g->in });
}

/* dx += dlow A */
static void add_dx_low(calls *c, const part *p, const tke_real *dlow, size_t ld, tke_real *dx)
{
    tke_calls_add(c, &(tke_gemm){ .form = TKE_NN,
                                  .accumulate = true,
                                  .m = p->rows,
                                  .n = (int64_t)p->g->in,
                                  .k = (int64_t)(p->g->n * p->g->rank),
                                  .alpha = 1,
                                  .a = dlow + p->begin * ld,
                                  .lda = (int64_t)ld,
                                  .b = a_of(p),
                                  .c = dx + p->begin * p->g->in,
                                  .ldc = (int64_t)p->g->in });
}

static void add_dx_base(calls *c, const tke_rows *r, const tke_weight *w, const tke_real *dy,
                        tke_real *dx, bool accumulate)
{
    tke_calls_add(c, &(tke_gemm){ .form = TKE_NN,
                                  .accumulate = accumulate,
                                  .m = (int64_t)r->n,
                                  .n = (int64_t)w->in,
                                  .k = (int64_t)w->out,
                                  .alpha = 1,
                                  .a = dy,
                                  .lda = (int64_t)w->out,
                                  .b = w->m,
                                  .c = dx,
                                  .ldc = (int64_t)w->in });
}

/* dlow and the gradients of the adapters. */
static void adapter_backward(calls *c, const tke_rows *r, const tke_group *group, const tke_real *x,
                             const tke_real *const *dy, const tke_real *low, tke_real *dlow)
{
    size_t ld = group->n * r->max_rank;
    for (size_t s = 0; s < r->n_segments; s++) {
        part p = tke_adapter_part_of(r, s, group);
        for (size_t i = 0; p.g && i < group->n; i++) {
            add_dlow(c, &p, i, dy[i], dlow, ld);
            if (p.grads)
                add_db(c, &p, i, dy[i], low, ld);
        }
    }
    tke_calls_run(c);
    for (size_t s = 0; s < r->n_segments; s++) {
        part p = tke_adapter_part_of(r, s, group);
        if (p.grads)
            add_da(c, &p, x, dlow, ld);
    }
    tke_calls_run(c); /* before dx, which may lie where x is */
}

void tke_group_backward(const tke_rows *r, const tke_group *group, const tke_real *x,
                        const tke_real *const *dy, const tke_real *low, tke_real *dlow,
                        tke_real *dx)
{
    calls c = { .cpu = r->cpu };
    assert(low != dlow || !low);
    adapter_backward(&c, r, group, x, dy, low, dlow);
    if (!dx)
        return;
    for (size_t i = 0; i < group->n; i++) {
        add_dx_base(&c, r, &group->w[i], dy[i], dx, i > 0);
        tke_calls_run(&c); /* each adds to the previous result */
    }
    for (size_t s = 0; s < r->n_segments; s++) {
        part p = tke_adapter_part_of(r, s, group);
        if (p.g)
            add_dx_low(&c, &p, dlow, group->n * r->max_rank, dx);
    }
    tke_calls_run(&c);
}

void tke_group_low_backward(const tke_rows *r, const tke_group *group, const tke_real *x,
                            const tke_real *dlow, tke_real *dx)
{
    calls c = { .cpu = r->cpu };
    size_t ld = group->n * r->max_rank;
    for (size_t s = 0; s < r->n_segments; s++) {
        part p = tke_adapter_part_of(r, s, group);
        if (p.grads)
            add_da(&c, &p, x, dlow, ld);
        if (p.g && dx)
            add_dx_low(&c, &p, dlow, ld, dx);
    }
    tke_calls_run(&c);
}
