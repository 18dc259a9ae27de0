/* cuda_attention.cuh - the parts that packed, paged and backward attention share.
 *
 * A tile has rows (token, head of the group), so that all heads that read one key head share its keys. Scores, weights
 * and sums of a row are made by the same instructions in the same order in every form; which rows share a tile, and
 * whether keys come from a cache, changes no bit.
 */
#ifndef TKE_CUDA_ATTENTION_CUH
#define TKE_CUDA_ATTENTION_CUH

#include "cuda/cuda_kernels.h"
#include "cuda/cuda_warp.cuh"

enum { KEYS = TCU_KEY_BLOCK, WARPS = 4, THREADS = WARPS * 32 };

DEVICE float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
    return y;
}

typedef struct rows_of { /* the rows of a tile */
    int group, head, n_heads, d;
    int origin, begin, n; /* n: number of rows */
    uint32_t magic;       /* for the division by group */
} rows_of;

DEVICE rows_of rows_make(const tcu_attention &p, const tcu_span &s, int kv_head)
{
    rows_of r;
    r.group = p.n_heads / p.n_kv_heads;
    r.head = kv_head * r.group;
    r.n_heads = p.n_heads;
    r.d = p.d;
    r.origin = s.origin;
    r.begin = s.begin;
    r.n = (s.end - s.begin) * r.group;
    r.magic = 0xffffffffu / (uint32_t)r.group + 1; /* 0 for a group of 1 */
    return r;
}

/* Token of row i: i / group, exact while i * group is below 2^32. */
DEVICE int row_token(const rows_of &r, int i)
{
    return r.magic ? (int)__umulhi((uint32_t)i, r.magic) : i;
}

DEVICE int row_position(const rows_of &r, int i)
{
    return r.begin + row_token(r, i);
}

/* Index of row i among [rows][n_heads]. */
DEVICE int64_t row_head(const rows_of &r, int i)
{
    int token = row_token(r, i);
    return (int64_t)(r.origin + r.begin + token) * r.n_heads + r.head + i - token * r.group;
}

/* Copies rows i0 .. i0 + ROWS - 1 of x [rows][n_heads d] into a tile [ROWS][D], zero for rows past the end. */
template <int ROWS, int D> DEVICE void load_rows(const rows_of &r, const bf16 *x, int i0, bf16 *tile)
{
#pragma unroll
    for (int at = threadIdx.x; at < ROWS * (D / 8); at += THREADS) {
        int i = at / (D / 8), c = at % (D / 8);
        bool valid = i0 + i < r.n && c * 8 < r.d;
        const bf16 *from = valid ? x + row_head(r, i0 + i) * r.d + c * 8 : x;
        copy16(tile + swizzle<D>(i, c), from, valid);
    }
}

/* The same rows of two matrices into two tiles: addresses are computed once. */
template <int ROWS, int D> DEVICE void load_rows_of_two(const rows_of &r, const bf16 *x, const bf16 *y, int i0, bf16 *tx, bf16 *ty)
{
#pragma unroll
    for (int at = threadIdx.x; at < ROWS * (D / 8); at += THREADS) {
        int i = at / (D / 8), c = at % (D / 8);
        bool valid = i0 + i < r.n && c * 8 < r.d;
        int64_t from = valid ? row_head(r, i0 + i) * r.d + c * 8 : 0;
        int to = swizzle<D>(i, c);
        copy16(tx + to, x + from, valid);
        copy16(ty + to, y + from, valid);
    }
}

