/* store_check.c - tinkc_store_check: verifies a store, and repairs what can be repaired.
 *
 * Reads every byte of every checkpoint, image and journal, and compares the folders with the rows.
 * With repair, damaged files are moved to STORE/damaged; a database that is lost or damaged is
 * rebuilt from its readable rows and the folders; rows that are missing are added, and rows without
 * files removed. So a check after a repair finds nothing. No other process may have the store open
 * meanwhile.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/platform.h"
#include "service/store/checksums.h"
#include "service/store/journal.h"
#include "tinkc/engine.h"

typedef struct checking {
    tke_store *store;
    const char *folder;
    const char *owner;
    tinkc_store_report_fn *report;
    void *user;
    tkc_arena arena;
    size_t n_bad, n_left; /* found; with repair, of those not repaired */
    bool repair, rebuild; /* rebuild: the database is new */
    tke_txn *rows;        /* with repair: corrections */
} checking;

static void tell(checking *c, bool bad, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void tell(checking *c, bool bad, const char *format, ...)
{
    char line[700];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    c->n_bad += bad;
    if (c->report)
        c->report(line, bad, c->user);
}

/* ---- what a folder tells of its run ---- */

typedef struct described {
    bool has_files; /* something that a service wrote after it had made the run's row */
    const char *base_model;
    int64_t rank, train, seed;
} described;

static void read_description(checking *c, const char *folder, described *out)
{
    tinkc_error err = { 0 };
    tkc_json j;
    tinkc_str key;
    char *path = tkc_path_join(&c->arena, folder, "train_state.json", &err);
    bool state = path && tkc_is_file(path);
    if (!state)
        path = tkc_path_join(&c->arena, folder, "adapter_config.json", &err);
    if (!path || !tkc_is_file(path))
        return;
    tinkc_bytes text = tkc_read_file(&c->arena, path, 1 << 20, &err);
    tkc_json_open(&j, tkc_strn((const char *)text.data, text.len), &c->arena, &err);
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            if (tkc_str_is(key, "base_model") || tkc_str_is(key, "base_model_name_or_path"))
                out->base_model = tkc_arena_str(&c->arena, tkc_json_string(&j), &err);
            else if (tkc_str_is(key, "rank") || (!state && tkc_str_is(key, "r")))
                out->rank = tkc_json_i64(&j);
            else if (tkc_str_is(key, "train"))
                out->train = tkc_json_i64(&j);
            else if (tkc_str_is(key, "seed"))
                out->seed = tkc_json_i64(&j);
            else
                tkc_json_skip(&j);
        }
}

/* A run's row, and that of its session, from its name ("SESSION:train:N") and one of its
 * folders. */
static void rebuild_run(checking *c, const char *run_id, const described *d)
{
    const char *mark = strstr(run_id, ":train:");
    int64_t number = 0, now_us = tkc_wall_us(tkc_clock_real());
    if (!mark || !d->base_model || d->rank < 1 || !tkc_parse_i64(tkc_str(mark + 7), &number)) {
        tell(c, true, "%s: its folders do not name its base model; it cannot be rebuilt", run_id);
        c->n_left++;
        return;
    }
    tinkc_error err = { 0 };
    char *session = tkc_arena_str(&c->arena, tkc_strn(run_id, (size_t)(mark - run_id)), &err);
    tke_txn_exec(
        c->rows,
        "INSERT OR IGNORE INTO sessions(id, owner, created_us, tags) VALUES(?, ?, ?, '[]')", "tti",
        session, c->owner, now_us);
    tke_txn_exec(
        c->rows,
        "INSERT OR IGNORE INTO runs(id, session_id, model_seq, owner, base_model, rank, "
        "seed, flags, created_us, last_request_us, state, corrupted) VALUES(?, ?, ?, ?, ?, "
        "?, ?, ?, ?, ?, 1, 0)",
        "ttittiiiii", run_id, session, number, c->owner, d->base_model, d->rank, d->seed,
        d->train ? d->train : 7, now_us, now_us);
    tell(c, false, "%s: made again from its files (base model %s, rank %lld)", run_id,
         d->base_model, (long long)d->rank);
}

/* ---- folders ---- */

/* A name below STORE/damaged that no earlier repair has used. */
static char *name_aside(checking *c, const char *label, tinkc_error *err)
{
    struct stat st;
    char *target = tkc_arena_printf(&c->arena, err, "%s/damaged/%s", c->folder, label);
    for (int i = 2; target && lstat(target, &st) == 0; i++)
        target = tkc_arena_printf(&c->arena, err, "%s/damaged/%s.%d", c->folder, label, i);
    return target;
}

