/* avx512packed.c - packed weights on processors with AVX-512 BF16: their unpackers, and products of
 * a few rows (decoding), which take numbers out of their codes in registers.
 *
 * A format says how 32 numbers of a row become bf16. Most look them up in a table of 16 or 32
 * numbers, made of a block's scales. The processor's conversion to bf16 rounds as format_round does
 * but for NaN and subnormal numbers: blocks with scales that may give these are left to the
 * reference. So all bits are the reference's. The chains of products are those of avx512bf16.c and
 * of fast_gemm.h.
 */
#include "math/kernel_set.h"

#if defined(__x86_64__) && !defined(TKE_REAL_DOUBLE)

#include <assert.h>
#include <string.h>

#include "math/format_scales.h"

#if defined(__clang__)
#pragma clang attribute push(                                                                      \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16"))),        \
    apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#endif

#include "math/simd_avx512.h"

enum { STEP = 32, TILE_N = 32, FEW_ROWS = 4, LINE = 64 };

/* Where numbers k .. k + STEP - 1 of a row are stored, k a multiple of STEP. */
typedef struct place {
    const tke_matrix *m;
    int64_t row, k;
    const uint8_t *b;     /* their block, or their codes where scales are apart */
    const uint8_t *power; /* MXFP4's */
    const float *factor;  /* NF4's, FP8's */
    int part;             /* of a block of 256 */
} place;

/* Those numbers. */
typedef __m512i load_step(place at);

static __attribute__((noinline, cold)) __m512i load_reference(place at)
{
    const tke_format *f = tke_format_of(at.m->dtype);
    int64_t block = f->block < STEP ? STEP : f->block, first = at.k / block * block;
    uint16_t numbers[TKE_MAX_BLOCK];
    f->unpack[TKE_UNPACK_REF](at.m, at.row, first, block, numbers);
    return _mm512_loadu_si512(numbers + (at.k - first));
}

/* ---- scales ---- */

INLINE uint32_t word_at(const uint8_t *b)
{
    uint32_t word;
    memcpy(&word, b, sizeof word);
    return word;
}

/* Infinite or NaN? */
INLINE bool half_is_wild(const uint8_t *b)
{
    return __builtin_expect((b[1] & 0x7c) == 0x7c, 0);
}

INLINE bool halves_are_wild(const uint8_t *b)
{
    return half_is_wild(b) || half_is_wild(b + 2);
}

/* Would its products with numbers of 2^-9 to 2^9 leave the normal numbers? */
INLINE bool factor_is_wild(float factor)
{
    uint32_t bits = tke_f32_to_bits(factor) & 0x7fffffffu;
    return __builtin_expect(bits - 0x0f000000u > 0x7a000000u - 0x0f000000u && bits != 0, 0);
}

INLINE float half_at(const uint8_t *b)
{
    return _cvtsh_ss(format_u16(b));
}

INLINE __m512 halves(const uint8_t *b)
{
    return _mm512_cvtph_ps(_mm256_set1_epi16((int16_t)format_u16(b)));
}

/* ---- tables: numbers by their codes ---- */

/* Of 32 numbers; of 16, twice, so that the fifth bit of a code does not count. */
INLINE __m512i table_of(__m512 first, __m512 second)
{
    return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

INLINE __m512 from_zero(void)
{
    return _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
}

INLINE __m512 from(float first)
{
    return _mm512_add_ps(from_zero(), _mm512_set1_ps(first));
}

INLINE __m512i look_up(__m512i table, __m512i codes)
{
    return _mm512_permutexvar_epi16(codes, table);
}

static const uint16_t low_then_high_shift[32]
    __attribute__((aligned(64))) = { [16] = 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4 };

/* Codes of 16 bytes: the low halves, then the high ones. Bits above the code remain. */
INLINE __m512i low_then_high(const uint8_t *b)
{
    __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)b));
    return _mm512_srlv_epi16(_mm512_cvtepu8_epi16(twice), _mm512_load_si512(&low_then_high_shift));
}

/* The same codes as neighbours: low half first, or high half first. */
INLINE __m512i low_and_high(const uint8_t *b)
{
    __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)b));
    return _mm512_or_si512(x, _mm512_slli_epi32(x, 12));
}

INLINE __m512i high_and_low(const uint8_t *b)
{
    __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)b));
    return _mm512_or_si512(_mm512_srli_epi32(x, 4), _mm512_slli_epi32(x, 16));
}

