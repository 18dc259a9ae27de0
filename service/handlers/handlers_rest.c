/* handlers_rest.c - reading and managing runs, checkpoints and sessions.
 *
 * Reads are served from memory. An object of another owner is answered with 404, as if it did not
 * exist.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "service/core/registry.h"
#include "service/core/runs.h"
#include "service/core/samplers.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/service_state.h"
#include "service/core/sessions.h"
#include "service/core/tenants.h"
#include "service/core/usage.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/handlers.h"
#include "service/handlers/unknown_fields.h"

enum { MAX_LIMIT = 1000 };

/* ---- checkpoints as messages ---- */

/* Clients accept strings only: anything else is shown as its JSON text. */
static void fill_metadata(tke_call *call, const char *json, tkc_metadata *out)
{
    tkc_create_session_request as;
    tinkc_error ignored = { 0 };
    char *wrapped =
        json ? tkc_arena_printf(&call->arena, &call->err,
                                "{\"tags\":[],\"sdk_version\":\"\",\"user_metadata\":%s}", json)
             : NULL;
    if (wrapped && tkc_message_decode(&tkc_create_session_request_type, tkc_str(wrapped),
                                      TINKC_E_STATE, &call->arena, &as, &ignored))
        out->pairs = as.user_metadata.pairs;
}

/* Fills a message that is all zero. Locks: needs svc->lock, for what the message points to. */
void tke_fill_checkpoint(tke_call *call, const tke_checkpoint *c, tkc_checkpoint *out)
{
    out->checkpoint_id =
        tkc_arena_printf(&call->arena, &call->err, "%s/%s", tke_kind_name(c->kind), c->name);
    out->checkpoint_type.text = c->kind == TKE_CKPT_SAMPLER    ? "sampler"
                                : c->kind == TKE_CKPT_EXTERNAL ? "external"
                                                               : "training";
    out->time.us = c->created_us;
    out->tinker_path = c->path;
    out->size_bytes = (tkc_opt_i64)TKC_SOME(c->bytes);
    out->is_public = c->is_public;
    out->expires_at.us = c->expires_us;
    out->base_model = c->run ? c->run->base_model : NULL;
    fill_metadata(call, c->user_metadata, &out->user_metadata);
}

bool tke_checkpoint_visible(tke_service *svc, const tke_checkpoint *c)
{
    return c->state == TKE_CKPT_DONE && (!c->expires_us || c->expires_us > tkc_wall_us(svc->clock));
}

static int newest_first(const void *a, const void *b)
{
    const tke_checkpoint *one = *(const tke_checkpoint *const *)a;
    const tke_checkpoint *two = *(const tke_checkpoint *const *)b;
    if (one->created_us != two->created_us)
        return one->created_us < two->created_us ? 1 : -1;
    return strcmp(one->path, two->path);
}

/* Releases of the Python SDK before 0.28 refuse a whole list that has external weights in it. */
static bool takes_external(tke_call *call)
{
    const char *version = tke_call_header(call, "X-Stainless-Package-Version");
    tinkc_str rest = tkc_str(version ? version : ""), major, minor;
    int64_t number;
    return !tke_call_is_python(call) || !tkc_str_cut(&rest, '.', &major) ||
           !tkc_str_is(major, "0") || !tkc_str_cut(&rest, '.', &minor) ||
           !tkc_parse_i64(minor, &number) || number >= 28;
}

/* All visible checkpoints of the caller (run_id NULL) or of a run, newest first; in the arena.
 * Locks: needs svc->lock. */
