/* test_client_defaults.c - what a client has when nothing is said, and what it keeps of what is said.
 *
 * Looks into the client: some defaults (a gigabyte of answer, a thousand connections) are too large to be met. */
#include "client/core/client_priv.h"
#include "support/client/api_support.h"

static const char *const variables[] = { "TINKER_TELEMETRY", "TINKER_LOG",  "TINKER_API_KEY",
                                         "TINKER_BASE_URL",  "HTTP_PROXY",  "http_proxy",
                                         "HTTPS_PROXY",      "https_proxy", "ALL_PROXY",
                                         "all_proxy",        NULL };

static tinkc_error err;

static int setup(void **state)
{
    (void)state;
    err = (tinkc_error){ 0 };
    for (size_t i = 0; variables[i]; i++)
        unsetenv(variables[i]);
    return 0;
}

TEST_WITH(nothing_is_said, setup, NULL)
{
    tinkc_client *c = tinkc_client_new(&(tinkc_client_options){ .api_key = "tml-k" }, &err);
    assert_ok(&err);
    assert_int_equal(c->connect_timeout_ms, 5000);
    assert_int_equal(c->idle_timeout_ms, 60000);
    assert_int_equal(c->retry_window_ms, 300000);
    assert_int_equal(c->operation_timeout_ms, 0);
    assert_int_equal(c->max_retries, 10);
    assert_int_equal(c->max_response_bytes, 1 << 30);
    assert_true(c->telemetry_on);
    assert_false(c->no_retries);
    assert_false(c->conflict_recovery);
    assert_null(c->log.fn);
    assert_int_equal(c->log.level, TINKC_LOG_WARN);
    assert_string_equal(tinkc_client_base_url(c), "https://tinker.thinkingmachines.dev/services/tinker-prod/");
    tinkc_client_free(c);
}

TEST_WITH(what_is_said_is_kept, setup, NULL)
{
    tinkc_client *c = tinkc_client_new(&(tinkc_client_options){ .api_key = "tml-k",
                                                                .connect_timeout_ms = 1,
                                                                .idle_timeout_ms = 2,
                                                                .retry_window_ms = 3,
                                                                .operation_timeout_ms = 4,
                                                                .max_retries = 5,
                                                                .max_response_bytes = 6,
                                                                .no_retries = true,
                                                                .conflict_recovery = true },
                                       &err);
    assert_ok(&err);
    assert_int_equal(c->connect_timeout_ms, 1);
    assert_int_equal(c->idle_timeout_ms, 2);
    assert_int_equal(c->retry_window_ms, 3);
    assert_int_equal(c->operation_timeout_ms, 4);
    assert_int_equal(c->max_retries, 5);
    assert_int_equal(c->max_response_bytes, 6);
    assert_true(c->no_retries);
    assert_true(c->conflict_recovery);
    tinkc_client_free(c);
}

/* $TINKER_LOG: the level, in any case, and the lines on stderr; any other word is ignored. */
TEST_WITH(the_level_of_the_log, setup, NULL)
{
    static const struct {
        const char *value;
        int32_t option, level;
        bool prints;
    } rows[] = {
        { "debug", 0, TINKC_LOG_DEBUG, true },
        { "info", 0, TINKC_LOG_INFO, true },
        { "warn", 0, TINKC_LOG_WARN, true },
        { "error", 0, TINKC_LOG_ERROR, true },
        { "Info", 0, TINKC_LOG_INFO, true },
        { "ERROR", 0, TINKC_LOG_ERROR, true },
        { "loud", 0, TINKC_LOG_WARN, false },
        { "", 0, TINKC_LOG_WARN, false },
        { NULL, 0, TINKC_LOG_WARN, false },
        { NULL, TINKC_LOG_DEBUG, TINKC_LOG_DEBUG, false },
        { "error", TINKC_LOG_INFO, TINKC_LOG_INFO, true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].value)
            setenv("TINKER_LOG", rows[i].value, 1);
        else
            unsetenv("TINKER_LOG");
        tinkc_client *c =
            tinkc_client_new(&(tinkc_client_options){ .api_key = "tml-k", .log_level = rows[i].option }, &err);
        assert_ok(&err);
        if (c->log.level != rows[i].level || (c->log.fn != NULL) != rows[i].prints)
            fail_msg("row %zu: level %d", i, (int)c->log.level);
        tinkc_client_free(c);
    }
    unsetenv("TINKER_LOG");
}

