/* cuda_packed.cu - packed base weights: into tiles, back to bf16, and products of few rows that unpack in registers.
 *
 * A product is the chain of cuda_chain.cuh: a warp's 8 rows of weights are the right operand, its lanes unpack what the next matrix
 * instructions take. Columns past the end have scales of 0, and x is 0 there.
 */
#include <limits.h>
#include "cuda/cuda_formats.cuh"
#include "cuda/cuda_pieces.cuh"

static_assert(TCU_TILE_ROWS == 8 && TCU_TILE_COLUMNS == 128, "a tile is eight steps of a warp's right operand");

DEVICE int segments_of(const tcu_coded &p)
{
    return (p.in + TCU_TILE_COLUMNS - 1) / TCU_TILE_COLUMNS;
}

/* The column of number `at` (of 32) of lane t of four: of a step of 16 it has 2 t, 2 t + 1 and the same in the second half. */
DEVICE int column_of(int t, int at)
{
    return at / 4 * 16 + at % 4 / 2 * 8 + t * 2 + at % 2;
}

/* ---- into tiles ---- */

/* A warp for each tile. grid: tiles. */
__global__ void __launch_bounds__(256) pack_tiles(tcu_coded p, tcu_stored s)
{
    int segments = segments_of(p), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int64_t tile = blockIdx.x * 8ll + threadIdx.x / 32;
    int r = (int)(tile / segments) * 8 + g, k0 = (int)(tile % segments) * 128;
    bool nibbles = family_of(p.format) <= (int)NAMES;
    if (tile >= (int64_t)(s.n + 7) / 8 * segments)
        return;
    bool there = r < s.n;
    const uint8_t *row = s.codes + (int64_t)(there ? r : 0) * s.row_bytes;
    int64_t apart = p.format == TCU_FP8 ? (s.first + r) / 128 - s.first / 128 : r;
    uint8_t *to = p.tiles + ((int64_t)s.first / 8 * segments + tile) * tile_bytes(p.format);
    for (int i = 0; i < (nibbles ? 4 : 8); i++) {
        uint32_t word = 0;
        for (int j = 0; j < (nibbles ? 8 : 4); j++) {
            int k = k0 + column_of(t, nibbles ? i * 8 + j : i * 4 + j);
            uint32_t code = there && k < p.in ? stored_code(p.format, row, k) : 0;
            word |= nibbles ? code << 4 * code_place(family_of(p.format), j) : code << 8 * j;
        }
        *(uint32_t *)(to + i / 4 * 512 + lane * 16 + i % 4 * 4) = word;
    }
    if (t)
        return;
    int n = scale_bytes(p.format);
    to += tile_bytes(p.format) - (TCU_TILE_ROWS - g) * n;
    if (there)
        stored_scales(p.format, row, (const uint8_t *)s.factors + apart * s.factor_bytes, k0, p.in, to);
    for (int i = 0; !there && i < n; i++)
        to[i] = 0;
}

int tcu_pack_tiles(const tcu_coded *p, const tcu_stored *s, tcu_stream stream)
{
    int64_t tiles = (int64_t)(s->n + 7) / 8 * ((p->in + 127) / 128);
    return launch(pack_tiles, dim3((unsigned)((tiles + 7) / 8)), 256, 0, stream, *p, *s);
}

size_t tcu_coded_bytes(int32_t format, int64_t out, int64_t in)
{
    return (size_t)((out + 7) / 8 * ((in + 127) / 128)) * (size_t)tile_bytes(format);
}

/* ---- from tiles ---- */

/* A lane's codes and the scales of its row. */
template <int FAMILY> struct lane_codes {
    uint32_t words[coded<FAMILY>::WORDS];
    scales<FAMILY> by;
};

template <int FAMILY> DEVICE void read_codes(int format, int n_scales, const uint8_t *tile, lane_codes<FAMILY> *c)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < coded<FAMILY>::WORDS / 4; i++) {
        uint4 v = *(const uint4 *)(tile + i * 512 + lane * 16);
        c->words[i * 4] = v.x, c->words[i * 4 + 1] = v.y, c->words[i * 4 + 2] = v.z, c->words[i * 4 + 3] = v.w;
    }
    c->by = find_scales<FAMILY>(format, (const uint32_t *)(tile + coded<FAMILY>::CODES + lane / 4 * n_scales));
}