static const tke_checkpoint **collect(tke_call *call, const char *run_id, size_t *n)
{
    tke_service *svc = call->svc;
    const tke_checkpoint *c;
    const tke_checkpoint **all =
        tkc_arena_array(&call->arena, tke_count(svc, TKE_CHECKPOINTS) + 1, sizeof *all, &call->err);
    bool external = takes_external(call);
    *n = 0;
    for (size_t at = 0; all && (c = tke_next_checkpoint(svc, &at));) {
        if (!tke_checkpoint_visible(svc, c) || (!external && c->kind == TKE_CKPT_EXTERNAL) ||
            (run_id && !tkc_cstr_eq(c->run_id, run_id)) ||
            (!run_id && !tkc_cstr_eq(c->owner, call->owner)))
            continue;
        all[(*n)++] = c;
    }
    if (all)
        qsort(all, *n, sizeof *all, newest_first);
    return all;
}

/* Reads limit and offset of the query. False: answered. */
static bool take_page(tke_call *call, int64_t fallback, tkc_cursor *cursor)
{
    if (!tke_call_query_i64(call, "limit", fallback, &cursor->limit) ||
        !tke_call_query_i64(call, "offset", 0, &cursor->offset))
        return false;
    /* Cut, not refused: a client that asks for more reads the rest with further pages. */
    if (cursor->limit > MAX_LIMIT)
        cursor->limit = MAX_LIMIT;
    return true;
}

static bool on_page(const tkc_cursor *cursor, size_t i)
{
    return (int64_t)i >= cursor->offset && (int64_t)i - cursor->offset < cursor->limit;
}

/* ---- runs ---- */

static bool run_is_shared(tke_service *svc, const tke_run *run)
{
    const tke_checkpoint *c;
    for (size_t at = 0; (c = tke_next_checkpoint(svc, &at));) {
        if (c->run == run && c->is_public && tke_checkpoint_visible(svc, c))
            return true;
    }
    return false;
}

/* May this caller see the run, with the scope that the query names? Locks: needs svc->lock. */
static bool may_see(tke_call *call, const tke_run *run, bool accessible)
{
    return tkc_cstr_eq(run->owner, call->owner) || (accessible && run_is_shared(call->svc, run));
}

/* False: answered, the scope is not one. */
static bool take_scope(tke_call *call, bool *accessible)
{
    const char *scope = tke_call_query(call, "access_scope");
    *accessible = scope && tkc_cstr_eq(scope, "accessible");
    if (tkc_failed(&call->err))
        tke_send_failure(call->reply, call->svc->a, &call->err);
    else if (scope && *scope && !*accessible && !tkc_cstr_eq(scope, "owned"))
        tke_refuse(call, 400, "bad_request", "access_scope must be 'owned' or 'accessible'");
    else
        return true;
    return false;
}

/* The newest checkpoint of a kind, or NULL. */
static const tkc_checkpoint *last_checkpoint(tke_call *call, const tke_run *run, int32_t kind)
{
    const tke_checkpoint *c;
    const tke_checkpoint *last = NULL;
    for (size_t at = 0; (c = tke_next_checkpoint(call->svc, &at));) {
        if (c->run == run && c->kind == kind && tke_checkpoint_visible(call->svc, c) &&
            (!last || c->created_us > last->created_us))
            last = c;
    }
    tkc_checkpoint *out =
        last ? tkc_arena_zalloc(&call->arena, sizeof(tkc_checkpoint), &call->err) : NULL;
    if (out)
        tke_fill_checkpoint(call, last, out);
    return out;
}

const char *tke_call_urn(tke_call *call, const char *owner)
{
    char urn[TKE_URN_TEXT];
    tke_owner_urn(owner, urn);
    return tkc_arena_str(&call->arena, tkc_str(urn), &call->err);
}

static void fill_run(tke_call *call, const tke_run *run, tkc_training_run *out)
{
    *out = (tkc_training_run){ .training_run_id = run->id,
                               .base_model = run->base_model,
                               .model_owner = tke_call_urn(call, run->owner),
                               .is_lora = true,
                               .corrupted = run->corrupted,
                               .lora_rank = TKC_SOME(run->spec.rank),
                               .last_request_time = { NULL, run->last_request_us },
                               .last_checkpoint = last_checkpoint(call, run, TKE_CKPT_TRAINING),
                               .last_sampler_checkpoint =
                                   last_checkpoint(call, run, TKE_CKPT_SAMPLER) };
    fill_metadata(call, run->user_metadata, &out->user_metadata);
}

