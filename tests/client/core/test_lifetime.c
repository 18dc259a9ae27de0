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
        tinkc_mock_always(x->mock, NULL, "/api/v1/client/config", &(tinkc_mock_answer){ .body = config }, &x->err);
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
    tinkc_mock_always(x->mock, NULL, "/api/v1/retrieve_future", &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT },
                      &x->err);
    tinkc_mock_always(x->mock, NULL, "/api/v1/optim_step", &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT },
                      &x->err);
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
    tinkc_mock_always(x->mock, NULL, "/api/v1/retrieve_future", &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT },
                      &x->err);
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
        tinkc_client *client = mock_client(x->mock, &(tinkc_client_options){ .allocator = &a }, &x->err);
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
    tinkc_mock_once(x->mock, NULL, "/api/v1/retrieve_future", &(tinkc_mock_answer){ .status = 408, .delay_ms = 1000 },
                    &x->err);
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

/* ---- cancelling ---- */

TEST_WITH(c13_cancelling_in_the_queue_moves_the_others_up, setup, teardown)
{
    fixture *x = *state;
    tinkc_future *all[10];
    tinkc_mock_once(x->mock, NULL, "/api/v1/optim_step", &(tinkc_mock_answer){ .status = 503, .body = "{}" }, &x->err);
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
    assert_non_null(strstr((const char *)nth_request(x->mock, "/api/v1/optim_step", 9)->body.data, "\"seq_id\":9"));
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
        const char *at = strstr((const char *)nth_request(x->mock, "/api/v1/optim_step", i)->body.data, "\"seq_id\":");
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
