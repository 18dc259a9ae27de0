/* Products: right to within rounding, for every form, type and odd size; and the same bits however
 * rows, columns, k and threads are cut. */
#include "support/engine/numbers.h"
#include "support/test_case.h"

/* One product with its operands, and what is right (in double) beside it. */
typedef struct problem {
    tke_gemm g;
    tke_real *a, *c, *start;
    void *b;
    int64_t c_count;
} problem;

static problem make(numbers *rng, tke_form form, tke_dtype dtype, int64_t m, int64_t n, int64_t k)
{
    problem p = { 0 };
    int64_t a_rows = form == TKE_TN ? k : m, a_columns = form == TKE_TN ? m : k;
    int64_t b_rows = form == TKE_NT ? n : k, b_columns = form == TKE_NT ? k : n;
    int64_t lda = a_columns + numbers_range(rng, 0, 3), ldb = b_columns + numbers_range(rng, 0, 3);
    int64_t ldc = n + numbers_range(rng, 0, 3);
    p.a = numbers_new(rng, a_rows * lda, 1);
    p.b = numbers_new_stored(rng, dtype, b_rows * ldb, 1);
    p.c_count = m * ldc;
    p.c = numbers_new(rng, p.c_count, 1);
    p.start = numbers_copy(p.c, p.c_count);
    static const tke_real alphas[] = { 1, 1, 0.5f, -3.7f };
    p.g = (tke_gemm){ .form = form,
                      .accumulate = numbers_next(rng) & 1,
                      .m = m,
                      .n = n,
                      .k = k,
                      .alpha = alphas[numbers_next(rng) & 3],
                      .a = p.a,
                      .lda = lda,
                      .b = { p.b, ldb, dtype },
                      .c = p.c,
                      .ldc = ldc };
    return p;
}

static void end(problem *p)
{
    numbers_free(p->a);
    numbers_free(p->b);
    numbers_free(p->c);
    numbers_free(p->start);
}

static double a_at(const tke_gemm *g, int64_t i, int64_t k)
{
    return g->a[g->form == TKE_TN ? k * g->lda + i : i * g->lda + k];
}

static double b_at(const tke_gemm *g, int64_t k, int64_t j)
{
    return tke_load(g->b.dtype, g->b.data, g->form == TKE_NT ? j * g->b.ld + k : k * g->b.ld + j);
}

/* Each element within `unit` times the sum of magnitudes; nothing between the rows touched. */
static void check(const problem *p, double unit)
{
    const tke_gemm *g = &p->g;
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->ldc; j++) {
            int64_t at = i * g->ldc + j;
            if (j >= g->n) {
                assert_true(p->c[at] == p->start[at]);
                continue;
            }
            double right = g->accumulate ? p->start[at] : 0, size = fabs(right);
            for (int64_t k = 0; k < g->k; k++) {
                double term = (double)g->alpha * a_at(g, i, k) * b_at(g, k, j);
                right += term;
                size += fabs(term);
            }
            if (!(fabs(p->c[at] - right) <= unit * size + 1e-30))
                fail_msg("form %d %dx%dx%d dtype %d: c[%d][%d] = %.9g, not %.9g", (int)g->form, (int)g->m, (int)g->n,
                         (int)g->k, (int)g->b.dtype, (int)i, (int)j, (double)p->c[at], right);
        }
}

static const tke_dtype dtypes[] = { TKE_F32, TKE_BF16, TKE_F16 };

static void right_for_isa(int32_t isa)
{
    tke_cpu *cpu = cpu_new(isa, 2, TKE_PRECISION_F32);
    numbers rng = { 1 };
    for (int round = 0; round < 400; round++) {
        bool large = round % 20 == 0;
        tke_form form = (tke_form)(round % 3);
        problem p = make(&rng, form, dtypes[round / 3 % 3], numbers_range(&rng, 0, large ? 90 : 20),
                         numbers_range(&rng, 0, large ? 600 : 70), numbers_range(&rng, 0, large ? 900 : 50));
        tke_gemm_run(cpu, &p.g);
        check(&p, 2e-6);
        end(&p);
    }
    tke_cpu_free(cpu);
}

TEST(products_are_right)
{
    each_isa(right_for_isa);
}

static void bf16_near_for_isa(int32_t isa)
{
    tke_cpu *cpu = cpu_new(isa, 2, TKE_PRECISION_BF16);
    numbers rng = { 2 };
    for (int round = 0; round < 200; round++) {
        problem p = make(&rng, (tke_form)(round % 3), dtypes[round / 3 % 3], numbers_range(&rng, 1, 40),
                         numbers_range(&rng, 1, 90), numbers_range(&rng, 1, round % 10 ? 100 : 1700));
        p.g.exact = round % 7 == 0;
        tke_gemm_run(cpu, &p.g);
        check(&p, p.g.exact ? 2e-6 : 1.0 / 250);
        end(&p);
    }
    tke_cpu_free(cpu);
}

