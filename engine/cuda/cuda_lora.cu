/* cuda_lora.cu - the low-rank products of all segments of a batch, each kind in one launch.
 *
 * Where a segment's A and B lie is read from its adapter's table, so that a launch knows only the group. Gradients
 * continue the chain of their accumulator, 16 tokens a step; segments without an adapter are skipped.
 */
#include "cuda/cuda_chain.cuh"

typedef struct place { /* one tile of rows */
    tcu_segment s;
    tcu_group g;
    int row, n;
} place;

/* False if the tile has nothing to do. */
DEVICE bool find(const tcu_lora &p, int tile, place *at)
{
    tcu_tile t = p.tiles[tile];
    if (t.segment < 0)
        return false;
    at->s = p.segments[t.segment];
    at->row = t.row;
    at->n = t.n;
    if (!at->s.rank)
        return false;
    at->g = at->s.groups[p.group];
    return at->g.n > 0;
}

DEVICE int out_before(const tcu_lora &p, int module)
{
    return (module > 0 ? p.out[0] : 0) + (module > 1 ? p.out[1] : 0);
}

/* low = A x (NT), or dlow = scale dy B (k as B's row) */
template <int BM, bool BACK> __global__ void to_low(tcu_lora p, const bf16 *x, bf16 *low)
{
    typedef shape<BM, 32, BM / 16, 1, false, BACK> S;
    __shared__ __align__(128) bf16 shared[S::BYTES / 2];
    place at;
    if (!find(p, blockIdx.x, &at))
        return;
    int module = BACK ? blockIdx.z : 0, n0 = blockIdx.y * S::BN;
    int columns = BACK ? at.s.padded : at.g.n * at.s.padded, k = BACK ? at.g.out[module] : at.g.in;
    if (n0 >= columns)
        return;
    int64_t ldx = BACK ? p.ld_out : at.g.in;
    const bf16 *b = at.s.operands + (BACK ? at.g.b[module] + n0 : at.g.a + (int64_t)n0 * k);
    operand oa = { x + at.row * ldx + (BACK ? out_before(p, module) : 0), ldx, at.n, NULL };
    operand ob = { b, BACK ? at.s.padded : k, columns - n0, NULL };
    float acc[S::MT][S::NT][4] = {}, scale = BACK ? at.s.scale : 1;
    chain<S, false>(acc, oa, ob, k, 1, shared);
    bf16 *to = low + (int64_t)at.row * p.ld_low + module * at.s.padded + n0;
    each<S>(acc, [&](int i, int j, float *v) {
        if (i < at.n && n0 + j < columns)
            *(uint32_t *)(to + (int64_t)i * p.ld_low + j) = pack(v[0] * scale, v[1] * scale);
    });
}

/* The adapter's part of dx, bf16(dlow A), which the base product is then added to. Rows without an adapter get -0, which changes
 * no sum. Rows of dx have room for whole pieces of 8. */
__global__ void __launch_bounds__(128) dx_part(tcu_lora p, const bf16 *dlow, bf16 *dx)
{
    typedef shape<64, 64, 4, 1, false, true, 32, 2> S;
    enum { PER = S::BN / 8, PIECES = S::BM * PER / S::THREADS, LD = S::BN + 8, STAGING = S::BM * LD * 2 };
    __shared__ __align__(128) unsigned char shared[(int)STAGING > (int)S::BYTES ? (int)STAGING : (int)S::BYTES];
    bf16 *parts = (bf16 *)shared;
    place at;
    if (p.tiles[blockIdx.y].segment < 0)
        return;
    bool any = find(p, blockIdx.y, &at);
    for (int n0 = blockIdx.x * S::BN; n0 < p.in; n0 += gridDim.x * S::BN) {
        bf16 *to = dx + (int64_t)at.row * p.in + n0;
        if (any) {
            operand oa = { dlow + (int64_t)at.row * p.ld_low, p.ld_low, at.n, NULL };
            operand ob = { at.s.operands + at.g.a + n0, p.in, p.in - n0, NULL };
            float acc[S::MT][S::NT][4] = {};
            chain<S, false>(acc, oa, ob, at.g.n * at.s.padded, 1, parts);
            __syncthreads();
            each<S>(acc, [&](int i, int j, float *v) { *(uint32_t *)(parts + i * LD + j) = pack(v[0], v[1]); });
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            int piece = threadIdx.x + i * S::THREADS, r = piece / PER, c = piece % PER * 8;
            if (r < at.n && n0 + c < p.in)
                *(uint4 *)(to + (int64_t)r * p.in + c) = any ? *(const uint4 *)(parts + r * LD + c) :
                                                              make_uint4(0x80008000u, 0x80008000u, 0x80008000u, 0x80008000u);
        }
        __syncthreads();
    }
}

