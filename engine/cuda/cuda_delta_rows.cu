/* cuda_delta_rows.cu - what is done to the rows of the delta rule one by one: heads of unit length, strength and decay, the gated norm, and
 * their gradients. A warp has a head of a row; its sums run in one fixed tree.
 */
#include "cuda/cuda_delta_unit.cuh"
#include "cuda/cuda_tf32.cuh"

static_assert(TCU_DELTA_KEYS == 128, "heads of keys are FEW * 32 numbers at most");
enum { THREADS = 256, WARPS = THREADS / 32, FEW = 4, MANY = TCU_DELTA_DIM / 32 }; /* numbers of a head that a lane has */

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

/* ---- heads of unit length ---- */

__global__ void __launch_bounds__(THREADS) delta_heads(tcu_delta_rule p)
{
    int64_t row;
    int head, dk = p.of.dk;
    if (!head_of_warp(p.n, p.of.n_key_heads, &row, &head))
        return;
    int64_t kd = (int64_t)p.of.n_key_heads * dk;
    const bf16 *from = p.c + row * p.ld_c + head * dk;
    unit_head<FEW>(from, dk, 1.0f / sqrtf((float)dk), p.q + row * kd + head * dk);
    unit_head<FEW>(from + p.k_at, dk, 1, p.k + row * kd + head * dk);
}

/* A thread has a value head of a row. */
__global__ void __launch_bounds__(THREADS) delta_gates(tcu_delta_rule p)
{
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = at / p.of.n_value_heads;
    int head = (int)(at % p.of.n_value_heads);
    if (row >= p.n)
        return;
    const float *gates = p.gates + row * p.ld_gates + head;
    p.strength[at] = strength_of(gates[0]);
    p.g[at] = decay_of(p.of.decay[head], (double)gates[p.decay_at] + (double)p.of.dt_bias[head]);
}

template <int PARTS> DEVICE void unit_head_back(const bf16 *from, int n, float by, const float *d_unit, bf16 *to)
{
    float x[PARTS], d[PARTS];
    load_head(from, n, x);
    load_head(d_unit, n, d);
    float scale = unit_scale(dot(x, x)), along = dot(x, d) * scale * scale;
    each_of_head<PARTS>(n, [&](int at, int i) { to[at] = narrow(by * scale * (d[i] - x[i] * along)); });
}

__global__ void __launch_bounds__(THREADS) delta_heads_back(tcu_delta_rule p)
{
    int64_t row;
    int head, dk = p.of.dk;
    if (!head_of_warp(p.n, p.of.n_key_heads, &row, &head))
        return;
    int64_t at = row * p.ld_c + head * dk, unit = (row * p.of.n_key_heads + head) * dk;
    unit_head_back<FEW>(p.c + at, dk, 1.0f / sqrtf((float)dk), p.dq + unit, p.dc + at);
    unit_head_back<FEW>(p.c + at + p.k_at, dk, 1, p.dk + unit, p.dc + at + p.k_at);
}

int tcu_delta_heads(const tcu_delta_rule *p, tcu_stream stream)
{
    int64_t gates = (int64_t)p->n * p->of.n_value_heads;
    int rc = launch(delta_heads, blocks_of((int64_t)p->n * p->of.n_key_heads), THREADS, 0, stream, *p);
    return rc ? rc : launch(delta_gates, (int)((gates + THREADS - 1) / THREADS), THREADS, 0, stream, *p);
}

int tcu_delta_heads_back(const tcu_delta_rule *p, tcu_stream stream)
{
    return launch(delta_heads_back, blocks_of((int64_t)p->n * p->of.n_key_heads), THREADS, 0, stream, *p);
}

/* ---- the gated norm ---- */

template <int PARTS> __global__ void __launch_bounds__(THREADS) gated_forward(tcu_gated_norm p, const float *o, bf16 *y)
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
    each_of_head<PARTS>(d, [&](int k, int i) { y[at + k] = gated(p.w[k], x[i] * rho, z[i]); });
}

template <int PARTS> __global__ void __launch_bounds__(THREADS) gated_back(tcu_gated_norm p, float *o, const bf16 *dy, bf16 *dz, int64_t lddz)
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
    each_of_head<PARTS>(d, [&](int k, int i) {
        float s = sigmoid(z[i]), part = e[i] * p.w[k];
        dz[row * lddz + head * d + k] = narrow(part * (x[i] * rho) * (s * (1 + z[i] * (1 - s))));
        e[i] = part * (z[i] * s);
    });
    float along = dot(e, x) * rho * rho / (float)d;
    each_of_head<PARTS>(d, [&](int k, int i) { o[at + k] = tf32_rounded(rho * (e[i] - x[i] * along)); });
}

int tcu_gated_forward(const tcu_gated_norm *p, const float *o, tcu_bf16 *y, tcu_stream stream)
{
    return launch(p->d > FEW * 32 ? gated_forward<MANY> : gated_forward<FEW>, blocks_of((int64_t)p->n * p->heads), THREADS, 0, stream, *p, o, y);
}

int tcu_gated_back(const tcu_gated_norm *p, float *o, const tcu_bf16 *dy, tcu_bf16 *dz, int64_t lddz, tcu_stream stream)
{
    return launch(p->d > FEW * 32 ? gated_back<MANY> : gated_back<FEW>, blocks_of((int64_t)p->n * p->heads), THREADS, 0, stream, *p, o, dy, dz, lddz);
}
