/* cuda_route.cu - routing of few rows: the choice of experts and the order of pairs by one block and, for the rows of a decoding step, the
 * norm and the router before it in the same launch.
 *
 * Such a launch executes most of its instructions once, which takes longer than what they do: loops stay loops here, and softmax and
 * sigmoids share their code. Of the blocks that make logits the one that ends last chooses.
 */
#include <limits.h>
#include "cuda/cuda_choice.cuh"
#include "cuda/cuda_early.cuh"

enum { EXPERTS = 8, THREADS = ROW_THREADS, CHOOSERS = 32 }; /* experts of a block that makes logits; warps of one that only chooses */

/* ---- the choice ---- */

typedef struct choosing { /* of a warp, in shared memory: keys and logits of all experts */
    uint64_t *keys;
    float *z;
} choosing;

static __host__ __device__ int choosing_bytes(int n_experts)
{
    return (n_experts * 12 + 15) / 16 * 16;
}

DEVICE choosing choosing_at(unsigned char *shared, int n_experts)
{
    choosing c;
    c.keys = (uint64_t *)(shared + threadIdx.x / 32 * choosing_bytes(n_experts));
    c.z = (float *)(c.keys + n_experts);
    return c;
}

/* Keys of the lane's experts, every 32nd. Those of floats are made of doubles, too: their order is the same. */
DEVICE void make_keys(const tcu_router &r, const tcu_pairs &p, const float *logits, const choosing &c)
{
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int e = lane; e < p.n_experts; e += 32) {
        float z = __ldcg(logits + e);
        z = r.bias ? __fadd_rn(z, r.bias[e]) : z;
        c.z[e] = z;
        c.keys[e] = key_of(r.choice ? (double)exact_sigmoid(z) + (double)r.choice[e] : (double)z);
    }
    __syncwarp();
    if (!r.choice || r.n_groups <= 1)
        return;
    uint32_t kept = kept_groups(r, c.z, p.n_experts);
    int size = p.n_experts / r.n_groups;
#pragma unroll 1
    for (int e = lane; e < p.n_experts; e += 32)
        if (!(kept >> e / size & 1))
            c.keys[e] = key_of(-(double)INFINITY);
}

/* The lane's best expert that is left. */
DEVICE uint64_t own_best(const tcu_pairs &p, const choosing &c, int *at)
{
    uint64_t best = 0;
    *at = INT_MAX;
#pragma unroll 1
    for (int e = threadIdx.x % 32; e < p.n_experts; e += 32)
        if (c.keys[e] > best) {
            best = c.keys[e];
            *at = e;
        }
    return best;
}

/* Of each lane one of the chosen experts, in no order. */
DEVICE int choose_any(const tcu_router &r, const tcu_pairs &p, const float *logits, const choosing &c)
{
    int lane = threadIdx.x % 32, found = INT_MAX, at;
    make_keys(r, p, logits, c);
    uint64_t best = own_best(p, c, &at);
#pragma unroll 1
    for (int k = 0; k < p.top; k++) {
        int index = (int)__reduce_min_sync(0xffffffffu, best == best_key(best) ? (uint32_t)at : (uint32_t)INT_MAX);
        found = lane == k ? index : found;
        if (index == at) {
            c.keys[index] = 0;
            best = own_best(p, c, &at);
        }
        __syncwarp();
    }
    return found;
}

/* The same of up to 128 experts, without groups: keys stay in registers, and logits are loaded at once. */
DEVICE int choose_of_128(const tcu_router &r, const tcu_pairs &p, const float *logits, const choosing &c)
{
    int lane = threadIdx.x % 32;
    float z[4];
    uint64_t key[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        z[i] = lane + 32 * i < p.n_experts ? __ldcg(logits + lane + 32 * i) : 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int e = lane + 32 * i;
        bool there = e < p.n_experts;
        z[i] = r.bias && there ? __fadd_rn(z[i], r.bias[e]) : z[i];
        if (there)
            c.z[e] = z[i];
        key[i] = !there ? 0 : key_of(r.choice ? (double)exact_sigmoid(z[i]) + (double)r.choice[e] : (double)z[i]);
    }
    __syncwarp();
    return take_best<uint64_t, 4>(p, key);
}

