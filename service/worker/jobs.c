/* jobs.c - futures: their lifetime, the polls that wait for them, and how results are delivered.
 *
 * A job is reference-counted: the map of retrievable jobs holds one reference, the worker that runs
 * it another. An open poll costs one small struct in a list ordered by deadline (all polls are held
 * for the same time), never a thread. Answers are written without the lock, because
 * writing calls into the transport.
 */
#include <assert.h>
#include <stdio.h>

#include "service/core/registry.h"
#include "service/core/runs.h"
#include "service/core/samplers.h"
#include "service/core/service_state.h"
#include "service/core/sessions.h"
#include "service/core/tenants.h"
#include "service/handlers/futures_poll.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/handlers.h"
#include "service/store/unrecorded.h"
#include "service/handlers/long_requests.h"
#include "service/worker/jobs.h"
#include "service/worker/results.h"
#include "service/worker/run_queue.h"
#include "service/worker/sample_events.h"
#include "service/worker/worker_memory.h"

/* ---- life ---- */

tke_job *tke_job_new(tke_service *svc, int32_t kind, const char *request_id, const char *owner,
                     tinkc_error *err)
{
    tke_job *job = tkc_zalloc(svc->a, sizeof *job, err);
    if (!job)
        return NULL;
    tkc_ref_init(&job->refs);
    job->svc = svc;
    job->kind = kind;
    /* Bounded, because a body of a few bytes may decode to many: one request alone may not take
     * more than all that wait together. */
    tkc_arena_init(&job->arena, svc->a, (size_t)svc->set.max_queued_bytes);
    tkc_buf_init(&job->result, svc->a, TKC_BUF_NO_MAX);
    job->request_id = tke_copy(svc, request_id, err);
    job->owner = tke_copy(svc, owner, err);
    if (tkc_failed(err)) {
        tke_job_drop(job);
        return NULL;
    }
    return job;
}

void tke_job_keep(tke_job *job)
{
    tkc_ref_keep(&job->refs);
}

void tke_job_drop(tke_job *job)
{
    if (!job || !tkc_ref_drop(&job->refs))
        return;
    assert(!job->waiters); /* tke_job_complete answers the polls */
    tke_quota_settle(job);
    if (job->kind == TKE_JOB_SAMPLE && job->in.sample.sampler)
        atomic_fetch_sub(&job->in.sample.sampler->session->pins, 1);
    const tinkc_allocator *a = job->svc->a;
    tkc_arena_free(&job->arena);
    tkc_buf_free(&job->result);
    if (job->spill)
        tkc_release_str(a, job->spill);
    if (job->request_id)
        tkc_release_str(a, job->request_id);
    if (job->owner)
        tkc_release_str(a, job->owner);
    tkc_release(a, job, sizeof *job);
}

bool tke_job_publish(tke_job *job, tinkc_error *err)
{
    assert(job->request_id);
    if (!tke_job_add(job->svc, job, err))
        return false;
    tke_job_keep(job);
    return true;
}

const char *tke_category(const tinkc_error *err)
{
    switch (err->code) {
    case TINKC_E_BAD_REQUEST:
    case TINKC_E_ARGUMENT:
    case TINKC_E_TENSOR:
    case TINKC_E_PATH:
    case TINKC_E_MODEL:
    case TINKC_E_NOT_FOUND:
    case TINKC_E_FORBIDDEN:
    case TINKC_E_EXISTS:
    case TINKC_E_UNSUPPORTED:
    case TINKC_E_CANCELLED:
    case TINKC_E_TOO_LARGE:
        return "user";
    default:
        return "server";
    }
}

/* ---- answering polls ---- */

/* Results of passes and samples are stored as protobuf; converts one for a client that wants
 * JSON. */
static bool result_as_json(tke_job *job, tinkc_bytes bytes, tkc_buf *out, tinkc_error *err)
{
    assert(job->result_is_pb && !job->failed);
    tkc_arena arena;
    bool ok;
    tkc_arena_init(&arena, job->svc->a, 0);
    if (job->kind == TKE_JOB_SAMPLE) {
        tkc_sample_response r = { 0 };
        ok = tkc_sample_response_from_pb(bytes, &arena, &r, err) &&
             tkc_sample_response_to_json(&r, out, err);
    } else {
        tkc_forward_backward_output r = { 0 };
        ok = tkc_output_from_pb(bytes, &arena, &r, err) && tkc_output_to_json(&r, out, err);
    }
    tkc_arena_free(&arena);
    return ok;
}

