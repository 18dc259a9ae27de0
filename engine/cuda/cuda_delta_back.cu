/* cuda_delta_back.cu - gradients of the gated delta rule, of packed sequences (shared/spec families: the formulas in math/delta_rule.c).
 *
 * Two launches: blocks of one value head and some of its columns go through the chunks of a sequence, the last first, with the gradient
 * of the state in shared memory, and leave Z = M^-T dN and that gradient at each edge; then each chunk of a key head by itself. Every
 * sum runs in one order, and nothing is added atomically. Products take tf32 operands.
 */
#include "cuda/cuda_delta.cuh"

static const bool EXACT = false;

/* ---- the gradient of the state ---- */

enum { N = 4, COLUMNS = N * 8, LD = COLUMNS + 8, GROUPS = THREADS / COLUMNS };

struct back { /* a block's shared memory, and its columns */
    float *ds, *k, *z, *d_o, *kk; /* [dk][LD], [64][ld_keys], [64][LD] twice, [64][LD_PAIRS] */
    float *up, *down, *strength;  /* [64] */
    int ld_keys, padded, head, key_head, first, n;
    int64_t kd, vd, pairs;
};

static size_t back_bytes(const tcu_delta_shape *of)
{
    int padded = (of->dk + 15) / 16 * 16;
    return sizeof(float) * (size_t)(padded * LD + CHUNK * (padded + 4 + 2 * LD + LD_PAIRS + 3));
}

DEVICE back back_of(const tcu_delta_shape &of)
{
    extern __shared__ __align__(16) float shared[];
    back s;
    s.padded = pad16(of.dk);
    s.ld_keys = s.padded + 4;
    s.ds = shared;
    s.k = s.ds + s.padded * LD;
    s.z = s.k + CHUNK * s.ld_keys;
    s.d_o = s.z + CHUNK * LD;
    s.kk = s.d_o + CHUNK * LD;
    s.up = s.kk + CHUNK * LD_PAIRS;
    s.down = s.up + CHUNK;
    s.strength = s.down + CHUNK;
    s.head = blockIdx.y;
    s.key_head = s.head / (of.n_value_heads / of.n_key_heads);
    s.first = blockIdx.x * COLUMNS;
    s.n = min(of.dv - s.first, (int)COLUMNS);
    s.kd = (int64_t)of.n_key_heads * of.dk;
    s.vd = (int64_t)of.n_value_heads * of.dv;
    s.pairs = (int64_t)of.n_value_heads * CHUNK;
    return s;
}

DEVICE void fetch_back(const tcu_delta_rule &p, const back &s, const place &at)
{
    int dk = p.of.dk, heads = p.of.n_value_heads, rest = CHUNK - at.end;
    int64_t row = at.origin;
    bool wide = wide_rows(p.of);
    fetch(s.k, s.ld_keys, p.k + row * s.kd + s.key_head * dk, s.kd, at.end, dk, s.padded, wide);
    fetch_part<COLUMNS>(s.d_o, LD, p.d_o + row * s.vd + s.head * p.of.dv + s.first, s.vd, at.end, s.n, wide);
    fetch_part<CHUNK>(s.kk, LD_PAIRS, p.kk + row * s.pairs + s.head * CHUNK, s.pairs, at.end, CHUNK, true);
    copy_commit();
    clear(s.k + at.end * s.ld_keys, s.ld_keys, rest, s.padded);
    clear(s.d_o + at.end * LD, LD, rest, COLUMNS);
    clear(s.kk + at.end * LD_PAIRS, LD_PAIRS, rest, CHUNK);
    clear(s.z, LD, CHUNK, COLUMNS);
    for (int i = threadIdx.x; i < CHUNK; i += THREADS) {
        const double *sums = p.sums + row * heads + s.head;
        bool there = i < at.end;
        s.up[i] = there ? (float)exp(sums[i * heads]) : 0;
        s.down[i] = there ? (float)exp(sums[(at.end - 1) * heads] - sums[i * heads]) : 0;
        s.strength[i] = there ? p.strength[(row + i) * heads + s.head] : 0;
    }
    copy_wait<0>();
    __syncthreads();
}

