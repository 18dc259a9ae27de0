/* test_server_guard.c - what a server refuses: requests of web pages elsewhere, heads that can be
 * read in two ways, slow and too many peers, keys that were taken away, bodies that unpack to too
 * much. Over real sockets. */
#include <netinet/in.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/heap.h"
#include "base/str.h"
#include "codec/zstd.h"
#include "service/http/http_guard.h"
#include "support/check.h"
#include "support/service/service_call.h"
#include "support/engine/tiny_model.h"
#include "tinkc/sys/mock.h"
#include "tinkc/tinkc.h"

static char *folder;
static tinkc_engine *engine;

/* clock NULL = the machine's. */
static tinkc_engine *open_engine(const tinkc_clock *clock)
{
    tinkc_error err = { 0 };
    static const char *const settings[] = { "jwt_auth", "true", NULL };
    tinkc_engine *e =
        tinkc_engine_new(&(tinkc_engine_options){ .threads = 1, .settings = settings, .clock = clock }, &err);
    assert_ok(err);
    assert_true(tinkc_engine_add_model(e, "tiny", folder, &err));
    return e;
}

static int setup(void **state)
{
    (void)state;
    folder = tiny_model_make(&(tiny_model){ .family = "llama", .vocab = 64, .context = 64 });
    engine = open_engine(NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tinkc_engine_free(engine);
    tiny_model_remove(folder);
    return 0;
}

static tinkc_server *serve_on(tinkc_engine *e, const tinkc_serve_options *options)
{
    tinkc_error err = { 0 };
    tinkc_server *server = tinkc_engine_serve(e, options, &err);
    assert_ok(err);
    return server;
}

static tinkc_server *serve(const tinkc_serve_options *options)
{
    return serve_on(engine, options);
}

static int dial(const tinkc_server *server)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    struct timeval limit = { 30, 0 };
    to.sin_port = htons((uint16_t)strtol(strrchr(tinkc_server_url(server), ':') + 1, NULL, 10));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

/* Sends bytes, and reads what comes until there is a head and its body, or the end. Yours: held. */
static const char *ask_bytes(const tinkc_server *server, const char *bytes, size_t len)
{
    static char said[1 << 16];
    size_t n = 0;
    int fd = dial(server);
    for (size_t sent = 0; sent < len;) {
        ssize_t more = send(fd, bytes + sent, len - sent, MSG_NOSIGNAL);
        if (more <= 0)
            break;
        sent += (size_t)more;
    }
    said[0] = '\0';
    for (ssize_t got; n + 1 < sizeof said && (got = recv(fd, said + n, sizeof said - 1 - n, 0)) > 0;) {
        n += (size_t)got;
        said[n] = '\0';
        const char *end = strstr(said, "\r\n\r\n"), *length = strstr(said, "Content-Length: ");
        if (end && length && n >= (size_t)(end + 4 - said) + strtoul(length + 16, NULL, 10))
            break;
    }
    close(fd);
    return said;
}

static const char *ask(const tinkc_server *server, const char *text)
{
    return ask_bytes(server, text, strlen(text));
}

static void expect(const tinkc_server *server, const char *head, const char *status, const char *text)
{
    char request[2000], line[32];
    snprintf(request, sizeof request, "%s\r\n\r\n", head);
    snprintf(line, sizeof line, "HTTP/1.1 %s", status);
    const char *said = ask(server, request);
    if (strncmp(said, line, strlen(line)) != 0 || !strstr(said, text))
        fail_msg("%s\n---\n%s", head, said);
}

static double gauge(const char *name)
{
    tinkc_error err = { 0 };
    tinkc_text status = { 0 };
    double n = json_number(tinkc_engine_status(engine, &status, &err), name);
    tinkc_text_free(&status);
    return n;
}

/* Waits, in small steps of real time, for what the library's threads are about to do. */
static void wait_for(const char *name, double value)
{
    wait_until(gauge(name) == value);
    assert_true(gauge(name) == value);
}

/* ---- what is leaked ---- */

TEST(long_queries_are_answered)
{
    tinkc_server *server = serve(NULL);
    static char request[60000];
    for (int n = 100; n <= 20000; n += 4000) {
        char *at = request + sprintf(request, "GET /api/v1/healthz?");
        for (int i = 0; i < n; i++)
            at += sprintf(at, "a&");
        sprintf(at, " HTTP/1.1\r\nHost: localhost\r\n\r\n");
        const char *said = ask(server, request);
        assert_non_null(strstr(said, "HTTP/1.1 "));
        if (n < 15000 && !strstr(said, "200 OK"))
            fail_msg("%d names: %s", n, said);
    }
    for (int i = 0; i < 50; i++) { /* cookies take the same way */
        char *at = request + sprintf(request, "GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\nCookie: ");
        for (int k = 0; k < 5000; k++)
            at += sprintf(at, "a=b; ");
        sprintf(at, "\r\n\r\n");
        (void)ask(server, request);
    }
    wait_for("exchanges", 0);
    tinkc_server_free(server);
    wait_for("connections", 0);
}

/* ---- web pages elsewhere ---- */

#define HEALTH "GET /api/v1/healthz HTTP/1.1\r\nHost: "

TEST(only_known_hosts_are_served)
{
    tinkc_server *server = serve(NULL);
    static const char *const ours[] = { "localhost",    "localhost:9", "127.0.0.1",
                                        "LOCALHOST:80", "127.1.2.3:5", "[::1]:8000" };
    static const char *const theirs[] = { "evil.example",   "evil.example:8000", "127.0.0.1.nip.io",
                                          "localhost.evil", "10.0.0.1",          "127.evil.1" };
    static const char *const broken[] = { "a b", "[::1", "host:80x", "a/b", "user@localhost" };
    char head[300];
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        snprintf(head, sizeof head, HEALTH "%s", ours[i]);
        expect(server, head, "200", "ok");
    }
    for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++) {
        snprintf(head, sizeof head, HEALTH "%s", theirs[i]);
        expect(server, head, "403", "host_not_allowed");
    }
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        snprintf(head, sizeof head, HEALTH "%s", broken[i]);
        expect(server, head, "400", "");
    }
    tinkc_server_free(server);
    static const char *const allowed[] = { "models.example", NULL };
    server = serve(&(tinkc_serve_options){ .allow_hosts = allowed });
    expect(server, HEALTH "models.example:443", "200", "ok");
    expect(server, HEALTH "other.example", "403", "host_not_allowed");
    tinkc_server_free(server);
    /* With keys a page cannot do anything: any name will do, unless names were given. */
    static const char *const keys[] = { "tml-one", NULL };
    server = serve(&(tinkc_serve_options){ .api_keys = keys });
    expect(server, HEALTH "gpu.lan", "200", "ok");
    tinkc_server_free(server);
}

