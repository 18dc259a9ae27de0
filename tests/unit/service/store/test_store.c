/* test_store.c - rows that are committed in groups, folders that appear whole, the journal. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file.h"
#include "base/thread.h"
#include "service/store/journal.h"
#include "service/store/store.h"
#include "service/store/tar.h"
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

typedef struct outcome {
    int32_t code;
    bool done;
} outcome;

static void note(void *user, const tinkc_error *err)
{
    *(outcome *)user = (outcome){ err->code, true };
}

static bool count(const tke_row *row, void *user, tinkc_error *err)
{
    (void)err;
    *(int64_t *)user = tke_row_i64(row, 0);
    return true;
}

typedef struct counting {
    int64_t n;
} counting;

static void count_sessions(tke_store *s, void *user, tinkc_error *err)
{
    tke_store_query(s, "SELECT count(*) FROM sessions", count, &((counting *)user)->n, err, "");
}

static int64_t sessions_in(tke_store *s)
{
    tinkc_error err = { 0 };
    counting c = { -1 };
    tke_txn *t = tke_txn_new(s, &err);
    tke_txn_call(t, count_sessions, &c);
    tke_txn_commit(t, NULL, NULL);
    tke_store_sync(s);
    return c.n;
}

/* ---- what is synced ---- */

/* Below the store's folder, by the tester's thread: SQLite's writer is another. */
static struct {
    pthread_t thread;
    const char *folder, *fails;
    char text[1000];
} synced;

static int sync_it(int fd, long number)
{
    char link[40], path[600];
    if (!synced.folder || !pthread_equal(pthread_self(), synced.thread))
        return (int)syscall(number, fd);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    if (strncmp(path, synced.folder, strlen(synced.folder)) != 0)
        return (int)syscall(number, fd);
    const char *part = path + strlen(synced.folder);
    size_t len = strlen(synced.text);
    snprintf(synced.text + len, sizeof synced.text - len, "%s ", part);
    if (synced.fails && strcmp(part, synced.fails) == 0) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(number, fd);
}
#pragma GCC visibility push(default)
int fsync(int fd)
{
    return sync_it(fd, SYS_fsync);
}
int fdatasync(int fd)
{
    return sync_it(fd, SYS_fdatasync);
}
#pragma GCC visibility pop

#define assert_synced(list)                                                                                            \
    do {                                                                                                               \
        assert_string_equal(synced.text, list);                                                                        \
        synced.text[0] = '\0';                                                                                         \
    } while (0)

static char *filled(tke_store *s, tkc_arena *arena, const char *text)
{
    tinkc_error err = { 0 };
    char *temp = tke_store_temp(s, arena, &err);
    assert_ok(err);
    tiny_write(temp, "data", text);
    return temp;
}

static void assert_holds(const char *folder, const char *text)
{
    char path[700], got[100] = "";
    snprintf(path, sizeof path, "%s/data", folder);
    FILE *f = fopen(path, "r");
    if (f) {
        got[fread(got, 1, sizeof got - 1, f)] = '\0';
        fclose(f);
    }
    assert_string_equal(got, text);
}

/* After a power loss a name leads to all of its bytes: files before folders, folders after names. */
TEST(all_that_is_promised_is_synced)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    char *folder = tiny_folder();
    tke_store *s = open_store(folder);
    tke_store_sync(s);
    tkc_arena_init(&arena, NULL, 0);
    synced.thread = pthread_self();
    synced.folder = folder;
    char *one = filled(s, &arena, "one");
    char *to = tke_store_run_path(s, &arena, "r", "weights/a", &err);
    assert_true(tke_sync_folder(one, &err));
    assert_synced("/tmp/0/data /tmp/0 ");
    assert_true(tke_store_place(s, one, to, &err));
    assert_synced("/runs /runs/r /runs/r/weights ");
    char *two = filled(s, &arena, "two");
    assert_true(tke_store_place(s, two, to, &err));
    assert_synced("/runs/r/weights ");
    char *back = tke_store_run_path(s, &arena, "r", "weights/b", &err);
    assert_true(tke_store_move(s, to, back, &err));
    assert_synced("/runs/r/weights ");
    assert_holds(back, "two");
    const tke_journal_record record = { .seq = 1, .kind = 2, .body = { "body", 4 } };
    assert_true(tke_journal_append(s, "r", &record, &err));
    assert_synced("/runs/r/journal /runs/r ");
    assert_true(tke_journal_append(s, "r", &record, &err));
    assert_synced("/runs/r/journal ");
    synced.folder = NULL;
    tke_store_close(s);
    tkc_arena_free(&arena);
    tiny_model_remove(folder);
}

