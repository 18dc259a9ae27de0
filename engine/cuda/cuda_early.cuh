/* cuda_early.cuh - launches that are prepared before the launch before them has ended. */
#ifndef TKE_CUDA_EARLY_CUH
#define TKE_CUDA_EARLY_CUH

#include "cuda/cuda_warp.cuh"

/* The next launch, if it is an early one, may be prepared from here on. */
DEVICE void let_next_prepare(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* A launch that may be prepared while the one before still runs: the kernel waits for its end (griddepcontrol.wait) before it reads what
 * launches write, and before it writes. */
template <typename... P, typename... A>
static int launch_early(void (*kernel)(P...), dim3 grid, int threads, size_t shared, cudaStream_t stream, A... args)
{
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t c = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = grid;
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = shared;
    c.stream = stream;
    c.attrs = &early;
    c.numAttrs = 1;
    return cudaLaunchKernelEx(&c, kernel, P(args)...);
}

#endif
