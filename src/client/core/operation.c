/* operation.c - operations: their life from the call that makes them to the one completion.
 *
 * May touch: the client's list of running operations (I/O thread), futures under their lock.
 * Must not:  know what any operation does.
 */
#include "client/core/operation.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "client/core/client_priv.h"
#include "client/core/telemetry.h"
#include "base/str.h"

static void stop_op(tinkc_future *f, const tinkc_error *why)
{
    assert(tkc_loop_is_current(f->client->loop));
    /* It may have completed earlier in the same round. */
    if (!tkc_op_is_done(f))
        f->class->stop(f, why);
}

static void list_op(tinkc_future *f)
{
    tinkc_client *client = f->client;
    assert(!f->io.listed && !f->io.prev && !f->io.next);
    f->io.next = client->io.ops;
    if (f->io.next)
        f->io.next->io.prev = f;
    client->io.ops = f;
    f->io.listed = true;
}

static void unlist_op(tinkc_future *f)
{
    if (!f->io.listed)
        return;
    assert((f->io.prev ? f->io.prev->io.next : f->client->io.ops) == f);
    if (f->io.prev)
        f->io.prev->io.next = f->io.next;
    else
        f->client->io.ops = f->io.next;
    if (f->io.next)
        f->io.next->io.prev = f->io.prev;
    f->io.listed = false; /* for good: an operation starts once */
}

static void limit_fired(tkc_timer *timer)
{
    tinkc_future *f = TKC_OWNER(timer, tinkc_future, io.limit_timer);
    tinkc_error why = { 0 };
    tkc_fail(&why, TINKC_E_DEADLINE, "%s: not complete within its time", f->class->operation);
    stop_op(f, &why);
}

static void arm_limit(tinkc_future *f, int64_t at_ms)
{
    tkc_loop *loop = f->client->loop;
    if (at_ms == INT64_MAX)
        tkc_loop_disarm(loop, &f->io.limit_timer);
    else {
        int64_t left = at_ms - tkc_loop_now_ms(loop);
        tkc_loop_arm(loop, &f->io.limit_timer, left > 0 ? left : 0);
    }
}

/* Cancelled, or given another limit. */
static void run_control(tkc_task *task)
{
    tinkc_future *f = TKC_OWNER(task, tinkc_future, io.control_task);
    pthread_mutex_lock(&f->shared.lock);
    f->shared.control_posted = false;
    bool cancel = f->shared.cancel, limit = f->shared.limit_set, done = f->shared.done;
    int64_t at_ms = f->shared.limit_at_ms;
    pthread_mutex_unlock(&f->shared.lock);
    if (!done && limit)
        arm_limit(f, at_ms);
    if (!done && cancel) {
        tinkc_error why = { 0 };
        tkc_fail(&why, TINKC_E_CANCELLED, "%s: cancelled", f->class->operation);
        stop_op(f, &why);
    }
    tkc_future_drop(f);
}

static void run_start(tkc_task *task)
{
    tinkc_future *f = TKC_OWNER(task, tinkc_future, io.start_task);
    tinkc_client *client = f->client;
    assert(tkc_loop_is_current(client->loop) && !client->io.ended); /* a close is posted after it */
    list_op(f);
    pthread_mutex_lock(&f->shared.lock);
    bool limit = f->shared.limit_set, cancel = f->shared.cancel;
    int64_t at_ms = f->shared.limit_at_ms;
    pthread_mutex_unlock(&f->shared.lock);
    if (cancel) {
        tinkc_error why = { 0 };
        tkc_fail(&why, TINKC_E_CANCELLED, "%s: cancelled", f->class->operation);
        stop_op(f, &why);
        return;
    }
    if (limit)
        arm_limit(f, at_ms);
    else if (client->operation_timeout_ms > 0)
        tkc_loop_arm(client->loop, &f->io.limit_timer, client->operation_timeout_ms);
    f->class->start(f);
}

static void run_done_fn(tkc_queue_item *item)
{
    tinkc_future *f = TKC_OWNER(item, tinkc_future, done_item);
    pthread_mutex_lock(&f->shared.lock);
    tinkc_done_fn *fn = f->shared.done_fn;
    void *user = f->shared.done_user;
    pthread_mutex_unlock(&f->shared.lock);
    if (fn)
        fn(f, user);
    tkc_future_drop(f);
}

