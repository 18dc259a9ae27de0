/* test_event_listeners.c - events of queues and exchanges, limits below zero, the words of a status. */
#include <math.h>
#include <stdatomic.h>
#include <sys/utsname.h>
#include "support/client/mock_fixture.h"

enum { LISTEN_MS = 5 }; /* first answers come so late that a listener is there before them */

static int setup_tokens(void **state)
{
    return begin_work_with(state, API "client/config", CONFIG_TOKENS);
}

TEST_WITH(limits_below_zero_are_refused, begin_work, end_fixture)
{
    fixture *x = *state;
    tinkc_sampling o = three_tokens();
    tinkc_mock_always(x->mock, NULL, API "asample", &silent, &x->err);
    tinkc_future *f = tinkc_sample(x->sampler, ids, 3, 1, &o, &x->err);
    assert_true(tinkc_future_limit(f, 1000, &x->err));
    assert_false(tinkc_future_limit(f, -2, &x->err));
    assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
    x->err = (tinkc_error){ 0 };
    assert_true(tinkc_future_limit(f, TINKC_FOREVER, &x->err)); /* takes the limit back */
    settle(x);
    tinkc_mock_advance(x->mock, 1000);
    settle(x);
    assert_false(tinkc_future_done(f));
    tinkc_future_free(f);
}

/* What a stage says of itself is not said any more in the next one. */
TEST_WITH(the_status_ends_with_its_stage, begin_work, end_fixture)
{
    fixture *x = *state;
    static const char *const wait[] = { "Retry-After", "3", NULL };
    tinkc_text text = { 0 };
    tinkc_sampling o = three_tokens();
    tinkc_mock_once(x->mock, NULL, API "asample", &(tinkc_mock_answer){ .status = 429, .headers = wait, .body = "{}" },
                    &x->err);
    tinkc_future *f = tinkc_sample(x->sampler, ids, 3, 1, &o, &x->err);
    settle(x);
    assert_int_equal(tinkc_future_stage(f), TINKC_STAGE_QUEUED);
    assert_string_equal(tinkc_future_status(f, &text, &x->err), "rate limited, next try in 3.0 s");
    tinkc_mock_always(x->mock, NULL, API "asample", &silent, &x->err);
    tinkc_mock_advance(x->mock, 3250);
    settle(x);
    assert_int_equal(tinkc_future_stage(f), TINKC_STAGE_SENDING);
    assert_string_equal(tinkc_future_status(f, &text, &x->err), "is being sent");
    tinkc_text_free(&text);
    tinkc_future_free(f);
}

static void count_queue_event(const tinkc_event *e, void *user)
{
    assert_int_equal(e->kind, TINKC_EVENT_QUEUE);
    ++*(int *)user;
}

/* A pause is news when its reason changes within the 159 bytes that are kept of it. */
TEST_WITH(reasons_that_differ_at_their_end, begin_work, end_fixture)
{
    fixture *x = *state;
    static const struct {
        size_t at; /* where this reason has another letter than the first */
        int news;
    } rows[] = { { 500, 1 }, { 158, 1 }, { 158, 0 }, { 159, 1 }, { 300, 0 } };
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    int n = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char reason[320], body[500];
        memset(reason, 'a', sizeof reason - 1);
        reason[sizeof reason - 1] = '\0';
        if (rows[i].at < sizeof reason - 1)
            reason[rows[i].at] = 'b';
        (void)snprintf(body, sizeof body,
                       "{\"type\":\"try_again\",\"request_id\":\"r\",\"queue_state\":"
                       "\"paused_capacity\",\"queue_state_reason\":\"%s\"}",
                       reason);
        tinkc_mock_once(x->mock, NULL, API "retrieve_future",
                        &(tinkc_mock_answer){ .body = body, .delay_ms = i ? 0 : LISTEN_MS }, &x->err);
    }
    tinkc_sampling o = three_tokens();
    tinkc_future *f = tinkc_sample(x->sampler, ids, 3, 1, &o, &x->err);
    tinkc_future_on_event(f, queue, TINKC_EVENT_QUEUE, count_queue_event, &n, &x->err);
    settle(x);
    tinkc_mock_advance(x->mock, LISTEN_MS);
    size_t polls = 0;
    for (int64_t next; !tinkc_future_done(f); tinkc_mock_advance(x->mock, next)) {
        next = tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
        assert_true(next != TINKC_FOREVER && !x->err.code);
        n = 0;
        while (tinkc_queue_run(queue, 0, &x->err) > 0)
            ;
        size_t now = tinkc_mock_count(x->mock, API "retrieve_future");
        if (now > polls && now <= sizeof rows / sizeof *rows)
            assert_int_equal(n, rows[now - 1].news);
        polls = now;
    }
    assert_true(tinkc_mock_count(x->mock, API "retrieve_future") > sizeof rows / sizeof *rows);
    tinkc_future_free(f);
    tinkc_queue_free(queue);
}

