/* test_http_request.c - what the server makes of a head and a body, and what it sends back.
 *
 * libmicrohttpd is a table of functions here: a request is handed over piece by piece as the
 * library does it, and what would go out is kept. No sockets but a pair for each connection.
 */
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "service/core/registry.h"
#include "service/core/service_state.h"
#include "service/http/http_server.h"
#include "service/worker/jobs.h"
#include "support/check.h"
#include "support/engine/tiny_model.h"
#include "support/scarce.h"
#include "support/service/device_gate.h"
#include "support/service/scripted_mhd.h"
#include "support/service/service_call.h"

enum { MAX_BODY = 2 << 20, MAX_PAIRS = 130 };

static char *folder;
static tinkc_engine *engine;
static tke_http http;

typedef struct connection { /* what the library keeps of one */
    mhd_record sent;        /* first: the library's pointer to a connection is one to it */
    union MHD_ConnectionInfo fd, context;
    void *socket_context;
    int client;
    const char *(*headers)[2];
    size_t n_headers;
    void *exchange;
} connection;

static connection both[2], *now = both; /* the one that the functions below are about */

/* ---- the library ---- */

static const union MHD_ConnectionInfo *fake_info(struct MHD_Connection *c, enum MHD_ConnectionInfoType what, ...)
{
    connection *of = (connection *)(void *)c;
    if (what == MHD_CONNECTION_INFO_CONNECTION_FD)
        return &of->fd;
    of->context.socket_context = of->socket_context;
    return &of->context;
}

static int fake_values(struct MHD_Connection *c, enum MHD_ValueKind kind, MHD_KeyValueIterator take, void *cls)
{
    (void)c;
    assert_int_equal(kind, MHD_HEADER_KIND);
    for (size_t i = 0; i < now->n_headers; i++)
        if (take(cls, kind, now->headers[i][0], now->headers[i][1]) == MHD_NO)
            return (int)i + 1;
    return (int)now->n_headers;
}

static tke_mhd library; /* scripted_mhd, and the above */

static struct MHD_Connection *handle(void)
{
    return (struct MHD_Connection *)(void *)now;
}

/* ---- time ---- */

static pthread_t tester;
static void (*at_next_time)(void); /* NULL, or called when this thread asks for the time */
static tinkc_clock clock_here;

static int64_t time_ms(void *self)
{
    if (pthread_equal(pthread_self(), tester) && at_next_time) {
        void (*now_is)(void) = at_next_time;
        at_next_time = NULL;
        now_is();
    }
    return tkc_clock_real()->now_ms(self);
}

/* ---- the server ---- */

static char logged[1000];

static void keep_line(int32_t level, const char *line, void *user)
{
    (void)level, (void)user;
    snprintf(logged, sizeof logged, "%s", line);
}

static void set_keys(const char *const *lines)
{
    tinkc_error err = { 0 };
    tke_key_ring_free(http.keys);
    http.keys = tke_key_ring_new(tke_engine_service(engine), lines, &err);
    assert_ok(err);
}