/* $TINKER_TELEMETRY counts only where the option says nothing; on is the default, but for other transports. */
TEST_WITH(when_telemetry_is_on, setup, NULL)
{
    static const struct {
        const char *value;
        int32_t option;
        bool http, mock;
    } rows[] = {
        { NULL, 0, true, false },
        { "", 0, false, false },
        { "0", 0, false, false },
        { "1", 0, true, true },
        { "TRUE", 0, true, true },
        { "yes", 0, true, true },
        { "On", 0, true, true },
        { "2", 0, false, false },
        { "0", TINKC_TELEMETRY_ON, true, true },
        { "1", TINKC_TELEMETRY_OFF, false, false },
    };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_EMPTY, &err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].value)
            setenv("TINKER_TELEMETRY", rows[i].value, 1);
        else
            unsetenv("TINKER_TELEMETRY");
        tinkc_client_options o = { .api_key = "tml-k", .telemetry = rows[i].option };
        tinkc_client *http = tinkc_client_new(&o, &err), *other = mock_client(mock, &o, &err);
        assert_ok(&err);
        if (http->telemetry_on != rows[i].http || other->telemetry_on != rows[i].mock)
            fail_msg("row %zu", i);
        tinkc_client_free(http);
        tinkc_client_free(other);
    }
    unsetenv("TINKER_TELEMETRY");
    tinkc_mock_free(mock);
}

TEST_WITH(names_of_programs, setup, NULL)
{
    static const char *const rows[][2] = { { NULL, "tinkc/" TINKC_VERSION }, { "mine/1", "mine/1" } };
    for (size_t i = 0; i < 2; i++) {
        tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
        tinkc_client *c = mock_client(mock, &(tinkc_client_options){ .user_agent = rows[i][0] }, &err);
        assert_true(tinkc_client_connect(c, PATIENCE_MS, &err));
        assert_string_equal(request_header(nth_request(mock, "/api/v1/client/config", 0), "User-Agent"), rows[i][1]);
        tinkc_client_free(c);
        tinkc_mock_free(mock);
    }
}

/* A seed counts if has_seed says so, zero as well; it has 63 bits. */
TEST_WITH(seeds_of_a_lora, setup, NULL)
{
    static const struct {
        bool has;
        uint64_t seed;
        const char *sent; /* NULL = refused, "" = none */
    } rows[] = { { false, 0, "" },
                 { false, 7, "" },
                 { true, 0, "\"seed\":0" },
                 { true, INT64_MAX, "\"seed\":9223372036854775807" },
                 { true, (uint64_t)INT64_MAX + 1, NULL } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error why = { 0 };
        tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
        tinkc_client *c = mock_client(mock, NULL, &err);
        tinkc_trainer *t = tinkc_trainer_new(
            c, &(tinkc_lora_options){ .base_model = "mock/nano", .has_seed = rows[i].has, .seed = rows[i].seed }, &why);
        assert_int_equal(why.code, rows[i].sent ? 0 : TINKC_E_ARGUMENT);
        if (t) {
            const char *body = (const char *)nth_request(mock, "/api/v1/create_model", 0)->body.data;
            const char *seed = strstr(body, "\"seed\":");
            bool none = !seed || strncmp(seed, "\"seed\":null", 11) == 0;
            if (rows[i].sent[0] ? !strstr(body, rows[i].sent) : !none)
                fail_msg("row %zu: %s", i, body);
        }
        tinkc_trainer_free(t);
        tinkc_client_free(c);
        tinkc_mock_free(mock);
    }
}

/* An answer may have exactly so many bytes, in however many pieces. */
TEST_WITH(the_largest_answer, setup, NULL)
{
    static const struct {
        size_t len;
        int32_t code;
    } rows[] = { { 1000, 0 }, { 1001, TINKC_E_BAD_RESPONSE } };
    char body[1001];
    memset(body, ' ', sizeof body);
    memcpy(body, "{\"status\":\"ok\"}", strlen("{\"status\":\"ok\"}"));
    for (size_t i = 0; i < 2; i++)
        for (int32_t drip = 0; drip < 2; drip++) {
            tinkc_error why = { 0 };
            tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
            tinkc_client *c = mock_client(mock, &(tinkc_client_options){ .max_response_bytes = 1000 }, &err);
            tinkc_mock_always(
                mock, NULL, "/api/v1/healthz",
                &(tinkc_mock_answer){
                    .body = body, .body_len = rows[i].len, .fault = drip ? TINKC_FAULT_DRIP : 0, .drip_ms = 1 },
                &err);
            tinkc_future *f = tinkc_health_check(c, &err);
            assert_true(run_until_done(mock, f, 60000));
            (void)tinkc_future_wait(f, 0, &why);
            assert_int_equal(why.code, rows[i].code);
            tinkc_future_free(f);
            tinkc_client_free(c);
            tinkc_mock_free(mock);
        }
}
