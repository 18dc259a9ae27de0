/* test_client.c - a client's life on the mock: start-up, session, heartbeat, close. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <unistd.h>
#include <time.h>

#include "support/api_support.h"
#include "support/stub_server.h"

static void makes_no_request_before_it_must(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_client *client = mock_client(mock, NULL, &err);
    assert_ok(&err);
    assert_int_equal(tinkc_mock_count(mock, NULL), 0);
    assert_true(tinkc_client_connect(client, 5000, &err));
    assert_int_equal(tinkc_mock_count(mock, NULL), 1);
    assert_string_equal(tinkc_mock_request(mock, 0)->path, "/api/v1/client/config");
    assert_string_equal((const char *)tinkc_mock_request(mock, 0)->body.data,
                        "{\"sdk_version\":\"0.25.0\"}");
    tinkc_client_free(client);
    tinkc_mock_free(mock);
}

static void session_comes_with_heartbeat(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_client *client = mock_client(mock, NULL, &err);
    assert_string_equal(tinkc_client_session_id(client, 5000, &err), "mock-session-1");
    assert_int_equal(tinkc_mock_count(mock, "/api/v1/create_session"), 1);
    assert_int_equal(tinkc_mock_count(mock, "/api/v1/client/dynamic_config"), 1);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(tinkc_mock_settle(mock, 5000, &err), 10000);
        tinkc_mock_advance(mock, 10000);
    }
    tinkc_mock_settle(mock, 5000, &err);
    assert_int_equal(tinkc_mock_count(mock, "/api/v1/session_heartbeat"), 6);
    assert_true(tinkc_client_close(client, 1000, &err));
    assert_ok(&err);
    assert_null(tinkc_client_session_id(client, 1000, &err));
    assert_int_equal(err.code, TINKC_E_CLOSED);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
}

/* Who speaks, in the words that the service knows; a caller's own headers win, "" takes one away.
 */
static void every_request_says_who_it_is(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    static const char *const own[] = {
        "x-stainless-runtime", "mine", "X-Stainless-Async", "", "X-Team", "blue", NULL
    };
    tinkc_client *client =
        mock_client(mock, &(tinkc_client_options){ .api_key = "tml-k", .headers = own }, &err);
    assert_non_null(tinkc_client_session_id(client, 5000, &err));
    tinkc_future *f = tinkc_run_get(client, "r", TINKC_OWNED, &err);
    (void)tinkc_future_wait(f, 5000, &err);
    for (size_t i = 0; tinkc_mock_request(mock, i); i++) {
        const tinkc_request *r = tinkc_mock_request(mock, i);
        bool get = strcmp(r->method, "GET") == 0;
        assert_string_equal(request_header(r, "Accept"), "application/json");
        assert_string_equal(request_header(r, "User-Agent"), "tinkc/" TINKC_VERSION);
        assert_string_equal(request_header(r, "X-Stainless-Package-Version"), TINKC_TINKER_VERSION);
        assert_string_equal(request_header(r, "X-Stainless-OS"), "Linux");
        assert_non_null(request_header(r, "X-Stainless-Arch"));
        assert_string_equal(request_header(r, "X-Stainless-Runtime-Version"), TINKC_VERSION);
        assert_string_equal(request_header(r, "X-Stainless-Runtime"), "mine");
        assert_null(request_header(r, "X-Stainless-Async"));
        assert_string_equal(request_header(r, "X-Team"), "blue");
        assert_string_equal(request_header(r, "X-API-Key"), "tml-k");
        assert_string_equal(request_header(r, "x-stainless-retry-count"), "0");
        assert_non_null(request_header(r, "x-stainless-read-timeout"));
        assert_null(request_header(r, "Authorization"));
        assert_int_equal(request_header(r, "Content-Type") != NULL, !get);
        assert_int_equal(request_header(r, "X-Idempotency-Key") != NULL, !get);
    }
    tinkc_future_free(f);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
}

/* A rate limit of one client slows another with the same key, and none with another. Over real
 * connections: what has a transport or clock of its own shares nothing. */
typedef struct limited {
    atomic_int refused;
    atomic_llong at_ms[3];
} limited;

static int64_t real_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void serve_limited(const stub_request *r, stub_answer *a, void *user)
{
    static const char *const names[] = { "tml-same", "tml-same", "tml-other" };
    limited *l = user;
    char key[40];
    stub_header(r, "X-API-Key", key, sizeof key);
    a->body = "{}";
    if (strstr(r->path, "create_session"))
        a->body = "{\"session_id\":\"s\"}";
    else if (strstr(r->path, "dynamic_config"))
        a->body = "{\"refresh_interval_sec\":300}";
    else if (strstr(r->path, "create_sampling_session"))
        a->body = "{\"sampling_session_id\":\"p\"}";
    else if (strstr(r->path, "asample") && atomic_exchange(&l->refused, 1) == 0) {
        atomic_store(&l->at_ms[0], real_ms());
        a->status = 429;
        a->headers = "retry-after-ms: 1500\r\n";
    } else if (strstr(r->path, "asample")) {
        int who = strcmp(key, names[2]) == 0 ? 2 : 1;
        if (!atomic_load(&l->at_ms[who]))
            atomic_store(&l->at_ms[who], real_ms());
        a->body = "{\"request_id\":\"q\"}";
    } else if (strstr(r->path, "retrieve_future"))
        a->body = "{\"error\":\"enough\",\"category\":\"user\"}";
}

