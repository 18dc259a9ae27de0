/* threads.h - a fixed set of threads that run one loop at a time (fork, join).
 *
 * The thread that calls is worker 0 and works along, so a set of one starts no thread at all.
 * Between loops the others spin briefly, then sleep. A task must write only what belongs to its
 * index: then results cannot depend on how many threads there are or which one took what.
 * [one thread calls; not from inside a task]
 */
#ifndef TKE_TENSOR_THREADS_H
#define TKE_TENSOR_THREADS_H

#include "base/err.h"

typedef struct tke_threads tke_threads;

/* `task` counts from 0; `worker` (below tke_threads_count) is for scratch memory. */
typedef void tke_task_fn(void *arg, int64_t task, int32_t worker);

/* n = 0: one for each processor this process may use. */
tke_threads *tke_threads_new(int32_t n, tinkc_error *err);
void tke_threads_free(tke_threads *); /* NULL allowed */
int32_t tke_threads_count(const tke_threads *);

/* Runs fn for tasks 0 .. n_tasks-1 and returns when all are done. Each worker begins with its share
 * (task t of n: worker t*count/n, about) and then helps the others. */
void tke_threads_run(tke_threads *, int64_t n_tasks, tke_task_fn *fn, void *arg);

#endif
