/* client_script.c - records of a client on the mock, compared with files. */
#include "support/client_script.h"

#include <ctype.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/str.h"
#include "codec/utf8.h"
#include "codec/zstd.h"

enum { MAX_FOLLOWED = 64, MAX_HEADERS = 64, SHOWN_TEXT = 1200, SHOWN_BYTES = 64 };

typedef struct followed {
    char name[40];
    tinkc_future *f;
    char last[700]; /* how it stood when it was last written down */
    bool done;
} followed;

struct script {
    const char *name;
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_queue *queue;
    counting memory;
    tinkc_allocator allocator;
    tinkc_error err;
    int64_t clock_ms;  /* since the beginning */
    int64_t base_ms;   /* of the mock's clock */
    size_t n_requests; /* written down so far */
    size_t n_clients;
    char *headers[MAX_HEADERS][2]; /* as they were last sent */
    size_t n_headers;
    char keys[400][40]; /* of idempotency, in the order in which they came */
    size_t n_keys;
    followed all[MAX_FOLLOWED];
    size_t n_followed;
    tkc_buf record;
    size_t muted_from; /* SIZE_MAX = what happens is written down */
    pthread_mutex_t lock;
    tkc_buf logs, events;
};

/* ---- writing ---- */

static void add_text(tkc_buf *to, const char *text)
{
    tinkc_error err = { 0 };
    tkc_buf_add(to, text, strlen(text), &err);
    assert_ok(&err);
}

__attribute__((format(printf, 2, 3))) static void add_line(tkc_buf *to, const char *format, ...)
{
    static _Thread_local char line[8000];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    add_text(to, line);
    add_text(to, "\n");
}

void note(script *s, const char *format, ...)
{
    char line[4000];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    add_line(&s->record, "# %s", line);
}

static uint64_t fingerprint(const void *bytes, size_t len)
{
    const unsigned char *at = bytes;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ at[i]) * 0x100000001b3u;
    return h;
}

static bool is_text(const unsigned char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (bytes[i] < ' ' && bytes[i] != '\n' && bytes[i] != '\r' && bytes[i] != '\t')
            return false;
    return tkc_utf8_valid(bytes, len);
}

/* The version of the library and the processor's name are not the same everywhere. */
static void add_masked(tkc_buf *to, const char *text, size_t len)
{
    static const char *const masked[][2] = {
        { "tinkc/" TINKC_VERSION, "tinkc/VERSION" },
        { "\"" TINKC_VERSION "\"", "\"VERSION\"" },
    };
    tinkc_error err = { 0 };
    for (size_t i = 0; i < len;) {
        size_t step = 0;
        for (size_t k = 0; k < sizeof masked / sizeof *masked && !step; k++) {
            size_t n = strlen(masked[k][0]);
            if (n <= len - i && memcmp(text + i, masked[k][0], n) == 0) {
                add_text(to, masked[k][1]);
                step = n;
            }
        }
        if (!step) {
            const char *shown = text[i] == '\n' ? "\\n" : text[i] == '\r' ? "\\r" : NULL;
            if (shown)
                add_text(to, shown);
            else
                tkc_buf_add(to, text + i, 1, &err);
            step = 1;
        }
        i += step;
    }
    assert_ok(&err);
}

static void add_bytes(tkc_buf *to, const void *data, size_t len)
{
    const unsigned char *bytes = data;
    bool text = is_text(bytes, len);
    size_t most = text ? SHOWN_TEXT : SHOWN_BYTES, n = len < most ? len : most;
    add_text(to, "    ");
    if (text) {
        while (n < len && n > 0 && (bytes[n] & 0xC0) == 0x80)
            n--;
        add_masked(to, data, n);
    } else {
        for (size_t i = 0; i < n; i++) {
            char hex[3];
            (void)snprintf(hex, sizeof hex, "%02x", bytes[i]);
            add_text(to, hex);
        }
    }
    if (n < len)
        add_line(to, "... %zu bytes, %016" PRIx64, len, fingerprint(data, len));
    else
        add_text(to, "\n");
}

