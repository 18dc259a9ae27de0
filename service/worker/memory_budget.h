/* memory_budget.h - an allocator with a limit, on top of another allocator.
 *
 * All memory for requests in progress comes from one of these, so many requests together cannot
 * take more than their share, no matter what they decompress or decode to.
 */
#ifndef TKE_SERVICE_MEMORY_BUDGET_H
#define TKE_SERVICE_MEMORY_BUDGET_H

#include <stdatomic.h>

#include "base/mem.h"

typedef struct tke_budget {
    tinkc_allocator allocator; /* hand out its address; any thread */
    const tinkc_allocator *from;
    size_t max; /* constant */
    _Atomic size_t used;
} tke_budget;

void tke_budget_init(tke_budget *, const tinkc_allocator *from, size_t max);
size_t tke_budget_used(tke_budget *);

#endif
