/* test_losses.c - gradients of the ready-made losses and of tapes against finite differences. */
#include <math.h>

#include "client/train/loss_priv.h"
#include "support/client/api_support.h"
#include "support/scarce.h"
#include "tinkc/tape.h"

enum { N = 4, LEN = 6 };

static const tinkc_allocator *lean; /* of the next bench; NULL = the usual one */

typedef struct bench {
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_batch *batch;
    tinkc_fwdbwd forward;
    tinkc_tensor tensors[N];
    const tinkc_tensor *cells[N];
    const char *names[2];
    float logprobs[N][LEN], grads[N][LEN];
    float *grad_rows[N];
    int64_t shape[2];
} bench;

static void open_bench(bench *b, const int64_t *shape, size_t ndim, const float *weights)
{
    tinkc_error err = { 0 };
    int32_t ids[LEN] = { 1, 2, 3, 4, 5, 6 };
    int64_t targets[LEN] = { 2, 3, 4, 5, 6, 7 };
    b->mock = tinkc_mock_new(TINKC_MOCK_EMPTY, &err);
    b->client = mock_client(b->mock, &(tinkc_client_options){ .allocator = lean }, &err);
    b->batch = tinkc_batch_new(b->client, &err);
    b->names[0] = "logprobs";
    b->forward = (tinkc_fwdbwd){ .n = N, .names = b->names, .n_names = 1, .tensors = b->cells };
    memcpy(b->shape, shape, ndim * sizeof *shape);
    for (size_t i = 0; i < N; i++) {
        tinkc_batch_add_tokens(b->batch, ids, LEN, &err);
        tinkc_batch_set(
            b->batch, "target_tokens",
            &(tinkc_array){ .data = targets, .count = LEN, .shape = shape, .ndim = ndim, .dtype = TINKC_I64 }, &err);
        if (weights)
            tinkc_batch_set(
                b->batch, "weights",
                &(tinkc_array){ .data = weights, .count = LEN, .shape = shape, .ndim = ndim, .dtype = TINKC_F32 },
                &err);
        for (size_t k = 0; k < LEN; k++)
            b->logprobs[i][k] = -0.3f - 0.41f * (float)((i * 5 + k * 3) % 7);
        b->tensors[i] = (tinkc_tensor){
            .dtype = TINKC_F32, .ndim = (int32_t)ndim, .shape = b->shape, .data = b->logprobs[i], .count = LEN
        };
        b->cells[i] = &b->tensors[i];
        b->grad_rows[i] = b->grads[i];
    }
    assert_ok(&err);
}

static void close_bench(bench *b)
{
    tinkc_batch_free(b->batch);
    tinkc_client_free(b->client);
    tinkc_mock_free(b->mock);
}

static double evaluate(bench *b, tinkc_loss_fn *fn, void *user)
{
    tinkc_error err = { 0 };
    memset(b->grads, 0, sizeof b->grads);
    tinkc_loss loss = { .batch = b->batch, .forward = &b->forward, .grads = b->grad_rows };
    assert_true(fn(&loss, user, &err));
    assert_ok(&err);
    assert_true(loss.is_set);
    tkc_arena_free(&loss.arena);
    return loss.value;
}

static void compare_with_differences(bench *b, tinkc_loss_fn *fn, void *user)
{
    float exact[N][LEN];
    bool moves = false;
    evaluate(b, fn, user);
    memcpy(exact, b->grads, sizeof exact);
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < LEN; k++) {
            float at = b->logprobs[i][k], h = 1.0f / 256;
            b->logprobs[i][k] = at + h;
            double above = evaluate(b, fn, user);
            b->logprobs[i][k] = at - h;
            double below = evaluate(b, fn, user);
            b->logprobs[i][k] = at;
            double slope = (above - below) / (2.0 * (double)h);
            assert_true(fabs(slope - (double)exact[i][k]) < 1e-4);
            moves |= fabs(slope) > 1e-3;
        }
    assert_true(moves);
}