/* Adds the fifth bits. */
INLINE __m512i with_fifth(__m512i codes, __mmask32 fifth)
{
    codes = _mm512_and_si512(codes, _mm512_set1_epi16(15));
    return _mm512_or_si512(codes, _mm512_maskz_set1_epi16(fifth, 16));
}

/* ---- formats ---- */

INLINE __m512i load_q4_0(place at)
{
    const uint8_t *b = at.b;
    if (half_is_wild(b))
        return load_reference(at);
    __m512 x = _mm512_mul_ps(from(-8), halves(b));
    return look_up(table_of(x, x), low_then_high(b + 2));
}

INLINE __m512i load_q4_1(place at)
{
    const uint8_t *b = at.b;
    if (halves_are_wild(b))
        return load_reference(at);
    __m512 x = _mm512_add_ps(_mm512_mul_ps(from(0), halves(b)), halves(b + 2));
    return look_up(table_of(x, x), low_then_high(b + 4));
}

INLINE __m512i load_q5_0(place at)
{
    const uint8_t *b = at.b;
    if (half_is_wild(b))
        return load_reference(at);
    __m512 d = halves(b);
    __m512i table = table_of(_mm512_mul_ps(from(-16), d), _mm512_mul_ps(from(0), d));
    return look_up(table, with_fifth(low_then_high(b + 6), word_at(b + 2)));
}

INLINE __m512i load_q5_1(place at)
{
    const uint8_t *b = at.b;
    if (halves_are_wild(b))
        return load_reference(at);
    __m512 d = halves(b), least = halves(b + 2);
    __m512i table = table_of(_mm512_add_ps(_mm512_mul_ps(from(0), d), least),
                             _mm512_add_ps(_mm512_mul_ps(from(16), d), least));
    return look_up(table, with_fifth(low_then_high(b + 8), word_at(b + 4)));
}

INLINE __m512i load_iq4_nl(place at)
{
    const uint8_t *b = at.b;
    if (half_is_wild(b))
        return load_reference(at);
    __m512 values =
        _mm512_set_ps(113, 89, 69, 53, 38, 25, 13, 1, -10, -22, -35, -49, -65, -83, -104, -127);
    __m512 x = _mm512_mul_ps(halves(b), values);
    return look_up(table_of(x, x), low_then_high(b + 2));
}

INLINE __m512i scaled(__m128i first, __m128i second, __m512 d, __m512 d2)
{
    __m512 x = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(first));
    __m512 y = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(second));
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(y, d2), _mm512_mul_ps(x, d));
}

INLINE __m512i load_q8_0(place at)
{
    const uint8_t *b = at.b;
    if (half_is_wild(b))
        return load_reference(at);
    __m512 d = halves(b);
    return scaled(_mm_loadu_si128((const void *)(b + 2)), _mm_loadu_si128((const void *)(b + 18)),
                  d, d);
}

/* The table of a part of 32 numbers of Q4_K and Q5_K, for codes from `first` on. */
INLINE __m512 scaled_less(const uint8_t *b, int part, float first)
{
    float scale = half_at(b), least = half_at(b + 2);
    format_scales(b + 4, part, &scale, &least);
    return _mm512_sub_ps(_mm512_mul_ps(_mm512_set1_ps(scale), from(first)), _mm512_set1_ps(least));
}

INLINE __m512i shifted(const uint8_t *b, int shift)
{
    __m512i x = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)b));
    return _mm512_srl_epi16(x, _mm_cvtsi32_si128(shift));
}

INLINE __m512i load_q4_k(place at)
{
    const uint8_t *b = at.b;
    if (halves_are_wild(b))
        return load_reference(at);
    __m512 x = scaled_less(b, at.part, 0);
    return look_up(table_of(x, x), shifted(b + 16 + at.part / 2 * 32, at.part % 2 * 4));
}

INLINE __m512i load_q5_k(place at)
{
    const uint8_t *b = at.b;
    if (halves_are_wild(b))
        return load_reference(at);
    __mmask32 fifth = _mm256_test_epi8_mask(_mm256_loadu_si256((const void *)(b + 16)),
                                            _mm256_set1_epi8((char)(1 << at.part)));
    __m512i table = table_of(scaled_less(b, at.part, 0), scaled_less(b, at.part, 16));
    return look_up(table, with_fifth(shifted(b + 48 + at.part / 2 * 32, at.part % 2 * 4), fifth));
}

