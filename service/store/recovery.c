/* recovery.c - rebuilds the service from its store at startup and finds where each run continues.
 *
 * Order: rows become objects; checkpoints are compared with the folders that exist; each run finds
 * the newest complete state on disk (an image or a named checkpoint) and the requests that ran
 * after it. With a journal those are executed again. Without one they are lost, and the run refuses
 * further passes rather than continue from weights its client does not expect. Called before any
 * thread starts.
 *
 * The state that a journalled run continues from is derived only from rows and journal records,
 * never from what an earlier start did: a start may itself be interrupted, any number of times, and
 * must not change anything that the next start reads.
 */
#include <assert.h>
#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/file.h"
#include "service/core/base_models.h"
#include "service/core/registry.h"
#include "service/core/runs.h"
#include "service/core/samplers.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/service_state.h"
#include "service/core/sessions.h"
#include "service/core/tenants.h"
#include "service/handlers/request_decode.h"
#include "service/store/journal.h"
#include "service/store/recovery.h"
#include "service/store/run_source.h"
#include "service/store/unrecorded.h"
#include "service/worker/custom_losses.h"
#include "service/worker/jobs.h"
#include "service/worker/results.h"
#include "service/worker/run_queue.h"
#include "wire/answer.h"

static const char *text_of(tkc_arena *arena, const tke_row *row, int column, tinkc_error *err)
{
    tinkc_str s = tke_row_text(row, column);
    return s.data ? tkc_arena_str(arena, s, err) : NULL;
}

typedef struct booting {
    tke_service *svc;
    tkc_arena arena;
    tke_txn *forget; /* corrections to rows, found while loading */
} booting;

/* ---- rows ---- */

static bool session_row(const tke_row *row, void *user, tinkc_error *err)
{
    booting *b = user;
    const char *owner = text_of(&b->arena, row, 1, err);
    tke_session *s =
        tke_session_add(b->svc, text_of(&b->arena, row, 0, err), owner ? owner : "default", err);
    if (!s)
        return false;
    s->created_us = tke_row_i64(row, 2);
    s->user_metadata = tke_copy(b->svc, text_of(&b->arena, row, 3, err), err);
    s->project_id = tke_copy(b->svc, text_of(&b->arena, row, 4, err), err);
    s->display_name = tke_copy(b->svc, text_of(&b->arena, row, 5, err), err);
    s->finished = tke_finish_reason(text_of(&b->arena, row, 6, err));
    s->finish_detail = tke_copy(b->svc, text_of(&b->arena, row, 7, err), err);
    s->expired = s->finished != NULL;
    const char *const notes[] = { s->user_metadata, s->project_id, s->display_name,
                                  s->finish_detail };
    /* Counted without a limit: what was accepted once must be there again, even if the limits have
     * been lowered since. */
    tke_kept_add(b->svc, s->owner, TKE_KEPT_SESSION, &s->kept);
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        tke_kept_add(b->svc, s->owner, tkc_str(notes[i]).len, &s->kept);
    return !tkc_failed(err);
}

static bool run_row(const tke_row *row, void *user, tinkc_error *err)
{
    booting *b = user;
    tke_service *svc = b->svc;
    tke_session *session = tke_find_session(svc, text_of(&b->arena, row, 1, err));
    if (!session)
        return true;
    tke_run *run = tke_run_add(svc, text_of(&b->arena, row, 0, err), session->owner, err);
    if (!run)
        return false;
    int64_t flags = tke_row_i64(row, 6);
    tinkc_bytes hash = tke_row_blob(row, 11);
    run->session = session;
    session->n_runs++;
    run->model_seq = tke_row_i64(row, 2);
    run->base_model = tke_copy(svc, text_of(&b->arena, row, 3, err), err);
    run->spec = (tke_adapter_spec){ .rank = (int32_t)tke_row_i64(row, 4),
                                    .train = (uint32_t)(flags & 7),
                                    .alpha = (double)svc->set.lora_alpha,
                                    .seed = (uint64_t)tke_row_i64(row, 5) };
    run->by_load = flags & TKE_RUN_BY_LOAD;
    run->user_metadata = tke_copy(svc, text_of(&b->arena, row, 7, err), err);
    tke_kept_add(svc, run->owner, tkc_str(run->user_metadata).len, &run->kept);
    run->last_request_us = tke_row_i64(row, 8);
    run->is.life = tke_run_life_of_row(tke_row_i64(row, 9));
    run->corrupted = tke_row_i64(row, 10) != 0;
    if (hash.len == sizeof run->hash)
        memcpy(&run->hash, hash.data, sizeof run->hash);
    run->create_request_id = tke_copy(svc, text_of(&b->arena, row, 12, err), err);
    run->error = tke_copy(svc, text_of(&b->arena, row, 13, err), err);
    return !tkc_failed(err);
}

