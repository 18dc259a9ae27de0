/* platform_proc.c - what Linux tells of a process and its machine: /proc, /sys, and calls of Linux that
 * glibc and musl both have. Used with platform_linux.c and with platform_posix.c.
 *
 * May touch: /proc, /sys, what it is given. Must not: log; take a lock but for its own locale.
 */
#include "base/platform.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <locale.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/processor.h"
#include "base/str.h"

/* ---- programs and libraries ---- */

bool tkc_program_path(char out[TKC_PATH])
{
    ssize_t n = readlink("/proc/self/exe", out, TKC_PATH - 1);
    out[n > 0 ? n : 0] = '\0';
    return n > 0;
}

typedef struct object_search {
    uintptr_t address;
    size_t n; /* objects looked at */
    char *out;
    bool found;
} object_search;

static bool holds(const struct dl_phdr_info *info, uintptr_t address)
{
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        uintptr_t begin = (uintptr_t)info->dlpi_addr + p->p_vaddr;
        if (p->p_type == PT_LOAD && address >= begin && address - begin < p->p_memsz)
            return true;
    }
    return false;
}

/* The first object is the program: of it the loader only knows the name it was started by, which may be
 * a word from PATH. */
static int look_at_object(struct dl_phdr_info *info, size_t size, void *arg)
{
    object_search *s = arg;
    bool is_program = s->n++ == 0;
    (void)size;
    if (!holds(info, s->address))
        return 0;
    if (is_program)
        s->found = tkc_program_path(s->out);
    else
        s->found = snprintf(s->out, TKC_PATH, "%s", info->dlpi_name) < TKC_PATH;
    return 1;
}

bool tkc_library_path(const void *address, char out[TKC_PATH])
{
    object_search s = { .address = (uintptr_t)address, .out = out };
    dl_iterate_phdr(look_at_object, &s);
    return s.found;
}

void *tkc_library_open(const char *name)
{
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

char **tkc_environment(void)
{
    return environ;
}

int tkc_open_again(int fd, int flags)
{
    char name[40];
    (void)snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    return open(name, flags);
}

/* ---- processors, memory ---- */

bool tkc_arm_bf16(void)
{
#ifdef HWCAP2_BF16 /* defined for arm64 alone */
    return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
#else
    return false;
#endif
}

int32_t tkc_cpu_count(void)
{
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) == 0 && CPU_COUNT(&mask) > 0)
        return (int32_t)CPU_COUNT(&mask);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int32_t)n : 1;
}

void tkc_resident_memory(uint64_t *all, uint64_t *files)
{
    char text[128];
    uint64_t pages[3] = { 0 }, page = (uint64_t)sysconf(_SC_PAGESIZE);
    tinkc_str rest, part;
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        (void)close(fd);
    text[n > 0 ? n : 0] = '\0';
    rest = tkc_str(text); /* size, resident, shared, in pages */
    for (size_t i = 0; i < 3 && tkc_str_cut(&rest, ' ', &part); i++)
        (void)tkc_parse_u64(part, &pages[i]);
    *all = pages[1] * page;
    *files = pages[2] * page;
}

void tkc_pages_advise(void *at, size_t len, int what)
{
    static const int advice[] = { [TKC_PAGES_LARGE] = MADV_HUGEPAGE,
                                  [TKC_PAGES_NOT_DUMPED] = MADV_DONTDUMP,
                                  [TKC_PAGES_DROP] = MADV_DONTNEED };
    (void)madvise(at, len, advice[what]); /* the system may ignore a hint */
}

/* ---- threads, files, users ---- */

/* Of the main thread musl says what is mapped by now: it grows to the limit, and a deep call that would
 * have fitted must not be refused. glibc says the limit itself. */
static uintptr_t grown_low(uintptr_t low, uintptr_t high)
{
    struct rlimit limit;
    if (gettid() != getpid() || getrlimit(RLIMIT_STACK, &limit) != 0 ||
        limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= high)
        return low;
    uintptr_t grown = high - (uintptr_t)limit.rlim_cur;
    return grown < low ? grown : low;
}

bool tkc_stack_bounds(uintptr_t *low, uintptr_t *high)
{
    pthread_attr_t attr;
    void *start = NULL;
    size_t size = 0;
    if (pthread_getattr_np(pthread_self(), &attr) != 0)
        return false;
    bool found = pthread_attr_getstack(&attr, &start, &size) == 0 && start;
    (void)pthread_attr_destroy(&attr);
    if (found) {
        *high = (uintptr_t)start + size;
        *low = grown_low((uintptr_t)start, *high);
    }
    return found;
}

void tkc_name_thread(pthread_t thread, const char *name)
{
    pthread_setname_np(thread, name);
}

bool tkc_peer_user(int socket, uid_t *user)
{
    struct ucred who;
    socklen_t len = sizeof who;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0)
        return false;
    *user = who.uid;
    return true;
}

static locale_t c_locale;
static pthread_once_t c_locale_once = PTHREAD_ONCE_INIT;

static void make_c_locale(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

double tkc_parse_decimal(const char *text, char **end)
{
    pthread_once(&c_locale_once, make_c_locale);
    return strtod_l(text, end, c_locale);
}

int tkc_sync_file(int fd)
{
    return fsync(fd);
}

int tkc_sync_data(int fd)
{
    return fdatasync(fd);
}

int tkc_reserve_file(int fd, size_t bytes)
{
    int why = posix_fallocate(fd, 0, (off_t)bytes);
    return why == ENOSPC || why == EFBIG || why == EDQUOT ? why : 0;
}

bool tkc_swap_names(const char *one, const char *two)
{
    return renameat2(AT_FDCWD, one, AT_FDCWD, two, RENAME_EXCHANGE) == 0;
}

void tkc_read_ahead(int fd, int64_t at, size_t len)
{
    (void)posix_fadvise(fd, (off_t)at, (off_t)len, POSIX_FADV_WILLNEED);
}

int tkc_in_memory(const char *path)
{
    enum { TMPFS = 0x01021994 }; /* linux/magic.h, which not every C library finds */
    struct statfs kind;
    return statfs(path, &kind) == 0 ? kind.f_type == TMPFS : -1;
}
