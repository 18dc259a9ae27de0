/* cuda_bars.cuh - barriers in shared memory that count arrivals and bytes of copies (compute capability 9.0).
 *
 * Addresses are those of shared memory. The functions are empty for other chips.
 */
#ifndef TKE_CUDA_BARS_CUH
#define TKE_CUDA_BARS_CUH

#include "cuda/cuda_warp.cuh"

DEVICE void make_barrier(uint32_t bar, int arrivals)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(bar), "r"(arrivals) : "memory");
#endif
}

/* Waits for the end of a phase (its parity). */
DEVICE void wait_for(uint32_t bar, uint32_t phase)
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred done;\nagain: mbarrier.try_wait.parity.shared::cta.b64 done,[%0],%1;\n@!done bra again;\n}" ::"r"(bar),
        "r"(phase)
        : "memory");
#endif
}

DEVICE void arrive(uint32_t bar)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(bar) : "memory");
#endif
}

DEVICE void expect(uint32_t bar, int bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(bar), "r"(bytes) : "memory");
#endif
}

/* Weights are read once a step: they leave the second cache first. */
DEVICE uint64_t read_once(void)
{
    uint64_t policy = 0;
#if __CUDA_ARCH__ >= 900
    asm("createpolicy.fractional.L2::evict_first.b64 %0,1.0;" : "=l"(policy));
#endif
    return policy;
}

#endif
