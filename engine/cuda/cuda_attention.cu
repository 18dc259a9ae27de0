/* cuda_attention.cu - attention forward, packed and paged, for many rows and for few.
 *
 * Both forms process the key blocks of a row in the same order with the same instructions: scores along d, the running
 * maximum, weights, their sum, then o = o * shrink + weights times values.
 */
#include "cuda/cuda_attention.cuh"

/* ---- many rows: 16 a warp ---- */

template <int D, bool PAGED> __global__ void __launch_bounds__(THREADS) wide_form(tcu_attention p)
{
    extern __shared__ __align__(128) unsigned char shared[];
    bf16 *qt = (bf16 *)shared, *kt = qt + 64 * D, *vt = kt + 2 * KEYS * D;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, kv_head = blockIdx.y, m0 = warp * 16;
    tcu_span s = p.spans[blockIdx.x];
    if (s.end <= s.begin)
        return;
    rows_of r = rows_make(p, s, kv_head);
    int low = p.window > 0 && s.begin >= p.window ? s.begin - p.window + 1 : 0;
    int block = low / KEYS, last = (s.end - 1) / KEYS;
    load_rows<64, D>(r, p.q, 0, qt);
    load_keys<D, PAGED>(p, s, kv_head, p.k, p.ldk, block * KEYS, s.end, kt);
    copy_commit();
    load_keys<D, PAGED>(p, s, kv_head, p.v, p.ldv, block * KEYS, s.end, vt);
    copy_commit();

    float o[D / 8][4] = {}, max[2], sum[2];
    float scale2 = p.scale * 1.4426950408889634f;
    int row[2] = { m0 + lane / 4, m0 + lane / 4 + 8 };
    int pos[2] = { row[0] < r.n ? row_position(r, row[0]) : -1, row[1] < r.n ? row_position(r, row[1]) : -1 };
    begin_rows(p, r, row, max, sum);
    for (int stage = 0; block <= last; block++, stage ^= 1) {
        bool more = block < last;
        if (more)
            load_keys<D, PAGED>(p, s, kv_head, p.k, p.ldk, (block + 1) * KEYS, s.end, kt + (stage ^ 1) * KEYS * D);
        copy_commit();
        copy_wait<2>();
        __syncthreads();
        float w[KEYS / 8][4], top[2], shrink[2];
        bool all = block * KEYS + KEYS - 1 <= s.begin && p.window <= 0; /* every row sees every key: no mask */
        scores<D, KEYS / 8>(w, qt, m0, kt + stage * KEYS * D, 0);
        mask_scores(w, pos, block * KEYS, p.window, all, top);
        weigh_block(w, top, scale2, max, sum, shrink);
        if (more)
            load_keys<D, PAGED>(p, s, kv_head, p.v, p.ldv, (block + 1) * KEYS, s.end, vt + (stage ^ 1) * KEYS * D);
        copy_commit();
        copy_wait<2>();
        __syncthreads();
        shrink_all<D / 8>(o, shrink);
        gather<D, D / 8, KEYS / 16>(o, w, vt + stage * KEYS * D, 0, 0);
        __syncthreads();
    }
    store_rows<D / 8>(p, r, row, max, sum, scale2, o, 0);
}

/* ---- few rows: 16 in all. A key block a warp at a time; then a quarter of the columns a warp ---- */

/* Wide heads have half as many key blocks at a time, or shared memory would not do. */
template <int D> struct few_size {
    enum { BLOCKS = D > 128 ? WARPS / 2 : WARPS, CHUNK = BLOCKS * KEYS, ENTRIES = CHUNK / TCU_CACHE_TOKENS };
};

template <int D> struct few_shared {
    enum { BLOCKS = few_size<D>::BLOCKS, CHUNK = few_size<D>::CHUNK };
    bf16 q[16 * D], k[CHUNK * D], v[CHUNK * D], w[BLOCKS][16 * KEYS];
    float top[BLOCKS][16], part[BLOCKS][16];
};

/* Ids of the cache blocks that hold a chunk of positions from key0 on, loaded well before they are needed. */
template <int ENTRIES, bool PAGED> DEVICE void find_blocks(const tcu_attention &p, const tcu_span &s, int key0, int32_t ids[ENTRIES])
{
#pragma unroll
    for (int e = 0; PAGED && e < ENTRIES; e++)
        ids[e] = key0 + e * TCU_CACHE_TOKENS < s.end ? __ldg(p.tables + s.table + key0 / TCU_CACHE_TOKENS + e) : 0;
}

