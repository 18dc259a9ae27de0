/* cuda_formats.cuh - what the codes of each format stand for: from a file's blocks to tiles, and from a lane's codes to bf16.
 *
 * The operations of engine/math/format_*.c, rounded at the same places, so that every number has the reference's bits. Where a
 * product of a code and a scale is exact, a fused addition rounds where the reference does.
 */
#ifndef TKE_CUDA_FORMATS_CUH
#define TKE_CUDA_FORMATS_CUH

#include <cuda_fp16.h>
#include "cuda/cuda_packed.h"
#include "cuda/cuda_warp.cuh"

enum family { NIBBLES, NAMES, BYTES8, FLOATS8 };

static inline __host__ __device__ int family_of(int format)
{
    return format <= TCU_Q4_K ? NIBBLES : format <= TCU_MXFP4_BLOCKS ? NAMES : format <= TCU_Q6_K ? BYTES8 : FLOATS8;
}

/* Bytes of a row's scales in a tile. */
static inline __host__ __device__ int scale_bytes(int format)
{
    switch (format) {
    case TCU_Q4_1:
    case TCU_Q5_1:
        return 16;
    case TCU_Q4_K:
    case TCU_Q5_K:
    case TCU_Q6_K:
        return 12;
    case TCU_MXFP4:
    case TCU_MXFP4_BLOCKS:
    case TCU_FP8:
        return 4;
    default:
        return 8;
    }
}

template <int FAMILY> struct coded {
    enum { WORDS = FAMILY <= NAMES ? 4 : 8, CODES = WORDS * 128, MOST = CODES + 8 * 16 }; /* words of a lane; bytes of a tile */
};

static inline __host__ __device__ int tile_bytes(int format)
{
    return (family_of(format) <= NAMES ? (int)coded<NIBBLES>::CODES : (int)coded<BYTES8>::CODES) + TCU_TILE_ROWS * scale_bytes(format);
}

/* ---- what files hold ---- */

/* The code of column k. */
DEVICE uint32_t stored_code(int format, const uint8_t *row, int k)
{
    int i = k % 32, part = k % 256 / 32;
    auto half = [&](const uint8_t *codes) { return (uint32_t)codes[i % 16] >> (i < 16 ? 0 : 4) & 15u; };
    auto fifth = [&](const uint8_t *bits) { return ((uint32_t)bits[i / 8] >> i % 8 & 1u) << 4; };
    const uint8_t *large = row + k / 256 * (format == TCU_Q4_K ? 144 : format == TCU_Q5_K ? 176 : 210);
    switch (format) {
    case TCU_Q4_0:
    case TCU_IQ4_NL:
        return half(row + k / 32 * 18 + 2);
    case TCU_Q4_1:
        return half(row + k / 32 * 20 + 4);
    case TCU_Q4_K:
        return (uint32_t)large[16 + part / 2 * 32 + i] >> part % 2 * 4 & 15u;
    case TCU_NF4:
        return (uint32_t)row[k / 2] >> (k % 2 ? 0 : 4) & 15u;
    case TCU_MXFP4:
        return (uint32_t)row[k / 2] >> (k % 2 ? 4 : 0) & 15u;
    case TCU_MXFP4_BLOCKS:
        return half(row + k / 32 * 17 + 1);
    case TCU_Q8_0:
        return row[k / 32 * 34 + 2 + i] ^ 0x80u;
    case TCU_Q5_0:
        return half(row + k / 32 * 22 + 6) | fifth(row + k / 32 * 22 + 2);
    case TCU_Q5_1:
        return half(row + k / 32 * 24 + 8) | fifth(row + k / 32 * 24 + 4);
    case TCU_Q5_K:
        return ((uint32_t)large[48 + part / 2 * 32 + i] >> part % 2 * 4 & 15u) | ((uint32_t)large[16 + i] >> part & 1u) << 4;
    case TCU_Q6_K: {
        int of = part % 4;
        return ((uint32_t)large[part / 4 * 64 + of % 2 * 32 + i] >> of / 2 * 4 & 15u) |
               ((uint32_t)large[128 + part / 4 * 32 + i] >> of * 2 & 3u) << 4;
    }
    default: /* FP8 */
        return row[k];
    }
}

