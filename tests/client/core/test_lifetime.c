/* test_lifetime.c - what ends when: closing, freeing, cancelling, forking; and what never hangs. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/call/limits.h"
#include "client/core/operation.h"
#include "support/client/mock_fixture.h"
#include "support/counting.h"

static int make(void **state, const char *config)
{
    fixture *x = calloc(1, sizeof *x);
    x->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x->err);
    if (config)
        tinkc_mock_always(x->mock, NULL, "/api/v1/client/config",
                          &(tinkc_mock_answer){ .body = config }, &x->err);
    x->client = mock_client(x->mock, NULL, &x->err);
    x->trainer = tinkc_trainer_new(x->client, &lora, &x->err);
    x->sampler = tinkc_sampler_new(x->client, &nano, &x->err);
    x->batch = tinkc_batch_new(x->client, &x->err);
    for (int i = 0; i < 6; i++)
        tinkc_batch_add_sft(x->batch, ids, 6, 1, &x->err);
    assert_ok(&x->err);
    tinkc_mock_forget(x->mock);
    *state = x;
    return 0;
}

static int setup(void **state)
{
    return make(state, NULL);
}
static int setup_chunks(void **state)
{
    return make(state, "{\"fwdbwd_max_chunk_len\":2}");
}

static int teardown(void **state)
{
    fixture *x = *state;
    tinkc_batch_free(x->batch);
    tinkc_trainer_free(x->trainer);
    tinkc_sampler_free(x->sampler);
    tinkc_client_free(x->client);
    tinkc_mock_free(x->mock);
    free(x);
    return 0;
}

static tinkc_future *step(fixture *x)
{
    tinkc_adam adam = TINKC_ADAM_INIT;
    return tinkc_optim_step(x->trainer, &adam, &x->err);
}

static tinkc_future *pass(fixture *x)
{
    return tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
}

static tinkc_future *sample(fixture *x)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    return tinkc_sample(x->sampler, ids, 6, 1, &o, &x->err);
}

static int32_t code_of(tinkc_future *f)
{
    tinkc_error err = { 0 };
    (void)tinkc_future_wait(f, PATIENCE_MS, &err);
    return err.code;
}

/* ---- closing ---- */

enum { MANY = 400 };

TEST_WITH(closing_completes_hundreds_at_once, setup_chunks, teardown)
{
    fixture *x = *state;
    tinkc_future *all[MANY];
    tinkc_mock_always(x->mock, NULL, "/api/v1/retrieve_future",
                      &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &x->err);
    tinkc_mock_always(x->mock, NULL, "/api/v1/optim_step",
                      &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &x->err);
    for (size_t i = 0; i < MANY; i++)
        all[i] = i % 4 == 0 ? step(x) : i % 4 == 1 ? pass(x) : sample(x);
    assert_ok(&x->err);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    assert_false(tinkc_client_close(x->client, 0, &x->err)); /* something was cut off */
    assert_ok(&x->err);
    for (size_t i = 0; i < MANY; i++) {
        assert_true(tinkc_future_done(all[i]));
        assert_int_equal(code_of(all[i]), TINKC_E_CLOSED);
        tinkc_future_free(all[i]);
    }
    assert_null(step(x));
    assert_int_equal(x->err.code, TINKC_E_CLOSED);
    x->err = (tinkc_error){ 0 };
    assert_true(tinkc_client_close(x->client, 1000, &x->err)); /* idempotent */
}

TEST_WITH(c32_freeing_the_client_leaves_work_running, setup, teardown)
{
    fixture *x = *state;
    tinkc_future *all[20];
    for (size_t i = 0; i < 20; i++)
        all[i] = i % 2 ? step(x) : sample(x);
    tinkc_trainer_free(x->trainer);
    tinkc_sampler_free(x->sampler);
    tinkc_client_free(x->client);
    x->trainer = NULL;
    x->sampler = NULL;
    x->client = NULL;
    for (size_t i = 0; i < 20; i++) {
        assert_int_equal(code_of(all[i]), TINKC_OK);
        tinkc_future_free(all[i]);
    }
}