/* Lane k gets the k-th in ascending order. */
DEVICE int sorted(const tcu_pairs &p, int found)
{
    int lane = threadIdx.x % 32, rank = 0, mine = 0;
#pragma unroll 1
    for (int k = 0; k < p.top; k++)
        rank += __shfl_sync(0xffffffffu, found, k) < found;
#pragma unroll 1
    for (int k = 0; k < p.top; k++) { /* to the lane of its rank; all lanes take part in both exchanges */
        int to = __shfl_sync(0xffffffffu, rank, k), e = __shfl_sync(0xffffffffu, found, k);
        mine = lane == to ? e : mine;
    }
    return mine;
}

/* As choose_row, by a warp with shared memory. */
DEVICE int choose_few(const tcu_router &r, const tcu_pairs &p, const float *logits, int row, const choosing &c)
{
    int lane = threadIdx.x % 32, mine = -1;
    float w = 0;
    if (row_present(r, row)) {
        bool small = p.n_experts <= 128 && (!r.choice || r.n_groups <= 1);
        mine = sorted(p, small ? choose_of_128(r, p, logits, c) : choose_any(r, p, logits, c));
        float score = lane < p.top ? c.z[mine] : -INFINITY;
        if (r.choice) {
            w = sigmoid_weight(r, p, score);
        } else {
            float max, sum = sum_of(p, r, c.z, score, &max);
            w = __fdiv_rn(expf(score - max), sum);
        }
    }
    if (lane < p.top) {
        p.chosen[row * p.top + lane] = mine;
        p.weight[row * p.top + lane] = w;
        if (mine < 0)
            p.pair_of[row * p.top + lane] = -1;
    }
    return mine;
}

/* ---- the order ---- */

struct few_order { /* -1: none, or not an expert's first pair */
    int32_t expert[THREADS], first[THREADS];
    int end; /* of the slots that have experts */
};

/* ---- norm, router, choice and order ---- */

/* Of a row in shared memory: an odd number of pieces of 16 bytes, so that eight rows lie in different banks. */
static __host__ __device__ int pitch_of(int k)
{
    return (k + 15) / 16 * 16 + 8;
}

__device__ unsigned tcu_route_ended; /* blocks of the launch that have made their logits */

#if __CUDA_ARCH__ >= 900

/* Pairs and tiles of so few rows that an expert has one tile, a slot a thread. A pair's number is how many come before it; an expert's
 * first pair makes the tile. */
DEVICE void order_few(const tcu_pairs &p, few_order &o)
{
    int s = threadIdx.x, room = tcu_tile_room(p.n * p.top, p.n_experts, p.tile_rows);
    int e = s < p.n * p.top ? o.expert[s] : -1, before = 0, same = 0, earlier = 0, at = 0, all = 0, pairs = 0;
    if (e >= 0)
        atomicMax(&o.end, s + 1);
    __syncthreads();
    int end = o.end;
#pragma unroll 2
    for (int i = 0; i < end; i++) {
        int other = o.expert[i];
        pairs += other >= 0;
        before += (unsigned)other < (unsigned)e; /* none is the largest */
        same += other == e;
        earlier += other == e && i < s;
    }
    o.first[s] = earlier ? -1 : e;
    __syncthreads();
#pragma unroll 2
    for (int i = 0; i < end; i++) {
        all += o.first[i] >= 0;
        at += (unsigned)o.first[i] < (unsigned)e;
    }
    if (e >= 0) {
        p.pair_of[s] = before + earlier;
        p.slot_of[before + earlier] = s;
        if (!earlier)
            p.tiles[at] = tcu_tile{ e, before, same };
    }
#pragma unroll 1
    for (int i = all + s; i < room; i += THREADS)
        p.tiles[i] = tcu_tile{ 0, 0, 0 };
    if (s < 2)
        p.start[p.n_experts + s] = s ? all : pairs;
}

