/* handlers.c - entry point of all requests: routing, decompression, and the small endpoints.
 *
 * Thread: any front thread. Handlers parse, check, record and queue; none of them waits, computes
 * or reads tensors. May touch: svc under its lock, the store through transactions.
 */
#include <stdio.h>

#include "codec/zstd.h"
#include "service/chat/chat_paths.h"
#include "service/core/base_models.h"
#include "service/core/registry.h"
#include "service/core/service_state.h"
#include "service/core/sessions.h"
#include "service/core/tenants.h"
#include "service/handlers/gunzip.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/handlers.h"
#include "service/handlers/idempotency.h"
#include "service/handlers/long_requests.h"
#include "service/handlers/unknown_fields.h"
#include "service/handlers/uploads.h"

/* ---- small endpoints ---- */

void tke_handle_health(tke_call *call)
{
    tke_send_json(call->reply, 200, tkc_str("{\"status\":\"ok\"}"));
}

void tke_handle_config(tke_call *call)
{
    tkc_config_response out;
    tkc_message_init(&tkc_config_response_type, &out);
    out.sample_max_concurrent_requests = call->svc->set.max_sample_queue;
    out.sample_enable_stuck_detection = false; /* a slow CPU is not stuck */
    out.use_pyqwest_transport = call->svc->set.use_pyqwest;
    out.create_model_via_load_weights = false;
    out.pjwt_auth_enabled = call->svc->set.jwt_auth;
    if (call->svc->set.use_retrieve_futures)
        out.sample_use_retrieve_futures = (tkc_opt_bool)TKC_SOME(true);
    out.custom_loss_server_side = (tkc_opt_bool)TKC_SOME(true);
    out.serves_tokenizers = (tkc_opt_bool)TKC_SOME(true);
    tke_answer(call, &tkc_config_response_type, &out);
}

void tke_handle_dynamic_config(tke_call *call)
{
    tke_answer(call, &tkc_dynamic_config_response_type,
               &(tkc_dynamic_config_response){ .refresh_interval_sec = 300,
                                               .sample_cancel_enabled = true,
                                               .sample_cancel_max_batch_size = 64 });
}

void tke_handle_telemetry(tke_call *call)
{
    tke_send_json(call->reply, 200, tkc_str("{\"status\":\"accepted\"}"));
}

/* Where a model stands in the list that the server was started with; 0 if it was given none. */
static size_t place_of(const tke_call *call, const char *model)
{
    const char *const *names = call->caller->models;
    size_t i = 0;
    while (names && names[i] && !tkc_cstr_eq(names[i], model))
        i++;
    return names ? i : 0;
}

/* As they were named; clients take the first one. */
static bool comes_before(const tke_call *call, const char *one, const char *two)
{
    size_t a = place_of(call, one), b = place_of(call, two);
    return a != b ? a < b : strcmp(one, two) < 0;
}

void tke_handle_capabilities(tke_call *call)
{
    tke_service *svc = call->svc;
    const tke_base *base;
    pthread_mutex_lock(&svc->lock);
    size_t n = 0;
    tkc_supported_model *models =
        tkc_arena_array(&call->arena, tke_count(svc, TKE_BASES) + 1, sizeof *models, &call->err);
    for (size_t at = 0; models && (base = tke_next_base(svc, &at));) {
        if (!tke_call_offers(call, base->name))
            continue;
        tkc_supported_model one = { .model_name = base->name };
        one.max_context_length = (tkc_opt_i64)TKC_SOME((int64_t)base->context);
        one.trainable = one.sampleable = (tkc_opt_bool)TKC_SOME(true);
        size_t i = n++;
        for (; i > 0 && comes_before(call, one.model_name, models[i - 1].model_name); i--)
            models[i] = models[i - 1];
        models[i] = one;
    }
    pthread_mutex_unlock(&svc->lock);
    tkc_capabilities_response out = { 0 };
    out.supported_models.data = models;
    out.supported_models.len = n;
    /* Not in the protocol: how temperature affects the log-probs of samples. */
    static const char *const meanings[] = { "scaled", "raw", "processed" };
    tkc_buf body;
    tkc_buf_init(&body, svc->a, TKC_BUF_NO_MAX);
    if (tkc_message_encode(&tkc_capabilities_response_type, &out, &body, &call->err)) {
        body.len--; /* the last brace */
        tkc_buf_printf(&body, &call->err, ",\"sample_logprobs\":\"%s\"}",
                       meanings[svc->set.sample_logprobs]);
    }
    tke_answer_text(call, &body);
}

