/* cuda_few.cu - products of 17 to 64 rows by warpgroups, an adapter's part included, in one launch (compute capability 9.0a).
 *
 * A block has all rows of x and 8 NT rows of the matrix, and adds up along k in the order of every product. The copy engine brings
 * both; blocks that stand together in a cluster bring a part of x each, for all of them, because x read by every block would be more
 * bytes than the matrix. With adapters the first blocks make low = A x, 16 rows and 32 columns each, while the others multiply; these
 * then wait until low is there, add scale B low to their sums, and round once. Low alone is a launch of such blocks.
 */
#include "cuda/cuda_bars.cuh"
#include "cuda/cuda_kernels.h"
#include "cuda/cuda_wgmma.cuh"

#include <cuda.h>

enum { ROWS = 64, BK = 64, SHARE = 4, THREADS = 256, MULTIPLY = 128, ROOM = 104 * 1024 };
enum { X_BYTES = ROWS * BK * 2 };
/* of low: rows of x, of A, numbers along k of a stage */
enum { LOW_ROWS = 16, LOW_COLS = 32, LOW_BK = 128, LOW_STAGE = (LOW_ROWS + LOW_COLS) * LOW_BK, LOW_STAGES = 8 };
enum { RANK_STEPS = TCU_STRIP_RANK / 16 };

typedef struct job { /* y[m][n] = x[m][k] w[n][k]^T and what adapters add; blocks before n_low make low */
    const bf16 *x;
    void *y;
    const float *bias;
    int64_t ldy;
    int m, n, k, n_low, per_tile;
    bool wide;
    tcu_lora lora;
    bf16 *low;
    uint32_t *turn; /* blocks of low that are done, blocks that have seen it; 0 between launches */
} job;

#if HAS_WGMMA

/* ---- low ---- */

typedef struct low_tile { /* of one block */
    const bf16 *x, *a;
    bf16 *to;
    int rows, columns, k, ld;
} low_tile;

/* False if the block has nothing to do. */
DEVICE bool find_low(const job &p, low_tile *at)
{
    int i = (int)blockIdx.x / p.per_tile, n0 = (int)blockIdx.x % p.per_tile * LOW_COLS;
    if (i >= p.lora.n_tiles)
        return false;
    tcu_tile t = p.lora.tiles[i];
    if (t.segment < 0)
        return false;
    const tcu_segment &s = p.lora.segments[t.segment];
    if (!s.rank)
        return false;
    const tcu_group &g = s.groups[p.lora.group];
    *at = { p.x + (int64_t)t.row * p.k, s.operands + g.a + (int64_t)n0 * p.k, p.low + (int64_t)t.row * p.lora.ld_low + n0,
            t.n, g.n * s.padded - n0, p.k, p.lora.ld_low };
    return at->columns > 0;
}

/* Four warps bring 16 bytes at a time: two pieces of x, four of A for each thread and stage. */
DEVICE void bring_low(const low_tile &t, bf16 *ring, uint32_t full, uint32_t empty)
{
    int thread = threadIdx.x - MULTIPLY, r = thread / 16, c = thread % 16 * 8;
    const bf16 *x = t.x + (int64_t)r * t.k + c, *a = t.a + (int64_t)r * t.k + c;
    int64_t apart = (int64_t)8 * t.k;
    bf16 *to = ring + swizzle<LOW_BK>(r, thread % 16);
#pragma unroll 1
    for (int i = 0, k0 = 0; k0 < t.k; i++, k0 += LOW_BK) {
        int stage = i % LOW_STAGES;
        bool there = k0 + c < t.k;
        if (i >= LOW_STAGES)
            wait_for(empty + stage * 8, (i / LOW_STAGES - 1) & 1);
        bf16 *at = to + stage * LOW_STAGE;
#pragma unroll
        for (int j = 0; j < LOW_ROWS / 8; j++) {
            bool valid = there && r + j * 8 < t.rows;
            copy16(at + j * 8 * LOW_BK, valid ? x + j * apart + k0 : t.x, valid);
        }
#pragma unroll
        for (int j = 0; j < LOW_COLS / 8; j++) {
            bool valid = there && r + j * 8 < t.columns;
            copy16(at + (LOW_ROWS + j * 8) * LOW_BK, valid ? a + j * apart + k0 : t.a, valid);
        }
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full + stage * 8) : "memory");
    }
    copy_wait<0>();
}

