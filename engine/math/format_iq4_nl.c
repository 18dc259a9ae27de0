/* format_iq4_nl.c - IQ4_NL: Q4_0 with a table of unevenly spaced values. */
#include "math/format_search.h"

static const float values[16] = { -127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113 };

FORMAT_INLINE void block(const uint8_t *restrict b, uint16_t *restrict to)
{
    float d = format_half(b);
    for (int i = 0; i < 16; i++) {
        to[i] = format_round(d * values[b[2 + i] & 15]);
        to[i + 16] = format_round(d * values[b[2 + i] >> 4]);
    }
}

static int nearest(float x)
{
    int q = 0;
    while (q < 15 && x > (values[q] + values[q + 1]) / 2)
        q++;
    return q;
}

/* The largest magnitude lies near either end; least squares as in format_search.h. */
static bool pack(const float *x, uint8_t *b, float *factor)
{
    float most = format_most(x), scale = 0, best = 0;
    (void)factor;
    for (int k = 0; k <= 2 * FORMAT_TRIES && fabsf(most) > 0; k++) {
        for (int sign = -1; sign <= 1; sign += 2) {
            float inverse = (float)sign * (135.0f - 3.0f * (float)k) / most, xv = 0, vv = 0;
            for (int i = 0; i < 32; i++) {
                float v = values[nearest(x[i] * inverse)];
                xv += x[i] * v;
                vv += v * v;
            }
            if (xv * xv > best * vv) {
                best = xv * xv / vv;
                scale = xv / vv;
            }
        }
    }
    bool fits = format_put_half(b, scale);
    float d = format_half(b), inverse = d != 0 ? 1 / d : 0;
    for (int i = 0; i < 16; i++)
        b[2 + i] = (uint8_t)(nearest(x[i] * inverse) | nearest(x[i + 16] * inverse) << 4);
    return fits;
}

FORMAT_OF_BLOCKS(tke_format_iq4_nl, "IQ4_NL", 20, 32, 18, block, pack)
