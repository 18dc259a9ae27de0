/* cuda_choice.cuh - the choice of a row's experts by a warp, their weights, and the order of few pairs by a block.
 *
 * Keys are numbers whose order as integers is that of the scores, so that the best of a warp is two or three reductions.
 */
#ifndef TKE_CUDA_CHOICE_CUH
#define TKE_CUDA_CHOICE_CUH

#include <limits.h>
#include "cuda/cuda_experts.h"
#include "cuda/cuda_rows.cuh"

/* exp(z - max) of the chosen, added in ascending order; or of all: every 32nd by a lane, then a tree. */
DEVICE float sum_of(const tcu_pairs &p, const tcu_router &r, const float *z, float mine, float *max)
{
    int lane = threadIdx.x % 32;
    float sum = 0;
    if (r.all) {
        float top = -INFINITY;
        for (int e = lane; e < p.n_experts; e += 32)
            top = fmaxf(top, z[e]);
        *max = warp_max(top);
        for (int e = lane; e < p.n_experts; e += 32)
            sum += expf(z[e] - *max);
        return warp_sum(sum);
    }
    *max = warp_max(lane < p.top ? mine : -INFINITY);
    float e = expf(mine - *max);
    for (int k = 0; k < p.top; k++)
        sum += __shfl_sync(0xffffffffu, e, k);
    return sum;
}

/* exp(-|x|) cannot overflow. */
DEVICE float exact_sigmoid(float x)
{
    float e = expf(-fabsf(x));
    return __fdiv_rn(x < 0 ? e : 1.0f, 1.0f + e);
}

/* Both zeros have one key, and what is not a number that of -infinity: it loses, and shows in the weights. No key is 0. */
DEVICE uint32_t key_of(float v)
{
    uint32_t u = __float_as_uint(v == v ? __fadd_rn(v, 0.0f) : -INFINITY);
    return u >> 31 ? ~u : u | 0x80000000u;
}

DEVICE uint64_t key_of(double v)
{
    uint64_t u = (uint64_t)__double_as_longlong(v == v ? __dadd_rn(v, 0.0) : -INFINITY);
    return u >> 63 ? ~u : u | 0x8000000000000000ull;
}

DEVICE uint32_t best_key(uint32_t key)
{
    return __reduce_max_sync(0xffffffffu, key);
}

DEVICE uint64_t best_key(uint64_t key)
{
    uint32_t high = best_key((uint32_t)(key >> 32)), low = best_key(key >> 32 == high ? (uint32_t)key : 0u);
    return (uint64_t)high << 32 | low;
}

/* The p.top experts with the largest keys, the lower among equals: of each lane one, in no order. A lane has every 32nd key; 0: there is
 * none. */
template <typename K, int EACH> DEVICE int take_best(const tcu_pairs &p, K (&key)[EACH])
{
    int lane = threadIdx.x % 32, mine = INT_MAX;
#pragma unroll 1
    for (int k = 0; k < p.top; k++) {
        K best = 0;
        int at = INT_MAX;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (key[i] > best) {
                best = key[i];
                at = lane + 32 * i;
            }
        int index = (int)__reduce_min_sync(0xffffffffu, best == best_key(best) ? (uint32_t)at : (uint32_t)INT_MAX);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            key[i] = index == lane + 32 * i ? 0 : key[i];
        mine = lane == k ? index : mine;
    }
    return mine;
}

/* The same by scores; score(e): -infinity = not this one. */
template <typename K, int EACH, typename F> DEVICE int best_experts(const tcu_pairs &p, F score)
{
    int lane = threadIdx.x % 32;
    K key[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++)
        key[i] = lane + 32 * i < p.n_experts ? key_of(score(lane + 32 * i)) : 0;
    return take_best<K, EACH>(p, key);
}

/* Sums are in double: the bias may be large and its differences small. */
DEVICE double sigmoid_score(const tcu_router &r, const float *z, int e)
{
    return (double)exact_sigmoid(z[e]) + (double)r.choice[e];
}

