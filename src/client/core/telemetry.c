/* telemetry.c - a bounded queue of events and the one who sends it.
 *
 * Anybody puts events in, under a lock of its own. The I/O thread takes up to 100 at a time, every
 * ten seconds or at once after an error, and posts them. A batch that fails three times is dropped
 * and counted: a slow or broken endpoint holds only the queue.
 *
 * May touch: the client's clock, loop and calls. Must not: wait, hold a future back, or let a
 * credential through: every text passes tkc_redact before it is queued.
 */
#include "client/core/telemetry.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "client/call/call.h"
#include "client/core/client_priv.h"
#include "base/json_read.h"
#include "base/json_write.h"
#include "base/str.h"
#include "wire/messages.h"

/* The Python SDK's numbers, but for the limits in bytes and the attempts: it repeats a batch for
 * ever. */
enum {
    BATCH = 100,
    QUEUE_MAX = 10000,
    QUEUE_BYTES_MAX = 8 * 1024 * 1024,
    EVENT_BYTES_MAX = 64 * 1024,
    PERIOD_MS = 10 * 1000,
    RETRY_MS = 1000,
    ATTEMPTS = 3,
    SAY_AGAIN_MS = 60 * 1000
};

/* One event, encoded. */
typedef struct node node;
struct node {
    node *next;
    size_t len;
    char json[];
};

struct tkc_telemetry {
    tinkc_client *client;
    char own_id[16 + TKC_UUID_TEXT]; /* "sessionless-...", until there is a session */

    /* Any thread, lock held. Only the loop's own lock is taken inside it. */
    struct {
        pthread_mutex_t lock;
        node *first, **last;
        size_t n, bytes;
        int64_t index;    /* of the next event */
        uint64_t dropped; /* events that found no room or no taker */
        bool flush_posted, flush_now, ended;
        tkc_log_gate full_gate; /* one warning a minute about those */
    } shared;
    tkc_task flush_task;

    /* The I/O thread only. */
    struct {
        tkc_timer timer;
        tkc_call *call;
        tkc_buf batch; /* being sent; kept for the next attempt */
        size_t n_batch;
        int32_t attempt;
        const char *session_id; /* the client's; NULL = none */
        int64_t session_us;
        bool end_queued, closing;
        void (*done)(void *arg);
        void *done_arg;
        tkc_log_gate gate;
    } io;
};

/* ---- who we are ---- */

/* One for the process, another in a forked child. */
static void process_uuid(const tinkc_clock *clock, char out[TKC_UUID_TEXT])
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char uuid[TKC_UUID_TEXT];
    static pid_t owner;
    pthread_mutex_lock(&lock);
    if (owner != getpid()) {
        owner = getpid();
        tkc_uuid4(clock, uuid);
    }
    memcpy(out, uuid, sizeof uuid);
    pthread_mutex_unlock(&lock);
}

/* ---- the queue ---- */

static void post_flush(tkc_telemetry *t, bool now);

static node *new_node(tinkc_client *client, const tkc_telemetry_event *event)
{
    tinkc_error err = { 0 };
    tkc_buf json;
    node *n = NULL;
    tkc_buf_init(&json, client->a, EVENT_BYTES_MAX);
    if (tkc_message_encode(&tkc_telemetry_event_type, event, &json, &err))
        n = tkc_alloc(client->a, sizeof *n + json.len, &err);
    if (n) {
        n->next = NULL;
        n->len = json.len;
        memcpy(n->json, json.data, json.len);
        tkc_redact(n->json, n->len);
    }
    tkc_buf_free(&json);
    return n;
}

static void free_node(tinkc_client *client, node *n)
{
    tkc_release(client->a, n, sizeof *n + n->len);
}

