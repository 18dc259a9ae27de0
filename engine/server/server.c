/* server.c - tinkc_engine_serve: a listening socket in front of the service.
 *
 * libmicrohttpd's threads read requests, check keys and limits, and hand them over; a request that
 * is not answered at once leaves its connection suspended, so polls hold no thread. May touch: the
 * service through service.h alone.
 */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"
#include "page/page.h"
#include "server/exchange.h"
#include "server/page_gate.h"
#include "service/identity.h"

enum {
    FRONT_THREADS = 4,
    IDLE_TIMEOUT_S = 120,
    CONNECTION_MEMORY = 64 * 1024,
    BODIES = 2 /* as many of the largest size are in memory at once; small ones always are */
};

typedef struct tke_http {
    tkc_refs refs; /* the handle's, and one for each exchange */
    const tinkc_allocator *a;
    const tke_mhd *mhd;
    tke_service *svc;
    struct MHD_Daemon *daemon;
    int listen_fd;
    char **keys; /* ended by NULL; NULL = any */
    char (*owners)[TKE_OWNER_TEXT];
    size_t n_keys;
    char *socket_path;
    char url[160];
    tinkc_log_fn *access_log;
    void *access_log_user;
    bool metrics;
    bool openai;    /* asked for by the engine's setting or by our options */
    tke_page *page; /* NULL = none is served */
    bool page_chat; /* it may sample through OpenAI's form */

    _Atomic size_t body_bytes; /* of all requests that are being read or answered */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    tke_exchange *active;      /* with the service */
    size_t n_active, n_unsent; /* n_unsent: handed over, and not yet off their connections */
    bool stopping;             /* takes nothing more; polls are ended */
    bool cutting;              /* the grace is over: everything is */
    bool stopped;
} tke_http;

struct tinkc_server {
    tke_http *http;
};

static void http_drop(tke_http *h)
{
    if (!tkc_ref_drop(&h->refs))
        return;
    for (size_t i = 0; i < h->n_keys; i++)
        tkc_release_str(h->a, h->keys[i]);
    tkc_release(h->a, h->keys, (h->n_keys + 1) * sizeof *h->keys);
    tkc_release(h->a, h->owners, (h->n_keys + 1) * sizeof *h->owners);
    if (h->socket_path)
        tkc_release_str(h->a, h->socket_path);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->changed);
    tke_page_free(h->page);
    tke_service_drop(h->svc);
    tkc_release(h->a, h, sizeof *h);
}

/* ---- who is it ---- */

/* Every key is compared, so that time does not tell which one was nearly right. */
static bool identify(tke_http *h, const char *given, char owner[32])
{
    bool known = false;
    if (given && tkc_starts_with(tkc_str(given), "eyJ") &&
        tke_service_token_owner(h->svc, given, owner, 32))
        return true;
    (void)snprintf(owner, 32, "default");
    for (size_t i = 0; i < h->n_keys; i++) {
        bool same = tkc_equal_secret(tkc_str(given), tkc_str(h->keys[i]));
        if (same && given)
            (void)snprintf(owner, 32, "%s", h->owners[i]);
        known |= same && given;
    }
    return known || h->n_keys == 0;
}

static bool needs_no_key(const tke_http *h, const char *uri)
{
    return (h->page && tke_page_is_public(uri)) ||
           tkc_starts_with(tkc_str(uri), "/api/v1/archives/") ||
           tkc_starts_with(tkc_str(uri), "/api/v1/healthz") ||
           tkc_starts_with(tkc_str(uri), "/readyz") ||
           tkc_starts_with(tkc_str(uri), "/api/v1/readyz");
}

/* ---- requests ---- */

static void *begin(void *cls, const char *uri, struct MHD_Connection *connection)
{
    tke_http *h = cls;
    tke_exchange *x = tke_exchange_new(h, h->mhd, h->a, uri);
    if (!x)
        return NULL;
    x->connection = connection;
    tkc_ref_keep(&h->refs);
    return x;
}

