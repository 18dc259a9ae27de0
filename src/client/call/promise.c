/* promise.c - the polling state machine (docs/failures.md, retry layer "poll").
 *
 *     [ session_poll.c says when ->] poll -> answer -> classify -> done
 *               ^                     ^                   | try again: now, after a pause, or when
 *               +---------------------+-------------------+ bytes are free
 *
 * A sample may wait for the poll of its whole sampling session first (`together`). From there on
 * all is as ever: the result's body comes by this poll either way.
 *
 * May touch: the client's I/O side. Must not: decode results, know who waits for them.
 */
#include "client/call/promise.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "client/core/telemetry.h"
#include "base/str.h"
#include "wire/answer.h"

enum { PAUSE_LOG_MS = 60 * 1000 };

static void poll_once(tkc_promise *p);

static void finish_promise(tkc_promise *p)
{
    assert(p->inner.running); /* it reports once */
    p->inner.running = false;
    tkc_loop_disarm(p->client->loop, &p->inner.timer);
    p->done(p);
}

static void name_request(tkc_promise *p)
{
    const char *id = p->inner.request_id ? p->inner.request_id : "";
    size_t len = strnlen(id, sizeof p->err.request_id - 1);
    memcpy(p->err.request_id, id, len); /* an error that names none yet: zeros follow */
}

static void fail_promise(tkc_promise *p, const tinkc_error *err)
{
    p->err = *err;
    /* It was accepted: whatever ends the polling, the work may be done. */
    p->err.flags |= TINKC_IN_RETRIEVAL | TINKC_MAY_HAVE_RUN;
    name_request(p);
    finish_promise(p);
}

static void timer_fired(tkc_timer *timer)
{
    poll_once(TKC_OWNER(timer, tkc_promise, inner.timer));
}

static void poll_after(tkc_promise *p, int64_t ms)
{
    assert(ms >= 0 && p->inner.running);
    tkc_loop_arm(p->client->loop, &p->inner.timer, ms);
}

static void poll_soon(tkc_promise *p)
{
    poll_after(p, tkc_poll_soon_ms(&p->inner.pace, p->client));
}

/* Not ready yet: waits for the session's poll again, if that is how it waits. */
static void wait_more(tkc_promise *p)
{
    if (!tkc_session_wait_more(&p->inner.wait))
        poll_soon(p);
}

/* The service has given all it has to say. */
static void fetched(tkc_promise *p)
{
    tkc_session_wait_end(&p->inner.wait, true);
    if (p->together)
        tkc_session_poll_retrieved(p->together, p->inner.request_id);
    finish_promise(p);
}

/* The last poll failed: there is no end to this, so it must be visible. */
static void poll_in_trouble(tkc_promise *p, int64_t ms)
{
    tkc_op_status(p->f, "the result cannot be fetched: %.40s, next try in %.1f s", p->err.message,
                  (double)ms / 1000.0);
    tkc_emit_about(p->client, p->f, TKC_EP_RETRIEVE_FUTURE,
                   &(tinkc_event){ .kind = TINKC_EVENT_RETRY,
                                   .http_status = p->err.http_status,
                                   .attempt = p->inner.iteration,
                                   .wait_ms = ms,
                                   .left_ms = TINKC_FOREVER,
                                   .request_id = p->inner.request_id,
                                   .text = p->err.message });
    poll_after(p, ms);
}

/* ---- queue state ---- */

static int32_t public_state(int32_t wire_state)
{
    switch (wire_state) {
    case TKC_QUEUE_ACTIVE:
        return TINKC_QUEUE_ACTIVE;
    case TKC_QUEUE_RATE_LIMIT:
        return TINKC_QUEUE_PAUSED_RATE;
    case TKC_QUEUE_CAPACITY:
        return TINKC_QUEUE_PAUSED_CAPACITY;
    default:
        return TINKC_QUEUE_UNKNOWN;
    }
}

static const char *pause_reason(const tkc_promise *p, int32_t state, const char *said)
{
    if (said && said[0])
        return said;
    if (state == TINKC_QUEUE_PAUSED_RATE)
        return p->sampling ? "concurrent sampler weights limit hit"
                           : "concurrent training clients rate limit hit";
    if (state == TINKC_QUEUE_PAUSED_CAPACITY)
        return "Tinker backend is running short on capacity, please wait";
    return "unknown";
}