typedef struct low_operands { /* of a stage */
    uint32_t x[LOW_BK / 16][4], a[LOW_BK / 32][4];
} low_operands;

DEVICE void take_low(low_operands &o, int i, const bf16 *ring, uint32_t full, uint32_t empty)
{
    int lane = threadIdx.x % 32, stage = i % LOW_STAGES;
    const bf16 *tx = ring + stage * LOW_STAGE, *ta = tx + LOW_ROWS * LOW_BK;
    wait_for(full + stage * 8, i / LOW_STAGES & 1);
#pragma unroll
    for (int s = 0; s < LOW_BK / 16; s++)
        ldmatrix(o.x[s], tx + swizzle<LOW_BK>(lane & 15, s * 2 + (lane >> 4)));
#pragma unroll
    for (int s = 0; s < LOW_BK / 32; s++)
        ldmatrix(o.a[s], ta + swizzle<LOW_BK>(threadIdx.x / 32 * 8 + (lane & 7), s * 4 + (lane >> 3)));
    __syncwarp();
    if (lane == 0)
        arrive(empty + stage * 8);
}

DEVICE void add_low(float acc[4], const low_operands &o)
{
#pragma unroll
    for (int s = 0; s < LOW_BK / 16; s++)
        mma(acc, o.x[s], o.a[s / 2][s % 2 * 2], o.a[s / 2][s % 2 * 2 + 1]);
}