/* Makes the stored result of a finished request retrievable again. */
static bool restore_job(tke_service *svc, tke_run *run, int32_t kind, int64_t seq, const char *id,
                        tinkc_str result, bool is_pb, tinkc_error *err)
{
    bool ok = true;
    tke_job *job = tke_job_new(svc, kind, id, run->owner, err);
    if (!job)
        return false;
    job->run = run;
    job->seq = seq;
    job->state = TKE_DONE;
    /* Its time to live begins again: clients need some time to come back after a restart. */
    job->done_ms = tkc_now_ms(svc->clock);
    job->result_is_pb = is_pb;
    if (result.data ? tkc_buf_str(&job->result, result, err) : tke_result_find(job, err)) {
        ok = tke_job_publish(job, err);
        tke_result_count(svc, job);
    }
    tke_job_drop(job);
    return ok && !tkc_failed(err);
}

static bool request_row(const tke_row *row, void *user, tinkc_error *err)
{
    booting *b = user;
    tke_service *svc = b->svc;
    tke_run *run = tke_find_run(svc, text_of(&b->arena, row, 0, err));
    const char *id = text_of(&b->arena, row, 4, err);
    tke_hash128 hash = { 0 };
    tinkc_bytes blob = tke_row_blob(row, 3);
    int64_t seq = tke_row_i64(row, 1), state = tke_row_i64(row, 5);
    if (!run || !id || seq < 1 || seq > INT32_MAX)
        return true;
    if (state == TKE_ROW_REFUSED)
        return tke_run_mark(svc, run, seq, TKE_SEEN_REFUSED, err);
    if (blob.len == sizeof hash)
        memcpy(&hash, blob.data, sizeof hash);
    if (!tke_run_see(svc, run, seq, (int32_t)tke_row_i64(row, 2), hash, tke_epoch_of(id),
                     TKE_SEEN_DONE, err))
        return false;
    tke_run_seen(run, seq)->failed = state == TKE_ROW_FAILED;
    tinkc_bytes bytes = tke_row_blob(row, 6);
    return (!bytes.data && state != TKE_ROW_TENSORS) ||
           restore_job(svc, run, (int32_t)tke_row_i64(row, 2), seq, id,
                       tkc_strn((const char *)bytes.data, bytes.len), state == TKE_ROW_TENSORS,
                       err);
}

static bool is_whole(tke_service *svc, const char *folder)
{
    tkc_arena arena;
    tinkc_error err = { 0 };
    tkc_arena_init(&arena, svc->a, 0);
    char *mark = tkc_path_join(&arena, folder, "checkpoint_complete", &err);
    bool whole = mark && tkc_is_file(mark);
    tkc_arena_free(&arena);
    return whole;
}

/* The metadata is in the checkpoint's folder, so that one rename moves it with the tensors. */
static void read_metadata(tke_service *svc, tke_checkpoint *c, const char *folder, tkc_arena *arena)
{
    tinkc_error err = { 0 };
    char *path = tkc_path_join(arena, folder, TKE_METADATA_FILE, &err);
    if (!path || !tkc_is_file(path))
        return;
    tinkc_bytes text = tkc_read_file(arena, path, 1 << 20, &err);
    if (text.len)
        c->user_metadata = tkc_copy_str(svc->a, tkc_strn((const char *)text.data, text.len), &err);
    tke_kept_add(svc, c->owner, tkc_str(c->user_metadata).len, &c->kept);
}

