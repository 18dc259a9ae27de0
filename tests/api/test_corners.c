/* test_corners.c - the client's less travelled ways: items taken out of the middle of a queue, callbacks that line up
 * others, limits that are taken back, ends while something is waiting, tokens that must be waited for, losses that ask
 * for what is not there. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/operation.h"
#include "support/counting.h"
#include "support/mock_fixture.h"

static int setup(void **state)
{
    return begin_fixture(state, NULL, NULL);
}

static int setup_cancels(void **state)
{
    return begin_fixture(state, API "client/dynamic_config", CONFIG_CANCELS);
}

static int setup_tokens(void **state)
{
    return begin_fixture(state, API "client/config", CONFIG_TOKENS);
}

static tinkc_future *done_call(fixture *x)
{
    tinkc_future *f = tinkc_health_check(x->client, &x->err);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    return f;
}

/* ---- queues ---- */

typedef struct calls {
    tinkc_future *seen[8];
    size_t n;
    tinkc_future *next; /* lined up by the first call */
    tinkc_queue *queue;
} calls;

static void take_call(tinkc_future *f, void *user)
{
    calls *c = user;
    c->seen[c->n++] = f;
    if (c->next)
        assert_true(tinkc_future_on_done(c->next, c->queue, take_call, c, NULL));
    c->next = NULL;
}

static bool is_readable(int fd)
{
    return poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 0) == 1;
}

/* Any of three may be taken away; the others come in their order. */
static void taken_out_of_a_queue(void **state)
{
    fixture *x = *state;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    tinkc_future *all[] = { done_call(x), done_call(x), done_call(x) };
    for (size_t out = 0; out < 4; out++) { /* 3: none of them */
        calls c = { .queue = queue };
        for (size_t i = 0; i < 3; i++) { /* the queue's descriptor says whether anything is in it */
            assert_true(tinkc_future_on_done(all[i], queue, take_call, &c, &x->err));
            assert_true(is_readable(tinkc_queue_fd(queue)));
        }
        for (size_t i = 0; i < 3; i++) {
            assert_true(is_readable(tinkc_queue_fd(queue)));
            assert_true(tinkc_future_on_done(all[i], NULL, NULL, NULL, &x->err));
        }
        assert_false(is_readable(tinkc_queue_fd(queue)));
        for (size_t i = 0; i < 3; i++)
            assert_true(tinkc_future_on_done(all[i], queue, take_call, &c, &x->err));
        if (out < 3)
            assert_true(tinkc_future_on_done(all[out], NULL, NULL, NULL, &x->err));
        assert_int_equal(tinkc_queue_run(queue, 0, &x->err), out < 3 ? 2 : 3);
        size_t n = 0;
        for (size_t i = 0; i < 3; i++)
            if (i != out)
                assert_ptr_equal(c.seen[n++], all[i]);
        assert_int_equal(c.n, n);
    }
    for (size_t i = 0; i < 3; i++)
        tinkc_future_free(all[i]);
    tinkc_queue_free(queue);
}

/* What a callback lines up is for the next run: a run ends. */
static void lined_up_by_a_callback(void **state)
{
    fixture *x = *state;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    tinkc_future *first = done_call(x), *second = done_call(x);
    calls c = { .next = second, .queue = queue };
    assert_true(tinkc_future_on_done(first, queue, take_call, &c, &x->err));
    assert_int_equal(tinkc_queue_run(queue, 0, &x->err), 1);
    assert_int_equal(c.n, 1);
    assert_int_equal(tinkc_queue_run(queue, 0, &x->err), 1);
    assert_ptr_equal(c.seen[1], second);
    assert_int_equal(tinkc_queue_run(queue, 0, &x->err), 0);
    tinkc_future_free(first);
    tinkc_future_free(second);
    tinkc_queue_free(queue);
}

/* One wake ends one wait. */
static void a_wake_is_used_up(void **state)
{
    fixture *x = *state;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    for (int i = 0; i < 20; i++) {
        calls c = { .queue = queue };
        tinkc_queue_wake(queue);
        assert_int_equal(tinkc_queue_run(queue, TINKC_FOREVER, &x->err), 0);
        tinkc_future *f = tinkc_health_check(x->client, &x->err);
        assert_true(tinkc_future_on_done(f, queue, take_call, &c, &x->err));
        assert_int_equal(tinkc_queue_run(queue, PATIENCE_MS, &x->err), 1);
        tinkc_future_free(f);
    }
    assert_ok(&x->err);
    tinkc_queue_free(queue);
}

static void never_event(const tinkc_event *e, void *user)
{
    (void)e, (void)user;
    fail();
}

