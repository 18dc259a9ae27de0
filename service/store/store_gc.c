/* store_gc.c - tinkc_store_gc: what a store holds, what of it nobody needs, and its removal.
 *
 * What goes: images, journals and results of finished runs, images for which a newer state is there, ephemeral samplers
 * without a row, expired checkpoints and what is below tmp/. A checkpoint that somebody saved never goes by itself.
 *
 * Order of writes: first the rows that say that a run is finished; then each folder is moved below tmp/ in one step,
 * and removed there; last the row of a checkpoint. After an end at any point the next start finds either all of a
 * folder or nothing, and removes what is below tmp/.
 */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json_read.h"
#include "base/str.h"
#include "service/core/saved_checkpoints.h"
#include "service/worker/run_state.h"

typedef struct known_run { /* a row of runs */
    bool finished;
    int64_t silent_us; /* since its last request */
} known_run;

typedef struct known_checkpoint {
    bool is_public, expired;
} known_checkpoint;

typedef struct gc {
    tke_store *store;
    const char *folder;
    const tinkc_store_gc_options *o;
    tinkc_store_item_fn *report;
    void *user;
    tkc_arena arena;
    tkc_map runs, checkpoints, samplers; /* by id; by "RUN/KIND/NAME"; by "RUN/ephemeral/N" */
    int64_t now_us;
    tinkc_error *err;
} gc;

/* ---- what the database knows ---- */

static bool run_row(const tke_row *row, void *user, tinkc_error *err)
{
    gc *g = user;
    known_run *run = tkc_arena_zalloc(&g->arena, sizeof *run, err);
    if (!run)
        return false;
    int64_t life = tke_row_i64(row, 1);
    run->finished = life == TKE_RUN_UNLOADED || tke_row_i64(row, 2) != 0;
    run->silent_us = g->now_us - tke_row_i64(row, 3);
    return tkc_map_set(&g->runs, tke_row_text(row, 0), run, NULL, err);
}

static bool checkpoint_row(const tke_row *row, void *user, tinkc_error *err)
{
    gc *g = user;
    int64_t kind = tke_row_i64(row, 1), expires_us = tke_row_i64(row, 4);
    known_checkpoint *c = tkc_arena_zalloc(&g->arena, sizeof *c, err);
    tinkc_str run = tke_row_text(row, 0), name = tke_row_text(row, 2);
    if (!c || kind < 0 || kind > TKE_CKPT_EXTERNAL)
        return !tkc_failed(err);
    c->is_public = tke_row_i64(row, 3) != 0;
    c->expired = expires_us && expires_us <= g->now_us;
    char *key = tkc_arena_printf(&g->arena, err, "%.*s/%s/%.*s", (int)run.len, run.data,
                                 tke_kind_name((int32_t)kind), (int)name.len, name.data);
    return key && tkc_map_set(&g->checkpoints, tkc_str(key), c, NULL, err);
}

/* Rows have absolute paths, and the store may have been moved since: what counts is behind "/runs/". */
static bool sampler_row(const tke_row *row, void *user, tinkc_error *err)
{
    gc *g = user;
    char *path = tkc_arena_str(&g->arena, tke_row_text(row, 0), err);
    const char *part = NULL;
    for (const char *at = path; at && (at = strstr(at, "/runs/")); at++)
        part = at + 6;
    return !part || tkc_map_set(&g->samplers, tkc_str(part), g, NULL, err);
}

static bool read_rows(gc *g)
{
    return tke_store_query(g->store,
                           "SELECT r.id, r.state, n.finished IS NOT NULL, r.last_request_us FROM "
                           "runs r LEFT JOIN session_notes n ON n.id = r.session_id",
                           run_row, g, g->err, "") &&
           tke_store_query(g->store, "SELECT run_id, kind, name, public, expires_us FROM checkpoints",
                           checkpoint_row, g, g->err, "") &&
           tke_store_query(g->store, "SELECT model_path FROM samplers WHERE ephemeral = 1",
                           sampler_row, g, g->err, "");
}

/* ---- removing ---- */

