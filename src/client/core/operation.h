/* operation.h - futures from the inside: an operation is a tinkc_future plus what it needs to run.
 *
 * An operation is one object whose first member is a tinkc_future. It is made and filled in on the
 * caller's thread, handed to the I/O thread with tkc_op_submit, runs there as a state machine, and
 * completes exactly once with tkc_op_finish. Two references keep it: the user's handle and the
 * I/O thread's, which tkc_op_finish gives back.
 *
 *     struct ping { tinkc_future f; tkc_call *call; };
 *     static void ping_start(tinkc_future *f);                        // begin: on the I/O thread
 *     static void ping_stop(tinkc_future *f, const tinkc_error *why)  // cancelled, closed
 *     {
 *         tkc_call_free(((struct ping *)f)->call);
 *         tkc_op_finish(f, why);
 *     }
 *     static const tkc_op_class ping_class = { "ping", "pong", sizeof(struct ping),
 *                                              ping_start, ping_stop, NULL };
 *
 * Most calls are one request and one answer and need none of that: see tkc_rest_call in call.h.
 */
#ifndef TKC_API_OPERATION_H
#define TKC_API_OPERATION_H

#include "base/arena.h"
#include "base/thread.h"
#include "net/loop.h"
#include "tinkc/client.h"

typedef struct tkc_op_class {
    const char *operation; /* tinkc_future_operation: "run_get" */
    const char *kind;      /* of the result: "run"; getters name it. Compared as text */
    size_t size;           /* of the whole object; 0 = a bare tinkc_future */
    /* Begins the work. Thread: I/O. */
    void (*start)(tinkc_future *);
    /* Ends it early. Must lead to tkc_op_finish(f, why), at once; it is called at most once and
     * never after completion. What a helper still works on uses tkc_op_complete now and
     * tkc_op_release later.
     * Thread: I/O. */
    void (*stop)(tinkc_future *, const tinkc_error *why);
    /* Releases what the object holds besides the arena; NULL = nothing. Any thread, last call. */
    void (*destroy)(tinkc_future *);
} tkc_op_class;

/* Something on its way to a tinkc_queue_run. Part of a larger object. */
typedef struct tkc_queue_item tkc_queue_item;
struct tkc_queue_item {
    /* Runs user code. No lock is held; the item is off the queue. Thread: tinkc_queue_run's. */
    void (*run)(tkc_queue_item *);
    /* The queue is freed before it could run. No lock is held. NULL = nothing to do. */
    void (*drop)(tkc_queue_item *);
    tkc_queue_item *next, *prev;
    bool queued;
    bool is_event;
};

/* Who gets the events of a client or a future. Guarded by its owner's lock. */
typedef struct tkc_event_receiver {
    tinkc_queue *queue; /* a reference; never NULL while mask is not 0 */
    tinkc_event_fn *fn;
    void *user;
    uint32_t mask;
} tkc_event_receiver;

/* Replaces the receiver; fn NULL or mask 0 = none from now on. Takes the lock itself. */
bool tkc_events_receive(tkc_event_receiver *, pthread_mutex_t *lock, tkc_event_receiver to,
                        tinkc_error *err);

struct tinkc_future {
    /* set by tkc_op_new, constant after */
    const tkc_op_class *class;
    tinkc_client *client; /* a reference */
    tkc_refs refs;

    /* Written by the thread that runs the operation before it completes, read by anybody after. */
    tkc_arena arena; /* results live here */
    void *result;
    tinkc_bytes error_body;

    /* Any thread, lock held. */
    struct {
        pthread_mutex_t lock;
        pthread_cond_t cond;
        tinkc_error err;
        bool done;      /* err, result and error_body stay as they are from now on */
        bool submitted; /* the I/O thread has, or had, a reference */
        bool cancel;    /* asked for */
        bool limit_set; /* the caller has said limit_at_ms */
        bool control_posted;
        int32_t stage, queue_state;
        int32_t trouble, trouble_attempts; /* code of the last failure; how many in a row */
        int64_t trouble_since_ms;
        tinkc_future *through; /* does the work meanwhile; lives as long as this. NULL = itself */
        tkc_task *watcher;     /* posted at completion: tkc_future_watch */
        struct tkc_any_node *any; /* those who wait for this and others: future.c */
        int64_t limit_at_ms;
        int64_t progress_done, progress_total;
        const char *request_id; /* NULL until accepted; belongs to the object */
        char status[120];       /* why it waits, for people */
        tinkc_queue *done_queue;
        tinkc_done_fn *done_fn;
        void *done_user;
        tkc_event_receiver events;
    } shared;
    tkc_queue_item done_item; /* the queue's, while queued; it then counts as a reference */

