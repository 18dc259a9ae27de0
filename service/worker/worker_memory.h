/* worker_memory.h - who gets how much of the memory: models, snapshots, caches, work space.
 *
 * Thread: the worker, no locks held, unless a function says otherwise.
 */
#ifndef TKE_SERVICE_WORKER_MEMORY_H
#define TKE_SERVICE_WORKER_MEMORY_H

#include "device/memory_plan.h"
#include "service/core/service_types.h"

/* What is to be divided, of all base models whether loaded or not. Any thread. */
tke_memory_need tke_service_need(tke_service *);
/* How the memory of the device is divided at present. */
tke_memory_plan tke_work_plan(tke_service *, const tke_base *);
/* A tke_infer_options.more: may a cache take so much more? Work space of training is given back. */
bool tke_work_cache_room(void *svc, size_t bytes);
/* Gives svc->training what it may have; where that is too little, caches shrink. */
void tke_work_train_room(tke_service *);
/* True if `bytes` more fit in memory. If not, an idle model, if any, has been asked to sleep. */
bool tke_work_room(tke_service *, size_t bytes);
/* The same for one more snapshot, which evicts others that can be read again from disk. */
void tke_work_snapshot_room(tke_service *, size_t bytes);
/* Evicts all snapshots that can be read again from disk. */
void tke_work_forget_snapshots(tke_service *);
/* Locks: needs svc->lock. Are max_models in memory? staying: without those going to sleep. */
bool tke_models_full(const tke_service *, bool staying);

#endif
