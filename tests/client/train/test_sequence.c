/* test_sequence.c - the numbers of a trainer's requests when operations are cancelled, lost or
 * refused half way: nothing is blocked, nothing is forgotten, nothing stays behind. */
#include <pthread.h>
#include <stdatomic.h>

#include "support/client/api_support.h"
#include "support/counting.h"
#include "wire/train_message.h"

#define PASS "/api/v1/forward_backward"
#define STEP "/api/v1/optim_step"

static const tinkc_mock_answer silent = { .fault = TINKC_FAULT_SILENT };
static const tinkc_mock_answer reset = { .fault = TINKC_FAULT_RESET };

typedef struct fixture {
    tinkc_error err;
    counting memory;
    tinkc_allocator allocator;
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_trainer *trainer;
    tinkc_batch *batch;
} fixture;

static int make(void **state, const char *config)
{
    static const int32_t ids[] = { 1, 2, 3, 4, 5, 6 };
    static const tinkc_lora_options lora = { .base_model = "mock/nano" };
    fixture *x = calloc(1, sizeof *x);
    x->allocator = counting_allocator(&x->memory);
    x->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x->err);
    tinkc_mock_always(x->mock, NULL, "/api/v1/client/config",
                      &(tinkc_mock_answer){ .body = config }, &x->err);
    x->client =
        mock_client(x->mock, &(tinkc_client_options){ .allocator = &x->allocator }, &x->err);
    x->trainer = tinkc_trainer_new(x->client, &lora, &x->err);
    x->batch = tinkc_batch_new(x->client, &x->err);
    for (int i = 0; i < 6; i++)
        tinkc_batch_add_sft(x->batch, ids, 6, 1, &x->err);
    assert_ok(&x->err);
    tinkc_mock_forget(x->mock);
    *state = x;
    return 0;
}

/* Three chunks, at once or one by one. */
static int setup(void **state)
{
    return make(state, "{\"fwdbwd_max_chunk_len\":2}");
}
static int setup_serial(void **state)
{
    return make(state, "{\"fwdbwd_max_chunk_len\":2,\"parallel_fwdbwd_chunks\":false}");
}

static void free_handles(fixture *x)
{
    tinkc_batch_free(x->batch);
    tinkc_trainer_free(x->trainer);
    tinkc_client_free(x->client);
    x->batch = NULL;
    x->trainer = NULL;
    x->client = NULL;
}

static int teardown(void **state)
{
    fixture *x = *state;
    free_handles(x);
    assert_true(counting_is_empty_soon(&x->memory));
    tinkc_mock_free(x->mock);
    free(x);
    return 0;
}

static tinkc_future *pass(fixture *x)
{
    return tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
}

static tinkc_future *step(fixture *x)
{
    tinkc_adam adam = TINKC_ADAM_INIT;
    return tinkc_optim_step(x->trainer, &adam, &x->err);
}

static tinkc_error outcome(tinkc_future *f)
{
    tinkc_error err = { 0 };
    (void)tinkc_future_wait(f, PATIENCE_MS, &err);
    return err;
}

static int64_t seq_of(const tinkc_request *r)
{
    assert_non_null(r);
    if (strcmp(r->path, PASS) == 0) {
        tkc_arena arena = { 0 };
        tinkc_error err = { 0 };
        tkc_forward_backward_request q;
        tkc_forward_backward_from_pb(r->body, TINKC_E_BAD_RESPONSE, &arena, &q, &err);
        assert_ok(&err);
        assert_int_equal(q.data.len, 2);
        int64_t seq = q.seq_id;
        tkc_arena_free(&arena);
        return seq;
    }
    const char *at = strstr((const char *)r->body.data, "\"seq_id\":");
    return at ? strtol(at + 9, NULL, 10) : -1;
}

