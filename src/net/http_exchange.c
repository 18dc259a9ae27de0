/* http_exchange.c - one request on one easy handle: options, callbacks, error texts.
 *
 * May touch: the exchange and its easy handle. Must not: add to or remove from a multi handle,
 * wait, or use the reply after it has ended. Thread: the loop's.
 *
 * Redirects are followed here and not by libcurl, because libcurl would send our credential headers
 * to another host.
 */
#include "base/platform.h"
#include "net/http_internal.h"

#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include "base/str.h"
#include "codec/url.h"

/* ---- the URL ---- */

static bool is_https(const char *url)
{
    return strncasecmp(url, "https:", 6) == 0;
}

/* Keeps the base URL's path and joins it to the request's with exactly one slash. */
static bool first_url(tkc_exchange *x, tinkc_error *err)
{
    const char *base = x->request->base_url, *path = x->request->path;
    size_t base_len = strlen(base), path_len;
    while (base_len && base[base_len - 1] == '/')
        base_len--;
    while (*path == '/')
        path++;
    path_len = strlen(path);
    x->url = tkc_alloc(x->pool->http->a, base_len + 1 + path_len + 1, err);
    if (!x->url)
        return false;
    memcpy(x->url, base, base_len);
    x->url[base_len] = '/';
    memcpy(x->url + base_len + 1, path, path_len + 1);
    return true;
}

/* ---- callbacks ---- */

static void note_activity(tkc_exchange *x)
{
    x->last_activity_ms = tkc_loop_now_ms(x->pool->http->loop);
}