/* What could not be synced has not happened. */
TEST(what_is_not_synced_is_undone)
{
    tinkc_error err = { 0 }, ignored = { 0 };
    tkc_arena arena;
    struct stat st;
    char *folder = tiny_folder();
    tke_store *s = open_store(folder);
    tke_store_sync(s);
    tkc_arena_init(&arena, NULL, 0);
    char *a = tke_store_run_path(s, &arena, "r", "weights/a", &err);
    char *b = tke_store_run_path(s, &arena, "r", "weights/b", &err);
    assert_true(tke_store_place(s, filled(s, &arena, "old"), a, &err));
    synced.thread = pthread_self();
    synced.folder = folder;
    synced.fails = "/runs/r/weights";
    char *new = filled(s, &arena, "new");
    assert_false(tke_store_place(s, new, a, &err)); /* an old one keeps its name */
    assert_int_equal(err.code, TINKC_E_FILE);
    assert_holds(a, "old");
    assert_false(tkc_is_dir(new));
    err = (tinkc_error){ 0 };
    assert_false(tke_store_place(s, filled(s, &arena, "new"), b, &err)); /* a name that was free is */
    assert_false(tkc_is_dir(b));
    err = (tinkc_error){ 0 };
    assert_false(tke_store_move(s, a, b, &err)); /* what is moved is where it was */
    assert_holds(a, "old");
    assert_false(tkc_is_dir(b));
    synced.fails = NULL;
    err = (tinkc_error){ 0 };
    assert_true(tke_store_place(s, filled(s, &arena, "other"), b, &err));
    synced.fails = "/runs/r/weights";
    assert_false(tke_store_move(s, a, b, &err)); /* likewise in exchange for another */
    assert_holds(a, "old");
    assert_holds(b, "other");
    synced.fails = "/runs/r/journal";
    err = (tinkc_error){ 0 };
    const tke_journal_record record = { .seq = 1, .kind = 2, .body = { "body", 4 } };
    assert_false(tke_journal_append(s, "r", &record, &err)); /* nor is a part of a record left */
    char *journal = tke_store_run_path(s, &arena, "r", "journal", &err);
    assert_int_equal(stat(journal, &st), 0);
    assert_int_equal(st.st_size, 0);
    synced.fails = "/tmp/9/data";
    char *last = tke_store_run_path(s, &arena, "r", "../../tmp/9", &err);
    err = (tinkc_error){ 0 };
    assert_true(tkc_make_dirs(last, &err));
    tiny_write(last, "data", "x");
    assert_false(tke_sync_folder(last, &err));
    char words[100];
    snprintf(words, sizeof words, "data: %s", strerror(EIO));
    assert_string_equal(err.message, words);
    synced.fails = "/tmp/9";
    err = (tinkc_error){ 0 };
    assert_false(tke_sync_folder(last, &err));
    snprintf(words, sizeof words, "tmp/9: %s", strerror(EIO));
    assert_non_null(strstr(err.message, words));
    synced.folder = synced.fails = NULL;
    assert_int_equal(tke_folder_bytes(last), 1);
    assert_true(tkc_remove_tree(last, &ignored));
    assert_int_equal(tke_folder_bytes(last), 0);
    tke_store_close(s);
    tkc_arena_free(&arena);
    tiny_model_remove(folder);
}

/* ---- rows ---- */

static pthread_mutex_t turnstile = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool is_there;

static void wait_there(tke_store *s, void *user, tinkc_error *err)
{
    (void)s, (void)user, (void)err;
    is_there = true;
    pthread_mutex_lock(&turnstile);
    pthread_mutex_unlock(&turnstile);
}

static void add(tke_store *s, const char *sql, outcome *o)
{
    tinkc_error err = { 0 };
    tke_txn *t = tke_txn_new(s, &err);
    tke_txn_exec(t, sql, "");
    tke_txn_commit(t, note, o);
}

