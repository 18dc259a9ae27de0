/* test_searches.c - searches, lists without items, queries and days. */
#include <pthread.h>
#include "support/client/logged_fixture.h"

#define API "/api/v1/"

static void once(fixture *x, const char *path, int32_t status, const char *body)
{
    tinkc_mock_once(x->mock, NULL, path, &(tinkc_mock_answer){ .status = status, .body = body }, &x->err);
    assert_ok(&x->err);
}

static bool contains(const tinkc_request *r, const char *text)
{
    return r && memmem(r->body.data, r->body.len, text, strlen(text));
}

/* Pages are asked for after the call: nothing of its arguments may be needed then. */
TEST_WITH(searches_keep_their_question, setup, teardown)
{
    fixture *x = *state;
    char texts[7][8] = { "sess-1", "name-2", "proj-3", "key-4", "val-5", "owner-6", "owner-7" };
    const char *projects[] = { texts[2], NULL }, *metadata[] = { texts[3], texts[4], NULL };
    const char *owners[] = { texts[5], texts[6], NULL };
    tinkc_search_options o = { .session_id = texts[0],
                               .display_name = texts[1],
                               .project_ids = projects,
                               .user_metadata = metadata,
                               .owners = owners };
    tinkc_search *list = tinkc_search_list(x->client, &o, &x->err);
    assert_ok(&x->err);
    memset(texts, '#', sizeof texts);
    projects[0] = metadata[0] = owners[0] = NULL;
    tinkc_future *f = tinkc_search_fetch(list, &x->err);
    assert_true(run_until_done(x->mock, f, 60000));
    static const char *const wanted[] = { "sess-1", "name-2", "proj-3", "key-4", "val-5", "owner-6", "owner-7" };
    const tinkc_request *r = tinkc_mock_request(x->mock, 0);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!contains(r, wanted[i]))
            fail_msg("%s is not in %.*s", wanted[i], (int)r->body.len, (const char *)r->body.data);
    tinkc_future_free(f);
    tinkc_search_free(list);
}

#define RUN                                                                                                            \
    "{\"training_run_id\":\"r\",\"base_model\":\"m\",\"model_owner\":\"o\",\"is_lora\":true,"                          \
    "\"last_request_time\":\"2026-01-01T00:00:00Z\"}"

/* What the service says of the whole is believed, 0 too. */
TEST_WITH(lists_with_a_total_of_zero, setup, teardown)
{
    static const char *const bodies[] = {
        "{\"training_runs\":[],\"cursor\":{\"offset\":0,\"limit\":1,\"total_count\":0}}",
        "{\"training_runs\":[" RUN "],\"cursor\":{\"offset\":0,\"limit\":1,\"total_count\":0}}",
    };
    fixture *x = *state;
    for (int i = 0; i < 2; i++) {
        tinkc_mock_forget(x->mock);
        once(x, API "training_runs", 200, bodies[i]);
        tinkc_runs *list = tinkc_runs_list(x->client, NULL, &x->err);
        assert_int_equal(tinkc_runs_total(list), -1);
        tinkc_future *f = tinkc_runs_fetch(list, &x->err);
        assert_true(run_until_done(x->mock, f, 60000));
        assert_int_equal(tinkc_runs_total(list), 0);
        tinkc_future_free(f);
        for (int k = 0; k < i; k++)
            assert_string_equal(tinkc_runs_next(list, &x->err)->id, "r");
        assert_null(tinkc_runs_next(list, &x->err));
        assert_ok(&x->err);
        assert_int_equal(tinkc_mock_count(x->mock, NULL), 1);
        tinkc_runs_free(list);
    }
}

/* The query of the client's options is for the service alone. */
TEST_WITH(queries_stay_with_the_service, setup, teardown)
{
    static const char *const query[] = { "key", "secret", NULL };
    static const struct {
        const char *url, *path;
    } rows[] = { { "https://elsewhere.example/far?x=1", "/far?x=1" },
                 { "/near?x=1", "/near?x=1&key=secret" },
                 { "/near", "/near?key=secret" } };
    fixture *x = *state;
    tinkc_client *client =
        mock_client(x->mock, &(tinkc_client_options){ .api_key = "tml-key", .query = query }, &x->err);
    assert_true(tinkc_client_connect(client, PATIENCE_MS, &x->err));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_mock_forget(x->mock);
        tinkc_future *f = tinkc_http_call(client, &(tinkc_http_options){ .path = rows[i].url }, &x->err);
        assert_true(run_until_done(x->mock, f, 600000));
        assert_string_equal(tinkc_mock_request(x->mock, 0)->path, rows[i].path);
        tinkc_future_free(f);
    }
    tinkc_client_free(client);
}
