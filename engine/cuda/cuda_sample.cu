/* cuda_sample.cu - from logits to tokens on the card: temperature, top-k, top-p, the draw; the k likeliest.
 *
 * The mass of a token is exp((z - max) / T) as a whole number of 2^-44, so that sums are exact in any order and the draw
 * depends on the row alone. Filters keep what lies above a threshold of the logit and, of those equal to it, the lowest
 * ids; the draw walks ids in order. Biases and a constraint come before all of them, for the draw alone (log-probs are of all
 * logits): a bias is added in float, and tokens that are not allowed have a logit of -inf.
 */
#include "cuda/cuda_columns.cuh"
#include "cuda/cuda_kernels.h"

enum { THREADS = 1024, RAW = 1, PROCESSED = 2 };
enum { SLOTS = TCU_DRAW_SLOTS, PART_SLOTS = 32, PARTS = SLOTS / PART_SLOTS, PART_THREADS = 256 }; /* a part: of one block */
typedef unsigned long long u64;

DEVICE u64 max64(u64 a, u64 b)
{
    return a > b ? a : b;
}

/* MASKED: only tokens whose bit in `allowed` is set take part, and those in `biased` have a bias; either may be NULL. A
 * template, so that rows without both pay nothing. */
template <bool MASKED> struct row {
    const float *z;
    const uint32_t *allowed, *biased;
    const tcu_bias *biases;
    int n_biases, v;
    float max, temperature; /* max: of the tokens that take part */
    uint32_t least;         /* kept: key above it, or equal and among the first `equals` */
    u64 equals;
};

DEVICE bool has_bit(const uint32_t *bits, int i)
{
    return bits[i >> 5] >> (i & 31) & 1;
}

/* Of a token that has one. */
DEVICE float bias_of(const tcu_bias *list, int n, int token)
{
    int low = 0;
    while (low < n) {
        int middle = (low + n) / 2;
        if (list[middle].token < token)
            low = middle + 1;
        else
            n = middle;
    }
    return list[low].by;
}

template <bool M> DEVICE float logit_of(const row<M> &r, int i)
{
    if (!M)
        return r.z[i];
    if (r.allowed && !has_bit(r.allowed, i))
        return -INFINITY;
    return r.biased && has_bit(r.biased, i) ? __fadd_rn(r.z[i], bias_of(r.biases, r.n_biases, i)) : r.z[i];
}

/* Maps floats to integers of the same order. */
DEVICE uint32_t key_of(float z)
{
    uint32_t bits = __float_as_uint(z + 0.0f); /* -0 becomes +0 */
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Threads of a warp agree before one of them uses an atomic operation: those on 64 bits run one after the other. */
DEVICE u64 warp_max64(u64 x)
{
#pragma unroll
    for (int d = 16; d; d >>= 1)
        x = max64(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

/* Sums over the lanes up to this one. */
DEVICE u64 warp_upto(u64 x)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        u64 other = __shfl_up_sync(0xffffffffu, x, d);
        x += lane >= d ? other : 0;
    }
    return x;
}

/* The lane whose share holds the target, of shares in the order of lanes, or the last; *target becomes relative to it. */
DEVICE int lane_of(u64 share, u64 *target)
{
    u64 upto = warp_upto(share);
    unsigned hit = __ballot_sync(0xffffffffu, upto > *target);
    int lane = hit ? __ffs(hit) - 1 : 31;
    *target -= __shfl_sync(0xffffffffu, upto - share, lane);
    return lane;
}

template <bool M> DEVICE u64 mass_of(const row<M> &r, float z)
{
    return (u64)((double)expf((z - r.max) / r.temperature) * 0x1p44);
}

/* ---- thresholds: a radix search over the keys, best first ---- */

/* The key at which the running total of `weight` over descending keys reaches `want` (>= 1), among keys above r.least
 * or equal to it. before = total above that key. WEIGHT: 0 counts, 1 masses. */
template <int WEIGHT, bool M> DEVICE uint32_t search(const row<M> &r, u64 want, u64 *before)
{
    __shared__ u64 bins[256];
    __shared__ uint32_t chosen;
    __shared__ u64 passed;
    uint32_t prefix = 0;
    u64 above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += THREADS)
            bins[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < r.v; i += THREADS) {
            float z = logit_of(r, i);
            uint32_t key = key_of(z);
            if ((shift == 24 || (key ^ prefix) >> (shift + 8) == 0) && key >= r.least && z != -INFINITY)
                atomicAdd(&bins[key >> shift & 255], WEIGHT ? mass_of(r, z) : 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int digit = 255;
            u64 sum = above;
            for (; digit > 0 && sum + bins[digit] < want; digit--)
                sum += bins[digit];
            chosen = (uint32_t)digit;
            passed = sum;
        }
        __syncthreads();
        prefix |= chosen << shift;
        above = passed;
        __syncthreads();
    }
    *before = above;
    return prefix;
}