/* ---- sessions ---- */

void tke_session_store(tke_txn *txn, const tke_session *s, const char *tags,
                       const char *sdk_version)
{
    tke_txn_exec(
        txn,
        "INSERT OR IGNORE INTO sessions(id, owner, created_us, tags, user_metadata, sdk_version, "
        "project_id) VALUES(?, ?, ?, ?, ?, ?, ?)",
        "ttitttt", s->id, s->owner, s->created_us, tags, s->user_metadata, sdk_version,
        s->project_id);
    if (s->display_name)
        tke_txn_exec(txn, "INSERT OR IGNORE INTO session_notes(id, display_name) VALUES(?, ?)",
                     "tt", s->id, s->display_name);
}

static const char *tags_json(tke_call *call, const char *const *tags)
{
    tkc_buf out;
    tkc_jsonw w;
    tkc_buf_init(&out, call->svc->a, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&w, &out, &call->err);
    tkc_jsonw_array(&w);
    for (; tags && *tags; tags++)
        tkc_jsonw_cstr(&w, *tags);
    tkc_jsonw_end(&w);
    const char *text = tkc_arena_str(&call->arena, tkc_buf_view(&out), &call->err);
    tkc_buf_free(&out);
    return text;
}

/* Locks: needs svc->lock. 0, or the status of a refusal. */
static int32_t make_session(tke_call *call, const tkc_create_session_request *in, const char *id,
                            tinkc_error *full)
{
    tke_service *svc = call->svc;
    const tkc_metadata *m = &in->user_metadata;
    const char *json = m->json.len ? tkc_arena_str(&call->arena, m->json, &call->err) : NULL;
    size_t kept = 0;
    int32_t refused = tke_kept_take(svc, call->owner, TKE_KEPT_SESSION, &kept, full);
    if (!refused)
        refused = tke_kept_note(svc, call->owner, json, &kept, full);
    if (!refused)
        refused = tke_kept_note(svc, call->owner, in->display_name, &kept, full);
    if (!refused)
        refused = tke_kept_note(svc, call->owner, in->project_id, &kept, full);
    tke_session *s = refused ? NULL : tke_session_add(svc, id, call->owner, &call->err);
    if (!s) {
        tke_kept_give(svc, call->owner, &kept);
        return refused;
    }
    s->kept = kept;
    s->user_metadata = tke_copy(svc, json, &call->err);
    s->project_id = tke_copy(svc, in->project_id, &call->err);
    s->display_name = tke_copy(svc, in->display_name, &call->err);
    return 0;
}

void tke_handle_create_session(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_create_session_request in;
    const char *key;
    if (!tke_call_decode(call, &tkc_create_session_request_type, &in) ||
        !tke_take_key(call, "session", &key))
        return;
    char id[TKE_UUID_TEXT];
    tinkc_error full = { 0 };
    int32_t refused = 0;
    tke_uuid(svc->clock, id);
    const char *tags = tags_json(call, in.tags);
    if (tkc_str(tags).len + tkc_str(in.sdk_version).len > TKE_MAX_NOTE) {
        tke_refuse(call, 400, "metadata_too_large",
                   "tags and sdk_version have more than the %d bytes that are stored",
                   TKE_MAX_NOTE);
        return;
    }
    tke_txn *txn = tke_txn_new(svc->store, &call->err);
    pthread_mutex_lock(&svc->lock);
    /* The client repeats the call when its answer was lost: a new session each time would leave the
     * first ones behind, without heartbeats. */
    tke_session *before = tke_find_session(svc, tke_known_key(svc, key));
    if (before) {
        (void)snprintf(id, sizeof id, "%s", before->id);
        tke_session_store(txn, before, tags, in.sdk_version); /* in case that failed before */
    } else {
        refused = make_session(call, &in, id, &full);
        const tke_session *s = tke_find_session(svc, id);
        if (s)
            tke_session_store(txn, s, tags, in.sdk_version);
        if (s && key)
            tke_remember_key(call, key, id);
    }
    pthread_mutex_unlock(&svc->lock);
    if (refused) {
        tke_refuse_kept(call, txn, refused, &full);
        return;
    }
    tke_answer_stored(call, txn, &tkc_create_session_response_type,
                      &(tkc_create_session_response){ .session_id = id });
}

