/* cuda_space.cu - the state-space rule, forward: runs of whole sequences and of steps.
 *
 * A block takes one or two heads of a run, chunk by chunk; four warps have a head, each 16 of its numbers, and the state lies in their
 * accumulators. Only tiles of 16 rows in which the run has rows are computed. No block reads what another one of the launch writes.
 */
#include "cuda/cuda_space.cuh"

enum { HEAD_WARPS = P / 16 };

/* TILES: of 16 rows, in which a chunk's rows of the run may lie: all of the chunk, or only one. */
template <int HEADS_, int TILES_> struct form {
    enum {
        HEADS = HEADS_,
        TILES = TILES_,
        ROWS = TILES_ * 16,
        STEP = TILES_ == 1 ? 1 : 2, /* tiles of y at a time: what registers hold */
        WARPS = HEADS_ * HEAD_WARPS,
        THREADS = WARPS * 32,
        BLOCKS = TILES_ == 1 ? 4 : HEADS_ == 1 ? 3 : 2 /* that should share a processor */
    };
};

template <typename S> struct tiles {
    bf16 c[S::ROWS * N], b[CHUNK * N], x[S::HEADS][CHUNK * P];
    bf16 hi[S::HEADS][S::ROWS * CHUNK], lo[S::HEADS][S::ROWS * CHUNK]; /* (C_i.B_j) D_ij d_j, in two parts */
    decays d[2][S::HEADS];                                            /* of this chunk and the next, in turn */
};

typedef struct part_of { /* the rows of a run that lie in one chunk: begin .. end - 1 of it */
    int begin, end, row; /* row of `begin` */
    int first;           /* the first row of the tiles */
} part_of;

template <typename S> DEVICE part_of part_at(const tcu_run &r, int at)
{
    part_of c;
    c.begin = (r.position + at) % CHUNK;
    c.end = min(CHUNK, c.begin + r.n - at);
    c.row = r.row + at;
    c.first = S::TILES == 1 ? c.begin / 16 * 16 : 0;
    return c;
}

/* Rows of a chunk: those before the run's are in the slot. */
template <typename S>
DEVICE void load_chunk(const tcu_space_rule &p, const tcu_run &r, const part_of &c, int head, tiles<S> &t)
{
    int group = head_group(p, head), width = open_width(p);
    const bf16 *open = p.slots ? open_chunk(p, r.slot) : NULL;
    const bf16 *own = p.c + (int64_t)(c.row - c.begin) * p.ldc;
    int b_at = p.b_at + group * p.n, c_at = p.c_at + group * p.n;
    load_tile<N, S::ROWS>(t.c, c.begin, c.end, p.n, p.c, [&](int i) { return own + i * p.ldc + c_at; }, c.first);
    load_tile<N>(t.b, 0, c.end, p.n, p.c, [&](int i) { return (i < c.begin ? open + i * width : own + i * p.ldc) + b_at; });
#pragma unroll
    for (int h = 0; h < S::HEADS; h++)
        load_tile<P>(t.x[h], 0, c.end, p.p, p.c, [&](int i) {
            return (i < c.begin ? open + i * width : own + i * p.ldc) + (head + h) * p.p;
        });
    copy_commit();
}

DEVICE void load_decays(const tcu_space_rule &p, const tcu_run &r, const part_of &c, int head, decays &d)
{
    const bf16 *open = p.slots ? open_chunk(p, r.slot) + p.c_at + head : NULL;
    const bf16 *times = p.times + (int64_t)(c.row - c.begin) * p.ld_times + head;
    int width = open_width(p);
    make_decays(p, head, c.end, d, [&](int i) { return i < c.begin ? open + i * width : times + i * p.ld_times; });
}

/* Has the run rows in tile i of 16 rows? */
DEVICE bool active(const part_of &c, int i)
{
    return i * 16 < c.end && i * 16 + 16 > c.begin;
}

