/* Kernels on rows: every set near the reference, for odd sizes; the same bits in whatever company
 * and on however many threads; special values as they should be. */
#include "support/engine/numbers.h"
#include "support/test_case.h"

static void expect_near(const char *what, const tke_real *x, const tke_real *right, int64_t n, double relative,
                        double absolute)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)x[i] - (double)right[i]) <= relative * fabs((double)right[i]) + absolute))
            fail_msg("%s[%d] = %.9g, not %.9g", what, (int)i, (double)x[i], (double)right[i]);
}

/* All row kernels once, on `rows` rows of n, into outputs one behind the other. */
enum { OUTPUTS = 8 };

typedef struct inputs {
    tke_real *x, *y, *d, *cosines, *sines, *lse, *scale;
    void *weight;
    int32_t *positions;
    int64_t rows, n;
} inputs;

static inputs make_inputs(numbers *rng, int64_t rows, int64_t n)
{
    inputs in = { .rows = rows, .n = n };
    in.x = numbers_new(rng, rows * n, 4);
    in.y = numbers_new(rng, rows * n, 2);
    in.d = numbers_new(rng, rows * n, 1);
    in.cosines = numbers_new(rng, 50 * n, 1);
    in.sines = numbers_new(rng, 50 * n, 1);
    in.lse = numbers_new(rng, rows, 2);
    in.scale = numbers_new(rng, rows, 2);
    in.weight = numbers_new_stored(rng, TKE_BF16, n, 1);
    in.positions = (int32_t *)(void *)numbers_new(rng, rows, 1);
    for (int64_t i = 0; i < rows; i++)
        in.positions[i] = (int32_t)numbers_range(rng, 0, 49);
    return in;
}

static void end_inputs(inputs *in)
{
    void *all[] = { in->x, in->y, in->d, in->cosines, in->sines, in->lse, in->scale, in->weight, in->positions };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        numbers_free(all[i]);
}

/* Rows first .. first+count of every kernel's output. */
static void run_rows(tke_cpu *cpu, const inputs *in, int64_t first, int64_t count, tke_real *out)
{
    int64_t n = in->n, size = in->rows * n, at = first * n;
    tke_matrix w = { in->weight, n, TKE_BF16, NULL, NULL };
    tke_rmsnorm(cpu, count, n, in->x + at, w, 1e-5f, out + at);
    out += size;
    tke_rmsnorm_backward(cpu, count, n, in->x + at, w, 1e-5f, in->d + at, out + at, false);
    out += size;
    memcpy(out + at, in->y + at, (size_t)(count * n) * sizeof *out);
    tke_rmsnorm_backward(cpu, count, n, in->x + at, w, 1e-5f, in->d + at, out + at, true);
    out += size;
    memcpy(out + at, in->x + at, (size_t)(count * n) * sizeof *out);
    if (n % 2 == 0)
        tke_rope(cpu, count, 1, n, in->positions + first, in->cosines, in->sines, first & 1, out + at, n);
    out += size;
    for (int64_t i = first; i < first + count; i++)
        tke_swiglu(cpu, n, in->x + i * n, in->y + i * n, out + i * n);
    out += size;
    for (int64_t i = first; i < first + count; i++)
        tke_swiglu_backward(cpu, n, in->x + i * n, in->y + i * n, in->d + i * n, out + i * n, out + size + i * n);
    out += 2 * size;
    memcpy(out + at, in->x + at, (size_t)(count * n) * sizeof *out);
    tke_softmax_scaled(cpu, count, n, out + at, n, in->lse + first, in->scale + first);
}

static void rows_near_for_isa(int32_t isa)
{
    tke_cpu *cpu = cpu_new(isa, 2, TKE_PRECISION_F32), *ref = cpu_new(TKE_ISA_REF, 1, 0);
    numbers rng = { 11 };
    for (int64_t n = 1; n < 200; n += n < 70 ? 1 : 13) {
        inputs in = make_inputs(&rng, 5, n);
        tke_real *got = numbers_new(&rng, OUTPUTS * 5 * n, 0);
        tke_real *right = numbers_copy(got, OUTPUTS * 5 * n);
        run_rows(cpu, &in, 0, 5, got);
        run_rows(ref, &in, 0, 5, right);
        expect_near("rows", got, right, OUTPUTS * 5 * n, 1e-5, 2e-5);
        numbers_free(got);
        numbers_free(right);
        end_inputs(&in);
    }
    tke_cpu_free(cpu);
    tke_cpu_free(ref);
}

