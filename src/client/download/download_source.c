/* download_source.c - bytes of one address, whatever happens to the connection.
 *
 * Runs on a thread that may wait. May touch: pulls (body_stream.h), futures. Must not: write files,
 * or send a credential: addresses are signed.
 */
#include "client/download/download.h"

#include <stdio.h>
#include <string.h>
#include "client/core/client_priv.h"
#include "base/str.h"
#include "codec/url.h"

enum { MAX_FAILURES = 6, FIRST_PAUSE_MS = 100, PAUSE_CAP_MS = 5000 };

/* ---- stopping ---- */

bool tkc_stopper_init(tkc_stopper *s, tinkc_error *err)
{
    *s = (tkc_stopper){ 0 };
    pthread_mutex_init(&s->lock, NULL);
    if (tkc_cond_init(&s->cond, err))
        return true;
    pthread_mutex_destroy(&s->lock);
    return false;
}

void tkc_stopper_destroy(tkc_stopper *s)
{
    pthread_cond_destroy(&s->cond);
    pthread_mutex_destroy(&s->lock);
}

void tkc_stopper_stop(tkc_stopper *s)
{
    pthread_mutex_lock(&s->lock);
    s->stopped = true;
    /* Under the lock: the worker takes it before it releases either, so they are still there. */
    if (s->pull)
        tkc_pull_cancel(s->pull);
    if (s->sub)
        tinkc_future_cancel(s->sub);
    pthread_cond_broadcast(&s->cond);
    pthread_mutex_unlock(&s->lock);
}

bool tkc_stopper_is_stopped(tkc_stopper *s)
{
    pthread_mutex_lock(&s->lock);
    bool stopped = s->stopped;
    pthread_mutex_unlock(&s->lock);
    return stopped;
}

static void begin_pause(tkc_task *task)
{
    tkc_stopper *s = TKC_OWNER(task, tkc_stopper, pause.begin);
    tkc_loop_arm(s->pause.client->loop, &s->pause.timer, s->pause.ms);
}

static void pause_is_over(tkc_timer *timer)
{
    tkc_stopper *s = TKC_OWNER(timer, tkc_stopper, pause.timer);
    pthread_mutex_lock(&s->lock);
    s->pause.over = true;
    pthread_cond_broadcast(&s->cond);
    pthread_mutex_unlock(&s->lock);
}

static void end_pause(tkc_task *task)
{
    tkc_stopper *s = TKC_OWNER(task, tkc_stopper, pause.end);
    tkc_loop_disarm(s->pause.client->loop, &s->pause.timer);
    pthread_mutex_lock(&s->lock);
    s->pause.gone = true;
    pthread_cond_broadcast(&s->cond);
    pthread_mutex_unlock(&s->lock);
}

/* The loop stays while the worker runs, so both tasks come back. A pause that was cut short is taken out
 * of the loop before its memory may go. */
bool tkc_stopper_sleep(tkc_stopper *s, tinkc_client *client, int64_t ms)
{
    pthread_mutex_lock(&s->lock);
    s->pause.client = client;
    s->pause.begin.run = begin_pause;
    s->pause.end.run = end_pause;
    s->pause.timer.fire = pause_is_over;
    s->pause.ms = ms;
    s->pause.over = s->stopped; /* then it does not even begin */
    if (!s->stopped)
        tkc_loop_post(client->loop, &s->pause.begin);
    while (!s->stopped && !s->pause.over)
        pthread_cond_wait(&s->cond, &s->lock);
    if (!s->pause.over) {
        tkc_loop_post(client->loop, &s->pause.end);
        while (!s->pause.gone)
            pthread_cond_wait(&s->cond, &s->lock);
    }
    bool go_on = !s->stopped;
    pthread_mutex_unlock(&s->lock);
    return go_on;
}

/* Says what the worker waits for from now on. False: stopped already. */
static bool waits_for(tkc_stopper *s, tkc_pull *pull, tinkc_future *sub)
{
    pthread_mutex_lock(&s->lock);
    s->pull = pull;
    s->sub = sub;
    bool go_on = !s->stopped;
    pthread_mutex_unlock(&s->lock);
    return go_on;
}

