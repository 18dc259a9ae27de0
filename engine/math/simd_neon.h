/* simd_neon.h - the vector operations that the fast kernels are written in, for NEON (every arm64
 * processor has it). See simd_avx512.h for what each must do.
 *
 * Included by neon.c and neonbf16.c only. Where a processor of another kind differs in what becomes of NaN (v_max,
 * v_min), the comparison is spelled out, so that NaN passes through the kernels in the same way.
 */
#ifndef TKE_KERNELS_SIMD_NEON_H
#define TKE_KERNELS_SIMD_NEON_H

#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>

/* See simd_avx512.h. */
#define TILE_CODE __attribute__((no_sanitize("address", "undefined", "thread")))
#define INLINE    static inline __attribute__((always_inline)) TILE_CODE

enum { VW = 4, V_MASKS = 0 };
typedef float32x4_t vf;
typedef uint32x4_t vi;

/* All ones in the first n lanes. */
INLINE vi first_of(int64_t n)
{
    static const uint32_t ones[8] = { ~0u, ~0u, ~0u, ~0u };
    return vld1q_u32(ones + 4 - n);
}
INLINE vi bits_of(vf x)
{
    return vreinterpretq_u32_f32(x);
}
INLINE vf v_from_bits(vi x)
{
    return vreinterpretq_f32_u32(x);
}

INLINE vf v_zero(void)
{
    return vdupq_n_f32(0);
}
INLINE vf v_set(float x)
{
    return vdupq_n_f32(x);
}
INLINE vf v_load(const float *p)
{
    return vld1q_f32(p);
}
/* Parts by lanes: a call of memcpy would clobber the sums of a tile. */
INLINE vi vi_load_part(const void *from, int64_t words)
{
    const uint32_t *p = from;
    vi x = vdupq_n_u32(0);
    if (words == VW)
        return vld1q_u32(p);
    x = words > 0 ? vld1q_lane_u32(p, x, 0) : x;
    x = words > 1 ? vld1q_lane_u32(p + 1, x, 1) : x;
    return words > 2 ? vld1q_lane_u32(p + 2, x, 2) : x;
}
INLINE vf v_load_part(const float *p, int64_t n)
{
    return v_from_bits(vi_load_part(p, n));
}
INLINE void v_store(float *p, vf x)
{
    vst1q_f32(p, x);
}
INLINE void v_store_part(float *p, int64_t n, vf x)
{
    if (n == VW) {
        vst1q_f32(p, x);
        return;
    }
    if (n > 0)
        vst1q_lane_f32(p, x, 0);
    if (n > 1)
        vst1q_lane_f32(p + 1, x, 1);
    if (n > 2)
        vst1q_lane_f32(p + 2, x, 2);
}
INLINE vf v_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}
INLINE vf v_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}
INLINE vf v_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}
INLINE vf v_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}
INLINE vf v_sqrt(vf a)
{
    return vsqrtq_f32(a);
}
INLINE vf v_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}
INLINE vf v_fnma(vf a, vf b, vf c)
{
    return vfmsq_f32(c, a, b);
}
INLINE vf v_max(vf a, vf b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
INLINE vf v_min(vf a, vf b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
INLINE vf v_abs(vf a)
{
    return vabsq_f32(a);
}
INLINE vf v_if_negative(vf x, vf a, vf b)
{
    return vbslq_f32(vcltzq_f32(x), a, b);
}
INLINE vf v_first(int64_t n, vf a, vf b)
{
    return vbslq_f32(first_of(n), a, b);
}
INLINE bool v_any_nan(vf a)
{
    return vminvq_u32(vceqq_f32(a, a)) == 0;
}
INLINE vf v_round(vf a)
{
    return vrndnq_f32(a);
}
/* 2^n as a float, for n of a normal number. */
INLINE vf power_of_two(int32x4_t n)
{
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}
/* Two factors, so that the result may be a subnormal or infinite. */
INLINE vf v_scale2(vf p, vf n)
{
    int32x4_t whole = vcvtnq_s32_f32(n), half = vshrq_n_s32(whole, 1);
    return vmulq_f32(vmulq_f32(p, power_of_two(half)), power_of_two(vsubq_s32(whole, half)));
}
/* Lanes in halves: 2 apart, then 1. */
INLINE float v_sum(vf x)
{
    float32x2_t half = vadd_f32(vget_low_f32(x), vget_high_f32(x));
    return vget_lane_f32(half, 0) + vget_lane_f32(half, 1);
}
INLINE float v_largest(vf x)
{
    vf half = v_max(x, vextq_f32(x, x, 2));
    return vgetq_lane_f32(v_max(half, vextq_f32(half, half, 1)), 0);
}

INLINE vf widen_bf16(uint16x4_t x)
{
    return v_from_bits(vshll_n_u16(x, 16));
}
INLINE vf widen_f16(uint16x4_t x)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(x));
}
INLINE uint16x4_t load_16_part(const uint16_t *p, int64_t n)
{
    uint16x4_t x = vdup_n_u16(0);
    if (n == VW)
        return vld1_u16(p);
    x = n > 0 ? vld1_lane_u16(p, x, 0) : x;
    x = n > 1 ? vld1_lane_u16(p + 1, x, 1) : x;
    return n > 2 ? vld1_lane_u16(p + 2, x, 2) : x;
}
INLINE vf v_load_bf16(const uint16_t *p)
{
    return widen_bf16(vld1_u16(p));
}
INLINE vf v_load_f16(const uint16_t *p)
{
    return widen_f16(vld1_u16(p));
}
INLINE vf v_load_bf16_part(const uint16_t *p, int64_t n)
{
    return widen_bf16(load_16_part(p, n));
}
INLINE vf v_load_f16_part(const uint16_t *p, int64_t n)
{
    return widen_f16(load_16_part(p, n));
}
INLINE vf v_round_bf16(vf x)
{
    vi bits = bits_of(x), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    vi up = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    vi quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    vi out = vbslq_u32(vceqq_f32(x, x), up, quiet);
    return v_from_bits(vandq_u32(out, vdupq_n_u32(0xffff0000u)));
}

