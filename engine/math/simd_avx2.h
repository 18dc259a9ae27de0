/* simd_avx2.h - the vector operations that the fast kernels are written in, for AVX2, FMA, F16C.
 *
 * Included by avx2.c only, which sets the target before. See simd_avx512.h.
 */
#ifndef TKE_KERNELS_SIMD_AVX2_H
#define TKE_KERNELS_SIMD_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* TILE_CODE: unrolled so far that instrumenting it takes a compiler minutes. What it reads was
 * written by packing functions, which are instrumented. INLINE code is instrumented in the function
 * it is expanded into; it has the attribute so that a tile does not get instrumented code from it. */
#define TILE_CODE __attribute__((no_sanitize("address", "undefined", "thread")))
#define INLINE    static inline __attribute__((always_inline)) TILE_CODE

enum { VW = 8, V_MASKS = 1 };
typedef __m256 vf;
typedef __m256i vi;

/* All ones in the first n lanes. */
INLINE __m256i first_of(int64_t n)
{
    static const int32_t ones[16] = { -1, -1, -1, -1, -1, -1, -1, -1 };
    return _mm256_loadu_si256((const __m256i *)(const void *)(ones + 8 - n));
}

INLINE vf v_zero(void)
{
    return _mm256_setzero_ps();
}
INLINE vf v_set(float x)
{
    return _mm256_set1_ps(x);
}
INLINE vf v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
INLINE vf v_load_part(const float *p, int64_t n)
{
    return _mm256_maskload_ps(p, first_of(n));
}
INLINE void v_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}
INLINE void v_store_part(float *p, int64_t n, vf x)
{
    _mm256_maskstore_ps(p, first_of(n), x);
}
INLINE vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
INLINE vf v_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
INLINE vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
INLINE vf v_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
INLINE vf v_sqrt(vf a)
{
    return _mm256_sqrt_ps(a);
}
INLINE vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
INLINE vf v_fnma(vf a, vf b, vf c)
{
    return _mm256_fnmadd_ps(a, b, c);
}
INLINE vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
INLINE vf v_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
INLINE vf v_abs(vf a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
INLINE vf v_if_negative(vf x, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ));
}
INLINE vf v_first(int64_t n, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(first_of(n)));
}
INLINE bool v_any_nan(vf a)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)) != 0;
}
INLINE vf v_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* Two factors, so that the result may be a subnormal or infinite. */
INLINE vf v_scale2(vf p, vf n)
{
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    __m256i bias = _mm256_set1_epi32(127);
    __m256i e1 = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i e2 = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(e1)), _mm256_castsi256_ps(e2));
}
INLINE float v_sum(vf x)
{
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
INLINE float v_largest(vf x)
{
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

INLINE vf v_load_bf16(const uint16_t *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
INLINE vf v_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
INLINE vf v_load_bf16_part(const uint16_t *p, int64_t n)
{
    uint16_t copy[8] = { 0 };
    memcpy(copy, p, (size_t)n * sizeof *copy);
    return v_load_bf16(copy);
}
INLINE vf v_load_f16_part(const uint16_t *p, int64_t n)
{
    uint16_t copy[8] = { 0 };
    memcpy(copy, p, (size_t)n * sizeof *copy);
    return v_load_f16(copy);
}
INLINE vf v_round_bf16(vf x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256 quiet = _mm256_or_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x400000)));
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    __m256 out = _mm256_blendv_ps(_mm256_castsi256_ps(up), quiet, nan);
    return _mm256_and_ps(out, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000u)));
}

typedef struct vd {
    __m256d lo, hi;
} vd;
INLINE vd vd_zero(void)
{
    return (vd){ _mm256_setzero_pd(), _mm256_setzero_pd() };
}
INLINE vd vd_add_square(vd s, vf x)
{
    __m256d lo = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
    __m256d hi = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    return (vd){ _mm256_fmadd_pd(lo, lo, s.lo), _mm256_fmadd_pd(hi, hi, s.hi) };
}
INLINE double vd_sum(vd s)
{
    double lanes[4], sum = 0;
    _mm256_storeu_pd(lanes, _mm256_add_pd(s.lo, s.hi));
    for (int i = 0; i < 4; i++)
        sum += lanes[i];
    return sum;
}

INLINE void v_transpose(__m256i r[8])
{
    __m256i t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        u[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        u[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        u[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x31);
    }
}

INLINE vi vi_zero(void)
{
    return _mm256_setzero_si256();
}
INLINE vi vi_load(const void *p)
{
    return _mm256_loadu_si256(p);
}
INLINE void vi_store(void *p, vi x)
{
    _mm256_storeu_si256((__m256i *)p, x);
}
INLINE vi vi_load_part(const void *p, int64_t words)
{
    return _mm256_maskload_epi32(p, first_of(words));
}
/* One stored bf16 in every lane. The word that ends with it is read: p is not the first of its
 * array. */
INLINE vf v_set_bf16(const uint16_t *p)
{
    int32_t word;
    __builtin_memcpy(&word, p - 1, sizeof word);
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_set1_epi32(word), _mm256_set1_epi32((int)0xffff0000u)));
}
INLINE vf v_pair_first(vi pairs)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}
INLINE vf v_pair_second(vi pairs)
{
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u)));
}
INLINE vf v_from_bits(vi x)
{
    return _mm256_castsi256_ps(x);
}

#endif