/* A warp for each tile; rows leave through shared memory, 16 bytes a lane. */
template <int FAMILY> __global__ void __launch_bounds__(256) unpack_tiles(tcu_coded p, bf16 *w)
{
    enum { LD = TCU_TILE_COLUMNS + 8 };
    __shared__ __align__(16) bf16 rows[8][TCU_TILE_ROWS * LD];
    extern __shared__ float2 table[];
    int segments = segments_of(p), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    int bytes = tile_bytes(p.format);
    int64_t tiles = (int64_t)(p.out + 7) / 8 * segments;
    bf16 *mine = rows[warp];
    if (FAMILY == NAMES) {
        write_names(p.format, table);
        __syncthreads();
    }
    for (int64_t tile = blockIdx.x * 8ll + warp; tile < tiles; tile += gridDim.x * 8ll) {
        lane_codes<FAMILY> c;
        read_codes<FAMILY>(p.format, scale_bytes(p.format), p.tiles + tile * bytes, &c);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t v[4];
            unpack_exactly<FAMILY>(c.words, i, c.by, table, v);
#pragma unroll
            for (int j = 0; j < 4; j++)
                *(uint32_t *)(mine + g * LD + column_of(t, i * 8 + j * 2)) = v[j];
        }
        __syncwarp();
        int64_t r0 = tile / segments * 8;
        int k0 = (int)(tile % segments) * 128;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = i * 2 + lane / 16, k = lane % 16 * 8;
            if (r0 + r < p.out && k0 + k < p.in)
                *(uint4 *)(w + (r0 + r) * p.in + k0 + k) = *(const uint4 *)(mine + r * LD + k);
        }
        __syncwarp();
    }
}

#define FOR_FAMILY(format, f, ...)                                                                                             \
    (family_of(format) == FOURS   ? f<FOURS>(__VA_ARGS__) :                                                                    \
     family_of(format) == NIBBLES ? f<NIBBLES>(__VA_ARGS__) :                                                                  \
     family_of(format) == NAMES   ? f<NAMES>(__VA_ARGS__) :                                                                    \
     family_of(format) == BYTES8  ? f<BYTES8>(__VA_ARGS__) :                                                                   \
                                    f<FLOATS8>(__VA_ARGS__))

template <int FAMILY> static int run_unpack(const tcu_coded *p, bf16 *w, tcu_stream stream)
{
    int64_t blocks = ((int64_t)(p->out + 7) / 8 * ((p->in + 127) / 128) + 7) / 8;
    int most = FAMILY == NAMES ? 528 : 4096; /* each block makes the table */
    size_t table = FAMILY == NAMES ? NAMES_BYTES : 0;
    cudaError_t e = cudaFuncSetAttribute(unpack_tiles<FAMILY>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)table);
    return e ? e : launch(unpack_tiles<FAMILY>, dim3((unsigned)(blocks < most ? blocks : most)), 256, table, stream, *p, w);
}

int tcu_unpack_tiles(const tcu_coded *p, tcu_bf16 *w, tcu_stream stream)
{
    return FOR_FAMILY(p->format, run_unpack, p, w, stream);
}

/* A warp takes the tiles of a row, and of each the lanes that have it. grid: rows. */
template <int FAMILY> __global__ void __launch_bounds__(256) embed_packed(const int32_t *ids, tcu_coded p, float *h)
{
    extern __shared__ float2 table[];
    int64_t row = blockIdx.x, id = ids[row] < 0 ? 0 : ids[row];
    int segments = segments_of(p), lane = threadIdx.x % 32, t = lane % 4;
    if (FAMILY == NAMES) {
        write_names(p.format, table);
        __syncthreads();
    }
    for (int segment = threadIdx.x / 32; segment < segments; segment += 8) {
        lane_codes<FAMILY> c;
        read_codes<FAMILY>(p.format, scale_bytes(p.format), p.tiles + (id / 8 * segments + segment) * tile_bytes(p.format), &c);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t v[4];
            unpack_exactly<FAMILY>(c.words, i, c.by, table, v);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int k = segment * 128 + column_of(t, i * 8 + j * 2);
                if (lane / 4 == id % 8 && k < p.in)
                    *(float2 *)(h + row * p.in + k) = unpack(v[j]);
            }
        }
    }
}

