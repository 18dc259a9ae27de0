/* threads.c - fork and join. One word (`turn`) opens and closes a loop: odd while tasks may be
 * taken. Each worker has a share of the task numbers, the same one every time, so that what it
 * wrote in the last loop is in its cache for the next; when its share is done it helps the others.
 *
 * The caller closes the loop when no task is left and then waits only for workers that are inside.
 * One that the system has not let run at all is not waited for: it finds the loop closed, or takes
 * part in the next. So a loop on a busy machine costs no more than doing it alone.
 *
 * Sleeping uses a mutex and a condition, touched only when somebody has spun in vain. May touch
 * only its own struct.
 */
#include "math/threads.h"

#include <assert.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/platform.h"
#include "base/thread.h"

enum {
    MAX_THREADS = 256,
    SPINS_ALONE = 4000, /* about 50 us: as long as the gap between two kernels of a step */
    SPINS_CROWDED = 0   /* more threads than processors: spinning would steal their time */
};

typedef struct worker {
    _Alignas(64) atomic_int_fast64_t next; /* of its share */
    int64_t end;
    pthread_t thread;
    tke_threads *set;
    int32_t index;
} worker;

struct tke_threads {
    int32_t n;
    int32_t n_started; /* workers 1 .. n_started are running */
    int32_t spins;
    /* with the shares: written by the caller while the loop is closed and nobody is inside */
    tke_task_fn *fn;
    void *arg;
    bool stop;
    _Alignas(64) atomic_uint turn;  /* odd = open */
    _Alignas(64) atomic_int inside; /* workers that may be looking at tasks */
    pthread_mutex_t lock;           /* for the conditions and the two below */
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
    assert(index >= 0 && index < set->n);
    for (int32_t i = 0; i < set->n; i++) {
        worker *share = &set->workers[(index + i) % set->n];
        while (atomic_load_explicit(&share->next, memory_order_relaxed) < share->end) {
            int64_t task = atomic_fetch_add_explicit(&share->next, 1, memory_order_relaxed);
            if (task < share->end)
                set->fn(set->arg, task, index);
        }
    }
}

/* An open turn that this worker has not seen. */
static bool is_news(tke_threads *set, unsigned last)
{
    unsigned turn = atomic_load(&set->turn);
    return (turn & 1u) && turn != last;
}

static void wait_for_turn(tke_threads *set, unsigned last)
{
    for (int32_t i = 0; i < set->spins; i++) {
        if (is_news(set, last))
            return;
        relax();
    }
    pthread_mutex_lock(&set->lock);
    atomic_fetch_add(&set->sleeping, 1);
    while (!is_news(set, last))
        pthread_cond_wait(&set->start, &set->lock);
    atomic_fetch_sub(&set->sleeping, 1);
    pthread_mutex_unlock(&set->lock);
}

static void leave(tke_threads *set)
{
    int before = atomic_fetch_sub(&set->inside, 1);
    assert(before > 0);
    if (before == 1 && atomic_load(&set->caller_sleeps)) {
        pthread_mutex_lock(&set->lock);
        pthread_cond_signal(&set->done);
        pthread_mutex_unlock(&set->lock);
    }
}

static void *work(void *arg)
{
    worker *self = arg;
    tke_threads *set = self->set;
    unsigned last = 0;
    for (;;) {
        wait_for_turn(set, last);
        atomic_fetch_add(&set->inside, 1);
        last = atomic_load(&set->turn); /* now it cannot change to another open one */
        if ((last & 1u) && set->stop)
            return NULL;
        if (last & 1u)
            take_tasks(set, self->index);
        leave(set);
    }
}

/* Everything a worker reads must be in place before. */
static void open_turn(tke_threads *set)
{
    unsigned before = atomic_fetch_add(&set->turn, 1u);
    assert(!(before & 1u));
    (void)before;
    if (atomic_load(&set->sleeping) > 0) {
        pthread_mutex_lock(&set->lock);
        pthread_cond_broadcast(&set->start);
        pthread_mutex_unlock(&set->lock);
    }
}

static void close_turn(tke_threads *set)
{
    unsigned before = atomic_fetch_add(&set->turn, 1u);
    assert(before & 1u);
    (void)before;
    for (int32_t i = 0; i < set->spins; i++) {
        if (atomic_load(&set->inside) == 0)
            return;
        relax();
    }
    pthread_mutex_lock(&set->lock);
    atomic_store(&set->caller_sleeps, true);
    while (atomic_load(&set->inside) != 0)
        pthread_cond_wait(&set->done, &set->lock);
    atomic_store(&set->caller_sleeps, false);
    pthread_mutex_unlock(&set->lock);
}

void tke_threads_run(tke_threads *set, int64_t n_tasks, tke_task_fn *fn, void *arg)
{
    assert(n_tasks >= 0 && fn);
    if (n_tasks <= 1 || set->n_started == 0) {
        for (int64_t i = 0; i < n_tasks; i++)
            fn(arg, i, 0);
        return;
    }
    assert(!(atomic_load(&set->turn) & 1u)); /* not from inside a task */
    set->fn = fn;
    set->arg = arg;
    for (int32_t i = 0; i < set->n; i++) {
        atomic_store_explicit(&set->workers[i].next, n_tasks * i / set->n, memory_order_relaxed);
        set->workers[i].end = n_tasks * (i + 1) / set->n;
    }
    assert(set->workers[set->n - 1].end == n_tasks);
    open_turn(set);
    take_tasks(set, 0);
    close_turn(set);
}

tke_threads *tke_threads_new(int32_t n, tinkc_error *err)
{
    int32_t available = tkc_cpu_count();
    if (n <= 0)
        n = available;
    if (n > MAX_THREADS)
        n = MAX_THREADS;
    size_t size = sizeof(tke_threads) + (size_t)n * sizeof(worker);
    tke_threads *set = tkc_alloc_aligned(64, size, err);
    if (!set)
        return NULL;
    memset(set, 0, size);
    set->n = n;
    set->spins = n <= available ? SPINS_ALONE : SPINS_CROWDED;
    pthread_mutex_init(&set->lock, NULL);
    pthread_cond_init(&set->start, NULL);
    pthread_cond_init(&set->done, NULL);
    for (int32_t i = 1; i < n; i++) {
        worker *w = &set->workers[i];
        w->set = set;
        w->index = i;
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
    open_turn(set);
    for (int32_t i = 1; i <= set->n_started; i++)
        pthread_join(set->workers[i].thread, NULL);
    pthread_cond_destroy(&set->done);
    pthread_cond_destroy(&set->start);
    pthread_mutex_destroy(&set->lock);
    tkc_release_aligned(set);
}