void tke_handle_heartbeat(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_heartbeat_request in;
    if (!tke_call_decode(call, &tkc_heartbeat_request_type, &in))
        return;
    pthread_mutex_lock(&svc->lock);
    tke_session *s = tke_find_session(svc, in.session_id);
    /* Like an unknown one: heartbeats of a stranger must neither keep a session alive nor tell that
     * it exists. */
    if (s && !tkc_cstr_eq(s->owner, call->owner))
        s = NULL;
    bool known = s != NULL;
    const char *finished = s ? s->finished : NULL;
    tke_session_touch(svc, s);
    pthread_mutex_unlock(&svc->lock);
    if (tke_session_over(call, in.session_id, finished))
        return;
    if (known)
        tke_send_json(call->reply, 200, tkc_str("{\"type\":\"session_heartbeat\"}"));
    else
        tke_refuse(call, 404, "not_found", "Unknown session '%.100s'", in.session_id);
}

/* ---- routing ---- */

static tke_handle_fn *const handlers[TKC_EP_COUNT] = {
    [TKC_EP_HEALTH] = tke_handle_health,
    [TKC_EP_CLIENT_CONFIG] = tke_handle_config,
    [TKC_EP_DYNAMIC_CONFIG] = tke_handle_dynamic_config,
    [TKC_EP_CREATE_SESSION] = tke_handle_create_session,
    [TKC_EP_HEARTBEAT] = tke_handle_heartbeat,
    [TKC_EP_CREATE_SAMPLING_SESSION] = tke_handle_create_sampling_session,
    [TKC_EP_SAMPLER] = tke_handle_sampler,
    [TKC_EP_CREATE_CUSTOM_LOSS] = tke_handle_create_loss,
    [TKC_EP_CREATE_MODEL] = tke_handle_create_model,
    [TKC_EP_GET_INFO] = tke_handle_get_info,
    [TKC_EP_UNLOAD_MODEL] = tke_handle_unload,
    [TKC_EP_FORWARD_BACKWARD] = tke_handle_pass,
    [TKC_EP_FORWARD] = tke_handle_pass,
    [TKC_EP_OPTIM_STEP] = tke_handle_optim,
    [TKC_EP_SAVE_WEIGHTS] = tke_handle_save,
    [TKC_EP_SAVE_FOR_SAMPLER] = tke_handle_save_sampler,
    [TKC_EP_SAVE_EXTERNAL] = tke_handle_save_external,
    [TKC_EP_LOAD_WEIGHTS] = tke_handle_load,
    [TKC_EP_SAMPLE] = tke_handle_sample,
    [TKC_EP_STREAM_SAMPLE] = tke_handle_sample,
    [TKC_EP_RETRIEVE_FUTURE] = tke_retrieve_future,
    [TKC_EP_CAPABILITIES] = tke_handle_capabilities,
    [TKC_EP_TRAINING_RUN] = tke_handle_run,
    [TKC_EP_TRAINING_RUNS] = tke_handle_runs,
    [TKC_EP_WEIGHTS_INFO] = tke_handle_weights_info,
    [TKC_EP_RUN_CHECKPOINTS] = tke_handle_run_checkpoints,
    [TKC_EP_CHECKPOINTS] = tke_handle_checkpoints,
    [TKC_EP_DELETE_RUN] = tke_handle_delete_run,
    [TKC_EP_DELETE_CHECKPOINT] = tke_handle_checkpoint_change,
    [TKC_EP_PUBLISH] = tke_handle_checkpoint_change,
    [TKC_EP_UNPUBLISH] = tke_handle_checkpoint_change,
    [TKC_EP_SET_TTL] = tke_handle_checkpoint_change,
    [TKC_EP_ARCHIVE] = tke_handle_archive,
    [TKC_EP_EXTERNAL_URLS] = tke_handle_external_urls,
    [TKC_EP_JOIN_SAMPLING_SESSION] = tke_handle_join,
    [TKC_EP_SESSIONS] = tke_handle_sessions,
    [TKC_EP_SESSION] = tke_handle_session,
    [TKC_EP_SEARCH_SESSIONS] = tke_handle_search,
    [TKC_EP_SEARCH_CHECKPOINTS] = tke_handle_checkpoint_search,
    [TKC_EP_FINISH_SESSION] = tke_handle_finish,
    [TKC_EP_UPLOAD_START] = tke_handle_upload_start,
    [TKC_EP_UPLOAD_FINISH] = tke_handle_upload_finish,
    [TKC_EP_COPY_WEIGHTS] = tke_handle_copy_weights,
    [TKC_EP_ASSIGN_PROJECT] = tke_handle_project,
    [TKC_EP_TRACE_EXPORT] = tke_handle_trace,
    [TKC_EP_AUTH_TOKEN] = tke_handle_token,
    [TKC_EP_TELEMETRY] = tke_handle_telemetry,
    [TKC_EP_AUDIT] = tke_handle_audit,
    [TKC_EP_USAGE] = tke_handle_usage,
    [TKC_EP_STORAGE] = tke_handle_storage,
};

