/* client.c - the client's life: made, used by many, closed or freed.
 *
 * Two ways to end. tinkc_client_close completes everything that runs and stops the I/O thread while
 * handles still exist. Letting go of the last handle, future, trainer or sampler ends the client
 * without a word. Both wait for the transport to hand back every answer it still owes, because
 * the request's memory is lent to it.
 *
 * May touch: everything of the client. Lock order: client.lock, then the loop's.
 */
#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "client/core/auth.h"
#include "client/core/startup.h"
#include "client/sample/cancel.h"
#include "client/core/client_priv.h"
#include "client/core/departed.h"
#include "client/core/options.h"
#include "client/core/telemetry.h"
#include "client/core/tokenizer_fetch.h"
#include "base/str.h"

enum { N_HELPERS = 2, END_PATIENCE_MS = 5000, BARE_400_BUDGET = 16 };

/* ---- checks ---- */

/* Asked at every entry: a forked child has a copy of the memory, but no threads, and perhaps
 * locks that nobody will ever give back. */
bool tkc_client_forked(const tinkc_client *client)
{
    return getpid() != client->pid;
}

bool tkc_client_check(tinkc_client *client, tinkc_error *err)
{
    if (!client)
        return tkc_fail(err, TINKC_E_ARGUMENT, "client: must not be NULL");
    if (tkc_client_forked(client))
        return tkc_fail(err, TINKC_E_FORKED, "the client belongs to the parent process");
    return true;
}

bool tkc_client_check_open(tinkc_client *client, tinkc_error *err)
{
    if (!tkc_client_check(client, err))
        return false;
    pthread_mutex_lock(&client->shared.lock);
    bool closed = client->shared.closed;
    pthread_mutex_unlock(&client->shared.lock);
    return !closed || tkc_fail(err, TINKC_E_CLOSED, "the client was closed");
}

bool tkc_client_check_waits(tinkc_client *client, tinkc_error *err)
{
    if (!tkc_loop_is_current(client->loop))
        return true;
    return tkc_fail(err, TINKC_E_THREAD, "a call that waits was made on the client's own thread");
}

void tkc_client_log(tinkc_client *client, int32_t level, const char *format, ...)
{
    if (!client->log.fn || level > client->log.level)
        return;
    char line[1024];
    va_list args;
    va_start(args, format);
    tinkc_error text = { 0 };
    tkc_vfail(&text, TINKC_E_STATE, format, args); /* formats, cuts at a character's edge */
    va_end(args);
    memcpy(line, text.message, sizeof text.message);
    tkc_log_line(&client->log, level, "%s", line);
}

void tkc_uuid4(const tinkc_clock *clock, char out[TKC_UUID_TEXT])
{
    static const char hex[] = "0123456789abcdef";
    uint64_t r[2] = { tkc_random(clock), tkc_random(clock) };
    r[0] = (r[0] & ~(uint64_t)0xF000) | 0x4000;
    r[1] = (r[1] & ~((uint64_t)3 << 62)) | (uint64_t)2 << 62;
    char *at = out;
    for (size_t i = 0; i < 32; i++) {
        if (i == 8 || i == 12 || i == 16 || i == 20)
            *at++ = '-';
        *at++ = hex[r[i / 16] >> (60 - 4 * (i % 16)) & 15];
    }
    *at = '\0';
}

tkc_pool *tkc_client_helpers(tinkc_client *client, tinkc_error *err)
{
    pthread_mutex_lock(&client->shared.lock);
    if (!client->shared.helpers)
        client->shared.helpers = tkc_pool_new(client->a, N_HELPERS, "tinkc-help", err);
    tkc_pool *helpers = client->shared.helpers;
    pthread_mutex_unlock(&client->shared.lock);
    return helpers;
}

/* ---- making one ---- */

static void run_close(tkc_task *task);
static void run_end(tkc_task *task);
static void run_freed(tkc_task *task);
static void close_late(tkc_timer *timer);
static void free_client(void *arg);

