/* cuda_rows.cu - operations on single rows: embedding, norms, rotation, SwiGLU, and their gradients.
 *
 * The residual stream is fp32; what products read is bf16. A row is summed in a tree that depends on its length alone.
 */
#include "cuda/cuda_heads.cuh"

enum { THREADS = ROW_THREADS };

__global__ void __launch_bounds__(THREADS) embed(const int32_t *ids, const bf16 *e, float *h, int n)
{
    int64_t row = blockIdx.x, id = ids[row] < 0 ? 0 : ids[row];
    for (int i = threadIdx.x; i < n; i += THREADS)
        h[row * n + i] = wide(e[id * n + i]);
}

/* A product that may begin before this launch ends (thin_packed) asks for its weights meanwhile. */
DEVICE void let_next_begin(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Norms: M * ROW_PIECE numbers at most, so that a short row takes few registers. n is a multiple of 4. */
template <int M>
__global__ void __launch_bounds__(THREADS) add_norm(const int32_t *which, const float *h, const bf16 *y, float *h_out,
                                                    const float *w, float eps, bf16 *a, int n)
{
    let_next_begin();
    int64_t to = blockIdx.x, from = which ? which[to] : to;
    float4 weights[M];
    if (a)
        norm_weights<M>(w, n, weights);
    norm_row<M>(h + from * n, y ? y + from * n : NULL, h_out ? h_out + to * n : NULL, weights, eps, n, a != NULL,
                [&](int i, uint2 v) { ((uint2 *)(a + to * n))[i] = v; });
}

/* Two sums over a block at once, each in the order of block_sum. */
DEVICE void block_sums(float *a, float *b)
{
    __shared__ float2 part[THREADS / 32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float x = warp_sum(*a), y = warp_sum(*b);
    if (lane == 0)
        part[warp] = make_float2(x, y);
    __syncthreads();
    float2 v = lane < THREADS / 32 ? part[lane] : make_float2(0, 0);
    *a = warp_sum(v.x);
    *b = warp_sum(v.y);
}

template <int M>
__global__ void __launch_bounds__(THREADS) norm_back(const float *x, const float *w, float eps, const bf16 *dy, bool first,
                                                     float *dh, bf16 *dh16, int n)
{
    int64_t row = blockIdx.x;
    float4 v[M], d[M];
    float squares = 0, dot = 0;
#pragma unroll
    for (int j = 0; j < M; j++) {
        int i = threadIdx.x + j * THREADS;
        if (i * 4 >= n)
            break;
        float4 weight = ((const float4 *)w)[i];
        v[j] = ((const float4 *)(x + row * n))[i];
        d[j] = unpack4(((const uint2 *)(dy + row * n))[i]);
        d[j] = make_float4(d[j].x * weight.x, d[j].y * weight.y, d[j].z * weight.z, d[j].w * weight.w);
        squares = dot4(v[j], v[j], squares);
        dot = dot4(v[j], d[j], dot);
    }
    block_sums(&squares, &dot);
    float rho = rsqrtf(squares / (float)n + eps);
    float back = rho * rho * rho * dot / (float)n;
#pragma unroll
    for (int j = 0; j < M; j++) {
        int i = threadIdx.x + j * THREADS;
        if (i * 4 >= n)
            break;
        float4 g = make_float4(rho * d[j].x - v[j].x * back, rho * d[j].y - v[j].y * back, rho * d[j].z - v[j].z * back,
                               rho * d[j].w - v[j].w * back);
        float4 *to = (float4 *)(dh + row * n) + i;
        if (!first) {
            float4 old = *to;
            g = make_float4(old.x + g.x, old.y + g.y, old.z + g.z, old.w + g.w);
        }
        *to = g;
        ((uint2 *)(dh16 + row * n))[i] = pack4(g);
    }
}

/* ---- heads: eight lanes each (cuda_heads.cuh) ---- */

/* Row and head of eight lanes; false past the end. Then, too, all lanes must take part in sums. */
DEVICE bool part_of(const tcu_heads &p, int heads, int *row, int *head)
{
    int at = blockIdx.x * (blockDim.x / 8) + threadIdx.x / 8;
    *row = at / heads;
    *head = at - *row * heads;
    if (*row < p.rows)
        return true;
    *row = *head = 0;
    return false;
}

/* Queries, keys, and (into a cache) values. */
__global__ void heads_forward(tcu_heads p, const bf16 *qkv, bf16 *q, bf16 *k, tcu_paged cache)
{
    int row, head;
    bool there = part_of(p, p.n_heads + p.n_kv_heads * (cache.data ? 2 : 1), &row, &head);
    head_part x = part_load(qkv + (int64_t)row * p.ld + (int64_t)head * p.d, p.d / 2);
    part_finish(x, p, row, head, there, q, k, cache);
}

__global__ void heads_back(tcu_heads p, const bf16 *qkv, const bf16 *dq, const bf16 *dk, bf16 *dqkv)
{
    int row, head, half = p.d / 2;
    bool there = part_of(p, p.n_heads + p.n_kv_heads, &row, &head), key = head >= p.n_heads;
    const bf16 *from = key ? dk + ((int64_t)row * p.n_kv_heads + head - p.n_heads) * p.d :
                             dq + ((int64_t)row * p.n_heads + head) * p.d;
    int64_t at = (int64_t)row * p.ld + (int64_t)head * p.d;
    head_part d = part_load(from, half), x;
    if (p.q_norm && p.k_norm)
        x = part_load(qkv + at, half);
    part_rotate(d, p, p.positions[row], -1);
    if (p.q_norm && p.k_norm) {
        const float *norm = key ? p.k_norm : p.q_norm;
        float4 lo[PAIRS], hi[PAIRS];
        part_table(norm, half, lo);
        part_table(norm + half, half, hi);
        float rho = rsqrtf(part_dot(x, x) / (float)p.d + p.eps);
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            d.lo[i] = times(d.lo[i], lo[i]);
            d.hi[i] = times(d.hi[i], hi[i]);
        }
        float back = rho * rho * rho * part_dot(x, d) / (float)p.d;
#pragma unroll
        for (int i = 0; i < PAIRS; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                (&d.lo[i].x)[e] = rho * (&d.lo[i].x)[e] - (&x.lo[i].x)[e] * back;
                (&d.hi[i].x)[e] = rho * (&d.hi[i].x)[e] - (&x.hi[i].x)[e] * back;
            }
    }
    if (there)
        part_store(d, half, dqkv + at);
}

/* ---- SwiGLU ---- */

/* Two numbers a lane of a word; n is a multiple of 8. */
template <bool BACK> __global__ void swiglu(const bf16 *gu, const bf16 *dm, bf16 *out, int64_t count, int n)
{
    let_next_begin();
    int64_t at = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * 8;
    if (at >= count)
        return;
    int64_t row = at / n, col = at % n;
    uint4 gate = *(const uint4 *)(gu + row * 2 * n + col), up = *(const uint4 *)(gu + row * 2 * n + n + col);
    uint4 d = BACK ? *(const uint4 *)(dm + at) : gate, first, second;
    const uint32_t *g = &gate.x, *u = &up.x, *e = &d.x;
    uint32_t *a = &first.x, *b = &second.x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (!BACK) {
            a[i] = swiglu_pair(g[i], u[i]);
            continue;
        }
        float2 x = unpack(g[i]), y = unpack(u[i]), z = unpack(e[i]);
        float s0 = sigmoid(x.x), s1 = sigmoid(x.y), silu0 = x.x * s0, silu1 = x.y * s1;
        a[i] = pack(z.x * y.x * (s0 * (1 + x.x * (1 - s0))), z.y * y.y * (s1 * (1 + x.y * (1 - s1))));
        b[i] = pack(z.x * silu0, z.y * silu1);
    }
    *(uint4 *)(out + (BACK ? row * 2 * n + col : at)) = first;
    if (BACK)
        *(uint4 *)(out + row * 2 * n + n + col) = second;
}

