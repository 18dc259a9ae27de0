/* cuda_chain.cuh - a tile of a product whose elements are one chain of mma.sync along k, in order.
 *
 * This chain is the definition of every product (docs/gpu.md): whatever the tile, the bits are the same. Operands are
 * bf16, stored with k along the row or with k as the row; elements outside are zero. A product over tokens takes its k
 * in steps of up to 16 rows of one datum, so that a datum's steps do not depend on what was packed beside it.
 */
#ifndef TKE_CUDA_CHAIN_CUH
#define TKE_CUDA_CHAIN_CUH

#include "cuda/cuda_kernels.h"
#include "cuda/cuda_warp.cuh"

typedef struct operand {
    const bf16 *at; /* first element of the tile's rows (k along the row) or columns (k as the row) */
    int64_t ld;
    int n;                 /* number of rows or columns */
    const tcu_step *steps; /* k as the row: which rows; NULL = 0, 1, 2, ... */
} operand;

typedef struct picked { /* rows with k along them, chosen by number */
    const bf16 *at;
    int64_t ld;
    int n;
    const int *rows; /* [n] */
} picked;

template <int BM_, int BN_, int WM_, int WN_, bool AT_, bool BT_, int BK_ = 32, int STAGES_ = 4> struct shape {
    enum {
        BM = BM_,
        BN = BN_,
        BK = BK_,
        WM = WM_,
        WN = WN_,
        STAGES = STAGES_,
        THREADS = WM_ * WN_ * 32,
        MT = BM_ / WM_ / 16,
        NT = BN_ / WN_ / 8,
        BYTES = STAGES * (BM_ + BN_) * BK * 2
    };
    static const bool AT = AT_, BT = BT_;
};

/* WIDTH rows of BK (not transposed), or BK rows of WIDTH. */
template <int WIDTH, int BK, int THREADS, bool TRANSPOSED> DEVICE void load_operand(const operand &o, int k0, int k, bf16 *tile)
{
    enum { PER = TRANSPOSED ? WIDTH / 8 : BK / 8, COUNT = WIDTH * BK / 8 };
    int base = k0;
    bool straight = !TRANSPOSED || !o.steps;
    if (!straight && k0 + BK <= k) { /* full, consecutive steps are plain rows */
        tcu_step first = o.steps[k0 / TCU_STEP_ROWS], last = o.steps[k0 / TCU_STEP_ROWS + BK / TCU_STEP_ROWS - 1];
        straight = last.row - first.row == BK - TCU_STEP_ROWS && last.n == TCU_STEP_ROWS;
        base = first.row;
    }
    enum { APART = THREADS / PER }; /* rows between a thread's pieces: a multiple of 8, so all have the same swizzle */
    int r0 = threadIdx.x / PER, c0 = threadIdx.x % PER;
    if (straight && k0 + BK <= k && (TRANSPOSED || WIDTH <= o.n)) {
        bool there = !TRANSPOSED || c0 * 8 < o.n;
        const bf16 *from = TRANSPOSED ? o.at + (int64_t)(base + r0) * o.ld + c0 * 8 : o.at + (int64_t)r0 * o.ld + k0 + c0 * 8;
        bf16 *to = tile + (TRANSPOSED ? swizzle<WIDTH>(r0, c0) : swizzle<BK>(r0, c0));
        from = there ? from : o.at;
        int64_t step = there ? APART * o.ld : 0;
#pragma unroll
        for (int i = 0; i < (COUNT + THREADS - 1) / THREADS; i++, from += step)
            if (COUNT % THREADS == 0 || (int)threadIdx.x + i * THREADS < COUNT)
                copy16(to + i * APART * (TRANSPOSED ? WIDTH : BK), from, there);
        return;
    }
#pragma unroll
    for (int at = threadIdx.x; at < COUNT; at += THREADS) {
        int r = at / PER, c = at % PER;
        bool valid;
        int64_t offset;
        if (!TRANSPOSED) {
            valid = r < o.n && k0 + c * 8 < k;
            offset = (int64_t)r * o.ld + k0 + c * 8;
        } else {
            int row = base + r;
            valid = k0 + r < k && c * 8 < o.n;
            if (!straight && valid) {
                tcu_step s = o.steps[(k0 + r) / TCU_STEP_ROWS];
                valid = r % TCU_STEP_ROWS < s.n;
                row = s.row + r % TCU_STEP_ROWS;
            }
            offset = (int64_t)row * o.ld + c * 8;
        }
        bf16 *to = tile + (TRANSPOSED ? swizzle<WIDTH>(r, c) : swizzle<BK>(r, c));
        copy16(to, valid ? o.at + offset : o.at, valid);
    }
}