DEVICE void load8(const float *p, float x[8])
{
    *(float4 *)x = *(const float4 *)p;
    *(float4 *)(x + 4) = *(const float4 *)(p + 4);
}

DEVICE void store8(float *p, const float x[8])
{
    *(float4 *)p = *(const float4 *)x;
    *(float4 *)(p + 4) = *(const float4 *)(x + 4);
}

DEVICE void store8(bf16 *p, const float x[8])
{
    *(uint4 *)p = make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
}

/* base + scale B low, base in fp32: logits in place, or y = bf16 of it, to which the bias is added. Rows without an adapter are
 * only rounded. Rows have room for whole pieces of 8. */
template <int BM, typename T>
__global__ void __launch_bounds__(128) from_low(tcu_lora p, const bf16 *low, const float *base, const float *bias, T *y)
{
    typedef shape<BM, 64, BM / 16, BM == 16 ? 4 : 1, false, false, 32, 2> S;
    enum { PER = S::BN / 8, PIECES = S::BM * PER / S::THREADS, LD = S::BN + 4, STAGING = S::BM * LD * 4 };
    __shared__ __align__(128) unsigned char shared[(int)STAGING > (int)S::BYTES ? (int)STAGING : (int)S::BYTES];
    const bool in_place = sizeof(T) == sizeof(float);
    float *sums = (float *)shared;
    place at;
    if (p.tiles[blockIdx.y].segment < 0)
        return;
    bool any = find(p, blockIdx.y, &at);
    if (!any && in_place)
        return;
    int module = blockIdx.z, columns = p.out[module], before = out_before(p, module), k = at.s.padded;
    for (int n0 = blockIdx.x * S::BN; n0 < columns; n0 += gridDim.x * S::BN) {
        int64_t first = (int64_t)at.row * p.ld_out + before + n0;
        float x[PIECES][8], acc[S::MT][S::NT][4] = {};
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            int piece = threadIdx.x + i * S::THREADS, r = piece / PER, c = piece % PER * 8;
            if (r < at.n && n0 + c < columns)
                load8(base + first + (int64_t)r * p.ld_out + c, x[i]);
        }
        if (any) {
            operand oa = { low + (int64_t)at.row * p.ld_low + module * k, p.ld_low, at.n, NULL };
            operand ob = { at.s.operands + at.g.b[module] + (int64_t)n0 * k, k, columns - n0, NULL };
            chain<S, false>(acc, oa, ob, k, 1, (bf16 *)shared);
        }
        __syncthreads();
        each<S>(acc, [&](int i, int j, float *v) { *(float2 *)(sums + i * LD + j) = make_float2(v[0], v[1]); });
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            int piece = threadIdx.x + i * S::THREADS, r = piece / PER, c = piece % PER * 8;
            float sum[8];
            if (r >= at.n || n0 + c >= columns)
                continue;
            load8(sums + r * LD + c, sum);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                x[i][e] = any ? __fmaf_rn(at.s.scale, sum[e], x[i][e]) : x[i][e];
                if (bias && n0 + c + e < columns) /* the second rounding, as for rows without adapters */
                    x[i][e] = __fadd_rn(wide(narrow(x[i][e])), bias[before + n0 + c + e]);
            }
            store8(y + first + (int64_t)r * p.ld_out + c, x[i]);
        }
        __syncthreads();
    }
}

