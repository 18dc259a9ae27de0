/* completion_queue.c - carries finished futures and events to the thread that asked for them.
 *
 * The only place where user callbacks are called, always without a lock and always inside
 * tinkc_queue_run.
 * May touch: its own lock and descriptor. Items belong to others.
 * Must not:  take another lock inside its own.
 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "client/core/client_priv.h"
#include "base/platform.h"
#include "base/str.h"

enum { MAX_EVENTS = 1024 };

struct tinkc_queue {
    tinkc_client *client; /* a reference */
    tkc_wake wake;        /* readable as long as the list has items */
    tkc_refs refs;        /* the handle, futures and clients that send here, a run under way */

    pthread_mutex_t lock; /* a leaf */
    pthread_cond_t cond;
    tkc_queue_item *first, *last;
    size_t n_items, n_events;
    bool freed, woken, running;
    bool readable; /* the descriptor has been written */
    pthread_t runner;
};

tinkc_queue *tinkc_queue_new(tinkc_client *client, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_client_check(client, err))
        return NULL;
    tinkc_queue *queue = tkc_zalloc(client->a, sizeof *queue, err);
    if (!queue)
        return NULL;
    if (!tkc_wake_open(&queue->wake)) {
        tkc_fail_errno(err, "queue descriptor");
        goto no_fd;
    }
    if (!tkc_cond_init(&queue->cond, err))
        goto no_cond;
    pthread_mutex_init(&queue->lock, NULL);
    tkc_ref_init(&queue->refs);
    queue->client = client;
    tkc_client_keep(client);
    return queue;

no_cond:
    tkc_wake_close(&queue->wake);
no_fd:
    tkc_release(client->a, queue, sizeof *queue);
    return NULL;
}

void tkc_queue_keep(tinkc_queue *queue)
{
    tkc_ref_keep(&queue->refs);
}

void tkc_queue_drop(tinkc_queue *queue)
{
    if (!tkc_ref_drop(&queue->refs))
        return;
    tinkc_client *client = queue->client;
    assert(!queue->running);
    tkc_wake_close(&queue->wake);
    pthread_cond_destroy(&queue->cond);
    pthread_mutex_destroy(&queue->lock);
    tkc_release(client->a, queue, sizeof *queue);
    tkc_client_drop(client);
}

int tinkc_queue_fd(const tinkc_queue *queue)
{
    return queue ? queue->wake.fd : -1;
}

/* Keeps the descriptor in step with the list. Needs the lock. */
static void show_state(tinkc_queue *queue)
{
    bool should = queue->first != NULL;
    if (should == queue->readable)
        return;
    if (should)
        tkc_wake_set(&queue->wake);
    else
        tkc_wake_clear(&queue->wake);
    queue->readable = should;
}

/* Needs the lock. */
static void unlink_item(tinkc_queue *queue, tkc_queue_item *item)
{
    assert(item->queued && queue->n_items > 0 && (!item->is_event || queue->n_events > 0));
    assert((item->prev ? item->prev->next : queue->first) == item);
    if (item->prev)
        item->prev->next = item->next;
    else
        queue->first = item->next;
    if (item->next)
        item->next->prev = item->prev;
    else
        queue->last = item->prev;
    item->next = item->prev = NULL;
    item->queued = false;
    queue->n_items--;
    if (item->is_event)
        queue->n_events--;
}

/* Needs the lock. The oldest event if there are too many, unlinked; NULL else. */
static tkc_queue_item *surplus_event(tinkc_queue *queue)
{
    /* A reader who never comes must not fill the memory with events; completions are never
     * dropped. */
    if (queue->n_events <= MAX_EVENTS)
        return NULL;
    tkc_queue_item *item = queue->first;
    while (item && !item->is_event)
        item = item->next;
    if (item)
        unlink_item(queue, item);
    return item;
}

bool tkc_queue_push(tinkc_queue *queue, tkc_queue_item *item)
{
    tkc_queue_item *surplus = NULL;
    assert(item->run);
    pthread_mutex_lock(&queue->lock);
    bool open = !queue->freed;
    if (open && !item->queued) {
        item->prev = queue->last; /* next is NULL outside of the list */
        if (queue->last)
            queue->last->next = item;
        else
            queue->first = item;
        queue->last = item;
        item->queued = true;
        queue->n_items++;
        if (item->is_event) {
            queue->n_events++;
            surplus = surplus_event(queue);
        }
        show_state(queue);
        pthread_cond_signal(&queue->cond);
    }
    pthread_mutex_unlock(&queue->lock);
    /* Not under the lock: it may drop the last reference of a future or a client. */
    if (surplus && surplus->drop)
        surplus->drop(surplus);
    return open;
}

