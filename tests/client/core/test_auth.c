/* test_auth.c - keys, credential commands, tokens and their renewal, snapshots. */
#include <time.h>
#include <unistd.h>

#include "support/client/api_support.h"

#define CONFIG_JWT "{\"pjwt_auth_enabled\":true}"
#define CONFIG_CMD "{\"pjwt_auth_enabled\":true,\"credential_default_source\":\"credential_cmd\"}"
enum { WALL_BEGIN_S = 1767225600 };

/* {"jwt": ...} of a token that ends so many seconds after the mock's beginning. */
static const char *token_answer(const char *name, int64_t ends_s)
{
    char claims[200];
    (void)snprintf(claims, sizeof claims,
                   "{\"sub\":\"user:%s\",\"email\":\"a@b.c\",\"iss\":\"passport-x\",\"exp\":%lld,"
                   "\"org_id\":\"o-1\"}",
                   name, (long long)(WALL_BEGIN_S + ends_s));
    return token_answer_of(claims, name);
}

static tinkc_mock *new_mock(const char *config, tinkc_error *err)
{
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, err);
    if (config)
        tinkc_mock_always(mock, NULL, "/api/v1/client/config", &(tinkc_mock_answer){ .body = config }, err);
    return mock;
}

static void end(tinkc_client *client, tinkc_mock *mock)
{
    tinkc_client_free(client);
    tinkc_mock_free(mock);
}

TEST(credentials_are_checked_at_once)
{
    unsetenv("TINKER_API_KEY");
    unsetenv("TINKER_CREDENTIAL_CMD");
    tinkc_error err = { 0 };
    assert_null(tinkc_client_new(NULL, &err));
    assert_int_equal(err.code, TINKC_E_NO_CREDENTIAL);
    err = (tinkc_error){ 0 };
    assert_null(tinkc_client_new(&(tinkc_client_options){ .api_key = "sk-1" }, &err));
    assert_int_equal(err.code, TINKC_E_BAD_CREDENTIAL);
    assert_null(strstr(err.message, "sk-1"));
}

/* An exported sampler takes the token along: its copy asks for none until that one is nearly over. */
TEST(a_copy_uses_the_token)
{
    tinkc_error err = { 0 };
    tinkc_text text = { 0 };
    tinkc_mock *mock = new_mock(CONFIG_JWT, &err);
    tinkc_mock_once(mock, NULL, "/api/v1/auth/token", &(tinkc_mock_answer){ .body = token_answer("one", 3600) }, &err);
    tinkc_mock_always(mock, NULL, "/api/v1/auth/token", &(tinkc_mock_answer){ .body = token_answer("two", 9999999) },
                      &err);
    tinkc_client *client = mock_client(mock, &(tinkc_client_options){ .api_key = "tml-secret" }, &err);
    tinkc_sampler *original = tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &err);
    tinkc_client_options o = { .transport = tinkc_mock_transport(mock), .clock = tinkc_mock_clock(mock) };
    tinkc_sampler *copy = tinkc_sampler_import(tinkc_sampler_export(original, &text, &err), &o, &err);
    assert_ok(&err);
    tinkc_mock_forget(mock);
    tinkc_future *f = tinkc_logprobs(copy, (const int32_t[]){ 1, 2, 3 }, 3, &err);
    assert_true(run_until_done(mock, f, 60000));
    assert_int_equal(tinkc_mock_count(mock, "/api/v1/auth/token"), 0);
    assert_non_null(strstr(request_header(nth_request(mock, "/api/v1/asample", 0), "X-API-Key"), ".one"));
    tinkc_future_free(f);
    tinkc_sampler_free(copy);
    tinkc_sampler_free(original);
    tinkc_text_free(&text);
    end(client, mock);
}

static int32_t connect_code(const char *config, const tinkc_client_options *o, int32_t status)
{
    tinkc_error err = { 0 };
    tinkc_mock *mock = new_mock(config, &err);
    if (status)
        tinkc_mock_always(mock, NULL, "/api/v1/auth/token", &(tinkc_mock_answer){ .status = status, .body = "{}" },
                          &err);
    tinkc_client *client = mock_client(mock, o, &err);
    assert_ok(&err);
    (void)tinkc_client_connect(client, PATIENCE_MS, &err);
    end(client, mock);
    return err.code;
}

TEST(exchange_failures_have_their_codes)
{
    tinkc_client_options key = { .api_key = "tml-s" };
    assert_int_equal(connect_code(CONFIG_JWT, &key, 401), TINKC_E_AUTH);
    assert_int_equal(connect_code(CONFIG_JWT, &key, 200), TINKC_E_TOKEN); /* {} holds none */
    assert_int_equal(connect_code("{\"pjwt_auth_enabled\":7}", &key, 0), TINKC_E_BAD_RESPONSE);
    assert_int_equal(connect_code(CONFIG_CMD, &key, 0), TINKC_E_CREDENTIAL_CMD);
}