/* SQLite undoes a whole transaction by itself, as with a full disk: all of the group has failed, and
 * none of it runs outside a transaction. */
TEST(an_undone_group)
{
    tinkc_error err = { 0 };
    outcome made = { 0 }, before = { 0 }, undone = { 0 }, after = { 0 }, later = { 0 };
    tke_store *s = open_store(NULL);
    add(s, "CREATE TRIGGER no BEFORE INSERT ON runs BEGIN SELECT RAISE(ROLLBACK, 'full'); END", &made);
    tke_store_sync(s);
    assert_true(made.done && made.code == TINKC_OK);
    pthread_mutex_lock(&turnstile);
    tke_txn *t = tke_txn_new(s, &err);
    tke_txn_call(t, wait_there, NULL);
    tke_txn_commit(t, NULL, NULL);
    wait_until(is_there); /* alone in its group: the next one has all that follow */
    add(s, "INSERT INTO sessions(id, owner) VALUES('one', 'me')", &before);
    add(s, "INSERT INTO runs(id) VALUES('r')", &undone);
    add(s, "INSERT INTO sessions(id, owner) VALUES('two', 'me')", &after);
    pthread_mutex_unlock(&turnstile);
    tke_store_sync(s);
    assert_true(before.done && undone.done && after.done);
    assert_int_equal(before.code, TINKC_E_STORE);
    assert_int_equal(undone.code, TINKC_E_STORE);
    assert_int_equal(after.code, TINKC_E_STORE);
    assert_int_equal(sessions_in(s), 0);
    add(s, "INSERT INTO sessions(id, owner) VALUES('three', 'me')", &later);
    assert_int_equal(sessions_in(s), 1);
    assert_true(later.done && later.code == TINKC_OK);
    tke_store_close(s);
}

/* One bad statement fails its own transaction and none of its neighbours. */
TEST(a_bad_statement_fails_its_own_transaction)
{
    tinkc_error err = { 0 };
    char *folder = tiny_folder();
    tke_store *s = open_store(folder);
    outcome good = { 0 }, bad = { 0 }, other = { 0 };
    tke_txn *t = tke_txn_new(s, &err);
    tke_txn_exec(t, "INSERT INTO sessions(id, owner) VALUES(?, ?)", "tt", "one", "me");
    tke_txn_commit(t, note, &good);
    t = tke_txn_new(s, &err);
    tke_txn_exec(t, "INSERT INTO sessions(id, owner) VALUES(?, ?)", "tt", "half", "me");
    tke_txn_exec(t, "INSERT INTO nowhere(id) VALUES(?)", "t", "x");
    tke_txn_commit(t, note, &bad);
    t = tke_txn_new(s, &err);
    tke_txn_exec(t, "INSERT INTO sessions(id, owner) VALUES(?, ?)", "tt", "two", NULL);
    tke_txn_commit(t, note, &other);
    assert_int_equal(sessions_in(s), 2);
    assert_true(good.done && bad.done && other.done);
    assert_int_equal(good.code, TINKC_OK);
    assert_int_equal(bad.code, TINKC_E_STORE);
    assert_int_equal(other.code, TINKC_OK);
    assert_int_equal(tke_store_epoch(s), 1);
    tke_store_close(s);
    s = open_store(folder);
    assert_int_equal(tke_store_epoch(s), 2);
    assert_int_equal(sessions_in(s), 2);
    tke_store_close(s);
    tiny_model_remove(folder);
}

