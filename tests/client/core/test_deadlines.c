/* test_deadlines.c - limits of operations, and how long a call or a close takes. */
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

static int setup_cancels(void **state)
{
    return begin_fixture(state, API "client/dynamic_config", CONFIG_CANCELS);
}

/* A limit beyond all time is none. */
TEST_WITH(a_limit_beyond_all_time, setup, end_fixture)
{
    fixture *x = *state;
    tinkc_mock_always(x->mock, NULL, API "healthz", &silent, &x->err);
    tinkc_mock_advance(x->mock, 1000);
    tinkc_future *f = tinkc_health_check(x->client, &x->err);
    settle(x);
    assert_true(tinkc_future_limit(f, INT64_MAX - 1, &x->err));
    settle(x);
    assert_false(tinkc_future_done(f));
    tinkc_future_free(f);
}

/* A limit that is taken back does not end the operation. */
TEST_WITH(a_limit_is_taken_back, setup, end_fixture)
{
    fixture *x = *state;
    tinkc_mock_always(x->mock, NULL, API "healthz", &silent, &x->err);
    tinkc_future *f = tinkc_health_check(x->client, &x->err);
    assert_true(tinkc_future_limit(f, 1000, &x->err));
    settle(x);
    assert_true(tinkc_future_limit(f, TINKC_FOREVER, &x->err));
    settle(x);
    tinkc_mock_advance(x->mock, 1001);
    settle(x);
    assert_false(tinkc_future_done(f));
    assert_true(tinkc_future_limit(f, 1000, &x->err));
    settle(x);
    tinkc_mock_advance(x->mock, 999);
    settle(x);
    assert_false(tinkc_future_done(f));
    tinkc_mock_advance(x->mock, 1);
    check_failure(x, f, TINKC_E_DEADLINE, "health_check: not complete within its time");
}

static void never_runs(tinkc_future *f)
{
    (void)f;
    fail();
}

static void never_stops(tinkc_future *f, const tinkc_error *why)
{
    (void)f, (void)why;
    fail();
}

/* Made before the close and submitted after it. */
TEST_WITH(submitted_too_late, setup, end_fixture)
{
    fixture *x = *state;
    static const tkc_op_class class = { "late", "nothing", 0, never_runs, never_stops, NULL };
    tinkc_future *f = tkc_op_new(x->client, &class, &x->err);
    assert_true(tinkc_client_close(x->client, PATIENCE_MS, &x->err));
    assert_false(tkc_op_try_submit(f));
    assert_false(tinkc_future_wait(f, 0, &x->err));
    check_error(x, TINKC_E_CLOSED, "late: the client was closed");
    assert_null(tkc_op_new(x->client, &class, &x->err));
    check_error(x, TINKC_E_CLOSED, "the client was closed");
    tinkc_future_free(f);
}

static void *close_for_ever(void *arg)
{
    tinkc_error err = { 0 };
    bool clean = tinkc_client_close(((fixture *)arg)->client, TINKC_FOREVER, &err);
    return clean && !err.code ? arg : NULL;
}

static bool is_closed(fixture *x)
{
    tinkc_future *f = tinkc_health_check(x->client, &x->err);
    tinkc_future_free(f);
    return !f;
}

/* A close without a limit ends with the last operation. */
TEST_WITH(a_close_waits_for_the_last_operation, setup, end_fixture)
{
    fixture *x = *state;
    pthread_t thread;
    void *clean = NULL;
    assert_true(tinkc_client_connect(x->client, PATIENCE_MS, &x->err));
    tinkc_mock_always(x->mock, NULL, API "healthz",
                      &(tinkc_mock_answer){ .body = "{\"status\":\"ok\"}", .delay_ms = 1000 }, &x->err);
    tinkc_future *f = tinkc_health_check(x->client, &x->err);
    settle(x);
    assert_int_equal(pthread_create(&thread, NULL, close_for_ever, x), 0);
    wait_until(is_closed(x));
    check_error(x, TINKC_E_CLOSED, "the client was closed");
    assert_false(tinkc_future_done(f));
    assert_true(run_until_done(x->mock, f, 5000));
    assert_int_equal(pthread_join(thread, &clean), 0);
    assert_non_null(clean);
    assert_true(tinkc_future_wait(f, 0, &x->err));
    tinkc_future_free(f);
}