/* dN of a tile of 16 rows, half of the columns: from the state's gradient and from the outputs of the rows from it on. */
DEVICE void begin_back(const tcu_delta_rule &p, const back &s, const place &at, int tile, int half, bool last)
{
    float c[1][N / 2][4] = {}, *z = s.z + tile * 16 * LD + half * COLUMNS / 2;
    const float *keys = s.k + tile * 16 * s.ld_keys, *ds = s.ds + half * COLUMNS / 2;
    const float *d_o = s.d_o + tile * 16 * LD + half * COLUMNS / 2;
    const float *weights = p.qk + (at.origin + tile * 16) * s.pairs + s.head * CHUNK + tile * 16;
    int rows = at.end - tile * 16;
    if (!last) {
        multiply_tf32<EXACT, false, 1, N / 2>(
            c, s.padded / 8, [&](int i, int k) { return keys[i * s.ld_keys + k]; },
            [&](int k, int j) { return ds[k * LD + j]; });
        each_tf32<1, N / 2>(c, [&](int i, int, float &x) { x *= s.down[tile * 16 + i]; });
    }
    multiply_tf32<EXACT, true, 1, N / 2>(
        c, pad16(rows) / 8, [&](int i, int k) { return weights[min(k, rows - 1) * s.pairs + i]; },
        [&](int k, int j) { return d_o[k * LD + j]; });
    each_tf32<1, N / 2>(c, [&](int i, int j, float x) {
        if (i < rows)
            z[i * LD + j] = x;
    });
}

/* A tile of 16 rows Z from what they are without each other. */
DEVICE void solve_tile_back(const back &s, int first, float *z)
{
    float x[16];
    z += first * LD;
#pragma unroll
    for (int i = 0; i < 16; i++)
        x[i] = z[i * LD];
#pragma unroll
    for (int i = 15; i >= 0; i--) {
        const float4 *with = (const float4 *)(s.kk + (first + i) * LD_PAIRS + first);
        float w = s.strength[first + i] * x[i];
        z[i * LD] = x[i];
#pragma unroll
        for (int j = 0; j < i; j += 4) {
            float4 f = with[j / 4];
            x[j] = fmaf(-f.x, w, x[j]);
            x[j + 1] = j + 1 < i ? fmaf(-f.y, w, x[j + 1]) : x[j + 1];
            x[j + 2] = j + 2 < i ? fmaf(-f.z, w, x[j + 2]) : x[j + 2];
            x[j + 3] = j + 3 < i ? fmaf(-f.w, w, x[j + 3]) : x[j + 3];
        }
    }
}

/* Z from dN. A thread has a column, and four rows at a time; later rows are subtracted from the last to the first. */
DEVICE void solve_back(const back &s, const place &at)
{
    int column = threadIdx.x % COLUMNS, group = threadIdx.x / COLUMNS;
    float x[16], *z = s.z + column;
    for (int first = (at.end - 1) & ~15; first >= 0; first -= 16) {
        if (group == 0)
            solve_tile_back(s, first, z);
        __syncthreads();
        if (first == 0)
            continue;
#pragma unroll
        for (int i = 0; i < 16; i++)
            x[i] = s.strength[first + i] * z[(first + i) * LD];
        for (int row = group * 4; row < first; row += GROUPS * 4) {
            float sum[4];
#pragma unroll
            for (int r = 0; r < 4; r++)
                sum[r] = z[(row + r) * LD];
#pragma unroll
            for (int i = 15; i >= 0; i--) {
                float4 f = *(const float4 *)(s.kk + (first + i) * LD_PAIRS + row);
                sum[0] = fmaf(-f.x, x[i], sum[0]);
                sum[1] = fmaf(-f.y, x[i], sum[1]);
                sum[2] = fmaf(-f.z, x[i], sum[2]);
                sum[3] = fmaf(-f.w, x[i], sum[3]);
            }
#pragma unroll
            for (int r = 0; r < 4; r++)
                z[(row + r) * LD] = sum[r];
        }
        __syncthreads();
    }
}