TEST(bf16_products_are_near)
{
    each_isa(bf16_near_for_isa);
}

/* A number that lies in the middle between two of bf16 becomes the even one, in every path of a product. */
static void ties_for_isa(int32_t isa)
{
    enum { M = 13, N = 9, K = 8 };
    static const float ties[][2] = { { 1 + 0x1p-8f, 1 },
                                     { 1 + 0x3p-8f, 1 + 0x1p-6f },
                                     { -1 - 0x1p-8f, -1 },
                                     { 1 + 0x1p-8f + 0x1p-20f, 1 + 0x1p-7f } };
    enum { TIES = sizeof ties / sizeof *ties };
    tke_cpu *cpu = cpu_new(isa, 1, TKE_PRECISION_BF16);
    tke_real a[M * K] = { 0 }, c[M * N];
    uint16_t ones[K * N];
    for (int i = 0; i < M; i++)
        a[i * K + i % K] = ties[i % TIES][0];
    for (int i = 0; i < K * N; i++)
        ones[i] = 0x3f80;
    for (int round = 0; round < 4; round++) {
        tke_form form = round & 1 ? TKE_NN : TKE_NT;
        int64_t rows = round & 2 ? M : 4; /* decoding, training */
        tke_gemm g = { .form = form, .m = rows, .n = N, .k = K, .alpha = 1, .a = a, .lda = K };
        g.b = (tke_matrix){ .data = ones, .ld = form == TKE_NN ? N : K, .dtype = TKE_BF16 };
        g.c = c;
        g.ldc = N;
        tke_gemm_run(cpu, &g);
        for (int64_t i = 0; i < rows * N; i++)
            assert_true(c[i] == ties[i / N % TIES][1]);
    }
    tke_cpu_free(cpu);
}

TEST(a_left_side_is_rounded_to_even)
{
    each_isa(ties_for_isa);
}

/* The product again, into fresh memory, as some other cut of the same work. */
static tke_real *again(tke_cpu *cpu, const problem *p, int64_t row_step, int64_t column_step, int64_t k_step)
{
    tke_real *c = numbers_copy(p->start, p->c_count);
    const tke_gemm *g = &p->g;
    for (int64_t i = 0; i < g->m; i += row_step)
        for (int64_t j = 0; j < g->n; j += column_step)
            for (int64_t k = 0; k < g->k; k += k_step) {
                tke_gemm part = *g;
                part.m = g->m - i < row_step ? g->m - i : row_step;
                part.n = g->n - j < column_step ? g->n - j : column_step;
                part.k = g->k - k < k_step ? g->k - k : k_step;
                part.a += g->form == TKE_TN ? k * g->lda + i : i * g->lda + k;
                int64_t at = g->form == TKE_NT ? j * g->b.ld + k : k * g->b.ld + j;
                part.b.data = (const char *)g->b.data + (size_t)at * tke_dtype_size(g->b.dtype);
                part.c = c + i * g->ldc + j;
                part.accumulate = g->accumulate || k > 0;
                tke_gemm_run(cpu, &part);
            }
    return c;
}

static void expect_same(tke_cpu *cpu, const problem *p, int64_t row_step, int64_t column_step, int64_t k_step)
{
    tke_real *c = again(cpu, p, row_step, column_step, k_step);
    if (!numbers_same_bits(c, p->c, p->c_count))
        fail_msg("%s: form %d %dx%dx%d dtype %d: other bits when cut %d %d %d", tke_cpu_name(cpu), (int)p->g.form,
                 (int)p->g.m, (int)p->g.n, (int)p->g.k, (int)p->g.b.dtype, (int)row_step, (int)column_step,
                 (int)k_step);
    numbers_free(c);
}

static void same_bits(int32_t isa, int32_t precision)
{
    tke_cpu *one = cpu_new(isa, 1, precision), *three = cpu_new(isa, 3, precision);
    numbers rng = { 3 };
    int64_t all = INT64_MAX / 2;
    for (int round = 0; round < 36; round++) {
        tke_form form = (tke_form)(round % 3);
        problem p = make(&rng, form, dtypes[round / 3 % 3], numbers_range(&rng, 15, 70), numbers_range(&rng, 30, 150),
                         numbers_range(&rng, 380, 900));
        tke_gemm_run(three, &p.g);
        expect_same(one, &p, all, all, all);
        expect_same(one, &p, 1, all, all);
        expect_same(three, &p, 2, all, all);
        expect_same(one, &p, 5, all, all);
        expect_same(one, &p, all, 17, all);
        expect_same(three, &p, 32, all, all);
        /* Along k in fp32 anywhere (gradients by tokens); bf16 pairs must not be cut. */
        expect_same(one, &p, all, all, precision == TKE_PRECISION_F32 || form == TKE_TN ? 77 : 76);
        end(&p);
    }
    tke_cpu_free(one);
    tke_cpu_free(three);
}

static void same_bits_f32(int32_t isa)
{
    same_bits(isa, TKE_PRECISION_F32);
}

