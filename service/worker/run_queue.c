/* run_queue.c - the order of a run's requests: seq_ids, repeats, gaps.
 *
 * Requests run strictly in the order of their seq_ids, no matter in which order they arrive: an
 * early one waits until every smaller number has arrived. A number that arrives twice with the same
 * contents is the same request; with other contents it is refused. Touches only memory, all of it
 * guarded by svc->lock.
 */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "service/core/registry.h"
#include "service/core/runs.h"
#include "service/core/service_state.h"
#include "service/core/sessions.h"
#include "service/handlers/handler_call.h"
#include "service/store/journal.h"
#include "service/worker/jobs.h"
#include "service/worker/run_queue.h"
#include "service/worker/worker_memory.h"

/* `seen` has an element for each number up to the highest: without this bound one request with a
 * large seq_id would take gigabytes. */
enum { MAX_AHEAD = 100000 };

tke_seen *tke_run_seen(tke_run *run, int64_t seq)
{
    return seq >= 1 && (size_t)seq <= run->n_seen ? &run->seen[seq - 1] : NULL;
}

bool tke_run_mark(tke_service *svc, tke_run *run, int64_t seq, uint8_t state, tinkc_error *err)
{
    assert(seq >= 1);
    if ((size_t)seq > run->n_seen) {
        tke_seen *grown =
            tkc_grow(svc->a, run->seen, &run->cap_seen, (size_t)seq, sizeof *grown, err);
        if (!grown)
            return false;
        run->seen = grown;
        memset(run->seen + run->n_seen, 0, ((size_t)seq - run->n_seen) * sizeof *grown);
        run->n_seen = (size_t)seq;
    }
    run->seen[seq - 1] = (tke_seen){ .state = state };
    return true;
}

bool tke_run_see(tke_service *svc, tke_run *run, int64_t seq, int32_t kind, tke_hash128 hash,
                 uint32_t epoch, uint8_t state, tinkc_error *err)
{
    if (!tke_run_mark(svc, run, seq, state, err))
        return false;
    tke_seen *seen = tke_run_seen(run, seq);
    seen->hash = hash;
    seen->epoch = epoch;
    seen->kind = (uint8_t)kind;
    return true;
}

void tke_run_insert(tke_run *run, tke_job *job)
{
    tke_job **at = &run->queue;
    while (*at && (*at)->seq <= job->seq)
        at = &(*at)->next;
    assert(job->state == TKE_QUEUED && job->run == run && !job->next && job->seq >= 0);
    assert(!*at || (*at)->seq > job->seq);
    job->next = *at;
    *at = job;
}

tke_job *tke_run_head(const tke_run *run)
{
    tke_job *job = run->queue;
    if (!job || job->held || run->create)
        return NULL;
    return job->kind == TKE_JOB_UNLOAD || job->seq == run->next_seq ? job : NULL;
}

int64_t tke_run_next_number(const tke_run *run)
{
    int64_t next = run->next_seq;
    for (const tke_job *job = run->queue; job; job = job->next) {
        if (job->kind == TKE_JOB_UNLOAD)
            continue;
        if (job->seq != next)
            return 0;
        next++;
    }
    return next;
}

void tke_run_skip_settled(tke_run *run)
{
    for (const tke_seen *seen; (seen = tke_run_seen(run, run->next_seq)); run->next_seq++) {
        bool settled = seen->state == TKE_SEEN_ABANDONED || seen->state == TKE_SEEN_DONE ||
                       seen->state == TKE_SEEN_LOST;
        if (!settled || (run->queue && run->queue->seq == run->next_seq))
            return;
    }
}

