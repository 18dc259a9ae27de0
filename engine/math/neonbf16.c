/* neonbf16.c - products of bf16 numbers with fp32 sums, for arm64 processors with BFMMLA (FEAT_BF16).
 *
 * Used in bf16 precision for weights stored as bf16. The left side is rounded to bf16 as it is
 * packed. BFMMLA multiplies two rows with two columns, four numbers of each; to every sum it adds the
 * dot product of the first two, then that of the other two: an element is one chain of pairs along k,
 * in order, that ends in zeros at a multiple of eight. How a pair is rounded (to odd, without
 * subnormals) is fixed by the architecture, so all processors give the same bits. Tiles and blocking
 * are as in fast_gemm.h; a few rows (decoding) are multiplied without packing the weight, in the same
 * chain. Other products, and those that sum over tokens, use the fp32 kernel.
 */
#include "math/kernel_set.h"

#if defined(__aarch64__) && !defined(TKE_REAL_DOUBLE)

#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("bf16"))), apply_to = function)
#else
#pragma GCC target("+bf16")
#pragma GCC optimize("no-schedule-insns") /* see neon.c */
#endif

#include "math/simd_neon.h"

enum {
    TILE_M = 12,
    TILE_N = 2 * VW,
    STEP = 2 * VW, /* numbers along k in a vector of a stored row */
    K_BLOCK = 768,
    N_BLOCK = 512,
    A_NUMBERS = TILE_M * K_BLOCK
};
_Static_assert((A_NUMBERS + N_BLOCK * K_BLOCK) * 2 <= TKE_SCRATCH_BYTES, "scratch too small");

#include "math/few_rows.h"

/* sum[2][2] += a[2][4] * b[2][4]'. Not the intrinsic: clang 14 has it only in files compiled for the
 * extension as a whole. */
INLINE vf multiply_add(vf sum, vi a, vi b)
{
    __asm__("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(a), "w"(b));
    return sum;
}

/* A panel holds, for every four numbers along k, those of its first two rows (or columns), of the next
 * two, and so on. */
INLINE void put_pair(vi first, vi second, uint16_t *out, int64_t four)
{
    vi_store(out, join(vtrn1q_u64(pairs(first), pairs(second))));
    vi_store(out + four, join(vtrn2q_u64(pairs(first), pairs(second))));
}

/* STEP stored numbers, those from the n-th on zero. */
INLINE vi load_some(const uint16_t *p, int64_t n)
{
    uint16_t copy[STEP] = { 0 };
    if (n >= STEP)
        return vi_load(p);
    if (n > 0)
        memcpy(copy, p, (size_t)n * sizeof *copy);
    return vi_load(copy);
}

INLINE int64_t whole_steps(int64_t k)
{
    return (k + STEP - 1) / STEP * STEP;
}

/* ---- packing b ---- */

/* TILE_N columns, those from `columns` on zero, of b stored as [n][k]. */
static void pack_columns(const uint16_t *b, int64_t ld, int64_t columns, int64_t k, uint16_t *out)
{
    for (int64_t p = 0; p < k; p += STEP, out += STEP * TILE_N)
        for (int i = 0; i < TILE_N; i += 2) {
            vi first = load_some(b + i * ld + p, i < columns ? k - p : 0);
            vi second = load_some(b + (i + 1) * ld + p, i + 1 < columns ? k - p : 0);
            put_pair(first, second, out + i * 4, TILE_N * 4);
        }
}

/* One panel of b stored as [k][n]: four rows interleaved. */
static void pack_rows(const uint16_t *b, int64_t ld, int64_t columns, int64_t k, uint16_t *out)
{
    for (int64_t p = 0; p < whole_steps(k); p += 4, out += 4 * TILE_N) {
        uint16x8_t r[4];
        for (int i = 0; i < 4; i++)
            r[i] = vreinterpretq_u16_u32(load_some(b + (p + i) * ld, p + i < k ? columns : 0));
        uint16x8x2_t upper = vzipq_u16(r[0], r[1]), lower = vzipq_u16(r[2], r[3]);
        for (int i = 0; i < 2; i++) {
            vi first = vreinterpretq_u32_u16(upper.val[i]);
            vi second = vreinterpretq_u32_u16(lower.val[i]);
            vi_store(out + i * 16, vzip1q_u32(first, second));
            vi_store(out + i * 16 + 8, vzip2q_u32(first, second));
        }
    }
}

static void pack_b(const tke_gemm *g, int64_t n0, int64_t n1, int64_t k0, int64_t k, uint16_t *out)
{
    const uint16_t *b = g->b.data;
    int64_t ld = g->b.ld;
    for (int64_t n = n0; n < n1; n += TILE_N, out += whole_steps(k) * TILE_N)
        if (g->form == TKE_NN)
            pack_rows(b + k0 * ld + n, ld, n1 - n, k, out);
        else
            pack_columns(b + n * ld + k0, ld, n1 - n, k, out);
}

/* ---- packing a ---- */

INLINE uint16x4_t narrow(vf x, vf alpha)
{
    return vshrn_n_u32(bits_of(v_round_bf16(v_mul(x, alpha))), 16);
}

/* STEP numbers, those from the n-th on zero, scaled and rounded. */
INLINE vi load_rounded(const float *a, int64_t n, vf alpha)
{
    int64_t low = n < 0 ? 0 : n < VW ? n : VW, high = n < VW ? 0 : n < STEP ? n - VW : VW;
    uint16x4_t x = narrow(v_load_part(a, low), alpha), y = narrow(v_load_part(a + VW, high), alpha);
    return vreinterpretq_u32_u16(vcombine_u16(x, y));
}

/* `rows` rows from a on, as a panel of `height` (even); out[k / 4][height][4]. */
static void pack_a(const float *a, int64_t lda, int64_t rows, int64_t k, float alpha, uint16_t *out,
                   int64_t height)
{
    vf scale = v_set(alpha);
    for (int64_t i = 0; i < rows; i += 2, a += 2 * lda)
        for (int64_t p = 0; p < k; p += STEP) {
            vi first = load_rounded(a + p, k - p, scale);
            vi second = i + 1 < rows ? load_rounded(a + lda + p, k - p, scale) : vi_zero();
            put_pair(first, second, out + p * height + i * 4, height * 4);
        }
}

/* ---- the tile ---- */

typedef struct tile {
    const uint16_t *a, *b;
    float *c;
    int64_t k, ldc, rows, columns;
    bool from_c;
} tile;

/* What of c the tile has; two rows and two columns to a vector. */
static __attribute__((noinline)) void take_part(const tile *t, float *whole)
{
    for (int64_t r = 0; r < TILE_M; r++)
        for (int64_t j = 0; j < TILE_N; j++)
            whole[r * TILE_N + j] = r < t->rows && j < t->columns ? t->c[r * t->ldc + j] : 0;
}

static __attribute__((noinline)) void put_part(const tile *t, const float *whole)
{
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t j = 0; j < t->columns; j++)
            t->c[r * t->ldc + j] = whole[r * TILE_N + j];
}

