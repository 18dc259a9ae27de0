/* test_http.c - the HTTP transport against a server that behaves and misbehaves. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <semaphore.h>
#include <sys/stat.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/thread.h"
#include "net/http.h"
#include "support/patience.h"
#include "support/client/stub_server.h"
#include "support/test_case.h"

/* ---- one transport on a loop of its own, and replies that remember ---- */

typedef struct fixture {
    tkc_loop *loop;
    tkc_http *http;
    stub_server *server; /* of tests that have one only */
    const char *url;     /* its address */
} fixture;

typedef struct answer {
    tinkc_reply reply;
    tinkc_request request;
    fixture *fx;
    tkc_task tasks[3]; /* send, resume, cancel */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool done;
    int32_t ends, status, code;
    char message[400];
    char headers[2048];
    char *body;
    size_t cap;
    atomic_size_t len;
    atomic_size_t room; /* with limit_room: how many more bytes may come */
    bool limit_room;
    int heads;
} answer;

static answer *of(tinkc_reply *r)
{
    return TKC_OWNER(r, answer, reply);
}

static void on_status(tinkc_reply *r, int32_t status)
{
    assert_int_equal(of(r)->status, 0);
    of(r)->status = status;
}

static void on_header(tinkc_reply *r, const char *name, const char *value)
{
    answer *a = of(r);
    size_t used = strlen(a->headers);
    assert_true(a->status > 0);
    assert_int_equal(a->len, 0);
    snprintf(a->headers + used, sizeof a->headers - used, "%s=%s\n", name, value);
}

static bool on_write(tinkc_reply *r, const void *data, size_t len)
{
    answer *a = of(r);
    if (len == 0) { /* the head is complete */
        assert_int_equal(a->len, 0);
        assert_int_equal(a->heads++, 0);
        return true;
    }
    assert_int_equal(a->heads, 1);
    if (a->limit_room) {
        size_t room = atomic_load(&a->room);
        atomic_store(&a->room, room > len ? room - len : 0);
        a->len += len;
        return true;
    }
    if (a->len + len > a->cap) {
        a->cap = (a->len + len) * 2;
        a->body = realloc(a->body, a->cap + 1);
    }
    memcpy(a->body + a->len, data, len);
    a->len += len;
    a->body[a->len] = 0;
    return true;
}

static void finish(answer *a, int32_t code, const char *message)
{
    pthread_mutex_lock(&a->lock);
    a->ends++;
    a->code = code;
    snprintf(a->message, sizeof a->message, "%s", message);
    a->done = true;
    pthread_cond_broadcast(&a->cond);
    pthread_mutex_unlock(&a->lock);
}

static void on_end(tinkc_reply *r)
{
    finish(of(r), 0, "");
}

static void on_fail(tinkc_reply *r, int32_t code, const char *message)
{
    finish(of(r), code, message);
}

static size_t on_room(tinkc_reply *r)
{
    return atomic_load(&of(r)->room);
}

static void send_now(tkc_task *task)
{
    answer *a = TKC_OWNER(task, answer, tasks[0]);
    const tinkc_transport *t = tkc_http_transport(a->fx->http);
    t->send(t->self, &a->request, &a->reply);
}

static void resume_now(tkc_task *task)
{
    answer *a = TKC_OWNER(task, answer, tasks[1]);
    const tinkc_transport *t = tkc_http_transport(a->fx->http);
    t->resume(t->self, &a->reply);
}

static void cancel_now(tkc_task *task)
{
    answer *a = TKC_OWNER(task, answer, tasks[2]);
    const tinkc_transport *t = tkc_http_transport(a->fx->http);
    t->cancel(t->self, &a->reply);
}

static answer *make(fixture *fx, const char *method, const char *base, const char *path)
{
    static const char *const headers[] = { "X-API-Key", "tml-secret", "Accept", "application/json", NULL };
    tinkc_error err = { 0 };
    answer *a = calloc(1, sizeof *a);
    a->fx = fx;
    a->reply =
        (tinkc_reply){ .status = on_status, .header = on_header, .write = on_write, .end = on_end, .fail = on_fail };
    a->request = (tinkc_request){ .method = method,
                                  .path = path,
                                  .base_url = base,
                                  .headers = headers,
                                  .connect_timeout_ms = PATIENCE_MS,
                                  .idle_timeout_ms = PATIENCE_MS,
                                  .pool = TINKC_POOL_REST };
    pthread_mutex_init(&a->lock, NULL);
    assert_true(tkc_cond_init(&a->cond, &err));
    return a;
}

static void post(answer *a, void (*run)(tkc_task *))
{
    tkc_task *task = &a->tasks[run == send_now ? 0 : run == resume_now ? 1 : 2];
    task->run = run;
    tkc_loop_post(a->fx->loop, task);
}

typedef struct gate { /* holds the loop's thread until it is opened */
    tkc_task task;
    sem_t open;
} gate;