static bool is_redirect(int32_t status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

int32_t tkc_http_status(tinkc_str line)
{
    size_t space = tkc_str_find(line, ' ');
    int64_t status;
    tinkc_str rest = tkc_str_trim(tkc_strn(line.data + space, line.len - space));
    rest.len = tkc_str_find(rest, ' ');
    return tkc_parse_i64(rest, &status) && status >= 100 && status <= 999 ? (int32_t)status : 0;
}

/* Interim (1xx) statuses are not passed on. */
static void on_status_line(tkc_exchange *x, tinkc_str line)
{
    x->status = tkc_http_status(line);
    x->head_done = false;
    x->holding = is_redirect(x->status) && !x->request->no_redirects;
    /* A 400 from an edge proxy may concern this connection: the next attempt opens a new one. */
    if (x->status == 400)
        x->pool->http->curl->easy_setopt(x->easy, CURLOPT_FORBID_REUSE, 1L);
    x->held.len = 0;
    if (x->status >= 200 && !x->holding) {
        x->status_given = true;
        x->reply->status(x->reply, x->status);
    }
}

/* Adds "Name: value" to x->held as two terminated pieces. False: it is not of that form, or err is set. */
static bool hold_header(tkc_exchange *x, tinkc_str line, tinkc_error *err)
{
    size_t colon = tkc_str_find(line, ':');
    if (colon == 0 || colon == line.len)
        return false;
    tinkc_str name = tkc_str_trim(tkc_strn(line.data, colon));
    tinkc_str value = tkc_str_trim(tkc_strn(line.data + colon + 1, line.len - colon - 1));
    tkc_buf_str(&x->held, name, err);
    tkc_buf_char(&x->held, 0, err);
    tkc_buf_str(&x->held, value, err);
    return tkc_buf_char(&x->held, 0, err);
}

static void give_header(tkc_exchange *x, const char *name)
{
    x->reply->header(x->reply, name, name + strlen(name) + 1);
}

/* Notes about the exchange, for callers that inspect raw answers. */
static void give_notes(tkc_exchange *x)
{
    long version = 0;
    if (x->request->pool != TINKC_POOL_REST)
        return;
    x->pool->http->curl->easy_getinfo(x->easy, CURLINFO_HTTP_VERSION, &version);
    x->reply->header(x->reply, ":url", x->url);
    x->reply->header(x->reply, ":version",
                     version == CURL_HTTP_VERSION_2_0   ? "2"
                     : version == CURL_HTTP_VERSION_1_1 ? "1.1"
                     : version == CURL_HTTP_VERSION_1_0 ? "1.0"
                                                        : "");
}

/* The head is complete. False: the reply does not want the rest. */
static bool give_head_end(tkc_exchange *x)
{
    give_notes(x);
    x->unwanted = !x->reply->write(x->reply, "", 0);
    return !x->unwanted;
}

static size_t on_header(char *data, size_t size, size_t n, void *user)
{
    tkc_exchange *x = user;
    size_t len = size * n;
    tinkc_error err = { 0 };
    tinkc_str line = tkc_str_trim(tkc_strn(data, len));
    note_activity(x);
    if (tkc_starts_with(line, "HTTP/")) {
        on_status_line(x, line);
        return len;
    }
    if (line.len == 0 && !x->head_done) {
        x->head_done = true;
        if (x->status >= 200 && !x->holding && !give_head_end(x))
            return 0;
    }
    if (x->head_done || x->status < 200)
        return len; /* the end of the head, a trailer, or an interim answer */
    bool held = hold_header(x, line, &err);
    if (tkc_failed(&err))
        return 0;
    if (held && !x->holding) {
        give_header(x, x->held.data);
        x->held.len = 0;
    }
    return len;
}

static size_t on_body(char *data, size_t size, size_t n, void *user)
{
    tkc_exchange *x = user;
    size_t len = size * n;
    note_activity(x);
    if (x->holding || len == 0)
        return len;
    if (x->reply->room && x->reply->room(x->reply) == 0) {
        x->paused = true;
        return CURL_WRITEFUNC_PAUSE;
    }
    if (!x->reply->write(x->reply, data, len)) {
        x->unwanted = true;
        return 0;
    }
    return len;
}

/* Called often; upload progress is seen only here. */
static int on_progress(void *user, curl_off_t dl_total, curl_off_t dl_now, curl_off_t ul_total,
                       curl_off_t ul_now)
{
    tkc_exchange *x = user;
    (void)dl_total;
    (void)ul_total;
    int64_t seen = (int64_t)dl_now + (int64_t)ul_now;
    if (seen != x->seen_bytes) {
        x->seen_bytes = seen;
        note_activity(x);
    }
    return 0;
}

/* Reads a streamed request body. */
static size_t on_read(char *to, size_t size, size_t n, void *user)
{
    tkc_exchange *x = user;
    const tinkc_request *r = x->request;
    note_activity(x);
    if (x->body_at >= (uint64_t)r->body_size)
        return 0;
    size_t got = r->read_body(r, x->body_at, to, size * n);
    x->body_at += got;
    return got ? got : CURL_READFUNC_ABORT;
}

/* libcurl rewinds the body to resend it on another connection. */
static int on_seek(void *user, curl_off_t offset, int origin)
{
    tkc_exchange *x = user;
    if (origin != SEEK_SET || offset < 0 || offset > x->request->body_size)
        return CURL_SEEKFUNC_FAIL;
    x->body_at = (uint64_t)offset;
    return CURL_SEEKFUNC_OK;
}

/* ---- options ---- */

/* Whether another origin may see the header: nothing that may hold a credential or identify the
 * user. */
static bool may_travel(const char *name)
{
    static const char *const harmless[] = { "accept", "accept-encoding", "content-type",
                                            "range",  "if-range",        "user-agent",
                                            NULL };
    for (size_t i = 0; harmless[i]; i++)
        if (strcasecmp(name, harmless[i]) == 0)
            return true;
    return false;
}

static bool add_line(tkc_exchange *x, const char *line, tinkc_error *err)
{
    struct curl_slist *grown = x->pool->http->curl->slist_append(x->headers, line);
    if (!grown)
        return tkc_fail_memory(err);
    x->headers = grown;
    return true;
}

static bool add_headers(tkc_exchange *x, bool *has_type, bool *has_encoding, tinkc_error *err)
{
    tkc_buf line;
    tkc_buf_init(&line, x->pool->http->a, TKC_BUF_NO_MAX);
    for (const char *const *h = x->request->headers; h && h[0]; h += 2) {
        bool is_type = strcasecmp(h[0], "content-type") == 0;
        if (x->foreign && !may_travel(h[0]))
            continue;
        if (x->become_get && (is_type || strcasecmp(h[0], "content-encoding") == 0))
            continue;
        if (strpbrk(h[0], "\r\n:") || strpbrk(h[1], "\r\n")) {
            tkc_fail(err, TINKC_E_CONNECTION, "a header holds a line break");
            break;
        }
        *has_type = *has_type || is_type;
        *has_encoding = *has_encoding || strcasecmp(h[0], "accept-encoding") == 0;
        line.len = 0;
        tkc_buf_printf(&line, err, h[1][0] ? "%s: %s" : "%s;", h[0], h[1]);
        const char *text = tkc_buf_terminate(&line, err);
        if (!text || !add_line(x, text, err))
            break;
    }
    tkc_buf_free(&line);
    return !tkc_failed(err);
}

/* libcurl copies strings and can run out of memory; a request without its proxy or CA file must not
 * be sent. */
static void set_text(tkc_exchange *x, CURLoption option, const char *value, tinkc_error *err)
{
    if (x->pool->http->curl->easy_setopt(x->easy, option, value) != CURLE_OK)
        tkc_fail(err, TINKC_E_CONNECTION, "libcurl refused a setting");
}

static void set_body(const tkc_curl *curl, tkc_exchange *x)
{
    const tinkc_request *r = x->request;
    curl_off_t size = 0;
    x->body_at = 0;
    curl->easy_setopt(x->easy, CURLOPT_POST, 1L);
    if (r->read_body && !x->become_get) {
        size = (curl_off_t)r->body_size;
        curl->easy_setopt(x->easy, CURLOPT_READFUNCTION, on_read);
        curl->easy_setopt(x->easy, CURLOPT_READDATA, x);
        curl->easy_setopt(x->easy, CURLOPT_SEEKFUNCTION, on_seek);
        curl->easy_setopt(x->easy, CURLOPT_SEEKDATA, x);
    } else if (r->body.len && !x->become_get) {
        size = (curl_off_t)r->body.len;
        curl->easy_setopt(x->easy, CURLOPT_POSTFIELDS, (const char *)r->body.data);
    } else {
        curl->easy_setopt(x->easy, CURLOPT_POSTFIELDS, "");
    }
    curl->easy_setopt(x->easy, CURLOPT_POSTFIELDSIZE_LARGE, size);
}

static void set_method(const tkc_curl *curl, tkc_exchange *x, tinkc_error *err)
{
    const tinkc_request *r = x->request;
    const char *method = x->become_get ? "GET" : r->method;
    bool body = !x->become_get && (r->body.len > 0 || r->read_body);
    if (strcmp(method, "HEAD") == 0) {
        curl->easy_setopt(x->easy, CURLOPT_NOBODY, 1L);
    } else if (body || strcmp(method, "POST") == 0 || strcmp(method, "PUT") == 0 ||
               strcmp(method, "PATCH") == 0) {
        set_body(curl, x);
        set_text(x, CURLOPT_CUSTOMREQUEST, method, err);
    } else {
        curl->easy_setopt(x->easy, CURLOPT_HTTPGET, 1L);
        set_text(x, CURLOPT_CUSTOMREQUEST, method, err);
    }
}

static void set_route(const tkc_http *http, tkc_exchange *x, tinkc_error *err)
{
    const tkc_curl *curl = http->curl;
    bool https = is_https(x->url);
    const char *proxy = https ? http->https_proxy : http->http_proxy;
    if (http->unix_socket && !x->foreign && http->base_url &&
        tkc_url_same_origin(x->url, http->base_url)) {
        set_text(x, CURLOPT_UNIX_SOCKET_PATH, http->unix_socket, err);
        proxy = NULL;
    }
    /* "" keeps libcurl from reading the environment, which was read when the client was created. */
    set_text(x, CURLOPT_PROXY, proxy ? proxy : "", err);
    set_text(x, CURLOPT_NOPROXY, http->no_proxy ? http->no_proxy : "", err);
    if (https) {
        curl->easy_setopt(x->easy, CURLOPT_SSL_VERIFYPEER, 1L);
        curl->easy_setopt(x->easy, CURLOPT_SSL_VERIFYHOST, 2L);
        curl->easy_setopt(x->easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
        if (http->ca_file)
            set_text(x, CURLOPT_CAINFO, http->ca_file, err);
        if (http->ca_dir)
            set_text(x, CURLOPT_CAPATH, http->ca_dir, err);
        /* A request waits for a connection that may turn out to carry it, too: a burst would
         * open one for each. Training wants just that. */
        if (x->pool->kind != TINKC_POOL_TRAIN)
            curl->easy_setopt(x->easy, CURLOPT_PIPEWAIT, 1L);
    }
}

/* libcurl's own sockets are inherited by any program that is started meanwhile. */
static curl_socket_t open_socket(void *user, curlsocktype purpose, struct curl_sockaddr *at)
{
    (void)user;
    (void)purpose;
    return tkc_socket(at->family, at->socktype, at->protocol);
}

static void set_callbacks(const tkc_curl *curl, tkc_exchange *x)
{
    curl->easy_setopt(x->easy, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    curl->easy_setopt(x->easy, CURLOPT_PRIVATE, x);
    curl->easy_setopt(x->easy, CURLOPT_HEADERFUNCTION, on_header);
    curl->easy_setopt(x->easy, CURLOPT_HEADERDATA, x);
    curl->easy_setopt(x->easy, CURLOPT_WRITEFUNCTION, on_body);
    curl->easy_setopt(x->easy, CURLOPT_WRITEDATA, x);
    curl->easy_setopt(x->easy, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl->easy_setopt(x->easy, CURLOPT_XFERINFODATA, x);
    curl->easy_setopt(x->easy, CURLOPT_NOPROGRESS, 0L);
    curl->easy_setopt(x->easy, CURLOPT_ERRORBUFFER, x->error_text);
}

/* Thousands of concurrent exchanges must not hold large buffers; a few may. Downloads run in the
 * pool of plain calls, and each buffer costs them a system call. */
static long buffer_size(const tkc_exchange *x)
{
    if (x->pool->kind == TINKC_POOL_REST && x->pool->n_active <= 4)
        return 64 * 1024L;
    return x->pool->n_active > 64 ? 2 * 1024L : 32 * 1024L;
}

static void set_limits(const tkc_curl *curl, tkc_exchange *x)
{
    int64_t connect = x->request->connect_timeout_ms;
    curl->easy_setopt(x->easy, CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
    /* Otherwise cancelling a name lookup waits for the resolver's thread to return. */
    curl->easy_setopt(x->easy, CURLOPT_QUICK_EXIT, 1L);
#endif
    curl->easy_setopt(x->easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl->easy_setopt(x->easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl->easy_setopt(x->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_2TLS);
    curl->easy_setopt(x->easy, CURLOPT_BUFFERSIZE, buffer_size(x));
    connect = connect > 0 ? connect : INT32_MAX;
    connect = connect < INT32_MAX ? connect : INT32_MAX;
    curl->easy_setopt(x->easy, CURLOPT_CONNECTTIMEOUT_MS, (long)connect);
}

static bool plausible_url(const char *url)
{
    return (strncasecmp(url, "http://", 7) == 0 && url[7] != '/') ||
           (strncasecmp(url, "https://", 8) == 0 && url[8] != '/');
}

bool tkc_exchange_prepare(tkc_exchange *x, tinkc_error *err)
{
    tkc_http *http = x->pool->http;
    const tkc_curl *curl = http->curl;
    bool has_type = false, has_encoding = false;
    if (!x->url && !first_url(x, err))
        return false;
    if (!plausible_url(x->url))
        return tkc_fail(err, TINKC_E_CONNECTION, "not an http or https address");
    if (!x->easy)
        x->easy = curl->easy_init();
    if (!x->easy)
        return tkc_fail_memory(err);
    curl->slist_free_all(x->headers);
    x->headers = NULL;
    /* Without "Expect:" libcurl waits up to a second for a 100 before it sends a large body. */
    if (!add_headers(x, &has_type, &has_encoding, err) || !add_line(x, "Expect:", err) ||
        (!has_type && !add_line(x, "Content-Type:", err)))
        return false;
    set_method(curl, x, err);
    set_route(http, x, err);
    set_callbacks(curl, x);
    set_limits(curl, x);
    /* A caller that sets Accept-Encoding gets the bytes undecoded; otherwise libcurl decodes every
     * encoding it supports. */
    if (!has_encoding)
        set_text(x, CURLOPT_ACCEPT_ENCODING, "", err);
    curl->easy_setopt(x->easy, CURLOPT_HTTPHEADER, x->headers);
    set_text(x, CURLOPT_URL, x->url, err);
    if (tkc_failed(err))
        return false;
    x->status = 0;
    x->holding = false;
    x->seen_bytes = 0;
    x->error_text[0] = 0;
    note_activity(x);
    return true;
}

void tkc_exchange_clear(tkc_exchange *x)
{
    tkc_http *http = x->pool->http;
    tkc_loop_disarm(http->loop, &x->idle_timer);
    if (x->easy)
        http->curl->easy_cleanup(x->easy);
    if (x->headers)
        http->curl->slist_free_all(x->headers);
    tkc_buf_free(&x->held);
    tkc_release_str(http->a, x->url);
}

/* ---- the end of a transfer ---- */

typedef struct explanation {
    CURLcode result;
    int32_t code;
    const char *text;
} explanation;

static const explanation explanations[] = {
    { CURLE_COULDNT_RESOLVE_HOST, TINKC_E_CONNECTION, "the name was not resolved (DNS)" },
    { CURLE_COULDNT_RESOLVE_PROXY, TINKC_E_CONNECTION,
      "the name of the proxy was not resolved (DNS)" },
    { CURLE_COULDNT_CONNECT, TINKC_E_CONNECTION, "no connection" },
    { CURLE_PROXY, TINKC_E_CONNECTION, "the proxy failed" },
    { CURLE_SSL_CONNECT_ERROR, TINKC_E_CONNECTION, "TLS failed" },
    { CURLE_PEER_FAILED_VERIFICATION, TINKC_E_CONNECTION, "TLS: the certificate is not trusted" },
    { CURLE_SSL_CACERT_BADFILE, TINKC_E_CONNECTION, "TLS: the file of authorities is unusable" },
    { CURLE_SSL_CERTPROBLEM, TINKC_E_CONNECTION, "TLS failed" },
    { CURLE_SSL_CIPHER, TINKC_E_CONNECTION, "TLS failed" },
    { CURLE_SSL_ISSUER_ERROR, TINKC_E_CONNECTION, "TLS failed" },
    { CURLE_OPERATION_TIMEDOUT, TINKC_E_NET_TIMEOUT, "connecting took too long" },
    { CURLE_PARTIAL_FILE, TINKC_E_CONNECTION, "the connection ended inside the body" },
    { CURLE_GOT_NOTHING, TINKC_E_CONNECTION, "the connection was closed before an answer" },
    { CURLE_BAD_CONTENT_ENCODING, TINKC_E_BAD_RESPONSE, "the body's compression is broken" },
    { CURLE_WEIRD_SERVER_REPLY, TINKC_E_CONNECTION, "the answer is not HTTP" },
    { CURLE_UNSUPPORTED_PROTOCOL, TINKC_E_CONNECTION, "the answer is not HTTP" },
    { CURLE_HTTP2, TINKC_E_CONNECTION, "the connection failed (HTTP/2)" },
    { CURLE_HTTP2_STREAM, TINKC_E_CONNECTION, "the stream failed (HTTP/2)" },
    { CURLE_OUT_OF_MEMORY, TINKC_E_CONNECTION, "out of memory" },
};

static const char *reason(CURLcode result, long os_error, bool got_status, const char *plain)
{
    if (result == CURLE_COULDNT_CONNECT && os_error == ECONNREFUSED)
        return "connection refused";
    if (result == CURLE_RECV_ERROR || result == CURLE_SEND_ERROR)
        return got_status ? "the connection was reset inside the answer"
                          : "the connection was reset before an answer";
    return plain;
}

int32_t tkc_http_explain(CURLcode result, long os_error, const char *detail, bool got_status,
                         char *text, size_t cap)
{
    int32_t code = TINKC_E_CONNECTION;
    const char *plain = "the transfer failed";
    for (size_t i = 0; i < sizeof explanations / sizeof *explanations; i++)
        if (explanations[i].result == result) {
            code = explanations[i].code;
            plain = explanations[i].text;
        }
    plain = reason(result, os_error, got_status, plain);
    snprintf(text, cap, detail[0] ? "%s: %s" : "%s", plain, detail);
    tkc_blank_controls(text);
    return code;
}

static void give_failure(tkc_exchange *x, CURLcode result)
{
    char text[CURL_ERROR_SIZE + 128];
    long os_error = 0;
    const tkc_curl *curl = x->pool->http->curl;
    curl->easy_getinfo(x->easy, CURLINFO_OS_ERRNO, &os_error);
    const char *detail = x->error_text[0] ? x->error_text : curl->easy_strerror(result);
    int32_t code = tkc_http_explain(result, os_error, detail, x->status_given, text, sizeof text);
    if (x->unwanted)
        x->reply->fail(x->reply, TINKC_E_BAD_RESPONSE, "the rest of the body was not wanted");
    else
        x->reply->fail(x->reply, code, text);
}

/* A redirect that cannot be followed is passed on as an ordinary answer, without its body. */
static void give_held(tkc_exchange *x)
{
    x->reply->status(x->reply, x->status);
    for (size_t at = 0; at < x->held.len;) {
        const char *name = x->held.data + at;
        give_header(x, name);
        at += strlen(name) + 1;
        at += strlen(x->held.data + at) + 1;
    }
}

static bool fail_redirect(tkc_exchange *x, const char *text)
{
    x->reply->fail(x->reply, TINKC_E_BAD_RESPONSE, text);
    return false;
}

/* Points the exchange at the redirect's target. False: the reply has ended. */
static bool follow(tkc_exchange *x, const char *target)
{
    tkc_http *http = x->pool->http;
    tinkc_error err = { 0 };
    if (!plausible_url(target))
        return fail_redirect(x, "a redirect leads to something that is not http");
    if (is_https(x->url) && !is_https(target))
        return fail_redirect(x, "a redirect leads from https to http");
    if (++x->redirects > TKC_HTTP_MAX_REDIRECTS)
        return fail_redirect(x, "too many redirects");
    char *url = tkc_copy_str(http->a, tkc_str(target), &err);
    if (!url) {
        x->reply->fail(x->reply, TINKC_E_CONNECTION, "out of memory");
        return false;
    }
    /* For good: where a redirect leads back to us, somebody else has chosen the address. */
    x->foreign = x->foreign || !tkc_url_same_origin(x->url, url);
    bool is_post = strcmp(x->request->method, "POST") == 0;
    if (x->status == 303 ? strcmp(x->request->method, "HEAD") != 0
                         : is_post && (x->status == 301 || x->status == 302))
        x->become_get = true;
    tkc_release_str(http->a, x->url);
    x->url = url;
    http->curl->easy_reset(x->easy);
    if (tkc_exchange_prepare(x, &err))
        return true;
    x->reply->fail(x->reply, TINKC_E_CONNECTION, err.message);
    return false;
}

bool tkc_exchange_finish(tkc_exchange *x, CURLcode result)
{
    const char *target = NULL;
    long version = 0;
    const tkc_curl *curl = x->pool->http->curl;
    if (result != CURLE_OK) {
        give_failure(x, result);
        return false;
    }
    curl->easy_getinfo(x->easy, CURLINFO_HTTP_VERSION, &version);
    x->pool->http2 = version == CURL_HTTP_VERSION_2_0;
    if (x->holding) {
        curl->easy_getinfo(x->easy, CURLINFO_REDIRECT_URL, &target);
        if (target)
            return follow(x, target);
        give_held(x);
    } else if (!x->status_given) {
        x->reply->fail(x->reply, TINKC_E_CONNECTION, "the answer has no status");
        return false;
    }
    x->reply->end(x->reply);
    return false;
}
