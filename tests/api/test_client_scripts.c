/* test_client_scripts.c - what a client does, request by request and word for word, on good days and bad
 * ones: start-up, heartbeats, retries, billing, tokens, telemetry, the environment. The records are in
 * tests/data/client; support/client_script.h says what they hold and how they are written. */
#include <stdlib.h>

#include "support/script_steps.h"

static void start_up(void **state)
{
    (void)state;
    tinkc_client_options o = { .api_key = "tml-key",
                               .base_url = "https://example.test/base",
                               .project_id = "p-1",
                               .tags = PAIRS("a", "b"),
                               .user_metadata = PAIRS("k", "v", "l", ""),
                               .headers = PAIRS("X-Own", "1", "user-agent", "mine",
                                                "X-Stainless-OS", "", "Accept", "text/x"),
                               .query = PAIRS("q", "1 2", "r", "a&b"),
                               .display_name = "a name",
                               .connect_timeout_ms = 1234,
                               .idle_timeout_ms = 4321 };
    script *s = script_begin("start_up", TINKC_MOCK_SERVICE, &o);
    answer_once(s, API "client/config", 503, PAIRS("Retry-After", "3"), "busy");
    answer_once(s, API "client/config", 500, NULL, "{\"detail\":\"broken\\nin two\"}");
    answer_once(s, API "client/dynamic_config", 500, PAIRS("Retry-After-Ms", "1500"), "");
    answer_once(s, API "client/dynamic_config", 429, NULL, "");
    answer_once(s, API "create_session", 502, NULL, "");
    answer_once(s, API "create_session", 200, NULL,
                "{\"type\":\"create_session\",\"session_id\":\"s-1\",\"info_message\":\"an info\","
                "\"warning_message\":\"a warning\",\"error_message\":\"an error\"}");
    tinkc_future *f = follow(
        s, "open",
        tinkc_sampler_open(script_client(s), &(tinkc_sampler_options){ .base_model = "mock/nano" },
                           script_err(s)));
    finish_it(s, f, 600000);
    note(s, "%s", tinkc_client_base_url(script_client(s)));
    note(s, "%s", tinkc_client_session_id(script_client(s), PATIENCE_MS, script_err(s)));
    f = follow(s, "health", tinkc_health_check(script_client(s), script_err(s)));
    finish_it(s, f, 1000);
    script_end(s);
}

/* What the settings may say, and what the start-up makes of it. */
static void settings(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        int32_t status;
        const char *body;
    } rows[] = {
        { API "client/config", 200, "{\"fwdbwd_max_chunk_len\":0}" },
        { API "client/config", 200, "{\"fwdbwd_max_chunk_len\":-1}" },
        { API "client/config", 200, "{\"sample_max_concurrent_requests\":0}" },
        { API "client/config", 200, "no JSON" },
        { API "client/config", 200, "" },
        { API "client/config", 404, "{\"detail\":\"nothing here\"}" },
        { API "client/config", 401, "{\"detail\":\"who are you\"}" },
        { API "client/dynamic_config", 404, "" },
        { API "client/dynamic_config", 401, "" },
        { API "client/dynamic_config", 200, "{\"refresh_interval_sec\":\"x\"}" },
        { API "client/dynamic_config", 200, "{\"refresh_interval_sec\":45}" },
        { API "client/dynamic_config", 200, "{\"refresh_interval_sec\":2}" },
        { API "client/dynamic_config", 200, "{\"refresh_interval_sec\":1000001}" },
        { API "create_session", 200, "{}" },
        { API "create_session", 403, "{\"detail\":\"no more sessions\"}" },
        { API "create_session", 409, "" },
    };
    script *s = script_begin("settings", TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        note(s, "row %zu: %s %d %s", i, rows[i].path, (int)rows[i].status, rows[i].body);
        for (int k = 0; k < (rows[i].status == 409 ? 12 : 1); k++)
            answer_once(s, rows[i].path, rows[i].status, NULL, rows[i].body);
        tinkc_future *f =
            follow(s, "open",
                   tinkc_sampler_open(script_client(s),
                                      &(tinkc_sampler_options){ .base_model = "mock/nano" },
                                      script_err(s)));
        finish_it(s, f, 200000);
        note(s, "next timer in %lld", (long long)settle(s));
        if (i == 0) { /* after a failure the next one begins again */
            f = follow(s, "again",
                       tinkc_sampler_open(script_client(s),
                                          &(tinkc_sampler_options){ .base_model = "mock/nano" },
                                          script_err(s)));
            finish_it(s, f, 1000);
        }
        script_renew(s, NULL);
    }
    script_end(s);
}

