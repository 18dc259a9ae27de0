/* client_scene.c - see client_scene.h. */
#include "support/client/client_scene.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <strings.h>

#include "base/buf.h"
#include "codec/zstd.h"
#include "support/counting.h"

enum { MAX_FOLLOWED = 64, MAX_KEYS = 4000 };

typedef struct followed {
    char name[40];
    tinkc_future *f;
    char last[700]; /* how it stood when it was last shown */
    bool done;
} followed;

struct scene {
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_queue *queue;
    tinkc_clock clock;
    counting memory;
    tinkc_allocator allocator;
    tinkc_error err;
    unsigned shows;
    char api_key[64];
    int64_t last_ms;   /* of what was shown last */
    size_t n_requests; /* seen */
    char keys[MAX_KEYS][64];
    size_t n_keys;
    followed all[MAX_FOLLOWED];
    size_t n_followed, row;
    tkc_buf story;
    pthread_mutex_t lock;
    tkc_buf logs, events;
};

/* ---- what every request of an endpoint has ---- */

#define JSON "application/json"

/* A path's last part, or where ids stand in it, all behind the prefix. Not here: POST, pool train, 60 s, JSON. */
static const struct row {
    const char *path, *method;
    int32_t pool;
    int64_t silence_ms;
    const char *accept, *sends; /* types */
} rows[] = {
    { "healthz", "GET", TINKC_POOL_SESSION, 60000, JSON, JSON },
    { "client/config", "POST", TINKC_POOL_CONFIG, 60000, JSON, JSON },
    { "client/dynamic_config", "POST", TINKC_POOL_SESSION, 10000, JSON, JSON },
    { "auth/token", "POST", TINKC_POOL_AUTH, 60000, JSON, JSON },
    { "create_session", "POST", TINKC_POOL_SESSION, 60000, JSON, JSON },
    { "session_heartbeat", "POST", TINKC_POOL_SESSION, 10000, JSON, JSON },
    { "create_sampling_session", "POST", TINKC_POOL_SESSION, 60000, JSON, JSON },
    { "join_sampling_session", "POST", TINKC_POOL_SESSION, 60000, JSON, JSON },
    { "asample", "POST", TINKC_POOL_SAMPLE, 60000, JSON, JSON },
    { "stream_sample", "POST", TINKC_POOL_SAMPLE, 60000, "text/event-stream", JSON },
    { "retrieve_future", "POST", TINKC_POOL_RETRIEVE, 45000, NULL, JSON }, /* NULL: its result's */
    { "retrieve_futures", "POST", TINKC_POOL_FUTURES, 45000, JSON, JSON },
    { "cancel_future", "POST", TINKC_POOL_RETRIEVE, 30000, JSON, JSON },
    { "telemetry", "POST", TINKC_POOL_TELEMETRY, 5000, JSON, JSON },
    { "get_server_capabilities", "GET", TINKC_POOL_TRAIN, 60000, JSON, JSON },
    { "forward_backward", "POST", TINKC_POOL_TRAIN, 60000, JSON, "application/x-protobuf" },
    { "training_runs", "GET", TINKC_POOL_TRAIN, 60000, JSON, JSON },
    { "sessions", "GET", TINKC_POOL_TRAIN, 60000, JSON, JSON },
    { "*/archive", "GET", TINKC_POOL_REST, 60000, JSON, JSON },
    { "*/trace_export", "GET", TINKC_POOL_TRAIN, 60000, JSON, JSON },
    { "*/external_weights_urls", "GET", TINKC_POOL_TRAIN, 60000, JSON, JSON },
};

/* Without its query; a pattern may begin with '*'. */
static bool is_path(const char *pattern, const char *path)
{
    size_t n = strcspn(path, "?"), len = strlen(pattern + (*pattern == '*'));
    if (*pattern == '*')
        return n >= len && strncmp(path + n - len, pattern + 1, len) == 0;
    return n == len && strncmp(path, pattern, n) == 0;
}

