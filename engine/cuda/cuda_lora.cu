/* cuda_lora.cu - the low-rank products of all segments of a batch, each kind in one launch.
 *
 * Where a segment's A and B lie is read from its adapter's table, so that a launch knows only the group. Gradients
 * continue the chain of their accumulator, 16 tokens a step; segments without an adapter are skipped.
 */
#include "cuda/cuda_grow.cuh"
#include "cuda/cuda_strip.cuh"

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

/* Chosen, not looked up: the parameter stays in registers. */
DEVICE int out_of(const tcu_lora &p, int module)
{
    return module == 0 ? p.out[0] : module == 1 ? p.out[1] : module == 2 ? p.out[2] : p.out[3];
}

DEVICE int out_before(const tcu_lora &p, int module)
{
    return (module > 0 ? p.out[0] : 0) + (module > 1 ? p.out[1] : 0) + (module > 2 ? p.out[2] : 0);
}

/* low = A x (NT), or dlow = scale dy B (k as B's row) */
template <int BM, bool BACK> __global__ void to_low(tcu_lora p, const bf16 *x, bf16 *low)
{
    typedef shape<BM, 32, BM / 16, 1, false, BACK, 64> S; /* 48 KB on the way in a block */
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

/* Part z of a group's dlow, in fp32 and without the scale: the chain over p's outputs [z width, (z + 1) width). rows: of `sums`, for
 * each part. */
__global__ void dlow_part(tcu_lora p, const bf16 *dy, int width, float *sums, int rows)
{
    typedef shape<64, 32, 4, 1, false, true, 64> S;
    __shared__ __align__(128) bf16 shared[S::BYTES / 2];
    place at;
    if (!find(p, blockIdx.x, &at) || (int)blockIdx.y * S::BN >= at.s.padded)
        return;
    int n0 = blockIdx.y * S::BN, first = blockIdx.z * width, k = min(at.g.out[0] - first, width), padded = at.s.padded;
    operand oa = { dy + at.row * (int64_t)p.ld_out + first, p.ld_out, at.n, NULL };
    operand ob = { at.s.operands + at.g.b[0] + (int64_t)first * padded + n0, padded, padded - n0, NULL };
    float acc[S::MT][S::NT][4] = {};
    chain<S, false>(acc, oa, ob, k, 1, shared);
    float *to = sums + ((int64_t)blockIdx.z * rows + at.row) * p.ld_low + n0;
    each<S>(acc, [&](int i, int j, float *v) {
        if (i < at.n && n0 + j < padded)
            *(float2 *)(to + (int64_t)i * p.ld_low + j) = make_float2(v[0], v[1]);
    });
}

/* dlow = scale (the sum of the parts, in their order). grid: tiles. */
__global__ void join_dlow(tcu_lora p, const float *sums, int parts, int rows, bf16 *dlow)
{
    place at;
    if (!find(p, blockIdx.x, &at))
        return;
    for (int i = threadIdx.x; i < at.n * at.s.padded; i += blockDim.x) {
        int64_t here = (int64_t)(at.row + i / at.s.padded) * p.ld_low + i % at.s.padded;
        float sum = 0;
        for (int z = 0; z < parts; z++)
            sum += sums[(int64_t)z * rows * p.ld_low + here];
        dlow[here] = narrow(sum * at.s.scale);
    }
}

/* A lane of four gets word l of each: row l of the 4 x 4 words that they hold by columns. */
DEVICE uint4 exchange(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    uint32_t x = __shfl_xor_sync(0xffffffffu, odd ? a : b, 1), y = __shfl_xor_sync(0xffffffffu, odd ? c : d, 1);
    a = odd ? x : a, b = odd ? b : x, c = odd ? y : c, d = odd ? d : y;
    x = __shfl_xor_sync(0xffffffffu, high ? a : c, 2), y = __shfl_xor_sync(0xffffffffu, high ? b : d, 2);
    return high ? make_uint4(x, y, c, d) : make_uint4(a, b, x, y);
}

/* The adapter's part of dx, bf16(dlow A), which the base product is then added to. Rows without an adapter get -0, which changes
 * no sum. Rows of dx have room for whole pieces of 8. A warp has 16 rows of dlow, up to 16 KS numbers each; A comes in pieces
 * of 64 columns. */
template <int KS> __global__ void __launch_bounds__(128) dx_part(tcu_lora p, const bf16 *dlow, bf16 *dx)
{
    enum { BN = 64, CHUNK = 256 };
    __shared__ __align__(128) bf16 tiles[2][KS * 16 * BN];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    place at;
    if (p.tiles[blockIdx.y].segment < 0)
        return;
    bool any = find(p, blockIdx.y, &at);
    int k = any ? at.g.n * at.s.padded : 0, n0 = blockIdx.x * CHUNK, end = min(n0 + CHUNK, p.in);
    operand b = { at.s.operands + (any ? at.g.a : 0), p.in, 0, NULL };
    auto load = [&](int c, int stage) {
        operand o = { b.at + c, b.ld, p.in - c, NULL };
        for (int k0 = 0; k0 < k; k0 += 16)
            load_operand<BN, 16, 128, true>(o, k0, k, tiles[stage] + k0 * BN);
    };
    load(n0, 0);
    copy_commit();
    uint32_t a[KS][4] = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = warp * 16 + half * 8 + g;
        const bf16 *from = dlow + (int64_t)(at.row + row) * p.ld_low + t * 2;
#pragma unroll
        for (int s = 0; s < KS; s++)
#pragma unroll
            for (int side = 0; side < 2; side++)
                if (row < at.n && s * 16 < k)
                    a[s][side * 2 + half] = *(const uint32_t *)(from + s * 16 + side * 8);
    }
    for (int stage = 0; n0 < end; n0 += BN, stage ^= 1) {
        if (n0 + BN < end)
            load(n0 + BN, stage ^ 1);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        float acc[8][4] = {};
#pragma unroll
        for (int s = 0; s < KS; s++) {
            if (s * 16 >= k)
                break;
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
                uint32_t f[4];
                ldmatrix_transposed(f, tiles[stage] + swizzle<BN>(s * 16 + (lane & 15), j + (lane >> 4)));
                mma(acc[j], a[s], f[0], f[1]);
                mma(acc[j + 1], a[s], f[2], f[3]);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int j = 0; j < 8; j += 4) {
                int row = warp * 16 + half * 8 + g, h = half * 2;
                uint4 v = exchange(pack(acc[j][h], acc[j][h + 1]), pack(acc[j + 1][h], acc[j + 1][h + 1]),
                                   pack(acc[j + 2][h], acc[j + 2][h + 1]), pack(acc[j + 3][h], acc[j + 3][h + 1]));
                if (row < at.n && n0 + (j + t) * 8 < p.in)
                    *(uint4 *)(dx + (int64_t)(at.row + row) * p.in + n0 + (j + t) * 8) =
                        any ? v : make_uint4(0x80008000u, 0x80008000u, 0x80008000u, 0x80008000u);
            }
        __syncthreads();
    }
}