template <bool M, typename F> DEVICE u64 total(const row<M> &r, F f)
{
    u64 sum = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < r.v; i += THREADS)
        sum += f(logit_of(r, i));
    __shared__ u64 all;
    __syncthreads();
    if (threadIdx.x == 0)
        all = 0;
    __syncthreads();
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        atomicAdd(&all, sum);
    __syncthreads();
    return all;
}

template <bool M> DEVICE void keep_top_k(row<M> &r, u64 k)
{
    u64 before;
    u64 finite = total(r, [](float z) { return (u64)(z != -INFINITY); });
    if (k >= finite)
        return;
    r.least = search<0>(r, k, &before);
    r.equals = k - before;
}

/* Sum of the masses that are kept. Equal keys have equal masses. */
template <bool M> DEVICE u64 kept_mass(const row<M> &r)
{
    u64 above = total(r, [&](float z) { return z != -INFINITY && key_of(z) > r.least ? mass_of(r, z) : 0; });
    u64 count = total(r, [&](float z) { return (u64)(key_of(z) == r.least); });
    u64 one = total(r, [&](float z) { return key_of(z) == r.least ? (mass_of(r, z)) : 0; });
    return above + (count ? one / count * (count < r.equals ? count : r.equals) : 0);
}

template <bool M> DEVICE void keep_top_p(row<M> &r, double p)
{
    u64 all = kept_mass(r), before, want = (u64)ceil(p * (double)all);
    want = want < 1 ? 1 : want > all ? all : want;
    uint32_t key = search<1>(r, want, &before);
    u64 one = total(r, [&](float z) { return key_of(z) == key ? mass_of(r, z) : 0; });
    u64 count = total(r, [&](float z) { return (u64)(key_of(z) == key); });
    one = count ? one / count : 1;
    u64 equals = one ? (want - before + one - 1) / one : 1;
    if (key == r.least && equals > r.equals)
        equals = r.equals;
    r.least = key;
    r.equals = equals;
}

/* ---- the draw ---- */

