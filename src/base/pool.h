/* pool.h - a few helper threads that run jobs off the thread that must not wait.
 *
 * Threads start on first need. Jobs run in order of arrival; there is no limit on how many wait,
 * because what is submitted has already been admitted elsewhere.
 */
#ifndef TKC_BASE_POOL_H
#define TKC_BASE_POOL_H

#include "base/mem.h"

typedef struct tkc_pool tkc_pool;

/* A job's memory is the caller's (usually part of a larger object) until `run` is called. */
typedef struct tkc_job tkc_job;
struct tkc_job {
    void (*run)(tkc_job *);
    tkc_job *next; /* the pool's */
};

tkc_pool *tkc_pool_new(const tinkc_allocator *a, size_t n_threads, const char *name,
                       tinkc_error *err);
/* Fails only if no thread could be started; then `run` was not and will not be called. */
bool tkc_pool_submit(tkc_pool *, tkc_job *, tinkc_error *err);
/* Runs what is queued, then ends the threads. NULL allowed. Never from inside a job. */
void tkc_pool_free(tkc_pool *);

#endif
