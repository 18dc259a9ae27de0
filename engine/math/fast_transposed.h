/* fast_transposed.h - products computed as their transpose, for the fast sets. Included by avx2.c
 * and avx512.c after fast_gemm.h.
 *
 * A vector of a tile holds rows of c here, not columns: the tile's left side is b, its right side
 * a. That avoids transposing a stored weight when there are few rows of a (decoding many
 * sequences), and leaves no lanes empty when c is narrow (gradients of an adapter's B). The chain
 * of an element is that of fast_gemm.h, and the order of two factors does not matter, so its bits are
 * the same.
 */
#ifndef TKE_KERNELS_FAST_TRANSPOSED_H
#define TKE_KERNELS_FAST_TRANSPOSED_H

enum {
    TRANSPOSED_ROWS = 2 * TILE_N,            /* most rows of a, for stored weights */
    TRANSPOSED_COLUMNS = LOW_TILES * TILE_M, /* most columns of c, for sums over tokens */
    TRANSPOSED_MIN_K = 32,                   /* below, turning c costs more than it saves */
    TURNED = (TILE_M + VW - 1) / VW * VW,    /* columns of a tile, in whole squares */
    TRANSPOSED_TILE = TURNED * TILE_N
};

/* A tile of c, transposed: `columns` (at most TILE_M) by `rows` (at most TILE_N). */
typedef struct transposed {
    float *tile; /* [TURNED][TILE_N] */
    float *c;    /* [rows][ldc] */
    int64_t ldc, rows, columns;
} transposed;

/* How many of the tile's columns are in the square of VW that begins with this one. */
INLINE int64_t in_square(const transposed *t, int64_t column)
{
    int64_t left = t->columns - column;
    return left < 0 ? 0 : left < VW ? left : VW;
}

static void turn_in(const transposed *t)
{
    vi r[VW];
    for (int64_t half = 0; half < t->rows; half += VW)
        for (int64_t n = 0; n < TURNED; n += VW) {
            const float *c = t->c + half * t->ldc + n;
            int64_t columns = in_square(t, n);
            for (int i = 0; i < VW; i++)
                r[i] = columns && half + i < t->rows ? vi_load_part(c + i * t->ldc, columns)
                                                     : vi_zero();
            v_transpose(r);
            for (int i = 0; i < VW; i++)
                vi_store(t->tile + (n + i) * TILE_N + half, r[i]);
        }
}

static void turn_out(const transposed *t)
{
    union {
        vi bits[VW];
        vf wide[VW];
    } r;
    for (int64_t half = 0; half < t->rows; half += VW)
        for (int64_t n = 0; n < t->columns; n += VW) {
            float *c = t->c + half * t->ldc + n;
            for (int i = 0; i < VW; i++)
                r.bits[i] =
                    n + i < t->columns ? vi_load(t->tile + (n + i) * TILE_N + half) : vi_zero();
            v_transpose(r.bits);
            for (int i = 0; i < VW && half + i < t->rows; i++)
                v_store_part(c + i * t->ldc, in_square(t, n), r.wide[i]);
        }
}

/* ---- few rows times a stored weight ---- */

/* All of a's rows as panels [k][TILE_N], missing rows zero. */
static void pack_right_rows(const tke_gemm *g, int64_t m0, int64_t m1, float *out)
{
    bool narrow = !g->exact && g->b.dtype == TKE_BF16;
    tke_matrix a = { .data = g->a, .ld = g->lda, .dtype = TKE_F32 };
    for (int64_t m = m0; m < m1; m += TILE_N, out += g->k * TILE_N) {
        pack_transposed(&a, m, m1 - m, 0, g->k, out);
        if (m1 - m > VW)
            pack_transposed(&a, m + VW, m1 - m - VW, 0, g->k, out + VW);
        if (narrow || g->alpha != 1)
            for (int64_t k = 0; k < g->k; k++)
                copy_scaled(out + k * TILE_N, m1 - m > VW ? TILE_N : VW, g->alpha, narrow,
                            out + k * TILE_N);
    }
}

/* Rows n .. n+columns of the stored weight, k0 .. k1, widened. */
static void widen_rows(const tke_matrix *b, int64_t n, int64_t columns, int64_t k0, int64_t k1,
                       float *out)
{
    for (int64_t r = 0; r < columns; r++, out += A_LD) {
        int64_t at = (n + r) * b->ld + k0, count = k1 - k0, i = 0;
        if (b->dtype == TKE_BF16)
            for (; i + VW <= count; i += VW)
                v_store(out + i, v_load_bf16((const uint16_t *)b->data + at + i));
        for (; i < count; i += VW)
            v_store(out + i,
                    load_wide_part(b->dtype, b->data, at + i, count - i < VW ? count - i : VW));
    }
}

