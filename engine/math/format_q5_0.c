/* format_q5_0.c - Q5_0: Q4_0 with a fifth bit of each number in a word of its own. */
#include "math/format_block.h"

FORMAT_INLINE void block(const uint8_t *restrict b, uint16_t *restrict to)
{
    float d = format_half(b);
    uint32_t high = format_u16(b + 2) | (uint32_t)format_u16(b + 4) << 16;
    for (int i = 0; i < 16; i++) {
        to[i] = format_round((float)((int)((b[6 + i] & 15u) | (high >> i & 1u) << 4) - 16) * d);
        to[i + 16] =
            format_round((float)((int)((b[6 + i] >> 4) | (high >> (i + 16) & 1u) << 4) - 16) * d);
    }
}

FORMAT_OF_BLOCKS(tke_format_q5_0, "Q5_0", 6, 32, 22, block, NULL)