static void wait_at_gate(tkc_task *task)
{
    gate *g = TKC_OWNER(task, gate, task);
    while (sem_wait(&g->open) != 0) {
    } /* a signal came */
}

static answer *await(answer *a)
{
    int64_t deadline = tkc_deadline_ns(PATIENCE_MS);
    pthread_mutex_lock(&a->lock);
    while (!a->done)
        if (!tkc_cond_wait_until(&a->cond, &a->lock, deadline))
            break;
    bool done = a->done;
    pthread_mutex_unlock(&a->lock);
    assert_true(done);
    assert_int_equal(a->ends, 1);
    return a;
}

/* Sends all in one round of the loop, so that they overlap however quick the answers are. */
static void post_together(fixture *fx, answer **all, size_t n)
{
    gate g = { .task.run = wait_at_gate };
    assert_int_equal(sem_init(&g.open, 0, 0), 0);
    tkc_loop_post(fx->loop, &g.task);
    for (size_t i = 0; i < n; i++)
        post(all[i], send_now);
    sem_post(&g.open);
    for (size_t i = 0; i < n; i++)
        await(all[i]); /* so the gate is passed, too */
    sem_destroy(&g.open);
}

static void drop(answer *a)
{
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->cond);
    free(a->body);
    free(a);
}

static answer *exchange(answer *a)
{
    post(a, send_now);
    return await(a);
}

static answer *get(fixture *fx, const char *base, const char *path)
{
    return exchange(make(fx, "GET", base, path));
}

static void open_with(fixture *fx, const tkc_http_options *options)
{
    tinkc_error err = { 0 };
    fx->loop = tkc_loop_new(NULL, tkc_clock_real(), &err);
    fx->http = tkc_http_new(NULL, fx->loop, options, &err);
    assert_int_equal(err.code, 0);
    assert_non_null(fx->http);
}

static void open_fixture(fixture *fx)
{
    open_with(fx, &(tkc_http_options){ .proxy = "" });
}

static void close_fixture(fixture *fx)
{
    tkc_loop_stop(fx->loop);
    assert_true(tkc_loop_join(fx->loop, PATIENCE_MS));
    tkc_http_free(fx->http);
}

/* ---- the server's script: the path says what to do ---- */

static char seen_key[128], seen_path[256], seen_method[16], seen_headers[4096];
static size_t seen_body;
static char other_url[64];

static void script(const stub_request *r, stub_answer *a, void *user)
{
    static char header[256];
    (void)user;
    snprintf(seen_path, sizeof seen_path, "%s", r->path);
    snprintf(seen_method, sizeof seen_method, "%s", r->method);
    snprintf(seen_headers, sizeof seen_headers, "%s", r->headers);
    stub_header(r, "X-API-Key", seen_key, sizeof seen_key);
    seen_body = r->body_len;
    a->headers = "Content-Type: application/json\r\n";
    a->body = "{\"well\":true}";
    if (strstr(r->path, "/chunked"))
        a->chunked = true;
    else if (strstr(r->path, "/close"))
        a->until_close = true;
    else if (strstr(r->path, "/reset-now"))
        a->behaviour = STUB_RESET_NOW;
    else if (strstr(r->path, "/reset-inside"))
        a->behaviour = STUB_RESET, a->after = 4;
    else if (strstr(r->path, "/truncated"))
        a->behaviour = STUB_TRUNCATE, a->after = 4;
    else if (strstr(r->path, "/silent-inside"))
        a->behaviour = STUB_SILENT, a->after = 4;
    else if (strstr(r->path, "/silent"))
        a->behaviour = STUB_SILENT;
    else if (strstr(r->path, "/garbage"))
        a->behaviour = STUB_GARBAGE;
    else if (strstr(r->path, "/endless"))
        a->behaviour = STUB_ENDLESS;
    else if (strstr(r->path, "/gzip-broken"))
        a->headers = "Content-Encoding: gzip\r\n";
    else if (strstr(r->path, "/bare-400"))
        a->status = 400, a->body = NULL;
    else if (strstr(r->path, "/slow"))
        a->delay_ms = 200;
    else if (strstr(r->path, "/loop"))
        a->status = 302, a->headers = "Location: /loop\r\n";
    else if (strstr(r->path, "/nowhere"))
        a->status = 302;
    else if (strstr(r->path, "/ftp"))
        a->status = 302, a->headers = "Location: ftp://127.0.0.1/x\r\n";
    else if (strstr(r->path, "/moved")) {
        a->status = 302;
        snprintf(header, sizeof header, "Location: %s/landed\r\n", strstr(r->path, "other") ? other_url : "");
        a->headers = header;
    } else if (strstr(r->path, "/missing"))
        a->status = 404, a->body = "{\"detail\":\"no such thing\"}";
}

static int setup(void **state)
{
    fixture *fx = calloc(1, sizeof *fx);
    fx->server = stub_start(NULL, script, NULL);
    fx->url = stub_url(fx->server);
    open_fixture(fx);
    *state = fx;
    return 0;
}

