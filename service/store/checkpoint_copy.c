/* checkpoint_copy.c - copies of checkpoints: each in a new run that cannot be trained.
 *
 * The files of a checkpoint never change, so a copy hard-links them: it takes no space and survives
 * the deletion of the original. First the rows of the run are committed, then the folder is moved
 * into place, then its own row is committed, then the caller is answered. A crash leaves nothing, a
 * run without a checkpoint, or a complete copy. Threads: a front thread begins, the file thread
 * links (so that a save or a delete of the original runs entirely before or after), the store's
 * writer ends it.
 */
#include <assert.h>
#include <stdio.h>

#include "base/file.h"
#include "service/core/registry.h"
#include "service/core/runs.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/service_state.h"
#include "service/core/sessions.h"
#include "service/core/tenants.h"
#include "service/core/usage.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/handlers.h"
#include "service/handlers/idempotency.h"
#include "service/worker/worker_files.h"

typedef struct copying {
    tkc_job base;
    tke_service *svc;
    tinkc_reply *reply;
    tke_checkpoint *source, *copy;
    tkc_arena arena;
    char *temp, *target;
    int64_t ttl_us;     /* 0 = never expires */
    tke_tenant *tenant; /* whose quota holds `bytes` until the copy counts; NULL = none */
    int64_t bytes;
    tinkc_error err;
} copying;

/* Before the answer: the client may copy again at once. */
static void end_hold(copying *c)
{
    tke_quota_release(c->tenant, c->bytes);
    c->tenant = NULL;
}

static void copying_free(copying *c)
{
    tkc_arena_free(&c->arena);
    tke_service *svc = c->svc;
    end_hold(c);
    tkc_release(svc->a, c, sizeof *c);
    /* Last: a service that stops waits for this, and frees what the lines above use. */
    tke_file_work_end(svc);
}

/* Leaves only a run that failed. */
static void copy_failed(copying *c)
{
    tke_service *svc = c->svc;
    tke_run *run = c->copy->run;
    tinkc_error ignored = { 0 };
    pthread_mutex_lock(&svc->lock);
    tke_checkpoint_remove(svc, c->copy);
    tke_run_on(run, TKE_ON_NOT_MADE);
    run->error = tke_copy(svc, "its weights could not be copied", &ignored);
    pthread_mutex_unlock(&svc->lock);
    tke_txn *txn = tke_txn_new(svc->store, &ignored);
    tke_txn_exec(txn, "UPDATE runs SET state = ?, error = ? WHERE id = ?", "itt",
                 (int64_t)TKE_RUN_FAILED, run->error, run->id);
    tke_txn_commit(txn, NULL, NULL);
    if (c->temp) /* before the client gets the error */
        tkc_remove_tree(c->temp, &ignored);
    end_hold(c);
    tke_send_failure(c->reply, svc->a, &c->err);
    copying_free(c);
}

static void send_path(tinkc_reply *reply, const tinkc_allocator *a, const char *path)
{
    tinkc_error err = { 0 };
    tkc_buf body;
    tkc_buf_init(&body, a, TKC_BUF_NO_MAX);
    if (tkc_message_encode(&tkc_copy_weights_response_type,
                           &(tkc_copy_weights_response){ .tinker_path = path }, &body, &err))
        tke_send_json(reply, 200, tkc_buf_view(&body));
    else
        tke_send_failure(reply, a, &err);
    tkc_buf_free(&body);
}

static void copy_recorded(void *user, const tinkc_error *err)
{
    copying *c = user;
    tke_service *svc = c->svc;
    if (tkc_failed(err)) {
        tkc_error_copy(&c->err, err);
        tke_store_take_back(svc->store, c->temp, c->target);
        copy_failed(c);
        return;
    }
    pthread_mutex_lock(&svc->lock);
    assert(c->copy->state == TKE_CKPT_PENDING && c->copy->run->is.life == TKE_RUN_UNLOADED);
    tke_checkpoint_written(c->copy);
    pthread_cond_signal(&svc->work); /* a load may wait for it to be written */
    pthread_mutex_unlock(&svc->lock);
    tke_audit_add(svc, c->copy->owner, "checkpoint_copy", c->copy->run_id, c->source->path, NULL);
    end_hold(c); /* it counts by itself now */
    send_path(c->reply, svc->a, c->copy->path);
    copying_free(c);
}

static bool place_links(copying *c)
{
    tke_service *svc = c->svc;
    tinkc_error *err = &c->err;
    pthread_mutex_lock(&svc->lock);
    bool there = c->source->state == TKE_CKPT_DONE;
    pthread_mutex_unlock(&svc->lock);
    if (!there)
        return tkc_fail(err, TINKC_E_NOT_FOUND, "Checkpoint '%.200s' was deleted", c->source->path);
    const tke_checkpoint *from = c->source, *to = c->copy;
    char *folder = tke_checkpoint_folder(svc, &c->arena, from->run_id, from->kind, from->name, err);
    c->target = tke_checkpoint_folder(svc, &c->arena, to->run_id, to->kind, to->name, err);
    c->temp = c->target ? tke_store_temp(svc->store, &c->arena, err) : NULL;
    if (!folder || !c->temp)
        return false;
    return tke_link_folder(folder, c->temp, err) &&
           (!tke_store_durable(svc->store) || tke_sync_folder(c->temp, err)) &&
           tke_store_place(svc->store, c->temp, c->target, err);
}

