/* exchange.c - sends answers from the service to a connection.
 *
 * Small answers are buffered and sent with their length. Events and archives are sent while they
 * are produced: the connection reads what is available and is suspended when there is nothing. The
 * code that produces an archive waits for a slow connection; events never wait (they are few and
 * small).
 */
#include "service/http/exchange.h"

#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/str.h"
#include "service/http/http_server.h"

enum { MAX_AHEAD = 1 << 20, SEND_BLOCK = 16384 };

static tke_exchange *of(tinkc_reply *reply)
{
    return (tke_exchange *)(void *)reply;
}

tke_exchange *tke_exchange_new(struct tke_http *http, const tke_mhd *mhd, const tinkc_allocator *a,
                               const char *uri)
{
    tinkc_error err = { 0 };
    tke_exchange *x = tkc_zalloc(a, sizeof *x, &err);
    if (!x)
        return NULL;
    tkc_ref_init(&x->refs);
    x->http = http;
    x->svc = http->svc;
    x->mhd = mhd;
    x->start_ns = tkc_monotonic_ns();
    x->content_length = -1;
    tkc_arena_init(&x->arena, a, 0);
    tkc_buf_init(&x->body, tke_service_body_allocator(http->svc), TKC_BUF_NO_MAX);
    tke_service_gauge(http->svc, TKE_GAUGE_EXCHANGES, 1);
    tkc_buf_init(&x->out, a, TKC_BUF_NO_MAX);
    pthread_mutex_init(&x->lock, NULL);
    x->uri = tkc_arena_cstr(&x->arena, uri, &err);
    if (!tkc_cond_init(&x->room, &err) || !x->uri) {
        tke_exchange_drop(x);
        return NULL;
    }
    return x;
}

void tke_exchange_keep(tke_exchange *x)
{
    tkc_ref_keep(&x->refs);
}

void tke_exchange_drop(tke_exchange *x)
{
    if (!tkc_ref_drop(&x->refs))
        return;
    const tinkc_allocator *a = x->arena.a;
    tke_service_gauge(x->svc, TKE_GAUGE_EXCHANGES, -1);
    tkc_buf_free(&x->body);
    tkc_buf_free(&x->out);
    tkc_arena_free(&x->arena);
    pthread_mutex_destroy(&x->lock);
    pthread_cond_destroy(&x->room);
    tkc_release(a, x, sizeof *x);
}

const char *tke_exchange_header(const tke_exchange *x, const char *name)
{
    for (size_t i = 0; i + 1 < x->n_headers; i += 2)
        if (tkc_str_is_nocase(tkc_str(x->headers[i]), name))
            return x->headers[i + 1];
    return NULL;
}

/* Locks: needs x->lock. Wakes the connection, which has something to do. */
static void wake(tke_exchange *x)
{
    if (x->state == TKE_X_SUSPENDED && !x->gone) {
        x->state = TKE_X_ANSWERING;
        x->mhd->resume(x->connection);
    } else if (x->state == TKE_X_HANDED) {
        x->state = TKE_X_ANSWERING;
    }
}

/* ---- the reply ---- */

static void reply_status(tinkc_reply *reply, int32_t status)
{
    tke_exchange *x = of(reply);
    /* the connection may be closed, and reported closed, at any time */
    pthread_mutex_lock(&x->lock);
    x->status = status;
    pthread_mutex_unlock(&x->lock);
}

static void reply_header(tinkc_reply *reply, const char *name, const char *value)
{
    tke_exchange *x = of(reply);
    tinkc_error err = { 0 };
    int64_t length;
    if (tkc_str_is_nocase(tkc_str(name), "Content-Length")) {
        if (tkc_parse_i64(tkc_str(value), &length))
            x->content_length = length;
        return; /* the library writes it */
    }
    if (tkc_cstr_eq(name, TKE_FUTURE_HEADER) && strlen(value) < sizeof x->future)
        memcpy(x->future, value, strlen(value) + 1);
    x->is_events |= strstr(value, "text/event-stream") != NULL;
    if (x->n_reply_headers + 2 > sizeof x->reply_headers / sizeof *x->reply_headers)
        return;
    const char *n = tkc_arena_cstr(&x->arena, name, &err);
    const char *v = tkc_arena_cstr(&x->arena, value, &err);
    if (n && v) {
        x->reply_headers[x->n_reply_headers++] = n;
        x->reply_headers[x->n_reply_headers++] = v;
    } else {
        x->incomplete = true;
    }
}

static bool reply_write(tinkc_reply *reply, const void *data, size_t len)
{
    tke_exchange *x = of(reply);
    tinkc_error err = { 0 };
    pthread_mutex_lock(&x->lock);
    x->streaming |= x->is_events || x->content_length >= 0;
    /* Not inside: there it is the library's own thread, which would have to send what it waits
     * for. */
    while (x->streaming && !x->is_events && !x->inside && !x->gone && !x->cut &&
           x->out.len - x->taken > MAX_AHEAD)
        tkc_cond_wait_until(&x->room, &x->lock, tkc_deadline_ns(1000));
    if (x->taken && x->taken == x->out.len) {
        tkc_buf_clear(&x->out);
        x->taken = 0;
    }
    bool wanted = !x->gone && !(x->cut && x->streaming);
    bool ok = wanted && tkc_buf_add(&x->out, data, len, &err);
    x->incomplete |= !ok;
    if (x->streaming)
        wake(x);
    pthread_mutex_unlock(&x->lock);
    return ok;
}

