/* avx512.c - the kernel set for AVX-512: the fast kernels in vectors of 16. Compiled for its target
 * whatever the flags of the build; called only where the processor has it. */
#include "kernels/set.h"

#if defined(__x86_64__) && !defined(TKE_REAL_DOUBLE)

#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(                                                                      \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq"))),                   \
    apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")
#endif

#define TILE_M_COUNT 14
enum { TILE_M = TILE_M_COUNT };
#include "kernels/simd_avx512.h"
#include "kernels/fast_gemm.h"
#include "kernels/fast_rows.h"
#include "kernels/fast_attention.h"

static const tke_kernel_set set = {
    .name = "avx512",
    .isa = TKE_ISA_AVX512,
    .tile_m = TILE_M,
    .tile_n = TILE_N,
    .gemm = gemm,
    .rmsnorm = rmsnorm,
    .rmsnorm_backward = rmsnorm_backward,
    .rope = rope,
    .swiglu = swiglu,
    .swiglu_backward = swiglu_backward,
    .attention = attention,
    .attention_backward = attention_backward,
    .lse_update = lse_update,
    .softmax_scaled = softmax_scaled,
    .sum_squares = sum_squares,
    .adam = adam,
};

const tke_kernel_set *tke_set_avx512(bool bf16)
{
    (void)bf16;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return NULL;
    return &set;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

const tke_kernel_set *tke_set_avx512(bool bf16)
{
    (void)bf16;
    return NULL;
}

#endif
