/* test_http_calls.c - what the transport asks of libcurl, setting by setting, and what it makes of
 * each answer: on a scripted libcurl and a clock that the test moves. */
#include "support/check.h"
#include "support/scripted_curl.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/http_internal.h"
#include "tinkc/sys/mock.h"

static tinkc_mock *mock;
static tkc_loop *loop;
static tkc_http *http;

/* ---- a request, and everything its reply was given, as text ---- */

typedef struct exchange {
    tinkc_reply reply;
    tinkc_request request;
    tkc_task task;
    char log[2048];
    bool refuses_head, refuses_body;
    size_t room;
    void (*at_end)(void); /* from inside end or fail */
} exchange;

enum { MOST = 512 };
static exchange all[MOST];
static size_t n_sent;

static exchange *of(tinkc_reply *r)
{
    return TKC_OWNER(r, exchange, reply);
}

static void say(exchange *x, const char *what, const char *text)
{
    size_t used = strlen(x->log);
    (void)snprintf(x->log + used, sizeof x->log - used, "%s%s;", what, text);
}

static void on_status(tinkc_reply *r, int32_t status)
{
    char text[16];
    (void)snprintf(text, sizeof text, "%d", (int)status);
    say(of(r), "", text);
}

static void on_header(tinkc_reply *r, const char *name, const char *value)
{
    char text[256];
    (void)snprintf(text, sizeof text, "%s=%s", name, value);
    say(of(r), "", text);
}

static bool on_write(tinkc_reply *r, const void *data, size_t len)
{
    char text[256];
    (void)snprintf(text, sizeof text, "%.*s", (int)len, (const char *)data);
    say(of(r), len ? "body " : "head", text);
    return len ? !of(r)->refuses_body : !of(r)->refuses_head;
}

static void on_end(tinkc_reply *r)
{
    say(of(r), "end", "");
    if (of(r)->at_end)
        of(r)->at_end();
}

static void on_fail(tinkc_reply *r, int32_t code, const char *message)
{
    char text[512];
    (void)snprintf(text, sizeof text, "%d %s", (int)code, message);
    say(of(r), "fail ", text);
}

static size_t on_room(tinkc_reply *r)
{
    return of(r)->room;
}

static int64_t settle(void)
{
    tinkc_error err = { 0 };
    int64_t next = tinkc_mock_settle(mock, 60000, &err);
    assert_ok(err);
    return next;
}

static void send_now(tkc_task *task)
{
    exchange *x = TKC_OWNER(task, exchange, task);
    const tinkc_transport *t = tkc_http_transport(http);
    t->send(t->self, &x->request, &x->reply);
}

static exchange *make(const char *method, const char *base, int32_t pool)
{
    static const char *const headers[] = { "X-API-Key", "secret", "Accept", "a/b", NULL };
    exchange *x = &all[n_sent++];
    *x = (exchange){ .reply = { .status = on_status,
                                .header = on_header,
                                .write = on_write,
                                .end = on_end,
                                .fail = on_fail },
                     .request = { .method = method,
                                  .path = "/p",
                                  .base_url = base,
                                  .headers = headers,
                                  .connect_timeout_ms = 500,
                                  .idle_timeout_ms = 1000,
                                  .pool = pool },
                     .task.run = send_now };
    return x;
}

static void post(exchange *x, void (*run)(tkc_task *))
{
    x->task.run = run;
    tkc_loop_post(loop, &x->task);
}

static exchange *sent(exchange *x)
{
    post(x, send_now);
    settle();
    return x;
}

static void resume_now(tkc_task *task)
{
    const tinkc_transport *t = tkc_http_transport(http);
    t->resume(t->self, &TKC_OWNER(task, exchange, task)->reply);
}

static void cancel_now(tkc_task *task)
{
    const tinkc_transport *t = tkc_http_transport(http);
    t->cancel(t->self, &TKC_OWNER(task, exchange, task)->reply);
}

/* Runs part of the script on the loop's thread. */
typedef struct act {
    tkc_task task;
    void (*fn)(scripted_easy *, const char *);
    scripted_easy *easy;
    const char *arg;
    CURLcode result;
} act;

static void end_now(tkc_task *task)
{
    act *a = TKC_OWNER(task, act, task);
    scripted_end(a->easy, a->result);
}

static void act_now(tkc_task *task)
{
    act *a = TKC_OWNER(task, act, task);
    a->fn(a->easy, a->arg);
}

static int64_t play(size_t nth, void (*fn)(scripted_easy *, const char *), const char *arg)
{
    act a = { .task.run = act_now, .fn = fn, .easy = scripted_nth(nth), .arg = arg };
    assert_non_null(a.easy);
    tkc_loop_post(loop, &a.task);
    return settle();
}

static void head_and_end(scripted_easy *e, const char *lines)
{
    (void)scripted_head(e, lines);
    scripted_end(e, CURLE_OK);
}

static void head_only(scripted_easy *e, const char *lines)
{
    (void)scripted_head(e, lines);
}

static void body_only(scripted_easy *e, const char *text)
{
    (void)scripted_body(e, text);
}

static void end_well(scripted_easy *e, const char *unused)
{
    (void)unused;
    scripted_end(e, CURLE_OK);
}

static void answer_http2(scripted_easy *e, const char *lines)
{
    e->http_version = CURL_HTTP_VERSION_2_0;
    head_and_end(e, lines);
}

static void see_progress(scripted_easy *e, const char *bytes)
{
    assert_int_equal(e->progress_fn(e->progress_data, 0, 0, 0, atoi(bytes)), 0);
}

/* ---- life ---- */

static void open_with(const tkc_http_options *options)
{
    tinkc_error err = { 0 };
    http = tkc_http_new(NULL, loop, options, &err);
    assert_ok(err);
    n_sent = 0;
}

static int setup(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    scripted_curl_start();
    mock = tinkc_mock_new(TINKC_MOCK_EMPTY, &err);
    loop = tkc_loop_new(NULL, tinkc_mock_clock(mock), &err);
    assert_ok(err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_sent; i++)
        post(&all[i], cancel_now);
    settle();
    tkc_loop_stop(loop);
    bool ended = tkc_loop_join(loop, 60000);
    tkc_http_free(http);
    tinkc_mock_free(mock);
    return ended && scripted_easies_open() == 0 && scripted_multis_open() == 0 ? 0 : 1;
}

/* ---- settings ---- */

/* The settings of the nth transfer without those that are the same for all. */
static const char *settings(size_t nth)
{
    static char text[4096];
    static const char *const same[] = { "NOSIGNAL=1\n",     "TCP_KEEPALIVE=1\n",
                                        "QUICK_EXIT=1\n",   "SUPPRESS_CONNECT_HEADERS=1\n",
                                        "HTTP_VERSION=4\n", "NOPROGRESS=0\n" };
    (void)snprintf(text, sizeof text, "%s", scripted_nth(nth)->settings);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        char *at = strstr(text, same[i]);
#if LIBCURL_VERSION_NUM < 0x075700
        if (i == 2)
            continue;
#endif
        assert_non_null(at);
        memmove(at, at + strlen(same[i]), strlen(at + strlen(same[i])) + 1);
    }
    return text;
}

#define HEADERS "HTTPHEADER=X-API-Key: secret|Accept: a/b|Expect:|Content-Type:|\n"
#define ENDING                                                                                     \
    "PROXY=\nNOPROXY=\nBUFFERSIZE=32768\nCONNECTTIMEOUT_MS=500\nACCEPT_ENCODING=\n" HEADERS        \
    "URL=http://h/p\n"
#define ENDING_TLS(more)                                                                           \
    "PROXY=\nNOPROXY=\nSSL_VERIFYPEER=1\nSSL_VERIFYHOST=2\nSSLVERSION=6\n" more                    \
    "BUFFERSIZE=32768\nCONNECTTIMEOUT_MS=500\nACCEPT_ENCODING=\n" HEADERS "URL=https://h/p\n"

static size_t read_some(const tinkc_request *r, uint64_t at, void *to, size_t cap)
{
    static const char text[] = "0123456789";
    size_t n = (size_t)r->body_size - (size_t)at;
    n = n < cap ? n : cap;
    memcpy(to, text + at, n);
    return n;
}

