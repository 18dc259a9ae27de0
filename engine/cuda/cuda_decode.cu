/* cuda_decode.cu - all layers of a decoding step of very few rows, and their logits, in one launch.
 *
 * Layer by layer such a step waits for launches and for chains of K / 16 matrix instructions, not for bytes. Here one block of
 * threads stays on every multiprocessor, and a layer has six phases:
 *
 *     norm, q k v | rotation, scores | weights, values | o | norm, gate and up, SwiGLU | down
 *
 * After the last layer come its norm and the head.
 *
 * Blocks have no barrier in common. What one block computes and others need, it writes as words that carry a tag, the number
 * of the layer: a reader repeats its read until the tag is there. A word is written again one layer later, when everybody has
 * read it: a block that reads words computes others from them, which the next layer's words depend on.
 *
 * Of a block's twelve warps the first four multiply (wgmma: the block's rows of a matrix are one chain), the next four look after
 * scores meanwhile, and all eight share norms, weights of attention and copies. The last four ask the copy engine for what the
 * others need next, across phases and layers: the ninth for weights, into a ring, the tenth for values, the others for the keys of
 * each half. They ask for little at a time: what blocks exchange goes through the same memory and must not wait behind it.
 * Attention is divided by key blocks (scores), then by columns (values).
 *
 * Every number is computed by the instructions of the layered path in the same order, so the bits are the same: products are
 * the chain of cuda_chain.cuh (wgmma gives its bits), rows those of cuda_rows.cuh, attention that of cuda_attention.cu.
 *
 * An adapter, which all rows share: the rows of A are multiplied in the chain of the matrix beside them, by blocks that have few rows of
 * that, and what comes of them (low) is exchanged like everything else. The warps that do not multiply wait for it and
 * make B low for the block's rows; those that multiply add scale times that to their sums.
 *
 * Must not: change how a number is computed; run with rows of different adapters. Needs compute capability 9.0a.
 */
/* The warps that compute; four more ask for what they need. */
#define BLOCK_SYNC() asm volatile("bar.sync 1,256;" ::: "memory")
#define BLOCK_WARPS  8
#define BLOCK_TREE   8
#define BLOCK_ENTER() ((void)0) /* norm_before meets between two sums */
#include "cuda/cuda_attention.cuh"
#include "cuda/cuda_bars.cuh"
#include "cuda/cuda_rows.cuh"

#include <cuda.h>
#include <cudaTypedefs.h>

enum { TEAM = 8, BLOCK = TEAM * 32, HALF = BLOCK / 2 }; /* warps, threads; threads that multiply, or that score */
enum { ALL_THREADS = BLOCK + HALF };                    /* with those that ask the copy engine */
/* A piece: 8 rows of a matrix, PIECE_K numbers of each, in tiles of 64 columns whose 16-byte pieces are permuted by the copy. */
enum { PIECE_K = 256, TILE = 8 * 128, PIECE = PIECE_K / 64 * TILE }; /* bytes */
/* A slice: pieces side by side, the rows of one instruction; if a block has very few, DEEP of these along k. At most SLICES are in the
 * ring. */
enum { MOST_SIDE = 8, DEEP = 4, SLICES = 32, FEWEST_PIECES = 3 * MOST_SIDE - 1 };
enum { VALUE_BLOCKS = 24, VALUE_ROWS = VALUE_BLOCKS * KEYS }; /* key blocks, rows of 8 values, in shared memory at a time */
enum { WEIGHTS_BYTES = BLOCK * (KEYS / 8) * 4 }; /* of the key blocks that are weighed at a time: a quad has a head of one */
enum { SMALL_WAY = 6, LARGE_WAY = 16 };          /* pieces of weights on the way */
enum { HIGH_PIECES = 64 };                       /* most pieces of a block to which an adapter adds */
enum { IDS = 512 };                              /* cache blocks of a row that are looked up in shared memory */
enum { MOST_GROUP = 8, WIDTH_PIECES = 4 };
enum matrix { QKV = 0, OUT, GATE_UP, DOWN, MATRICES, VOCAB = MATRICES };
enum { HEADS = MATRICES }; /* words of attention's output; those of a matrix are what it gives */

typedef tcu_decode_layer layer_of;

/* ---- words: 32 bits of numbers and the tag of their layer ---- */

typedef struct words { /* two neighbours */
    uint64_t a, b;
} words;

DEVICE uint64_t word(uint32_t numbers, uint32_t tag)
{
    return (uint64_t)tag << 32 | numbers;
}

DEVICE void put_word(uint64_t *at, uint64_t w)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0],%1;" ::"l"(at), "l"(w) : "memory");
}

DEVICE void put_words(uint64_t *at, words w)
{
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0],{%1,%2};" ::"l"(at), "l"(w.a), "l"(w.b) : "memory");
}

DEVICE words read_words(const uint64_t *at)
{
    words w;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1},[%2];" : "=l"(w.a), "=l"(w.b) : "l"(at) : "memory");
    return w;
}

DEVICE bool are_of(const words &w, uint32_t tag)
{
    return (uint32_t)(w.a >> 32) == tag && (uint32_t)(w.b >> 32) == tag;
}

/* The numbers of two words that were read once, when they are of this layer. A warp waits as one: lanes that left the loop by
 * themselves would slow down what follows. Lanes that are not `own` wait for nothing. */
DEVICE uint2 await_words(const uint64_t *at, words w, uint32_t tag, bool own = true)
{
    while (!__all_sync(0xffffffffu, !own || are_of(w, tag)))
        if (own)
            w = read_words(at);
    return make_uint2((uint32_t)w.a, (uint32_t)w.b);
}

/* ---- halves of a block ---- */

/* Which four warps this one belongs to: 0 those that multiply. */
DEVICE int own_half(void)
{
    return threadIdx.x / HALF;
}

DEVICE void half_sync(void)
{
    if (own_half())
        asm volatile("bar.sync 2,128;" ::: "memory");
    else
        asm volatile("bar.sync 3,128;" ::: "memory");
}

/* ---- weights: which are a block's, and the ring of their next slices ---- */

DEVICE int width_of(const tcu_decode &p, int matrix)
{
    return matrix == OUT ? p.n_heads * p.d : matrix == DOWN ? p.inner : p.hidden;
}

/* Numbers that a matrix gives, after SwiGLU. */
DEVICE int given_by(const tcu_decode &p, int matrix)
{
    return matrix == QKV ? (p.n_heads + 2 * p.n_kv_heads) * p.d : matrix == GATE_UP ? p.inner : p.hidden;
}

/* Along k: an even number, so that slices may have two of them. Past the end of a row are zeros. */
DEVICE int pieces_of(int k)
{
    return (k + 2 * PIECE_K - 1) / (2 * PIECE_K) * 2;
}

typedef struct slicing {
    int depth, at_once; /* pieces along k of a slice; slices that are used at a time */
} slicing;

/* What is done for each slice takes as long as half of its matrix instructions, so few large ones are best; but large ones come in
 * bursts, which others wait for. Slices are given back only when the next ones are being used, and one that does not fit before the end
 * of the ring leaves a gap there. */
DEVICE slicing slicing_of(const tcu_decode &p, int pieces, int along)
{
    int side = min(pieces, (int)MOST_SIDE);
    if (along % DEEP == 0 && side * DEEP <= MOST_SIDE)
        return { DEEP, 1 };
    return { 1, along % 2 == 0 && 5 * side - 1 <= p.pieces ? 2 : 1 };
}

/* A unit is 8 rows of a matrix; of gate and up, 8 of each. Unit i of a block is unit blockIdx.x + i * gridDim.x of the matrix. */
DEVICE int own_units(const tcu_decode &p, int matrix)
{
    return (given_by(p, matrix) / 8 - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
}

DEVICE int own_column(int i)
{
    return ((int)blockIdx.x + i * (int)gridDim.x) * 8;
}

/* Rows of a block's piece i: of gate and up, which take turns, one of each for a unit. */
DEVICE int row_of(const tcu_decode &p, int matrix, int i)
{
    return matrix == GATE_UP ? own_column(i / 2) + i % 2 * p.inner : own_column(i);
}

typedef struct own_matrix { /* a block's part of one */
    int pieces, along;      /* of its rows; of each along k */
    slicing cut;
    int width, given;       /* k; numbers that the whole matrix gives */
    int base;               /* pieces of the matrix; the others are of an adapter's A */
    int low, low_width;     /* its first row of A, or -1; rows of A */
} own_matrix;

/* Matrices whose A lie below each other. */
DEVICE int modules_of(int matrix)
{
    return matrix == QKV ? 3 : matrix == GATE_UP ? 2 : 1;
}

/* Rows of A, 8 for a block: those with the fewest rows of the matrix come first. */
DEVICE int own_low(int rows)
{
    int first = ((int)gridDim.x - 1 - (int)blockIdx.x) * 8;
    return first < rows ? first : -1;
}

/* A's piece stands behind the matrix's if the first slices have room for it, else it is the last of these, so that low is there early.
 * It then has two places, because gate and up come in pairs; the second is not used. */
enum { LOW_PLACE = MOST_SIDE - 2 };

DEVICE int low_places(int base)
{
    return base < MOST_SIDE ? 1 : 2;
}

DEVICE own_matrix find_matrix(const tcu_decode &p, int matrix)
{
    int width = width_of(p, matrix), base = matrix == VOCAB ? 0 : own_units(p, matrix) * (matrix == GATE_UP ? 2 : 1);
    int rows = p.adapter && p.adapter->has[matrix] ? modules_of(matrix) * p.adapter->padded : 0, low = own_low(rows);
    int pieces = base + (low < 0 || matrix == VOCAB ? 0 : low_places(base));
    slicing cut = matrix == VOCAB ? slicing{ 1, 1 } : slicing_of(p, pieces, pieces_of(width));
    return { pieces, pieces_of(width), cut, width, given_by(p, matrix), base, low, rows };
}

/* Which of the matrix's pieces is at this place; own.base or more: none, or A's. */
DEVICE int base_piece(const own_matrix &own, int place)
{
    if (own.low < 0 || own.base < MOST_SIDE || place < LOW_PLACE)
        return place;
    return place < MOST_SIDE ? own.base : place - 2;
}

DEVICE bool is_low(const own_matrix &own, int place)
{
    return own.low >= 0 && place == (own.base < MOST_SIDE ? own.base : (int)LOW_PLACE);
}

enum { FULL = 0, EMPTY = 1 }; /* a slice's barriers: its bytes have arrived, they have been used */

typedef struct ring {  /* as seen by who fills it or by who uses it */
    uint32_t at, bars; /* shared addresses */
    int pieces, place; /* how many it has room for; the next slice's, or the end */
    uint32_t n;        /* slices so far */
} ring;

DEVICE uint32_t bar_of(const ring &r, uint32_t n, int kind)
{
    return r.bars + n % SLICES * 16 + kind * 8;
}

DEVICE uint32_t phase_of(uint32_t n)
{
    return n / SLICES & 1;
}

/* Pieces at the end of the ring that a slice does not fit into. */
DEVICE int skipped(const ring &r, int size)
{
    return r.place + size > r.pieces ? r.pieces - r.place : 0;
}

/* The address of the next slice, of `size` pieces. */
DEVICE uint32_t next_slice(ring &r, int size)
{
    int place = r.place + size > r.pieces ? 0 : r.place;
    r.place = place + size;
    r.n++;
    return r.at + place * PIECE;
}

/* Has it ended? */
DEVICE bool has_ended(uint32_t bar, uint32_t phase)
{
    uint32_t done = 1;
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred done;\nmbarrier.test_wait.parity.shared::cta.b64 done,[%1],%2;\nselp.u32 %0,1,0,done;\n}"
                 : "=r"(done)
                 : "r"(bar), "r"(phase)
                 : "memory");
