/* format_q5_k.c - Q5_K: Q4_K with a fifth bit of each number; byte i holds those of the numbers i of
 * all eight parts. */
#include "math/format_scales.h"

FORMAT_INLINE void block(const uint8_t *restrict b, uint16_t *restrict to)
{
    float d = format_half(b), dmin = format_half(b + 2);
    for (int part = 0; part < 8; part++, to += 32) {
        const uint8_t *high = b + 16, *q = b + 48 + part / 2 * 32;
        float scale = d, least = dmin;
        int shift = part % 2 * 4;
        format_scales(b + 4, part, &scale, &least);
        for (int i = 0; i < 32; i++)
            to[i] = format_round(
                scale * (float)((q[i] >> shift & 15) | (high[i] >> part & 1) << 4) - least);
    }
}

static bool pack(const float *x, uint8_t *b, float *factor)
{
    uint8_t q[256];
    (void)factor;
    if (!format_pack_parts(x, 31, b, q))
        return false;
    memset(b + 16, 0, 32);
    for (int i = 0; i < 256; i++)
        b[16 + i % 32] |= (uint8_t)(q[i] >> 4 << i / 32);
    for (int i = 0; i < 128; i++)
        b[48 + i] =
            (uint8_t)((q[i / 32 * 64 + i % 32] & 15) | (q[i / 32 * 64 + 32 + i % 32] & 15) << 4);
    return true;
}

FORMAT_OF_BLOCKS(tke_format_q5_k, "Q5_K", 13, 256, 176, block, pack)
