/* leaver.c - the threads that end by themselves, and who joins them.
 *
 * Slots are static: a thread must be able to leave without memory. Locks: the slots', a leaf; threads are joined outside it.
 */
#include "base/leaver.h"

#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 64, EXIT_PATIENCE_S = 2 };

struct tkc_leaver {
    pthread_t thread;
    pid_t process; /* a forked child has the slots, but not the threads */
    bool used, expected;
    bool left; /* nothing of ours runs in it any more */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tkc_leaver slots[SLOTS];
static pthread_once_t exit_handler = PTHREAD_ONCE_INIT;

/* Gives back what a fork has left behind, or a thread that has been joined. */
static void empty(tkc_leaver *l)
{
    pthread_mutex_lock(&lock);
    *l = (tkc_leaver){ 0 };
    pthread_mutex_unlock(&lock);
}

/* The caller joins it and empties its slot. */
static bool takes_to_join(tkc_leaver *l, bool all)
{
    pthread_mutex_lock(&lock);
    bool takes = l->expected && (all || l->left);
    if (takes)
        l->expected = false;
    pthread_mutex_unlock(&lock);
    return takes;
}

/* One that does not end in time is left alone, and so is its slot: it may still say that it leaves. */
static void join_all(void)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += EXIT_PATIENCE_S;
    for (tkc_leaver *l = slots; l < slots + SLOTS; l++)
        if (takes_to_join(l, true) && l->process == getpid())
            (void)pthread_timedjoin_np(l->thread, NULL, &until);
}

static void join_at_exit(void)
{
    (void)atexit(join_all);
}

static void join_those_that_left(void)
{
    for (tkc_leaver *l = slots; l < slots + SLOTS; l++)
        if (takes_to_join(l, false)) {
            if (l->process == getpid())
                pthread_join(l->thread, NULL);
            empty(l);
        }
}

tkc_leaver *tkc_leaver_new(pthread_t thread)
{
    tkc_leaver *free_slot = NULL;
    pthread_once(&exit_handler, join_at_exit);
    join_those_that_left();
    pthread_mutex_lock(&lock);
    for (tkc_leaver *l = slots; l < slots + SLOTS && !free_slot; l++)
        if (!l->used)
            free_slot = l;
    if (free_slot)
        *free_slot = (tkc_leaver){ .thread = thread, .process = getpid(), .used = true };
    pthread_mutex_unlock(&lock);
    return free_slot;
}

void tkc_leaver_free(tkc_leaver *l)
{
    empty(l);
}

void tkc_leaver_expect(tkc_leaver *l)
{
    pthread_mutex_lock(&lock);
    l->expected = true;
    pthread_mutex_unlock(&lock);
}

void tkc_leaver_leaves(tkc_leaver *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&lock);
    l->left = true;
    pthread_mutex_unlock(&lock);
}
