/* http.h - the transport that speaks HTTP: libcurl's multi interface on a client's loop.
 *
 * It runs on the loop's thread; the first request opens libcurl. It knows nothing about retries,
 * sessions or futures: one request becomes one answer or one failure.
 */
#ifndef TKC_NET_HTTP_H
#define TKC_NET_HTTP_H

#include "base/log.h"
#include "net/loop.h"
#include "tinkc/sys/transport.h"

typedef struct tkc_http tkc_http;

typedef struct tkc_http_options {
    const char *base_url;    /* the service; only this origin uses unix_socket         */
    const char *unix_socket; /* NULL = TCP                                             */
    const char *proxy;       /* NULL = $HTTPS_PROXY and similar, read now; "" = none       */
    const char *ca_file;     /* NULL = $SSL_CERT_FILE and _DIR, read now, else the system's */
    int32_t max_connections; /* 0 = 1 000; lowered to what the process may open        */
    const tkc_log *log;      /* NULL = silent; must outlive the transport              */
} tkc_http_options;

/* Copies the options; opens nothing yet. Any thread. */
tkc_http *tkc_http_new(const tinkc_allocator *a, tkc_loop *loop, const tkc_http_options *,
                       tinkc_error *err);
/* Call it after the loop has ended with no answer outstanding. Does not touch the loop.
 * NULL allowed. Any thread. */
void tkc_http_free(tkc_http *);

/* Borrowed from the tkc_http. Call send, cancel and resume on the loop's thread. */
const tinkc_transport *tkc_http_transport(tkc_http *);

#endif