static bool remove_row(gc *g, const char *run, int32_t kind, const char *name)
{
    tke_txn *txn = tke_txn_new(g->store, g->err);
    tke_txn_exec(txn, "DELETE FROM checkpoints WHERE run_id = ? AND kind = ? AND name = ?", "tit",
                 run, (int64_t)kind, name);
    tke_txn_commit(txn, NULL, NULL);
    tke_store_sync(g->store);
    return !tkc_failed(g->err);
}

static bool remove_path(gc *g, const char *path)
{
    if (!tkc_is_dir(path))
        return tkc_remove_tree(path, g->err);
    char *temp = tke_store_temp(g->store, &g->arena, g->err);
    return temp && tke_store_move(g->store, path, temp, g->err) && tkc_remove_tree(temp, g->err);
}

/* Reports one thing, and removes it if it goes and that is wanted. path: below the store. */
static bool handle(gc *g, const char *run, const char *path, int32_t kind, const char *why)
{
    char *full = tkc_path_join(&g->arena, g->folder, path, g->err);
    struct stat st;
    if (!full || lstat(full, &st) != 0)
        return !tkc_failed(g->err); /* it went meanwhile */
    tinkc_store_item item = { .run_id = run, .path = path, .why = why, .kind = kind, .goes = why != NULL };
    item.bytes = S_ISDIR(st.st_mode) ? tke_folder_bytes(full) : (int64_t)st.st_size;
    if (g->report)
        g->report(&item, g->user);
    return !why || !g->o->remove || remove_path(g, full);
}

/* ---- runs ---- */

/* The number of the request that comes after a state; 0 = there is no complete one. */
static int64_t state_number(gc *g, const char *folder)
{
    tinkc_error err = { 0 };
    tinkc_str key;
    tkc_json j;
    int64_t number = 0;
    char *mark = tkc_path_join(&g->arena, folder, "checkpoint_complete", &err);
    char *path = tkc_path_join(&g->arena, folder, "train_state.json", &err);
    if (!mark || !path || !tkc_is_file(mark) || !tkc_is_file(path))
        return 0;
    tinkc_bytes text = tkc_read_file(&g->arena, path, 1 << 20, &err);
    tkc_json_open(&j, tkc_strn((const char *)text.data, text.len), &g->arena, &err);
    for (bool in = tkc_json_object(&j); in && tkc_json_key(&j, &key);) {
        if (tkc_str_is(key, "next_seq_id"))
            number = tkc_json_i64(&j);
        else
            tkc_json_skip(&j);
    }
    return tkc_failed(&err) ? 0 : number;
}

typedef struct visit { /* to the folder of a run */
    gc *g;
    const char *id, *path; /* path: full */
    const known_run *run;  /* NULL: the database does not know it */
    const char *finished;  /* why its image is not needed; NULL = it is */
    int64_t newest_saved;  /* state_number of the newest training checkpoint */
    bool has_journal;
} visit;

typedef bool entry_fn(visit *, const char *name);

static bool each_entry(visit *v, const char *part, entry_fn *fn)
{
    char *path = part ? tkc_path_join(&v->g->arena, v->path, part, v->g->err) : NULL;
    DIR *dir = path ? opendir(path) : NULL;
    bool ok = true;
    for (struct dirent *e; dir && ok && (e = readdir(dir));)
        if (e->d_name[0] != '.')
            ok = fn(v, e->d_name);
    if (dir)
        closedir(dir);
    return ok && !tkc_failed(v->g->err);
}

static bool note_saved(visit *v, const char *name)
{
    char *path = tkc_arena_printf(&v->g->arena, v->g->err, "%s/weights/%s", v->path, name);
    int64_t number = path ? state_number(v->g, path) : 0;
    if (number > v->newest_saved)
        v->newest_saved = number;
    return true;
}

static bool is_step(const char *name)
{
    size_t digits = strspn(name, "0123456789");
    return digits > 0 && name[digits] == '\0';
}

static const char *why_checkpoint(visit *v, int32_t kind, const char *name, const char *key)
{
    const known_checkpoint *c = tkc_map_get(&v->g->checkpoints, tkc_str(key));
    char *last = tkc_arena_printf(&v->g->arena, v->g->err, "%s/%s/final", v->id, tke_kind_name(kind));
    if (!c || !last)
        return NULL;
    if (c->expired)
        return "its time is over";
    bool step = is_step(name) && tkc_map_has(&v->g->checkpoints, tkc_str(last));
    return v->g->o->steps && step && !c->is_public ? "a step of a run that has a final one" : NULL;
}