TEST_WITH(freeing_everything_unfinished_is_fine, setup_chunks, teardown)
{
    fixture *x = *state;
    tinkc_mock_always(x->mock, NULL, "/api/v1/retrieve_future",
                      &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &x->err);
    for (size_t i = 0; i < 50; i++)
        tinkc_future_free(i % 3 == 0 ? pass(x) : i % 3 == 1 ? step(x) : sample(x));
    assert_ok(&x->err);
}

/* Gives back the first few blocks slowly on other threads than the test's. */
typedef struct slow_memory {
    counting out;
    pthread_t fast;
    atomic_int slow;
} slow_memory;

static void *slow_alloc(size_t size, void *user)
{
    return counting_alloc(size, &((slow_memory *)user)->out);
}

static void *slow_resize(void *ptr, size_t old_size, size_t new_size, void *user)
{
    return counting_resize(ptr, old_size, new_size, &((slow_memory *)user)->out);
}

static void slow_release(void *ptr, size_t size, void *user)
{
    slow_memory *m = user;
    if (!pthread_equal(pthread_self(), m->fast) && atomic_fetch_sub(&m->slow, 1) > 0)
        nanosleep(&(struct timespec){ .tv_nsec = 5 * 1000 * 1000 }, NULL);
    counting_release(ptr, size, &m->out);
}

/* Freed last, the client has ended when tinkc_client_free returns: its allocator may go. Only an I/O thread that does
 * not answer for five seconds is left behind. */
TEST_WITH(a_client_that_is_freed_last_has_ended, setup, teardown)
{
    fixture *x = *state;
    tinkc_mock_always(x->mock, NULL, "/api/v1/create_sampling_session",
                      &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &x->err);
    for (int scene = 0; scene < 2; scene++) {
        slow_memory memory = { .fast = pthread_self(), .slow = 0 };
        tinkc_allocator a = { slow_alloc, slow_resize, slow_release, &memory };
        tinkc_client *client =
            mock_client(x->mock, &(tinkc_client_options){ .allocator = &a }, &x->err);
        tinkc_text text = { 0 };
        assert_ok(&x->err);
        tinkc_future *f = scene ? tinkc_sampler_open(client, &nano, &x->err) : NULL;
        tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
        atomic_store(&memory.slow, 10);
        if (scene == 0)
            assert_string_not_equal(tinkc_client_snapshot(client, &text, &x->err), "");
        assert_ok(&x->err);
        int64_t began_ms = patience_now_ms();
        tinkc_future_free(f);
        tinkc_client_free(client);
        if (patience_now_ms() - began_ms < 5000)
            assert_int_equal(atomic_load(&memory.out.bytes), 0);
        assert_true(counting_is_empty_soon(&memory.out));
        tinkc_text_free(&text);
    }
}

/* ---- waiting ---- */

TEST_WITH(c12_a_wait_that_runs_out_changes_nothing, setup, teardown)
{
    fixture *x = *state;
    tinkc_mock_once(x->mock, NULL, "/api/v1/retrieve_future",
                    &(tinkc_mock_answer){ .status = 408, .delay_ms = 1000 }, &x->err);
    tinkc_future *f = step(x);
    assert_false(tinkc_future_wait(f, 0, &x->err));
    assert_int_equal(x->err.code, TINKC_E_TIMEOUT);
    x->err = (tinkc_error){ 0 };
    assert_null(tinkc_future_step(f, 5, &x->err));
    assert_int_equal(x->err.code, TINKC_E_TIMEOUT);
    x->err = (tinkc_error){ 0 };
    assert_true(run_until_done(x->mock, f, 60000));
    assert_true(tinkc_future_wait(f, 0, &x->err));
    assert_null(tinkc_future_samples(f, 0, &x->err)); /* of another kind */
    assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
    x->err = (tinkc_error){ 0 };
    tinkc_future_free(f);
}

