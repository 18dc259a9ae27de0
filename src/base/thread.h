/* thread.h - threads, waiting with a deadline, reference counts.
 *
 * Mutexes are plain pthread_mutex_t. Conditions made here wait on the monotonic clock.
 */
#ifndef TKC_BASE_THREAD_H
#define TKC_BASE_THREAD_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include "base/err.h"

bool tkc_cond_init(pthread_cond_t *, tinkc_error *err);
/* Waits until signalled or until deadline_ns of tkc_monotonic_ns (INT64_MAX = no deadline). False
 * when the deadline has passed. May wake spuriously. */
bool tkc_cond_wait_until(pthread_cond_t *, pthread_mutex_t *, int64_t deadline_ns);
/* timeout_ms (TINKC_FOREVER allowed) from now as a deadline for the above. */
int64_t tkc_deadline_ns(int64_t timeout_ms);
/* What is left until such a deadline, as a timeout: 0 once it has passed. */
int64_t tkc_left_ms(int64_t deadline_ns);

/* Starts a thread with all signals blocked: the host's handlers run on the host's threads. `name`
 * is at most 15 bytes. */
bool tkc_thread_start(pthread_t *, void *(*run)(void *), void *arg, const char *name,
                      tinkc_error *err);

/* How many bytes of stack the calling thread has left, for code whose recursion depth depends on
 * input. SIZE_MAX if unknown (a stack that the host program set up itself). */
size_t tkc_stack_left(void);

/* Counts handles on an object. */
typedef atomic_uint tkc_refs;
static inline void tkc_ref_init(tkc_refs *r)
{
    atomic_init(r, 1u);
}
static inline void tkc_ref_keep(tkc_refs *r)
{
    unsigned before = atomic_fetch_add_explicit(r, 1u, memory_order_relaxed);
    assert(before > 0); /* only a holder may add a reference */
    (void)before;
}
/* For who finds the object in a list and has no reference yet. False: the last one is gone. */
static inline bool tkc_ref_try_keep(tkc_refs *r)
{
    unsigned now = atomic_load_explicit(r, memory_order_relaxed);
    while (now > 0)
        if (atomic_compare_exchange_weak_explicit(r, &now, now + 1, memory_order_relaxed,
                                                  memory_order_relaxed))
            return true;
    return false;
}
/* True for the last reference: the caller then frees the object. */
static inline bool tkc_ref_drop(tkc_refs *r)
{
    unsigned before = atomic_fetch_sub_explicit(r, 1u, memory_order_acq_rel);
    assert(before > 0);
    return before == 1u;
}

#endif
