/* test_client.c - a client's life on the mock: start-up, session, heartbeat, close. */
#include <stdatomic.h>
#include <unistd.h>
#include <time.h>

#include "support/client/api_support.h"
#include "support/client/stub_server.h"

TEST(makes_no_request_before_it_must)
{
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_client *client = mock_client(mock, NULL, &err);
    assert_ok(&err);
    assert_int_equal(tinkc_mock_count(mock, NULL), 0);
    assert_true(tinkc_client_connect(client, PATIENCE_MS, &err));
    assert_int_equal(tinkc_mock_count(mock, NULL), 1);
    assert_string_equal(tinkc_mock_request(mock, 0)->path, "/api/v1/client/config");
    assert_string_equal((const char *)tinkc_mock_request(mock, 0)->body.data, "{\"sdk_version\":\"0.25.0\"}");
    /* What neither trains nor samples needs no session. */
    tinkc_runs *runs = tinkc_runs_list(client, NULL, &err);
    tinkc_sessions *sessions = tinkc_sessions_list(client, NULL, &err);
    tinkc_future *calls[] = { tinkc_capabilities_get(client, &err),
                              tinkc_health_check(client, &err),
                              tinkc_run_get(client, "r", TINKC_OWNED, &err),
                              tinkc_checkpoint_get(client, "tinker://r/weights/a", &err),
                              tinkc_sampler_get(client, "s", &err),
                              tinkc_session_get(client, "s", TINKC_OWNED, &err),
                              tinkc_audit_get(client, NULL, NULL, &err),
                              tinkc_storage_get(client, NULL, &err),
                              tinkc_runs_fetch(runs, &err),
                              tinkc_sessions_fetch(sessions, &err) };
    assert_ok(&err);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        (void)tinkc_future_wait(calls[i], PATIENCE_MS, NULL); /* some find nothing */
        tinkc_future_free(calls[i]);
    }
    assert_int_equal(tinkc_mock_count(mock, NULL), 11);
    assert_int_equal(tinkc_mock_count(mock, "/api/v1/create_session"), 0);
    tinkc_runs_free(runs);
    tinkc_sessions_free(sessions);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
}

/* Who speaks, in the words that the service knows; a caller's own headers win, "" takes one away.
 */
TEST(every_request_says_who_it_is)
{
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    static const char *const own[] = { "x-stainless-runtime", "mine", "X-Stainless-Async", "", "X-Team", "blue", NULL };
    tinkc_client *client = mock_client(mock, &(tinkc_client_options){ .api_key = "tml-k", .headers = own }, &err);
    assert_non_null(tinkc_client_session_id(client, PATIENCE_MS, &err));
    tinkc_future *f = tinkc_run_get(client, "r", TINKC_OWNED, &err);
    (void)tinkc_future_wait(f, PATIENCE_MS, &err);
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
    tinkc_mock_forget(mock);
    err = (tinkc_error){ 0 };
    client = mock_client(mock, NULL, &err); /* without headers of its own */
    f = tinkc_health_check(client, &err);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &err));
    const tinkc_request *plain = nth_request(mock, "/api/v1/healthz", 0);
    assert_string_equal(request_header(plain, "X-Stainless-Runtime"), "C");
    assert_string_equal(request_header(plain, "X-Stainless-Async"), "async:tinkc");
    assert_null(request_header(plain, "X-Team"));
    tinkc_future_free(f);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
}

/* ---- a rate limit holds for the key ---- */

/* Over real connections: what has a transport or clock of its own shares no limits. The first sample is
 * refused; the others are counted by key. */
typedef struct limited {
    const char *pause; /* the header that refuses the first */
    atomic_int refused;
    atomic_int n_same, n_other;        /* samples taken */
    atomic_llong refused_ms, taken_ms; /* when: the first, and the next with its key */
} limited;

