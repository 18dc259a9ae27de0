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
    tinkc_mock_once(x->mock, NULL, path, &(tinkc_mock_answer){ .status = status, .body = body },
                    &x->err);
    assert_ok(&x->err);
}

static bool contains(const tinkc_request *r, const char *text)
{
    return r && memmem(r->body.data, r->body.len, text, strlen(text));
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
    (void)snprintf(want, sizeof want, "Training for %s is paused. Reason: full house.\n",
                   tinkc_trainer_id(x->trainer));
    assert_true(was_logged(x, want));
    once(x, POLL, 200, paused);
    complete(x, tinkc_trainer_open(x->client, &(tinkc_lora_options){ .base_model = "mock/nano" },
                                   &x->err));
    assert_true(was_logged(x, "Model creation for mock/nano is paused. Reason: full house.\n"));
}

static void never_called(const tinkc_event *e, void *user)
{
    (void)e, (void)user;
    fail_msg("an event of a queue that was freed");
}

/* Events for a queue that was freed are dropped, and their memory with them. */
TEST_WITH(events_for_a_freed_queue, setup, teardown)
{
    fixture *x = *state;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    assert_true(tinkc_client_on_event(x->client, queue, UINT32_MAX, never_called, NULL, &x->err));
    tinkc_future *f = sample(x);
    assert_true(tinkc_future_on_event(f, queue, UINT32_MAX, never_called, NULL, &x->err));
    tinkc_queue_free(queue);
    complete(x, f);
}

/* An error of an accepted request names it: support can find it by that. */
TEST_WITH(failures_name_their_request, setup, teardown)
{
    fixture *x = *state;
    once(x, POLL, 200, "{\"error\":\"bad luck\",\"category\":\"user\"}");
    tinkc_future *f =
        tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
    assert_true(run_until_done(x->mock, f, 60000));
    assert_false(tinkc_future_wait(f, 0, &x->err));
    assert_int_equal(x->err.code, TINKC_E_REQUEST_FAILED);
    char want[100];
    assert_true(x->err.request_id[0]);
    (void)snprintf(want, sizeof want, "\"request_id\":\"%s\"", x->err.request_id);
    assert_true(contains(nth_request(x->mock, POLL, 0), want));
    tinkc_future_free(f);
}

/* Three answers of a proxy in a row are forgiven, and as many again after a word of the service itself. */
TEST_WITH(forgiven_answers_begin_again, setup, teardown)
{
    fixture *x = *state;
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 3; k++)
            once(x, POLL, 400, "<html>");
        if (i == 0)
            once(x, POLL, 408,
                 "{\"type\":\"try_again\",\"request_id\":\"r\",\"queue_state\":\"active\"}");
    }
    complete(x, sample(x));
    for (int k = 0; k < 4; k++)
        once(x, POLL, 400, "<html>");
    tinkc_future *f = sample(x);
    assert_true(run_until_done(x->mock, f, 600000));
    assert_false(tinkc_future_wait(f, 0, &x->err));
    assert_int_equal(x->err.http_status, 400);
    tinkc_future_free(f);
}

typedef struct billing {
    size_t text_len;
    int64_t elapsed_ms;
    int n;
} billing;

static void on_billing(const tinkc_event *e, void *user)
{
    billing *b = user;
    assert_int_equal(e->kind, TINKC_EVENT_BILLING);
    assert_int_equal(e->http_status, 402);
    assert_int_equal(e->left_ms, TINKC_FOREVER);
    assert_int_equal(e->wait_ms, 5000);
    b->text_len = strlen(e->text);
    b->elapsed_ms = e->elapsed_ms;
    b->n++;
}

/* One pause for five minutes, counted from the last word about it; then another begins. */
TEST_WITH(pauses_for_billing, setup, teardown)
{
    static const struct {
        int64_t later_ms, elapsed_ms;
    } rows[] = { { 0, 0 }, { 300000, 300000 }, { 300001, 0 } };
    fixture *x = *state;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    char body[400];
    billing b;
    tinkc_client_on_event(x->client, queue, TINKC_EVENT_BILLING, on_billing, &b, &x->err);
    (void)snprintf(body, sizeof body, "{\"detail\":\"%0300d\"}", 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        b = (billing){ 0 };
        if (i)
            tinkc_mock_advance(x->mock, rows[i].later_ms - 5000); /* of which the retry took five */
        tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
        once(x, API "get_server_capabilities", 402, body);
        tinkc_future *f = tinkc_capabilities_get(x->client, &x->err);
        tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
        tinkc_mock_advance(x->mock, 5000);
        complete(x, f);
        tinkc_queue_run(queue, 0, &x->err);
        assert_int_equal(b.n, 1);
        assert_int_equal(b.text_len, 199);
        assert_int_equal(b.elapsed_ms, rows[i].elapsed_ms);
        assert_ok(&x->err);
    }
    tinkc_queue_free(queue);
}

/* An end is not a failure to renew the token, and is not reported as one. */
TEST_WITH(ends_are_not_failed_renewals, setup, teardown)
{
    fixture *x = *state;
    tinkc_mock_always(x->mock, NULL, API "client/config",
                      &(tinkc_mock_answer){ .body = "{\"pjwt_auth_enabled\":true}" }, &x->err);
    tinkc_mock_always(x->mock, NULL, API "auth/token", &silent, &x->err);
    tinkc_client *client = mock_client(x->mock,
                                       &(tinkc_client_options){ .api_key = "tml-key",
                                                                .log = on_log,
                                                                .log_user = &x->log,
                                                                .log_level = TINKC_LOG_DEBUG },
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
