/* http.c - connection pools by kind of work, all on one loop: dispatch, waiting, cancelling.
 *
 * May touch: base/, net/loop.h, its own set of descriptors, libcurl through curl_lib.h.
 * Must not:  wait anywhere but in wait_for_sockets, retry, or call libcurl from inside one of its
 *            callbacks. Thread: the loop's, except _new.
 *
 * Each kind has a multi handle of its own, so that a heartbeat never shares a connection with a
 * large upload. libcurl reports through callbacks which sockets it watches and when it wants to
 * be called; one set of descriptors waits for all of them and for the loop's wake-up descriptor.
 *
 * Replies call back into this file (a finished poll sends the next one), also from inside libcurl's
 * callbacks. So send, cancel and resume only record the request; the next round carries it out.
 *
 * More requests than connections wait in a queue here, first come first served: over HTTP/1.1 each
 * long poll holds a connection, and libcurl's own queue would count queueing as connect time.
 */
#include "net/http_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/platform.h"
#include "base/str.h"

enum {
    DEFAULT_CONNECTIONS = 1000,
    SPARE_DESCRIPTORS = 64,   /* of the process's limit, left to the host program */
    ALWAYS_ALLOWED = 8,       /* connections that every kind may open */
    STREAMS_EACH = 50,        /* requests on one HTTP/2 connection */
    POOL_IDLE_MS = 60 * 1000, /* after this, an idle pool's connections are closed */
    EVENTS_AT_ONCE = 128
};

static const uint64_t WAKE_MARK = UINT64_MAX;
static const int64_t NEVER_MS = INT64_MAX;

/* ---- how many at once ---- */

static size_t descriptor_limit(void)
{
    struct rlimit limit = { .rlim_cur = RLIM_INFINITY };
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    size_t n = (size_t)limit.rlim_cur;
    return n > 2 * SPARE_DESCRIPTORS ? n - SPARE_DESCRIPTORS : n / 2;
}

/* How many connections a kind may have, idle ones included. The shares add up to the limit, so
 * kinds never wait for each other: long polls hold a connection each, submissions are short, the
 * rest is rare. */
static size_t share_of(const tkc_http_pool *pool)
{
    static const size_t parts[TKC_HTTP_POOLS] = {
        /* of 64 */
        [TINKC_POOL_RETRIEVE] = 30, [TINKC_POOL_SAMPLE] = 16, [TINKC_POOL_TRAIN] = 8,
        [TINKC_POOL_REST] = 4,      [TINKC_POOL_SESSION] = 1, [TINKC_POOL_TELEMETRY] = 1,
        [TINKC_POOL_CONFIG] = 1,    [TINKC_POOL_AUTH] = 1,    [TINKC_POOL_FUTURES] = 2
    };
    size_t share = pool->http->max_connections * parts[pool->kind] / 64;
    return share > ALWAYS_ALLOWED ? share : ALWAYS_ALLOWED;
}

static bool may_start(const tkc_http_pool *pool)
{
    size_t each = pool->http2 && pool->kind != TINKC_POOL_TRAIN ? STREAMS_EACH : 1;
    return pool->n_active < share_of(pool) * each;
}

/* ---- libcurl's socket and timer callbacks ---- */

/* libcurl's timers follow the system's clock, whatever clock the loop has. */
static int64_t monotonic_ms(void)
{
    return tkc_monotonic_ns() / 1000000;
}

static uint64_t socket_mark(const tkc_http_pool *pool, curl_socket_t s)
{
    return (uint64_t)(pool - pool->http->pools) << 32 | (uint32_t)s;
}

static int on_socket(CURL *easy, curl_socket_t s, int what, void *user, void *unused)
{
    tkc_http_pool *pool = user;
    bool leaves = what == CURL_POLL_REMOVE;
    uint32_t events = (!leaves && what & CURL_POLL_IN ? TKC_READABLE : 0u) |
                      (!leaves && what & CURL_POLL_OUT ? TKC_WRITABLE : 0u);
    (void)easy, (void)unused;
    (void)tkc_watch_set(pool->http->watch, s, events, socket_mark(pool, s));
    return 0;
}

static int on_timer(CURLM *multi, long timeout_ms, void *user)
{
    tkc_http_pool *pool = user;
    (void)multi;
    pool->curl_due_ms = timeout_ms < 0 ? NEVER_MS : monotonic_ms() + timeout_ms;
    return 0;
}

