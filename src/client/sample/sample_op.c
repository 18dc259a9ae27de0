/* sample_op.c - one sample: admitted step by step, sent, polled for, and sampled again if need be.
 *
 *     START -> PLACE -> SLOT -> COUNT -> THROTTLE -> BYTES -> BACKOFF -> SEND -> POLL -> result
 *                               ^                             ^          |       |
 *                               |                             +-- 429 ---+       |
 *                               +------------- RESAMPLE <----------------+-------+
 *
 * START     the client's session is there
 * PLACE     a copy of a sampler has its block of numbers (sampler_join.c)
 * SLOT      one of the sampler's 2 000 places, if samples are polled for one by one; held until the
 *           sample ends
 * COUNT     one of the 400 submits that all clients of an account may have under way
 * THROTTLE  one of 10, only while a back-off is recent
 * BYTES     room for the prompt among those under way, 20 times as much while a back-off is recent
 * BACKOFF   the account's shared back-off is over
 * SEND      encoding, submitting; COUNT, THROTTLE and BYTES are given back when it is answered
 * POLL      the service has accepted it
 * RESAMPLE  the pause before the next attempt, which takes a new number (retry layer "resample")
 *
 * Each state up to BACKOFF waits for one thing (`acquire`) and moves on when it has it (`advance_sample`);
 * nothing else changes the state but `submit_done`, `attempt_failed` and the end. What a waiting
 * sample needs is small (the prompt and the future); the rest (`inside`) is allocated after SLOT.
 *
 * May touch: the sampler's I/O side, the shared limits under their lock.
 */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/train/train_batch.h"
#include "client/sample/cancel.h"
#include "client/call/promise.h"
#include "client/sample/sample_op.h"
#include "client/sample/sampler.h"
#include "base/str.h"

/* The Python SDK's numbers, but for SPREAD_MS: samples that wait must not come back all at once. */
enum {
    OFFLOAD_BYTES = 256 * 1024,
    SMALL_PROMPT = 131072,
    BACKOFF_SMALL_MS = 1000,
    BACKOFF_LARGE_MS = 5000,
    RECENT_MS = 10 * 1000,
    SPREAD_MS = 250,
    THROTTLED_FACTOR = 20
};

enum {
    STATE_START = 0,
    STATE_PLACE,
    STATE_SLOT,
    STATE_COUNT,
    STATE_THROTTLE,
    STATE_BYTES,
    STATE_BACKOFF,
    STATE_SEND, /* admitted: from here on nothing is acquired */
    STATE_POLL,
    STATE_RESAMPLE
};

/* What exists only once the sample has its slot. */
typedef struct inside {
    struct sample_op *op;
    tkc_claim count, throttled, bytes;
    tkc_timer backoff, retry, stuck;
    tkc_call *call;
    tkc_promise promise;
    tkc_offload offload;
    tkc_buf body, answer;
    const char *const *sequence_ids; /* of the attempt that was accepted last; in the arena */
    tinkc_error err;
    int64_t attempts;
    int64_t seq;
    bool counted, offloaded;
} inside;

typedef struct sample_op {
    tinkc_future f;
    tinkc_sampler *sampler; /* a reference */
    tkc_sample_request request;
    int64_t estimate;
    tkc_ready_wait ready;
    tkc_join_wait join;
    tkc_claim slot;
    int32_t state; /* STATE_* */
    inside *in;    /* NULL before STATE_COUNT */
    inside *late;  /* ended, but not yet to be released */
    bool only_logprobs;
} sample_op;

static void advance_sample(sample_op *op);
static void begin_attempt(sample_op *op);

/* ---- leaving ---- */

static void leave_dispatch(inside *in)
{
    tkc_claim_end(&in->bytes);
    tkc_claim_end(&in->throttled);
    tkc_claim_end(&in->count);
}

