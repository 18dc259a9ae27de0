/* query.c - query strings out of values, and values out of query strings. May touch: the buffer or
 * arena it was given. */
#include "codec/query.h"

#include <assert.h>
#include <string.h>

#include "base/json_read.h"
#include "base/str.h"
#include "codec/url.h"

static bool stays(unsigned char c)
{
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '-' ||
           c == '.' || c == '_' || c == '~';
}

bool tkc_form_escape(tinkc_str text, tkc_buf *out, tinkc_error *err)
{
    static const char hex[] = "0123456789ABCDEF";
    for (size_t i = 0; i < text.len && !tkc_failed(err); i++) {
        unsigned char c = (unsigned char)text.data[i];
        char escaped[3] = { '%', hex[c >> 4], hex[c & 15] };
        if (stays(c) || c == ' ')
            tkc_buf_char(out, c == ' ' ? '+' : (char)c, err);
        else
            tkc_buf_add(out, escaped, sizeof escaped, err);
    }
    return !tkc_failed(err);
}

void tkc_query_open(tkc_query *q, tkc_buf *out, char mark, tinkc_error *err)
{
    assert(out && err && (mark == '?' || mark == '&' || mark == 0));
    *q = (tkc_query){ out, err, mark };
}

static void put_name(tkc_query *q, tinkc_str name)
{
    if (q->next)
        tkc_buf_char(q->out, q->next, q->err);
    q->next = '&';
    tkc_form_escape(name, q->out, q->err);
    tkc_buf_char(q->out, '=', q->err);
}

static void put(tkc_query *q, tinkc_str name, tinkc_str value)
{
    if (value.len == 0)
        return;
    put_name(q, name);
    tkc_form_escape(value, q->out, q->err);
}

void tkc_query_str(tkc_query *q, const char *name, const char *value)
{
    put(q, tkc_str(name), tkc_str(value));
}

void tkc_query_i64(tkc_query *q, const char *name, int64_t value)
{
    put_name(q, tkc_str(name));
    tkc_buf_i64(q->out, value, q->err);
}

void tkc_query_bool(tkc_query *q, const char *name, bool value)
{
    tkc_query_str(q, name, value ? "true" : "false");
}

void tkc_query_list(tkc_query *q, const char *name, const char *const *values, int arrays)
{
    if (arrays == TKC_QUERY_COMMA) {
        put_name(q, tkc_str(name));
        for (size_t i = 0; values && values[i]; i++) {
            if (i)
                tkc_form_escape(tkc_str(","), q->out, q->err);
            tkc_form_escape(tkc_str(values[i]), q->out, q->err);
        }
        return;
    }
    for (; values && *values; values++) {
        put_name(q, tkc_str(name));
        if (arrays == TKC_QUERY_BRACKETS) {
            assert(tkc_failed(q->err) || q->out->data[q->out->len - 1] == '=');
            q->out->len -= q->out->len ? 1 : 0; /* the '=' moves behind the brackets */
            tkc_form_escape(tkc_str("[]"), q->out, q->err);
            tkc_buf_char(q->out, '=', q->err);
        }
        tkc_form_escape(tkc_str(*values), q->out, q->err);
    }
}

/* ---- whole objects ---- */

typedef struct walk {
    tkc_query *q;
    tkc_json *j;
    tkc_buf name; /* of the value at hand: "a[b]" */
    int arrays;
} walk;

static void put_value(walk *w);

/* Text of a scalar; numbers and words as they are written. Empty for null. */
static tinkc_str scalar(tkc_json *j)
{
    if (tkc_json_peek(j) == TKC_JSON_STRING)
        return tkc_json_string(j);
    return tkc_json_null(j) ? tkc_strn("", 0) : tkc_json_skip(j);
}

static void put_commas(walk *w)
{
    bool first = true;
    put_name(w->q, tkc_buf_view(&w->name));
    tkc_json_array(w->j);
    while (tkc_json_item(w->j)) {
        int kind = tkc_json_peek(w->j);
        if (kind == TKC_JSON_OBJECT || kind == TKC_JSON_ARRAY) {
            tkc_json_fail(w->j, "a list in a query may hold plain values only");
            return;
        }
        if (tkc_json_null(w->j))
            continue;
        if (!first)
            tkc_form_escape(tkc_str(","), w->q->out, w->q->err);
        first = false;
        tkc_form_escape(scalar(w->j), w->q->out, w->q->err);
    }
}

static void put_array(walk *w)
{
    size_t before = w->name.len;
    if (w->arrays == TKC_QUERY_COMMA) {
        put_commas(w);
        return;
    }
    if (w->arrays == TKC_QUERY_BRACKETS)
        tkc_buf_cstr(&w->name, "[]", w->q->err);
    tkc_json_array(w->j);
    while (tkc_json_item(w->j))
        put_value(w);
    w->name.len = before;
}

static void put_object(walk *w)
{
    tinkc_str key;
    size_t before = w->name.len;
    tkc_json_object(w->j);
    while (tkc_json_key(w->j, &key)) {
        if (before)
            tkc_buf_char(&w->name, '[', w->q->err);
        tkc_buf_str(&w->name, key, w->q->err);
        if (before)
            tkc_buf_char(&w->name, ']', w->q->err);
        put_value(w);
        assert(w->name.len >= before); /* each puts back what it added */
        w->name.len = before;
    }
}

/* Recursion is bounded by the reader's depth. */
static void put_value(walk *w)
{
    int kind = tkc_json_peek(w->j);
    if (kind == TKC_JSON_OBJECT)
        put_object(w);
    else if (kind == TKC_JSON_ARRAY)
        put_array(w);
    else if (kind != TKC_JSON_ERROR)
        put(w->q, tkc_buf_view(&w->name), scalar(w->j));
}

bool tkc_query_json(tkc_query *q, tinkc_str object, int arrays)
{
    tkc_arena arena;
    tkc_json j;
    walk w = { .q = q, .j = &j, .arrays = arrays };
    tkc_arena_init(&arena, q->out->a, 0);
    tkc_buf_init(&w.name, q->out->a, TKC_BUF_NO_MAX);
    tkc_json_open(&j, object, &arena, q->err);
    j.code = TINKC_E_ARGUMENT;
    if (tkc_json_peek(&j) == TKC_JSON_OBJECT)
        put_object(&w);
    else
        tkc_json_fail(&j, "an object is needed");
    tkc_json_close(&j);
    tkc_buf_free(&w.name);
    tkc_arena_free(&arena);
    return !tkc_failed(q->err);
}

/* ---- reading ---- */

const char *tkc_query_find(tinkc_str query, const char *name, tkc_arena *arena, tinkc_error *err)
{
    assert(name && arena);
    tinkc_str pair;
    while (tkc_str_cut(&query, '&', &pair)) {
        size_t equals = tkc_str_find(pair, '=');
        const char *key = tkc_form_decode(tkc_strn(pair.data, equals), arena, err);
        if (!key || strcmp(key, name) != 0)
            continue;
        size_t from = equals < pair.len ? equals + 1 : equals;
        return tkc_form_decode(tkc_strn(pair.data + from, pair.len - from), arena, err);
    }
    return NULL;
}