DEVICE void put_back(const tcu_delta_rule &p, const back &s, const place &at)
{
    int64_t column = s.head * p.of.dv + s.first;
    for (int i = threadIdx.x; i < at.end * COLUMNS; i += THREADS) {
        int r = i / COLUMNS, c = i % COLUMNS;
        if (c >= s.n)
            continue;
        float x = s.z[r * LD + c];
        p.z[(at.origin + r) * s.vd + column + c] = x;
        p.dc[(int64_t)(at.origin + r) * p.ld_c + p.v_at + column + c] = narrow(s.strength[r] * x);
    }
}

/* The gradient of the state before the chunk. */
DEVICE void retreat(const tcu_delta_rule &p, const back &s, const place &at)
{
    int dk = p.of.dk, steps = pad16(at.end) / 8;
    float whole = s.up[at.end - 1];
    for (int tile = threadIdx.x / 32; tile < s.padded / 16; tile += WARPS) {
        float c[1][N][4], *to = s.ds + tile * 16 * LD;
        const float *keys = s.k + tile * 16, *queries = p.q + at.origin * s.kd + s.key_head * dk + tile * 16;
        each_tf32<1, N>(c, [&](int i, int j, float &x) { x = whole * to[i * LD + j]; });
        multiply_tf32<EXACT, true, 1, N>(
            c, steps, [&](int i, int k) { return queries[min(k, at.end - 1) * s.kd + min(i, dk - 1 - tile * 16)]; },
            [&](int k, int j) { return s.up[k] * s.d_o[k * LD + j]; });
        multiply_tf32<EXACT, false, 1, N>(
            c, steps, [&](int i, int k) { return keys[k * s.ld_keys + i]; },
            [&](int k, int j) { return -(s.strength[k] * s.up[k]) * s.z[k * LD + j]; });
        each_tf32<1, N>(c, [&](int i, int j, float x) { to[i * LD + j] = x; });
    }
}

DEVICE void put_dstate(const tcu_delta_rule &p, const back &s, int edge)
{
    float *to = p.dstates + ((int64_t)edge * p.of.n_value_heads + s.head) * p.of.dk * p.of.dv + s.first;
    for (int i = threadIdx.x; i < p.of.dk * COLUMNS; i += THREADS) {
        int a = i / COLUMNS, b = i % COLUMNS;
        if (b < s.n)
            to[(int64_t)a * p.of.dv + b] = s.ds[a * LD + b];
    }
}

/* What the chunk before will read. */
DEVICE void expect_back(const tcu_delta_rule &p, const back &s, const place &at)
{
    int dk = p.of.dk;
    int64_t row = at.origin;
    expect(p.k + row * s.kd + s.key_head * dk, s.kd, at.end, dk);
    expect(p.q + row * s.kd + s.key_head * dk, s.kd, at.end, dk);
    expect(p.kk + row * s.pairs + s.head * CHUNK, s.pairs, at.end, CHUNK);
    expect(p.qk + row * s.pairs + s.head * CHUNK, s.pairs, at.end, CHUNK);
    expect(p.d_o + row * s.vd + s.head * p.of.dv + s.first, s.vd, at.end, s.n);
}

__global__ void __launch_bounds__(THREADS, 2) delta_scan_back(tcu_delta_rule p)
{
    tcu_run run = p.runs[blockIdx.z];
    if (run.n <= 0)
        return;
    back s = back_of(p.of);
    int tile = threadIdx.x / 32 % 4, half = threadIdx.x / 128;
    clear(s.ds, LD, s.padded, COLUMNS);
    for (int i = run.n_pieces; i-- > 0;) {
        place at = place_of(p.pieces[run.piece + i]);
        bool last = i + 1 == run.n_pieces;
        if (!last)
            put_dstate(p, s, p.pieces[run.piece + i + 1].edge);
        fetch_back(p, s, at);
        if (i)
            expect_back(p, s, place_of(p.pieces[run.piece + i - 1]));
        if (tile * 16 < at.end)
            begin_back(p, s, at, tile, half, last);
        __syncthreads();
        solve_back(s, at);
        put_back(p, s, at);
        if (i)
            retreat(p, s, at);
        __syncthreads();
    }
}

