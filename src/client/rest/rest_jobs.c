/* rest_jobs.c - calls that the service needs time for: archives and trace exports.
 *
 * Both ask again after a pause until the service is ready; both run on the I/O thread.
 */
#include "client/rest/rest_priv.h"

#include <string.h>
#include "client/call/poller.h"
#include "base/str.h"
#include "codec/retry.h"
#include "codec/tinker_path.h"

/* The Python SDK's numbers. */
enum {
    ARCHIVE_ROUNDS = 6,
    ARCHIVE_WAIT_MS = 30 * 1000,
    ARCHIVE_DEFAULT_LIFE_US = 15 * 60 * 1000 * 1000,
    BACKOFF_CAP_MS = 30 * 1000,
    TRACE_WAIT_MS = 5 * 1000
};

/* ---- the address of an archive ---- */

typedef struct archive_op {
    tinkc_future f;
    tkc_poller poller;
    char *path;          /* in the arena */
    char *plain;         /* the same with the checkpoint's name alone, not yet tried; NULL = none */
    tinkc_error missing; /* what the whole id met, if the name alone is tried */
    int32_t rounds, failures;
} archive_op;

static archive_op *archive_of(tinkc_future *f)
{
    return (archive_op *)(void *)f;
}

static tkc_poller_step archive_ask;

/* An absolute http address and nothing else may be handed on. */
static bool is_address(const char *url)
{
    return tkc_starts_with(tkc_str(url), "https://") || tkc_starts_with(tkc_str(url), "http://");
}

static void archive_result(archive_op *op, const char *url, const char *expires, int64_t expires_us,
                           tinkc_error *err)
{
    tkc_arena *arena = &op->f.arena;
    tinkc_archive *result = tkc_arena_alloc(arena, sizeof *result, err);
    if (!result)
        return;
    if (!is_address(url))
        tkc_fail(err, TINKC_E_BAD_RESPONSE, "the archive's address is not absolute");
    result->url = tkc_arena_cstr(arena, url, err);
    result->expires = tkc_arena_cstr(arena, expires, err);
    result->expires_us = expires_us;
    op->f.result = result;
}

static void read_redirect(archive_op *op, const char *location, tinkc_error *err)
{
    char text[TKC_TIME_TEXT];
    int64_t us;
    const char *expires = tkc_call_header(op->poller.answer, "expires");
    if (!expires || !tkc_parse_http_date(tkc_str(expires), &us))
        us = tkc_wall_us(op->f.client->clock) + ARCHIVE_DEFAULT_LIFE_US;
    tkc_format_time(us, false, text);
    archive_result(op, location, text, us, err);
}

static void read_archive(archive_op *op, tinkc_error *err)
{
    tkc_archive_response msg;
    if (tkc_rest_decode(&op->f, op->poller.answer, &tkc_archive_response_type, &msg, err))
        archive_result(op, msg.url, msg.expires.text, tkc_time_us(&msg.expires), err);
}

/* Whether to ask again, and when; 0 = no. */
static int64_t archive_pause(archive_op *op, const tinkc_error *err)
{
    const tinkc_client *client = op->f.client;
    int64_t elapsed = tkc_now_ms(client->clock) - op->poller.begun_ms;
    if (client->no_retries)
        return 0;
    /* A 503 means that it is being packed, which takes its time: pauses of its own, instead of
     * those of a service in trouble. */
    if (err->http_status == 503)
        return ++op->rounds < ARCHIVE_ROUNDS ? ARCHIVE_WAIT_MS : 0;
    if (!(err->flags & TINKC_RETRIABLE) || err->http_status == 409)
        return 0;
    if (client->retry_window_ms != TINKC_FOREVER && elapsed >= client->retry_window_ms)
        return 0;
    int64_t wait = op->failures < 5 ? (int64_t)1000 << op->failures : BACKOFF_CAP_MS;
    op->failures++;
    return err->retry_after_ms > wait ? err->retry_after_ms : wait;
}

/* SkyRL's routes know a sampler's archive by its name alone, although its lists say
 * sampler_weights/NAME: 404, or 405 because the longer path is one of its DELETE. A service that knows
 * the whole id is never asked twice. */
