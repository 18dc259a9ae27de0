/* test_pitfalls.c - what other clients got wrong: one test for each row of the table of pitfalls
 * that is not tested beside its own module. Names begin with the row. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "support/client/api_support.h"
#include "support/counting.h"
#include "wire/train_message.h"

static const tinkc_lora_options lora = { .base_model = "mock/nano" };
static const tinkc_sampler_options nano = { .base_model = "mock/nano" };
static const int32_t ids[] = { 1, 2, 3, 4, 5, 6 };

typedef struct fixture {
    tinkc_error err;
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_trainer *trainer;
    tinkc_batch *batch;
} fixture;

static void open_fixture(fixture *x, const char *config, size_t examples)
{
    *x = (fixture){ 0 };
    x->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x->err);
    if (config)
        tinkc_mock_always(x->mock, NULL, "/api/v1/client/config", &(tinkc_mock_answer){ .body = config }, &x->err);
    x->client = mock_client(x->mock, NULL, &x->err);
    x->trainer = tinkc_trainer_new(x->client, &lora, &x->err);
    x->batch = tinkc_batch_new(x->client, &x->err);
    for (size_t i = 0; i < examples; i++)
        tinkc_batch_add_sft(x->batch, ids, 6, 1, &x->err);
    assert_ok(&x->err);
    tinkc_mock_forget(x->mock);
}

static void close_fixture(fixture *x)
{
    tinkc_batch_free(x->batch);
    tinkc_trainer_free(x->trainer);
    tinkc_client_free(x->client);
    tinkc_mock_free(x->mock);
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

TEST(c01_submitting_does_not_wait_for_the_network)
{
    fixture x;
    open_fixture(&x, "{\"fwdbwd_max_chunk_len\":1}", 50);
    tinkc_mock_always(x.mock, NULL, "/api/v1/forward_backward",
                      &(tinkc_mock_answer){ .delay_ms = 200, .body = "{\"request_id\":\"r\"}" }, &x.err);
    tinkc_future *f = pass(&x); /* 50 chunks of 200 ms on a clock that stands still */
    assert_int_equal(tinkc_future_part_count(f), 50);
    tinkc_future *health = tinkc_health_check(x.client, &x.err);
    assert_true(tinkc_future_wait(health, PATIENCE_MS, &x.err)); /* the same client still works */
    assert_false(tinkc_future_done(f));
    tinkc_future_free(health);
    tinkc_mock *other_mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x.err);
    tinkc_client *other = mock_client(other_mock, NULL, &x.err);
    assert_true(tinkc_client_connect(other, PATIENCE_MS, &x.err));
    assert_false(tinkc_client_close(x.client, 0, &x.err));
    assert_true(tinkc_future_done(f));
    tinkc_future_free(f);
    tinkc_client_free(other);
    tinkc_mock_free(other_mock);
    close_fixture(&x);
}

/* 64 MiB of small events, in pieces that end anywhere. */
TEST(c02_events_in_little_memory)
{
    static const char event[] = "event: delta\nid: 7\ndata: {\"token\": 42}\n\n";
    enum { LEN = sizeof event - 1, PIECE = 1000, TOTAL = 64 << 20 };
    tinkc_error err = { 0 };
    counting memory = { 0 };
    tinkc_allocator a = counting_allocator(&memory);
    tinkc_sse_parser *parser = tinkc_sse_new(0, &a, &err);
    char piece[PIECE];
    size_t events = 0;
    for (size_t at = 0; at < TOTAL; at += PIECE) {
        for (size_t i = 0; i < PIECE; i++)
            piece[i] = event[(at + i) % LEN];
        assert_true(tinkc_sse_feed(parser, piece, PIECE, &err));
        for (const tinkc_sse *e; (e = tinkc_sse_next(parser, &err)); events++)
            assert_int_equal(e->data_len, 13);
    }
    assert_ok(&err);
    assert_int_equal(events, (TOTAL + PIECE - 1) / PIECE * PIECE / LEN);
    assert_true(atomic_load(&memory.peak) < 1 << 20);
    tinkc_sse_free(parser);
    assert_int_equal(atomic_load(&memory.bytes), 0);
}

