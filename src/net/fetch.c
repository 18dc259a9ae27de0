/* fetch.c - one HTTP request at a time, with libcurl, on the caller's thread.
 *
 * May touch: libcurl through curl_lib.h, the descriptor of a body. Must not: retry, or carry a
 * token to another origin (redirects are followed here and not by libcurl for that reason).
 */
#include "net/fetch.h"

#include <errno.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "base/str.h"
#include "codec/url.h"
#include "net/http_internal.h"

enum { POLL_MS = 100, TEXT_MAX = 64 * 1024, HEAD_MAX = 256 * 1024 };

struct tkc_fetcher {
    const tinkc_allocator *a;
    const tkc_fetcher_options *o;
    const tkc_curl *curl;
    CURL *easy;
    CURLM *multi;
};

typedef struct hop { /* one request on the way along redirects */
    tkc_fetcher *f;
    tkc_fetch *r;
    const char *url;
    bool foreign; /* not the first origin: no token, no headers that could identify the user */
    bool head_seen;
    int64_t at; /* offset in the body */
    struct curl_slist *lines;
    tinkc_error *err;
    char detail[CURL_ERROR_SIZE];
} hop;

tkc_fetcher *tkc_fetcher_new(const tinkc_allocator *a, const tkc_fetcher_options *o,
                             tinkc_error *err)
{
    const tkc_curl *curl = tkc_curl_get(err);
    tkc_fetcher *f = curl ? tkc_zalloc(a, sizeof *f, err) : NULL;
    if (!f)
        return NULL;
    *f = (tkc_fetcher){ .a = a, .o = o, .curl = curl };
    f->easy = curl->easy_init();
    f->multi = f->easy ? curl->multi_init() : NULL;
    if (f->multi)
        return f;
    tkc_fail_memory(err);
    tkc_fetcher_free(f);
    return NULL;
}

void tkc_fetcher_free(tkc_fetcher *f)
{
    if (!f)
        return;
    if (f->easy)
        f->curl->easy_cleanup(f->easy);
    if (f->multi)
        f->curl->multi_cleanup(f->multi);
    tkc_release(f->a, f, sizeof *f);
}

void tkc_fetch_init(tkc_fetch *r, const tinkc_allocator *a)
{
    *r = (tkc_fetch){ .body_fd = -1, .max_text = TEXT_MAX };
    tkc_buf_init(&r->text, a, TKC_BUF_NO_MAX);
    tkc_buf_init(&r->pairs, a, HEAD_MAX);
}

void tkc_fetch_end(tkc_fetch *r)
{
    tkc_buf_free(&r->text);
    tkc_buf_free(&r->pairs);
}

const char *tkc_fetch_header(const tkc_fetch *r, const char *name)
{
    for (size_t at = 0; at < r->pairs.len;) {
        const char *key = r->pairs.data + at, *value = key + strlen(key) + 1;
        if (strcasecmp(key, name) == 0)
            return value;
        at = (size_t)(value - r->pairs.data) + strlen(value) + 1;
    }
    return NULL;
}

/* ---- callbacks ---- */

static bool is_good(const tkc_fetch *r)
{
    return r->status >= 200 && r->status < 300;
}

static size_t on_header(char *data, size_t size, size_t n, void *user)
{
    hop *h = user;
    tinkc_str line = tkc_str_trim(tkc_strn(data, size * n));
    size_t colon = tkc_str_find(line, ':');
    if (tkc_starts_with(line, "HTTP/")) {
        h->r->status = tkc_http_status(line);
        tkc_buf_clear(&h->r->pairs);
    } else if (colon > 0 && colon < line.len && !memchr(line.data, 0, line.len)) {
        tinkc_str value = tkc_str_trim(tkc_strn(line.data + colon + 1, line.len - colon - 1));
        tkc_buf_str(&h->r->pairs, tkc_str_trim(tkc_strn(line.data, colon)), h->err);
        tkc_buf_char(&h->r->pairs, 0, h->err);
        tkc_buf_str(&h->r->pairs, value, h->err);
        tkc_buf_char(&h->r->pairs, 0, h->err);
    }
    return tkc_failed(h->err) ? 0 : size * n;
}

