/* cuda_space_back.cu - gradients of the state-space rule: two scans over a sequence's chunks, then all chunks at once.
 *
 * The scans leave the states at the chunks' edges and their gradients, rounded to bf16; so are the other operands of products. A
 * block of the last kernel has one chunk and one group: gradients of B and C are sums over the group's heads, in their order.
 * Nothing is added atomically.
 */
#include "cuda/cuda_space.cuh"

enum { SCAN_THREADS = 128, WARPS = 8, THREADS = WARPS * 32 };

DEVICE int chunks_of(const tcu_run &r)
{
    return (r.n + CHUNK - 1) / CHUNK;
}

typedef struct place { /* a chunk of a sequence of training */
    int row, n;
    bool first, last;
} place;

DEVICE place place_of(const tcu_run &r, int chunk)
{
    place c;
    c.row = r.row + chunk * CHUNK;
    c.n = min(CHUNK, r.n - chunk * CHUNK);
    c.first = chunk == 0;
    c.last = chunk + 1 >= chunks_of(r);
    return c;
}

/* ---- scans ---- */

typedef struct scan_tiles {
    bf16 v[CHUNK * N], x[CHUNK * P];
    decays d;
} scan_tiles;

/* The states after all chunks of a head but the last; REVERSE: their gradients, from the last. */
template <bool REVERSE> __global__ void __launch_bounds__(SCAN_THREADS) space_scan(tcu_space_rule p)
{
    extern __shared__ __align__(128) unsigned char shared[];
    scan_tiles &t = *(scan_tiles *)shared;
    int head = blockIdx.x, p0 = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
    int vector = (REVERSE ? p.c_at : p.b_at) + head_group(p, head) * p.n;
    tcu_run r = p.runs[blockIdx.y];
    float s[N / 8][4] = {};
    for (int e = 0; e + 1 < chunks_of(r); e++) {
        int edge = REVERSE ? chunks_of(r) - 2 - e : e;
        place c = place_of(r, REVERSE ? edge + 1 : edge);
        load_tile<N>(t.v, 0, c.n, p.n, p.c, [&](int i) { return p.c + (c.row + i) * p.ldc + vector; });
        load_tile<P>(t.x, 0, c.n, p.p, p.c, [&](int i) {
            return (REVERSE ? p.dy + (c.row + i) * p.ldy : p.c + (c.row + i) * p.ldc) + head * p.p;
        });
        copy_commit();
        if (threadIdx.x < 32)
            make_decays(p, head, c.n, t.d, [&](int i) { return p.times + (c.row + i) * p.ld_times + head; });
        copy_wait<0>();
        __syncthreads();
        float whole = faded(t.d, CHUNK - 1);
#pragma unroll
        for (int k = 0; k < N / 8; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[k][i] *= whole;
#pragma unroll
        for (int j = 0; j < CHUNK; j += 16) {
            uint32_t f[4], g[4];
            frag_turned<P>(f, t.x, p0, j);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = j + lane % 4 * 2 + i / 2 * 8;
                float2 x = unpack(f[i]);
                f[i] = REVERSE ? pack(x.x * faded(t.d, at), x.y * faded(t.d, at + 1)) :
                                 pack(x.x * (fade(t.d, CHUNK - 1, at) * t.d.step[at]),
                                      x.y * (fade(t.d, CHUNK - 1, at + 1) * t.d.step[at + 1]));
            }
#pragma unroll
            for (int k = 0; k < N / 16; k++) {
                other_turned<N>(g, t.v, k * 16, j);
                mma_two(s + 2 * k, f, g);
            }
        }
        bf16 *to = (REVERSE ? p.d_states : p.states) + edge_at(p, r, edge, head);
#pragma unroll
        for (int k = 0; k < N / 8; k++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *(uint32_t *)(to + (p0 + lane / 4 + half * 8) * N + k * 8 + lane % 4 * 2) =
                    pack(s[k][half * 2], s[k][half * 2 + 1]);
        __syncthreads();
    }
}

/* ---- chunks ---- */

typedef struct tiles {
    bf16 b[CHUNK * N], c[CHUNK * N];
    bf16 x[CHUNK * P], dy[CHUNK * P]; /* of a head */
    bf16 s[P * N], ds[P * N];         /* the state before the chunk; the gradient of that after it */
    bf16 q[CHUNK * CHUNK], w[CHUNK * CHUNK]; /* gradients of C_i.B_j; what y_i has of u_j */
    float rows[2][CHUNK], cols[4][CHUNK];    /* sums of (gradient of D) D: over j, over i */
    float out[2][CHUNK], in[2][CHUNK], along[2][CHUNK]; /* of row i: up (dy S).C, down d x.(B dS), x.du */
    float whole[WARPS];                                 /* parts of S.dS */
    decays d;
} tiles;

/* A warp's place in an output of 64 rows: 16 rows, half the columns. */
DEVICE int warp_row(void)
{
    return threadIdx.x / 64 * 16;
}

DEVICE int warp_half(void)
{
    return threadIdx.x / 32 % 2;
}

DEVICE float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Two neighbours of a tile. */
template <int COLS> DEVICE float2 pair_at(const bf16 *tile, int row, int col)
{
    return unpack(*(const uint32_t *)(tile + swizzle<COLS>(row, col / 8) + col % 8));
}

template <int COLS> DEVICE void put_pair(bf16 *tile, int row, int col, float a, float b)
{
    *(uint32_t *)(tile + swizzle<COLS>(row, col / 8) + col % 8) = pack(a, b);
}

/* Calls f(half, tile, row, column, two neighbours) for a warp's accumulators of T tiles of 8 columns, from column n0. */
template <int T, typename F> DEVICE void each_pair(float a[T][4], int n0, F f)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int k = 0; k < T; k++)
            f(half, k, warp_row() + lane / 4 + half * 8, n0 + k * 8 + lane % 4 * 2, &a[k][half * 2]);
}