static enum MHD_Result take_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    tke_exchange *x = cls;
    tinkc_error err = { 0 };
    (void)kind;
    if (x->n_headers + 2 > 2 * TKE_MAX_HEADERS) {
        x->refusal = TKE_X_HEADERS;
        return MHD_NO;
    }
    const char *n = tkc_arena_cstr(&x->arena, name, &err);
    const char *v = tkc_arena_cstr(&x->arena, value ? value : "", &err);
    if (!n || !v)
        return MHD_NO;
    x->headers[x->n_headers++] = n;
    x->headers[x->n_headers++] = v;
    return MHD_YES;
}

static bool is_openai(const tke_http *h, const tke_exchange *x)
{
    return h->openai && tkc_starts_with(tkc_str(x->uri), "/v1/");
}

static void refuse(tke_exchange *x, int32_t status, const char *code, const char *detail)
{
    tinkc_error err = { 0 };
    tkc_buf_clear(&x->out);
    if (is_openai(x->http, x))
        tke_openai_error(&x->out, status, code, NULL, detail, &err);
    else
        tkc_buf_printf(&x->out, &err, "{\"detail\":\"%s\",\"code\":\"%s\"}", detail, code);
    x->status = status;
    x->reply_headers[0] = "Content-Type";
    x->reply_headers[1] = "application/json";
    x->n_reply_headers = 2;
    x->ended = true;
}

static enum MHD_Result answer_refusal(tke_exchange *x)
{
    static const struct {
        int32_t status;
        const char *code, *detail;
    } texts[] = {
        [TKE_X_KEY] = { 401, "unauthorized", "Invalid API key" },
        [TKE_X_SIZE] = { 413, "too_large", "The body is too large" },
        [TKE_X_HEADERS] = { 431, "too_many_headers", "There are too many headers" },
        [TKE_X_BUSY] = { 503, "busy", "Too many large requests at once; try again" },
    };
    refuse(x, texts[x->refusal].status, texts[x->refusal].code, texts[x->refusal].detail);
    return tke_exchange_answer(x);
}

/* Puts it among those that the service has. False: we are stopping. */
static bool enlist(tke_http *h, tke_exchange *x)
{
    pthread_mutex_lock(&h->lock);
    bool ok = !h->stopping;
    if (ok) {
        x->listed = x->handed_over = true;
        h->n_unsent++;
        x->prev = NULL;
        x->next = h->active;
        if (x->next)
            x->next->prev = x;
        h->active = x;
        h->n_active++;
    }
    pthread_mutex_unlock(&h->lock);
    return ok;
}

/* Is it one of those that are ended because we stop? */
static bool is_unwanted(tke_http *h, const tke_exchange *x)
{
    pthread_mutex_lock(&h->lock);
    bool unwanted = h->cutting || (h->stopping && x->is_poll);
    pthread_mutex_unlock(&h->lock);
    return unwanted;
}

void tke_http_over(tke_exchange *x)
{
    tke_http *h = x->http;
    pthread_mutex_lock(&h->lock);
    if (x->listed) {
        *(x->prev ? &x->prev->next : &h->active) = x->next;
        if (x->next)
            x->next->prev = x->prev;
        assert(h->n_active > 0);
        h->n_active--;
        x->listed = false;
        pthread_cond_broadcast(&h->changed);
    }
    pthread_mutex_unlock(&h->lock);
}

static enum MHD_Result send_metrics(tke_http *h, tke_exchange *x)
{
    tinkc_error err = { 0 };
    x->status = 200;
    x->reply_headers[0] = "Content-Type";
    x->reply_headers[1] = "text/plain; version=0.0.4";
    x->n_reply_headers = 2;
    x->ended = true;
    tke_service_metrics(h->svc, &x->out, &err);
    tkc_buf_printf(&x->out, &err,
                   "# HELP tinkc_body_bytes Bodies of requests that are being read or answered\n"
                   "# TYPE tinkc_body_bytes gauge\ntinkc_body_bytes %zu\n",
                   atomic_load(&h->body_bytes));
    return tke_exchange_answer(x);
}

/* The service, or the page, is told that nobody wants the answer. */
static void cancel(tke_http *h, tke_exchange *x)
{
    if (x->to_page)
        tke_page_cancel(h->page, &x->reply);
    else
        tke_service_cancel(h->svc, &x->reply);
}

