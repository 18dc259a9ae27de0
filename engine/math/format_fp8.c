/* format_fp8.c - FP8 (e4m3) with a factor for each square of 128 x 128 numbers. */
#include "math/format_block.h"

enum { SIDE = 128 };

/* 1 sign, 4 bits of exponent (bias 7), 3 of fraction; all ones are NaN, there is no infinity. */
FORMAT_INLINE float value_of(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, rest = code & 0x7fu;
    float x = tke_bits_to_f32(rest << 20) * 0x1p120f; /* moves the exponent; exact */
    uint32_t bits = rest == 0x7fu ? 0x7fc00000u : tke_f32_to_bits(x);
    return tke_bits_to_f32(bits | sign);
}

FORMAT_INLINE void unpack(const tke_matrix *m, int64_t row, int64_t at, int64_t n, uint16_t *to)
{
    const uint8_t *codes = (const uint8_t *)m->data + row * m->ld + at;
    const float *factors = m->factors + row / SIDE * ((m->ld + SIDE - 1) / SIDE);
    for (int64_t i = 0; i < n;) {
        float factor = factors[(at + i) / SIDE];
        int64_t end = ((at + i) / SIDE + 1) * SIDE - at;
        for (end = end < n ? end : n; i < end; i++)
            to[i] = format_round(value_of(codes[i]) * factor);
    }
}

FORMAT_SETS(tke_format_fp8, "FP8", 1, 1, unpack, NULL)