/* Without a function, or for no kind of event, there is nothing to receive, and no queue is needed. */
static void receivers_of_nothing(void **state)
{
    fixture *x = *state;
    tinkc_future *f = tinkc_health_check(x->client, &x->err);
    assert_true(tinkc_client_on_event(x->client, NULL, TINKC_EVENT_EXCHANGE, NULL, NULL, &x->err));
    assert_true(tinkc_client_on_event(x->client, NULL, 0, never_event, NULL, &x->err));
    assert_true(tinkc_future_on_event(f, NULL, TINKC_EVENT_EXCHANGE, NULL, NULL, &x->err));
    assert_true(tinkc_future_on_event(f, NULL, 0, never_event, NULL, &x->err));
    assert_false(
        tinkc_client_on_event(x->client, NULL, TINKC_EVENT_EXCHANGE, never_event, NULL, &x->err));
    check_error(x, TINKC_E_ARGUMENT, "queue: must not be NULL");
    tinkc_future_free(f);
}

static void take_operation(const tinkc_event *e, void *user)
{
    char *last = user;
    assert_true(strlen(e->operation) < 40);
    memcpy(last, e->operation, strlen(e->operation) + 1);
}

static void events_name_their_operation(void **state)
{
    fixture *x = *state;
    char last[40] = "";
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    assert_true(tinkc_client_on_event(x->client, queue, TINKC_EVENT_EXCHANGE, take_operation, last,
                                      &x->err));
    tinkc_future *f = done_call(x);
    settle(x);
    while (tinkc_queue_run(queue, 0, &x->err) > 0)
        ;
    assert_string_equal(last, "health_check");
    tinkc_future_free(f);
    tinkc_queue_free(queue);
}

static void count_event(const tinkc_event *e, void *user)
{
    (void)e;
    ++*(size_t *)user;
}

/* Too many events push out the oldest of them, never what a future has lined up. */
static void too_many_events(void **state)
{
    enum { ROOM = 1024, MORE = 6 };
    fixture *x = *state;
    size_t events = 0;
    static tinkc_future *all[ROOM + MORE];
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    tinkc_future *first = done_call(x);
    calls c = { .queue = queue };
    assert_true(tinkc_future_on_done(first, queue, take_call, &c, &x->err));
    assert_true(tinkc_client_on_event(x->client, queue, TINKC_EVENT_EXCHANGE, count_event, &events,
                                      &x->err));
    for (size_t i = 0; i < ROOM + MORE; i++)
        all[i] = tinkc_health_check(x->client, &x->err);
    assert_true(tinkc_future_wait_all(all, ROOM + MORE, PATIENCE_MS, &x->err));
    settle(x);
    assert_int_equal(tinkc_queue_run(queue, 0, &x->err), 1 + ROOM);
    assert_int_equal(events, ROOM);
    assert_int_equal(c.n, 1);
    for (size_t i = 0; i < ROOM + MORE; i++)
        tinkc_future_free(all[i]);
    tinkc_future_free(first);
    tinkc_queue_free(queue);
}

/* ---- waiting ---- */

static void a_future_stands_twice_in_a_list(void **state)
{
    fixture *x = *state;
    tinkc_mock_always(x->mock, NULL, API "healthz", &silent, &x->err);
    tinkc_future *f = tinkc_health_check(x->client, &x->err);
    tinkc_future *all[] = { NULL, f, f };
    assert_int_equal(tinkc_future_wait_any(all, 3, 20, &x->err), 3);
    check_error(x, TINKC_E_TIMEOUT, "none completed in time");
    tinkc_future_cancel(f);
    assert_int_equal(tinkc_future_wait_any(all, 3, PATIENCE_MS, &x->err), 1);
    assert_ok(&x->err);
    tinkc_future_free(f);
}

/* A failure among several does not end the wait for the others. */
static void one_has_failed_and_one_is_out(void **state)
{
    fixture *x = *state;
    once(x, API "healthz", 403, "{\"detail\":\"no\"}");
    tinkc_future *all[] = { tinkc_health_check(x->client, &x->err), NULL };
    assert_true(run_until_done(x->mock, all[0], 600000));
    tinkc_mock_always(x->mock, NULL, API "healthz", &silent, &x->err);
    all[1] = tinkc_health_check(x->client, &x->err);
    assert_false(tinkc_future_wait_all(all, 2, 0, &x->err));
    check_error(x, TINKC_E_TIMEOUT, "health_check: not complete yet");
    tinkc_future_cancel(all[1]);
    assert_false(tinkc_future_wait_all(all, 2, PATIENCE_MS, &x->err));
    assert_int_equal(x->err.code, TINKC_E_FORBIDDEN);
    x->err = (tinkc_error){ 0 };
    tinkc_future_free(all[0]);
    tinkc_future_free(all[1]);
}