enum { STEPS = 256 }; /* steps looked up at a time; with the tiles they fit into 99 KB of shared memory */

/* Continues an fp32 accumulator [rows][ld] over the tokens of a segment. */
template <typename S, bool SCALED>
DEVICE void grow(operand a, operand b, const tcu_step *steps, int n_steps, float scale, int rows, int columns, float *grads,
                 int64_t ld, bf16 *shared)
{
    float acc[S::MT][S::NT][4];
    tcu_step *near = (tcu_step *)(shared + S::BYTES / 2);
    a.steps = b.steps = near;
    each<S>(acc, [&](int i, int j, float *v) {
        for (int e = 0; e < 2; e++)
            v[e] = i < rows && j + e < columns ? grads[i * ld + j + e] : 0;
    });
    for (int first = 0; first < n_steps; first += STEPS) {
        int n = min(n_steps - first, (int)STEPS);
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += S::THREADS)
            near[i] = steps[first + i];
        __syncthreads();
        chain<S, SCALED>(acc, a, b, n * TCU_STEP_ROWS, scale, shared);
    }
    each<S>(acc, [&](int i, int j, float *v) {
        for (int e = 0; e < 2; e++)
            if (i < rows && j + e < columns)
                grads[i * ld + j + e] = v[e];
    });
}

typedef shape<32, 64, 1, 4, true, true, 128, 4> shape_a; /* loads many tokens ahead: the time grows with their number */
typedef shape<64, 32, 4, 1, true, true, 128, 4> shape_b;

/* grid: columns of x, rows of A, segment * matrices. */
__global__ void __launch_bounds__(128) grow_a(tcu_lora p, const bf16 *dlow, const bf16 *x)
{
    typedef shape_a S;
    extern __shared__ __align__(128) unsigned char shared[];
    tcu_segment s = p.segments[blockIdx.z / p.n];
    int module = blockIdx.z % p.n, m0 = blockIdx.y * S::BM, n0 = blockIdx.x * S::BN;
    if (!s.rank || !s.grads || m0 >= s.rank)
        return;
    const tcu_group *g = &s.groups[p.group];
    if (!g->n)
        return;
    operand a = { dlow + module * s.padded + m0, p.ld_low, s.padded - m0, NULL };
    operand b = { x + n0, p.in, p.in - n0, NULL };
    float *grads = s.grads + g->master_a + (int64_t)(module * s.rank + m0) * p.in + n0;
    grow<S, false>(a, b, p.steps + s.first_step, s.n_steps, 1, s.rank - m0, p.in - n0, grads, p.in, (bf16 *)shared);
}

/* grid: rows of B, columns of B, segment * matrices. */
__global__ void __launch_bounds__(128) grow_b(tcu_lora p, const bf16 *dy, const bf16 *low)
{
    typedef shape_b S;
    extern __shared__ __align__(128) unsigned char shared[];
    tcu_segment s = p.segments[blockIdx.z / p.n];
    int module = blockIdx.z % p.n, m0 = blockIdx.x * S::BM, n0 = blockIdx.y * S::BN;
    if (!s.rank || !s.grads || n0 >= s.rank || m0 >= p.out[module])
        return;
    const tcu_group *g = &s.groups[p.group];
    if (!g->n)
        return;
    operand a = { dy + out_before(p, module) + m0, p.ld_out, p.out[module] - m0, NULL };
    operand b = { low + module * s.padded + n0, p.ld_low, s.padded - n0, NULL };
    float *grads = s.grads + g->master_b[module] + (int64_t)m0 * s.rank + n0;
    grow<S, true>(a, b, p.steps + s.first_step, s.n_steps, s.scale, p.out[module] - m0, s.rank - n0, grads, s.rank, (bf16 *)shared);
}

