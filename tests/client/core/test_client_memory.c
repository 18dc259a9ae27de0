/* test_client_memory.c - whose memory is used, and how little while a call waits. */
#include <pthread.h>
#include "support/client/logged_fixture.h"

#define API  "/api/v1/"
#define POLL API "retrieve_future"

static void once(fixture *x, const char *path, int32_t status, const char *body)
{
    tinkc_mock_once(x->mock, NULL, path, &(tinkc_mock_answer){ .status = status, .body = body }, &x->err);
    assert_ok(&x->err);
}

static tinkc_future *sample(fixture *x)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 3;
    tinkc_future *f = tinkc_sample(x->sampler, ids, 3, 1, &o, &x->err);
    assert_ok(&x->err);
    return f;
}

/* However long it waits: polls leave nothing behind in memory. */
TEST_WITH(waiting_takes_no_memory, setup, teardown)
{
    enum { POLLS = 200 };
    fixture *x = *state;
    char body[1200];
    (void)snprintf(body, sizeof body,
                   "{\"type\":\"try_again\",\"request_id\":\"r\",\"queue_state\":\"active\","
                   "\"queue_state_reason\":\"%01000d\"}",
                   0);
    for (int i = 0; i < POLLS; i++)
        once(x, POLL, 200, body);
    tinkc_future *f = sample(x);
    size_t early = 0, late = 0;
    while (!tinkc_future_done(f)) {
        int64_t next = tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
        assert_ok(&x->err);
        size_t polls = tinkc_mock_count(x->mock, POLL), now = atomic_load(&x->memory.bytes);
        early = polls == 5 ? now : early;
        late = polls == POLLS - 5 ? now : late;
        if (!tinkc_future_done(f))
            tinkc_mock_advance(x->mock, next);
    }
    assert_true(early && late);
    assert_true(late < early + 50000); /* what 190 answers hold is four times that */
    tinkc_future_free(f);
}

/* Inputs are made of the client's memory. */
TEST_WITH(inputs_take_the_clients_memory, setup, teardown)
{
    enum { N = 50000 };
    static int32_t many[N];
    fixture *x = *state;
    tinkc_input *input = tinkc_input_new(x->client, &x->err);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    size_t before = atomic_load(&x->memory.bytes);
    assert_true(tinkc_input_add_tokens(input, many, N, &x->err));
    assert_true(atomic_load(&x->memory.bytes) >= before + sizeof many);
    tinkc_input_free(input);
}

TEST_WITH(an_empty_body_is_one, setup, teardown)
{
    static const struct {
        tinkc_http_options o;
        const char *method;
    } rows[] = { { { .path = "/x" }, "GET" }, { { .path = "/x", .body = "" }, "POST" } };
    fixture *x = *state;
    for (size_t i = 0; i < 2; i++) {
        tinkc_future *f = tinkc_http_call(x->client, &rows[i].o, &x->err);
        (void)run_until_done(x->mock, f, 60000);
        assert_string_equal(nth_request(x->mock, "/x", i)->method, rows[i].method);
        tinkc_future_free(f);
    }
    static const tinkc_http_options bad = { .path = "/x", .body_len = 1 };
    assert_null(tinkc_http_call(x->client, &bad, &x->err));
    assert_string_equal(x->err.message, "body is NULL but body_len is not 0");
    x->err = (tinkc_error){ 0 };
}
