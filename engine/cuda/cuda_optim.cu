/* cuda_optim.cu - blocks of adapters: operands in bf16 from the fp32 master, AdamW, sums of squares in double.
 *
 * Sums go in blocks of TCU_SUM_BLOCK numbers, each in a fixed tree, then over the blocks in a fixed order.
 */
#include "cuda/cuda_kernels.h"
#include "cuda/cuda_warp.cuh"

enum { THREADS = 256 };

/* Rows of a master of `rank` rows a matrix into operands of `padded` rows, whose sides have their zeros. */
__global__ void operands_a(const float *master, const tcu_group *groups, int rank, int padded, bf16 *operands)
{
    tcu_group g = groups[blockIdx.y];
    int64_t count = (int64_t)g.n_a * g.n * padded * g.in, in = tcu_side_count(g.side_in, g.in);
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; g.n && i < count; i += (int64_t)gridDim.x * THREADS) {
        int64_t row = i / g.in, module = row / padded, r = row % padded, c = tcu_side_place(g.side_in, (int)(i % g.in));
        operands[g.a + i] = r < rank && c >= 0 ? narrow(master[g.master_a + (module * rank + r) * in + c]) : narrow(0);
    }
}

__global__ void operands_b(const float *master, const tcu_group *groups, int rank, int padded, bf16 *operands)
{
    tcu_group g = groups[blockIdx.y];
    for (int module = 0; module < g.n; module++) {
        int64_t rows = g.out[module], count = g.n_b * rows * padded, out = tcu_side_count(g.side_out[module], (int)rows);
        for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
            int64_t row = tcu_side_place(g.side_out[module], (int)(i / padded % rows)), copy = i / padded / rows, r = i % padded;
            int64_t from = g.master_b[module] + (copy * out + row) * rank + r;
            operands[g.b[module] + i] = r < rank && row >= 0 ? narrow(master[from]) : narrow(0);
        }
    }
}

int tcu_operands(const float *master, const tcu_group *groups, int32_t n_groups, int32_t rank, int32_t padded,
                 tcu_bf16 *operands, tcu_stream stream)
{
    operands_a<<<dim3(64, n_groups), THREADS, 0, stream>>>(master, groups, rank, padded, operands);
    operands_b<<<dim3(64, n_groups), THREADS, 0, stream>>>(master, groups, rank, padded, operands);
    return cudaGetLastError();
}

__global__ void __launch_bounds__(THREADS) adam(tcu_adam a, bool apply, const float *g, float *theta, float *m, float *v, int64_t n,
                                                double *parts)
{
    double change = 0;
    for (int j = threadIdx.x; j < TCU_SUM_BLOCK; j += THREADS) {
        int64_t i = (int64_t)blockIdx.x * TCU_SUM_BLOCK + j;
        if (i >= n)
            break;
        float d = g[i] * a.clip, old = theta[i];
        float first = m[i] + a.one1 * (d - m[i]), second = a.beta2 * v[i] + a.one2 * (d * d);
        float now = old * a.decay - a.step * (first / (sqrtf(second) / a.root + a.eps));
        if (apply) {
            m[i] = first;
            v[i] = second;
            theta[i] = now;
        } else if (!isfinite(first) || !isfinite(second)) {
            now = NAN;
        }
        double moved = (double)now - (double)old;
        change += moved * moved;
    }
    change = block_sum(change);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = change;
}

__global__ void __launch_bounds__(THREADS) squares(const float *x, int64_t n, double *parts)
{
    double sum = 0;
    for (int j = threadIdx.x; j < TCU_SUM_BLOCK; j += THREADS) {
        int64_t i = (int64_t)blockIdx.x * TCU_SUM_BLOCK + j;
        if (i < n)
            sum += (double)x[i] * (double)x[i];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(THREADS) sum_parts(const double *parts, int64_t n, double *out)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        sum += parts[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *out = sum;
}

int tcu_adam_step(const tcu_adam *a, bool apply, const float *g, float *theta, float *m, float *v, int64_t n, double *parts,
                  tcu_stream stream)
{
    adam<<<(unsigned)((n + TCU_SUM_BLOCK - 1) / TCU_SUM_BLOCK), THREADS, 0, stream>>>(*a, apply, g, theta, m, v, n, parts);
    return cudaGetLastError();
}

int tcu_sum_squares(const float *x, int64_t n, double *parts, tcu_stream stream)
{
    squares<<<(unsigned)((n + TCU_SUM_BLOCK - 1) / TCU_SUM_BLOCK), THREADS, 0, stream>>>(x, n, parts);
    return cudaGetLastError();
}

int tcu_sum_parts(const double *parts, int64_t n, double *out, tcu_stream stream)
{
    sum_parts<<<1, THREADS, 0, stream>>>(parts, n, out);
    return cudaGetLastError();
}