static void each_method_has_its_settings(void **state)
{
    (void)state;
    static const struct {
        const char *method, *base, *body;
        int32_t pool;
        const char *want;
    } rows[] = {
        { "GET", "http://h", NULL, TINKC_POOL_RETRIEVE, "HTTPGET=1\nCUSTOMREQUEST=GET\n" ENDING },
        { "HEAD", "http://h", NULL, TINKC_POOL_RETRIEVE, "NOBODY=1\n" ENDING },
        { "POST", "http://h", NULL, TINKC_POOL_RETRIEVE,
          "POST=1\nPOSTFIELDS=\nPOSTFIELDSIZE_LARGE=0\nCUSTOMREQUEST=POST\n" ENDING },
        { "PATCH", "http://h", NULL, TINKC_POOL_RETRIEVE,
          "POST=1\nPOSTFIELDS=\nPOSTFIELDSIZE_LARGE=0\nCUSTOMREQUEST=PATCH\n" ENDING },
        { "PUT", "http://h", "abc", TINKC_POOL_RETRIEVE,
          "POST=1\nPOSTFIELDS=abc\nPOSTFIELDSIZE_LARGE=3\nCUSTOMREQUEST=PUT\n" ENDING },
        { "DELETE", "http://h", NULL, TINKC_POOL_RETRIEVE,
          "HTTPGET=1\nCUSTOMREQUEST=DELETE\n" ENDING },
        { "DELETE", "http://h", "{}", TINKC_POOL_RETRIEVE,
          "POST=1\nPOSTFIELDS={}\nPOSTFIELDSIZE_LARGE=2\nCUSTOMREQUEST=DELETE\n" ENDING },
        /* Over TLS requests wait for a connection that they can share, but for training. */
        { "GET", "https://h", NULL, TINKC_POOL_RETRIEVE,
          "HTTPGET=1\nCUSTOMREQUEST=GET\n" ENDING_TLS("PIPEWAIT=1\n") },
        { "GET", "https://h", NULL, TINKC_POOL_TRAIN,
          "HTTPGET=1\nCUSTOMREQUEST=GET\n" ENDING_TLS("") },
    };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        exchange *x = make(rows[i].method, rows[i].base, rows[i].pool);
        if (rows[i].body)
            x->request.body =
                (tinkc_bytes){ (const unsigned char *)rows[i].body, strlen(rows[i].body) };
        sent(x);
        assert_string_equal(settings(i), rows[i].want);
    }
}

static void limits_become_settings(void **state)
{
    (void)state;
    static const struct {
        int64_t connect;
        const char *want;
    } rows[] = { { 1, "CONNECTTIMEOUT_MS=1\n" },
                 { 5000, "CONNECTTIMEOUT_MS=5000\n" },
                 { 0, "CONNECTTIMEOUT_MS=2147483647\n" },
                 { -1, "CONNECTTIMEOUT_MS=2147483647\n" },
                 { INT32_MAX, "CONNECTTIMEOUT_MS=2147483647\n" },
                 { INT64_C(1) << 40, "CONNECTTIMEOUT_MS=2147483647\n" } };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        exchange *x = make("GET", "http://h", TINKC_POOL_SESSION);
        x->request.connect_timeout_ms = rows[i].connect;
        sent(x);
        assert_non_null(strstr(settings(i), rows[i].want));
    }
}

/* Few plain calls have large buffers; a crowd has small ones. */
static void buffers_shrink_in_a_crowd(void **state)
{
    (void)state;
    static const struct {
        size_t active;
        const char *want;
    } rows[] = { { 1, "BUFFERSIZE=65536\n" },
                 { 4, "BUFFERSIZE=65536\n" },
                 { 5, "BUFFERSIZE=32768\n" },
                 { 64, "BUFFERSIZE=32768\n" },
                 { 65, "BUFFERSIZE=2048\n" } };
    open_with(&(tkc_http_options){ .proxy = "", .max_connections = 100 * 16 });
    for (size_t i = 0; i < 65; i++)
        sent(make("GET", "http://h", TINKC_POOL_REST));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_non_null(strstr(scripted_nth(rows[i].active - 1)->settings, rows[i].want));
}

static void routes_become_settings(void **state)
{
    (void)state;
    open_with(&(tkc_http_options){ .base_url = "http://service/api",
                                   .unix_socket = "/run/s",
                                   .proxy = "http://proxy",
                                   .ca_file = "/ca.pem" });
    sent(make("GET", "http://service/api/", TINKC_POOL_REST));
    assert_non_null(strstr(settings(0), "UNIX_SOCKET_PATH=/run/s\nPROXY=\nNOPROXY=\n"));
    assert_non_null(strstr(settings(0), "URL=http://service/api/p\n"));
    sent(make("GET", "http://other", TINKC_POOL_REST));
    assert_null(strstr(settings(1), "UNIX_SOCKET_PATH"));
    assert_non_null(strstr(settings(1), "PROXY=http://proxy\nNOPROXY=\n"));
    sent(make("GET", "HTTPS://other", TINKC_POOL_REST));
    assert_non_null(strstr(settings(2), "PROXY=http://proxy\nNOPROXY=\nSSL_VERIFYPEER=1\n"));
    assert_non_null(strstr(settings(2), "CAINFO=/ca.pem\n"));
    assert_null(strstr(settings(2), "CAPATH"));
    assert_null(strstr(settings(1), "CAINFO"));
}

static void clear_environment(void)
{
    static const char *const names[] = { "all_proxy",    "ALL_PROXY",     "http_proxy",
                                         "HTTP_PROXY",   "https_proxy",   "HTTPS_PROXY",
                                         "no_proxy",     "NO_PROXY",      "SSL_CERT_FILE",
                                         "SSL_CERT_DIR", "REQUEST_METHOD" };
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        unsetenv(names[k]);
}