/* A warp has eight columns: one chain, and the operands of the next stage are on their way meanwhile. */
DEVICE void multiply_low(const low_tile &t, const bf16 *ring, uint32_t full, uint32_t empty)
{
    int stages = (t.k + LOW_BK - 1) / LOW_BK, lane = threadIdx.x % 32, column = threadIdx.x / 32 * 8 + lane % 4 * 2;
    low_operands o[2];
    float acc[4] = {};
    take_low(o[0], 0, ring, full, empty);
#pragma unroll 1
    for (int i = 0; i < stages; i += 2) {
        if (i + 1 < stages)
            take_low(o[1], i + 1, ring, full, empty);
        add_low(acc, o[0]);
        if (i + 1 >= stages)
            break;
        if (i + 2 < stages)
            take_low(o[0], i + 2, ring, full, empty);
        add_low(acc, o[1]);
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (lane / 4 + half * 8 < t.rows && column < t.columns)
            *(uint32_t *)(t.to + (int64_t)(lane / 4 + half * 8) * t.ld + column) = pack(acc[half * 2], acc[half * 2 + 1]);
}

DEVICE void make_low(const job &p, bf16 *ring, uint32_t bars)
{
    uint32_t full = bars, empty = bars + LOW_STAGES * 8;
    low_tile t;
    bool any = find_low(p, &t);
    if (threadIdx.x < LOW_STAGES) {
        make_barrier(full + threadIdx.x * 8, THREADS - MULTIPLY);
        make_barrier(empty + threadIdx.x * 8, MULTIPLY / 32);
    }
    __syncthreads();
    if (any && threadIdx.x < MULTIPLY)
        multiply_low(t, ring, full, empty);
    else if (any)
        bring_low(t, ring, full, empty);
    __syncthreads();
    if (p.turn && threadIdx.x == 0) {
        __threadfence();
        atomicAdd(p.turn, 1u);
    }
}

/* ---- products ---- */

#define ONE(n) "%" #n
#define FOUR(a, b, c, d) ONE(a) "," ONE(b) "," ONE(c) "," ONE(d)
#define N_8  FOUR(0, 1, 2, 3)
#define N_16 N_8 "," FOUR(4, 5, 6, 7)
#define N_24 N_16 "," FOUR(8, 9, 10, 11)
#define N_32 N_24 "," FOUR(12, 13, 14, 15)
#define N_48 N_32 "," FOUR(16, 17, 18, 19) "," FOUR(20, 21, 22, 23)
#define N_64 N_48 "," FOUR(24, 25, 26, 27) "," FOUR(28, 29, 30, 31)
#define N_96 N_64 "," FOUR(32, 33, 34, 35) "," FOUR(36, 37, 38, 39) "," FOUR(40, 41, 42, 43) "," FOUR(44, 45, 46, 47)
#define SUMS_4(x, i) GMMA_SUMS(x, i), GMMA_SUMS(x, i + 1), GMMA_SUMS(x, i + 2), GMMA_SUMS(x, i + 3)

/* c[64][N] += x[64][16] w[N][16], both in shared memory. */
#define PRODUCT(TILES, N, A, B, ...)                                                                              \
    DEVICE void multiply(float (&c)[TILES][4], uint64_t x, uint64_t w)                                            \
    {                                                                                                             \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" N_##N "},%" #A ",%" #B ",1,1,1,0,0;" \
                     : __VA_ARGS__                                                                                \
                     : "l"(x), "l"(w));                                                                           \
    }
PRODUCT(1, 8, 4, 5, GMMA_SUMS(c, 0))
PRODUCT(2, 16, 8, 9, GMMA_SUMS(c, 0), GMMA_SUMS(c, 1))
PRODUCT(3, 24, 12, 13, GMMA_SUMS(c, 0), GMMA_SUMS(c, 1), GMMA_SUMS(c, 2))
PRODUCT(4, 32, 16, 17, SUMS_4(c, 0))
PRODUCT(6, 48, 24, 25, SUMS_4(c, 0), GMMA_SUMS(c, 4), GMMA_SUMS(c, 5))
PRODUCT(8, 64, 32, 33, GMMA_SUMS_8(c, 0))
PRODUCT(12, 96, 48, 49, GMMA_SUMS_8(c, 0), SUMS_4(c, 8))

/* A tile of rows of 128 bytes; 1024 from eight of them to the next. */
DEVICE uint64_t tile_at(uint32_t at)
{
    return (uint64_t)(1024 / 16 | 1u << 30) << 32 | (at >> 4 | 1u << 16);
}

DEVICE uint32_t rank_in_cluster(void)
{
    uint32_t r;
    asm("mov.u32 %0,%%cluster_ctarank;" : "=r"(r));
    return r;
}

DEVICE void cluster_meet(void)
{
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/* Arrives at the same barrier of block `rank` of the cluster. */
DEVICE void arrive_at(uint32_t bar, uint32_t rank)
{
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there,%0,%1;\nmbarrier.arrive.shared::cluster.b64 _,[there];\n}" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}

template <int NT> struct strip_ring {
    enum { W_BYTES = NT * 8 * BK * 2, STAGE = X_BYTES + W_BYTES, STAGES = ROOM / STAGE < 12 ? ROOM / STAGE : 12 };
    static_assert((int)W_BYTES % 1024 == 0, "tiles begin at multiples of 1024 bytes");
};

/* Rows of the matrix of a stage; rows of x, for all blocks of the cluster. */
DEVICE void bring_rows(const void *w, int n0, int i, uint32_t to, uint32_t bar, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0],[%1,{%2,%3,%4}],[%5],%6;" ::"r"(to),
                 "l"(w), "r"(0), "r"(n0), "r"(i), "r"(bar), "l"(policy)
                 : "memory");
}

