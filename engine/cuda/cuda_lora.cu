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

/* Eight consecutive elements as they are stored. */
DEVICE void fetch8(const bf16 *p, uint4 v[1])
{
    v[0] = *(const uint4 *)p;
}

DEVICE void fetch8(const float *p, uint4 v[2])
{
    v[0] = ((const uint4 *)p)[0];
    v[1] = ((const uint4 *)p)[1];
}

DEVICE void widen8(const uint4 *v, const bf16 *, float x[8])
{
    const uint32_t *w = &v->x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 pair = unpack(w[i]);
        x[2 * i] = pair.x;
        x[2 * i + 1] = pair.y;
    }
}

DEVICE void widen8(const uint4 *v, const float *, float x[8])
{
    *(uint4 *)x = v[0];
    *(uint4 *)(x + 4) = v[1];
}

DEVICE void store8(bf16 *p, const float x[8])
{
    *(uint4 *)p = make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
}

DEVICE void store8(float *p, const float x[8])
{
    *(float4 *)p = *(const float4 *)x;
    *(float4 *)(p + 4) = *(const float4 *)(x + 4);
}

/* y = bf16((y + bias) + scale B low), or dx = bf16(dx + dlow A). Rows of y have room for whole pieces of 8. */
template <int BM, bool BACK, typename T> __global__ void __launch_bounds__(128) from_low(tcu_lora p, const bf16 *low, const float *bias, T *y)
{
    typedef shape<BM, 64, BM / 16, BM == 16 ? 4 : 1, false, BACK, 32, 2> S;
    enum { PER = S::BN / 8, PIECES = S::BM * PER / S::THREADS, STAGING = S::BM * (S::BN + 4) * 4 };
    __shared__ __align__(128) unsigned char shared[(int)STAGING > (int)S::BYTES ? (int)STAGING : (int)S::BYTES];
    float *sums = (float *)shared;
    place at;
    tcu_tile t = p.tiles[blockIdx.y];
    bool any = find(p, blockIdx.y, &at);
    if (t.segment < 0 || (!any && !bias))
        return;
    int module = BACK ? 0 : blockIdx.z, columns = BACK ? p.in : p.out[module], k = BACK ? at.g.n * at.s.padded : at.s.padded;
    int64_t ld = BACK ? p.in : p.ld_out;
    float scale = BACK ? 1 : at.s.scale;
    for (int n0 = blockIdx.x * S::BN; n0 < columns; n0 += gridDim.x * S::BN) {
        T *to = y + at.row * ld + (BACK ? 0 : out_before(p, module)) + n0;
        const float *add = bias ? bias + out_before(p, module) + n0 : NULL;
        float acc[S::MT][S::NT][4] = {};
        uint4 old[PIECES][sizeof(T) / 2];
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            int piece = threadIdx.x + i * S::THREADS, r = piece / PER, c = piece % PER * 8;
            if (r < at.n && n0 + c < columns)
                fetch8(to + r * ld + c, old[i]);
        }
        if (any) {
            const bf16 *b = at.s.operands + (BACK ? at.g.a + n0 : at.g.b[module] + (int64_t)n0 * k);
            operand oa = { low + (int64_t)at.row * p.ld_low + module * at.s.padded, p.ld_low, at.n, NULL };
            operand ob = { b, BACK ? p.in : k, columns - n0, NULL };
            chain<S, false>(acc, oa, ob, k, 1, (bf16 *)shared);
        }
        __syncthreads();
        each<S>(acc, [&](int i, int j, float *v) { *(float2 *)(sums + i * (S::BN + 4) + j) = make_float2(v[0], v[1]); });
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            int piece = threadIdx.x + i * S::THREADS, r = piece / PER, c = piece % PER * 8;
            if (r >= at.n || n0 + c >= columns)
                continue;
            float x[8], extra[8];
            widen8(old[i], to, x);
            *(float4 *)extra = *(const float4 *)(sums + r * (S::BN + 4) + c);
            *(float4 *)(extra + 4) = *(const float4 *)(sums + r * (S::BN + 4) + c + 4);
            if (add) {
#pragma unroll
                for (int e = 0; e < 8; e++)
                    x[e] = n0 + c + e < columns ? __fadd_rn(x[e], add[c + e]) : x[e];
            }
            if (any) {
#pragma unroll
                for (int e = 0; e < 8; e++)
                    x[e] = __fmaf_rn(scale, extra[e], x[e]);
            }
            store8(to + r * ld + c, x);
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

template <typename T> static int high(const tcu_lora *p, const bf16 *low, const float *bias, T *y, tcu_stream stream)
{
    dim3 grid(tiles_of(most_out(p), p->tile_rows == 16 ? 64 : 256), p->n_tiles, p->n); /* neighbours side by side in a row */
    if ((!p->most && !bias) || !p->n_tiles)
        return 0;
    if (p->tile_rows == 16)
        return launch(from_low<16, false, T>, grid, 128, 0, stream, *p, low, bias, y);
    return launch(from_low<64, false, T>, grid, 128, 0, stream, *p, low, bias, y);
}

int tcu_lora_high(const tcu_lora *p, const tcu_bf16 *low, const float *bias, tcu_bf16 *y, tcu_stream stream)
{
    return high(p, low, bias, y, stream);
}

int tcu_lora_logits(const tcu_lora *p, const tcu_bf16 *low, float *z, tcu_stream stream)
{
    return high(p, low, NULL, z, stream);
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
    return launch(from_low<64, true, bf16>, dim3(tiles_of(p->in, 256), p->n_tiles), 128, 0, stream, *p, dlow, nullptr, dx);
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
