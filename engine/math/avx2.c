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
#include "math/fast_set.h"
#include "base/processor.h"

static const tke_kernel_set set = FAST_SET("avx2", TKE_ISA_AVX2, gemm, NULL, NULL);

const tke_kernel_set *tke_set_avx2(void)
{
    if (!(tkc_processor() & TKC_HAS_AVX2))
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