/* Where a request has what its row says, nothing is shown. */
static const struct row *row_of(const char *path)
{
    static const struct row other = { "", "POST", TINKC_POOL_TRAIN, 60000, JSON, JSON };
    for (size_t i = 0; i < LEN(rows); i++)
        if (is_path(rows[i].path, path))
            return &rows[i];
    return &other;
}

/* ---- writing ---- */

static void add(tkc_buf *to, const char *text)
{
    tinkc_error err = { 0 };
    tkc_buf_add(to, text, strlen(text), &err);
    assert_ok(&err);
}

__attribute__((format(printf, 2, 3))) static void addf(tkc_buf *to, const char *format, ...)
{
    static _Thread_local char text[9000];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    add(to, text);
}

/* Begins another thing that is seen at this time. */
static void begin_item(scene *s, int64_t at_ms)
{
    if (s->story.len)
        add(&s->story, "; ");
    if (at_ms > s->last_ms)
        addf(&s->story, "+%" PRId64 " ", at_ms - s->last_ms);
    s->last_ms = at_ms;
}

static int64_t now_ms(const scene *s)
{
    return s->clock.now_ms(s->clock.self);
}

void note(scene *s, const char *format, ...)
{
    char line[4000];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    begin_item(s, now_ms(s));
    add(&s->story, line);
}

/* ---- requests ---- */

/* The whole body as text; NULL = it is not JSON. Until the next call. */
static const char *json_of(const tinkc_request *r)
{
    static char text[20000];
    const char *type = request_header(r, "Content-Type");
    if (!r->body.len || !type || strncmp(type, "application/json", 16) != 0)
        return NULL;
    (void)snprintf(text, sizeof text, "%.*s", (int)r->body.len, (const char *)r->body.data);
    return text;
}

/* seq_id of a pass: field 2 of a message that begins with the fields in their order. */
static int64_t number_in_message(const unsigned char *at, size_t len)
{
    size_t i = 0;
    while (i < len) {
        unsigned tag = at[i++];
        uint64_t value = 0;
        for (unsigned shift = 0; i < len; shift += 7) {
            value |= (uint64_t)(at[i] & 0x7F) << shift;
            if (!(at[i++] & 0x80))
                break;
        }
        if (tag == (2 << 3 | 0))
            return (int64_t)value;
        if ((tag & 7) == 2)
            i += value;
    }
    return -1;
}

static int64_t number_of(const tinkc_request *r)
{
    const char *json = json_of(r);
    if (json) {
        const char *at = strstr(json, "\"seq_id\":");
        return at ? strtoll(at + 9, NULL, 10) : -1;
    }
    const char *encoding = request_header(r, "Content-Encoding");
    if (!encoding)
        return number_in_message(r->body.data, r->body.len);
    tkc_buf plain;
    tinkc_error err = { 0 };
    tkc_buf_init(&plain, NULL, TKC_BUF_NO_MAX);
    tkc_zstd_decompress(r->body.data, r->body.len, 1 << 26, &plain, &err);
    assert_ok(&err);
    int64_t n = number_in_message((const unsigned char *)plain.data, plain.len);
    tkc_buf_free(&plain);
    return n;
}

static bool key_is_known(scene *s, const char *key)
{
    for (size_t i = 0; i < s->n_keys; i++)
        if (strcmp(s->keys[i], key) == 0)
            return true;
    assert_true(s->n_keys < MAX_KEYS);
    (void)snprintf(s->keys[s->n_keys++], sizeof *s->keys, "%s", key);
    return false;
}

/* Results of passes and samples are large: they come as protobuf. */
static const char *accept_of_poll(const tinkc_request *r)
{
    const char *type = request_header(r, "X-Tinker-Request-Type");
    bool large = type && (strncmp(type, "Forward", 7) == 0 || strcmp(type, "Sample") == 0);
    return large ? "application/x-protobuf" : JSON;
}