#endif
    return done;
}

DEVICE void copy_weights(uint32_t to, const void *map, int x, int y, int z, uint32_t bar, uint64_t policy)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0],[%1,{%2,%3,%4}],[%5],%6;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar), "l"(policy)
                 : "memory");
#endif
}

/* The copy engine brings a box of a matrix, from these coordinates on; zero past its end. */
DEVICE void copy_box(uint32_t to, const void *map, int x, int y, int z, uint32_t bar)
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0],[%1,{%2,%3,%4}],[%5];" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar)
        : "memory");
#endif
}

DEVICE void make_ring(const ring &r)
{
#if __CUDA_ARCH__ >= 900
    if ((int)threadIdx.x < SLICES) {
        make_barrier(bar_of(r, threadIdx.x, FULL), 1);
        make_barrier(bar_of(r, threadIdx.x, EMPTY), 4); /* a warp each */
    }
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
#endif
}

typedef struct filler { /* the filling warp's */
    ring r;
    int free;        /* pieces */
    uint32_t done;   /* slices known to be used */
    int cost, size;  /* of slices n with n % SLICES == lane: pieces, with and without those skipped */
    int on_the_way;  /* pieces that were asked for and are not known to be there */
    uint32_t landed; /* slices known to be there */
    uint64_t policy;
} filler;

/* Waits until a slice has room. */
DEVICE void make_room(filler &f, int size)
{
    int need = size + skipped(f.r, size);
    while (f.free < need || f.r.n - f.done == SLICES) {
        wait_for(bar_of(f.r, f.done, EMPTY), phase_of(f.done));
        f.free += __shfl_sync(0xffffffffu, f.cost, f.done % SLICES);
        f.done++;
    }
    f.free -= need;
    bool mine = threadIdx.x % 32 == f.r.n % SLICES;
    f.cost = mine ? need : f.cost;
    f.size = mine ? size : f.size;
}

/* Waits until few enough pieces are on the way. What is asked for at once beyond that comes no earlier: the requests of all blocks
 * wait in front of the memory, and the words that blocks exchange wait behind them. */
DEVICE void make_way(filler &f, int size, int most)
{
    while (f.on_the_way && f.on_the_way + size > most) {
        wait_for(bar_of(f.r, f.landed, FULL), phase_of(f.landed));
        f.on_the_way -= __shfl_sync(0xffffffffu, f.size, f.landed % SLICES);
        f.landed++;
    }
    f.on_the_way += size;
}

/* Slices of `side` pieces, n along k, at most `most` pieces on the way; a lane brings a piece of each, of the rows from `row` on. */
DEVICE void fill_slices(const void *map, int row, int n, int depth, int side, int most, filler &f)
{
    int lane = threadIdx.x % 32, size = side * depth, along = lane / side;
#pragma unroll 1
    for (int k = 0; k < n; k += depth) {
        make_way(f, size, most);
        make_room(f, size);
        uint32_t bar = bar_of(f.r, f.r.n, FULL), at = next_slice(f.r, size);
        if (lane == 0)
            expect(bar, size * PIECE);
        __syncwarp();
        if (lane < size)
            copy_weights(at + lane * PIECE, map, 0, row, (k + along) * (PIECE_K / 64), bar, f.policy);
    }
}

/* The head's groups of HEAD_SIDE units: blocks take the next one when they have room, because some get their weights later than
 * others. What comes in slice n is written at n % SLICES of `groups`: the number of its group, or -1 after the last. */
enum { HEAD_SIDE = 4 };

DEVICE int head_groups(const tcu_decode &p)
{
    return (p.vocab + 8 * HEAD_SIDE - 1) / (8 * HEAD_SIDE);
}

DEVICE int next_group(const tcu_decode &p)
{
    int n = threadIdx.x % 32 == 0 ? (int)atomicAdd(p.groups, 1u) : 0;
    return __shfl_sync(0xffffffffu, n, 0);
}

enum { LOW_GROUP = -2 }; /* the block's rows of the head's A */

/* Of an adapter: the map of a group's A; rows of B of all the group's matrices, below each other, NULL = none. */
DEVICE const void *map_of_a(const tcu_decode_adapter &a, int group)
{
    return (const unsigned char *)a.maps + (int64_t)group * TCU_MAP_BYTES;
}

DEVICE const bf16 *rows_of_b(const tcu_decode_adapter &a, int matrix, int group)
{
    return a.has[matrix] ? a.operands + a.groups[group].b[0] : NULL;
}

DEVICE void fill_head(const tcu_decode &p, const layer_of &l, const tcu_decode_adapter &a, const own_matrix &own, filler &f, int *groups)
{
    const void *map = l.map[0];
    const bf16 *b = p.adapter ? rows_of_b(a, VOCAB, l.group[0]) : NULL;
    int lane = threadIdx.x % 32, all = head_groups(p), along = own.along, next = next_group(p);
    if (own.low >= 0) {
        make_room(f, 0);
        groups[f.r.n % SLICES] = LOW_GROUP;
        fill_slices(map_of_a(a, l.group[0]), own.low, along, 1, 1, p.pieces, f);
    }
#pragma unroll 1
    while (next < all) {
        int group = next;
        make_room(f, 0); /* a place for the group's number */
        groups[f.r.n % SLICES] = group;
        int row = group * HEAD_SIDE * 8 + lane;
        if (b && lane < HEAD_SIDE * 8 && row < p.vocab) /* they wait in the second cache */
            asm volatile("prefetch.global.L2 [%0];" ::"l"(b + (int64_t)row * a.padded));
        next = next_group(p); /* asked for early */
        fill_slices(map, (group * HEAD_SIDE + lane % HEAD_SIDE) * 8, along, 1, HEAD_SIDE, p.pieces, f);
    }
    make_room(f, 0);
    groups[f.r.n % SLICES] = -1;
    __syncwarp();
    if (lane == 0)
        arrive(bar_of(f.r, f.r.n, FULL));
}

DEVICE void fill_ring(const tcu_decode &p, const layer_of *layers, const own_matrix *own, const tcu_decode_adapter &a, const ring &r, int *groups)
{
    filler f = { r, r.pieces };
    f.policy = read_once();
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = 0; i < p.n_layers * MATRICES; i++) {
        int matrix = i % MATRICES, n = own[matrix].pieces;
        const void *map = layers[i / MATRICES].map[matrix];
#pragma unroll 1
        for (int first = 0; first < n; first += MOST_SIDE) {
            int side = min((int)MOST_SIDE, n - first), place = first + lane % side, piece = base_piece(own[matrix], place);
            bool of_low = piece >= own[matrix].base; /* both places of A, if it has two */
            fill_slices(of_low ? map_of_a(a, layers[i / MATRICES].group[matrix]) : map, of_low ? own[matrix].low : row_of(p, matrix, piece), own[matrix].along,
                        own[matrix].cut.depth, side, p.on_the_way, f);
        }
    }
    fill_head(p, layers[p.n_layers], a, own[VOCAB], f, groups);
}

/* ---- activations in shared memory: [k / 8][ROWS][8], so that a matrix instruction reads rows as they lie ---- */

/* Numbers 4 i .. 4 i + 3 of row r. */
template <int ROWS> DEVICE uint2 *x_at(uint2 *x, int r, int i)
{
    return x + (i / 2 * ROWS + r) * 2 + i % 2;
}

/* n numbers of each row were written by all, and are read by matrix instructions next: in whole pieces, so zeros follow. */
template <int ROWS> DEVICE void x_ready(const tcu_decode &p, int n, uint2 *x)
{
#pragma unroll 1
    for (int i = n / 4 + threadIdx.x; i < pieces_of(n) * (PIECE_K / 4); i += BLOCK)
        for (int r = 0; r < p.rows; r++)
            *x_at<ROWS>(x, r, i) = make_uint2(0, 0);
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    BLOCK_SYNC();
}

/* n numbers a row that others give. */
template <int ROWS> DEVICE void take_rows(const tcu_decode &p, const uint64_t *from, int n, uint32_t tag, uint2 *x)
{
    enum { AHEAD = 4 };
    int lane = threadIdx.x % 32;
    bool sync = true; /* the product before has read x */
#pragma unroll 1
    for (int r = 0; r < p.rows; r++, from += n / 2)
#pragma unroll 1
        for (int i = threadIdx.x; i - lane < n / 4; i += BLOCK * AHEAD) {
            words w[AHEAD] = {}; /* no tag is 0 */
            bool there;
            do {
#pragma unroll
                for (int j = 0; j < AHEAD; j++)
                    if (i + j * BLOCK < n / 4 && !are_of(w[j], tag))
                        w[j] = read_words(from + (i + j * BLOCK) * 2);
                there = true;
#pragma unroll
                for (int j = 0; j < AHEAD; j++)
                    there = there && (i + j * BLOCK >= n / 4 || are_of(w[j], tag));
            } while (!__all_sync(0xffffffffu, there));
            if (sync)
                BLOCK_SYNC();
            sync = false;
#pragma unroll
            for (int j = 0; j < AHEAD; j++)
                if (i + j * BLOCK < n / 4)
                    *x_at<ROWS>(x, r, i + j * BLOCK) = make_uint2((uint32_t)w[j].a, (uint32_t)w[j].b);
        }
    if (sync)
        BLOCK_SYNC(); /* of warps that copy nothing */
    x_ready<ROWS>(p, n, x);
}

