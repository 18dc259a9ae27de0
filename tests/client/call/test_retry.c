/* test_retry.c - the two retry layers around a call (docs/failures.md): what is repeated, when, with which key, and what the
 * caller gets in the end. `healthz` has the layer attempt alone, `get_server_capabilities` and changes of a session have both.
 * Pauses that vary, and those of other layers: test_retry_gaps.c. */
#include "support/client/client_scene.h"

#define MODELS API "get_server_capabilities"
#define ASSIGN API "sessions/s-1/project"

static const tinkc_client_options quiet = { .telemetry = TINKC_TELEMETRY_OFF };

/* A client that has its settings already. */
static scene *begin(const tinkc_client_options *o)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, o);
    complete(s, "", tinkc_health_check(scene_client(s), scene_err(s)));
    scene_forget(s);
    return s;
}

/* The same of the other call. */
static const char *of_models(const char *seen)
{
    static char out[400];
    size_t n = 0;
    while (*seen) {
        bool name = strncmp(seen, "healthz", 7) == 0;
        n += (size_t)snprintf(out + n, sizeof out - n, "%.*s", name ? 6 : 1, name ? "models" : seen);
        seen += name ? 7 : 1;
    }
    return out;
}

TEST(each_outcome_once)
{
    static const struct {
        outcome o;
        const char *attempt, *both; /* with the first layer alone, and with both; NULL = the same */
    } rows[] = {
        { { 400, 0, NULL, NULL, "{\"detail\":\"bad\"}" }, "healthz; BAD_REQUEST 400 \"HTTP 400: bad\"", NULL },
        { { 400, 0, NULL, NULL, "" },
          "healthz; CONNECTION \"HTTP 400 without a body: the connection is stale\"",
          "models; +1000 models; done" },
        { { 400, 0, NULL, NULL, "<html>" }, "healthz; BAD_REQUEST 400 \"HTTP 400: <html>\"", NULL },
        { { 401, 0, NULL, NULL, "{\"error\":\"x\",\"category\":\"user\"}" },
          "healthz; AUTH 401 \"HTTP 401: x\"",
          NULL },
        { { 402, 0, NULL, NULL, "{\"detail\":\"pay\"}" },
          "healthz; BILLING 402 \"HTTP 402: pay\"",
          "models; +5000 models; done" },
        { { 403, 0, NULL, NULL, "plain text" }, "healthz; FORBIDDEN 403 \"HTTP 403: plain text\"", NULL },
        { { 404, 0, NULL, NULL, "" }, "healthz; NOT_FOUND 404 \"HTTP 404\"", NULL },
        { { 408, 0, NULL, NULL, "" }, "healthz; +500 healthz (1); done", NULL },
        { { 409, 0, NULL, NULL, "" }, "healthz; +500 healthz (1); done", NULL },
        { { 410, 0, NULL, NULL, "" }, "healthz; GONE 410 \"HTTP 410\"", NULL },
        { { 413, 0, NULL, NULL, "" }, "healthz; HTTP 413 \"HTTP 413\"", NULL },
        { { 422, 0, NULL, NULL, "{\"detail\":[{\"loc\":[\"body\",\"x\"],\"msg\":\"missing\"}]}" },
          "healthz; UNPROCESSABLE 422 \"HTTP 422: body.x: missing\"",
          NULL },
        { { 425, 0, NULL, NULL, "" }, "healthz; HTTP 425 \"HTTP 425\"", NULL },
        { { 429, 0, "Retry-After", "7", "" }, "healthz; +7000 healthz (1); done", NULL },
        { { 429, 0, "retry-after-ms", "250", "" }, "healthz; +250 healthz (1); done", NULL },
        { { 429, 0, "Retry-After-Ms", "1", "" }, "healthz; +1 healthz (1); done", NULL },
        { { 429, 0, NULL, NULL, "" }, "healthz; +500 healthz (1); done", NULL },
        { { 500, 0, NULL, NULL, "tml-0123456789abcdef0123456789" }, "healthz; +500 healthz (1); done", NULL },
        { { 500, 0, "x-should-retry", "false", "" }, "healthz; SERVER 500 \"HTTP 500\"", "models; +1000 models; done" },
        { { 404, 0, "x-should-retry", "true", "" }, "healthz; +500 healthz (1); done", NULL },
        { { 503, 0, "Retry-After", "Thu, 01 Jan 2026 00:10:09 GMT", "" }, "healthz; +500 healthz (1); done", NULL },
        { { 503, 0, "Retry-After", "0.25", "" }, "healthz; +250 healthz (1); done", NULL },
        { { 503, 0, "Retry-After", "0", "" }, "healthz; +500 healthz (1); done", NULL },
        { { 503, 0, "Retry-After", "soon", "" }, "healthz; +500 healthz (1); done", NULL },
        { { 400, 0, "x-should-retry", "TRUE", "x" }, "healthz; BAD_REQUEST 400 \"HTTP 400: x\"", NULL },
        { { 503, 0, "Retry-After", "60", "" }, "healthz; +60000 healthz (1); done", NULL },
        { { 503, 0, "Retry-After", "61", "" }, "healthz; +500 healthz (1); done", NULL },
        { { 503, 0, "Retry-After", "-1", "" }, "healthz; +500 healthz (1); done", NULL },
        { { 503, TINKC_FAULT_TRUNCATED, "Retry-After", "7", "{\"detail\":\"cut\"}" },
          "healthz; +500 healthz (1); done",
          NULL },
        { { 599, 0, NULL, NULL, "" }, "healthz; +500 healthz (1); done", NULL },
        { { 600, 0, NULL, NULL, "" }, "healthz; +500 healthz (1); done", NULL },
        { { 302, 0, "Location", "/elsewhere", "" }, "healthz; HTTP 302 \"HTTP 302\"", NULL },
        { { 199, 0, NULL, NULL, "" }, "healthz; HTTP 199 \"HTTP 199\"", NULL },
        { { 299, 0, NULL, NULL, "{}" },
          "healthz; BAD_RESPONSE 299 \"status: JSON: is missing at byte 2\"",
          "models; BAD_RESPONSE 299 \"supported_models: JSON: is missing at byte 2\"" },
        { { 300, 0, NULL, NULL, "" }, "healthz; HTTP 300 \"HTTP 300\"", NULL },
        { { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL }, "healthz; +500 healthz (1); done", NULL },
        { { 0, TINKC_FAULT_DNS, NULL, NULL, NULL }, "healthz; +500 healthz (1); done", NULL },
        { { 0, TINKC_FAULT_TLS, NULL, NULL, NULL }, "healthz; +500 healthz (1); done", NULL },
        { { 200, TINKC_FAULT_RESET, NULL, NULL, "{\"status\":\"ok\"}" }, "healthz; +500 healthz (1); done", NULL },
        { { 200, TINKC_FAULT_TRUNCATED, NULL, NULL, "{\"status\":\"ok\"}" }, "healthz; +500 healthz (1); done", NULL },
        { { 200, TINKC_FAULT_SILENT, NULL, NULL, "{\"status\":\"ok\"}" }, "healthz; +60500 healthz (1); done", NULL },
    };
    scene *s = begin(&quiet);
    for (size_t i = 0; i < LEN(rows); i++) {
        answer_with(s, API "healthz", &rows[i].o);
        complete(s, "", tinkc_health_check(scene_client(s), scene_err(s)));
        EXPECT_ROW(s, i, rows[i].attempt);
        answer_with(s, MODELS, &rows[i].o);
        complete(s, "", tinkc_capabilities_get(scene_client(s), scene_err(s)));
        EXPECT_ROW(s, i, rows[i].both ? rows[i].both : of_models(rows[i].attempt));
    }
    scene_end(s);
}

