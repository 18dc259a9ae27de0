/* gemm.c - products, split over threads. Cuts each call into tiles of c, never along k, and hands
 * them to the kernel set. Owns no memory. */
#include <assert.h>

#include "math/format.h"
#include "math/kernel_set.h"

enum { MAX_CALLS = 64 };

/* How one call is cut: a grid of gm x gn parts of whole tiles. */
typedef struct grid {
    int64_t gm, gn, first_task;
} grid;

typedef struct loop {
    tke_cpu *cpu;
    const tke_gemm *calls;
    size_t n_calls;
    /* All are cut into as many parts: first all calls' part 0, then all parts 1, ... A thread's share
     * is then the same part of each, and shares are equal though the calls are not. */
    bool even;
    grid grids[MAX_CALLS];
} loop;

static int64_t ceil_div(int64_t x, int64_t y)
{
    return (x + y - 1) / y;
}

static int64_t smaller(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

/* Part `i` of `parts` of a length, in whole tiles. */
static void part_of(int64_t length, int64_t tile, int64_t parts, int64_t i, int64_t *begin,
                    int64_t *end)
{
    int64_t tiles = ceil_div(length, tile);
    *begin = smaller(length, tiles * i / parts * tile);
    *end = smaller(length, tiles * (i + 1) / parts * tile);
    assert(*begin <= *end);
}

/* The call that a task belongs to, and which part of it the task is. */
static size_t find_call(const loop *l, int64_t task, int64_t *part)
{
    int64_t n = (int64_t)l->n_calls, i = 0;
    if (l->even) {
        *part = task / n;
        return (size_t)(task % n);
    }
    while (i + 1 < n && l->grids[i + 1].first_task <= task)
        i++;
    *part = task - l->grids[i].first_task;
    return (size_t)i;
}

/* ---- packed weights: pieces of b are unpacked to bf16 and multiplied one after the other ---- */

/* A piece of b: SHORT of its rows, as many as DECODE_BYTES hold along them. Many rows of c take
 * wider pieces, because a is packed again for each. */
enum { PIECE_K = 1024, PIECE_N = 64, WIDE_N = 256, WIDE_ROWS = 16 };
_Static_assert(TKE_ISA_AVX512 - TKE_ISA_REF + 1 == TKE_UNPACK_SETS, "a set has no unpackers");
_Static_assert(WIDE_N *PIECE_K * sizeof(uint16_t) == TKE_DECODE_BYTES, "pieces do not fit");
_Static_assert(PIECE_K % TKE_MAX_BLOCK == 0 && PIECE_K >= 2 * TKE_MAX_BLOCK, "blocks are cut");

typedef struct piece {
    int64_t n, n_end, k, k_end; /* columns of c, summands */
} piece;

/* Where b is [k][n], n is rounded down to a block. */
static void run_piece(const tke_kernel_set *set, const tke_gemm *call, int64_t m0, int64_t m1,
                      const piece *p, void *scratch)
{
    const tke_format *f = tke_format_of(call->b.dtype);
    tke_unpack *unpack = set->unpack ? set->unpack : f->unpack[set->isa - TKE_ISA_REF];
    uint16_t *numbers = (uint16_t *)((char *)scratch + TKE_SCRATCH_BYTES);
    bool by_rows = call->form == TKE_NT; /* b is [n][k] */
    int64_t first = by_rows ? p->k : p->n / f->block * f->block;
    int64_t end = by_rows ? p->k_end : p->n_end;
    int64_t width = ceil_div(end - first, f->block) * f->block;
    tke_gemm part = *call;
    for (int64_t r = by_rows ? p->n : p->k, at = 0; r < (by_rows ? p->n_end : p->k_end);
         r++, at += width)
        unpack(&call->b, r, first, width, numbers + at);
    part.b = (tke_matrix){ .data = numbers + (by_rows ? 0 : p->n - first),
                           .ld = width,
                           .dtype = TKE_BF16 };
    part.n = p->n_end - p->n;
    part.k = p->k_end - p->k;
    part.a += p->k;
    part.c += p->n;
    part.accumulate = call->accumulate || p->k > 0;
    set->gemm(&part, m0, m1, 0, part.n, scratch);
}

static void run_unpacked(const tke_kernel_set *set, const tke_gemm *call, int64_t m0, int64_t m1,
                         int64_t n0, int64_t n1, void *scratch)
{
    bool by_rows = call->form == TKE_NT;
    int64_t rows = m1 - m0 > WIDE_ROWS ? WIDE_N : PIECE_N; /* of b */
    int64_t step_n = by_rows ? rows : PIECE_K - TKE_MAX_BLOCK;
    int64_t step_k = by_rows ? PIECE_K : rows;
    assert(call->form != TKE_TN);
    if (set->packed)
        n0 = set->packed(call, m0, m1, n0, n1, scratch);
    for (int64_t n = n0; n < n1; n += step_n)
        for (int64_t k = 0; k < call->k; k += step_k)
            run_piece(set, call, m0, m1,
                      &(piece){ n, smaller(n1, n + step_n), k, smaller(call->k, k + step_k) },
                      scratch);
}

static void run_task(void *arg, int64_t task, int32_t worker)
{
    const loop *l = arg;
    const tke_kernel_set *set = l->cpu->set;
    int64_t at, m0, m1, n0, n1;
    size_t i = find_call(l, task, &at);
    const grid *g = &l->grids[i];
    tke_gemm call = l->calls[i];
    assert(at >= 0 && at < g->gm * g->gn);
    part_of(call.m, set->tile_m, g->gm, at / g->gn, &m0, &m1);
    part_of(call.n, set->tile_n, g->gn, at % g->gn, &n0, &n1);
    if (m0 == m1 || n0 == n1)
        return;
    if (l->cpu->precision == TKE_PRECISION_F32)
        call.exact = true;
    if (tke_is_packed(call.b.dtype))
        run_unpacked(set, &call, m0, m1, n0, n1, l->cpu->scratch[worker]);
    else
        set->gemm(&call, m0, m1, n0, n1, l->cpu->scratch[worker]);
}

/* About how many cycles the largest part of a grid takes for each k: the products, packing its
 * share of a and of b, and, where several parts write to the same rows of c, its cache lines that
 * move between cores (measured; this makes thin products slow when they are split by columns). */
static double part_cost(const tke_kernel_set *set, const tke_gemm *call, int64_t gm, int64_t gn)
{
    double rows =
        (double)smaller(call->m, ceil_div(ceil_div(call->m, set->tile_m), gm) * set->tile_m);
    double columns =
        (double)smaller(call->n, ceil_div(ceil_div(call->n, set->tile_n), gn) * set->tile_n);
    double shared = gn > 1 && gm * gn > 1 ? 0.8 / (double)call->k : 0;
    return rows * columns * (1.0 / 16 + shared) + 0.35 * columns + 0.1 * rows;
}

/* Few rows: the time is that of reading b, and a thread that loses its core for a while should not
 * keep the others waiting. Pieces of half a megabyte are large enough to be read at full speed. */
static int64_t pieces_of(const tke_gemm *call, int64_t threads)
{
    enum { FEW_ROWS = 4, PIECE = 512 << 10, EACH = 8 };
    const tke_format *f = tke_format_of(call->b.dtype);
    int64_t bytes = call->n * call->k / f->block * f->block_bytes;
    if (call->m > FEW_ROWS || bytes < threads * PIECE)
        return threads;
    return threads * smaller(EACH, bytes / (threads * PIECE));
}

/* `parts` is what all threads need; small products stay whole. */
static grid choose_grid(const tke_kernel_set *set, const tke_gemm *call, int64_t parts)
{
    int64_t tiles_m = ceil_div(call->m, set->tile_m), tiles_n = ceil_div(call->n, set->tile_n);
    grid best = { 1, 1, 0 };
    if (call->m * call->n * call->k < 32 * 1024)
        return best;
    double best_cost = INFINITY;
    for (int64_t gm = 1; gm <= smaller(parts, tiles_m); gm++) {
        int64_t gn = smaller(ceil_div(parts, gm), tiles_n);
        double cost = part_cost(set, call, gm, gn);
        if (cost < best_cost) {
            best_cost = cost;
            best = (grid){ gm, gn, 0 };
        }
    }
    return best;
}

static void run_batch(tke_cpu *cpu, const tke_gemm *calls, size_t n_calls)
{
    loop l = { .cpu = cpu, .calls = calls, .n_calls = n_calls, .even = true };
    int64_t tasks = 0, threads = tke_threads_count(cpu->threads);
    assert(n_calls <= MAX_CALLS);
    for (size_t i = 0; i < n_calls; i++) {
        const tke_gemm *g = &calls[i];
        assert(g->m >= 0 && g->n >= 0 && g->k >= 0 && g->ldc >= g->n);
        assert(g->lda >= (g->form == TKE_TN ? g->m : g->k));
        assert(g->b.ld >= (g->form == TKE_NT ? g->k : g->n));
        assert((g->a && g->b.data && g->c) || !g->m || !g->n);
        l.grids[i] = choose_grid(cpu->set, g, threads > 1 ? pieces_of(g, threads) : 1);
        l.grids[i].first_task = tasks;
        tasks += l.grids[i].gm * l.grids[i].gn;
        l.even = l.even && tasks == l.grids[0].gm * l.grids[0].gn * (int64_t)(i + 1);
    }
    tke_threads_run(cpu->threads, tasks, run_task, &l);
}

void tke_gemm_run_all(tke_cpu *cpu, const tke_gemm *calls, size_t n_calls)
{
    for (size_t i = 0; i < n_calls; i += MAX_CALLS)
        run_batch(cpu, calls + i, n_calls - i < MAX_CALLS ? n_calls - i : MAX_CALLS);
}

void tke_gemm_run(tke_cpu *cpu, const tke_gemm *call)
{
    run_batch(cpu, call, 1);
}