static bool see_head(hop *h)
{
    if (h->head_seen)
        return true;
    h->head_seen = true;
    return !is_good(h->r) || !h->r->head || h->r->head(h->r, h->err);
}

static size_t on_body(char *data, size_t size, size_t n, void *user)
{
    hop *h = user;
    tkc_fetch *r = h->r;
    size_t len = size * n;
    if (!see_head(h))
        return 0;
    if (is_good(r) && r->take)
        return r->take(r, data, len, h->err) ? len : 0;
    if (r->text.len + len <= r->max_text)
        return tkc_buf_add(&r->text, data, len, h->err) ? len : 0;
    if (!is_good(r)) /* keep only the beginning of an error text */
        return len;
    tkc_fail(h->err, TINKC_E_BAD_RESPONSE, "the answer is longer than %zu bytes", r->max_text);
    return 0;
}

static size_t on_read(char *to, size_t size, size_t n, void *user)
{
    hop *h = user;
    const tkc_fetch *r = h->r;
    size_t left = (size_t)(r->body_size - h->at), most = size * n;
    size_t want = most < left ? most : left;
    if (!want)
        return 0;
    ssize_t got = pread(r->body_fd, to, want, (off_t)(r->body_from + h->at));
    if (got <= 0) {
        if (got < 0)
            tkc_fail_errno(h->err, "the file to upload");
        else
            tkc_fail(h->err, TINKC_E_FILE, "the file to upload has become shorter");
        return CURL_READFUNC_ABORT;
    }
    h->at += got;
    if (r->sent)
        r->sent(h->r, h->at);
    return (size_t)got;
}

static int on_seek(void *user, curl_off_t offset, int origin)
{
    hop *h = user;
    if (origin != SEEK_SET || offset < 0 || offset > h->r->body_size)
        return CURL_SEEKFUNC_FAIL;
    h->at = offset;
    return CURL_SEEKFUNC_OK;
}

/* ---- options ---- */

static void add_line(hop *h, const char *name, const char *value)
{
    tkc_buf line;
    tkc_buf_init(&line, h->f->a, TKC_BUF_NO_MAX);
    tkc_buf_printf(&line, h->err, "%s: %s", name, value);
    const char *text = tkc_buf_terminate(&line, h->err);
    if (text && strpbrk(text, "\r\n"))
        tkc_fail(h->err, TINKC_E_ARGUMENT, "the header %.40s holds a line break", name);
    struct curl_slist *grown = tkc_failed(h->err) ? NULL : h->f->curl->slist_append(h->lines, text);
    if (grown)
        h->lines = grown;
    else if (!tkc_failed(h->err))
        tkc_fail_memory(h->err);
    tkc_buf_free(&line);
}

static bool set_headers(hop *h)
{
    tkc_buf bearer;
    const char *const *pair = h->r->headers;
    tkc_buf_init(&bearer, h->f->a, TKC_BUF_NO_MAX);
    for (; pair && pair[0] && pair[1]; pair += 2)
        if (!h->foreign || strcasecmp(pair[0], "range") == 0 ||
            strcasecmp(pair[0], "accept-encoding") == 0 || strcasecmp(pair[0], "user-agent") == 0 ||
            strcasecmp(pair[0], "content-type") == 0)
            add_line(h, pair[0], pair[1]);
    if (h->r->token && !h->foreign) {
        tkc_buf_printf(&bearer, h->err, "Bearer %s", h->r->token);
        const char *text = tkc_buf_terminate(&bearer, h->err);
        if (text)
            add_line(h, "Authorization", text);
    }
    tkc_buf_free(&bearer);
    struct curl_slist *grown =
        tkc_failed(h->err) ? NULL : h->f->curl->slist_append(h->lines, "Expect:");
    if (grown)
        h->lines = grown;
    return !tkc_failed(h->err) && (grown || tkc_fail_memory(h->err));
}

static void set_option(hop *h, CURLoption option, const char *text)
{
    if (h->f->curl->easy_setopt(h->f->easy, option, text) != CURLE_OK)
        tkc_fail(h->err, TINKC_E_CONNECTION, "libcurl rejected a setting");
}

static void set_number(hop *h, CURLoption option, long value)
{
    (void)h->f->curl->easy_setopt(h->f->easy, option, value);
}

