/* platform_darwin.c - what macOS tells of a process and its machine. Needs macOS 11.
 *
 * Compiled and linked on Linux (packaging/make-macos), not run there.
 * May touch: what it is given, sysctl, the Mach calls on this task. Must not: log, lock.
 */
#include "base/platform.h"
#include "base/processor.h"

#include <crt_externs.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <mach-o/dyld.h>
#include <mach/mach.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/sysctl.h>
#include <unistd.h>
#include <xlocale.h>

/* ---- programs and libraries ---- */

bool tkc_program_path(char out[TKC_PATH])
{
    char given[TKC_PATH]; /* as it was started: may lead through links */
    uint32_t size = sizeof given;
    return _NSGetExecutablePath(given, &size) == 0 && realpath(given, out);
}

bool tkc_library_path(const void *address, char out[TKC_PATH])
{
    Dl_info where;
    if (dladdr(address, &where) == 0 || !where.dli_fname)
        return false;
    return snprintf(out, TKC_PATH, "%s", where.dli_fname) < TKC_PATH;
}

/* Beside the program (the wheel has some there), where package managers put them, and where the loader
 * looks by itself: /usr/local/lib, /usr/lib. */
static void *open_in_folders(const char *stem, int len, const char *version)
{
    static const char *const folders[] = { "@executable_path/../lib/tinkc/", "/opt/homebrew/lib/",
                                           "/opt/local/lib/", "" };
    char path[300];
    void *library = NULL;
    for (size_t i = 0; i < sizeof folders / sizeof *folders && !library; i++)
        if (snprintf(path, sizeof path, "%s%.*s%s.dylib", folders[i], len, stem, version) < 300)
            library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return library;
}

/* libz.so.1 is libz.1.dylib. macOS numbers its own libarchive and libedit otherwise; the name without a
 * number is whichever there is. */
void *tkc_library_open(const char *name)
{
    const char *so = strstr(name, ".so");
    if (!so || (so[3] && so[3] != '.'))
        return dlopen(name, RTLD_NOW | RTLD_LOCAL);
    void *library = open_in_folders(name, (int)(so - name), so + 3);
    bool is_systems = strncmp(name, "libarchive.", 11) == 0 || strncmp(name, "libedit.", 8) == 0;
    return library || !is_systems ? library : open_in_folders(name, (int)(so - name), "");
}

char **tkc_environment(void)
{
    return *_NSGetEnviron();
}

/* /dev/fd is the same open file once more, with the same mode. */
int tkc_open_again(int fd, int flags)
{
    (void)fd, (void)flags;
    errno = ENOTSUP;
    return -1;
}

/* ---- processors, memory ---- */

bool tkc_arm_bf16(void)
{
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_BF16", &has, &size, NULL, 0) == 0 && has != 0;
}

int32_t tkc_cpu_count(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int32_t)n : 1;
}

/* Free pages, and those that hold only what can be read again. */
static uint64_t available_pages(void)
{
    vm_statistics64_data_t now;
    mach_msg_type_number_t size = HOST_VM_INFO64_COUNT;
    mach_port_t host = mach_host_self();
    kern_return_t bad = host_statistics64(host, HOST_VM_INFO64, (host_info64_t)&now, &size);
    mach_port_deallocate(mach_task_self(), host);
    return bad ? 0
               : (uint64_t)now.free_count + now.inactive_count + now.purgeable_count;
}

tkc_host_memory tkc_host_memory_now(void)
{
    tkc_host_memory m = { .bounded = "machine" };
    size_t size = sizeof m.total;
    if (sysctlbyname("hw.memsize", &m.total, &size, NULL, 0) != 0)
        m.total = 0;
    m.available = available_pages() * (uint64_t)sysconf(_SC_PAGESIZE);
    return m;
}

void tkc_resident_memory(uint64_t *all, uint64_t *files)
{
    struct mach_task_basic_info info;
    mach_msg_type_number_t size = MACH_TASK_BASIC_INFO_COUNT;
    *all = *files = 0; /* how much of it is files' is not known */
    if (task_info(mach_task_self(), MACH_TASK_BASIC_INFO, (task_info_t)&info, &size) == KERN_SUCCESS)
        *all = info.resident_size;
}

void tkc_pages_advise(void *at, size_t len, int what)
{
    if (what == TKC_PAGES_DROP) /* fresh pages in their place */
        (void)mmap(at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_FIXED, -1, 0);
}

/* ---- threads, files, users ---- */

bool tkc_stack_bounds(uintptr_t *low, uintptr_t *high)
{
    *high = (uintptr_t)pthread_get_stackaddr_np(pthread_self());
    *low = *high - pthread_get_stacksize_np(pthread_self());
    return true;
}

/* A thread can only name itself. */
void tkc_name_thread(pthread_t thread, const char *name)
{
    (void)thread, (void)name;
}

bool tkc_peer_user(int socket, uid_t *user)
{
    gid_t group;
    return getpeereid(socket, user, &group) == 0;
}

double tkc_parse_decimal(const char *text, char **end)
{
    return strtod_l(text, end, NULL); /* NULL is the C locale */
}

/* fsync hands the bytes to the drive only. Not every file system knows the other call. */
int tkc_sync_file(int fd)
{
    return fcntl(fd, F_FULLFSYNC) == 0 ? 0 : fsync(fd);
}

int tkc_sync_data(int fd)
{
    return tkc_sync_file(fd);
}

int tkc_reserve_file(int fd, size_t bytes)
{
    (void)fd;
    (void)bytes;
    return 0;
}

bool tkc_swap_names(const char *one, const char *two)
{
    return renamex_np(one, two, RENAME_SWAP) == 0;
}

void tkc_read_ahead(int fd, int64_t at, size_t len)
{
    struct radvisory what = { .ra_offset = (off_t)at, .ra_count = len < INT32_MAX ? (int)len : INT32_MAX };
    (void)fcntl(fd, F_RDADVISE, &what);
}

int tkc_in_memory(const char *path)
{
    struct statfs kind;
    return statfs(path, &kind) == 0 ? strcmp(kind.f_fstypename, "tmpfs") == 0 : -1;
}