static void c43_a_rate_limit_holds_for_the_key(void **state)
{
    (void)state;
    static const char *const keys[] = { "tml-same", "tml-same", "tml-other" };
    tinkc_error err = { 0 }, ignored = { 0 };
    limited l = { 0 };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    tinkc_client *clients[3];
    tinkc_sampler *samplers[3];
    tinkc_future *f[3];
    stub_server *server = stub_start(NULL, serve_limited, &l);
    for (size_t i = 0; i < 3; i++) {
        clients[i] = tinkc_client_new(&(tinkc_client_options){ .api_key = keys[i],
                                                               .base_url = stub_url(server),
                                                               .telemetry = TINKC_TELEMETRY_OFF },
                                      &err);
        samplers[i] =
            tinkc_sampler_new(clients[i], &(tinkc_sampler_options){ .base_model = "m" }, &err);
    }
    assert_ok(&err);
    f[0] = tinkc_sample(samplers[0], (int32_t[]){ 1 }, 1, 1, &o, &err);
    while (!atomic_load(&l.refused) || tinkc_future_stage(f[0]) != TINKC_STAGE_QUEUED)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    for (size_t i = 1; i < 3; i++)
        f[i] = tinkc_sample(samplers[i], (int32_t[]){ 1 }, 1, 1, &o, &err);
    (void)tinkc_future_wait_all(f, 3, 20000, &ignored);
    assert_int_equal(ignored.code, TINKC_E_REQUEST_FAILED);
    int64_t first = atomic_load(&l.at_ms[0]);
    assert_true(atomic_load(&l.at_ms[1]) - first >= 1500);
    assert_true(atomic_load(&l.at_ms[2]) < atomic_load(&l.at_ms[1]));
    for (size_t i = 0; i < 3; i++) {
        tinkc_future_free(f[i]);
        tinkc_sampler_free(samplers[i]);
        tinkc_client_free(clients[i]);
    }
    stub_stop(server);
}

/* A session that is over takes no more heartbeats and is sent none. */
static void a_session_that_is_over_has_no_heartbeat(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_client *client =
        mock_client(mock, &(tinkc_client_options){ .display_name = "nightly" }, &err);
    const char *id = tinkc_client_session_id(client, 5000, &err);
    assert_non_null(strstr((const char *)nth_request(mock, "/api/v1/create_session", 0)->body.data,
                           "\"display_name\":\"nightly\""));
    tinkc_future *f = tinkc_session_finish(client, id, TINKC_FINISH_SUCCESS, NULL, &err);
    assert_true(tinkc_future_wait(f, 5000, &err));
    tinkc_mock_always(mock, NULL, "/api/v1/session_heartbeat",
                      &(tinkc_mock_answer){ .status = 410, .body = "{}" }, &err);
    for (int i = 0; i < 30; i++) {
        tinkc_mock_settle(mock, 5000, &err);
        tinkc_mock_advance(mock, 10000);
    }
    tinkc_mock_settle(mock, 5000, &err);
    assert_ok(&err);
    assert_int_equal(tinkc_mock_count(mock, "/api/v1/session_heartbeat"), 1);
    tinkc_future_free(f);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
}

/* What a client with these settings writes to stderr while a 402 pauses it: a warning, and at debug
 * level more. */
static void logged_to_stderr(const char *level, tinkc_log_fn *fn, char *out, size_t cap)
{
    tinkc_error err = { 0 };
    FILE *file = tmpfile();
    int saved = dup(STDERR_FILENO);
    assert_true(file && saved >= 0);
    if (level)
        setenv("TINKER_LOG", level, 1);
    else
        unsetenv("TINKER_LOG");
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_mock_once(mock, NULL, "/api/v1/client/config",
                    &(tinkc_mock_answer){ .status = 402, .body = "{\"detail\":\"tml-secret1\"}" },
                    &err);
    dup2(fileno(file), STDERR_FILENO);
    tinkc_client *client = mock_client(mock, &(tinkc_client_options){ .log = fn }, &err);
    unsetenv("TINKER_LOG"); /* read once */
    tinkc_future *f = tinkc_capabilities_get(client, &err);
    bool done = run_until_done(mock, f, 60000);
    dup2(saved, STDERR_FILENO);
    close(saved);
    assert_ok(&err);
    assert_true(done);
    rewind(file);
    out[fread(out, 1, cap - 1, file)] = '\0';
    fclose(file);
    tinkc_future_free(f);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
}

static void no_log(int32_t level, const char *line, void *user)
{
    (void)level, (void)line, (void)user;
}

