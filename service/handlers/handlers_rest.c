/* handlers_rest.c - reading and managing runs, checkpoints, sessions and archives.
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
#include "service/handlers/downloads.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/handlers.h"
#include "service/handlers/unknown_fields.h"
#include "service/store/tar.h"

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
    const tkc_map_entry *e;
    const tke_checkpoint **all =
        tkc_arena_array(&call->arena, svc->checkpoints.n_live + 1, sizeof *all, &call->err);
    bool external = takes_external(call);
    *n = 0;
    for (size_t at = 0; all && (e = tkc_map_next(&svc->checkpoints, &at));) {
        const tke_checkpoint *c = e->value;
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
    const tkc_map_entry *e;
    for (size_t at = 0; (e = tkc_map_next(&svc->checkpoints, &at));) {
        const tke_checkpoint *c = e->value;
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
    const tkc_map_entry *e;
    const tke_checkpoint *last = NULL;
    for (size_t at = 0; (e = tkc_map_next(&call->svc->checkpoints, &at));) {
        const tke_checkpoint *c = e->value;
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
    const tkc_map_entry *e;
    const tke_run **all =
        tkc_arena_array(&call->arena, svc->runs.n_live + 1, sizeof *all, &call->err);
    *n = 0;
    for (size_t at = 0; all && (e = tkc_map_next(&svc->runs, &at));) {
        const tke_run *run = e->value;
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

/* The checkpoint that the request's path names, if it is the caller's; else answers and returns
 * NULL. public_too: also public ones of other owners. */
static tke_checkpoint *named(tke_call *call, bool public_too)
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
    tke_checkpoint *c = named(call, false);
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

/* ---- archives ---- */

