/* call.c - one logical call: attempts, the window around them, one answer.
 *
 *     start -> need (config, session) -> token -> attempt -> outcome
 *                                          ^                  | retry: timer
 *                                          +------------------+
 *                                                             | final -> done
 *
 * Each attempt is a reply: an object of its own that the transport fills in from any thread and
 * that comes back to the I/O thread as a task. A reply outlives its call when that is freed early;
 * then it only cleans up after itself.
 *
 * May touch: the client's I/O side; the transport.
 * Must not:  know what requests mean.
 */
#include "client/call/call.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "client/core/client_priv.h"
#include "client/core/telemetry.h"
#include "base/str.h"
#include "codec/retry.h"
#include "wire/answer.h"

enum {
    BARE_400_BUDGET = 16,
    BILLING_SLEEP_MS = 5000,
    DEPRECATION_LOG_MS = 60 * 1000,
    WINDOW_CAP_MS = 30000,
    RETRY_BASE_MS = 500,
    RETRY_CAP_MS = 10000,
    OFFLOAD_BYTES = 256 * 1024
};

typedef struct reply {
    tinkc_reply pub;
    tinkc_client *client;
    struct tkc_call_inner *inner; /* I/O thread; NULL once the call is gone */
    tkc_task task;
    tinkc_request request;
    tkc_body *body; /* shared with the call and its other attempts */
    tinkc_error body_err;
    int64_t begun_ms;
    int64_t max_bytes;

    pthread_mutex_t lock; /* guards the sink against its owner's end */
    bool detached;
    tkc_sink_fn *sink;
    size_t (*sink_room)(void *user);
    void (*sink_head)(void *user);
    void *sink_user;

    /* The thread that the transport calls from, one at a time; the I/O thread after the end. */
    tkc_arena arena; /* headers both ways */
    const char **headers;
    size_t n_headers, cap_headers;
    tkc_buf bytes;
    int32_t status, code;            /* code 0 = ended well */
    bool too_large, no_memory, sunk; /* sunk: the sink has had something of it */
    char message[200];
} reply;

typedef struct tkc_call_inner {
    tkc_call call; /* first: the call is this object */
    tinkc_client *client;
    struct tkc_call_inner *prev, *next; /* among the client's calls */
    tkc_arena arena;
    tkc_call_spec spec; /* texts in the arena; its body is not looked at again */
    tkc_body *body;
    char key[TKC_UUID_TEXT + 24];
    tkc_timer timer;
    tkc_task finish_task;
    tkc_ready_wait ready;
    tkc_token_wait token;
    reply *reply; /* of the attempt under way, then of the last one */
    int64_t begun_ms;
    int32_t attempt;  /* in this round, from 0 */
    int32_t round;    /* of the window, from 0 */
    int32_t attempts; /* in all */
    bool under_way;   /* the reply is out */
    bool last;        /* there is no attempt after this one */
    bool started, listed, finished, finish_posted;
} inner;

static void begin_attempt(inner *c);

/* ---- replies: called by the transport ---- */

/* These run on whatever thread the transport has. They touch the reply and nothing of the call,
 * so a call may be freed at any moment; the end is posted, and everything is decided on the I/O
 * thread. */

static void reply_free(reply *r)
{
    if (!r)
        return;
    tkc_buf_free(&r->bytes);
    tkc_release(r->client->a, (void *)r->headers, r->cap_headers * sizeof *r->headers);
    tkc_arena_free(&r->arena);
    tkc_body_drop(r->body);
    pthread_mutex_destroy(&r->lock);
    tkc_release(r->client->a, r, sizeof *r);
}

static void on_status(tinkc_reply *pub, int32_t status)
{
    reply *r = TKC_OWNER(pub, reply, pub);
    r->status = status;
}

static void on_header(tinkc_reply *pub, const char *name, const char *value)
{
    reply *r = TKC_OWNER(pub, reply, pub);
    tinkc_error err = { 0 };
    const char **grown = tkc_grow(r->client->a, (void *)r->headers, &r->cap_headers,
                                  r->n_headers + 3, sizeof *grown, &err);
    if (grown) {
        r->headers = grown;
        grown[r->n_headers] = tkc_arena_cstr(&r->arena, name, &err);
        grown[r->n_headers + 1] = tkc_arena_cstr(&r->arena, value, &err);
        if (!tkc_failed(&err))
            r->n_headers += 2;
        grown[r->n_headers] = NULL;
    }
    /* Not reported from here: the transport is in the middle of an answer. It becomes the
     * outcome. */
    if (tkc_failed(&err))
        r->no_memory = true;
}

static bool is_success(int32_t status)
{
    return status >= 200 && status < 300;
}

static bool to_sink(reply *r, const void *data, size_t len)
{
    /* Held while the sink runs: quiesce waits for it, so a sink's owner may end once
     * tkc_call_free has returned. */
    pthread_mutex_lock(&r->lock);
    /* Even if the reader refuses: a further attempt would give it the same bytes again. */
    r->sunk = true;
    bool more = !r->detached && r->sink(r->sink_user, data, len);
    pthread_mutex_unlock(&r->lock);
    return more;
}

/* The head is complete. */
static bool head_to_sink(reply *r)
{
    if (!r->sink_head || !is_success(r->status))
        return true;
    pthread_mutex_lock(&r->lock);
    bool wanted = !r->detached;
    r->sunk = true;
    if (wanted)
        r->sink_head(r->sink_user);
    pthread_mutex_unlock(&r->lock);
    return wanted;
}