TEST(requests_of_other_pages_are_refused)
{
    static const char *const allowed[] = { "app.example", NULL };
    tinkc_server *server = serve(&(tinkc_serve_options){ .allow_hosts = allowed });
#define SESSION "POST /api/v1/create_session HTTP/1.1\r\nHost: localhost:8000\r\n"
#define BODY    "\r\nContent-Length: 29\r\n\r\n{\"tags\":[],\"sdk_version\":\"x\"}"
    static const struct {
        const char *head, *status, *text;
    } cases[] = {
        { SESSION "Content-Type: application/json" BODY, "200", "session_id" },
        { SESSION "Content-Type: application/json; charset=utf-8" BODY, "200", "session_id" },
        { SESSION "Content-Type: text/plain" BODY, "415", "unsupported_type" },
        { SESSION "Content-Type: application/x-www-form-urlencoded" BODY, "415", "unsupported" },
        { SESSION "X-Nothing: said" BODY, "415", "unsupported_type" },
        { SESSION "Origin: http://localhost:8000\r\nContent-Type: application/json" BODY, "200", "session_id" },
        { SESSION "Origin: https://app.example\r\nContent-Type: application/json" BODY, "200", "session_id" },
        { SESSION "Origin: https://evil.example\r\nContent-Type: application/json" BODY, "403", "origin_not_allowed" },
        { SESSION "Origin: http://localhost:3000\r\nContent-Type: application/json" BODY, "403", "origin_not_allowed" },
        { SESSION "Origin: null\r\nContent-Type: application/json" BODY, "403", "origin_not" },
        { SESSION "Sec-Fetch-Site: cross-site\r\nContent-Type: application/json" BODY, "403", "origin_not_allowed" },
        { SESSION "Sec-Fetch-Site: same-site\r\nContent-Type: application/json" BODY, "403", "origin_not_allowed" },
        { SESSION "Sec-Fetch-Site: same-origin\r\nContent-Type: application/json" BODY, "200", "session_id" },
        { HEALTH "localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n\r\n", "403", "origin_not" },
        { HEALTH "localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n\r\n", "200", "ok" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[32];
        snprintf(line, sizeof line, "HTTP/1.1 %s", cases[i].status);
        const char *said = ask(server, cases[i].head);
        if (strncmp(said, line, strlen(line)) != 0 || !strstr(said, cases[i].text))
            fail_msg("%s\n---\n%s", cases[i].head, said);
    }
    tinkc_server_free(server);
}

/* Links lead to names of ours, whatever a request calls us. */
TEST(links_do_not_echo_host)
{
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    service_wait(t, hold(json_field(service_json(t, 200, "POST", "/api/v1/save_weights",
                                                 "{\"model_id\":\"%s\",\"path\":\"a\",\"seq_id\":1}", model),
                                    "request_id")));
    tinkc_server *server = serve(NULL);
    char head[400];
    snprintf(head, sizeof head,
             "GET /api/v1/training_runs/%s/checkpoints/weights/a/archive HTTP/1.0\r\nHost: "
             "localhost:1\r\n\r\n",
             model);
    assert_non_null(strstr(ask(server, head), "Location: http://localhost:1/api/v1/archives/"));
    snprintf(head, sizeof head, "GET /api/v1/training_runs/%s/checkpoints/weights/a/archive HTTP/1.0\r\n\r\n", model);
    assert_non_null(strstr(ask(server, head), "Location: http://127.0.0.1:"));
    tinkc_server_free(server);
}

static void post(const tinkc_server *server, const char *key, const char *path, const char *status)
{
    char head[600];
    snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nHost: h\r\nX-API-Key: %s\r\nContent-Length: 0", path, key);
    expect(server, head, status, "");
}

/* What was public when the link was given is not any more: the link ends with it. */
TEST(links_end_with_their_right)
{
    static const char *const keys[] = { "tml-one", "tml-two", NULL };
    tinkc_server *server = serve(&(tinkc_serve_options){ .api_keys = keys });
    tinkc_error err = { 0 };
    tinkc_client *client = tinkc_client_new(
        &(tinkc_client_options){ .api_key = "tml-one", .base_url = tinkc_server_url(server), .proxy = "" }, &err);
    tinkc_trainer *trainer = tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "tiny", .rank = 4 }, &err);
    tinkc_future *saved = tinkc_trainer_save(trainer, "shared", NULL, &err);
    const char *path = hold(tinkc_future_path(saved, PATIENCE_MS, &err));
    assert_ok(err);
    char run[200], at[400], link[300];
    snprintf(run, sizeof run, "%.*s", (int)(strstr(path, "/weights/") - path - 9), path + 9);
    snprintf(at, sizeof at, "/api/v1/training_runs/%s/checkpoints/weights/shared/publish", run);
    post(server, "tml-one", at, "200");
    snprintf(at, sizeof at,
             "GET /api/v1/training_runs/%s/checkpoints/weights/shared/archive HTTP/1.1\r\nHost: "
             "localhost\r\nX-API-Key: tml-two\r\n\r\n",
             run);
    const char *location = strstr(ask(server, at), "/api/v1/archives/");
    assert_non_null(location);
    snprintf(link, sizeof link, "GET %.*s HTTP/1.1\r\nHost: h", (int)strcspn(location, "\r"), location);
    expect(server, link, "200", "");
    snprintf(at, sizeof at,
             "DELETE /api/v1/training_runs/%s/checkpoints/weights/shared/publish HTTP/1.1\r\nHost: "
             "h\r\nX-API-Key: tml-one",
             run);
    expect(server, at, "200", "");
    expect(server, link, "404", "not_found");
    tinkc_future_free(saved);
    tinkc_trainer_free(trainer);
    tinkc_client_free(client);
    tinkc_server_free(server);
}

