/* handlers_search.c - searching and finishing sessions, and the storage of their checkpoints.
 *
 * Owners see only their own sessions, so "accessible" finds what "own" finds.
 */
#include <assert.h>
#include <stdlib.h>
#include <strings.h>

#include "base/json_read.h"
#include "base/json_write.h"
#include "service/core/registry.h"
#include "service/core/runs.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/service_state.h"
#include "service/core/sessions.h"
#include "service/core/tenants.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/handlers.h"
#include "service/worker/worker_files.h"

/* A page ends at the first entry after so many bytes of metadata. */
enum { MAX_PAGE = 200, PAGE_BYTES = 1 << 20 };

/* ---- ending ---- */

const char *tke_finish_reason(const char *type)
{
    static const char *const names[] = { "success", "errored", "interrupted", NULL };
    for (size_t i = 0; type && names[i]; i++)
        if (strcmp(type, names[i]) == 0)
            return names[i];
    return NULL;
}

typedef struct finishing {
    tke_service *svc;
    const tke_session *session; /* has runs, so it is never forgotten */
    bool recorded;
} finishing;

static bool note_row(const tke_row *row, void *user, tinkc_error *err)
{
    (void)row;
    (void)err;
    ((finishing *)user)->recorded = true;
    return true;
}

static void find_note(tke_store *store, void *user, tinkc_error *err)
{
    finishing *f = user;
    tke_store_query(store, "SELECT 1 FROM session_notes WHERE id = ? AND finished IS NOT NULL",
                    note_row, f, err, "t", f->session->id);
}

static void unload_runs(void *user, const tinkc_error *err)
{
    finishing *f = user;
    tke_service *svc = f->svc;
    tke_run *run;
    pthread_mutex_lock(&svc->lock);
    for (size_t at = 0; f->recorded && !tkc_failed(err) && (run = tke_next_run(svc, &at));) {
        tinkc_error ignored = { 0 };
        char id[160];
        if (run->session == f->session)
            (void)tke_run_unload(svc, run, id, &ignored);
    }
    pthread_mutex_unlock(&svc->lock);
    tkc_release(svc->a, f, sizeof *f);
    tke_file_work_end(svc);
}

/* No request of a finished session is accepted, so its runs need neither memory nor images; their
 * checkpoints stay. Only once its end is on disk: a client that was not answered may continue. */
static void unload_when_recorded(tke_service *svc, const tke_session *s)
{
    tinkc_error err = { 0 };
    finishing *f = tkc_zalloc(svc->a, sizeof *f, &err);
    if (!f)
        return; /* the next start does it */
    *f = (finishing){ .svc = svc, .session = s };
    tke_file_work_begin(svc);
    tke_txn *txn = tke_txn_new(svc->store, &err);
    tke_txn_exec(txn, "SELECT 1", ""); /* fails with the group that it is in */
    tke_txn_call(txn, find_note, f);
    tke_txn_commit(txn, unload_runs, f);
}

/* The first finish counts; later ones change nothing. */
void tke_handle_finish(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_finish_session_request in;
    if (!tke_call_decode(call, &tkc_finish_session_request_type, &in))
        return;
    const char *reason = tke_finish_reason(in.reason.type);
    if (!reason) {
        tke_refuse(call, 422, "unprocessable",
                   "reason.type must be success, errored or interrupted");
        return;
    }
    tinkc_error full = { 0 };
    int32_t refused = 0;
    tke_txn *txn = tke_txn_new(svc->store, &call->err);
    pthread_mutex_lock(&svc->lock);
    tke_session *s = tke_find_session(svc, call->route.id);
    bool mine = s && tkc_cstr_eq(s->owner, call->owner);
    if (mine && !s->finished)
        refused = tke_kept_note(svc, s->owner, in.detail, &s->kept, &full);
    if (mine && !s->finished && !refused) {
        s->finish_detail = tke_copy(svc, in.detail, &call->err);
        s->finished = reason;
        s->expired = true; /* its memory may be released */
    }
    if (mine && !refused)
        /* Of a later finish too, which changes nothing: the first one's row may have failed to be
         * written. */
        tke_txn_exec(txn,
                     "INSERT INTO session_notes(id, finished, detail) VALUES(?, ?, ?) "
                     "ON CONFLICT(id) DO UPDATE SET finished = excluded.finished, "
                     "detail = excluded.detail WHERE finished IS NULL",
                     "ttt", s->id, s->finished, s->finish_detail);
    bool trained = mine && s->n_runs;
    pthread_mutex_unlock(&svc->lock);
    if (refused)
        tke_refuse_kept(call, txn, refused, &full);
    else if (mine)
        tke_answer_after(call, txn, 200, tkc_str("{}"));
    else
        tke_refuse_after(call, txn, 404, "not_found", "Unknown session '%.100s'", call->route.id);
    if (trained)
        unload_when_recorded(svc, s);
}