static bool on_write(tinkc_reply *pub, const void *data, size_t len)
{
    reply *r = TKC_OWNER(pub, reply, pub);
    if (r->too_large || r->no_memory)
        return false;
    if (len == 0)
        return head_to_sink(r);
    if (r->sink && is_success(r->status))
        return to_sink(r, data, len);
    /* Before the bytes are kept: the limit bounds memory, not only what is accepted. */
    if (r->max_bytes > 0 && (uint64_t)r->bytes.len + len > (uint64_t)r->max_bytes) {
        r->too_large = true;
        return false;
    }
    tinkc_error err = { 0 };
    if (!tkc_buf_add(&r->bytes, data, len, &err))
        r->no_memory = true;
    return !r->no_memory;
}

static size_t on_room(tinkc_reply *pub)
{
    reply *r = TKC_OWNER(pub, reply, pub);
    size_t room = SIZE_MAX;
    pthread_mutex_lock(&r->lock);
    if (!r->detached && r->sink && r->sink_room && is_success(r->status))
        room = r->sink_room(r->sink_user);
    pthread_mutex_unlock(&r->lock);
    return room;
}

static void on_end(tinkc_reply *pub)
{
    reply *r = TKC_OWNER(pub, reply, pub);
    /* The transport's last use of the reply: from here on it is the I/O thread's. */
    tkc_loop_post(r->client->loop, &r->task);
}

static void on_fail(tinkc_reply *pub, int32_t code, const char *message)
{
    reply *r = TKC_OWNER(pub, reply, pub);
    r->code = code ? code : TINKC_E_CONNECTION;
    size_t len = message ? strnlen(message, sizeof r->message - 1) : 0;
    memcpy(r->message, message ? message : "", len); /* the rest is zero */
    tkc_loop_post(r->client->loop, &r->task);
}

/* ---- errors from answers ---- */

void tkc_status_error(tinkc_error *err, int32_t status, tinkc_bytes body, bool local)
{
    tinkc_error ignored = { 0 };
    tkc_error_body text = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 1 << 20);
    size_t len = body.len < 65536 ? body.len : 65536;
    (void)tkc_error_body_read(tkc_str_trim(tkc_strn((const char *)body.data, len)), &arena, &text,
                              &ignored);
    const char *detail = text.detail ? text.detail : "";
    char line[360];
    if (local && detail[0])
        (void)snprintf(line, sizeof line, "%s", detail);
    else
        (void)snprintf(line, sizeof line, "%s %d%s%s", local ? "refused with status" : "HTTP",
                       (int)status, detail[0] ? ": " : "", detail);
    tkc_blank_controls(line);
    /* Services and proxies quote what they were sent: a key must not reach a log with it. */
    tkc_redact(line, strlen(line));
    tkc_fail(err, tkc_code_of_status(status), "%s", line);
    err->http_status = status;
    /* The table of codes cannot tell: a 302 is nobody's mistake, a 405 or 413 is the caller's. */
    if (err->code == TINKC_E_HTTP && status >= 400)
        err->flags |= TINKC_USER_ERROR;
    tkc_arena_free(&arena);
}

static const char *header_of(const reply *r, const char *name)
{
    return r ? tkc_header((const char *const *)r->headers, name) : NULL;
}

const char *tkc_call_header(const tkc_call *call, const char *name)
{
    return header_of(call->inner->reply, name);
}

const char *const *tkc_call_headers(const tkc_call *call)
{
    const reply *r = call->inner->reply;
    return r ? (const char *const *)r->headers : NULL;
}

int32_t tkc_call_status(const tkc_call *call)
{
    return call->inner->reply ? call->inner->reply->status : 0;
}

int64_t tkc_call_elapsed_ms(const tkc_call *call)
{
    return tkc_now_ms(call->inner->client->clock) - call->inner->begun_ms;
}

static int64_t asked_delay(const inner *c)
{
    const reply *r = c->reply;
    /* After a failure of the transport there is no answer that could ask for a pause. */
    if (!r || r->code)
        return 0;
    return tkc_retry_after_ms(header_of(r, "retry-after-ms"), header_of(r, "retry-after"),
                              tkc_wall_us(c->client->clock));
}

/* ---- making requests ---- */

/* Headers of one attempt, last one of a name wins. */
typedef struct header_list {
    const char **pairs;
    size_t n, cap;
} header_list;

static void put_header(header_list *list, const char *name, const char *value)
{
    size_t at = 0;
    while (at < list->n && !tkc_str_is_nocase(tkc_str(list->pairs[at]), name))
        at += 2;
    if (!value[0]) { /* dropped: the last pair moves into its place */
        if (at < list->n) {
            list->n -= 2;
            list->pairs[at] = list->pairs[list->n];
            list->pairs[at + 1] = list->pairs[list->n + 1];
        }
        return;
    }
    if (at == list->n) {
        if (list->n + 2 > list->cap)
            return;
        list->n += 2;
    }
    list->pairs[at] = name;
    list->pairs[at + 1] = value;
}

static size_t count_list(const char *const *list)
{
    size_t n = 0;
    while (list && list[n])
        n++;
    return n;
}

