/* The thread set: every task runs once, whatever the counts; it can be ended in any state. */
#include <stdatomic.h>

#include "math/threads.h"
#include "support/test_case.h"

enum { MOST = 1000 };

typedef struct counts {
    atomic_int runs[MOST];
    atomic_int bad_worker;
    int32_t n_threads;
} counts;

static void count_task(void *arg, int64_t task, int32_t worker)
{
    counts *c = arg;
    atomic_fetch_add(&c->runs[task], 1);
    if (worker < 0 || worker >= c->n_threads)
        atomic_fetch_add(&c->bad_worker, 1);
}

TEST(each_task_runs_once)
{
    static const int64_t sizes[] = { 0, 1, 2, 3, 7, 64, MOST };
    for (int32_t n = 1; n <= 5; n++) {
        tinkc_error err = { 0 };
        tke_threads *set = tke_threads_new(n, &err);
        assert_non_null(set);
        assert_int_equal(tke_threads_count(set), n);
        for (size_t round = 0; round < 200; round++) {
            counts c = { .n_threads = n };
            int64_t size = sizes[round % (sizeof sizes / sizeof *sizes)];
            tke_threads_run(set, size, count_task, &c);
            for (int64_t i = 0; i < MOST; i++)
                assert_int_equal(c.runs[i], i < size ? 1 : 0);
            assert_int_equal(c.bad_worker, 0);
        }
        tke_threads_free(set);
    }
}

TEST(ends_without_having_run)
{
    tinkc_error err = { 0 };
    tke_threads_free(tke_threads_new(4, &err));
    tke_threads *all = tke_threads_new(0, &err);
    assert_true(tke_threads_count(all) >= 1);
    tke_threads_free(all);
    tke_threads_free(NULL);
    assert_int_equal(err.code, 0);
}