/* A sum over columns of each of the warp's rows, from what its lanes have. */
DEVICE void put_rows(float *to, const float sum[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float x = quad_sum(sum[half]);
        if (threadIdx.x % 4 == 0)
            to[warp_row() + threadIdx.x % 32 / 4 + half * 8] = x;
    }
}

DEVICE void load_head(const tcu_space_rule &p, const tcu_run &r, const place &c, int chunk, int head, tiles &t)
{
    load_tile<P>(t.x, 0, c.n, p.p, p.c, [&](int i) { return p.c + (c.row + i) * p.ldc + head * p.p; });
    load_tile<P>(t.dy, 0, c.n, p.p, p.c, [&](int i) { return p.dy + (c.row + i) * p.ldy + head * p.p; });
    load_tile<N>(t.s, 0, c.first ? 0 : P, N, p.c, [&](int i) { return p.states + edge_at(p, r, chunk - 1, head) + i * N; });
    load_tile<N>(t.ds, 0, c.last ? 0 : P, N, p.c, [&](int i) { return p.d_states + edge_at(p, r, chunk, head) + i * N; });
    copy_commit();
    if (threadIdx.x < 32)
        make_decays(p, head, c.n, t.d, [&](int i) { return p.times + (c.row + i) * p.ld_times + head; });
    copy_wait<0>();
}

/* q, w and the sums over rows and columns. cb: C_i.B_j. */
DEVICE void inside(tiles &t, const float cb[4][4])
{
    float a[4][4] = {}, rows[2] = {}, cols[4][2] = {};
    int n0 = warp_half() * 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < P; k += 16) {
        uint32_t f[4], g[4];
        frag<P>(f, t.dy, warp_row(), k);
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            other<P>(g, t.x, n0 + j * 8, k);
            mma_two(a + j, f, g);
        }
    }
    each_pair<4>(a, n0, [&](int half, int k, int row, int col, float *v) {
        float q[2], w[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float keep = col + e <= row ? fade(t.d, row, col + e) : 0;
            w[e] = cb[k][half * 2 + e] * keep;
            q[e] = v[e] * t.d.step[col + e] * keep;
            float both = col + e < row ? q[e] * cb[k][half * 2 + e] : 0;
            rows[half] += both;
            cols[k][e] += both;
        }
        put_pair<CHUNK>(t.w, row, col, w[0], w[1]);
        put_pair<CHUNK>(t.q, row, col, q[0], q[1]);
    });
    put_rows(t.rows[warp_half()], rows);
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
#pragma unroll
            for (int far = 4; far < 32; far *= 2)
                cols[k][e] += __shfl_xor_sync(0xffffffffu, cols[k][e], far);
            if (lane < 4)
                t.cols[threadIdx.x / 64][n0 + k * 8 + lane * 2 + e] = cols[k][e];
        }
}

/* a += rows of `m` (its columns, if TURNED) from tile `from` to `to` of 16, times rows of v: half its columns. */
template <bool TURNED> DEVICE void add_vectors(float a[8][4], const bf16 *m, const bf16 *v, int from, int to)
{
    for (int k = from; k < to; k += 16) {
        uint32_t f[4], g[4];
        if (TURNED)
            frag_turned<CHUNK>(f, m, warp_row(), k);
        else
            frag<CHUNK>(f, m, warp_row(), k);
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            other_turned<N>(g, v, warp_half() * 64 + j * 8, k);
            mma_two(a + j, f, g);
        }
    }
}

