/* cuda_delta_unit.cuh - heads of the delta rule's rows, a warp each: unit length, the gates, the gated norm. */
#ifndef TKE_CUDA_DELTA_UNIT_CUH
#define TKE_CUDA_DELTA_UNIT_CUH

#include "cuda/cuda_delta.h"
#include "cuda/cuda_rows.cuh"

/* A lane has numbers lane, lane + 32, ... of a head. */
template <int PARTS> DEVICE void load_head(const bf16 *from, int n, float (&x)[PARTS])
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        int at = threadIdx.x % 32 + i * 32;
        x[i] = at < n ? wide(from[at]) : 0;
    }
}

template <int PARTS> DEVICE void load_head(const float *from, int n, float (&x)[PARTS])
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        int at = threadIdx.x % 32 + i * 32;
        x[i] = at < n ? from[at] : 0;
    }
}

template <int PARTS, typename F> DEVICE void each_of_head(int n, F f)
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        int at = threadIdx.x % 32 + i * 32;
        if (at < n)
            f(at, i);
    }
}

template <int PARTS> DEVICE float dot(const float (&x)[PARTS], const float (&y)[PARTS])
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        sum = fmaf(x[i], y[i], sum);
    return warp_sum(sum);
}

DEVICE float unit_scale(float squares)
{
    return 1.0f / sqrtf(squares + 1e-6f); /* fixed, whatever the norms of the model have */
}

template <int PARTS> DEVICE void unit_head(const bf16 *from, int n, float by, float *to)
{
    float x[PARTS];
    load_head(from, n, x);
    float scale = by * unit_scale(dot(x, x));
    each_of_head<PARTS>(n, [&](int at, int i) { to[at] = x[i] * scale; });
}

DEVICE float strength_of(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* softplus is the identity above 20, as in the reference. */
DEVICE float decay_of(float decay, double x)
{
    return (float)(-(double)decay * (x > 20 ? x : log1p(exp(x))));
}

DEVICE bf16 gated(float w, float normed, float z)
{
    return narrow(w * normed * (z * sigmoid(z)));
}

#endif