static void free_inside(sample_op *op)
{
    inside *in = op->in;
    tkc_loop *loop = op->f.client->loop;
    if (!in)
        return;
    assert(!in->offloaded && !op->late); /* no helper is working on it */
    op->in = NULL;
    tkc_loop_disarm(loop, &in->backoff);
    tkc_loop_disarm(loop, &in->retry);
    tkc_loop_disarm(loop, &in->stuck);
    tkc_call_free(in->call);
    tkc_promise_end(&in->promise);
    leave_dispatch(in);
    if (in->counted)
        op->sampler->io.inside--;
    assert(op->sampler->io.inside >= 0);
    tkc_buf_free(&in->body);
    tkc_buf_free(&in->answer);
    /* A grant that is on its way still points here: then the memory stays until the future goes. */
    if (tkc_claim_pending(&in->count) || tkc_claim_pending(&in->throttled) ||
        tkc_claim_pending(&in->bytes) || tkc_claim_pending(&in->promise.inner.claim))
        op->late = in;
    else
        tkc_release(op->f.client->a, in, sizeof *in);
}

static void finish_sample(sample_op *op, const tinkc_error *err)
{
    free_inside(op);
    tkc_claim_end(&op->slot);
    tkc_op_finish(&op->f, err);
}

/* Now, in any state. What a helper is working on is released when the helper returns. */
static void end_early(sample_op *op, const tinkc_error *err)
{
    inside *in = op->in;
    if (in && in->offloaded) {
        tkc_op_complete(&op->f, err);
        tkc_loop_disarm(op->f.client->loop, &in->stuck);
    } else {
        finish_sample(op, err);
    }
}

/* ---- layer resample ---- */

/* Of what goes wrong after acceptance only a lost promise is sampled again. An answer that is too large
 * or that memory has no room for is not repeated, whatever its status. */
static bool worth_repeating(const tinkc_error *err)
{
    if (err->code == TINKC_E_PROMISE_EXPIRED)
        return true;
    if (err->flags & TINKC_IN_RETRIEVAL || err->code == TINKC_E_BAD_RESPONSE ||
        err->code == TINKC_E_MEMORY)
        return false;
    if (err->code == TINKC_E_CONNECTION || err->code == TINKC_E_NET_TIMEOUT)
        return true;
    int32_t s = err->http_status;
    return s == 408 || s == 409 || (s >= 500 && s < 600); /* 429: slow_down */
}

static int64_t repeat_delay(sample_op *op)
{
    const tinkc_retry_options *o = &op->sampler->retry;
    double d = (double)o->delay_base_ms * exp2((double)(op->in->attempts - 1));
    d = d < (double)o->delay_max_ms ? d : (double)o->delay_max_ms;
    d += d * o->jitter * (2 * tkc_random_unit(op->f.client->clock) - 1);
    d = d > (double)o->delay_max_ms ? (double)o->delay_max_ms : d;
    return (int64_t)d;
}

static bool bypasses(const sample_op *op)
{
    return op->f.client->io.flags.sample_no_retries && !op->only_logprobs;
}

/* It holds no connection of its own while it waits for the sampler's poll: the service sets no
 * limit then. */
static bool has_no_limit(const sample_op *op)
{
    return bypasses(op) || tkc_session_poll_is_used(&op->sampler->io.poll);
}

/* The slot is kept during the pause, as in the Python SDK: samples that are repeated must not
 * let others in, or a service in trouble would get more of them. */
static void attempt_failed(sample_op *op, const tinkc_error *failure)
{
    inside *in = op->in;
    tinkc_client *client = op->f.client;
    const tinkc_retry_options *o = &op->sampler->retry;
    tinkc_error err = *failure;
    tkc_promise_end(&in->promise);
    leave_dispatch(in);
    bool attempts_exhausted = o->max_attempts && in->attempts >= o->max_attempts;
    if (bypasses(op) || o->no_retries || client->no_retries || attempts_exhausted ||
        !worth_repeating(&err)) {
        finish_sample(op, &err);
        return;
    }
    int64_t wait = repeat_delay(op);
    op->state = STATE_RESAMPLE;
    tkc_op_stage(&op->f, TINKC_STAGE_QUEUED);
    tkc_op_status(&op->f, "%.70s, retrying in %.1f s", err.message, (double)wait / 1000.0);
    tkc_emit_about(client, &op->f, TKC_EP_SAMPLE,
                   &(tinkc_event){ .kind = TINKC_EVENT_RETRY,
                                   .http_status = err.http_status,
                                   .attempt = (int32_t)in->attempts,
                                   .wait_ms = wait,
                                   .left_ms = TINKC_FOREVER,
                                   .text = err.message });
    tkc_loop_arm(client->loop, &in->retry, wait);
}

