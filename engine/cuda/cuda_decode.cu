/* cuda_decode.cu - all layers of a decoding step of very few rows, in one launch.
 *
 * Layer by layer such a step waits for launches and for chains of K / 16 matrix instructions, not for bytes. Here one block of
 * threads stays on every multiprocessor, and a layer has six phases:
 *
 *     norm, q k v | rotation, scores | weights, values | o | norm, gate and up, SwiGLU | down
 *
 * Blocks have no barrier in common. What one block computes and others need, it writes as words that carry a tag, the number
 * of the layer: a reader repeats its read until the tag is there. A word is written again one layer later, when everybody has
 * read it: a block that reads words computes others from them, which the next layer's words depend on.
 *
 * Of a block's twelve warps the first four multiply (wgmma: the block's rows of a matrix are one chain), the next four look after
 * scores meanwhile, and all eight share norms, weights of attention and copies. The ninth keeps a ring of the next pieces of
 * weights filled across phases and layers: the memory does not wait for other blocks. The last three only give their registers
 * to the others. Attention is divided by key blocks
 * (scores), then by columns (values).
 *
 * Every number is computed by the instructions of the layered path in the same order, so the bits are the same: products are
 * the chain of cuda_chain.cuh (wgmma gives its bits), rows those of cuda_rows.cuh, attention that of cuda_attention.cu. Must
 * not: change how a number is computed; run with rows that have adapters. Needs compute capability 9.0a.
 */
/* The warps that compute; one more fills their ring. */
#define BLOCK_SYNC() asm volatile("bar.sync 1,256;" ::: "memory")
#define BLOCK_WARPS  8
#include "cuda/cuda_attention.cuh"
#include "cuda/cuda_rows.cuh"

#include <cuda.h>
#include <cudaTypedefs.h>

enum { TEAM = 8, BLOCK = TEAM * 32, HALF = BLOCK / 2 }; /* warps, threads; threads that multiply, or that score */
enum { ALL_THREADS = BLOCK + HALF };                    /* with the warp that fills the ring, and three that only lend registers */
/* A piece: 8 rows of a matrix, PIECE_K numbers of each, in tiles of 64 columns whose 16-byte pieces are permuted by the copy. */
enum { PIECE_K = 256, TILE = 8 * 128, PIECE = PIECE_K / 64 * TILE }; /* bytes */
/* A slice: pieces side by side, the rows of one instruction, one or two along k. At most SLICES of them are in the ring. */
enum { MOST_SIDE = 8, SLICES = 32, FEWEST_PIECES = 2 * MOST_SIDE };
enum { VALUE_BLOCKS = 32, VALUE_ROWS = VALUE_BLOCKS * KEYS }; /* key blocks, rows of 8 values, in shared memory at a time */
enum { WEIGHTS_BYTES = BLOCK * (KEYS / 8) * 4 }; /* of the key blocks that are weighed at a time: a quad has a head of one */
enum { IDS = 512 };                              /* cache blocks of a row that are looked up in shared memory */
enum { MOST_GROUP = 8, WIDTH_PIECES = 4 };
enum matrix { QKV = 0, OUT, GATE_UP, DOWN, MATRICES };
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

/* Pieces of each row in a slice: two, if a block has so few that they leave room. */
DEVICE int depth_of(int pieces)
{
    return pieces <= MOST_SIDE / 2 ? 2 : 1;
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
    int width, given;       /* k; numbers that the whole matrix gives */
} own_matrix;

