/* test_journal.c - records of the journal, byte by byte, and what is read of a torn one. */
#include "service/store/journal.h"
#include "service/worker/jobs.h"
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

TEST(a_record_has_its_bytes)
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
    assert_true(r.last.seq == record.seq && r.last.kind == 9 && r.last.epoch == record.epoch && r.last.is_pb &&
                !r.last.forward && tke_hash_eq(r.last.hash, record.hash));
    assert_string_equal(r.body, "body");
    /* The least record has no body. */
    assert_true(tke_journal_append(s, "run", &other, &err));
    r = (replay){ 0 };
    assert_true(tke_journal_read(s, "run", take, &r, &err));
    assert_int_equal(r.n, 2);
    assert_true(r.last.seq == 1 && r.last.kind == 1 && r.last.epoch == 0 && !r.last.is_pb && r.last.forward);
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

/* Every byte of the last record may be missing or wrong: it is cut off, and those before it stay. A record that is whole
 * but for a wrong byte was acknowledged: it is kept aside. */
TEST(a_torn_record_is_cut_off)
{
    enum { LEN = sizeof record_bytes - 1 };
    tinkc_error err = { 0 };
    tkc_arena arena;
    char *folder = tiny_folder(), path[500], aside[600];
    tke_store *s = open_store(folder);
    tkc_arena_init(&arena, NULL, 0);
    snprintf(path, sizeof path, "%s/runs/run/journal", folder);
    snprintf(aside, sizeof aside, "%s.damaged", path);
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
        tke_journal_file found;
        bool damaged = !cut && i - LEN >= 4; /* behind its length */
        assert_true(tke_journal_scan(path, &found, &err) && found.n_records == 1);
        assert_true(found.damaged == damaged && found.torn == (!damaged && len > LEN));
        assert_true(tke_journal_read(s, "run", take, &r, &err));
        assert_int_equal(r.n, 1);
        assert_int_equal(journal_of(&arena, folder).len, LEN);
        assert_true((remove(aside) == 0) == damaged);
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