/* Bit g: experts of group g may be chosen. A lane has a group. */
DEVICE uint32_t kept_groups(const tcu_router &r, const float *z, int n_experts)
{
    int lane = threadIdx.x % 32, size = n_experts / r.n_groups;
    double best = -INFINITY, next = -INFINITY;
    if (r.n_groups <= 1)
        return 0xffffffffu;
    for (int e = lane * size; lane < r.n_groups && e < (lane + 1) * size; e++) {
        double x = sigmoid_score(r, z, e);
        next = x > best ? best : x > next ? x : next;
        best = x > best ? x : best;
    }
    uint64_t sum = lane < r.n_groups ? key_of(best + next) : 0;
    uint32_t kept = 0;
    for (int k = 0; k < r.kept_groups; k++) {
        int index = (int)__reduce_min_sync(0xffffffffu, sum == best_key(sum) ? (uint32_t)lane : 31u);
        kept |= 1u << index;
        sum = index == lane ? 0 : sum;
    }
    return kept;
}

/* The weight of the lane's expert: its sigmoid, divided by the sum over them, which is made in ascending order. */
DEVICE float sigmoid_weight(const tcu_router &r, const tcu_pairs &p, float score)
{
    float s = exact_sigmoid(score), sum = 0;
    for (int k = 0; k < p.top; k++)
        sum += __shfl_sync(0xffffffffu, s, k);
    return (r.normalised ? __fdiv_rn(s, sum + 1e-20f) : s) * r.scale;
}

template <int EACH> DEVICE int choose_of(const tcu_router &r, const float *z, const tcu_pairs &p)
{
    if (!r.choice)
        return best_experts<uint32_t, EACH>(p, [&](int e) { return z[e]; });
    uint32_t kept = kept_groups(r, z, p.n_experts);
    int size = p.n_experts / max(r.n_groups, 1);
    return best_experts<uint64_t, EACH>(p, [&](int e) {
        return r.n_groups <= 1 || (kept >> e / size & 1) ? sigmoid_score(r, z, e) : -(double)INFINITY;
    });
}

DEVICE int choose_experts(const tcu_router &r, const float *z, const tcu_pairs &p)
{
    return p.n_experts <= 128 ? choose_of<4>(r, z, p) : p.n_experts <= 256 ? choose_of<8>(r, z, p) : choose_of<TCU_MAX_EXPERTS / 32>(r, z, p);
}

DEVICE bool row_present(const tcu_router &r, int row)
{
    return !r.present || r.present[row] >= 0;
}

/* The experts of one row, by a warp; z: its logits, to which biases are added. Returns the lane's expert, in ascending order. */
DEVICE int choose_row(const tcu_router &r, float *z, const tcu_pairs &p, int row)
{
    int lane = threadIdx.x % 32;
    int32_t *chosen = p.chosen + (int64_t)row * p.top;
    float *weight = p.weight + (int64_t)row * p.top;
    if (!row_present(r, row)) {
        if (lane < p.top) {
            chosen[lane] = p.pair_of[(int64_t)row * p.top + lane] = -1;
            weight[lane] = 0;
        }
        return -1;
    }
    if (r.bias)
        for (int e = lane; e < p.n_experts; e += 32)
            z[e] = __fadd_rn(z[e], r.bias[e]);
    __syncwarp();
    int found = choose_experts(r, z, p), rank = 0, mine = 0;
    for (int k = 0; k < p.top; k++)
        rank += __shfl_sync(0xffffffffu, found, k) < found;
    for (int k = 0; k < p.top; k++) { /* to the lane of its rank */
        int to = __shfl_sync(0xffffffffu, rank, k), e = __shfl_sync(0xffffffffu, found, k);
        mine = lane == to ? e : mine;
    }
    float max, score = lane < p.top ? z[mine] : -INFINITY, w;
    if (r.choice) {
        w = sigmoid_weight(r, p, score);
    } else {
        float sum = sum_of(p, r, z, score, &max);
        w = __fdiv_rn(expf(score - max), sum);
    }
    if (lane < p.top) {
        chosen[lane] = mine;
        weight[lane] = w;
    }
    return mine;
}

