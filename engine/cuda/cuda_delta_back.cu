/* cuda_delta_back.cu - gradients of the gated delta rule, of packed sequences (shared/spec families: the formulas in math/delta_rule.c).
 *
 * Two launches: blocks of one value head and some of its columns go through the chunks of a sequence, the last first, with the gradient
 * of the state in shared memory, and leave Z = M^-T dN and that gradient at each edge; then each chunk of a key head by itself
 * (cuda_delta_chunk.cu). What the next chunk reads is copied while this one is multiplied, each part as soon as its place is free.
 * Every sum runs in one order, and nothing is added atomically. Products take tf32 operands.
 */
#define DELTA_THREADS 512
#include "cuda/cuda_delta.cuh"

enum { LD_OUT = CHUNK + 8, GATES = 3 * CHUNK };

template <int N> struct back { /* a block's shared memory, and its columns: N tiles of 8 */
    static const int COLUMNS = N * 8, LD = COLUMNS + 8, GROUPS = THREADS / COLUMNS, KEYS_AFTER = 4, QUERIES_AFTER = 8;
    float *ds, *z, *q, *kk, *qk; /* [dk][LD], [64][LD], [64][ld_queries], [64][LD_PAIRS], [64][LD_OUT] */
    float *keys, *outs, *gates;  /* two of each: [64][ld_keys], [64][LD], [3][64] */
    float *k, *d_o;              /* those of this chunk */
    float *up, *down, *strength; /* [64] */
    int ld_keys, ld_queries, padded, head, key_head, first, n;
    int64_t kd, vd, pairs;
    __device__ __forceinline__ back(const tcu_delta_shape &of)
    {
        extern __shared__ __align__(16) float shared[];
        padded = pad16(of.dk);
        ld_keys = padded + KEYS_AFTER;
        ld_queries = padded + QUERIES_AFTER;
        ds = shared;
        z = ds + padded * LD;
        q = z + CHUNK * LD;
        kk = q + CHUNK * ld_queries;
        qk = kk + CHUNK * LD_PAIRS;
        keys = qk + CHUNK * LD_OUT;
        outs = keys + 2 * CHUNK * ld_keys;
        gates = outs + 2 * CHUNK * LD;
        head = blockIdx.y;
        key_head = head / (of.n_value_heads / of.n_key_heads);
        first = blockIdx.x * COLUMNS;
        n = min(of.dv - first, (int)COLUMNS);
        kd = (int64_t)of.n_key_heads * of.dk;
        vd = (int64_t)of.n_value_heads * of.dv;
        pairs = (int64_t)of.n_value_heads * CHUNK;
    }
    static size_t bytes(const tcu_delta_shape &of)
    {
        int padded = (of.dk + 15) / 16 * 16;
        return sizeof(float) * (size_t)(padded * LD + 2 * GATES +
                                        CHUNK * (3 * LD + 3 * padded + QUERIES_AFTER + 2 * KEYS_AFTER + LD_PAIRS + LD_OUT));
    }
    /* The places of a chunk, which are used in turn. */
    __device__ __forceinline__ void turn(int which)
    {
        k = keys + which * CHUNK * ld_keys;
        d_o = outs + which * CHUNK * LD;
        up = gates + which * GATES;
        down = up + CHUNK;
        strength = down + CHUNK;
    }
};

/* ---- copies of what a chunk reads; rows that are not there become zero ---- */

template <int N> DEVICE void fetch_rows(const tcu_delta_rule &p, const back<N> &s, const place &at, int which)
{
    int dk = p.of.dk, rest = CHUNK - at.end;
    int64_t row = at.origin;
    bool wide = wide_rows(p.of);
    float *k = s.keys + which * CHUNK * s.ld_keys, *d_o = s.outs + which * CHUNK * s.LD;
    fetch(k, s.ld_keys, p.k + row * s.kd + s.key_head * dk, s.kd, at.end, dk, s.padded, wide);
    fetch_part<back<N>::COLUMNS>(d_o, s.LD, p.d_o + row * s.vd + s.head * p.of.dv + s.first, s.vd, at.end, s.n, wide);
    copy_commit();
    clear(k + at.end * s.ld_keys, s.ld_keys, rest, s.padded);
    clear(d_o + at.end * s.LD, s.LD, rest, s.COLUMNS);
}

