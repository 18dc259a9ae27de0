/* format_q4_1.c - Q4_1: 32 numbers of 4 bits, a scale and a least value in f16. */
#include "math/format_block.h"

FORMAT_INLINE void block(const uint8_t *b, float *x)
{
    float d = format_half(b), least = format_half(b + 2);
    for (int i = 0; i < 16; i++) {
        x[i] = (float)(b[4 + i] & 15) * d + least;
        x[i + 16] = (float)(b[4 + i] >> 4) * d + least;
    }
}

FORMAT_OF_BLOCKS(tke_format_q4_1, "Q4_1", 3, 32, 20, block)