/* to += by(row) * (rows of m [CHUNK][P] times s [P][N]); sums of each row times v, if that is wanted. */
template <typename F> DEVICE void add_state(float to[8][4], const bf16 *m, const bf16 *s, const bf16 *v, float sums[2], F by)
{
    float a[8][4] = {};
#pragma unroll
    for (int k = 0; k < P; k += 16) {
        uint32_t f[4], g[4];
        frag<P>(f, m, warp_row(), k);
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            other_turned<N>(g, s, warp_half() * 64 + j * 8, k);
            mma_two(a + j, f, g);
        }
    }
    each_pair<8>(a, warp_half() * 64, [&](int half, int k, int row, int col, float *x) {
        float scale = by(row), *own = &to[k][half * 2];
        own[0] = fmaf(scale, x[0], own[0]);
        own[1] = fmaf(scale, x[1], own[1]);
        if (!v)
            return;
        float2 w = pair_at<N>(v, row, col);
        sums[half] = fmaf(scale * x[0], w.x, fmaf(scale * x[1], w.y, sums[half]));
    });
}

/* du of the warp's rows and half of the head, then dx; the sums that concern the decays. */
DEVICE void make_inputs(const tcu_space_rule &p, const place &c, int head, tiles &t)
{
    float a[4][4] = {}, in[2] = {}, along[2] = {};
    int n0 = warp_half() * 32;
    uint32_t f[4], g[4];
    for (int k = 0; k < N && !c.last; k += 16) {
        frag<N>(f, t.b, warp_row(), k);
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            other<N>(g, t.ds, n0 + j * 8, k);
            mma_two(a + j, f, g);
        }
    }
    each_pair<4>(a, n0, [&](int half, int, int row, int col, float *v) {
        float down = fade(t.d, CHUNK - 1, row);
        float2 x = pair_at<P>(t.x, row, col);
        v[0] *= down;
        v[1] *= down;
        in[half] = fmaf(v[0], x.x, fmaf(v[1], x.y, in[half]));
    });
    for (int k = warp_row(); k < CHUNK; k += 16) {
        frag_turned<CHUNK>(f, t.w, warp_row(), k);
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            other_turned<P>(g, t.dy, n0 + j * 8, k);
            mma_two(a + j, f, g);
        }
    }
    float skip = p.skip[head];
    each_pair<4>(a, n0, [&](int half, int, int row, int col, float *v) {
        float2 x = pair_at<P>(t.x, row, col), dy = pair_at<P>(t.dy, row, col);
        float step = t.d.step[row];
        along[half] = fmaf(v[0], x.x, fmaf(v[1], x.y, along[half]));
        bf16 *to = p.dc + (int64_t)(c.row + row) * p.ldc + head * p.p + col;
        if (row < c.n && col < p.p)
            to[0] = narrow(fmaf(skip, dy.x, step * v[0]));
        if (row < c.n && col + 1 < p.p)
            to[1] = narrow(fmaf(skip, dy.y, step * v[1]));
    });
    put_rows(t.in[warp_half()], in);
    put_rows(t.along[warp_half()], along);
}

/* Part of the sum of S times its gradient. */
DEVICE void make_whole(tiles &t)
{
    float sum = 0;
    for (int k = threadIdx.x; k < P * N / 2; k += THREADS) { /* both lie in the same way */
        float2 a = unpack(((const uint32_t *)t.s)[k]), b = unpack(((const uint32_t *)t.ds)[k]);
        sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        t.whole[threadIdx.x / 32] = sum;
}

/* By the first warp, two rows a lane: gradients of the decays, each a sum from its row to the chunk's end, and of time steps. */
DEVICE void make_times(const tcu_space_rule &p, const place &c, int head, const tiles &t)
{
    int lane = threadIdx.x;
    double sum[2], in[2], all = 0;
    if (lane >= 32)
        return;
    float whole = 0;
    for (int i = 0; i < WARPS; i++)
        whole += t.whole[i];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int i = lane + 32 * k;
        in[k] = (double)(t.d.step[i] * (t.in[0][i] + t.in[1][i]));
        sum[k] = (double)(t.out[0][i] + t.out[1][i]) + (double)(t.rows[0][i] + t.rows[1][i]) -
                 (double)((t.cols[0][i] + t.cols[1][i]) + (t.cols[2][i] + t.cols[3][i])) - in[k];
#pragma unroll
        for (int far = 1; far < 32; far *= 2) {
            double after = __shfl_down_sync(0xffffffffu, sum[k], far);
            sum[k] += lane + far < 32 ? after : 0;
        }
    }
    all = warp_sum(in[0] + in[1]) + (double)(faded(t.d, CHUNK - 1) * whole);
    sum[0] += __shfl_sync(0xffffffffu, sum[1], 0);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int i = lane + 32 * k;
        if (i >= c.n)
            continue;
        float d = (float)((double)(t.along[0][i] + t.along[1][i]) - (double)p.decay[head] * (sum[k] + all));
        bool cut = t.d.soft[i] < p.step_min || t.d.soft[i] > p.step_max;
        bf16 *to = p.d_times + (c.row + i) * p.ld_times;
        to[head] = narrow(cut ? 0 : d / (1 + expf(-t.d.in[i])));
        for (int pad = head + 1; head + 1 == p.n_heads && pad % 8; pad++) /* a product reads them, too */
            to[pad] = narrow(0);
    }
}

