/* test_loop_clock.c - the loop on a clock and with a waiter of the test's own: how long it waits, when it is idle, what
 * it tells the clock, and the order of timers against a model. */
#include "support/check.h"

#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

#include "net/loop.h"

/* ---- the clock: stands still until the test moves it ---- */

static _Atomic int64_t now_ms;
static struct {
    int acquired, released, attached, detached;
    void (*wake)(void *);
    bool (*idle)(void *, int64_t *);
    void *arg, *detached_arg, *watched_arg;
} seen;

static void acquire(void *self)
{
    (void)self;
    seen.acquired++;
}
static void release(void *self)
{
    (void)self;
    seen.released++;
}
static atomic_int looks;
static int64_t now(void *self)
{
    (void)self;
    atomic_fetch_add(&looks, 1);
    return atomic_load(&now_ms);
}
static void attach(void *self, void (*wake)(void *), void *arg)
{
    (void)self;
    seen.attached++;
    seen.wake = wake;
    seen.arg = arg;
}
static void detach(void *self, void *arg)
{
    (void)self;
    seen.detached++;
    seen.detached_arg = arg;
}
static void watch(void *self, bool (*idle)(void *, int64_t *), void *arg)
{
    (void)self;
    seen.idle = idle;
    seen.watched_arg = arg;
}
static tinkc_clock own_clock = {
    .acquire = acquire, .release = release, .now_ms = now, .attach = attach, .detach = detach, .watch = watch
};

static tkc_loop *loop;

static int setup(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    memset(&seen, 0, sizeof seen);
    atomic_store(&now_ms, 1000);
    loop = tkc_loop_new(NULL, &own_clock, &err);
    return err.code;
}

static int teardown(void **state)
{
    (void)state;
    tkc_loop_stop(loop);
    return tkc_loop_join(loop, PATIENCE_MS) && seen.acquired == 1 && seen.released == 1 && seen.attached == 1 &&
                   seen.detached == 1 && seen.detached_arg == seen.arg && seen.watched_arg == seen.arg
               ? 0
               : 1;
}

static bool is_idle(int64_t *due_ms)
{
    return seen.idle(seen.arg, due_ms);
}

static int64_t idle_due(void)
{
    int64_t due = 0;
    wait_until(is_idle(&due));
    assert_true(is_idle(&due));
    return due;
}

static void advance(int64_t ms)
{
    atomic_fetch_add(&now_ms, ms);
    seen.wake(seen.arg);
}

/* ---- runs on the loop's thread, and waits until it has ---- */

typedef struct job {
    tkc_task task;
    void (*fn)(void);
    sem_t done;
} job;

static void run_job(tkc_task *task)
{
    job *j = TKC_OWNER(task, job, task);
    j->fn();
    sem_post(&j->done);
}

static void on_loop(void (*fn)(void))
{
    job j = { .task.run = run_job, .fn = fn };
    sem_init(&j.done, 0, 0);
    tkc_loop_post(loop, &j.task);
    while (sem_wait(&j.done) != 0)
        ;
    sem_destroy(&j.done);
}

/* ---- the order of timers ---- */

enum { TIMERS = 48, ROUNDS = 200 };

static tkc_timer timers[TIMERS];
static struct {
    bool armed;
    int64_t due;
    uint64_t order;
} model[TIMERS];
static uint64_t model_order, draws;
static size_t fired[TIMERS], n_fired;

static uint64_t draw(uint64_t below)
{
    draws = draws * 6364136223846793005u + 1442695040888963407u;
    return (draws >> 33) % below;
}

static void note_fired(tkc_timer *t)
{
    assert_false(t->armed);
    fired[n_fired++] = (size_t)(t - timers);
}

