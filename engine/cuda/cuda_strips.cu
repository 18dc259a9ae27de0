/* cuda_strips.cu - products of mxfp4 experts with few pairs: a warp streams 16 rows of an expert's matrix past a tile of up to 16 pairs.
 *
 * Weights are the left operand of the matrix instruction, so numbers of mxfp4 are unpacked once and go where they are needed; a gate and
 * its up are in one lane. Each sum is one chain along k, as everywhere (docs/gpu.md). A fixed number of blocks shares what there is to do,
 * which the host does not know: warps by themselves, where pairs are very few; else blocks, whose warps share the pairs' numbers.
 */
#include "cuda/cuda_act.cuh"
#include "cuda/cuda_early.cuh"
#include "cuda/cuda_grouped.cuh"
#include "cuda/cuda_mxfp4.cuh"

enum { WARPS = 8, THREADS = WARPS * 32, TILE = TCU_FEW_TILE, AHEAD = 4 };

DEVICE void wait_for_launch(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

typedef struct strip { /* 16 rows of an expert's matrix: 8 from `low` on and 8 from `high` on, columns of y */
    tcu_tile t;
    int low, high;
    bool whole; /* the high ones exist */
} strip;

/* Strips of a tile. Gates and ups come in pairs. */
static __host__ __device__ int strips_of(const tcu_grouped &p)
{
    return p.parts == 2 ? p.w.out / 16 : (p.w.out + 15) / 16;
}

DEVICE strip strip_at(const tcu_grouped &p, const tcu_tile &t, int i)
{
    strip s;
    s.t = t;
    s.low = p.parts == 2 ? i * 8 : i * 16;
    s.high = p.parts == 2 ? p.w.out / 2 + i * 8 : i * 16 + 8;
    s.whole = s.high < p.w.out;
    return s;
}

/* The row of x of pair r of a tile; past its end one that is there. */
DEVICE const bf16 *row_of(const tcu_grouped &p, const tcu_tile &t, int r)
{
    int pair = t.row + min(r, t.n - 1);
    return p.x + (p.by_row ? p.pairs.slot_of[pair] / p.pairs.top : pair) * p.ldx;
}

/* ---- x: of up to 8 NB pairs, as right operands of two steps ---- */

template <int NB> struct x_rows { /* from global memory: lane 4 g + t has row g of each eight */
    const bf16 *at[NB];
    int k;
};

template <int NB> DEVICE x_rows<NB> find_x(const tcu_grouped &p, const tcu_tile &t)
{
    x_rows<NB> x;
#pragma unroll
    for (int i = 0; i < NB; i++)
        x.at[i] = row_of(p, t, i * 8 + threadIdx.x % 32 / 4) + threadIdx.x % 4 * 2;
    x.k = p.w.in;
    return x;
}

template <int NB> DEVICE void load_x(const x_rows<NB> &x, int k0, uint32_t (&to)[NB][4])
{
#pragma unroll
    for (int i = 0; i < NB; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            to[i][j] = k0 + j * 8 < x.k ? *(const uint32_t *)(x.at[i] + k0 + j * 8) : 0;
}

template <int NB> struct x_tile { /* from shared memory */
    const bf16 *at; /* the lane's row of four 8 x 8 tiles */
    int pitch;
};

/* Of a row in shared memory: an odd number of pieces of 16 bytes. */
static __host__ __device__ int pitch_of(int k)
{
    return (k + 15) / 16 * 16 + 8;
}

template <int NB> DEVICE void load_x(const x_tile<NB> &x, int k0, uint32_t (&to)[NB][4])
{
#pragma unroll
    for (int i = 0; i < NB; i++)
        ldmatrix(to[i], x.at + i * 8 * x.pitch + k0);
}

/* ---- mxfp4 ---- */

template <int NB> struct sums {
    float v[NB][4];
};

DEVICE uint4 stream16(const uint8_t *at)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}

typedef struct codes { /* a lane's of a group of the two strips: words of its row, and the scales of all four blocks */
    uint4 word[2];
    uint32_t scale[2];
} codes;

/* A block of 32 columns: acc += weights times x. */
template <int NB, bool LARGE> DEVICE void multiply_block(const codes &c, int j, const uint32_t (&x)[NB][4], float (&acc)[NB][4])
{
    uint32_t w[2][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t scale = __byte_perm(c.scale[h], 0, 0x4440 | j), first = LARGE ? first_factor(scale) : scale * 0x00800080u + 0x3f003f00u;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[h][i] = times_pair(code_pair((&c.word[h].x)[j], i), first);
            if (LARGE)
                w[h][i] = times_pair(w[h][i], second_factor(scale));
        }
    }
#pragma unroll
    for (int step = 0; step < 2; step++) {
        uint32_t f[4] = { w[0][2 * step], w[1][2 * step], w[0][2 * step + 1], w[1][2 * step + 1] };
#pragma unroll
        for (int n = 0; n < NB; n++)
            mma(acc[n], f, x[n][step * 2], x[n][step * 2 + 1]);
    }
}