static bool init_locks(tinkc_client *client, tinkc_error *err)
{
    if (!tkc_cond_init(&client->shared.cond, err))
        return false;
    pthread_mutex_init(&client->shared.lock, NULL);
    pthread_mutex_init(&client->budget_lock, NULL);
    return true;
}

static void init_io(tinkc_client *client)
{
    for (size_t i = 0; i < TKC_N_POOLS; i++)
        client->io.bare_400_left[i] = BARE_400_BUDGET;
    client->io.billing_first_ms = client->io.billing_logged_ms = INT64_MIN;
    tkc_arena_init(&client->io.flag_texts, client->a, 0);
    /* Defaults before anything is asked: a 402 during the start-up needs the limits of its
     * pause. */
    tkc_message_init(&tkc_config_response_type, &client->io.flags);
    tkc_budget_init(&client->io.fwdbwd_bytes, &client->budget_lock,
                    client->io.flags.fwdbwd_dispatch_bytes_semaphore_size, false);
    client->close_task.run = run_close;
    client->end_task.run = run_end;
    client->freed_task.run = run_freed;
    client->close_timer.fire = close_late;
}

/* A snapshot of another account or of another make is as good as none. */
static bool use_snapshot(tinkc_client *client, const char *text, tinkc_error *err)
{
    tkc_saved saved;
    tinkc_error bad = { 0 };
    if (!text || !text[0])
        return true;
    if (!tkc_saved_read(text, "snapshot", &client->texts, &saved, &bad)) {
        tkc_error_copy(err, &bad);
        return false;
    }
    /* The upper 53 bits of the key: a reader of JSON keeps no more of a number. */
    if (!tkc_cstr_eq(saved.base_url, client->base_url) ||
        saved.account != client->limits->key[0] >> 11 || !saved.config.len)
        return true;
    if (!tkc_boot_seed(client->io.boot, saved.config, saved.refresh_interval_s, NULL, &bad)) {
        if (bad.code == TINKC_E_MEMORY)
            return tkc_fail_memory(err);
        return true;
    }
    if (saved.jwt)
        tkc_auth_seed(client->io.auth, saved.jwt);
    return true;
}

static bool make_transport(tinkc_client *client, const tinkc_client_options *o, tinkc_error *err)
{
    if (o->transport) {
        client->transport = o->transport;
        if (o->transport->acquire)
            o->transport->acquire(o->transport->self);
        return true;
    }
    tkc_http_options http = { .base_url = client->base_url,
                              .unix_socket = o->unix_socket,
                              .proxy = o->proxy,
                              .ca_file = o->ca_file,
                              .max_connections = o->max_connections,
                              .log = &client->log };
    client->http = tkc_http_new(client->a, client->loop, &http, err);
    client->transport = client->http ? tkc_http_transport(client->http) : NULL;
    return client->http != NULL;
}

/* Everything but the first allocation; what it has made is freed by free_client. */
static bool build(tinkc_client *client, const tinkc_client_options *o, tinkc_error *err)
{
    if (!tkc_options_apply(client, o, err))
        return false;
    const char *credential = client->api_key ? client->api_key : client->credential_cmd;
    client->limits = tkc_limits_get(client->origin, credential, o->transport || o->clock, err);
    client->io.auth = client->limits ? tkc_auth_new(client, !o->transport, err) : NULL;
    client->io.boot = client->io.auth ? tkc_boot_new(client, err) : NULL;
    if (!client->io.boot || !use_snapshot(client, o->snapshot, err))
        return false;
    client->loop = tkc_loop_new(client->a, client->clock, err);
    if (!client->loop || !make_transport(client, o, err))
        return false;
    if (client->telemetry_on)
        client->telemetry = tkc_telemetry_new(client, err);
    client->tokenizers = tkc_tokenizers_new(client, o, err);
    return !tkc_failed(err);
}