TEST_WITH(limits_end_with_deadline, setup, teardown)
{
    fixture *x = *state;
    tinkc_mock_always(x->mock, NULL, "/api/v1/retrieve_future",
                      &(tinkc_mock_answer){ .status = 429 }, &x->err);
    tinkc_future *f = step(x);
    assert_true(tinkc_future_limit(f, 5000, &x->err));
    assert_true(run_until_done(x->mock, f, 6000));
    assert_int_equal(code_of(f), TINKC_E_DEADLINE);
    tinkc_future_free(f);
}

TEST_WITH(waits_for_all_and_for_any, setup, teardown)
{
    fixture *x = *state;
    tinkc_future *all[4] = { step(x), NULL, sample(x), step(x) };
    assert_true(tinkc_future_wait_all(all, 4, PATIENCE_MS, &x->err));
    tinkc_mock_always(x->mock, NULL, "/api/v1/retrieve_future",
                      &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &x->err);
    tinkc_future *slow = step(x);
    tinkc_future *two[2] = { slow, NULL };
    assert_int_equal(tinkc_future_wait_any(two, 2, 20, &x->err), 2);
    assert_int_equal(x->err.code, TINKC_E_TIMEOUT);
    x->err = (tinkc_error){ 0 };
    two[1] = all[2];
    assert_int_equal(tinkc_future_wait_any(two, 2, PATIENCE_MS, &x->err), 1);
    two[1] = NULL;
    tinkc_future_cancel(slow);
    assert_int_equal(tinkc_future_wait_any(two, 2, PATIENCE_MS, &x->err), 0);
    assert_ok(&x->err);
    assert_false(tinkc_future_wait_all(two, 2, PATIENCE_MS, &x->err));
    assert_int_equal(x->err.code, TINKC_E_CANCELLED);
    x->err = (tinkc_error){ 0 };
    tinkc_future_free(slow);
    for (size_t i = 0; i < 4; i++)
        tinkc_future_free(all[i]);
}

/* ---- queues ---- */

static void count_done(tinkc_future *f, void *user)
{
    ++*(int *)user;
    tinkc_future_free(f);
}

static void is_replaced(tinkc_future *f, void *user)
{
    (void)f;
    *(int *)user = -1000;
}

TEST_WITH(queue_runs_callbacks_where_it_is_run, setup, teardown)
{
    fixture *x = *state;
    int done = 0;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    struct pollfd fd = { .fd = tinkc_queue_fd(queue), .events = POLLIN };
    assert_int_equal(poll(&fd, 1, 0), 0);
    for (int i = 0; i < 10; i++)
        tinkc_future_on_done(sample(x), queue, count_done, &done, &x->err);
    assert_int_equal(poll(&fd, 1, 5000), 1);
    while (done < 10)
        assert_true(tinkc_queue_run(queue, PATIENCE_MS, &x->err) > 0);
    assert_ok(&x->err);
    assert_int_equal(poll(&fd, 1, 0), 0);
    /* After completion it comes at the next run; taken away it never comes. */
    tinkc_future *f = step(x);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    tinkc_future_on_done(f, queue, count_done, &done, &x->err);
    tinkc_future_on_done(f, queue, NULL, NULL, &x->err);
    assert_int_equal(tinkc_queue_run(queue, 0, &x->err), 0);
    tinkc_future_on_done(f, queue, count_done, &done, &x->err);
    assert_int_equal(done, 10);
    assert_int_equal(tinkc_queue_run(queue, 0, &x->err), 1);
    assert_int_equal(done, 11);
    /* The second function takes the place of the first, before completion and after it. */
    for (int i = 0; i < 2; i++) {
        tinkc_mock_once(x->mock, NULL, "/api/v1/retrieve_future",
                        &(tinkc_mock_answer){ .status = 408, .delay_ms = 1000 }, &x->err);
        f = step(x);
        if (i)
            assert_true(run_until_done(x->mock, f, 10000));
        tinkc_future_on_done(f, queue, is_replaced, &done, &x->err);
        tinkc_future_on_done(f, queue, count_done, &done, &x->err);
        if (!i)
            assert_true(run_until_done(x->mock, f, 10000));
        assert_int_equal(tinkc_queue_run(queue, PATIENCE_MS, &x->err), 1);
        assert_int_equal(done, 12 + i);
    }
    assert_ok(&x->err);
    tinkc_queue_free(queue);
}