/* ---- a chunk by itself ---- */

enum { SLICE = 32, LD_SLICE = SLICE + 4, KEYS = TCU_DELTA_KEYS }; /* columns of values at a time; a warp has 16 of the keys' */

struct slices {                /* columns of values, in shared memory: rows LD_SLICE apart */
    float *n, *d_o, *z;        /* [64]; z follows d_o */
    float *state, *dstate;     /* [KEYS] */
};
enum { SLICES = (3 * CHUNK + 2 * KEYS) * LD_SLICE };

struct alone { /* shared memory of a chunk of a key head */
    double *sums;                    /* [64] */
    float *k, *q;                    /* [64][ld_keys] */
    float *slices;                   /* twice SLICES */
    float *dp, *da;                  /* [64][LD_PAIRS], over the slices: gradients of P and A times D; of A symmetric, times strength */
    float *up, *down, *strength;     /* [64] */
    float *dots;                     /* [3][WARPS][64]: of q with S dO, k with S Z, k with dS' N */
    float *row_sums, *column_sums;   /* [2][64], [WARPS][64] of E */
    float *parts;                    /* [WARPS] */
    int ld_keys, padded, key_head, head;
    int64_t kd, vd, pairs;
    const float *state, *dstate; /* of the value head; NULL = zero */
};

static size_t alone_bytes(const tcu_delta_shape *of)
{
    int padded = (of->dk + 15) / 16 * 16;
    return sizeof(float) * (size_t)(CHUNK * (2 + 2 * (padded + 4) + 3 + 3 * WARPS + 2 + WARPS) + WARPS + 2 * SLICES);
}

DEVICE alone alone_of(const tcu_delta_shape &of)
{
    extern __shared__ __align__(16) float shared[];
    alone s = {};
    s.padded = pad16(of.dk);
    s.ld_keys = s.padded + 4;
    s.sums = (double *)shared;
    s.slices = shared + 2 * CHUNK;
    s.dp = s.slices;
    s.da = s.dp + CHUNK * LD_PAIRS;
    s.k = s.slices + 2 * SLICES;
    s.q = s.k + CHUNK * s.ld_keys;
    s.up = s.q + CHUNK * s.ld_keys;
    s.down = s.up + CHUNK;
    s.strength = s.down + CHUNK;
    s.dots = s.strength + CHUNK;
    s.row_sums = s.dots + 3 * WARPS * CHUNK;
    s.column_sums = s.row_sums + 2 * CHUNK;
    s.parts = s.column_sums + WARPS * CHUNK;
    s.key_head = blockIdx.y;
    s.kd = (int64_t)of.n_key_heads * of.dk;
    s.vd = (int64_t)of.n_value_heads * of.dv;
    s.pairs = (int64_t)of.n_value_heads * CHUNK;
    return s;
}

DEVICE slices slices_of(const alone &s, int which)
{
    slices x;
    x.n = s.slices + which * SLICES;
    x.d_o = x.n + CHUNK * LD_SLICE;
    x.z = x.d_o + CHUNK * LD_SLICE;
    x.state = x.z + CHUNK * LD_SLICE;
    x.dstate = x.state + KEYS * LD_SLICE;
    return x;
}

