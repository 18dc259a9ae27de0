/* cuda_pairs.cu - chooses the experts of each row, orders the pairs, and goes between rows and pairs.
 *
 * The order is a counting sort: chunks of slots are counted, one block adds up, chunks are placed; a pair's place depends
 * only on the choices. Sums over a row's experts run in ascending order of the experts.
 */
#include "cuda/cuda_act.cuh"
#include "cuda/cuda_choice.cuh"

enum { ROWS = 8 };   /* rows or pairs of a block, one a warp */
enum { AHEAD = 16 }; /* counts loaded at once */

/* ---- the choice ---- */

__global__ void __launch_bounds__(ROWS * 32) choose(tcu_router r, float *logits, tcu_pairs p)
{
    int row = blockIdx.x * ROWS + threadIdx.x / 32;
    if (row < p.n)
        choose_row(r, logits + (int64_t)row * r.ld, p, row);
}

/* ---- the order ---- */

__global__ void __launch_bounds__(TCU_ORDER_SLOTS) count(tcu_pairs p)
{
    __shared__ int of[TCU_MAX_EXPERTS];
    int slot = blockIdx.x * TCU_ORDER_SLOTS + threadIdx.x;
    for (int e = threadIdx.x; e < p.n_experts; e += TCU_ORDER_SLOTS)
        of[e] = 0;
    __syncthreads();
    int expert = slot < p.n * p.top ? p.chosen[slot] : -1;
    if (expert >= 0)
        atomicAdd(&of[expert], 1); /* whole numbers: any order */
    __syncthreads();
    for (int e = threadIdx.x; e < p.n_experts; e += TCU_ORDER_SLOTS)
        p.counts[(int64_t)blockIdx.x * p.n_experts + e] = of[e];
}

/* Starts and tiles from the pairs of each expert, of which a thread has one; returns its start. */
DEVICE int make_tiles(const tcu_pairs &p, int total)
{
    int pairs, tiles, start = sum_before(total, &pairs), first = sum_before(tcu_tiles_of(total, p.tile_rows), &tiles);
    if ((int)threadIdx.x < p.n_experts)
        put_tiles(p, threadIdx.x, start, total, first);
    end_tiles(p, pairs, tiles);
    return start;
}

/* Counts become places within the expert; starts and tiles. One block, a thread for each expert. */
__global__ void __launch_bounds__(TCU_MAX_EXPERTS) add_up(tcu_pairs p, int chunks)
{
    int e = threadIdx.x, total = 0;
    for (int c = 0; e < p.n_experts && c < chunks; c += AHEAD) {
        int32_t *at = p.counts + (int64_t)c * p.n_experts + e, own[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            own[i] = c + i < chunks ? at[i * p.n_experts] : 0;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (c + i < chunks)
                at[i * p.n_experts] = total;
            total += own[i];
        }
    }
    make_tiles(p, total);
}

__global__ void __launch_bounds__(TCU_ORDER_SLOTS) put(tcu_pairs p)
{
    __shared__ int32_t list[TCU_ORDER_SLOTS];
    int slot = blockIdx.x * TCU_ORDER_SLOTS + threadIdx.x;
    int expert = slot < p.n * p.top ? p.chosen[slot] : -1;
    list[threadIdx.x] = expert;
    __syncthreads();
    if (expert < 0)
        return;
    int at = p.start[expert] + p.counts[(int64_t)blockIdx.x * p.n_experts + expert] + tcu_rank_in(list, threadIdx.x);
    p.pair_of[slot] = at;
    p.slot_of[at] = slot;
}

int tcu_route(const tcu_router *r, float *logits, const tcu_pairs *p, tcu_stream stream)
{
    int chunks = tcu_order_chunks(p->n * p->top);
    if (p->n_experts > TCU_MAX_EXPERTS || p->top > TCU_MAX_TOP || p->top > p->n_experts)
        return cudaErrorInvalidValue;
    choose<<<(p->n + ROWS - 1) / ROWS, ROWS * 32, 0, stream>>>(*r, logits, *p);
    count<<<chunks, TCU_ORDER_SLOTS, 0, stream>>>(*p);
    add_up<<<1, TCU_MAX_EXPERTS, 0, stream>>>(*p, chunks);
    put<<<chunks, TCU_ORDER_SLOTS, 0, stream>>>(*p);
    return cudaGetLastError();
}

