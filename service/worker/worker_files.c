/* worker_files.c - the worker's disk operations: models are created, saved, loaded, put to sleep.
 *
 * The worker copies what has to be written and continues; one thread writes all files. A folder is
 * written under a temporary name, synced, renamed into place, recorded in the store, and only then
 * reported to the client: keep this order, it is what makes a save durable. Until then its
 * checkpoint is "pending": the name is taken, but clients cannot see it.
 */
#include <assert.h>
#include <stdio.h>

#include "base/file.h"
#include "service/core/base_models.h"
#include "service/core/registry.h"
#include "service/core/runs.h"
#include "service/core/samplers.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/service_state.h"
#include "service/core/sessions.h"
#include "service/core/tenants.h"
#include "service/core/usage.h"
#include "service/handlers/handler_call.h"
#include "service/store/age_files.h"
#include "service/store/checksums.h"
#include "service/store/failpoint.h"
#include "service/store/journal.h"
#include "service/store/run_source.h"
#include "service/worker/jobs.h"
#include "service/worker/worker.h"
#include "service/worker/worker_files.h"
#include "service/worker/worker_memory.h"
#include "service/worker/worker_state.h"

/* ---- memory ---- */

/* How long a model waits for memory before models that have work must yield. */
static const int64_t long_enough_ns = 2000000000;

/* Locks: needs svc->lock. Drops the least recently used snapshot among those that are also on disk;
 * false if there is none. */
static bool evict_snapshot(tke_service *svc)
{
    tke_checkpoint *c;
    tke_sampler *s;
    tke_snapshot **oldest = NULL;
    int64_t used_ms = INT64_MAX;
    for (size_t at = 0; (c = tke_next_checkpoint(svc, &at));) {
        if (c->snapshot && c->state == TKE_CKPT_DONE && c->used_ms < used_ms) {
            oldest = &c->snapshot;
            used_ms = c->used_ms;
        }
    }
    for (size_t at = 0; (s = tke_next_sampler(svc, &at));) {
        if (s->snapshot && s->spill && s->used_ms < used_ms) {
            oldest = &s->snapshot;
            used_ms = s->used_ms;
        }
    }
    if (!oldest)
        return false;
    tke_held_sub(svc, TKE_HELD_SNAPSHOTS, tke_snapshot_bytes(*oldest));
    tke_snapshot_drop(*oldest);
    *oldest = NULL;
    return true;
}

/* Locks: needs svc->lock. Asks the least recently served idle model to go to sleep. */
static void ask_to_sleep(tke_service *svc)
{
    tke_run *run;
    tke_run *idle = NULL;
    for (size_t at = 0; (run = tke_next_run(svc, &at));) {
        if (run->is.memory == TKE_RUN_AWAKE && !run->queue && !run->create &&
            (!idle || run->served < idle->served))
            idle = run;
    }
    if (idle)
        tke_run_on(idle, TKE_ON_ASKED_TO_SLEEP);
}

/* Locks: needs svc->lock. If `waiting` has waited long, asks the least recently served model that
 * has work to sleep; it wakes at its next turn. One at a time, and only if no model is about to
 * sleep anyway. A yielding model runs nothing more: otherwise its image would never be current. */
static void ask_to_give_way(tke_service *svc, const tke_run *waiting)
{
    tke_run *run;
    tke_run *busy = NULL;
    if (waiting->is.memory != TKE_RUN_WAITING ||
        tkc_monotonic_ns() - waiting->room_since_ns < long_enough_ns)
        return;
    for (size_t at = 0; (run = tke_next_run(svc, &at));) {
        if (tke_run_goes_to_sleep(run->is))
            return;
        if (run->adapter && !run->create && !run->loaded && run->is.image != TKE_IMAGE_FAILED &&
            (!busy || run->served < busy->served))
            busy = run;
    }
    if (busy)
        tke_run_on(busy, TKE_ON_ASKED_TO_YIELD);
}

bool tke_models_full(tke_service *svc, bool staying)
{
    const tke_run *run;
    int64_t n = 0;
    for (size_t at = 0; (run = tke_next_run(svc, &at));) {
        n += run->adapter && !(staying && tke_run_goes_to_sleep(run->is));
    }
    return svc->set.max_models && n >= svc->set.max_models;
}

/* True if max_models allows one more model in memory. If not, an idle one is asked to sleep, unless
 * one that is already going to sleep makes the room. */
static bool room_for_model(tke_service *svc)
{
    pthread_mutex_lock(&svc->lock);
    bool full = tke_models_full(svc, false);
    if (full && tke_models_full(svc, true))
        ask_to_sleep(svc);
    pthread_mutex_unlock(&svc->lock);
    return !full;
}

bool tke_work_room(tke_service *svc, size_t bytes)
{
    bool fits;
    pthread_mutex_lock(&svc->lock);
    do {
        fits = tke_held_weights(svc) + bytes <= (size_t)svc->set.memory_bytes;
    } while (!fits && evict_snapshot(svc));
    if (!fits)
        ask_to_sleep(svc);
    pthread_mutex_unlock(&svc->lock);
    return fits;
}

void tke_work_forget_snapshots(tke_service *svc)
{
    pthread_mutex_lock(&svc->lock);
    while (evict_snapshot(svc))
        ;
    pthread_mutex_unlock(&svc->lock);
}

void tke_work_snapshot_room(tke_service *svc, size_t bytes)
{
    (void)tke_work_room(svc, bytes);
    pthread_mutex_lock(&svc->lock);
    while (tke_held_bytes(svc, TKE_HELD_SNAPSHOTS) + bytes >
               (size_t)svc->set.snapshot_memory_bytes &&
           evict_snapshot(svc))
        ;
    pthread_mutex_unlock(&svc->lock);
}

static void set_adapter(tke_service *svc, tke_run *run, tke_adapter *adapter)
{
    pthread_mutex_lock(&svc->lock);
    assert(adapter && !run->adapter && run->adapter_bytes == 0);
    run->adapter = adapter;
    tke_run_on(run, TKE_ON_LOADED);
    run->adapter_bytes = tke_adapter_bytes(run->base->model, &run->spec);
    tke_held_add(svc, TKE_HELD_ADAPTERS, run->adapter_bytes);
    pthread_mutex_unlock(&svc->lock);
}

static void release_adapter(tke_service *svc, tke_run *run)
{
    tke_adapter_free(run->adapter);
    pthread_mutex_lock(&svc->lock);
    run->adapter = NULL;
    tke_run_on(run, TKE_ON_RELEASED);
    tke_run_on(run, TKE_ON_IMAGE_DROPPED); /* a released adapter is on disk, or unloaded */
    assert(run->adapter_bytes > 0);
    tke_held_sub(svc, TKE_HELD_ADAPTERS, run->adapter_bytes);
    run->adapter_bytes = 0;
    svc->worker->room_changes++;
    pthread_mutex_unlock(&svc->lock);
}

