/* http_script.h - the transport on a scripted libcurl, a clock that the test moves and an allocator that
 * counts: requests, and everything that their replies were given as text. Of each test program one. */
#ifndef TESTS_HTTP_SCRIPT_H
#define TESTS_HTTP_SCRIPT_H

#include "support/check.h"
#include "support/ledger.h"
#include "support/client/scripted_curl.h"

#include "net/http_internal.h"
#include "tinkc/sys/mock.h"

static tinkc_mock *mock;
static tkc_loop *loop;
static tkc_http *http;
static ledger book; /* the loop's thread, or nothing runs there */
static tinkc_allocator allocator;

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

static inline exchange *of(tinkc_reply *r)
{
    return TKC_OWNER(r, exchange, reply);
}

static inline void say(exchange *x, const char *what, const char *text)
{
    size_t used = strlen(x->log);
    (void)snprintf(x->log + used, sizeof x->log - used, "%s%s;", what, text);
}

static inline void on_status(tinkc_reply *r, int32_t status)
{
    char text[16];
    (void)snprintf(text, sizeof text, "%d", (int)status);
    say(of(r), "", text);
}

static inline void on_header(tinkc_reply *r, const char *name, const char *value)
{
    char text[256];
    (void)snprintf(text, sizeof text, "%s=%s", name, value);
    say(of(r), "", text);
}

static inline bool on_write(tinkc_reply *r, const void *data, size_t len)
{
    char text[256];
    (void)snprintf(text, sizeof text, "%.*s", (int)len, (const char *)data);
    say(of(r), len ? "body " : "head", text);
    return len ? !of(r)->refuses_body : !of(r)->refuses_head;
}

static inline void on_end(tinkc_reply *r)
{
    say(of(r), "end", "");
    if (of(r)->at_end)
        of(r)->at_end();
}

static inline void on_fail(tinkc_reply *r, int32_t code, const char *message)
{
    char text[512];
    (void)snprintf(text, sizeof text, "%d %s", (int)code, message);
    say(of(r), "fail ", text);
}

static inline size_t on_room(tinkc_reply *r)
{
    return of(r)->room;
}

static inline int64_t settle(void)
{
    tinkc_error err = { 0 };
    int64_t next = tinkc_mock_settle(mock, 60000, &err);
    assert_ok(err);
    return next;
}

static inline void send_now(tkc_task *task)
{
    exchange *x = TKC_OWNER(task, exchange, task);
    const tinkc_transport *t = tkc_http_transport(http);
    t->send(t->self, &x->request, &x->reply);
}

static inline exchange *make(const char *method, const char *base, int32_t pool)
{
    static const char *const headers[] = { "X-API-Key", "secret", "Accept", "a/b", NULL };
    exchange *x = &all[n_sent++];
    *x = (exchange){
        .reply = { .status = on_status, .header = on_header, .write = on_write, .end = on_end, .fail = on_fail },
        .request = { .method = method,
                     .path = "/p",
                     .base_url = base,
                     .headers = headers,
                     .connect_timeout_ms = 500,
                     .idle_timeout_ms = 1000,
                     .pool = pool },
        .task.run = send_now
    };
    return x;
}

static inline void post(exchange *x, void (*run)(tkc_task *))
{
    x->task.run = run;
    tkc_loop_post(loop, &x->task);
}

static inline exchange *sent(exchange *x)
{
    post(x, send_now);
    settle();
    return x;
}

static inline void resume_now(tkc_task *task)
{
    const tinkc_transport *t = tkc_http_transport(http);
    t->resume(t->self, &TKC_OWNER(task, exchange, task)->reply);
}

static inline void cancel_now(tkc_task *task)
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

static inline void end_now(tkc_task *task)
{
    act *a = TKC_OWNER(task, act, task);
    scripted_end(a->easy, a->result);
}

static inline void act_now(tkc_task *task)
{
    act *a = TKC_OWNER(task, act, task);
    a->fn(a->easy, a->arg);
}

static inline int64_t play(size_t nth, void (*fn)(scripted_easy *, const char *), const char *arg)
{
    act a = { .task.run = act_now, .fn = fn, .easy = scripted_nth(nth), .arg = arg };
    assert_non_null(a.easy);
    tkc_loop_post(loop, &a.task);
    return settle();
}

static inline void head_and_end(scripted_easy *e, const char *lines)
{
    (void)scripted_head(e, lines);
    scripted_end(e, CURLE_OK);
}

static inline void head_only(scripted_easy *e, const char *lines)
{
    (void)scripted_head(e, lines);
}

static inline void body_only(scripted_easy *e, const char *text)
{
    (void)scripted_body(e, text);
}

static inline void end_well(scripted_easy *e, const char *unused)
{
    (void)unused;
    scripted_end(e, CURLE_OK);
}

static inline void answer_http2(scripted_easy *e, const char *lines)
{
    e->http_version = CURL_HTTP_VERSION_2_0;
    head_and_end(e, lines);
}

static inline void see_progress(scripted_easy *e, const char *bytes)
{
    assert_int_equal(e->progress_fn(e->progress_data, 0, 0, 0, atoi(bytes)), 0);
}

/* ---- life ---- */

static inline void open_with(const tkc_http_options *options)
{
    tinkc_error err = { 0 };
    http = tkc_http_new(&allocator, loop, options, &err);
    assert_ok(err);
    n_sent = 0;
}

static inline int setup(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    scripted_curl_start();
    book = (ledger){ .left = -1 };
    allocator = ledger_allocator(&book);
    mock = tinkc_mock_new(TINKC_MOCK_EMPTY, &err);
    loop = tkc_loop_new(&allocator, tinkc_mock_clock(mock), &err);
    assert_ok(err);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_sent; i++)
        post(&all[i], cancel_now);
    settle();
    tkc_loop_stop(loop);
    bool ended = tkc_loop_join(loop, 60000);
    tkc_http_free(http);
    tinkc_mock_free(mock);
    return ended && scripted_easies_open() == 0 && scripted_multis_open() == 0 && scripted_lists_open() == 0 &&
                   scripted_misuses() == 0 && book.blocks == 0 && book.bytes == 0
               ? 0
               : 1;
}

/* ---- settings ---- */

/* The settings of the nth transfer without those that are the same for all. */
static inline const char *settings(size_t nth)
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

static inline size_t read_some(const tinkc_request *r, uint64_t at, void *to, size_t cap)
{
    static const char text[] = "0123456789";
    size_t n = (size_t)r->body_size - (size_t)at;
    n = n < cap ? n : cap;
    memcpy(to, text + at, n);
    return n;
}

static inline void clear_environment(void)
{
    static const char *const names[] = { "all_proxy",     "ALL_PROXY",    "http_proxy",    "HTTP_PROXY",
                                         "https_proxy",   "HTTPS_PROXY",  "no_proxy",      "NO_PROXY",
                                         "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUEST_METHOD" };
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        unsetenv(names[k]);
}

/* ---- redirects, silence, failures ---- */

static const char *target;
static inline void answer_redirect(scripted_easy *e, const char *lines)
{
    e->redirect = target;
    head_and_end(e, lines);
}

static inline void be_connected(scripted_easy *e, const char *unused)
{
    (void)unused;
    e->pretransfer = 1;
}

/* Moves the clock, and expects the reply to have ended just now or not at all. */
static inline void advance(int64_t ms)
{
    tinkc_mock_advance(mock, ms);
    settle();
}

static inline const char *failed_as(int32_t code, const char *text)
{
    static char want[200];
    (void)snprintf(want, sizeof want, "fail %d %s;", (int)code, text);
    return want;
}

#endif
