/* neon.c - the kernel set for NEON: the fast kernels in vectors of 4. A tile of 12 rows and two
 * vectors takes 24 of the 32 registers; with 14 rows compilers spill. */
#include "math/kernel_set.h"

#if defined(__aarch64__) && !defined(TKE_REAL_DOUBLE)

#include <assert.h>
#include <string.h>

#define TILE_M_COUNT 12
enum { TILE_M = TILE_M_COUNT };
#include "math/simd_neon.h"
#include "math/fast_gemm.h"
#include "math/fast_transposed.h"
#include "math/fast_gemv.h"
#include "math/fast_rows.h"
#include "math/fast_attention.h"

static const tke_kernel_set set = {
    .name = "neon",
    .isa = TKE_ISA_NEON,
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

const tke_kernel_set *tke_set_neon(void)
{
    return &set;
}

#else

const tke_kernel_set *tke_set_neon(void)
{
    return NULL;
}

#endif
