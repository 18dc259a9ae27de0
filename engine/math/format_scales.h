/* format_scales.h - the eight 6-bit scales and least values of a block of Q4_K and Q5_K. */
#ifndef TKE_MATH_FORMAT_SCALES_H
#define TKE_MATH_FORMAT_SCALES_H

#include <string.h>
#include "math/format_search.h"

/* 12 bytes: four scales and four least values in the low 6 bits of the first eight; the other four of each have
 * their low halves in the last four and their upper two bits above the first ones. */
FORMAT_INLINE void format_scales(const uint8_t *s, int i, float *scale, float *least)
{
    int a = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
    int m = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | s[i] >> 6 << 4;
    *scale *= (float)a;
    *least *= (float)m;
}

/* Packs 256 numbers as eight parts, each scale * code - least with factors of six bits: the head of a block, and
 * the codes, from 0 to top. False: a factor is too large. */
static inline bool format_pack_parts(const float *x, int top, uint8_t *b, uint8_t codes[256])
{
    float scale[8], least[8], scales = 0, leasts = 0;
    for (int part = 0; part < 8; part++) {
        format_line(x + 32 * part, 32, top, &scale[part], &least[part]);
        scales = scale[part] > scales ? scale[part] : scales;
        leasts = least[part] > leasts ? least[part] : leasts;
    }
    if (!format_put_half(b, scales / 63) || !format_put_half(b + 2, leasts / 63))
        return false;
    float d = format_half(b), dmin = format_half(b + 2);
    uint8_t *s = b + 4;
    memset(s, 0, 12);
    for (int i = 0; i < 8; i++) {
        int a = d > 0 ? format_code(scale[i] / d, 0, 63) : 0;
        int m = dmin > 0 ? format_code(least[i] / dmin, 0, 63) : 0;
        float step = d * (float)a, low = dmin * (float)m;
        s[i < 4 ? i : i + 4] |= (uint8_t)(i < 4 ? a : (a & 15) | (m & 15) << 4);
        s[i < 4 ? i + 4 : i - 4] |= (uint8_t)(i < 4 ? m : a >> 4 << 6);
        if (i >= 4)
            s[i] |= (uint8_t)(m >> 4 << 6);
        for (int k = 0; k < 32; k++)
            codes[32 * i + k] =
                (uint8_t)(step > 0 ? format_code((x[32 * i + k] + low) / step, 0, top) : 0);
    }
    return true;
}

#endif