TEST(folders_change_in_one_step)
{
    tinkc_error err = { 0 };
    char *folder = tiny_folder(), path[500];
    tke_store *s = open_store(folder);
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    char *target = tke_store_run_path(s, &arena, "run:train:0", "x", &err);
    char *parent = tke_store_run_path(s, &arena, "run:train:0", NULL, &err);
    assert_true(tkc_make_dirs(parent, &err));
    for (int round = 0; round < 2; round++) {
        char *temp = tke_store_temp(s, &arena, &err);
        assert_ok(err);
        tiny_write(temp, "data", round ? "second" : "first");
        assert_true(tke_sync_folder(temp, &err));
        assert_true(tke_store_place(s, temp, target, &err));
        assert_int_equal(tkc_is_dir(temp), round); /* what was replaced */
        assert_int_equal(tke_folder_bytes(target), round ? 6 : 5);
        if (round) {
            tke_store_take_back(s, temp, target);
            assert_int_equal(tke_folder_bytes(target), 5);
            assert_false(tkc_is_dir(temp));
        }
    }
    char *temp = tke_store_temp(s, &arena, &err);
    tiny_write(temp, "data", "third");
    char *fresh = tke_store_run_path(s, &arena, "run:train:0", "y", &err);
    assert_true(tke_store_place(s, temp, fresh, &err));
    tke_store_take_back(s, temp, fresh);
    assert_false(tkc_is_dir(fresh));
    temp = tke_store_temp(s, &arena, &err);
    tiny_write(temp, "left", "over");
    tke_store_close(s);
    s = open_store(folder); /* what was left in tmp/ is gone */
    snprintf(path, sizeof path, "%s/left", temp);
    assert_false(tkc_is_file(path));
    assert_true(tke_store_has_room(s, 0));
    assert_false(tke_store_has_room(s, INT64_MAX));
    tke_store_close(s);
    tkc_arena_free(&arena);
    tiny_model_remove(folder);
}

TEST(a_store_in_memory_leaves_nothing)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    tke_store *s = open_store(NULL);
    assert_false(tke_store_durable(s));
    char *temp = tke_store_temp(s, &arena, &err);
    assert_ok(err);
    assert_true(tkc_is_dir(temp));
    tke_store_close(s);
    assert_false(tkc_is_dir(temp));
    tkc_arena_free(&arena);
}

/* ---- the journal ---- */

typedef struct reading {
    int64_t seqs[16];
    size_t n;
} reading;

static bool take(const tke_journal_record *r, void *user, tinkc_error *err)
{
    reading *to = user;
    char expected[32];
    (void)err;
    snprintf(expected, sizeof expected, "body %lld", (long long)r->seq);
    assert_str(r->body, expected);
    assert_true(r->is_pb && r->kind == 3 && r->hash.lo == (uint64_t)r->seq);
    to->seqs[to->n++] = r->seq;
    return true;
}

static reading read_all(tke_store *s)
{
    tinkc_error err = { 0 };
    reading r = { 0 };
    assert_true(tke_journal_read(s, "run", take, &r, &err));
    return r;
}

static void append(tke_store *s, int64_t seq)
{
    tinkc_error err = { 0 };
    char body[32];
    snprintf(body, sizeof body, "body %lld", (long long)seq);
    const tke_journal_record r = {
        .seq = seq, .kind = 3, .epoch = 1, .is_pb = true, .hash = { (uint64_t)seq, 2 }, .body = tkc_str(body)
    };
    assert_true(tke_journal_append(s, "run", &r, &err));
}

TEST(a_journal_returns_what_was_appended)
{
    tinkc_error err = { 0 };
    char *folder = tiny_folder(), path[500];
    tke_store *s = open_store(folder);
    struct stat st;
    assert_int_equal(read_all(s).n, 0);
    for (int64_t seq = 1; seq <= 5; seq++)
        append(s, 6 - seq);
    reading r = read_all(s);
    assert_int_equal(r.n, 5);
    assert_int_equal(r.seqs[0], 5);
    assert_true(tke_journal_trim(s, "run", 4, &err));
    r = read_all(s);
    assert_int_equal(r.n, 2);
    append(s, 6);
    /* A record that was being written when the end came: cut off at every length. */
    snprintf(path, sizeof path, "%s/runs/run/journal", folder);
    assert_int_equal(stat(path, &st), 0);
    off_t whole = st.st_size;
    for (off_t cut = whole - 1; cut > whole - 47; cut -= 5) {
        assert_int_equal(truncate(path, cut), 0);
        assert_int_equal(read_all(s).n, 2);
        append(s, 6); /* goes behind the last whole one */
        assert_int_equal(read_all(s).n, 3);
    }
    /* A bit that flipped ends the log there. */
    FILE *f = fopen(path, "r+");
    fseek(f, -3, SEEK_END);
    fputc('!', f);
    fclose(f);
    assert_int_equal(read_all(s).n, 2);
    tke_store_close(s);
    tiny_model_remove(folder);
}