static void the_environment_names_routes(void **state)
{
    (void)state;
    static const struct {
        const char *set[3][2];
        const char *plain, *tls;
    } rows[] = {
        { { { NULL } }, "PROXY=\nNOPROXY=\n", "PROXY=\nNOPROXY=\n" },
        { { { "all_proxy", "a" } }, "PROXY=a\nNOPROXY=\n", "PROXY=a\nNOPROXY=\n" },
        { { { "ALL_PROXY", "A" } }, "PROXY=A\nNOPROXY=\n", "PROXY=A\nNOPROXY=\n" },
        { { { "all_proxy", "a" }, { "ALL_PROXY", "A" } }, "PROXY=a\n", "PROXY=a\n" },
        { { { "all_proxy", "" }, { "ALL_PROXY", "A" } }, "PROXY=A\n", "PROXY=A\n" },
        { { { "http_proxy", "p" }, { "all_proxy", "a" } }, "PROXY=p\n", "PROXY=a\n" },
        { { { "https_proxy", "s" }, { "all_proxy", "a" } }, "PROXY=a\n", "PROXY=s\n" },
        { { { "HTTP_PROXY", "P" }, { "HTTPS_PROXY", "S" } }, "PROXY=P\n", "PROXY=S\n" },
        { { { "HTTP_PROXY", "P" }, { "REQUEST_METHOD", "GET" } }, "PROXY=\n", "PROXY=\n" },
        { { { "http_proxy", "p" }, { "REQUEST_METHOD", "GET" } }, "PROXY=p\n", "PROXY=\n" },
        { { { "no_proxy", "n" } }, "PROXY=\nNOPROXY=n\n", "PROXY=\nNOPROXY=n\n" },
        { { { "NO_PROXY", "N" } }, "PROXY=\nNOPROXY=N\n", "PROXY=\nNOPROXY=N\n" },
        { { { "SSL_CERT_FILE", "/f" } }, "PROXY=\n", "SSLVERSION=6\nCAINFO=/f\nPIPEWAIT=1\n" },
        { { { "SSL_CERT_DIR", "/d" } }, "PROXY=\n", "SSLVERSION=6\nCAPATH=/d\nPIPEWAIT=1\n" },
        { { { "SSL_CERT_FILE", "/f" }, { "SSL_CERT_DIR", "/d" } },
          "PROXY=\n",
          "SSLVERSION=6\nCAINFO=/f\nCAPATH=/d\nPIPEWAIT=1\n" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        clear_environment();
        for (size_t k = 0; k < 3 && rows[i].set[k][0]; k++)
            setenv(rows[i].set[k][0], rows[i].set[k][1], 1);
        if (i)
            setup(NULL);
        open_with(&(tkc_http_options){ 0 });
        sent(make("GET", "http://h", TINKC_POOL_REST));
        sent(make("GET", "https://h", TINKC_POOL_REST));
        if (!strstr(settings(0), rows[i].plain) || !strstr(settings(1), rows[i].tls))
            fail_msg("row %zu: %s", i, settings(1));
        if (i + 1 < sizeof rows / sizeof *rows)
            assert_int_equal(teardown(NULL), 0);
    }
    clear_environment();
}

/* ---- bodies that are read ---- */

static void check_reading(scripted_easy *e, const char *unused)
{
    char to[16];
    (void)unused;
    assert_int_equal(e->read_fn(to, 1, 4, e->read_data), 4);
    assert_memory_equal(to, "0123", 4);
    assert_int_equal(e->read_fn(to, 2, 8, e->read_data), 6);
    assert_memory_equal(to, "456789", 6);
    assert_int_equal(e->read_fn(to, 1, 4, e->read_data), 0); /* the end */
    assert_int_equal(e->seek_fn(e->seek_data, 7, SEEK_SET), CURL_SEEKFUNC_OK);
    assert_int_equal(e->read_fn(to, 1, 16, e->read_data), 3);
    assert_memory_equal(to, "789", 3);
    assert_int_equal(e->seek_fn(e->seek_data, 10, SEEK_SET), CURL_SEEKFUNC_OK);
    assert_int_equal(e->seek_fn(e->seek_data, 0, SEEK_SET), CURL_SEEKFUNC_OK);
    assert_int_equal(e->seek_fn(e->seek_data, 11, SEEK_SET), CURL_SEEKFUNC_FAIL);
    assert_int_equal(e->seek_fn(e->seek_data, -1, SEEK_SET), CURL_SEEKFUNC_FAIL);
    assert_int_equal(e->seek_fn(e->seek_data, 1, SEEK_CUR), CURL_SEEKFUNC_FAIL);
    assert_int_equal(e->read_fn(to, 1, 2, e->read_data), 2); /* refused ones moved nothing */
    assert_memory_equal(to, "01", 2);
}

static size_t read_nothing(const tinkc_request *r, uint64_t at, void *to, size_t cap)
{
    (void)r, (void)at, (void)to, (void)cap;
    return 0;
}

static void check_failed_reading(scripted_easy *e, const char *unused)
{
    char to[4];
    (void)unused;
    assert_int_equal(e->read_fn(to, 1, 4, e->read_data), CURL_READFUNC_ABORT);
}

static void large_bodies_are_read_piece_by_piece(void **state)
{
    (void)state;
    open_with(&(tkc_http_options){ .proxy = "" });
    exchange *x = make("POST", "http://h", TINKC_POOL_TRAIN);
    x->request.read_body = read_some;
    x->request.body_size = 10;
    sent(x);
    assert_string_equal(settings(0), "POST=1\nPOSTFIELDSIZE_LARGE=10\nCUSTOMREQUEST=POST\n" ENDING);
    play(0, check_reading, NULL);
    x = make("POST", "http://h", TINKC_POOL_TRAIN);
    x->request.read_body = read_nothing;
    x->request.body_size = 10;
    sent(x);
    play(1, check_failed_reading, NULL);
}

/* ---- headers of requests ---- */

static void headers_as_they_are_sent(void **state)
{
    (void)state;
    static const char *const own[] = {
        "accept-encoding", "zstd", "Content-Type", "x/y", "X-Empty", "", NULL
    };
    static const char *const bad[][3] = { { "A", "b\nc", NULL },
                                          { "A", "b\rc", NULL },
                                          { "A:", "b", NULL },
                                          { "A\n", "b", NULL },
                                          { "A\r", "b", NULL } };
    open_with(&(tkc_http_options){ .proxy = "" });
    exchange *x = make("GET", "http://h", TINKC_POOL_REST);
    x->request.headers = own;
    sent(x);
    assert_non_null(strstr(settings(0), "CONNECTTIMEOUT_MS=500\nHTTPHEADER=accept-encoding: zstd|"
                                        "Content-Type: x/y|X-Empty;|Expect:|\n"));
    x = make("GET", "http://h", TINKC_POOL_REST);
    x->request.headers = NULL;
    sent(x);
    assert_non_null(strstr(settings(1), "ACCEPT_ENCODING=\nHTTPHEADER=Expect:|Content-Type:|\n"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        x = make("GET", "http://h", TINKC_POOL_REST);
        x->request.headers = bad[i];
        sent(x);
        char want[64];
        (void)snprintf(want, sizeof want, "fail %d a header holds a line break;",
                       TINKC_E_CONNECTION);
        assert_string_equal(x->log, want);
    }
    assert_int_equal(scripted_added(), 2);
}

/* ---- answers ---- */

static void answers_as_they_are_passed_on(void **state)
{
    (void)state;
    static const struct {
        int32_t pool;
        const char *head, *body, *want;
    } rows[] = {
        { TINKC_POOL_TRAIN, "HTTP/1.1 200 OK\r\nA: b\r\nC:d \r\n\r\n", "x",
          "200;A=b;C=d;head;body x;end;" },
        { TINKC_POOL_TRAIN, "HTTP/2 404\r\n\r\n", NULL, "404;head;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 100 Continue\r\nE: f\r\n\r\nHTTP/1.1 200 OK\r\nA: b\r\n\r\n",
          NULL, "200;A=b;head;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 199 x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", NULL,
          "200;head;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 999 x\r\n\r\n", NULL, "999;head;end;" },
        /* the lines after the head are a trailer; those without a name are dropped */
        { TINKC_POOL_TRAIN, "HTTP/1.1 200 OK\r\n: x\r\nno colon\r\nG:\r\n\r\nT: u\r\n", "y",
          "200;G=;head;body y;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 200 OK\r\nUrl: a:b:c\r\n\r\n", NULL,
          "200;Url=a:b:c;head;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 abc\r\n\r\n", NULL, "fail CODE the answer has no status;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 99 x\r\n\r\n", NULL, "fail CODE the answer has no status;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 1000 x\r\n\r\n", NULL,
          "fail CODE the answer has no status;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1\r\n\r\n", NULL, "fail CODE the answer has no status;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 100 x\r\n\r\n", NULL, "fail CODE the answer has no status;" },
        { TINKC_POOL_TRAIN, "", NULL, "fail CODE the answer has no status;" },
        /* plain calls are given the address and the protocol as well */
        { TINKC_POOL_REST, "HTTP/1.1 200 OK\r\nA: b\r\n\r\n", "x",
          "200;A=b;:url=http://h/p;:version=;head;body x;end;" },
        /* these statuses are not redirects, whatever Location says */
        { TINKC_POOL_TRAIN, "HTTP/1.1 300 x\r\nLocation: /y\r\n\r\n", NULL,
          "300;Location=/y;head;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 304 x\r\n\r\n", NULL, "304;head;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 305 x\r\n\r\n", NULL, "305;head;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 306 x\r\n\r\n", NULL, "306;head;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 309 x\r\n\r\n", NULL, "309;head;end;" },
        /* a redirect without a target is an answer, but its body is not kept */
        { TINKC_POOL_TRAIN, "HTTP/1.1 301 x\r\nA: b\r\nC: d\r\n\r\n", "z", "301;A=b;C=d;end;" },
        { TINKC_POOL_TRAIN, "HTTP/1.1 308 x\r\nA: b\r\n\r\n", NULL, "308;A=b;end;" },
    };
    char want[200], code[16];
    (void)snprintf(code, sizeof code, "%d", TINKC_E_CONNECTION);
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        exchange *x = sent(make("GET", "http://h", rows[i].pool));
        play(i, head_only, rows[i].head);
        if (rows[i].body)
            play(i, body_only, rows[i].body);
        play(i, end_well, NULL);
        const char *mark = strstr(rows[i].want, "CODE");
        (void)snprintf(want, sizeof want, "%.*s%s%s",
                       mark ? (int)(mark - rows[i].want) : (int)strlen(rows[i].want), rows[i].want,
                       mark ? code : "", mark ? mark + 4 : "");
        assert_string_equal(x->log, want);
    }
}

static void give_version(scripted_easy *e, const char *version)
{
    e->http_version = atol(version);
    head_and_end(e, "HTTP/1.1 200 OK\r\n\r\n");
}

static void versions_have_names(void **state)
{
    (void)state;
    static const struct {
        long version;
        const char *want;
    } rows[] = { { CURL_HTTP_VERSION_1_0, "200;:url=http://h/p;:version=1.0;head;end;" },
                 { CURL_HTTP_VERSION_1_1, "200;:url=http://h/p;:version=1.1;head;end;" },
                 { CURL_HTTP_VERSION_2_0, "200;:url=http://h/p;:version=2;head;end;" },
                 { 30, "200;:url=http://h/p;:version=;head;end;" } };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < 4; i++) {
        char text[16];
        (void)snprintf(text, sizeof text, "%ld", rows[i].version);
        exchange *x = sent(make("GET", "http://h", TINKC_POOL_REST));
        play(i, give_version, text);
        assert_string_equal(x->log, rows[i].want);
    }
}

/* After a 400 the connection is not used again: it may concern the connection. */
static void a_400_forbids_reuse(void **state)
{
    (void)state;
    open_with(&(tkc_http_options){ .proxy = "" });
    for (int status = 399; status <= 401; status++) {
        char line[64];
        size_t nth = scripted_added();
        sent(make("GET", "http://h", TINKC_POOL_TRAIN));
        (void)snprintf(line, sizeof line, "HTTP/1.1 %d x\r\n\r\n", status);
        play(nth, head_only, line);
        assert_int_equal(strstr(settings(nth), "FORBID_REUSE=1\n") != NULL, status == 400);
    }
}

static void refuse(scripted_easy *e, const char *what)
{
    if (strcmp(what, "head") == 0) {
        assert_false(scripted_head(e, "HTTP/1.1 200 OK\r\n\r\n"));
    } else {
        assert_true(scripted_head(e, "HTTP/1.1 200 OK\r\n\r\n"));
        assert_int_equal(scripted_body(e, "x"), 0);
    }
    scripted_end(e, CURLE_WRITE_ERROR);
}

static void unwanted_answers_end(void **state)
{
    (void)state;
    static const char *const what[] = { "head", "body" };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < 2; i++) {
        char want[100];
        exchange *x = make("GET", "http://h", TINKC_POOL_TRAIN);
        x->refuses_head = i == 0;
        x->refuses_body = i == 1;
        sent(x);
        play(i, refuse, what[i]);
        (void)snprintf(want, sizeof want, "200;head;%sfail %d the rest of the body was not wanted;",
                       i ? "body x;" : "", TINKC_E_BAD_RESPONSE);
        assert_string_equal(x->log, want);
    }
}