template <int FAMILY> static int run_embed(const int32_t *ids, const tcu_coded *p, float *h, int32_t rows, tcu_stream stream)
{
    return launch(embed_packed<FAMILY>, dim3(rows), 256, FAMILY == NAMES ? NAMES_BYTES : 0, stream, ids, *p, h);
}

int tcu_embed_coded(const int32_t *ids, const tcu_coded *p, float *h, int32_t rows, tcu_stream stream)
{
    return FOR_FAMILY(p->format, run_embed, ids, p, h, rows, stream);
}

/* ---- products of very few rows ----
 *
 * One block for each multiprocessor. Its warps have rings of tiles of their own, and meet when x is in shared memory. 16 rows of weights
 * (a strip) are the left operand: their numbers for the next instructions are unpacked while the last ones run. Where there are few
 * strips, several warps share one: each unpacks every fourth place along k, and the sums go from warp to warp in the order of k. */

enum { THIN_ROWS = 8, THIN_WARPS = 12, THIN_SHARE = 4, THIN_SUMS = 32 * 16 /* bytes of a strip */ };

typedef struct packed_job { /* y[m][p.out] = x[m][p.in] w^T */
    tcu_coded p;
    const bf16 *x;
    void *y;
    int64_t ldy;
    int m;
    bool wide;
} packed_job;

template <int FAMILY> struct thin {
    enum { TILE = coded<FAMILY>::MOST, STAGE = 2 * TILE, NAMED = FAMILY == NAMES ? NAMES_BYTES : 0 };
};

/* Asks for x as right operands: of each step of 16 and row two words of each of four lanes. Columns past the end become zero. */
DEVICE void place_rows(const packed_job &p, int steps, unsigned char *to)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    for (int row = 0; row < p.m; row++)
        for (int i = threadIdx.x; i < steps * 8; i += blockDim.x) {
            int n = i * 2 < p.p.in ? 4 : 0;
            const bf16 *from = p.x + (int64_t)row * p.p.in + (n ? i * 2 : 0);
            asm volatile("cp.async.ca.shared.global [%0],[%1],4,%2;" ::"r"(at + (i / 8 * p.m + row) * 32 + i % 4 * 8 + i % 8 / 4 * 4), "l"(from), "r"(n));
        }
}

DEVICE void copy_wait_all(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

typedef struct thin_source { /* where a lane reads the next place: its codes, and its piece of scales, which may be of the second tile */
    const uint8_t *codes, *scales;
    int64_t second; /* from a tile to the one in the row of tiles below; 0: there is none */
} thin_source;

template <int FAMILY> DEVICE void fetch_thin(const thin_source &s, bool scales, unsigned char *to)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < coded<FAMILY>::CODES / 512; i++) {
        copy16(to + i * 512 + lane * 16, s.codes + i * 512, true);
        copy16(to + thin<FAMILY>::TILE + i * 512 + lane * 16, s.codes + s.second + i * 512, true);
    }
    if (scales)
        copy16(to + lane / 16 * thin<FAMILY>::TILE + coded<FAMILY>::CODES + lane % 16 * 16, s.scales, true);
}

/* A lane's codes and scales of the two tiles of a place. */
template <int FAMILY> DEVICE void read_thin(lane_codes<FAMILY> (&c)[2], const unsigned char *tile, int format, int n_scales)
{
#pragma unroll
    for (int j = 0; j < 2; j++)
        read_codes<FAMILY>(format, n_scales, tile + j * thin<FAMILY>::TILE, &c[j]);
}