static int setup(void **state)
{
    static const char *const settings[] = { "max_body_bytes", "2097152", NULL };
    tinkc_error err = { 0 };
    (void)state;
    folder = tiny_model_make(&(tiny_model){ .family = "llama", .vocab = 64, .context = 64 });
    library = scripted_mhd;
    library.info = fake_info;
    library.values = fake_values;
    tester = pthread_self();
    clock_here = *tkc_clock_real();
    clock_here.now_ms = time_ms;
    engine =
        tinkc_engine_new(&(tinkc_engine_options){ .threads = 1, .settings = settings, .clock = &clock_here }, &err);
    assert_ok(err);
    gate_put(tke_engine_service(engine)->device);
    assert_true(tinkc_engine_add_model(engine, "tiny", folder, &err));
    http = (tke_http){ .svc = tke_engine_service(engine),
                       .mhd = &library,
                       .listen_fd = -1,
                       .guard = { .bound = "127.0.0.1", .needs_known_host = true },
                       .access_log = keep_line };
    tkc_ref_init(&http.refs);
    pthread_mutex_init(&http.lock, NULL);
    assert_true(tkc_cond_init(&http.changed, &err) && tkc_cond_init(&http.tick, &err));
    tke_peers_limit(&http, &(tinkc_serve_options){ 0 });
    set_keys(NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tke_key_ring_free(http.keys);
    pthread_cond_destroy(&http.changed);
    pthread_cond_destroy(&http.tick);
    pthread_mutex_destroy(&http.lock);
    tinkc_engine_free(engine);
    tiny_model_remove(folder);
    return 0;
}

/* ---- a request ---- */

static void begin(const char *uri, const char *(*headers)[2], size_t n)
{
    int pair[2];
    char text[2000];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    *now = (connection){ .fd = { .connect_fd = pair[0] }, .client = pair[1], .headers = headers, .n_headers = n };
    mhd_begin(&now->sent);
    logged[0] = '\0';
    tke_peer_notify(&http, handle(), &now->socket_context, MHD_CONNECTION_NOTIFY_STARTED);
    snprintf(text, sizeof text, "%s", uri);
    assert_null(tke_request_begin(&http, text, handle()));
    /* the library is not shown the query */
    assert_int_equal(strlen(text), strcspn(uri, "?") + (strchr(uri, '?') != NULL));
}

/* A piece of it; NULL: its head, or its end. */
static enum MHD_Result piece(const char *method, const char *data, size_t size)
{
    enum MHD_Result ok = tke_request_handle(&http, handle(), "", method, "HTTP/1.1", data, &size, &now->exchange);
    assert_int_equal(size, 0);
    return ok;
}

/* After its end: waits until there is an answer, and takes all of it. */
static void take_answer(const char *method)
{
    tinkc_error err = { 0 };
    char block[5000];
    mhd_await(&now->sent, true);
    if (!now->sent.queued)
        assert_int_equal(piece(method, NULL, 0), MHD_YES);
    assert_true(now->sent.queued);
    for (ssize_t n = 0; now->sent.reader &&
                        (n = now->sent.reader(now->sent.reader_user, now->sent.body.len, block, sizeof block)) >= 0;)
        if (n > 0)
            assert_true(tkc_buf_add(&now->sent.body, block, (size_t)n, &err));
        else /* nothing yet */
            mhd_await(&now->sent, false);
    const tke_exchange *x = now->exchange;
    pthread_mutex_lock(&http.lock);
    while (http.n_active) /* the service's thread may still be on its way out */
        pthread_cond_wait(&http.changed, &http.lock);
    assert_false(x->listed);
    pthread_mutex_unlock(&http.lock);
    assert_non_null(tkc_buf_terminate(&now->sent.body, &err));
}

static void complete(enum MHD_RequestTerminationCode code)
{
    tke_exchange *x = now->exchange;
    if (x)
        tke_exchange_keep(x);
    tke_request_completed(&http, handle(), &now->exchange, code);
    assert_null(now->exchange);
    if (x) { /* whatever the service still does with it, the connection is gone */
        assert_true(tke_exchange_peer_gone(&x->reply));
        tke_exchange_drop(x);
    }
    tke_peer_notify(&http, handle(), &now->socket_context, MHD_CONNECTION_NOTIFY_CLOSED);
    close(now->fd.connect_fd);
    close(now->client);
}

static void end_as(enum MHD_RequestTerminationCode code)
{
    complete(code);
    assert_int_equal(atomic_load(&http.body_bytes), 0);
    pthread_mutex_lock(&http.lock);
    while (http.n_active) /* the service's thread may still be on its way out */
        pthread_cond_wait(&http.changed, &http.lock);
    assert_int_equal(http.n_unsent, 0);
    assert_null(http.active);
    pthread_mutex_unlock(&http.lock);
}

static void end(void)
{
    end_as(MHD_REQUEST_TERMINATED_COMPLETED_OK);
}

static void forget(void)
{
    mhd_end(&now->sent);
}

#define HOST                                                                                                           \
    {                                                                                                                  \
        "Host", "localhost"                                                                                            \
    }
#define JSON                                                                                                           \
    {                                                                                                                  \
        "Content-Type", "application/json"                                                                             \
    }

/* A request with a whole body and some headers; the answer is in `now`. */
static void ask(const char *method, const char *uri, const char *(*headers)[2], size_t n, const char *body)
{
    begin(uri, headers, n);
    assert_int_equal(piece(method, NULL, 0), MHD_YES);
    if (!now->sent.queued) {
        if (body)
            assert_int_equal(piece(method, body, strlen(body)), MHD_YES);
        assert_int_equal(piece(method, NULL, 0), MHD_YES);
        take_answer(method);
    }
    end();
}

static void expect(int32_t status, const char *headers, const char *body)
{
    assert_int_equal(now->sent.status, status);
    if (headers)
        assert_string_equal(now->sent.headers, headers);
    if (body)
        assert_string_equal(now->sent.body.data, body);
    forget();
}

#define TYPE    "Content-Type: application/json\n"
#define CLOSED  TYPE "Connection: close\n"
#define UNKNOWN "{\"detail\":\"Invalid API key\",\"code\":\"unauthorized\"}"
#define OK      "{\"status\":\"ok\"}"
#define N(list) list, sizeof list / sizeof *list

TEST(each_request_has_its_status_and_type)
{
    const char *plain[][2] = { HOST };
    const char *json[][2] = { HOST, JSON };
    const char *text[][2] = { HOST, { "Content-Type", "text/plain" } };
    const char *evil[][2] = { { "Host", "evil" } };
    const char *none[][2] = { JSON };
    const char *two[][2] = { HOST, HOST };
    ask("GET", "/api/v1/healthz?a=b", N(plain), NULL);
    expect(200, TYPE, OK);
    ask("HEAD", "/api/v1/healthz", N(plain), NULL);
    expect(200, TYPE, OK); /* the library leaves the body out */
    ask("POST", "/api/v1/healthz", N(json), "{}");
    expect(405, TYPE,
           "{\"detail\":\"POST /api/v1/healthz: method not "
           "allowed\",\"code\":\"method_not_allowed\"}");
    ask("POST", "/api/v1/telemetry", N(json), "{\"events\":[]}");
    expect(200, TYPE, "{\"status\":\"accepted\"}");
    ask("POST", "/api/v1/telemetry", N(text), "{\"events\":[]}");
    expect(415, TYPE,
           "{\"detail\":\"Content-Type must be application/json or "
           "application/x-protobuf\",\"code\":\"unsupported_type\"}");
    ask("POST", "/api/v1/create_session", N(json), "{\"tags\":[],\"sdk_version\":\"1\"}");
    assert_int_equal(now->sent.length, now->sent.body.len);
    expect(200, TYPE, NULL);
    ask("GET", "/api/v1/healthz", N(evil), NULL);
    expect(403, CLOSED,
           "{\"detail\":\"'evil' is not a name of this server; --allow-host allows "
           "it\",\"code\":\"host_not_allowed\"}");
    ask("GET", "/api/v1/healthz", N(none), NULL);
    expect(400, CLOSED, "{\"detail\":\"A request must have exactly one Host header\",\"code\":\"bad_request\"}");
    ask("GET", "/api/v1/healthz", N(two), NULL);
    expect(400, CLOSED, NULL);
    http.stopping = true;
    ask("GET", "/api/v1/healthz", N(plain), NULL);
    http.stopping = false;
    expect(503, TYPE, "{\"detail\":\"The server is stopping\",\"code\":\"stopping\"}");
}

TEST(each_request_is_logged_with_its_status_and_owner)
{
    const char *plain[][2] = { HOST };
    ask("GET", "/api/v1/healthz?a=b", N(plain), NULL);
    assert_true(strncmp(logged, "GET /api/v1/healthz?a=b 200 15 ", 31) == 0);
    assert_non_null(strstr(logged, "ms default"));
    forget();
    const char *evil[][2] = { { "Host", "evil" }, { "Content-Length", "67108865" } };
    ask("POST", "/api/v1/telemetry", N(evil), NULL); /* answered before it was read */
    assert_true(strncmp(logged, " /api/v1/telemetry 403 ", 23) == 0);
    forget();
    ask("GET", "/api/v1/healthz?api_key=sesame-sesame", N(plain), NULL);
    assert_non_null(strstr(logged, "GET /api/v1/healthz?api_key="));
    assert_null(strstr(logged, "sesame"));
    forget();
    int64_t before = tkc_monotonic_ns();
    begin("/api/v1/healthz", N(plain)); /* in milliseconds, from its head on */
    assert_int_equal(piece("GET", NULL, 0), MHD_YES);
    tke_exchange *x = now->exchange;
    x->start_ns -= 5000000000;
    assert_int_equal(piece("GET", NULL, 0), MHD_YES);
    take_answer("GET");
    end();
    double most = 5000.1 + (double)(tkc_monotonic_ns() - before) / 1e6;
    double ms = strtod(logged + strlen("GET /api/v1/healthz 200 15 "), NULL);
    assert_true(ms >= 5000 && ms <= most);
    forget();
}

/* A line of the log is one request: what a client sends cannot end it, or steer a terminal. */
TEST(control_characters_are_escaped_in_the_log)
{
    static const char *const rows[][2] = {
        { "/a\nGET /forged 200", "/a\\x0aGET /forged 200" },
        { "/a\r\x1b[2J", "/a\\x0d\\x1b[2J" },
        { "/\x7f\x01", "/\\x7f\\x01" },
        { "/\xc2\x9b"
          "31m",
          "/\\xc2\\x9b31m" },       /* an escape sequence of eight bits */
        { "/a\\x0a", "/a\\\\x0a" }, /* and what only looks like one differs */
    };
    const char *plain[][2] = { HOST };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ask("GET", rows[i][0], N(plain), NULL);
        if (!strstr(logged, rows[i][1]))
            fail_msg("%s", logged);
        for (const char *p = logged; *p; p++)
            assert_true((unsigned char)*p >= 0x20 && (unsigned char)*p < 0x7f);
        forget();
    }
}

