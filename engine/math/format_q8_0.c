/* format_q8_0.c - Q8_0: 32 signed bytes and a scale in f16. */
#include "math/format_block.h"

FORMAT_INLINE void block(const uint8_t *restrict b, uint16_t *restrict to)
{
    float d = format_half(b);
    for (int i = 0; i < 32; i++)
        to[i] = format_round((float)(int8_t)b[2 + i] * d);
}

FORMAT_OF_BLOCKS(tke_format_q8_0, "Q8_0", 8, 32, 34, block)