void tke_handle_run(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_training_run out;
    bool accessible;
    if (!take_scope(call, &accessible))
        return;
    pthread_mutex_lock(&svc->lock);
    const tke_run *run = tke_find_run(svc, call->route.id);
    if (run && !may_see(call, run, accessible))
        run = NULL;
    if (run)
        fill_run(call, run, &out);
    tkc_buf body;
    tkc_buf_init(&body, svc->a, TKC_BUF_NO_MAX);
    if (run)
        tkc_message_encode(&tkc_training_run_type, &out, &body, &call->err);
    pthread_mutex_unlock(&svc->lock);
    if (!run)
        tke_refuse(call, 404, "not_found", "No training run '%.150s'", call->route.id);
    else if (tkc_failed(&call->err))
        tke_send_failure(call->reply, svc->a, &call->err);
    else
        tke_send_json(call->reply, 200, tkc_buf_view(&body));
    tkc_buf_free(&body);
}

static int latest_first(const void *a, const void *b)
{
    const tke_run *one = *(const tke_run *const *)a, *two = *(const tke_run *const *)b;
    if (one->last_request_us != two->last_request_us)
        return one->last_request_us < two->last_request_us ? 1 : -1;
    return strcmp(one->id, two->id);
}

/* Runs that the caller may see, latest request first. Locks: needs svc->lock. */
static const tke_run **collect_runs(tke_call *call, const char *project, bool accessible, size_t *n)
{
    tke_service *svc = call->svc;
    const tke_run *run;
    const tke_run **all =
        tkc_arena_array(&call->arena, tke_count(svc, TKE_RUNS) + 1, sizeof *all, &call->err);
    *n = 0;
    for (size_t at = 0; all && (run = tke_next_run(svc, &at));) {
        if (!may_see(call, run, accessible) ||
            (project && *project && !tkc_cstr_eq(run->session->project_id, project)))
            continue;
        all[(*n)++] = run;
    }
    if (all)
        qsort(all, *n, sizeof *all, latest_first);
    return all;
}

/* Encodes under the lock (the message points to guarded strings), unlocks, then sends. */
void tke_answer_locked(tke_call *call, const tkc_message *type, const void *msg)
{
    tke_service *svc = call->svc;
    tkc_buf body;
    tkc_buf_init(&body, svc->a, TKC_BUF_NO_MAX);
    tkc_message_encode(type, msg, &body, &call->err);
    pthread_mutex_unlock(&svc->lock);
    tke_answer_text(call, &body);
}

void tke_handle_runs(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_cursor cursor = { 0 };
    size_t n, n_page = 0;
    bool accessible;
    const char *project = tke_call_query(call, "project_id");
    if (!take_page(call, 20, &cursor) || !take_scope(call, &accessible))
        return;
    pthread_mutex_lock(&svc->lock);
    const tke_run **all = collect_runs(call, project, accessible, &n);
    cursor.total_count = (int64_t)n;
    tkc_training_run *page = tkc_arena_array(&call->arena, n + 1, sizeof *page, &call->err);
    for (size_t i = 0; page && i < n; i++)
        if (on_page(&cursor, i))
            fill_run(call, all[i], &page[n_page++]);
    tkc_training_runs_response out = { .cursor = &cursor };
    out.training_runs.data = page;
    out.training_runs.len = n_page;
    tke_answer_locked(call, &tkc_training_runs_response_type, &out);
}

/* ---- lists of checkpoints ---- */

