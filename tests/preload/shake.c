/* shake.c - lets threads stumble, so that races which need bad luck happen often.
 *
 * Loaded in front of a program (LD_PRELOAD), it delays a thread now and then where it takes or
 * gives a lock, wakes another thread, or touches a descriptor: mostly not, often by giving up the
 * processor, sometimes for a millisecond, rarely for twenty. A sanitizer in the same program still
 * sees every call. $SHAKE is the seed; the same seed gives each thread the same stumbles.
 *
 * May touch: the C library and the kernel alone; it is not part of any library.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static uint64_t seed = 1;
static __thread uint64_t state;
static __thread uint64_t thread_number;

__attribute__((constructor)) static void read_seed(void)
{
    const char *text = getenv("SHAKE");
    if (text)
        seed = strtoull(text, NULL, 10);
}

static uint64_t next_random(void)
{
    static uint64_t n_threads;
    if (!state) {
        thread_number = __atomic_add_fetch(&n_threads, 1, __ATOMIC_RELAXED);
        state = (seed * 0x9E3779B97F4A7C15u ^ thread_number * 0xD1B54A32D192ED03u) | 1;
    }
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state >> 20;
}

/* By system calls, so that nothing of this is intercepted again. */
static void stumble(void)
{
    uint64_t r = next_random();
    long microseconds = r % 997 == 0 ? 20000 : r % 61 == 0 ? (long)((r >> 16) % 1500) : 0;
    struct timespec pause = { .tv_nsec = microseconds * 1000 };
    if (microseconds)
        (void)syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &pause, NULL);
    else if (r % 7 == 0)
        (void)syscall(SYS_sched_yield);
}

#define BEFORE(type, name, parameters, ...)                                                                            \
    type name parameters                                                                                               \
    {                                                                                                                  \
        static __typeof__(&name) real;                                                                                 \
        if (!real)                                                                                                     \
            real = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                                                         \
        stumble();                                                                                                     \
        return real(__VA_ARGS__);                                                                                      \
    }

#define AFTER(type, name, parameters, ...)                                                                             \
    type name parameters                                                                                               \
    {                                                                                                                  \
        static __typeof__(&name) real;                                                                                 \
        if (!real)                                                                                                     \
            real = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                                                         \
        type result = real(__VA_ARGS__);                                                                               \
        stumble();                                                                                                     \
        return result;                                                                                                 \
    }

BEFORE(int, pthread_mutex_lock, (pthread_mutex_t * lock), lock)
AFTER(int, pthread_mutex_unlock, (pthread_mutex_t * lock), lock)
AFTER(int, pthread_cond_signal, (pthread_cond_t * cond), cond)
AFTER(int, pthread_cond_broadcast, (pthread_cond_t * cond), cond)
BEFORE(int, close, (int fd), fd)
BEFORE(int, epoll_ctl, (int set, int what, int fd, struct epoll_event *event), set, what, fd, event)
AFTER(int, epoll_wait, (int set, struct epoll_event *events, int max, int ms), set, events, max, ms)
BEFORE(ssize_t, write, (int fd, const void *data, size_t len), fd, data, len)
AFTER(ssize_t, read, (int fd, void *data, size_t len), fd, data, len)
BEFORE(ssize_t, send, (int fd, const void *data, size_t len, int flags), fd, data, len, flags)
AFTER(ssize_t, recv, (int fd, void *data, size_t len, int flags), fd, data, len, flags)
