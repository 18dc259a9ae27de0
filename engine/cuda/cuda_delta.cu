/* cuda_delta.cu - the gated delta rule forward, for packed sequences and for steps.
 *
 * Two launches: products of the rows of each chunk, which know nothing of the state; then blocks of one value head and some of its
 * columns go through the chunks of their sequence, with the state in shared memory. A step's last launch keeps the keys of
 * sequences that went on to another chunk, when nobody reads those before them.
 */
#include "cuda/cuda_delta.cuh"

/* ---- products with the chunk's rows ---- */

typedef struct chunk_keys { /* of a key head, in shared memory */
    float *k, *q;           /* [64][stride] */
    double *sums;           /* [value heads of the key head][64] */
    int stride;
} chunk_keys;

/* G of the chunk's rows: those before the piece are in the slot. A value head's decays are added by one thread. */
DEVICE void sum_decays(const tcu_delta_rule &p, const place &at, const slot_parts &slot, int first, int per, double *sums)
{
    int heads = p.of.n_value_heads, rows = at.end - at.begin;
    for (int i = threadIdx.x; i < at.end * per; i += THREADS) {
        int r = i / per, h = i % per;
        sums[h * CHUNK + r] = r < at.begin ? slot.sums[r * heads + first + h]
                                           : (double)p.g[(int64_t)(at.origin + r) * heads + first + h];
    }
    __syncthreads();
    if (threadIdx.x < per) {
        double *x = sums + threadIdx.x * CHUNK, sum = at.begin ? x[at.begin - 1] : 0;
        for (int i = at.begin; i < at.end; i++)
            x[i] = sum += x[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < rows * per; i += THREADS) {
        int r = at.begin + i / per, h = i % per;
        p.sums[(int64_t)(at.origin + r) * heads + first + h] = sums[h * CHUNK + r];
    }
}

DEVICE void keep_keys(const tcu_delta_rule &p, const place &at, const slot_parts &slot, const chunk_keys &s, int head, int per)
{
    int dk = p.of.dk, rows = at.end - at.begin;
    for (int i = threadIdx.x; i < rows * dk; i += THREADS) {
        int r = at.begin + i / dk, c = i % dk;
        slot.k[((int64_t)r * p.of.n_key_heads + head) * dk + c] = s.k[r * s.stride + c];
    }
    for (int i = threadIdx.x; i < rows * per; i += THREADS) {
        int r = at.begin + i / per, h = i % per;
        slot.sums[r * p.of.n_value_heads + head * per + h] = s.sums[h * CHUNK + r];
    }
}

/* Keys and queries of one tile of 16 rows with 32 of the chunk's keys, for all value heads. */
DEVICE void put_products(const tcu_delta_rule &p, const place &at, const chunk_keys &s, int tile, int block, int head, int per)
{
    const float *keys = s.k + tile * 16 * s.stride, *queries = s.q + tile * 16 * s.stride - 16 * s.stride,
                *right = s.k + block * 32 * s.stride;
    int64_t heads = p.of.n_value_heads;
    float c[2][4][4] = {};
    multiply_tf32<TF32_EXACT, TF32_EXACT, 2, 4>(
        c, pad16(p.of.dk) / 8, [&](int i, int k) { return (i < 16 ? keys : queries)[i * s.stride + k]; },
        [&](int k, int j) { return right[j * s.stride + k]; });
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int h = 0; h < per; h++) {
        const double *sums = s.sums + h * CHUNK;
#pragma unroll
        for (int n = 0; n < 8; n++) { /* two rows of four tiles */
            int i = tile * 16 + g + n % 2 * 8, j = block * 32 + n / 2 * 8 + 2 * t, at_c = n % 2 * 2;
            if (i < at.begin || i >= at.end)
                continue;
            float d0 = j <= i ? (float)exp(sums[i] - sums[j]) : 0, d1 = j < i ? (float)exp(sums[i] - sums[j + 1]) : 0;
            int64_t to = ((at.origin + i) * heads + head * per + h) * CHUNK + j;
            const float *k = c[0][n / 2] + at_c, *q = c[1][n / 2] + at_c;
            *(float2 *)(p.kk + to) = make_float2(j < i ? k[0] * d0 : 0, j + 1 < i ? k[1] * d1 : 0);
            *(float2 *)(p.qk + to) = make_float2(j <= i ? q[0] * d0 : 0, j < i ? q[1] * d1 : 0);
        }
    }
}