/* ---- creating and waking ---- */

/* Loads the newest state on disk, if any. Tries twice: the folder may be moved during the first
 * try. */
static bool load_source(tke_service *svc, tke_run *run, tke_adapter *adapter, tinkc_error *err)
{
    bool done = false;
    for (int tries = 0; tries < 2 && !done; tries++) {
        tinkc_error why = { 0 };
        pthread_mutex_lock(&svc->lock);
        char *source = tke_copy(svc, run->source, &why);
        pthread_mutex_unlock(&svc->lock);
        done = !tkc_failed(&why) && (!source || (tke_sums_check(source, &why) &&
                                                 tke_adapter_load(adapter, source, true, &why)));
        if (source)
            tkc_release_str(svc->a, source);
        if (!done && tries) /* a server error, never the client's fault */
            tkc_fail(err, TINKC_E_STORE,
                     "the stored state of this run cannot be read: %.300s; load a checkpoint "
                     "(load_weights) to continue",
                     why.message);
    }
    return done;
}

bool tke_work_wake(tke_service *svc, tke_run *run, bool from_scratch, tinkc_error *err)
{
    assert(!run->adapter);
    if (!run->base)
        return tkc_fail(err, TINKC_E_SERVER, "the base model '%.150s' is not available here now",
                        run->base_model);
    if (run->is.life == TKE_RUN_FAILED)
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "this model could not be made: %.200s",
                        run->error ? run->error : "");
    if (!room_for_model(svc) ||
        !tke_work_room(svc, tke_adapter_bytes(run->base->model, &run->spec))) {
        pthread_mutex_lock(&svc->lock);
        ask_to_give_way(svc, run);
        pthread_mutex_unlock(&svc->lock);
        return false;
    }
    tke_adapter *adapter = tke_adapter_new(svc->device, run->base->model, &run->spec, err);
    if (adapter && !from_scratch && !load_source(svc, run, adapter, err)) {
        tke_adapter_free(adapter);
        adapter = NULL;
    }
    if (!adapter)
        return false;
    set_adapter(svc, run, adapter);
    return true;
}

static void record_state(tke_service *svc, const tke_run *run)
{
    tinkc_error err = { 0 };
    tke_txn *txn = tke_txn_new(svc->store, &err);
    pthread_mutex_lock(&svc->lock);
    tke_run_store(txn, run); /* the front thread may not have written it yet */
    tke_txn_exec(txn, "UPDATE runs SET state = ?, error = ?, corrupted = ? WHERE id = ?", "itit",
                 tke_run_stored_life(run->is), run->error, (int64_t)run->corrupted, run->id);
    pthread_mutex_unlock(&svc->lock);
    tke_txn_commit(txn, NULL, NULL);
}

static void run_made(tke_service *svc, tke_run *run, const tinkc_error *err)
{
    tinkc_error ignored = { 0 };
    pthread_mutex_lock(&svc->lock);
    run->create = NULL;
    tke_run_on(run, TKE_ON_ROOM_SETTLED);
    tke_run_on(run, tkc_failed(err) ? TKE_ON_NOT_MADE : TKE_ON_MADE);
    if (tkc_failed(err) && !run->error)
        run->error = tke_copy(svc, err->message, &ignored);
    pthread_mutex_unlock(&svc->lock);
    record_state(svc, run);
}

void tke_work_create(tke_service *svc, tke_job *job)
{
    tke_run *run = job->run;
    tinkc_error err = { 0 };
    tkc_buf out;
    if (!tke_work_wake(svc, run, false, &err) && !tkc_failed(&err)) {
        tke_work_wait_room(svc, run, job);
        return;
    }
    tkc_buf_init(&out, svc->a, TKC_BUF_NO_MAX);
    run_made(svc, run, &err);
    if (!tkc_failed(&err) &&
        tkc_message_encode(&tkc_create_model_result_type,
                           &(tkc_create_model_result){ .model_id = run->id }, &out, &err))
        tke_job_succeed(job, tkc_buf_view(&out));
    else
        tke_job_fail(job, &err);
    tkc_buf_free(&out);
}

static void unload_recorded(void *user, const tinkc_error *err)
{
    tke_job *job = user;
    if (tkc_failed(err)) { /* a restart would bring the run back */
        tke_job_fail(job, err);
        return;
    }
    /* Files go after the row: a crash between the two leaves files that the next start removes, and
     * not a run without its state. */
    tke_run_remove_files(job->svc, job->run);
    tke_job_complete(job);
}

void tke_work_unload(tke_service *svc, tke_job *job)
{
    tke_run *run = job->run;
    tinkc_error err = { 0 };
    if (run->adapter)
        release_adapter(svc, run);
    pthread_mutex_lock(&svc->lock);
    tke_run_on(run, TKE_ON_UNLOADED);
    run->dirty_since_ms = 0;
    pthread_mutex_unlock(&svc->lock);
    if (!tkc_message_encode(&tkc_unload_model_result_type,
                            &(tkc_unload_model_result){ .model_id = run->id }, &job->result,
                            &err)) {
        tke_job_fail(job, &err);
        return;
    }
    tke_txn *txn = tke_txn_new(svc->store, &err);
    tke_txn_exec(txn, "UPDATE runs SET state = ? WHERE id = ?", "it", tke_run_stored_life(run->is),
                 run->id);
    tke_txn_commit(txn, unload_recorded, job);
}

/* ---- writing, on the file thread ---- */

bool tke_image_under_way(const tke_service *svc)
{
    return svc->worker->n_images > 0;
}

void tke_file_work_wait(tke_service *svc)
{
    pthread_mutex_lock(&svc->lock);
    while (svc->worker->n_file_work)
        pthread_cond_wait(&svc->idle, &svc->lock);
    pthread_mutex_unlock(&svc->lock);
}

void tke_file_work_begin(tke_service *svc)
{
    pthread_mutex_lock(&svc->lock);
    svc->worker->n_file_work++;
    pthread_mutex_unlock(&svc->lock);
}

void tke_file_work_end(tke_service *svc)
{
    pthread_mutex_lock(&svc->lock);
    assert(svc->worker->n_file_work > 0);
    svc->worker->n_file_work--;
    pthread_cond_broadcast(&svc->idle);
    pthread_mutex_unlock(&svc->lock);
}