tke_job *tke_run_take(tke_run *run)
{
    tke_job *job = run->queue;
    assert(job && job->state == TKE_QUEUED && !job->held);
    assert(job->kind == TKE_JOB_UNLOAD || job->seq == run->next_seq); /* strictly in order */
    run->queue = job->next;
    job->state = TKE_RUNNING;
    if (job->kind != TKE_JOB_UNLOAD) {
        run->next_seq = job->seq + 1;
        tke_run_skip_settled(run);
    }
    assert(job->kind == TKE_JOB_UNLOAD || run->next_seq > job->seq);
    return job;
}

/* A refused body costs its sender next to nothing, but leaves a mark in memory and a row: far ahead
 * of the run it gets neither. */
enum { MAX_REFUSED_AHEAD = 1000 };

void tke_run_settle_refused(tke_run *run, int64_t arrived)
{
    tke_seen *seen;
    for (int64_t seq = run->next_seq; seq < arrived && (seen = tke_run_seen(run, seq)); seq++)
        if (seen->state == TKE_SEEN_REFUSED)
            seen->state = TKE_SEEN_ABANDONED;
    tke_run_skip_settled(run);
}

/* Has a request with a higher number been accepted? */
static bool is_passed(tke_run *run, int64_t seq)
{
    for (const tke_seen *seen; (seen = tke_run_seen(run, ++seq));)
        if (seen->state == TKE_SEEN_PENDING || seen->state == TKE_SEEN_DONE ||
            seen->state == TKE_SEEN_LOST)
            return true;
    return false;
}

tke_txn *tke_run_refused(tke_service *svc, tke_run *run, int64_t seq)
{
    tinkc_error err = { 0 };
    const tke_seen *before = tke_run_seen(run, seq);
    /* A number that has run or is queued keeps its state: a late, damaged copy of its request must
     * not take it back. */
    if (seq < run->next_seq || seq > run->next_seq + MAX_REFUSED_AHEAD ||
        (before && before->state != TKE_SEEN_NOT && before->state != TKE_SEEN_REFUSED))
        return NULL;
    uint8_t state = is_passed(run, seq) ? TKE_SEEN_ABANDONED : TKE_SEEN_REFUSED;
    if (!tke_run_mark(svc, run, seq, state, &err))
        return NULL;
    tke_run_skip_settled(run);
    pthread_cond_signal(&svc->work);
    /* The row is REFUSED even if the state is ABANDONED: recovery derives ABANDONED from the other rows, as
     * is_passed does here. */
    tke_txn *txn = tke_store_durable(svc->store) ? tke_txn_new(svc->store, &err) : NULL;
    /* OR IGNORE: a row that is there is of a request that was executed, and must not become one
     * that was refused. */
    tke_txn_exec(txn,
                 "INSERT OR IGNORE INTO requests(run_id, seq_id, kind, request_id, state) "
                 "VALUES(?, ?, 0, '', ?)",
                 "tii", run->id, seq, (int64_t)TKE_ROW_REFUSED);
    return txn;
}

/* Takes out the requests that wait behind a gap; their numbers and the missing ones are used up. */
tke_job *tke_run_give_up(tke_run *run)
{
    tke_job *failed = NULL, **end = &failed;
    int64_t hole = run->next_seq, last = hole;
    for (const tke_job *job = run->queue; job; job = job->next)
        if (job->kind != TKE_JOB_UNLOAD)
            last = job->seq;
    while (run->queue && run->queue->kind != TKE_JOB_UNLOAD) {
        tke_job *job = run->queue;
        run->queue = job->next;
        job->next = NULL;
        job->invalid = (tinkc_error){ 0 };
        tkc_fail(&job->invalid, TINKC_E_SERVER,
                 "seq_id %lld was never received; requests %lld..%lld were dropped without being "
                 "applied",
                 (long long)hole, (long long)hole + 1, (long long)last);
        *end = job;
        end = &job->next;
    }
    for (int64_t seq = hole; seq <= last; seq++) {
        tke_seen *seen = tke_run_seen(run, seq);
        if (seen && (seen->state == TKE_SEEN_NOT || seen->state == TKE_SEEN_REFUSED))
            seen->state = TKE_SEEN_ABANDONED;
    }
    assert(last >= hole);
    run->next_seq = last + 1;
    tke_run_skip_settled(run);
    return failed;
}

