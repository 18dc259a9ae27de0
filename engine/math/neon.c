/* neon.c - the kernel set for NEON: the fast kernels in vectors of 4. A tile of 12 rows and two
 * vectors takes 24 of the 32 registers; with 14 rows compilers spill. */
#include "math/kernel_set.h"

#if defined(__aarch64__) && !defined(TKE_REAL_DOUBLE)

#include <assert.h>
#include <string.h>

#if !defined(__clang__) /* loads that gcc moves ahead take registers that hold a tile's sums */
#pragma GCC optimize("no-schedule-insns")
#endif

#define TILE_M_COUNT 12
enum { TILE_M = TILE_M_COUNT };
#include "math/simd_neon.h"
#include "math/fast_set.h"
#include "base/processor.h"

static const tke_kernel_set plain_set = FAST_SET("neon", TKE_ISA_NEON, gemm, NULL, NULL);
static const tke_kernel_set bf16_set = FAST_SET("neon+bf16", TKE_ISA_NEON, tke_gemm_neonbf16, NULL, NULL);

void tke_gemm_neon(const tke_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1, void *scratch)
{
    gemm(g, m0, m1, n0, n1, scratch);
}

const tke_kernel_set *tke_set_neon(bool bf16)
{
    return bf16 && (tkc_processor() & TKC_HAS_BF16) ? &bf16_set : &plain_set;
}

#else

const tke_kernel_set *tke_set_neon(bool bf16)
{
    (void)bf16;
    return NULL;
}

#endif
