/* test_samplers.c - stops of a sample, and texts and options of copies. */
#include <pthread.h>
#include "support/client/logged_fixture.h"

#define API "/api/v1/"

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
    tinkc_client_options o = { .transport = tinkc_mock_transport(x->mock), .clock = tinkc_mock_clock(x->mock) };
    assert_null(tinkc_sampler_import(tinkc_client_snapshot(x->client, &text, &x->err), &o, &x->err));
    assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
    assert_string_equal(x->err.message, "exported: not from tinkc_sampler_export");
    tinkc_text_free(&text);
}

/* A copy brings its account along: none of these may be given beside it. */
TEST_WITH(options_beside_a_copy, setup, teardown)
{
    static const char *const list[] = { "a", "b", NULL };
    static const tinkc_client_options rows[] = {
        { .api_key = "tml-x" }, { .credential_cmd = "true" }, { .base_url = "http://x" }, { .project_id = "p" },
        { .tags = list },       { .user_metadata = list },    { .headers = list },        { .snapshot = "{}" },
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
