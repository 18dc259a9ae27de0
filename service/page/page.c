/* page.c - requests from browsers, and the thread that answers them.
 *
 * Scripts are answered at once. Everything that touches a disk is queued for the thread; viewers
 * (open event streams) are a list that it walks twice a second. Locks: page->lock guards the two
 * lists; no other lock is taken inside it, and nothing is written, read or waited for under it.
 */
#include "service/page/page.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json_write.h"
#include "base/str.h"
#include "base/thread.h"
#include "codec/query.h"
#include "service/page/assets.h"
#include "service/page/logdirs.h"
#include "tinkc/version.h"

enum {
    MAX_VIEWERS = 32,
    MAX_ASKS = 64,
    TICK_MS = 500,
    STATUS_EVERY = 2,      /* ticks */
    SCAN_SHARE = 10,       /* a scan takes at most this part of the time: 1/10 */
    ROOM_WANTED = 1 << 18, /* bytes; a reader that is further behind gets no events */
    STUCK_TICKS = 120      /* closed after this many ticks without room */
};

typedef struct ask { /* a file is to be read */
    struct ask *next;
    tinkc_reply *reply;
    char run[TKE_RUN_ID];
    int file;
    int64_t from;
} ask;

typedef struct viewer { /* an open stream of events */
    struct viewer *next;
    tinkc_reply *reply;
    char owner[32];
    bool cancelled; /* page->lock */
    /* the thread's alone */
    bool greeted;
    uint64_t version; /* of the runs it has seen */
    int stuck;        /* ticks without room */
} viewer;

struct tke_page {
    const tinkc_allocator *a;
    tke_page_status_fn *status;
    void *status_user;
    bool chat, keys;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ask *first_ask, **last_ask;
    size_t n_asks;
    viewer *viewers;
    size_t n_viewers;
    bool stop;

    /* the thread's alone */
    tke_logdirs logs;
    uint64_t ticks;
};

const tke_asset *tke_asset_find(const char *name, size_t len)
{
    for (const tke_asset *asset = tke_assets; asset->name; asset++)
        if (tkc_str_is(tkc_strn(name, len), asset->name))
            return asset;
    return NULL;
}

/* ---- answers ---- */

static void send_text(tinkc_reply *reply, int32_t status, const char *type, tinkc_str body)
{
    reply->status(reply, status);
    reply->header(reply, "Content-Type", type);
    reply->header(reply, "Cache-Control", "no-store");
    if (body.len)
        (void)reply->write(reply, body.data, body.len);
    reply->end(reply);
}

static void send_error(tinkc_reply *reply, int32_t status, const char *code, const char *detail)
{
    char body[300];
    (void)snprintf(body, sizeof body, "{\"detail\":\"%s\",\"code\":\"%s\"}", detail, code);
    send_text(reply, status, "application/json", tkc_str(body));
}

static const char *header_of(const tinkc_request *request, const char *name)
{
    for (size_t i = 0; request->headers && request->headers[i]; i += 2)
        if (tkc_str_is_nocase(tkc_str(request->headers[i]), name))
            return request->headers[i + 1];
    return NULL;
}

static void send_asset(const tinkc_request *request, tinkc_reply *reply, const tke_asset *asset)
{
    const char *known = header_of(request, "If-None-Match");
    bool same = known && strstr(known, asset->etag);
    reply->status(reply, same ? 304 : 200);
    reply->header(reply, "Content-Type", asset->type);
    /* Asked about each time: after an update of the server the page and its scripts must be of one
     * version. */
    reply->header(reply, "Cache-Control", "no-cache");
    reply->header(reply, "ETag", asset->etag);
    if (!same)
        (void)reply->write(reply, asset->data, asset->len);
    reply->end(reply);
}

/* ---- requests ---- */

static tinkc_str path_of(const char *uri)
{
    return tkc_strn(uri, strcspn(uri, "?"));
}

/* The page's file behind a path; NULL = none. */
static const tke_asset *asset_of(tinkc_str path)
{
    if (tkc_str_is(path, "/") || tkc_str_is(path, "/ui") || tkc_str_is(path, "/ui/"))
        path = tkc_str("/ui/index.html");
    return tkc_starts_with(path, "/ui/") ? tke_asset_find(path.data + 4, path.len - 4) : NULL;
}

bool tke_page_owns(const char *uri)
{
    tinkc_str path = path_of(uri);
    return asset_of(path) || (tkc_starts_with(path, "/ui/") && !tkc_starts_with(path, "/ui/v1/"));
}

