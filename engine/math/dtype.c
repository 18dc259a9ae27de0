/* dtype.c - conversions between stored numbers and tke_real. Exact where the target is wider,
 * rounded to nearest even where it is narrower. Touches only the buffers it is given. */
#include "math/dtype.h"

#include <assert.h>

float tke_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu;
    uint32_t fraction = h & 0x3ffu;
    if (exponent == 0x1f) /* inf, NaN (made quiet, as the hardware does) */
        return tke_bits_to_f32(sign | 0x7f800000u | (fraction << 13) | (fraction ? 0x400000u : 0));
    if (exponent != 0)
        return tke_bits_to_f32(sign | ((exponent + 112u) << 23) | (fraction << 13));
    float tiny = (float)fraction * 0x1p-24f; /* subnormal or zero: exact */
    return sign ? -tiny : tiny;
}

uint16_t tke_f32_to_f16(float x)
{
    uint32_t bits = tke_f32_to_bits(x);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((bits >> 13) & 0x3ffu));
    if (bits >= 0x477ff000u) /* 65520 and up round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (bits >= 0x38800000u) { /* normal: rebias, then round on the 13 bits that go */
        uint32_t kept = bits - (112u << 23);
        kept += 0xfffu + ((kept >> 13) & 1u);
        return (uint16_t)(sign | (kept >> 13));
    }
    /* Subnormal: adding 2^-1 puts the last kept bit at 2^-24, and the addition rounds. */
    float rounded = tke_bits_to_f32(bits) + 0.5f;
    return (uint16_t)(sign | (tke_f32_to_bits(rounded) - 0x3f000000u));
}

/* Tensors lie in files where a header of any length put them, so elements are copied out: the
 * compiler makes the same loads of it. */
static uint16_t load_half(const void *data, int64_t i)
{
    uint16_t h;
    memcpy(&h, (const char *)data + i * 2, sizeof h);
    return h;
}

tke_real tke_load(tke_dtype dtype, const void *data, int64_t i)
{
    float narrow;
    double wide;
    switch (dtype) {
    case TKE_F32:
        memcpy(&narrow, (const char *)data + i * 4, sizeof narrow);
        return narrow;
    case TKE_BF16:
        return tke_bf16_to_f32(load_half(data, i));
    case TKE_F16:
        return tke_f16_to_f32(load_half(data, i));
    default:
        break;
    }
    memcpy(&wide, (const char *)data + i * 8, sizeof wide);
    return (tke_real)wide;
}

void tke_widen(tke_dtype dtype, const void *from, size_t n, tke_real *to)
{
    assert((from && to) || !n);
    if (dtype == TKE_REAL) {
        memcpy(to, from, n * sizeof *to);
        return;
    }
    if (dtype == TKE_BF16) { /* the common one: a loop the compiler makes wide */
        for (size_t i = 0; i < n; i++)
            to[i] = tke_bf16_to_f32(load_half(from, (int64_t)i));
        return;
    }
    for (size_t i = 0; i < n; i++)
        to[i] = tke_load(dtype, from, (int64_t)i);
}

void tke_narrow(tke_dtype dtype, const tke_real *from, size_t n, void *to)
{
    assert((from && to) || !n);
    switch (dtype) {
    case TKE_F32:
        for (size_t i = 0; i < n; i++)
            ((float *)to)[i] = (float)from[i];
        return;
    case TKE_BF16:
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)to)[i] = tke_f32_to_bf16((float)from[i]);
        return;
    case TKE_F16:
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)to)[i] = tke_f32_to_f16((float)from[i]);
        return;
    default:
        break;
    }
    for (size_t i = 0; i < n; i++)
        ((double *)to)[i] = (double)from[i];
}
