/* worker.h - the one thread that owns all weights, gradients and caches: what it takes next, passes, steps, samples.
 *
 * Thread: the worker, unless it says otherwise. Locks: none held; it takes svc->lock to look
 * and to publish, never while it computes.
 */
#ifndef TKE_SERVICE_WORKER_H
#define TKE_SERVICE_WORKER_H

#include "service/core/service_types.h"

bool tke_worker_open(tke_service *, tinkc_error *err);
bool tke_worker_start(tke_service *, tinkc_error *err);
void tke_worker_join(tke_service *); /* after svc->stop; nothing if it was not started */
void tke_worker_close(tke_service *);

/* ---- for other threads ---- */

/* Locks: needs svc->lock, for all of these. */
void tke_samples_push(tke_service *, tke_job *); /* to the end of the queue */
bool tke_samples_have_room(const tke_service *, size_t n);
size_t tke_samples_in_flight(const tke_service *); /* queued or running */
uint64_t tke_next_turn(tke_service *);
void tke_room_changed(tke_service *); /* memory was released */
/* After idle_release_ms without work, has the worker free what only work needs. Takes svc->lock. */
void tke_worker_release_when_idle(tke_service *, int64_t now_ms);

/* ---- the worker's ---- */

void *tke_worker_main(void *svc);
/* Has training had no more than its share of the time? */
bool tke_training_is_behind(double share, int64_t train_ns, int64_t sample_ns);
/* Between two microbatches: samples, until training has had no more than its share. */
void tke_work_between(void *svc);
void tke_work_passes(tke_service *, tke_job **jobs, size_t n);
void tke_work_optim(tke_service *, tke_job *);
/* A run that lost requests in a crash accepts no passes, steps or saves until a load: the client
 * expects other weights. True: refused, job->invalid says why. */
bool tke_work_refuse_lost(tke_job *);
/* Loads the weights of a base model to the device, on first use. */
bool tke_work_base(tke_service *, tke_base *, tinkc_error *err);
void tke_work_wait_room(tke_service *, tke_run *, tke_job *);
/* Hands queued samples to the generators. True if any generator has work. */
bool tke_work_samples_start(tke_service *);
void tke_work_samples_step(tke_service *);
void tke_work_samples_stop(tke_service *);

#endif
