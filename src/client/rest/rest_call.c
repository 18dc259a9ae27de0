/* rest_call.c - any call by hand: options checked, responses kept whole, multipart forms.
 *
 * May touch: its arguments, one tkc_call for each future. Must not: know what a call means.
 */
#include <string.h>
#include "client/core/client_priv.h"
#include "client/call/body_stream.h"
#include "client/core/options.h"
#include "base/str.h"
#include "codec/multipart.h"
#include "codec/query.h"
#include "codec/url.h"

/* ---- responses ---- */

bool tkc_response_fill(struct tinkc_response *r, const tkc_call *call, tkc_arena *arena,
                       tinkc_error *err)
{
    const char *const *from = tkc_call_headers(call);
    size_t n = 0, kept = 0;
    while (from && from[n])
        n++;
    const char **headers = tkc_arena_array(arena, n + 1, sizeof *headers, err);
    if (!headers)
        return false;
    *r = (struct tinkc_response){ .status = tkc_call_status(call),
                                  .retries = call->attempts - 1,
                                  .url = "",
                                  .http_version = "",
                                  .headers = headers,
                                  .elapsed_ms = tkc_call_elapsed_ms(call) };
    for (size_t i = 0; i + 1 < n; i += 2) {
        const char *value = tkc_arena_cstr(arena, from[i + 1], err);
        /* Names that begin with a colon are the transport's notes. */
        if (strcmp(from[i], ":url") == 0) {
            r->url = value;
        } else if (strcmp(from[i], ":version") == 0) {
            r->http_version = value;
        } else if (from[i][0] != ':') {
            headers[kept++] = tkc_arena_cstr(arena, from[i], err);
            headers[kept++] = value;
        }
    }
    return !tkc_failed(err);
}

int32_t tinkc_response_status(const tinkc_response *r)
{
    return r ? r->status : 0;
}

tinkc_bytes tinkc_response_body(const tinkc_response *r)
{
    return r ? r->body : (tinkc_bytes){ 0 };
}

const char *tinkc_response_url(const tinkc_response *r)
{
    return r ? r->url : "";
}

const char *tinkc_response_http_version(const tinkc_response *r)
{
    return r ? r->http_version : "";
}

const char *tinkc_response_header(const tinkc_response *r, const char *name)
{
    for (const char *const *h = r && name ? r->headers : NULL; h && h[0]; h += 2)
        if (tkc_str_is_nocase(tkc_str(h[0]), name))
            return h[1];
    return NULL;
}

const char *const *tinkc_response_headers(const tinkc_response *r)
{
    static const char *const none[] = { NULL };
    return r ? r->headers : none;
}

int64_t tinkc_response_elapsed_ms(const tinkc_response *r)
{
    return r ? r->elapsed_ms : 0;
}

int32_t tinkc_response_retries(const tinkc_response *r)
{
    return r ? r->retries : 0;
}

/* ---- forms ---- */

typedef struct part part;
struct part {
    part *next;
    const char *name, *filename, *content_type; /* filename NULL = a text */
    tinkc_bytes data;
    tkc_upload *file; /* instead of data */
};

struct tinkc_form {
    tinkc_client *client;
    tkc_arena arena;
    part *first, **last;
};

tinkc_form *tinkc_form_new(tinkc_client *client, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_client_check(client, err))
        return NULL;
    tinkc_form *form = tkc_zalloc(client->a, sizeof *form, err);
    if (!form)
        return NULL;
    form->client = client;
    form->last = &form->first;
    tkc_arena_init(&form->arena, client->a, 0);
    tkc_client_keep(client);
    return form;
}

/* What may stand in a part's head: it becomes a header line. */
static void check_line(const char *text, const char *what, tinkc_error *err)
{
    if (text && strpbrk(text, "\r\n"))
        tkc_fail(err, TINKC_E_ARGUMENT, "%s holds a line break", what);
}