TEST(rows_are_right)
{
    each_isa(rows_near_for_isa);
}

static void rows_alone_for_isa(int32_t isa)
{
    tke_cpu *three = cpu_new(isa, 3, TKE_PRECISION_F32), *one = cpu_new(isa, 1, 0);
    numbers rng = { 12 };
    static const int64_t sizes[] = { 7, 64, 130, 1000 };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t n = sizes[s], rows = 90;
        inputs in = make_inputs(&rng, rows, n);
        tke_real *all = numbers_new(&rng, OUTPUTS * rows * n, 0);
        tke_real *alone = numbers_copy(all, OUTPUTS * rows * n);
        run_rows(three, &in, 0, rows, all);
        /* the rotation's direction goes by the first row's parity: pairs keep it */
        for (int64_t i = 0; i < rows; i += 2)
            run_rows(one, &in, i, 2, alone);
        assert_true(numbers_same_bits(all, alone, OUTPUTS * rows * n));
        numbers_free(all);
        numbers_free(alone);
        end_inputs(&in);
    }
    tke_cpu_free(three);
    tke_cpu_free(one);
}

TEST(rows_do_not_see_each_other)
{
    each_isa(rows_alone_for_isa);
}

/* ---- log-sum-exp ---- */

static tke_real lse_of(tke_cpu *cpu, const tke_real *z, int64_t n, int64_t step)
{
    tke_real max, sum, lse;
    tke_lse_start(1, &max, &sum);
    for (int64_t j = 0; j < n; j += step)
        tke_lse_update(cpu, 1, n - j < step ? n - j : step, z + j, n, &max, &sum);
    tke_lse_finish(1, &max, &sum, &lse);
    return lse;
}

static void lse_for_isa(int32_t isa)
{
    tke_cpu *cpu = cpu_new(isa, 2, TKE_PRECISION_F32);
    numbers rng = { 13 };
    static const int64_t sizes[] = { 1, 15, 16, 17, 511, 512, 513, 4096, 5000 };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t n = sizes[s];
        tke_real *z = numbers_new(&rng, n, s % 2 ? 30 : 1);
        double sum = 0, top = -INFINITY;
        for (int64_t j = 0; j < n; j++)
            top = z[j] > top ? z[j] : top;
        for (int64_t j = 0; j < n; j++)
            sum += exp(z[j] - top);
        tke_real lse = lse_of(cpu, z, n, n), right = (tke_real)(top + log(sum));
        expect_near("lse", &lse, &right, 1, 1e-6, 1e-6);
        tke_real blocks = lse_of(cpu, z, n, 3 * TKE_VOCAB_BLOCK);
        assert_true(numbers_same_bits(&lse, &blocks, 1));
        /* special values */
        z[n / 2] = -INFINITY;
        tke_real some = lse_of(cpu, z, n, n);
        assert_true(n == 1 ? some == -INFINITY : isfinite(some) != 0);
        z[n / 2] = NAN;
        assert_true(isnan(lse_of(cpu, z, n, n)));
        z[n / 2] = INFINITY;
        assert_true(isfinite(lse_of(cpu, z, n, n)) == 0);
        numbers_free(z);
    }
    tke_cpu_free(cpu);
}

TEST(lse_is_right)
{
    each_isa(lse_for_isa);
}

/* exp through softmax_scaled with lse 0, scale 1: the whole range. */
static void exp_for_isa(int32_t isa)
{
    tke_cpu *cpu = cpu_new(isa, 1, TKE_PRECISION_F32);
    enum { COUNT = 20000 };
    numbers rng = { 14 };
    tke_real *z = numbers_new(&rng, COUNT, 0), zero = 0, one = 1;
    for (int i = 0; i < COUNT; i++)
        z[i] = -105 + (tke_real)i * (195.0f / COUNT);
    tke_real *x = numbers_copy(z, COUNT);
    tke_softmax_scaled(cpu, 1, COUNT, z, COUNT, &zero, &one);
    for (int i = 0; i < COUNT; i++) {
        double right = exp((double)x[i]);
        if (right > 3.4028235e38)
            assert_true(isinf(z[i]) != 0);
        else
            assert_true(fabs(z[i] - right) <= 2e-7 * right + 1.5e-45);
    }
    tke_real special[] = { -INFINITY, NAN, INFINITY, 0, -0.0f };
    tke_softmax_scaled(cpu, 1, 5, special, 5, &zero, &one);
    assert_true(special[0] == 0 && isnan(special[1]) && isinf(special[2]));
    assert_true(special[3] == 1 && special[4] == 1);
    numbers_free(z);
    numbers_free(x);
    tke_cpu_free(cpu);
}