template <int N> DEVICE void fetch_pairs(const back<N> &s, const float *from, const place &at, float *to, int ld)
{
    fetch_part<CHUNK>(to, ld, from + at.origin * s.pairs + s.head * CHUNK, s.pairs, at.end, CHUNK, true);
    copy_commit();
    clear(to + at.end * ld, ld, CHUNK - at.end, CHUNK);
}

template <int N> DEVICE void fetch_queries(const tcu_delta_rule &p, const back<N> &s, const place &at)
{
    int dk = p.of.dk;
    fetch(s.q, s.ld_queries, p.q + at.origin * s.kd + s.key_head * dk, s.kd, at.end, dk, s.padded, wide_rows(p.of));
    copy_commit();
    clear(s.q + at.end * s.ld_queries, s.ld_queries, CHUNK - at.end, s.padded);
}

struct row_gates { /* G of a row and of the last one, strength */
    double sum, last;
    float strength;
};

template <int N> DEVICE row_gates load_gates(const tcu_delta_rule &p, const back<N> &s, const place &at, int i)
{
    int heads = p.of.n_value_heads, row = min(i, at.end - 1);
    const double *sums = p.sums + (int64_t)at.origin * heads + s.head;
    return { sums[row * heads], sums[(at.end - 1) * heads], p.strength[(int64_t)(at.origin + row) * heads + s.head] };
}

DEVICE void put_gates(float *gates, const place &at, int i, const row_gates &x)
{
    bool there = i < at.end;
    gates[i] = there ? (float)exp(x.sum) : 0;
    gates[CHUNK + i] = there ? (float)exp(x.last - x.sum) : 0;
    gates[2 * CHUNK + i] = there ? x.strength : 0;
}

/* ---- a chunk ---- */

/* dN: from the state's gradient and from the outputs of the rows from it on. A warp has 16 rows, a quarter of the columns. */
template <int N> DEVICE void begin_back(const back<N> &s, const place &at, bool last)
{
    int tile = threadIdx.x / 32 % 4 * 16, column = threadIdx.x / 128 * N * 2, rows = at.end - tile;
    float c[1][N / 4][4] = {}, *z = s.z + tile * s.LD + column;
    const float *keys = s.k + tile * s.ld_keys, *ds = s.ds + column, *d_o = s.d_o + tile * s.LD + column;
    const float *weights = s.qk + tile * LD_OUT + tile;
    if (rows <= 0)
        return;
    if (!last) {
        multiply_tf32<TF32_ROUND, TF32_ROUND, 1, N / 4>(
            c, s.padded / 8, [&](int i, int k) { return keys[i * s.ld_keys + k]; }, [&](int k, int j) { return ds[k * s.LD + j]; });
        each_tf32<1, N / 4>(c, [&](int i, int, float &x) { x *= s.down[tile + i]; });
    }
    multiply_tf32<TF32_ROUND, TF32_READY, 1, N / 4>(
        c, pad16(rows) / 8, [&](int i, int k) { return weights[k * LD_OUT + i]; }, [&](int k, int j) { return d_o[k * s.LD + j]; });
    each_tf32<1, N / 4>(c, [&](int i, int j, float x) {
        if (i < rows)
            z[i * s.LD + j] = x;
    });
}

