/* mock_fixture.h - a client on the mock's service, with a trainer, a sampler and a batch where a test needs them. */
#ifndef TESTS_MOCK_FIXTURE_H
#define TESTS_MOCK_FIXTURE_H

#include "support/client/api_support.h"

#define API  "/api/v1/"
#define POLL API "retrieve_future"

#define CONFIG_TOKENS "{\"pjwt_auth_enabled\":true}"
#define CONFIG_CANCELS                                                                                                 \
    "{\"refresh_interval_sec\":300,\"sample_cancel_enabled\":true,"                                                    \
    "\"sample_cancel_max_batch_size\":1}"

static const tinkc_lora_options lora = { .base_model = "mock/nano" };
static const tinkc_sampler_options nano = { .base_model = "mock/nano" };
static const int32_t ids[] = { 1, 2, 3, 4, 5, 6 };
static const tinkc_mock_answer silent = { .fault = TINKC_FAULT_SILENT };

typedef struct fixture {
    tinkc_error err;
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_trainer *trainer;
    tinkc_sampler *sampler;
    tinkc_batch *batch;
} fixture;

static inline void always(fixture *x, const char *path, const char *body)
{
    assert_true(tinkc_mock_always(x->mock, NULL, path, &(tinkc_mock_answer){ .body = body }, &x->err));
}

static inline void once(fixture *x, const char *path, int32_t status, const char *body)
{
    assert_true(tinkc_mock_once(x->mock, NULL, path, &(tinkc_mock_answer){ .status = status, .body = body }, &x->err));
}

/* path and config (or NULL): an answer that the service always gives. */
static inline void open_client(fixture *x, const char *path, const char *config, const tinkc_client_options *o)
{
    *x = (fixture){ 0 };
    x->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x->err);
    if (path)
        always(x, path, config);
    x->client = mock_client(x->mock, o, &x->err);
    assert_ok(&x->err);
}

/* What a client can work with: a batch of n examples. The requests that this took are forgotten. */
static inline void open_work(fixture *x, size_t n)
{
    x->trainer = tinkc_trainer_new(x->client, &lora, &x->err);
    x->sampler = tinkc_sampler_new(x->client, &nano, &x->err);
    x->batch = tinkc_batch_new(x->client, &x->err);
    for (size_t i = 0; i < n; i++)
        tinkc_batch_add_sft(x->batch, ids, 6, 1, &x->err);
    assert_ok(&x->err);
    tinkc_mock_forget(x->mock);
}

static inline void close_all(fixture *x)
{
    tinkc_batch_free(x->batch);
    tinkc_trainer_free(x->trainer);
    tinkc_sampler_free(x->sampler);
    tinkc_client_free(x->client);
    tinkc_mock_free(x->mock);
}

/* The same as setup and teardown of a test whose state is the fixture. */
static inline int begin_fixture(void **state, const char *path, const char *config)
{
    fixture *x = calloc(1, sizeof *x);
    assert_non_null(x);
    open_client(x, path, config, &(tinkc_client_options){ .api_key = "tml-key" });
    *state = x;
    return 0;
}

/* The same with what a client can work with: a batch of three examples. */
static inline int begin_work_with(void **state, const char *path, const char *config)
{
    begin_fixture(state, path, config);
    open_work(*state, 3);
    return 0;
}

static inline int begin_work(void **state)
{
    return begin_work_with(state, NULL, NULL);
}

static inline tinkc_sampling three_tokens(void)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 3;
    return o;
}

/* With default options. */
static inline int begin_plain(void **state)
{
    fixture *x = calloc(1, sizeof *x);
    assert_non_null(x);
    open_client(x, NULL, NULL, NULL);
    *state = x;
    return 0;
}

static inline int end_fixture(void **state)
{
    close_all(*state);
    free(*state);
    return 0;
}

/* The time to the next timer. */
static inline int64_t settle(fixture *x)
{
    int64_t next = tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    assert_ok(&x->err);
    return next;
}

/* The last call failed like this. */
static inline void check_error(fixture *x, int32_t code, const char *message)
{
    assert_string_equal(x->err.message, message);
    assert_int_equal(x->err.code, code);
    x->err = (tinkc_error){ 0 };
}

/* What `done` says was not done, for this reason. */
static inline void refused(fixture *x, bool done, int32_t code, const char *message)
{
    assert_false(done);
    check_error(x, code, message);
}

/* Complete, failed, freed. */
static inline void check_failure(fixture *x, tinkc_future *f, int32_t code, const char *message)
{
    assert_ok(&x->err);
    assert_true(run_until_done(x->mock, f, 600000));
    assert_false(tinkc_future_wait(f, 0, &x->err));
    check_error(x, code, message);
    tinkc_future_free(f);
}

/* Complete, without an error, freed. */
static inline void complete(fixture *x, tinkc_future *f)
{
    assert_ok(&x->err);
    assert_true(run_until_done(x->mock, f, 600000));
    assert_true(tinkc_future_wait(f, 0, &x->err));
    tinkc_future_free(f);
}

static inline bool body_has(const tinkc_request *r, const char *text)
{
    return r && memmem(r->body.data, r->body.len, text, strlen(text));
}

#endif