TEST(the_output_of_a_credential_command_is_the_key)
{
    tinkc_error err = { 0 };
    tinkc_mock *mock = new_mock(CONFIG_CMD, &err);
    tinkc_client_options o = { .credential_cmd = "echo '  tml-from-command '" };
    tinkc_client *client = mock_client(mock, &o, &err);
    assert_true(tinkc_client_connect(client, PATIENCE_MS, &err));
    assert_ok(&err);
    assert_string_equal(request_header(nth_request(mock, "/api/v1/auth/token", 0), "X-API-Key"), "tml-from-command");
    end(client, mock);
    o.credential_cmd = "echo tml-x; exit 3"; /* whatever it printed */
    assert_int_equal(connect_code(CONFIG_CMD, &o, 0), TINKC_E_CREDENTIAL_CMD);
    o.credential_cmd = "true";
    assert_int_equal(connect_code(CONFIG_CMD, &o, 0), TINKC_E_CREDENTIAL_CMD);
    o.credential_cmd = "echo a; echo b";
    assert_int_equal(connect_code(CONFIG_CMD, &o, 0), TINKC_E_CREDENTIAL_CMD);
    /* Without an exchange only a key will do. */
    o.credential_cmd = "echo tml-x";
    assert_int_equal(connect_code(NULL, &o, 0), TINKC_E_NO_CREDENTIAL);
}

TEST(a_slow_command_does_not_outlive_its_client)
{
    tinkc_error err = { 0 };
    tinkc_mock *mock = new_mock(CONFIG_CMD, &err);
    tinkc_client_options o = { .credential_cmd = "sleep 20; echo tml-late" };
    tinkc_client *client = mock_client(mock, &o, &err);
    assert_false(tinkc_client_connect(client, 20, &err));
    assert_int_equal(err.code, TINKC_E_TIMEOUT);
    end(client, mock); /* kills it; must not take 20 s */
}

/* One more byte is none, and a command that never ends its output is stopped. */
TEST(a_credential_has_at_most_64_KiB)
{
    tinkc_client_options o = { .credential_cmd = "head -c 65535 /dev/zero | tr '\\0' a; echo" };
    assert_int_equal(connect_code(CONFIG_CMD, &o, 0), TINKC_OK);
    o.credential_cmd = "head -c 65536 /dev/zero | tr '\\0' a; echo";
    assert_int_equal(connect_code(CONFIG_CMD, &o, 0), TINKC_E_CREDENTIAL_CMD);
    o.credential_cmd = "yes tml-x | tr -d '\\n'";
    assert_int_equal(connect_code(CONFIG_CMD, &o, 0), TINKC_E_CREDENTIAL_CMD);
}

/* What it has printed is all there will be; how long it lingers is its own business. */
TEST(a_command_that_lingers_is_not_waited_for)
{
    tinkc_error err = { 0 };
    tinkc_mock *mock = new_mock(CONFIG_CMD, &err);
    tinkc_client_options o = { .credential_cmd = "echo tml-early; exec >&-; sleep 3600" };
    tinkc_client *client = mock_client(mock, &o, &err);
    assert_true(tinkc_client_connect(client, PATIENCE_MS, &err));
    assert_string_equal(request_header(nth_request(mock, "/api/v1/auth/token", 0), "X-API-Key"), "tml-early");
    end(client, mock); /* waiting for the command would outlast the test's own limit */
}

/* Its exit status counts, although it comes a moment after the end of its output. */
TEST(a_command_that_fails_after_its_output_has_failed)
{
    tinkc_error err = { 0 };
    tinkc_mock *mock = new_mock(CONFIG_CMD, &err);
    tinkc_client_options o = { .credential_cmd = "echo tml-half; exec >&-; sleep 0.1; exit 3" };
    tinkc_client *client = mock_client(mock, &o, &err);
    assert_false(tinkc_client_connect(client, PATIENCE_MS, &err));
    assert_int_equal(err.code, TINKC_E_CREDENTIAL_CMD);
    assert_int_equal(tinkc_mock_count(mock, "/api/v1/auth/token"), 0);
    end(client, mock);
}

/* Telemetry waits for the command while the settings arrive that put tokens in its place; then the
 * client ends. A waiting call must be found where it began to wait. */
