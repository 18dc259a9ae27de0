/* newer_libc.c - functions of the C library that came after 2.28, the oldest one that the wheel runs on, for objects
 * that were compiled with the headers of a newer one. packaging/make-wheel fails when one is missing here.
 *
 * Hidden, so that no other library sees them; what the machine's C library has wins where results would differ.
 * Must not: call anything of tinkc.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <spawn.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

HIDDEN const char *strerrordesc_np(int number);
HIDDEN struct mallinfo2 mallinfo2(void);
HIDDEN int close_range(unsigned first, unsigned last, int flags);
HIDDEN int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t *actions, int from);

/* 2.32. The C library's own text, which stays where it is; NULL for numbers that it does not know. */
const char *strerrordesc_np(int number)
{
    char unknown[64];
    const char *text = strerror_r(number, unknown, sizeof unknown);
    return text == unknown ? NULL : text;
}

/* 2.33. The older function counts in ints: exact up to 2 GiB. */
struct mallinfo2 mallinfo2(void)
{
    struct mallinfo2 (*newer)(void) = NULL;
    *(void **)&newer = dlsym(RTLD_DEFAULT, "mallinfo2");
    if (newer)
        return newer();
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    struct mallinfo old = mallinfo();
    return (struct mallinfo2){ .arena = (unsigned)old.arena,
                               .ordblks = (unsigned)old.ordblks,
                               .hblks = (unsigned)old.hblks,
                               .hblkhd = (unsigned)old.hblkhd,
                               .uordblks = (unsigned)old.uordblks,
                               .fordblks = (unsigned)old.fordblks,
                               .keepcost = (unsigned)old.keepcost };
}

/* 2.34. Kernels before 5.9 have no such call. Between fork and exec: only what is safe there. */
int close_range(unsigned first, unsigned last, int flags)
{
    struct rlimit most = { 0 };
    if (syscall(SYS_close_range, first, last, flags) == 0)
        return 0;
    if (flags != 0 || getrlimit(RLIMIT_NOFILE, &most) != 0)
        return -1;
    for (unsigned fd = first; fd <= last && fd < most.rlim_cur; fd++)
        (void)close((int)fd);
    return 0;
}

static int digits(const char *name)
{
    int n = 0;
    for (; *name >= '0' && *name <= '9' && n < 100000000; name++)
        n = n * 10 + (*name - '0');
    return *name ? -1 : n;
}

/* 2.34. Older ones have no such action: one for each descriptor that is open now. What another thread opens until
 * the spawn is not among them; tinkc opens everything with O_CLOEXEC. */
int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t *actions, int from)
{
    int (*newer)(posix_spawn_file_actions_t *, int) = NULL;
    *(void **)&newer = dlsym(RTLD_DEFAULT, "posix_spawn_file_actions_addclosefrom_np");
    if (newer)
        return newer(actions, from);
    DIR *open_now = opendir("/proc/self/fd");
    if (!open_now)
        return errno;
    int failed = 0;
    for (struct dirent *entry; !failed && (entry = readdir(open_now));) {
        int fd = entry->d_name[0] == '.' ? -1 : digits(entry->d_name);
        if (fd >= from && fd != dirfd(open_now))
            failed = posix_spawn_file_actions_addclose(actions, fd);
    }
    closedir(open_now);
    return failed;
}
