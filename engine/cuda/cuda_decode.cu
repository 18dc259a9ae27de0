/* cuda_decode.cu - all layers of a decoding step of very few rows, in one launch.
 *
 * Layer by layer such a step waits for launches and for chains of K / 16 matrix instructions, not for bytes. Here one block
 * of threads stays on every multiprocessor and the blocks meet at barriers, six a layer:
 *
 *     norm, q k v | rotation, scores | weights, values | o | norm, gate and up, SwiGLU | down
 *
 * Which rows of which matrices a warp multiplies is known beforehand, so one more warp keeps a ring of the next pieces of
 * weights filled for each of the eight that compute, across barriers and layers: the memory does not wait for a barrier.
 * Attention is divided by key blocks (scores), then by columns (values).
 *
 * Every number is computed by the instructions of the layered path in the same order, so the bits are the same: products are
 * the chain of cuda_chain.cuh, rows those of cuda_rows.cuh, attention that of cuda_attention.cu. Must not: change how a
 * number is computed; run with rows that have adapters. Needs compute capability 9.0 (the tensor copy engine).
 */
/* The warps that compute; one more fills their rings. */
#define BLOCK_SYNC() asm volatile("bar.sync 1,256;" ::: "memory")
#define BLOCK_WARPS 8
#include "cuda/cuda_attention.cuh"
#include "cuda/cuda_rows.cuh"

#include <cuda.h>
#include <cudaTypedefs.h>

enum { TEAM = 8, BLOCK = TEAM * 32 }; /* warps, threads */
/* A piece: 8 rows of a matrix, PIECE_K numbers of each, in tiles of 64 columns whose 16-byte pieces are permuted by the copy. */
enum { PIECE_K = 256, TILE = 8 * 128, PIECE = PIECE_K / 64 * TILE }; /* bytes */
/* Places of a warp's ring. The first warp has more: where a matrix has no more units than there are blocks, it alone multiplies. */
enum { LONG_RING = 8, RING = 4, PLACES = LONG_RING + (TEAM - 1) * RING };
enum { CHUNK_BLOCKS = 32, CHUNK_ROWS = CHUNK_BLOCKS * KEYS }; /* key blocks, rows of 8 values, met at a time */
enum { IDS = 512 }; /* cache blocks of a row that are looked up in shared memory */
enum { MOST_GROUP = 8, WIDTH_PIECES = 4 };
enum matrix { QKV = 0, OUT, GATE_UP, DOWN, MATRICES };

typedef tcu_decode_layer layer_of;

/* ---- the barrier of all blocks ---- */

typedef struct grid_barrier {
    unsigned *count, next;
} grid_barrier;

/* Every block arrives; what any of them wrote before is seen by all afterwards. The counter starts at 0. */
DEVICE void grid_sync(grid_barrier &m)
{
    m.next += gridDim.x;
    BLOCK_SYNC();
    if (threadIdx.x == 0) {
        unsigned seen;
        asm volatile("red.release.gpu.global.add.u32 [%0],1;" ::"l"(m.count) : "memory");
        do
            asm volatile("ld.acquire.gpu.global.u32 %0,[%1];" : "=r"(seen) : "l"(m.count) : "memory");
        while (seen < m.next);
    }
    BLOCK_SYNC();
}

/* ---- weights: each warp has a ring of its next pieces, which one more warp keeps filled ---- */

DEVICE int width_of(const tcu_decode &p, int matrix)
{
    return matrix == OUT ? p.n_heads * p.d : matrix == DOWN ? p.inner : p.hidden;
}

DEVICE int pieces_of(int k)
{
    return (k + PIECE_K - 1) / PIECE_K;
}

/* A unit is 8 rows of a matrix; of gate and up, 8 of each. */
DEVICE int units_of(const tcu_decode &p, int matrix)
{
    return (matrix == QKV ? (p.n_heads + 2 * p.n_kv_heads) * p.d : matrix == GATE_UP ? p.inner : p.hidden) / 8;
}

DEVICE int first_unit(int warp)
{
    return warp * (int)gridDim.x + (int)blockIdx.x;
}

DEVICE int next_unit(int unit)
{
    return unit + TEAM * (int)gridDim.x;
}

enum { FULL = 0, EMPTY = 1 }; /* a place's barriers: its bytes have arrived, they have been used */

typedef struct ring {
    uint32_t places, bars; /* shared addresses */
    int n;                 /* places */
} ring;

DEVICE uint32_t bar_of(const ring &r, int place, int kind)
{
    return r.bars + place * 16 + kind * 8;
}

DEVICE ring ring_of(unsigned char *shared, int warp)
{
    uint32_t base = (uint32_t)__cvta_generic_to_shared(shared), first = warp ? LONG_RING + (warp - 1) * RING : 0;
    ring r = { base + first * PIECE, base + PLACES * PIECE + first * 16, warp ? (int)RING : (int)LONG_RING };
    return r;
}