/* ---- requests ---- */

static const char *shown_header(script *s, const char *name, const char *value, char *room,
                                size_t cap)
{
    if (strcasecmp(name, "X-Stainless-Arch") == 0)
        return "ARCH";
    if (strcasecmp(name, "X-Stainless-Runtime-Version") == 0)
        return "VERSION";
    if (strcmp(value, "tinkc/" TINKC_VERSION) == 0)
        return "tinkc/VERSION";
    static const char before[] = "stainless-c-retry-";
    if (strncmp(value, before, sizeof before - 1) == 0) {
        size_t i = 0;
        const char *key = value + sizeof before - 1;
        while (i < s->n_keys && strcmp(s->keys[i], key) != 0)
            i++;
        if (i == s->n_keys && i < sizeof s->keys / sizeof *s->keys)
            (void)snprintf(s->keys[s->n_keys++], sizeof *s->keys, "%s", key);
        (void)snprintf(room, cap, "%skey-%zu", before, i + 1);
        return room;
    }
    return value;
}

static void forget_headers(script *s)
{
    for (size_t i = 0; i < s->n_headers; i++) {
        free(s->headers[i][0]);
        free(s->headers[i][1]);
    }
    s->n_headers = 0;
}

/* Only what is not as it was in the request before. */
static void add_headers(script *s, const tinkc_request *r)
{
    char *now[MAX_HEADERS][2];
    size_t n = 0;
    for (size_t i = 0; r->headers[i] && n < MAX_HEADERS; i += 2, n++) {
        char room[80];
        const char *value = shown_header(s, r->headers[i], r->headers[i + 1], room, sizeof room);
        size_t k = 0;
        while (k < s->n_headers && strcmp(s->headers[k][0], r->headers[i]) != 0)
            k++;
        if (k == s->n_headers || strcmp(s->headers[k][1], value) != 0)
            add_line(&s->record, "    %s: %s", r->headers[i], value);
        now[n][0] = strdup(r->headers[i]);
        now[n][1] = strdup(value);
    }
    for (size_t k = 0; k < s->n_headers; k++) {
        bool gone = true;
        for (size_t i = 0; i < n; i++)
            gone = gone && strcmp(now[i][0], s->headers[k][0]) != 0;
        if (gone)
            add_line(&s->record, "    no %s", s->headers[k][0]);
    }
    forget_headers(s);
    memcpy(s->headers, now, n * sizeof *now);
    s->n_headers = n;
}

static void add_body(script *s, const tinkc_request *r)
{
    const char *encoding = request_header(r, "Content-Encoding");
    if (!r->body.len)
        return;
    if (!encoding || strcmp(encoding, "zstd") != 0) {
        add_bytes(&s->record, r->body.data, r->body.len);
        return;
    }
    tkc_buf plain;
    tinkc_error err = { 0 };
    tkc_buf_init(&plain, NULL, TKC_BUF_NO_MAX);
    tkc_zstd_decompress(r->body.data, r->body.len, 1 << 26, &plain, &err);
    assert_ok(&err);
    add_bytes(&s->record, plain.data, plain.len);
    tkc_buf_free(&plain);
}

static void add_requests(script *s)
{
    static const char *const pools[] = { "session",   "sample", "train", "rest",   "retrieve",
                                         "telemetry", "config", "auth",  "futures" };
    const tinkc_request *r;
    for (; (r = tinkc_mock_request(s->mock, s->n_requests)); s->n_requests++) {
        add_line(&s->record,
                 "%s %s at %" PRId64 ", pool %s, connect %" PRId64 ", silence %" PRId64 "%s%s%s",
                 r->method, r->path, tinkc_mock_request_ms(s->mock, s->n_requests) - s->base_ms,
                 pools[r->pool], r->connect_timeout_ms, r->idle_timeout_ms,
                 r->no_redirects ? ", no redirects" : "", r->base_url[0] ? ", to " : "",
                 r->base_url);
        add_headers(s, r);
        add_body(s, r);
    }
}

