/* test_report_sizes.c - reports at the end of a client, of large answers and of streams. */
#include <unistd.h>
#include "client/call/call.h"
#include "client/core/client_priv.h"
#include "client/core/options.h"
#include "client/call/outcome.h"
#include "client/rest/rest_priv.h"
#include "client/sample/sample_op.h"
#include "client/train/trainer.h"
#include "support/client/mock_fixture.h"
#include "support/scarce.h"

/* Telemetry that is queued, under way, or waits for its next attempt ends with its client: nothing is left of it. */
TEST_WITH(reports_at_the_end, begin_plain, end_fixture)
{
    fixture *x = *state;
    static const tinkc_mock_answer answers[] = {
        { .body = "{}" },
        { .fault = TINKC_FAULT_SILENT },
        { .status = 500 },
    };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        for (int waits = 0; waits < 2; waits++) {
            counting memory = { 0 };
            tinkc_allocator allocator = counting_allocator(&memory);
            tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x->err);
            tinkc_client *c = mock_client(mock,
                                          &(tinkc_client_options){ .allocator = &allocator,
                                                                   .telemetry = TINKC_TELEMETRY_ON,
                                                                   .max_retries = TINKC_ZERO,
                                                                   .retry_window_ms = TINKC_ZERO },
                                          &x->err);
            assert_true(tinkc_mock_always(mock, NULL, API "telemetry", &answers[i], &x->err));
            assert_true(tinkc_client_report(c, "first", "{\"a\":1}", TINKC_LOG_INFO, &x->err));
            tinkc_mock_settle(mock, PATIENCE_MS, &x->err);
            if (waits)
                tinkc_mock_advance(mock, 10000);
            tinkc_mock_settle(mock, PATIENCE_MS, &x->err);
            assert_int_equal(tinkc_mock_count(mock, API "telemetry"), waits);
            assert_true(tinkc_client_report(c, "second", NULL, TINKC_LOG_DEBUG, &x->err));
            tinkc_mock_settle(mock, PATIENCE_MS, &x->err);
            assert_ok(&x->err);
            (void)tinkc_client_close(c, 0, &x->err);
            x->err = (tinkc_error){ 0 };
            if (waits && answers[i].status) /* what waits for its next attempt is not hurried */
                assert_int_equal(tinkc_mock_count(mock, API "telemetry"), 1);
            tinkc_mock_advance(mock, 20000); /* no timer is left */
            tinkc_client_free(c);
            assert_true(counting_is_empty_soon(&memory));
            tinkc_mock_free(mock);
        }
}

/* The answer that caused a user's error is reported with it, up to 4096 bytes. */
TEST_WITH(reports_of_large_answers, begin_plain, end_fixture)
{
    fixture *x = *state;
    tinkc_client *c = mock_client(x->mock, &(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_ON }, &x->err);
    for (size_t n = 4095; n <= 4097; n++) {
        char body[4100];
        memset(body, 'x', n);
        body[n] = '\0';
        size_t sent = tinkc_mock_count(x->mock, API "telemetry");
        once(x, API "get_server_capabilities", 403, body);
        tinkc_future *f = tinkc_capabilities_get(c, &x->err);
        assert_ok(&x->err);
        assert_true(run_until_done(x->mock, f, 60000));
        tinkc_future_free(f);
        tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
        assert_int_equal(tinkc_mock_count(x->mock, API "telemetry"), sent + 1);
        const tinkc_request *r = nth_request(x->mock, API "telemetry", sent);
        assert_non_null(memmem(r->body.data, r->body.len, "user_error", 10));
        assert_int_equal(memmem(r->body.data, r->body.len, "\"body\":\"xxxx", 12) != NULL, n <= 4096);
    }
    tinkc_client_free(c);
}

/* What the service answers to a stream is reported as it is for other calls. */
TEST_WITH(a_refused_stream_is_reported_with_its_answer, begin_plain, end_fixture)
{
    fixture *x = *state;
    char byte;
    tinkc_client *c = mock_client(x->mock, &(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_ON }, &x->err);
    once(x, "/far", 403, "{\"detail\":\"no\",\"more\":\"details\"}");
    tinkc_stream *s = tinkc_stream_open(c, &(tinkc_http_options){ .path = "/far" }, &x->err);
    assert_int_equal(tinkc_stream_read(s, &byte, 1, PATIENCE_MS, &x->err), 0);
    assert_int_equal(x->err.code, TINKC_E_FORBIDDEN);
    x->err = (tinkc_error){ 0 };
    settle(x);
    tinkc_stream_free(s);
    assert_true(tinkc_client_close(c, PATIENCE_MS, &x->err));
    tinkc_client_free(c);
    size_t found = 0;
    for (size_t i = 0; i < tinkc_mock_count(x->mock, API "telemetry"); i++)
        found += body_has(nth_request(x->mock, API "telemetry", i), "details");
    assert_int_equal(found, 1);
}
