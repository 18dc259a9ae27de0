/* fast_gemm.h - the product kernel of the fast sets, written in the operations of simd_*.h.
 *
 * Included by neon.c, avx2.c and avx512.c, after TILE_M and the simd header. b is packed in panels of
 * TILE_N columns ([k][TILE_N], widened to fp32); a in panels of TILE_M rows. The inner kernel keeps
 * a tile of c in registers and walks along k: one fused multiply-add for each k, in order. Between
 * blocks of k the tile is stored in c, so an element is one chain whatever the blocking, the tile it
 * falls in and the rows beside it.
 */
#ifndef TKE_KERNELS_FAST_GEMM_H
#define TKE_KERNELS_FAST_GEMM_H

enum {
    TILE_N = 2 * VW,
    K_BLOCK = 384, /* a panel of a stays in the L1 cache */
    N_BLOCK = 512, /* a packed block of b stays in the L2 cache */
    A_LD = K_BLOCK +
           16, /* distance of a panel's rows: they must not compete for the same cache sets */
    A_FLOATS = TILE_M * A_LD,
    LOW_K = 192,  /* with few rows a panel of b stays in the L1 cache instead */
    LOW_TILES = 4 /* up to this many tiles of rows are "few" */
};
_Static_assert((LOW_TILES * A_FLOATS + N_BLOCK * K_BLOCK) * 4 <= TKE_SCRATCH_BYTES,
               "scratch too small");

/* VW numbers of a stored row (or the first n), widened. */
INLINE vf load_wide(tke_dtype dtype, const void *data, int64_t at)
{
    if (dtype == TKE_BF16)
        return v_load_bf16((const uint16_t *)data + at);
    if (dtype == TKE_F16)
        return v_load_f16((const uint16_t *)data + at);
    return v_load((const float *)data + at);
}

INLINE vf load_wide_part(tke_dtype dtype, const void *data, int64_t at, int64_t n)
{
    if (dtype == TKE_BF16)
        return v_load_bf16_part((const uint16_t *)data + at, n);
    if (dtype == TKE_F16)
        return v_load_f16_part((const uint16_t *)data + at, n);
    return v_load_part((const float *)data + at, n);
}

/* ---- packing b ---- */

/* Prefetches VW rows of a stored weight at column k: they are too many streams for the hardware
 * prefetcher. Rows past the end are harmless. */
INLINE void fetch_ahead(const tke_matrix *b, int64_t row, int64_t k)
{
    uintptr_t at = (uintptr_t)b->data + (uintptr_t)(row * b->ld + k) * tke_dtype_size(b->dtype);
    for (int i = 0; i < VW; i++, at += (uintptr_t)b->ld * tke_dtype_size(b->dtype))
        __builtin_prefetch((const void *)at, 0, 2);
}

/* `columns` rows of stored bf16 [n][k] at `at`, 2*VW along k, to VW columns of the panel. */
INLINE void pack_pairs(const tke_matrix *b, int64_t at, int64_t columns, float *out)
{
    vi r[VW];
    for (int i = 0; i < VW; i++)
        r[i] = i < columns ? vi_load((const uint16_t *)b->data + at + i * b->ld) : vi_zero();
    v_transpose(r);
    for (int i = 0; i < VW; i++) {
        v_store(out + 2 * i * TILE_N, v_pair_first(r[i]));
        v_store(out + (2 * i + 1) * TILE_N, v_pair_second(r[i]));
    }
}

INLINE int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* VW rows of stored fp32, VW along k. */
INLINE void pack_whole_square(const tke_matrix *b, int64_t at, float *out)
{
    vi r[VW];
    for (int i = 0; i < VW; i++)
        r[i] = vi_load((const float *)b->data + at + i * b->ld);
    v_transpose(r);
    for (int i = 0; i < VW; i++)
        vi_store(out + i * TILE_N, r[i]);
}

/* The same for any dtype, n <= VW along k. */
INLINE void pack_square(const tke_matrix *b, int64_t at, int64_t columns, int64_t n, float *out)
{
    union {
        vi bits[VW];
        vf wide[VW];
    } r;
    for (int i = 0; i < VW; i++)
        r.wide[i] = i < columns ? load_wide_part(b->dtype, b->data, at + i * b->ld, n) : v_zero();
    v_transpose(r.bits);
    for (int64_t i = 0; i < n; i++)
        v_store(out + i * TILE_N, r.wide[i]);
}