bool tke_page_is_public(const char *uri)
{
    return asset_of(path_of(uri)) != NULL;
}

bool tke_page_is_stream(const char *uri)
{
    return tkc_str_is(path_of(uri), "/ui/events");
}

/* "/ui/runs/ID/FILE?from=N" */
static bool parse_ask(const tke_page *page, const char *uri, ask *out)
{
    static const char prefix[] = "/ui/runs/";
    tinkc_str path = path_of(uri), id;
    tinkc_error err = { 0 };
    tkc_arena arena;
    if (!tkc_starts_with(path, prefix))
        return false;
    tinkc_str rest = tkc_strn(path.data + sizeof prefix - 1, path.len - (sizeof prefix - 1));
    if (!tkc_str_cut(&rest, '/', &id) || id.len != TKE_RUN_ID - 1)
        return false;
    memcpy(out->run, id.data, id.len);
    out->file = tke_run_file_named(rest);
    if (uri[path.len] == '?') {
        tkc_arena_init(&arena, page->a, 0);
        const char *from = tkc_query_find(tkc_str(uri + path.len + 1), "from", &arena, &err);
        bool ok = !from || tkc_parse_i64(tkc_str(from), &out->from);
        tkc_arena_free(&arena);
        if (!ok)
            return false;
    }
    return out->file >= 0 && out->from >= 0;
}

static void queue_ask(tke_page *page, const ask *wanted, tinkc_reply *reply)
{
    tinkc_error err = { 0 };
    ask *q = tkc_alloc(page->a, sizeof *q, &err);
    pthread_mutex_lock(&page->lock);
    /* Bounded: one thread reads the files for all pages. */
    bool taken = q && !page->stop && page->n_asks < MAX_ASKS;
    if (taken) {
        *q = *wanted;
        q->next = NULL;
        q->reply = reply;
        *page->last_ask = q;
        page->last_ask = &q->next;
        page->n_asks++;
        pthread_cond_signal(&page->changed);
    }
    pthread_mutex_unlock(&page->lock);
    if (taken)
        return;
    tkc_release(page->a, q, sizeof *q);
    send_error(reply, 503, "busy", "Too many requests of the page at once; try again");
}

static void add_viewer(tke_page *page, tinkc_reply *reply, const char *owner)
{
    tinkc_error err = { 0 };
    viewer *v = tkc_zalloc(page->a, sizeof *v, &err);
    if (v) {
        v->reply = reply;
        (void)snprintf(v->owner, sizeof v->owner, "%s", owner);
    }
    pthread_mutex_lock(&page->lock);
    bool taken = v && !page->stop && page->n_viewers < MAX_VIEWERS;
    if (taken) {
        v->next = page->viewers;
        page->viewers = v;
        page->n_viewers++;
        pthread_cond_signal(&page->changed);
    }
    pthread_mutex_unlock(&page->lock);
    if (taken)
        return;
    tkc_release(page->a, v, sizeof *v);
    send_error(reply, 503, "busy", "Too many pages are open; close one");
}

void tke_page_handle(tke_page *page, const tinkc_request *request, tinkc_reply *reply,
                     const char *owner)
{
    ask wanted = { .from = 0 };
    const tke_asset *asset = asset_of(path_of(request->path));
    if (!tkc_cstr_eq(request->method, "GET") && !tkc_cstr_eq(request->method, "HEAD"))
        send_error(reply, 405, "method_not_allowed", "Only GET is served here");
    else if (asset)
        send_asset(request, reply, asset);
    else if (tke_page_is_stream(request->path))
        add_viewer(page, reply, owner);
    else if (parse_ask(page, request->path, &wanted))
        queue_ask(page, &wanted, reply);
    else
        send_error(reply, 404, "not_found", "The page has no such address");
}

void tke_page_cancel(tke_page *page, const tinkc_reply *reply)
{
    pthread_mutex_lock(&page->lock);
    for (viewer *v = page->viewers; v; v = v->next)
        /* Only marked: the page's thread may be writing to it. */
        if (v->reply == reply)
            v->cancelled = true;
    pthread_cond_signal(&page->changed);
    pthread_mutex_unlock(&page->lock);
}

/* ---- the thread: files ---- */

