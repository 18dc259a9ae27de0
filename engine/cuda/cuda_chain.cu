/* cuda_chain.cu - whole products by our own kernels: the definition of the bits, and the fallback.
 *
 * `chain` serves any number of rows (the check of the library's algorithms, and the fallback); `small` is for few rows,
 * where the time to read the weight once is the lower bound: the weight streams through shared memory, a warp owns 8 or
 * 16 of its rows.
 */
#include <limits.h>
#include "cuda/cuda_chain.cuh"
#include "cuda/cuda_pieces.cuh"

template <bool TRANSPOSED> using whole = shape<128, 128, 2, 4, false, TRANSPOSED>;

template <bool TRANSPOSED, bool WIDE>
__global__ void __launch_bounds__(256) product(const bf16 *a, int64_t lda, const bf16 *b, int64_t ldb, void *c, int64_t ldc,
                                               int m, int n, int k, bool add)
{
    typedef whole<TRANSPOSED> S;
    extern __shared__ __align__(128) unsigned char shared[];
    int m0 = blockIdx.x * S::BM, n0 = blockIdx.y * S::BN;
    operand oa = { a + m0 * lda, lda, m - m0, NULL };
    operand ob = { TRANSPOSED ? b + n0 : b + n0 * ldb, ldb, n - n0, NULL };
    float acc[S::MT][S::NT][4] = {};
    chain<S, false>(acc, oa, ob, k, 1, (bf16 *)shared);
    each<S>(acc, [&](int i, int j, float *x) {
        for (int e = 0; e < 2; e++)
            if (m0 + i < m && n0 + j + e < n) {
                int64_t at = (int64_t)(m0 + i) * ldc + n0 + j + e;
                bf16 *y = (bf16 *)c + at;
                if (WIDE)
                    ((float *)c)[at] = x[e];
                else
                    *y = narrow(add ? __fadd_rn(wide(narrow(x[e])), wide(*y)) : x[e]);
            }
    });
}

template <bool TRANSPOSED, bool WIDE>
static int run_chain(const bf16 *a, int64_t lda, const bf16 *b, int64_t ldb, void *c, int64_t ldc, int m, int n, int k, bool add,
                     tcu_stream stream)
{
    typedef whole<TRANSPOSED> S;
    cudaError_t e = cudaFuncSetAttribute(product<TRANSPOSED, WIDE>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES);
    if (e)
        return e;
    dim3 grid((m + S::BM - 1) / S::BM, (n + S::BN - 1) / S::BN);
    product<TRANSPOSED, WIDE><<<grid, S::THREADS, S::BYTES, stream>>>(a, lda, b, ldb, c, ldc, m, n, k, add);
    return cudaGetLastError();
}

int tcu_chain(bool transposed, bool wide, bool add, const tcu_bf16 *a, int64_t lda, const tcu_bf16 *b, int64_t ldb, void *c,
              int64_t ldc, int32_t m, int32_t n, int32_t k, tcu_stream stream)
{
    if (transposed)
        return wide ? run_chain<true, true>(a, lda, b, ldb, c, ldc, m, n, k, add, stream) :
                      run_chain<true, false>(a, lda, b, ldb, c, ldc, m, n, k, add, stream);
    return wide ? run_chain<false, true>(a, lda, b, ldb, c, ldc, m, n, k, add, stream) :
                  run_chain<false, false>(a, lda, b, ldb, c, ldc, m, n, k, add, stream);
}

/* ---- few rows ---- */

/* MT * 16 rows of x, W warps of NT * 8 rows of w each; BK numbers along k a stage. */
template <int MT, int NT, int W> struct few {
    enum { ROWS = MT * 16, COLS = W * NT * 8, BK = 128, THREADS = W * 32, STAGE = (ROWS + COLS) * BK };
    enum { STAGES = STAGE * 2 * 6 <= 100 * 1024 ? 6 : STAGE * 2 * 4 <= 200 * 1024 ? 4 : 3 };
    enum { BYTES = STAGES * STAGE * 2 };
};

typedef struct job { /* y[m][n] = x[m][k] w[n][k]^T; blocks from `blocks` on make low = A x of the adapters' tiles */
    const bf16 *x, *w;
    void *y;
    int64_t ldy;
    int m, n, k, blocks, per_tile;
    tcu_lora lora;
    bf16 *low;
} job;

