/* futures_poll.c - retrieve_futures: one poll for all samples of a sampling session.
 *
 * The answer lists the requests of the session that have ended since a cursor; results are fetched
 * one by one with retrieve_future as usual. A poll that finds nothing is held like any other, on
 * one of the unfinished samples, and is answered when the first of them ends.
 *
 * The cursor counts the samples that this process has finished; a higher one comes from before a
 * restart, and the list then begins at its start. A restart forgets unfinished samples, so a client
 * that polls only here would wait for those forever. Clients therefore poll this way only if the
 * setting use_retrieve_futures is on.
 */
#include <stdio.h>

#include "service/core/registry.h"
#include "service/core/samplers.h"
#include "service/core/service_state.h"
#include "service/handlers/futures_poll.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/handlers.h"
#include "service/worker/jobs.h"

enum {
    CLONE_NUMBERS = 1000000000
}; /* a copy of a sampler numbers its requests from its id times this */

/* The client has these results: marks them as delivered. */
static void take_retrieved(tke_call *call, const char *const *ids)
{
    for (; ids && *ids; ids++) {
        pthread_mutex_lock(&call->svc->lock);
        const tke_job *job = tke_find_job(call->svc, *ids);
        /* Or a client could shorten the life of results of others. */
        bool mine = job && tkc_cstr_eq(job->owner, call->owner);
        pthread_mutex_unlock(&call->svc->lock);
        if (mine)
            tke_service_delivered(call->svc, *ids);
    }
}

/* Ids of samples are "EPOCH-SAMPLER:NUMBER". */
static bool is_of(const tke_job *job, const tke_session_poll *poll)
{
    tinkc_str rest = tkc_str(job->request_id), epoch;
    size_t n = strlen(poll->sampler);
    int64_t number;
    return job->kind == TKE_JOB_SAMPLE && tkc_str_cut(&rest, '-', &epoch) &&
           tkc_starts_with(rest, poll->sampler) && rest.data[n] == ':' &&
           tkc_parse_i64(tkc_strn(rest.data + n + 1, rest.len - n - 1), &number) &&
           number / CLONE_NUMBERS == poll->clone;
}

bool tke_session_poll_wants(const tke_session_poll *poll, const tke_job *job)
{
    return is_of(job, poll);
}

static void write_one(tkc_jsonw *w, const tke_job *job)
{
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "state");
    tkc_jsonw_cstr(w, job->failed ? "failed" : "finished");
    tkc_jsonw_key(w, "request_id");
    tkc_jsonw_cstr(w, job->request_id);
    if (!job->failed) {
        tkc_jsonw_key(w, "response_payload_uncompressed_size");
        tkc_jsonw_i64(w, job->result_bytes);
    }
    tkc_jsonw_end(w);
}

/* Writes the samples that ended since the cursor; returns how poll. *waiting: an unfinished one, or
 * NULL. Locks: needs svc->lock. */
static size_t write_ended(tke_service *svc, const tke_session_poll *poll, tkc_buf *out,
                          tke_job **waiting, tinkc_error *err)
{
    tke_job *job;
    tkc_jsonw w;
    int64_t cursor = poll->after;
    size_t n = 0;
    *waiting = NULL;
    tkc_jsonw_open(&w, out, err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "completions");
    tkc_jsonw_array(&w);
    for (size_t at = 0; (job = tke_next_job(svc, &at));) {
        if (!is_of(job, poll))
            continue;
        if (job->state != TKE_DONE) {
            *waiting = job;
        } else if (job->done_number > poll->after) {
            write_one(&w, job);
            cursor = job->done_number > cursor ? job->done_number : cursor;
            n++;
        }
    }
    tkc_jsonw_end(&w);
    tkc_jsonw_key(&w, "cursor");
    tkc_jsonw_i64(&w, cursor);
    tkc_jsonw_end(&w);
    return n;
}

void tke_session_poll_answer(tke_service *svc, const tke_session_poll *poll, tinkc_reply *reply)
{
    tinkc_error err = { 0 };
    tke_job *waiting;
    tkc_buf out;
    tkc_buf_init(&out, svc->a, TKC_BUF_NO_MAX);
    pthread_mutex_lock(&svc->lock);
    write_ended(svc, poll, &out, &waiting, &err);
    pthread_mutex_unlock(&svc->lock);
    if (tkc_failed(&err))
        tke_send_failure(reply, svc->a, &err);
    else
        tke_send_json(reply, 200, tkc_buf_view(&out));
    tkc_buf_free(&out);
}

/* Holds the poll on one of the samples. Locks: needs svc->lock. */
static bool hold(tke_call *call, const tke_session_poll *poll, tke_job *on)
{
    tke_service *svc = call->svc;
    /* Copied, because the request that it was read from is freed while the poll is held. */
    tke_session_poll *copy = tkc_zalloc(svc->a, sizeof *copy, &call->err);
    char *sampler = copy ? tke_copy(svc, poll->sampler, &call->err) : NULL;
    if (sampler)
        *copy = (tke_session_poll){ sampler, poll->clone, poll->after };
    if (sampler && tke_poll_hold(call, on, false, false, copy))
        return true;
    if (sampler)
        tkc_release_str(svc->a, sampler);
    tkc_release(svc->a, copy, sizeof *copy);
    return false;
}

void tke_handle_futures(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_retrieve_futures_request in;
    tke_job *waiting;
    tkc_buf out;
    if (!tke_call_decode(call, &tkc_retrieve_futures_request_type, &in))
        return;
    take_retrieved(call, in.retrieved_request_ids);
    tke_session_poll poll = { .sampler = (char *)(uintptr_t)in.target.sampling_session_id,
                              .clone = in.target.cloned_sampler_id,
                              .after = in.prev_cursor };
    tkc_buf_init(&out, svc->a, TKC_BUF_NO_MAX);
    pthread_mutex_lock(&svc->lock);
    if (poll.after > svc->polls->n_samples_done) /* from before a restart: the count began again */
        poll.after = 0;
    const tke_sampler *s = tke_find_sampler(svc, poll.sampler);
    bool mine = s && tkc_cstr_eq(s->owner, call->owner);
    size_t n = mine ? write_ended(svc, &poll, &out, &waiting, &call->err) : 0;
    bool held = mine && !n && waiting && hold(call, &poll, waiting);
    pthread_mutex_unlock(&svc->lock);
    if (!mine)
        tke_refuse(call, 404, "not_found", "Unknown sampler '%.100s'", poll.sampler);
    else if (!held && tkc_failed(&call->err))
        tke_send_failure(call->reply, svc->a, &call->err);
    else if (n)
        tke_send_json(call->reply, 200, tkc_buf_view(&out));
    else if (!held) /* nothing to wait for: clients poll again after a second */
        tke_refuse(call, 408, "nothing_pending", "No sample of '%.100s' is under way",
                   poll.sampler);
    tkc_buf_free(&out);
}