/* Plain text is plain text; who wants a conversation calls another function. */
TEST(c08_c21_encoding_never_applies_a_template)
{
    static const char json[] = "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":3,\"content\":\"<u>\",\"special\":true,"
                               "\"normalized\":false}],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
                               "false,"
                               "\"trim_offsets\":false,\"use_regex\":false},\"decoder\":{\"type\":\"ByteLevel\"},"
                               "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2},\"merges\":[]}}";
    static const char config[] = "{\"chat_template\":\"{% for m in messages %}<u>{{ m.content }}c{% endfor %}\"}";
    tinkc_error err = { 0 };
    tinkc_tokenizer *tok =
        tinkc_tokenizer_parse(json, sizeof json - 1, config, sizeof config - 1, &(tinkc_tokenizer_options){ 0 }, &err);
    tinkc_tokens plain = { 0 }, chat = { 0 };
    tinkc_text text = { 0 };
    assert_ok(&err);
    assert_true(tinkc_encode(tok, "ab", &plain, &err));
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"ab\"}]";
    assert_true(tinkc_chat_encode(tok, messages, NULL, &chat, &err));
    assert_true(tinkc_chat_render(tok, messages, NULL, &text, &err));
    assert_ok(&err);
    assert_int_equal(plain.len, 2);
    assert_memory_equal(plain.data, ((int32_t[]){ 0, 1 }), 2 * sizeof(int32_t));
    assert_int_equal(chat.len, 4);
    assert_memory_equal(chat.data, ((int32_t[]){ 3, 0, 1, 2 }), 4 * sizeof(int32_t));
    assert_string_equal(text.data, "<u>abc");
    tinkc_tokens_free(&plain);
    tinkc_tokens_free(&chat);
    tinkc_text_free(&text);
    tinkc_tokenizer_free(tok);
}

TEST(c04_no_timeout_is_not_the_default_timeout)
{
    for (int forever = 0; forever < 2; forever++) {
        tinkc_error err = { 0 };
        tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
        tinkc_client_options o = { .no_retries = true, .idle_timeout_ms = forever ? TINKC_FOREVER : 0 };
        tinkc_client *client = mock_client(mock, &o, &err);
        tinkc_mock_always(mock, NULL, "/api/v1/healthz",
                          &(tinkc_mock_answer){ .delay_ms = 90000, .body = "{\"status\":\"ok\"}" }, &err);
        tinkc_future *f = tinkc_health_check(client, &err);
        assert_true(run_until_done(mock, f, 600000));
        assert_true(tinkc_future_wait(f, 0, &err) == (forever == 1));
        assert_int_equal(err.code, forever ? TINKC_OK : TINKC_E_NET_TIMEOUT);
        const tinkc_request *r = nth_request(mock, "/api/v1/healthz", 0);
        if (forever)
            assert_null(request_header(r, "x-stainless-read-timeout"));
        else
            assert_string_equal(request_header(r, "x-stainless-read-timeout"), "60.0");
        tinkc_future_free(f);
        tinkc_client_free(client);
        tinkc_mock_free(mock);
    }
}

