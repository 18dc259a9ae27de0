/* leaver.c - the list of threads that end by themselves, and who joins them.
 *
 * Locks: the list's, a leaf; threads are joined outside it.
 */
#include "base/leaver.h"

#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"

enum { EXIT_PATIENCE_S = 2 };

struct tkc_leaver {
    tkc_leaver *next;
    pthread_t thread;
    pid_t process; /* a forked child has the list, but not the threads */
    bool left;     /* nothing of ours runs in it any more */
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static tkc_leaver *list;
static pthread_once_t exit_handler = PTHREAD_ONCE_INIT;

/* Takes out those that have left, or all. */
static tkc_leaver *take(bool all)
{
    tkc_leaver *taken = NULL;
    pthread_mutex_lock(&list_lock);
    for (tkc_leaver **at = &list; *at;) {
        tkc_leaver *l = *at;
        if (all || l->left) {
            *at = l->next;
            l->next = taken;
            taken = l;
        } else {
            at = &l->next;
        }
    }
    pthread_mutex_unlock(&list_lock);
    return taken;
}

/* One that does not end in time is left alone, and so is its memory: it may still say that it leaves. */
static void join_all(void)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += EXIT_PATIENCE_S;
    for (tkc_leaver *l = take(true), *next; l; l = next) {
        next = l->next;
        if (l->process != getpid() || pthread_timedjoin_np(l->thread, NULL, &until) == 0)
            tkc_leaver_free(l);
    }
}

static void join_at_exit(void)
{
    (void)atexit(join_all);
}

tkc_leaver *tkc_leaver_new(pthread_t thread)
{
    tinkc_error ignored = { 0 };
    tkc_leaver *l = tkc_zalloc(NULL, sizeof *l, &ignored);
    pthread_once(&exit_handler, join_at_exit);
    if (l) {
        l->thread = thread;
        l->process = getpid();
    }
    return l;
}

void tkc_leaver_free(tkc_leaver *l)
{
    tkc_release(NULL, l, sizeof *l);
}

void tkc_leaver_expect(tkc_leaver *l)
{
    pthread_mutex_lock(&list_lock);
    l->next = list;
    list = l;
    pthread_mutex_unlock(&list_lock);
    for (tkc_leaver *gone = take(false), *next; gone; gone = next) {
        next = gone->next;
        if (gone->process == getpid())
            pthread_join(gone->thread, NULL);
        tkc_leaver_free(gone);
    }
}

void tkc_leaver_leaves(tkc_leaver *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&list_lock);
    l->left = true;
    pthread_mutex_unlock(&list_lock);
}