static bool build_headers(inner *c, reply *r, const char *token, tinkc_error *err)
{
    tinkc_client *client = c->client;
    const tkc_call_spec *spec = &c->spec;
    header_list list = { 0 };
    list.cap = count_list(client->headers) + count_list(spec->headers) + 16;
    list.pairs = tkc_arena_array(&r->arena, list.cap + 1, sizeof *list.pairs, err);
    char *retry_count = tkc_arena_printf(&r->arena, err, "%d", (int)c->attempt);
    int64_t silence = r->request.idle_timeout_ms;
    char number[TKC_NUMBER_MAX];
    tkc_format_double((double)silence / 1000.0, number);
    char *read_timeout = tkc_arena_cstr(&r->arena, number, err);
    if (tkc_failed(err))
        return false;
    /* Order is precedence: the client's headers, the SDK's, the credential, the call's own. A
     * credential replaces an X-API-Key among the client's headers; only a call may replace the
     * credential. */
    if (!spec->anonymous)
        for (size_t i = 0; client->headers && client->headers[i]; i += 2)
            put_header(&list, client->headers[i], client->headers[i + 1]);
    put_header(&list, "Accept", spec->accept ? spec->accept : "application/json");
    if (strcmp(spec->method, "GET") != 0) {
        put_header(&list, "Content-Type",
                   spec->content_type ? spec->content_type : "application/json");
        if (!spec->anonymous)
            put_header(&list, "X-Idempotency-Key", c->key);
    }
    if (!spec->anonymous) {
        /* Counts within the round, as in the Python SDK: each round of the window begins at 0. */
        put_header(&list, "x-stainless-retry-count", retry_count);
        if (silence != TINKC_FOREVER)
            put_header(&list, "x-stainless-read-timeout", read_timeout);
    }
    if (token && token[0]) {
        /* A copy: the token may be renewed while the attempt is out. */
        const char *copy = tkc_arena_cstr(&r->arena, token, err);
        if (!copy)
            return false;
        put_header(&list, "X-API-Key", copy);
    }
    for (size_t i = 0; spec->headers && spec->headers[i]; i += 2)
        put_header(&list, spec->headers[i], spec->headers[i + 1]);
    list.pairs[list.n] = NULL;
    r->request.headers = (const char *const *)list.pairs;
    return true;
}

static void reply_arrived(tkc_task *task);

static size_t read_body(const tinkc_request *request, uint64_t at, void *to, size_t cap)
{
    reply *r = TKC_OWNER(request, reply, request);
    return tkc_body_read(r->body, at, to, cap, &r->body_err);
}

static void set_body(reply *r, tkc_body *body)
{
    r->body = body;
    tkc_body_keep(body);
    if (tkc_body_in_memory(body, &r->request.body))
        return;
    r->request.body_size = (int64_t)tkc_body_size(body);
    r->request.read_body = read_body;
}

static reply *new_reply(inner *c, const char *token, tinkc_error *err)
{
    tinkc_client *client = c->client;
    const tkc_call_spec *spec = &c->spec;
    reply *r = tkc_zalloc(client->a, sizeof *r, err);
    if (!r)
        return NULL;
    r->pub = (tinkc_reply){ .status = on_status,
                            .header = on_header,
                            .write = on_write,
                            .end = on_end,
                            .fail = on_fail,
                            .room = on_room };
    r->client = client;
    r->inner = c;
    r->task.run = reply_arrived;
    pthread_mutex_init(&r->lock, NULL);
    tkc_arena_init(&r->arena, client->a, 1 << 20);
    tkc_buf_init(&r->bytes, client->a, TKC_BUF_NO_MAX);
    r->sink = spec->sink;
    r->sink_room = spec->sink_room;
    r->sink_head = spec->sink_head;
    r->sink_user = spec->sink_user;
    r->max_bytes = spec->max_bytes ? spec->max_bytes : client->max_response_bytes;
    /* The transport may keep the request longer than the call lives: its texts are copies. */
    r->request = (tinkc_request){
        .method = spec->method,
        .path = tkc_arena_cstr(&r->arena, spec->path, err),
        .base_url =
            tkc_arena_cstr(&r->arena, spec->base_url ? spec->base_url : client->base_url, err),
        .connect_timeout_ms = client->connect_timeout_ms,
        .idle_timeout_ms = spec->timeout_ms ? spec->timeout_ms : client->idle_timeout_ms,
        .pool = spec->pool,
        .no_redirects = spec->no_redirects,
    };
    set_body(r, c->body);
    if (tkc_failed(err) || !build_headers(c, r, token, err)) {
        reply_free(r);
        return NULL;
    }
    return r;
}

/* ---- outcomes ---- */

static void unlist_call(inner *c)
{
    if (!c->listed)
        return;
    assert((c->prev ? c->prev->next : c->client->io.calls) == c);
    if (c->prev)
        c->prev->next = c->next;
    else
        c->client->io.calls = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->listed = false;
}

static void run_finish(tkc_task *task)
{
    inner *c = TKC_OWNER(task, inner, finish_task);
    c->finish_posted = false;
    assert(c->started && !c->finished && !c->under_way && !c->timer.armed);
    c->finished = true;
    unlist_call(c);
    /* A GET that ran twice has changed nothing: no warning. */
    if (c->call.err.code && c->call.may_have_run && strcmp(c->spec.method, "GET") != 0)
        c->call.err.flags |= TINKC_MAY_HAVE_RUN;
    c->call.done(&c->call);
}

/* Always by way of a task, so that `done` never comes from inside another call of ours. */
static void finish_call(inner *c)
{
    assert(tkc_loop_is_current(c->client->loop));
    if (c->finish_posted || c->finished)
        return;
    c->finish_posted = true;
    c->finish_task.run = run_finish;
    tkc_loop_post(c->client->loop, &c->finish_task);
}

static void finish_with(inner *c, const tinkc_error *err)
{
    c->call.err = *err;
    finish_call(c);
}