/* Part `unit` of 8 of a place's left operands. */
template <int FAMILY> DEVICE void unpack_thin(uint32_t (&w)[8][4], const lane_codes<FAMILY> (&c)[2], int unit, const float2 *table)
{
    uint32_t v[4];
    int i = unit / 2, j = unit % 2;
    unpack_part<FAMILY>(c[j].words, i, c[j].by, table, v);
    w[2 * i][j] = v[0], w[2 * i][2 + j] = v[1];
    w[2 * i + 1][j] = v[2], w[2 * i + 1][2 + j] = v[3];
}

DEVICE void put_thin(const packed_job &p, const float acc[4], int n0)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        int64_t row = lane % 4 * 2 + e % 2;
        int col = n0 + lane / 4 + e / 2 * 8;
        if (row >= p.m || col >= p.p.out)
            continue;
        if (p.wide)
            ((float *)p.y)[row * p.ldy + col] = acc[e];
        else
            ((bf16 *)p.y)[row * p.ldy + col] = narrow(acc[e]);
    }
}

/* A warp waits for the sums of the one before, or passes its own on. at: the lane's. */
DEVICE void take_sums(int barrier, const float4 *at, float acc[4])
{
    asm volatile("bar.sync %0,64;" ::"r"(barrier) : "memory");
    float4 v = *at;
    acc[0] = v.x, acc[1] = v.y, acc[2] = v.z, acc[3] = v.w;
}

DEVICE void pass_sums(int barrier, float4 *at, const float acc[4])
{
    *at = make_float4(acc[0], acc[1], acc[2], acc[3]);
    asm volatile("bar.arrive %0,64;" ::"r"(barrier) : "memory");
}

/* share: warps of a strip. More than one: no warp has a second strip. */
template <int FAMILY, int STAGES, bool SHARED> __global__ void __launch_bounds__(THIN_WARPS * 32, 1) thin_packed(packed_job p, int share)
{
    typedef thin<FAMILY> F;
    extern __shared__ __align__(256) unsigned char shared[];
    const float2 *table = (const float2 *)shared;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32 / share, rank = SHARED ? warp % share : 0;
    int segments = segments_of(p.p), bytes = tile_bytes(p.p.format), n_scales = scale_bytes(p.p.format);
    int strips = (p.p.out + 15) / 16, last = (p.p.out + 7) / 8 - 1, apart = gridDim.x * warps;
    int first = warp / share * gridDim.x + blockIdx.x, turns = first < strips ? (strips - first + apart - 1) / apart : 0;
    unsigned char *xt = shared + F::NAMED, *ring = xt + segments * 8 * p.m * 32 + warp * STAGES * F::STAGE;
    int n = turns * ((segments - rank + share - 1) / share), asked = 0, strip = first, column = rank, slot = 0;
    bool scales = coded<FAMILY>::CODES + lane % 16 * 16 < bytes;
    thin_source source = {};
    auto ask = [&](int to) { /* for the place after those asked for */
        if (asked < n) {
            if (column == rank) {
                const uint8_t *from = p.p.tiles + ((int64_t)strip * 2 * segments + column) * bytes;
                source.second = strip * 2 < last ? (int64_t)segments * bytes : 0;
                source.codes = from + lane * 16;
                source.scales = from + coded<FAMILY>::CODES + lane % 16 * 16 + (lane < 16 ? 0 : source.second);
            }
            fetch_thin<FAMILY>(source, scales, ring + to * F::STAGE);
            asked++;
            source.codes += bytes * share, source.scales += bytes * share;
            if ((column += share) >= segments)
                column = rank, strip += apart;
        }
        copy_commit();
    };
    for (int i = 0; i < STAGES; i++)
        ask(i);
    if (FAMILY == NAMES)
        write_names(p.p.format, (float2 *)shared);
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory"); /* what makes x has ended */
#endif
    place_rows(p, segments * 8, xt);
    copy_wait_all();
    __syncthreads(); /* x and the table are there */
    if (!n)
        return;
    const unsigned char *mine = xt + (min(lane / 4, p.m - 1) * 4 + lane % 4) * 8, *x = mine;
    lane_codes<FAMILY> c[2];
    uint32_t w[2][8][4];
    float acc[4] = {};
    auto next = [&]() { /* reads the codes of the next place and asks for another in its room */
        copy_wait<STAGES - 1>();
        __syncwarp();
        read_thin<FAMILY>(c, ring + slot * F::STAGE, p.p.format, n_scales);
        __syncwarp();
        ask(slot);
        slot = slot + 1 == STAGES ? 0 : slot + 1;
    };
    if constexpr (SHARED) {
        float4 *sums = (float4 *)(xt + segments * 8 * p.m * 32 + blockDim.x / 32 * STAGES * F::STAGE) + warp / share * 32 + lane;
        int barrier = 1 + warp, after = rank + 1 == share ? barrier + 1 - share : barrier + 1;
        x += rank * 8 * p.m * 32;
        auto unpack_next = [&]() {
            next();
#pragma unroll
            for (int s = 0; s < 8; s++)
                unpack_thin<FAMILY>(w[0], c, s, table);
        };
        unpack_next();
#pragma unroll 1
        for (int at = rank; at < segments; at += share, x += share * 8 * p.m * 32) {
            uint2 b[8];
#pragma unroll
            for (int s = 0; s < 8; s++)
                b[s] = *(const uint2 *)(x + s * p.m * 32);
            if (at)
                take_sums(barrier, sums, acc);
#pragma unroll
            for (int s = 0; s < 8; s++)
                mma(acc, w[0][s], b[s].x, b[s].y);
            if (at + 1 < segments)
                pass_sums(after, sums, acc);
            else
                put_thin(p, acc, first * 16);
            unpack_next(); /* while others multiply */
        }
        copy_wait<0>();
        return;
    }
    int done = 0, place = 0, out = first;
    auto multiply = [&](const uint32_t (&now)[8][4], uint32_t (&then)[8][4]) {
        next();
#pragma unroll
        for (int s = 0; s < 8; s++) {
            uint2 b = *(const uint2 *)(x + s * p.m * 32);
            mma(acc, now[s], b.x, b.y);
            unpack_thin<FAMILY>(then, c, s, table);
        }
        x += 8 * p.m * 32;
        done++;
        if (++place < segments)
            return;
        put_thin(p, acc, out * 16);
        acc[0] = acc[1] = acc[2] = acc[3] = 0;
        place = 0, x = mine, out += apart;
    };
    next();
#pragma unroll
    for (int s = 0; s < 8; s++)
        unpack_thin<FAMILY>(w[0], c, s, table);
    while (done < n) {
        multiply(w[0], w[1]);
        if (done < n)
            multiply(w[1], w[0]);
    }
    copy_wait<0>();
}

