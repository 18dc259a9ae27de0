/* Stored formats: what each code stands for, that all kernel sets agree in every bit, and that a
 * packed weight multiplies like the bf16 matrix it stands for. */
#include <math.h>

#include "math/format.h"
#include "math/kernel_set.h"
#include "support/engine/numbers.h"
#include "support/test_case.h"

enum { F16_ONE = 0x3c00, F16_HALF = 0x3800, F16_TINY = 0x0001, F16_INF = 0x7c00, F16_NAN = 0x7e01 };

static void put(uint8_t *b, int at, int half)
{
    b[at] = (uint8_t)half;
    b[at + 1] = (uint8_t)(half >> 8);
}

static float number(tke_dtype dtype, const uint8_t *block, int i)
{
    uint16_t out[TKE_MAX_BLOCK];
    const tke_format *f = tke_format_of(dtype);
    tke_matrix m = { .data = block, .ld = f->block, .dtype = dtype };
    f->unpack[TKE_UNPACK_REF](&m, 0, 0, f->block, out);
    return tke_bf16_to_f32(out[i]);
}

/* ---- blocks by hand ---- */

/* One byte of codes, two scales, and what one number of the block is. */
typedef struct row {
    tke_dtype dtype;
    int at, byte;   /* the other bytes of codes are 0 */
    int d_at, d, m; /* scales, as f16; m = -1: none, else behind d */
    int i;          /* which number */
    float value;
} row;

static const row rows[] = {
    { TKE_Q4_0, 2, 0x9f, 0, F16_HALF, -1, 0, 3.5f },     /* low half: (15 - 8) / 2 */
    { TKE_Q4_0, 2, 0x9f, 0, F16_HALF, -1, 16, 0.5f },    /* high half: (9 - 8) / 2 */
    { TKE_Q4_0, 2, 0x9f, 0, F16_TINY, -1, 0, 0x7p-24f }, /* a subnormal scale counts */
    { TKE_Q4_1, 5, 0x3c, 0, F16_HALF, F16_ONE, 1, 7.0f },
    { TKE_Q4_1, 5, 0x3c, 0, F16_HALF, F16_ONE, 17, 2.5f },
    { TKE_Q5_0, 6, 0x21, 0, F16_ONE, -1, 0, -15.0f },
    { TKE_Q5_0, 3, 0x80, 0, F16_ONE, -1, 15, 0.0f }, /* bit 15 of the high bits: 16 - 16 */
    { TKE_Q5_1, 6, 0x01, 0, F16_ONE, F16_ONE, 16, 17.0f },
    { TKE_Q8_0, 2, 0x80, 0, F16_HALF, -1, 0, -64.0f },
    { TKE_Q8_0, 33, 0x7f, 0, F16_ONE, -1, 31, 127.0f },
    { TKE_IQ4_NL, 2, 0x0f, 0, F16_ONE, -1, 0, 113.0f },
    { TKE_IQ4_NL, 2, 0x0f, 0, F16_ONE, -1, 16, -127.0f },
    { TKE_Q6_K, 192, 0x02, 208, F16_ONE, -1, 0, -64.0f }, /* code 0 is -32, scale 2 */
    { TKE_Q6_K, 192, 0xff, 208, F16_HALF, -1, 15, 16.0f },
    { TKE_Q6_K, 193, 0x02, 208, F16_ONE, -1, 16, -64.0f },
};

TEST(codes_stand_for_their_values)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint8_t b[256] = { 0 };
        put(b, rows[i].d_at, rows[i].d);
        if (rows[i].m >= 0)
            put(b, rows[i].d_at + 2, rows[i].m);
        b[rows[i].at] = (uint8_t)rows[i].byte;
        if (number(rows[i].dtype, b, rows[i].i) != rows[i].value)
            fail_msg("row %zu: %g", i, (double)number(rows[i].dtype, b, rows[i].i));
    }
}

/* Part 5 of a block of Q4_K: scale 0x2b and least value 0x13 are put together from two places. */
TEST(six_bit_scales_are_put_together)
{
    uint8_t b[176] = { 0 };
    put(b, 0, F16_ONE);
    put(b, 2, F16_HALF);
    b[4 + 1] = 0x2 << 6; /* upper bits of scale 5 */
    b[4 + 5] = 0x1 << 6; /* upper bits of least value 5 */
    b[4 + 9] = 0x3b;     /* lower bits: 0xb and 0x3 */
    b[16 + 64] = 0x10;
    assert_true(number(TKE_Q4_K, b, 160) == 0x2b - 0x13 / 2.0f);
    /* Q5_K: the same with a fifth bit, before the codes. */
    b[16 + 64] = 0;
    b[16] = 1 << 5;
    b[48 + 64] = 0x10;
    assert_true(number(TKE_Q5_K, b, 160) == tke_bf16_to_f32(tke_f32_to_bf16(0x2b * 17 - 9.5f)));
}

