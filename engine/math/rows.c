/* rows.c - work on rows and on flat runs of numbers, split over threads: norms, rotation, swiglu,
 * softmax pieces, Adam, sums. This file only splits and copies; the kernel set does the arithmetic. */
#include <assert.h>
#include <math.h>

#include "math/format.h"
#include "math/kernel_set.h"

/* One struct for all loops: each uses the fields it needs. */
typedef struct work {
    tke_cpu *cpu;
    int64_t total, step; /* rows or numbers, and how many of them a task takes */
    int64_t n, heads, ld;
    const tke_real *x, *w, *u, *dy, *cos_table, *sin_table, *scale;
    tke_matrix matrix;
    tke_real *y, *z, *v, *max, *sum;
    double *partial;
    const int32_t *ids;
    const tke_adam *adam;
    tke_real eps;
    bool flag;
} work;

static int64_t task_begin(const work *w, int64_t task, int64_t *count)
{
    int64_t begin = task * w->step;
    *count = w->total - begin < w->step ? w->total - begin : w->step;
    assert(begin >= 0 && *count > 0); /* no task is empty */
    return begin;
}

/* In tasks of about 32 K numbers. */
static void spread(work *w, int64_t numbers_per_item, int64_t multiple, tke_task_fn *fn)
{
    if (w->total <= 0)
        return;
    int64_t per = numbers_per_item > 0 ? numbers_per_item : 1;
    int64_t step = 32768 / per;
    step = (step + multiple - 1) / multiple * multiple;
    w->step = step > 0 ? step : multiple;
    assert(w->step > 0 && w->step % multiple == 0);
    tke_threads_run(w->cpu->threads, (w->total + w->step - 1) / w->step, fn, w);
}

static void embed_task(void *arg, int64_t task, int32_t worker)
{
    const work *w = arg;
    int64_t count, begin = task_begin(w, task, &count);
    (void)worker;
    for (int64_t i = begin; i < begin + count; i++)
        tke_matrix_row(&w->matrix, w->ids[i], 0, w->n, w->y + i * w->n);
}

void tke_embed(tke_cpu *cpu, int64_t rows, int64_t n, const int32_t *ids, tke_matrix e,
               tke_real *out)
{
    work w = { .cpu = cpu, .total = rows, .n = n, .ids = ids, .matrix = e, .y = out };
    assert(e.ld >= n);
    spread(&w, n, 1, embed_task);
}

static void fill_task(void *arg, int64_t task, int32_t worker)
{
    const work *w = arg;
    int64_t count, begin = task_begin(w, task, &count);
    (void)worker;
    for (int64_t i = begin; i < begin + count; i++)
        tke_widen(w->matrix.dtype, w->matrix.data, (size_t)w->n, w->y + i * w->ld);
}

void tke_fill_rows(tke_cpu *cpu, int64_t rows, int64_t n, tke_matrix vector, tke_real *y,
                   int64_t ldy)
{
    work w = { .cpu = cpu, .total = rows, .n = n, .matrix = vector, .y = y, .ld = ldy };
    assert(ldy >= n);
    spread(&w, n, 1, fill_task);
}

static void add_task(void *arg, int64_t task, int32_t worker)
{
    const work *w = arg;
    int64_t count, begin = task_begin(w, task, &count);
    const tke_real *x = w->x + begin;
    tke_real *y = w->y + begin;
    (void)worker;
    for (int64_t i = 0; i < count; i++)
        y[i] += x[i];
}

void tke_add(tke_cpu *cpu, int64_t count, const tke_real *x, tke_real *y)
{
    work w = { .cpu = cpu, .total = count, .x = x, .y = y };
    spread(&w, 1, 1, add_task);
}

/* ---- norms ---- */

/* The weight converted to tke_real, in the worker's scratch. */
static const tke_real *wide_weight(const work *w, int32_t worker)
{
    if (w->matrix.dtype == TKE_REAL)
        return w->matrix.data;
    assert((size_t)w->n <= TKE_SCRATCH_BYTES / sizeof(tke_real));
    tke_widen(w->matrix.dtype, w->matrix.data, (size_t)w->n, w->cpu->scratch[worker]);
    return w->cpu->scratch[worker];
}

static void rmsnorm_task(void *arg, int64_t task, int32_t worker)
{
    const work *w = arg;
    int64_t count, begin = task_begin(w, task, &count);
    w->cpu->set->rmsnorm(count, w->n, w->x + begin * w->n, wide_weight(w, worker), w->eps,
                         w->y + begin * w->n);
}

void tke_rmsnorm(tke_cpu *cpu, int64_t rows, int64_t n, const tke_real *x, tke_matrix weight,
                 tke_real eps, tke_real *y)
{
    work w = { .cpu = cpu, .total = rows, .n = n, .x = x, .matrix = weight, .eps = eps, .y = y };
    assert(n > 0 && eps >= 0);
    spread(&w, n, 1, rmsnorm_task);
}

