/* test_hub_pull.c - a pull without a hub: in which order files become visible, what counts as progress, which failure is
 * reported. Answers are written by hand; what reaches the disk is noted. */
#include "hub/hub_priv.h"
#include "net/fetch.h"
#include "support/check.h"

static char events[300];

static void note(const char *what)
{
    size_t len = strlen(events);
    (void)snprintf(events + len, sizeof events - len, "%s ", what);
}

static int noted_sync(int fd);
static int noted_rename(const char *from, const char *to);
static bool noted_link(const tkc_hub_repo *r, const char *path, const char *digest, tinkc_error *err);
static bool noted_ref(const tkc_hub_repo *r, tinkc_error *err);
static bool answer(tkc_fetcher *f, tkc_fetch *r, tinkc_error *err);
#define tkc_sync_file     noted_sync
#define rename            noted_rename
#define tkc_hub_link      noted_link
#define tkc_hub_write_ref noted_ref
#define tkc_fetch_run     answer
#include "../../../src/hub/hub_pull.c"
#undef rename

static int noted_sync(int fd)
{
    note("sync");
    return fsync(fd);
}

static int noted_rename(const char *from, const char *to)
{
    note("name");
    return rename(from, to);
}

static bool noted_link(const tkc_hub_repo *r, const char *path, const char *digest, tinkc_error *err)
{
    (void)r, (void)digest, (void)err;
    note(path);
    return true;
}

static bool noted_ref(const tkc_hub_repo *r, tinkc_error *err)
{
    (void)r, (void)err;
    note("ref");
    return true;
}

static bool answer(tkc_fetcher *f, tkc_fetch *r, tinkc_error *err)
{
    (void)f;
    r->status = 200;
    return r->head(r, err) && r->take(r, "bytes", 5, err);
}

/* A file of the five bytes has its name once they are on the disk, the snapshot its links once all files are there, those that
 * other programs look for last, and the name of the revision after all. */
TEST(what_is_visible_is_complete)
{
    tinkc_error err = { 0 };
    char folder[] = "/tmp/tinkc-pull-XXXXXX", digest[TKC_SHA256_HEX];
    tkc_digest d;
    assert_non_null(mkdtemp(folder));
    tinkc_hub *hub = tinkc_hub_new(&(tinkc_hub_options){ .cache_dir = folder, .jobs = 1 }, &err);
    assert_ok(err);
    tinkc_hub_snapshot *s = tkc_hub_snapshot_new(hub, &err);
    tkc_hub_repo r;
    assert_true(tkc_hub_repo_init(&r, hub, "a/b", NULL, &s->arena, &err));
    r.commit = "0123456789012345678901234567890123456789";
    tkc_sha256_init(&d);
    tkc_digest_add(&d, "bytes", 5);
    tkc_digest_hex(&d, digest);
    const tinkc_hub_file marker = { .name = "config.json", .digest = digest, .size = 5, .is_lfs = true };
    const tinkc_hub_file weights = { .name = "w", .digest = "8e8e98a8f4e6f2bb1a3fcf37a3ac2b1b7f2ac9d0", .size = 5 };
    assert_true(tkc_hub_snapshot_add(s, &marker, &err) && tkc_hub_snapshot_add(s, &weights, &err));
    tkc_sha1_init(&d);
    tkc_digest_add(&d, "blob 5\0bytes", 12);
    tkc_digest_hex(&d, (char *)s->files[1].digest);
    assert_true(download(&r, &(tinkc_pull_options){ .repo = "a/b" }, s, &err));
    assert_string_equal(events, "sync name sync name w config.json ref ");
    assert_int_equal(s->moved, 10);
    tinkc_hub_snapshot_free(s);
    tinkc_hub_free(hub);
    assert_true(tkc_remove_tree(folder, &err));
}

TEST(the_first_failure_is_reported_and_ends_the_queue)
{
    const size_t order[] = { 0, 1 };
    tinkc_hub_file files[2] = { { .name = "a" }, { .name = "b" } };
    tinkc_hub_snapshot s = { .files = files, .n = 2 };
    pull p = { .snapshot = &s, .order = order };
    const tinkc_error none = { 0 }, first = { .code = TINKC_E_NOT_FOUND }, second = { .code = TINKC_E_FILE };
    pthread_mutex_init(&p.lock, NULL);
    assert_ptr_equal(take_file(&p), &files[0]);
    finish_file(&p, &none);
    finish_file(&p, &first);
    finish_file(&p, &second);
    assert_int_equal(p.err.code, TINKC_E_NOT_FOUND);
    assert_int_equal(p.done_files, 1);
    assert_null(take_file(&p));
    pthread_mutex_destroy(&p.lock);
}

/* Bytes that the disk has are moved again by a hub without ranges, and done already. Only new ones renew the patience. */
TEST(a_byte_is_done_once)
{
    tinkc_error err = { 0 };
    pull p = { .done_bytes = 3 };
    const tinkc_hub_file file = { .name = "a", .size = 10 };
    transfer t = { .p = &p,
                   .file = &file,
                   .fd = open("/dev/null", O_WRONLY),
                   .have = 3,
                   .skip = 3,
                   .patience = { .failures = 2, .since_ms = 1 } };
    tkc_fetch r = { .user = &t };
    pthread_mutex_init(&p.lock, NULL);
    begin_digest(&t.digest, &file);
    assert_true(on_bytes(&r, "abc", 3, &err));
    assert_true(p.done_bytes == 3 && p.moved_bytes == 3 && t.patience.failures == 2);
    assert_true(on_bytes(&r, "defg", 4, &err));
    assert_true(p.done_bytes == 7 && p.moved_bytes == 7 && t.have == 7 && t.patience.failures == 0);
    assert_false(on_bytes(&r, "hijk", 4, &err));
    assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
    close(t.fd);
    pthread_mutex_destroy(&p.lock);
}