TEST(metrics_are_served_where_they_are_enabled)
{
    const char *plain[][2] = { HOST };
    ask("GET", "/metrics", N(plain), NULL);
    expect(404, TYPE, NULL);
    http.metrics = true;
    ask("GET", "/metrics", N(plain), NULL);
    http.metrics = false;
    assert_non_null(strstr(now->sent.body.data, "\ntinkc_body_bytes 0\n"));
    char names[2000] = "";
    for (const char *at = now->sent.body.data; (at = strstr(at, "\n# TYPE tinkc_"));) {
        at += sizeof "\n# TYPE tinkc_" - 1;
        snprintf(names + strlen(names), sizeof names - strlen(names), "%.*s\n", (int)strcspn(at, "\n"), at);
    }
    assert_string_equal(names, "requests_total counter\ntrained_tokens_total counter\nsampled_tokens_total counter\n"
                               "prefilled_tokens_total counter\nsample_steps_total counter\nworker_waits_total "
                               "counter\nbase_models gauge\nsessions gauge\nruns gauge\nruns_in_memory gauge\n"
                               "queued_training_requests gauge\nsamples_in_flight gauge\nopen_polls gauge\n"
                               "adapter_bytes gauge\nsnapshot_bytes gauge\nresult_bytes gauge\nqueued_bytes gauge\n"
                               "request_bytes gauge\nexchanges gauge\nconnections gauge\nmemory_bytes gauge\n"
                               "body_bytes gauge\n");
    /* The parts of the memory add up to all of it. */
    static const char part[] = "\ntinkc_memory_bytes{part=\"";
    uint64_t sum = 0, resident = 0, files = 0, other = 0;
    for (const char *at = now->sent.body.data; (at = strstr(at, part));) {
        at += sizeof part - 1;
        size_t len = strcspn(at, "\"");
        uint64_t bytes = strtoull(at + len + 2, NULL, 10);
        tinkc_str name = tkc_strn(at, len);
        *(tkc_str_is(name, "resident")         ? &resident
          : tkc_str_is(name, "resident_files") ? &files
          : tkc_str_is(name, "other")          ? &other
                                               : &sum) += bytes;
    }
    assert_true(resident > files && sum > 0);
    assert_true(other == 0 || sum + other == resident - files);
    assert_non_null(strstr(now->sent.body.data, "\ntinkc_base_models 1\n"));
    expect(200, "Content-Type: text/plain; version=0.0.4\n", NULL);
    /* The status names the same parts. */
    ask("GET", "/api/v1/status", N(plain), NULL);
    static const char *const parts[] = { "\"memory\":{\"adapters\":",
                                         "\"snapshots\":",
                                         "\"results\":",
                                         "\"queued_requests\":",
                                         "\"requests_under_way\":",
                                         "\"work_space\":",
                                         "\"database\":",
                                         "\"unused_heap\":",
                                         "\"other\":",
                                         "\"resident\":",
                                         "\"resident_files\":" };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(now->sent.body.data, parts[i]))
            fail_msg("no %s in %s", parts[i], now->sent.body.data);
    expect(200, TYPE, NULL);
}

