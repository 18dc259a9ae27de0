/* loop.c - the I/O thread: runs tasks, fires timers, waits.
 *
 * May touch: base/, its own lock, its wake-up descriptor, the clock it was given.
 * Must not:  know what tasks and timers are for, call anything with its lock held.
 *
 * Timers form a pairing heap through links inside the timers, so arming one cannot fail for lack of
 * memory. A task leaves the list before it runs and is not touched afterwards: its `run` may free
 * it.
 */
#include "net/loop.h"

#include <assert.h>
#include <poll.h>
#include <unistd.h>

#include "base/leave.h"
#include "base/platform.h"
#include "base/thread.h"

struct tkc_loop {
    /* set by tkc_loop_new, constant after */
    const tinkc_allocator *a;
    const tinkc_clock *clock;
    tkc_wake wake;
    pthread_t thread;

    /* Any thread, lock held. A leaf: nothing is called inside it. */
    struct {
        pthread_mutex_t lock;
        pthread_cond_t ended_cond;
        tkc_task *first, **last;
        int32_t busy;
        int64_t due_ms; /* of the next timer; set before each wait */
        bool waiting;   /* the thread is in, or about to enter, its wait */
        bool woken;     /* wake has been set and not yet cleared */
        bool jumped;    /* the clock has moved since the timers were last checked */
        bool stop, ended, abandoned;
        bool joined; /* somebody has joined the thread, or is about to */
        void (*end_fn)(void *arg);
        void *end_arg;
    } shared;

    /* The loop's thread only. */
    struct {
        tkc_timer *root;
        uint64_t order;
        tkc_loop_waiter waiter; /* zeroed: only wake_fd to wait for */
    } io;
};

/* ---- the heap ---- */

static bool fires_before(const tkc_timer *x, const tkc_timer *y)
{
    return x->due_ms < y->due_ms || (x->due_ms == y->due_ms && x->order < y->order);
}

/* Merges two roots. prev of a first child is its parent; of the others, the previous sibling. Links
 * of a root are not read: it gets its own when it becomes a child. */
static tkc_timer *meld(tkc_timer *x, tkc_timer *y)
{
    if (!x || !y)
        return x ? x : y;
    if (fires_before(y, x)) {
        tkc_timer *swap = x;
        x = y;
        y = swap;
    }
    y->prev = x;
    y->sibling = x->child;
    if (y->sibling)
        y->sibling->prev = y;
    x->child = y;
    return x;
}

/* Merges a list of siblings: in pairs from the left, then the pairs from the right. */
static tkc_timer *meld_siblings(tkc_timer *list)
{
    tkc_timer *pairs = NULL;
    while (list) {
        tkc_timer *x = list, *y = x->sibling;
        list = y ? y->sibling : NULL;
        tkc_timer *pair = meld(x, y);
        pair->sibling = pairs;
        pairs = pair;
    }
    tkc_timer *root = NULL;
    while (pairs) {
        tkc_timer *next = pairs->sibling;
        root = meld(root, pairs);
        pairs = next;
    }
    return root;
}

static void heap_remove(tkc_loop *loop, tkc_timer *t)
{
    assert(t->armed && loop->io.root && (t == loop->io.root || t->prev));
    tkc_timer *below = meld_siblings(t->child);
    if (t == loop->io.root) {
        loop->io.root = below;
    } else {
        if (t->prev->child == t)
            t->prev->child = t->sibling;
        else
            t->prev->sibling = t->sibling;
        if (t->sibling)
            t->sibling->prev = t->prev;
        loop->io.root = meld(loop->io.root, below);
    }
    t->armed = false;
}

void tkc_loop_disarm(tkc_loop *loop, tkc_timer *t)
{
    if (t->armed)
        heap_remove(loop, t);
}

void tkc_loop_arm(tkc_loop *loop, tkc_timer *t, int64_t delay_ms)
{
    assert(t->fire);
    tkc_loop_disarm(loop, t);
    if (delay_ms == TINKC_FOREVER)
        return;
    int64_t now = tkc_loop_now_ms(loop);
    if (__builtin_add_overflow(now, delay_ms > 0 ? delay_ms : 0, &t->due_ms))
        t->due_ms = INT64_MAX;
    t->order = loop->io.order++;
    t->child = NULL;
    t->armed = true;
    loop->io.root = meld(loop->io.root, t);
}

/* ---- waking ---- */

/* Needs shared.lock. */
static void wake_locked(tkc_loop *loop)
{
    if (!loop->shared.waiting || loop->shared.woken)
        return;
    loop->shared.woken = true;
    tkc_wake_set(&loop->wake);
}

void tkc_loop_post(tkc_loop *loop, tkc_task *task)
{
    assert(task->run);
    pthread_mutex_lock(&loop->shared.lock);
    task->next = NULL;
    *loop->shared.last = task;
    loop->shared.last = &task->next;
    wake_locked(loop);
    pthread_mutex_unlock(&loop->shared.lock);
}