static void logs_go_to_stderr_where_the_environment_asks(void **state)
{
    (void)state;
    char text[4096];
    logged_to_stderr(NULL, NULL, text, sizeof text);
    assert_string_equal(text, "");
    logged_to_stderr("warn", NULL, text, sizeof text);
    assert_non_null(strstr(text, "tinkc: warning: "));
    assert_null(strstr(text, "tinkc: debug: "));
    assert_null(strstr(text, "tml-secret1"));
    logged_to_stderr("DEBUG", NULL, text, sizeof text);
    assert_non_null(strstr(text, "tinkc: debug: "));
    logged_to_stderr("error", NULL, text, sizeof text);
    assert_null(strstr(text, "tinkc: warning: "));
    logged_to_stderr("debug", no_log, text, sizeof text);
    assert_string_equal(text, "");
    logged_to_stderr("nonsense", NULL, text, sizeof text);
    assert_string_equal(text, "");
}

/* ---- the environment, and what holds where nothing is said ---- */

static void count_infos(int32_t level, const char *line, void *user)
{
    (void)line;
    if (level > TINKC_LOG_WARN)
        atomic_fetch_add((atomic_int *)user, 1);
}

static void requests_wait_as_the_header_says(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    atomic_int infos = 0;
    tinkc_client_options o = { .log = count_infos, .log_user = &infos };
    for (int given = 0; given < 2; given++) {
        if (given) {
            o.connect_timeout_ms = 700;
            o.idle_timeout_ms = 800;
            o.log_level = TINKC_LOG_INFO;
        }
        tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
        tinkc_client *client = mock_client(mock, &o, &err);
        assert_non_null(tinkc_client_session_id(client, 5000, &err));
        const tinkc_request *r = nth_request(mock, "/api/v1/create_session", 0);
        assert_int_equal(r->connect_timeout_ms, given ? 700 : 5000);
        assert_int_equal(r->idle_timeout_ms, given ? 800 : 60000);
        assert_string_equal(request_header(r, "x-stainless-read-timeout"), given ? "0.8" : "60.0");
        tinkc_client_free(client);
        tinkc_mock_free(mock);
        assert_int_equal(atomic_load(&infos) > 0, given); /* warnings and worse by default */
    }
}

static void set_all(bool on)
{
    static const char *const pairs[][2] = { { "TINKER_BASE_URL", "http://env.example/x" },
                                            { "TINKER_CREDENTIAL_CMD", "echo tml-command" },
                                            { "TINKER_PROJECT_ID", "p-env" },
                                            { "CLOUDFLARE_ACCESS_CLIENT_ID", "cf-id" },
                                            { "CLOUDFLARE_ACCESS_CLIENT_SECRET", "cf-secret" } };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (on)
            setenv(pairs[i][0], pairs[i][1], 1);
        else
            unsetenv(pairs[i][0]);
}

static void the_environment_fills_in_what_is_not_given(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    tinkc_client_options given = { .api_key = "tml-given",
                                   .base_url = "http://given.example",
                                   .project_id = "" };
    unsetenv("TINKER_API_KEY");
    for (int options = 0; options < 2; options++) {
        tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
        tinkc_mock_always(mock, NULL, "/api/v1/client/config",
                          &(tinkc_mock_answer){ .body = "{\"pjwt_auth_enabled\":true}" }, &err);
        tinkc_mock_always(mock, NULL, "/api/v1/auth/token",
                          &(tinkc_mock_answer){ .body = "{\"jwt\":\"eyJhIjoxfQ.e30.x\"}" }, &err);
        set_all(true);
        tinkc_client *client = mock_client(mock, options ? &given : NULL, &err);
        set_all(false); /* read once */
        assert_string_equal(tinkc_client_base_url(client),
                            options ? "http://given.example/" : "http://env.example/x/");
        assert_non_null(tinkc_client_session_id(client, 20000, &err));
        const tinkc_request *token = nth_request(mock, "/api/v1/auth/token", 0);
        const tinkc_request *session = nth_request(mock, "/api/v1/create_session", 0);
        assert_string_equal(request_header(token, "X-API-Key"),
                            options ? "tml-given" : "tml-command");
        assert_string_equal(request_header(session, "CF-Access-Client-Id"), "cf-id");
        assert_string_equal(request_header(session, "CF-Access-Client-Secret"), "cf-secret");
        /* An option of "" means none, not "look elsewhere". */
        assert_int_equal(strstr((const char *)session->body.data, "p-env") != NULL, !options);
        tinkc_client_free(client);
        tinkc_mock_free(mock);
    }
    assert_ok(&err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(makes_no_request_before_it_must),
        cmocka_unit_test(session_comes_with_heartbeat),
        cmocka_unit_test(a_session_that_is_over_has_no_heartbeat),
        cmocka_unit_test(every_request_says_who_it_is),
        cmocka_unit_test(c43_a_rate_limit_holds_for_the_key),
        cmocka_unit_test(logs_go_to_stderr_where_the_environment_asks),
        cmocka_unit_test(requests_wait_as_the_header_says),
        cmocka_unit_test(the_environment_fills_in_what_is_not_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
