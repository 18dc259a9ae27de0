/* json_write.c - JSON into a buffer. May touch: the buffer it was given. */
#include "base/json_write.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/str.h"

void tkc_jsonw_open(tkc_jsonw *w, tkc_buf *out, tinkc_error *err)
{
    assert(out && err);
    *w = (tkc_jsonw){ .out = out, .err = err };
}

static void separate(tkc_jsonw *w)
{
    if (w->comma)
        tkc_buf_char(w->out, ',', w->err);
    w->comma = true;
}

/* Called before every value. In an object its key came first; the top level has one value. */
static void begin_value(tkc_jsonw *w)
{
    assert(tkc_failed(w->err) || w->named || (w->depth ? w->is_array[w->depth] : !w->comma));
    separate(w);
    w->named = false;
}

static void begin_container(tkc_jsonw *w, bool array)
{
    begin_value(w);
    if (w->depth == TKC_JSONW_MAX_DEPTH) {
        tkc_fail(w->err, TINKC_E_ARGUMENT, "JSON nested too deeply");
        return;
    }
    w->is_array[++w->depth] = array;
    w->comma = false;
    tkc_buf_char(w->out, array ? '[' : '{', w->err);
}

void tkc_jsonw_object(tkc_jsonw *w)
{
    begin_container(w, false);
}

void tkc_jsonw_array(tkc_jsonw *w)
{
    begin_container(w, true);
}

void tkc_jsonw_end(tkc_jsonw *w)
{
    if (tkc_failed(w->err))
        return;
    assert(w->depth > 0 && !w->named);
    tkc_buf_char(w->out, w->is_array[w->depth--] ? ']' : '}', w->err);
    w->comma = true;
}

static void put_escape(tkc_jsonw *w, unsigned char c)
{
    assert(c < 0x20 || c == '"' || c == '\\');
    static const char hex[] = "0123456789abcdef";
    static const char names[] = "btn?fr"; /* U+0008 to U+000D */
    char text[6] = { '\\', 'u', '0', '0', hex[c >> 4], hex[c & 15] };
    size_t n = sizeof text;
    if (c == '"' || c == '\\' || (c >= 8 && c <= 13 && c != 11)) {
        text[1] = c == '"' || c == '\\' ? (char)c : names[c - 8];
        n = 2;
    }
    tkc_buf_add(w->out, text, n, w->err);
}

static void put_chars(tkc_jsonw *w, tinkc_str s)
{
    size_t from = 0;
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.data[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        tkc_buf_add(w->out, s.data + from, i - from, w->err);
        put_escape(w, c);
        from = i + 1;
    }
    if (from < s.len) /* the data of an empty span may be NULL */
        tkc_buf_add(w->out, s.data + from, s.len - from, w->err);
}

static void put_string(tkc_jsonw *w, tinkc_str s)
{
    tkc_buf_char(w->out, '"', w->err);
    put_chars(w, s);
    tkc_buf_char(w->out, '"', w->err);
}

void tkc_jsonw_key_str(tkc_jsonw *w, tinkc_str key)
{
    assert(tkc_failed(w->err) || (w->depth > 0 && !w->is_array[w->depth] && !w->named));
    separate(w);
    put_string(w, key);
    tkc_buf_char(w->out, ':', w->err);
    w->comma = false;
    w->named = true;
}

void tkc_jsonw_key(tkc_jsonw *w, const char *key)
{
    tkc_jsonw_key_str(w, tkc_str(key));
}

void tkc_jsonw_str(tkc_jsonw *w, tinkc_str value)
{
    begin_value(w);
    put_string(w, value);
}

void tkc_jsonw_cstr(tkc_jsonw *w, const char *value)
{
    if (value)
        tkc_jsonw_str(w, tkc_str(value));
    else
        tkc_jsonw_null(w);
}

void tkc_jsonw_message(tkc_jsonw *w, const char *text)
{
    size_t len = strlen(text), from = 0;
    begin_value(w);
    tkc_buf_char(w->out, '"', w->err);
    for (size_t i = 0, n; i < len; i += n ? n : 1) {
        n = tkc_utf8_length(text + i, len - i);
        if (n)
            continue;
        put_chars(w, tkc_strn(text + from, i - from));
        tkc_buf_char(w->out, '?', w->err);
        from = i + 1;
    }
    put_chars(w, tkc_strn(text + from, len - from));
    tkc_buf_char(w->out, '"', w->err);
}