/* ---- archives ---- */

typedef struct gathered {
    unsigned char data[20000];
    size_t n;
} gathered;

static bool gather(void *user, const void *data, size_t len)
{
    gathered *g = user;
    assert_true(g->n + len <= sizeof g->data);
    memcpy(g->data + g->n, data, len);
    g->n += len;
    return true;
}

static bool stop_at_once(const tke_row *row, void *user, tinkc_error *err)
{
    (void)row;
    (void)err;
    ++*(int *)user;
    return false;
}

/* A query ends with its rows, when its reader has enough, or with an error. */
TEST(a_query_ends_with_its_rows_its_reader_or_an_error)
{
    tinkc_error err = { 0 };
    int n = 0;
    int64_t got = 0;
    tke_store *s = open_store(NULL);
    assert_true(tke_store_query(s, "SELECT 1 UNION SELECT 2", stop_at_once, &n, &err, ""));
    assert_int_equal(n, 1);
    assert_true(
        tke_store_query(s, "SELECT ?2 - ?1 + length(?3)", count, &got, &err, "iit", (int64_t)1, (int64_t)5, "abc"));
    assert_int_equal(got, 7);
    assert_true(tke_store_query(s, "SELECT ?2 - ?1 + length(?3)", count, &got, &err, "iit", (int64_t)1, (int64_t)6,
                                "abc")); /* again, with others */
    assert_int_equal(got, 8);
    assert_true(tke_store_query(s, "SELECT ?1 IS NULL", count, &got, &err, "t", NULL));
    assert_int_equal(got, 1);
    assert_false(tke_store_query(s, "SELECT abs(-9223372036854775808)", count, &got, &err, ""));
    assert_int_equal(err.code, TINKC_E_STORE);
    assert_string_equal(err.message, "store memory: integer overflow");
    err = (tinkc_error){ 0 };
    assert_false(tke_store_query(s, "SELECT nothing", count, &got, &err, ""));
    assert_int_equal(err.code, TINKC_E_STORE);
    err = (tinkc_error){ 0 };
    assert_true(tke_store_query(s, "SELECT ?1 + ?16", count, &got, &err, "iiiiiiiiiiiiiiii", (int64_t)4, (int64_t)0,
                                (int64_t)0, (int64_t)0, (int64_t)0, (int64_t)0, (int64_t)0, (int64_t)0, (int64_t)0,
                                (int64_t)0, (int64_t)0, (int64_t)0, (int64_t)0, (int64_t)0, (int64_t)0,
                                (int64_t)5)); /* as many as there can be */
    assert_int_equal(got, 9);
    assert_false(tke_store_query(s, "SELECT 1", count, &got, &err, "iiiiiiiiiiiiiiiii"));
    assert_string_equal(err.message, "store: bad query");
    tke_store_close(s);
}

/* A second opener changes nothing: what the first is writing is still there. */
TEST(a_store_in_use_is_left_alone)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    char *folder = tiny_folder();
    tke_store *s = open_store(folder);
    tkc_arena_init(&arena, NULL, 0);
    const char *temp = tke_store_temp(s, &arena, &err);
    assert_true(temp && tkc_is_dir(temp));
    assert_null(tke_store_open(NULL, &silent, folder, &err));
    assert_int_equal(err.code, TINKC_E_STORE);
    assert_int_equal(err.cause, TINKC_E_CONFLICT);
    assert_true(tkc_is_dir(temp));
    tke_store_close(s);
    err = (tinkc_error){ 0 };
    s = open_store(folder);
    assert_false(tkc_is_dir(temp)); /* the next one removes it */
    tke_store_close(s);
    tkc_arena_free(&arena);
    tiny_model_remove(folder);
}

TEST(room_on_the_disk)
{
    char *folder = tiny_folder();
    tke_store *s = open_store(folder), *in_memory = open_store(NULL);
    assert_true(tke_store_has_room(s, 0));
    assert_true(tke_store_has_room(s, 1 << 20));
    assert_false(tke_store_has_room(s, INT64_MAX));
    assert_true(tke_store_has_room(in_memory, INT64_MAX)); /* the disk is not asked */
    tinkc_error err = { 0 };
    assert_true(tkc_remove_tree(folder, &err));
    assert_true(tke_store_has_room(s, INT64_MAX)); /* not known: a write will tell */
    tke_store_close(s);
    tke_store_close(in_memory);
    free(folder);
}