/* VW columns (those from `columns` on are zero) of k0 .. k1 of b stored as [n][k]. */
static void pack_transposed(const tke_matrix *b, int64_t n, int64_t columns, int64_t k0, int64_t k1,
                            float *out)
{
    int64_t k = k0, at = n * b->ld;
    if (b->dtype == TKE_BF16 && columns >= VW)
        for (; k + 2 * VW <= k1; k += 2 * VW) {
            fetch_ahead(b, n + 2 * VW, k);
            pack_pairs(b, at + k, VW, out + (k - k0) * TILE_N);
        }
    if (b->dtype == TKE_F32 && columns >= VW)
        for (; k + VW <= k1; k += VW)
            pack_whole_square(b, at + k, out + (k - k0) * TILE_N);
    for (; k < k1; k += VW)
        pack_square(b, at + k, columns, k1 - k < VW ? k1 - k : VW, out + (k - k0) * TILE_N);
}

INLINE void pack_rows_of(tke_dtype dtype, const tke_matrix *b, int64_t n, int64_t columns,
                         int64_t k0, int64_t k1, float *out)
{
    for (int64_t k = k0; k < k1; k++, out += TILE_N) {
        int64_t at = k * b->ld + n;
        if (columns >= TILE_N) {
            v_store(out, load_wide(dtype, b->data, at));
            v_store(out + VW, load_wide(dtype, b->data, at + VW));
            continue;
        }
        int64_t lo = columns < VW ? columns : VW, hi = columns - lo;
        v_store(out, load_wide_part(dtype, b->data, at, lo));
        v_store(out + VW, hi > 0 ? load_wide_part(dtype, b->data, at + VW, hi) : v_zero());
    }
}

/* One panel of b stored as [k][n]. */
static void pack_rows(const tke_matrix *b, int64_t n, int64_t columns, int64_t k0, int64_t k1,
                      float *out)
{
    if (b->dtype == TKE_BF16)
        pack_rows_of(TKE_BF16, b, n, columns, k0, k1, out);
    else if (b->dtype == TKE_F16)
        pack_rows_of(TKE_F16, b, n, columns, k0, k1, out);
    else
        pack_rows_of(TKE_F32, b, n, columns, k0, k1, out);
}

static void pack_b(const tke_gemm *g, int64_t n0, int64_t n1, int64_t k0, int64_t k1, float *out)
{
    for (int64_t n = n0; n < n1; n += TILE_N, out += TILE_N * (k1 - k0)) {
        int64_t columns = n1 - n;
        if (g->form != TKE_NT) {
            pack_rows(&g->b, n, columns, k0, k1, out);
            continue;
        }
        pack_transposed(&g->b, n, columns, k0, k1, out);
        pack_transposed(&g->b, n + VW, columns - VW, k0, k1, out + VW);
    }
}

/* ---- packing a ---- */

INLINE vf scaled(vf x, vf alpha, bool narrow)
{
    x = v_mul(x, alpha);
    return narrow ? v_round_bf16(x) : x;
}

static void copy_scaled(const float *from, int64_t n, float alpha, bool narrow, float *to)
{
    vf s = v_set(alpha);
    int64_t i = 0;
    for (; i + VW <= n; i += VW)
        v_store(to + i, scaled(v_load(from + i), s, narrow));
    if (i < n)
        v_store_part(to + i, n - i, scaled(v_load_part(from + i, n - i), s, narrow));
}

/* Rows i .. i+rows, k0 .. k1: as rows A_LD apart, or for TN as [k][TILE_M]. */
static void pack_a(const tke_gemm *g, int64_t i, int64_t rows, int64_t k0, int64_t k1, float *out)
{
    bool narrow = !g->exact && g->form != TKE_TN && g->b.dtype == TKE_BF16;
    if (g->form != TKE_TN) {
        for (int64_t r = 0; r < rows; r++)
            copy_scaled(g->a + (i + r) * g->lda + k0, k1 - k0, g->alpha, narrow, out + r * A_LD);
        return;
    }
    for (int64_t k = k0; k < k1; k++)
        copy_scaled(g->a + k * g->lda + i, rows, g->alpha, narrow, out + (k - k0) * TILE_M);
}

/* ---- the tile ---- */

typedef struct tile {
    const float *a, *b;
    float *c;
    int64_t k, ldc, columns;
    bool from_c; /* continue from what is in c */
    /* NULL, or where the left side of the next tile lies: as many rows, next_ld bytes apart,
     * next_step bytes of each for AHEAD steps of k. They are prefetched a few at a time: all at
     * once would fill the queue of cache misses and stall. */
    const char *next;
    int64_t next_ld, next_step;
} tile;
enum { AHEAD = 32 };

