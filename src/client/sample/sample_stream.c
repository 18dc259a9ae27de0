/* sample_stream.c - one answer as its tokens come: POST /api/v1/stream_sample (docs/stream.md).
 *
 * The transport's thread only keeps bytes; the reader's thread takes them apart. A stream cannot be
 * repeated, so it is sent once.
 *
 * May touch: its operation's buffer under its lock.
 */
#include <string.h>

#include "client/sample/sample_op.h"
#include "base/str.h"
#include "codec/sse.h"
#include "wire/answer.h"

enum { ROOM = 1 << 20 };

typedef struct stream_op {
    tinkc_future f;
    tinkc_sampler *sampler; /* a reference */
    tkc_call *call;
    tkc_buf body;
    tkc_task resume_task, event_task;
    pthread_mutex_t lock; /* a leaf; of what follows */
    tkc_buf pending;
    bool resume_posted, event_posted, full;
} stream_op;

struct tinkc_deltas {
    stream_op *op; /* the user's reference on its future */
    tinkc_sse_parser *parser;
    tkc_buf chunk; /* bytes being taken apart */
    tinkc_tokens tokens;
    tinkc_floats logprobs;
    tinkc_delta delta;
    tinkc_error err; /* how it ended; the same at every call */
    bool ended;      /* the last delta has been given, or err is set */
    bool finish_seen;
    int64_t n_tokens; /* of all deltas so far */
};

/* ---- the transport's side ---- */

static void run_event(tkc_task *task)
{
    stream_op *op = TKC_OWNER(task, stream_op, event_task);
    pthread_mutex_lock(&op->lock);
    op->event_posted = false;
    pthread_mutex_unlock(&op->lock);
    tkc_emit(op->f.client, &op->f, &(tinkc_event){ .kind = TINKC_EVENT_TOKENS });
    tkc_future_drop(&op->f);
}

/* Tells those who listen that there is something to read. Any thread while the operation runs: its
 * loop takes tasks until then. */
static void post_event(stream_op *op)
{
    pthread_mutex_lock(&op->lock);
    bool post = !op->event_posted;
    op->event_posted = true;
    pthread_mutex_unlock(&op->lock);
    if (!post)
        return;
    tkc_future_keep(&op->f);
    tkc_loop_post(op->f.client->loop, &op->event_task);
}

static bool on_bytes(void *user, const void *data, size_t len)
{
    stream_op *op = user;
    tinkc_error err = { 0 };
    pthread_mutex_lock(&op->lock);
    bool was_empty = op->pending.len == 0;
    bool ok = tkc_buf_add(&op->pending, data, len, &err);
    op->full = op->pending.len >= ROOM;
    pthread_mutex_unlock(&op->lock);
    /* One event until somebody reads: tokens that come meanwhile are found then. */
    if (was_empty)
        post_event(op);
    /* One condition for both: a reader waits for bytes or for the end. */
    pthread_mutex_lock(&op->f.shared.lock);
    pthread_cond_broadcast(&op->f.shared.cond);
    pthread_mutex_unlock(&op->f.shared.lock);
    return ok;
}

static size_t room(void *user)
{
    stream_op *op = user;
    pthread_mutex_lock(&op->lock);
    size_t left = op->pending.len < ROOM ? ROOM - op->pending.len : 0;
    pthread_mutex_unlock(&op->lock);
    return left;
}

static void run_resume(tkc_task *task)
{
    stream_op *op = TKC_OWNER(task, stream_op, resume_task);
    pthread_mutex_lock(&op->lock);
    op->resume_posted = false;
    pthread_mutex_unlock(&op->lock);
    if (op->call)
        tkc_call_resume(op->call);
    tkc_future_drop(&op->f);
}

/* ---- the operation ---- */

/* 404 and 405 without a code of their own mean that the service has no streams at all. */
static void explain_no_streams(const tkc_call *call, tinkc_error *err)
{
    tkc_arena arena;
    tkc_error_body body = { 0 };
    tinkc_error ignored = { 0 };
    if (call->status != 404 && call->status != 405)
        return;
    tkc_arena_init(&arena, NULL, 1 << 20);
    (void)tkc_error_body_read(tkc_strn((const char *)call->body.data, call->body.len), &arena,
                              &body, &ignored);
    if (!body.code || strcmp(body.code, "unknown_endpoint") == 0) {
        *err = (tinkc_error){ 0 };
        tkc_fail(err, TINKC_E_UNSUPPORTED, "the service has no token streams: use tinkc_sample");
        err->http_status = call->status;
    }
    tkc_arena_free(&arena);
}

