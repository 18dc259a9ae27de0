/* failing_calls.h - calls of the C library that fail once, when a test says so. Included by one source of a
 * program: it defines these calls for the whole of it. */
#ifndef TESTS_FAILING_CALLS_H
#define TESTS_FAILING_CALLS_H

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static _Atomic(const char *) failing_call; /* its name; NULL = none fails */
static atomic_int failing_in;              /* calls of it until the one that fails, which is 1 */
static atomic_int failing_errno = EIO;

/* The nth call from now on fails with failing_errno. A call named "short ..." returns 0 in place of a failure. */
static inline void fail_call(const char *name, int nth)
{
    atomic_store(&failing_in, nth);
    atomic_store(&failing_call, name);
}

/* Was there such a call? None fails any more. */
static inline bool call_has_failed(void)
{
    atomic_store(&failing_call, NULL);
    return atomic_load(&failing_in) <= 0;
}

static inline bool fails_now(const char *name)
{
    const char *call = atomic_load(&failing_call);
    if (!call || strcmp(call, name) != 0 || atomic_fetch_sub(&failing_in, 1) != 1)
        return false;
    errno = atomic_load(&failing_errno);
    return true;
}

/* The C library's own function. (A pointer of dlsym is turned into one as POSIX says.) */
#define REAL_CALL(name, ...)                                                                                           \
    __extension__({                                                                                                    \
        static __typeof__(&name) next;                                                                                 \
        if (!next)                                                                                                     \
            *(void **)&next = dlsym(RTLD_NEXT, #name);                                                                 \
        next(__VA_ARGS__);                                                                                             \
    })

int fsync(int fd)
{
    return fails_now("fsync") ? -1 : REAL_CALL(fsync, fd);
}

off_t lseek(int fd, off_t at, int from)
{
    return fails_now("lseek") ? -1 : REAL_CALL(lseek, fd, at, from);
}

ssize_t pread(int fd, void *to, size_t n, off_t at)
{
    if (fails_now("pread"))
        return -1;
    return fails_now("short pread") ? 0 : REAL_CALL(pread, fd, to, n, at);
}

int rename(const char *from, const char *to)
{
    return fails_now("rename") ? -1 : REAL_CALL(rename, from, to);
}

int mkdir(const char *path, mode_t mode)
{
    return fails_now("mkdir") ? -1 : REAL_CALL(mkdir, path, mode);
}

int unlink(const char *path)
{
    return fails_now("unlink") ? -1 : REAL_CALL(unlink, path);
}

int unlinkat(int folder, const char *name, int flags)
{
    return fails_now("unlinkat") ? -1 : REAL_CALL(unlinkat, folder, name, flags);
}

#endif