/* What the gates of the value head are in this chunk. */
DEVICE void load_gates(const tcu_delta_rule &p, const alone &s, const place &at)
{
    int heads = p.of.n_value_heads;
    const double *sums = p.sums + (int64_t)at.origin * heads + s.head;
    for (int i = threadIdx.x; i < CHUNK; i += THREADS) {
        bool there = i < at.end;
        s.sums[i] = there ? sums[i * heads] : 0;
        s.up[i] = there ? (float)exp(sums[i * heads]) : 0;
        s.down[i] = there ? (float)exp(sums[(at.end - 1) * heads] - sums[i * heads]) : 0;
        s.strength[i] = there ? p.strength[(int64_t)(at.origin + i) * heads + s.head] : 0;
    }
}

DEVICE void fetch_slices(const tcu_delta_rule &p, const alone &s, const slices &to, const place &at, int first)
{
    int dk = p.of.dk, dv = p.of.dv, n = min(dv - first, (int)SLICE), rest = CHUNK - at.end;
    int64_t from = at.origin * s.vd + (int64_t)s.head * dv + first;
    bool wide = wide_rows(p.of);
    fetch_part<SLICE>(to.n, LD_SLICE, p.rows + from, s.vd, at.end, n, wide);
    fetch_part<SLICE>(to.d_o, LD_SLICE, p.d_o + from, s.vd, at.end, n, wide);
    fetch_part<SLICE>(to.z, LD_SLICE, p.z + from, s.vd, at.end, n, wide);
    if (s.state)
        fetch_part<SLICE>(to.state, LD_SLICE, s.state + first, dv, dk, n, wide);
    if (s.dstate)
        fetch_part<SLICE>(to.dstate, LD_SLICE, s.dstate + first, dv, dk, n, wide);
    copy_commit();
    clear(to.n + at.end * LD_SLICE, LD_SLICE, rest, SLICE);
    clear(to.d_o + at.end * LD_SLICE, LD_SLICE, rest, SLICE);
    clear(to.z + at.end * LD_SLICE, LD_SLICE, rest, SLICE);
    clear(to.state + dk * LD_SLICE, LD_SLICE, s.padded - dk, SLICE);
    clear(to.dstate + dk * LD_SLICE, LD_SLICE, s.padded - dk, SLICE);
}

/* dO N^T and Z N^T: half of the warps each, a tile of 16 rows with all rows of the chunk. */
DEVICE void multiply_pairs(const slices &x, float c[1][8][4])
{
    int warp = threadIdx.x / 32;
    const float *left = (warp < 4 ? x.d_o : x.z) + warp % 4 * 16 * LD_SLICE;
    multiply_tf32<EXACT, false, 1, 8>(
        c, SLICE / 8, [&](int i, int k) { return left[i * LD_SLICE + k]; },
        [&](int k, int j) { return x.n[j * LD_SLICE + k]; });
}

/* S dO and S Z, dS' N: a warp has 16 of the keys' numbers, all rows. */
DEVICE void multiply_states(const alone &s, const slices &x, float own[8][2][4], float next[4][2][4])
{
    int from = threadIdx.x / 32 * 16;
    const float *state = x.state + from * LD_SLICE, *dstate = x.dstate + from * LD_SLICE;
    if (s.state && from < s.padded)
        multiply_tf32<EXACT, false, 8, 2>(
            own, SLICE / 8, [&](int i, int k) { return x.d_o[i * LD_SLICE + k]; },
            [&](int k, int j) { return state[j * LD_SLICE + k]; });
    if (s.dstate && from < s.padded)
        multiply_tf32<EXACT, false, 4, 2>(
            next, SLICE / 8, [&](int i, int k) { return x.n[i * LD_SLICE + k]; },
            [&](int k, int j) { return dstate[j * LD_SLICE + k]; });
}

/* A thread's part of <S, dS'>. */
DEVICE float state_dot(const alone &s, const slices &x, float sum)
{
    if (!s.state || !s.dstate)
        return sum;
    for (int r = threadIdx.x / 32; r < s.padded; r += WARPS) {
        int at = r * LD_SLICE + threadIdx.x % 32;
        sum = fmaf(x.state[at], x.dstate[at], sum);
    }
    return sum;
}