void tke_gaps_expire(tke_service *svc, int64_t now_ms)
{
    tke_run *run;
    tke_job *failed = NULL;
    pthread_mutex_lock(&svc->lock);
    for (size_t at = 0; !failed && (run = tke_next_run(svc, &at));) {
        bool hole = run->queue && run->queue->kind != TKE_JOB_UNLOAD && !run->create &&
                    run->queue->seq > run->next_seq;
        /* Counted from the newest arrival: a client that still sends may be about to send the
         * missing one, too. */
        bool late = now_ms - run->last_arrival_ms >= svc->set.seq_gap_timeout_ms;
        /* Without a session nobody is left who could send the missing request. */
        if (hole && (late || (run->session && run->session->expired)))
            failed = tke_run_give_up(run);
    }
    pthread_mutex_unlock(&svc->lock);
    for (tke_job *next; failed; failed = next) {
        next = failed->next;
        const tinkc_error why = failed->invalid;
        /* Without the lock, which completing a job takes. */
        tke_job_fail(failed, &why);
    }
}

/* ---- arrival ---- */

typedef struct outcome {
    int32_t status; /* 200: accepted or replayed */
    const char *code;
    char detail[160];
    char request_id[160];
    bool is_new;
    bool expired; /* a tombstoned number: fail it at once */
} outcome;

__attribute__((format(printf, 4, 5))) static void refuse(outcome *o, int32_t status,
                                                         const char *code, const char *format, ...)
{
    va_list args;
    o->status = status;
    o->code = code;
    va_start(args, format);
    (void)vsnprintf(o->detail, sizeof o->detail, format, args);
    va_end(args);
}

/* The request's seq_id; if it has none, the one after the newest. */
static int64_t number_of(const tke_run *run, tkc_opt_i64 seq)
{
    int64_t newest = run->next_seq - 1;
    if ((int64_t)run->n_seen > newest)
        newest = (int64_t)run->n_seen;
    return seq.is == TKC_GIVEN ? seq.value : newest + 1;
}

/* Locks: needs svc->lock. Is the request new or repeated, or is its number used up? */
static void recognise(tke_service *svc, tke_run *run, const tke_job *job, int64_t number,
                      outcome *o)
{
    uint32_t epoch = (uint32_t)svc->epoch;
    const tke_seen *seen = tke_run_seen(run, number);
    uint8_t state = seen ? seen->state : TKE_SEEN_NOT;
    if (state == TKE_SEEN_NOT && number < run->next_seq)
        state = TKE_SEEN_ABANDONED;
    o->status = 200;
    if (state == TKE_SEEN_PENDING || state == TKE_SEEN_DONE || state == TKE_SEEN_LOST) {
        /* A used number with other contents: the old promise would give the client the result of
         * something else, and a new execution would be the second one of that number. */
        if (seen->kind != job->kind || !tke_hash_eq(seen->hash, job->hash))
            refuse(o, 400, "seq_id_reused", "seq_id %lld was already used for a different request",
                   (long long)number);
        /* The id that was given the first time: after a restart a new epoch would make an id that
         * no result has. */
        epoch = seen->epoch;
    } else {
        o->is_new = true;
        o->expired = state == TKE_SEEN_ABANDONED;
    }
    (void)snprintf(o->request_id, sizeof o->request_id, "%u-%s:%lld", (unsigned)epoch, run->id,
                   (long long)number);
    if (o->expired && tke_find_job(svc, o->request_id))
        o->is_new = o->expired = false; /* it arrived late before, and this is a retry */
    assert(!o->is_new || o->expired || number >= run->next_seq); /* never below next_seq */
}