static void send_bytes(tke_job *job, tinkc_reply *reply, bool proto, tinkc_bytes bytes)
{
    tinkc_error err = { 0 };
    tkc_buf json;
    tkc_buf_init(&json, job->svc->a, TKC_BUF_NO_MAX);
    reply->status(reply, 200);
    bool as_json = job->result_is_pb && !proto;
    if (as_json && !result_as_json(job, bytes, &json, &err)) {
        tkc_buf_clear(&json);
        err = (tinkc_error){ 0 };
        tkc_answer_write(&(tkc_answer){ .kind = TKC_ANSWER_FAILED,
                                        .error = "the result has numbers that JSON cannot hold",
                                        .category = { "server", 0 } },
                         &json, &err);
    }
    if (as_json)
        bytes = (tinkc_bytes){ (const unsigned char *)json.data, json.len };
    reply->header(reply, "Content-Type",
                  job->result_is_pb && proto ? TKC_TYPE_PROTOBUF : TKC_TYPE_JSON);
    reply->header(reply, TKE_FUTURE_HEADER, job->request_id);
    if (bytes.len)
        (void)reply->write(reply, (const char *)bytes.data, bytes.len);
    reply->end(reply);
    tkc_buf_free(&json);
}

static void send_answer(tke_job *job, tinkc_reply *reply, const tkc_answer *answer, int32_t status,
                        bool is_result)
{
    tinkc_error err = { 0 };
    tkc_buf body;
    tkc_buf_init(&body, job->svc->a, TKC_BUF_NO_MAX);
    if (!tkc_answer_write(answer, &body, &err)) {
        tke_send_failure(reply, job->svc->a, &err);
    } else {
        reply->status(reply, status);
        reply->header(reply, "Content-Type", TKC_TYPE_JSON);
        if (is_result)
            reply->header(reply, TKE_FUTURE_HEADER, job->request_id);
        (void)reply->write(reply, body.data, body.len);
        reply->end(reply);
    }
    tkc_buf_free(&body);
}

static void send_fetched(tke_result_read *r, tinkc_bytes bytes, const tinkc_error *err)
{
    if (tkc_failed(err)) { /* answered like an expired result: the client samples again */
        tinkc_error why = *err;
        tke_hide_paths(&why);
        tke_send_error(r->reply, r->job->svc->a, 410, "gone", "The result of '%.150s' is gone: %s",
                       r->job->request_id, why.message);
        return;
    }
    /* Over HTTP the connection reports it, once the whole answer was sent: counted here, a result
     * that got lost on the way would expire early. */
    if (!r->remote)
        tke_service_delivered(r->job->svc, r->job->request_id); /* before the client has it */
    send_bytes(r->job, r->reply, r->proto, bytes);
}

static void send_result(tke_job *job, tinkc_reply *reply, bool proto, bool remote)
{
    tinkc_error err = { 0 };
    tke_result_read *r = tkc_zalloc(job->svc->a, sizeof *r, &err);
    if (!r) {
        tke_send_failure(reply, job->svc->a, &err);
        return;
    }
    r->job = job;
    r->reply = reply;
    r->proto = proto;
    r->remote = remote;
    r->send = send_fetched;
    tke_job_keep(job);
    tke_result_fetch(r);
}

/* Locks: none held. The job is done. */
static void send_done(tke_job *job, tinkc_reply *reply, bool proto, bool metadata, bool remote)
{
    tke_service *svc = job->svc;
    if (job->failed) {
        if (!remote)
            tke_service_delivered(svc, job->request_id);
        send_answer(job, reply,
                    &(tkc_answer){ .kind = TKC_ANSWER_FAILED,
                                   .error = job->error.message,
                                   .category = { tke_category(&job->error), 0 } },
                    200, true);
    } else if (metadata && job->result_bytes > svc->set.metadata_only_threshold) {
        send_answer(job, reply,
                    &(tkc_answer){ .kind = TKC_ANSWER_METADATA,
                                   .request_id = job->request_id,
                                   .response_payload_size = job->result_bytes },
                    200, false);
    } else {
        send_result(job, reply, proto, remote);
    }
}