TEST(the_gradient_of_dpo_is_its_finite_difference)
{
    bench b;
    static const float weights[LEN] = { 0, 0, 1, 1, 1, 0.5f };
    static const double reference[N] = { -3.1, -2.0, -4.0, -5.5 };
    tinkc_dpo dpo = { .reference = reference, .n = N, .beta = 0.3 };
    open_bench(&b, (int64_t[]){ LEN }, 1, weights);
    compare_with_differences(&b, tinkc_loss_dpo, &dpo);
    /* Equal rewards: ln 2 whatever beta is. */
    double sums[N];
    for (size_t i = 0; i < N; i++) {
        sums[i] = 0;
        for (size_t k = 0; k < LEN; k++)
            sums[i] += (double)weights[k] * (double)b.logprobs[i][k];
    }
    dpo.reference = sums;
    assert_true(fabs(evaluate(&b, tinkc_loss_dpo, &dpo) - log(2.0)) < 1e-12);
    tinkc_error err = { 0 };
    tinkc_loss loss = { .batch = b.batch, .forward = &b.forward, .grads = b.grad_rows };
    dpo.beta = 0;
    assert_false(tinkc_loss_dpo(&loss, &dpo, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    dpo.beta = 0.3;
    dpo.reserved[3] = 1;
    err = (tinkc_error){ 0 };
    assert_false(tinkc_loss_dpo(&loss, &dpo, &err));
    assert_string_equal(err.message, "reserved: must be zero");
    dpo.reserved[3] = 0;
    for (size_t n = 0; n < N; n++) { /* fewer than the batch has */
        err = (tinkc_error){ 0 };
        dpo.n = n;
        assert_false(tinkc_loss_dpo(&loss, &dpo, &err));
        assert_string_equal(err.message, "n: must be the number of examples, which come in pairs");
    }
    err = (tinkc_error){ 0 };
    dpo.n = b.batch->n = N - 1; /* one without its other half */
    assert_false(tinkc_loss_dpo(&loss, &dpo, &err));
    assert_string_equal(err.message, "n: must be the number of examples, which come in pairs");
    b.batch->n = N;
    close_bench(&b);
    /* Without weights every token counts once. */
    open_bench(&b, (int64_t[]){ LEN }, 1, NULL);
    dpo = (tinkc_dpo){ .reference = sums, .n = N, .beta = 0.3 };
    for (size_t i = 0; i < N; i++) {
        sums[i] = i % 2 ? -1 : 0;
        for (size_t k = 0; k < LEN; k++)
            sums[i] += (double)b.logprobs[i][k];
    }
    assert_true(fabs(evaluate(&b, tinkc_loss_dpo, &dpo) - log1p(exp(0.3))) < 1e-6);
    close_bench(&b);
}

static double metric(const tinkc_loss *loss, const char *name)
{
    return tinkc_metrics_get(&loss->metrics, name, NAN); /* NaN is close to nothing */
}

/* The figures beside the loss, from their definitions: a reward is beta times what the policy gives
 * an answer above the reference; the margin is chosen minus rejected. */
TEST(dpo_reports_its_rewards)
{
    bench b;
    static const float weights[LEN] = { 0, 0, 1, 1, 1, 0.5f };
    static const double reference[N] = { -3.1, -2.0, -9.0, -1.5 };
    tinkc_dpo dpo = { .reference = reference, .n = N, .beta = 0.3 };
    double reward[N], total = 0;
    tinkc_error err = { 0 };
    open_bench(&b, (int64_t[]){ LEN }, 1, weights);
    for (size_t i = 0; i < N; i++) {
        reward[i] = -reference[i];
        for (size_t k = 0; k < LEN; k++)
            reward[i] += (double)weights[k] * (double)b.logprobs[i][k];
        reward[i] *= 0.3;
    }
    int right = (reward[0] > reward[1]) + (reward[2] > reward[3]);
    assert_int_equal(right, 1); /* one pair of each kind */
    for (size_t i = 0; i < N; i += 2)
        total += log1p(exp(reward[i + 1] - reward[i]));
    tinkc_loss loss = { .batch = b.batch, .forward = &b.forward, .grads = b.grad_rows };
    assert_true(tinkc_loss_dpo(&loss, &dpo, &err));
    assert_true(fabs(metric(&loss, "dpo_loss") - total / 2) < 1e-9);
    assert_true(fabs(loss.value - total / 2) < 1e-9);
    assert_true(fabs(metric(&loss, "accuracy") - 0.5) < 1e-12);
    assert_true(fabs(metric(&loss, "chosen_reward") - (reward[0] + reward[2]) / 2) < 1e-9);
    assert_true(fabs(metric(&loss, "rejected_reward") - (reward[1] + reward[3]) / 2) < 1e-9);
    assert_true(fabs(metric(&loss, "margin") - (reward[0] + reward[2] - reward[1] - reward[3]) / 2) < 1e-9);
    tkc_arena_free(&loss.arena);
    close_bench(&b);
}

TEST(reverse_kl_gradients)
{
    bench b;
    /* Two positions of three candidates; a slot and no whole position do not count. */
    static const float teacher[LEN] = { 0.7f, 0.3f, 0, 0.2f, 0.5f, 0.3f };
    open_bench(&b, (int64_t[]){ 2, 3 }, 2, teacher);
    compare_with_differences(&b, tinkc_loss_reverse_kl, NULL);
    /* The teacher's own distribution has no divergence from itself. */
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < LEN; k++)
            b.logprobs[i][k] = teacher[k] > 0 ? logf(teacher[k]) - 0.5f : -9;
    assert_true(fabs(evaluate(&b, tinkc_loss_reverse_kl, NULL)) < 1e-6);
    /* Also where the student is sure of what the teacher does not name. */
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < LEN; k++)
            b.logprobs[i][k] = teacher[k] > 0 ? logf(teacher[k]) - 1000 : 0;
    assert_true(fabs(evaluate(&b, tinkc_loss_reverse_kl, NULL)) < 1e-2);
    close_bench(&b);
    /* One candidate has all of the probability, whatever was computed for it. */
    static const float sure[LEN] = { 1, 1, 1, 0, 1, 1 };
    open_bench(&b, (int64_t[]){ LEN, 1 }, 2, sure);
    assert_true(fabs(evaluate(&b, tinkc_loss_reverse_kl, NULL)) < 1e-6);
    close_bench(&b);
}

