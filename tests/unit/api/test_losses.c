/* test_losses.c - gradients of the ready-made losses against finite differences. */
#include <math.h>
#include <string.h>

#include "api/loss_priv.h"
#include "support/api_support.h"

enum { N = 4, LEN = 6 };

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
    b->client = mock_client(b->mock, NULL, &err);
    b->batch = tinkc_batch_new(b->client, &err);
    b->names[0] = "logprobs";
    b->forward = (tinkc_fwdbwd){ .n = N, .names = b->names, .n_names = 1, .tensors = b->cells };
    memcpy(b->shape, shape, ndim * sizeof *shape);
    for (size_t i = 0; i < N; i++) {
        tinkc_batch_add_tokens(b->batch, ids, LEN, &err);
        tinkc_batch_set(
            b->batch, "target_tokens",
            &(tinkc_array){
                .data = targets, .count = LEN, .shape = shape, .ndim = ndim, .dtype = TINKC_I64 },
            &err);
        tinkc_batch_set(
            b->batch, "weights",
            &(tinkc_array){
                .data = weights, .count = LEN, .shape = shape, .ndim = ndim, .dtype = TINKC_F32 },
            &err);
        for (size_t k = 0; k < LEN; k++)
            b->logprobs[i][k] = -0.3f - 0.41f * (float)((i * 5 + k * 3) % 7);
        b->tensors[i] = (tinkc_tensor){ .dtype = TINKC_F32,
                                        .ndim = (int32_t)ndim,
                                        .shape = b->shape,
                                        .data = b->logprobs[i],
                                        .count = LEN };
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

static void dpo_gradients(void **state)
{
    (void)state;
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
    close_bench(&b);
}

static void reverse_kl_gradients(void **state)
{
    (void)state;
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
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dpo_gradients),
        cmocka_unit_test(reverse_kl_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
