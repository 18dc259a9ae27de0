/* test_request_ids.c - ids of requests in errors, and the numbers that a cancelled pass leaves. */
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

/* Of a request's id an error keeps what fits. */
TEST_WITH(long_request_ids, setup, end_fixture)
{
    fixture *x = *state;
    char body[300], id[201];
    const size_t room = sizeof x->err.request_id;
    tinkc_trainer *t = tinkc_trainer_new(x->client, &lora, &x->err);
    assert_ok(&x->err);
    for (size_t len = room - 2; len <= room + 3; len++) {
        memset(id, 'r', len);
        id[len] = 0;
        (void)snprintf(body, sizeof body, "{\"request_id\":\"%s\"}", id);
        once(x, API "optim_step", 200, body);
        if (len % 2)
            once(x, API "retrieve_future", 200, "{\"error\":\"no\",\"category\":\"user\",\"type\":\"error\"}");
        else
            tinkc_mock_once(x->mock, NULL, API "retrieve_future", &silent, &x->err);
        tinkc_future *f = tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, &x->err);
        settle(x);
        if (len % 2 == 0)
            tinkc_future_cancel(f);
        assert_true(run_until_done(x->mock, f, 600000));
        assert_false(tinkc_future_wait(f, 0, &x->err));
        assert_int_equal(strlen(x->err.request_id), len < room ? len : room - 1);
        assert_int_equal(strspn(x->err.request_id, "r"), strlen(x->err.request_id));
        assert_string_equal(tinkc_future_request_id(f), id);
        x->err = (tinkc_error){ 0 };
        tinkc_future_free(f);
        tinkc_trainer_free(t);
        t = tinkc_trainer_new(x->client, &lora, &x->err);
        assert_ok(&x->err);
    }
    tinkc_trainer_free(t);
}

/* A pass that was cancelled while it was out is sent again before what follows, with all of its retries. */
TEST_WITH(what_a_cancelled_pass_leaves, setup, end_fixture)
{
    fixture *x = *state;
    tinkc_trainer *t = tinkc_trainer_new(x->client, &lora, &x->err);
    tinkc_batch *b = tinkc_batch_new(x->client, &x->err);
    assert_true(tinkc_batch_add_sft(b, ids, 6, 1, &x->err));
    tinkc_mock_once(x->mock, NULL, API "forward_backward", &silent, &x->err);
    tinkc_future *f = tinkc_forward_backward(t, b, TINKC_CROSS_ENTROPY, NULL, &x->err);
    settle(x);
    tinkc_future_cancel(f);
    settle(x);
    for (int i = 0; i < 3; i++)
        once(x, API "forward_backward", 503, "{\"detail\":\"later\"}");
    tinkc_future *step = tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, &x->err);
    assert_true(run_until_done(x->mock, step, 600000));
    assert_true(tinkc_future_wait(step, 0, &x->err));
    assert_int_equal(tinkc_mock_count(x->mock, API "forward_backward"), 5);
    assert_int_equal(tinkc_mock_count(x->mock, API "optim_step"), 1);
    tinkc_future_free(f);
    tinkc_future_free(step);
    tinkc_batch_free(b);
    tinkc_trainer_free(t);
}

/* A step was cancelled while it was out, and the service refuses to take it again: a pass cannot follow it. */
TEST_WITH(a_pass_behind_a_gap, setup, end_fixture)
{
    fixture *x = *state;
    open_work(x, 1);
    tinkc_mock_once(x->mock, NULL, API "optim_step", &silent, &x->err);
    tinkc_future *step = tinkc_optim_step(x->trainer, &(tinkc_adam)TINKC_ADAM_INIT, &x->err);
    settle(x);
    tinkc_future_cancel(step);
    settle(x);
    tinkc_future_free(step);
    once(x, API "optim_step", 403, "{\"detail\":\"no\"}");
    check_failure(x, tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err), TINKC_E_SEQUENCE,
                  "an earlier request of this model was not confirmed: optim_step: cancelled");
    assert_int_equal(tinkc_mock_count(x->mock, API "optim_step"), 2);
    assert_int_equal(tinkc_mock_count(x->mock, API "forward_backward"), 0);
}

/* The error of a pass names the request that failed, not the last one that was accepted; however short their names. */
TEST(short_request_ids)
{
    begin_fixture(state, API "client/config", "{\"fwdbwd_max_chunk_len\":1}");
    fixture *x = *state;
    open_work(x, 2);
    once(x, API "forward_backward", 200, "{\"request_id\":\"a\"}");
    once(x, API "forward_backward", 200, "{\"request_id\":\"b\"}");
    tinkc_mock_once(x->mock, NULL, POLL, &(tinkc_mock_answer){ .body = "{\"error\":\"bad luck\"}", .delay_ms = 100 },
                    &x->err);
    tinkc_mock_once(x->mock, NULL, POLL, &silent, &x->err);
    tinkc_future *f = tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
    settle(x);
    assert_true(body_has(nth_request(x->mock, POLL, 0), "\"request_id\":\"a\""));
    assert_true(body_has(nth_request(x->mock, POLL, 1), "\"request_id\":\"b\""));
    assert_true(run_until_done(x->mock, f, 1000));
    assert_false(tinkc_future_wait(f, 0, &x->err));
    assert_string_equal(x->err.request_id, "a");
    assert_string_equal(x->err.message, "bad luck");
    x->err = (tinkc_error){ 0 };
    tinkc_future_free(f);
    end_fixture(state);
}