TEST(infinite_and_undefined_scales_are_kept)
{
    uint8_t b[34] = { 0 };
    b[2] = 1;
    put(b, 0, F16_INF);
    assert_true(isinf(number(TKE_Q8_0, b, 0)));
    assert_true(isnan(number(TKE_Q8_0, b, 1))); /* 0 times infinity */
    put(b, 0, F16_NAN);
    assert_true(isnan(number(TKE_Q8_0, b, 0)));
}

TEST(values_are_rounded_to_nearest_even)
{
    uint8_t b[34] = { 0 };
    put(b, 0, 0x3c08); /* 1 + 1/128: 8 bits, fits; times 3 it is a tie */
    b[2] = 3;
    assert_true(number(TKE_Q8_0, b, 0) == 3.03125f); /* 3.0234375 lies between 3.015625 and it */
}

TEST(gguf_mxfp4_puts_the_exponent_first)
{
    uint8_t b[17] = { 128, 0x7b };
    assert_true(number(TKE_MXFP4_BLOCKS, b, 0) == -3.0f);
    assert_true(number(TKE_MXFP4_BLOCKS, b, 16) == 12.0f);
    b[0] = 0;
    assert_true(number(TKE_MXFP4_BLOCKS, b, 16) == 0x6p-127f); /* subnormal, exact */
}

TEST(nf4_takes_the_high_half_first)
{
    uint8_t codes[64] = { 0 };
    float largest[2] = { 2, 3 };
    uint16_t out[64];
    tke_matrix m = { .data = codes, .ld = 64, .dtype = TKE_NF4, .factors = largest };
    codes[32] = 0xf0;
    tke_format_nf4.unpack[TKE_UNPACK_REF](&m, 1, 0, 64, out);
    assert_true(tke_bf16_to_f32(out[0]) == 3.0f && tke_bf16_to_f32(out[1]) == -3.0f);
}

TEST(fp8_has_a_factor_for_each_square)
{
    enum { ROWS = 130, COLS = 200 };
    static uint8_t codes[ROWS * COLS];
    static const float factors[4] = { 1, 2, 4, 8 };
    uint16_t out[COLS];
    tke_matrix m = { .data = codes, .ld = COLS, .dtype = TKE_FP8, .factors = factors };
    memset(codes, 0x38, sizeof codes); /* 1 */
    codes[129 * COLS + 3] = 0xfe;      /* -448 */
    codes[129 * COLS + 4] = 0x01;      /* 2^-9, subnormal */
    codes[129 * COLS + 5] = 0x7f;      /* NaN */
    tke_format_fp8.unpack[TKE_UNPACK_REF](&m, 129, 0, COLS, out);
    assert_true(tke_bf16_to_f32(out[127]) == 4 && tke_bf16_to_f32(out[128]) == 8);
    assert_true(tke_bf16_to_f32(out[3]) == -448 * 4 && tke_bf16_to_f32(out[4]) == 4 * 0x1p-9f);
    assert_int_equal(out[5], 0x7fc0);
    tke_format_fp8.unpack[TKE_UNPACK_REF](&m, 1, 120, 20, out); /* from the middle of a square */
    assert_true(tke_bf16_to_f32(out[7]) == 1 && tke_bf16_to_f32(out[8]) == 2);
}

/* ---- kernel sets ---- */

typedef struct packed {
    tke_matrix m;
    uint8_t *codes, *scales;
    float *factors;
} packed;