static void take_queue_event(const tinkc_event *event, void *user)
{
    int *seen = user;
    if (event->kind == TINKC_EVENT_QUEUE)
        seen[event->queue_state]++;
}

TEST_WITH(queue_state_events_come_on_changes_only, setup, teardown)
{
    fixture *x = *state;
    int seen[4] = { 0 };
    static const char capacity[] = "{\"type\":\"try_again\",\"queue_state\":\"paused_capacity\"}";
    static const char rate[] = "{\"type\":\"try_again\",\"queue_state\":\"PAUSED_RATE_LIMIT\"}";
    const char *answers[] = { capacity, capacity, rate, capacity };
    for (size_t i = 0; i < 4; i++)
        tinkc_mock_once(x->mock, NULL, "/api/v1/retrieve_future",
                        &(tinkc_mock_answer){ .body = answers[i], .status = i == 1 ? 408 : 200 },
                        &x->err);
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    tinkc_client_on_event(x->client, queue, TINKC_EVENT_QUEUE, take_queue_event, seen, &x->err);
    tinkc_future *f = step(x);
    assert_true(run_until_done(x->mock, f, 60000));
    while (tinkc_queue_run(queue, 0, &x->err) > 0)
        ;
    assert_int_equal(seen[TINKC_QUEUE_PAUSED_CAPACITY], 2);
    assert_int_equal(seen[TINKC_QUEUE_PAUSED_RATE], 1);
    tinkc_future_free(f);
    tinkc_queue_free(queue);
}

/* ---- cancelling ---- */

TEST_WITH(c13_cancelling_in_the_queue_moves_the_others_up, setup, teardown)
{
    fixture *x = *state;
    tinkc_future *all[10];
    tinkc_mock_once(x->mock, NULL, "/api/v1/optim_step",
                    &(tinkc_mock_answer){ .status = 503, .body = "{}" }, &x->err);
    for (size_t i = 0; i < 10; i++)
        all[i] = step(x);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    tinkc_future_cancel(all[4]);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    assert_int_equal(code_of(all[4]), TINKC_E_CANCELLED);
    assert_true(run_until_done(x->mock, all[9], 60000));
    for (size_t i = 0; i < 10; i++) {
        assert_int_equal(code_of(all[i]), i == 4 ? TINKC_E_CANCELLED : TINKC_OK);
        tinkc_future_free(all[i]);
    }
    /* Nine requests (one twice), numbered without a gap. */
    assert_int_equal(tinkc_mock_count(x->mock, "/api/v1/optim_step"), 10);
    assert_non_null(strstr((const char *)nth_request(x->mock, "/api/v1/optim_step", 9)->body.data,
                           "\"seq_id\":9"));
}

TEST_WITH(a_refused_chunk_does_not_block_what_follows, setup_chunks, teardown)
{
    fixture *x = *state;
    tinkc_mock_once(x->mock, NULL, "/api/v1/forward_backward",
                    &(tinkc_mock_answer){ .status = 422, .body = "{\"detail\":\"no\"}" }, &x->err);
    tinkc_future *bad = pass(x);
    tinkc_future *after = step(x);
    assert_int_equal(code_of(bad), TINKC_E_UNPROCESSABLE);
    assert_int_equal(code_of(after), TINKC_E_SEQUENCE); /* at once, not never */
    tinkc_error err = { 0 };
    (void)tinkc_future_wait(after, 0, &err);
    assert_int_equal(err.cause, TINKC_E_UNPROCESSABLE);
    tinkc_future_free(bad);
    tinkc_future_free(after);
}

