/* registry.h - objects by name: the maps that sessions.h, runs.h, samplers.h and saved_checkpoints.h look into. */
#ifndef TKE_SERVICE_REGISTRY_H
#define TKE_SERVICE_REGISTRY_H

#include "service/core/service_types.h"

/* When the service ends; no other thread is left. */
void tke_state_free_all(tke_service *);
char *tke_copy(tke_service *, const char *text, tinkc_error *err); /* NULL stays NULL */

#endif