/* A tile whose left side is read where it is stored, as bf16: nothing is widened beforehand. Rows
 * are reached from every third one, which is how far addresses go without registers of their own.
 */
INLINE void run_stored(const tile *t, int rows, const uint16_t *w, int64_t ld)
{
    enum { STEP = 3, BASES = (TILE_M + STEP - 1) / STEP };
    vf acc[TILE_M][2];
    const uint16_t *base[BASES];
    const float *b = t->b;
    if (t->from_c)
        load_tile(t, rows, acc);
    else
        EACH(r, rows)
    acc[r][0] = acc[r][1] = v_zero();
    vf b0 = v_load(b), b1 = v_load(b + VW);
    EACH(r, rows)
    { /* the first of a row has nothing before it */
        vf x = v_set(tke_bf16_to_f32(w[r * ld]));
        acc[r][0] = v_fma(x, b0, acc[r][0]);
        acc[r][1] = v_fma(x, b1, acc[r][1]);
    }
    for (int i = 0; i < BASES; i++)
        base[i] = w + i * STEP * ld + 1;
    b += TILE_N;
    for (int64_t k = 1; k < t->k;) {
        int64_t end = k < AHEAD ? AHEAD : k + AHEAD;
        end = t->k < end ? t->k : end;
        if (t->next)
            send_for_next(t, rows, k);
        for (; k < end; k++, b += TILE_N) {
            b0 = v_load(b);
            b1 = v_load(b + VW);
            EACH(r, rows)
            {
                vf x = v_set_bf16(base[r / STEP] + r % STEP * ld);
                acc[r][0] = v_fma(x, b0, acc[r][0]);
                acc[r][1] = v_fma(x, b1, acc[r][1]);
            }
            for (int i = 0; i < BASES; i++)
                base[i]++;
        }
    }
    store_tile(t, rows, acc);
}

#undef TILE_CASE
#define TILE_CASE(ROWS, W, LD)                                                                     \
    case ROWS:                                                                                     \
        run_stored(t, ROWS, W, LD);                                                                \
        break;

static TILE_CODE void tile_of_stored(const tile *t, int64_t rows, const uint16_t *w, int64_t ld)
{
    switch (rows) {
        TILE_CASES(w, ld)
    default:
        break;
    }
}

#undef TILE_CASE
#define TILE_CASE(ROWS, STEP, K_STEP)                                                              \
    case ROWS:                                                                                     \
        run_tile(t, ROWS, STEP, K_STEP);                                                           \
        break;

/* One tile of columns against all rows, k0 .. k1. */
static void transposed_block(const tke_gemm *g, const int64_t m[2], int64_t n, int64_t columns,
                             const int64_t k[2], const tile *left, float *tiles, const float *right)
{
    for (int64_t i = m[0]; i < m[1]; i += TILE_N, tiles += TRANSPOSED_TILE) {
        transposed t = {
            .tile = tiles, .c = g->c + i * g->ldc + n, .ldc = g->ldc, .columns = columns
        };
        t.rows = m[1] - i < TILE_N ? m[1] - i : TILE_N;
        if (k[0] == 0 && g->accumulate)
            turn_in(&t);
        tile run = *left;
        run.b = right + (i - m[0]) * g->k + k[0] * TILE_N;
        run.c = tiles;
        run.columns = t.rows > VW || !run.a ? TILE_N : VW;
        if (i + TILE_N < m[1])
            run.next = NULL;
        if (run.a)
            tile_by_rows(&run, columns);
        else
            tile_of_stored(&run, columns, (const uint16_t *)g->b.data + n * g->b.ld + k[0],
                           g->b.ld);
        if (k[1] == g->k)
            turn_out(&t);
    }
}