/* What the header must be, NULL = it is not shared by requests; "" = anything. */
static const char *usual_header(const scene *s, const tinkc_request *r, const char *name, const struct row *row)
{
    static char read_timeout[32];
    bool poll = strcmp(row->path, "retrieve_future") == 0;
    const char *before = request_header(r, "X-Tinker-Request-Iteration");
    bool polled = before && strcmp(before, "0") != 0;
    (void)snprintf(read_timeout, sizeof read_timeout, r->idle_timeout_ms % 1000 ? "%g" : "%.1f",
                   (double)r->idle_timeout_ms / 1000);
    const struct {
        const char *name, *value;
    } usual[] = {
        { "User-Agent", "tinkc/" TINKC_VERSION },
        { "X-Stainless-Package-Version", "0.25.0" },
        { "X-Stainless-OS", "" },
        { "X-Stainless-Arch", "" },
        { "X-Stainless-Runtime", "C" },
        { "X-Stainless-Runtime-Version", "" },
        { "X-Stainless-Async", "async:tinkc" },
        { "Accept", row->accept ? row->accept : accept_of_poll(r) },
        { "x-stainless-retry-count", "" },
        { "x-stainless-read-timeout", read_timeout },
        { "Content-Type", r->body.len ? row->sends : NULL },
        { "X-Idempotency-Key", strcmp(r->method, "GET") == 0 ? NULL : "" },
        { "X-API-Key", s->api_key[0] ? s->api_key : NULL },
        { "X-Tinker-Request-Iteration", poll ? "" : NULL },
        { "X-Tinker-Request-Type", poll ? "" : NULL },
        { "X-Stainless-Raw-Response", poll ? "raw" : NULL },
        { "X-Tinker-Create-Promise-Roundtrip-Time", poll && !polled ? "" : NULL },
        { "X-Tinker-Sampling-Backpressure", strcmp(row->path, "asample") == 0 ? "1" : NULL },
    };
    for (size_t i = 0; i < LEN(usual); i++)
        if (name ? strcasecmp(usual[i].name, name) == 0 : usual[i].value && !request_header(r, usual[i].name))
            return name ? usual[i].value : usual[i].name;
    return NULL;
}

/* A request to another host has nothing of the client's; what it has is shown. */
static bool add_foreign(scene *s, const tinkc_request *r)
{
    if (request_header(r, "User-Agent") || request_header(r, "X-Stainless-Runtime"))
        return false;
    for (size_t i = 0; r->headers[i]; i += 2)
        if (strcmp(r->headers[i + 1], "*/*") != 0 && strcmp(r->headers[i + 1], "identity") != 0)
            addf(&s->story, " {%s: %.40s}", r->headers[i], r->headers[i + 1]);
    return strcmp(r->method, "GET") == 0 && r->pool == TINKC_POOL_REST && r->base_url[0];
}

static void add_differences(scene *s, const tinkc_request *r, const struct row *row)
{
    static const char *const pools[] = { "session",   "sample", "train", "rest",   "retrieve",
                                         "telemetry", "config", "auth",  "futures" };
    if (strcmp(r->method, row->method) != 0)
        addf(&s->story, " {%s}", r->method);
    if (r->pool != row->pool)
        addf(&s->story, " {pool %s}", pools[r->pool]);
    if (r->idle_timeout_ms != row->silence_ms)
        addf(&s->story, " {silence %" PRId64 "}", r->idle_timeout_ms);
    if (r->connect_timeout_ms != 5000)
        addf(&s->story, " {connect %" PRId64 "}", r->connect_timeout_ms);
    if (r->no_redirects != (strcmp(row->path, "*/archive") == 0))
        add(&s->story, r->no_redirects ? " {no redirects}" : " {redirects}");
    if (r->base_url[0])
        addf(&s->story, " {to %s}", r->base_url);
    for (size_t i = 0; r->headers[i]; i += 2) {
        const char *usual = usual_header(s, r, r->headers[i], row);
        const char *value = r->headers[i + 1], *last = strrchr(value, '.');
        if (usual && (!*usual || strcmp(usual, value) == 0))
            continue;
        if (last && strncmp(value, "eyJ", 3) == 0) /* a token is its signature */
            addf(&s->story, " {token %s}", last + 1);
        else
            addf(&s->story, " {%s: %s}", r->headers[i], value);
    }
    const char *missing = usual_header(s, r, NULL, row);
    if (missing)
        addf(&s->story, " {no %s}", missing);
}