/* Positions count where any candidate has a weight, the last one too; where none counts the mean is 0. */
TEST(positions_of_a_reverse_kl)
{
    bench b;
    tinkc_error err = { 0 };
    static const float last[LEN] = { 0, 0, 0.5f, 0, 0, 0 }, none[LEN] = { 0 };
    open_bench(&b, (int64_t[]){ 2, 3 }, 2, last);
    tinkc_loss loss = { .batch = b.batch, .forward = &b.forward, .grads = b.grad_rows };
    assert_true(tinkc_loss_reverse_kl(&loss, NULL, &err));
    assert_true(fabs(metric(&loss, "reverse_kl") - log(2.0)) < 1e-7); /* of one position in two */
    assert_true(fabs(loss.value - N * log(2.0)) < 1e-6);
    tkc_arena_free(&loss.arena);
    b.tensors[N - 1].count = LEN - 1;
    assert_false(tinkc_loss_reverse_kl(&loss, NULL, &err));
    assert_int_equal(err.code, TINKC_E_TENSOR);
    assert_string_equal(err.message, "example 3: target_tokens and weights must be matrices of one shape");
    err = (tinkc_error){ 0 };
    assert_false(tinkc_loss_reverse_kl(&loss, &b, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_string_equal(err.message, "user: must be NULL");
    close_bench(&b);
    open_bench(&b, (int64_t[]){ LEN }, 1, last);
    err = (tinkc_error){ 0 };
    loss = (tinkc_loss){ .batch = b.batch, .forward = &b.forward, .grads = b.grad_rows };
    assert_false(tinkc_loss_reverse_kl(&loss, NULL, &err));
    assert_int_equal(err.code, TINKC_E_TENSOR);
    err = (tinkc_error){ 0 };
    close_bench(&b);
    static const float behind[LEN] = { 0, 0, 0, 0.5f, 0, 0 };
    open_bench(&b, (int64_t[]){ 2, 3 }, 2, behind);
    loss = (tinkc_loss){ .batch = b.batch, .forward = &b.forward, .grads = b.grad_rows };
    assert_true(tinkc_loss_reverse_kl(&loss, NULL, &err));
    assert_true(fabs(loss.value - N * log(2.0)) < 1e-6);
    tkc_arena_free(&loss.arena);
    close_bench(&b);
    static const float both[LEN] = { 0, 0, 0.5f, 0.5f, 0, 0 };
    open_bench(&b, (int64_t[]){ 2, 3 }, 2, both);
    loss = (tinkc_loss){ .batch = b.batch, .forward = &b.forward, .grads = b.grad_rows };
    assert_true(tinkc_loss_reverse_kl(&loss, NULL, &err));
    assert_true(fabs(metric(&loss, "reverse_kl") - log(2.0)) < 1e-7); /* a position, not an example */
    assert_true(fabs(loss.value - 2 * N * log(2.0)) < 1e-6);
    tkc_arena_free(&loss.arena);
    close_bench(&b);
    open_bench(&b, (int64_t[]){ 2, 3 }, 2, none);
    loss = (tinkc_loss){ .batch = b.batch, .forward = &b.forward, .grads = b.grad_rows };
    assert_true(tinkc_loss_reverse_kl(&loss, NULL, &err));
    assert_true(metric(&loss, "reverse_kl") == 0 && loss.value == 0);
    tkc_arena_free(&loss.arena);
    assert_false(tinkc_loss_metric(NULL, "x", 1, &err));
    assert_string_equal(err.message, "loss: must not be empty");
    for (int i = 0; i < 2; i++) {
        err = (tinkc_error){ 0 };
        assert_false(tinkc_loss_metric(&loss, i ? "" : NULL, 1, &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
        assert_string_equal(err.message, "name: must not be empty");
    }
    close_bench(&b);
}

/* ---- tapes: the losses that people write, in about ten lines each ---- */

typedef struct given {
    const float *rows[N];
    double numbers[N];
} given;

static bool grpo(tinkc_loss *loss, void *user, tinkc_error *err)
{
    const given *g = user;
    tinkc_tape *t = tinkc_tape_new(loss, err);
    tinkc_var ratio = tinkc_tape_exp(t, tinkc_tape_sub(t, tinkc_tape_logprobs(t), tinkc_tape_tokens(t, g->rows)));
    tinkc_var gain = tinkc_tape_sequences(t, g->numbers);
    tinkc_var safe = tinkc_tape_clamp(t, ratio, 0.8, 1.2);
    tinkc_var best = tinkc_tape_min(t, tinkc_tape_mul(t, ratio, gain), tinkc_tape_mul(t, safe, gain));
    tinkc_var sum = tinkc_tape_sum(t, tinkc_tape_mul(t, best, tinkc_tape_weights(t)));
    return tinkc_tape_backward(t, tinkc_tape_neg(t, sum), err);
}

static bool dpo(tinkc_loss *loss, void *user, tinkc_error *err)
{
    const tinkc_dpo *o = user;
    tinkc_tape *t = tinkc_tape_new(loss, err);
    tinkc_var sums = tinkc_tape_sum_tokens(t, tinkc_tape_mul(t, tinkc_tape_logprobs(t), tinkc_tape_weights(t)));
    tinkc_var d = tinkc_tape_sub(t, sums, tinkc_tape_sequences(t, o->reference));
    tinkc_var margin = tinkc_tape_sub(t, tinkc_tape_slice(t, d, 0, 2), tinkc_tape_slice(t, d, 1, 2));
    tinkc_var scaled = tinkc_tape_mul(t, margin, tinkc_tape_number(t, -o->beta));
    return tinkc_tape_backward(t, tinkc_tape_mean(t, tinkc_tape_softplus(t, scaled)), err);
}

/* k3 against a reference, plus an entropy bonus. */
static bool kl_and_entropy(tinkc_loss *loss, void *user, tinkc_error *err)
{
    const given *g = user;
    tinkc_tape *t = tinkc_tape_new(loss, err);
    tinkc_var lp = tinkc_tape_logprobs(t), one = tinkc_tape_number(t, 1);
    tinkc_var x = tinkc_tape_sub(t, tinkc_tape_tokens(t, g->rows), lp);
    tinkc_var k3 = tinkc_tape_sub(t, tinkc_tape_sub(t, tinkc_tape_exp(t, x), x), one);
    tinkc_var kl = tinkc_tape_mean(t, tinkc_tape_mean_tokens(t, k3));
    tinkc_var bonus = tinkc_tape_mul(t, tinkc_tape_mean(t, lp), tinkc_tape_number(t, 0.01));
    return tinkc_tape_backward(t, tinkc_tape_add(t, kl, bonus), err);
}

/* Whatever else there is: division, logarithm, max, sigmoid, a value used twice, one that passes no
 * gradient, clamps on both sides. */
static bool everything(tinkc_loss *loss, void *user, tinkc_error *err)
{
    const given *g = user;
    tinkc_tape *t = tinkc_tape_new(loss, err);
    tinkc_var lp = tinkc_tape_logprobs(t);
    tinkc_var p = tinkc_tape_exp(t, lp);
    tinkc_var q = tinkc_tape_div(t, p, tinkc_tape_sub(t, tinkc_tape_number(t, 1.5), p));
    tinkc_var odds = tinkc_tape_log(t, q);
    tinkc_var top = tinkc_tape_max(t, odds, tinkc_tape_sequences(t, g->numbers));
    tinkc_var gate = tinkc_tape_sigmoid(t, tinkc_tape_sum_tokens(t, tinkc_tape_mul(t, lp, p)));
    tinkc_var frozen = tinkc_tape_constant(t, p);
    tinkc_var cut = tinkc_tape_clamp(t, lp, -1.63, -0.65);
    tinkc_var all = tinkc_tape_add(t, tinkc_tape_mul(t, top, gate), tinkc_tape_mul(t, frozen, cut));
    return tinkc_tape_backward(t, tinkc_tape_mean(t, all), err);
}

TEST(the_gradient_of_a_tape_is_its_finite_difference)
{
    static const float weights[LEN] = { 0, 1, 1, 0.5f, 1, 1 };
    static const double reference[N] = { -3.1, -2.0, -4.0, -5.5 };
    float old[N][LEN];
    given g = { .numbers = { 1.0, -0.5, 0.25, -2.0 } };
    bench b;
    open_bench(&b, (int64_t[]){ LEN }, 1, weights);
    for (size_t i = 0; i < N; i++) {
        g.rows[i] = old[i];
        for (size_t k = 0; k < LEN; k++) /* ratios inside and outside of the clamp, none at its edge */
            old[i][k] = b.logprobs[i][k] + 0.11f * (float)((int)((i + 2 * k) % 7) - 3) + 0.013f;
    }
    compare_with_differences(&b, grpo, &g);
    compare_with_differences(&b, kl_and_entropy, &g);
    tinkc_dpo o = { .reference = reference, .n = N, .beta = 0.3 };
    compare_with_differences(&b, dpo, &o);
    /* The same number and the same gradients as the ready one. */
    float ready[N][LEN];
    double value = evaluate(&b, tinkc_loss_dpo, &o);
    memcpy(ready, b.grads, sizeof ready);
    assert_true(fabs(value - evaluate(&b, dpo, &o)) < 1e-12);
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < LEN; k++)
            assert_true(fabsf(ready[i][k] - b.grads[i][k]) < 1e-7f);
    close_bench(&b);
}

/* `constant` differs from its differences on purpose: compare with the gradient worked out by hand
 * where it stands alone, and with differences without it. */
static bool through_constant(tinkc_loss *loss, void *user, tinkc_error *err)
{
    tinkc_tape *t = tinkc_tape_new(loss, err);
    tinkc_var lp = tinkc_tape_logprobs(t);
    (void)user;
    return tinkc_tape_backward(t, tinkc_tape_sum(t, tinkc_tape_mul(t, tinkc_tape_constant(t, lp), lp)), err);
}

/* sum(logprobs) + 2 sum(logprobs), each asked for again. */
static bool asked_twice(tinkc_loss *loss, void *user, tinkc_error *err)
{
    (void)user;
    tinkc_tape *t = tinkc_tape_new(loss, err);
    tinkc_var once = tinkc_tape_sum(t, tinkc_tape_logprobs(t));
    tinkc_var more = tinkc_tape_mul(t, tinkc_tape_logprobs(t), tinkc_tape_number(t, 2));
    return tinkc_tape_backward(t, tinkc_tape_add(t, once, tinkc_tape_sum(t, more)), err);
}

TEST(log_probs_that_are_asked_for_twice_are_the_same)
{
    bench b;
    open_bench(&b, (int64_t[]){ LEN }, 1, NULL);
    evaluate(&b, asked_twice, NULL);
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < LEN; k++)
            assert_true(b.grads[i][k] == 3);
    close_bench(&b);
}

TEST(tape_of_everything)
{
    static const float weights[LEN] = { 1, 1, 1, 1, 1, 1 };
    given g = { .numbers = { -1.3, -0.9, -4.0, 3.0 } };
    bench b;
    open_bench(&b, (int64_t[]){ LEN }, 1, weights);
    evaluate(&b, through_constant, NULL);
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < LEN; k++)
            assert_true(b.grads[i][k] == b.logprobs[i][k]); /* not twice that */
    /* Gradient of everything, with the frozen factor taken out of the differences. */
    double h = 1.0 / 256;
    float exact[N][LEN];
    evaluate(&b, everything, &g);
    memcpy(exact, b.grads, sizeof exact);
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < LEN; k++) {
            float at = b.logprobs[i][k];
            double cut = fmin(fmax((double)at, -1.63), -0.65);
            b.logprobs[i][k] = at + (float)h;
            double above = evaluate(&b, everything, &g) - exp((double)at + h) * cut / (N * LEN);
            b.logprobs[i][k] = at - (float)h;
            double below = evaluate(&b, everything, &g) - exp((double)at - h) * cut / (N * LEN);
            b.logprobs[i][k] = at;
            double cut_above = fmin(fmax((double)at + h, -1.63), -0.65);
            double cut_below = fmin(fmax((double)at - h, -1.63), -0.65);
            /* what is left of frozen * cut after its first-order part in the frozen factor */
            double mixed = (exp((double)at + h) - exp((double)at)) * (cut_above - cut) -
                           (exp((double)at - h) - exp((double)at)) * (cut_below - cut);
            double slope = (above - below - mixed / (N * LEN)) / (2 * h);
            assert_true(fabs(slope - (double)exact[i][k]) < 1e-4);
        }
    close_bench(&b);
}