static void finish(tke_exchange *x, bool failed)
{
    pthread_mutex_lock(&x->lock);
    assert(!x->ended); /* a reply ends only once */
    x->ended = true;
    x->failed = failed || x->incomplete; /* a partial answer must not look complete */
    wake(x);
    pthread_mutex_unlock(&x->lock);
    /* Without x->lock: find_gone takes it inside h->lock, and the other order could deadlock. */
    tke_http_over(x);
    tke_exchange_drop(x);
}

static void reply_end(tinkc_reply *reply)
{
    finish(of(reply), false);
}

static void reply_fail(tinkc_reply *reply, int32_t code, const char *message)
{
    (void)code, (void)message;
    finish(of(reply), true);
}

/* Writing events never waits, so code that sends many checks the room first. */
static size_t reply_room(tinkc_reply *reply)
{
    tke_exchange *x = of(reply);
    pthread_mutex_lock(&x->lock);
    size_t ahead = x->out.len - x->taken;
    pthread_mutex_unlock(&x->lock);
    return ahead < MAX_AHEAD ? MAX_AHEAD - ahead : 0;
}

void tke_exchange_open_reply(tke_exchange *x)
{
    x->reply = (tinkc_reply){ .status = reply_status,
                              .header = reply_header,
                              .write = reply_write,
                              .end = reply_end,
                              .fail = reply_fail,
                              .room = x->to_page ? reply_room : NULL };
    x->state = TKE_X_HANDED;
}

/* ---- the connection ---- */

/* More bytes of a streamed answer, if there are any. */
static ssize_t read_stream(void *cls, uint64_t pos, char *buf, size_t max)
{
    tke_exchange *x = cls;
    ssize_t n = 0;
    (void)pos;
    pthread_mutex_lock(&x->lock);
    assert(x->streaming && x->taken <= x->out.len);
    size_t left = x->out.len - x->taken;
    if (left) {
        n = (ssize_t)(left < max ? left : max);
        memcpy(buf, x->out.data + x->taken, (size_t)n);
        x->taken += (size_t)n;
        x->n_sent += (uint64_t)n;
        pthread_cond_signal(&x->room);
    } else if (x->failed) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (x->ended) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        /* Under the lock, or a write between the look and the suspension would wake nobody. */
        x->state = TKE_X_SUSPENDED;
        x->mhd->suspend(x->connection);
    }
    pthread_mutex_unlock(&x->lock);
    return n;
}

static struct MHD_Response *make_response(tke_exchange *x)
{
    if (!x->streaming) {
        /* The library sends from this buffer without a copy: it lives until the request is reported
         * as completed. */
        x->n_sent = x->out.len;
        return x->mhd->from_buffer(x->out.len, x->out.data, MHD_RESPMEM_PERSISTENT);
    }
    uint64_t size = x->content_length >= 0 ? (uint64_t)x->content_length : MHD_SIZE_UNKNOWN;
    return x->mhd->from_callback(size, SEND_BLOCK, read_stream, x, NULL);
}

enum MHD_Result tke_exchange_answer(tke_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    /* Nothing was sent yet, so the connection is closed without a status: half an answer would look
     * like a valid one. */
    bool cut_off = x->failed && !x->streaming;
    struct MHD_Response *response = cut_off ? NULL : make_response(x);
    x->state = TKE_X_SENT;
    pthread_mutex_unlock(&x->lock);
    if (!response)
        return MHD_NO;
    for (size_t i = 0; i + 1 < x->n_reply_headers; i += 2)
        x->mhd->add_header(response, x->reply_headers[i], x->reply_headers[i + 1]);
    if (x->is_last)
        x->mhd->add_header(response, "Connection", "close");
    enum MHD_Result ok = x->mhd->queue(x->connection, (unsigned int)x->status, response);
    x->mhd->destroy(response);
    return ok;
}

enum MHD_Result tke_exchange_wait(tke_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->inside = false;
    /* Under the lock, or an answer that arrives between the look and the suspension would never
     * resume it. */
    bool ready = x->state == TKE_X_ANSWERING;
    if (!ready) {
        x->state = TKE_X_SUSPENDED;
        x->mhd->suspend(x->connection);
    }
    pthread_mutex_unlock(&x->lock);
    return ready ? tke_exchange_answer(x) : MHD_YES;
}

bool tke_exchange_peer_gone(tinkc_reply *reply)
{
    tke_exchange *x = of(reply);
    char byte;
    pthread_mutex_lock(&x->lock);
    bool gone = x->gone;
    if (!gone && x->state == TKE_X_SUSPENDED) { /* so it cannot be closed while we look */
        const union MHD_ConnectionInfo *info =
            x->mhd->info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        /* Peeked, not read: what has arrived is the next request. */
        gone = info && recv(info->connect_fd, &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT) == 0;
    }
    pthread_mutex_unlock(&x->lock);
    return gone;
}

void tke_exchange_cut(tke_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->cut = true;
    pthread_cond_signal(&x->room);
    pthread_mutex_unlock(&x->lock);
}

void tke_exchange_closed(tke_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->gone = true;
    pthread_cond_signal(&x->room);
    pthread_mutex_unlock(&x->lock);
}