DEVICE void make_rings(unsigned char *shared)
{
#if __CUDA_ARCH__ >= 900
    for (int i = threadIdx.x; i < PLACES * 2; i += BLOCK)
        asm volatile("mbarrier.init.shared::cta.b64 [%0],1;" ::"r"((uint32_t)__cvta_generic_to_shared(shared) + PLACES * PIECE + i * 8)
                     : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Waits for the end of a phase (its parity). */
DEVICE void wait_for(uint32_t bar, uint32_t phase)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred done;\nagain: mbarrier.try_wait.parity.shared::cta.b64 done,[%0],%1;\n@!done bra again;\n}" ::"r"(bar),
                 "r"(phase)
                 : "memory");
#endif
}

DEVICE bool is_over(uint32_t bar, uint32_t phase)
{
    uint32_t done = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred done;\nmbarrier.test_wait.parity.shared::cta.b64 done,[%1],%2;\nselp.u32 %0,1,0,done;\n}"
                 : "=r"(done)
                 : "r"(bar), "r"(phase)
                 : "memory");
#endif
    return done;
}

DEVICE void arrive(uint32_t bar)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(bar) : "memory");
#endif
}

/* One copy brings a piece; zero past the end of a row. */
DEVICE void copy_piece(uint32_t to, const void *map, int row, int tile, uint32_t bar)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(bar), "r"((int)PIECE) : "memory");
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0],[%1,{%2,%3,%4}],[%5];" ::"r"(to),
                 "l"(map), "r"(0), "r"(row), "r"(tile), "r"(bar)
                 : "memory");
#endif
}

typedef struct feed { /* what one warp's ring is to be filled with next */
    int layer, matrix, unit, left; /* left: pieces of the unit */
    const void *map;               /* of the matrix */
    int row, tile;                 /* where the next piece begins */
    int across, along[2];          /* to the next: rows (gate and up take turns), tiles of this turn and of the other */
    int place;
    uint32_t phase;
} feed;

/* The unit at hand, or the first one after it that is the warp's; false if there is none. */
DEVICE bool feed_aim(feed &f, const tcu_decode &p, const layer_of *layers, int warp)
{
    while (f.layer < p.n_layers && f.unit >= units_of(p, f.matrix)) {
        f.unit = first_unit(warp);
        if (++f.matrix == MATRICES) {
            f.matrix = 0;
            f.layer++;
        }
    }
    if (f.layer == p.n_layers)
        return false;
    bool pair = f.matrix == GATE_UP;
    f.left = pieces_of(width_of(p, f.matrix)) * (pair ? 2 : 1);
    f.map = layers[f.layer].map[f.matrix];
    f.row = f.unit * 8;
    f.tile = 0;
    f.across = pair ? p.inner : 0;
    f.along[0] = pair ? 0 : PIECE_K / 64;
    f.along[1] = PIECE_K / 64;
    return true;
}

/* The filling warp: each lane looks after the ring of one warp, until the last piece of the step. */
DEVICE void fill_rings(const tcu_decode &p, const layer_of *layers, unsigned char *shared)
{
    int warp = threadIdx.x % 32;
    if (warp >= TEAM)
        return;
    ring r = ring_of(shared, warp);
    feed f = {};
    f.unit = first_unit(warp);
    f.phase = 1; /* at first every place is free */
    bool more = feed_aim(f, p, layers, warp);
    while (more) {
        if (!is_over(bar_of(r, f.place, EMPTY), f.phase))
            continue;
        copy_piece(r.places + f.place * PIECE, f.map, f.row, f.tile, bar_of(r, f.place, FULL));
        int along = f.along[0];
        f.row += f.across;
        f.across = -f.across;
        f.tile += along;
        f.along[0] = f.along[1];
        f.along[1] = along;
        if (++f.place == r.n) {
            f.place = 0;
            f.phase ^= 1;
        }
        if (--f.left == 0) {
            f.unit = next_unit(f.unit);
            more = feed_aim(f, p, layers, warp);
        }
    }
}

/* ---- activations in shared memory: each 32 numbers of a row in the order in which a lane reads them ---- */

/* Where the word of numbers k, k + 1 lies in its row. */
DEVICE int word_of(int k)
{
    return k / 32 * 16 + k % 8 / 2 * 4 + k % 32 / 8;
}

/* Columns n .. of the last piece of x are zero. */
DEVICE void pad_rows(const tcu_decode &p, uint32_t *x, int n)
{
    int end = pieces_of(n) * PIECE_K;
#pragma unroll 1
    for (int r = 0; r < p.rows; r++)
        for (int i = n + threadIdx.x * 2; i < end; i += BLOCK * 2)
            x[r * p.ld + word_of(i)] = 0;
    BLOCK_SYNC();
}

DEVICE void copy_rows(const tcu_decode &p, const bf16 *from, int n, uint32_t *x)
{
#pragma unroll 1
    for (int r = 0; r < p.rows; r++)
#pragma unroll 2
        for (int i = threadIdx.x; i < n / 8; i += BLOCK) {
            uint4 v = __ldcg((const uint4 *)(from + (int64_t)r * n) + i);
            uint32_t *to = x + r * p.ld + word_of(i * 8);
            to[0] = v.x;
            to[4] = v.y;
            to[8] = v.z;
            to[12] = v.w;
        }
    pad_rows(p, x, n);
}