static void transposed_weight(const tke_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                              float *scratch)
{
    float *rows = scratch, *tiles = rows + A_FLOATS, *right = tiles + 2 * TRANSPOSED_TILE;
    int64_t size = (int64_t)tke_dtype_size(g->b.dtype), row_bytes = g->b.ld * size;
    pack_right_rows(g, m0, m1, right);
    for (int64_t n = n0; n < n1; n += TILE_M) {
        int64_t columns = n1 - n < TILE_M ? n1 - n : TILE_M;
        for (int64_t k = 0; k < g->k; k += K_BLOCK) {
            int64_t k_end = g->k - k < K_BLOCK ? g->k : k + K_BLOCK;
            bool stored = g->b.dtype == TKE_BF16 && m1 - m0 > VW;
            if (!stored)
                widen_rows(&g->b, n, columns, k, k_end, rows);
            tile left = {
                .a = stored ? NULL : rows, .k = k_end - k, .ldc = TILE_N, .next_ld = row_bytes
            };
            left.from_c = g->accumulate || k > 0;
            left.next_step = AHEAD * size;
            if (k_end < g->k)
                left.next = (const char *)g->b.data + n * row_bytes + k_end * size;
            else if (n + 2 * TILE_M <= n1)
                left.next = (const char *)g->b.data + (n + TILE_M) * row_bytes;
            transposed_block(g, (int64_t[2]){ m0, m1 }, n, columns, (int64_t[2]){ k, k_end }, &left,
                             tiles, right);
        }
    }
}

/* ---- sums over tokens with few columns ---- */

/* Columns n0 .. n1 of b stored as [k][n], as panels [k][TILE_M]. */
static void pack_left_columns(const tke_gemm *g, int64_t n0, int64_t n1, int64_t k0, int64_t k1,
                              float *out)
{
    for (int64_t n = n0; n < n1; n += TILE_M, out += TILE_M * K_BLOCK)
        for (int64_t k = k0; k < k1; k++) {
            int64_t columns = n1 - n < TILE_M ? n1 - n : TILE_M, at = k * g->b.ld + n;
            float *to = out + (k - k0) * TILE_M;
            for (int64_t i = 0; i < columns; i += VW) {
                int64_t part = columns - i < VW ? columns - i : VW;
                v_store_part(to + i, part, load_wide_part(g->b.dtype, g->b.data, at + i, part));
            }
        }
}

static void transposed_sum(const tke_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                           float *scratch)
{
    float *tiles = scratch, *right = tiles + TRANSPOSED_TILE, *left = right + TILE_N * K_BLOCK;
    tke_matrix a = { .data = g->a, .ld = g->lda, .dtype = TKE_F32 };
    for (int64_t k = 0; k < g->k; k += K_BLOCK) {
        int64_t k_end = g->k - k < K_BLOCK ? g->k : k + K_BLOCK;
        pack_left_columns(g, n0, n1, k, k_end, left);
        for (int64_t m = m0; m < m1; m += TILE_N) {
            transposed t = { .tile = tiles, .ldc = g->ldc };
            t.rows = m1 - m < TILE_N ? m1 - m : TILE_N;
            pack_rows(&a, m, m1 - m, k, k_end, right);
            if (g->alpha != 1)
                copy_scaled(right, (k_end - k) * TILE_N, g->alpha, false, right);
            for (int64_t n = n0; n < n1; n += TILE_M) {
                t.columns = n1 - n < TILE_M ? n1 - n : TILE_M;
                t.c = g->c + m * g->ldc + n;
                tile run = { .a = left + (n - n0) / TILE_M * TILE_M * K_BLOCK,
                             .b = right,
                             .c = tiles,
                             .k = k_end - k,
                             .ldc = TILE_N,
                             .columns = t.rows > VW ? TILE_N : VW,
                             .from_c = g->accumulate || k > 0 };
                if (run.from_c)
                    turn_in(&t);
                tile_by_columns(&run, t.columns);
                turn_out(&t);
            }
        }
    }
}

/* True if it was done. */
static bool gemm_transposed(const tke_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                            float *scratch)
{
    int64_t rows = m1 - m0, columns = n1 - n0;
    int64_t room = TKE_SCRATCH_BYTES / (int64_t)sizeof(float) - A_FLOATS - 2 * TRANSPOSED_TILE;
    if (g->form == TKE_NT && rows <= TRANSPOSED_ROWS && g->k >= TRANSPOSED_MIN_K &&
        round_up(rows, TILE_N) * g->k <= room) {
        transposed_weight(g, m0, m1, n0, n1, scratch);
        return true;
    }
    if (g->form == TKE_TN && columns <= TRANSPOSED_COLUMNS && rows > columns &&
        g->k >= TRANSPOSED_MIN_K) {
        transposed_sum(g, m0, m1, n0, n1, scratch);
        return true;
    }
    return false;
}

#endif