static void retry_fired(tkc_timer *timer)
{
    inside *in = TKC_OWNER(timer, inside, retry);
    sample_op *op = in->op;
    begin_attempt(op);
    advance_sample(op);
}

/* No sample of this sampler has finished for too long. */
static void stuck_fired(tkc_timer *timer)
{
    inside *in = TKC_OWNER(timer, inside, stuck);
    sample_op *op = in->op;
    tinkc_sampler *s = op->sampler;
    int64_t left =
        /* One that finishes postpones the limit of all: it is about a service that stands still,
         * not about a slow sample. */
        s->io.last_progress_ms + s->retry.progress_timeout_ms - tkc_now_ms(op->f.client->clock);
    if (left > 0) {
        tkc_loop_arm(op->f.client->loop, timer, left);
        return;
    }
    tinkc_error err = { 0 };
    tkc_fail(&err, TINKC_E_NO_PROGRESS, "no sample has finished within %lld s",
             (long long)(s->retry.progress_timeout_ms / 1000));
    err.flags |= TINKC_MAY_HAVE_RUN;
    end_early(op, &err);
}

/* ---- results ---- */

static void decode_samples(tkc_offload *o)
{
    inside *in = TKC_OWNER(o, inside, offload);
    sample_op *op = in->op;
    tinkc_samples *samples = tkc_arena_zalloc(&op->f.arena, sizeof *samples, &in->err);
    if (!samples)
        return;
    /* The result points into these bytes: they go with the future. */
    samples->bytes = in->answer;
    samples->sequence_ids = in->sequence_ids;
    tkc_buf_init(&in->answer, op->f.client->a, TKC_BUF_NO_MAX);
    op->f.result = samples;
    tinkc_bytes body = { (const unsigned char *)samples->bytes.data, samples->bytes.len };
    if (in->promise.is_protobuf)
        tkc_sample_response_from_pb(body, &op->f.arena, &samples->r, &in->err);
    else
        tkc_sample_response_from_json(tkc_strn((const char *)body.data, body.len), &op->f.arena,
                                      &samples->r, &in->err);
    if (!tkc_failed(&in->err))
        tkc_samples_check(samples, &op->request, &op->f.arena, &in->err);
    if (!tkc_failed(&in->err) && op->only_logprobs && !samples->r.prompt_logprobs.data)
        tkc_fail(&in->err, TINKC_E_BAD_RESPONSE, "the answer holds no prompt log-probabilities");
}

static void decoded(tkc_offload *o)
{
    inside *in = TKC_OWNER(o, inside, offload);
    sample_op *op = in->op;
    tinkc_error err = in->err;
    in->offloaded = false;
    if (tkc_failed(&err))
        err.flags |= TINKC_IN_RETRIEVAL | TINKC_MAY_HAVE_RUN;
    else
        op->sampler->io.last_progress_ms = tkc_now_ms(op->f.client->clock);
    finish_sample(op, &err);
}

static void promise_done(tkc_promise *p)
{
    sample_op *op = p->owner;
    inside *in = op->in;
    assert(in && p == &in->promise && !in->call && !in->offloaded);
    if (p->err.code) {
        tinkc_error err = p->err;
        tkc_op_error_body(&op->f, p->error_body);
        attempt_failed(op, &err);
        return;
    }
    tkc_promise_take_body(p, &in->answer);
    in->offload.work = decode_samples;
    in->offload.after = decoded;
    if (in->answer.len >= OFFLOAD_BYTES) {
        in->offloaded = true;
        tkc_offload_start(op->f.client, &in->offload);
    } else {
        decode_samples(&in->offload);
        decoded(&in->offload);
    }
}

/* ---- submitting ---- */