static bool send_rows(const tke_page *page, const ask *q, int fd)
{
    tinkc_error err = { 0 };
    tke_lines place = { 0 };
    tkc_buf rows, out;
    tkc_buf_init(&rows, page->a, TKC_BUF_NO_MAX);
    tkc_buf_init(&out, page->a, TKC_BUF_NO_MAX);
    bool ok = tke_lines_read(fd, q->from, q->file == TKE_RUN_METRICS, &rows, &place, &err) &&
              tkc_buf_printf(&out, &err,
                             "{\"from\":%lld,\"next\":%lld,\"size\":%lld,\"more\":%s,"
                             "\"left_out\":%zu,\"rows\":",
                             (long long)place.from, (long long)place.next, (long long)place.size,
                             place.more ? "true" : "false", place.left_out) &&
              tkc_buf_str(&out, tkc_buf_view(&rows), &err) && tkc_buf_char(&out, '}', &err);
    if (ok)
        send_text(q->reply, 200, "application/json", tkc_buf_view(&out));
    tkc_buf_free(&rows);
    tkc_buf_free(&out);
    return ok;
}

/* config.json as it is, if it is JSON. */
static bool send_config(const tke_page *page, const ask *q, int fd)
{
    tinkc_error err = { 0 };
    tkc_arena arena;
    tinkc_str row = { 0 };
    tkc_arena_init(&arena, page->a, 0);
    char *text = tkc_alloc(page->a, TKE_LINES_CHUNK, &err);
    ssize_t n = text ? pread(fd, text, TKE_LINES_CHUNK, 0) : -1;
    /* A longer file was cut off, so what was read is not JSON. */
    bool ok = n > 0 && n < TKE_LINES_CHUNK &&
              tke_line_row(tkc_strn(text, (size_t)n), false, &arena, &row);
    if (ok)
        send_text(q->reply, 200, "application/json", row);
    tkc_release(page->a, text, TKE_LINES_CHUNK);
    tkc_arena_free(&arena);
    return ok;
}

typedef struct log_tail {
    tkc_arena arena;
    tkc_buf text;
    tinkc_error err;
} log_tail;

static void take_log_line(tinkc_str line, void *user)
{
    log_tail *t = user;
    tkc_arena_reset(&t->arena);
    char *shown = tkc_arena_str(&t->arena, line, &t->err);
    if (!shown)
        return;
    /* A command may write any bytes; JSON must be UTF-8. */
    tke_make_showable(shown);
    tkc_buf_cstr(&t->text, shown, &t->err);
    tkc_buf_char(&t->text, '\n', &t->err);
}

/* The end of what the run's command said. */
static bool send_log(const tke_page *page, const ask *q, int fd)
{
    log_tail t = { .err = { 0 } };
    tkc_buf out;
    tkc_jsonw w;
    tkc_arena_init(&t.arena, page->a, 0);
    tkc_buf_init(&t.text, page->a, TKC_BUF_NO_MAX);
    tkc_buf_init(&out, page->a, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&w, &out, &t.err);
    if (tke_lines_tail(fd, page->a, take_log_line, &t, &t.err)) {
        tkc_jsonw_object(&w);
        tkc_jsonw_key(&w, "text");
        tkc_jsonw_str(&w, tkc_buf_view(&t.text));
        tkc_jsonw_end(&w);
    }
    bool ok = !tkc_failed(&t.err);
    if (ok)
        send_text(q->reply, 200, "application/json", tkc_buf_view(&out));
    tkc_buf_free(&t.text);
    tkc_buf_free(&out);
    tkc_arena_free(&t.arena);
    return ok;
}

static bool send_file(const tke_page *page, const ask *q, int fd)
{
    return q->file == TKE_RUN_CONFIG ? send_config(page, q, fd)
           : q->file == TKE_RUN_LOG  ? send_log(page, q, fd)
                                     : send_rows(page, q, fd);
}

static void answer(tke_page *page, const ask *q)
{
    tinkc_error err = { 0 };
    const tke_logged_run *run = tke_logdirs_run(&page->logs, tkc_str(q->run));
    /* It may be newer than the last scan. */
    if (!run && tke_logdirs_scan(&page->logs, &err))
        run = tke_logdirs_run(&page->logs, tkc_str(q->run));
    int fd = run ? tke_run_open(run, q->file) : -1;
    bool ok = fd >= 0 && send_file(page, q, fd);
    if (fd >= 0)
        close(fd);
    if (ok)
        return;
    if (!run)
        send_error(q->reply, 404, "not_found", "There is no such run; it may have been removed");
    else if (fd < 0)
        send_error(q->reply, 404, "not_found", "The run has no such file");
    else
        send_error(q->reply, 500, "file", "The file could not be read");
}

