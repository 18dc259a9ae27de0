/* cuda_fused.cu - what an adapter adds, made in the step that reads it next: heads after q, k, v; SwiGLU after gate and up.
 *
 * The base product comes in fp32; its sum with the adapter's part is rounded where a launch of its own would have written
 * it, so the bits are the same and a write, a read and a launch are spared. For sampling: training keeps what is not kept here.
 */
#include "cuda/cuda_heads.cuh"
#include "cuda/cuda_strip.cuh"

enum { COLS = 32, SWIGLU_STRIPS = 16 }; /* columns of a warp at a time; strips of rows of a block */

DEVICE uint2 rounded(float4 x, const float (&acc)[1][2][4], int i, const strip &at, const float *bias)
{
    strip_add<1>(x, acc, i, at);
    return strip_round(x, bias);
}

/* grid: heads, tiles, parts of 16 rows of a tile. A warp adds to a quarter of the head's columns; then eight lanes have a row. */
template <int KS>
__global__ void __launch_bounds__(128) high_heads(tcu_heads p, tcu_lora l, const bf16 *low, const float *base, const float *bias,
                                                  bf16 *q, tcu_paged cache)
{
    enum { LD = TCU_MAX_HEAD_DIM + 8 };
    __shared__ __align__(16) bf16 sums[16 * LD];
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, head = blockIdx.x;
    int module = head < p.n_heads ? 0 : head < p.n_heads + p.n_kv_heads ? 1 : 2;
    int columns = module ? p.n_kv_heads * p.d : p.n_heads * p.d;
    int before = module == 0 ? 0 : module == 1 ? l.out[0] : l.out[0] + l.out[1];
    strip at;
    if (!find_strip(l, blockIdx.y, blockIdx.z * 16, &at))
        return;
    uint32_t a[KS][1][4];
    strip_low<KS, 1>(l, at, low, module, a);
    const bf16 *b = strip_b(at, module);
    const float *from = base + (int64_t)(at.row + g) * p.ld + head * p.d + t * 4;
    for (int c = warp * 16; c < p.d; c += 64) {
        float4 x[2];
        float acc[1][2][4] = {};
#pragma unroll
        for (int i = 0; i < 2; i++)
            x[i] = i * 8 + g < at.n ? __ldcs((const float4 *)(from + (int64_t)i * 8 * p.ld + c)) : make_float4(0, 0, 0, 0);
        strip_high<KS, 1>(acc, a, b, at.k, head * p.d - before + c, columns);
#pragma unroll
        for (int i = 0; i < 2; i++)
            *(uint2 *)(sums + (i * 8 + g) * LD + c + t * 4) =
                rounded(x[i], acc, i, at, bias ? bias + head * p.d + c + t * 4 : NULL);
    }
    __syncthreads();
    int r = threadIdx.x / 8;
    bool there = r < at.n;
    head_part x = part_from(p.d / 2, [&](int j) { return *(const uint2 *)(sums + r * LD + j); });
    part_finish(x, p, there ? at.row + r : at.row, head, there, q, NULL, cache);
}

/* B of a warp's columns is kept from one strip of rows to the next of the same adapter. grid: columns, `per` strips of 16 rows each. */
template <int KS>
__global__ void __launch_bounds__(128, KS == 2 ? 4 : 3) high_swiglu(tcu_lora l, const bf16 *low, const float *base, const float *bias, bf16 *m, int per)
{
    enum { PIECES = COLS / 16 };
    int n = l.out[0], warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    int n0 = (blockIdx.x * 4 + warp) * COLS, strips = l.tile_rows / 16, end = min((int)(blockIdx.y + 1) * per, l.n_tiles * strips);
    const tcu_segment *known = NULL;
    uint2 rows[2][PIECES][KS][2]; /* of gate and up */
    __shared__ strip found[SWIGLU_STRIPS];
    for (int i = blockIdx.y * per + threadIdx.x; i < end; i += blockDim.x)
        if (!find_strip(l, i / strips, i % strips * 16, &found[i - blockIdx.y * per]))
            found[i - blockIdx.y * per].n = 0;
    __syncthreads();
    if (n0 >= n)
        return;
#pragma unroll 1
    for (int i0 = blockIdx.y * per; i0 < end; i0++) {
        strip at = found[i0 - blockIdx.y * per];
        if (!at.n)
            continue;
        int64_t first = (int64_t)(at.row + g) * 2 * n + n0 + t * 4;
        float4 x[PIECES][2][2];
#pragma unroll
        for (int c = 0; c < PIECES; c++)
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int up = 0; up < 2; up++)
                    if (i * 8 + g < at.n && n0 + c * 16 + t * 4 < n)
                        x[c][i][up] = __ldcs((const float4 *)(base + first + (int64_t)i * 16 * n + up * n + c * 16));
        uint32_t a[2][KS][1][4];
#pragma unroll
        for (int up = 0; up < 2; up++)
            strip_low<KS, 1>(l, at, low, up, a[up]);
        if (at.s != known)
#pragma unroll
            for (int up = 0; up < 2; up++)
#pragma unroll
                for (int c = 0; c < PIECES; c++)
                    strip_rows<KS>(rows[up][c], strip_b(at, up), at.k, n0 + c * 16, n);
        known = at.s;
#pragma unroll
        for (int c = 0; c < PIECES; c++) {
            float acc[2][1][2][4] = {};
            int column = n0 + c * 16 + t * 4;
#pragma unroll
            for (int up = 0; up < 2; up++)
                strip_multiply<KS, 1>(acc[up], a[up], rows[up][c], at.k);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (i * 8 + g >= at.n || column >= n)
                    continue;
                uint2 gate = rounded(x[c][i][0], acc[0], i, at, bias ? bias + column : NULL);
                uint2 up = rounded(x[c][i][1], acc[1], i, at, bias ? bias + n + column : NULL);
                *(uint2 *)(m + (int64_t)(at.row + i * 8 + g) * n + column) =
                    make_uint2(swiglu_pair(gate.x, up.x), swiglu_pair(gate.y, up.y));
            }
        }
    }
}

/* ---- launches ---- */

int tcu_high_heads(const tcu_heads *p, const tcu_lora *l, const tcu_bf16 *low, const float *base, const float *bias, tcu_bf16 *q,
                   const tcu_paged *cache, tcu_stream stream)
{
    dim3 grid(p->n_heads + 2 * p->n_kv_heads, l->n_tiles, l->tile_rows / 16);
    return launch(l->most <= 32 ? high_heads<2> : high_heads<4>, grid, 128, 0, stream, *p, *l, low, base, bias, q, *cache);
}

int tcu_high_swiglu(const tcu_lora *l, const tcu_bf16 *low, const float *base, const float *bias, tcu_bf16 *m, tcu_stream stream)
{
    enum { BLOCKS = 512 }; /* that the card has at once */
    int columns = (l->out[0] + 4 * COLS - 1) / (4 * COLS), strips = l->n_tiles * (l->tile_rows / 16);
    int per = (strips * columns + BLOCKS - 1) / BLOCKS;
    per = per < SWIGLU_STRIPS ? per : SWIGLU_STRIPS;
    return launch(l->most <= 32 ? high_swiglu<2> : high_swiglu<4>, dim3(columns, (strips + per - 1) / per), 128, 0, stream, *l, low, base,
                  bias, m, per);
}