DEVICE own_matrix find_matrix(const tcu_decode &p, int matrix)
{
    int width = width_of(p, matrix), pieces = own_units(p, matrix) * (matrix == GATE_UP ? 2 : 1);
    return { pieces, pieces_of(width), width, given_by(p, matrix) };
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

DEVICE void make_ring(const ring &r)
{
#if __CUDA_ARCH__ >= 900
    if ((int)threadIdx.x < SLICES) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0],1;" ::"r"(bar_of(r, threadIdx.x, FULL)) : "memory");
        asm volatile("mbarrier.init.shared::cta.b64 [%0],4;" ::"r"(bar_of(r, threadIdx.x, EMPTY)) : "memory"); /* a warp each */
    }
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Waits for the end of a phase (its parity). */
DEVICE void wait_for(uint32_t bar, uint32_t phase)
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred done;\nagain: mbarrier.try_wait.parity.shared::cta.b64 done,[%0],%1;\n@!done bra again;\n}" ::"r"(bar),
        "r"(phase)
        : "memory");
#endif
}

DEVICE void arrive(uint32_t bar)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(bar) : "memory");
#endif
}

DEVICE void expect(uint32_t bar, int bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(bar), "r"(bytes) : "memory");
#endif
}

/* One copy brings a piece; zero past the end of a row. */
DEVICE void copy_piece(uint32_t to, const void *map, int row, int tile, uint32_t bar)
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0],[%1,{%2,%3,%4}],[%5];" ::"r"(to),
        "l"(map), "r"(0), "r"(row), "r"(tile), "r"(bar)
        : "memory");
#endif
}

typedef struct filler { /* the filling warp's */
    ring r;
    int free;      /* pieces */
    uint32_t done; /* slices known to be used */
    int cost;      /* of slices n with n % SLICES == lane: pieces, with those skipped */
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
    f.cost = threadIdx.x % 32 == f.r.n % SLICES ? need : f.cost;
}

/* The slices of a block's pieces first .. first + side - 1 of a matrix, n along k; a lane brings a piece of each. */
DEVICE void fill_slices(const tcu_decode &p, const layer_of &l, int matrix, int n, int first, int side, int depth, filler &f)
{
    int lane = threadIdx.x % 32, size = side * depth;
    int row = row_of(p, matrix, first + lane % side), along = min(lane / side, depth - 1);
    const void *map = l.map[matrix];
#pragma unroll 1
    for (int k = 0; k < n; k += depth) {
        make_room(f, size);
        uint32_t bar = bar_of(f.r, f.r.n, FULL), at = next_slice(f.r, size);
        if (lane == 0)
            expect(bar, size * PIECE);
        __syncwarp();
        if (lane < size)
            copy_piece(at + lane * PIECE, map, row, (k + along) * (PIECE_K / 64), bar);
    }
}

DEVICE void fill_ring(const tcu_decode &p, const layer_of *layers, const own_matrix *own, const ring &r)
{
    filler f = { r, r.pieces, 0, 0 };
#pragma unroll 1
    for (int i = 0; i < p.n_layers * MATRICES; i++) {
        int matrix = i % MATRICES, n = own[matrix].pieces;
#pragma unroll 1
        for (int first = 0; first < n; first += MOST_SIDE)
            fill_slices(p, layers[i / MATRICES], matrix, own[matrix].along, first, min((int)MOST_SIDE, n - first), depth_of(n), f);
    }
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
DEVICE void norm_before(const tcu_decode &p, const float *weights, const uint64_t *from, uint32_t tag, float *out, float4 *h,
                        uint2 *x)
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
            if (out)
                ((float4 *)out)[(int64_t)r * p.hidden / 4 + i] = v[j];
        }
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
    bf16 *plain; /* or NULL: in addition, for what follows the launch */
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
        if (row < rows && to.plain)
            to.plain[(int64_t)row * to.width + column] = v[e];
    }
}

