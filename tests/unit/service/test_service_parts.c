/* test_service_parts.c - the service's small parts, byte by byte: archives, the file of unrecorded
 * requests, journal records, vocabularies, gzip, budgets of memory, hashes and identities. What they
 * write is on disks and in databases, so it must not change. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/file.h"
#include "codec/pb.h"
#include "service/store/checksums.h"
#include "service/handlers/gunzip.h"
#include "service/store/journal.h"
#include "service/worker/memory_budget.h"
#include "service/chat/chat_state.h"
#include "service/core/service_state.h"
#include "service/store/tar.h"
#include "service/store/unrecorded.h"
#include "service/worker/vocab.h"
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

/* ---- archives ---- */

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

TEST(archive_bytes)
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
    static const int64_t edges[] = { 0,      1,      511,    512,    513,    516,    517,
                                     1023,   1024,   1536,   2048,   2559,   2560,   3071,
                                     3072,   3073,   265215, 265216, 265217, 303071, 303072,
                                     303103, 303104, 303105, 304127, 304128 };
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

TEST(archive_ends)
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
TEST(archive_sizes)
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

/* ---- unrecorded requests ---- */

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

TEST(unrecorded_bytes)
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

/* ---- the journal ---- */

static const tke_journal_record record = { .seq = 0x0102030405060708,
                                           .kind = 9,
                                           .epoch = 0x0a0b0c0d,
                                           .is_pb = true,
                                           .forward = false,
                                           .hash = { 0x1112131415161718, 0x2122232425262728 },
                                           .body = { "body", 4 } };
static const char record_bytes[] = "\x24\0\0\0....\x08\7\6\5\4\3\2\1"
                                   "\x18\x17\x16\x15\x14\x13\x12\x11"
                                   "\x28\x27\x26\x25\x24\x23\x22\x21"
                                   "\x0d\x0c\x0b\x0a\x09\1\0\0"
                                   "body";

typedef struct replay {
    tke_journal_record last;
    char body[16];
    size_t n;
    bool refuse;
} replay;

static bool take(const tke_journal_record *r, void *user, tinkc_error *err)
{
    replay *to = user;
    (void)err;
    to->last = *r;
    snprintf(to->body, sizeof to->body, "%.*s", (int)r->body.len, r->body.data);
    to->n++;
    return !to->refuse;
}

static tinkc_bytes journal_of(tkc_arena *arena, const char *folder)
{
    tinkc_error err = { 0 };
    char path[500];
    snprintf(path, sizeof path, "%s/runs/run/journal", folder);
    tinkc_bytes all = tkc_read_file(arena, path, 1 << 20, &err);
    assert_ok(err);
    return all;
}

TEST(journal_bytes)
{
    enum { LEN = sizeof record_bytes - 1 };
    tinkc_error err = { 0 };
    tkc_arena arena;
    char *folder = tiny_folder(), path[500], text[700];
    tke_store *s = open_store(folder);
    tke_journal_record other = { .seq = 1, .kind = 1, .forward = true };
    replay r = { 0 };
    tkc_arena_init(&arena, NULL, 0);
    snprintf(path, sizeof path, "%s/runs/run/journal", folder);
    assert_true(tke_journal_append(s, "run", &record, &err));
    tinkc_bytes all = journal_of(&arena, folder);
    assert_int_equal(all.len, LEN);
    char want[LEN];
    memcpy(want, record_bytes, LEN);
    uint32_t crc = tke_crc32c(0, want + 8, LEN - 8);
    memcpy(want + 4, &crc, 4);
    assert_memory_equal(all.data, want, LEN);
    assert_true(tke_journal_read(s, "run", take, &r, &err));
    assert_int_equal(r.n, 1);
    assert_true(r.last.seq == record.seq && r.last.kind == 9 && r.last.epoch == record.epoch &&
                r.last.is_pb && !r.last.forward && tke_hash_eq(r.last.hash, record.hash));
    assert_string_equal(r.body, "body");
    /* The least record has no body. */
    assert_true(tke_journal_append(s, "run", &other, &err));
    r = (replay){ 0 };
    assert_true(tke_journal_read(s, "run", take, &r, &err));
    assert_int_equal(r.n, 2);
    assert_true(r.last.seq == 1 && r.last.kind == 1 && r.last.epoch == 0 && !r.last.is_pb &&
                r.last.forward);
    assert_string_equal(r.body, "");
    assert_int_equal(journal_of(&arena, folder).len, LEN + 40);
    /* A record that cannot be used is an error, and stays. */
    r = (replay){ .refuse = true };
    assert_false(tke_journal_read(s, "run", take, &r, &err));
    assert_int_equal(r.n, 1);
    snprintf(text, sizeof text, "%s: record %lld cannot be used", path, (long long)record.seq);
    assert_string_equal(err.message, text);
    assert_int_equal(err.code, TINKC_E_STORE);
    err = (tinkc_error){ 0 };
    assert_int_equal(journal_of(&arena, folder).len, LEN + 40);
    /* Trimming keeps those from the number on, byte for byte. */
    assert_true(tke_journal_trim(s, "run", record.seq, &err));
    all = journal_of(&arena, folder);
    assert_int_equal(all.len, LEN);
    assert_memory_equal(all.data, want, LEN);
    assert_true(tke_journal_trim(s, "run", record.seq + 1, &err));
    assert_int_equal(journal_of(&arena, folder).len, 0);
    assert_true(tke_journal_trim(s, "none", 1, &err)); /* there is none */
    assert_true(tke_journal_read(s, "none", take, &r, &err));
    tkc_arena_free(&arena);
    tke_store_close(s);
    tiny_model_remove(folder);
}

/* Every byte of the last record may be missing or wrong: it is cut off, and those before it stay. */
TEST(torn_journals)
{
    enum { LEN = sizeof record_bytes - 1 };
    tinkc_error err = { 0 };
    tkc_arena arena;
    char *folder = tiny_folder(), path[500];
    tke_store *s = open_store(folder);
    tkc_arena_init(&arena, NULL, 0);
    snprintf(path, sizeof path, "%s/runs/run/journal", folder);
    assert_true(tke_journal_append(s, "run", &record, &err));
    assert_true(tke_journal_append(s, "run", &record, &err));
    tinkc_bytes all = journal_of(&arena, folder);
    for (size_t i = 0; i < 2 * LEN; i++) {
        char *torn = exact_copy(all.data, 2 * LEN);
        replay r = { 0 };
        bool cut = i < LEN; /* first cut off, then a wrong byte */
        size_t len = cut ? LEN + i : 2 * LEN;
        if (!cut)
            torn[i] ^= 0x10;
        assert_true(tkc_write_file(path, torn, len, 0600, &err));
        assert_true(tke_journal_read(s, "run", take, &r, &err));
        assert_int_equal(r.n, 1);
        assert_int_equal(journal_of(&arena, folder).len, LEN);
        free_copy(torn, 2 * LEN);
    }
    tkc_arena_free(&arena);
    tke_store_close(s);
    tiny_model_remove(folder);
}

