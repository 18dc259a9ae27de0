/* threads.c - fork and join. One word (`turn`) starts a loop: workers wait for it to change, take
 * task numbers from a shared counter until none is left, and count themselves out. Sleeping uses a
 * mutex and a condition, touched only when a worker has spun in vain. May touch only its own
 * struct.
 */
#include "tensor/threads.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/thread.h"

enum {
    MAX_THREADS = 256,
    SPINS_ALONE = 4000, /* about 50 us: as long as the gap between two kernels of a step */
    SPINS_CROWDED = 0   /* more threads than processors: spinning would steal their time */
};

typedef struct worker {
    pthread_t thread;
    tke_threads *set;
    int32_t index;
} worker;

struct tke_threads {
    int32_t n;
    int32_t n_started; /* workers 1 .. n_started are running */
    int32_t spins;
    /* written by the caller before `turn` moves, read by workers after */
    tke_task_fn *fn;
    void *arg;
    int64_t n_tasks;
    bool stop;
    _Alignas(64) atomic_uint turn;
    _Alignas(64) atomic_int_fast64_t next;
    _Alignas(64) atomic_int busy; /* workers that have not finished this turn */
    pthread_mutex_t lock;         /* for the conditions and the two below */
    pthread_cond_t start, done;
    atomic_int sleeping;
    atomic_bool caller_sleeps;
    worker workers[];
};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void take_tasks(tke_threads *set, int32_t index)
{
    for (;;) {
        int64_t task = atomic_fetch_add_explicit(&set->next, 1, memory_order_relaxed);
        if (task >= set->n_tasks)
            return;
        set->fn(set->arg, task, index);
    }
}

static void wait_for_turn(tke_threads *set, unsigned last)
{
    for (int32_t i = 0; i < set->spins; i++) {
        if (atomic_load_explicit(&set->turn, memory_order_acquire) != last)
            return;
        relax();
    }
    pthread_mutex_lock(&set->lock);
    atomic_fetch_add(&set->sleeping, 1);
    while (atomic_load(&set->turn) == last)
        pthread_cond_wait(&set->start, &set->lock);
    atomic_fetch_sub(&set->sleeping, 1);
    pthread_mutex_unlock(&set->lock);
}

static void *work(void *arg)
{
    worker *self = arg;
    tke_threads *set = self->set;
    unsigned last = 0;
    for (;;) {
        wait_for_turn(set, last);
        last++;
        if (set->stop)
            return NULL;
        take_tasks(set, self->index);
        if (atomic_fetch_sub(&set->busy, 1) == 1 && atomic_load(&set->caller_sleeps)) {
            pthread_mutex_lock(&set->lock);
            pthread_cond_signal(&set->done);
            pthread_mutex_unlock(&set->lock);
        }
    }
}

/* Everything a worker reads must be in place before. */
static void next_turn(tke_threads *set)
{
    atomic_fetch_add(&set->turn, 1u);
    if (atomic_load(&set->sleeping) > 0) {
        pthread_mutex_lock(&set->lock);
        pthread_cond_broadcast(&set->start);
        pthread_mutex_unlock(&set->lock);
    }
}

static void wait_for_workers(tke_threads *set)
{
    for (int32_t i = 0; i < set->spins; i++) {
        if (atomic_load_explicit(&set->busy, memory_order_acquire) == 0)
            return;
        relax();
    }
    pthread_mutex_lock(&set->lock);
    atomic_store(&set->caller_sleeps, true);
    while (atomic_load(&set->busy) != 0)
        pthread_cond_wait(&set->done, &set->lock);
    atomic_store(&set->caller_sleeps, false);
    pthread_mutex_unlock(&set->lock);
}

void tke_threads_run(tke_threads *set, int64_t n_tasks, tke_task_fn *fn, void *arg)
{
    if (n_tasks <= 1 || set->n_started == 0) {
        for (int64_t i = 0; i < n_tasks; i++)
            fn(arg, i, 0);
        return;
    }
    set->fn = fn;
    set->arg = arg;
    set->n_tasks = n_tasks;
    atomic_store_explicit(&set->next, 0, memory_order_relaxed);
    atomic_store_explicit(&set->busy, set->n_started, memory_order_relaxed);
    next_turn(set);
    take_tasks(set, 0);
    wait_for_workers(set);
}

static int32_t processors(void)
{
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) == 0 && CPU_COUNT(&mask) > 0)
        return (int32_t)CPU_COUNT(&mask);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int32_t)n : 1;
}

tke_threads *tke_threads_new(int32_t n, tinkc_error *err)
{
    int32_t available = processors();
    if (n <= 0)
        n = available;
    if (n > MAX_THREADS)
        n = MAX_THREADS;
    tke_threads *set =
        tkc_alloc_aligned(64, sizeof *set + (size_t)n * sizeof set->workers[0] + 64, err);
    if (!set)
        return NULL;
    memset(set, 0, sizeof *set);
    set->n = n;
    set->spins = n <= available ? SPINS_ALONE : SPINS_CROWDED;
    pthread_mutex_init(&set->lock, NULL);
    pthread_cond_init(&set->start, NULL);
    pthread_cond_init(&set->done, NULL);
    for (int32_t i = 1; i < n; i++) {
        worker *w = &set->workers[i];
        *w = (worker){ .set = set, .index = i };
        if (!tkc_thread_start(&w->thread, work, w, "tinkc-maths", err)) {
            tke_threads_free(set);
            return NULL;
        }
        set->n_started = i;
    }
    return set;
}

int32_t tke_threads_count(const tke_threads *set)
{
    return set->n;
}

void tke_threads_free(tke_threads *set)
{
    if (!set)
        return;
    set->stop = true;
    next_turn(set);
    for (int32_t i = 1; i <= set->n_started; i++)
        pthread_join(set->workers[i].thread, NULL);
    pthread_cond_destroy(&set->done);
    pthread_cond_destroy(&set->start);
    pthread_mutex_destroy(&set->lock);
    tkc_release_aligned(set);
}
