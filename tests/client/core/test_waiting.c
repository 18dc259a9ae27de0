/* test_waiting.c - what a future says while it waits, word for word; what a pass sends of its
 * settings; what the answers to "which one is ready?" are. */
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#include "support/client/api_support.h"
#include "wire/train_message.h"

#define POLL   "/api/v1/retrieve_future"
#define STEP   "/api/v1/optim_step"
#define SAMPLE "/api/v1/asample"

static tinkc_mock *mock;
static tinkc_client *client;
static tinkc_trainer *trainer;
static tinkc_sampler *sampler;
static tinkc_error err;
static tinkc_text text;
static const int32_t ids[] = { 1, 2, 3, 4 };

static int setup(void **state)
{
    (void)state;
    err = (tinkc_error){ 0 };
    mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    client = mock_client(mock, NULL, &err);
    trainer = tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &err);
    tinkc_retry_options retry = { .has_jitter = true };
    sampler = tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "mock/nano", .retry = &retry }, &err);
    tinkc_mock_forget(mock);
    return err.code;
}

static int teardown(void **state)
{
    (void)state;
    tinkc_text_free(&text);
    tinkc_sampler_free(sampler);
    tinkc_trainer_free(trainer);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
    return 0;
}

static void settle(void)
{
    tinkc_mock_settle(mock, 20000, &err);
    assert_ok(&err);
}

static const char *status_of(tinkc_future *f)
{
    settle();
    const char *said = tinkc_future_status(f, &text, &err);
    assert_ok(&err);
    return said;
}

static void once(const char *path, int32_t status, const char *const *headers, const char *body)
{
    tinkc_mock_once(mock, NULL, path, &(tinkc_mock_answer){ .status = status, .headers = headers, .body = body }, &err);
}

static tinkc_future *sample_one(void)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 1;
    return tinkc_sample(sampler, ids, 4, 1, &o, &err);
}

TEST_WITH(samples_in_trouble, setup, teardown)
{
    static const char *const in_seven[] = { "Retry-After", "7", NULL };
    once(SAMPLE, 429, NULL, "{}");
    tinkc_future *f = sample_one();
    assert_string_equal(status_of(f), "rate limited, next try in 1.0 s");
    assert_true(run_until_done(mock, f, 60000));
    tinkc_future_free(f);
    once(SAMPLE, 429, in_seven, "{}");
    f = sample_one();
    assert_string_equal(status_of(f), "rate limited, next try in 7.0 s");
    assert_true(run_until_done(mock, f, 60000));
    tinkc_future_free(f);
    once(POLL, 410, NULL, "{\"detail\":\"gone\"}"); /* sampled once more */
    f = sample_one();
    assert_string_equal(status_of(f), "the result is gone: HTTP 410: gone, retrying in 0.5 s");
    assert_true(run_until_done(mock, f, 60000));
    assert_true(tinkc_future_wait(f, 0, &err));
    tinkc_future_free(f);
}

TEST_WITH(archives_that_are_packed, setup, teardown)
{
    once("/api/v1/training_runs/r/checkpoints/weights/a/archive", 503, NULL, "{\"detail\":\"busy\"}");
    tinkc_future *f = tinkc_checkpoint_archive(client, "tinker://r/weights/a", &err);
    assert_string_equal(status_of(f), "the service is packing the archive");
    tinkc_future_free(f);
}

/* ---- settings of a loss ---- */

TEST_WITH(settings_of_a_loss_are_sent, setup, teardown)
{
    static const char *const names[] = { "clip_low", "clip_high", NULL };
    static const double values[] = { 0.25, 4.5 };
    tinkc_loss_options o = { .names = names, .values = values, .loss_id = "loss-7" };
    tinkc_batch *batch = tinkc_batch_new(client, &err);
    tinkc_batch_add_sft(batch, ids, 4, 1, &err);
    tinkc_future *f = tinkc_forward_backward(trainer, batch, "ppo", &o, &err);
    assert_true(run_until_done(mock, f, 60000));
    assert_ok(&err);
    const tinkc_request *r = nth_request(mock, "/api/v1/forward_backward", 0);
    tkc_arena arena;
    tkc_forward_backward_request sent;
    tkc_arena_init(&arena, NULL, 0);
    assert_true(tkc_forward_backward_from_pb(r->body, TINKC_E_BAD_RESPONSE, &arena, &sent, &err));
    assert_string_equal(sent.loss_fn, "ppo");
    assert_false(sent.forward_only);
    assert_int_equal(sent.seq_id, 1);
    assert_string_equal(sent.loss_id, "loss-7");
    assert_int_equal(sent.loss_fn_config.len, 2);
    for (size_t i = 0; i < 2; i++) {
        assert_string_equal(sent.loss_fn_config.names[i], names[i]);
        assert_true(sent.loss_fn_config.values[i] == values[i]);
    }
    assert_int_equal(sent.data.len, 1);
    tkc_arena_free(&arena);
    tinkc_future_free(f);
    tinkc_batch_free(batch);
}

