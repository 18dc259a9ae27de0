/* rest.c - single records: runs, checkpoints, weights, sessions, audit, usage.
 *
 * May touch: its arguments, wire messages, tkc_rest_call. Must not: know of threads, sockets or
 * retries; all of those are below tkc_rest_call.
 */
#include "client/rest/rest_priv.h"

#include <stdio.h>
#include <string.h>
#include "client/core/client_priv.h"
#include "base/clock.h"
#include "base/json_read.h"
#include "base/str.h"
#include "codec/query.h"
#include "codec/tinker_path.h"
#include "tinkc/train.h"

/* ---- endpoints as calls ---- */

/* Method, pool, timeout and retries are those of the endpoint's row (wire/endpoint.c); nothing
 * about them is decided in this room. */

bool tkc_rest_spec(const tinkc_allocator *a, const tkc_rest_request *r, tkc_buf *path,
                   tkc_buf *body, tkc_call_spec *spec, tinkc_error *err)
{
    const tkc_endpoint *ep = tkc_endpoint_get(r->endpoint);
    const char *const ids[] = { r->ids[0], r->ids[1], NULL };
    tkc_buf_init(path, a, TKC_BUF_NO_MAX);
    tkc_buf_init(body, a, TKC_BUF_NO_MAX);
    tkc_endpoint_path(ep, ids, path, err);
    if (r->query)
        tkc_buf_cstr(path, r->query, err);
    if (r->message)
        tkc_message_encode(ep->request, r->message, body, err);
    const char *text = tkc_buf_terminate(path, err);
    if (tkc_failed(err))
        return false;
    *spec = tkc_call_to(r->endpoint);
    spec->path = text;
    spec->conflict_final = r->conflict_is_final;
    spec->headers = r->headers;
    spec->body = r->message ? body : NULL;
    return true;
}

tinkc_future *tkc_rest_start(tinkc_client *client, const tkc_rest_class *class,
                             const tkc_rest_request *request, tkc_decode_fn *decode,
                             tinkc_error *err)
{
    tkc_buf path, body;
    tkc_call_spec spec;
    tinkc_future *f = NULL;
    if (!tkc_client_check(client, err))
        return NULL;
    if (tkc_rest_spec(client->a, request, &path, &body, &spec, err))
        f = tkc_rest_call(client, class, &spec, decode, err);
    tkc_buf_free(&path);
    tkc_buf_free(&body);
    return f;
}

bool tkc_rest_decode(tinkc_future *f, const tkc_call *answer, const tkc_message *type, void *msg,
                     tinkc_error *err)
{
    tinkc_str json = { (const char *)answer->body.data, answer->body.len };
    return tkc_message_decode(type, json, TINKC_E_BAD_RESPONSE, &f->arena, msg, err);
}

bool tkc_check_id(const char *id, const char *name, tinkc_error *err)
{
    if (!id || !*id)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s is empty", name);
    return true;
}

/* Checked at the call; the Python SDK sends whatever it is given. */
const char *tkc_scope_name(int32_t scope, tinkc_error *err)
{
    if (scope == TINKC_OWNED)
        return "owned";
    if (scope == TINKC_ACCESSIBLE)
        return "accessible";
    tkc_fail(err, TINKC_E_ARGUMENT, "scope %d is neither TINKC_OWNED nor TINKC_ACCESSIBLE", scope);
    return NULL;
}

const char *tkc_make_query(tinkc_client *client, tkc_buf *buf, const char *const *pairs,
                           tinkc_error *err)
{
    tkc_query q;
    tkc_buf_init(buf, client ? client->a : NULL, TKC_BUF_NO_MAX);
    tkc_query_open(&q, buf, '?', err);
    for (; pairs[0]; pairs += 2)
        tkc_query_str(&q, pairs[0], pairs[1]);
    return tkc_buf_terminate(buf, err);
}

/* ---- records ---- */

int64_t tkc_time_us(const tkc_time *t)
{
    return t->text ? t->us : TINKC_NO_TIME;
}

