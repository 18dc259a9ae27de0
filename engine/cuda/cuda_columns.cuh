/* cuda_columns.cuh - the log-sum-exp of a row of logits as CHAINS chains: chain t adds columns 4t, 4t + CHAIN_STEP, ... in order, and a
 * tree over all chains follows (block_sum). The vocabulary alone fixes the order, so trainer and sampler agree in every bit.
 */
#ifndef TKE_CUDA_COLUMNS_CUH
#define TKE_CUDA_COLUMNS_CUH

#include "cuda/cuda_warp.cuh"

enum { CHAINS = 1024, CHAIN_STEP = CHAINS * 4 };

typedef struct running { /* of the columns of a chain: the largest, and the sum of exp(z - max) */
    float max, sum;
} running;

/* Four columns from i on are added to a chain. Without branches, so that the next columns' powers do not wait for these sums. */
DEVICE void add_columns(running &r, float4 x, int i, int v)
{
    float top = fmaxf(fmaxf(x.x, i + 1 < v ? x.y : -INFINITY), fmaxf(i + 2 < v ? x.z : -INFINITY, i + 3 < v ? x.w : -INFINITY));
    float max = fmaxf(r.max, top), base = max == -INFINITY ? 0 : max;
    r.sum = __fmul_rn(r.sum, max == r.max ? 1 : __expf(__fsub_rn(r.max, max)));
    r.max = max;
    r.sum = __fadd_rn(r.sum, __expf(__fsub_rn(x.x, base)));
    r.sum = i + 1 < v ? __fadd_rn(r.sum, __expf(__fsub_rn(x.y, base))) : r.sum;
    r.sum = i + 2 < v ? __fadd_rn(r.sum, __expf(__fsub_rn(x.z, base))) : r.sum;
    r.sum = i + 3 < v ? __fadd_rn(r.sum, __expf(__fsub_rn(x.w, base))) : r.sum;
}

/* What a chain adds to the row's sum of exp(z - top), top being the row's largest. */
DEVICE float share_of(const running &r, float top)
{
    return r.sum == 0 ? 0 : __fmul_rn(r.sum, __expf(__fsub_rn(r.max, top == -INFINITY ? 0 : top)));
}

#endif