/* ---- which one is ready ---- */

TEST_WITH(asking_without_waiting, setup, teardown)
{
    tinkc_adam adam = TINKC_ADAM_INIT;
    tinkc_mock_always(mock, NULL, POLL, &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &err);
    tinkc_future *all[3] = { NULL, tinkc_optim_step(trainer, &adam, &err), NULL };
    assert_int_equal(tinkc_future_wait_any(all, 3, 0, &err), 3);
    assert_int_equal(err.code, TINKC_E_TIMEOUT);
    assert_string_equal(err.message, "none is complete yet");
    err = (tinkc_error){ 0 };
    all[2] = tinkc_health_check(client, &err);
    assert_true(run_until_done(mock, all[2], 1000));
    assert_int_equal(tinkc_future_wait_any(all, 3, 0, &err), 2);
    assert_int_equal(tinkc_future_wait_any(all, 3, 1000, &err), 2);
    assert_ok(&err);
    tinkc_future *none[1] = { NULL };
    assert_int_equal(tinkc_future_wait_any(none, 1, 0, &err), 1);
    assert_string_equal(err.message, "all: no future among them");
    err = (tinkc_error){ 0 };
    for (size_t i = 0; i < 3; i++)
        tinkc_future_free(all[i]);
}

typedef struct waiter {
    tinkc_future *all[3];
    size_t found;
    tinkc_error err;
    sem_t begins;
} waiter;

static void *wait_for_any(void *arg)
{
    waiter *w = arg;
    sem_post(&w->begins);
    w->found = tinkc_future_wait_any(w->all, 3, PATIENCE_MS, &w->err);
    return NULL;
}

/* Wherever it stands, the one that completes ends the wait. Waits that ran out are forgotten. */
TEST_WITH(the_one_that_completes, setup, teardown)
{
    tinkc_adam adam = TINKC_ADAM_INIT;
    tinkc_mock_always(mock, NULL, POLL, &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &err);
    tinkc_mock_always(mock, NULL, "/api/v1/healthz",
                      &(tinkc_mock_answer){ .body = "{\"status\":\"ok\"}", .delay_ms = 1000 }, &err);
    tinkc_future *step = tinkc_optim_step(trainer, &adam, &err);
    for (size_t k = 0; k < 3; k++) {
        waiter w = { 0 };
        pthread_t thread;
        w.all[k] = tinkc_health_check(client, &err);
        w.all[(k + 1) % 3] = step;
        for (int i = 0; i < 2; i++) {
            assert_int_equal(tinkc_future_wait_any(w.all, 3, 1, &err), 3);
            assert_int_equal(err.code, TINKC_E_TIMEOUT);
            assert_string_equal(err.message, "none completed in time");
            err = (tinkc_error){ 0 };
        }
        sem_init(&w.begins, 0, 0);
        assert_int_equal(pthread_create(&thread, NULL, wait_for_any, &w), 0);
        while (sem_wait(&w.begins) != 0)
            ;
        /* It may sleep by now; if not, it finds the future complete. */
        nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
        assert_true(run_until_done(mock, w.all[k], 1000));
        pthread_join(thread, NULL);
        assert_ok(&w.err);
        assert_int_equal(w.found, k);
        tinkc_future_free(w.all[k]);
        sem_destroy(&w.begins);
    }
    tinkc_future_free(step);
}

