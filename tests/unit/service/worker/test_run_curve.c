/* test_run_curve.c - losses of a run for the page: means of steps, and never more than fit. */
#include <math.h>

#include "service/worker/run_curve.h"
#include "support/check.h"

TEST(a_step_is_the_mean_of_its_passes)
{
    tke_curve c = { 0 };
    tke_curve_pass(&c, 6, 2);
    tke_curve_pass(&c, 3, 1);
    tke_curve_step(&c);
    tke_curve_pass(&c, 5, 10);
    tke_curve_step(&c);
    assert_int_equal(c.n, 2);
    assert_true(c.points[0].step == 0 && c.points[0].loss == 3.0);
    assert_true(c.points[1].step == 1 && c.points[1].loss == 0.5);
}

TEST(steps_without_a_loss_have_no_point)
{
    static const struct {
        double sum;
        int64_t tokens;
    } rows[] = { { 0, 0 }, { NAN, 3 }, { INFINITY, 3 } };
    for (size_t i = 0; i < 3; i++) {
        tke_curve c = { 0 };
        tke_curve_pass(&c, rows[i].sum, rows[i].tokens);
        tke_curve_step(&c);
        assert_true(c.n == 0 && c.steps == 1);
        tke_curve_pass(&c, 4, 2); /* and the next is not touched by it */
        tke_curve_step(&c);
        assert_true(c.n == 1 && c.points[0].step == 1 && c.points[0].loss == 2.0);
    }
}

TEST(a_long_run_keeps_its_first_step_and_even_distances)
{
    tke_curve c = { 0 };
    for (int i = 0; i < 10000; i++) {
        tke_curve_pass(&c, i, 1);
        tke_curve_step(&c);
        assert_true(c.n >= 1 && c.n <= TKE_CURVE_POINTS);
    }
    assert_true(c.steps == 10000 && c.n > TKE_CURVE_POINTS / 2 - 1);
    for (size_t i = 0; i < c.n; i++) {
        assert_int_equal(c.points[i].step, (int64_t)i * c.every);
        assert_true(c.points[i].loss == (double)c.points[i].step);
    }
    assert_true(c.points[c.n - 1].step >= 10000 - c.every);
}
