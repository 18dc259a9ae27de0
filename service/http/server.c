/* server.c - tinkc_engine_serve: starts and stops the HTTP server; http_server.h lists the rest. */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/heap.h"
#include "base/str.h"
#include "service/http/http_server.h"

enum {
    FRONT_THREADS = 4,
    IDLE_TIMEOUT_S = 120,
    CONNECTION_MEMORY = 64 * 1024,
    SPARE_CONNECTIONS = 8 /* for each thread: accepted above the limit, to close an idle one */
};

struct tinkc_server {
    tke_http *http;
};

static void free_names(const tke_http *h, char **names, size_t n)
{
    for (size_t i = 0; names && names[i]; i++)
        tkc_release_str(h->a, names[i]);
    tkc_release(h->a, names, (n + 1) * sizeof *names);
}

void tke_http_drop(tke_http *h)
{
    if (!tkc_ref_drop(&h->refs))
        return;
    tke_key_ring_free(h->keys);
    free_names(h, h->guard.allowed, h->n_allowed);
    free_names(h, h->models, h->n_models);
    if (h->guard.bound)
        tkc_release_str(h->a, (char *)(uintptr_t)h->guard.bound);
    if (h->socket_path)
        tkc_release_str(h->a, h->socket_path);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->changed);
    pthread_cond_destroy(&h->tick);
    tke_page_free(h->page);
    tke_service_drop(h->svc);
    tkc_release(h->a, h, sizeof *h);
}

/* ---- start ---- */

/* NULL without names. */
static char **copy_names(const tke_http *h, const char *const *names, size_t *n, tinkc_error *err)
{
    for (*n = 0; names && names[*n];)
        ++*n;
    char **copy = *n ? tkc_zalloc(h->a, (*n + 1) * sizeof *copy, err) : NULL;
    for (size_t i = 0; copy && i < *n; i++)
        if (!(copy[i] = tkc_copy_str(h->a, tkc_str(names[i]), err)))
            break;
    return copy;
}

static bool prepare_guard(tke_http *h, const tinkc_serve_options *o, tinkc_error *err)
{
    h->guard.allowed = copy_names(h, o->allow_hosts, &h->n_allowed, err);
    h->models = copy_names(h, o->models, &h->n_models, err);
    if (tkc_failed(err))
        return false;
    /* With keys a web page has none to send, so the name is not needed to keep it out; unless names
     * were given. */
    h->guard.needs_known_host = tke_key_ring_is_empty(h->keys) || h->guard.allowed;
    if (!o->unix_socket)
        h->guard.bound =
            tkc_copy_str(h->a, tkc_str(o->host && *o->host ? o->host : "127.0.0.1"), err);
    return !tkc_failed(err);
}

static size_t keep_escapes(void *cls, struct MHD_Connection *connection, char *text)
{
    (void)cls, (void)connection;
    return strlen(text); /* the service decodes each segment by itself */
}

static bool start_daemon(tke_http *h, tinkc_error *err)
{
    unsigned int flags = MHD_USE_AUTO_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
    h->daemon = h->mhd->start(
        flags, 0, tke_peer_accept, h, tke_request_handle, h, MHD_OPTION_LISTEN_SOCKET, h->listen_fd,
        MHD_OPTION_THREAD_POOL_SIZE, (unsigned int)FRONT_THREADS, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned int)h->max_peers + FRONT_THREADS * SPARE_CONNECTIONS,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned int)IDLE_TIMEOUT_S,
        /* Not 1: it would then answer a request without Host itself, with two heads; the guard checks more. */
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY, MHD_OPTION_STRICT_FOR_CLIENT,
        0, MHD_OPTION_NOTIFY_COMPLETED, tke_request_completed, h, MHD_OPTION_NOTIFY_CONNECTION,
        tke_peer_notify, h, MHD_OPTION_URI_LOG_CALLBACK, tke_request_begin, h,
        MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_END);
    if (!h->daemon)
        return tkc_fail(err, TINKC_E_CONNECTION, "the HTTP server could not be started");
    return true;
}

static bool page_status(void *user, const char *owner, tkc_buf *out, tinkc_error *err)
{
    const tke_http *h = user;
    if (!tke_service_status(h->svc, owner, out, err))
        return false;
    out->len--; /* the last brace */
    return tkc_buf_cstr(out, ",\"curves\":", err) &&
           tke_service_curves(h->svc, owner, out, err) && tkc_buf_char(out, '}', err);
}

static bool open_page(tke_http *h, const tinkc_serve_options *o, tinkc_error *err)
{
    tinkc_error no_chat = { 0 };
    bool on;
    if (!o->page)
        return true;
    h->page_chat = tke_service_openai(h->svc, true, &on, &no_chat);
    h->page = tke_page_new(&(tke_page_options){ .a = h->a,
                                                .log_dirs = o->log_dirs,
                                                .status = page_status,
                                                .status_user = h,
                                                .chat = h->page_chat,
                                                .keys = !tke_key_ring_is_empty(h->keys) },
                           err);
    return h->page != NULL;
}