static part *new_part(tinkc_form *form, const char *name, const char *filename,
                      const char *content_type, tinkc_error *err)
{
    if (!form || !name || !*name) {
        tkc_fail(err, TINKC_E_ARGUMENT, form ? "name is empty" : "the form is NULL");
        return NULL;
    }
    check_line(name, "name", err);
    check_line(filename, "filename", err);
    check_line(content_type, "content_type", err);
    if (tkc_failed(err))
        return NULL;
    part *p = tkc_arena_zalloc(&form->arena, sizeof *p, err);
    if (!p)
        return NULL;
    p->name = tkc_arena_cstr(&form->arena, name, err);
    p->filename = filename ? tkc_arena_cstr(&form->arena, filename, err) : NULL;
    p->content_type = content_type ? tkc_arena_cstr(&form->arena, content_type, err) : NULL;
    return tkc_failed(err) ? NULL : p;
}

static void add_part(tinkc_form *form, part *p)
{
    *form->last = p;
    form->last = &p->next;
}

bool tinkc_form_add_text(tinkc_form *form, const char *name, const char *value, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    part *p = new_part(form, name, NULL, NULL, err);
    if (!p)
        return false;
    if (!value)
        return tkc_fail(err, TINKC_E_ARGUMENT, "value is NULL");
    const char *copy = tkc_arena_cstr(&form->arena, value, err);
    if (!copy)
        return false;
    p->data = (tinkc_bytes){ (const unsigned char *)copy, strlen(copy) };
    add_part(form, p);
    return true;
}

bool tinkc_form_add_bytes(tinkc_form *form, const char *name, const void *data, size_t len,
                          const char *filename, const char *content_type, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!data && len)
        return tkc_fail(err, TINKC_E_ARGUMENT, "data is NULL");
    part *p = new_part(form, name, filename ? filename : "", content_type, err);
    unsigned char *copy = p ? tkc_arena_alloc(&form->arena, len, err) : NULL;
    if (!copy)
        return false;
    if (len)
        memcpy(copy, data, len);
    p->data = (tinkc_bytes){ copy, len };
    add_part(form, p);
    return true;
}

bool tinkc_form_add_file(tinkc_form *form, const char *name, const char *file,
                         const char *content_type, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!file)
        return tkc_fail(err, TINKC_E_ARGUMENT, "file is NULL");
    const char *slash = strrchr(file, '/');
    part *p = new_part(form, name, slash ? slash + 1 : file, content_type, err);
    p = p && (p->file = tkc_upload_open(form->client->a, file, err)) ? p : NULL;
    if (!p)
        return false;
    add_part(form, p);
    return true;
}

void tinkc_form_free(tinkc_form *form)
{
    if (!form || tkc_client_forked(form->client))
        return;
    tinkc_client *client = form->client;
    for (part *p = form->first; p; p = p->next)
        tkc_upload_drop(p->file);
    tkc_arena_free(&form->arena);
    tkc_release(client->a, form, sizeof *form);
    tkc_client_drop(client);
}

static void write_form(const tinkc_form *form, tkc_body *body, tkc_buf *type, tinkc_error *err)
{
    tkc_multipart m;
    tkc_multipart_open(&m, tkc_body_bytes(body), form->client->clock, err);
    for (const part *p = form->first; p; p = p->next) {
        const char *filename = p->filename && p->filename[0] ? p->filename : NULL;
        if (p->file) {
            tkc_multipart_head(&m, p->name, filename,
                               p->content_type ? p->content_type : "application/octet-stream");
            tkc_body_file(body, p->file, err);
            tkc_multipart_tail(&m);
        } else if (p->filename) {
            tkc_multipart_bytes(&m, p->name, filename, p->content_type, p->data.data, p->data.len);
        } else {
            tkc_multipart_text(&m, p->name, tkc_strn((const char *)p->data.data, p->data.len));
        }
    }
    tkc_multipart_close(&m);
    tkc_multipart_type(&m, type, err);
    tkc_buf_terminate(type, err);
}

/* ---- options ---- */

