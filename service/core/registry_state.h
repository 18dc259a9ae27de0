/* registry_state.h - the maps of registry.c, which alone includes this. Locks: as in registry.h. */
#ifndef TKE_SERVICE_REGISTRY_STATE_H
#define TKE_SERVICE_REGISTRY_STATE_H

#include "base/map.h"
#include "service/core/registry.h"

enum {
    TKE_DELETED = TKE_N_KINDS,
    TKE_N_OBJECTS
}; /* runs that were deleted: others may point to them */

struct tke_registry {
    tkc_map of[TKE_N_OBJECTS];
};

#endif
