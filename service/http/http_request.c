/* http_request.c - from a connection to the service: identifies the client, refuses early what can
 * be refused from the head, limits the memory of bodies.
 *
 * Threads: libmicrohttpd's. None of them waits: a request that is not answered at once leaves its
 * connection suspended. May touch: the service, only through service.h.
 *
 * Ownership. The record of a connection (tke_peer) is made and freed by the library's notification,
 * and owns the text of the request line. An exchange is made on the first call of the handler,
 * because only from then on does the library guarantee to call `completed`: anything allocated
 * earlier would leak for a request whose head turns out to be too large.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/json_write.h"
#include "base/platform.h"
#include "base/str.h"
#include "service/http/http_server.h"
#include "service/http/page_gate.h"

enum { BODIES = 4 /* of the largest size in memory at once; small ones are not limited */ };

/* ---- refusing ---- */

static bool is_openai(const tke_http *h, const tke_exchange *x)
{
    return h->openai && tke_service_is_openai(tkc_str(x->uri));
}

static void write_refusal(tkc_buf *out, const char *code, const char *detail, tinkc_error *err)
{
    tkc_jsonw w;
    tkc_jsonw_open(&w, out, err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "detail");
    tkc_jsonw_message(&w, detail);
    tkc_jsonw_key(&w, "code");
    tkc_jsonw_cstr(&w, code);
    tkc_jsonw_end(&w);
}

static void add_header(tke_exchange *x, const char *name, const char *value)
{
    x->reply_headers[x->n_reply_headers++] = name;
    x->reply_headers[x->n_reply_headers++] = value;
}

static void refuse(tke_exchange *x, int32_t status, const char *code, const char *detail)
{
    tinkc_error err = { 0 };
    const char *version = tke_exchange_header(x, TKE_ANTHROPIC_VERSION);
    if (is_openai(x->http, x) && tke_service_is_anthropic(tkc_str(x->uri), version))
        tke_anthropic_error(&x->out, status, code, detail, &err);
    else if (is_openai(x->http, x))
        tke_openai_error(&x->out, status, code, NULL, detail, &err);
    else
        write_refusal(&x->out, code, detail, &err);
    x->status = status;
    add_header(x, "Content-Type", "application/json");
    if (x->refusal == TKE_X_KEY && x->by_token) /* RFC 6750: clients fetch another, and repeat */
        add_header(x, "WWW-Authenticate", "Bearer error=\"invalid_token\"");
}

static enum MHD_Result answer_refusal(tke_exchange *x)
{
    static const struct {
        int32_t status;
        const char *code, *detail;
    } texts[] = {
        [TKE_X_KEY] = { 401, "unauthorized", "Invalid API key" },
        [TKE_X_SIZE] = { 413, "too_large", NULL }, /* with the limit of its path */
        [TKE_X_HEADERS] = { 431, "too_many_headers", "There are too many headers" },
        [TKE_X_BUSY] = { 503, "busy", "Too many large requests at once; try again" },
    };
    char limit[80];
    (void)snprintf(limit, sizeof limit, "The body is too large: at most %lld bytes are read here",
                   (long long)x->max_body);
    if (x->refusal == TKE_X_GUARD)
        refuse(x, x->verdict.status, x->verdict.code, x->verdict.detail);
    else
        refuse(x, texts[x->refusal].status, texts[x->refusal].code,
               x->refusal == TKE_X_SIZE ? limit : texts[x->refusal].detail);
    return tke_exchange_answer(x);
}

/* ---- the head ---- */

/* Keeps the request line, and hides the query from the library: it would parse the query into its
 * own pool, and with a thousand names the connection would never be answered. The service parses
 * queries itself. Writing to the text is safe: it is in the library's read buffer, which the
 * library changes in the same way right after this call. */
void *tke_request_begin(void *cls, const char *uri, struct MHD_Connection *connection)
{
    tke_http *h = cls;
    tinkc_error err = { 0 };
    tke_peer *p = tke_peer_of(h, connection);
    char *query = strchr((char *)(uintptr_t)uri, '?');
    if (p && p->uri)
        tkc_release_str(h->a, p->uri);
    if (p)
        p->uri = tkc_copy_str(h->a, tkc_str(uri), &err);
    if (query)
        query[1] = '\0';
    return NULL;
}

