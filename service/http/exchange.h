/* exchange.h - one HTTP request and its answer, between libmicrohttpd and the service.
 *
 * It is both the service's tinkc_reply and the library's request context, and both hold a
 * reference: the peer may disconnect while the service still answers, and the service may have
 * answered long before the last byte is sent.
 */
#ifndef TKE_SERVER_EXCHANGE_H
#define TKE_SERVER_EXCHANGE_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/thread.h"
#include "service/http/http_guard.h"
#include "service/http/key_ring.h"
#include "service/http/mhd.h"
#include "service/core/service.h"

enum { TKE_MAX_HEADERS = 100, TKE_MAX_REPLY_HEADERS = 12 };

enum {
    TKE_X_READING = 0, /* its body is being received */
    TKE_X_HANDED,      /* with the service, on the thread that handed it over */
    TKE_X_SUSPENDED,   /* the connection waits for the service */
    TKE_X_ANSWERING,   /* there is something to send */
    TKE_X_SENT         /* the response is queued */
};

enum { TKE_X_KEY = 1, TKE_X_SIZE, TKE_X_HEADERS, TKE_X_BUSY, TKE_X_GUARD };

typedef struct tke_exchange {
    tinkc_reply reply; /* first: the service identifies it by this */
    tkc_refs refs;
    struct tke_http *http;
    tke_service *svc; /* outlives it: only its threads and the library's touch an exchange */
    struct tke_exchange *next, *prev; /* all that are with the service; http->lock */
    const tke_mhd *mhd;
    struct MHD_Connection *connection;
    tkc_arena arena;
    int64_t start_ns;
    uint64_t n_sent;

    /* the request: constant once it is handed over */
    const char *method;
    const char *uri; /* path and query as received */
    tke_identity who;
    const char *host;    /* NULL = none was given */
    tke_verdict verdict; /* of the guard */
    int64_t max_body;    /* of this path */
    bool typed;          /* Content-Type is JSON or protobuf */
    bool is_last;        /* of its connection: where the next one would begin is uncertain */
    bool by_token;       /* the credential looks like a token, which its client can replace */
    char base_url[300];
    const char *headers[2 * TKE_MAX_HEADERS + 1];
    size_t n_headers;
    tkc_buf body;
    size_t counted;  /* of http->body_bytes */
    int32_t refusal; /* TKE_X_KEY ...: will be refused; 0 = not so far */
    bool too_large, is_poll;
    bool to_page;           /* the page answers it, not the service */
    bool from_page;         /* the service does, and its path began with /ui */
    bool listed, cancelled; /* http->lock */
    bool handed_over;       /* once listed, forever; http->lock */
    bool holds_body;        /* the service still needs it; http->lock */
    tinkc_request request;

    /* the answer */
    pthread_mutex_t lock;
    pthread_cond_t room;
    int32_t state; /* TKE_X_* */
    int32_t status;
    const char *reply_headers[2 * TKE_MAX_REPLY_HEADERS];
    size_t n_reply_headers;
    char future[200]; /* future whose delivery must be reported; "" = none */
    tkc_buf out;
    size_t taken;           /* of out, by the connection */
    int64_t content_length; /* -1 = unknown */
    bool streaming;         /* sent while it is produced */
    bool is_events;
    bool ended, failed; /* by the service */
    bool gone;          /* the connection is closed */
    bool cut;           /* a streamed answer is ended early */
    bool incomplete;    /* a write was lost: it must not be sent as complete */
    bool inside;        /* inside tke_service_handle: writing must not wait */
} tke_exchange;

/* Made when the request line has been read. NULL: memory is short. */
tke_exchange *tke_exchange_new(struct tke_http *, const tke_mhd *, const tinkc_allocator *,
                               const char *uri);
void tke_exchange_keep(tke_exchange *);
void tke_exchange_drop(tke_exchange *);
/* A header of the request, or NULL. */
const char *tke_exchange_header(const tke_exchange *, const char *name);
/* Fills in the reply's functions. */
void tke_exchange_open_reply(tke_exchange *);
/* Thread: the connection's. Sends what is available; MHD_NO closes the connection. */
enum MHD_Result tke_exchange_answer(tke_exchange *);
/* Thread: the connection's, without the lock, after the service has it: suspends unless there is
 * something to send already. */
enum MHD_Result tke_exchange_wait(tke_exchange *);
/* Has the peer closed its connection? libmicrohttpd does not check while it is suspended. */
bool tke_exchange_peer_gone(tinkc_reply *);
/* Ends a streamed answer: further writes fail, and the connection is closed. A buffered answer is
 * still sent in full. */
void tke_exchange_cut(tke_exchange *);
/* The connection no longer uses it. */
void tke_exchange_closed(tke_exchange *);

/* http_request.c */
void tke_http_over(tke_exchange *); /* the service has ended or failed it */

#endif
