/* cuda_grow.cuh - gradients of low-rank factors: a chain over tokens that continues its accumulator, 16 tokens of one datum a step.
 */
#ifndef TKE_CUDA_GROW_CUH
#define TKE_CUDA_GROW_CUH

#include "cuda/cuda_chain.cuh"

enum { STEPS = 256 }; /* steps looked up at a time; with the tiles they fit into 99 KB of shared memory */

/* Continues an fp32 accumulator over the tokens of a segment. at(i, j): where its number in row i, column j is; NULL = nowhere. */
template <typename S, bool SCALED, typename F>
DEVICE void grow(operand a, operand b, const tcu_step *steps, int n_steps, float scale, bf16 *shared, F at)
{
    float acc[S::MT][S::NT][4];
    tcu_step *near = (tcu_step *)(shared + S::BYTES / 2);
    a.steps = b.steps = near;
    each<S>(acc, [&](int i, int j, float *v) {
        for (int e = 0; e < 2; e++) {
            const float *from = at(i, j + e);
            v[e] = from ? *from : 0;
        }
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
        for (int e = 0; e < 2; e++) {
            float *to = at(i, j + e);
            if (to)
                *to = v[e];
        }
    });
}

/* Places in a copy of A or of B of a master: rows m0 + i, columns n0 + j. */
typedef struct master_a {
    float *at;
    tcu_side side;
    int rank, in, m0, n0; /* in: with zeros */
    __device__ __forceinline__ float *operator()(int i, int j) const
    {
        int c = n0 + j < in ? tcu_side_place(side, n0 + j) : -1;
        return m0 + i < rank && c >= 0 ? at + (int64_t)(m0 + i) * tcu_side_count(side, in) + c : NULL;
    }
} master_a;

typedef struct master_b {
    float *at;
    tcu_side side;
    int rank, out, m0, n0;
    __device__ __forceinline__ float *operator()(int i, int j) const
    {
        int r = m0 + i < out ? tcu_side_place(side, m0 + i) : -1;
        return n0 + j < rank && r >= 0 ? at + (int64_t)r * rank + n0 + j : NULL;
    }
} master_b;

typedef shape<32, 64, 1, 4, true, true, 128, 4> shape_a; /* loads many tokens ahead: the time grows with their number */
typedef shape<64, 32, 4, 1, true, true, 128, 4> shape_b;

#endif