bool tke_session_over(tke_call *call, const char *id, const char *finished)
{
    if (finished)
        tke_refuse(call, 410, "session_finished", "The session '%.100s' was finished (%s)", id,
                   finished);
    return finished != NULL;
}

void tke_refuse_session(tke_call *call, int32_t status, const char *id, const char *finished)
{
    assert(status == 404 || status == 403 || (status == 410 && finished));
    if (status == 404)
        tke_refuse(call, 404, "not_found", "Unknown session '%.100s'", id);
    else if (status == 403)
        tke_refuse(call, 403, "forbidden", "Invalid session_id");
    else
        (void)tke_session_over(call, id, finished);
}

/* ---- matching ---- */

static bool in_list(const char *const *list, const char *text)
{
    for (; list && *list; list++)
        if (tkc_cstr_eq(*list, text))
            return true;
    return false;
}

/* Does every word appear in the name? Ignores case. */
static bool has_words(const char *name, const char *words)
{
    tinkc_str rest = tkc_str(words), word;
    while (tkc_str_cut(&rest, ' ', &word)) {
        bool found = word.len == 0;
        for (const char *at = name ? name : ""; !found && *at; at++)
            found = strncasecmp(at, word.data, word.len) == 0;
        if (!found)
            return false;
    }
    return true;
}

static bool has_pair(tke_call *call, const char *json, const char *name, const char *value)
{
    tinkc_error bad = { 0 };
    tinkc_str key;
    tkc_json j;
    bool found = false;
    tkc_json_open(&j, tkc_str(json), &call->arena, &bad);
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            if (tkc_str_is(key, name) && tkc_json_peek(&j) == TKC_JSON_STRING)
                found = tkc_str_is(tkc_json_string(&j), value);
            else
                tkc_json_skip(&j);
        }
    return found;
}

static bool has_state(const tkc_search_request *q, const tke_session *s)
{
    for (size_t i = 0; i < q->statuses.len; i++) {
        const tkc_search_status *want = &q->statuses.data[i];
        if (tkc_cstr_eq(want->type, "active") && !s->finished && !s->expired)
            return true;
        if (tkc_cstr_eq(want->type, "client_finished") && s->finished &&
            (!want->reasons || in_list(want->reasons, s->finished)))
            return true;
    }
    return q->statuses.len == 0;
}

static bool fits(tke_call *call, const tkc_search_request *q, const tke_session *s)
{
    bool any = !q->session_id && !q->display_name;
    bool named = (q->session_id && tkc_cstr_eq(q->session_id, s->id)) ||
                 (q->display_name && has_words(s->display_name, q->display_name));
    if (!tkc_cstr_eq(s->owner, call->owner) || !(any || named) || !has_state(q, s))
        return false;
    char urn[TKE_URN_TEXT];
    tke_owner_urn(s->owner, urn);
    if (tkc_cstr_eq(q->owner.type, "user") && !in_list(q->owner.owner_urns, urn))
        return false;
    if (q->project_ids && !in_list(q->project_ids, s->project_id))
        return false;
    for (const char *const *p = q->user_metadata.pairs; p && *p; p += 2)
        if (!s->user_metadata || !has_pair(call, s->user_metadata, p[0], p[1]))
            return false;
    return true;
}

/* ---- pages ---- */

/* Newest first; equal times by id. */
static int by_age(int64_t one_us, const char *one, int64_t two_us, const char *two)
{
    return one_us != two_us ? (one_us < two_us ? 1 : -1) : strcmp(one, two);
}

static int compare_sessions(const void *a, const void *b)
{
    const tke_session *one = *(const tke_session *const *)a, *two = *(const tke_session *const *)b;
    return by_age(one->created_us, one->id, two->created_us, two->id);
}

