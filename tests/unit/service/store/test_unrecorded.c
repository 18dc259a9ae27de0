/* test_unrecorded.c - the file of requests that the database does not know yet, byte by byte. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/file.h"
#include "service/store/unrecorded.h"
#include "support/check.h"
#include "support/engine/tiny_model.h"

static const tkc_log silent;

static tke_store *open_store(const char *folder)
{
    tinkc_error err = { 0 };
    tke_store *s = tke_store_open(NULL, &silent, folder, &err);
    assert_ok(err);
    return s;
}

enum { FILE_BYTES = 65536, RECORD = 56, SLOTS = FILE_BYTES / RECORD };

typedef struct kept {
    tke_unrecorded r[8];
    size_t n, stop_after;
} kept;

static bool keep(const tke_unrecorded *r, void *user, tinkc_error *err)
{
    kept *k = user;
    if (k->n == k->stop_after)
        return tkc_fail(err, TINKC_E_STORE, "enough");
    k->r[k->n++] = *r;
    return true;
}

static void unrecorded_path(char out[500], const char *folder)
{
    snprintf(out, 500, "%s/unrecorded", folder);
}

TEST(unrecorded_requests_have_their_bytes)
{
    tinkc_error err = { 0 };
    char *folder = tiny_folder(), path[500];
    unsigned char bytes[2 * RECORD], want[2 * RECORD] = { 0 };
    struct stat st;
    tke_store *s = open_store(folder);
    unrecorded_path(path, folder);
    (void)unlink(path);
    tke_hash128 run = tke_unrecorded_run("run"), other = tke_unrecorded_run("other");
    tke_unrecorded one = { run, other, 0x0102030405060708, 9, 0x0a0b0c0d, true };
    tke_unrecorded two = { .run = other, .seq = 2, .kind = 3 };
    assert_false(tke_unrecorded_add(s, &one)); /* the file must exist before */
    tke_unrecorded_clear(s);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, FILE_BYTES);
    assert_true(tke_unrecorded_add(s, &one));
    assert_true(tke_unrecorded_add(s, &two));
    memcpy(want, &run, 16);
    memcpy(want + 16, "\x08\7\6\5\4\3\2\1\x09\0\0\0\1\0\0\0", 16);
    memcpy(want + 32, &other, 16);
    memcpy(want + 48, "\x0d\x0c\x0b\x0a", 4);
    memcpy(want + RECORD, &other, 16);
    memcpy(want + RECORD + 16, "\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0", 16);
    for (int i = 0; i < 2; i++) {
        uint32_t crc = tke_crc32c(0, want + i * RECORD, RECORD - 4);
        memcpy(want + i * RECORD + RECORD - 4, &crc, 4);
    }
    FILE *f = fopen(path, "r+");
    assert_int_equal(fread(bytes, 1, sizeof bytes, f), sizeof bytes);
    assert_memory_equal(bytes, want, sizeof want);
    kept k = { .stop_after = 8 };
    assert_true(tke_unrecorded_each(s, keep, &k, &err));
    assert_int_equal(k.n, 2);
    assert_true(tke_hash_eq(k.r[0].run, run) && tke_hash_eq(k.r[1].run, other));
    assert_true(k.r[0].seq == 0x0102030405060708 && k.r[0].kind == 9 && k.r[0].failed);
    assert_true(tke_hash_eq(k.r[0].hash, other) && k.r[0].epoch == 0x0a0b0c0d);
    assert_true(k.r[1].seq == 2 && k.r[1].kind == 3 && !k.r[1].failed);
    k = (kept){ .stop_after = 1 }; /* an error of the reader ends it */
    assert_false(tke_unrecorded_each(s, keep, &k, &err));
    assert_string_equal(err.message, "enough");
    err = (tinkc_error){ 0 };
    /* A torn record is skipped, whichever byte of it is missing; the next one is read. */
    for (int i = 0; i < RECORD; i++) {
        fseek(f, i, SEEK_SET);
        fputc(want[i] ^ 0x10, f);
        fflush(f);
        k = (kept){ .stop_after = 8 };
        assert_true(tke_unrecorded_each(s, keep, &k, &err));
        assert_int_equal(k.n, 1);
        assert_true(k.r[0].seq == 2);
        fseek(f, i, SEEK_SET);
        fputc(want[i], f);
        fflush(f);
    }
    tke_unrecorded_clear(s);
    k = (kept){ .stop_after = 8 };
    assert_true(tke_unrecorded_each(s, keep, &k, &err));
    assert_int_equal(k.n, 0);
    fclose(f);
    tke_store_close(s);
    tiny_model_remove(folder);
}

/* The file has a fixed size: the last place in it is used, and then there is none. */
TEST(unrecorded_is_full)
{
    tinkc_error err = { 0 };
    char *folder = tiny_folder(), path[500];
    static char full[FILE_BYTES];
    struct stat st;
    tke_store *s = open_store(folder);
    unrecorded_path(path, folder);
    memset(full, 0xff, sizeof full);
    memset(full + RECORD * (SLOTS - 1), 0, RECORD);
    assert_true(tkc_write_file(path, full, sizeof full, 0600, &err));
    tke_unrecorded seven = { .seq = 7, .kind = 1 }, eight = { .seq = 8, .kind = 1 };
    assert_true(tke_unrecorded_add(s, &seven));
    assert_false(tke_unrecorded_add(s, &eight));
    kept k = { .stop_after = 8 };
    assert_true(tke_unrecorded_each(s, keep, &k, &err));
    assert_int_equal(k.n, 1);
    assert_true(k.r[0].seq == 7);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, FILE_BYTES);
    /* A place that cannot be written is not used. */
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    const struct rlimit low = { RECORD * (SLOTS - 1), before.rlim_max };
    memset(full + RECORD * (SLOTS - 1), 0, RECORD);
    assert_true(tkc_write_file(path, full, sizeof full, 0600, &err));
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    bool added = tke_unrecorded_add(s, &seven);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, SIG_DFL);
    assert_false(added);
    tke_store_close(s);
    tiny_model_remove(folder);
    s = open_store(NULL); /* in memory: nothing is kept, nothing fails */
    tke_unrecorded_clear(s);
    assert_false(tke_unrecorded_add(s, &seven));
    assert_true(tke_unrecorded_each(s, keep, &k, &err));
    assert_int_equal(k.n, 1);
    tke_store_close(s);
}