static void change_timers(void)
{
    for (uint64_t n = draw(24); n > 0; n--) {
        size_t i = (size_t)draw(TIMERS);
        timers[i].fire = note_fired;
        if (draw(3) == 0) {
            tkc_loop_disarm(loop, &timers[i]);
            model[i].armed = false;
        } else {
            int64_t delay = (int64_t)draw(12) + 1;
            tkc_loop_arm(loop, &timers[i], delay);
            model[i].armed = true;
            model[i].due = atomic_load(&now_ms) + delay;
            model[i].order = model_order++;
        }
        assert_int_equal(timers[i].armed, model[i].armed);
    }
}

/* The armed timer that fires first; TIMERS = none. */
static size_t first_armed(void)
{
    size_t best = TIMERS;
    for (size_t i = 0; i < TIMERS; i++)
        if (model[i].armed && (best == TIMERS || model[i].due < model[best].due ||
                               (model[i].due == model[best].due && model[i].order < model[best].order)))
            best = i;
    return best;
}

TEST_WITH(timers_fire_as_in_the_model, setup, teardown)
{
    memset(timers, 0, sizeof timers);
    memset(model, 0, sizeof model);
    draws = 1;
    for (int round = 0; round < ROUNDS; round++) {
        on_loop(change_timers);
        size_t first = first_armed();
        assert_int_equal(idle_due(), first < TIMERS ? model[first].due : INT64_MAX);
        n_fired = 0;
        advance((int64_t)draw(6));
        (void)idle_due();
        for (size_t k = 0; k < n_fired; k++) {
            first = first_armed();
            assert_int_equal(fired[k], first);
            model[first].armed = false;
        }
        first = first_armed();
        assert_true(first == TIMERS || model[first].due > atomic_load(&now_ms));
    }
}

static tkc_timer one;
static int64_t one_delay;
static atomic_int one_fired;

static void count_one(tkc_timer *t)
{
    (void)t;
    atomic_fetch_add(&one_fired, 1);
}

static void arm_one(void)
{
    one.fire = count_one;
    tkc_loop_arm(loop, &one, one_delay);
}

/* Below 0 counts as 0; the end of time is as far as it gets; FOREVER takes it off. */
TEST_WITH(delays_have_bounds, setup, teardown)
{
    static const struct {
        int64_t delay, due;
        int fires;
    } rows[] = { { 0, INT64_MAX, 1 },
                 { INT64_MIN, INT64_MAX, 1 },
                 { 1, 1001, 0 },
                 { TINKC_FOREVER, INT64_MAX, 0 },
                 { INT64_MAX - 1001, INT64_MAX - 1, 0 },
                 { INT64_MAX - 1000, INT64_MAX, 0 },
                 { INT64_MAX, INT64_MAX, 0 } };
    one = (tkc_timer){ 0 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        atomic_store(&one_fired, 0);
        one_delay = rows[i].delay;
        on_loop(arm_one);
        assert_int_equal(idle_due(), rows[i].due);
        assert_int_equal(atomic_load(&one_fired), rows[i].fires);
    }
    advance(0); /* time has not moved */
    (void)idle_due();
    assert_int_equal(atomic_load(&one_fired), 0);
}

/* ---- waiting ---- */

static struct {
    pthread_mutex_t lock;
    char text[512];
} rounds = { .lock = PTHREAD_MUTEX_INITIALIZER };
static int64_t allowed = TINKC_FOREVER; /* the loop's thread only */
static int again;                       /* times that a timer arms itself */

static void say(const char *what, int64_t number)
{
    pthread_mutex_lock(&rounds.lock);
    size_t used = strlen(rounds.text);
    (void)snprintf(rounds.text + used, sizeof rounds.text - used, "%s%lld ", what, (long long)number);
    pthread_mutex_unlock(&rounds.lock);
}

static bool said(const char *want)
{
    pthread_mutex_lock(&rounds.lock);
    bool same = strcmp(rounds.text, want) == 0;
    pthread_mutex_unlock(&rounds.lock);
    return same;
}

static bool jumps; /* the loop's thread only: the clock moves in the next round */

static int64_t prepare(void *self)
{
    (void)self;
    if (jumps)
        seen.wake(seen.arg);
    jumps = false;
    int64_t limit = allowed;
    allowed = limit == 0 ? TINKC_FOREVER : limit;
    return limit;
}