/* Waits for the others, if anybody wrote; then the norm before a matrix. One block writes the sum down. */
DEVICE void norm_before(const tcu_decode &p, const layer_of &l, int matrix, bool first, grid_barrier &m, uint32_t *x)
{
    const float *h = first || matrix == GATE_UP ? p.h : p.h_mid;
    const bf16 *y = first ? NULL : p.y;
    float *sum = first || blockIdx.x ? NULL : matrix == GATE_UP ? p.h_mid : p.h;
    float4 w[WIDTH_PIECES];
    norm_weights<WIDTH_PIECES>(matrix == QKV ? l.norm_in : l.norm_post, p.hidden, w);
    if (!first)
        grid_sync(m);
#pragma unroll 1
    for (int r = 0; r < p.rows; r++) {
        int64_t at = (int64_t)r * p.hidden;
        norm_row<WIDTH_PIECES>(h + at, y ? y + at : NULL, sum ? sum + at : NULL, w, p.eps, p.hidden, true, [&](int i, uint2 v) {
            uint32_t *to = x + r * p.ld + word_of(i * 4);
            to[0] = v.x;
            to[4] = v.y;
        });
    }
    pad_rows(p, x, p.hidden);
}

/* ---- products ---- */

/* Operands of two steps along k: 8 rows of weights twice, or 8 of gate and 8 of up; rows of x. */
struct operands {
    uint32_t w[2][4], x[4];
};

typedef struct places { /* shared addresses of what a lane reads of a piece, for the four steps of a tile */
    uint32_t step[4];
} places;

/* Pair i of a piece. */
DEVICE void take(operands &o, uint32_t x, const places &at, int i)
{
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(o.x[0]), "=r"(o.x[1]), "=r"(o.x[2]), "=r"(o.x[3])
                 : "r"(x + i * 64));
#pragma unroll
    for (int s = 0; s < 2; s++)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                     : "=r"(o.w[s][0]), "=r"(o.w[s][1]), "=r"(o.w[s][2]), "=r"(o.w[s][3])
                     : "r"(at.step[i % 2 * 2 + s] + i / 2 * TILE));
}

DEVICE void multiply(float acc[4], const operands &o)
{
    mma(acc, o.w[0], o.x[0], o.x[1]);
    mma(acc, o.w[1], o.x[2], o.x[3]);
}

typedef struct reader { /* where a warp is in its ring */
    ring r;
    int place;
    uint32_t phase;
} reader;

/* `places` further, at most a round. */
DEVICE void advance(reader &r, int places)
{
    r.place += places;
    bool over = r.place >= r.r.n;
    r.place -= over ? r.r.n : 0;
    r.phase ^= over;
}

/* What a lane reads of the next piece; of gate and up, one of each: matrices 0 and 2 of a lane's four are rows of the first,
 * 1 and 3 of the other. */
DEVICE places places_at(const reader &r, int pair)
{
    int lane = threadIdx.x % 32, row = lane & 7;
    reader other = r;
    advance(other, pair);
    uint32_t at = r.r.places + (lane & 8 ? other.place : r.place) * PIECE + row * 128 + (((lane >> 4) ^ row) << 4);
    places out = { { at, at ^ 32, at ^ 64, at ^ 96 } };
    return out;
}

/* True if the next piece has arrived; of gate and up, both. */
DEVICE bool has_arrived(const reader &r, int pair)
{
    reader other = r;
    advance(other, pair);
    bool first = is_over(bar_of(r.r, r.place, FULL), r.phase);
    return __all_sync(0xffffffffu, is_over(bar_of(r.r, other.place, FULL), other.phase) & first);
}

DEVICE void await(const reader &r, int pair)
{
    reader other = r;
    advance(other, pair);
    wait_for(bar_of(r.r, r.place, FULL), r.phase);
    wait_for(bar_of(r.r, other.place, FULL), other.phase);
}

/* A sum, as the layered path rounds it. */
DEVICE bf16 rounded(float sum, const float *bias, int column)
{
    bf16 v = narrow(sum);
    return bias ? narrow(__fadd_rn(wide(v), bias[column])) : v;
}

DEVICE uint32_t twice(bf16 x)
{
    return pack(wide(x), wide(x));
}

/* Column `column` of the product, for the rows of x that this lane has. */
DEVICE void finish(const tcu_decode &p, const layer_of &l, int matrix, int column, const float acc[4])
{
    int width = matrix == QKV ? (p.n_heads + 2 * p.n_kv_heads) * p.d : matrix == GATE_UP ? p.inner : p.hidden;
    bf16 *out = (matrix == QKV ? p.qkv : matrix == GATE_UP ? p.m : p.y) + column;
    const float *bias = l.bias[matrix];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int row = threadIdx.x % 4 * 2 + e;
        if (row >= p.rows)
            break;
        bf16 v = rounded(acc[e], bias, column);
        if (matrix == GATE_UP) {
            bf16 up = rounded(acc[2 + e], bias, p.inner + column);
            v = narrow(unpack(swiglu_pair(twice(v), twice(up))).x);
        }
        out[(int64_t)row * width] = v;
    }
}

/* The units of a matrix that are this warp's; x: rows in shared memory. Weights are the left operand and rows of x the right
 * one, so that all of them are read as the instruction wants them; lanes without a row of x read the first one, and what
 * comes of it is not used.
 *
 * A branch waits for the matrix instruction before it and delays the next one, so a piece has two, side by side: whether the
 * next piece has arrived is asked while this one is multiplied, and its first operands are read on the chance that it has.
 * A place of the ring is given back once the last of it was multiplied, so certainly read. */