/* Random codes; with `wild`, scales that are anything. */
static packed pack(numbers *rng, tke_dtype dtype, int64_t n_rows, int64_t ld, bool wild)
{
    static const int d_at[TKE_DTYPES] = { [TKE_Q6_K] = 208 };
    const tke_format *f = tke_format_of(dtype);
    size_t count = (size_t)(n_rows * ld), bytes = tke_format_bytes(f, count);
    packed p = { .codes = malloc(bytes), .scales = malloc(count), .factors = malloc(count * 4) };
    assert_true(p.codes && p.scales && p.factors);
    for (size_t i = 0; i < bytes; i++)
        p.codes[i] = (uint8_t)numbers_next(rng);
    for (size_t i = 0; i < count; i++) {
        p.scales[i] = (uint8_t)numbers_range(rng, 118, 124);
        p.factors[i] = wild ? tke_bits_to_f32((uint32_t)numbers_next(rng)) : 0.25f + (float)(i % 7);
    }
    bool halves = f->gguf >= 0 && dtype != TKE_MXFP4_BLOCKS;
    for (size_t i = 0; !wild && i < bytes; i += (size_t)f->block_bytes) { /* scales around 1/8 */
        uint8_t *b = p.codes + i;
        if (halves)
            put(b, d_at[dtype], (int)(0x2c00 + numbers_next(rng) % 0x800));
        if (halves && f->block_bytes % 4 == 0)
            put(b, 2, (int)(0x2c00 + numbers_next(rng) % 0x800));
        if (dtype == TKE_MXFP4_BLOCKS)
            b[0] = p.scales[0];
        if (dtype == TKE_FP8 && (b[0] & 0x7f) == 0x7f)
            b[0] = 0;
    }
    p.m = (tke_matrix){ .data = p.codes, .ld = ld, .dtype = dtype, .scales = p.scales, .factors = p.factors };
    return p;
}

static void drop(packed *p)
{
    free(p->codes);
    free(p->scales);
    free(p->factors);
}

static bool set_runs(int set)
{
    return tke_isa_available(set + TKE_ISA_REF);
}

TEST(all_sets_unpack_to_the_same_bits)
{
    enum { ROWS = 64, LD = 512 };
    numbers rng = { 11 };
    uint16_t want[LD], got[LD];
    for (int d = TKE_MXFP4; d < TKE_DTYPES; d++) {
        const tke_format *f = tke_format_of((tke_dtype)d);
        packed p = pack(&rng, (tke_dtype)d, ROWS, LD, true);
        for (int set = TKE_UNPACK_NEON; set < TKE_UNPACK_SETS; set++)
            for (int r = 0; r < ROWS && set_runs(set); r++) {
                f->unpack[TKE_UNPACK_REF](&p.m, r, 0, LD, want);
                f->unpack[set](&p.m, r, 0, LD, got);
                if (memcmp(want, got, sizeof got) != 0)
                    fail_msg("%s, set %d, row %d", f->name, set, r);
            }
        drop(&p);
    }
}

/* Scales that a processor's own rounding would treat otherwise (NaN, subnormal numbers) among them. */
TEST(a_sets_unpacker_for_all_formats_gives_the_reference_bits)
{
    enum { ROWS = 300, LD = 512, SOME = 480 };
    numbers rng = { 14 };
    const tke_kernel_set *set = tke_set_avx512(true);
    uint16_t want[LD], got[LD];
    for (int d = TKE_MXFP4; set && set->unpack && d < TKE_DTYPES; d++) {
        const tke_format *f = tke_format_of((tke_dtype)d);
        int64_t n = SOME % f->block ? LD : SOME;
        for (int wild = 0; wild < 2; wild++) {
            packed p = pack(&rng, (tke_dtype)d, ROWS, LD, wild);
            for (int i = 0; i < ROWS * LD && d == TKE_MXFP4; i++)
                p.scales[i] = (uint8_t)(i % 257);
            for (int r = 0; r < ROWS; r++) {
                f->unpack[TKE_UNPACK_REF](&p.m, r, LD - n, n, want);
                set->unpack(&p.m, r, LD - n, n, got);
                if (memcmp(want, got, (size_t)n * sizeof *got) != 0)
                    fail_msg("%s, row %d", f->name, r);
            }
            drop(&p);
        }
    }
}

/* ---- products ---- */

static uint16_t *unpacked(const tke_matrix *m, int64_t n_rows)
{
    uint16_t *out = malloc((size_t)(n_rows * m->ld) * 2);
    assert_non_null(out);
    for (int64_t r = 0; r < n_rows; r++)
        tke_format_of(m->dtype)->unpack[TKE_UNPACK_REF](m, r, 0, m->ld, out + r * m->ld);
    return out;
}

/* c from the packed weight and from its twin: the same bits. */
static void same_product(tke_cpu *cpu, numbers *rng, tke_dtype dtype, tke_form form, int64_t m)
{
    int64_t n_rows = 166, ld = 1280, k = form == TKE_NT ? ld : n_rows, n = form == TKE_NT ? n_rows : ld;
    packed p = pack(rng, dtype, n_rows, ld, false);
    uint16_t *twin = unpacked(&p.m, n_rows);
    tke_real *a = numbers_new(rng, m * k, 1), *c = numbers_new(rng, m * n, 1);
    tke_real *c2 = numbers_copy(c, m * n);
    tke_gemm g = { .form = form, .accumulate = m % 2, .m = m, .n = n, .k = k, .alpha = 1 };
    g.a = a;
    g.lda = k;
    g.b = p.m;
    g.c = c;
    g.ldc = n;
    tke_gemm_run(cpu, &g);
    g.b = (tke_matrix){ .data = twin, .ld = ld, .dtype = TKE_BF16 };
    g.c = c2;
    tke_gemm_run(cpu, &g);
    if (memcmp(c, c2, (size_t)(m * n) * sizeof *c) != 0)
        fail_msg("%s, %s, form %d, %d rows", tke_format_of(dtype)->name, tke_cpu_name(cpu), form, (int)m);
    numbers_free(a);
    numbers_free(c);
    numbers_free(c2);
    free(twin);
    drop(&p);
}