INLINE bool is_whole(const tile *t, int row_pairs)
{
    return t->columns == TILE_N && t->rows == 2 * row_pairs;
}

INLINE void load_tile(const tile *t, int row_pairs, vf acc[][VW])
{
    float whole[TILE_M * TILE_N];
    const float *c = t->c;
    int64_t ldc = t->ldc;
    if (!is_whole(t, row_pairs)) {
        take_part(t, whole);
        c = whole;
        ldc = TILE_N;
    }
    EACH(i, row_pairs)
    EACH(j, VW)
    acc[i][j] =
        vcombine_f32(vld1_f32(c + 2 * i * ldc + 2 * j), vld1_f32(c + (2 * i + 1) * ldc + 2 * j));
}

INLINE void store_tile(const tile *t, int row_pairs, vf acc[][VW])
{
    float whole[TILE_M * TILE_N];
    bool copy = !is_whole(t, row_pairs);
    float *c = copy ? whole : t->c;
    int64_t ldc = copy ? TILE_N : t->ldc;
    EACH(i, row_pairs)
    EACH(j, VW)
    {
        vst1_f32(c + 2 * i * ldc + 2 * j, vget_low_f32(acc[i][j]));
        vst1_f32(c + (2 * i + 1) * ldc + 2 * j, vget_high_f32(acc[i][j]));
    }
    if (copy)
        put_part(t, whole);
}

INLINE void start_tile(const tile *t, int row_pairs, vf acc[][VW])
{
    EACH(i, row_pairs)
    EACH(j, VW)
    acc[i][j] = v_zero();
    if (t->from_c)
        load_tile(t, row_pairs, acc);
}

INLINE void run_tile(const tile *t, int row_pairs)
{
    vf acc[TILE_M / 2][VW];
    start_tile(t, row_pairs, acc);
    const uint16_t *a = t->a, *b = t->b;
    for (int64_t k = t->k; k > 0; k -= 4, a += 4 * TILE_M, b += 4 * TILE_N) {
        vi b0 = vi_load(b), b1 = vi_load(b + 8), b2 = vi_load(b + 16), b3 = vi_load(b + 24);
        EACH(i, row_pairs)
        {
            vi x = vi_load(a + 8 * i);
            acc[i][0] = multiply_add(acc[i][0], x, b0);
            acc[i][1] = multiply_add(acc[i][1], x, b1);
            acc[i][2] = multiply_add(acc[i][2], x, b2);
            acc[i][3] = multiply_add(acc[i][3], x, b3);
        }
    }
    store_tile(t, row_pairs, acc);
}

#define TILE_CASE(PAIRS)                                                                           \
    case PAIRS:                                                                                    \
        run_tile(t, PAIRS);                                                                        \
        break;