/* Sums over the lanes that share a row, or a column. */
DEVICE float over_row(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

DEVICE float over_column(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 4);
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

/* From the products of pairs: gradients of P and A times D, the sums of E, the strength's gradient. */
DEVICE void put_pairs(const tcu_delta_rule &p, const alone &s, const place &at, float c[1][8][4])
{
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, tile = warp % 4 * 16;
    bool outputs = warp < 4;
    const float *with = (outputs ? p.qk : p.kk) + (int64_t)at.origin * s.pairs + s.head * CHUNK;
    float rows[2] = {}, columns[8][2] = {};
    each_tf32<1, 8>(c, [&](int row, int j, float x) {
        int i = tile + row, r = row / 8, n = j / 8;
        bool there = i < at.end && j < i, own = i < at.end && j == i;
        float d = there ? expf((float)(s.sums[i] - s.sums[j])) : own ? 1 : 0, by = outputs ? 1 : -s.strength[i];
        float weight = with[min(i, at.end - 1) * s.pairs + j], e = there ? by * x * weight : 0;
        if (outputs)
            s.dp[i * LD_PAIRS + j] = x * d;
        else if (j < i)
            s.da[i * LD_PAIRS + j] = s.da[j * LD_PAIRS + i] = by * x * d;
        else if (j == i)
            s.da[i * LD_PAIRS + j] = 0;
        if (!outputs && own) /* through the sigmoid */
            p.dgates[(int64_t)(at.origin + i) * p.ld_gates + s.head] = narrow(x * (1 - s.strength[i]));
        rows[r] += e;
        columns[n][j % 2] += e;
    });
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = over_row(rows[r]);
        if (t == 0)
            s.row_sums[!outputs * CHUNK + tile + g + r * 8] = sum;
    }
#pragma unroll
    for (int j = 0; j < 16; j++) {
        float sum = over_column(columns[j / 2][j % 2]);
        if (g == 0)
            s.column_sums[warp * CHUNK + j / 2 * 8 + 2 * t + j % 2] = sum;
    }
}

/* A warp's part of the dot products of rows of keys with c. */
DEVICE void put_dots(const alone &s, const float *keys, float c[4][2][4], float *to)
{
    int from = threadIdx.x / 32 * 16, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float sums[8] = {};
    each_tf32<4, 2>(c, [&](int i, int j, float x) {
        sums[i / 8] = fmaf(keys[i * s.ld_keys + from + j], x, sums[i / 8]);
    });
    to += threadIdx.x / 32 * CHUNK;
#pragma unroll
    for (int r = 0; r < 8; r++) {
        float sum = over_row(sums[r]);
        if (t == 0)
            to[r * 8 + g] = sum;
    }
}

/* The lanes' numbers to rows of to; the first value head of a key head writes, the others add. */
DEVICE void put_keys(const tcu_delta_rule &p, const alone &s, const place &at, int from, bool add, float c[4][2][4], float *to)
{
    int last = p.of.dk - 1 - from;
    to += at.origin * s.kd + (int64_t)s.key_head * p.of.dk + from;
    if (add) /* all are read before any is written */
        each_tf32<4, 2>(c, [&](int i, int j, float &x) { x += to[min(i, at.end - 1) * s.kd + min(j, last)]; });
    each_tf32<4, 2>(c, [&](int i, int j, float x) {
        if (i < at.end && j <= last)
            to[i * s.kd + j] = x;
    });
}