static void set_body(hop *h)
{
    const tkc_curl *curl = h->f->curl;
    CURL *easy = h->f->easy;
    const tkc_fetch *r = h->r;
    bool put = strcmp(r->method, "PUT") == 0;
    if (strcmp(r->method, "HEAD") == 0) {
        set_number(h, CURLOPT_NOBODY, 1);
    } else if (strcmp(r->method, "GET") == 0) {
        set_number(h, CURLOPT_HTTPGET, 1);
    } else if (r->body_fd >= 0) {
        set_number(h, put ? CURLOPT_UPLOAD : CURLOPT_POST, 1);
        curl->easy_setopt(easy, CURLOPT_READFUNCTION, on_read);
        curl->easy_setopt(easy, CURLOPT_READDATA, h);
        curl->easy_setopt(easy, CURLOPT_SEEKFUNCTION, on_seek);
        curl->easy_setopt(easy, CURLOPT_SEEKDATA, h);
        curl->easy_setopt(easy, put ? CURLOPT_INFILESIZE_LARGE : CURLOPT_POSTFIELDSIZE_LARGE,
                          (curl_off_t)r->body_size);
    } else {
        set_number(h, CURLOPT_POST, 1);
        curl->easy_setopt(easy, CURLOPT_POSTFIELDS, r->body.len ? (const char *)r->body.data : "");
        curl->easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->body.len);
        set_option(h, CURLOPT_CUSTOMREQUEST, r->method);
    }
}