static void drop_done_fn(tkc_queue_item *item)
{
    tkc_future_drop(TKC_OWNER(item, tinkc_future, done_item));
}

/* Makes the object; refs 1. */
static tinkc_future *new_future(tinkc_client *client, const tkc_op_class *class, tinkc_error *err)
{
    size_t size = class->size ? class->size : sizeof(tinkc_future);
    assert(size >= sizeof(tinkc_future) && class->operation && class->kind);
    assert(class->start && class->stop);
    tinkc_future *f = tkc_zalloc(client->a, size, err);
    if (!f)
        return NULL;
    if (!tkc_cond_init(&f->shared.cond, err)) {
        tkc_release(client->a, f, size);
        return NULL;
    }
    pthread_mutex_init(&f->shared.lock, NULL);
    f->class = class;
    f->client = client;
    tkc_client_keep(client);
    tkc_ref_init(&f->refs);
    tkc_arena_init(&f->arena, client->a, 0);
    f->shared.progress_total = 1;
    f->io.start_task.run = run_start;
    f->io.control_task.run = run_control;
    f->io.limit_timer.fire = limit_fired;
    f->done_item.run = run_done_fn;
    f->done_item.drop = drop_done_fn;
    return f;
}

tinkc_future *tkc_op_new(tinkc_client *client, const tkc_op_class *class, tinkc_error *err)
{
    return tkc_client_check_open(client, err) ? new_future(client, class, err) : NULL;
}

bool tkc_op_try_submit(tinkc_future *f)
{
    tinkc_client *client = f->client;
    /* Held until the start is posted: a close that comes next is posted behind it. */
    pthread_mutex_lock(&client->shared.lock);
    bool closed = client->shared.closed;
    if (!closed) {
        client->shared.running++;
        pthread_mutex_lock(&f->shared.lock);
        assert(!f->shared.submitted && !f->shared.done);
        f->shared.submitted = true;
        pthread_mutex_unlock(&f->shared.lock);
        tkc_future_keep(f);
        tkc_loop_post(client->loop, &f->io.start_task);
    }
    pthread_mutex_unlock(&client->shared.lock);
    if (closed) {
        tinkc_error why = { 0 };
        tkc_fail(&why, TINKC_E_CLOSED, "%s: the client was closed", f->class->operation);
        tkc_op_complete(f, &why);
    }
    return !closed;
}

tinkc_future *tkc_op_submit(tinkc_future *f)
{
    (void)tkc_op_try_submit(f);
    return f;
}

/* Lines the callback up. Needs f->shared.lock, a completed future and a receiver. */
static void push_done(tinkc_future *f)
{
    assert(f->shared.done && f->shared.done_fn && f->shared.done_queue);
    tkc_future_keep(f);
    if (!tkc_queue_push(f->shared.done_queue, &f->done_item))
        tkc_future_drop(f); /* not the last: the caller has one */
}

void tkc_op_complete(tinkc_future *f, const tinkc_error *err)
{
    pthread_mutex_lock(&f->shared.lock);
    if (f->shared.done) {
        pthread_mutex_unlock(&f->shared.lock);
        return;
    }
    if (err && err->code) {
        f->shared.err = *err;
        /* Support asks for it, wherever the error comes from. */
        if (!f->shared.err.request_id[0] && f->shared.request_id) {
            size_t len = strnlen(f->shared.request_id, sizeof f->shared.err.request_id - 1);
            memcpy(f->shared.err.request_id, f->shared.request_id, len);
        }
    }
    f->shared.done = true;
    f->shared.stage = TINKC_STAGE_DONE;
    bool submitted = f->shared.submitted;
    pthread_cond_broadcast(&f->shared.cond);
    tkc_future_fire_any(f);
    if (f->shared.done_fn)
        push_done(f);
    tkc_task *watcher = f->shared.watcher;
    f->shared.watcher = NULL;
    if (watcher)
        tkc_loop_post(f->client->loop, watcher);
    pthread_mutex_unlock(&f->shared.lock);
    /* It never was the I/O thread's: there is nothing to undo. */
    if (!submitted)
        return;
    tinkc_client *client = f->client;
    assert(tkc_loop_is_current(client->loop));
    /* After the completion: the Python SDK reports first, and a caller waits up to 30 s for his
     * error. */
    if (err && err->code)
        tkc_telemetry_failure(client, f->class->operation, err, f->error_body);
    tkc_loop_disarm(client->loop, &f->io.limit_timer);
    unlist_op(f);
    pthread_mutex_lock(&client->shared.lock);
    assert(client->shared.running > 0);
    if (--client->shared.running == 0)
        pthread_cond_broadcast(&client->shared.cond);
    pthread_mutex_unlock(&client->shared.lock);
}