static void serve_limited(const stub_request *r, stub_answer *a, void *user)
{
    limited *l = user;
    char key[40];
    stub_header(r, "X-API-Key", key, sizeof key);
    a->body = "{}";
    if (strstr(r->path, "healthz"))
        a->body = "{\"status\":\"ok\"}";
    else if (strstr(r->path, "create_session"))
        a->body = "{\"session_id\":\"s\"}";
    else if (strstr(r->path, "dynamic_config"))
        a->body = "{\"refresh_interval_sec\":300}";
    else if (strstr(r->path, "create_sampling_session"))
        a->body = "{\"sampling_session_id\":\"p\"}";
    else if (strstr(r->path, "asample") && !atomic_load(&l->refused)) {
        atomic_store(&l->refused_ms, patience_now_ms());
        atomic_store(&l->refused, 1);
        a->status = 429;
        a->headers = l->pause;
    } else if (strstr(r->path, "asample")) {
        bool same = strcmp(key, "tml-same") == 0;
        if (same && !atomic_load(&l->taken_ms))
            atomic_store(&l->taken_ms, patience_now_ms());
        atomic_fetch_add(same ? &l->n_same : &l->n_other, 1);
        a->body = "{\"request_id\":\"q\"}";
    } else if (strstr(r->path, "retrieve_future"))
        a->body = "{\"error\":\"enough\",\"category\":\"user\"}";
}

typedef struct trio {
    limited l;
    tinkc_error err;
    stub_server *server;
    tinkc_client *clients[3];
    tinkc_sampler *samplers[3];
    tinkc_future *f[3];
} trio;

static void sample_with(trio *x, size_t i)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    x->f[i] = tinkc_sample(x->samplers[i], (int32_t[]){ 1 }, 1, 1, &o, &x->err);
}

/* Two clients with one key and a third with another; the first one's sample has been refused. */
static void open_trio(trio *x, const char *pause)
{
    static const char *const keys[] = { "tml-same", "tml-same", "tml-other" };
    *x = (trio){ .l.pause = pause };
    x->server = stub_start(NULL, serve_limited, &x->l);
    for (size_t i = 0; i < 3; i++) {
        x->clients[i] = tinkc_client_new(&(tinkc_client_options){ .api_key = keys[i],
                                                                  .base_url = stub_url(x->server),
                                                                  .telemetry = TINKC_TELEMETRY_OFF },
                                         &x->err);
        x->samplers[i] = tinkc_sampler_new(x->clients[i], &(tinkc_sampler_options){ .base_model = "m" }, &x->err);
    }
    assert_ok(&x->err);
    sample_with(x, 0);
    wait_until(atomic_load(&x->l.refused) &&
               (tinkc_future_stage(x->f[0]) == TINKC_STAGE_QUEUED || tinkc_future_done(x->f[0])));
}

static void close_trio(trio *x)
{
    for (size_t i = 0; i < 3; i++) {
        tinkc_future_free(x->f[i]);
        tinkc_sampler_free(x->samplers[i]);
        tinkc_client_free(x->clients[i]);
    }
    stub_stop(x->server);
}

/* It slows another client with the same key, and none with another. */
TEST(c43_a_rate_limit_holds_for_the_key)
{
    static trio x;
    tinkc_error ignored = { 0 };
    open_trio(&x, "retry-after-ms: 60000\r\n");
    sample_with(&x, 1);
    sample_with(&x, 2);
    assert_false(tinkc_future_wait(x.f[2], 50000, &ignored)); /* before the minute is over */
    assert_int_equal(ignored.code, TINKC_E_REQUEST_FAILED);
    for (int i = 0; i < 5; i++) { /* by now the second would have been sent */
        tinkc_future *f = tinkc_health_check(x.clients[1], &x.err);
        assert_true(tinkc_future_wait(f, PATIENCE_MS, &x.err));
        tinkc_future_free(f);
    }
    assert_int_equal(tinkc_future_stage(x.f[1]), TINKC_STAGE_QUEUED);
    assert_int_equal(atomic_load(&x.l.n_same), 0);
    assert_int_equal(atomic_load(&x.l.n_other), 1);
    close_trio(&x);
}

TEST(a_rate_limit_ends)
{
    enum { PAUSE_MS = 300 };
    static trio x;
    tinkc_error ignored = { 0 };
    open_trio(&x, "retry-after-ms: 300\r\n");
    sample_with(&x, 1);
    (void)tinkc_future_wait_all(x.f, 2, PATIENCE_MS, &ignored);
    assert_int_equal(ignored.code, TINKC_E_REQUEST_FAILED);
    assert_int_equal(atomic_load(&x.l.n_same), 2);
    assert_true(atomic_load(&x.l.taken_ms) - atomic_load(&x.l.refused_ms) >= PAUSE_MS);
    close_trio(&x);
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
                    &(tinkc_mock_answer){ .status = 402, .body = "{\"detail\":\"tml-secret1\"}" }, &err);
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

TEST(logs_go_to_stderr_where_the_environment_asks)
{
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