/* False = it was dropped. */
static bool enqueue(tkc_telemetry *t, tkc_telemetry_event *event, bool flush)
{
    char id[TKC_UUID_TEXT];
    tinkc_client *client = t->client;
    tkc_uuid4(client->clock, id);
    event->event_id = id;
    event->timestamp = (tkc_time){ .us = tkc_wall_us(client->clock) };
    pthread_mutex_lock(&t->shared.lock);
    event->event_session_index = t->shared.index++;
    pthread_mutex_unlock(&t->shared.lock);
    /* Encoded without the lock: others queue meanwhile. */
    node *n = new_node(client, event);
    pthread_mutex_lock(&t->shared.lock);
    bool room = n && !t->shared.ended && t->shared.n < QUEUE_MAX &&
                t->shared.bytes + n->len <= QUEUE_BYTES_MAX;
    if (room) {
        *t->shared.last = n;
        t->shared.last = &n->next;
        t->shared.n++;
        t->shared.bytes += n->len;
    }
    uint64_t dropped = room ? 0 : ++t->shared.dropped, held_back;
    bool say = !room && !t->shared.ended &&
               tkc_log_gate_pass(&t->shared.full_gate, tkc_now_ms(client->clock), SAY_AGAIN_MS,
                                 &held_back);
    pthread_mutex_unlock(&t->shared.lock);
    if (say)
        tkc_client_log(client, TINKC_LOG_WARN,
                       "telemetry: no room for an event; %llu events dropped so far",
                       (unsigned long long)dropped);
    if (!room) {
        if (n)
            free_node(client, n);
        return false;
    }
    post_flush(t, flush);
    return true;
}

static int32_t severity_of(int32_t level)
{
    switch (level) {
    case TINKC_LOG_ERROR:
        return TKC_ERROR;
    case TINKC_LOG_WARN:
        return TKC_WARNING;
    case TINKC_LOG_DEBUG:
        return TKC_DEBUG;
    default:
        return TKC_INFO;
    }
}

/* ---- sending ---- */

static void send_batch(tkc_telemetry *t);

static void say_done(tkc_telemetry *t)
{
    void (*done)(void *) = t->io.done;
    t->io.done = NULL;
    if (done)
        done(t->io.done_arg);
}

/* Takes up to a hundred events into io.batch as a whole request. False = the queue is empty. */
static bool take_batch(tkc_telemetry *t, tinkc_error *err)
{
    char uuid[TKC_UUID_TEXT];
    tinkc_client *client = t->client;
    tkc_jsonw w;
    size_t n = 0;
    pthread_mutex_lock(&t->shared.lock);
    node *first = t->shared.first, *end = first;
    for (; end && n < BATCH; end = end->next) {
        t->shared.bytes -= end->len;
        n++;
    }
    t->shared.first = end;
    t->shared.n -= n;
    if (!end)
        t->shared.last = &t->shared.first;
    pthread_mutex_unlock(&t->shared.lock);
    if (!n)
        return false;
    process_uuid(client->clock, uuid);
    tkc_buf_clear(&t->io.batch);
    tkc_jsonw_open(&w, &t->io.batch, err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "events");
    tkc_jsonw_array(&w);
    for (node *at = first, *next; at != end; at = next) {
        next = at->next;
        tkc_jsonw_raw(&w, tkc_strn(at->json, at->len));
        free_node(client, at);
    }
    tkc_jsonw_end(&w);
    tkc_jsonw_key(&w, "platform");
    tkc_jsonw_cstr(&w, "Linux");
    tkc_jsonw_key(&w, "sdk_version");
    tkc_jsonw_cstr(&w, TINKC_TINKER_VERSION);
    tkc_jsonw_key(&w, "session_id");
    tkc_jsonw_cstr(&w, t->io.session_id ? t->io.session_id : t->own_id);
    tkc_jsonw_key(&w, "process_uuid");
    tkc_jsonw_cstr(&w, uuid);
    tkc_jsonw_end(&w);
    t->io.n_batch = n;
    t->io.attempt = 0;
    return true;
}

static void drop_batch(tkc_telemetry *t, const char *why)
{
    uint64_t held_back;
    pthread_mutex_lock(&t->shared.lock);
    t->shared.dropped += t->io.n_batch;
    uint64_t dropped = t->shared.dropped;
    pthread_mutex_unlock(&t->shared.lock);
    t->io.n_batch = 0;
    if (tkc_log_gate_pass(&t->io.gate, tkc_now_ms(t->client->clock), SAY_AGAIN_MS, &held_back))
        tkc_client_log(t->client, TINKC_LOG_WARN,
                       "telemetry could not be sent (%s); %llu events dropped so far", why,
                       (unsigned long long)dropped);
}

/* The next step: the current batch again, another one, or nothing. */
static void send_next(tkc_telemetry *t)
{
    tinkc_error err = { 0 };
    if (t->io.call || t->io.timer.armed)
        return;
    if (t->io.n_batch || take_batch(t, &err)) {
        if (tkc_failed(&err)) {
            drop_batch(t, err.message);
            say_done(t);
            return;
        }
        send_batch(t);
        return;
    }
    if (t->io.closing)
        say_done(t);
}

