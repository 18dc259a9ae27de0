/* cuda_delta_chunk.cu - gradients of the gated delta rule, chunk by chunk: from the states and their gradients at the edges, N, Z and dO
 * to those of q, k, strength and decay.
 *
 * A block has a chunk of a key head, and takes its value heads one after the other. While a slice of 32 columns is multiplied, the next
 * one, be it of the next head, is on its way. Products take tf32 operands; every sum runs in one order.
 */
#define DELTA_THREADS 512
#include "cuda/cuda_delta.cuh"

enum {
    SLICE = 32,
    LD_SLICE = SLICE + 4,
    KEYS = TCU_DELTA_KEYS,
    TILES = KEYS / 16, /* of the keys' numbers: a warp has one, and half of the rows */
    HALF = CHUNK / 2,
    GATES = CHUNK      /* threads that have a row's gates: whole warps */
};

/* The same number; addresses that are made of it are made where they are used, not before a loop, where they find no registers. */
DEVICE int here(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

struct slices {                /* columns of values, in shared memory: rows LD_SLICE apart */
    float *n, *d_o, *z;        /* [64]; z follows d_o */
    float *state, *dstate;     /* [KEYS] */
};
enum { SLICES = (3 * CHUNK + 2 * KEYS) * LD_SLICE };

struct alone { /* shared memory of a chunk of a key head */
    double *sums;                    /* [64]: gradients of G */
    float *g;                        /* [64]: G, as exact as operands of 11 bits need it */
    float *k, *q;                    /* [64][ld_keys] */
    float *slices;                   /* twice SLICES */
    float *up, *down, *strength;     /* [64] */
    float *d_strength;               /* [64]: its gradient, through the sigmoid */
    float *dots;                     /* [3][TILES][64]: of q with S dO, k with S Z, k with dS' N */
    float *row_sums, *column_sums;   /* [4][64], [WARPS][HALF] of E */
    float *parts;                    /* [WARPS] */
    int ld_keys, padded, key_head, head;
    int64_t kd, vd, pairs;
    const float *state, *dstate; /* of the value head; NULL = zero */
};

static size_t alone_bytes(const tcu_delta_shape *of)
{
    int padded = (of->dk + 15) / 16 * 16;
    return sizeof(float) * (size_t)(CHUNK * (2 + 2 * (padded + 8) + 5 + 3 * TILES + 4) + WARPS * (HALF + 1) + 2 * SLICES);
}

DEVICE alone alone_of(const tcu_delta_shape &of)
{
    extern __shared__ __align__(16) float shared[];
    alone s = {};
    s.padded = pad16(of.dk);
    s.ld_keys = s.padded + 8;
    s.sums = (double *)shared;
    s.slices = shared + 2 * CHUNK;
    s.k = s.slices + 2 * SLICES;
    s.q = s.k + CHUNK * s.ld_keys;
    s.g = s.q + CHUNK * s.ld_keys;
    s.up = s.g + CHUNK;
    s.down = s.up + CHUNK;
    s.strength = s.down + CHUNK;
    s.d_strength = s.strength + CHUNK;
    s.dots = s.d_strength + CHUNK;
    s.row_sums = s.dots + 3 * TILES * CHUNK;
    s.column_sums = s.row_sums + 4 * CHUNK;
    s.parts = s.column_sums + WARPS * HALF;
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

struct pairs_grads { /* over slices that were multiplied: rows LD_PAIRS apart */
    float *p, *a;    /* [64]: gradients of P and A times D; of A symmetric, times strength */
};

DEVICE pairs_grads pairs_of(const alone &s, int which)
{
    return { s.slices + which * SLICES, s.slices + which * SLICES + CHUNK * LD_PAIRS };
}

/* The value head h of the key head. */
DEVICE void enter_head(const tcu_delta_rule &p, alone &s, const tcu_piece &piece, bool last, int h)
{
    int64_t size = (int64_t)p.of.dk * p.of.dv;
    s.head = s.key_head * (p.of.n_value_heads / p.of.n_key_heads) + h;
    s.state = piece.edge < 0 ? NULL : p.states + ((int64_t)piece.edge * p.of.n_value_heads + s.head) * size;
    s.dstate = last ? NULL : p.dstates + ((int64_t)p.pieces[blockIdx.x + 1].edge * p.of.n_value_heads + s.head) * size;
}

struct row_gates { /* of thread i < 64: G of the row and of the last one, strength */
    double sum, last;
    float strength;
};

DEVICE row_gates load_gates(const tcu_delta_rule &p, const alone &s, const place &at)
{
    int heads = p.of.n_value_heads, i = min((int)threadIdx.x, at.end - 1);
    const double *sums = p.sums + (int64_t)at.origin * heads + s.head;
    return { sums[i * heads], sums[(at.end - 1) * heads], p.strength[(int64_t)(at.origin + i) * heads + s.head] };
}

DEVICE void put_gates(const alone &s, const place &at, const row_gates &x)
{
    int i = threadIdx.x;
    bool there = i < at.end;
    s.g[i] = there ? (float)x.sum : 0;
    s.up[i] = there ? (float)exp(x.sum) : 0;
    s.down[i] = there ? (float)exp(x.last - x.sum) : 0;
    s.strength[i] = there ? x.strength : 0;
}

/* Slices of heads of KEYS numbers: a thread has four columns of a row, and of two of the states'. */
DEVICE void fetch_whole(const tcu_delta_rule &p, const alone &s, const slices &to, const place &at, int first)
{
    static_assert(THREADS == CHUNK * (SLICE / 4) && KEYS == 2 * CHUNK, "a row of each is a thread's");
    int r = threadIdx.x / (SLICE / 4), c = threadIdx.x % (SLICE / 4) * 4, put = r * LD_SLICE + c, dv = p.of.dv;
    bool there = r < at.end;
    int64_t from = (int64_t)(here(at.origin) + (there ? r : 0)) * s.vd + s.head * dv + first + c;
    copy16(to.n + put, p.rows + from, there);
    copy16(to.d_o + put, p.d_o + from, there);
    copy16(to.z + put, p.z + from, there);
    int of = here(r) * dv + first + c;
    if (s.state) {
        copy16(to.state + put, s.state + of, true);
        copy16(to.state + CHUNK * LD_SLICE + put, s.state + of + CHUNK * dv, true);
    }
    if (s.dstate) {
        copy16(to.dstate + put, s.dstate + of, true);
        copy16(to.dstate + CHUNK * LD_SLICE + put, s.dstate + of + CHUNK * dv, true);
    }
    copy_commit();
}

DEVICE void fetch_slices(const tcu_delta_rule &p, const alone &s, const slices &to, const place &at, int first)
{
    int dk = p.of.dk, dv = p.of.dv, n = min(dv - first, (int)SLICE), rest = CHUNK - at.end;
    bool wide = wide_rows(p.of);
    if (wide && n == SLICE && dk == KEYS) {
        fetch_whole(p, s, to, at, first);
        return;
    }
    int64_t from = here(at.origin) * s.vd + (int64_t)s.head * dv + first;
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

/* Which products of pairs a warp has: of dO or of Z with N, 16 rows, half of the columns. */
struct pair_part {
    bool outputs;
    int row, column; /* the first of each */
};

DEVICE pair_part pair_part_of(void)
{
    int warp = threadIdx.x / 32;
    return { warp < 8, warp % 4 * 16, warp / 4 % 2 * HALF };
}

DEVICE void multiply_pairs(const slices &x, float c[1][4][4])
{
    pair_part w = pair_part_of();
    const float *left = (w.outputs ? x.d_o : x.z) + w.row * LD_SLICE, *right = x.n + w.column * LD_SLICE;
    if (w.row + 15 >= w.column) /* later columns count nothing */
        multiply_tf32<TF32_READY, TF32_READY, 1, 4>(
            c, SLICE / 8, [&](int i, int k) { return left[i * LD_SLICE + k]; },
            [&](int k, int j) { return right[j * LD_SLICE + k]; });
}

/* The first row and the first number of the keys that a warp has. */
DEVICE int half_of_warp(void)
{
    return threadIdx.x / 32 / TILES * HALF;
}

DEVICE int keys_of_warp(void)
{
    return threadIdx.x / 32 % TILES * 16;
}

/* S dO and S Z, dS' N */
DEVICE void multiply_states(const alone &s, const slices &x, float own[4][2][4], float next[2][2][4])
{
    int from = keys_of_warp(), half = half_of_warp();
    const float *state = x.state + from * LD_SLICE, *dstate = x.dstate + from * LD_SLICE;
    const float *rows = x.d_o + half * LD_SLICE, *n = x.n + half * LD_SLICE;
    if (s.state && from < s.padded)
        multiply_tf32<TF32_READY, TF32_READY, 4, 2>(
            own, SLICE / 8, [&](int i, int k) { return rows[(i < HALF ? i : i + CHUNK - HALF) * LD_SLICE + k]; },
            [&](int k, int j) { return state[j * LD_SLICE + k]; });
    if (s.dstate && from < s.padded)
        multiply_tf32<TF32_READY, TF32_READY, 2, 2>(
            next, SLICE / 8, [&](int i, int k) { return n[i * LD_SLICE + k]; },
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

/* What put_pairs needs of P or A: a lane's numbers. */
DEVICE void load_pairs(const tcu_delta_rule &p, const alone &s, const place &at, float2 with[2][4])
{
    pair_part w = pair_part_of();
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float *from = (w.outputs ? p.qk : p.kk) + (int64_t)here(at.origin) * s.pairs + s.head * CHUNK + w.column + 2 * t;
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int n = 0; n < 4; n++)
            with[r][n] = *(const float2 *)(from + min(w.row + g + r * 8, at.end - 1) * s.pairs + n * 8);
}

/* From a pair's product x of rows i and j: its part of E. P's gradient times D (OUTPUTS), or A's times strength and D, goes to shared
 * memory; `by` is 1 or minus the strength. Only pairs j <= i are anything. */
template <bool OUTPUTS>
DEVICE float put_pair(const alone &s, const pairs_grads &grads, bool there, int i, int j, float x, float weight, float by)
{
    bool before = there && j < i, own = there && j == i;
    float d = before ? __expf(s.g[i] - s.g[j]) : 0;
    if (OUTPUTS) {
        grads.p[i * LD_PAIRS + j] = own ? tf32_rounded(x) : tf32_rounded(x * d);
    } else if (j <= i) {
        float a = before ? tf32_rounded(by * x * d) : 0;
        grads.a[i * LD_PAIRS + j] = a;
        grads.a[j * LD_PAIRS + i] = a;
        if (own) /* through the sigmoid; by is minus the strength */
            s.d_strength[i] = x * (1 + by);
    }
    return before ? by * x * weight : 0;
}

/* A warp's pairs, and their sums of E by row and by column. */
template <bool OUTPUTS>
DEVICE void put_pairs(const alone &s, const pairs_grads &grads, const place &at, float c[1][4][4], const float2 with[2][4])
{
    pair_part w = pair_part_of();
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float rows[2] = {}, columns[4][2] = {};
    if (w.row + 15 >= w.column)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int i = w.row + g + r * 8;
            bool there = i < at.end;
            float by = OUTPUTS ? 1 : -s.strength[i];
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    float e = put_pair<OUTPUTS>(s, grads, there, i, w.column + n * 8 + 2 * t + k, c[0][n][r * 2 + k],
                                                k ? with[r][n].y : with[r][n].x, by);
                    rows[r] += e;
                    columns[n][k] += e;
                }
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = over_row(rows[r]);
        if (t == 0)
            s.row_sums[(OUTPUTS * 2 + w.column / HALF) * CHUNK + w.row + g + r * 8] = sum;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float sum = over_column(columns[j / 2][j % 2]);
        if (g == 0)
            s.column_sums[warp * HALF + j / 2 * 8 + 2 * t + j % 2] = sum;
    }
}

/* A warp's part of the dot products of rows of keys with c. */
DEVICE void put_dots(const alone &s, const float *keys, float c[2][2][4], float *to)
{
    int from = keys_of_warp(), half = half_of_warp(), g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float sums[4] = {};
    pairs_tf32<2, 2>(c, [&](int i, int j, float x, float y) {
        float2 k = *(const float2 *)(keys + (half + i) * s.ld_keys + from + j);
        sums[i / 8] = fmaf(k.y, y, fmaf(k.x, x, sums[i / 8]));
    });
    to += threadIdx.x / 32 % TILES * CHUNK + half;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        float sum = over_row(sums[r]);
        if (t == 0)
            to[r * 8 + g] = sum;
    }
}

/* The lanes' numbers to rows of to; the first value head of a key head writes, the others add. */
DEVICE void put_keys(const tcu_delta_rule &p, const alone &s, const place &at, bool add, float c[2][2][4], float *to)
{
    int from = keys_of_warp(), half = half_of_warp(), last = p.of.dk - 1 - from;
    to += (int64_t)here(at.origin + half) * s.kd + (int64_t)s.key_head * p.of.dk + from;
    bool even = p.of.dk % 2 == 0;
    if (add && even) /* all are read before any is written */
        pairs_tf32<2, 2>(c, [&](int i, int j, float &x, float &y) {
            float2 old = *(const float2 *)(to + min(i, at.end - half - 1) * s.kd + min(j, last - 1));
            x += old.x;
            y += old.y;
        });
    else if (add)
        each_tf32<2, 2>(c, [&](int i, int j, float &x) { x += to[min(i, at.end - half - 1) * s.kd + min(j, last)]; });
    pairs_tf32<2, 2>(c, [&](int i, int j, float x, float y) {
        if (half + i >= at.end || j > last)
            return;
        if (even) {
            *(float2 *)(to + i * s.kd + j) = make_float2(x, y);
            return;
        }
        to[i * s.kd + j] = x;
        if (j < last)
            to[i * s.kd + j + 1] = y;
    });
}

DEVICE void end_keys(const tcu_delta_rule &p, const alone &s, const pairs_grads &grads, const place &at, bool add,
                     float own[4][2][4], float next[2][2][4])
{
    int from = keys_of_warp(), half = half_of_warp();
    const float *dp = grads.p + half * LD_PAIRS, *da = grads.a + half * LD_PAIRS;
    if (from >= s.padded)
        return;
    put_dots(s, s.q, own, s.dots);
    put_dots(s, s.k, own + 2, s.dots + TILES * CHUNK);
    put_dots(s, s.k, next, s.dots + 2 * TILES * CHUNK);
    if (half >= at.end)
        return;
    each_tf32<2, 2>(own, [&](int i, int, float &x) { x *= s.up[half + i]; });
    each_tf32<2, 2>(own + 2, [&](int i, int, float &x) { x *= -(s.strength[half + i] * s.up[half + i]); });
    each_tf32<2, 2>(next, [&](int i, int, float &x) { x *= s.down[half + i]; });
#pragma unroll
    for (int i = 0; i < 2 * 2 * 4; i++)
        own[2 + i / 8][i / 4 % 2][i % 4] += next[i / 8][i / 4 % 2][i % 4];
    const float *keys = s.k + from, *queries = s.q + half * s.ld_keys + from, *below = grads.p + half * LD_PAIRS + half;
    auto key = [&](int k, int j) { return keys[k * s.ld_keys + j]; };
    multiply_tf32<TF32_READY, TF32_ROUND, 2, 2>(own, (half + HALF) / 8, [&](int i, int k) { return dp[i * LD_PAIRS + k]; }, key);
    multiply_tf32<TF32_READY, TF32_ROUND, 2, 2>(own + 2, CHUNK / 8, [&](int i, int k) { return da[i * LD_PAIRS + k]; }, key);
    multiply_tf32<TF32_READY, TF32_ROUND, 2, 2>(
        own + 2, (CHUNK - half) / 8, [&](int i, int k) { return below[k * LD_PAIRS + i]; },
        [&](int k, int j) { return queries[k * s.ld_keys + j]; });
    put_keys(p, s, at, add, own, p.dq);
    put_keys(p, s, at, add, own + 2, p.dk);
}

/* The threads that have gates wait for each other. */
DEVICE void sync_gates(void)
{
    asm volatile("bar.sync 1,%0;" ::"n"((int)GATES) : "memory");
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

/* The decays' gradients, by the threads that have gates. */
DEVICE void end_gates(const tcu_delta_rule &p, const alone &s, const place &at)
{
    double *d_sums = s.sums;
    float *own = s.row_sums;
    int tiles = min((int)TILES, s.padded / 16), i = threadIdx.x;
    int64_t to = (int64_t)here(at.origin + i) * p.ld_gates + p.decay_at + s.head;
    float gate = i < at.end ? p.gates[to] : 0;
    if (i < at.end) {
        float dots[3] = {}, e = 0;
        for (int k = 0; k < 3; k++)
            for (int w = 0; w < tiles; w++)
                dots[k] += s.dots[(k * TILES + w) * CHUNK + i];
        for (int w = 0; w < 4; w++)
            e += s.row_sums[w * CHUNK + i];
        for (int w = 0; w < 8; w++) /* those that have column i */
            e -= s.column_sums[((w / 4 * 2 + i / HALF) * 4 + w % 4) * HALF + i % HALF];
        own[i] = s.down[i] * dots[2];
        d_sums[i] = (double)(s.up[i] * dots[0]) - (double)(s.strength[i] * s.up[i] * dots[1]) - (double)own[i] + (double)e;
    }
    sync_gates();
    if (threadIdx.x < 32)
        sum_ahead(s, at, own, d_sums);
    sync_gates();
    if (i < at.end) {
        double x = (double)gate + (double)p.of.dt_bias[s.head];
        p.dgates[to] = narrow((float)(-d_sums[i] * (double)p.of.decay[s.head] / (1 + exp(-x))));
        p.dgates[to - p.decay_at] = narrow(s.d_strength[i]);
    }
    sync_gates(); /* the next head's gates may come */
}

__global__ void __launch_bounds__(THREADS, 1) delta_chunk_back(tcu_delta_rule p)
{
    tcu_piece piece = p.pieces[blockIdx.x];
    if (piece.n <= 0)
        return;
    tcu_run run = p.runs[piece.run];
    place at = place_of(piece);
    alone s = alone_of(p.of);
    int per = p.of.n_value_heads / p.of.n_key_heads, dk = p.of.dk, rest = CHUNK - at.end, which = 0;
    bool last = blockIdx.x + 1 == run.piece + run.n_pieces, wide = dk % 4 == 0;
    int64_t from = at.origin * s.kd + (int64_t)s.key_head * dk;
    fetch(s.k, s.ld_keys, p.k + from, s.kd, at.end, dk, s.padded, wide);
    fetch(s.q, s.ld_keys, p.q + from, s.kd, at.end, dk, s.padded, wide);
    copy_commit();
    clear(s.k + at.end * s.ld_keys, s.ld_keys, rest, s.padded);
    clear(s.q + at.end * s.ld_keys, s.ld_keys, rest, s.padded);
    enter_head(p, s, piece, last, 0);
    fetch_slices(p, s, slices_of(s, 0), at, 0);
    for (int h = 0; h < per; h++) {
        alone ahead = s;
        float pairs[1][4][4] = {}, own[4][2][4] = {}, next[2][2][4] = {}, dot = 0;
        float2 with[2][4];
        row_gates gates = {};
        if (threadIdx.x < GATES)
            gates = load_gates(p, s, at);
        for (int first = 0; first < p.of.dv; first += SLICE, which ^= 1) {
            slices x = slices_of(s, which);
            bool more = first + SLICE < p.of.dv;
            if (!more)
                load_pairs(p, s, at, with);
            if (!more && h + 1 < per)
                enter_head(p, ahead, piece, last, h + 1);
            if (more || h + 1 < per) {
                fetch_slices(p, ahead, slices_of(s, which ^ 1), at, more ? first + SLICE : 0);
                copy_wait<1>();
            } else {
                copy_wait<0>();
            }
            if (first == 0 && threadIdx.x < GATES)
                put_gates(s, at, gates);
            __syncthreads();
            multiply_pairs(x, pairs);
            multiply_states(s, x, own, next);
            dot = state_dot(s, x, dot);
            __syncthreads();
        }
        dot = warp_sum(dot);
        if (threadIdx.x % 32 == 0)
            s.parts[threadIdx.x / 32] = dot;
        pairs_grads grads = pairs_of(s, which ^ 1);
        if (pair_part_of().outputs)
            put_pairs<true>(s, grads, at, pairs, with);
        else
            put_pairs<false>(s, grads, at, pairs, with);
        __syncthreads();
        end_keys(p, s, grads, at, h > 0, own, next);
        __syncthreads();
        if (threadIdx.x < GATES)
            end_gates(p, s, at);
        s = ahead;
    }
}

int tcu_delta_chunks_back(const tcu_delta_rule *p, tcu_stream stream)
{
    size_t bytes = alone_bytes(&p->of);
    int rc = allow_shared(delta_chunk_back, bytes);
    return rc ? rc : launch(delta_chunk_back, dim3(p->n_pieces, p->of.n_key_heads), THREADS, bytes, stream, *p);
}