/* The same for larger ranks. */
__global__ void __launch_bounds__(128) dx_part_any(tcu_lora p, const bf16 *dlow, bf16 *dx)
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

/* ---- adding without shared memory, for ranks of up to 16 KS ---- */

DEVICE void strip_store(bf16 *y, float4 x, const float *bias)
{
    *(uint2 *)y = strip_round(x, bias);
}

DEVICE void strip_store(float *y, float4 x, const float *)
{
    __stcs((float4 *)y, x);
}

/* y = bf16(base + scale B low), then bf16(y + bias); or logits in place. A block has TILE rows at a time; a warp 16 MT of them and COLS
 * columns. AHEAD: pieces of 16 columns that are loaded at once. grid: columns, tiles, matrices; logits: tiles, columns, so that tiles
 * that read the same part of B run together. */
template <int KS, int MT, int AHEAD, int BLOCKS, int TILE, int COLS, typename T>
__global__ void __launch_bounds__(128, BLOCKS) add_high(tcu_lora p, const bf16 *low, const float *base, const float *bias, T *y)
{
    enum { ACROSS = TILE / (16 * MT) }; /* warps that share the columns */
    const bool in_place = sizeof(T) == sizeof(float);
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, module = blockIdx.z;
    int columns = out_of(p, module), before = out_before(p, module);
    int n0 = ((in_place ? blockIdx.y : blockIdx.x) * (4 / ACROSS) + warp / ACROSS) * COLS;
    strip at;
    if (n0 >= columns || !find_strip(p, in_place ? blockIdx.x : blockIdx.y, warp % ACROSS * 16 * MT, &at) || (in_place && !at.k))
        return;
    uint32_t a[KS][MT][4];
    strip_low<KS, MT>(p, at, low, module, a);
    const bf16 *b = strip_b(at, module);
    int64_t first = (int64_t)(at.row + g) * p.ld_out + before + t * 4;
#pragma unroll 1
    for (int end = min(n0 + COLS, columns); n0 < end; n0 += AHEAD * 16) {
        float4 x[AHEAD][2 * MT];
#pragma unroll
        for (int q = 0; q < AHEAD; q++)
#pragma unroll
            for (int i = 0; i < 2 * MT; i++)
                if (i * 8 + g < at.n && n0 + q * 16 + t * 4 < columns)
                    x[q][i] = __ldcs((const float4 *)(base + first + (int64_t)i * 8 * p.ld_out + n0 + q * 16));
#pragma unroll
        for (int q = 0; q < AHEAD; q++) {
            int c = n0 + q * 16;
            float acc[MT][2][4] = {};
            strip_high<KS, MT>(acc, a, b, at.k, c, columns);
#pragma unroll
            for (int i = 0; i < 2 * MT; i++) {
                if (i * 8 + g >= at.n || c + t * 4 >= columns)
                    continue;
                strip_add<MT>(x[q][i], acc, i, at);
                strip_store(y + first + (int64_t)i * 8 * p.ld_out + c, x[q][i], bias ? bias + before + c + t * 4 : NULL);
            }
        }
    }
}

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
    float *grads = s.grads + g->master_a + (int64_t)module * s.rank * tcu_side_count(g->side_in, p.in);
    grow<S, false>(a, b, p.steps + s.first_step, s.n_steps, 1, (bf16 *)shared, master_a{ grads, g->side_in, s.rank, p.in, m0, n0 });
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
    grow<S, true>(a, b, p.steps + s.first_step, s.n_steps, s.scale, (bf16 *)shared,
                  master_b{ s.grads + g->master_b[module], g->side_out[module], s.rank, p.out[module], m0, n0 });
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