static bool check_options(const tinkc_serve_options *o, tinkc_error *err)
{
    if (!tkc_all_zero(o->reserved, sizeof o->reserved) ||
        !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved fields must be zero");
    return tkc_check_range(o->port, 0, 65535, "port", err) &&
           tkc_check_range(o->max_connections, 0, INT64_MAX, "max_connections", err) &&
           tkc_check_range(o->max_body_bytes, 0, INT64_MAX, "max_body_bytes", err) &&
           tkc_check_range(o->max_per_address, 0, INT64_MAX, "max_per_address", err) &&
           tkc_check_range(o->head_timeout_ms, 0, INT64_MAX, "head_timeout_ms", err);
}

static bool start(tke_http *h, const tinkc_serve_options *o, tinkc_error *err)
{
    if (!tkc_cond_init(&h->changed, err) || !tkc_cond_init(&h->tick, err))
        return false;
    h->keys = tke_key_ring_new(h->svc, o->api_keys, err);
    tke_peers_limit(h, o);
    /* The daemon comes last: from then on requests arrive, and all that checks them must be
     * there. */
    return h->keys && prepare_guard(h, o, err) && open_page(h, o, err) && tke_listen(h, o, err) &&
           tke_peers_watch(h, err) && start_daemon(h, err);
}

static void remove_socket(const tke_http *h)
{
    if (h->socket_path)
        (void)unlink(h->socket_path);
}

tinkc_server *tinkc_engine_serve(tinkc_engine *engine, const tinkc_serve_options *options,
                                 tinkc_error *err)
{
    static const tinkc_serve_options none;
    const tinkc_serve_options *o = options ? options : &none;
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!engine) {
        tkc_fail(err, TINKC_E_ARGUMENT, "engine is NULL");
        return NULL;
    }
    if (!check_options(o, err))
        return NULL;
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
    *h = (tke_http){ .a = a,
                     .mhd = mhd,
                     .svc = svc,
                     .listen_fd = -1,
                     .access_log = o->access_log,
                     .access_log_user = o->access_log_user,
                     .metrics = o->metrics,
                     .openai = openai };
    tkc_ref_init(&h->refs);
    tke_service_set_gone(h->svc, tke_exchange_peer_gone);
    tke_service_keep(svc);
    pthread_mutex_init(&h->lock, NULL);
    if (o->max_body_bytes)
        tke_service_set_max_body(svc, o->max_body_bytes);
    tkc_heap_map_large();
    server->http = h;
    if (start(h, o, err))
        return server;
    tke_peers_unwatch(h);
    if (h->listen_fd >= 0)
        close(h->listen_fd);
    remove_socket(h);
    tke_http_drop(h);
    tkc_release(a, server, sizeof *server);
    return NULL;
}

const char *tinkc_server_url(const tinkc_server *server)
{
    return server ? server->http->url : "";
}

bool tinkc_server_set_keys(tinkc_server *server, const char *const *api_keys, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    /* A server without keys admits everybody: a key file that was emptied by mistake must not open
     * it. */
    if (!server || !api_keys || !api_keys[0])
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        server ? "api_keys is empty: a server with keys must keep at least one"
                               : "server is NULL");
    if (tke_key_ring_is_empty(server->http->keys))
        return tkc_fail(err, TINKC_E_ARGUMENT, "the server was started without keys");
    return tke_key_ring_replace(server->http->keys, api_keys, err);
}

/* ---- stop ---- */

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

/* Cancels our open polls, or all our requests, at the service. Their connections are closed. */
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
        tke_request_cancel(h, x);
        tke_exchange_drop(x);
    }
}

/* Locks: needs h->lock. Does the service have any of our requests; if `sent`, is any answer
 * unsent? */
static bool is_busy(const tke_http *h, bool sent)
{
    return h->n_active || (sent && h->n_unsent);
}

/* Waits until the service has none of our requests; if `sent`, also until all answers are sent. */
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
    /* New requests are answered 503 from here on. Do not make the library stop listening instead:
     * its threads and that call both remove the socket from an epoll set, and if the threads are
     * first, it aborts the process. */
    cancel_active(h, true); /* polls are not work; their clients poll again */
    bool clean = drained(h, true, grace_ms);
    if (!clean) {
        pthread_mutex_lock(&h->lock);
        h->cutting = true;
        pthread_mutex_unlock(&h->lock);
        cancel_active(h, false);
        /* The library must not be stopped while one of its connections is suspended; the requests
         * left now wait for a commit or have been asked to stop. */
        while (!drained(h, false, 1000))
            ;
    }
    h->mhd->stop(h->daemon);
    tke_peers_unwatch(h);
    remove_socket(h);
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
    tke_http_drop(h);
}
