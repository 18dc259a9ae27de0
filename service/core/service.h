/* service.h - the service's boundary: takes an HTTP-shaped request, answers into a reply.
 *
 * The in-process transport and the HTTP server (the shells) are thin layers over
 * tke_service_handle; nothing below it knows which of them a request came through.
 *
 * Threads: shells call from any number of threads; they parse, check, record and queue, and never
 * wait. One worker owns all weights, gradients and caches. A housekeeper thread runs timers (long
 * polls, sessions, gaps, images), one thread writes tensor files, the store has its writer. All
 * shared state is behind one lock under which nothing waits and nothing is computed.
 */
#ifndef TKE_SERVICE_SERVICE_H
#define TKE_SERVICE_SERVICE_H

#include "service/store/store.h"
#include "tinkc/engine.h"
#include "tinkc/sys/transport.h"

typedef struct tke_service tke_service;

tke_service *tke_service_new(const tinkc_engine_options *, tinkc_error *err);
void tke_service_keep(tke_service *);
/* The last reference writes images and stops the threads. NULL allowed. */
void tke_service_drop(tke_service *);

bool tke_service_add_model(tke_service *, const char *name, const char *folder, tinkc_error *err);
bool tke_service_flush(tke_service *, int64_t timeout_ms, tinkc_error *err);
/* adapter_import.c: tinkc_engine_import. Waits, so never call it on the worker's thread. */
bool tke_service_import(tke_service *, const tinkc_import_options *, tinkc_text *weights,
                        tinkc_text *sampler, tinkc_error *err);

/* Lists the runs of this owner; NULL = all. */
/* An array of the newest runs that the official SDK drives, with their losses by step. */
bool tke_service_curves(tke_service *, const char *owner, tkc_buf *out, tinkc_error *err);
bool tke_service_status(tke_service *, const char *owner, tkc_buf *out, tinkc_error *err);
bool tke_service_metrics(tke_service *, tkc_buf *out, tinkc_error *err);
bool tke_service_ready(tke_service *);
/* From now on, refuses with 503 everything except polls, heartbeats and reads. */
void tke_service_drain(tke_service *);

/* The client. key_id "" = the server has no keys. */
typedef struct tke_caller {
    const char *owner; /* "default" where there are no keys */
    const char *key_id;
    uint64_t generation;       /* of the key */
    const char *email;         /* for whoami; "" or NULL = none */
    const char *const *models; /* a list: base models that this server offers; NULL = all */
} tke_caller;

enum {
    /* The shell calls tke_service_delivered when the answer has arrived. Without this flag an
     * answer counts as delivered when it has ended. */
    TKE_CALL_REMOTE = 1u << 0,
    /* The body was too large and is only its beginning; it will be refused with 413. */
    TKE_CALL_CUT_OFF = 1u << 1,
    /* Paths under /v1/ and /oai/api/v1/ are served (OpenAI's API). */
    TKE_CALL_OPENAI = 1u << 2,
    /* Content-Type is neither JSON nor protobuf: a body is refused with 415. */
    TKE_CALL_UNTYPED = 1u << 3
};

/* Borrows the request until the reply has ended or failed; never waits. The caller is copied. True: the
 * request's body is not needed any more. */
bool tke_service_handle(tke_service *, const tinkc_request *, tinkc_reply *, const tke_caller *,
                        uint32_t flags);