static bool archive_by_name(archive_op *op)
{
    const tkc_call *answer = op->poller.answer;
    if ((answer->status != 404 && answer->status != 405) || !op->plain)
        return false;
    op->missing = answer->err;
    op->path = op->plain;
    op->plain = NULL;
    tkc_op_error_body(&op->f, answer->body);
    archive_ask(&op->poller);
    return true;
}

static void archive_answered(tkc_poller *poller)
{
    archive_op *op = TKC_OWNER(poller, archive_op, poller);
    const tkc_call *call = poller->answer;
    tinkc_error err = call->err;
    /* A redirect is an answer here: its target is the archive. */
    const char *location = call->status == 302 ? tkc_call_header(call, "location") : NULL;
    if (archive_by_name(op))
        return;
    if (location || !err.code) {
        err = (tinkc_error){ 0 };
        if (location)
            read_redirect(op, location, &err);
        else
            read_archive(op, &err);
        if (err.code)
            err.http_status = call->status;
    } else {
        int64_t pause = archive_pause(op, &err);
        if (pause) {
            tkc_op_status(&op->f,
                          err.http_status == 503 ? "the service is packing the archive" : "%.100s",
                          err.message);
            tkc_client_log(op->f.client, TINKC_LOG_INFO,
                           "the archive is not ready (%s), asking again in %lld s", err.message,
                           (long long)pause / 1000);
            tkc_poller_pause(poller, pause, archive_ask);
            return;
        }
        /* The name alone was a guess: what the whole id met says more. */
        if (op->missing.code)
            err = op->missing;
        else
            tkc_op_error_body(&op->f, call->body);
    }
    tkc_op_finish(&op->f, &err);
}

static void archive_ask(tkc_poller *poller)
{
    archive_op *op = TKC_OWNER(poller, archive_op, poller);
    tinkc_error err = { 0 };
    tkc_call_spec spec = tkc_call_to(TKC_EP_ARCHIVE);
    spec.path = op->path;
    /* The address is signed and meant for others: our credential must not go there. */
    spec.no_redirects = true;
    tkc_op_stage(&op->f, TINKC_STAGE_SENDING);
    tkc_poller_ask(poller, tkc_call_new(op->f.client, &spec, &err), &err, archive_answered);
}

static void archive_start(tinkc_future *f)
{
    tkc_poller_begin(&archive_of(f)->poller, f, NULL);
    archive_ask(&archive_of(f)->poller);
}

static void archive_stop(tinkc_future *f, const tinkc_error *why)
{
    tkc_poller_end(&archive_of(f)->poller);
    tkc_op_finish(f, why);
}

static const tkc_op_class archive_class = { "checkpoint_archive", "archive",    sizeof(archive_op),
                                            archive_start,        archive_stop, NULL };

/* A poller's path goes into the arena of its own operation. */
static char *job_path(tinkc_future *f, int32_t endpoint, const char *id, const char *checkpoint,
                      tinkc_error *err)
{
    const char *const ids[] = { id, checkpoint, NULL };
    tkc_buf buf;
    char *copy = NULL;
    tkc_buf_init(&buf, f->client->a, TKC_BUF_NO_MAX);
    if (tkc_endpoint_path(tkc_endpoint_get(endpoint), ids, &buf, err))
        copy = tkc_arena_str(&f->arena, tkc_buf_view(&buf), err);
    tkc_buf_free(&buf);
    return copy;
}

tinkc_future *tinkc_checkpoint_archive(tinkc_client *client, const char *path, tinkc_error *err)
{
    tinkc_error local;
    tinkc_path parts;
    if (!tkc_enter(&err, &local) || !tkc_tinker_path_any(path, &parts, err))
        return NULL;
    tinkc_future *f = tkc_op_new(client, &archive_class, err);
    if (!f)
        return NULL;
    const char *run = tkc_arena_str(&f->arena, parts.run_id, err);
    const char *checkpoint = tkc_arena_str(&f->arena, parts.checkpoint_id, err);
    const char *name = tkc_arena_str(&f->arena, parts.name, err);
    if (run && checkpoint && name) {
        archive_of(f)->path = job_path(f, TKC_EP_ARCHIVE, run, checkpoint, err);
        if (parts.kind == TINKC_CHECKPOINT_SAMPLER && strcmp(name, checkpoint) != 0)
            archive_of(f)->plain = job_path(f, TKC_EP_ARCHIVE, run, name, err);
    }
    if (tkc_failed(err)) {
        tkc_future_drop(f);
        return NULL;
    }
    return tkc_op_submit(f);
}