void tkc_fill_checkpoint(tinkc_checkpoint *to, const tkc_checkpoint *from)
{
    int32_t kind = from->checkpoint_type.value;
    *to = (tinkc_checkpoint){
        .id = from->checkpoint_id,
        .path = from->tinker_path,
        .created = from->time.text,
        .expires = from->expires_at.text,
        .created_us = tkc_time_us(&from->time),
        .expires_us = tkc_time_us(&from->expires_at),
        .size_bytes = from->size_bytes.is == TKC_GIVEN ? from->size_bytes.value : -1,
        .kind = kind > 0 ? kind : 0,
        .is_public = from->is_public,
        .json = from->json,
        .user_metadata = from->user_metadata.pairs,
        .base_model = from->base_model,
    };
}

static const tinkc_checkpoint *new_checkpoint(tkc_arena *arena, const tkc_checkpoint *from,
                                              tinkc_error *err)
{
    tinkc_checkpoint *to = from ? tkc_arena_alloc(arena, sizeof *to, err) : NULL;
    if (to)
        tkc_fill_checkpoint(to, from);
    return to;
}

static int32_t rank_of(const tkc_opt_i64 *rank)
{
    return rank->is == TKC_GIVEN && rank->value >= 0 && rank->value <= INT32_MAX
               ? (int32_t)rank->value
               : 0;
}

bool tkc_fill_run(tinkc_run *to, const tkc_training_run *from, tkc_arena *arena, tinkc_error *err)
{
    *to = (tinkc_run){
        .id = from->training_run_id,
        .base_model = from->base_model,
        .owner = from->model_owner,
        .last_request = from->last_request_time.text,
        .last_request_us = tkc_time_us(&from->last_request_time),
        .last_checkpoint = new_checkpoint(arena, from->last_checkpoint, err),
        .last_sampler_checkpoint = new_checkpoint(arena, from->last_sampler_checkpoint, err),
        .user_metadata = from->user_metadata.pairs,
        .lora_rank = rank_of(&from->lora_rank),
        .is_lora = from->is_lora,
        .corrupted = from->corrupted,
        .json = from->json,
    };
    return !tkc_failed(err);
}

/* ---- one run ---- */

static const tkc_rest_class run_class = { "run_get", "run" };

static void decode_run(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_training_run *msg = tkc_arena_alloc(&f->arena, sizeof *msg, err);
    tinkc_run *run = msg ? tkc_arena_alloc(&f->arena, sizeof *run, err) : NULL;
    if (!run || !tkc_rest_decode(f, answer, &tkc_training_run_type, msg, err) ||
        !tkc_fill_run(run, msg, &f->arena, err))
        return;
    f->result = run;
}

tinkc_future *tinkc_run_get(tinkc_client *client, const char *run_id, int32_t scope,
                            tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    tkc_buf query;
    const char *name = tkc_check_id(run_id, "run_id", err) ? tkc_scope_name(scope, err) : NULL;
    const char *text =
        tkc_make_query(client, &query, (const char *[]){ "access_scope", name, NULL }, err);
    tinkc_future *f = NULL;
    if (!tkc_failed(err))
        f = tkc_rest_start(client, &run_class,
                           &(tkc_rest_request){
                               .endpoint = TKC_EP_TRAINING_RUN, .ids = { run_id }, .query = text },
                           decode_run, err);
    tkc_buf_free(&query);
    return f;
}

/* A span as a C string, for the endpoint table. */
static bool copy_span(char out[TKC_ID_TEXT], tinkc_str s, tinkc_error *err)
{
    if (s.len >= TKC_ID_TEXT)
        return tkc_fail(err, TINKC_E_PATH, "path: a part of it is longer than %d bytes",
                        TKC_ID_TEXT - 1);
    memcpy(out, s.data, s.len);
    out[s.len] = 0;
    return true;
}

