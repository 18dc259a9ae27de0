/* neon.c - the kernel set for NEON: the fast kernels in vectors of 4. A tile of 12 rows and two
 * vectors takes 24 of the 32 registers; with 14 rows compilers spill. */
#include "math/kernel_set.h"

#if defined(__aarch64__) && !defined(TKE_REAL_DOUBLE)

#include <assert.h>
#include <string.h>

#define TILE_M_COUNT 12
enum { TILE_M = TILE_M_COUNT };
#include "math/simd_neon.h"
#include "math/fast_set.h"

static const tke_kernel_set set = FAST_SET("neon", TKE_ISA_NEON, gemm, NULL, NULL);

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