static bool one_checkpoint(visit *v, int32_t kind, const char *name)
{
    gc *g = v->g;
    char *key = tkc_arena_printf(&g->arena, g->err, "%s/%s/%s", v->id, tke_kind_name(kind), name);
    char *path = key ? tkc_arena_printf(&g->arena, g->err, "runs/%s", key) : NULL;
    /* Of a run that the database does not know nothing goes: its rows may be lost, and a repair
     * makes them again from the files. */
    const char *why = path && v->run ? why_checkpoint(v, kind, name, key) : NULL;
    return path && handle(g, v->id, path, TINKC_STORE_CHECKPOINT, why) &&
           (!why || !g->o->remove || remove_row(g, v->id, kind, name));
}

static bool training_entry(visit *v, const char *name)
{
    return one_checkpoint(v, TKE_CKPT_TRAINING, name);
}

static bool sampler_entry(visit *v, const char *name)
{
    return one_checkpoint(v, TKE_CKPT_SAMPLER, name);
}

static bool external_entry(visit *v, const char *name)
{
    return one_checkpoint(v, TKE_CKPT_EXTERNAL, name);
}

static bool ephemeral_entry(visit *v, const char *name)
{
    gc *g = v->g;
    char *key = tkc_arena_printf(&g->arena, g->err, "%s/ephemeral/%s", v->id, name);
    char *path = key ? tkc_arena_printf(&g->arena, g->err, "runs/%s", key) : NULL;
    bool known = key && tkc_map_has(&g->samplers, tkc_str(key));
    const char *why = v->finished ? v->finished : known || !v->run ? NULL : "no sampler uses it";
    return path && handle(g, v->id, path, TINKC_STORE_SAMPLER, why);
}

static bool one_part(visit *v, const char *part, int32_t kind, const char *why)
{
    char *path = tkc_arena_printf(&v->g->arena, v->g->err, "runs/%s/%s", v->id, part);
    return path && handle(v->g, v->id, path, kind, why);
}

/* An image goes if a state that is as new is there, and no request waits in a journal: one without an
 * answer may need the older state. */
static const char *why_image(visit *v, int64_t number, int64_t other)
{
    if (v->finished || !v->run)
        return v->finished;
    bool newer = number && (v->newest_saved >= number || other > number);
    return newer && !v->has_journal ? "a newer state is there" : NULL;
}

static bool is_filled(visit *v, const char *name)
{
    struct stat st;
    char *path = tkc_path_join(&v->g->arena, v->path, name, v->g->err);
    return path && stat(path, &st) == 0 && st.st_size > 0;
}

static bool visit_images(visit *v)
{
    gc *g = v->g;
    char *one = tkc_path_join(&g->arena, v->path, "image.0", g->err);
    char *two = tkc_path_join(&g->arena, v->path, "image.1", g->err);
    if (!one || !two)
        return false;
    int64_t first = state_number(g, one), second = state_number(g, two);
    return one_part(v, "image.0", TINKC_STORE_IMAGE, why_image(v, first, second)) &&
           one_part(v, "image.1", TINKC_STORE_IMAGE, why_image(v, second, first));
}

/* Requests of a silent run are refused from here on, as those of an unloaded model are. */
static bool finish_run(gc *g, const char *id)
{
    tke_txn *txn = tke_txn_new(g->store, g->err);
    tke_txn_exec(txn, "UPDATE runs SET state = ? WHERE id = ?", "it", (int64_t)TKE_RUN_UNLOADED, id);
    tke_txn_commit(txn, NULL, NULL);
    tke_store_sync(g->store);
    return !tkc_failed(g->err);
}

