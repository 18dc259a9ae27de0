/* format_q4_k.c - Q4_K: 256 numbers of 4 bits in eight parts, each with a 6-bit scale and a 6-bit
 * least value, which two f16 scale. */
#include "math/format_scales.h"

FORMAT_INLINE void block(const uint8_t *restrict b, uint16_t *restrict to)
{
    float d = format_half(b), dmin = format_half(b + 2);
    for (int part = 0; part < 8; part++, to += 32) {
        const uint8_t *q = b + 16 + part / 2 * 32;
        float scale = d, least = dmin;
        int shift = part % 2 * 4;
        format_scales(b + 4, part, &scale, &least);
        for (int i = 0; i < 32; i++)
            to[i] = format_round(scale * (float)(q[i] >> shift & 15) - least);
    }
}

static bool pack(const float *x, uint8_t *b, float *factor)
{
    uint8_t q[256];
    (void)factor;
    if (!format_pack_parts(x, 15, b, q))
        return false;
    for (int i = 0; i < 128; i++)
        b[16 + i] = (uint8_t)(q[i / 32 * 64 + i % 32] | q[i / 32 * 64 + 32 + i % 32] << 4);
    return true;
}

FORMAT_OF_BLOCKS(tke_format_q4_k, "Q4_K", 12, 256, 144, block, pack)