/* All of them: the first failure is reported, but not before all are complete; a wait that runs out says so. */
TEST_WITH(waiting_for_all, setup, teardown)
{
    tinkc_mock_always(mock, NULL, "/api/v1/healthz",
                      &(tinkc_mock_answer){ .body = "{\"status\":\"ok\"}", .delay_ms = 1000 }, &err);
    once("/api/v1/get_server_capabilities", 404, NULL, "{\"detail\":\"none\"}");
    tinkc_future *all[4] = { tinkc_capabilities_get(client, &err), NULL, tinkc_health_check(client, &err), NULL };
    for (int64_t timeout = 0; timeout < 2; timeout++) {
        assert_false(tinkc_future_wait_all(all, 4, timeout, &err));
        assert_int_equal(err.code, TINKC_E_TIMEOUT);
        err = (tinkc_error){ 0 };
    }
    assert_true(run_until_done(mock, all[2], 1000));
    assert_false(tinkc_future_wait_all(all, 4, PATIENCE_MS, &err));
    assert_int_equal(err.http_status, 404);
    err = (tinkc_error){ 0 };
    assert_true(tinkc_future_wait_all(all + 1, 3, 0, &err));
    assert_true(tinkc_future_wait_all(NULL, 0, 0, &err));
    assert_ok(&err);
    assert_false(tinkc_future_wait_all(NULL, 1, 0, &err));
    assert_string_equal(err.message, "all: must not be NULL");
    err = (tinkc_error){ 0 };
    for (size_t i = 0; i < 4; i++)
        tinkc_future_free(all[i]);
}

/* A part that is not there yet, one that never will be, and one that there is none of. */
TEST_WITH(parts_that_are_not_there, setup, teardown)
{
    static const struct {
        size_t part;
        int64_t timeout;
        int32_t code;
        const char *why;
    } rows[] = { { 0, 0, TINKC_E_TIMEOUT, "part 0 is not there yet" },
                 { 0, 1, TINKC_E_TIMEOUT, "part 0 is not there yet" },
                 { 1, 0, TINKC_E_ARGUMENT, "part: past the end" } };
    tinkc_mock_always(mock, NULL, POLL, &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &err);
    tinkc_batch *batch = tinkc_batch_new(client, &err);
    tinkc_batch_add_sft(batch, ids, 4, 1, &err);
    tinkc_future *f = tinkc_forward_backward(trainer, batch, TINKC_CROSS_ENTROPY, NULL, &err);
    tinkc_mock_settle(mock, PATIENCE_MS, &err);
    assert_ok(&err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_null(tinkc_future_part(f, rows[i].part, rows[i].timeout, &err));
        assert_int_equal(err.code, rows[i].code);
        assert_string_equal(err.message, rows[i].why);
        err = (tinkc_error){ 0 };
    }
    tinkc_future_cancel(f);
    tinkc_mock_settle(mock, PATIENCE_MS, &err);
    assert_null(tinkc_future_part(f, 0, PATIENCE_MS, &err));
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    err = (tinkc_error){ 0 };
    tinkc_future_free(f);
    tinkc_batch_free(batch);
}

/* ---- streams ---- */

TEST_WITH(streams_refuse_what_they_cannot_carry, setup, teardown)
{
    static const int32_t targets[] = { 1, 2, 3 };
    static const struct {
        tinkc_sampling o;
        const char *why;
    } rows[] = {
#define WITH(...) { .max_tokens = 1, .temperature = 1, .top_p = 1, .top_k = -1, __VA_ARGS__ }
        { WITH(.topk_sample_logprobs = 1), "topk_sample_logprobs: a stream has no place for them" },
        { WITH(.target_tokens = targets, .targets_each = 1), "target_tokens: a stream has no place for them" },
        { WITH(.prompt_alt_tokens = 1), "prompt_alt_tokens: a stream has no place for them" },
        { WITH(.prompt_logprobs = true), "prompt_logprobs: a stream has no place for them" },
        { WITH(.topk_prompt_logprobs = 1), "prompt_logprobs: a stream has no place for them" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_null(tinkc_sample_stream(sampler, ids, 4, &rows[i].o, &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
        assert_string_equal(err.message, rows[i].why);
        err = (tinkc_error){ 0 };
    }
    assert_int_equal(tinkc_mock_count(mock, NULL), 0);
}
