/* cuda_formats.cuh - what the codes of each format stand for: from a file's blocks to tiles, and from a lane's codes to bf16.
 *
 * The operations of engine/math/format_*.c, rounded at the same places, so that every number has the reference's bits. Where a
 * product of a code and a scale is exact, a fused addition rounds where the reference does.
 */
#ifndef TKE_CUDA_FORMATS_CUH
#define TKE_CUDA_FORMATS_CUH

#include <cuda_fp16.h>
#include "cuda/cuda_bits.cuh"
#include "cuda/cuda_packed.h"
#include "cuda/cuda_warp.cuh"

enum family { FOURS, NIBBLES, NAMES, BYTES8, FLOATS8 }; /* FOURS: Q4_0, whose products with a scale are sums of two of bf16 */

static inline __host__ __device__ int family_of(int format)
{
    return format == TCU_Q4_0 ? FOURS : format <= TCU_Q4_K ? NIBBLES : format <= TCU_MXFP4_BLOCKS ? NAMES : format <= TCU_Q6_K ? BYTES8 : FLOATS8;
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
    s.zero = format == TCU_Q8_0 ? 128 : format == TCU_Q5_0 ? 16 : format == TCU_Q6_K ? 32 : 0;
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
enum { NAMES_BYTES = 256 * 16 * 8 };

/* Pairs of numbers by a byte of two codes, each 16 times: a lane reads from banks of its own. */
DEVICE void write_names(int format, float2 *table)
{
    const float *from = names[format - TCU_IQ4_NL];
    for (int i = threadIdx.x; i < 256 * 16; i += blockDim.x)
        table[i] = make_float2(from[i / 16 % 16], from[i / 256]);
}

/* e4m3: the fields lie as in fp32, but for the exponent's bias. All ones are NaN. */
DEVICE float float8(uint32_t code)
{
    float x = __fmul_rn(__uint_as_float((code & 0x80u) << 24 | (code & 0x7fu) << 20), 0x1p120f);
    return (code & 0x7fu) == 0x7fu ? __uint_as_float(0x7fc00000u) : x;
}

/* Code i of a word as 2^k + code, k by where its bits lie in the fraction of an fp32; less what it is above the number. */
DEVICE float nibble(uint32_t word, int i)
{
    uint32_t w = i < 2 ? word << 8 : i < 5 ? word : word >> 12;
    int at = i < 2 ? i : (i - 2) % 3;
    return __fsub_rn(__uint_as_float(and_or(w, 0xf00u << 4 * at, at == 0 ? 0x47000000u : at == 1 ? 0x45000000u : 0x43000000u)),
                     at == 0 ? 0x1p15f : at == 1 ? 0x1p11f : 0x1p7f);
}

DEVICE float2 find_names(const float2 *table, uint32_t word, int byte)
{
    /* the byte times 16 places of 8 bytes */
    return *(const float2 *)((const char *)table + and_or(byte ? word >> (8 * byte - 7) : word << 7, 0x7f80u, threadIdx.x % 16 * 8));
}

DEVICE float byte_less(uint32_t word, int i, float above)
{
    return __fsub_rn(__uint_as_float(__byte_perm(word, 0x47000000u, 0x7404 | i << 4)), above); /* 2^15 + code */
}

DEVICE uint32_t times(uint32_t a, uint32_t b)
{
    __nv_bfloat162 v = __hmul2(*(__nv_bfloat162 *)&a, *(__nv_bfloat162 *)&b);
    return *(uint32_t *)&v;
}

/* (code - 8) d with d = high + low, both bf16: the product with low is exact, so the sum is rounded once. A d that is not finite has no
 * low part. */
DEVICE void unpack_fours(uint32_t word, float d, uint32_t out[4])
{
    const uint32_t eight = 0x43084308u; /* 128 + 8 */
    uint32_t high = pack(d, d);
    float rest = fminf(__fsub_rn(d, __uint_as_float(high & 0xffff0000u)), 1024);
    uint32_t low = pack(rest, rest);
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t v = and_or(word >> 4 * p, 0x000f000fu, 0x43004300u), small; /* 128 + code */
        __nv_bfloat162 code = __hsub2(*(__nv_bfloat162 *)&v, *(const __nv_bfloat162 *)&eight);
        small = times(*(uint32_t *)&code, low);
        __nv_bfloat162 x = __hfma2(code, *(__nv_bfloat162 *)&high, *(__nv_bfloat162 *)&small);
        out[p] = *(uint32_t *)&x;
    }
}

/* The same with the sign of a zero, which no sum shows. */
DEVICE void unpack_signed(uint32_t word, float d, uint32_t out[4])
{
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t v = (word >> 4 * p & 0x000f000fu) | 0x43004300u;
        float2 code = unpack(v);
        out[p] = pack(__fmul_rn(__fsub_rn(code.x, 136), d), __fmul_rn(__fsub_rn(code.y, 136), d));
    }
}

/* Columns 32 i .. 32 i + 31 of a lane's codes: of two steps of 16 the two registers of the right operand. */
template <int FAMILY> DEVICE void unpack_part(const uint32_t *words, int i, const scales<FAMILY> &s, const float2 *table, uint32_t out[4])
{
    if constexpr (FAMILY == FOURS)
        unpack_fours(words[i], s.by[i], out);
#pragma unroll
    for (int p = 0; p < (FAMILY == FOURS ? 0 : 4); p++) {
        float2 v;
        if (FAMILY == NIBBLES) {
            v = make_float2(nibble(words[i], 2 * p), nibble(words[i], 2 * p + 1));
        } else if (FAMILY == NAMES) {
            v = find_names(table, words[i], p);
        } else {
            uint32_t w = words[2 * i + p / 2];
            if (FAMILY == BYTES8)
                v = make_float2(byte_less(w, p % 2 * 2, 0x1p15f + s.zero), byte_less(w, p % 2 * 2 + 1, 0x1p15f + s.zero));
            else
                v = make_float2(float8(w >> p % 2 * 16 & 0xffu), float8(w >> (p % 2 * 16 + 8) & 0xffu));
        }
        float by = s.by[FAMILY == BYTES8 ? 2 * i + p / 2 : i];
        if (FAMILY == NIBBLES || FAMILY == BYTES8)
            out[p] = pack(__fmaf_rn(v.x, by, s.least[i]), __fmaf_rn(v.y, by, s.least[i]));
        else
            out[p] = pack(__fmul_rn(v.x, by), __fmul_rn(v.y, by));
    }
}

/* NaN has one form. */
DEVICE uint32_t one_nan(uint32_t pair)
{
    uint32_t lo = (pair & 0x7fffu) > 0x7f80u ? 0x7fc0u : pair & 0xffffu, hi = pair >> 16;
    return lo | ((hi & 0x7fffu) > 0x7f80u ? 0x7fc0u : hi) << 16;
}

/* Where the numbers are kept: with the sign of a zero and the one form of NaN. */
template <int FAMILY> DEVICE void unpack_exactly(const uint32_t *words, int i, const scales<FAMILY> &s, const float2 *table, uint32_t out[4])
{
    if constexpr (FAMILY == FOURS)
        unpack_signed(words[i], s.by[i], out);
    else
        unpack_part<FAMILY>(words, i, s, table, out);
#pragma unroll
    for (int p = 0; p < 4; p++)
        out[p] = one_nan(out[p]);
}

/* Where the codes of numbers 0 .. 7 of a part lie in its word: in pairs 16 bits apart for FOURS, else one after the other. */
static inline __host__ __device__ int code_place(int family, int i)
{
    return family == FOURS ? i / 2 + i % 2 * 4 : i;
}

#endif
