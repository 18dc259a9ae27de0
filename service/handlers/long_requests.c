/* long_requests.c - see long_requests.h. A request that is cancelled while it waits is not run; one that runs becomes
 * a stream or ends. */
#include "service/handlers/long_requests.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "service/core/service_state.h"
#include "service/handlers/handler_call.h"
#include "service/worker/sample_events.h"

enum { N_THREADS = 2 };

typedef struct tke_deferred {
    struct tke_deferred *next; /* in the list; its lock guards it, `taken` and `cancelled` */
    bool taken, cancelled;
    tke_call call;
    tke_caller caller;
    char owner[64], key_id[TKE_KEY_ID];
    tke_long_fn *run;
    tke_handle_fn *handler;
} deferred;

bool tke_long_requests_open(tke_service *svc, tinkc_error *err)
{
    tke_long_requests *all = svc->long_requests = tkc_zalloc(svc->a, sizeof *all, err);
    if (!all)
        return false;
    pthread_mutex_init(&all->lock, NULL);
    all->threads = tkc_pool_new(svc->a, N_THREADS, "tinkc-texts", err);
    return all->threads != NULL;
}

void tke_long_requests_stop(tke_service *svc)
{
    tkc_pool_free(svc->long_requests->threads);
    svc->long_requests->threads = NULL;
}

void tke_long_requests_close(tke_service *svc)
{
    if (!svc->long_requests)
        return;
    tke_long_requests_stop(svc);
    pthread_mutex_destroy(&svc->long_requests->lock);
    tkc_release(svc->a, svc->long_requests, sizeof *svc->long_requests);
}

/* ---- whose turn it is; needs the lock ---- */

/* 0 = not among those that were served last; else more for the later ones. */
static size_t lately(const tke_long_requests *all, const char *owner)
{
    for (size_t i = 0; i < TKE_LATELY_SERVED; i++)
        if (strcmp(all->served[i], owner) == 0)
            return TKE_LATELY_SERVED - i;
    return 0;
}

static void note_served(tke_long_requests *all, const char *owner)
{
    size_t rank = lately(all, owner), at = rank ? TKE_LATELY_SERVED - rank : TKE_LATELY_SERVED - 1;
    memmove(all->served[1], all->served[0], at * sizeof *all->served);
    (void)snprintf(all->served[0], sizeof *all->served, "%s", owner);
}

/* The oldest of the owner that was served longest ago. */
static deferred *take_next(tke_long_requests *all)
{
    deferred *best = NULL;
    size_t rank = 0;
    for (deferred *d = all->first; d; d = d->next) {
        size_t its = d->taken ? SIZE_MAX : lately(all, d->owner);
        /* The list has the newest first, so on equal rank the later one in it is the older. */
        if (!d->taken && (!best || its <= rank)) {
            best = d;
            rank = its;
        }
    }
    assert(best); /* there is a ticket for each */
    best->taken = true;
    note_served(all, best->owner);
    return best;
}

/* An owner may have half of what others leave. */
static bool has_room(const tke_long_requests *all, const char *owner)
{
    size_t own = 0;
    for (const deferred *d = all->first; d; d = d->next)
        own += strcmp(d->owner, owner) == 0;
    return own < (TKE_LONG_REQUESTS - (all->n - own)) / 2;
}

/* ---- running ---- */

/* Each request brings one to the pool; whose request it is used for is decided when its turn comes. */
typedef struct ticket {
    tkc_job base;
    tke_service *svc;
} ticket;

static void run_one(tkc_job *base)
{
    tke_service *svc = ((ticket *)base)->svc;
    tke_long_requests *all = svc->long_requests;
    tkc_release(svc->a, base, sizeof(ticket));
    pthread_mutex_lock(&all->lock);
    deferred *d = take_next(all);
    tinkc_reply *reply = d->call.reply;
    bool wanted = !d->cancelled;
    pthread_mutex_unlock(&all->lock);
    if (wanted)
        d->run(&d->call, d->handler);
    else
        reply->fail(reply, TINKC_E_CONNECTION, "the request was cancelled");
    pthread_mutex_lock(&all->lock);
    deferred **at = &all->first;
    while (*at != d)
        at = &(*at)->next;
    *at = d->next;
    all->n--;
    bool late = wanted && d->cancelled; /* while the handler ran */
    pthread_mutex_unlock(&all->lock);
    if (late)
        tke_stream_cancel(svc, reply);
    tkc_arena_free(&d->call.arena);
    tkc_release(svc->a, d, sizeof *d);
}

bool tke_deferred_cancel(tke_service *svc, const tinkc_reply *reply)
{
    tke_long_requests *all = svc->long_requests;
    bool found = false;
    pthread_mutex_lock(&all->lock);
    for (deferred *d = all->first; d && !found; d = d->next)
        if (d->call.reply == reply)
            found = d->cancelled = true;
    pthread_mutex_unlock(&all->lock);
    return found;
}

bool tke_defer(tke_call *call, tke_long_fn *run, tke_handle_fn *handler)
{
    tke_service *svc = call->svc;
    tke_long_requests *all = svc->long_requests;
    deferred *d = tkc_zalloc(svc->a, sizeof *d, &call->err);
    ticket *t = tkc_zalloc(svc->a, sizeof *t, &call->err);
    pthread_mutex_lock(&all->lock);
    bool room = has_room(all, call->owner);
    /* Counted at once under the lock that it was checked under; it is listed below, when it is
     * complete. */
    all->n += room && d && t;
    pthread_mutex_unlock(&all->lock);
    if (!d || !t || !room) {
        tkc_release(svc->a, d, sizeof *d);
        tkc_release(svc->a, t, sizeof *t);
        tke_refuse(call, room ? 503 : 429, room ? "memory" : "busy",
                   room ? "out of memory" : "Too many large requests are waiting; slow down");
        return false;
    }
    d->call = *call;
    d->handler = handler;
    d->run = run;
    /* Copied: the caller's record is on the stack of the thread that hands the request over. */
    d->caller = *call->caller;
    (void)snprintf(d->owner, sizeof d->owner, "%s", call->owner);
    (void)snprintf(d->key_id, sizeof d->key_id, "%s", call->caller->key_id);
    d->caller.owner = d->call.owner = d->owner;
    d->caller.key_id = d->key_id;
    d->caller.email = NULL; /* only a token exchange needs it */
    d->call.caller = &d->caller;
    tkc_arena_init(&call->arena, &svc->bodies.allocator, 0); /* the copy owns the old one */
    *t = (ticket){ .base = { .run = run_one }, .svc = svc };
    pthread_mutex_lock(&all->lock);
    d->next = all->first;
    all->first = d;
    pthread_mutex_unlock(&all->lock);
    tinkc_error no_thread = { 0 };
    if (!tkc_pool_submit(all->threads, &t->base, &no_thread))
        run_one(&t->base); /* slow on this thread, but answered */
    return true;
}