/* Locks: needs svc->lock, for what the message points to. */
static void fill_summary(tke_call *call, const tke_session *s, tkc_session_summary *out)
{
    const tke_checkpoint *c;
    int64_t bytes = 0;
    *out = (tkc_session_summary){ .session_id = s->id,
                                  .created_at = { .us = s->created_us },
                                  .owner = tke_call_urn(call, s->owner),
                                  .project_id = s->project_id ? s->project_id : "",
                                  .display_name = s->display_name,
                                  .user_metadata = { .json = tkc_str(s->user_metadata) } };
    for (size_t at = 0; (c = tke_next_checkpoint(call->svc, &at));) {
        if (!c->run || c->run->session != s || !tke_checkpoint_visible(call->svc, c))
            continue;
        out->checkpoints_count++;
        bytes += c->bytes;
    }
    out->checkpoint_storage_bytes = (tkc_opt_i64)TKC_SOME(bytes);
    tkc_session_status *status = tkc_arena_zalloc(&call->arena, sizeof *status, &call->err);
    if (!status || (!s->finished && s->expired))
        return;
    status->type.text = s->finished ? "client_finished" : "active";
    if (s->finished) {
        tkc_finish_reason *reason = tkc_arena_zalloc(&call->arena, sizeof *reason, &call->err);
        if (reason)
            reason->type = s->finished;
        status->reason = reason;
        status->detail = s->finish_detail;
    }
    out->status = status;
}

static tinkc_str write_cursor(tke_call *call, const tke_session *last)
{
    tkc_buf text;
    tinkc_str out = { 0 };
    tkc_search_cursor cursor = { .last_created_at = { .us = last->created_us },
                                 .last_session_id = last->id };
    tkc_buf_init(&text, call->svc->a, TKC_BUF_NO_MAX);
    if (tkc_message_encode(&tkc_search_cursor_type, &cursor, &text, &call->err))
        out = tkc_strn(tkc_arena_str(&call->arena, tkc_buf_view(&text), &call->err), text.len);
    tkc_buf_free(&text);
    return out;
}

/* False after an answer. */
static bool read_search(tke_call *call, tkc_search_request *q, tkc_search_cursor *from)
{
    *from = (tkc_search_cursor){ 0 };
    if (!tke_call_decode(call, &tkc_search_request_type, q))
        return false;
    const char *wrong = NULL;
    if (q->limit < 1 || q->limit > MAX_PAGE)
        wrong = "limit must be from 1 to 200";
    else if (!tkc_cstr_eq(q->owner.type, "own") && !tkc_cstr_eq(q->owner.type, "accessible") &&
             !tkc_cstr_eq(q->owner.type, "user"))
        wrong = "owner.type must be own, accessible or user";
    else if (q->cursor.len &&
             (!tkc_message_decode(&tkc_search_cursor_type, q->cursor, TINKC_E_UNPROCESSABLE,
                                  &call->arena, from, &call->err) ||
              from->last_created_at.us == TINKC_NO_TIME))
        wrong = "cursor is not from this server";
    if (wrong)
        tke_refuse(call, 422, "unprocessable", "%s", wrong);
    return !wrong;
}

void tke_handle_search(tke_call *call)
{
    tke_service *svc = call->svc;
    const tke_session *one;
    tkc_search_request q;
    tkc_search_cursor from;
    tkc_search_response out = { 0 };
    size_t n = 0, first = 0;
    if (!read_search(call, &q, &from))
        return;
    pthread_mutex_lock(&svc->lock);
    const tke_session **all =
        tkc_arena_array(&call->arena, tke_count(svc, TKE_SESSIONS) + 1, sizeof *all, &call->err);
    for (size_t at = 0; all && (one = tke_next_session(svc, &at));)
        if (fits(call, &q, one))
            all[n++] = one;
    if (all)
        qsort(all, n, sizeof *all, compare_sessions);
    /* Compared by time and id, not by position: sessions that were added or forgotten meanwhile
     * neither repeat nor skip others. */
    while (from.last_session_id && first < n &&
           by_age(all[first]->created_us, all[first]->id, from.last_created_at.us,
                  from.last_session_id) <= 0)
        first++;
    size_t page = 0;
    /* Pages end by bytes, too: 200 sessions with metadata of 32 KiB each would be an answer of 6
     * MiB, built under the lock. */
    for (size_t bytes = 0; page < (size_t)q.limit && first + page < n && bytes < PAGE_BYTES; page++)
        bytes += tkc_str(all[first + page]->user_metadata).len;
    tkc_session_summary *found = tkc_arena_array(&call->arena, page, sizeof *found, &call->err);
    for (size_t i = 0; found && i < page; i++)
        fill_summary(call, all[first + i], &found[i]);
    out.sessions.data = found;
    out.sessions.len = found ? page : 0;
    if (found && page && first + page < n)
        out.next_cursor = write_cursor(call, all[first + page - 1]);
    tke_answer_locked(call, &tkc_search_response_type, &out);
}

