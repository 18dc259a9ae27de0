/* format_q5_1.c - Q5_1: Q4_1 with a fifth bit of each number in a word of its own. */
#include <string.h>
#include "math/format_block.h"

FORMAT_INLINE void block(const uint8_t *restrict b, uint16_t *restrict to)
{
    float d = format_half(b), least = format_half(b + 2);
    uint32_t high = format_u16(b + 4) | (uint32_t)format_u16(b + 6) << 16;
    for (int i = 0; i < 16; i++) {
        to[i] = format_round((float)(int)((b[8 + i] & 15u) | (high >> i & 1u) << 4) * d + least);
        to[i + 16] =
            format_round((float)(int)((b[8 + i] >> 4) | (high >> (i + 16) & 1u) << 4) * d + least);
    }
}

/* From the lowest number to the highest. */
static bool pack(const float *x, uint8_t *b, float *factor)
{
    float low, high;
    (void)factor;
    format_range(x, &low, &high);
    float scale = (high - low) / 31, inverse = scale > 0 ? 1 / scale : 0;
    memset(b + 4, 0, 20);
    for (int i = 0; i < 32; i++) {
        int q = (int)((x[i] - low) * inverse + 0.5f);
        q = q > 31 ? 31 : q;
        b[4 + i / 8] |= (uint8_t)(q >> 4 << i % 8);
        b[8 + i % 16] |= (uint8_t)((q & 15) << i / 16 * 4);
    }
    return format_put_half(b, scale) && format_put_half(b + 2, low);
}

FORMAT_OF_BLOCKS(tke_format_q5_1, "Q5_1", 7, 32, 24, block, pack)