typedef struct writing {
    tkc_job base;
    tke_service *svc;
    tke_run *run;
    tke_job *job;               /* NULL for images, except those that a load waits for */
    tke_checkpoint *checkpoint; /* NULL for images and spills */
    tke_checkpoint *replaced;   /* the previous checkpoint of this name */
    tke_sampler *sampler;       /* of a spill */
    tke_state *state;           /* exactly one of state and snapshot */
    tke_snapshot *snapshot;
    tkc_arena arena;
    char *temp, *target;
    tinkc_str metadata; /* of a named checkpoint; borrowed from the job */
    int64_t next_seq, n_passes, n_pass_tokens, n_failed_passes;
    int64_t created_us, expires_us;
    int32_t slot;
    bool recorded; /* the job's row is committed */
    tinkc_error err;
} writing;

static writing *writing_new(tke_service *svc, tke_run *run, tinkc_error *err)
{
    writing *w = tkc_zalloc(svc->a, sizeof *w, err);
    if (!w)
        return NULL;
    tkc_arena_init(&w->arena, svc->a, 0);
    w->svc = svc;
    w->run = run;
    pthread_mutex_lock(&svc->lock);
    w->next_seq = run->next_seq;
    pthread_mutex_unlock(&svc->lock);
    /* Without the lock: only this thread, the worker's, changes them. */
    w->n_passes = run->n_passes;
    w->n_pass_tokens = run->n_pass_tokens;
    w->n_failed_passes = run->n_failed_passes;
    w->created_us = tkc_wall_us(svc->clock);
    tke_file_work_begin(svc);
    return w;
}

/* After a failure: the partial folder. After an exchange: the replaced one. Often nothing. */
static void remove_temp(writing *w)
{
    tinkc_error ignored = { 0 };
    if (w->temp)
        tkc_remove_tree(w->temp, &ignored);
    w->temp = NULL;
}

static void writing_free(writing *w)
{
    remove_temp(w);
    tke_state_free(w->state);
    tke_snapshot_drop(w->snapshot);
    tkc_arena_free(&w->arena);
    tke_service *svc = w->svc;
    tkc_release(svc->a, w, sizeof *w);
    tke_file_work_end(svc);
}

/* Writes all that recovery needs to continue exactly from this state. */
static bool write_train_state(writing *w)
{
    tkc_buf out;
    tkc_jsonw j;
    tinkc_error *err = &w->err;
    const tke_run *run = w->run;
    const tke_adapter_spec *spec = tke_state_spec(w->state);
    char *path = tkc_path_join(&w->arena, w->temp, "train_state.json", err);
    tkc_buf_init(&out, w->svc->a, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&j, &out, err);
    tkc_jsonw_object(&j);
    const struct {
        const char *key;
        int64_t value;
    } numbers[] = { { "format", 1 },
                    { "next_seq_id", w->next_seq },
                    { "step", tke_state_step(w->state) },
                    { "rank", spec->rank },
                    { "train", (int64_t)spec->train },
                    { "seed", (int64_t)spec->seed },
                    { "num_fwdbwd", w->n_passes },
                    { "num_tokens", w->n_pass_tokens },
                    { "num_failed_fwdbwd", w->n_failed_passes },
                    { "created_us", w->created_us } };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        tkc_jsonw_key(&j, numbers[i].key);
        tkc_jsonw_i64(&j, numbers[i].value);
    }
    tkc_jsonw_key(&j, "alpha");
    tkc_jsonw_double(&j, spec->alpha);
    tkc_jsonw_key(&j, "base_model");
    tkc_jsonw_cstr(&j, run->base_model);
    tkc_jsonw_key(&j, "fingerprint");
    tkc_jsonw_cstr(&j, run->base->model->fingerprint);
    tkc_jsonw_end(&j);
    if (!tkc_failed(err) && path)
        tkc_write_file(path, out.data, out.len, 0600, err);
    tkc_buf_free(&out);
    return !tkc_failed(err);
}

/* Files for other tools are read by PEFT, which leaves out a layer whose name it does not know. The
 * cookbook reads archives, and external weights that it has encrypted for itself: in those the
 * output layer of a tied model has the name that it looks for. */
static int32_t choose_names(const writing *w)
{
    int32_t set = w->svc->set.adapter_names;
    const tke_base *base = atomic_load(&w->run->base);
    bool external = w->job && w->job->kind == TKE_JOB_EXTERNAL;
    bool plain = external && !(w->job->in.save_external.age_encryption_recipients &&
                               w->job->in.save_external.age_encryption_recipients[0]);
    bool hosted = set == TKE_NAMING_HOSTED ||
                  (set == TKE_NAMING_AUTO && !plain && base && tke_model_config(base->model)->tied);
    return hosted ? TKE_NAMES_HOSTED : TKE_NAMES_PEFT;
}

/* External weights are encrypted before their checksums are taken, if the request wants it. */
static bool encrypt_folder(writing *w)
{
    const char *const *recipients = w->job->in.save_external.age_encryption_recipients;
    return !recipients || !recipients[0] || tke_age_folder(w->temp, recipients, &w->err);
}

/* Training saves each step twice, to continue from and to sample from: the weights are the same file. */
static void share_weights(writing *w)
{
    const tke_checkpoint *c = w->checkpoint;
    tinkc_error ignored = { 0 };
    if (!c || c->kind == TKE_CKPT_EXTERNAL)
        return;
    int32_t other = c->kind == TKE_CKPT_SAMPLER ? TKE_CKPT_TRAINING : TKE_CKPT_SAMPLER;
    const char *folder =
        tke_checkpoint_folder(w->svc, &w->arena, c->run_id, other, c->name, &ignored);
    const char *theirs =
                   folder ? tkc_path_join(&w->arena, folder, TKE_WEIGHTS_FILE, &ignored) : NULL,
               *ours =
                   theirs ? tkc_path_join(&w->arena, w->temp, TKE_WEIGHTS_FILE, &ignored) : NULL;
    if (ours)
        tke_share_file(ours, theirs);
}