static const char *known_method(const tinkc_http_options *o, bool has_body, tinkc_error *err)
{
    static const char *const methods[] = { "GET",    "POST", "PUT",     "PATCH",
                                           "DELETE", "HEAD", "OPTIONS", NULL };
    if (!o->method)
        return has_body ? "POST" : "GET";
    for (size_t i = 0; methods[i]; i++)
        /* The text of this table, not the caller's: a call keeps the pointer. */
        if (strcmp(methods[i], o->method) == 0)
            return methods[i];
    tkc_fail(err, TINKC_E_ARGUMENT, "method \"%.20s\" is not known", o->method);
    return NULL;
}

/* Header names are tokens, values one line of text. */
static bool check_headers(const char *const *headers, tinkc_error *err)
{
    for (const char *const *h = headers; h && h[0]; h += 2) {
        if (!h[1])
            return tkc_fail(err, TINKC_E_ARGUMENT, "headers: \"%.60s\" has no value", h[0]);
        if (!h[0][0] || h[0][strcspn(h[0], " \t\r\n:\"(),/;<=>?@[\\]{}")])
            return tkc_fail(err, TINKC_E_ARGUMENT, "headers: \"%.60s\" is not a valid header name",
                            h[0]);
        for (const char *c = h[1]; *c; c++)
            if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7f)
                return tkc_fail(err, TINKC_E_ARGUMENT,
                                "headers: the value of %.60s holds a control character", h[0]);
    }
    return true;
}

/* A path on the service: escaped already, without a way out of it. */
static bool check_path(const char *path, tinkc_error *err)
{
    size_t end = strcspn(path, "?");
    for (const char *c = path; *c; c++)
        if ((unsigned char)*c <= 0x20 || (unsigned char)*c >= 0x7f || *c == '#' || *c == '\\')
            return tkc_fail(err, TINKC_E_ARGUMENT, "path: a character in it needs escaping");
    if (path[0] != '/' || path[1] == '/')
        return tkc_fail(err, TINKC_E_ARGUMENT, "path must begin with one slash or be a whole URL");
    tinkc_str rest = tkc_strn(path, end), piece;
    while (tkc_str_cut(&rest, '/', &piece))
        if (tkc_str_is(piece, ".") || tkc_str_is(piece, ".."))
            return tkc_fail(err, TINKC_E_ARGUMENT, "path leads elsewhere");
    return true;
}

static bool count_bodies(const tinkc_http_options *o, bool *any, tinkc_error *err)
{
    int n = (o->body != NULL) + (o->body_file != NULL) + (o->form != NULL);
    if (o->body_len && !o->body)
        return tkc_fail(err, TINKC_E_ARGUMENT, "body is NULL but body_len is not 0");
    if (n > 1)
        return tkc_fail(err, TINKC_E_ARGUMENT, "body, body_file and form: more than one is given");
    *any = n == 1;
    return true;
}

static bool check_call(const tinkc_http_options *o, tinkc_error *err)
{
    if (!o || !o->path)
        return tkc_fail(err, TINKC_E_ARGUMENT, o ? "path is NULL" : "options are NULL");
    if (!tkc_all_zero(o->reserved, sizeof o->reserved) || o->reserved_bools[0])
        return tkc_fail(err, TINKC_E_ARGUMENT, "call options: reserved must be zero");
    if (!tkc_check_number(o->max_retries, TKC_MAY_BE_ZERO, "max_retries", err) ||
        !tkc_check_number(o->idle_timeout_ms, TKC_MAY_BE_ENDLESS, "idle_timeout_ms", err))
        return false;
    if (o->content_type && strpbrk(o->content_type, "\r\n"))
        return tkc_fail(err, TINKC_E_ARGUMENT, "content_type holds a line break");
    if (o->idempotency_key && strpbrk(o->idempotency_key, "\r\n"))
        return tkc_fail(err, TINKC_E_ARGUMENT, "idempotency_key holds a line break");
    return check_headers(o->headers, err);
}

