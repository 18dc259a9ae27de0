/* usage.c - usage by owner (hourly counters) and the audit log.
 *
 * Counters are kept in memory and written to the store every few seconds; audit entries at once.
 */
#include <stdio.h>

#include "service/core/registry.h"
#include "service/core/service_state.h"
#include "service/core/tenants.h"
#include "service/core/usage.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/handlers.h"

#define HOUR_US ((int64_t)3600 * 1000000)

typedef struct counter {
    char *owner, *session_id, *base_model;
    int64_t bucket_us, count;
    int32_t kind;
} counter;

bool tke_usage_open(tke_service *svc, tinkc_error *err)
{
    svc->usage = tkc_zalloc(svc->a, sizeof *svc->usage, err);
    if (!svc->usage)
        return false;
    pthread_mutex_init(&svc->usage->lock, NULL);
    pthread_mutex_init(&svc->usage->flush_lock, NULL);
    tkc_map_init(&svc->usage->counters, svc->a);
    return true;
}

void tke_usage_close(tke_service *svc)
{
    if (!svc->usage)
        return;
    tkc_map_free(&svc->usage->counters);
    pthread_mutex_destroy(&svc->usage->lock);
    pthread_mutex_destroy(&svc->usage->flush_lock);
    tkc_release(svc->a, svc->usage, sizeof *svc->usage);
}

static void free_counter(tke_service *svc, counter *c)
{
    char *texts[] = { c->owner, c->session_id, c->base_model };
    for (size_t i = 0; i < 3; i++)
        if (texts[i])
            tkc_release_str(svc->a, texts[i]);
    tkc_release(svc->a, c, sizeof *c);
}

/* Locks: needs the counters'. NULL: memory is short, and the count is lost. */
static counter *new_counter(tke_service *svc, const char *key, const char *owner,
                            const char *session_id, const char *base_model)
{
    tinkc_error err = { 0 };
    counter *c = tkc_zalloc(svc->a, sizeof *c, &err);
    if (!c)
        return NULL;
    c->owner = tke_copy(svc, owner, &err);
    c->session_id = tke_copy(svc, session_id, &err);
    c->base_model = tke_copy(svc, base_model, &err);
    if (tkc_failed(&err) || !tkc_map_set(&svc->usage->counters, tkc_str(key), c, NULL, &err)) {
        free_counter(svc, c);
        return NULL;
    }
    return c;
}

void tke_usage_add(tke_service *svc, const char *owner, const char *session_id,
                   const char *base_model, int32_t kind, int64_t count)
{
    char key[400];
    if (count <= 0)
        return;
    /* Billing of the protocol is in whole hours. */
    int64_t bucket_us = tkc_wall_us(svc->clock) / HOUR_US * HOUR_US;
    (void)snprintf(key, sizeof key, "%lld/%d/%.60s/%.60s/%.150s", (long long)bucket_us, (int)kind,
                   owner, session_id, base_model);
    pthread_mutex_lock(&svc->usage->lock);
    counter *c = tkc_map_get(&svc->usage->counters, tkc_str(key));
    if (!c && (c = new_counter(svc, key, owner, session_id, base_model))) {
        c->bucket_us = bucket_us;
        c->kind = kind;
    }
    if (c)
        c->count += count;
    pthread_mutex_unlock(&svc->usage->lock);
    /* Prompt tokens from the cache cost no computation, and do not count towards a quota. */
    if (kind == TKE_USE_TRAINING || kind == TKE_USE_PREFILL || kind == TKE_USE_SAMPLED)
        tke_tenant_used(svc, owner, count);
}

/* One at a time: who asks for the usage flushes first, and what another thread has taken out by then must be on its
 * way to the store before the reading is. */
void tke_usage_flush(tke_service *svc)
{
    const tkc_map_entry *e;
    tinkc_error err = { 0 };
    tkc_map taken;
    pthread_mutex_lock(&svc->usage->flush_lock);
    pthread_mutex_lock(&svc->usage->lock);
    taken = svc->usage->counters;
    tkc_map_init(&svc->usage->counters, svc->a);
    pthread_mutex_unlock(&svc->usage->lock);
    tke_txn *txn = taken.n_live ? tke_txn_new(svc->store, &err) : NULL;
    for (size_t at = 0; (e = tkc_map_next(&taken, &at));) {
        counter *c = e->value;
        tke_txn_exec(txn,
                     "INSERT INTO usage(bucket_us, owner, session_id, base_model, kind, count) "
                     "VALUES(?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = count + "
                     "excluded.count",
                     "itttii", c->bucket_us, c->owner, c->session_id, c->base_model,
                     (int64_t)c->kind, c->count);
        free_counter(svc, c);
    }
    if (txn)
        tke_txn_commit(txn, NULL, NULL);
    pthread_mutex_unlock(&svc->usage->flush_lock);
    tkc_map_free(&taken);
}

