/* format_q4_1.c - Q4_1: 32 numbers of 4 bits, a scale and a least value in f16. */
#include "math/format_block.h"

FORMAT_INLINE void block(const uint8_t *restrict b, uint16_t *restrict to)
{
    float d = format_half(b), least = format_half(b + 2);
    for (int i = 0; i < 16; i++) {
        to[i] = format_round((float)(b[4 + i] & 15) * d + least);
        to[i + 16] = format_round((float)(b[4 + i] >> 4) * d + least);
    }
}

/* From the lowest number to the highest. */
static bool pack(const float *x, uint8_t *b, float *factor)
{
    float low, high;
    (void)factor;
    format_range(x, &low, &high);
    float scale = (high - low) / 15, inverse = scale > 0 ? 1 / scale : 0;
    for (int i = 0; i < 16; i++) {
        int q = (int)((x[i] - low) * inverse + 0.5f), p = (int)((x[i + 16] - low) * inverse + 0.5f);
        b[4 + i] = (uint8_t)((q > 15 ? 15 : q) | (p > 15 ? 15 : p) << 4);
    }
    return format_put_half(b, scale) && format_put_half(b + 2, low);
}

FORMAT_OF_BLOCKS(tke_format_q4_1, "Q4_1", 3, 32, 20, block, pack)