DEVICE void products(reader &r, const tcu_decode &p, const layer_of &l, int matrix, const uint32_t *x)
{
    enum { PAIRS_OF = PIECE_K / 32 };
    int lane = threadIdx.x % 32, g = lane / 4, n = pieces_of(width_of(p, matrix)), units = units_of(p, matrix);
    int pair = matrix == GATE_UP ? 1 : 0;
    uint32_t mine = (uint32_t)__cvta_generic_to_shared(x + (g < p.rows ? g : 0) * p.ld) + lane % 4 * 16;
#pragma unroll 1
    for (int unit = first_unit(threadIdx.x / 32); unit < units; unit = next_unit(unit)) {
        float acc[4] = {};
        operands even, odd;
        places at = places_at(r, pair);
        uint32_t from = mine;
        bool there = false;
#pragma unroll 1
        for (int piece = 0; piece < n; piece++) {
            if (!there) {
                await(r, pair);
                take(even, from, at, 0);
            }
            int used = r.place + lane;
            places next;
#pragma unroll
            for (int j = 0; j < PAIRS_OF; j += 2) {
                take(odd, from, at, j + 1);
                multiply(acc, even);
                if (j == 0) {
                    advance(r, 1 + pair);
                    next = places_at(r, pair);
                }
                if (j == 2)
                    there = has_arrived(r, pair);
                if (j + 2 < PAIRS_OF)
                    take(even, from, at, j + 2);
                else
                    take(even, from + PAIRS_OF * 64, next, 0); /* after the last piece not used */
                multiply(acc, odd);
            }
            __syncwarp();
            if (lane <= pair)
                arrive(bar_of(r.r, used >= r.r.n ? used - r.r.n : used, EMPTY));
            at = next;
            from += PAIRS_OF * 64;
        }
        finish(p, l, matrix, unit * 8 + g, acc);
    }
}

/* ---- attention ---- */

template <int D> struct heads_area { /* in the place of x */
    bf16 q[MOST_GROUP * D], key[D];
    uint32_t w[CHUNK_BLOCKS][4][2][32]; /* weights as operands: step, half of k, lane */
    float top[CHUNK_BLOCKS][MOST_GROUP], shrink[CHUNK_BLOCKS][MOST_GROUP], part[CHUNK_BLOCKS][MOST_GROUP];
};

typedef bf16 values_area[CHUNK_ROWS * 8]; /* [tile][key][8] */

typedef struct sequence { /* one row's */
    int row, pos, slot, first; /* first: key block */
    const int *ids;            /* of its cache blocks: those of the first positions are in shared memory */
    const int32_t *all_ids;
} sequence;

typedef struct sequences { /* in shared memory */
    tcu_span spans[TCU_DECODE_ROWS];
    int slots[TCU_DECODE_ROWS];
    int ids[TCU_DECODE_ROWS][IDS];
} sequences;

DEVICE void read_sequences(const tcu_decode &p, sequences &all)
{
#pragma unroll 1
    for (int r = 0; r < p.rows; r++) {
        tcu_span s = p.spans[r];
        int n = min(s.begin / TCU_CACHE_TOKENS + 1, (int)IDS);
        for (int i = threadIdx.x; i < n; i += BLOCK)
            all.ids[r][i] = p.tables[s.table + i];
        if (threadIdx.x == 0) {
            all.spans[r] = s;
            all.slots[r] = p.slots[s.origin + s.begin];
        }
    }
}

DEVICE sequence sequence_of(const tcu_decode &p, const sequences &all, int i, int window)
{
    const tcu_span &s = all.spans[i];
    sequence q = { s.origin + s.begin, s.begin, all.slots[i], 0, all.ids[i], p.tables + s.table };
    if (window > 0 && q.pos >= window)
        q.first = (q.pos - window + 1) / KEYS;
    return q;
}

DEVICE const bf16 *cached(const tcu_decode &p, const layer_of &l, const sequence &s, int kv_head, int key)
{
    int i = key / TCU_CACHE_TOKENS;
    int64_t block = i < IDS ? s.ids[i] : __ldg(s.all_ids + i);
    return l.cache + block * p.stride + (kv_head * TCU_CACHE_TOKENS + key % TCU_CACHE_TOKENS) * p.d;
}

typedef struct score_item {
    sequence s;
    int index, kv_head, block; /* index: of the sequence; -1 = none */
} score_item;

/* Item n of (sequence, key block, key head). */
DEVICE score_item find_scores(const tcu_decode &p, const layer_of &l, const sequences &all, int n)
{
    score_item it = {};
#pragma unroll 1
    for (int i = 0; i < p.rows; i++) {
        it.s = sequence_of(p, all, i, l.window);
        int items = (it.s.pos / KEYS - it.s.first + 1) * p.n_kv_heads;
        if (n < items) {
            it.index = i;
            it.kv_head = n % p.n_kv_heads;
            it.block = it.s.first + n / p.n_kv_heads;
            return it;
        }
        n -= items;
    }
    it.index = -1;
    return it;
}