static bool is_credential(const char *name)
{
    return strcasecmp(name, "X-API-Key") == 0 || strcasecmp(name, "Authorization") == 0;
}

static void note_value(tke_head_values *v, const char *name, const char *value)
{
    const struct {
        const char *name;
        const char **value;
        size_t *n;
    } known[] = { { "Host", &v->host, &v->n_host },
                  { "Origin", &v->origin, NULL },
                  { "Sec-Fetch-Site", &v->fetch_site, NULL },
                  { "Sec-Fetch-Mode", &v->fetch_mode, NULL },
                  { "Content-Length", &v->content_length, &v->n_content_length },
                  { "Transfer-Encoding", &v->transfer_encoding, &v->n_transfer_encoding } };
    v->bad_name |= !tke_header_name_ok(name);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcasecmp(name, known[i].name) == 0) {
            *known[i].value = value;
            if (known[i].n)
                ++*known[i].n;
        }
}

typedef struct head {
    tke_exchange *x;
    tke_head_values values;
    const char *next_line; /* where the library's buffer must continue; see lines_are_ok */
    bool out_of_line;
    const char *key, *bearer; /* in the library's buffer */
} head;

static enum MHD_Result take_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    head *in = cls;
    tke_exchange *x = in->x;
    tinkc_error err = { 0 };
    (void)kind;
    value = value ? value : "";
    in->out_of_line |= name != in->next_line;
    in->next_line = value + strlen(value) + 2;
    if (x->n_headers + 2 > 2 * TKE_MAX_HEADERS) {
        x->refusal = TKE_X_HEADERS;
        return MHD_NO;
    }
    in->values.bad_value |= !tke_header_value_ok(value);
    if (is_credential(name)) { /* not kept: the service needs only the owner */
        *(strcasecmp(name, "X-API-Key") == 0 ? &in->key : &in->bearer) = value;
        return MHD_YES;
    }
    const char *n = tkc_arena_cstr(&x->arena, name, &err);
    const char *v = tkc_arena_cstr(&x->arena, value, &err);
    if (!n || !v) {
        x->refusal = TKE_X_BUSY;
        return MHD_NO;
    }
    note_value(&in->values, n, v);
    x->headers[x->n_headers++] = n;
    x->headers[x->n_headers++] = v;
    return MHD_YES;
}

/* Did all lines end with CR LF? The library also takes a single CR or LF for the end of a line and ends
 * values at a NUL, other programs do not: a request could then be read as another one, or as two. With
 * CR LF everywhere each line begins two bytes after the end of the one before, and the head ends with
 * an empty one. The words of the request line are one byte apart. */
static bool lines_are_ok(const tke_http *h, const head *in, struct MHD_Connection *connection)
{
    if (!h->mhd->heads_in_place)
        return true;
    const union MHD_ConnectionInfo *size =
        h->mhd->info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    const char *method = in->values.method;
    const char *uri = method + strlen(method) + 1, *version = uri + strlen(in->x->uri) + 1;
    return size && !in->out_of_line && version == in->values.version &&
           method + size->header_size == in->next_line + 2;
}

/* Credentials are overwritten in the library's buffer, which is kept as long as the connection. */
static void wipe(const char *secret)
{
    if (secret)
        tkc_wipe((char *)(uintptr_t)secret, strlen(secret));
}

static bool identify(tke_http *h, tke_exchange *x, const head *in)
{
    const char *key = in->key;
    if (!key && in->bearer && strncasecmp(in->bearer, "Bearer ", 7) == 0 &&
        (is_openai(h, x) || tke_service_is_hub(tkc_str(x->uri))))
        key = in->bearer + 7 + strspn(in->bearer + 7, " ");
    bool known = tke_key_ring_identify(h->keys, key, &x->who);
    x->by_token = key && tkc_starts_with(tkc_str(key), "eyJ");
    wipe(in->key);
    wipe(in->bearer);
    return known;
}

