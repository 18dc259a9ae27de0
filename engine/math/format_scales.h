/* format_scales.h - the eight 6-bit scales and least values of a block of Q4_K and Q5_K. */
#ifndef TKE_MATH_FORMAT_SCALES_H
#define TKE_MATH_FORMAT_SCALES_H

#include "math/format_block.h"

/* 12 bytes: four scales and four least values in the low 6 bits of the first eight; the other four of each have
 * their low halves in the last four and their upper two bits above the first ones. */
FORMAT_INLINE void format_scales(const uint8_t *s, int i, float *scale, float *least)
{
    int a = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
    int m = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | s[i] >> 6 << 4;
    *scale *= (float)a;
    *least *= (float)m;
}

#endif