/* Writes and syncs the folder under its temporary name; nothing is visible yet. */
static bool write_folder(writing *w)
{
    tke_service *svc = w->svc;
    tinkc_error *err = &w->err;
    tke_adapter_save save = { .base_name = w->run->base_model,
                              .names = choose_names(w),
                              .dtype = w->state ? TKE_F32 : svc->set.adapter_dtype };
    /* What a client asked for may use the reserve too; images, which nobody asked for, leave it to
     * saves. */
    if (!tke_store_has_room(svc->store, w->job ? 0 : svc->set.disk_reserve))
        return tkc_fail(err, TINKC_E_STORE, "too little room on the disk");
    w->temp = tke_store_temp(svc->store, &w->arena, err);
    char *mark = w->temp ? tkc_path_join(&w->arena, w->temp, "checkpoint_complete", err) : NULL;
    if (!mark || !TKE_FAILPOINT("folder.begun", err))
        return false;
    bool ok = w->state ? tke_state_write(w->state, w->temp, &save, err) && write_train_state(w)
                       : tke_snapshot_write(w->snapshot, w->temp, &save, err);
    if (ok && w->metadata.len) {
        char *path = tkc_path_join(&w->arena, w->temp, TKE_METADATA_FILE, err);
        ok = path && tkc_write_file(path, w->metadata.data, w->metadata.len, 0600, err);
    }
    if (ok && w->job && w->job->kind == TKE_JOB_EXTERNAL)
        ok = encrypt_folder(w);
    if (ok)
        share_weights(w);
    /* Checksums come after the encryption, since readers check the files as they are; the mark
     * comes last, because recovery takes a folder with it for a complete one. */
    return ok && TKE_FAILPOINT("folder.tensors", err) && tke_sums_write(w->temp, err) &&
           tkc_write_file(mark, "", 0, 0600, err) && TKE_FAILPOINT("folder.marked", err) &&
           (!tke_store_durable(svc->store) || tke_sync_folder(w->temp, err));
}

static void submit(writing *w, void (*run)(tkc_job *))
{
    w->base.run = run;
    tinkc_error err = { 0 };
    if (!tkc_pool_submit(w->svc->files, &w->base, &err)) {
        w->err = err;
        run(&w->base); /* it checks w->err first */
    }
}

/* ---- named checkpoints ---- */

static bool encode_saved(writing *w)
{
    const char *path = w->checkpoint->path;
    tkc_buf_clear(&w->job->result);
    if (w->job->kind == TKE_JOB_EXTERNAL)
        return tkc_message_encode(&tkc_save_external_result_type,
                                  &(tkc_save_external_result){
                                      .path = path, .size_bytes = TKC_SOME(w->checkpoint->bytes) },
                                  &w->job->result, &w->err);
    if (w->job->kind == TKE_JOB_SAVE)
        return tkc_message_encode(&tkc_save_weights_result_type,
                                  &(tkc_save_weights_result){ .path = path }, &w->job->result,
                                  &w->err);
    return tkc_message_encode(&tkc_save_for_sampler_result_type,
                              &(tkc_save_for_sampler_result){ .path = path }, &w->job->result,
                              &w->err);
}

/* Undoes a save: removes its files and gives the name back to the previous checkpoint. */
static void save_failed(writing *w)
{
    tke_service *svc = w->svc;
    remove_temp(w); /* before the client gets the error */
    if (w->checkpoint) {
        pthread_mutex_lock(&svc->lock);
        tke_checkpoint_restore(svc, w->checkpoint, w->replaced);
        pthread_cond_signal(&svc->work);
        pthread_mutex_unlock(&svc->lock);
    }
    tke_job_fail(w->job, &w->err);
    writing_free(w);
}

/* Locks: needs svc->lock. The oldest checkpoint of a kind if there are more than keep_last_k, else
 * NULL. Public ones do not count and are never removed: other users may depend on them. */
static tke_checkpoint *one_too_many(tke_service *svc, const tke_run *run, int32_t kind)
{
    tke_checkpoint *c;
    tke_checkpoint *oldest = NULL;
    int64_t n = 0;
    for (size_t at = 0; (c = tke_next_checkpoint(svc, &at));) {
        if (c->run != run || c->kind != kind || c->state != TKE_CKPT_DONE || c->is_public)
            continue;
        n++;
        if (!oldest || c->created_us < oldest->created_us)
            oldest = c;
    }
    return n > svc->set.keep_last_k ? oldest : NULL;
}

static void keep_last(tke_service *svc, const tke_run *run, int32_t kind)
{
    for (tke_checkpoint *c = NULL; svc->set.keep_last_k > 0;) {
        pthread_mutex_lock(&svc->lock);
        if ((c = one_too_many(svc, run, kind)))
            tke_checkpoint_remove(svc, c);
        pthread_mutex_unlock(&svc->lock);
        if (!c)
            return;
        tke_checkpoint_delete(svc, c, NULL);
    }
}

/* Locks: needs svc->lock. The previous checkpoint of a name cannot return any more: its object stays
 * (see tke_checkpoint_add), its metadata need not. */
static void forget_metadata(tke_service *svc, tke_checkpoint *c)
{
    if (!c || !c->user_metadata)
        return;
    tkc_release_str(svc->a, c->user_metadata);
    c->user_metadata = NULL;
    tke_kept_give(svc, c->owner, &c->kept);
}

/* The run continues from what was saved, as it would from an image: so it needs none. */
static void continue_from(writing *w)
{
    tke_service *svc = w->svc;
    tinkc_error err = { 0 };
    pthread_mutex_lock(&svc->lock);
    /* It may have been deleted, or its name taken by another save, since the row was committed. */
    bool newest = w->checkpoint->state == TKE_CKPT_DONE &&
                  tke_source_take(svc, w->run, w->target, w->next_seq);
    pthread_mutex_unlock(&svc->lock);
    if (!newest || !TKE_FAILPOINT("checkpoint.source", &err))
        return;
    if (svc->set.durability == TINKC_DURABILITY_JOURNAL &&
        !tke_journal_trim(svc->store, w->run->id, w->next_seq, &err))
        tkc_log_line(&svc->log, TINKC_LOG_WARN, "%s: its journal stays: %s", w->run->id,
                     err.message);
    tke_images_remove(svc, w->run);
}

static void checkpoint_recorded(void *user, const tinkc_error *err)
{
    writing *w = user;
    tke_service *svc = w->svc;
    if (tkc_failed(err)) {
        tkc_error_copy(&w->err, err);
        tke_store_take_back(svc->store, w->temp, w->target);
        save_failed(w);
        return;
    }
    /* Before the answer: the client may load or sample what it saved at once. */
    pthread_mutex_lock(&svc->lock);
    tke_checkpoint_written(w->checkpoint);
    forget_metadata(svc, w->replaced);
    pthread_cond_signal(&svc->work);
    pthread_mutex_unlock(&svc->lock);
    if (w->checkpoint->kind == TKE_CKPT_TRAINING)
        continue_from(w);
    tke_usage_add(svc, w->run->owner, w->run->session->id, w->run->base_model, TKE_USE_CHECKPOINT,
                  1);
    tke_audit_add(svc, w->run->owner, "checkpoint_create", w->run->id, w->checkpoint->path, NULL);
    keep_last(svc, w->run, w->checkpoint->kind);
    tke_job_complete(w->job);
    writing_free(w);
}