/* ---- the thread: events ---- */

static void add_event(tkc_buf *out, const char *name, tinkc_str data, tinkc_error *err)
{
    tkc_buf_printf(out, err, "event: %s\ndata: ", name);
    tkc_buf_str(out, data, err); /* compact JSON: no line break in it */
    tkc_buf_cstr(out, "\n\n", err);
}

static void add_hello(const tke_page *page, tkc_buf *out, tinkc_error *err)
{
    char text[200];
    (void)snprintf(text, sizeof text,
                   "{\"version\":\"%s\",\"chat\":%s,\"keys\":%s,\"log_dirs\":%zu}", TINKC_VERSION,
                   page->chat ? "true" : "false", page->keys ? "true" : "false",
                   page->logs.n_roots);
    add_event(out, "hello", tkc_str(text), err);
}

/* A viewer that has seen none, or that must drop a removed run, gets all of them; others get the
 * changed ones. */
static void add_runs(const tke_page *page, const viewer *v, tkc_buf *out, tinkc_error *err)
{
    const tkc_map_entry *e;
    bool all = !v->greeted || v->version < page->logs.removed;
    int64_t now_us = tkc_wall_us(tkc_clock_real());
    tkc_buf_cstr(out, all ? "event: runs\ndata: [" : "", err);
    bool first = true;
    for (size_t at = 0; (e = tkc_map_next(&page->logs.runs, &at));) {
        const tke_logged_run *run = e->value;
        if (!all && run->version <= v->version)
            continue;
        tkc_buf_cstr(out, !all ? "event: run\ndata: " : first ? "" : ",", err);
        tke_run_describe(run, now_us, out, err);
        tkc_buf_cstr(out, all ? "" : "\n\n", err);
        first = false;
    }
    tkc_buf_cstr(out, all ? "]\n\n" : "", err);
}

static void add_status(const tke_page *page, const viewer *v, tkc_buf *out, tinkc_error *err)
{
    tinkc_error local = { 0 };
    tkc_buf text;
    tkc_buf_init(&text, page->a, TKC_BUF_NO_MAX);
    if (page->status && page->status(page->status_user, v->owner, &text, &local))
        add_event(out, "status", tkc_buf_view(&text), err);
    else
        tkc_buf_cstr(out, ":\n\n", err); /* a ping: also detects a closed connection */
    tkc_buf_free(&text);
}

/* False: the viewer must be ended. */
static bool feed(tke_page *page, viewer *v)
{
    tinkc_error err = { 0 };
    tkc_buf out;
    if (v->reply->room && v->reply->room(v->reply) < ROOM_WANTED)
        return ++v->stuck < STUCK_TICKS; /* it gets the newest state when it has caught up */
    v->stuck = 0;
    tkc_buf_init(&out, page->a, TKC_BUF_NO_MAX);
    if (!v->greeted) {
        v->reply->status(v->reply, 200);
        v->reply->header(v->reply, "Content-Type", "text/event-stream");
        v->reply->header(v->reply, "Cache-Control", "no-store");
        add_hello(page, &out, &err);
    }
    if (v->version < page->logs.version || !v->greeted)
        add_runs(page, v, &out, &err);
    if (!v->greeted || page->ticks % STATUS_EVERY == 0)
        add_status(page, v, &out, &err);
    bool ok = !tkc_failed(&err) && (out.len == 0 || v->reply->write(v->reply, out.data, out.len));
    v->version = page->logs.version;
    v->greeted = true;
    tkc_buf_free(&out);
    return ok;
}

/* Takes a viewer off the list and ends its stream. */
static void end_viewer(tke_page *page, viewer *v)
{
    pthread_mutex_lock(&page->lock);
    for (viewer **at = &page->viewers; *at; at = &(*at)->next)
        if (*at == v) {
            *at = v->next;
            page->n_viewers--;
            break;
        }
    pthread_mutex_unlock(&page->lock);
    if (!v->greeted)
        v->reply->status(v->reply, 503);
    v->reply->end(v->reply); /* a later cancel finds no viewer and does nothing */
    tkc_release(page->a, v, sizeof *v);
}

/* The next viewer after `v` (NULL = the first); with `cancelled`, only cancelled ones. */
static viewer *next_viewer(tke_page *page, const viewer *v, bool cancelled)
{
    pthread_mutex_lock(&page->lock);
    viewer *next = v ? v->next : page->viewers;
    while (next && cancelled && !next->cancelled)
        next = next->next;
    pthread_mutex_unlock(&page->lock);
    return next;
}

