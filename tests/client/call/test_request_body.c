/* test_request_body.c - bodies of bytes and files: what is read from each place, and files that change. */
#include "support/check.h"
#include "support/ledger.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/platform.h"
#include "client/call/body.h"
#include "support/failing_calls.h"

static ledger book;
static tinkc_allocator allocator;
static tinkc_error err;
static char folder[64], path[96];

static int setup(void **state)
{
    (void)state;
    err = (tinkc_error){ 0 };
    book = (ledger){ .left = -1 };
    allocator = ledger_allocator(&book);
    (void)snprintf(folder, sizeof folder, "/tmp/tinkc-body-XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    (void)snprintf(path, sizeof path, "%s/file", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder) == 0 && book.blocks == 0 && book.bytes == 0 ? 0 : 1;
}

static void put_file(const char *text)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    (void)fputs(text, f);
    fclose(f);
}

static void set_time(int64_t sec, int64_t nsec)
{
    struct timespec times[2] = { { sec, nsec }, { sec, nsec } };
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static tkc_upload *open_file(const char *text)
{
    put_file(text);
    set_time(1000, 500);
    tkc_upload *u = tkc_upload_open(&allocator, path, &err);
    assert_ok(err);
    return u;
}

static void add(tkc_body *b, const char *text)
{
    assert_true(tkc_buf_add(tkc_body_bytes(b), text, strlen(text), &err));
}

/* All of it, `cap` bytes at most at a time. */
static const char *read_all(const tkc_body *b, size_t cap)
{
    static char text[64];
    size_t at = 0, n;
    memset(text, 0, sizeof text);
    while ((n = tkc_body_read(b, at, text + at, cap, &err)) > 0) {
        assert_true(n <= cap && at + n < sizeof text);
        at += n;
    }
    return text;
}

TEST_WITH(bytes_and_files_in_order, setup, teardown)
{
    tkc_body *b = tkc_body_new(&allocator, &err);
    tkc_upload *u = open_file("FILE");
    tinkc_bytes view;
    add(b, "one ");
    add(b, "two ");
    assert_true(tkc_body_file(b, u, &err));
    assert_true(tkc_body_file(b, u, &err)); /* twice, and nothing between */
    tkc_upload_drop(u);                     /* the body keeps it */
    add(b, " end");
    assert_true(tkc_body_close(b, &err));
    assert_true(tkc_body_close(b, &err));
    assert_int_equal(tkc_body_size(b), 20);
    for (size_t cap = 1; cap <= 21; cap++)
        assert_string_equal(read_all(b, cap), "one two FILEFILE end");
    char some[8] = "";
    assert_int_equal(tkc_body_read(b, 7, some, 8, &err), 1); /* up to the end of a piece */
    assert_int_equal(tkc_body_read(b, 10, some, 8, &err), 2);
    assert_memory_equal(some, "LE", 2);
    assert_int_equal(tkc_body_read(b, 20, some, 8, &err), 0);
    assert_int_equal(tkc_body_read(b, 8, some, 0, &err), 0);
    assert_ok(err);
    assert_false(tkc_body_in_memory(b, &view));
    assert_null(view.data);
    assert_int_equal(view.len, 0);
    tkc_body_keep(b);
    tkc_body_drop(b);
    assert_string_equal(read_all(b, 64), "one two FILEFILE end");
    tkc_body_drop(b);
}

TEST_WITH(bytes_alone_are_a_view, setup, teardown)
{
    tinkc_bytes view;
    tkc_body *b = tkc_body_new(&allocator, &err);
    assert_true(tkc_body_close(b, &err));
    assert_int_equal(tkc_body_size(b), 0);
    assert_string_equal(read_all(b, 8), "");
    assert_true(tkc_body_in_memory(b, &view));
    assert_int_equal(view.len, 0);
    tkc_upload *u = open_file(""); /* an empty file is nothing at all */
    assert_true(tkc_body_file(b, u, &err));
    tkc_upload_drop(u);
    add(b, "text");
    assert_true(tkc_body_close(b, &err));
    assert_true(tkc_body_in_memory(b, &view));
    assert_int_equal(view.len, 4);
    assert_memory_equal(view.data, "text", 4);
    assert_true(tkc_body_load(b, &err));
    assert_string_equal(read_all(b, 8), "text");
    tkc_body_drop(b);
    tkc_body_drop(NULL);
    tkc_upload_drop(NULL);
}

TEST_WITH(files_are_loaded, setup, teardown)
{
    tinkc_bytes view;
    tkc_body *b = tkc_body_new(&allocator, &err);
    tkc_upload *u = open_file("FILE");
    add(b, "a ");
    assert_true(tkc_body_file(b, u, &err));
    tkc_upload_drop(u);
    add(b, " z");
    assert_true(tkc_body_close(b, &err));
    assert_true(tkc_body_load(b, &err));
    unlink(path); /* nobody needs it any more */
    assert_int_equal(tkc_body_size(b), 8);
    assert_true(tkc_body_in_memory(b, &view));
    assert_int_equal(view.len, 8);
    assert_memory_equal(view.data, "a FILE z", 8);
    assert_string_equal(read_all(b, 3), "a FILE z");
    assert_true(tkc_body_close(b, &err));
    assert_int_equal(tkc_body_size(b), 8);
    tkc_body_drop(b);
}

/* Looked at with the first byte and with the last: each sign of a change by itself. */
TEST_WITH(changed_files_are_errors, setup, teardown)
{
    static const struct {
        const char *text;
        int64_t sec, nsec;
        bool good;
    } rows[] = { { "FILE", 1000, 500, true },  { "ELIF", 1000, 500, true }, /* nobody can tell */
                 { "FILE", 1001, 500, false }, { "FILE", 1000, 501, false }, { "FILE5", 1000, 500, false },
                 { "FIL", 1000, 500, false },  { "", 1000, 500, false } };
    char want[160], some[8];
    (void)snprintf(want, sizeof want, "%s: changed while it was sent", path);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tkc_body *b = tkc_body_new(&allocator, &err);
        tkc_upload *u = open_file("FILE");
        assert_true(tkc_body_file(b, u, &err));
        tkc_upload_drop(u);
        assert_true(tkc_body_close(b, &err));
        put_file(rows[i].text);
        set_time(rows[i].sec, rows[i].nsec);
        for (uint64_t at = 0; at < 4; at += at ? 2 : 1) { /* the first byte, one between, the last */
            bool good = rows[i].good || (at == 1 && rows[i].text[0]);
            assert_int_equal(tkc_body_read(b, at, some, 1, &err), good);
            assert_int_equal(err.code, good ? 0 : TINKC_E_FILE);
            if (!good)
                assert_string_equal(err.message, want);
            err = (tinkc_error){ 0 };
        }
        assert_int_equal(tkc_body_load(b, &err), rows[i].good);
        assert_int_equal(err.code, rows[i].good ? 0 : TINKC_E_FILE);
        err = (tinkc_error){ 0 };
        tkc_body_drop(b);
    }
}

