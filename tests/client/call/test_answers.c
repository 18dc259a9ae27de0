/* test_answers.c - answers of one byte, long words about billing and the log about it, telemetry of a refused stream. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>
#include "client/core/operation.h"
#include "support/counting.h"
#include "support/client/mock_fixture.h"

static int setup(void **state)
{
    return begin_fixture(state, NULL, NULL);
}

/* Even a limit of one byte holds. */
TEST_WITH(answers_of_one_byte, setup, end_fixture)
{
    fixture *x = *state;
    tinkc_client *client =
        mock_client(x->mock, &(tinkc_client_options){ .max_response_bytes = 1 }, &x->err);
    for (size_t len = 1; len <= 2; len++) {
        tinkc_mock_once(x->mock, NULL, "/far",
                        &(tinkc_mock_answer){ .body = "12", .body_len = len }, &x->err);
        tinkc_future *f = tinkc_http_call(
            client, &(tinkc_http_options){ .path = "https://files.test/far" }, &x->err);
        assert_ok(&x->err);
        assert_true(run_until_done(x->mock, f, 600000));
        assert_int_equal(tinkc_future_wait(f, 0, &x->err), len == 1);
        x->err = (tinkc_error){ 0 };
        tinkc_future_free(f);
    }
    tinkc_client_free(client);
}

static void take_text_length(const tinkc_event *e, void *user)
{
    *(size_t *)user = strlen(e->text);
}

/* Of the service's words an event keeps 199. */
TEST_WITH(long_words_about_billing, setup, end_fixture)
{
    fixture *x = *state;
    size_t kept = 0, before = 0; /* what stands before them */
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    assert_true(tinkc_client_on_event(x->client, queue, TINKC_EVENT_BILLING, take_text_length,
                                      &kept, &x->err));
    for (size_t len = 198; len <= 202; len += before != 0) {
        char body[300];
        (void)snprintf(body, sizeof body, "{\"detail\":\"%0*d\"}", before ? (int)(len - before) : 1,
                       0);
        once(x, API "get_server_capabilities", 402, body);
        tinkc_future *f = tinkc_capabilities_get(x->client, &x->err);
        assert_true(run_until_done(x->mock, f, 600000));
        assert_int_equal(tinkc_queue_run(queue, 0, &x->err), 1);
        if (before)
            assert_int_equal(kept, len < 199 ? len : 199);
        else
            before = kept - 1;
        assert_true(before > 0);
        tinkc_future_free(f);
    }
    tinkc_queue_free(queue);
}

static void count_pauses(int32_t level, const char *line, void *user)
{
    (void)level;
    if (strstr(line, "paused because of billing"))
        atomic_fetch_add((atomic_int *)user, 1);
}

/* A pause is logged once in a minute. */
TEST_WITH(the_log_about_billing, setup, end_fixture)
{
    fixture *x = *state;
    for (int64_t later_ms = 60000; later_ms <= 60001; later_ms++) {
        atomic_int lines = 0;
        tinkc_client *client =
            mock_client(x->mock,
                        &(tinkc_client_options){
                            .log = count_pauses, .log_user = &lines, .log_level = TINKC_LOG_WARN },
                        &x->err);
        for (int i = 0; i < 2; i++) {
            once(x, API "get_server_capabilities", 402, "{\"detail\":\"no credit\"}");
            tinkc_future *f = tinkc_capabilities_get(client, &x->err);
            assert_int_equal(settle(x), 5000);
            tinkc_mock_advance(x->mock, 5000);
            assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
            tinkc_future_free(f);
            tinkc_mock_advance(x->mock, later_ms - 5000);
        }
        assert_int_equal(atomic_load(&lines), later_ms > 60000 ? 2 : 1);
        tinkc_client_free(client);
    }
}

/* What the service answers to a stream is reported as it is for other calls. */
TEST_WITH(telemetry_of_a_refused_stream, setup, end_fixture)
{
    fixture *x = *state;
    char byte;
    tinkc_client *client = mock_client(
        x->mock, &(tinkc_client_options){ .api_key = "tml-key", .telemetry = TINKC_TELEMETRY_ON },
        &x->err);
    once(x, "/far", 403, "{\"detail\":\"no\",\"more\":\"details\"}");
    tinkc_stream *s = tinkc_stream_open(client, &(tinkc_http_options){ .path = "/far" }, &x->err);
    assert_ok(&x->err);
    assert_int_equal(tinkc_stream_read(s, &byte, 1, PATIENCE_MS, &x->err), 0);
    assert_int_equal(x->err.code, TINKC_E_FORBIDDEN);
    x->err = (tinkc_error){ 0 };
    settle(x);
    tinkc_stream_free(s);
    assert_true(tinkc_client_close(client, PATIENCE_MS, &x->err));
    tinkc_client_free(client);
    bool found = false;
    for (size_t i = 0; i < tinkc_mock_count(x->mock, API "telemetry"); i++) {
        const tinkc_request *r = nth_request(x->mock, API "telemetry", i);
        found |= memmem(r->body.data, r->body.len, "details", 7) != NULL;
    }
    assert_true(found);
}