/* Gradients of B or C, of the block's group. */
DEVICE void store_vectors(const tcu_space_rule &p, const place &c, int at, float a[8][4])
{
    each_pair<8>(a, warp_half() * 64, [&](int, int, int row, int col, float *v) {
        bf16 *to = p.dc + (int64_t)(c.row + row) * p.ldc + at + col;
        if (row < c.n && col < p.n)
            to[0] = narrow(v[0]);
        if (row < c.n && col + 1 < p.n)
            to[1] = narrow(v[1]);
    });
}

__global__ void __launch_bounds__(THREADS, 2) space_back(tcu_space_rule p)
{
    extern __shared__ __align__(128) unsigned char shared[];
    tiles &t = *(tiles *)shared;
    int group = blockIdx.x, per = p.n_heads / p.n_groups, chunk = blockIdx.y;
    tcu_run r = p.runs[blockIdx.z];
    if (chunk >= chunks_of(r))
        return;
    place c = place_of(r, chunk);
    float cb[4][4] = {}, db[8][4] = {}, dc[8][4] = {};
    int b_at = p.b_at + group * p.n, c_at = p.c_at + group * p.n;
    load_tile<N>(t.b, 0, c.n, p.n, p.c, [&](int i) { return p.c + (c.row + i) * p.ldc + b_at; });
    load_tile<N>(t.c, 0, c.n, p.n, p.c, [&](int i) { return p.c + (c.row + i) * p.ldc + c_at; });
    for (int head = group * per; head < (group + 1) * per; head++) {
        load_head(p, r, c, chunk, head, t);
        __syncthreads();
        if (head == group * per)
#pragma unroll
            for (int k = 0; k < N; k += 16) {
                uint32_t f[4], g[4];
                frag<N>(f, t.c, warp_row(), k);
#pragma unroll
                for (int j = 0; j < 4; j += 2) {
                    other<N>(g, t.b, warp_half() * 32 + j * 8, k);
                    mma_two(cb + j, f, g);
                }
            }
        inside(t, cb);
        make_whole(t);
        __syncthreads();
        float out[2] = {}, none[2];
        add_vectors<false>(dc, t.q, t.b, 0, warp_row() + 16);
        add_vectors<true>(db, t.q, t.c, warp_row(), CHUNK);
        if (!c.first)
            add_state(dc, t.dy, t.s, t.c, out, [&](int i) { return faded(t.d, i); });
        if (!c.last)
            add_state(db, t.x, t.ds, NULL, none, [&](int i) { return fade(t.d, CHUNK - 1, i) * t.d.step[i]; });
        put_rows(t.out[warp_half()], out);
        make_inputs(p, c, head, t);
        __syncthreads();
        make_times(p, c, head, t);
        __syncthreads();
    }
    store_vectors(p, c, b_at, db);
    store_vectors(p, c, c_at, dc);
}

/* ---- launches ---- */

size_t tcu_space_edges(const tcu_space_rule *p, size_t rows)
{
    return (rows / CHUNK + 1) * (size_t)p->n_heads * P * N;
}

int tcu_space_back(const tcu_space_rule *p, tcu_stream stream)
{
    dim3 heads(p->n_heads, p->n_runs), chunks(p->n_groups, (p->longest + CHUNK - 1) / CHUNK, p->n_runs);
    int rc = cudaFuncSetAttribute(space_back, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(tiles));
    if (!rc)
        rc = launch(space_scan<false>, heads, SCAN_THREADS, sizeof(scan_tiles), stream, *p);
    if (!rc)
        rc = launch(space_scan<true>, heads, SCAN_THREADS, sizeof(scan_tiles), stream, *p);
    return rc ? rc : launch(space_back, chunks, THREADS, sizeof(tiles), stream, *p);
}
