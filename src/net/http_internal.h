/* http_internal.h - what http.c (pools, dispatch, waiting) and http_exchange.c (one request on one
 * easy handle) share. No other file includes it. */
#ifndef TKC_NET_HTTP_INTERNAL_H
#define TKC_NET_HTTP_INTERNAL_H

#include "base/buf.h"
#include "base/platform.h"
#include "net/curl_lib.h"
#include "net/http.h"

enum { TKC_HTTP_POOLS = 9, TKC_HTTP_MAX_REDIRECTS = 10 };

typedef struct tkc_http_pool tkc_http_pool;
typedef struct tkc_exchange tkc_exchange;

/* One request. Waits in its pool's queue, then is active on an easy handle, then is freed. */
struct tkc_exchange {
    tkc_http_pool *pool;
    const tinkc_request *request; /* borrowed until the reply has ended */
    tinkc_reply *reply;
    tkc_exchange *next, **link; /* in the queue, while not active */
    tkc_exchange *todo;         /* in http->todo */
    bool in_todo, cancelled, active;

    /* while active */
    CURL *easy;
    struct curl_slist *headers;
    char *url; /* of the current hop */
    tkc_timer idle_timer;
    int64_t last_activity_ms;
    int64_t seen_bytes; /* both ways, as last reported */
    uint64_t body_at;   /* offset in a streamed body */
    tkc_buf held;       /* header lines of a redirect: "name\0value\0"... */
    int32_t status;     /* of the current answer; 0 = no status line yet */
    int32_t redirects;
    bool foreign;    /* not the request's origin: no credential */
    bool become_get; /* a redirect changed the method to GET */
    bool holding;    /* a redirect: nothing is passed on yet */
    bool head_done, paused, unwanted, status_given;
    char error_text[CURL_ERROR_SIZE];
};

struct tkc_http_pool {
    tkc_http *http;
    int32_t kind;
    CURLM *multi; /* created on first use, closed after POOL_IDLE_MS without requests */
    tkc_exchange *waiting, **waiting_end;
    size_t n_active;
    int64_t curl_due_ms; /* when libcurl wants to be called; INT64_MAX = never */
    bool http2;          /* answers came over HTTP/2: many requests share a connection */
    long host_limit;     /* connections that libcurl may open; 0 = no limit */
    tkc_timer idle_timer;
};

struct tkc_http {
    tinkc_transport transport;
    const tinkc_allocator *a;
    tkc_loop *loop;
    char *base_url, *unix_socket, *http_proxy, *https_proxy, *no_proxy, *ca_file, *ca_dir;
    tkc_log log;
    size_t max_connections;

    /* the loop's thread only */
    const tkc_curl *curl; /* NULL until the first request */
    tkc_watch *watch;
    int wake_fd;
    tkc_http_pool pools[TKC_HTTP_POOLS];
    tkc_exchange *todo; /* cancelled or to be resumed at the next round */
    uint64_t sent;      /* requests so far */
};

/* ---- http_exchange.c ---- */

/* Sets an easy handle up for the exchange's current hop. False: err says why not. */
bool tkc_exchange_prepare(tkc_exchange *, tinkc_error *err);
/* libcurl is done with it. True: it was a redirect and the exchange is ready for its next hop, to
 * be added again; otherwise the reply has ended or failed. */
bool tkc_exchange_finish(tkc_exchange *, CURLcode result);
/* Releases what belongs to the exchange while it is active. */
void tkc_exchange_clear(tkc_exchange *);

/* The status of "HTTP/1.1 200 OK" or "HTTP/2 200"; 0 = there is none from 100 to 999. */
int32_t tkc_http_status(tinkc_str line);

/* The error code for a failed transfer, and its message. */
int32_t tkc_http_explain(CURLcode result, long os_error, const char *detail, bool got_status,
                         char *text, size_t cap);

#endif