TEST(epochs_of_ids)
{
    static const struct {
        const char *id;
        uint32_t epoch;
    } rows[] = { { "7-s:train:0:1", 7 }, { "12", 12 }, { "-1", 0 }, { "x-1", 0 }, { "", 0 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(tke_epoch_of(rows[i].id), rows[i].epoch);
}

/* ---- vocabularies ---- */

static tke_vocab *vocab_of(const char *json)
{
    tinkc_error err = { 0 };
    tke_vocab *v = tke_vocab_parse(NULL, tkc_str(json), &err);
    assert_ok(err);
    return v;
}

/* Byte-level vocabularies: 33-126, 161-172 and 174-255 stand for themselves; the others are U+0100
 * and up in order: 0-32, 127-160, 173. */
TEST(byte_alphabet)
{
    char json[40000], *at = json;
    unsigned wanted[256], n_others = 0;
    at += sprintf(at, "{\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (unsigned b = 0; b < 256; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        wanted[b] = itself ? b : 256 + n_others++;
        at += sprintf(at, "%s\"\\u%04x\":%u", b ? "," : "", wanted[b], b);
    }
    sprintf(at, "},\"merges\":[]}}");
    assert_int_equal(n_others, 68);
    tke_vocab *v = vocab_of(json);
    for (int b = 0; b < 256; b++) {
        tinkc_str bytes = tke_vocab_bytes(v, b);
        assert_int_equal(bytes.len, 1);
        assert_int_equal((unsigned char)bytes.data[0], b);
    }
    assert_int_equal(tke_vocab_bytes(v, 256).len, 0);
    tke_vocab_free(v);
}

TEST(odd_vocabularies)
{
    static const struct {
        const char *text, *bytes;
    } rows[] = {
        { "\\u0120a\\u010a", " a\n" },
        { "\\u0143", "\xad" },
        { "\\u0144a", "\xc5\x84"
                      "a" },       /* beyond the alphabet: kept as it is */
        { "\\u0541", "\xd5\x81" }, /* not the alphabet's U+0141, U+0146, U+0120 with more bits */
        { "\\u8146", "\xe8\x85\x86" },
        { "\\udbc0\\udd20", "\xf4\x80\x84\xa0" },
        { "a b", "a b" }, /* so is a plain space */
        { "\\u0120\\u00ad", "\xc4\xa0\xc2\xad" },
        { "\\u2581x", "\xe2\x96\x81x" },
        { "\\ud83d\\ude00", "\xf0\x9f\x98\x80" },
        { "\\u0120\\ud83d\\ude00", "\xc4\xa0\xf0\x9f\x98\x80" },
        { "", "" },
    };
    char json[300];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(json, sizeof json, "{\"model\":{\"vocab\":{\"%s\":3}}}", rows[i].text);
        tke_vocab *v = vocab_of(json);
        assert_str(tke_vocab_bytes(v, 3), rows[i].bytes);
        for (int id = 0; id < 3; id++)
            assert_int_equal(tke_vocab_bytes(v, id).len, 0);
        tke_vocab_free(v);
    }
    /* Added tokens count wherever they stand, and are what they say. */
    static const char *const both[] = {
        "{\"added_tokens\":[{\"content\":\"\\u0120<x>\",\"id\":1,\"special\":true}],"
        "\"model\":{\"vocab\":{\"a\":0,\"b\":1}}}",
        "{\"version\":\"1\",\"model\":{\"vocab\":{\"a\":0,\"b\":1}},"
        "\"added_tokens\":[{\"id\":1,\"content\":\"\\u0120<x>\"}]}",
    };
    for (int i = 0; i < 2; i++) {
        tke_vocab *v = vocab_of(both[i]);
        const char *bytes;
        assert_str(tke_vocab_bytes(v, 0), "a");
        assert_str(tke_vocab_bytes(v, 1), "\xc4\xa0<x>");
        assert_int_equal(tke_vocab_token_bytes(v, 1, &bytes), 5);
        assert_memory_equal(bytes, "\xc4\xa0<x>", 5);
        tke_vocab_free(v);
    }
    tke_vocab *list = vocab_of("{\"model\":{\"vocab\":[[\"a\",0]]}}"); /* another kind of model */
    assert_int_equal(tke_vocab_bytes(list, 0).len, 0);
    tke_vocab_free(list);
    assert_int_equal(tke_vocab_bytes(NULL, 0).len, 0);
}

static void *dirty_alloc(size_t size, void *user)
{
    (void)user;
    void *p = malloc(size);
    return p ? memset(p, 0x5a, size) : NULL;
}
static void *dirty_resize(void *old, size_t old_size, size_t size, void *user)
{
    char *p = dirty_alloc(size, user);
    if (p && old)
        memcpy(p, old, old_size < size ? old_size : size);
    if (p)
        free(old);
    return p;
}
static void dirty_release(void *p, size_t size, void *user)
{
    (void)size, (void)user;
    free(p);
}

/* Ids between those of a vocabulary have no text, whatever was in that memory before. */
TEST(ids_without_tokens)
{
    static const tinkc_allocator dirty = { dirty_alloc, dirty_resize, dirty_release, NULL };
    tinkc_error err = { 0 };
    tke_vocab *v = tke_vocab_parse(
        &dirty, tkc_str("{\"model\":{\"vocab\":{\"a\":0,\"b\":40,\"c\":20,\"d\":300}}}"), &err);
    assert_ok(err);
    for (int32_t id = -1; id < 310; id++) {
        const char *text = id == 0 ? "a" : id == 40 ? "b" : id == 20 ? "c" : id == 300 ? "d" : "";
        assert_str(tke_vocab_bytes(v, id), text);
    }
    tke_vocab_free(v);
}

TEST(token_ids)
{
    static const struct {
        const char *id;
        bool ok;
    } rows[] = { { "0", true }, { "4194303", true }, { "4194304", false }, { "-1", false } };
    char json[200], text[100];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int added = 0; added < 2; added++) {
            tinkc_error err = { 0 };
            snprintf(json, sizeof json,
                     added ? "{\"added_tokens\":[{\"id\":%s,\"content\":\"a\"}]}"
                           : "{\"model\":{\"vocab\":{\"a\":%s}}}",
                     rows[i].id);
            tke_vocab *v = tke_vocab_parse(NULL, tkc_str(json), &err);
            assert_int_equal(v != NULL, rows[i].ok);
            if (v)
                assert_str(tke_vocab_bytes(v, (int32_t)strtol(rows[i].id, NULL, 10)), "a");
            else {
                snprintf(text, sizeof text, "tokenizer.json: token id %s is out of range",
                         rows[i].id);
                assert_string_equal(err.message, text);
                assert_int_equal(err.code, TINKC_E_TOKENIZER);
            }
            tke_vocab_free(v);
        }
    tinkc_error err = { 0 };
    assert_null(tke_vocab_parse(NULL, tkc_str("{\"added_tokens\":[{\"content\":\"a\"}]}"), &err));
    assert_string_equal(err.message, "tokenizer.json: token id -1 is out of range");
    char *folder = tiny_folder(); /* a folder without the file has no vocabulary, and no error */
    err = (tinkc_error){ 0 };
    assert_null(tke_vocab_open(NULL, folder, &err));
    assert_ok(err);
    tiny_write(folder, "tokenizer.json", "{\"model\":{\"vocab\":{\"a\":0}}}");
    tke_vocab *v = tke_vocab_open(NULL, folder, &err);
    assert_str(tke_vocab_bytes(v, 0), "a");
    tke_vocab_free(v);
    tiny_write(folder, "tokenizer.json", "{");
    assert_null(tke_vocab_open(NULL, folder, &err));
    assert_int_equal(err.code, TINKC_E_TOKENIZER);
    tiny_model_remove(folder);
}