/* Hands it over; from now on it may end at any time. */
static void hand_over(tke_http *h, tke_exchange *x)
{
    uint32_t flags = TKE_CALL_REMOTE | (x->too_large ? TKE_CALL_CUT_OFF : 0u) |
                     (h->openai || x->from_page ? TKE_CALL_OPENAI : 0u);
    x->inside = true;
    if (x->to_page)
        tke_page_handle(h->page, &x->request, &x->reply, x->owner);
    else
        tke_service_handle(h->svc, &x->request, &x->reply, x->owner, flags);
}

/* Below /ui: may whoever sent it have an answer? The page itself holds no data: anybody may. */
static bool may_enter_page(const tke_http *h, const tke_exchange *x)
{
    const tke_gate_request from = {
        .host = h->mhd->lookup(x->connection, MHD_HEADER_KIND, "Host"),
        .origin = h->mhd->lookup(x->connection, MHD_HEADER_KIND, "Origin"),
        .fetch_site = h->mhd->lookup(x->connection, MHD_HEADER_KIND, "Sec-Fetch-Site"),
    };
    return tke_page_is_public(x->uri) || tke_gate_allows(&from, h->url, h->n_keys > 0);
}

static void add_page_headers(tke_exchange *x)
{
    for (const char *const *pair = tke_gate_headers(); *pair; pair++)
        x->reply_headers[x->n_reply_headers++] = *pair;
}

/* The whole request is here. */
static enum MHD_Result dispatch(tke_http *h, tke_exchange *x, const char *method)
{
    tinkc_error err = { 0 };
    const char *host = h->mhd->lookup(x->connection, MHD_HEADER_KIND, "Host");
    x->method = tkc_arena_cstr(&x->arena, method, &err);
    if (x->refusal)
        return answer_refusal(x);
    if (h->metrics && tkc_cstr_eq(x->uri, "/metrics"))
        return send_metrics(h, x);
    (void)h->mhd->values(x->connection, MHD_HEADER_KIND, take_header, x);
    x->headers[x->n_headers] = NULL;
    if (x->refusal)
        return answer_refusal(x);
    (void)snprintf(x->base_url, sizeof x->base_url, "http://%.280s", host ? host : "localhost");
    bool ui = h->page && tke_gate_is_ui(x->uri);
    x->to_page = ui && tke_page_owns(x->uri);
    x->from_page = ui && !x->to_page;
    x->is_poll = strstr(x->uri, "/retrieve_future") || (ui && tke_page_is_stream(x->uri));
    if (ui && !may_enter_page(h, x)) {
        refuse(x, 403, "forbidden", "The page is for this machine and its own origin only");
        return tke_exchange_answer(x);
    }
    if (x->from_page && !h->page_chat) {
        refuse(x, 404, "not_found", "This server cannot sample texts");
        return tke_exchange_answer(x);
    }
    if (ui)
        add_page_headers(x);
    x->request = (tinkc_request){ .method = x->method,
                                  .path = x->from_page ? x->uri + strlen("/ui") : x->uri,
                                  .base_url = x->base_url,
                                  .headers = x->headers,
                                  .body = { (const unsigned char *)x->body.data, x->body.len } };
    if (!x->method || !enlist(h, x)) {
        refuse(x, 503, "stopping", "The server is stopping");
        return tke_exchange_answer(x);
    }
    tke_exchange_keep(x); /* the service's count */
    tke_exchange_open_reply(x);
    hand_over(h, x);
    if (is_unwanted(h, x)) /* whoever ended all others may have been before it was there */
        cancel(h, x);
    return tke_exchange_wait(x);
}