static void batch_answered(tkc_call *call)
{
    tkc_telemetry *t = call->owner;
    tinkc_error err = call->err;
    tkc_call_free(call);
    t->io.call = NULL;
    if (!err.code) {
        t->io.n_batch = 0;
        send_next(t);
    } else if (++t->io.attempt < ATTEMPTS && !t->client->no_retries) {
        tkc_loop_arm(t->client->loop, &t->io.timer, RETRY_MS);
    } else {
        drop_batch(t, err.message);
        send_next(t);
    }
}

static void send_batch(tkc_telemetry *t)
{
    tinkc_error err = { 0 };
    tkc_buf body;
    tkc_buf_init(&body, t->client->a, TKC_BUF_NO_MAX);
    /* A copy: the batch stays for the next attempt. */
    tkc_buf_str(&body, tkc_buf_view(&t->io.batch), &err);
    tkc_call *call = NULL;
    tkc_call_spec spec = tkc_call_to(TKC_EP_TELEMETRY);
    spec.body = &body;
    if (!tkc_failed(&err))
        call = tkc_call_new(t->client, &spec, &err);
    tkc_buf_free(&body);
    if (!call) {
        drop_batch(t, err.message);
        say_done(t);
        return;
    }
    call->owner = t;
    call->done = batch_answered;
    t->io.call = call;
    tkc_call_start(call);
}

static void on_timer(tkc_timer *timer)
{
    send_next(TKC_OWNER(timer, tkc_telemetry, io.timer));
}

/* Something was queued: the timer runs from the first event on, errors go at once. A batch that
 * waits for its next attempt keeps its time. */
static void on_flush(tkc_task *task)
{
    tkc_telemetry *t = TKC_OWNER(task, tkc_telemetry, flush_task);
    pthread_mutex_lock(&t->shared.lock);
    bool now = t->shared.flush_now, ended = t->shared.ended;
    t->shared.flush_posted = t->shared.flush_now = false;
    pthread_mutex_unlock(&t->shared.lock);
    if (ended || t->io.n_batch) /* n_batch: also while a call is out */
        return;
    if (now) {
        tkc_loop_disarm(t->client->loop, &t->io.timer);
        send_next(t);
    } else if (!t->io.timer.armed) {
        tkc_loop_arm(t->client->loop, &t->io.timer, PERIOD_MS);
    }
}

static void post_flush(tkc_telemetry *t, bool now)
{
    pthread_mutex_lock(&t->shared.lock);
    bool post = !t->shared.flush_posted && !t->shared.ended;
    t->shared.flush_posted = t->shared.flush_posted || post;
    t->shared.flush_now = t->shared.flush_now || now;
    /* With the lock held: once `ended` is set nothing is posted any more. */
    if (post)
        tkc_loop_post(t->client->loop, &t->flush_task);
    pthread_mutex_unlock(&t->shared.lock);
}

/* ---- events ---- */

bool tkc_telemetry_note(tinkc_client *client, const char *name, tinkc_str data_json,
                        int32_t severity)
{
    if (!client->telemetry)
        return false;
    tkc_telemetry_event event = { .event = { .value = TKC_EVENT_GENERIC },
                                  .severity = { .value = severity_of(severity) },
                                  .event_name = name,
                                  .event_data = data_json.len ? data_json : tkc_str("{}") };
    return enqueue(client->telemetry, &event, false);
}

void tkc_telemetry_session(tinkc_client *client, const char *session_id)
{
    tkc_telemetry *t = client->telemetry;
    if (!t || t->io.session_id)
        return;
    t->io.session_id = session_id;
    t->io.session_us = tkc_wall_us(client->clock);
    tkc_telemetry_event event = { .event = { .value = TKC_EVENT_SESSION_START },
                                  .severity = { .value = TKC_INFO } };
    enqueue(t, &event, false);
}

/* As Python writes a timedelta: "0:00:07.094560", "1 day, 2:03:04". */
static void format_duration(int64_t us, char out[64])
{
    int64_t s = us > 0 ? us / 1000000 : 0, days = s / 86400, rest = us > 0 ? us % 1000000 : 0;
    char day_text[32] = "", fraction[16] = "";
    if (days)
        snprintf(day_text, sizeof day_text, "%lld day%s, ", (long long)days, days == 1 ? "" : "s");
    if (rest)
        snprintf(fraction, sizeof fraction, ".%06d", (int)rest);
    snprintf(out, 64, "%s%d:%02d:%02d%s", day_text, (int)(s % 86400 / 3600), (int)(s % 3600 / 60),
             (int)(s % 60), fraction);
}

