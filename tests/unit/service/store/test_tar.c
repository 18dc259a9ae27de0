/* test_tar.c - archives: the bytes of a tar, its end, and sizes. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "service/store/tar.h"
#include "support/check.h"
#include "support/engine/tiny_model.h"

enum { BLOCK = 512 };

typedef struct gathered {
    tkc_buf all;
    size_t calls, stop_after; /* 0 = never */
} gathered;

static bool gather(void *user, const void *data, size_t len)
{
    gathered *g = user;
    tinkc_error err = { 0 };
    assert_true(len > 0);
    assert_true(tkc_buf_add(&g->all, data, len, &err));
    return ++g->calls != g->stop_after;
}

static void put_text(char *block, size_t at, const char *text)
{
    memcpy(block + at, text, strlen(text) + 1);
}

/* A ustar header (POSIX.1-1988): name, mode, uid, gid, size, mtime, sum, type, magic, version. */
static void header_is(const char *have, const char *name, const char *size, const char *mtime)
{
    char want[BLOCK] = { 0 }, sum[8];
    unsigned total = 0;
    put_text(want, 0, name);
    put_text(want, 100, "0000644");
    put_text(want, 108, "0000000");
    put_text(want, 116, "0000000");
    put_text(want, 124, size);
    put_text(want, 136, mtime);
    memcpy(want + 148, "        0ustar\0", 9);
    memcpy(want + 257,
           "ustar\0"
           "00",
           8);
    for (size_t i = 0; i < BLOCK; i++)
        total += (unsigned char)want[i];
    snprintf(sum, sizeof sum, "%06o", total);
    memcpy(want + 148, sum, 7);
    assert_memory_equal(have, want, BLOCK);
}

static void file_of(const char *folder, const char *name, char byte, off_t size, time_t at)
{
    char path[500];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    for (off_t i = 0; i < size; i++)
        fputc(byte, f);
    fclose(f);
    const struct timeval times[2] = { { .tv_sec = at }, { .tv_sec = at } };
    assert_int_equal(utimes(path, times), 0);
}