/* The end is an event as well, and comes after it can be seen. */
static void end_stream(stream_op *op, const tinkc_error *err)
{
    tkc_op_complete(&op->f, err);
    tkc_emit(op->f.client, &op->f, &(tinkc_event){ .kind = TINKC_EVENT_TOKENS });
    tkc_op_release(&op->f);
}

static void stream_done(tkc_call *call)
{
    stream_op *op = call->owner;
    tinkc_error err = call->err;
    if (err.code)
        explain_no_streams(call, &err);
    op->call = NULL;
    tkc_call_free(call);
    end_stream(op, &err);
}

static void stream_start(tinkc_future *f)
{
    stream_op *op = (stream_op *)f;
    tkc_call_start(op->call);
}

static void stream_stop(tinkc_future *f, const tinkc_error *why)
{
    stream_op *op = (stream_op *)f;
    tkc_call_free(op->call);
    op->call = NULL;
    end_stream(op, why);
}

static void stream_destroy(tinkc_future *f)
{
    stream_op *op = (stream_op *)f;
    tkc_call_free(op->call); /* one that was never started */
    tkc_buf_free(&op->pending);
    tkc_buf_free(&op->body);
    pthread_mutex_destroy(&op->lock);
    tkc_sampler_drop(op->sampler);
}

static bool make_call(stream_op *op, const int32_t *prompt, size_t len, const tinkc_sampling *o,
                      tinkc_error *err)
{
    tkc_sample_request request;
    tinkc_client *client = op->f.client;
    tinkc_chunk chunk = { .kind = TINKC_CHUNK_TOKENS,
                          .expected_tokens = -1,
                          .tokens = { prompt, len },
                          .format = "",
                          .location = "" };
    if (!tkc_sample_fill(&request, op->sampler, &chunk, 1, 1, o, &op->f.arena, err) ||
        !tkc_message_encode(&tkc_sample_request_type, &request, &op->body, err))
        return false;
    tkc_call_spec spec = tkc_call_to(TKC_EP_STREAM_SAMPLE);
    spec.accept = "text/event-stream";
    spec.body = &op->body;
    spec.sink = on_bytes;
    spec.sink_room = room;
    spec.sink_user = op;
    op->call = tkc_call_new(client, &spec, err);
    if (!op->call)
        return false;
    op->call->f = &op->f;
    op->call->owner = op;
    op->call->done = stream_done;
    return true;
}

tinkc_deltas *tinkc_sample_stream(tinkc_sampler *sampler, const int32_t *prompt, size_t len,
                                  const tinkc_sampling *o, tinkc_error *err)
{
    static const tkc_op_class class = { "sample_stream", "stream",    sizeof(stream_op),
                                        stream_start,    stream_stop, stream_destroy };
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_sampler_check(sampler, err) ||
        !tkc_prompt_check(prompt, len, err) || !tkc_sampling_check(o, err))
        return NULL;
    /* An event has room for a token and its log-probability: what could not come is refused
     * here. */
    const char *extra = o->topk_sample_logprobs                         ? "topk_sample_logprobs"
                        : o->target_tokens                              ? "target_tokens"
                        : o->prompt_alt_tokens                          ? "prompt_alt_tokens"
                        : o->prompt_logprobs || o->topk_prompt_logprobs ? "prompt_logprobs"
                                                                        : NULL;
    if (extra) {
        tkc_fail(err, TINKC_E_ARGUMENT, "%s: a stream has no place for them", extra);
        return NULL;
    }
    tinkc_client *client = sampler->client;
    tinkc_deltas *d = tkc_zalloc(client->a, sizeof *d, err);
    stream_op *op = d ? (stream_op *)tkc_op_new(client, &class, err) : NULL;
    if (!op) {
        tkc_release(client->a, d, sizeof *d);
        return NULL;
    }
    op->sampler = sampler;
    tkc_sampler_keep(sampler);
    op->resume_task.run = run_resume;
    op->event_task.run = run_event;
    pthread_mutex_init(&op->lock, NULL);
    tkc_buf_init(&op->pending, client->a, TKC_BUF_NO_MAX);
    tkc_buf_init(&op->body, client->a, TKC_BUF_NO_MAX);
    d->parser = tinkc_sse_new(0, client->a, err);
    if (!d->parser || !make_call(op, prompt, len, o, err)) {
        tinkc_sse_free(d->parser);
        tkc_future_drop(&op->f);
        tkc_release(client->a, d, sizeof *d);
        return NULL;
    }
    d->op = op;
    d->tokens.a = d->logprobs.a = client->a;
    tkc_buf_init(&d->chunk, client->a, TKC_BUF_NO_MAX);
    tkc_op_submit(&op->f);
    return d;
}