static void end_cancelled(tke_page *page)
{
    for (viewer *v; (v = next_viewer(page, NULL, true));)
        end_viewer(page, v);
}

static void tick(tke_page *page)
{
    tinkc_error err = { 0 };
    (void)tke_logdirs_scan(&page->logs, &err); /* if memory is short, the next tick tries again */
    for (viewer *v = next_viewer(page, NULL, false), *next; v; v = next) {
        next = next_viewer(page, v, false);
        if (!feed(page, v))
            end_viewer(page, v);
    }
    page->ticks++;
}

/* ---- the thread ---- */

static ask *take_ask(tke_page *page)
{
    pthread_mutex_lock(&page->lock);
    ask *q = page->first_ask;
    if (q) {
        page->first_ask = q->next;
        page->n_asks--;
        if (!page->first_ask)
            page->last_ask = &page->first_ask;
    }
    pthread_mutex_unlock(&page->lock);
    return q;
}

/* Waits until there is something to do. False: stop. */
static bool wait_for_work(tke_page *page, int64_t next_tick_ns)
{
    pthread_mutex_lock(&page->lock);
    for (;;) {
        bool waits = false, fresh = false;
        for (const viewer *v = page->viewers; v; v = v->next) {
            waits |= v->cancelled;
            fresh |= !v->greeted;
        }
        if (page->stop || page->first_ask || waits || fresh)
            break;
        /* Without a viewer nothing is scanned. */
        int64_t until = page->viewers ? next_tick_ns : INT64_MAX;
        if (!tkc_cond_wait_until(&page->changed, &page->lock, until))
            break;
    }
    bool on = !page->stop;
    pthread_mutex_unlock(&page->lock);
    return on;
}

static bool has_fresh(tke_page *page)
{
    bool fresh = false;
    pthread_mutex_lock(&page->lock);
    for (const viewer *v = page->viewers; v; v = v->next)
        fresh |= !v->greeted;
    pthread_mutex_unlock(&page->lock);
    return fresh;
}

static void *run_page(void *arg)
{
    tke_page *page = arg;
    int64_t next_ns = 0;
    while (wait_for_work(page, next_ns)) {
        ask *q;
        end_cancelled(page);
        while ((q = take_ask(page))) {
            answer(page, q);
            tkc_release(page->a, q, sizeof *q);
        }
        int64_t now = tkc_monotonic_ns();
        if (now < next_ns && !has_fresh(page))
            continue;
        tick(page);
        /* A scan that takes long is made less often, so that many log directories do not keep a
         * core busy. */
        int64_t took = tkc_monotonic_ns() - now, pause = TICK_MS * (int64_t)1000000;
        next_ns = now + (took * SCAN_SHARE > pause ? took * SCAN_SHARE : pause);
    }
    return NULL;
}

/* ---- begin and end ---- */

tke_page *tke_page_new(const tke_page_options *o, tinkc_error *err)
{
    tke_page *page = tkc_zalloc(o->a, sizeof *page, err);
    if (!page)
        return NULL;
    *page = (tke_page){ .a = o->a,
                        .status = o->status,
                        .status_user = o->status_user,
                        .chat = o->chat,
                        .keys = o->keys };
    page->last_ask = &page->first_ask;
    pthread_mutex_init(&page->lock, NULL);
    bool condition = tkc_cond_init(&page->changed, err);
    if (condition && tke_logdirs_init(&page->logs, o->a, o->log_dirs, err) &&
        tkc_thread_start(&page->thread, run_page, page, "tinkc-page", err))
        return page;
    if (page->logs.roots)
        tke_logdirs_free(&page->logs);
    if (condition)
        pthread_cond_destroy(&page->changed);
    pthread_mutex_destroy(&page->lock);
    tkc_release(o->a, page, sizeof *page);
    return NULL;
}

void tke_page_free(tke_page *page)
{
    if (!page)
        return;
    pthread_mutex_lock(&page->lock);
    page->stop = true;
    pthread_cond_signal(&page->changed);
    pthread_mutex_unlock(&page->lock);
    pthread_join(page->thread, NULL);
    assert(!page->viewers && !page->first_ask);
    tke_logdirs_free(&page->logs);
    pthread_cond_destroy(&page->changed);
    pthread_mutex_destroy(&page->lock);
    tkc_release(page->a, page, sizeof *page);
}
