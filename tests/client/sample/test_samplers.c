/* test_samplers.c - stops of a sample, and texts and options of copies. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "support/client/api_support.h"
#include "support/counting.h"

#define API "/api/v1/"

static const int32_t ids[] = { 1, 2, 3, 4, 5, 6 };

/* Lines of the log, written by the client's thread. */
typedef struct notes {
    pthread_mutex_t lock;
    char text[4000];
} notes;

typedef struct fixture {
    tinkc_error err;
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_trainer *trainer;
    tinkc_sampler *sampler;
    tinkc_batch *batch;
    counting memory;
    tinkc_allocator allocator;
    notes log;
} fixture;

static void on_log(int32_t level, const char *line, void *user)
{
    notes *n = user;
    pthread_mutex_lock(&n->lock);
    size_t used = strlen(n->text);
    (void)snprintf(n->text + used, sizeof n->text - used, "%d %s\n", (int)level, line);
    pthread_mutex_unlock(&n->lock);
}

static int setup(void **state)
{
    fixture *x = calloc(1, sizeof *x);
    pthread_mutex_init(&x->log.lock, NULL);
    x->allocator = counting_allocator(&x->memory);
    x->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x->err);
    x->client = mock_client(x->mock,
                            &(tinkc_client_options){ .api_key = "tml-key",
                                                     .allocator = &x->allocator,
                                                     .billing_pause_ms = TINKC_FOREVER,
                                                     .log = on_log,
                                                     .log_user = &x->log },
                            &x->err);
    x->trainer =
        tinkc_trainer_new(x->client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &x->err);
    x->sampler = tinkc_sampler_new(x->client, &(tinkc_sampler_options){ .base_model = "mock/nano" },
                                   &x->err);
    x->batch = tinkc_batch_new(x->client, &x->err);
    tinkc_batch_add_sft(x->batch, ids, 6, 1, &x->err);
    assert_ok(&x->err);
    tinkc_mock_forget(x->mock);
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    fixture *x = *state;
    tinkc_batch_free(x->batch);
    tinkc_trainer_free(x->trainer);
    tinkc_sampler_free(x->sampler);
    tinkc_client_free(x->client);
    tinkc_mock_free(x->mock);
    bool empty = counting_is_empty_soon(&x->memory);
    pthread_mutex_destroy(&x->log.lock);
    free(x);
    return empty ? 0 : -1;
}

static bool contains(const tinkc_request *r, const char *text)
{
    return r && memmem(r->body.data, r->body.len, text, strlen(text));
}

static void complete(fixture *x, tinkc_future *f)
{
    assert_true(run_until_done(x->mock, f, 600000));
    assert_true(tinkc_future_wait(f, 0, &x->err));
    tinkc_future_free(f);
}

TEST_WITH(token_zero_may_stop, setup, teardown)
{
    static const int32_t stop[] = { 0 };
    fixture *x = *state;
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 3;
    o.stop_tokens = stop;
    o.n_stop_tokens = 1;
    complete(x, tinkc_sample(x->sampler, ids, 3, 1, &o, &x->err));
    assert_true(contains(nth_request(x->mock, API "asample", 0), "\"stop\":[0]"));
}

TEST_WITH(other_texts_are_no_samplers, setup, teardown)
{
    fixture *x = *state;
    tinkc_text text = { 0 };
    tinkc_client_options o = { .transport = tinkc_mock_transport(x->mock),
                               .clock = tinkc_mock_clock(x->mock) };
    assert_null(
        tinkc_sampler_import(tinkc_client_snapshot(x->client, &text, &x->err), &o, &x->err));
    assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
    assert_string_equal(x->err.message, "exported: not from tinkc_sampler_export");
    tinkc_text_free(&text);
}

/* A copy brings its account along: none of these may be given beside it. */
TEST_WITH(options_beside_a_copy, setup, teardown)
{
    static const char *const list[] = { "a", "b", NULL };
    static const tinkc_client_options rows[] = {
        { .api_key = "tml-x" },     { .credential_cmd = "true" },
        { .base_url = "http://x" }, { .project_id = "p" },
        { .tags = list },           { .user_metadata = list },
        { .headers = list },        { .snapshot = "{}" },
    };
    fixture *x = *state;
    tinkc_text text = { 0 };
    const char *exported = tinkc_sampler_export(x->sampler, &text, &x->err);
    assert_ok(&x->err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_client_options o = rows[i];
        o.transport = tinkc_mock_transport(x->mock);
        o.clock = tinkc_mock_clock(x->mock);
        assert_null(tinkc_sampler_import(exported, &o, &x->err));
        assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
        assert_memory_equal(x->err.message, "options: what the exported text has", 35);
        x->err = (tinkc_error){ 0 };
    }
    tinkc_text_free(&text);
}

RUN_TESTS(NULL, NULL)