DEVICE void bring_share(const void *x, uint32_t rank, int i, uint32_t stage, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0],[%1,{%2,%3,%4}],[%5],%6;" ::"r"(stage + rank * (X_BYTES / SHARE)),
                 "l"(x), "r"(0), "r"((int)rank * (ROWS / SHARE)), "r"(i), "r"(bar), "h"((uint16_t)((1 << SHARE) - 1))
                 : "memory");
}

/* The first stages' rows of the matrix need nobody else: they are asked for before the cluster meets. */
template <int NT> DEVICE void bring_first(const void *w, const job &p, int n0, uint32_t ring, uint32_t full)
{
    typedef strip_ring<NT> R;
    uint64_t policy = read_once();
#pragma unroll 1
    for (int i = 0; i < min(p.k / BK, (int)R::STAGES); i++) {
        expect(full + i * 8, R::STAGE);
        bring_rows(w, n0, i, ring + i * R::STAGE + X_BYTES, full + i * 8, policy);
    }
}

/* One thread brings the matrix's rows, and the block's share of x. */
template <int NT> DEVICE void bring(const void *x, const void *w, const job &p, int n0, uint32_t ring, uint32_t full, uint32_t empty)
{
    typedef strip_ring<NT> R;
    uint32_t rank = rank_in_cluster();
    uint64_t policy = read_once();
#pragma unroll 1
    for (int i = 0, stage = 0, phase = 1; i < p.k / BK; i++) {
        uint32_t bar = full + stage * 8, at = ring + stage * R::STAGE;
        if (i >= R::STAGES) {
            wait_for(empty + stage * 8, phase); /* of all blocks of the cluster */
            expect(bar, R::STAGE);
            bring_rows(w, n0, i, at + X_BYTES, bar, policy);
        }
        bring_share(x, rank, i, at, bar);
        if (++stage == R::STAGES)
            stage = 0, phase ^= 1;
    }
}

template <int NT> DEVICE void multiply_strip(float (&acc)[NT][4], int k, uint32_t ring, uint32_t full, uint32_t empty)
{
    typedef strip_ring<NT> R;
    int stages = k / BK, lane = threadIdx.x % 32, before = 0;
    gmma_ready(acc);
#pragma unroll 1
    for (int i = 0, stage = 0, phase = 0; i < stages; i++) {
        uint32_t at = ring + stage * R::STAGE;
        wait_for(full + stage * 8, phase);
        uint64_t x = tile_at(at), w = tile_at(at + X_BYTES);
        gmma_begin();
#pragma unroll
        for (int s = 0; s < BK / 16; s++)
            multiply(acc, x + s * 2, w + s * 2);
        gmma_commit();
        gmma_wait<1>();
        if (i && lane < SHARE)
            arrive_at(empty + before * 8, lane);
        before = stage;
        if (++stage == R::STAGES)
            stage = 0, phase ^= 1;
    }
    gmma_wait<0>();
    gmma_ready(acc);
}

typedef struct adapted { /* rows of one tile and their adapter, in shared memory */
    int row, n, k; /* k: padded rank; 0 = nothing is added */
    float scale;
    const bf16 *b[TCU_GROUP_MAX];
} adapted;

enum { KNOWN = 2, KNOWN_THREADS = MULTIPLY + 32 }; /* barrier: `tiles` is filled in */

/* What has to be looked up, by a warp that does not multiply. It also asks for the rows of B that the block adds, so that they wait in the
 * second cache. */
