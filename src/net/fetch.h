/* fetch.h - one HTTP request at a time, on the thread that asks: for transfers that are not the
 * service's.
 *
 * May be used from any thread that may wait, one fetcher each; connections are kept between
 * requests. A token goes to the origin of the request alone, never along a redirect to another one.
 */
#ifndef TKC_NET_FETCH_H
#define TKC_NET_FETCH_H

#include <stdatomic.h>
#include "base/buf.h"

typedef struct tkc_fetcher tkc_fetcher;

typedef struct tkc_fetcher_options { /* borrowed: must outlive the fetcher */
    const char *proxy;               /* NULL = the environment's; "" = none */
    const char *ca_file;             /* NULL = the system's */
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

    /* A 2xx answer goes here; each may be NULL, and then the body is kept in `text`. `head` sees
     * the answer before its first byte. False: the rest is not wanted, and err is theirs to set. */
    bool (*head)(tkc_fetch *, tinkc_error *err);
    bool (*take)(tkc_fetch *, const void *bytes, size_t len, tinkc_error *err);
    void (*sent)(tkc_fetch *, int64_t bytes); /* of the body, since the request began */
    void *user;
    size_t max_text;

    /* the answer */
    int32_t status;
    tkc_buf text;  /* the body that was not taken: texts of errors, cut at max_text */
    tkc_buf pairs; /* "name\0value\0"... of the last answer's headers */
};

/* Makes the outputs usable; end with _end. */
void tkc_fetch_init(tkc_fetch *, const tinkc_allocator *);
void tkc_fetch_end(tkc_fetch *);
/* True: an answer came, whatever its status. Redirects are followed. False: CONNECTION,
 * NET_TIMEOUT, BAD_RESPONSE, CANCELLED, or what head and take say. */
bool tkc_fetch_run(tkc_fetcher *, tkc_fetch *, tinkc_error *err);
/* A header of the answer, by its name in any case; NULL = it has none. */
const char *tkc_fetch_header(const tkc_fetch *, const char *name);

#endif