void tke_checkpoint_store(tke_txn *txn, const tke_checkpoint *c)
{
    tke_txn_exec(txn,
                 "INSERT OR REPLACE INTO checkpoints(run_id, kind, name, owner, created_us, "
                 "bytes, public, expires_us, seq_id) VALUES(?, ?, ?, ?, ?, ?, 0, ?, ?)",
                 "tittiiii", c->run_id, (int64_t)c->kind, c->name, c->owner, c->created_us,
                 c->bytes, c->expires_us, c->seq_id);
}

/* One transaction records the checkpoint and the answer to its save, so a crash leaves both or
 * neither. */
static void write_checkpoint(tkc_job *base)
{
    writing *w = (writing *)base;
    tke_service *svc = w->svc;
    tke_checkpoint *c = w->checkpoint;
    tinkc_error err = { 0 };
    if (tkc_failed(&w->err) || !encode_saved(w) || !write_folder(w))
        goto failed;
    /* If the run continues from the folder that is replaced here, that one first becomes an image:
     * should this save fail, the run still has its state. */
    (void)tke_source_keep(svc, w->run, w->target, false, &w->err);
    if (tkc_failed(&w->err) || !tke_store_place(svc->store, w->temp, w->target, &w->err))
        goto failed;
    (void)TKE_FAILPOINT("checkpoint.placed", &err);
    pthread_mutex_lock(&svc->lock);
    c->bytes = tke_folder_bytes(w->target);
    c->created_us = tkc_wall_us(svc->clock);
    c->expires_us = w->expires_us ? c->created_us + w->expires_us : 0;
    pthread_mutex_unlock(&svc->lock);
    (void)encode_saved(w); /* again, now that the size is known */
    tke_txn *txn = tke_txn_new(svc->store, &err);
    tke_checkpoint_store(txn, c);
    tke_job_add_row(txn, w->job);
    tke_txn_commit(txn, checkpoint_recorded, w);
    return;
failed:
    save_failed(w);
}

/* Locks: needs svc->lock. What succeeded before a restart must succeed again. */
static bool take_metadata(tke_service *svc, const tke_job *job, tinkc_str metadata, size_t *kept,
                          tinkc_error *err)
{
    if (job->replayed)
        tke_kept_add(svc, job->run->owner, metadata.len, kept);
    else if (metadata.len > TKE_MAX_NOTE)
        return tkc_fail(err, TINKC_E_BAD_REQUEST,
                        "user_metadata has %zu bytes; at most %d are kept", metadata.len,
                        TKE_MAX_NOTE);
    else if (tke_kept_take(svc, job->run->owner, metadata.len, kept, err))
        return false;
    return true;
}

/* Reserves the name; NULL: w->err says why not. Locks: needs svc->lock. */
static tke_checkpoint *take_name(tke_service *svc, tke_job *job, int32_t kind, const char *name,
                                 bool overwrite, writing *w, bool *done_before)
{
    char path[512];
    tinkc_error *err = &w->err;
    (void)snprintf(path, sizeof path, "tinker://%s/%s/%s", job->run->id, tke_kind_name(kind), name);
    tke_checkpoint *c = tke_find_checkpoint(svc, path, NULL);
    if (c && c->seq_id == job->seq && c->state == TKE_CKPT_DONE) {
        *done_before = true; /* saved before a crash; only the answer was lost */
        return c;
    }
    /* A folder from before a crash that does not record its seq_id was written by this very save:
     * had the save failed on the existing name then, it would not be repeated now. */
    bool own = c && c->seq_id == 0 && job->replayed;
    if (c && !overwrite && !own) {
        tkc_fail(err, TINKC_E_EXISTS, "Checkpoint '%s/%.200s' already exists", tke_kind_name(kind),
                 name);
        return NULL;
    }
    size_t kept = 0;
    if (!take_metadata(svc, job, w->metadata, &kept, err))
        return NULL;
    w->replaced = c;
    c = tke_checkpoint_add(svc, job->run->id, kind, name, err);
    if (!c)
        tke_kept_give(svc, job->run->owner, &kept);
    if (c) {
        c->kept = kept;
        c->seq_id = job->seq;
        if (w->metadata.len)
            c->user_metadata = tkc_copy_str(svc->a, w->metadata, err);
    }
    return c;
}

static void save_named(tke_service *svc, tke_job *job, int32_t kind, const char *name,
                       bool overwrite, tkc_opt_i64 ttl, tinkc_str metadata)
{
    tke_run *run = job->run;
    tinkc_error err = { 0 };
    bool done_before = false;
    writing *w = writing_new(svc, run, &err);
    if (!w) {
        tke_job_fail(job, &err);
        return;
    }
    w->job = job;
    w->metadata = metadata;
    w->expires_us = ttl.is == TKC_GIVEN ? ttl.value * 1000000 : 0;
    w->target = tke_checkpoint_folder(svc, &w->arena, run->id, kind, name, &w->err);
    if (kind == TKE_CKPT_TRAINING)
        w->state = tke_state_take(run->adapter, &w->err);
    else
        w->snapshot = tke_snapshot_take(run->adapter, &w->err);
    if (!tkc_failed(&w->err)) {
        pthread_mutex_lock(&svc->lock);
        w->checkpoint = take_name(svc, job, kind, name, overwrite, w, &done_before);
        pthread_mutex_unlock(&svc->lock);
    }
    if (done_before && encode_saved(w)) {
        tke_job_succeed(job, (tinkc_str){ 0 });
        writing_free(w);
    } else if (tkc_failed(&w->err)) {
        w->checkpoint = done_before ? NULL : w->checkpoint;
        save_failed(w);
    } else {
        submit(w, write_checkpoint);
    }
}

/* ---- deleting ----
 * On the file thread, so that a save under the same name runs entirely before or after. The folder
 * is moved away before its row is deleted: recovery adopts a folder that has no row. If the row
 * stays, the folder returns and the checkpoint is there again. */

typedef struct deleting {
    tkc_job base;
    tke_service *svc;
    tke_checkpoint *checkpoint;
    tinkc_reply *reply; /* NULL: no client waits */
    tkc_arena arena;
    char *folder, *temp;
    bool moved; /* from folder to temp */
} deleting;

/* Locks: needs svc->lock. Is the name still this checkpoint's? A new save may have taken it. */
static bool has_name(tke_service *svc, const tke_checkpoint *c)
{
    return tke_checkpoint_named(svc, c->path) == c;
}

/* False if the checkpoint is gone although its row stayed: the next start removes the row. What no
 * client waits for stays gone, or the housekeeper would find it due again without end. */