DEVICE void look_up(const job &p, adapted *tiles, int n0, int columns)
{
    int lane = threadIdx.x % 32, end = min(n0 + columns, p.n);
    for (int i = lane; i < p.lora.n_tiles; i += 32) {
        tcu_tile t = p.lora.tiles[i];
        adapted to = { t.row, t.n };
        if (t.segment >= 0) {
            const tcu_segment &s = p.lora.segments[t.segment];
            const tcu_group &g = s.groups[p.lora.group];
            to.k = s.rank && g.n ? s.padded : 0;
            to.scale = s.scale;
#pragma unroll
            for (int j = 0; j < TCU_GROUP_MAX; j++)
                to.b[j] = s.operands + g.b[j];
        }
        tiles[i] = to;
    }
    __threadfence_block();
    asm volatile("bar.arrive %0,%1;" ::"r"((int)KNOWN), "r"((int)KNOWN_THREADS) : "memory");
    for (int i = 0; i < p.lora.n_tiles; i++) {
        const adapted &t = tiles[i];
        if (!t.k || (i && tiles[i - 1].k && tiles[i - 1].b[0] == t.b[0]))
            continue;
        for (int c = n0 + lane; c < end; c += 32) {
            int module = 0, before = 0;
            while (c - before >= p.lora.out[module])
                before += p.lora.out[module++];
            asm volatile("prefetch.global.L2 [%0];" ::"l"(t.b[module] + (int64_t)(c - before) * t.k));
        }
    }
}

/* All of low is there. */
DEVICE void await_low(const job &p)
{
    uint32_t done = 0;
    if (threadIdx.x % 32 == 0)
        while (done < (uint32_t)p.n_low)
            asm volatile("ld.acquire.gpu.global.u32 %0,[%1];" : "=r"(done) : "l"(p.turn) : "memory");
    __syncwarp();
}

/* The last warp that has seen it clears the counts for the next launch. */
DEVICE void leave_low(const job &p)
{
    if (threadIdx.x % 32 == 0 && atomicAdd(p.turn + 1, 1u) == (gridDim.x - p.n_low) * (MULTIPLY / 32) - 1) {
        p.turn[0] = 0;
        p.turn[1] = 0;
    }
}

/* What the adapter of one tile's rows adds to a warp's 16 rows, in the columns of one of the group's matrices. As in cuda_strip.cuh, a
 * lane has four neighbours of 16 numbers along the rank. */
template <int NT>
DEVICE void add_module(const job &p, const adapted &tile, int module, int before, int n0, const bool there[2], bool &waits, float (&acc)[NT][4])
{
    enum { AHEAD = NT % 4 == 0 ? 4 : NT % 3 == 0 ? 3 : NT }; /* tiles whose B is asked for at once */
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, t = lane % 4, end = before + p.lora.out[module], k = tile.k;
    const bf16 *b = tile.b[module] + (int64_t)(n0 - before + lane / 4) * k + t * 4;
    uint32_t a[RANK_STEPS][4];
    float scale = tile.scale;
#pragma unroll
    for (int j0 = 0; j0 < NT; j0 += AHEAD) {
        uint2 of_b[AHEAD][RANK_STEPS];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
#pragma unroll
            for (int r = 0; r < RANK_STEPS; r++) {
                int c = n0 + (j0 + j) * 8;
                const bf16 *from = b + (int64_t)(j0 + j) * 8 * k + r * 16;
                of_b[j][r] = c >= before && c < end && r * 16 < k ? __ldg((const uint2 *)from) : make_uint2(0, 0);
            }
        if (j0 == 0) {
            if (waits)
                await_low(p);
            waits = false;
#pragma unroll
            for (int r = 0; r < RANK_STEPS; r++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const bf16 *from = p.low + (int64_t)(row + half * 8) * p.lora.ld_low + module * k + r * 16 + t * 4;
                    uint2 v = there[half] && r * 16 < k ? __ldcg((const uint2 *)from) : make_uint2(0, 0);
                    a[r][half] = v.x;
                    a[r][2 + half] = v.y;
                }
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            bool own = n0 + (j0 + j) * 8 >= before && n0 + (j0 + j) * 8 < end; /* the same for the warp */
            float sum[4] = {};
#pragma unroll
            for (int r = 0; r < RANK_STEPS; r++)
                if (r * 16 < k)
                    mma(sum, a[r], of_b[j][r].x, of_b[j][r].y);
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[j0 + j][e] = own && there[e / 2] ? __fmaf_rn(scale, sum[e], acc[j0 + j][e]) : acc[j0 + j][e];
        }
    }
}

