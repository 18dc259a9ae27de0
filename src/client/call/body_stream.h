/* body_stream.h - an answer whose body is pulled piece by piece, from any thread.
 *
 * A pull is an operation (operation.h): closing the client ends it, its owner releases it with
 * tkc_pull_free. Between the transport and the reader lies a buffer of bounded size; while it is
 * full the transport is held back.
 */
#ifndef TKC_API_BODY_STREAM_H
#define TKC_API_BODY_STREAM_H

#include "client/call/call.h"
#include "tinkc/rest.h"

/* A response as the public sees it; also the result of tinkc_http_call. */
struct tinkc_response {
    int32_t status, retries;
    tinkc_bytes body;
    const char *url, *http_version;
    const char *const *headers; /* pairs */
    int64_t elapsed_ms;
};
/* Copies what the call's last answer says, but for the body, into the arena. Thread: where the
 * sink or `done` runs. */
bool tkc_response_fill(struct tinkc_response *, const tkc_call *, tkc_arena *, tinkc_error *err);

/* Checks the options of tinkc_http_call and tinkc_stream_open and makes a call of them. What the
 * call needs of them is copied. */
tkc_call *tkc_call_from_options(tinkc_client *, const tinkc_http_options *,
                                const tkc_call_spec *base, tinkc_error *err);

typedef struct tkc_pull tkc_pull;

/* Both take the call over: sink fields of its spec must be those of tkc_pull_sink. */
tkc_pull *tkc_pull_new(tinkc_client *, const char *operation, tinkc_error *err);
/* Fills in the sink of a spec for this pull. */
void tkc_pull_sink(tkc_pull *, tkc_call_spec *);
/* Starts it: the call becomes the pull's. any_status: an error status is an answer with a body. */
void tkc_pull_start(tkc_pull *, tkc_call *, bool any_status);

/* Waits until the head is here (NULL and err otherwise); borrowed until the pull is freed. */
const struct tinkc_response *tkc_pull_head(tkc_pull *, int64_t timeout_ms, tinkc_error *err);
/* Waits for at least one byte; 0 = the end, or an error in err. */
size_t tkc_pull_read(tkc_pull *, void *buf, size_t cap, int64_t timeout_ms, tinkc_error *err);
/* The same without a copy: lends what lies together until the next call. Not mixed with _read. */
size_t tkc_pull_next(tkc_pull *, const void **bytes, tinkc_error *err);
/* While a reader sleeps in tkc_pull_next, for as long as it takes, bytes that come are offered to
 * `take` first, on the I/O thread, and only what it leaves is kept and wakes the reader. It stands
 * in for it: what belongs to the reader is its own meanwhile. It must not wait, nor call back into
 * the pull. Before the start. */
void tkc_pull_take(tkc_pull *, size_t (*take)(void *arg, const void *bytes, size_t len), void *arg);
/* Ends it early. A thread that waits in _read is woken with CANCELLED. Any thread. */
void tkc_pull_cancel(tkc_pull *);
void tkc_pull_free(tkc_pull *);

/* Calls fn(arg), from any thread, whenever there is something new to read; NULL ends it, and no
 * call runs after that has returned. fn must not call back into the pull. */
void tkc_pull_notify(tkc_pull *, void (*fn)(void *arg), void *arg);
/* Something is there now: bytes or the end. */
bool tkc_pull_ready(tkc_pull *);

#endif