/* What is known of a request before its body is read. */
typedef struct tke_path_info {
    int64_t max_body; /* as received, compressed or not */
    bool needs_key;   /* false: health, archives (the link is the secret), unknown paths */
    bool is_pass;     /* its seq_id is used even if its body is refused */
} tke_path_info;
tke_path_info tke_service_path(tke_service *, const char *method, tinkc_str uri, bool openai);
bool tke_service_is_openai(tinkc_str uri); /* a form of service/chat */
/* version: the header TKE_ANTHROPIC_VERSION, which its clients send, or NULL. */
#define TKE_ANTHROPIC_VERSION "anthropic-version"
bool tke_service_is_anthropic(tinkc_str uri, const char *version);
/* A path of a hub: files of base models. */
bool tke_service_is_hub(tinkc_str uri);
/* Cancels an answer: a poll or a stream ends soon, other requests continue. */
void tke_service_cancel(tke_service *, tinkc_reply *);
/* A reply that was full has room again. */
void tke_service_resume(tke_service *, tinkc_reply *);
/* An answer that carried the header TKE_FUTURE_HEADER was written out in full. */
#define TKE_FUTURE_HEADER "X-Tinker-Request-Id"
void tke_service_delivered(tke_service *, const char *request_id);

tke_service *tke_engine_service(tinkc_engine *);
/* In-process: a reference to it keeps the service alive. */
const tinkc_transport *tke_service_transport(tke_service *);

/* Reads a token's claims; false: the server has no tokens, or this one is invalid. The caller must
 * check that its key still exists. */
enum { TKE_KEY_ID = 17, TKE_EMAIL = 128 };
typedef struct tke_token_claims {
    char owner[32];
    char key_id[TKE_KEY_ID];
    uint64_t generation;
    char email[TKE_EMAIL]; /* written, not read back; "" = none */
} tke_token_claims;
bool tke_service_token_read(tke_service *, const char *token, tke_token_claims *out);

/* The owner that a key belongs to, and an id for the key; neither reveals the key. */
void tke_service_owner_of_key(tke_service *, tinkc_str key, char owner[32],
                              char key_id[TKE_KEY_ID]);

/* What an owner may use; 0 = no limit. */
typedef struct tke_quota {
    int64_t requests_per_minute;
    int64_t tokens_per_day;
    int64_t storage_bytes;
} tke_quota;
void tke_service_set_quota(tke_service *, const char *owner, const tke_quota *);
/* The owner's key was removed: links that it asked for end, and do not come back with it. Any thread. */
void tke_service_end_links(tke_service *, const char *owner);

/* Numbers of a shell that status and metrics show. Any thread, no locks held. */
enum { TKE_GAUGE_EXCHANGES = 0, TKE_GAUGE_CONNECTIONS, TKE_N_GAUGES };
void tke_service_gauge(tke_service *, int32_t gauge, int64_t change);

/* Memory for requests that are being read and decoded. All of them together share one limit, a part
 * of the engine's memory; beyond it allocation fails with E_MEMORY and the request is answered
 * 503. */
const tinkc_allocator *tke_service_body_allocator(tke_service *);
/* The most that it hands out. */
size_t tke_service_body_memory(const tke_service *);

/* *on: should a shell set TKE_CALL_OPENAI? Yes if the engine's setting or the shell's own options
 * (wanted) ask for it. False: err says why it is impossible. */
bool tke_service_openai(const tke_service *, bool wanted, bool *on, tinkc_error *err);
/* Writes a refusal in OpenAI's form:
 * {"error": {"message", "type", "param", "code"}}; param NULL = null. */
void tke_openai_error(tkc_buf *out, int32_t status, const char *code, const char *param,
                      const char *text, tinkc_error *err);
/* In Anthropic's: {"type": "error", "error": {"type", "message"}}, with the codes that its clients act on. */
#define TKE_THREAD_UNSUPPORTED "thread_unsupported_request"
void tke_anthropic_error(tkc_buf *out, int32_t status, const char *code, const char *text,
                         tinkc_error *err);
/* Has the peer of a TKE_CALL_REMOTE reply disconnected without notice? Any thread. */
typedef bool tke_gone_fn(tinkc_reply *);
void tke_service_set_gone(tke_service *, tke_gone_fn *);

const tinkc_allocator *tke_service_allocator(const tke_service *);
int64_t tke_service_max_body(const tke_service *);
void tke_service_set_max_body(tke_service *, int64_t bytes);

#endif