/* ---- failures ---- */

typedef struct failure {
    CURLcode result;
    const char *head;
    const char *detail; /* in libcurl's error buffer */
    long os_error;
    int32_t code;
    const char *text;
} failure;

static const failure *playing;
static void end_badly(scripted_easy *e, const char *unused)
{
    (void)unused;
    if (playing->head)
        (void)scripted_head(e, playing->head);
    (void)snprintf(e->error_text, CURL_ERROR_SIZE, "%s", playing->detail);
    e->os_error = playing->os_error;
    scripted_end(e, playing->result);
}

static void failures_have_codes_and_texts(void **state)
{
    (void)state;
    static const failure rows[] = {
        { CURLE_COULDNT_RESOLVE_HOST, NULL, "d", 0, TINKC_E_CONNECTION,
          "the name was not resolved (DNS): d" },
        { CURLE_COULDNT_RESOLVE_PROXY, NULL, "d", 0, TINKC_E_CONNECTION,
          "the name of the proxy was not resolved (DNS): d" },
        { CURLE_COULDNT_CONNECT, NULL, "d", 0, TINKC_E_CONNECTION, "no connection: d" },
        { CURLE_COULDNT_CONNECT, NULL, "d", ECONNREFUSED, TINKC_E_CONNECTION,
          "connection refused: d" },
        { CURLE_RECV_ERROR, NULL, "d", ECONNREFUSED, TINKC_E_CONNECTION,
          "the connection was reset before an answer: d" },
        { CURLE_SEND_ERROR, NULL, "d", 0, TINKC_E_CONNECTION,
          "the connection was reset before an answer: d" },
        { CURLE_RECV_ERROR, "HTTP/1.1 200 OK\r\n", "d", 0, TINKC_E_CONNECTION,
          "the connection was reset inside the answer: d" },
        { CURLE_SEND_ERROR, "HTTP/1.1 200 OK\r\n", "d", 0, TINKC_E_CONNECTION,
          "the connection was reset inside the answer: d" },
        { CURLE_PROXY, NULL, "d", 0, TINKC_E_CONNECTION, "the proxy failed: d" },
        { CURLE_SSL_CONNECT_ERROR, NULL, "d", 0, TINKC_E_CONNECTION, "TLS failed: d" },
        { CURLE_PEER_FAILED_VERIFICATION, NULL, "d", 0, TINKC_E_CONNECTION,
          "TLS: the certificate is not trusted: d" },
        { CURLE_SSL_CACERT_BADFILE, NULL, "d", 0, TINKC_E_CONNECTION,
          "TLS: the file of authorities is unusable: d" },
        { CURLE_SSL_CERTPROBLEM, NULL, "d", 0, TINKC_E_CONNECTION, "TLS failed: d" },
        { CURLE_SSL_CIPHER, NULL, "d", 0, TINKC_E_CONNECTION, "TLS failed: d" },
        { CURLE_SSL_ISSUER_ERROR, NULL, "d", 0, TINKC_E_CONNECTION, "TLS failed: d" },
        { CURLE_OPERATION_TIMEDOUT, NULL, "d", 0, TINKC_E_NET_TIMEOUT,
          "connecting took too long: d" },
        { CURLE_PARTIAL_FILE, NULL, "d", 0, TINKC_E_CONNECTION,
          "the connection ended inside the body: d" },
        { CURLE_GOT_NOTHING, NULL, "d", 0, TINKC_E_CONNECTION,
          "the connection was closed before an answer: d" },
        { CURLE_BAD_CONTENT_ENCODING, NULL, "d", 0, TINKC_E_BAD_RESPONSE,
          "the body's compression is broken: d" },
        { CURLE_WEIRD_SERVER_REPLY, NULL, "d", 0, TINKC_E_CONNECTION, "the answer is not HTTP: d" },
        { CURLE_UNSUPPORTED_PROTOCOL, NULL, "d", 0, TINKC_E_CONNECTION,
          "the answer is not HTTP: d" },
        { CURLE_HTTP2, NULL, "d", 0, TINKC_E_CONNECTION, "the connection failed (HTTP/2): d" },
        { CURLE_HTTP2_STREAM, NULL, "d", 0, TINKC_E_CONNECTION, "the stream failed (HTTP/2): d" },
        { CURLE_OUT_OF_MEMORY, NULL, "d", 0, TINKC_E_CONNECTION, "out of memory: d" },
        { CURLE_READ_ERROR, NULL,
          "a\tb\nc\x1F"
          "d e",
          0, TINKC_E_CONNECTION, "the transfer failed: a b c d e" },
        { CURLE_ABORTED_BY_CALLBACK, NULL, "", 0, TINKC_E_CONNECTION,
          "the transfer failed: Operation was aborted by an application callback" },
    };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char want[200];
        exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
        playing = &rows[i];
        play(i, end_badly, NULL);
        (void)snprintf(want, sizeof want, "%sfail %d %s;", rows[i].head ? "200;" : "",
                       (int)rows[i].code, rows[i].text);
        assert_string_equal(x->log, want);
    }
}

/* What libcurl cannot do is the failure of that request alone. */
static void libcurls_own_failures(void **state)
{
    (void)state;
    static const struct {
        const char *function, *text;
    } rows[] = { { "multi_init", "out of memory" },
                 { "easy_init", "out of memory" },
                 { "slist_append", "out of memory" },
                 { "multi_add_handle", "libcurl refused the request" },
                 { "PROXY", "libcurl refused a setting" },
                 { "URL", "libcurl refused a setting" },
                 { "CUSTOMREQUEST", "libcurl refused a setting" } };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char want[100];
        scripted_curl_fails = rows[i].function;
        exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
        (void)snprintf(want, sizeof want, "fail %d ", TINKC_E_CONNECTION);
        assert_memory_equal(x->log, want, strlen(want));
        if (!strstr(x->log, rows[i].text))
            fail_msg("%s: %s", rows[i].function, x->log);
        assert_null(scripted_curl_fails);
    }
    static const char *const addresses[] = {
        "", "h", "ftp://h", "http:///x", "https:///x", "http:/"
    };
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        char want[100];
        exchange *x = sent(make("GET", addresses[i], TINKC_POOL_TRAIN));
        (void)snprintf(want, sizeof want, "fail %d not an http or https address;",
                       TINKC_E_CONNECTION);
        assert_string_equal(x->log, want);
    }
    assert_int_equal(scripted_added(), 0);
}

/* ---- redirects ---- */

static const char *target;
static void answer_redirect(scripted_easy *e, const char *lines)
{
    e->redirect = target;
    head_and_end(e, lines);
}

static void redirects_are_followed(void **state)
{
    (void)state;
    static const char same[] = "X-API-Key: secret|Accept: a/b|Expect:|Content-Type:|\n";
    static const char foreign[] = "Accept: a/b|Expect:|Content-Type:|\n";
    static const struct {
        const char *method, *head, *to, *request, *headers;
    } rows[] = {
        { "GET", "HTTP/1.1 301 x\r\n\r\n", "http://h/q", "HTTPGET=1\nCUSTOMREQUEST=GET\n", same },
        { "GET", "HTTP/1.1 302 x\r\n\r\n", "http://h/q", "HTTPGET=1\nCUSTOMREQUEST=GET\n", same },
        { "GET", "HTTP/1.1 307 x\r\n\r\n", "http://o/q", "HTTPGET=1\nCUSTOMREQUEST=GET\n",
          foreign },
        { "GET", "HTTP/1.1 308 x\r\n\r\n", "https://h/q", "HTTPGET=1\nCUSTOMREQUEST=GET\n",
          foreign },
        { "GET", "HTTP/1.1 302 x\r\n\r\n", "http://h:81/q", "HTTPGET=1\nCUSTOMREQUEST=GET\n",
          foreign },
        { "HEAD", "HTTP/1.1 303 x\r\n\r\n", "http://h/q", "NOBODY=1\n", same },
        { "HEAD", "HTTP/1.1 301 x\r\n\r\n", "http://h/q", "NOBODY=1\n", same },
        { "DELETE", "HTTP/1.1 303 x\r\n\r\n", "http://h/q", "HTTPGET=1\nCUSTOMREQUEST=GET\n",
          same },
        { "DELETE", "HTTP/1.1 302 x\r\n\r\n", "http://h/q", "HTTPGET=1\nCUSTOMREQUEST=DELETE\n",
          same },
    };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t nth = scripted_added();
        exchange *x = sent(make(rows[i].method, "http://h", TINKC_POOL_TRAIN));
        target = rows[i].to;
        play(nth, answer_redirect, rows[i].head);
        assert_string_equal(x->log, "");
        assert_int_equal(scripted_added(), nth + 2);
        assert_memory_equal(settings(nth + 1), rows[i].request, strlen(rows[i].request));
        assert_non_null(strstr(settings(nth + 1), rows[i].headers));
        char url[64];
        (void)snprintf(url, sizeof url, "URL=%s\n", rows[i].to);
        assert_non_null(strstr(settings(nth + 1), url));
        play(nth + 1, head_and_end, "HTTP/1.1 200 OK\r\nA: b\r\n\r\n");
        assert_string_equal(x->log, "200;A=b;head;end;");
    }
}

