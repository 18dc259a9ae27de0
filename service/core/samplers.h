/* samplers.h - sampling sessions: weights that clients sample from.
 *
 * A sampler lives as long as its session: pin that before you use one outside the lock.
 *
 * Locks: fields and functions need svc->lock.
 */
#ifndef TKE_SERVICE_SAMPLERS_H
#define TKE_SERVICE_SAMPLERS_H

#include "infer/infer.h"
#include "service/core/service_types.h"
#include "service/handlers/identity.h"

struct tke_sampler {
    char *id, *owner, *base_model;
    char *model_path; /* NULL = bare model or ephemeral */
    tke_session *session;
    tke_base *base;
    tke_checkpoint *checkpoint; /* of model_path */
    tke_snapshot *snapshot;     /* ephemeral, resident */
    char *spill;                /* folder of an ephemeral one on disk */
    int64_t used_ms;
    size_t kept;       /* see tke_kept_take; those of training are bounded by it, and count nothing */
    int64_t n_clients; /* numbers given to copies; the original has 0 */
    bool ephemeral;
    tke_hash128 hash;
};

tke_sampler *tke_find_sampler(tke_service *, const char *id);
tke_sampler *tke_sampler_add(tke_service *, const char *id, const char *owner, tinkc_error *err);
/* Removes one that could not be completed; nobody else has it yet. */
void tke_sampler_undo(tke_service *, tke_sampler *);

#endif
