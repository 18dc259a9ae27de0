/* avx512bf16.c - products of bf16 numbers with fp32 sums, for processors with AVX-512 BF16.
 *
 * Used in bf16 precision for weights stored as bf16. The left side is rounded to bf16 as it is
 * packed; an element is one chain of dot products of two along k, in order: (0,1), (2,3), ... An
 * odd k ends with a pair whose second half is zero. Tiles and blocking are as in fast_gemm.h; a few
 * rows (decoding) are multiplied without packing the weight, in the same chain. Other products, and
 * those that sum over tokens, use the fp32 kernel.
 */
#include "math/kernel_set.h"

#if defined(__x86_64__) && !defined(TKE_REAL_DOUBLE)

#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(                                                                      \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16"))),        \
    apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#endif

#include "math/simd_avx512.h"

enum {
    TILE_M = 14,
    TILE_N = 2 * VW,
    K_BLOCK = 768, /* numbers, two to a word */
    N_BLOCK = 512,
    A_LD = K_BLOCK / 2 + 16, /* words */
    A_WORDS = TILE_M * A_LD
};
_Static_assert((A_WORDS + N_BLOCK * K_BLOCK / 2) * 4 <= TKE_SCRATCH_BYTES, "scratch too small");

#include "math/few_rows.h"

/* ---- packing b: panels [k/2][TILE_N] of pairs ---- */

/* VW columns, those from `columns` on zero, of b stored as [n][k]. */
static void pack_transposed(const uint16_t *b, int64_t ld, int64_t columns, int64_t k,
                            uint32_t *out)
{
    for (int64_t p = 0; p < k; p += 2 * VW, out += VW * TILE_N) {
        __m512i r[VW];
        int64_t left = k - p;
        __mmask32 mask = left >= 2 * VW ? ~(__mmask32)0 : ((__mmask32)1 << left) - 1;
        for (int i = 0; i < VW; i++)
            r[i] = i < columns ? _mm512_maskz_loadu_epi16(mask, b + i * ld + p)
                               : _mm512_setzero_si512();
        v_transpose(r);
        int64_t words = left >= 2 * VW ? VW : (left + 1) / 2;
        for (int64_t i = 0; i < words; i++)
            _mm512_storeu_si512(out + i * TILE_N, r[i]);
    }
}

/* One panel of b stored as [k][n]: two rows interleaved. */
static void pack_rows(const uint16_t *b, int64_t ld, int64_t columns, int64_t k, uint32_t *out)
{
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    __mmask32 mask = columns >= TILE_N ? ~(__mmask32)0 : ((__mmask32)1 << columns) - 1;
    for (int64_t p = 0; p < k; p += 2, b += 2 * ld, out += TILE_N) {
        __m512i first = _mm512_maskz_loadu_epi16(mask, b);
        __m512i second = _mm512_maskz_loadu_epi16(p + 1 < k ? mask : 0, p + 1 < k ? b + ld : b);
        _mm512_storeu_si512(out, _mm512_permutex2var_epi16(first, low, second));
        _mm512_storeu_si512(out + VW, _mm512_permutex2var_epi16(first, high, second));
    }
}

static void pack_b(const tke_gemm *g, int64_t n0, int64_t n1, int64_t k0, int64_t k, uint32_t *out)
{
    const uint16_t *b = g->b.data;
    int64_t ld = g->b.ld;
    for (int64_t n = n0; n < n1; n += TILE_N, out += (k + 1) / 2 * TILE_N) {
        if (g->form == TKE_NN) {
            pack_rows(b + k0 * ld + n, ld, n1 - n, k, out);
            continue;
        }
        pack_transposed(b + n * ld + k0, ld, n1 - n, k, out);
        int64_t rest = n1 - n - VW;
        pack_transposed(rest > 0 ? b + (n + VW) * ld + k0 : b, ld, rest, k, out + VW);
    }
}

/* ---- packing a: rows of pairs ---- */