static void delete_path(const tinkc_server *server, const char *key, const char *path)
{
    char head[600];
    snprintf(head, sizeof head, "DELETE %s HTTP/1.1\r\nHost: h\r\nX-API-Key: %s", path, key);
    expect(server, head, "200", "");
}

/* The key is gone, and with it the right to what it had asked for. It comes back; the link does not. */
TEST(links_end_with_their_key)
{
    static const char *const both[] = { "tml-one", "tml-two", NULL };
    static const char *const two[] = { "tml-two", NULL };
    static const char *const all[] = { "tml-one", "tml-two", "tml-three", NULL };
    tinkc_server *server = serve(&(tinkc_serve_options){ .api_keys = all });
    tinkc_error err = { 0 };
    tinkc_client *client = tinkc_client_new(
        &(tinkc_client_options){ .api_key = "tml-one", .base_url = tinkc_server_url(server), .proxy = "" }, &err);
    tinkc_trainer *trainer = tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "tiny", .rank = 4 }, &err);
    tinkc_future *saved = tinkc_trainer_save(trainer, "mine", NULL, &err);
    const char *path = hold(tinkc_future_path(saved, PATIENCE_MS, &err));
    assert_ok(err);
    char at[400], link[300];
    snprintf(at, sizeof at,
             "GET /api/v1/training_runs/%.*s/checkpoints/weights/mine/archive HTTP/1.1\r\nHost: "
             "localhost\r\nX-API-Key: tml-one\r\n\r\n",
             (int)(strstr(path, "/weights/") - path - 9), path + 9);
    const char *location = strstr(ask(server, at), "/api/v1/archives/");
    assert_non_null(location);
    snprintf(link, sizeof link, "GET %.*s HTTP/1.1\r\nHost: h", (int)strcspn(location, "\r"), location);
    expect(server, link, "200", "");
    assert_true(tinkc_server_set_keys(server, both, &err)); /* another's end is not its own */
    expect(server, link, "200", "");
    assert_true(tinkc_server_set_keys(server, two, &err));
    expect(server, link, "404", "not_found");
    assert_true(tinkc_server_set_keys(server, both, &err));
    expect(server, link, "404", "not_found");
    tinkc_future_free(saved);
    tinkc_trainer_free(trainer);
    tinkc_client_free(client);
    tinkc_server_free(server);
}

/* One sample of two tokens: NULL, or what was refused. */
static const char *sample_once(tinkc_sampler *sampler)
{
    static tinkc_error err;
    static const int32_t prompt[] = { 1, 2 };
    tinkc_sampling how = TINKC_SAMPLING_INIT;
    how.max_tokens = 2;
    err = (tinkc_error){ 0 };
    tinkc_future *f = tinkc_sample(sampler, prompt, 2, 1, &how, &err);
    (void)tinkc_future_samples(f, PATIENCE_MS, &err);
    tinkc_future_free(f);
    return err.code ? err.message : NULL;
}

/* A sampling session on somebody's public checkpoint ends when it is not public any more. */
TEST(sampling_ends_with_its_right)
{
    static const char *const keys[] = { "tml-one", "tml-two", NULL };
    tinkc_server *server = serve(&(tinkc_serve_options){ .api_keys = keys });
    const char *url = tinkc_server_url(server);
    tinkc_error err = { 0 };
    tinkc_client *one =
        tinkc_client_new(&(tinkc_client_options){ .api_key = "tml-one", .base_url = url, .proxy = "" }, &err);
    tinkc_client *two =
        tinkc_client_new(&(tinkc_client_options){ .api_key = "tml-two", .base_url = url, .proxy = "" }, &err);
    tinkc_trainer *trainer = tinkc_trainer_new(one, &(tinkc_lora_options){ .base_model = "tiny", .rank = 4 }, &err);
    tinkc_future *saved = tinkc_trainer_save_for_sampler(trainer, "open", NULL, &err);
    const char *path = hold(tinkc_future_path(saved, PATIENCE_MS, &err));
    assert_ok(err);
    char at[400];
    snprintf(at, sizeof at, "/api/v1/training_runs/%.*s/checkpoints/sampler_weights/open/publish",
             (int)(strstr(path, "/sampler_weights/") - path - 9), path + 9);
    post(server, "tml-one", at, "200");
    tinkc_sampler *theirs = tinkc_sampler_new(two, &(tinkc_sampler_options){ .model_path = path }, &err);
    tinkc_sampler *own = tinkc_sampler_new(one, &(tinkc_sampler_options){ .model_path = path }, &err);
    assert_ok(err);
    assert_null(sample_once(theirs));
    delete_path(server, "tml-one", at);
    const char *why = sample_once(theirs);
    assert_true(why && strstr(why, "do not have access to this checkpoint"));
    assert_null(sample_once(own)); /* the owner continues */
    post(server, "tml-one", at, "200");
    assert_null(sample_once(theirs));
    tinkc_sampler_free(theirs);
    tinkc_sampler_free(own);
    tinkc_future_free(saved);
    tinkc_trainer_free(trainer);
    tinkc_client_free(one);
    tinkc_client_free(two);
    tinkc_server_free(server);
}