/* After a failure nothing is done: the first one is kept. */
static void calls_after_a_failure(void **state)
{
    fixture *x = *state;
    tinkc_future *f = done_call(x);
    tinkc_text text = { 0 };
    tinkc_error bad = { .code = TINKC_E_STATE };
    assert_false(tinkc_future_wait(f, 0, &bad));
    assert_false(tinkc_future_wait_all(&f, 1, 0, &bad));
    assert_int_equal(tinkc_future_wait_any(&f, 1, 0, &bad), 1);
    assert_false(tinkc_future_limit(f, 1, &bad));
    assert_string_equal(tinkc_future_status(f, &text, &bad), "");
    assert_string_equal(tinkc_client_snapshot(x->client, &text, &bad), "");
    assert_null(tinkc_health_check(x->client, &bad));
    assert_null(tinkc_identity_get(x->client, &bad));
    assert_false(tinkc_client_connect(x->client, PATIENCE_MS, &bad));
    assert_false(tinkc_client_close(x->client, 0, &bad));
    assert_null(tinkc_queue_new(x->client, &bad));
    assert_int_equal(bad.code, TINKC_E_STATE);
    assert_string_equal(bad.message, "");
    assert_string_equal(tinkc_future_status(f, NULL, &x->err), "");
    check_error(x, TINKC_E_ARGUMENT, "out: must not be NULL");
    assert_string_equal(tinkc_future_status(NULL, &text, &x->err), "");
    check_error(x, TINKC_E_ARGUMENT, "future: must not be NULL");
    assert_false(tinkc_future_wait(NULL, 0, &x->err));
    check_error(x, TINKC_E_ARGUMENT, "future: must not be NULL");
    assert_false(tinkc_future_limit(NULL, 0, &x->err));
    check_error(x, TINKC_E_ARGUMENT, "future: must not be NULL");
    assert_false(tinkc_future_on_done(NULL, NULL, NULL, NULL, &x->err));
    check_error(x, TINKC_E_ARGUMENT, "future: must not be NULL");
    assert_false(tinkc_future_on_event(NULL, NULL, 0, NULL, NULL, &x->err));
    check_error(x, TINKC_E_ARGUMENT, "future: must not be NULL");
    assert_int_equal(tinkc_queue_run(NULL, 0, &x->err), 0);
    check_error(x, TINKC_E_ARGUMENT, "queue: must not be NULL");
    assert_null(tinkc_future_identity(NULL, 0, &x->err));
    check_error(x, TINKC_E_ARGUMENT, "future: must not be NULL");
    assert_null(tinkc_future_part(NULL, 0, 0, &x->err));
    check_error(x, TINKC_E_ARGUMENT, "future: of no pass");
    assert_string_equal(tinkc_client_snapshot(x->client, NULL, &x->err), "");
    check_error(x, TINKC_E_ARGUMENT, "out: must not be NULL");
    tinkc_future_free(f);
    tinkc_text_free(&text);
}

/* ---- operations ---- */

/* A limit beyond all time is none. */
static void a_limit_beyond_all_time(void **state)
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
static void a_limit_is_taken_back(void **state)
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
static void submitted_too_late(void **state)
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
static void a_close_waits_for_the_last_operation(void **state)
{
    fixture *x = *state;
    pthread_t thread;
    void *clean = NULL;
    assert_true(tinkc_client_connect(x->client, PATIENCE_MS, &x->err));
    tinkc_mock_always(x->mock, NULL, API "healthz",
                      &(tinkc_mock_answer){ .body = "{\"status\":\"ok\"}", .delay_ms = 1000 },
                      &x->err);
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

/* Of a request's id an error keeps what fits. */
static void long_request_ids(void **state)
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
            once(x, API "retrieve_future", 200,
                 "{\"error\":\"no\",\"category\":\"user\",\"type\":\"error\"}");
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

/* A client ends with samples that it could not report as cancelled yet. */
static void cancels_that_wait_at_the_end(void **state)
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

/* A pass that was cancelled while it was out is sent again before what follows, with all of its retries. */
static void what_a_cancelled_pass_leaves(void **state)
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
static void a_pass_behind_a_gap(void **state)
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
    check_failure(x,
                  tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err),
                  TINKC_E_SEQUENCE,
                  "an earlier request of this model was not confirmed: optim_step: cancelled");
    assert_int_equal(tinkc_mock_count(x->mock, API "optim_step"), 2);
    assert_int_equal(tinkc_mock_count(x->mock, API "forward_backward"), 0);
}

