/* avx512.c - the kernel set for AVX-512: the fast kernels in vectors of 16. Compiled for its target
 * whatever the build's flags; called only if the processor supports it. */
#include "math/kernel_set.h"

#if defined(__x86_64__) && !defined(TKE_REAL_DOUBLE)

#include <assert.h>
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
#include "math/simd_avx512.h"
#include "math/fast_set.h"
#include "base/processor.h"

static const tke_kernel_set plain_set = FAST_SET("avx512", TKE_ISA_AVX512, gemm, NULL, NULL);
/* The same bits, on processors that round to bf16. */
static const tke_kernel_set newer_set =
    FAST_SET("avx512", TKE_ISA_AVX512, gemm, tke_unpack_avx512bf16, tke_packed_few_avx512bf16);
static const tke_kernel_set bf16_set = FAST_SET("avx512+bf16", TKE_ISA_AVX512, tke_gemm_avx512bf16,
                                                tke_unpack_avx512bf16, tke_packed_few_avx512bf16);

void tke_gemm_avx512(const tke_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                     void *scratch)
{
    gemm(g, m0, m1, n0, n1, scratch);
}

const tke_kernel_set *tke_set_avx512(bool bf16)
{
    if (!(tkc_processor() & TKC_HAS_AVX512))
        return NULL;
    if (!(tkc_processor() & TKC_HAS_BF16))
        return &plain_set;
    return bf16 ? &bf16_set : &newer_set;
}

/* AMD's take twice the numbers in the same time. On Intel's they measured no gain. */
bool tke_avx512_fast_bf16(void)
{
    return (tkc_processor() & TKC_HAS_AMD) && tke_set_avx512(true) == &bf16_set;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

#else

bool tke_avx512_fast_bf16(void)
{
    return false;
}

const tke_kernel_set *tke_set_avx512(bool bf16)
{
    (void)bf16;
    return NULL;
}

#endif