void tkc_jsonw_i64(tkc_jsonw *w, int64_t value)
{
    begin_value(w);
    tkc_buf_i64(w->out, value, w->err);
}

void tkc_jsonw_u64(tkc_jsonw *w, uint64_t value)
{
    begin_value(w);
    tkc_buf_u64(w->out, value, w->err);
}

void tkc_jsonw_double(tkc_jsonw *w, double value)
{
    char text[TKC_NUMBER_MAX];
    begin_value(w);
    if (!isfinite(value)) {
        tkc_fail(w->err, TINKC_E_ARGUMENT, "a number that is not finite cannot be sent");
        return;
    }
    tkc_buf_add(w->out, text, tkc_format_double(value, text), w->err);
}

void tkc_jsonw_float(tkc_jsonw *w, float value)
{
    char text[TKC_NUMBER_MAX];
    begin_value(w);
    if (!isfinite(value)) {
        tkc_fail(w->err, TINKC_E_ARGUMENT, "a number that is not finite cannot be sent");
        return;
    }
    tkc_buf_add(w->out, text, tkc_format_float(value, text), w->err);
}

void tkc_jsonw_bool(tkc_jsonw *w, bool value)
{
    tkc_jsonw_raw(w, tkc_str(value ? "true" : "false"));
}

void tkc_jsonw_null(tkc_jsonw *w)
{
    tkc_jsonw_raw(w, tkc_str("null"));
}

void tkc_jsonw_raw(tkc_jsonw *w, tinkc_str json)
{
    begin_value(w);
    tkc_buf_str(w->out, json, w->err);
}

/* Writes the digits of one number to `out`; returns their end. At most 20 bytes. */
static char *put_digits(char *out, int64_t value)
{
    char digits[20];
    size_t at = sizeof digits;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do {
        digits[--at] = (char)('0' + left % 10);
        left /= 10;
    } while (left);
    if (value < 0)
        *out++ = '-';
    memcpy(out, digits + at, sizeof digits - at);
    return out + (sizeof digits - at);
}

/* One of the two arrays is NULL. Long arrays are written in blocks, so that the buffer rarely
 * grows; near the buffer's maximum each number asks only for the room it needs. */
static void put_integers(tkc_jsonw *w, const int32_t *narrow, const int64_t *wide, size_t n)
{
    enum { BLOCK = 256, LONGEST = 21 };
    assert(!narrow || !wide);
    tkc_jsonw_array(w);
    for (size_t i = 0; i < n && !tkc_failed(w->err);) {
        if (w->out->max - w->out->len < BLOCK * LONGEST) {
            tkc_jsonw_i64(w, narrow ? narrow[i] : wide[i]);
            i++;
            continue;
        }
        char *from = tkc_buf_room(w->out, BLOCK * LONGEST, w->err), *at = from;
        if (!from)
            return;
        for (size_t end = n - i < BLOCK ? n : i + BLOCK; i < end; i++) {
            if (i)
                *at++ = ',';
            at = put_digits(at, narrow ? narrow[i] : wide[i]);
        }
        assert(at - from <= BLOCK * LONGEST);
        w->out->len += (size_t)(at - from);
        w->comma = true;
    }
    tkc_jsonw_end(w);
}

void tkc_jsonw_i64s(tkc_jsonw *w, const int64_t *values, size_t n)
{
    put_integers(w, NULL, values, n);
}

void tkc_jsonw_i32s(tkc_jsonw *w, const int32_t *values, size_t n)
{
    put_integers(w, values, NULL, n);
}

void tkc_jsonw_f32s(tkc_jsonw *w, const float *values, size_t n)
{
    tkc_jsonw_array(w);
    for (size_t i = 0; i < n; i++) {
        if (isnan(values[i]))
            tkc_jsonw_null(w);
        else
            tkc_jsonw_float(w, values[i]);
    }
    tkc_jsonw_end(w);
}