static void rmsnorm_backward_task(void *arg, int64_t task, int32_t worker)
{
    const work *w = arg;
    int64_t count, begin = task_begin(w, task, &count), at = begin * w->n;
    w->cpu->set->rmsnorm_backward(count, w->n, w->x + at, wide_weight(w, worker), w->eps,
                                  w->dy + at, w->y + at, w->flag);
}

void tke_rmsnorm_backward(tke_cpu *cpu, int64_t rows, int64_t n, const tke_real *x,
                          tke_matrix weight, tke_real eps, const tke_real *dy, tke_real *dx,
                          bool accumulate)
{
    work w = { .cpu = cpu,
               .total = rows,
               .n = n,
               .x = x,
               .matrix = weight,
               .eps = eps,
               .dy = dy,
               .y = dx,
               .flag = accumulate };
    assert(n > 0 && (!accumulate || dx != dy)); /* accumulating would overwrite its input */
    spread(&w, n, 1, rmsnorm_backward_task);
}

/* ---- rotation, swiglu ---- */

static void rope_task(void *arg, int64_t task, int32_t worker)
{
    const work *w = arg;
    int64_t count, begin = task_begin(w, task, &count);
    (void)worker;
    w->cpu->set->rope(count, w->heads, w->n, w->ids + begin, w->cos_table, w->sin_table, w->flag,
                      w->y + begin * w->ld, w->ld);
}

void tke_rope(tke_cpu *cpu, int64_t rows, int64_t heads, int64_t d, const int32_t *positions,
              const tke_real *cos_table, const tke_real *sin_table, bool inverse, tke_real *x,
              int64_t ldx)
{
    work w = { .cpu = cpu,
               .total = rows,
               .heads = heads,
               .n = d,
               .ids = positions,
               .cos_table = cos_table,
               .sin_table = sin_table,
               .flag = inverse,
               .y = x,
               .ld = ldx };
    assert(d % 2 == 0 && ldx >= heads * d);
    spread(&w, heads * d, 1, rope_task);
}

static void swiglu_task(void *arg, int64_t task, int32_t worker)
{
    const work *w = arg;
    int64_t count, begin = task_begin(w, task, &count);
    (void)worker;
    w->cpu->set->swiglu(count, w->x + begin, w->u + begin, w->y + begin);
}

void tke_swiglu(tke_cpu *cpu, int64_t count, const tke_real *g, const tke_real *u, tke_real *m)
{
    work w = { .cpu = cpu, .total = count, .x = g, .u = u, .y = m };
    spread(&w, 8, 64, swiglu_task); /* an exponential costs as much as eight plain numbers */
}

static void swiglu_backward_task(void *arg, int64_t task, int32_t worker)
{
    const work *w = arg;
    int64_t count, begin = task_begin(w, task, &count);
    (void)worker;
    w->cpu->set->swiglu_backward(count, w->x + begin, w->u + begin, w->dy + begin, w->y + begin,
                                 w->z + begin);
}

void tke_swiglu_backward(tke_cpu *cpu, int64_t count, const tke_real *g, const tke_real *u,
                         const tke_real *dm, tke_real *dg, tke_real *du)
{
    work w = { .cpu = cpu, .total = count, .x = g, .u = u, .dy = dm, .y = dg, .z = du };
    assert(dg != du);
    spread(&w, 1, 64, swiglu_backward_task);
}

static void relu_squared_task(void *arg, int64_t task, int32_t worker)
{
    const work *w = arg;
    int64_t count, begin = task_begin(w, task, &count);
    (void)worker;
    for (int64_t i = begin; i < begin + count; i++) {
        tke_real x = w->x[i] > 0 ? w->x[i] : 0;
        w->y[i] = x * x;
    }
}

void tke_relu_squared(tke_cpu *cpu, int64_t count, const tke_real *x, tke_real *y)
{
    work w = { .cpu = cpu, .total = count, .x = x, .y = y };
    spread(&w, 1, 64, relu_squared_task);
}

static void relu_squared_backward_task(void *arg, int64_t task, int32_t worker)
{
    const work *w = arg;
    int64_t count, begin = task_begin(w, task, &count);
    (void)worker;
    for (int64_t i = begin; i < begin + count; i++)
        w->y[i] = 2 * (w->y[i] > 0 ? w->y[i] : 0) * w->dy[i];
}

void tke_relu_squared_backward(tke_cpu *cpu, int64_t count, const tke_real *dy, tke_real *x)
{
    work w = { .cpu = cpu, .total = count, .dy = dy, .y = x };
    spread(&w, 1, 64, relu_squared_backward_task);
}

/* ---- the vocabulary ---- */

void tke_lse_start(int64_t rows, tke_real *max, tke_real *sum)
{
    for (int64_t i = 0; i < rows; i++) {
        max[i] = -(tke_real)INFINITY;
        sum[i] = 0;
    }
}