/* "/health" is the path that OpenAI's clients and load balancers use. */
static bool is_ready_path(tinkc_str path)
{
    return tkc_str_is(path, "/api/v1/readyz") || tkc_str_is(path, "/readyz") ||
           tkc_str_is(path, "/health");
}

/* Paths outside the protocol: status, monitoring, downloads. True: answered. */
static bool own_path(tke_call *call, tinkc_str path)
{
    static const char archives[] = "/api/v1/archives/";
    bool get = tkc_cstr_eq(call->request->method, "GET");
    tkc_buf out;
    if (get && tkc_starts_with(path, archives)) {
        size_t n = sizeof archives - 1;
        tke_handle_download(call, tkc_strn(path.data + n, path.len - n));
        return true;
    }
    if (get && tke_service_is_hub(path)) {
        tke_handle_hub(call);
        return true;
    }
    bool post = tkc_cstr_eq(call->request->method, "POST");
    bool key = tkc_str_is(path, "/api/v1/auth/apikey/me");
    bool delete = tkc_cstr_eq(call->request->method, "DELETE");
    tke_handle_fn *own = post && tkc_str_is(path, "/api/v1/cancel_future")      ? tke_cancel_future
                         : post && tkc_str_is(path, "/api/v1/retrieve_futures") ? tke_handle_futures
                         : post && tkc_str_is(path, "/api/v1/skip_request")     ? tke_handle_skip
                         : key && get                                           ? tke_handle_key
                         : key && delete ? tke_handle_delete_key
                                         : NULL;
    if (own) {
        if (tke_call_query_known(call) && tke_call_names_unique(call))
            own(call);
        return true;
    }
    if (get && is_ready_path(path)) {
        if (tke_service_ready(call->svc))
            tke_send_json(call->reply, 200, tkc_str("{\"status\":\"ok\"}"));
        else
            tke_refuse(call, 503, "not_ready", "No base model is registered");
        return true;
    }
    if (get && (tkc_str_is(path, "/api/v1/status") || tkc_str_is(path, "/status"))) {
        if (!tke_call_query_known(call))
            return true;
        tkc_buf_init(&out, call->svc->a, TKC_BUF_NO_MAX);
        (void)tke_service_status(call->svc, call->owner, &out, &call->err);
        tke_answer_text(call, &out);
        return true;
    }
    return false;
}

static bool may_run_while_draining(const tke_call *call)
{
    /* What is finished can still be fetched; new work would be lost with the process. */
    int32_t id = call->route.endpoint ? call->route.endpoint->id : -1;
    return id == TKC_EP_RETRIEVE_FUTURE || id == TKC_EP_HEARTBEAT || id == TKC_EP_TELEMETRY ||
           tkc_cstr_eq(call->request->method, "GET");
}