static bool visit_run(gc *g, const char *id)
{
    visit v = { .g = g, .id = id };
    v.path = tkc_arena_printf(&g->arena, g->err, "%s/runs/%s", g->folder, id);
    v.run = tkc_map_get(&g->runs, tkc_str(id));
    if (!v.path)
        return false;
    if (v.run && v.run->finished)
        v.finished = "its run is finished";
    else if (v.run && g->o->silent_s && v.run->silent_us > g->o->silent_s * 1000000)
        v.finished = "its client has been silent for long";
    if (v.finished && g->o->remove && !v.run->finished && !finish_run(g, id))
        return false;
    v.has_journal = is_filled(&v, "journal");
    return each_entry(&v, "weights", note_saved) && visit_images(&v) &&
           one_part(&v, "journal", TINKC_STORE_OTHER, v.finished) &&
           one_part(&v, "results", TINKC_STORE_OTHER, v.finished) &&
           each_entry(&v, "ephemeral", ephemeral_entry) &&
           each_entry(&v, "weights", training_entry) &&
           each_entry(&v, "sampler_weights", sampler_entry) &&
           each_entry(&v, "external_weights", external_entry);
}

/* ---- the rest ---- */

static bool each_below(gc *g, const char *part, bool (*fn)(gc *, const char *name))
{
    char *path = tkc_path_join(&g->arena, g->folder, part, g->err);
    DIR *dir = path ? opendir(path) : NULL;
    bool ok = true;
    for (struct dirent *e; dir && ok && (e = readdir(dir));)
        if (e->d_name[0] != '.')
            ok = fn(g, e->d_name);
    if (dir)
        closedir(dir);
    return ok && !tkc_failed(g->err);
}

static bool temporary(gc *g, const char *name)
{
    char *path = tkc_arena_printf(&g->arena, g->err, "tmp/%s", name);
    return path && handle(g, NULL, path, TINKC_STORE_OTHER, "left by an interrupted write");
}

static bool set_aside(gc *g, const char *name)
{
    char *path = tkc_arena_printf(&g->arena, g->err, "damaged/%s", name);
    return path && handle(g, NULL, path, TINKC_STORE_OTHER, NULL);
}

static bool database(gc *g)
{
    static const char *const files[] = { "meta.db", "meta.db-wal", "meta.db-shm" };
    bool ok = true;
    for (size_t i = 0; ok && i < 3; i++)
        ok = handle(g, NULL, files[i], TINKC_STORE_DATABASE, NULL);
    return ok;
}

static bool check_options(const char *folder, const tinkc_store_gc_options *o, tinkc_error *err)
{
    if (!folder || !*folder || !tkc_all_zero(o->reserved, sizeof o->reserved) ||
        !tkc_all_zero(o->reserved_bools, sizeof o->reserved_bools) || o->silent_s < 0 ||
        o->silent_s > INT64_MAX / 1000000)
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "folder is required, silent_s must be positive, reserved fields zero");
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/meta.db", folder);
    return tkc_is_file(path) ||
           tkc_fail(err, TINKC_E_NOT_FOUND, "%s is not a store: it has no meta.db", folder);
}

bool tinkc_store_gc(const char *folder, const tinkc_store_gc_options *options,
                    tinkc_store_item_fn *report, void *user, tinkc_error *err)
{
    static const tinkc_store_gc_options none;
    static const tkc_log silent = { 0 };
    const tinkc_store_gc_options *o = options ? options : &none;
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_options(folder, o, err))
        return false;
    gc g = { .folder = folder, .o = o, .report = report, .user = user, .err = err };
    g.now_us = tkc_wall_us(tkc_clock_real());
    tkc_arena_init(&g.arena, NULL, 0);
    tkc_map *maps[] = { &g.runs, &g.checkpoints, &g.samplers };
    for (size_t i = 0; i < 3; i++)
        tkc_map_init(maps[i], NULL);
    /* Looking takes no lock, so it works beside a server that has the store open; removing needs
     * the store for itself. */
    g.store = o->remove ? tke_store_open(NULL, &silent, folder, err)
                        : tke_store_look(NULL, &silent, folder, err);
    /* To open a store for removing empties tmp/, so there is nothing to report of it then. */
    if (g.store && read_rows(&g))
        (void)(each_below(&g, "runs", visit_run) && each_below(&g, "damaged", set_aside) &&
               (o->remove || each_below(&g, "tmp", temporary)) && database(&g));
    tke_store_close(g.store);
    for (size_t i = 0; i < 3; i++)
        tkc_map_free(maps[i]);
    tkc_arena_free(&g.arena);
    return !tkc_failed(err);
}
