/* call.h - one logical call: credential, attempts, delays, and in the end one answer.
 *
 * A call carries a request over the client's transport as often as two retry layers allow, and
 * reports once: "attempt" repeats one exchange a few times, "window" repeats the operation as a
 * whole for several minutes. The other two layers lie above: "poll" (promise.h), "resample"
 * (sample_op.c). docs/failures.md has the table. It lives on the I/O
 * thread. Nothing here knows what the bytes mean.
 */
#ifndef TKC_API_CALL_H
#define TKC_API_CALL_H

#include "client/call/body.h"
#include "client/core/operation.h"
#include "base/buf.h"
#include "base/pool.h"
#include "tinkc/sys/transport.h"
#include "wire/endpoint.h"

typedef struct tkc_call tkc_call;

enum { TKC_RETRIES_DEFAULT = -1 }; /* what the client's options say: 10 */

/* Where a body goes piece by piece as it comes (successful answers only). False = enough. Comes
 * from the transport's thread, before `done`. */
typedef bool tkc_sink_fn(void *user, const void *data, size_t len);

/* Zero is the default of every field but the first three. Everything is copied but the body,
 * which is moved: the caller's buffer is empty afterwards. */
typedef struct tkc_call_spec {
    const char *method;  /* static: "GET" */
    const char *path;    /* "/api/v1/x?limit=5": escaped already */
    int32_t pool;        /* TINKC_POOL_* */
    int32_t need;        /* TKC_NEED_* */
    int32_t retries;     /* layer attempt: how many more; 0 = none, TKC_RETRIES_DEFAULT */
    bool window;         /* layer window as well */
    bool backpressure;   /* 429 and a pausing 402 come back at once (sampling) */
    bool conflict_ends;  /* a 409 on a repeated attempt is final: an earlier attempt was accepted */
    bool conflict_final; /* any 409 is final: "it is so already" */
    bool probe;          /* a 500 is final: the caller has another way to say the same */
    bool no_redirects;
    bool anonymous;             /* no credential, none of the client's headers: a foreign host */
    int64_t timeout_ms;         /* of one attempt's silence; 0 = the client's */
    const char *base_url;       /* NULL = the client's */
    const char *const *headers; /* pairs on top of the client's; a value "" drops one */
    const char *content_type;   /* NULL = application/json; not sent with GET */
    const char *accept;         /* NULL = application/json */
    tkc_buf *body;              /* moved; NULL = none */
    tkc_body *parts;            /* instead of it: bytes and, if the transport reads, files; kept */
    tkc_sink_fn *sink;          /* NULL = collect */
    void *sink_user;
    size_t (*sink_room)(void *user); /* tinkc_reply.room; NULL = any number */
    void (*sink_head)(void *user);   /* the head is here, before any byte; ends all retries */
    int64_t max_bytes;               /* of a collected body; 0 = the client's max_response_bytes */
} tkc_call_spec;

struct tkc_call {
    /* set by the owner before tkc_call_start */
    void (*done)(tkc_call *); /* once, unless freed before. Thread: I/O */
    void *owner;
    tinkc_future *f; /* whose call it is, for events and status; NULL = nobody's. No reference */

    /* the outcome: valid in `done` and until tkc_call_free */
    tinkc_error err;   /* code 0 = a 2xx came */
    int32_t status;    /* HTTP status of the last answer; 0 = none came */
    tinkc_bytes body;  /* of that answer, errors included; terminated */
    bool may_have_run; /* an attempt left and was not clearly refused */
    bool retried;      /* there was more than one attempt */
    int32_t attempts;  /* how many there were */
    bool paused;       /* a 402 that is to be waited out (backpressure calls only) */

    struct tkc_call_inner *inner; /* call.c */
};

/* What the table says about an endpoint: all of a spec but its body and, where the path has ids,
 * its path (rest_priv.h fills those in). */
tkc_call_spec tkc_call_to(int32_t endpoint);
/* A call of an endpoint whose body is this message. `spec` is tkc_call_to's, changed where the call
 * differs. Any thread. */