/* Rows i .. i + rows, ld words apart. */
static void pack_a(const tke_gemm *g, int64_t i, int64_t rows, int64_t k0, int64_t k, uint32_t *out,
                   int64_t ld)
{
    __m512 alpha = _mm512_set1_ps(g->alpha);
    for (int64_t r = 0; r < rows; r++) {
        const float *a = g->a + (i + r) * g->lda + k0;
        uint16_t *to = (uint16_t *)(out + r * ld);
        for (int64_t p = 0; p < k; p += VW) {
            __mmask16 mask = first_of(k - p < VW ? k - p : VW);
            __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, a + p), alpha);
            /* writes up to VW numbers, zeros past the end: there is room */
            _mm256_storeu_si256((__m256i *)(void *)(to + p), (__m256i)_mm512_cvtneps_pbh(x));
        }
    }
}

/* ---- the tile ---- */

typedef struct tile {
    const uint32_t *a, *b;
    float *c;
    int64_t pairs, ldc, columns;
    bool from_c;
} tile;

INLINE void run_tile(const tile *t, int rows)
{
    __m512 acc[TILE_M][2];
    int64_t lo = t->columns < VW ? t->columns : VW;
    __mmask16 mask0 = first_of(lo), mask1 = first_of(t->columns - lo);
    for (int r = 0; r < rows; r++) {
        acc[r][0] = acc[r][1] = _mm512_setzero_ps();
        if (t->from_c) {
            acc[r][0] = _mm512_maskz_loadu_ps(mask0, t->c + r * t->ldc);
            acc[r][1] = _mm512_maskz_loadu_ps(mask1, t->c + r * t->ldc + VW);
        }
    }
    const uint32_t *a = t->a, *b = t->b;
    for (int64_t k = t->pairs; k > 0; k--, a++, b += TILE_N) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + VW);
        for (int r = 0; r < rows; r++) {
            __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[r * A_LD]);
            acc[r][0] = _mm512_dpbf16_ps(acc[r][0], x, b0);
            acc[r][1] = _mm512_dpbf16_ps(acc[r][1], x, b1);
        }
    }
    for (int r = 0; r < rows; r++) {
        _mm512_mask_storeu_ps(t->c + r * t->ldc, mask0, acc[r][0]);
        _mm512_mask_storeu_ps(t->c + r * t->ldc + VW, mask1, acc[r][1]);
    }
}

#define TILE_CASE(ROWS)                                                                            \
    case ROWS:                                                                                     \
        run_tile(t, ROWS);                                                                         \
        break;

static TILE_CODE void run_tile_of(const tile *t, int64_t rows)
{
    switch (rows) {
        TILE_CASE(1)
        TILE_CASE(2)
        TILE_CASE(3)
        TILE_CASE(4)
        TILE_CASE(5)
        TILE_CASE(6)
        TILE_CASE(7)
        TILE_CASE(8)
        TILE_CASE(9)
        TILE_CASE(10)
        TILE_CASE(11)
        TILE_CASE(12)
        TILE_CASE(13)
        TILE_CASE(14)
    default:
        break;
    }
}

/* ---- a few rows ---- */

/* `columns` of the tile, k .. k + count of them: loaded, transposed in registers, used at once. */
INLINE void few_pairs(const few *f, const few_tile *t, int64_t columns, int64_t k, int64_t count,
                      int rows, __m512 acc[][2])
{
    const uint16_t *b = f->g->b.data;
    const uint32_t *a = (const uint32_t *)f->a + k / 2;
    __mmask32 mask = count >= 2 * VW ? ~(__mmask32)0 : ((__mmask32)1 << count) - 1;
    for (int half = 0; half < 2; half++) {
        __m512i r[VW];
        for (int i = 0; i < VW; i++)
            r[i] = half * VW + i < columns
                       ? _mm512_maskz_loadu_epi16(mask, b + few_at(f, t, half * VW + i, k))
                       : _mm512_setzero_si512();
        v_transpose(r);
        for (int i = 0; 2 * i < count; i++)
            for (int m = 0; m < rows; m++)
                acc[m][half] = _mm512_dpbf16_ps(acc[m][half],
                                                (__m512bh)_mm512_set1_epi32((int)a[m * f->lda + i]),
                                                (__m512bh)r[i]);
    }
}

