/* test_preference.c - losses over preferences, their gradients and metrics against numbers worked out by hand.
 *
 * Weights of every example: 0, 1, 1. Log-probs -9, -1, -2 (s = -3) of the first, -9, -2, -4 (s = -6) of the second; the
 * reference has -4 and -5, so r = 1 and -1, and the pair's margin is m = 2. beta is 0.5.
 */
#include <math.h>

#include "client/train/loss_priv.h"
#include "support/client/api_support.h"
#include "tinkc/recipes.h"

enum { MOST = 4, LEN = 3 };

typedef struct bench {
    tinkc_error err;
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_batch *batch;
    tinkc_fwdbwd forward;
    tinkc_tensor tensors[MOST];
    const tinkc_tensor *cells[MOST];
    const char *names[2];
    float grads[MOST][LEN];
    float *rows[MOST];
    tinkc_loss loss;
} bench;

static const int64_t shape[] = { LEN };
static float good[] = { -9, -1, -2 }, bad[] = { -9, -2, -4 };
static float *const two_pairs[] = { good, bad, good, bad };
static const double reference[] = { -4, -5, -4, -5 };

static bool rejects_one; /* of the rejected answers only the last token has a weight */

static void open_bench(bench *b, size_t n)
{
    static const int32_t ids[] = { 1, 2, 3 };
    static const int64_t targets[] = { 2, 3, 4 };
    const float weights[] = { 0, 1, 1 }, shorter[] = { 0, 0, 1 };
    *b = (bench){ .names = { "logprobs" } };
    b->mock = tinkc_mock_new(TINKC_MOCK_EMPTY, &b->err);
    b->client = mock_client(b->mock, NULL, &b->err);
    b->batch = tinkc_batch_new(b->client, &b->err);
    for (size_t i = 0; i < n; i++) {
        tinkc_batch_add_tokens(b->batch, ids, LEN, &b->err);
        tinkc_batch_set(b->batch, "target_tokens",
                        &(tinkc_array){ .data = targets, .count = LEN, .shape = shape, .ndim = 1, .dtype = TINKC_I64 },
                        &b->err);
        tinkc_batch_set_f32(b->batch, "weights", i % 2 && rejects_one ? shorter : weights, LEN, &b->err);
        b->tensors[i] =
            (tinkc_tensor){ .dtype = TINKC_F32, .ndim = 1, .shape = shape, .data = two_pairs[i], .count = LEN };
        b->cells[i] = &b->tensors[i];
        b->rows[i] = b->grads[i];
    }
    b->forward = (tinkc_fwdbwd){ .n = n, .names = b->names, .n_names = 1, .tensors = b->cells };
    b->loss = (tinkc_loss){ .batch = b->batch, .forward = &b->forward, .grads = b->rows };
    assert_ok(&b->err);
}

static void close_bench(bench *b)
{
    tkc_arena_free(&b->loss.arena);
    tinkc_batch_free(b->batch);
    tinkc_client_free(b->client);
    tinkc_mock_free(b->mock);
}

static void near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-6))
        fail_msg("%.9g is not %.9g", a, b);
}

static double metric(const bench *b, const char *name)
{
    for (size_t i = 0; i < tinkc_metrics_count(&b->loss.metrics); i++)
        if (strcmp(tinkc_metrics_name(&b->loss.metrics, i), name) == 0)
            return tinkc_metrics_value(&b->loss.metrics, i);
    fail_msg("no metric %s", name);
    return 0;
}

/* The gradient of an example: the same for both weighted tokens, none for the other. */
static void check_grad(const bench *b, size_t i, double each)
{
    near((double)b->grads[i][0], 0);
    near((double)b->grads[i][1], each);
    near((double)b->grads[i][2], each);
}

static void run(bench *b, size_t n, tinkc_preference how)
{
    open_bench(b, n);
    how.reference = reference;
    how.n = n;
    how.beta = 0.5;
    assert_true(tinkc_recipe_loss_preference(&b->loss, &how, &b->err));
    assert_ok(&b->err);
}

/* log(1 + e^-1) = 0.313261688; slope -0.5 * sigmoid(-1) = -0.5 * 0.268941421. */
TEST(dpo_raises_the_chosen_and_lowers_the_rejected)
{
    bench b;
    run(&b, 2, (tinkc_preference){ .kind = TINKC_PREFER_DPO });
    near(b.loss.value, 0.313261688);
    check_grad(&b, 0, -0.5 * 0.268941421);
    check_grad(&b, 1, 0.5 * 0.268941421);
    near(metric(&b, "dpo_loss"), 0.313261688);
    near(metric(&b, "accuracy"), 1);
    near(metric(&b, "margin"), 0.5 * 2);
    near(metric(&b, "chosen_reward"), 0.5 * 1);
    near(metric(&b, "rejected_reward"), 0.5 * -1);
    close_bench(&b);
}