/* A request with a body: 301 to 303 make it a GET without it, 307 and 308 send it again. */
static void bodies_along_redirects(void **state)
{
    (void)state;
    static const char *const typed[] = {
        "Content-Type", "x/y", "Content-Encoding", "zstd", "Range", "r", NULL
    };
    static const struct {
        const char *method;
        int status;
        const char *request, *headers;
    } rows[] = {
        { "POST", 301, "HTTPGET=1\nCUSTOMREQUEST=GET\n",
          "HTTPHEADER=Range: r|Expect:|Content-Type:|\n" },
        { "POST", 302, "HTTPGET=1\nCUSTOMREQUEST=GET\n",
          "HTTPHEADER=Range: r|Expect:|Content-Type:|\n" },
        { "POST", 303, "HTTPGET=1\nCUSTOMREQUEST=GET\n",
          "HTTPHEADER=Range: r|Expect:|Content-Type:|\n" },
        { "PUT", 302, "POST=1\nPOSTFIELDS=abc\nPOSTFIELDSIZE_LARGE=3\nCUSTOMREQUEST=PUT\n",
          "HTTPHEADER=Content-Type: x/y|Content-Encoding: zstd|Range: r|Expect:|\n" },
        { "PUT", 303, "HTTPGET=1\nCUSTOMREQUEST=GET\n",
          "HTTPHEADER=Range: r|Expect:|Content-Type:|\n" },
        { "POST", 307, "POST=1\nPOSTFIELDS=abc\nPOSTFIELDSIZE_LARGE=3\nCUSTOMREQUEST=POST\n",
          "HTTPHEADER=Content-Type: x/y|Content-Encoding: zstd|Range: r|Expect:|\n" },
        { "POST", 308, "POST=1\nPOSTFIELDS=abc\nPOSTFIELDSIZE_LARGE=3\nCUSTOMREQUEST=POST\n",
          "HTTPHEADER=Content-Type: x/y|Content-Encoding: zstd|Range: r|Expect:|\n" },
    };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char line[64];
        exchange *x = make(rows[i].method, "http://h", TINKC_POOL_TRAIN);
        x->request.headers = typed;
        x->request.body = (tinkc_bytes){ (const unsigned char *)"abc", 3 };
        sent(x);
        target = "http://h/q";
        (void)snprintf(line, sizeof line, "HTTP/1.1 %d x\r\n\r\n", rows[i].status);
        play(2 * i, answer_redirect, line);
        assert_memory_equal(settings(2 * i + 1), rows[i].request, strlen(rows[i].request));
        assert_non_null(strstr(settings(2 * i + 1), rows[i].headers));
        play(2 * i + 1, head_and_end, "HTTP/1.1 200 OK\r\n\r\n");
        assert_string_equal(x->log, "200;head;end;");
    }
}

static void redirects_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *base, *to, *text;
    } rows[] = {
        { "http://h", "ftp://h/", "a redirect leads to something that is not http" },
        { "http://h", "http:///x", "a redirect leads to something that is not http" },
        { "https://h", "http://h/", "a redirect leads from https to http" },
    };
    open_with(&(tkc_http_options){ .proxy = "" });
    char want[100];
    for (size_t i = 0; i < 3; i++) {
        exchange *x = sent(make("GET", rows[i].base, TINKC_POOL_TRAIN));
        target = rows[i].to;
        play(i, answer_redirect, "HTTP/1.1 302 x\r\n\r\n");
        (void)snprintf(want, sizeof want, "fail %d %s;", TINKC_E_BAD_RESPONSE, rows[i].text);
        assert_string_equal(x->log, want);
    }
    exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    target = "http://h/again";
    for (size_t i = 0; i <= 10; i++) {
        assert_string_equal(x->log, "");
        play(3 + i, answer_redirect, "HTTP/1.1 302 x\r\n\r\n");
    }
    (void)snprintf(want, sizeof want, "fail %d too many redirects;", TINKC_E_BAD_RESPONSE);
    assert_string_equal(x->log, want);
    assert_int_equal(scripted_added(), 3 + 11);
    /* Once on another host, the way back brings no credential either. */
    size_t nth = scripted_added();
    sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    target = "http://o/";
    play(nth, answer_redirect, "HTTP/1.1 302 x\r\n\r\n");
    target = "http://h/";
    play(nth + 1, answer_redirect, "HTTP/1.1 302 x\r\n\r\n");
    assert_null(strstr(settings(nth + 2), "secret"));
    x = make("GET", "http://h", TINKC_POOL_TRAIN);
    x->request.no_redirects = true;
    nth = scripted_added();
    sent(x);
    play(nth, answer_redirect, "HTTP/1.1 302 x\r\nA: b\r\n\r\n");
    assert_string_equal(x->log, "302;A=b;head;end;");
}

/* ---- silence, on the test's clock ---- */

static void be_connected(scripted_easy *e, const char *unused)
{
    (void)unused;
    e->pretransfer = 1;
}

/* Moves the clock, and expects the reply to have ended just now or not at all. */
static void advance(int64_t ms)
{
    tinkc_mock_advance(mock, ms);
    settle();
}

static void silence_is_a_failure(void **state)
{
    (void)state;
    char want[100];
    (void)snprintf(want, sizeof want, "fail %d the peer was silent for 1000 ms;",
                   TINKC_E_NET_TIMEOUT);
    open_with(&(tkc_http_options){ .proxy = "" });
    exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN)); /* connected, nothing comes */
    assert_int_equal(play(0, be_connected, NULL), 1000);
    advance(999);
    assert_string_equal(x->log, "");
    advance(1);
    assert_string_equal(x->log, want);

    x = sent(
        make("GET", "http://h", TINKC_POOL_TRAIN)); /* still connecting: that has its own limit */
    advance(1000);
    assert_string_equal(x->log, "");
    advance(999);
    assert_string_equal(x->log, "");
    advance(1);
    assert_string_equal(x->log, want);

    x = sent(make("GET", "http://h", TINKC_POOL_TRAIN)); /* upload progress, then silence */
    advance(600);
    assert_int_equal(play(2, see_progress, "5"), 400);
    advance(400);
    advance(599);
    assert_string_equal(x->log, "");
    advance(1);
    assert_string_equal(x->log, want);

    x = sent(make("GET", "http://h", TINKC_POOL_TRAIN)); /* the same count is not progress */
    advance(600);
    play(3, see_progress, "0");
    play(3, be_connected, NULL);
    advance(400);
    assert_string_equal(x->log, want);

    x = sent(
        make("GET", "http://h", TINKC_POOL_TRAIN)); /* header lines and bodies are signs of life */
    advance(900);
    play(4, head_only, "HTTP/1.1 200 OK\r\n\r\n");
    advance(900);
    play(4, body_only, "x");
    advance(999);
    assert_string_equal(x->log, "200;head;body x;");
    advance(1);
    assert_non_null(strstr(x->log, want));
}

static void no_limit_of_silence(void **state)
{
    (void)state;
    static const int64_t limits[] = { 0, TINKC_FOREVER };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < 2; i++) {
        exchange *x = make("GET", "http://h", TINKC_POOL_TRAIN);
        x->request.idle_timeout_ms = limits[i];
        post(x, send_now);
        assert_int_equal(settle(), TINKC_FOREVER);
    }
}

/* A reader without room pauses the transfer; the time until it continues is not the peer's silence. */
static void pauses_are_not_silence(void **state)
{
    (void)state;
    open_with(&(tkc_http_options){ .proxy = "" });
    exchange *x = make("GET", "http://h", TINKC_POOL_TRAIN);
    x->reply.room = on_room;
    sent(x);
    play(0, head_only, "HTTP/1.1 200 OK\r\n\r\n");
    x->room = 1;
    play(0, body_only, "a");
    x->room = 0;
    play(0, body_only, "b");
    assert_string_equal(x->log, "200;head;body a;");
    assert_int_equal(settle(), 1000);
    advance(1000);
    assert_int_equal(settle(), 1000);
    advance(700);
    assert_string_equal(x->log, "200;head;body a;");
    x->room = 1;
    post(x, resume_now);
    assert_int_equal(settle(), 300); /* looks again, and counts from the resumption */
    assert_int_equal(scripted_nth(0)->pauses, 1);
    post(x, resume_now); /* nothing is paused: nothing happens */
    settle();
    assert_int_equal(scripted_nth(0)->pauses, 1);
    advance(300);
    assert_string_equal(x->log, "200;head;body a;");
    assert_int_equal(settle(), 700);
    advance(700);
    assert_non_null(strstr(x->log, "silent for 1000 ms"));
}

/* ---- pools ---- */