static int teardown(void **state)
{
    fixture *fx = *state;
    close_fixture(fx);
    stub_stop(fx->server);
    free(fx);
    return 0;
}

/* ---- what works ---- */

TEST_WITH(a_get_reads_every_kind_of_body, setup, teardown)
{
    fixture *fx = *state;
    const char *const paths[] = { "/x?a=1", "/chunked", "/close", NULL };
    for (int i = 0; paths[i]; i++) {
        answer *a = get(fx, fx->url, paths[i]);
        assert_int_equal(a->code, 0);
        assert_int_equal(a->status, 200);
        assert_string_equal(a->body, "{\"well\":true}");
        assert_non_null(strstr(a->headers, "Content-Type=application/json\n"));
        assert_non_null(strstr(a->headers, ":version=1.1\n"));
        assert_non_null(strstr(a->headers, ":url=http://127.0.0.1:"));
        assert_string_equal(seen_path, paths[i]);
        assert_string_equal(seen_key, "tml-secret");
        drop(a);
    }
    assert_int_equal(stub_connections(fx->server), 1); /* kept alive until the server closed it */
}

/* A program that is started meanwhile, must not get the connection. */
TEST_WITH(connections_are_close_on_exec, setup, teardown)
{
    fixture *fx = *state;
    answer *a = get(fx, fx->url, "/x");
    size_t n = 0;
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_in peer = { 0 };
        socklen_t len = sizeof peer;
        if (getpeername(fd, (struct sockaddr *)&peer, &len) != 0 || peer.sin_family != AF_INET ||
            ntohs(peer.sin_port) != (uint16_t)atoi(strrchr(fx->url, ':') + 1))
            continue;
        n++;
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    }
    assert_true(n >= 1);
    drop(a);
}

TEST_WITH(a_400_costs_its_connection, setup, teardown)
{
    fixture *fx = *state;
    answer *a = get(fx, fx->url, "/bare-400");
    assert_int_equal(a->status, 400);
    assert_int_equal(a->len, 0);
    drop(a);
    drop(get(fx, fx->url, "/x"));
    drop(get(fx, fx->url, "/x"));
    assert_int_equal(stub_connections(fx->server), 2);
}

TEST_WITH(each_method_sends_its_length, setup, teardown)
{
    fixture *fx = *state;
    static const struct {
        const char *method, *body, *length;
    } rows[] = { { "POST", "{\"a\":1}", "Content-Length: 7" },
                 { "POST", NULL, "Content-Length: 0" },
                 { "PUT", "{}", "Content-Length: 2" },
                 { "PATCH", NULL, "Content-Length: 0" },
                 { "DELETE", "{}", "Content-Length: 2" },
                 { "DELETE", NULL, NULL },
                 { "HEAD", NULL, NULL },
                 { "GET", NULL, NULL } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        answer *a = make(fx, rows[i].method, fx->url, "/m");
        if (rows[i].body)
            a->request.body = (tinkc_bytes){ (const unsigned char *)rows[i].body, strlen(rows[i].body) };
        exchange(a);
        assert_int_equal(a->status, 200);
        assert_string_equal(seen_method, rows[i].method);
        assert_int_equal(seen_body, rows[i].body ? strlen(rows[i].body) : 0);
        if (rows[i].length)
            assert_non_null(strstr(seen_headers, rows[i].length));
        else
            assert_null(strcasestr(seen_headers, "content-length"));
        assert_null(strcasestr(seen_headers, "expect:"));
        assert_null(strcasestr(seen_headers, "x-www-form"));
        assert_non_null(strcasestr(seen_headers, "accept-encoding: "));
        drop(a);
    }
}

TEST_WITH(a_large_body_is_sent_whole, setup, teardown)
{
    fixture *fx = *state;
    size_t len = 8 * 1024 * 1024;
    char *big = calloc(1, len);
    answer *a = make(fx, "POST", fx->url, "/big");
    a->request.body = (tinkc_bytes){ (unsigned char *)big, len };
    exchange(a);
    assert_int_equal(a->status, 200);
    assert_int_equal(seen_body, len);
    drop(a);
    free(big);
}

TEST_WITH(kinds_do_not_share_connections, setup, teardown)
{
    fixture *fx = *state;
    for (int32_t kind = 0; kind < 8; kind++) {
        answer *a = make(fx, "GET", fx->url, "/x");
        a->request.pool = kind;
        drop(exchange(a));
    }
    assert_int_equal(stub_connections(fx->server), 8);
}