static bool is_pass(const tkc_endpoint *e)
{
    return e && (e->id == TKC_EP_FORWARD_BACKWARD || e->id == TKC_EP_FORWARD);
}

/* Only passes and prompts can be large. Other bodies get a low limit: their contents are stored. */
enum { PLAIN_BODY = 1 << 20 };
static int64_t body_limit(const tke_service *svc, const tkc_endpoint *endpoint)
{
    int64_t max = tke_service_max_body(svc);
    int32_t id = endpoint ? endpoint->id : TKC_EP_SAMPLE;
    bool large = is_pass(endpoint) || id == TKC_EP_SAMPLE || id == TKC_EP_STREAM_SAMPLE ||
                 id == TKC_EP_TELEMETRY;
    return large || max < PLAIN_BODY ? max : PLAIN_BODY;
}

static const char *const own_paths[] = { "/api/v1/readyz",
                                         "/readyz",
                                         "/health",
                                         "/api/v1/status",
                                         "/status",
                                         "/metrics",
                                         "/api/v1/auth/apikey/me",
                                         "/api/v1/cancel_future",
                                         "/api/v1/retrieve_futures",
                                         "/api/v1/skip_request" };

static bool is_own_path(tinkc_str path)
{
    for (size_t i = 0; i < sizeof own_paths / sizeof *own_paths; i++)
        if (tkc_str_is(path, own_paths[i]))
            return true;
    return false;
}

static bool is_public_path(tinkc_str path)
{
    return tkc_starts_with(path, "/api/v1/archives/") || tkc_starts_with(path, TKE_UPLOADS) ||
           tkc_str_is(path, "/api/v1/healthz") || is_ready_path(path);
}

/* Is it a file of an upload in progress? Only then may its body be large: the id is the key. */
static bool is_upload(tke_service *svc, tinkc_str path)
{
    size_t n = sizeof TKE_UPLOADS - 1;
    return tkc_starts_with(path, TKE_UPLOADS) &&
           tke_upload_is_open(svc, tkc_strn(path.data + n, path.len - n));
}

bool tke_service_is_openai(tinkc_str uri)
{
    return tkc_starts_with(uri, "/v1/") || tkc_starts_with(uri, "/oai/api/v1/") ||
           tkc_starts_with(uri, "/anthropic/api/v1/");
}

bool tke_service_is_anthropic(tinkc_str uri, const char *version)
{
    return version || tkc_starts_with(uri, "/anthropic/api/v1/") || tkc_starts_with(uri, "/v1/messages");
}

tke_path_info tke_service_path(tke_service *svc, const char *method, tinkc_str uri, bool openai)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_route route = { 0 };
    tinkc_str path = uri;
    (void)tkc_str_cut(&uri, '?', &path);
    tkc_arena_init(&arena, svc->a, 1 << 16);
    bool like_openai = openai && tke_service_is_openai(path);
    bool get = tkc_cstr_eq(method, "GET") || tkc_cstr_eq(method, "HEAD");
    (void)tkc_route_find(tkc_str(get ? "GET" : method), path, &arena, &route, &err);
    bool exists = (like_openai && tke_openai_knows(path)) || is_own_path(path) ||
                  tke_service_is_hub(path) || (route.status && route.status != 404);
    const tke_path_info info = {
        .max_body = like_openai || route.endpoint ? body_limit(svc, route.endpoint)
                    : is_upload(svc, path)        ? tke_service_max_body(svc)
                                                  : 1 << 20,
        /* Paths that do not exist are 404 for everybody: a client with a wrong base URL must not be
         * sent looking for its key. */
        .needs_key = exists && !is_public_path(path),
        .is_pass = is_pass(route.endpoint),
    };
    tkc_arena_free(&arena);
    return info;
}

