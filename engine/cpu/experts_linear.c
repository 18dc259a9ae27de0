/* experts_linear.c - products of experts over their own pairs, and of their adapters.
 *
 * Every pair's row is a chain of its own, so it does not matter how many rows an expert has. Sums over tokens (the
 * gradients) run in the order of rows. May touch: the buffers it is given, gradient blocks of
 * segments.
 */
#include <assert.h>
#include <string.h>
#include "cpu/experts.h"

/* ---- the experts' matrices ---- */

typedef struct bias_loop {
    const tke_pairs *p;
    const tke_stack *s;
    tke_real *y;
} bias_loop;

static void bias_task(void *arg, int64_t pair, int32_t worker)
{
    const bias_loop *l = arg;
    size_t e = (size_t)l->p->chosen[l->p->slot_of[pair]], n = l->s->out;
    (void)worker;
    memcpy(l->y + (size_t)pair * n, l->s->bias + e * n, n * sizeof *l->y);
}

void tke_stack_forward(tke_cpu *cpu, const tke_pairs *p, const tke_stack *s, const tke_real *x,
                       tke_real *y)
{
    tke_calls c = { .cpu = cpu };
    bias_loop l = { p, s, y };
    if (s->bias)
        tke_threads_run(tke_cpu_threads(cpu), (int64_t)tke_pairs_count(p), bias_task, &l);
    for (size_t e = 0; e < p->n_experts; e++) {
        size_t at = (size_t)p->start[e], rows = (size_t)p->start[e + 1] - at;
        if (rows)
            tke_calls_add(&c, &(tke_gemm){ .form = s->transposed ? TKE_NN : TKE_NT,
                                           .accumulate = s->bias != NULL,
                                           .m = (int64_t)rows,
                                           .n = (int64_t)s->out,
                                           .k = (int64_t)s->in,
                                           .alpha = 1,
                                           .a = x + at * s->in,
                                           .lda = (int64_t)s->in,
                                           .b = s->m[e],
                                           .c = y + at * s->out,
                                           .ldc = (int64_t)s->out });
    }
    tke_calls_run(&c);
}

void tke_stack_backward(tke_cpu *cpu, const tke_pairs *p, const tke_stack *s, const tke_real *dy,
                        bool accumulate, tke_real *dx)
{
    tke_calls c = { .cpu = cpu };
    for (size_t e = 0; e < p->n_experts; e++) {
        size_t at = (size_t)p->start[e], rows = (size_t)p->start[e + 1] - at;
        if (rows)
            tke_calls_add(&c, &(tke_gemm){ .form = s->transposed ? TKE_NT : TKE_NN,
                                           .accumulate = accumulate,
                                           .m = (int64_t)rows,
                                           .n = (int64_t)s->in,
                                           .k = (int64_t)s->out,
                                           .alpha = 1,
                                           .a = dy + at * s->out,
                                           .lda = (int64_t)s->out,
                                           .b = s->m[e],
                                           .c = dx + at * s->in,
                                           .ldc = (int64_t)s->in });
    }
    tke_calls_run(&c);
}

/* ---- runs: pairs of one expert and one segment ---- */

typedef struct run {
    size_t expert, segment, begin, end; /* pairs */
    tke_adapter_part part;              /* of the segment; g NULL = none */
} run;

/* The next run after r->end; false at the end. Start with a zeroed one. */
static bool next_run(const tke_rows *rows, const tke_pairs *p, const tke_group *group, run *r)
{
    size_t count = tke_pairs_count(p);
    if (r->end == count)
        return false;
    r->begin = r->end;
    while ((size_t)p->start[r->expert + 1] <= r->begin) {
        r->expert++;
        r->segment = 0;
    }
    while (rows->segments[r->segment].end <= (size_t)p->slot_of[r->begin] / p->top)
        r->segment++;
    size_t end = (size_t)p->start[r->expert + 1];
    while (r->end < end && (size_t)p->slot_of[r->end] / p->top < rows->segments[r->segment].end)
        r->end++;
    r->part = tke_adapter_part_of(rows, r->segment, group);
    assert(r->end > r->begin && r->expert < p->n_experts);
    return true;
}

static int64_t rows_of(const run *r)
{
    return (int64_t)(r->end - r->begin);
}

static size_t b_at(const run *r, size_t i)
{
    const tke_lora_group *g = r->part.g;
    return g->b[i] + (g->n_b > 1 ? r->expert : 0) * g->out[i] * g->rank;
}

