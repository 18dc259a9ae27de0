/* cuda_grouped.cu - products of experts over their own pairs, with the experts' own factors of adapters, and the gradients of these.
 *
 * A block has a tile of an expert's pairs. Every sum is one chain along k, as everywhere (docs/gpu.md), so it does not matter how
 * many rows an expert has, nor which rows share a tile. Rows of several adapters may: then each adapter's part is computed for the
 * whole tile and added where it belongs.
 */
#include "cuda/cuda_grouped.cuh"
#include "cuda/cuda_grow.cuh"
#include "cuda/cuda_mxfp4.cuh"

/* Many rows: as a whole product; few: one warp's rows, weights streamed. Second: the same tile for the adapters' part. */
template <bool T> struct many {
    typedef shape<TCU_MANY_TILE, 128, 2, 4, false, T, 32, 4> first;
    typedef shape<TCU_MANY_TILE, 128, 2, 4, false, T, 32, 2> second;
};
template <bool T> struct few {
    typedef shape<TCU_FEW_TILE, 32, 1, 2, false, T, 64, 8> first;
    typedef shape<TCU_FEW_TILE, 32, 1, 2, false, T, 64, 2> second;
};

/* sums += scale times low and the experts' own factors, row by row as their segments say. sums: a thread's own places. */
template <typename S> DEVICE void add_own(const tcu_grouped &p, const place &at, const tile_rows<S::BM> &rows, float *sums, bf16 *ring)
{
    for (int i = rows.segment[0]; i <= rows.segment[at.t.n - 1]; i++) {
        tcu_segment s = p.lora.segments[i];
        operand b;
        if (!own_factor(p, at, s, &b))
            continue;
        picked a = { p.low + (p.transposed ? 0 : at.part * s.padded), p.ld_low, at.t.n, rows.row };
        float acc[S::MT][S::NT][4] = {}, scale = p.transposed ? 1 : s.scale;
        int n = 0;
        chain<S, false>(acc, a, b, s.padded, 1, ring);
        each<S>(acc, [&](int r, int, float *v) {
            for (int e = 0; e < 2; e++, n++) {
                float *to = sums + n * S::THREADS;
                if (rows.segment[r] == i)
                    *to = __fmaf_rn(scale, v[e], *to);
            }
        });
        __syncthreads(); /* the ring is free again */
    }
}

/* The sums of a tile to where they belong, with the adapters' part, whose tiles lie `ring` bytes behind where the sums wait. */
template <typename S, typename S2, bool ADD>
DEVICE void finish(const tcu_grouped &p, const place &at, const tile_rows<S::BM> &rows, float acc[S::MT][S::NT][4], int width,
                   unsigned char *shared, int ring)
{
    if (!ADD) {
        each<S>(acc, [&](int r, int j, float *v) { put_pair(p, at, width, r, j, v[0], v[1]); });
        return;
    }
    float *sums = (float *)shared + threadIdx.x;
    int n = 0;
    __syncthreads();
    each<S>(acc, [&](int, int, float *v) {
        for (int e = 0; e < 2; e++)
            sums[n++ * S::THREADS] = v[e];
    });
    add_own<S2>(p, at, rows, sums, (bf16 *)(shared + ring));
    n = 0;
    each<S>(acc, [&](int r, int j, float *) {
        put_pair(p, at, width, r, j, sums[n * S::THREADS], sums[(n + 1) * S::THREADS]);
        n += 2;
    });
}

/* grid: columns, tiles. */
template <typename F, bool ADD> __global__ void __launch_bounds__(F::first::THREADS, 2) grouped(tcu_grouped p, int width, int k)
{
    typedef typename F::first S;
    typedef typename F::second S2;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ tile_rows<S::BM> rows;
    int per = (width + S::BN - 1) / S::BN;
    place at = { p.pairs.tiles[blockIdx.y], (int)blockIdx.x / per, (int)blockIdx.x % per * S::BN };
    at.columns = width - at.n0;
    if (!at.t.n)
        return;
    find_rows<S::BM>(p, at.t, 0, ADD, rows);
    const bf16 *w = p.w.w + (int64_t)at.t.segment * p.w.out * p.w.in;
    picked a = { p.x, p.ldx, at.t.n, rows.x };
    operand b = { S::BT ? w + at.n0 : w + ((int64_t)at.part * width + at.n0) * k, p.w.in, at.columns, NULL };
    float acc[S::MT][S::NT][4] = {};
    chain<S, false>(acc, a, b, k, 1, (bf16 *)shared);
    enum { SUMS = S::BM * S::BN * 4, RING = (int)SUMS > (int)S::BYTES ? (int)SUMS : (int)S::BYTES };
    finish<S, S2, ADD>(p, at, rows, acc, width, shared, RING);
}