TEST(any_part_of_an_archive)
{
    tinkc_error err = { 0 };
    char *folder = tiny_folder(), big[1600];
    const char *const names[] = { "one", "missing", "two", "empty", NULL };
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    tiny_write(folder, "one", "hello");
    tiny_write(folder, "two", big);
    tiny_write(folder, "empty", "");
    tke_tar tar;
    assert_true(tke_tar_plan(&tar, folder, names, &err));
    assert_int_equal(tar.n_files, 3);
    assert_int_equal(tar.total, 512 + 512 + 512 + 2048 + 512 + 1024);
    static gathered whole, part;
    whole.n = 0;
    assert_true(tke_tar_send(&tar, 0, tar.total, gather, &whole, &err));
    assert_int_equal(whole.n, (size_t)tar.total);
    for (int64_t from = 0; from < tar.total; from += 397)
        for (int64_t until = from + 1; until <= tar.total; until += 701) {
            part.n = 0;
            assert_true(tke_tar_send(&tar, from, until, gather, &part, &err));
            assert_int_equal(part.n, (size_t)(until - from));
            assert_memory_equal(part.data, whole.data + from, part.n);
        }
    /* and tar itself can read it */
    char path[300], command[700];
    snprintf(path, sizeof path, "%s/a.tar", folder);
    assert_true(tkc_write_file(path, whole.data, whole.n, 0600, &err));
    snprintf(command, sizeof command, "tar -xOf '%s' one | grep -qx hello", path);
    assert_int_equal(system(command), 0);
    tiny_model_remove(folder);
}

/* ---- tokens ---- */

TEST(a_vocabulary_is_stored_and_read)
{
    tinkc_error err = { 0 };
    tke_vocab *v =
        tke_vocab_parse(NULL,
                        tkc_str("{\"added_tokens\":[{\"id\":4,\"content\":\"<end>\"}],\"model\":{\"vocab\":{\"a\":0,"
                                "\"\\u0120the\":1,\"\\u00c3\":2,\"\\u00a9\":3,\"\\u010a\":5}}}"),
                        &err);
    assert_ok(err);
    assert_str(tke_vocab_bytes(v, 0), "a");
    assert_str(tke_vocab_bytes(v, 1), " the");
    assert_str(tke_vocab_bytes(v, 2), "\xc3");
    assert_str(tke_vocab_bytes(v, 3), "\xa9");
    assert_str(tke_vocab_bytes(v, 4), "<end>");
    assert_str(tke_vocab_bytes(v, 5), "\n");
    assert_int_equal(tke_vocab_bytes(v, 6).len, 0);
    assert_int_equal(tke_vocab_bytes(v, -1).len, 0);
    tke_vocab_free(v);
    static const char *const broken[] = { "", "[", "{\"model\":{\"vocab\":{\"a\":-1}}}",
                                          "{\"model\":{\"vocab\":{\"a\":99999999999}}}",
                                          "{\"model\":{\"vocab\":{\"a\":\"b\"}}}" };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        err = (tinkc_error){ 0 };
        assert_null(tke_vocab_parse(NULL, tkc_str(broken[i]), &err));
        assert_int_equal(err.code, TINKC_E_TOKENIZER);
    }
    assert_int_equal(tke_utf8_whole(tkc_str("abc")), 3);
    assert_int_equal(tke_utf8_whole(tkc_str("ab\xc3")), 2);
    assert_int_equal(tke_utf8_whole(tkc_str("ab\xf0\x9f\x98")), 2);
    assert_int_equal(tke_utf8_whole(tkc_str("\xf0\x9f\x98\x80")), 4);
    assert_int_equal(tke_utf8_whole(tkc_str("a\x80\x80\x80\x80")), 5);
}

enum { MANY = 150 };

