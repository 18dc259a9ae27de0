/* test_log_and_events.c - what the log and events say of pauses and failures, and counts that begin again. */
#include <pthread.h>
#include "support/client/logged_fixture.h"

#define API  "/api/v1/"
#define POLL API "retrieve_future"

static const tinkc_mock_answer silent = { .fault = TINKC_FAULT_SILENT };

static bool was_logged(fixture *x, const char *what)
{
    pthread_mutex_lock(&x->log.lock);
    bool found = strstr(x->log.text, what) != NULL;
    pthread_mutex_unlock(&x->log.lock);
    return found;
}

static void once(fixture *x, const char *path, int32_t status, const char *body)
{
    tinkc_mock_once(x->mock, NULL, path, &(tinkc_mock_answer){ .status = status, .body = body }, &x->err);
    assert_ok(&x->err);
}

static tinkc_future *sample(fixture *x)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 3;
    tinkc_future *f = tinkc_sample(x->sampler, ids, 3, 1, &o, &x->err);
    assert_ok(&x->err);
    return f;
}

static void complete(fixture *x, tinkc_future *f)
{
    assert_true(run_until_done(x->mock, f, 600000));
    assert_true(tinkc_future_wait(f, 0, &x->err));
    tinkc_future_free(f);
}

TEST_WITH(pauses_in_the_log, setup, teardown)
{
    static const char paused[] = "{\"type\":\"try_again\",\"request_id\":\"r\",\"queue_state\":"
                                 "\"paused_capacity\",\"queue_state_reason\":\"full house\"}";
    fixture *x = *state;
    char want[300];
    once(x, POLL, 200, paused);
    complete(x, sample(x));
    (void)snprintf(want, sizeof want, "Sampling is paused for sampler %s. Reason: full house\n",
                   tinkc_sampler_id(x->sampler));
    assert_true(was_logged(x, want));
    once(x, POLL, 200, paused);
    complete(x, tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err));
    (void)snprintf(want, sizeof want, "Training for %s is paused. Reason: full house.\n", tinkc_trainer_id(x->trainer));
    assert_true(was_logged(x, want));
    once(x, POLL, 200, paused);
    complete(x, tinkc_trainer_open(x->client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &x->err));
    assert_true(was_logged(x, "Model creation for mock/nano is paused. Reason: full house.\n"));
}

/* An end is not a failure to renew the token, and is not reported as one. */
TEST_WITH(ends_are_not_failed_renewals, setup, teardown)
{
    fixture *x = *state;
    tinkc_mock_always(x->mock, NULL, API "client/config",
                      &(tinkc_mock_answer){ .body = "{\"pjwt_auth_enabled\":true}" }, &x->err);
    tinkc_mock_always(x->mock, NULL, API "auth/token", &silent, &x->err);
    tinkc_client *client =
        mock_client(x->mock,
                    &(tinkc_client_options){
                        .api_key = "tml-key", .log = on_log, .log_user = &x->log, .log_level = TINKC_LOG_DEBUG },
                    &x->err);
    tinkc_future *f = tinkc_capabilities_get(client, &x->err);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    assert_int_equal(tinkc_mock_count(x->mock, API "auth/token"), 1);
    (void)tinkc_client_close(client, 0, &x->err);
    assert_false(tinkc_future_wait(f, PATIENCE_MS, &(tinkc_error){ 0 }));
    tinkc_future_free(f);
    tinkc_client_free(client); /* waits for its thread */
    assert_false(was_logged(x, "renewed"));
    x->err = (tinkc_error){ 0 };
}