static bool prepare_hop(hop *h)
{
    const tkc_curl *curl = h->f->curl;
    const tkc_fetcher_options *o = h->f->o;
    CURL *easy = h->f->easy;
    curl->easy_reset(easy);
    h->at = 0;
    h->detail[0] = 0;
    if (!set_headers(h))
        return false;
    set_option(h, CURLOPT_URL, h->url);
    set_body(h);
    if (o->proxy)
        set_option(h, CURLOPT_PROXY, o->proxy);
    if (o->ca_file)
        set_option(h, CURLOPT_CAINFO, o->ca_file);
    set_number(h, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    set_number(h, CURLOPT_NOSIGNAL, 1);
    set_number(h, CURLOPT_TCP_KEEPALIVE, 1);
    set_number(h, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1);
    set_number(h, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_2TLS);
    set_number(h, CURLOPT_BUFFERSIZE, 128 * 1024L);
    set_number(h, CURLOPT_CONNECTTIMEOUT_MS, (long)o->connect_ms);
    set_number(h, CURLOPT_LOW_SPEED_LIMIT, 1);
    set_number(h, CURLOPT_LOW_SPEED_TIME, (long)(o->idle_ms + 999) / 1000);
    curl->easy_setopt(easy, CURLOPT_HTTPHEADER, h->lines);
    curl->easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl->easy_setopt(easy, CURLOPT_HEADERDATA, h);
    curl->easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl->easy_setopt(easy, CURLOPT_WRITEDATA, h);
    curl->easy_setopt(easy, CURLOPT_ERRORBUFFER, h->detail);
    return !tkc_failed(h->err);
}

/* ---- running ---- */

static bool fail_stopped(tinkc_error *err)
{
    return tkc_fail(err, TINKC_E_CANCELLED, "the transfer was stopped");
}

/* libcurl's result once the transfer has ended; a stop or a failed poll set err instead. */
static CURLcode wait_for_end(hop *h)
{
    const tkc_curl *curl = h->f->curl;
    int running = 1, left;
    while (running) {
        if (curl->multi_perform(h->f->multi, &running) != CURLM_OK) {
            tkc_fail(h->err, TINKC_E_CONNECTION, "libcurl failed");
            return CURLE_FAILED_INIT;
        }
        if (running && atomic_load(h->f->o->stop)) {
            fail_stopped(h->err);
            return CURLE_ABORTED_BY_CALLBACK;
        }
        if (running)
            /* In pieces: the stop is looked at in between. */
            (void)curl->multi_poll(h->f->multi, NULL, 0, POLL_MS, NULL);
    }
    CURLMsg *m;
    while ((m = curl->multi_info_read(h->f->multi, &left)))
        if (m->msg == CURLMSG_DONE)
            return m->data.result;
    return CURLE_FAILED_INIT;
}

/* What the caller or a callback said first counts. */
static void explain_transfer(hop *h, CURLcode result)
{
    char text[CURL_ERROR_SIZE + 128];
    long os_error = 0;
    curl_off_t connected_us = 0, took_us = 0;
    if (tkc_failed(h->err))
        return;
    h->f->curl->easy_getinfo(h->f->easy, CURLINFO_OS_ERRNO, &os_error);
    h->f->curl->easy_getinfo(h->f->easy, CURLINFO_PRETRANSFER_TIME_T, &connected_us);
    h->f->curl->easy_getinfo(h->f->easy, CURLINFO_TOTAL_TIME_T, &took_us);
    h->r->took_ms = (int64_t)took_us / 1000;
    h->r->nobody_there = result == CURLE_COULDNT_RESOLVE_HOST ||
                         result == CURLE_COULDNT_RESOLVE_PROXY || result == CURLE_COULDNT_CONNECT ||
                         (result == CURLE_OPERATION_TIMEDOUT && connected_us == 0);
    const char *detail = h->detail[0] ? h->detail : h->f->curl->easy_strerror(result);
    int32_t code = tkc_http_explain(result, os_error, detail, h->r->status != 0, text, sizeof text);
    tkc_fail(h->err, code, "%s", text);
}

static bool run_hop(hop *h)
{
    h->r->status = 0;
    h->r->nobody_there = false;
    h->r->took_ms = 0;
    h->head_seen = false;
    tkc_buf_clear(&h->r->text);
    tkc_buf_clear(&h->r->pairs);
    CURLcode result = CURLE_FAILED_INIT;
    if (prepare_hop(h)) {
        if (h->f->curl->multi_add_handle(h->f->multi, h->f->easy) == CURLM_OK) {
            result = wait_for_end(h);
            h->f->curl->multi_remove_handle(h->f->multi, h->f->easy);
        }
        if (result == CURLE_OK && h->r->status == 0)
            tkc_fail(h->err, TINKC_E_CONNECTION, "the answer has no status");
        else if (result == CURLE_OK)
            see_head(h); /* for an answer without a body */
        else
            explain_transfer(h, result);
    }
    h->f->curl->slist_free_all(h->lines);
    h->lines = NULL;
    return !tkc_failed(h->err);
}

/* The target of a redirect; NULL = not a redirect, or err is set. A request with a body is repeated
 * only if the status asks for it. */
static const char *redirect(hop *h, tkc_arena *arena)
{
    int32_t s = h->r->status;
    const char *to = tkc_fetch_header(h->r, "location");
    bool plain = strcmp(h->r->method, "GET") == 0 || strcmp(h->r->method, "HEAD") == 0;
    if (!to || (s != 307 && s != 308 && !(plain && (s == 301 || s == 302 || s == 303))))
        return NULL;
    to = tkc_url_resolve(h->url, to, arena, h->err);
    if (to && strncasecmp(h->url, "https:", 6) == 0 && strncasecmp(to, "https:", 6) != 0)
        tkc_fail(h->err, TINKC_E_BAD_RESPONSE, "a redirect leads from https to http");
    return tkc_failed(h->err) ? NULL : to;
}

bool tkc_fetch_run(tkc_fetcher *f, tkc_fetch *r, tinkc_error *err)
{
    tkc_arena arena;
    hop h = { .f = f, .r = r, .url = r->url, .err = err };
    tkc_arena_init(&arena, f->a, 0);
    for (int hops = 0;; hops++) {
        if (tkc_failed(err) || atomic_load(f->o->stop)) {
            fail_stopped(err);
            break;
        }
        const char *to = run_hop(&h) ? redirect(&h, &arena) : NULL;
        if (!to)
            break;
        if (hops == TKC_HTTP_MAX_REDIRECTS) {
            tkc_fail(err, TINKC_E_BAD_RESPONSE, "too many redirects");
            break;
        }
        h.foreign = h.foreign || !tkc_url_same_origin(h.url, to);
        h.url = to;
    }
    tkc_arena_free(&arena);
    return !tkc_failed(err);
}
