/* endpoint.c - the table of endpoints, from endpoint to path and back. May touch: what it was
 * given. */
#include "wire/endpoint.h"

#include <assert.h>
#include <string.h>

#include "base/str.h"
#include "codec/url.h"
#include "wire/messages.h"
#include "wire/sample_message.h"

#define V1   "/api/v1"
#define RUN  V1 "/training_runs/{id}"
#define CKPT RUN "/checkpoints/{ckpt}"

enum { NONE = TKC_ENC_NONE, JSON = TKC_ENC_JSON, PB = TKC_ENC_PROTOBUF };
enum { SESSION = TINKC_POOL_SESSION, TRAIN = TINKC_POOL_TRAIN, REST = TINKC_POOL_REST };
enum { ANY = TKC_NEED_NOTHING, READY = TKC_NEED_CONFIG, MEMBER = TKC_NEED_SESSION };
/* Pools, retries and limits of time are the Python SDK's. Heartbeats and polls have no retries,
 * because each has a next one. An archive's 503 has pauses of its own (rest_jobs.c). */
enum { A = TKC_RETRY_ATTEMPTS, W = TKC_RETRY_WINDOW, AW = A | W };

/* Answers in the response itself. */
#define DIRECT(id, name, method, path, pool, need, retries, ms, encoding, request)                 \
    [id] = { id, name, method, path, pool, need, encoding, retries, JSON, ms, NULL, request, NULL }
/* Answers with a tkc_untyped_future; the result is fetched later. */
#define FUTURE(id, name, pool, retries, encoding, res_encoding, type, request, result)             \
    [id] = { id,      name,         "POST", V1 "/" name, pool,    MEMBER, encoding,                \
             retries, res_encoding, 0,      type,        request, result }

