/* cuda_bits.cuh - bits of packed codes in place. */
#ifndef TKE_CUDA_BITS_CUH
#define TKE_CUDA_BITS_CUH

#include "cuda/cuda_warp.cuh"

/* a & b | c in one instruction, which the compiler does not find where two of them are constants. */
DEVICE uint32_t and_or(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t x;
    asm("lop3.b32 %0,%1,%2,%3,0xea;" : "=r"(x) : "r"(a), "r"(b), "r"(c));
    return x;
}

#endif