/* Properties of a path: the service's, or the page's, which sends samples under /ui. */
static tke_path_info path_of(tke_http *h, tke_exchange *x, const char *method)
{
    bool ui = h->page && tke_gate_is_ui(x->uri);
    x->to_page = ui && tke_page_owns(x->uri);
    x->from_page = ui && !x->to_page;
    if (x->to_page)
        return (tke_path_info){ .max_body = 1 << 20, .needs_key = !tke_page_is_public(x->uri) };
    return tke_service_path(h->svc, method, tkc_str(x->uri + (ui ? strlen("/ui") : 0)),
                            h->openai || ui);
}

/* Must a refusal wait until the body was read (and discarded)? A client that sends the whole body
 * before it reads gets a reset connection instead of an answer that was sent too early, and retries.
 * Bodies without a length are always read. One that waits for "100 Continue" is not on its way. */
static bool is_read_first(tke_exchange *x, int64_t length)
{
    enum { SMALL = 1 << 20, LARGE = 64 << 20 };
    const char *expected = tke_exchange_header(x, "Expect");
    bool waits = expected && strncasecmp(expected, "100-", 4) == 0;
    return length <= (waits ? SMALL : LARGE);
}

/* Refuses what can be refused from the head, before memory is spent on the body. */
static enum MHD_Result look_at_head(tke_http *h, tke_exchange *x, const char *method,
                                    const char *version)
{
    head in = { .x = x, .values = { .method = method, .version = version } };
    tke_path_info path = path_of(h, x, method);
    int64_t n = 0;
    x->method = "";
    x->max_body = path.max_body;
    in.next_line = version + strlen(version) + 2;
    (void)h->mhd->values(x->connection, MHD_HEADER_KIND, take_header, &in);
    in.values.bad_lines = !x->refusal && !lines_are_ok(h, &in, x->connection);
    bool known = identify(h, x, &in);
    const char *length = in.values.content_length;
    bool parsed = length && tkc_parse_i64(tkc_str(length), &n);
    x->verdict = tke_guard_check(&h->guard, &in.values);
    /* The library also takes a single LF for the end of a line between chunks, a proxy may not; after a
     * refusal not all headers were seen. */
    x->is_last = x->refusal || x->verdict.status || in.values.n_transfer_encoding;
    x->too_large = parsed && n > x->max_body;
    x->host = in.values.host;
    x->typed = tke_guard_type_ok(tke_exchange_header(x, "Content-Type"));
    if (x->refusal)
        return is_read_first(x, n) ? MHD_YES : answer_refusal(x);
    if (x->verdict.status)
        x->refusal = TKE_X_GUARD;
    else if (!known && path.needs_key)
        x->refusal = TKE_X_KEY;
    else if (x->too_large && !path.is_pass)
        x->refusal = TKE_X_SIZE; /* passes are still read: their seq_ids must not be lost */
    bool unclear = x->verdict.status == 400; /* the end of its body is unknown */
    return x->refusal && (unclear || !is_read_first(x, n)) ? answer_refusal(x) : MHD_YES;
}

/* ---- the body ---- */

static size_t body_bound(const tke_http *h)
{
    size_t bound = BODIES * (size_t)tke_service_max_body(h->svc);
    size_t budget = tke_service_body_memory(h->svc);
    return bound < budget ? bound : budget;
}

static void forget_body(tke_http *h, tke_peer *p, tke_exchange *x)
{
    tkc_buf_free(&x->body);
    atomic_fetch_sub(&h->body_bytes, x->counted);
    x->counted = 0;
    tke_peer_holds(p, 0);
}