TEST(more_requests_than_connections)
{
    enum { N = 216, SILENCE_MS = 3000 };
    static answer *all[N];
    fixture fx;
    stub_server *s = stub_start(NULL, script, NULL);
    open_with(&fx, &(tkc_http_options){ .proxy = "", .max_connections = 24 });
    for (int i = 0; i < N; i++) {
        all[i] = make(&fx, "POST", stub_url(s), "/slow");
        all[i]->request.pool = TINKC_POOL_RETRIEVE;
        /* The queue does not count against the silence that a peer is allowed: the last ones wait for
         * 17 rounds of 200 ms. */
        all[i]->request.idle_timeout_ms = SILENCE_MS;
        post(all[i], send_now);
    }
    for (int i = 0; i < N; i++) {
        await(all[i]);
        assert_int_equal(all[i]->status, 200);
        drop(all[i]);
    }
    assert_true(stub_most_open(s) <= 12);
    assert_int_equal(stub_requests(s), N);
    close_fixture(&fx);
    stub_stop(s);
}

TEST(requests_travel_through_a_unix_socket)
{
    fixture fx;
    char path[] = "/tmp/tinkc-http-XXXXXX", socket_path[64];
    assert_non_null(mkdtemp(path));
    snprintf(socket_path, sizeof socket_path, "%s/s", path);
    stub_server *s = stub_start(socket_path, script, NULL);
    open_with(&fx, &(tkc_http_options){
                       .base_url = "http://service/", .unix_socket = socket_path, .proxy = "http://127.0.0.1:1" });
    answer *a = get(&fx, "http://service/", "/x");
    assert_int_equal(a->status, 200);
    drop(a);
    /* Another host does not go through the service's socket (here: the proxy that is not there). */
    a = get(&fx, "http://elsewhere", "/x");
    assert_int_equal(a->code, TINKC_E_CONNECTION);
    drop(a);
    close_fixture(&fx);
    stub_stop(s);
    rmdir(path);
}

TEST(a_proxy_gets_the_whole_address)
{
    fixture fx;
    stub_server *s = stub_start(NULL, script, NULL);
    open_with(&fx, &(tkc_http_options){ .proxy = stub_url(s) });
    drop(get(&fx, "http://service.invalid", "/x"));
    assert_string_equal(seen_path, "http://service.invalid/x");
    close_fixture(&fx);

    setenv("http_proxy", stub_url(s), 1);
    setenv("no_proxy", "127.0.0.1", 1);
    open_with(&fx, &(tkc_http_options){ 0 });
    setenv("http_proxy", "http://127.0.0.1:1", 1); /* read once, when the client was made */
    drop(get(&fx, "http://service.invalid", "/y"));
    assert_string_equal(seen_path, "http://service.invalid/y");
    drop(get(&fx, stub_url(s), "/direct"));
    assert_string_equal(seen_path, "/direct");
    close_fixture(&fx);
    unsetenv("http_proxy");
    unsetenv("no_proxy");

    setenv("HTTP_PROXY", stub_url(s), 1);
    open_with(&fx, &(tkc_http_options){ 0 });
    drop(get(&fx, "http://service.invalid", "/z"));
    assert_string_equal(seen_path, "http://service.invalid/z");
    close_fixture(&fx);
    setenv("REQUEST_METHOD", "GET", 1); /* there it is a stranger's word */
    open_with(&fx, &(tkc_http_options){ 0 });
    answer *a = get(&fx, "http://service.invalid", "/z");
    assert_int_equal(a->code, TINKC_E_CONNECTION);
    drop(a);
    close_fixture(&fx);
    unsetenv("REQUEST_METHOD");
    unsetenv("HTTP_PROXY");

    /* all_proxy serves both kinds of address, unless one has its own. A CONNECT names the host. */
    setenv("all_proxy", stub_url(s), 1);
    open_with(&fx, &(tkc_http_options){ 0 });
    drop(get(&fx, "http://service.invalid", "/all"));
    assert_string_equal(seen_path, "http://service.invalid/all");
    drop(get(&fx, "https://secure.invalid", "/all"));
    assert_string_equal(seen_path, "secure.invalid:443");
    close_fixture(&fx);
    setenv("https_proxy", stub_url(s), 1);
    setenv("all_proxy", "http://127.0.0.1:1", 1);
    open_with(&fx, &(tkc_http_options){ 0 });
    drop(get(&fx, "https://own.invalid", "/x"));
    assert_string_equal(seen_path, "own.invalid:443");
    close_fixture(&fx);
    unsetenv("https_proxy");
    unsetenv("all_proxy");
    stub_stop(s);
}

/* ---- how many connections ---- */

static void keep_line(int32_t level, const char *line, void *user)
{
    (void)level;
    (void)snprintf(user, 200, "%s", line);
}

/* What is said about the limit where the process may open so many files; "" = nothing. */
static const char *limit_line(rlim_t files, int32_t wanted)
{
    static char line[200];
    struct rlimit before, less;
    fixture fx;
    line[0] = '\0';
    tkc_log log = { .fn = keep_line, .user = line, .level = TINKC_LOG_INFO };
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    less = before;
    less.rlim_cur = files;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &less), 0);
    open_with(&fx, &(tkc_http_options){ .proxy = "", .max_connections = wanted, .log = &log });
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    close_fixture(&fx);
    return line;
}

/* A thousand connections unless the options say otherwise; 64 descriptors, or half of very few, are left
 * to the program. */
