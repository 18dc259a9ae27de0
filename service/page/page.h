/* page.h - what a browser sees: the page itself, runs from log directories, live events.
 *
 *     GET /, /ui                    the page
 *     GET /ui/NAME                  its scripts and styles
 *     GET /ui/events                server-sent events: hello, runs, run, status
 *     GET /ui/runs/ID/FILE?from=N   rows of metrics, checkpoints or samples from byte N on; config;
 *                                   the end of the log
 *
 * Requests are HTTP-shaped, as the service's are. The page has one thread, which reads files and
 * writes events; callers only queue, so a slow disk or a slow reader blocks nothing else. Both
 * queues are bounded. Knows neither the service nor sockets: a callback provides the engine's
 * status.
 */
#ifndef TKE_PAGE_PAGE_H
#define TKE_PAGE_PAGE_H

#include "base/buf.h"
#include "tinkc/sys/transport.h"

typedef struct tke_page tke_page;

/* Writes the engine's state as JSON, for this owner. */
typedef bool tke_page_status_fn(void *user, const char *owner, tkc_buf *out, tinkc_error *err);

typedef struct tke_page_options {
    const tinkc_allocator *a;
    const char *const *log_dirs; /* list; NULL = none */
    tke_page_status_fn *status;
    void *status_user;
    bool chat; /* OpenAI's requests are served below /ui/v1/ */
    bool keys; /* a key is needed */
} tke_page_options;

tke_page *tke_page_new(const tke_page_options *, tinkc_error *err);
/* All its replies must have ended. Waits for the thread. NULL allowed. */
void tke_page_free(tke_page *);

/* Is this path one of the page's? "/ui/v1/..." is not: it belongs to the service. */
bool tke_page_owns(const char *uri);
/* Needs no key: the page and its scripts, which hold no data. */
bool tke_page_is_public(const char *uri);
/* Is it a stream, which lasts until it is cancelled? */
bool tke_page_is_stream(const char *uri);

/* Borrows the request until the reply has ended; never waits. owner is copied. */
void tke_page_handle(tke_page *, const tinkc_request *, tinkc_reply *, const char *owner);
/* Cancels the answer, which ends soon. */
void tke_page_cancel(tke_page *, const tinkc_reply *);

#endif