DEVICE double uniform(u64 seed, uint32_t sample, uint32_t position)
{
    u64 folded = seed & 0x7fffffffffffffffull;
    uint32_t c0 = sample, c1 = position, c2 = 0, c3 = 0, k0 = (uint32_t)folded, k1 = (uint32_t)(folded >> 32);
    for (int round = 0; round < 10; round++) {
        u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (double)(((u64)c1 << 32 | c0) >> 11) * 0x1p-53;
}

typedef struct found { /* of a range of ids: mass above the threshold, ids that equal it */
    u64 above, same;
} found;

/* Of ids begin .. end - 1, by one warp; every lane gets the result. Sums are exact, so their order does not matter. */
template <bool M> DEVICE found look(const row<M> &r, int begin, int end)
{
    found f = { 0, 0 };
    for (int i = begin + threadIdx.x % 32; i < end; i += 32) {
        float z = logit_of(r, i);
        uint32_t key = key_of(z);
        f.same += key == r.least;
        f.above += key > r.least && z != -INFINITY ? mass_of(r, z) : 0;
    }
    for (int d = 16; d; d >>= 1) {
        f.above += __shfl_xor_sync(0xffffffffu, f.above, d);
        f.same += __shfl_xor_sync(0xffffffffu, f.same, d);
    }
    return f;
}

/* What a range keeps, with `before` equal ids before it; `one` is the mass of an equal id. */
template <bool M> DEVICE u64 kept(const row<M> &r, const found &f, u64 before, u64 one)
{
    u64 room = r.equals > before ? r.equals - before : 0;
    return f.above + one * (f.same < room ? f.same : room);
}

/* Each warp of the block takes a part of ids begin .. end - 1. Returns the first id of the part that holds the target;
 * *target and *same become relative to it. */
template <bool M> DEVICE int narrow_down(const row<M> &r, int begin, int end, u64 one, u64 *target, u64 *same, int *part_end)
{
    static_assert(THREADS / 32 == 32, "a lane for each warp");
    __shared__ found parts[THREADS / 32];
    int warps = THREADS / 32, size = (end - begin + warps - 1) / warps, warp = threadIdx.x / 32;
    int from = min(begin + warp * size, end), to = min(from + size, end);
    found f = look(r, from, to);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        parts[warp] = f;
    __syncthreads();
    found own = parts[threadIdx.x % 32];
    u64 before = *same + warp_upto(own.same) - own.same;
    int at = lane_of(kept(r, own, before, one), target);
    *same = __shfl_sync(0xffffffffu, before, at);
    from = min(begin + at * size, end);
    *part_end = min(from + size, end);
    return from;
}

/* The first id whose running mass is above the target, among ids begin .. end - 1, by one warp. */
template <bool M> DEVICE int pick(const row<M> &r, int begin, int end, u64 one, u64 target, u64 same)
{
    int lane = threadIdx.x % 32, last = begin;
    float next = begin + lane < end ? logit_of(r, begin + lane) : -INFINITY; /* read one turn ahead */
    for (int i0 = begin; i0 < end; i0 += 32) {
        int i = i0 + lane;
        float z = next;
        next = i + 32 < end ? logit_of(r, i + 32) : -INFINITY;
        uint32_t key = i < end ? key_of(z) : 0;
        unsigned equal = __ballot_sync(0xffffffffu, i < end && key == r.least);
        u64 before = same + __popc(equal & ((1u << lane) - 1));
        u64 mine = z == -INFINITY || key < r.least || (key == r.least && before >= r.equals) ? 0 : mass_of(r, z), upto = warp_upto(mine);
        unsigned hit = __ballot_sync(0xffffffffu, upto > target), some = __ballot_sync(0xffffffffu, mine > 0);
        if (hit)
            return i0 + __ffs(hit) - 1;
        last = some ? i0 + 31 - __clz(some) : last;
        target -= __shfl_sync(0xffffffffu, upto, 31);
        same += __popc(equal);
    }
    return last;
}

/* ---- slots: neighbouring ids of a row; their masses or best tokens are found by many blocks before the draw ---- */

DEVICE bool is_filtered(const tcu_draw &d, int v)
{
    return d.temperature != 0 && ((d.top_k > 0 && d.top_k < v) || d.top_p < 1);
}

DEVICE u64 place_of(float z, int id) /* the largest is the best token, the lower id on ties */
{
    return (u64)key_of(z) << 32 | (0xffffffffu - (uint32_t)id);
}

/* Are slots of use? */
DEVICE bool has_slots(const tcu_draw &d, int v)
{
    return d.want >= 0 && !d.allowed && !d.biased && !is_filtered(d, v);
}

DEVICE int slot_size(int v)
{
    return (v + SLOTS - 1) / SLOTS;
}

/* A part's slots, a warp each. */
DEVICE void weigh(const row<false> &r, bool greedy, int part, u64 *slots)
{
    int size = slot_size(r.v), lane = threadIdx.x % 32;
    for (int s = part * PART_SLOTS + threadIdx.x / 32; s < (part + 1) * PART_SLOTS; s += blockDim.x / 32) {
        int begin = min(s * size, r.v), end = min(begin + size, r.v);
        u64 mine = 0;
#pragma unroll 4
        for (int i = begin + lane; i < end; i += 32) {
            float x = r.z[i];
            if (greedy)
                mine = max64(mine, place_of(x, i));
            else
                mine += x != -INFINITY ? mass_of(r, x) : 0;
        }
        mine = greedy ? warp_max64(mine) : warp_sum(mine);
        if (lane == 0)
            slots[s] = mine;
    }
}

/* Block (part, draw); of rows without filter and constraint. */
__global__ void __launch_bounds__(PART_THREADS)
    weigh_parts(const float *z, int64_t ldz, int v, const float *max, const tcu_draw *draws, u64 *slots)
{
    tcu_draw d = draws[blockIdx.y];
    if (!has_slots(d, v))
        return;
    row<false> r = { z + d.want * ldz, NULL, NULL, NULL, 0, v, max[d.want], (float)d.temperature, 0, ~0ull };
    weigh(r, d.temperature == 0, blockIdx.x, slots + blockIdx.y * SLOTS);
}

/* Of a thread: two neighbouring slots. */
DEVICE ulonglong2 own_slots(const u64 *slots)
{
    static_assert(SLOTS == 2 * THREADS, "two slots for each thread");
    return __ldcg((const ulonglong2 *)slots + threadIdx.x);
}

/* The slot that the draw u falls into; *target becomes relative to its first id. Returns the sum of all slots. */
DEVICE u64 choose_slot(const u64 *slots, double u, int *slot, u64 *target)
{
    static_assert(THREADS / 32 == 32, "a lane for each warp");
    __shared__ u64 warps[32], rest;
    __shared__ int chosen;
    ulonglong2 own = own_slots(slots);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 upto = warp_upto(own.x + own.y);
    if (lane == 31)
        warps[warp] = upto;
    __syncthreads();
    u64 through = warp_upto(warps[lane]), all = __shfl_sync(0xffffffffu, through, 31), before = __shfl_sync(0xffffffffu, through, warp);
    before += upto - warps[warp] - own.x - own.y;
    u64 left = (u64)(u * (double)all);
    left = left >= all ? all - 1 : left;
    if (left >= before && left - before < own.x + own.y) { /* one thread's */
        bool second = left - before >= own.x;
        chosen = threadIdx.x * 2 + second;
        rest = left - before - (second ? own.x : 0);
    }
    __syncthreads();
    *slot = chosen;
    *target = rest;
    return all;
}

/* slots: masses of the row's, if they are known. */
template <bool M> DEVICE int draw(const row<M> &r, double u, const u64 *slots, u64 *sum_out)
{
    __shared__ int token;
    u64 all, one = 0, same = 0, target;
    int begin, end;
    if (slots) {
        int slot, size = slot_size(r.v);
        all = choose_slot(slots, u, &slot, &target);
        begin = slot * size;
        end = min(begin + size, r.v);
    } else {
        all = total(r, [&](float z) { return z != -INFINITY && key_of(z) > r.least ? mass_of(r, z) : 0; });
        if (r.least) { /* equal ids have equal masses */
            u64 count = total(r, [&](float z) { return (u64)(key_of(z) == r.least); });
            u64 mass = total(r, [&](float z) { return key_of(z) == r.least ? mass_of(r, z) : 0; });
            one = count ? mass / count : 0;
            all += one * (count < r.equals ? count : r.equals);
        }
        target = (u64)(u * (double)all);
        target = target >= all ? all - 1 : target;
        begin = narrow_down(r, 0, r.v, one, &target, &same, &end);
        begin = narrow_down(r, begin, end, one, &target, &same, &end);
    }
    if (threadIdx.x < 32) {
        int found = pick(r, begin, end, one, target, same);
        if (threadIdx.x == 0)
            token = found;
    }
    __syncthreads();
    *sum_out = all;
    return token;
}

template <bool M> DEVICE int best(const row<M> &r, const u64 *slots)
{
    __shared__ u64 top;
    if (threadIdx.x == 0)
        top = 0;
    __syncthreads();
    u64 mine = 0;
    if (slots) {
        ulonglong2 own = own_slots(slots);
        mine = max64(own.x, own.y);
    } else
        for (int i = threadIdx.x; i < r.v; i += THREADS)
            mine = max64(mine, place_of(logit_of(r, i), i));
    mine = warp_max64(mine);
    if (threadIdx.x % 32 == 0)
        atomicMax(&top, mine);
    __syncthreads();
    return (int)(0xffffffffu - (uint32_t)top);
}

typedef struct row_norm { /* of all logits of a row */
    float max, log_sum;
} row_norm;

/* sum: of the masses that are kept */
template <bool M> DEVICE float log_prob(const row<M> &r, row_norm all, int token, const tcu_draw &d, u64 sum)
{
    float z = r.z[token];
    if (d.logprobs == PROCESSED && d.temperature != 0)
        return (float)log((double)mass_of(r, logit_of(r, token)) / (double)sum);
    if (d.logprobs == RAW || d.temperature == 0 || d.temperature == 1)
        return __fsub_rn(__fsub_rn(z, all.max), all.log_sum);
    row<false> whole = { r.z, NULL, NULL, NULL, 0, r.v, all.max, r.temperature, 0, ~0ull };
    u64 masses = total(whole, [&](float x) { return mass_of(whole, x); });
    return (float)(((double)z - all.max) / d.temperature - log((double)masses * 0x1p-44));
}

DEVICE tcu_drawn no_token(void)
{
    tcu_drawn none = {};
    none.token = -1;
    return none;
}

/* A row of logits that has a distribution; slots: of the row, or NULL. */
template <bool M> DEVICE tcu_drawn draw_one(row<M> &r, row_norm all, const tcu_draw &d, double u, const u64 *slots)
{
    tcu_drawn result = {};
    u64 sum = 1;
    if (M || d.temperature == 0)
        result.token = best(r, slots);
    if (M) {
        r.max = logit_of(r, result.token);
        if (r.max == -INFINITY) /* nothing is allowed */
            return no_token();
    }
    if (d.temperature != 0) {
        if (d.top_k > 0 && d.top_k < r.v)
            keep_top_k(r, (u64)d.top_k);
        if (d.top_p < 1)
            keep_top_p(r, d.top_p);
        result.token = draw(r, u, slots, &sum);
    }
    result.logprob = log_prob(r, all, result.token, d, sum);
    return result;
}

DEVICE double uniform_of(const tcu_draw &d)
{
    return uniform(d.seed, d.sample, d.position);
}

/* A row of logits; slots: known if has_slots. */
DEVICE tcu_drawn draw_row(const float *z, int v, row_norm all, const tcu_draw &d, double u, const u64 *slots)
{
    if (!isfinite(all.max) || !isfinite(all.log_sum))
        return no_token();
    if (d.allowed || d.biased) {
        row<true> r = { z, d.allowed, d.biased, d.biases, d.n_biases, v, 0, (float)d.temperature, 0, ~0ull };
        return draw_one(r, all, d, u, NULL);
    }
    row<false> r = { z, NULL, NULL, NULL, 0, v, all.max, (float)d.temperature, 0, ~0ull };
    return draw_one(r, all, d, u, has_slots(d, v) ? slots : NULL);
}

__global__ void __launch_bounds__(THREADS) sample(const float *z, int64_t ldz, int v, const float *max, const float *log_sum,
                                                  const tcu_draw *draws, const u64 *slots, tcu_drawn *out)
{
    tcu_draw d = draws[blockIdx.x];
    if (d.want < 0)
        return;
    tcu_drawn result = draw_row(z + d.want * ldz, v, { max[d.want], log_sum[d.want] }, d, uniform_of(d), slots + blockIdx.x * SLOTS);
    if (threadIdx.x == 0)
        out[blockIdx.x] = result;
}

/* ---- very few rows: log-sum-exp, masses and the draw in one launch ---- */

enum { OWN_CHAINS = CHAINS / PARTS }; /* of a block */

typedef struct chain_part { /* of OWN_CHAINS chains, [column / CHAIN_STEP][chain] */
    float4 *x;              /* columns, then their powers */
    float *top, *shrink;
} chain_part;

DEVICE int chain_length(int v)
{
    return (v + CHAIN_STEP - 1) / CHAIN_STEP;
}

/* What add_columns adds to chains first, first + 1, ..., by all threads: the largest number so far is known before the sums are. */
DEVICE void find_powers(const float *z, int v, int first, const chain_part &p)
{
    int n = chain_length(v) * OWN_CHAINS;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        int at = i / OWN_CHAINS * CHAIN_STEP + (first + i % OWN_CHAINS) * 4;
        float4 none = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY), x = at < v ? *(const float4 *)(z + at) : none;
        x.y = at + 1 < v ? x.y : -INFINITY; /* ldz is a multiple of 8 */
        x.z = at + 2 < v ? x.z : -INFINITY;
        x.w = at + 3 < v ? x.w : -INFINITY;
        p.x[i] = x;
        p.top[i] = fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += THREADS) {
        float before = -INFINITY;
#pragma unroll 8
        for (int j = i % OWN_CHAINS; j < i; j += OWN_CHAINS)
            before = fmaxf(before, p.top[j]);
        float max = fmaxf(before, p.top[i]), base = max == -INFINITY ? 0 : max;
        float4 x = p.x[i];
        p.x[i] = make_float4(__expf(__fsub_rn(x.x, base)), __expf(__fsub_rn(x.y, base)), __expf(__fsub_rn(x.z, base)),
                             __expf(__fsub_rn(x.w, base)));
        p.shrink[i] = max == before ? 1 : __expf(__fsub_rn(before, max));
    }
    __syncthreads();
}

