/* avx2.c - the kernel set for AVX2 and FMA. */
#include "kernels/set.h"

const tke_kernel_set *tke_set_avx2(void)
{
    return NULL;
}
