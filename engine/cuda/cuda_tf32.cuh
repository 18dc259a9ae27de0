/* cuda_tf32.cuh - products of fp32 numbers by the matrix instruction for tf32, whose operands have 11 bits; it ignores those below.
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
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* The nearest number of 11 bits, and what is left, of which the instruction reads 11 bits. NaN stays in one of them. */
DEVICE uint32_t tf32_high(float x)
{
    return (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
}

DEVICE uint32_t tf32_low(float x, uint32_t high)
{
    return __float_as_uint(x - __uint_as_float(high));
}

/* The nearest operand; its bits below are anything. */
DEVICE uint32_t tf32_alone(float x)
{
    uint32_t r;
    asm("cvt.rna.tf32.f32 %0,%1;" : "=r"(r) : "f"(x));
    return r;
}

/* The nearest number of 11 bits, NaN for NaN. */
DEVICE float tf32_rounded(float x)
{
    return __uint_as_float(tf32_alone(x) & 0xffffe000u);
}

DEVICE float4 tf32_rounded(float4 x)
{
    return make_float4(tf32_rounded(x.x), tf32_rounded(x.y), tf32_rounded(x.z), tf32_rounded(x.w));
}

/* What operands are: of 11 bits already, to be rounded, or to be split. */
enum { TF32_READY, TF32_ROUND, TF32_EXACT };

template <int IS> DEVICE uint32_t tf32_operand(float x)
{
    return IS == TF32_EXACT ? tf32_high(x) : IS == TF32_ROUND ? tf32_alone(x) : __float_as_uint(x);
}

/* c[N tiles of 8 columns] += the sum of eight products of split numbers: N chains of three instructions side by side. */
template <int N, int LOW>
DEVICE void multiply_split(float c[N][4], const uint32_t ah[4], const uint32_t al[4], const uint32_t high[N][2], const uint32_t low[LOW][2])
{
    float sum[N][4] = {};
#pragma unroll
    for (int j = 0; j < N; j++)
        mma_tf32(sum[j], al, high[j]);
#pragma unroll
    for (int j = 0; j < N; j++)
        mma_tf32(sum[j], ah, low[j]);
#pragma unroll
    for (int j = 0; j < N; j++)
        mma_tf32(sum[j], ah, high[j]);
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[j][i] += sum[j][i];
}

/* c[M tiles of 16 rows][N tiles of 8 columns] += a b over 8 * steps numbers; a(row, k) and b(k, column) give them. A warp's lane
 * has rows lane / 4 and lane / 4 + 8 of a tile, columns 2 * (lane % 4) and the next. */
template <int A_IS, int B_IS, int M, int N, typename A, typename B>
DEVICE void multiply_tf32(float c[M][N][4], int steps, A a, B b)
{
    const bool EXACT = A_IS == TF32_EXACT;
    static_assert(EXACT == (B_IS == TF32_EXACT), "both are split, or none");
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll 2
    for (int s = 0; s < steps; s++) {
        uint32_t high[N][2], low[N][2];
        float rows[M][4];
        int k = s * 8 + t;
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                rows[m][i] = a(m * 16 + g + i % 2 * 8, k + i / 2 * 4);
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float x = b(k + 4 * i, j * 8 + g);
                high[j][i] = tf32_operand<B_IS>(x);
                if (EXACT)
                    low[j][i] = tf32_low(x, high[j][i]);
            }
#pragma unroll
        for (int m = 0; m < M; m++) {
            uint32_t ah[4], al[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                ah[i] = tf32_operand<A_IS>(rows[m][i]);
                al[i] = EXACT ? tf32_low(rows[m][i], ah[i]) : 0;
            }
            if (EXACT)
                multiply_split<N, N>(c[m], ah, al, high, low);
#pragma unroll
            for (int j = 0; !EXACT && j < N; j++)
                mma_tf32(c[m][j], ah, high[j]);
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