/* The norm before a matrix, of the residual stream that every block keeps; `from` (or NULL) is added to it first. */
template <int ROWS>
DEVICE void norm_before(const tcu_decode &p, const float *weights, const uint64_t *from, uint32_t tag, float4 *h, uint2 *x)
{
    float4 w[WIDTH_PIECES];
    norm_weights<WIDTH_PIECES>(weights, p.hidden, w);
#pragma unroll 1
    for (int r = 0; r < p.rows; r++, h += p.hidden / 4) {
        const uint64_t *y = from + (int64_t)r * p.hidden / 2;
        words in[WIDTH_PIECES];
        float4 v[WIDTH_PIECES];
#pragma unroll
        for (int j = 0; j < WIDTH_PIECES; j++) {
            int i = threadIdx.x + j * ROW_THREADS;
            if (i * 4 >= p.hidden)
                break;
            in[j] = from ? read_words(y + i * 2) : words{};
            v[j] = h[i];
        }
#pragma unroll
        for (int j = 0; j < WIDTH_PIECES; j++) {
            int i = threadIdx.x + j * ROW_THREADS;
            if ((i - (int)threadIdx.x % 32) * 4 >= p.hidden)
                break;
            uint2 add = from ? await_words(y + i * 2, in[j], tag, i * 4 < p.hidden) : make_uint2(0, 0);
            if (i * 4 >= p.hidden)
                break;
            v[j] = from ? add_pairs(v[j], add) : v[j];
            h[i] = v[j];
        }
        if (r)
            BLOCK_SYNC();
        norm_put<WIDTH_PIECES>(v, w, p.eps, p.hidden, [&](int i, uint2 n) { *x_at<ROWS>(x, r, i) = n; });
    }
    x_ready<ROWS>(p, p.hidden, x);
}

/* ---- products, by the first four warps ---- */

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

typedef struct given { /* where the numbers of a matrix go */
    uint64_t *to;
    int width;
    uint32_t tag;
} given;

/* Column `column` of the rows of x that this lane has; two neighbouring columns are a word. */
template <int ROWS> DEVICE void give(const given &to, int rows, int column, const bf16 *v)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < (ROWS > 1 ? 2 : 1); e++) {
        uint32_t mine = __bfloat16_as_ushort(v[e]), next = __shfl_down_sync(0xffffffffu, mine, 4);
        int row = lane % 4 * 2 + e;
        if (row < rows && lane / 4 % 2 == 0)
            put_word(to.to + ((int64_t)row * to.width + column) / 2, word(mine | next << 16, to.tag));
    }
}

/* The logits of a group that a warp has; top: the largest of the lane's so far. */
template <int ROWS> DEVICE void give_logits(const tcu_decode &p, int group, const float acc[4], float top[2])
{
    int mine = threadIdx.x / 32 * 2, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int column = (group * HEAD_SIDE + mine + i) * 8 + lane / 4;
        bool there = mine + i < HEAD_SIDE && column < p.vocab;
#pragma unroll
        for (int e = 0; e < (ROWS > 1 ? 2 : 1); e++) {
            int row = lane % 4 * 2 + e;
            if (!there || row >= p.rows)
                continue;
            p.z[row * p.ldz + column] = acc[2 * i + e];
            top[e] = max_nan(top[e], acc[2 * i + e]);
        }
    }
}

/* The largest logits of the block. scratch: [warp][row] */
DEVICE void give_tops(const tcu_decode &p, const float top[2], float *scratch)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float x = top[e];
#pragma unroll
        for (int d = 16; d >= 4; d >>= 1)
            x = max_nan(x, __shfl_xor_sync(0xffffffffu, x, d));
        if (lane * 2 + e < TCU_DECODE_ROWS)
            scratch[warp * TCU_DECODE_ROWS + lane * 2 + e] = x;
    }
    half_sync();
    if ((int)threadIdx.x < p.rows) {
        float x = scratch[threadIdx.x];
        for (int w = 1; w < TEAM / 2; w++)
            x = max_nan(x, scratch[w * TCU_DECODE_ROWS + threadIdx.x]);
        p.tops[threadIdx.x * gridDim.x + blockIdx.x] = x;
    }
}

/* ---- an adapter's part ---- */

enum { RANK_STEPS = TCU_DECODE_RANK / 16 };

/* A lane's part of two pieces of B: of 16 numbers a lane has four neighbours, as in low. */
typedef struct high_of {
    uint2 b[2][RANK_STEPS];
} high_of;

/* Row of B that the lane has of a piece at `row`. */
DEVICE const bf16 *high_row(const tcu_decode_adapter &a, const bf16 *b, int row)
{
    return b + (int64_t)(row + threadIdx.x % 32 / 4) * a.padded + threadIdx.x % 4 * 4;
}

DEVICE void load_high(high_of &h, int i, const tcu_decode_adapter &a, const bf16 *b, int row, bool there)
{
    const bf16 *from = high_row(a, b, there ? row : 0);
#pragma unroll
    for (int s = 0; s < RANK_STEPS; s++) {
        h.b[i][s] = make_uint2(0, 0);
        if (there && s * 16 < a.padded) /* where it stands: registers are for the chain before */
            asm volatile("ld.global.nc.v2.u32 {%0,%1},[%2];" : "=r"(h.b[i][s].x), "=r"(h.b[i][s].y) : "l"(from + s * 16));
    }
}

/* low of one of the group's matrices, a lane's part; row r of x is lane r * 4 ..'s. Waits for it if `there`. */
DEVICE void await_low(uint2 low[RANK_STEPS], const tcu_decode &p, const tcu_decode_adapter &a, int matrix, int width, int module,
                      uint32_t tag, bool there)
{
    int lane = threadIdx.x % 32, row = lane / 4;
    bool own = there && row < p.rows;
    const uint64_t *from = p.low[matrix] + ((own ? row : 0) * width + module * a.padded) / 2 + lane % 4 * 2;
    words w[RANK_STEPS];
#pragma unroll
    for (int s = 0; s < RANK_STEPS; s++)
        w[s] = own && s * 16 < a.padded ? read_words(from + s * 8) : words{};
#pragma unroll
    for (int s = 0; s < RANK_STEPS; s++)
        low[s] = s * 16 < a.padded ? await_words(from + s * 8, w[s], tag, own) : make_uint2(0, 0);
}

/* sums += scale B low, of piece i of two. */
DEVICE void add_high(float *sums, const high_of &h, int i, const uint2 low[RANK_STEPS], const tcu_decode_adapter &a)
{
    float acc[4] = {};
#pragma unroll
    for (int s = 0; s < RANK_STEPS; s++) {
        uint32_t b[4] = { h.b[i][s].x, 0, h.b[i][s].y, 0 };
        if (s * 16 < a.padded)
            mma(acc, b, low[s].x, low[s].y);
    }
    sums[0] = __fmaf_rn(a.scale, acc[0], sums[0]);
    sums[1] = __fmaf_rn(a.scale, acc[1], sums[1]);
}

/* Which of the group's matrices a row belongs to. */
DEVICE int module_of(const tcu_decode &p, int matrix, int row)
{
    if (matrix == GATE_UP)
        return row >= p.inner;
    int q = p.n_heads * p.d, k = p.n_kv_heads * p.d;
    return matrix == QKV ? (row >= q) + (row >= q + k) : 0;
}

/* Gives the block's rows of A x. */
template <int ROWS> DEVICE void give_low(const tcu_decode &p, int matrix, const own_matrix &own, uint32_t tag, float sum, float next)
{
    bf16 v[2] = { narrow(sum), narrow(next) };
    give<ROWS>({ p.low[matrix], own.low_width, tag }, p.rows, own.low + threadIdx.x % 32 / 4, v);
}

/* Where B low of a lane's row of piece i and of row `row` of x is, in shared memory. */
template <int ROWS> DEVICE float *high_at(float *high, int i, int row)
{
    return high + (i * 8 + threadIdx.x % 32 / 4) * ROWS + row;
}

enum { CHAIN_DONE = 6, HIGH_DONE = 7 }; /* barriers */


DEVICE void await_barrier(int barrier)
{
    asm volatile("bar.sync %0,256;" ::"r"(barrier) : "memory");
}

DEVICE void reach_barrier(int barrier)
{
    asm volatile("bar.arrive %0,256;" ::"r"(barrier) : "memory");
}

/* Asks for a warp's rows of B, so that they wait in the second cache. */
DEVICE void expect_high(const tcu_decode &p, const tcu_decode_adapter &a, int matrix, const bf16 *b, int base)
{
#pragma unroll 1
    for (int i = threadIdx.x % HALF / 32 * 2; i < base; i += MOST_SIDE)
        for (int e = 0; e < 2; e++)
            if (i + e < base && threadIdx.x % 4 == 0)
                asm volatile("prefetch.global.L2 [%0];" ::"l"(high_row(a, b, row_of(p, matrix, i + e))));
}

/* B low of a warp's two pieces from number `mine` on, as soon as low is there. Each try makes the sums, too, and the first is made while the
 * chain runs, before low can be there: then the instructions are in the cache when it is. After it the warp waits for the end of the
 * chain, because asking for words would disturb it. */
template <int ROWS>
DEVICE void make_pair(const tcu_decode &p, const tcu_decode_adapter &a, int matrix, const own_matrix &own, int mine, const high_of &h,
                      uint32_t tag, bool during_chain, float *high)
{
    int lane = threadIdx.x % 32, row = lane / 4, to = lane % 4 * 2;
    const uint64_t *from[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int module = mine + i < own.base ? module_of(p, matrix, row_of(p, matrix, mine + i)) : 0;
        from[i] = p.low[matrix] + ((row < p.rows ? row : 0) * own.low_width + module * a.padded) / 2 + lane % 4 * 2;
    }
    bool there;
#pragma unroll 1
    do {
        words w[2][RANK_STEPS];
        float sums[2][4] = {};
        there = true;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int s = 0; s < RANK_STEPS; s++)
                w[i][s] = row < p.rows && s * 16 < a.padded ? read_words(from[i] + s * 8) : words{};
#pragma unroll
        for (int s = 0; s < RANK_STEPS; s++)
            if (s * 16 < a.padded)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    uint32_t b[4] = { h.b[i][s].x, 0, h.b[i][s].y, 0 };
                    mma(sums[i], b, (uint32_t)w[i][s].a, (uint32_t)w[i][s].b);
                    there = there && (row >= p.rows || are_of(w[i][s], tag));
                }
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int e = 0; e < (ROWS > 1 ? 2 : 1); e++)
                if (to + e < ROWS && mine + i < own.base)
                    *high_at<ROWS>(high, mine + i, to + e) = sums[i][e];
        there = __all_sync(0xffffffffu, there && !during_chain);
        if (during_chain)
            await_barrier(CHAIN_DONE);
        during_chain = false;
    } while (!there);
}

