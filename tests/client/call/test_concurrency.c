/* test_concurrency.c - how much is under way at once, and what is sent when nothing is said. */
#include "support/client/mock_fixture.h"
#include "support/counting.h"

#define SAMPLE "/api/v1/asample"
enum { MANY = 450, PROMPT = 10 };

static const int32_t prompt[PROMPT] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };

/* How many of MANY samples are sent before one of them is answered. `accepted`: they are, but no
 * result comes. first_status: of a sample before them, after_ms earlier. */
static size_t submits_with(const char *config, bool accepted, int32_t first_status, int64_t after_ms)
{
    tinkc_error err = { 0 };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    tinkc_future *f[MANY];
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    if (config)
        tinkc_mock_always(mock, NULL, "/api/v1/client/config", &(tinkc_mock_answer){ .body = config }, &err);
    tinkc_client *client = mock_client(mock, NULL, &err);
    tinkc_sampler *s = tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &err);
    tinkc_mock_always(mock, NULL, accepted ? "/api/v1/retrieve_future" : SAMPLE,
                      &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &err);
    o.max_tokens = 1;
    size_t n = 0;
    if (first_status) { /* one sample alone meets it; the others come when its back-off is over */
        tinkc_mock_once(mock, NULL, SAMPLE, &(tinkc_mock_answer){ .status = first_status }, &err);
        f[n++] = tinkc_sample(s, prompt, PROMPT, 1, &o, &err);
        tinkc_mock_settle(mock, PATIENCE_MS, &err);
        tinkc_mock_advance(mock, 2000);
        tinkc_mock_settle(mock, PATIENCE_MS, &err);
        if (after_ms > 2000)
            tinkc_mock_advance(mock, after_ms - 2000);
        tinkc_mock_settle(mock, PATIENCE_MS, &err);
        tinkc_mock_forget(mock);
    }
    for (; n < MANY; n++)
        f[n] = tinkc_sample(s, prompt, PROMPT, 1, &o, &err);
    tinkc_mock_settle(mock, PATIENCE_MS, &err);
    assert_ok(&err);
    size_t sent = tinkc_mock_count(mock, SAMPLE);
    while (n--)
        tinkc_future_free(f[n]);
    tinkc_sampler_free(s);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
    return sent;
}

TEST(samples_under_way)
{
    assert_int_equal(submits_with(NULL, false, 0, 0), 400);       /* submits of an account */
    assert_int_equal(submits_with(NULL, true, 0, 0), MANY);       /* they count until they are accepted */
    assert_int_equal(submits_with(NULL, false, 429, 2000), 10);   /* soon after a 429 */
    assert_int_equal(submits_with(NULL, false, 429, 10999), 10);  /* ten seconds after its back-off */
    assert_int_equal(submits_with(NULL, false, 429, 11000), 399); /* one is under way already */
    assert_int_equal(submits_with("{\"sample_max_concurrent_requests\":7}", true, 0, 0), 7); /* slots */
    /* Ten tokens count 100 bytes: two fill a budget of 100, as the last may overdraw it. */
    assert_int_equal(submits_with("{\"sample_dispatch_bytes_semaphore_size\":100}", false, 0, 0), 2);
    /* Soon after a 429 they count twenty times that. */
    assert_int_equal(submits_with("{\"sample_dispatch_bytes_semaphore_size\":1000}", false, 429, 2000), 1);
    /* The one under way has 100 of them: with 2100 the next leaves 0, and one more may overdraw. */
    assert_int_equal(submits_with("{\"sample_dispatch_bytes_semaphore_size\":2099}", false, 429, 2000), 1);
    assert_int_equal(submits_with("{\"sample_dispatch_bytes_semaphore_size\":2100}", false, 429, 2000), 2);
}

/* A sample that had to wait for its turn keeps no more memory than the others once it is complete. */
TEST(waiting_costs_no_memory)
{
    tinkc_error err = { 0 };
    counting memory = { 0 };
    tinkc_allocator allocator = counting_allocator(&memory);
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    tinkc_future *f[3];
    size_t kept[3];
    o.max_tokens = 1;
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_mock_always(mock, NULL, "/api/v1/client/config",
                      &(tinkc_mock_answer){ .body = "{\"sample_dispatch_bytes_semaphore_size\":100}" }, &err);
    tinkc_client *client =
        mock_client(mock, &(tinkc_client_options){ .allocator = &allocator, .telemetry = TINKC_TELEMETRY_OFF }, &err);
    tinkc_sampler *s = tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &err);
    for (size_t i = 0; i < 3; i++) /* two fill the budget */
        f[i] = tinkc_sample(s, prompt, PROMPT, 1, &o, &err);
    assert_true(run_until_done(mock, f[2], 60000));
    for (size_t i = 0; i < 3; i++) {
        assert_true(tinkc_future_wait(f[i], 0, &err));
        size_t before = atomic_load(&memory.bytes);
        tinkc_future_free(f[i]);
        tinkc_mock_settle(mock, PATIENCE_MS, &err);
        kept[i] = before - atomic_load(&memory.bytes);
    }
    assert_ok(&err);
    assert_int_equal(kept[2], kept[0]);
    assert_int_equal(kept[2], kept[1]);
    tinkc_sampler_free(s);
    tinkc_client_free(client);
    assert_true(counting_is_empty_soon(&memory));
    tinkc_mock_free(mock);
}