DEVICE void end_keys(const tcu_delta_rule &p, const alone &s, const place &at, bool add, float own[8][2][4], float next[4][2][4])
{
    int from = threadIdx.x / 32 * 16;
    if (from >= s.padded)
        return;
    put_dots(s, s.q, own, s.dots);
    put_dots(s, s.k, own + 4, s.dots + WARPS * CHUNK);
    put_dots(s, s.k, next, s.dots + 2 * WARPS * CHUNK);
    each_tf32<4, 2>(own, [&](int i, int, float &x) { x *= s.up[i]; });
    each_tf32<4, 2>(own + 4, [&](int i, int, float &x) { x *= -(s.strength[i] * s.up[i]); });
#pragma unroll
    for (int i = 0; i < 4 * 2 * 4; i++)
        own[4 + i / 8][i / 4 % 2][i % 4] += s.down[i / 8 * 16 + threadIdx.x % 32 / 4 + i % 4 / 2 * 8] * next[i / 8][i / 4 % 2][i % 4];
    auto keys = [&](int k, int j) { return s.k[k * s.ld_keys + from + j]; };
    multiply_tf32<EXACT, false, 4, 2>(own, CHUNK / 8, [&](int i, int k) { return s.dp[i * LD_PAIRS + k]; }, keys);
    multiply_tf32<EXACT, false, 4, 2>(own + 4, CHUNK / 8, [&](int i, int k) { return s.da[i * LD_PAIRS + k]; }, keys);
    multiply_tf32<EXACT, false, 4, 2>(
        own + 4, CHUNK / 8, [&](int i, int k) { return s.dp[k * LD_PAIRS + i]; },
        [&](int k, int j) { return s.q[k * s.ld_keys + from + j]; });
    put_keys(p, s, at, from, add, own, p.dq);
    put_keys(p, s, at, from, add, own + 4, p.dk);
}

/* Sums from each row on, by a warp; a lane has two rows. */
DEVICE void sum_ahead(const alone &s, const place &at, const float *own, double *d_sums)
{
    int lane = threadIdx.x, i = 2 * lane;
    double first = i < at.end ? d_sums[i] : 0, second = i + 1 < at.end ? d_sums[i + 1] : 0, sum = first + second;
    double last = (i < at.end ? (double)own[i] : 0) + (i + 1 < at.end ? (double)own[i + 1] : 0);
    for (int d = 1; d < 32; d *= 2) {
        double more = __shfl_down_sync(0xffffffffu, sum, d);
        sum += lane + d < 32 ? more : 0;
    }
    last = warp_sum(last) + (double)s.up[at.end - 1] * warp_sum(lane < WARPS ? (double)s.parts[lane] : 0);
    double later = __shfl_down_sync(0xffffffffu, sum, 1);
    later = last + (lane < 31 ? later : 0) + second;
    d_sums[i + 1] = later;
    d_sums[i] = later + first;
}

/* The decays' gradients. */
DEVICE void end_gates(const tcu_delta_rule &p, const alone &s, const place &at)
{
    double *d_sums = s.sums; /* no longer needed */
    float *own = s.row_sums;
    int warps = min((int)WARPS, s.padded / 16);
    for (int i = threadIdx.x; i < at.end; i += THREADS) {
        float dots[3] = {}, e = s.row_sums[i] + s.row_sums[CHUNK + i];
        for (int k = 0; k < 3; k++)
            for (int w = 0; w < warps; w++)
                dots[k] += s.dots[(k * WARPS + w) * CHUNK + i];
        for (int w = 0; w < WARPS; w++)
            e -= s.column_sums[w * CHUNK + i];
        own[i] = s.down[i] * dots[2];
        d_sums[i] = (double)(s.up[i] * dots[0]) - (double)(s.strength[i] * s.up[i] * dots[1]) - (double)own[i] + (double)e;
    }
    __syncthreads();
    if (threadIdx.x < 32)
        sum_ahead(s, at, own, d_sums);
    __syncthreads();
    for (int i = threadIdx.x; i < at.end; i += THREADS) {
        int64_t to = (int64_t)(at.origin + i) * p.ld_gates + p.decay_at + s.head;
        double x = (double)p.gates[to] + (double)p.of.dt_bias[s.head];
        p.dgates[to] = narrow((float)(-d_sums[i] * (double)p.of.decay[s.head] / (1 + exp(-x))));
    }
    __syncthreads();
}