void tke_audit_add(tke_service *svc, const char *owner, const char *event, const char *model_id,
                   const char *path, const char *purpose)
{
    tinkc_error err = { 0 };
    tke_txn *txn = tke_txn_new(svc->store, &err);
    tke_txn_exec(txn,
                 "INSERT INTO audit(time_us, owner, event, model_id, tinker_path, purpose) "
                 "VALUES(?, ?, ?, ?, ?, ?)",
                 "ittttt", tkc_wall_us(svc->clock), owner, event, model_id, path, purpose);
    tke_txn_commit(txn, NULL, NULL);
}

/* ---- reading, on the store's writer thread ---- */

typedef struct reading {
    tke_service *svc;
    tinkc_reply *reply;
    char owner[64];
    int64_t from_us, until_us;
    tkc_arena arena;
    tkc_buf out;
    tkc_jsonw w;
} reading;

static void key_or_null(tkc_jsonw *w, const char *key, tinkc_str text)
{
    tkc_jsonw_key(w, key);
    if (text.data && text.len)
        tkc_jsonw_str(w, text);
    else
        tkc_jsonw_null(w);
}

/* The actor: the run's session for saves, else a person, because other actions need only a key. */
static void audit_actor(reading *r, tinkc_str action, tinkc_str model_id)
{
    tinkc_str session = model_id, rest = model_id;
    bool by_session = tkc_str_is(action, "create") && tkc_str_cut(&rest, ':', &session);
    char urn[TKE_URN_TEXT];
    tkc_jsonw_key(&r->w, "actor");
    tkc_jsonw_object(&r->w);
    tkc_jsonw_key(&r->w, "type");
    tkc_jsonw_cstr(&r->w, by_session ? "session" : "user");
    tke_owner_urn(r->owner, urn);
    tkc_jsonw_key(&r->w, by_session ? "session_id" : "urn");
    tkc_jsonw_str(&r->w, by_session ? session : tkc_str(urn));
    tkc_jsonw_end(&r->w);
}

static void audit_details(reading *r, tinkc_str action, tinkc_str model_id, tinkc_str path,
                          tinkc_str purpose)
{
    tkc_jsonw_key(&r->w, "event_details");
    tkc_jsonw_object(&r->w);
    tkc_jsonw_key(&r->w, "organization_urn");
    tkc_jsonw_cstr(&r->w, TKE_ORG_URN);
    audit_actor(r, action, model_id);
    tkc_jsonw_key(&r->w, "resource");
    tkc_jsonw_cstr(&r->w, "checkpoint");
    key_or_null(&r->w, "model_id", model_id);
    key_or_null(&r->w, "tinker_path", path);
    tkc_jsonw_key(&r->w, "action");
    tkc_jsonw_object(&r->w);
    tkc_jsonw_key(&r->w, "type");
    tkc_jsonw_str(&r->w, action);
    if (purpose.data)
        key_or_null(&r->w, "purpose", purpose);
    tkc_jsonw_end(&r->w);
    tkc_jsonw_end(&r->w);
}

/* Stores of older versions have names such as "checkpoint.save". */
static tinkc_str action_of(tinkc_str event)
{
    enum { RESOURCE = sizeof "checkpoint_" - 1 };
    tinkc_str action =
        event.len > RESOURCE ? tkc_strn(event.data + RESOURCE, event.len - RESOURCE) : event;
    if (tkc_str_is(action, "save"))
        return tkc_str("create");
    if (tkc_str_is(action, "ttl"))
        return tkc_str("ttl_set");
    return tkc_str_is(action, "archive") ? tkc_str("read") : action;
}

