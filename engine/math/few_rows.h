/* few_rows.h - the order in which a product of a few rows (decoding) reads a stored weight. Included
 * by fast_gemv.h, avx512bf16.c and neonbf16.c, which define how a tile is multiplied, after VW and TILE_N.
 *
 * Such a product takes as long as reading the weight. A tile's columns are rows of the weight: so many
 * streams that the processor follows none, so the next tile is fetched while one is multiplied.
 */
#ifndef TKE_KERNELS_FEW_ROWS_H
#define TKE_KERNELS_FEW_ROWS_H

enum { FEW_ROWS = 4 };

/* A call, and the columns [.., n_end) of this part. */
typedef struct few {
    const tke_gemm *g;
    const void *a; /* the rows, scaled, as the tile wants them */
    int64_t lda;   /* numbers or words */
    int64_t n_end;
} few;

/* Columns from n on, `columns` of them. */
typedef struct few_tile {
    float *c;
    int64_t ldc, columns, n;
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
    return (t->n + i) * f->g->b.ld + k;
}

/* Prefetches the next tile of a weight of 16-bit numbers, as much in a step as a step reads of this
 * one. Its rows lie one behind the other; they are fetched in RUNS places at once, because each new
 * page is waited for. */
INLINE void fetch_next(const few *f, const few_tile *t, int64_t k)
{
    enum {
        LINE = 64,
        ALL = TILE_N * 2 * VW * 2 / LINE,
        RUNS = ALL < 8 ? ALL : 8,
        LINES = ALL / RUNS
    };
    const tke_matrix *b = &f->g->b;
    const char *next = (const char *)b->data + ((t->n + TILE_N) * b->ld + k * TILE_N / RUNS) * 2;
    if (t->n + 2 * TILE_N > f->n_end)
        return;
    for (int run = 0; run < RUNS; run++, next += TILE_N / RUNS * b->ld * 2)
        for (int i = 0; i < LINES; i++)
            __builtin_prefetch(next + i * LINE, 0, 3);
}

/* Columns n .. f->n_end of a few rows that begin at c. */
static void few_run(const few *f, float *c, int64_t rows, int64_t n)
{
    for (; n < f->n_end; n += TILE_N) {
        int64_t left = f->n_end - n;
        few_tile t = {
            .c = c + n, .ldc = f->g->ldc, .columns = left < TILE_N ? left : TILE_N, .n = n
        };
        few_columns_of(f, &t, rows);
    }
}

#endif