/* Blocks 0 .. n - 1 of a group, whose columns begin at k0. */
template <int NB, bool LARGE, typename X> DEVICE void multiply_blocks(const codes &c, const X &x, int k0, int n, float (&acc)[NB][4])
{
#pragma unroll
    for (int j = 0; j < GROUP; j++) {
        uint32_t v[NB][4];
        if (j >= n)
            break;
        load_x(x, k0 + j * 32, v);
        multiply_block<NB, LARGE>(c, j, v, acc);
    }
}

/* Numbers above 6 are rare: what they need is kept out of the way. */
template <int NB, typename X> static __device__ __noinline__ sums<NB> multiply_large(codes c, X x, int k0, int n, sums<NB> acc)
{
    multiply_blocks<NB, true>(c, x, k0, n, acc.v);
    return acc;
}

/* Has the warp such numbers in a group? */
DEVICE bool any_large(const codes &c)
{
    return __any_sync(0xffffffffu, (c.scale[0] | c.scale[1]) & 0x80808080u);
}

template <int NB, typename X> DEVICE void multiply_group(const codes &c, const X &x, int k0, int n, sums<NB> &acc)
{
    if (any_large(c))
        acc = multiply_large<NB>(c, x, k0, n, acc);
    else
        multiply_blocks<NB, false>(c, x, k0, n, acc.v);
}

/* Scales of the n blocks of a group that a lane's row has. */
DEVICE uint32_t scales_at(const uint8_t *at, int n)
{
    uint32_t all = 0;
#pragma unroll
    for (int j = 0; j + 1 < GROUP; j++)
        all |= j < n ? (uint32_t)at[j] << 8 * j : 0;
    return all;
}

/* First codes and scales of the two strips. */
typedef struct packed_rows {
    const uint8_t *word[2], *scale[2];
    int full, rest; /* groups of four blocks; blocks of the last one */
} packed_rows;

DEVICE packed_rows packed_at(const tcu_grouped &p, const strip &s)
{
    packed_rows r;
    int blocks = p.w.in / 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int64_t row = (int64_t)s.t.segment * p.w.out + (h && s.whole ? s.high : s.low);
        r.word[h] = p.w.blocks + row * blocks * 16;
        r.scale[h] = p.w.scales + row * blocks;
    }
    r.full = blocks / GROUP;
    r.rest = blocks % GROUP;
    return r;
}

/* acc = 16 rows of weights times x. Codes come AHEAD groups ahead, in registers. */
template <int NB, typename X> DEVICE void chain_packed(const tcu_grouped &p, const strip &s, const X &x, sums<NB> &acc)
{
    int lane = threadIdx.x % 32;
    const packed_rows r = packed_at(p, s);
    auto load = [&](int q) {
        codes c;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            c.word[h] = stream16(r.word[h] + q * GROUP_BYTES + lane * 16);
            c.scale[h] = __ldg((const uint32_t *)(r.scale[h] + q * GROUP_SCALES) + lane / 4);
        }
        return c;
    };
    codes ring[AHEAD], last = {};
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (i < r.full)
            ring[i] = load(i);
