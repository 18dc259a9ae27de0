/* results.h - where results are stored, and for how long.
 *
 * Locks: the bytes are atomic: any thread may ask for them. What may be dropped is a job, and needs svc->lock.
 */
#ifndef TKE_SERVICE_RESULTS_H
#define TKE_SERVICE_RESULTS_H

#include <stdatomic.h>

#include "base/pool.h"
#include "service/store/store.h"
#include "service/worker/jobs.h"
#include "tinkc/sys/transport.h"

struct tke_results {
    tkc_pool *readers; /* one thread; NULL = stopped */
    _Atomic int64_t bytes, memory;
};

bool tke_results_open(tke_service *, tinkc_error *err);
/* Ends the thread that reads files: from then on who asks reads. */
void tke_results_stop(tke_service *);
void tke_results_close(tke_service *);
/* Of all results, and of those that are not in files. */
int64_t tke_results_bytes(const tke_service *);
int64_t tke_results_memory(const tke_service *);
/* Do they take more than result_store_bytes? */
bool tke_results_full(const tke_service *);
/* Is this result large enough for a file? */
bool tke_result_is_large(const tke_job *);
/* tke_txn_fn with a job as user: moves its result to a file. One that cannot be written stays in
 * memory. Thread: the store's writer. */
void tke_result_spill(tke_store *, void *job, tinkc_error *err);
/* Finds the file of a result that survived a restart. */
bool tke_result_find(tke_job *, tinkc_error *err);
/* Calls send with the result's bytes, now or on another thread; err is set if they are gone. */
typedef struct tke_result_read tke_result_read;
struct tke_result_read {
    tkc_job base;
    tke_job *job; /* holds a reference */
    tinkc_reply *reply;
    bool proto, remote;
    void (*send)(tke_result_read *, tinkc_bytes, const tinkc_error *err);
};

void tke_result_fetch(tke_result_read *); /* consumes it: from tkc_zalloc(svc->a) */
/* Locks: needs svc->lock, for both. */
void tke_result_count(tke_service *, tke_job *);
void tke_result_uncount(tke_service *, tke_job *);
/* Housekeeper. Drops expired results and, if there are too many, delivered ones, oldest first. A
 * result that was not fetched is never dropped for lack of room. */
void tke_results_reap(tke_service *, int64_t now_ms);

#endif