/* Waits until it is woken, whatever the limit, but not at all for 0. */
static void wait_for_wake(void *self, int wake_fd, int64_t timeout_ms)
{
    struct pollfd fd = { .fd = wake_fd, .events = POLLIN };
    assert_ptr_equal(self, &rounds);
    bool stale = poll(&fd, 1, 0) != 0;
    say(stale ? "stale " : "wait ", timeout_ms);
    if (timeout_ms != 0)
        (void)poll(&fd, 1, -1);
}

static void set_waiter(void)
{
    rounds.text[0] = 0; /* no round has a waiter yet */
    tkc_loop_set_waiter(loop, &(tkc_loop_waiter){ .self = &rounds, .prepare = prepare, .wait = wait_for_wake });
}

static void take_waiter(void)
{
    tkc_loop_set_waiter(loop, NULL);
}

static int64_t next_limit;

static void set_limits(void)
{
    pthread_mutex_lock(&rounds.lock);
    rounds.text[0] = 0;
    pthread_mutex_unlock(&rounds.lock);
    allowed = next_limit;
    arm_one();
}

static void set_limits_and_jump(void)
{
    set_limits();
    jumps = true;
}

static void expect(const char *want)
{
    wait_until(said(want));
    if (!said(want))
        fail_msg("\"%s\" instead of \"%s\"", rounds.text, want);
}

TEST_WITH(waits_for_the_nearer_limit, setup, teardown)
{
    static const struct {
        int64_t timer, limit;
        const char *want;
    } rows[] = {
        { TINKC_FOREVER, TINKC_FOREVER, "wait -1 " },
        { TINKC_FOREVER, 5, "wait 5 " },
        { TINKC_FOREVER, 0, "wait 0 wait -1 " },
        { 10, TINKC_FOREVER, "wait 10 " },
        { 10, 5, "wait 5 " },
        { 10, 10, "wait 10 " },
        { 10, 11, "wait 10 " },
        { 10, 0, "wait 0 wait 10 " },
    };
    one = (tkc_timer){ 0 };
    allowed = TINKC_FOREVER;
    on_loop(set_waiter);
    expect("wait -1 ");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        one_delay = rows[i].timer;
        next_limit = rows[i].limit;
        on_loop(set_limits);
        expect(rows[i].want);
    }
    one_delay = TINKC_FOREVER;
    next_limit = TINKC_FOREVER;
    on_loop(set_limits_and_jump); /* between the timers and the wait: it looks at the timers again */
    expect("wait 0 wait -1 ");
    one_delay = 10;
    on_loop(arm_one);
    on_loop(take_waiter);
    assert_int_equal(idle_due(), 1010);
}

static tkc_task inner;

static void note_inner(tkc_task *task)
{
    (void)task;
    say("task ", 0);
}

static void fire_again(tkc_timer *t)
{
    say("fire ", again);
    if (again-- > 0)
        tkc_loop_arm(loop, t, 0);
}

static void begin_rounds(void)
{
    pthread_mutex_lock(&rounds.lock);
    rounds.text[0] = 0;
    pthread_mutex_unlock(&rounds.lock);
    inner.run = note_inner;
    tkc_loop_post(loop, &inner); /* from the loop's own thread: the next round, and no wake-up */
    again = 2;
    one.fire = fire_again;
    tkc_loop_arm(loop, &one, 0);
}

/* A timer that arms itself for now lets tasks and sockets have their turn. */
TEST_WITH(a_timer_for_now_waits_a_round, setup, teardown)
{
    one = (tkc_timer){ 0 };
    allowed = TINKC_FOREVER;
    on_loop(set_waiter);
    expect("wait -1 ");
    on_loop(begin_rounds);
    expect("fire 2 wait 0 task 0 fire 1 wait 0 fire 0 wait -1 ");
    on_loop(take_waiter);
}

/* ---- idle, busy, ended ---- */

static sem_t entered, leave;