/* This lane's key of the block, as an operand; the row's own key is not there yet. */
template <int D>
DEVICE void load_old_keys(const tcu_decode &p, const layer_of &l, const score_item &it, uint32_t k[D / 16][2])
{
    int lane = threadIdx.x % 32, key = it.block * KEYS + threadIdx.x / 32 * 8 + lane / 4;
    bool there = it.index >= 0 && key < it.s.pos;
    const bf16 *from = there ? cached(p, l, it.s, it.kv_head, key) + lane % 4 * 2 : NULL;
#pragma unroll
    for (int i = 0; i < D / 16; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            k[i][e] = there ? __ldcg((const uint32_t *)(from + i * 16 + e * 8)) : 0;
}

/* What rotation needs beside q, k and v: of a warp's first head of an item. */
typedef struct head_setup {
    head_row q, k; /* norms */
    head_angles t;
} head_setup;

DEVICE tcu_heads heads_of(const tcu_decode &p)
{
    tcu_heads h = {};
    h.d = p.d;
    h.cosine = p.cosine;
    h.sine = p.sine;
    h.eps = p.eps;
    return h;
}

DEVICE head_setup find_setup(const tcu_decode &p, const layer_of &l, const score_item &it)
{
    head_setup t = { head_weights(l.q_norm, p.d / 2), head_weights(l.k_norm, p.d / 2), angles_at(heads_of(p), it.s.pos) };
    return t;
}

/* Queries of the group into shared memory, unless they are there; with the last key block also the row's own key and value,
 * which go into the cache. */
template <int D>
DEVICE void rotate(const tcu_decode &p, const layer_of &l, const score_item &it, const head_setup &turn, bool there, heads_area<D> &t)
{
    int group = p.n_heads / p.n_kv_heads, width = (p.n_heads + 2 * p.n_kv_heads) * D;
    bool last = it.block == it.s.pos / KEYS;
    tcu_heads h = heads_of(p);
    const bf16 *qkv = p.qkv + (int64_t)it.s.row * width;
    bf16 *to = (bf16 *)l.cache + (int64_t)(it.s.slot / TCU_CACHE_TOKENS) * p.stride +
               (it.kv_head * TCU_CACHE_TOKENS + it.s.slot % TCU_CACHE_TOKENS) * D;
#pragma unroll 1
    for (int i = threadIdx.x / 32 + (there ? group : 0); i < group + (last ? 2 : 0); i += TEAM) {
        int head = i < group ? it.kv_head * group + i : p.n_heads + (i - group) * p.n_kv_heads + it.kv_head;
        head_row x = head_load(qkv + head * D, D / 2);
        if (i < group)
            head_ready(x, h, l.q_norm != NULL, turn.q, turn.t);
        else if (i == group)
            head_ready(x, h, l.k_norm != NULL, turn.k, turn.t);
        if (i < group)
            head_store(x, D / 2, t.q + i * D);
        else
            head_store(x, D / 2, to + (i == group ? 0 : p.values));
        if (i == group)
            head_store(x, D / 2, t.key);
    }
    BLOCK_SYNC();
}

/* Scores of the group's heads with 8 keys a warp. */
template <int D>
DEVICE void score(const tcu_decode &p, const layer_of &l, const score_item &it, const head_setup &turn, bool there, heads_area<D> &t,
                  uint32_t k[D / 16][2])
{
    int lane = threadIdx.x % 32, g = lane / 4, group = p.n_heads / p.n_kv_heads;
    int key0 = it.block * KEYS + threadIdx.x / 32 * 8, key = key0 + lane % 4 * 2;
    rotate<D>(p, l, it, turn, there, t);
    if (key0 + g == it.s.pos)
#pragma unroll
        for (int i = 0; i < D / 16; i++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                k[i][e] = *(const uint32_t *)(t.key + i * 16 + e * 8 + lane % 4 * 2);
    float s[4] = {};
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        const uint32_t *q = (const uint32_t *)(t.q + g * D + i * 16) + lane % 4;
        uint32_t a[4] = { q[0], 0, q[4], 0 };
        mma(s, a, k[i][0], k[i][1]);
    }
    if (g < group) {
        int low = l.window > 0 ? it.s.pos - l.window : -1;
        float2 v = make_float2(key <= it.s.pos && key > low ? s[0] : -INFINITY,
                               key + 1 <= it.s.pos && key + 1 > low ? s[1] : -INFINITY);
        *(float2 *)(p.scores + ((int64_t)it.index * p.n_heads + it.kv_head * group + g) * p.ld_scores + key) = v;
    }
    BLOCK_SYNC(); /* t.q is read */
}

typedef struct value_item { /* columns of one head's values: `tiles` of 8 from `tile` on */
    sequence s;
    int index, kv_head, tile;
} value_item;

template <int D> DEVICE value_item find_values(const tcu_decode &p, const layer_of &l, const sequences &all)
{
    int per = D / 8 / p.tiles, n = blockIdx.x;
    value_item it = {};
    it.index = -1;
    if (n >= p.rows * p.n_kv_heads * per)
        return it;
    it.tile = n % per * p.tiles;
    it.kv_head = n / per % p.n_kv_heads;
    it.index = n / per / p.n_kv_heads;
    it.s = sequence_of(p, all, it.index, l.window);
    return it;
}

/* Asks for values of n key blocks from key0 on; zero past the row's own, which is not there yet. */
DEVICE void load_values(const tcu_decode &p, const layer_of &l, const value_item &it, int key0, int n, bf16 *v)
{
    int shift = p.tile_shift, keys = CHUNK_ROWS >> shift;
#pragma unroll 2
    for (int at = threadIdx.x; at < n * KEYS << shift; at += BLOCK) {
        int i = at >> shift, tile = at & (p.tiles - 1), key = key0 + i;
        bool there = key < it.s.pos;
        if (key != it.s.pos)
            copy16(v + (tile * keys + i) * 8,
                   there ? cached(p, l, it.s, it.kv_head, key) + p.values + (it.tile + tile) * 8 : l.cache, there);
    }
    copy_commit();
}

/* The row's own value, from q, k and v. */
template <int D> DEVICE void put_own_value(const tcu_decode &p, const value_item &it, int key0, bf16 *v)
{
    int width = (p.n_heads + 2 * p.n_kv_heads) * D, keys = CHUNK_ROWS >> p.tile_shift, i = it.s.pos - key0, tile = threadIdx.x;
    if (tile < p.tiles && i >= 0 && i < keys)
        *(uint4 *)(v + (tile * keys + i) * 8) = __ldcg((const uint4 *)(
            p.qkv + (int64_t)it.s.row * width + (p.n_heads + p.n_kv_heads + it.kv_head) * D + (it.tile + tile) * 8));
}

/* Weights of a chunk's key blocks, a warp up to four of them: operands, sums and shrinks into shared memory. `run` is
 * the running maximum of head g of the group, before and after. */
template <int D>
DEVICE void weigh_chunk(const tcu_decode &p, const value_item &it, int block0, int n, float &run, heads_area<D> &t)
{
    enum { OWN = CHUNK_BLOCKS / TEAM };
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, group = p.n_heads / p.n_kv_heads;
    float scale2 = p.scale * 1.4426950408889634f, before[OWN];
    float2 s[OWN][KEYS / 8];
    const float *from = p.scores + ((int64_t)it.index * p.n_heads + it.kv_head * group + g) * p.ld_scores + lane % 4 * 2;
#pragma unroll
    for (int u = 0; u < OWN; u++) {
        int i = warp + u * TEAM;
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
            s[u][j] = i < n && g < group ? __ldcg((const float2 *)(from + (block0 + i) * KEYS + j * 8)) :
                                           make_float2(-INFINITY, -INFINITY);
    }
#pragma unroll
    for (int u = 0; u < OWN; u++) {
        if (warp + u * TEAM >= n)
            break;
        float top = fmaxf(s[u][0].x, s[u][0].y);
#pragma unroll
        for (int j = 1; j < KEYS / 8; j++)
            top = fmaxf(top, fmaxf(s[u][j].x, s[u][j].y));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        if (lane % 4 == 0)
            t.top[warp + u * TEAM][g] = top;
    }
    BLOCK_SYNC();
#pragma unroll
    for (int u = 0; u < OWN; u++)
        before[u] = run;
#pragma unroll 8
    for (int i = 0; i < n; i++) { /* maxima before the warp's own blocks, and of all */
        float top = t.top[i][g];
#pragma unroll
        for (int u = 0; u < OWN; u++)
            before[u] = i < warp + u * TEAM ? fmaxf(before[u], top) : before[u];
        run = fmaxf(run, top);
    }
#pragma unroll
    for (int u = 0; u < OWN; u++) {
        int i = warp + u * TEAM;
        if (i >= n)
            break;
        float part = 0, base = base_of(fmaxf(before[u], t.top[i][g]), scale2);
        if (lane % 4 == 0)
            t.shrink[i][g] = power(before[u], scale2, base);
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) {
            s[u][j].x = power(s[u][j].x, scale2, base);
            part = __fadd_rn(part, s[u][j].x);
            s[u][j].y = power(s[u][j].y, scale2, base);
            part = __fadd_rn(part, s[u][j].y);
            t.w[i][j / 2][j % 2][lane] = pack(s[u][j].x, s[u][j].y);
        }
        part = __fadd_rn(part, __shfl_xor_sync(0xffffffffu, part, 1));
        part = __fadd_rn(part, __shfl_xor_sync(0xffffffffu, part, 2));
        if (lane % 4 == 0)
            t.part[i][g] = part;
    }
    BLOCK_SYNC();
}