/* Answers a poll that timed out without a result. Locks: none held. */
static void send_pending(tke_job *job, tinkc_reply *reply, bool paused, const char *reason)
{
    send_answer(job, reply,
                &(tkc_answer){ .kind = TKC_ANSWER_TRY_AGAIN,
                               .request_id = job->request_id,
                               .queue_state = { paused ? "paused_capacity" : "active", 0 },
                               .queue_state_reason = reason },
                (int32_t)job->svc->set.pending_status, false);
}

void tke_service_delivered(tke_service *svc, const char *request_id)
{
    pthread_mutex_lock(&svc->lock);
    tke_job *job = tke_find_job(svc, request_id);
    if (job && job->state == TKE_DONE && !job->delivered) {
        job->delivered = true;
        job->delivered_ms = tkc_now_ms(svc->clock);
    }
    pthread_mutex_unlock(&svc->lock);
}

/* ---- open polls ---- */

bool tke_polls_open(tke_service *svc, tinkc_error *err)
{
    svc->polls = tkc_zalloc(svc->a, sizeof *svc->polls, err);
    return svc->polls != NULL;
}

void tke_polls_free(tke_service *svc)
{
    tkc_release(svc->a, svc->polls, sizeof *svc->polls);
}

size_t tke_polls_count(const tke_service *svc)
{
    size_t n = 0;
    for (const tke_waiter *w = svc->polls->first; w; w = w->next)
        n++;
    return n;
}

/* ---- completing ---- */

/* Locks: needs svc->lock. */
static void unlink_waiter(tke_service *svc, tke_waiter *w)
{
    assert((w->prev ? w->prev->next : svc->polls->first) == w);
    assert((w->next ? w->next->prev : svc->polls->last) == w);
    *(w->prev ? &w->prev->next : &svc->polls->first) = w->next;
    *(w->next ? &w->next->prev : &svc->polls->last) = w->prev;
}

/* Removes a poll from its job's list. Locks: needs svc->lock. */
static void detach_waiter(tke_waiter *w)
{
    for (tke_waiter **at = &w->job->waiters; *at; at = &(*at)->next_of_job)
        if (*at == w) {
            *at = w->next_of_job;
            break;
        }
}

/* After the poll has been answered. Locks: none held. */
static void free_waiter(tke_service *svc, tke_waiter *w)
{
    if (w->poll) {
        tkc_release_str(svc->a, w->poll->sampler);
        tkc_release(svc->a, w->poll, sizeof *w->poll);
        pthread_mutex_lock(&svc->lock);
        svc->polls->n_session--;
        pthread_mutex_unlock(&svc->lock);
    }
    tkc_release(svc->a, w, sizeof *w);
}

/* Prepends to `waiters` the polls that are held on other samples of the session and also want this
 * job. Locks: needs svc->lock. */
static tke_waiter *take_many(tke_service *svc, const tke_job *job, tke_waiter *waiters)
{
    for (tke_waiter *w = svc->polls->n_session ? svc->polls->first : NULL, *next; w; w = next) {
        next = w->next;
        if (!w->poll || !tke_session_poll_wants(w->poll, job))
            continue;
        detach_waiter(w);
        unlink_waiter(svc, w);
        w->next_of_job = waiters;
        waiters = w;
    }
    return waiters;
}