TEST(exp_is_right)
{
    each_isa(exp_for_isa);
}

static void swiglu_of_extremes(int32_t isa)
{
    tke_cpu *cpu = cpu_new(isa, 1, TKE_PRECISION_F32);
    tke_real g[] = { 1e30f, -1e30f, INFINITY, -1000, 1000, 0, NAN }, u[7] = { 1, 1, 1, 1, 1, 1, 1 };
    tke_real m[7], dm[7] = { 1, 1, 1, 1, 1, 1, 1 }, dg[7], du[7];
    tke_swiglu(cpu, 7, g, u, m);
    assert_true(m[0] == 1e30f && m[1] == 0 && isinf(m[2]) && m[3] == 0 && m[4] == 1000 && m[5] == 0);
    assert_true(isnan(m[6]));
    tke_swiglu_backward(cpu, 7, g, u, dm, dg, du);
    assert_true(dg[0] == 1 && dg[1] == 0 && dg[3] == 0 && dg[4] == 1 && dg[5] == 0.5f);
    tke_cpu_free(cpu);
}

TEST(swiglu_does_not_overflow)
{
    each_isa(swiglu_of_extremes);
}

/* ---- flat kernels ---- */

static void adam_for_isa(int32_t isa)
{
    tke_cpu *cpu = cpu_new(isa, 3, TKE_PRECISION_F32), *ref = cpu_new(TKE_ISA_REF, 1, 0);
    numbers rng = { 15 };
    static const int64_t sizes[] = { 0, 1, 15, 100, 8192, 8193, 30011 };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t n = sizes[s];
        tke_real *g = numbers_new(&rng, n, 1e-3f), *theta = numbers_new(&rng, n, 1);
        tke_real *m = numbers_new(&rng, n, 1e-3f), *v = numbers_new(&rng, n, 0);
        for (int64_t i = 0; i < n; i++)
            v[i] = fabsf(numbers_unit(&rng)) * 1e-6f;
        tke_real *theta2 = numbers_copy(theta, n), *m2 = numbers_copy(m, n);
        tke_real *v2 = numbers_copy(v, n);
        tke_adam a = { 1e-3, 0.9, 0.95, 1e-12, 0.1, 0.7, 3 };
        double change = tke_adam_step(cpu, &a, n, g, theta, m, v);
        double right = tke_adam_step(ref, &a, n, g, theta2, m2, v2);
        expect_near("theta", theta, theta2, n, 1e-6, 1e-7);
        expect_near("m", m, m2, n, 1e-6, 1e-12);
        expect_near("v", v, v2, n, 1e-6, 1e-15);
        assert_true(fabs(change - right) <= 1e-5 * right + 1e-12);
        numbers_free(g), numbers_free(theta), numbers_free(m), numbers_free(v);
        numbers_free(theta2), numbers_free(m2), numbers_free(v2);
    }
    tke_cpu_free(cpu);
    tke_cpu_free(ref);
}

/* One number that overflows, at any place and for any reason: every bit is as before. */
static void adam_or_nothing_for_isa(int32_t isa)
{
    enum { N = 20011 };
    static const tke_adam ways[] = { { 1e39, 0.9, 0.95, 1e-12, 0, 1, 1 },
                                     { 1e-3, 0.9, 0.95, 1e-12, 0, 1, 1 },
                                     { 1e-3, 0.9, 0.95, 1e-12, 1e300, 1, 1 } };
    tke_cpu *cpu = cpu_new(isa, 3, TKE_PRECISION_F32);
    numbers rng = { 16 };
    tke_real *g = numbers_new(&rng, N, 1e-3f), *theta = numbers_new(&rng, N, 1);
    tke_real *m = numbers_new(&rng, N, 1e-3f), *v = numbers_new(&rng, N, 0);
    tke_real *theta2 = numbers_copy(theta, N), *m2 = numbers_copy(m, N), *v2 = numbers_copy(v, N);
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++)
        for (int64_t place = 3; place < N; place += 10004) {
            tke_real kept = g[place];
            if (way == 1)
                g[place] = 1e25f; /* its square overflows the second moment; theta hides it */
            assert_true(isnan(tke_adam_step(cpu, &ways[way], N, g, theta, m, v)));
            g[place] = kept;
            assert_memory_equal(theta, theta2, N * sizeof *theta);
            assert_memory_equal(m, m2, N * sizeof *m);
            assert_memory_equal(v, v2, N * sizeof *v);
        }
    numbers_free(g), numbers_free(theta), numbers_free(m), numbers_free(v);
    numbers_free(theta2), numbers_free(m2), numbers_free(v2);
    tke_cpu_free(cpu);
}