/* ---- conversions, test data ---- */

__global__ void add_bias(const float *bias, bf16 *y, int64_t count, int n)
{
    int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * 2;
    if (i >= count)
        return;
    float2 x = unpack(*(const uint32_t *)(y + i)), add = *(const float2 *)(bias + i % n);
    *(uint32_t *)(y + i) = pack(__fadd_rn(x.x, add.x), __fadd_rn(x.y, add.y));
}

__global__ void round_numbers(const float *x, bf16 *y, int64_t n)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        y[i] = narrow(x[i]);
}

__global__ void join_parts(const float *x, int parts, bool add, bf16 *y, int64_t n)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        float sum = x[i];
        for (int p = 1; p < parts; p++)
            sum += x[p * n + i];
        y[i] = narrow(add ? __fadd_rn(wide(narrow(sum)), wide(y[i])) : sum);
    }
}

__global__ void random_numbers(bf16 *p, int64_t n, uint32_t seed, float scale)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 2654435761u ^ seed ^ (uint32_t)(i >> 32);
        h = (h ^ h >> 15) * 2246822519u;
        h = (h ^ h >> 13) * 3266489917u;
        h ^= h >> 16;
        p[i] = narrow(scale * ((float)(h & 0xffffff) / 8388608.f - 1.f));
    }
}

/* ---- launches ---- */

int tcu_embed(const int32_t *ids, const tcu_bf16 *e, float *h, int32_t rows, int32_t n, tcu_stream stream)
{
    return launch(embed, dim3(rows), THREADS, 0, stream, ids, e, h, n);
}