template <int WIDTH, int BK, int THREADS, bool TRANSPOSED> DEVICE void load_operand(const picked &o, int k0, int k, bf16 *tile)
{
    enum { PER = BK / 8, COUNT = WIDTH * PER };
    static_assert(!TRANSPOSED, "rows are picked along k");
#pragma unroll
    for (int at = threadIdx.x; at < COUNT; at += THREADS) {
        int r = at / PER, c = at % PER;
        bool valid = r < o.n && k0 + c * 8 < k;
        copy16(tile + swizzle<BK>(r, c), valid ? o.at + o.rows[r] * o.ld + k0 + c * 8 : o.at, valid);
    }
}

DEVICE uint32_t scale_pair(uint32_t v, float scale)
{
    float2 x = unpack(v);
    return pack(x.x * scale, x.y * scale);
}

/* acc += a b. With SCALED the elements of b are multiplied and rounded first. */
template <typename S, bool SCALED, typename A>
DEVICE void chain(float acc[S::MT][S::NT][4], const A &a, const operand &b, int k, float scale, bf16 *shared)
{
    bf16 *at = shared, *bt = shared + S::STAGES * S::BM * S::BK;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int m0 = warp / S::WN * (S::BM / S::WM), n0 = warp % S::WN * (S::BN / S::WN);
    int tiles = (k + S::BK - 1) / S::BK;
    for (int s = 0; s < S::STAGES - 1; s++) {
        if (s < tiles) {
            load_operand<S::BM, S::BK, S::THREADS, S::AT>(a, s * S::BK, k, at + s * S::BM * S::BK);
            load_operand<S::BN, S::BK, S::THREADS, S::BT>(b, s * S::BK, k, bt + s * S::BN * S::BK);
        }
        copy_commit();
    }
    for (int tile = 0; tile < tiles; tile++) {
        int next = tile + S::STAGES - 1;
        copy_wait<S::STAGES - 2>();
        __syncthreads();
        if (next < tiles) {
            load_operand<S::BM, S::BK, S::THREADS, S::AT>(a, next * S::BK, k, at + next % S::STAGES * S::BM * S::BK);
            load_operand<S::BN, S::BK, S::THREADS, S::BT>(b, next * S::BK, k, bt + next % S::STAGES * S::BN * S::BK);
        }
        copy_commit();
        const bf16 *ta = at + tile % S::STAGES * S::BM * S::BK, *tb = bt + tile % S::STAGES * S::BN * S::BK;
#pragma unroll
        for (int step = 0; step < S::BK / 16; step++) {
            uint32_t fa[S::MT][4], fb[S::NT / 2][4];
#pragma unroll
            for (int i = 0; i < S::MT; i++) {
                if (!S::AT)
                    ldmatrix(fa[i], ta + swizzle<S::BK>(m0 + i * 16 + (lane & 15), step * 2 + (lane >> 4)));
                else
                    ldmatrix_transposed(fa[i], ta + swizzle<S::BM>(step * 16 + (lane & 7) + ((lane >> 4) << 3),
                                                               m0 / 8 + i * 2 + ((lane >> 3) & 1)));
            }
#pragma unroll
            for (int j = 0; j < S::NT / 2; j++) {
                if (!S::BT)
                    ldmatrix(fb[j], tb + swizzle<S::BK>(n0 + j * 16 + (lane & 7) + ((lane >> 4) << 3),
                                                        step * 2 + ((lane >> 3) & 1)));
                else
                    ldmatrix_transposed(fb[j], tb + swizzle<S::BN>(step * 16 + (lane & 15), n0 / 8 + j * 2 + (lane >> 4)));
                if (SCALED && scale != 1)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        fb[j][e] = scale_pair(fb[j][e], scale);
            }
#pragma unroll
            for (int i = 0; i < S::MT; i++)
#pragma unroll
                for (int j = 0; j < S::NT; j++)
                    mma(acc[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
        }
    }
    copy_wait<0>();
}

/* Calls f(row, column, two adjacent elements of acc) for all elements of a tile; the column is even. */
template <typename S, typename F> DEVICE void each(float acc[S::MT][S::NT][4], F f)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int m0 = warp / S::WN * (S::BM / S::WM), n0 = warp % S::WN * (S::BN / S::WN);
#pragma unroll
    for (int i = 0; i < S::MT; i++)
#pragma unroll
        for (int j = 0; j < S::NT; j++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                f(m0 + i * 16 + lane / 4 + half * 8, n0 + j * 8 + lane % 4 * 2, &acc[i][j][half * 2]);
}

#endif