void tke_job_complete(tke_job *job)
{
    tke_service *svc = job->svc;
    pthread_mutex_lock(&svc->lock);
    assert(job->state != TKE_DONE); /* a future completes only once */
    job->state = TKE_DONE;
    tke_quota_settle(job); /* it may stay for long, with its result */
    job->done_ms = tkc_now_ms(svc->clock);
    tke_held_sub(svc, TKE_HELD_QUEUED, job->queued_bytes);
    tke_result_count(svc, job);
    if (job->run && job->seq > 0) {
        tke_seen *seen = tke_run_seen(job->run, job->seq);
        if (seen && seen->state == TKE_SEEN_PENDING)
            seen->state = TKE_SEEN_DONE;
    }
    /* Taken out of both lists under the lock: a poll that is cancelled now is not found there, and
     * so not answered and freed twice. */
    tke_waiter *waiters = job->waiters;
    job->waiters = NULL;
    for (tke_waiter *w = waiters; w; w = w->next_of_job)
        unlink_waiter(svc, w);
    if (job->kind == TKE_JOB_SAMPLE) {
        job->done_number = ++svc->polls->n_samples_done;
        waiters = take_many(svc, job, waiters);
    }
    pthread_cond_broadcast(&svc->idle);
    pthread_mutex_unlock(&svc->lock);
    /* Now, not with the job: a result may be kept for a day, the request is not needed for that. */
    tkc_arena_free(&job->arena);
    for (tke_waiter *next; waiters; waiters = next) {
        next = waiters->next_of_job;
        if (waiters->poll)
            tke_session_poll_answer(svc, waiters->poll, waiters->reply);
        else
            send_done(job, waiters->reply, waiters->proto, waiters->metadata, waiters->remote);
        free_waiter(svc, waiters);
    }
    tke_job_drop(job);
}

static bool needs_row(const tke_job *job)
{
    return job->run && job->seq > 0 && job->kind != TKE_JOB_UNLOAD &&
           tke_store_durable(job->svc->store);
}

uint32_t tke_epoch_of(const char *request_id)
{
    tinkc_str rest = tkc_str(request_id), number;
    int64_t epoch = 0;
    if (tkc_str_cut(&rest, '-', &number))
        (void)tkc_parse_i64(number, &epoch);
    return (uint32_t)epoch;
}

static void row_committed(void *user, const tinkc_error *err)
{
    tke_job *job = user;
    if (tkc_failed(err)) { /* training continues, but a crash may lose this request */
        tkc_log_line(&job->svc->log, TINKC_LOG_WARN, "%s: not recorded: %s", job->request_id,
                     err->message);
        /* Its number must survive even so: after a restart the next one would wait for it in
         * vain. */
        if (needs_row(job))
            (void)tke_unrecorded_add(job->svc->store,
                                     &(tke_unrecorded){ .run = tke_unrecorded_run(job->run->id),
                                                        .hash = job->hash,
                                                        .seq = job->seq,
                                                        .kind = job->kind,
                                                        .epoch = tke_epoch_of(job->request_id),
                                                        .failed = job->failed && !job->touched });
    }
    tke_job_complete(job);
}

/* Results of the last KEPT_RESULTS requests of a run survive a restart; no client has more in
 * flight. Results of passes survive only with a journal: there a restart looks like a pause to the
 * client, and the state that is loaded afterwards may be older than the pass. */
enum { KEPT_RESULTS = 1000 };

static bool keeps_tensors(const tke_job *job)
{
    return !job->failed && job->result_is_pb &&
           job->svc->set.durability == TINKC_DURABILITY_JOURNAL;
}

static int64_t row_state(const tke_job *job)
{
    if (job->failed)
        return job->touched ? TKE_ROW_FAILED_STEP : TKE_ROW_FAILED;
    return keeps_tensors(job) ? TKE_ROW_TENSORS : TKE_ROW_DONE;
}

/* The part of the answer that is stored; `text` holds it if it has to be encoded first. */
static tinkc_bytes row_result(const tke_job *job, tkc_buf *text, tinkc_error *err)
{
    const tkc_buf *from = &job->result;
    if (job->failed) {
        tkc_answer_write(&(tkc_answer){ .kind = TKC_ANSWER_FAILED,
                                        .error = job->error.message,
                                        .category = { tke_category(&job->error), 0 } },
                         text, err);
        from = text;
    } else if (job->result_is_pb && (!keeps_tensors(job) || tke_result_is_large(job))) {
        return (tinkc_bytes){ 0 }; /* not stored, or stored in a file */
    }
    return (tinkc_bytes){ (const unsigned char *)from->data, from->len };
}

