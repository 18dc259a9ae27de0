/* store.c - the database, its one writer, and the lock on the folder.
 *
 * May touch: SQLite, the store's folder. Must not: know what the rows mean; only the schema is
 * here, because it must exist before the first query.
 *
 * The writer takes the whole queue, wraps it in one transaction with a savepoint for each tke_txn,
 * commits, and only then calls back. A group that cannot be committed (disk full) fails as a whole.
 */
#include "service/core/service_state.h"
#include "service/store/store.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/platform.h"
#include "base/str.h"
#include "base/thread.h"
#include "service/store/failpoint.h"

enum { SCHEMA_VERSION = 1, MAX_STATEMENTS = 64 };

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS sessions(id TEXT PRIMARY KEY, owner TEXT, created_us INTEGER,"
    " tags TEXT, user_metadata TEXT, sdk_version TEXT, project_id TEXT);"
    "CREATE TABLE IF NOT EXISTS session_notes(id TEXT PRIMARY KEY, display_name TEXT,"
    " finished TEXT, detail TEXT) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS runs(id TEXT PRIMARY KEY, session_id TEXT, model_seq INTEGER,"
    " owner TEXT, base_model TEXT, rank INTEGER, seed INTEGER, flags INTEGER, user_metadata TEXT,"
    " created_us INTEGER, last_request_us INTEGER, state INTEGER, corrupted INTEGER,"
    " hash BLOB, request_id TEXT, error TEXT);"
    "CREATE TABLE IF NOT EXISTS requests(run_id TEXT, seq_id INTEGER, kind INTEGER, hash BLOB,"
    " request_id TEXT, state INTEGER, result TEXT, PRIMARY KEY(run_id, seq_id)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS checkpoints(run_id TEXT, kind INTEGER, name TEXT, owner TEXT,"
    " created_us INTEGER, bytes INTEGER, public INTEGER, expires_us INTEGER, seq_id INTEGER,"
    " PRIMARY KEY(run_id, kind, name)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS samplers(id TEXT PRIMARY KEY, session_id TEXT, seq INTEGER,"
    " owner TEXT, base_model TEXT, model_path TEXT, ephemeral INTEGER, hash BLOB);"
    "CREATE TABLE IF NOT EXISTS custom_losses(session_id TEXT, seq INTEGER, request_id TEXT,"
    " body BLOB, PRIMARY KEY(session_id, seq)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS audit(id INTEGER PRIMARY KEY, time_us INTEGER, owner TEXT,"
    " event TEXT, model_id TEXT, tinker_path TEXT, purpose TEXT);"
    "CREATE INDEX IF NOT EXISTS audit_time ON audit(time_us);"
    "CREATE TABLE IF NOT EXISTS usage(bucket_us INTEGER, owner TEXT, session_id TEXT,"
    " base_model TEXT, kind INTEGER, count INTEGER,"
    " PRIMARY KEY(bucket_us, owner, session_id, base_model, kind)) WITHOUT ROWID;";

typedef struct value {
    char type;
    int64_t i;
    tinkc_bytes bytes;
} value;

typedef struct statement {
    struct statement *next;
    const char *sql; /* NULL: a call */
    tke_txn_fn *fn;
    void *user;
    size_t n_values;
    value values[];
} statement;

struct tke_txn {
    tke_txn *next;
    tke_store *store;
    tkc_arena arena;
    tinkc_error err; /* its first error */
    statement *first, **last;
    bool has_sql;
    tke_txn_done *done;
    void *user;
};

struct tke_row {
    sqlite3_stmt *stmt;
};

typedef struct cached {
    const char *sql;
    sqlite3_stmt *stmt;
} cached;

struct tke_store {
    const tinkc_allocator *a;
    const tkc_log *log;
    char *folder; /* NULL in memory */
    char *root;   /* of files: folder, or a temporary one, removed on close */
    int lock_fd;
    int64_t epoch;
    bool rebuild;  /* make a missing database even if checkpoints exist */
    bool lost_log; /* see the mark in the lock file */

    /* Only the writer's thread (before it starts and after it ended: the opener's). */
    sqlite3 *db;
    cached statements[MAX_STATEMENTS];
    size_t n_statements;

    /* Any thread, with this lock held; no other lock is taken inside it. */
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    tke_txn *first, **last;
    uint64_t queued, finished;
    bool stop;
    bool has_thread;
    pthread_t thread;
    uint64_t next_temp;
};

/* ---- SQLite's errors ---- */

static bool fail_db(tke_store *s, int rc, tinkc_error *err)
{
    const char *where = s->folder ? s->folder : "memory";
    switch (rc & 0xff) {
    case SQLITE_NOMEM:
        return tkc_fail_memory(err);
    case SQLITE_FULL:
        return tkc_fail(err, TINKC_E_STORE, "store %s: the disk is full", where);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return tkc_fail(err, TINKC_E_STORE, "store %s: meta.db is damaged", where);
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
        return tkc_fail(err, TINKC_E_STORE, "store %s: meta.db cannot be written: %s", where,
                        s->db ? sqlite3_errmsg(s->db) : "no permission");
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return tkc_fail(err, TINKC_E_STORE, "store %s: meta.db is in use by another program",
                        where);
    default:
        return tkc_fail(err, TINKC_E_STORE, "store %s: %s", where,
                        s->db ? sqlite3_errmsg(s->db) : sqlite3_errstr(rc));
    }
}

static bool run_sql(tke_store *s, const char *sql, tinkc_error *err)
{
    int rc = sqlite3_exec(s->db, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? true : fail_db(s, rc, err);
}

/* ---- statements ---- */

static sqlite3_stmt *prepared(tke_store *s, const char *sql, tinkc_error *err)
{
    for (size_t i = 0; i < s->n_statements; i++)
        if (s->statements[i].sql == sql || tkc_cstr_eq(s->statements[i].sql, sql))
            return s->statements[i].stmt;
    sqlite3_stmt *stmt = NULL;
    int rc = sqlite3_prepare_v3(s->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &stmt, NULL);
    if (rc != SQLITE_OK) {
        fail_db(s, rc, err);
        return NULL;
    }
    if (s->n_statements == MAX_STATEMENTS) { /* evict the oldest; not expected */
        sqlite3_finalize(s->statements[0].stmt);
        memmove(s->statements, s->statements + 1, (MAX_STATEMENTS - 1) * sizeof *s->statements);
        s->n_statements--;
    }
    s->statements[s->n_statements++] = (cached){ sql, stmt };
    return stmt;
}

static bool bind_values(tke_store *s, sqlite3_stmt *stmt, const value *values, size_t n,
                        tinkc_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const value *v = &values[i];
        int at = (int)i + 1, rc = SQLITE_OK;
        if (v->type != 'i' && !v->bytes.data)
            rc = sqlite3_bind_null(stmt, at);
        else if (v->type == 'i')
            rc = sqlite3_bind_int64(stmt, at, v->i);
        else if (v->type == 't')
            rc = sqlite3_bind_text64(stmt, at, (const char *)v->bytes.data, v->bytes.len,
                                     SQLITE_STATIC, SQLITE_UTF8);
        else
            rc = sqlite3_bind_blob64(stmt, at, v->bytes.data, v->bytes.len, SQLITE_STATIC);
        if (rc != SQLITE_OK)
            return fail_db(s, rc, err);
    }
    return true;
}

/* Reads the arguments that `types` describes. Text and bytes are borrowed. */
static void take_values(value *values, const char *types, va_list *args)
{
    for (size_t i = 0; types[i]; i++) {
        values[i] = (value){ .type = types[i] };
        if (types[i] == 't') {
            const char *text = va_arg(*args, const char *);
            values[i].bytes = (tinkc_bytes){ (const unsigned char *)text, text ? strlen(text) : 0 };
        } else if (types[i] == 'i') {
            values[i].i = va_arg(*args, int64_t);
        } else if (types[i] == 'b') {
            values[i].bytes = va_arg(*args, tinkc_bytes);
        }
    }
}

/* ---- transactions ---- */

tke_txn *tke_txn_new(tke_store *s, tinkc_error *err)
{
    tke_txn *t = tkc_zalloc(s->a, sizeof *t, err);
    if (!t)
        return NULL;
    t->store = s;
    t->last = &t->first;
    tkc_arena_init(&t->arena, s->a, 0);
    return t;
}

static void txn_free(tke_txn *t)
{
    tkc_arena_free(&t->arena);
    tkc_release(t->store->a, t, sizeof *t);
}

static statement *add_statement(tke_txn *t, size_t n_values)
{
    statement *added =
        tkc_arena_zalloc(&t->arena, sizeof *added + n_values * sizeof added->values[0], &t->err);
    if (!added)
        return NULL;
    added->n_values = n_values;
    *t->last = added;
    t->last = &added->next;
    return added;
}

void tke_txn_exec(tke_txn *t, const char *sql, const char *types, ...)
{
    if (!t)
        return;
    statement *added = add_statement(t, strlen(types));
    if (!added)
        return;
    added->sql = sql;
    t->has_sql = true;
    va_list args;
    va_start(args, types);
    take_values(added->values, types, &args);
    va_end(args);
    for (size_t i = 0; i < added->n_values; i++) {
        value *v = &added->values[i];
        if ((v->type == 't' || v->type == 'b') && v->bytes.data)
            v->bytes.data = (const unsigned char *)tkc_arena_str(
                &t->arena, tkc_strn((const char *)v->bytes.data, v->bytes.len), &t->err);
    }
}

void tke_txn_call(tke_txn *t, tke_txn_fn *fn, void *user)
{
    statement *added = t ? add_statement(t, 0) : NULL;
    if (!added)
        return;
    added->fn = fn;
    added->user = user;
}

void tke_txn_commit(tke_txn *t, tke_txn_done *done, void *user)
{
    if (!t) {
        /* The one case in which `done` runs on the caller's thread: with a `done` that takes
         * svc->lock, the caller must not hold that. */
        tinkc_error err = { 0 };
        tkc_fail_memory(&err);
        if (done)
            done(user, &err);
        return;
    }
    tke_store *s = t->store;
    t->done = done;
    t->user = user;
    pthread_mutex_lock(&s->lock);
    *s->last = t;
    s->last = &t->next;
    s->queued++;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

void tke_store_sync(tke_store *s)
{
    pthread_mutex_lock(&s->lock);
    /* Only what is queued by now: under load the queue may never be empty. */
    uint64_t until = s->queued;
    while (s->finished < until && s->has_thread)
        pthread_cond_wait(&s->idle, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* ---- the writer ---- */

/* Its error is the transaction's. */
static void run_statement(tke_store *s, const statement *st, tinkc_error *err)
{
    if (!st->sql) {
        st->fn(s, st->user, err);
        return;
    }
    sqlite3_stmt *stmt = prepared(s, st->sql, err);
    if (!stmt || !bind_values(s, stmt, st->values, st->n_values, err))
        return;
    int rc;
    do {
        rc = sqlite3_step(stmt);
    } while (rc == SQLITE_ROW);
    if (rc != SQLITE_DONE)
        fail_db(s, rc, err);
    sqlite3_reset(stmt);
    sqlite3_clear_bindings(stmt);
}

static void run_txn(tke_store *s, tke_txn *t)
{
    tinkc_error ignored = { 0 };
    /* A savepoint for each, so that a statement that fails undoes only its own transaction: the
     * others of the group belong to other clients. */
    bool isolated = t->has_sql && !tkc_failed(&t->err);
    if (isolated && !run_sql(s, "SAVEPOINT one", &t->err))
        return;
    for (statement *st = t->first; st && !tkc_failed(&t->err); st = st->next)
        run_statement(s, st, &t->err);
    if (!isolated)
        return;
    if (tkc_failed(&t->err))
        run_sql(s, "ROLLBACK TO one", &ignored);
    run_sql(s, "RELEASE one", &ignored);
}

static void write_group(tke_store *s, tke_txn *first)
{
    tinkc_error err = { 0 }, ignored = { 0 };
    bool begun = run_sql(s, "BEGIN IMMEDIATE", &err) && TKE_FAILPOINT("store.begun", &err);
    for (tke_txn *t = first; t; t = t->next) {
        /* Calls need no transaction: where none can begin, on a full disk for instance, requests
         * can still be read, and fail by themselves. */
        if (begun || !t->has_sql)
            run_txn(s, t);
        /* Some failures, such as a full disk, roll back to BEGIN by themselves: this group's work
         * so far is gone, and the rest must not run outside a transaction. */
        if (begun && sqlite3_get_autocommit(s->db)) {
            begun = false;
            tkc_error_copy(&err, &t->err); /* nothing else undoes it */
            assert(tkc_failed(&err));
        }
    }
    if (begun && TKE_FAILPOINT("store.written", &err))
        run_sql(s, "COMMIT", &err);
    if (!sqlite3_get_autocommit(s->db))
        run_sql(s, "ROLLBACK", &ignored);
    (void)TKE_FAILPOINT("store.committed", &ignored);
    if (tkc_failed(&err))
        tkc_log_line(s->log, TINKC_LOG_ERROR, "%s", err.message);
    for (tke_txn *next; first; first = next) {
        next = first->next;
        if (first->has_sql)
            tkc_error_copy(&first->err, &err);
        if (first->done)
            first->done(first->user, &first->err);
        txn_free(first);
    }
}

static void *writer(void *arg)
{
    tke_store *s = arg;
    pthread_mutex_lock(&s->lock);
    /* Ends with an empty queue only: what was queued before the store is closed is still
     * committed. */
    while (s->first || !s->stop) {
        if (!s->first) {
            pthread_cond_wait(&s->wake, &s->lock);
            continue;
        }
        tke_txn *group = s->first;
        uint64_t n = s->queued;
        s->first = NULL;
        s->last = &s->first;
        pthread_mutex_unlock(&s->lock);
        write_group(s, group);
        pthread_mutex_lock(&s->lock);
        /* After the callbacks, so that tke_store_sync also waits for them: a service that stops
         * fails its leftover jobs next, and no callback may still answer one. */
        s->finished = n;
        pthread_cond_broadcast(&s->idle);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- reading ---- */

/* One connection without a lock: only the writer may read, or others while it is idle. */
static bool may_read(tke_store *s)
{
    pthread_mutex_lock(&s->lock);
    bool idle = !s->has_thread || s->finished == s->queued;
    pthread_mutex_unlock(&s->lock);
    return idle || pthread_equal(pthread_self(), s->thread);
}

bool tke_store_query(tke_store *s, const char *sql, tke_row_fn *fn, void *user, tinkc_error *err,
                     const char *types, ...)
{
    value values[16];
    assert(may_read(s));
    (void)may_read;
    sqlite3_stmt *stmt = prepared(s, sql, err);
    if (!stmt || strlen(types) > sizeof values / sizeof *values)
        return tkc_fail(err, TINKC_E_STATE, "store: bad query");
    va_list args;
    va_start(args, types);
    take_values(values, types, &args);
    va_end(args);
    if (!bind_values(s, stmt, values, strlen(types), err))
        return false;
    int rc;
    const tke_row row = { stmt };
    do
        rc = sqlite3_step(stmt);
    while (rc == SQLITE_ROW && fn(&row, user, err));
    bool ok = rc == SQLITE_DONE || rc == SQLITE_ROW ? !tkc_failed(err) : fail_db(s, rc, err);
    /* Also after an end in the middle: an open statement keeps its snapshot, and SQLite could never
     * empty the log. */
    sqlite3_reset(stmt);
    sqlite3_clear_bindings(stmt);
    return ok;
}

tinkc_str tke_row_text(const tke_row *row, int column)
{
    const char *text = (const char *)sqlite3_column_text(row->stmt, column);
    return tkc_strn(text, (size_t)sqlite3_column_bytes(row->stmt, column));
}

tinkc_bytes tke_row_blob(const tke_row *row, int column)
{
    const unsigned char *data = sqlite3_column_blob(row->stmt, column);
    return (tinkc_bytes){ data, (size_t)sqlite3_column_bytes(row->stmt, column) };
}

int64_t tke_row_i64(const tke_row *row, int column)
{
    return sqlite3_column_int64(row->stmt, column);
}

/* ---- opening and closing ---- */

static bool take_lock(tke_store *s, tkc_arena *arena, tinkc_error *err)
{
    char *path = tkc_path_join(arena, s->folder, "lock", err);
    if (!path)
        return false;
    /* O_CLOEXEC: a child process would keep the lock when this one has ended. The file is never
     * removed: two processes could then each lock one of that name. */
    s->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->lock_fd < 0)
        return tkc_fail_errno(err, "%s", path);
    /* flock, not fcntl: the latter's lock ends when any descriptor of the file is closed in this
     * process. */
    if (flock(s->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) {
            tkc_fail(err, TINKC_E_STORE,
                     "store %s: another process has it open; stop that one, or use another folder",
                     s->folder);
            err->cause = TINKC_E_CONFLICT;
            return false;
        }
        return tkc_fail_errno(err, "%s", path);
    }
    return true;
}

static bool read_i64(const tke_row *row, void *user, tinkc_error *err)
{
    (void)err;
    *(int64_t *)user = tke_row_i64(row, 0);
    return true;
}

/* ---- the mark in the lock file ----
 *
 * "STATE EPOCH": open, closed, or lost. SQLite deletes meta.db-wal only when the database is closed,
 * and it is closed only after the mark says so. So a store whose mark says "open" must have that
 * file, with the epoch of the mark: otherwise the last commits were removed with it, which SQLite
 * itself cannot notice. "lost" stays until a repair. A store of an older version has no mark. */

enum { MARK_BYTES = 32 };

static int64_t read_mark(const tke_store *s, bool *lost, bool *open)
{
    char text[MARK_BYTES + 1] = "";
    int64_t epoch = 0;
    if (s->lock_fd < 0 || pread(s->lock_fd, text, MARK_BYTES, 0) != MARK_BYTES)
        return 0;
    tinkc_str rest = tkc_str(text), state, number;
    if (!tkc_str_cut(&rest, ' ', &state) || !tkc_str_cut(&rest, ' ', &number) ||
        !tkc_parse_i64(number, &epoch))
        return 0;
    *lost = tkc_str_is(state, "lost");
    *open = tkc_str_is(state, "open");
    return epoch;
}

/* Fixed size and in place: needs no disk space. If it fails, only a later loss is not noticed. */
static void write_mark(const tke_store *s, const char *state)
{
    char text[MARK_BYTES + 1];
    if (s->lock_fd < 0)
        return;
    int len = snprintf(text, sizeof text, "%s %lld ", state, (long long)s->epoch);
    memset(text + len, '\n', sizeof text - (size_t)len);
    if (pwrite(s->lock_fd, text, MARK_BYTES, 0) == MARK_BYTES)
        (void)tkc_sync_data(s->lock_fd);
}

/* Before SQLite opens the database, which makes a new log. */
static int64_t find_lost_log(tke_store *s, const char *db, tkc_arena *arena, tinkc_error *err)
{
    bool open = false;
    int64_t epoch = read_mark(s, &s->lost_log, &open);
    char *log = tkc_arena_printf(arena, err, "%s-wal", db);
    if (open && log && !tkc_is_file(log))
        s->lost_log = true;
    return epoch;
}

/* The epoch is never one that was used before: it is part of the ids of requests. */
static bool next_epoch(tke_store *s, int64_t marked, tinkc_error *err)
{
    static const char sql[] = "SELECT value FROM meta WHERE key = 'epoch'";
    char update[120];
    if (!tke_store_query(s, sql, read_i64, &s->epoch, err, ""))
        return false;
    /* The mark is written after the epoch's row is committed, so a mark that is ahead of the row
     * proves that commits were lost. */
    s->lost_log |= marked > s->epoch;
    s->epoch = (marked > s->epoch ? marked : s->epoch) + 1;
    (void)snprintf(update, sizeof update,
                   "INSERT OR REPLACE INTO meta(key, value) VALUES('epoch', %lld)",
                   (long long)s->epoch);
    return run_sql(s, update, err);
}

bool tke_store_lost_log(const tke_store *s)
{
    return s->lost_log;
}

void tke_store_accept_loss(tke_store *s)
{
    s->lost_log = false;
    write_mark(s, "open");
}

static bool prepare_folders(tke_store *s, tkc_arena *arena, tinkc_error *err)
{
    char *tmp = tkc_path_join(arena, s->folder, "tmp", err);
    char *runs = tkc_path_join(arena, s->folder, "runs", err);
    /* Nothing on disk refers to tmp/: what is there was being written, or was on its way out, when
     * the last process ended. */
    return tmp && runs && tkc_remove_tree(tmp, err) && tkc_make_dirs(tmp, err) &&
           tkc_make_lasting_dirs(runs, err);
}

/* The database holds the token secret, so only its owner may read it, whatever the folder's mode.
 * SQLite gives its other files the mode of this one. */
static bool keep_private(const char *path, tinkc_error *err)
{
    /* Before SQLite opens it: a file that it creates would be readable by others until its mode is
     * changed. */
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return tkc_fail_errno(err, "%s", path);
    bool ok = fchmod(fd, 0600) == 0 ? true : tkc_fail_errno(err, "%s", path);
    (void)close(fd);
    return ok;
}

static bool open_db(tke_store *s, tkc_arena *arena, tinkc_error *err)
{
    const char *path = s->folder ? tkc_path_join(arena, s->folder, "meta.db", err) : ":memory:";
    if (!path || (s->folder && !keep_private(path, err)))
        return false;
    int64_t marked = s->folder ? find_lost_log(s, path, arena, err) : 0;
    int rc = sqlite3_open_v2(
        path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc != SQLITE_OK)
        return fail_db(s, rc, err);
    sqlite3_busy_timeout(s->db, 5000);
    int64_t version = 0;
    /* FULL syncs at each commit. NORMAL would be faster, but with a log a power loss may then take
     * commits that clients were answered. */
    if (!run_sql(s, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA temp_store=MEMORY;",
                 err) ||
        !tke_store_query(s, "PRAGMA user_version", read_i64, &version, err, ""))
        return false;
    if (version > SCHEMA_VERSION)
        return tkc_fail(err, TINKC_E_STORE, "store %s: made by a newer version of this program",
                        s->folder ? s->folder : "memory");
    if (!run_sql(s, schema, err) || !run_sql(s, "PRAGMA user_version=1", err) ||
        !next_epoch(s, marked, err))
        return false;
    /* After the epoch's row: a crash before this leaves an old mark, which is harmless; a mark
     * ahead of the row would be taken for a loss. */
    write_mark(s, s->lost_log ? "lost" : "open");
    if (s->lost_log)
        tkc_log_line(s->log, TINKC_LOG_ERROR,
                     "store %s: the last commits of meta.db are missing (was meta.db-wal removed?); "
                     "stop the server and run 'tinkc store repair %s'",
                     s->folder, s->folder);
    return true;
}

bool tke_store_has_database(const char *folder)
{
    char path[4200];
    struct stat st;
    int n = snprintf(path, sizeof path, "%s/meta.db", folder);
    return n < (int)sizeof path && stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0;
}

/* Checkpoints without a database mean that it was lost; a new empty one would hide them. */
static bool has_database(tke_store *s, tinkc_error *err)
{
    if (tke_store_has_database(s->folder) || s->rebuild || !tke_store_has_checkpoints(s->folder))
        return !tkc_failed(err);
    return tkc_fail(err, TINKC_E_STORE,
                    "store %s has checkpoints but no meta.db; 'tinkc store repair %s' makes it "
                    "again from the files",
                    s->folder, s->folder);
}

static bool open_folder(tke_store *s, const char *folder, tkc_arena *arena, tinkc_error *err)
{
    if (!folder)
        return true;
    s->folder = tkc_copy_str(s->a, tkc_str(folder), err);
    /* The lock comes first: emptying the tmp/ of a store that another process has open would remove
     * what that one is writing. */
    return s->folder && tkc_make_lasting_dirs(folder, err) && take_lock(s, arena, err) &&
           has_database(s, err) && prepare_folders(s, arena, err);
}

tke_store *tke_store_open(const tinkc_allocator *a, const tkc_log *log, const char *folder,
                          tinkc_error *err)
{
    return tke_store_open_as(a, log, folder, false, err);
}

tke_store *tke_store_open_as(const tinkc_allocator *a, const tkc_log *log, const char *folder,
                             bool rebuild, tinkc_error *err)
{
    tke_store *s = tkc_zalloc(a, sizeof *s, err);
    if (!s)
        return NULL;
    s->rebuild = rebuild;
    s->a = a;
    s->log = log;
    s->lock_fd = -1;
    s->last = &s->first;
    pthread_mutex_init(&s->lock, NULL);
    tkc_arena arena;
    tkc_arena_init(&arena, a, 0);
    bool ok = tkc_cond_init(&s->wake, err) && tkc_cond_init(&s->idle, err) &&
              open_folder(s, folder, &arena, err) && open_db(s, &arena, err);
    tkc_arena_free(&arena);
    if (ok)
        s->has_thread = tkc_thread_start(&s->thread, writer, s, "tinkc-store", err);
    if (tkc_failed(err)) {
        tke_store_close(s);
        return NULL;
    }
    return s;
}

/* The log is emptied first and the mark written then: see there. If that fails, the log stays. */
static void close_db(tke_store *s)
{
    if (!s->db)
        return;
    /* Only an opener with an epoch may do it: one that just looks must leave the log to the process
     * that has the store open. */
    bool emptied = s->epoch && sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_TRUNCATE,
                                                         NULL, NULL) == SQLITE_OK;
    if (emptied && !s->lost_log)
        write_mark(s, "closed");
    if (!emptied)
        sqlite3_db_config(s->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    sqlite3_close_v2(s->db);
}

tke_store *tke_store_look(const tinkc_allocator *a, const tkc_log *log, const char *folder,
                          tinkc_error *err)
{
    tke_store *s = tkc_zalloc(a, sizeof *s, err);
    if (!s)
        return NULL;
    s->a = a;
    s->log = log;
    s->lock_fd = -1;
    s->last = &s->first;
    pthread_mutex_init(&s->lock, NULL);
    tkc_arena arena;
    tkc_arena_init(&arena, a, 0);
    bool ok = tkc_cond_init(&s->wake, err) && tkc_cond_init(&s->idle, err);
    s->folder = tkc_copy_str(a, tkc_str(folder), err);
    char *path = tkc_path_join(&arena, folder, "meta.db", err);
    if (ok && s->folder && path) {
        int rc = sqlite3_open_v2(path, &s->db, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, NULL);
        if (rc != SQLITE_OK)
            fail_db(s, rc, err);
        else
            sqlite3_busy_timeout(s->db, 5000);
    }
    tkc_arena_free(&arena);
    if (!tkc_failed(err))
        return s;
    tke_store_close(s);
    return NULL;
}

void tke_store_close(tke_store *s)
{
    if (!s)
        return;
    if (s->has_thread) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_cond_signal(&s->wake);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    for (size_t i = 0; i < s->n_statements; i++)
        sqlite3_finalize(s->statements[i].stmt);
    close_db(s);
    /* Released last: the next process must find the log emptied and the mark written. */
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->idle);
    tinkc_error ignored = { 0 };
    if (s->root && !s->folder)
        tkc_remove_tree(s->root, &ignored);
    if (s->root)
        tkc_release_str(s->a, s->root);
    if (s->folder)
        tkc_release_str(s->a, s->folder);
    tkc_release(s->a, s, sizeof *s);
}

/* ---- a damaged database ---- */

/* Row by row: one that cannot be read ends its table, but what was read before it is kept. */
static int64_t copy_rows(tke_store *s, sqlite3_stmt *from, sqlite3_stmt *to, tinkc_error *err)
{
    int64_t n_rows = 0;
    while (!tkc_failed(err) && sqlite3_step(from) == SQLITE_ROW) {
        for (int i = 0; i < sqlite3_column_count(from); i++)
            sqlite3_bind_value(to, i + 1, sqlite3_column_value(from, i));
        int rc = sqlite3_step(to);
        n_rows += rc == SQLITE_DONE ? sqlite3_changes(s->db) : 0;
        sqlite3_reset(to);
        if (rc == SQLITE_FULL || rc == SQLITE_IOERR || rc == SQLITE_NOMEM)
            fail_db(s, rc, err); /* another row that is refused is damaged */
    }
    return n_rows;
}

static int64_t copy_table(tke_store *s, sqlite3 *old, const char *table, tinkc_error *err)
{
    static const char marks[] = "?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?";
    char sql[120];
    sqlite3_stmt *from = NULL, *to = NULL;
    int64_t n_rows = 0;
    (void)snprintf(sql, sizeof sql, "SELECT * FROM %s", table);
    if (sqlite3_prepare_v2(old, sql, -1, &from, NULL) == SQLITE_OK) {
        (void)snprintf(sql, sizeof sql, "INSERT OR IGNORE INTO %s VALUES(%.*s)", table,
                       sqlite3_column_count(from) * 2 - 1, marks);
        if (sqlite3_prepare_v2(s->db, sql, -1, &to, NULL) == SQLITE_OK)
            n_rows = copy_rows(s, from, to, err);
    }
    sqlite3_finalize(from);
    sqlite3_finalize(to);
    return n_rows;
}

int64_t tke_store_salvage(tke_store *s, const char *damaged, tinkc_error *err)
{
    static const char *const tables[] = { "sessions", "session_notes", "runs",
                                          "requests", "checkpoints",   "samplers",
                                          "meta",     "custom_losses", "audit",
                                          "usage" };
    int64_t n_rows = 0;
    sqlite3 *old = NULL;
    assert(may_read(s));
    if (sqlite3_open_v2(damaged, &old, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) ==
            SQLITE_OK &&
        run_sql(s, "BEGIN", err)) {
        for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
            n_rows += copy_table(s, old, tables[i], err);
        tinkc_error ignored = { 0 };
        run_sql(s, tkc_failed(err) ? "ROLLBACK" : "COMMIT", tkc_failed(err) ? &ignored : err);
    }
    sqlite3_close_v2(old);
    return n_rows;
}

bool tke_store_durable(const tke_store *s)
{
    return s->folder != NULL;
}

const char *tke_store_folder(const tke_store *s)
{
    return s->folder;
}

int64_t tke_store_memory(const tke_store *s)
{
    (void)s; /* SQLite counts per process */
    return sqlite3_memory_used();
}

int64_t tke_store_epoch(const tke_store *s)
{
    return s->epoch;
}

/* A store in memory still needs files for tensors: made on first use, removed at the end. */
static const char *files_root(tke_store *s, tinkc_error *err)
{
    const char *tmp = getenv("TMPDIR");
    char path[512];
    pthread_mutex_lock(&s->lock);
    if (!s->root && s->folder) {
        s->root = tkc_copy_str(s->a, tkc_str(s->folder), err);
    } else if (!s->root) {
        (void)snprintf(path, sizeof path, "%.400s/tinkc-engine-XXXXXX", tmp && *tmp ? tmp : "/tmp");
        if (mkdtemp(path))
            s->root = tkc_copy_str(s->a, tkc_str(path), err);
        else
            tkc_fail_errno(err, "%s", path);
    }
    const char *root = s->root;
    pthread_mutex_unlock(&s->lock);
    return root;
}

char *tke_store_temp(tke_store *s, tkc_arena *arena, tinkc_error *err)
{
    const char *root = files_root(s, err);
    pthread_mutex_lock(&s->lock);
    uint64_t number = s->next_temp++;
    pthread_mutex_unlock(&s->lock);
    char *path =
        root ? tkc_arena_printf(arena, err, "%s/tmp/%llu", root, (unsigned long long)number) : NULL;
    return path && tkc_make_dirs(path, err) ? path : NULL;
}

char *tke_store_run_path(tke_store *s, tkc_arena *arena, const char *run, const char *part,
                         tinkc_error *err)
{
    const char *root = files_root(s, err);
    return root ? tkc_arena_printf(arena, err, part ? "%s/runs/%s/%s" : "%s/runs/%s%s", root, run,
                                   part ? part : "")
                : NULL;
}