void tkc_loop_busy(tkc_loop *loop, int32_t change)
{
    pthread_mutex_lock(&loop->shared.lock);
    loop->shared.busy += change;
    assert(loop->shared.busy >= 0);
    pthread_mutex_unlock(&loop->shared.lock);
}

static void clock_jumped(void *arg)
{
    tkc_loop *loop = arg;
    pthread_mutex_lock(&loop->shared.lock);
    loop->shared.jumped = true;
    wake_locked(loop);
    pthread_mutex_unlock(&loop->shared.lock);
}

/* For tests that move the clock. Any thread. */
static bool is_idle(void *arg, int64_t *due_ms)
{
    tkc_loop *loop = arg;
    pthread_mutex_lock(&loop->shared.lock);
    bool idle = loop->shared.ended ||
                (loop->shared.waiting && !loop->shared.woken && !loop->shared.jumped &&
                 !loop->shared.first && !loop->shared.stop && loop->shared.busy == 0);
    *due_ms = loop->shared.ended ? INT64_MAX : loop->shared.due_ms;
    pthread_mutex_unlock(&loop->shared.lock);
    return idle;
}

bool tkc_loop_is_current(const tkc_loop *loop)
{
    return pthread_equal(pthread_self(), loop->thread) != 0;
}

int64_t tkc_loop_now_ms(const tkc_loop *loop)
{
    return tkc_now_ms(loop->clock);
}

void tkc_loop_set_waiter(tkc_loop *loop, const tkc_loop_waiter *waiter)
{
    loop->io.waiter = waiter ? *waiter : (tkc_loop_waiter){ 0 };
}

/* ---- the thread ---- */

static void run_tasks(tkc_loop *loop)
{
    pthread_mutex_lock(&loop->shared.lock);
    /* What is posted meanwhile runs in the next round, so that tasks cannot starve timers and
     * sockets. */
    tkc_task *task = loop->shared.first;
    loop->shared.first = NULL;
    loop->shared.last = &loop->shared.first;
    pthread_mutex_unlock(&loop->shared.lock);
    while (task) {
        tkc_task *next = task->next;
        task->run(task);
        task = next;
    }
}

/* Fires only the timers due at the start: a timer that rearms itself with delay 0 waits a round, so
 * it cannot starve the sockets. */
static void fire_timers(tkc_loop *loop)
{
    pthread_mutex_lock(&loop->shared.lock);
    loop->shared.jumped = false;
    pthread_mutex_unlock(&loop->shared.lock);
    int64_t now = tkc_loop_now_ms(loop);
    uint64_t newest = loop->io.order;
    while (loop->io.root && loop->io.root->due_ms <= now && loop->io.root->order < newest) {
        tkc_timer *t = loop->io.root;
        heap_remove(loop, t);
        t->fire(t);
    }
}

static void wait_in_poll(int wake_fd, int64_t timeout_ms)
{
    struct pollfd fd = { .fd = wake_fd, .events = POLLIN };
    int limit = timeout_ms == TINKC_FOREVER ? -1
                : timeout_ms > INT32_MAX    ? INT32_MAX
                                            : (int)timeout_ms;
    (void)poll(&fd, 1, limit);
}

/* True if the thread may wait: nothing is posted and no stop was requested. `limit_ms`: the longest
 * that the waiter allows. */
static bool begin_wait(tkc_loop *loop, int64_t limit_ms, int64_t *timeout_ms)
{
    tkc_timer *next = loop->io.root;
    int64_t now = tkc_loop_now_ms(loop);
    int64_t left = !next ? INT64_MAX : next->due_ms > now ? next->due_ms - now : 0;
    int64_t most = limit_ms == TINKC_FOREVER ? INT64_MAX : limit_ms;
    left = most < left ? most : left;
    *timeout_ms = left == INT64_MAX ? TINKC_FOREVER : left;
    pthread_mutex_lock(&loop->shared.lock);
    /* Decided under the lock: a task that is posted right after it finds `waiting` set and wakes
     * the thread. */
    bool wait =
        !loop->shared.first && !loop->shared.stop && !loop->shared.jumped && *timeout_ms != 0;
    loop->shared.due_ms = next ? next->due_ms : INT64_MAX;
    loop->shared.waiting = wait;
    pthread_mutex_unlock(&loop->shared.lock);
    return wait;
}

static void end_wait(tkc_loop *loop)
{
    pthread_mutex_lock(&loop->shared.lock);
    loop->shared.waiting = false;
    if (loop->shared.woken)
        tkc_wake_clear(&loop->wake);
    loop->shared.woken = false;
    pthread_mutex_unlock(&loop->shared.lock);
}

static bool finished(tkc_loop *loop)
{
    pthread_mutex_lock(&loop->shared.lock);
    bool now = loop->shared.stop && !loop->shared.first;
    pthread_mutex_unlock(&loop->shared.lock);
    return now;
}