TEST_WITH(a_pass_refused_as_a_whole_leaves_no_gap, setup_chunks, teardown)
{
    fixture *x = *state;
    tinkc_mock_always(x->mock, NULL, "/api/v1/forward_backward",
                      &(tinkc_mock_answer){ .status = 400, .body = "{\"detail\":\"no\"}" },
                      &x->err);
    tinkc_future *bad = pass(x);
    tinkc_future *after = step(x);
    assert_int_equal(code_of(bad), TINKC_E_BAD_REQUEST);
    assert_int_equal(code_of(after), TINKC_OK);
    assert_non_null(strstr((const char *)nth_request(x->mock, "/api/v1/optim_step", 0)->body.data,
                           "\"seq_id\":1"));
    tinkc_future_free(bad);
    tinkc_future_free(after);
}

/* ---- lost submits ---- */

TEST_WITH(c28_a_lost_submit_breaks_and_mends_the_sequence, setup, teardown)
{
    fixture *x = *state;
    tinkc_mock_always(x->mock, NULL, "/api/v1/optim_step",
                      &(tinkc_mock_answer){ .fault = TINKC_FAULT_RESET }, &x->err);
    tinkc_future *lost = step(x), *behind = step(x);
    assert_true(run_until_done(x->mock, lost, 3600000));
    assert_int_equal(code_of(lost), TINKC_E_CONNECTION);
    assert_true(run_until_done(x->mock, behind, 60000));
    assert_int_equal(code_of(behind), TINKC_E_SEQUENCE);
    tinkc_future *still = step(x);
    assert_int_equal(code_of(still), TINKC_E_SEQUENCE);
    /* The network is back: the lost one is sent again under its own number, then the new one. */
    size_t before = tinkc_mock_count(x->mock, "/api/v1/optim_step");
    tinkc_mock_once(x->mock, NULL, "/api/v1/optim_step",
                    &(tinkc_mock_answer){ .body = "{\"request_id\":\"r1\"}" }, &x->err);
    tinkc_mock_once(x->mock, NULL, "/api/v1/optim_step",
                    &(tinkc_mock_answer){ .body = "{\"request_id\":\"r2\"}" }, &x->err);
    tinkc_mock_once(x->mock, NULL, "/api/v1/retrieve_future", &(tinkc_mock_answer){ .body = "{}" },
                    &x->err);
    tinkc_future *fine = step(x);
    assert_int_equal(code_of(fine), TINKC_OK);
    assert_non_null(
        strstr((const char *)nth_request(x->mock, "/api/v1/optim_step", before)->body.data,
               "\"seq_id\":1,"));
    assert_non_null(
        strstr((const char *)nth_request(x->mock, "/api/v1/optim_step", before + 1)->body.data,
               "\"seq_id\":2,"));
    tinkc_future *all[] = { lost, behind, still, fine };
    for (size_t i = 0; i < 4; i++)
        tinkc_future_free(all[i]);
}

/* ---- threads ---- */

static void *submit_many(void *arg)
{
    fixture *x = arg;
    tinkc_error err = { 0 };
    tinkc_adam adam = TINKC_ADAM_INIT;
    tinkc_future *all[50];
    for (size_t i = 0; i < 50; i++)
        all[i] = tinkc_optim_step(x->trainer, &adam, &err);
    (void)tinkc_future_wait_all(all, 50, 60000, &err);
    for (size_t i = 0; i < 50; i++)
        tinkc_future_free(all[i]);
    return (void *)(intptr_t)err.code;
}