static void take_body(tke_http *h, tke_exchange *x, const char *data, size_t len)
{
    tinkc_error err = { 0 };
    enum { HEAD = 4096 }; /* of a body that is too large: it may say which request this was */
    size_t max = (size_t)tke_service_max_body(h->svc);
    if (x->refusal)
        return; /* read to the end, or the answer might not arrive; but not kept */
    if (!x->too_large && x->body.len + len <= max) {
        x->counted += len;
        size_t all = atomic_fetch_add(&h->body_bytes, len) + len;
        if ((all <= BODIES * max || x->body.len == 0) && tkc_buf_add(&x->body, data, len, &err))
            return;
        x->refusal = TKE_X_BUSY;
        tkc_buf_free(&x->body);
        atomic_fetch_sub(&h->body_bytes, x->counted);
        x->counted = 0;
        return;
    }
    x->too_large = true;
    if (x->body.len > HEAD)
        x->body.len = HEAD;
    size_t room = HEAD - x->body.len;
    (void)tkc_buf_add(&x->body, data, len < room ? len : room, &err);
}

/* Only the head is here: what can be refused already is, before memory is spent on a body. */
static enum MHD_Result look_at_head(tke_http *h, tke_exchange *x)
{
    enum { SMALL = 1 << 20 }; /* read to its end all the same, so that the answer arrives */
    const char *length = h->mhd->lookup(x->connection, MHD_HEADER_KIND, "Content-Length");
    const char *key = h->mhd->lookup(x->connection, MHD_HEADER_KIND, "X-API-Key");
    const char *bearer = h->mhd->lookup(x->connection, MHD_HEADER_KIND, "Authorization");
    int64_t n = 0;
    if (!key && bearer && is_openai(h, x) && strncasecmp(bearer, "Bearer ", 7) == 0)
        key = bearer + 7 + strspn(bearer + 7, " ");
    bool parsed = length && tkc_parse_i64(tkc_str(length), &n);
    x->method = "";
    x->too_large = parsed && n > tke_service_max_body(h->svc);
    if (!identify(h, key, x->owner) && !needs_no_key(h, x->uri))
        x->refusal = TKE_X_KEY;
    else if (x->too_large && !strstr(x->uri, "/forward_backward"))
        x->refusal = TKE_X_SIZE; /* passes are read on: their numbers must not be lost */
    return x->refusal && n > SMALL ? answer_refusal(x) : MHD_YES;
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *data,
                              size_t *size, void **context)
{
    tke_http *h = cls;
    tke_exchange *x = *context;
    (void)connection, (void)url, (void)version;
    if (!x)
        return MHD_NO; /* no memory: the connection is closed */
    pthread_mutex_lock(&x->lock);
    int32_t state = x->state;
    pthread_mutex_unlock(&x->lock);
    if (state == TKE_X_ANSWERING)
        return tke_exchange_answer(x);
    if (state != TKE_X_READING)
        return MHD_YES;
    if (!x->method)
        return look_at_head(h, x);
    if (*size) {
        take_body(h, x, data, *size);
        *size = 0;
        return MHD_YES;
    }
    return dispatch(h, x, method);
}

static void log_access(tke_http *h, tke_exchange *x)
{
    char line[700];
    if (!h->access_log)
        return;
    pthread_mutex_lock(&x->lock); /* the service may still be at it */
    int status = (int)x->status;
    pthread_mutex_unlock(&x->lock);
    double ms = (double)(tkc_monotonic_ns() - x->start_ns) / 1e6;
    (void)snprintf(line, sizeof line, "%s %.400s %d %llu %.1fms %s", x->method ? x->method : "-",
                   x->uri, status, (unsigned long long)x->n_sent, ms, x->owner);
    tkc_redact(line, strlen(line));
    h->access_log(TINKC_LOG_INFO, line, h->access_log_user);
}

static void completed(void *cls, struct MHD_Connection *connection, void **context,
                      enum MHD_RequestTerminationCode code)
{
    tke_http *h = cls;
    tke_exchange *x = *context;
    (void)connection;
    *context = NULL;
    if (!x)
        return;
    bool whole = code == MHD_REQUEST_TERMINATED_COMPLETED_OK;
    tke_exchange_closed(x, whole);
    atomic_fetch_sub(&h->body_bytes, x->counted);
    if (whole && x->future[0])
        tke_service_delivered(h->svc, x->future);
    log_access(h, x);
    pthread_mutex_lock(&h->lock);
    bool unfinished = x->listed;
    assert(!x->handed_over || h->n_unsent > 0);
    h->n_unsent -= x->handed_over;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    if (unfinished)
        cancel(h, x);
    tke_exchange_drop(x);
    http_drop(h);
}

