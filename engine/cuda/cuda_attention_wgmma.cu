/* cuda_attention_wgmma.cu - attention of packed sequences, forward and backward, by warpgroups (compute capability 9.0a).
 *
 * A warpgroup computes what a block of cuda_attention.cu or cuda_attention_back.cu computes, by the same steps in the same order,
 * so the bits are the same. Two or three warpgroups share the tiles that they read; these are loaded two ahead, while matrix
 * instructions run. Only heads of 65 to 128 numbers; the host asks tcu_attention_groups first.
 */
#include "cuda/cuda_attention.cuh"
#include "cuda/cuda_wgmma.cuh"

/* Stages of a ring of tiles: one is read, one still by instructions that were not waited for, two are loaded. */
enum { TILE = GMMA_TILE, STAGES = 4, ROW_GROUPS = TCU_WARPGROUPS, KEY_GROUPS = TCU_KEY_WARPGROUPS };
enum { STATS = 3 * 64 }; /* of the rows of a tile: lse, delta, position */

#if HAS_WGMMA

/* The warpgroup's number; the compiler sees that all lanes have the same. */
DEVICE int own_group(void)
{
    return __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
}

/* The part of a span that a warpgroup takes: a span of the other forms; may be empty. */
DEVICE tcu_span own_span(const tcu_attention &p, const tcu_span &s, int group)
{
    int tokens = 64 / (p.n_heads / p.n_kv_heads);
    tcu_span own = s;
    own.begin = min(s.begin + group * tokens, s.end);
    own.end = min(own.begin + tokens, s.end);
    return own;
}

typedef struct key_range { /* key blocks */
    int first, last;
} key_range;

DEVICE key_range range_of(const tcu_attention &p, const tcu_span &s)
{
    int low = p.window > 0 && s.begin >= p.window ? s.begin - p.window + 1 : 0;
    return { low / KEYS, s.end > s.begin ? (s.end - 1) / KEYS : -1 };
}

/* Rows of one warpgroup into its tile; zero past the end. */
DEVICE void load_own(const rows_of &r, const bf16 *x, bf16 *tile)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        int i = threadIdx.x % 128 / 16 + n * 8, c = threadIdx.x % 16;
        bool valid = i < r.n && c * 8 < r.d;
        copy16(tile + gmma_place(i, c), valid ? x + row_head(r, i) * r.d + c * 8 : x, valid);
    }
}

/* Keys at positions key0 .. key0 + 63 and their values into two tiles; zero from the span's end on. */
template <int GROUPS>
DEVICE void load_pair(const tcu_attention &p, const tcu_span &s, int kv_head, int key0, bf16 *tile)
{
    enum { APART = GROUPS * 8 }; /* rows between a thread's pieces */
    int i0 = threadIdx.x / 16, c = threadIdx.x % 16;
    int64_t row = s.origin + key0 + i0;
    const bf16 *k = p.k + row * p.ldk + kv_head * p.d + c * 8, *v = p.v + row * p.ldv + kv_head * p.d + c * 8;
#pragma unroll
    for (int i = 0; i < (KEYS + APART - 1) / APART; i++) {
        int r = i0 + i * APART;
        if (KEYS % APART && r >= KEYS)
            break;
        bool valid = key0 + r < s.end && c * 8 < p.d;
        int to = gmma_place(r, c);
        copy16(tile + to, valid ? k + i * APART * p.ldk : p.k, valid);
        copy16(tile + TILE + to, valid ? v + i * APART * p.ldv : p.v, valid);
    }
}

/* The first two key blocks of a span. */
DEVICE void begin_pairs(const tcu_attention &p, const tcu_span &s, int kv_head, const key_range &all, bf16 *ring)
{
    for (int i = 0; i < 2; i++) {
        if (all.first + i <= all.last)
            load_pair<ROW_GROUPS>(p, s, kv_head, (all.first + i) * KEYS, ring + i * 2 * TILE);
        copy_commit();
    }
}

/* A key block is there, for everybody; the one after the next is asked for. */
DEVICE void next_pair(const tcu_attention &p, const tcu_span &s, int kv_head, const key_range &all, int block, int stage, bf16 *ring)
{
    copy_wait<1>();
    gmma_written();
    __syncthreads();
    if (block + 2 <= all.last)
        load_pair<ROW_GROUPS>(p, s, kv_head, (block + 2) * KEYS, ring + (stage ^ 2) * 2 * TILE);
    copy_commit();
}

