/* service_state.h - the object that ties the parts of the service together. Internal.
 *
 * Each part has a header of its own that says what it is for, which thread may call it and which lock
 * it needs; include those, and this one only to reach a field.
 *
 * Locks: every field needs svc->lock unless it stands above the lock, under "worker", which only that
 * thread touches, or is marked otherwise. Nothing waits, computes or touches a disk under svc->lock.
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
#include "service/core/service_types.h"
#include "service/core/settings.h"
#include "service/handlers/auth_token.h"
#include "service/handlers/identity.h"
#include "service/worker/memory_budget.h"

struct tke_service {
    tkc_refs refs;
    const tinkc_allocator *a;
    tkc_log log;
    const tinkc_clock *clock;
    tke_settings set;
    tke_token_secret *token_secret; /* in secret pages; constant */
    tke_owner_salt owner_salt;      /* constant */
    tke_budget bodies;              /* of requests under way */
    _Atomic int64_t gauges[TKE_N_GAUGES];
    tke_store *store;
    tke_device *device;              /* the worker's */
    tke_device_reason device_reason; /* why this one; constant */
    const char *memory_bounded;      /* static: by what the memory of the engine is bounded */
    tkc_pool *files;                 /* one thread: tensor files */
    tkc_pool *downloads;             /* a thread for each, so that slow readers block nothing else */
    tkc_pool *texts;                 /* two threads: templates and tokenizers of requests */
    tkc_pool *results;               /* one thread: reads results that are in files */
    int64_t epoch;
    atomic_bool draining;
    _Atomic int64_t max_body;

    _Atomic(tke_gone_fn *) gone;
    pthread_mutex_t tokenizer_lock; /* to open one; never take svc->lock inside it */
    pthread_mutex_t usage_lock; /* to hand counters to the store; svc->lock is taken inside it */

    pthread_mutex_t lock;
    pthread_cond_t work;               /* the worker has something to look at */
    pthread_cond_t timer;              /* the housekeeper's next deadline has changed */
    pthread_cond_t idle;               /* an image was written, or a job ended */
    tkc_map bases;                     /* name -> tke_base */
    tkc_map sessions;                  /* id */
    tkc_map runs;                      /* id */
    tkc_map deleted_runs;              /* by their addresses: others may point to them */
    tkc_map samplers;                  /* id */
    tkc_map checkpoints;               /* tinker path */
    tkc_map jobs;                      /* request id */
    tkc_map archives;                  /* token */
    tkc_map uploads;                   /* id */
    tkc_map idempotent;                /* key */
    tkc_map tenants;                   /* owner */
    tke_job *samples, **samples_end;   /* not yet with the generator */
    size_t n_samples, n_sample_tokens; /* queued or running */
    tke_waiter *first_waiter, *last_waiter;
    size_t n_many; /* of them, those that wait for any sample of a session */
    int64_t n_samples_done;
    tke_stream *streams;
    size_t n_images;    /* being written */
    size_t n_file_work; /* queued or running on the file thread, or being recorded */
    size_t adapter_bytes, snapshot_bytes;
    size_t loss_bytes;     /* compiled custom losses */
    size_t kept;           /* see tke_kept_take */
    int64_t result_bytes;  /* of all results */
    int64_t result_memory; /* of those that are not in files */
    size_t queued_bytes;
    int64_t idle_since_ms; /* nothing is queued or running since; 0 = something is */
    bool wants_release;    /* the worker should free what only work needs */
    bool released;         /* it has done so since the last work */
    size_t n_downloads;
    struct tke_deferred *deferred; /* all of them */
    size_t n_texts;                /* requests queued or running on the text threads */
    uint64_t turn;
    uint64_t room_changes; /* counts every release of memory */
    tkc_map usage;         /* counters not yet in the store */
    uint64_t n_requests, n_tokens_trained, n_tokens_sampled, n_tokens_prefilled;
    uint64_t n_sample_steps, n_worker_waits;
    bool stop;

    /* worker */
    int64_t train_ns, sample_ns; /* had by each, while both had work */
    int64_t train_since_ns;      /* what training did since is not in train_ns yet */
    tke_base *training;          /* whose passes run now; NULL = none */
    size_t training_bytes;       /* and what they need at least */
    tke_job *generating;         /* samples that a generator has, by next */

    pthread_t worker, housekeeper;
    bool has_worker, has_housekeeper;

    tinkc_transport transport; /* constant after start */
};

#endif