/* The numbers of all requests to a path, from the n-th on. */
static void assert_numbers(fixture *x, const char *path, size_t from, const int64_t *want, size_t n)
{
    assert_int_equal(tinkc_mock_count(x->mock, path), from + n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(seq_of(nth_request(x->mock, path, from + i)), want[i]);
}

/* ---- cancelling what is being sent ---- */

static void cancelled(fixture *x, tinkc_future *f)
{
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    tinkc_future_cancel(f);
    tinkc_error err = outcome(f);
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    assert_true(err.flags & TINKC_MAY_HAVE_RUN);
    tinkc_future_free(f);
}

TEST_WITH(a_cancelled_pass_lets_go_at_once, setup, teardown)
{
    fixture *x = *state;
    tinkc_mock_always(x->mock, NULL, PASS, &silent, &x->err);
    cancelled(x, pass(x));
    free_handles(x);
    assert_true(counting_is_empty_soon(&x->memory));
    assert_int_equal(tinkc_mock_count(x->mock, PASS), 2);
}

TEST_WITH(a_cancelled_step_lets_go_at_once, setup, teardown)
{
    fixture *x = *state;
    tinkc_mock_always(x->mock, NULL, STEP, &silent, &x->err);
    cancelled(x, step(x));
    free_handles(x);
    assert_true(counting_is_empty_soon(&x->memory));
}

TEST_WITH(what_follows_a_cancelled_pass_goes_on, setup, teardown)
{
    fixture *x = *state;
    tinkc_mock_once(x->mock, NULL, PASS, &silent, &x->err);
    tinkc_mock_once(x->mock, NULL, PASS, &silent, &x->err);
    tinkc_future *f = pass(x), *after = step(x);
    cancelled(x, f);
    assert_int_equal(outcome(after).code, TINKC_OK);
    assert_numbers(x, PASS, 2, (int64_t[]){ 1, 2, 3 }, 3);
    assert_numbers(x, STEP, 0, (int64_t[]){ 4 }, 1);
    tinkc_future_free(after);
}

/* One of two chunks was accepted, the other was on its way. */
TEST_WITH(what_was_accepted_before_is_not_sent_again, setup, teardown)
{
    fixture *x = *state;
    tinkc_mock_once(x->mock, NULL, PASS, &(tinkc_mock_answer){ .body = "{\"request_id\":\"a\"}" },
                    &x->err);
    tinkc_mock_once(x->mock, NULL, PASS, &silent, &x->err);
    tinkc_mock_once(x->mock, NULL, "/api/v1/retrieve_future", &silent, &x->err);
    cancelled(x, pass(x));
    tinkc_future *after = step(x);
    assert_int_equal(outcome(after).code, TINKC_OK);
    assert_numbers(x, PASS, 0, (int64_t[]){ 2, 3, 1, 3 }, 4);
    assert_numbers(x, STEP, 0, (int64_t[]){ 4 }, 1);
    tinkc_future_free(after);
}

TEST_WITH(what_follows_a_cancelled_step_goes_on, setup, teardown)
{
    fixture *x = *state;
    tinkc_mock_once(x->mock, NULL, STEP, &silent, &x->err);
    cancelled(x, step(x));
    tinkc_future *after = step(x);
    assert_int_equal(outcome(after).code, TINKC_OK);
    assert_numbers(x, STEP, 0, (int64_t[]){ 1, 1, 2 }, 3);
    tinkc_future_free(after);
}

TEST_WITH(bad_weather_behind_a_cancelled_step_is_waited_out, setup, teardown)
{
    fixture *x = *state;
    tinkc_mock_once(x->mock, NULL, STEP, &silent, &x->err);
    cancelled(x, step(x));
    for (int i = 0; i < 3; i++)
        tinkc_mock_once(x->mock, NULL, STEP, &(tinkc_mock_answer){ .status = 503 }, &x->err);
    tinkc_future *after = step(x);
    assert_true(run_until_done(x->mock, after, 60000));
    assert_int_equal(outcome(after).code, TINKC_OK);
    assert_numbers(x, STEP, 1, (int64_t[]){ 1, 1, 1, 1, 2 }, 5);
    tinkc_future_free(after);
}

/* The one for whose sake the lost request is sent again changes his mind too. */
TEST_WITH(nobody_waits_nothing_is_sent, setup, teardown)
{
    fixture *x = *state;
    tinkc_mock_always(x->mock, NULL, STEP, &silent, &x->err);
    cancelled(x, step(x));
    tinkc_future *f = step(x);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    assert_numbers(x, STEP, 0, (int64_t[]){ 1, 1 }, 2);
    tinkc_future_cancel(f);
    tinkc_error err = outcome(f);
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    assert_false(err.flags & TINKC_MAY_HAVE_RUN);
    tinkc_future_free(f);
    free_handles(x);
    assert_true(counting_is_empty_soon(&x->memory));
}

TEST_WITH(a_limit_ends_a_submit_like_a_cancel, setup, teardown)
{
    fixture *x = *state;
    tinkc_mock_once(x->mock, NULL, STEP, &silent, &x->err);
    tinkc_future *f = step(x), *after = step(x);
    tinkc_future_limit(f, 3000, &x->err);
    assert_true(run_until_done(x->mock, after, 3000));
    assert_int_equal(outcome(f).code, TINKC_E_DEADLINE);
    assert_int_equal(outcome(after).code, TINKC_OK);
    assert_numbers(x, STEP, 0, (int64_t[]){ 1, 1, 2 }, 3);
    tinkc_future_free(f);
    tinkc_future_free(after);
}

TEST_WITH(serial_chunks_that_never_left_give_their_numbers_back, setup_serial, teardown)
{
    fixture *x = *state;
    tinkc_mock_once(x->mock, NULL, PASS, &silent, &x->err);
    cancelled(x, pass(x));
    tinkc_future *after = step(x);
    assert_int_equal(outcome(after).code, TINKC_OK);
    assert_numbers(x, PASS, 0, (int64_t[]){ 1, 1 }, 2);
    assert_numbers(x, STEP, 0, (int64_t[]){ 2 }, 1);
    tinkc_future_free(after);
}

/* ---- lost and refused chunks ---- */

/* Chunk 2 is accepted, chunk 3 is lost, chunk 1 never leaves: all of them are sent again. */
TEST_WITH(a_lost_chunk_is_mended_with_its_number, setup, teardown)
{
    fixture *x = *state;
    tinkc_mock_once(x->mock, NULL, PASS, &(tinkc_mock_answer){ .body = "{\"request_id\":\"a\"}" },
                    &x->err);
    tinkc_mock_always(x->mock, NULL, PASS, &reset, &x->err);
    tinkc_mock_always(x->mock, NULL, "/api/v1/retrieve_future", &silent, &x->err);
    tinkc_future *f = pass(x);
    assert_true(run_until_done(x->mock, f, 3600000));
    assert_int_equal(outcome(f).code, TINKC_E_CONNECTION);
    tinkc_future_free(f);
    size_t before = tinkc_mock_count(x->mock, PASS);
    tinkc_mock_always(x->mock, NULL, PASS, &(tinkc_mock_answer){ .body = "{\"request_id\":\"b\"}" },
                      &x->err);
    tinkc_mock_always(x->mock, NULL, "/api/v1/retrieve_future",
                      &(tinkc_mock_answer){ .body = "{}" }, &x->err);
    tinkc_future *after = step(x);
    assert_int_equal(outcome(after).code, TINKC_OK);
    assert_numbers(x, PASS, before, (int64_t[]){ 1, 3 }, 2);
    assert_numbers(x, STEP, 0, (int64_t[]){ 4 }, 1);
    tinkc_future_free(after);
}

TEST_WITH(a_refused_serial_chunk_leaves_no_gap, setup_serial, teardown)
{
    fixture *x = *state;
    tinkc_mock_once(x->mock, NULL, PASS, &(tinkc_mock_answer){ .body = "{\"request_id\":\"a\"}" },
                    &x->err);
    tinkc_mock_once(x->mock, NULL, PASS,
                    &(tinkc_mock_answer){ .status = 422, .body = "{\"detail\":\"no\"}" }, &x->err);
    tinkc_mock_once(x->mock, NULL, "/api/v1/retrieve_future", &silent, &x->err);
    tinkc_future *f = pass(x), *after = step(x);
    assert_int_equal(outcome(f).code, TINKC_E_UNPROCESSABLE);
    assert_int_equal(outcome(after).code, TINKC_OK);
    assert_numbers(x, STEP, 0, (int64_t[]){ 2 }, 1);
    tinkc_future_free(f);
    tinkc_future_free(after);
}

/* Chunk 2 is refused while chunk 3 waits for its next attempt: nobody needs that any more. */
TEST_WITH(a_failed_chunk_ends_the_retries_of_the_others, setup, teardown)
{
    fixture *x = *state;
    tinkc_mock_once(x->mock, NULL, PASS,
                    &(tinkc_mock_answer){ .status = 422, .body = "{\"detail\":\"no\"}" }, &x->err);
    tinkc_mock_always(x->mock, NULL, PASS, &(tinkc_mock_answer){ .status = 503 }, &x->err);
    tinkc_future *f = pass(x), *after = step(x);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    assert_true(tinkc_future_done(f) && tinkc_future_done(after)); /* no time has passed */
    assert_int_equal(outcome(f).code, TINKC_E_UNPROCESSABLE);
    tinkc_error err = outcome(after);
    assert_int_equal(err.code, TINKC_E_SEQUENCE);
    assert_int_equal(err.cause, TINKC_E_UNPROCESSABLE);
    assert_int_equal(tinkc_mock_count(x->mock, PASS), 2);
    tinkc_future_free(f);
    tinkc_future_free(after);
}

/* Chunk 3 is on its way when chunk 2 is refused: its answer is still waited for, but no second
 * attempt is made when that is bad. */
TEST_WITH(what_is_on_its_way_may_arrive, setup, teardown)
{
    fixture *x = *state;
    tinkc_mock_once(x->mock, NULL, PASS,
                    &(tinkc_mock_answer){ .status = 422, .body = "{\"detail\":\"no\"}" }, &x->err);
    tinkc_mock_always(x->mock, NULL, PASS, &(tinkc_mock_answer){ .status = 503, .delay_ms = 2000 },
                      &x->err);
    tinkc_future *f = pass(x), *after = step(x);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    assert_true(tinkc_future_done(f));
    assert_false(tinkc_future_done(after));
    assert_true(run_until_done(x->mock, after, 2000));
    assert_int_equal(outcome(after).code, TINKC_E_SEQUENCE);
    assert_int_equal(tinkc_mock_count(x->mock, PASS), 2);
    tinkc_future_free(f);
    tinkc_future_free(after);
}

/* The service takes chunk 1 and fails it while chunk 2 is being tried again: chunk 3 stays here. */
TEST_WITH(a_pass_that_failed_sends_no_more_chunks, setup_serial, teardown)
{
    fixture *x = *state;
    tinkc_mock_once(x->mock, NULL, PASS, &(tinkc_mock_answer){ .body = "{\"request_id\":\"a\"}" },
                    &x->err);
    tinkc_mock_once(x->mock, NULL, PASS, &(tinkc_mock_answer){ .status = 503 }, &x->err);
    tinkc_mock_once(x->mock, NULL, "/api/v1/retrieve_future",
                    &(tinkc_mock_answer){ .body = "{\"error\":\"no\",\"category\":\"user\"}" },
                    &x->err);
    tinkc_future *f = pass(x), *after = step(x);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    assert_true(tinkc_future_done(f) && tinkc_future_done(after));
    assert_int_equal(outcome(f).code, TINKC_E_REQUEST_FAILED);
    assert_int_equal(outcome(after).code, TINKC_OK);
    assert_numbers(x, PASS, 0, (int64_t[]){ 1, 2, 2 }, 3);
    assert_numbers(x, STEP, 0, (int64_t[]){ 3 }, 1);
    tinkc_future_free(f);
    tinkc_future_free(after);
}

/* One attempt for all that wait then, not one for each. The next to come has one of its own. */
TEST_WITH(all_that_wait_fail_with_one_attempt, setup, teardown)
{
    fixture *x = *state;
    tinkc_error err[5] = { { 0 } };
    tinkc_future *f[5];
    tinkc_mock_always(x->mock, NULL, STEP, &reset, &x->err);
    for (size_t i = 0; i < 4; i++)
        f[i] = step(x);
    (void)run_until_done(x->mock, f[0], 400000);
    (void)tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    size_t before = tinkc_mock_count(x->mock, STEP);
    assert_true(before >= 3);
    int64_t lost_ms = nth_request_ms(x->mock, STEP, before - 2),
            again_ms = nth_request_ms(x->mock, STEP, before - 1);
    f[4] = step(x);
    (void)run_until_done(x->mock, f[4], 0);
    for (size_t i = 0; i < 5; i++) {
        (void)tinkc_future_wait(f[i], 0, &err[i]);
        tinkc_future_free(f[i]);
    }
    assert_int_equal(err[0].code, TINKC_E_CONNECTION);
    for (size_t i = 1; i < 5; i++) {
        assert_int_equal(err[i].code, TINKC_E_SEQUENCE);
        assert_int_equal(err[i].cause, TINKC_E_CONNECTION);
    }
    assert_int_equal(again_ms,
                     lost_ms); /* the last attempt of the first, then the one for the rest */
    assert_true(nth_request_ms(x->mock, STEP, before - 3) < lost_ms);
    assert_int_equal(tinkc_mock_count(x->mock, STEP), before + 1);
}

/* The first attempt may have got through; that the second is refused says nothing about it. */
TEST_WITH(a_refusal_behind_a_lost_attempt_frees_no_number, setup, teardown)
{
    static const tinkc_mock_answer lost[] = { { .fault = TINKC_FAULT_RESET },
                                              { .status = 408, .body = "{}" },
                                              { .status = 500, .body = "{}" },
                                              { .status = 599, .body = "{}" } };
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++) {
        fixture *x = *state;
        tinkc_mock_once(x->mock, NULL, STEP, &lost[i], &x->err);
        tinkc_mock_once(x->mock, NULL, STEP,
                        &(tinkc_mock_answer){ .status = 401, .body = "{\"detail\":\"expired\"}" },
                        &x->err);
        tinkc_future *f = step(x), *after = step(x);
        assert_true(run_until_done(x->mock, after, 60000));
        tinkc_error first = outcome(f), second = outcome(after);
        tinkc_future_free(f);
        tinkc_future_free(after);
        assert_int_equal(first.code, TINKC_E_AUTH);
        assert_true(first.flags & TINKC_MAY_HAVE_RUN);
        assert_int_equal(second.code, TINKC_OK);
        assert_numbers(x, STEP, 0, (int64_t[]){ 1, 1, 1, 2 }, 4);
        assert_int_equal(teardown(state), 0);
        assert_int_equal(setup(state), 0);
    }
}