/* Decompresses the body if Content-Encoding says so; `space` holds the result. */
static bool unpack(tke_call *call, tkc_buf *space)
{
    const char *how = tke_call_header(call, "Content-Encoding");
    tinkc_bytes body = call->request->body;
    size_t max = (size_t)body_limit(call->svc, call->route.endpoint);
    if (!how || !*how || tkc_cstr_eq(how, "identity"))
        return true;
    bool ok;
    if (tkc_str_is_nocase(tkc_str(how), "zstd"))
        ok = tkc_zstd_decompress(body.data, body.len, max, space, &call->err);
    else if (tkc_str_is_nocase(tkc_str(how), "gzip"))
        ok = tke_gunzip(body, max, space, &call->err);
    else {
        tke_refuse(call, 415, "unsupported_encoding", "Content-Encoding '%.40s' is not supported",
                   how);
        return false;
    }
    call->body = tkc_buf_view(space);
    if (ok)
        return true;
    if (call->err.cause == TINKC_E_TOO_LARGE)
        tke_refuse_after(call, tke_handle_refused(call), 413, "too_large",
                         "The body is larger than %lld bytes when unpacked", (long long)max);
    else if (call->err.code == TINKC_E_MEMORY)
        tke_refuse(call, 503, "memory",
                   "Requests under way use all the memory that is reserved for them; "
                   "try again");
    else
        tke_refuse_after(call, tke_handle_refused(call), 422, "unprocessable",
                         "The body cannot be unpacked: %s", call->err.message);
    return false;
}

static bool fits(tke_call *call)
{
    int64_t max = body_limit(call->svc, call->route.endpoint);
    if ((int64_t)call->body.len <= max)
        return true;
    tke_refuse_after(
        call, tke_handle_refused(call), 413, "too_large", "The body of %s may have %lld bytes",
        call->route.endpoint ? call->route.endpoint->path : "this path", (long long)max);
    return false;
}

/* The handler of a protocol path. NULL: there is none, and the call is answered. */
static tke_handle_fn *find_handler(tke_call *call, tinkc_str path)
{
    if (!tkc_route_find(tkc_str(call->request->method), path, &call->arena, &call->route,
                        &call->err)) {
        tke_send_failure(call->reply, call->svc->a, &call->err);
        return NULL;
    }
    if (call->route.endpoint && handlers[call->route.endpoint->id])
        return handlers[call->route.endpoint->id];
    bool wrong_method = call->route.status == 405;
    tke_refuse(call, wrong_method ? 405 : 404,
               wrong_method ? "method_not_allowed" : "unknown_endpoint", "%s %.200s: %s",
               call->request->method, call->request->path,
               wrong_method ? "method not allowed" : "no such endpoint");
    return NULL;
}

/* Does it count against the owner's requests per minute? Requests that SDKs send on their own do
 * not. */
static bool is_counted(const tke_call *call)
{
    int32_t id = call->route.endpoint ? call->route.endpoint->id : -1;
    return id != TKC_EP_RETRIEVE_FUTURE && id != TKC_EP_HEARTBEAT && id != TKC_EP_TELEMETRY &&
           id != TKC_EP_HEALTH && id != TKC_EP_CLIENT_CONFIG && id != TKC_EP_DYNAMIC_CONFIG &&
           id != TKC_EP_AUTH_TOKEN;
}

/* ---- long work ---- */

enum { LARGE_BODY = 256 << 10 };

/* Any thread. */
static void handle_body(tke_call *call, tke_handle_fn *handler)
{
    tkc_buf space;
    /* From the budget of bodies: a small packed body may unpack to a gigabyte, and many of them at
     * once would exhaust the memory. */
    tkc_buf_init(&space, &call->svc->bodies.allocator, TKC_BUF_NO_MAX);
    if (unpack(call, &space) && fits(call) && tke_call_names_unique(call) &&
        tke_call_bodiless(call))
        handler(call);
    tkc_buf_free(&space);
}

/* Any thread. The body is neither packed nor JSON. */
static void handle_raw(tke_call *call, tke_handle_fn *handler)
{
    handler(call);
}

/* A file of an upload: bytes, whatever type they are said to have. True: answered or deferred; then
 * the body is still needed, and *done is false. */