static bool audit_row(const tke_row *row, void *user, tinkc_error *err)
{
    reading *r = user;
    char when[TKC_TIME_TEXT], event[64];
    tinkc_str action = action_of(tke_row_text(row, 1)), model_id = tke_row_text(row, 2);
    tinkc_str path = tke_row_text(row, 3), purpose = tke_row_text(row, 4);
    (void)err;
    tkc_format_time(tke_row_i64(row, 0), true, when);
    (void)snprintf(event, sizeof event, "checkpoint_%.*s", (int)action.len, action.data);
    tkc_jsonw_object(&r->w);
    tkc_jsonw_key(&r->w, "timestamp");
    tkc_jsonw_cstr(&r->w, when);
    tkc_jsonw_key(&r->w, "event");
    tkc_jsonw_cstr(&r->w, event);
    audit_details(r, action, model_id, path, purpose);
    key_or_null(&r->w, "model_id", model_id); /* what clients before 0.36 read */
    key_or_null(&r->w, "tinker_path", path);
    key_or_null(&r->w, "purpose", purpose);
    tkc_jsonw_end(&r->w);
    return true;
}

static void read_audit(tke_store *store, void *user, tinkc_error *err)
{
    reading *r = user;
    tkc_jsonw_open(&r->w, &r->out, err);
    tkc_jsonw_object(&r->w);
    tkc_jsonw_key(&r->w, "entries");
    tkc_jsonw_array(&r->w);
    tke_store_query(
        store,
        "SELECT time_us, event, model_id, tinker_path, purpose FROM audit WHERE owner = ? AND "
        "time_us >= ? AND time_us < ? ORDER BY time_us, id",
        audit_row, r, err, "tii", r->owner, r->from_us, r->until_us);
    tkc_jsonw_end(&r->w);
    tkc_jsonw_end(&r->w);
}

static bool usage_row(const tke_row *row, void *user, tinkc_error *err)
{
    reading *r = user;
    char when[TKC_TIME_TEXT];
    static const char *const types[] = { "training", "sampling_prefill", "sampling_prefill",
                                         "sampling_sample", "checkpoint" };
    int64_t kind = tke_row_i64(row, 3);
    char urn[TKE_URN_TEXT];
    (void)err;
    tke_owner_urn(r->owner, urn);
    if (kind < 0 || kind > TKE_USE_CHECKPOINT)
        return true;
    tkc_jsonw_object(&r->w);
    tkc_jsonw_key(&r->w, "bucket_start");
    tkc_format_time(tke_row_i64(row, 0), false, when);
    tkc_jsonw_cstr(&r->w, when);
    tkc_jsonw_key(&r->w, "bucket_end");
    tkc_format_time(tke_row_i64(row, 0) + HOUR_US, false, when);
    tkc_jsonw_cstr(&r->w, when);
    key_or_null(&r->w, "base_model", tke_row_text(row, 2));
    key_or_null(&r->w, "user_id", tkc_str(urn));
    key_or_null(&r->w, "session_id", tke_row_text(row, 1));
    tkc_jsonw_key(&r->w, "event_info");
    tkc_jsonw_object(&r->w);
    tkc_jsonw_key(&r->w, "type");
    tkc_jsonw_cstr(&r->w, types[kind]);
    if (kind == TKE_USE_PREFILL || kind == TKE_USE_PREFILL_CACHED) {
        tkc_jsonw_key(&r->w, "cached");
        tkc_jsonw_bool(&r->w, kind == TKE_USE_PREFILL_CACHED);
    }
    tkc_jsonw_key(&r->w, kind == TKE_USE_CHECKPOINT ? "count" : "token_count");
    tkc_jsonw_i64(&r->w, tke_row_i64(row, 4));
    tkc_jsonw_end(&r->w);
    tkc_jsonw_end(&r->w);
    return true;
}

static bool usage_session(const tke_row *row, void *user, tinkc_error *err)
{
    reading *r = user;
    tinkc_str metadata = tke_row_text(row, 1);
    (void)err;
    tkc_jsonw_key_str(&r->w, tke_row_text(row, 0));
    tkc_jsonw_object(&r->w);
    tkc_jsonw_key(&r->w, "user_metadata");
    if (metadata.len)
        tkc_jsonw_raw(&r->w, metadata);
    else
        tkc_jsonw_null(&r->w);
    tkc_jsonw_end(&r->w);
    return true;
}