INLINE void send_for_next(const tile *t, int rows, int64_t k)
{
    uintptr_t at = (uintptr_t)t->next + (uintptr_t)(k / AHEAD * t->next_step);
    for (int64_t line = 0; line < t->next_step; line += 64)
        for (int r = 0; r < rows; r++)
            __builtin_prefetch((const void *)(at + (uintptr_t)(r * t->next_ld + line)), 0, 2);
}

/* Some of a tile's columns, in a set without masks: they go through a whole tile in memory. Expanded in
 * place, loads of single lanes are so much code that compilers leave the loop over the rows as it is, and
 * with it the sums in memory. */
static __attribute__((noinline)) void take_columns(const tile *t, int64_t rows, float *whole)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < TILE_N; j++)
            whole[r * TILE_N + j] = j < t->columns ? t->c[r * t->ldc + j] : 0;
}

static __attribute__((noinline)) void put_columns(const tile *t, int64_t rows, const float *whole)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < t->columns; j++)
            t->c[r * t->ldc + j] = whole[r * TILE_N + j];
}

INLINE void load_tile(const tile *t, int rows, vf acc[][2])
{
    int64_t lo = t->columns < VW ? t->columns : VW, hi = t->columns - lo, ldc = t->ldc;
    bool part = t->columns != TILE_N;
    float whole[TILE_M * TILE_N], *c = t->c;
    if (part && !V_MASKS) {
        take_columns(t, rows, whole);
        c = whole;
        ldc = TILE_N;
    }
    EACH(r, rows)
    {
        if (part && V_MASKS) {
            acc[r][0] = v_load_part(c + r * ldc, lo);
            acc[r][1] = hi > 0 ? v_load_part(c + r * ldc + VW, hi) : v_zero();
        } else {
            acc[r][0] = v_load(c + r * ldc);
            acc[r][1] = v_load(c + r * ldc + VW);
        }
    }
}

INLINE void store_tile(const tile *t, int rows, vf acc[][2])
{
    int64_t lo = t->columns < VW ? t->columns : VW, hi = t->columns - lo;
    bool part = t->columns != TILE_N, copy = part && !V_MASKS;
    float whole[TILE_M * TILE_N], *c = copy ? whole : t->c;
    int64_t ldc = copy ? TILE_N : t->ldc;
    EACH(r, rows)
    {
        if (part && V_MASKS) {
            v_store_part(c + r * ldc, lo, acc[r][0]);
            if (hi > 0)
                v_store_part(c + r * ldc + VW, hi, acc[r][1]);
        } else {
            v_store(c + r * ldc, acc[r][0]);
            v_store(c + r * ldc + VW, acc[r][1]);
        }
    }
    if (copy)
        put_columns(t, rows, whole);
}

/* rows, row_step and k_step are constants wherever this is expanded. */
INLINE void run_tile(const tile *t, int rows, int64_t row_step, int64_t k_step)
{
    vf acc[TILE_M][2];
    if (t->from_c)
        load_tile(t, rows, acc);
    else
        EACH(r, rows)
    acc[r][0] = acc[r][1] = v_zero();
    const float *a = t->a, *b = t->b;
    if (t->columns <= VW) /* small ranks: the other half is empty */
        for (int64_t k = t->k; k > 0; k--, a += k_step, b += TILE_N) {
            vf b0 = v_load(b);
            EACH(r, rows)
            acc[r][0] = v_fma(v_set(a[r * row_step]), b0, acc[r][0]);
        }
    else
        for (int64_t k = 0; k < t->k;) {
            int64_t end = t->k - k < AHEAD ? t->k : k + AHEAD;
            if (t->next)
                send_for_next(t, rows, k);
            for (; k < end; k++, a += k_step, b += TILE_N) {
                vf b0 = v_load(b), b1 = v_load(b + VW);
                EACH(r, rows)
                {
                    vf x = v_set(a[r * row_step]);
                    acc[r][0] = v_fma(x, b0, acc[r][0]);
                    acc[r][1] = v_fma(x, b1, acc[r][1]);
                }
            }
        }
    store_tile(t, rows, acc);
}

#define TILE_CASE(ROWS, STEP, K_STEP)                                                              \
    case ROWS:                                                                                     \
        run_tile(t, ROWS, STEP, K_STEP);                                                           \
        break;

#define TILE_CASES_6(S, K)                                                                         \
    TILE_CASE(1, S, K)                                                                             \
    TILE_CASE(2, S, K) TILE_CASE(3, S, K) TILE_CASE(4, S, K) TILE_CASE(5, S, K) TILE_CASE(6, S, K)