/* ---- events and logs ---- */

static void on_log(int32_t level, const char *line, void *user)
{
    static const char *const names[] = { "?", "error", "warning", "info", "debug" };
    script *s = user;
    pthread_mutex_lock(&s->lock);
    add_line(&s->logs, "log %s: %s", names[level], line);
    pthread_mutex_unlock(&s->lock);
}

static void on_event(const tinkc_event *e, void *user)
{
    static const char *const names[] = { "exchange", "retry",     "queue", "backoff", "billing",
                                         "session",  "heartbeat", "part",  "tokens" };
    script *s = user;
    size_t bit = 0;
    while (bit < 8 && !(e->kind >> bit & 1))
        bit++;
    char line[1200];
    int n = snprintf(line, sizeof line, "event %s", names[bit]);
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = { { "queue", e->queue_state }, { "status", e->http_status },
                    { "attempt", e->attempt },   { "elapsed", e->elapsed_ms },
                    { "wait", e->wait_ms },      { "left", e->left_ms },
                    { "part", (int64_t)e->part } };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].value)
            n += snprintf(line + n, sizeof line - (size_t)n, ", %s %" PRId64, numbers[i].name,
                          numbers[i].value);
    const char *const texts[] = { e->operation, e->request, e->request_id, e->text };
    for (size_t i = 0; i < 4; i++)
        n += snprintf(line + n, sizeof line - (size_t)n, "%s%.200s", i ? " | " : ": ",
                      texts[i] && texts[i][0] ? texts[i] : "-");
    add_line(&s->events, "%s", line);
}

static void add_kept(script *s, tkc_buf *kept)
{
    pthread_mutex_lock(&s->lock);
    tinkc_error err = { 0 };
    if (kept->len)
        tkc_buf_add(&s->record, kept->data, kept->len, &err);
    tkc_buf_clear(kept);
    pthread_mutex_unlock(&s->lock);
    assert_ok(&err);
}

static void add_events(script *s)
{
    tinkc_error err = { 0 };
    while (s->queue && tinkc_queue_run(s->queue, 0, &err) > 0)
        ;
    assert_ok(&err);
    add_kept(s, &s->events);
    add_kept(s, &s->logs);
}

/* ---- futures ---- */

static void add_error(script *s, const char *who, const tinkc_error *err)
{
    add_line(
        &s->record,
        "%s failed: %s, status %d, category %d, flags %u, request \"%s\", cause %s, retry after "
        "%d: %s",
        who, tinkc_code_name(err->code), (int)err->http_status, (int)err->category,
        (unsigned)err->flags, err->request_id, err->cause ? tinkc_code_name(err->cause) : "-",
        (int)err->retry_after_ms, err->message);
}

static void add_future(script *s, followed *w)
{
    char now[700], words[60] = "";
    tinkc_text status = { 0 };
    tinkc_error err = { 0 };
    int64_t done, total, for_ms = 0;
    int32_t attempts = 0, trouble = tinkc_future_retry_state(w->f, &attempts, &for_ms);
    tinkc_future_progress(w->f, &done, &total);
    if (trouble || attempts || for_ms)
        (void)snprintf(words, sizeof words, ", %.30s x%d for %" PRId64,
                       trouble ? tinkc_code_name(trouble) : "-", (int)attempts, for_ms);
    (void)snprintf(now, sizeof now,
                   "%s (%s): stage %d, queue %d, %" PRId64 " of %" PRId64
                   ", parts %zu%s, \"%s\", \"%s\"",
                   w->name, tinkc_future_operation(w->f), (int)tinkc_future_stage(w->f),
                   (int)tinkc_future_queue_state(w->f), done, total, tinkc_future_part_count(w->f),
                   words, tinkc_future_request_id(w->f), tinkc_future_status(w->f, &status, &err));
    tinkc_text_free(&status);
    if (strcmp(now, w->last) != 0)
        add_line(&s->record, "%s", now);
    memcpy(w->last, now, sizeof now);
    if (w->done || !tinkc_future_done(w->f))
        return;
    w->done = true;
    if (tinkc_future_wait(w->f, 0, &err)) {
        add_line(&s->record, "%s is done", w->name);
        return;
    }
    add_error(s, w->name, &err);
    tinkc_bytes body = tinkc_future_error_body(w->f);
    if (body.len)
        add_bytes(&s->record, body.data, body.len);
}