tinkc_client *tkc_client_make(const tinkc_client_options *options, bool imported, tinkc_error *err)
{
    static const tinkc_client_options none;
    const tinkc_client_options *o = options ? options : &none;
    const tinkc_allocator *a = o->allocator;
    tinkc_client *client = tkc_options_check(o, err) ? tkc_zalloc(a, sizeof *client, err) : NULL;
    if (!client)
        return NULL;
    tkc_departed_watch();
    client->a = a;
    client->pid = getpid();
    client->clock = o->clock ? o->clock : tkc_clock_real();
    client->imported = imported;
    tkc_ref_init(&client->refs);
    atomic_init(&client->replies, 0);
    tkc_arena_init(&client->texts, a, 0);
    if (!init_locks(client, err)) {
        tkc_release(a, client, sizeof *client);
        return NULL;
    }
    init_io(client);
    if (build(client, o, err))
        return client;
    tkc_client_drop(client);
    return NULL;
}

tinkc_client *tinkc_client_new(const tinkc_client_options *options, tinkc_error *err)
{
    tinkc_error local;
    return tkc_enter(&err, &local) ? tkc_client_make(options, false, err) : NULL;
}

/* ---- ending one ---- */

static void free_client(void *arg)
{
    tinkc_client *client = arg;
    assert(!client->io.ops && !client->io.calls && client->shared.running == 0);
    assert(atomic_load(&client->replies) == 0); /* they lend their requests from here */
    /* First: the helpers may use anything of what follows. */
    tkc_pool_free(client->shared.helpers);
    tkc_telemetry_free(client->telemetry);
    tkc_tokenizers_free(client->tokenizers);
    if (client->http)
        tkc_http_free(client->http);
    else if (client->transport && client->transport->release)
        client->transport->release(client->transport->self);
    tkc_boot_free(client->io.boot);
    tkc_auth_free(client->io.auth);
    tkc_limits_drop(client->limits);
    tkc_arena_free(&client->io.flag_texts);
    tkc_arena_free(&client->texts);
    pthread_mutex_destroy(&client->budget_lock);
    pthread_mutex_destroy(&client->shared.lock);
    pthread_cond_destroy(&client->shared.cond);
    tkc_release(client->a, client, sizeof *client);
    tkc_departed_ended();
}

/* Once ended, the loop stops when the transport owes nothing more. Thread: I/O. */
static void stop_if_drained(tinkc_client *client)
{
    if (client->io.ended && atomic_load(&client->replies) == 0)
        tkc_loop_stop(client->loop);
}

void tkc_client_reply_back(tinkc_client *client)
{
    int64_t owed = (int64_t)atomic_fetch_sub(&client->replies, 1);
    assert(owed > 0);
    (void)owed;
    stop_if_drained(client);
}

/* Releases everything at once. Thread: I/O. Idempotent. */
static void end_io(tinkc_client *client)
{
    assert(tkc_loop_is_current(client->loop));
    if (client->io.ended)
        return;
    client->io.ended = true;
    tkc_loop_disarm(client->loop, &client->close_timer);
    /* First: operations end the calls and timers that they have. What is left belongs to nobody
     * else. */
    tkc_ops_stop_all(client, TINKC_E_CLOSED, "the client was closed");
    assert(!client->io.ops); /* each of them has completed */
    tkc_telemetry_abort(client);
    tkc_cancels_end(client);
    tkc_boot_stop(client->io.boot);
    tkc_auth_stop(client->io.auth);
    tkc_calls_abort_all(client);
    pthread_mutex_lock(&client->shared.lock);
    /* From here on tkc_client_hand_over runs tasks itself: nobody else will. */
    client->shared.close_done = true;
    pthread_cond_broadcast(&client->shared.cond);
    pthread_mutex_unlock(&client->shared.lock);
    stop_if_drained(client);
}

static void run_end(tkc_task *task)
{
    end_io(TKC_OWNER(task, tinkc_client, end_task));
}

/* Any thread. The client takes no new work; what runs ends on the I/O thread, then that thread. */
static void post_end(tinkc_client *client)
{
    pthread_mutex_lock(&client->shared.lock);
    /* Before the end is posted: what is submitted later is refused, so no start comes behind the
     * end. */
    client->shared.closed = true;
    bool gone = client->shared.close_done || client->shared.ending;
    client->shared.ending = true;
    pthread_mutex_unlock(&client->shared.lock);
    if (!gone)
        tkc_loop_post(client->loop, &client->end_task);
}