#pragma unroll
    for (int h = 0; r.rest && h < 2; h++) {
#pragma unroll
        for (int j = 0; j + 1 < GROUP; j++)
            if (j < r.rest)
                (&last.word[h].x)[j] = __ldg((const uint32_t *)(r.word[h] + r.full * GROUP_BYTES) + lane * r.rest + j);
        last.scale[h] = scales_at(r.scale[h] + r.full * GROUP_SCALES + lane / 4 * r.rest, r.rest);
    }
#pragma unroll 1
    for (int q = 0; q < r.full; q += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (q + i >= r.full)
                break;
            multiply_group<NB>(ring[i], x, (q + i) * GROUP * 32, GROUP, acc);
            if (q + i + AHEAD < r.full) /* after the use, into the same registers: a copy would wait for them */
                ring[i] = load(q + i + AHEAD);
        }
    }
    multiply_group<NB>(last, x, r.full * GROUP * 32, r.rest, acc);
}

enum { PACKED_PLACE = 2 * (GROUP_BYTES + GROUP_SCALES), PACKED_STAGES = 8 };

/* The same through a ring in shared memory of the warp's own: few instructions, each of which has to be fetched, too. */
template <int NB> DEVICE void chain_ring(const tcu_grouped &p, const strip &s, sums<NB> &acc, unsigned char *ring, bool wait)
{
    int lane = threadIdx.x % 32;
    const packed_rows r = packed_at(p, s);
    int groups = r.full + (r.rest > 0);
    auto fetch = [&](int q) {
        unsigned char *to = ring + q % PACKED_STAGES * PACKED_PLACE;
        int n = q < r.full ? GROUP : r.rest;
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (lane < n * 8)
                copy16(to + h * GROUP_BYTES + lane * 16, r.word[h] + q * GROUP_BYTES + lane * 16, true);
        if (lane % 16 < n * 2)
            copy4(to + 2 * GROUP_BYTES + lane / 16 * GROUP_SCALES + lane % 16 * 4, r.scale[lane / 16] + q * GROUP_SCALES + lane % 16 * 4);
    };
#pragma unroll 1
    for (int i = 0; i < PACKED_STAGES - 1; i++) {
        if (i < groups)
            fetch(i);
        copy_commit();
    }
    if (wait)
        wait_for_launch();
    x_rows<NB> x = find_x<NB>(p, s.t);
    uint32_t now[GROUP][NB][4], next[GROUP][NB][4]; /* of few pairs x comes a group ahead; of more there are no registers for it */
    auto load_group = [&](int q) {
#pragma unroll
        for (int j = 0; NB == 1 && j < GROUP; j++)
            load_x(x, (q * GROUP + j) * 32, next[j]);
    };
    load_group(0);
#pragma unroll 1
    for (int q = 0; q < groups; q++) {
        const unsigned char *at = ring + q % PACKED_STAGES * PACKED_PLACE, *scale = at + 2 * GROUP_BYTES;
        codes c = {};
#pragma unroll
        for (int e = 0; NB == 1 && e < GROUP * 4; e++)
            (&now[0][0][0])[e] = (&next[0][0][0])[e];
        load_group(q + 1);
        copy_wait<PACKED_STAGES - 2>();
        __syncwarp();
        if (q + PACKED_STAGES - 1 < groups)
            fetch(q + PACKED_STAGES - 1);
        copy_commit();
        if (q < r.full) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                c.word[h] = *(const uint4 *)(at + h * GROUP_BYTES + lane * 16);
                c.scale[h] = *(const uint32_t *)(scale + h * GROUP_SCALES + lane / 4 * 4);
            }
            if constexpr (NB == 1) {
                if (!any_large(c)) {
#pragma unroll
                    for (int j = 0; j < GROUP; j++)
                        multiply_block<NB, false>(c, j, now[j], acc.v);
                    continue;
                }
            }
            multiply_group<NB>(c, x, q * GROUP * 32, GROUP, acc);
            continue;
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int j = 0; j + 1 < GROUP; j++)
                if (j < r.rest)
                    (&c.word[h].x)[j] = ((const uint32_t *)(at + h * GROUP_BYTES))[lane * r.rest + j];
            c.scale[h] = scales_at(scale + h * GROUP_SCALES + lane / 4 * r.rest, r.rest);
        }
        acc = multiply_large<NB>(c, x, q * GROUP * 32, r.rest, acc);
    }
    copy_wait<0>();
    __syncwarp();
}