TEST_WITH(files_that_cannot_be_read, setup, teardown)
{
    assert_null(tkc_upload_open(&allocator, path, &err));
    assert_int_equal(err.code, TINKC_E_FILE);
    assert_non_null(strstr(err.message, path));
    err = (tinkc_error){ 0 };
    assert_null(tkc_upload_open(&allocator, folder, &err)); /* a folder is not a file */
    assert_int_equal(err.code, TINKC_E_FILE);
}

/* A read that was interrupted is repeated; one that fails is an error that names the file. */
TEST_WITH(reads_that_fail, setup, teardown)
{
    tkc_upload *u = open_file("0123456789");
    tkc_body *b = tkc_body_new(&allocator, &err);
    assert_true(tkc_body_file(b, u, &err));
    atomic_store(&failing_errno, EINTR);
    fail_call("pread", 1);
    assert_string_equal(read_all(b, 4), "0123456789");
    assert_true(call_has_failed());
    atomic_store(&failing_errno, EIO);
    fail_call("pread", 2);
    assert_string_equal(read_all(b, 4), "0123");
    assert_true(call_has_failed());
    assert_int_equal(err.code, TINKC_E_FILE);
    char want[200];
    (void)snprintf(want, sizeof want, "%s: %s", path, tkc_errno_text(EIO)); /* a C library's words */
    assert_string_equal(err.message, want);
    char byte;
    fail_call("pread", 1);
    assert_int_equal(tkc_body_read(b, 0, &byte, 1, &(tinkc_error){ 0 }), 0);
    assert_true(call_has_failed());
    tkc_body_drop(b);
    tkc_upload_drop(u);
}