void tke_job_add_row(tke_txn *txn, tke_job *job)
{
    tke_service *svc = job->svc;
    tinkc_error err = { 0 };
    tkc_buf text;
    if (!needs_row(job))
        return;
    pthread_mutex_lock(&svc->lock);
    assert(job->state != TKE_DONE && job->seq >= 1); /* the row is written before the answer */
    int64_t asked_us = job->run->last_request_us;
    job->state = TKE_COMMITTING;
    pthread_mutex_unlock(&svc->lock);
    tkc_buf_init(&text, svc->a, TKC_BUF_NO_MAX);
    /* OR REPLACE: a request that is repeated from the journal has a row already, and so may one
     * whose body was refused before. */
    tke_txn_exec(txn,
                 "INSERT OR REPLACE INTO requests(run_id, seq_id, kind, hash, request_id, state, "
                 "result) VALUES(?, ?, ?, ?, ?, ?, ?)",
                 "tiibtib", job->run->id, job->seq, (int64_t)job->kind,
                 (tinkc_bytes){ (const unsigned char *)&job->hash, sizeof job->hash },
                 job->request_id, row_state(job), row_result(job, &text, &err));
    tke_txn_exec(txn, "UPDATE runs SET last_request_us = ? WHERE id = ?", "it", asked_us,
                 job->run->id);
    if (job->seq > KEPT_RESULTS)
        tke_txn_exec(txn, "UPDATE requests SET result = NULL WHERE run_id = ? AND seq_id = ?", "ti",
                     job->run->id, job->seq - KEPT_RESULTS);
    tkc_buf_free(&text);
}

static void finish(tke_job *job)
{
    tinkc_error err = { 0 };
    bool large = tke_result_is_large(job);
    if (!needs_row(job) && !large) {
        tke_job_complete(job);
        return;
    }
    tke_txn *txn = tke_txn_new(job->svc->store, &err);
    /* The file comes before the row: a restart that finds the row looks for the file. */
    if (large)
        tke_txn_call(txn, tke_result_spill, job);
    tke_job_add_row(txn, job);
    tke_txn_commit(txn, row_committed, job);
}

void tke_job_succeed(tke_job *job, tinkc_str json)
{
    if (json.len && !tkc_buf_add(&job->result, json.data, json.len, &job->error))
        job->failed = true;
    finish(job);
}

void tke_job_fail(tke_job *job, const tinkc_error *why)
{
    job->failed = true;
    tkc_buf_clear(&job->result);
    job->error = (tinkc_error){ 0 };
    tkc_error_copy(&job->error, why);
    tke_hide_paths(&job->error);
    if (!tkc_failed(&job->error))
        tkc_fail(&job->error, TINKC_E_STATE, "the request failed for an unknown reason");
    finish(job);
}

/* ---- retrieve_future ---- */

/* Splits "EPOCH-NAME:LAST". */
static bool split_id(const char *id, int64_t *epoch, tinkc_str *name, tinkc_str *last)
{
    tinkc_str rest = tkc_str(id), number;
    if (!tkc_str_cut(&rest, '-', &number) || !rest.data || !tkc_parse_i64(number, epoch))
        return false;
    size_t colon = rest.len;
    while (colon > 0 && rest.data[colon - 1] != ':')
        colon--;
    *name = tkc_strn(rest.data, colon ? colon - 1 : 0);
    *last = tkc_strn(rest.data + colon, rest.len - colon);
    return true;
}

/* For an id without a job: 404 if it was never issued, 410 if its result is gone. */
static int32_t status_of_unknown(tke_call *call, const char *id, tke_txn **txn)
{
    tke_service *svc = call->svc;
    tinkc_str name, last;
    int64_t epoch, seq = -1;
    /* An id with a future epoch was not made here; answered like one that never existed. */
    if (!split_id(id, &epoch, &name, &last) || epoch < 1 || epoch > svc->epoch)
        return 404;
    tke_run *run = tke_run_named(svc, name);
    bool numbered = tkc_parse_i64(last, &seq);
    if (epoch < svc->epoch) {
        /* Accepted before a crash and never run: the poll reports that the result is lost, and the
         * client continues with the next number. */
        if (run && numbered && seq > 0 && tkc_cstr_eq(run->owner, call->owner))
            *txn = tke_run_refused(svc, run, seq);
        return 410;
    }
    if (run && numbered) {
        const tke_seen *seen = tke_run_seen(run, seq);
        bool made = seen && seen->state != TKE_SEEN_NOT && seen->state != TKE_SEEN_REFUSED;
        return seq == 0 || made ? 410 : 404;
    }
    return run || tke_sampler_named(svc, name) ? 410 : 404;
}

