/* ledger.h - an allocator that counts what is out and fails on request: for leaks, for sizes that
 * must be given back as they were asked for, and for running out of memory at every place in turn.
 */
#ifndef TEST_LEDGER_H
#define TEST_LEDGER_H

#include "base/mem.h"
#include "support/guarded.h"

typedef struct ledger {
    size_t blocks, bytes;
    int left; /* allocations until it fails; below 0 = never */
} ledger;

static inline void *ledger_alloc(size_t size, void *user)
{
    ledger *l = user;
    if (l->left == 0)
        return NULL;
    l->left -= l->left > 0;
    l->blocks++;
    l->bytes += size;
    return guarded_alloc(size, NULL);
}

static inline void *ledger_resize(void *ptr, size_t old_size, size_t new_size, void *user)
{
    ledger *l = user;
    if (!ptr)
        return ledger_alloc(new_size, user);
    if (l->left == 0)
        return NULL;
    l->left -= l->left > 0;
    l->bytes += new_size - old_size;
    return guarded_resize(ptr, old_size, new_size, NULL);
}

static inline void ledger_release(void *ptr, size_t size, void *user)
{
    ledger *l = user;
    l->blocks--;
    l->bytes -= size;
    guarded_release(ptr, size, NULL);
}

static inline tinkc_allocator ledger_allocator(ledger *l)
{
    return (tinkc_allocator){ ledger_alloc, ledger_resize, ledger_release, l };
}

#endif