template <int M>
static int run_norm(const int32_t *which, const float *h, const bf16 *y, float *h_out, const float *w, float eps, bf16 *a,
                    int rows, int n, tcu_stream stream)
{
    return launch(add_norm<M>, dim3(rows), THREADS, 0, stream, which, h, y, h_out, w, eps, a, n);
}

template <int M>
static int run_norm_back(const float *x, const float *w, float eps, const bf16 *dy, bool first, float *dh, bf16 *dh16, int rows,
                         int n, tcu_stream stream)
{
    return launch(norm_back<M>, dim3(rows), THREADS, 0, stream, x, w, eps, dy, first, dh, dh16, n);
}

/* The instance whose threads hold a row of n numbers. */
#define FOR_WIDTH(f, n, ...)                                                                                                   \
    ((n) <= ROW_PIECE     ? f<1>(__VA_ARGS__) :                                                                                \
     (n) <= 2 * ROW_PIECE ? f<2>(__VA_ARGS__) :                                                                                \
     (n) <= 3 * ROW_PIECE ? f<3>(__VA_ARGS__) :                                                                                \
     (n) <= 4 * ROW_PIECE ? f<4>(__VA_ARGS__) :                                                                                \
     (n) <= 8 * ROW_PIECE ? f<8>(__VA_ARGS__) :                                                                                \
                            (int)cudaErrorInvalidValue)

int tcu_add_norm(const float *h, const tcu_bf16 *y, float *h_out, const float *w, float eps, tcu_bf16 *a, int32_t rows,
                 int32_t n, tcu_stream stream)
{
    return FOR_WIDTH(run_norm, n, NULL, h, y, h_out, w, eps, a, rows, n, stream);
}

int tcu_pick_norm(const int32_t *which, const float *h, const tcu_bf16 *y, const float *w, float eps, tcu_bf16 *a,
                  int32_t rows, int32_t n, tcu_stream stream)
{
    return FOR_WIDTH(run_norm, n, which, h, y, NULL, w, eps, a, rows, n, stream);
}

int tcu_norm_back(const float *x, const float *w, float eps, const tcu_bf16 *dy, bool first, float *dh, tcu_bf16 *dh16,
                  int32_t rows, int32_t n, tcu_stream stream)
{
    return FOR_WIDTH(run_norm_back, n, x, w, eps, dy, first, dh, dh16, rows, n, stream);
}

int tcu_heads_forward(const tcu_heads *p, const tcu_bf16 *qkv, tcu_bf16 *q, tcu_bf16 *k, const tcu_paged *cache,
                      tcu_stream stream)
{
    tcu_paged none = {};
    int heads = p->n_heads + p->n_kv_heads * (cache ? 2 : 1);
    return launch(heads_forward, dim3((p->rows * heads + 31) / 32), 256, 0, stream, *p, qkv, q, k, cache ? *cache : none);
}

int tcu_heads_back(const tcu_heads *p, const tcu_bf16 *qkv, const tcu_bf16 *dq, const tcu_bf16 *dk, tcu_bf16 *dqkv,
                   tcu_stream stream)
{
    heads_back<<<(p->rows * (p->n_heads + p->n_kv_heads) + 31) / 32, 256, 0, stream>>>(*p, qkv, dq, dk, dqkv);
    return cudaGetLastError();
}

int tcu_swiglu(const tcu_bf16 *gu, tcu_bf16 *m, int64_t rows, int32_t n, tcu_stream stream)
{
    return launch(swiglu<false>, dim3((unsigned)((rows * n / 8 + 255) / 256)), 256, 0, stream, gu, nullptr, m, rows * n, n);
}

int tcu_swiglu_back(const tcu_bf16 *gu, const tcu_bf16 *dm, tcu_bf16 *dgu, int64_t rows, int32_t n, tcu_stream stream)
{
    swiglu<true><<<(unsigned)((rows * n / 8 + 255) / 256), 256, 0, stream>>>(gu, dm, dgu, rows * n, n);
    return cudaGetLastError();
}

int tcu_add_bias(const float *bias, tcu_bf16 *y, int64_t rows, int32_t n, tcu_stream stream)
{
    return launch(add_bias, dim3((unsigned)((rows * n / 2 + 255) / 256)), 256, 0, stream, bias, y, rows * n, n);
}

int tcu_round(const float *x, tcu_bf16 *y, int64_t n, tcu_stream stream)
{
    round_numbers<<<1024, 256, 0, stream>>>(x, y, n);
    return cudaGetLastError();
}

int tcu_join_parts(const float *x, int32_t parts, bool add, tcu_bf16 *y, int64_t n, tcu_stream stream)
{
    join_parts<<<1024, 256, 0, stream>>>(x, parts, add, y, n);
    return cudaGetLastError();
}

int tcu_random(tcu_bf16 *p, int64_t n, uint32_t seed, float scale, tcu_stream stream)
{
    random_numbers<<<1024, 256, 0, stream>>>(p, n, seed, scale);
    return cudaGetLastError();
}
