/* fetch.h - one HTTP request at a time, on the caller's thread: for transfers that do not go to the
 * service.
 *
 * Use one fetcher per thread, on any thread that may block; connections are kept between requests.
 * A token is sent to the origin of the request only, never to another origin after a redirect.
 */
#ifndef TKC_NET_FETCH_H
#define TKC_NET_FETCH_H

#include <stdatomic.h>
#include "base/buf.h"

typedef struct tkc_fetcher tkc_fetcher;

typedef struct tkc_fetcher_options { /* borrowed: must outlive the fetcher */
    const char *proxy;               /* NULL = from the environment; "" = none */
    const char *ca_file;             /* NULL = the system's certificates */
    int64_t connect_ms, idle_ms;
    const atomic_bool *stop; /* set: the request ends with CANCELLED within 0.1 s */
} tkc_fetcher_options;

tkc_fetcher *tkc_fetcher_new(const tinkc_allocator *, const tkc_fetcher_options *,
                             tinkc_error *err);
void tkc_fetcher_free(tkc_fetcher *); /* NULL allowed */

typedef struct tkc_fetch tkc_fetch;
struct tkc_fetch {
    const char *method, *url;
    const char *token;          /* "Authorization: Bearer ..."; NULL = none */
    const char *const *headers; /* pairs, or NULL */
    tinkc_bytes body;           /* of POST and PUT */
    int body_fd;                /* >= 0: the body is body_size bytes of this file, from body_from */
    int64_t body_from, body_size;

    /* Callbacks for a 2xx answer; each may be NULL; without `take` the body is kept in `text`.
     * `head` is called before the first body byte. Returning false ends the request; the callback
     * sets err. */
    bool (*head)(tkc_fetch *, tinkc_error *err);
    bool (*take)(tkc_fetch *, const void *bytes, size_t len, tinkc_error *err);
    void (*sent)(tkc_fetch *, int64_t bytes); /* body bytes sent so far */
    void *user;
    size_t max_text;

    /* the answer */
    int32_t status;
    bool
        nobody_there; /* no answer: the name was not resolved, or no connection was made, TLS included */
    int64_t took_ms; /* of a request that failed: until then */
    tkc_buf text;    /* a body that `take` did not get, such as an error text; cut at max_text */
    tkc_buf pairs;   /* "name\0value\0"... of the last answer's headers */
};

/* Makes the outputs usable; end with _end. */
void tkc_fetch_init(tkc_fetch *, const tinkc_allocator *);
void tkc_fetch_end(tkc_fetch *);
/* True: an answer arrived, whatever its status. Redirects are followed. False: CONNECTION,
 * NET_TIMEOUT, BAD_RESPONSE, CANCELLED, or the error that head or take set. */
bool tkc_fetch_run(tkc_fetcher *, tkc_fetch *, tinkc_error *err);
/* A header of the answer; the name is case-insensitive. NULL = absent. */
const char *tkc_fetch_header(const tkc_fetch *, const char *name);

#endif