/* Through the weights, not through the choice. */
__global__ void __launch_bounds__(ROWS * 32) choose_back(tcu_router r, const float *logits, tcu_pairs p, const float *dweight, bf16 *out)
{
    int row = blockIdx.x * ROWS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= p.n)
        return;
    bf16 *dz = out + (int64_t)row * r.ld;
    int64_t slot = (int64_t)row * p.top + lane;
    bool there = lane < p.top;
    float w = there ? p.weight[slot] : 0, dw = there ? dweight[slot] : 0, mean = 0, max = 0;
    int mine = there ? p.chosen[slot] : 0;
    for (int k = 0; k < p.top; k++)
        mean = __fmaf_rn(__shfl_sync(0xffffffffu, w, k), __shfl_sync(0xffffffffu, dw, k), mean);
    if (r.choice)
        mean = r.normalised ? __fdiv_rn(mean, r.scale) : 0;
    const float *z = logits + (int64_t)row * r.ld;
    float sum = r.all ? sum_of(p, r, z, 0, &max) : 1;
    for (int e = lane; e < r.ld; e += 32)
        dz[e] = narrow(r.all && e < p.n_experts ? -(__fdiv_rn(expf(z[e] - max), sum) * mean) : 0);
    __syncwarp();
    if (there)
        dz[mine] = narrow(w * (dw - mean) * (r.choice ? 1 - exact_sigmoid(z[mine]) : 1.0f));
}

int tcu_route_back(const tcu_router *r, const float *logits, const tcu_pairs *p, const float *dweight, tcu_bf16 *dlogits,
                   tcu_stream stream)
{
    choose_back<<<(p->n + ROWS - 1) / ROWS, ROWS * 32, 0, stream>>>(*r, logits, *p, dweight, dlogits);
    return cudaGetLastError();
}

/* A block for each expert, a thread for each datum. */
__global__ void __launch_bounds__(256) steps_of(tcu_pairs p, const int32_t *starts, int n_data, tcu_step *steps, int32_t *n_steps)
{
    int e = blockIdx.x, begin = p.start[e], end = p.start[e + 1], done = 0;
    tcu_step *to = steps + tcu_steps_at(begin, e, n_data);
    for (int d0 = 0; d0 < n_data; d0 += 256) {
        int d = d0 + threadIdx.x, first = 0, last = 0, all;
        if (d < n_data) {
            first = tcu_first_pair(p.slot_of, begin, end, starts[d] * p.top);
            last = tcu_first_pair(p.slot_of, first, end, starts[d + 1] * p.top);
        }
        int own = tcu_tiles_of(last - first, TCU_STEP_ROWS), at = done + sum_before(own, &all);
        for (int i = 0; i < own; i++)
            to[at + i] = tcu_step{ first + i * TCU_STEP_ROWS, min(last - first - i * TCU_STEP_ROWS, (int)TCU_STEP_ROWS) };
        done += all;
    }
    if (threadIdx.x == 0)
        n_steps[e] = done;
}

int tcu_expert_steps(const tcu_pairs *p, const int32_t *starts, int32_t n_data, tcu_step *steps, int32_t *n_steps, tcu_stream stream)
{
    steps_of<<<p->n_experts, 256, 0, stream>>>(*p, starts, n_data, steps, n_steps);
    return cudaGetLastError();
}

/* ---- between rows and pairs ---- */

DEVICE void widen8(uint4 v, float x[8])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 f = unpack((&v.x)[i]);
        x[2 * i] = f.x;
        x[2 * i + 1] = f.y;
    }
}

DEVICE uint4 narrow8(const float x[8])
{
    return make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
}

