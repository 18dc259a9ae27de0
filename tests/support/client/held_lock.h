/* held_lock.h - does a call wait for a lock that somebody else holds? Without this, a forgotten lock shows only in a run
 * under ThreadSanitizer, or once in a thousand others. No time is measured: the call either returns or its thread
 * sleeps. */
#ifndef TESTS_HELD_LOCK_H
#define TESTS_HELD_LOCK_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct lock_probe {
    void (*call)(void *user);
    void *user;
    atomic_int tid; /* set right before the call */
    atomic_bool done;
} lock_probe;

static inline void *probe_lock(void *user)
{
    lock_probe *p = user;
    atomic_store(&p->tid, (int)syscall(SYS_gettid));
    p->call(p->user);
    atomic_store(&p->done, true);
    return NULL;
}

static inline bool thread_sleeps(int tid)
{
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    FILE *f = fopen(path, "re");
    const char *end = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    if (f)
        fclose(f);
    return end && end[1] && end[2] == 'S';
}

/* Runs call(user) on another thread while this one holds the lock. True: it waited for the lock; it has returned
 * by then either way. The call may sleep for no other reason. */
static inline bool waits_for_lock(pthread_mutex_t *lock, void (*call)(void *user), void *user)
{
    lock_probe p = { .call = call, .user = user };
    pthread_t thread;
    pthread_mutex_lock(lock);
    bool begun = pthread_create(&thread, NULL, probe_lock, &p) == 0;
    bool waited = false;
    while (begun && !waited && !atomic_load(&p.done)) {
        waited = atomic_load(&p.tid) && thread_sleeps(atomic_load(&p.tid)) && !atomic_load(&p.done);
        (void)sched_yield();
    }
    pthread_mutex_unlock(lock);
    if (begun)
        pthread_join(thread, NULL);
    return waited;
}

#endif