void tkc_future_watch(tinkc_future *f, tkc_task *task)
{
    pthread_mutex_lock(&f->shared.lock);
    assert(!f->shared.watcher); /* there is room for one */
    if (f->shared.done)
        tkc_loop_post(f->client->loop, task);
    else
        f->shared.watcher = task;
    pthread_mutex_unlock(&f->shared.lock);
}

/* A helper gives its object back to the I/O thread. After the close that thread has ended: then the
 * helper is the last and runs the task itself. Both sides decide under one lock. */
void tkc_client_hand_over(tinkc_client *client, tkc_task *task)
{
    pthread_mutex_lock(&client->shared.lock);
    bool ended = client->shared.close_done;
    if (!ended)
        tkc_loop_post(client->loop, task);
    pthread_mutex_unlock(&client->shared.lock);
    if (ended)
        task->run(task);
}

void tkc_op_release(tinkc_future *f)
{
    tkc_future_drop(f);
}

void tkc_op_finish(tinkc_future *f, const tinkc_error *err)
{
    tkc_op_complete(f, err);
    tkc_op_release(f);
}

bool tkc_op_is_done(tinkc_future *f)
{
    pthread_mutex_lock(&f->shared.lock);
    bool done = f->shared.done;
    pthread_mutex_unlock(&f->shared.lock);
    return done;
}

void tkc_future_keep(tinkc_future *f)
{
    tkc_ref_keep(&f->refs);
}

void tkc_future_drop(tinkc_future *f)
{
    if (!tkc_ref_drop(&f->refs))
        return;
    tinkc_client *client = f->client;
    assert(!f->io.listed && !f->done_item.queued);  /* either would count */
    assert(f->shared.done || !f->shared.submitted); /* every future completes */
    if (f->class->destroy)
        f->class->destroy(f);
    if (f->shared.done_queue)
        tkc_queue_drop(f->shared.done_queue);
    if (f->shared.events.queue)
        tkc_queue_drop(f->shared.events.queue);
    tkc_arena_free(&f->arena);
    pthread_cond_destroy(&f->shared.cond);
    pthread_mutex_destroy(&f->shared.lock);
    tkc_release(client->a, f, f->class->size ? f->class->size : sizeof *f);
    tkc_client_drop(client);
}

/* Completes everything that runs. Thread: I/O. */
void tkc_ops_stop_all(tinkc_client *client, int32_t code, const char *text)
{
    while (client->io.ops) {
        tinkc_future *f = client->io.ops;
        tinkc_error why = { 0 };
        tkc_fail(&why, code, "%s: %s", f->class->operation, text);
        tkc_future_keep(f);
        stop_op(f, &why);
        unlist_op(f); /* also if it is a class whose stop did not complete it: never twice */
        tkc_op_complete(f, &why);
        tkc_future_drop(f);
    }
}

/* ---- what the caller sees meanwhile ---- */

void tkc_op_stage(tinkc_future *f, int32_t stage)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->shared.lock);
    if (!f->shared.done)
        f->shared.stage = stage;
    /* It described the stage before. */
    f->shared.status[0] = '\0';
    pthread_mutex_unlock(&f->shared.lock);
}

void tkc_op_status(tinkc_future *f, const char *format, ...)
{
    if (!f)
        return;
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&f->shared.lock);
    (void)vsnprintf(f->shared.status, sizeof f->shared.status, format, args);
    pthread_mutex_unlock(&f->shared.lock);
    va_end(args);
}