/* ---- checkpoints ---- */

static const char *project_of(const tke_checkpoint *c)
{
    return c->run && c->run->session ? c->run->session->project_id : NULL;
}

static bool is_kind(const tke_checkpoint *c, const char *type)
{
    return tkc_cstr_eq(type, "training")  ? c->kind == TKE_CKPT_TRAINING
           : tkc_cstr_eq(type, "sampler") ? c->kind == TKE_CKPT_SAMPLER
                                          : c->kind == TKE_CKPT_EXTERNAL;
}

/* Locks: needs svc->lock. */
static bool checkpoint_fits(tke_call *call, const tkc_checkpoint_search_request *q,
                            const tke_checkpoint *c)
{
    char urn[TKE_URN_TEXT];
    tke_owner_urn(call->owner, urn);
    if (!tkc_cstr_eq(c->owner, call->owner) || !tke_checkpoint_visible(call->svc, c))
        return false;
    if (tkc_cstr_eq(q->owner.type, "user") && !in_list(q->owner.owner_urns, urn))
        return false;
    if (q->checkpoint_type && !is_kind(c, q->checkpoint_type))
        return false;
    if (q->base_models && !(c->run && in_list(q->base_models, c->run->base_model)))
        return false;
    if (q->project_ids && !in_list(q->project_ids, project_of(c)))
        return false;
    tkc_checkpoint as = { 0 };
    if (q->user_metadata.pairs && q->user_metadata.pairs[0])
        tke_fill_checkpoint(call, c, &as);
    for (const char *const *p = q->user_metadata.pairs; p && *p; p += 2) {
        bool found = false;
        for (const char *const *have = as.user_metadata.pairs; have && *have; have += 2)
            found |= tkc_cstr_eq(have[0], p[0]) && tkc_cstr_eq(have[1], p[1]);
        if (!found)
            return false;
    }
    return true;
}

/* Locks: needs svc->lock. A project of which the caller has no session. NULL: none of the list. */
static const char *foreign_project(tke_call *call, const char *const *ids)
{
    const tke_session *s;
    for (; ids && *ids; ids++) {
        bool mine = false;
        for (size_t at = 0; (s = tke_next_session(call->svc, &at));) {
            mine |= tkc_cstr_eq(s->owner, call->owner) && tkc_cstr_eq(s->project_id, *ids);
        }
        if (!mine)
            return *ids;
    }
    return NULL;
}

static const char *wrong_owner(const tkc_search_owner *o)
{
    size_t n = 0;
    while (o->owner_urns && o->owner_urns[n])
        n++;
    if (!tkc_cstr_eq(o->type, "own") && !tkc_cstr_eq(o->type, "accessible") &&
        !tkc_cstr_eq(o->type, "user"))
        return "owner.type must be own, accessible or user";
    if (tkc_cstr_eq(o->type, "user") && (n < 1 || n > 10))
        return "owner.owner_urns must have 1 to 10 entries";
    return NULL;
}

/* False after an answer. */
static bool read_checkpoint_search(tke_call *call, tkc_checkpoint_search_request *q,
                                   tkc_checkpoint_cursor *from)
{
    *from = (tkc_checkpoint_cursor){ 0 };
    if (!tke_call_decode(call, &tkc_checkpoint_search_request_type, q))
        return false;
    const char *wrong = wrong_owner(&q->owner), *type = q->checkpoint_type;
    if (q->limit < 1 || q->limit > MAX_PAGE)
        wrong = "limit must be from 1 to 200";
    else if (type && !tkc_cstr_eq(type, "training") && !tkc_cstr_eq(type, "sampler") &&
             !tkc_cstr_eq(type, "external"))
        wrong = "checkpoint_type must be training, sampler or external";
    else if (q->cursor.len &&
             (!tkc_message_decode(&tkc_checkpoint_cursor_type, q->cursor, TINKC_E_UNPROCESSABLE,
                                  &call->arena, from, &call->err) ||
              from->last_created_at.us == TINKC_NO_TIME))
        wrong = "cursor is not from this server";
    if (wrong)
        tke_refuse(call, 422, "unprocessable", "%s", wrong);
    return !wrong;
}

static int compare_checkpoints(const void *a, const void *b)
{
    const tke_checkpoint *one = *(const tke_checkpoint *const *)a,
                         *two = *(const tke_checkpoint *const *)b;
    return by_age(one->created_us, one->path, two->created_us, two->path);
}