/* False: it is where it was, and counted. */
static bool put_aside(checking *c, const char *path, const char *label)
{
    tinkc_error err = { 0 };
    char *target = name_aside(c, label, &err);
    char *parent = target ? tkc_arena_cstr(&c->arena, target, &err) : NULL;
    if (parent)
        *strrchr(parent, '/') = '\0';
    if (parent && tkc_make_dirs(parent, &err) && rename(path, target) == 0) {
        tell(c, false, "%s: moved to %s", label, target);
        return true;
    }
    c->n_left++;
    tell(c, false, "%s: could not be moved to %s: %s", label, target ? target : "damaged",
         err.code ? err.message : tkc_errno_text(errno));
    return false;
}

/* One checkpoint or image. True: it is whole. */
static bool check_folder(checking *c, const char *path, const char *label)
{
    tinkc_error err = { 0 };
    char *mark = tkc_path_join(&c->arena, path, "checkpoint_complete", &err);
    bool listed = false;
    if (!mark || !tkc_is_file(mark)) {
        tell(c, true, "%s: it was never finished", label);
    } else {
        char *sums = tkc_path_join(&c->arena, path, TKE_SUMS_FILE, &err);
        listed = sums && tkc_is_file(sums);
        if (tke_sums_check(path, &err)) {
            tell(c, false, "%s: %s", label, listed ? "whole" : "no checksums to hold it against");
            return true;
        }
        tell(c, true, "%s", err.message);
    }
    if (c->repair)
        put_aside(c, path, label);
    return false;
}

/* The damaged file is kept whole; in its place stay the records that can be read. */
static void cut_journal(checking *c, const char *path, const char *label, size_t whole_bytes)
{
    tkc_mapping file;
    tinkc_error err = { 0 };
    if (!tkc_map_file(path, &file, &err) || !put_aside(c, path, label))
        return;
    if (whole_bytes && !tkc_write_file(path, file.data, whole_bytes, 0600, &err)) {
        tell(c, false, "%s", err.message);
        c->n_left++;
    }
    tkc_unmap_file(&file);
}

static bool check_journal(checking *c, const char *run_path, const char *run_id)
{
    tinkc_error err = { 0 };
    tke_journal_file found;
    char *path = tkc_path_join(&c->arena, run_path, "journal", &err);
    char *label = tkc_arena_printf(&c->arena, &err, "%s/journal", run_id);
    if (!path || !label || !tkc_is_file(path))
        return false;
    if (!tke_journal_scan(path, &found, &err)) {
        tell(c, true, "%s", err.message);
        c->n_left += c->repair;
    } else if (found.damaged) {
        tell(c, true, "%s: damaged after %zu records; the requests after them are lost", label,
             found.n_records);
        if (c->repair)
            cut_journal(c, path, label, found.whole_bytes);
    } else if (found.n_records || found.torn) {
        tell(c, false, "%s: %zu records%s", label, found.n_records,
             found.torn ? ", and one that was not finished" : "");
    }
    return true;
}

static void check_part(checking *c, const char *run_path, const char *run_id, const char *part,
                       described *d)
{
    tinkc_error err = { 0 };
    bool image = tkc_starts_with(tkc_str(part), "image.");
    char *parent = tkc_path_join(&c->arena, run_path, part, &err);
    if (image && parent && tkc_is_dir(parent)) {
        char *label = tkc_arena_printf(&c->arena, &err, "%s/%s", run_id, part);
        d->has_files = true;
        if (check_folder(c, parent, label))
            read_description(c, parent, d);
        return;
    }
    DIR *dir = parent && !image ? opendir(parent) : NULL;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (e->d_name[0] == '.')
            continue;
        char *path = tkc_path_join(&c->arena, parent, e->d_name, &err);
        char *label = tkc_arena_printf(&c->arena, &err, "%s/%s/%s", run_id, part, e->d_name);
        d->has_files = true;
        if (path && label && check_folder(c, path, label) && !d->rank)
            read_description(c, path, d);
    }
    if (dir)
        closedir(dir);
}

static bool row_exists(const tke_row *row, void *user, tinkc_error *err)
{
    (void)row;
    (void)err;
    *(bool *)user = true;
    return true;
}

