/* reply.c - writes answers and reads headers, query and body of a request.
 *
 * Touches the call and its reply only. Every answer has a body with its length (or is a 204),
 * because clients take a 400 without a body for an error of a proxy.
 */
#include <stdio.h>

#include "codec/query.h"
#include "service/chat/chat_paths.h"
#include "service/core/service_state.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/unknown_fields.h"

void tke_send(tinkc_reply *reply, int32_t status, const char *type, tinkc_str body)
{
    reply->status(reply, status);
    if (type)
        reply->header(reply, "Content-Type", type);
    if (body.len)
        (void)reply->write(reply, body.data, body.len);
    reply->end(reply);
}

void tke_send_json(tinkc_reply *reply, int32_t status, tinkc_str body)
{
    tke_send(reply, status, TKC_TYPE_JSON, body);
}

static void send_error(tinkc_reply *reply, const tinkc_allocator *a, int32_t status,
                       const char *code, const char *detail)
{
    tinkc_error err = { 0 };
    tkc_buf body;
    tkc_buf_init(&body, a, TKC_BUF_NO_MAX);
    if (tkc_error_body_write(&(tkc_error_body){ .detail = detail, .code = code }, &body, &err))
        tke_send_json(reply, status, tkc_buf_view(&body));
    else
        tke_send_json(reply, status, tkc_str("{\"detail\":\"out of memory\",\"code\":\"memory\"}"));
    tkc_buf_free(&body);
}

void tke_send_error(tinkc_reply *reply, const tinkc_allocator *a, int32_t status, const char *code,
                    const char *format, ...)
{
    char detail[600];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    send_error(reply, a, status, code, detail);
}

int32_t tke_failure_status(const tinkc_error *err, const char **code_out)
{
    int32_t status = 500;
    const char *code = "server_error";
    if (err->code == TINKC_E_RATE_LIMITED) {
        status = 429;
        code = "busy";
    } else if (err->code == TINKC_E_UNPROCESSABLE || err->code == TINKC_E_BAD_RESPONSE) {
        status = 422;
        code = "unprocessable";
    } else if (err->code == TINKC_E_TOO_LARGE) {
        status = 403;
        code = "quota";
    } else if (tkc_code_category(err->code) == TINKC_BY_CALLER) {
        status = err->code == TINKC_E_NOT_FOUND ? 404 : err->code == TINKC_E_FORBIDDEN ? 403 : 400;
        code = status == 404 ? "not_found" : status == 403 ? "forbidden" : "bad_request";
    } else if (err->code == TINKC_E_STORE || err->code == TINKC_E_FILE) {
        code = "store";
    } else if (err->code == TINKC_E_MEMORY) {
        status = 503;
        code = "memory";
    }
    *code_out = code;
    return status;
}

/* Shortens each file system path in the message to its last part. A path begins with '/' at the
 * start of a word and ends with the word or at a ':'. The rest, such as "train_state.json: No space
 * left", is what clients can use. */
void tke_hide_paths(tinkc_error *err)
{
    char *out = err->message;
    /* Only these have paths of the server; other messages may quote what the client sent. */
    if (err->code != TINKC_E_FILE && err->code != TINKC_E_STORE && err->code != TINKC_E_MODEL)
        return;
    for (const char *at = err->message; *at;) {
        bool starts = *at == '/' && (at == err->message || strchr(" '\"(", at[-1]));
        size_t n = starts ? strcspn(at, " '\":,;)") : 1, keep = n;
        for (size_t i = 0; starts && i < n; i++)
            keep = at[i] == '/' ? n - i - 1 : keep; /* the last part */
        memmove(out, at + n - keep, keep);
        out += keep;
        at += n;
    }
    *out = '\0';
}

void tke_send_failure(tinkc_reply *reply, const tinkc_allocator *a, const tinkc_error *err)
{
    const char *code;
    int32_t status = tke_failure_status(err, &code);
    tinkc_error shown = *err;
    tke_hide_paths(&shown);
    send_error(reply, a, status, code, shown.message);
}

void tke_refuse_for(tke_call *call, int64_t retry_after_s, const char *code, const char *format,
                    ...)
{
    char detail[600], seconds[32];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    (void)snprintf(seconds, sizeof seconds, "%lld", (long long)retry_after_s);
    call->reply->header(call->reply, "Retry-After", seconds);
    tke_refuse(call, 429, code, "%s", detail);
}

void tke_refuse(tke_call *call, int32_t status, const char *code, const char *format, ...)
{
    char detail[600];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    if (call->openai)
        tke_openai_refuse(call, status, code, NULL, detail);
    else
        send_error(call->reply, call->svc->a, status, code, detail);
}

void tke_refuse_after(tke_call *call, tke_txn *txn, int32_t status, const char *code,
                      const char *format, ...)
{
    char detail[600];
    tinkc_error err = { 0 };
    tkc_buf body;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    tkc_buf_init(&body, call->svc->a, TKC_BUF_NO_MAX);
    if (!txn ||
        !tkc_error_body_write(&(tkc_error_body){ .detail = detail, .code = code }, &body, &err)) {
        /* Committed even so: without its row the number would be open again after a restart, and
         * later requests would wait for it. */
        if (txn)
            tke_txn_commit(txn, NULL, NULL);
        tke_refuse(call, status, code, "%s", detail);
    } else {
        tke_answer_after(call, txn, status, tkc_buf_view(&body));
    }
    tkc_buf_free(&body);
}

