/* download_fd.c - bytes of a download into a descriptor of the caller's.
 *
 * May touch: that descriptor, by writing. Must not: change its mode, which other processes may
 * share, or wait without looking whether the download was stopped.
 */
#include "client/download/download.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/platform.h"
#include "client/core/client_priv.h"

enum { LOOK_MS = 100 };

/* A pipe or a device opened a second time has a mode of its own. Where that fails, and for files,
 * which wait for the disk whatever their mode says, there is only writing as it is. */
static int open_again(int fd)
{
    return tkc_open_again(fd, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

bool tkc_fd_sink_open(tkc_fd_sink *o, int fd, tinkc_error *err)
{
    struct stat st;
    int mode = fcntl(fd, F_GETFL);
    *o = (tkc_fd_sink){ .fd = fd, .ready_fd = -1 };
    if (mode < 0 || fstat(fd, &st) != 0)
        return tkc_fail_errno(err, "descriptor %d", fd);
    if ((mode & O_ACCMODE) == O_RDONLY) {
        errno = EBADF;
        return tkc_fail_errno(err, "descriptor %d", fd);
    }
    o->is_socket = S_ISSOCK(st.st_mode);
    if (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode))
        o->ready_fd = open_again(fd);
    return true;
}

void tkc_fd_sink_close(tkc_fd_sink *o)
{
    if (o->ready_fd >= 0)
        close(o->ready_fd);
}

/* As much as fits, without waiting. False: this descriptor knows no such thing. */
static bool write_ready(const tkc_fd_sink *o, const void *bytes, size_t len, ssize_t *n)
{
    if (o->is_socket)
        /* Without the signal: SIGPIPE would end a program that has not asked for it. */
        *n = send(o->fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    else if (o->ready_fd >= 0)
        *n = write(o->ready_fd, bytes, len);
    else
        return false;
    return true;
}

size_t tkc_fd_sink_try(const tkc_fd_sink *o, const void *bytes, size_t len)
{
    ssize_t n;
    return write_ready(o, bytes, len, &n) && n > 0 ? (size_t)n : 0;
}

/* Waits a moment for room. False: the download was stopped. */
static bool wait_for_room(const tkc_fd_sink *o, tkc_stopper *stop, tinkc_error *err)
{
    struct pollfd fd = { .fd = o->fd, .events = POLLOUT };
    (void)poll(&fd, 1, LOOK_MS);
    return !tkc_stopper_is_stopped(stop) ||
           tkc_fail(err, TINKC_E_CANCELLED, "the download was stopped");
}

bool tkc_fd_sink_write(const tkc_fd_sink *o, tkc_stopper *stop, const void *bytes, size_t len,
                       tinkc_error *err)
{
    const char *from = bytes;
    while (len) {
        ssize_t n;
        if (!write_ready(o, from, len, &n))
            n = write(o->fd, from, len);
        if (n >= 0) {
            from += n;
            len -= (size_t)n;
        } else if (errno == EAGAIN) {
            if (!wait_for_room(o, stop, err))
                return false;
        } else if (errno != EINTR) {
            return tkc_fail_errno(err, "descriptor %d", o->fd);
        }
    }
    return true;
}