bool tkc_queue_remove(tinkc_queue *queue, tkc_queue_item *item)
{
    pthread_mutex_lock(&queue->lock);
    bool was = item->queued;
    if (was) {
        unlink_item(queue, item);
        show_state(queue);
    }
    pthread_mutex_unlock(&queue->lock);
    return was;
}

void tinkc_queue_wake(tinkc_queue *queue)
{
    if (!queue || tkc_client_forked(queue->client))
        return;
    pthread_mutex_lock(&queue->lock);
    queue->woken = true;
    pthread_cond_signal(&queue->cond);
    pthread_mutex_unlock(&queue->lock);
}

/* Waits for the first item. Needs the lock. Returns how many to run. */
static size_t await_items(tinkc_queue *queue, int64_t timeout_ms)
{
    int64_t deadline = tkc_deadline_ns(timeout_ms);
    while (!queue->first && !queue->freed && !queue->woken && timeout_ms != 0)
        if (!tkc_cond_wait_until(&queue->cond, &queue->lock, deadline))
            break;
    queue->woken = false;
    return queue->n_items;
}

/* One run at a time: the callbacks of a queue never run side by side. */
static bool begin_run(tinkc_queue *queue, tinkc_error *err)
{
    if (queue->running)
        return tkc_fail(err, TINKC_E_THREAD, "queue: is being run already%s",
                        pthread_equal(queue->runner, pthread_self()) ? ", around this very call"
                                                                     : " by another thread");
    queue->running = true;
    queue->runner = pthread_self();
    return true;
}

size_t tinkc_queue_run(tinkc_queue *queue, int64_t timeout_ms, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return 0;
    if (!queue) {
        tkc_fail(err, TINKC_E_ARGUMENT, "queue: must not be NULL");
        return 0;
    }
    if (!tkc_client_check(queue->client, err) || !tkc_client_check_waits(queue->client, err))
        return 0;
    size_t ran = 0;
    /* A callback may free the queue. */
    tkc_queue_keep(queue);
    pthread_mutex_lock(&queue->lock);
    if (begin_run(queue, err)) {
        /* No more than there are now: what callbacks line up waits for the next run, so that
         * this one ends. */
        size_t n = await_items(queue, timeout_ms);
        while (ran < n && queue->first && !queue->freed) {
            tkc_queue_item *item = queue->first;
            unlink_item(queue, item);
            show_state(queue);
            pthread_mutex_unlock(&queue->lock);
            item->run(item);
            ran++;
            pthread_mutex_lock(&queue->lock);
        }
        queue->running = false;
    }
    pthread_mutex_unlock(&queue->lock);
    tkc_queue_drop(queue);
    return ran;
}

/* The client keeps the queue it sends events to, the queue keeps its client: cut that ring. */
static void leave_client(tinkc_queue *queue)
{
    tinkc_client *client = queue->client;
    pthread_mutex_lock(&client->shared.lock);
    bool bound = client->shared.events.queue == queue;
    if (bound)
        client->shared.events = (tkc_event_receiver){ 0 };
    pthread_mutex_unlock(&client->shared.lock);
    if (bound)
        tkc_queue_drop(queue);
}

void tinkc_queue_free(tinkc_queue *queue)
{
    if (!queue || tkc_client_forked(queue->client))
        return;
    leave_client(queue);
    pthread_mutex_lock(&queue->lock);
    queue->freed = true; /* takes nothing more */
    pthread_cond_broadcast(&queue->cond);
    while (queue->first) {
        /* One by one: as soon as an item is off the list, its owner may put it on another. */
        tkc_queue_item *item = queue->first;
        unlink_item(queue, item);
        pthread_mutex_unlock(&queue->lock);
        if (item->drop)
            item->drop(item);
        pthread_mutex_lock(&queue->lock);
    }
    assert(queue->n_items == 0 && queue->n_events == 0 && !queue->last);
    pthread_mutex_unlock(&queue->lock);
    tkc_queue_drop(queue);
}

/* ---- events ---- */

typedef struct event_item {
    tkc_queue_item item;
    const tinkc_allocator *a;
    size_t size;
    tinkc_future *f;      /* a reference; NULL = of the client */
    tinkc_client *client; /* a reference; NULL = of the future */
    tinkc_event event;
    char texts[];
} event_item;

static void free_event(event_item *e)
{
    tinkc_future *f = e->f;
    tinkc_client *client = e->client;
    tkc_release(e->a, e, e->size);
    if (f)
        tkc_future_drop(f);
    if (client)
        tkc_client_drop(client);
}

