/* cuda_grouped_wgmma.cu - products of experts with many rows by warpgroups (compute capability 9.0a), with the bits of cuda_grouped.cu.
 *
 * Two warpgroups of 64 pairs each share 256 columns; tiles of 64 along k are loaded two ahead, while matrix instructions run. The
 * adapters' part is a second product of the same tile, for which the sums wait in shared memory.
 */
#include "cuda/cuda_grouped.cuh"
#include "cuda/cuda_wgmma.cuh"

enum { BM = TCU_MANY_TILE, BN = 256, BK = 64, GROUPS = 2, THREADS = GROUPS * 128, STAGES = 4 };
enum { A_TILE = BM * BK, B_TILE = BN * BK, STAGE = A_TILE + B_TILE, RING = STAGES * STAGE * 2, SUMS = BM * BN * 4 };
enum { BYTES = RING + (int)sizeof(tile_rows<BM>) };
enum { A_PIECES = A_TILE / 8 / THREADS, B_PIECES = B_TILE / 8 / THREADS };

#if HAS_WGMMA

#define NAMES_64_127                                                                                                           \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93," \
    "%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,"  \
    "%119,%120,%121,%122,%123,%124,%125,%126,%127"

/* x[64][256] += a[64][16] b, b [256][16] or, transposed, [16][256]; both in shared memory. */
template <bool T> DEVICE void gmma_wide(float (&x)[32][4], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" GMMA_NAMES_64 "," NAMES_64_127 "},%128,%129,1,1,1,0,%130;"
                 : GMMA_SUMS_8(x, 0), GMMA_SUMS_8(x, 8), GMMA_SUMS_8(x, 16), GMMA_SUMS_8(x, 24)
                 : "l"(a), "l"(b), "n"(T ? 1 : 0));
}

/* A thread's pieces of the two operands. The rows of a are chosen by number, those of b follow each other. */
typedef struct pieces {
    const bf16 *a[A_PIECES];
    uint32_t a_there;
    const bf16 *b;
    int64_t b_apart;
    uint32_t b_there;
} pieces;

template <bool T> DEVICE pieces aim(const picked &a, const operand &b)
{
    pieces p = {};
    int row = threadIdx.x / 8, c = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < A_PIECES; i++) {
        int r = row + i * (THREADS / 8);
        bool there = r < a.n;
        p.a[i] = a.at + (there ? a.rows[r] * a.ld + c * 8 : 0);
        p.a_there |= (uint32_t)there << i;
    }
    if (T) { /* rows of 256 columns */
        int piece = threadIdx.x % 32;
        bool there = piece * 8 < b.n;
        p.b = b.at + (there ? threadIdx.x / 32 * b.ld + piece * 8 : 0);
        p.b_apart = THREADS / 32 * b.ld;
        p.b_there = there;
        return p;
    }
    p.b = b.at + (row < b.n ? row * b.ld : 0) + c * 8;
    p.b_apart = THREADS / 8 * b.ld;
#pragma unroll
    for (int i = 0; i < B_PIECES; i++)
        p.b_there |= (uint32_t)(row + i * (THREADS / 8) < b.n) << i;
    return p;
}

/* The tiles at k0: rows of 128 bytes whose pieces of 16 are permuted. b transposed: four blocks of 64 columns. */
template <bool T> DEVICE void fetch(const pieces &p, const operand &b, const bf16 *nothing, int k0, int k, bf16 *stage)
{
    int row = threadIdx.x / 8, c = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < A_PIECES; i++) {
        bool valid = (p.a_there >> i & 1) && k0 + c * 8 < k;
        int r = row + i * (THREADS / 8);
        copy16(stage + r * BK + (((c ^ r) & 7) << 3), valid ? p.a[i] + k0 : nothing, valid);
    }
    bf16 *to = stage + A_TILE;
#pragma unroll
    for (int i = 0; i < B_PIECES; i++) {
        if (T) {
            int r = threadIdx.x / 32 + i * (THREADS / 32), piece = threadIdx.x % 32;
            bool valid = p.b_there && k0 + r < k;
            copy16(to + piece / 8 * (BK * 64) + r * 64 + (((piece ^ r) & 7) << 3), valid ? p.b + k0 * b.ld + i * p.b_apart : nothing,
                   valid);
        } else {
            bool valid = (p.b_there >> i & 1) && k0 + c * 8 < k;
            int r = row + i * (THREADS / 8);
            copy16(to + r * BK + (((c ^ r) & 7) << 3), valid ? p.b + i * p.b_apart + k0 : nothing, valid);
        }
    }
}

/* The four steps of a tile. */
template <bool T> DEVICE void multiply_tile(float (&acc)[32][4], const bf16 *stage, int group)
{
    uint64_t a = gmma_tile(stage + group * 64 * BK), b = gmma_tile(stage + A_TILE);
    gmma_begin();
#pragma unroll
    for (int step = 0; step < BK / 16; step++)
        gmma_wide<T>(acc, gmma_along(a, step), T ? gmma_down(b, step) : gmma_along(b, step));
    gmma_commit();
}