tinkc_future *follow(script *s, const char *name, tinkc_future *f)
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

void let_go(script *s, tinkc_future *f)
{
    for (size_t i = 0; i < s->n_followed; i++)
        if (s->all[i].f == f) {
            add_line(&s->record, "%s is freed", s->all[i].name);
            memmove(&s->all[i], &s->all[i + 1], (--s->n_followed - i) * sizeof *s->all);
        }
    tinkc_future_free(f);
    settle(s);
}

tinkc_error *script_err(script *s)
{
    return &s->err;
}

/* ---- time ---- */

int64_t settle(script *s)
{
    tinkc_error err = { 0 };
    int64_t next = tinkc_mock_settle(s->mock, PATIENCE_MS, &err);
    assert_ok(&err);
    add_requests(s);
    add_events(s);
    for (size_t i = 0; i < s->n_followed; i++)
        add_future(s, &s->all[i]);
    return next;
}

void pass(script *s, int64_t ms)
{
    s->clock_ms += ms;
    add_line(&s->record, "+ %" PRId64, ms);
    tinkc_mock_advance(s->mock, ms);
    settle(s);
}

void live(script *s, int64_t ms)
{
    while (ms > 0) {
        int64_t next = settle(s);
        int64_t step = next == TINKC_FOREVER || next > ms ? ms : next > 0 ? next : 1;
        pass(s, step);
        ms -= step;
    }
}

void finish_it(script *s, tinkc_future *f, int64_t limit_ms)
{
    while (f && !tinkc_future_done(f)) {
        int64_t next = settle(s);
        if (tinkc_future_done(f))
            return;
        if (next == TINKC_FOREVER || next > limit_ms) {
            add_line(&s->record, "# not done");
            return;
        }
        pass(s, next);
        limit_ms -= next;
    }
}

void hush(script *s, bool on)
{
    settle(s);
    if (on) {
        s->muted_from = s->record.len;
        return;
    }
    s->record.len = s->muted_from;
    s->muted_from = SIZE_MAX;
}

/* ---- answers ---- */

void answer_once(script *s, const char *path, int32_t status, const char *const *headers,
                 const char *body)
{
    tinkc_mock_answer a = { .status = status, .headers = headers, .body = body };
    assert_true(tinkc_mock_once(s->mock, NULL, path, &a, &s->err));
}

void answer_always(script *s, const char *path, int32_t status, const char *const *headers,
                   const char *body)
{
    tinkc_mock_answer a = { .status = status, .headers = headers, .body = body };
    assert_true(tinkc_mock_always(s->mock, NULL, path, &a, &s->err));
}

void fault_once(script *s, const char *path, int32_t fault)
{
    tinkc_mock_answer a = { .fault = fault };
    assert_true(tinkc_mock_once(s->mock, NULL, path, &a, &s->err));
}

/* ---- life ---- */

static void make_client(script *s, const tinkc_client_options *more)
{
    tinkc_client_options o = { 0 };
    if (more)
        o = *more;
    o.allocator = &s->allocator;
    o.log = on_log;
    o.log_user = s;
    o.log_level = o.log_level ? o.log_level : TINKC_LOG_DEBUG;
    s->client = mock_client(s->mock, &o, &s->err);
    if (!s->client) {
        add_error(s, "the client", &s->err);
        s->err = (tinkc_error){ 0 };
        return;
    }
    s->queue = tinkc_queue_new(s->client, &s->err);
    tinkc_client_on_event(s->client, s->queue, UINT32_MAX, on_event, s, &s->err);
    assert_ok(&s->err);
}