/* ---- keys ---- */

TEST(a_key_or_a_bearer_token_lets_in)
{
    static const char *const lines[] = { "secret", NULL };
    char right[] = "secret", bearer[] = "bEARER   secret", wrong[] = "secrets";
    const char *key[][2] = { HOST, { "x-api-key", right } };
    const char *token[][2] = { HOST, { "Authorization", bearer } };
    const char *bad[][2] = { HOST, { "X-API-Key", wrong } };
    const char *plain[][2] = { HOST };
    set_keys(lines);
    ask("GET", "/api/v1/sessions", N(key), NULL);
    expect(200, TYPE, "{\"sessions\":[]}");
    for (size_t i = 0; i < sizeof right; i++)
        assert_int_equal(right[i], 0); /* wiped from the library's memory */
    ask("GET", "/api/v1/sessions", N(bad), NULL);
    expect(401, TYPE, UNKNOWN);
    ask("GET", "/api/v1/sessions", N(plain), NULL);
    expect(401, TYPE, UNKNOWN);
    ask("GET", "/api/v1/sessions", N(token), NULL); /* only for paths like OpenAI's */
    expect(401, TYPE, UNKNOWN);
    for (size_t i = 0; i < sizeof bearer; i++)
        assert_int_equal(bearer[i], 0);
    ask("GET", "/api/v1/healthz", N(plain), NULL);
    expect(200, TYPE, OK);
    ask("GET", "/api/v1/none", N(plain), NULL);
    expect(404, TYPE, NULL);
    static const char *const public[] = { "/api/v1/readyz", "/readyz", "/health" };
    static const char *const private[] = {
        "/api/v1/status",          "/status", "/metrics", "/api/v1/status?a=b", "/api/v1/cancel_future",
        "/api/v1/retrieve_futures"
    };
    for (size_t i = 0; i < sizeof public / sizeof *public; i++) {
        ask("GET", public[i], N(plain), NULL);
        expect(200, TYPE, OK);
    }
    ask("HEAD", "/api/v1/sessions", N(plain), NULL);
    expect(401, TYPE, UNKNOWN);
    for (size_t i = 0; i < sizeof private / sizeof *private; i++) {
        ask(i < 4 ? "GET" : "POST", private[i], N(plain), NULL);
        expect(401, TYPE, UNKNOWN);
    }
    http.openai = true;
    char again[] = "bEARER   secret", basic[] = "Basic secret";
    token[1][1] = again;
    ask("GET", "/v1/models", N(token), NULL);
    assert_int_equal(now->sent.status, 200);
    forget();
    char third[] = "Bearer secret"; /* a key that is given counts, even if it is empty */
    const char *both_kinds[][2] = { HOST, { "X-API-Key", NULL }, { "Authorization", third } };
    ask("GET", "/v1/models", N(both_kinds), NULL);
    assert_int_equal(now->sent.status, 401);
    forget();
    token[1][1] = basic;
    ask("GET", "/v1/models", N(token), NULL);
    expect(401, TYPE,
           "{\"error\":{\"message\":\"Invalid API "
           "key\",\"type\":\"authentication_error\",\"param\":null,\"code\":\"unauthorized\"}}");
    http.openai = false;
    ask("GET", "/v1/models", N(plain), NULL);
    expect(404, TYPE, NULL);
    set_keys(NULL);
    /* The form of a refusal is that of the path, and only where it is served. */
    static const char *evil[][2] = { { "Host", "evil" } };
    static const char here[] = "{\"detail\":\"'evil' is not a name of this server; --allow-host allows it\","
                               "\"code\":\"host_not_allowed\"}";
    ask("GET", "/v1/models", N(evil), NULL);
    expect(403, CLOSED, here);
    http.openai = true;
    ask("GET", "/api/v1/healthz", N(evil), NULL);
    expect(403, CLOSED, here);
    ask("GET", "/v1/models", N(evil), NULL);
    assert_int_equal(now->sent.status, 403);
    assert_non_null(strstr(now->sent.body.data, "{\"error\":{"));
    forget();
    http.openai = false;
}

/* ---- limits ---- */

TEST(a_head_of_a_hundred_lines_is_refused)
{
    static const char *list[MAX_PAIRS][2];
    for (size_t i = 0; i < MAX_PAIRS; i++) {
        list[i][0] = i ? "X-Other" : "Host";
        list[i][1] = i ? "1" : "localhost";
    }
    ask("GET", "/api/v1/healthz", list, 100, NULL);
    expect(200, TYPE, OK);
    ask("GET", "/api/v1/healthz", list, 101, NULL);
    expect(431, CLOSED, "{\"detail\":\"There are too many headers\",\"code\":\"too_many_headers\"}");
    static const char *empty[][2] = { { "Host", "localhost" }, { "X-Other", NULL } };
    ask("GET", "/api/v1/healthz", N(empty), NULL); /* a header without a value */
    expect(200, TYPE, OK);
    static const char *const lengths[] = { "67108864", "67108865" };
    for (size_t i = 0; i < 2; i++) { /* all but huge bodies are read before the answer */
        list[1][0] = "Content-Length";
        list[1][1] = lengths[i];
        begin("/api/v1/telemetry", list, 101);
        assert_int_equal(piece("POST", NULL, 0), MHD_YES);
        assert_int_equal(now->sent.queued, i);
        if (!now->sent.queued) {
            assert_int_equal(piece("POST", NULL, 0), MHD_YES);
            take_answer("POST");
        }
        end();
        expect(431, CLOSED, NULL);
    }
    list[1][0] = "X-Other";
    list[1][1] = "1";
    list[100][0] = "X-API-Key"; /* is not kept, but counts at the limit */
    ask("GET", "/api/v1/healthz", list, 101, NULL);
    expect(431, CLOSED, NULL);
}