/* The chain that add_columns makes of the columns. Powers past the end of the row are 0, which changes no sum. */
DEVICE running add_chain(const chain_part &p, int v, int chain)
{
    running r = { -INFINITY, 0 };
#pragma unroll 4
    for (int i = chain; i < chain_length(v) * OWN_CHAINS; i += OWN_CHAINS) {
        float4 e = p.x[i];
        r.max = fmaxf(r.max, p.top[i]);
        r.sum = __fmul_rn(r.sum, p.shrink[i]);
        r.sum = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(r.sum, e.x), e.y), e.z), e.w);
    }
    return r;
}

/* By every warp. */
DEVICE float largest(const float *tops, int n)
{
    float x = -INFINITY;
    for (int i = threadIdx.x % 32; i < n; i += 32)
        x = max_nan(x, tops[i]);
    return warp_max_nan(x);
}

/* Is this the last of n blocks to arrive here? It sees what the others wrote before. */
DEVICE bool is_last(uint32_t *turns, uint32_t n)
{
    __shared__ uint32_t turn;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        turn = atomicAdd(turns, 1);
        __threadfence();
    }
    __syncthreads();
    return turn % n == n - 1;
}

/* To memory of the host, which waits for it. */
DEVICE void put_marked(tcu_drawn *to, const tcu_drawn &d, uint32_t mark)
{
    u64 a = (u64)mark << 32 | (uint32_t)d.token, b = (u64)mark << 32 | __float_as_uint(d.logprob);
    asm volatile("st.relaxed.sys.global.v2.u64 [%0],{%1,%2};" ::"l"(to), "l"(a), "l"(b) : "memory");
}