/* Finds what this block computes; false if nothing. */
template <typename F> DEVICE bool find(job &p, int *n0, bool *adapter)
{
    int extra = (int)blockIdx.x - p.blocks;
    *adapter = extra >= 0;
    *n0 = blockIdx.x * F::COLS;
    if (extra < 0)
        return true;
    tcu_tile t = p.lora.tiles[extra / p.per_tile];
    *n0 = extra % p.per_tile * F::COLS;
    if (t.segment < 0)
        return false;
    tcu_segment s = p.lora.segments[t.segment];
    if (!s.rank)
        return false;
    const tcu_group *g = &s.groups[p.lora.group];
    p.x += (int64_t)t.row * p.k;
    p.w = s.operands + g->a;
    p.y = p.low + (int64_t)t.row * p.lora.ld_low;
    p.ldy = p.lora.ld_low;
    p.m = t.n;
    p.n = g->n * s.padded;
    return *n0 < p.n;
}

/* acc += a tile; `between(step)` is called after each step of 16, while its products are under way. */
template <typename F, int MT, int NT, typename B>
DEVICE void few_tile(float acc[MT][NT][4], const bf16 *tx, const bf16 *tw, int mine, B between)
{
    int lane = threadIdx.x % 32;
    uint32_t fx[2][2][MT][4], fw[2][NT][4]; /* loaded one pair of steps ahead */
    auto load = [&](int pair, int to) {
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int s = 0; s < 2; s++)
                ldmatrix(fx[to][s][i], tx + swizzle<F::BK>(i * 16 + (lane & 15), pair * 4 + s * 2 + (lane >> 4)));
#pragma unroll
        for (int j = 0; j < NT; j++)
            ldmatrix(fw[to][j], tw + swizzle<F::BK>(mine + j * 8 + (lane & 7), pair * 4 + (lane >> 3)));
    };
    load(0, 0);
#pragma unroll
    for (int pair = 0; pair < F::BK / 32; pair++) {
        if (pair + 1 < F::BK / 32)
            load(pair + 1, (pair + 1) % 2);
#pragma unroll
        for (int s = 0; s < 2; s++) {
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int j = 0; j < NT; j++)
                    mma(acc[i][j], fx[pair % 2][s][i], fw[pair % 2][j][s * 2], fw[pair % 2][j][s * 2 + 1]);
            between(pair * 2 + s);
        }
    }
}

template <int MT, int NT, int W, bool WIDE> __global__ void __launch_bounds__(W * 32) few_rows(job p)
{
    typedef few<MT, NT, W> F;
    extern __shared__ __align__(128) unsigned char shared[];
    bf16 *xt = (bf16 *)shared, *wt = xt + F::STAGES * F::ROWS * F::BK;
    int lane = threadIdx.x % 32, n0, mine = threadIdx.x / 32 * NT * 8, tiles = (p.k + F::BK - 1) / F::BK;
    bool adapter;
    if (!find<F>(p, &n0, &adapter))
        return;
    pieces<F::COLS, F::BK, F::THREADS> w;
    pieces<F::ROWS, F::BK, F::THREADS> x;
    aim(w, p.w + (int64_t)n0 * p.k, p.n - n0, p.k);
    for (int s = 0; s < F::STAGES - 1; s++)
        if (s < tiles)
            fetch(w, s * F::BK, wt + s * F::COLS * F::BK);
    for (int i = threadIdx.x; i < F::STAGES * F::ROWS * F::BK / 8; i += F::THREADS)
        ((uint4 *)xt)[i] = make_uint4(0, 0, 0, 0);
    aim(x, p.x, p.m, p.k);
    __syncthreads();
    for (int s = 0; s < F::STAGES - 1; s++) {
        if (s < tiles)
            fetch(x, s * F::BK, xt + s * F::ROWS * F::BK);
        copy_commit(); /* the first group contains all weights up to here */
    }
    float acc[MT][NT][4] = {};
    for (int tile = 0, stage = 0, next = F::STAGES - 1; tile < tiles; tile++) {
        copy_wait<F::STAGES - 2>();
        __syncthreads();
        int ahead = tile + F::STAGES - 1 < tiles ? (tile + F::STAGES - 1) * F::BK : INT_MAX; /* past the end: nothing is read */
        bf16 *to_w = wt + next * F::COLS * F::BK, *to_x = xt + next * F::ROWS * F::BK;
        few_tile<F, MT, NT>(acc, xt + stage * F::ROWS * F::BK, wt + stage * F::COLS * F::BK, mine, [&](int step) {
            enum { STEPS = F::BK / 16, PW = (w.N + STEPS - 1) / STEPS, PX = (x.N + STEPS - 1) / STEPS };
#pragma unroll
            for (int i = step * PW; i < (step + 1) * PW; i++)
                if (i < w.N)
                    fetch_one(w, i, ahead, to_w);
#pragma unroll
            for (int i = step * PX; i < (step + 1) * PX; i++)
                if (i < x.N)
                    fetch_one(x, i, ahead, to_x);
        });
        copy_commit();
        stage = stage + 1 == F::STAGES ? 0 : stage + 1;
        next = next + 1 == F::STAGES ? 0 : next + 1;
    }
    copy_wait<0>();
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int row = i * 16 + lane / 4 + e / 2 * 8, col = n0 + mine + j * 8 + lane % 4 * 2 + e % 2;
                if (row >= p.m || col >= p.n)
                    continue;
                if (WIDE && !adapter)
                    ((float *)p.y)[row * p.ldy + col] = acc[i][j][e];
                else
                    ((bf16 *)p.y)[row * p.ldy + col] = narrow(acc[i][j][e]);
            }
}