/* What a warp has of the rows from piece `first` on. */
template <int ROWS>
DEVICE void finish(const tcu_decode &p, const float *bias, int matrix, const given &to, int first, int n, const float acc[4])
{
    enum { OWN = ROWS > 1 ? 2 : 1 }; /* rows of x that a lane has */
    int mine = first + threadIdx.x / 32 * 2, g = threadIdx.x % 32 / 4;
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

/* The chain of `side` pieces of rows along k, by slices of DEPTH of them. What is done for each slice takes half as long as its 16
 * or 32 matrix instructions. */
template <int ROWS, int DEPTH> DEVICE void chain(ring &r, int along, int side, uint32_t x, float acc[4])
{
#pragma unroll 1
    for (int i = 0; i < along; i += DEPTH, x += DEPTH * PIECE_K * 2 * ROWS) {
        uint32_t n = r.n, at = next_slice(r, side * DEPTH), a = low_half(at, 1), b = low_half(x, ROWS);
        uint32_t second = DEPTH > 1 ? low_half(at + side * PIECE, 1) : 0;
        wait_for(bar_of(r, n, FULL), phase_of(n));
        multiply_begin();
        multiply_piece<ROWS>(acc, a, b);
        if (DEPTH > 1)
            multiply_piece<ROWS>(acc, second, b + PIECE_K * 2 * ROWS / 16);
        multiply_commit();
        multiply_wait<1>();
        if (i && threadIdx.x % 32 == 0)
            arrive(bar_of(r, n - 1, EMPTY));
    }
    multiply_wait<0>();
    asm volatile("" : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])::"memory");
    if (threadIdx.x % 32 == 0)
        arrive(bar_of(r, r.n - 1, EMPTY));
}

/* Each depth has its own sums, or the compiler has every matrix instruction wait for the one before. */
template <int ROWS, int DEPTH>
DEVICE void products(ring &r, const tcu_decode &p, const layer_of &l, int matrix, const own_matrix &own, uint32_t tag, bf16 *plain,
                     uint32_t x)
{
    given to = { p.words[matrix], plain, own.given, tag };
#pragma unroll 1
    for (int first = 0; first < own.pieces; first += MOST_SIDE) {
        float acc[4] = {};
        chain<ROWS, DEPTH>(r, own.along, min((int)MOST_SIDE, own.pieces - first), x, acc);
        finish<ROWS>(p, l.bias[matrix], matrix, to, first, own.pieces, acc);
    }
}

/* ---- attention ---- */

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

template <int D> struct heads_area {
    __align__(16) bf16 q[2][MOST_GROUP * D], key[2][D], raw[TEAM][D]; /* of a half of the block; raw: just read, by a warp */
    float top[VALUE_BLOCKS][MOST_GROUP], shrink[VALUE_BLOCKS][MOST_GROUP], part[VALUE_BLOCKS][MOST_GROUP];
};

typedef bf16 values_area[VALUE_ROWS * 8]; /* [tile][key][8] */

/* Weights of key block i of a chunk, behind the rest, as operands: [step][half of k][head of the group][4]. */
template <int D> DEVICE uint32_t *weights_of(const tcu_decode &p, const heads_area<D> *t, int i)
{
    return (uint32_t *)(t + 1) + (i * (KEYS / 8) << (2 + p.head_shift));
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

DEVICE const bf16 *cached(const tcu_decode &p, const layer_of &l, int block, int kv_head, int key)
{
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

/* The row's own key is not there yet. */
template <int D> DEVICE void load_old_keys(const tcu_decode &p, const layer_of &l, const score_item &it, keys_of<D> &k)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < SCORED; n++) {
        int key = first_scored(it) + n * 8 + lane / 4;
        bool there = it.index >= 0 && key < it.s.pos;
        const bf16 *from = there ? cached(p, l, cache_block(it.s, key), it.kv_head, key) + lane % 4 * 4 : NULL;
#pragma unroll
        for (int i = 0; i < D / 16; i++)
            k.k[n][i] = there ? __ldcg((const uint2 *)(from + i * 16)) : make_uint2(0, 0);
    }
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

/* The scoring warps ask for values of n key blocks from key0 on; zero past the row's own, which is not there yet. */
DEVICE void load_values(const tcu_decode &p, const layer_of &l, const value_item &it, int key0, int n, bf16 *v)
{
    enum { AHEAD = 4 };
    int shift = p.tile_shift, keys = VALUE_ROWS >> shift;
#pragma unroll 1
    for (int at = threadIdx.x - HALF; at < n * KEYS << shift; at += HALF * AHEAD) {
        int block[AHEAD]; /* looked up together: one by one they would take longer than the copies */
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            int key = key0 + (at + j * HALF >> shift);
            block[j] = key < it.s.pos ? cache_block(it.s, key) : 0;
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            int i = at + j * HALF >> shift, tile = at + j * HALF & (p.tiles - 1), key = key0 + i;
            bool there = key < it.s.pos;
            const bf16 *from = cached(p, l, block[j], it.kv_head, key) + p.values + (it.tile + tile) * 8;
            if (i < n * KEYS && key != it.s.pos)
                copy16(v + (tile * keys + i) * 8, there ? from : l.cache, there);
        }
    }
    copy_commit();
}