static void write_copy(tkc_job *base)
{
    copying *c = (copying *)base;
    tke_service *svc = c->svc;
    tke_checkpoint *to = c->copy;
    tinkc_error err = { 0 };
    if (tkc_failed(&c->err) || !place_links(c)) {
        copy_failed(c);
        return;
    }
    pthread_mutex_lock(&svc->lock);
    to->bytes = tke_folder_bytes(c->target);
    to->created_us = tkc_wall_us(svc->clock);
    to->expires_us = c->ttl_us ? to->created_us + c->ttl_us : 0;
    pthread_mutex_unlock(&svc->lock);
    tke_txn *txn = tke_txn_new(svc->store, &err);
    tke_checkpoint_store(txn, to);
    tke_txn_commit(txn, copy_recorded, c);
}

/* The run's row is committed: only now may a folder be placed that belongs to it. */
static void run_recorded(void *user, const tinkc_error *err)
{
    copying *c = user;
    tkc_error_copy(&c->err, err);
    c->base.run = write_copy;
    if (!tkc_pool_submit(c->svc->files, &c->base, &c->err))
        write_copy(&c->base); /* it checks err first */
}

/* ---- the request ---- */

/* False after an answer. */
static bool check(tke_call *call, const tkc_copy_weights_request *in)
{
    const char *run, *name, *wrong = NULL;
    int32_t kind;
    bool project = in->destination_project_id && *in->destination_project_id;
    bool slot = in->session_id && in->model_seq_id.is == TKC_GIVEN;
    if (!tke_path_split(&call->arena, in->source_path, &run, &kind, &name, &call->err))
        wrong = call->err.message;
    else if (!slot && (in->session_id || !project))
        wrong = "Either destination_project_id, or session_id and model_seq_id must be given";
    else if (slot && in->model_seq_id.value < 0)
        wrong = "model_seq_id must not be negative";
    else
        wrong = tke_wrong_ttl(in->ttl_seconds);
    if (wrong)
        tke_refuse(call, 400, "bad_request", "%s", wrong);
    return !wrong;
}

typedef struct refusal {
    int32_t status; /* 0 = granted */
    const char *code, *text;
} refusal;

/* Locks: needs svc->lock. The original, if the caller may copy it. */
static tke_checkpoint *find_source(tke_call *call, const char *path, refusal *no)
{
    tke_checkpoint *c = tke_find_checkpoint(call->svc, path, NULL);
    if (!c || !c->run || !(c->is_public || tkc_cstr_eq(c->owner, call->owner))) {
        *no = (refusal){ 404, "not_found", "There is no such checkpoint" };
        return NULL;
    }
    if (c->state != TKE_CKPT_DONE)
        *no = (refusal){ 503, "busy", "The checkpoint is being written" };
    return c;
}

/* Locks: needs svc->lock. What the copy keeps in memory counts for its owner: the original's metadata, a
 * session. */
static void take_kept(tke_call *call, size_t bytes, size_t *kept, refusal *no)
{
    tinkc_error full = { 0 };
    int32_t status = tke_kept_take(call->svc, call->owner, bytes, kept, &full);
    if (status)
        *no =
            (refusal){ status, status == 403 ? "quota_kept" : "memory",
                       "The copy and its user_metadata do not fit into what may be kept in memory "
                       "(max_kept_per_key, max_kept_bytes)" };
}

/* Locks: needs svc->lock. The session of the copy's run: the named one, or a new one in the
 * project. */
static tke_session *find_session(tke_call *call, const tkc_copy_weights_request *in, tke_txn *txn,
                                 refusal *no)
{
    tke_service *svc = call->svc;
    char id[TKE_UUID_TEXT];
    if (in->session_id) {
        tke_session *s = tke_find_session(svc, in->session_id);
        if (!s || !tkc_cstr_eq(s->owner, call->owner))
            *no = (refusal){ 404, "not_found", "Unknown session" };
        else if (s->finished)
            *no = (refusal){ 410, "session_finished", "The session was finished" };
        return s;
    }
    size_t kept = 0;
    tke_uuid(svc->clock, id);
    take_kept(call, TKE_KEPT_SESSION, &kept, no);
    tke_session *s = no->status ? NULL : tke_session_add(svc, id, call->owner, &call->err);
    if (!s) {
        tke_kept_give(svc, call->owner, &kept);
        return NULL;
    }
    s->kept = kept;
    s->project_id = tke_copy(svc, in->destination_project_id, &call->err);
    tke_session_store(txn, s, "[]", NULL);
    return s;
}