/* Once, at the close; the Python SDK sends one after each fatal exception. */
static void queue_session_end(tkc_telemetry *t)
{
    char duration[64];
    if (!t->io.session_id || t->io.end_queued)
        return;
    t->io.end_queued = true;
    format_duration(tkc_wall_us(t->client->clock) - t->io.session_us, duration);
    tkc_telemetry_event event = { .event = { .value = TKC_EVENT_SESSION_END },
                                  .severity = { .value = TKC_INFO },
                                  .duration = duration };
    enqueue(t, &event, false);
}

/* Ended by the user, or the same failure once more: not worth reporting. */
static bool is_worth_telling(const tinkc_error *err)
{
    switch (err->code) {
    case TINKC_OK:
    case TINKC_E_CANCELLED:
    case TINKC_E_CLOSED:
    case TINKC_E_TIMEOUT:
    case TINKC_E_THREAD:
    case TINKC_E_FORKED:
        return false;
    default:
        return true;
    }
}

static void queue_user_error(tkc_telemetry *t, const char *operation, const tinkc_error *err,
                             tinkc_bytes body)
{
    tinkc_error failed = { 0 };
    tkc_buf data;
    tkc_jsonw w;
    tkc_buf_init(&data, t->client->a, EVENT_BYTES_MAX);
    tkc_jsonw_open(&w, &data, &failed);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "error_type");
    tkc_jsonw_cstr(&w, tinkc_code_name(err->code));
    tkc_jsonw_key(&w, "operation");
    tkc_jsonw_cstr(&w, operation);
    if (err->message[0]) {
        tkc_jsonw_key(&w, "message");
        tkc_jsonw_cstr(&w, err->message);
    }
    if (err->http_status) {
        tkc_jsonw_key(&w, "status_code");
        tkc_jsonw_i64(&w, err->http_status);
    }
    if (body.len && body.len <= 4096) {
        tkc_jsonw_key(&w, "body");
        tkc_jsonw_str(&w, tkc_strn((const char *)body.data, body.len));
    }
    tkc_jsonw_end(&w);
    if (!tkc_failed(&failed)) {
        tkc_telemetry_event event = { .event = { .value = TKC_EVENT_GENERIC },
                                      .severity = { .value = TKC_WARNING },
                                      .event_name = "user_error",
                                      .event_data = tkc_buf_view(&data) };
        enqueue(t, &event, true);
    }
    tkc_buf_free(&data);
}

void tkc_telemetry_failure(tinkc_client *client, const char *operation, const tinkc_error *err,
                           tinkc_bytes body)
{
    tkc_telemetry *t = client->telemetry;
    if (!t || !is_worth_telling(err))
        return;
    if (err->flags & TINKC_USER_ERROR) {
        queue_user_error(t, operation, err, body);
        return;
    }
    tkc_telemetry_event event = { .event = { .value = TKC_EVENT_EXCEPTION },
                                  .severity = { .value = TKC_ERROR },
                                  .error_type = tinkc_code_name(err->code),
                                  .error_message = err->message,
                                  .traceback = operation };
    enqueue(t, &event, true);
}

void tkc_report_call_failure(tinkc_client *client, const char *path, const tinkc_error *err,
                             int32_t attempt, int64_t begun_ms, bool retryable)
{
    tinkc_error failed = { 0 };
    tkc_buf data;
    tkc_jsonw w;
    tkc_telemetry *t = client->telemetry;
    if (!t || !is_worth_telling(err))
        return;
    bool user_error = (err->flags & TINKC_USER_ERROR) != 0;
    tkc_buf_init(&data, client->a, EVENT_BYTES_MAX);
    tkc_jsonw_open(&w, &data, &failed);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "func");
    tkc_jsonw_str(&w, tkc_strn(path, strcspn(path, "?"))); /* no query: ids and no more */
    tkc_jsonw_key(&w, "exception");
    tkc_jsonw_cstr(&w, err->message);
    tkc_jsonw_key(&w, "exception_type");
    tkc_jsonw_cstr(&w, tinkc_code_name(err->code));
    if (err->http_status) {
        tkc_jsonw_key(&w, "status_code");
        tkc_jsonw_i64(&w, err->http_status);
    }
    tkc_jsonw_key(&w, "is_retryable");
    tkc_jsonw_bool(&w, retryable);
    tkc_jsonw_key(&w, "is_user_error");
    tkc_jsonw_bool(&w, user_error);
    tkc_jsonw_key(&w, "attempt_count");
    tkc_jsonw_i64(&w, attempt);
    tkc_jsonw_key(&w, "elapsed_time");
    tkc_jsonw_double(&w, (double)(tkc_now_ms(client->clock) - begun_ms) / 1000.0);
    tkc_jsonw_end(&w);
    if (!tkc_failed(&failed))
        tkc_telemetry_note(client, "InternalClientHolder.execute_with_retries.exception",
                           tkc_buf_view(&data),
                           retryable || user_error ? TINKC_LOG_WARN : TINKC_LOG_ERROR);
    tkc_buf_free(&data);
}