static void same_bits_bf16(int32_t isa)
{
    same_bits(isa, TKE_PRECISION_BF16);
}

TEST(bits_do_not_depend_on_cuts)
{
    each_isa(same_bits_f32);
    each_isa(same_bits_bf16);
}

/* Few rows against a weight whose rows are short: several of its rows are read as one stream, and
 * columns that fill no stream are not. */
static void short_rows(int32_t isa, int32_t precision)
{
    static const int64_t lengths[] = { 24, 129, 680, 1021, 1024 };
    tke_cpu *one = cpu_new(isa, 1, precision), *three = cpu_new(isa, 3, precision);
    numbers rng = { 6 };
    int64_t all = INT64_MAX / 2;
    for (int round = 0; round < 20; round++) {
        problem p = make(&rng, TKE_NT, TKE_BF16, 1 + round / 5, numbers_range(&rng, 130, 290), lengths[round % 5]);
        tke_gemm_run(one, &p.g);
        check(&p, precision == TKE_PRECISION_F32 ? 4e-6 : 1.0 / 250);
        expect_same(three, &p, all, all, all);
        expect_same(one, &p, all, 13, all);
        expect_same(three, &p, all, all, precision == TKE_PRECISION_F32 ? 77 : 76);
        end(&p);
    }
    tke_cpu_free(one);
    tke_cpu_free(three);
}

static void short_rows_f32(int32_t isa)
{
    short_rows(isa, TKE_PRECISION_F32);
}

static void short_rows_bf16(int32_t isa)
{
    short_rows(isa, TKE_PRECISION_BF16);
}

TEST(short_rows_have_the_same_bits)
{
    each_isa(short_rows_f32);
    each_isa(short_rows_bf16);
}

/* Pieces of a large product that is read once: more than one for each thread. */
TEST(pieces_have_the_same_bits)
{
    tke_cpu *one = cpu_new(TKE_ISA_AUTO, 1, TKE_PRECISION_F32);
    tke_cpu *two = cpu_new(TKE_ISA_AUTO, 2, TKE_PRECISION_F32);
    numbers rng = { 7 };
    problem p = make(&rng, TKE_NT, TKE_BF16, 1, 2085, 1024);
    tke_gemm_run(one, &p.g);
    check(&p, 4e-6);
    expect_same(two, &p, INT64_MAX / 2, INT64_MAX / 2, INT64_MAX / 2);
    end(&p);
    tke_cpu_free(one);
    tke_cpu_free(two);
}

/* A NaN in a row of a, or an infinity in a column of b, stays in its row or column. */
static void poison_for_isa(int32_t isa)
{
    tke_cpu *cpu = cpu_new(isa, 1, TKE_PRECISION_F32);
    numbers rng = { 4 };
    for (int round = 0; round < 60; round++) {
        tke_form form = (tke_form)(round % 3);
        problem p = make(&rng, form, TKE_F32, numbers_range(&rng, 2, 33), numbers_range(&rng, 2, 70),
                         numbers_range(&rng, 1, 40));
        int64_t row = numbers_range(&rng, 0, p.g.m - 1), column = numbers_range(&rng, 0, p.g.n - 1);
        int64_t k = numbers_range(&rng, 0, p.g.k - 1);
        p.a[form == TKE_TN ? k * p.g.lda + row : row * p.g.lda + k] = NAN;
        ((float *)p.b)[form == TKE_NT ? column * p.g.b.ld + k : k * p.g.b.ld + column] = INFINITY;
        tke_gemm_run(cpu, &p.g);
        for (int64_t i = 0; i < p.g.m; i++)
            for (int64_t j = 0; j < p.g.n; j++) {
                tke_real c = p.c[i * p.g.ldc + j];
                assert_int_equal(isnan(c) != 0, i == row);
                if (i != row)
                    assert_int_equal(isinf(c) != 0, j == column);
            }
        end(&p);
    }
    tke_cpu_free(cpu);
}

TEST(a_nan_stays_in_its_row)
{
    each_isa(poison_for_isa);
}

TEST(many_at_once)
{
    tke_cpu *cpu = cpu_new(TKE_ISA_AUTO, 3, TKE_PRECISION_F32);
    numbers rng = { 5 };
    enum { N = 70 };
    problem p[N];
    tke_gemm calls[N];
    for (int i = 0; i < N; i++) {
        p[i] = make(&rng, (tke_form)(i % 3), TKE_BF16, numbers_range(&rng, 0, 40), numbers_range(&rng, 1, 200),
                    numbers_range(&rng, 1, 100));
        calls[i] = p[i].g;
    }
    tke_gemm_run_all(cpu, calls, N);
    for (int i = 0; i < N; i++) {
        check(&p[i], 2e-6);
        expect_same(cpu, &p[i], INT64_MAX / 2, INT64_MAX / 2, INT64_MAX / 2);
        end(&p[i]);
    }
    tke_gemm_run_all(cpu, NULL, 0);
    tke_cpu_free(cpu);
}