/* A checkpoint's path stands for its UUID: it names it for as long as it exists. */
static tinkc_str checkpoint_cursor(tke_call *call, const tke_checkpoint *last)
{
    tkc_buf text;
    tinkc_str out = { 0 };
    tkc_checkpoint_cursor cursor = { .last_created_at = { .us = last->created_us },
                                     .last_checkpoint_uuid = last->path };
    tkc_buf_init(&text, call->svc->a, TKC_BUF_NO_MAX);
    if (tkc_message_encode(&tkc_checkpoint_cursor_type, &cursor, &text, &call->err))
        out = tkc_strn(tkc_arena_str(&call->arena, tkc_buf_view(&text), &call->err), text.len);
    tkc_buf_free(&text);
    return out;
}

void tke_handle_checkpoint_search(tke_call *call)
{
    tke_service *svc = call->svc;
    const tke_checkpoint *one;
    tkc_checkpoint_search_request q;
    tkc_checkpoint_cursor from;
    tkc_checkpoint_search_response out = { 0 };
    size_t n = 0, first = 0;
    if (!read_checkpoint_search(call, &q, &from))
        return;
    pthread_mutex_lock(&svc->lock);
    const char *foreign = foreign_project(call, q.project_ids);
    if (foreign) {
        pthread_mutex_unlock(&svc->lock);
        tke_refuse(call, 403, "forbidden", "The project '%.100s' may not be listed", foreign);
        return;
    }
    const tke_checkpoint **all =
        tkc_arena_array(&call->arena, tke_count(svc, TKE_CHECKPOINTS) + 1, sizeof *all, &call->err);
    for (size_t at = 0; all && (one = tke_next_checkpoint(svc, &at));)
        if (checkpoint_fits(call, &q, one))
            all[n++] = one;
    if (all)
        qsort(all, n, sizeof *all, compare_checkpoints);
    while (from.last_checkpoint_uuid && first < n &&
           by_age(all[first]->created_us, all[first]->path, from.last_created_at.us,
                  from.last_checkpoint_uuid) <= 0)
        first++;
    size_t page = 0;
    for (size_t bytes = 0; page < (size_t)q.limit && first + page < n && bytes < PAGE_BYTES; page++)
        bytes += tkc_str(all[first + page]->user_metadata).len;
    tkc_checkpoint *found = tkc_arena_array(&call->arena, page, sizeof *found, &call->err);
    for (size_t i = 0; found && i < page; i++) {
        found[i] = (tkc_checkpoint){ 0 };
        tke_fill_checkpoint(call, all[first + i], &found[i]);
    }
    out.checkpoints.data = found;
    out.checkpoints.len = found ? page : 0;
    out.next_cursor = found && page && first + page < n
                          ? checkpoint_cursor(call, all[first + page - 1])
                          : tkc_str("null");
    tke_answer_locked(call, &tkc_checkpoint_search_response_type, &out);
}

/* ---- storage ---- */

static tkc_storage_item *item_of(tkc_storage_item *items, size_t *n, const char *project)
{
    for (size_t i = 0; i < *n; i++)
        if (tkc_cstr_eq(items[i].project_id, project))
            return &items[i];
    items[*n].project_id = project;
    return &items[(*n)++];
}

void tke_handle_storage(tke_call *call)
{
    tke_service *svc = call->svc;
    const tke_checkpoint *c;
    const char *only = tke_call_query(call, "project_id");
    tkc_storage_response out = { 0 };
    size_t n = 0;
    const char *urn = tke_call_urn(call, call->owner);
    pthread_mutex_lock(&svc->lock);
    tkc_storage_item *items =
        tkc_arena_array(&call->arena, tke_count(svc, TKE_SESSIONS) + 1, sizeof *items, &call->err);
    for (size_t at = 0; items && (c = tke_next_checkpoint(svc, &at));) {
        const tke_session *s = c->run ? c->run->session : NULL;
        const char *project = s ? s->project_id : NULL;
        if (!tkc_cstr_eq(c->owner, call->owner) || !tke_checkpoint_visible(svc, c) ||
            (only && !tkc_cstr_eq(only, project)))
            continue;
        tkc_storage_item *item = item_of(items, &n, project);
        item->org_user_urn = urn;
        item->checkpoint_count++;
        item->size_bytes += c->bytes;
        item->size_gigabytes = (double)item->size_bytes / 1e9;
    }
    out.data.data = items;
    out.data.len = n;
    tke_answer_locked(call, &tkc_storage_response_type, &out);
}