static void take_body(tke_http *h, tke_peer *p, tke_exchange *x, const char *data, size_t len)
{
    tinkc_error err = { 0 };
    enum { HEAD = 4096 }; /* kept of a body that is too large: it may hold the seq_id */
    size_t max = (size_t)x->max_body;
    if (x->refusal)
        return; /* read to the end, or the answer might not arrive, but not kept */
    if (!x->too_large && x->body.len + len <= max) {
        x->counted += len;
        size_t all = atomic_fetch_add(&h->body_bytes, len) + len;
        tke_peer_holds(p, x->counted);
        /* The first piece of any body is taken: small requests work while large ones fill the
         * memory. */
        if ((x->body.len == 0 || tke_peer_may_hold(p, all, body_bound(h))) &&
            tkc_buf_add(&x->body, data, len, &err))
            return;
        x->refusal = TKE_X_BUSY;
        forget_body(h, p, x);
        return;
    }
    x->too_large = true;
    if (x->body.len > HEAD)
        x->body.len = HEAD;
    size_t room = HEAD - x->body.len;
    (void)tkc_buf_add(&x->body, data, len < room ? len : room, &err);
}

/* ---- the complete request ---- */

/* Adds it to the list of active exchanges. False: the server is stopping. */
static bool enlist(tke_http *h, tke_exchange *x)
{
    pthread_mutex_lock(&h->lock);
    bool ok = !h->stopping;
    if (ok) {
        x->listed = x->handed_over = true;
        h->n_unsent++;
        x->next = h->active;
        if (x->next)
            x->next->prev = x;
        h->active = x;
        h->n_active++;
    }
    pthread_mutex_unlock(&h->lock);
    return ok;
}

/* Must it be cancelled because the server is stopping? */
static bool is_unwanted(tke_http *h, const tke_exchange *x)
{
    pthread_mutex_lock(&h->lock);
    bool unwanted = h->cutting || (h->stopping && x->is_poll);
    pthread_mutex_unlock(&h->lock);
    return unwanted;
}

void tke_http_over(tke_exchange *x)
{
    tke_http *h = x->http;
    pthread_mutex_lock(&h->lock);
    if (x->listed) {
        *(x->prev ? &x->prev->next : &h->active) = x->next;
        if (x->next)
            x->next->prev = x->prev;
        assert(h->n_active > 0);
        h->n_active--;
        x->listed = false;
        pthread_cond_broadcast(&h->changed);
    }
    pthread_mutex_unlock(&h->lock);
}

static enum MHD_Result send_metrics(tke_http *h, tke_exchange *x)
{
    tinkc_error err = { 0 };
    x->status = 200;
    add_header(x, "Content-Type", "text/plain; version=0.0.4");
    tke_service_metrics(h->svc, &x->out, &err);
    tkc_buf_printf(&x->out, &err,
                   "# HELP tinkc_body_bytes Bodies of requests that are being read or answered\n"
                   "# TYPE tinkc_body_bytes gauge\ntinkc_body_bytes %zu\n",
                   atomic_load(&h->body_bytes));
    return tke_exchange_answer(x);
}

/* The base of links in answers: one of our names, or the address that the client reached. */
static void set_base_url(const tke_http *h, tke_exchange *x)
{
    /* The Host is the client's choice: an unknown one in a link would lead its reader to
     * another server. */
    if (x->host && tke_guard_knows(&h->guard, x->host))
        (void)snprintf(x->base_url, sizeof x->base_url, "http://%.280s", x->host);
    else
        tke_local_url(h, tke_peer_of(h, x->connection)->fd, x->base_url, sizeof x->base_url);
}

void tke_request_cancel(tke_http *h, tke_exchange *x)
{
    if (x->to_page)
        tke_page_cancel(h->page, &x->reply);
    else
        tke_service_cancel(h->svc, &x->reply);
}

/* Locks: needs h->lock. */
static tke_exchange *find_gone(tke_http *h)
{
    for (tke_exchange *x = h->active; x; x = x->next)
        /* Only those that hold a body are asked: it costs a system call each. */
        if (!x->cancelled && x->holds_body && tke_exchange_peer_gone(&x->reply)) {
            x->cancelled = true;
            tke_exchange_keep(x);
            return x;
        }
    return NULL;
}

/* The library does not look at a connection that is suspended, so a body would stay in memory until its
 * request has its turn. */