static size_t a_at(const run *r)
{
    const tke_lora_group *g = r->part.g;
    return g->a + (g->n_a > 1 ? r->expert : 0) * g->rank * g->in;
}

/* ---- an own B ---- */

void tke_own_b_forward(const tke_rows *rows, const tke_pairs *p, const tke_group *group,
                       const tke_real *low, tke_real *const *y)
{
    tke_calls c = { .cpu = rows->cpu };
    size_t ld = group->n * rows->max_rank;
    for (run r = { 0 }; next_run(rows, p, group, &r);)
        for (size_t i = 0; r.part.g && i < group->n; i++) {
            size_t rank = r.part.g->rank, out = r.part.g->out[i];
            tke_calls_add(
                &c, &(tke_gemm){ .form = TKE_NT,
                                 .accumulate = true,
                                 .m = rows_of(&r),
                                 .n = (int64_t)out,
                                 .k = (int64_t)rank,
                                 .alpha = r.part.scale,
                                 .a = low + r.begin * ld + i * rank,
                                 .lda = (int64_t)ld,
                                 .b = tke_matrix_real(r.part.weights + b_at(&r, i), (int64_t)rank),
                                 .c = y[i] + r.begin * out,
                                 .ldc = (int64_t)out });
        }
    tke_calls_run(&c);
}

void tke_own_b_backward(const tke_rows *rows, const tke_pairs *p, const tke_group *group,
                        const tke_real *low, const tke_real *const *dy, tke_real *dlow)
{
    tke_calls c = { .cpu = rows->cpu };
    size_t ld = group->n * rows->max_rank;
    memset(dlow, 0, tke_pairs_count(p) * ld * sizeof *dlow);
    for (run r = { 0 }; next_run(rows, p, group, &r);)
        for (size_t i = 0; r.part.g && i < group->n; i++) {
            size_t rank = r.part.g->rank, out = r.part.g->out[i], at = r.begin * ld + i * rank;
            const tke_real *d = dy[i] + r.begin * out;
            tke_calls_add(
                &c, &(tke_gemm){ .form = TKE_NN,
                                 .m = rows_of(&r),
                                 .n = (int64_t)rank,
                                 .k = (int64_t)out,
                                 .alpha = r.part.scale,
                                 .a = d,
                                 .lda = (int64_t)out,
                                 .b = tke_matrix_real(r.part.weights + b_at(&r, i), (int64_t)rank),
                                 .c = dlow + at,
                                 .ldc = (int64_t)ld });
            if (r.part.grads)
                tke_calls_add(&c, &(tke_gemm){ .form = TKE_TN,
                                               .accumulate = true,
                                               .m = (int64_t)out,
                                               .n = (int64_t)rank,
                                               .k = rows_of(&r),
                                               .alpha = r.part.scale,
                                               .a = d,
                                               .lda = (int64_t)out,
                                               .b = tke_matrix_real(low + at, (int64_t)ld),
                                               .c = r.part.grads + b_at(&r, i),
                                               .ldc = (int64_t)rank });
        }
    tke_calls_run(&c);
}

/* ---- an own A ---- */

void tke_own_a_forward(const tke_rows *rows, const tke_pairs *p, const tke_group *group,
                       const tke_real *x, tke_real *low)
{
    tke_calls c = { .cpu = rows->cpu };
    size_t ld = rows->max_rank;
    memset(low, 0, tke_pairs_count(p) * ld * sizeof *low);
    for (run r = { 0 }; next_run(rows, p, group, &r);) {
        if (!r.part.g)
            continue;
        size_t in = r.part.g->in;
        tke_calls_add(&c, &(tke_gemm){ .form = TKE_NT,
                                       .m = rows_of(&r),
                                       .n = (int64_t)r.part.g->rank,
                                       .k = (int64_t)in,
                                       .alpha = 1,
                                       .a = x + r.begin * in,
                                       .lda = (int64_t)in,
                                       .b = tke_matrix_real(r.part.weights + a_at(&r), (int64_t)in),
                                       .c = low + r.begin * ld,
                                       .ldc = (int64_t)ld });
    }
    tke_calls_run(&c);
}

