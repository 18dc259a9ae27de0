/* memory_plan.h - how the memory of a device is divided. Pure arithmetic.
 *
 *     available = weights + adapters + pool
 *
 * The pool is shared by the cache of sampling and the work space of training. Neither has a part of
 * its own: the two never compute at the same time, so each may take what the other does not hold,
 * and training can always have half of it (the cache drops prefixes and preempts samples, which are
 * computed again). A setting of the user replaces a ceiling and takes its part out of the sharing.
 */
#ifndef TKE_DEVICE_MEMORY_PLAN_H
#define TKE_DEVICE_MEMORY_PLAN_H

#include <stdbool.h>
#include <stddef.h>

typedef struct tke_memory_need {
    size_t available;   /* what the engine may use of the device */
    size_t weights;     /* of base models, where `available` includes them */
    size_t adapters;    /* and adapters, snapshots of them, optimizer states */
    size_t block_bytes; /* of the cache, for block_tokens positions of all layers; 0 = not known */
    size_t block_tokens;
    size_t context;       /* positions of the longest sequence */
    size_t max_seqs;      /* sequences that are computed at once: more cache is of little use */
    bool addresses_count; /* a limit is on addresses: the cache reserves them whether used or not */
    size_t kv_bytes;      /* the user's settings; 0 = by the plan */
    size_t train_bytes;
} tke_memory_need;

typedef struct tke_memory_plan {
    size_t pool;        /* for cache and work space together */
    size_t cache_most;  /* ceiling of the cache */
    size_t cache_need;  /* what one sequence of the whole context takes */
    size_t train_most;  /* ceiling of the work space of training */
    size_t train_least; /* what training gets even beside a full cache */
} tke_memory_plan;

tke_memory_plan tke_memory_plan_make(const tke_memory_need *);

#endif