void tkc_client_keep(tinkc_client *client)
{
    tkc_ref_keep(&client->refs);
}

void tkc_client_drop(tinkc_client *client)
{
    if (!tkc_ref_drop(&client->refs))
        return;
    tkc_departed_ending(client);
    if (!client->loop) {
        free_client(client);
        return;
    }
    if (!client->transport) { /* half made: nothing can be under way */
        tkc_loop_stop(client->loop);
        while (!tkc_loop_join(client->loop, END_PATIENCE_MS))
            ;
        free_client(client);
        return;
    }
    bool inside = tkc_loop_is_current(client->loop);
    if (inside)
        tkc_loop_abandon(client->loop, free_client, client);
    post_end(client);
    if (inside)
        return;
    /* A transport that is slow to hand its answers back must not hold the caller: the thread is
     * then left alone and frees the client as its last act. */
    if (tkc_loop_join(client->loop, END_PATIENCE_MS))
        free_client(client);
    else
        tkc_loop_abandon(client->loop, free_client, client);
}

void tkc_client_end_now(tinkc_client *client)
{
    post_end(client);
    if (!tkc_loop_is_current(client->loop))
        (void)tkc_loop_await(client->loop, END_PATIENCE_MS);
}

static void run_freed(tkc_task *task)
{
    tinkc_client *client = TKC_OWNER(task, tinkc_client, freed_task);
    pthread_mutex_lock(&client->shared.lock);
    bool late = client->shared.freed_late;
    client->shared.freed_seen = true;
    pthread_cond_broadcast(&client->shared.cond);
    pthread_mutex_unlock(&client->shared.lock);
    if (late)
        tkc_client_drop(client);
}

/* Waits until the I/O thread has done what it was given so far. What is complete or cancelled then no longer holds the
 * client. False: it takes too long, and that thread drops the handle's reference. */
static bool catch_up(tinkc_client *client)
{
    /* This thread cannot wait for itself. */
    if (tkc_loop_is_current(client->loop))
        return true;
    int64_t deadline = tkc_deadline_ns(END_PATIENCE_MS);
    pthread_mutex_lock(&client->shared.lock);
    bool waits = !client->shared.close_done; /* else it has nothing left to do */
    if (waits)
        tkc_loop_post(client->loop, &client->freed_task);
    while (waits && !client->shared.freed_seen &&
           tkc_cond_wait_until(&client->shared.cond, &client->shared.lock, deadline))
        ;
    bool late = waits && !client->shared.freed_seen;
    client->shared.freed_late = late;
    pthread_mutex_unlock(&client->shared.lock);
    return !late;
}

void tinkc_client_free(tinkc_client *client)
{
    /* In a forked child locks may be held by threads that do not exist there. */
    if (!client || tkc_client_forked(client))
        return;
    tkc_departed_add(client);
    if (catch_up(client))
        tkc_client_drop(client);
}

/* ---- closing ---- */

static void telemetry_sent(void *arg)
{
    end_io(arg);
}

static void close_late(tkc_timer *timer)
{
    end_io(TKC_OWNER(timer, tinkc_client, close_timer));
}

/* Everything that runs ends now; then telemetry has what is left of the time. Thread: I/O. */
static void run_close(tkc_task *task)
{
    tinkc_client *client = TKC_OWNER(task, tinkc_client, close_task);
    if (client->io.ended)
        return;
    tkc_ops_stop_all(client, TINKC_E_CLOSED, "the client was closed");
    tkc_telemetry_close(client, telemetry_sent, client);
}

/* Waits for `running` to become 0 or for close_done, whichever is asked for. Needs the lock. */
static bool await_close(tinkc_client *client, bool done, int64_t deadline_ns)
{
    while (done ? !client->shared.close_done : client->shared.running > 0)
        if (!tkc_cond_wait_until(&client->shared.cond, &client->shared.lock, deadline_ns))
            break;
    return done ? client->shared.close_done : client->shared.running == 0;
}