void tke_requests_cancel_gone(tke_http *h)
{
    for (tke_exchange *x;;) {
        pthread_mutex_lock(&h->lock);
        x = find_gone(h);
        pthread_mutex_unlock(&h->lock);
        if (!x)
            return;
        tke_request_cancel(h, x);
        tke_exchange_drop(x);
    }
}

/* Below /ui: may this client have an answer? The page itself holds no data, so it is public. */
static bool may_enter_page(const tke_http *h, const tke_exchange *x)
{
    const tke_gate_request from = { .host = x->host,
                                    .origin = tke_exchange_header(x, "Origin"),
                                    .fetch_site = tke_exchange_header(x, "Sec-Fetch-Site") };
    return tke_page_is_public(x->uri) ||
           tke_gate_allows(&from, h->url, !tke_key_ring_is_empty(h->keys));
}

/* Checks a request under /ui and adds headers to its answer. False: refused and answered. */
static bool enter_page(tke_http *h, tke_exchange *x)
{
    if (!may_enter_page(h, x))
        refuse(x, 403, "forbidden", "The page is for this machine and its own origin only");
    else if (x->from_page && !h->page_chat)
        refuse(x, 404, "not_found", "This server cannot sample texts");
    else {
        for (const char *const *pair = tke_gate_headers(); *pair; pair++)
            x->reply_headers[x->n_reply_headers++] = *pair;
        return true;
    }
    return false;
}

/* Gives the exchange to the service; from now on it may end at any time. False: its body is still
 * needed. */
static bool hand_over(tke_http *h, tke_exchange *x)
{
    const tke_caller caller = { x->who.owner, x->who.key_id, x->who.generation, x->who.email,
                                (const char *const *)h->models };
    uint32_t flags = TKE_CALL_REMOTE | (x->too_large ? TKE_CALL_CUT_OFF : 0u) |
                     (h->openai || x->from_page ? TKE_CALL_OPENAI : 0u) |
                     (x->typed ? 0u : TKE_CALL_UNTYPED);
    /* Until tke_exchange_wait: a write of the service on this thread must not wait for the
     * connection, which this thread serves. */
    x->inside = true;
    if (!x->to_page)
        return tke_service_handle(h->svc, &x->request, &x->reply, &caller, flags);
    tke_page_handle(h->page, &x->request, &x->reply, x->who.owner);
    return false;
}

static enum MHD_Result dispatch(tke_http *h, tke_exchange *x, const char *method)
{
    tinkc_error err = { 0 };
    bool bodiless = tkc_cstr_eq(method, "HEAD"); /* a GET whose body the library leaves out */
    x->method = tkc_arena_cstr(&x->arena, bodiless ? "GET" : method, &err);
    if (x->refusal)
        return answer_refusal(x);
    if (h->metrics && tkc_cstr_eq(x->uri, "/metrics"))
        return send_metrics(h, x);
    set_base_url(h, x);
    bool ui = x->to_page || x->from_page;
    x->is_poll = strstr(x->uri, "/retrieve_future") || (ui && tke_page_is_stream(x->uri));
    if (ui && !enter_page(h, x))
        return tke_exchange_answer(x);
    x->request = (tinkc_request){ .method = x->method,
                                  .path = x->uri + (x->from_page ? strlen("/ui") : 0),
                                  .base_url = x->base_url,
                                  .headers = x->headers,
                                  .body = { (const unsigned char *)x->body.data, x->body.len } };
    if (!x->method || !enlist(h, x)) {
        refuse(x, 503, "stopping", "The server is stopping");
        return tke_exchange_answer(x);
    }
    tke_exchange_keep(x); /* the service's reference */
    tke_exchange_open_reply(x);
    bool done = hand_over(h, x);
    if (done)
        forget_body(h, tke_peer_of(h, x->connection), x);
    pthread_mutex_lock(&h->lock);
    x->holds_body = !done;
    pthread_mutex_unlock(&h->lock);
    if (is_unwanted(h, x)) /* the server may have cancelled all others before it was listed */
        tke_request_cancel(h, x);
    return tke_exchange_wait(x);
}

/* ---- the library's calls ---- */