/* The row's own value, from q, k and v. */
template <int D> DEVICE void put_own_value(const tcu_decode &p, const value_item &it, uint32_t tag, int key0, bf16 *v)
{
    int keys = VALUE_ROWS >> p.tile_shift, i = it.s.pos - key0, tile = threadIdx.x;
    if (threadIdx.x >= 32 || i < 0 || i >= keys)
        return;
    bool own = tile < p.tiles;
    int column = (p.n_heads + p.n_kv_heads + it.kv_head) * D + (it.tile + tile) * 8;
    const uint64_t *from = p.words[QKV] + ((int64_t)it.s.row * given_by(p, QKV) + column) / 2;
    words a = own ? read_words(from) : words{}, b = own ? read_words(from + 2) : words{};
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
    const uint64_t *from =
        p.scores + ((int64_t)it.index * p.n_heads + it.kv_head * group + g) * p.ld_scores + (block0 + i) * KEYS + lane % 4 * 2;
    do {
        there = true;
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) {
            words v = { word(0xff800000u, tag), word(0xff800000u, tag) }; /* -INFINITY */
            if (own)
                v = read_words(from + j * 8);
            there = there && are_of(v, tag);
            s[j] = make_float2(__uint_as_float((uint32_t)v.a), __uint_as_float((uint32_t)v.b));
        }
    } while (!__all_sync(0xffffffffu, there));
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
    uint32_t *w = weights_of(p, &t, i) + g * 4 + lane % 4;
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++) {
        s[j].x = power(s[j].x, scale2, base);
        part = __fadd_rn(part, s[j].x);
        s[j].y = power(s[j].y, scale2, base);
        part = __fadd_rn(part, s[j].y);
        if (own)
            w[j << (2 + p.head_shift)] = pack(s[j].x, s[j].y);
    }
    part = __fadd_rn(part, __shfl_xor_sync(0xffffffffu, part, 1));
    part = __fadd_rn(part, __shfl_xor_sync(0xffffffffu, part, 2));
    if (own && lane % 4 == 0) {
        t.shrink[i][g] = power(before, scale2, base);
        t.part[i][g] = part;
    }
    BLOCK_SYNC();
}

/* What a key block adds: its weights and values as operands, sums and shrinks. */
typedef struct addend {
    uint32_t a[4][2], b[2][4];
    float shrink, part;
} addend;