/* Copies the keys (or values) at positions key0 .. key0 + 63 into a tile [64][D]; those from `end` on are zero. */
template <int D, bool PAGED>
DEVICE void load_keys(const tcu_attention &p, const tcu_span &s, int kv_head, const bf16 *x, int64_t ld, int key0,
                      int end, bf16 *tile)
{
    enum { PER = D / 8, STEP = THREADS / PER, ENTRIES = KEYS / TCU_CACHE_TOKENS };
    int i0 = threadIdx.x / PER, c = threadIdx.x % PER;
    int32_t ids[ENTRIES];
#pragma unroll
    for (int e = 0; PAGED && e < ENTRIES; e++) /* all loads first: one by one, each would wait for memory */
        ids[e] = key0 + e * TCU_CACHE_TOKENS < end ? __ldg(p.tables + s.table + key0 / TCU_CACHE_TOKENS + e) : 0;
#pragma unroll
    for (int n = 0; n < KEYS / STEP; n++) {
        int i = i0 + n * STEP;
        bool valid = key0 + i < end && c * 8 < p.d;
        const bf16 *from = x;
        if (PAGED)
            from += (int64_t)ids[n * STEP / TCU_CACHE_TOKENS] * ld + (kv_head * TCU_CACHE_TOKENS + i % TCU_CACHE_TOKENS) * p.d + c * 8;
        else
            from += (int64_t)(s.origin + key0 + i) * ld + kv_head * p.d + c * 8;
        copy16(tile + swizzle<D>(i, c), valid ? from : x, valid);
    }
}

/* Fragments of rows m0 .. m0 + 15 of a tile [..][D], step k16. */
template <int D> DEVICE void frag_rows(uint32_t f[4], const bf16 *tile, int m0, int step)
{
    int lane = threadIdx.x % 32;
    ldmatrix(f, tile + swizzle<D>(m0 + (lane & 15), step * 2 + (lane >> 4)));
}

/* s[j] = rows m0.. of a times rows j * 8 .. of b, NB tiles of 8; a chain along d. a and b: tiles [..][D]. */
template <int D, int NB> DEVICE void scores(float s[NB][4], const bf16 *a, int m0, const bf16 *b, int n0)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < NB; j++)
        s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        uint32_t f[4], g[4];
        frag_rows<D>(f, a, m0, step);
#pragma unroll
        for (int j = 0; j < NB; j += 2) {
            ldmatrix(g, b + swizzle<D>(n0 + j * 8 + (lane & 7) + ((lane >> 4) << 3), step * 2 + ((lane >> 3) & 1)));
            mma(s[j], f, g[0], g[1]);
            mma(s[j + 1], f, g[2], g[3]);
        }
    }
}

/* o[j] += w times columns c0 + j * 8 .. of b; w: KB steps of 16 rows of b (from row k0 on), as fragments of s. */
template <int D, int NB, int KB> DEVICE void gather(float o[NB][4], const float w[KB * 2][4], const bf16 *b, int k0, int c0)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < KB; step++) {
        uint32_t f[4] = { pack(w[2 * step][0], w[2 * step][1]), pack(w[2 * step][2], w[2 * step][3]),
                          pack(w[2 * step + 1][0], w[2 * step + 1][1]), pack(w[2 * step + 1][2], w[2 * step + 1][3]) };
#pragma unroll
        for (int j = 0; j < NB; j += 2) {
            uint32_t g[4];
            ldmatrix_transposed(g, b + swizzle<D>(k0 + step * 16 + (lane & 15), c0 / 8 + j + (lane >> 4)));
            mma(o[j], f, g[0], g[1]);
            mma(o[j + 1], f, g[2], g[3]);
        }
    }
}

/* The number subtracted in the exponent: the running maximum, scaled; 0 as long as every key was masked. */
DEVICE float base_of(float max, float scale2)
{
    return max == -INFINITY ? 0 : __fmul_rn(max, scale2);
}

/* exp2(s * scale2 - base) */
DEVICE float power(float s, float scale2, float base)
{
    return exp2_fast(__fmaf_rn(s, scale2, -base));
}

/* What becomes of the sums so far when a block whose largest score is `top` follows. A block of which the row sees nothing
 * changes nothing: a tile has such blocks because of its other rows. (power of the same maximum twice is not exactly 1.) */
DEVICE float shrink_of(float max, float top, float scale2)
{
    return top == -INFINITY ? 1.0f : power(max, scale2, base_of(fmaxf(max, top), scale2));
}

/* Scores of one key block: -inf where the mask says (unless `all` are seen), and the largest of each row (g and g + 8 of
 * the warp). */