/* The products C_i.B_j of tiles (i, j), j <= i, in turn by the warps, become the weights of x_j of each head. */
template <typename S> DEVICE void weigh(const part_of &c, const decays *d, tiles<S> &t)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, turn = 0;
    for (int i = c.first / 16; i < c.first / 16 + S::TILES; i++)
        for (int j = 0; j <= i; j++) {
            if (!active(c, i) || turn++ % S::WARPS != warp)
                continue;
            float sum[2][4] = {};
#pragma unroll
            for (int k = 0; k < N; k += 16) {
                uint32_t f[4], g[4];
                frag<N>(f, t.c, i * 16 - c.first, k);
                other<N>(g, t.b, j * 16, k);
                mma_two(sum, f, g);
            }
#pragma unroll
            for (int h = 0; h < S::HEADS; h++)
#pragma unroll
                for (int half = 0; half < 2; half++)
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        int row = i * 16 + lane / 4 + half * 8, col = j * 16 + k * 8 + lane % 4 * 2;
                        float w[2];
#pragma unroll
                        for (int e = 0; e < 2; e++)
                            w[e] = col + e <= row ?
                                       sum[k][half * 2 + e] * (fade(d[h], row, col + e) * d[h].step[col + e]) :
                                       0;
                        int to = swizzle<CHUNK>(row - c.first, col / 8) + col % 8;
                        split(w[0], w[1], (uint32_t *)(t.hi[h] + to), (uint32_t *)(t.lo[h] + to));
                    }
        }
}

/* A warp's head in the block, and its first number in the head. */
DEVICE int own_head(void)
{
    return threadIdx.x / 32 / HEAD_WARPS;
}

DEVICE int own_number(void)
{
    return threadIdx.x / 32 % HEAD_WARPS * 16;
}

/* y of the tiles of 16 rows from `tile` on, for the 16 numbers of the head that the warp has. */
template <typename S>
DEVICE void make_rows(const part_of &c, const decays &d, const tiles<S> &t, const float s[N / 8][4], int tile, float y[S::STEP][2][4])
{
    int h = own_head(), lane = threadIdx.x % 32, first = c.first / 16 + tile;
#pragma unroll
    for (int i = 0; i < S::STEP; i++)
#pragma unroll
        for (int e = 0; e < 8; e++)
            y[i][e / 4][e % 4] = 0;
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        uint32_t f[4], hi[4], lo[4]; /* the state's accumulators are the operand as they lie */
        split(s[2 * k][0], s[2 * k][1], &hi[0], &lo[0]);
        split(s[2 * k + 1][0], s[2 * k + 1][1], &hi[1], &lo[1]);
        split(s[2 * k][2], s[2 * k][3], &hi[2], &lo[2]);
        split(s[2 * k + 1][2], s[2 * k + 1][3], &hi[3], &lo[3]);
#pragma unroll
        for (int i = 0; i < S::STEP; i++)
            if (active(c, first + i)) {
                frag<N>(f, t.c, (tile + i) * 16, k * 16);
                mma_two(y[i], f, hi);
                mma_two(y[i], f, lo);
            }
    }
#pragma unroll
    for (int i = 0; i < S::STEP; i++) {
        if (!active(c, first + i))
            continue;
        float up[2] = { faded(d, (first + i) * 16 + lane / 4), faded(d, (first + i) * 16 + lane / 4 + 8) };
#pragma unroll
        for (int e = 0; e < 8; e++)
            y[i][e / 4][e % 4] *= up[e % 4 / 2];
        for (int j = 0; j <= first + i; j++) {
            uint32_t f[4], g[4];
            other_turned<P>(g, t.x[h], own_number(), j * 16);
            frag<CHUNK>(f, t.hi[h], (tile + i) * 16, j * 16);
            mma_two(y[i], f, g);
            frag<CHUNK>(f, t.lo[h], (tile + i) * 16, j * 16);
            mma_two(y[i], f, g);
        }
    }
}

template <typename S>
DEVICE void store_rows(const tcu_space_rule &p, const part_of &c, int head, const tiles<S> &t, int tile,
                       const float y[S::STEP][2][4])
{
    int lane = threadIdx.x % 32;
    float skip = p.skip[head];
#pragma unroll
    for (int i = 0; i < S::STEP; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int row = c.first + (tile + i) * 16 + lane / 4 + k % 2 * 8, col = own_number() + k / 2 * 8 + lane % 4 * 2;
            if (row < c.begin || row >= c.end)
                continue;
            float2 x = unpack(*(const uint32_t *)(t.x[own_head()] + swizzle<P>(row, col / 8) + col % 8));
            const float *v = &y[i][k / 2][k % 2 * 2];
            float a = fmaf(skip, x.x, v[0]), b = fmaf(skip, x.y, v[1]);
            bf16 *to = p.y + (int64_t)(c.row + row - c.begin) * p.ldy + head * p.p + col;
            if (p.p % 2 == 0 && col < p.p)
                *(uint32_t *)to = pack(a, b);
            else if (col < p.p)
                to[0] = narrow(a);
            if (p.p % 2 && col + 1 < p.p)
                to[1] = narrow(b);
        }
}