static void send_checkpoints(tke_call *call, const tke_checkpoint **all, size_t n,
                             const tkc_cursor *cursor)
{
    size_t n_page = 0;
    tkc_checkpoint *page = tkc_arena_array(&call->arena, n + 1, sizeof *page, &call->err);
    for (size_t i = 0; page && i < n; i++)
        if (!cursor || on_page(cursor, i))
            tke_fill_checkpoint(call, all[i], &page[n_page++]);
    tkc_checkpoints_response out = { .cursor = cursor };
    out.checkpoints.data = page;
    out.checkpoints.len = n_page;
    tke_answer_locked(call, &tkc_checkpoints_response_type, &out);
}

void tke_handle_checkpoints(tke_call *call)
{
    tkc_cursor cursor = { 0 };
    size_t n;
    if (!take_page(call, 100, &cursor))
        return;
    pthread_mutex_lock(&call->svc->lock);
    const tke_checkpoint **all = collect(call, NULL, &n);
    cursor.total_count = (int64_t)n;
    send_checkpoints(call, all, n, &cursor);
}

void tke_handle_run_checkpoints(tke_call *call)
{
    tke_service *svc = call->svc;
    size_t n;
    pthread_mutex_lock(&svc->lock);
    const tke_run *run = tke_find_run(svc, call->route.id);
    if (!run || !tkc_cstr_eq(run->owner, call->owner)) {
        pthread_mutex_unlock(&svc->lock);
        tke_refuse(call, 404, "not_found", "No training run '%.150s'", call->route.id);
        return;
    }
    const tke_checkpoint **all = collect(call, run->id, &n);
    send_checkpoints(call, all, n, NULL);
}

/* ---- one checkpoint ---- */

tke_checkpoint *tke_call_checkpoint(tke_call *call, bool public_too)
{
    tke_service *svc = call->svc;
    tinkc_str id = tkc_str(call->route.ckpt);
    if (!tkc_starts_with(id, "weights/") && !tkc_starts_with(id, "sampler_weights/") &&
        !tkc_starts_with(id, "external_weights/")) {
        tke_refuse(call, 400, "bad_request",
                   "Invalid checkpoint identifier. Expected format 'weights/<name>', "
                   "'sampler_weights/<name>' or 'external_weights/<name>'");
        return NULL;
    }
    char *path = tkc_arena_printf(&call->arena, &call->err, "tinker://%s/%s", call->route.id,
                                  call->route.ckpt);
    if (!path) { /* not "there is none" */
        tke_send_failure(call->reply, svc->a, &call->err);
        return NULL;
    }
    pthread_mutex_lock(&svc->lock);
    tke_checkpoint *c = tke_find_checkpoint(svc, path, NULL);
    if (c && !(tkc_cstr_eq(c->owner, call->owner) || (public_too && c->is_public)))
        c = NULL;
    bool written = c && c->state == TKE_CKPT_DONE;
    pthread_mutex_unlock(&svc->lock);
    if (c && !written) { /* new, overwritten, or repeated after a restart */
        tke_refuse(call, 503, "busy", "Checkpoint '%.200s' is being written", path);
        return NULL;
    }
    if (!c)
        tke_refuse(call, 404, "not_found", "No checkpoint '%.200s'", path);
    return c;
}

static void delete_checkpoint(tke_call *call, tke_checkpoint *c)
{
    tke_service *svc = call->svc;
    pthread_mutex_lock(&svc->lock);
    /* Asked and taken in one step: of two deletions that arrive together, only one may move the
     * folder. */
    bool first = c->state == TKE_CKPT_DONE;
    if (first)
        tke_checkpoint_remove(svc, c);
    pthread_mutex_unlock(&svc->lock);
    if (!first) {
        tke_refuse(call, 404, "not_found", "No checkpoint '%.200s'", c->path);
        return;
    }
    tke_checkpoint_delete(svc, c, call->reply);
}

/* A change of a checkpoint's row. It is visible at once, so that changes take effect in the order of
 * their requests, and is undone if it cannot be recorded. */