/* What a key block adds: its weights and values as operands, sums and shrinks. */
typedef struct addend {
    uint32_t a[4][2], b[2][4];
    float shrink, part;
} addend;

template <int D> DEVICE void load_addend(addend &x, const heads_area<D> &t, const bf16 *v, int i)
{
    int lane = threadIdx.x % 32;
    x.shrink = t.shrink[i][lane / 4];
    x.part = t.part[i][lane / 4];
#pragma unroll
    for (int s = 0; s < 4; s++) {
        x.a[s][0] = t.w[i][s][0][lane];
        x.a[s][1] = t.w[i][s][1][lane];
    }
    ldmatrix_transposed(x.b[0], v + i * KEYS * 8);
    ldmatrix_transposed(x.b[1], v + (i * KEYS + 32) * 8);
}

/* o = o * shrink + weights times values, block by block; warp i has tile i. The next block's operands are read ahead. */
template <int D>
DEVICE void gather_chunk(const tcu_decode &p, int n, float o[4], float &sum, const heads_area<D> &t, const bf16 *values)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bf16 *v = values + (warp * (CHUNK_ROWS >> p.tile_shift) + lane) * 8;
    addend now, next;
    load_addend<D>(now, t, v, 0);
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        load_addend<D>(next, t, v, min(i + 1, n - 1));
        sum = __fmaf_rn(sum, now.shrink, now.part);
        o[0] = __fmul_rn(o[0], now.shrink);
        o[1] = __fmul_rn(o[1], now.shrink);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            uint32_t a[4] = { now.a[s][0], 0, now.a[s][1], 0 };
            mma(o, a, now.b[s / 2][s % 2 * 2], now.b[s / 2][s % 2 * 2 + 1]);
        }
        now = next;
    }
}

