/* connections.c - the list of connections, and which of them to close.
 *
 * libmicrohttpd closes a connection that is silent for two minutes. That does not stop a peer that
 * sends a byte now and then, so each connection also has a deadline for the head of its request and
 * a minimum rate for its body: in each window of a minute, so that a fast beginning does not pay for
 * silence. At the connection limit, of an address or of all, the one that has been idle longest is
 * closed. A connection is ended by shutdown(2): its own libmicrohttpd thread then closes it, so no
 * other thread ever closes a descriptor.
 */
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "service/http/http_server.h"

enum {
    DEFAULT_CONNECTIONS = 4096,
    FILES_IN_RESERVE = 256, /* the store, downloads, models, the host's own */
    HEAD_S = 30,            /* of the first request on a connection, unless options say otherwise */
    IDLE_S = 120,           /* between an answer and the head of the next request */
    BODY_WINDOW_S = 60,
    BODY_BYTES = BODY_WINDOW_S * 1024 /* in each window */
};

/* ---- how many ---- */

void tke_peers_limit(tke_http *h, const tinkc_serve_options *o)
{
    struct rlimit files = { .rlim_cur = RLIM_INFINITY };
    size_t most = o->max_connections > 0 ? (size_t)o->max_connections : DEFAULT_CONNECTIONS;
    (void)getrlimit(RLIMIT_NOFILE, &files);
    size_t open = (size_t)files.rlim_cur;
    /* Descriptors for files come first: a server whose connections take all of them can no longer
     * write a checkpoint. */
    size_t room = open > 2 * FILES_IN_RESERVE ? open - FILES_IN_RESERVE : open / 2;
    most = most < room ? most : room;
    h->max_peers = most ? most : 1;
    h->head_ns = (o->head_timeout_ms > 0 ? o->head_timeout_ms : HEAD_S * 1000) * (int64_t)1000000;
    /* Half of all, so that one client machine cannot shut out the rest. */
    h->max_per_address =
        o->max_per_address > 0 ? (size_t)o->max_per_address : (h->max_peers + 1) / 2;
}

/* Of IPv6 only the network: each client has all addresses of one. Except for IPv4's within it. */
static void read_address(const struct sockaddr *from, unsigned char out[16])
{
    memset(out, 0, 16);
    if (from->sa_family == AF_INET) {
        out[10] = out[11] = 0xff;
        memcpy(out + 12, &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
    } else if (from->sa_family == AF_INET6) {
        const struct in6_addr *at = &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;
        memcpy(out, at, IN6_IS_ADDR_V4MAPPED(at) ? 16 : 8);
    }
}

static bool is_from(const tke_peer *p, const unsigned char address[16])
{
    return !p->local && !p->ended && memcmp(p->address, address, 16) == 0;
}

/* Locks: needs h->lock. busy: only those that cannot make room for another. */
static size_t count_from(const tke_http *h, const unsigned char address[16], bool busy)
{
    size_t n = 0;
    for (const tke_peer *p = h->peers; p; p = p->next)
        n += is_from(p, address) && !(busy && p->state == TKE_PEER_HEAD);
    return n;
}

/* Saves work for an address that has its share of requests already. Several threads accept at once,
 * so the limit itself is kept where the connection is listed (limit_address). */
enum MHD_Result tke_peer_accept(void *cls, const struct sockaddr *from, socklen_t len)
{
    tke_http *h = cls;
    unsigned char address[16];
    (void)len;
    if (!from || (from->sa_family != AF_INET && from->sa_family != AF_INET6))
        return MHD_YES;
    read_address(from, address);
    pthread_mutex_lock(&h->lock);
    size_t n = count_from(h, address, true);
    pthread_mutex_unlock(&h->lock);
    return n < h->max_per_address ? MHD_YES : MHD_NO;
}

/* ---- accepting and closing ---- */

/* Locks: needs h->lock. */
static void end_peer(tke_peer *p)
{
    p->ended = true;
    (void)shutdown(p->fd, SHUT_RDWR);
}

/* Locks: needs h->lock. The oldest that waits for a request, of an address or (NULL) of all, but not
 * the newest: NULL if there is none. */
static tke_peer *oldest_idle(const tke_http *h, const unsigned char *address)
{
    tke_peer *oldest = NULL;
    /* Not the newest: it was just accepted and looks idle only because its head has not arrived. */
    for (tke_peer *p = h->peers; p; p = p->next)
        if (!p->ended && p->state == TKE_PEER_HEAD && p != h->peers &&
            (!address || is_from(p, address)) && (!oldest || p->since_ns <= oldest->since_ns))
            oldest = p;
    return oldest;
}

/* Locks: needs h->lock. One too many: the oldest that waits for a request goes; else the newest. */
static void make_room(tke_http *h)
{
    size_t n = 0;
    for (const tke_peer *p = h->peers; p; p = p->next)
        n += !p->ended;
    tke_peer *oldest = n > h->max_peers ? oldest_idle(h, NULL) : NULL;
    if (n > h->max_peers)
        end_peer(oldest ? oldest : h->peers);
}

/* Locks: needs h->lock. The same for one address. */
static void limit_address(tke_http *h, tke_peer *newest)
{
    if (newest->local || newest->ended ||
        count_from(h, newest->address, false) <= h->max_per_address)
        return;
    tke_peer *oldest = oldest_idle(h, newest->address);
    end_peer(oldest ? oldest : newest);
}

static tke_peer *peer_new(tke_http *h, struct MHD_Connection *connection)
{
    tinkc_error err = { 0 };
    struct sockaddr_storage from;
    socklen_t len = sizeof from;
    const union MHD_ConnectionInfo *fd =
        h->mhd->info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    tke_peer *p = fd ? tkc_zalloc(h->a, sizeof *p, &err) : NULL;
    if (!p)
        return NULL;
    p->http = h;
    p->fd = fd->connect_fd;
    p->first = true;
    p->since_ns = tkc_monotonic_ns();
    if (getpeername(p->fd, (struct sockaddr *)(void *)&from, &len) == 0)
        read_address((const struct sockaddr *)(const void *)&from, p->address);
    /* Clients of a UNIX socket have no address, and would all share one; the file's mode decides
     * who may connect. */
    p->local = h->socket_path != NULL;
    return p;
}

void tke_peer_notify(void *cls, struct MHD_Connection *connection, void **context,
                     enum MHD_ConnectionNotificationCode what)
{
    tke_http *h = cls;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        tke_peer *p = peer_new(h, connection);
        *context = p;
        if (!p)
            return;
        pthread_mutex_lock(&h->lock);
        p->next = h->peers;
        if (p->next)
            p->next->prev = p;
        h->peers = p;
        h->n_peers++;
        make_room(h);
        limit_address(h, p);
        pthread_mutex_unlock(&h->lock);
        tke_service_gauge(h->svc, TKE_GAUGE_CONNECTIONS, 1);
        return;
    }
    tke_peer *p = *context;
    *context = NULL;
    if (!p)
        return;
    pthread_mutex_lock(&h->lock); /* before its descriptor is closed and may be reused */
    *(p->prev ? &p->prev->next : &h->peers) = p->next;
    if (p->next)
        p->next->prev = p->prev;
    h->n_peers--;
    pthread_mutex_unlock(&h->lock);
    if (p->uri)
        tkc_release_str(h->a, p->uri);
    tkc_release(h->a, p, sizeof *p);
    tke_service_gauge(h->svc, TKE_GAUGE_CONNECTIONS, -1);
}

