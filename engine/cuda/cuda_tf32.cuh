/* cuda_tf32.cuh - products of fp32 numbers by the matrix instruction for tf32, whose operands have 11 bits.
 *
 * EXACT splits each number in two parts and leaves out only the product of the small ones: 2^-22 of a product is lost. Eight products
 * are summed by the instruction, then added to the fp32 sum, which therefore is rounded as in plain fp32 and not cut off. A row's sums
 * do not depend on the other rows of its tile. Needs sm_80.
 */
#ifndef TKE_CUDA_TF32_CUH
#define TKE_CUDA_TF32_CUH

#include "cuda/cuda_warp.cuh"

/* c[16][8] += a[16][8] b[8][8] */
DEVICE void mma_tf32(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* The nearest number of 11 bits, and what is left. NaN stays in one of them. */
DEVICE uint32_t tf32_high(float x)
{
    return (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
}

DEVICE uint32_t tf32_alone(float x)
{
    uint32_t r;
    asm("cvt.rna.tf32.f32 %0,%1;" : "=r"(r) : "f"(x));
    return r;
}

DEVICE uint32_t tf32_low(float x, uint32_t high)
{
    return __float_as_uint(x - __uint_as_float(high)) & 0xffffe000u;
}

/* What a lane has of 16 rows of a: 4 numbers a tile. */
template <int M, typename A> DEVICE void rows_tf32(float x[M][4], int step, A a)
{
    int g = threadIdx.x % 32 / 4, k = step * 8 + threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[m][i] = a(m * 16 + g + i % 2 * 8, k + i / 2 * 4);
}

/* c[M tiles of 16 rows][N tiles of 8 columns] += a b over 8 * steps numbers; a(row, k) and b(k, column) give them. A warp's lane
 * has rows lane / 4 and lane / 4 + 8 of a tile, columns 2 * (lane % 4) and the next. AHEAD: a is read one step before it is used. */
template <bool EXACT, bool AHEAD, int M, int N, typename A, typename B>
DEVICE void multiply_tf32(float c[M][N][4], int steps, A a, B b)
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float rows[M][4], later[M][4];
    if (AHEAD)
        rows_tf32<M>(later, 0, a);
#pragma unroll 2
    for (int s = 0; s < steps; s++) {
        uint32_t high[N][2], low[EXACT ? N : 1][2];
        int k = s * 8 + t;
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                rows[m][i] = later[m][i];
        if (!AHEAD)
            rows_tf32<M>(rows, s, a);
        else if (s + 1 < steps)
            rows_tf32<M>(later, s + 1, a);
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float x = b(k + 4 * i, j * 8 + g);
                high[j][i] = EXACT ? tf32_high(x) : tf32_alone(x);
                if (EXACT)
                    low[j][i] = tf32_low(x, high[j][i]);
            }
#pragma unroll
        for (int m = 0; m < M; m++) {
            uint32_t ah[4], al[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                ah[i] = EXACT ? tf32_high(rows[m][i]) : tf32_alone(rows[m][i]);
                al[i] = EXACT ? tf32_low(rows[m][i], ah[i]) : 0;
            }
#pragma unroll
            for (int j = 0; j < N; j++) {
                if (!EXACT) {
                    mma_tf32(c[m][j], ah, high[j]);
                    continue;
                }
                float sum[4] = { 0, 0, 0, 0 };
                mma_tf32(sum, al, high[j]);
                mma_tf32(sum, ah, low[EXACT ? j : 0]);
                mma_tf32(sum, ah, high[j]);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    c[m][j][i] += sum[i];
            }
        }
    }
}

/* f(row, column, number) for a lane's numbers of c. */
template <int M, int N, typename F> DEVICE void each_tf32(float c[M][N][4], F f)
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                f(m * 16 + g + i / 2 * 8, j * 8 + 2 * t + i % 2, c[m][j][i]);
}

/* f(row, column, two numbers side by side) */
template <int M, int N, typename F> DEVICE void pairs_tf32(float c[M][N][4], F f)
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int i = 0; i < 4; i += 2)
                f(m * 16 + g + i / 2 * 8, j * 8 + 2 * t, c[m][j][i], c[m][j][i + 1]);
}

#endif