/* What the adapter adds to the block's rows of a matrix, by the warps that do not multiply. */
template <int ROWS>
DEVICE void make_high(const tcu_decode &p, const tcu_decode_adapter &a, int matrix, const bf16 *b, const own_matrix &own, uint32_t tag,
                      float *high)
{
    bool first = true;
#pragma unroll 1
    for (int mine = threadIdx.x % HALF / 32 * 2; mine < own.base; mine += MOST_SIDE) {
        high_of h;
#pragma unroll
        for (int i = 0; i < 2; i++)
            load_high(h, i, a, b, row_of(p, matrix, mine + i), mine + i < own.base);
        make_pair<ROWS>(p, a, matrix, own, mine, h, tag, first, high);
        first = false;
    }
    if (first)
        await_barrier(CHAIN_DONE);
    reach_barrier(HIGH_DONE);
}

/* Adds the adapter's part to a warp's two pieces, the first of which is number `mine` of the matrix's. */
template <int ROWS>
DEVICE void add_adapter(const tcu_decode &p, const tcu_decode_adapter &a, const own_matrix &own, int mine, float *high, float acc[4])
{
    int to = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < (ROWS > 1 ? 2 : 1); e++)
            if (mine + i < own.base && to + e < p.rows)
                acc[2 * i + e] = __fmaf_rn(a.scale, *high_at<ROWS>(high, mine + i, to + e), acc[2 * i + e]);
}

/* ---- what becomes of sums ---- */

/* What a warp has of the rows from piece `mine` of n on. */
template <int ROWS>
DEVICE void finish(const tcu_decode &p, const float *bias, int matrix, const given &to, int mine, int n, const float acc[4])
{
    enum { OWN = ROWS > 1 ? 2 : 1 }; /* rows of x that a lane has */
    int g = threadIdx.x % 32 / 4;
    bf16 v[2];
    if (matrix == GATE_UP) {
        int column = own_column(mine / 2) + g;
        bias = mine < n ? bias : NULL;
#pragma unroll
        for (int e = 0; e < OWN; e++) {
            bf16 gate = rounded(acc[e], bias, column), up = rounded(acc[2 + e], bias, p.inner + column);
            v[e] = narrow(unpack(swiglu_pair(twice(gate), twice(up))).x);
        }
        give<ROWS>(to, mine < n ? p.rows : 0, column, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int column = own_column(mine + i) + g;
        const float *added = mine + i < n ? bias : NULL;
#pragma unroll
        for (int e = 0; e < OWN; e++)
            v[e] = rounded(acc[2 * i + e], added, column);
        give<ROWS>(to, mine + i < n ? p.rows : 0, column, v);
    }
}

/* Shared memory as a matrix instruction reads it: address and stride along k, in units of 16 bytes, in the low half; in the
 * high half the stride across 8 rows, and whether the copy permuted. Low halves are the same for a warp, and the compiler has
 * to see it: each one that it moves to a register of the warp costs more than the instruction that uses it. */
enum { WEIGHTS_HIGH = PIECE / 16 | 1 << 30, ROWS_HIGH = 0 };

DEVICE uint32_t low_half(uint32_t at, uint32_t along)
{
    uint32_t none = threadIdx.x / HALF; /* 0, which the compiler does not know: it would remove the shuffle */
    return __shfl_sync(0xffffffffu, at >> 4 | along << 16 | none, 0);
}

/* acc[64][8] += w[64][16] x[8][16]: rows of w past the block's own, and of x past p.rows, are whatever lies there; what comes of
 * them is not used. */
DEVICE void multiply(float acc[4], uint32_t w, uint32_t x)
{
#if __CUDA_ARCH__ == 900 && defined __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("{\n.reg .b64 w,x;\nmov.b64 w,{%4,%5};\nmov.b64 x,{%6,%7};\n"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3},w,x,1,1,1,0,0;\n}"
                 : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                 : "r"(w), "r"((int)WEIGHTS_HIGH), "r"(x), "r"((int)ROWS_HIGH));
#endif
}