TEST(packed_weights_multiply_like_their_twins)
{
    static const int64_t counts[] = { 1, 3, 20 };
    numbers rng = { 12 };
    for (int isa = TKE_ISA_REF; isa <= TKE_ISA_AVX512; isa++)
        for (int precision = 0; precision < 2; precision++) {
            tinkc_error err = { 0 };
            tke_cpu_options o = { .n_threads = 2, .isa = isa, .precision = precision };
            tke_cpu *cpu = tke_isa_available(isa) ? tke_cpu_new(&o, &err) : NULL;
            for (int d = TKE_MXFP4; cpu && d < TKE_DTYPES; d++)
                for (int i = 0; i < (isa == TKE_ISA_REF ? 1 : 3); i++) {
                    same_product(cpu, &rng, (tke_dtype)d, TKE_NT, counts[i]);
                    same_product(cpu, &rng, (tke_dtype)d, TKE_NN, counts[i]);
                }
            tke_cpu_free(cpu);
        }
}

TEST(rows_of_a_table_are_those_of_its_twin)
{
    enum { ROWS = 5, LD = 512 };
    numbers rng = { 13 };
    tinkc_error err = { 0 };
    tke_cpu *cpu = tke_cpu_new(NULL, &err);
    static const int32_t ids[] = { 4, 0, 4 };
    tke_real got[3 * LD];
    for (int d = TKE_MXFP4; d < TKE_DTYPES; d++) {
        packed p = pack(&rng, (tke_dtype)d, ROWS, LD, false);
        uint16_t *twin = unpacked(&p.m, ROWS);
        tke_embed(cpu, 3, LD, ids, p.m, got);
        for (int i = 0; i < 3 * LD; i++)
            assert_true(got[i] == tke_bf16_to_f32(twin[ids[i / LD] * LD + i % LD]));
        free(twin);
        drop(&p);
    }
    tke_cpu_free(cpu);
}

/* ---- packing ---- */

/* What is left between numbers and their packed form, beside the numbers: the root of the mean squares. */
static float loss_of(tke_dtype dtype, const float *x)
{
    uint8_t b[TKE_MAX_BLOCK * 4];
    float unused, left = 0, all = 0;
    const tke_format *f = tke_format_of(dtype);
    assert_true(f->pack(x, b, &unused));
    for (int i = 0; i < f->block; i++) {
        float off = number(dtype, b, i) - x[i];
        left += off * off;
        all += x[i] * x[i];
    }
    return all > 0 ? sqrtf(left / all) : left;
}

/* The sum of a few uniform numbers is nearly normal. */
static float normal_of(numbers *rng)
{
    float sum = 0;
    for (int i = 0; i < 6; i++)
        sum += numbers_unit(rng);
    return sum / sqrtf(2);
}

/* Close bounds: a scale that is not searched for, or a scale of a scale with too few steps, loses a little more. */
TEST(packing_loses_no_more_than_the_steps_of_the_codes)
{
    static const struct {
        tke_dtype dtype;
        float normal, shifted; /* of numbers around 0, and around 3 */
    } losses[] = {
        { TKE_Q8_0, 0.0057f, 0.004f },   { TKE_Q6_K, 0.0171f, 0.012f },  { TKE_Q5_K, 0.0355f, 0.0139f },
        { TKE_Q5_1, 0.038f, 0.0118f },   { TKE_Q5_0, 0.0415f, 0.0285f }, { TKE_Q4_K, 0.0706f, 0.0279f },
        { TKE_IQ4_NL, 0.0727f, 0.059f }, { TKE_Q4_1, 0.076f, 0.0241f },  { TKE_Q4_0, 0.085f, 0.057f },
    };
    numbers rng = { 21 };
    for (size_t r = 0; r < sizeof losses / sizeof *losses; r++) {
        float normal = 0, shifted = 0;
        enum { TIMES = 64 };
        for (int t = 0; t < TIMES; t++) {
            float x[TKE_MAX_BLOCK], y[TKE_MAX_BLOCK];
            for (int i = 0; i < TKE_MAX_BLOCK; i++) {
                x[i] = normal_of(&rng) * 0.02f;
                y[i] = 3 + normal_of(&rng);
            }
            normal += loss_of(losses[r].dtype, x) / TIMES;
            shifted += loss_of(losses[r].dtype, y) / TIMES;
        }
        if (!(normal < losses[r].normal && shifted < losses[r].shifted))
            fail_msg("%s loses %g and %g", tke_format_of(losses[r].dtype)->name, (double)normal, (double)shifted);
    }
}