template <typename F, bool ADD> static int run_grouped(const tcu_grouped *p, tcu_stream stream)
{
    typedef typename F::first S;
    int sums = S::BM * S::BN * 4, ring = sums > S::BYTES ? sums : S::BYTES;
    int bytes = ADD ? ring + F::second::BYTES : S::BYTES, tiles = tcu_tile_room(p->pairs.n * p->pairs.top, p->pairs.n_experts, S::BM);
    int width = (p->transposed ? p->w.in : p->w.out) / p->parts, k = p->transposed ? p->w.out : p->w.in;
    cudaError_t e = cudaFuncSetAttribute(grouped<F, ADD>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e)
        return e;
    dim3 grid((width + S::BN - 1) / S::BN * p->parts, tiles);
    grouped<F, ADD><<<grid, S::THREADS, bytes, stream>>>(*p, width, k);
    return cudaGetLastError();
}

template <bool T> static int choose_grouped(const tcu_grouped *p, tcu_stream stream)
{
    bool add = p->low && p->lora.most;
    if (p->pairs.tile_rows == TCU_FEW_TILE)
        return add ? run_grouped<few<T>, true>(p, stream) : run_grouped<few<T>, false>(p, stream);
    if (tcu_decode_here())
        return tcu_grouped_wide(p, stream);
    return add ? run_grouped<many<T>, true>(p, stream) : run_grouped<many<T>, false>(p, stream);
}

int tcu_grouped_product(const tcu_grouped *p, tcu_stream stream)
{
    if (!p->w.w) {
        const tcu_inner all = { .g = *p };
        return p->transposed || p->pairs.tile_rows != TCU_FEW_TILE ? cudaErrorInvalidValue : tcu_strips_inner(&all, stream);
    }
    return p->transposed ? choose_grouped<true>(p, stream) : choose_grouped<false>(p, stream);
}

/* ---- own factors alone ---- */

/* Rows of up to 64 pairs: a tile, or half of one. grid: columns, tiles * halves, parts. */
template <int BM, bool BACK> __global__ void __launch_bounds__(BM == 16 ? 64 : 128) own_low(tcu_grouped p, float *low, int64_t ld, int halves)
{
    typedef shape<BM, 32, BM / 16, BM == 16 ? 2 : 1, false, BACK, 64, 3> S;
    __shared__ __align__(128) bf16 ring[S::BYTES / 2];
    __shared__ tile_rows<BM> rows;
    tcu_tile t = p.pairs.tiles[blockIdx.y / halves];
    int first = blockIdx.y % halves * BM, n = min(t.n - first, BM), part = blockIdx.z, n0 = blockIdx.x * S::BN;
    if (n <= 0)
        return;
    find_rows<BM>(p, t, first, true, rows);
    for (int i = rows.segment[0]; i <= rows.segment[n - 1]; i++) {
        tcu_segment s = p.lora.segments[i];
        if (!s.rank || n0 >= s.padded)
            continue;
        const tcu_group *g = &s.groups[p.lora.group];
        if (!g->n)
            continue;
        int64_t e = t.segment;
        int width = p.w.in, k = BACK ? g->out[part] : g->in; /* x: parts of `width` columns side by side */
        picked a = { p.x + part * width, p.ldx, n, rows.x };
        operand b = { s.operands + (BACK ? g->b[part] + e * k * s.padded + n0 : g->a + (e * s.padded + n0) * k), BACK ? s.padded : k, s.padded - n0, NULL };
        float acc[S::MT][S::NT][4] = {}, scale = BACK ? s.scale : 1;
        chain<S, false>(acc, a, b, k, 1, ring);
        each<S>(acc, [&](int r, int j, float *v) {
            for (int e = 0; e < 2; e++)
                if (r < n && n0 + j + e < s.padded && rows.segment[r] == i)
                    low[(int64_t)(t.row + first + r) * ld + part * s.padded + n0 + j + e] = v[e] * scale;
        });
        __syncthreads();
    }
}

