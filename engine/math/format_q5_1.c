/* format_q5_1.c - Q5_1: Q4_1 with a fifth bit of each number in a word of its own. */
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

FORMAT_OF_BLOCKS(tke_format_q5_1, "Q5_1", 7, 32, 24, block, NULL)