bool tkc_path_ids_parse(const char *path, tkc_path_ids *out, tinkc_error *err)
{
    tinkc_path parts;
    if (!tkc_tinker_path_any(path, &parts, err) || !copy_span(out->run, parts.run_id, err) ||
        !copy_span(out->checkpoint, parts.checkpoint_id, err))
        return false;
    if (strchr(out->checkpoint, '/'))
        return true;
    /* tinker://RUN/NAME */
    int n = snprintf(out->checkpoint, sizeof out->checkpoint, "sampler_weights/%.*s",
                     (int)parts.name.len, parts.name.data);
    return n < TKC_ID_TEXT ||
           tkc_fail(err, TINKC_E_PATH, "path: longer than %d bytes", TKC_ID_TEXT - 1);
}

tinkc_future *tinkc_run_get_by_path(tinkc_client *client, const char *path, int32_t scope,
                                    tinkc_error *err)
{
    tinkc_error local;
    tkc_path_ids ids;
    if (!tkc_enter(&err, &local) || !tkc_path_ids_parse(path, &ids, err))
        return NULL;
    return tinkc_run_get(client, ids.run, scope, err);
}

const tinkc_run *tinkc_future_run(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    return tkc_future_get(f, "run", timeout_ms, err);
}

/* ---- one checkpoint ---- */

static void decode_weights(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_weights_info_response *msg = tkc_arena_alloc(&f->arena, sizeof *msg, err);
    tinkc_weights *weights = msg ? tkc_arena_zalloc(&f->arena, sizeof *weights, err) : NULL;
    if (!weights || !tkc_rest_decode(f, answer, &tkc_weights_info_response_type, msg, err))
        return;
    weights->base_model = msg->base_model;
    weights->is_lora = msg->is_lora;
    weights->lora_rank = rank_of(&msg->lora_rank);
    weights->json = msg->json;
    /* Missing means trained. */
    if (msg->train_mlp.is == TKC_GIVEN && !msg->train_mlp.value)
        weights->freeze |= TINKC_FREEZE_MLP;
    if (msg->train_attn.is == TKC_GIVEN && !msg->train_attn.value)
        weights->freeze |= TINKC_FREEZE_ATTN;
    if (msg->train_unembed.is == TKC_GIVEN && !msg->train_unembed.value)
        weights->freeze |= TINKC_FREEZE_UNEMBED;
    f->result = weights;
}

tinkc_future *tinkc_checkpoint_get(tinkc_client *client, const char *path, tinkc_error *err)
{
    static const tkc_rest_class class = { "checkpoint_get", "weights" };
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_tinker_path_given(path, err))
        return NULL;
    tkc_weights_info_request msg = { .tinker_path = path };
    return tkc_rest_start(client, &class,
                          &(tkc_rest_request){ .endpoint = TKC_EP_WEIGHTS_INFO, .message = &msg },
                          decode_weights, err);
}

const tinkc_weights *tinkc_future_weights(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    return tkc_future_get(f, "weights", timeout_ms, err);
}

/* Where nothing changed, one service answers 409 and another 200 with {"changed": false}: both are
 * CONFLICT. Any other body, or none, is a change. */
static void decode_change(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_json j;
    tinkc_str key;
    tinkc_error unread = { 0 };
    bool unchanged = false;
    if (!answer->body.len)
        return;
    tkc_json_open(&j, tkc_strn((const char *)answer->body.data, answer->body.len), &f->arena,
                  &unread);
    if (tkc_json_peek(&j) == TKC_JSON_OBJECT && tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            unchanged |= tkc_str_is(key, "changed") && tkc_json_peek(&j) == TKC_JSON_FALSE;
            tkc_json_skip(&j);
        }
    tkc_json_close(&j);
    if (unchanged && !tkc_failed(&unread))
        tkc_fail(err, TINKC_E_CONFLICT, "nothing changed: it was so already");
}

/* Calls on a path whose answer is nothing. A 409 is final: what is so already stays so. (The Python SDK
 * repeats it for five minutes.) */
static tinkc_future *act_on_path(tinkc_client *client, const tkc_rest_class *class,
                                 const char *path, int32_t endpoint, const void *message,
                                 tinkc_error *err)
{
    tkc_path_ids ids;
    if (!tkc_path_ids_parse(path, &ids, err))
        return NULL;
    return tkc_rest_start(client, class,
                          &(tkc_rest_request){ .endpoint = endpoint,
                                               .ids = { ids.run, ids.checkpoint },
                                               .message = message,
                                               .conflict_is_final = true },
                          decode_change, err);
}

