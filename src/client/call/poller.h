/* poller.h - submit, then poll until it is done: what an operation does that takes the service a while.
 *
 * A poller is a part of an operation. It waits for one thing at a time: the start-up, an answer, the
 * result that an answer promised, the end of a pause. Then comes the step that was named with it, once.
 * What goes wrong otherwise comes to `failed`. tkc_poller_end ends it in any state; nothing comes after it.
 *
 *     start:  tkc_poller_begin(&op->poller, f, NULL);
 *             tkc_poller_need(&op->poller, TKC_NEED_SESSION, ready);
 *     ready:  tkc_poller_submit(poller, TKC_EP_CREATE_MODEL, &message, made);
 *     made:   if (tkc_poller_result(poller, &result)) tkc_op_finish(poller->f, NULL);
 *     stop:   tkc_poller_end(&op->poller); tkc_op_finish(f, why);
 *
 * Thread: I/O.
 */
#ifndef TKC_API_POLLER_H
#define TKC_API_POLLER_H

#include "client/call/promise.h"
#include "client/core/client_priv.h"

typedef struct tkc_poller tkc_poller;
typedef void tkc_poller_step(tkc_poller *);
typedef void tkc_poller_failed(tkc_poller *, const tinkc_error *);

struct tkc_poller {
    tinkc_future *f; /* set by tkc_poller_begin, so the next two */
    tkc_poller_failed *failed;
    int64_t begun_ms;
    const char *pause_prefix; /* tkc_promise has these: the owner's, before tkc_poller_poll */
    tkc_log_gate *pause_gate;
    bool wants_protobuf;
    const tkc_call *answer; /* in the step after tkc_poller_ask: whatever came */
    tkc_promise promise;    /* in the step after tkc_poller_poll: a result, until it is released */

    struct {                          /* poller.c's */
        tkc_poller_step *step, *then; /* then: after the submit that is under way */
        tkc_call *call;
        tkc_ready_wait ready;
        tkc_timer timer;
        int32_t endpoint;
    } inner;
};

/* failed NULL = tkc_op_finish. */
void tkc_poller_begin(tkc_poller *, tinkc_future *f, tkc_poller_failed *failed);
/* When the client is as far as TKC_NEED_*; perhaps at once. */
void tkc_poller_need(tkc_poller *, int32_t need, tkc_poller_step *next);
/* Starts the call, which is then the poller's; `next` gets any answer. NULL: it failed with err. */
void tkc_poller_ask(tkc_poller *, tkc_call *call, const tinkc_error *err, tkc_poller_step *next);
/* Waits for the result of an accepted request; `next` comes with success only. */
void tkc_poller_poll(tkc_poller *, int32_t endpoint, tinkc_str request_id, tkc_poller_step *next);
/* Both: the endpoint's request message, then the result it promises. */
void tkc_poller_submit(tkc_poller *, int32_t endpoint, const void *message, tkc_poller_step *next);
/* The request id in the answer to a submit. */
bool tkc_submit_read(const tkc_call *, tkc_arena *, tinkc_str *request_id, tinkc_error *err);
/* Reads that result as the endpoint's result message, into the future's arena. False: it failed. */
bool tkc_poller_result(tkc_poller *, void *result);
/* The result is no longer needed. */
void tkc_poller_release(tkc_poller *);
void tkc_poller_pause(tkc_poller *, int64_t ms, tkc_poller_step *next);

/* A call is under way; an attempt of it has left. */
bool tkc_poller_is_asking(const tkc_poller *);
bool tkc_poller_is_out(const tkc_poller *);
bool tkc_poller_is_polling(const tkc_poller *);
/* The attempt under way is the last one. */
void tkc_poller_no_more(tkc_poller *);
/* Ends it. True: the service may have what was asked. Nothing to do is fine. */
bool tkc_poller_end(tkc_poller *);

#endif