/* The scale and the least value, six bits each, of part i of a block of Q4_K or Q5_K. */
DEVICE uint8_t stored_scale(const uint8_t *s, int i)
{
    return i < 4 ? s[i] & 63 : (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
}

DEVICE uint8_t stored_least(const uint8_t *s, int i)
{
    return i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | s[i] >> 6 << 4;
}

/* The scales of columns k0 .. k0 + 127 of a row that has `in`, as a tile has them. */
DEVICE void stored_scales(int format, const uint8_t *row, const uint8_t *factors, int k0, int in, uint8_t *to)
{
    int n = scale_bytes(format), small = 0, bytes = 0, at = 0; /* small blocks: of how many bytes, what is copied from where */
    for (int i = 0; i < n; i++)
        to[i] = 0;
    const uint8_t *large = row + k0 / 256 * (format == TCU_Q4_K ? 144 : format == TCU_Q5_K ? 176 : 210);
    int part = k0 % 256 / 32;
    switch (format) {
    case TCU_Q4_K:
    case TCU_Q5_K:
        for (int i = 0; i < 4; i++) {
            to[i] = large[i];
            to[4 + i] = stored_scale(large + 4, part + i);
            to[8 + i] = stored_least(large + 4, part + i);
        }
        return;
    case TCU_Q6_K:
        for (int i = 0; i < 8; i++)
            to[i] = large[192 + part * 2 + i];
        to[8] = large[208];
        to[9] = large[209];
        return;
    case TCU_NF4:
        for (int i = 0; i < 8 && k0 + i / 4 * 64 < in; i++)
            to[i] = factors[k0 / 64 * 4 + i];
        return;
    case TCU_FP8:
        for (int i = 0; i < 4; i++)
            to[i] = factors[k0 / 128 * 4 + i];
        return;
    case TCU_MXFP4:
        for (int i = 0; i < 4 && k0 + i * 32 < in; i++)
            to[i] = factors[k0 / 32 + i];
        return;
    case TCU_Q4_1:
    case TCU_Q5_1:
        small = format == TCU_Q4_1 ? 20 : 24, bytes = 4;
        break;
    case TCU_MXFP4_BLOCKS:
        small = 17, bytes = 1;
        break;
    case TCU_Q5_0:
        small = 22, bytes = 2;
        break;
    default:
        small = format == TCU_Q8_0 ? 34 : 18, bytes = 2;
    }
    for (int i = 0; i < 4 && k0 + i * 32 < in; i++)
        for (int j = 0; j < bytes; j++)
            to[at++] = row[(k0 / 32 + i) * small + j];
}

/* ---- what codes stand for ---- */

DEVICE float half_at(uint32_t word, int i)
{
    return __half2float(__ushort_as_half((unsigned short)(word >> 16 * i)));
}

DEVICE float byte_at(uint32_t word, int i)
{
    return (float)(word >> 8 * i & 0xffu);
}

/* 2^(e - 128). */
DEVICE float half_power(uint32_t e)
{
    return __uint_as_float(e < 2 ? 0x200000u << e : (e - 1) << 23);
}

template <int FAMILY> struct scales { /* of a row in a tile */
    enum { N = FAMILY == BYTES8 ? 8 : 4 };
    float by[N], least[4]; /* of 16 or 32 columns each */
    float zero;
};

/* Without a least value -0 is added, which changes nothing, not even the sign of a zero. */
template <int FAMILY> DEVICE scales<FAMILY> find_scales(int format, const uint32_t *w)
{
    scales<FAMILY> s;
    s.zero = format == TCU_Q4_0 ? 8 : format == TCU_Q8_0 ? 128 : format == TCU_Q5_0 ? 16 : format == TCU_Q6_K ? 32 : 0;
    auto each = [&](auto by, auto least) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = by(i);
            s.least[i] = least(i);
            if constexpr (FAMILY == BYTES8)
                s.by[2 * i] = s.by[2 * i + 1] = x;
            else
                s.by[i] = x;
        }
    };
    auto none = [](int) { return -0.0f; };
    if (FAMILY == FLOATS8) {
        each([&](int) { return __uint_as_float(w[0]); }, none);
    } else if (format == TCU_Q4_1 || format == TCU_Q5_1) {
        each([&](int i) { return half_at(w[i], 0); }, [&](int i) { return half_at(w[i], 1); });
    } else if (format == TCU_Q4_K || format == TCU_Q5_K) {
        float d = half_at(w[0], 0), m = half_at(w[0], 1);
        each([&](int i) { return __fmul_rn(d, byte_at(w[1], i)); }, [&](int i) { return -__fmul_rn(m, byte_at(w[2], i)); });
    } else if (FAMILY == BYTES8 && format == TCU_Q6_K) {
        float d = half_at(w[2], 0);
        each([](int) { return 0.0f; }, none);
#pragma unroll
        for (int i = 0; i < (int)scales<FAMILY>::N; i++)
            s.by[i] = __fmul_rn(d, (float)(int8_t)(w[i / 4] >> i % 4 * 8));
    } else if (FAMILY == NAMES && format == TCU_NF4) {
        each([&](int i) { return __uint_as_float(w[i / 2]); }, none);
    } else if (FAMILY == NAMES && format != TCU_IQ4_NL) {
        each([&](int i) { return half_power(w[0] >> 8 * i & 0xffu); }, none);
    } else {
        each([&](int i) { return half_at(w[i / 2], i % 2); }, none);
    }
    return s;
}