/* More statements than are kept prepared, each twice. */
static void ask_many(tke_store *s, void *user, tinkc_error *err)
{
    static char sql[MANY][40];
    (void)user;
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < MANY; i++) {
            int64_t got = -1;
            snprintf(sql[i], sizeof sql[i], "SELECT %d + ?", i);
            if (!tke_store_query(s, sql[i], count, &got, err, "i", (int64_t)round) || got != i + round)
                tkc_fail(err, TINKC_E_STATE, "%s: %lld", sql[i], (long long)got);
        }
}

/* A store in memory has no file to lock, so it closes none: standard input stays as it is. */
TEST(no_file_is_closed)
{
    int fd = fcntl(STDIN_FILENO, F_GETFD) < 0 ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;
    tke_store_close(open_store(NULL));
    assert_true(fcntl(STDIN_FILENO, F_GETFD) >= 0);
    if (fd >= 0)
        close(fd);
}

/* A commit that fails is rolled back: the next group is written. */
TEST(a_failed_commit_is_rolled_back)
{
    tinkc_error err = { 0 };
    int64_t ignored;
    outcome o[4] = { { 0 } };
    tke_store *s = open_store(NULL);
    assert_true(tke_store_query(s, "PRAGMA foreign_keys=ON", count, &ignored, &err, ""));
    add(s, "CREATE TABLE p(id PRIMARY KEY)", &o[0]);
    add(s, "CREATE TABLE c(x REFERENCES p(id) DEFERRABLE INITIALLY DEFERRED)", &o[1]);
    tke_store_sync(s);
    add(s, "INSERT INTO c VALUES(1)", &o[2]);
    tke_store_sync(s);
    add(s, "INSERT INTO sessions(id, owner) VALUES('one', 'me')", &o[3]);
    assert_int_equal(sessions_in(s), 1);
    for (int i = 0; i < 4; i++) {
        assert_true(o[i].done);
        assert_int_equal(o[i].code, i == 2 ? TINKC_E_STORE : TINKC_OK);
    }
    tke_store_close(s);
}

TEST(a_transaction_may_have_many_statements)
{
    tinkc_error err = { 0 };
    outcome o = { 0 };
    tke_store *s = open_store(NULL);
    tke_txn *t = tke_txn_new(s, &err);
    tke_txn_call(t, ask_many, NULL);
    tke_txn_commit(t, note, &o);
    tke_store_sync(s);
    assert_true(o.done && o.code == TINKC_OK);
    tke_store_close(s);
}

/* One process at a time; and checkpoints without a database are not hidden by a new one. */
TEST(who_may_open)
{
    tinkc_error err = { 0 };
    char *folder = tiny_folder(), text[600], path[600];
    tke_store *s = open_store(folder);
    assert_null(tke_store_open(NULL, &silent, folder, &err));
    snprintf(text, sizeof text, "store %s: another process has it open; stop that one, or use another folder", folder);
    assert_string_equal(err.message, text);
    assert_int_equal(err.cause, TINKC_E_CONFLICT);
    tke_store_close(s);
    static const struct {
        const char *path;
        bool counts;
    } rows[] = { { "runs", false },
                 { "runs/a/weights", false },
                 { "runs/a/weights/.hidden", false },
                 { "runs/.a/weights/x", false },
                 { "runs/a/other/x", false },
                 { "runs/a/weights/x", true },
                 { "runs/a/sampler_weights/x", true },
                 { "runs/a/external_weights/x", true },
                 { "runs/a/image.0/x", true },
                 { "runs/a/image.1/x", true },
                 { "runs/a/image.2/x", false } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *other = tiny_folder();
        err = (tinkc_error){ 0 };
        snprintf(path, sizeof path, "%s/%s", other, rows[i].path);
        assert_true(tkc_make_dirs(path, &err));
        assert_int_equal(tke_store_has_checkpoints(other), rows[i].counts);
        s = tke_store_open(NULL, &silent, other, &err);
        assert_int_equal(s != NULL, !rows[i].counts);
        snprintf(text, sizeof text,
                 "store %s has checkpoints but no meta.db; 'tinkc store repair %s' makes it again "
                 "from the files",
                 other, other);
        assert_string_equal(err.message, rows[i].counts ? text : "");
        tke_store_close(s);
        tiny_model_remove(other);
    }
    tiny_model_remove(folder);
}