static size_t keep_escapes(void *cls, struct MHD_Connection *connection, char *text)
{
    (void)cls, (void)connection;
    return strlen(text); /* the service decodes each segment by itself */
}

/* ---- the socket ---- */

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)address;
        return ntohl(in->sin_addr.s_addr) >> 24 == 127;
    }
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)address;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

static bool listen_unix(tke_http *h, const char *path, tinkc_error *err)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct stat st;
    if (strlen(path) >= sizeof address.sun_path)
        return tkc_fail(err, TINKC_E_ARGUMENT, "unix_socket: the path is too long");
    memcpy(address.sun_path, path, strlen(path) + 1);
    h->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (h->listen_fd < 0)
        return tkc_fail_errno(err, "%s", path);
    /* A socket that nobody listens on was left behind by a process that is gone. */
    if (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode)) {
        int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool alive =
            probe >= 0 && connect(probe, (struct sockaddr *)(void *)&address, sizeof address) == 0;
        if (probe >= 0)
            close(probe);
        if (alive)
            return tkc_fail(err, TINKC_E_CONNECTION, "%s: a server is listening there", path);
        (void)unlink(path);
    }
    mode_t before = umask(0077);
    int bad = bind(h->listen_fd, (struct sockaddr *)(void *)&address, sizeof address);
    umask(before);
    if (bad || listen(h->listen_fd, 512) != 0)
        return tkc_fail(err, TINKC_E_CONNECTION, "%s: cannot listen there", path);
    h->socket_path = tkc_copy_str(h->a, tkc_str(path), err);
    (void)snprintf(h->url, sizeof h->url, "unix:%.140s", path);
    return h->socket_path != NULL;
}

static bool listen_tcp(tke_http *h, const char *host, int32_t port, tinkc_error *err)
{
    char service[16];
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV },
                    *found = NULL;
    const char *name = host && *host ? host : "127.0.0.1";
    int one = 1;
    (void)snprintf(service, sizeof service, "%d", (int)port);
    if (getaddrinfo(name, service, &hints, &found) != 0 || !found)
        return tkc_fail(err, TINKC_E_ARGUMENT, "host '%.100s' cannot be resolved", name);
    bool loopback = is_loopback(found->ai_addr);
    h->listen_fd =
        socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, found->ai_protocol);
    if (h->listen_fd >= 0)
        setsockopt(h->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    bool bound = h->listen_fd >= 0 && bind(h->listen_fd, found->ai_addr, found->ai_addrlen) == 0 &&
                 listen(h->listen_fd, 512) == 0;
    int why = errno;
    bool v6 = found->ai_family == AF_INET6;
    freeaddrinfo(found);
    if (!loopback && h->n_keys == 0) {
        tkc_fail(err, TINKC_E_ARGUMENT,
                 "host '%.100s' can be reached from other machines: api_keys are required", name);
        err->cause = TINKC_E_NO_CREDENTIAL;
        return false;
    }
    if (!bound)
        return tkc_fail(err, TINKC_E_CONNECTION, "%.100s:%d: %s", name, (int)port,
                        why == EADDRINUSE ? "the address is in use" : "cannot listen there");
    struct sockaddr_storage bound_to;
    socklen_t len = sizeof bound_to;
    if (getsockname(h->listen_fd, (struct sockaddr *)(void *)&bound_to, &len) == 0)
        port = ntohs(v6 ? ((struct sockaddr_in6 *)(void *)&bound_to)->sin6_port
                        : ((struct sockaddr_in *)(void *)&bound_to)->sin_port);
    (void)snprintf(h->url, sizeof h->url, v6 ? "http://[%.100s]:%d" : "http://%.100s:%d", name,
                   (int)port);
    return true;
}

/* ---- start ---- */