/* sum = that of the pairs of a row, eight columns from c on. */
template <bool WEIGHTED> DEVICE void sum_pairs(const tcu_pairs &p, int row, const bf16 *x, int width, int c, float sum[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum[i] = 0;
    for (int k = 0; k < p.top; k++) {
        int64_t slot = (int64_t)row * p.top + k;
        int pair = p.pair_of[slot];
        if (pair < 0)
            continue;
        float v[8], w = WEIGHTED ? p.weight[slot] : 1;
        widen8(*(const uint4 *)(x + (int64_t)pair * width + c), v);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum[i] = WEIGHTED ? __fmaf_rn(w, v[i], sum[i]) : __fadd_rn(sum[i], v[i]);
    }
}

__global__ void __launch_bounds__(256) combine(tcu_pairs p, const bf16 *x, int width, float *to, bf16 *y)
{
    int row = blockIdx.x;
    for (int c = threadIdx.x * 8; c < width; c += 256 * 8) {
        float sum[8];
        sum_pairs<true>(p, row, x, width, c, sum);
        int64_t at = (int64_t)row * width + c;
        if (to) {
            *(float4 *)(to + at) = make_float4(sum[0], sum[1], sum[2], sum[3]);
            *(float4 *)(to + at + 4) = make_float4(sum[4], sum[5], sum[6], sum[7]);
        } else {
            *(uint4 *)(y + at) = narrow8(sum);
        }
    }
}

int tcu_pairs_combine(const tcu_pairs *p, const tcu_bf16 *x, int32_t width, float *wide, tcu_bf16 *y, tcu_stream stream)
{
    combine<<<p->n, 256, 0, stream>>>(*p, x, width, wide, y);
    return cudaGetLastError();
}

__global__ void __launch_bounds__(256) gradient(tcu_pairs p, const bf16 *x, int width, const float *router, bool add, bf16 *dx)
{
    int row = blockIdx.x;
    for (int c = threadIdx.x * 8; c < width; c += 256 * 8) {
        float sum[8], part[8];
        int64_t at = (int64_t)row * width + c;
        sum_pairs<false>(p, row, x, width, c, sum);
        if (add)
            widen8(*(const uint4 *)(dx + at), part);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum[i] = __fadd_rn(sum[i], router[at + i]);
            sum[i] = add ? __fadd_rn(sum[i], part[i]) : sum[i];
        }
        *(uint4 *)(dx + at) = narrow8(sum);
    }
}

int tcu_pairs_gradient(const tcu_pairs *p, const tcu_bf16 *x, int32_t width, const float *router, bool add, tcu_bf16 *dx,
                       tcu_stream stream)
{
    gradient<<<p->n, 256, 0, stream>>>(*p, x, width, router, add, dx);
    return cudaGetLastError();
}

__global__ void __launch_bounds__(ROWS * 32) low_rows(tcu_pairs p, bool weighted, const float *x, int width, bf16 *low)
{
    int row = blockIdx.x * ROWS + threadIdx.x / 32;
    if (row >= p.n)
        return;
    for (int c = threadIdx.x % 32; c < width; c += 32) {
        float sum = 0;
        for (int k = 0; k < p.top; k++) {
            int64_t slot = (int64_t)row * p.top + k;
            int pair = p.pair_of[slot];
            if (pair >= 0)
                sum = __fmaf_rn(weighted ? p.weight[slot] : 1.0f, x[(int64_t)pair * width + c], sum);
        }
        low[(int64_t)row * width + c] = narrow(sum);
    }
}

int tcu_pairs_low(const tcu_pairs *p, bool weighted, const float *x, int32_t width, tcu_bf16 *low, tcu_stream stream)
{
    low_rows<<<(p->n + ROWS - 1) / ROWS, ROWS * 32, 0, stream>>>(*p, weighted, x, width, low);
    return cudaGetLastError();
}

__global__ void __launch_bounds__(ROWS * 32) spread(tcu_pairs p, bool weighted, const bf16 *from, int width, bf16 *to)
{
    int pair = blockIdx.x * ROWS + threadIdx.x / 32;
    if (pair >= p.start[p.n_experts])
        return;
    int slot = p.slot_of[pair], row = slot / p.top;
    float w = p.weight[slot];
    for (int c = threadIdx.x % 32; c < width; c += 32) {
        bf16 x = from[(int64_t)row * width + c];
        to[(int64_t)pair * width + c] = weighted ? narrow(w * wide(x)) : x;
    }
}

int tcu_pairs_spread(const tcu_pairs *p, bool weighted, const tcu_bf16 *from, int32_t width, tcu_bf16 *to, tcu_stream stream)
{
    spread<<<(p->n * p->top + ROWS - 1) / ROWS, ROWS * 32, 0, stream>>>(*p, weighted, from, width, to);
    return cudaGetLastError();
}

/* ---- gate and up ---- */

DEVICE void act_back_one(const tcu_expert_act &a, float dh, float &g, float &u)
{
    if (a.squared) {
        g = 2 * fmaxf(g, 0) * dh;
        return;
    }
    if (!a.limit) {
        float s = sigmoid(g), silu = g * s, dg = dh * u * (s * (1 + g * (1 - s)));
        u = dh * silu;
        g = dg;
        return;
    }
    bool g_cut = g > a.limit, u_cut = u > a.limit || u < -a.limit; /* nothing passes there */
    g = fminf(g, a.limit);
    u = fminf(fmaxf(u, -a.limit), a.limit);
    float s = sigmoid(a.alpha * g), dg = dh * (u + 1) * (s * (1 + a.alpha * g * (1 - s))), du = dh * (g * s);
    g = g_cut ? 0 : dg;
    u = u_cut ? 0 : du;
}