bool tinkc_deltas_on_event(tinkc_deltas *d, tinkc_queue *queue, uint32_t mask, tinkc_event_fn *fn,
                           void *user, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!d)
        return tkc_fail(err, TINKC_E_ARGUMENT, "deltas: must not be NULL");
    if (!tinkc_future_on_event(&d->op->f, queue, mask, fn, user, err))
        return false;
    stream_op *op = d->op;
    pthread_mutex_lock(&op->lock);
    bool some = op->pending.len > 0;
    pthread_mutex_unlock(&op->lock);
    pthread_mutex_lock(&op->f.shared.lock);
    bool done = op->f.shared.done;
    if (some && !done)
        post_event(op);
    pthread_mutex_unlock(&op->f.shared.lock);
    if (done) /* its loop may have ended */
        tkc_emit(op->f.client, &op->f, &(tinkc_event){ .kind = TINKC_EVENT_TOKENS });
    return true;
}

void tinkc_deltas_free(tinkc_deltas *d)
{
    if (!d || tkc_client_forked(d->op->f.client))
        return;
    const tinkc_allocator *a = d->op->f.client->a;
    tinkc_client *client = d->op->f.client;
    tkc_client_keep(client); /* its allocator is needed to the end */
    tinkc_sse_free(d->parser);
    tkc_buf_free(&d->chunk);
    tinkc_tokens_free(&d->tokens);
    tinkc_floats_free(&d->logprobs);
    tinkc_future_free(&d->op->f);
    tkc_release(a, d, sizeof *d);
    tkc_client_drop(client);
}

/* ---- the reader's side ---- */

/* Takes what has come. True if there was something. */
static bool take_bytes(tinkc_deltas *d)
{
    stream_op *op = d->op;
    tkc_buf_clear(&d->chunk);
    pthread_mutex_lock(&op->lock);
    tkc_buf swap = d->chunk;
    d->chunk = op->pending;
    op->pending = swap;
    bool resume = op->full && !op->resume_posted;
    op->full = false;
    op->resume_posted |= resume;
    pthread_mutex_unlock(&op->lock);
    if (resume) {
        /* Only while it runs: a loop that has ended takes no tasks. */
        pthread_mutex_lock(&op->f.shared.lock);
        if (!op->f.shared.done) {
            tkc_future_keep(&op->f);
            tkc_loop_post(op->f.client->loop, &op->resume_task);
        }
        pthread_mutex_unlock(&op->f.shared.lock);
    }
    return d->chunk.len > 0;
}

static void take_event(tinkc_deltas *d, const tinkc_sse *sse, tkc_arena *arena, tinkc_error *err)
{
    tkc_stream_event e = { 0 };
    tinkc_str data = tkc_strn(sse->data, sse->data_len);
    if (data.len == 0) /* a name alone: a sign of life */
        return;
    if (tkc_str_is(data, "[DONE]")) {
        d->finish_seen = d->delta.last = true;
        return;
    }
    if (!tkc_message_decode(&tkc_stream_event_type, data, TINKC_E_BAD_RESPONSE, arena, &e, err))
        return;
    if (e.event_type.value == TKC_STREAM_TOKEN && e.token_id.is == TKC_GIVEN) {
        int32_t id = (int32_t)e.token_id.value;
        /* A token that got lost must show: a stream cannot be repeated. */
        if (id != e.token_id.value || (e.index.is == TKC_GIVEN && e.index.value != d->n_tokens)) {
            tkc_fail(err, TINKC_E_BAD_RESPONSE, "stream: token %lld is out of order or range",
                     (long long)d->n_tokens);
            return;
        }
        d->n_tokens++;
        tinkc_tokens_append(&d->tokens, &id, 1, err);
        if (e.logprob.is == TKC_GIVEN)
            tinkc_floats_append(&d->logprobs, &e.logprob.value, 1, err);
    } else if (e.event_type.value == TKC_STREAM_DONE) {
        if (e.total_tokens.is == TKC_GIVEN && e.total_tokens.value != d->n_tokens) {
            tkc_fail(err, TINKC_E_BAD_RESPONSE, "stream: %lld tokens came of %lld",
                     (long long)d->n_tokens, (long long)e.total_tokens.value);
            return;
        }
        d->finish_seen = true;
        d->delta.last = true;
        d->delta.stop_reason =
            e.finish_reason.value == TKC_FINISH_LENGTH ? TINKC_STOP_LENGTH : TINKC_STOP;
    } else if (e.event_type.value == TKC_STREAM_ERROR) {
        tkc_fail(err, TINKC_E_REQUEST_FAILED, "%.350s", e.error ? e.error : "failed");
        bool user = e.category.value == TKC_CATEGORY_USER;
        err->category = user ? TINKC_BY_CALLER : TINKC_BY_SERVER;
        err->flags = user ? TINKC_USER_ERROR : TINKC_RETRIABLE;
    }
}

