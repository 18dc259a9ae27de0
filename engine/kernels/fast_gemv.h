/* fast_gemv.h - products of a few rows with a stored weight (decoding), for the fast sets. Included
 * by avx2.c and avx512.c after fast_transposed.h.
 *
 * With so few rows, packing would take longer than multiplying: columns of the weight are transposed
 * in registers and used at once. The chain of an element is that of fast_gemm.h, so its bits are
 * too.
 */
#ifndef TKE_KERNELS_FAST_GEMV_H
#define TKE_KERNELS_FAST_GEMV_H

enum { FEW_ROWS = 4 };

/* The rows of a, scaled, in scratch. */
typedef struct few {
    const tke_gemm *g;
    const float *a;
    int64_t lda;
} few;

/* 2 VW columns from n, k .. k + 2 VW, of a weight in bf16: VW columns are transposed in registers
 * and used before the next are loaded; their chains are independent, so the processor works on
 * both. */
INLINE void few_pairs(const few *f, int64_t n, int64_t k, int rows, vf acc[][2])
{
    const tke_matrix *b = &f->g->b;
    for (int half = 0; half < 2; half++) {
        vi r[VW];
        for (int i = 0; i < VW; i++)
            r[i] = vi_load((const uint16_t *)b->data + (n + half * VW + i) * b->ld + k);
        v_transpose(r);
        for (int i = 0; i < VW; i++)
            for (int m = 0; m < rows; m++) {
                const float *x = f->a + m * f->lda + k + 2 * i;
                acc[m][half] = v_fma(v_set(x[0]), v_pair_first(r[i]), acc[m][half]);
                acc[m][half] = v_fma(v_set(x[1]), v_pair_second(r[i]), acc[m][half]);
            }
    }
}

/* Prefetches a few steps ahead: further along the same rows, at their end the beginning of the next
 * columns' rows. Further ahead is slower: early data is evicted before its use. */
INLINE void fetch_soon(const tke_matrix *b, int64_t n, int64_t n_end, int64_t k, int64_t n_k)
{
    enum { STEPS = 4 };
    k += STEPS * 2 * VW;
    if (k >= n_k) {
        k -= n_k;
        n += TILE_N;
    }
    if (n + TILE_N > n_end || k >= n_k)
        return;
    const char *at = (const char *)b->data + (n * b->ld + k) * 2;
    for (int i = 0; i < TILE_N; i++, at += b->ld * 2)
        __builtin_prefetch(at, 0, 3);
}

/* Any type, any number of columns, n_k <= VW along k. */
INLINE void few_square(const few *f, int64_t n, int64_t columns, int64_t k, int64_t n_k, int rows,
                       vf *acc)
{
    const tke_matrix *b = &f->g->b;
    union {
        vi bits[VW];
        vf wide[VW];
    } r;
    for (int i = 0; i < VW; i++)
        r.wide[i] =
            i < columns ? load_wide_part(b->dtype, b->data, (n + i) * b->ld + k, n_k) : v_zero();
    v_transpose(r.bits);
    for (int64_t i = 0; i < n_k; i++)
        for (int m = 0; m < rows; m++)
            acc[2 * m] = v_fma(v_set(f->a[m * f->lda + k + i]), r.wide[i], acc[2 * m]);
}

/* 2 VW columns from n (`columns` of them exist) for all of k. */
INLINE void few_columns(const few *f, const tile *t, int64_t n, int64_t n_end, int rows)
{
    const tke_gemm *g = f->g;
    vf acc[FEW_ROWS][2];
    int64_t k = 0;
    for (int m = 0; m < rows; m++)
        acc[m][0] = acc[m][1] = v_zero();
    if (t->from_c)
        load_tile(t, rows, acc);
    if (g->b.dtype == TKE_BF16 && t->columns == TILE_N) {
        for (; k + 2 * VW <= g->k; k += 2 * VW) {
            fetch_soon(&g->b, n, n_end, k, g->k);
            few_pairs(f, n, k, rows, acc);
        }
    }
    for (; k < g->k; k += VW) {
        int64_t n_k = g->k - k < VW ? g->k - k : VW;
        few_square(f, n, t->columns, k, n_k, rows, &acc[0][0]);
        few_square(f, n + VW, t->columns - VW, k, n_k, rows, &acc[0][1]);
    }
    store_tile(t, rows, acc);
}

static TILE_CODE void few_columns_of(const few *f, const tile *t, int64_t n, int64_t n_end,
                                     int64_t rows)
{
    switch (rows) {
    case 1:
        few_columns(f, t, n, n_end, 1);
        break;
    case 2:
        few_columns(f, t, n, n_end, 2);
        break;
    case 3:
        few_columns(f, t, n, n_end, 3);
        break;
    default:
        few_columns(f, t, n, n_end, 4);
        break;
    }
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
    few f = { g, scratch, lda };
    for (int64_t n = n0; n < n1; n += TILE_N) {
        tile t = { .c = g->c + m0 * g->ldc + n,
                   .ldc = g->ldc,
                   .columns = n1 - n < TILE_N ? n1 - n : TILE_N,
                   .from_c = g->accumulate };
        few_columns_of(&f, &t, n, n1, rows);
    }
    return true;
}

static void gemm(const tke_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, void *scratch)
{
    if (!gemm_few(g, m0, m1, n0, n1, scratch) && !gemm_transposed(g, m0, m1, n0, n1, scratch))
        gemm_packed(g, m0, m1, n0, n1, scratch);
}

#endif
