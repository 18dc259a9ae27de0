/* format_q5_0.c - Q5_0: Q4_0 with a fifth bit of each number in a word of its own. */
#include <string.h>
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

/* The largest magnitude becomes -16 or 16, which is cut to 15. */
static bool pack(const float *x, uint8_t *b, float *factor)
{
    (void)factor;
    float most = format_most(x), scale = most / -16, inverse = most != 0 ? 1 / scale : 0;
    memset(b + 2, 0, 20);
    for (int i = 0; i < 32; i++) {
        int q = (int)(x[i] * inverse + 16.5f);
        q = q > 31 ? 31 : q < 0 ? 0 : q;
        b[2 + i / 8] |= (uint8_t)(q >> 4 << i % 8);
        b[6 + i % 16] |= (uint8_t)((q & 15) << i / 16 * 4);
    }
    return format_put_half(b, scale);
}

FORMAT_OF_BLOCKS(tke_format_q5_0, "Q5_0", 6, 32, 22, block, pack)