TEST(connections_leave_room_for_files)
{
    assert_non_null(strstr(limit_line(300, 0), "at most 236 connections instead of 1000"));
    assert_non_null(strstr(limit_line(300, 237), "at most 236 connections instead of 237"));
    assert_string_equal(limit_line(300, 236), "");
    assert_non_null(strstr(limit_line(128, 0), "at most 64 connections"));
    assert_non_null(strstr(limit_line(100, 0), "at most 50 connections"));
}

/* ---- redirects ---- */

TEST(a_redirect_drops_the_credential_at_another_host)
{
    fixture fx;
    stub_server *s = stub_start(NULL, script, NULL), *other = stub_start(NULL, script, NULL);
    snprintf(other_url, sizeof other_url, "%s", stub_url(other));
    open_fixture(&fx);
    answer *a = get(&fx, stub_url(s), "/moved");
    assert_int_equal(a->status, 200);
    assert_string_equal(seen_path, "/landed");
    assert_string_equal(seen_key, "tml-secret"); /* the same host may see it */
    assert_non_null(strstr(a->headers, "/landed\n"));
    drop(a);

    a = get(&fx, stub_url(s), "/moved-other");
    assert_int_equal(a->status, 200);
    assert_int_equal(stub_requests(other), 1);
    assert_string_equal(seen_key, ""); /* another one may not */
    drop(a);

    a = make(&fx, "GET", stub_url(s), "/moved-other");
    a->request.no_redirects = true;
    exchange(a);
    assert_int_equal(a->status, 302);
    assert_non_null(strstr(a->headers, "Location=http://127.0.0.1:"));
    assert_int_equal(stub_requests(other), 1);
    drop(a);

    a = get(&fx, stub_url(s), "/nowhere"); /* without a place to go it is an answer */
    assert_int_equal(a->code, 0);
    assert_int_equal(a->status, 302);
    drop(a);
    close_fixture(&fx);
    stub_stop(s);
    stub_stop(other);
}

/* ---- bad weather ---- */

typedef struct weather {
    const char *path;
    int32_t code;
    const char *says;
} weather;

