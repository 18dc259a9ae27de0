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

FORMAT_OF_BLOCKS(tke_format_q4_1, "Q4_1", 3, 32, 20, block, NULL)