/* By Content-Length: refused before the body is read if it is huge, or if its sender waits for
 * permission; else after it, because clients that send everything first would not see the answer. */
TEST(a_body_that_is_too_long_is_refused)
{
    static const struct {
        const char *uri, *length, *expects;
        bool at_once;
        int32_t status;
    } rows[] = {
        { "/api/v1/create_session", "1048576", NULL, false, 422 },
        { "/api/v1/create_session", "1048577", NULL, false, 413 },
        { "/api/v1/create_session", "67108864", NULL, false, 413 },
        { "/api/v1/create_session", "67108865", NULL, true, 413 },
        { "/api/v1/create_session", "1048577", "100-Continue", true, 413 },
        { "/api/v1/create_session", "1048577", "other", false, 413 },
        { "/api/v1/asample", "2097152", NULL, false, 422 },
        { "/api/v1/asample", "2097153", NULL, false, 413 },
        { "/api/v1/asample", "2097153", "100-continue", true, 413 },
        { "/api/v1/none", "1048577", NULL, false, 413 },
        { "/api/v1/none", "1048576", "100-continue", false, 404 },
        { "/api/v1/forward_backward", "67108865", NULL, false, 413 }, /* read: its number must not be lost */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *headers[][2] = { HOST, JSON, { "Content-Length", rows[i].length }, { "Expect", rows[i].expects } };
        begin(rows[i].uri, headers, rows[i].expects ? 4 : 3);
        assert_int_equal(piece("POST", NULL, 0), MHD_YES);
        if (now->sent.queued != rows[i].at_once)
            fail_msg("%s %s", rows[i].uri, rows[i].length);
        if (!now->sent.queued) {
            assert_int_equal(piece("POST", NULL, 0), MHD_YES);
            take_answer("POST");
        }
        assert_int_equal(now->sent.status, rows[i].status);
        end();
        forget();
    }
    /* A short one that is refused for another reason is read to its end first. */
    const char *evil[][2] = { { "Host", "evil" }, { "Content-Length", "1048576" } };
    begin("/api/v1/telemetry", N(evil));
    assert_int_equal(piece("POST", NULL, 0), MHD_YES);
    assert_false(now->sent.queued);
    assert_int_equal(piece("POST", "12345", 5), MHD_YES);
    assert_int_equal(atomic_load(&http.body_bytes), 0); /* and not kept */
    assert_int_equal(piece("POST", NULL, 0), MHD_YES);
    take_answer("POST");
    end();
    expect(403, CLOSED, NULL);
}

/* A body without a length: pieces until there are too many. */
TEST(a_body_in_pieces_is_bounded)
{
    static char big[MAX_BODY];
    const char *headers[][2] = { HOST, JSON };
    memset(big, ' ', sizeof big);
    for (int over = 0; over < 2; over++) {
        begin("/api/v1/asample", N(headers));
        assert_int_equal(piece("POST", NULL, 0), MHD_YES);
        assert_int_equal(piece("POST", big, 1000), MHD_YES);
        assert_int_equal(atomic_load(&http.body_bytes), 1000);
        assert_int_equal(piece("POST", big, MAX_BODY - 1000), MHD_YES);
        assert_int_equal(atomic_load(&http.body_bytes), MAX_BODY);
        if (over)
            assert_int_equal(piece("POST", big, 1), MHD_YES);
        assert_int_equal(((tke_exchange *)now->exchange)->body.len, over ? 4096 : MAX_BODY);
        assert_int_equal(piece("POST", NULL, 0), MHD_YES);
        take_answer("POST");
        end();
        expect(over ? 413 : 422, TYPE,
               over ? "{\"detail\":\"The body is larger than 2097152 bytes\",\"code\":\"too_large\"}" : NULL);
    }
    /* Of a pass that is too large the first 4096 bytes are kept: they have its number. */
    const char *pass[][2] = { HOST, JSON, { "Content-Length", "2097153" } };
    begin("/api/v1/forward_backward", N(pass));
    assert_int_equal(piece("POST", NULL, 0), MHD_YES);
    const tke_exchange *x = now->exchange;
    assert_int_equal(piece("POST", big, 100), MHD_YES);
    assert_int_equal(x->body.len, 100);
    assert_int_equal(piece("POST", big, 5000), MHD_YES);
    assert_int_equal(x->body.len, 4096);
    assert_int_equal(piece("POST", big, 1), MHD_YES);
    assert_int_equal(x->body.len, 4096);
    assert_int_equal(piece("POST", NULL, 0), MHD_YES);
    take_answer("POST");
    end();
    expect(413, TYPE, NULL);
    /* An address may hold half of what others leave; the first piece is always taken. */
    begin("/api/v1/asample", N(headers));
    assert_int_equal(piece("POST", NULL, 0), MHD_YES);
    atomic_fetch_add(&http.body_bytes, 4 * MAX_BODY - 12);
    assert_int_equal(piece("POST", "12345", 5), MHD_YES);
    assert_int_equal(piece("POST", "6", 1), MHD_YES); /* the last byte of the room */
    assert_int_equal(atomic_load(&http.body_bytes), 4 * MAX_BODY - 6);
    assert_int_equal(piece("POST", "7", 1), MHD_YES);
    assert_int_equal(atomic_load(&http.body_bytes), 4 * MAX_BODY - 12);
    assert_int_equal(piece("POST", "8", 1), MHD_YES);
    atomic_fetch_sub(&http.body_bytes, 4 * MAX_BODY - 12);
    assert_int_equal(piece("POST", NULL, 0), MHD_YES);
    take_answer("POST");
    end();
    expect(503, TYPE, "{\"detail\":\"Too many large requests at once; try again\",\"code\":\"busy\"}");
    begin("/api/v1/telemetry", N(headers));
    assert_int_equal(piece("POST", NULL, 0), MHD_YES);
    atomic_fetch_add(&http.body_bytes, 5 * MAX_BODY);
    assert_int_equal(piece("POST", "{\"events\":[]}", 13), MHD_YES);
    atomic_fetch_sub(&http.body_bytes, 5 * MAX_BODY);
    assert_int_equal(piece("POST", NULL, 0), MHD_YES);
    take_answer("POST");
    end();
    expect(200, TYPE, NULL);
}

