/* registry.h - every object by its name: base models, sessions, runs, samplers, checkpoints, jobs.
 *
 * What an object is and how it is made says its own header (sessions.h, runs.h, samplers.h, saved_checkpoints.h,
 * base_models.h, jobs.h).
 *
 * Locks: needs svc->lock, except while the service starts or ends.
 */
#ifndef TKE_SERVICE_REGISTRY_H
#define TKE_SERVICE_REGISTRY_H

#include "service/core/service_types.h"

bool tke_registry_open(tke_service *, tinkc_error *err);
/* When the service ends; no other thread is left. Frees the objects. */
void tke_registry_close(tke_service *);

enum {
    TKE_BASES = 0,
    TKE_SESSIONS,
    TKE_RUNS,
    TKE_SAMPLERS,
    TKE_CHECKPOINTS, /* with those that are gone and others still point to */
    TKE_JOBS,
    TKE_N_KINDS
};
size_t tke_count(const tke_service *, int32_t kind);

/* All of a kind, in no particular order: begin with *at 0; NULL = no more. Meanwhile objects may be removed, but none
 * added. */
tke_base *tke_next_base(tke_service *, size_t *at);
tke_session *tke_next_session(tke_service *, size_t *at);
tke_run *tke_next_run(tke_service *, size_t *at);
tke_sampler *tke_next_sampler(tke_service *, size_t *at);
tke_checkpoint *tke_next_checkpoint(tke_service *, size_t *at);
tke_job *tke_next_job(tke_service *, size_t *at);

/* The one of this name; NULL = none. */
tke_run *tke_run_named(tke_service *, tinkc_str id);
tke_sampler *tke_sampler_named(tke_service *, tinkc_str id);
tke_job *tke_find_job(tke_service *, const char *id);
/* Whatever its state: most want tke_find_checkpoint. */
tke_checkpoint *tke_checkpoint_named(tke_service *, const char *path);

bool tke_base_add(tke_service *, tke_base *, tinkc_error *err);
bool tke_job_add(tke_service *, tke_job *, tinkc_error *err);
tke_job *tke_take_job(tke_service *, const char *id); /* no longer there; NULL = it was not */

char *tke_copy(tke_service *, const char *text, tinkc_error *err); /* NULL stays NULL */

#endif
