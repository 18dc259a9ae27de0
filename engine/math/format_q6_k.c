/* format_q6_k.c - Q6_K: 256 numbers of 6 bits around 32 (four bits of each here, two there), sixteen
 * signed scales and an f16 that scales those. */
#include "math/format_block.h"

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

FORMAT_OF_BLOCKS(tke_format_q6_k, "Q6_K", 14, 256, 210, block, NULL)