/* A server that stops ends polls and streams of events at once; everything else is work, the page's too. */
TEST(what_is_a_poll)
{
    static const struct {
        const char *method, *uri;
        bool poll;
    } rows[] = { { "GET", "/ui", false },
                 { "GET", "/ui/runs/x/metrics", false },
                 { "GET", "/ui/none", false },
                 { "GET", "/api/v1/healthz", false },
                 { "POST", "/api/v1/retrieve_future", true } };
    const char *headers[][2] = { HOST, JSON };
    tinkc_error err = { 0 };
    http.page = tke_page_new(&(tke_page_options){ .keys = false }, &err);
    assert_ok(err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        begin(rows[i].uri, N(headers));
        assert_int_equal(piece(rows[i].method, NULL, 0), MHD_YES);
        const tke_exchange *x = now->exchange;
        assert_int_equal(piece(rows[i].method, NULL, 0), MHD_YES);
        assert_int_equal(x->is_poll, rows[i].poll);
        take_answer(rows[i].method);
        end();
        forget();
    }
    tke_page_free(http.page);
    http.page = NULL;
}

/* ---- states of the connection ---- */

TEST(a_connection_has_the_state_of_its_request)
{
    const char *headers[][2] = { HOST, JSON };
    begin("/api/v1/retrieve_future", N(headers));
    const tke_peer *peer = now->socket_context;
    assert_int_equal(peer->state, TKE_PEER_HEAD);
    assert_string_equal(peer->uri, "/api/v1/retrieve_future");
    assert_int_equal(piece("POST", NULL, 0), MHD_YES);
    assert_int_equal(peer->state, TKE_PEER_BODY);
    assert_int_equal(piece("POST", "{\"request_id\":", 14), MHD_YES);
    assert_int_equal(piece("POST", "\"x\"}", 4), MHD_YES);
    assert_int_equal(peer->n_body, 18);
    const tke_exchange *x = now->exchange;
    assert_false(x->is_poll);
    assert_int_equal(piece("POST", NULL, 0), MHD_YES);
    assert_int_equal(peer->state, TKE_PEER_BUSY);
    assert_true(x->is_poll);
    assert_string_equal(x->base_url, "http://localhost");
    take_answer("POST");
    assert_int_equal(piece("POST", NULL, 0), MHD_YES); /* sent: further calls change nothing */
    tke_request_completed(&http, handle(), &now->exchange, MHD_REQUEST_TERMINATED_COMPLETED_OK);
    assert_int_equal(peer->state, TKE_PEER_HEAD);
    assert_false(peer->first);
    end();
    expect(404, TYPE, "{\"detail\":\"No request with the id 'x' was ever made\",\"code\":\"unknown_request\"}");
}

/* Links begin with a name that is known to be ours; on a path there is only this machine. */
TEST(links_begin_with_a_known_name)
{
    static const struct {
        const char *host, *socket_path, *url;
    } rows[] = { { "localhost:81", NULL, "http://localhost:81" },
                 { "box", "/s", "http://localhost" },
                 { "127.0.0.1:1", "/s", "http://127.0.0.1:1" } };
    http.guard.needs_known_host = false;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *headers[][2] = { { "Host", rows[i].host } };
        http.socket_path = (char *)(uintptr_t)rows[i].socket_path;
        begin("/api/v1/healthz", N(headers));
        assert_int_equal(piece("GET", NULL, 0), MHD_YES);
        assert_int_equal(piece("GET", NULL, 0), MHD_YES);
        assert_string_equal(((tke_exchange *)now->exchange)->base_url, rows[i].url);
        take_answer("GET");
        end();
        expect(200, TYPE, OK);
    }
    http.guard.needs_known_host = true;
    http.socket_path = NULL;
}

/* ---- results, and an end that comes meanwhile ---- */

static bool is_delivered(const char *id)
{
    tke_service *svc = tke_engine_service(engine);
    pthread_mutex_lock(&svc->lock);
    const tke_job *job = tke_find_job(svc, id);
    bool delivered = job && job->delivered;
    pthread_mutex_unlock(&svc->lock);
    return delivered;
}

static const char *start_sample(void)
{
    return hold(json_field(service_json(tinkc_engine_transport(engine), 200, "POST", "/api/v1/asample", "%s",
                                        "{\"base_model\":\"tiny\",\"prompt\":{\"chunks\":[{"
                                        "\"type\":\"encoded_text\",\"tokens\":[1,2]}]},"
                                        "\"num_samples\":1,\"sampling_params\":{"
                                        "\"max_tokens\":2}}"),
                           "request_id"));
}

/* The head of a request, its body, and its end. */
static enum MHD_Result send_all(const char *uri, const char *body)
{
    static const char *headers[][2] = { HOST, JSON };
    begin(uri, N(headers));
    assert_int_equal(piece("POST", NULL, 0), MHD_YES);
    assert_int_equal(piece("POST", body, strlen(body)), MHD_YES);
    return piece("POST", NULL, 0);
}

