/* cuda_delta.cuh - what the kernels of the delta rule share: where things are, tiles in shared memory.
 *
 * A tile's rows have a stride of 4 or 8 more than a multiple of 32 words, so that operands of the matrix instruction come from
 * different banks: 4 where a lane's first index is the row, 8 where it is the column.
 */
#ifndef TKE_CUDA_DELTA_CUH
#define TKE_CUDA_DELTA_CUH

#include "cuda/cuda_delta.h"
#include "cuda/cuda_tf32.cuh"

#ifndef DELTA_THREADS /* a file may say how many threads its blocks have */
#define DELTA_THREADS 256
#endif
enum { CHUNK = TCU_DELTA_CHUNK, THREADS = DELTA_THREADS, WARPS = THREADS / 32, LD_PAIRS = CHUNK + 4 };

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

/* The same as fetch_part, number by number. */
template <int PADDED> static __device__ __noinline__ void fetch_odd(float *to, int stride, const float *from, int64_t ld, int rows, int columns)
{
    for (int i = threadIdx.x; i < rows * PADDED; i += THREADS) {
        int r = i / PADDED, c = i % PADDED;
        if (c < columns)
            copy4(to + r * stride + c, from + r * ld + c);
        else
            to[r * stride + c] = 0;
    }
}

/* rows x columns numbers, ld apart, to shared memory at `to`, stride apart; columns up to PADDED, a power of two from 4 to 128, become
 * zero where to has them, which is up to `room`. Copies of 16 bytes where `wide`: then columns are multiples of 4. */
template <int PADDED>
DEVICE void fetch_part(float *to, int stride, const float *from, int64_t ld, int rows, int columns, bool wide, int room = PADDED)
{
    const int LINE = PADDED / 4, STEP = THREADS / LINE;
    int r = threadIdx.x / LINE, c = threadIdx.x % LINE * 4;
    bool there = c < columns;
    if (!wide) {
        fetch_odd<PADDED>(to, stride, from, ld, rows, columns);
        return;
    }
    if (c >= room)
        return;
    const float *at = from + (there ? r * ld + c : 0);
    int64_t step = there ? STEP * ld : 0;
    to += r * stride + c;
#pragma unroll 4
    for (; r < rows; r += STEP, at += step, to += STEP * stride)
        copy16(to, at, there);
}

/* A row of keys; room for more than dk, which become zero, up to `padded`. */
DEVICE void fetch(float *to, int stride, const float *from, int64_t ld, int rows, int columns, int padded, bool wide)
{
    if (wide) {
        fetch_part<TCU_DELTA_KEYS>(to, stride, from, ld, rows, columns, true, padded);
        return;
    }
    for (int r = threadIdx.x / 32; r < rows; r += WARPS)
        for (int c = threadIdx.x % 32; c < padded; c += 32)
            if (c < columns)
                copy4(to + r * stride + c, from + r * ld + c);
            else
                to[r * stride + c] = 0;
}

static __device__ __noinline__ void clear_rows(float *to, int stride, int rows, int columns)
{
    for (int r = threadIdx.x / 32; r < rows; r += WARPS)
        for (int c = threadIdx.x % 32; c < columns; c += 32)
            to[r * stride + c] = 0;
}

DEVICE void clear(float *to, int stride, int rows, int columns)
{
    if (rows > 0 && columns > 0)
        clear_rows(to, stride, rows, columns);
}

/* put(row, column, 4 numbers) for rows [begin, end) of a block of COLUMNS columns in shared memory, a lane at a time. */
template <int COLUMNS, typename F> DEVICE void each_four(const float *from, int stride, int begin, int end, F put)
{
    const int LINE = COLUMNS / 4, STEP = THREADS / LINE;
    int c = threadIdx.x % LINE * 4;
#pragma unroll 2
    for (int r = begin + threadIdx.x / LINE; r < end; r += STEP)
        put(r, c, *(const float4 *)(from + r * stride + c));
}

/* The first n of four numbers, side by side in memory that is aligned where `wide`. */
DEVICE void store_four(float *to, float4 x, int n, bool wide)
{
    if (wide && n >= 4) {
        *(float4 *)to = x;
        return;
    }
    if (n > 0)
        to[0] = x.x;
    if (n > 1)
        to[1] = x.y;
    if (n > 2)
        to[2] = x.z;
    if (n > 3)
        to[3] = x.w;
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
