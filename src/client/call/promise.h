/* promise.h - waiting for what the service has accepted: the polling loop (retry layer "poll").
 *
 * A promise belongs to an operation and asks retrieve_future until there is a result, a failure,
 * or no hope. It is one of the two things an operation waits for; the other is a call.
 */
#ifndef TKC_API_PROMISE_H
#define TKC_API_PROMISE_H

#include "client/sample/session_poll.h"

typedef struct tkc_promise tkc_promise;
struct tkc_promise {
    /* set by the owner before tkc_promise_start */
    tinkc_client *client;
    tinkc_future *f;          /* whose it is, for stage, status and events */
    const char *request_type; /* "ForwardBackward": static */
    const char *pause_prefix; /* of the log line when the service pauses it: "Training for X" */
    bool wants_protobuf;
    bool sampling;               /* another wording of the same line */
    int64_t roundtrip_ms;        /* from the operation's start to its acceptance */
    void (*done)(tkc_promise *); /* once, unless ended before. Thread: I/O */
    void *owner;
    tkc_log_gate *pause_gate;   /* the trainer's or sampler's: one line a minute */
    tkc_session_poll *together; /* says when there is something to fetch; NULL = polls alone */

    /* the outcome, valid in `done`: err, or a body of a successful answer */
    tinkc_error err;
    tinkc_bytes body; /* until tkc_promise_end */
    tinkc_bytes error_body;
    bool is_protobuf;

    /* promise.c's */
    struct {
        char *request_id;
        tkc_call *call;
        tkc_timer timer;
        tkc_claim claim; /* of in-flight bytes */
        tkc_arena arena; /* of the queue state's reason */
        tkc_session_wait wait;
        tkc_poll_pace pace;
        int64_t begun_ms;
        int32_t iteration;
        int32_t queue_state;
        char reason[160];
        bool no_metadata, running;
    } inner;
};

/* Copies the id and asks for the first time. Failures (memory) come through `done`, later. */
void tkc_promise_start(tkc_promise *, tinkc_str request_id);
/* Moves the result's body into *out, which must be empty: for results that keep it. In `done`. */
void tkc_promise_take_body(tkc_promise *, tkc_buf *out);
/* Ends it whatever its state, and frees what it holds; nothing to do is fine. The service
 * continues. Thread: I/O, or any if it was never started. */
void tkc_promise_end(tkc_promise *);

#endif