TEST(defaults_of_a_new_lora)
{
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_client *client = mock_client(mock, NULL, &err);
    tinkc_trainer *t = tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &err);
    assert_ok(&err);
    const char *body = (const char *)nth_request(mock, "/api/v1/create_model", 0)->body.data;
    assert_non_null(strstr(body, "\"rank\":32"));
    assert_non_null(strstr(body, "\"train_mlp\":true"));
    assert_non_null(strstr(body, "\"train_attn\":true"));
    assert_non_null(strstr(body, "\"train_unembed\":true"));
    assert_null(strstr(body, "\"seed\":0"));
    tinkc_trainer_free(t);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
}

/* Chunks of a pass end at a number of examples or of bytes, whichever comes first. */
static size_t chunks_with(const char *config)
{
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_mock_always(mock, NULL, "/api/v1/client/config", &(tinkc_mock_answer){ .body = config }, &err);
    tinkc_client *client = mock_client(mock, NULL, &err);
    tinkc_trainer *t = tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &err);
    tinkc_batch *batch = tinkc_batch_new(client, &err);
    for (size_t i = 0; i < 6; i++)
        tinkc_batch_add_sft(batch, prompt, PROMPT, 1, &err);
    tinkc_future *f = tinkc_forward_backward(t, batch, TINKC_CROSS_ENTROPY, NULL, &err);
    assert_true(run_until_done(mock, f, 60000));
    assert_true(tinkc_future_wait(f, 0, &err));
    size_t n = tinkc_mock_count(mock, "/api/v1/forward_backward");
    tinkc_future_free(f);
    tinkc_batch_free(batch);
    tinkc_trainer_free(t);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
    return n;
}

TEST(chunks_of_a_pass)
{
    assert_int_equal(chunks_with("{}"), 1);
    assert_int_equal(chunks_with("{\"fwdbwd_max_chunk_len\":4}"), 2);
    assert_int_equal(chunks_with("{\"fwdbwd_max_chunk_bytes_count\":1}"), 6);
    assert_int_equal(chunks_with("{\"fwdbwd_max_chunk_bytes_count\":1,\"fwdbwd_max_chunk_len\":4}"), 6);
}

/* ---- flags of the service ---- */

static void open_scene(fixture *x, const char *config, const tinkc_retry_options *retry)
{
    open_client(x, API "client/config", config, &(tinkc_client_options){ .retry_window_ms = TINKC_ZERO });
    x->sampler =
        tinkc_sampler_new(x->client, &(tinkc_sampler_options){ .base_model = "mock/nano", .retry = retry }, &x->err);
    assert_ok(&x->err);
}

static tinkc_future *sample_one(fixture *x)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 1;
    return tinkc_sample(x->sampler, prompt, PROMPT, 1, &o, &x->err);
}

/* Another sample of the same sampler that ends is progress for all of them. */
static bool poll_of_the_first(const tinkc_request *r, tinkc_mock_answer *a, void *user)
{
    (void)user;
    if (strcmp(r->path, "/api/v1/retrieve_future") != 0 || !memmem(r->body.data, r->body.len, "first", strlen("first")))
        return false;
    a->body = "{\"type\":\"try_again\"}";
    a->delay_ms = 5000;
    return true;
}

/* When a sample that never ends is given up, where a second one begins after 40 s. */
static int64_t given_up_s(bool second_ends)
{
    tinkc_retry_options minute = { .progress_timeout_ms = 60000 };
    fixture x;
    open_scene(&x, "{}", &minute);
    tinkc_mock_compute(x.mock, poll_of_the_first, NULL, &x.err);
    for (int i = 0; i < (second_ends ? 1 : 2); i++)
        tinkc_mock_once(x.mock, NULL, SAMPLE, &(tinkc_mock_answer){ .body = "{\"request_id\":\"first\"}" }, &x.err);
    tinkc_future *stuck = sample_one(&x), *second = NULL;
    int64_t ended_s = 0;
    for (int64_t s = 1; s <= 200 && !ended_s; s++) {
        tinkc_mock_settle(x.mock, PATIENCE_MS, &x.err);
        tinkc_mock_advance(x.mock, 1000);
        tinkc_mock_settle(x.mock, PATIENCE_MS, &x.err);
        if (tinkc_future_done(stuck))
            ended_s = s;
        if (s == 40)
            second = sample_one(&x);
        if (s == 40 && second_ends)
            assert_true(tinkc_future_wait(second, PATIENCE_MS, &x.err));
    }
    assert_ok(&x.err);
    tinkc_future_free(stuck);
    tinkc_future_free(second);
    close_all(&x);
    return ended_s;
}

TEST(one_sample_that_ends_is_progress_for_all_and_one_that_begins_is_not)
{
    assert_int_equal(given_up_s(true), 100);
    assert_int_equal(given_up_s(false), 60);
}

/* An answer of some megabytes is nothing special. */
TEST(answers_may_be_large)
{
    enum { SIZE = 3 << 20 };
    char *body = malloc(SIZE);
    assert_non_null(body);
    memset(body, ' ', SIZE - 1);
    body[SIZE - 1] = '\0';
    memcpy(body, "{\"status\":\"ok\"}", strlen("{\"status\":\"ok\"}"));
    fixture x;
    open_scene(&x, "{}", NULL);
    tinkc_mock_always(x.mock, NULL, "/api/v1/healthz", &(tinkc_mock_answer){ .body = body }, &x.err);
    tinkc_future *f = tinkc_health_check(x.client, &x.err);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x.err));
    tinkc_future_free(f);
    close_all(&x);
    free(body);
}