/* Where all is done, as long as telemetry needs on a slow machine: a close that may take no time cuts
 * it off after 50 ms of the real clock. */
static int64_t time_to_close(const script *s)
{
    for (size_t i = 0; i < s->n_followed; i++)
        if (!s->all[i].done)
            return 0;
    return PATIENCE_MS;
}

static void end_client(script *s)
{
    if (s->client) {
        settle(s);
        bool whole = tinkc_client_close(s->client, time_to_close(s), &s->err);
        assert_ok(&s->err);
        add_line(&s->record, "closed%s", whole ? "" : ", something was aborted");
        settle(s);
    }
    while (s->n_followed)
        tinkc_future_free(s->all[--s->n_followed].f);
    tinkc_queue_free(s->queue);
    tinkc_client_free(s->client);
    s->queue = NULL;
    s->client = NULL;
}

script *script_begin(const char *name, int32_t kind, const tinkc_client_options *more)
{
    script *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->name = name;
    s->muted_from = SIZE_MAX;
    pthread_mutex_init(&s->lock, NULL);
    tkc_buf_init(&s->record, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&s->logs, NULL, TKC_BUF_NO_MAX);
    tkc_buf_init(&s->events, NULL, TKC_BUF_NO_MAX);
    s->allocator = counting_allocator(&s->memory);
    s->mock = tinkc_mock_new(kind, &s->err);
    assert_ok(&s->err);
    const tinkc_clock *clock = tinkc_mock_clock(s->mock);
    s->base_ms = clock->now_ms(clock->self);
    make_client(s, more);
    return s;
}

void script_renew(script *s, const tinkc_client_options *more)
{
    end_client(s);
    add_line(&s->record, "---- another client ----");
    make_client(s, more);
}

tinkc_mock *script_mock(script *s)
{
    return s->mock;
}

tinkc_client *script_client(script *s)
{
    return s->client;
}

/* ---- the record and its file ---- */

static void show_difference(const char *name, tinkc_str is, tinkc_str was)
{
    size_t at = 0, line = 1, begin = 0;
    while (at < is.len && at < was.len && is.data[at] == was.data[at]) {
        if (is.data[at] == '\n') {
            line++;
            begin = at + 1;
        }
        at++;
    }
    fail_msg("%s.txt, line %zu:\n   is  %.*s\n   was %.*s", name, line,
             (int)strcspn(is.data + begin, "\n"), is.data + begin,
             (int)strcspn(was.data + begin, "\n"), was.data + begin);
}

static void compare(script *s)
{
    char path[300];
    tinkc_error err = { 0 };
    tkc_arena arena;
    (void)snprintf(path, sizeof path, "tests/data/client/%s.txt", s->name);
    tkc_buf_terminate(&s->record, &err);
    if (getenv("TINKC_WRITE_TRANSCRIPTS")) {
        tkc_write_file(path, s->record.data, s->record.len, 0644, &err);
        assert_ok(&err);
        return;
    }
    tkc_arena_init(&arena, NULL, 0);
    tinkc_bytes was = tkc_read_file(&arena, path, 1 << 26, &err);
    assert_ok(&err);
    char *text = tkc_arena_str(&arena, tkc_strn((const char *)was.data, was.len), &err);
    if (s->record.len != was.len || memcmp(s->record.data, text, was.len) != 0)
        show_difference(s->name, tkc_strn(s->record.data, s->record.len), tkc_strn(text, was.len));
    tkc_arena_free(&arena);
}

void script_end(script *s)
{
    end_client(s);
    assert_true(counting_is_empty_soon(&s->memory));
    tinkc_mock_free(s->mock);
    compare(s);
    forget_headers(s);
    tkc_buf_free(&s->record);
    tkc_buf_free(&s->logs);
    tkc_buf_free(&s->events);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