/* TILE rows of a tile; COLS columns a warp. */
template <int KS, int MT, int BLOCKS, int TILE, int COLS>
static int strips(const tcu_lora *p, const bf16 *low, const float *base, const float *bias, bf16 *y, tcu_stream stream)
{
    int columns = 4 / (TILE / (16 * MT)) * COLS;
    return launch(add_high<KS, MT, 2, BLOCKS, TILE, COLS, bf16>, dim3(tiles_of(most_out(p), columns), p->n_tiles, p->n), 128, 0,
                  stream, *p, low, base, bias, y);
}

int tcu_lora_high(const tcu_lora *p, const tcu_bf16 *low, const float *base, const float *bias, tcu_bf16 *y, tcu_stream stream)
{
    bool few = p->tile_rows == 16;
    if (!p->most || !p->n_tiles)
        return 0;
    if (p->most > TCU_STRIP_RANK)
        return high(p, low, base, bias, y, stream);
    if (p->most <= 32)
        return few ? strips<2, 1, 8, 16, 32>(p, low, base, bias, y, stream) : strips<2, 2, 4, 64, 128>(p, low, base, bias, y, stream);
    return few ? strips<4, 1, 6, 16, 32>(p, low, base, bias, y, stream) : strips<4, 2, 3, 64, 128>(p, low, base, bias, y, stream);
}

int tcu_lora_logits(const tcu_lora *p, const tcu_bf16 *low, float *z, tcu_stream stream)
{
    if (!p->most || !p->n_tiles)
        return 0;
    if (p->most > TCU_STRIP_RANK || p->tile_rows != 16)
        return high(p, low, z, NULL, z, stream);
    return launch(p->most <= 32 ? add_high<2, 1, 4, 6, 16, 128, float> : add_high<4, 1, 4, 5, 16, 128, float>,
                  dim3(p->n_tiles, tiles_of(p->out[0], 512)), 128, 0, stream, *p, low, z, NULL, z);
}

int tcu_lora_dlow(const tcu_lora *p, const tcu_bf16 *dy, tcu_bf16 *dlow, tcu_stream stream)
{
    if (!p->most || !p->n_tiles)
        return 0;
    to_low<64, true><<<dim3(p->n_tiles, tiles_of(p->most, 32), p->n), 128, 0, stream>>>(*p, dy, dlow);
    return cudaGetLastError();
}

/* Blocks of one chain each would leave most of the card idle. The number of parts depends on the outputs alone. */
static int width_of_parts(const tcu_lora *p)
{
    return tiles_of(tiles_of(p->out[0], TCU_DLOW_PARTS), 64) * 64;
}

int tcu_lora_dlow_wide(const tcu_lora *p, const tcu_bf16 *dy, float *sums, int32_t rows, tcu_bf16 *dlow, tcu_stream stream)
{
    if (!p->most || !p->n_tiles)
        return 0;
    int width = width_of_parts(p), parts = tiles_of(p->out[0], width);
    dlow_part<<<dim3(p->n_tiles, tiles_of(p->most, 32), parts), 128, 0, stream>>>(*p, dy, width, sums, rows);
    join_dlow<<<p->n_tiles, 256, 0, stream>>>(*p, sums, parts, rows, dlow);
    return cudaGetLastError();
}

int tcu_lora_dx(const tcu_lora *p, const tcu_bf16 *dlow, tcu_bf16 *dx, tcu_stream stream)
{
    if (!p->most || !p->n_tiles)
        return 0;
    int steps = p->n * p->most / 16;
    return launch(steps <= 2   ? dx_part<2> :
                  steps <= 4   ? dx_part<4> :
                  steps <= 6   ? dx_part<6> :
                                 dx_part_any,
                  dim3(tiles_of(p->in, 256), p->n_tiles), 128, 0, stream, *p, dlow, dx);
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