static void kinds_have_shares_of_the_connections(void **state)
{
    (void)state;
    static const struct {
        int32_t kind, limit;
        size_t want;
    } rows[] = {
        { TINKC_POOL_RETRIEVE, 128, 64 },
        { TINKC_POOL_SAMPLE, 128, 32 },
        { TINKC_POOL_TRAIN, 128, 16 },
        { TINKC_POOL_REST, 256, 16 },
        { TINKC_POOL_SESSION, 640, 10 },
        { TINKC_POOL_TELEMETRY, 640, 10 },
        { TINKC_POOL_CONFIG, 640, 10 },
        { TINKC_POOL_AUTH, 640, 10 },
        { TINKC_POOL_AUTH, 1, 8 }, /* every kind may have eight */
        { TINKC_POOL_RETRIEVE, 1, 8 },
        { TINKC_POOL_RETRIEVE, 18, 9 },
        { -1, 256, 16 },
        { 8, 256, 16 }, /* unknown kinds are plain calls */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char want[64];
        if (i)
            setup(NULL);
        open_with(&(tkc_http_options){ .proxy = "", .max_connections = rows[i].limit });
        for (size_t k = 0; k < rows[i].want + 2; k++)
            post(make("GET", "http://h", rows[i].kind), send_now);
        settle();
        if (scripted_added() != rows[i].want)
            fail_msg("row %zu: %zu at once", i, scripted_added());
        bool single = rows[i].kind == TINKC_POOL_TRAIN;
        (void)snprintf(want, sizeof want,
                       "PIPELINING=%d\nMAX_CONCURRENT_STREAMS=50\nMAXCONNECTS=%zu\n",
                       single ? 0 : 2, rows[i].want);
        assert_string_equal(scripted_multi_nth(0)->settings, want);
        /* one ends, the next in line begins */
        play(0, head_and_end, "HTTP/1.1 200 OK\r\n\r\n");
        assert_int_equal(scripted_added(), rows[i].want + 1);
        assert_memory_equal(all[0].log, "200;", 4);
        if (i + 1 < sizeof rows / sizeof *rows)
            assert_int_equal(teardown(NULL), 0);
    }
}

/* Once an answer has come over HTTP/2, fifty requests share a connection, but for training. Kinds that
 * talk to the service alone open no more connections than they need. */
static void http2_shares_connections(void **state)
{
    (void)state;
    static const struct {
        int32_t kind;
        size_t want;
        bool limited;
    } rows[] = { { TINKC_POOL_RETRIEVE, 400, true },
                 { TINKC_POOL_SAMPLE, 400, true },
                 { TINKC_POOL_REST, 400, false },
                 { TINKC_POOL_TRAIN, 8, false } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (i)
            setup(NULL);
        open_with(&(tkc_http_options){ .proxy = "", .max_connections = 16 });
        sent(make("GET", "http://h", rows[i].kind));
        play(0, answer_http2, "HTTP/2 200\r\n\r\n");
        const char *limits = scripted_multi_nth(0)->settings;
        for (size_t k = 0; k < rows[i].want + 1; k++) {
            post(make("GET", "http://h", rows[i].kind), send_now);
            if (k == 49) {
                settle();
                assert_int_equal(strstr(limits, "MAX_HOST_CONNECTIONS=1\n") != NULL,
                                 rows[i].limited);
                assert_null(strstr(limits, "MAX_HOST_CONNECTIONS=2\n"));
            }
        }
        settle();
        assert_int_equal(scripted_added(), 1 + rows[i].want);
        assert_int_equal(strstr(limits, "MAX_HOST_CONNECTIONS=1\nMAX_HOST_CONNECTIONS=2\n"
                                        "MAX_HOST_CONNECTIONS=3\nMAX_HOST_CONNECTIONS=4\n"
                                        "MAX_HOST_CONNECTIONS=5\nMAX_HOST_CONNECTIONS=6\n"
                                        "MAX_HOST_CONNECTIONS=7\nMAX_HOST_CONNECTIONS=8\n") != NULL,
                         rows[i].limited);
        assert_null(strstr(limits, "MAX_HOST_CONNECTIONS=9\n"));
        if (i + 1 < sizeof rows / sizeof *rows)
            assert_int_equal(teardown(NULL), 0);
    }
}

/* Connections that nobody has used for a minute are closed; the next request opens its own. */
static void idle_pools_are_closed(void **state)
{
    (void)state;
    open_with(&(tkc_http_options){ .proxy = "" });
    sent(make("GET", "http://h", TINKC_POOL_RETRIEVE));
    exchange *x = make("GET", "http://h", TINKC_POOL_REST);
    x->request.idle_timeout_ms = TINKC_FOREVER;
    sent(x);
    assert_int_equal(scripted_multis_open(), 2);
    play(0, answer_http2, "HTTP/2 200\r\n\r\n");
    sent(make("GET", "http://h", TINKC_POOL_RETRIEVE)); /* this one knows of HTTP/2 */
    assert_non_null(strstr(scripted_multi_nth(0)->settings, "MAX_HOST_CONNECTIONS=1\n"));
    assert_int_equal(play(2, answer_http2, "HTTP/2 200\r\n\r\n"), 60000);
    advance(59999);
    assert_int_equal(scripted_multis_open(), 2);
    advance(1);
    assert_int_equal(scripted_multis_open(), 1); /* the other one is in use */
    assert_int_equal(settle(), TINKC_FOREVER);
    sent(make("GET", "http://h", TINKC_POOL_RETRIEVE));
    assert_int_equal(scripted_multis_open(), 2);
    assert_string_equal(scripted_multi_nth(2)->settings,
                        "PIPELINING=2\nMAX_CONCURRENT_STREAMS=50\nMAXCONNECTS=500\n"
                        "MAX_HOST_CONNECTIONS=1\n"); /* set again: it is another pool */
    play(3, head_and_end, "HTTP/1.1 200 OK\r\n\r\n");
    advance(30000);
    x = make("GET", "http://h", TINKC_POOL_RETRIEVE); /* used in between: the minute begins again */
    x->request.idle_timeout_ms = TINKC_FOREVER;
    sent(x);
    assert_int_equal(settle(), TINKC_FOREVER);
    assert_int_equal(play(4, head_and_end, "HTTP/1.1 200 OK\r\n\r\n"), 60000);
    /* a failure and a cancelled request leave an idle pool, too */
    sent(make("GET", "http://h", TINKC_POOL_RETRIEVE));
    post(&all[n_sent - 1], cancel_now);
    assert_int_equal(settle(), 60000);
    char want[64];
    (void)snprintf(want, sizeof want, "fail %d no longer wanted;", TINKC_E_CONNECTION);
    assert_string_equal(all[n_sent - 1].log, want);
    post(&all[n_sent - 1], cancel_now); /* it has ended: nothing more is said */
    settle();
    assert_string_equal(all[n_sent - 1].log, want);
}

/* ---- the queue ---- */

static const char *failed_as(int32_t code, const char *text)
{
    static char want[200];
    (void)snprintf(want, sizeof want, "fail %d %s;", (int)code, text);
    return want;
}

/* Requests wait in order; those that are cancelled leave it, wherever they stand. */
static void the_queue_keeps_its_order(void **state)
{
    (void)state;
    static const size_t cancelled[] = { 14, 10, 8 }; /* the last, one between, the first */
    static const size_t order[] = { 9, 11, 12, 13, 15 };
    open_with(&(tkc_http_options){ .proxy = "", .max_connections = 1 });
    for (size_t i = 0; i < 15; i++) {
        exchange *x = make("GET", "http://h", TINKC_POOL_REST);
        x->request.idle_timeout_ms = TINKC_FOREVER;
        sent(x);
    }
    assert_int_equal(scripted_added(), 8);
    for (size_t i = 0; i < 3; i++) {
        post(&all[cancelled[i]], cancel_now);
        settle();
        assert_string_equal(all[cancelled[i]].log,
                            failed_as(TINKC_E_CONNECTION, "no longer wanted"));
    }
    assert_int_equal(scripted_added(), 8); /* none of them was sent */
    sent(make("GET", "http://h", TINKC_POOL_REST));
    for (size_t i = 0; i < 5; i++) {
        play(i, head_and_end, "HTTP/1.1 200 OK\r\n\r\n");
        assert_int_equal(scripted_added(), 9 + i);
        play(8 + i, head_only, "HTTP/1.1 201 x\r\n\r\n");
        assert_string_equal(all[order[i]].log, "201;:url=http://h/p;:version=;head;");
    }
}

static void end_both(scripted_easy *e, const char *unused)
{
    (void)unused;
    (void)scripted_head(e, "HTTP/1.1 200 OK\r\n\r\n");
    (void)scripted_head(scripted_nth(1), "HTTP/1.1 200 OK\r\n\r\n");
    scripted_end(scripted_nth(1), CURLE_OK);
    scripted_end(e, CURLE_OK);
}

static void cancel_three(void)
{
    for (size_t i = 0; i < 3; i++)
        cancel_now(&all[i].task);
    cancel_now(&all[2].task); /* again */
}

static void send_last(void)
{
    send_now(&all[n_sent - 1].task);
}