static void accepted(sample_op *op, tkc_call *call)
{
    inside *in = op->in;
    tkc_untyped_future answer = { 0 };
    tinkc_error err = { 0 };
    leave_dispatch(in);
    tkc_buf_free(&in->body);
    if (!tkc_message_decode(&tkc_untyped_future_type,
                            tkc_strn((const char *)call->body.data, call->body.len),
                            TINKC_E_BAD_RESPONSE, &op->f.arena, &answer, &err)) {
        /* Accepted under an id that cannot be read: sampling it again would be paid twice. */
        err.flags |= TINKC_MAY_HAVE_RUN;
        tkc_op_error_body(&op->f, call->body);
        finish_sample(op, &err);
        return;
    }
    op->state = STATE_POLL;
    const char *const *names = answer.sample_sequence_ids;
    in->sequence_ids = names && names[0] ? names : NULL;
    tkc_op_request_id(&op->f, tkc_str(answer.request_id));
    in->promise = (tkc_promise){ .client = op->f.client,
                                 .f = &op->f,
                                 .request_type = tkc_endpoint_get(TKC_EP_SAMPLE)->request_type,
                                 .pause_prefix = op->sampler->io.pause_prefix,
                                 .pause_gate = &op->sampler->io.pause_gate,
                                 .together = tkc_sampler_poll(op->sampler),
                                 .wants_protobuf = true,
                                 .sampling = true,
                                 .done = promise_done,
                                 .owner = op };
    tkc_promise_start(&in->promise, tkc_str(answer.request_id));
}

/* The service is full: all samples of this key wait, not only this one. */
static void slow_down(sample_op *op, const tinkc_error *err)
{
    tinkc_client *client = op->f.client;
    tkc_shared_limits *limits = client->limits;
    int64_t now = tkc_now_ms(client->clock);
    int64_t wait = op->estimate <= SMALL_PROMPT ? BACKOFF_SMALL_MS : BACKOFF_LARGE_MS;
    if (err->retry_after_ms > wait)
        wait = err->retry_after_ms;
    pthread_mutex_lock(&limits->lock);
    /* Never earlier: a longer back-off that is under way holds. */
    if (limits->backoff_until_ms < now + wait)
        limits->backoff_until_ms = now + wait;
    pthread_mutex_unlock(&limits->lock);
    tkc_emit_about(client, &op->f, TKC_EP_SAMPLE,
                   &(tinkc_event){ .kind = TINKC_EVENT_BACKOFF,
                                   .http_status = err->http_status,
                                   .wait_ms = wait,
                                   .left_ms = TINKC_FOREVER,
                                   .text = err->message });
    op->state = STATE_BACKOFF;
    advance_sample(op);
}

static void submit_done(tkc_call *call)
{
    sample_op *op = call->owner;
    inside *in = op->in;
    assert(in && in->call == call && !in->promise.inner.running);
    in->call = NULL;
    bool full = call->err.code == TINKC_E_RATE_LIMITED || call->paused;
    if (!call->err.code) {
        accepted(op, call);
    } else if (full && !op->f.client->no_retries) {
        tinkc_error err = call->err;
        slow_down(op, &err);
    } else {
        tinkc_error err = call->err;
        tkc_op_error_body(&op->f, call->body);
        attempt_failed(op, &err);
    }
    tkc_call_free(call);
}

static void send_body(sample_op *op)
{
    static const char *const headers[] = { "X-Tinker-Sampling-Backpressure", "1", NULL };
    inside *in = op->in;
    tkc_buf copy;
    tinkc_error err = in->err;
    assert(!in->call && in->count.held); /* one submit at a time, and only with a place for it */
    tkc_call_spec spec = tkc_call_to(TKC_EP_SAMPLE);
    spec.backpressure = true;
    spec.headers = headers;
    spec.body = &copy;
    /* The bytes stay here, because after a 429 they are sent again under the same number. */
    tkc_buf_init(&copy, op->f.client->a, TKC_BUF_NO_MAX);
    if (!tkc_failed(&err) && tkc_buf_add(&copy, in->body.data, in->body.len, &err))
        in->call = tkc_call_new(op->f.client, &spec, &err);
    tkc_buf_free(&copy);
    if (!in->call) {
        finish_sample(op, &err);
        return;
    }
    tkc_op_stage(&op->f, TINKC_STAGE_SENDING);
    in->call->f = &op->f;
    in->call->owner = op;
    in->call->done = submit_done;
    tkc_call_start(in->call);
}