/* The state after a full chunk. */
DEVICE void advance(const bf16 *b, const bf16 *x, const decays &d, float s[N / 8][4])
{
    int lane = threadIdx.x % 32;
    float whole = faded(d, CHUNK - 1);
#pragma unroll
    for (int k = 0; k < N / 8; k++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[k][e] *= whole;
#pragma unroll
    for (int j = 0; j < CHUNK; j += 16) {
        uint32_t f[4], hi[4], lo[4], g[4];
        frag_turned<P>(f, x, own_number(), j);
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            int at = j + lane % 4 * 2 + e / 2 * 8;
            float down[2] = { fade(d, CHUNK - 1, at) * d.step[at], fade(d, CHUNK - 1, at + 1) * d.step[at + 1] };
#pragma unroll
            for (int k = e; k < e + 2; k++) {
                float2 v = unpack(f[k]);
                split(v.x * down[0], v.y * down[1], &hi[k], &lo[k]);
            }
        }
#pragma unroll
        for (int k = 0; k < N / 16; k++) {
            other_turned<N>(g, b, k * 16, j);
            mma_two(s + 2 * k, hi, g);
            mma_two(s + 2 * k, lo, g);
        }
    }
}

/* The warp's part of a slot's state: for each element of s, f(element, its place). */
template <typename F> DEVICE void each_pair(float s[N / 8][4], float *state, F f)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < N / 8; k++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            f(&s[k][half * 2], (float2 *)(state + (own_number() + lane / 4 + half * 8) * N + k * 8 + lane % 4 * 2));
}

template <typename S> __global__ void __launch_bounds__(S::THREADS, S::BLOCKS) space_forward(tcu_space_rule p)
{
    extern __shared__ __align__(128) unsigned char shared[];
    tiles<S> &t = *(tiles<S> *)shared;
    int first = blockIdx.x * S::HEADS, head = first + own_head(), warp = threadIdx.x / 32 % HEAD_WARPS;
    tcu_run r = p.runs[blockIdx.y];
    float s[N / 8][4] = {}, y[S::STEP][2][4];
    float *state = p.slots ? (float *)(p.slots + r.slot * p.stride) + (int64_t)head * P * N : NULL;
    if (r.n <= 0)
        return;
    bool moved = false;
    part_of c = part_at<S>(r, 0);
    load_chunk<S>(p, r, c, first, t);
    if (state && r.position >= CHUNK)
        each_pair(s, state, [](float *v, const float2 *from) {
            float2 x = *from;
            v[0] = x.x;
            v[1] = x.y;
        });
    if (warp == 0)
        load_decays(p, r, c, head, t.d[0][own_head()]);
    for (int at = 0, turn = 0; at < r.n; turn ^= 1) {
        int next = at + c.end - c.begin;
        part_of after = part_at<S>(r, next < r.n ? next : at);
        copy_wait<0>();
        __syncthreads();
        weigh<S>(c, t.d[turn], t);
        if (warp == HEAD_WARPS - 1 && next < r.n)
            load_decays(p, r, after, head, t.d[turn ^ 1][own_head()]);
        __syncthreads();
#pragma unroll 1
        for (int tile = 0; tile < S::TILES; tile += S::STEP) {
            make_rows<S>(c, t.d[turn][own_head()], t, s, tile, y);
            store_rows<S>(p, c, head, t, tile, y);
        }
        if (c.end == CHUNK)
            advance(t.b, t.x[own_head()], t.d[turn][own_head()], s);
        moved = moved || c.end == CHUNK;
        at = next;
        c = after;
        if (at >= r.n)
            break;
        __syncthreads();
        load_chunk<S>(p, r, c, first, t);
    }
    if (state && moved)
        each_pair(s, state, [](const float *v, float2 *to) { *to = make_float2(v[0], v[1]); });
}

/* ---- launches ---- */

size_t tcu_space_slot(const tcu_space_rule *p)
{
    return ((size_t)p->n_heads * P * N * 4 + (size_t)CHUNK * open_width(*p) * 2 + 15) / 16 * 16;
}

template <typename S> static int run(const tcu_space_rule *p, tcu_stream stream)
{
    int rc = cudaFuncSetAttribute(space_forward<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(tiles<S>));
    dim3 grid(p->n_heads / S::HEADS, p->n_runs);
    return rc ? rc : launch(space_forward<S>, grid, S::THREADS, sizeof(tiles<S>), stream, *p);
}

int tcu_space_forward(const tcu_space_rule *p, tcu_stream stream)
{
    if (p->longest == 1)
        return run<form<1, 1>>(p, stream);
    return p->n_heads / p->n_groups % 2 == 0 ? run<form<2, 4>>(p, stream) : run<form<1, 4>>(p, stream);
}