__global__ void __launch_bounds__(THREADS) delta_products(tcu_delta_rule p)
{
    extern __shared__ __align__(16) float shared[];
    tcu_piece piece = p.pieces[blockIdx.x];
    int head = blockIdx.y, per = p.of.n_value_heads / p.of.n_key_heads, dk = p.of.dk, padded = pad16(dk);
    if (piece.n <= 0)
        return;
    tcu_run run = p.runs[piece.run];
    place at = place_of(piece);
    slot_parts slot = {};
    chunk_keys s;
    int64_t kd = (int64_t)p.of.n_key_heads * dk, first = (int64_t)(at.origin + at.begin) * kd + head * dk;
    s.stride = padded + 4;
    s.sums = (double *)shared;
    s.k = (float *)(s.sums + per * CHUNK);
    s.q = s.k + CHUNK * s.stride;
    if (p.slots)
        slot = slot_of(p, run.slot);
    if (at.begin)
        fetch(s.k, s.stride, slot.k + head * dk, kd, at.begin, dk, padded, dk % 4 == 0);
    fetch(s.k + at.begin * s.stride, s.stride, p.k + first, kd, at.end - at.begin, dk, padded, dk % 4 == 0);
    fetch(s.q + at.begin * s.stride, s.stride, p.q + first, kd, at.end - at.begin, dk, padded, dk % 4 == 0);
    clear(s.k + at.end * s.stride, s.stride, CHUNK - at.end, padded);
    clear(s.q + at.end * s.stride, s.stride, CHUNK - at.end, padded);
    clear(s.q, s.stride, at.begin, padded);
    copy_commit();
    sum_decays(p, at, slot, head * per, per, s.sums);
    copy_wait<0>();
    __syncthreads();
    int tile = threadIdx.x / 32 % 4, block = threadIdx.x / 128;
    if (tile * 16 < at.end && tile * 16 + 16 > at.begin && block * 2 <= tile)
        put_products(p, at, s, tile, block, head, per);
    if (p.slots && run.n_pieces == 1 && at.end < CHUNK)
        keep_keys(p, at, slot, s, head, per);
}

/* The last piece's keys and G become those of the slot. */
__global__ void __launch_bounds__(THREADS) delta_keep(tcu_delta_rule p)
{
    tcu_run run = p.runs[blockIdx.x];
    int heads = p.of.n_value_heads, kd = p.of.n_key_heads * p.of.dk;
    if (run.n <= 0 || run.n_pieces == 1)
        return;
    place at = place_of(p.pieces[run.piece + run.n_pieces - 1]);
    int i = blockIdx.y; /* the piece begins at an edge */
    if (i >= at.end || at.end == CHUNK)
        return;
    slot_parts slot = slot_of(p, run.slot);
    for (int c = threadIdx.x; c < kd; c += THREADS)
        slot.k[(int64_t)i * kd + c] = p.k[(int64_t)(at.origin + i) * kd + c];
    for (int h = threadIdx.x; h < heads; h += THREADS)
        slot.sums[i * heads + h] = p.sums[(int64_t)(at.origin + i) * heads + h];
}

/* ---- the state ---- */