static bool checkpoint_row(const tke_row *row, void *user, tinkc_error *err)
{
    booting *b = user;
    tke_service *svc = b->svc;
    const char *run_id = text_of(&b->arena, row, 0, err);
    const char *name = text_of(&b->arena, row, 2, err);
    int32_t kind = (int32_t)tke_row_i64(row, 1);
    if (!run_id || !tke_name_ok(name) || kind < 0 || kind > TKE_CKPT_EXTERNAL)
        return true;
    char *folder = tke_checkpoint_folder(svc, &b->arena, run_id, kind, name, err);
    if (!folder || !is_whole(svc, folder)) { /* deleted here or by someone else */
        tkc_log_line(&svc->log, TINKC_LOG_WARN, "%s: its files are gone", folder ? folder : name);
        tke_txn_exec(b->forget,
                     "DELETE FROM checkpoints WHERE run_id = ? AND kind = ? AND name = ?", "tit",
                     run_id, (int64_t)kind, name);
        return !tkc_failed(err);
    }
    tke_checkpoint *c = tke_checkpoint_add(svc, run_id, kind, name, err);
    if (!c)
        return false;
    c->created_us = tke_row_i64(row, 3);
    c->bytes = tke_row_i64(row, 4);
    c->is_public = tke_row_i64(row, 5) != 0;
    c->expires_us = tke_row_i64(row, 6);
    c->seq_id = tke_row_i64(row, 7);
    tke_checkpoint_written(c);
    read_metadata(svc, c, folder, &b->arena);
    return true;
}

/* The folder of an ephemeral sampler in this store. Rows hold absolute paths, and the store may
 * have been moved or copied since. */
static const char *in_this_store(booting *b, const char *path, tinkc_error *err)
{
    const char *part = NULL;
    for (const char *at = path; at && (at = strstr(at, "/runs/")); at++)
        part = at + 1;
    return part ? tkc_path_join(&b->arena, tke_store_folder(b->svc->store), part, err) : path;
}

static bool sampler_row(const tke_row *row, void *user, tinkc_error *err)
{
    booting *b = user;
    tke_service *svc = b->svc;
    tke_session *session = tke_find_session(svc, text_of(&b->arena, row, 1, err));
    const char *path = text_of(&b->arena, row, 3, err);
    bool ephemeral = tke_row_i64(row, 4) != 0;
    tinkc_bytes hash = tke_row_blob(row, 5);
    if (ephemeral)
        path = in_this_store(b, path, err);
    if (!session || (ephemeral && (!path || !is_whole(svc, path))))
        return !tkc_failed(err);
    tke_sampler *s = tke_sampler_add(svc, text_of(&b->arena, row, 0, err), session->owner, err);
    if (!s)
        return false;
    s->session = session;
    s->base_model = tke_copy(svc, text_of(&b->arena, row, 2, err), err);
    s->ephemeral = ephemeral;
    /* As if it was used now: the housekeeper drops ephemeral samplers that were not used for
     * long. */
    s->used_ms = tkc_now_ms(svc->clock);
    if (!ephemeral)
        tke_kept_add(svc, s->owner, TKE_KEPT_SAMPLER, &s->kept);
    if (ephemeral)
        s->spill = tke_copy(svc, path, err);
    else
        s->model_path = tke_copy(svc, path, err);
    s->checkpoint = ephemeral || !path ? NULL : tke_checkpoint_named(svc, path);
    if (hash.len == sizeof s->hash)
        memcpy(&s->hash, hash.data, sizeof s->hash);
    return !tkc_failed(err);
}

