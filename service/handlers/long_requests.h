/* long_requests.h - requests that take long, on threads of their own.
 *
 * The cost of a template or a pattern depends on its author, that of unpacking and decoding on the size of the
 * body. Both are bounded, but must not block a front thread, which also serves health checks and shutdown. Owners
 * are served in turn, and one of them leaves room for others.
 *
 * Locks: its own, inside which no other is taken; hold none when you call.
 */
#ifndef TKE_SERVICE_LONG_REQUESTS_H
#define TKE_SERVICE_LONG_REQUESTS_H

#include <pthread.h>

#include "base/pool.h"
#include "service/chat/chat_paths.h"

enum { TKE_LONG_REQUESTS = 512, /* waiting or running */ TKE_LATELY_SERVED = 8 };

struct tke_long_requests {
    pthread_mutex_t lock;
    tkc_pool *threads;
    struct tke_deferred *first; /* the newest */
    size_t n;
    char served[TKE_LATELY_SERVED][64]; /* owners, the last one first */
};

bool tke_long_requests_open(tke_service *, tinkc_error *err);
/* What is queued runs first; no more is taken. */
void tke_long_requests_stop(tke_service *);
void tke_long_requests_close(tke_service *);
/* Calls run(call, handler) on one of the threads. Takes over the call, or answers it: false. */
typedef void tke_long_fn(tke_call *, tke_handle_fn *handler);
bool tke_defer(tke_call *, tke_long_fn *run, tke_handle_fn *handler);
/* Cancels a request that is queued or running there. False: it is not one. */
bool tke_deferred_cancel(tke_service *, const tinkc_reply *);

#endif