TEST(what_is_packed_exactly_and_what_does_not_fit)
{
    for (int d = TKE_Q4_0; d <= TKE_IQ4_NL; d++) {
        uint8_t b[TKE_MAX_BLOCK * 4];
        float x[TKE_MAX_BLOCK] = { 0 }, unused;
        const tke_format *f = tke_format_of((tke_dtype)d);
        assert_true(f->pack && f->block <= TKE_MAX_BLOCK);
        assert_float_equal(loss_of((tke_dtype)d, x), 0, 0); /* zeros */
        for (int i = 0; i < f->block; i++)
            x[i] = i % 3 ? 0 : -0.5f;
        /* One number and zeros: scales are rounded, and IQ4_NL has a 1 in place of 0. */
        if (!(loss_of((tke_dtype)d, x) < (d == TKE_IQ4_NL ? 0.012f : 2e-3f)))
            fail_msg("%s: %g", f->name, (double)loss_of((tke_dtype)d, x));
        memset(b, 0, sizeof b);
        x[1] = -1e30f; /* the scale is an f16 */
        assert_false(f->pack(x, b, &unused));
        bool own_least = d == TKE_Q4_1 || d == TKE_Q5_1; /* as an f16, while the scale is small */
        for (int i = 0; i < f->block; i++)
            x[i] = -1e5f;
        assert_true(f->pack(x, b, &unused) != own_least);
    }
}

TEST(numbers_of_gguf_types_name_formats)
{
    assert_ptr_equal(tke_format_of_gguf(12), tke_format_of(TKE_Q4_K));
    assert_ptr_equal(tke_format_of_gguf(0), tke_format_of(TKE_F32));
    assert_null(tke_format_of_gguf(10));
    for (int d = 0; d < TKE_DTYPES; d++) {
        const tke_format *f = tke_format_of((tke_dtype)d);
        assert_int_equal(tke_format_dtype(f), d);
        if (f->gguf >= 0 && d != TKE_F64)
            assert_non_null(strstr(tke_format_list(), f->name));
    }
}

/* For comparisons with other programs: blocks of a format from standard input, bf16 to standard output. A set
 * that this machine lacks gives nothing. */
static int unpack_input(const char *name, int set)
{
    const tke_format *f = NULL;
    uint8_t block[TKE_MAX_BLOCK];
    uint16_t out[TKE_MAX_BLOCK];
    for (int d = TKE_MXFP4_BLOCKS; !f && d <= TKE_IQ4_NL; d++)
        f = strcmp(tke_format_of((tke_dtype)d)->name, name) == 0 ? tke_format_of((tke_dtype)d) : NULL;
    if (!f || set < 0 || set >= TKE_UNPACK_SETS)
        return 2;
    while (set_runs(set) && fread(block, (size_t)f->block_bytes, 1, stdin) == 1) {
        tke_matrix m = { .data = block, .ld = f->block, .dtype = tke_format_dtype(f) };
        f->unpack[set](&m, 0, 0, f->block, out);
        fwrite(out, 2, (size_t)f->block, stdout);
    }
    return 0;
}

/* The other way: fp32 from standard input. */
static int pack_input(const char *name)
{
    float x[TKE_MAX_BLOCK], unused;
    uint8_t block[TKE_MAX_BLOCK * 4];
    for (int d = TKE_Q4_0; d <= TKE_IQ4_NL; d++) {
        const tke_format *f = tke_format_of((tke_dtype)d);
        while (strcmp(f->name, name) == 0 && fread(x, sizeof *x * (size_t)f->block, 1, stdin) == 1) {
            f->pack(x, block, &unused);
            fwrite(block, (size_t)f->block_bytes, 1, stdout);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "pack") == 0)
        return pack_input(argv[2]);
    if (argc == 4 && strcmp(argv[1], "unpack") == 0)
        return unpack_input(argv[2], argv[3][0] - '0');
    return test_cases_run(NULL, NULL);
}