static void read_usage(tke_store *store, void *user, tinkc_error *err)
{
    reading *r = user;
    tkc_jsonw_open(&r->w, &r->out, err);
    tkc_jsonw_object(&r->w);
    tkc_jsonw_key(&r->w, "data");
    tkc_jsonw_array(&r->w);
    bool ok = tke_store_query(
        store,
        "SELECT bucket_us, session_id, base_model, kind, count FROM usage WHERE owner = ? AND "
        "bucket_us >= ? AND bucket_us < ? ORDER BY bucket_us, count DESC",
        usage_row, r, err, "tii", r->owner, r->from_us, r->until_us);
    tkc_jsonw_end(&r->w);
    tkc_jsonw_key(&r->w, "sessions");
    tkc_jsonw_object(&r->w);
    if (ok)
        tke_store_query(store,
                        "SELECT DISTINCT s.id, s.user_metadata FROM usage u JOIN sessions s "
                        "ON s.id = u.session_id WHERE u.owner = ? AND u.bucket_us >= ? AND "
                        "u.bucket_us < ?",
                        usage_session, r, err, "tii", r->owner, r->from_us, r->until_us);
    tkc_jsonw_end(&r->w);
    tkc_jsonw_end(&r->w);
}

static void send_reading(void *user, const tinkc_error *err)
{
    reading *r = user;
    if (tkc_failed(err))
        tke_send_failure(r->reply, r->svc->a, err);
    else
        tke_send_json(r->reply, 200, tkc_buf_view(&r->out));
    tkc_buf_free(&r->out);
    tkc_release(r->svc->a, r, sizeof *r);
}

static void start_reading(tke_call *call, int64_t from_us, int64_t until_us, tke_txn_fn *fn)
{
    tke_service *svc = call->svc;
    reading *r = tkc_zalloc(svc->a, sizeof *r, &call->err);
    if (!r) {
        tke_send_failure(call->reply, svc->a, &call->err);
        return;
    }
    r->svc = svc;
    r->reply = call->reply;
    r->from_us = from_us;
    r->until_us = until_us;
    (void)snprintf(r->owner, sizeof r->owner, "%s", call->owner);
    tkc_buf_init(&r->out, svc->a, TKC_BUF_NO_MAX);
    tke_txn *txn = tke_txn_new(svc->store, &call->err);
    /* On the writer's thread, which alone may use the database, and after the counters that were
     * flushed just before. */
    tke_txn_call(txn, fn, r);
    tke_txn_commit(txn, send_reading, r);
}

void tke_handle_audit(tke_call *call)
{
    const char *type = tke_call_query(call, "event_type"), *day = tke_call_query(call, "day");
    int64_t from_us = tkc_wall_us(call->svc->clock) / (24 * HOUR_US) * (24 * HOUR_US);
    static const char *const none[] = { "projects", "teams", "organizations", NULL };
    const char *const *kind = none;
    if (tkc_failed(&call->err)) {
        tke_send_failure(call->reply, call->svc->a, &call->err);
        return;
    }
    bool ours = !type || !*type || tkc_cstr_eq(type, "all") || tkc_cstr_eq(type, "checkpoints");
    while (*kind && !tkc_cstr_eq(*kind, type))
        kind++;
    if (!ours && !*kind) {
        tke_refuse(call, 400, "bad_request",
                   "event_type must be 'all', 'checkpoints', 'projects', 'teams' or "
                   "'organizations'");
        return;
    }
    if (day && *day) {
        char text[48];
        (void)snprintf(text, sizeof text, "%.20sT00:00:00Z", day);
        if (!tkc_parse_time(text, strlen(text), &from_us)) {
            tke_refuse(call, 400, "bad_request", "day must be YYYY-MM-DD");
            return;
        }
    }
    /* This server does not manage projects, teams or organizations, so they have no events. */
    start_reading(call, from_us, ours ? from_us + 24 * HOUR_US : from_us, read_audit);
}

void tke_handle_usage(tke_call *call)
{
    const char *from = tke_call_query(call, "starting_on");
    const char *until = tke_call_query(call, "ending_before");
    int64_t from_us, until_us;
    if (tkc_failed(&call->err)) {
        tke_send_failure(call->reply, call->svc->a, &call->err);
        return;
    }
    if (!from || !until || !tkc_parse_time(from, strlen(from), &from_us) ||
        !tkc_parse_time(until, strlen(until), &until_us)) {
        tke_refuse(call, 400, "bad_request",
                   "starting_on and ending_before must be times such as 2026-01-01T00:00:00Z");
        return;
    }
    if (from_us % HOUR_US || until_us % HOUR_US || until_us - from_us > 14 * 24 * HOUR_US ||
        from_us > tkc_wall_us(call->svc->clock)) {
        tke_refuse(call, 400, "bad_request",
                   "starting_on and ending_before must be whole hours, at most 14 days apart, "
                   "beginning in the past");
        return;
    }
    tke_usage_flush(call->svc);
    start_reading(call, from_us, until_us, read_usage);
}