/* A client ends with samples that it could not report as cancelled yet. */
TEST_WITH(cancels_that_wait_at_the_end, setup_cancels, end_fixture)
{
    fixture *x = *state;
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 3;
    tinkc_sampler *sampler = tinkc_sampler_new(x->client, &nano, &x->err);
    assert_ok(&x->err);
    tinkc_mock_always(x->mock, NULL, API "retrieve_future", &silent, &x->err);
    tinkc_mock_always(x->mock, NULL, API "cancel_future", &silent, &x->err);
    for (int i = 0; i < 4; i++) {
        tinkc_future *f = tinkc_sample(sampler, ids, 3, 1, &o, &x->err);
        settle(x);
        tinkc_future_free(f);
        settle(x);
    }
    assert_int_equal(tinkc_mock_count(x->mock, API "cancel_future"), 1);
    tinkc_sampler_free(sampler);
    assert_true(tinkc_client_close(x->client, PATIENCE_MS, &x->err));
    assert_int_equal(tinkc_mock_count(x->mock, API "cancel_future"), 1);
}

static void take_elapsed(const tinkc_event *e, void *user)
{
    if (e->kind == TINKC_EVENT_RETRY)
        *(int64_t *)user = e->elapsed_ms;
}

/* What a call waits for the settings does not count: its time begins when it may be sent. */
TEST_WITH(the_time_of_a_call, setup, end_fixture)
{
    fixture *x = *state;
    int64_t elapsed = -1;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    tinkc_client_on_event(x->client, queue, TINKC_EVENT_RETRY, take_elapsed, &elapsed, &x->err);
    tinkc_mock_once(x->mock, NULL, API "client/config", &(tinkc_mock_answer){ .body = "{}", .delay_ms = 3000 },
                    &x->err);
    once(x, API "get_server_capabilities", 503, "");
    assert_int_equal(tinkc_mock_count(x->mock, NULL), 0);
    complete(x, tinkc_capabilities_get(x->client, &x->err));
    tinkc_queue_run(queue, 0, &x->err);
    assert_ok(&x->err);
    assert_int_equal(elapsed, 0);
    tinkc_queue_free(queue);
}

/* How long an operation has been in trouble, to the millisecond. */
TEST_WITH(trouble_is_counted_from_its_beginning, setup, end_fixture)
{
    fixture *x = *state;
    int32_t attempts = 0;
    int64_t for_ms = -1;
    once(x, API "healthz", 503, "{\"detail\":\"later\"}");
    tinkc_future *f = tinkc_health_check(x->client, &x->err);
    assert_true(settle(x) > 2); /* the next attempt is later */
    for (int64_t ms = 0; ms < 3; ms++) {
        assert_int_equal(tinkc_future_retry_state(f, &attempts, &for_ms), TINKC_E_SERVER);
        assert_int_equal(attempts, 1);
        assert_int_equal(for_ms, ms);
        tinkc_mock_advance(x->mock, 1);
    }
    tinkc_future_free(f);
}

/* An answer ends the trouble: what comes after it is counted from one again, and is not described any more. */
TEST_WITH(trouble_after_an_answer_is_counted_anew, setup, end_fixture)
{
    fixture *x = *state;
    int32_t attempts = 0;
    tinkc_text text = { 0 };
    tinkc_sampler *s = tinkc_sampler_new(x->client, &nano, &x->err);
    for (int round = 0; round < 2; round++) {
        once(x, API "retrieve_future", 503, "");
        once(x, API "retrieve_future", 200, "{\"type\":\"try_again\"}");
    }
    tinkc_sampling how = TINKC_SAMPLING_INIT;
    tinkc_future *f = tinkc_sample(s, (const int32_t[]){ 1 }, 1, 1, &how, &x->err);
    for (int round = 0; round < 2; round++) {
        (void)settle(x);
        assert_int_equal(tinkc_future_retry_state(f, &attempts, NULL), TINKC_E_SERVER);
        assert_int_equal(attempts, 1);
        assert_non_null(strstr(tinkc_future_status(f, &text, &x->err), "503"));
        tinkc_mock_advance(x->mock, 100);
        (void)settle(x);
        if (round == 0) {
            assert_int_equal(tinkc_future_retry_state(f, &attempts, NULL), TINKC_OK);
            assert_null(strstr(tinkc_future_status(f, &text, &x->err), "503"));
            tinkc_mock_advance(x->mock, 200);
        }
    }
    tinkc_text_free(&text);
    tinkc_future_free(f);
    tinkc_sampler_free(s);
}