static void take_event(const tinkc_event *e, void *user)
{
    (void)e;
    ++*(int *)user;
}

/* A queue that is freed takes the client's events with it. */
TEST_WITH(events_end_with_their_queue, begin_work, end_fixture)
{
    fixture *x = *state;
    int n = 0;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    assert_true(tinkc_client_on_event(x->client, queue, TINKC_EVENT_EXCHANGE, take_event, &n, &x->err));
    for (int i = 0; i < 2; i++) {
        tinkc_future *f = tinkc_health_check(x->client, &x->err);
        assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
        tinkc_future_free(f);
        settle(x);
        if (i == 0) {
            while (tinkc_queue_run(queue, 0, &x->err) > 0)
                ;
            assert_true(n > 0);
            tinkc_queue_free(queue);
        }
    }
    assert_ok(&x->err);
}

/* A listener without events, or without a function, is none: its queue is not kept. */
TEST_WITH(a_listener_that_is_taken_away_leaves_its_queue, begin_work, end_fixture)
{
    fixture *x = *state;
    int n = 0;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    for (uint32_t round = 0; round < 3; round++) {
        assert_true(tinkc_client_on_event(x->client, queue, TINKC_EVENT_EXCHANGE, take_event, &n, &x->err));
        assert_true(tinkc_client_on_event(x->client, queue, round, NULL, NULL, &x->err));
    }
    tinkc_future *f = tinkc_health_check(x->client, &x->err);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    tinkc_future_free(f);
    assert_int_equal(tinkc_queue_run(queue, 0, &x->err), 0);
    tinkc_queue_free(queue);
    assert_int_equal(n, 0);
}

static void count_ready(tinkc_stream *s, void *user)
{
    (void)s;
    ++*(int *)user;
}

/* Who reads events is called again when more has come, as who reads bytes is. */
TEST_WITH(events_call_the_listener_again, begin_work, end_fixture)
{
    fixture *x = *state;
    static const char body[] = "data: 1\n\ndata: 2\n\n";
    int calls = 0, events = 0;
    tinkc_mock_always(x->mock, NULL, "/x",
                      &(tinkc_mock_answer){ .body = body, .fault = TINKC_FAULT_DRIP, .drip_ms = 100 }, &x->err);
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    tinkc_stream *s = tinkc_stream_open(x->client, &(tinkc_http_options){ .path = "/x" }, &x->err);
    assert_true(tinkc_stream_on_ready(s, queue, count_ready, &calls, &x->err));
    settle(x);
    for (size_t i = 0; i < sizeof body - 1; i++) {
        calls = 0;
        tinkc_mock_advance(x->mock, 100);
        settle(x);
        while (tinkc_queue_run(queue, 0, &x->err) > 0)
            ;
        assert_true(calls > 0);
        tinkc_error none = { 0 };
        if (tinkc_stream_event(s, 0, &none))
            events++;
    }
    assert_int_equal(events, 2);
    tinkc_stream_free(s);
    tinkc_queue_free(queue);
}

static void count_retry(const tinkc_event *e, void *user)
{
    assert_int_equal(e->kind, TINKC_EVENT_RETRY);
    assert_string_equal(e->operation, "trainer_open_from");
    assert_int_equal(e->wait_ms, 2000);
    ++*(int *)user;
}

/* Somebody else's key is exchanged for a token first: what that meets shows at the future. */
TEST_WITH(the_exchange_of_a_key_is_seen, setup_tokens, end_fixture)
{
    fixture *x = *state;
    static const char *const wait[] = { "Retry-After", "2", NULL };
    int n = 0;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    tinkc_mock_once(x->mock, NULL, API "auth/token",
                    &(tinkc_mock_answer){ .status = 503, .headers = wait, .body = "{}", .delay_ms = LISTEN_MS },
                    &x->err);
    tinkc_future *f = tinkc_trainer_open_from(
        x->client, &(tinkc_state_options){ .path = "tinker://r/weights/a", .access_token = "tml-theirs" }, &x->err);
    tinkc_future_on_event(f, queue, TINKC_EVENT_RETRY, count_retry, &n, &x->err);
    settle(x);
    tinkc_mock_advance(x->mock, LISTEN_MS);
    settle(x);
    while (tinkc_queue_run(queue, 0, &x->err) > 0)
        ;
    assert_int_equal(n, 1);
    assert_string_equal(request_header(nth_request(x->mock, API "auth/token", 0), "X-API-Key"), "tml-theirs");
    assert_int_equal(tinkc_mock_count(x->mock, API "auth/token"), 1);
    tinkc_mock_advance(x->mock, 2000);
    settle(x);
    assert_int_equal(tinkc_mock_count(x->mock, API "auth/token"), 2);
    assert_int_equal(tinkc_mock_count(x->mock, API "weights_info"), 1);
    tinkc_future_free(f);
    tinkc_queue_free(queue);
}