void tke_answer(tke_call *call, const tkc_message *type, const void *msg)
{
    tkc_buf body;
    tkc_buf_init(&body, call->svc->a, TKC_BUF_NO_MAX);
    if (tkc_message_encode(type, msg, &body, &call->err))
        tke_send_json(call->reply, 200, tkc_buf_view(&body));
    else
        tke_send_failure(call->reply, call->svc->a, &call->err);
    tkc_buf_free(&body);
}

/* ---- answers that wait for the disk ---- */

typedef struct later {
    const tinkc_allocator *a;
    tinkc_reply *reply;
    int32_t status;
    size_t len;
    char body[];
} later;

static void send_later(void *user, const tinkc_error *err)
{
    later *l = user;
    /* An error, not the answer: what the client believes to be stored must be there after a
     * crash. */
    if (tkc_failed(err))
        tke_send_failure(l->reply, l->a, err);
    else
        tke_send(l->reply, l->status, l->len ? TKC_TYPE_JSON : NULL, tkc_strn(l->body, l->len));
    tkc_release(l->a, l, sizeof *l + l->len);
}

void tke_answer_text(tke_call *call, tkc_buf *json)
{
    if (tkc_failed(&call->err))
        tke_send_failure(call->reply, call->svc->a, &call->err);
    else
        tke_send_json(call->reply, 200, tkc_buf_view(json));
    tkc_buf_free(json);
}

void tke_answer_after(tke_call *call, tke_txn *txn, int32_t status, tinkc_str json)
{
    later *l = tkc_alloc(call->svc->a, sizeof *l + json.len, &call->err);
    if (!l) {
        /* What the request did in memory must still reach the disk; the client, which gets an
         * error, repeats the request. */
        tke_txn_commit(txn, NULL, NULL);
        tke_send_failure(call->reply, call->svc->a, &call->err);
        return;
    }
    *l = (later){ call->svc->a, call->reply, status, json.len };
    if (json.len)
        memcpy(l->body, json.data, json.len);
    tke_txn_commit(txn, send_later, l);
}

void tke_answer_stored(tke_call *call, tke_txn *txn, const tkc_message *type, const void *msg)
{
    tkc_buf body;
    tkc_buf_init(&body, call->svc->a, TKC_BUF_NO_MAX);
    if (tkc_message_encode(type, msg, &body, &call->err)) {
        tke_answer_after(call, txn, 200, tkc_buf_view(&body));
    } else {
        tke_txn_commit(txn, NULL, NULL);
        tke_send_failure(call->reply, call->svc->a, &call->err);
    }
    tkc_buf_free(&body);
}

/* ---- reading the request ---- */

bool tke_call_offers(const tke_call *call, const char *model)
{
    /* A server offers only the models that it was started with; the store may know others from
     * earlier commands. */
    const char *const *names = call->caller->models;
    while (names && *names && !tkc_cstr_eq(*names, model))
        names++;
    return !names || *names;
}

const char *tke_call_header(const tke_call *call, const char *name)
{
    const char *const *pairs = call->request->headers;
    for (size_t i = 0; pairs && pairs[i] && pairs[i + 1]; i += 2)
        if (tkc_str_is_nocase(tkc_str(pairs[i]), name))
            return pairs[i + 1];
    return NULL;
}

/* The media type of the body, without parameters; names of types have no case. */
static tinkc_str body_type(const tke_call *call)
{
    const char *type = tke_call_header(call, "Content-Type");
    tinkc_str rest = tkc_str(type ? type : ""), name;
    (void)tkc_str_cut(&rest, ';', &name);
    return tkc_str_trim(name);
}

bool tke_call_is_protobuf(const tke_call *call)
{
    tinkc_str type = body_type(call);
    return tkc_str_is_nocase(type, TKC_TYPE_PROTOBUF) ||
           tkc_str_is_nocase(type, "application/protobuf");
}

bool tke_call_is_json(const tke_call *call)
{
    tinkc_str type = body_type(call);
    size_t n = type.len < 4 ? type.len : 4;
    return type.len == 0 || tkc_str_is_nocase(tkc_strn(type.data + type.len - n, n), "json");
}

const char *tke_call_query(tke_call *call, const char *name)
{
    return tkc_query_find(call->query, name, &call->arena, &call->err);
}

bool tke_call_query_i64(tke_call *call, const char *name, int64_t fallback, int64_t *out)
{
    const char *text = tke_call_query(call, name);
    *out = fallback;
    if (!text && tkc_failed(&call->err)) { /* not "absent": it may be there */
        tke_send_failure(call->reply, call->svc->a, &call->err);
        return false;
    }
    if (!text || !*text)
        return true;
    if (tkc_parse_i64(tkc_str(text), out) && *out >= 0)
        return true;
    tke_refuse(call, 400, "bad_request", "%s must be an integer of 0 or more", name);
    return false;
}

bool tke_call_parse(tke_call *call, const tkc_message *type, void *msg)
{
    if (tkc_message_decode_noting(type, call->body, TINKC_E_UNPROCESSABLE, &call->arena, msg,
                                  &call->unknown, &call->err))
        return true;
    tke_send_failure(call->reply, call->svc->a, &call->err);
    return false;
}

bool tke_call_decode(tke_call *call, const tkc_message *type, void *msg)
{
    return tke_call_parse(call, type, msg) && tke_call_fields_known(call);
}