/* Writes the missing row of a request that was answered while the disk was full. */
static bool settle_unrecorded(const tke_unrecorded *r, void *user, tinkc_error *err)
{
    booting *b = user;
    tke_run *run;
    char id[160];
    for (size_t at = 0; (run = tke_next_run(b->svc, &at));) {
        const tke_seen *seen = tke_run_seen(run, r->seq);
        bool known = seen && seen->state != TKE_SEEN_NOT && seen->state != TKE_SEEN_REFUSED;
        if (known || r->seq > INT32_MAX || !tke_hash_eq(tke_unrecorded_run(run->id), r->run))
            continue;
        /* As done, although its result is lost: the next number must not wait for this one, nor may
         * a repeat of it be executed again. */
        if (!tke_run_see(b->svc, run, r->seq, r->kind, r->hash, r->epoch, TKE_SEEN_DONE, err))
            return false;
        tke_run_seen(run, r->seq)->failed = r->failed;
        (void)snprintf(id, sizeof id, "%u-%s:%lld", (unsigned)r->epoch, run->id, (long long)r->seq);
        tke_txn_exec(
            b->forget,
            "INSERT OR IGNORE INTO requests(run_id, seq_id, kind, hash, request_id, state) "
            "VALUES(?, ?, ?, ?, ?, ?)",
            "tiibti", run->id, r->seq, (int64_t)r->kind,
            (tinkc_bytes){ (const unsigned char *)&r->hash, sizeof r->hash }, id,
            (int64_t)(r->failed ? TKE_ROW_FAILED : TKE_ROW_DONE));
    }
    return true;
}

static void unrecorded_settled(void *user, const tinkc_error *err)
{
    tke_service *svc = user;
    /* Not before the rows are committed: until then these records are the only trace of the
     * requests. */
    if (!tkc_failed(err))
        tke_unrecorded_clear(svc->store); /* creates the file if it is missing */
}

/* ---- states on disk ---- */

typedef struct found {
    char *folder;
    int64_t next_seq; /* 0 = not a complete state */
    int64_t n_passes, n_tokens, n_failed, created_us;
    int32_t slot; /* of an image; -1 = named checkpoint */
} found;

static void read_state(tkc_arena *arena, const char *folder, found *out)
{
    tinkc_error err = { 0 };
    tkc_json j;
    tinkc_str key;
    char *path = tkc_path_join(arena, folder, "train_state.json", &err);
    if (!path || !tkc_is_file(path))
        return;
    tinkc_bytes text = tkc_read_file(arena, path, 1 << 20, &err);
    tkc_json_open(&j, tkc_strn((const char *)text.data, text.len), arena, &err);
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            if (tkc_str_is(key, "next_seq_id"))
                out->next_seq = tkc_json_i64(&j);
            else if (tkc_str_is(key, "num_fwdbwd"))
                out->n_passes = tkc_json_i64(&j);
            else if (tkc_str_is(key, "num_tokens"))
                out->n_tokens = tkc_json_i64(&j);
            else if (tkc_str_is(key, "num_failed_fwdbwd"))
                out->n_failed = tkc_json_i64(&j);
            else if (tkc_str_is(key, "created_us"))
                out->created_us = tkc_json_i64(&j);
            else
                tkc_json_skip(&j);
        }
    if (tkc_failed(&err) || out->next_seq < 1)
        out->next_seq = 0;
}

static void consider(tke_service *svc, tkc_arena *arena, char *folder, int32_t slot, int64_t max,
                     found *best)
{
    found one = { .folder = folder, .slot = slot };
    /* The mark in it is written when all other files are: a folder without it is of a save or an
     * image that did not end. */
    if (!folder || !is_whole(svc, folder))
        return;
    read_state(arena, folder, &one);
    bool newer = one.next_seq > best->next_seq ||
                 (one.next_seq == best->next_seq && one.created_us > best->created_us);
    if (one.next_seq && newer && one.next_seq <= max)
        *best = one;
}

/* The newest state whose next_seq is at most max. */
static found newest_state(tke_service *svc, tke_run *run, int64_t max, tkc_arena *arena,
                          tinkc_error *err)
{
    const tke_checkpoint *c;
    found best = { .slot = -1 };
    consider(svc, arena, tke_store_run_path(svc->store, arena, run->id, "image.0", err), 0, max,
             &best);
    consider(svc, arena, tke_store_run_path(svc->store, arena, run->id, "image.1", err), 1, max,
             &best);
    for (size_t at = 0; (c = tke_next_checkpoint(svc, &at));) {
        if (c->run == run && c->kind == TKE_CKPT_TRAINING && c->state == TKE_CKPT_DONE)
            consider(svc, arena, tke_checkpoint_folder(svc, arena, run->id, c->kind, c->name, err),
                     -1, max, &best);
    }
    return best;
}

