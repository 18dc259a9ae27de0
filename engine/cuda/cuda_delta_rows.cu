/* cuda_delta_rows.cu - what is done to the rows of the delta rule one by one: heads of unit length, strength and decay, the gated norm, and
 * their gradients. A warp has a head of a row; its sums run in one fixed tree.
 */
#include "cuda/cuda_delta.h"
#include "cuda/cuda_rows.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, PARTS = TCU_DELTA_DIM / 32 };

/* The head that this warp has, counted over all rows; false: none. */
DEVICE bool head_of_warp(int rows, int heads, int64_t *row, int *head)
{
    int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    *row = at / heads;
    *head = (int)(at % heads);
    return *row < rows;
}

static int blocks_of(int64_t heads)
{
    return (int)((heads + WARPS - 1) / WARPS);
}

DEVICE void load_head(const bf16 *from, int n, float x[PARTS])
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        int at = threadIdx.x % 32 + i * 32;
        x[i] = at < n ? wide(from[at]) : 0;
    }
}

DEVICE void load_head(const float *from, int n, float x[PARTS])
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        int at = threadIdx.x % 32 + i * 32;
        x[i] = at < n ? from[at] : 0;
    }
}

template <typename F> DEVICE void each_of_head(int n, F f)
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        int at = threadIdx.x % 32 + i * 32;
        if (at < n)
            f(at, i);
    }
}

DEVICE float dot(const float x[PARTS], const float y[PARTS])
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        sum = fmaf(x[i], y[i], sum);
    return warp_sum(sum);
}

/* ---- heads of unit length ---- */

DEVICE float unit_scale(float squares)
{
    return 1.0f / sqrtf(squares + 1e-6f); /* fixed, whatever the norms of the model have */
}

DEVICE void unit_head(const bf16 *from, int n, float by, float *to)
{
    float x[PARTS];
    load_head(from, n, x);
    float scale = by * unit_scale(dot(x, x));
    each_of_head(n, [&](int at, int i) { to[at] = x[i] * scale; });
}

/* softplus is the identity above 20, as in the reference. */
DEVICE float decay_of(float decay, double x)
{
    return (float)(-(double)decay * (x > 20 ? x : log1p(exp(x))));
}

__global__ void __launch_bounds__(THREADS) delta_heads(tcu_delta_rule p)
{
    int64_t row;
    int head, dk = p.of.dk, per = p.of.n_value_heads / p.of.n_key_heads;
    if (!head_of_warp(p.n, p.of.n_key_heads, &row, &head))
        return;
    int64_t kd = (int64_t)p.of.n_key_heads * dk;
    const bf16 *from = p.c + row * p.ld_c + head * dk;
    unit_head(from, dk, 1.0f / sqrtf((float)dk), p.q + row * kd + head * dk);
    unit_head(from + p.k_at, dk, 1, p.k + row * kd + head * dk);
    for (int i = head * per + threadIdx.x % 32; i < (head + 1) * per; i += 32) {
        const float *gates = p.gates + row * p.ld_gates + i;
        p.strength[row * p.of.n_value_heads + i] = 1.0f / (1.0f + expf(-gates[0]));
        p.g[row * p.of.n_value_heads + i] =
            decay_of(p.of.decay[i], (double)gates[p.decay_at] + (double)p.of.dt_bias[i]);
    }
}

DEVICE void unit_head_back(const bf16 *from, int n, float by, const float *d_unit, bf16 *to)
{
    float x[PARTS], d[PARTS];
    load_head(from, n, x);
    load_head(d_unit, n, d);
    float scale = unit_scale(dot(x, x)), along = dot(x, d) * scale * scale;
    each_of_head(n, [&](int at, int i) { to[at] = narrow(by * scale * (d[i] - x[i] * along)); });
}

__global__ void __launch_bounds__(THREADS) delta_heads_back(tcu_delta_rule p)
{
    int64_t row;
    int head, dk = p.of.dk;
    if (!head_of_warp(p.n, p.of.n_key_heads, &row, &head))
        return;
    int64_t at = row * p.ld_c + head * dk, unit = (row * p.of.n_key_heads + head) * dk;
    unit_head_back(p.c + at, dk, 1.0f / sqrtf((float)dk), p.dq + unit, p.dc + at);
    unit_head_back(p.c + at + p.k_at, dk, 1, p.dk + unit, p.dc + at + p.k_at);
}

int tcu_delta_heads(const tcu_delta_rule *p, tcu_stream stream)
{
    return launch(delta_heads, blocks_of((int64_t)p->n * p->of.n_key_heads), THREADS, 0, stream, *p);
}

int tcu_delta_heads_back(const tcu_delta_rule *p, tcu_stream stream)
{
    return launch(delta_heads_back, blocks_of((int64_t)p->n * p->of.n_key_heads), THREADS, 0, stream, *p);
}

/* ---- the gated norm ---- */

__global__ void __launch_bounds__(THREADS) gated_forward(tcu_gated_norm p, const float *o, bf16 *y)
{
    int64_t row;
    int head, d = p.d;
    if (!head_of_warp(p.n, p.heads, &row, &head))
        return;
    int64_t at = (row * p.heads + head) * d;
    float x[PARTS], z[PARTS];
    load_head(o + at, d, x);
    load_head(p.z + row * p.ldz + head * d, d, z);
    float rho = rsqrtf(dot(x, x) / (float)d + p.eps);
    each_of_head(d, [&](int k, int i) { y[at + k] = narrow(p.w[k] * (x[i] * rho) * (z[i] * sigmoid(z[i]))); });
}

__global__ void __launch_bounds__(THREADS) gated_back(tcu_gated_norm p, float *o, const bf16 *dy, bf16 *dz, int64_t lddz)
{
    int64_t row;
    int head, d = p.d;
    if (!head_of_warp(p.n, p.heads, &row, &head))
        return;
    int64_t at = (row * p.heads + head) * d;
    float x[PARTS], z[PARTS], e[PARTS];
    load_head(o + at, d, x);
    load_head(p.z + row * p.ldz + head * d, d, z);
    load_head(dy + at, d, e);
    float rho = rsqrtf(dot(x, x) / (float)d + p.eps);
    each_of_head(d, [&](int k, int i) {
        float s = sigmoid(z[i]), part = e[i] * p.w[k];
        dz[row * lddz + head * d + k] = narrow(part * (x[i] * rho) * (s * (1 + z[i] * (1 - s))));
        e[i] = part * (z[i] * s);
    });
    float along = dot(e, x) * rho * rho / (float)d;
    each_of_head(d, [&](int k, int i) { o[at + k] = rho * (e[i] - x[i] * along); });
}

int tcu_gated_forward(const tcu_gated_norm *p, const float *o, tcu_bf16 *y, tcu_stream stream)
{
    return launch(gated_forward, blocks_of((int64_t)p->n * p->heads), THREADS, 0, stream, *p, o, y);
}

int tcu_gated_back(const tcu_gated_norm *p, float *o, const tcu_bf16 *dy, tcu_bf16 *dz, int64_t lddz, tcu_stream stream)
{
    return launch(gated_back, blocks_of((int64_t)p->n * p->heads), THREADS, 0, stream, *p, o, dy, dz, lddz);
}