tinkc_future *tinkc_checkpoint_delete(tinkc_client *client, const char *path, tinkc_error *err)
{
    static const tkc_rest_class class = { "checkpoint_delete", "nothing" };
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    return act_on_path(client, &class, path, TKC_EP_DELETE_CHECKPOINT, NULL, err);
}

tinkc_future *tinkc_checkpoint_publish(tinkc_client *client, const char *path, tinkc_error *err)
{
    static const tkc_rest_class class = { "checkpoint_publish", "nothing" };
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    return act_on_path(client, &class, path, TKC_EP_PUBLISH, NULL, err);
}

tinkc_future *tinkc_checkpoint_unpublish(tinkc_client *client, const char *path, tinkc_error *err)
{
    static const tkc_rest_class class = { "checkpoint_unpublish", "nothing" };
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    return act_on_path(client, &class, path, TKC_EP_UNPUBLISH, NULL, err);
}

tinkc_future *tinkc_checkpoint_set_ttl(tinkc_client *client, const char *path, int64_t ttl_s,
                                       tinkc_error *err)
{
    static const tkc_rest_class class = { "checkpoint_set_ttl", "nothing" };
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (ttl_s <= 0) {
        tkc_fail(err, TINKC_E_ARGUMENT, "ttl_s is %lld, must be above 0", (long long)ttl_s);
        return NULL;
    }
    tkc_ttl_request msg = { .ttl_seconds = TKC_SOME(ttl_s) };
    return act_on_path(client, &class, path, TKC_EP_SET_TTL, &msg, err);
}

tinkc_future *tinkc_checkpoint_clear_ttl(tinkc_client *client, const char *path, tinkc_error *err)
{
    static const tkc_rest_class class = { "checkpoint_clear_ttl", "nothing" };
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    /* null and not absent: only that removes the expiry. */
    tkc_ttl_request msg = { .ttl_seconds = { .is = TKC_NULL } };
    return act_on_path(client, &class, path, TKC_EP_SET_TTL, &msg, err);
}

/* ---- sessions ---- */

static void decode_session(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    static const char *const none[] = { NULL };
    tkc_session_response *msg = tkc_arena_alloc(&f->arena, sizeof *msg, err);
    tinkc_session *session = msg ? tkc_arena_alloc(&f->arena, sizeof *session, err) : NULL;
    if (!session || !tkc_rest_decode(f, answer, &tkc_session_response_type, msg, err))
        return;
    *session = (tinkc_session){
        .training_run_ids = msg->training_run_ids ? msg->training_run_ids : none,
        .sampler_ids = msg->sampler_ids ? msg->sampler_ids : none,
        .json = msg->json,
        .user_metadata = msg->user_metadata.pairs,
        .display_name = msg->display_name,
    };
    f->result = session;
}

tinkc_future *tinkc_session_get(tinkc_client *client, const char *session_id, int32_t scope,
                                tinkc_error *err)
{
    static const tkc_rest_class class = { "session_get", "session" };
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    tkc_buf query;
    const char *name =
        tkc_check_id(session_id, "session_id", err) ? tkc_scope_name(scope, err) : NULL;
    const char *text =
        tkc_make_query(client, &query, (const char *[]){ "access_scope", name, NULL }, err);
    tinkc_future *f = NULL;
    if (!tkc_failed(err))
        f = tkc_rest_start(
            client, &class,
            &(tkc_rest_request){ .endpoint = TKC_EP_SESSION, .ids = { session_id }, .query = text },
            decode_session, err);
    tkc_buf_free(&query);
    return f;
}

const tinkc_session *tinkc_future_session(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    return tkc_future_get(f, "session", timeout_ms, err);
}

