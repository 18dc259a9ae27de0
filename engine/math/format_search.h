/* format_search.h - factors that lose little, for packing. Included by format_*.c.
 *
 * Rounding to the largest magnitude is not the best that codes can do: a few scales near it are tried,
 * and for each the least squares say which factor fits the codes.
 */
#ifndef TKE_MATH_FORMAT_SEARCH_H
#define TKE_MATH_FORMAT_SEARCH_H

#include <math.h>
#include "math/format_block.h"

enum { FORMAT_TRIES = 9 }; /* on each side of the obvious scale */

static inline int format_code(float x, int least, int most)
{
    int q = (int)roundf(x);
    return q < least ? least : q > most ? most : q;
}

/* Codes from -top to top - 1, multiplied by the result, are nearest to the n numbers. */
static inline float format_scale(const float *x, int n, int top)
{
    float most = 0, scale = 0, best = 0;
    for (int i = 0; i < n; i++)
        most = fabsf(x[i]) > fabsf(most) ? x[i] : most;
    for (int k = -FORMAT_TRIES; k <= FORMAT_TRIES && fabsf(most) > 0; k++) {
        float inverse = -((float)top + 0.1f * (float)k) / most, xq = 0, qq = 0;
        for (int i = 0; i < n; i++) {
            float q = (float)format_code(x[i] * inverse, -top, top - 1);
            xq += x[i] * q;
            qq += q * q;
        }
        if (qq > 0 && xq * xq > best * qq) { /* the square of what is left is x x - xq xq / qq */
            best = xq * xq / qq;
            scale = xq / qq;
        }
    }
    return scale;
}

/* The same for scale * code - least, codes from 0 to top, least not below 0. */
static inline void format_line(const float *x, int n, int top, float *scale, float *least)
{
    float low = 0, high = x[0], best = INFINITY;
    for (int i = 0; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    *scale = 0;
    *least = -low;
    for (int k = -FORMAT_TRIES; k <= FORMAT_TRIES && high > low; k++) {
        float inverse = ((float)top + 0.1f * (float)k) / (high - low), error = 0;
        float sx = 0, sq = 0, sxq = 0, sqq = 0;
        for (int i = 0; i < n; i++) {
            float q = (float)format_code((x[i] - low) * inverse, 0, top);
            sx += x[i];
            sq += q;
            sxq += x[i] * q;
            sqq += q * q;
        }
        float det = (float)n * sqq - sq * sq;
        float a = det > 0 ? ((float)n * sxq - sx * sq) / det : 0;
        float b = det > 0 ? (sx * sqq - sq * sxq) / det : 0;
        if (b > 0 || !(det > 0)) {
            a = sqq > 0 ? sxq / sqq : 0;
            b = 0;
        }
        for (int i = 0; i < n; i++) {
            float off = a * (float)format_code((x[i] - low) * inverse, 0, top) + b - x[i];
            error += off * off;
        }
        if (a >= 0 && error < best) {
            best = error;
            *scale = a;
            *least = -b;
        }
    }
}

#endif