DEVICE uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* The router's rows of a block's experts, one copy each. */
DEVICE void ask_router(const tcu_norm_route &p, bf16 *w, uint64_t *there)
{
    uint32_t barrier = shared_at(there), bytes = p.hidden * 2;
    asm volatile("mbarrier.init.shared.b64 [%0],1;\nfence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::"r"(barrier) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes * EXPERTS) : "memory");
    const bf16 *from = p.w + (int64_t)blockIdx.x * EXPERTS * p.hidden;
    uint32_t to = shared_at(w);
#pragma unroll 1
    for (int i = 0; i < EXPERTS; i++, from += p.hidden, to += pitch_of(p.hidden) * 2)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(to), "l"(from), "r"(bytes),
                     "r"(barrier)
                     : "memory");
}

DEVICE void await_router(const uint64_t *there)
{
    uint32_t done = 0;
    while (!done)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p,[%1],0;\nselp.u32 %0,1,0,p;\n}" : "=r"(done) : "r"(shared_at(there)) : "memory");
}

/* Bit i: row i is there. */
DEVICE uint32_t rows_present(const tcu_router &r, int n)
{
    int lane = threadIdx.x % 32;
    return __ballot_sync(0xffffffffu, lane < n && row_present(r, lane));
}

/* The norms of all rows; each block makes them for itself. */
template <int M> DEVICE void make_norms(const tcu_norm_route &p, bf16 *x)
{
    int n = p.hidden, pitch = pitch_of(n);
    float4 weights[M];
    norm_weights<M>(p.norm, n, weights);
    asm volatile("griddepcontrol.wait;" ::: "memory"); /* what makes h and y has ended */
    bool first = blockIdx.x == 0;
    uint32_t rows = rows_present(p.router, p.pairs.n);
#pragma unroll 1
    for (; rows; rows &= rows - 1) {
        int row = __ffs(rows) - 1;
        int64_t at = (int64_t)row * n;
        norm_row<M>(p.h + at, p.y ? p.y + at : NULL, first && p.h_out ? p.h_out + at : NULL, weights, p.eps, n, true, [&](int i, uint2 v) {
            *(uint2 *)(x + row * pitch + i * 4) = v;
            if (first)
                ((uint2 *)(p.a + at))[i] = v;
        });
        if (threadIdx.x < 2 && n % 16) /* the end of the last step */
            *(uint2 *)(x + row * pitch + n + threadIdx.x * 4) = make_uint2(0, 0);
    }
}

/* Logits of the block's experts and eight rows, by a warp: one chain along k. Lane 4 g + t gets those of expert g, rows 2 t and 2 t + 1. */
DEVICE void make_logits(const bf16 *w, const bf16 *x, int k, float acc[4])
{
    int lane = threadIdx.x % 32, pitch = pitch_of(k), at = (lane & 7) * pitch + (lane >> 3) * 8, k0 = 0;
    acc[0] = acc[1] = acc[2] = acc[3] = 0;
#pragma unroll 4
    for (; k0 + 32 <= k; k0 += 32) {
        uint32_t f[4], g[4];
        ldmatrix(f, w + at + k0);
        ldmatrix(g, x + at + k0);
        uint32_t a[2][4] = { { f[0], 0, f[1], 0 }, { f[2], 0, f[3], 0 } };
        mma(acc, a[0], g[0], g[1]);
        mma(acc, a[1], g[2], g[3]);
    }
    if (k0 < k) { /* the step's other half is not there, or zero */
        uint32_t f[4], g[4];
        at = (lane & 7) * pitch + (lane >> 3 & 1) * 8;
        ldmatrix(f, w + at + k0);
        ldmatrix(g, x + at + k0);
        uint32_t a[4] = { f[0], 0, f[1], 0 };
        mma(acc, a, g[0], g[1]);
    }
}

/* How many blocks of n have ended before this one; what they wrote can be read by the last. */
DEVICE unsigned next_turn(unsigned n)
{
    unsigned turn;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0,[%1],%2;" : "=r"(turn) : "l"(&tcu_route_ended), "r"(n - 1) : "memory");
    return turn;
}