/* Locks: needs svc->lock. Adds a run for the copy only; its state is unloaded. */
static tke_run *add_run(tke_call *call, const tke_run *like, tke_session *session, int64_t number,
                        refusal *no)
{
    tke_service *svc = call->svc;
    char id[128], request_id[160];
    (void)snprintf(id, sizeof id, "%.64s:train:%lld", session->id, (long long)number);
    (void)snprintf(request_id, sizeof request_id, "%lld-%s:0", (long long)svc->epoch, id);
    if (tke_find_run(svc, id)) {
        *no = (refusal){ 400, "model_seq_id_reused", "model_seq_id is in use" };
        return NULL;
    }
    tke_run *run = tke_run_add(svc, id, call->owner, &call->err);
    if (!run)
        return NULL;
    run->session = session;
    session->n_runs++;
    run->model_seq = number;
    run->base = like->base;
    run->spec = like->spec;
    run->base_model = tke_copy(svc, like->base_model, &call->err);
    run->create_request_id = tke_copy(svc, request_id, &call->err);
    tke_run_on(run, tkc_failed(&call->err) ? TKE_ON_NOT_MADE : TKE_ON_UNLOADED);
    return run;
}

/* Locks: needs svc->lock. Reserves the names; false: `no` or call->err says why. */
static bool reserve(tke_call *call, const tkc_copy_weights_request *in, tke_txn *txn, copying *c,
                    refusal *no)
{
    tke_service *svc = call->svc;
    tke_checkpoint *from = find_source(call, in->source_path, no);
    if (!no->status && !tke_quota_hold(svc, call->owner, c->bytes = from->bytes, &c->tenant))
        *no = (refusal){ 403, "quota_storage",
                         "The copy does not fit into this key's storage; delete checkpoints" };
    size_t kept = 0;
    if (!no->status)
        take_kept(call, tkc_str(from->user_metadata).len, &kept, no);
    tke_session *session = no->status ? NULL : find_session(call, in, txn, no);
    int64_t number = in->session_id ? in->model_seq_id.value : 0;
    tke_run *run = no->status || !session ? NULL : add_run(call, from->run, session, number, no);
    if (!run || tkc_failed(&call->err)) {
        tke_kept_give(svc, call->owner, &kept);
        return false;
    }
    tke_run_store(txn, run);
    c->source = from;
    c->copy = tke_checkpoint_add(svc, run->id, from->kind, from->name, &call->err);
    if (c->copy) {
        c->copy->user_metadata = tke_copy(svc, from->user_metadata, &call->err);
        c->copy->kept = kept;
    } else {
        tke_kept_give(svc, call->owner, &kept);
    }
    return c->copy != NULL;
}

/* Locks: needs svc->lock. The copy that the same call made before, or is making. */
static const tke_checkpoint *made_before(tke_service *svc, const char *key)
{
    const char *path = tke_known_key(svc, key);
    const tke_checkpoint *c = path ? tke_checkpoint_named(svc, path) : NULL;
    return c && c->state != TKE_CKPT_GONE ? c : NULL;
}

static void begin(tke_call *call, const tkc_copy_weights_request *in, const char *key)
{
    tke_service *svc = call->svc;
    refusal no = { 0 };
    tinkc_error full = { 0 };
    (void)tke_quota_storage(svc, call->owner, NULL, 0, &full);
    copying *c = tkc_zalloc(svc->a, sizeof *c, &call->err);
    tke_txn *txn = tke_txn_new(svc->store, &call->err);
    if (c) {
        c->svc = svc;
        c->reply = call->reply;
        c->ttl_us = in->ttl_seconds.is == TKC_GIVEN ? in->ttl_seconds.value * 1000000 : 0;
        tkc_arena_init(&c->arena, svc->a, 0);
        tke_file_work_begin(svc);
    }
    pthread_mutex_lock(&svc->lock);
    const tke_checkpoint *before = made_before(svc, key);
    bool done = before && before->state == TKE_CKPT_DONE;
    bool granted =
        !before && !tkc_failed(&full) && !tkc_failed(&call->err) && reserve(call, in, txn, c, &no);
    if (granted && key)
        tke_remember_key(call, key, c->copy->path);
    pthread_mutex_unlock(&svc->lock);
    if (granted) {
        tke_txn_commit(txn, run_recorded, c);
        return;
    }
    tke_txn_commit(txn, NULL, NULL);
    if (c)
        copying_free(c);
    if (done) /* checkpoints are never freed */
        send_path(call->reply, svc->a, before->path);
    else if (before)
        tke_refuse(call, 503, "busy", "The copy is being made");
    else if (tkc_failed(&full))
        tke_refuse(call, 403, "quota_storage", "%s", full.message);
    else if (no.status)
        tke_refuse(call, no.status, no.code, "%s", no.text);
    else
        tke_send_failure(call->reply, svc->a, &call->err);
}

void tke_handle_copy_weights(tke_call *call)
{
    tkc_copy_weights_request in;
    if (!tke_call_decode(call, &tkc_copy_weights_request_type, &in) || !check(call, &in))
        return;
    if (tke_call_header(call, "X-Tinker-Weights-Access-Token")) {
        tke_refuse(call, 400, "bad_request", "X-Tinker-Weights-Access-Token " TKE_NO_ACCESS_TOKEN);
        return;
    }
    const char *key;
    if (tke_take_key(call, "copy", &key))
        begin(call, &in, key);
}