/* All attempts of one call have its key, in both layers; the number says which attempt of its layer it is. */
TEST(a_change_keeps_its_key)
{
    static const outcome rows[] = { { 503, 0, "Retry-After-Ms", "5", "" },
                                    { 400, 0, NULL, NULL, "" },
                                    { 503, 0, NULL, NULL, "" },
                                    { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL } };
    scene *s = begin(&quiet);
    for (size_t i = 0; i < LEN(rows); i++)
        answer_with(s, ASSIGN, &rows[i]);
    for (int k = 0; k < 2; k++)
        complete(s, "", tinkc_session_assign(scene_client(s), "s-1", "p-2", scene_err(s)));
    EXPECT(s, "sessions/s-1/project {PUT}; +5 sessions/s-1/project again (1) {PUT}; +1000 "
              "sessions/s-1/project again {PUT}; +500 sessions/s-1/project again (1) {PUT}; +1000 "
              "sessions/s-1/project again (2) {PUT}; done; sessions/s-1/project {PUT}; done");
    const char *key = request_header(nth_request(scene_mock(s), ASSIGN, 0), "X-Idempotency-Key");
    const char *uuid = key + strlen("stainless-c-retry-"); /* of version 4 */
    assert_true(strlen(uuid) == 36 && uuid[14] == '4' && strchr("89ab", uuid[19]));
    scene_end(s);
}

