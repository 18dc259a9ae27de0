/* service_state.h - what ties the parts of the service together. Internal.
 *
 * A part is a pointer here; what it holds, its own files alone can see. Its header says what it is for, which threads
 * may call it and which lock it has:
 *
 *     part            header                      lock
 *     registry        core/registry.h             svc->lock, and so have the objects in it
 *     worker          worker/worker.h             svc->lock, or none: its thread's own
 *     polls           handlers/futures_poll.h     svc->lock
 *     idempotency     handlers/idempotency.h      svc->lock
 *     tenants         core/tenants.h              its own
 *     usage           core/usage.h                its own
 *     results         worker/results.h            its own counters are atomic
 *     streams         worker/sample_events.h      its own, and one for each stream
 *     long_requests   handlers/long_requests.h    its own
 *     downloads       handlers/downloads.h        its own
 *     uploads         handlers/uploads.h          its own
 *     store           store/store.h               its own
 *
 * A part's own lock is taken inside svc->lock or without it, never around it. svc->lock guards what must change
 * together: an answered request moves its job, its run, the worker's queue and the polls that wait in one step
 * (docs/architecture.md). Nothing waits, computes or touches a disk under it.
 */
#ifndef TKE_SERVICE_SERVICE_STATE_H
#define TKE_SERVICE_SERVICE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/log.h"
#include "base/map.h"
#include "base/pool.h"
#include "base/thread.h"
#include "device/device.h"
#include "service/core/counters.h"
#include "service/core/service_types.h"
#include "service/core/settings.h"
#include "service/handlers/auth_token.h"
#include "service/handlers/identity.h"
#include "service/worker/memory_budget.h"
#include "service/worker/worker_memory.h"

struct tke_service {
    /* Constant after the start. */
    tkc_refs refs;
    const tinkc_allocator *a;
    tkc_log log;
    const tinkc_clock *clock;
    tke_settings set;
    tke_token_secret *token_secret; /* in secret pages */
    tke_owner_salt owner_salt;
    tke_device *device;              /* the worker's */
    tke_device_reason device_reason; /* why this one */
    const char *memory_bounded;      /* static: by what the memory of the engine is bounded */
    tkc_pool *files;                 /* one thread: tensor files */
    int64_t epoch;
    tinkc_transport transport;
    pthread_t housekeeper;
    bool has_housekeeper;

    /* Parts. */
    tke_registry *registry;
    tke_store *store;
    tke_worker *worker;
    tke_polls *polls;
    tke_results *results;
    tke_streams *streams;
    tke_tenants *tenants;
    tke_usage *usage;
    tke_idempotency *idempotency;
    tke_long_requests *long_requests;
    tke_downloads *downloads;
    tke_uploads *uploads;

    /* Any thread, no lock. */
    tke_budget bodies; /* of requests under way */
    tke_counters counters;
    tke_held held;
    _Atomic int64_t gauges[TKE_N_GAUGES];
    atomic_bool draining;
    atomic_bool threads_run; /* the worker and the housekeeper: from here on svc->lock is needed */
    _Atomic int64_t max_body;
    _Atomic(tke_gone_fn *) gone;

    pthread_mutex_t tokenizer_lock; /* to open one; never take svc->lock inside it */

    pthread_mutex_t lock;
    pthread_cond_t work;  /* the worker has something to look at */
    pthread_cond_t timer; /* the housekeeper's next deadline has changed */
    pthread_cond_t idle;  /* an image was written, or a job ended */
    bool stop;
};

/* All parts but the store, of a service whose `a`, `clock` and `set` are there. False: close what was opened. */
bool tke_parts_open(tke_service *, tinkc_error *err);
void tke_parts_close(tke_service *);

#endif