static const char *short_name(const char *path)
{
    static const char *const names[][2] = {
        { "retrieve_future", "poll" },        { "forward_backward", "pass" }, { "get_server_capabilities", "models" },
        { "*/weights/c/archive", "archive" }, { "*/trace_export", "trace" },  { "*/external_weights_urls", "links" }
    };
    for (size_t i = 0; i < LEN(names); i++)
        if (is_path(names[i][0], path) && !strchr(path, '?'))
            return names[i][1];
    return path;
}

static void add_request(scene *s, const tinkc_request *r, int64_t at_ms)
{
    const char *path = strncmp(r->path, API, strlen(API)) == 0 ? r->path + strlen(API) : r->path;
    const char *count = request_header(r, "x-stainless-retry-count");
    const char *key = request_header(r, "X-Idempotency-Key");
    const char *before = request_header(r, "X-Tinker-Request-Iteration");
    bool poll = strcmp(path, "retrieve_future") == 0;
    if (strcmp(path, "session_heartbeat") == 0 && !(s->shows & SHOW_HEARTBEATS))
        return;
    begin_item(s, at_ms);
    add(&s->story, short_name(path));
    if (poll && before && strcmp(before, "0") != 0)
        addf(&s->story, " %s", before);
    int64_t number = poll || s->shows & HIDE_NUMBERS ? -1 : number_of(r);
    if (number >= 0)
        addf(&s->story, " #%" PRId64, number);
    if (key && strncmp(key, "stainless-c-retry-", 18) != 0)
        addf(&s->story, " {key %s}", key);
    else if (key && !(s->shows & HIDE_KEYS) && key_is_known(s, key))
        add(&s->story, " again");
    if (count && strcmp(count, "0") != 0)
        addf(&s->story, " (%s)", count);
    if (!add_foreign(s, r))
        add_differences(s, r, row_of(path));
    if (s->shows & SHOW_BODIES && json_of(r))
        addf(&s->story, " %s", json_of(r));
}

/* ---- events and logs ---- */

static void on_log(int32_t level, const char *line, void *user)
{
    static const char *const names[] = { "?", "error", "warning", "info", "debug" };
    scene *s = user;
    pthread_mutex_lock(&s->lock);
    if (s->shows & SHOW_LOGS)
        addf(&s->logs, "; %s: %s", names[level], line);
    pthread_mutex_unlock(&s->lock);
}

static void on_event(const tinkc_event *e, void *user)
{
    static const char *const names[] = { "exchange", "retry",     "queue", "backoff", "billing",
                                         "session",  "heartbeat", "part",  "tokens" };
    scene *s = user;
    size_t bit = 0;
    while (bit < 8 && !(e->kind >> bit & 1))
        bit++;
    if (!(s->shows & SHOW_EVENTS) || bit == 0)
        return;
    addf(&s->events, "; [%s", names[bit]);
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = { { "queue", e->queue_state },  { "status", e->http_status }, { "attempt", e->attempt },
                    { "elapsed", e->elapsed_ms }, { "wait", e->wait_ms },       { "left", e->left_ms },
                    { "part", (int64_t)e->part } };
    for (size_t i = 0; i < LEN(numbers); i++)
        if (numbers[i].value)
            addf(&s->events, " %s %" PRId64, numbers[i].name, numbers[i].value);
    addf(&s->events, "%s%s]", e->text && e->text[0] ? ": " : "", e->text ? e->text : "");
}