template <int FAMILY, int STAGES, bool SHARED>
static int run_thin(const packed_job &p, int blocks, int warps, int share, int x, tcu_stream stream)
{
    int bytes = thin<FAMILY>::NAMED + x + warps * STAGES * thin<FAMILY>::STAGE + warps / share * THIN_SUMS;
    cudaError_t e = cudaFuncSetAttribute(thin_packed<FAMILY, STAGES, SHARED>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    cudaLaunchAttribute early = {}; /* weights are asked for while the launch before still runs */
    cudaLaunchConfig_t c = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = dim3(blocks);
    c.blockDim = dim3(warps * 32);
    c.dynamicSmemBytes = bytes;
    c.stream = stream;
    c.attrs = &early;
    c.numAttrs = 1;
    return e ? e : cudaLaunchKernelEx(&c, thin_packed<FAMILY, STAGES, SHARED>, p, share);
}

typedef struct card_size {
    int processors, shared;
} card_size;

static const card_size *size_of_card(void)
{
    static card_size size;
    int device = 0;
    if (!size.processors && cudaGetDevice(&device) == cudaSuccess) {
        cudaDeviceGetAttribute(&size.shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
        cudaDeviceGetAttribute(&size.processors, cudaDevAttrMultiProcessorCount, device);
    }
    return &size;
}

/* False: there is no room for x and the rings. */
template <int FAMILY> static bool thin_of(const packed_job &p, tcu_stream stream, int *rc)
{
    const card_size *card = size_of_card();
    int strips = (p.p.out + 15) / 16, x = (p.p.in + 127) / 128 * 8 * p.m * 32, blocks = strips < card->processors ? strips : card->processors;
    int warps = (strips + blocks - 1) / blocks, share = warps * 2 <= THIN_WARPS ? min(THIN_WARPS / warps, (int)THIN_SHARE) : 1;
    warps = min(warps * share, (int)THIN_WARPS);
    int stages = (card->shared - x - thin<FAMILY>::NAMED - warps / share * THIN_SUMS) / (warps * thin<FAMILY>::STAGE);
    if (p.m > THIN_ROWS || stages < 4)
        return false;
    if (share > 1)
        *rc = stages >= 8 ? run_thin<FAMILY, 8, true>(p, blocks, warps, share, x, stream) :
                            run_thin<FAMILY, 4, true>(p, blocks, warps, share, x, stream);
    else
        *rc = stages >= 8 ? run_thin<FAMILY, 8, false>(p, blocks, warps, share, x, stream) :
                            run_thin<FAMILY, 4, false>(p, blocks, warps, share, x, stream);
    return true;
}

/* ---- products of few rows ---- */

/* MT * 16 rows of x; W warps of NT * 8 rows of weights each; STAGES tiles on the way. */
template <int FAMILY, int MT, int NT, int W, int STAGES_> struct packed_few {
    enum { ROWS = MT * 16, COLS = W * NT * 8, BK = TCU_TILE_COLUMNS, THREADS = W * 32 };
    enum { TILE = coded<FAMILY>::MOST, X = ROWS * BK * 2, STAGE = X + W * NT * TILE, STAGES = STAGES_ };
    enum { NAMED = FAMILY == NAMES ? NAMES_BYTES : 0, BYTES = NAMED + STAGES * STAGE };
};

/* A warp's tiles of one place along k. */
template <typename F, int NT> DEVICE void fetch_tiles(const uint8_t *const from[NT], int64_t at, int bytes, unsigned char *to)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int i = 0; i < (F::TILE + 511) / 512; i++)
            if ((i * 32 + lane) * 16 < bytes)
                copy16(to + j * F::TILE + (i * 32 + lane) * 16, from[j] + at + (i * 32 + lane) * 16, true);
}