/* A hundred values on one tape, and gradients at the edges: a clamp passes them on at its bounds, the first
 * of two equal values gets it. */
static bool long_tape(tinkc_loss *loss, void *user, tinkc_error *err)
{
    tinkc_tape *t = tinkc_tape_new(loss, err);
    tinkc_var lp = tinkc_tape_logprobs(t), sum = tinkc_tape_number(t, 0);
    (void)user;
    for (int i = 0; i < 50; i++)
        sum = tinkc_tape_add(t, sum, tinkc_tape_mul(t, lp, tinkc_tape_number(t, i)));
    return tinkc_tape_backward(t, tinkc_tape_sum(t, sum), err);
}

static bool edges(tinkc_loss *loss, void *user, tinkc_error *err)
{
    tinkc_tape *t = tinkc_tape_new(loss, err);
    tinkc_var lp = tinkc_tape_logprobs(t), v = lp;
    switch (*(const int *)user) {
    case 0:
        v = tinkc_tape_clamp(t, lp, -1, 5);
        break;
    case 1:
        v = tinkc_tape_clamp(t, lp, -5, -1);
        break;
    case 2:
        v = tinkc_tape_min(t, lp, tinkc_tape_number(t, -1));
        break;
    case 3:
        v = tinkc_tape_max(t, lp, tinkc_tape_number(t, -1));
        break;
    case 4:
        v = tinkc_tape_min(t, tinkc_tape_number(t, -1), lp);
        break;
    case 5:
        v = tinkc_tape_clamp(t, lp, -1, -1);
        break;
    case 6:
        v = tinkc_tape_softplus(t, tinkc_tape_add(t, lp, tinkc_tape_number(t, 1)));
        break;
    case 7: /* e^800 is infinite */
        v = tinkc_tape_softplus(t, tinkc_tape_add(t, lp, tinkc_tape_number(t, 801)));
        break;
    case 8: /* a branch with an infinite slope that is not taken */
        v = tinkc_tape_add(t, lp, tinkc_tape_number(t, 1));
        v = tinkc_tape_min(t, tinkc_tape_number(t, -2), tinkc_tape_div(t, tinkc_tape_number(t, 1), v));
        break;
    case 9: /* examples without weights */
        v = tinkc_tape_mul(t, lp, tinkc_tape_weights(t));
        break;
    case 10: /* a constant of 0 hands nothing on, either */
        v = tinkc_tape_constant(t, tinkc_tape_add(t, lp, tinkc_tape_number(t, 1)));
        v = tinkc_tape_mul(t, v, tinkc_tape_number(t, 5));
        break;
    default:
        v = tinkc_tape_mean_tokens(t, lp);
        break;
    }
    return tinkc_tape_backward(t, tinkc_tape_sum(t, v), err);
}