void tkc_emit_about(tinkc_client *client, tinkc_future *f, int32_t endpoint, const tinkc_event *e)
{
    const tkc_endpoint *about = tkc_endpoint_get(endpoint);
    char request[100];
    tinkc_event whole = *e;
    (void)snprintf(request, sizeof request, "%s %s", about->method, about->path);
    whole.request = request;
    tkc_emit(client, f, &whole);
}

static void emit_retry(inner *c, int64_t wait_ms, int64_t left_ms)
{
    const tinkc_error *err = &c->call.err;
    char request[300];
    (void)snprintf(request, sizeof request, "%s %s", c->spec.method, c->spec.path);
    tkc_emit(c->client, c->call.f,
             &(tinkc_event){ .kind = TINKC_EVENT_RETRY,
                             .http_status = err->http_status,
                             .attempt = c->attempts,
                             .elapsed_ms = tkc_now_ms(c->client->clock) - c->begun_ms,
                             .wait_ms = wait_ms,
                             .left_ms = left_ms,
                             .request = request,
                             .text = err->message });
    tkc_op_status(c->call.f, "%.70s, next try in %.1f s", err->message, (double)wait_ms / 1000.0);
    /* Nobody is there: said at once, and once. The other attempts are details. */
    bool unreachable = c->attempts == 1 && err->code == TINKC_E_CONNECTION && !err->http_status;
    tkc_client_log(c->client, unreachable ? TINKC_LOG_WARN : TINKC_LOG_DEBUG,
                   "%s: %s; next try in %lld ms", request, err->message, (long long)wait_ms);
}

/* left_ms: until the call gives up; no sleep goes beyond that. INT64_MAX = it does not. */
static void sleep_then_retry(inner *c, int64_t wait_ms, int64_t left_ms)
{
    assert(wait_ms >= 0 && left_ms > 0 && !c->under_way && !c->finish_posted);
    wait_ms = wait_ms < left_ms ? wait_ms : left_ms;
    emit_retry(c, wait_ms, left_ms == INT64_MAX ? TINKC_FOREVER : left_ms);
    tkc_loop_arm(c->client->loop, &c->timer, wait_ms);
}

/* The Python SDK's list: a 409 is repeated although it counts as the caller's mistake. */
static bool status_retries(int32_t status)
{
    return status == 408 || status == 409 || status == 429 || status >= 500;
}

/* What no further attempt can resend: a conflict that says "it is so already", a body of which a
 * part has gone to its reader, or an answer that nobody needs so much any more. */
static bool is_final(const inner *c)
{
    const reply *r = c->reply;
    if (c->last || (r && r->sunk))
        return true;
    if (c->spec.probe && c->call.err.http_status == 500)
        return true;
    return c->call.err.http_status == 409 &&
           (c->spec.conflict_final || (c->spec.conflict_ends && c->call.retried));
}

/* Layer attempt: is this outcome worth another one? */
static bool attempt_retries(const inner *c)
{
    const reply *r = c->reply;
    /* Of the transport's failures only these two may be different next time. */
    if (r->code)
        return r->code == TINKC_E_CONNECTION || r->code == TINKC_E_NET_TIMEOUT;
    /* The service's word goes before our table, in both directions. */
    int said = tkc_should_retry(header_of(r, "x-should-retry"));
    return said >= 0 ? said == 1 : status_retries(r->status);
}

static int64_t attempt_delay(const inner *c)
{
    /* Exactly as asked, without jitter: only our own pauses are spread, and they never become
     * longer. */
    int64_t asked = asked_delay(c);
    if (asked > 0)
        return asked;
    int64_t ms = c->attempt < 5 ? (int64_t)RETRY_BASE_MS << c->attempt : RETRY_CAP_MS;
    double factor = 1.0 - 0.25 * tkc_random_unit(c->client->clock);
    return (int64_t)((double)ms * factor);
}

/* Layer window: is it worth another round? */
static bool window_retries(const tinkc_error *err)
{
    /* x-should-retry does not count here: it speaks of one exchange, not of the operation. */
    if (err->code == TINKC_E_CONNECTION || err->code == TINKC_E_NET_TIMEOUT)
        return true;
    int32_t s = err->http_status;
    return s == 408 || s == 409 || s == 429 || (s >= 500 && s < 600);
}

static void report_failure(inner *c, bool retryable)
{
    tkc_report_call_failure(c->client, c->spec.path, &c->call.err, c->round + 1, c->begun_ms,
                            retryable);
}

/* What is left of the window; INT64_MAX = it has no end, or the call has no window. */
static int64_t window_left(const inner *c)
{
    int64_t window = c->client->retry_window_ms;
    if (!c->spec.window || window == TINKC_FOREVER)
        return INT64_MAX;
    return window - (tkc_now_ms(c->client->clock) - c->begun_ms);
}

/* One exchange with all its attempts has failed: is there time for another? */
static void window_outcome(inner *c)
{
    tinkc_client *client = c->client;
    const tinkc_error *err = &c->call.err;
    /* Only a call that waits here says so: a poll's pause is announced by its promise. */
    bool pause = err->http_status == 402 && c->spec.window &&
                 tkc_billing_pauses(client, 402, tkc_str(err->message), c->call.f);
    c->call.paused = pause;
    /* The sample waits itself, until a time that all samples of this address and key share
     * (sample_op.c): a pause of its own in here would come on top. */
    if (c->spec.backpressure && (err->http_status == 429 || pause)) {
        finish_call(c);
        return;
    }
    if (is_final(c)) {
        finish_call(c);
        return;
    }
    int64_t left = window_left(c);
    bool may = c->spec.window && !client->no_retries;
    /* Neither a round nor cut by the window, but the window's clock runs on, as in the Python
     * SDK. */
    if (may && pause) {
        c->attempt = 0;
        sleep_then_retry(c, BILLING_SLEEP_MS, INT64_MAX);
        return;
    }
    bool retryable = window_retries(err);
    if (c->spec.window)
        report_failure(c, retryable);
    if (!may || !retryable || left <= 0) {
        finish_call(c);
        return;
    }
    int64_t wait = c->round < 5 ? (int64_t)1000 << c->round : WINDOW_CAP_MS;
    int64_t asked = asked_delay(c);
    /* The Python SDK ignores Retry-After here; who comes earlier than asked is refused again. */
    wait = asked > wait ? asked : wait;
    c->round++;
    c->attempt = 0;
    sleep_then_retry(c, wait, left);
}