/* Twice the same pair: the same mean, and half the gradient for each. */
TEST(a_loss_is_the_mean_over_pairs)
{
    bench b;
    run(&b, 4, (tinkc_preference){ .kind = TINKC_PREFER_DPO });
    near(b.loss.value, 0.313261688);
    near(metric(&b, "margin"), 1);
    for (size_t i = 0; i < 4; i++)
        check_grad(&b, i, (i % 2 ? 0.25 : -0.25) * 0.268941421);
    close_bench(&b);
}

/* Two weighted tokens: r = 0.5 and -0.5, m = 1; log(1 + e^-0.5) = 0.474076984, sigmoid(-0.5) = 0.377540669. */
TEST(by_length_divides_by_the_weights)
{
    bench b;
    run(&b, 2, (tinkc_preference){ .kind = TINKC_PREFER_DPO, .by_length = true });
    near(b.loss.value, 0.474076984);
    check_grad(&b, 0, -0.5 * 0.377540669 / 2);
    check_grad(&b, 1, 0.5 * 0.377540669 / 2);
    near(metric(&b, "chosen_reward"), 0.25);
    close_bench(&b);
}

/* Of the second s = -4 of one token, r = 1: m = 0.5 - 1; log(1 + e^0.25) = 0.825939420, sigmoid(0.25) = 0.562176501. Each is
 * divided by its own length. */
TEST(each_of_a_pair_has_its_own_length)
{
    bench b;
    rejects_one = true;
    run(&b, 2, (tinkc_preference){ .kind = TINKC_PREFER_DPO, .by_length = true });
    rejects_one = false;
    near(b.loss.value, 0.825939420);
    near((double)b.grads[0][2], -0.5 * 0.562176501 / 2);
    near((double)b.grads[1][2], 0.5 * 0.562176501);
    near(metric(&b, "accuracy"), 0);
    close_bench(&b);
}

/* (m - 1 / (2 * 0.5))^2 = (2 - 1)^2; slope 2 * (2 - 1): the margin is already too large. */
TEST(ipo_pulls_the_margin_to_its_aim)
{
    bench b;
    run(&b, 2, (tinkc_preference){ .kind = TINKC_PREFER_IPO });
    near(b.loss.value, 1);
    check_grad(&b, 0, 2);
    check_grad(&b, 1, -2);
    close_bench(&b);
}

/* With kl = 0.2: 0.5 * (1 - 0.2) = 0.4 of the good one, 0.5 * (0.2 + 1) = 0.6 of the bad one; sigmoid(0.4) =
 * 0.598687660, sigmoid(0.6) = 0.645656306. */
TEST(kto_raises_the_good_and_lowers_the_bad)
{
    static const bool which[] = { true, false };
    const double p = 0.598687660, q = 0.645656306;
    bench b;
    run(&b, 2, (tinkc_preference){ .kind = TINKC_PREFER_KTO, .good = which, .kl = 0.2 });
    near(b.loss.value, ((1 - p) + (1 - q)) / 2);
    check_grad(&b, 0, -0.5 * p * (1 - p) / 2);
    check_grad(&b, 1, 0.5 * q * (1 - q) / 2);
    near(metric(&b, "accuracy"), 1);
    near(metric(&b, "margin"), (0.4 + 0.6) / 2);
    near(metric(&b, "chosen_reward"), 0.5);
    near(metric(&b, "rejected_reward"), -0.5);
    close_bench(&b);
}

/* The mean of s - reference: (-3 + 4) and (-6 + 8), that is 1.5; halves by length; never below 0. */
TEST(the_kl_of_kto_is_the_mean_distance_from_the_reference)
{
    static const double above[] = { -4, -8 }, below[] = { -2, -5 };
    bench b;
    open_bench(&b, 2);
    near(tinkc_recipe_kto_kl(&b.forward, b.batch, above, 2, false, &b.err), 1.5);
    near(tinkc_recipe_kto_kl(&b.forward, b.batch, above, 2, true, &b.err), 0.75);
    near(tinkc_recipe_kto_kl(&b.forward, b.batch, below, 2, false, &b.err), 0);
    assert_ok(&b.err);
    close_bench(&b);
}