typedef struct change {
    tke_service *svc;
    tinkc_reply *reply;
    tke_checkpoint *checkpoint;
    const char *event; /* of the audit; static */
    bool is_public;    /* before and after: is it public, or when does it expire? */
    int64_t before, after;
} change;

static void undo_change(const change *x)
{
    tke_checkpoint *c = x->checkpoint;
    pthread_mutex_lock(&x->svc->lock);
    /* Only if nobody has changed it since: a later change that was recorded must stay. */
    if (x->is_public && c->is_public == x->after)
        c->is_public = x->before != 0;
    else if (!x->is_public && c->expires_us == x->after)
        c->expires_us = x->before;
    pthread_mutex_unlock(&x->svc->lock);
}

static void change_recorded(void *user, const tinkc_error *err)
{
    change *x = user;
    const tke_checkpoint *c = x->checkpoint;
    if (tkc_failed(err)) {
        undo_change(x);
        tke_send_failure(x->reply, x->svc->a, err);
    } else {
        tke_audit_add(x->svc, c->owner, x->event, c->run_id, c->path, NULL);
        tke_send_json(x->reply, 200, tkc_str("{}"));
    }
    tkc_release(x->svc->a, x, sizeof *x);
}

static void record_change(tke_call *call, const change *made)
{
    tke_service *svc = call->svc;
    const tke_checkpoint *c = made->checkpoint;
    change *x = tkc_alloc(svc->a, sizeof *x, &call->err);
    if (!x) {
        undo_change(made);
        tke_send_failure(call->reply, svc->a, &call->err);
        return;
    }
    *x = *made;
    x->reply = call->reply;
    tke_txn *txn = tke_txn_new(svc->store, &call->err);
    tke_txn_exec(
        txn,
        x->is_public
            ? "UPDATE checkpoints SET public = ? WHERE run_id = ? AND kind = ? AND name = ?"
            : "UPDATE checkpoints SET expires_us = ? WHERE run_id = ? AND kind = ? AND name = ?",
        "itit", x->after, c->run_id, (int64_t)c->kind, c->name);
    tke_txn_commit(txn, change_recorded, x);
}

static void publish(tke_call *call, tke_checkpoint *c, bool is_public)
{
    pthread_mutex_lock(&call->svc->lock);
    bool before = c->is_public;
    c->is_public = is_public;
    pthread_mutex_unlock(&call->svc->lock);
    if (before == is_public)
        tke_send_json(call->reply, 200, tkc_str("{\"changed\":false}"));
    else
        record_change(call,
                      &(change){ .svc = call->svc,
                                 .checkpoint = c,
                                 .event = is_public ? "checkpoint_publish" : "checkpoint_unpublish",
                                 .is_public = true,
                                 .before = before,
                                 .after = is_public });
}

const char *tke_wrong_ttl(tkc_opt_i64 ttl)
{
    enum { HOUR = 3600, TEN_YEARS = 3653 * 24 * HOUR }; /* the SDK's documented limits */
    if (ttl.is != TKC_GIVEN || (ttl.value >= HOUR && ttl.value <= TEN_YEARS))
        return NULL;
    return ttl.value < HOUR ? "ttl_seconds must be at least 3600 (one hour)"
                            : "ttl_seconds must be at most 315619200 (ten years)";
}

static void set_ttl(tke_call *call, tke_checkpoint *c)
{
    tke_service *svc = call->svc;
    tkc_ttl_request in;
    if (!tke_call_decode(call, &tkc_ttl_request_type, &in))
        return;
    if (tke_wrong_ttl(in.ttl_seconds)) {
        tke_refuse(call, 400, "bad_request", "%s", tke_wrong_ttl(in.ttl_seconds));
        return;
    }
    pthread_mutex_lock(&svc->lock);
    int64_t before = c->expires_us;
    c->expires_us = in.ttl_seconds.is == TKC_GIVEN
                        ? tkc_wall_us(svc->clock) + in.ttl_seconds.value * 1000000
                        : 0;
    int64_t after = c->expires_us;
    pthread_mutex_unlock(&svc->lock);
    record_change(call, &(change){ .svc = svc,
                                   .checkpoint = c,
                                   .event = "checkpoint_ttl_set",
                                   .before = before,
                                   .after = after });
}