static void drop_event(tkc_queue_item *item)
{
    free_event(TKC_OWNER(item, event_item, item));
}

/* The receiver is looked up now: one that was taken away meanwhile gets nothing more. */
static void run_event(tkc_queue_item *item)
{
    event_item *e = TKC_OWNER(item, event_item, item);
    pthread_mutex_t *lock = e->f ? &e->f->shared.lock : &e->client->shared.lock;
    pthread_mutex_lock(lock);
    tkc_event_receiver to = e->f ? e->f->shared.events : e->client->shared.events;
    pthread_mutex_unlock(lock);
    if (to.fn)
        to.fn(&e->event, to.user);
    free_event(e);
}

static const char *put_text(char **at, const char *text)
{
    char *to = *at;
    size_t size = strlen(text ? text : "") + 1;
    memcpy(to, text ? text : "", size);
    *at += size;
    return to;
}

static void send_event(tinkc_client *client, tinkc_future *f, tinkc_queue *queue,
                       const tinkc_event *event)
{
    const char *texts[4] = { event->operation, event->request, event->request_id, event->text };
    size_t size = sizeof(event_item);
    for (size_t i = 0; i < 4; i++)
        size += strlen(texts[i] ? texts[i] : "") + 1;
    tinkc_error ignored = { 0 };
    event_item *e = tkc_zalloc(client->a, size, &ignored);
    if (!e)
        return;
    e->a = client->a;
    e->size = size;
    e->event = *event;
    char *at = e->texts;
    e->event.operation = put_text(&at, texts[0]);
    e->event.request = put_text(&at, texts[1]);
    e->event.request_id = put_text(&at, texts[2]);
    char *text = (char *)put_text(&at, texts[3]);
    /* A service's complaint may quote the key that was sent. */
    tkc_redact(text, strlen(text));
    e->event.text = text;
    e->item = (tkc_queue_item){ .run = run_event, .drop = drop_event, .is_event = true };
    if (f) {
        e->f = f;
        tkc_future_keep(f);
    } else {
        e->client = client;
        tkc_client_keep(client);
    }
    if (!tkc_queue_push(queue, &e->item))
        free_event(e);
}

void tkc_emit(tinkc_client *client, tinkc_future *f, const tinkc_event *event)
{
    tinkc_event full = *event;
    if (!full.operation)
        full.operation = f ? f->class->operation : "";
    tinkc_queue *queue = NULL;
    if (f) {
        pthread_mutex_lock(&f->shared.lock);
        assert(!f->shared.events.mask || f->shared.events.queue);
        if (f->shared.events.mask & event->kind) {
            queue = f->shared.events.queue;
            tkc_queue_keep(queue);
        }
        if (!full.request_id)
            full.request_id = f->shared.request_id;
        pthread_mutex_unlock(&f->shared.lock);
    }
    if (queue) {
        send_event(client, f, queue, &full);
        tkc_queue_drop(queue);
    }
    /* The client's listener gets the events of its futures as well. */
    queue = NULL;
    pthread_mutex_lock(&client->shared.lock);
    assert(!client->shared.events.mask || client->shared.events.queue);
    if (client->shared.events.mask & event->kind) {
        queue = client->shared.events.queue;
        tkc_queue_keep(queue);
    }
    pthread_mutex_unlock(&client->shared.lock);
    if (queue) {
        send_event(client, NULL, queue, &full);
        tkc_queue_drop(queue);
    }
}

bool tkc_events_receive(tkc_event_receiver *receiver, pthread_mutex_t *lock, tkc_event_receiver to,
                        tinkc_error *err)
{
    bool on = to.fn && to.mask;
    if (on && !to.queue)
        return tkc_fail(err, TINKC_E_ARGUMENT, "queue: must not be NULL");
    if (on)
        tkc_queue_keep(to.queue);
    pthread_mutex_lock(lock);
    tinkc_queue *old = receiver->queue;
    *receiver = on ? to : (tkc_event_receiver){ 0 };
    pthread_mutex_unlock(lock);
    /* Without the lock: it may be the last reference, whose end takes locks of its own. */
    if (old)
        tkc_queue_drop(old);
    return true;
}

bool tinkc_client_on_event(tinkc_client *client, tinkc_queue *queue, uint32_t mask,
                           tinkc_event_fn *fn, void *user, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_client_check(client, err))
        return false;
    return tkc_events_receive(&client->shared.events, &client->shared.lock,
                              (tkc_event_receiver){ queue, fn, user, mask }, err);
}