/* An edge proxy that answers 400 without a word means "this connection", not "this request". */
static void apply_pool_rule(inner *c)
{
    assert(c->spec.pool >= 0 && c->spec.pool < TKC_N_POOLS);
    int32_t *left = &c->client->io.bare_400_left[c->spec.pool];
    if (!c->call.err.code) {
        *left += *left < BARE_400_BUDGET;
        return;
    }
    /* By the body's length: a chunked answer has no Content-Length and may well have a body. The
     * budget ends it, because a service that answers every request like this does mean the
     * request. */
    if (c->call.status != 400 || c->call.body.len != 0 || *left == 0)
        return;
    --*left;
    c->call.err = (tinkc_error){ 0 };
    tkc_fail(&c->call.err, TINKC_E_CONNECTION, "HTTP 400 without a body: the connection is stale");
}

static void emit_exchange(inner *c, const reply *r)
{
    char request[300];
    (void)snprintf(request, sizeof request, "%s %s", c->spec.method, c->spec.path);
    tkc_emit(c->client, c->call.f,
             &(tinkc_event){ .kind = TINKC_EVENT_EXCHANGE,
                             .http_status = r->status,
                             .attempt = c->attempts,
                             .elapsed_ms = tkc_now_ms(c->client->clock) - r->begun_ms,
                             .request = request,
                             .text = r->code ? r->message : "" });
}

static bool is_poll(const inner *c)
{
    return c->spec.pool == TINKC_POOL_RETRIEVE || c->spec.pool == TINKC_POOL_FUTURES;
}

/* Fills in call.err, status and body from the reply. */
static void read_outcome(inner *c, reply *r)
{
    tkc_call *call = &c->call;
    call->err = (tinkc_error){ 0 };
    call->status = r->code ? 0 : r->status;
    tinkc_error terminated = { 0 };
    bool whole = !r->code && tkc_buf_terminate(&r->bytes, &terminated);
    call->body = whole ? (tinkc_bytes){ (const unsigned char *)r->bytes.data, r->bytes.len }
                       : (tinkc_bytes){ 0 };
    /* Our own reasons first: after a refused write the transport only says that the exchange
     * ended. */
    if (r->no_memory || tkc_failed(&terminated))
        tkc_fail_memory(&call->err);
    else if (r->body_err.code)
        call->err = r->body_err;
    else if (r->too_large)
        tkc_fail(&call->err, TINKC_E_BAD_RESPONSE, "answer: larger than %lld bytes",
                 (long long)r->max_bytes);
    else if (r->code)
        tkc_fail(&call->err, r->code, "%s", r->message[0] ? r->message : "no answer");
    else if (!is_success(r->status))
        tkc_status_error(&call->err, r->status, call->body,
                         (c->client->transport->flags & TINKC_TRANSPORT_LOCAL) != 0);
    else if (!call->body.len && r->status == 200 && is_poll(c))
        /* A poll's answer always has a body: a server that stops may end one after its head. */
        tkc_fail(&call->err, TINKC_E_CONNECTION, "the connection ended before the answer's body");
    /* Any other status says that the request was refused; these leave open whether it was
     * executed. */
    if (r->code || r->status == 408 || r->status >= 500 || r->too_large || r->no_memory)
        call->may_have_run = true;
    if (call->err.code) {
        call->err.retry_after_ms = (int32_t)asked_delay(c);
        if (!r->code)
            call->err.http_status = r->status;
    }
}

/* A poll that timed out at the service is not a failure: the result is not ready yet. */
static void note_exchange(inner *c)
{
    static const tinkc_error fine;
    bool waits = is_poll(c) && c->call.status == 408;
    tkc_op_exchanged(c->call.f, waits ? &fine : &c->call.err);
}

/* The service announces what will go away. Every answer may say so: the same text is logged once a
 * minute. Other addresses do not speak for the service. */
static void log_deprecation(inner *c)
{
    tinkc_client *client = c->client;
    const char *said = header_of(c->reply, "x-deprecation-note");
    const char *level = header_of(c->reply, "x-deprecation-level");
    char note[sizeof client->io.deprecation.note];
    uint64_t held_back;
    if (!said || c->spec.anonymous)
        return;
    (void)snprintf(note, sizeof note, "%s", said);
    if (!tkc_str_trim(tkc_str(note)).len)
        return;
    if (strcmp(note, client->io.deprecation.note) != 0) {
        memcpy(client->io.deprecation.note, note, sizeof note);
        client->io.deprecation.gate = (tkc_log_gate){ 0 };
    }
    bool grave = level && tkc_str_is_nocase(tkc_str_trim(tkc_str(level)), "error");
    if (tkc_log_gate_pass(&client->io.deprecation.gate, tkc_now_ms(client->clock),
                          DEPRECATION_LOG_MS, &held_back))
        tkc_client_log(client, grave ? TINKC_LOG_ERROR : TINKC_LOG_WARN, "deprecation notice: %s",
                       note);
}