tke_waiter *tke_poll_hold(tke_call *call, tke_job *job, bool proto, bool metadata,
                          tke_session_poll *session)
{
    tke_service *svc = call->svc;
    tke_waiter *w = tkc_zalloc(svc->a, sizeof *w, &call->err);
    if (!w)
        return NULL;
    assert(job->state != TKE_DONE); /* a poll on a finished job would never be woken */
    w->job = job;
    w->reply = call->reply;
    w->deadline_ms = tkc_now_ms(svc->clock) + svc->set.long_poll_ms;
    w->proto = proto;
    w->metadata = metadata;
    w->poll = session;
    svc->polls->n_session += session != NULL;
    w->remote = call->flags & TKE_CALL_REMOTE;
    w->next_of_job = job->waiters;
    job->waiters = w;
    w->prev = svc->polls->last;
    assert(!w->prev || w->prev->deadline_ms <= w->deadline_ms); /* all are held for the same time */
    *(w->prev ? &w->prev->next : &svc->polls->first) = w;
    svc->polls->last = w;
    if (svc->polls->first == w)
        pthread_cond_signal(&svc->timer);
    return w;
}

void tke_retrieve_future(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_retrieve_future_request in;
    if (!tke_call_decode(call, &tkc_retrieve_future_request_type, &in))
        return;
    const char *accept = tke_call_header(call, "Accept");
    bool proto = accept && strstr(accept, TKC_TYPE_PROTOBUF);
    int32_t status = 200;
    tke_txn *txn = NULL;
    pthread_mutex_lock(&svc->lock);
    tke_job *job = tke_find_job(svc, in.request_id);
    if (!job)
        status = status_of_unknown(call, in.request_id, &txn);
    else if (!tkc_cstr_eq(job->owner, call->owner))
        status = 403;
    else if (job->state == TKE_DONE)
        tke_job_keep(job);
    else
        status = tke_poll_hold(call, job, proto, in.allow_metadata_only, NULL) ? 0 : 503;
    pthread_mutex_unlock(&svc->lock);
    if (status == 200) {
        send_done(job, call->reply, proto, in.allow_metadata_only, call->flags & TKE_CALL_REMOTE);
        tke_job_drop(job);
    } else if (status == 404) {
        tke_refuse(call, 404, "unknown_request", "No request with the id '%.200s' was ever made",
                   in.request_id);
    } else if (status == 410) {
        tke_refuse_after(
            call, txn, 410, "gone",
            "The result of '%.200s' is no longer here: it expired or was lost in a restart",
            in.request_id);
    } else if (status == 403) {
        tke_refuse(call, 403, "forbidden", "You do not have access to this request");
    } else if (status == 503) {
        tke_refuse(call, 503, "memory", "out of memory");
    }
}

/* ---- time ---- */

/* The paused job that this one waits behind, or the job itself. Locks: needs svc->lock. */
static const tke_job *holds_up(const tke_job *job)
{
    const tke_run *run = job->run;
    if (!run || job->state != TKE_QUEUED)
        return job;
    if (run->create && run->create->paused)
        return run->create;
    return run->queue && run->queue->paused ? run->queue : job;
}

/* Does a job wait only for an earlier seq_id? Which is then in `reason`. Locks: needs svc->lock. */
static bool hole_before(const tke_job *job, char *reason, size_t size)
{
    const tke_run *run = job->run;
    bool hole = run && job->state == TKE_QUEUED && !run->create && run->queue &&
                run->queue->seq > run->next_seq;
    if (hole)
        (void)snprintf(reason, size,
                       "request %lld of this model (its seq_id) has not arrived; if its sender "
                       "failed, later ones fail after %lld s, or continue without it after "
                       "POST /api/v1/skip_request",
                       (long long)run->next_seq,
                       (long long)(job->svc->set.seq_gap_timeout_ms / 1000));
    return hole;
}

