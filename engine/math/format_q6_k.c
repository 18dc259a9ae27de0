/* format_q6_k.c - Q6_K: 256 numbers of 6 bits around 32 (four bits of each here, two there), sixteen
 * signed scales and an f16 that scales those. */
#include <string.h>
#include "math/format_search.h"

FORMAT_INLINE void block(const uint8_t *restrict b, uint16_t *restrict to)
{
    float d = format_half(b + 208);
    for (int part = 0; part < 8; part++, to += 32) { /* of 32 numbers, four to a half */
        int half = part / 4, of = part % 4, shift = of / 2 * 4;
        const uint8_t *low = b + half * 64 + of % 2 * 32, *high = b + 128 + half * 32;
        const uint8_t *scales = b + 192 + part * 2;
        for (int i = 0; i < 32; i++) {
            int q = (low[i] >> shift & 15) | (high[i] >> (2 * of) & 3) << 4;
            to[i] = format_round(d * (float)(int8_t)scales[i / 16] * (float)(q - 32));
        }
    }
}

static bool pack(const float *x, uint8_t *b, float *factor)
{
    float scale[16], most = 0;
    (void)factor;
    for (int i = 0; i < 16; i++) {
        scale[i] = format_scale(x + 16 * i, 16, 32);
        most = fabsf(scale[i]) > most ? fabsf(scale[i]) : most;
    }
    if (!format_put_half(b + 208, most / 127))
        return false;
    float d = format_half(b + 208);
    memset(b, 0, 192);
    for (int i = 0; i < 16; i++) {
        int s = d > 0 ? format_code(scale[i] / d, -127, 127) : 0;
        b[192 + i] = (uint8_t)(int8_t)s;
        for (int k = 0; k < 16; k++) {
            int at = 16 * i + k, half = at / 128, of = at / 32 % 4;
            int q = s ? format_code(x[at] / (d * (float)s), -32, 31) + 32 : 32;
            b[half * 64 + of % 2 * 32 + at % 32] |= (uint8_t)((q & 15) << of / 2 * 4);
            b[128 + half * 32 + at % 32] |= (uint8_t)(q >> 4 << 2 * of);
        }
    }
    return true;
}

FORMAT_OF_BLOCKS(tke_format_q6_k, "Q6_K", 14, 256, 210, block, pack)