TEST_WITH(c44_threads_share_a_trainer_without_gaps, setup, teardown)
{
    fixture *x = *state;
    pthread_t threads[8];
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, submit_many, x), 0);
    for (size_t i = 0; i < 8; i++) {
        void *code;
        pthread_join(threads[i], &code);
        assert_null(code);
    }
    for (size_t i = 0; i < 400; i++) {
        const char *at = strstr(
            (const char *)nth_request(x->mock, "/api/v1/optim_step", i)->body.data, "\"seq_id\":");
        assert_int_equal(strtol(at + 9, NULL, 10), i + 1);
    }
}

static tinkc_client *log_client;
static atomic_int thread_code;

static void waits_in_log(int32_t level, const char *line, void *user)
{
    (void)level, (void)line, (void)user;
    tinkc_error err = { 0 };
    if (log_client && !tinkc_client_connect(log_client, 10, &err))
        atomic_store(&thread_code, err.code);
}

TEST(waiting_on_the_io_thread_is_refused)
{
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_client_options o = { .log = waits_in_log, .log_level = TINKC_LOG_DEBUG };
    tinkc_client *client = mock_client(mock, &o, &err);
    log_client = client;
    assert_non_null(tinkc_client_session_id(client, PATIENCE_MS, &err));
    tinkc_mock_settle(mock, PATIENCE_MS, &err);
    log_client = NULL;
    assert_int_equal(atomic_load(&thread_code), TINKC_E_THREAD);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
}

TEST_WITH(a_forked_child_may_only_free, setup, teardown)
{
    fixture *x = *state;
    tinkc_future *f = step(x);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    pid_t pid = fork();
    if (pid == 0) {
        tinkc_error err = { 0 };
        bool ok = !tinkc_future_wait(f, 0, &err) && err.code == TINKC_E_FORKED;
        err = (tinkc_error){ 0 };
        ok = ok && !tinkc_trainer_save(x->trainer, "a", NULL, &err) && err.code == TINKC_E_FORKED;
        tinkc_future_free(f);
        tinkc_trainer_free(x->trainer);
        tinkc_client_free(x->client);
        _exit(ok ? 0 : 1);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    tinkc_future_free(f);
}

/* With the lock taken by a thread that the child does not have. */
TEST_WITH(a_forked_child_looks_without_waiting, setup, teardown)
{
    fixture *x = *state;
    tinkc_future *f = step(x);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    pthread_mutex_lock(&f->shared.lock);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60); /* what hangs ends badly */
        int64_t done, total, ms;
        int32_t attempts;
        tinkc_future_progress(f, &done, &total);
        bool ok = tinkc_future_done(f) && tinkc_future_stage(f) == TINKC_STAGE_DONE &&
                  tinkc_future_queue_state(f) == TINKC_QUEUE_UNKNOWN && done == 0 && total == -1 &&
                  tinkc_future_request_id(f)[0] == '\0' && !tinkc_future_error_body(f).len &&
                  tinkc_future_retry_state(f, &attempts, &ms) == TINKC_OK && !attempts && !ms;
        tinkc_future_cancel(f);
        tinkc_future_free(f);
        _exit(ok ? 0 : 1);
    }
    pthread_mutex_unlock(&f->shared.lock);
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    tinkc_future_free(f);
}

/* ---- receivers that go away ---- */

static void no_event(const tinkc_event *e, void *user)
{
    (void)e;
    ++*(int *)user;
}

/* The I/O thread may be in the middle of telling when the handle goes. */
TEST_WITH(an_event_after_the_free_goes_nowhere, setup, teardown)
{
    fixture *x = *state;
    int called = 0;
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    tinkc_future *f = step(x);
    assert_true(tinkc_future_on_event(f, queue, ~0u, no_event, &called, &x->err));
    tkc_future_keep(f); /* as the I/O thread does */
    tinkc_future_free(f);
    (void)tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    tkc_emit(x->client, f, &(tinkc_event){ .kind = TINKC_EVENT_RETRY, .text = "late" });
    tkc_future_drop(f);
    while (tinkc_queue_run(queue, 0, &x->err) > 0)
        ;
    assert_int_equal(called, 0);
    tinkc_queue_free(queue);
}

