/* test_completion.c - completion and events: who is called, in which order, what is lost, and lists of futures. */
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

static tinkc_future *done_call(fixture *x)
{
    tinkc_future *f = tinkc_health_check(x->client, &x->err);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    return f;
}

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
TEST_WITH(taken_out_of_a_queue, setup, end_fixture)
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
TEST_WITH(lined_up_by_a_callback, setup, end_fixture)
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
TEST_WITH(a_wake_is_used_up, setup, end_fixture)
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
TEST_WITH(receivers_of_nothing, setup, end_fixture)
{
    fixture *x = *state;
    tinkc_future *f = tinkc_health_check(x->client, &x->err);
    assert_true(tinkc_client_on_event(x->client, NULL, TINKC_EVENT_EXCHANGE, NULL, NULL, &x->err));
    assert_true(tinkc_client_on_event(x->client, NULL, 0, never_event, NULL, &x->err));
    assert_true(tinkc_future_on_event(f, NULL, TINKC_EVENT_EXCHANGE, NULL, NULL, &x->err));
    assert_true(tinkc_future_on_event(f, NULL, 0, never_event, NULL, &x->err));
    assert_false(tinkc_client_on_event(x->client, NULL, TINKC_EVENT_EXCHANGE, never_event, NULL, &x->err));
    check_error(x, TINKC_E_ARGUMENT, "queue: must not be NULL");
    tinkc_future_free(f);
}

static void take_operation(const tinkc_event *e, void *user)
{
    char *last = user;
    assert_true(strlen(e->operation) < 40);
    memcpy(last, e->operation, strlen(e->operation) + 1);
}

TEST_WITH(events_name_their_operation, setup, end_fixture)
{
    fixture *x = *state;
    char last[40] = "";
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    assert_true(tinkc_client_on_event(x->client, queue, TINKC_EVENT_EXCHANGE, take_operation, last, &x->err));
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
TEST_WITH(too_many_events, setup, end_fixture)
{
    enum { ROOM = 1024, MORE = 6 };
    fixture *x = *state;
    size_t events = 0;
    static tinkc_future *all[ROOM + MORE];
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    tinkc_future *first = done_call(x);
    calls c = { .queue = queue };
    assert_true(tinkc_future_on_done(first, queue, take_call, &c, &x->err));
    assert_true(tinkc_client_on_event(x->client, queue, TINKC_EVENT_EXCHANGE, count_event, &events, &x->err));
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

TEST_WITH(a_future_stands_twice_in_a_list, setup, end_fixture)
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

/* After a failure nothing is done: the first one is kept. */
TEST_WITH(calls_after_a_failure, setup, end_fixture)
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