/* A reply's end may cancel others, one of which has ended in the same round, and send another. */
static void replies_act_from_inside_their_end(void **state)
{
    (void)state;
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < 3; i++)
        sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    all[0].at_end = cancel_three;
    play(0, end_both, NULL);
    assert_string_equal(all[0].log, "200;head;end;");
    assert_string_equal(all[1].log, "200;head;end;");
    assert_string_equal(all[2].log, failed_as(TINKC_E_CONNECTION, "no longer wanted"));
    exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    x->at_end = send_last;
    exchange *next = make("GET", "http://h", TINKC_POOL_TRAIN);
    play(3, head_and_end, "HTTP/1.1 200 OK\r\n\r\n");
    assert_int_equal(scripted_added(), 5);
    play(4, head_and_end, "HTTP/1.1 204 x\r\n\r\n");
    assert_string_equal(next->log, "204;head;end;");
    post(x, resume_now); /* it has ended */
    settle();
}

static void resume_and_cancel(tkc_task *task)
{
    resume_now(task);
    cancel_now(task);
}

static void a_paused_one_is_cancelled(void **state)
{
    (void)state;
    open_with(&(tkc_http_options){ .proxy = "" });
    exchange *x = make("GET", "http://h", TINKC_POOL_TRAIN);
    x->reply.room = on_room;
    sent(x);
    play(0, head_only, "HTTP/1.1 200 OK\r\n\r\n");
    for (int i = 1; i <= 2; i++) { /* it may pause again */
        play(0, body_only, "a");
        post(x, resume_now);
        settle();
        assert_int_equal(scripted_nth(0)->pauses, i);
    }
    play(0, body_only, "a");
    post(x, resume_and_cancel);
    settle();
    char want[300];
    (void)snprintf(want, sizeof want, "200;head;%s",
                   failed_as(TINKC_E_CONNECTION, "no longer wanted"));
    assert_string_equal(x->log, want);
    assert_int_equal(scripted_easies_open(), 0);
}

/* ---- limits of the process ---- */

static char logged[256];
static void keep_log(int32_t level, const char *text, void *user)
{
    (void)user;
    (void)snprintf(logged, sizeof logged, "%d %s", (int)level, text);
}

static void files_limit_connections(void **state)
{
    (void)state;
    static const struct {
        rlim_t files;
        int32_t wanted;
        const char *share, *log;
    } rows[] = {
        { 264, 200, "MAXCONNECTS=100\n", "" },
        { 264, 201, "MAXCONNECTS=100\n",
          "at most 200 connections instead of 201: the process may open no more files" },
        { 264, 0, "MAXCONNECTS=100\n",
          "at most 200 connections instead of 1000: the process may open no more files" },
        { 130, 1000, "MAXCONNECTS=33\n",
          "at most 66 connections instead of 1000: the process may open no more files" },
        { 100, 1000, "MAXCONNECTS=25\n",
          "at most 50 connections instead of 1000: the process may open no more files" },
    };
    struct rlimit before, low;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (i)
            setup(NULL);
        tkc_log log = { .fn = keep_log, .level = TINKC_LOG_INFO };
        logged[0] = 0;
        low.rlim_cur = rows[i].files;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
        open_with(
            &(tkc_http_options){ .proxy = "", .max_connections = rows[i].wanted, .log = &log });
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        sent(make("GET", "http://h", TINKC_POOL_RETRIEVE));
        assert_non_null(strstr(scripted_multi_nth(0)->settings, rows[i].share));
        assert_int_equal(logged[0] != 0, rows[i].log[0] != 0);
        assert_non_null(strstr(logged, rows[i].log));
        if (i + 1 < sizeof rows / sizeof *rows)
            assert_int_equal(teardown(NULL), 0);
    }
}

/* Without a descriptor to wait with, a request fails; the next one tries again. */
static void no_descriptor_to_wait_with(void **state)
{
    (void)state;
    struct rlimit before, none;
    open_with(&(tkc_http_options){ .proxy = "" });
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    const char *want = failed_as(TINKC_E_CONNECTION, "epoll: ");
    assert_memory_equal(x->log, want, strlen(want) - 1);
    x->log[0] = 0;
    sent(x);
    play(0, head_and_end, "HTTP/1.1 200 OK\r\n\r\n");
    assert_string_equal(x->log, "200;head;end;");
}

/* ---- sockets ---- */

static int ends[2];
static int asked;
static char actions[256];

static void ask_socket(scripted_easy *e, const char *unused)
{
    (void)unused;
    scripted_multi *m = e->multi;
    assert_int_equal(m->socket_fn(e, ends[0], asked, m->socket_data, NULL), 0);
}

static void copy_actions(scripted_easy *e, const char *unused)
{
    (void)unused;
    (void)snprintf(actions, sizeof actions, "%s", e->multi->actions);
}

/* One event is enough: a socket that is always ready would never be quiet. */
static void remove_socket(scripted_multi *m, curl_socket_t s)
{
    (void)m->socket_fn(NULL, s, CURL_POLL_REMOVE, m->socket_data, NULL);
}

static void forget_actions(scripted_easy *e, const char *unused)
{
    (void)unused;
    e->multi->actions[0] = 0;
}

static bool acted(size_t nth)
{
    play(nth, copy_actions, NULL);
    return actions[0] != 0;
}

/* What libcurl asks for is watched, and each event goes to the pool that the socket is of. */
static void sockets_are_watched(void **state)
{
    (void)state;
    enum { QUIET = -1 };
    static const struct {
        int first, then; /* asked for; QUIET = nothing before */
        bool data, closed;
        const char *want;
    } rows[] = {
        { QUIET, CURL_POLL_IN, true, false, " in;" },
        { QUIET, CURL_POLL_OUT, true, false, " out;" },
        { QUIET, CURL_POLL_INOUT, true, false, " in out;" },
        { QUIET, CURL_POLL_INOUT, false, false, " out;" },
        { QUIET, CURL_POLL_IN, false, true, " in err;" },
        { CURL_POLL_IN, CURL_POLL_OUT, false, false, " out;" },
        { CURL_POLL_NONE, CURL_POLL_OUT, true, false, " out;" },
    };
    static const int32_t kinds[] = { TINKC_POOL_SAMPLE, TINKC_POOL_REST };
    open_with(&(tkc_http_options){ .proxy = "" });
    scripted_curl_acts = remove_socket;
    for (size_t k = 0; k < 2; k++)
        sent(make("GET", "http://h", kinds[k]));
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        size_t row = i / 2, nth = i % 2;
        char want[64];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
        asked = rows[row].first;
        if (rows[row].data)
            assert_int_equal(write(ends[1], "x", 1), 1);
        play(0, forget_actions, NULL);
        play(1, forget_actions, NULL);
        if (asked != QUIET)
            play(nth, ask_socket, NULL);
        if (rows[row].closed)
            close(ends[1]);
        asked = rows[row].then;
        play(nth, ask_socket, NULL);
        wait_until(acted(nth));
        (void)snprintf(want, sizeof want, "%d%s", ends[0], rows[row].want);
        (void)acted(nth);
        assert_string_equal(actions, want);
        (void)acted(1 - nth);
        assert_null(strchr(actions, ' ')); /* the other pool heard nothing of it */
        close(ends[0]);
        if (!rows[row].closed)
            close(ends[1]);
    }
    play(0, forget_actions, NULL);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    asked = CURL_POLL_IN;
    play(0, ask_socket, NULL);
    asked = CURL_POLL_REMOVE;
    play(0, ask_socket, NULL);
    assert_int_equal(write(ends[1], "x", 1), 1);
    asked = CURL_POLL_OUT; /* ready, but not to be read */
    play(0, ask_socket, NULL);
    wait_until(acted(0));
    assert_non_null(strstr(actions, " out;"));
    assert_null(strstr(actions, "in"));
    close(ends[0]);
    close(ends[1]);
}

/* ---- more of redirects ---- */

static void answer_with_a_text(scripted_easy *e, const char *lines)
{
    (void)snprintf(e->error_text, CURL_ERROR_SIZE, "of the first");
    answer_redirect(e, lines);
}