template <int N> struct scan { /* a block's shared memory; N tiles of 8 columns */
    static const int COLUMNS = N * 8, LD = N * 8 + 8, GROUPS = THREADS / COLUMNS;
    float *s, *k, *n, *kk;       /* [dk][LD], [64][ld_keys], [64][LD], [64][LD_PAIRS] */
    float *q;                    /* [64][ld_keys], over n and kk, until it was multiplied */
    float *up, *down, *strength; /* [64] */
    int ld_keys, padded;
    __device__ __forceinline__ scan(const tcu_delta_shape &of)
    {
        extern __shared__ __align__(16) float shared[];
        padded = pad16(of.dk);
        ld_keys = padded + 4;
        s = shared;
        k = s + padded * LD;
        q = n = k + CHUNK * ld_keys;
        kk = n + CHUNK * LD;
        up = n + CHUNK * shared_columns(padded);
        down = up + CHUNK;
        strength = down + CHUNK;
    }
    static __host__ __device__ int shared_columns(int padded)
    {
        return padded + 4 > LD + LD_PAIRS ? padded + 4 : LD + LD_PAIRS;
    }
    static size_t bytes(const tcu_delta_shape &of)
    {
        int padded = (of.dk + 15) / 16 * 16;
        return sizeof(float) * (size_t)(padded * LD + CHUNK * (padded + 4 + shared_columns(padded) + 3));
    }
};

typedef struct columns { /* of a block */
    int head, key_head, first, n; /* n: at most COLUMNS */
    int64_t at;                   /* its first column among those of all heads */
} columns;

template <int N> DEVICE columns columns_of(const tcu_delta_shape &of)
{
    columns w;
    w.head = blockIdx.y;
    w.key_head = w.head / (of.n_value_heads / of.n_key_heads);
    w.first = blockIdx.x * N * 8;
    w.n = min(of.dv - w.first, N * 8);
    w.at = (int64_t)w.head * of.dv + w.first;
    return w;
}

/* The chunk's keys and queries; what is not there becomes zero. Keys before `lowest` are not needed. */
template <int N>
DEVICE void fetch_chunk(const tcu_delta_rule &p, const scan<N> &s, const columns &w, const place &at, const slot_parts &slot)
{
    int dk = p.of.dk, rows = at.end - at.begin, lowest = at.end == CHUNK ? 0 : at.begin & ~15;
    int64_t kd = (int64_t)p.of.n_key_heads * dk, key = w.key_head * dk, first = (int64_t)(at.origin + at.begin) * kd + key;
    bool wide = wide_rows(p.of);
    if (lowest < at.begin)
        fetch(s.k + lowest * s.ld_keys, s.ld_keys, slot.k + lowest * kd + key, kd, at.begin - lowest, dk, s.padded, wide);
    fetch(s.k + at.begin * s.ld_keys, s.ld_keys, p.k + first, kd, rows, dk, s.padded, wide);
    fetch(s.q + at.begin * s.ld_keys, s.ld_keys, p.q + first, kd, rows, dk, s.padded, wide);
    copy_commit();
    clear(s.k + at.end * s.ld_keys, s.ld_keys, CHUNK - at.end, s.padded);
    for (int t = threadIdx.x; t < 2 * CHUNK; t += THREADS) { /* half of the threads do what is before the chunk, half what is after it */
        int i = t % CHUNK;
        if (i >= at.end)
            continue;
        const double *sums = i < at.begin ? slot.sums + i * p.of.n_value_heads : p.sums + (int64_t)(at.origin + i) * p.of.n_value_heads;
        double sum = sums[w.head];
        if (t < CHUNK) {
            s.up[i] = (float)exp(sum);
            s.strength[i] = i < at.begin ? 1 : p.strength[(int64_t)(at.origin + i) * p.of.n_value_heads + w.head];
        } else if (at.end == CHUNK) {
            int64_t last = (int64_t)(at.origin + CHUNK - 1) * p.of.n_value_heads;
            s.down[i] = (float)exp(p.sums[last + w.head] - sum);
        }
    }
    copy_wait<0>();
    __syncthreads();
}