/* Key blocks of a chunk that begins at `block`. */
DEVICE int chunk_of(const tcu_decode &p, const value_item &it, int block)
{
    return min(CHUNK_BLOCKS >> p.tile_shift, it.s.pos / KEYS - block + 1);
}

/* Weights and values of one item; the values of its first chunk were asked for. */
template <int D>
DEVICE void gather_values(const tcu_decode &p, const layer_of &l, const value_item &it, heads_area<D> &t, bf16 *v)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, group = p.n_heads / p.n_kv_heads;
    int last = it.s.pos / KEYS;
    float o[4] = {}, sum = 0, run = -INFINITY;
#pragma unroll 1
    for (int block = it.s.first, n; block <= last; block += n) {
        n = chunk_of(p, it, block);
        if (block > it.s.first)
            load_values(p, l, it, block * KEYS, n, v);
        put_own_value<D>(p, it, block * KEYS, v);
        copy_wait<0>(); /* weigh_chunk synchronizes */
        weigh_chunk<D>(p, it, block, n, run, t);
        if (warp < p.tiles)
            gather_chunk<D>(p, n, o, sum, t, v);
        BLOCK_SYNC();
    }
    if (warp < p.tiles && g < group) {
        float over = __frcp_rn(sum);
        int64_t head = (int64_t)it.s.row * p.n_heads + it.kv_head * group + g;
        *(uint32_t *)(p.o + head * D + (it.tile + warp) * 8 + lane % 4 * 2) = pack(__fmul_rn(o[0], over), __fmul_rn(o[1], over));
    }
}

typedef struct own_items { /* a block's first item of each kind, in shared memory */
    score_item scores;
    value_item values;
    int64_t window; /* of the layers that they are for */
    int turn;       /* key blocks from one item of scores to the next, of the same sequence */
} own_items;

DEVICE score_item next_scores(const tcu_decode &p, const layer_of &l, const sequences &all, const own_items &own, const score_item &it,
                              int &n)
{
    score_item next = it;
    n += own.turn * p.n_kv_heads; /* so a block's items have the same key head */
    next.block += own.turn;
    if (next.block <= it.s.pos / KEYS)
        return next;
    next.index = -1;
    return it.index == p.rows - 1 ? next : find_scores(p, l, all, n);
}

template <int D> DEVICE void find_items(const tcu_decode &p, const layer_of &l, const sequences &all, own_items &own)
{
    BLOCK_SYNC();
    if (threadIdx.x == 0) {
        own.scores = find_scores(p, l, all, blockIdx.x);
        own.values = find_values<D>(p, l, all);
        own.window = l.window;
        own.turn = (int)gridDim.x / p.n_kv_heads;
        if ((int)blockIdx.x >= own.turn * p.n_kv_heads)
            own.scores.index = -1;
    }
    BLOCK_SYNC();
}

/* Asks for keys and values of earlier steps, of a block's first items, before the layer's first product: they arrive while
 * others are waited for. */
template <int D>
DEVICE void ask(const tcu_decode &p, const layer_of &l, const sequences &all, own_items &own, uint32_t k[D / 16][2], bf16 *v)
{
    if (own.window != l.window)
        find_items<D>(p, l, all, own);
    const value_item &mine = own.values;
    if (mine.index >= 0)
        load_values(p, l, mine, mine.s.first * KEYS, chunk_of(p, mine, mine.s.first), v);
    load_old_keys<D>(p, l, own.scores, k);
}

template <int D>
DEVICE void attend(const tcu_decode &p, const layer_of &l, const sequences &all, own_items &own, grid_barrier &m,
                   uint32_t k[D / 16][2], heads_area<D> &t, bf16 *v)
{
    uint32_t next_k[D / 16][2];
    int n = blockIdx.x;
    score_item it = own.scores;
    const value_item &mine = own.values;
    head_setup turn = find_setup(p, l, it);
    grid_sync(m);
    int there = -1; /* the sequence whose queries are in shared memory */
#pragma unroll 1
    while (it.index >= 0) {
        score_item next = next_scores(p, l, all, own, it, n);
        load_old_keys<D>(p, l, next, next_k);
        score<D>(p, l, it, turn, it.index == there, t, k);
        there = it.index;
        if (next.index >= 0 && next.index != it.index)
            turn.t = angles_at(heads_of(p), next.s.pos);
        it = next;
        memcpy(k, next_k, sizeof next_k);
    }
    grid_sync(m);
    if (mine.index >= 0)
        gather_values<D>(p, l, mine, t, v);
    grid_sync(m);
}