    /* I/O thread only. */
    struct {
        tkc_task start_task, control_task;
        tkc_timer limit_timer;
        tinkc_future *prev, *next; /* among the client's running operations */
        bool listed;
    } io;
};

/* Checks the client (forked, closed) and makes an operation with one reference, the caller's.
 * class->size bytes, zeroed but for the future. */
tinkc_future *tkc_op_new(tinkc_client *, const tkc_op_class *, tinkc_error *err);
/* Hands it to the I/O thread, which calls class->start. Cannot fail: a client that was closed
 * meanwhile completes it with TINKC_E_CLOSED. Returns f. */
tinkc_future *tkc_op_submit(tinkc_future *f);
/* The same, for one who must know: false = it is complete, and neither start nor stop will come. */
bool tkc_op_try_submit(tinkc_future *f);

/* The one completion. err NULL or without a code = success. Later calls do only the
 * release. After tkc_op_finish f may be gone. Thread: I/O. */
void tkc_op_finish(tinkc_future *f, const tinkc_error *err);
void tkc_op_complete(tinkc_future *f, const tinkc_error *err); /* keeps the reference */
void tkc_op_release(tinkc_future *f);                          /* gives it back */
bool tkc_op_is_done(tinkc_future *f);

/* Posts the task to the client's loop once f has completed, at once if it has. One watcher. */
void tkc_future_watch(tinkc_future *f, tkc_task *task);
/* Hands a task over to the I/O thread, from any other; runs it here if that thread has ended. */
void tkc_client_hand_over(tinkc_client *, tkc_task *task);

void tkc_future_keep(tinkc_future *f);
void tkc_future_drop(tinkc_future *f); /* a reference, not the user's handle: cancels nothing */

/* What the caller can see meanwhile. f may be NULL in all of them. Any thread. */
void tkc_op_stage(tinkc_future *f, int32_t stage);
void tkc_op_status(tinkc_future *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* From now on `inner` does its work: f shows its state. The object holds it to its end.
 */
void tkc_op_works_through(tinkc_future *f, tinkc_future *inner);
/* How an exchange of it ended: another failure in a row, or all is well again. */
void tkc_op_exchanged(tinkc_future *f, const tinkc_error *err);
void tkc_op_progress(tinkc_future *f, int64_t done, int64_t total);
void tkc_op_queue_state(tinkc_future *f, int32_t state);
/* Copied into the arena. Thread: I/O, before completion. */
void tkc_op_request_id(tinkc_future *f, tinkc_str id);
void tkc_op_error_body(tinkc_future *f, tinkc_bytes body);

/* Every public result getter: waits, checks the kind, returns f->result (never NULL on success). */
void *tkc_future_get(tinkc_future *f, const char *kind, int64_t timeout_ms, tinkc_error *err);

/* Reports to listeners of the future's or the client's events. f may be NULL. The texts are
 * copied. Never fails: without memory the event is lost. Thread: I/O. */
void tkc_emit(tinkc_client *, tinkc_future *f, const tinkc_event *event);

/* Wakes those who wait for this future among others. Needs f->shared.lock. future.c */
void tkc_future_fire_any(tinkc_future *f);

/* ---- queues ---- */

/* Lines an item up. False if the queue has been freed: then `drop` is the caller's to call. */
bool tkc_queue_push(tinkc_queue *, tkc_queue_item *);
/* Takes it off again if it has not begun to run. */
bool tkc_queue_remove(tinkc_queue *, tkc_queue_item *); /* true if it did */
void tkc_queue_keep(tinkc_queue *);
void tkc_queue_drop(tinkc_queue *);

#endif
