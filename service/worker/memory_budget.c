/* memory_budget.c - an allocator that counts before it allocates.
 *
 * Bytes are counted before they are allocated, so many threads together never exceed the limit, not
 * even for a moment; a failed allocation is subtracted again. Used for what a request may make the
 * server decode. May touch: its counter, the allocator below it.
 */
#include "service/worker/memory_budget.h"

static bool take(tke_budget *b, size_t n)
{
    size_t used = atomic_load(&b->used);
    do {
        if (used > b->max || n > b->max - used)
            return false;
    } while (!atomic_compare_exchange_weak(&b->used, &used, used + n));
    return true;
}

static void give(tke_budget *b, size_t n)
{
    atomic_fetch_sub(&b->used, n);
}

static void *budget_alloc(size_t size, void *user)
{
    tke_budget *b = user;
    tinkc_error ignored = { 0 };
    if (!take(b, size))
        return NULL;
    void *got = tkc_alloc(b->from, size, &ignored);
    if (!got)
        give(b, size);
    return got;
}

static void *budget_resize(void *ptr, size_t old_size, size_t new_size, void *user)
{
    tke_budget *b = user;
    tinkc_error ignored = { 0 };
    /* Growth is counted before, shrinking after: the count is never below what is held. */
    if (new_size > old_size && !take(b, new_size - old_size))
        return NULL;
    void *got = tkc_resize(b->from, ptr, old_size, new_size, &ignored);
    if (!got && new_size > old_size)
        give(b, new_size - old_size);
    else if (got && new_size < old_size)
        give(b, old_size - new_size);
    return got;
}

static void budget_release(void *ptr, size_t size, void *user)
{
    tke_budget *b = user;
    if (ptr)
        give(b, size);
    tkc_release(b->from, ptr, size);
}

void tke_budget_init(tke_budget *b, const tinkc_allocator *from, size_t max)
{
    *b = (tke_budget){ .from = from, .max = max };
    b->allocator = (tinkc_allocator){
        .alloc = budget_alloc, .resize = budget_resize, .release = budget_release, .user = b
    };
    atomic_init(&b->used, 0);
}

size_t tke_budget_used(tke_budget *b)
{
    return atomic_load(&b->used);
}