static bool put_back(deleting *d)
{
    tke_service *svc = d->svc;
    tinkc_error ignored = { 0 };
    pthread_mutex_lock(&svc->lock); /* also while it moves: a save must not take the name before */
    bool back = d->reply && has_name(svc, d->checkpoint);
    if (back && d->moved)
        tke_store_move(svc->store, d->temp, d->folder, &ignored);
    back = back && (!d->folder || tkc_is_dir(d->folder)); /* it may have become an image */
    if (back)
        d->checkpoint->state = TKE_CKPT_DONE;
    pthread_mutex_unlock(&svc->lock);
    return back;
}

static void delete_recorded(void *user, const tinkc_error *err)
{
    deleting *d = user;
    tke_service *svc = d->svc;
    tke_checkpoint *c = d->checkpoint;
    tinkc_error ignored = { 0 };
    bool kept = tkc_failed(err) && put_back(d);
    pthread_mutex_lock(&svc->lock);
    if (!kept)
        forget_metadata(svc, c);
    pthread_mutex_unlock(&svc->lock);
    if (d->temp)
        tkc_remove_tree(d->temp, &ignored);
    if (tkc_failed(err))
        tkc_log_line(&svc->log, TINKC_LOG_WARN, "%s: its row was not deleted: %s", c->path,
                     err->message);
    if (d->reply && !kept)
        tke_audit_add(svc, c->owner, "checkpoint_delete", c->run_id, c->path, NULL);
    if (d->reply && kept)
        tke_send_failure(d->reply, svc->a, err);
    else if (d->reply)
        tke_send(d->reply, 204, NULL, (tinkc_str){ 0 });
    tkc_arena_free(&d->arena);
    tkc_release(svc->a, d, sizeof *d);
    tke_file_work_end(svc);
}

/* After it no folder has the checkpoint's name. */
static bool move_away(deleting *d, tinkc_error *err)
{
    tke_service *svc = d->svc;
    const tke_checkpoint *c = d->checkpoint;
    d->folder = tke_checkpoint_folder(svc, &d->arena, c->run_id, c->kind, c->name, err);
    d->temp = d->folder ? tke_store_temp(svc->store, &d->arena, err) : NULL;
    if (!d->temp)
        return false;
    if (!tkc_is_dir(d->folder) || tke_source_keep(svc, c->run, d->folder, true, err))
        return true;
    d->moved = !tkc_failed(err) && tke_store_move(svc->store, d->folder, d->temp, err);
    return d->moved;
}

static void delete_folder(tkc_job *base)
{
    deleting *d = (deleting *)base;
    tke_service *svc = d->svc;
    tke_checkpoint *c = d->checkpoint;
    tinkc_error err = { 0 };
    pthread_mutex_lock(&svc->lock);
    bool current = has_name(svc, c);
    pthread_mutex_unlock(&svc->lock);
    if (current && !move_away(d, &err)) {
        delete_recorded(d, &err);
        return;
    }
    (void)TKE_FAILPOINT("delete.moved", &err);
    tke_txn *txn = tke_txn_new(svc->store, &err);
    if (current)
        tke_txn_exec(txn, "DELETE FROM checkpoints WHERE run_id = ? AND kind = ? AND name = ?",
                     "tit", c->run_id, (int64_t)c->kind, c->name);
    tke_txn_commit(txn, delete_recorded, d);
}

void tke_checkpoint_delete(tke_service *svc, tke_checkpoint *c, tinkc_reply *reply)
{
    tinkc_error err = { 0 };
    deleting *d = tkc_zalloc(svc->a, sizeof *d, &err);
    if (!d) {
        if (reply)
            tke_send_failure(reply, svc->a, &err);
        return;
    }
    d->svc = svc;
    d->checkpoint = c;
    d->reply = reply;
    tkc_arena_init(&d->arena, svc->a, 0);
    d->base.run = delete_folder;
    tke_file_work_begin(svc);
    if (!tkc_pool_submit(svc->files, &d->base, &err))
        delete_folder(&d->base);
}

/* ---- ephemeral samplers ----
 * With a durable store the answer is sent after the sampler is on disk, so a client that knows its
 * name can continue sampling after a crash. If writing fails, the sampler stays in memory only and
 * the log says so. */

static bool encode_ephemeral(tke_job *job, const char *sampler_id, tinkc_error *err)
{
    return tkc_message_encode(&tkc_save_for_sampler_result_type,
                              &(tkc_save_for_sampler_result){ .sampling_session_id = sampler_id },
                              &job->result, err);
}

static void spill_recorded(void *user, const tinkc_error *err)
{
    writing *w = user;
    tke_service *svc = w->svc;
    tinkc_error ignored = { 0 };
    tkc_error_copy(&w->err, err);
    if (tkc_failed(&w->err))
        tkc_log_line(&svc->log, TINKC_LOG_WARN, "%s: not kept on disk: %s", w->sampler->id,
                     w->err.message);
    if (tkc_failed(err)) /* placed, but not recorded */
        tke_store_take_back(svc->store, w->temp, w->target);
    pthread_mutex_lock(&svc->lock);
    if (!tkc_failed(&w->err)) {
        if (w->sampler->spill) /* written again after a restart */
            tkc_release_str(svc->a, w->sampler->spill);
        w->sampler->spill = tke_copy(svc, w->target, &ignored);
    }
    assert(svc->worker->n_images > 0);
    svc->worker->n_images--;
    pthread_cond_broadcast(&svc->idle);
    pthread_mutex_unlock(&svc->lock);
    if (tkc_failed(&w->err))
        tke_job_succeed(w->job, (tinkc_str){ 0 });
    else
        tke_job_complete(w->job);
    writing_free(w);
}

static void write_spill(tkc_job *base)
{
    writing *w = (writing *)base;
    tke_service *svc = w->svc;
    tke_sampler *s = w->sampler;
    bool placed = !tkc_failed(&w->err) && write_folder(w) &&
                  tke_store_place(svc->store, w->temp, w->target, &w->err);
    tinkc_error none = { 0 };
    if (!placed) {
        spill_recorded(w, &none);
        return;
    }
    (void)TKE_FAILPOINT("spill.placed", &none);
    tke_txn *txn = tke_txn_new(svc->store, &none);
    tke_txn_exec(txn,
                 "INSERT OR REPLACE INTO samplers(id, session_id, seq, owner, base_model, "
                 "model_path, ephemeral, hash) VALUES(?, ?, ?, ?, ?, ?, 1, NULL)",
                 "ttittt", s->id, s->session->id, w->job->seq, s->owner, s->base_model, w->target);
    tke_job_add_row(txn, w->job);
    tke_txn_commit(txn, spill_recorded, w);
}

