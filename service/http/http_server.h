/* http_server.h - the parts of a server and what they share. Internal to service/http.
 *
 *     server.c        starting, stopping, the public functions
 *     listener.c      the socket
 *     connections.c   the list of connections, their deadlines and limit
 *     http_guard.c    refuses requests forged by web pages or proxies
 *     key_ring.c      keys, their owners, quotas
 *     http_request.c  from bytes to the service, through the checks above
 *     exchange.c      from the service back to bytes
 *
 * Locks: http->lock guards the lists. The only lock that may be taken inside it is an exchange's
 * own. Under it nothing waits, and the only system calls are shutdown(2) and a recv(2) that does not
 * wait.
 */
#ifndef TKE_SERVER_HTTP_SERVER_H
#define TKE_SERVER_HTTP_SERVER_H

#include <netinet/in.h>

#include "service/page/page.h"
#include "service/http/exchange.h"
#include "service/http/http_guard.h"
#include "service/http/key_ring.h"

/* A connection. Made when it is accepted, ended when it is closed; MHD's socket_context. */
typedef struct tke_peer {
    struct tke_peer *next, *prev; /* http->peers, newest first; http->lock */
    struct tke_http *http;
    char *uri;                 /* of the request being read; only its thread uses it */
    int fd;                    /* constant */
    unsigned char address[16]; /* constant; IPv4 as in IPv6; all zero on a unix socket */
    bool local;                /* constant: a unix socket */
    /* http->lock */
    int32_t state; /* TKE_PEER_* */
    bool first;    /* its first request is not answered yet */
    bool ended;    /* it was asked to close */
    int64_t since_ns;
    size_t n_body; /* of the body that is being read, in this window */
    size_t held;   /* bytes of a body in memory: of the request being read or answered */
} tke_peer;

enum { TKE_PEER_HEAD = 0, TKE_PEER_BODY, TKE_PEER_BUSY };

typedef struct tke_http {
    tkc_refs refs; /* of the handle and of each exchange */
    const tinkc_allocator *a;
    const tke_mhd *mhd;
    tke_service *svc;
    struct MHD_Daemon *daemon;
    int listen_fd;
    tke_key_ring *keys;
    tke_guard guard;
    size_t n_allowed; /* names in guard.allowed */
    char **models;    /* offered; NULL = all */
    size_t n_models;
    char *socket_path;
    char url[160];
    tinkc_log_fn *access_log;
    void *access_log_user;
    bool metrics;
    bool openai;    /* asked for by the engine's setting or by our options */
    tke_page *page; /* NULL = none is served */
    bool page_chat; /* it may sample through OpenAI's form */
    size_t max_peers, max_per_address;
    int64_t head_ns; /* time limit for the head of the first request */

    _Atomic size_t body_bytes; /* of all requests that are being read or answered */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    tke_peer *peers;
    size_t n_peers;
    tke_exchange *active;      /* with the service */
    size_t n_active, n_unsent; /* n_unsent: handed over, answer not yet fully sent */
    bool stopping;             /* no new requests; polls are ended */
    bool cutting;              /* the grace period is over: everything is ended */
    bool stopped;
    pthread_t timer;
    pthread_cond_t tick;
    bool has_timer, end_timer;
} tke_http;

/* ---- listener.c ---- */

bool tke_listen(tke_http *, const tinkc_serve_options *, tinkc_error *err);
/* "http://10.0.0.5:8000": the address that this connection reached, regardless of its Host. */
void tke_local_url(const tke_http *, int fd, char *out, size_t size);

/* ---- connections.c ---- */

/* Sets the connection limit, from the process's file limit less a reserve for files. */
void tke_peers_limit(tke_http *, const tinkc_serve_options *);
/* MHD's callbacks. */
enum MHD_Result tke_peer_accept(void *http, const struct sockaddr *, socklen_t);
void tke_peer_notify(void *http, struct MHD_Connection *, void **context,
                     enum MHD_ConnectionNotificationCode);
tke_peer *tke_peer_of(const tke_http *, struct MHD_Connection *);
/* It begins to do something else. */
void tke_peer_is(tke_peer *, int32_t state);
void tke_peer_read(tke_peer *, size_t bytes);
/* How much memory its request's body takes. */
void tke_peer_holds(tke_peer *, size_t bytes);
/* May it keep what it holds, if bodies have `all` bytes and may have `bound`? */
bool tke_peer_may_hold(const tke_peer *, size_t all, size_t bound);
/* Locks: needs http->lock. Has it been silent or slow for too long? */
bool tke_peer_is_late(const tke_peer *, int64_t now_ns);
/* Locks: needs http->lock. The rate of a body counts from here on, once a window is over. */
void tke_peer_next_window(tke_peer *, int64_t now_ns);
/* Starts a thread that closes connections past their deadline. */
bool tke_peers_watch(tke_http *, tinkc_error *err);
void tke_peers_unwatch(tke_http *);

/* ---- http_request.c: MHD's callbacks ---- */

void *tke_request_begin(void *http, const char *uri, struct MHD_Connection *);
enum MHD_Result tke_request_handle(void *http, struct MHD_Connection *, const char *url,
                                   const char *method, const char *version, const char *data,
                                   size_t *size, void **context);
void tke_request_completed(void *http, struct MHD_Connection *, void **context,
                           enum MHD_RequestTerminationCode);

/* Cancels the request at the service or the page. */
void tke_request_cancel(tke_http *, tke_exchange *);
/* Cancels requests with a body in memory whose clients have closed their connections. */
void tke_requests_cancel_gone(tke_http *);

/* ---- server.c ---- */

void tke_http_drop(tke_http *);

#endif
