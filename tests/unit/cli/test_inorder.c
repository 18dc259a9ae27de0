/* test_inorder.c - pieces of work on many threads: each is done once, results come in order, and no
 * more pieces exist at a time than were promised. */
#include <stdatomic.h>

#include "../../../cli/data/ordered_pool.h"
#include "support/test_case.h"

typedef struct work {
    size_t n, taken, delivered;
    atomic_size_t worked, alive, most, dirty;
} work;

typedef struct piece {
    size_t number;
    uint64_t result;
    char zeroed[40];
} piece;

static bool take(void *p, void *user)
{
    work *w = user;
    piece *one = p;
    for (size_t i = 0; i < sizeof one->zeroed; i++)
        atomic_fetch_add(&w->dirty, one->zeroed[i] != 0);
    if (w->taken == w->n)
        return false;
    one->number = w->taken++;
    size_t alive = atomic_fetch_add(&w->alive, 1) + 1, most = atomic_load(&w->most);
    while (alive > most && !atomic_compare_exchange_weak(&w->most, &most, alive))
        ;
    return true;
}

/* Some take much longer than others, so that they end in another order than they began. */
static uint64_t effort(size_t number)
{
    uint64_t x = number + 1;
    for (size_t i = 0; i < number * 7919 % 5000; i++)
        x = x * 6364136223846793005u + 1442695040888963407u;
    return x;
}

static void do_it(void *p, void *user)
{
    piece *one = p;
    one->result = effort(one->number);
    one->zeroed[0] = 1;
    atomic_fetch_add(&((work *)user)->worked, 1);
}

static void deliver(void *p, void *user)
{
    work *w = user;
    piece *one = p;
    assert_int_equal(one->number, w->delivered);
    assert_int_equal(one->result, effort(one->number));
    w->delivered++;
    atomic_fetch_sub(&w->alive, 1);
}

static void run(size_t n, size_t threads)
{
    work w = { .n = n };
    cli_inorder how = { sizeof(piece), take, do_it, deliver, &w };
    assert_true(cli_inorder_run(&how, threads));
    assert_int_equal(w.delivered, n);
    assert_int_equal(atomic_load(&w.dirty), 0);
    assert_int_equal(atomic_load(&w.worked), n);
    assert_true(atomic_load(&w.most) <= (threads > 1 ? threads * 4 : 1));
}

TEST(results_come_in_order_however_many_threads_work)
{
    static const size_t amounts[] = { 0, 1, 2, 7, 8, 9, 1000 }, threads[] = { 1, 2, 3, 8, 64, 1000 };
    for (size_t a = 0; a < sizeof amounts / sizeof *amounts; a++)
        for (size_t t = 0; t < sizeof threads / sizeof *threads; t++)
            run(amounts[a], threads[t]);
    assert_true(cli_cores() >= 1);
}