static void take_events(tinkc_deltas *d, tinkc_error *err)
{
    tkc_arena arena;
    const tinkc_sse *sse;
    tkc_arena_init(&arena, d->op->f.client->a, 1 << 26);
    tinkc_sse_feed(d->parser, d->chunk.data, d->chunk.len, err);
    while (!d->finish_seen && !tkc_failed(err) && (sse = tinkc_sse_next(d->parser, err)) != NULL) {
        take_event(d, sse, &arena, err);
        tkc_arena_reset(&arena);
    }
    tkc_arena_free(&arena);
}

/* Waits for bytes or the end. False when the time is up. */
static bool await_bytes(tinkc_deltas *d, int64_t timeout_ms, int64_t deadline_ns, bool *over)
{
    stream_op *op = d->op;
    bool in_time = true, some;
    /* The stream's lock inside the future's, never the other way round. */
    pthread_mutex_lock(&op->f.shared.lock);
    while (true) {
        pthread_mutex_lock(&op->lock);
        some = op->pending.len > 0;
        pthread_mutex_unlock(&op->lock);
        *over = op->f.shared.done && !some;
        if (some || *over || !in_time || timeout_ms == 0)
            break;
        in_time = tkc_cond_wait_until(&op->f.shared.cond, &op->f.shared.lock, deadline_ns);
    }
    pthread_mutex_unlock(&op->f.shared.lock);
    return some || *over;
}

static const tinkc_delta *give_delta(tinkc_deltas *d)
{
    d->delta.tokens = (tinkc_i32s){ d->tokens.data, d->tokens.len };
    if (d->logprobs.len == d->tokens.len)
        d->delta.logprobs = (tinkc_f32s){ d->logprobs.data, d->logprobs.len };
    /* A failure behind these tokens comes with the next call, which must not wait for more bytes. */
    d->ended = d->delta.last || tkc_failed(&d->err);
    return &d->delta;
}

/* The body is over: well if its last event came, else cut off. */
static void take_end(tinkc_deltas *d)
{
    tinkc_error ended = { 0 };
    (void)tinkc_future_wait(&d->op->f, 0, &ended);
    tkc_error_copy(&d->err, &ended);
    tkc_fail(&d->err, TINKC_E_BAD_RESPONSE, "the stream was cut off");
}

const tinkc_delta *tinkc_deltas_next(tinkc_deltas *d, int64_t timeout_ms, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return NULL;
    if (!d) {
        tkc_fail(err, TINKC_E_ARGUMENT, "deltas: must not be NULL");
        return NULL;
    }
    tinkc_client *client = d->op->f.client;
    if (!tkc_client_check(client, err) || !tkc_client_check_waits(client, err))
        return NULL;
    d->tokens.len = d->logprobs.len = 0;
    d->delta = (tinkc_delta){ 0 };
    int64_t deadline = tkc_deadline_ns(timeout_ms);
    while (!d->ended) {
        bool over;
        if (!await_bytes(d, timeout_ms, deadline, &over)) {
            tkc_fail(err, TINKC_E_TIMEOUT, "no token yet");
            return NULL;
        }
        if (take_bytes(d))
            take_events(d, &d->err);
        else if (over)
            take_end(d);
        if (tkc_failed(&d->err))
            d->ended = true;
        if (d->finish_seen || d->tokens.len)
            return give_delta(d);
    }
    tkc_error_copy(err, &d->err);
    return NULL;
}
