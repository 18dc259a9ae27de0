/* sample_events.h - answers that are written while samples are made: one stream for the jobs of one call.
 *
 * Locks: the list of streams has one of its own, and so has each stream for what it has to write; no other is taken
 * inside that of the list.
 */
#ifndef TKE_SERVICE_SAMPLE_EVENTS_H
#define TKE_SERVICE_SAMPLE_EVENTS_H

#include "base/buf.h"
#include "infer/infer.h"
#include "service/core/service_types.h"

typedef struct tke_stream_style tke_stream_style;
/* How an answer is written. `whole`: one body at the end, with its own status; otherwise events,
 * after a head that is sent at once. Both functions append to out, on the worker's thread; calls
 * for the jobs of one stream never overlap. */
struct tke_stream_style {
    bool whole;
    /* Writes what is new since the last call; NULL = nothing is written before the end. */
    void (*tokens)(void *user, const tke_gen *, tkc_buf *out, tinkc_error *err);
    /* Called exactly once for each job; why NULL = the generator's result. Frees what user holds.
     * For the last job it returns the status of a whole answer. */
    int32_t (*end)(void *user, const tke_gen *, const tinkc_error *why, tkc_buf *out,
                   tinkc_error *err);
};

extern const tke_stream_style tke_stream_native;
void *tke_stream_native_user(tke_job *, tinkc_error *err);
/* A stream that answers a call with the samples of n jobs. NULL: call->err says why. */
tke_stream *tke_stream_new(tke_call *, const tke_stream_style *, size_t n_jobs);
/* Worker: writes events for new tokens. */
void tke_stream_tokens(const tke_job *, const tke_gen *);
/* Worker: ends this job's part; `why` NULL = the generator's result. If one job fails, the others
 * need not continue. The caller must not use the stream afterwards. */
void tke_stream_end(const tke_job *, const tke_gen *, const tinkc_error *why);
bool tke_stream_closed(tke_stream *);
bool tke_streams_open(tke_service *, tinkc_error *err);
void tke_streams_close(tke_service *); /* every stream has ended */
/* Housekeeper. */
void tke_streams_ping(tke_service *, int64_t now_ms);
/* For the stream that answers into this reply, if there is one: writes more; cancels it. */
void tke_stream_resume(tke_service *, tinkc_reply *);
void tke_stream_cancel(tke_service *, tinkc_reply *);

#endif