/* ---- the journal ---- */

typedef struct replay {
    tke_service *svc;
    tke_run *run;
    int64_t from;
} replay;

/* Finds the first request in the journal that has no answer on disk. From a state that already
 * contains it, it would never get an answer, so the run continues from an older state and repeats
 * it. */
static bool note_unanswered(const tke_journal_record *r, void *user, tinkc_error *err)
{
    replay *p = user;
    (void)err;
    const tke_seen *seen = tke_run_seen(p->run, r->seq);
    bool answered = seen && seen->state != TKE_SEEN_NOT && seen->state != TKE_SEEN_REFUSED;
    if (r->seq >= 1 && r->seq < p->from && !answered)
        p->from = r->seq;
    return true;
}

/* True if the request's effect and its answer both exist, so it need not be repeated. */
static bool is_settled(const replay *p, const tke_journal_record *r, const tke_job *before)
{
    const tke_seen *seen = tke_run_seen(p->run, r->seq);
    if (!seen || seen->state != TKE_SEEN_DONE || !before)
        return false;
    if (r->kind != TKE_JOB_SAVE_SAMPLER)
        return r->kind == TKE_JOB_SAVE || r->kind == TKE_JOB_FORWARD || r->kind == TKE_JOB_EXTERNAL;
    tkc_arena arena;
    tinkc_error err = { 0 };
    tkc_save_for_sampler_result out = { 0 };
    tkc_arena_init(&arena, p->svc->a, 0);
    bool known =
        tkc_message_decode(&tkc_save_for_sampler_result_type, tkc_buf_view(&before->result),
                           TINKC_E_STATE, &arena, &out, &err) &&
        (out.path || tke_find_sampler(p->svc, out.sampling_session_id));
    tkc_arena_free(&arena);
    return known;
}

/* A request that failed must fail again, with the same message, even if its cause is gone: the
 * client has seen it fail. */
static void fail_again(tke_job *job, const tke_job *before)
{
    tkc_arena arena;
    tinkc_error err = { 0 };
    tkc_answer answer = { 0 };
    tkc_arena_init(&arena, job->svc->a, 0);
    bool read = before && tkc_answer_read(tkc_buf_view(&before->result), &arena, &answer, &err) &&
                answer.error;
    bool server = read && answer.category.value == TKC_CATEGORY_SERVER;
    tkc_fail(&job->invalid, server ? TINKC_E_SERVER : TINKC_E_BAD_REQUEST, "%s",
             read ? answer.error : "the request failed before a restart");
    tkc_arena_free(&arena);
}

static bool replay_record(const tke_journal_record *r, void *user, tinkc_error *err)
{
    replay *p = user;
    tke_service *svc = p->svc;
    const char *ignored_id = NULL;
    tkc_opt_i64 ignored_seq;
    char id[160];
    if (r->seq < p->from || r->seq > INT32_MAX)
        return true;
    (void)snprintf(id, sizeof id, "%u-%s:%lld", (unsigned)r->epoch, p->run->id, (long long)r->seq);
    tke_job *before = tke_find_job(svc, id);
    if ((before && before->state != TKE_DONE) || is_settled(p, r, before))
        return true; /* a duplicate record, or nothing to repeat */
    const tke_seen *seen = tke_run_seen(p->run, r->seq);
    bool failed = seen && seen->state == TKE_SEEN_DONE && seen->failed;
    tke_job *job = tke_job_new(svc, r->kind, id, p->run->owner, err);
    /* Exempts it from what this version and the limits of this start would refuse: it was accepted
     * under others, and must give the same result. */
    if (job)
        job->replayed = true;
    if (!job ||
        !tke_decode_job(job, r->body, r->is_pb, r->forward, &ignored_id, &ignored_seq, err)) {
        tke_job_drop(job);
        return false;
    }
    job->run = p->run;
    job->seq = r->seq;
    job->hash = r->hash;
    if (failed)
        fail_again(job, before);
    if (before) { /* its answer is known; computing it again gives the same */
        tke_result_uncount(svc, before);
        tke_take_job(svc, id);
        tke_job_drop(before);
    }
    if (!tke_run_see(svc, p->run, r->seq, job->kind, r->hash, r->epoch, TKE_SEEN_PENDING, err) ||
        !tke_job_publish(job, err))
        return false;
    tke_run_insert(p->run, job);
    return true;
}

