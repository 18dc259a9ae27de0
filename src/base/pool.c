/* pool.c - helper threads. May touch: mem, thread. Its lock is a leaf: nothing else is taken
 * inside it, and jobs run outside it. */
#include "base/pool.h"

#include <assert.h>

#include "base/thread.h"

struct tkc_pool {
    const tinkc_allocator *a; /* constant after _new, as are the next two */
    size_t n_threads;
    char name[16];

    /* Any thread, lock held. */
    pthread_mutex_t lock;
    pthread_cond_t work;
    tkc_job *first, **last;
    size_t n_started, n_idle;
    size_t n_queued; /* a woken thread still counts as idle until it has the lock */
    bool ending;
    pthread_t threads[];
};

static size_t pool_size(size_t n_threads)
{
    return sizeof(tkc_pool) + n_threads * sizeof(pthread_t);
}

tkc_pool *tkc_pool_new(const tinkc_allocator *a, size_t n_threads, const char *name,
                       tinkc_error *err)
{
    assert(n_threads > 0);
    tkc_pool *pool = tkc_zalloc(a, pool_size(n_threads), err);
    if (!pool)
        return NULL;
    pool->a = a;
    pool->n_threads = n_threads;
    for (size_t i = 0; i + 1 < sizeof pool->name && name[i]; i++)
        pool->name[i] = name[i];
    pool->last = &pool->first;
    pthread_mutex_init(&pool->lock, NULL);
    if (!tkc_cond_init(&pool->work, err)) {
        pthread_mutex_destroy(&pool->lock);
        tkc_release(a, pool, pool_size(n_threads));
        return NULL;
    }
    return pool;
}

static tkc_job *take_job(tkc_pool *pool)
{
    tkc_job *job = pool->first;
    assert(!job == !pool->n_queued && !*pool->last);
    if (job) {
        pool->first = job->next;
        pool->n_queued--;
        if (!pool->first)
            pool->last = &pool->first;
    }
    return job;
}

static void *run_jobs(void *arg)
{
    tkc_pool *pool = arg;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        tkc_job *job = take_job(pool);
        if (job) {
            pthread_mutex_unlock(&pool->lock);
            job->run(job);
            pthread_mutex_lock(&pool->lock);
        } else if (pool->ending) {
            break;
        } else {
            pool->n_idle++;
            tkc_cond_wait_until(&pool->work, &pool->lock, INT64_MAX);
            assert(pool->n_idle > 0 && pool->n_idle <= pool->n_started);
            pool->n_idle--;
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

bool tkc_pool_submit(tkc_pool *pool, tkc_job *job, tinkc_error *err)
{
    bool ok = true;
    assert(job->run);
    pthread_mutex_lock(&pool->lock);
    assert(!pool->ending); /* no submit during or after tkc_pool_free */
    if (pool->n_queued >= pool->n_idle && pool->n_started < pool->n_threads) {
        tinkc_error why = { 0 };
        if (tkc_thread_start(&pool->threads[pool->n_started], run_jobs, pool, pool->name, &why))
            pool->n_started++;
        else if (pool->n_started == 0) {
            tkc_error_copy(err, &why);
            ok = false;
        }
    }
    if (ok) {
        assert(pool->n_started > 0); /* some thread will run it */
        job->next = NULL;
        *pool->last = job;
        pool->last = &job->next;
        pool->n_queued++;
        pthread_cond_signal(&pool->work);
    }
    pthread_mutex_unlock(&pool->lock);
    return ok;
}

void tkc_pool_free(tkc_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->ending = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (size_t i = 0; i < pool->n_started; i++) {
        assert(!pthread_equal(pool->threads[i], pthread_self())); /* it would wait for itself */
        pthread_join(pool->threads[i], NULL);
    }
    assert(!pool->first && pool->n_queued == 0); /* every job has run */
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    tkc_release(pool->a, pool, pool_size(pool->n_threads));
}