static bool fail_stopped(tinkc_error *err)
{
    return tkc_fail(err, TINKC_E_CANCELLED, "the download was stopped");
}

/* ---- life ---- */

void tkc_source_init(tkc_source *s, tinkc_client *client, tkc_stopper *stop, tinkc_future *f)
{
    *s = (tkc_source){
        .client = client, .stop = stop, .f = f, .total = -1, .moved_ms = tkc_now_ms(client->clock)
    };
    tkc_arena_init(&s->arena, client->a, 0);
}

static void drop_pull(tkc_source *s)
{
    waits_for(s->stop, NULL, NULL);
    tkc_pull_free(s->pull);
    s->pull = NULL;
}

void tkc_source_end(tkc_source *s)
{
    drop_pull(s);
    tkc_arena_free(&s->arena);
}

/* ---- opening ---- */

static bool count_bytes(tkc_source *s, size_t n, tinkc_error *err)
{
    s->pos += (int64_t)n;
    /* Bytes came: the next failure is a first one again. */
    s->failures = 0;
    s->moved_ms = tkc_now_ms(s->client->clock);
    tkc_op_progress(s->f, s->before + s->pos, s->file ? -1 : s->total);
    if (s->max_bytes > 0 && s->pos > s->max_bytes)
        return tkc_fail(err, TINKC_E_BAD_RESPONSE, "larger than max_bytes");
    if (s->total >= 0 && s->pos > s->total)
        return tkc_fail(err, TINKC_E_BAD_RESPONSE, "more bytes came than the length said");
    return true;
}

bool tkc_stopper_wait(tkc_stopper *s, tinkc_future *f, tinkc_error *err)
{
    if (!waits_for(s, NULL, f))
        tinkc_future_cancel(f);
    bool ok = tinkc_future_wait(f, TINKC_FOREVER, err);
    waits_for(s, NULL, NULL);
    return ok;
}

/* Where `name` lies, among all files of the checkpoint; NULL = it is not among them any more. */
static const char *link_of(tinkc_future *f, const char *name)
{
    const tinkc_links *links = tinkc_future_links(f, 0, NULL);
    for (size_t i = 0; i < tinkc_links_count(links); i++)
        if (strcmp(tinkc_links_at(links, i)->name, name) == 0)
            return tinkc_links_at(links, i)->url;
    return NULL;
}

/* Asks the service for an address that is good now. */
static bool ask_address(tkc_source *s, tinkc_error *err)
{
    tinkc_future *f = s->file ? tinkc_checkpoint_links(s->client, s->path, err)
                              : tinkc_checkpoint_archive(s->client, s->path, err);
    if (tkc_stopper_wait(s->stop, f, err)) {
        const char *url = s->file ? link_of(f, s->file) : tinkc_future_archive(f, 0, err)->url;
        if (url)
            s->url = tkc_arena_cstr(&s->arena, url, err);
        else
            tkc_fail(err, TINKC_E_NOT_FOUND, "%s: no longer a file of %s", s->file, s->path);
    }
    tinkc_future_free(f);
    return !tkc_failed(err);
}

static const char *const *make_headers(const tkc_source *s, const char **list, char *range,
                                       size_t range_cap)
{
    size_t n = 0;
    /* A Range counts bytes as they are sent: packed, they would be others. */
    list[n++] = "Accept-Encoding";
    list[n++] = "identity";
    if (s->pos > 0) {
        snprintf(range, range_cap, "bytes=%lld-", (long long)s->pos);
        list[n++] = "Range";
        list[n++] = range;
        /* A weak mark may stand for other bytes. */
        if (s->etag[0] && strncmp(s->etag, "W/", 2) != 0) {
            list[n++] = "If-Range";
            list[n++] = s->etag;
        }
    }
    list[n] = NULL;
    return list;
}

/* The I/O thread, in the place of a reader that sleeps. What the reader has to judge is left to
 * it: bytes to drop, and too many of them. */