/* Block (part, row): some chains and slots. The last block of a row draws. */
__global__ void __launch_bounds__(THREADS)
    sum_and_draw(const float *z, int64_t ldz, int v, const float *tops, int n_tops, const tcu_draw *draws, running *chains, u64 *slots,
                 uint32_t *turns, const uint32_t *mark, tcu_drawn *out)
{
    extern __shared__ float4 room[];
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    int n = chain_length(v) * OWN_CHAINS, chain = (int)threadIdx.x - (THREADS - OWN_CHAINS); /* by a warp that has found few powers */
    chain_part p = { room, (float *)(room + n), (float *)(room + n) + n };
    tcu_draw d = draws[blockIdx.y];
    z += blockIdx.y * ldz;
    chains += blockIdx.y * CHAINS;
    slots += blockIdx.y * SLOTS;
    float top = largest(tops + blockIdx.y * n_tops, n_tops);
    find_powers(z, v, blockIdx.x * OWN_CHAINS, p);
    row<false> r = { z, NULL, NULL, NULL, 0, v, top, (float)d.temperature, 0, ~0ull };
    double u = uniform_of(d);
    if (chain >= 0)
        chains[blockIdx.x * OWN_CHAINS + chain] = add_chain(p, v, chain);
    __syncwarp();
    if (has_slots(d, v))
        weigh(r, d.temperature == 0, blockIdx.x, slots);
    if (!is_last(turns + blockIdx.y, PARTS))
        return;
    float2 own = __ldcg((const float2 *)chains + threadIdx.x);
    float sum = block_sum(share_of({ own.x, own.y }, top));
    tcu_drawn result = draw_row(z, v, { top, logf(sum) }, d, u, slots);
    if (threadIdx.x == 0)
        put_marked(out + blockIdx.y, result, *mark);
}