INLINE __m512i load_q6_k(place at)
{
    const uint8_t *b = at.b;
    int half = at.part / 4, of = at.part % 4;
    if (half_is_wild(b + 208))
        return load_reference(at);
    const uint8_t *low = b + half * 64 + of % 2 * 32, *high = b + 128 + half * 32;
    const int8_t *scales = (const int8_t *)b + 192 + at.part * 2;
    __m256i q =
        _mm256_srl_epi16(_mm256_loadu_si256((const void *)low), _mm_cvtsi32_si128(of / 2 * 4));
    __m256i two =
        _mm256_srl_epi16(_mm256_loadu_si256((const void *)high), _mm_cvtsi32_si128(2 * of));
    q = _mm256_and_si256(q, _mm256_set1_epi8(15));
    two = _mm256_slli_epi16(_mm256_and_si256(two, _mm256_set1_epi8(3)), 4);
    q = _mm256_sub_epi8(_mm256_or_si256(q, two), _mm256_set1_epi8(32));
    float d = half_at(b + 208);
    return scaled(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1),
                  _mm512_set1_ps(d * (float)scales[0]), _mm512_set1_ps(d * (float)scales[1]));
}

INLINE __m512i load_nf4(place at)
{
    float largest = *at.factor;
    if (factor_is_wild(largest))
        return load_reference(at);
    __m512 x = _mm512_mul_ps(_mm512_loadu_ps(tke_nf4_values), _mm512_set1_ps(largest));
    return look_up(table_of(x, x), high_and_low(at.b));
}

/* 2^(e - 128), for exponents whose products with 1 to 12 are normal numbers. */
INLINE __m512 power(uint8_t e)
{
    return _mm512_castsi512_ps(_mm512_set1_epi32((int32_t)(((uint32_t)e - 1) << 23)));
}

INLINE bool power_is_wild(uint8_t e)
{
    return __builtin_expect(e < 4, 0);
}

INLINE __m512i load_mxfp4_blocks(place at)
{
    const uint8_t *b = at.b;
    if (power_is_wild(b[0]))
        return load_reference(at);
    __m512 doubled = _mm512_set_ps(-12, -8, -6, -4, -3, -2, -1, 0, 12, 8, 6, 4, 3, 2, 1, 0);
    __m512 x = _mm512_mul_ps(doubled, power(b[0]));
    return look_up(table_of(x, x), low_then_high(b + 1));
}

INLINE __m512i load_mxfp4(place at)
{
    if (power_is_wild(*at.power))
        return load_reference(at);
    __m512 doubled = _mm512_set_ps(-12, -8, -6, -4, -3, -2, -1, -0.0f, 12, 8, 6, 4, 3, 2, 1, 0);
    __m512 x = _mm512_mul_ps(doubled, power(*at.power));
    return look_up(table_of(x, x), low_and_high(at.b));
}

/* A code's bits, moved, are an f16 of 2^-8 times its value. */
INLINE __m512i load_fp8(place at)
{
    float factor = *at.factor;
    if (factor_is_wild(factor))
        return load_reference(at);
    __m512i x = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)at.b));
    __m512i rest = _mm512_and_si512(x, _mm512_set1_epi16(0x7f));
    __mmask32 nan = _mm512_cmpeq_epi16_mask(rest, _mm512_set1_epi16(0x7f));
    x = _mm512_or_si512(_mm512_slli_epi16(_mm512_srli_epi16(x, 7), 15), _mm512_slli_epi16(rest, 7));
    __m512 d = _mm512_set1_ps(256 * factor);
    __m512 first = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(x)), d);
    __m512 second = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1)), d);
    return _mm512_mask_set1_epi16(table_of(first, second), nan, 0x7fc0);
}

/* ---- unpackers, and products of a few rows ---- */

/* How places move: by rows, and by steps along a row. A square of FP8 does not end inside a tile. */
typedef struct pitch {
    int64_t row_bytes, row_powers, row_factors;
    int64_t bytes; /* of a block; where factors are apart, of a step's codes */
    int in_block;  /* shift: steps in a block */
    int powers;    /* of a step: 0 or 1 */
    int in_factor; /* shift: steps with one factor; longer than a row where there is none */
} pitch;

static pitch pitch_of(const tke_matrix *m)
{
    const tke_format *f = tke_format_of(m->dtype);
    int64_t blocks = m->ld / f->block;
    bool apart = m->dtype == TKE_NF4 || m->dtype == TKE_FP8;
    return (pitch){
        .row_bytes = blocks * f->block_bytes,
        .row_powers = m->dtype == TKE_MXFP4 ? blocks : 0,
        .row_factors = m->dtype == TKE_NF4 ? blocks : 0,
        .bytes = apart ? STEP * f->block_bytes / f->block : f->block_bytes,
        .in_block = f->block == TKE_MAX_BLOCK ? 3 : 0,
        .powers = m->dtype == TKE_MXFP4,
        .in_factor = m->dtype == TKE_NF4   ? 1
                     : m->dtype == TKE_FP8 ? 2
                                           : 62,
    };
}

