/* test_numbers.c - advantages, KL, pass@k, intervals: against numbers worked out by hand. */
#include <math.h>

#include "support/check.h"
#include "tinkc/recipes.h"

static void near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-9 * fmax(1, fabs(b))))
        fail_msg("%.12g is not %.12g", a, b);
}

TEST(each_advantage_has_its_formula)
{
    const double rewards[] = { 1, 0, 0, 1 };
    static const struct {
        int32_t how;
        double first, second;
    } rows[] = { { TINKC_ADVANTAGE_MEAN, 0.5, -0.5 },
                 { TINKC_ADVANTAGE_STD, 0.5 / 0.500001, -0.5 / 0.500001 },
                 { TINKC_ADVANTAGE_LEAVE_ONE_OUT, 1 - 1.0 / 3, -2.0 / 3 } };
    for (size_t i = 0; i < 3; i++) {
        tinkc_error err = { 0 };
        double out[4];
        assert_true(tinkc_recipe_advantages(rows[i].how, rewards, 4, out, &err));
        near(out[0], rows[i].first);
        near(out[1], rows[i].second);
        near(out[0] + out[1] + out[2] + out[3], 0);
    }
}

TEST(rewards_that_are_not_numbers_are_refused)
{
    double out[2];
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

TEST(a_group_is_constant_if_its_rewards_are_equal)
{
    const double same[] = { 0.25, 0.25, 0.25 }, other[] = { 0.25, 0.25, 0.5 };
    assert_true(tinkc_recipe_is_constant(same, 3));
    assert_true(tinkc_recipe_is_constant(other, 1));
    assert_false(tinkc_recipe_is_constant(other, 3));
}

/* d = 1, 0 (masked), 3; mean 2; coefficient 0.1. */
TEST(the_kl_penalty_is_added_to_advantages)
{
    const float lp[] = { -1, -9, -1 }, ref[] = { -2, -1, -4 }, mask[] = { 1, 0, 1 };
    float a[] = { 0, 0, 0 }, b[] = { 1, 1, 1 }, c[] = { 0, 0, 0 };
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

TEST(pass_at_k)
{
    for (size_t n = 1; n <= 8; n++)
        for (size_t right = 0; right <= n; right++)
            for (size_t k = 1; k <= n; k++)
                near(tinkc_recipe_pass_at_k(n, right, k), brute(n, right, k));
    assert_true(isnan(tinkc_recipe_pass_at_k(3, 1, 4)));
    assert_true(isnan(tinkc_recipe_pass_at_k(3, 4, 1)));
    assert_true(isnan(tinkc_recipe_pass_at_k(3, 1, 0)));
}

TEST(a_bootstrap_interval_holds_the_mean)
{
    double x[400];
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

TEST(each_sample_has_a_seed_of_its_own)
{
    uint64_t a = tinkc_recipe_seed(1, 2, 3, 4);
    assert_true(a == tinkc_recipe_seed(1, 2, 3, 4) && a >> 63 == 0);
    assert_true(a != tinkc_recipe_seed(2, 2, 3, 4) && a != tinkc_recipe_seed(1, 3, 2, 4) &&
                a != tinkc_recipe_seed(1, 2, 3, 5));
}

/* (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), z = 1.959964. */
TEST(wilson_knows_more_than_its_examples)
{
    const struct {
        size_t right, n;
        double low, high;
    } rows[] = { { 20, 20, 0.838870, 1 }, { 0, 10, 0, 0.277533 }, { 7, 10, 0.396774, 0.892209 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_interval w = tinkc_recipe_wilson(rows[i].right, rows[i].n, 0.95);
        assert_true(fabs(w.mean - ((double)rows[i].right / (double)rows[i].n)) < 1e-12);
        assert_true(fabs(w.low - (rows[i].low)) < 1e-5);
        assert_true(fabs(w.high - (rows[i].high)) < 1e-5);
    }
    assert_true(isnan(tinkc_recipe_wilson(0, 0, 0.95).mean));
    assert_true(isnan(tinkc_recipe_wilson(3, 2, 0.95).low));
    assert_true(isnan(tinkc_recipe_wilson(1, 2, 1).high));
}

/* Newcombe's interval, by hand for 8 both, 1 only the first, 7 only the second, 4 neither: shares 0.45 and
 * 0.75 with Wilson's limits 0.258198 to 0.657915 and 0.531299 to 0.888138; phi = (8*4 - 1*7 - 20/2) /
 * sqrt(9*11*15*5) = 0.174078. */
TEST(differences_of_pairs)
{
    tinkc_interval same = tinkc_recipe_paired_difference(20, 0, 0, 0, 0.95);
    assert_true(fabs(same.mean - (0)) < 1e-12);
    assert_true(fabs(same.low - (-0.161130)) < 1e-5);
    assert_true(fabs(same.high - (0.161130)) < 1e-5);
    tinkc_interval d = tinkc_recipe_paired_difference(8, 1, 7, 4, 0.95);
    assert_true(fabs(d.mean - (0.3)) < 1e-12);
    assert_true(fabs(d.low - (0.025724)) < 1e-4);
    assert_true(fabs(d.high - (0.515976)) < 1e-4);
    tinkc_interval back = tinkc_recipe_paired_difference(8, 7, 1, 4, 0.95);
    assert_true(fabs(back.low - (-d.high)) < 1e-12);
    assert_true(fabs(back.high - (-d.low)) < 1e-12);
}