template <int D> DEVICE void load_addend(const tcu_decode &p, addend &x, const heads_area<D> &t, const bf16 *v, int i)
{
    int lane = threadIdx.x % 32, lanes = 4 << p.head_shift;
    const uint32_t *w = weights_of(p, &t, i) + (lane & (lanes - 1)); /* rows past the group are not used */
    x.shrink = t.shrink[i][lane / 4];
    x.part = t.part[i][lane / 4];
#pragma unroll
    for (int s = 0; s < 4; s++) {
        x.a[s][0] = w[s * 2 * lanes];
        x.a[s][1] = w[(s * 2 + 1) * lanes];
    }
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

/* Key blocks of the values that are loaded from `block` on. */
DEVICE int loaded_from(const tcu_decode &p, const value_item &it, int block)
{
    return min(VALUE_BLOCKS >> p.tile_shift, it.s.pos / KEYS - block + 1);
}

/* Weights and values of one item; the values of its first chunk were asked for. */
template <int D>
DEVICE void gather_values(const tcu_decode &p, const layer_of &l, const value_item &it, uint32_t tag, heads_area<D> &t, bf16 *v)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, group = p.group;
    int last = it.s.pos / KEYS;
    float o[4] = {}, sum = 0, run = -INFINITY;
#pragma unroll 1
    for (int block = it.s.first, n; block <= last; block += n) {
        n = loaded_from(p, it, block);
        if (block > it.s.first) {
            BLOCK_SYNC(); /* the values before are read */
            if (threadIdx.x >= HALF)
                load_values(p, l, it, block * KEYS, n, v);
        }
        put_own_value<D>(p, it, tag, block * KEYS, v);
        copy_wait<0>(); /* weigh_chunk synchronizes */
#pragma unroll 1
        for (int i = 0, some; i < n; i += some) {
            some = min(n - i, min((int)VALUE_BLOCKS, BLOCK / 4 >> p.head_shift));
            if (i)
                BLOCK_SYNC(); /* the weights before are read */
            weigh_chunk<D>(p, it, tag, block + i, some, run, t);
            if (warp < p.tiles)
                gather_chunk<D>(p, some, o, sum, t, v + i * KEYS * 8);
        }
    }
    if (warp < p.tiles && g < group) {
        float over = __frcp_rn(sum);
        int64_t head = (int64_t)it.s.row * p.n_heads + it.kv_head * group + g;
        put_word(p.words[HEADS] + (head * D + (it.tile + warp) * 8) / 2 + lane % 4,
                 word(pack(__fmul_rn(o[0], over), __fmul_rn(o[1], over)), tag));
    }
}

typedef struct own_items { /* a block's first items of each kind, in shared memory */
    score_item scores[2];  /* of each half of the block, which take turns */
    value_item values;
    int64_t window; /* of the layers that they are for */
    int turn;       /* key blocks from one item of a half to its next, of the same sequence */
} own_items;

DEVICE score_item next_scores(const tcu_decode &p, const layer_of &l, const sequences &all, const own_items &own,
                              const score_item &it, int &n)
{
    score_item next = it;
    n += own.turn * p.n_kv_heads; /* so a block's items have the same key head */
    next.block += own.turn;
    if (next.block <= it.s.pos / KEYS)
        return next;
    next.index = -1;
    return it.index == p.rows - 1 ? next : find_scores(p, l, all, n);
}

/* Number of a half's first item: the half that does not multiply is ready first. */
DEVICE int first_item(const tcu_decode &p, int half)
{
    return (int)blockIdx.x + (half ? 0 : (int)gridDim.x / p.n_kv_heads * p.n_kv_heads);
}

DEVICE void find_items(const tcu_decode &p, const layer_of &l, const sequences &all, own_items &own)
{
    int turn = (int)gridDim.x / p.n_kv_heads;
    for (int half = 0; half < 2; half++) {
        own.scores[half] = find_scores(p, l, all, first_item(p, half));
        if ((int)blockIdx.x >= turn * p.n_kv_heads)
            own.scores[half].index = -1;
    }
    own.values = find_values(p, l, all);
    own.window = l.window;
    own.turn = 2 * turn;
}

/* The half that does not multiply asks for values of earlier steps, of a block's item, one product before they are used. */
DEVICE void ask_values(const tcu_decode &p, const layer_of &l, const value_item &mine, bf16 *v)
{
    if (mine.index >= 0)
        load_values(p, l, mine, mine.s.first * KEYS, loaded_from(p, mine, mine.s.first), v);
}