static void add_kept(scene *s, tkc_buf *kept)
{
    pthread_mutex_lock(&s->lock);
    tinkc_error err = { 0 };
    size_t skip = s->story.len ? 0 : 2;
    if (kept->len > skip) {
        tkc_buf_add(&s->story, (const char *)kept->data + skip, kept->len - skip, &err);
        tkc_buf_clear(kept);
    }
    pthread_mutex_unlock(&s->lock);
    assert_ok(&err);
}

/* ---- futures ---- */

static void add_error(scene *s, const char *who, const tinkc_error *err)
{
    static const char *const by[] = { "nobody", "the caller", "the client", "the network", "the server" };
    uint32_t usual = tinkc_code_flags(err->code), odd = usual ^ err->flags;
    begin_item(s, now_ms(s));
    const char *code = tinkc_code_name(err->code);
    addf(&s->story, "%s%s%s", who, *who ? ": " : "", strncmp(code, "TINKC_E_", 8) ? code : code + 8);
    if (err->http_status)
        addf(&s->story, " %d", (int)err->http_status);
    if (err->code == TINKC_E_REQUEST_FAILED)
        addf(&s->story, ", by %s", by[err->category]);
    if (odd & TINKC_RETRIABLE)
        add(&s->story, usual & TINKC_RETRIABLE ? ", not retriable" : ", retriable");
    if (err->flags & TINKC_MAY_HAVE_RUN)
        add(&s->story, ", may have run");
    if (err->flags & TINKC_IN_RETRIEVAL)
        add(&s->story, ", in retrieval");
    if (s->shows & SHOW_REQUEST_ID && err->request_id[0])
        addf(&s->story, ", of %s", strrchr(err->request_id, ':') ? strrchr(err->request_id, ':') + 1 : err->request_id);
    if (err->cause)
        addf(&s->story, ", cause %s", tinkc_code_name(err->cause) + 8);
    if (err->retry_after_ms)
        addf(&s->story, ", after %d", (int)err->retry_after_ms);
    if (!(s->shows & HIDE_MESSAGES))
        addf(&s->story, " \"%s\"", err->message);
}

static void add_status(scene *s, followed *w)
{
    char now[700], words[60] = "";
    tinkc_text status = { 0 };
    tinkc_error err = { 0 };
    int64_t done, total, for_ms = 0;
    int32_t attempts = 0, trouble = tinkc_future_retry_state(w->f, &attempts, &for_ms);
    tinkc_future_progress(w->f, &done, &total);
    if (trouble || attempts || for_ms)
        (void)snprintf(words, sizeof words, ", %.30s x%d for %" PRId64, trouble ? tinkc_code_name(trouble) + 8 : "-",
                       (int)attempts, for_ms);
    (void)snprintf(now, sizeof now, "%s is at stage %d, queue %d, %" PRId64 " of %" PRId64 "%s, \"%s\"", w->name,
                   (int)tinkc_future_stage(w->f), (int)tinkc_future_queue_state(w->f), done, total, words,
                   tinkc_future_status(w->f, &status, &err));
    tinkc_text_free(&status);
    if (strcmp(now, w->last) != 0) {
        begin_item(s, now_ms(s));
        add(&s->story, now);
    }
    memcpy(w->last, now, sizeof now);
}

static void add_future(scene *s, followed *w)
{
    tinkc_error err = { 0 };
    if (s->shows & SHOW_STATUS)
        add_status(s, w);
    if (w->done || !tinkc_future_done(w->f))
        return;
    w->done = true;
    if (tinkc_future_wait(w->f, 0, &err)) {
        begin_item(s, now_ms(s));
        addf(&s->story, "%s%sdone", w->name, w->name[0] ? ": " : "");
        return;
    }
    add_error(s, w->name, &err);
    tinkc_bytes body = tinkc_future_error_body(w->f);
    if (s->shows & SHOW_ERROR_BODY && body.len)
        addf(&s->story, " %.*s", (int)body.len, (const char *)body.data);
}

