/* fast_gemv.h - products of a few rows with a stored weight (decoding), for the fast sets. Included
 * by avx2.c and avx512.c after fast_transposed.h.
 *
 * With so few rows, packing would take longer than multiplying: columns of the weight are transposed
 * in registers and used at once. The chain of an element is that of fast_gemm.h, so its bits are
 * too.
 */
#ifndef TKE_KERNELS_FAST_GEMV_H
#define TKE_KERNELS_FAST_GEMV_H

#include "math/few_rows.h"

/* All columns of the tile, k .. k + 2 VW, of a weight in bf16: VW columns are transposed in
 * registers and used before the next are loaded; their chains are independent, so the processor
 * works on both. */
INLINE void few_pairs(const few *f, const few_tile *t, int64_t k, int rows, vf acc[][2])
{
    for (int half = 0; half < 2; half++) {
        vi r[VW];
        for (int i = 0; i < VW; i++)
            r[i] = vi_load((const uint16_t *)f->g->b.data + few_at(f, t, half * VW + i, k));
        v_transpose(r);
        for (int i = 0; i < VW; i++)
            EACH(m, rows)
            {
                const float *x = (const float *)f->a + m * f->lda + k + 2 * i;
                acc[m][half] = v_fma(v_set(x[0]), v_pair_first(r[i]), acc[m][half]);
                acc[m][half] = v_fma(v_set(x[1]), v_pair_second(r[i]), acc[m][half]);
            }
    }
}

/* VW columns from the first-th of the tile, any type, any number of them, n_k <= VW along k. */
INLINE void few_square(const few *f, const few_tile *t, int64_t first, int64_t k, int64_t n_k,
                       int rows, vf acc[][2])
{
    const int half = first > 0;
    const tke_matrix *b = &f->g->b;
    union {
        vi bits[VW];
        vf wide[VW];
    } r;
    for (int i = 0; i < VW; i++)
        r.wide[i] = first + i < t->columns
                        ? load_wide_part(b->dtype, b->data, few_at(f, t, first + i, k), n_k)
                        : v_zero();
    v_transpose(r.bits);
    for (int64_t i = 0; i < n_k; i++)
        EACH(m, rows)
        {
            const float *x = (const float *)f->a + m * f->lda + k + i;
            acc[m][half] = v_fma(v_set(*x), r.wide[i], acc[m][half]);
        }
}

INLINE void few_columns(const few *f, const few_tile *t, int rows)
{
    const tke_gemm *g = f->g;
    tile where = { .c = t->c, .ldc = t->ldc, .columns = t->columns };
    vf acc[FEW_ROWS][2];
    int64_t k = 0;
    EACH(m, rows)
    acc[m][0] = acc[m][1] = v_zero();
    if (g->accumulate)
        load_tile(&where, rows, acc);
    if (g->b.dtype == TKE_BF16 && t->columns == TILE_N) {
        for (; k + 2 * VW <= g->k; k += 2 * VW) {
            fetch_next(f, t, k);
            few_pairs(f, t, k, rows, acc);
        }
    }
    if (!V_MASKS) /* a constant VW spares lanes one by one */
        for (; k + VW <= g->k; k += VW) {
            few_square(f, t, 0, k, VW, rows, acc);
            few_square(f, t, VW, k, VW, rows, acc);
        }
    for (; k < g->k; k += VW) {
        int64_t n_k = g->k - k < VW ? g->k - k : VW;
        few_square(f, t, 0, k, n_k, rows, acc);
        few_square(f, t, VW, k, n_k, rows, acc);
    }
    store_tile(&where, rows, acc);
}

static TILE_CODE void few_columns_of(const few *f, const few_tile *t, int64_t rows)
{
    FEW_CASES(rows, few_columns, f, t)
}

/* Handles NT with at most FEW_ROWS rows that fit into scratch; false = not such a product, nothing was done. */
static bool gemm_few(const tke_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                     float *scratch)
{
    int64_t rows = m1 - m0, lda = (g->k + 15) / 16 * 16;
    if (g->form != TKE_NT || rows > FEW_ROWS || g->k <= 0 ||
        rows * lda > (int64_t)(TKE_SCRATCH_BYTES / sizeof(float)))
        return false;
    for (int64_t m = 0; m < rows; m++)
        copy_scaled(g->a + (m0 + m) * g->lda, g->k, g->alpha, !g->exact && g->b.dtype == TKE_BF16,
                    scratch + m * lda);
    few_run(&(few){ g, scratch, lda, n1 }, g->c + m0 * g->ldc, rows, n0);
    return true;
}

static void gemm(const tke_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, void *scratch)
{
    if (!gemm_few(g, m0, m1, n0, n1, scratch) && !gemm_transposed(g, m0, m1, n0, n1, scratch))
        gemm_packed(g, m0, m1, n0, n1, scratch);
}

#endif
