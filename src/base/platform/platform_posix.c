/* platform_posix.c - the calls of platform.h and heap.h by POSIX.1-2008 alone: what macOS takes, and what
 * Linux takes with TINKC_PLATFORM=posix, so that the tests of this machine try it.
 *
 * Where a descriptor becomes close-on-exec only after it was opened, a program started by another
 * thread in between inherits it for a moment: tkc_spawn_close_rest closes it there.
 *
 * May touch: what it is given, /dev/urandom, /dev/fd. Must not: log, lock; use anything newer.
 */
#undef _GNU_SOURCE
#undef _DARWIN_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#include "base/platform.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/heap.h"
#include "base/str.h"

static bool set_flag(int fd, int get, int set, int flag)
{
    int now = fcntl(fd, get);
    return now >= 0 && fcntl(fd, set, now | flag) == 0;
}

static bool set_cloexec(int fd)
{
    return set_flag(fd, F_GETFD, F_SETFD, FD_CLOEXEC);
}

/* Both ends, or none; errno stays that of the failure. */
static bool keep_ends(int ends[2], bool ok)
{
    int why = errno;
    if (ok)
        return true;
    close(ends[0]);
    close(ends[1]);
    errno = why;
    return false;
}

/* The descriptor itself, or -1 after closing it. */
static int keep_cloexec(int fd)
{
    if (fd < 0 || set_cloexec(fd))
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

/* ---- waiting for descriptors ---- */

bool tkc_wake_open(tkc_wake *wake)
{
    int ends[2];
    if (!tkc_pipe(ends) ||
        !keep_ends(ends, tkc_set_nonblocking(ends[0]) && tkc_set_nonblocking(ends[1])))
        return false;
    *wake = (tkc_wake){ .fd = ends[0], .ring_fd = ends[1] };
    return true;
}

void tkc_wake_close(const tkc_wake *wake)
{
    close(wake->fd);
    close(wake->ring_fd);
}

/* A pipe that is full is readable already. */
void tkc_wake_set(const tkc_wake *wake)
{
    while (write(wake->ring_fd, "", 1) < 0 && errno == EINTR)
        ;
}

void tkc_wake_clear(const tkc_wake *wake)
{
    char bytes[64];
    ssize_t n;
    do
        n = read(wake->fd, bytes, sizeof bytes);
    while (n == (ssize_t)sizeof bytes || (n < 0 && errno == EINTR));
}

/* Places of descriptors that have left hold -1, which poll passes over, until another one comes. */
struct tkc_watch {
    const tinkc_allocator *a;
    struct pollfd *fds;
    uint64_t *marks;
    size_t n, fds_cap, marks_cap;
    size_t first; /* where to look first: nobody is always last */
};

void tkc_watch_free(tkc_watch *watch)
{
    if (!watch)
        return;
    tkc_release(watch->a, watch->fds, watch->fds_cap * sizeof *watch->fds);
    tkc_release(watch->a, watch->marks, watch->marks_cap * sizeof *watch->marks);
    tkc_release(watch->a, watch, sizeof *watch);
}

static bool make_room(tkc_watch *watch, tinkc_error *err)
{
    struct pollfd *fds =
        tkc_grow(watch->a, watch->fds, &watch->fds_cap, watch->n + 1, sizeof *fds, err);
    watch->fds = fds ? fds : watch->fds;
    uint64_t *marks =
        tkc_grow(watch->a, watch->marks, &watch->marks_cap, watch->n + 1, sizeof *marks, err);
    watch->marks = marks ? marks : watch->marks;
    return fds && marks;
}

/* With room for the first few: one that cannot take the descriptor that wakes it would be of no use. */
tkc_watch *tkc_watch_new(const tinkc_allocator *a, tinkc_error *err)
{
    tkc_watch *watch = tkc_zalloc(a, sizeof *watch, err);
    if (!watch)
        return NULL;
    watch->a = a;
    if (make_room(watch, err))
        return watch;
    tkc_watch_free(watch);
    return NULL;
}

static size_t place_of(const tkc_watch *watch, int fd)
{
    size_t i = 0;
    while (i < watch->n && watch->fds[i].fd != fd)
        i++;
    return i;
}

static bool add_place(tkc_watch *watch)
{
    tinkc_error err = { 0 };
    if (make_room(watch, &err)) {
        watch->n++;
        return true;
    }
    errno = ENOMEM;
    return false;
}

bool tkc_watch_set(tkc_watch *watch, int fd, uint32_t what, uint64_t mark)
{
    size_t i = place_of(watch, fd);
    assert(fd >= 0);
    if (!what) {
        if (i < watch->n)
            watch->fds[i].fd = -1;
        return i < watch->n;
    }
    if (i == watch->n)
        i = place_of(watch, -1);
    if (i == watch->n && !add_place(watch))
        return false;
    watch->marks[i] = mark;
    watch->fds[i] = (struct pollfd){ .fd = fd,
                                     .events = (short)((what & TKC_READABLE ? POLLIN : 0) |
                                                       (what & TKC_WRITABLE ? POLLOUT : 0)) };
    return true;
}

static uint32_t what_came(short revents)
{
    return (revents & POLLIN ? TKC_READABLE : 0u) | (revents & POLLOUT ? TKC_WRITABLE : 0u) |
           (revents & (POLLERR | POLLHUP) ? TKC_BROKEN : 0u);
}

int tkc_watch_wait(tkc_watch *watch, tkc_ready *out, int max, int64_t timeout_ms)
{
    int limit = timeout_ms == TINKC_FOREVER ? -1
                : timeout_ms > INT32_MAX    ? INT32_MAX
                                            : (int)timeout_ms;
    int ready = poll(watch->fds, (nfds_t)watch->n, limit), n = 0;
    if (ready <= 0)
        return ready;
    size_t i = watch->first, left = watch->n;
    for (; left > 0 && n < max; left--, i++) {
        struct pollfd *p = &watch->fds[i %= watch->n];
        if (p->fd < 0 || !p->revents)
            continue;
        if (p->revents & POLLNVAL) /* closed: it has left the set */
            p->fd = -1;
        else
            out[n++] = (tkc_ready){ .mark = watch->marks[i], .what = what_came(p->revents) };
    }
    watch->first = i % watch->n;
    return n;
}

/* ---- descriptors that programs started meanwhile do not inherit ---- */

bool tkc_pipe(int ends[2])
{
    return pipe(ends) == 0 && keep_ends(ends, set_cloexec(ends[0]) && set_cloexec(ends[1]));
}

bool tkc_socketpair(int ends[2])
{
    return socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 &&
           keep_ends(ends, set_cloexec(ends[0]) && set_cloexec(ends[1]));
}

int tkc_socket(int family, int type, int protocol)
{
    return keep_cloexec(socket(family, type, protocol));
}

int tkc_accept(int listener)
{
    return keep_cloexec(accept(listener, NULL, NULL));
}

bool tkc_set_nonblocking(int fd)
{
    return set_flag(fd, F_GETFL, F_SETFL, O_NONBLOCK);
}

/* As it is: nothing in POSIX reaches a socket through its folder's descriptor. */
bool tkc_socket_path(const char *folder, const char *name, int *fd, char out[TKC_SOCKET_PATH])
{
    size_t room = sizeof((struct sockaddr_un *)0)->sun_path;
    int n = snprintf(out, TKC_SOCKET_PATH, "%s/%s", folder, name);
    if (n < 0 || n >= TKC_SOCKET_PATH || (size_t)n >= room) {
        errno = ENAMETOOLONG;
        return false;
    }
    if (*fd < 0)
        *fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *fd >= 0;
}

/* ---- programs that are started ---- */

/* What is open in this process; "." and "..", and the folder itself, do not count. */
static int add_close(posix_spawn_file_actions_t *files, const char *name, int except)
{
    int64_t fd;
    if (!tkc_parse_i64(tkc_str(name), &fd) || fd < 3 || fd == except)
        return 0;
    int flags = fcntl((int)fd, F_GETFD);
    if (flags < 0 || (flags & FD_CLOEXEC))
        return 0;
    return posix_spawn_file_actions_addclose(files, (int)fd);
}

int tkc_spawn_close_rest(posix_spawn_file_actions_t *files)
{
    DIR *all = opendir("/dev/fd");
    int bad = 0;
    if (!all)
        return errno;
    for (struct dirent *e; !bad && (e = readdir(all));)
        bad = add_close(files, e->d_name, dirfd(all));
    closedir(all);
    return bad;
}

void tkc_close_from(int first)
{
    enum { UNKNOWN = 4096 };
    struct rlimit most = { 0 };
    bool known = getrlimit(RLIMIT_NOFILE, &most) == 0 && most.rlim_cur != RLIM_INFINITY;
    for (int fd = first; fd < (known ? (int)most.rlim_cur : UNKNOWN); fd++)
        (void)close(fd);
}

/* ---- threads ---- */

int tkc_cond_make(pthread_cond_t *cond)
{
    return pthread_cond_init(cond, NULL);
}

/* Such a condition waits on the wall clock, which may be set meanwhile: so never for long. */
bool tkc_cond_wait_ns(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns)
{
    enum { LONGEST_NS = 500000000 };
    struct timespec until;
    int64_t left = deadline_ns - tkc_monotonic_ns();
    (void)clock_gettime(CLOCK_REALTIME, &until);
    int64_t ns = until.tv_nsec + (left > LONGEST_NS ? LONGEST_NS : left > 0 ? left : 0);
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    (void)pthread_cond_timedwait(cond, mutex, &until);
    return tkc_monotonic_ns() < deadline_ns;
}

/* Who joins a thread for somebody that waits only so long. Both hold it; the last one frees it. */
typedef struct joiner {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t joined_cond;
    bool joined, abandoned;
} joiner;

static void free_joiner(joiner *j)
{
    pthread_cond_destroy(&j->joined_cond);
    pthread_mutex_destroy(&j->lock);
    tkc_release(NULL, j, sizeof *j);
}

static void *join_it(void *arg)
{
    joiner *j = arg;
    pthread_join(j->thread, NULL);
    pthread_mutex_lock(&j->lock);
    j->joined = true;
    bool mine = j->abandoned;
    pthread_cond_signal(&j->joined_cond);
    pthread_mutex_unlock(&j->lock);
    if (mine)
        free_joiner(j);
    return NULL;
}

/* NULL = there is no room, or no thread, for it. */
static joiner *start_joiner(pthread_t thread, pthread_t *helper)
{
    tinkc_error err = { 0 };
    joiner *j = tkc_zalloc(NULL, sizeof *j, &err);
    if (!j)
        return NULL;
    j->thread = thread;
    pthread_mutex_init(&j->lock, NULL);
    (void)tkc_cond_make(&j->joined_cond);
    if (pthread_create(helper, NULL, join_it, j) == 0)
        return j;
    free_joiner(j);
    return NULL;
}

void tkc_join_within(pthread_t thread, int seconds)
{
    int64_t deadline_ns = tkc_monotonic_ns() + (int64_t)seconds * 1000000000;
    pthread_t helper;
    joiner *j = start_joiner(thread, &helper);
    if (!j) {
        (void)pthread_detach(thread);
        return;
    }
    pthread_mutex_lock(&j->lock);
    while (!j->joined && tkc_cond_wait_ns(&j->joined_cond, &j->lock, deadline_ns))
        ;
    bool joined = j->joined;
    j->abandoned = !joined;
    pthread_mutex_unlock(&j->lock);
    if (joined) {
        pthread_join(helper, NULL);
        free_joiner(j);
    } else {
        pthread_detach(helper);
    }
}

/* ---- memory ---- */

void tkc_wipe(void *secret, size_t len)
{
    volatile unsigned char *at = secret;
    while (len--)
        *at++ = 0;
}

void tkc_heap_trim(void)
{
}

void tkc_heap_map_large(void)
{
}

size_t tkc_heap_unused(void)
{
    return 0;
}

/* ---- the rest ---- */

bool tkc_random_bytes(void *out, size_t len)
{
    unsigned char *at = out;
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && len) {
        ssize_t n = read(fd, at, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        at += n;
        len -= (size_t)n;
    }
    if (fd >= 0)
        close(fd);
    return fd >= 0 && len == 0;
}

const char *tkc_errno_text(int number)
{
    static _Thread_local char text[128];
    return strerror_r(number, text, sizeof text) == 0 ? text : "unknown error";
}

/* ---- pages of libraries: POSIX cannot list them ---- */

void tkc_dl_mark_now(tkc_dl_mark *mark)
{
    mark->n = 0;
}

void tkc_dl_give_back(const tkc_dl_mark *since)
{
    (void)since;
}