static void count_call(tinkc_future *f, void *user)
{
    (void)f;
    ++*(int *)user;
}

static void *free_queue(void *queue)
{
    tinkc_queue_free(queue);
    return NULL;
}

/* One thread frees a queue while another moves what waits in it to a second one: each callback runs
 * once, there. */
TEST_WITH(callbacks_move_from_a_queue_that_is_freed, setup, teardown)
{
    enum { N = 64, ROUNDS = 40 };
    fixture *x = *state;
    tinkc_future *all[N];
    for (int round = 0; round < ROUNDS; round++) {
        int calls[N] = { 0 };
        tinkc_queue *from = tinkc_queue_new(x->client, &x->err);
        tinkc_queue *to = tinkc_queue_new(x->client, &x->err);
        for (int i = 0; i < N; i++)
            all[i] = tinkc_capabilities_get(x->client, &x->err);
        assert_true(tinkc_future_wait_all(all, N, PATIENCE_MS, &x->err));
        for (int i = 0; i < N; i++)
            tinkc_future_on_done(all[i], from, count_call, &calls[i], &x->err);
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, free_queue, from), 0);
        for (int i = 0; i < N; i++)
            tinkc_future_on_done(all[i], to, count_call, &calls[i], &x->err);
        pthread_join(thread, NULL);
        while (tinkc_queue_run(to, 0, &x->err) > 0)
            ;
        assert_ok(&x->err);
        for (int i = 0; i < N; i++) {
            assert_int_equal(calls[i], 1);
            tinkc_future_free(all[i]);
        }
        tinkc_queue_free(to);
    }
}

/* ---- waits without an end can be seen ---- */

/* There is more to come. */
static void settle_soon(fixture *x)
{
    assert_int_not_equal(settle(x), TINKC_FOREVER);
}

static bool status_has(fixture *x, tinkc_future *f, const char *words)
{
    tinkc_text text = { 0 };
    bool has = strstr(tinkc_future_status(f, &text, &x->err), words) != NULL;
    tinkc_text_free(&text);
    return has;
}

/* Each kind of trouble that polls go through without end: code, number and time are there to see,
 * and go when it is over. */
TEST_WITH(trouble_while_polling_is_seen, setup, teardown)
{
    static const char path[] = "/api/v1/retrieve_future";
    static const struct {
        tinkc_mock_answer answer;
        int32_t code;
        const char *words;
    } kinds[] = {
        { { .fault = TINKC_FAULT_REFUSED }, TINKC_E_CONNECTION, "cannot be fetched" },
        { { .status = 503 }, TINKC_E_SERVER, "503" },
        { { .status = 429 }, TINKC_E_RATE_LIMITED, "429" },
        { { .status = 400, .body = "<p>edge</p>" }, TINKC_E_BAD_REQUEST, "400" },
    };
    fixture *x = *state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (int i = 0; i < 3; i++)
            tinkc_mock_once(x->mock, "POST", path, &kinds[k].answer, &x->err);
        tinkc_mock_once(x->mock, "POST", path,
                        &(tinkc_mock_answer){ .body = "{\"type\":\"try_again\"}" }, &x->err);
        tinkc_future *f = step(x);
        int32_t attempts = 0;
        int64_t ms = -1;
        for (int i = 1; i <= 3; i++) {
            settle_soon(x);
            assert_int_equal(tinkc_future_retry_state(f, &attempts, &ms), kinds[k].code);
            assert_int_equal(attempts, i);
            assert_true(i == 1 ? ms == 0 : ms >= 100);
            assert_int_equal(tinkc_future_stage(f), TINKC_STAGE_ACCEPTED);
            assert_true(status_has(x, f, kinds[k].words));
            tinkc_mock_advance(x->mock, 8000);
        }
        settle_soon(x);
        assert_int_equal(tinkc_future_retry_state(f, &attempts, &ms), TINKC_OK);
        assert_true(attempts == 0 && ms == 0);
        assert_true(status_has(x, f, "not ready yet"));
        assert_true(run_until_done(x->mock, f, 60 * 1000));
        assert_true(tinkc_future_wait(f, 0, &x->err));
        assert_int_equal(tinkc_future_retry_state(f, NULL, NULL), TINKC_OK);
        tinkc_future_free(f);
    }
}

