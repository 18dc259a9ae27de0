/* format_mxfp4.c - MXFP4: 32 numbers of 4 bits and the exponent of a power of two. GGUF files keep
 * the exponent in front of the codes and the first 16 numbers in the low halves; the folders of
 * gpt-oss keep exponents in a tensor of their own and neighbours in one byte. */
#include "math/format_block.h"

static const float codes[16] = { 0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                 -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f };

/* 2^(e - 128), with which a doubled code gives every value without overflow on the way. */
FORMAT_INLINE float half_scale(uint8_t e)
{
    return tke_bits_to_f32(e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23);
}

/* Here code 8 is 0, not -0. */
FORMAT_INLINE void block(const uint8_t *restrict b, uint16_t *restrict to)
{
    static const float doubled[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };
    float d = half_scale(b[0]);
    for (int i = 0; i < 16; i++) {
        to[i] = format_round(doubled[b[1 + i] & 15] * d);
        to[i + 16] = format_round(doubled[b[1 + i] >> 4] * d);
    }
}

FORMAT_OF_BLOCKS(tke_format_mxfp4_blocks, "MXFP4", 39, 32, 17, block, NULL)

/* ---- exponents apart ---- */

/* A table of the scale at hand: the values are exact in bf16. */
static void unpack(const tke_matrix *m, int64_t row, int64_t at, int64_t n, uint16_t *to)
{
    const uint8_t *bytes = (const uint8_t *)m->data + (row * m->ld + at) / 2;
    const uint8_t *scales = m->scales + (row * m->ld + at) / TKE_MXFP4_BLOCK;
    uint16_t table[16];
    int last = -1;
    assert(m->dtype == TKE_MXFP4 && at % TKE_MXFP4_BLOCK == 0 && n % TKE_MXFP4_BLOCK == 0);
    for (int64_t b = 0; b < n / TKE_MXFP4_BLOCK; b++, bytes += TKE_MXFP4_BLOCK / 2) {
        if (scales[b] != last) {
            float d = half_scale(scales[b]);
            last = scales[b];
            for (int i = 0; i < 16; i++)
                table[i] = format_round(2 * codes[i] * d);
        }
        for (int i = 0; i < TKE_MXFP4_BLOCK / 2; i++) {
            *to++ = table[bytes[i] & 15];
            *to++ = table[bytes[i] >> 4];
        }
    }
}

const tke_format tke_format_mxfp4 = { .name = "mxfp4",
                                      .gguf = TKE_NOT_IN_GGUF,
                                      .block = TKE_MXFP4_BLOCK,
                                      .block_bytes = TKE_MXFP4_BLOCK / 2,
                                      .unpack = { unpack, unpack, unpack, unpack } };