tinkc_future *tinkc_session_assign(tinkc_client *client, const char *session_id,
                                   const char *project_id, tinkc_error *err)
{
    static const tkc_rest_class class = { "session_assign", "nothing" };
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_check_id(session_id, "session_id", err) ||
        !tkc_check_id(project_id, "project_id", err))
        return NULL;
    tkc_project_request msg = { .project_id = project_id };
    return tkc_rest_start(client, &class,
                          &(tkc_rest_request){ .endpoint = TKC_EP_ASSIGN_PROJECT,
                                               .ids = { session_id },
                                               .message = &msg },
                          NULL, err);
}

/* ---- audit ---- */

struct tinkc_audit {
    size_t n;
    const tinkc_audit_entry *entries;
};

static void decode_audit(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_audit_response msg;
    if (!tkc_rest_decode(f, answer, &tkc_audit_response_type, &msg, err))
        return;
    size_t n = msg.entries.len;
    tinkc_audit *audit = tkc_arena_alloc(&f->arena, sizeof *audit, err);
    tinkc_audit_entry *entries = audit ? tkc_arena_array(&f->arena, n, sizeof *entries, err) : NULL;
    if (!entries)
        return;
    for (size_t i = 0; i < n; i++) {
        const tkc_audit_entry *e = &msg.entries.data[i];
        entries[i] = (tinkc_audit_entry){ .time = e->timestamp.text,
                                          .time_us = tkc_time_us(&e->timestamp),
                                          .event = e->event,
                                          .model_id = e->model_id,
                                          .path = e->tinker_path,
                                          .purpose = e->purpose,
                                          .json = e->json };
    }
    *audit = (tinkc_audit){ n, entries };
    f->result = audit;
}

/* A calendar day as the service wants it: "YYYY-MM-DD" that exists. */
static bool is_day(const char *day)
{
    char text[TKC_TIME_TEXT];
    int64_t us;
    snprintf(text, sizeof text, "%.10sT00:00:00Z", day);
    return strlen(day) == 10 && tkc_parse_time(text, strlen(text), &us);
}

static bool check_event_type(const char *type, tinkc_error *err)
{
    static const char *const known[] = { "all", "checkpoints", "projects", "teams",
                                         "organizations" };
    for (size_t i = 0; type && i < sizeof known / sizeof *known; i++)
        if (strcmp(type, known[i]) == 0)
            return true;
    return !type || tkc_fail(err, TINKC_E_ARGUMENT,
                             "event_type must be \"all\", \"checkpoints\", \"projects\", "
                             "\"teams\" or \"organizations\"");
}

tinkc_future *tinkc_audit_get(tinkc_client *client, const char *event_type, const char *day,
                              tinkc_error *err)
{
    static const tkc_rest_class class = { "audit_get", "audit" };
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_event_type(event_type, err))
        return NULL;
    if (day && !is_day(day)) {
        tkc_fail(err, TINKC_E_ARGUMENT, "day must have the form YYYY-MM-DD");
        return NULL;
    }
    tkc_buf query;
    const char *text = tkc_make_query(
        client, &query,
        (const char *[]){ "event_type", event_type ? event_type : "all", "day", day, NULL }, err);
    tinkc_future *f = NULL;
    if (text)
        f = tkc_rest_start(client, &class,
                           &(tkc_rest_request){ .endpoint = TKC_EP_AUDIT, .query = text },
                           decode_audit, err);
    tkc_buf_free(&query);
    return f;
}

const tinkc_audit *tinkc_future_audit(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    return tkc_future_get(f, "audit", timeout_ms, err);
}

size_t tinkc_audit_count(const tinkc_audit *audit)
{
    return audit ? audit->n : 0;
}

const tinkc_audit_entry *tinkc_audit_at(const tinkc_audit *audit, size_t i)
{
    return audit && i < audit->n ? &audit->entries[i] : NULL;
}

/* ---- usage ---- */

struct tinkc_usage {
    size_t n, n_sessions;
    const tinkc_usage_event *events;
    const tinkc_usage_session *sessions;
    const char *costs_through;
};