/* To the end of both layers, as the options say. */
TEST(both_retry_layers_end_as_the_options_say)
{
    static const struct {
        tinkc_client_options o;
        outcome a;
        const char *seen;
    } rows[] = {
        { { .max_retries = 2, .retry_window_ms = 5000 },
          { 500, 0, NULL, NULL, "" },
          "models; +500 models (1); +1000 models (2); +1000 models; +500 models (1); +1000 models "
          "(2); +1000 models; SERVER 500 \"HTTP 500\"" },
        { { .max_retries = 2, .retry_window_ms = 5000 },
          { 503, 0, "Retry-After", "2", "" },
          "models; +2000 models (1); +2000 models (2); +1000 models; SERVER 503, after 2000 \"HTTP "
          "503\"" },
        { { .max_retries = 1, .retry_window_ms = 100000 },
          { 503, 0, "Retry-After", "40", "" },
          "models; +40000 models (1); +40000 models; +20000 models (1); SERVER 503, after 40000 "
          "\"HTTP 503\"" },
        { { .max_retries = TINKC_ZERO, .retry_window_ms = 100000 },
          { 429, 0, "Retry-After-Ms", "20", "" },
          "models; +1000 models; +2000 models; +4000 models; +8000 models; +16000 models; +30000 "
          "models; +30000 models; +9000 models; RATE_LIMITED 429, after 20 \"HTTP 429\"" },
        { { .max_retries = TINKC_ZERO, .retry_window_ms = 50000 },
          { 500, 0, "Retry-After", "5", "" },
          "models; +5000 models; +5000 models; +5000 models; +8000 models; +16000 models; +11000 "
          "models; SERVER 500, after 5000 \"HTTP 500\"" },
        { { .max_retries = 3, .retry_window_ms = TINKC_ZERO },
          { 409, 0, NULL, NULL, "" },
          "models; CONFLICT 409 \"HTTP 409\"" },
        { { .no_retries = true },
          { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL },
          "models; CONNECTION \"connection refused\"" },
        { { .max_retries = 1, .retry_window_ms = TINKC_FOREVER, .operation_timeout_ms = 30000 },
          { 408, 0, NULL, NULL, "" },
          "models; +500 models (1); +1000 models; +500 models (1); +2000 models; +500 models (1); "
          "+4000 models; +500 models (1); +8000 models; +500 models (1); +12500 DEADLINE "
          "\"capabilities_get: not complete within its time\"" },
        { { .max_retries = 1, .retry_window_ms = 4000 },
          { 0, TINKC_FAULT_SILENT, NULL, NULL, NULL },
          "models; +60000 NET_TIMEOUT \"no answer within the idle timeout\"" },
    };
    for (size_t i = 0; i < LEN(rows); i++) {
        scene *s = begin(&rows[i].o);
        answer_always_with(s, MODELS, &rows[i].a);
        complete(s, "", tinkc_capabilities_get(scene_client(s), scene_err(s)));
        EXPECT_ROW(s, i, rows[i].seen);
        scene_end(s);
    }
}

/* By default: eleven attempts, within 300 s. */
TEST(the_usual_layers)
{
    scene *s = begin(&quiet);
    answer_always(s, API "healthz", 500, "");
    complete(s, "", tinkc_health_check(scene_client(s), scene_err(s)));
    EXPECT(s, "healthz; +500 healthz (1); +1000 healthz (2); +2000 healthz (3); +4000 healthz (4); "
              "+8000 healthz (5); +10000 healthz (6); +10000 healthz (7); +10000 healthz (8); "
              "+10000 healthz (9); +10000 healthz (10); SERVER 500 \"HTTP 500\"");
    answer_always(s, MODELS, 500, "");
    int64_t began = tinkc_mock_request_ms(scene_mock(s), tinkc_mock_count(scene_mock(s), NULL) - 1);
    tinkc_future *f = follow(s, "", tinkc_capabilities_get(scene_client(s), scene_err(s)));
    finish(s, f, 400000);
    assert_true(tinkc_future_done(f));
    assert_int_equal(tinkc_mock_request_ms(scene_mock(s), tinkc_mock_count(scene_mock(s), NULL) - 1) - began, 300000);
    scene_end(s);
}