/* ---- heads that can be read in two ways ---- */

TEST(ambiguous_heads_are_refused)
{
    tinkc_server *server = serve(NULL);
    static const char *const bad[] = {
        "POST /api/v1/telemetry HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        "2\r\nContent-Length: "
        "3\r\n\r\n{}",
        "POST /api/v1/telemetry HTTP/1.1\r\nHost: localhost\r\nContent-Length: +2\r\n\r\n{}",
        "POST /api/v1/telemetry HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0x2\r\n\r\n{}",
        "POST /api/v1/telemetry HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /api/v1/telemetry HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, "
        "chunked\r\n\r\n0\r\n\r\n",
        "GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
        "GET /api/v1/healthz HTTP/1.1\r\n\r\n",
        "GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\nX Y: 1\r\n\r\n",
        "GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\nX-A: a\rb\r\n\r\n",
        "GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\nX-API-Key: tml-a\rb\r\n\r\n",
        "GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\nX-A: a\x01"
        "b\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *said = ask(server, bad[i]);
        if (*said && strncmp(said, "HTTP/1.1 400", 12) != 0) /* the library may just hang up */
            fail_msg("%s\n---\n%s", bad[i], said);
    }
    expect(server, HEALTH "localhost", "200", "ok");
    wait_for("exchanges", 0);
    tinkc_server_free(server);
}

/* Some programs take a single CR or LF for the end of a line, and a NUL for the end of a text, and some do
 * not: what follows would be a header, or a request, to one of them only. */
TEST(lines_end_with_cr_lf)
{
    tinkc_server *server = serve(NULL);
#define LINE       "GET /api/v1/healthz HTTP/1.1"
#define TEXT(text) text, sizeof text - 1
    static const struct {
        const char *name, *bytes;
        size_t len;
        bool ok;
    } rows[] = {
        { "as it should be", TEXT(LINE "\r\nHost: localhost\r\nX-A: \r\nX-B:b \r\n\r\n"), true },
        { "LF after the request line", TEXT(LINE "\nHost: localhost\r\n\r\n"), false },
        { "LF after a header", TEXT(LINE "\r\nHost: localhost\nX-A: a\r\n\r\n"), false },
        { "LF after the last header", TEXT(LINE "\r\nX-A: a\r\nHost: localhost\n\r\n"), false },
        { "LF for the empty line", TEXT(LINE "\r\nHost: localhost\r\n\n"), false },
        { "LF everywhere", TEXT(LINE "\nHost: localhost\n\n"), false },
        { "CR after a header", TEXT(LINE "\r\nHost: localhost\rX-A: a\r\n\r\n"), false },
        { "CR in a value", TEXT(LINE "\r\nHost: localhost\r\nX-A: a\rb\r\n\r\n"), false },
        { "NUL in a value", TEXT(LINE "\r\nX-A: a\0b\r\nHost: localhost\r\n\r\n"), false },
        { "two NULs in a value", TEXT(LINE "\r\nX-A: a\0\0b\r\nHost: localhost\r\n\r\n"), false },
        { "NUL in the last value", TEXT(LINE "\r\nHost: localhost\r\nX-A: a\0b\r\n\r\n"), false },
        { "two in the last value", TEXT(LINE "\r\nHost: localhost\r\nX-A: a\0\0b\r\n\r\n"), false },
        { "NUL in a name", TEXT(LINE "\r\nHost: localhost\r\nX\0A: a\r\n\r\n"), false },
        { "NUL in the path", TEXT("GET /api/v1/healthz\0x HTTP/1.1\r\nHost: localhost\r\n\r\n"), false },
        { "a continued line", TEXT(LINE "\r\nHost: localhost\r\nX-A: a\r\n b\r\n\r\n"), false },
    };
#undef TEXT
#undef LINE
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char said[400] = "";
        int fd = dial(server);
        assert_int_equal(write(fd, rows[i].bytes, rows[i].len), rows[i].len);
        shutdown(fd, SHUT_WR);
        ssize_t n = recv(fd, said, sizeof said - 1, MSG_WAITALL);
        close(fd);
        bool ok = strncmp(said, "HTTP/1.1 200", 12) == 0;
        /* the library may just hang up */
        if (ok != rows[i].ok || (!ok && n > 0 && strncmp(said, "HTTP/1.1 400", 12) != 0))
            fail_msg("%s: %s", rows[i].name, said);
    }
    tinkc_server_free(server);
}

/* The library answers some of these itself, with two heads and a page of its own, or hangs up; either way nothing
 * behind it is read, neither as a body nor as a request. */