TEST_WITH(each_broken_connection_has_its_error, setup, teardown)
{
    fixture *fx = *state;
    static const weather rows[] = {
        { "/reset-now", TINKC_E_CONNECTION, "before an answer" },
        { "/reset-inside", TINKC_E_CONNECTION, "inside the" },
        { "/truncated", TINKC_E_CONNECTION, "inside the body" },
        { "/garbage", TINKC_E_CONNECTION, "not HTTP" },
        { "/silent", TINKC_E_NET_TIMEOUT, "silent for 300 ms" },
        { "/silent-inside", TINKC_E_NET_TIMEOUT, "silent for 300 ms" },
        { "/gzip-broken", TINKC_E_BAD_RESPONSE, "compression" },
        { "/loop", TINKC_E_BAD_RESPONSE, "too many redirects" },
        { "/ftp", TINKC_E_BAD_RESPONSE, "not http" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        answer *a = make(fx, "POST", fx->url, rows[i].path);
        if (rows[i].code == TINKC_E_NET_TIMEOUT) /* elsewhere a loaded machine may take longer */
            a->request.idle_timeout_ms = 300;
        exchange(a);
        if (a->code != rows[i].code || !strstr(a->message, rows[i].says))
            fail_msg("%s: code %d, %s", rows[i].path, a->code, a->message);
        drop(a);
        a = get(fx, fx->url, "/x"); /* and the transport works on */
        assert_int_equal(a->status, 200);
        drop(a);
    }
}

TEST(a_dead_port_is_a_connection_error)
{
    fixture fx;
    char url[64];
    open_fixture(&fx);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", stub_dead_port());
    answer *a = get(&fx, url, "/x");
    assert_int_equal(a->code, TINKC_E_CONNECTION);
    assert_non_null(strstr(a->message, "refused"));
    assert_int_equal(a->status, 0);
    drop(a);
    a = get(&fx, "http://no-such-host.invalid", "/x");
    assert_int_equal(a->code, TINKC_E_CONNECTION);
    assert_non_null(strstr(a->message, "DNS"));
    drop(a);
    a = get(&fx, "gopher://x", "/x");
    assert_int_equal(a->code, TINKC_E_CONNECTION);
    drop(a);
    a = get(&fx, "", "/x");
    assert_int_equal(a->code, TINKC_E_CONNECTION);
    drop(a);
    close_fixture(&fx);
}

/* A failure that shows while the loop gets ready to wait: who tries again soon must not wait for
 * something else to happen first. */
typedef struct later {
    answer *a;
    tkc_timer timer;
} later;

static later again;

static void time_has_come(tkc_timer *timer)
{
    finish(TKC_OWNER(timer, later, timer)->a, TINKC_E_CONNECTION, "tried again");
}

static void fail_later(tinkc_reply *r, int32_t code, const char *message)
{
    (void)code, (void)message;
    again = (later){ .a = of(r), .timer.fire = time_has_come };
    tkc_loop_arm(of(r)->fx->loop, &again.timer, 1);
}

TEST(a_timer_armed_by_a_failure_fires)
{
    static const char *const bases[] = { "gopher://x", "http://127.0.0.1:%d" };
    for (size_t i = 0; i < 2; i++) {
        fixture fx;
        char url[64];
        open_fixture(&fx);
        snprintf(url, sizeof url, bases[i], stub_dead_port());
        answer *a = make(&fx, "GET", url, "/x");
        a->reply.fail = fail_later;
        exchange(a);
        assert_string_equal(a->message, "tried again");
        drop(a);
        close_fixture(&fx);
    }
}

/* A header of the caller's own replaces ours and is sent once; one without a value is sent, too. */
TEST_WITH(a_header_of_the_callers_own_replaces_ours, setup, teardown)
{
    fixture *fx = *state;
    static const char *const own[] = {
        "accept-ENCODING", "identity", "Content-Type", "text/x-own", "X-Empty", "", NULL
    };
    answer *a = make(fx, "POST", fx->url, "/x");
    a->request.headers = own;
    a->request.body = (tinkc_bytes){ (const unsigned char *)"{}", 2 };
    exchange(a);
    assert_int_equal(a->status, 200);
    const char *encoding = strcasestr(seen_headers, "accept-encoding:");
    assert_non_null(encoding);
    assert_null(strcasestr(encoding + 1, "accept-encoding:"));
    assert_non_null(strstr(seen_headers, "identity"));
    const char *type = strcasestr(seen_headers, "content-type:");
    assert_non_null(type);
    assert_null(strcasestr(type + 1, "content-type:"));
    assert_non_null(strstr(seen_headers, "text/x-own"));
    assert_non_null(strstr(seen_headers, "X-Empty:"));
    drop(a);
}

static void pause_ms(long ms)
{
    struct timespec t = { ms / 1000, (ms % 1000) * 1000000 };
    nanosleep(&t, NULL);
}

/* Waits until more than so many bytes have come. */
static void await_bytes(const answer *a, size_t more_than)
{
    wait_until(atomic_load(&a->len) > more_than);
    assert_true(atomic_load(&a->len) > more_than);
}

TEST_WITH(slow_reader_holds_the_sender, setup, teardown)
{
    enum { MOST_IN_SOCKETS = 16 * 1024 * 1024, ROOM = 100000, SILENCE_MS = 3000 };
    fixture *fx = *state;
    answer *a = make(fx, "GET", fx->url, "/endless");
    a->request.idle_timeout_ms = SILENCE_MS;
    a->reply.room = on_room;
    a->limit_room = true;
    atomic_store(&a->room, ROOM);
    post(a, send_now);
    await_bytes(a, ROOM - 1);
    pause_ms(SILENCE_MS + 500); /* our own slowness is not the peer's silence */
    pthread_mutex_lock(&a->lock);
    assert_false(a->done);
    pthread_mutex_unlock(&a->lock);
    assert_true(stub_sent(fx->server) < MOST_IN_SOCKETS);
    size_t got = a->len;
    assert_true(got < ROOM + 128 * 1024);
    atomic_store(&a->room, 8 * 1024 * 1024);
    post(a, resume_now);
    await_bytes(a, got);
    post(a, cancel_now);
    await(a);
    assert_true(a->code != 0);
    drop(a);
}

TEST(a_cancelled_exchange_ends_at_once)
{
    fixture fx;
    stub_server *s = stub_start(NULL, script, NULL);
    open_with(&fx, &(tkc_http_options){ .proxy = "", .max_connections = 1 });
    answer *all[20];
    for (int i = 0; i < 20; i++) { /* eight under way, twelve in the queue */
        all[i] = make(&fx, "GET", stub_url(s), "/silent");
        post(all[i], send_now);
    }
    while (stub_requests(s) < 8)
        pause_ms(5);
    for (int i = 19; i >= 0; i--)
        post(all[i], cancel_now);
    for (int i = 0; i < 20; i++) {
        await(all[i]);
        assert_int_equal(all[i]->code, TINKC_E_CONNECTION);
        drop(all[i]);
    }
    assert_int_equal(stub_requests(s), 8);
    answer *a = get(&fx, stub_url(s), "/x");
    assert_int_equal(a->status, 200);
    drop(a);
    close_fixture(&fx);
    stub_stop(s);
}

TEST(all_cancelled_while_busy)
{
    fixture fx;
    stub_server *s = stub_start(NULL, script, NULL);
    open_with(&fx, &(tkc_http_options){ .proxy = "", .max_connections = 1 });
    answer *all[12];
    for (int i = 0; i < 12; i++) {
        all[i] = make(&fx, "GET", stub_url(s), "/silent");
        post(all[i], send_now);
    }
    while (stub_requests(s) < 8)
        pause_ms(5);
    for (int i = 0; i < 12; i++)
        post(all[i], cancel_now);
    for (int i = 0; i < 12; i++)
        drop(await(all[i]));
    close_fixture(&fx);
    stub_stop(s);
}

/* ---- TLS ---- */

static bool make_certificate(const char *dir)
{
    char command[600];
    snprintf(command, sizeof command,
             "cd %s && openssl req -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -days 2 "
             "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 >log 2>&1 && echo hello > x",
             dir);
    return system(command) == 0;
}

static void remove_folder(const char *dir)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

/* The first answer of a server that is just starting. */
static answer *get_once_it_listens(fixture *fx, const char *url, const char *path)
{
    answer *a = get(fx, url, path);
    int64_t began = patience_now_ms();
    while (strstr(a->message, "refused") && patience_lasts(began)) {
        drop(a);
        a = get(fx, url, path);
    }
    assert_int_equal(a->code, 0);
    assert_int_equal(a->status, 200);
    return a;
}

/* Serves the files of a folder as they are: each is a whole answer. */
static pid_t start_tls_server(const char *dir, int port)
{
    if (!make_certificate(dir))
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        char at[32];
        snprintf(at, sizeof at, "127.0.0.1:%d", port);
        if (chdir(dir) == 0 && freopen("log", "a", stdout) && freopen("log", "a", stderr) &&
            freopen("/dev/null", "r", stdin))
            execlp("openssl", "openssl", "s_server", "-accept", at, "-cert", "c.pem", "-key", "k.pem", "-HTTP",
                   "-quiet", (char *)NULL);
        _exit(127);
    }
    return pid;
}