static bool upload_path(tke_call *call, tinkc_str path, bool *done)
{
    const char *how = tke_call_header(call, "Content-Encoding");
    *done = true;
    if (!tkc_cstr_eq(call->request->method, "PUT") || !tkc_starts_with(path, TKE_UPLOADS))
        return false;
    if (atomic_load(&call->svc->draining))
        tke_refuse(call, 503, "stopping", "The server is stopping");
    else if (call->flags & TKE_CALL_CUT_OFF)
        tke_refuse(call, 413, "too_large", "The file is larger than %lld bytes",
                   (long long)tke_service_max_body(call->svc));
    else if (how && *how && !tkc_cstr_eq(how, "identity"))
        tke_refuse(call, 415, "unsupported_encoding", "Send the file as it is, not compressed");
    else
        *done = !tke_defer(call, handle_raw, tke_handle_upload_file);
    return true;
}

/* Bodies of most endpoints are small, also when unpacked. In this process the caller waits, not a
 * front thread. */
static bool is_long_work(const tke_call *call, tke_handle_fn *handler)
{
    const char *how = tke_call_header(call, "Content-Encoding");
    bool packed = how && *how && !tkc_cstr_eq(how, "identity");
    if (call->openai) /* that needs a template or a tokenizer */
        return call->body.len > 0;
    if (handler == tke_handle_upload_finish)
        return true;
    return (call->flags & TKE_CALL_REMOTE) && call->body.len &&
           (packed || call->body.len > LARGE_BODY) &&
           body_limit(call->svc, call->route.endpoint) > PLAIN_BODY;
}

/* False: the request's body is still needed. */
static bool front(tke_call *call)
{
    tinkc_str path = tkc_str(call->request->path), rest = path, before;
    if (tkc_str_cut(&rest, '?', &before)) {
        path = before;
        call->query = rest;
    }
    call->body = tkc_strn((const char *)call->request->body.data, call->request->body.len);
    call->openai = (call->flags & TKE_CALL_OPENAI) && tke_service_is_openai(path);
    call->anthropic = call->openai &&
                      tke_service_is_anthropic(path, tke_call_header(call, TKE_ANTHROPIC_VERSION));
    if (call->openai)
        path = tke_openai_path(path);
    call->path = path;
    bool done;
    /* Before the check for a server that stops: monitoring must still see it, and downloads that
     * are under way may fetch the rest. */
    if (own_path(call, path))
        return true;
    if (upload_path(call, path, &done))
        return done;
    tke_handle_fn *handler = call->openai ? tke_openai_find(call, path) : find_handler(call, path);
    if (!handler)
        return true;
    if (atomic_load(&call->svc->draining) && !may_run_while_draining(call)) {
        tke_refuse(call, 503, "stopping", "The server is stopping");
        return true;
    }
    /* Refused here, not at the connection, because what was kept of the body may still tell the
     * number that it uses up. */
    if (call->flags & TKE_CALL_CUT_OFF) {
        tke_refuse_after(call, tke_handle_refused(call), 413, "too_large",
                         "The body is larger than %lld bytes",
                         (long long)tke_service_max_body(call->svc));
        return true;
    }
    /* A web page of another origin can send forms and plain text without asking first. */
    if ((call->flags & TKE_CALL_UNTYPED) && call->body.len) {
        tke_refuse_after(call, tke_handle_refused(call), 415, "unsupported_type",
                         "Content-Type must be application/json or application/x-protobuf");
        return true;
    }
    /* Other handlers than those of passes would read the body as JSON, unchecked. */
    if (call->body.len && tke_call_is_protobuf(call) && !is_pass(call->route.endpoint)) {
        tke_refuse_after(call, tke_handle_refused(call), 415, "unsupported_type",
                         "This endpoint takes application/json, not protobuf");
        return true;
    }
    if ((is_counted(call) && !tke_quota_request(call)) || !tke_call_query_known(call))
        return true;
    if (is_long_work(call, handler))
        return !tke_defer(call, handle_body, handler);
    handle_body(call, handler);
    return true;
}

bool tke_service_handle(tke_service *svc, const tinkc_request *request, tinkc_reply *reply,
                        const tke_caller *caller, uint32_t flags)
{
    tke_call call = { .svc = svc,
                      .request = request,
                      .reply = reply,
                      .owner = caller->owner,
                      .caller = caller,
                      .flags = flags };
    tkc_arena_init(&call.arena, &svc->bodies.allocator, 0);
    svc->counters.requests++;
    bool done = front(&call);
    tkc_arena_free(&call.arena);
    return done;
}
