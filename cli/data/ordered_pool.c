/* ordered_pool.c - a ring of pieces between the threads that work and the one that delivers.
 *
 * Touches only its ring. Must not: call anything of the caller's under the lock but `take`,
 * which is short.
 */
#include "cli/data/ordered_pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/platform.h"

enum { MOST_THREADS = 64, PIECES_EACH = 4 };

typedef struct team {
    const cli_inorder *what;
    pthread_mutex_t lock; /* all below it needs it; a piece itself is its worker's, then ours */
    pthread_cond_t changed;
    unsigned char *ring; /* piece i is at i % slots */
    bool *done;          /* likewise */
    size_t slots, taken, delivered;
    bool over; /* there is no more to take */
} team;

static void *piece_at(const team *t, size_t i)
{
    return t->ring + i % t->slots * t->what->size;
}

/* The next piece, once there is room for it; false = there is no more. The lock is held. */
static bool take_next(team *t, size_t *i)
{
    while (!t->over && t->taken - t->delivered == t->slots)
        pthread_cond_wait(&t->changed, &t->lock);
    if (t->over)
        return false;
    *i = t->taken;
    memset(piece_at(t, *i), 0, t->what->size);
    if (!t->what->take(piece_at(t, *i), t->what->user)) {
        t->over = true;
        pthread_cond_broadcast(&t->changed);
        return false;
    }
    t->done[*i % t->slots] = false;
    t->taken++;
    return true;
}

static void *work(void *arg)
{
    team *t = arg;
    size_t i;
    pthread_mutex_lock(&t->lock);
    while (take_next(t, &i)) {
        pthread_mutex_unlock(&t->lock);
        t->what->work(piece_at(t, i), t->what->user);
        pthread_mutex_lock(&t->lock);
        t->done[i % t->slots] = true;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static void deliver_all(team *t)
{
    pthread_mutex_lock(&t->lock);
    while (!t->over || t->delivered < t->taken) {
        size_t i = t->delivered;
        if (i == t->taken || !t->done[i % t->slots]) {
            pthread_cond_wait(&t->changed, &t->lock);
            continue;
        }
        pthread_mutex_unlock(&t->lock);
        t->what->deliver(piece_at(t, i), t->what->user);
        pthread_mutex_lock(&t->lock);
        t->delivered++;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
}

static bool run_alone(const cli_inorder *what)
{
    void *piece = calloc(1, what->size);
    while (piece && what->take(piece, what->user)) {
        what->work(piece, what->user);
        what->deliver(piece, what->user);
        memset(piece, 0, what->size);
    }
    free(piece);
    return piece != NULL;
}

/* Signals are the business of the thread that was there before. */
static size_t start(team *t, pthread_t *threads, size_t wanted)
{
    sigset_t all, before;
    size_t n = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (n < wanted && pthread_create(&threads[n], NULL, work, t) == 0)
        n++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return n;
}

bool cli_inorder_run(const cli_inorder *what, size_t threads)
{
    bool ok = true;
    pthread_t started[MOST_THREADS];
    size_t wanted = threads < MOST_THREADS ? threads : MOST_THREADS, n = 0;
    team t = { .what = what, .slots = wanted * PIECES_EACH };
    if (wanted > 1) {
        t.ring = calloc(t.slots, what->size);
        t.done = calloc(t.slots, sizeof *t.done);
    }
    pthread_mutex_init(&t.lock, NULL);
    pthread_cond_init(&t.changed, NULL);
    if (t.ring && t.done)
        n = start(&t, started, wanted);
    if (n)
        deliver_all(&t);
    else
        ok = run_alone(what);
    while (n > 0)
        pthread_join(started[--n], NULL);
    pthread_cond_destroy(&t.changed);
    pthread_mutex_destroy(&t.lock);
    free(t.ring);
    free(t.done);
    return ok;
}

size_t cli_cores(void)
{
    return (size_t)tkc_cpu_count();
}
