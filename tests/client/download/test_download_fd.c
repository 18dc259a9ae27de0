/* test_download_fd.c - bytes into a descriptor of the caller's: what fits, what waits, what ends it. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/download/download.h"

static char bytes[1 << 20];
static tkc_stopper stop;
static tkc_fd_sink sink;
static tinkc_error err;

static int setup(void **state)
{
    (void)state;
    err = (tinkc_error){ 0 };
    memset(bytes, 'x', sizeof bytes);
    return tkc_stopper_init(&stop, &err) ? 0 : 1;
}

static int teardown(void **state)
{
    (void)state;
    tkc_stopper_destroy(&stop);
    return 0;
}

static size_t drain(int fd)
{
    static char to[1 << 20];
    size_t all = 0;
    ssize_t n;
    assert_true(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    while ((n = read(fd, to, sizeof to)) > 0)
        all += (size_t)n;
    return all;
}

/* A pipe and a socket take what fits and no more; a stop ends the wait for room. The caller's own
 * descriptor keeps its mode. */
TEST_WITH(what_fits_and_what_waits, setup, teardown)
{
    for (int sockets = 0; sockets < 2; sockets++) {
        int ends[2];
        if (sockets) {
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
        } else {
            int made[2];
            assert_int_equal(pipe(made), 0);
            ends[0] = made[1];
            ends[1] = made[0];
        }
        assert_true(tkc_fd_sink_open(&sink, ends[0], &err));
        size_t n = tkc_fd_sink_try(&sink, bytes, sizeof bytes);
        assert_in_range(n, 1, sizeof bytes - 1);
        while (tkc_fd_sink_try(&sink, bytes, 1) == 1) /* to the last byte */
            n++;
        assert_int_equal(tkc_fd_sink_try(&sink, bytes, 1), 0);
        assert_false(fcntl(ends[0], F_GETFL) & O_NONBLOCK);
        tkc_stopper_stop(&stop);
        assert_false(tkc_fd_sink_write(&sink, &stop, bytes, 1, &err));
        assert_int_equal(err.code, TINKC_E_CANCELLED);
        assert_string_equal(err.message, "the download was stopped");
        err = (tinkc_error){ 0 };
        assert_int_equal(drain(ends[1]), n);
        assert_true(tkc_fd_sink_write(&sink, &stop, bytes, 10, &err)); /* there is room: no wait */
        assert_int_equal(drain(ends[1]), 10);
        close(ends[1]);
        tkc_fd_sink_close(&sink);
        close(ends[0]);
        stop.stopped = false;
    }
}

TEST_WITH(files_take_everything, setup, teardown)
{
    char path[] = "/tmp/tinkc-fd-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    assert_true(tkc_fd_sink_open(&sink, fd, &err));
    assert_int_equal(sink.ready_fd, -1); /* there is no such thing for a file */
    assert_int_equal(tkc_fd_sink_try(&sink, bytes, 5), 0);
    assert_true(tkc_fd_sink_write(&sink, &stop, bytes, sizeof bytes, &err));
    assert_int_equal(lseek(fd, 0, SEEK_CUR), sizeof bytes);
    tkc_fd_sink_close(&sink);
    assert_int_equal(fcntl(fd, F_GETFD) == -1, false); /* it is the caller's */
    close(fd);
}

TEST_WITH(descriptors_that_will_not_do, setup, teardown)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_false(tkc_fd_sink_open(&sink, ends[0], &err)); /* for reading */
    assert_non_null(strstr(err.message, "descriptor "));
    err = (tinkc_error){ 0 };
    close(ends[0]);
    assert_true(tkc_fd_sink_open(&sink, ends[1], &err));
    (void)signal(SIGPIPE, SIG_IGN);
    assert_false(tkc_fd_sink_write(&sink, &stop, bytes, 1, &err)); /* nobody reads */
    assert_non_null(strstr(err.message, "descriptor "));
    err = (tinkc_error){ 0 };
    tkc_fd_sink_close(&sink);
    close(ends[1]);
    assert_false(tkc_fd_sink_open(&sink, ends[1], &err)); /* closed */
    assert_non_null(strstr(err.message, "descriptor "));
    err = (tinkc_error){ 0 };
}