typedef struct vd {
    float64x2_t lo, hi;
} vd;
INLINE vd vd_zero(void)
{
    return (vd){ vdupq_n_f64(0), vdupq_n_f64(0) };
}
INLINE vd vd_add_square(vd s, vf x)
{
    float64x2_t lo = vcvt_f64_f32(vget_low_f32(x)), hi = vcvt_high_f64_f32(x);
    return (vd){ vfmaq_f64(s.lo, lo, lo), vfmaq_f64(s.hi, hi, hi) };
}
INLINE double vd_sum(vd s)
{
    float64x2_t both = vaddq_f64(s.lo, s.hi);
    return vgetq_lane_f64(both, 0) + vgetq_lane_f64(both, 1);
}

INLINE vi join(uint64x2_t x)
{
    return vreinterpretq_u32_u64(x);
}
INLINE uint64x2_t pairs(vi x)
{
    return vreinterpretq_u64_u32(x);
}
INLINE void v_transpose(vi r[4])
{
    vi a = vtrn1q_u32(r[0], r[1]), b = vtrn2q_u32(r[0], r[1]);
    vi c = vtrn1q_u32(r[2], r[3]), d = vtrn2q_u32(r[2], r[3]);
    r[0] = join(vtrn1q_u64(pairs(a), pairs(c)));
    r[1] = join(vtrn1q_u64(pairs(b), pairs(d)));
    r[2] = join(vtrn2q_u64(pairs(a), pairs(c)));
    r[3] = join(vtrn2q_u64(pairs(b), pairs(d)));
}

INLINE vi vi_zero(void)
{
    return vdupq_n_u32(0);
}
INLINE vi vi_load(const void *p)
{
    return vreinterpretq_u32_u8(vld1q_u8(p));
}
INLINE void vi_store(void *p, vi x)
{
    vst1q_u8(p, vreinterpretq_u8_u32(x));
}
INLINE vf v_set_bf16(const uint16_t *p)
{
    return widen_bf16(vld1_dup_u16(p));
}
INLINE vf v_pair_first(vi pairs_of_bf16)
{
    return v_from_bits(vshlq_n_u32(pairs_of_bf16, 16));
}
INLINE vf v_pair_second(vi pairs_of_bf16)
{
    return v_from_bits(vandq_u32(pairs_of_bf16, vdupq_n_u32(0xffff0000u)));
}

#endif
