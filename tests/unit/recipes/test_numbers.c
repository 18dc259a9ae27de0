/* test_numbers.c - advantages, KL, pass@k, intervals: against numbers worked out by hand. */
#include <math.h>

#include "support/check.h"
#include "tinkc/recipes.h"

static void near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-9 * fmax(1, fabs(b))))
        fail_msg("%.12g is not %.12g", a, b);
}

static void test_advantages(void **state)
{
    const double rewards[] = { 1, 0, 0, 1 };
    static const struct {
        int32_t how;
        double first, second;
    } rows[] = { { TINKC_ADVANTAGE_MEAN, 0.5, -0.5 },
                 { TINKC_ADVANTAGE_STD, 0.5 / 0.500001, -0.5 / 0.500001 },
                 { TINKC_ADVANTAGE_LEAVE_ONE_OUT, 1 - 1.0 / 3, -2.0 / 3 } };
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        tinkc_error err = { 0 };
        double out[4];
        assert_true(tinkc_recipe_advantages(rows[i].how, rewards, 4, out, &err));
        near(out[0], rows[i].first);
        near(out[1], rows[i].second);
        near(out[0] + out[1] + out[2] + out[3], 0);
    }
}

static void test_advantages_refused(void **state)
{
    double out[2];
    (void)state;
    const double bad[] = { 1, NAN };
    tinkc_error err = { 0 };
    assert_false(tinkc_recipe_advantages(TINKC_ADVANTAGE_MEAN, bad, 2, out, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    err = (tinkc_error){ 0 };
    assert_false(tinkc_recipe_advantages(7, bad, 1, out, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    err = (tinkc_error){ 0 };
    assert_true(tinkc_recipe_advantages(TINKC_ADVANTAGE_LEAVE_ONE_OUT, bad, 1, out, &err));
    near(out[0], 0); /* alone in its group */
}

static void test_constant(void **state)
{
    const double same[] = { 0.25, 0.25, 0.25 }, other[] = { 0.25, 0.25, 0.5 };
    (void)state;
    assert_true(tinkc_recipe_is_constant(same, 3));
    assert_true(tinkc_recipe_is_constant(other, 1));
    assert_false(tinkc_recipe_is_constant(other, 3));
}

/* d = 1, 0 (masked), 3; mean 2; coefficient 0.1. */
static void test_kl(void **state)
{
    const float lp[] = { -1, -9, -1 }, ref[] = { -2, -1, -4 }, mask[] = { 1, 0, 1 };
    float a[] = { 0, 0, 0 }, b[] = { 1, 1, 1 }, c[] = { 0, 0, 0 };
    (void)state;
    tinkc_recipe_kl_advantages(lp, ref, mask, 3, 0.1, 2, 0, true, a);
    near((double)a[0], (double)0.1f);
    near((double)a[1], 0);
    near((double)a[2], (double)-0.1f);
    tinkc_recipe_kl_advantages(lp, ref, mask, 3, 0.1, 2, 0.5, true, c);
    near((double)c[0], (double)(float)(0.1 + 0.25 * -0.1));
    tinkc_recipe_kl_advantages(lp, ref, mask, 3, 1, 2, 0, false, b);
    near((double)b[0], 0);
    near((double)b[1], 1);
    near((double)b[2], -2);
}

/* Counted: of all ways to draw k of n, those that hold a right one. */
static double brute(size_t n, size_t right, size_t k)
{
    size_t all = 0, hit = 0;
    for (size_t set = 0; set < (size_t)1 << n; set++)
        if ((size_t)__builtin_popcountll(set) == k) {
            all++;
            hit += (set & (((size_t)1 << right) - 1)) != 0;
        }
    return (double)hit / (double)all;
}

static void test_pass_at_k(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 8; n++)
        for (size_t right = 0; right <= n; right++)
            for (size_t k = 1; k <= n; k++)
                near(tinkc_recipe_pass_at_k(n, right, k), brute(n, right, k));
    assert_true(isnan(tinkc_recipe_pass_at_k(3, 1, 4)));
    assert_true(isnan(tinkc_recipe_pass_at_k(3, 4, 1)));
    assert_true(isnan(tinkc_recipe_pass_at_k(3, 1, 0)));
}

static void test_bootstrap(void **state)
{
    double x[400];
    (void)state;
    for (size_t i = 0; i < 400; i++)
        x[i] = i % 4 == 0;
    tinkc_interval a = tinkc_recipe_bootstrap(x, 400, 0.95, 1);
    near(a.mean, 0.25);
    /* The normal interval is 0.25 +- 1.96 * sqrt(0.25 * 0.75 / 400) = +- 0.0424. */
    assert_true(fabs(a.low - 0.2076) < 0.01 && fabs(a.high - 0.2924) < 0.01);
    tinkc_interval b = tinkc_recipe_bootstrap(x, 400, 0.95, 1);
    near(a.low, b.low);
    assert_true(isnan(tinkc_recipe_bootstrap(x, 0, 0.95, 1).mean));
}

static void test_seeds(void **state)
{
    (void)state;
    uint64_t a = tinkc_recipe_seed(1, 2, 3, 4);
    assert_true(a == tinkc_recipe_seed(1, 2, 3, 4) && a >> 63 == 0);
    assert_true(a != tinkc_recipe_seed(2, 2, 3, 4) && a != tinkc_recipe_seed(1, 3, 2, 4) &&
                a != tinkc_recipe_seed(1, 2, 3, 5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_advantages), cmocka_unit_test(test_advantages_refused),
        cmocka_unit_test(test_constant),   cmocka_unit_test(test_kl),
        cmocka_unit_test(test_pass_at_k),  cmocka_unit_test(test_bootstrap),
        cmocka_unit_test(test_seeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