/* acc += a place along k. */
template <typename F, int FAMILY, int MT, int NT>
DEVICE void packed_tile(float acc[MT][NT][4], const bf16 *xt, const unsigned char *wt, int format, int n_scales, const float2 *table)
{
    int lane = threadIdx.x % 32, row = lane & 15;
    const char *first = (const char *)(xt + swizzle<F::BK>(row, lane >> 4));
    lane_codes<FAMILY> c[NT];
#pragma unroll
    for (int j = 0; j < NT; j++)
        read_codes<FAMILY>(format, n_scales, wt + j * F::TILE, &c[j]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t w[NT][4], x[2][MT][4];
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int r = 0; r < MT; r++) /* two pieces of 16 bytes a step; their swizzle repeats after eight */
                ldmatrix(x[s][r], (const char *)((uintptr_t)first ^ (i * 2 + s) % 4 * 32) + (i * 2 + s) / 4 * 128 + r * 16 * F::BK * 2);
#pragma unroll
        for (int j = 0; j < NT; j++)
            unpack_part<FAMILY>(c[j].words, i, c[j].by, table, w[j]);
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int r = 0; r < MT; r++)
#pragma unroll
                for (int j = 0; j < NT; j++)
                    mma(acc[r][j], x[s][r], w[j][s * 2], w[j][s * 2 + 1]);
    }
}

template <int MT, int NT> DEVICE void put_sums(const packed_job &p, float acc[MT][NT][4], int n0)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int64_t row = i * 16 + lane / 4 + e / 2 * 8;
                int col = n0 + j * 8 + lane % 4 * 2 + e % 2;
                if (row >= p.m || col >= p.p.out)
                    continue;
                if (p.wide)
                    ((float *)p.y)[row * p.ldy + col] = acc[i][j][e];
                else
                    ((bf16 *)p.y)[row * p.ldy + col] = narrow(acc[i][j][e]);
            }
}