/* The keys (or values) of those blocks. */
template <int D, bool PAGED>
DEVICE void load_chunk(const tcu_attention &p, const tcu_span &s, int kv_head, const bf16 *x, int64_t ld, int key0,
                       const int32_t *ids, bf16 *tile)
{
    enum { PER = D / 8, STEP = THREADS / PER, CHUNK = few_size<D>::CHUNK };
    int i0 = threadIdx.x / PER, c = threadIdx.x % PER;
#pragma unroll
    for (int n = 0; n < CHUNK / STEP; n++) {
        int i = i0 + n * STEP;
        bool valid = key0 + i < s.end && c * 8 < p.d;
        const bf16 *from = x;
        if (PAGED)
            from += (int64_t)ids[n * STEP / TCU_CACHE_TOKENS] * ld + (kv_head * TCU_CACHE_TOKENS + i % TCU_CACHE_TOKENS) * p.d + c * 8;
        else
            from += (int64_t)(s.origin + key0 + i) * ld + kv_head * p.d + c * 8;
        copy16(tile + swizzle<D>(i, c), valid ? from : x, valid);
    }
}

/* o += weights of block `i` times columns c0 .. of its values. */
template <int D, int NB> DEVICE void gather_few(float o[NB][4], const bf16 *w, const bf16 *v, int c0)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++) {
        uint32_t f[4];
        ldmatrix(f, w + swizzle<KEYS>(lane & 15, step * 2 + (lane >> 4)));
#pragma unroll
        for (int j = 0; j < NB; j += 2) {
            uint32_t g[4];
            ldmatrix_transposed(g, v + swizzle<D>(step * 16 + (lane & 15), c0 / 8 + j + (lane >> 4)));
            mma(o[j], f, g[0], g[1]);
            mma(o[j + 1], f, g[2], g[3]);
        }
    }
}

template <int D, bool PAGED> __global__ void __launch_bounds__(THREADS) narrow_form(tcu_attention p)
{
    enum { COLS = D / WARPS, BLOCKS = few_size<D>::BLOCKS, ENTRIES = few_size<D>::ENTRIES };
    extern __shared__ __align__(128) unsigned char raw[];
    few_shared<D> &t = *(few_shared<D> *)raw;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, kv_head = blockIdx.y, g = lane / 4;
    tcu_span s = p.spans[blockIdx.x];
    if (s.end <= s.begin)
        return;
    rows_of r = rows_make(p, s, kv_head);
    int low = p.window > 0 && s.begin >= p.window ? s.begin - p.window + 1 : 0;
    int last = (s.end - 1) / KEYS;
    int32_t ids[ENTRIES];
    find_blocks<ENTRIES, PAGED>(p, s, low / KEYS * KEYS, ids);
    load_rows<16, D>(r, p.q, 0, t.q);
    load_chunk<D, PAGED>(p, s, kv_head, p.k, p.ldk, low / KEYS * KEYS, ids, t.k);
    copy_commit();
    load_chunk<D, PAGED>(p, s, kv_head, p.v, p.ldv, low / KEYS * KEYS, ids, t.v);
    copy_commit();
    float o[COLS / 8][4] = {}, max[2], sum[2];
    float scale2 = p.scale * 1.4426950408889634f;
    int row[2] = { g, g + 8 };
    int pos[2] = { row[0] < r.n ? row_position(r, row[0]) : -1, row[1] < r.n ? row_position(r, row[1]) : -1 };
    bool scoring = (int)BLOCKS == WARPS || warp < BLOCKS;
    begin_rows(p, r, row, max, sum);
    for (int first = low / KEYS; first <= last; first += BLOCKS) {
        int block = first + warp, next = (first + BLOCKS) * KEYS;
        bool more = first + BLOCKS <= last;
        float w[KEYS / 8][4], top[2], run[2][BLOCKS + 1], part[2];
        find_blocks<ENTRIES, PAGED>(p, s, next, ids);
        copy_wait<1>();
        __syncthreads();
        if (scoring) {
            scores<D, KEYS / 8>(w, t.q, 0, t.k + warp * KEYS * D, 0);
            mask_scores(w, pos, block * KEYS, p.window, block * KEYS + KEYS - 1 <= s.begin && p.window <= 0, top);
            if (lane % 4 == 0) {
                t.top[warp][g] = top[0];
                t.top[warp][g + 8] = top[1];
            }
        }
        __syncthreads();
        if (more)
            load_chunk<D, PAGED>(p, s, kv_head, p.k, p.ldk, next, ids, t.k);
        copy_commit();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            run[half][0] = max[half];
#pragma unroll
            for (int i = 0; i < BLOCKS; i++)
                run[half][i + 1] = fmaxf(run[half][i], t.top[i][row[half]]);
        }
        float base[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float mine = run[half][1];
#pragma unroll
            for (int i = 1; i < BLOCKS; i++)
                mine = warp == i ? run[half][i + 1] : mine;
            base[half] = base_of(mine, scale2);
        }
        if (scoring) {
            weigh(w, scale2, base, part);
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    *(uint32_t *)(t.w[warp] + swizzle<KEYS>(row[half], j) + lane % 4 * 2) = pack(w[j][half * 2], w[j][half * 2 + 1]);
            if (lane % 4 == 0) {
                t.part[warp][g] = part[0];
                t.part[warp][g + 8] = part[1];
            }
        }
        copy_wait<1>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            if (first + i > last)
                break;
            float shrink[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                shrink[half] = shrink_of(run[half][i], t.top[i][row[half]], scale2);
                sum[half] = __fmaf_rn(sum[half], shrink[half], t.part[i][row[half]]);
                max[half] = run[half][i + 1];
            }
            shrink_all<COLS / 8>(o, shrink);
            gather_few<D, COLS / 8>(o, t.w[i], t.v + i * KEYS * D, warp * COLS);
        }
        __syncthreads();
        if (more)
            load_chunk<D, PAGED>(p, s, kv_head, p.v, p.ldv, next, ids, t.v);
        copy_commit();
    }
    store_rows<COLS / 8>(p, r, row, max, sum, scale2, o, warp * COLS);
}