/* Which refusals say that the request itself is wrong, so that no attempt before can have been accepted. */
TEST_WITH(refusals_behind_a_lost_attempt, setup, teardown)
{
    static const struct {
        int32_t status;
        bool frees;
    } rows[] = { { 400, true },  { 401, false }, { 403, false }, { 404, true },
                 { 405, true },  { 406, false }, { 410, false }, { 413, true },
                 { 418, false }, { 421, false }, { 422, true },  { 423, false } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fixture *x = *state;
        tinkc_mock_once(x->mock, NULL, STEP, &reset, &x->err);
        tinkc_mock_once(
            x->mock, NULL, STEP,
            &(tinkc_mock_answer){ .status = rows[i].status, .body = "{\"detail\":\"no\"}" },
            &x->err);
        tinkc_future *f = step(x), *after = step(x);
        assert_true(run_until_done(x->mock, after, 60000));
        assert_int_equal(outcome(f).http_status, rows[i].status);
        assert_int_equal(outcome(after).code, TINKC_OK);
        if (rows[i].frees)
            assert_numbers(x, STEP, 0, (int64_t[]){ 1, 1, 1 }, 3);
        else
            assert_numbers(x, STEP, 0, (int64_t[]){ 1, 1, 1, 2 }, 4);
        tinkc_future_free(f);
        tinkc_future_free(after);
        assert_int_equal(teardown(state), 0);
        assert_int_equal(setup(state), 0);
    }
}