/* ---- where a run continues ---- */

static bool changes_state(uint8_t kind)
{
    return kind == TKE_JOB_PASS || kind == TKE_JOB_OPTIM || kind == TKE_JOB_LOAD;
}

/* Finds the first request that ran after the loaded state and cannot be executed again. */
static void count_lost(tke_run *run, int64_t from)
{
    for (int64_t seq = from; seq <= (int64_t)run->n_seen; seq++) {
        const tke_seen *seen = tke_run_seen(run, seq);
        /* A request that failed changed nothing, so nothing is lost with it. */
        if (seen->state == TKE_SEEN_DONE && changes_state(seen->kind) && !seen->failed &&
            !run->lost_from)
            run->lost_from = seq;
    }
}

static void mark_lost(tke_service *svc, tke_run *run)
{
    char id[160];
    tinkc_error err = { 0 };
    run->corrupted = true;
    tke_txn *txn = tke_txn_new(svc->store, &err);
    tke_txn_exec(txn, "UPDATE runs SET corrupted = 1 WHERE id = ?", "t", run->id);
    tke_txn_commit(txn, NULL, NULL);
    for (int64_t seq = run->lost_from; seq <= (int64_t)run->n_seen; seq++) {
        tke_seen *seen = tke_run_seen(run, seq);
        if (seen->state != TKE_SEEN_DONE || seen->kind == TKE_JOB_SAVE ||
            seen->kind == TKE_JOB_SAVE_SAMPLER || seen->kind == TKE_JOB_EXTERNAL)
            continue; /* saved files still exist */
        seen->state = TKE_SEEN_LOST;
        (void)snprintf(id, sizeof id, "%u-%s:%lld", (unsigned)seen->epoch, run->id, (long long)seq);
        /* Its result is of a state that is gone: the poll gets 410, and the client knows that it
         * must load a checkpoint. */
        tke_job *job = tke_take_job(svc, id);
        if (job)
            tke_result_uncount(svc, job);
        tke_job_drop(job);
    }
}

/* Reading it cuts the rest off, so this is the last time that it can be noticed. */
static void warn_of_damage(tke_service *svc, const tke_run *run)
{
    tkc_arena arena;
    tinkc_error err = { 0 };
    tke_journal_file file = { 0 };
    tkc_arena_init(&arena, svc->a, 0);
    char *path = tke_store_run_path(svc->store, &arena, run->id, "journal", &err);
    if (path && tkc_is_file(path) && tke_journal_scan(path, &file, &err) && file.damaged)
        tkc_log_line(&svc->log, TINKC_LOG_ERROR,
                     "%s: its journal is damaged after %zu records: later requests cannot be "
                     "executed again; the file is kept as journal.damaged",
                     run->id, file.n_records);
    tkc_arena_free(&arena);
}

static bool read_journal(tke_service *svc, tke_run *run, tke_journal_fn *fn, replay *p)
{
    tinkc_error err = { 0 };
    if (svc->set.durability == TINKC_DURABILITY_JOURNAL)
        warn_of_damage(svc, run);
    if (svc->set.durability == TINKC_DURABILITY_JOURNAL &&
        !tke_journal_read(svc->store, run->id, fn, p, &err))
        tkc_log_line(&svc->log, TINKC_LOG_ERROR, "%s: its journal cannot be read: %s", run->id,
                     err.message);
    return !tkc_failed(&err);
}

/* Requests start in the order of their numbers, so a number without a trace below an answered one
 * never ran and never will: marks it so. */
static void bury_holes(tke_run *run)
{
    int64_t last = (int64_t)run->n_seen;
    while (last > 0 && tke_run_seen(run, last)->state != TKE_SEEN_DONE)
        last--;
    for (int64_t seq = 1; seq < last; seq++) {
        tke_seen *seen = tke_run_seen(run, seq);
        if (seen->state == TKE_SEEN_NOT || seen->state == TKE_SEEN_REFUSED)
            seen->state = TKE_SEEN_ABANDONED;
    }
}