TEST(certificates_are_verified)
{
    char dir[] = "/tmp/tinkc-tls-XXXXXX", url[64], ca[64];
    fixture fx;
    answer *a;
    if (system("openssl version >/dev/null 2>&1") != 0) {
        print_message("openssl is not installed: TLS is not tested\n");
        skip();
    }
    assert_non_null(mkdtemp(dir));
    int port = stub_dead_port();
    stub_server *s = stub_start(NULL, script, NULL); /* speaks no TLS at all */
    snprintf(ca, sizeof ca, "%s/fine", dir);
    FILE *file = fopen(ca, "w");
    fprintf(file, "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok");
    fclose(file);
    snprintf(ca, sizeof ca, "%s/moved", dir);
    file = fopen(ca, "w");
    fprintf(file, "HTTP/1.0 302 Found\r\nLocation: %s/x\r\nContent-Length: 0\r\n\r\n", stub_url(s));
    fclose(file);
    pid_t server = start_tls_server(dir, port);
    assert_true(server > 0);
    snprintf(url, sizeof url, "https://127.0.0.1:%d", port);
    snprintf(ca, sizeof ca, "%s/c.pem", dir);

    setenv("SSL_CERT_FILE", ca, 1); /* for lack of an option; read when the client is made */
    open_with(&fx, &(tkc_http_options){ .proxy = "" });
    unsetenv("SSL_CERT_FILE");
    a = get_once_it_listens(&fx, url, "/fine");
    drop(a);
    close_fixture(&fx);

    open_with(&fx, &(tkc_http_options){ .proxy = "", .ca_file = ca });
    a = get_once_it_listens(&fx, url, "/fine");
    drop(a);
    a = get(&fx, url, "/moved"); /* to where nothing is secret any more */
    assert_int_equal(a->code, TINKC_E_BAD_RESPONSE);
    assert_non_null(strstr(a->message, "https to http"));
    assert_int_equal(stub_requests(s), 0);
    drop(a);
    close_fixture(&fx);

    open_fixture(&fx); /* nobody vouches for it */
    a = get(&fx, url, "/");
    assert_int_equal(a->code, TINKC_E_CONNECTION);
    assert_non_null(strstr(a->message, "TLS"));
    drop(a);
    close_fixture(&fx);

    open_fixture(&fx);
    snprintf(url, sizeof url, "https://127.0.0.1:%d", stub_port(s));
    a = get(&fx, url, "/");
    assert_int_equal(a->code, TINKC_E_CONNECTION);
    assert_non_null(strstr(a->message, "TLS"));
    drop(a);
    close_fixture(&fx);
    stub_stop(s);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    remove_folder(dir);
}

/* ---- HTTP/2 ---- */

static pid_t start_h2_server(const char *dir, int port)
{
    if (!make_certificate(dir))
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        char at[16];
        snprintf(at, sizeof at, "%d", port);
        if (chdir(dir) == 0 && freopen("log", "w", stdout) && freopen("/dev/null", "w", stderr))
            execlp("nghttpd", "nghttpd", "-v", "--echo-upload", "-a", "127.0.0.1", "-d", ".", at, "k.pem", "c.pem",
                   (char *)NULL);
        _exit(127);
    }
    return pid;
}

/* What the server's log says. It begins each line with the connection's number. */
typedef struct {
    int connections, most_streams; /* the most that one connection had open at once */
} h2_log;