static __constant__ float names[4][16] = {
    { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 }, /* IQ4_NL */
    { -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f, -0.18477343022823334f,
      -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
      0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f }, /* NF4 */
    { 0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12 },          /* MXFP4, doubled */
    { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 },              /* in blocks */
};
enum { NAMES_BYTES = 16 * 32 * 4 };

/* Each lane has the table in a bank of its own. */
DEVICE void write_names(int format, float *table)
{
    for (int i = threadIdx.x; i < 16 * 32; i += blockDim.x)
        table[i] = names[format - TCU_IQ4_NL][i / 32];
}

/* e4m3: the fields lie as in fp32, but for the exponent's bias. All ones are NaN. */
DEVICE float float8(uint32_t code)
{
    float x = __fmul_rn(__uint_as_float((code & 0x80u) << 24 | (code & 0x7fu) << 20), 0x1p120f);
    return (code & 0x7fu) == 0x7fu ? __uint_as_float(0x7fc00000u) : x;
}

/* Columns 32 i .. 32 i + 31 of a lane's codes: of two steps of 16 the two registers of the right operand. names: the lane's. */
template <int FAMILY> DEVICE void unpack_part(const uint32_t *words, int i, const scales<FAMILY> &s, const float *names, uint32_t out[4])
{
#pragma unroll
    for (int p = 0; p < 4; p++) {
        float lo, hi;
        if (FAMILY == NIBBLES) { /* 128 + code as bf16 */
            uint32_t v = (words[i] >> 4 * p & 0x000f000fu) | 0x43004300u;
            lo = __fsub_rn(__uint_as_float(v << 16), 128 + s.zero);
            hi = __fsub_rn(__uint_as_float(v & 0xffff0000u), 128 + s.zero);
        } else if (FAMILY == NAMES) {
            lo = names[(words[i] >> 4 * p & 15u) * 32];
            hi = names[(words[i] >> (4 * p + 16) & 15u) * 32];
        } else {
            uint32_t w = words[2 * i + p / 2] >> p % 2 * 16;
            if (FAMILY == BYTES8) { /* 2^15 + code as fp32 */
                lo = __fsub_rn(__uint_as_float(0x47000000u | (w & 0xffu) << 8), 0x1p15f + s.zero);
                hi = __fsub_rn(__uint_as_float(0x47000000u | (w & 0xff00u)), 0x1p15f + s.zero);
            } else {
                lo = float8(w & 0xffu);
                hi = float8(w >> 8 & 0xffu);
            }
        }
        float by = s.by[FAMILY == BYTES8 ? 2 * i + p / 2 : i];
        if (FAMILY == NIBBLES || FAMILY == BYTES8)
            out[p] = pack(__fmaf_rn(lo, by, s.least[i]), __fmaf_rn(hi, by, s.least[i]));
        else
            out[p] = pack(__fmul_rn(lo, by), __fmul_rn(hi, by));
    }
}

/* NaN has one form. */
DEVICE uint32_t one_nan(uint32_t pair)
{
    uint32_t lo = (pair & 0x7fffu) > 0x7f80u ? 0x7fc0u : pair & 0xffffu, hi = pair >> 16;
    return lo | ((hi & 0x7fffu) > 0x7f80u ? 0x7fc0u : hi) << 16;
}

#endif
