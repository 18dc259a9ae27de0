/* leave.c - who joins the threads that end by themselves.
 *
 * One place is enough: a thread that leaves takes the place of the one before and joins it. A forked child has the
 * place, but not the thread.
 *
 * Locks: the place's, a leaf; threads are joined outside it.
 */
#include "base/leave.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/platform.h"

enum { EXIT_PATIENCE_S = 5 };

static struct {
    pthread_mutex_t lock;
    pthread_t last;
    pid_t process; /* of `last`; 0 = there is none to join */
    pid_t exiting; /* the process whose exit handlers run; nobody leaves it any more */
} place = { .lock = PTHREAD_MUTEX_INITIALIZER };

static _Atomic(void (*)(void)) before_exit;
/* The process whose end is watched: a forked child must not wait for a lock that no thread of it holds. */
static atomic_int watching;

/* True: the thread in *last is the caller's to join. */
static bool take_last(pthread_t *last)
{
    bool taken = place.process == getpid();
    *last = place.last;
    place.process = 0;
    return taken;
}

/* Runs once for each time it was registered; later runs find nothing left to do. */
static void at_exit(void)
{
    void (*before)(void) = atomic_load(&before_exit);
    pthread_t last;
    if (atomic_load(&watching) != getpid())
        return;
    if (before)
        before();
    pthread_mutex_lock(&place.lock);
    place.exiting = getpid();
    bool joins = take_last(&last);
    pthread_mutex_unlock(&place.lock);
    if (joins && !pthread_equal(last, pthread_self()))
        tkc_join_within(last, EXIT_PATIENCE_S);
}

void tkc_leave_watch(void (*before)(void))
{
    if (before)
        atomic_store(&before_exit, before);
    atomic_store(&watching, getpid());
    (void)atexit(at_exit); /* without memory for it the process ends as if nobody watched */
}

void tkc_thread_leaves(void)
{
    pthread_t last;
    if (atomic_load(&watching) != getpid())
        tkc_leave_watch(NULL);
    pthread_mutex_lock(&place.lock);
    bool late = place.exiting == getpid();
    bool joins = take_last(&last);
    if (!late) {
        place.last = pthread_self();
        place.process = getpid();
    }
    pthread_mutex_unlock(&place.lock);
    if (joins)
        pthread_join(last, NULL);
    if (!late)
        return;
    pthread_detach(pthread_self());
    for (;;)
        pause();
}