/* clang-format off */
static const tkc_endpoint endpoints[TKC_EP_COUNT] = {
    /* id                            name                  method  path                  pool                  need    retries  ms     body  request */
    DIRECT(TKC_EP_HEALTH,            "healthz",            "GET",  V1 "/healthz",        SESSION,              READY,  A,      0,     NONE, NULL),
    DIRECT(TKC_EP_CLIENT_CONFIG,     "client_config",      "POST", V1 "/client/config",  TINKC_POOL_CONFIG,    ANY,    AW,     0,     JSON, &tkc_config_request_type),
    DIRECT(TKC_EP_DYNAMIC_CONFIG,    "dynamic_config",     "POST", V1 "/client/dynamic_config", SESSION,       ANY,    W,      10000, JSON, &tkc_config_request_type),
    DIRECT(TKC_EP_AUTH_TOKEN,        "auth_token",         "POST", V1 "/auth/token",     TINKC_POOL_AUTH,      ANY,    AW,     0,     JSON, &tkc_empty_type),
    DIRECT(TKC_EP_CREATE_SESSION,    "create_session",     "POST", V1 "/create_session", SESSION,              ANY,    A,      0,     JSON, &tkc_create_session_request_type),
    DIRECT(TKC_EP_HEARTBEAT,         "session_heartbeat",  "POST", V1 "/session_heartbeat", SESSION,           ANY,    0,      10000, JSON, &tkc_heartbeat_request_type),
    DIRECT(TKC_EP_CREATE_SAMPLING_SESSION, "create_sampling_session", "POST", V1 "/create_sampling_session", SESSION, MEMBER, A, 0,   JSON, &tkc_create_sampling_session_request_type),
    DIRECT(TKC_EP_JOIN_SAMPLING_SESSION, "join_sampling_session", "POST", V1 "/join_sampling_session", SESSION, MEMBER, AW,     0,     JSON, &tkc_join_sampling_session_request_type),
    DIRECT(TKC_EP_SAMPLER,           "sampler",            "GET",  V1 "/samplers/{id}",  TRAIN,                READY,  AW,     0,     NONE, NULL),
    FUTURE(TKC_EP_CREATE_CUSTOM_LOSS, "create_custom_loss", TRAIN, AW, JSON, JSON, "CreateCustomLoss", &tkc_create_custom_loss_request_type, &tkc_create_custom_loss_result_type),
    FUTURE(TKC_EP_CREATE_MODEL,      "create_model",       TRAIN,  A,  JSON, JSON, "CreateModel",     &tkc_create_model_request_type,  &tkc_create_model_result_type),
    DIRECT(TKC_EP_GET_INFO,          "get_info",           "POST", V1 "/get_info",       TRAIN,                READY,  AW,     0,     JSON, &tkc_get_info_request_type),
    FUTURE(TKC_EP_UNLOAD_MODEL,      "unload_model",       TRAIN,  A,  JSON, JSON, "UnloadModel",     &tkc_unload_model_request_type,  &tkc_unload_model_result_type),
    FUTURE(TKC_EP_FORWARD_BACKWARD,  "forward_backward",   TRAIN,  AW, PB,   PB,   "ForwardBackward", NULL,                            NULL),
    FUTURE(TKC_EP_FORWARD,           "forward",            TRAIN,  AW, JSON, PB,   "Forward",         NULL,                            NULL),
    FUTURE(TKC_EP_OPTIM_STEP,        "optim_step",         TRAIN,  AW, JSON, JSON, "OptimStep",       &tkc_optim_step_request_type,    &tkc_optim_step_result_type),
    FUTURE(TKC_EP_SAVE_WEIGHTS,      "save_weights",       TRAIN,  W,  JSON, JSON, "SaveWeights",     &tkc_save_weights_request_type,  &tkc_save_weights_result_type),
    FUTURE(TKC_EP_SAVE_FOR_SAMPLER,  "save_weights_for_sampler", TRAIN, W, JSON, JSON, "SaveWeightsForSampler", &tkc_save_for_sampler_request_type, &tkc_save_for_sampler_result_type),
    FUTURE(TKC_EP_SAVE_EXTERNAL,     "save_weights_external", TRAIN, W, JSON, JSON, "SaveWeightsExternal", &tkc_save_external_request_type, &tkc_save_external_result_type),
    FUTURE(TKC_EP_LOAD_WEIGHTS,      "load_weights",       TRAIN,  AW, JSON, JSON, "LoadWeights",     &tkc_load_weights_request_type,  &tkc_load_weights_result_type),
    FUTURE(TKC_EP_SAMPLE,            "asample",            TINKC_POOL_SAMPLE, W, JSON, PB, "Sample",   &tkc_sample_request_type,        NULL),
    DIRECT(TKC_EP_STREAM_SAMPLE,     "stream_sample",      "POST", V1 "/stream_sample",  TINKC_POOL_SAMPLE,    MEMBER, 0,      0,     JSON, &tkc_sample_request_type),
    DIRECT(TKC_EP_RETRIEVE_FUTURE,   "retrieve_future",    "POST", V1 "/retrieve_future", TINKC_POOL_RETRIEVE, ANY,    0,      45000, JSON, &tkc_retrieve_future_request_type),
    DIRECT(TKC_EP_RETRIEVE_FUTURES,  "retrieve_futures",   "POST", V1 "/retrieve_futures", TINKC_POOL_FUTURES, ANY,    0,      45000, JSON, &tkc_retrieve_futures_request_type),
    DIRECT(TKC_EP_CANCEL_FUTURE,     "cancel_future",      "POST", V1 "/cancel_future",  TINKC_POOL_RETRIEVE,  ANY,    W,      30000, JSON, &tkc_cancel_future_request_type),
    DIRECT(TKC_EP_CAPABILITIES,      "get_server_capabilities", "GET", V1 "/get_server_capabilities", TRAIN,   READY,  AW,     0,     NONE, NULL),
    DIRECT(TKC_EP_TRAINING_RUN,      "training_run",       "GET",  RUN,                  TRAIN,                READY,  AW,     0,     NONE, NULL),
    DIRECT(TKC_EP_TRAINING_RUNS,     "training_runs",      "GET",  V1 "/training_runs",  TRAIN,                READY,  AW,     0,     NONE, NULL),
    DIRECT(TKC_EP_WEIGHTS_INFO,      "weights_info",       "POST", V1 "/weights_info",   TRAIN,                READY,  AW,     0,     JSON, &tkc_weights_info_request_type),
    DIRECT(TKC_EP_RUN_CHECKPOINTS,   "run_checkpoints",    "GET",  RUN "/checkpoints",   TRAIN,                READY,  AW,     0,     NONE, NULL),
    DIRECT(TKC_EP_CHECKPOINTS,       "checkpoints",        "GET",  V1 "/checkpoints",    TRAIN,                READY,  AW,     0,     NONE, NULL),
    DIRECT(TKC_EP_DELETE_RUN,        "delete_run",         "DELETE", RUN,                TRAIN,                READY,  AW,     0,     NONE, NULL),
    DIRECT(TKC_EP_DELETE_CHECKPOINT, "delete_checkpoint",  "DELETE", CKPT,               TRAIN,                READY,  AW,     0,     NONE, NULL),
    DIRECT(TKC_EP_PUBLISH,           "publish_checkpoint", "POST", CKPT "/publish",      TRAIN,                READY,  AW,     0,     NONE, NULL),
    DIRECT(TKC_EP_UNPUBLISH,         "unpublish_checkpoint", "DELETE", CKPT "/publish",  TRAIN,                READY,  AW,     0,     NONE, NULL),
    DIRECT(TKC_EP_SET_TTL,           "set_checkpoint_ttl", "PUT",  CKPT "/ttl",          TRAIN,                READY,  AW,     0,     JSON, &tkc_ttl_request_type),
    DIRECT(TKC_EP_ARCHIVE,           "checkpoint_archive", "GET",  CKPT "/archive",      REST,                 READY,  0,      0,     NONE, NULL),
    DIRECT(TKC_EP_EXTERNAL_URLS,     "external_weights_urls", "GET", CKPT "/external_weights_urls", TRAIN,      READY,  AW,     0,     NONE, NULL),
    DIRECT(TKC_EP_UPLOAD_START,      "external_weights_upload_start", "POST", V1 "/external_weights_upload_start", TRAIN, READY, AW, 0, JSON, &tkc_upload_start_request_type),
    DIRECT(TKC_EP_UPLOAD_FINISH,     "external_weights_upload_finish", "POST", V1 "/external_weights_upload_finish", TRAIN, READY, AW, 0, JSON, &tkc_upload_finish_request_type),
    DIRECT(TKC_EP_COPY_WEIGHTS,      "copy_weights",       "POST", V1 "/copy_weights",   TRAIN,                READY,  AW,     0,     JSON, &tkc_copy_weights_request_type),
    DIRECT(TKC_EP_SESSIONS,          "sessions",           "GET",  V1 "/sessions",       TRAIN,                READY,  AW,     0,     NONE, NULL),
    DIRECT(TKC_EP_SESSION,           "session",            "GET",  V1 "/sessions/{id}",  TRAIN,                READY,  AW,     0,     NONE, NULL),
    DIRECT(TKC_EP_SEARCH_SESSIONS,   "search_sessions",    "POST", V1 "/sessions/search", TRAIN,               READY,  AW,     0,     JSON, &tkc_search_request_type),
    DIRECT(TKC_EP_SEARCH_CHECKPOINTS, "search_checkpoints", "POST", V1 "/checkpoints/search", TRAIN,            READY,  AW,     0,     JSON, &tkc_checkpoint_search_request_type),
    DIRECT(TKC_EP_FINISH_SESSION,    "finish_session",     "POST", V1 "/sessions/{id}/finish", TRAIN,          READY,  AW,     0,     JSON, &tkc_finish_session_request_type),
    DIRECT(TKC_EP_ASSIGN_PROJECT,    "assign_session_project", "PUT", V1 "/sessions/{id}/project", TRAIN,      READY,  AW,     0,     JSON, &tkc_project_request_type),
    DIRECT(TKC_EP_TRACE_EXPORT,      "trace_export",       "GET",  V1 "/sessions/{id}/trace_export", TRAIN,    READY,  AW,     0,     NONE, NULL),
    DIRECT(TKC_EP_TELEMETRY,         "telemetry",          "POST", V1 "/telemetry",      TINKC_POOL_TELEMETRY, ANY,    0,      5000,  JSON, &tkc_telemetry_request_type),
    DIRECT(TKC_EP_AUDIT,             "audit",              "GET",  V1 "/audit",          REST,                 READY,  AW,     0,     NONE, NULL),
    DIRECT(TKC_EP_USAGE,             "billing_usage",      "GET",  V1 "/billing/usage/events", TRAIN,          READY,  AW,     0,     NONE, NULL),
    DIRECT(TKC_EP_STORAGE,           "checkpoint_storage", "GET",  V1 "/billing/usage/checkpoints/current", TRAIN, READY, AW,   0,     NONE, NULL),
};
/* clang-format on */