static void heartbeats(void **state)
{
    (void)state;
    script *s = script_begin("heartbeats", TINKC_MOCK_SERVICE, NULL);
    answer_always(s, API "client/dynamic_config", 200, NULL, "{\"refresh_interval_sec\":100}");
    tinkc_future *f = follow(
        s, "open",
        tinkc_sampler_open(script_client(s), &(tinkc_sampler_options){ .base_model = "mock/nano" },
                           script_err(s)));
    finish_it(s, f, 1000);
    live(s, 25000);
    note(s, "they fail");
    tinkc_mock_once(script_mock(s), NULL, API "session_heartbeat",
                    &(tinkc_mock_answer){ .status = 503, .delay_ms = 1 }, script_err(s));
    answer_always(s, API "session_heartbeat", 503, PAIRS("Retry-After", "1"),
                  "{\"detail\":\"down\"}");
    live(s, 160000);
    fault_once(s, API "session_heartbeat", TINKC_FAULT_REFUSED);
    answer_once(s, API "session_heartbeat", 200, NULL, "{}");
    live(s, 30000);
    note(s, "the settings change");
    answer_always(s, API "session_heartbeat", 200, NULL, "{}");
    answer_once(s, API "client/dynamic_config", 500, PAIRS("Retry-After", "7"), "");
    answer_once(s, API "client/dynamic_config", 200, NULL, "{\"refresh_interval_sec\":1}");
    answer_once(s, API "client/dynamic_config", 200, NULL, "bad");
    live(s, 260000);
    note(s, "the session is over");
    answer_once(s, API "session_heartbeat", 410, NULL, "{\"detail\":\"ended\"}");
    live(s, 40000);
    script_end(s);
}

static void warm_up(script *s)
{
    tinkc_future *f = follow(s, "warm-up", tinkc_health_check(script_client(s), script_err(s)));
    finish_it(s, f, 1000);
    let_go(s, f);
}

/* Each outcome once, then success: on a read with both layers, a write, and one with attempts only. */
static void outcomes_once(void **state)
{
    (void)state;
    static const char *const paths[] = { API "healthz", API "get_server_capabilities",
                                         API "sessions/s-1/project" };
    script *s = script_begin("outcomes_once", TINKC_MOCK_SERVICE,
                             &(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_OFF });
    warm_up(s);
    for (size_t i = 0; i < N_OUTCOMES; i++)
        for (size_t k = 0; k < 3; k++) {
            tinkc_client *c = script_client(s);
            tinkc_error *e = script_err(s);
            note(s, "outcome %zu: %d, fault %d, %s %s %s", i, (int)outcomes[i].status,
                 (int)outcomes[i].fault, outcomes[i].name ? outcomes[i].name : "-",
                 outcomes[i].value ? outcomes[i].value : "-",
                 outcomes[i].body ? outcomes[i].body : "-");
            answer_with(s, paths[k], &outcomes[i]);
            tinkc_future *f = k == 0   ? tinkc_health_check(c, e)
                              : k == 1 ? tinkc_capabilities_get(c, e)
                                       : tinkc_session_assign(c, "s-1", "p-2", e);
            f = follow(s, paths[k], f);
            finish_it(s, f, 4000000);
            let_go(s, f);
        }
    script_end(s);
}