/* The error of a pass names the request that failed, not the last one that was accepted; however short their names. */
static void short_request_ids(void **state)
{
    begin_fixture(state, API "client/config", "{\"fwdbwd_max_chunk_len\":1}");
    fixture *x = *state;
    open_work(x, 2);
    once(x, API "forward_backward", 200, "{\"request_id\":\"a\"}");
    once(x, API "forward_backward", 200, "{\"request_id\":\"b\"}");
    tinkc_mock_once(x->mock, NULL, POLL,
                    &(tinkc_mock_answer){ .body = "{\"error\":\"bad luck\"}", .delay_ms = 100 },
                    &x->err);
    tinkc_mock_once(x->mock, NULL, POLL, &silent, &x->err);
    tinkc_future *f =
        tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
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

static void take_elapsed(const tinkc_event *e, void *user)
{
    if (e->kind == TINKC_EVENT_RETRY)
        *(int64_t *)user = e->elapsed_ms;
}

/* What a call waits for the settings does not count: its time begins when it may be sent. */
static void the_time_of_a_call(void **state)
{
    fixture *x = *state;
    int64_t elapsed = -1;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    tinkc_client_on_event(x->client, queue, TINKC_EVENT_RETRY, take_elapsed, &elapsed, &x->err);
    tinkc_mock_once(x->mock, NULL, API "client/config",
                    &(tinkc_mock_answer){ .body = "{}", .delay_ms = 3000 }, &x->err);
    once(x, API "get_server_capabilities", 503, "");
    assert_int_equal(tinkc_mock_count(x->mock, NULL), 0);
    complete(x, tinkc_capabilities_get(x->client, &x->err));
    tinkc_queue_run(queue, 0, &x->err);
    assert_ok(&x->err);
    assert_int_equal(elapsed, 0);
    tinkc_queue_free(queue);
}

/* How long an operation has been in trouble, to the millisecond. */
static void trouble_is_counted_from_its_beginning(void **state)
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

/* Even a limit of one byte holds. */
static void answers_of_one_byte(void **state)
{
    fixture *x = *state;
    tinkc_client *client =
        mock_client(x->mock, &(tinkc_client_options){ .max_response_bytes = 1 }, &x->err);
    for (size_t len = 1; len <= 2; len++) {
        tinkc_mock_once(x->mock, NULL, "/far",
                        &(tinkc_mock_answer){ .body = "12", .body_len = len }, &x->err);
        tinkc_future *f = tinkc_http_call(
            client, &(tinkc_http_options){ .path = "https://files.test/far" }, &x->err);
        assert_ok(&x->err);
        assert_true(run_until_done(x->mock, f, 600000));
        assert_int_equal(tinkc_future_wait(f, 0, &x->err), len == 1);
        x->err = (tinkc_error){ 0 };
        tinkc_future_free(f);
    }
    tinkc_client_free(client);
}

/* ---- billing ---- */

static void take_text_length(const tinkc_event *e, void *user)
{
    *(size_t *)user = strlen(e->text);
}

/* Of the service's words an event keeps 199. */
static void long_words_about_billing(void **state)
{
    fixture *x = *state;
    size_t kept = 0, before = 0; /* what stands before them */
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    assert_true(tinkc_client_on_event(x->client, queue, TINKC_EVENT_BILLING, take_text_length,
                                      &kept, &x->err));
    for (size_t len = 198; len <= 202; len += before != 0) {
        char body[300];
        (void)snprintf(body, sizeof body, "{\"detail\":\"%0*d\"}", before ? (int)(len - before) : 1,
                       0);
        once(x, API "get_server_capabilities", 402, body);
        tinkc_future *f = tinkc_capabilities_get(x->client, &x->err);
        assert_true(run_until_done(x->mock, f, 600000));
        assert_int_equal(tinkc_queue_run(queue, 0, &x->err), 1);
        if (before)
            assert_int_equal(kept, len < 199 ? len : 199);
        else
            before = kept - 1;
        assert_true(before > 0);
        tinkc_future_free(f);
    }
    tinkc_queue_free(queue);
}

static void count_pauses(int32_t level, const char *line, void *user)
{
    (void)level;
    if (strstr(line, "paused because of billing"))
        atomic_fetch_add((atomic_int *)user, 1);
}

/* A pause is logged once in a minute. */
static void the_log_about_billing(void **state)
{
    fixture *x = *state;
    for (int64_t later_ms = 60000; later_ms <= 60001; later_ms++) {
        atomic_int lines = 0;
        tinkc_client *client =
            mock_client(x->mock,
                        &(tinkc_client_options){
                            .log = count_pauses, .log_user = &lines, .log_level = TINKC_LOG_WARN },
                        &x->err);
        for (int i = 0; i < 2; i++) {
            once(x, API "get_server_capabilities", 402, "{\"detail\":\"no credit\"}");
            tinkc_future *f = tinkc_capabilities_get(client, &x->err);
            assert_int_equal(settle(x), 5000);
            tinkc_mock_advance(x->mock, 5000);
            assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
            tinkc_future_free(f);
            tinkc_mock_advance(x->mock, later_ms - 5000);
        }
        assert_int_equal(atomic_load(&lines), later_ms > 60000 ? 2 : 1);
        tinkc_client_free(client);
    }
}

/* ---- health, identities and tokens ---- */

static void what_a_health_check_says(void **state)
{
    static const struct {
        const char *body;
        int32_t code;
        const char *message;
    } rows[] = {
        { "{\"status\":\"ok\"}", TINKC_OK, "" },
        { "{\"status\":\"okay\"}", TINKC_E_SERVER,
          "health check failed: the service reports okay" },
        { "{\"status\":\"\"}", TINKC_E_SERVER, "health check failed: the service reports " },
    };
    fixture *x = *state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        once(x, API "healthz", 200, rows[i].body);
        tinkc_future *f = tinkc_health_check(x->client, &x->err);
        assert_true(run_until_done(x->mock, f, 600000));
        assert_int_equal(tinkc_future_wait(f, 0, &x->err), rows[i].code == TINKC_OK);
        check_error(x, rows[i].code, rows[i].message);
        tinkc_future_free(f);
    }
    once(x, API "healthz", 200, "5");
    tinkc_future *f = tinkc_health_check(x->client, &x->err);
    assert_true(run_until_done(x->mock, f, 600000));
    assert_false(tinkc_future_wait(f, 0, &x->err));
    assert_int_equal(x->err.code, TINKC_E_BAD_RESPONSE);
    x->err = (tinkc_error){ 0 };
    tinkc_future_free(f);
}