static tke_exchange *exchange_of(tke_http *h, struct MHD_Connection *connection, tke_peer *p)
{
    tke_exchange *x = p && p->uri ? tke_exchange_new(h, h->mhd, h->a, p->uri) : NULL;
    if (!x)
        return NULL;
    x->connection = connection;
    /* The library reports the end of a request later, with this server as its argument. */
    tkc_ref_keep(&h->refs);
    tke_peer_is(p, TKE_PEER_BODY);
    return x;
}

enum MHD_Result tke_request_handle(void *cls, struct MHD_Connection *connection, const char *url,
                                   const char *method, const char *version, const char *data,
                                   size_t *size, void **context)
{
    tke_http *h = cls;
    tke_peer *p = tke_peer_of(h, connection);
    (void)url;
    if (!*context)
        *context = exchange_of(h, connection, p);
    tke_exchange *x = *context;
    if (!x)
        return MHD_NO; /* no memory: the connection is closed */
    pthread_mutex_lock(&x->lock);
    int32_t state = x->state;
    pthread_mutex_unlock(&x->lock);
    if (state == TKE_X_ANSWERING)
        return tke_exchange_answer(x);
    if (state != TKE_X_READING)
        return MHD_YES;
    if (!x->method)
        return look_at_head(h, x, method, version);
    if (*size) {
        tke_peer_read(p, *size);
        take_body(h, p, x, data, *size);
        *size = 0;
        return MHD_YES;
    }
    tke_peer_is(p, TKE_PEER_BUSY);
    return dispatch(h, x, method);
}

/* Text of a client for one line of the log: what could end the line or steer a terminal is written as
 * \xNN, and so is a backslash doubled. Cut to `most` bytes of input; out has 4 * most + 1. */
static void escape_text(const char *text, size_t most, char *out)
{
    static const char hex[] = "0123456789abcdef";
    for (size_t i = 0; i < most && text[i]; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c < 0x7f) {
            *out++ = (char)c;
            if (c == '\\')
                *out++ = '\\';
            continue;
        }
        *out++ = '\\';
        *out++ = 'x';
        *out++ = hex[c >> 4];
        *out++ = hex[c & 15];
    }
    *out = '\0';
}

static void log_access(tke_http *h, tke_exchange *x)
{
    enum { URI = 400, METHOD = 40 };
    char line[4 * (URI + METHOD) + 300], uri[4 * URI + 1], method[4 * METHOD + 1];
    if (!h->access_log)
        return;
    pthread_mutex_lock(&x->lock); /* the service may still use it */
    int status = (int)x->status;
    pthread_mutex_unlock(&x->lock);
    double ms = (double)(tkc_monotonic_ns() - x->start_ns) / 1e6;
    escape_text(x->method ? x->method : "-", METHOD, method);
    escape_text(x->uri, URI, uri);
    (void)snprintf(line, sizeof line, "%s %s %d %llu %.1fms %s", method, uri, status,
                   (unsigned long long)x->n_sent, ms, x->who.owner);
    tkc_redact(line, strlen(line));
    h->access_log(TINKC_LOG_INFO, line, h->access_log_user);
}

void tke_request_completed(void *cls, struct MHD_Connection *connection, void **context,
                           enum MHD_RequestTerminationCode code)
{
    tke_http *h = cls;
    tke_exchange *x = *context;
    *context = NULL;
    if (!x)
        return;
    tke_peer_is(tke_peer_of(h, connection), TKE_PEER_HEAD);
    bool whole = code == MHD_REQUEST_TERMINATED_COMPLETED_OK;
    tke_exchange_closed(x);
    atomic_fetch_sub(&h->body_bytes, x->counted);
    /* Only a whole answer is a delivery: after any other the client asks again, and the result must
     * be there still. */
    if (whole && *x->future)
        tke_service_delivered(h->svc, x->future);
    log_access(h, x);
    pthread_mutex_lock(&h->lock);
    bool unfinished = x->listed;
    assert(!x->handed_over || h->n_unsent > 0);
    h->n_unsent -= x->handed_over;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    if (unfinished)
        tke_request_cancel(h, x);
    tke_exchange_drop(x);
    tke_http_drop(h);
}