DEVICE void mask_scores(float s[KEYS / 8][4], const int pos[2], int key0, int window, bool all, float top[2])
{
    int t = (threadIdx.x % 4) * 2;
    if (!all) {
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int key = key0 + j * 8 + t + e % 2, own = pos[e / 2];
                s[j][e] = key <= own && (window <= 0 || key > own - window) ? s[j][e] : -INFINITY;
            }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        top[half] = fmaxf(s[0][half * 2], s[0][half * 2 + 1]);
#pragma unroll
        for (int j = 1; j < KEYS / 8; j++)
            top[half] = fmaxf(top[half], fmaxf(s[j][half * 2], s[j][half * 2 + 1]));
        top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], 1));
        top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], 2));
    }
}

/* s becomes its weights; part: the sum of each row. */
DEVICE void weigh(float s[KEYS / 8][4], float scale2, const float base[2], float part[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        part[half] = 0;
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float *x = &s[j][half * 2 + e];
                *x = power(*x, scale2, base[half]);
                part[half] = __fadd_rn(part[half], *x);
            }
        part[half] = __fadd_rn(part[half], __shfl_xor_sync(0xffffffffu, part[half], 1));
        part[half] = __fadd_rn(part[half], __shfl_xor_sync(0xffffffffu, part[half], 2));
    }
}

/* The next key block of two rows: its scores become weights, the rows' maxima and sums take it in. shrink: what came before is to be
 * multiplied with it. */
DEVICE void weigh_block(float w[KEYS / 8][4], const float top[2], float scale2, float max[2], float sum[2], float shrink[2])
{
    float base[2], part[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        shrink[half] = shrink_of(max[half], top[half], scale2);
        max[half] = fmaxf(max[half], top[half]);
        base[half] = base_of(max[half], scale2);
    }
    weigh(w, scale2, base, part);
#pragma unroll
    for (int half = 0; half < 2; half++)
        sum[half] = __fmaf_rn(sum[half], shrink[half], part[half]);
}

/* Before the first key block: nothing, or the sinks of two rows of a tile, each a score whose weight is 1. */
DEVICE void begin_rows(const tcu_attention &p, const rows_of &r, const int row[2], float max[2], float sum[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        bool sink = p.sinks && row[half] < r.n;
        int head = sink ? r.head + row[half] - row_token(r, row[half]) * r.group : 0;
        max[half] = sink ? __fdiv_rn(p.sinks[head], p.scale) : -INFINITY;
        sum[half] = sink ? 1.0f : 0.0f;
    }
}

template <int NB> DEVICE void shrink_all(float o[NB][4], const float shrink[2])
{
#pragma unroll
    for (int j = 0; j < NB; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            o[j][e] = __fmul_rn(o[j][e], shrink[e / 2]);
}

/* Columns c0 .. of the rows' results. */
template <int NB>
DEVICE void store_rows(const tcu_attention &p, const rows_of &r, const int row[2], const float max[2], const float sum[2],
                       float scale2, float o[NB][4], int c0)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (row[half] >= r.n)
            continue;
        int64_t at = row_head(r, row[half]);
        float over = __frcp_rn(sum[half]);
        if (p.lse && lane % 4 == 0)
            p.lse[at] = base_of(max[half], scale2) + log2f(sum[half]);
#pragma unroll
        for (int j = 0; j < NB; j++) {
            int c = c0 + j * 8 + (lane % 4) * 2;
            if (c < p.d)
                *(uint32_t *)(p.o + at * p.d + c) =
                    pack(__fmul_rn(o[j][half * 2], over), __fmul_rn(o[j][half * 2 + 1], over));
        }
    }
}

/* ---- backward ---- */

/* The weight exp2(s * scale2 - lse) of a score; 0 if it is masked. */
DEVICE float weight(float s, bool seen, float scale2, float lse)
{
    float w = exp2_fast(__fmaf_rn(s, scale2, -lse));
    return seen ? w : 0.0f;
}

DEVICE bool sees(int pos, int key, int window)
{
    return key <= pos && (window <= 0 || key > pos - window);
}

#endif
