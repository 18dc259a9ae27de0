/* fast_gemv.h - products of a few rows with a stored weight (decoding), for the fast sets. Included
 * by avx2.c and avx512.c after fast_transposed.h.
 *
 * With so few rows, packing would take longer than multiplying: columns of the weight are transposed
 * in registers and used at once. The chain of an element is that of fast_gemm.h, so its bits are
 * too.
 */
#ifndef TKE_KERNELS_FAST_GEMV_H
#define TKE_KERNELS_FAST_GEMV_H

enum {
    FEW_ROWS = 4,
    PAGE = 4096,  /* how far the processor's own prefetching follows a stream */
    MOST_ROWS = 4 /* of the weight in one stream */
};

/* The rows of a, scaled, in scratch. */
typedef struct few {
    const tke_gemm *g;
    const float *a;
    int64_t lda;
    int64_t n_end;
} few;

/* A tile's columns: n, n + step, ... They are rows of the stored weight, each read from its begin to
 * its end, and `next` is the first column of the tile after it. */
typedef struct few_tile {
    tile t;
    int64_t n, step, next;
} few_tile;

/* All columns of the tile, k .. k + 2 VW, of a weight in bf16: VW columns are transposed in
 * registers and used before the next are loaded; their chains are independent, so the processor
 * works on both. */
INLINE void few_pairs(const few *f, const few_tile *c, int64_t k, int rows, vf acc[][2])
{
    const tke_matrix *b = &f->g->b;
    for (int half = 0; half < 2; half++) {
        vi r[VW];
        for (int i = 0; i < VW; i++)
            r[i] =
                vi_load((const uint16_t *)b->data + (c->n + (half * VW + i) * c->step) * b->ld + k);
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
 * tile's rows. Further ahead is slower: early data is evicted before its use. */
INLINE void fetch_soon(const few *f, const few_tile *c, int64_t k)
{
    enum { STEPS = 4 };
    const tke_matrix *b = &f->g->b;
    int64_t n = c->n;
    k += STEPS * 2 * VW;
    if (k >= f->g->k) {
        k -= f->g->k;
        n = c->next;
    }
    if (n + (TILE_N - 1) * c->step >= f->n_end || k >= f->g->k)
        return;
    const char *at = (const char *)b->data + (n * b->ld + k) * 2;
    for (int i = 0; i < TILE_N; i++, at += c->step * b->ld * 2)
        __builtin_prefetch(at, 0, 3);
}

/* VW columns from the first-th of the tile, any type, any number of them, n_k <= VW along k. */
INLINE void few_square(const few *f, const few_tile *c, int64_t first, int64_t k, int64_t n_k,
                       int rows, vf *acc)
{
    const tke_matrix *b = &f->g->b;
    union {
        vi bits[VW];
        vf wide[VW];
    } r;
    for (int i = 0; i < VW; i++)
        r.wide[i] =
            first + i < c->t.columns
                ? load_wide_part(b->dtype, b->data, (c->n + (first + i) * c->step) * b->ld + k, n_k)
                : v_zero();
    v_transpose(r.bits);
    for (int64_t i = 0; i < n_k; i++)
        for (int m = 0; m < rows; m++)
            acc[2 * m] = v_fma(v_set(f->a[m * f->lda + k + i]), r.wide[i], acc[2 * m]);
}

/* A tile for all of k. */
INLINE void few_columns(const few *f, const few_tile *c, int rows)
{
    const tke_gemm *g = f->g;
    vf acc[FEW_ROWS][2];
    int64_t k = 0;
    for (int m = 0; m < rows; m++)
        acc[m][0] = acc[m][1] = v_zero();
    if (c->t.from_c)
        load_tile(&c->t, rows, acc);
    if (g->b.dtype == TKE_BF16 && c->t.columns == TILE_N) {
        for (; k + 2 * VW <= g->k; k += 2 * VW) {
            fetch_soon(f, c, k);
            few_pairs(f, c, k, rows, acc);
        }
    }
    for (; k < g->k; k += VW) {
        int64_t n_k = g->k - k < VW ? g->k - k : VW;
        few_square(f, c, 0, k, n_k, rows, &acc[0][0]);
        few_square(f, c, VW, k, n_k, rows, &acc[0][1]);
    }
    store_tile(&c->t, rows, acc);
}

static TILE_CODE void few_columns_of(const few *f, const few_tile *c, int64_t rows)
{
    switch (rows) {
    case 1:
        few_columns(f, c, 1);
        break;
    case 2:
        few_columns(f, c, 2);
        break;
    case 3:
        few_columns(f, c, 3);
        break;
    default:
        few_columns(f, c, 4);
        break;
    }
}

/* How many consecutive rows of the weight one lane takes in turn. A short row ends before the
 * processor has recognized the stream, and its neighbour in the same page is a stream of its own:
 * together they are read like one row that fills the page. */
static int64_t rows_in_stream(const tke_matrix *b)
{
    int64_t rows = b->dtype == TKE_BF16 ? PAGE / (b->ld * 2) : 1;
    return rows < 1 ? 1 : rows > MOST_ROWS ? MOST_ROWS : rows;
}

/* TILE_N streams of `step` rows from column n on: tiles of every step-th column, one after the
 * other. */
static void few_streams(const few *f, float *c, int64_t rows, int64_t n, int64_t step)
{
    const tke_gemm *g = f->g;
    float part[FEW_ROWS * TILE_N];
    few_tile columns = {
        .t = { .c = part, .ldc = TILE_N, .columns = TILE_N, .from_c = g->accumulate }, .step = step
    };
    for (int64_t j = 0; j < step; j++, c++) {
        columns.n = n + j;
        columns.next = j + 1 < step ? n + j + 1 : n + step * TILE_N;
        for (int64_t i = 0; g->accumulate && i < rows * TILE_N; i++)
            part[i] = c[i / TILE_N * g->ldc + i % TILE_N * step];
        few_columns_of(f, &columns, rows);
        for (int64_t i = 0; i < rows * TILE_N; i++)
            c[i / TILE_N * g->ldc + i % TILE_N * step] = part[i];
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
    few f = { g, scratch, lda, n1 };
    float *c = g->c + m0 * g->ldc;
    int64_t n = n0, step = rows_in_stream(&g->b);
    for (; step > 1 && n + step * TILE_N <= n1; n += step * TILE_N)
        few_streams(&f, c + n, rows, n, step);
    for (; n < n1; n += TILE_N) {
        few_tile columns = { .t = { .c = c + n,
                                    .ldc = g->ldc,
                                    .columns = n1 - n < TILE_N ? n1 - n : TILE_N,
                                    .from_c = g->accumulate },
                             .n = n,
                             .step = 1,
                             .next = n + TILE_N };
        few_columns_of(&f, &columns, rows);
    }
    return true;
}

static void gemm(const tke_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, void *scratch)
{
    if (!gemm_few(g, m0, m1, n0, n1, scratch) && !gemm_transposed(g, m0, m1, n0, n1, scratch))
        gemm_packed(g, m0, m1, n0, n1, scratch);
}

#endif