/* Locks: needs svc->lock. Records a new request; queues it, unless it is expired. */
static void take_in(tke_call *call, tke_run *run, tke_job *job, int64_t number, outcome *o)
{
    tke_service *svc = call->svc;
    assert(o->is_new && o->status == 200);
    /* The next request of the run is always admitted: all others wait for it, so refusing it
     * could stop the run for good. */
    if (number > run->next_seq && tke_held_bytes(svc, TKE_HELD_QUEUED) + job->arena.taken >
                                      (size_t)svc->set.max_queued_bytes) {
        refuse(o, 429, "busy", "Too much is queued already; slow down");
        return;
    }
    job->request_id = tke_copy(svc, o->request_id, &call->err);
    job->run = run;
    job->seq = number;
    bool seen = job->request_id && !o->expired &&
                tke_run_see(svc, run, number, job->kind, job->hash, (uint32_t)svc->epoch,
                            TKE_SEEN_PENDING, &call->err);
    if (!job->request_id || !(seen || o->expired) || !tke_job_publish(job, &call->err)) {
        if (seen)
            tke_run_seen(run, number)->state = TKE_SEEN_NOT;
        refuse(o, 503, "memory", "out of memory");
        return;
    }
    run->last_arrival_ms = tkc_now_ms(svc->clock);
    if (o->expired)
        return;
    job->queued_bytes = job->arena.taken;
    tke_held_add(svc, TKE_HELD_QUEUED, job->queued_bytes);
    /* Nothing runs before it is in the journal: a crash could otherwise leave an effect, in an
     * image or a save, of a request that recovery knows nothing of. */
    job->held = svc->set.durability == TINKC_DURABILITY_JOURNAL;
    tke_run_insert(run, job);
    tke_run_settle_refused(run, number);
}

/* Locks: needs svc->lock. Decides what a request is; a new one is recorded and queued. */
static void admit(tke_call *call, tke_run *run, tke_job *job, tkc_opt_i64 seq, outcome *o)
{
    int64_t number = number_of(run, seq);
    if (number <= 0) {
        refuse(o, 400, "bad_request", "seq_id must be positive, not %lld", (long long)number);
    } else if (number > run->next_seq + MAX_AHEAD || number > INT32_MAX) {
        refuse(o, 400, "bad_request", "seq_id %lld is too far ahead: %lld is the next",
               (long long)number, (long long)run->next_seq);
    } else {
        /* Before the limits: a client whose answer was lost must get its promise again, however
         * much is queued by now. */
        recognise(call->svc, run, job, number, o);
        if (o->is_new)
            take_in(call, run, job, number, o);
    }
}

static void send_accepted(tinkc_reply *reply, const tinkc_allocator *a, const char *request_id,
                          const char *model_id)
{
    tinkc_error err = { 0 };
    tkc_buf body;
    tkc_buf_init(&body, a, TKC_BUF_NO_MAX);
    if (tkc_message_encode(&tkc_untyped_future_type,
                           &(tkc_untyped_future){ .request_id = request_id, .model_id = model_id },
                           &body, &err))
        tke_send_json(reply, 200, tkc_buf_view(&body));
    else
        tke_send_failure(reply, a, &err);
    tkc_buf_free(&body);
}

/* ---- journal, then answer ---- */

typedef struct journaled {
    tke_job *job; /* holds a reference */
    tinkc_reply *reply;
    tke_journal_record record;
    tkc_buf body;
} journaled;

static void append_record(tke_store *store, void *user, tinkc_error *err)
{
    journaled *j = user;
    tke_journal_append(store, j->job->run->id, &j->record, err);
}