static void encode(tkc_offload *o)
{
    inside *in = TKC_OWNER(o, inside, offload);
    sample_op *op = in->op;
    op->request.seq_id = (tkc_opt_i64)TKC_SOME(in->seq);
    tkc_message_encode(&tkc_sample_request_type, &op->request, &in->body, &in->err);
}

static void encoded(tkc_offload *o)
{
    inside *in = TKC_OWNER(o, inside, offload);
    sample_op *op = in->op;
    in->offloaded = false;
    if (tkc_op_is_done(&op->f)) /* stopped meanwhile */
        finish_sample(op, NULL);
    else
        send_body(op);
}

/* Encodes, if that has not been done for this number, and sends. */
static void submit_sample(sample_op *op)
{
    inside *in = op->in;
    if (in->body.len) {
        send_body(op);
        return;
    }
    in->offload.work = encode;
    in->offload.after = encoded;
    if (op->estimate >= OFFLOAD_BYTES) {
        in->offloaded = true;
        tkc_offload_start(op->f.client, &in->offload);
    } else {
        encode(&in->offload);
        encoded(&in->offload);
    }
}

/* ---- admission ---- */

/* INT64_MIN = there never was a back-off. */
static int64_t backoff_until(tinkc_client *client)
{
    pthread_mutex_lock(&client->limits->lock);
    int64_t until = client->limits->backoff_until_ms;
    pthread_mutex_unlock(&client->limits->lock);
    return until;
}

static bool backed_off_recently(tinkc_client *client)
{
    int64_t until = backoff_until(client);
    /* Also true while it lasts: the difference is then negative. */
    return until != INT64_MIN && tkc_now_ms(client->clock) - until < RECENT_MS;
}

static bool backoff_is_over(sample_op *op)
{
    tinkc_client *client = op->f.client;
    int64_t until = backoff_until(client), now = tkc_now_ms(client->clock);
    if (until == INT64_MIN || until <= now)
        return true;
    int64_t left = until - now;
    tkc_op_stage(&op->f, TINKC_STAGE_QUEUED);
    tkc_op_status(&op->f, "rate limited, next try in %.1f s", (double)left / 1000.0);
    tkc_loop_arm(client->loop, &op->in->backoff,
                 left + (int64_t)(tkc_random(client->clock) % SPREAD_MS));
    return false;
}

/* It may have come while another back-off began: the state stays until that is over. */
static void backoff_fired(tkc_timer *timer)
{
    advance_sample(TKC_OWNER(timer, inside, backoff)->op);
}

/* What the state waited for has come. */
static void acquired(sample_op *op)
{
    assert(op->state < STATE_BACKOFF);
    op->state++;
    advance_sample(op);
}

static void claim_granted(tkc_claim *claim)
{
    acquired((sample_op *)claim->f);
}

static void joined(tkc_join_wait *wait, const tinkc_error *err)
{
    sample_op *op = TKC_OWNER(wait, sample_op, join);
    if (err)
        finish_sample(op, err);
    else
        acquired(op);
}

static void client_ready(tkc_ready_wait *wait, const tinkc_error *err)
{
    sample_op *op = TKC_OWNER(wait, sample_op, ready);
    if (err)
        finish_sample(op, err);
    else
        acquired(op);
}

static bool claim(sample_op *op, tkc_claim *which, tkc_budget *budget, int64_t amount)
{
    which->granted = claim_granted;
    which->f = &op->f;
    return tkc_claim_take(which, budget, op->f.client->loop, amount);
}

/* Asks for what the state waits for. True: it is there now; otherwise a callback moves the sample
 * on, or, with *err set, never will. */