/* A loss that does not depend on the log-probs moves none of them. */
static bool fixed_loss(tinkc_loss *loss, void *user, tinkc_error *err)
{
    tinkc_tape *t = tinkc_tape_new(loss, err);
    (void)user;
    return tinkc_tape_backward(t, tinkc_tape_number(t, 3), err);
}

TEST(losses_that_do_not_move)
{
    bench b;
    open_bench(&b, (int64_t[]){ LEN }, 1, NULL);
    assert_true(evaluate(&b, fixed_loss, NULL) == 3);
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < LEN; k++)
            assert_true(b.grads[i][k] == 0);
    close_bench(&b);
}

/* Weights that cannot be shown for lack of memory are not weights of 1. */
TEST(weights_without_memory)
{
    static const float weights[LEN] = { 0, 1, 1, 0.5f, 1, 1 };
    scarce s = { .thread = pthread_self() };
    tinkc_allocator allocator = scarce_allocator(&s);
    bench b;
    tinkc_error err = { 0 };
    int row = 9;
    lean = &allocator;
    open_bench(&b, (int64_t[]){ LEN }, 1, weights);
    lean = NULL;
    for (s.until = 1; !s.failed;) /* uses up the memory that the batch has left */
        (void)tkc_arena_alloc(&b.batch->store->arena, 1, &(tinkc_error){ 0 });
    s.until = 1;
    tinkc_loss loss = { .batch = b.batch, .forward = &b.forward, .grads = b.grad_rows };
    assert_false(edges(&loss, &row, &err));
    assert_int_equal(err.code, TINKC_E_MEMORY);
    s.until = 0;
    tkc_arena_free(&loss.arena);
    close_bench(&b);
}

