/* worker_memory.h - who gets how much of the memory: models, snapshots, caches, work space.
 *
 * Thread: the worker, no locks held, unless a function says otherwise.
 */
#ifndef TKE_SERVICE_WORKER_MEMORY_H
#define TKE_SERVICE_WORKER_MEMORY_H

#include <stdatomic.h>

#include "device/memory_plan.h"
#include "service/core/service_types.h"

/* Bytes that the parts say they hold. Any thread, no locks needed; who compares them with a limit before he takes more
 * holds svc->lock meanwhile. */
enum {
    TKE_HELD_ADAPTERS = 0,
    TKE_HELD_SNAPSHOTS,
    TKE_HELD_LOSSES, /* custom ones, compiled */
    TKE_HELD_QUEUED, /* requests of training that have not run */
    TKE_N_HELD
};
typedef struct tke_held {
    _Atomic size_t bytes[TKE_N_HELD];
} tke_held;
size_t tke_held_bytes(const tke_service *, int32_t kind);
/* Adapters and snapshots. */
size_t tke_held_weights(const tke_service *);
void tke_held_add(tke_service *, int32_t kind, size_t bytes);
void tke_held_sub(tke_service *, int32_t kind, size_t bytes);

/* What is to be divided, of all base models whether loaded or not. Any thread. */
tke_memory_need tke_service_need(tke_service *);
/* How the memory of the device is divided at present. */
tke_memory_plan tke_work_plan(tke_service *, const tke_base *);
/* A tke_infer_options.more: may a cache take so much more? Work space of training is given back. */
bool tke_work_cache_room(void *svc, size_t bytes);
/* Gives svc->training what it may have; where that is too little, caches shrink. */
void tke_work_train_room(tke_service *);
/* The next base model, without svc->lock held meanwhile: they are only added. Begin with *at 0; NULL = no more. */
tke_base *tke_work_next_base(tke_service *, size_t *at);
/* True if `bytes` more fit in memory. If not, an idle model, if any, has been asked to sleep. */
bool tke_work_room(tke_service *, size_t bytes);
/* The same for one more snapshot, which evicts others that can be read again from disk. */
void tke_work_snapshot_room(tke_service *, size_t bytes);
/* Evicts all snapshots that can be read again from disk. */
void tke_work_forget_snapshots(tke_service *);
/* Locks: needs svc->lock. Are max_models in memory? staying: without those going to sleep. */
bool tke_models_full(tke_service *, bool staying);

#endif