static void lse_task(void *arg, int64_t task, int32_t worker)
{
    const work *w = arg;
    int64_t count, begin = task_begin(w, task, &count);
    (void)worker;
    w->cpu->set->lse_update(count, w->n, w->x + begin * w->ld, w->ld, w->max + begin,
                            w->sum + begin);
}

void tke_lse_update(tke_cpu *cpu, int64_t rows, int64_t n, const tke_real *z, int64_t ldz,
                    tke_real *max, tke_real *sum)
{
    work w = { .cpu = cpu, .total = rows, .n = n, .x = z, .ld = ldz, .max = max, .sum = sum };
    assert(ldz >= n && max != sum);
    spread(&w, n, 1, lse_task);
}

void tke_lse_finish(int64_t rows, const tke_real *max, const tke_real *sum, tke_real *lse)
{
    for (int64_t i = 0; i < rows; i++)
        lse[i] = max[i] + (tke_real)log((double)sum[i]);
}

static void softmax_task(void *arg, int64_t task, int32_t worker)
{
    const work *w = arg;
    int64_t count, begin = task_begin(w, task, &count);
    (void)worker;
    w->cpu->set->softmax_scaled(count, w->n, w->y + begin * w->ld, w->ld, w->x + begin,
                                w->scale + begin);
}

void tke_softmax_scaled(tke_cpu *cpu, int64_t rows, int64_t n, tke_real *z, int64_t ldz,
                        const tke_real *lse, const tke_real *scale)
{
    work w = { .cpu = cpu, .total = rows, .n = n, .y = z, .ld = ldz, .x = lse, .scale = scale };
    assert(ldz >= n);
    spread(&w, n, 1, softmax_task);
}

/* ---- sums and Adam: blocks of TKE_SUM_BLOCK, their results added in order ---- */

enum { BLOCKS_AT_ONCE = 256 };

static void squares_task(void *arg, int64_t task, int32_t worker)
{
    const work *w = arg;
    int64_t count, begin = task_begin(w, task, &count);
    (void)worker;
    w->partial[task] = w->cpu->set->sum_squares(count, w->x + begin);
}

static void adam_task(void *arg, int64_t task, int32_t worker)
{
    const work *w = arg;
    int64_t count, begin = task_begin(w, task, &count);
    (void)worker;
    w->partial[task] = w->cpu->set->adam(w->adam, count, w->x + begin, w->y + begin, w->z + begin,
                                         w->v + begin, w->flag);
}

/* Runs fn over blocks and adds up what they leave in partial[]. */
static double sum_blocks(const work *all, tke_task_fn *fn)
{
    double partial[BLOCKS_AT_ONCE], sum = 0;
    for (int64_t at = 0; at < all->total; at += (int64_t)TKE_SUM_BLOCK * BLOCKS_AT_ONCE) {
        work w = *all;
        int64_t left = all->total - at, most = (int64_t)TKE_SUM_BLOCK * BLOCKS_AT_ONCE;
        w.total = left < most ? left : most;
        w.step = TKE_SUM_BLOCK;
        w.partial = partial;
        w.x = all->x + at;
        if (all->adam) {
            w.y = all->y + at;
            w.z = all->z + at;
            w.v = all->v + at;
        }
        int64_t blocks = (w.total + w.step - 1) / w.step;
        assert(blocks > 0 && blocks <= BLOCKS_AT_ONCE);
        tke_threads_run(w.cpu->threads, blocks, fn, &w);
        for (int64_t i = 0; i < blocks; i++)
            sum += partial[i];
    }
    return sum;
}

double tke_sum_squares(tke_cpu *cpu, int64_t count, const tke_real *x)
{
    work w = { .cpu = cpu, .total = count, .x = x };
    return sum_blocks(&w, squares_task);
}

double tke_adam_step(tke_cpu *cpu, const tke_adam *adam, int64_t count, const tke_real *g,
                     tke_real *theta, tke_real *m, tke_real *v)
{
    work w = { .cpu = cpu, .total = count, .x = g, .y = theta, .z = m, .v = v, .adam = adam };
    assert(adam->t >= 1 && g != theta);        /* step 0 would divide by 1 - beta^0 */
    double change = sum_blocks(&w, adam_task); /* only checks: writes nothing */
    if (!isfinite(change))
        return (double)NAN;
    w.flag = true;
    return sum_blocks(&w, adam_task);
}

static void finite_task(void *arg, int64_t task, int32_t worker)
{
    const work *w = arg;
    int64_t count, begin = task_begin(w, task, &count);
    const tke_real *x = w->x + begin;
    tke_real bad = 0; /* 0 * inf and 0 * NaN are NaN, and stay */
    (void)worker;
    for (int64_t i = 0; i < count; i++)
        bad += x[i] * 0;
    w->partial[task] = bad == 0 ? 0 : 1;
}

bool tke_all_finite(tke_cpu *cpu, int64_t count, const tke_real *x)
{
    work w = { .cpu = cpu, .total = count, .x = x };
    return sum_blocks(&w, finite_task) == 0;
}