/* Sixteen 400s without a body are stale connections; the next is the service's word. */
TEST(sixteen_400s_without_a_body_are_stale_connections)
{
    scene *s = begin(&quiet);
    answer_always(s, MODELS, 400, "");
    complete(s, "", tinkc_capabilities_get(scene_client(s), scene_err(s)));
    EXPECT(s, "models; +1000 models; +2000 models; +4000 models; +8000 models; +16000 models; "
              "+30000 models; +30000 models; +30000 models; +30000 models; +30000 models; +30000 "
              "models; +30000 models; +30000 models; +29000 models; CONNECTION \"HTTP 400 without "
              "a body: the connection is stale\"");
    scene_end(s);
}

/* While it waits, a call says why, for how long and how often it has failed; each repetition is an event and a line of the log. */
TEST(a_repetition_is_seen)
{
    scene *s = begin(&quiet);
    scene_shows(s, SHOW_EVENTS | SHOW_STATUS | SHOW_LOGS);
    answer(s, MODELS, 503, "{\"detail\":\"busy\\nnow\"}");
    answer_with(s, MODELS, &(outcome){ 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL });
    complete(s, "call", tinkc_capabilities_get(scene_client(s), scene_err(s)));
    EXPECT(s, "models; [retry status 503 attempt 1 wait 500 left 300000: HTTP 503: busy now]; debug: GET "
              "/api/v1/get_server_capabilities: HTTP 503: busy now; next try in 500 ms; call is at stage "
              "1, queue 0, 0 of 1, SERVER x1 for 0, \"HTTP 503: busy now, next try in 0.5 s\"; +500 "
              "models (1); [retry attempt 2 elapsed 500 wait 1000 left 299500: connection refused]; "
              "debug: GET /api/v1/get_server_capabilities: connection refused; next try in 1000 ms; call "
              "is at stage 1, queue 0, 0 of 1, CONNECTION x2 for 500, \"connection refused, next try in "
              "1.0 s\"; +1000 models (2); call is at stage 4, queue 0, 1 of 1, \"done\"; call: done");
    scene_shows(s, SHOW_ERROR_BODY);
    answer(s, MODELS, 403, "{\"detail\":\"no\",\"more\":1}");
    complete(s, "call", tinkc_capabilities_get(scene_client(s), scene_err(s)));
    EXPECT(s, "models; call: FORBIDDEN 403 \"HTTP 403: no\" {\"detail\":\"no\",\"more\":1}");
    scene_end(s);
}

/* The window's repetitions say how much of it is left. */
TEST(a_repetition_of_the_window_is_seen)
{
    const tinkc_client_options o = { .max_retries = TINKC_ZERO, .retry_window_ms = 10000 };
    scene *s = begin(&o);
    scene_shows(s, SHOW_EVENTS);
    answer(s, MODELS, 500, "");
    answer(s, MODELS, 503, "");
    complete(s, "call", tinkc_capabilities_get(scene_client(s), scene_err(s)));
    EXPECT(s, "models; [retry status 500 attempt 1 wait 1000 left 10000: HTTP 500]; +1000 models; "
              "[retry status 503 attempt 2 elapsed 1000 wait 2000 left 9000: HTTP 503]; +2000 "
              "models; call: done");
    scene_end(s);
}

/* The moment that a date names, in any zone; the mock's time began at 2026-01-01 00:00:00 UTC. */
TEST(a_retry_header_may_be_a_date)
{
    static const struct {
        const char *date, *seen;
    } rows[] = { { "Thu, 01 Jan 2026 00:00:09 GMT", "healthz; +9000 healthz (1); done" },
                 { "Thu, 01 Jan 2026 01:00:04 +0100", "healthz; +4000 healthz (1); done" },
                 { "Wed, 31 Dec 2025 23:59:00 GMT", "healthz; +500 healthz (1); done" } };
    for (size_t i = 0; i < LEN(rows); i++) {
        scene *s = begin(&quiet);
        answer_with(s, API "healthz", &(outcome){ 503, 0, "Retry-After", rows[i].date, "" });
        complete(s, "", tinkc_health_check(scene_client(s), scene_err(s)));
        EXPECT_ROW(s, i, rows[i].seen);
        scene_end(s);
    }
}