/* ---- launches ---- */

template <int D, bool PAGED> static int run_wide(const tcu_attention *p, tcu_stream stream)
{
    size_t bytes = (64 + 4 * KEYS) * D * sizeof(bf16);
    cudaError_t e = cudaFuncSetAttribute(wide_form<D, PAGED>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e)
        return e;
    wide_form<D, PAGED><<<dim3(p->n_spans, p->n_kv_heads), THREADS, bytes, stream>>>(*p);
    return cudaGetLastError();
}

template <int D, bool PAGED> static int run_narrow(const tcu_attention *p, tcu_stream stream)
{
    size_t bytes = sizeof(few_shared<D>);
    cudaError_t e = cudaFuncSetAttribute(narrow_form<D, PAGED>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e)
        return e;
    return launch(narrow_form<D, PAGED>, dim3(p->n_spans, p->n_kv_heads), THREADS, bytes, stream, *p);
}

/* If the card has too little shared memory for the narrow form, the wide one runs: the bits are the same. */
template <int D> static int choose(const tcu_attention *p, bool narrow, tcu_stream stream)
{
    int e = cudaErrorInvalidValue;
    if (narrow)
        e = p->tables ? run_narrow<D, true>(p, stream) : run_narrow<D, false>(p, stream);
    if (e != cudaErrorInvalidValue)
        return e;
    cudaGetLastError();
    return p->tables ? run_wide<D, true>(p, stream) : run_wide<D, false>(p, stream);
}

int32_t tcu_span_tokens(int32_t n_heads, int32_t n_kv_heads, bool narrow)
{
    int32_t group = n_heads / n_kv_heads;
    return (narrow && group <= 16 ? 16 : 64) / group;
}

int tcu_attention_forward(const tcu_attention *p, bool narrow, tcu_stream stream)
{
    if (!p->n_spans)
        return 0;
    if (p->grouped)
        return tcu_grouped_forward(p, stream);
    narrow = narrow && p->n_heads / p->n_kv_heads <= 16;
    return p->d <= 64    ? choose<64>(p, narrow, stream) :
           p->d <= 128 ? choose<128>(p, narrow, stream) :
                         choose<256>(p, narrow, stream);
}