/* An object and nothing else, well-formed. */
static bool is_json_object(tinkc_client *client, const char *text, tinkc_error *err)
{
    tkc_arena arena;
    tkc_json j;
    tkc_arena_init(&arena, client->a, 1 << 20);
    tkc_json_open(&j, tkc_str(text), &arena, err);
    j.code = TINKC_E_ARGUMENT;
    if (tkc_json_peek(&j) != TKC_JSON_OBJECT)
        tkc_fail(err, TINKC_E_ARGUMENT, "data_json is not a JSON object");
    else
        tkc_json_skip(&j);
    tkc_json_close(&j);
    tkc_arena_free(&arena);
    return !tkc_failed(err);
}

bool tinkc_client_report(tinkc_client *client, const char *event_name, const char *data_json,
                         int32_t severity, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_client_check_open(client, err))
        return false;
    if (!event_name || !*event_name)
        return tkc_fail(err, TINKC_E_ARGUMENT, "event_name is empty");
    if (severity < TINKC_LOG_DEFAULT || severity > TINKC_LOG_DEBUG)
        return tkc_fail(err, TINKC_E_ARGUMENT, "severity %d is not a TINKC_LOG_* value", severity);
    if (data_json && !is_json_object(client, data_json, err))
        return false;
    return tkc_telemetry_note(client, event_name, tkc_str(data_json), severity);
}

/* ---- life ---- */

tkc_telemetry *tkc_telemetry_new(tinkc_client *client, tinkc_error *err)
{
    char uuid[TKC_UUID_TEXT];
    tkc_telemetry *t = tkc_zalloc(client->a, sizeof *t, err);
    if (!t)
        return NULL;
    t->client = client;
    t->shared.last = &t->shared.first;
    t->flush_task.run = on_flush;
    t->io.timer.fire = on_timer;
    pthread_mutex_init(&t->shared.lock, NULL);
    tkc_buf_init(&t->io.batch, client->a, TKC_BUF_NO_MAX);
    tkc_uuid4(client->clock, uuid);
    snprintf(t->own_id, sizeof t->own_id, "sessionless-%s", uuid);
    return t;
}

void tkc_telemetry_close(tinkc_client *client, void (*done)(void *arg), void *arg)
{
    tkc_telemetry *t = client->telemetry;
    if (!t) {
        done(arg);
        return;
    }
    t->io.done = done;
    t->io.done_arg = arg;
    t->io.closing = true;
    queue_session_end(t);
    if (!t->io.n_batch)
        tkc_loop_disarm(client->loop, &t->io.timer);
    send_next(t);
}

void tkc_telemetry_abort(tinkc_client *client)
{
    tkc_telemetry *t = client->telemetry;
    if (!t)
        return;
    /* From now on nobody posts flush_task: the loop may be about to stop. */
    pthread_mutex_lock(&t->shared.lock);
    t->shared.ended = true;
    pthread_mutex_unlock(&t->shared.lock);
    tkc_loop_disarm(client->loop, &t->io.timer);
    tkc_call_free(t->io.call);
    say_done(t);
}

void tkc_telemetry_free(tkc_telemetry *t)
{
    if (!t)
        return;
    tinkc_client *client = t->client;
    for (node *n = t->shared.first, *next; n; n = next) {
        next = n->next;
        free_node(client, n);
    }
    tkc_buf_free(&t->io.batch);
    pthread_mutex_destroy(&t->shared.lock);
    tkc_release(client->a, t, sizeof *t);
}