INLINE void few_columns(const few *f, const few_tile *t, int rows)
{
    __m512 acc[FEW_ROWS][2];
    int64_t k = 0, lo = t->columns < VW ? t->columns : VW;
    __mmask16 mask0 = first_of(lo), mask1 = first_of(t->columns - lo);
    for (int m = 0; m < rows; m++) {
        acc[m][0] = acc[m][1] = _mm512_setzero_ps();
        if (f->g->accumulate) {
            acc[m][0] = _mm512_maskz_loadu_ps(mask0, t->c + m * t->ldc);
            acc[m][1] = _mm512_maskz_loadu_ps(mask1, t->c + m * t->ldc + VW);
        }
    }
    for (; t->columns == TILE_N && k + 2 * VW <= f->g->k; k += 2 * VW) {
        fetch_next(f, t, k);
        few_pairs(f, t, TILE_N, k, 2 * VW, rows, acc);
    }
    for (; k < f->g->k; k += 2 * VW)
        few_pairs(f, t, t->columns, k, f->g->k - k < 2 * VW ? f->g->k - k : 2 * VW, rows, acc);
    for (int m = 0; m < rows; m++) {
        _mm512_mask_storeu_ps(t->c + m * t->ldc, mask0, acc[m][0]);
        _mm512_mask_storeu_ps(t->c + m * t->ldc + VW, mask1, acc[m][1]);
    }
}

static TILE_CODE void few_columns_of(const few *f, const few_tile *t, int64_t rows)
{
    FEW_CASES(rows, few_columns, f, t)
}

/* False = not such a product, nothing was done. */
static bool gemm_few(const tke_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                     uint32_t *scratch)
{
    int64_t rows = m1 - m0, lda = (g->k + 2 * VW - 1) / (2 * VW) * VW;
    if (g->form != TKE_NT || rows > FEW_ROWS || rows * lda > TKE_SCRATCH_BYTES / 4)
        return false;
    pack_a(g, m0, rows, 0, g->k, scratch, lda);
    few_run(&(few){ g, scratch, lda, n1 }, g->c + m0 * g->ldc, rows, n0);
    return true;
}

/* ---- the whole ---- */

static void multiply_block(const tke_gemm *g, const int64_t m[2], const int64_t n[2], int64_t k0,
                           int64_t k, uint32_t *a, const uint32_t *b)
{
    for (int64_t i = m[0]; i < m[1]; i += TILE_M) {
        int64_t rows = m[1] - i < TILE_M ? m[1] - i : TILE_M;
        pack_a(g, i, rows, k0, k, a, A_LD);
        tile t = { .a = a, .b = b, .pairs = (k + 1) / 2, .ldc = g->ldc };
        t.from_c = g->accumulate || k0 > 0;
        for (int64_t j = n[0]; j < n[1]; j += TILE_N, t.b += TILE_N * t.pairs) {
            t.c = g->c + i * g->ldc + j;
            t.columns = n[1] - j < TILE_N ? n[1] - j : TILE_N;
            run_tile_of(&t, rows);
        }
    }
}

void tke_gemm_avx512bf16(const tke_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                         void *scratch)
{
    uint32_t *a = scratch, *b = a + A_WORDS;
    if (g->exact || g->form == TKE_TN || g->b.dtype != TKE_BF16 || g->k <= 0) {
        tke_gemm_avx512(g, m0, m1, n0, n1, scratch);
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

#else

void tke_gemm_avx512bf16(const tke_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                         void *scratch)
{
    tke_set_ref.gemm(g, m0, m1, n0, n1, scratch); /* tke_cpu_new never chooses this set then */
}

#endif