static void http_date(int64_t wall_us, char out[40])
{
    static const char days[] = "ThuFriSatSunMonTueWed";
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    int64_t seconds = wall_us / 1000000, day_number = seconds / 86400, of_day = seconds % 86400;
    int32_t year, month, day;
    tkc_civil_from_days(day_number, &year, &month, &day);
    (void)snprintf(out, 40, "%.3s, %02d %.3s %04d %02d:%02d:%02d GMT", days + 3 * (day_number % 7),
                   (int)day, months + 3 * (month - 1), (int)year, (int)(of_day / 3600),
                   (int)(of_day / 60 % 60), (int)(of_day % 60));
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

/* Locks: needs svc->lock. 0, or the status of a refusal: full, or call->err, says why. */
static int32_t keep_link(tke_call *call, tke_checkpoint *c, const char *token, tinkc_error *full)
{
    tke_service *svc = call->svc;
    size_t kept = 0;
    int32_t refused =
        tke_kept_take(svc, call->owner, sizeof(tke_archive) + 2 * strlen(token), &kept, full);
    tke_archive *archive = refused ? NULL : tkc_zalloc(svc->a, sizeof *archive, &call->err);
    if (!archive) {
        tke_kept_give(svc, call->owner, &kept);
        return refused;
    }
    archive->kept = kept;
    archive->token = tke_copy(svc, token, &call->err);
    archive->owner = tke_copy(svc, call->owner, &call->err);
    archive->checkpoint = c;
    archive->expires_ms = tkc_now_ms(svc->clock) + svc->set.archive_ms;
    if (tkc_failed(&call->err) ||
        !tkc_map_set(&svc->archives, tkc_str(token), archive, NULL, &call->err))
        tke_archive_free(svc, archive);
    return 0;
}

/* A link with which anyone can download the checkpoint until it expires. NULL: answered. */
static const char *make_link(tke_call *call, tke_checkpoint *c)
{
    tke_service *svc = call->svc;
    char token[40];
    tinkc_error full = { 0 };
    unsigned long long low = tkc_random(svc->clock), high = tkc_random(svc->clock);
    (void)snprintf(token, sizeof token, "%016llx%016llx", high, low);
    const char *base = tke_call_base_url(call);
    pthread_mutex_lock(&svc->lock);
    int32_t refused = keep_link(call, c, token, &full);
    pthread_mutex_unlock(&svc->lock);
    char *url = tkc_arena_printf(&call->arena, &call->err, "%s/api/v1/archives/%s", base, token);
    if (refused)
        tke_refuse_kept(call, NULL, refused, &full);
    else if (tkc_failed(&call->err))
        tke_send_failure(call->reply, svc->a, &call->err);
    return refused || tkc_failed(&call->err) ? NULL : url;
}

/* The files of a checkpoint that clients may download, in the order of the archive. */
static const char *const shown_files[] = {
    "adapter_config.json",     "adapter_model.safetensors",
    "adapter_config.json.age", "adapter_model.safetensors.age",
    "optimizer.safetensors",   "train_state.json",
    "checkpoint_complete",     NULL
};

void tke_handle_external_urls(tke_call *call)
{
    tke_service *svc = call->svc;
    tke_checkpoint *c = named(call, true);
    if (!c)
        return;
    if (c->kind != TKE_CKPT_EXTERNAL) {
        tke_refuse(call, 400, "bad_request",
                   "'%.150s' is not external weights: save_weights_external writes them", c->path);
        return;
    }
    const char *link = make_link(call, c);
    if (!link)
        return;
    char *folder =
        tke_checkpoint_folder(svc, &call->arena, c->run_id, c->kind, c->name, &call->err);
    tkc_buf out;
    tkc_jsonw w;
    char when[TKC_TIME_TEXT];
    tkc_buf_init(&out, svc->a, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&w, &out, &call->err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "urls");
    tkc_jsonw_object(&w);
    for (const char *const *name = shown_files; *name && folder; name++) {
        char *path = tkc_path_join(&call->arena, folder, *name, &call->err);
        char *url = tkc_arena_printf(&call->arena, &call->err, "%s/%s", link, *name);
        if (!path || !url || !tkc_is_file(path) || tkc_cstr_eq(*name, "checkpoint_complete"))
            continue;
        tkc_jsonw_key(&w, *name);
        tkc_jsonw_cstr(&w, url);
    }
    tkc_jsonw_end(&w);
    tkc_format_time(tkc_wall_us(svc->clock) + svc->set.archive_ms * 1000, true, when);
    tkc_jsonw_key(&w, "expires");
    tkc_jsonw_cstr(&w, when);
    tkc_jsonw_end(&w);
    tke_answer_text(call, &out);
    tke_audit_add(svc, call->owner, "checkpoint_read", c->run_id, c->path, "download");
}

void tke_handle_archive(tke_call *call)
{
    tke_service *svc = call->svc;
    tke_checkpoint *c = named(call, true);
    char expires[40];
    if (!c)
        return;
    const char *url = make_link(call, c);
    if (!url)
        return;
    http_date(tkc_wall_us(svc->clock) + svc->set.archive_ms * 1000, expires);
    tinkc_reply *reply = call->reply;
    reply->status(reply, 302);
    reply->header(reply, "Location", url);
    reply->header(reply, "Expires", expires);
    reply->end(reply);
    tke_audit_add(svc, call->owner, "checkpoint_read", c->run_id, c->path, "download");
}

typedef struct download {
    tkc_job base;
    tke_service *svc;
    const tinkc_allocator *a;
    tinkc_reply *reply;
    char *folder;
    char *file;          /* one file; NULL = all as an archive */
    int64_t from, until; /* until may be past the end */
    bool ranged;
} download;

static bool write_part(void *user, const void *data, size_t len)
{
    tinkc_reply *reply = user;
    return reply->write(reply, data, len);
}

/* Sends status and headers, for all bytes or a range. False: answered, the range is invalid. */
static bool begin_download(const download *d, const char *type, int64_t total, int64_t until)
{
    tinkc_reply *reply = d->reply;
    char text[96];
    if (d->ranged && d->from >= until) {
        tke_send_error(reply, d->a, 416, "bad_range", "There are %lld bytes", (long long)total);
        return false;
    }
    reply->status(reply, d->ranged ? 206 : 200);
    reply->header(reply, "Content-Type", type);
    reply->header(reply, "Accept-Ranges", "bytes");
    (void)snprintf(text, sizeof text, "%lld", (long long)(until - d->from));
    reply->header(reply, "Content-Length", text);
    if (d->ranged) {
        (void)snprintf(text, sizeof text, "bytes %lld-%lld/%lld", (long long)d->from,
                       (long long)until - 1, (long long)total);
        reply->header(reply, "Content-Range", text);
    }
    return true;
}

static void send_archive(const download *d)
{
    tinkc_error err = { 0 };
    tke_tar tar;
    if (!tke_tar_plan(&tar, d->folder, shown_files, &err)) {
        tke_send_error(d->reply, d->a, 404, "not_found", "The checkpoint was deleted");
        return;
    }
    int64_t until = d->until < tar.total ? d->until : tar.total;
    if (!begin_download(d, "application/x-tar", tar.total, until))
        return;
    if (tke_tar_send(&tar, d->from, until, write_part, d->reply, &err))
        d->reply->end(d->reply);
    else
        d->reply->fail(d->reply, TINKC_E_CONNECTION, err.message);
}

static void send_file(const download *d)
{
    enum { PIECE = 1 << 18 };
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_mapping file = { 0 };
    tkc_arena_init(&arena, d->a, 0);
    char *path = tkc_path_join(&arena, d->folder, d->file, &err);
    bool mapped = path && tkc_map_file(path, &file, &err);
    tkc_arena_free(&arena);
    if (!mapped) {
        tke_send_error(d->reply, d->a, 404, "not_found", "There is no such file");
        return;
    }
    int64_t total = (int64_t)file.len, until = d->until < total ? d->until : total;
    if (begin_download(d, "application/octet-stream", total, until)) {
        bool wanted = true;
        for (int64_t at = d->from; wanted && at < until; at += PIECE)
            wanted = write_part(d->reply, (const char *)file.data + at,
                                (size_t)(until - at < PIECE ? until - at : PIECE));
        d->reply->end(d->reply);
    }
    tkc_unmap_file(&file);
}

static void free_download(download *d)
{
    if (d->file)
        tkc_release_str(d->a, d->file);
    if (d->folder)
        tkc_release_str(d->a, d->folder);
    tkc_release(d->a, d, sizeof *d);
}

static void run_download(tkc_job *job)
{
    download *d = (download *)job;
    if (d->file)
        send_file(d);
    else
        send_archive(d);
    pthread_mutex_lock(&d->svc->lock);
    d->svc->n_downloads--;
    pthread_mutex_unlock(&d->svc->lock);
    free_download(d);
}

/* Reads "bytes=5-" or "bytes=5-9"; one range only. Anything else is ignored, and all is sent. */
static void read_range(tke_call *call, download *d)
{
    const char *header = tke_call_header(call, "Range");
    tinkc_str text = tkc_str(header), first;
    int64_t from, last;
    d->until = INT64_MAX;
    if (!tkc_starts_with(text, "bytes="))
        return;
    text = tkc_strn(text.data + 6, text.len - 6);
    if (!tkc_str_cut(&text, '-', &first) || !text.data || !tkc_parse_i64(first, &from))
        return;
    if (text.len && (!tkc_parse_i64(text, &last) || last < from || last == INT64_MAX))
        return;
    d->ranged = true;
    d->from = from;
    if (text.len)
        d->until = last + 1;
}

/* Locks: needs svc->lock. Checks access again: who asked for the link may have lost it since. */
static bool may_fetch(tke_service *svc, const tke_archive *archive)
{
    const tke_checkpoint *c = archive->checkpoint;
    return archive->expires_ms > tkc_now_ms(svc->clock) && tke_checkpoint_visible(svc, c) &&
           (c->is_public || tkc_cstr_eq(c->owner, archive->owner));
}

static bool is_shown(tinkc_str name)
{
    for (const char *const *one = shown_files; *one; one++)
        if (tkc_str_is(name, *one))
            return true;
    return false;
}

/* "TOKEN" or "TOKEN/FILE". */
void tke_handle_download(tke_call *call, tinkc_str rest)
{
    tke_service *svc = call->svc;
    tinkc_str token = rest;
    download *d = tkc_zalloc(svc->a, sizeof *d, &call->err);
    if (!d) {
        tke_refuse(call, 503, "memory", "out of memory");
        return;
    }
    d->svc = svc;
    d->a = svc->a;
    d->reply = call->reply;
    bool one = tkc_str_find(rest, '/') != rest.len && tkc_str_cut(&rest, '/', &token);
    if (one)
        d->file = tkc_copy_str(svc->a, rest, &call->err);
    pthread_mutex_lock(&svc->lock);
    const tke_archive *archive = tkc_map_get(&svc->archives, token);
    if (archive && (!may_fetch(svc, archive) || (one && !is_shown(rest))))
        archive = NULL;
    bool full = svc->n_downloads >= TKE_MAX_DOWNLOADS;
    if (archive && !full) {
        const tke_checkpoint *c = archive->checkpoint;
        char *folder =
            tke_checkpoint_folder(svc, &call->arena, c->run_id, c->kind, c->name, &call->err);
        d->folder = tke_copy(svc, folder, &call->err);
    }
    bool ready = d->folder && !tkc_failed(&call->err);
    svc->n_downloads += ready;
    pthread_mutex_unlock(&svc->lock);
    if (!ready) {
        free_download(d);
        if (!archive)
            tke_refuse(call, 404, "not_found", "No such archive, or its link has expired");
        else
            tke_refuse(call, 503, full ? "busy" : "memory",
                       full ? "Too many downloads at once; try again" : "out of memory");
        return;
    }
    d->base.run = run_download;
    read_range(call, d);
    if (!tkc_pool_submit(svc->downloads, &d->base, &call->err)) {
        tke_send_failure(call->reply, svc->a, &call->err);
        pthread_mutex_lock(&svc->lock);
        svc->n_downloads--;
        pthread_mutex_unlock(&svc->lock);
        free_download(d);
    }
}

/* ---- sessions ---- */

void tke_handle_sessions(tke_call *call)
{
    tke_service *svc = call->svc;
    const tkc_map_entry *e;
    tkc_cursor cursor = { 0 };
    size_t n = 0, n_page = 0;
    bool accessible; /* or not: sessions are never shared */
    if (!take_page(call, 20, &cursor) || !take_scope(call, &accessible))
        return;
    pthread_mutex_lock(&svc->lock);
    size_t all = svc->sessions.n_live;
    const tke_session **mine = tkc_arena_array(&call->arena, all + 1, sizeof *mine, &call->err);
    const char **page = tkc_arena_array(&call->arena, all + 1, sizeof *page, &call->err);
    for (size_t at = 0; mine && page && (e = tkc_map_next(&svc->sessions, &at));) {
        const tke_session *s = e->value;
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
    const tkc_map_entry *e;
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
        tkc_arena_array(&call->arena, svc->runs.n_live + 1, sizeof *runs, &call->err);
    const char **samplers =
        tkc_arena_array(&call->arena, svc->samplers.n_live + 1, sizeof *samplers, &call->err);
    for (size_t at = 0; runs && (e = tkc_map_next(&svc->runs, &at));)
        if (((const tke_run *)e->value)->session == session)
            runs[n_runs++] = e->key;
    for (size_t at = 0; samplers && (e = tkc_map_next(&svc->samplers, &at));)
        if (((const tke_sampler *)e->value)->session == session)
            samplers[n_samplers++] = e->key;
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
    if (!tke_call_fields_known(call, &tkc_project_request_type))
        return;
    bool given = tkc_message_decode(&tkc_project_request_type, call->body, TINKC_E_UNPROCESSABLE,
                                    &call->arena, &in, &bad) &&
                 in.project_id && *in.project_id;
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