/* What a call is put together from; ended by free_draft. */
typedef struct draft {
    tkc_arena arena;
    tkc_buf path, type;
    tkc_body *body;       /* NULL = none */
    const char *base_url; /* NULL = the service's */
} draft;

static void free_draft(draft *d)
{
    tkc_buf_free(&d->path);
    tkc_body_drop(d->body);
    tkc_buf_free(&d->type);
    tkc_arena_free(&d->arena);
}

/* Takes a whole URL apart. *foreign: it is not the service, so it gets no credential. */
static bool draft_url(draft *d, const tinkc_client *client, const char *text, bool *foreign,
                      tinkc_error *err)
{
    tkc_url url;
    if (!tkc_url_parse(tkc_str(text), &d->arena, &url, err))
        return false;
    *foreign = !client->base_url[0] || !tkc_url_same_origin(url.text, client->base_url);
    d->base_url = url.origin;
    tkc_buf_cstr(&d->path, url.path, err);
    if (url.query) {
        tkc_buf_char(&d->path, '?', err);
        tkc_buf_cstr(&d->path, url.query, err);
    }
    return !tkc_failed(err);
}

static bool draft_path(draft *d, const tinkc_client *client, const tinkc_http_options *o,
                       bool *foreign, tinkc_error *err)
{
    tkc_query q;
    if (strstr(o->path, "://") && o->path[0] != '/') {
        if (!draft_url(d, client, o->path, foreign, err))
            return false;
    } else {
        if (!check_path(o->path, err) || !tkc_buf_cstr(&d->path, o->path, err))
            return false;
    }
    tkc_query_open(&q, &d->path, strchr(o->path, '?') ? '&' : '?', err);
    for (const char *const *p = o->query; p && p[0]; p += 2) {
        if (!p[1])
            return tkc_fail(err, TINKC_E_ARGUMENT, "query: \"%.60s\" has no value", p[0]);
        tkc_query_str(&q, p[0], p[1]);
    }
    return tkc_buf_terminate(&d->path, err) != NULL;
}

static bool add_file(tkc_body *body, const tinkc_allocator *a, const char *path, tinkc_error *err)
{
    tkc_upload *file = tkc_upload_open(a, path, err);
    bool ok = file && tkc_body_file(body, file, err);
    tkc_upload_drop(file);
    return ok;
}

static bool draft_body(draft *d, const tinkc_client *client, const tinkc_http_options *o,
                       tinkc_error *err)
{
    d->body = tkc_body_new(client->a, err);
    if (!d->body)
        return false;
    if (o->form)
        write_form(o->form, d->body, &d->type, err);
    else if (o->body_file)
        add_file(d->body, client->a, o->body_file, err);
    else
        tkc_buf_add(tkc_body_bytes(d->body), o->body, o->body_len, err);
    if (tkc_failed(err) || !tkc_body_close(d->body, err))
        return false;
    return (client->transport->flags & TINKC_TRANSPORT_READS) || tkc_body_load(d->body, err);
}

static const char *const *draft_headers(draft *d, const tinkc_http_options *o, tinkc_error *err)
{
    size_t n = 0;
    while (o->headers && o->headers[n])
        n++;
    const char **all = tkc_arena_array(&d->arena, n + 3, sizeof *all, err);
    if (!all)
        return NULL;
    for (size_t i = 0; i < n; i++)
        all[i] = o->headers[i];
    if (o->idempotency_key) {
        all[n++] = "X-Idempotency-Key";
        all[n++] = o->idempotency_key;
    }
    return all;
}

static int32_t retries_of(const tinkc_http_options *o)
{
    return o->no_retries ? 0 : (int32_t)tkc_number_or(o->max_retries, TKC_RETRIES_DEFAULT);
}

