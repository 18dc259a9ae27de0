/* recovery.h - the start: rows, journals and folders become sessions, runs, samplers and checkpoints again. */
#ifndef TKE_SERVICE_RECOVERY_H
#define TKE_SERVICE_RECOVERY_H

#include "service/core/service_types.h"

bool tke_boot(tke_service *, tinkc_error *err);
/* Connects runs and samplers to a base model that was just registered. Locks: needs svc->lock. */
void tke_boot_base(tke_service *, tke_base *);

#endif