static void record_written(void *user, const tinkc_error *err)
{
    journaled *j = user;
    tke_job *job = j->job;
    tke_service *svc = job->svc;
    pthread_mutex_lock(&svc->lock);
    /* Acknowledged all the same, and failed at its turn: a refusal here would leave a gap in the
     * sequence. */
    if (tkc_failed(err))
        tkc_error_copy(&job->invalid, err);
    assert(job->held && job->state == TKE_QUEUED); /* it cannot run before this */
    job->held = false;
    pthread_cond_signal(&svc->work);
    pthread_mutex_unlock(&svc->lock);
    send_accepted(j->reply, svc->a, job->request_id, job->run->id);
    tkc_buf_free(&j->body);
    tkc_release(svc->a, j, sizeof *j);
    tke_job_drop(job);
}

static bool write_journal(tke_call *call, tke_job *job, tinkc_str body, bool is_pb, bool forward)
{
    tke_service *svc = call->svc;
    journaled *j = tkc_zalloc(svc->a, sizeof *j, &call->err);
    if (!j)
        return false;
    tkc_buf_init(&j->body, svc->a, TKC_BUF_NO_MAX);
    if (!tkc_buf_str(&j->body, body, &call->err)) {
        tkc_release(svc->a, j, sizeof *j);
        return false;
    }
    j->job = job;
    j->reply = call->reply;
    j->record = (tke_journal_record){ .seq = job->seq,
                                      .kind = job->kind,
                                      .epoch = (uint32_t)svc->epoch,
                                      .is_pb = is_pb,
                                      .forward = forward,
                                      .hash = job->hash,
                                      .body = tkc_buf_view(&j->body) };
    /* The worker may finish the job before the callback has sent its answer. */
    tke_job_keep(job);
    tke_txn *txn = tke_txn_new(svc->store, &call->err);
    tke_txn_call(txn, append_record, j);
    tke_txn_commit(txn, record_written, j);
    return true;
}

void tke_run_accept(tke_call *call, tke_run *run, tke_job *job, tkc_opt_i64 seq,
                    tinkc_str journal_body)
{
    tke_service *svc = call->svc;
    outcome o = { 0 };
    const char *type = tke_call_header(call, "Content-Type");
    bool is_pb = type && strstr(type, TKC_TYPE_PROTOBUF);
    bool forward = call->route.endpoint->id == TKC_EP_FORWARD;
    pthread_mutex_lock(&svc->lock);
    /* A client that trains is there, even if its heartbeats do not arrive. */
    tke_session_touch(svc, run->session);
    run->last_request_us = tkc_wall_us(svc->clock);
    run->by_python |= tke_call_is_python(call);
    if (run->session && run->session->finished)
        refuse(&o, 410, "session_finished", "The model's session was finished");
    else if (tke_run_is_unloaded(run->is))
        refuse(&o, 404, "not_found", "Model was unloaded");
    else
        admit(call, run, job, seq, &o);
    /* Read under the lock: the worker may take and finish the job as soon as it is released. */
    bool held = o.is_new && o.status == 200 && job->held;
    if (o.is_new && o.status == 200 && !held)
        pthread_cond_signal(&svc->work);
    if (held)
        tke_job_keep(job); /* the worker may drop the queue's reference meanwhile */
    pthread_mutex_unlock(&svc->lock);
    if (o.status != 200) {
        tke_refuse(call, o.status, o.code, "%s", o.detail);
        tke_job_drop(job);
        return;
    }
    if (o.expired) {
        tinkc_error why = { 0 };
        tkc_fail(&why, TINKC_E_BAD_REQUEST, "seq_id %lld expired", (long long)job->seq);
        job->failed = true;
        job->error = why;
        tke_job_complete(job);
    } else if (held) {
        bool waits = write_journal(call, job, journal_body, is_pb, forward);
        if (!waits) { /* better to run unprotected than not at all */
            pthread_mutex_lock(&svc->lock);
            job->held = false;
            pthread_cond_signal(&svc->work);
            pthread_mutex_unlock(&svc->lock);
        }
        tke_job_drop(job);
        if (waits)
            return;
    } else if (!o.is_new) {
        tke_job_drop(job);
    }
    send_accepted(call->reply, svc->a, o.request_id, run->id);
}