void tke_handle_checkpoint_change(tke_call *call)
{
    tke_checkpoint *c = tke_call_checkpoint(call, false);
    if (!c)
        return;
    switch (call->route.endpoint->id) {
    case TKC_EP_DELETE_CHECKPOINT:
        delete_checkpoint(call, c);
        break;
    case TKC_EP_SET_TTL:
        set_ttl(call, c);
        break;
    default:
        publish(call, c, call->route.endpoint->id == TKC_EP_PUBLISH);
        break;
    }
}

void tke_handle_weights_info(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_weights_info_request in;
    const char *run_id, *name;
    int32_t kind;
    if (!tke_call_decode(call, &tkc_weights_info_request_type, &in))
        return;
    if (!tke_path_split(&call->arena, in.tinker_path, &run_id, &kind, &name, &call->err)) {
        tke_refuse(call, 400, "bad_request", "%s", call->err.message);
        return;
    }
    pthread_mutex_lock(&svc->lock);
    const tke_checkpoint *c = tke_find_checkpoint(svc, in.tinker_path, NULL);
    bool visible = c && c->state == TKE_CKPT_DONE && c->run &&
                   (c->is_public || tkc_cstr_eq(c->owner, call->owner));
    tkc_weights_info_response out = { .is_lora = true };
    if (visible) {
        uint32_t train = c->run->spec.train;
        out.base_model = c->run->base_model;
        out.lora_rank = (tkc_opt_i64)TKC_SOME(c->run->spec.rank);
        out.train_attn = (tkc_opt_bool)TKC_SOME((train & TKE_TRAIN_ATTN) != 0);
        out.train_mlp = (tkc_opt_bool)TKC_SOME((train & TKE_TRAIN_MLP) != 0);
        out.train_unembed = (tkc_opt_bool)TKC_SOME((train & TKE_TRAIN_UNEMBED) != 0);
    }
    pthread_mutex_unlock(&svc->lock);
    if (visible)
        tke_answer(call, &tkc_weights_info_response_type, &out);
    else
        tke_refuse(call, 404, "not_found", "No checkpoint '%.200s'", in.tinker_path);
}

const char *tke_call_base_url(tke_call *call)
{
    const char *set = call->svc->set.public_url;
    const char *base = set[0] ? set : call->request->base_url;
    if (!base || !*base)
        base = "http://engine.local";
    size_t len = strlen(base);
    while (len && base[len - 1] == '/') /* clients write their base with one or without */
        len--;
    const char *copy = tkc_arena_str(&call->arena, tkc_strn(base, len), &call->err);
    return copy ? copy : "";
}

/* ---- sessions ---- */

void tke_handle_sessions(tke_call *call)
{
    tke_service *svc = call->svc;
    const tke_session *s;
    tkc_cursor cursor = { 0 };
    size_t n = 0, n_page = 0;
    bool accessible; /* or not: sessions are never shared */
    if (!take_page(call, 20, &cursor) || !take_scope(call, &accessible))
        return;
    pthread_mutex_lock(&svc->lock);
    size_t all = tke_count(svc, TKE_SESSIONS);
    const tke_session **mine = tkc_arena_array(&call->arena, all + 1, sizeof *mine, &call->err);
    const char **page = tkc_arena_array(&call->arena, all + 1, sizeof *page, &call->err);
    for (size_t at = 0; mine && page && (s = tke_next_session(svc, &at));) {
        if (tkc_cstr_eq(s->owner, call->owner))
            mine[n++] = s; /* in order of creation */
    }
    for (size_t i = 0; i < n; i++)
        if (on_page(&cursor, i))
            page[n_page++] = mine[n - 1 - i]->id;
    tke_answer_locked(call, &tkc_sessions_response_type,
                      &(tkc_sessions_response){ .sessions = page });
}