/* Of a row's first numbers. */
static place place_of(const tke_matrix *m, int64_t row, const pitch *p)
{
    int64_t across = (m->ld + TKE_FP8_SIDE - 1) / TKE_FP8_SIDE;
    int64_t factor = m->dtype == TKE_FP8 ? row / TKE_FP8_SIDE * across : row * p->row_factors;
    return (place){ .m = m,
                    .row = row,
                    .b = (const uint8_t *)m->data + row * p->row_bytes,
                    .power = m->scales + row * p->row_powers,
                    .factor = m->factors + factor };
}

INLINE place place_along(place at, const pitch *p, int64_t steps)
{
    at.k += steps * STEP;
    at.b += (steps >> p->in_block) * p->bytes;
    at.power += steps * p->powers;
    at.factor += steps >> p->in_factor;
    at.part = (int)(steps & (TKE_MAX_BLOCK / STEP - 1));
    return at;
}

INLINE place place_below(place at, const pitch *p, int64_t rows)
{
    at.row += rows;
    at.b += rows * p->row_bytes;
    at.power += rows * p->row_powers;
    at.factor += rows * p->row_factors;
    return at;
}

INLINE void unpack_with(const tke_matrix *m, int64_t row, int64_t at, int64_t n, uint16_t *to,
                        load_step *load)
{
    const pitch p = pitch_of(m);
    place first = place_of(m, row, &p);
    int64_t whole = at % STEP == 0 && m->ld % STEP == 0 ? n / STEP * STEP : 0;
    for (int64_t i = 0; i < whole; i += STEP)
        _mm512_storeu_si512(to + i, load(place_along(first, &p, (at + i) / STEP)));
    if (whole < n)
        tke_format_of(m->dtype)->unpack[TKE_UNPACK_REF](m, row, at + whole, n - whole, to + whole);
}

/* A product of a few rows: columns of c are rows of b. */
typedef struct few {
    const tke_gemm *g;
    const void *a; /* rows of fp32 numbers, or of pairs of bf16 */
    int64_t lda;   /* words */
    int64_t rows;
} few;

/* VW columns and STEP numbers of each, transposed: r[i] holds numbers 2 i and 2 i + 1 of all. */
INLINE void add_exact(const __m512i r[VW], const float *a, float *sum)
{
    __m512 acc = _mm512_loadu_ps(sum);
    for (int i = 0; i < VW; i++) {
        acc = v_fma(v_set(a[2 * i]), v_pair_first(r[i]), acc);
        acc = v_fma(v_set(a[2 * i + 1]), v_pair_second(r[i]), acc);
    }
    _mm512_storeu_ps(sum, acc);
}

INLINE void add_pairs(const __m512i r[VW], const uint32_t *a, float *sum)
{
    __m512 acc = _mm512_loadu_ps(sum);
    for (int i = 0; i < VW; i++)
        acc = _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32((int)a[i]), (__m512bh)r[i]);
    _mm512_storeu_ps(sum, acc);
}

/* The next tile's bytes, as many as are read of this one: rows lie one behind the other. */
INLINE void fetch_next(const place *tile, const pitch *p, int64_t step)
{
    int64_t bytes = (TILE_N * p->bytes) >> p->in_block;
    const uint8_t *from = tile->b + TILE_N * p->row_bytes + step * bytes;
    for (int64_t i = 0; i < bytes; i += LINE)
        __builtin_prefetch(from + i, 0, 3);
}

/* Adds to sums[row][TILE_N] the products of TILE_N columns from n on. */
INLINE void add_columns(const few *f, int64_t n, float *sums, load_step *load)
{
    const pitch p = pitch_of(&f->g->b);
    const place tile = place_of(&f->g->b, n, &p);
    bool last = n + 2 * TILE_N > f->g->n;
    for (int64_t step = 0; step < f->g->k / STEP; step++) {
        if (!last)
            fetch_next(&tile, &p, step);
        for (int64_t half = 0; half < TILE_N; half += VW) {
            place at = place_below(place_along(tile, &p, step), &p, half);
            __m512i r[VW];
#pragma GCC unroll 16
            for (int i = 0; i < VW; i++)
                r[i] = load(place_below(at, &p, i));
            v_transpose(r);
            for (int64_t row = 0; row < f->rows; row++) {
                const uint32_t *a = (const uint32_t *)f->a + row * f->lda;
                float *sum = sums + row * TILE_N + half;
                if (f->g->exact)
                    add_exact(r, (const float *)(const void *)a + step * STEP, sum);
                else
                    add_pairs(r, a + step * STEP / 2, sum);
            }
        }
    }
}