/* A tile of 16 rows Z from what they are without each other. */
template <int N> DEVICE void solve_tile_back(const back<N> &s, int first, float *z)
{
    float x[16];
    z += first * s.LD;
#pragma unroll
    for (int i = 0; i < 16; i++)
        x[i] = z[i * s.LD];
#pragma unroll
    for (int i = 15; i > 0; i--) {
        const float4 *with = (const float4 *)(s.kk + (first + i) * LD_PAIRS + first);
        float w = s.strength[first + i] * x[i];
#pragma unroll
        for (int j = 0; j < i; j += 4) {
            float4 f = with[j / 4];
            x[j] = fmaf(-f.x, w, x[j]);
            x[j + 1] = j + 1 < i ? fmaf(-f.y, w, x[j + 1]) : x[j + 1];
            x[j + 2] = j + 2 < i ? fmaf(-f.z, w, x[j + 2]) : x[j + 2];
            x[j + 3] = j + 3 < i ? fmaf(-f.w, w, x[j + 3]) : x[j + 3];
        }
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        z[i * s.LD] = x[i];
}

/* Z from dN. A thread has a column, and four rows at a time; later rows are subtracted from the last to the first. */
template <int N> DEVICE void solve_back(const back<N> &s, const place &at)
{
    int column = threadIdx.x % s.COLUMNS, group = threadIdx.x / s.COLUMNS;
    float x[16], *z = s.z + column;
    for (int first = (at.end - 1) & ~15; first >= 0; first -= 16) {
        if (group == 0)
            solve_tile_back<N>(s, first, z);
        __syncthreads();
        if (first == 0)
            continue;
#pragma unroll
        for (int i = 0; i < 16; i++)
            x[i] = s.strength[first + i] * z[(first + i) * s.LD];
        for (int row = group * 4; row < first; row += s.GROUPS * 4) {
            float sum[4];
#pragma unroll
            for (int r = 0; r < 4; r++)
                sum[r] = z[(row + r) * s.LD];
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
                z[(row + r) * s.LD] = sum[r];
        }
        __syncthreads();
    }
}

/* Z and the gradient of v; then Z and dO become what retreat multiplies by. */
template <int N> DEVICE void put_back(const tcu_delta_rule &p, const back<N> &s, const place &at)
{
    int64_t column = s.head * p.of.dv + s.first;
    bool wide = p.of.dv % 4 == 0 && p.v_at % 4 == 0 && p.ld_c % 4 == 0;
    each_four<back<N>::COLUMNS>(s.z, s.LD, 0, at.end, [&](int r, int c, float4 x) {
        int64_t row = at.origin + r;
        float strength = s.strength[r], up = s.up[r], down = -(strength * up);
        float4 *z = (float4 *)(s.z + r * s.LD + c), *d_o = (float4 *)(s.d_o + r * s.LD + c), o = *d_o;
        *z = tf32_rounded(make_float4(down * x.x, down * x.y, down * x.z, down * x.w));
        *d_o = tf32_rounded(make_float4(up * o.x, up * o.y, up * o.z, up * o.w));
        store_four(p.z + row * s.vd + column + c, tf32_rounded(x), s.n - c, wide);
        bf16 *to = p.dc + row * p.ld_c + p.v_at + column + c;
        uint2 dv = make_uint2(pack(strength * x.x, strength * x.y), pack(strength * x.z, strength * x.w));
        if (wide && c + 4 <= s.n)
            *(uint2 *)to = dv;
        else
            for (int i = 0; i < s.n - c && i < 4; i++)
                to[i] = narrow(strength * (i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w));
    });
}

/* The gradient of the state before the chunk. A warp has 16 rows, half of the columns. */
template <int N> DEVICE void retreat(const back<N> &s, const place &at)
{
    int tile = threadIdx.x / 32 % 8 * 16, column = threadIdx.x / 256 * N * 4, steps = pad16(at.end) / 8;
    float c[1][N / 2][4], *to = s.ds + tile * s.LD + column, whole = s.up[at.end - 1];
    const float *keys = s.k + tile, *queries = s.q + tile, *d_o = s.d_o + column, *z = s.z + column;
    if (tile >= s.padded)
        return;
    each_tf32<1, N / 2>(c, [&](int i, int j, float &x) { x = whole * to[i * s.LD + j]; });
    multiply_tf32<TF32_ROUND, TF32_READY, 1, N / 2>(
        c, steps, [&](int i, int k) { return queries[k * s.ld_queries + i]; }, [&](int k, int j) { return d_o[k * s.LD + j]; });
    multiply_tf32<TF32_ROUND, TF32_READY, 1, N / 2>(
        c, steps, [&](int i, int k) { return keys[k * s.ld_keys + i]; }, [&](int k, int j) { return z[k * s.LD + j]; });
    each_tf32<1, N / 2>(c, [&](int i, int j, float x) { to[i * s.LD + j] = x; });
}

template <int N> DEVICE void put_dstate(const tcu_delta_rule &p, const back<N> &s, int edge)
{
    float *to = p.dstates + ((int64_t)edge * p.of.n_value_heads + s.head) * p.of.dk * p.of.dv + s.first;
    bool wide = p.of.dv % 4 == 0;
    each_four<back<N>::COLUMNS>(s.ds, s.LD, 0, p.of.dk, [&](int a, int c, float4 x) {
        store_four(to + (int64_t)a * p.of.dv + c, tf32_rounded(x), s.n - c, wide);
    });
}

template <int N> __global__ void __launch_bounds__(THREADS, 1) delta_scan_back(tcu_delta_rule p)
{
    tcu_run run = p.runs[blockIdx.z];
    if (run.n <= 0)
        return;
    back<N> s(p.of);
    int which = 0, i = run.n_pieces - 1, mine = (int)threadIdx.x - (THREADS - CHUNK); /* the last warps do the gates of the next chunk */
    place at = place_of(p.pieces[run.piece + i]);
    clear(s.ds, s.LD, s.padded, s.COLUMNS);
    clear(s.z, s.LD, CHUNK, s.COLUMNS);
    fetch_rows<N>(p, s, at, 0);
    fetch_pairs<N>(s, p.qk, at, s.qk, LD_OUT);
    fetch_pairs<N>(s, p.kk, at, s.kk, LD_PAIRS);
    fetch_queries<N>(p, s, at);
    if (mine >= 0)
        put_gates(s.gates, at, mine, load_gates<N>(p, s, at, mine));
    for (bool last = true; i >= 0; i--, which ^= 1, last = false) {
        place next = i ? place_of(p.pieces[run.piece + i - 1]) : at;
        row_gates gates = {};
        s.turn(which);
        if (mine >= 0 && i)
            gates = load_gates<N>(p, s, next, mine);
        if (!last)
            put_dstate<N>(p, s, p.pieces[run.piece + i + 1].edge);
        if (i)
            fetch_rows<N>(p, s, next, which ^ 1);
        else
            copy_commit();
        copy_wait<3>(); /* this chunk's rows and qk are there */
        __syncthreads();
        begin_back<N>(s, at, last);
        copy_wait<2>(); /* kk */
        __syncthreads();
        if (i)
            fetch_pairs<N>(s, p.qk, next, s.qk, LD_OUT);
        else
            copy_commit();
        if (mine >= 0 && i)
            put_gates(s.gates + (which ^ 1) * GATES, next, mine, gates);
        solve_back<N>(s, at);
        if (i)
            fetch_pairs<N>(s, p.kk, next, s.kk, LD_PAIRS);
        else
            copy_commit();
        put_back<N>(p, s, at);
        copy_wait<3>(); /* q */
        __syncthreads();
        if (i)
            retreat<N>(s, at);
        __syncthreads();
        if (i)
            fetch_queries<N>(p, s, next);
        at = next;
    }
}

/* ---- launches ---- */

template <int N> static int run_scan(const tcu_delta_rule *p, tcu_stream stream)
{
    size_t bytes = back<N>::bytes(p->of);
    dim3 grid((p->of.dv + N * 8 - 1) / (N * 8), p->of.n_value_heads, p->n_runs);
    int rc = allow_shared(delta_scan_back<N>, bytes);
    return rc ? rc : launch(delta_scan_back<N>, grid, THREADS, bytes, stream, *p);
}

int tcu_delta_backward(const tcu_delta_rule *p, tcu_stream stream)
{
    bool few = p->of.dv <= 32 || (int64_t)p->n_runs * p->of.n_value_heads * ((p->of.dv + 63) / 64) < 132;
    int rc = few ? run_scan<4>(p, stream) : run_scan<8>(p, stream);
    return rc ? rc : tcu_delta_chunks_back(p, stream);
}
