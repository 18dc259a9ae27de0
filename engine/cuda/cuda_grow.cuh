/* cuda_grow.cuh - gradients of low-rank factors: a chain over tokens that continues its accumulator, 16 tokens of one datum a step.
 */
#ifndef TKE_CUDA_GROW_CUH
#define TKE_CUDA_GROW_CUH

#include "cuda/cuda_chain.cuh"

enum { STEPS = 256 }; /* steps looked up at a time; with the tiles they fit into 99 KB of shared memory */

/* Continues an fp32 accumulator [rows][ld] over the tokens of a segment. */
template <typename S, bool SCALED>
DEVICE void grow(operand a, operand b, const tcu_step *steps, int n_steps, float scale, int rows, int columns, float *grads,
                 int64_t ld, bf16 *shared)
{
    float acc[S::MT][S::NT][4];
    tcu_step *near = (tcu_step *)(shared + S::BYTES / 2);
    a.steps = b.steps = near;
    each<S>(acc, [&](int i, int j, float *v) {
        for (int e = 0; e < 2; e++)
            v[e] = i < rows && j + e < columns ? grads[i * ld + j + e] : 0;
    });
    for (int first = 0; first < n_steps; first += STEPS) {
        int n = min(n_steps - first, (int)STEPS);
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += S::THREADS)
            near[i] = steps[first + i];
        __syncthreads();
        chain<S, SCALED>(acc, a, b, n * TCU_STEP_ROWS, scale, shared);
    }
    each<S>(acc, [&](int i, int j, float *v) {
        for (int e = 0; e < 2; e++)
            if (i < rows && j + e < columns)
                grads[i * ld + j + e] = v[e];
    });
}

typedef shape<32, 64, 1, 4, true, true, 128, 4> shape_a; /* loads many tokens ahead: the time grows with their number */
typedef shape<64, 32, 4, 1, true, true, 128, 4> shape_b;

#endif
