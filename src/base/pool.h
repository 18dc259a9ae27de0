/* pool.h - a few helper threads, for jobs whose submitting thread must not wait.
 *
 * Threads start on demand. Jobs run in order of arrival; the queue has no limit, because callers
 * have already limited what they submit.
 */
#ifndef TKC_BASE_POOL_H
#define TKC_BASE_POOL_H

#include "base/mem.h"

typedef struct tkc_pool tkc_pool;

/* Owned by the caller (usually part of a larger object); must stay valid until `run` is called. */
typedef struct tkc_job tkc_job;
struct tkc_job {
    void (*run)(tkc_job *);
    tkc_job *next; /* the pool's */
};

tkc_pool *tkc_pool_new(const tinkc_allocator *a, size_t n_threads, const char *name,
                       tinkc_error *err);
/* Fails only if no thread could be started; `run` is then never called. */
bool tkc_pool_submit(tkc_pool *, tkc_job *, tinkc_error *err);
/* Runs all queued jobs, then ends the threads. NULL allowed. Never call it from inside a job. */
void tkc_pool_free(tkc_pool *);

#endif