static void attempt_ended(inner *c)
{
    tinkc_client *client = c->client;
    reply *r = c->reply;
    assert(r && c->under_way && !c->finished && !c->finish_posted);
    c->under_way = false;
    emit_exchange(c, r);
    read_outcome(c, r);
    note_exchange(c);
    log_deprecation(c);
    if (!c->call.err.code) {
        apply_pool_rule(c);
        finish_call(c);
        return;
    }
    /* Another attempt would meet the same. */
    bool special = r->too_large || r->no_memory || r->body_err.code;
    int32_t retries =
        c->spec.retries == TKC_RETRIES_DEFAULT ? client->max_retries : c->spec.retries;
    int64_t left = window_left(c); /* attempts do not continue beyond it either */
    if (is_final(c) || left <= 0)
        retries = 0;
    if (!special && !client->no_retries && c->attempt < retries && attempt_retries(c)) {
        int64_t wait = attempt_delay(c);
        c->attempt++;
        sleep_then_retry(c, wait, left);
        return;
    }
    /* After the attempts: what the rule makes of a 400 only the window may repeat. */
    apply_pool_rule(c);
    if (special)
        finish_call(c);
    else
        window_outcome(c);
}

static void reply_arrived(tkc_task *task)
{
    reply *r = TKC_OWNER(task, reply, task);
    tinkc_client *client = r->client;
    inner *c = r->inner;
    assert(tkc_loop_is_current(client->loop) && (!c || c->reply == r));
    if (c)
        attempt_ended(c);
    else
        reply_free(r);
    tkc_client_reply_back(client); /* may end the loop: the last thing */
}

/* ---- one attempt ---- */

static void send_attempt(inner *c, const char *token)
{
    tinkc_client *client = c->client;
    tinkc_error err = { 0 };
    assert(c->started && !c->under_way && !c->finished); /* one attempt at a time */
    /* Not earlier: delays and owners read the headers and the body of the last answer. */
    reply_free(c->reply);
    c->reply = new_reply(c, token, &err);
    if (!c->reply) {
        finish_with(c, &err);
        return;
    }
    c->call.retried = c->attempts > 0;
    c->call.attempts = ++c->attempts;
    c->under_way = true;
    c->reply->begun_ms = tkc_now_ms(client->clock);
    /* Counted before it is sent: it may end on another thread at once, and the client stays
     * until then. */
    atomic_fetch_add(&client->replies, 1);
    client->transport->send(client->transport->self, &c->reply->request, &c->reply->pub);
}

static void token_ready(tkc_token_wait *wait, const char *token, const tinkc_error *err)
{
    inner *c = TKC_OWNER(wait, inner, token);
    if (err)
        finish_with(c, err);
    else
        send_attempt(c, token);
}

static void begin_attempt(inner *c)
{
    const char *token = NULL;
    if (c->spec.anonymous || (c->client->transport->flags & TINKC_TRANSPORT_LOCAL)) {
        send_attempt(c, NULL);
        return;
    }
    c->token.ready = token_ready;
    /* These two come before there is a token: they carry the key itself. */
    c->token.raw = c->spec.pool == TINKC_POOL_CONFIG || c->spec.pool == TINKC_POOL_AUTH;
    if (tkc_auth_token(c->client, &c->token, &token))
        send_attempt(c, token);
}

static void timer_fired(tkc_timer *timer)
{
    begin_attempt(TKC_OWNER(timer, inner, timer));
}

static void client_ready(tkc_ready_wait *wait, const tinkc_error *err)
{
    inner *c = TKC_OWNER(wait, inner, ready);
    /* The window begins when the client is ready: the requests of the start-up have windows of
     * their own. */
    c->begun_ms = tkc_now_ms(c->client->clock);
    if (err)
        finish_with(c, err);
    else
        begin_attempt(c);
}

/* ---- the call itself ---- */

static const char *const *copy_list(tkc_arena *arena, const char *const *list, tinkc_error *err)
{
    size_t n = count_list(list);
    if (!n)
        return NULL;
    const char **copy = tkc_arena_array(arena, n + 1, sizeof *copy, err);
    for (size_t i = 0; copy && i < n; i++)
        copy[i] = tkc_arena_cstr(arena, list[i], err);
    return (const char *const *)copy;
}

static const char *copy_text(tkc_arena *arena, const char *text, tinkc_error *err)
{
    return text ? tkc_arena_cstr(arena, text, err) : NULL;
}

/* The client's own query, if it has one, behind the call's. */
static const char *full_path(tinkc_client *client, const tkc_call_spec *spec, tkc_arena *arena,
                             tinkc_error *err)
{
    if (spec->anonymous || !client->query || !client->query[0])
        return tkc_arena_cstr(arena, spec->path, err);
    return tkc_arena_printf(arena, err, "%s%c%s", spec->path, strchr(spec->path, '?') ? '&' : '?',
                            client->query);
}