static void redirects_that_break(void **state)
{
    (void)state;
    static const struct {
        const char *function, *text;
    } rows[] = { { "multi_add_handle", "libcurl refused the request" },
                 { "URL", "libcurl refused a setting" },
                 { "slist_append", "out of memory" } };
    open_with(&(tkc_http_options){ .proxy = "" });
    target = "http://h/q";
    for (size_t i = 0; i < 3; i++) {
        size_t nth = scripted_added();
        exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
        scripted_curl_fails = rows[i].function;
        play(nth, answer_redirect, "HTTP/1.1 302 x\r\n\r\n");
        assert_null(scripted_curl_fails);
        assert_memory_equal(x->log, failed_as(TINKC_E_CONNECTION, ""), 6);
        assert_non_null(strstr(x->log, rows[i].text));
        assert_int_equal(scripted_added(), nth + 1);
        assert_int_equal(scripted_easies_open(), 0);
    }
    /* The second answer is one of its own. */
    static const struct {
        CURLcode result;
        const char *text;
    } ends_as[] = { { CURLE_OK, "the answer has no status" },
                    { CURLE_GOT_NOTHING, "the connection was closed before an answer: "
                                         "Server returned nothing (no headers, no data)" } };
    for (size_t i = 0; i < 2; i++) {
        size_t at = scripted_added();
        exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
        play(at, answer_with_a_text, "HTTP/1.1 302 x\r\n\r\n");
        act a = { .task.run = end_now, .easy = scripted_nth(at + 1), .result = ends_as[i].result };
        tkc_loop_post(loop, &a.task);
        settle();
        assert_string_equal(x->log, failed_as(TINKC_E_CONNECTION, ends_as[i].text));
    }
    /* Silence counts from the second request, and a count of the first is forgotten. */
    size_t nth = scripted_added();
    exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    play(nth, see_progress, "5");
    advance(900);
    play(nth, answer_redirect, "HTTP/1.1 302 x\r\n\r\n");
    play(nth + 1, be_connected, NULL);
    advance(999);
    assert_string_equal(x->log, "");
    advance(1);
    assert_string_equal(x->log, failed_as(TINKC_E_NET_TIMEOUT, "the peer was silent for 1000 ms"));
}

static void addresses_are_joined(void **state)
{
    (void)state;
    static const char *const rows[][3] = { { "http://h", "/p", "URL=http://h/p\n" },
                                           { "http://h/", "p", "URL=http://h/p\n" },
                                           { "http://h/a///", "//p/", "URL=http://h/a/p/\n" },
                                           { "http://h", "", "URL=http://h/\n" } };
    open_with(&(tkc_http_options){ .proxy = "", .unix_socket = "/s" }); /* of no service */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        exchange *x = make("GET", rows[i][0], TINKC_POOL_TRAIN);
        x->request.path = rows[i][1];
        sent(x);
        assert_non_null(strstr(settings(i), rows[i][2]));
        assert_null(strstr(settings(i), "UNIX_SOCKET_PATH"));
    }
}

/* The socket is the service's alone: a redirect elsewhere, and back, uses none. */
static void a_socket_is_not_followed_elsewhere(void **state)
{
    (void)state;
    static const char *const on_the_way[] = { "http://o/", "http://h/again" };
    open_with(&(tkc_http_options){ .proxy = "", .base_url = "http://h", .unix_socket = "/s" });
    sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    assert_non_null(strstr(settings(0), "UNIX_SOCKET_PATH=/s\n"));
    for (size_t i = 0; i < 2; i++) {
        target = on_the_way[i];
        play(i, answer_redirect, "HTTP/1.1 302 x\r\n\r\n");
        assert_null(strstr(settings(i + 1), "UNIX_SOCKET_PATH"));
    }
}

/* ---- more of heads ---- */

static char long_line[(1 << 20) + 64];

static void give_long_heads(scripted_easy *e, const char *status)
{
    static const size_t most = (1 << 20) - 4; /* name, value and their two ends */
    bool held = strstr(status, "302") != NULL;
    for (size_t over = 0; over < 2; over++) {
        (void)scripted_head(e, status);
        memset(long_line, 'v', sizeof long_line);
        memcpy(long_line, "ab: ", 4);
        memcpy(long_line + 4 + most + over, "\r\n", 2);
        size_t len = 4 + most + over + 2;
        assert_int_equal(e->header_fn(long_line, 1, len, e->header_data), over ? 0 : len);
        if (over == 0) /* one that is held leaves no room */
            assert_int_equal(scripted_head(e, "c: d\r\n"), !held);
    }
}

/* Header lines are bounded: each by itself, those of a redirect together. */
static void long_heads_are_refused(void **state)
{
    (void)state;
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < 2; i++) {
        sent(make("GET", "http://h", TINKC_POOL_TRAIN));
        play(i, give_long_heads, i ? "HTTP/1.1 302 x\r\n" : "HTTP/1.1 200 x\r\n");
    }
}

static void see_download(scripted_easy *e, const char *bytes)
{
    assert_int_equal(e->progress_fn(e->progress_data, 0, atoi(bytes), 0, 0), 0);
}

static void read_one(scripted_easy *e, const char *unused)
{
    char to[1];
    (void)unused;
    assert_int_equal(e->read_fn(to, 1, 1, e->read_data), 1);
}

static void signs_of_life(void **state)
{
    (void)state;
    static void (*const signs[])(scripted_easy *, const char *) = { see_download, see_progress,
                                                                    read_one, head_only };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < 4; i++) {
        exchange *x = make("POST", "http://h", TINKC_POOL_TRAIN);
        x->request.read_body = read_some;
        x->request.body_size = 10;
        sent(x);
        play(i, be_connected, NULL);
        advance(600);
        play(i, signs[i], signs[i] == head_only ? "HTTP/1.1 100 x\r\n" : "3");
        advance(999);
        assert_string_equal(x->log, "");
        advance(1);
        assert_string_equal(x->log,
                            failed_as(TINKC_E_NET_TIMEOUT, "the peer was silent for 1000 ms"));
    }
}

/* ---- more of settings ---- */

/* What is given counts, and of the environment nothing. */
static void options_outweigh_the_environment(void **state)
{
    (void)state;
    static const char *const set[] = { "all_proxy", "http_proxy",    "https_proxy",
                                       "no_proxy",  "SSL_CERT_FILE", "SSL_CERT_DIR" };
    for (size_t i = 0; i < 6; i++)
        setenv(set[i], "environment", 1);
    open_with(&(tkc_http_options){ .proxy = "http://p", .ca_file = "/ca" });
    sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    sent(make("GET", "https://h", TINKC_POOL_TRAIN));
    clear_environment();
    for (size_t i = 0; i < 2; i++) {
        assert_non_null(strstr(settings(i), "\nPROXY=http://p\nNOPROXY=\n"));
        assert_null(strstr(settings(i), "environment"));
    }
    assert_non_null(strstr(settings(1), "CAINFO=/ca\n"));
}

/* A service that answers over HTTP/1.1 again has a connection for each request again. */
static void http2_may_end(void **state)
{
    (void)state;
    open_with(&(tkc_http_options){ .proxy = "", .max_connections = 1 });
    sent(make("GET", "http://h", TINKC_POOL_SAMPLE));
    play(0, answer_http2, "HTTP/2 200\r\n\r\n");
    sent(make("GET", "http://h", TINKC_POOL_SAMPLE));
    play(1, head_and_end, "HTTP/1.1 200 OK\r\n\r\n");
    for (size_t i = 0; i < 10; i++)
        post(make("GET", "http://h", TINKC_POOL_SAMPLE), send_now);
    settle();
    assert_int_equal(scripted_added(), 2 + 8);
    assert_non_null(strstr(scripted_multi_nth(0)->settings,
                           "MAX_HOST_CONNECTIONS=1\nMAX_HOST_CONNECTIONS=0\n"));
}

static void texts_of_failures(void **state)
{
    (void)state;
    char text[64], cut[8];
    assert_int_equal(tkc_http_explain(CURLE_GOT_NOTHING, 0, "", false, text, sizeof text),
                     TINKC_E_CONNECTION);
    assert_string_equal(text, "the connection was closed before an answer");
    assert_int_equal(
        tkc_http_explain(CURLE_OPERATION_TIMEDOUT, 0, "\x1f \x20\x7f", false, text, sizeof text),
        TINKC_E_NET_TIMEOUT);
    assert_string_equal(text, "connecting took too long:   \x20\x7f");
    (void)tkc_http_explain(CURLE_SSL_CIPHER, 0, "x", false, cut, sizeof cut);
    assert_string_equal(cut, "TLS fai");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_method_has_its_settings),
        TEST(limits_become_settings),
        TEST(buffers_shrink_in_a_crowd),
        TEST(routes_become_settings),
        TEST(the_environment_names_routes),
        TEST(large_bodies_are_read_piece_by_piece),
        TEST(headers_as_they_are_sent),
        TEST(answers_as_they_are_passed_on),
        TEST(versions_have_names),
        TEST(a_400_forbids_reuse),
        TEST(unwanted_answers_end),
        TEST(failures_have_codes_and_texts),
        TEST(libcurls_own_failures),
        TEST(redirects_are_followed),
        TEST(bodies_along_redirects),
        TEST(redirects_that_are_refused),
        TEST(silence_is_a_failure),
        TEST(no_limit_of_silence),
        TEST(pauses_are_not_silence),
        TEST(kinds_have_shares_of_the_connections),
        TEST(http2_shares_connections),
        TEST(idle_pools_are_closed),
        TEST(the_queue_keeps_its_order),
        TEST(replies_act_from_inside_their_end),
        TEST(a_paused_one_is_cancelled),
        TEST(files_limit_connections),
        TEST(no_descriptor_to_wait_with),
        TEST(sockets_are_watched),
        TEST(redirects_that_break),
        TEST(addresses_are_joined),
        TEST(a_socket_is_not_followed_elsewhere),
        TEST(long_heads_are_refused),
        TEST(signs_of_life),
        TEST(options_outweigh_the_environment),
        TEST(http2_may_end),
        cmocka_unit_test(texts_of_failures),
    };
    clear_environment();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
