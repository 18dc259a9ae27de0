/* unrecorded.h - requests that were answered while the disk was full and their rows were not
 * written.
 *
 * Their numbers must not be forgotten: after a restart the next number would wait for one that
 * never arrives again. So the store has a preallocated file of fixed size: writing a record into it
 * needs no disk space. At the next start its records become rows.
 */
#ifndef TKE_SERVICE_UNRECORDED_H
#define TKE_SERVICE_UNRECORDED_H

#include "service/handlers/identity.h"
#include "service/store/store.h"

typedef struct tke_unrecorded {
    tke_hash128 run;  /* of the run's id */
    tke_hash128 hash; /* of the request: a repeat after the restart is recognised by it */
    int64_t seq;
    int32_t kind;   /* TKE_JOB_* */
    uint32_t epoch; /* of its request id */
    bool failed;    /* and changed nothing */
} tke_unrecorded;

tke_hash128 tke_unrecorded_run(const char *run_id);
/* Thread: the store's writer, or before it has work. False: no record could be kept. */
bool tke_unrecorded_add(tke_store *, const tke_unrecorded *);
typedef bool tke_unrecorded_fn(const tke_unrecorded *, void *user, tinkc_error *err);
bool tke_unrecorded_each(tke_store *, tke_unrecorded_fn *fn, void *user, tinkc_error *err);
void tke_unrecorded_clear(tke_store *);

#endif