/* The caller's session that the path names, or NULL. Locks: needs svc->lock. */
static tke_session *own_session(tke_call *call)
{
    tke_session *s = tke_find_session(call->svc, call->route.id);
    return s && tkc_cstr_eq(s->owner, call->owner) ? s : NULL;
}

static void refuse_session(tke_call *call)
{
    tke_refuse(call, 404, "not_found", "Unknown session '%.100s'", call->route.id);
}

void tke_handle_session(tke_call *call)
{
    tke_service *svc = call->svc;
    const tke_run *run;
    const tke_sampler *sampler;
    size_t n_runs = 0, n_samplers = 0;
    bool accessible;
    if (!take_scope(call, &accessible))
        return;
    pthread_mutex_lock(&svc->lock);
    const tke_session *session = own_session(call);
    if (!session) {
        pthread_mutex_unlock(&svc->lock);
        refuse_session(call);
        return;
    }
    const char **runs =
        tkc_arena_array(&call->arena, tke_count(svc, TKE_RUNS) + 1, sizeof *runs, &call->err);
    const char **samplers = tkc_arena_array(&call->arena, tke_count(svc, TKE_SAMPLERS) + 1,
                                            sizeof *samplers, &call->err);
    for (size_t at = 0; runs && (run = tke_next_run(svc, &at));)
        if (run->session == session)
            runs[n_runs++] = run->id;
    for (size_t at = 0; samplers && (sampler = tke_next_sampler(svc, &at));)
        if (sampler->session == session)
            samplers[n_samplers++] = sampler->id;
    tke_answer_locked(
        call, &tkc_session_response_type,
        &(tkc_session_response){ .training_run_ids = runs,
                                 .sampler_ids = samplers,
                                 .user_metadata = { .json = tkc_str(session->user_metadata) },
                                 .display_name = session->display_name });
}

void tke_handle_project(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_project_request in;
    tinkc_error bad = { 0 };
    bool given = tkc_message_decode_noting(&tkc_project_request_type, call->body,
                                           TINKC_E_UNPROCESSABLE, &call->arena, &in, &call->unknown,
                                           &bad) &&
                 in.project_id && *in.project_id;
    if (!tke_call_fields_known(call))
        return;
    if (given && strlen(in.project_id) > TKE_MAX_PROJECT) {
        tke_refuse(call, 400, "bad_request", "project_id may have %d bytes", TKE_MAX_PROJECT);
        return;
    }
    pthread_mutex_lock(&svc->lock);
    tke_session *session = own_session(call);
    char *copy = session && given ? tke_copy(svc, in.project_id, &call->err) : NULL;
    if (copy) {
        if (session->project_id)
            tkc_release_str(svc->a, session->project_id);
        session->project_id = copy;
    }
    pthread_mutex_unlock(&svc->lock);
    if (!session) {
        refuse_session(call);
    } else if (!given) {
        tke_refuse(call, 400, "bad_request", "project_id is required");
    } else if (!copy) {
        tke_send_failure(call->reply, svc->a, &call->err);
    } else {
        tke_txn *txn = tke_txn_new(svc->store, &call->err);
        tke_txn_exec(txn, "UPDATE sessions SET project_id = ? WHERE id = ?", "tt", in.project_id,
                     call->route.id);
        tke_answer_after(call, txn, 200, tkc_str("{}"));
    }
}

void tke_handle_trace(tke_call *call)
{
    pthread_mutex_lock(&call->svc->lock);
    bool known = own_session(call) != NULL;
    pthread_mutex_unlock(&call->svc->lock);
    if (known)
        tke_send_json(
            call->reply, 200,
            tkc_str("{\"status\":\"failed\",\"url\":null,\"error\":\"not supported by this "
                    "server\"}"));
    else
        refuse_session(call);
}