TEST(what_follows_an_unclear_length_is_no_request)
{
    tinkc_server *server = serve(NULL);
#define POST    "POST /api/v1/telemetry HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
#define LENGTH  "Content-Length: "
#define CHUNKED "Transfer-Encoding: chunked\r\n"
    static const char *const heads[] = {
        POST LENGTH "-1\r\n\r\n",
        POST LENGTH "-0\r\n\r\n",
        POST LENGTH "+2\r\n\r\n",
        POST LENGTH "\r\n\r\n",
        POST LENGTH "x\r\n\r\n",
        POST LENGTH "2 2\r\n\r\n",
        POST LENGTH "2, 2\r\n\r\n",
        POST LENGTH "2,3\r\n\r\n",
        POST LENGTH "0x2\r\n\r\n",
        POST LENGTH "2.0\r\n\r\n",
        POST LENGTH "9223372036854775808\r\n\r\n",
        POST LENGTH "18446744073709551615\r\n\r\n",
        POST LENGTH "18446744073709551618\r\n\r\n", /* 2 in 64 bits */
        POST LENGTH "4294967298000000000000000000002\r\n\r\n",
        POST LENGTH "2\r\n" LENGTH "2\r\n\r\n",
        POST LENGTH "2\r\n" LENGTH "3\r\n\r\n",
        POST LENGTH "0\r\n" LENGTH "2\r\n\r\n",
        POST LENGTH "2\r\ncontent-length: 0\r\n\r\n",
        POST LENGTH "2\r\n" CHUNKED "\r\n",
        POST CHUNKED LENGTH "2\r\n\r\n",
        POST CHUNKED LENGTH "-1\r\n\r\n",
        POST CHUNKED CHUNKED "\r\n",
        POST "Transfer-Encoding: chunked, chunked\r\n\r\n",
        POST "Transfer-Encoding: chunked;q=1\r\n\r\n",
        POST "Transfer-Encoding: identity\r\n\r\n",
        POST "Transfer-Encoding: \r\n\r\n",
        POST "Transfer-Encoding: gzip\r\n" LENGTH "2\r\n\r\n",
        "GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\n" LENGTH "-1\r\n\r\n",
        "GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\n" LENGTH "0\r\n" LENGTH "5\r\n\r\n",
        "GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\n" LENGTH "5\r\n" CHUNKED "\r\n",
    };
#undef CHUNKED
#undef LENGTH
#undef POST
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        char request[1000], said[4000] = "";
        int n = snprintf(request, sizeof request, "%s{}" HEALTH "localhost\r\n\r\n", heads[i]);
        int fd = dial(server);
        assert_int_equal(send(fd, request, (size_t)n, MSG_NOSIGNAL), n);
        ssize_t got = recv(fd, said, sizeof said - 1, MSG_WAITALL); /* until it is closed */
        close(fd);
        bool refused = tkc_starts_with(tkc_str(said), "HTTP/1.1 400") ||
                       tkc_starts_with(tkc_str(said), "HTTP/1.1 413"); /* beyond 64 bits */
        if (!refused || strstr(said, "HTTP/1.1 200"))
            fail_msg("%s\n---\n%zd %s", heads[i], got, said);
    }
    expect(server, HEALTH "localhost", "200", "ok");
    wait_for("exchanges", 0);
    tinkc_server_free(server);
}

/* Programs differ in where a chunk ends (a single LF, an extension with one), so what follows a body in chunks
 * may be a part of it to a proxy in front: it is never read as a request. */
TEST(what_follows_chunks_is_no_request)
{
    tinkc_server *server = serve(NULL);
#define CHUNKED "Host: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
#define NEXT    "GET /api/v1/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    static const char *const framed[] = {
        "POST /api/v1/telemetry HTTP/1.1\r\n" CHUNKED "2\r\n{}\r\n0\r\n\r\n" NEXT,
        "POST /api/v1/telemetry HTTP/1.1\r\n" CHUNKED "2\n{}\n0\n\n" NEXT,
        "POST /api/v1/telemetry HTTP/1.1\r\n" CHUNKED "2;a=\nb\r\n{}\r\n0\r\n\r\n" NEXT,
        "GET /api/v1/healthz HTTP/1.1\r\n" CHUNKED "0\r\n\r\n" NEXT,
        "GET /api/v1/healthz HTTP/1.1\r\n" CHUNKED "0\n\n" NEXT,
        "POST /api/v1/nothing HTTP/1.1\r\n" CHUNKED "2\n{}\n0\n\n" NEXT,
    };
#undef NEXT
#undef CHUNKED
    for (size_t i = 0; i < sizeof framed / sizeof *framed; i++) {
        char said[4000] = "";
        int fd = dial(server);
        send(fd, framed[i], strlen(framed[i]), MSG_NOSIGNAL);
        ssize_t n = recv(fd, said, sizeof said - 1, MSG_WAITALL); /* until it is closed */
        close(fd);
        if (n < 0 || (n && strstr(said + 1, "HTTP/1.1 ")))
            fail_msg("%s\n---\n%zd %s", framed[i], n, said);
    }
    tinkc_server_free(server);
}

/* A Transfer-Encoding behind the last header that is looked at must not go unnoticed. */
TEST(what_follows_too_many_headers_is_no_request)
{
    tinkc_server *server = serve(NULL);
    char request[4000] = HEALTH "localhost\r\n", said[4000] = "";
    size_t n = strlen(request);
    for (int i = 0; i < 300; i++)
        n += (size_t)snprintf(request + n, sizeof request - n, "A: b\r\n");
    snprintf(request + n, sizeof request - n, "Transfer-Encoding: chunked\r\n\r\n0\n\n" HEALTH "localhost\r\n\r\n");
    int fd = dial(server);
    send(fd, request, strlen(request), MSG_NOSIGNAL);
    assert_true(recv(fd, said, sizeof said - 1, MSG_WAITALL) > 0);
    close(fd);
    assert_true(strncmp(said, "HTTP/1.1 431", 12) == 0);
    assert_null(strstr(said + 1, "HTTP/1.1 "));
    tinkc_server_free(server);
}