#define TILE_CASES_12(S, K)                                                                        \
    TILE_CASES_6(S, K)                                                                             \
    TILE_CASE(7, S, K)                                                                             \
    TILE_CASE(8, S, K)                                                                             \
    TILE_CASE(9, S, K) TILE_CASE(10, S, K) TILE_CASE(11, S, K) TILE_CASE(12, S, K)

#if TILE_M_COUNT > 12
#define TILE_CASES(S, K) TILE_CASES_12(S, K) TILE_CASE(13, S, K) TILE_CASE(14, S, K)
#elif TILE_M_COUNT > 6
#define TILE_CASES TILE_CASES_12
#else
#define TILE_CASES TILE_CASES_6
#endif

static TILE_CODE void tile_by_rows(const tile *t, int64_t rows)
{
    switch (rows) {
        TILE_CASES(A_LD, 1)
    default:
        break;
    }
}

static TILE_CODE void tile_by_columns(const tile *t, int64_t rows)
{
    switch (rows) {
        TILE_CASES(1, TILE_M)
    default:
        break;
    }
}

/* ---- the whole ---- */

/* Rows m[0] .. m[1] against one packed block of b. With `packed` the rows are already in `a`. */
static void multiply_block(const tke_gemm *g, const int64_t m[2], const int64_t n[2],
                           const int64_t k[2], bool packed, float *a, const float *b)
{
    for (int64_t i = m[0]; i < m[1]; i += TILE_M) {
        int64_t rows = m[1] - i < TILE_M ? m[1] - i : TILE_M;
        tile t = { .a = a, .b = b, .k = k[1] - k[0], .ldc = g->ldc };
        if (packed)
            t.a = a + (i - m[0]) / TILE_M * A_FLOATS;
        else
            pack_a(g, i, rows, k[0], k[1], a);
        t.from_c = g->accumulate || k[0] > 0;
        for (int64_t j = n[0]; j < n[1]; j += TILE_N, t.b += TILE_N * t.k) {
            t.c = g->c + i * g->ldc + j;
            t.columns = n[1] - j < TILE_N ? n[1] - j : TILE_N;
            if (g->form == TKE_TN)
                tile_by_columns(&t, rows);
            else
                tile_by_rows(&t, rows);
        }
    }
}

static void clear_block(const tke_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1)
{
    for (int64_t i = m0; i < m1; i++)
        memset(g->c + i * g->ldc + n0, 0, (size_t)(n1 - n0) * sizeof(float));
}

/* Few rows: all of a is packed first, and a panel of b is used while it is in the L1 cache. */
static void gemm_low(const tke_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float *a)
{
    float *b = a + LOW_TILES * A_FLOATS;
    for (int64_t k = 0; k < g->k; k += LOW_K) {
        int64_t k_end = g->k - k < LOW_K ? g->k : k + LOW_K;
        for (int64_t i = m0; i < m1; i += TILE_M)
            pack_a(g, i, m1 - i < TILE_M ? m1 - i : TILE_M, k, k_end,
                   a + (i - m0) / TILE_M * A_FLOATS);
        for (int64_t n = n0; n < n1; n += TILE_N) {
            int64_t n_end = n1 - n < TILE_N ? n1 : n + TILE_N;
            pack_b(g, n, n_end, k, k_end, b);
            multiply_block(g, (int64_t[2]){ m0, m1 }, (int64_t[2]){ n, n_end },
                           (int64_t[2]){ k, k_end }, true, a, b);
        }
    }
}

static void gemm_packed(const tke_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                        void *scratch)
{
    float *a = scratch, *b = a + A_FLOATS;
    if (g->k <= 0 && !g->accumulate)
        clear_block(g, m0, m1, n0, n1);
    if (m1 - m0 <= LOW_TILES * TILE_M) {
        gemm_low(g, m0, m1, n0, n1, a);
        return;
    }
    for (int64_t n = n0; n < n1; n += N_BLOCK) {
        int64_t n_end = n1 - n < N_BLOCK ? n1 : n + N_BLOCK;
        for (int64_t k = 0; k < g->k; k += K_BLOCK) {
            int64_t k_end = g->k - k < K_BLOCK ? g->k : k + K_BLOCK;
            pack_b(g, n, n_end, k, k_end, b);
            multiply_block(g, (int64_t[2]){ m0, m1 }, (int64_t[2]){ n, n_end },
                           (int64_t[2]){ k, k_end }, false, a, b);
        }
    }
}

#endif