/* Again and again: both layers to their ends. */
static void outcomes_always(void **state)
{
    (void)state;
    static const struct outcome rows[] = {
        { 500, 0, NULL, NULL, "" },
        { 503, 0, "Retry-After", "40", "" },
        { 429, 0, "Retry-After-Ms", "20", "" },
        { 409, 0, NULL, NULL, "" },
        { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL },
        { 400, 0, NULL, NULL, "" },
    };
    script *s = script_begin("outcomes_always", TINKC_MOCK_SERVICE,
                             &(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_OFF });
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        note(s, "row %zu", i);
        warm_up(s);
        tinkc_mock_answer a = { .status = rows[i].status,
                                .fault = rows[i].fault,
                                .headers = rows[i].name ? PAIRS(rows[i].name, rows[i].value) : NULL,
                                .body = rows[i].body };
        assert_true(tinkc_mock_always(script_mock(s), NULL, API "get_server_capabilities", &a,
                                      script_err(s)));
        assert_true(tinkc_mock_always(script_mock(s), NULL, API "healthz", &a, script_err(s)));
        tinkc_future *f =
            follow(s, "both", tinkc_capabilities_get(script_client(s), script_err(s)));
        finish_it(s, f, 4000000);
        f = follow(s, "attempts", tinkc_health_check(script_client(s), script_err(s)));
        finish_it(s, f, 4000000);
        assert_true(tinkc_mock_always(script_mock(s), NULL, API "healthz",
                                      &(tinkc_mock_answer){ .body = "{\"status\":\"ok\"}" },
                                      script_err(s)));
        static const tinkc_client_options others[] = {
            { .telemetry = TINKC_TELEMETRY_OFF, .max_retries = 2, .retry_window_ms = 5000 },
            { .telemetry = TINKC_TELEMETRY_OFF,
              .max_retries = TINKC_ZERO,
              .retry_window_ms = 100000 },
            { .telemetry = TINKC_TELEMETRY_OFF, .retry_window_ms = TINKC_ZERO },
            { .telemetry = TINKC_TELEMETRY_OFF, .no_retries = true },
            { .telemetry = TINKC_TELEMETRY_OFF,
              .retry_window_ms = TINKC_FOREVER,
              .operation_timeout_ms = 90000 },
            { 0 },
        };
        script_renew(s, &others[i]);
    }
    script_end(s);
}

static void billing(void **state)
{
    (void)state;
    static const struct {
        tinkc_client_options o;
        const char *config;
    } rows[] = {
        { { 0 }, "{\"billing_exception_max_pause_duration_sec\":12}" },
        { { 0 }, "{\"billing_exception_max_pause_duration_sec\":0}" },
        { { 0 }, "{\"billing_exception_max_pause_duration_sec\":-1}" },
        { { .billing_pause_ms = 7000 }, "{}" },
        { { .billing_pause_ms = TINKC_ZERO }, "{}" },
        { { .billing_pause_ms = TINKC_FOREVER, .operation_timeout_ms = 400000 }, "{}" },
        { { .no_retries = true }, "{}" },
    };
    script *s = script_begin("billing", TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        note(s, "row %zu", i);
        script_renew(s, &rows[i].o);
        answer_always(s, API "client/config", 200, NULL, rows[i].config);
        answer_always(s, API "get_server_capabilities", 402, NULL,
                      "{\"detail\":\"no credit left\"}");
        tinkc_future *f =
            follow(s, "refused", tinkc_capabilities_get(script_client(s), script_err(s)));
        finish_it(s, f, 100000);
        if (i ==
            5) { /* it continues as soon as the account can pay, and later pauses begin again */
            answer_always(s, API "get_server_capabilities", 200, NULL, "{\"supported_models\":[]}");
            finish_it(s, f, 100000);
            answer_once(s, API "get_server_capabilities", 402, NULL, "{\"detail\":\"again\"}");
            f = follow(s, "later", tinkc_capabilities_get(script_client(s), script_err(s)));
            finish_it(s, f, 100000);
        }
    }
    script_end(s);
}

#define CLAIMS_600                                                                                 \
    "eyJhIjoxfQ.eyJzdWIiOiJ1c2VyOmEiLCJleHAiOjE3NjcyMjYyMDB9.one" /* 600 s from the beginning */
#define CLAIMS_900  "eyJhIjoxfQ.eyJzdWIiOiJ1c2VyOmEiLCJleHAiOjE3NjcyMjY1MDB9.two"   /* 900 s */
#define CLAIMS_3600 "eyJhIjoxfQ.eyJzdWIiOiJ1c2VyOmEiLCJleHAiOjE3NjcyMjkyMDB9.three" /* an hour */
#define JWT(claims) "{\"jwt\":\"" claims "\"}"