enum { WALL_BEGIN_S = 1767225600 };

/* {"jwt": ...} with these claims and an end so many seconds after the mock's beginning. */
static const char *token_answer(const char *more, int64_t ends_s)
{
    char claims[200];
    (void)snprintf(claims, sizeof claims, "{\"iss\":\"passport-x\",\"exp\":%lld%s}",
                   (long long)(WALL_BEGIN_S + ends_s), more);
    return token_answer_of(claims, "x");
}

static void addresses_in_identities(void **state)
{
    static const struct {
        const char *claims, *urn, *email;
    } rows[] = {
        { ",\"sub\":\"u\",\"email\":\"e\"", "u", "e" },
        { ",\"sub\":\"u\",\"email\":\"\"", "u", NULL },
        { "", "", NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(setup_tokens(state), 0);
        fixture *x = *state;
        always(x, API "auth/token", token_answer(rows[i].claims, 9999));
        tinkc_future *f = tinkc_identity_get(x->client, &x->err);
        const tinkc_identity *who = tinkc_future_identity(f, PATIENCE_MS, &x->err);
        assert_ok(&x->err);
        assert_string_equal(who->user_urn, rows[i].urn);
        assert_string_equal(who->org_urn, "");
        if (rows[i].email)
            assert_string_equal(who->email, rows[i].email);
        else
            assert_null(who->email);
        tinkc_future_free(f);
        end_fixture(state);
    }
}

/* The token is about to end: who asks for the identity waits for the next one, or no longer. */
static void an_identity_waits_for_its_token(void **state)
{
    fixture *x = *state;
    once(x, API "auth/token", 200, token_answer(",\"sub\":\"one\"", 90));
    tinkc_mock_once(
        x->mock, NULL, API "auth/token",
        &(tinkc_mock_answer){ .body = token_answer(",\"sub\":\"two\"", 9999), .delay_ms = 1000 },
        &x->err);
    assert_true(tinkc_client_connect(x->client, PATIENCE_MS, &x->err));
    settle(x);
    tinkc_mock_advance(x->mock, 31 * 1000);
    tinkc_future *f = tinkc_identity_get(x->client, &x->err);
    tinkc_future *unwanted = tinkc_token_get(x->client, &x->err);
    settle(x);
    assert_false(tinkc_future_done(f) || tinkc_future_done(unwanted));
    tinkc_future_cancel(unwanted);
    check_failure(x, unwanted, TINKC_E_CANCELLED, "token_get: cancelled");
    assert_false(tinkc_future_done(f));
    assert_true(run_until_done(x->mock, f, 5000));
    const tinkc_identity *who = tinkc_future_identity(f, 0, &x->err);
    assert_ok(&x->err);
    assert_string_equal(who->user_urn, "two");
    tinkc_future_free(f);
}

static void an_identity_without_settings(void **state)
{
    fixture *x = *state;
    tinkc_mock_always(x->mock, NULL, API "client/config",
                      &(tinkc_mock_answer){ .status = 403, .body = "{\"detail\":\"no\"}" },
                      &x->err);
    tinkc_future *f = tinkc_identity_get(x->client, &x->err);
    assert_true(run_until_done(x->mock, f, 600000));
    assert_false(tinkc_future_wait(f, 0, &x->err));
    assert_int_equal(x->err.code, TINKC_E_FORBIDDEN);
    x->err = (tinkc_error){ 0 };
    tinkc_future_free(f);
}

/* Before the settings are there, a question can be taken back. */
static void an_early_identity_is_cancelled(void **state)
{
    fixture *x = *state;
    tinkc_mock_always(x->mock, NULL, API "client/config", &silent, &x->err);
    tinkc_future *f = tinkc_identity_get(x->client, &x->err);
    settle(x);
    assert_false(tinkc_future_done(f));
    tinkc_future_cancel(f);
    check_failure(x, f, TINKC_E_CANCELLED, "identity_get: cancelled");
}

/* A token may be anything but empty. */
static void empty_tokens(void **state)
{
    fixture *x = *state;
    once(x, API "auth/token", 200, "{\"jwt\":\"\"}");
    check_failure(x, tinkc_health_check(x->client, &x->err), TINKC_E_TOKEN,
                  "token exchange: the answer holds no token");
    always(x, API "auth/token", "{\"jwt\":\"t\"}");
    tinkc_future *f = done_call(x);
    assert_string_equal(request_header(nth_request(x->mock, API "healthz", 0), "X-API-Key"), "t");
    tinkc_future_free(f);
}

/* A token whose end is not known is exchanged for every call. Any of those who wait for it may be cancelled, and one
 * that has it already: the others get theirs. */
static void cancelled_among_those_who_wait_for_a_token(void **state)
{
    fixture *x = *state;
    always(x, API "auth/token", "{\"jwt\":\"t\"}");
    tinkc_mock_always(x->mock, NULL, API "healthz", &silent, &x->err);
    tinkc_future *has_one = tinkc_health_check(x->client, &x->err);
    settle(x);
    assert_int_equal(tinkc_mock_count(x->mock, API "healthz"), 1);
    tinkc_mock_always(x->mock, NULL, API "auth/token",
                      &(tinkc_mock_answer){ .body = "{\"jwt\":\"t\"}", .delay_ms = 100 }, &x->err);
    for (size_t out = 0; out < 4; out++) { /* 3: the one that has its token */
        tinkc_future *all[3];
        for (size_t i = 0; i < 3; i++)
            all[i] = tinkc_capabilities_get(x->client, &x->err);
        settle(x);
        tinkc_future_cancel(out < 3 ? all[out] : has_one);
        settle(x);
        for (size_t i = 0; i < 3; i++) {
            assert_true(run_until_done(x->mock, all[i], 1000));
            assert_int_equal(tinkc_future_wait(all[i], 0, NULL), i != out);
            tinkc_future_free(all[i]);
        }
    }
    tinkc_future_free(has_one);
}

/* Calls that wait for a token together are refused and wait again, each by itself. */
static void waiting_for_a_token_twice(void **state)
{
    fixture *x = *state;
    tinkc_future *all[3];
    tinkc_mock_always(x->mock, NULL, API "auth/token",
                      &(tinkc_mock_answer){ .body = "{\"jwt\":\"t\"}", .delay_ms = 100 }, &x->err);
    for (size_t i = 0; i < 3; i++)
        once(x, API "get_server_capabilities", 503, "");
    for (size_t i = 0; i < 3; i++)
        all[i] = tinkc_capabilities_get(x->client, &x->err);
    for (size_t i = 0; i < 3; i++)
        complete(x, all[i]);
    assert_int_equal(tinkc_mock_count(x->mock, API "get_server_capabilities"), 6);
}

/* What is cancelled while it waits for its token has not run, nothing of it is sent later, and its number is free. */
static void cancelled_before_it_left(void **state)
{
    fixture *x = *state;
    once(x, API "auth/token", 200, token_answer("", 90));
    open_work(x, 1);
    settle(x);
    tinkc_mock_always(x->mock, NULL, API "auth/token",
                      &(tinkc_mock_answer){ .body = token_answer("", 9999), .delay_ms = 1000 },
                      &x->err);
    tinkc_mock_advance(x->mock, 40000);
    settle(x);
    const tinkc_adam adam = TINKC_ADAM_INIT;
    for (int i = 0; i < 2; i++) {
        tinkc_future *f =
            i ? tinkc_optim_step(x->trainer, &adam, &x->err)
              : tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
        settle(x);
        tinkc_future_cancel(f);
        assert_false(tinkc_future_wait(f, PATIENCE_MS, &x->err));
        assert_int_equal(x->err.flags & TINKC_MAY_HAVE_RUN, 0);
        check_error(x, TINKC_E_CANCELLED,
                    i ? "optim_step: cancelled" : "forward_backward: cancelled");
        tinkc_future_free(f);
    }
    complete(x, tinkc_optim_step(x->trainer, &adam, &x->err));
    assert_int_equal(tinkc_mock_count(x->mock, API "forward_backward"), 0);
    assert_int_equal(tinkc_mock_count(x->mock, API "optim_step"), 1);
    assert_true(body_has(nth_request(x->mock, API "optim_step", 0), "\"seq_id\":1,"));
}

/* A 400 without a word is a stale connection, also where tokens are exchanged. */
static void a_stale_connection_for_tokens(void **state)
{
    fixture *x = *state;
    tinkc_mock_once(x->mock, NULL, API "auth/token", &(tinkc_mock_answer){ .status = 400 },
                    &x->err);
    always(x, API "auth/token", token_answer("", 9999));
    tinkc_future *f = tinkc_health_check(x->client, &x->err);
    assert_true(run_until_done(x->mock, f, 600000));
    assert_true(tinkc_future_wait(f, 0, &x->err));
    assert_int_equal(tinkc_mock_count(x->mock, API "auth/token"), 2);
    tinkc_future_free(f);
}

/* ---- credential commands ---- */

/* The mock, as a service in this process: credentials are not exchanged there. */
static tinkc_transport local_mock(fixture *x)
{
    tinkc_transport t = *tinkc_mock_transport(x->mock);
    t.flags |= TINKC_TRANSPORT_LOCAL;
    return t;
}

/* The outcome of a command, as a question for the identity shows it. */
static void run_command(fixture *x, tinkc_client *client, int32_t code, const char *message)
{
    tinkc_future *f = tinkc_identity_get(client, &x->err);
    assert_ok(&x->err);
    wait_until(tinkc_future_done(f));
    assert_false(tinkc_future_wait(f, 0, &x->err));
    check_error(x, code, message);
    tinkc_future_free(f);
}

/* A service in this process needs no credential, and then there is nobody to name. */
static void nobody_without_a_credential(void **state)
{
    fixture *x = *state;
    tinkc_transport local = local_mock(x);
    unsetenv("TINKER_API_KEY");
    unsetenv("TINKER_CREDENTIAL_CMD");
    tinkc_client *client =
        tinkc_client_new(&(tinkc_client_options){ .transport = &local }, &x->err);
    assert_ok(&x->err);
    run_command(x, client, TINKC_E_NO_IDENTITY, "a plain key does not say whose it is");
    tinkc_client_free(client);
}

static void commands_may_work_later(void **state)
{
    fixture *x = *state;
    char folder[] = "/tmp/tinkc-corners-XXXXXX", command[300], mark[100];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(mark, sizeof mark, "%s/mark", folder);
    (void)snprintf(command, sizeof command, "test -e %s && echo tml-1 && exit; mkdir %s; exit 3",
                   mark, mark);
    tinkc_transport local = local_mock(x);
    unsetenv("TINKER_API_KEY");
    tinkc_client *client = tinkc_client_new(
        &(tinkc_client_options){ .credential_cmd = command, .transport = &local }, &x->err);
    assert_ok(&x->err);
    run_command(x, client, TINKC_E_CREDENTIAL_CMD, "credential command: failed with exit status 3");
    run_command(x, client, TINKC_E_NO_IDENTITY, "a plain key does not say whose it is");
    tinkc_client_free(client);
    assert_int_equal(rmdir(mark), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* A command gets every signal, in a group of its own, reads nothing and shows no words of its own. */
static void surroundings_of_commands(void **state)
{
    fixture *x = *state;
    int words[2], before = dup(0), shown = dup(2);
    assert_int_equal(pipe(words), 0);
    assert_int_equal(write(words[1], "words\n", 6), 6);
    assert_int_equal(dup2(words[0], 0), 0);
    tinkc_transport local = local_mock(x);
    unsetenv("TINKER_API_KEY");
    tinkc_client *client = tinkc_client_new(
        &(tinkc_client_options){
            .credential_cmd =
                "grep -q '^SigBlk:[^0-9a-f]*0000000000000000$' /proc/self/status || exit 4; "
                "test $(cut -d' ' -f5 /proc/$$/stat) = $$ || exit 5; read -r x && exit 6; "
                "test $(readlink /proc/$$/fd/2) = /dev/null || exit 7; echo tml-1",
            .transport = &local },
        &x->err);
    assert_ok(&x->err);
    assert_int_equal(dup2(words[1], 2), 2); /* not /dev/null already */
    tinkc_future *f = tinkc_identity_get(client, &x->err);
    (void)tinkc_future_wait(f, PATIENCE_MS, &x->err);
    assert_int_equal(dup2(shown, 2), 2);
    check_error(x, TINKC_E_NO_IDENTITY, "a plain key does not say whose it is");
    tinkc_future_free(f);
    tinkc_client_free(client);
    close(shown);
    if (before >= 0) {
        assert_int_equal(dup2(before, 0), 0);
        close(before);
    }
    close(words[0]);
    close(words[1]);
}

/* ---- telemetry ---- */

/* What the service answers to a stream is reported as it is for other calls. */
static void telemetry_of_a_refused_stream(void **state)
{
    fixture *x = *state;
    char byte;
    tinkc_client *client = mock_client(
        x->mock, &(tinkc_client_options){ .api_key = "tml-key", .telemetry = TINKC_TELEMETRY_ON },
        &x->err);
    once(x, "/far", 403, "{\"detail\":\"no\",\"more\":\"details\"}");
    tinkc_stream *s = tinkc_stream_open(client, &(tinkc_http_options){ .path = "/far" }, &x->err);
    assert_ok(&x->err);
    assert_int_equal(tinkc_stream_read(s, &byte, 1, PATIENCE_MS, &x->err), 0);
    assert_int_equal(x->err.code, TINKC_E_FORBIDDEN);
    x->err = (tinkc_error){ 0 };
    settle(x);
    tinkc_stream_free(s);
    assert_true(tinkc_client_close(client, PATIENCE_MS, &x->err));
    tinkc_client_free(client);
    bool found = false;
    for (size_t i = 0; i < tinkc_mock_count(x->mock, API "telemetry"); i++) {
        const tinkc_request *r = nth_request(x->mock, API "telemetry", i);
        found |= memmem(r->body.data, r->body.len, "details", 7) != NULL;
    }
    assert_true(found);
}

/* ---- losses ---- */

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

static void what_a_loss_may_ask_for(void **state)
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
        tinkc_future *f = tinkc_forward_backward_custom(t, b, together ? TINKC_CUSTOM_TOGETHER : 0,
                                                        NULL, look_around, &ran, &x->err);
        assert_ok(&x->err);
        assert_true(run_until_done(x->mock, f, 600000));
        assert_true(tinkc_future_wait(f, 0, &x->err));
        tinkc_future_free(f);
        assert_int_equal(ran, together + 1);
    }
    for (uint32_t together = 0; together < 2; together++) {
        assert_null(tinkc_forward_backward_custom(t, b, together ? TINKC_CUSTOM_TOGETHER : 0, NULL,
                                                  refuse, &ran, &x->err));
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
static void a_loss_that_holds_its_turn(void **state)
{
    fixture *x = *state;
    int ran = 0;
    tinkc_trainer *t = tinkc_trainer_new(x->client, &lora, &x->err);
    tinkc_batch *b = tinkc_batch_new(x->client, &x->err);
    assert_true(tinkc_batch_add_sft(b, ids, 6, 1, &x->err));
    once(x, API "forward_backward", 403, "{\"detail\":\"no\"}");
    tinkc_future *f = tinkc_forward_backward_custom(t, b, TINKC_CUSTOM_TOGETHER, NULL, look_around,
                                                    &ran, &x->err);
    assert_ok(&x->err);
    assert_false(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    assert_int_equal(x->err.code, TINKC_E_FORBIDDEN);
    x->err = (tinkc_error){ 0 };
    assert_int_equal(ran, 0);
    tinkc_future_free(f);
    f = tinkc_forward_backward_custom(t, b, TINKC_CUSTOM_TOGETHER, NULL, silence_the_rest, x,
                                      &x->err);
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
static void a_loss_that_closes_its_client(void **state)
{
    fixture *x = *state;
    counting memory = { 0 };
    tinkc_allocator a = counting_allocator(&memory);
    tinkc_client *client =
        mock_client(x->mock, &(tinkc_client_options){ .allocator = &a }, &x->err);
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

#define WITH(test, with) cmocka_unit_test_setup_teardown(test, with, end_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(taken_out_of_a_queue, setup),
        WITH(lined_up_by_a_callback, setup),
        WITH(a_wake_is_used_up, setup),
        WITH(receivers_of_nothing, setup),
        WITH(events_name_their_operation, setup),
        WITH(too_many_events, setup),
        WITH(a_future_stands_twice_in_a_list, setup),
        WITH(one_has_failed_and_one_is_out, setup),
        WITH(calls_after_a_failure, setup),
        WITH(a_limit_beyond_all_time, setup),
        WITH(a_limit_is_taken_back, setup),
        WITH(submitted_too_late, setup),
        WITH(a_close_waits_for_the_last_operation, setup),
        WITH(long_request_ids, setup),
        WITH(cancels_that_wait_at_the_end, setup_cancels),
        WITH(what_a_cancelled_pass_leaves, setup),
        WITH(a_pass_behind_a_gap, setup),
        WITH(the_time_of_a_call, setup),
        cmocka_unit_test(short_request_ids),
        WITH(trouble_is_counted_from_its_beginning, setup),
        WITH(answers_of_one_byte, setup),
        WITH(long_words_about_billing, setup),
        WITH(the_log_about_billing, setup),
        WITH(what_a_health_check_says, setup),
        cmocka_unit_test(addresses_in_identities),
        WITH(an_identity_waits_for_its_token, setup_tokens),
        WITH(an_identity_without_settings, setup),
        WITH(an_early_identity_is_cancelled, setup),
        WITH(empty_tokens, setup_tokens),
        WITH(cancelled_among_those_who_wait_for_a_token, setup_tokens),
        WITH(waiting_for_a_token_twice, setup_tokens),
        WITH(cancelled_before_it_left, setup_tokens),
        WITH(a_stale_connection_for_tokens, setup_tokens),
        WITH(nobody_without_a_credential, setup),
        WITH(commands_may_work_later, setup),
        WITH(surroundings_of_commands, setup),
        WITH(telemetry_of_a_refused_stream, setup),
        WITH(what_a_loss_may_ask_for, setup),
        WITH(a_loss_that_holds_its_turn, setup),
        WITH(a_loss_that_closes_its_client, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