/* libmicrohttpd writes two heads for what it refuses itself, so it is not asked to refuse this. */
TEST(a_request_without_host_gets_one_answer)
{
    tinkc_server *server = serve(NULL);
    const char *said = ask(server, "GET /api/v1/healthz HTTP/1.1\r\n\r\n");
    assert_true(strncmp(said, "HTTP/1.1 400", 12) == 0);
    assert_null(strstr(said + 1, "HTTP/1.1"));
    assert_non_null(strstr(said, "exactly one Host"));
    tinkc_server_free(server);
}

/* 64 KiB for a head. */
TEST(a_head_has_at_most_64_KiB)
{
    static char request[80000];
    tinkc_server *server = serve(NULL);
    for (int n = 50000; n <= 70000; n += 20000) {
        snprintf(request, sizeof request, HEALTH "localhost\r\nX-Long: %0*d\r\n\r\n", n, 0);
        const char *said = ask(server, request);
        if ((strncmp(said, "HTTP/1.1 200", 12) == 0) != (n == 50000))
            fail_msg("%d bytes: %s", n, said);
    }
    tinkc_server_free(server);
}

TEST(unknown_paths_need_no_key)
{
    static const char *const keys[] = { "tml-one", NULL };
    tinkc_server *server = serve(&(tinkc_serve_options){ .api_keys = keys, .openai = true });
    expect(server, "GET /api/v2/nothing HTTP/1.1\r\nHost: h", "404", "unknown_endpoint");
    expect(server, "GET /api/v1/sessions HTTP/1.1\r\nHost: h", "401", "unauthorized");
    expect(server, "GET /v1/models HTTP/1.1\r\nHost: h", "401", "authentication_error");
    expect(server, "GET /oai/api/v1/models/nano HTTP/1.1\r\nHost: h", "401", "authentication_error");
    expect(server, "GET /v1/nothing HTTP/1.1\r\nHost: h", "404", "unknown_endpoint");
    expect(server, "GET /oai/api/v1/modelsx HTTP/1.1\r\nHost: h", "404", "unknown_endpoint");
    expect(server, "GET /oai/api/v1/models HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer tml-one", "200", "\"tiny\"");
    expect(server, "GET /oai/api/v1/models/%zz HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer tml-one", "400", "percent");
    expect(server, "GET /v1/models/tiny HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer tml-one", "200", "\"tiny\"");
    expect(server, "HEAD /api/v1/healthz HTTP/1.1\r\nHost: h\r\nConnection: close", "200", "");
    tinkc_server_free(server);
}

/* ---- peers ---- */

TEST(slow_heads_end)
{
    char byte;
    tinkc_server *server = serve(&(tinkc_serve_options){ .head_timeout_ms = 200 });
    int fd = dial(server), quiet = dial(server);
    const char half[] = "GET /api/v1/healthz HTTP/1.1\r\nHost: local";
    assert_int_equal(send(fd, half, sizeof half - 1, MSG_NOSIGNAL), sizeof half - 1);
    assert_true(recv(fd, &byte, 1, 0) <= 0); /* closed, though it sent something */
    assert_true(recv(quiet, &byte, 1, 0) <= 0);
    close(fd);
    close(quiet);
    wait_for("connections", 0);
    tinkc_server_free(server);
}

static bool is_open(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0;
}

static int count_open(const int *fds, int n)
{
    int n_open = 0;
    for (int i = 0; i < n; i++)
        n_open += is_open(fds[i]);
    return n_open;
}

/* As many as there may be: the one that was idle longest makes room for the next. */
TEST(a_full_server_closes_the_longest_idle)
{
    enum { MOST = 20 };
    int fds[MOST + 5];
    tinkc_server *server = serve(&(tinkc_serve_options){
        .max_connections = MOST, .max_per_address = 1000, .head_timeout_ms = 10 * PATIENCE_MS });
    for (int i = 0; i < MOST + 5; i++) {
        fds[i] = dial(server);
        wait_until(gauge("connections") >= (i < MOST ? i + 1 : MOST));
    }
    wait_for("connections", MOST);
    expect(server, HEALTH "localhost", "200", "ok"); /* and one more is served */
    wait_until(!is_open(fds[0]));
    assert_false(is_open(fds[0]));
    assert_true(is_open(fds[MOST + 4]));
    for (int i = 0; i < MOST + 5; i++)
        close(fds[i]);
    tinkc_server_free(server);
    /* One address has no more than its share. */
    server = serve(
        &(tinkc_serve_options){ .max_connections = 100, .max_per_address = 3, .head_timeout_ms = 10 * PATIENCE_MS });
    for (int i = 0; i < MOST; i++)
        fds[i] = dial(server);
    wait_until(count_open(fds, MOST) <= 3);
    assert_int_equal(count_open(fds, MOST), 3); /* long before the deadline for their heads */
    wait_for("connections", 3);
    for (int i = 0; i < MOST; i++)
        close(fds[i]);
    tinkc_server_free(server);
}

/* The server keeps descriptors for files: with 64 allowed it takes at most 32 connections. */
TEST(descriptors_for_files)
{
    struct rlimit before, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    tinkc_server *server =
        serve(&(tinkc_serve_options){ .max_per_address = 1000, .head_timeout_ms = 10 * PATIENCE_MS });
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    int fds[60];
    for (int i = 0; i < 60; i++)
        fds[i] = dial(server);
    wait_until(count_open(fds, 60) <= 32); /* the gauge alone passes 32 on its way up */
    assert_int_equal(count_open(fds, 60), 32);
    wait_for("connections", 32);
    expect(server, HEALTH "localhost", "200", "ok");
    for (int i = 0; i < 60; i++)
        close(fds[i]);
    tinkc_server_free(server);
}

/* ---- keys ---- */