DEVICE void multiply_begin(void)
{
#if __CUDA_ARCH__ == 900 && defined __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

DEVICE void multiply_commit(void)
{
#if __CUDA_ARCH__ == 900 && defined __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

/* All groups but the last N are done. */
template <int N> DEVICE void multiply_wait(void)
{
#if __CUDA_ARCH__ == 900 && defined __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}

template <int ROWS> DEVICE void multiply_piece(float acc[4], uint32_t w, uint32_t x)
{
#pragma unroll
    for (int s = 0; s < PIECE_K / 16; s++)
        multiply(acc, w + s / 4 * (TILE / 16) + s % 4 * 2, x + s * 2 * ROWS);
}

/* Have the next slices arrived? */
DEVICE bool are_there(const ring &r, int n)
{
    bool first = has_ended(bar_of(r, r.n, FULL), phase_of(r.n));
    return n == 1 ? first : first & has_ended(bar_of(r, r.n + 1, FULL), phase_of(r.n + 1));
}

/* The n slices before `end` have been used. */
DEVICE void release_slices(const ring &r, uint32_t end, int n)
{
    if ((int)threadIdx.x % 32 < n)
        arrive(bar_of(r, end - 1 - threadIdx.x % 32, EMPTY));
}

/* The chain of `side` pieces of rows along k, N slices of DEPTH of them at a time. Between these the matrix instructions wait for
 * whatever has to be known: so the next barriers are asked before, and only those that are late are waited for. */
template <int ROWS, int DEPTH, int N> DEVICE void chain(ring &r, bool there, int along, int side, uint32_t x, float acc[4])
{
#pragma unroll 1
    for (int i = 0; i < along; i += DEPTH * N, x += DEPTH * N * PIECE_K * 2 * ROWS) {
        uint32_t n = r.n, w[DEPTH * N], b = low_half(x, ROWS);
#pragma unroll
        for (int s = 0; s < N; s++) {
            uint32_t at = next_slice(r, side * DEPTH);
#pragma unroll
            for (int d = 0; d < DEPTH; d++)
                w[s * DEPTH + d] = low_half(at + d * side * PIECE, 1);
        }
        if (!there)
#pragma unroll 1
            for (int s = 0; s < N; s++)
                wait_for(bar_of(r, n + s, FULL), phase_of(n + s));
        multiply_begin();
#pragma unroll
        for (int d = 0; d < DEPTH * N; d++)
            multiply_piece<ROWS>(acc, w[d], b + d * (PIECE_K * 2 * ROWS / 16));
        multiply_commit();
        there = are_there(r, N);
        multiply_wait<1>();
        if (i)
            release_slices(r, n, N);
    }
    multiply_wait<0>();
    asm volatile("" : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])::"memory");
    release_slices(r, r.n, N);
}

typedef struct product { /* what can be known before x is there: it is found meanwhile */
    own_matrix own;
    given to;
    const float *bias;
    bool there;     /* its first slices */
    bool adds;      /* an adapter */
} product;

DEVICE product find_product(const ring &r, const tcu_decode &p, const float *bias, int matrix, const own_matrix &own, uint32_t tag)
{
    return { own, { p.words[matrix], own.given, tag }, bias, are_there(r, own.cut.at_once), false };
}

/* Each way of slicing has its own sums, or the compiler has every matrix instruction wait for the one before. With an adapter the first
 * sums wait while the next pieces are multiplied, if there are any: so does the exchange of low. */
template <int ROWS, bool LORA, int DEPTH, int N>
DEVICE void products(ring &r, const tcu_decode &p, const tcu_decode_adapter *a, int matrix, const product &q, uint32_t x, float *high)
{
    bool there = q.there, adds = LORA && q.adds && q.own.base;
    float kept[4];
#pragma unroll 1
    for (int first = 0; first < q.own.pieces; first += MOST_SIDE) {
        int place = first + threadIdx.x / 32 * 2, mine = LORA ? base_piece(q.own, place) : place;
        float acc[4] = {};
        chain<ROWS, DEPTH, N>(r, there, q.own.along, min((int)MOST_SIDE, q.own.pieces - first), x, acc);
        if (LORA && q.adds) {
            if (is_low(q.own, place))
                give_low<ROWS>(p, matrix, q.own, q.to.tag, acc[0], acc[1]);
            if (is_low(q.own, place + 1))
                give_low<ROWS>(p, matrix, q.own, q.to.tag, acc[2], acc[3]);
        }
        if (adds && first == 0) {
            reach_barrier(CHAIN_DONE);
            if (MOST_SIDE < q.own.pieces) {
                there = are_there(r, N);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    kept[e] = acc[e];
                continue;
            }
        }
        if (adds && first <= MOST_SIDE)
            await_barrier(HIGH_DONE);
#pragma unroll 1
        for (bool before = adds && first == MOST_SIDE;; before = false) { /* one copy of the code */
            int at = before ? base_piece(q.own, threadIdx.x / 32 * 2) : mine;
            float sums[4];
#pragma unroll
            for (int e = 0; e < 4; e++)
                sums[e] = before ? kept[e] : acc[e];
            if (adds)
                add_adapter<ROWS>(p, *a, q.own, at, high, sums);
            finish<ROWS>(p, q.bias, matrix, q.to, at, LORA ? q.own.base : q.own.pieces, sums);
            if (!before)
                break;
        }
        there = are_there(r, N);
    }
}

/* The head: groups as they come. scratch: of give_tops */
template <int ROWS, bool LORA>
DEVICE void multiply_head(ring &r, const tcu_decode &p, const tcu_decode_adapter *a, const bf16 *b, const own_matrix &own, uint32_t tag,
                          uint32_t x, const int *groups, float *scratch)
{
    float top[2] = { -INFINITY, -INFINITY };
    int mine = threadIdx.x / 32 * 2;
    uint2 low[RANK_STEPS];
    bool has_low = false;
    while (true) {
        wait_for(bar_of(r, r.n, FULL), phase_of(r.n));
        int group = __shfl_sync(0xffffffffu, *(volatile const int *)&groups[r.n % SLICES], 0);
        if (group < 0 && (!LORA || group != LOW_GROUP))
            break;
        float acc[4] = {};
        bool of_low = LORA && group == LOW_GROUP, adds = LORA && b && !of_low && mine < HEAD_SIDE;
        high_of h;
        if (adds)
            for (int i = 0; i < 2; i++) {
                int row = (group * HEAD_SIDE + mine + i) * 8;
                load_high(h, i, *a, b, row, row + (int)threadIdx.x % 32 / 4 < p.vocab);
            }
        chain<ROWS, 1, 1>(r, true, own.along, of_low ? 1 : (int)HEAD_SIDE, x, acc);
        if (of_low) {
            if (mine == 0) {
                bf16 v[2] = { narrow(acc[0]), narrow(acc[1]) };
                give<ROWS>({ p.low[VOCAB], own.low_width, tag }, p.rows, own.low + threadIdx.x % 32 / 4, v);
            }
            continue;
        }
        if (adds) {
            if (!has_low)
                await_low(low, p, *a, VOCAB, own.low_width, 0, tag, true);
            has_low = true;
            add_high(acc, h, 0, low, *a);
            add_high(acc + 2, h, 1, low, *a);
        }
        give_logits<ROWS>(p, group, acc, top);
    }
    give_tops(p, top, scratch);
}

/* ---- attention ---- */

template <int D> struct heads_area {
    __align__(16) bf16 q[2][MOST_GROUP * D], key[2][D], raw[TEAM][D]; /* of a half of the block; raw: just read, by a warp */
    float top[VALUE_BLOCKS][MOST_GROUP];
    float2 sums[VALUE_BLOCKS][MOST_GROUP]; /* shrink, part */
};

typedef bf16 values_area[VALUE_ROWS * 8]; /* [tile][key][8] */

/* Weights of key block i of a chunk, behind the rest, as operands: [head of the group][4][step][half of k]. `lane` has a quad's. */
template <int D> DEVICE uint4 *weights_of(const tcu_decode &p, const heads_area<D> *t, int i, int lane)
{
    return (uint4 *)(t + 1) + ((i << (2 + p.head_shift)) + (lane & ((4 << p.head_shift) - 1))) * (KEYS / 32);
}

typedef struct sequence {      /* one row's */
    int row, pos, slot, first; /* first: key block */
    uint32_t ids;              /* shared address: of its cache blocks, those of the first positions */
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
        for (int i = threadIdx.x; i < n; i += ALL_THREADS)
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
    sequence q = {
        s.origin + s.begin, s.begin, all.slots[i], 0, (uint32_t)__cvta_generic_to_shared(all.ids[i]), p.tables + s.table
    };
    if (window > 0 && q.pos >= window)
        q.first = (q.pos - window + 1) / KEYS;
    return q;
}

/* The cache block of a key. */
DEVICE int cache_block(const sequence &s, int key)
{
    int i = key / TCU_CACHE_TOKENS, id;
    if (i >= IDS)
        return __ldg(s.all_ids + i);
    asm("ld.shared.s32 %0,[%1];" : "=r"(id) : "r"(s.ids + i * 4));
    return id;
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

enum { SCORED = 2 }; /* times 8 keys of a block, by each scoring warp */

/* A lane's keys, as operands: of 16 numbers, which one instruction multiplies and adds at once, a lane has four neighbours, in keys
 * and queries alike. */
template <int D> struct keys_of {
    uint2 k[SCORED][D / 16];
};

DEVICE int first_scored(const score_item &it)
{
    return it.block * KEYS + threadIdx.x % HALF / 32 * SCORED * 8;
}

/* Keys of an item in shared memory, [block of the cache][64 columns][key][64], 16-byte pieces permuted by the copy. */
enum { KEY_BOX = TCU_CACHE_TOKENS * 128 };

/* A warp asks for the keys of earlier steps. */
DEVICE void load_keys(const tcu_decode &p, int layer, const score_item &it, uint32_t to, uint32_t bar)
{
    int lane = threadIdx.x % 32, key0 = it.block * KEYS, halves = p.d / 64;
    int boxes = (min((int)KEYS, it.s.pos - key0) + TCU_CACHE_TOKENS - 1) / TCU_CACHE_TOKENS * halves;
    if (lane == 0)
        expect(bar, boxes * KEY_BOX);
    __syncwarp();
    if (lane < boxes)
        copy_box(to + lane * KEY_BOX, p.key_map, lane % halves * 64, (layer * 2 * p.n_kv_heads + it.kv_head) * TCU_CACHE_TOKENS,
                 cache_block(it.s, key0 + lane / halves * TCU_CACHE_TOKENS), bar);
}

/* The row's own key is not there yet. */
template <int D> DEVICE void take_keys(const score_item &it, uint32_t from, uint32_t bars, uint32_t n, keys_of<D> &k)
{
    int lane = threadIdx.x % 32, row = lane / 4;
    uint32_t at = from + threadIdx.x % HALF / 32 * (D / 64 * KEY_BOX) + row * 128 + lane % 2 * 8;
    wait_for(bars + FULL * 8, n & 1);
#pragma unroll
    for (int j = 0; j < SCORED; j++) {
        bool there = first_scored(it) + j * 8 + row < it.s.pos;
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            uint2 v = make_uint2(0, 0);
            if (there)
                asm volatile("ld.shared.v2.u32 {%0,%1},[%2];"
                             : "=r"(v.x), "=r"(v.y)
                             : "r"(at + i / 4 * KEY_BOX + j * 1024 + ((i % 4 * 2 + lane % 4 / 2) ^ row) * 16)
                             : "memory");
            k.k[j][i] = v;
        }
    }
}

/* An item's keys are in registers: those of the next one may come. */
DEVICE void release_keys(uint32_t bars)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        arrive(bars + EMPTY * 8);
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

/* A head of q, k or v, when it is there. */
template <int D> DEVICE head_row await_head(const uint64_t *from, uint32_t tag, bf16 *raw)
{
    int lane = threadIdx.x % 32;
    bool own = lane < D / 4;
    from += lane * 2;
    __syncwarp();
    uint2 v = await_words(from, own ? read_words(from) : words{}, tag, own);
    if (own)
        ((uint2 *)raw)[lane] = v;
    __syncwarp();
    return head_of(D / 2, [&](int j) { return raw[j]; });
}

/* Queries of the group into shared memory, unless they are there; with the last key block also the row's own key and value,
 * which go into the cache. */
template <int D>
DEVICE void rotate(const tcu_decode &p, const layer_of &l, const score_item &it, uint32_t tag, const head_setup &turn, bool there,
                   heads_area<D> &t)
{
    int group = p.group, half = own_half(), warp = threadIdx.x / 32;
    bool last = it.block == it.s.pos / KEYS;
    tcu_heads h = heads_of(p);
    const uint64_t *qkv = p.words[QKV] + (int64_t)it.s.row * given_by(p, QKV) / 2;
    bf16 *to = (bf16 *)l.cache + (int64_t)(it.s.slot / TCU_CACHE_TOKENS) * p.stride +
               (it.kv_head * TCU_CACHE_TOKENS + it.s.slot % TCU_CACHE_TOKENS) * D;
#pragma unroll 1
    for (int i = warp % (TEAM / 2) + (there ? group : 0); i < group + (last ? 2 : 0); i += TEAM / 2) {
        int head = i < group ? it.kv_head * group + i : p.n_heads + (i - group) * p.n_kv_heads + it.kv_head;
        head_row x = await_head<D>(qkv + head * D / 2, tag, t.raw[warp]);
        if (i < group)
            head_ready(x, h, l.q_norm != NULL, turn.q, turn.t);
        else if (i == group)
            head_ready(x, h, l.k_norm != NULL, turn.k, turn.t);
        if (i < group)
            head_store(x, D / 2, t.q[half] + i * D);
        else
            head_store(x, D / 2, to + (i == group ? 0 : p.values));
        if (i == group)
            head_store(x, D / 2, t.key[half]);
    }
    half_sync();
}

/* Scores of the group's heads with the keys of a block. */
template <int D>
DEVICE void score(const tcu_decode &p, const layer_of &l, const score_item &it, uint32_t tag, const head_setup &turn, bool there,
                  heads_area<D> &t, keys_of<D> &k)
{
    int lane = threadIdx.x % 32, g = lane / 4, group = p.group, low = l.window > 0 ? it.s.pos - l.window : -1;
    rotate<D>(p, l, it, tag, turn, there, t);
#pragma unroll
    for (int n = 0; n < SCORED; n++)
        if (first_scored(it) + n * 8 + g == it.s.pos)
#pragma unroll
            for (int i = 0; i < D / 16; i++)
                k.k[n][i] = *(const uint2 *)(t.key[own_half()] + i * 16 + lane % 4 * 4);
    float s[SCORED][4] = {};
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        uint2 q = *(const uint2 *)(t.q[own_half()] + g * D + i * 16 + lane % 4 * 4);
        uint32_t a[4] = { q.x, 0, q.y, 0 };
#pragma unroll
        for (int n = 0; n < SCORED; n++)
            mma(s[n], a, k.k[n][i].x, k.k[n][i].y);
    }
#pragma unroll
    for (int n = 0; n < SCORED; n++) {
        int key = first_scored(it) + n * 8 + lane % 4 * 2;
        bool one = key <= it.s.pos && key > low, two = key + 1 <= it.s.pos && key + 1 > low;
        words w = { word(__float_as_uint(one ? s[n][0] : -INFINITY), tag), word(__float_as_uint(two ? s[n][1] : -INFINITY), tag) };
        if (g < group)
            put_words(p.scores + ((int64_t)it.index * p.n_heads + it.kv_head * group + g) * p.ld_scores + key, w);
    }
    half_sync(); /* t.q is read */
}

typedef struct value_item { /* columns of one head's values: `tiles` of 8 from `tile` on */
    sequence s;
    int index, kv_head, tile;
} value_item;

DEVICE value_item find_values(const tcu_decode &p, const layer_of &l, const sequences &all)
{
    int per = p.d / 8 / p.tiles, n = blockIdx.x;
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

/* Key blocks of the values that are loaded from `block` on. */
DEVICE int loaded_from(const tcu_decode &p, const value_item &it, int block)
{
    return min(VALUE_BLOCKS >> p.tile_shift, it.s.pos / KEYS - block + 1);
}

/* Values of earlier steps: n key blocks from `block` on, by one warp and the copy engine. A copy brings 8 columns of a block of the
 * cache; what lies there past the row's position is whatever was there before. */
DEVICE void load_values(const tcu_decode &p, int layer, const value_item &it, int block, int n, uint32_t v, uint32_t bar)
{
    enum { BOX = TCU_CACHE_TOKENS * 8 * sizeof(bf16) };
    enum { SOME = 8, PAUSE_NS = 200 }; /* rows of 16 bytes are many requests: they come a few at a time, there is a whole layer's time */
    int lane = threadIdx.x % 32, key0 = block * KEYS, keys = min(n * KEYS, it.s.pos - key0);
    int copies = max(0, (keys + TCU_CACHE_TOKENS - 1) / TCU_CACHE_TOKENS) << p.tile_shift;
    int row = ((layer * 2 + 1) * p.n_kv_heads + it.kv_head) * TCU_CACHE_TOKENS;
    if (lane == 0)
        expect(bar, copies * BOX);
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i - lane < copies; i += SOME, __nanosleep(PAUSE_NS)) {
        int tile = i & (p.tiles - 1), key = (i >> p.tile_shift) * TCU_CACHE_TOKENS;
        if (lane < SOME && i < copies)
            copy_box(v + (tile * (VALUE_ROWS >> p.tile_shift) + key) * 8 * (int)sizeof(bf16), p.value_map, (it.tile + tile) * 8, row,
                 cache_block(it.s, key0 + key), bar);
    }
}