static void free_loop(tkc_loop *loop)
{
    loop->clock->detach(loop->clock->self, loop);
    loop->clock->release(loop->clock->self);
    tkc_wake_close(&loop->wake);
    pthread_cond_destroy(&loop->shared.ended_cond);
    pthread_mutex_destroy(&loop->shared.lock);
    tkc_release(loop->a, loop, sizeof *loop);
}

static void *loop_main(void *arg)
{
    tkc_loop *loop = arg;
    /* tkc_loop_new holds the lock until loop->thread is set. */
    pthread_mutex_lock(&loop->shared.lock);
    pthread_mutex_unlock(&loop->shared.lock);
    while (!finished(loop)) {
        int64_t timeout_ms;
        run_tasks(loop);
        fire_timers(loop);
        const tkc_loop_waiter *waiter = &loop->io.waiter;
        int64_t prepared = waiter->wait ? waiter->prepare(waiter->self) : TINKC_FOREVER;
        bool waits = begin_wait(loop, prepared, &timeout_ms);
        /* Sockets are served in every round, even if there is no time to wait. */
        if (waiter->wait)
            waiter->wait(waiter->self, loop->wake.fd, waits ? timeout_ms : 0);
        else if (waits)
            wait_in_poll(loop->wake.fd, timeout_ms);
        end_wait(loop);
    }
    pthread_mutex_lock(&loop->shared.lock);
    loop->shared.ended = true;
    bool abandoned = loop->shared.abandoned;
    void (*end_fn)(void *) = loop->shared.end_fn;
    void *end_arg = loop->shared.end_arg;
    pthread_cond_broadcast(&loop->shared.ended_cond);
    pthread_mutex_unlock(&loop->shared.lock);
    if (abandoned) {
        free_loop(loop);
        tkc_thread_leaves();
        if (end_fn)
            end_fn(end_arg);
    }
    return NULL;
}

tkc_loop *tkc_loop_new(const tinkc_allocator *a, const tinkc_clock *clock, tinkc_error *err)
{
    tkc_loop *loop = tkc_zalloc(a, sizeof *loop, err);
    if (!loop)
        return NULL;
    loop->a = a;
    loop->clock = clock;
    loop->shared.last = &loop->shared.first;
    if (!tkc_wake_open(&loop->wake)) {
        tkc_fail_errno(err, "wake-up descriptor");
        goto no_fd;
    }
    pthread_mutex_init(&loop->shared.lock, NULL);
    if (!tkc_cond_init(&loop->shared.ended_cond, err))
        goto no_cond;
    clock->acquire(clock->self);
    clock->attach(clock->self, clock_jumped, loop);
    if (clock->watch)
        clock->watch(clock->self, is_idle, loop);
    pthread_mutex_lock(&loop->shared.lock);
    bool started = tkc_thread_start(&loop->thread, loop_main, loop, "tinkc-io", err);
    pthread_mutex_unlock(&loop->shared.lock);
    if (started)
        return loop;

    clock->detach(clock->self, loop);
    clock->release(clock->self);
    pthread_cond_destroy(&loop->shared.ended_cond);
no_cond:
    pthread_mutex_destroy(&loop->shared.lock);
    tkc_wake_close(&loop->wake);
no_fd:
    tkc_release(a, loop, sizeof *loop);
    return NULL;
}

void tkc_loop_stop(tkc_loop *loop)
{
    pthread_mutex_lock(&loop->shared.lock);
    loop->shared.stop = true;
    wake_locked(loop);
    pthread_mutex_unlock(&loop->shared.lock);
}

bool tkc_loop_await(tkc_loop *loop, int64_t timeout_ms)
{
    int64_t deadline = tkc_deadline_ns(timeout_ms);
    pthread_mutex_lock(&loop->shared.lock);
    while (!loop->shared.ended)
        if (!tkc_cond_wait_until(&loop->shared.ended_cond, &loop->shared.lock, deadline))
            break;
    bool ended = loop->shared.ended;
    bool joins = ended && !loop->shared.joined;
    loop->shared.joined |= joins;
    pthread_mutex_unlock(&loop->shared.lock);
    if (joins)
        pthread_join(loop->thread, NULL);
    return ended;
}

bool tkc_loop_join(tkc_loop *loop, int64_t timeout_ms)
{
    if (!tkc_loop_await(loop, timeout_ms))
        return false;
    free_loop(loop);
    return true;
}

void tkc_loop_abandon(tkc_loop *loop, void (*last)(void *arg), void *arg)
{
    pthread_mutex_lock(&loop->shared.lock);
    bool ended = loop->shared.ended;
    if (!ended) {
        loop->shared.abandoned = true;
        loop->shared.end_fn = last;
        loop->shared.end_arg = arg;
    }
    pthread_mutex_unlock(&loop->shared.lock);
    if (ended) { /* the thread has ended already: free the loop here */
        (void)tkc_loop_join(loop, TINKC_FOREVER);
        if (last)
            last(arg);
    }
}
