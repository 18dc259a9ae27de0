/* format_fp8.c - FP8 (e4m3) with a factor for each square of 128 x 128 numbers. */
#include "math/format_block.h"

enum { SIDE = TKE_FP8_SIDE };

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

/* To the nearest of the codes, ties to even; |x| is at most 448 but for rounding. */
static uint8_t code_of(float x)
{
    float a = fabsf(x) < 448 ? fabsf(x) : 448;
    uint8_t sign = signbit(x) ? 0x80 : 0;
    if (a < 0x1p-6f) /* in steps of 2^-9; eight of them are the smallest normal number */
        return (uint8_t)(sign | (uint8_t)nearbyintf(a * 0x1p9f));
    uint32_t bits = tke_f32_to_bits(a);
    bits += 0x7ffffu + (bits >> 20 & 1u);
    return (uint8_t)(sign | ((bits >> 20) - (120u << 3)));
}

/* The square at columns `at` and on. */
static bool pack_square(const tke_matrix *m, int64_t row, int64_t end, int64_t at, uint8_t *codes,
                        float *factor)
{
    tke_real x[SIDE];
    float most = 0;
    int64_t n = m->ld - at < SIDE ? m->ld - at : SIDE;
    for (int64_t r = row; r < end; r++) {
        tke_matrix_row(m, r, at, n, x);
        for (int64_t i = 0; i < n; i++) {
            if (!isfinite(x[i]))
                return false;
            most = fabsf((float)x[i]) > most ? fabsf((float)x[i]) : most;
        }
    }
    *factor = most / 448;
    float inverse = *factor > 0 ? 1 / *factor : 0;
    for (int64_t r = row; r < end; r++) {
        tke_matrix_row(m, r, at, n, x);
        for (int64_t i = 0; i < n; i++)
            codes[r * m->ld + at + i] = code_of((float)x[i] * inverse);
    }
    return isfinite(inverse);
}

bool tke_fp8_pack(const tke_matrix *from, int64_t rows, int64_t band, uint8_t *codes,
                  float *factors)
{
    int64_t across = (from->ld + SIDE - 1) / SIDE, row = band * SIDE;
    int64_t end = rows - row < SIDE ? rows : row + SIDE;
    bool ok = true;
    for (int64_t c = 0; ok && c < across; c++)
        ok = pack_square(from, row, end, c * SIDE, codes, &factors[band * across + c]);
    return ok;
}

FORMAT_SETS(tke_format_fp8, "FP8", 1, 1, unpack, NULL)