/* A run gets its row before its first file: files without one mean that rows were lost. */
static void check_run_row(checking *c, const char *run_id, const described *d)
{
    bool known = false;
    tinkc_error err = { 0 };
    if (!c->store)
        return; /* there is no database, and that is reported already */
    if (!c->rebuild && !d->has_files)
        return;
    if (!tke_store_query(c->store, "SELECT 1 FROM runs WHERE id = ?", row_exists, &known, &err, "t",
                         run_id))
        tell(c, true, "meta.db: %s", err.message);
    if (known || tkc_failed(&err))
        return;
    if (!c->rebuild)
        tell(c, true, "%s: meta.db does not have this run", run_id);
    if (c->repair)
        rebuild_run(c, run_id, d);
}

static void check_runs(checking *c)
{
    static const char *const parts[] = { "image.0", "image.1", "weights", "sampler_weights",
                                         "external_weights" };
    tinkc_error err = { 0 };
    char *runs = tkc_path_join(&c->arena, c->folder, "runs", &err);
    DIR *dir = runs ? opendir(runs) : NULL;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        described d = { 0 };
        if (e->d_name[0] == '.')
            continue;
        char *path = tkc_path_join(&c->arena, runs, e->d_name, &err);
        for (size_t i = 0; path && i < sizeof parts / sizeof *parts; i++)
            check_part(c, path, e->d_name, parts[i], &d);
        if (path && check_journal(c, path, e->d_name))
            d.has_files = true;
        check_run_row(c, e->d_name, &d);
    }
    if (dir)
        closedir(dir);
}

/* ---- the database ---- */

static bool integrity_row(const tke_row *row, void *user, tinkc_error *err)
{
    checking *c = user;
    tinkc_str text = tke_row_text(row, 0);
    (void)err;
    if (!tkc_str_is(text, "ok"))
        tell(c, true, "meta.db: %.*s", (int)text.len, text.data);
    return true;
}

/* Reports a row whose folder is gone, also one that this repair has moved. */
static bool checkpoint_row(const tke_row *row, void *user, tinkc_error *err)
{
    checking *c = user;
    static const char *const kinds[] = { "weights", "sampler_weights", "external_weights" };
    tinkc_str run = tke_row_text(row, 0), name = tke_row_text(row, 2);
    int64_t kind = tke_row_i64(row, 1);
    char *path =
        tkc_arena_printf(&c->arena, err, "%s/runs/%.*s/%s/%.*s", c->folder, (int)run.len, run.data,
                         kinds[kind < 0 || kind > 2 ? 0 : kind], (int)name.len, name.data);
    char *run_id = tkc_arena_str(&c->arena, run, err), *text = tkc_arena_str(&c->arena, name, err);
    if (!path || !run_id || !text || tkc_is_dir(path))
        return !tkc_failed(err);
    tell(c, true, "meta.db names %s, which is not there", path + strlen(c->folder) + 6);
    if (c->repair)
        tke_txn_exec(c->rows, "DELETE FROM checkpoints WHERE run_id = ? AND kind = ? AND name = ?",
                     "tit", run_id, kind, text);
    return true;
}

/* ---- opening ---- */

static const tkc_log silent = { 0 };

/* Moves the database and its log away together: the log would be applied to a new one. */
static char *move_database(checking *c, const char *db, tinkc_error *err)
{
    char *aside = tkc_arena_printf(&c->arena, err, "%s.damaged-%lld", db,
                                   (long long)(tkc_wall_us(tkc_clock_real()) / 1000000));
    static const char *const ends[] = { "-wal", "-shm", "" };
    for (size_t i = 0; aside && i < sizeof ends / sizeof *ends; i++) {
        char *from = tkc_arena_printf(&c->arena, err, "%s%s", db, ends[i]);
        char *to = tkc_arena_printf(&c->arena, err, "%s%s", aside, ends[i]);
        if (from && to && tkc_is_file(from) && rename(from, to) != 0)
            tkc_fail_errno(err, "%s", from);
    }
    return tkc_failed(err) ? NULL : aside;
}

static bool replace_database(checking *c, const char *db, tinkc_error *err)
{
    tke_store_close(c->store);
    c->store = NULL;
    char *aside = move_database(c, db, err);
    if (!aside)
        return false;
    c->rebuild = true;
    c->store = tke_store_open_as(NULL, &silent, c->folder, true, err);
    int64_t n_rows = c->store ? tke_store_salvage(c->store, aside, err) : 0;
    if (n_rows)
        tell(c, false, "meta.db: %lld rows of the damaged one could be read", (long long)n_rows);
    return !tkc_failed(err);
}

