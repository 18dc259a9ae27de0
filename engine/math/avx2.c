/* avx2.c - the kernel set for AVX2, FMA and F16C: the fast kernels in vectors of 8. Compiled for
 * its target whatever the build's flags; called only if the processor supports it. */
#include "math/kernel_set.h"

#if defined(__x86_64__) && !defined(TKE_REAL_DOUBLE)

#include <assert.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#define TILE_M_COUNT 6
enum { TILE_M = TILE_M_COUNT };
#include "math/simd_avx2.h"
#include "math/fast_gemm.h"
#include "math/fast_transposed.h"
#include "math/fast_gemv.h"
#include "math/fast_rows.h"
#include "math/fast_attention.h"

static const tke_kernel_set set = {
    .name = "avx2",
    .isa = TKE_ISA_AVX2,
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

const tke_kernel_set *tke_set_avx2(void)
{
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return NULL;
    return &set;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

const tke_kernel_set *tke_set_avx2(void)
{
    return NULL;
}

#endif