/* The same for those that are repeated: to the end of the window, and then the number is still taken. */
TEST_WITH(repeated_refusals_behind_a_lost_attempt, setup, teardown)
{
    static const int32_t rows[] = { 409, 429 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fixture *x = *state;
        tinkc_mock_once(x->mock, NULL, STEP, &reset, &x->err);
        tinkc_mock_always(x->mock, NULL, STEP,
                          &(tinkc_mock_answer){ .status = rows[i], .body = "{\"detail\":\"no\"}" },
                          &x->err);
        tinkc_error first = { 0 }, second = { 0 };
        tinkc_future *f = step(x);
        (void)run_until_done(x->mock, f, 400000);
        (void)tinkc_future_wait(f, 0, &first);
        tinkc_future *after = step(x);
        (void)run_until_done(x->mock, after, 0);
        (void)tinkc_future_wait(after, 0, &second);
        tinkc_future_free(f);
        tinkc_future_free(after);
        assert_int_equal(first.http_status, rows[i]);
        assert_int_equal(second.code, TINKC_E_SEQUENCE);
        assert_int_equal(second.cause, rows[i]);
        assert_int_equal(teardown(state), 0);
        assert_int_equal(setup(state), 0);
    }
}

/* The service has no such call, or will not have this one: then it has no such number either. */
TEST_WITH(a_number_that_is_never_taken_is_free_again, setup, teardown)
{
    fixture *x = *state;
    tinkc_mock_once(x->mock, NULL, STEP, &silent, &x->err);
    tinkc_mock_once(x->mock, NULL, STEP,
                    &(tinkc_mock_answer){ .status = 404, .body = "{\"detail\":\"no\"}" }, &x->err);
    cancelled(x, step(x));
    tinkc_future *after = step(x);
    assert_int_equal(outcome(after).code, TINKC_OK);
    assert_numbers(x, STEP, 0, (int64_t[]){ 1, 1, 1 }, 3);
    tinkc_future_free(after);
}

