/* format_iq4_nl.c - IQ4_NL: Q4_0 with a table of unevenly spaced values. */
#include "math/format_block.h"

FORMAT_INLINE void block(const uint8_t *restrict b, uint16_t *restrict to)
{
    static const float values[16] = { -127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113 };
    float d = format_half(b);
    for (int i = 0; i < 16; i++) {
        to[i] = format_round(d * values[b[2 + i] & 15]);
        to[i + 16] = format_round(d * values[b[2 + i] >> 4]);
    }
}

FORMAT_OF_BLOCKS(tke_format_iq4_nl, "IQ4_NL", 20, 32, 18, block, NULL)
