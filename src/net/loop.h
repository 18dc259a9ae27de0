/* loop.h - the one I/O thread of a client: posted tasks, timers, a wake-up descriptor.
 *
 * All background work of a client runs here, one piece at a time, so most of the code above needs
 * no locks. Tasks and timers are embedded in larger objects: posting and arming allocate nothing
 * and cannot fail.
 *
 *     static void answer(tkc_task *task) { struct op *op = TKC_OWNER(task, struct op, task); ... }
 *     op->task.run = answer;
 *     tkc_loop_post(loop, &op->task);            // from any thread
 *
 * Time comes from the given tinkc_clock; a test's clock moves in jumps and wakes the loop itself.
 * Code that waits for sockets plugs in as a tkc_loop_waiter; without one the loop waits in poll(2).
 */
#ifndef TKC_NET_LOOP_H
#define TKC_NET_LOOP_H

#include <stddef.h>

#include "base/clock.h"
#include "base/mem.h"

/* The object that contains a task or timer. */
#define TKC_OWNER(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

typedef struct tkc_loop tkc_loop;

/* Runs once on the loop's thread. It may be posted again from inside `run`, or freed there. */
typedef struct tkc_task tkc_task;
struct tkc_task {
    void (*run)(tkc_task *);
    tkc_task *next; /* the loop's */
};

/* Fires once on the loop's thread, when the clock has reached due_ms. Zeroed = not armed. */
typedef struct tkc_timer tkc_timer;
struct tkc_timer {
    void (*fire)(tkc_timer *);
    int64_t due_ms;
    uint64_t order; /* sequence number of arming: equal times fire in this order */
    bool armed;
    /* the loop's: a pairing heap through its members */
    tkc_timer *child, *sibling, *prev;
};

/* Waits for sockets. Thread: the loop's.
 *
 * Two calls, because `prepare` may end an exchange whose callback arms a timer: the loop checks its
 * timers between the two. */
typedef struct tkc_loop_waiter {
    void *self;
    /* Does everything that is due. Returns the time until it must be called again (TINKC_FOREVER =
     * never). */
    int64_t (*prepare)(void *self);
    /* Waits until wake_fd is readable, one of its sockets is ready, or timeout_ms (TINKC_FOREVER =
     * none) has passed. It must not run callbacks before it waits, nor read wake_fd. */
    void (*wait)(void *self, int wake_fd, int64_t timeout_ms);
} tkc_loop_waiter;

/* Starts the thread. Holds a reference to the clock until the loop is freed. */
tkc_loop *tkc_loop_new(const tinkc_allocator *a, const tinkc_clock *clock, tinkc_error *err);

/* Asks the thread to end; tasks that are already posted run first. Any thread. Idempotent. */
void tkc_loop_stop(tkc_loop *);
/* After tkc_loop_stop: waits up to timeout_ms for the thread to end, then frees the loop.
 * False = it has not ended yet: nothing is freed and it may be called again. Never on the loop's
 * own thread. */
bool tkc_loop_join(tkc_loop *, int64_t timeout_ms);
/* The same, but the loop stays: what still has it may post to it, and nothing runs. One thread at a time. */
bool tkc_loop_await(tkc_loop *, int64_t timeout_ms);
/* Instead of joining: the thread frees the loop when it ends, then calls last(arg) as the very
 * last thing it does. Any thread, the loop's included. */
void tkc_loop_abandon(tkc_loop *, void (*last)(void *arg), void *arg);

/* Any thread. */
void tkc_loop_post(tkc_loop *, tkc_task *);
bool tkc_loop_is_current(const tkc_loop *); /* true on the loop's own thread */
int64_t tkc_loop_now_ms(const tkc_loop *);

/* Thread: the loop's. Arming an armed timer moves it. delay_ms below 0 counts as 0; TINKC_FOREVER
 * disarms the timer. */
void tkc_loop_arm(tkc_loop *, tkc_timer *, int64_t delay_ms);
void tkc_loop_disarm(tkc_loop *, tkc_timer *);

/* Sets the waiter; NULL removes it. Thread: the loop's. */
void tkc_loop_set_waiter(tkc_loop *, const tkc_loop_waiter *);

/* Counts work for this loop that runs on helper threads, so that the loop does not look idle
 * meanwhile. Any thread. */
void tkc_loop_busy(tkc_loop *, int32_t change);

#endif