/* False: it stays in memory only, and the caller answers the job. */
static bool spill(tke_service *svc, tke_job *job, tke_sampler *s, const char *folder)
{
    tinkc_error err = { 0 };
    if (!tke_store_durable(svc->store) || svc->set.durability < TINKC_DURABILITY_SNAPSHOT)
        return false;
    writing *w = writing_new(svc, job->run, &err);
    if (!w)
        return false;
    w->job = job;
    w->sampler = s;
    w->snapshot = tke_snapshot_keep(s->snapshot);
    w->target = tkc_arena_cstr(&w->arena, folder, &w->err);
    pthread_mutex_lock(&svc->lock);
    svc->worker->n_images++;
    pthread_mutex_unlock(&svc->lock);
    submit(w, write_spill);
    return true;
}

static void save_ephemeral(tke_service *svc, tke_job *job, int64_t number)
{
    tke_run *run = job->run;
    tinkc_error err = { 0 };
    char id[128], part[64];
    (void)snprintf(id, sizeof id, "%.64s:sample:%lld", run->session->id, (long long)number);
    (void)snprintf(part, sizeof part, "ephemeral/%lld", (long long)number);
    const char *folder = tke_store_run_path(svc->store, &job->arena, run->id, part, &err);
    /* Taken before the lock: a copy of all weights takes long. */
    tke_snapshot *snapshot = tke_snapshot_take(run->adapter, &err);
    tke_work_snapshot_room(svc, snapshot ? tke_snapshot_bytes(snapshot) : 0);
    pthread_mutex_lock(&svc->lock);
    tke_sampler *s = snapshot ? tke_find_sampler(svc, id) : NULL;
    if (s && !(s->ephemeral && job->replayed)) /* else it is on disk, but its answer was lost */
        tkc_fail(&err, TINKC_E_BAD_REQUEST, "sampling_session_seq_id %lld is already in use",
                 (long long)number);
    if (!s && !tkc_failed(&err)) {
        s = tke_sampler_add(svc, id, run->owner, &err);
        if (s) {
            s->session = run->session;
            s->base = run->base;
            s->base_model = tke_copy(svc, run->base_model, &err);
            s->ephemeral = true;
        }
    }
    if (s && !tkc_failed(&err) && !s->snapshot) {
        s->snapshot = snapshot;
        s->used_ms = tkc_now_ms(svc->clock);
        tke_held_add(svc, TKE_HELD_SNAPSHOTS, tke_snapshot_bytes(snapshot));
        snapshot = NULL;
    }
    pthread_mutex_unlock(&svc->lock);
    tke_snapshot_drop(snapshot);
    if (tkc_failed(&err) || !encode_ephemeral(job, id, &err))
        tke_job_fail(job, &err);
    else if (!spill(svc, job, s, folder))
        tke_job_succeed(job, (tinkc_str){ 0 });
}

void tke_work_save(tke_service *svc, tke_job *job)
{
    if (tkc_failed(&job->invalid) || tke_work_refuse_lost(job)) {
        const tinkc_error why = job->invalid;
        tke_job_fail(job, &why);
        return;
    }
    if (job->kind == TKE_JOB_SAVE) {
        const tkc_save_weights_request in = job->in.save;
        save_named(svc, job, TKE_CKPT_TRAINING, in.path, in.overwrite, in.ttl_seconds,
                   in.user_metadata.json);
        return;
    }
    if (job->kind == TKE_JOB_EXTERNAL) {
        const tkc_save_external_request in = job->in.save_external;
        save_named(svc, job, TKE_CKPT_EXTERNAL, in.path, false, in.ttl_seconds, (tinkc_str){ 0 });
        return;
    }
    const tkc_save_for_sampler_request in = job->in.save_sampler;
    if (in.path)
        save_named(svc, job, TKE_CKPT_SAMPLER, in.path, in.overwrite.value, in.ttl_seconds,
                   in.user_metadata.json);
    else
        save_ephemeral(svc, job, in.sampling_session_seq_id.value);
}

/* ---- loading ---- */

/* Replaces the folder at the start of the message by the checkpoint's path, which clients know.
 * Returns false. */
static bool name_checkpoint(tinkc_error *err, const char *folder, const char *path)
{
    tinkc_error named = { 0 };
    if (!tkc_starts_with(tkc_str(err->message), folder))
        return false;
    tkc_fail(&named, err->code, "%.300s%s", path, err->message + strlen(folder));
    *err = named;
    return false;
}

static bool load_from(tke_service *svc, tke_job *job, tinkc_error *err)
{
    tke_run *run = job->run;
    int64_t expired_us;
    bool foreign = false;
    char *folder = NULL;
    const char *other_base = NULL;
    pthread_mutex_lock(&svc->lock);
    const tke_checkpoint *c = tke_find_checkpoint(svc, job->in.load.path, &expired_us);
    if (c) {
        foreign = !c->is_public && !tkc_cstr_eq(c->owner, run->owner);
        folder = tke_checkpoint_folder(svc, &job->arena, c->run_id, c->kind, c->name, err);
        if (c->run && !tkc_cstr_eq(c->run->base_model, run->base_model))
            other_base = c->run->base_model;
    }
    pthread_mutex_unlock(&svc->lock);
    if (!c)
        return tkc_fail(err, TINKC_E_NOT_FOUND, "Checkpoint '%.200s' %s", job->in.load.path,
                        expired_us ? "has expired" : "does not exist");
    if (foreign)
        return tkc_fail(err, TINKC_E_FORBIDDEN, "You do not have access to this checkpoint");
    if (other_base)
        return tkc_fail(err, TINKC_E_MODEL,
                        "the checkpoint is of '%.100s', this model is of '%.100s'", other_base,
                        run->base_model);
    /* Checked first: flipped bits in weights would train on without any error. */
    return folder && ((tke_sums_check(folder, err) &&
                       tke_adapter_load(run->adapter, folder, job->in.load.optimizer, err)) ||
                      name_checkpoint(err, folder, job->in.load.path));
}

static void audit_load(tke_service *svc, tke_job *job)
{
    const char *path = job->in.load.path, *run_id, *name;
    tinkc_error ignored = { 0 };
    int32_t kind;
    if (tke_path_split(&job->arena, path, &run_id, &kind, &name, &ignored))
        tke_audit_add(svc, job->run->owner, "checkpoint_read", run_id, path, "training");
}

/* The loaded checkpoint may be deleted or overwritten right after the load. So if a restart would
 * have to repeat the load, it is answered, and later requests run, only once an image contains
 * it. */
static bool needs_image(const tke_service *svc, const tke_job *job)
{
    return tke_store_durable(svc->store) &&
           (job->in.load.creates || svc->set.durability == TINKC_DURABILITY_JOURNAL);
}

static void answer_with_image(tke_service *svc, tke_job *job)
{
    pthread_mutex_lock(&svc->lock);
    assert(!job->run->loaded && job->run->adapter); /* no later request runs yet */
    job->run->loaded = job;
    tke_run_on(job->run, TKE_ON_IMAGE_ASKED); /* written at once, unless another is in progress */
    pthread_mutex_unlock(&svc->lock);
}

