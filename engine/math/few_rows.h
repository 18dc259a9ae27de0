/* few_rows.h - the order in which a product of a few rows (decoding) reads a stored weight. Included
 * by fast_gemv.h and avx512bf16.c, which define how a tile is multiplied, after VW and TILE_N.
 *
 * Such a product takes as long as reading the weight. A tile's columns are rows of the weight, each
 * a stream of its own that the processor can recognize.
 */
#ifndef TKE_KERNELS_FEW_ROWS_H
#define TKE_KERNELS_FEW_ROWS_H

enum {
    FEW_ROWS = 4,
    PAGE = 4096,  /* how far the processor's own prefetching follows a stream */
    MOST_ROWS = 4 /* of the weight in one stream */
};

/* A call, and the columns [.., n_end) of this part. */
typedef struct few {
    const tke_gemm *g;
    const void *a; /* the rows, scaled, as the tile wants them */
    int64_t lda;   /* numbers or words */
    int64_t n_end;
} few;

/* Columns n, n + step, ... (`columns` of them exist); the next tile begins with column `next`. */
typedef struct few_tile {
    float *c;
    int64_t ldc, columns;
    int64_t n, step, next;
} few_tile;

/* Calls fn(..., rows) with rows as a constant. */
#define FEW_CASES(rows, fn, ...)                                                                   \
    switch (rows) {                                                                                \
    case 1:                                                                                        \
        fn(__VA_ARGS__, 1);                                                                        \
        break;                                                                                     \
    case 2:                                                                                        \
        fn(__VA_ARGS__, 2);                                                                        \
        break;                                                                                     \
    case 3:                                                                                        \
        fn(__VA_ARGS__, 3);                                                                        \
        break;                                                                                     \
    default:                                                                                       \
        fn(__VA_ARGS__, 4);                                                                        \
        break;                                                                                     \
    }

/* A tile for all of k, 1 .. FEW_ROWS rows: continues from c where the call accumulates. */
static void few_columns_of(const few *f, const few_tile *t, int64_t rows);

/* Where the i-th column of the tile is stored, from k on. */
INLINE int64_t few_at(const few *f, const few_tile *t, int64_t i, int64_t k)
{
    return (t->n + i * t->step) * f->g->b.ld + k;
}

/* Prefetches a few steps ahead in a weight of 16-bit numbers: further along the same rows, at their
 * end the beginning of the next tile's rows. Further ahead is slower: early data is evicted before
 * its use. */
INLINE void fetch_soon(const few *f, const few_tile *t, int64_t k)
{
    enum { STEPS = 4 };
    const tke_matrix *b = &f->g->b;
    int64_t n = t->n;
    k += STEPS * 2 * VW;
    if (k >= f->g->k) {
        k -= f->g->k;
        n = t->next;
    }
    if (n + (TILE_N - 1) * t->step >= f->n_end || k >= f->g->k)
        return;
    const char *at = (const char *)b->data + (n * b->ld + k) * 2;
    for (int i = 0; i < TILE_N; i++, at += t->step * b->ld * 2)
        __builtin_prefetch(at, 0, 3);
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
    few_tile t = { .c = part, .ldc = TILE_N, .columns = TILE_N, .step = step };
    for (int64_t j = 0; j < step; j++, c++) {
        t.n = n + j;
        t.next = j + 1 < step ? n + j + 1 : n + step * TILE_N;
        for (int64_t i = 0; g->accumulate && i < rows * TILE_N; i++)
            part[i] = c[i / TILE_N * g->ldc + i % TILE_N * step];
        few_columns_of(f, &t, rows);
        for (int64_t i = 0; i < rows * TILE_N; i++)
            c[i / TILE_N * g->ldc + i % TILE_N * step] = part[i];
    }
}

/* Columns n .. f->n_end of a few rows that begin at c. */
static void few_run(const few *f, float *c, int64_t rows, int64_t n)
{
    int64_t step = rows_in_stream(&f->g->b);
    for (; step > 1 && n + step * TILE_N <= f->n_end; n += step * TILE_N)
        few_streams(f, c + n, rows, n, step);
    for (; n < f->n_end; n += TILE_N) {
        int64_t left = f->n_end - n;
        few_tile t = { .c = c + n,
                       .ldc = f->g->ldc,
                       .columns = left < TILE_N ? left : TILE_N,
                       .n = n,
                       .step = 1,
                       .next = n + TILE_N };
        few_columns_of(f, &t, rows);
    }
}

#endif
