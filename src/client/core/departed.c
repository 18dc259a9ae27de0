/* departed.c - the list of departed clients, and what is done with it at exit.
 *
 * A client is in the list from tinkc_client_free until its last reference is dropped; from then until it is freed it
 * counts as ending. The exit handler takes the clients out one by one, with a reference, so none of them can be freed
 * by its I/O thread any more; then it waits for those that are ending.
 *
 * Locks: the list's, before refs are counted, never with another lock of ours inside it. A forked child has no I/O
 * threads, so it starts with an empty list.
 */
#include "client/core/departed.h"

#include <assert.h>
#include <unistd.h>

#include "base/leave.h"

enum { EXIT_PATIENCE_MS = 5000 };

struct of_process {
    pid_t id;
    tinkc_client *first;
    size_t ending;
    bool exiting;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t none_ends;
    pthread_once_t once;
    struct of_process now; /* what a forked child begins again with */
} departed = { .lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT };

static void make_cond(void)
{
    tinkc_error ignored = { 0 };
    (void)tkc_cond_init(&departed.none_ends, &ignored);
}

static void at_exit(void);

static void list_lock(void)
{
    pthread_once(&departed.once, make_cond);
    pthread_mutex_lock(&departed.lock);
    if (departed.now.id == getpid())
        return;
    departed.now = (struct of_process){ .id = getpid() };
    tkc_leave_watch(at_exit);
}

/* Needs the lock. */
static void take_out(tinkc_client *client)
{
    for (tinkc_client **at = &departed.now.first; *at; at = &(*at)->departed_next)
        if (*at == client) {
            *at = client->departed_next;
            break;
        }
}

/* A client out of the list, with a reference. Those without any are about to leave it. Needs the lock. */
static tinkc_client *take_one(void)
{
    tinkc_client *client = departed.now.first;
    while (client && !tkc_ref_try_keep(&client->refs))
        client = client->departed_next;
    if (client)
        take_out(client);
    return client;
}

static void at_exit(void)
{
    tinkc_client *client;
    int64_t deadline = tkc_deadline_ns(EXIT_PATIENCE_MS);
    list_lock();
    departed.now.exiting = true;
    while ((client = take_one())) {
        /* Without the lock: the end of a client waits for its thread, and both take the lock on
         * their way. */
        pthread_mutex_unlock(&departed.lock);
        tkc_client_end_now(client);
        tkc_client_drop(client);
        pthread_mutex_lock(&departed.lock);
    }
    /* Not forever: a transport that never ends its replies must not keep the process from
     * exiting. */
    while (departed.now.ending > 0)
        if (!tkc_cond_wait_until(&departed.none_ends, &departed.lock, deadline))
            break;
    pthread_mutex_unlock(&departed.lock);
}

void tkc_departed_watch(void)
{
    list_lock();
    pthread_mutex_unlock(&departed.lock);
}

void tkc_departed_add(tinkc_client *client)
{
    list_lock();
    bool late = departed.now.exiting;
    if (!late) {
        client->departed_next = departed.now.first;
        departed.now.first = client;
    }
    pthread_mutex_unlock(&departed.lock);
    if (late)
        tkc_client_end_now(client);
}

void tkc_departed_ending(tinkc_client *client)
{
    list_lock();
    take_out(client);
    departed.now.ending++;
    pthread_mutex_unlock(&departed.lock);
}

void tkc_departed_ended(void)
{
    list_lock();
    assert(departed.now.ending > 0);
    if (--departed.now.ending == 0)
        pthread_cond_broadcast(&departed.none_ends);
    pthread_mutex_unlock(&departed.lock);
}