template <bool T> DEVICE void wide_chain(float (&acc)[32][4], const picked &a, const operand &b, int k, int group, bf16 *ring)
{
    pieces p = aim<T>(a, b);
    int tiles = (k + BK - 1) / BK;
    for (int i = 0; i < 2; i++) {
        if (i < tiles)
            fetch<T>(p, b, b.at, i * BK, k, ring + i * STAGE);
        copy_commit();
    }
    gmma_ready(acc);
    for (int i = 0; i < tiles; i++) {
        copy_wait<1>();
        gmma_written();
        __syncthreads();
        multiply_tile<T>(acc, ring + i % STAGES * STAGE, group);
        gmma_wait<1>(); /* the tile before: its place, and that of the one before it, are free after the next barrier */
        if (i + 2 < tiles)
            fetch<T>(p, b, b.at, (i + 2) * BK, k, ring + (i + 2) % STAGES * STAGE);
        copy_commit();
    }
    gmma_wait<0>();
    gmma_ready(acc);
    copy_wait<0>();
}

/* One tile at a time: for ranks. */
template <bool T> DEVICE void short_chain(float (&acc)[32][4], const picked &a, const operand &b, int k, int group, bf16 *stage)
{
    pieces p = aim<T>(a, b);
    gmma_ready(acc);
    for (int k0 = 0; k0 < k; k0 += BK) {
        fetch<T>(p, b, b.at, k0, k, stage);
        copy_commit();
        copy_wait<0>();
        gmma_written();
        __syncthreads();
        multiply_tile<T>(acc, stage, group);
        gmma_wait<0>();
        __syncthreads();
    }
    gmma_ready(acc);
}

/* Calls f(row, column, two neighbours) for a thread's sums. */
template <typename F> DEVICE void each_wide(float (&acc)[32][4], int group, F f)
{
    int lane = threadIdx.x % 32, m0 = group * 64 + threadIdx.x / 32 % 4 * 16;
#pragma unroll
    for (int j = 0; j < 32; j++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            f(m0 + lane / 4 + half * 8, j * 8 + lane % 4 * 2, &acc[j][half * 2]);
}

template <bool T, bool ADD> __global__ void __launch_bounds__(THREADS, 1) wide_grouped(tcu_grouped p, int width, int k)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    tile_rows<BM> &rows = *(tile_rows<BM> *)(shared + RING);
    int per = (width + BN - 1) / BN, group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    place at = { p.pairs.tiles[blockIdx.y], (int)blockIdx.x / per, (int)blockIdx.x % per * BN, 0 };
    at.columns = width - at.n0;
    if (!at.t.n)
        return;
    find_rows<BM>(p, at.t, 0, ADD, rows);
    const bf16 *w = p.w.w + (int64_t)at.t.segment * p.w.out * p.w.in;
    picked a = { p.x, p.ldx, at.t.n, rows.x };
    operand b = { T ? w + at.n0 : w + ((int64_t)at.part * width + at.n0) * k, p.w.in, at.columns, NULL };
    float acc[32][4] = {};
    wide_chain<T>(acc, a, b, k, group, (bf16 *)shared);
    if (!ADD) {
        each_wide(acc, group, [&](int r, int j, float *v) { put_pair(p, at, width, r, j, v[0], v[1]); });
        return;
    }
    float *sums = (float *)shared + threadIdx.x;
    int n = 0;
    __syncthreads();
    each_wide(acc, group, [&](int, int, float *v) {
        sums[n++ * THREADS] = v[0];
        sums[n++ * THREADS] = v[1];
    });
    for (int i = rows.segment[0]; i <= rows.segment[at.t.n - 1]; i++) {
        tcu_segment s = p.lora.segments[i];
        if (!own_factor(p, at, s, &b))
            continue;
        a = { p.low + (T ? 0 : at.part * s.padded), p.ld_low, at.t.n, rows.row };
        float scale = T ? 1 : s.scale;
#pragma unroll
        for (int j = 0; j < 32; j++)
            acc[j][0] = acc[j][1] = acc[j][2] = acc[j][3] = 0;
        short_chain<T>(acc, a, b, s.padded, group, (bf16 *)(shared + SUMS));
        n = 0;
        each_wide(acc, group, [&](int r, int, float *v) {
            for (int e = 0; e < 2; e++, n++)
                if (rows.segment[r] == i)
                    sums[n * THREADS] = __fmaf_rn(scale, v[e], sums[n * THREADS]);
        });
    }
    n = 0;
    each_wide(acc, group, [&](int r, int j, float *) {
        put_pair(p, at, width, r, j, sums[n * THREADS], sums[(n + 1) * THREADS]);
        n += 2;
    });
}

#else
template <bool T, bool ADD> __global__ void __launch_bounds__(THREADS, 1) wide_grouped(tcu_grouped, int, int)
{
}
#endif

template <bool T, bool ADD> static int run_wide(const tcu_grouped *p, tcu_stream stream)
{
    int tiles = tcu_tile_room(p->pairs.n * p->pairs.top, p->pairs.n_experts, BM);
    int width = (T ? p->w.in : p->w.out) / p->parts, k = T ? p->w.out : p->w.in;
    static_assert(RING >= SUMS + STAGE * 2, "sums and a tile fit into the ring");
    cudaError_t e = cudaFuncSetAttribute(wide_grouped<T, ADD>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    if (e)
        return e;
    wide_grouped<T, ADD><<<dim3((width + BN - 1) / BN * p->parts, tiles), THREADS, BYTES, stream>>>(*p, width, k);
    return cudaGetLastError();
}

int tcu_grouped_wide(const tcu_grouped *p, tcu_stream stream)
{
    bool add = p->low && p->lora.most;
    if (p->transposed)
        return add ? run_wide<true, true>(p, stream) : run_wide<true, false>(p, stream);
    return add ? run_wide<false, true>(p, stream) : run_wide<false, false>(p, stream);
}