/* A result is kept until a client has read all of it. */
TEST(a_result_is_kept_until_it_is_read_whole)
{
    char body[300];
    const char *id = start_sample();
    snprintf(body, sizeof body, "{\"request_id\":\"%s\"}", id);
    for (int whole = 0; whole < 2; whole++) {
        assert_int_equal(send_all("/api/v1/retrieve_future", body), MHD_YES);
        take_answer("POST");
        assert_false(is_delivered(id));
        end_as(whole ? MHD_REQUEST_TERMINATED_COMPLETED_OK : MHD_REQUEST_TERMINATED_WITH_ERROR);
        assert_int_equal(is_delivered(id), whole);
        assert_non_null(strstr(now->sent.headers, id));
        expect(200, NULL, NULL);
    }
}

/* Each allocation for a connection and its request fails once: the connection is closed, or its answer says that there is
 * no memory, or nothing was lost. */
TEST(no_failed_allocation_loses_anything)
{
    static char large[20000];
    static const char *headers[][2] = { HOST, JSON, { "X-Other", large } };
    static const char body[] = "{\"request_id\":\"x\"}";
    scarce memory = { .thread = pthread_self() };
    const tinkc_allocator allocator = scarce_allocator(&memory);
    size_t n_closed = 0, n_refused = 0;
    memset(large, 'a', sizeof large - 1);
    http.a = &allocator;
    for (int64_t n = 1; n == 1 || memory.failed; n++) {
        memory.failed = false;
        memory.until = n;
        begin("/api/v1/retrieve_future", N(headers));
        bool open = piece("POST", NULL, 0) == MHD_YES;
        if (open && !now->sent.queued)
            open = piece("POST", body, strlen(body)) == MHD_YES;
        if (open && !now->sent.queued)
            open = piece("POST", NULL, 0) == MHD_YES;
        n_closed += !open;
        memory.until = 0;
        if (open) {
            take_answer("POST");
            bool refused = now->sent.status == 503;
            n_refused += refused;
            assert_true(refused || now->sent.status == 404);
            assert_int_equal(now->sent.body.data[now->sent.body.len - 1], '}');
            assert_true(!refused || memory.failed);
            assert_true(refused || ((tke_exchange *)now->exchange)->n_headers == 6);
        }
        if (now->exchange)
            end_as(open ? MHD_REQUEST_TERMINATED_COMPLETED_OK : MHD_REQUEST_TERMINATED_WITH_ERROR);
        else
            complete(MHD_REQUEST_TERMINATED_WITH_ERROR);
        forget();
        assert_int_equal(atomic_load(&memory.all.bytes), 0);
    }
    assert_true(n_closed > 3 && n_refused > 0);
    http.a = NULL;
}

static void stop_now(void)
{
    http.stopping = true;
}

static void cut_now(void)
{
    http.cutting = true;
}

static bool was_inside; /* the service had the request, on the connection's thread */

static void look_inside(void)
{
    was_inside = ((tke_exchange *)now->exchange)->inside;
}

static const char stream[] = "{\"base_model\":\"tiny\",\"prompt\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":"
                             "[1,2]}]},\"num_samples\":1,\"sampling_params\":{\"max_tokens\":2,\"stop\":[]}}";

/* The server begins to stop after a request was let in, and does not see it in its list: a poll is
 * cancelled, other requests are only when there is no time left. */
TEST(a_request_that_meets_the_end_is_cancelled_only_if_it_polls)
{
    char body[300];
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    gate_set(true, false);
    const char *id = start_sample();
    snprintf(body, sizeof body, "{\"request_id\":\"%s\"}", id);
    void (*const ends[])(void) = { stop_now, cut_now };
    for (size_t i = 0; i < 2; i++) {
        at_next_time = ends[i];
        assert_int_equal(send_all("/api/v1/retrieve_future", body), MHD_NO);
        http.stopping = http.cutting = false;
        assert_null(at_next_time);
        assert_false(now->sent.queued);
        end_as(MHD_REQUEST_TERMINATED_WITH_ERROR);
        assert_true(strncmp(logged, "POST /api/v1/retrieve_future 0 0 ", 33) == 0);
        forget();
    }
    at_next_time = stop_now;
    assert_int_equal(send_all("/api/v1/stream_sample", stream), MHD_YES);
    http.stopping = false;
    assert_null(at_next_time);
    gate_set(false, false);
    take_answer("POST");
    end();
    assert_non_null(strstr(now->sent.body.data, "\"total_tokens\":2}"));
    expect(200, NULL, NULL);
    snprintf(body, sizeof body, "{\"session_id\":\"%s\"}", session);
    at_next_time = stop_now;
    assert_int_equal(send_all("/api/v1/session_heartbeat", body), MHD_YES);
    http.stopping = false;
    take_answer("POST");
    end();
    expect(200, TYPE, "{\"type\":\"session_heartbeat\"}");
    at_next_time = look_inside;
    assert_int_equal(send_all("/api/v1/session_heartbeat", body), MHD_YES);
    assert_true(was_inside);
    assert_false(((tke_exchange *)now->exchange)->inside);
    take_answer("POST");
    end();
    expect(200, TYPE, NULL);
}

/* ---- stopping ---- */

struct tinkc_server { /* server.c's */
    tke_http *http;
};

static struct {
    char text[100]; /* the connections that were resumed, and the library's stop; !: cutting off */
    bool sent;      /* before the library stopped, all answers were */
    int n_cut;      /* requests that it ends, and that were cut off before */
} seen;