void tkc_client_worker(tinkc_client *client, bool begins)
{
    pthread_mutex_lock(&client->shared.lock);
    assert(begins || client->shared.workers > 0);
    client->shared.workers += begins ? 1 : (size_t)-1;
    pthread_cond_broadcast(&client->shared.cond);
    pthread_mutex_unlock(&client->shared.lock);
}

bool tinkc_client_close(tinkc_client *client, int64_t timeout_ms, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_client_check(client, err) ||
        !tkc_client_check_waits(client, err))
        return false;
    /* One deadline for both waits: what runs comes first, telemetry has the rest. */
    int64_t deadline = tkc_deadline_ns(timeout_ms);
    pthread_mutex_lock(&client->shared.lock);
    bool first = !client->shared.closed;
    client->shared.closed = true;
    bool clean =
        timeout_ms == 0 ? client->shared.running == 0 : await_close(client, false, deadline);
    if (first) {
        tkc_loop_post(client->loop, &client->close_task);
        /* Telemetry may use what time is left; then it is cut off by end_task. */
        if (!await_close(client, true, timeout_ms == 0 ? tkc_deadline_ns(50) : deadline) &&
            !client->shared.ending) {
            client->shared.ending = true;
            tkc_loop_post(client->loop, &client->end_task);
        }
    }
    (void)await_close(client, true, tkc_deadline_ns(END_PATIENCE_MS));
    /* A download that was stopped may still be writing down where. */
    while (client->shared.workers &&
           tkc_cond_wait_until(&client->shared.cond, &client->shared.lock, deadline))
        ;
    pthread_mutex_unlock(&client->shared.lock);
    return clean;
}

/* ---- waiting for the start-up ---- */

typedef struct need_op {
    tinkc_future f;
    tkc_ready_wait wait;
} need_op;

static void need_ready(tkc_ready_wait *wait, const tinkc_error *err)
{
    tkc_op_finish(&TKC_OWNER(wait, need_op, wait)->f, err);
}

static void need_start(tinkc_future *f)
{
    need_op *op = (need_op *)f;
    op->wait.ready = need_ready;
    if (tkc_client_need(f->client, &op->wait))
        tkc_op_finish(f, NULL);
}

static void need_stop(tinkc_future *f, const tinkc_error *why)
{
    tkc_client_need_end(f->client, &((need_op *)f)->wait);
    tkc_op_finish(f, why);
}

static bool wait_for(tinkc_client *client, int32_t need, int64_t timeout_ms, tinkc_error *err)
{
    static const tkc_op_class class = { "client_connect", "nothing", sizeof(need_op),
                                        need_start,       need_stop, NULL };
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_client_check(client, err) ||
        !tkc_client_check_waits(client, err))
        return false;
    need_op *op = (need_op *)tkc_op_new(client, &class, err);
    if (!op)
        return false;
    op->wait.need = need;
    tkc_op_submit(&op->f);
    bool ok = tinkc_future_wait(&op->f, timeout_ms, err);
    tinkc_future_free(&op->f);
    return ok;
}

bool tinkc_client_connect(tinkc_client *client, int64_t timeout_ms, tinkc_error *err)
{
    return wait_for(client, TKC_NEED_CONFIG, timeout_ms, err);
}

const char *tinkc_client_session_id(tinkc_client *client, int64_t timeout_ms, tinkc_error *err)
{
    if (!wait_for(client, TKC_NEED_SESSION, timeout_ms, err))
        return NULL;
    pthread_mutex_lock(&client->shared.lock);
    /* Set once, in memory of the client's: the text stays good without the lock. */
    const char *id = client->shared.session_id;
    pthread_mutex_unlock(&client->shared.lock);
    return id;
}

const char *tinkc_client_base_url(const tinkc_client *client)
{
    return client ? client->base_url : "";
}

/* ---- snapshots ---- */

