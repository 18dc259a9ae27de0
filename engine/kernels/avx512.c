/* avx512.c - the kernel set for AVX-512, with bf16 dot products where the processor has them. */
#include "kernels/set.h"

const tke_kernel_set *tke_set_avx512(bool bf16)
{
    (void)bf16;
    return NULL;
}
