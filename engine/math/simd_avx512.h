/* simd_avx512.h - the vector operations that the fast kernels are written in, for AVX-512.
 *
 * Included by avx512.c only, which sets the target before. simd_avx2.h has the same functions for
 * vectors of half the width. "part" functions touch the first n numbers only (0 <= n <= VW); what is not
 * loaded is 0.
 */
#ifndef TKE_KERNELS_SIMD_AVX512_H
#define TKE_KERNELS_SIMD_AVX512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

/* TILE_CODE: unrolled so far that instrumenting it takes a compiler minutes. What it reads was
 * written by packing functions, which are instrumented. INLINE code is instrumented in the function
 * it is expanded into; it has the attribute so that a tile does not get instrumented code from it. */
#define TILE_CODE __attribute__((no_sanitize("address", "undefined", "thread")))
#define INLINE    static inline __attribute__((always_inline)) TILE_CODE

enum { VW = 16, V_MASKS = 1 }; /* numbers in a vector; are parts of it loaded like all? */
typedef __m512 vf;

INLINE __mmask16 first_of(int64_t n)
{
    return (__mmask16)((1u << n) - 1u);
}

INLINE vf v_zero(void)
{
    return _mm512_setzero_ps();
}
INLINE vf v_set(float x)
{
    return _mm512_set1_ps(x);
}
INLINE vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
INLINE vf v_load_part(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps(first_of(n), p);
}
INLINE void v_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}
INLINE void v_store_part(float *p, int64_t n, vf x)
{
    _mm512_mask_storeu_ps(p, first_of(n), x);
}
INLINE vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
INLINE vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
INLINE vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
INLINE vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
INLINE vf v_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}
/* a * b + c, and c - a * b, rounded once. */
INLINE vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
INLINE vf v_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}
/* The second one if either is NaN. */
INLINE vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
INLINE vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
INLINE vf v_abs(vf a)
{
    return _mm512_abs_ps(a);
}
/* x < 0 ? a : b */
INLINE vf v_if_negative(vf x, vf a, vf b)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), b, a);
}
/* The first n lanes of a, the others of b. */
INLINE vf v_first(int64_t n, vf a, vf b)
{
    return _mm512_mask_blend_ps(first_of(n), b, a);
}
/* True if any lane is NaN. */
INLINE bool v_any_nan(vf a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0;
}
INLINE vf v_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* p * 2^n for whole n, overflow gives infinity, underflow a subnormal or 0. */
INLINE vf v_scale2(vf p, vf n)
{
    return _mm512_scalef_ps(p, n);
}
/* Lanes added in halves: 8 apart, 4, 2, 1. */
INLINE float v_sum(vf x)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
INLINE float v_largest(vf x)
{
    return _mm512_reduce_max_ps(x);
}

/* Stored 16-bit numbers, converted to fp32. */
INLINE vf v_load_bf16(const uint16_t *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
INLINE vf v_load_bf16_part(const uint16_t *p, int64_t n)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_of(n), p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
INLINE vf v_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
INLINE vf v_load_f16_part(const uint16_t *p, int64_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_of(n), p));
}
/* To bf16, ties to even; NaN made quiet. The results are the low halves of 32-bit lanes. */
INLINE __m512i round_to_bf16(vf x)
{
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    up = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_srli_epi32(up, 16);
}
INLINE vf v_round_bf16(vf x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(round_to_bf16(x), 16));
}

/* Sums in double. */
typedef struct vd {
    __m512d lo, hi;
} vd;
INLINE vd vd_zero(void)
{
    return (vd){ _mm512_setzero_pd(), _mm512_setzero_pd() };
}
INLINE vd vd_add_square(vd s, vf x)
{
    __m512d lo = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    __m512d hi = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    return (vd){ _mm512_fmadd_pd(lo, lo, s.lo), _mm512_fmadd_pd(hi, hi, s.hi) };
}
INLINE double vd_sum(vd s)
{
    double lanes[8], sum = 0;
    _mm512_storeu_pd(lanes, _mm512_add_pd(s.lo, s.hi));
    for (int i = 0; i < 8; i++)
        sum += lanes[i];
    return sum;
}

/* Rows become columns: lane j of r[i] and lane i of r[j] change places. */
INLINE void v_transpose(__m512i r[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

typedef __m512i vi;
INLINE vi vi_zero(void)
{
    return _mm512_setzero_si512();
}
/* 64 bytes, or the first n 32-bit words of them. */
INLINE vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
INLINE void vi_store(void *p, vi x)
{
    _mm512_storeu_si512(p, x);
}
INLINE vi vi_load_part(const void *p, int64_t words)
{
    return _mm512_maskz_loadu_epi32(first_of(words), p);
}
/* One stored bf16 in every lane. The word that ends with it is read: p is not the first of its
 * array. */
INLINE vf v_set_bf16(const uint16_t *p)
{
    int32_t word;
    __builtin_memcpy(&word, p - 1, sizeof word);
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_set1_epi32(word), _mm512_set1_epi32((int)0xffff0000u)));
}
/* Pairs of bf16 in 32-bit words: the first and the second of each, widened. */
INLINE vf v_pair_first(vi pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}
INLINE vf v_pair_second(vi pairs)
{
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u)));
}
INLINE vf v_from_bits(vi x)
{
    return _mm512_castsi512_ps(x);
}

#endif