static void tokens(void **state)
{
    (void)state;
    script *s =
        script_begin("tokens", TINKC_MOCK_SERVICE, &(tinkc_client_options){ .api_key = "tml-key" });
    tinkc_error *e = script_err(s);
    answer_always(s, API "client/config", 200, NULL, "{\"pjwt_auth_enabled\":true}");
    answer_once(s, API "auth/token", 500, PAIRS("Retry-After", "2"), "");
    answer_once(s, API "auth/token", 200, NULL, JWT(CLAIMS_600));
    answer_once(s, API "auth/token", 200, NULL, JWT(CLAIMS_900));
    answer_once(s, API "auth/token", 401, NULL, "{\"detail\":\"no\"}");
    answer_once(s, API "auth/token", 200, NULL, "{}");
    answer_once(s, API "auth/token", 200, NULL, "{\"jwt\":\"\"}");
    answer_once(s, API "auth/token", 200, NULL, JWT("opaque"));
    answer_once(s, API "auth/token", 200, NULL, JWT(CLAIMS_3600));
    tinkc_future *f = follow(s, "first", tinkc_health_check(script_client(s), e));
    finish_it(s, f, 10000);
    f = follow(s, "identity", tinkc_identity_get(script_client(s), e));
    finish_it(s, f, 10000);
    f = follow(s, "token", tinkc_token_get(script_client(s), e));
    finish_it(s, f, 10000);
    note(s, "expires at %lld", (long long)tinkc_future_token(f, 0, e)->expires_us);
    for (int i = 0; i < 9; i++) {
        note(s, "later %d", i);
        live(s, 100000);
        f = follow(s, "call", tinkc_health_check(script_client(s), e));
        finish_it(s, f, 10000);
        let_go(s, f);
    }
    live(s, 2300000);
    for (int i = 0; i < 4; i++)
        fault_once(s, API "auth/token", TINKC_FAULT_REFUSED);
    pass(s, 500000); /* too late to be renewed ahead: a call waits for it */
    f = follow(s, "late", tinkc_health_check(script_client(s), e));
    finish_it(s, f, 100000);
    tinkc_text saved = { 0 };
    note(s, "%s", tinkc_client_snapshot(script_client(s), &saved, e));
    tinkc_text_free(&saved);
    note(s, "the first exchange fails");
    static const struct outcome rows[] = {
        { 401, 0, NULL, NULL, "{\"detail\":\"no\"}" },
        { 200, 0, NULL, NULL, "{\"jwt\":\"\"}" },
        { 200, 0, NULL, NULL, "nothing" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        script_renew(s, &(tinkc_client_options){
                            .api_key = "tml-key", .max_retries = 1, .retry_window_ms = 1000 });
        answer_with(s, API "auth/token", &rows[i]);
        f = follow(s, "first", tinkc_health_check(script_client(s), e));
        finish_it(s, f, 10000);
    }
    script_renew(s, &(tinkc_client_options){
                        .api_key = "tml-key", .max_retries = 1, .retry_window_ms = 1000 });
    assert_true(tinkc_mock_always(script_mock(s), NULL, API "auth/token",
                                  &(tinkc_mock_answer){ .fault = TINKC_FAULT_REFUSED }, e));
    f = follow(s, "unreachable", tinkc_health_check(script_client(s), e));
    finish_it(s, f, 10000);
    script_end(s);
}

/* The token of somebody whose session ends so many seconds after the mock's beginning. */
static const char *token_until(int64_t ends_s)
{
    char claims[100];
    (void)snprintf(claims, sizeof claims, "{\"sub\":\"user:a\",\"exp\":%lld}",
                   (long long)(1767225600 + ends_s));
    return token_answer_of(claims, "x");
}

/* When a token is renewed ahead, and from when on a call waits for another one. */
static void lives_of_tokens(void **state)
{
    (void)state;
    static const int64_t lives_s[] = { 0, 61, 70, 100, 599, 600, 601, 900, 1200, 1300, 3600 };
    script *s = script_begin("lives_of_tokens", TINKC_MOCK_SERVICE, NULL);
    answer_always(s, API "client/config", 200, NULL, "{\"pjwt_auth_enabled\":true}");
    int64_t now_s = 0;
    for (size_t i = 0; i < sizeof lives_s / sizeof *lives_s; i++) {
        hush(s, true);
        script_renew(s, &(tinkc_client_options){ .api_key = "tml-key" });
        answer_once(s, API "auth/token", 200, NULL, token_until(now_s + lives_s[i]));
        answer_once(s, API "auth/token", 401, NULL, "no");
        answer_always(s, API "auth/token", 401, NULL, "no");
        tinkc_future *f = follow(s, "first", tinkc_health_check(script_client(s), script_err(s)));
        finish_it(s, f, 10);
        hush(s, false);
        note(s, "a token of %lld s is renewed after %lld ms", (long long)lives_s[i],
             (long long)settle(s));
        if (lives_s[i] > 60) { /* the last moment in which a call does not wait, and the next */
            hush(s, true);
            tinkc_mock_advance(script_mock(s), lives_s[i] * 1000 - 60001);
            hush(s, false);
            for (int k = 0; k < 2; k++) {
                size_t before = tinkc_mock_count(script_mock(s), API "auth/token");
                hush(s, true);
                f = follow(s, "call", tinkc_health_check(script_client(s), script_err(s)));
                let_go(s, f);
                hush(s, false);
                note(s, "%zu exchanges more",
                     tinkc_mock_count(script_mock(s), API "auth/token") - before);
                hush(s, true);
                pass(s, 1);
                hush(s, false);
            }
            hush(s, true);
            pass(s, 59999);
            hush(s, false);
            now_s += lives_s[i];
        }
        for (int k = 0; k < 2; k++) { /* what was not used */
            hush(s, true);
            f = follow(s, "rest",
                       tinkc_http_call(script_client(s),
                                       &(tinkc_http_options){ .path = API "auth/token",
                                                              .any_status = true,
                                                              .no_retries = true },
                                       script_err(s)));
            let_go(s, f);
            hush(s, false);
        }
    }
    hush(s, true);
    script_renew(s, &(tinkc_client_options){ .api_key = "tml-key" });
    answer_always(s, API "auth/token", 200, NULL, token_until(now_s + 15));
    tinkc_future *f = follow(s, "call", tinkc_health_check(script_client(s), script_err(s)));
    finish_it(s, f, 10);
    hush(s, false);
    note(s, "a token of 15 s is renewed after %lld ms", (long long)settle(s));
    script_end(s);
}

static void reports(void **state)
{
    (void)state;
    script *s = script_begin("reports", TINKC_MOCK_SERVICE,
                             &(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_ON });
    tinkc_error *e = script_err(s);
    static const char *const data[] = { NULL, "{\"a\":1}", "[]", "bad",
                                        "{\"key\":\"tml-0123456789abcdef0123456789abcdef\"}" };
    for (int32_t level = -1; level < 6; level++) {
        note(s, "level %d: %d", (int)level,
             tinkc_client_report(script_client(s), "my event", data[(level + 1) % 5], level, e));
        if (e->code)
            note(s, "%s", e->message);
        *e = (tinkc_error){ 0 };
        settle(s);
    }
    note(s, "no name: %d %d", tinkc_client_report(script_client(s), "", NULL, 3, NULL),
         tinkc_client_report(script_client(s), NULL, NULL, 3, NULL));
    live(s, 10000);
    tinkc_sampler *sampler = open_sampler(s, NULL);
    live(s, 10000);
    note(s, "the endpoint fails");
    answer_always(s, API "telemetry", 500, PAIRS("Retry-After", "30"), "");
    for (int i = 0; i < 130; i++) {
        tinkc_client_report(script_client(s), "one of many", NULL, TINKC_LOG_INFO, e);
        settle(s);
    }
    live(s, 16000);
    answer_always(s, API "telemetry", 200, NULL, "{}");
    tinkc_client_report(script_client(s), "at last", NULL, TINKC_LOG_ERROR, e);
    live(s, 12000);
    tinkc_sampler_free(sampler);
    tinkc_client_report(script_client(s), "left over", NULL, TINKC_LOG_WARN, e);
    script_end(s);
}

/* Failures of calls are reported, with what they were and whether they are repeated. */
static void reported_failures(void **state)
{
    (void)state;
    static const struct outcome rows[] = {
        { 500, 0, NULL, NULL, "{\"detail\":\"broken\"}" },
        { 403, 0, NULL, NULL, "" },
        { 429, 0, NULL, NULL, "" },
        { 404, 0, NULL, NULL, "" },
        { 408, 0, NULL, NULL, "" },
        { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL },
        { 599, 0, NULL, NULL, "" },
        { 302, 0, NULL, NULL, "" },
    };
    script *s = script_begin("reported_failures", TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        note(s, "row %zu", i);
        hush(s, true);
        script_renew(s, &(tinkc_client_options){ .telemetry = TINKC_TELEMETRY_ON,
                                                 .max_retries = TINKC_ZERO,
                                                 .retry_window_ms = 2500 });
        tinkc_sampler *sampler = open_sampler(s, NULL);
        live(s, 10000);
        hush(s, false);
        tinkc_mock_answer a = { .status = rows[i].status,
                                .fault = rows[i].fault,
                                .body = rows[i].body };
        assert_true(tinkc_mock_always(script_mock(s), NULL, API "get_server_capabilities", &a,
                                      script_err(s)));
        tinkc_future *f =
            follow(s, "call", tinkc_capabilities_get(script_client(s), script_err(s)));
        finish_it(s, f, 100000);
        live(s, 11000);
        tinkc_sampler_free(sampler);
    }
    script_end(s);
}

static void environment(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        const char *values[7];
    } rows[] = {
        { "TINKER_API_KEY", { "tml-env", "eyJ.env", "sk-no", "" } },
        { "TINKER_BASE_URL", { "https://env.test/a", "env.test", "ftp://x", "" } },
        { "TINKER_PROJECT_ID", { "p-env", "" } },
        { "TINKER_TAGS", { "a,b", " a , ,b,a,", ",", "" } },
        { "TINKER_TELEMETRY", { "1", "TRUE", "yes", "On", "0", "" } },
        { "TINKER_LOG", { "debug", "INFO", "warn", "error", "odd", "" } },
        { "CLOUDFLARE_ACCESS_CLIENT_ID", { "cf-id", "two\nlines", "" } },
        { "CLOUDFLARE_ACCESS_CLIENT_SECRET", { "cf-secret", "" } },
    };
    script *s = script_begin("environment", TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t k = 0; k < 7 && rows[i].values[k]; k++) {
            note(s, "%s=%s", rows[i].name, rows[i].values[k]);
            setenv(rows[i].name, rows[i].values[k], 1);
            for (int given = 0; given < 2; given++) {
                script_renew(s,
                             &(tinkc_client_options){
                                 .api_key = given ? "tml-given" : NULL,
                                 .base_url = given ? "https://given.test" : NULL,
                                 .project_id = given ? "p-given" : NULL,
                                 .tags = given ? PAIRS("given") : NULL,
                                 .telemetry = given ? TINKC_TELEMETRY_OFF : TINKC_TELEMETRY_DEFAULT,
                                 .headers = given ? PAIRS("CF-Access-Client-Id", "given",
                                                          "cf-access-client-secret", "")
                                                  : NULL });
                setenv(rows[i].name, "changed-later", 1); /* it is read once */
                if (script_client(s)) {
                    tinkc_client_report(script_client(s), "x", NULL, TINKC_LOG_ERROR,
                                        script_err(s));
                    tinkc_future *f = follow(
                        s, "open",
                        tinkc_sampler_open(script_client(s),
                                           &(tinkc_sampler_options){ .base_model = "mock/nano" },
                                           script_err(s)));
                    finish_it(s, f, 1000);
                }
                setenv(rows[i].name, rows[i].values[k], 1);
            }
        }
        unsetenv(rows[i].name);
    }
    script_end(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(start_up),        cmocka_unit_test(settings),
        cmocka_unit_test(heartbeats),      cmocka_unit_test(outcomes_once),
        cmocka_unit_test(outcomes_always), cmocka_unit_test(billing),
        cmocka_unit_test(tokens),          cmocka_unit_test(lives_of_tokens),
        cmocka_unit_test(reports),         cmocka_unit_test(reported_failures),
        cmocka_unit_test(environment),
    };
    unsetenv("TINKER_API_KEY");
    unsetenv("TINKER_BASE_URL");
    unsetenv("TINKER_TELEMETRY");
    unsetenv("TINKER_LOG");
    unsetenv("TINKER_TAGS");
    unsetenv("TINKER_PROJECT_ID");
    unsetenv("TINKER_CREDENTIAL_CMD");
    unsetenv("CLOUDFLARE_ACCESS_CLIENT_ID");
    unsetenv("CLOUDFLARE_ACCESS_CLIENT_SECRET");
    return cmocka_run_group_tests(tests, prime, NULL);
}