TEST(utf8_edges)
{
    static const struct {
        const char *text;
        size_t whole;
        const char *clean;
    } rows[] = {
        { "", 0, "" },
        { "a", 1, "a" },
        { "\xc3", 0, "\xef\xbf\xbd" },
        { "\xc3\xa9", 2, "\xc3\xa9" },
        { "\xdf", 0, "\xef\xbf\xbd" },
        { "\xe0", 0, "\xef\xbf\xbd" },
        { "\xc1", 1, "\xef\xbf\xbd" }, /* never the first byte of anything */
        { "a\xe2\x96", 1, "a\xef\xbf\xbd\xef\xbf\xbd" },
        { "a\xe2", 1, "a\xef\xbf\xbd" },
        { "\xe2\x96\x81", 3, "\xe2\x96\x81" },
        { "\xef\xbf", 0, "\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xf0\x9f\x98", 0, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xf0\x9f", 0, "\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xf0\x9f\x98\x80", 4, "\xf0\x9f\x98\x80" },
        { "b\x80", 2, "b\xef\xbf\xbd" },
        { "\x80\x80\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xff"
          "c\xfe",
          2,
          "\xef\xbf\xbd"
          "c\xef\xbf\xbd" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tkc_buf out;
        tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
        size_t n = strlen(rows[i].text);
        char *text = exact_copy(rows[i].text, n);
        assert_int_equal(tke_utf8_whole(tkc_strn(text, n)), rows[i].whole);
        assert_true(tke_utf8_clean(&out, tkc_strn(text, n), &err));
        assert_str(tkc_buf_view(&out), rows[i].clean);
        free_copy(text, n);
        tkc_buf_free(&out);
    }
}

/* ---- gzip ---- */

/* The sum and the length at the end of a member are there to be compared. */
TEST(a_gzip_body_that_was_changed_is_refused)
{
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    tinkc_bytes packed =
        unhex(&arena, "1f8b0800000000000203cb48cdc9c95748afca2c0000196ad2df0a000000");
    for (size_t at = packed.len - 8; at < packed.len; at++) {
        tinkc_error err = { 0 };
        tkc_buf out;
        tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
        unsigned char *copy = tkc_arena_alloc(&arena, packed.len, &err);
        memcpy(copy, packed.data, packed.len);
        copy[at] ^= 1;
        assert_false(tke_gunzip((tinkc_bytes){ copy, packed.len }, 100, &out, &err));
        assert_int_equal(err.code, TINKC_E_UNPROCESSABLE);
        assert_string_equal(err.message, "gzip: the checksum or the length does not match");
        tkc_buf_free(&out);
    }
    tkc_arena_free(&arena);
}

TEST(gzip_limits)
{
    enum { N = 10 };
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    tinkc_bytes packed =
        unhex(&arena, "1f8b0800000000000203cb48cdc9c95748afca2c0000196ad2df0a000000");
    for (size_t max = N - 1; max <= N + 1; max++) {
        tinkc_error err = { 0 };
        tkc_buf out;
        tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
        assert_int_equal(tke_gunzip(packed, max, &out, &err), max >= N);
        if (max >= N)
            assert_str(tkc_buf_view(&out), "hello gzip");
        else {
            assert_int_equal(err.code, TINKC_E_UNPROCESSABLE);
            assert_int_equal(err.cause, TINKC_E_TOO_LARGE);
            assert_string_equal(err.message, "more than 9 bytes");
        }
        tkc_buf_free(&out);
    }
    for (size_t len = 0; len < packed.len; len++) { /* cut off anywhere */
        tinkc_error err = { 0 };
        tkc_buf out;
        tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
        char *cut = exact_copy(packed.data, len);
        assert_false(tke_gunzip((tinkc_bytes){ (const unsigned char *)cut, len }, N, &out, &err));
        assert_int_equal(err.code, TINKC_E_UNPROCESSABLE);
        assert_int_equal(err.cause, 0);
        if (len < 10) /* not even a head */
            assert_string_equal(err.message, "not gzip");
        free_copy(cut, len);
        tkc_buf_free(&out);
    }
    /* Several members are one text; bytes that belong to none are refused. */
    static const struct {
        const char *more, *text; /* text NULL: refused */
    } tails[] = { { "1f8b0800000000000203cb48cdc9c95748afca2c0000196ad2df0a000000",
                    "hello gziphello gzip" },
                  { "00", NULL },
                  { "7878", NULL },
                  { "1f8b", NULL },
                  { "000000000000000000000000000000000000", NULL } };
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        tinkc_error err = { 0 };
        tkc_buf out, both;
        tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
        tkc_buf_init(&both, NULL, TKC_BUF_NO_MAX);
        tinkc_bytes more = unhex(&arena, tails[i].more);
        assert_true(tkc_buf_add(&both, packed.data, packed.len, &err));
        assert_true(tkc_buf_add(&both, more.data, more.len, &err));
        bool ok = tke_gunzip((tinkc_bytes){ (const unsigned char *)both.data, both.len }, 100, &out,
                             &err);
        assert_int_equal(ok, tails[i].text != NULL);
        if (ok)
            assert_str(tkc_buf_view(&out), tails[i].text);
        else
            assert_string_equal(err.message, "bytes after the end of the gzip data");
        tkc_buf_free(&both);
        tkc_buf_free(&out);
    }
    /* Stored blocks, then one of a kind that does not exist. */
    enum { STORED = 65535, BLOCKS = 4, BLOCK_SIZE = 5 + STORED };
    static unsigned char broken[10 + BLOCKS * BLOCK_SIZE + 1] = { 0x1f, 0x8b, 8, [9] = 3 };
    for (size_t i = 0; i < BLOCKS; i++)
        memcpy(broken + 10 + i * BLOCK_SIZE, "\0\xff\xff\0\0", 5);
    broken[sizeof broken - 1] = 7;
    tinkc_error why = { 0 };
    tkc_buf all;
    tkc_buf_init(&all, NULL, TKC_BUF_NO_MAX);
    assert_false(tke_gunzip((tinkc_bytes){ broken, sizeof broken }, 1 << 20, &all, &why));
    assert_string_equal(why.message, "damaged or cut off gzip");
    assert_int_equal(why.code, TINKC_E_UNPROCESSABLE);
    tkc_buf_free(&all);
    static const char *const others[] = { "1f8c0800", "1f8b09000000000000ffcb48cdc9", "28b52ffd" };
    for (size_t i = 0; i < 3; i++) {
        tinkc_error err = { 0 };
        tkc_buf out;
        tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
        assert_false(tke_gunzip(unhex(&arena, others[i]), N, &out, &err));
        assert_string_equal(err.message, "not gzip");
        tkc_buf_free(&out);
    }
    tkc_arena_free(&arena);
}

/* ---- budgets ---- */

static bool below_fails;

static void *below_alloc(size_t size, void *user)
{
    (void)user;
    return below_fails ? NULL : malloc(size);
}

static void *below_resize(void *ptr, size_t old_size, size_t size, void *user)
{
    (void)user, (void)old_size;
    return below_fails ? NULL : realloc(ptr, size);
}

static void below_release(void *ptr, size_t size, void *user)
{
    (void)user, (void)size;
    free(ptr);
}

TEST(budgets)
{
    static const tinkc_allocator below = { below_alloc, below_resize, below_release, NULL };
    tke_budget b;
    tke_budget_init(&b, &below, 100);
    const tinkc_allocator *a = &b.allocator;
    assert_int_equal(tke_budget_used(&b), 0);
    assert_null(a->alloc(101, a->user));
    assert_int_equal(tke_budget_used(&b), 0);
    void *one = a->alloc(60, a->user), *two = a->alloc(40, a->user);
    assert_true(one && two);
    assert_int_equal(tke_budget_used(&b), 100);
    assert_null(a->alloc(1, a->user));
    assert_null(a->resize(two, 40, 41, a->user));
    assert_int_equal(tke_budget_used(&b), 100);
    two = a->resize(two, 40, 30, a->user);
    assert_int_equal(tke_budget_used(&b), 90);
    two = a->resize(two, 30, 40, a->user);
    assert_non_null(two);
    assert_int_equal(tke_budget_used(&b), 100);
    a->release(one, 60, a->user);
    assert_int_equal(tke_budget_used(&b), 40);
    a->release(NULL, 10, a->user);
    assert_int_equal(tke_budget_used(&b), 40);
    below_fails = true; /* nothing is counted that was not given */
    assert_null(a->alloc(10, a->user));
    assert_null(a->resize(two, 40, 50, a->user));
    assert_null(a->resize(two, 40, 20, a->user));
    assert_null(a->resize(two, 40, 40, a->user));
    below_fails = false;
    assert_int_equal(tke_budget_used(&b), 40);
    two = a->resize(two, 40, 40, a->user);
    assert_int_equal(tke_budget_used(&b), 40);
    a->release(two, 40, a->user);
    assert_int_equal(tke_budget_used(&b), 0);
}

/* ---- hashes and identities ---- */

/* CRC-32C as RFC 3720, appendix B.4, gives it. */
TEST(checksums)
{
    unsigned char bytes[32];
    assert_int_equal(tke_crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(tke_crc32c(tke_crc32c(0, "1234", 4), "56789", 5), 0xe3069283);
    assert_int_equal(tke_crc32c(0, "", 0), 0);
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(tke_crc32c(0, bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(tke_crc32c(0, bytes, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        bytes[i] = (unsigned char)i;
    assert_int_equal(tke_crc32c(0, bytes, 32), 0x46dd794e);
}

/* Of every ten seconds training gets its share; the one that is behind goes first. */
TEST(shares_of_time)
{
    static const struct {
        double share;
        int64_t train, sample;
        bool first;
    } rows[] = { { 0.5, 0, 0, true },    { 0.5, 10, 10, true },   { 0.5, 11, 10, false },
                 { 0.5, 10, 11, true },  { 0.25, 10, 30, true },  { 0.25, 10, 29, false },
                 { 0.75, 30, 10, true }, { 0.75, 31, 10, false }, { 1, 1000, 0, true },
                 { 0, 0, 1000, true },   { 0, 1, 1000, false } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (tke_training_is_behind(rows[i].share, rows[i].train, rows[i].sample) != rows[i].first)
            fail_msg("row %zu", i);
}

/* The list of a folder's sums, word for word, and every way in which it can be wrong. */
TEST(sums_of_folders)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    char *folder = tiny_folder(), path[400], list[400], text[600];
    static const char line[] = "613305eb3a8b1a13e801346f1ce7e004 1 f\n";
    tkc_arena_init(&arena, NULL, 0);
    snprintf(path, sizeof path, "%s/f", folder);
    snprintf(list, sizeof list, "%s/%s", folder, TKE_SUMS_FILE);
    assert_true(tke_sums_check(folder, &err)); /* none: an older version's */
    tiny_write(folder, "f", "a");
    tiny_write(folder, "checkpoint_complete", "x");
    assert_true(tke_sums_write(folder, &err));
    assert_true(tke_sums_write(folder, &err)); /* the list is not in the list */
    tinkc_bytes have = tkc_read_file(&arena, list, 1000, &err);
    assert_ok(err);
    assert_string_equal(tkc_arena_str(&arena, tkc_strn((const char *)have.data, have.len), &err),
                        line);
    assert_true(tke_sums_check(folder, &err));
    static const struct {
        const char *file, *list, *wrong; /* behind the folder's name */
    } rows[] = {
        { "b", line, "f is damaged: its bytes are not those that were written" },
        { "aa", line, "f is damaged: its bytes are not those that were written" },
        { "a", "613305eb3a8b1a13e801346f1ce7e004 2 f\n",
          "f is damaged: its bytes are not those that were written" },
        { "a", "613305eb3a8b1a13e801346f1ce7e00X 1 f\n",
          "f is damaged: its bytes are not those that were written" },
        { "a", "613305eb3a8b1a13e801346f1ce7e004 1 g\n", "g is missing" },
        { "a", "613305eb3a8b1a13e801346f1ce7e004 1 ", "its list of checksums is damaged" },
        { "a", "613305eb3a8b1a13e801346f1ce7e004 x f", "its list of checksums is damaged" },
        { "a", "613305eb3a8b1a13e801346f1ce7e004 1 ../f", "its list of checksums is damaged" },
        { "a", "613305eb3a8b1a13e801346f1ce7e00 1 f", "its list of checksums is damaged" },
        { "a", "word", "its list of checksums is damaged" },
        { "a", "613305eb3a8b1a13e801346f1ce7e004 1 f\n\n613305eb3a8b1a13e801346f1ce7e004 1 g",
          "g is missing" },
        { "a", "613305eb3a8b1a13e801346f1ce7e004 1 f", NULL },
        { "a", "\n\n", NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        err = (tinkc_error){ 0 };
        tiny_write(folder, "f", rows[i].file);
        tiny_write(folder, TKE_SUMS_FILE, rows[i].list);
        bool fine = tke_sums_check(folder, &err);
        assert_int_equal(fine, !rows[i].wrong);
        snprintf(text, sizeof text, "%s: %s", folder, rows[i].wrong ? rows[i].wrong : "");
        assert_string_equal(err.message, rows[i].wrong ? text : "");
        assert_int_equal(err.code, rows[i].wrong ? TINKC_E_MODEL : TINKC_OK);
    }
    err = (tinkc_error){ 0 };
    tiny_model_remove(folder);
    tkc_arena_free(&arena);
}

static void hash_is(tke_hasher *h, uint64_t lo, uint64_t hi)
{
    tke_hash128 have = tke_hash_end(h);
    if (have.lo != lo || have.hi != hi)
        fail_msg("{ 0x%016llx, 0x%016llx }", (unsigned long long)have.lo,
                 (unsigned long long)have.hi);
    assert_true(tke_hash_eq(have, (tke_hash128){ lo, hi }));
    assert_false(tke_hash_eq(have, (tke_hash128){ lo, hi ^ 1 }));
    assert_false(tke_hash_eq(have, (tke_hash128){ lo ^ 1, hi }));
}

/* Hashes of requests are rows of a store: a newer version must find the same. */
TEST(request_hashes)
{
    static const struct {
        const char *text;
        uint64_t lo, hi;
    } rows[] = {
        { NULL, 0x30e6abfb280df248, 0xc6e4cc1d3c4ea892 },
        { "", 0xe370c1407435f7ef, 0xa49909acf63f1442 },
        { "a", 0xfbc34eed67bf4001, 0x0fd973d9b55299c6 },
        { "seven77", 0x699e41e3911bff54, 0x58916185778eaf6d },
        { "eightt88", 0xbbd0ff348fd91a25, 0x8e1441e55f6e26f6 },
        { "nine99999", 0x13baa7026ea6396c, 0xd4688b3b6292fda9 },
        { "sixteen letters.", 0x7ab2889e9cad3b2e, 0x77521c7e5bf7ff08 },
    };
    tke_hasher h;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tke_hash_begin(&h);
        tke_hash_str(&h, rows[i].text);
        hash_is(&h, rows[i].lo, rows[i].hi);
    }
    tke_hash_begin(&h);
    tke_hash_i64(&h, -5);
    tke_hash_f64(&h, 0.25);
    tke_hash_add(&h, "ab", 2);
    tke_hash_add(&h, "c", 1);
    hash_is(&h, 0x8f6ec34d751d9582, 0x8debccffe898b357);
    tke_hash_begin(&h);
    tke_hash_i64(&h, -5);
    tke_hash_f64(&h, 0.25);
    tke_hash_add(&h, "a", 1);
    tke_hash_add(&h, "bc", 2); /* parts are kept apart */
    hash_is(&h, 0x006434de9299fe72, 0x41f432f7ae7ff02b);
}

/* The hash of a pass with so many inputs and options; `up`: in the order of their names. */
static tke_hash128 hash_of_pass(size_t n, bool up, int64_t last_input, int64_t last_option)
{
    static char names[70][24];
    static const char *list[70];
    static double values[70];
    static int64_t cells[70];
    tkc_named_tensor inputs[70] = { 0 };
    for (size_t i = 0; i < n; i++) {
        size_t at = up ? i : n - 1 - i;
        snprintf(names[at], sizeof names[at], "n%02zu", i);
        cells[at] = i + 1 == n ? last_input : (int64_t)i;
        values[at] = (double)(i + 1 == n ? last_option : (int64_t)i);
        list[at] = names[at];
        inputs[at] =
            (tkc_named_tensor){ .name = names[at],
                                .tensor = { .dtype = TINKC_I64, .data = &cells[at], .count = 1 } };
    }
    tkc_datum datum = { 0 };
    datum.inputs.data = inputs;
    datum.inputs.len = n;
    tkc_forward_backward_request r = { .loss_fn = "l" };
    r.data.data = &datum;
    r.data.len = 1;
    r.loss_fn_config.names = list;
    r.loss_fn_config.values = values;
    r.loss_fn_config.len = n;
    tke_job job = { .kind = TKE_JOB_PASS };
    job.in.pass.request = &r;
    return tke_job_hash(&job);
}

/* Maps come in any order: up to 64 entries that makes no difference, and each of them counts. More
 * cannot be valid; only their names count, as they come. */
TEST(order_of_inputs)
{
    static const size_t sizes[] = { 1, 2, 3, 63, 64 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        tke_hash128 up = hash_of_pass(sizes[i], true, 5, 5);
        assert_true(tke_hash_eq(up, hash_of_pass(sizes[i], false, 5, 5)));
        assert_false(tke_hash_eq(up, hash_of_pass(sizes[i], true, 6, 5)));
        assert_false(tke_hash_eq(up, hash_of_pass(sizes[i], true, 5, 6)));
        assert_false(tke_hash_eq(up, hash_of_pass(sizes[i] + 1, true, 5, 5)));
    }
    tke_hash128 many = hash_of_pass(65, true, 5, 5);
    assert_true(tke_hash_eq(many, hash_of_pass(65, true, 6, 6)));
    assert_false(tke_hash_eq(many, hash_of_pass(65, false, 5, 5)));
    assert_false(tke_hash_eq(many, hash_of_pass(66, true, 5, 5)));
    assert_true(tke_hash_eq(
        many, (tke_hash128){ 0xa5fe63a926159f72, 0x32a5c86c60e1b7f4 })); /* the last name counts */
}

/* What a request of each kind hashes to, part by part: the same request as the row before, but for one
 * of its parts, has another hash. */
TEST(hashes_of_jobs)
{
#define PASS(rest) "{\"model_id\":\"m\",\"seq_id\":1,\"forward_backward_input\":{" rest "}}"
#define DATUM(chunks, inputs)                                                                      \
    "\"data\":[{\"model_input\":{\"chunks\":[" chunks "]},\"loss_fn_inputs\":{" inputs "}}]"
#define CHUNK(tokens)     "{\"type\":\"encoded_text\",\"tokens\":[" tokens "]}"
#define INTS(data, shape) "{\"data\":[" data "],\"dtype\":\"int64\",\"shape\":[" shape "]}"
#define FLOATS(data)      "{\"data\":[" data "],\"dtype\":\"float32\",\"shape\":[2]}"
#define M                 "{\"model_id\":\"m\",\"seq_id\":1,"
    static const struct {
        int32_t kind;
        const char *body;
        uint64_t lo, hi;
    } rows[] = {
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM(
              CHUNK("1,2"), "\"t\":" INTS("2,3", "2") ",\"w\":" FLOATS("0.5,1"))),
          0xbdb43d9bc318d3bb, 0x638f8023266f5a76 },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"ppo\"," DATUM(CHUNK("1,2"),
                                            "\"t\":" INTS("2,3", "2") ",\"w\":" FLOATS("0.5,1"))),
          0x6645f7c92f24677e, 0x70333ec4f9c52846 },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"ppo\",\"loss_fn_config\":{\"a\":0.25,\"b\":1}," DATUM(
              CHUNK("1,2"), "\"t\":" INTS("2,3", "2") ",\"w\":" FLOATS("0.5,1"))),
          0x835d41263d74d146, 0x28616293a3ed71cf },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"ppo\",\"loss_fn_config\":{\"a\":0.25,\"c\":1}," DATUM(
              CHUNK("1,2"), "\"t\":" INTS("2,3", "2") ",\"w\":" FLOATS("0.5,1"))),
          0xb6562070d5ac9ab0, 0xa94227c0476e797f },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM(
              CHUNK("1,3"), "\"t\":" INTS("2,3", "2") ",\"w\":" FLOATS("0.5,1"))),
          0x7482edb0e07ef1d0, 0xae221ab3cc40ae18 },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM(
              CHUNK("1") "," CHUNK("2"), "\"t\":" INTS("2,3", "2") ",\"w\":" FLOATS("0.5,1"))),
          0x3ded3d1b4e420338, 0xb02994b7a97657f6 },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM(
              "{\"type\":\"image\",\"data\":\"aGk=\",\"format\":\"png\"}",
              "\"t\":" INTS("2,3", "2") ",\"w\":" FLOATS("0.5,1"))),
          0x8fe05cc806f8dcb3, 0x6d09bf34a4297e5f },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM(
              CHUNK("1,2"), "\"t\":" INTS("2,4", "2") ",\"w\":" FLOATS("0.5,1"))),
          0x1b9a96e5e41aefc9, 0x4ca8d43d50226721 },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM(
              CHUNK("1,2"), "\"t\":" INTS("2,3", "2,1") ",\"w\":" FLOATS("0.5,1"))),
          0x63ad6ee0035d7a3b, 0xefab05253d67f55b },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM(
              CHUNK("1,2"), "\"u\":" INTS("2,3", "2") ",\"w\":" FLOATS("0.5,1"))),
          0x3d84925fdaca1e97, 0xc528ace096aa4c46 },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM(
              CHUNK("1,2"), "\"t\":{\"data\":[2,3],\"dtype\":\"int64\",\"shape\":[2,4],\"sparse_"
                            "crow_indices\":[0,1,2],\"sparse_col_indices\":[1,3]}")),
          0xd2ebb03617aee3d4, 0xdce160268395db69 },
        { TKE_JOB_PASS,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM(
              CHUNK("1,2"), "\"t\":{\"data\":[2,3],\"dtype\":\"int64\",\"shape\":[2,4],\"sparse_"
                            "crow_indices\":[0,1,2],\"sparse_col_indices\":[1,2]}")),
          0xbeb6c36137fecdbc, 0xfdb1534e3eedfce6 },
        { TKE_JOB_FORWARD,
          PASS("\"loss_fn\":\"cross_entropy\"," DATUM(
              CHUNK("1,2"), "\"t\":" INTS("2,3", "2") ",\"w\":" FLOATS("0.5,1"))),
          0x26140dafabfa31e4, 0x669b6ecd1be728cf },
        { TKE_JOB_OPTIM, M "\"adam_params\":{\"learning_rate\":0.01}}", 0x3a45ea401f76cd62,
          0x41679fa808651315 },
        { TKE_JOB_OPTIM,
          M "\"adam_params\":{\"learning_rate\":0.01,\"beta1\":0.5,\"beta2\":0.75,\"eps\":0.125,"
            "\"weight_decay\":0.25,\"grad_clip_norm\":2}}",
          0xd602a471ef41ec3b, 0xa83a479b81fc8466 },
        { TKE_JOB_SAVE, M "\"path\":\"a\"}", 0xcda4a7006de14a37, 0x9d699ff66444ba63 },
        { TKE_JOB_SAVE, M "\"path\":\"a\",\"ttl_seconds\":3600}", 0x5a813b95b2bfd56a,
          0x10e8d5db7218e023 },
        { TKE_JOB_SAVE, M "\"path\":\"a\",\"overwrite\":true}", 0x8fffee40817d98c6,
          0x521428ebdc057f21 },
        { TKE_JOB_SAVE, M "\"path\":\"a\",\"user_metadata\":{\"a\":\"b\"}}", 0xa3107b1b008d6d4b,
          0x86ef4683e6781a4d },
        { TKE_JOB_SAVE_SAMPLER, M "\"path\":\"a\"}", 0x6dbc741e1ea819cb, 0xa0c54e1acfd16515 },
        { TKE_JOB_SAVE_SAMPLER, M "\"path\":\"a\",\"ttl_seconds\":3600}", 0x724707c3c8ab8f35,
          0x9e3cd9e55a66153b },
        { TKE_JOB_SAVE_SAMPLER, M "\"path\":\"a\",\"overwrite\":true}", 0x2e2dbe40948931ec,
          0xb07adf367dc7c7c3 },
        { TKE_JOB_SAVE_SAMPLER, M "\"path\":\"a\",\"user_metadata\":{\"a\":\"b\"}}",
          0x2e4beadef1a52ca6, 0xcba5e4151cdfd216 },
        { TKE_JOB_SAVE_SAMPLER, M "\"sampling_session_seq_id\":1}", 0xcef0fa8203fe47c6,
          0x67060d0da7aa6e72 },
        { TKE_JOB_SAVE_SAMPLER, M "\"sampling_session_seq_id\":2}", 0xcef0fa8203fe47c6,
          0x67060d0da7aa6e72 },
        { TKE_JOB_EXTERNAL, M "\"path\":\"a\",\"ttl_seconds\":3600}", 0x5db6e62eaede7384,
          0xdce1d8867145cc37 },
        { TKE_JOB_EXTERNAL, M "\"path\":\"a\"}", 0x9e9c9d70d885bb6b, 0x85202ed70e12e3f8 },
        { TKE_JOB_LOAD, M "\"path\":\"tinker://a/weights/b\",\"optimizer\":true}",
          0xfba2ada4d1d0655c, 0x6e894166b6f8dbd7 },
        { TKE_JOB_LOAD, M "\"path\":\"tinker://a/weights/b\",\"optimizer\":false}",
          0x104d58f808c53e69, 0x9f646fe0cf80a237 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        const char *model_id = NULL;
        tkc_opt_i64 seq = { 0 };
        tke_job job = { .kind = rows[i].kind };
        tkc_arena_init(&job.arena, NULL, 0);
        bool forward = rows[i].kind == TKE_JOB_FORWARD;
        if (!tke_decode_job(&job, tkc_str(rows[i].body), false, forward, &model_id, &seq, &err) ||
            job.invalid.code)
            fail_msg("row %zu: %s%s", i, err.message, job.invalid.message);
        assert_string_equal(model_id, "m");
        assert_int_equal(seq.value, 1);
        if (!tke_hash_eq(job.hash, (tke_hash128){ rows[i].lo, rows[i].hi }))
            fail_msg("row %zu: { 0x%016llx, 0x%016llx }", i, (unsigned long long)job.hash.lo,
                     (unsigned long long)job.hash.hi);
        tkc_arena_free(&job.arena);
    }
}

