/* answer.c - JSON answers of retrieve_future, and error bodies. May touch: what it was given. */
#include "wire/answer.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "base/str.h"
#include "codec/utf8.h"

static const tkc_name queue_states[] = {
    { "active", TKC_QUEUE_ACTIVE },
    { "paused_capacity", TKC_QUEUE_CAPACITY },
    { "paused_rate_limit", TKC_QUEUE_RATE_LIMIT },
    { NULL, 0 },
};
static const tkc_name categories[] = {
    { "unknown", TKC_CATEGORY_UNKNOWN },
    { "server", TKC_CATEGORY_SERVER },
    { "user", TKC_CATEGORY_USER },
    { NULL, 0 },
};

/* ---- reading ---- */

/* A string, or NULL for any other type: classifying an answer tolerates malformed members. */
static const char *loose_string(tkc_json *j)
{
    if (tkc_json_peek(j) == TKC_JSON_STRING)
        return tkc_read_cstr(j);
    (void)tkc_json_skip(j);
    return NULL;
}

/* In any case of letters; in the Python SDK "User" is an unknown category. */
static tkc_name loose_name(tkc_json *j, const tkc_name *table)
{
    tkc_name out = { loose_string(j), TKC_UNKNOWN };
    for (; out.text && table->text; table++)
        if (tkc_str_is_nocase(tkc_str(out.text), table->text))
            out.value = table->value;
    return out;
}

/* Any value but null as text: a message that is an object is better than none. */
static const char *any_text(tkc_json *j)
{
    if (tkc_json_null(j))
        return NULL;
    if (tkc_json_peek(j) == TKC_JSON_STRING)
        return tkc_read_cstr(j);
    tinkc_str span = tkc_json_skip(j);
    return tkc_failed(j->err) ? NULL : tkc_arena_str(j->arena, span, j->err);
}

typedef struct marks {
    bool try_again, metadata, error;
} marks;

static void read_member(tkc_json *j, tinkc_str key, tkc_answer *out, marks *seen)
{
    if (tkc_str_is(key, "type")) {
        seen->try_again = tkc_cstr_eq(loose_string(j), "try_again");
    } else if (tkc_str_is(key, "status")) {
        seen->metadata = tkc_cstr_eq(loose_string(j), "complete_metadata");
    } else if (tkc_str_is(key, "request_id")) {
        out->request_id = loose_string(j);
    } else if (tkc_str_is(key, "queue_state")) {
        out->queue_state = loose_name(j, queue_states);
    } else if (tkc_str_is(key, "queue_state_reason")) {
        out->queue_state_reason = loose_string(j);
    } else if (tkc_str_is(key, "response_payload_size")) {
        bool number = tkc_json_peek(j) == TKC_JSON_NUMBER;
        if (number)
            out->response_payload_size = tkc_json_i64(j);
        else
            (void)tkc_json_skip(j);
    } else if (tkc_str_is(key, "error")) {
        seen->error = true;
        out->error = any_text(j);
    } else if (tkc_str_is(key, "category")) {
        out->category = loose_name(j, categories);
    } else {
        (void)tkc_json_skip(j);
    }
}

bool tkc_answer_read(tinkc_str json, tkc_arena *arena, tkc_answer *out, tinkc_error *err)
{
    tkc_json j;
    tinkc_str key;
    marks seen = { false, false, false };
    *out = (tkc_answer){ .queue_state = { NULL, TKC_UNKNOWN } };
    tkc_json_open(&j, json, arena, err);
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key))
            read_member(&j, key, out, &seen);
    if (!tkc_json_close(&j))
        return false;
    /* The Python SDK's order: the first mark that is there decides. */
    out->kind = seen.try_again  ? TKC_ANSWER_TRY_AGAIN
                : seen.metadata ? TKC_ANSWER_METADATA
                : seen.error    ? TKC_ANSWER_FAILED
                                : TKC_ANSWER_RESULT;
    if (out->category.value <= 0)
        out->category.value = TKC_CATEGORY_UNKNOWN;
    if (out->response_payload_size < 0)
        out->response_payload_size = 0;
    return true;
}

/* ---- writing ---- */

static void write_name(tkc_jsonw *w, const char *key, const tkc_name *name, const tkc_name *table)
{
    const char *text = name->text;
    for (; !text && table->text; table++)
        if (table->value == name->value)
            text = table->text;
    if (!text)
        return;
    tkc_jsonw_key(w, key);
    tkc_write_text(w, text);
}

static void write_text(tkc_jsonw *w, const char *key, const char *text)
{
    if (!text)
        return;
    tkc_jsonw_key(w, key);
    tkc_write_text(w, text);
}