tkc_call *tkc_call_with(tinkc_client *, const tkc_call_spec *spec, const tkc_message *,
                        const void *message, tinkc_error *err);
/* Any thread. */
tkc_call *tkc_call_new(tinkc_client *, const tkc_call_spec *, tinkc_error *err);
/* Thread: I/O. `done` never comes from inside it. */
void tkc_call_start(tkc_call *);
/* Ends it: `done` is not called, and the transport is asked to cancel. NULL allowed. Thread:
 * I/O; any before it was started. Allowed inside `done`. */
void tkc_call_free(tkc_call *);
/* Moves the last answer's body into *out (which must be empty): for results that keep it. */
void tkc_call_take_body(tkc_call *, tkc_buf *out);
/* An attempt has left, and there is no outcome yet. */
bool tkc_call_is_out(const tkc_call *);
/* The attempt under way is the last one; between two attempts it ends with what the one before
 * met. Thread: I/O, between start and `done`. */
void tkc_call_no_more(tkc_call *);
/* sink_room is no longer 0: tells the transport. Thread: I/O. */
void tkc_call_resume(tkc_call *);
/* First value of a header of the last answer, any case; NULL = none. */
const char *tkc_call_header(const tkc_call *, const char *name);
/* All headers of the last answer, pairs; NULL = none. This and the next two also inside a sink, on
 * its thread. */
const char *const *tkc_call_headers(const tkc_call *);
int32_t tkc_call_status(const tkc_call *);     /* 0 = no status yet */
int64_t tkc_call_elapsed_ms(const tkc_call *); /* since the call began */
/* tkc_emit with the endpoint's method and path as the event's request. Thread: I/O. */
void tkc_emit_about(tinkc_client *, tinkc_future *, int32_t endpoint, const tinkc_event *);
/* err from a status outside 2xx and its body: code, http_status, message, flags. `local`: no HTTP
 * took place, so the message does not mention it. */
void tkc_status_error(tinkc_error *err, int32_t status, tinkc_bytes body, bool local);

/* ---- the common case: one request, one answer, one result ---- */

/* Reads an answer into f->arena and sets f->result, or err: that alone decides how f ends. Runs on the I/O thread or, for large bodies, on
 * a helper; nobody else touches f->arena meanwhile. answer->body stays valid only inside. */
typedef void tkc_decode_fn(tinkc_future *f, const tkc_call *answer, tinkc_error *err);

/* The whole of a REST call:
 *
 *     tinkc_future *tinkc_run_get(tinkc_client *client, const char *id, tinkc_error *err)
 *     {
 *         ...check arguments, build path...
 *         return tkc_rest_call(client, &run_get_class, &(tkc_call_spec){ .method = "GET",
 *             .path = path, .pool = TINKC_POOL_TRAIN, .need = TKC_NEED_CONFIG,
 *             .retries = TKC_RETRIES_DEFAULT, .window = true }, decode_run, err);
 *     }
 *     static const tkc_rest_class run_get_class = { "run_get", "run" };
 *     const tinkc_run *tinkc_future_run(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
 *     { return tkc_future_get(f, "run", timeout_ms, err); }
 *
 * decode NULL = the body is ignored and the future has no result. spec.body is moved in any case.
 * Does what a public function must: tkc_enter, fork and closed checks. */
typedef struct tkc_rest_class {
    const char *operation, *kind;
} tkc_rest_class;
tinkc_future *tkc_rest_call(tinkc_client *, const tkc_rest_class *, const tkc_call_spec *,
                            tkc_decode_fn *decode, tinkc_error *err);

/* Runs `work` on a helper thread and then `after` on the I/O thread. Cannot fail: without a helper
 * it runs on the I/O thread. The job is part of an object that must stay until `after`. */
typedef struct tkc_offload tkc_offload;
struct tkc_offload {
    void (*work)(tkc_offload *);
    void (*after)(tkc_offload *);
    tinkc_client *client; /* call.c's, so the next two */
    tkc_job job;
    tkc_task task;
};
void tkc_offload_start(tinkc_client *, tkc_offload *);

#endif
