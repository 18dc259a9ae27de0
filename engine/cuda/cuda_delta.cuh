/* cuda_delta.cuh - what the kernels of the delta rule share: where things are, tiles in shared memory.
 *
 * A tile's rows have a stride of 4 or 8 more than a multiple of 32 words, so that operands of the matrix instruction come from
 * different banks: 4 where a lane's first index is the row, 8 where it is the column.
 */
#ifndef TKE_CUDA_DELTA_CUH
#define TKE_CUDA_DELTA_CUH

#include "cuda/cuda_delta.h"
#include "cuda/cuda_tf32.cuh"

enum { CHUNK = TCU_DELTA_CHUNK, THREADS = 256, WARPS = THREADS / 32, LD_PAIRS = CHUNK + 4 };

DEVICE int pad16(int n)
{
    return (n + 15) & ~15;
}

typedef struct slot_parts { /* of a sequence's slot */
    float *k, *s, *n;       /* [64][key heads dk], [value heads][dk][dv], [64][value heads dv] */
    double *sums;           /* [64][value heads] */
} slot_parts;

static inline __host__ __device__ size_t slot_numbers(const tcu_delta_shape &s, size_t *k, size_t *state)
{
    *k = (size_t)CHUNK * s.n_key_heads * s.dk;
    *state = (size_t)s.n_value_heads * s.dk * s.dv;
    return *k + *state + (size_t)CHUNK * s.n_value_heads * s.dv;
}

DEVICE slot_parts slot_of(const tcu_delta_rule &p, int slot)
{
    size_t k, state;
    slot_numbers(p.of, &k, &state);
    slot_parts at;
    at.sums = (double *)(p.slots + slot * p.stride);
    at.k = (float *)(at.sums + CHUNK * p.of.n_value_heads);
    at.s = at.k + k;
    at.n = at.s + state;
    return at;
}

typedef struct place { /* rows [begin, end) of a chunk are in the batch, at row origin + i */
    int origin, begin, end;
} place;

DEVICE place place_of(const tcu_piece &piece)
{
    int begin = piece.position % CHUNK;
    return { piece.row - begin, begin, begin + piece.n };
}

/* rows x columns numbers, ld apart, to shared memory at `to`, stride apart, a warp a row; columns up to `padded` become zero. Copies of
 * 16 bytes where `wide`: then columns and padded are multiples of 4. */
DEVICE void fetch(float *to, int stride, const float *from, int64_t ld, int rows, int columns, int padded, bool wide)
{
    int lane = threadIdx.x % 32;
    for (int r = threadIdx.x / 32; r < rows; r += WARPS) {
        const float *row = from + r * ld;
        float *put = to + r * stride;
        if (wide) {
            for (int c = lane * 4; c < padded; c += 128)
                copy16(put + c, c < columns ? row + c : from, c < columns);
            continue;
        }
        for (int c = lane; c < padded; c += 32)
            if (c < columns)
                copy4(put + c, row + c);
            else
                put[c] = 0;
    }
}

/* The same for rows of PADDED numbers, a power of two. */
template <int PADDED> DEVICE void fetch_part(float *to, int stride, const float *from, int64_t ld, int rows, int columns, bool wide)
{
    if (!wide || PADDED > 64) {
        fetch(to, stride, from, ld, rows, columns, PADDED, wide);
        return;
    }
    for (int i = threadIdx.x; i < rows * (PADDED / 4); i += THREADS) {
        int r = i / (PADDED / 4), c = i % (PADDED / 4) * 4;
        copy16(to + r * stride + c, c < columns ? from + r * ld + c : from, c < columns);
    }
}

DEVICE void clear(float *to, int stride, int rows, int columns)
{
    for (int r = threadIdx.x / 32; r < rows; r += WARPS)
        for (int c = threadIdx.x % 32; c < columns; c += 32)
            to[r * stride + c] = 0;
}

/* Rows that will be read soon enter the second cache: up to THREADS lines of 128 bytes. */
template <typename T> DEVICE void expect(const T *from, int64_t ld, int rows, int columns)
{
    int line = 128 / sizeof(T), lines = (columns + line - 1) / line, r = threadIdx.x / lines, c = threadIdx.x % lines * line;
    if (r < rows)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + r * ld + c));
}

DEVICE bool wide_rows(const tcu_delta_shape &s)
{
    return (s.dk | s.dv) % 4 == 0;
}

template <typename K> static int allow_shared(K kernel, size_t bytes)
{
    return cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

#endif
