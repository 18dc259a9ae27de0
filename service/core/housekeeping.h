/* housekeeping.h - what is done by the clock: polls, sessions, gaps, images, results, links. One thread; no locks held. */
#ifndef TKE_SERVICE_HOUSEKEEPING_H
#define TKE_SERVICE_HOUSEKEEPING_H

#include "service/core/service_types.h"

typedef struct tke_due { /* when the housekeeper's work of each kind is due; 0 = now */
    int64_t second, flush, minute;
} tke_due;

/* Does what is due; milliseconds until it must look again. Threads: one at a time while there are
 * streams. */
int64_t tke_housekeep(tke_service *, tke_due *);
void *tke_housekeeping_main(void *svc);

#endif
