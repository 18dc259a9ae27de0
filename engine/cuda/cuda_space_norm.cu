/* cuda_space_norm.cu - the gated norm over groups behind the state-space rule, its gradient, and what a step keeps of its rows.
 *
 * A warp takes one group of a row; its sums run in a tree that depends on the group's width alone.
 */
#include "cuda/cuda_rows.cuh"
#include "cuda/cuda_space.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

/* V neighbours: a word of 16 bytes, or one number. */
template <int V> DEVICE void load(const bf16 *from, float x[V])
{
    if (V == 1) {
        x[0] = wide(*from);
        return;
    }
    uint4 word = *(const uint4 *)from;
    const uint32_t *w = &word.x;
#pragma unroll
    for (int i = 0; i < V / 2; i++) {
        float2 two = unpack(w[i]);
        x[2 * i] = two.x;
        x[2 * i + 1] = two.y;
    }
}

template <int V> DEVICE void store(bf16 *to, const float x[V])
{
    if (V == 1) {
        *to = narrow(x[0]);
        return;
    }
    uint4 word;
    uint32_t *w = &word.x;
#pragma unroll
    for (int i = 0; i < V / 2; i++)
        w[i] = pack(x[2 * i], x[2 * i + 1]);
    *(uint4 *)to = word;
}

template <int V> DEVICE void gated(const bf16 *y, const bf16 *z, float v[V])
{
    float gate[V];
    load<V>(y, v);
    load<V>(z, gate);
#pragma unroll
    for (int i = 0; i < V; i++)
        v[i] *= gate[i] * sigmoid(gate[i]);
}

/* 1 / the root of the mean square of a group. */
template <int V> DEVICE float inverse_rms(const tcu_space_norm &p, const bf16 *y, const bf16 *z, int n)
{
    float sum = 0, v[V];
    for (int i = threadIdx.x % 32 * V; i < n; i += 32 * V) {
        gated<V>(y + i, z + i, v);
#pragma unroll
        for (int k = 0; k < V; k++)
            sum = fmaf(v[k], v[k], sum);
    }
    return rsqrtf(warp_sum(sum) / (float)n + p.eps);
}

/* Puts x, B and times of a row into its slot, if the row's chunk is still open after the step. */
DEVICE void keep_row(const tcu_space_rule &p, const int32_t *run_of, int64_t row)
{
    int run = run_of[row], width = open_width(p);
    if (run < 0)
        return;
    tcu_run r = p.runs[run];
    int position = r.position + (int)row - r.row;
    if (row < r.row || row >= r.row + r.n || position / CHUNK != (r.position + r.n) / CHUNK)
        return;
    uint4 *to = (uint4 *)(open_chunk(p, r.slot) + position % CHUNK * width);
    const uint4 *from = (const uint4 *)(p.c + row * p.ldc);
    bf16 *times = (bf16 *)to + p.c_at;
    for (int i = threadIdx.x; i < p.c_at / 8; i += THREADS)
        to[i] = from[i];
    for (int i = threadIdx.x; i < p.n_heads; i += THREADS)
        times[i] = p.times[row * p.ld_times + i];
}

template <int V> __global__ void __launch_bounds__(THREADS) norm_forward(tcu_space_norm p, tcu_space_rule rule)
{
    int64_t row = blockIdx.x;
    int n = p.width / p.n_groups;
    for (int g = threadIdx.x / 32; g < p.n_groups; g += WARPS) {
        const bf16 *y = p.y + row * p.ldy + g * n, *z = p.z + row * p.ldz + g * n;
        float by = inverse_rms<V>(p, y, z, n), v[V];
        for (int i = threadIdx.x % 32 * V; i < n; i += 32 * V) {
            gated<V>(y + i, z + i, v);
#pragma unroll
            for (int k = 0; k < V; k++)
                v[k] = p.weights[g * n + i + k] * (v[k] * by);
            store<V>(p.o + row * p.ldy + g * n + i, v);
        }
    }
    for (int i = p.width + threadIdx.x; i < p.ldy; i += THREADS) /* products read them, too */
        p.o[row * p.ldy + i] = narrow(0);
    if (p.rule)
        keep_row(rule, p.run_of, row);
}

template <int V> __global__ void __launch_bounds__(THREADS) norm_back(tcu_space_norm p)
{
    int64_t row = blockIdx.x;
    int n = p.width / p.n_groups;
    for (int g = threadIdx.x / 32; g < p.n_groups; g += WARPS) {
        int64_t at = row * p.ldy + g * n, at_z = row * p.ldz + g * n;
        float by = inverse_rms<V>(p, p.y + at, p.z + at_z, n), along = 0, v[V], d[V], y[V], z[V];
        for (int i = threadIdx.x % 32 * V; i < n; i += 32 * V) {
            gated<V>(p.y + at + i, p.z + at_z + i, v);
            load<V>(p.d_o + at + i, d);
#pragma unroll
            for (int k = 0; k < V; k++)
                along = fmaf(p.weights[g * n + i + k] * d[k], v[k], along);
        }
        along = warp_sum(along) * by * by / (float)n;
        for (int i = threadIdx.x % 32 * V; i < n; i += 32 * V) {
            load<V>(p.y + at + i, y);
            load<V>(p.z + at_z + i, z);
            load<V>(p.d_o + at + i, d);
#pragma unroll
            for (int k = 0; k < V; k++) {
                float s = sigmoid(z[k]), silu = z[k] * s;
                float dv = by * (p.weights[g * n + i + k] * d[k] - y[k] * silu * along);
                d[k] = dv * silu;
                z[k] = dv * y[k] * (s * (1 + z[k] * (1 - s)));
            }
            store<V>(p.dy + at + i, d);
            store<V>(p.dz + at_z + i, z);
        }
    }
    for (int i = p.width + threadIdx.x; i < p.ldy; i += THREADS)
        p.dz[row * p.ldz + i] = narrow(0);
}

static bool words(const tcu_space_norm *p)
{
    return (p->width / p->n_groups | p->ldy | p->ldz) % 8 == 0;
}

int tcu_space_norm_forward(const tcu_space_norm *p, tcu_stream stream)
{
    tcu_space_rule none = {};
    return launch(words(p) ? norm_forward<8> : norm_forward<1>, dim3(p->rows), THREADS, 0, stream, *p, p->rule ? *p->rule : none);
}

int tcu_space_norm_back(const tcu_space_norm *p, tcu_stream stream)
{
    return launch(words(p) ? norm_back<8> : norm_back<1>, dim3(p->rows), THREADS, 0, stream, *p);
}