void tkc_op_works_through(tinkc_future *f, tinkc_future *inner)
{
    assert(inner != f);
    pthread_mutex_lock(&f->shared.lock);
    f->shared.through = inner;
    pthread_mutex_unlock(&f->shared.lock);
}

void tkc_op_exchanged(tinkc_future *f, const tinkc_error *err)
{
    if (!f)
        return;
    int64_t now = tkc_now_ms(f->client->clock);
    pthread_mutex_lock(&f->shared.lock);
    if (err->code) {
        /* Since the first failure of the row. */
        if (!f->shared.trouble)
            f->shared.trouble_since_ms = now;
        f->shared.trouble_attempts += f->shared.trouble_attempts < INT32_MAX;
    } else if (f->shared.trouble) {
        f->shared.trouble_attempts = 0;
        f->shared.status[0] = '\0'; /* it described the failure */
    }
    f->shared.trouble = err->code;
    pthread_mutex_unlock(&f->shared.lock);
}

void tkc_op_progress(tinkc_future *f, int64_t done, int64_t total)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->shared.lock);
    f->shared.progress_done = done;
    f->shared.progress_total = total;
    pthread_mutex_unlock(&f->shared.lock);
}

void tkc_op_queue_state(tinkc_future *f, int32_t state)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->shared.lock);
    f->shared.queue_state = state;
    pthread_mutex_unlock(&f->shared.lock);
}

void tkc_op_request_id(tinkc_future *f, tinkc_str id)
{
    tinkc_error ignored = { 0 };
    const char *copy = tkc_arena_str(&f->arena, id, &ignored);
    if (!copy)
        return; /* only a name for support: not worth failing the work */
    pthread_mutex_lock(&f->shared.lock);
    f->shared.request_id = copy;
    pthread_mutex_unlock(&f->shared.lock);
}

enum { ERROR_BODY_MAX = 64 * 1024 };

void tkc_op_error_body(tinkc_future *f, tinkc_bytes body)
{
    tinkc_error ignored = { 0 };
    size_t len = body.len < ERROR_BODY_MAX ? body.len : ERROR_BODY_MAX;
    /* Once complete, others read it without the lock. */
    if (!f || len == 0 || tkc_op_is_done(f))
        return;
    const char *copy = tkc_arena_str(&f->arena, tkc_strn((const char *)body.data, len), &ignored);
    if (copy)
        f->error_body = (tinkc_bytes){ (const unsigned char *)copy, len };
}

/* ---- receivers ---- */

bool tinkc_future_on_done(tinkc_future *f, tinkc_queue *queue, tinkc_done_fn *fn, void *user,
                          tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!f)
        return tkc_fail(err, TINKC_E_ARGUMENT, "future: must not be NULL");
    if (!tkc_client_check(f->client, err))
        return false;
    if (fn && !queue)
        return tkc_fail(err, TINKC_E_ARGUMENT, "queue: must not be NULL");
    pthread_mutex_lock(&f->shared.lock);
    tinkc_queue *old = f->shared.done_queue;
    bool removed = old && tkc_queue_remove(old, &f->done_item);
    f->shared.done_queue = fn ? queue : NULL;
    f->shared.done_fn = fn;
    f->shared.done_user = user;
    if (fn) {
        tkc_queue_keep(queue);
        if (f->shared.done)
            push_done(f);
    }
    pthread_mutex_unlock(&f->shared.lock);
    /* The item on the queue had this reference. */
    if (removed)
        tkc_future_drop(f);
    /* Without the lock: it may be the last reference, whose end takes locks of its own. */
    if (old)
        tkc_queue_drop(old);
    return true;
}

bool tinkc_future_on_event(tinkc_future *f, tinkc_queue *queue, uint32_t mask, tinkc_event_fn *fn,
                           void *user, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!f)
        return tkc_fail(err, TINKC_E_ARGUMENT, "future: must not be NULL");
    if (!tkc_client_check(f->client, err))
        return false;
    return tkc_events_receive(&f->shared.events, &f->shared.lock,
                              (tkc_event_receiver){ queue, fn, user, mask }, err);
}