tinkc_future *follow(scene *s, const char *name, tinkc_future *f)
{
    if (!f) {
        add_error(s, name, &s->err);
        s->err = (tinkc_error){ 0 };
        return NULL;
    }
    assert_true(s->n_followed < MAX_FOLLOWED);
    followed *w = &s->all[s->n_followed++];
    *w = (followed){ .f = f };
    (void)snprintf(w->name, sizeof w->name, "%s", name);
    settle(s);
    return f;
}

void release(scene *s, tinkc_future *f)
{
    for (size_t i = 0; i < s->n_followed; i++)
        if (s->all[i].f == f)
            memmove(&s->all[i], &s->all[i + 1], (--s->n_followed - i) * sizeof *s->all);
    tinkc_future_free(f);
    settle(s);
}

void complete(scene *s, const char *name, tinkc_future *f)
{
    f = follow(s, name, f);
    finish(s, f, 4000000);
    if (f)
        release(s, f);
}

/* ---- time ---- */

int64_t settle(scene *s)
{
    tinkc_error err = { 0 };
    const tinkc_request *r;
    int64_t next = tinkc_mock_settle(s->mock, PATIENCE_MS, &err);
    assert_ok(&err);
    for (; (r = tinkc_mock_request(s->mock, s->n_requests)); s->n_requests++)
        add_request(s, r, tinkc_mock_request_ms(s->mock, s->n_requests));
    while (s->queue && tinkc_queue_run(s->queue, 0, &err) > 0)
        ;
    assert_ok(&err);
    add_kept(s, &s->events);
    add_kept(s, &s->logs);
    for (size_t i = 0; i < s->n_followed; i++)
        add_future(s, &s->all[i]);
    return next;
}

void pass(scene *s, int64_t ms)
{
    tinkc_mock_advance(s->mock, ms);
    settle(s);
}

void live(scene *s, int64_t ms)
{
    while (ms > 0) {
        int64_t next = settle(s);
        int64_t step = next == TINKC_FOREVER || next > ms ? ms : next > 0 ? next : 1;
        pass(s, step);
        ms -= step;
    }
}

void finish(scene *s, tinkc_future *f, int64_t limit_ms)
{
    while (f && !tinkc_future_done(f)) {
        int64_t next = settle(s);
        if (tinkc_future_done(f))
            return;
        if (next == TINKC_FOREVER || next > limit_ms) {
            note(s, "not done");
            return;
        }
        pass(s, next);
        limit_ms -= next;
    }
}

/* ---- answers ---- */

static tinkc_mock_answer answer_of(const outcome *o, const char **headers)
{
    headers[0] = o->name;
    headers[1] = o->value;
    headers[2] = NULL;
    return (tinkc_mock_answer){
        .status = o->status, .fault = o->fault, .headers = o->name ? headers : NULL, .body = o->body
    };
}

void answer_with(scene *s, const char *path, const outcome *o)
{
    const char *headers[3];
    tinkc_mock_answer a = answer_of(o, headers);
    assert_true(tinkc_mock_once(s->mock, NULL, path, &a, &s->err));
}

void answer_always_with(scene *s, const char *path, const outcome *o)
{
    const char *headers[3];
    tinkc_mock_answer a = answer_of(o, headers);
    assert_true(tinkc_mock_always(s->mock, NULL, path, &a, &s->err));
}

void answer(scene *s, const char *path, int32_t status, const char *body)
{
    answer_with(s, path, &(outcome){ .status = status, .body = body });
}

void answer_always(scene *s, const char *path, int32_t status, const char *body)
{
    answer_always_with(s, path, &(outcome){ .status = status, .body = body });
}

void answer_headers(scene *s, const char *path, int32_t status, const char *const *headers, const char *body)
{
    tinkc_mock_answer a = { .status = status, .headers = headers, .body = body };
    assert_true(tinkc_mock_once(s->mock, NULL, path, &a, &s->err));
}

