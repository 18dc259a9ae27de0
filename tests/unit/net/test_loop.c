/* test_loop.c - the loop by itself: tasks in order, timers in order, time that jumps. */
#include <stdatomic.h>

#include "net/loop.h"
#include "support/patience.h"
#include "support/test_case.h"
#include "tinkc/sys/mock.h"

static tinkc_mock *mock;
static tkc_loop *loop;

static int setup(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    mock = tinkc_mock_new(TINKC_MOCK_EMPTY, &err);
    loop = tkc_loop_new(NULL, tinkc_mock_clock(mock), &err);
    return err.code;
}

static int teardown(void **state)
{
    (void)state;
    tkc_loop_stop(loop);
    bool ended = tkc_loop_join(loop, PATIENCE_MS);
    tinkc_mock_free(mock);
    return ended ? 0 : 1;
}

static int64_t settle(void)
{
    tinkc_error err = { 0 };
    int64_t next = tinkc_mock_settle(mock, PATIENCE_MS, &err);
    assert_int_equal(err.code, 0);
    return next;
}

enum { N = 500 };

typedef struct item {
    tkc_task task;
    tkc_timer timer;
    int64_t delay;
    size_t index;
} item;

static item items[N];
static size_t order[N], n_order;

static void note_task(tkc_task *task)
{
    assert_true(tkc_loop_is_current(loop));
    order[n_order++] = TKC_OWNER(task, item, task)->index;
}

TEST_WITH(tasks_run_in_order, setup, teardown)
{
    n_order = 0;
    for (size_t i = 0; i < N; i++) {
        items[i].index = i;
        items[i].task.run = note_task;
        tkc_loop_post(loop, &items[i].task);
    }
    assert_int_equal(settle(), TINKC_FOREVER);
    assert_int_equal(n_order, N);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(order[i], i);
}

static void note_timer(tkc_timer *timer)
{
    order[n_order++] = TKC_OWNER(timer, item, timer)->index;
}

static void arm_all(tkc_task *task)
{
    (void)task;
    for (size_t i = 0; i < N; i++) {
        items[i].index = i;
        items[i].timer.fire = note_timer;
        items[i].delay = (int64_t)(i * 7919 % 251) + 1;
        tkc_loop_arm(loop, &items[i].timer, items[i].delay);
    }
    for (size_t i = 0; i < N; i += 3) /* some of them never */
        tkc_loop_disarm(loop, &items[i].timer);
    for (size_t i = 1; i < N; i += 3) /* some twice: the second counts */
        tkc_loop_arm(loop, &items[i].timer, items[i].delay + 300);
}

TEST_WITH(timers_fire_in_order, setup, teardown)
{
    static tkc_task task = { .run = arm_all };
    n_order = 0;
    tkc_loop_post(loop, &task);
    int64_t next, elapsed = 0;
    while ((next = settle()) != TINKC_FOREVER) {
        tinkc_mock_advance(mock, next);
        elapsed += next;
        settle();
        for (size_t i = 0; i < n_order; i++)
            assert_true(items[order[i]].delay + (order[i] % 3 == 1 ? 300 : 0) <= elapsed);
    }
    size_t wanted = 0;
    for (size_t i = 0; i < N; i++)
        wanted += i % 3 != 0;
    assert_int_equal(n_order, wanted);
    for (size_t i = 1; i < n_order; i++) {
        const item *a = &items[order[i - 1]], *b = &items[order[i]];
        int64_t at = a->delay + (a->index % 3 == 1 ? 300 : 0);
        int64_t bt = b->delay + (b->index % 3 == 1 ? 300 : 0);
        assert_true(at < bt || (at == bt && (a->index % 3 != b->index % 3 || a->index < b->index)));
    }
}

static atomic_int ended;

static void set_ended(void *arg)
{
    atomic_store((atomic_int *)arg, 1);
}

TEST(an_abandoned_loop_ends_by_itself)
{
    tinkc_error err = { 0 };
    tkc_loop *other = tkc_loop_new(NULL, tkc_clock_real(), &err);
    assert_non_null(other);
    tkc_loop_abandon(other, set_ended, &ended);
    tkc_loop_stop(other);
    wait_until(atomic_load(&ended));
    assert_true(atomic_load(&ended));
}

static atomic_int fired;

static void note_fired(tkc_timer *timer)
{
    (void)timer;
    atomic_fetch_add(&fired, 1);
}

typedef struct arming {
    tkc_task task;
    tkc_loop *loop;
    tkc_timer soon, never;
} arming;

static void arm_two(tkc_task *task)
{
    arming *a = TKC_OWNER(task, arming, task);
    tkc_loop_arm(a->loop, &a->soon, 1);
    tkc_loop_arm(a->loop, &a->never, (int64_t)1000 * INT32_MAX);
}

/* By the real clock: a loop that has nothing else to do wakes up for its timer, and only for that. */
TEST(timers_end_the_wait)
{
    tinkc_error err = { 0 };
    static arming a = { .task = { .run = arm_two }, .soon = { .fire = note_fired }, .never = { .fire = note_fired } };
    a.loop = tkc_loop_new(NULL, tkc_clock_real(), &err);
    assert_non_null(a.loop);
    tkc_loop_post(a.loop, &a.task);
    wait_until(atomic_load(&fired));
    tkc_loop_stop(a.loop);
    assert_true(tkc_loop_join(a.loop, PATIENCE_MS));
    assert_int_equal(atomic_load(&fired), 1);
}
