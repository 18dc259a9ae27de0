/* test_memory_budget.c - budgets of memory: who gets how much. */
#include "service/worker/memory_budget.h"
#include "support/check.h"

static bool below_fails;

static void *below_alloc(size_t size, void *user)
{
    (void)user;
    return below_fails ? NULL : malloc(size);
}

static void *below_resize(void *ptr, size_t old_size, size_t size, void *user)
{
    (void)user, (void)old_size;
    return below_fails ? NULL : realloc(ptr, size);
}

static void below_release(void *ptr, size_t size, void *user)
{
    (void)user, (void)size;
    free(ptr);
}

TEST(a_budget_refuses_beyond_its_bytes)
{
    static const tinkc_allocator below = { below_alloc, below_resize, below_release, NULL };
    tke_budget b;
    tke_budget_init(&b, &below, 100);
    const tinkc_allocator *a = &b.allocator;
    assert_int_equal(tke_budget_used(&b), 0);
    assert_null(a->alloc(101, a->user));
    assert_int_equal(tke_budget_used(&b), 0);
    void *one = a->alloc(60, a->user), *two = a->alloc(40, a->user);
    assert_true(one && two);
    assert_int_equal(tke_budget_used(&b), 100);
    assert_null(a->alloc(1, a->user));
    assert_null(a->resize(two, 40, 41, a->user));
    assert_int_equal(tke_budget_used(&b), 100);
    two = a->resize(two, 40, 30, a->user);
    assert_int_equal(tke_budget_used(&b), 90);
    two = a->resize(two, 30, 40, a->user);
    assert_non_null(two);
    assert_int_equal(tke_budget_used(&b), 100);
    a->release(one, 60, a->user);
    assert_int_equal(tke_budget_used(&b), 40);
    a->release(NULL, 10, a->user);
    assert_int_equal(tke_budget_used(&b), 40);
    below_fails = true; /* nothing is counted that was not given */
    assert_null(a->alloc(10, a->user));
    assert_null(a->resize(two, 40, 50, a->user));
    assert_null(a->resize(two, 40, 20, a->user));
    assert_null(a->resize(two, 40, 40, a->user));
    below_fails = false;
    assert_int_equal(tke_budget_used(&b), 40);
    two = a->resize(two, 40, 40, a->user);
    assert_int_equal(tke_budget_used(&b), 40);
    a->release(two, 40, a->user);
    assert_int_equal(tke_budget_used(&b), 0);
}