void tke_work_load(tke_service *svc, tke_job *job)
{
    tke_run *run = job->run;
    tinkc_error err = job->invalid;
    bool creates = job->in.load.creates;
    if (creates && !tkc_failed(&err) && !tke_work_wake(svc, run, false, &err) &&
        !tkc_failed(&err)) {
        tke_work_wait_room(svc, run, job);
        return;
    }
    bool loaded = !tkc_failed(&err) && load_from(svc, job, &err);
    if (loaded) {
        pthread_mutex_lock(&svc->lock);
        /* The client has chosen this state itself, so passes may continue from here, whatever was
         * lost before. */
        run->lost_from = 0;
        run->n_passes = run->n_pass_tokens = run->n_failed_passes = 0;
        tke_run_changed(svc, run, job->seq);
        pthread_mutex_unlock(&svc->lock);
        tkc_message_encode(
            &tkc_load_weights_result_type,
            &(tkc_load_weights_result){ .path = job->in.load.path, .model_id = run->id },
            &job->result, &err);
        audit_load(svc, job);
    }
    if (creates)
        run_made(svc, run, &err);
    if (creates && tkc_failed(&err) && run->adapter)
        release_adapter(svc, run); /* weights that nobody asked for must not be trained */
    if (tkc_failed(&err))
        tke_job_fail(job, &err);
    else if (needs_image(svc, job))
        answer_with_image(svc, job);
    else
        tke_job_succeed(job, (tinkc_str){ 0 });
}

/* ---- images ---- */

static void image_over(writing *w)
{
    tke_service *svc = w->svc;
    tke_run *run = w->run;
    bool ok = !tkc_failed(&w->err);
    remove_temp(w);
    if (!ok)
        tkc_log_line(&svc->log, TINKC_LOG_WARN, "%s: no image could be written: %s", run->id,
                     w->err.message);
    pthread_mutex_lock(&svc->lock);
    tke_run_on(run, ok ? TKE_ON_IMAGE_WRITTEN : TKE_ON_IMAGE_LOST);
    if (w->job)
        run->loaded = NULL;
    if (ok && tke_source_take(svc, run, w->target, w->next_seq)) {
        run->image_slot = 1 - w->slot;
        svc->worker->room_changes++;
    } else if (!ok) {
        if (tke_run_goes_to_sleep(run->is)) /* without an image it must stay in memory */
            tke_run_on(run, TKE_ON_STAYS);
        run->dirty_since_ms = tkc_now_ms(svc->clock); /* try again after the usual time */
    }
    pthread_mutex_unlock(&svc->lock);
    if (ok) /* the older one; before a flush that waits for it returns */
        tke_images_remove(svc, run);
    pthread_mutex_lock(&svc->lock);
    assert(svc->worker->n_images > 0);
    svc->worker->n_images--;
    pthread_cond_broadcast(&svc->idle);
    pthread_cond_signal(&svc->work);
    pthread_mutex_unlock(&svc->lock);
    if (w->job && w->recorded)
        tke_job_complete(w->job);
    else if (w->job)
        tke_job_succeed(w->job, (tinkc_str){ 0 });
    writing_free(w);
}

/* Called when every request that the image contains has its row. Only now may it replace an older
 * image: recovery cannot use a state with unanswered requests. Thread: the store's writer. */
static void place_image(void *user, const tinkc_error *err)
{
    writing *w = user;
    tke_service *svc = w->svc;
    tkc_error_copy(&w->err, err);
    w->recorded = !tkc_failed(err);
    pthread_mutex_lock(&svc->lock);
    /* The folder of an unloaded run was removed, and a save may have recorded a newer state
     * meanwhile: neither must come back. */
    bool wanted = w->run->is.life != TKE_RUN_UNLOADED && w->next_seq >= w->run->image_seq;
    pthread_mutex_unlock(&svc->lock);
    /* The journal is cut after the image has its name: a crash between the two leaves records that
     * the image contains, which recovery skips; the other order would lose them. */
    if (wanted && !tkc_failed(&w->err) &&
        tke_store_place(svc->store, w->temp, w->target, &w->err) &&
        TKE_FAILPOINT("image.placed", &w->err) && svc->set.durability == TINKC_DURABILITY_JOURNAL)
        tke_journal_trim(svc->store, w->run->id, w->next_seq, &w->err);
    image_over(w);
}

static void write_image(tkc_job *base)
{
    writing *w = (writing *)base;
    tinkc_error err = { 0 };
    if (tkc_failed(&w->err) || !write_folder(w)) {
        image_over(w);
        return;
    }
    tke_txn *txn = tke_txn_new(w->svc->store, &err);
    /* Has SQL, so it fails if its group fails. And a run whose row was refused gets it with its
     * image, or no image: the next start would not know whose it is. */
    pthread_mutex_lock(&w->svc->lock);
    tke_run_store(txn, w->run);
    pthread_mutex_unlock(&w->svc->lock);
    if (w->job)
        tke_job_add_row(txn, w->job);
    tke_txn_commit(txn, place_image, w);
}

void tke_work_image(tke_service *svc, tke_run *run)
{
    tinkc_error err = { 0 };
    writing *w = writing_new(svc, run, &err);
    pthread_mutex_lock(&svc->lock);
    tke_job *load = run->loaded;
    assert(run->adapter && !tke_run_image_is_written(run->is));
    tke_run_on(run, w ? TKE_ON_IMAGE_BEGUN : TKE_ON_IMAGE_DROPPED);
    if (w) {
        svc->worker->n_images++;
        w->slot = run->image_slot;
        w->job = load;
    } else {
        run->loaded = NULL;
    }
    pthread_mutex_unlock(&svc->lock);
    if (!w) {
        if (load) /* it is loaded, but a crash may lose it */
            tke_job_succeed(load, (tinkc_str){ 0 });
        return;
    }
    w->state = tke_state_take(run->adapter, &w->err);
    w->target = tke_store_run_path(svc->store, &w->arena, run->id, w->slot ? "image.1" : "image.0",
                                   &w->err);
    submit(w, write_image);
}

void tke_work_sleep(tke_service *svc, tke_run *run)
{
    pthread_mutex_lock(&svc->lock);
    /* Work may have arrived since it was asked: then it stays, instead of being read from disk
     * again at once. */
    bool busy = (run->queue && run->is.memory != TKE_RUN_YIELDING) || run->create;
    if (busy)
        tke_run_on(run, TKE_ON_STAYS);
    pthread_mutex_unlock(&svc->lock);
    if (!busy)
        release_adapter(svc, run);
}