/* ---- pools ---- */

static bool open_pool(tkc_http_pool *pool, tinkc_error *err)
{
    const tkc_curl *curl = pool->http->curl;
    bool single = pool->kind == TINKC_POOL_TRAIN;
    if (pool->multi)
        return true;
    pool->multi = curl->multi_init();
    if (!pool->multi)
        return tkc_fail_memory(err);
    curl->multi_setopt(pool->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl->multi_setopt(pool->multi, CURLMOPT_SOCKETDATA, pool);
    curl->multi_setopt(pool->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl->multi_setopt(pool->multi, CURLMOPT_TIMERDATA, pool);
    curl->multi_setopt(pool->multi, CURLMOPT_PIPELINING,
                       (long)(single ? CURLPIPE_NOTHING : CURLPIPE_MULTIPLEX));
    curl->multi_setopt(pool->multi, CURLMOPT_MAX_CONCURRENT_STREAMS, (long)STREAMS_EACH);
    curl->multi_setopt(pool->multi, CURLMOPT_MAXCONNECTS, (long)share_of(pool));
    return true;
}

static void close_pool(tkc_http_pool *pool)
{
    if (pool->multi)
        pool->http->curl->multi_cleanup(pool->multi);
    pool->multi = NULL;
    pool->curl_due_ms = NEVER_MS;
    pool->host_limit = 0;
}

static void on_pool_idle(tkc_timer *timer)
{
    tkc_http_pool *pool = TKC_OWNER(timer, tkc_http_pool, idle_timer);
    if (pool->n_active == 0)
        close_pool(pool);
}

static tkc_http_pool *pool_for(tkc_http *http, int32_t kind)
{
    bool known = kind >= 0 && kind < TKC_HTTP_POOLS;
    return &http->pools[known ? kind : TINKC_POOL_REST];
}

static void enqueue(tkc_http_pool *pool, tkc_exchange *x)
{
    x->link = pool->waiting_end;
    *pool->waiting_end = x;
    pool->waiting_end = &x->next;
}

static void leave_queue(tkc_exchange *x)
{
    *x->link = x->next;
    if (x->next)
        x->next->link = x->link;
    else
        x->pool->waiting_end = x->link;
}

/* ---- one exchange's life ---- */

static void forget_todo(tkc_exchange *x)
{
    if (!x->in_todo)
        return;
    for (tkc_exchange **at = &x->pool->http->todo; *at; at = &(*at)->todo)
        if (*at == x) {
            *at = x->todo;
            break;
        }
}

/* Removes it from every list. */
static void detach(tkc_exchange *x)
{
    tkc_http_pool *pool = x->pool;
    forget_todo(x);
    if (x->active)
        pool->n_active--;
    else
        leave_queue(x);
    if (pool->n_active == 0)
        tkc_loop_arm(pool->http->loop, &pool->idle_timer, POOL_IDLE_MS);
}

static void release_exchange(tkc_exchange *x)
{
    const tinkc_allocator *a = x->pool->http->a;
    tkc_exchange_clear(x);
    tkc_release(a, x, sizeof *x);
}

/* Ends the reply only after everything else: that may call send. */
static void end_with(tkc_exchange *x, int32_t code, const char *text)
{
    if (x->active && x->easy && x->pool->multi)
        x->pool->http->curl->multi_remove_handle(x->pool->multi, x->easy);
    detach(x);
    x->reply->slot = NULL;
    x->reply->fail(x->reply, code, text);
    release_exchange(x);
}

static bool is_connected(const tkc_exchange *x)
{
    curl_off_t since = 0;
    x->pool->http->curl->easy_getinfo(x->easy, CURLINFO_PRETRANSFER_TIME_T, &since);
    return since > 0;
}

/* Silence counts as a timeout only while receiving is not paused and after connecting, which has
 * its own limit. */
static void on_exchange_idle(tkc_timer *timer)
{
    tkc_exchange *x = TKC_OWNER(timer, tkc_exchange, idle_timer);
    tkc_loop *loop = x->pool->http->loop;
    int64_t limit = x->request->idle_timeout_ms;
    int64_t silent = tkc_loop_now_ms(loop) - x->last_activity_ms;
    char text[64];
    if (x->paused)
        silent = 0;
    if (silent < limit) {
        tkc_loop_arm(loop, timer, limit - silent);
        return;
    }
    if (x->seen_bytes == 0 && x->status == 0 && !is_connected(x) &&
        silent < x->request->connect_timeout_ms + limit) {
        tkc_loop_arm(loop, timer, limit);
        return;
    }
    snprintf(text, sizeof text, "the peer was silent for %lld ms", (long long)limit);
    end_with(x, TINKC_E_NET_TIMEOUT, text);
}

static void arm_idle(tkc_exchange *x)
{
    int64_t limit = x->request->idle_timeout_ms;
    x->idle_timer.fire = on_exchange_idle;
    if (limit > 0)
        tkc_loop_arm(x->pool->http->loop, &x->idle_timer, limit);
}

/* By default libcurl opens another connection whenever the existing ones are full. The limit
 * applies only to kinds that talk to the service alone: other pools may hold hosts without
 * HTTP/2. */
static void limit_http2(tkc_http_pool *pool)
{
    bool bulk = pool->kind == TINKC_POOL_RETRIEVE || pool->kind == TINKC_POOL_SAMPLE ||
                pool->kind == TINKC_POOL_FUTURES;
    long limit = pool->http2 && bulk ? (long)((pool->n_active - 1) / STREAMS_EACH + 1) : 0;
    if (limit == pool->host_limit)
        return;
    pool->host_limit = limit;
    pool->http->curl->multi_setopt(pool->multi, CURLMOPT_MAX_HOST_CONNECTIONS, limit);
}

static void start_exchange(tkc_exchange *x)
{
    tkc_http_pool *pool = x->pool;
    tkc_http *http = pool->http;
    tinkc_error err = { 0 };
    leave_queue(x);
    x->active = true;
    pool->n_active++;
    http->sent++;
    tkc_loop_disarm(http->loop, &pool->idle_timer);
    if (!open_pool(pool, &err) || !tkc_exchange_prepare(x, &err)) {
        end_with(x, TINKC_E_CONNECTION, err.message);
        return;
    }
    limit_http2(pool);
    if (http->curl->multi_add_handle(pool->multi, x->easy) != CURLM_OK) {
        end_with(x, TINKC_E_CONNECTION, "libcurl refused the request");
        return;
    }
    arm_idle(x);
}

static void finish_exchange(tkc_exchange *x, CURLcode result)
{
    tkc_http_pool *pool = x->pool;
    tkc_http *http = pool->http;
    http->curl->multi_remove_handle(pool->multi, x->easy);
    /* Ending the reply may call send; the reply does not use slot after this. */
    x->reply->slot = NULL;
    tinkc_reply *reply = x->reply;
    if (!tkc_exchange_finish(x, result)) {
        detach(x);
        release_exchange(x);
        return;
    }
    reply->slot = x;
    http->sent++;
    if (http->curl->multi_add_handle(pool->multi, x->easy) != CURLM_OK)
        end_with(x, TINKC_E_CONNECTION, "libcurl refused the request");
}

/* ---- rounds ---- */

static void do_todo(tkc_http *http)
{
    while (http->todo) {
        tkc_exchange *x = http->todo;
        http->todo = x->todo;
        x->in_todo = false;
        if (x->cancelled) {
            end_with(x, TINKC_E_CONNECTION, "no longer wanted");
        } else {
            x->paused = false;
            x->last_activity_ms = tkc_loop_now_ms(http->loop);
            http->curl->easy_pause(x->easy, CURLPAUSE_CONT);
        }
    }
}

static void start_waiting(tkc_http *http)
{
    for (size_t i = 0; i < TKC_HTTP_POOLS; i++) {
        tkc_http_pool *pool = &http->pools[i];
        while (pool->waiting && may_start(pool))
            start_exchange(pool->waiting);
    }
}

static void collect_messages(tkc_http_pool *pool)
{
    CURLMsg *m;
    int left;
    const tkc_curl *curl = pool->http->curl;
    while (pool->multi && (m = curl->multi_info_read(pool->multi, &left))) {
        tkc_exchange *x = NULL;
        /* A copy: removing the handle ends the message. */
        CURLcode result = m->data.result;
        curl->easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&x);
        if (m->msg == CURLMSG_DONE && x)
            finish_exchange(x, result);
    }
}

/* Calls libcurl for every pool whose timer is due; returns the time until the next one. */
static int64_t run_curl_timers(tkc_http *http)
{
    int64_t due = NEVER_MS;
    for (size_t i = 0; i < TKC_HTTP_POOLS; i++) {
        tkc_http_pool *pool = &http->pools[i];
        int running;
        if (pool->multi && pool->curl_due_ms <= monotonic_ms()) {
            pool->curl_due_ms = NEVER_MS;
            http->curl->multi_socket_action(pool->multi, CURL_SOCKET_TIMEOUT, 0, &running);
            collect_messages(pool);
        }
        due = pool->curl_due_ms < due ? pool->curl_due_ms : due;
    }
    int64_t now = monotonic_ms();
    return due == NEVER_MS ? TINKC_FOREVER : due > now ? due - now : 0;
}

static void run_events(tkc_http *http, const tkc_ready *events, int n)
{
    int running;
    for (int i = 0; i < n; i++) {
        uint64_t mark = events[i].mark;
        uint32_t e = events[i].what;
        if (mark == WAKE_MARK)
            continue;
        tkc_http_pool *pool = &http->pools[mark >> 32];
        int what = (e & TKC_READABLE ? CURL_CSELECT_IN : 0) |
                   (e & TKC_WRITABLE ? CURL_CSELECT_OUT : 0) |
                   (e & TKC_BROKEN ? CURL_CSELECT_ERR : 0);
        if (pool->multi)
            http->curl->multi_socket_action(pool->multi, (curl_socket_t)(uint32_t)mark, what,
                                            &running);
    }
    for (size_t i = 0; i < TKC_HTTP_POOLS; i++)
        collect_messages(&http->pools[i]);
}

static bool has_work(const tkc_http *http)
{
    if (http->todo)
        return true;
    for (size_t i = 0; i < TKC_HTTP_POOLS; i++)
        if (http->pools[i].waiting && may_start(&http->pools[i]))
            return true;
    return false;
}

static int64_t prepare_sockets(void *self)
{
    tkc_http *http = self;
    do_todo(http);
    start_waiting(http);
    uint64_t sent_before = http->sent;
    int64_t wait = run_curl_timers(http);
    /* A reply that ended in this round may have sent another request. */
    return has_work(http) || sent_before != http->sent ? 0 : wait;
}

/* The loop's wait: one round of all sockets. */
static void wait_for_sockets(void *self, int wake_fd, int64_t timeout_ms)
{
    tkc_http *http = self;
    tkc_ready events[EVENTS_AT_ONCE];
    if (http->wake_fd != wake_fd && tkc_watch_set(http->watch, wake_fd, TKC_READABLE, WAKE_MARK))
        http->wake_fd = wake_fd;
    int n = tkc_watch_wait(http->watch, events, EVENTS_AT_ONCE, timeout_ms);
    run_events(http, events, n > 0 ? n : 0);
}

/* ---- the transport ---- */

/* Called by the first request: opens libcurl and becomes the loop's waiter. */
static bool begin_http(tkc_http *http, tinkc_error *err)
{
    if (tkc_failed(err) || http->curl)
        return !tkc_failed(err);
    const tkc_curl *curl = tkc_curl_get(err);
    if (!curl)
        return false;
    http->watch = tkc_watch_new(http->a, err);
    if (!http->watch)
        return false;
    http->curl = curl;
    tkc_loop_set_waiter(
        http->loop,
        &(tkc_loop_waiter){ .self = http, .prepare = prepare_sockets, .wait = wait_for_sockets });
    return true;
}

static void http_send(void *self, const tinkc_request *request, tinkc_reply *reply)
{
    tkc_http *http = self;
    tinkc_error err = { 0 };
    tkc_exchange *x = begin_http(http, &err) ? tkc_zalloc(http->a, sizeof *x, &err) : NULL;
    if (!x) {
        reply->fail(reply, TINKC_E_CONNECTION, err.message);
        return;
    }
    x->pool = pool_for(http, request->pool);
    x->request = request;
    x->reply = reply;
    tkc_buf_init(&x->held, http->a, 1024 * 1024);
    reply->slot = x;
    enqueue(x->pool, x);
}

static void add_todo(tkc_exchange *x)
{
    tkc_http *http = x->pool->http;
    if (x->in_todo)
        return;
    x->in_todo = true;
    x->todo = http->todo;
    http->todo = x;
}

static void http_cancel(void *self, tinkc_reply *reply)
{
    tkc_exchange *x = reply->slot;
    (void)self;
    if (!x)
        return;
    x->cancelled = true;
    add_todo(x);
}

static void http_resume(void *self, tinkc_reply *reply)
{
    tkc_exchange *x = reply->slot;
    (void)self;
    if (x && x->paused)
        add_todo(x);
}

/* ---- life ---- */

static const char *environment(const char *lower, const char *upper)
{
    const char *value = getenv(lower);
    if (!value || !*value)
        value = upper ? getenv(upper) : NULL;
    return value && *value ? value : NULL;
}

static char *copy(tkc_http *http, const char *text, tinkc_error *err)
{
    return text && *text ? tkc_copy_str(http->a, tkc_str(text), err) : NULL;
}

/* Upper-case HTTP_PROXY is not read under CGI, where a client sets it with a "Proxy:" header. */
static void read_proxies(tkc_http *http, const char *given, tinkc_error *err)
{
    const char *all = environment("all_proxy", "ALL_PROXY");
    const char *plain = environment("http_proxy", getenv("REQUEST_METHOD") ? NULL : "HTTP_PROXY");
    const char *secure = environment("https_proxy", "HTTPS_PROXY");
    if (given) {
        http->http_proxy = copy(http, given, err);
        http->https_proxy = copy(http, given, err);
        return;
    }
    http->http_proxy = copy(http, plain ? plain : all, err);
    http->https_proxy = copy(http, secure ? secure : all, err);
    http->no_proxy = copy(http, environment("no_proxy", "NO_PROXY"), err);
}

static void release_settings(tkc_http *http)
{
    char *all[] = { http->base_url, http->unix_socket, http->http_proxy, http->https_proxy,
                    http->no_proxy, http->ca_file,     http->ca_dir };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tkc_release_str(http->a, all[i]);
}

tkc_http *tkc_http_new(const tinkc_allocator *a, tkc_loop *loop, const tkc_http_options *options,
                       tinkc_error *err)
{
    tkc_http *http = tkc_zalloc(a, sizeof *http, err);
    if (!http)
        return NULL;
    http->a = a;
    http->loop = loop;
    http->wake_fd = -1;
    http->base_url = copy(http, options->base_url, err);
    http->unix_socket = copy(http, options->unix_socket, err);
    http->ca_file =
        copy(http, options->ca_file ? options->ca_file : environment("SSL_CERT_FILE", NULL), err);
    if (!options->ca_file)
        http->ca_dir = copy(http, environment("SSL_CERT_DIR", NULL), err);
    read_proxies(http, options->proxy, err);
    if (tkc_failed(err)) {
        release_settings(http);
        tkc_release(a, http, sizeof *http);
        return NULL;
    }
    if (options->log)
        http->log = *options->log;
    size_t wanted = options->max_connections > 0 ? (size_t)options->max_connections
                                                 : (size_t)DEFAULT_CONNECTIONS;
    size_t allowed = descriptor_limit();
    http->max_connections = wanted < allowed ? wanted : allowed;
    if (wanted > allowed)
        tkc_log_line(&http->log, TINKC_LOG_INFO,
                     "at most %zu connections instead of %zu: the process may open no more files",
                     allowed, wanted);
    for (int32_t i = 0; i < TKC_HTTP_POOLS; i++)
        http->pools[i] = (tkc_http_pool){ .http = http,
                                          .kind = i,
                                          .curl_due_ms = NEVER_MS,
                                          .waiting_end = &http->pools[i].waiting,
                                          .idle_timer = { .fire = on_pool_idle } };
    http->transport = (tinkc_transport){ .abi = TINKC_TRANSPORT_ABI,
                                         .flags = TINKC_TRANSPORT_READS,
                                         .self = http,
                                         .send = http_send,
                                         .cancel = http_cancel,
                                         .resume = http_resume };
    return http;
}

void tkc_http_free(tkc_http *http)
{
    if (!http)
        return;
    for (size_t i = 0; i < TKC_HTTP_POOLS; i++) {
        assert(!http->pools[i].n_active && !http->pools[i].waiting);
        close_pool(&http->pools[i]);
    }
    tkc_watch_free(http->watch);
    release_settings(http);
    tkc_release(http->a, http, sizeof *http);
}

const tinkc_transport *tkc_http_transport(tkc_http *http)
{
    return &http->transport;
}