/* ---- where sums go ---- */

/* f(index among acc, half, pair r of the tile, column of y) for a lane's sums. */
template <int NB, typename F> DEVICE void each_sum(const strip &s, F f)
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < NB; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int r = n * 8 + t * 2 + e;
            if (r < s.t.n)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    if (!h || s.whole)
                        f(n, h * 2 + e, r, (h ? s.high : s.low) + g);
        }
}

/* The eight rows of an expert's own factor from column `column` of y on, by lanes: row g, numbers 2 t on. NULL: not adapted. */
DEVICE const bf16 *factor_at(const tcu_grouped &p, const tcu_segment &s, int expert, int column)
{
    int width = p.w.out / p.parts, part = column / width, row = column - part * width + threadIdx.x % 32 / 4;
    const tcu_group *g = &s.groups[p.lora.group];
    if (!s.rank || !g->n)
        return NULL;
    return s.operands + g->b[part] + ((int64_t)expert * g->out[part] + row) * s.padded + threadIdx.x % 4 * 2;
}

/* acc += scale times low and the experts' own factors, row by row as their segments say. */
template <int NB> DEVICE void add_factors(const tcu_grouped &p, const strip &s, float (&acc)[NB][4])
{
    int row[NB], of[NB][2], g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    auto batch_row = [&](int r) { return p.pairs.slot_of[s.t.row + min(r, s.t.n - 1)] / p.pairs.top; };
#pragma unroll
    for (int n = 0; n < NB; n++) {
        row[n] = batch_row(n * 8 + g);
        for (int e = 0; e < 2; e++)
            of[n][e] = p.segment_of[batch_row(n * 8 + t * 2 + e)];
    }
    int last = p.segment_of[batch_row(s.t.n - 1)];
    for (int i = p.segment_of[batch_row(0)]; i <= last; i++) {
        tcu_segment segment = p.lora.segments[i];
        const bf16 *low = factor_at(p, segment, s.t.segment, s.low), *high = s.whole ? factor_at(p, segment, s.t.segment, s.high) : NULL;
        float own[2][NB][4] = {};
        if (!low)
            continue;
        for (int k = 0; k < segment.padded; k += 16) {
            uint32_t f[2][4] = { { *(const uint32_t *)(low + k), 0, *(const uint32_t *)(low + k + 8), 0 }, {} };
            if (high) {
                f[1][1] = *(const uint32_t *)(high + k);
                f[1][3] = *(const uint32_t *)(high + k + 8);
            }
#pragma unroll
            for (int n = 0; n < NB; n++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const bf16 *x = p.low + row[n] * p.ld_low + (p.parts == 2 ? h * segment.padded : 0) + k + t * 2;
                    mma(own[h][n], f[h], *(const uint32_t *)x, *(const uint32_t *)(x + 8));
                }
        }
#pragma unroll
        for (int n = 0; n < NB; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (of[n][e % 2] == i)
                    acc[n][e] = __fmaf_rn(segment.scale, own[e / 2][n][e], acc[n][e]);
    }
}

DEVICE bf16 rounded(const tcu_grouped &p, const strip &s, float v, int column)
{
    return narrow(p.bias ? __fadd_rn(v, p.bias[(int64_t)s.t.segment * p.w.out + column]) : v);
}

/* Sums become y, and where there is an m what the act makes of them. */
template <int NB> DEVICE void put_inner(const tcu_inner &p, const strip &s, const float (&acc)[NB][4])
{
    each_sum<NB>(s, [&](int n, int e, int r, int column) {
        int64_t pair = s.t.row + r;
        bf16 own = rounded(p.g, s, acc[n][e], column);
        if (p.g.y)
            p.g.y[pair * p.g.w.out + column] = own;
        if (p.m && p.g.parts == 1)
            p.m[pair * p.act.width + column] = narrow(act_one(p.act, wide(own), 0));
        if (p.m && p.g.parts == 2 && e < 2) {
            bf16 up = rounded(p.g, s, acc[n][e + 2], column + p.act.width);
            p.m[pair * p.act.width + column] = narrow(act_one(p.act, wide(own), wide(up)));
        }
    });
}

/* ---- kernels ---- */

enum { RING = PACKED_STAGES * PACKED_PLACE }; /* bytes of a warp */

/* By a warp alone. */
template <int NB> DEVICE void one_strip(const tcu_inner &p, const strip &s, bool add, unsigned char *ring)
{
    sums<NB> acc = {};
    chain_ring<NB>(p.g, s, acc, ring, false);
    if (add)
        add_factors<NB>(p.g, s, acc.v);
    put_inner<NB>(p, s, acc.v);
}

/* Each warp takes strips by itself. */
__global__ void __launch_bounds__(THREADS, 2) inner_warps(tcu_inner p, bool add)
{
    extern __shared__ __align__(128) unsigned char shared[];
    int warp = threadIdx.x / 32, per = strips_of(p.g);
    unsigned char *ring = shared + warp * RING;
    wait_for_launch();
    let_next_prepare();
    int all = p.g.pairs.start[p.g.pairs.n_experts + 1] * per;
    for (int i = warp * gridDim.x + blockIdx.x; i < all; i += WARPS * gridDim.x) {
        strip s = strip_at(p.g, p.g.pairs.tiles[i / per], i % per);
        if (s.t.n <= 8)
            one_strip<1>(p, s, add, ring);
        else
            one_strip<2>(p, s, add, ring);
    }
}

/* Each block takes some of the strips in their order, and has x of a tile at a time. */
__global__ void __launch_bounds__(THREADS, 2) inner_blocks(tcu_inner p, bool add)
{
    extern __shared__ __align__(128) unsigned char shared[];
    bf16 *xt = (bf16 *)shared;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, per = strips_of(p.g), k = p.g.w.in, pitch = pitch_of(k);
    wait_for_launch();
    int64_t all = (int64_t)p.g.pairs.start[p.g.pairs.n_experts + 1] * per;
    int first = (int)(all * blockIdx.x / gridDim.x), end = (int)(all * (blockIdx.x + 1) / gridDim.x);
    while (first < end) {
        tcu_tile t = p.g.pairs.tiles[first / per];
        int stop = min(end, (first / per + 1) * per);
        for (int r = warp; r < t.n; r += WARPS) {
            const bf16 *from = row_of(p.g, t, r);
            for (int c = lane * 8; c < k; c += 256)
                copy16(xt + r * pitch + c, from + c, true);
        }
        copy_commit();
        copy_wait<0>();
        __syncthreads();
        for (int i = first + warp; i < stop; i += WARPS) {
            strip s = strip_at(p.g, t, i % per);
            const bf16 *at = xt + (lane & 7) * pitch + (lane >> 3) * 8;
            if (t.n <= 8) {
                sums<1> acc = {};
                chain_packed<1>(p.g, s, x_tile<1>{ at, pitch }, acc);
                if (add)
                    add_factors<1>(p.g, s, acc.v);
                put_inner<1>(p, s, acc.v);
            } else {
                sums<2> acc = {};
                chain_packed<2>(p.g, s, x_tile<2>{ at, pitch }, acc);
                if (add)
                    add_factors<2>(p.g, s, acc.v);
                put_inner<2>(p, s, acc.v);
            }
        }
        __syncthreads();
        first = stop;
    }
}

/* Results of a tile in 16 columns. */
template <int NB> DEVICE void some_results(const tcu_grouped &p, const strip &s, bf16 *results, unsigned char *ring)
{
    sums<NB> acc = {};
    chain_ring<NB>(p, s, acc, ring, true);
    each_sum<NB>(s, [&](int n, int e, int r, int column) {
        results[(s.t.row + r) * 16 + column - s.low] = rounded(p, s, acc.v[n][e], column);
    });
}

/* 16 columns of all pairs, then the weighted sums over each row's experts, in ascending order. It may begin before the launch that makes x
 * has ended: what it reads of the order was there before that began. */
__global__ void __launch_bounds__(THREADS, 2) outer_rows(tcu_grouped p, bf16 *y)
{
    extern __shared__ __align__(128) unsigned char shared[];
    int warp = threadIdx.x / 32, slots = p.pairs.n * p.pairs.top;
    bf16 *results = (bf16 *)shared; /* [pairs][16] */
    float *weight = (float *)(results + slots * 16);
    int32_t *pair_of = (int32_t *)(weight + slots);
    unsigned char *ring = shared + (slots * 40 + 127) / 128 * 128 + warp * RING;
    int tiles = p.pairs.start[p.pairs.n_experts + 1];
    for (int i = threadIdx.x; i < slots; i += THREADS) {
        weight[i] = p.pairs.weight[i];
        pair_of[i] = p.pairs.pair_of[i];
    }
    for (int i = warp; i < tiles; i += WARPS) {
        strip s = strip_at(p, p.pairs.tiles[i], blockIdx.x);
        if (s.t.n <= 8)
            some_results<1>(p, s, results, ring);
        else
            some_results<2>(p, s, results, ring);
    }
    wait_for_launch(); /* warps that had no tile */
    __syncthreads();
    for (int i = threadIdx.x; i < p.pairs.n * 16; i += THREADS) {
        int row = i / 16, column = blockIdx.x * 16 + i % 16;
        float sum = 0;
        for (int k = 0; k < p.pairs.top; k++) {
            int pair = pair_of[row * p.pairs.top + k];
            if (pair >= 0)
                sum = __fmaf_rn(weight[row * p.pairs.top + k], wide(results[pair * 16 + i % 16]), sum);
        }
        if (column < p.w.out)
            y[(int64_t)row * p.w.out + column] = narrow(sum);
    }
}

/* ---- launches ---- */

template <typename... P, typename... A>
static int launch_strips(void (*kernel)(P...), int blocks, size_t shared, tcu_stream stream, A... args)
{
    cudaError_t e = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    return e ? e : launch_early(kernel, dim3(blocks), THREADS, shared, stream, args...);
}

static int processors(void)
{
    static int n;
    int device = 0;
    if (!n && cudaGetDevice(&device) == cudaSuccess)
        cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    return n ? n : 1;
}

int tcu_strips_inner(const tcu_inner *p, tcu_stream stream)
{
    size_t x = (size_t)TILE * pitch_of(p->g.w.in) * 2;
    bool add = p->g.low && p->g.lora.most;
    if (p->g.pairs.n <= TCU_STRIP_ROWS || x > 112 * 1024)
        return launch_strips(inner_warps, 2 * processors(), (size_t)WARPS * RING, stream, *p, add);
    return launch_strips(inner_blocks, 2 * processors(), x, stream, *p, add);
}

int tcu_strips_outer(const tcu_grouped *p, tcu_bf16 *y, tcu_stream stream)
{
    size_t slots = (size_t)p->pairs.n * p->pairs.top, bytes = (slots * 40 + 127) / 128 * 128;
    if (p->pairs.n > TCU_STRIP_ROWS)
        return cudaErrorInvalidValue;
    return launch_strips(outer_rows, strips_of(*p), bytes + (size_t)WARPS * RING, stream, *p, y);
}