const tinkc_archive *tinkc_future_archive(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    return tkc_future_get(f, "archive", timeout_ms, err);
}

/* ---- a session's timeline ---- */

typedef struct trace_op {
    tinkc_future f;
    tkc_poller poller;
    char *path;
} trace_op;

static trace_op *trace_of(tinkc_future *f)
{
    return (trace_op *)(void *)f;
}

static tkc_poller_step trace_ask;

/* True: the service is still at it. */
static bool trace_pending(trace_op *op, tinkc_error *err)
{
    tkc_trace_export_response msg;
    if (!tkc_rest_decode(&op->f, op->poller.answer, &tkc_trace_export_response_type, &msg, err))
        return false;
    switch (msg.status.value) {
    case TKC_EXPORT_READY:
        if (!msg.url || !is_address(msg.url))
            return tkc_fail(err, TINKC_E_BAD_RESPONSE, "the trace is ready but has no address");
        op->f.result = tkc_arena_cstr(&op->f.arena, msg.url, err);
        return false;
    case TKC_EXPORT_FAILED:
        return tkc_fail(err, TINKC_E_EXPORT_FAILED, "trace export: %s",
                        msg.error ? msg.error : "the service gives no reason");
    case TKC_EXPORT_PENDING:
        return true;
    default:
        return tkc_fail(err, TINKC_E_BAD_RESPONSE, "trace export: unknown status \"%s\"",
                        msg.status.text ? msg.status.text : "");
    }
}

static void trace_answered(tkc_poller *poller)
{
    trace_op *op = TKC_OWNER(poller, trace_op, poller);
    tinkc_error err = poller->answer->err;
    bool pending = !err.code && trace_pending(op, &err);
    if (pending) {
        tkc_op_stage(&op->f, TINKC_STAGE_ACCEPTED);
        tkc_op_status(&op->f, "the service is building the trace");
        /* Without end, as in the Python SDK: the service says when it has given up. */
        tkc_poller_pause(poller, TRACE_WAIT_MS, trace_ask);
        return;
    }
    if (err.code) {
        err.http_status = poller->answer->status;
        tkc_op_error_body(&op->f, poller->answer->body);
    }
    tkc_op_finish(&op->f, &err);
}

static void trace_ask(tkc_poller *poller)
{
    trace_op *op = TKC_OWNER(poller, trace_op, poller);
    tinkc_error err = { 0 };
    tkc_call_spec spec = tkc_call_to(TKC_EP_TRACE_EXPORT);
    spec.path = op->path;
    tkc_poller_ask(poller, tkc_call_new(op->f.client, &spec, &err), &err, trace_answered);
}

static void trace_start(tinkc_future *f)
{
    tkc_poller_begin(&trace_of(f)->poller, f, NULL);
    trace_ask(&trace_of(f)->poller);
}

static void trace_stop(tinkc_future *f, const tinkc_error *why)
{
    tkc_poller_end(&trace_of(f)->poller);
    tkc_op_finish(f, why);
}

static const tkc_op_class trace_class = { "session_trace", "url",      sizeof(trace_op),
                                          trace_start,     trace_stop, NULL };

tinkc_future *tinkc_session_trace(tinkc_client *client, const char *session_id, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_check_id(session_id, "session_id", err))
        return NULL;
    tinkc_future *f = tkc_op_new(client, &trace_class, err);
    if (!f)
        return NULL;
    trace_of(f)->path = job_path(f, TKC_EP_TRACE_EXPORT, session_id, NULL, err);
    if (tkc_failed(err)) {
        tkc_future_drop(f);
        return NULL;
    }
    return tkc_op_submit(f);
}

const char *tinkc_future_url(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    return tkc_future_get(f, "url", timeout_ms, err);
}
