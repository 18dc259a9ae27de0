/* cuda_warp.cuh - what all kernels use: bf16, the matrix instruction, asynchronous copies, sums of a row.
 *
 * Needs sm_80 and nothing newer. Sums run in a fixed tree, so a row's bits depend on its length alone.
 */
#ifndef TKE_CUDA_WARP_CUH
#define TKE_CUDA_WARP_CUH

#include <cuda_bf16.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;

#ifndef BLOCK_SYNC /* a kernel whose block has other warps, too, says how those that compute meet */
#define BLOCK_SYNC() __syncthreads()
#define BLOCK_WARPS ((blockDim.x + 31) / 32)
#define BLOCK_TREE  32            /* a power of two, not below BLOCK_WARPS: more adds zeros only */
#define BLOCK_ENTER() BLOCK_SYNC() /* before the numbers of the last sum are overwritten */
#endif
#define DEVICE static __device__ __forceinline__

DEVICE float wide(bf16 x)
{
    return __bfloat162float(x);
}

DEVICE bf16 narrow(float x)
{
    return __float2bfloat16_rn(x);
}

DEVICE uint32_t pack(float lo, float hi)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *(uint32_t *)&v;
}

DEVICE float2 unpack(uint32_t v)
{
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}

/* ---- matrix instruction: c[16][8] += a[16][16] b[16][8], fp32 sums ---- */

DEVICE void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8x8 tiles; lane l gives the address of a row of tile l / 8. */
DEVICE void ldmatrix(uint32_t r[4], const void *p)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

DEVICE void ldmatrix_transposed(uint32_t r[4], const void *p)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

/* ---- asynchronous copies of 16 bytes; zero where not valid ---- */

DEVICE void copy16(void *to, const void *from, bool valid)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    int n = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(at), "l"(from), "r"(n));
}

DEVICE void copy4(void *to, const void *from)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0],[%1],4;" ::"r"(at), "l"(from));
}

DEVICE void copy_commit(void)
{
    asm volatile("cp.async.commit_group;");
}

template <int N> DEVICE void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

/* Element offset of 16-byte chunk `c` of row `r` in a tile whose rows have COLS elements: chunks are
 * permuted so that the same chunk of eight rows lies in eight different banks. */
template <int COLS> DEVICE int swizzle(int r, int c)
{
    if (COLS == 16)
        return r * COLS + ((c ^ ((r >> 2) & 1)) << 3);
    if (COLS == 32)
        return r * COLS + ((c ^ ((r >> 1) & 3)) << 3);
    return r * COLS + ((c ^ (r & 7)) << 3);
}

/* ---- launches ---- */

template <typename... P, typename... A>
static int launch(void (*kernel)(P...), dim3 grid, int threads, size_t shared, cudaStream_t stream, A... args)
{
    kernel<<<grid, threads, shared, stream>>>(P(args)...);
    return cudaGetLastError();
}

/* ---- sums ---- */

template <typename T> DEVICE T warp_sum(T x)
{
#pragma unroll
    for (int d = 16; d; d >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

DEVICE float warp_max(float x)
{
#pragma unroll
    for (int d = 16; d; d >>= 1)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

/* The sum over a block of up to 32 warps; every thread gets it. */
template <typename T> DEVICE T block_sum(T x)
{
    __shared__ T part[32];
    int warps = BLOCK_WARPS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    x = warp_sum(x);
    BLOCK_ENTER();
    if (lane == 0)
        part[warp] = x;
    BLOCK_SYNC();
    x = lane % BLOCK_TREE < warps ? part[lane % BLOCK_TREE] : (T)0;
#pragma unroll
    for (int d = BLOCK_TREE / 2; d; d >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

/* NaN if either is NaN. */
DEVICE float max_nan(float a, float b)
{
    return a != a ? a : b != b ? b : fmaxf(a, b);
}

DEVICE float warp_max_nan(float x)
{
#pragma unroll
    for (int d = 16; d; d >>= 1)
        x = max_nan(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

DEVICE float block_max(float x)
{
    __shared__ float part[32];
    int warps = BLOCK_WARPS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    x = warp_max_nan(x);
    BLOCK_SYNC();
    if (lane == 0)
        part[warp] = x;
    BLOCK_SYNC();
    return warp_max_nan(lane < warps ? part[lane] : -INFINITY);
}

#endif