/* That nobody is there is a warning, at the first attempt; later attempts are details. */
TEST(an_unreachable_service_is_said_once)
{
    scene *s = begin(&quiet);
    scene_shows(s, SHOW_LOGS);
    for (int i = 0; i < 2; i++)
        answer_with(s, MODELS, &(outcome){ 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL });
    complete(s, "call", tinkc_capabilities_get(scene_client(s), scene_err(s)));
    EXPECT(s, "models; warning: GET /api/v1/get_server_capabilities: connection refused; next try in "
              "500 ms; +500 models (1); debug: GET /api/v1/get_server_capabilities: connection "
              "refused; next try in 1000 ms; +1000 models (2); call: done");
    scene_end(s);
}

/* 402: pauses of 5 s, as long as the settings or the options say. */
TEST(a_402_pauses_for_as_long_as_the_settings_or_options_allow)
{
#define SETTING(s) "{\"billing_exception_max_pause_duration_sec\":" s "}"
    static const struct {
        tinkc_client_options o;
        const char *config, *seen;
    } rows[] = {
        { { 0 },
          SETTING("12"),
          "models; +5000 models; +5000 models; +5000 models; BILLING 402 \"HTTP 402: no credit "
          "left\"" },
        { { 0 }, SETTING("0"), "models; BILLING 402 \"HTTP 402: no credit left\"" },
        { { .billing_pause_ms = 7000 },
          "{}",
          "models; +5000 models; +5000 models; BILLING 402 \"HTTP 402: no credit left\"" },
        { { .billing_pause_ms = 7000 },
          SETTING("3"),
          "models; +5000 models; +5000 models; BILLING 402 \"HTTP 402: no credit left\"" },
        { { .billing_pause_ms = TINKC_ZERO }, "{}", "models; BILLING 402 \"HTTP 402: no credit left\"" },
        { { .billing_pause_ms = TINKC_FOREVER, .operation_timeout_ms = 12000 },
          "{}",
          "models; +5000 models; +5000 models; +2000 DEADLINE \"capabilities_get: not complete "
          "within its time\"" },
        { { .no_retries = true }, "{}", "models; BILLING 402 \"HTTP 402: no credit left\"" },
    };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    answer_always(s, MODELS, 402, "{\"detail\":\"no credit left\"}");
    for (size_t i = 0; i < LEN(rows); i++) {
        answer_always(s, CONFIG, 200, rows[i].config);
        scene_renew(s, &rows[i].o);
        complete(s, "", tinkc_health_check(scene_client(s), scene_err(s)));
        scene_forget(s);
        tinkc_future *f = follow(s, "", tinkc_capabilities_get(scene_client(s), scene_err(s)));
        finish(s, f, 20000);
        EXPECT_ROW(s, i, rows[i].seen);
    }
    scene_end(s);
}

/* The call continues as soon as the account can pay. Pauses of a client count together; five minutes after the last one they
 * begin again. */
TEST(billing_pauses_count_together)
{
    static const tinkc_client_options o = { .billing_pause_ms = 11000 };
    static const struct {
        int64_t later_ms;
        const char *seen;
    } rows[] = { { 0, "models; +5000 models; +5000 models; done" },
                 { 0, "models; +5000 models; BILLING 402 \"HTTP 402: no credit left\"" },
                 { 285000, "models; BILLING 402 \"HTTP 402: no credit left\"" },
                 { 1, "models; +5000 models; +5000 models; done" },
                 { 0, "models; +5000 models; BILLING 402 \"HTTP 402: no credit left\"" } };
    scene *s = begin(&o);
    for (size_t i = 0; i < LEN(rows); i++) {
        pass(s, rows[i].later_ms);
        scene_forget(s);
        for (int k = 0; k < 2; k++)
            answer(s, MODELS, 402, "{\"detail\":\"no credit left\"}");
        complete(s, "", tinkc_capabilities_get(scene_client(s), scene_err(s)));
        EXPECT_ROW(s, i, rows[i].seen);
        use_up(s, MODELS);
    }
    scene_end(s);
}