static uint64_t next_random;

static uint64_t given_random(void *self)
{
    (void)self;
    next_random = ~next_random;
    return next_random;
}

TEST(names)
{
    static const tinkc_clock clock = { .random = given_random };
    char uuid[TKE_UUID_TEXT], owner[TKE_OWNER_TEXT], id[17], urn[TKE_URN_TEXT], longest[80];
    next_random = ~0x0123456789abcdefu; /* then its opposite */
    tke_uuid(&clock, uuid);
    assert_string_equal(uuid, "01234567-89ab-4def-bedc-ba9876543210");
    next_random = 0x0123456789abcdefu;
    tke_uuid(&clock, uuid);
    assert_string_equal(uuid, "fedcba98-7654-4210-8123-456789abcdef");
    const tke_owner_salt none = { { 0 } };
    const tke_owner_salt salt = { { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 } };
    tke_owner_of_key(&none, tkc_str("tml-key"), owner);
    assert_string_equal(owner, "key-752caf7cf7ae8548");
    tke_id_of_key(&none, tkc_str("tml-key"), id);
    assert_string_equal(id, "4ae5afd7bbdb4ec1");
    tke_owner_of_key(&salt, tkc_str("tml-key"), owner);
    assert_string_equal(owner, "key-150dbddd7e979c31");
    tke_id_of_key(&salt, tkc_str("tml-key"), id);
    assert_string_equal(id, "8153f2bb3558ab75");
    tke_owner_urn("default", urn);
    assert_string_equal(urn, "tml:organization_user:default");
    memset(longest, 'o', sizeof longest);
    longest[64] = '\0';
    tke_owner_urn(longest, urn);
    longest[63] = '\0';
    assert_string_equal(urn + strlen("tml:organization_user:"), longest);
}