template <int FAMILY, int MT, int NT, int W, int STAGES> __global__ void __launch_bounds__(W * 32) few_packed(packed_job p)
{
    typedef packed_few<FAMILY, MT, NT, W, STAGES> F;
    extern __shared__ __align__(256) unsigned char shared[];
    bf16 *xt = (bf16 *)(shared + F::NAMED);
    int warp = threadIdx.x / 32, segments = segments_of(p.p), bytes = tile_bytes(p.p.format), n_scales = scale_bytes(p.p.format);
    unsigned char *wt = (unsigned char *)xt + STAGES * F::X + warp * NT * F::TILE;
    int n0 = blockIdx.x * F::COLS + warp * NT * 8, last = (p.p.out + 7) / 8 - 1;
    const uint8_t *from[NT];
#pragma unroll
    for (int j = 0; j < NT; j++)
        from[j] = p.p.tiles + (int64_t)min(n0 / 8 + j, last) * segments * bytes;
    pieces<F::ROWS, F::BK, F::THREADS> x;
    for (int s = 0; s < STAGES - 1; s++)
        if (s < segments)
            fetch_tiles<F, NT>(from, (int64_t)s * bytes, bytes, wt + s * W * NT * F::TILE);
    for (int i = threadIdx.x; i < STAGES * F::X / 16; i += F::THREADS)
        ((uint4 *)xt)[i] = make_uint4(0, 0, 0, 0);
    if (FAMILY == NAMES)
        write_names(p.p.format, (float2 *)shared);
    aim(x, p.x, p.m, p.p.in);
    __syncthreads();
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < segments)
            fetch(x, s * F::BK, xt + s * F::ROWS * F::BK);
        copy_commit(); /* the first group contains all weights up to here */
    }
    float acc[MT][NT][4] = {};
    for (int i = 0, stage = 0, next = STAGES - 1; i < segments; i++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        int ahead = i + STAGES - 1;
        if (ahead < segments) {
            fetch_tiles<F, NT>(from, (int64_t)ahead * bytes, bytes, wt + next * W * NT * F::TILE);
            fetch(x, ahead * F::BK, xt + next * F::ROWS * F::BK);
        }
        copy_commit();
        packed_tile<F, FAMILY, MT, NT>(acc, xt + stage * F::ROWS * F::BK, wt + stage * W * NT * F::TILE, p.p.format, n_scales,
                                       (const float2 *)shared);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    copy_wait<0>();
    put_sums<MT, NT>(p, acc, n0);
}

template <int FAMILY, int MT, int NT, int W, int STAGES> static int run_few(const packed_job &p, tcu_stream stream)
{
    typedef packed_few<FAMILY, MT, NT, W, STAGES> F;
    cudaError_t e = cudaFuncSetAttribute(few_packed<FAMILY, MT, NT, W, STAGES>, cudaFuncAttributeMaxDynamicSharedMemorySize, F::BYTES);
    if (e)
        return e;
    return launch(few_packed<FAMILY, MT, NT, W, STAGES>, dim3((p.p.out + F::COLS - 1) / F::COLS), F::THREADS, F::BYTES, stream, p);
}

/* The widest blocks that still give every multiprocessor one. */
template <int FAMILY> static int few_of(const packed_job &p, tcu_stream stream)
{
    int rc;
    if (thin_of<FAMILY>(p, stream, &rc))
        return rc;
    if (p.m <= 16)
        return run_few<FAMILY, 1, 1, 4, 8>(p, stream);
    return p.p.out >= 128 * 120 ? run_few<FAMILY, 4, 2, 8, 4>(p, stream) : run_few<FAMILY, 4, 1, 4, 5>(p, stream);
}

int tcu_small_coded(bool wide, const tcu_bf16 *x, const tcu_coded *w, void *y, int64_t ldy, int32_t m, tcu_stream stream)
{
    packed_job p = { *w, x, y, ldy, m, wide };
    return m > TCU_SMALL_ROWS ? (int)cudaErrorInvalidValue : FOR_FAMILY(w->format, few_of, p, stream);
}