static void note_queue_state(tkc_promise *p, const tkc_answer *answer)
{
    tinkc_client *client = p->client;
    int32_t state = public_state(answer->queue_state.value);
    const char *said = answer->queue_state_reason ? answer->queue_state_reason : "";
    /* Says nothing. The Python SDK tells its observers nothing either. */
    if (state == TINKC_QUEUE_UNKNOWN && !said[0])
        return;
    tkc_op_queue_state(p->f, state);
    bool changed = state != p->inner.queue_state ||
                   strncmp(said, p->inner.reason, sizeof p->inner.reason - 1) != 0;
    p->inner.queue_state = state;
    size_t len = strnlen(said, sizeof p->inner.reason - 1);
    memcpy(p->inner.reason, said, len);
    p->inner.reason[len] = '\0';
    const char *reason = pause_reason(p, state, said);
    tkc_op_status(p->f,
                  state == TINKC_QUEUE_ACTIVE ? "the service works on it"
                                              : "paused by the service: %.80s",
                  reason);
    /* Only changes are events; the Python SDK calls its observers at every such answer. */
    if (changed) {
        tkc_emit_about(client, p->f, TKC_EP_RETRIEVE_FUTURE,
                       &(tinkc_event){ .kind = TINKC_EVENT_QUEUE,
                                       .queue_state = state,
                                       .request_id = p->inner.request_id,
                                       .text = reason });
    }
    if (state == TINKC_QUEUE_ACTIVE || !p->pause_gate)
        return;
    uint64_t held_back;
    if (tkc_log_gate_pass(p->pause_gate, tkc_now_ms(client->clock), PAUSE_LOG_MS, &held_back))
        tkc_client_log(client, TINKC_LOG_WARN,
                       /* The wording is the Python SDK's, down to the full stop that the first
                        * one lacks. */
                       p->sampling ? "%s. Reason: %s" : "%s is paused. Reason: %s.",
                       p->pause_prefix, reason);
}

/* ---- answers ---- */

static tinkc_str body_of(const tkc_call *call)
{
    return tkc_strn((const char *)call->body.data, call->body.len);
}

/* A body that is JSON; false if it is not. */
static bool read_json(tkc_promise *p, tinkc_str body, tkc_answer *answer, tinkc_error *err)
{
    /* A result may be polled for days: the answers must not add up. */
    tkc_arena_reset(&p->inner.arena);
    return tkc_answer_read(body, &p->inner.arena, answer, err);
}

static void timed_out_at_service(tkc_promise *p, const tkc_call *call)
{
    tkc_answer answer = { 0 };
    tinkc_error ignored = { 0 };
    p->inner.pace.failures = 0;
    if (read_json(p, body_of(call), &answer, &ignored)) {
        /* Only now: neither a 5xx nor "try again" shows that the bare 400s are over, as in the
         * Python SDK. */
        p->inner.pace.bad_requests = 0;
        note_queue_state(p, &answer);
    }
    wait_more(p);
}

static void expired(tkc_promise *p, const tkc_call *call)
{
    /* The owner decides what follows: a sample is submitted again, a request of a trainer never,
     * because it may have been executed. */
    tinkc_error err = { 0 };
    tkc_fail(&err, TINKC_E_PROMISE_EXPIRED, "the result is gone: %.300s", call->err.message);
    err.http_status = 410;
    fail_promise(p, &err);
}

/* What on_failure makes of an outcome, in the words that the service's telemetry knows. */
static const char *failure_kind(int32_t status)
{
    if (status == 0 || status == 429)
        return "retry_with_backoff";
    if (status == 410)
        return "retryable_exception";
    if (status == 400)
        return "retry_if_budget";
    return status == 408 || status >= 500 ? "retry" : "fatal";
}

/* The same fields as the Python SDK's events, but for headers and bodies: those may hold secrets. */
static void report_poll(tkc_promise *p, const tkc_call *call)
{
    tinkc_client *client = p->client;
    if (!client->telemetry)
        return;
    tkc_buf text;
    tkc_jsonw w;
    tinkc_error bad = { 0 };
    int32_t status = call->status;
    const char *kind = failure_kind(status);
    bool fatal = strcmp(kind, "fatal") == 0;
    int64_t elapsed_ms = tkc_now_ms(client->clock) - p->inner.begun_ms;
    tkc_buf_init(&text, client->a, 1 << 16);
    tkc_jsonw_open(&w, &text, &bad);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "request_id");
    tkc_jsonw_cstr(&w, p->inner.request_id);
    tkc_jsonw_key(&w, "request_type");
    tkc_jsonw_cstr(&w, p->request_type);
    tkc_jsonw_key(&w, "status_code");
    tkc_jsonw_i64(&w, status);
    tkc_jsonw_key(&w, "detail");
    tkc_jsonw_cstr(&w, call->err.message);
    tkc_jsonw_key(&w, "kind");
    tkc_jsonw_cstr(&w, kind);
    tkc_jsonw_key(&w, "should_retry");
    tkc_jsonw_bool(&w, !fatal);
    tkc_jsonw_key(&w, "is_user_error");
    tkc_jsonw_bool(&w, status >= 400 && status < 500 && status != 408);
    tkc_jsonw_key(&w, "exception");
    tkc_jsonw_cstr(&w, call->err.message);
    tkc_jsonw_key(&w, "exception_type");
    tkc_jsonw_cstr(&w, tinkc_code_name(call->err.code));
    tkc_jsonw_key(&w, "iteration");
    tkc_jsonw_i64(&w, p->inner.iteration - 1);
    tkc_jsonw_key(&w, "elapsed_time");
    tkc_jsonw_double(&w, (double)elapsed_ms / 1000.0);
    tkc_jsonw_key(&w, "bad_request_retries");
    tkc_jsonw_i64(&w, p->inner.pace.bad_requests);
    tkc_jsonw_key(&w, "connection_error_retries");
    tkc_jsonw_i64(&w, p->inner.pace.failures);
    tkc_jsonw_end(&w);
    if (!tkc_failed(&bad))
        tkc_telemetry_note(client,
                           call->status ? "APIFuture.result_async.api_status_error"
                                        : "APIFuture.result_async.connection_error",
                           tkc_buf_view(&text),
                           fatal || status == 400 ? TINKC_LOG_ERROR : TINKC_LOG_WARN);
    tkc_buf_free(&text);
}