static void block(tkc_task *task)
{
    (void)task;
    sem_post(&entered);
    while (sem_wait(&leave) != 0)
        ;
}

static int n_run;
static void count_run(tkc_task *task)
{
    (void)task;
    n_run++;
}

TEST_WITH(busy_is_not_idle, setup, teardown)
{
    int64_t due;
    tkc_task task = { .run = block };
    assert_int_equal(idle_due(), INT64_MAX);
    tkc_loop_busy(loop, 2);
    assert_false(is_idle(&due));
    tkc_loop_busy(loop, -1);
    assert_false(is_idle(&due));
    tkc_loop_busy(loop, -1);
    assert_true(is_idle(&due));
    sem_init(&entered, 0, 0);
    sem_init(&leave, 0, 0);
    tkc_loop_post(loop, &task);
    assert_false(is_idle(&due)); /* posted, or running: it does not return yet */
    while (sem_wait(&entered) != 0)
        ;
    assert_false(is_idle(&due));
    sem_post(&leave);
    assert_int_equal(idle_due(), INT64_MAX);
    assert_false(tkc_loop_is_current(loop));
    assert_int_equal(tkc_loop_now_ms(loop), 1000);
}

/* A loop with nothing to do does nothing: it does not look at the clock over and over. */
TEST_WITH(an_idle_loop_sleeps, setup, teardown)
{
    for (int i = 0; i < 2; i++) {
        if (i) {
            one = (tkc_timer){ 0 };
            one_delay = 3600 * 1000;
            on_loop(arm_one);
        }
        (void)idle_due();
        int before = atomic_load(&looks);
        nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
        assert_int_equal(atomic_load(&looks), before);
    }
}

/* What was posted before the stop runs; a join that runs out of time changes nothing. */
TEST(a_stop_runs_what_is_posted)
{
    tinkc_error err = { 0 };
    tkc_task first = { .run = block }, more[3] = { { .run = count_run }, { .run = count_run }, { .run = count_run } };
    setup(NULL);
    assert_ok(err);
    n_run = 0;
    sem_init(&entered, 0, 0);
    sem_init(&leave, 0, 0);
    tkc_loop_post(loop, &first);
    while (sem_wait(&entered) != 0)
        ;
    for (size_t i = 0; i < 3; i++)
        tkc_loop_post(loop, &more[i]);
    tkc_loop_stop(loop);
    assert_false(tkc_loop_join(loop, 0));
    assert_false(tkc_loop_await(loop, 1));
    assert_int_equal(n_run, 0);
    sem_post(&leave);
    assert_true(tkc_loop_await(loop, PATIENCE_MS));
    assert_int_equal(n_run, 3);
    assert_int_equal(idle_due(), INT64_MAX);
    assert_int_equal(seen.detached, 0);
    assert_true(tkc_loop_await(loop, 0)); /* again, and it stays */
    assert_int_equal(teardown(NULL), 0);
}

static int n_last;
static void note_last(void *arg)
{
    assert_ptr_equal(arg, &n_last);
    assert_int_equal(seen.released, 1); /* the loop is gone */
    n_last++;
}

TEST(abandoned_after_its_end)
{
    for (int i = 0; i < 3; i++) {
        n_last = 0;
        setup(NULL);
        tkc_loop_stop(loop);
        if (i == 0)
            assert_true(tkc_loop_await(loop, PATIENCE_MS));
        int64_t due;
        wait_until(is_idle(&due)); /* ended */
        tkc_loop_abandon(loop, i < 2 ? note_last : NULL, &n_last);
        assert_int_equal(n_last, i < 2);
        assert_int_equal(seen.released, 1);
        assert_int_equal(seen.detached, 1);
    }
}

TEST(no_descriptor_no_loop)
{
    tinkc_error err = { 0 };
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    memset(&seen, 0, sizeof seen);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    tkc_loop *made = tkc_loop_new(NULL, &own_clock, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_null(made);
    assert_non_null(strstr(err.message, "wake-up descriptor"));
    assert_int_equal(seen.acquired, 0);
}