__global__ void __launch_bounds__(THREADS) top_k(const float *z, int64_t ldz, int v, const float *max, const float *log_sum,
                                                 const int32_t *which, const int32_t *ks, int32_t *tokens, float *lp, int ld)
{
    __shared__ u64 top;
    int w = which[blockIdx.x], k = ks[blockIdx.x];
    const float *row = z + w * ldz;
    u64 last = ~0ull;
    for (int j = 0; j < k; j++) {
        __syncthreads();
        if (threadIdx.x == 0)
            top = 0;
        __syncthreads();
        u64 mine = 0;
        for (int i = threadIdx.x; i < v; i += THREADS) {
            u64 at = (u64)key_of(row[i]) << 32 | (0xffffffffu - (uint32_t)i);
            mine = at < last && at > mine ? at : mine;
        }
        mine = warp_max64(mine);
        if (threadIdx.x % 32 == 0)
            atomicMax(&top, mine);
        __syncthreads();
        last = top;
        if (threadIdx.x == 0) {
            int token = last ? (int)(0xffffffffu - (uint32_t)last) : 0;
            tokens[blockIdx.x * (int64_t)ld + j] = token;
            lp[blockIdx.x * (int64_t)ld + j] = last ? (row[token] - max[w]) - log_sum[w] : -99999.0f;
        }
    }
}