TEST(gradients_at_the_edges)
{
    static const struct {
        double loss, grad; /* all log-probs are -1 */
    } rows[] = { { -1, 1 },
                 { -1, 1 },
                 { -1, 1 },
                 { -1, 1 },
                 { -1, 0 },
                 { -1, 1 },
                 { 0.6931471805599453, 0.5 },
                 { 800, 1 },
                 { -2, 0 },
                 { -1, 1 },
                 { 0, 0 },
                 { -1.0 / LEN, 1.0 / LEN } };
    bench b;
    open_bench(&b, (int64_t[]){ LEN }, 1, NULL);
    for (size_t i = 0; i < N; i++)
        for (size_t k = 0; k < LEN; k++)
            b.logprobs[i][k] = -1;
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        double loss = evaluate(&b, edges, &i);
        if (!(fabs(loss - rows[i].loss * N * LEN) <= 1e-9 &&
              fabs((double)b.grads[3][5] - rows[i].grad) <= 1e-6)) /* NaN is wrong, too */
            fail_msg("row %d: %g, %g", i, loss, (double)b.grads[3][5]);
    }
    double loss = evaluate(&b, long_tape, NULL);
    assert_true(fabs(loss + 1225.0 * N * LEN) < 1e-9);
    assert_true(b.grads[0][0] == 1225 && b.grads[3][5] == 1225);
    close_bench(&b);
}

static bool mistaken(tinkc_loss *loss, void *user, tinkc_error *err)
{
    int which = *(const int *)user;
    tinkc_tape *t = tinkc_tape_new(loss, err);
    tinkc_var lp = tinkc_tape_logprobs(t), seq = tinkc_tape_sum_tokens(t, lp);
    tinkc_var none = { 77 }, v = lp;
    switch (which) {
    case 0: /* not a number */
        break;
    case 1:
        v = tinkc_tape_add(t, tinkc_tape_slice(t, seq, 0, 2), seq);
        break;
    case 2:
        v = tinkc_tape_exp(t, none);
        break;
    case 3:
        v = tinkc_tape_sum_tokens(t, seq);
        break;
    case 4:
        v = tinkc_tape_slice(t, lp, 0, 1);
        break;
    case 5:
        v = tinkc_tape_slice(t, seq, N, 1);
        break;
    case 6:
        v = tinkc_tape_clamp(t, lp, 1, 0);
        break;
    case 7:
        v = tinkc_tape_tokens(t, NULL);
        break;
    case 8: /* lists of two lengths */
        v = tinkc_tape_add(t, tinkc_tape_slice(t, seq, 0, 2), tinkc_tape_slice(t, seq, 0, 1));
        break;
    case 9: /* as many, but another shape */
        v = tinkc_tape_add(t, tinkc_tape_slice(t, seq, 0, 1), seq);
        break;
    default:
        v = tinkc_tape_sequences(t, NULL);
        break;
    }
    /* What follows a mistake does no harm, and the first one is reported. */
    tinkc_var end = which ? tinkc_tape_sum(t, tinkc_tape_mul(t, v, lp)) : lp;
    assert_true(isnan(tinkc_tape_value(t, end)));
    tinkc_var past = tinkc_tape_neg(t, tinkc_tape_number(t, 1)); /* the last one, or none after a mistake */
    past.index++;
    assert_true(isnan(tinkc_tape_value(t, past)));
    return tinkc_tape_backward(t, end, err);
}