static bool acquire(sample_op *op, tinkc_error *err)
{
    tkc_shared_limits *limits = op->f.client->limits;
    switch (op->state) {
    case STATE_START:
        op->ready = (tkc_ready_wait){ .ready = client_ready, .need = TKC_NEED_SESSION };
        return tkc_client_need(op->f.client, &op->ready);
    case STATE_PLACE:
        op->join.ready = joined;
        if (tkc_sampler_join(op->sampler, &op->join, err))
            return true;
        tkc_op_status(&op->f, "joining the sampling session");
        return false;
    case STATE_SLOT:
        return has_no_limit(op) || claim(op, &op->slot, &op->sampler->io.slots, 1);
    case STATE_COUNT:
        return claim(op, &op->in->count, &limits->sample_count, 1);
    case STATE_THROTTLE:
        return !backed_off_recently(op->f.client) ||
               claim(op, &op->in->throttled, &limits->throttled_count, 1);
    case STATE_BYTES:
        /* Counted at this moment: after a back-off has begun few large prompts fit, so they come
         * back slowly. */
        return claim(op, &op->in->bytes, &limits->sample_bytes,
                     backed_off_recently(op->f.client) ? op->estimate * THROTTLED_FACTOR
                                                       : op->estimate);
    default:
        assert(op->state == STATE_BACKOFF);
        return backoff_is_over(op);
    }
}

/* Each attempt has a number of its own, taken before it queues. */
static void begin_attempt(sample_op *op)
{
    inside *in = op->in;
    assert(!in->call && !in->promise.inner.running && !in->offloaded && !in->retry.armed);
    in->attempts++;
    /* To a number that it has seen the service would give the old answer. */
    in->seq = atomic_fetch_add(&op->sampler->next_request, 1);
    tkc_buf_clear(&in->body);
    tkc_op_stage(&op->f, TINKC_STAGE_QUEUED);
    op->state = STATE_COUNT;
}

/* It has its slot: makes what the rest needs. */
static bool enter_slot(sample_op *op, tinkc_error *err)
{
    tinkc_client *client = op->f.client;
    tinkc_sampler *s = op->sampler;
    assert(!op->in && (has_no_limit(op) || op->slot.held));
    inside *in = tkc_zalloc(client->a, sizeof *in, err);
    if (!in)
        return false;
    op->in = in;
    in->op = op;
    in->backoff.fire = backoff_fired;
    in->retry.fire = retry_fired;
    in->stuck.fire = stuck_fired;
    tkc_buf_init(&in->body, client->a, TKC_BUF_NO_MAX);
    tkc_buf_init(&in->answer, client->a, TKC_BUF_NO_MAX);
    if (!bypasses(op)) {
        /* A sampler without samples makes no progress either: its clock begins with the first
         * one. */
        if (s->io.inside++ == 0)
            s->io.last_progress_ms = tkc_now_ms(client->clock);
        in->counted = true;
        if (!s->retry.no_stuck_detection && client->io.flags.sample_enable_stuck_detection)
            tkc_loop_arm(client->loop, &in->stuck,
                         s->io.last_progress_ms + s->retry.progress_timeout_ms -
                             tkc_now_ms(client->clock));
    }
    begin_attempt(op);
    return true;
}

/* Moves on as far as it can now: until something is not there yet, or to the submit. May end the
 * operation. */
static void advance_sample(sample_op *op)
{
    tinkc_error err = { 0 };
    while (op->state < STATE_SEND) {
        bool enters = op->state == STATE_COUNT && !op->in;
        if (enters ? !enter_slot(op, &err) : !acquire(op, &err)) {
            /* A callback that came from inside acquire has moved the sample on, perhaps up to its
             * end: nothing of it may be looked at here. */
            if (tkc_failed(&err))
                finish_sample(op, &err);
            return;
        }
        if (!enters)
            op->state++;
    }
    submit_sample(op);
}

static void sample_start(tinkc_future *f)
{
    advance_sample((sample_op *)f);
}

static void sample_stop(tinkc_future *f, const tinkc_error *why)
{
    sample_op *op = (sample_op *)f;
    inside *in = op->in;
    tinkc_error err = *why;
    tkc_client_need_end(f->client, &op->ready);
    tkc_sampler_join_end(op->sampler, &op->join);
    if (in && (tkc_call_is_out(in->call) || op->state == STATE_POLL))
        err.flags |= TINKC_MAY_HAVE_RUN;
    /* Accepted: without a word the service would work on. */
    if (in && in->promise.inner.running)
        tkc_cancel_at_service(f->client, in->promise.inner.request_id);
    end_early(op, &err);
}