template <int MT, int NT, int W, bool WIDE> static int run_few(job p, tcu_stream stream)
{
    typedef few<MT, NT, W> F;
    cudaError_t e = cudaFuncSetAttribute(few_rows<MT, NT, W, WIDE>, cudaFuncAttributeMaxDynamicSharedMemorySize, F::BYTES);
    if (e)
        return e;
    p.blocks = (p.n + F::COLS - 1) / F::COLS;
    p.per_tile = p.low ? (p.lora.n * p.lora.most + F::COLS - 1) / F::COLS : 0;
    return launch(few_rows<MT, NT, W, WIDE>, dim3(p.blocks + p.per_tile * p.lora.n_tiles), F::THREADS, F::BYTES, stream, p);
}

/* The widest blocks of columns that still give every multiprocessor a block. */
template <bool WIDE> static int small_of(const job &p, int rows, tcu_stream stream)
{
    enum { BLOCKS = 120 };
    if (rows > 32)
        return p.n / 64 >= BLOCKS ? run_few<4, 2, 4, WIDE>(p, stream) : run_few<4, 1, 4, WIDE>(p, stream);
    if (rows > 16)
        return p.n / 64 >= BLOCKS ? run_few<2, 2, 4, WIDE>(p, stream) : run_few<2, 1, 4, WIDE>(p, stream);
    if (p.n / 32 >= BLOCKS || !p.n) /* adapters alone: the more warps load, the sooner the chain is through */
        return run_few<1, 1, 4, WIDE>(p, stream);
    return p.n / 16 >= BLOCKS ? run_few<1, 1, 2, WIDE>(p, stream) : run_few<1, 1, 1, WIDE>(p, stream);
}

int tcu_small(bool wide, const tcu_bf16 *x, const tcu_bf16 *w, void *y, int64_t ldy, int32_t m, int32_t n, int32_t k,
              const tcu_lora *lora, tcu_bf16 *low, tcu_stream stream)
{
    job p = { x, w, y, ldy, m, n, k };
    if (lora && lora->most && lora->n_tiles) {
        p.lora = *lora;
        p.low = low;
    }
    int rows = n ? m : 0;
    if (p.low && p.lora.tile_rows > rows)
        rows = p.lora.tile_rows;
    if (!n && !p.low)
        return 0;
    if (rows <= 0 || rows > TCU_SMALL_ROWS || k % 8)
        return cudaErrorInvalidValue;
    return wide ? small_of<true>(p, rows, stream) : small_of<false>(p, rows, stream);
}

/* ---- comparison ---- */

template <typename T> __global__ void differ(const T *a, const T *b, int64_t n, unsigned long long *out)
{
    unsigned long long count = 0;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        count += a[i] != b[i];
    if (count)
        atomicAdd(out, count);
}

int tcu_differ(bool wide, const void *a, const void *b, int64_t count, uint64_t *differing, tcu_stream stream)
{
    unsigned long long *out = (unsigned long long *)differing;
    if (wide)
        differ<uint32_t><<<512, 256, 0, stream>>>((const uint32_t *)a, (const uint32_t *)b, count, out);
    else
        differ<uint16_t><<<512, 256, 0, stream>>>((const uint16_t *)a, (const uint16_t *)b, count, out);
    return cudaGetLastError();
}