/* What is drawn for a store is used from the start on, and is the same after each start. */
TEST(salts_and_secrets)
{
    char *folder = tiny_folder();
    tinkc_error err = { 0 };
    tke_owner_salt salt[3] = { 0 };
    tke_token_secret secret[3] = { 0 };
    for (size_t i = 0; i < 3; i++) {
        tke_store *s = open_store(folder);
        for (size_t n = 0; n < 2; n++) {
            tke_owner_salt *one = &salt[n && i ? i : 0];
            tke_token_secret *two = &secret[n && i ? i : 0];
            assert_true(tke_owner_salt_load(one, s, tkc_clock_real(), &err));
            assert_true(tke_token_secret_load(two, s, tkc_clock_real(), &err));
            assert_memory_equal(one, &salt[0], sizeof *one);
            assert_memory_equal(two, &secret[0], sizeof *two);
        }
        tke_store_close(s);
    }
    for (size_t i = 0; i < sizeof salt[0].bytes; i += 8)
        assert_false(tkc_all_zero(salt[0].bytes + i, 8));
    for (size_t i = 0; i < sizeof secret[0].bytes; i += 8)
        assert_false(tkc_all_zero(secret[0].bytes + i, 8));
    tiny_model_remove(folder);
}

/* What clients see of each kind of error. */
TEST(statuses)
{
    static const struct {
        int32_t error, status;
        const char *code;
    } rows[] = {
        { TINKC_E_RATE_LIMITED, 429, "busy" },
        { TINKC_E_UNPROCESSABLE, 422, "unprocessable" },
        { TINKC_E_BAD_RESPONSE, 422, "unprocessable" },
        { TINKC_E_TOO_LARGE, 403, "quota" },
        { TINKC_E_NOT_FOUND, 404, "not_found" },
        { TINKC_E_FORBIDDEN, 403, "forbidden" },
        { TINKC_E_BAD_REQUEST, 400, "bad_request" },
        { TINKC_E_ARGUMENT, 400, "bad_request" },
        { TINKC_E_UNSUPPORTED, 400, "bad_request" },
        { TINKC_E_PATH, 400, "bad_request" },
        { TINKC_E_STORE, 500, "store" },
        { TINKC_E_FILE, 500, "store" },
        { TINKC_E_MEMORY, 503, "memory" },
        { TINKC_E_SERVER, 500, "server_error" },
        { TINKC_E_CONNECTION, 500, "server_error" },
        { TINKC_E_STATE, 500, "server_error" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *code = NULL;
        int32_t status = tke_failure_status(&(tinkc_error){ .code = rows[i].error }, &code);
        if (status != rows[i].status || strcmp(code, rows[i].code) != 0)
            fail_msg("%d: %d %s", (int)rows[i].error, (int)status, code);
    }
}

/* ---- the model and the number of a request that cannot be decoded ---- */

TEST(heads_of_json)
{
    static const struct {
        const char *body;
        bool ok;
        const char *model;
        int64_t seq; /* 0: none */
        bool whole;
    } rows[] = {
        { "{\"model_id\":\"m\",\"seq_id\":3}", true, "m", 3, true },
        { "{\"seq_id\":3,\"model_id\":\"m\",\"x\":[1,{}]}", true, "m", 3, true },
        { "{\"model_id\":\"m\"}", true, "m", 0, true },
        { "{\"model_id\":\"m\",\"seq_id\":null}", true, "m", 0, true },
        { "{\"model_id\":\"m\",\"seq_id\":\"3\"}", false, NULL, 0, true },
        { "{\"model_id\":\"m\",\"seq_id\":3.5}", false, NULL, 0, false },
        { "{\"model_id\":7,\"seq_id\":3}", false, NULL, 0, true },
        { "{\"seq_id\":3}", false, NULL, 0, true },
        { "{\"model_id\":\"m\",\"seq_id\":3,\"x\":[", true, "m", 3, false },
        { "{\"model_id\":\"m\",\"seq_id\":", false, NULL, 0, false },
        { "{\"model_id\":\"m\",\"x\":[", false, NULL, 0, false },
        { "{\"x\":[1,2],\"seq_id\":3,\"y\":", false, NULL, 0, false },
        { "[]", false, NULL, 0, false },
        { "", false, NULL, 0, false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tke_head head;
        tkc_arena arena;
        tkc_arena_init(&arena, NULL, 0);
        bool ok = tke_read_head(&arena, tkc_str(rows[i].body), false, &head);
        if (ok != rows[i].ok ||
            (ok && (!tkc_cstr_eq(head.model_id, rows[i].model) || head.whole != rows[i].whole ||
                    (head.seq.is == TKC_GIVEN ? head.seq.value : 0) != rows[i].seq)))
            fail_msg("%s: %d %s %d", rows[i].body, ok, head.model_id, head.whole);
        tkc_arena_free(&arena);
    }
}

/* In protobuf; two models and two numbers, in a body that is whole and in one that is cut off. */
TEST(heads_of_protobuf)
{
    static const struct {
        const char *fields; /* 1 a model, 2 a number, 9 another field, ! the end of a broken body */
        bool ok;
        const char *model;
        int64_t seq;
        bool whole;
    } rows[] = {
        { "12", true, "m0", 1, true },     { "1212", true, "m2", 3, true },
        { "1212!", true, "m0", 1, false }, { "9129", true, "m1", 2, true },
        { "1", true, "m0", 0, true },      { "1!", false, NULL, 0, false },
        { "2", false, NULL, 0, true },     { "2!", false, NULL, 0, false },
        { "", false, NULL, 0, true },      { "!", false, NULL, 0, false },
        { "21!", true, "m1", 0, false },   { "9", false, NULL, 0, true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        unsigned char body[64], *at = body;
        for (int64_t n = 0; rows[i].fields[n]; n++) {
            char id[8], field = rows[i].fields[n];
            snprintf(id, sizeof id, "m%d", (int)n);
            if (field == '1')
                at = tkc_pb_put_bytes(at, 1, id, 2);
            else if (field == '2')
                at = tkc_pb_put_varint(tkc_pb_put_tag(at, 2, TKC_PB_VARINT), (uint64_t)n);
            else if (field == '9')
                at = tkc_pb_put_bytes(at, 9, "x", 1);
            else
                *at++ = 0x0a; /* a tag without its field */
        }
        tke_head head;
        tkc_arena arena;
        tkc_arena_init(&arena, NULL, 0);
        bool ok =
            tke_read_head(&arena, tkc_strn((const char *)body, (size_t)(at - body)), true, &head);
        if (ok != rows[i].ok ||
            (ok && (!tkc_cstr_eq(head.model_id, rows[i].model) || head.whole != rows[i].whole ||
                    (head.seq.is == TKC_GIVEN ? head.seq.value : 0) != rows[i].seq)))
            fail_msg("%s: %d %s %d %d", rows[i].fields, ok, head.model_id, head.whole,
                     (int)head.seq.value);
        tkc_arena_free(&arena);
    }
}

/* ---- unknown fields ---- */

/* The first unknown member with a value, at any depth. */
TEST(unknown_in_json)
{
    static const struct {
        const char *body, *unknown;
    } rows[] = {
        { "{}", NULL },
        { "7", NULL },
        { "[{\"a\":1}]", NULL },
        { "{\"model_id\":\"m\",\"seq_id\":1}", NULL },
        { "{\"a\":null,\"b\":false,\"c\":0,\"d\":0.0,\"e\":\"\",\"f\":[],\"g\":{}}", NULL },
        { "{\"a\":null,\"z\":1}", "z" },
        { "{\"a\":false,\"z\":1}", "z" },
        { "{\"a\":0,\"z\":1}", "z" },
        { "{\"a\":\"\",\"z\":1}", "z" },
        { "{\"a\":[],\"z\":1}", "z" },
        { "{\"a\":{},\"z\":1}", "z" },
        { "{\"type\":\"t\",\"model_input_spans\":[1],\"z\":1}", "z" },
        { "{\"a\":true}", "a" },
        { "{\"a\":-1}", "a" },
        { "{\"a\":0.5}", "a" },
        { "{\"a\":\"x\"}", "a" },
        { "{\"a\":[null]}", "a" },
        { "{\"a\":{\"b\":null}}", "a" },
        { "{\"a\":1,\"b\":1}", "a" },
        { "{\"forward_backward_input\":7,\"z\":1}", "z" },
        { "{\"forward_backward_input\":{\"y\":1},\"z\":1}", "y" },
        { "{\"forward_backward_input\":{\"data\":[7,{\"y\":1}]}}", "y" },
        { "{\"forward_backward_input\":{\"data\":[{},{\"y\":1}]}}", "y" },
        { "{\"forward_backward_input\":{\"data\":[{\"model_input\":{\"chunks\":[{\"y\":1}]}}]}}",
          "y" },
        { "{\"forward_backward_input\":{\"data\":[{\"loss_fn_inputs\":{\"t\":{\"y\":1}}}]}}", "y" },
        { "{\"forward_backward_input\":{\"data\":[{\"loss_fn_inputs\":{\"t\":7,\"u\":{\"y\":1}}}]}"
          "}",
          "y" },
        { "{\"forward_backward_input\":{\"loss_fn_config\":{\"y\":1}},\"z\":1}", "z" },
        { "{\"z\":1", "z" }, /* the decoder refuses it */
        { "{\"z\":", NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tkc_arena arena;
        tkc_arena_init(&arena, NULL, 0);
        const char *found =
            tke_unknown_field(&arena, tkc_str(rows[i].body), &tkc_forward_backward_type, NULL);
        if (!tkc_cstr_eq(found, rows[i].unknown))
            fail_msg("%s: %s", rows[i].body, found ? found : "none");
        tkc_arena_free(&arena);
    }
}

/* A field of a message in that of the path before it: "313" is field 3 of field 1 of field 3. */
static size_t put_nested(unsigned char *out, const char *path)
{
    unsigned char inner[64];
    uint32_t field = (uint32_t)(path[0] - '0');
    if (!path[1])
        return (size_t)(tkc_pb_put_varint(tkc_pb_put_tag(out, field, TKC_PB_VARINT), 1) - out);
    size_t n = put_nested(inner, path + 1);
    return (size_t)(tkc_pb_put_bytes(out, field, inner, n) - out);
}

static bool bad_in(const unsigned char *body, size_t n, const tkc_numbers *config, char which[200])
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    bool found =
        tke_bad_field_in_pass(tkc_strn((const char *)body, n), config, &arena, which, 200, &err);
    assert_int_equal(err.code, 0);
    tkc_arena_free(&arena);
    return found;
}

TEST(unknown_in_protobuf)
{
    /* A path of fields; the last one is a varint. */
    static const struct {
        const char *path, *bad;
    } rows[] = {
        { "2", NULL },
        { "4", "the protobuf field 4 of the request has the wrong type" },
        { "7", "the protobuf field 7 of the request has the wrong type" },
        { "8", "this server does not know the protobuf field 8 of the request" },
        { "34", "the protobuf field 4 of a datum has the wrong type" },
        { "341", NULL }, /* where its tokens come from: harmless, not read */
        { "35", "this server does not know the protobuf field 5 of a datum" },
        { "313", "the protobuf field 3 of a chunk has the wrong type" },
        { "314", "this server does not know the protobuf field 4 of a chunk" },
        { "3111", "the protobuf field 1 of a text chunk has the wrong type" },
        { "3112", "this server does not know the protobuf field 2 of a text chunk" },
        { "3123", NULL },
        { "3124", "this server does not know the protobuf field 4 of an image" },
        { "3132", "this server does not know the protobuf field 2 of a dmel chunk" },
        { "322", "the protobuf field 2 of a loss input has the wrong type" },
        { "323", "this server does not know the protobuf field 3 of a loss input" },
        { "3223", NULL },
        { "3224", NULL }, /* a shape that is not packed */
        { "3225", "this server does not know the protobuf field 5 of a tensor" },
        { "32224", "this server does not know the protobuf field 4 of a sparse tensor" },
        { "39", "this server does not know the protobuf field 9 of a datum" },
        { "491", NULL }, /* an option of the pass has no fields */
        { "52", "the protobuf field 2 of loss_fn_config has the wrong type" },
        { "53", "this server does not know the protobuf field 3 of loss_fn_config" },
        { "73", "this server does not know the protobuf field 3 of loss_fn_config_v2" },
        { "721", "the protobuf field 1 of a value of loss_fn_config_v2 has the wrong type" },
        { "723", "this server does not know the protobuf field 3 of a value of loss_fn_config_v2" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        unsigned char body[64];
        char which[200] = "";
        size_t n = put_nested(body, rows[i].path);
        bool found = bad_in(body, n, NULL, which);
        if (found != (rows[i].bad != NULL) || strcmp(which, rows[i].bad ? rows[i].bad : "") != 0)
            fail_msg("%s: %d '%s'", rows[i].path, found, which);
    }
}

/* Bytes that are given twice, or with others: a field that counts once, members that exclude each
 * other, names of maps. */
TEST(twice_in_protobuf)
{
#define D(low) "\x11\0\0\0\0\0\0\0" low /* field 2 or, in a value, 1 */
#define N(low) "\x09\0\0\0\0\0\0\0" low
#define TEN    "long-name-"
#define LONG   "\x12\x48\n\x46" TEN TEN TEN TEN TEN TEN TEN
    static const struct {
        const char *bytes;
        size_t n;
        const char *bad;
    } rows[] = {
#define ROW(bytes, bad) { bytes, sizeof bytes - 1, bad }
        ROW("\x10\x01\x10\x02",
            "the protobuf field 2 of the request is given twice, or with one that excludes it"),
        ROW("\x1a\x06\n\x04\n\0\x12\0",
            "the protobuf field 2 of a chunk is given twice, or with one that excludes it"),
        ROW("\x1a\x08\x12\x06\x12\x04\n\0\x12\0",
            "the protobuf field 2 of a tensor is given twice, or with one that excludes it"),
        ROW("\x3a\x10\n\x01k\x12\x0b" N("A") "\x12\0",
            "the protobuf field 2 of a value of loss_fn_config_v2 is given twice, or with one that "
            "excludes it"),
        ROW("\x1a\x02\n\0\x1a\x02\n\0", NULL), /* two data */
        ROW("\x2a\x0c\n\x01k" D("A") "\x2a\x0c\n\x01j" D("A"), NULL),
        ROW("\x2a\x0c\n\x01k" D("A") "\x2a\x0c\n\x01k" D("A"), "loss_fn_config has 'k' twice"),
        ROW("\x2a\x00\x2a\x00", "loss_fn_config has '' twice"),
        ROW("\x1a\x0a\x12\x03\n\x01w\x12\x03\n\x01w", "loss_fn_inputs has 'w' twice"),
        ROW("\x1a\x94\x01" LONG LONG, "loss_fn_inputs has '" TEN TEN TEN TEN TEN TEN "' twice"),
        ROW("\x1a\x05\x12\x03\n\x01w\x1a\x05\x12\x03\n\x01w", NULL), /* of two data */
        ROW("\x2a\x0c\n\x01k" D("A") "\x3a\x0e\n\x01k\x12\x09" N("A"), NULL),
        ROW("\x2a\x0c\n\x01k" D("A") "\x3a\x0e\n\x01k\x12\x09" N("B"),
            "loss_fn_config_v2 'k' differs from loss_fn_config"),
        ROW("\x3a\x0e\n\x01k\x12\x09" N("B"), "loss_fn_config_v2 'k' differs from loss_fn_config"),
        ROW("\x3a\x07\n\x01k\x12\x02\x12\0", NULL), /* a text */
        ROW("\x3a\x0e\n\x01\xff\x12\x09" N("B"),
            "loss_fn_config_v2 '' differs from loss_fn_config"),
        ROW("\x2a\x0c\n\x01k" D("A") "\x3a\x0e\n\x01k\x12\x09" N("A") "\x3a\x0e\n\x01k\x12\x09" N(
                "A"),
            "loss_fn_config has 'k' twice"),
    };
    static const char *const names[] = { "k" };
    double value = 0;
    memcpy(&value, "\0\0\0\0\0\0\0A", sizeof value);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char which[200] = "";
        const bool has_config = rows[i].bytes[0] == '\x2a' && rows[i].bytes[1];
        const tkc_numbers config = { names, &value, has_config };
        bool found = bad_in((const unsigned char *)rows[i].bytes, rows[i].n, &config, which);
        if (found != (rows[i].bad != NULL) || strcmp(which, rows[i].bad ? rows[i].bad : "") != 0)
            fail_msg("%zu: %d '%s'", i, found, which);
    }
    /* A request with more names than any loss has is refused elsewhere, without comparing them all. */
    static const char *others[65];
    static double values[65];
    for (size_t len = 64; len <= 65; len++) {
        static const char v2[] = "\x3a\x0e\n\x01k\x12\x09" N("B");
        char which[200] = "";
        for (size_t i = 0; i < len; i++)
            others[i] = "other";
        const tkc_numbers config = { others, values, len };
        assert_int_equal(bad_in((const unsigned char *)v2, sizeof v2 - 1, &config, which),
                         len == 64);
    }
}

/* One that an earlier version took and stored runs as it did then. */
TEST(a_stored_load_may_have_an_access_token)
{
    static const char body[] = "{\"model_id\":\"m\",\"seq_id\":1,\"path\":\"tinker://a/weights/b\","
                               "\"optimizer\":true,\"weights_access_token\":\"t\"}";
    for (int replayed = 0; replayed < 2; replayed++) {
        tinkc_error err = { 0 };
        const char *model_id = NULL;
        tkc_opt_i64 seq = { 0 };
        tke_job job = { .kind = TKE_JOB_LOAD, .replayed = replayed };
        tkc_arena_init(&job.arena, NULL, 0);
        assert_true(tke_decode_job(&job, tkc_str(body), false, false, &model_id, &seq, &err));
        assert_int_equal(job.invalid.code, replayed ? 0 : TINKC_E_BAD_REQUEST);
        tkc_arena_free(&job.arena);
    }
}

/* With any limit of memory a request is decoded and checked, or fails: never decoded and unchecked. */
TEST(a_check_without_memory_fails)
{
    enum { ENTRIES = 300, STEP = 512, MOST = 1 << 17 };
    static char body[ENTRIES * 16] = "\n\x01m\x10\x01";
    size_t n = 5, n_failed = 0, n_decoded = 0;
    for (int i = 0; i < ENTRIES; i++) {
        static const char entry[] = "\x2a\x0d\n\x02"
                                    "ab" D("A");
        memcpy(body + n, entry, sizeof entry - 1);
        body[n + 4] = (char)('a' + i % 20);
        body[n + 5] = (char)('a' + i / 20);
        n += sizeof entry - 1;
    }
    for (size_t max = STEP; max <= MOST; max += STEP) {
        tinkc_error err = { 0 };
        const char *model_id = NULL;
        tkc_opt_i64 seq = { 0 };
        tke_job job = { .kind = TKE_JOB_PASS };
        tkc_arena_init(&job.arena, NULL, max);
        bool ok = tke_decode_job(&job, tkc_strn(body, n), true, false, &model_id, &seq, &err);
        assert_int_equal(ok, err.code == 0);
        n_decoded += ok;
        n_failed += !ok;
        tkc_arena_free(&job.arena);
    }
    assert_true(n_failed && n_decoded);
}

/* What a tokenizer without a chat template leaves out is said when the prompt is made. */
TEST(messages_without_a_template_are_kept)
{
    static const char text[] = "[{\"role\":\"user\",\"content\":\"a\",\"weight\":1}]";
    static const char *const templates[] = { NULL, "{{ weight }}", "{{ content }}" };
    for (size_t i = 0; i < 3; i++) {
        tinkc_error err = { 0 };
        tkc_arena arena;
        tkc_buf out;
        tkc_arena_init(&arena, NULL, 0);
        tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
        bool ok = tke_openai_messages(tkc_str(text), templates[i], &arena, &out, &err);
        assert_int_equal(ok, i < 2);
        assert_int_equal(err.code, i < 2 ? 0 : TINKC_E_BAD_REQUEST);
        if (ok)
            assert_true(tkc_str_is(tkc_buf_view(&out), text));
        tkc_buf_free(&out);
        tkc_arena_free(&arena);
    }
}

RUN_TESTS(NULL, NULL)
