/* format_q4_0.c - Q4_0: 32 numbers of 4 bits around 8 and a scale in f16. Low halves of the bytes
 * are the first 16 numbers. */
#include "math/format_block.h"

FORMAT_INLINE void block(const uint8_t *restrict b, uint16_t *restrict to)
{
    float d = format_half(b);
    for (int i = 0; i < 16; i++) {
        to[i] = format_round((float)((b[2 + i] & 15) - 8) * d);
        to[i + 16] = format_round((float)((b[2 + i] >> 4) - 8) * d);
    }
}

FORMAT_OF_BLOCKS(tke_format_q4_0, "Q4_0", 2, 32, 18, block)