/* A service that is not there at all: the submit's own attempts count too; waiting at the service
 * does no harm. */
TEST_WITH(trouble_while_sending_is_seen, setup, teardown)
{
    fixture *x = *state;
    tinkc_mock_once(x->mock, "POST", "/api/v1/optim_step",
                    &(tinkc_mock_answer){ .fault = TINKC_FAULT_RESET }, &x->err);
    tinkc_mock_once(x->mock, "POST", "/api/v1/retrieve_future",
                    &(tinkc_mock_answer){ .status = 408, .body = "{\"queue_state\":\"active\"}" },
                    &x->err);
    tinkc_future *f = step(x);
    int32_t attempts = 0;
    settle_soon(x);
    assert_int_equal(tinkc_future_retry_state(f, &attempts, NULL), TINKC_E_CONNECTION);
    assert_int_equal(attempts, 1);
    tinkc_mock_advance(x->mock, 1000);
    settle_soon(x);
    assert_int_equal(tinkc_future_retry_state(f, &attempts, NULL), TINKC_OK);
    assert_true(status_has(x, f, "the service works on it"));
    assert_true(run_until_done(x->mock, f, 60 * 1000));
    tinkc_future_free(f);
    assert_int_equal(tinkc_future_retry_state(NULL, NULL, NULL), TINKC_OK);
}

/* ---- nothing stays behind ---- */

TEST(c10_abandoned_clients_leave_nothing)
{
    size_t before = tkc_limits_count();
    for (int i = 0; i < 200; i++) {
        tinkc_error err = { 0 };
        tinkc_client_options o = { .api_key = i % 2 ? "tml-a" : "bad key" };
        tinkc_client_free(tinkc_client_new(&o, &err));
        assert_int_equal(err.code, i % 2 ? TINKC_OK : TINKC_E_BAD_CREDENTIAL);
    }
    assert_int_equal(tkc_limits_count(), before);
}

TEST(c31_c43_limits_are_shared_by_address_and_key)
{
    tinkc_error err = { 0 };
    static const char *const same[] = { "https://h.example:443/x", "https://h.example/",
                                        "HTTPS://H.example" };
    tinkc_client *clients[5];
    size_t before = tkc_limits_count();
    for (size_t i = 0; i < 3; i++)
        clients[i] = tinkc_client_new(
            &(tinkc_client_options){ .api_key = "tml-a", .base_url = same[i] }, &err);
    assert_ok(&err);
    assert_int_equal(tkc_limits_count(), before + 1);
    clients[3] =
        tinkc_client_new(&(tinkc_client_options){ .api_key = "tml-b", .base_url = same[0] }, &err);
    clients[4] = tinkc_client_new(
        &(tinkc_client_options){ .api_key = "tml-a", .base_url = "http://h.example:8080" }, &err);
    assert_int_equal(tkc_limits_count(), before + 3);
    for (size_t i = 0; i < 5; i++)
        tinkc_client_free(clients[i]);
    assert_int_equal(tkc_limits_count(), before);
}

static void *make_client(void *arg)
{
    (void)arg;
    tinkc_error err = { 0 };
    tinkc_client *client = tinkc_client_new(&(tinkc_client_options){ .api_key = "tml-x" }, &err);
    tinkc_client_free(client);
    return (void *)(intptr_t)err.code;
}

TEST(c50_many_threads_make_the_first_client)
{
    pthread_t threads[50];
    for (size_t i = 0; i < 50; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, make_client, NULL), 0);
    for (size_t i = 0; i < 50; i++) {
        void *code;
        pthread_join(threads[i], &code);
        assert_null(code);
    }
}