static bool fill_call(inner *c, const tkc_call_spec *spec, tinkc_error *err)
{
    tinkc_client *client = c->client;
    c->spec = *spec;
    c->spec.path = full_path(client, spec, &c->arena, err);
    c->spec.base_url = copy_text(&c->arena, spec->base_url, err);
    c->spec.headers = copy_list(&c->arena, spec->headers, err);
    c->spec.content_type = copy_text(&c->arena, spec->content_type, err);
    c->spec.accept = copy_text(&c->arena, spec->accept, err);
    if (spec->parts) {
        c->body = spec->parts;
        tkc_body_keep(c->body);
    } else {
        c->body = tkc_body_new(client->a, err);
    }
    if (c->body && spec->body) {
        tkc_buf *to = tkc_body_bytes(c->body);
        *to = *spec->body;
        tkc_buf_init(spec->body, client->a, spec->body->max);
        tkc_body_close(c->body, err);
    }
    /* One key for the whole operation, not one for each round as in the Python SDK: whichever
     * layer repeats a request, the service can recognise it. */
    char uuid[TKC_UUID_TEXT];
    tkc_uuid4(client->clock, uuid);
    (void)snprintf(c->key, sizeof c->key, "stainless-c-retry-%s", uuid);
    return !tkc_failed(err);
}

tkc_call_spec tkc_call_to(int32_t endpoint)
{
    const tkc_endpoint *e = tkc_endpoint_get(endpoint);
    assert(e);
    return (tkc_call_spec){ .method = e->method,
                            .path = e->path,
                            .pool = e->pool,
                            .need = e->need,
                            .retries = e->retries & TKC_RETRY_ATTEMPTS ? TKC_RETRIES_DEFAULT : 0,
                            .window = (e->retries & TKC_RETRY_WINDOW) != 0,
                            .timeout_ms = e->timeout_ms,
                            .content_type = e->request_encoding == TKC_ENC_PROTOBUF
                                                ? TKC_TYPE_PROTOBUF
                                                : NULL };
}

tkc_call *tkc_call_with(tinkc_client *client, const tkc_call_spec *spec, const tkc_message *type,
                        const void *message, tinkc_error *err)
{
    tkc_call_spec whole = *spec;
    tkc_call *call = NULL;
    tkc_buf body;
    tkc_buf_init(&body, client->a, TKC_BUF_NO_MAX);
    whole.body = &body;
    if (tkc_message_encode(type, message, &body, err))
        call = tkc_call_new(client, &whole, err);
    tkc_buf_free(&body);
    return call;
}

tkc_call *tkc_call_new(tinkc_client *client, const tkc_call_spec *spec, tinkc_error *err)
{
    inner *c = tkc_zalloc(client->a, sizeof *c, err);
    if (!c)
        return NULL;
    c->client = client;
    c->call.inner = c;
    c->timer.fire = timer_fired;
    tkc_arena_init(&c->arena, client->a, 1 << 22);
    if (!fill_call(c, spec, err)) {
        tkc_call_free(&c->call);
        return NULL;
    }
    return &c->call;
}

void tkc_call_start(tkc_call *call)
{
    inner *c = call->inner;
    tinkc_client *client = c->client;
    assert(tkc_loop_is_current(client->loop) && !c->started && call->done);
    c->started = true;
    c->begun_ms = tkc_now_ms(client->clock);
    c->next = client->io.calls;
    if (c->next)
        c->next->prev = c;
    client->io.calls = c;
    c->listed = true;
    /* Like any other end by a task: `done` must not come from inside the start. */
    if (client->io.ended) {
        tinkc_error closed = { 0 };
        tkc_fail(&closed, TINKC_E_CLOSED, "the client was closed");
        finish_with(c, &closed);
        return;
    }
    c->ready.ready = client_ready;
    c->ready.need = c->spec.need;
    if (tkc_client_need(client, &c->ready))
        begin_attempt(c);
}

/* Stops everything that could still come back to this call. */
static void quiesce(inner *c)
{
    tinkc_client *client = c->client;
    tkc_loop_disarm(client->loop, &c->timer);
    tkc_client_need_end(client, &c->ready);
    tkc_auth_token_end(&c->token);
    if (!c->under_way)
        return;
    reply *r = c->reply;
    assert(r && r->inner == c);
    c->reply = NULL;
    c->under_way = false;
    r->inner = NULL;
    /* After this no sink runs any more, so its owner may end. */
    pthread_mutex_lock(&r->lock);
    r->detached = true;
    pthread_mutex_unlock(&r->lock);
    if (client->transport->cancel)
        client->transport->cancel(client->transport->self, &r->pub);
}

static void free_inner(inner *c)
{
    const tinkc_allocator *a = c->client->a;
    reply_free(c->reply);
    tkc_body_drop(c->body);
    tkc_arena_free(&c->arena);
    tkc_release(a, c, sizeof *c);
}

static void run_late_free(tkc_task *task)
{
    free_inner(TKC_OWNER(task, inner, finish_task));
}

void tkc_call_free(tkc_call *call)
{
    if (!call)
        return;
    inner *c = call->inner;
    if (c->started) {
        quiesce(c);
        unlist_call(c);
    }
    c->finished = true;
    if (c->finish_posted) /* its task is on the list: that one frees it */
        c->finish_task.run = run_late_free;
    else
        free_inner(c);
}

void tkc_call_take_body(tkc_call *call, tkc_buf *out)
{
    reply *r = call->inner->reply;
    assert(!out->data); /* it would leak */
    if (!r)
        return;
    *out = r->bytes;
    tkc_buf_init(&r->bytes, r->client->a, TKC_BUF_NO_MAX);
    call->body = (tinkc_bytes){ 0 };
}

bool tkc_call_is_out(const tkc_call *call)
{
    return call && call->inner->attempts > 0 && !call->inner->finished;
}

void tkc_call_no_more(tkc_call *call)
{
    inner *c = call->inner;
    c->last = true;
    if (!c->timer.armed)
        return;
    tkc_loop_disarm(c->client->loop, &c->timer);
    finish_call(c); /* with what the last attempt met */
}