int tcu_own_low(const tcu_grouped *p, bool back, float *low, int64_t ld, tcu_stream stream)
{
    int halves = p->pairs.tile_rows == TCU_FEW_TILE ? 1 : TCU_MANY_TILE / 64;
    int tiles = tcu_tile_room(p->pairs.n * p->pairs.top, p->pairs.n_experts, p->pairs.tile_rows);
    dim3 grid((p->lora.most + 31) / 32, tiles * halves, p->parts);
    if (!p->lora.most)
        return 0;
    if (halves == 1)
        return back ? launch(own_low<16, true>, grid, 64, 0, stream, *p, low, ld, 1) :
                      launch(own_low<16, false>, grid, 64, 0, stream, *p, low, ld, 1);
    return back ? launch(own_low<64, true>, grid, 128, 0, stream, *p, low, ld, halves) :
                  launch(own_low<64, false>, grid, 128, 0, stream, *p, low, ld, halves);
}

/* ---- gradients ---- */

/* The steps of an expert whose rows belong to a segment: they ascend, and no step has rows of two. */
DEVICE int steps_from(const tcu_own_gradient &p, const tcu_step *steps, int n, int row)
{
    int low = 0;
    while (low < n) {
        int middle = low + (n - low) / 2;
        if (p.pairs.slot_of[steps[middle].row] < row * p.pairs.top)
            low = middle + 1;
        else
            n = middle;
    }
    return low;
}

typedef struct own_steps {
    tcu_segment s;
    const tcu_group *g;
    const tcu_step *steps;
    int n;
} own_steps;

DEVICE bool find_steps(const tcu_own_gradient &p, int expert, int segment, own_steps *at)
{
    at->s = p.lora.segments[segment];
    if (!at->s.rank || !at->s.grads)
        return false;
    at->g = &at->s.groups[p.lora.group];
    const tcu_step *steps = p.steps + tcu_steps_at(p.pairs.start[expert], expert, p.n_data);
    int n = p.n_steps[expert];
    if (!at->g->n || !n)
        return false;
    int first = steps_from(p, steps, n, at->s.begin);
    at->steps = steps + first;
    at->n = steps_from(p, steps, n, at->s.end) - first;
    return at->n > 0;
}

/* grid: (expert * segments + segment) * parts + part, rows of B, columns of B. */
__global__ void __launch_bounds__(128) grow_own_b(tcu_own_gradient p)
{
    typedef shape_b S;
    extern __shared__ __align__(128) unsigned char shared[];
    int part = blockIdx.x % p.parts, segment = blockIdx.x / p.parts % p.lora.n_segments, m0 = blockIdx.y * S::BM, n0 = blockIdx.z * S::BN;
    int64_t expert = blockIdx.x / p.parts / p.lora.n_segments;
    own_steps at;
    if (!find_steps(p, (int)expert, segment, &at) || n0 >= at.s.rank)
        return;
    int rank = at.s.rank, out = at.g->out[part];
    tcu_side side = at.g->side_out[part];
    operand a = { p.dy + part * p.width + m0, (int64_t)p.parts * p.width, p.width - m0, NULL };
    operand b = { p.low + part * at.s.padded + n0, p.ld_low, at.s.padded - n0, NULL };
    float *grads = at.s.grads + at.g->master_b[part] + expert * tcu_side_count(side, out) * rank;
    grow<S, true>(a, b, at.steps, at.n, at.s.scale, (bf16 *)shared, master_b{ grads, side, rank, out, m0, n0 });
}

/* grid: expert * segments + segment, columns of A, rows of A. */
__global__ void __launch_bounds__(128) grow_own_a(tcu_own_gradient p)
{
    typedef shape_a S;
    extern __shared__ __align__(128) unsigned char shared[];
    int segment = blockIdx.x % p.lora.n_segments, m0 = blockIdx.z * S::BM, n0 = blockIdx.y * S::BN;
    int64_t expert = blockIdx.x / p.lora.n_segments;
    own_steps at;
    if (!find_steps(p, (int)expert, segment, &at) || m0 >= at.s.rank)
        return;
    int in = at.g->in;
    operand a = { p.low + m0, p.ld_low, at.s.padded - m0, NULL };
    operand b = { p.dy + n0, p.width, p.width - n0, NULL };
    float *grads = at.s.grads + at.g->master_a + expert * at.s.rank * tcu_side_count(at.g->side_in, in);
    grow<S, false>(a, b, at.steps, at.n, 1, (bf16 *)shared, master_a{ grads, at.g->side_in, at.s.rank, in, m0, n0 });
}