tke_peer *tke_peer_of(const tke_http *h, struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        h->mhd->info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

void tke_peer_is(tke_peer *p, int32_t state)
{
    pthread_mutex_lock(&p->http->lock);
    /* The short deadline of a first head ends with the first answer: idle kept connections are
     * normal. */
    if (p->state == TKE_PEER_BUSY && state == TKE_PEER_HEAD)
        p->first = false;
    p->state = state;
    p->since_ns = tkc_monotonic_ns();
    p->n_body = 0;
    if (state == TKE_PEER_HEAD)
        p->held = 0;
    pthread_mutex_unlock(&p->http->lock);
}

void tke_peer_read(tke_peer *p, size_t bytes)
{
    pthread_mutex_lock(&p->http->lock);
    p->n_body += bytes;
    pthread_mutex_unlock(&p->http->lock);
}

/* ---- memory for bodies ---- */

void tke_peer_holds(tke_peer *p, size_t bytes)
{
    pthread_mutex_lock(&p->http->lock);
    p->held = bytes;
    pthread_mutex_unlock(&p->http->lock);
}

/* An address may hold half of what the others leave. So there is always room for one more, and many
 * addresses share in turn; the first has half of all. */
bool tke_peer_may_hold(const tke_peer *p, size_t all, size_t bound)
{
    const tke_http *h = p->http;
    size_t own = 0;
    if (all <= bound / 16)
        return true; /* saves the walk */
    pthread_mutex_lock(&p->http->lock);
    for (const tke_peer *each = h->peers; each; each = each->next)
        if (each->local == p->local && memcmp(each->address, p->address, 16) == 0)
            own += each->held;
    pthread_mutex_unlock(&p->http->lock);
    size_t others = all > own ? all - own : 0;
    return others < bound && own <= (bound - others) / 2;
}

/* ---- time ---- */

bool tke_peer_is_late(const tke_peer *p, int64_t now_ns)
{
    int64_t age_ns = now_ns - p->since_ns, age_s = age_ns / 1000000000;
    if (p->state == TKE_PEER_HEAD)
        return p->first ? age_ns >= p->http->head_ns : age_s >= IDLE_S;
    return p->state == TKE_PEER_BODY && age_s >= BODY_WINDOW_S && p->n_body < BODY_BYTES;
}

void tke_peer_next_window(tke_peer *p, int64_t now_ns)
{
    if (p->state != TKE_PEER_BODY || now_ns - p->since_ns < BODY_WINDOW_S * (int64_t)1000000000)
        return;
    p->since_ns = now_ns;
    p->n_body = 0;
}

static void *watch(void *arg)
{
    tke_http *h = arg;
    pthread_mutex_lock(&h->lock);
    while (!h->end_timer) {
        int64_t now = tkc_monotonic_ns();
        for (tke_peer *p = h->peers; p; p = p->next) {
            if (!p->ended && tke_peer_is_late(p, now))
                end_peer(p);
            tke_peer_next_window(p, now);
        }
        pthread_mutex_unlock(&h->lock);
        tke_requests_cancel_gone(h);
        pthread_mutex_lock(&h->lock);
        if (h->end_timer)
            break;
        tkc_cond_wait_until(&h->tick, &h->lock,
                            tkc_deadline_ns(h->head_ns < 2000000000 ? 50 : 1000));
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

bool tke_peers_watch(tke_http *h, tinkc_error *err)
{
    h->has_timer = tkc_thread_start(&h->timer, watch, h, "tinkc-http", err);
    return h->has_timer;
}

void tke_peers_unwatch(tke_http *h)
{
    if (!h->has_timer)
        return;
    pthread_mutex_lock(&h->lock);
    h->end_timer = true;
    pthread_cond_broadcast(&h->tick);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->timer, NULL);
}