template <int NT> DEVICE void add_adapters(const job &p, const adapted *tiles, int n0, float (&acc)[NT][4])
{
    int first = threadIdx.x / 32 * 16, row = first + threadIdx.x % 32 / 4;
    bool waits = true;
    asm volatile("bar.sync %0,%1;" ::"r"((int)KNOWN), "r"((int)KNOWN_THREADS) : "memory");
#pragma unroll 1
    for (int i = 0; i < p.lora.n_tiles; i++) {
        const adapted &t = tiles[i];
        if (!t.k || t.row >= first + 16 || t.row + t.n <= first)
            continue;
        const bool there[2] = { row >= t.row && row < t.row + t.n, row + 8 >= t.row && row + 8 < t.row + t.n };
#pragma unroll 1
        for (int module = 0, before = 0; module < p.lora.n; before += p.lora.out[module++])
            if (before < n0 + NT * 8 && n0 < before + p.lora.out[module])
                add_module<NT>(p, t, module, before, n0, there, waits, acc);
    }
    if (waits)
        await_low(p);
}

template <int NT> DEVICE void put_strip(const job &p, int n0, const float (&acc)[NT][4])
{
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = row + half * 8, c = n0 + j * 8 + lane % 4 * 2;
            float v[2] = { acc[j][half * 2], acc[j][half * 2 + 1] };
            if (r >= p.m || c >= p.n)
                continue;
            if (p.wide) {
                *(float2 *)((float *)p.y + r * p.ldy + c) = make_float2(v[0], v[1]);
                continue;
            }
            for (int e = 0; p.bias && e < 2; e++) /* the second rounding */
                v[e] = __fadd_rn(wide(narrow(v[e])), p.bias[c + e]);
            *(uint32_t *)((bf16 *)p.y + r * p.ldy + c) = pack(v[0], v[1]);
        }
}

template <int NT>
DEVICE void make_strip(const void *x, const void *w, const job &p, unsigned char *shared, adapted *tiles, uint32_t full)
{
    typedef strip_ring<NT> R;
    uint32_t ring = (uint32_t)__cvta_generic_to_shared(shared), empty = full + R::STAGES * 8;
    int n0 = ((int)blockIdx.x - p.n_low) * NT * 8, warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (threadIdx.x == MULTIPLY) {
        for (int i = 0; i < R::STAGES; i++) {
            make_barrier(full + i * 8, 1);
            make_barrier(empty + i * 8, MULTIPLY / 32 * SHARE);
        }
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
        bring_first<NT>(w, p, n0, ring, full);
    }
    __syncwarp();
    cluster_meet();
    if (warp == MULTIPLY / 32) {
        if (threadIdx.x % 32 == 0)
            bring<NT>(x, w, p, n0, ring, full, empty);
        __syncwarp();
    } else if (warp == MULTIPLY / 32 + 1) {
        if (p.n_low)
            look_up(p, tiles, n0, NT * 8);
        __syncwarp();
    } else if (warp < MULTIPLY / 32) {
        float acc[NT][4] = {};
        multiply_strip<NT>(acc, p.k, ring, full, empty);
        if (p.n_low)
            add_adapters<NT>(p, tiles, n0, acc);
        put_strip<NT>(p, n0, acc);
        if (p.n_low)
            leave_low(p);
    }
    cluster_meet(); /* nobody ends while others still write to his memory or arrive at his barriers */
}
#endif