static TILE_CODE void run_tile_of(const tile *t)
{
    switch ((t->rows + 1) / 2) {
        TILE_CASE(1)
        TILE_CASE(2)
        TILE_CASE(3)
        TILE_CASE(4)
        TILE_CASE(5)
        TILE_CASE(6)
    default:
        break;
    }
}

/* ---- a few rows ---- */

/* `columns` of the tile, k .. k + count of them, in pairs of rows of the weight. */
INLINE void few_step(const few *f, const few_tile *t, int64_t columns, int64_t k, int64_t count,
                     int row_pairs, vf acc[][VW])
{
    const uint16_t *b = f->g->b.data, *a = (const uint16_t *)f->a + k * f->lda;
    EACH(j, VW)
    {
        vi first = load_some(b + few_at(f, t, 2 * j, k), 2 * j < columns ? count : 0);
        vi second = load_some(b + few_at(f, t, 2 * j + 1, k), 2 * j + 1 < columns ? count : 0);
        vi low = join(vtrn1q_u64(pairs(first), pairs(second)));
        vi high = join(vtrn2q_u64(pairs(first), pairs(second)));
        EACH(i, row_pairs)
        {
            acc[i][j] = multiply_add(acc[i][j], vi_load(a + 8 * i), low);
            acc[i][j] = multiply_add(acc[i][j], vi_load(a + 8 * (row_pairs + i)), high);
        }
    }
}

INLINE void few_columns(const few *f, const few_tile *t, int rows)
{
    const int row_pairs = (rows + 1) / 2;
    vf acc[FEW_ROWS / 2][VW];
    tile where = { .c = t->c, .ldc = t->ldc, .rows = rows, .columns = t->columns };
    int64_t k = 0;
    where.from_c = f->g->accumulate;
    start_tile(&where, row_pairs, acc);
    for (; t->columns == TILE_N && k + STEP <= f->g->k; k += STEP) {
        fetch_next(f, t, k);
        few_step(f, t, TILE_N, k, STEP, row_pairs, acc);
    }
    for (; k < f->g->k; k += STEP)
        few_step(f, t, t->columns, k, f->g->k - k, row_pairs, acc);
    store_tile(&where, row_pairs, acc);
}

static TILE_CODE void few_columns_of(const few *f, const few_tile *t, int64_t rows)
{
    FEW_CASES(rows, few_columns, f, t)
}

/* False = not such a product, nothing was done. */
static bool gemm_few(const tke_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                     uint16_t *scratch)
{
    int64_t rows = m1 - m0, height = rows + rows % 2;
    if (g->form != TKE_NT || rows > FEW_ROWS || height * whole_steps(g->k) > TKE_SCRATCH_BYTES / 2)
        return false;
    pack_a(g->a + m0 * g->lda, g->lda, rows, g->k, g->alpha, scratch, height);
    few_run(&(few){ g, scratch, height, n1 }, g->c + m0 * g->ldc, rows, n0);
    return true;
}

/* ---- the whole ---- */

static void multiply_block(const tke_gemm *g, const int64_t m[2], const int64_t n[2], int64_t k0,
                           int64_t k, uint16_t *a, const uint16_t *b)
{
    for (int64_t i = m[0]; i < m[1]; i += TILE_M) {
        tile t = { .a = a, .b = b, .k = whole_steps(k), .ldc = g->ldc };
        t.rows = m[1] - i < TILE_M ? m[1] - i : TILE_M;
        t.from_c = g->accumulate || k0 > 0;
        pack_a(g->a + i * g->lda + k0, g->lda, t.rows, k, g->alpha, a, TILE_M);
        for (int64_t j = n[0]; j < n[1]; j += TILE_N, t.b += TILE_N * t.k) {
            t.c = g->c + i * g->ldc + j;
            t.columns = n[1] - j < TILE_N ? n[1] - j : TILE_N;
            run_tile_of(&t);
        }
    }
}

void tke_gemm_neonbf16(const tke_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                       void *scratch)
{
    uint16_t *a = scratch, *b = a + A_NUMBERS;
    if (g->exact || g->form == TKE_TN || g->b.dtype != TKE_BF16 || g->k <= 0) {
        tke_gemm_neon(g, m0, m1, n0, n1, scratch);
        return;
    }
    if (gemm_few(g, m0, m1, n0, n1, scratch))
        return;
    for (int64_t n = n0; n < n1; n += N_BLOCK) {
        int64_t n_end = n1 - n < N_BLOCK ? n1 : n + N_BLOCK;
        for (int64_t k = 0; k < g->k; k += K_BLOCK) {
            int64_t count = g->k - k < K_BLOCK ? g->k - k : K_BLOCK;
            pack_b(g, n, n_end, k, count, b);
            multiply_block(g, (int64_t[2]){ m0, m1 }, (int64_t[2]){ n, n_end }, k, count, a, b);
        }
    }
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