static void note(const char *what)
{
    size_t n = strlen(seen.text);
    snprintf(seen.text + n, sizeof seen.text - n, "%s%s%s", n ? " " : "", what, http.cutting ? "!" : "");
}

static void noted_resume(struct MHD_Connection *c)
{
    note((connection *)(void *)c == both ? "poll" : "stream");
    scripted_mhd.resume(c);
}

/* As the library does it: what is not complete ends with it. */
static void noted_stop(struct MHD_Daemon *daemon)
{
    assert_null(daemon);
    note("stop");
    seen.sent = both[0].exchange == NULL && both[1].exchange == NULL;
    for (size_t i = 0; i < 2 && !seen.sent; i++)
        if ((now = both + i)->exchange) {
            seen.n_cut += ((tke_exchange *)now->exchange)->cut;
            complete(MHD_REQUEST_TERMINATED_DAEMON_SHUTDOWN);
        }
}

static int stoppable(void **state)
{
    (void)state;
    memset(&seen, 0, sizeof seen);
    library.resume = noted_resume;
    library.stop = noted_stop;
    return 0;
}

static int started_again(void **state)
{
    (void)state;
    library.resume = scripted_mhd.resume;
    http.stopping = http.cutting = http.stopped = false;
    now = both;
    return 0;
}

/* A poll on the first connection and a stream on the second; the device computes nothing. */
static void open_both(void)
{
    char body[300];
    gate_set(true, false);
    snprintf(body, sizeof body, "{\"request_id\":\"%s\"}", start_sample());
    now = both;
    assert_int_equal(send_all("/api/v1/retrieve_future", body), MHD_YES);
    now = both + 1;
    assert_int_equal(send_all("/api/v1/stream_sample", stream), MHD_YES);
    assert_int_equal(http.n_active, 2);
    assert_int_equal(http.n_unsent, 2);
}

static void expect_stopped(tinkc_server *server, const char *order)
{
    tinkc_error err = { 0 };
    assert_string_equal(seen.text, order);
    assert_int_equal(http.n_active, 0);
    assert_int_equal(http.n_unsent, 0);
    assert_true(http.stopping && http.stopped);
    assert_true(tinkc_server_wait(server, 0, &err));
    assert_true(tinkc_server_stop(server, 0, &err)); /* only waits for the first */
    assert_ok(err);
    assert_string_equal(seen.text, order);
}

/* Clients hang up while the service has their requests: it is done with them at once. */
TEST_WITH(clients_hang_up, stoppable, started_again)
{
    open_both();
    for (size_t i = 0; i < 2; i++) {
        now = both + i;
        complete(MHD_REQUEST_TERMINATED_CLIENT_ABORT);
        forget();
        assert_int_equal(http.n_active, 1 - i);
        assert_int_equal(http.n_unsent, 1 - i);
    }
    assert_null(http.active);
    gate_set(false, false);
}

/* No time is given: polls are ended, then all other requests, and then the library. */
TEST_WITH(stops_at_once, stoppable, started_again)
{
    tinkc_error err = { 0 };
    tinkc_server server = { &http };
    open_both();
    assert_false(tinkc_server_stop(&server, 0, &err));
    assert_ok(err);
    assert_false(seen.sent);
    expect_stopped(&server, "poll stream! stop!");
    assert_int_equal(seen.n_cut, 2);
    gate_set(false, false);
    for (now = both; now < both + 2; now++) {
        assert_false(now->sent.queued);
        forget();
    }
}

/* An answer that the service has written and the library has not sent is not left behind. */
TEST_WITH(stops_with_an_answer_unsent, stoppable, started_again)
{
    tinkc_error err = { 0 };
    tinkc_server server = { &http };
    const char *plain[][2] = { HOST };
    begin("/api/v1/healthz", N(plain));
    assert_int_equal(piece("GET", NULL, 0), MHD_YES);
    assert_int_equal(piece("GET", NULL, 0), MHD_YES);
    assert_int_equal(http.n_active, 0);
    assert_int_equal(http.n_unsent, 1);
    assert_false(tinkc_server_stop(&server, 0, &err));
    assert_ok(err);
    expect_stopped(&server, "stop!");
    assert_int_equal(seen.n_cut, 0);
    now = both;
    expect(200, TYPE, OK);
}

static void *stop_slowly(void *server)
{
    tinkc_error err = { 0 };
    return tinkc_server_stop(server, TINKC_FOREVER, &err) ? server : NULL;
}

/* With all the time it needs: polls are ended, what else is under way is answered. */
TEST_WITH(stops_when_all_is_sent, stoppable, started_again)
{
    tinkc_server server = { &http };
    pthread_t stopper;
    void *clean;
    open_both();
    assert_int_equal(pthread_create(&stopper, NULL, stop_slowly, &server), 0);
    now = both;
    mhd_await(&now->sent, false);
    assert_int_equal(piece("POST", NULL, 0), MHD_NO); /* the library closes the connection */
    complete(MHD_REQUEST_TERMINATED_WITH_ERROR);
    forget();
    now = both + 1;
    tke_exchange *x = now->exchange;
    pthread_mutex_lock(&x->lock);
    assert_false(x->cut || x->ended);
    pthread_mutex_unlock(&x->lock);
    gate_set(false, false);
    take_answer("POST");
    assert_non_null(strstr(now->sent.body.data, "\"total_tokens\":2}"));
    complete(MHD_REQUEST_TERMINATED_COMPLETED_OK);
    assert_int_equal(pthread_join(stopper, &clean), 0);
    assert_ptr_equal(clean, &server);
    assert_non_null(strstr(seen.text, "stop"));
    assert_true(seen.sent);
    expect(200, NULL, NULL);
    assert_true(http.stopped && !http.cutting);
}

RUN_TESTS(setup, teardown)