static bool open_database(checking *c, const char *db, tinkc_error *err)
{
    size_t n_bad = c->n_bad;
    tinkc_error why = { 0 };
    c->store = tke_store_open_as(NULL, &silent, c->folder, c->rebuild, err);
    if (c->store &&
        !tke_store_query(c->store, "PRAGMA integrity_check", integrity_row, c, &why, ""))
        tell(c, true, "meta.db: %s", why.message);
    if (c->store && tke_store_lost_log(c->store) && !c->rebuild)
        tell(c, true, "meta.db: its last commits are missing; was meta.db-wal removed?");
    /* In use by another process is not damaged: it must not be replaced. */
    if (!c->repair || (!c->store && err->cause == TINKC_E_CONFLICT))
        return c->store != NULL;
    if (!c->store)
        tell(c, true, "meta.db cannot be used: %s", err->message);
    else if (tke_store_lost_log(c->store))
        n_bad += !c->rebuild;
    if (c->n_bad > n_bad) {
        *err = (tinkc_error){ 0 };
        if (!replace_database(c, db, err))
            return false;
    }
    tke_store_accept_loss(c->store);
    return true;
}

static bool open_store(checking *c, const char *folder, tinkc_error *err)
{
    char *db = tkc_path_join(&c->arena, folder, "meta.db", err);
    if (!db || !tkc_is_dir(folder))
        return tkc_fail(err, TINKC_E_NOT_FOUND, "%s: there is no such folder", folder);
    bool lost = !tke_store_has_database(folder);
    if (lost && !tke_store_has_checkpoints(folder)) /* opening would make one */
        return tkc_fail(err, TINKC_E_NOT_FOUND, "%s is not a store: it has no meta.db", folder);
    if (lost)
        tell(c, true, "meta.db is %s", tkc_is_file(db) ? "empty" : "missing");
    c->rebuild = lost && c->repair;
    if (lost && !c->repair)
        return true; /* the folders can still be checked */
    if (lost && !move_database(c, db, err))
        return false; /* a log without its database */
    return open_database(c, db, err);
}

static void rows_written(void *user, const tinkc_error *err)
{
    tkc_error_copy(user, err);
}

bool tinkc_store_check(const char *folder, const tinkc_store_check_options *options,
                       tinkc_store_report_fn *report, void *user, tinkc_error *err)
{
    static const tinkc_store_check_options none;
    const tinkc_store_check_options *o = options ? options : &none;
    tinkc_error local;
    char owner[TKE_OWNER_TEXT] = "default";
    if (!tkc_enter(&err, &local))
        return false;
    if (!folder || !*folder || !tkc_all_zero(o->reserved, sizeof o->reserved) ||
        !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools))
        return tkc_fail(err, TINKC_E_ARGUMENT, "folder is required, reserved fields must be zero");
    if (o->owner_key) /* a rebuilt store has no salt */
        tke_owner_of_key(&(tke_owner_salt){ { 0 } }, tkc_str(o->owner_key), owner);
    checking c = {
        .folder = folder, .owner = owner, .report = report, .user = user, .repair = o->repair
    };
    tkc_arena_init(&c.arena, NULL, 0);
    if (open_store(&c, folder, err)) {
        c.rows = c.repair ? tke_txn_new(c.store, err) : NULL;
        check_runs(&c);
        if (c.store)
            tke_store_query(c.store, "SELECT run_id, kind, name FROM checkpoints", checkpoint_row,
                            &c, err, "");
        if (c.repair) {
            /* SQL even without a correction: only transactions with SQL report that the database
             * cannot be written. */
            tke_txn_exec(c.rows, "SELECT 1", "");
            tke_txn_commit(c.rows, rows_written, err);
            tke_store_sync(c.store);
        }
        if (c.store)
            tell(&c, false, "meta.db: %s", c.rebuild ? "made again" : "read");
    }
    tke_store_close(c.store);
    tkc_arena_free(&c.arena);
    size_t left = c.repair ? c.n_left : c.n_bad;
    if (left)
        tkc_fail(err, TINKC_E_STORE, "%zu %s damaged or missing%s", left,
                 left == 1 ? "entry is" : "entries are",
                 c.repair ? " and could not be repaired" : "");
    return !tkc_failed(err);
}