void silence(scene *s, const char *path)
{
    answer_with(s, path, &(outcome){ .fault = TINKC_FAULT_SILENT });
}

/* A last answer of its own says that those before it are gone. */
void use_up(scene *s, const char *path)
{
    const tinkc_http_options o = { .path = path, .any_status = true, .no_retries = true };
    bool over = false;
    const char *host = strstr(path, "://");
    answer(s, host ? strchr(host + 3, '/') : path, 299, "over");
    while (!over) {
        tinkc_future *f = tinkc_http_call(s->client, &o, &s->err);
        assert_ok(&s->err);
        settle(s);
        if (!tinkc_future_done(f)) { /* it was a silence */
            tinkc_future_cancel(f);
            settle(s);
        }
        tinkc_error err = { 0 };
        const tinkc_response *r = tinkc_future_response(f, 0, &err);
        over = r && tinkc_response_status(r) == 299;
        tinkc_future_free(f);
    }
    settle(s);
    scene_forget(s);
}

/* ---- life ---- */

static atomic_bool all_alike; /* numbers, and with them keys */

/* Small numbers: pauses that vary by a share of themselves have their whole length, and keys differ. */
static uint64_t no_chance(void *self)
{
    static atomic_uint_fast64_t n;
    (void)self;
    return all_alike ? 0 : ++n % 2048;
}

static void make_client(scene *s, const tinkc_client_options *more)
{
    tinkc_client_options o = { 0 };
    if (more)
        o = *more;
    o.allocator = &s->allocator;
    o.log = on_log;
    o.log_user = s;
    o.log_level = o.log_level ? o.log_level : TINKC_LOG_DEBUG;
    o.transport = tinkc_mock_transport(s->mock);
    o.clock = &s->clock;
    (void)snprintf(s->api_key, sizeof s->api_key, "%s", o.api_key ? o.api_key : "");
    s->client = tinkc_client_new(&o, &s->err);
    if (!s->client) {
        add_error(s, "client", &s->err);
        s->err = (tinkc_error){ 0 };
        return;
    }
    s->queue = tinkc_queue_new(s->client, &s->err);
    tinkc_client_on_event(s->client, s->queue, UINT32_MAX, on_event, s, &s->err);
    assert_ok(&s->err);
}

/* Where all is done, as long as telemetry needs on a slow machine. */
static int64_t time_to_close(const scene *s)
{
    for (size_t i = 0; i < s->n_followed; i++)
        if (!s->all[i].done)
            return 0;
    return PATIENCE_MS;
}

static void end_client(scene *s)
{
    if (s->client) {
        settle(s);
        (void)tinkc_client_close(s->client, time_to_close(s), &s->err);
        assert_ok(&s->err);
        settle(s);
    }
    while (s->n_followed)
        tinkc_future_free(s->all[--s->n_followed].f);
    tinkc_queue_free(s->queue);
    tinkc_client_free(s->client);
    s->queue = NULL;
    s->client = NULL;
}

scene *scene_new(int32_t kind, const tinkc_client_options *more)
{
    scene *s = calloc(1, sizeof *s);
    assert_non_null(s);
    pthread_mutex_init(&s->lock, NULL);
    tkc_buf_init(&s->story, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&s->logs, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&s->events, NULL, TKC_BUF_NO_MAX);
    s->allocator = counting_allocator(&s->memory);
    s->mock = tinkc_mock_new(kind, &s->err);
    assert_ok(&s->err);
    s->clock = *tinkc_mock_clock(s->mock);
    s->clock.random = no_chance;
    s->last_ms = now_ms(s);
    s->row = SIZE_MAX;
    all_alike = false;
    make_client(s, more);
    return s;
}

void scene_renew(scene *s, const tinkc_client_options *more)
{
    end_client(s);
    scene_forget(s);
    make_client(s, more);
}