static void fill_usage(tinkc_usage_event *to, const tkc_usage_event *from)
{
    const tkc_usage_info *info = &from->event_info;
    int32_t kind = info->type.value;
    *to = (tinkc_usage_event){
        .starts = from->bucket_start.text,
        .ends = from->bucket_end.text,
        .starts_us = tkc_time_us(&from->bucket_start),
        .ends_us = tkc_time_us(&from->bucket_end),
        .base_model = from->base_model,
        .user_id = from->user_id,
        .user_name = from->user_name,
        .session_id = from->session_id,
        .project_id = from->project_id,
        .type = info->type.text,
        .kind = kind > 0 ? kind : TINKC_USAGE_OTHER,
        .cached = info->cached.is == TKC_GIVEN && info->cached.value,
        .token_count = info->token_count.is == TKC_GIVEN ? info->token_count.value : 0,
        .count = info->count.is == TKC_GIVEN ? info->count.value : 0,
        .gigabyte_hours = info->gigabyte_hours.is == TKC_GIVEN ? info->gigabyte_hours.value : 0.0,
        .json = from->json,
    };
}

static void decode_usage(tinkc_future *f, const tkc_call *answer, tinkc_error *err)
{
    tkc_usage_response msg;
    if (!tkc_rest_decode(f, answer, &tkc_usage_response_type, &msg, err))
        return;
    tinkc_usage *usage = tkc_arena_alloc(&f->arena, sizeof *usage, err);
    tinkc_usage_event *events =
        usage ? tkc_arena_array(&f->arena, msg.data.len, sizeof *events, err) : NULL;
    tinkc_usage_session *sessions =
        events ? tkc_arena_array(&f->arena, msg.sessions.len, sizeof *sessions, err) : NULL;
    if (!sessions)
        return;
    for (size_t i = 0; i < msg.data.len; i++)
        fill_usage(&events[i], &msg.data.data[i]);
    for (size_t i = 0; i < msg.sessions.len; i++)
        sessions[i] = (tinkc_usage_session){ msg.sessions.data[i].session_id,
                                             msg.sessions.data[i].user_metadata.pairs };
    *usage = (tinkc_usage){ msg.data.len, msg.sessions.len, events, sessions,
                            msg.cost_data_through.text };
    f->result = usage;
}

static bool check_time(const char *text, const char *name, tinkc_error *err)
{
    int64_t us;
    if (!text || !tkc_parse_time(text, strlen(text), &us))
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s must have the form YYYY-MM-DDTHH:MM:SSZ", name);
    return true;
}

tinkc_future *tinkc_usage_get(tinkc_client *client, const char *starting_on,
                              const char *ending_before, tinkc_error *err)
{
    static const tkc_rest_class class = { "usage_get", "usage" };
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !check_time(starting_on, "starting_on", err) ||
        !check_time(ending_before, "ending_before", err))
        return NULL;
    tkc_buf query;
    const char *text = tkc_make_query(
        client, &query,
        (const char *[]){ "starting_on", starting_on, "ending_before", ending_before, NULL }, err);
    tinkc_future *f = NULL;
    if (text)
        f = tkc_rest_start(client, &class,
                           &(tkc_rest_request){ .endpoint = TKC_EP_USAGE, .query = text },
                           decode_usage, err);
    tkc_buf_free(&query);
    return f;
}

const tinkc_usage *tinkc_future_usage(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    return tkc_future_get(f, "usage", timeout_ms, err);
}

size_t tinkc_usage_count(const tinkc_usage *usage)
{
    return usage ? usage->n : 0;
}

const tinkc_usage_event *tinkc_usage_at(const tinkc_usage *usage, size_t i)
{
    return usage && i < usage->n ? &usage->events[i] : NULL;
}

const char *tinkc_usage_costs_through(const tinkc_usage *usage)
{
    return usage ? usage->costs_through : NULL;
}

size_t tinkc_usage_session_count(const tinkc_usage *usage)
{
    return usage ? usage->n_sessions : 0;
}

const tinkc_usage_session *tinkc_usage_session_at(const tinkc_usage *usage, size_t i)
{
    return usage && i < usage->n_sessions ? &usage->sessions[i] : NULL;
}