TEST(c09_images_are_base64_in_samples_and_bytes_in_training)
{
    fixture x;
    open_fixture(&x, NULL, 0);
    tinkc_input *input = tinkc_input_new(x.client, &x.err);
    tinkc_input_add_tokens(input, ids, 3, &x.err);
    tinkc_input_add_image(input, "\x89PNG\r\n", 6, "png", 4, &x.err);
    tinkc_sampler *sampler = tinkc_sampler_new(x.client, &nano, &x.err);
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    tinkc_future *f = tinkc_sample_input(sampler, input, 1, &o, &x.err);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x.err));
    assert_non_null(
        strstr((const char *)nth_request(x.mock, "/api/v1/asample", 0)->body.data, "\"data\":\"iVBORw0K\""));
    tinkc_batch_add(x.batch, input, &x.err);
    tinkc_batch_set_i64(x.batch, "target_tokens", (int64_t[]){ 1, 2, 3 }, 3, &x.err);
    tinkc_future *p = pass(&x);
    assert_true(tinkc_future_wait(p, PATIENCE_MS, &x.err));
    assert_ok(&x.err);
    tinkc_bytes body = nth_request(x.mock, "/api/v1/forward_backward", 0)->body;
    assert_non_null(memmem(body.data, body.len, "\x89PNG\r\n", 6));
    tinkc_input_add_image_pointer(input, "s3://x", "png", -1, &x.err);
    assert_int_equal(tinkc_input_length(input), -1);
    assert_false(tinkc_batch_add(x.batch, input, &x.err));
    assert_int_equal(x.err.code, TINKC_E_UNSUPPORTED);
    tinkc_future_free(f);
    tinkc_future_free(p);
    tinkc_input_free(input);
    tinkc_sampler_free(sampler);
    close_fixture(&x);
}

TEST(c20_one_table_says_what_is_retried_and_whose_doing)
{
    const uint32_t t = TINKC_RETRIABLE, u = TINKC_USER_ERROR;
    const struct {
        int32_t code, number;
        uint32_t flags;
        int32_t by;
    } rows[] = {
        { TINKC_OK, 0, 0, TINKC_BY_NOBODY },
        { TINKC_E_ARGUMENT, 1, u, TINKC_BY_CALLER },
        { TINKC_E_MEMORY, 2, t, TINKC_BY_CLIENT },
        { TINKC_E_STATE, 3, 0, TINKC_BY_CLIENT },
        { TINKC_E_PATH, 4, u, TINKC_BY_CALLER },
        { TINKC_E_UNSUPPORTED, 5, u, TINKC_BY_CALLER },
        { TINKC_E_TENSOR, 6, u, TINKC_BY_CALLER },
        { TINKC_E_CALLBACK, 7, u, TINKC_BY_CALLER },
        { TINKC_E_NOT_LORA, 8, u, TINKC_BY_CALLER },
        { TINKC_E_FILE, 9, 0, TINKC_BY_CLIENT },
        { TINKC_E_TIMEOUT, 10, t, TINKC_BY_CLIENT },
        { TINKC_E_CANCELLED, 11, 0, TINKC_BY_CALLER },
        { TINKC_E_CLOSED, 12, u, TINKC_BY_CALLER },
        { TINKC_E_DEADLINE, 13, t, TINKC_BY_CLIENT },
        { TINKC_E_THREAD, 14, u, TINKC_BY_CALLER },
        { TINKC_E_FORKED, 15, u, TINKC_BY_CALLER },
        { TINKC_E_NO_SESSION, 16, u, TINKC_BY_CALLER },
        { TINKC_E_SEQUENCE, 17, 0, TINKC_BY_CLIENT },
        { TINKC_E_CONNECTION, 20, t, TINKC_BY_NETWORK },
        { TINKC_E_BAD_RESPONSE, 21, 0, TINKC_BY_SERVER },
        { TINKC_E_NET_TIMEOUT, 22, t, TINKC_BY_NETWORK },
        { TINKC_E_NO_PROGRESS, 23, t, TINKC_BY_SERVER },
        { TINKC_E_OFFLINE, 24, u, TINKC_BY_CALLER },
        { TINKC_E_REQUEST_FAILED, 30, t, TINKC_BY_NOBODY },
        { TINKC_E_PROMISE_EXPIRED, 31, t | u, TINKC_BY_SERVER },
        { TINKC_E_EXPORT_FAILED, 32, 0, TINKC_BY_SERVER },
        { TINKC_E_NO_CREDENTIAL, 40, u, TINKC_BY_CALLER },
        { TINKC_E_BAD_CREDENTIAL, 41, u, TINKC_BY_CALLER },
        { TINKC_E_CREDENTIAL_CMD, 42, t | u, TINKC_BY_CALLER },
        { TINKC_E_TOKEN, 43, t, TINKC_BY_SERVER },
        { TINKC_E_NO_IDENTITY, 44, u, TINKC_BY_CALLER },
        { TINKC_E_TOKENIZER, 50, u, TINKC_BY_CALLER },
        { TINKC_E_TEMPLATE, 51, u, TINKC_BY_CALLER },
        { TINKC_E_EXISTS, 60, u, TINKC_BY_CALLER },
        { TINKC_E_UNSAFE_ARCHIVE, 61, 0, TINKC_BY_SERVER },
        { TINKC_E_MODEL, 62, u, TINKC_BY_CALLER },
        { TINKC_E_STORE, 63, 0, TINKC_BY_CLIENT },
        { TINKC_E_TOO_LARGE, 64, 0, TINKC_BY_CALLER },
        { TINKC_E_HTTP, 300, 0, TINKC_BY_SERVER },
        { TINKC_E_BAD_REQUEST, 400, u, TINKC_BY_CALLER },
        { TINKC_E_AUTH, 401, u, TINKC_BY_CALLER },
        { TINKC_E_BILLING, 402, u, TINKC_BY_CALLER },
        { TINKC_E_FORBIDDEN, 403, u, TINKC_BY_CALLER },
        { TINKC_E_NOT_FOUND, 404, u, TINKC_BY_CALLER },
        { TINKC_E_REQUEST_TIMEOUT, 408, t, TINKC_BY_SERVER },
        { TINKC_E_CONFLICT, 409, t | u, TINKC_BY_CALLER },
        { TINKC_E_GONE, 410, u, TINKC_BY_CALLER },
        { TINKC_E_UNPROCESSABLE, 422, u, TINKC_BY_CALLER },
        { TINKC_E_RATE_LIMITED, 429, t | u, TINKC_BY_SERVER },
        { TINKC_E_SERVER, 500, t, TINKC_BY_SERVER },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        assert_int_equal(rows[i].code, rows[i].number); /* stable once published */
        assert_int_equal(tinkc_code_flags(rows[i].code), rows[i].flags);
        tinkc_error_set(&err, rows[i].code, "x");
        assert_int_equal(err.category, rows[i].by);
        assert_int_equal(err.flags, rows[i].flags);
    }
    assert_int_equal(tinkc_code_flags(299), 0); /* one of a later library */
}

