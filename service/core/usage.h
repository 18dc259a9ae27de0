/* usage.h - what each owner used, by hour, and who changed what. Any thread, no locks held.
 *
 * Locks: its own, two: one for the counters, inside which no other is taken, and one that makes flushes follow one
 * another. */
#ifndef TKE_SERVICE_USAGE_H
#define TKE_SERVICE_USAGE_H

#include <pthread.h>

#include "base/map.h"
#include "service/core/service_types.h"

struct tke_usage {
    pthread_mutex_t lock;
    tkc_map counters;           /* not yet in the store */
    pthread_mutex_t flush_lock; /* outside of the other */
};

enum {
    TKE_USE_TRAINING = 0,
    TKE_USE_PREFILL,
    TKE_USE_PREFILL_CACHED,
    TKE_USE_SAMPLED,
    TKE_USE_CHECKPOINT
};

bool tke_usage_open(tke_service *, tinkc_error *err);
void tke_usage_close(tke_service *); /* flush first */
void tke_usage_add(tke_service *, const char *owner, const char *session_id, const char *base_model,
                   int32_t kind, int64_t count);
void tke_usage_flush(tke_service *);
/* event: "<resource>_<action>", as the SDK documents it. */
void tke_audit_add(tke_service *, const char *owner, const char *event, const char *model_id,
                   const char *path, const char *purpose);

#endif