static bool recover_run(tke_service *svc, tke_run *run, tkc_arena *arena, tinkc_error *err)
{
    replay unanswered = { svc, run, INT64_MAX };
    read_journal(svc, run, note_unanswered, &unanswered);
    found best = newest_state(svc, run, unanswered.from, arena, err);
    int64_t from = best.next_seq ? best.next_seq : 1;
    bury_holes(run);
    run->image_seq = best.next_seq;
    /* The next image goes to the other place: the one that the run continues from must stay whole
     * until the new one is complete. */
    run->image_slot = best.slot == 0 ? 1 : 0;
    run->source = best.next_seq ? tke_copy(svc, best.folder, err) : NULL;
    run->n_passes = best.n_passes;
    run->n_pass_tokens = best.n_tokens;
    run->n_failed_passes = best.n_failed;
    run->lost_after = from - 1;
    run->next_seq = from;
    read_journal(svc, run, replay_record, &(replay){ svc, run, from });
    count_lost(run, from);
    if (run->lost_from)
        mark_lost(svc, run);
    const tke_job *newest = run->queue;
    while (newest && newest->next)
        newest = newest->next;
    assert(!newest || newest->seq >= run->next_seq); /* the state has nothing of it */
    tke_run_settle_refused(run, newest ? newest->seq : 0);
    assert(run->next_seq >= from && (!run->lost_from || run->lost_from >= from));
    return !tkc_failed(err);
}

/* Makes the answer of create_model retrievable again. */
static bool restore_create(tke_service *svc, tke_run *run, tinkc_error *err)
{
    tkc_buf out;
    tkc_buf_init(&out, svc->a, TKC_BUF_NO_MAX);
    bool ok =
        tkc_message_encode(&tkc_create_model_result_type,
                           &(tkc_create_model_result){ .model_id = run->id }, &out, err) &&
        (!run->create_request_id || restore_job(svc, run, TKE_JOB_CREATE, 0, run->create_request_id,
                                                tkc_buf_view(&out), false, err));
    tkc_buf_free(&out);
    return ok;
}

/* ---- folders without a row ---- */

static void adopt(tke_service *svc, tke_run *run, int32_t kind, tkc_arena *arena)
{
    tinkc_error err = { 0 };
    char *parent = tke_store_run_path(svc->store, arena, run->id, tke_kind_name(kind), &err);
    DIR *folder = parent ? opendir(parent) : NULL;
    char path[512];
    if (!folder)
        return;
    for (struct dirent *entry; (entry = readdir(folder));) {
        found state = { 0 };
        struct stat st;
        if (!tke_name_ok(entry->d_name))
            continue;
        (void)snprintf(path, sizeof path, "tinker://%s/%s/%s", run->id, tke_kind_name(kind),
                       entry->d_name);
        char *full = tkc_path_join(arena, parent, entry->d_name, &err);
        /* A folder without a row: the process ended between placing it and committing. It is
         * complete, so it is kept; a deleted one is never here, since its folder goes before its
         * row. */
        if (tke_checkpoint_named(svc, path) || !full || !is_whole(svc, full))
            continue;
        tke_checkpoint *c = tke_checkpoint_add(svc, run->id, kind, entry->d_name, &err);
        if (!c)
            break;
        read_state(arena, full, &state);
        read_metadata(svc, c, full, arena);
        tke_checkpoint_written(c);
        c->bytes = tke_folder_bytes(full);
        c->created_us = stat(full, &st) == 0 ? (int64_t)st.st_mtime * 1000000 : c->created_us;
        c->seq_id = state.next_seq ? state.next_seq - 1 : 0;
        tke_txn *txn = tke_txn_new(svc->store, &err);
        tke_checkpoint_store(txn, c);
        tke_txn_commit(txn, NULL, NULL);
    }
    closedir(folder);
}

