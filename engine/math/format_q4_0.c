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

static int code_of(float x)
{
    int q = (int)(x + 8.5f);
    return q > 15 ? 15 : q < 0 ? 0 : q;
}

/* The number of the largest magnitude becomes -8, whatever its sign. */
static bool pack(const float *x, uint8_t *b, float *factor)
{
    (void)factor;
    float most = format_most(x), scale = most / -8, inverse = most != 0 ? 1 / scale : 0;
    for (int i = 0; i < 16; i++)
        b[2 + i] = (uint8_t)(code_of(x[i] * inverse) | code_of(x[i + 16] * inverse) << 4);
    return format_put_half(b, scale);
}

FORMAT_OF_BLOCKS(tke_format_q4_0, "Q4_0", 2, 32, 18, block, pack)