/* s = rows of a times rows of b, a chain along d. */
DEVICE void score(float (&s)[8][4], uint64_t a, uint64_t b)
{
    gmma_first(s, a, b);
#pragma unroll
    for (int step = 1; step < 8; step++)
        gmma_next(s, gmma_along(a, step), gmma_along(b, step));
    gmma_commit();
}

/* o += w times the rows of b. */
DEVICE void gather_tile(float (&o)[16][4], const uint32_t (&w)[4][4], uint64_t b)
{
#pragma unroll
    for (int step = 0; step < 4; step++)
        gmma_gather(o, w[step], gmma_down(b, step));
}

/* Numbers of a warp as the left operands of the next product. */
DEVICE void pack_operands(const float (&w)[8][4], uint32_t (&f)[4][4])
{
#pragma unroll
    for (int step = 0; step < 4; step++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            f[step][i] = pack(w[2 * step + i / 2][i % 2 * 2], w[2 * step + i / 2][i % 2 * 2 + 1]);
}

/* Half of a warp's rows: those of lane / 4, or 8 further. */
DEVICE void store_half(const float (&x)[16][4], int half, bf16 *to, int d)
{
#pragma unroll
    for (int j = 0; j < 16; j++) {
        int c = j * 8 + threadIdx.x % 4 * 2;
        if (c < d)
            *(uint32_t *)(to + c) = pack(x[j][half * 2], x[j][half * 2 + 1]);
    }
}

/* ---- forward ---- */

__global__ void __launch_bounds__(ROW_GROUPS * 128, 1) group_rows(tcu_attention p)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    bf16 *ring = (bf16 *)shared;
    int lane = threadIdx.x % 32, kv_head = blockIdx.y, m0 = threadIdx.x / 32 % 4 * 16, group = own_group();
    bf16 *q = ring + (STAGES * 2 + group) * TILE;
    tcu_span s = p.spans[blockIdx.x], own = own_span(p, s, group);
    rows_of r = rows_make(p, own, kv_head);
    key_range all = range_of(p, s), mine = range_of(p, own);
    load_own(r, p.q, q);
    begin_pairs(p, s, kv_head, all, ring);
    int row[2] = { m0 + lane / 4, m0 + lane / 4 + 8 };
    int pos[2] = { row[0] < r.n ? row_position(r, row[0]) : -1, row[1] < r.n ? row_position(r, row[1]) : -1 };
    uint64_t qt = gmma_tile(q);
    float o[16][4] = {}, max[2], sum[2];
    float scale2 = p.scale * 1.4426950408889634f;
    begin_rows(p, r, row, max, sum);
    gmma_ready(o); /* zeros are made here, not on a path around the loop */
    for (int block = all.first, stage = 0; block <= all.last; block++, stage = (stage + 1) % STAGES) {
        next_pair(p, s, kv_head, all, block, stage, ring);
        if (block < mine.first || block > mine.last)
            continue;
        uint64_t kt = gmma_tile(ring + stage * 2 * TILE), vt = gmma_tile(ring + (stage * 2 + 1) * TILE);
        float w[KEYS / 8][4], top[2], shrink[2];
        uint32_t f[4][4];
        bool seen = block * KEYS + KEYS - 1 <= own.begin && p.window <= 0; /* every row sees every key: no mask */
        gmma_begin();
        score(w, qt, kt);
        gmma_wait<0>(); /* for the values of the block before, too */
        gmma_ready(w);
        gmma_ready(o);
        mask_scores(w, pos, block * KEYS, p.window, seen, top);
        weigh_block(w, top, scale2, max, sum, shrink);
        shrink_all<16>(o, shrink);
        pack_operands(w, f);
        gmma_begin();
        gather_tile(o, f, vt);
        gmma_commit();
    }
    gmma_wait<0>();
    gmma_ready(o);
    store_rows<16>(p, r, row, max, sum, scale2, o, 0);
}

/* ---- backward: rows ---- */

