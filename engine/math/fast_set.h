/* fast_set.h - all fast kernels, and the table of a set made of them. Included by neon.c, avx2.c and
 * avx512.c after TILE_M and the simd header. */
#ifndef TKE_KERNELS_FAST_SET_H
#define TKE_KERNELS_FAST_SET_H

#include "math/fast_gemm.h"
#include "math/fast_transposed.h"
#include "math/fast_gemv.h"
#include "math/fast_rows.h"
#include "math/fast_attention.h"

/* Sets of one processor may differ in how they multiply. */
#define FAST_SET(NAME, ISA, GEMM, UNPACK, PACKED)                                                  \
    {                                                                                              \
        .name = NAME, .isa = ISA, .tile_m = TILE_M, .tile_n = TILE_N, .gemm = GEMM,                \
        .rmsnorm = rmsnorm, .rmsnorm_backward = rmsnorm_backward, .rope = rope, .swiglu = swiglu,  \
        .swiglu_backward = swiglu_backward, .attention = attention,                                \
        .attention_backward = attention_backward, .lse_update = lse_update,                        \
        .softmax_scaled = softmax_scaled, .sum_squares = sum_squares, .adam = adam,                \
        .unpack = UNPACK, .packed = PACKED,                                                        \
    }

#endif