TEST(the_way_to_a_credential_changes_while_one_waits)
{
    tinkc_error err = { 0 };
    char flag[] = "/tmp/tinkc-auth-XXXXXX", command[200];
    close(mkstemp(flag));
    unlink(flag);
    snprintf(command, sizeof command, "if [ -e %s ]; then sleep 20; fi; touch %s; echo tml-x", flag, flag);
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_mock_always(mock, NULL, "/api/v1/client/config",
                      &(tinkc_mock_answer){ .body = CONFIG_CMD, .delay_ms = 30000 }, &err);
    tinkc_client *client = mock_client(
        mock,
        &(tinkc_client_options){ .credential_cmd = command, .telemetry = TINKC_TELEMETRY_ON, .idle_timeout_ms = 60000 },
        &err);
    tinkc_future *f = tinkc_capabilities_get(client, &err);
    tinkc_mock_settle(mock, PATIENCE_MS, &err); /* the first run of the command is over */
    assert_int_equal(tinkc_mock_count(mock, NULL), 1);
    tinkc_client_report(client, "tick", NULL, TINKC_LOG_INFO, &err);
    (void)tinkc_client_connect(client, 50, &(tinkc_error){ 0 }); /* until it is queued */
    tinkc_mock_advance(mock, 10000);
    (void)tinkc_client_connect(client, 50, &(tinkc_error){ 0 }); /* telemetry waits for the second */
    tinkc_mock_advance(mock, 20000);
    (void)tinkc_client_connect(client, 50, &(tinkc_error){ 0 }); /* so does the exchange */
    assert_ok(&err);
    assert_int_equal(tinkc_mock_count(mock, NULL), 1);
    tinkc_future_free(f);
    end(client, mock);
    unlink(flag);
}

/* A token that does not say when it ends is renewed each minute, whatever the one before it said. */
TEST(a_token_without_an_end_is_renewed_each_minute)
{
    tinkc_error err = { 0 };
    tinkc_mock *mock = new_mock(CONFIG_JWT, &err);
    tinkc_mock_once(mock, NULL, "/api/v1/auth/token", &(tinkc_mock_answer){ .body = token_answer("one", 3600) }, &err);
    tinkc_mock_always(mock, NULL, "/api/v1/auth/token", &(tinkc_mock_answer){ .body = "{\"jwt\":\"eyJ.no.token\"}" },
                      &err);
    tinkc_client *client = mock_client(mock, &(tinkc_client_options){ .api_key = "tml-s" }, &err);
    assert_non_null(tinkc_client_session_id(client, PATIENCE_MS, &err));
    for (size_t n = 2; n <= 4; n++) { /* five minutes before the end of the first */
        tinkc_mock_advance(mock, n == 2 ? 3300000 : 60000);
        tinkc_mock_settle(mock, PATIENCE_MS, &err);
        assert_int_equal(tinkc_mock_count(mock, "/api/v1/auth/token"), n);
    }
    assert_non_null(tinkc_client_session_id(client, PATIENCE_MS, &err));
    assert_int_equal(tinkc_mock_count(mock, "/api/v1/create_session"), 1); /* it lives on */
    assert_ok(&err);
    end(client, mock);
}

/* The next one a minute later is the retry: nobody waits for it, as for the first. */
TEST(a_renewal_that_fails_is_tried_again_after_a_minute)
{
    tinkc_error err = { 0 };
    tinkc_mock *mock = new_mock(CONFIG_JWT, &err);
    tinkc_mock_once(mock, NULL, "/api/v1/auth/token", &(tinkc_mock_answer){ .body = token_answer("one", 3600) }, &err);
    tinkc_mock_always(mock, NULL, "/api/v1/auth/token", &(tinkc_mock_answer){ .status = 503 }, &err);
    tinkc_client *client =
        mock_client(mock, &(tinkc_client_options){ .api_key = "tml-s", .max_retries = TINKC_ZERO }, &err);
    assert_true(tinkc_client_connect(client, PATIENCE_MS, &err));
    for (size_t n = 2; n <= 3; n++) {
        tinkc_mock_advance(mock, n == 2 ? 3300000 : 1);
        tinkc_mock_settle(mock, PATIENCE_MS, &err);
        assert_int_equal(tinkc_mock_count(mock, "/api/v1/auth/token"), n);
        tinkc_mock_advance(mock, 59999);
        tinkc_mock_settle(mock, PATIENCE_MS, &err);
        assert_int_equal(tinkc_mock_count(mock, "/api/v1/auth/token"), n);
    }
    assert_ok(&err);
    end(client, mock);
}