/* No result: what to do about it. */
static void on_failure(tkc_promise *p, tkc_call *call)
{
    p->err = call->err;
    if (call->status != 402)
        report_poll(p, call);
    /* Unless it is our side that could not keep the answer: then it says nothing about the
     * result. */
    if (call->status == 410 && !tkc_poll_is_lost(call)) {
        expired(p, call);
        return;
    }
    if (call->err.code == TINKC_E_REQUEST_TIMEOUT) {
        timed_out_at_service(p, call);
        return;
    }
    int64_t wait = tkc_poll_retry_ms(&p->inner.pace, p->client, call, p->f);
    if (wait == TKC_POLL_NO_MORE)
        fail_promise(p, &call->err);
    else
        poll_in_trouble(p, wait);
}

static void failed_by_service(tkc_promise *p, const tkc_answer *answer)
{
    tinkc_error err = { 0 };
    /* Whatever the category, it is not repeated: the service has executed it and says that it
     * failed. */
    tkc_fail(&err, TINKC_E_REQUEST_FAILED, "%.359s", answer->error ? answer->error : "failed");
    if (answer->category.value == TKC_CATEGORY_USER) {
        err.category = TINKC_BY_CALLER;
        err.flags = TINKC_USER_ERROR;
    } else if (answer->category.value == TKC_CATEGORY_SERVER) {
        err.category = TINKC_BY_SERVER;
    }
    err.http_status = 200;
    p->err = err;
    name_request(p);
    /* An answer, not a loss in retrieval: without the flags of fail_promise. */
    fetched(p);
}

static void bytes_granted(tkc_claim *claim)
{
    poll_once(TKC_OWNER(claim, tkc_promise, inner.claim));
}

/* The result is large: room for it first. */
static void on_metadata(tkc_promise *p, int64_t size)
{
    /* Only once: a service that announces the same result again would never give it. */
    if (p->inner.no_metadata) {
        tinkc_error err = { 0 };
        tkc_fail(&err, TINKC_E_BAD_RESPONSE, "the service withholds a result that was asked for");
        fail_promise(p, &err);
        return;
    }
    p->inner.no_metadata = true;
    p->inner.claim.granted = bytes_granted;
    p->inner.claim.f = p->f;
    tkc_op_status(p->f, "waits for room: the result has %lld bytes", (long long)size);
    /* Held until tkc_promise_end: so long the body lies in memory. */
    if (tkc_claim_take(&p->inner.claim, &p->client->limits->inflight_bytes, p->client->loop, size))
        poll_once(p);
}

static void on_json(tkc_promise *p, tkc_call *call)
{
    tkc_answer answer = { 0 };
    tinkc_error err = { 0 };
    if (!read_json(p, body_of(call), &answer, &err)) {
        fail_promise(p, &err);
        return;
    }
    switch (answer.kind) {
    case TKC_ANSWER_TRY_AGAIN:
        p->inner.pace.failures = 0;
        note_queue_state(p, &answer);
        wait_more(p);
        return;
    case TKC_ANSWER_METADATA:
        p->inner.pace.failures = 0;
        on_metadata(p, answer.response_payload_size);
        return;
    case TKC_ANSWER_FAILED:
        p->error_body = call->body;
        failed_by_service(p, &answer);
        return;
    default:
        break;
    }
    p->body = call->body;
    fetched(p);
}

static bool contains(const char *text, const char *part)
{
    return text && strstr(text, part) != NULL;
}