/* The sum of x over the threads before this one; *all: of all. The block has whole warps. */
DEVICE int sum_before(int x, int *all)
{
    __shared__ int part[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sum = x;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        int other = __shfl_up_sync(0xffffffffu, sum, d);
        sum += lane >= d ? other : 0;
    }
    __syncthreads();
    if (lane == 31)
        part[warp] = sum;
    __syncthreads();
    int before = 0, whole = 0;
    for (int i = 0; i < (int)(blockDim.x / 32); i++) {
        before += i < warp ? part[i] : 0;
        whole += part[i];
    }
    *all = whole;
    return before + sum - x;
}

/* What an expert with so many pairs from `start` on has: its start, its tiles from tile `first` on. */
DEVICE void put_tiles(const tcu_pairs &p, int e, int start, int pairs, int first)
{
    p.start[e] = start;
    for (int i = 0; i < tcu_tiles_of(pairs, p.tile_rows); i++)
        p.tiles[first + i] = tcu_expert_tile(e, start, start + pairs, i, p.tile_rows);
}

/* The ends of both lists: tiles that are not needed are empty. */
DEVICE void end_tiles(const tcu_pairs &p, int pairs, int tiles)
{
    if (threadIdx.x == 0) {
        p.start[p.n_experts] = pairs;
        p.start[p.n_experts + 1] = tiles;
    }
    for (int i = tiles + threadIdx.x; i < tcu_tile_room(p.n * p.top, p.n_experts, p.tile_rows); i += blockDim.x)
        p.tiles[i] = tcu_tile{ 0, 0, 0 };
}

enum { ORDER_ROWS = 64, ORDER_THREADS = 512 }; /* of a block that orders pairs by masks of the rows that an expert has */

struct order_masks {
    uint32_t rows[TCU_MAX_EXPERTS][2];
    int32_t start[TCU_MAX_EXPERTS];
};

DEVICE void clear_masks(order_masks &m, int n_experts)
{
    for (int e = threadIdx.x; e < n_experts; e += blockDim.x)
        m.rows[e][0] = m.rows[e][1] = 0;
}

/* All pairs of up to ORDER_ROWS rows. expert_of(slot): -1 = none. The masks are clear, and a barrier has been passed since. */
template <typename F> DEVICE void order_rows(const tcu_pairs &p, order_masks &m, F expert_of)
{
    int slots = p.n * p.top, each = (p.n_experts + blockDim.x - 1) / blockDim.x, first = threadIdx.x * each;
    for (int s = threadIdx.x; s < slots; s += blockDim.x) {
        int e = expert_of(s), row = s / p.top;
        if (e >= 0)
            atomicOr(&m.rows[e][row / 32], 1u << row % 32);
    }
    __syncthreads();
    int pairs = 0, tiles = 0, all_pairs, all_tiles;
    for (int e = first; e < min(first + each, p.n_experts); e++) {
        int own = __popc(m.rows[e][0]) + __popc(m.rows[e][1]);
        pairs += own;
        tiles += tcu_tiles_of(own, p.tile_rows);
    }
    int start = sum_before(pairs, &all_pairs), tile = sum_before(tiles, &all_tiles);
    for (int e = first; e < min(first + each, p.n_experts); e++) {
        int own = __popc(m.rows[e][0]) + __popc(m.rows[e][1]);
        m.start[e] = start;
        put_tiles(p, e, start, own, tile);
        start += own;
        tile += tcu_tiles_of(own, p.tile_rows);
    }
    end_tiles(p, all_pairs, all_tiles);
    __syncthreads();
    for (int s = threadIdx.x; s < slots; s += blockDim.x) {
        int e = expert_of(s), row = s / p.top;
        if (e < 0)
            continue;
        uint32_t low = m.rows[e][0], high = m.rows[e][1], below = (1u << row % 32) - 1;
        int at = m.start[e] + (row < 32 ? __popc(low & below) : __popc(low) + __popc(high & below));
        p.pair_of[s] = at;
        p.slot_of[at] = s;
    }
}

#endif