void scene_forget(scene *s)
{
    s->last_ms = now_ms(s);
    tkc_buf_clear(&s->story);
}

void scene_shows(scene *s, unsigned what)
{
    settle(s);
    s->shows = what;
    all_alike = what & HIDE_KEYS;
}

void scene_row(scene *s, size_t row)
{
    s->row = row;
}

tinkc_mock *scene_mock(scene *s)
{
    return s->mock;
}

tinkc_client *scene_client(scene *s)
{
    return s->client;
}

tinkc_error *scene_err(scene *s)
{
    return &s->err;
}

/* Sessions without their numbers: a client more in a test changes nothing for the others. */
static void unnumber(char *text)
{
    char *to = text;
    while (*text) {
        bool session = strncmp(text, "mock-session-", 13) == 0;
        size_t n = session ? 12 : 1;
        memmove(to, text, n);
        to += n;
        text += session ? 13 + strspn(text + 13, "0123456789") : 1;
    }
    *to = '\0';
}

void expect_at(scene *s, const char *wanted, const char *file, int line)
{
    tinkc_error err = { 0 };
    settle(s);
    tkc_buf_terminate(&s->story, &err);
    const char *is = s->story.len ? s->story.data : "";
    if (s->story.len)
        unnumber(s->story.data);
    char row[40] = "";
    if (s->row != SIZE_MAX)
        (void)snprintf(row, sizeof row, ", row %zu", s->row);
    if (strcmp(is, wanted) != 0) {
        (void)fprintf(stderr, "%s:%d%s:\n   is     %s\n   wanted %s\n", file, line, row, is, wanted);
        if (!getenv("TINKC_SHOW_ALL"))
            _fail(file, line);
    }
    s->row = SIZE_MAX;
    scene_forget(s);
}

void scene_end(scene *s)
{
    end_client(s);
    assert_true(counting_is_empty_soon(&s->memory));
    tinkc_mock_free(s->mock);
    tkc_buf_free(&s->story);
    tkc_buf_free(&s->logs);
    tkc_buf_free(&s->events);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* ---- first steps ---- */

static const int32_t ids[] = { 1, 2, 3, 4, 5, 6, 7, 8 };

tinkc_trainer *open_trainer(scene *s)
{
    tinkc_future *f = tinkc_trainer_open(s->client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &s->err);
    assert_true(run_until_done(s->mock, f, 100000));
    tinkc_trainer *t = tinkc_future_trainer(f, 0, &s->err);
    assert_ok(&s->err);
    tinkc_future_free(f);
    settle(s);
    scene_forget(s);
    return t;
}

tinkc_sampler *open_sampler(scene *s, const tinkc_retry_options *retry)
{
    tinkc_future *f =
        tinkc_sampler_open(s->client, &(tinkc_sampler_options){ .base_model = "mock/nano", .retry = retry }, &s->err);
    assert_true(run_until_done(s->mock, f, 100000));
    tinkc_sampler *sampler = tinkc_future_sampler(f, 0, &s->err);
    assert_ok(&s->err);
    tinkc_future_free(f);
    settle(s);
    scene_forget(s);
    return sampler;
}

tinkc_batch *make_batch(scene *s, size_t n)
{
    tinkc_batch *b = tinkc_batch_new(s->client, &s->err);
    for (size_t i = 0; i < n; i++)
        tinkc_batch_add_sft(b, ids, 4 + i % 3, 1 + i % 2, &s->err);
    assert_ok(&s->err);
    return b;
}

tinkc_future *begin_step(scene *s, tinkc_trainer *t)
{
    tinkc_adam adam = TINKC_ADAM_INIT;
    return follow(s, "step", tinkc_optim_step(t, &adam, &s->err));
}

tinkc_future *begin_sample(scene *s, const char *name, tinkc_sampler *sampler)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 3;
    return follow(s, name, tinkc_sample(sampler, ids, 4, 1, &o, &s->err));
}