static size_t take_for_reader(void *user, const void *bytes, size_t len)
{
    tkc_source *s = user;
    tinkc_error none = { 0 };
    int64_t end = s->pos + (int64_t)len;
    if (s->skip > 0 || (s->max_bytes > 0 && end > s->max_bytes) ||
        (s->total >= 0 && end > s->total))
        return 0;
    size_t n = tkc_fd_sink_try(s->sink, bytes, len);
    s->travelled += (int64_t)n;
    if (n)
        count_bytes(s, n, &none);
    return n;
}

static bool start_pull(tkc_source *s, tinkc_error *err)
{
    tkc_arena arena;
    tkc_url url;
    char range[40];
    const char *list[7], *path = NULL;
    tkc_arena_init(&arena, s->client->a, 0);
    if (tkc_url_parse(tkc_str(s->url), &arena, &url, err))
        path = url.query ? tkc_arena_printf(&arena, err, "%s?%s", url.path, url.query) : url.path;
    s->pull = path ? tkc_pull_new(s->client, "download_body", err) : NULL;
    if (s->pull) {
        tkc_call_spec spec = { .method = "GET",
                               .path = path,
                               .pool = TINKC_POOL_REST,
                               .need = TKC_NEED_NOTHING,
                               .anonymous = true,
                               .base_url = url.origin,
                               .accept = "*/*",
                               .headers = make_headers(s, list, range, sizeof range) };
        tkc_pull_sink(s->pull, &spec);
        if (s->sink)
            tkc_pull_take(s->pull, take_for_reader, s);
        tkc_call *call = tkc_call_new(s->client, &spec, err);
        if (call) {
            tkc_pull_start(s->pull, call, false);
            if (!waits_for(s->stop, s->pull, NULL))
                tkc_pull_cancel(s->pull);
        } else {
            tkc_pull_free(s->pull);
            s->pull = NULL;
        }
    }
    tkc_arena_free(&arena);
    return s->pull != NULL;
}

/* "bytes 100-199/200": where it begins and how much there is in all (-1 = "*"). */
static bool read_content_range(const char *text, int64_t *from, int64_t *total)
{
    tinkc_str s = tkc_str(text), first;
    if (!text || !tkc_starts_with(s, "bytes "))
        return false;
    s = tkc_strn(s.data + 6, s.len - 6);
    size_t dash = tkc_str_find(s, '-'), slash = tkc_str_find(s, '/');
    if (dash >= slash || slash == s.len)
        return false;
    first = tkc_strn(s.data, dash);
    tinkc_str last = tkc_strn(s.data + slash + 1, s.len - slash - 1);
    *total = -1;
    return tkc_parse_i64(tkc_str_trim(first), from) &&
           (tkc_str_is(last, "*") || tkc_parse_i64(tkc_str_trim(last), total));
}

static bool fail_changed(tkc_source *s, tinkc_error *err)
{
    s->changed = true;
    return tkc_fail(err, TINKC_E_BAD_RESPONSE, "the file has changed since the download began");
}

static bool check_etag(tkc_source *s, const tinkc_response *head, tinkc_error *err)
{
    const char *etag = tinkc_response_header(head, "etag");
    if (!etag || strlen(etag) >= sizeof s->etag)
        return true;
    if (s->etag[0] && strcmp(s->etag, etag) != 0)
        return fail_changed(s, err);
    memcpy(s->etag, etag, strlen(etag) + 1);
    return true;
}

/* The head says what is about to come: all, or the part asked for, of the same bytes as before. */
static bool accept_head(tkc_source *s, const tinkc_response *head, tinkc_error *err)
{
    int64_t from = 0, total = -1;
    bool partial = tinkc_response_status(head) == 206;
    if (partial &&
        (!read_content_range(tinkc_response_header(head, "content-range"), &from, &total) ||
         from != s->pos))
        return tkc_fail(err, TINKC_E_BAD_RESPONSE, "the server sent another part than asked for");
    if (!partial) {
        const char *length = tinkc_response_header(head, "content-length");
        if (length && (!tkc_parse_i64(tkc_str(length), &total) || total < 0))
            return tkc_fail(err, TINKC_E_BAD_RESPONSE, "the length is not a number");
        /* It does not know Range: what is here already is dropped as it comes. */
        s->skip = s->pos;
    }
    if (s->total >= 0 && total >= 0 && s->total != total)
        return fail_changed(s, err);
    if (total >= 0)
        s->total = total;
    if (s->max_bytes > 0 && s->total > s->max_bytes)
        return tkc_fail(err, TINKC_E_BAD_RESPONSE, "larger than max_bytes: %lld bytes",
                        (long long)s->total);
    return check_etag(s, head, err);
}