int64_t tke_poll_expire(tke_service *svc, int64_t now_ms)
{
    for (;;) {
        pthread_mutex_lock(&svc->lock);
        tke_waiter *w = svc->polls->first;
        if (!w || w->deadline_ms > now_ms) {
            int64_t next = w ? w->deadline_ms : INT64_MAX;
            pthread_mutex_unlock(&svc->lock);
            return next;
        }
        tke_job *job = w->job;
        unlink_waiter(svc, w);
        detach_waiter(w);
        char missing[240];
        const tke_job *cause = holds_up(job);
        bool hole = !cause->reason && hole_before(job, missing, sizeof missing);
        bool paused =
            cause->paused || hole; /* the SDK shows a reason only if the state is paused */
        const char *reason = hole ? missing : cause->reason;
        /* It may be answered and dropped by others as soon as the lock is released. */
        tke_job_keep(job);
        pthread_mutex_unlock(&svc->lock);
        if (w->poll)
            tke_session_poll_answer(svc, w->poll, w->reply);
        else
            send_pending(job, w->reply, paused, reason);
        free_waiter(svc, w);
        tke_job_drop(job);
    }
}

void tke_polls_close(tke_service *svc)
{
    pthread_mutex_lock(&svc->lock);
    tke_waiter *all = svc->polls->first;
    for (tke_waiter *w = all; w; w = w->next)
        w->job->waiters = NULL;
    svc->polls->first = svc->polls->last = NULL;
    pthread_mutex_unlock(&svc->lock);
    for (tke_waiter *next; all; all = next) {
        next = all->next;
        /* 503, which clients repeat: after a restart the poll finds the result, or learns that it
         * is lost. */
        tke_send_error(all->reply, svc->a, 503, "stopping", "The server is stopping");
        free_waiter(svc, all);
    }
}

/* Unlinks the poll that answers into `reply`; NULL if there is none. Locks: needs svc->lock. */
static tke_waiter *take_waiter_of(tke_service *svc, tinkc_reply *reply)
{
    for (tke_waiter *w = svc->polls->first; w; w = w->next)
        if (w->reply == reply) {
            unlink_waiter(svc, w);
            detach_waiter(w);
            return w;
        }
    return NULL;
}

void tke_service_cancel(tke_service *svc, tinkc_reply *reply)
{
    pthread_mutex_lock(&svc->lock);
    tke_waiter *w = take_waiter_of(svc, reply);
    pthread_mutex_unlock(&svc->lock);
    if (!w) {                                 /* all other requests end soon by themselves */
        if (!tke_deferred_cancel(svc, reply)) /* first: it may be about to become a stream */
            tke_stream_cancel(svc, reply);
        return;
    }
    free_waiter(svc, w);
    reply->fail(reply, TINKC_E_CONNECTION, "the poll was cancelled");
}

void tke_service_resume(tke_service *svc, tinkc_reply *reply)
{
    tke_stream_resume(svc, reply);
}

void tke_cancel_future(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_retrieve_future_request in;
    int32_t status = 200;
    if (!tke_call_decode(call, &tkc_retrieve_future_request_type, &in))
        return;
    pthread_mutex_lock(&svc->lock);
    tke_job *job = tke_find_job(svc, in.request_id);
    /* The same answer for a request of others: it must not tell which ids exist. */
    if (!job || !tkc_cstr_eq(job->owner, call->owner))
        status = 404;
    else if (job->kind != TKE_JOB_SAMPLE)
        status = 400;
    else
        job->in.sample.cancelled = true;
    pthread_cond_signal(&svc->work);
    pthread_mutex_unlock(&svc->lock);
    if (status == 404)
        tke_refuse(call, 404, "unknown_request", "No such request");
    else if (status == 400)
        tke_refuse(call, 400, "bad_request", "Only samples can be cancelled");
    else
        tke_send_json(call->reply, 200, tkc_str("{\"type\":\"cancel_future\"}"));
}