TEST(c24_c27_two_clients_two_keys_and_an_environment_that_changes)
{
    tinkc_error err = { 0 };
    tinkc_mock *mocks[2];
    tinkc_client *clients[2];
    static const char *const keys[] = { "tml-first", "tml-second" };
    setenv("TINKER_PROJECT_ID", "p-env", 1);
    setenv("TINKER_TAGS", " a, b,,a ", 1);
    for (size_t i = 0; i < 2; i++) {
        mocks[i] = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
        setenv("TINKER_API_KEY", keys[i], 1);
        clients[i] = mock_client(mocks[i], NULL, &err);
    }
    setenv("TINKER_API_KEY", "tml-third", 1);
    setenv("TINKER_PROJECT_ID", "p-later", 1);
    for (size_t i = 0; i < 2; i++) {
        assert_non_null(tinkc_client_session_id(clients[i], PATIENCE_MS, &err));
        for (size_t k = 0; tinkc_mock_request(mocks[i], k); k++)
            assert_string_equal(request_header(tinkc_mock_request(mocks[i], k), "X-API-Key"), keys[i]);
        assert_string_equal((const char *)nth_request(mocks[i], "/api/v1/create_session", 0)->body.data,
                            "{\"tags\":[\"a\",\"b\"],\"user_metadata\":{},\"sdk_version\":\"0.25.0\","
                            "\"project_id\":\"p-env\",\"type\":\"create_session\"}");
        tinkc_client_free(clients[i]);
        tinkc_mock_free(mocks[i]);
    }
    unsetenv("TINKER_API_KEY");
    unsetenv("TINKER_PROJECT_ID");
    unsetenv("TINKER_TAGS");
}

