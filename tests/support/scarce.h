/* scarce.h - an allocator that counts, and of which one allocation fails, or all from one on: those of a thread that the test
 * names, so that what other threads do meanwhile changes nothing. */
#ifndef TEST_SCARCE_H
#define TEST_SCARCE_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>

#include "support/counting.h"

typedef struct scarce {
    counting all; /* first: released as counting.h does it */
    pthread_t thread;
    _Atomic(const char *) name; /* threads of this name in its place, if not NULL */
    _Atomic int64_t until;      /* allocations of this thread until one fails; 0: none does */
    _Atomic bool stays;         /* once one has failed, all do, until the test says otherwise */
    _Atomic bool failed;
} scarce;

static inline bool scarce_is_meant(const scarce *s)
{
    char own[16];
    const char *name = s->name;
    if (!name)
        return pthread_equal(pthread_self(), s->thread) != 0;
    return prctl(PR_GET_NAME, own) == 0 && strcmp(own, name) == 0;
}

static inline bool scarce_is_due(scarce *s)
{
    if (!s->until || !scarce_is_meant(s))
        return false;
    if (s->failed && s->stays)
        return true;
    if (--s->until)
        return false;
    s->until = s->stays;
    s->failed = true;
    return true;
}

static inline void *scarce_alloc(size_t size, void *user)
{
    scarce *s = user;
    return scarce_is_due(s) ? NULL : counting_alloc(size, &s->all);
}

static inline void *scarce_resize(void *ptr, size_t old_size, size_t new_size, void *user)
{
    scarce *s = user;
    return scarce_is_due(s) ? NULL : counting_resize(ptr, old_size, new_size, &s->all);
}

static inline void scarce_release(void *ptr, size_t size, void *user)
{
    scarce *s = user;
    counting_release(ptr, size, &s->all);
}

static inline tinkc_allocator scarce_allocator(scarce *s)
{
    return (tinkc_allocator){ scarce_alloc, scarce_resize, scarce_release, s };
}

#endif