void tkc_call_resume(tkc_call *call)
{
    inner *c = call->inner;
    const tinkc_transport *t = c->client->transport;
    if (c->under_way && t->resume)
        t->resume(t->self, &c->reply->pub);
}

/* Fails every call that is still out; their owners clean up. Thread: I/O. */
void tkc_calls_abort_all(tinkc_client *client)
{
    tinkc_error closed = { 0 };
    tkc_fail(&closed, TINKC_E_CLOSED, "the client was closed");
    /* `done` comes later, by tasks: the list does not change under this loop. */
    for (inner *c = client->io.calls; c; c = c->next) {
        quiesce(c);
        finish_with(c, &closed);
    }
}

/* ---- helpers' work ---- */

static void offload_after(tkc_task *task)
{
    tkc_offload *o = TKC_OWNER(task, tkc_offload, task);
    tinkc_client *client = o->client;
    o->after(o);
    tkc_loop_busy(client->loop, -1);
    tkc_client_reply_back(client); /* may end the loop: the last thing */
}

static void offload_work(tkc_job *job)
{
    tkc_offload *o = TKC_OWNER(job, tkc_offload, job);
    o->work(o);
    tkc_loop_post(o->client->loop, &o->task);
}

void tkc_offload_start(tinkc_client *client, tkc_offload *o)
{
    tinkc_error ignored = { 0 };
    assert(tkc_loop_is_current(client->loop) && o->work && o->after);
    o->client = client;
    o->job.run = offload_work;
    o->task.run = offload_after;
    atomic_fetch_add(&client->replies, 1); /* the client's loop stays until it is back */
    tkc_loop_busy(client->loop, 1);
    tkc_pool *helpers = tkc_client_helpers(client, &ignored);
    if (!helpers || !tkc_pool_submit(helpers, &o->job, &ignored))
        offload_work(&o->job);
}

/* ---- one request, one answer ---- */

typedef struct rest_op {
    tinkc_future f;
    tkc_op_class class; /* made for this call */
    tkc_call *call;
    tkc_decode_fn *decode;
    tkc_offload offload;
    tinkc_error err;
} rest_op;

static void rest_start(tinkc_future *f)
{
    rest_op *op = (rest_op *)f;
    tkc_op_stage(f, TINKC_STAGE_SENDING);
    tkc_call_start(op->call);
}

static void rest_stop(tinkc_future *f, const tinkc_error *why)
{
    rest_op *op = (rest_op *)f;
    if (op->offload.client) { /* a helper is reading the answer: it ends by itself */
        tkc_op_complete(f, why);
        return;
    }
    tinkc_error err = *why;
    if (op->call && op->call->inner->under_way && strcmp(op->call->inner->spec.method, "GET") != 0)
        err.flags |= TINKC_MAY_HAVE_RUN;
    tkc_call_free(op->call);
    op->call = NULL;
    tkc_op_finish(f, &err);
}

static void rest_decode(tkc_offload *o)
{
    rest_op *op = TKC_OWNER(o, rest_op, offload);
    op->decode(&op->f, op->call, &op->err);
}

static void rest_decoded(tkc_offload *o)
{
    rest_op *op = TKC_OWNER(o, rest_op, offload);
    if (op->err.code) {
        op->err.http_status = op->call->status;
        tkc_op_error_body(&op->f, op->call->body);
    }
    tkc_call_free(op->call);
    op->call = NULL;
    tkc_op_finish(&op->f, &op->err);
}

static void rest_done(tkc_call *call)
{
    rest_op *op = call->owner;
    if (call->err.code || !op->decode) {
        tinkc_error err = call->err;
        tkc_op_error_body(&op->f, call->body);
        op->call = NULL;
        tkc_call_free(call);
        tkc_op_finish(&op->f, &err);
        return;
    }
    tkc_op_stage(&op->f, TINKC_STAGE_FETCHING);
    op->offload.work = rest_decode;
    op->offload.after = rest_decoded;
    /* Reading a large answer here would hold up heartbeats and polls; for a small one the way to
     * a helper costs more than the reading. */
    if (call->body.len >= OFFLOAD_BYTES) {
        tkc_offload_start(op->f.client, &op->offload);
    } else {
        rest_decode(&op->offload);
        rest_decoded(&op->offload);
    }
}

static void rest_destroy(tinkc_future *f)
{
    tkc_call_free(((rest_op *)f)->call);
}

tinkc_future *tkc_rest_call(tinkc_client *client, const tkc_rest_class *class,
                            const tkc_call_spec *spec, tkc_decode_fn *decode, tinkc_error *err)
{
    static const tkc_op_class shape = {
        "", "", sizeof(rest_op), rest_start, rest_stop, rest_destroy
    };
    tinkc_error local;
    rest_op *op = NULL;
    if (tkc_enter(&err, &local))
        op = (rest_op *)tkc_op_new(client, &shape, err);
    if (op) {
        op->class = shape;
        op->class.operation = class->operation;
        op->class.kind = class->kind;
        op->f.class = &op->class;
        op->decode = decode;
        op->call = tkc_call_new(client, spec, err);
    }
    /* In any case: callers have nothing to clean up after a failure. */
    if (spec->body)
        tkc_buf_free(spec->body);
    if (!op)
        return NULL;
    if (!op->call) {
        tkc_future_drop(&op->f);
        return NULL;
    }
    op->call->f = &op->f;
    op->call->owner = op;
    op->call->done = rest_done;
    return tkc_op_submit(&op->f);
}