static bool copy_keys(tke_http *h, const char *const *keys, tinkc_error *err)
{
    size_t n = 0;
    while (keys && keys[n])
        n++;
    h->keys = tkc_zalloc(h->a, (n + 1) * sizeof *h->keys, err);
    h->owners = tkc_zalloc(h->a, (n + 1) * sizeof *h->owners, err);
    for (size_t i = 0; h->keys && h->owners && i < n; i++) {
        if (!keys[i][0])
            return tkc_fail(err, TINKC_E_ARGUMENT, "api_keys: key %zu is empty", i);
        h->keys[i] = tkc_copy_str(h->a, tkc_str(keys[i]), err);
        if (!h->keys[i])
            return false;
        tke_owner_of_key(tkc_str(keys[i]), h->owners[i]);
        h->n_keys = i + 1;
    }
    return !tkc_failed(err);
}

static bool start_daemon(tke_http *h, const tinkc_serve_options *o, tinkc_error *err)
{
    unsigned int limit = o->max_connections > 0 ? (unsigned int)o->max_connections : 4096;
    unsigned int flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
    h->daemon = h->mhd->start(
        flags, 0, NULL, NULL, handle, h, MHD_OPTION_LISTEN_SOCKET, h->listen_fd,
        MHD_OPTION_THREAD_POOL_SIZE, (unsigned int)FRONT_THREADS, MHD_OPTION_CONNECTION_LIMIT,
        limit < FRONT_THREADS ? (unsigned int)FRONT_THREADS : limit, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned int)IDLE_TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
        MHD_OPTION_NOTIFY_COMPLETED, completed, h, MHD_OPTION_URI_LOG_CALLBACK, begin, h,
        MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_END);
    if (!h->daemon)
        return tkc_fail(err, TINKC_E_CONNECTION, "the HTTP server could not be started");
    return true;
}

static bool page_status(void *user, const char *owner, tkc_buf *out, tinkc_error *err)
{
    const tke_http *h = user;
    return tke_service_status(h->svc, owner, out, err);
}

static bool open_page(tke_http *h, const tinkc_serve_options *o, tinkc_error *err)
{
    tinkc_error no_chat = { 0 };
    if (!o->page)
        return true;
    (void)tke_service_openai(h->svc, true, &h->page_chat, &no_chat);
    h->page_chat = !tkc_failed(&no_chat);
    h->page = tke_page_new(&(tke_page_options){ .a = h->a,
                                                .log_dirs = o->log_dirs,
                                                .status = page_status,
                                                .status_user = h,
                                                .chat = h->page_chat,
                                                .keys = h->n_keys > 0 },
                           err);
    return h->page != NULL;
}

tinkc_server *tinkc_engine_serve(tinkc_engine *engine, const tinkc_serve_options *options,
                                 tinkc_error *err)
{
    static const tinkc_serve_options none;
    const tinkc_serve_options *o = options ? options : &none;
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!engine || o->port < 0 || o->port > 65535 || o->max_connections < 0 ||
        o->max_body_bytes < 0 || !tkc_all_zero(o->reserved, sizeof o->reserved) ||
        !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools)) {
        tkc_fail(err, TINKC_E_ARGUMENT, "an option is out of range");
        return NULL;
    }
    tke_service *svc = tke_engine_service(engine);
    const tinkc_allocator *a = tke_service_allocator(svc);
    bool openai;
    const tke_mhd *mhd =
        tke_service_openai(svc, o->openai, &openai, err) ? tke_mhd_load(err) : NULL;
    tinkc_server *server = mhd ? tkc_zalloc(a, sizeof *server, err) : NULL;
    tke_http *h = server ? tkc_zalloc(a, sizeof *h, err) : NULL;
    if (!h) {
        tkc_release(a, server, sizeof *server);
        return NULL;
    }
    tkc_ref_init(&h->refs);
    h->a = a;
    h->mhd = mhd;
    h->svc = svc;
    h->listen_fd = -1;
    h->access_log = o->access_log;
    h->access_log_user = o->access_log_user;
    h->metrics = o->metrics;
    h->openai = openai;
    tke_service_set_gone(h->svc, tke_exchange_peer_gone);
    tke_service_keep(svc);
    pthread_mutex_init(&h->lock, NULL);
    if (o->max_body_bytes)
        tke_service_set_max_body(svc, o->max_body_bytes);
    bool ok = tkc_cond_init(&h->changed, err) && copy_keys(h, o->api_keys, err) &&
              open_page(h, o, err) &&
              (o->unix_socket ? listen_unix(h, o->unix_socket, err)
                              : listen_tcp(h, o->host, o->port, err)) &&
              start_daemon(h, o, err);
    server->http = h;
    if (!ok) {
        if (h->listen_fd >= 0)
            close(h->listen_fd);
        http_drop(h);
        tkc_release(a, server, sizeof *server);
        return NULL;
    }
    return server;
}

