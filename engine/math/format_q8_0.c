/* format_q8_0.c - Q8_0: 32 signed bytes and a scale in f16. */
#include "math/format_block.h"

FORMAT_INLINE void block(const uint8_t *restrict b, uint16_t *restrict to)
{
    float d = format_half(b);
    for (int i = 0; i < 32; i++)
        to[i] = format_round((float)(int8_t)b[2 + i] * d);
}

/* The largest magnitude becomes 127. */
static bool pack(const float *x, uint8_t *b, float *factor)
{
    float most = 0;
    (void)factor;
    for (int i = 0; i < 32; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    float scale = most / 127.0f, inverse = scale > 0 ? 1.0f / scale : 0;
    for (int i = 0; i < 32; i++)
        b[2 + i] = (uint8_t)(int8_t)roundf(x[i] * inverse);
    return format_put_half(b, scale);
}

FORMAT_OF_BLOCKS(tke_format_q8_0, "Q8_0", 8, 32, 34, block, pack)