/* ---- a step ---- */

/* Shared memory: the ring and its list, values, x or a heads_area, the layers' table. */
template <int D> __global__ void __launch_bounds__(BLOCK + 32, 1) decode_layers(const __grid_constant__ tcu_decode p)
{
    extern __shared__ __align__(1024) unsigned char shared[]; /* tiles of the ring begin at multiples of 1024 */
    __shared__ sequences all;
    __shared__ own_items own;
    bf16 *v = (bf16 *)(shared + PLACES * (PIECE + 16));
    uint32_t *x = (uint32_t *)((unsigned char *)v + sizeof(values_area));
    heads_area<D> &t = *(heads_area<D> *)x;
    layer_of *layers = (layer_of *)((unsigned char *)x + p.area);
    for (int i = threadIdx.x; i < (int)(p.n_layers * sizeof *layers / 4); i += BLOCK + 32)
        ((uint32_t *)layers)[i] = ((const uint32_t *)p.layers)[i];
    make_rings(shared);
    __syncthreads(); /* the last time that all warps grid_sync */
    if (threadIdx.x >= BLOCK) {
        fill_rings(p, layers, shared);
        return;
    }
    read_sequences(p, all);
    BLOCK_SYNC();
    find_items<D>(p, layers[0], all, own);
    reader r = { ring_of(shared, threadIdx.x / 32) };
    grid_barrier m = { p.barrier, 0 };
    uint32_t k[D / 16][2];
#pragma unroll 1
    for (int i = 0; i < p.n_layers * MATRICES; i++) {
        const layer_of &l = layers[i / MATRICES];
        int matrix = i % MATRICES;
        if (matrix == QKV)
            ask<D>(p, l, all, own, k, v);
        if (matrix == QKV || matrix == GATE_UP) {
            norm_before(p, l, matrix, i == 0, m, x);
        } else {
            if (matrix == OUT)
                attend<D>(p, l, all, own, m, k, t, v);
            else
                grid_sync(m);
            copy_rows(p, matrix == OUT ? p.o : p.m, width_of(p, matrix), x);
        }
        products(r, p, l, matrix, x);
    }
}

/* ---- launches ---- */

/* A matrix as the copy engine sees it: tiles of 64 columns, so that one copy brings a piece. */
int tcu_decode_map(void *map, const tcu_bf16 *w, int64_t rows, int64_t k)
{
    void *encode = NULL;
    cudaDriverEntryPointQueryResult found;
    int e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
    if (e || !encode)
        return e ? e : cudaErrorNotSupported;
    cuuint64_t dims[3] = { 64, (cuuint64_t)rows, (cuuint64_t)k / 64 }, strides[2] = { (cuuint64_t)k * sizeof(bf16), 128 };
    cuuint32_t box[3] = { 64, 8, PIECE_K / 64 }, steps[3] = { 1, 1, 1 };
    CUresult r = ((PFN_cuTensorMapEncodeTiled_v12000)encode)(
        (CUtensorMap *)map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)w, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

static size_t shared_bytes(const tcu_decode *p)
{
    return (size_t)PLACES * (PIECE + 16) + sizeof(values_area) + (size_t)p->area + (size_t)p->n_layers * sizeof(layer_of);
}

bool tcu_decode_plan(tcu_decode *p, int32_t processors, size_t shared)
{
    int32_t widest = p->inner > p->hidden ? p->inner : p->hidden, q = p->n_heads * p->d;
    if (p->rows < 1 || p->rows > TCU_DECODE_ROWS || (p->d != 64 && p->d != 128) || p->n_heads / p->n_kv_heads > MOST_GROUP ||
        p->hidden > WIDTH_PIECES * ROW_PIECE || (p->hidden | p->inner | q) % 64)
        return false;
    widest = q > widest ? q : widest;
    p->ld = (widest + PIECE_K - 1) / PIECE_K * PIECE_K / 2 + 16; /* rows in different banks */
    size_t rows = (size_t)p->rows * (size_t)p->ld * sizeof(uint32_t);
    size_t heads = p->d == 64 ? sizeof(heads_area<64>) : sizeof(heads_area<128>);
    p->area = (int32_t)(((rows > heads ? rows : heads) + 127) / 128 * 128);
    p->tile_shift = 0;
    for (p->tiles = 1; p->rows * p->n_kv_heads * (p->d / 8 / p->tiles) > processors; p->tiles *= 2, p->tile_shift++)
        if (p->tiles == TEAM)
            return false;
    return shared_bytes(p) + sizeof(sequences) + sizeof(own_items) + 1024 <= shared; /* and what is declared with a size */
}

int tcu_decode_layers(const tcu_decode *p, int32_t processors, tcu_stream stream)
{
    void (*kernel)(const tcu_decode) = p->d == 64 ? decode_layers<64> : decode_layers<128>;
    size_t bytes = shared_bytes(p);
    void *arguments[] = { (void *)p };
    int e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (!e)
        e = cudaMemsetAsync(p->barrier, 0, sizeof *p->barrier, stream);
    if (!e)
        e = cudaLaunchCooperativeKernel((const void *)kernel, dim3(processors), dim3(BLOCK + 32), arguments, bytes, stream);
    return e;
}
