/* late.c - lets programs start late, so that what relies on a quick one fails often.
 *
 * Loaded in front of a script and all it starts (LD_PRELOAD), it delays each program now and then where it
 * begins, in the child of a fork (before a shell has opened the files of a redirection), and where it makes
 * a file, connects, accepts or sends a signal. $LATE_MS is the longest delay, 300 unless set.
 *
 * May touch: the C library and the kernel alone; it is not part of any library.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* Once in `chance` times, up to the longest delay over `part`. By system calls, so that nothing of this is
 * intercepted again. */
static void be_late(unsigned chance, unsigned part)
{
    const char *most = getenv("LATE_MS");
    uint32_t r[2];
    if (syscall(SYS_getrandom, r, sizeof r, 0) != sizeof r || r[0] % chance != 0)
        return;
    long ms = (long)(r[1] % (uint32_t)((most ? atol(most) : 300) / part + 1));
    struct timespec pause = { ms / 1000, ms % 1000 * 1000000 };
    (void)syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &pause, NULL);
}

__attribute__((constructor)) static void begin_late(void)
{
    be_late(3, 1);
}

#define NEXT(name)                                                                                                     \
    static __typeof__(&name) real;                                                                                     \
    if (!real)                                                                                                         \
    real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

pid_t fork(void)
{
    NEXT(fork);
    pid_t child = real();
    be_late(child == 0 ? 2 : 20, 1);
    return child;
}

#define OPENING(name, parameters, ...)                                                                                 \
    int name parameters                                                                                                \
    {                                                                                                                  \
        NEXT(name);                                                                                                    \
        mode_t mode = 0;                                                                                               \
        if (flags & O_CREAT) {                                                                                         \
            va_list rest;                                                                                              \
            va_start(rest, flags);                                                                                     \
            mode = va_arg(rest, mode_t);                                                                               \
            va_end(rest);                                                                                              \
            be_late(8, 3);                                                                                             \
        }                                                                                                              \
        return real(__VA_ARGS__);                                                                                      \
    }

OPENING(open, (const char *path, int flags, ...), path, flags, mode)
OPENING(open64, (const char *path, int flags, ...), path, flags, mode)
OPENING(openat, (int at, const char *path, int flags, ...), at, path, flags, mode)
OPENING(openat64, (int at, const char *path, int flags, ...), at, path, flags, mode)

int connect(int fd, const struct sockaddr *address, socklen_t length)
{
    NEXT(connect);
    be_late(8, 3);
    return real(fd, address, length);
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
    NEXT(accept4);
    be_late(8, 3);
    return real(fd, address, length, flags);
}

int kill(pid_t pid, int number)
{
    NEXT(kill);
    be_late(3, 3);
    return real(pid, number);
}