__global__ void __launch_bounds__(ROW_GROUPS * 128, 1) group_back_rows(tcu_attention p)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    bf16 *ring = (bf16 *)shared;
    int lane = threadIdx.x % 32, kv_head = blockIdx.y, m0 = threadIdx.x / 32 % 4 * 16, group = own_group();
    bf16 *q = ring + (STAGES + group) * 2 * TILE;
    tcu_span s = p.spans[blockIdx.x], own = own_span(p, s, group);
    rows_of r = rows_make(p, own, kv_head);
    key_range all = range_of(p, s), mine = range_of(p, own);
    load_own(r, p.q, q);
    load_own(r, p.d_o, q + TILE);
    begin_pairs(p, s, kv_head, all, ring);
    int row[2] = { m0 + lane / 4, m0 + lane / 4 + 8 }, pos[2];
    uint64_t qt = gmma_tile(q), ot = gmma_tile(q + TILE);
    float scale2 = p.scale * 1.4426950408889634f, lse[2], delta[2], dq[16][4] = {};
    gmma_ready(dq);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        bool there = row[half] < r.n;
        pos[half] = there ? row_position(r, row[half]) : -1;
        lse[half] = there ? p.lse[row_head(r, row[half])] : 0;
        delta[half] = there ? p.delta[row_head(r, row[half])] : 0;
    }
    for (int block = all.first, stage = 0; block <= all.last; block++, stage = (stage + 1) % STAGES) {
        next_pair(p, s, kv_head, all, block, stage, ring);
        if (block < mine.first || block > mine.last)
            continue;
        uint64_t kt = gmma_tile(ring + stage * 2 * TILE), vt = gmma_tile(ring + (stage * 2 + 1) * TILE);
        float w[KEYS / 8][4], dw[KEYS / 8][4];
        uint32_t f[4][4];
        bool seen = block * KEYS + KEYS - 1 <= own.begin && p.window <= 0; /* every row sees every key: no mask */
        gmma_begin();
        score(w, qt, kt);
        score(dw, ot, vt);
        gmma_wait<1>();
        gmma_ready(w);
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                w[j][e] = power(w[j][e], scale2, lse[e / 2]);
        if (!seen) {
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    w[j][e] = sees(pos[e / 2], block * KEYS + j * 8 + lane % 4 * 2 + e % 2, p.window) ? w[j][e] : 0.0f;
        }
        gmma_wait<0>();
        gmma_ready(dw);
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                w[j][e] = w[j][e] * (dw[j][e] - delta[e / 2]) * p.scale;
        pack_operands(w, f);
        gmma_begin();
        gather_tile(dq, f, kt);
        gmma_commit();
        gmma_wait<0>(); /* no registers are left to do this later */
        gmma_ready(dq);
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (row[half] < r.n)
            store_half(dq, half, p.dq + row_head(r, row[half]) * p.d, p.d);
}

/* ---- backward: keys ---- */

/* Rows i0 .. i0 + 63 of q, d_o, lse and delta into one stage. */
DEVICE void load_queries(const tcu_attention &p, const rows_of &r, int i0, bf16 *tile, float *stat)
{
    int c = threadIdx.x % 16;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        int i = threadIdx.x / 16 + n * 16;
        bool valid = i0 + i < r.n && c * 8 < r.d;
        int64_t from = valid ? row_head(r, i0 + i) * r.d + c * 8 : 0;
        int to = gmma_place(i, c);
        copy16(tile + to, p.q + from, valid);
        copy16(tile + TILE + to, p.d_o + from, valid);
    }
    if (threadIdx.x < 64) {
        bool there = i0 + (int)threadIdx.x < r.n;
        int64_t at = there ? row_head(r, i0 + threadIdx.x) : 0;
        copy4(stat + threadIdx.x, p.lse + at); /* not used for rows past the end: their position is -1 */
        copy4(stat + 64 + threadIdx.x, p.delta + at);
        ((int *)stat)[128 + threadIdx.x] = there ? row_position(r, i0 + threadIdx.x) : -1;
    }
}

