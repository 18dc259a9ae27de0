/* long_requests.c - see long_requests.h. A request that is cancelled while it waits is not run; one that runs becomes
 * a stream or ends. */
#include "service/handlers/long_requests.h"

#include <stdio.h>

#include "service/core/service_state.h"
#include "service/handlers/handler_call.h"
#include "service/worker/sample_events.h"

enum { MOST_REQUESTS = 256 /* waiting or running */, N_THREADS = 2 };

typedef struct tke_deferred {
    tkc_job base;
    struct tke_deferred *next; /* in the list; its lock guards it and `cancelled` */
    bool cancelled;
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

static void run_deferred(tkc_job *base)
{
    deferred *d = (deferred *)base;
    tke_service *svc = d->call.svc;
    tinkc_reply *reply = d->call.reply;
    tke_long_requests *all = svc->long_requests;
    pthread_mutex_lock(&all->lock);
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
    pthread_mutex_lock(&all->lock);
    bool room = all->n < MOST_REQUESTS;
    all->n += room && d;
    pthread_mutex_unlock(&all->lock);
    if (!d || !room) {
        tkc_release(svc->a, d, sizeof *d);
        tke_refuse(call, room ? 503 : 429, room ? "memory" : "busy",
                   room ? "out of memory" : "Too many large requests are waiting; slow down");
        return false;
    }
    d->call = *call;
    d->handler = handler;
    d->run = run;
    d->caller = *call->caller;
    (void)snprintf(d->owner, sizeof d->owner, "%s", call->owner);
    (void)snprintf(d->key_id, sizeof d->key_id, "%s", call->caller->key_id);
    d->caller.owner = d->call.owner = d->owner;
    d->caller.key_id = d->key_id;
    d->caller.email = NULL; /* only a token exchange needs it */
    d->call.caller = &d->caller;
    tkc_arena_init(&call->arena, &svc->bodies.allocator, 0); /* the copy owns the old one */
    d->base.run = run_deferred;
    pthread_mutex_lock(&all->lock);
    d->next = all->first;
    all->first = d;
    pthread_mutex_unlock(&all->lock);
    if (!tkc_pool_submit(all->threads, &d->base, &d->call.err)) {
        d->call.err = (tinkc_error){ 0 };
        run_deferred(&d->base); /* slow on this thread, but answered */
    }
    return true;
}