static void poll_answered(tkc_call *call)
{
    tkc_promise *p = call->owner;
    assert(p->inner.running && p->inner.call == call && !p->inner.timer.armed);
    if (call->err.code) {
        p->error_body = call->body;
        on_failure(p, call);
        return;
    }
    p->err = (tinkc_error){ 0 }; /* what earlier polls met is past */
    /* By what came, not by what was asked for: servers of other versions answer in JSON. */
    if (contains(tkc_call_header(call, "content-type"), "application/x-protobuf")) {
        p->is_protobuf = true;
        p->body = call->body;
        tkc_op_stage(p->f, TINKC_STAGE_FETCHING);
        fetched(p);
        return;
    }
    on_json(p, call);
}

/* ---- asking ---- */

static tkc_call *new_poll(tkc_promise *p, tinkc_error *err)
{
    char iteration[24], roundtrip[TKC_NUMBER_MAX];
    (void)snprintf(iteration, sizeof iteration, "%d", (int)p->inner.iteration);
    tkc_format_double((double)p->roundtrip_ms / 1000.0, roundtrip);
    const char *headers[] = { "X-Tinker-Request-Iteration",
                              iteration,
                              "X-Tinker-Request-Type",
                              p->request_type,
                              "X-Stainless-Raw-Response",
                              "raw",
                              "X-Tinker-Create-Promise-Roundtrip-Time",
                              roundtrip,
                              NULL };
    /* Sent once, as in the Python SDK: it is about the submit, not about this poll. */
    if (p->inner.iteration > 0)
        headers[6] = NULL;
    tkc_retrieve_future_request request = { .request_id = p->inner.request_id,
                                            .allow_metadata_only = !p->inner.no_metadata };
    tkc_call_spec spec = tkc_call_to(TKC_EP_RETRIEVE_FUTURE);
    spec.headers = headers;
    spec.accept = p->wants_protobuf ? TKC_TYPE_PROTOBUF : NULL;
    return tkc_call_with(p->client, &spec, &tkc_retrieve_future_request_type, &request, err);
}

static void poll_once(tkc_promise *p)
{
    tinkc_error err = { 0 };
    assert(p->inner.running);
    tkc_call_free(p->inner.call);
    /* They point into the call that has just ended. */
    p->body = p->error_body = (tinkc_bytes){ 0 };
    p->inner.call = NULL;
    if (p->inner.request_id)
        p->inner.call = new_poll(p, &err);
    else
        tkc_fail_memory(&err);
    p->inner.iteration++;
    tkc_poll_begins(&p->inner.pace, p->client);
    if (!p->inner.call) {
        fail_promise(p, &err);
        return;
    }
    p->inner.call->f = p->f;
    p->inner.call->owner = p;
    p->inner.call->done = poll_answered;
    tkc_call_start(p->inner.call);
}

/* The session's poll has named it, or it is time to look for itself. */
static void ask_now(tkc_session_wait *wait)
{
    tkc_promise *p = TKC_OWNER(wait, tkc_promise, inner.wait);
    if (wait->size > 0 && !p->inner.no_metadata)
        on_metadata(p, wait->size);
    else
        poll_once(p);
}

void tkc_promise_start(tkc_promise *p, tinkc_str request_id)
{
    tinkc_error err = { 0 };
    assert(!p->inner.running && p->client && p->f && p->done); /* filled in, and not begun yet */
    p->inner.timer.fire = timer_fired;
    p->inner.begun_ms = tkc_now_ms(p->client->clock);
    p->inner.running = true;
    tkc_arena_init(&p->inner.arena, p->client->a, 1 << 26);
    p->inner.request_id = tkc_copy_str(p->client->a, request_id, &err);
    tkc_op_stage(p->f, TINKC_STAGE_ACCEPTED);
    p->inner.wait.ask = ask_now;
    p->inner.wait.f = p->f;
    if (!p->together || !p->inner.request_id ||
        !tkc_session_wait_start(p->together, &p->inner.wait, p->inner.request_id))
        /* Not at once: `done` must not come from inside this function. */
        poll_after(p, 0);
}

void tkc_promise_take_body(tkc_promise *p, tkc_buf *out)
{
    tkc_call_take_body(p->inner.call, out);
}

void tkc_promise_end(tkc_promise *p)
{
    if (!p->client)
        return;
    if (p->inner.timer.armed)
        tkc_loop_disarm(p->client->loop, &p->inner.timer);
    tkc_session_wait_end(&p->inner.wait, false);
    tkc_claim_end(&p->inner.claim);
    tkc_call_free(p->inner.call);
    p->inner.call = NULL;
    p->body = p->error_body = (tinkc_bytes){ 0 };
    tkc_arena_free(&p->inner.arena);
    tkc_release_str(p->client->a, p->inner.request_id);
    p->inner.request_id = NULL;
    p->inner.running = false;
}