static h2_log read_h2_log(const char *dir)
{
    enum { ROOM = 64 };
    char path[64], line[500];
    int open[ROOM] = { 0 };
    h2_log log = { 0 };
    snprintf(path, sizeof path, "%s/log", dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "[id=");
        if (!at)
            continue;
        int id = atoi(at + 4);
        assert_in_range(id, 1, ROOM - 1);
        if (id > log.connections)
            log.connections = id;
        if (strstr(line, "recv HEADERS frame") && ++open[id] > log.most_streams)
            log.most_streams = open[id];
        if (strstr(line, "] stream_id=") && strstr(line, " closed"))
            open[id]--;
    }
    fclose(f);
    return log;
}

TEST(http2_shares_connections)
{
    enum { N = 120 };
    char dir[] = "/tmp/tinkc-h2-XXXXXX", url[64], ca[64];
    static answer *all[N];
    fixture fx;
    answer *a;
    if (system("openssl version >/dev/null 2>&1 && nghttpd --version >/dev/null 2>&1") != 0) {
        print_message("openssl or nghttpd is not installed: HTTP/2 is not tested\n");
        skip();
    }
    assert_non_null(mkdtemp(dir));
    int port = stub_dead_port();
    pid_t server = start_h2_server(dir, port);
    assert_true(server > 0);
    snprintf(url, sizeof url, "https://127.0.0.1:%d", port);
    snprintf(ca, sizeof ca, "%s/c.pem", dir);
    open_with(&fx, &(tkc_http_options){ .proxy = "", .ca_file = ca });
    a = get_once_it_listens(&fx, url, "/x");
    assert_non_null(strstr(a->headers, ":version=2\n"));
    drop(a);
    a = make(&fx, "GET", url, "/x"); /* from the first answer on it is known to be HTTP/2 */
    a->request.pool = TINKC_POOL_RETRIEVE;
    drop(exchange(a));
    for (int i = 0; i < N; i++) {
        all[i] = make(&fx, "GET", url, "/x");
        all[i]->request.pool = TINKC_POOL_RETRIEVE;
        post(all[i], send_now);
    }
    for (int i = 0; i < N; i++) {
        await(all[i]);
        assert_int_equal(all[i]->status, 200);
        assert_string_equal(all[i]->body, "hello\n");
        drop(all[i]);
    }
    close_fixture(&fx);
    kill(server, SIGTERM);
    waitpid(server, NULL, 0);
    h2_log log = read_h2_log(dir);
    /* One for each kind, and a few more for the crowd: how many depends on who is quicker. */
    if (log.connections < 2 || log.connections > N / 10)
        fail_msg("%d connections for %d requests", log.connections, N + 2);
    remove_folder(dir);
}

/* Training requests never share a connection, whatever the protocol allows: each is large, and one that
 * is lost must not take others with it. No more of them run at once than there are connections. */
TEST(training_has_a_connection_for_each_request)
{
    enum { N = 20, SHARE = 8 };
    char dir[] = "/tmp/tinkc-h2-XXXXXX", url[64], ca[64];
    static answer *all[N];
    fixture fx;
    if (system("openssl version >/dev/null 2>&1 && nghttpd --version >/dev/null 2>&1") != 0) {
        print_message("openssl or nghttpd is not installed: HTTP/2 is not tested\n");
        skip();
    }
    assert_non_null(mkdtemp(dir));
    int port = stub_dead_port();
    pid_t server = start_h2_server(dir, port);
    assert_true(server > 0);
    snprintf(url, sizeof url, "https://127.0.0.1:%d", port);
    snprintf(ca, sizeof ca, "%s/c.pem", dir);
    open_with(&fx, &(tkc_http_options){ .proxy = "", .ca_file = ca, .max_connections = SHARE });
    drop(get_once_it_listens(&fx, url, "/x"));
    answer *a = make(&fx, "GET", url, "/x"); /* one that could be shared */
    a->request.pool = TINKC_POOL_TRAIN;
    drop(exchange(a));
    for (int i = 0; i < N; i++) {
        all[i] = make(&fx, "GET", url, "/x");
        all[i]->request.pool = TINKC_POOL_TRAIN;
    }
    post_together(&fx, all, N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(all[i]->status, 200);
        drop(all[i]);
    }
    close_fixture(&fx);
    kill(server, SIGTERM);
    waitpid(server, NULL, 0);
    h2_log log = read_h2_log(dir);
    assert_int_equal(log.most_streams, 1);
    /* Fewer are right, too: where answers are quicker than requests, a connection that is free is used again. */
    if (log.connections - 1 > SHARE) /* without that of the first */
        fail_msg("%d connections for %d requests", log.connections - 1, N + 1);
    remove_folder(dir);
}

int main(void)
{
    unsetenv("http_proxy");
    unsetenv("HTTP_PROXY");
    unsetenv("https_proxy");
    unsetenv("all_proxy");
    unsetenv("ALL_PROXY");
    return test_cases_run(NULL, NULL);
}