bool tkc_answer_write(const tkc_answer *a, tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw w;
    tkc_jsonw_open(&w, out, err);
    tkc_jsonw_object(&w);
    switch (a->kind) {
    case TKC_ANSWER_TRY_AGAIN:
        write_text(&w, "type", "try_again");
        write_text(&w, "request_id", a->request_id);
        write_name(&w, "queue_state", &a->queue_state, queue_states);
        write_text(&w, "queue_state_reason", a->queue_state_reason);
        break;
    case TKC_ANSWER_METADATA:
        write_text(&w, "status", "complete_metadata");
        tkc_jsonw_key(&w, "response_payload_size");
        tkc_jsonw_i64(&w, a->response_payload_size);
        break;
    case TKC_ANSWER_FAILED:
        tkc_jsonw_key(&w, "error");
        tkc_jsonw_message(&w, a->error ? a->error : "");
        write_name(&w, "category", &a->category, categories);
        break;
    default:
        return tkc_fail(err, TINKC_E_ARGUMENT, "a result is written by its own message");
    }
    tkc_jsonw_end(&w);
    return !tkc_failed(err);
}

/* ---- error bodies ---- */

/* [{"loc": ["body", "rank"], "msg": "..."}]: "body.rank: ...; ..." */
static void read_location(tkc_json *j, tkc_buf *text)
{
    size_t before = text->len;
    if (tkc_json_peek(j) != TKC_JSON_ARRAY) {
        (void)tkc_json_skip(j);
        return;
    }
    tkc_json_array(j);
    while (tkc_json_item(j)) {
        const char *part = any_text(j);
        if (text->len > before)
            tkc_buf_char(text, '.', j->err);
        tkc_buf_cstr(text, part ? part : "", j->err);
    }
}

static void read_complaint(tkc_json *j, tkc_buf *text)
{
    tinkc_str key;
    const char *message = NULL;
    if (text->len)
        tkc_buf_cstr(text, "; ", j->err);
    size_t before = text->len;
    if (tkc_json_peek(j) != TKC_JSON_OBJECT) {
        const char *any = any_text(j);
        tkc_buf_cstr(text, any ? any : "", j->err);
        return;
    }
    tkc_json_object(j);
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "loc"))
            read_location(j, text);
        else if (tkc_str_is(key, "msg"))
            message = any_text(j);
        else
            (void)tkc_json_skip(j);
    }
    if (message && text->len > before)
        tkc_buf_cstr(text, ": ", j->err);
    tkc_buf_cstr(text, message ? message : "", j->err);
}

static const char *read_complaints(tkc_json *j)
{
    tkc_buf text;
    tkc_buf_init(&text, j->arena->a, TKC_BUF_NO_MAX);
    tkc_json_array(j);
    while (tkc_json_item(j))
        read_complaint(j, &text);
    char *copy = tkc_failed(j->err) ? NULL : tkc_arena_str(j->arena, tkc_buf_view(&text), j->err);
    tkc_buf_free(&text);
    return copy;
}

/* {"error": {"message": "...", "code": "..."}} and plain forms of the same. */
static void read_error_member(tkc_json *j, tinkc_str key, tkc_error_body *out, bool nested)
{
    tinkc_str inner;
    bool text = tkc_str_is(key, "detail") || tkc_str_is(key, "message") || tkc_str_is(key, "error");
    if (text && tkc_json_peek(j) == TKC_JSON_ARRAY) {
        out->detail = read_complaints(j);
    } else if (text && tkc_json_peek(j) == TKC_JSON_OBJECT && !nested) {
        tkc_json_object(j);
        while (tkc_json_key(j, &inner))
            read_error_member(j, inner, out, true);
    } else if (text && tkc_json_peek(j) == TKC_JSON_STRING) {
        const char *found = tkc_read_cstr(j);
        if (!out->detail || tkc_str_is(key, "detail"))
            out->detail = found;
    } else if (tkc_str_is(key, "code")) {
        out->code = any_text(j);
    } else {
        (void)tkc_json_skip(j);
    }
}

/* Truncates at a character boundary and removes line ends, so that it fits a one-line message. */
static const char *plain_text(tinkc_str body, tkc_arena *arena, tinkc_error *err)
{
    enum { MOST = 300 };
    body = tkc_str_trim(body);
    size_t len = body.len < MOST ? body.len : MOST;
    len = tkc_utf8_prefix(body.data, len);
    assert(len <= MOST);
    if (len == 0)
        return NULL;
    char *text = tkc_arena_str(arena, tkc_strn(body.data, len), err);
    for (size_t i = 0; text && i < len; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7F)
            text[i] = ' ';
    return text;
}

bool tkc_error_body_read(tinkc_str body, tkc_arena *arena, tkc_error_body *out, tinkc_error *err)
{
    tkc_json j;
    tinkc_str key;
    tinkc_error bad = { 0 };
    *out = (tkc_error_body){ 0 };
    tkc_json_open(&j, body, arena, &bad);
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key))
            read_error_member(&j, key, out, false);
    if (tkc_json_close(&j)) {
        out->is_json = true;
        return true;
    }
    *out = (tkc_error_body){ 0 };
    if (bad.code == TINKC_E_MEMORY)
        tkc_error_copy(err, &bad);
    else
        out->detail = plain_text(body, arena, err);
    return !tkc_failed(err);
}

bool tkc_error_body_write(const tkc_error_body *e, tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw w;
    tkc_jsonw_open(&w, out, err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "detail");
    tkc_jsonw_message(&w, e->detail ? e->detail : "");
    write_text(&w, "code", e->code);
    tkc_jsonw_end(&w);
    return !tkc_failed(err);
}