static bool open_source(tkc_source *s, tinkc_error *err)
{
    s->skip = 0;
    if (!s->url && !ask_address(s, err))
        return false;
    if (!start_pull(s, err))
        return false;
    const tinkc_response *head = tkc_pull_head(s->pull, TINKC_FOREVER, err);
    return head && accept_head(s, head, err);
}

/* ---- reading ---- */

/* Nothing has come for as long as the client tries things again: what is inside this source has
 * used up its own attempts, and repeating those would only multiply them. */
static bool patience_is_over(const tkc_source *s)
{
    int64_t window = s->client->retry_window_ms;
    return window != TINKC_FOREVER && tkc_now_ms(s->client->clock) - s->moved_ms >= window;
}

/* True: worth another try, after a pause. */
static bool take_up_again(tkc_source *s, tinkc_error *err)
{
    int32_t status = err->http_status;
    /* What stores answer when the signature of an address has run out. */
    bool expired =
        s->path && s->url &&
        (status == 400 || status == 401 || status == 403 || status == 404 || status == 410);
    bool weather = err->code == TINKC_E_CONNECTION || err->code == TINKC_E_NET_TIMEOUT ||
                   status == 408 || status == 429 || status >= 500;
    drop_pull(s);
    if ((!expired && !weather) || s->client->no_retries || ++s->failures > MAX_FAILURES ||
        patience_is_over(s))
        return false;
    if (expired) {
        if (s->failures > 2) /* a fresh address is refused as well */
            return false;
        s->url = NULL;
    }
    int64_t pause = (int64_t)FIRST_PAUSE_MS << (s->failures - 1);
    if (err->retry_after_ms > pause)
        pause = err->retry_after_ms;
    pause = pause < PAUSE_CAP_MS ? pause : PAUSE_CAP_MS;
    tkc_client_log(s->client, TINKC_LOG_INFO, "download: %s; next try in %lld ms", err->message,
                   (long long)pause);
    if (!tkc_stopper_sleep(s->stop, s->client, pause))
        return false;
    *err = (tinkc_error){ 0 };
    return true;
}

/* Bytes that were there already: the other side began again. False if that was all of them. */
static bool drop_skipped(tkc_source *s, size_t *n, const void **bytes)
{
    size_t drop = (int64_t)*n < s->skip ? *n : (size_t)s->skip;
    s->skip -= (int64_t)drop;
    *n -= drop;
    *bytes = (const char *)*bytes + drop;
    return *n > 0;
}

size_t tkc_source_next(tkc_source *s, const void **bytes, tinkc_error *err)
{
    for (;;) {
        size_t n = 0;
        tinkc_error failed = { 0 };
        if (s->total >= 0 && s->pos == s->total && s->pull == NULL && s->pos > 0)
            return 0; /* taken up behind the last byte */
        if (s->pull || open_source(s, &failed))
            n = tkc_pull_next(s->pull, bytes, &failed);
        if (n) {
            s->travelled += (int64_t)n;
            if (!drop_skipped(s, &n, bytes))
                continue;
            return count_bytes(s, n, err) ? n : 0;
        }
        if (!failed.code) {
            if (s->total < 0 || s->pos >= s->total)
                return 0;
            tkc_fail(&failed, TINKC_E_CONNECTION, "the body ended %lld bytes early",
                     (long long)(s->total - s->pos));
        }
        if (take_up_again(s, &failed))
            continue;
        if (tkc_stopper_is_stopped(s->stop))
            fail_stopped(err);
        else
            tkc_error_copy(err, &failed);
        return 0;
    }
}