/* ---- launches ---- */

static int most_out(const tcu_lora *p)
{
    int most = 0;
    for (int i = 0; i < p->n; i++)
        most = p->out[i] > most ? p->out[i] : most;
    return most;
}

static int tiles_of(int n, int tile)
{
    return (n + tile - 1) / tile;
}

int tcu_lora_low(const tcu_lora *p, const tcu_bf16 *x, tcu_bf16 *low, tcu_stream stream)
{
    if (!p->most || !p->n_tiles)
        return 0;
    to_low<64, false><<<dim3(p->n_tiles, tiles_of(p->n * p->most, 32)), 128, 0, stream>>>(*p, x, low);
    return cudaGetLastError();
}

template <typename T>
static int high(const tcu_lora *p, const bf16 *low, const float *base, const float *bias, T *y, tcu_stream stream)
{
    dim3 grid(tiles_of(most_out(p), p->tile_rows == 16 ? 64 : 256), p->n_tiles, p->n); /* neighbours side by side in a row */
    if (!p->most || !p->n_tiles)
        return 0;
    return launch(p->tile_rows == 16 ? from_low<16, T> : from_low<64, T>, grid, 128, 0, stream, *p, low, base, bias, y);
}

int tcu_lora_high(const tcu_lora *p, const tcu_bf16 *low, const float *base, const float *bias, tcu_bf16 *y, tcu_stream stream)
{
    return high(p, low, base, bias, y, stream);
}

int tcu_lora_logits(const tcu_lora *p, const tcu_bf16 *low, float *z, tcu_stream stream)
{
    return high(p, low, z, NULL, z, stream);
}

int tcu_lora_dlow(const tcu_lora *p, const tcu_bf16 *dy, tcu_bf16 *dlow, tcu_stream stream)
{
    if (!p->most || !p->n_tiles)
        return 0;
    to_low<64, true><<<dim3(p->n_tiles, tiles_of(p->most, 32), p->n), 128, 0, stream>>>(*p, dy, dlow);
    return cudaGetLastError();
}

int tcu_lora_dx(const tcu_lora *p, const tcu_bf16 *dlow, tcu_bf16 *dx, tcu_stream stream)
{
    if (!p->most || !p->n_tiles)
        return 0;
    return launch(dx_part, dim3(tiles_of(p->in, 256), p->n_tiles), 128, 0, stream, *p, dlow, dx);
}

int tcu_lora_da(const tcu_lora *p, const tcu_bf16 *dlow, const tcu_bf16 *x, tcu_stream stream)
{
    if (!p->most || !p->n_segments)
        return 0;
    int bytes = shape_a::BYTES + STEPS * (int)sizeof(tcu_step);
    cudaError_t e = cudaFuncSetAttribute(grow_a, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e)
        return e;
    dim3 grid(tiles_of(p->in, 64), tiles_of(p->most, 32), p->n_segments * p->n);
    grow_a<<<grid, 128, bytes, stream>>>(*p, dlow, x);
    return cudaGetLastError();
}

int tcu_lora_db(const tcu_lora *p, const tcu_bf16 *dy, const tcu_bf16 *low, tcu_stream stream)
{
    if (!p->most || !p->n_segments)
        return 0;
    int bytes = shape_b::BYTES + STEPS * (int)sizeof(tcu_step);
    cudaError_t e = cudaFuncSetAttribute(grow_b, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e)
        return e;
    dim3 grid(tiles_of(most_out(p), 64), tiles_of(p->most, 32), p->n_segments * p->n);
    grow_b<<<grid, 128, bytes, stream>>>(*p, dy, low);
    return cudaGetLastError();
}
