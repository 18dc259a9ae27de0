/* thread.c - threads and deadlines on top of pthreads. */
#include "base/thread.h"

#include <assert.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>

#include "base/clock.h"
#include "base/platform.h"

bool tkc_cond_init(pthread_cond_t *cond, tinkc_error *err)
{
    return tkc_cond_make(cond) == 0 || tkc_fail_memory(err);
}

int64_t tkc_deadline_ns(int64_t timeout_ms)
{
    int64_t ns, deadline;
    if (timeout_ms < 0 || __builtin_mul_overflow(timeout_ms, (int64_t)1000000, &ns) ||
        __builtin_add_overflow(tkc_monotonic_ns(), ns, &deadline))
        return INT64_MAX;
    return deadline;
}

int64_t tkc_left_ms(int64_t deadline_ns)
{
    if (deadline_ns == INT64_MAX)
        return TINKC_FOREVER;
    int64_t left = (deadline_ns - tkc_monotonic_ns()) / 1000000;
    return left > 0 ? left : 0;
}

bool tkc_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns)
{
    if (deadline_ns == INT64_MAX) {
        pthread_cond_wait(cond, mutex);
        return true;
    }
    if (tkc_monotonic_ns() >= deadline_ns)
        return false;
    return tkc_cond_wait_ns(cond, mutex, deadline_ns);
}

bool tkc_thread_start(pthread_t *thread, void *(*run)(void *), void *arg, const char *name,
                      tinkc_error *err)
{
    assert(strlen(name) < 16); /* the system rejects longer names, leaving the thread unnamed */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int bad = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (bad)
        return tkc_fail(err, TINKC_E_MEMORY, "a thread could not be started");
    tkc_name_thread(*thread, name);
    return true;
}

size_t tkc_stack_left(void)
{
    static _Thread_local uintptr_t low, high; /* cached: for the main thread libc reads a file */
    if (!high) {
        high = 1;
        (void)tkc_stack_bounds(&low, &high);
    }
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    return here > low && here < high ? here - low : SIZE_MAX;
}