/* The warp that looks after values asks for each chunk as soon as the one before is used, across layers. bars: of `v`, as a slice's. */
DEVICE void fill_values(const tcu_decode &p, const layer_of *layers, const sequences &all, uint32_t v, uint32_t bars)
{
    uint32_t n = 0; /* chunks so far */
#pragma unroll 1
    for (int layer = 0; layer < p.n_layers; layer++) {
        value_item it = find_values(p, layers[layer], all);
        if (it.index < 0)
            return;
#pragma unroll 1
        for (int block = it.s.first, some; block <= it.s.pos / KEYS; block += some, n++) {
            some = loaded_from(p, it, block);
            wait_for(bars + EMPTY * 8, n + 1 & 1);
            load_values(p, layer, it, block, some, v, bars + FULL * 8);
        }
    }
}

/* The row's own value, from q, k and v, and zeros after it: weights there are 0, but 0 times whatever is there might not be. */
template <int D> DEVICE void put_own_value(const tcu_decode &p, const value_item &it, uint32_t tag, int key0, int n, bf16 *v)
{
    int keys = VALUE_ROWS >> p.tile_shift, i = it.s.pos - key0, lane = threadIdx.x, tile = lane & (p.tiles - 1);
    if (threadIdx.x >= 32 || i < 0 || i >= n * KEYS)
        return;
    bool own = lane < p.tiles;
    int column = (p.n_heads + p.n_kv_heads + it.kv_head) * D + (it.tile + tile) * 8;
    const uint64_t *from = p.words[QKV] + ((int64_t)it.s.row * given_by(p, QKV) + column) / 2;
    words a = own ? read_words(from) : words{}, b = own ? read_words(from + 2) : words{};
#pragma unroll 1
    for (int j = lane >> p.tile_shift; i + 1 + j < n * KEYS; j += 32 >> p.tile_shift)
        *(uint4 *)(v + (tile * keys + i + 1 + j) * 8) = make_uint4(0, 0, 0, 0);
    uint2 lo = await_words(from, a, tag, own), hi = await_words(from + 2, b, tag, own);
    if (own)
        *(uint4 *)(v + (tile * keys + i) * 8) = make_uint4(lo.x, lo.y, hi.x, hi.y);
}

/* Weights of a chunk's key blocks, by a quad of lanes for each head of each: operands, sums and shrinks into shared memory.
 * `run` is the running maximum of the lane's head, before and after. */
template <int D>
DEVICE void weigh_chunk(const tcu_decode &p, const value_item &it, uint32_t tag, int block0, int n, float &run, heads_area<D> &t)
{
    int lane = threadIdx.x % 32, i = threadIdx.x >> (2 + p.head_shift), g = threadIdx.x / 4 & ((1 << p.head_shift) - 1);
    int group = p.group;
    bool own = i < n && g < group, there;
    float scale2 = p.scale * 1.4426950408889634f;
    float2 s[KEYS / 8];
    words v[KEYS / 8];
    const uint64_t *from =
        p.scores + ((int64_t)it.index * p.n_heads + it.kv_head * group + g) * p.ld_scores + (block0 + i) * KEYS + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++) {
        uint64_t none = own ? 0 : word(0xff800000u, tag); /* no tag is 0; -INFINITY */
        v[j] = { none, none };
    }
    do { /* only what is missing: everything would be a burden to those who are waited for */
        there = true;
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
            if (!are_of(v[j], tag))
                v[j] = read_words(from + j * 8);
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
            there = there && are_of(v[j], tag);
    } while (!__all_sync(0xffffffffu, there));
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
        s[j] = make_float2(__uint_as_float((uint32_t)v[j].a), __uint_as_float((uint32_t)v[j].b));
    float top = fmaxf(s[0].x, s[0].y);
#pragma unroll
    for (int j = 1; j < KEYS / 8; j++)
        top = fmaxf(top, fmaxf(s[j].x, s[j].y));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    if (own && lane % 4 == 0)
        t.top[i][g] = top;
    BLOCK_SYNC();
    float before = run;
#pragma unroll 8
    for (int e = 0; e < n; e++) { /* maxima before the lane's own block, and of all */
        float other = t.top[e][g];
        before = e < i ? fmaxf(before, other) : before;
        run = fmaxf(run, other);
    }
    float part = 0, base = base_of(fmaxf(before, top), scale2);
    uint32_t w[KEYS / 8];
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++) {
        s[j].x = power(s[j].x, scale2, base);
        part = __fadd_rn(part, s[j].x);
        s[j].y = power(s[j].y, scale2, base);
        part = __fadd_rn(part, s[j].y);
        w[j] = pack(s[j].x, s[j].y);
    }
#pragma unroll
    for (int j = 0; j < KEYS / 32; j++)
        if (own)
            weights_of(p, &t, i, g * 4 + lane % 4)[j] = make_uint4(w[j * 4], w[j * 4 + 1], w[j * 4 + 2], w[j * 4 + 3]);
    part = __fadd_rn(part, __shfl_xor_sync(0xffffffffu, part, 1));
    part = __fadd_rn(part, __shfl_xor_sync(0xffffffffu, part, 2));
    if (own && lane % 4 == 0) {
        t.sums[i][g] = make_float2(power(before, scale2, base), part);
    }
    BLOCK_SYNC();
}

/* What a key block adds: its weights and values as operands, sums and shrinks. */
typedef struct addend {
    uint4 a[2];       /* of two steps each */
    uint32_t b[2][4];
    float2 sums; /* shrink, part */
} addend;

template <int D> DEVICE void load_addend(const tcu_decode &p, addend &x, const heads_area<D> &t, const bf16 *v, int i)
{
    int lane = threadIdx.x % 32;
    const uint4 *w = weights_of(p, &t, i, lane); /* rows past the group are not used */
    x.sums = t.sums[i][lane / 4];
    x.a[0] = w[0];
    x.a[1] = w[1];
    ldmatrix_transposed(x.b[0], v + i * KEYS * 8);
    ldmatrix_transposed(x.b[1], v + (i * KEYS + 32) * 8);
}

/* o = o * shrink + weights times values, block by block; warp i has tile i. The next block's operands are read ahead. */
template <int D>
DEVICE void gather_chunk(const tcu_decode &p, int n, float o[4], float &sum, const heads_area<D> &t, const bf16 *values)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bf16 *v = values + (warp * (VALUE_ROWS >> p.tile_shift) + lane) * 8;
    addend now, next;
    load_addend<D>(p, now, t, v, 0);
#pragma unroll 2
    for (int i = 0; i < n; i++) {
        load_addend<D>(p, next, t, v, min(i + 1, n - 1));
        sum = __fmaf_rn(sum, now.sums.x, now.sums.y);
        o[0] = __fmul_rn(o[0], now.sums.x);
        o[1] = __fmul_rn(o[1], now.sums.x);
#pragma unroll
        for (int s = 0; s < 2; s++) {
            uint32_t even[4] = { now.a[s].x, 0, now.a[s].y, 0 }, odd[4] = { now.a[s].z, 0, now.a[s].w, 0 };
            mma(o, even, now.b[s][0], now.b[s][1]);
            mma(o, odd, now.b[s][2], now.b[s][3]);
        }
        now = next;
    }
}

/* A chunk of values was read by each of the warps that have a tile. The copy engine sees what they wrote there themselves, the row's
 * own value and zeros, which only the last chunk has: x_ready comes between. */
DEVICE void release_values(const tcu_decode &p, uint32_t bars)
{
    __syncwarp();
    if ((int)threadIdx.x / 32 < p.tiles && threadIdx.x % 32 == 0)
        arrive(bars + EMPTY * 8);
}

/* Weights and values of one item. chunks: of values, so far. */
template <int D>
DEVICE void gather_values(const tcu_decode &p, const value_item &it, uint32_t tag, heads_area<D> &t, bf16 *v, uint32_t bars,
                          uint32_t &chunks)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, group = p.group;
    int last = it.s.pos / KEYS;
    float o[4] = {}, sum = 0, run = -INFINITY;
#pragma unroll 1
    for (int block = it.s.first, n; block <= last; block += n, chunks++) {
        n = loaded_from(p, it, block);
        wait_for(bars + FULL * 8, chunks & 1);
        put_own_value<D>(p, it, tag, block * KEYS, n, v); /* weigh_chunk synchronizes */
#pragma unroll 1
        for (int i = 0, some; i < n; i += some) {
            some = min(n - i, min((int)VALUE_BLOCKS, BLOCK / 4 >> p.head_shift));
            BLOCK_SYNC(); /* the weights before are read; at first: the block's own scores are done, so others' are near */
            weigh_chunk<D>(p, it, tag, block + i, some, run, t);
            if (warp < p.tiles)
                gather_chunk<D>(p, some, o, sum, t, v + i * KEYS * 8);
        }
        if (block + n <= last)
            release_values(p, bars);
    }
    if (warp < p.tiles && g < group) {
        float over = __frcp_rn(sum);
        int64_t head = (int64_t)it.s.row * p.n_heads + it.kv_head * group + g;
        put_word(p.words[HEADS] + (head * D + (it.tile + warp) * 8) / 2 + lane % 4,
                 word(pack(__fmul_rn(o[0], over), __fmul_rn(o[1], over)), tag));
    }
    BLOCK_SYNC(); /* nobody asks for heads before the block's own are done: questions delay the answers of others */
}

/* A key block of all key heads is a turn. p.turns blocks of threads have one each; the halves of the blocks that are left make one
 * more, if they are enough (p.left_turns). */
DEVICE int all_turns(const tcu_decode &p)
{
    return 2 * p.turns + p.left_turns;
}

/* Number of a half's first item, or -1: halves that do not multiply are ready first, then come blocks that have little else to do. */
DEVICE int first_item(const tcu_decode &p, int half)
{
    int whole = p.turns * p.n_kv_heads, more = p.left_turns * p.n_kv_heads, left = ((int)blockIdx.x - whole) * 2 + half;
    if ((int)blockIdx.x >= whole)
        return left < more ? whole + left : -1;
    return (int)blockIdx.x + (half ? 0 : whole + more);
}