const char *tinkc_server_url(const tinkc_server *server)
{
    return server ? server->http->url : "";
}

/* ---- end ---- */

bool tinkc_server_wait(tinkc_server *server, int64_t timeout_ms, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!server)
        return tkc_fail(err, TINKC_E_ARGUMENT, "server is NULL");
    tke_http *h = server->http;
    int64_t deadline = tkc_deadline_ns(timeout_ms);
    bool in_time = true;
    pthread_mutex_lock(&h->lock);
    while (!h->stopped && in_time)
        in_time = tkc_cond_wait_until(&h->changed, &h->lock, deadline);
    pthread_mutex_unlock(&h->lock);
    return in_time ? true : tkc_fail(err, TINKC_E_TIMEOUT, "the server is still running");
}

/* Ends open polls, or everything, that the service has of ours. Their connections are closed. */
static void cancel_active(tke_http *h, bool polls_only)
{
    for (;;) {
        tke_exchange *x;
        pthread_mutex_lock(&h->lock);
        for (x = h->active; x && ((polls_only && !x->is_poll) || x->cancelled); x = x->next)
            ;
        if (x) {
            x->cancelled = true;
            tke_exchange_keep(x);
        }
        pthread_mutex_unlock(&h->lock);
        if (!x)
            return;
        tke_exchange_cut(x);
        cancel(h, x);
        tke_exchange_drop(x);
    }
}

/* Locks: needs h->lock. Is anything of ours with the service, or, if `sent`, not yet out? */
static bool is_busy(const tke_http *h, bool sent)
{
    return h->n_active || (sent && h->n_unsent);
}

/* Waits until nothing of ours is with the service; if `sent`, also until its answers are out. */
static bool drained(tke_http *h, bool sent, int64_t timeout_ms)
{
    int64_t deadline = tkc_deadline_ns(timeout_ms);
    bool in_time = true;
    pthread_mutex_lock(&h->lock);
    while (is_busy(h, sent) && in_time)
        in_time = tkc_cond_wait_until(&h->changed, &h->lock, deadline);
    bool empty = !is_busy(h, sent);
    pthread_mutex_unlock(&h->lock);
    return empty;
}

bool tinkc_server_stop(tinkc_server *server, int64_t grace_ms, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!server)
        return tkc_fail(err, TINKC_E_ARGUMENT, "server is NULL");
    tke_http *h = server->http;
    pthread_mutex_lock(&h->lock);
    bool first = !h->stopping;
    h->stopping = true;
    pthread_mutex_unlock(&h->lock);
    if (!first)
        return tinkc_server_wait(server, TINKC_FOREVER, err);
    /* New requests are answered 503 from here on. The library could stop listening at once, but
     * its threads and that call both take the socket out of an epoll set, and it aborts the process
     * when the threads were first. */
    cancel_active(h, true); /* polls are no work; their askers come back */
    bool clean = drained(h, true, grace_ms);
    if (!clean) {
        pthread_mutex_lock(&h->lock);
        h->cutting = true;
        pthread_mutex_unlock(&h->lock);
        cancel_active(h, false);
        /* The library must not be stopped while a connection of its is suspended; what is left now
         * waits for a commit or has been told to stop. */
        while (!drained(h, false, 1000))
            ;
    }
    h->mhd->stop(h->daemon);
    if (h->socket_path)
        (void)unlink(h->socket_path);
    pthread_mutex_lock(&h->lock);
    h->stopped = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    return clean;
}

void tinkc_server_free(tinkc_server *server)
{
    if (!server)
        return;
    tinkc_error err = { 0 };
    tke_http *h = server->http;
    (void)tinkc_server_stop(server, 0, &err);
    tkc_release(h->a, server, sizeof *server);
    http_drop(h);
}