typedef struct save_op {
    tinkc_future f;
    tkc_buf text;
    const tinkc_sampler *sampler; /* NULL = without secrets */
} save_op;

/* On the I/O thread, to which the settings and the token belong. */
static void save_start(tinkc_future *f)
{
    save_op *op = (save_op *)f;
    tinkc_error err = { 0 };
    tkc_boot_save(f->client, op->sampler, &op->text, &err);
    tkc_op_finish(f, &err);
}

static void save_stop(tinkc_future *f, const tinkc_error *why)
{
    tkc_op_finish(f, why);
}

static void save_destroy(tinkc_future *f)
{
    tkc_buf_free(&((save_op *)f)->text);
}

const char *tkc_client_save(tinkc_client *client, const tinkc_sampler *sampler, tinkc_text *out,
                            tinkc_error *err)
{
    static const tkc_op_class class = { "client_snapshot", "nothing", sizeof(save_op),
                                        save_start,        save_stop, save_destroy };
    if (!out) {
        tkc_fail(err, TINKC_E_ARGUMENT, "out: must not be NULL");
        return "";
    }
    if (!tkc_client_check(client, err) || !tkc_client_check_waits(client, err))
        return "";
    save_op *op = (save_op *)tkc_op_new(client, &class, err);
    if (!op)
        return "";
    tkc_buf_init(&op->text, client->a, TKC_BUF_NO_MAX);
    op->sampler = sampler;
    tkc_op_submit(&op->f);
    out->len = 0;
    bool ok = tinkc_future_wait(&op->f, TINKC_FOREVER, err) &&
              tinkc_text_append(out, op->text.data, op->text.len, err);
    tinkc_future_free(&op->f);
    return ok ? out->data : "";
}

const char *tinkc_client_snapshot(tinkc_client *client, tinkc_text *out, tinkc_error *err)
{
    tinkc_error local;
    return tkc_enter(&err, &local) ? tkc_client_save(client, NULL, out, err) : "";
}

/* ---- billing ---- */

enum { BILLING_LOG_MS = 60 * 1000, BILLING_RESET_MS = 300 * 1000 };

bool tkc_billing_pauses(tinkc_client *client, int32_t status, tinkc_str detail, tinkc_future *f)
{
    if (status != 402 || client->no_retries)
        return false;
    int64_t *first = &client->io.billing_first_ms, *logged = &client->io.billing_logged_ms;
    int64_t now = tkc_now_ms(client->clock);
    int64_t max = tkc_number_or(client->billing_pause_ms,
                                client->io.flags.billing_exception_max_pause_duration_sec * 1000);
    if (max == 0)
        return false;
    if (max == TINKC_FOREVER)
        max = INT64_MAX;
    /* By the last log line, not by the last 402: the Python SDK begins a new incident so, too. */
    if (*logged != INT64_MIN && now - *logged > BILLING_RESET_MS)
        *first = *logged = INT64_MIN;
    if (*first != INT64_MIN && now - *first > max) {
        tkc_client_log(client, TINKC_LOG_ERROR, "paused for %lld s because of billing: giving up",
                       (long long)((now - *first) / 1000));
        return false;
    }
    if (*first == INT64_MIN)
        *first = now;
    if (*logged == INT64_MIN || now - *logged > BILLING_LOG_MS) {
        *logged = now;
        tkc_client_log(client, TINKC_LOG_WARN, "paused because of billing: %.*s", (int)detail.len,
                       detail.data);
    }
    char text[200];
    size_t len = detail.len < sizeof text - 1 ? detail.len : sizeof text - 1;
    memcpy(text, detail.data ? detail.data : "", len);
    text[len] = '\0';
    tkc_emit(client, f,
             &(tinkc_event){ .kind = TINKC_EVENT_BILLING,
                             .http_status = 402,
                             .wait_ms = 5000,
                             .elapsed_ms = now - *first,
                             .left_ms = max == INT64_MAX ? TINKC_FOREVER : max - (now - *first),
                             .text = text });
    return true;
}