TEST(c29_a_chunk_is_polled_from_its_acceptance_on)
{
    fixture x;
    open_fixture(&x, "{\"fwdbwd_max_chunk_len\":1,\"parallel_fwdbwd_chunks\":false}", 2);
    tinkc_mock_once(x.mock, NULL, "/api/v1/forward_backward",
                    &(tinkc_mock_answer){ .body = "{\"request_id\":\"first\"}" }, &x.err);
    tinkc_mock_once(x.mock, NULL, "/api/v1/forward_backward",
                    &(tinkc_mock_answer){ .delay_ms = 5000, .body = "{\"request_id\":\"second\"}" }, &x.err);
    tinkc_mock_always(x.mock, NULL, "/api/v1/retrieve_future", &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT },
                      &x.err);
    tinkc_future *f = pass(&x);
    tinkc_mock_settle(x.mock, PATIENCE_MS, &x.err);
    assert_int_equal(tinkc_mock_count(x.mock, "/api/v1/retrieve_future"), 1);
    assert_non_null(strstr((const char *)nth_request(x.mock, "/api/v1/retrieve_future", 0)->body.data, "first"));
    tinkc_future_free(f);
    close_fixture(&x);
}

TEST(c33_heartbeats_do_not_wait_for_uploads)
{
    fixture x;
    open_fixture(&x, NULL, 2);
    tinkc_mock_always(x.mock, NULL, "/api/v1/forward_backward",
                      &(tinkc_mock_answer){ .delay_ms = 55000, .body = "{\"request_id\":\"r\"}" }, &x.err);
    tinkc_future *f = pass(&x);
    for (int i = 0; i < 5; i++) {
        tinkc_mock_settle(x.mock, PATIENCE_MS, &x.err);
        tinkc_mock_advance(x.mock, 10000);
    }
    tinkc_mock_settle(x.mock, PATIENCE_MS, &x.err);
    assert_int_equal(tinkc_mock_count(x.mock, "/api/v1/session_heartbeat"), 5);
    assert_int_equal(nth_request(x.mock, "/api/v1/session_heartbeat", 0)->pool, TINKC_POOL_SESSION);
    assert_int_equal(nth_request(x.mock, "/api/v1/forward_backward", 0)->pool, TINKC_POOL_TRAIN);
    tinkc_future_free(f);
    close_fixture(&x);
}

/* Counts submits that are under way on the mock's clock: each takes 100 ms. */
TEST(c36_chunks_under_way_are_bounded_by_the_budget)
{
    fixture x;
    /* An example counts 80 bytes: 20 of tokens, 40 of targets, 20 of weights. */
    open_fixture(&x, "{\"fwdbwd_max_chunk_len\":1,\"fwdbwd_dispatch_bytes_semaphore_size\":160}", 100);
    assert_int_equal(tinkc_batch_bytes(x.batch), 8000);
    tinkc_mock_always(x.mock, NULL, "/api/v1/forward_backward",
                      &(tinkc_mock_answer){ .delay_ms = 100, .body = "{\"request_id\":\"r\"}" }, &x.err);
    tinkc_mock_always(x.mock, NULL, "/api/v1/retrieve_future", &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT },
                      &x.err);
    tinkc_future *f = pass(&x);
    for (int i = 0; i < 60; i++) {
        int64_t next = tinkc_mock_settle(x.mock, PATIENCE_MS, &x.err);
        tinkc_mock_advance(x.mock, next < 100 && next > 0 ? next : 100);
    }
    size_t n = tinkc_mock_count(x.mock, "/api/v1/forward_backward");
    assert_true(n > 90);
    for (size_t i = 3; i < n; i++) /* never four within 100 ms */
        assert_true(nth_request_ms(x.mock, "/api/v1/forward_backward", i) -
                        nth_request_ms(x.mock, "/api/v1/forward_backward", i - 3) >=
                    100);
    tinkc_future_free(f);
    close_fixture(&x);
}