int tcu_own_grow(const tcu_own_gradient *p, tcu_stream stream)
{
    bool of_b = p->parts > 0;
    int bytes = (of_b ? (int)shape_b::BYTES : (int)shape_a::BYTES) + STEPS * (int)sizeof(tcu_step);
    dim3 grid(p->pairs.n_experts * p->lora.n_segments * (of_b ? p->parts : 1), (p->width + 63) / 64, (p->lora.most + 31) / 32);
    if (!p->lora.most || !p->lora.n_segments)
        return 0;
    cudaError_t e = cudaFuncSetAttribute(of_b ? grow_own_b : grow_own_a, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e)
        return e;
    return launch(of_b ? grow_own_b : grow_own_a, grid, 128, bytes, stream, *p);
}

/* ---- whole stacks of mxfp4 ---- */

/* A thread for each block of 32 numbers. grid: pieces, experts. */
__global__ void __launch_bounds__(256) unpack_blocks(tcu_stack s, tcu_pairs p, bf16 *w)
{
    int64_t e = blockIdx.y, count = (int64_t)s.out * s.in / 32;
    int blocks = s.in / 32;
    if (p.start[e] == p.start[e + 1])
        return;
    for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < count; i += (int64_t)gridDim.x * 256) {
        int64_t row = e * s.out + i / blocks, strip = row / STRIP * STRIP * blocks;
        int b = (int)(i % blocks), scale = s.scales[strip + scale_at(row % STRIP, b, blocks)];
        uint32_t first = first_factor(scale), second = second_factor(scale), words[4];
#pragma unroll
        for (int t = 0; t < 4; t++)
            words[t] = *(const uint32_t *)(s.blocks + strip * 16 + word_at(row % STRIP, b, t, blocks));
        uint4 *to = (uint4 *)(w + (e * count + i) * 32);
#pragma unroll
        for (int q = 0; q < 4; q++) {
            uint32_t x[4];
#pragma unroll
            for (int t = 0; t < 4; t++)
                x[t] = times_pair(times_pair(code_pair(words[t], q), first), second);
            to[q] = make_uint4(x[0], x[1], x[2], x[3]);
        }
    }
}

/* A block for each strip. A file's block has 16 bytes of two neighbours each: byte 4 i + t becomes pair i of lane t's word. */
__global__ void __launch_bounds__(256) order_strip(uint8_t *codes, uint8_t *scales, int blocks)
{
    extern __shared__ __align__(128) unsigned char shared[];
    uint32_t *from = (uint32_t *)shared;
    uint8_t *of = shared + STRIP * blocks * 16;
    codes += (int64_t)blockIdx.x * STRIP * blocks * 16;
    scales += (int64_t)blockIdx.x * STRIP * blocks;
    for (int i = threadIdx.x; i < STRIP * blocks * 4; i += blockDim.x)
        from[i] = ((const uint32_t *)codes)[i];
    for (int i = threadIdx.x; i < STRIP * blocks; i += blockDim.x)
        of[i] = scales[i];
    __syncthreads();
    for (int i = threadIdx.x; i < STRIP * blocks; i += blockDim.x) {
        int row = i / blocks, b = i % blocks;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            uint32_t word = 0;
#pragma unroll
            for (int pair = 0; pair < 4; pair++) {
                uint32_t byte = from[i * 4 + pair] >> 8 * t & 0xffu;
                word |= pack_codes(pair, byte & 15u, byte >> 4);
            }
            *(uint32_t *)(codes + word_at(row, b, t, blocks)) = word;
        }
        scales[scale_at(row, b, blocks)] = of[i];
    }
}

int tcu_order_blocks(uint8_t *blocks, uint8_t *scales, int32_t rows, int32_t in, tcu_stream stream)
{
    int bytes = STRIP * (in / 32) * 17;
    cudaError_t e = cudaFuncSetAttribute(order_strip, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (rows % STRIP || in % 32)
        return cudaErrorInvalidValue;
    return e ? e : launch(order_strip, dim3(rows / STRIP), 256, bytes, stream, blocks, scales, in / 32);
}

int tcu_unpack(const tcu_stack *s, const tcu_pairs *p, tcu_bf16 *w, tcu_stream stream)
{
    int64_t count = (int64_t)s->out * s->in / 32, blocks = (count + 255) / 256;
    return launch(unpack_blocks, dim3((unsigned)(blocks < 1024 ? blocks : 1024), p->n_experts), 256, 0, stream, *s, *p, w);
}