/* Each pause is an event; the log has one line a minute. */
TEST(a_billing_pause_is_seen)
{
    static const tinkc_client_options o = { .billing_pause_ms = 11000 };
    scene *s = begin(&o);
    scene_shows(s, SHOW_EVENTS | SHOW_LOGS);
    for (int k = 0; k < 4; k++)
        answer(s, MODELS, 402, "{\"detail\":\"no credit left\"}");
    complete(s, "", tinkc_capabilities_get(scene_client(s), scene_err(s)));
    EXPECT(s, "models; [billing status 402 wait 5000 left 11000: HTTP 402: no credit left]; [retry "
              "status 402 attempt 1 wait 5000 left -1: HTTP 402: no credit left]; warning: paused "
              "because of billing: HTTP 402: no credit left; debug: GET "
              "/api/v1/get_server_capabilities: HTTP 402: no credit left; next try in 5000 ms; +5000 "
              "models; [billing status 402 elapsed 5000 wait 5000 left 6000: HTTP 402: no credit "
              "left]; [retry status 402 attempt 2 elapsed 5000 wait 5000 left -1: HTTP 402: no credit "
              "left]; debug: GET /api/v1/get_server_capabilities: HTTP 402: no credit left; next try "
              "in 5000 ms; +5000 models; [billing status 402 elapsed 10000 wait 5000 left 1000: HTTP "
              "402: no credit left]; [retry status 402 attempt 3 elapsed 10000 wait 5000 left -1: "
              "HTTP 402: no credit left]; debug: GET /api/v1/get_server_capabilities: HTTP 402: no "
              "credit left; next try in 5000 ms; +5000 models; error: paused for 15 s because of "
              "billing: giving up; BILLING 402 \"HTTP 402: no credit left\"");
    scene_end(s);
}

TEST(attempts_begin_again_after_a_billing_pause)
{
    static const int32_t statuses[] = { 500, 500, 402, 500, 500 };
    scene *s = begin(&quiet);
    for (size_t i = 0; i < LEN(statuses); i++)
        answer(s, MODELS, statuses[i], "");
    complete(s, "", tinkc_capabilities_get(scene_client(s), scene_err(s)));
    EXPECT(s, "models; +500 models (1); +1000 models (2); +5000 models; +500 models (1); +1000 "
              "models (2); done");
    scene_end(s);
}

/* A line a minute, counted from the last one. */
TEST(a_billing_pause_is_logged_each_minute)
{
    static const struct {
        int64_t later_ms;
        const char *seen;
    } rows[] = { { 0, "models; warning: paused because of billing: HTTP 402; +5000 models; done" },
                 { 55000, "models; +5000 models; done" },
                 { 55001, "models; warning: paused because of billing: HTTP 402; +5000 models; done" } };
    const tinkc_client_options o = { .billing_pause_ms = TINKC_FOREVER, .log_level = TINKC_LOG_WARN };
    scene *s = begin(&o);
    scene_shows(s, SHOW_LOGS);
    for (size_t i = 0; i < LEN(rows); i++) {
        pass(s, rows[i].later_ms);
        scene_forget(s);
        answer(s, MODELS, 402, "");
        complete(s, "", tinkc_capabilities_get(scene_client(s), scene_err(s)));
        EXPECT_ROW(s, i, rows[i].seen);
    }
    scene_end(s);
}

/* Notices of the service are logged once a minute, at their level and without control characters; those of others are not. */
TEST(a_deprecation_notice_is_logged_each_minute)
{
#define NOTE "x-deprecation-note"
    const struct {
        const char *path;
        int64_t later_ms;
        const char *const *headers;
        const char *seen;
    } rows[] = {
        { "/x", 0, PAIRS("X-Deprecation-Note", "load\x1b[1m goes"),
          "/x {GET} {pool rest}; warning: deprecation notice: load [1m goes; done" },
        { "/x", 59999, PAIRS(NOTE, "load\x1b[1m goes"), "/x {GET} {pool rest}; done" },
        { "/x", 1, PAIRS(NOTE, "load\x1b[1m goes"),
          "/x {GET} {pool rest}; warning: deprecation notice: load [1m goes; done" },
        { "/x", 0, PAIRS(NOTE, " "), "/x {GET} {pool rest}; done" },
        { "/x", 0, PAIRS(NOTE, "gone", "x-deprecation-level", " Error "),
          "/x {GET} {pool rest}; error: deprecation notice: gone; done" },
        { "https://other.test/x", 70000, PAIRS(NOTE, "gone"), "/x {Accept: application/json}; done" },
    };
    scene *s = begin(&quiet);
    scene_shows(s, SHOW_LOGS);
    for (size_t i = 0; i < LEN(rows); i++) {
        pass(s, rows[i].later_ms);
        scene_forget(s);
        answer_headers(s, "/x", 200, rows[i].headers, "ok");
        complete(s, "", tinkc_http_call(scene_client(s), &(tinkc_http_options){ .path = rows[i].path }, scene_err(s)));
        EXPECT_ROW(s, i, rows[i].seen);
    }
    scene_end(s);
}