TEST(c39_categories_in_any_case)
{
    static const struct {
        const char *error, *category, *message;
        int32_t by;
    } rows[] = {
        { "\"bad thing\"", "user", "bad thing", TINKC_BY_CALLER },
        { "\"bad thing\"", "User", "bad thing", TINKC_BY_CALLER },
        { "\"bad thing\"", "USER", "bad thing", TINKC_BY_CALLER },
        { "\"bad thing\"", "server", "bad thing", TINKC_BY_SERVER },
        { "\"bad thing\"", "x", "bad thing", TINKC_BY_NOBODY },
        { "\"bad thing\"", "unknown", "bad thing", TINKC_BY_NOBODY },
        { "null", "server", "failed", TINKC_BY_SERVER },
        { "[1]", "server", "[1]", TINKC_BY_SERVER },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fixture x;
        char body[100];
        (void)snprintf(body, sizeof body, "{\"error\":%s,\"category\":\"%s\"}", rows[i].error, rows[i].category);
        open_fixture(&x, NULL, 0);
        tinkc_mock_always(x.mock, NULL, "/api/v1/retrieve_future", &(tinkc_mock_answer){ .body = body }, &x.err);
        tinkc_future *f = step(&x);
        assert_false(tinkc_future_wait(f, PATIENCE_MS, &x.err));
        assert_int_equal(x.err.code, TINKC_E_REQUEST_FAILED);
        assert_int_equal(x.err.category, rows[i].by);
        assert_string_equal(x.err.message, rows[i].message);
        assert_int_equal((x.err.flags & TINKC_USER_ERROR) != 0, rows[i].by == TINKC_BY_CALLER);
        assert_string_equal(x.err.request_id, "mock-session-1:train:0:1");
        tinkc_future_free(f);
        close_fixture(&x);
    }
}

typedef struct many {
    tinkc_sampler *sampler;
    atomic_int failures;
} many;

static void *sample_many(void *arg)
{
    many *m = arg;
    tinkc_error err = { 0 };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    tinkc_future *all[50];
    for (size_t i = 0; i < 50; i++)
        all[i] = tinkc_sample(m->sampler, ids, 6, 1, &o, &err);
    if (!tinkc_future_wait_all(all, 50, 60000, &err))
        atomic_fetch_add(&m->failures, 1);
    for (size_t i = 0; i < 50; i++)
        tinkc_future_free(all[i]);
    return NULL;
}

TEST(c42_samples_of_many_threads_run_at_once)
{
    fixture x;
    pthread_t threads[32];
    open_fixture(&x, NULL, 0);
    many m = { .sampler = tinkc_sampler_new(x.client, &nano, &x.err) };
    for (size_t i = 0; i < 32; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, sample_many, &m), 0);
    for (size_t i = 0; i < 32; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&m.failures), 0);
    assert_int_equal(tinkc_mock_count(x.mock, "/api/v1/asample"), 32 * 50);
    tinkc_sampler_free(m.sampler);
    close_fixture(&x);
}

TEST(large_results_wait_for_room)
{
    fixture x;
    open_fixture(&x, NULL, 1);
    tinkc_mock_once(
        x.mock, NULL, "/api/v1/retrieve_future",
        &(tinkc_mock_answer){ .body = "{\"status\":\"complete_metadata\",\"response_payload_size\":99999999}" },
        &x.err);
    tinkc_future *f = pass(&x);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x.err));
    assert_non_null(strstr((const char *)nth_request(x.mock, "/api/v1/retrieve_future", 0)->body.data,
                           "\"allow_metadata_only\":true"));
    assert_non_null(strstr((const char *)nth_request(x.mock, "/api/v1/retrieve_future", 1)->body.data,
                           "\"allow_metadata_only\":false"));
    tinkc_future *again = pass(&x); /* the room was given back */
    assert_true(tinkc_future_wait(again, PATIENCE_MS, &x.err));
    tinkc_future_free(f);
    tinkc_future_free(again);
    close_fixture(&x);
}