TEST(mistakes_on_a_tape_are_reported)
{
    static const char *const messages[] = {
        "tinkc_tape_backward: the loss must be one number",
        "tinkc_tape_add: the two values have shapes",
        "tinkc_tape_exp: a value that is not on this tape",
        "tinkc_tape_sum_tokens: needs a value with one number a token",
        "tinkc_tape_slice: needs a value with one number a sequence",
        "tinkc_tape_slice: step is 0, or first lies past the end",
        "tinkc_tape_clamp: low must not be above high",
        "tinkc_tape_tokens: rows must not be NULL",
        "tinkc_tape_add: the two values have shapes",
        "tinkc_tape_add: the two values have shapes",
        "tinkc_tape_sequences: values must not be NULL",
    };
    static const float weights[LEN] = { 1, 1, 1, 1, 1, 1 };
    bench b;
    open_bench(&b, (int64_t[]){ LEN }, 1, weights);
    for (int i = 0; i < (int)(sizeof messages / sizeof *messages); i++) {
        tinkc_error err = { 0 };
        tinkc_loss loss = { .batch = b.batch, .forward = &b.forward, .grads = b.grad_rows };
        assert_false(mistaken(&loss, &i, &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
        if (!strstr(err.message, messages[i]))
            fail_msg("%s", err.message);
        tkc_arena_free(&loss.arena);
    }
    tinkc_error err = { 0 };
    assert_null(tinkc_tape_new(NULL, &err));
    assert_string_equal(err.message, "loss: must not be NULL");
    err = (tinkc_error){ 0 };
    assert_false(tinkc_tape_backward(NULL, (tinkc_var){ 0 }, &err));
    assert_string_equal(err.message, "tape: must not be NULL");
    assert_int_equal(tinkc_tape_exp(NULL, (tinkc_var){ 0 }).index, -1);
    assert_int_equal(tinkc_tape_logprobs(NULL).index, -1);
    assert_int_equal(tinkc_tape_weights(NULL).index, -1);
    assert_int_equal(tinkc_tape_number(NULL, 1).index, -1);
    assert_int_equal(tinkc_tape_tokens(NULL, &(const float *){ weights }).index, -1);
    assert_int_equal(tinkc_tape_sequences(NULL, &(double){ 1 }).index, -1);
    assert_int_equal(tinkc_tape_sum(NULL, (tinkc_var){ 0 }).index, -1);
    assert_int_equal(tinkc_tape_slice(NULL, (tinkc_var){ 0 }, 0, 1).index, -1);
    assert_true(isnan(tinkc_tape_value(NULL, (tinkc_var){ 0 })));
    close_bench(&b);
}

/* ---- values of a tape, worked out by hand ---- */

typedef struct hand {
    int row;
    const float *rows[N];
    double wanted, numbers[N];
} hand;

static tinkc_var by_hand_row(tinkc_tape *t, const hand *h)
{
    tinkc_var lp = tinkc_tape_logprobs(t), rows = tinkc_tape_tokens(t, h->rows);
    tinkc_var numbers = tinkc_tape_sequences(t, h->numbers), three = tinkc_tape_number(t, 3);
    switch (h->row) {
    case 0:
        return tinkc_tape_sum(t, tinkc_tape_mul(t, rows, rows));
    case 1: /* one number belongs to all tokens of its sequence */
        return tinkc_tape_sum(t, tinkc_tape_mul(t, numbers, rows));
    case 2:
        return tinkc_tape_sum(t, tinkc_tape_mul(t, tinkc_tape_weights(t), rows));
    case 3:
        return tinkc_tape_sum(t, three);
    case 4:
        return tinkc_tape_mean(t, three);
    case 5:
        return tinkc_tape_mean(t, numbers);
    case 6:
        return tinkc_tape_sum(t, tinkc_tape_slice(t, numbers, 1, 2));
    case 7:
        return tinkc_tape_sum(t, tinkc_tape_slice(t, numbers, N - 1, 1));
    case 8:
        return tinkc_tape_sum(t, tinkc_tape_slice(t, tinkc_tape_slice(t, numbers, 1, 1), 0, 2));
    case 9:
        return tinkc_tape_sum(t, tinkc_tape_mul(t, tinkc_tape_mean_tokens(t, rows), numbers));
    case 10:
        return tinkc_tape_div(t, tinkc_tape_neg(t, three), tinkc_tape_number(t, 4));
    case 11:
        return tinkc_tape_mean(t, tinkc_tape_sub(t, rows, lp));
    case 12:
        return tinkc_tape_sigmoid(t, tinkc_tape_number(t, -2));
    case 13:
        return tinkc_tape_sigmoid(t, tinkc_tape_number(t, 2));
    case 14:
        return tinkc_tape_log(t, three);
    default:
        return tinkc_tape_sum(t, tinkc_tape_mul(t, tinkc_tape_sum_tokens(t, lp), numbers));
    }
}

static bool by_hand(tinkc_loss *loss, void *user, tinkc_error *err)
{
    const hand *h = user;
    tinkc_tape *t = tinkc_tape_new(loss, err);
    tinkc_var v = by_hand_row(t, h);
    assert_true(fabs(tinkc_tape_value(t, v) - h->wanted) < 1e-9);
    return tinkc_tape_backward(t, v, err);
}

TEST(values_of_a_tape)
{
    enum { ROWS = 16 };
    bench b;
    tinkc_error err = { 0 };
    float rows[N][LEN];
    hand h = { .numbers = { 0.5, -1.25, 2, 7 } };
    double wanted[ROWS] = {
        [3] = 3,         [4] = 3,      [5] = 8.25 / 4,          [6] = -1.25 + 7,          [7] = 7,
        [8] = -1.25 + 7, [10] = -0.75, [12] = 1 / (1 + exp(2)), [13] = 1 / (1 + exp(-2)), [14] = log(3)
    };
    open_bench(&b, (int64_t[]){ LEN }, 1, NULL);
    /* One example has weights, fewer than it has tokens: the rest of them is 0. */
    assert_true(tinkc_batch_set_f32(b.batch, "weights", (float[]){ 2, 3, 4 }, 3, &err));
    for (size_t i = 0; i < N; i++) {
        h.rows[i] = rows[i];
        for (size_t k = 0; k < LEN; k++) {
            double r = (double)(rows[i][k] = 0.25f * (float)(i * LEN + k + 1));
            wanted[0] += r * r;
            wanted[1] += r * h.numbers[i];
            wanted[2] += r * (i + 1 < N ? 1 : k < 3 ? 2 + (double)k : 0);
            wanted[9] += r * h.numbers[i] / LEN;
            wanted[11] += (r - (double)b.logprobs[i][k]) / (N * LEN);
            wanted[15] += (double)b.logprobs[i][k] * h.numbers[i];
        }
    }
    for (h.row = 0; h.row < ROWS; h.row++) {
        h.wanted = wanted[h.row];
        assert_true(fabs(evaluate(&b, by_hand, &h) - h.wanted) < 1e-9);
        for (size_t i = 0; i < N; i++) {
            double grad = h.row == 15 ? h.numbers[i] : h.row == 11 ? -1.0 / (N * LEN) : 0;
            for (size_t k = 0; k < LEN; k++)
                assert_true(fabs((double)b.grads[i][k] - grad) < 1e-6);
        }
    }
    close_bench(&b);
}

/* Sequences without tokens: sums are 0, and there is no mean. */
static bool of_nothing(tinkc_loss *loss, void *user, tinkc_error *err)
{
    tinkc_tape *t = tinkc_tape_new(loss, err);
    tinkc_var lp = tinkc_tape_logprobs(t);
    return tinkc_tape_backward(t, *(const bool *)user ? tinkc_tape_mean(t, lp) : tinkc_tape_sum(t, lp), err);
}

TEST(sums_of_nothing)
{
    bench b;
    bool mean = false;
    tinkc_error err = { 0 };
    open_bench(&b, (int64_t[]){ LEN }, 1, NULL);
    for (size_t i = 0; i < N; i++)
        b.tensors[i].count = 0;
    assert_true(evaluate(&b, of_nothing, &mean) == 0);
    mean = true;
    tinkc_loss loss = { .batch = b.batch, .forward = &b.forward, .grads = b.grad_rows };
    assert_false(of_nothing(&loss, &mean, &err));
    assert_string_equal(err.message, "tinkc_tape_mean: the mean of nothing");
    tkc_arena_free(&loss.arena);
    close_bench(&b);
}

/* Wherever the loss's memory ends, the loss fails and says so. */
TEST(tapes_without_memory)
{
    static const float weights[LEN] = { 0, 1, 1, 0.5f, 1, 1 };
    static const double reference[N] = { -3.1, -2.0, -4.0, -5.5 };
    tinkc_dpo o = { .reference = reference, .n = N, .beta = 0.3 };
    given g = { .numbers = { 1.0, -0.5, 0.25, -2.0 } };
    struct {
        tinkc_loss_fn *fn;
        void *user;
    } const losses[] = { { grpo, &g }, { dpo, &o }, { everything, &g } };
    bench b;
    open_bench(&b, (int64_t[]){ LEN }, 1, weights);
    for (size_t i = 0; i < N; i++)
        g.rows[i] = b.logprobs[i];
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
        bool done = false;
        for (size_t max = 16; !done; max += 16) {
            tinkc_error err = { 0 };
            tinkc_loss loss = { .batch = b.batch, .forward = &b.forward, .grads = b.grad_rows };
            loss.arena.max = max;
            done = losses[i].fn(&loss, losses[i].user, &err);
            assert_int_equal(err.code, done ? 0 : TINKC_E_MEMORY);
            assert_int_equal(loss.is_set, done);
            tkc_arena_free(&loss.arena);
        }
    }
    close_bench(&b);
}