static void with_key(const tinkc_server *server, const char *key, const char *status)
{
    char head[1200];
    snprintf(head, sizeof head, "GET /api/v1/sessions HTTP/1.1\r\nHost: h\r\nX-API-Key: %s", key);
    expect(server, head, status, "");
}

static void token_of(const tinkc_server *server, const char *key, char out[800])
{
    char head[1200];
    snprintf(head, sizeof head,
             "POST /api/v1/auth/token HTTP/1.1\r\nHost: h\r\nX-API-Key: %s\r\nContent-Length: "
             "0\r\n\r\n",
             key);
    const char *said = ask(server, head), *at = strstr(said, "\"jwt\":\"");
    if (!at)
        fail_msg("%s", said);
    snprintf(out, 800, "%.*s", (int)strcspn(at + 7, "\""), at + 7);
}

TEST(keys_taken_away)
{
    static const char *const both[] = { "tml-one", "tml-two", NULL };
    static const char *const two[] = { "tml-two", NULL };
    static const char *const none[] = { NULL };
    tinkc_error err = { 0 };
    char one_token[800], two_token[800], again[800];
    tinkc_server *server = serve(&(tinkc_serve_options){ .api_keys = both });
    token_of(server, "tml-one", one_token);
    token_of(server, "tml-two", two_token);
    token_of(server, one_token, again); /* a token is renewed with a token */
    with_key(server, again, "200");
    assert_true(tinkc_server_set_keys(server, two, &err));
    with_key(server, "tml-one", "401");
    with_key(server, one_token, "401");
    with_key(server, again, "401");
    with_key(server, two_token, "200");
    /* It comes back; what was exchanged before does not. */
    assert_true(tinkc_server_set_keys(server, both, &err));
    with_key(server, "tml-one", "200");
    with_key(server, one_token, "401");
    with_key(server, two_token, "200");
    assert_false(tinkc_server_set_keys(server, none, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    with_key(server, "tml-two", "200");
    tinkc_server_free(server);
}

/* A number of the quota's report. */
static int64_t quota_number(const tinkc_server *server, const char *key, const char *name)
{
    char head[300], at[80];
    snprintf(head, sizeof head, "GET /status HTTP/1.1\r\nHost: h\r\nX-API-Key: %s\r\n\r\n", key);
    snprintf(at, sizeof at, "\"%s\":", name);
    const char *found = strstr(ask(server, head), at);
    assert_non_null(found);
    return strtoll(found + strlen(at), NULL, 10);
}

/* Requests that arrive together do not each find the quota unused. The last one may exceed it. */
TEST(work_in_flight_counts_towards_quotas)
{
    enum { N = 12, EACH = 40, TOKENS = 50, STORAGE = 2000 };
    static const char *const keys[] = { "tml-tok tokens=50", "tml-sto storage=2000", NULL };
    static const int32_t prompt[] = { 1, 2 };
    tinkc_error err = { 0 };
    tinkc_server *server = serve(&(tinkc_serve_options){ .api_keys = keys });
    const char *url = tinkc_server_url(server);
    tinkc_client *client =
        tinkc_client_new(&(tinkc_client_options){ .api_key = "tml-tok", .base_url = url, .proxy = "" }, &err);
    tinkc_sampler *sampler = tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "tiny" }, &err);
    assert_ok(err);
    tinkc_sampling how = TINKC_SAMPLING_INIT;
    tinkc_future *all[N];
    how.max_tokens = EACH;
    for (size_t i = 0; i < N; i++)
        all[i] = tinkc_sample(sampler, prompt, 2, 1, &how, &err);
    assert_ok(err);
    for (size_t i = 0; i < N; i++) {
        tinkc_error one = { 0 };
        (void)tinkc_future_wait(all[i], PATIENCE_MS, &one);
        tinkc_future_free(all[i]);
    }
    int64_t used = quota_number(server, "tml-tok", "tokens_today");
    assert_true(used >= TOKENS && used < TOKENS + EACH + 2);
    tinkc_sampler_free(sampler);
    tinkc_client_free(client);
    client = tinkc_client_new(&(tinkc_client_options){ .api_key = "tml-sto", .base_url = url, .proxy = "" }, &err);
    tinkc_trainer *trainer = tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "tiny", .rank = 4 }, &err);
    assert_ok(err);
    for (size_t i = 0; i < N; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%zu", i);
        all[i] = tinkc_trainer_save(trainer, name, NULL, &err);
    }
    size_t saved = 0;
    for (size_t i = 0; i < N; i++) {
        tinkc_error one = { 0 };
        saved += tinkc_future_wait(all[i], PATIENCE_MS, &one);
        tinkc_future_free(all[i]);
    }
    assert_int_equal(saved, 1); /* one checkpoint is larger than the quota */
    assert_true(quota_number(server, "tml-sto", "storage_bytes_used") > STORAGE);
    tinkc_trainer_free(trainer);
    tinkc_client_free(client);
    tinkc_server_free(server);
}

