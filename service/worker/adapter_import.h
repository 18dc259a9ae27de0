/* adapter_import.h - adapters in PEFT's form become checkpoints of a run. Takes svc->lock; hold none. */
#ifndef TKE_SERVICE_ADAPTER_IMPORT_H
#define TKE_SERVICE_ADAPTER_IMPORT_H

#include "service/core/service_types.h"
#include "tinkc/engine.h"

typedef struct tke_import_as {
    const char *owner, *project_id;
    int32_t rank;   /* that it must have; 0 = any */
    uint32_t train; /* TKE_TRAIN_* that it may have; 0 = any */
    bool fresh;     /* a run of its own, else the one named after the files */
} tke_import_as;

/* Waits, so never call it on the worker's thread. BAD_REQUEST: it is not what `as` says. */
bool tke_import_adapter(tke_service *, const tinkc_import_options *, tke_import_as,
                        tinkc_text *weights, tinkc_text *sampler, tinkc_error *err);

#endif
