/* newer_libc.c - functions of the C library that came after 2.28, the oldest one that the wheel runs on, for objects
 * that were compiled with the headers of a newer one. packaging/make-wheel fails when one is missing here.
 *
 * Hidden, so that no other library sees them; what the machine's C library has wins where results would differ.
 * Must not: call anything of tinkc.
 */
#include <dlfcn.h>
#include <malloc.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

HIDDEN const char *strerrordesc_np(int number);
HIDDEN struct mallinfo2 mallinfo2(void);
HIDDEN int close_range(unsigned first, unsigned last, int flags);

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