void tke_own_a_backward(const tke_rows *rows, const tke_pairs *p, const tke_group *group,
                        const tke_real *dlow, tke_real *dx)
{
    tke_calls c = { .cpu = rows->cpu };
    size_t ld = rows->max_rank;
    for (run r = { 0 }; next_run(rows, p, group, &r);) {
        if (!r.part.g)
            continue;
        size_t in = r.part.g->in;
        tke_calls_add(&c, &(tke_gemm){ .form = TKE_NN,
                                       .accumulate = true,
                                       .m = rows_of(&r),
                                       .n = (int64_t)in,
                                       .k = (int64_t)r.part.g->rank,
                                       .alpha = 1,
                                       .a = dlow + r.begin * ld,
                                       .lda = (int64_t)ld,
                                       .b = tke_matrix_real(r.part.weights + a_at(&r), (int64_t)in),
                                       .c = dx + r.begin * in,
                                       .ldc = (int64_t)in });
    }
    tke_calls_run(&c);
}

void tke_own_a_gradient(const tke_rows *rows, const tke_pairs *p, const tke_group *group,
                        const tke_real *dlow, const tke_real *x)
{
    tke_calls c = { .cpu = rows->cpu };
    size_t ld = rows->max_rank;
    for (run r = { 0 }; next_run(rows, p, group, &r);) {
        if (!r.part.grads)
            continue;
        size_t in = r.part.g->in;
        tke_calls_add(&c, &(tke_gemm){ .form = TKE_TN,
                                       .accumulate = true,
                                       .m = (int64_t)r.part.g->rank,
                                       .n = (int64_t)in,
                                       .k = rows_of(&r),
                                       .alpha = 1,
                                       .a = dlow + r.begin * ld,
                                       .lda = (int64_t)ld,
                                       .b = tke_matrix_real(x + r.begin * in, (int64_t)in),
                                       .c = r.part.grads + a_at(&r),
                                       .ldc = (int64_t)in });
    }
    tke_calls_run(&c);
}

/* ---- the shared B, over rows ---- */

void tke_shared_b_forward(const tke_rows *rows, const tke_group *group, const tke_real *low,
                          tke_real *y)
{
    tke_calls c = { .cpu = rows->cpu };
    size_t ld = rows->max_rank;
    for (size_t s = 0; s < rows->n_segments; s++) {
        tke_adapter_part p = tke_adapter_part_of(rows, s, group);
        if (!p.g)
            continue;
        size_t out = p.g->out[0], rank = p.g->rank;
        tke_calls_add(&c, &(tke_gemm){ .form = TKE_NT,
                                       .accumulate = true,
                                       .m = p.rows,
                                       .n = (int64_t)out,
                                       .k = (int64_t)rank,
                                       .alpha = p.scale,
                                       .a = low + p.begin * ld,
                                       .lda = (int64_t)ld,
                                       .b = tke_matrix_real(p.weights + p.g->b[0], (int64_t)rank),
                                       .c = y + p.begin * out,
                                       .ldc = (int64_t)out });
    }
    tke_calls_run(&c);
}

void tke_shared_b_backward(const tke_rows *rows, const tke_group *group, const tke_real *low,
                           const tke_real *dy, tke_real *dlow)
{
    tke_calls c = { .cpu = rows->cpu };
    size_t ld = rows->max_rank;
    memset(dlow, 0, rows->n * ld * sizeof *dlow);
    for (size_t s = 0; s < rows->n_segments; s++) {
        tke_adapter_part p = tke_adapter_part_of(rows, s, group);
        if (!p.g)
            continue;
        size_t out = p.g->out[0], rank = p.g->rank;
        tke_gemm g = { .form = TKE_NN,
                       .m = p.rows,
                       .n = (int64_t)rank,
                       .k = (int64_t)out,
                       .alpha = p.scale,
                       .a = dy + p.begin * out,
                       .lda = (int64_t)out,
                       .b = tke_matrix_real(p.weights + p.g->b[0], (int64_t)rank),
                       .c = dlow + p.begin * ld,
                       .ldc = (int64_t)ld };
        tke_calls_add(&c, &g);
        if (!p.grads)
            continue;
        g = (tke_gemm){ .form = TKE_TN,
                        .accumulate = true,
                        .m = (int64_t)out,
                        .n = (int64_t)rank,
                        .k = p.rows,
                        .alpha = p.scale,
                        .a = dy + p.begin * out,
                        .lda = (int64_t)out,
                        .b = tke_matrix_real(low + p.begin * ld, (int64_t)ld),
                        .c = p.grads + p.g->b[0],
                        .ldc = (int64_t)rank };
        tke_calls_add(&c, &g);
    }
    tke_calls_run(&c);
}