__global__ void __launch_bounds__(KEY_GROUPS * 128, 1) group_back_keys(tcu_attention p)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    bf16 *ring = (bf16 *)shared, *keys = ring + STAGES * 2 * TILE; /* keys, values of each warpgroup */
    float *stats = (float *)(keys + KEY_GROUPS * 2 * TILE);
    int lane = threadIdx.x % 32, kv_head = blockIdx.y, group = own_group();
    tcu_span s = p.spans[blockIdx.x]; /* keys begin .. end, 64 a warpgroup; s.table = length */
    tcu_span queries = s;
    queries.end = s.table;
    if (p.window > 0 && s.end - 1 + p.window < queries.end)
        queries.end = s.end - 1 + p.window;
    rows_of r = rows_make(p, queries, kv_head);
    for (int i = 0; i < KEY_GROUPS; i++)
        load_pair<KEY_GROUPS>(p, s, kv_head, s.begin + i * KEYS, keys + i * 2 * TILE);
    int tiles = (r.n + 63) / 64, begin = s.begin + group * KEYS;
    int mine = begin < s.end ? group * r.group : tiles; /* the rows of tiles before do not see these keys */
    for (int i = 0; i < 2; i++) {
        if (i < tiles)
            load_queries(p, r, i * 64, ring + i * 2 * TILE, stats + i * STATS);
        copy_commit();
    }
    uint64_t kt = gmma_tile(keys + group * 2 * TILE), vt = gmma_tile(keys + (group * 2 + 1) * TILE);
    float scale2 = p.scale * 1.4426950408889634f, dk[16][4] = {}, dv[16][4] = {};
    int key[2] = { begin + (int)threadIdx.x / 32 % 4 * 16 + lane / 4, begin + (int)threadIdx.x / 32 % 4 * 16 + lane / 4 + 8 };
    gmma_ready(dk);
    gmma_ready(dv);
    for (int i = 0, stage = 0; i < tiles; i++, stage = (stage + 1) % STAGES) {
        auto load_next = [&]() {
            if (i + 2 < tiles)
                load_queries(p, r, (i + 2) * 64, ring + (stage ^ 2) * 2 * TILE, stats + (stage ^ 2) * STATS);
            copy_commit();
        };
        copy_wait<1>();
        gmma_written();
        __syncthreads();
        if (i < mine) {
            load_next();
            continue;
        }
        uint64_t qt = gmma_tile(ring + stage * 2 * TILE), ot = gmma_tile(ring + (stage * 2 + 1) * TILE);
        const float *lse = stats + stage * STATS, *delta = lse + 64;
        const int *position = (const int *)(lse + 128);
        bool seen = p.window <= 0 && row_position(r, i * 64) >= begin + KEYS - 1 && i * 64 + 64 <= r.n; /* no mask */
        float w[8][4], dw[8][4];
        uint32_t f[4][4], g[4][4];
        gmma_begin();
        score(w, kt, qt);
        score(dw, vt, ot);
        load_next();
        gmma_wait<1>(); /* for what the tile before added to dk and dv, too */
        gmma_ready(w);
        gmma_ready(dk);
        gmma_ready(dv);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float2 l = *(const float2 *)(lse + j * 8 + lane % 4 * 2);
#pragma unroll
            for (int e = 0; e < 4; e++)
                w[j][e] = power(w[j][e], scale2, e % 2 ? l.y : l.x);
        }
        if (!seen) {
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    w[j][e] = sees(position[j * 8 + lane % 4 * 2 + e % 2], key[e / 2], p.window) ? w[j][e] : 0.0f;
        }
        pack_operands(w, f);
        gmma_wait<0>();
        gmma_ready(dw);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float2 m = *(const float2 *)(delta + j * 8 + lane % 4 * 2);
#pragma unroll
            for (int e = 0; e < 4; e++)
                dw[j][e] = w[j][e] * (dw[j][e] - (e % 2 ? m.y : m.x)) * p.scale;
        }
        pack_operands(dw, g);
        gmma_begin();
        gather_tile(dv, f, ot);
        gather_tile(dk, g, qt);
        gmma_commit();
    }
    gmma_wait<0>();
    gmma_ready(dk);
    gmma_ready(dv);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (key[half] >= s.end)
            continue;
        int64_t row = s.origin + key[half];
        store_half(dk, half, p.dk + (row * p.n_kv_heads + kv_head) * p.d, p.d);
        store_half(dv, half, p.dv + row * p.lddv + kv_head * p.d, p.d);
    }
}

#else

__global__ void group_rows(tcu_attention) {}
__global__ void group_back_rows(tcu_attention) {}
__global__ void group_back_keys(tcu_attention) {}

#endif

/* ---- launches ---- */

bool tcu_attention_groups(int32_t d)
{
    cudaFuncAttributes a;
    return d > 64 && d <= GMMA_D && cudaFuncGetAttributes(&a, group_rows) == cudaSuccess && a.binaryVersion == 90 && a.ptxVersion >= 90;
}

static int run(void (*kernel)(tcu_attention), const tcu_attention *p, int groups, size_t tiles, size_t more, tcu_stream stream)
{
    size_t bytes = tiles * TILE * sizeof(bf16) + more;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e)
        return e;
    return launch(kernel, dim3(p->n_spans, p->n_kv_heads), groups * 128, bytes, stream, *p);
}

int tcu_grouped_forward(const tcu_attention *p, tcu_stream stream)
{
    return run(group_rows, p, ROW_GROUPS, STAGES * 2 + ROW_GROUPS, 0, stream);
}

int tcu_grouped_dq(const tcu_attention *p, tcu_stream stream)
{
    return run(group_back_rows, p, ROW_GROUPS, (STAGES + ROW_GROUPS) * 2, 0, stream);
}

int tcu_grouped_dkv(const tcu_attention *p, tcu_stream stream)
{
    return run(group_back_keys, p, KEY_GROUPS, (STAGES + KEY_GROUPS) * 2, STAGES * STATS * sizeof(float), stream);
}
