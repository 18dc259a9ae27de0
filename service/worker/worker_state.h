/* worker_state.h - what the worker has before it and has begun. Of service/worker alone: others ask worker.h and
 * worker_files.h.
 *
 * Locks: svc->lock, except for what stands under "worker", which is its own.
 */
#ifndef TKE_SERVICE_WORKER_STATE_H
#define TKE_SERVICE_WORKER_STATE_H

#include <pthread.h>

#include "service/core/service_types.h"

struct tke_worker {
    tke_job *samples, **samples_end;   /* not yet with the generator */
    size_t n_samples, n_sample_tokens; /* queued or running */
    size_t n_images;                   /* being written */
    size_t n_file_work;                /* queued or running on the file thread, or being recorded */
    uint64_t turn;                     /* numbers the turns of runs */
    uint64_t room_changes;             /* counts every release of memory */
    int64_t idle_since_ms;             /* nothing is queued or running since; 0 = something is */
    bool wants_release;                /* the worker should free what only work needs */
    bool released;                     /* it has done so since the last work */

    /* worker */
    int64_t train_ns, sample_ns; /* had by each, while both had work */
    int64_t train_since_ns;      /* what training did since is not in train_ns yet */
    tke_base *training;          /* whose passes run now; NULL = none */
    size_t training_bytes;       /* and what they need at least */
    tke_job *generating;         /* samples that a generator has, by next */

    pthread_t thread;
    bool has_thread;
};

#endif