template <int M> __global__ void __launch_bounds__(THREADS) norm_route(tcu_norm_route p)
{
    let_next_prepare();
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ few_order order;
    __shared__ uint64_t there;
    __shared__ bool last;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pitch = pitch_of(p.hidden);
    bf16 *w = (bf16 *)shared, *x = w + EXPERTS * pitch;
    if (threadIdx.x == 0)
        ask_router(p, w, &there);
    if (threadIdx.x < EXPERTS * 2 && p.hidden % 16) /* zero behind each row, which the copies leave */
        *(uint2 *)(w + threadIdx.x / 2 * pitch + p.hidden + threadIdx.x % 2 * 4) = make_uint2(0, 0);
    make_norms<M>(p, x);
    __syncthreads();
    if (warp * 8 < p.pairs.n) {
        float acc[4];
        await_router(&there);
        make_logits(w, x + warp * 8 * pitch, p.hidden, acc);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int row = warp * 8 + lane % 4 * 2 + e;
            if (row < p.pairs.n)
                p.logits[row * p.padded + blockIdx.x * EXPERTS + lane / 4] = acc[e];
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        last = next_turn(gridDim.x) == gridDim.x - 1;
        order.end = 0;
    }
    __syncthreads();
    if (!last)
        return;
    choosing c = choosing_at(shared, p.pairs.n_experts);
#pragma unroll 1
    for (int row = warp; row < p.pairs.n; row += THREADS / 32) {
        int mine = choose_few(p.router, p.pairs, p.logits + row * p.padded, row, c);
        if (lane < p.pairs.top)
            order.expert[row * p.pairs.top + lane] = mine;
    }
    __syncthreads();
    order_few(p.pairs, order);
}

#else
template <int M> __global__ void __launch_bounds__(THREADS) norm_route(tcu_norm_route)
{
}
#endif

/* ---- choice and order ---- */

__global__ void __launch_bounds__(CHOOSERS * 32) route_few(tcu_router r, const float *logits, tcu_pairs p)
{
    extern __shared__ __align__(16) unsigned char chooser[];
    __shared__ order_masks masks;
    __shared__ int32_t list[TCU_ORDER_SLOTS];
    int lane = threadIdx.x % 32;
    choosing c = choosing_at(chooser, p.n_experts);
    clear_masks(masks, p.n_experts);
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < p.n; row += CHOOSERS) {
        int mine = choose_few(r, p, logits + (int64_t)row * r.ld, row, c);
        if (lane < p.top)
            list[row * p.top + lane] = mine;
    }
    __syncthreads();
    order_rows(p, masks, [&](int s) { return list[s]; });
}

/* ---- launches ---- */

static size_t bytes_of(const tcu_norm_route *p)
{
    size_t rows = (size_t)(EXPERTS + TCU_ROUTE_ROWS) * pitch_of(p->hidden) * 2, choice = (size_t)THREADS / 32 * choosing_bytes(p->pairs.n_experts);
    return rows > choice ? rows : choice;
}

bool tcu_norm_route_here(const tcu_norm_route *p, size_t shared)
{
    return p->pairs.n <= TCU_ROUTE_ROWS && p->pairs.n * p->pairs.top <= THREADS && p->hidden <= 8 * ROW_PIECE && p->padded % EXPERTS == 0 &&
           bytes_of(p) + sizeof(few_order) + 1024 <= shared;
}

template <int M> static int run(const tcu_norm_route *p, tcu_stream stream)
{
    size_t bytes = bytes_of(p);
    cudaError_t e = cudaFuncSetAttribute(norm_route<M>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    return e ? e : launch_early(norm_route<M>, dim3(p->padded / EXPERTS), THREADS, bytes, stream, *p);
}

int tcu_norm_route_run(const tcu_norm_route *p, tcu_stream stream)
{
    int pieces = (p->hidden + ROW_PIECE - 1) / ROW_PIECE;
    return pieces <= 1   ? run<1>(p, stream) :
           pieces <= 2   ? run<2>(p, stream) :
           pieces <= 3   ? run<3>(p, stream) :
           pieces <= 4   ? run<4>(p, stream) :
                           run<8>(p, stream);
}

bool tcu_route_few_here(const tcu_pairs *p)
{
    return p->n <= ORDER_ROWS && p->n * p->top <= TCU_ORDER_SLOTS;
}

int tcu_route_few(const tcu_router *r, const float *logits, const tcu_pairs *p, tcu_stream stream)
{
    int bytes = CHOOSERS * choosing_bytes(p->n_experts);
    cudaError_t e = cudaFuncSetAttribute(route_few, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return e ? e : launch(route_few, dim3(1), CHOOSERS * 32, bytes, stream, *r, logits, *p);
}