const tkc_endpoint *tkc_endpoint_get(int32_t id)
{
    if (id < 0 || id >= TKC_EP_COUNT)
        return NULL;
    assert(endpoints[id].id == id && endpoints[id].path); /* fails if a row is missing */
    return &endpoints[id];
}

bool tkc_endpoint_path(const tkc_endpoint *e, const char *const *ids, tkc_buf *out,
                       tinkc_error *err)
{
    for (const char *p = e->path; *p && !tkc_failed(err);) {
        size_t plain = strcspn(p, "{");
        tkc_buf_add(out, p, plain, err);
        p += plain;
        if (*p != '{')
            continue;
        if (!ids || !*ids)
            return tkc_fail(err, TINKC_E_ARGUMENT, "%s: an id is missing", e->name);
        tkc_segment_escape(*ids++, strncmp(p, "{ckpt}", 6) == 0, out, err);
        p += strcspn(p, "}");
        assert(*p == '}');
        p++;
    }
    return !tkc_failed(err);
}

/* ---- from a path to its endpoint ---- */

enum { MAX_SEGMENTS = 10 };

typedef struct segments {
    tinkc_str part[MAX_SEGMENTS];
    size_t n;
} segments;

/* Splits after the leading '/'. False if there are more segments than any endpoint has. */
static bool split_path(tinkc_str path, segments *out)
{
    out->n = 0;
    if (path.len == 0 || path.data[0] != '/')
        return false;
    tinkc_str rest = tkc_strn(path.data + 1, path.len - 1);
    while (out->n < MAX_SEGMENTS && tkc_str_cut(&rest, '/', &out->part[out->n]))
        out->n++;
    return rest.data == NULL;
}

