/* format_nf4.c - NF4 of bitsandbytes: 64 numbers of 4 bits, which name the quantiles of a normal
 * distribution, and their largest magnitude. The high half of a byte is the first number. */
#include "math/format_block.h"

enum { BLOCK = 64 };

const float tke_nf4_values[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

FORMAT_INLINE void unpack(const tke_matrix *m, int64_t row, int64_t at, int64_t n, uint16_t *to)
{
    const uint8_t *bytes = (const uint8_t *)m->data + (row * m->ld + at) / 2;
    const float *largest = m->factors + (row * m->ld + at) / BLOCK;
    assert((row * m->ld + at) % BLOCK == 0 && n % BLOCK == 0);
    for (; n > 0; n -= BLOCK, bytes += BLOCK / 2, to += BLOCK, largest++) {
        uint16_t table[16];
        for (int i = 0; i < 16; i++)
            table[i] = format_round(tke_nf4_values[i] * *largest);
        for (int i = 0; i < BLOCK / 2; i++) {
            to[2 * i] = table[bytes[i] >> 4];
            to[2 * i + 1] = table[bytes[i] & 15];
        }
    }
}

/* The nearest of the sixteen: which of their midpoints lie below. */
static uint8_t code_of(float x)
{
    static const float middles[15] = {
        -0.8480964004993439f,  -0.6106329262256622f,  -0.4599952697753906f,   -0.33967943489551544f,
        -0.23460740596055984f, -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f,
        0.1202552504837513f,   0.2035212516784668f,   0.2920137718319893f,    0.3893125355243683f,
        0.5016634166240692f,   0.6427869200706482f,   0.8614784181118011f,
    };
    uint8_t code = 0;
    for (int i = 0; i < 15; i++)
        code = (uint8_t)(code + (x > middles[i]));
    return code;
}

static bool pack(const float *x, uint8_t *codes, float *factor)
{
    float most = 0;
    for (int i = 0; i < BLOCK; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    float inverse = most > 0 ? 1 / most : 0;
    *factor = most;
    for (int i = 0; i < BLOCK / 2; i++)
        codes[i] = (uint8_t)(code_of(x[2 * i] * inverse) << 4 | code_of(x[2 * i + 1] * inverse));
    return true;
}

FORMAT_SETS(tke_format_nf4, "NF4", BLOCK, BLOCK / 2, unpack, pack)
