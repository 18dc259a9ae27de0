/* memory_budget.h - an allocator with a bound, over another one.
 *
 * Everything that is allocated for requests under way goes through one of these, so that many of them
 * together cannot take more than their share, whatever they unpack or decode to.
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