bool tke_boot(tke_service *svc, tinkc_error *err)
{
    tke_run *run;
    booting b = { .svc = svc };
    tke_store *s = svc->store;
    if (!tke_store_durable(s))
        return true;
    tkc_arena_init(&b.arena, svc->a, 0);
    b.forget = tke_txn_new(s, err);
    bool ok =
        tke_store_query(s,
                        "SELECT s.id, s.owner, s.created_us, s.user_metadata, s.project_id, "
                        "n.display_name, n.finished, n.detail FROM sessions s LEFT JOIN "
                        "session_notes n ON n.id = s.id WHERE n.finished IS NOT 'forgotten' "
                        "ORDER BY s.created_us",
                        session_row, &b, err, "") &&
        tke_losses_load(svc, err) &&
        tke_store_query(s,
                        "SELECT id, session_id, model_seq, base_model, rank, seed, flags, "
                        "user_metadata, last_request_us, state, corrupted, hash, "
                        "request_id, error FROM runs ORDER BY created_us",
                        run_row, &b, err, "") &&
        tke_store_query(s,
                        "SELECT run_id, seq_id, kind, hash, request_id, state, result FROM "
                        "requests ORDER BY run_id, seq_id",
                        request_row, &b, err, "") &&
        tke_store_query(s,
                        "SELECT run_id, kind, name, created_us, bytes, public, expires_us, seq_id "
                        "FROM checkpoints",
                        checkpoint_row, &b, err, "");
    ok = ok && tke_unrecorded_each(s, settle_unrecorded, &b, err);
    tke_txn_exec(b.forget, "SELECT 1", "");
    tke_txn_commit(b.forget, unrecorded_settled, svc);
    for (size_t at = 0; ok && (run = tke_next_run(svc, &at));) {
        adopt(svc, run, TKE_CKPT_TRAINING, &b.arena);
        adopt(svc, run, TKE_CKPT_SAMPLER, &b.arena);
        adopt(svc, run, TKE_CKPT_EXTERNAL, &b.arena);
    }
    tke_store_sync(s); /* the writer thread owns the database while it has work */
    ok = ok && tke_tenants_load(svc, err);
    ok = ok && tke_store_query(s,
                               "SELECT id, session_id, base_model, model_path, ephemeral, hash "
                               "FROM samplers",
                               sampler_row, &b, err, "");
    for (size_t at = 0; ok && (run = tke_next_run(svc, &at));) {
        /* A session is finished in one row; the process may have ended before its runs were
         * unloaded. */
        if (run->session->finished && !tke_run_is_unloaded(run->is)) {
            tke_run_on(run, TKE_ON_UNLOAD_ASKED);
            tke_run_on(run, TKE_ON_UNLOADED);
        }
        /* Again: the row of an unload is committed before its files are removed, and a crash may
         * have come between. */
        if (run->is.life == TKE_RUN_UNLOADED)
            tke_run_remove_files(svc, run);
        if (run->is.life == TKE_RUN_UNLOADED || run->is.life == TKE_RUN_FAILED)
            continue;
        ok = recover_run(svc, run, &b.arena, err) && restore_create(svc, run, err);
        if (run->by_load && !run->source) { /* its checkpoint was never loaded */
            tke_run_on(run, TKE_ON_NOT_MADE);
            if (run->error)
                tkc_release_str(svc->a, run->error);
            run->error = tke_copy(svc, "the server stopped before it was loaded", err);
        } else if (run->is.life == TKE_RUN_CREATING) {
            tke_run_on(run, TKE_ON_MADE);
        }
    }
    tkc_arena_free(&b.arena);
    return ok;
}

/* Locks: needs svc->lock. */
void tke_boot_base(tke_service *svc, tke_base *base)
{
    tke_run *run;
    tke_sampler *s;
    for (size_t at = 0; (run = tke_next_run(svc, &at));) {
        if (run->base || !tkc_cstr_eq(run->base_model, base->name))
            continue;
        run->base = base;
        for (tke_job *job = run->queue; job; job = job->next)
            /* These were read at the start, when the model that the checks need was not there
             * yet. */
            if (job->replayed && !tkc_failed(&job->invalid))
                tke_check_job(job, run);
    }
    for (size_t at = 0; (s = tke_next_sampler(svc, &at));) {
        if (!s->base && tkc_cstr_eq(s->base_model, base->name))
            s->base = base;
    }
}