/* "weights/NAME" takes two segments, a bare name one. */
static size_t checkpoint_width(const segments *s, size_t i)
{
    bool kind = tkc_str_is(s->part[i], "weights") || tkc_str_is(s->part[i], "sampler_weights") ||
                tkc_str_is(s->part[i], "external_weights");
    return kind && i + 1 < s->n ? 2 : 1;
}

typedef struct found {
    tinkc_str id, ckpt;
} found;

static bool matches(const tkc_endpoint *e, const segments *s, found *out)
{
    tinkc_str pattern = tkc_str(e->path + 1), want;
    assert(e->path[0] == '/' && s->n <= MAX_SEGMENTS);
    size_t i = 0;
    *out = (found){ 0 };
    for (; tkc_str_cut(&pattern, '/', &want); i++) {
        if (i >= s->n)
            return false;
        if (tkc_str_is(want, "{id}")) {
            out->id = s->part[i];
        } else if (tkc_str_is(want, "{ckpt}")) {
            size_t last = i + checkpoint_width(s, i) - 1;
            const char *end = s->part[last].data + s->part[last].len;
            out->ckpt = tkc_strn(s->part[i].data, (size_t)(end - s->part[i].data));
            assert(last < s->n);
            i = last;
        } else if (!tkc_str_eq(want, s->part[i])) {
            return false;
        }
    }
    return i == s->n;
}

static bool decode_ids(const found *f, tkc_arena *arena, tkc_route *out, tinkc_error *err)
{
    if (f->id.data)
        out->id = tkc_percent_decode(f->id, arena, err);
    if (f->ckpt.data)
        out->ckpt = tkc_percent_decode(f->ckpt, arena, err);
    bool bad = (f->id.data && !out->id) || (f->ckpt.data && !out->ckpt);
    return !bad;
}

bool tkc_route_find(tinkc_str method, tinkc_str path, tkc_arena *arena, tkc_route *out,
                    tinkc_error *err)
{
    segments s;
    found f;
    *out = (tkc_route){ NULL, NULL, NULL, 404 };
    if (!split_path(path, &s))
        return true;
    for (size_t i = 0; i < TKC_EP_COUNT; i++) {
        if (!matches(&endpoints[i], &s, &f))
            continue;
        if (!tkc_str_is(method, endpoints[i].method)) {
            out->status = 405;
        } else if (decode_ids(&f, arena, out, err)) {
            out->endpoint = &endpoints[i];
            out->status = 200;
            return true;
        }
    }
    return !tkc_failed(err);
}