typedef void add_columns_fn(const few *f, int64_t n, float *sums);

#define PACKED(FORMAT)                                                                             \
    static TILE_CODE void unpack_##FORMAT(const tke_matrix *m, int64_t row, int64_t at, int64_t n, \
                                          uint16_t *to)                                            \
    {                                                                                              \
        unpack_with(m, row, at, n, to, load_##FORMAT);                                             \
    }                                                                                              \
    static TILE_CODE void add_columns_##FORMAT(const few *f, int64_t n, float *sums)               \
    {                                                                                              \
        add_columns(f, n, sums, load_##FORMAT);                                                    \
    }
PACKED(mxfp4)
PACKED(mxfp4_blocks)
PACKED(q4_0)
PACKED(q4_1)
PACKED(q5_0)
PACKED(q5_1)
PACKED(q8_0)
PACKED(q4_k)
PACKED(q5_k)
PACKED(q6_k)
PACKED(iq4_nl)
PACKED(nf4)
PACKED(fp8)

#define ROW(DTYPE, FORMAT) [DTYPE] = { unpack_##FORMAT, add_columns_##FORMAT }
static const struct {
    tke_unpack *unpack;
    add_columns_fn *add_columns;
} formats[TKE_DTYPES] = {
    ROW(TKE_MXFP4, mxfp4),   ROW(TKE_MXFP4_BLOCKS, mxfp4_blocks),
    ROW(TKE_Q4_0, q4_0),     ROW(TKE_Q4_1, q4_1),
    ROW(TKE_Q5_0, q5_0),     ROW(TKE_Q5_1, q5_1),
    ROW(TKE_Q8_0, q8_0),     ROW(TKE_Q4_K, q4_k),
    ROW(TKE_Q5_K, q5_k),     ROW(TKE_Q6_K, q6_k),
    ROW(TKE_IQ4_NL, iq4_nl), ROW(TKE_NF4, nf4),
    ROW(TKE_FP8, fp8),
};

void tke_unpack_avx512bf16(const tke_matrix *m, int64_t row, int64_t at, int64_t n, uint16_t *to)
{
    formats[m->dtype].unpack(m, row, at, n, to);
}

/* A row of a, scaled, as the chain wants it. */
static void copy_row(const float *a, int64_t k, float alpha, bool exact, uint32_t *to)
{
    for (int64_t i = 0; i < k; i += VW) {
        __m512 x = _mm512_mul_ps(_mm512_loadu_ps(a + i), _mm512_set1_ps(alpha));
        if (exact)
            _mm512_storeu_ps(to + i, x);
        else
            _mm256_storeu_si256((void *)(to + i / 2), (__m256i)_mm512_cvtneps_pbh(x));
    }
}

/* The columns that exist go in and out; the others are not computed. */
static void run_tile(const few *f, float *c, int64_t n)
{
    float sums[FEW_ROWS * TILE_N];
    const tke_gemm *g = f->g;
    for (int64_t row = 0; row < f->rows; row++)
        for (int64_t i = 0; i < TILE_N; i++)
            sums[row * TILE_N + i] = g->accumulate ? c[row * g->ldc + n + i] : 0;
    formats[g->b.dtype].add_columns(f, n, sums);
    for (int64_t row = 0; row < f->rows; row++)
        memcpy(c + row * g->ldc + n, sums + row * TILE_N, TILE_N * sizeof *sums);
}

int64_t tke_packed_few_avx512bf16(const tke_gemm *g, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                                  void *scratch)
{
    int64_t rows = m1 - m0, lda = g->exact ? g->k : g->k / 2;
    if (g->form != TKE_NT || rows > FEW_ROWS || g->k % STEP != 0 || g->b.ld % STEP != 0 ||
        rows * lda > (int64_t)(TKE_SCRATCH_BYTES / sizeof(uint32_t)))
        return n0;
    for (int64_t row = 0; row < rows; row++)
        copy_row(g->a + (m0 + row) * g->lda, g->k, g->alpha, g->exact,
                 (uint32_t *)scratch + row * lda);
    few f = { .g = g, .a = scratch, .lda = lda, .rows = rows };
    for (; n0 + TILE_N <= n1; n0 += TILE_N)
        run_tile(&f, g->c + m0 * g->ldc, n0);
    return n0;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