tkc_call *tkc_call_from_options(tinkc_client *client, const tinkc_http_options *o,
                                const tkc_call_spec *base, tinkc_error *err)
{
    draft d = { 0 };
    bool has_body = false, foreign = false;
    tkc_call *call = NULL;
    if (!check_call(o, err) || !count_bodies(o, &has_body, err))
        return NULL;
    const char *method = known_method(o, has_body, err);
    tkc_arena_init(&d.arena, client->a, 0);
    tkc_buf_init(&d.path, client->a, TKC_BUF_NO_MAX);
    tkc_buf_init(&d.type, client->a, TKC_BUF_NO_MAX);
    if (method && draft_path(&d, client, o, &foreign, err) &&
        (!has_body || draft_body(&d, client, o, err))) {
        tkc_call_spec spec = *base;
        spec.method = method;
        spec.path = d.path.data;
        spec.base_url = d.base_url;
        spec.pool = TINKC_POOL_REST;
        /* Another address does not wait for our start-up, nor does it learn who we are. */
        spec.need = foreign ? TKC_NEED_NOTHING : TKC_NEED_CONFIG;
        spec.anonymous = foreign;
        spec.retries = retries_of(o);
        spec.window = !o->no_retries;
        spec.no_redirects = o->no_redirects;
        spec.timeout_ms = o->idle_timeout_ms;
        spec.content_type = d.type.len ? d.type.data : o->content_type;
        spec.headers = draft_headers(&d, o, err);
        spec.parts = d.body;
        if (spec.headers)
            call = tkc_call_new(client, &spec, err);
    }
    free_draft(&d);
    return call;
}

/* ---- the future of a call ---- */

typedef struct call_op {
    tinkc_future f;
    tkc_call *call;
    bool any_status;
} call_op;

static void call_done(tkc_call *call)
{
    call_op *op = call->owner;
    tinkc_future *f = &op->f;
    tinkc_error err = call->err;
    if (err.code && err.http_status && op->any_status)
        err = (tinkc_error){ 0 };
    if (!err.code) {
        struct tinkc_response *r = tkc_arena_alloc(&f->arena, sizeof *r, &err);
        unsigned char *body = r ? tkc_arena_alloc(&f->arena, call->body.len + 1, &err) : NULL;
        if (body && tkc_response_fill(r, call, &f->arena, &err)) {
            if (call->body.len)
                memcpy(body, call->body.data, call->body.len);
            body[call->body.len] = 0;
            r->body = (tinkc_bytes){ body, call->body.len };
            f->result = r;
        }
    } else {
        tkc_op_error_body(f, call->body);
    }
    tkc_call_free(call);
    op->call = NULL;
    tkc_op_finish(f, &err);
}

static void call_begin(tinkc_future *f)
{
    call_op *op = (call_op *)(void *)f;
    op->call->owner = op;
    op->call->f = f;
    op->call->done = call_done;
    tkc_op_stage(f, TINKC_STAGE_SENDING);
    tkc_call_start(op->call);
}

static void call_stop(tinkc_future *f, const tinkc_error *why)
{
    call_op *op = (call_op *)(void *)f;
    tkc_call_free(op->call);
    op->call = NULL;
    tkc_op_finish(f, why);
}

static void call_destroy(tinkc_future *f)
{
    tkc_call_free(((call_op *)(void *)f)->call); /* one that was never started */
}

static const tkc_op_class call_class = { "call",     "response", sizeof(call_op),
                                         call_begin, call_stop,  call_destroy };

tinkc_future *tinkc_http_call(tinkc_client *client, const tinkc_http_options *options,
                              tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local) || !tkc_client_check_open(client, err))
        return NULL;
    tkc_call *call = tkc_call_from_options(client, options, &(tkc_call_spec){ 0 }, err);
    tinkc_future *f = call ? tkc_op_new(client, &call_class, err) : NULL;
    if (!f) {
        tkc_call_free(call);
        return NULL;
    }
    call_op *op = (call_op *)(void *)f;
    op->call = call;
    op->any_status = options->any_status;
    return tkc_op_submit(f);
}

const tinkc_response *tinkc_future_response(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    return tkc_future_get(f, "response", timeout_ms, err);
}
