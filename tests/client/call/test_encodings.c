/* test_encodings.c - passes are sent as protobuf, and as JSON where a service turns out to know nothing else: when
 * that is tried, how often, and what is remembered of it. */
#include "support/client/api_support.h"

#define PASS "/api/v1/forward_backward"

/* What the service says to the requests of each form, one after the other; the last again and again.
 * 0 = the mock's own answer, or, to JSON, that it is accepted. */
typedef struct service {
    int32_t protobuf[4], json[4];
    size_t n_protobuf, n_json;
} service;

static int32_t next(const int32_t list[4], size_t *n)
{
    int32_t status = list[*n < 4 ? *n : 3];
    ++*n;
    return status;
}

static bool serve(const tinkc_request *r, tinkc_mock_answer *answer, void *user)
{
    service *s = user;
    if (strcmp(r->path, PASS) != 0)
        return false;
    bool json = strcmp(request_header(r, "Content-Type"), "application/json") == 0;
    int32_t status = json ? next(s->json, &s->n_json) : next(s->protobuf, &s->n_protobuf);
    if (!status && !json)
        return false;
    *answer = status ? (tinkc_mock_answer){ .status = status, .body = "{\"detail\":\"no\"}" }
                     : (tinkc_mock_answer){ .body = "{\"request_id\":\"j\"}" };
    return true;
}

static bool result_of_json(const tinkc_request *r)
{
    return memmem(r->body.data, r->body.len, "\"j\"", 3) != NULL;
}

static bool serve_all(const tinkc_request *r, tinkc_mock_answer *answer, void *user)
{
    static const char result[] =
        "{\"loss_fn_output_type\":\"ArrayRecord\",\"loss_fn_outputs\":[{\"logprobs\":{\"data\":"
        "[-1,-1,-1],\"dtype\":\"float32\",\"shape\":[3]}}],\"metrics\":{\"loss:sum\":3}}";
    if (strcmp(r->path, "/api/v1/retrieve_future") == 0 && result_of_json(r)) {
        answer->body = result;
        return true;
    }
    return serve(r, answer, user);
}

/* So many passes, one after the other, with `code` at the end of the last. */
static void run_passes(service *s, size_t n, int32_t code)
{
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_client *client = mock_client(mock, NULL, &err);
    tinkc_trainer *t = tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &err);
    tinkc_batch *batch = tinkc_batch_new(client, &err);
    tinkc_batch_add_sft(batch, (int32_t[]){ 1, 2, 3, 4 }, 4, 1, &err);
    tinkc_mock_compute(mock, serve_all, s, &err);
    assert_ok(&err);
    for (size_t i = 0; i < n; i++) {
        tinkc_error why = { 0 };
        tinkc_future *f = tinkc_forward_backward(t, batch, TINKC_CROSS_ENTROPY, NULL, &err);
        assert_true(run_until_done(mock, f, 1800000));
        (void)tinkc_future_wait(f, 0, &why);
        assert_int_equal(why.code, i + 1 < n ? 0 : code);
        tinkc_future_free(f);
    }
    tinkc_batch_free(batch);
    tinkc_trainer_free(t);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
}

/* Where protobuf was accepted, a 500 is never a reason for JSON, however long it lasts. */
TEST(known_services_are_not_asked)
{
    service s = { .protobuf = { 0, 500, 500, 500 } };
    run_passes(&s, 2, TINKC_E_SERVER);
    assert_true(s.n_protobuf > 10);
    assert_int_equal(s.n_json, 0);
}

/* A service that takes neither gets JSON once; the rest of the time it is protobuf. */
TEST(json_is_tried_once)
{
    service s = { .protobuf = { 500, 500, 500, 500 }, .json = { 422, 422, 422, 422 } };
    run_passes(&s, 1, TINKC_E_SERVER);
    assert_true(s.n_protobuf > 10);
    assert_int_equal(s.n_json, 1);
}

/* Accepted at the first attempt: from then on it is JSON. */
TEST(json_is_remembered)
{
    service s = { .protobuf = { 500, 500, 500, 500 } };
    run_passes(&s, 3, 0);
    assert_int_equal(s.n_protobuf, 1);
    assert_int_equal(s.n_json, 3);
}

/* Accepted at a later one: what was in the way of protobuf may be gone as well. */
TEST(json_after_retries_proves_nothing)
{
    service s = { .protobuf = { 500, 0, 0, 0 }, .json = { 503, 0, 0, 0 } };
    run_passes(&s, 3, 0);
    assert_int_equal(s.n_json, 2);
    assert_int_equal(s.n_protobuf, 3);
}