TEST(adam_or_nothing)
{
    each_isa(adam_or_nothing_for_isa);
}

TEST(adam_is_right)
{
    each_isa(adam_for_isa);
}

static void sums_for_isa(int32_t isa)
{
    tke_cpu *one = cpu_new(isa, 1, TKE_PRECISION_F32), *three = cpu_new(isa, 3, 0);
    numbers rng = { 16 };
    for (int64_t n = 0; n < 3000000; n = n * 7 + 5) {
        tke_real *x = numbers_new(&rng, n, 3);
        double right = 0;
        for (int64_t i = 0; i < n; i++)
            right += (double)x[i] * x[i];
        double got = tke_sum_squares(one, n, x);
        assert_true(fabs(got - right) <= 1e-12 * right);
        assert_true(got == tke_sum_squares(three, n, x));
        assert_true(tke_all_finite(three, n, x));
        if (n > 0) {
            x[n - 1] = NAN;
            assert_false(tke_all_finite(three, n, x));
            x[n - 1] = 0;
            x[n / 2] = -INFINITY;
            assert_false(tke_all_finite(one, n, x));
        }
        numbers_free(x);
    }
    tke_cpu_free(one);
    tke_cpu_free(three);
}

TEST(sums_are_right)
{
    each_isa(sums_for_isa);
}

TEST(gathers_and_sums_of_few_rows_are_right)
{
    tke_cpu *cpu = cpu_new(TKE_ISA_AUTO, 2, TKE_PRECISION_F32);
    numbers rng = { 17 };
    uint16_t *e = numbers_new_stored(&rng, TKE_BF16, 10 * 9, 1);
    int32_t ids[] = { 9, 0, 3, 9 };
    tke_real out[4 * 8], more[4 * 8];
    tke_embed(cpu, 4, 8, ids, (tke_matrix){ e, 9, TKE_BF16, NULL, NULL }, out);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 8; j++)
            assert_true(out[i * 8 + j] == tke_bf16_to_f32(e[ids[i] * 9 + j]));
    tke_fill_rows(cpu, 4, 8, (tke_matrix){ e, 9, TKE_BF16, NULL, NULL }, more, 8);
    tke_add(cpu, 4 * 8, out, more);
    for (int i = 0; i < 4 * 8; i++)
        assert_true(more[i] == out[i] + tke_bf16_to_f32(e[i % 8]));
    numbers_free(e);
    tke_cpu_free(cpu);
}

TEST(half_precision_survives_a_round_trip)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float x = tke_f16_to_f32((uint16_t)h), y = tke_bf16_to_f32((uint16_t)h);
        if (isnan(x))
            assert_true(isnan(tke_f16_to_f32(tke_f32_to_f16(x))));
        else
            assert_int_equal(tke_f32_to_f16(x), h);
        if (isnan(y))
            assert_true(isnan(tke_bf16_to_f32(tke_f32_to_bf16(y))));
        else
            assert_int_equal(tke_f32_to_bf16(y), h);
    }
    /* halfway cases go to even; just above goes up; overflow becomes infinite */
    assert_int_equal(tke_f32_to_bf16(1.0f + 0x1p-8f), 0x3f80);
    assert_int_equal(tke_f32_to_bf16(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);
    assert_int_equal(tke_f32_to_bf16(1.0f + 0x3p-8f), 0x3f82);
    assert_int_equal(tke_f32_to_f16(1.0f + 0x1p-11f), 0x3c00);
    assert_int_equal(tke_f32_to_f16(1.0f + 0x3p-11f), 0x3c02);
    assert_int_equal(tke_f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(tke_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(tke_f32_to_f16(0x1p-25f), 0);
    assert_int_equal(tke_f32_to_f16(0x1.8p-25f), 1);
}
