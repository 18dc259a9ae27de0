/* cuda_act.cuh - what an expert does between its matrices. */
#ifndef TKE_CUDA_ACT_CUH
#define TKE_CUDA_ACT_CUH

#include "cuda/cuda_experts.h"
#include "cuda/cuda_rows.cuh"

/* Of one number. */
DEVICE float act_one(const tcu_expert_act &a, float g, float u)
{
    if (a.squared)
        return fmaxf(g, 0) * fmaxf(g, 0);
    if (!a.limit)
        return g * sigmoid(g) * u;
    g = fminf(g, a.limit);
    u = fminf(fmaxf(u, -a.limit), a.limit);
    return (u + 1) * (g * sigmoid(a.alpha * g));
}

#endif