/* ---- a chunk that is being written when another one fails ---- */

typedef struct gate { /* memory: threads other than the test's wait here for large pieces */
    pthread_t test;
    atomic_int closed, waiting;
} gate;

static void pass_gate(gate *g, size_t size)
{
    if (size < 200 * 1024 || pthread_equal(g->test, pthread_self()))
        return;
    atomic_fetch_add(&g->waiting, 1);
    wait_until(!atomic_load(&g->closed));
}

static void *gate_alloc(size_t size, void *user)
{
    pass_gate(user, size);
    return malloc(size);
}

static void *gate_resize(void *ptr, size_t old_size, size_t new_size, void *user)
{
    (void)old_size;
    pass_gate(user, new_size);
    return realloc(ptr, new_size);
}

static void gate_release(void *ptr, size_t size, void *user)
{
    (void)size;
    (void)user;
    free(ptr);
}

TEST(a_chunk_being_written_is_not_sent_any_more)
{
    enum { LONG = 30000 };
    static int32_t ids[LONG];
    gate g = { .test = pthread_self() };
    tinkc_allocator a = { gate_alloc, gate_resize, gate_release, &g };
    tinkc_error err = { 0 }, refused = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_mock_always(mock, NULL, "/api/v1/client/config",
                      &(tinkc_mock_answer){ .body = "{\"fwdbwd_max_chunk_len\":1}" }, &err);
    tinkc_mock_always(mock, NULL, PASS,
                      &(tinkc_mock_answer){ .status = 400, .body = "{\"detail\":\"no\"}" }, &err);
    tinkc_client *client = mock_client(mock, &(tinkc_client_options){ .allocator = &a }, &err);
    tinkc_trainer *t =
        tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &err);
    tinkc_batch *batch = tinkc_batch_new(client, &err);
    for (size_t i = 0; i < 3; i++) /* the third is written by a helper */
        tinkc_batch_add_sft(batch, ids, i == 2 ? LONG : 6, 1, &err);
    atomic_store(&g.closed, 1);
    tinkc_future *f = tinkc_forward_backward(t, batch, TINKC_CROSS_ENTROPY, NULL, &err);
    assert_ok(&err);
    (void)tinkc_future_wait(f, PATIENCE_MS, &refused);
    wait_until(atomic_load(&g.waiting) > 0);
    atomic_store(&g.closed, 0);
    (void)tinkc_mock_settle(mock, PATIENCE_MS, &err);
    size_t sent = tinkc_mock_count(mock, PASS);
    tinkc_adam adam = TINKC_ADAM_INIT;
    tinkc_future *after = tinkc_optim_step(t, &adam, &err);
    bool ok = tinkc_future_wait(after, PATIENCE_MS, &err);
    tinkc_future_free(f);
    tinkc_future_free(after);
    tinkc_batch_free(batch);
    tinkc_trainer_free(t);
    int64_t number = seq_of(nth_request(mock, STEP, 0));
    tinkc_client_free(client);
    tinkc_mock_free(mock);
    assert_int_equal(refused.code, TINKC_E_BAD_REQUEST);
    assert_int_equal(sent, 1);
    assert_true(ok);
    assert_int_equal(number, 1);
}
