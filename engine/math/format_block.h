/* format_block.h - makes the unpackers of a format from one function for a block. Included by
 * format_*.c.
 *
 * The function is written once, in plain C over fp32 numbers, and compiled for each kernel set. Its
 * operations are rounded one by one (no contraction), so that all sets agree in every bit.
 */
#ifndef TKE_MATH_FORMAT_BLOCK_H
#define TKE_MATH_FORMAT_BLOCK_H

#include <assert.h>
#include <math.h>
#include "math/format.h"

#define FORMAT_INLINE static inline __attribute__((always_inline))

/* NaN has one form, so that no set depends on which operand a NaN came from. */
FORMAT_INLINE uint16_t format_round(float x)
{
    uint32_t bits = tke_f32_to_bits(x);
    uint16_t rounded = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    return (bits & 0x7fffffffu) > 0x7f800000u ? (uint16_t)0x7fc0u : rounded;
}

FORMAT_INLINE uint16_t format_u16(const uint8_t *b)
{
    return (uint16_t)(b[0] | b[1] << 8);
}

/* Writes a scale as f16; false: it is too large for one. */
static inline bool format_put_half(uint8_t *b, float scale)
{
    uint16_t half = tke_f32_to_f16(scale);
    b[0] = (uint8_t)half;
    b[1] = (uint8_t)(half >> 8);
    return (half & 0x7c00u) != 0x7c00u;
}

/* Of 32 numbers the one of the largest magnitude, with its sign; the first among equals. */
static inline float format_most(const float *x)
{
    float most = 0;
    for (int i = 0; i < 32; i++)
        most = fabsf(x[i]) > fabsf(most) ? x[i] : most;
    return most;
}

/* The lowest and the highest of 32 numbers. */
static inline void format_range(const float *x, float *low, float *high)
{
    *low = *high = x[0];
    for (int i = 0; i < 32; i++) {
        *low = x[i] < *low ? x[i] : *low;
        *high = x[i] > *high ? x[i] : *high;
    }
}

/* An f16 as fp32, exactly. */
FORMAT_INLINE float format_half(const uint8_t *b)
{
    uint32_t h = format_u16(b), sign = (h & 0x8000u) << 16, rest = (h & 0x7fffu) << 13;
    float x = tke_bits_to_f32(rest) * 0x1p112f; /* moves the exponent; exact */
    uint32_t bits = rest >= 0x0f800000u ? rest | 0x7f800000u : tke_f32_to_bits(x);
    return tke_bits_to_f32(bits | sign);
}

#if defined(__x86_64__) && !defined(TKE_REAL_DOUBLE)
#define FORMAT_AVX2   __attribute__((target("avx2")))
#define AVX512_TARGET "avx512f,avx512bw,avx512vl,avx512dq"
#if defined(__clang__)
#define FORMAT_AVX512 __attribute__((target(AVX512_TARGET)))
#else /* by itself gcc uses vectors of half the width */
#define FORMAT_AVX512 __attribute__((target(AVX512_TARGET ",prefer-vector-width=512")))
#endif
#else
#define FORMAT_AVX2
#define FORMAT_AVX512
#endif

/* A format of its own layout: FN is an unpacker. */
#define FORMAT_SET(NAME, TARGET, FN)                                                               \
    TARGET static void NAME(const tke_matrix *m, int64_t row, int64_t at, int64_t n, uint16_t *to) \
    {                                                                                              \
        FN(m, row, at, n, to);                                                                     \
    }
#define FORMAT_SETS(SYMBOL, NAME, BLOCK, BYTES, FN, PACK)                                          \
    FORMAT_SET(unpack_ref, , FN)                                                                   \
    FORMAT_SET(unpack_avx2, FORMAT_AVX2, FN)                                                       \
    FORMAT_SET(unpack_avx512, FORMAT_AVX512, FN)                                                   \
    const tke_format SYMBOL = { .name = (NAME),                                                    \
                                .gguf = TKE_NOT_IN_GGUF,                                           \
                                .block = (BLOCK),                                                  \
                                .block_bytes = (BYTES),                                            \
                                .unpack = { unpack_ref, unpack_ref, unpack_avx2, unpack_avx512 },  \
                                .pack = (PACK) };

#define FORMAT_UNPACKER(NAME, TARGET, BLOCK, BYTES, FN)                                            \
    TARGET static void NAME(const tke_matrix *m, int64_t row, int64_t at, int64_t n, uint16_t *to) \
    {                                                                                              \
        const uint8_t *b = (const uint8_t *)m->data + (row * m->ld + at) / (BLOCK) * (BYTES);      \
        assert((row * m->ld + at) % (BLOCK) == 0 && n % (BLOCK) == 0);                             \
        for (; n > 0; n -= (BLOCK), b += (BYTES), to += (BLOCK))                                   \
            FN(b, to);                                                                             \
    }

/* A format whose blocks hold everything: FN(const uint8_t *block, uint16_t *numbers). */
#define FORMAT_OF_BLOCKS(SYMBOL, NAME, GGUF, BLOCK, BYTES, FN, PACK)                               \
    FORMAT_UNPACKER(unpack_ref, , BLOCK, BYTES, FN)                                                \
    FORMAT_UNPACKER(unpack_avx2, FORMAT_AVX2, BLOCK, BYTES, FN)                                    \
    FORMAT_UNPACKER(unpack_avx512, FORMAT_AVX512, BLOCK, BYTES, FN)                                \
    const tke_format SYMBOL = { .name = (NAME),                                                    \
                                .gguf = (GGUF),                                                    \
                                .block = (BLOCK),                                                  \
                                .block_bytes = (BYTES),                                            \
                                .unpack = { unpack_ref, unpack_ref, unpack_avx2, unpack_avx512 },  \
                                .pack = (PACK) };

#endif
