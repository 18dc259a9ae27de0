/* usage.h - what each owner used, by hour, and who changed what. Any thread, no locks held. */
#ifndef TKE_SERVICE_USAGE_H
#define TKE_SERVICE_USAGE_H

#include "service/core/service_types.h"

enum {
    TKE_USE_TRAINING = 0,
    TKE_USE_PREFILL,
    TKE_USE_PREFILL_CACHED,
    TKE_USE_SAMPLED,
    TKE_USE_CHECKPOINT
};

void tke_usage_add(tke_service *, const char *owner, const char *session_id, const char *base_model,
                   int32_t kind, int64_t count);
void tke_usage_flush(tke_service *);
/* event: "<resource>_<action>", as the SDK documents it. */
void tke_audit_add(tke_service *, const char *owner, const char *event, const char *model_id,
                   const char *path, const char *purpose);

#endif