template <int NT>
__global__ void __launch_bounds__(THREADS, 2)
    few_groups(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w, const __grid_constant__ job p)
{
#if HAS_WGMMA
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ uint64_t bars[24];
    __shared__ adapted tiles[ROWS];
    static_assert(LOW_STAGES * 2 <= 24 && strip_ring<NT>::STAGES * 2 <= 24, "room for all barriers");
    uint32_t at = (uint32_t)__cvta_generic_to_shared(bars);
    if ((int)blockIdx.x < p.n_low)
        make_low(p, (bf16 *)shared, at);
    else
        make_strip<NT>(&x, &w, p, shared, tiles, at);
#endif
}

__global__ void __launch_bounds__(THREADS, 2) few_low(const __grid_constant__ job p)
{
#if HAS_WGMMA
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ uint64_t bars[LOW_STAGES * 2];
    make_low(p, (bf16 *)shared, (uint32_t)__cvta_generic_to_shared(bars));
#endif
}

/* ---- launches ---- */

static int low_blocks(job *p)
{
    p->per_tile = (p->lora.n * p->lora.most + LOW_COLS - 1) / LOW_COLS;
    return p->per_tile * p->lora.n_tiles;
}

template <int NT> static int run(job p, const tcu_bf16 *w, tcu_stream stream)
{
    CUtensorMap xm, wm;
    int bytes = ROOM, blocks = (p.n + NT * 8 - 1) / (NT * 8);
    if (p.low)
        p.n_low = (low_blocks(&p) + SHARE - 1) / SHARE * SHARE;
    int e = tcu_rows_map(&xm, p.x, p.m, p.k, ROWS / SHARE);
    if (!e)
        e = tcu_rows_map(&wm, w, p.n, p.k, NT * 8);
    if (!e)
        e = cudaFuncSetAttribute(few_groups<NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e)
        return e;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = SHARE;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(p.n_low + (blocks + SHARE - 1) / SHARE * SHARE);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, few_groups<NT>, xm, wm, p);
}

bool tcu_few_here(void)
{
    cudaFuncAttributes a;
    return cudaFuncGetAttributes(&a, few_groups<4>) == cudaSuccess && a.binaryVersion == 90 && a.ptxVersion >= 90;
}

/* The narrowest strips that need no more blocks than the card has room for at once, so that none waits for another; a large matrix
 * has several rounds of blocks. */
int tcu_few(bool wide, const tcu_bf16 *x, const tcu_bf16 *w, void *y, int64_t ldy, int32_t m, int32_t n, int32_t k, const float *bias,
            const tcu_lora *lora, tcu_bf16 *low, uint32_t *turn, tcu_stream stream)
{
    enum { ONCE = 132 };
    job p = { x, y, bias, ldy, m, n, k, 0, 1, wide };
    if (lora && lora->most && lora->n_tiles) {
        p.lora = *lora;
        p.low = low;
        p.turn = turn;
    }
    if (m < 1 || m > ROWS || k % BK || n % 8 || (p.low && (lora->most > TCU_STRIP_RANK || lora->n_tiles > ROWS)))
        return cudaErrorInvalidValue;
    int units = n / 8;
    return units <= ONCE       ? run<1>(p, w, stream) :
           units <= 2 * ONCE   ? run<2>(p, w, stream) :
           units <= 3 * ONCE   ? run<3>(p, w, stream) :
           units <= 4 * ONCE   ? run<4>(p, w, stream) :
           units <= 6 * ONCE   ? run<6>(p, w, stream) :
           units <= 8 * ONCE   ? run<8>(p, w, stream) :
                                 run<12>(p, w, stream);
}

int tcu_few_low(const tcu_lora *lora, const tcu_bf16 *x, tcu_bf16 *low, tcu_stream stream)
{
    job p = {};
    p.x = x;
    p.k = lora->in;
    p.lora = *lora;
    p.low = low;
    int blocks = lora->most ? low_blocks(&p) : 0, bytes = LOW_STAGES * LOW_STAGE * 2;
    if (!blocks)
        return 0;
    cudaError_t e = cudaFuncSetAttribute(few_low, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return e ? e : launch(few_low, dim3(blocks), THREADS, bytes, stream, p);
}
