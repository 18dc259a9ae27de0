/* test_download_writer.c - blocks on their way to the disk: all bytes in order, and a disk that takes none. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/download/download.h"
#include "support/client/api_support.h"
#include "support/counting.h"

enum { BLOCK = 256 * 1024, MANY = 9 * BLOCK + 5 };

static char bytes[MANY];

static int fill(void **state)
{
    (void)state;
    for (size_t i = 0; i < MANY; i++)
        bytes[i] = (char)(i * 7 + i / 251);
    return 0;
}

static int open_new(char *path)
{
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    return fd;
}

static void check_file(int fd, size_t len)
{
    static char got[MANY + 1];
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    size_t n = 0;
    for (ssize_t r; (r = read(fd, got + n, sizeof got - n)) > 0;)
        n += (size_t)r;
    assert_int_equal(n, len);
    assert_memory_equal(got, bytes, len);
}

/* Whatever the pieces are; one file after another. */
TEST(bytes_in_order)
{
    static const size_t pieces[] = { 1000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, MANY };
    tinkc_error err = { 0 };
    counting memory = { 0 };
    tinkc_allocator a = counting_allocator(&memory);
    tkc_writer *w = tkc_writer_new(&a, &err);
    assert_ok(&err);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        char path[] = "/tmp/tinkc-writer-XXXXXX";
        int fd = open_new(path);
        for (size_t at = 0; at < MANY; at += pieces[i])
            assert_int_equal(tkc_writer_add(w, fd, bytes + at, MANY - at < pieces[i] ? MANY - at : pieces[i]), 0);
        assert_int_equal(tkc_writer_flush(w, fd), 0);
        check_file(fd, MANY); /* all of it is there after a flush */
        assert_int_equal(tkc_writer_flush(w, fd), 0);
        (void)close(fd);
        (void)unlink(path);
    }
    tkc_writer_free(w, &a);
    assert_int_equal(atomic_load(&memory.bytes), 0);
}

/* A failure is said by the flush of its file at the latest, and once: the next file begins without it. */
TEST(a_disk_that_takes_nothing)
{
    tinkc_error err = { 0 };
    char path[] = "/tmp/tinkc-writer-XXXXXX";
    int good = open_new(path), bad = open("/dev/null", O_RDONLY);
    tkc_writer *w = tkc_writer_new(NULL, &err);
    assert_ok(&err);
    for (int i = 0; i < 2; i++) {
        /* More than the ring holds: the maker has to hear of it. */
        assert_int_equal(tkc_writer_add(w, bad, bytes, MANY), EBADF);
        assert_int_equal(tkc_writer_add(w, bad, bytes, 1), 0);
        assert_int_equal(tkc_writer_flush(w, bad), EBADF);
        assert_int_equal(tkc_writer_flush(w, bad), 0);
    }
    assert_int_equal(tkc_writer_add(w, bad, bytes, 10), 0); /* a block that is not full waits */
    assert_int_equal(tkc_writer_flush(w, bad), EBADF);
    assert_int_equal(tkc_writer_add(w, good, bytes, MANY), 0);
    assert_int_equal(tkc_writer_flush(w, good), 0);
    check_file(good, MANY);
    tkc_writer_free(w, NULL);
    (void)close(good);
    (void)close(bad);
    (void)unlink(path);
}

/* Without a thread of its own the caller writes. */
TEST(without_a_writer)
{
    char path[] = "/tmp/tinkc-writer-XXXXXX";
    int good = open_new(path), bad = open("/dev/null", O_RDONLY);
    assert_int_equal(tkc_writer_add(NULL, good, bytes, 100), 0);
    check_file(good, 100);
    assert_int_equal(tkc_writer_flush(NULL, good), 0);
    assert_int_equal(tkc_writer_add(NULL, bad, bytes, 1), EBADF);
    tkc_writer_free(NULL, NULL);
    (void)close(good);
    (void)close(bad);
    (void)unlink(path);
}

RUN_TESTS(fill, NULL)