/* On a clock that stands still: the minute does not end between two requests. */
TEST(each_key_has_its_quota)
{
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_EMPTY, &err);
    tinkc_engine *timeless = open_engine(tinkc_mock_clock(mock));
    static const char *const keys[] = { "tml-few requests=3 storage=1", "tml-many tokens=5", NULL };
    static const char *const bad[] = { "tml-x requests=0", "tml-x email=", "tml-x email=ada", "tml-x email=@",
                                       "tml-x colour=red" };
    tinkc_server *server = serve_on(timeless, &(tinkc_serve_options){ .api_keys = keys });
    for (int i = 0; i < 3; i++)
        with_key(server, "tml-few", "200");
    expect(server, "GET /api/v1/sessions HTTP/1.1\r\nHost: h\r\nX-API-Key: tml-few", "429", "Retry-After");
    expect(server, "GET /status HTTP/1.1\r\nHost: h\r\nX-API-Key: tml-few", "200",
           "\"requests_per_minute\":3,\"requests_this_minute\":3");
    tinkc_mock_advance(mock, 60000);
    with_key(server, "tml-few", "200");
    static const char sample[] =
        "{\"base_model\":\"tiny\",\"prompt\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":"
        "[1,2,3]}]},\"num_samples\":1,\"sampling_params\":{\"max_tokens\":8}}";
    char request[800];
    snprintf(request, sizeof request,
             "POST /api/v1/asample HTTP/1.1\r\nHost: h\r\nX-API-Key: tml-many\r\nContent-Type: "
             "application/json\r\nContent-Length: %zu\r\n\r\n%s",
             sizeof sample - 1, sample);
    assert_non_null(strstr(ask(server, request), "HTTP/1.1 200"));
    wait_until(strstr(ask(server, request), "HTTP/1.1 403")); /* until the first has been counted */
    assert_non_null(strstr(ask(server, request), "quota_tokens"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err = (tinkc_error){ 0 };
        assert_false(tinkc_server_set_keys(server, (const char *const[]){ bad[i], NULL }, &err));
        assert_null(strstr(err.message, "tml-x")); /* a key is never repeated */
    }
    tinkc_server_free(server);
    tinkc_engine_free(timeless);
    tinkc_mock_free(mock);
}

/* ---- bodies ---- */

TEST(a_packed_body_is_bounded_unpacked)
{
    tinkc_error err = { 0 };
    enum { BIG = 64 << 20 };
    char *zeros = calloc(1, BIG), *request = malloc(1 << 20);
    tkc_buf packed;
    tkc_buf_init(&packed, NULL, TKC_BUF_NO_MAX);
    assert_true(tkc_zstd_compress(zeros, BIG, &packed, &err));
    assert_true(packed.len < 1 << 16);
    tinkc_server *server = serve(NULL);
    size_t before = tkc_heap_now().resident;
    int n = sprintf(request,
                    "POST /api/v1/create_session HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                    "application/json\r\nContent-Encoding: zstd\r\nContent-Length: %zu\r\n\r\n",
                    packed.len);
    memcpy(request + n, packed.data, packed.len);
    const char *said = ask_bytes(server, request, (size_t)n + packed.len);
    assert_non_null(strstr(said, "HTTP/1.1 413"));                /* this path takes a megabyte, packed or not */
    assert_non_null(strstr(said, "1048576 bytes when unpacked")); /* and is stopped there */
    assert_true(tkc_heap_now().resident < before + ((size_t)16 << 20));
    expect(server,
           "POST /api/v1/create_session HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
           "application/json\r\nContent-Length: 2000000\r\nExpect: 100-continue",
           "413", "too large: at most 1048576 bytes"); /* known before it is read */
    tkc_buf_free(&packed);
    free(zeros);
    free(request);
    tinkc_server_free(server);
}

/* ---- secrets ---- */

/* Does a core dump of this process hold the text? Regions that are left out of dumps do not count. */
static bool in_a_core_dump(const char *text, size_t len)
{
    FILE *maps = fopen("/proc/self/smaps", "r"), *memory = fopen("/proc/self/mem", "r");
    char line[600], mode[8];
    unsigned long from = 0, to = 0, a, b;
    bool found = false, readable = false;
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %7s", &a, &b, mode) == 3 && strchr(line, '-') < strchr(line, ' '))
            from = a, to = b, readable = mode[0] == 'r' && mode[1] == 'w';
        bool flags = strncmp(line, "VmFlags:", 8) == 0;
        if (!flags || !readable || strstr(line, " dd") || to - from > (1UL << 30))
            continue;
        unsigned char *copy = malloc(to - from);
        size_t n = fseek(memory, (long)from, SEEK_SET) == 0 ? fread(copy, 1, to - from, memory) : 0;
        for (const unsigned char *p = copy; n >= len && (p = memmem(p, n - (size_t)(p - copy), text, len)); p++)
            if ((uintptr_t)text != from + (uintptr_t)(p - copy))
                found = true;
        explicit_bzero(copy, to - from);
        free(copy);
    }
    fclose(maps);
    fclose(memory);
    return found;
}

TEST(keys_are_in_no_core_dump)
{
    /* Spelt out at run time, and kept where dumps do not reach. */
    enum { LEN = 36 };
    tinkc_error err = { 0 };
    char *key = tkc_secret_alloc(4096, &err), *request = tkc_secret_alloc(4096, &err);
    char *said = request + 2048;
    for (int i = 0; i < LEN; i++)
        key[i] = (char)("tml-"[i % 4] ^ (i < 4 ? 0 : 1 + i % 7));
    key[LEN] = '\0';
    const char *keys[] = { key, NULL };
    tinkc_server *server = serve(&(tinkc_serve_options){ .api_keys = keys });
    int fd = dial(server);
    int n = snprintf(request, 1024, "GET /api/v1/sessions HTTP/1.1\r\nHost: h\r\nX-API-Key: %s\r\n\r\n", key);
    assert_int_equal(send(fd, request, (size_t)n, MSG_NOSIGNAL), n);
    assert_true(recv(fd, said, 1024, 0) > 0);
    assert_non_null(strstr(said, "200 OK"));
    assert_false(in_a_core_dump(key, LEN)); /* while the connection is still open */
    close(fd);
    tinkc_server_free(server);
    tkc_secret_free(key, 4096);
    tkc_secret_free(request, 4096);
}

RUN_TESTS(setup, teardown)
