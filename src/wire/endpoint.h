/* endpoint.h - the table of endpoints, shared by client and server. */
#ifndef TKC_WIRE_ENDPOINT_H
#define TKC_WIRE_ENDPOINT_H

#include "tinkc/sys/transport.h"
#include "wire/message_codec.h"

enum {
    TKC_EP_HEALTH = 0,
    TKC_EP_CLIENT_CONFIG,
    TKC_EP_DYNAMIC_CONFIG,
    TKC_EP_AUTH_TOKEN,
    TKC_EP_CREATE_SESSION,
    TKC_EP_HEARTBEAT,
    TKC_EP_CREATE_SAMPLING_SESSION,
    TKC_EP_JOIN_SAMPLING_SESSION,
    TKC_EP_SAMPLER,
    TKC_EP_CREATE_CUSTOM_LOSS,
    TKC_EP_CREATE_MODEL,
    TKC_EP_GET_INFO,
    TKC_EP_UNLOAD_MODEL,
    TKC_EP_FORWARD_BACKWARD,
    TKC_EP_FORWARD, /* older clients only: JSON */
    TKC_EP_OPTIM_STEP,
    TKC_EP_SAVE_WEIGHTS,
    TKC_EP_SAVE_FOR_SAMPLER,
    TKC_EP_SAVE_EXTERNAL,
    TKC_EP_LOAD_WEIGHTS,
    TKC_EP_SAMPLE,
    TKC_EP_STREAM_SAMPLE, /* not in the official service: a sample as events */
    TKC_EP_RETRIEVE_FUTURE,
    TKC_EP_RETRIEVE_FUTURES, /* which samples of a sampling session have ended */
    TKC_EP_CANCEL_FUTURE,
    TKC_EP_CAPABILITIES,
    TKC_EP_TRAINING_RUN,
    TKC_EP_TRAINING_RUNS,
    TKC_EP_WEIGHTS_INFO,
    TKC_EP_RUN_CHECKPOINTS,
    TKC_EP_CHECKPOINTS,
    TKC_EP_DELETE_RUN,
    TKC_EP_DELETE_CHECKPOINT,
    TKC_EP_PUBLISH,
    TKC_EP_UNPUBLISH,
    TKC_EP_SET_TTL,
    TKC_EP_ARCHIVE,
    TKC_EP_EXTERNAL_URLS,
    TKC_EP_UPLOAD_START,
    TKC_EP_UPLOAD_FINISH,
    TKC_EP_COPY_WEIGHTS,
    TKC_EP_SESSIONS,
    TKC_EP_SESSION,
    TKC_EP_SEARCH_SESSIONS,
    TKC_EP_SEARCH_CHECKPOINTS,
    TKC_EP_FINISH_SESSION,
    TKC_EP_ASSIGN_PROJECT,
    TKC_EP_TRACE_EXPORT,
    TKC_EP_TELEMETRY,
    TKC_EP_AUDIT,
    TKC_EP_USAGE,
    TKC_EP_STORAGE,
    TKC_EP_COUNT
};

enum { TKC_ENC_NONE = 0, TKC_ENC_JSON, TKC_ENC_PROTOBUF };

#define TKC_TYPE_JSON     "application/json"
#define TKC_TYPE_PROTOBUF "application/x-protobuf"

/* What a client must have before it sends the first attempt. */
enum {
    TKC_NEED_NOTHING = 0, /* used by the start-up itself                          */
    TKC_NEED_CONFIG,      /* the service's settings and a token: plain REST calls */
    TKC_NEED_SESSION      /* a session as well: everything that trains or samples */
};

/* Retry layers around one request (docs/failures.md). The third, poll, belongs to
 * TKC_EP_RETRIEVE_FUTURE and TKC_EP_RETRIEVE_FUTURES; the fourth, resample, to TKC_EP_SAMPLE. */
enum {
    TKC_RETRY_ATTEMPTS = 1, /* attempt: max_retries more tries of one exchange */
    TKC_RETRY_WINDOW = 2    /* window: the operation as a whole, for up to 300 s */
};

/* The only definition of an endpoint: the client makes its calls from the row (tkc_call_to), the
 * server finds its handler by it. CONTRIBUTING.md lists the files that a new endpoint touches. */
typedef struct tkc_endpoint {
    int32_t id;                 /* TKC_EP_* */
    const char *name;           /* "create_model" */
    const char *method;         /* "POST" */
    const char *path;           /* "/api/v1/training_runs/{id}/checkpoints/{ckpt}/ttl" */
    uint8_t pool;               /* TINKC_POOL_* */
    uint8_t need;               /* TKC_NEED_* */
    uint8_t request_encoding;   /* TKC_ENC_* */
    uint8_t retries;            /* TKC_RETRY_*, as bits */
    uint8_t result_encoding;    /* of the answer, or of the future's result */
    int32_t timeout_ms;         /* idle timeout of one attempt; 0 = the client's idle_timeout_ms */
    const char *request_type;   /* X-Tinker-Request-Type while polling; NULL = not a future */
    const tkc_message *request; /* NULL = no body, or a bulk format of its own (forward_backward) */
    const tkc_message *result;  /* of the future; NULL = not a future, or protobuf */
} tkc_endpoint;

/* NULL if there is no such id. Static. */
const tkc_endpoint *tkc_endpoint_get(int32_t id);

/* Appends the path with its ids filled in, in order and percent-encoded ({ckpt} keeps its '/').
 * Errors: ARGUMENT (missing or empty id, control characters, '?', '#', a segment "." or ".."). */
bool tkc_endpoint_path(const tkc_endpoint *, const char *const *ids, tkc_buf *out,
                       tinkc_error *err);

/* For a server: the endpoint of a request. `path` has no query and is not decoded; ids are decoded
 * into the arena. False only if memory is exhausted; an unknown path gives a status. */
typedef struct tkc_route {
    const tkc_endpoint *endpoint; /* NULL unless status is 200 */
    const char *id;               /* {id}; NULL = the path has none */
    const char *ckpt; /* {ckpt}: "weights/NAME", or a bare name, which the caller rejects */
    int32_t status;   /* 200, 404 or 405 */
} tkc_route;
bool tkc_route_find(tinkc_str method, tinkc_str path, tkc_arena *, tkc_route *out,
                    tinkc_error *err);

#endif
