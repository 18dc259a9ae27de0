/* counting.h - an allocator for a client that knows how much is out, from any thread, and how much
 * was at most. */
#ifndef TEST_COUNTING_H
#define TEST_COUNTING_H

#include <stdatomic.h>

#include "support/guarded.h"
#include "support/patience.h"
#include "tinkc/types.h"

typedef struct counting {
    atomic_size_t bytes, peak;
} counting;

static inline void counting_note(counting *c, size_t now)
{
    size_t peak = atomic_load(&c->peak);
    while (now > peak && !atomic_compare_exchange_weak(&c->peak, &peak, now))
        ;
}

static inline void *counting_alloc(size_t size, void *user)
{
    counting *c = user;
    counting_note(c, atomic_fetch_add(&c->bytes, size) + size);
    return guarded_alloc(size, NULL);
}

static inline void *counting_resize(void *ptr, size_t old_size, size_t new_size, void *user)
{
    counting *c = user;
    counting_note(c, atomic_fetch_add(&c->bytes, new_size - old_size) + new_size - old_size);
    return guarded_resize(ptr, old_size, new_size, NULL);
}

static inline void counting_release(void *ptr, size_t size, void *user)
{
    counting *c = user;
    atomic_fetch_sub(&c->bytes, size);
    guarded_release(ptr, size, NULL);
}

static inline tinkc_allocator counting_allocator(counting *c)
{
    return (tinkc_allocator){ counting_alloc, counting_resize, counting_release, c };
}

/* True once nothing is out: a client whose handles are gone ends on a thread of its own. */
static inline bool counting_is_empty_soon(counting *c)
{
    wait_until(atomic_load(&c->bytes) == 0);
    return atomic_load(&c->bytes) == 0;
}

#endif
