/* test_custom_loss.c - what a loss function may ask for, hold and close. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>
#include "client/core/operation.h"
#include "support/counting.h"
#include "support/client/mock_fixture.h"

static int setup(void **state)
{
    return begin_fixture(state, NULL, NULL);
}

typedef struct calls {
    tinkc_future *seen[8];
    size_t n;
    tinkc_future *next; /* lined up by the first call */
    tinkc_queue *queue;
} calls;

static bool look_around(tinkc_loss *loss, void *user, tinkc_error *err)
{
    (void)err;
    size_t n = tinkc_batch_count(tinkc_loss_batch(loss));
    assert_non_null(tinkc_loss_grad(loss, n - 1));
    assert_null(tinkc_loss_grad(loss, n));
    assert_null(tinkc_loss_grad(NULL, 0));
    assert_non_null(tinkc_loss_logprobs(loss, n - 1));
    assert_null(tinkc_loss_logprobs(loss, n));
    assert_null(tinkc_loss_logprobs(NULL, 0));
    assert_null(tinkc_loss_batch(NULL));
    tinkc_loss_set(NULL, 1);
    assert_false(tinkc_loss_metric(NULL, "a", 1, NULL));
    assert_false(tinkc_loss_metric(loss, "", 1, NULL));
    assert_true(tinkc_loss_metric(loss, "m", 1, NULL));
    assert_false(tinkc_loss_metric(loss, "after a failure", 1, &(tinkc_error){ .code = 1 }));
    tinkc_loss_set(loss, 1);
    ++*(int *)user;
    return true;
}

static bool refuse(tinkc_loss *loss, void *user, tinkc_error *err)
{
    (void)err;
    tinkc_loss_set(loss, 1);
    ++*(int *)user;
    return false;
}

TEST_WITH(what_a_loss_may_ask_for, setup, end_fixture)
{
    fixture *x = *state;
    static const int64_t targets[] = { 2, 3 };
    static const float weights[] = { 1, 1 };
    int ran = 0;
    tinkc_trainer *t = tinkc_trainer_new(x->client, &lora, &x->err);
    tinkc_batch *b = tinkc_batch_new(x->client, &x->err);
    assert_ok(&x->err);
    assert_null(tinkc_forward_backward_custom(t, NULL, 0, NULL, look_around, &ran, &x->err));
    assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
    x->err = (tinkc_error){ 0 };
    assert_null(tinkc_forward_backward_custom(t, b, 0, NULL, look_around, &ran, &x->err));
    assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
    x->err = (tinkc_error){ 0 };
    /* Targets alone will do. */
    assert_true(tinkc_batch_add_tokens(b, ids, 2, &x->err));
    assert_true(tinkc_batch_set_i64(b, "target_tokens", targets, 2, &x->err));
    for (uint32_t together = 0; together < 2; together++) {
        tinkc_future *f =
            tinkc_forward_backward_custom(t, b, together ? TINKC_CUSTOM_TOGETHER : 0, NULL, look_around, &ran, &x->err);
        assert_ok(&x->err);
        assert_true(run_until_done(x->mock, f, 600000));
        assert_true(tinkc_future_wait(f, 0, &x->err));
        tinkc_future_free(f);
        assert_int_equal(ran, together + 1);
    }
    for (uint32_t together = 0; together < 2; together++) {
        assert_null(
            tinkc_forward_backward_custom(t, b, together ? TINKC_CUSTOM_TOGETHER : 0, NULL, refuse, &ran, &x->err));
        check_error(x, TINKC_E_CALLBACK, "the loss function failed");
    }
    assert_int_equal(ran, 4);
    /* Weights alone will not. */
    assert_true(tinkc_batch_add_tokens(b, ids, 2, &x->err));
    assert_true(tinkc_batch_set_f32(b, "weights", weights, 2, &x->err));
    assert_null(tinkc_forward_backward_custom(t, b, 0, NULL, look_around, &ran, &x->err));
    check_error(x, TINKC_E_ARGUMENT, "batch: example 1 has no target_tokens");
    tinkc_batch_free(b);
    tinkc_trainer_free(t);
}

static bool silence_the_rest(tinkc_loss *loss, void *user, tinkc_error *err)
{
    fixture *x = user;
    tinkc_loss_set(loss, 1);
    return tinkc_mock_always(x->mock, NULL, API "retrieve_future", &silent, err);
}

/* The call returns when the function has run, or when it never will; not when the passes are over. */
TEST_WITH(a_loss_that_holds_its_turn, setup, end_fixture)
{
    fixture *x = *state;
    int ran = 0;
    tinkc_trainer *t = tinkc_trainer_new(x->client, &lora, &x->err);
    tinkc_batch *b = tinkc_batch_new(x->client, &x->err);
    assert_true(tinkc_batch_add_sft(b, ids, 6, 1, &x->err));
    once(x, API "forward_backward", 403, "{\"detail\":\"no\"}");
    tinkc_future *f = tinkc_forward_backward_custom(t, b, TINKC_CUSTOM_TOGETHER, NULL, look_around, &ran, &x->err);
    assert_ok(&x->err);
    assert_false(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    assert_int_equal(x->err.code, TINKC_E_FORBIDDEN);
    x->err = (tinkc_error){ 0 };
    assert_int_equal(ran, 0);
    tinkc_future_free(f);
    f = tinkc_forward_backward_custom(t, b, TINKC_CUSTOM_TOGETHER, NULL, silence_the_rest, x, &x->err);
    assert_ok(&x->err);
    settle(x);
    assert_false(tinkc_future_done(f));
    tinkc_future_free(f);
    tinkc_batch_free(b);
    tinkc_trainer_free(t);
}

static bool close_inside(tinkc_loss *loss, void *user, tinkc_error *err)
{
    tinkc_loss_set(loss, 1);
    assert_false(tinkc_client_close(user, 0, err)); /* the passes are not over */
    return true;
}

/* The client may be closed while the function runs: its outcome is of no use, and all memory comes back. */
TEST_WITH(a_loss_that_closes_its_client, setup, end_fixture)
{
    fixture *x = *state;
    counting memory = { 0 };
    tinkc_allocator a = counting_allocator(&memory);
    tinkc_client *client = mock_client(x->mock, &(tinkc_client_options){ .allocator = &a }, &x->err);
    tinkc_trainer *t = tinkc_trainer_new(client, &lora, &x->err);
    tinkc_batch *b = tinkc_batch_new(client, &x->err);
    tinkc_queue *queue = tinkc_queue_new(client, &x->err);
    assert_true(tinkc_batch_add_sft(b, ids, 6, 1, &x->err));
    tinkc_future *f = tinkc_forward_backward_custom(t, b, 0, queue, close_inside, client, &x->err);
    settle(x);
    assert_false(tinkc_future_done(f));
    assert_int_equal(tinkc_queue_run(queue, 0, &x->err), 1);
    assert_ok(&x->err);
    assert_false(tinkc_future_wait(f, 0, &x->err));
    assert_int_equal(x->err.code, TINKC_E_CLOSED);
    x->err = (tinkc_error){ 0 };
    tinkc_future_free(f);
    tinkc_queue_free(queue);
    tinkc_batch_free(b);
    tinkc_trainer_free(t);
    tinkc_client_free(client);
    assert_true(counting_is_empty_soon(&memory));
}