int tcu_sample(const float *z, int64_t ldz, int32_t v, const float *max, const float *log_sum, const tcu_draw *draws, int32_t n,
               uint64_t *slots, tcu_drawn *out, tcu_stream stream)
{
    for (int32_t i = 0; i < n; i += TCU_DRAW_GROUP) {
        int32_t group = n - i < TCU_DRAW_GROUP ? n - i : TCU_DRAW_GROUP;
        weigh_parts<<<dim3(PARTS, group), PART_THREADS, 0, stream>>>(z, ldz, v, max, draws + i, (u64 *)slots);
        sample<<<group, THREADS, 0, stream>>>(z, ldz, v, max, log_sum, draws + i, (const u64 *)slots, out + i);
    }
    return cudaGetLastError();
}

int tcu_sum_and_draw(const float *z, int64_t ldz, int32_t v, const float *tops, int32_t n_tops, const tcu_draw *draws, int32_t rows,
                     float *sum_parts, uint64_t *slots, uint32_t *turns, const uint32_t *mark, tcu_drawn *out, tcu_stream stream)
{
    size_t shared = (size_t)(v + CHAIN_STEP - 1) / CHAIN_STEP * OWN_CHAINS * (sizeof(float4) + 2 * sizeof(float));
    cudaLaunchAttribute early = {}; /* blocks start as soon as those of the launch before end, and wait for the last there */
    cudaLaunchConfig_t c = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = dim3(PARTS, rows);
    c.blockDim = dim3(THREADS);
    c.dynamicSmemBytes = shared;
    c.stream = stream;
    c.attrs = &early;
    c.numAttrs = 1;
    return cudaLaunchKernelEx(&c, sum_and_draw, z, ldz, (int)v, tops, (int)n_tops, draws, (running *)sum_parts, (u64 *)slots, turns, mark,
                              out);
}

int tcu_top_k(const float *z, int64_t ldz, int32_t v, const float *max, const float *log_sum, const int32_t *which,
              const int32_t *ks, int32_t n, int32_t *tokens, float *lp, int32_t ld, tcu_stream stream)
{
    if (!n)
        return 0;
    top_k<<<n, THREADS, 0, stream>>>(z, ldz, v, max, log_sum, which, ks, tokens, lp, ld);
    return cudaGetLastError();
}