/* Where nothing is exchanged, only a passport's token says whose it is. */
TEST(a_plain_key_names_nobody)
{
    static const struct {
        const char *key, *claims;
        bool names;
    } rows[] = {
        { "tml-s", NULL, false },
        { "eyJ.no.token", NULL, false },
        { NULL, "{\"sub\":\"u\"}", false },
        { NULL, "{\"sub\":\"u\",\"iss\":null}", false },
        { NULL, "{\"sub\":\"u\",\"iss\":\"passport\"}", false },
        { NULL, "{\"sub\":\"u\",\"iss\":\"a-passport-\"}", false },
        { NULL, "{\"sub\":\"u\",\"iss\":\"passport-\"}", true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tinkc_mock *mock = new_mock(NULL, &err);
        const char *key = rows[i].key ? rows[i].key : token_of(rows[i].claims, "x");
        tinkc_client *client = mock_client(mock, &(tinkc_client_options){ .api_key = key }, &err);
        tinkc_future *who = tinkc_identity_get(client, &err);
        tinkc_future *token = tinkc_token_get(client, &err);
        assert_int_equal(tinkc_future_identity(who, PATIENCE_MS, &err) != NULL, rows[i].names);
        assert_int_equal(err.code, rows[i].names ? 0 : TINKC_E_NO_IDENTITY);
        err = (tinkc_error){ 0 };
        assert_int_equal(tinkc_future_token(token, PATIENCE_MS, &err) != NULL, rows[i].names);
        assert_int_equal(err.code, rows[i].names ? 0 : TINKC_E_NO_IDENTITY);
        tinkc_future_free(who);
        tinkc_future_free(token);
        end(client, mock);
    }
}

TEST(a_snapshot_saves_the_questions)
{
    tinkc_error err = { 0 };
    tinkc_text text = { 0 };
    tinkc_mock *mock = new_mock(CONFIG_JWT, &err);
    tinkc_mock_always(mock, NULL, "/api/v1/auth/token", &(tinkc_mock_answer){ .body = token_answer("kept", 3600) },
                      &err);
    tinkc_client_options o = { .api_key = "tml-s" };
    tinkc_client *client = mock_client(mock, &o, &err);
    assert_true(tinkc_client_connect(client, PATIENCE_MS, &err));
    o.snapshot = tinkc_client_snapshot(client, &text, &err);
    assert_ok(&err);
    assert_null(strstr(o.snapshot, "tml-s"));
    tinkc_client_free(client);
    tinkc_mock_forget(mock);
    client = mock_client(mock, &o, &err);
    assert_true(tinkc_client_connect(client, PATIENCE_MS, &err));
    assert_int_equal(tinkc_mock_count(mock, NULL), 0);
    tinkc_client_free(client);
    o.api_key = "tml-other"; /* another account asks for itself */
    client = mock_client(mock, &o, &err);
    assert_true(tinkc_client_connect(client, PATIENCE_MS, &err));
    assert_int_equal(tinkc_mock_count(mock, NULL), 2);
    tinkc_client_free(client);
    char *flag = strstr(text.data, "\"pjwt_auth_enabled\":true");
    assert_non_null(flag);
    memcpy(strchr(flag, ':'), ":1234", 5); /* settings of another make are as good as none */
    o.api_key = "tml-s";
    tinkc_mock_forget(mock);
    client = mock_client(mock, &o, &err);
    assert_ok(&err);
    assert_true(tinkc_client_connect(client, PATIENCE_MS, &err));
    assert_int_equal(tinkc_mock_count(mock, NULL), 2);
    end(client, mock);
    o.snapshot = "{\"tinkc\":9}";
    assert_null(tinkc_client_new(&o, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    tinkc_text_free(&text);
}

/* A token that came with a snapshot is used if it has more than a minute left. */
TEST(tokens_of_snapshots_must_last)
{
    static const struct {
        int64_t later_ms;
        size_t exchanges;
    } rows[] = { { 3539999, 0 }, { 3540000, 1 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tinkc_text text = { 0 };
        tinkc_mock *mock = new_mock(CONFIG_JWT, &err);
        tinkc_mock_always(mock, NULL, "/api/v1/auth/token", &(tinkc_mock_answer){ .body = token_answer("kept", 3600) },
                          &err);
        tinkc_client_options o = { .api_key = "tml-s" };
        tinkc_client *client = mock_client(mock, &o, &err);
        assert_true(tinkc_client_connect(client, PATIENCE_MS, &err));
        o.snapshot = tinkc_client_snapshot(client, &text, &err);
        tinkc_mock_settle(mock, PATIENCE_MS, &err); /* nothing of it holds the client any more */
        tinkc_client_free(client);
        tinkc_mock_forget(mock);
        tinkc_mock_advance(mock, rows[i].later_ms);
        client = mock_client(mock, &o, &err);
        assert_true(tinkc_client_connect(client, PATIENCE_MS, &err));
        assert_ok(&err);
        assert_int_equal(tinkc_mock_count(mock, "/api/v1/auth/token"), rows[i].exchanges);
        tinkc_text_free(&text);
        end(client, mock);
    }
}