static void sample_destroy(tinkc_future *f)
{
    sample_op *op = (sample_op *)f;
    tinkc_samples *samples = f->result;
    if (samples)
        tkc_buf_free(&samples->bytes);
    tkc_release(f->client->a, op->late, sizeof *op->late);
    tkc_sampler_drop(op->sampler);
}

/* ---- public calls ---- */

static tinkc_future *sample_chunks(tinkc_sampler *sampler, const tinkc_chunk *chunks, size_t n,
                                   size_t n_samples, const tinkc_sampling *o, bool only_logprobs,
                                   tinkc_error *err)
{
    static const tkc_op_class samples = { "sample",     "samples",   sizeof(sample_op),
                                          sample_start, sample_stop, sample_destroy };
    static const tkc_op_class logprobs = { "logprobs",   "logprobs",  sizeof(sample_op),
                                           sample_start, sample_stop, sample_destroy };
    if (!tkc_sampler_check(sampler, err) || !tkc_sampling_check(o, err))
        return NULL;
    if (n_samples == 0 || n_samples > INT32_MAX) {
        tkc_fail(err, TINKC_E_ARGUMENT, "n_samples: must be from 1 to 2^31 - 1");
        return NULL;
    }
    sample_op *op =
        (sample_op *)tkc_op_new(sampler->client, only_logprobs ? &logprobs : &samples, err);
    if (!op)
        return NULL;
    op->sampler = sampler;
    tkc_sampler_keep(sampler);
    op->only_logprobs = only_logprobs;
    op->estimate = (int64_t)tkc_model_input_estimate(chunks, n);
    if (!tkc_sample_fill(&op->request, sampler, chunks, n, n_samples, o, &op->f.arena, err)) {
        tkc_future_drop(&op->f);
        return NULL;
    }
    return tkc_op_submit(&op->f);
}

static tinkc_future *sample_tokens(tinkc_sampler *sampler, const int32_t *prompt, size_t len,
                                   size_t n_samples, const tinkc_sampling *o, bool only_logprobs,
                                   tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_prompt_check(prompt, len, err))
        return NULL;
    tinkc_chunk chunk = { .kind = TINKC_CHUNK_TOKENS,
                          .expected_tokens = -1,
                          .tokens = { prompt, len },
                          .format = "",
                          .location = "" };
    return sample_chunks(sampler, &chunk, 1, n_samples, o, only_logprobs, err);
}

static tinkc_future *sample_an_input(tinkc_sampler *sampler, const tinkc_input *prompt,
                                     size_t n_samples, const tinkc_sampling *o, bool only_logprobs,
                                     tinkc_error *err)
{
    tinkc_error local;
    size_t n = 0;
    if (!tkc_enter(&err, &local))
        return NULL;
    const tinkc_chunk *chunks = prompt ? tkc_input_chunks(prompt, &n) : NULL;
    if (!n) {
        tkc_fail(err, TINKC_E_ARGUMENT, "prompt: must not be empty");
        return NULL;
    }
    return sample_chunks(sampler, chunks, n, n_samples, o, only_logprobs, err);
}

tinkc_future *tinkc_sample(tinkc_sampler *sampler, const int32_t *prompt, size_t len,
                           size_t n_samples, const tinkc_sampling *o, tinkc_error *err)
{
    return sample_tokens(sampler, prompt, len, n_samples, o, false, err);
}

tinkc_future *tinkc_sample_input(tinkc_sampler *sampler, const tinkc_input *prompt,
                                 size_t n_samples, const tinkc_sampling *o, tinkc_error *err)
{
    return sample_an_input(sampler, prompt, n_samples, o, false, err);
}

static tinkc_sampling scoring(void)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 1;
    o.prompt_logprobs = true;
    return o;
}

tinkc_future *tinkc_logprobs(tinkc_sampler *sampler, const int32_t *prompt, size_t len,
                             tinkc_error *err)
{
    tinkc_sampling o = scoring();
    return sample_tokens(sampler, prompt, len, 1, &o, true, err);
}

tinkc_future *tinkc_logprobs_input(tinkc_sampler *sampler, const tinkc_input *prompt,
                                   tinkc_error *err)
{
    tinkc_sampling o = scoring();
    return sample_an_input(sampler, prompt, 1, &o, true, err);
}