/* The scores of a half's items; the keys of the first were asked for. */
template <int D>
DEVICE void score_items(const tcu_decode &p, const layer_of &l, const sequences &all, const own_items &own, uint32_t tag,
                        keys_of<D> &k, heads_area<D> &t)
{
    int n = first_item(p, own_half()), there = -1; /* the sequence whose queries are in shared memory */
    score_item it = own.scores[own_half()];
    if (it.index < 0)
        return;
    head_setup turn = find_setup(p, l, it);
#pragma unroll 1
    while (it.index >= 0) {
        score<D>(p, l, it, tag, turn, it.index == there, t, k);
        there = it.index;
        it = next_scores(p, l, all, own, it, n);
        load_old_keys<D>(p, l, it, k);
        if (it.index >= 0 && it.index != there)
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
    uint2 *x;
    uint32_t x_at;
};

/* The x of a product. */
template <int D, int ROWS> DEVICE void take_x(const tcu_decode &p, const layer_of &l, int i, uint32_t tag, const block_state<D> &b)
{
    int matrix = i % MATRICES;
    bool first = i == 0, last = i / MATRICES == p.n_layers - 1;
    if (matrix == OUT || matrix == DOWN) {
        if (b.matrices[matrix].pieces)
            take_rows<ROWS>(p, p.words[matrix == OUT ? HEADS : GATE_UP], b.matrices[matrix].width, tag, b.x);
    } else if (b.matrices[QKV].pieces + b.matrices[GATE_UP].pieces) {
        bool in = matrix == QKV;
        norm_before<ROWS>(p, in ? l.norm_in : l.norm_post, first ? NULL : p.words[in ? DOWN : OUT], in ? tag - 1 : tag,
                          !in && last && blockIdx.x == 0 ? p.h_mid : NULL, b.h, b.x);
    } else {
        BLOCK_SYNC(); /* all have read values and weights of this layer */
    }
}

/* The half that does not multiply waits for the end of the other's product: what it reads meanwhile would slow that down. A
 * barrier of both must follow, or the half that does not wait could come here twice. */
DEVICE void after_product(bool multiplies)
{
    if (multiplies)
        asm volatile("bar.arrive 4,256;" ::: "memory");
    else
        asm volatile("bar.sync 4,256;" ::: "memory");
}

/* What the half that does not multiply does during the last product of a layer, which is the longest: it asks for the next one's
 * values. */
template <int D> DEVICE void look_ahead(const tcu_decode &p, int layer, const block_state<D> &b)
{
    ask_values(p, b.layers[layer + 1], b.own[(layer + 1) % 2].values, b.v);
    if (layer + 2 < p.n_layers && b.own[layer % 2].window != b.layers[layer + 2].window && threadIdx.x == HALF)
        find_items(p, b.layers[layer + 2], b.all, b.own[layer % 2]);
}

/* What a block's warps do, but the one that fills the ring. All matrices share the code: it is fetched once a layer, and
 * instructions that do not fit into the cache cost more than branches. */
template <int D, int ROWS> DEVICE void run_layers(const tcu_decode &p, bool multiplies, ring r, const block_state<D> &b)
{
    uint32_t tag = *p.counter - (uint32_t)p.n_layers;
    keys_of<D> k;
    if (!multiplies)
        ask_values(p, b.layers[0], b.own[0].values, b.v);
    load_old_keys<D>(p, b.layers[0], b.own[0].scores[own_half()], k);
#pragma unroll 1
    for (int i = 0; i < p.n_layers * MATRICES; i++) {
        int matrix = i % MATRICES, layer = i / MATRICES;
        bool ahead = matrix == DOWN && layer + 1 < p.n_layers;
        const layer_of &l = b.layers[layer];
        if (matrix == OUT && b.own[layer % 2].values.index >= 0)
            gather_values<D>(p, l, b.own[layer % 2].values, tag, b.t, b.v);
        if (i > 0 && matrix != OUT && (matrix != DOWN || b.matrices[DOWN].pieces))
            after_product(multiplies);
        if (ahead)
            load_old_keys<D>(p, b.layers[layer + 1], b.own[(layer + 1) % 2].scores[own_half()], k);
        take_x<D, ROWS>(p, l, i, tag, b);
        bf16 *plain = matrix == DOWN && !ahead ? p.y : NULL;
        if (multiplies && depth_of(b.matrices[matrix].pieces) == 2)
            products<ROWS, 2>(r, p, l, matrix, b.matrices[matrix], tag, plain, b.x_at);
        else if (multiplies)
            products<ROWS, 1>(r, p, l, matrix, b.matrices[matrix], tag, plain, b.x_at);
        else if (ahead)
            look_ahead<D>(p, layer, b);
        if (matrix == QKV)
            score_items<D>(p, l, b.all, b.own[layer % 2], tag, k, b.t);
        tag += matrix == DOWN;
    }
}

/* Three warps on each quarter of a multiprocessor have 168 registers a lane; the one that fills the ring needs few. */
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

/* Shared memory: the ring and its barriers, values, heads, the residual stream, x, the layers' table. */
/* ROWS: that x has room for. */
template <int D, int ROWS> __global__ void __launch_bounds__(ALL_THREADS, 1) decode_layers(const __grid_constant__ tcu_decode p)
{
    extern __shared__ __align__(1024) unsigned char shared[]; /* tiles of the ring begin at multiples of 1024 */
    __shared__ sequences all;
    __shared__ own_items own[2];
    __shared__ own_matrix matrices[MATRICES];
    uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("" : "+r"(base)); /* kept, not computed again for each slice */
    ring r = { base, base + p.pieces * PIECE, p.pieces, 0, 0 };
    bf16 *v = (bf16 *)(shared + p.pieces * PIECE + SLICES * 16);
    heads_area<D> &t = *(heads_area<D> *)((unsigned char *)v + sizeof(values_area));
    float4 *h = (float4 *)((unsigned char *)(&t + 1) + WEIGHTS_BYTES);
    layer_of *layers = (layer_of *)(h + p.rows * p.hidden / 4);
    uint2 *x = (uint2 *)((unsigned char *)layers + (p.n_layers * sizeof *layers + 15) / 16 * 16);
    for (int i = threadIdx.x; i < (int)(p.n_layers * sizeof *layers / 4); i += ALL_THREADS)
        ((uint32_t *)layers)[i] = ((const uint32_t *)p.layers)[i];
    for (int i = threadIdx.x; i < p.rows * p.hidden / 4; i += ALL_THREADS)
        h[i] = ((const float4 *)p.h)[i];
    if (threadIdx.x < MATRICES)
        matrices[threadIdx.x] = find_matrix(p, threadIdx.x);
    make_ring(r);
    read_sequences(p, all);
    __syncthreads();
    if (threadIdx.x < 2)
        find_items(p, layers[min((int)threadIdx.x, p.n_layers - 1)], all, own[threadIdx.x]);
    __syncthreads(); /* the last time that all warps meet */
    uint32_t x_at = (uint32_t)__cvta_generic_to_shared(x);
    asm volatile("" : "+r"(x_at));
    block_state<D> b = { layers, all, own, t, matrices, h, v, x, x_at };
    int role = __shfl_sync(0xffffffffu, (int)threadIdx.x / HALF, 0);
    if (role == 2) {
        give_registers();
        if (threadIdx.x < BLOCK + 32)
            fill_ring(p, layers, matrices, r);
    } else {
        take_registers();
        run_layers<D, ROWS>(p, role == 0, r, b);
    }
}

/* Tags of a launch: counter - n_layers .. counter - 1, which no word has. They begin again after 2^32 layers; then words of
 * former rounds are forgotten. */
static __global__ void begin_launch(uint32_t *counter, uint32_t layers, uint64_t *words, int64_t n)
{
    uint32_t now = *counter;
    bool again = now > UINT32_MAX - 2 * (layers + 1);
    for (int64_t i = threadIdx.x; again && i < n; i += blockDim.x)
        words[i] = 0;
    __syncthreads();
    if (threadIdx.x == 0)
        *counter = (again ? 0 : now) + layers + 1;
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
    CUresult r =
        ((PFN_cuTensorMapEncodeTiled_v12000)encode)((CUtensorMap *)map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)w, dims,
                                                    strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                                    CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

static_assert(sizeof(values_area) >= (MOST_SIDE - 1) * PIECE, "an instruction reads past the ring's last slice");

/* Of a block, without the ring's pieces. */
static size_t shared_bytes(const tcu_decode *p)
{
    size_t q = (size_t)p->n_heads * (size_t)p->d, rows = (size_t)p->rows;
    size_t widest = (size_t)(p->inner > p->hidden ? p->inner : p->hidden);
    widest = q > widest ? q : widest;
    return SLICES * 16 + sizeof(values_area) + (p->d == 64 ? sizeof(heads_area<64>) : sizeof(heads_area<128>)) + WEIGHTS_BYTES +
           rows * (size_t)p->hidden * sizeof(float) + ((size_t)p->n_layers * sizeof(layer_of) + 15) / 16 * 16 +
           (rows > 1 ? TCU_DECODE_ROWS : 1) * (widest + 2 * PIECE_K) * sizeof(bf16) + 128; /* an instruction reads 8 rows of x */
}

bool tcu_decode_here(void)
{
    cudaFuncAttributes a;
    return cudaFuncGetAttributes(&a, decode_layers<128, 1>) == cudaSuccess && a.binaryVersion == 90 && a.ptxVersion >= 90;
}

bool tcu_decode_plan(tcu_decode *p, int32_t processors, size_t shared)
{
    if (p->rows < 1 || p->rows > TCU_DECODE_ROWS || (p->d != 64 && p->d != 128) || p->n_heads / p->n_kv_heads > MOST_GROUP ||
        p->n_kv_heads > processors || p->hidden > WIDTH_PIECES * ROW_PIECE || (p->hidden | p->inner | p->n_heads * p->d) % 64)
        return false;
    p->group = p->n_heads / p->n_kv_heads;
    p->tile_shift = 0;
    for (p->tiles = 1; p->rows * p->n_kv_heads * (p->d / 8 / p->tiles) > processors; p->tiles *= 2, p->tile_shift++)
        if (p->tiles == TEAM)
            return false;
    for (p->head_shift = 0; 1 << p->head_shift < p->group;)
        p->head_shift++;
    size_t taken = shared_bytes(p) + sizeof(sequences) + 2 * sizeof(own_items) + MATRICES * sizeof(own_matrix) +
                   1024; /* what is declared with a size */
    p->pieces = shared > taken ? (int32_t)((shared - taken) / PIECE) : 0;
    return p->pieces >= FEWEST_PIECES;
}

int tcu_decode_layers(const tcu_decode *p, int32_t processors, tcu_stream stream)
{
    void (*kernels[2][2])(const tcu_decode) = { { decode_layers<64, 1>, decode_layers<64, TCU_DECODE_ROWS> },
                                                { decode_layers<128, 1>, decode_layers<128, TCU_DECODE_ROWS> } };
    void (*kernel)(const tcu_decode) = kernels[p->d == 128][p->rows > 1];
    size_t bytes = shared_bytes(p) + (size_t)p->pieces * PIECE;
    void *arguments[] = { (void *)p };
    int e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (!e)
        e = launch(begin_launch, 1, 1024, 0, stream, p->counter, (uint32_t)p->n_layers, p->all_words, p->n_words);
    if (!e)
        e = cudaLaunchCooperativeKernel((const void *)kernel, dim3(processors), dim3(ALL_THREADS), arguments, bytes, stream);
    return e;
}