TEST(an_archive_is_what_tar_writes)
{
    enum { LARGE = 300000, LARGE_BLOCKS = 300032 };
    tinkc_error err = { 0 };
    char *folder = tiny_folder(), path[500];
    static const char *const names[] = { "a", "none", "link", "folder", "b", "c", "d", NULL };
    snprintf(path, sizeof path, "%s/folder", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/link", folder);
    assert_int_equal(symlink("a", path), 0);
    file_of(folder, "a", 'x', 5, 1000000000);
    file_of(folder, "b", 'y', BLOCK, 1000000001);
    file_of(folder, "c", 'z', 0, 1000000002);
    file_of(folder, "d", 'w', LARGE, 1000000000);
    tke_tar tar;
    assert_true(tke_tar_plan(&tar, folder, names, &err));
    assert_int_equal(tar.n_files, 4);
    assert_int_equal(tar.total, BLOCK * (2 + 2 + 1 + 1 + 2) + LARGE_BLOCKS);
    assert_int_equal(tar.mtime, 1000000000); /* of the last */
    gathered g = { 0 };
    tkc_buf_init(&g.all, NULL, TKC_BUF_NO_MAX);
    assert_true(tke_tar_send(&tar, 0, tar.total, gather, &g, &err));
    assert_int_equal(g.all.len, (size_t)tar.total);
    const char *at = g.all.data;
    static const char zeros[2 * BLOCK];
    header_is(at, "a", "00000000005", "07346545000");
    assert_memory_equal(at + BLOCK, "xxxxx", 5);
    assert_memory_equal(at + BLOCK + 5, zeros, BLOCK - 5);
    header_is(at + 2 * BLOCK, "b", "00000001000", "07346545000");
    header_is(at + 4 * BLOCK, "c", "00000000000", "07346545000");
    header_is(at + 5 * BLOCK, "d", "00001111740", "07346545000");
    for (size_t i = 0; i < LARGE; i++)
        assert_true(at[6 * BLOCK + i] == 'w');
    assert_memory_equal(at + 6 * BLOCK + LARGE, zeros, LARGE_BLOCKS - LARGE);
    assert_memory_equal(at + tar.total - 2 * BLOCK, zeros, 2 * BLOCK);
    /* Ranges that begin or end at the edge of a part. */
    static const int64_t edges[] = { 0,      1,      511,    512,    513,    516,    517,    1023,   1024,
                                     1536,   2048,   2559,   2560,   3071,   3072,   3073,   265215, 265216,
                                     265217, 303071, 303072, 303103, 303104, 303105, 304127, 304128 };
    assert_int_equal(tar.total, 304128);
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
        for (size_t k = i; k < sizeof edges / sizeof *edges; k++) {
            gathered part = { 0 };
            tkc_buf_init(&part.all, NULL, TKC_BUF_NO_MAX);
            assert_true(tke_tar_send(&tar, edges[i], edges[k], gather, &part, &err));
            assert_int_equal(part.all.len, (size_t)(edges[k] - edges[i]));
            if (part.all.len)
                assert_memory_equal(part.all.data, at + edges[i], part.all.len);
            tkc_buf_free(&part.all);
        }
    tkc_buf_free(&g.all);
    tiny_model_remove(folder);
}

TEST(an_archive_may_be_read_from_any_byte)
{
    tinkc_error err = { 0 };
    char *folder = tiny_folder(), path[500];
    static const char *const names[] = { "1", "2", "3", "4", "5", "6", "7", "8", "9", NULL };
    for (size_t i = 0; names[i]; i++)
        file_of(folder, names[i], 'x', 600000, 1);
    tke_tar tar;
    assert_true(tke_tar_plan(&tar, folder, names, &err));
    assert_int_equal(tar.n_files, 8); /* that many fit */
    for (size_t n = 1; n <= 6; n++) { /* the reader has gone: nothing more is read or sent */
        gathered g = { .stop_after = n };
        tkc_buf_init(&g.all, NULL, TKC_BUF_NO_MAX);
        assert_true(tke_tar_send(&tar, 0, tar.total, gather, &g, &err));
        assert_int_equal(g.calls, n);
        tkc_buf_free(&g.all);
    }
    gathered g = { 0 };
    tkc_buf_init(&g.all, NULL, TKC_BUF_NO_MAX);
    snprintf(path, sizeof path, "%s/1", folder);
    assert_int_equal(truncate(path, 100), 0);
    assert_false(tke_tar_send(&tar, 0, tar.total, gather, &g, &err));
    assert_int_equal(err.code, TINKC_E_FILE);
    assert_non_null(strstr(err.message, "changed while it was read"));
    err = (tinkc_error){ 0 };
    assert_int_equal(unlink(path), 0);
    assert_false(tke_tar_send(&tar, 0, tar.total, gather, &g, &err));
    assert_non_null(strstr(err.message, "1"));
    err = (tinkc_error){ 0 };
    assert_true(tke_tar_send(&tar, 0, BLOCK, gather, &g, &err)); /* needs the head alone */
    assert_false(tke_tar_plan(&tar, "/nonexistent", names, &err));
    tkc_buf_free(&g.all);
    tiny_model_remove(folder);
}

/* Sizes from eight gigabytes on do not fit into eleven octal digits. */
TEST(sizes_from_eight_gigabytes_are_binary)
{
    tinkc_error err = { 0 };
    char *folder = tiny_folder(), path[500];
    static const char *const names[] = { "big", NULL };
    static const struct {
        int64_t size;
        const char field[13];
    } rows[] = { { 8589934591, "77777777777" },
                 { 8589934592, "\x80\0\0\0\0\0\0\2\0\0\0\0" },
                 { 8589934592 + 0x010203, "\x80\0\0\0\0\0\0\2\0\1\2\3" } };
    snprintf(path, sizeof path, "%s/big", folder);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int fd = open(path, O_WRONLY | O_CREAT, 0600);
        assert_int_equal(ftruncate(fd, rows[i].size), 0); /* no blocks behind it */
        close(fd);
        tke_tar tar;
        assert_true(tke_tar_plan(&tar, folder, names, &err));
        gathered g = { 0 };
        tkc_buf_init(&g.all, NULL, TKC_BUF_NO_MAX);
        assert_true(tke_tar_send(&tar, 0, BLOCK, gather, &g, &err));
        assert_memory_equal(g.all.data + 124, rows[i].field, 12);
        tkc_buf_free(&g.all);
    }
    tiny_model_remove(folder);
}