__global__ void act(tcu_expert_act a, const bf16 *gu, bf16 *m, int64_t count)
{
    int64_t at = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * 8;
    if (at >= count)
        return;
    int64_t row = at / a.width, c = at % a.width, gate = a.squared ? at : row * 2 * a.width + c;
    float g[8], u[8];
    widen8(*(const uint4 *)(gu + gate), g);
    widen8(*(const uint4 *)(gu + gate + (a.squared ? 0 : a.width)), u);
#pragma unroll
    for (int i = 0; i < 8; i++)
        g[i] = act_one(a, g[i], u[i]);
    *(uint4 *)(m + at) = narrow8(g);
}

int tcu_act(const tcu_expert_act *a, const tcu_bf16 *gu, tcu_bf16 *m, int64_t rows, tcu_stream stream)
{
    act<<<(unsigned)((rows * a->width / 8 + 255) / 256), 256, 0, stream>>>(*a, gu, m, rows * a->width);
    return cudaGetLastError();
}

/* A warp for each pair; its dot products are 32 sums of every 32nd piece of 8, then a tree. */
__global__ void __launch_bounds__(ROWS * 32) act_back(tcu_expert_act a, tcu_pairs p, bf16 *gu, const bf16 *m, const bf16 *dm,
                                                      const float *bias, const bf16 *dy, int hidden, float *dweight)
{
    int pair = blockIdx.x * ROWS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (pair >= p.start[p.n_experts])
        return;
    int slot = p.slot_of[pair];
    float w = p.weight[slot], dot = 0;
    for (int c = lane * 8; c < a.width; c += 256) {
        int64_t at = (int64_t)pair * a.width + c, gate = a.squared ? at : at + (int64_t)pair * a.width;
        int64_t up = gate + (a.squared ? 0 : a.width);
        float g[8], u[8], h[8], d[8];
        widen8(*(const uint4 *)(gu + gate), g);
        widen8(*(const uint4 *)(gu + up), u);
        widen8(*(const uint4 *)(m + at), h);
        widen8(*(const uint4 *)(dm + at), d);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            dot = __fmaf_rn(h[i], d[i], dot);
            act_back_one(a, w * d[i], g[i], u[i]);
        }
        *(uint4 *)(gu + gate) = narrow8(g);
        if (!a.squared)
            *(uint4 *)(gu + up) = narrow8(u);
    }
    if (bias) {
        const float *b = bias + (int64_t)p.chosen[slot] * hidden;
        const bf16 *d = dy + (int64_t)(slot / p.top) * hidden;
        for (int c = lane; c < hidden; c += 32)
            dot = __fmaf_rn(b[c], wide(d[c]), dot);
    }
    dot = warp_sum(dot);
    if (lane == 0)
        dweight[slot] = dot;
}

int tcu_act_back(const tcu_expert_act *a, const tcu_pairs *p, tcu_bf16 *gu, const tcu_bf16 *m, const tcu_bf16 *dm,
                 const float *bias, const tcu_bf16 *dy, int32_t hidden, float *dweight, tcu_stream stream)
{
    act_back<<<(p->n * p->top + ROWS - 1) / ROWS, ROWS * 32, 0, stream>>>(*a, *p, gu, m, dm, bias, dy, hidden, dweight);
    return cudaGetLastError();
}

__global__ void squared_back(bf16 *up, const bf16 *dm, int64_t count)
{
    int64_t at = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * 8;
    float u[8], d[8];
    if (at >= count)
        return;
    widen8(*(const uint4 *)(up + at), u);
    widen8(*(const uint4 *)(dm + at), d);
#pragma unroll
    for (int i = 0; i < 8; i++)
        u[i] = 2 * fmaxf(u[i], 0) * d[i];
    *(uint4 *)(up + at) = narrow8(u);
}

int tcu_squared_back(tcu_bf16 *up, const tcu_bf16 *dm, int64_t count, tcu_stream stream)
{
    return launch(squared_back, dim3((unsigned)((count / 8 + 255) / 256)), 256, 0, stream, up, dm, count);
}
