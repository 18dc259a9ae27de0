/* query.c - query strings out of values, and values out of query strings. May touch: the buffer or
 * arena it was given. */
#include "codec/query.h"

#include <assert.h>
#include <string.h>

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

static void put_pair(tkc_query *q, tinkc_str name, tinkc_str value)
{
    if (value.len == 0)
        return;
    put_name(q, name);
    tkc_form_escape(value, q->out, q->err);
}

void tkc_query_str(tkc_query *q, const char *name, const char *value)
{
    put_pair(q, tkc_str(name), tkc_str(value));
}

void tkc_query_i64(tkc_query *q, const char *name, int64_t value)
{
    put_name(q, tkc_str(name));
    tkc_buf_i64(q->out, value, q->err);
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