/* Products of the chunk's keys, earlier rows N. */
template <int N>
DEVICE void fetch_pairs(const tcu_delta_rule &p, const scan<N> &s, const columns &w, const place &at, const slot_parts &slot)
{
    int rows = at.end - at.begin;
    int64_t vd = (int64_t)p.of.n_value_heads * p.of.dv, pairs = (int64_t)p.of.n_value_heads * CHUNK;
    fetch_part<CHUNK>(s.kk + at.begin * LD_PAIRS, LD_PAIRS,
                      p.kk + ((int64_t)(at.origin + at.begin) * p.of.n_value_heads + w.head) * CHUNK, pairs, rows, CHUNK, true);
    if (at.begin)
        fetch_part<scan<N>::COLUMNS>(s.n, s.LD, slot.n + w.at, vd, at.begin, w.n, wide_rows(p.of));
    copy_commit();
    clear(s.kk, LD_PAIRS, at.begin, CHUNK);
    clear(s.kk + at.end * LD_PAIRS, LD_PAIRS, CHUNK - at.end, CHUNK);
}

/* A tile of 16 rows N from what they are without each other. */
template <int N> DEVICE void solve_tile(const scan<N> &s, const place &at, int first, float *n)
{
    float x[16];
    n += first * s.LD;
#pragma unroll
    for (int i = 0; i < 16; i++)
        x[i] = n[i * s.LD];
#pragma unroll
    for (int i = 0; i < 16; i += 4) { /* four rows at a time: four chains of subtractions side by side */
#pragma unroll
        for (int j = 0; j <= i; j += 4) {
            float f[4][4];
#pragma unroll
            for (int r = 0; r < 4; r++)
                *(float4 *)f[r] = *(const float4 *)(s.kk + (first + i + r) * LD_PAIRS + first + j);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (j == i && first + i + k >= at.begin && first + i + k < at.end)
                    x[i + k] *= s.strength[first + i + k];
#pragma unroll
                for (int r = 0; r < 4; r++)
                    if (j + k < i + r)
                        x[i + r] = fmaf(-f[r][k], x[j + k], x[i + r]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        n[i * s.LD] = x[i];
}

/* N from what each row would be without the others of the chunk. A thread has a column; rows are subtracted in their order. */
template <int N> DEVICE void solve(const scan<N> &s, const place &at)
{
    const int MANY = 4; /* rows at a time */
    int column = threadIdx.x % s.COLUMNS, group = threadIdx.x / s.COLUMNS;
    float x[16], *n = s.n + column;
    for (int first = 0; first < at.end; first += 16) {
        if (group == 0 && first + 16 > at.begin)
            solve_tile<N>(s, at, first, n);
        __syncthreads();
        if (first + 16 >= at.end)
            continue;
#pragma unroll
        for (int i = 0; i < 16; i++)
            x[i] = n[(first + i) * s.LD];
        for (int row = max(first + 16, at.begin & ~15) + group * MANY; row < at.end; row += s.GROUPS * MANY) {
            float sum[MANY];
#pragma unroll
            for (int r = 0; r < MANY; r++)
                sum[r] = n[(row + r) * s.LD];
#pragma unroll
            for (int i = 0; i < 16; i += 4) {
                float f[MANY][4];
#pragma unroll
                for (int r = 0; r < MANY; r++)
                    *(float4 *)f[r] = *(const float4 *)(s.kk + (row + r) * LD_PAIRS + first + i);
#pragma unroll
                for (int k = 0; k < 4; k++)
#pragma unroll
                    for (int r = 0; r < MANY; r++)
                        sum[r] = fmaf(-f[r][k], x[i + k], sum[r]);
            }
#pragma unroll
            for (int r = 0; r < MANY; r++)
                if (row + r >= at.begin)
                    n[(row + r) * s.LD] = sum[r];
        }
        __syncthreads();
    }
}

/* S after a full chunk. */
template <int N> DEVICE void advance(const scan<N> &s)
{
    float whole = s.up[CHUNK - 1];
    for (int tile = threadIdx.x / 32; tile < s.padded / 16; tile += WARPS) {
        float c[1][N][4], *to = s.s + tile * 16 * s.LD;
        const float *keys = s.k + tile * 16;
        each_tf32<1, N>(c, [&](int i, int j, float &x) { x = whole * to[i * s.LD + j]; });
        multiply_tf32<TF32_EXACT, TF32_EXACT, 1, N>(
            c, CHUNK / 8, [&](int i, int k) { return keys[k * s.ld_keys + i]; },
            [&](int k, int j) { return s.down[k] * s.n[k * s.LD + j]; });
        each_tf32<1, N>(c, [&](int i, int j, float x) { to[i * s.LD + j] = x; });
    }
}

/* A tile of 16 rows, some of the block's columns. */
typedef struct tile_rows {
    int row;            /* of the chunk, the first */
    int low, high;      /* those of it that are there */
    int column;         /* of the block, the first */
    int64_t first;      /* row of the batch */
    __device__ __forceinline__ int there(int i) const
    {
        return min(max(i, low), high - 1);
    }
} tile_rows;

template <int N> DEVICE tile_rows tile_of(const place &at)
{
    tile_rows r;
    r.row = threadIdx.x / 32 % 4 * 16;
    r.low = at.begin - r.row;
    r.high = at.end - r.row;
    r.column = threadIdx.x / 128 * N * 4;
    r.first = at.origin + r.row;
    return r;
}

/* Keys and queries times the state. */
template <int N> DEVICE void multiply_state(const scan<N> &s, const tile_rows &r, float c[2][N / 2][4])
{
    const float *keys = s.k + r.row * s.ld_keys, *queries = s.q + (r.row - 16) * s.ld_keys, *state = s.s + r.column;
    multiply_tf32<TF32_EXACT, TF32_EXACT, 2, N / 2>(
        c, s.padded / 8, [&](int i, int k) { return (i < 16 ? keys : queries)[i * s.ld_keys + k]; },
        [&](int k, int j) { return state[k * s.LD + j]; });
}

/* The lanes' values; of rows and columns that are not there, others. */
template <int N> DEVICE void load_values(const tcu_delta_rule &p, const columns &w, const tile_rows &r, float v[1][N / 2][4])
{
    const bf16 *values = p.c + r.first * p.ld_c + p.v_at + w.at + r.column;
    each_tf32<1, N / 2>(
        v, [&](int i, int j, float &x) { x = wide(values[(int64_t)r.there(i) * p.ld_c + min(j, w.n - 1 - r.column)]); });
}

/* From the products with the state: each row of N before the other rows of the chunk are subtracted, and what o gets of S. */
template <int N>
DEVICE void begin_rows(const scan<N> &s, const columns &w, const tile_rows &r, float c[2][N / 2][4], const float v[1][N / 2][4],
                       float o[1][N / 2][4])
{
#pragma unroll
    for (int n = 0; n < N / 2; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int i = threadIdx.x % 32 / 4 + k / 2 * 8, j = r.column + n * 8 + 2 * (threadIdx.x % 4) + k % 2;
            float up = s.up[r.row + r.there(i)];
            if (i >= r.low && i < r.high)
                s.n[(r.row + i) * s.LD + j] = j < w.n ? v[0][n][k] - up * c[0][n][k] : 0;
            o[0][n][k] = up * c[1][n][k];
        }
}

/* Weights of the chunk's rows for o: what a lane has of its tile's rows. */
template <int MOST> DEVICE void load_weights(const tcu_delta_rule &p, const columns &w, const tile_rows &r, float x[MOST][4])
{
    int64_t pairs = (int64_t)p.of.n_value_heads * CHUNK;
    const float *weights = p.qk + r.first * pairs + w.head * CHUNK + threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < MOST; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[k][i] = k < r.row / 8 + 2 ? weights[r.there(threadIdx.x % 32 / 4 + i % 2 * 8) * pairs + k * 8 + i / 2 * 4] : 0;
}

template <int N>
DEVICE void end_rows(const tcu_delta_rule &p, const scan<N> &s, const columns &w, const tile_rows &r, const float x[CHUNK / 8][4],
                     float o[1][N / 2][4])
{
    int64_t vd = (int64_t)p.of.n_value_heads * p.of.dv;
    const float *n = s.n + r.column;
#pragma unroll
    for (int k = 0; k < CHUNK / 8; k += 2)
        if (k < r.row / 8 + 2)
#pragma unroll
            for (int m = k; m < k + 2; m++)
                multiply_tf32<TF32_EXACT, TF32_EXACT, 1, N / 2>(
                    o, 1, [&](int i, int j) { return x[m][i / 8 + j / 4 * 2]; }, [&](int j, int c) { return n[(m * 8 + j) * s.LD + c]; });
    float *to = p.o + r.first * vd + w.at + r.column;
    bool even = p.of.dv % 2 == 0;
    pairs_tf32<1, N / 2>(o, [&](int i, int j, float x, float y) {
        if (i < r.low || i >= r.high || r.column + j >= w.n)
            return;
        if (even) {
            *(float2 *)(to + i * vd + j) = make_float2(x, y);
            return;
        }
        to[i * vd + j] = x;
        if (r.column + j + 1 < w.n)
            to[i * vd + j + 1] = y;
    });
}

/* Rows N of the batch to where they are wanted. */
template <int N>
DEVICE void put_rows(const tcu_delta_rule &p, const scan<N> &s, const columns &w, const place &at, const slot_parts &slot)
{
    int64_t vd = (int64_t)p.of.n_value_heads * p.of.dv;
    bool wide = p.of.dv % 4 == 0, kept = p.slots && at.end < CHUNK;
    if (!p.rows && !kept)
        return;
    each_four<scan<N>::COLUMNS>(s.n, s.LD, at.begin, at.end, [&](int i, int c, float4 x) {
        if (p.rows)
            store_four(p.rows + (at.origin + i) * vd + w.at + c, tf32_rounded(x), w.n - c, wide);
        if (kept)
            store_four(slot.n + i * vd + w.at + c, x, w.n - c, wide);
    });
}

/* What the next chunk will read. */
template <int N> DEVICE void expect_chunk(const tcu_delta_rule &p, const columns &w, const place &at)
{
    int dk = p.of.dk;
    int64_t row = at.origin, kd = (int64_t)p.of.n_key_heads * dk, pairs = (int64_t)p.of.n_value_heads * CHUNK;
    expect(p.k + row * kd + w.key_head * dk, kd, at.end, dk);
    expect(p.q + row * kd + w.key_head * dk, kd, at.end, dk);
    expect(p.kk + row * pairs + w.head * CHUNK, pairs, at.end, CHUNK);
    expect(p.qk + row * pairs + w.head * CHUNK, pairs, at.end, CHUNK);
    expect(p.c + row * p.ld_c + p.v_at + w.at, p.ld_c, at.end, w.n);
}

template <int N, bool ROUNDED> DEVICE void put_state(const tcu_delta_shape &of, const scan<N> &s, const columns &w, float *to)
{
    to += (int64_t)w.head * of.dk * of.dv + w.first;
    bool wide = of.dv % 4 == 0;
    each_four<scan<N>::COLUMNS>(s.s, s.LD, 0, of.dk, [&](int a, int c, float4 x) {
        store_four(to + (int64_t)a * of.dv + c, ROUNDED ? tf32_rounded(x) : x, w.n - c, wide);
    });
}

template <int N>
DEVICE void one_chunk(const tcu_delta_rule &p, const scan<N> &s, const columns &w, const place &at, const slot_parts &slot,
                      bool empty, bool on)
{
    tile_rows r = tile_of<N>(at);
    bool active = r.high > 0 && r.low < 16;
    float o[1][N / 2][4], v[1][N / 2][4], weights[CHUNK / 8][4], c[2][N / 2][4] = {};
    if (active && !empty)
        multiply_state<N>(s, r, c);
    if (active)
        load_values<N>(p, w, r, v);
    __syncthreads();
    fetch_pairs<N>(p, s, w, at, slot);
    clear(s.n + at.end * s.LD, s.LD, CHUNK - at.end, s.COLUMNS);
    if (active) {
        begin_rows<N>(s, w, r, c, v, o);
        load_weights<CHUNK / 8>(p, w, r, weights);
    }
    copy_wait<0>();
    __syncthreads();
    solve<N>(s, at);
    if (active)
        end_rows<N>(p, s, w, r, weights, o);
    put_rows<N>(p, s, w, at, slot);
    if (on)
        advance<N>(s);
    __syncthreads();
}

template <int N> __global__ void __launch_bounds__(THREADS, 2) delta_scan(tcu_delta_rule p)
{
    tcu_run run = p.runs[blockIdx.z];
    if (run.n <= 0)
        return;
    scan<N> s(p.of);
    columns w = columns_of<N>(p.of);
    slot_parts slot = {};
    bool empty = run.position < CHUNK, moved = false;
    if (p.slots)
        slot = slot_of(p, run.slot);
    if (!empty)
        fetch_part<scan<N>::COLUMNS>(s.s, s.LD, slot.s + (int64_t)w.head * p.of.dk * p.of.dv + w.first, p.of.dv, p.of.dk, w.n,
                                     wide_rows(p.of));
    if (empty)
        clear(s.s, s.LD, s.padded, s.COLUMNS);
    else
        clear(s.s + p.of.dk * s.LD, s.LD, s.padded - p.of.dk, s.COLUMNS);
    for (int i = 0; i < run.n_pieces; i++) {
        tcu_piece piece = p.pieces[run.piece + i];
        place at = place_of(piece);
        bool on = at.end == CHUNK && (p.slots || i + 1 < run.n_pieces);
        if (p.states && piece.edge >= 0)
            put_state<N, true>(p.of, s, w, p.states + (int64_t)piece.edge * p.of.n_value_heads * p.of.dk * p.of.dv);
        fetch_chunk<N>(p, s, w, at, slot);
        if (i + 1 < run.n_pieces)
            expect_chunk<N>(p, w, place_of(p.pieces[run.piece + i + 1]));
        one_chunk<N>(p, s, w, at, slot, empty, on);
        empty = empty && !on;
        moved = moved || on;
    }
    if (p.slots && moved)
        put_state<N, false>(p.of, s, w, slot.s);
}

/* ---- launches ---- */

size_t tcu_delta_slot(const tcu_delta_shape *of)
{
    size_t k, state, bytes = slot_numbers(*of, &k, &state) * sizeof(float);
    bytes += (size_t)CHUNK * of->n_value_heads * sizeof(double);
    return (bytes + 15) / 16 * 16;
}

template <int N> static int run_scan(const tcu_delta_rule *p, tcu_stream stream)
{
    size_t bytes = scan<N>::bytes(p->of);
    dim3 grid((p->of.dv + N * 8 - 1) / (N * 8), p->of.n_value_heads, p->n_runs);
    int rc = allow_shared(delta_scan<N>, bytes);
    return rc ? rc : launch(delta_scan<N>, grid, THREADS, bytes, stream, *p);
}

static int run_products(const tcu_delta_rule *p, tcu_stream stream)
{
    int per = p->of.n_value_heads / p->of.n_key_heads, padded = (p->of.dk + 15) / 16 * 16;
    size_t bytes = (size_t)CHUNK * (per * sizeof(double) + 2 * (padded + 4) * sizeof(float));
    int rc = allow_shared(delta_products, bytes);
    return rc ? rc : launch(delta_products, dim3(p->n_pieces, p->of.n_key_heads), THREADS, bytes, stream, *p);
}

int tcu_delta_forward(const tcu_delta_rule *p, tcu_stream stream)
{
    bool few = p->of.dv <= 32 || (int64_t)p->n_runs * p->of.n_value_heads * ((p->of.dv + 63) / 64) < 132;
    int rc = run_products(p, stream);
    if (!rc)
        rc = few ? run_scan<4>(p, stream) : run_scan<8>(p, stream);
    if (!rc && p->slots && p->longest > 1) /* else the products' launch could do it */
        rc = launch(delta_keep, dim3(p->n_runs, CHUNK), THREADS, 0, stream, *p);
    return rc;
}