DEVICE score_item first_scores(const tcu_decode &p, const layer_of &l, const sequences &all, int n)
{
    score_item none = {};
    none.index = -1;
    return n < 0 ? none : find_scores(p, l, all, n);
}

/* A half's next item. n: its number. */
DEVICE score_item next_scores(const tcu_decode &p, const layer_of &l, const sequences &all, const score_item &it, int &n)
{
    score_item next = it;
    n += all_turns(p) * p.n_kv_heads; /* so a half's items have the same key head */
    next.block += all_turns(p);
    if (next.block <= it.s.pos / KEYS)
        return next;
    next.index = -1;
    return it.index == p.rows - 1 ? next : find_scores(p, l, all, n);
}

/* The warp that looks after a half's keys asks for those of its next item, across layers. */
DEVICE void fill_keys(const tcu_decode &p, const layer_of *layers, const sequences &all, int half, uint32_t to, uint32_t bars)
{
    uint32_t asked = 0;
#pragma unroll 1
    for (int layer = 0; layer < p.n_layers; layer++) {
        int n = first_item(p, half);
        score_item it = first_scores(p, layers[layer], all, n);
#pragma unroll 1
        for (; it.index >= 0; asked++) {
            wait_for(bars + EMPTY * 8, asked + 1 & 1);
            load_keys(p, layer, it, to, bars + FULL * 8);
            it = next_scores(p, layers[layer], all, it, n);
        }
    }
}

typedef struct own_items { /* a block's first items of each kind, in shared memory */
    score_item scores[2];  /* of each half of the block, which take turns */
    value_item values;
    int64_t window; /* of the layers that they are for */
} own_items;

DEVICE void find_items(const tcu_decode &p, const layer_of &l, const sequences &all, own_items &own)
{
    for (int half = 0; half < 2; half++)
        own.scores[half] = first_scores(p, l, all, first_item(p, half));
    own.values = find_values(p, l, all);
    own.window = l.window;
}

/* The half that does not multiply waits for the end of the other's product: what it reads meanwhile would slow that down. A
 * barrier of both must follow, or the half that does not wait could come here twice; so scores have a barrier of their own. */
template <int BARRIER> DEVICE void after_product(bool multiplies)
{
    if (multiplies)
        asm volatile("bar.arrive %0,256;" ::"n"(BARRIER) : "memory");
    else
        asm volatile("bar.sync %0,256;" ::"n"(BARRIER) : "memory");
}

/* The scores of a half's items, after q k v. keys: its place in shared memory; taken: items so far. */
template <int D>
DEVICE void score_items(const tcu_decode &p, const layer_of &l, const sequences &all, const own_items &own, uint32_t tag,
                        bool multiplies, uint32_t keys, uint32_t bars, uint32_t &taken, heads_area<D> &t)
{
    int n = first_item(p, own_half()), there = -1; /* the sequence whose queries are in shared memory */
    score_item it = own.scores[own_half()];
    head_setup turn;
    keys_of<D> k;
    if (it.index >= 0) {
        turn = find_setup(p, l, it);
        take_keys<D>(it, keys, bars, taken++, k);
    }
    after_product<5>(multiplies);
#pragma unroll 1
    while (it.index >= 0) {
        score<D>(p, l, it, tag, turn, it.index == there, t, k);
        there = it.index;
        it = next_scores(p, l, all, it, n);
        if (it.index < 0)
            break;
        release_keys(bars);
        take_keys<D>(it, keys, bars, taken++, k);
        if (it.index != there)
            turn.t = angles_at(heads_of(p), it.s.pos);
    }
}

/* ---- a step ---- */

template <int D> struct block_state { /* in shared memory */
    const layer_of *layers;
    const sequences &all;
    own_items *own; /* of even layers, of odd ones */
    heads_area<D> &t;
    const own_matrix *matrices;
    float4 *h;
    bf16 *v;
    uint32_t v_bars;
    uint32_t keys, key_bars; /* of the own half */
    uint2 *x;
    uint32_t x_at;
    const int *groups;
    const tcu_decode_adapter *adapter;
    float *high; /* B low of the block's rows, where weights of attention are at other times */
};

/* The x of a product. */
template <int D, int ROWS>
DEVICE void take_x(const tcu_decode &p, const layer_of &l, int i, int matrix, uint32_t tag, const block_state<D> &b)
{
    bool first = i == 0;
    if (matrix == OUT || matrix == DOWN) {
        if (b.matrices[matrix].pieces)
            take_rows<ROWS>(p, p.words[matrix == OUT ? HEADS : GATE_UP], b.matrices[matrix].width, tag, b.x);
    } else {
        bool in = matrix != GATE_UP;
        norm_before<ROWS>(p, in ? l.norm_in : l.norm_post, first ? NULL : p.words[in ? DOWN : OUT], in ? tag - 1 : tag, b.h, b.x);
    }
}

/* Items of layer + 2 take the place of this one's. */
template <int D> DEVICE void look_ahead(const tcu_decode &p, int layer, const block_state<D> &b)
{
    if (layer + 2 < p.n_layers && b.own[layer % 2].window != b.layers[layer + 2].window && threadIdx.x == HALF)
        find_items(p, b.layers[layer + 2], b.all, b.own[layer % 2]);
}

/* The next layer's keys and values are asked for during a product, not while blocks wait for words. */
template <int D> DEVICE void release_cache(const tcu_decode &p, int matrix, bool gathers, bool scores, const block_state<D> &b)
{
    if (matrix == GATE_UP && gathers)
        release_values(p, b.v_bars);
    if (matrix == DOWN && scores)
        release_keys(b.key_bars);
}

/* Rows of B of matrix i of all layers' (not the head), which are asked for. */
template <int D> DEVICE const bf16 *expect_matrix(const tcu_decode &p, int i, const block_state<D> &b)
{
    int layer = i / MATRICES, matrix = i % MATRICES;
    const bf16 *rows = layer < p.n_layers ? rows_of_b(*b.adapter, matrix, b.layers[layer].group[matrix]) : NULL;
    if (rows)
        expect_high(p, *b.adapter, matrix, rows, b.matrices[matrix].base);
    return rows;
}

/* What a block's warps do, but those that ask the copy engine. All matrices share the code: it is fetched once a layer, and
 * instructions that do not fit into the cache cost more than branches. */
template <int D, int ROWS, bool LORA> DEVICE void run_layers(const tcu_decode &p, bool multiplies, ring r, const block_state<D> &b)
{
    uint32_t tag = *p.tag;
    uint32_t chunks = 0, taken = 0;
    bool gathers = false, scores = false;
    const bf16 *rows_b = LORA && !multiplies ? expect_matrix(p, 0, b) : NULL;
#pragma unroll 1
    for (int i = 0; i <= p.n_layers * MATRICES; i++) { /* after the last layer, the head */
        int layer = i / MATRICES, matrix = layer == p.n_layers ? (int)VOCAB : i % MATRICES;
        bool ahead = matrix == DOWN && layer + 1 < p.n_layers;
        const layer_of &l = b.layers[layer];
        if (matrix == QKV) { /* look_ahead writes the items of another layer there */
            gathers = b.own[layer % 2].values.index >= 0;
            scores = b.own[layer % 2].scores[own_half()].index >= 0;
        }
        if (matrix == OUT && gathers)
            gather_values<D>(p, b.own[layer % 2].values, tag, b.t, b.v, b.v_bars, chunks);
        if (i > 0 && matrix != OUT && (matrix != DOWN || b.matrices[DOWN].pieces))
            after_product<4>(multiplies);
        product q = find_product(r, p, l.bias[i % MATRICES], matrix, b.matrices[matrix], tag);
        q.adds = LORA && b.adapter->has[matrix];
        take_x<D, ROWS>(p, l, i, matrix, tag, b);
        if (matrix == VOCAB)
            break;
        release_cache<D>(p, matrix, gathers, scores, b);
        if (multiplies && q.own.cut.depth == DEEP)
            products<ROWS, LORA, DEEP, 1>(r, p, b.adapter, matrix, q, b.x_at, b.high);
        else if (multiplies && q.own.cut.at_once == 2)
            products<ROWS, LORA, 1, 2>(r, p, b.adapter, matrix, q, b.x_at, b.high);
        else if (multiplies)
            products<ROWS, LORA, 1, 1>(r, p, b.adapter, matrix, q, b.x_at, b.high);
        else {
            if (q.adds && q.own.base)
                make_high<ROWS>(p, *b.adapter, matrix, rows_b, q.own, tag, b.high);
            if (LORA)
                rows_b = expect_matrix(p, i + 1, b);
            if (ahead)
                look_ahead<D>(p, layer, b);
        }
        if (matrix == QKV)
            score_items<D>(p, l, b.all, b.own[layer % 2], tag, multiplies, b.keys, b.key_bars, taken, b.t);
        tag += matrix == DOWN;
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    if (multiplies)
        multiply_head<ROWS, LORA>(r, p, b.adapter, LORA ? rows_of_b(*b.adapter, VOCAB, b.layers[p.n_layers].group[0]) : NULL, b.matrices[VOCAB], tag, b.x_at, b.groups,
                                  &b.t.top[0][0]);
}

/* Three warps on each quarter of a multiprocessor have 168 registers a lane; the one that asks the copy engine needs few. */
DEVICE void give_registers(void)
{
#if __CUDA_ARCH__ == 900 && defined __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
#endif
}

DEVICE void take_registers(void)
{
#if __CUDA_ARCH__ == 900 && defined __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
#endif
}

/* Shared memory: the ring, keys, the ring's barriers, values, heads, the residual stream, x, the layers' table. */
/* ROWS: that x has room for. */
template <int D, int ROWS, bool LORA>
__global__ void __launch_bounds__(ALL_THREADS, 1) decode_layers(const __grid_constant__ tcu_decode p)
{
    extern __shared__ __align__(1024) unsigned char shared[]; /* tiles of the ring begin at multiples of 1024 */
    __shared__ sequences all;
    __shared__ own_items own[2];
    __shared__ own_matrix matrices[MATRICES + 1];
    __shared__ int groups[SLICES]; /* of the head */
    __shared__ tcu_decode_adapter adapter;
    __shared__ uint64_t value_bars[2], key_bars[2][2]; /* key_bars: of the halves */
    uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("" : "+r"(base)); /* kept, not computed again for each slice */
    enum { HALF_KEYS = KEYS * D * sizeof(bf16) };
    uint32_t keys = base + p.pieces * PIECE;
    ring r = { base, keys + 2 * HALF_KEYS, p.pieces, 0, 0 };
    bf16 *v = (bf16 *)(shared + p.pieces * PIECE + 2 * HALF_KEYS + SLICES * 16);
    heads_area<D> &t = *(heads_area<D> *)((unsigned char *)v + sizeof(values_area));
    float4 *h = (float4 *)((unsigned char *)(&t + 1) + WEIGHTS_BYTES);
    layer_of *layers = (layer_of *)(h + p.rows * p.hidden / 4);
    uint2 *x = (uint2 *)((unsigned char *)layers + ((p.n_layers + 1) * sizeof *layers + 15) / 16 * 16);
    for (int i = threadIdx.x; i < (int)((p.n_layers + 1) * sizeof *layers / 4); i += ALL_THREADS)
        ((uint32_t *)layers)[i] = ((const uint32_t *)p.layers)[i];
    for (int r = 0; r < p.rows; r++)
        for (int i = threadIdx.x; i < p.hidden / 4; i += ALL_THREADS)
            h[r * p.hidden / 4 + i] = unpack4(((const uint2 *)(p.embed + (int64_t)max(p.ids[r], 0) * p.hidden))[i]);
    if (threadIdx.x <= MATRICES)
        matrices[threadIdx.x] = find_matrix(p, threadIdx.x);
    if (LORA && threadIdx.x == 0)
        adapter = *p.adapter;
    uint32_t v_bars = (uint32_t)__cvta_generic_to_shared(value_bars), k_bars = (uint32_t)__cvta_generic_to_shared(key_bars);
    if (threadIdx.x == 0) {
        make_barrier(v_bars + FULL * 8, 1);
        make_barrier(v_bars + EMPTY * 8, p.tiles); /* a warp each */
        for (int half = 0; half < 2; half++) {
            make_barrier(k_bars + half * 16 + FULL * 8, 1);
            make_barrier(k_bars + half * 16 + EMPTY * 8, TEAM / 2);
        }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *p.groups = 0; /* blocks ask for groups after the layers, so after words of this block */
        __threadfence();
    }
    make_ring(r);
    read_sequences(p, all);
    __syncthreads();
    if (threadIdx.x < 2)
        find_items(p, layers[min((int)threadIdx.x, p.n_layers - 1)], all, own[threadIdx.x]);
    __syncthreads(); /* the last time that all warps meet */
    uint32_t x_at = (uint32_t)__cvta_generic_to_shared(x);
    asm volatile("" : "+r"(x_at));
    int role = __shfl_sync(0xffffffffu, (int)threadIdx.x / HALF, 0);
    block_state<D> b = { layers, all, own, t, matrices, h, v, v_bars, keys + role * HALF_KEYS, k_bars + role * 16, x, x_at, groups,
                         &adapter, (float *)(&t + 1) };
    if (role == 2) {
        give_registers();
        int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32 - TEAM, 0), half = warp - 2;
        if (warp == 0)
            fill_ring(p, layers, matrices, adapter, r, groups);
        else if (warp == 1)
            fill_values(p, layers, all, (uint32_t)__cvta_generic_to_shared(v), v_bars);
        else
            fill_keys(p, layers, all, half, keys + half * HALF_KEYS, k_bars + half * 16);
    } else {
        take_registers();
        run_layers<D, ROWS, LORA>(p, role == 0, r, b);
    }
}

