/* platform_linux.c - the calls of platform.h and heap.h by what Linux and glibc have for them.
 *
 * May touch: what it is given, the C library's heap, pages of code. Must not: log, lock.
 */
#include "base/platform.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/heap.h"

/* ---- waiting for descriptors ---- */

bool tkc_wake_open(tkc_wake *wake)
{
    wake->fd = wake->ring_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return wake->fd >= 0;
}

void tkc_wake_close(const tkc_wake *wake)
{
    close(wake->fd);
}

void tkc_wake_set(const tkc_wake *wake)
{
    uint64_t one = 1;
    while (write(wake->ring_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

void tkc_wake_clear(const tkc_wake *wake)
{
    uint64_t count;
    (void)!read(wake->fd, &count, sizeof count);
}

struct tkc_watch {
    const tinkc_allocator *a;
    int fd;
};

tkc_watch *tkc_watch_new(const tinkc_allocator *a, tinkc_error *err)
{
    tkc_watch *watch = tkc_zalloc(a, sizeof *watch, err);
    if (!watch)
        return NULL;
    *watch = (tkc_watch){ .a = a, .fd = epoll_create1(EPOLL_CLOEXEC) };
    if (watch->fd >= 0)
        return watch;
    tkc_fail_errno(err, "epoll");
    tkc_release(a, watch, sizeof *watch);
    return NULL;
}

void tkc_watch_free(tkc_watch *watch)
{
    if (!watch)
        return;
    close(watch->fd);
    tkc_release(watch->a, watch, sizeof *watch);
}

bool tkc_watch_set(tkc_watch *watch, int fd, uint32_t what, uint64_t mark)
{
    struct epoll_event e = { .events = (what & TKC_READABLE ? EPOLLIN : 0u) |
                                       (what & TKC_WRITABLE ? EPOLLOUT : 0u),
                             .data.u64 = mark };
    if (!what)
        return epoll_ctl(watch->fd, EPOLL_CTL_DEL, fd, NULL) == 0;
    return epoll_ctl(watch->fd, EPOLL_CTL_MOD, fd, &e) == 0 ||
           epoll_ctl(watch->fd, EPOLL_CTL_ADD, fd, &e) == 0;
}

int tkc_watch_wait(tkc_watch *watch, tkc_ready *out, int max, int64_t timeout_ms)
{
    enum { AT_ONCE = 128 };
    struct epoll_event events[AT_ONCE];
    int n = epoll_wait(watch->fd, events, max < AT_ONCE ? max : AT_ONCE,
                       timeout_ms == TINKC_FOREVER ? -1
                       : timeout_ms > INT32_MAX    ? INT32_MAX
                                                   : (int)timeout_ms);
    for (int i = 0; i < n; i++)
        out[i] =
            (tkc_ready){ .mark = events[i].data.u64,
                         .what = (events[i].events & EPOLLIN ? TKC_READABLE : 0u) |
                                 (events[i].events & EPOLLOUT ? TKC_WRITABLE : 0u) |
                                 (events[i].events & (EPOLLERR | EPOLLHUP) ? TKC_BROKEN : 0u) };
    return n;
}

/* ---- descriptors that programs started meanwhile do not inherit ---- */

bool tkc_pipe(int ends[2])
{
    return pipe2(ends, O_CLOEXEC) == 0;
}

bool tkc_socketpair(int ends[2])
{
    return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0;
}

int tkc_socket(int family, int type, int protocol)
{
    return socket(family, type | SOCK_CLOEXEC, protocol);
}

int tkc_accept(int listener)
{
    return accept4(listener, NULL, NULL, SOCK_CLOEXEC);
}

bool tkc_set_nonblocking(int fd)
{
    return fcntl(fd, F_SETFL, O_NONBLOCK) == 0;
}

/* Through the folder's descriptor: a socket's address has room for 108 bytes only. */
bool tkc_socket_path(const char *folder, const char *name, int *fd, char out[TKC_SOCKET_PATH])
{
    if (*fd < 0)
        *fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0)
        return false;
    (void)snprintf(out, TKC_SOCKET_PATH, "/proc/self/fd/%d/%s", *fd, name);
    return true;
}

/* ---- programs that are started ---- */

int tkc_spawn_close_rest(posix_spawn_file_actions_t *files)
{
    return posix_spawn_file_actions_addclosefrom_np(files, 3);
}

void tkc_close_from(int first)
{
    (void)close_range((unsigned)first, ~0U, 0);
}

/* ---- threads ---- */

int tkc_cond_make(pthread_cond_t *cond)
{
    pthread_condattr_t how;
    int bad = pthread_condattr_init(&how);
    if (bad)
        return bad;
    /* Deadlines must not move when somebody sets the time. */
    pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    bad = pthread_cond_init(cond, &how);
    pthread_condattr_destroy(&how);
    return bad;
}

bool tkc_cond_wait_ns(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns)
{
    struct timespec until = { (time_t)(deadline_ns / 1000000000),
                              (long)(deadline_ns % 1000000000) };
    return pthread_cond_timedwait(cond, mutex, &until) == 0;
}

void tkc_join_within(pthread_t thread, int seconds)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    if (pthread_timedjoin_np(thread, NULL, &until) != 0)
        (void)pthread_detach(thread);
}

/* ---- memory ---- */

void tkc_wipe(void *secret, size_t len)
{
    explicit_bzero(secret, len);
}

void tkc_heap_trim(void)
{
    (void)malloc_trim(0);
}

void tkc_heap_map_large(void)
{
    enum { LARGE = 1 << 18 };
    (void)mallopt(M_MMAP_THRESHOLD, LARGE); /* setting it also stops its automatic growth */
    (void)mallopt(M_TRIM_THRESHOLD, 4 * LARGE);
}

size_t tkc_heap_unused(void)
{
#ifdef __SANITIZE_THREAD__ /* its own allocator stands in, and the C library's may not be ready to be asked */
    return 0;
#else
    return mallinfo2().fordblks;
#endif
}

/* ---- the rest ---- */

bool tkc_random_bytes(void *out, size_t len)
{
    unsigned char *at = out;
    while (len) {
        ssize_t n = getrandom(at, len, 0);
        if (n < 0 && errno != EINTR)
            return false;
        at += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

const char *tkc_errno_text(int number)
{
    const char *text = strerrordesc_np(number);
    return text ? text : "unknown error";
}

/* ---- pages of libraries ---- */

static int note_object(struct dl_phdr_info *info, size_t size, void *arg)
{
    tkc_dl_mark *mark = arg;
    (void)size;
    if (mark->n < TKC_DL_MAX_OBJECTS)
        mark->at[mark->n++] = (uintptr_t)info->dlpi_addr;
    return 0;
}

void tkc_dl_mark_now(tkc_dl_mark *mark)
{
    mark->n = 0;
    dl_iterate_phdr(note_object, mark);
}

static bool was_there(const tkc_dl_mark *mark, uintptr_t at)
{
    assert(mark->n <= TKC_DL_MAX_OBJECTS);
    for (size_t i = 0; i < mark->n; i++)
        if (mark->at[i] == at)
            return true;
    return mark->n == TKC_DL_MAX_OBJECTS; /* the list may be incomplete: release nothing */
}

/* Code that relocation has changed must not be read from the file again. */
static bool has_text_relocations(const struct dl_phdr_info *info)
{
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        const ElfW(Dyn) *d = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        for (; d->d_tag != DT_NULL; d++)
            if (d->d_tag == DT_TEXTREL || (d->d_tag == DT_FLAGS && (d->d_un.d_val & DF_TEXTREL)))
                return true;
    }
    return false;
}

static int give_back(struct dl_phdr_info *info, size_t size, void *arg)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    (void)size;
    if (was_there(arg, (uintptr_t)info->dlpi_addr) || has_text_relocations(info))
        return 0;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || (p->p_flags & PF_W))
            continue;
        uintptr_t begin = ((uintptr_t)info->dlpi_addr + p->p_vaddr) / page * page;
        uintptr_t end = ((uintptr_t)info->dlpi_addr + p->p_vaddr + p->p_filesz) / page * page;
        if (end > begin)
            (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
    }
    return 0;
}

void tkc_dl_give_back(const tkc_dl_mark *since)
{
    tkc_dl_mark mark = { .n = 0 };
    if (since)
        mark = *since;
    dl_iterate_phdr(give_back, &mark);
}