DEVICE void one_head(const tcu_delta_rule &p, const alone &s, const place &at, bool add)
{
    float pairs[1][8][4] = {}, own[8][2][4] = {}, next[4][2][4] = {}, dot = 0;
    load_gates(p, s, at);
    fetch_slices(p, s, slices_of(s, 0), at, 0);
    for (int first = 0, which = 0; first < p.of.dv; first += SLICE, which ^= 1) {
        slices x = slices_of(s, which);
        if (first + SLICE < p.of.dv) {
            fetch_slices(p, s, slices_of(s, which ^ 1), at, first + SLICE);
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        __syncthreads();
        multiply_pairs(x, pairs);
        multiply_states(s, x, own, next);
        dot = state_dot(s, x, dot);
        __syncthreads();
    }
    dot = warp_sum(dot);
    if (threadIdx.x % 32 == 0)
        s.parts[threadIdx.x / 32] = dot;
    put_pairs(p, s, at, pairs);
    __syncthreads();
    end_keys(p, s, at, add, own, next);
    __syncthreads();
    end_gates(p, s, at);
}

/* What the next value head will read. */
DEVICE void expect_head(const tcu_delta_rule &p, const alone &s, const place &at)
{
    int dk = p.of.dk, dv = p.of.dv;
    int64_t from = at.origin * s.vd + (int64_t)(s.head + 1) * dv;
    expect(p.rows + from, s.vd, at.end, dv);
    expect(p.d_o + from, s.vd, at.end, dv);
    expect(p.z + from, s.vd, at.end, dv);
    if (s.state)
        expect(s.state + (int64_t)dk * dv, dv, dk, dv);
    if (s.dstate)
        expect(s.dstate + (int64_t)dk * dv, dv, dk, dv);
}

__global__ void __launch_bounds__(THREADS, 1) delta_chunk_back(tcu_delta_rule p)
{
    tcu_piece piece = p.pieces[blockIdx.x];
    if (piece.n <= 0)
        return;
    tcu_run run = p.runs[piece.run];
    place at = place_of(piece);
    alone s = alone_of(p.of);
    int per = p.of.n_value_heads / p.of.n_key_heads, dk = p.of.dk, rest = CHUNK - at.end;
    bool last = blockIdx.x + 1 == run.piece + run.n_pieces, wide = dk % 4 == 0;
    int64_t from = at.origin * s.kd + (int64_t)s.key_head * dk, size = (int64_t)dk * p.of.dv;
    fetch(s.k, s.ld_keys, p.k + from, s.kd, at.end, dk, s.padded, wide);
    fetch(s.q, s.ld_keys, p.q + from, s.kd, at.end, dk, s.padded, wide);
    copy_commit();
    clear(s.k + at.end * s.ld_keys, s.ld_keys, rest, s.padded);
    clear(s.q + at.end * s.ld_keys, s.ld_keys, rest, s.padded);
    for (int h = 0; h < per; h++) {
        s.head = s.key_head * per + h;
        s.state = piece.edge < 0 ? NULL : p.states + ((int64_t)piece.edge * p.of.n_value_heads + s.head) * size;
        s.dstate = last ? NULL : p.dstates + ((int64_t)p.pieces[blockIdx.x + 1].edge * p.of.n_value_heads + s.head) * size;
        if (h + 1 < per)
            expect_head(p, s, at);
        one_head(p, s, at, h > 0);
    }
}

int tcu_delta_backward(const tcu_delta_rule *p, tcu_stream stream)
{
    size_t scan = back_bytes(&p->of), chunk = alone_bytes(&p->of);
    dim3 columns((p->of.dv + COLUMNS - 1) / COLUMNS, p->of.n_value_heads, p->n_runs), chunks(p->n_pieces, p->of.n_key_heads);
    int rc = allow_shared(delta_scan_back, scan);
    if (!rc)
        rc = allow_shared(delta_chunk_back, chunk);
    if (!rc)
        rc = launch(delta_scan_back, columns, THREADS, scan, stream, *p);
    return rc ? rc : launch(delta_chunk_back, chunks, THREADS, chunk, stream, *p);
}