/* ---- launches ---- */

static int make_map(void *map, const tcu_bf16 *at, const cuuint64_t dims[3], const cuuint64_t strides[2], const cuuint32_t box[3],
                    CUtensorMapSwizzle swizzle)
{
    void *encode = NULL;
    cuuint32_t steps[3] = { 1, 1, 1 };
    cudaDriverEntryPointQueryResult found;
    int e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
    if (e || !encode)
        return e ? e : cudaErrorNotSupported;
    CUresult r = ((PFN_cuTensorMapEncodeTiled_v12000)encode)((CUtensorMap *)map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)at,
                                                             dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/* A matrix as the copy engine sees it: tiles of 64 columns, so that one copy brings a piece. */
int tcu_decode_map(void *map, const tcu_bf16 *w, int64_t rows, int64_t k)
{
    cuuint64_t dims[3] = { 64, (cuuint64_t)rows, (cuuint64_t)k / 64 }, strides[2] = { (cuuint64_t)k * sizeof(bf16), 128 };
    cuuint32_t box[3] = { 64, 8, PIECE_K / 64 };
    return make_map(map, w, dims, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

int tcu_rows_map(void *map, const tcu_bf16 *x, int64_t rows, int64_t k, int32_t box_rows)
{
    cuuint64_t dims[3] = { 64, (cuuint64_t)rows, (cuuint64_t)k / 64 }, strides[2] = { (cuuint64_t)k * sizeof(bf16), 128 };
    cuuint32_t box[3] = { 64, (cuuint32_t)box_rows, 1 };
    return make_map(map, x, dims, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

/* The cache: a copy brings 64 columns of a head's keys in one block, or 8 of its values. */
int tcu_decode_cache_map(void *map, bool keys, const tcu_bf16 *data, int64_t d, int64_t stride, int64_t blocks)
{
    cuuint64_t dims[3] = { (cuuint64_t)d, (cuuint64_t)(stride / d), (cuuint64_t)blocks };
    cuuint64_t strides[2] = { (cuuint64_t)d * sizeof(bf16), (cuuint64_t)stride * sizeof(bf16) };
    cuuint32_t box[3] = { keys ? 64u : 8u, TCU_CACHE_TOKENS, 1 };
    return make_map(map, data, dims, strides, box, keys ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE);
}

static_assert(HIGH_PIECES * 8 * TCU_DECODE_ROWS * sizeof(float) <= WEIGHTS_BYTES, "what an adapter adds lies where weights of attention do");
static_assert(2 * KEYS * 64 * sizeof(bf16) + sizeof(values_area) >= (MOST_SIDE - 1) * PIECE, "an instruction reads past the ring's last slice");

/* Of a block, without the ring's pieces. */
static size_t shared_bytes(const tcu_decode *p)
{
    size_t q = (size_t)p->n_heads * (size_t)p->d, rows = (size_t)p->rows;
    size_t widest = (size_t)(p->inner > p->hidden ? p->inner : p->hidden);
    widest = q > widest ? q : widest;
    return 2 * KEYS * (size_t)p->d * sizeof(bf16) + SLICES * 16 + sizeof(values_area) + (p->d == 64 ? sizeof(heads_area<64>) : sizeof(heads_area<128>)) + WEIGHTS_BYTES +
           rows * (size_t)p->hidden * sizeof(float) + (((size_t)p->n_layers + 1) * sizeof(layer_of) + 15) / 16 * 16 +
           (rows > 1 ? TCU_DECODE_ROWS : 1) * (widest + 2 * PIECE_K) * sizeof(bf16) + 128; /* an instruction reads 8 rows of x */
}

/* A large model needs more requests on the way than a small one, which waits for words. */
static int32_t on_the_way(const tcu_decode *p, int32_t processors)
{
    int64_t rows = (p->n_heads + 2 * p->n_kv_heads) * p->d + 2 * p->inner, width = p->n_heads * p->d + p->inner;
    int64_t pieces = (rows * p->hidden + width * p->hidden) * (int64_t)sizeof(bf16) / PIECE / processors; /* of a layer, of a block */
    return pieces < 128 ? SMALL_WAY : LARGE_WAY;
}

bool tcu_decode_here(void)
{
    cudaFuncAttributes a;
    return cudaFuncGetAttributes(&a, decode_layers<128, 1, false>) == cudaSuccess && a.binaryVersion == 90 && a.ptxVersion >= 90;
}

bool tcu_decode_plan(tcu_decode *p, int32_t processors, size_t shared)
{
    if (p->rows < 1 || p->rows > TCU_DECODE_ROWS || (p->d != 64 && p->d != 128) || p->n_heads / p->n_kv_heads > MOST_GROUP ||
        p->n_kv_heads > processors || p->hidden > WIDTH_PIECES * ROW_PIECE || p->vocab > TCU_DRAW_VOCAB || (p->hidden | p->inner | p->n_heads * p->d) % 64)
        return false;
    p->group = p->n_heads / p->n_kv_heads;
    p->tile_shift = 0;
    for (p->tiles = 1; p->rows * p->n_kv_heads * (p->d / 8 / p->tiles) > processors; p->tiles *= 2, p->tile_shift++)
        if (p->tiles == TEAM)
            return false;
    for (p->head_shift = 0; 1 << p->head_shift < p->group;)
        p->head_shift++;
    size_t taken = shared_bytes(p) + sizeof(sequences) + 2 * sizeof(own_items) + (MATRICES + 1) * sizeof(own_matrix) + SLICES * sizeof(int) + 6 * sizeof(uint64_t) +
                   sizeof(tcu_decode_adapter) + 1024; /* what is declared with a size */
    p->pieces = shared > taken ? (int32_t)((shared - taken) / PIECE) : 0;
    p->turns = processors / p->n_kv_heads;
    p->left_turns = processors % p->n_kv_heads * 2 / p->n_kv_heads;
    p->on_the_way = on_the_way(p, processors);
    int64_t units = (p->inner + 8 * processors - 1) / (8 * processors) * 2, other = p->hidden / 8 / processors + 1,
            qkv = ((p->n_heads + 2 * p->n_kv_heads) * p->d / 8 + processors - 1) / processors;
    units = units > other ? units : other;
    return p->pieces >= FEWEST_PIECES && (!p->adapter || (units > qkv ? units : qkv) <= HIGH_PIECES);
}

int tcu_decode_layers(const tcu_decode *p, int32_t processors, tcu_stream stream)
{
    enum { MOST = TCU_DECODE_ROWS };
    void (*kernels[2][2][2])(const tcu_decode) = {
        { { decode_layers<64, 1, false>, decode_layers<64, MOST, false> }, { decode_layers<128, 1, false>, decode_layers<128, MOST, false> } },
        { { decode_layers<64, 1, true>, decode_layers<64, MOST, true> }, { decode_layers<128, 1, true>, decode_layers<128, MOST, true> } }
    };
    void (*kernel)(const tcu_decode) = kernels[p->adapter != NULL][p->d == 128][p->rows > 1];
    size_t bytes = shared_bytes(p) + (size_t)p->pieces * PIECE;
    void *arguments[] = { (void *)p };
    int e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (!e)
        e = cudaLaunchCooperativeKernel((const void *)kernel, dim3(processors), dim3(ALL_THREADS), arguments, bytes, stream);
    return e;
}
