/* json_read.c - the JSON pull reader. May touch: the text and the arena it was given. */
#include "base/json_read.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/str.h"

void tkc_json_open(tkc_json *j, tinkc_str text, tkc_arena *arena, tinkc_error *err)
{
    assert(arena && err);
    if (!text.data)
        text = (tinkc_str){ "", 0 };
    *j =
        (tkc_json){ text.data, text.data, text.data + text.len, arena, err, TINKC_E_BAD_RESPONSE, 0,
                    true,      NULL };
}

bool tkc_json_fail(tkc_json *j, const char *what)
{
    return tkc_fail(j->err, j->code, "JSON: %s at byte %zu", what, (size_t)(j->at - j->begin));
}

static void skip_space(tkc_json *j)
{
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\n' || *j->at == '\r' || *j->at == '\t'))
        j->at++;
}

bool tkc_json_close(tkc_json *j)
{
    skip_space(j);
    if (!tkc_failed(j->err) && j->at < j->end)
        tkc_json_fail(j, "text after the value");
    assert(tkc_failed(j->err) || j->depth == 0); /* every entered container was left */
    return !tkc_failed(j->err);
}

int tkc_json_peek(tkc_json *j)
{
    assert(j->at >= j->begin && j->at <= j->end);
    if (tkc_failed(j->err))
        return TKC_JSON_ERROR;
    skip_space(j);
    if (j->at == j->end) {
        tkc_json_fail(j, "ends early");
        return TKC_JSON_ERROR;
    }
    switch (*j->at) {
    case '{':
        return TKC_JSON_OBJECT;
    case '[':
        return TKC_JSON_ARRAY;
    case '"':
        return TKC_JSON_STRING;
    case 't':
        return TKC_JSON_TRUE;
    case 'f':
        return TKC_JSON_FALSE;
    case 'n':
        return TKC_JSON_NULL;
    default:
        if (*j->at == '-' || (*j->at >= '0' && *j->at <= '9'))
            return TKC_JSON_NUMBER;
        tkc_json_fail(j, "no value");
        return TKC_JSON_ERROR;
    }
}

static bool expect(tkc_json *j, int kind, const char *what)
{
    int found = tkc_json_peek(j);
    if (found == TKC_JSON_ERROR)
        return false;
    return found == kind || tkc_json_fail(j, what);
}

static bool enter_level(tkc_json *j, int kind, const char *what)
{
    if (!expect(j, kind, what))
        return false;
    if (j->depth == TKC_JSON_MAX_DEPTH)
        return tkc_json_fail(j, "nested too deeply");
    j->at++;
    j->depth++;
    j->first = true;
    return true;
}

bool tkc_json_object(tkc_json *j)
{
    return enter_level(j, TKC_JSON_OBJECT, "an object is needed");
}

bool tkc_json_array(tkc_json *j)
{
    return enter_level(j, TKC_JSON_ARRAY, "an array is needed");
}

/* After a member: true if another follows (its comma is consumed), false after the bracket. */
static bool another(tkc_json *j, char closing)
{
    if (tkc_failed(j->err))
        return false;
    skip_space(j);
    if (j->at == j->end)
        return tkc_json_fail(j, "ends early");
    assert(j->depth > 0); /* only inside a container */
    bool first = j->first;
    j->first = false;
    if (*j->at == closing) {
        j->at++;
        j->depth--;
        return false;
    }
    if (first)
        return true;
    if (*j->at != ',')
        return tkc_json_fail(j, "a comma is needed");
    j->at++;
    return true;
}

bool tkc_json_item(tkc_json *j)
{
    return another(j, ']');
}

bool tkc_json_key(tkc_json *j, tinkc_str *key)
{
    if (!another(j, '}'))
        return false;
    *key = tkc_json_string(j);
    skip_space(j);
    if (tkc_failed(j->err))
        return false;
    if (j->at == j->end || *j->at != ':')
        return tkc_json_fail(j, "a colon is needed");
    j->at++;
    return true;
}

/* ---- strings ---- */

/* Finds the closing quote of the string whose first byte is at j->at; checks its characters. */
static bool scan_string(tkc_json *j, bool *escaped)
{
    *escaped = false;
    while (j->at < j->end) {
        unsigned char c = (unsigned char)*j->at;
        if (c == '"')
            return true;
        if (c < 0x20)
            return tkc_json_fail(j, "a control character in a string");
        if (c == '\\') {
            *escaped = true;
            j->at += j->end - j->at > 1 ? 2 : 1;
            continue;
        }
        size_t n = tkc_utf8_length(j->at, (size_t)(j->end - j->at));
        if (n == 0)
            return tkc_json_fail(j, "not UTF-8");
        j->at += n;
    }
    return tkc_json_fail(j, "a string without end");
}

static bool read_hex4(const char *p, const char *end, uint32_t *out)
{
    *out = 0;
    if (end - p < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        uint32_t digit;
        if (c >= '0' && c <= '9')
            digit = (uint32_t)(c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            digit = (uint32_t)((c | 0x20) - 'a') + 10;
        else
            return false;
        *out = *out * 16 + digit;
    }
    return true;
}

static char *put_utf8(char *out, uint32_t c)
{
    assert(c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF));
    if (c < 0x80) {
        *out++ = (char)c;
    } else if (c < 0x800) {
        *out++ = (char)(0xC0 | c >> 6);
        *out++ = (char)(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        *out++ = (char)(0xE0 | c >> 12);
        *out++ = (char)(0x80 | (c >> 6 & 0x3F));
        *out++ = (char)(0x80 | (c & 0x3F));
    } else {
        *out++ = (char)(0xF0 | c >> 18);
        *out++ = (char)(0x80 | (c >> 12 & 0x3F));
        *out++ = (char)(0x80 | (c >> 6 & 0x3F));
        *out++ = (char)(0x80 | (c & 0x3F));
    }
    return out;
}

/* *p points after "\u"; moves it past the escape, or past both escapes of a surrogate pair. */
static bool read_unicode(const char **p, const char *end, uint32_t *c)
{
    uint32_t low;
    if (!read_hex4(*p, end, c))
        return false;
    *p += 4;
    if (*c < 0xD800 || *c > 0xDFFF)
        return true;
    if (*c > 0xDBFF || end - *p < 6 || (*p)[0] != '\\' || (*p)[1] != 'u' ||
        !read_hex4(*p + 2, end, &low) || low < 0xDC00 || low > 0xDFFF)
        return false;
    *c = 0x10000 + ((*c - 0xD800) << 10) + (low - 0xDC00);
    *p += 6;
    return true;
}

static tinkc_str unescape(tkc_json *j, const char *from, const char *end)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const size_t room = (size_t)(end - from);
    char *start = tkc_arena_alloc(j->arena, room + 1, j->err), *out = start;
    if (!start)
        return (tinkc_str){ NULL, 0 };
    while (from < end) {
        if (*from != '\\') {
            *out++ = *from++;
            continue;
        }
        const char *name = end - from > 1 ? memchr(names, from[1], sizeof names - 1) : NULL;
        uint32_t c;
        if (name) {
            *out++ = values[name - names];
            from += 2;
        } else if (end - from > 1 && from[1] == 'u' && (from += 2, read_unicode(&from, end, &c))) {
            out = put_utf8(out, c);
        } else {
            tkc_json_fail(j, "a bad escape in the string before");
            return (tinkc_str){ NULL, 0 };
        }
    }
    assert(out <= start + room); /* an escape is never shorter than its character */
    *out = '\0';
    return (tinkc_str){ start, (size_t)(out - start) };
}

tinkc_str tkc_json_string(tkc_json *j)
{
    bool escaped;
    if (!expect(j, TKC_JSON_STRING, "a string is needed"))
        return (tinkc_str){ NULL, 0 };
    assert(*j->at == '"');
    const char *from = ++j->at;
    if (!scan_string(j, &escaped))
        return (tinkc_str){ NULL, 0 };
    const char *end = j->at++;
    return escaped ? unescape(j, from, end) : (tinkc_str){ from, (size_t)(end - from) };
}

/* ---- numbers and words ---- */

static tinkc_str number_span(tkc_json *j)
{
    const char *from = j->at;
    while (j->at < j->end && ((*j->at >= '0' && *j->at <= '9') || *j->at == '-' || *j->at == '+' ||
                              *j->at == '.' || *j->at == 'e' || *j->at == 'E'))
        j->at++;
    return (tinkc_str){ from, (size_t)(j->at - from) };
}

double tkc_json_double(tkc_json *j)
{
    double value = 0;
    if (!expect(j, TKC_JSON_NUMBER, "a number is needed"))
        return 0;
    if (!tkc_parse_double(number_span(j), false, &value))
        tkc_json_fail(j, "a malformed number");
    return value;
}

/* JSON forbids leading zeros, which the plain integer parser accepts. */
static bool leading_zero(tinkc_str s)
{
    if (s.len && s.data[0] == '-')
        s = tkc_strn(s.data + 1, s.len - 1);
    return s.len > 1 && s.data[0] == '0';
}

int64_t tkc_json_i64(tkc_json *j)
{
    int64_t value = 0;
    double real;
    if (!expect(j, TKC_JSON_NUMBER, "an integer is needed"))
        return 0;
    tinkc_str span = number_span(j);
    if (!leading_zero(span) && tkc_parse_i64(span, &value))
        return value;
    /* 1e3 and 2.0 are integers, too, up to 2^53: beyond it a double does not say which one was
     * meant. */
    if (!tkc_parse_double(span, false, &real))
        tkc_json_fail(j, "a malformed number");
    else if (real != floor(real) || fabs(real) > 9007199254740992.0)
        tkc_json_fail(j, "an integer of 64 bits is needed");
    else
        return (int64_t)real;
    return 0;
}

static bool word(tkc_json *j, const char *text)
{
    size_t n = strlen(text);
    if ((size_t)(j->end - j->at) < n || memcmp(j->at, text, n) != 0)
        return tkc_json_fail(j, "no value");
    j->at += n;
    return true;
}

bool tkc_json_bool(tkc_json *j)
{
    int kind = tkc_json_peek(j);
    if (kind == TKC_JSON_TRUE)
        return word(j, "true");
    if (kind == TKC_JSON_FALSE)
        word(j, "false");
    else if (kind != TKC_JSON_ERROR)
        tkc_json_fail(j, "true or false is needed");
    return false;
}

bool tkc_json_null(tkc_json *j)
{
    return tkc_json_peek(j) == TKC_JSON_NULL && word(j, "null");
}

/* ---- skipping ---- */

static void skip_container(tkc_json *j, int kind);

static void skip_value(tkc_json *j)
{
    int kind = tkc_json_peek(j);
    switch (kind) {
    case TKC_JSON_OBJECT:
    case TKC_JSON_ARRAY:
        skip_container(j, kind);
        break;
    case TKC_JSON_STRING:
        (void)tkc_json_string(j);
        break;
    case TKC_JSON_NUMBER: /* its value would cost most of the time */
        if (!tkc_is_number(number_span(j)))
            tkc_json_fail(j, "a malformed number");
        break;
    case TKC_JSON_NULL:
        (void)tkc_json_null(j);
        break;
    case TKC_JSON_TRUE:
    case TKC_JSON_FALSE:
        (void)tkc_json_bool(j);
        break;
    default:
        break;
    }
}

/* Recursion is bounded by TKC_JSON_MAX_DEPTH. */
static void skip_container(tkc_json *j, int kind)
{
    tinkc_str key;
    if (kind == TKC_JSON_OBJECT && tkc_json_object(j))
        while (tkc_json_key(j, &key))
            skip_value(j);
    else if (kind == TKC_JSON_ARRAY && tkc_json_array(j))
        while (tkc_json_item(j))
            skip_value(j);
}

tinkc_str tkc_json_skip(tkc_json *j)
{
    if (tkc_json_peek(j) == TKC_JSON_ERROR)
        return (tinkc_str){ NULL, 0 };
    const char *from = j->at;
    skip_value(j);
    if (tkc_failed(j->err))
        return (tinkc_str){ NULL, 0 };
    return (tinkc_str){ from, (size_t)(j->at - from) };
}

bool tkc_json_is_set(tkc_json *j)
{
    tinkc_str key;
    switch (tkc_json_peek(j)) {
    case TKC_JSON_NULL:
        tkc_json_skip(j);
        return false;
    case TKC_JSON_TRUE:
    case TKC_JSON_FALSE:
        return tkc_json_bool(j);
    case TKC_JSON_NUMBER: {
        double number = tkc_json_double(j);
        return number < 0 || number > 0;
    }
    case TKC_JSON_STRING:
        return tkc_json_string(j).len > 0;
    default:
        break;
    }
    tkc_json ahead = *j;
    bool any = tkc_json_peek(j) == TKC_JSON_ARRAY
                   ? tkc_json_array(&ahead) && tkc_json_item(&ahead)
                   : tkc_json_object(&ahead) && tkc_json_key(&ahead, &key);
    tkc_json_skip(j);
    return any;
}

/* ---- long arrays of numbers ---- */

/* Upper bound on the elements of the array that starts at j->at: commas up to its bracket + 1. */
static size_t count_elements(const tkc_json *j)
{
    size_t n = 1;
    for (const char *p = j->at; p < j->end && *p != ']'; p++)
        n += *p == ',';
    return n;
}

/* The usual element: up to 18 digits followed directly by a comma or the bracket. Anything else is
 * left to the general reader. */
static bool quick_integer(tkc_json *j, int64_t *out)
{
    const char *p = j->at, *end = j->end;
    bool negative = p < end && *p == '-';
    const char *digits = p += negative;
    int64_t value = 0;
    while (p < end && *p >= '0' && *p <= '9' && p - digits < 18)
        value = value * 10 + (*p++ - '0');
    bool closed = p < end && (*p == ',' || *p == ']');
    if (!closed || p == digits || (*digits == '0' && p - digits > 1))
        return false;
    *out = negative ? -value : value;
    j->at = p;
    return true;
}

static int64_t next_integer(tkc_json *j)
{
    int64_t value;
    return quick_integer(j, &value) ? value : tkc_json_i64(j);
}

tinkc_i64s tkc_json_i64s(tkc_json *j)
{
    tinkc_i64s out = { NULL, 0 };
    if (!tkc_json_array(j))
        return out;
    const size_t most = count_elements(j);
    int64_t *data = tkc_arena_array(j->arena, most, sizeof *data, j->err);
    size_t n = 0;
    while (data && tkc_json_item(j))
        data[n++] = next_integer(j);
    assert(n <= most);
    if (!tkc_failed(j->err))
        out = (tinkc_i64s){ data, n };
    return out;
}

tinkc_i32s tkc_json_i32s(tkc_json *j)
{
    tinkc_i32s out = { NULL, 0 };
    if (!tkc_json_array(j))
        return out;
    const size_t most = count_elements(j);
    int32_t *data = tkc_arena_array(j->arena, most, sizeof *data, j->err);
    size_t n = 0;
    while (data && tkc_json_item(j)) {
        int64_t value = next_integer(j);
        if (value < INT32_MIN || value > INT32_MAX)
            tkc_json_fail(j, "an integer of 32 bits is needed");
        data[n++] = (int32_t)value;
    }
    assert(n <= most);
    if (!tkc_failed(j->err))
        out = (tinkc_i32s){ data, n };
    return out;
}

tinkc_f32s tkc_json_f32s(tkc_json *j)
{
    tinkc_f32s out = { NULL, 0 };
    if (!tkc_json_array(j))
        return out;
    const size_t most = count_elements(j);
    float *data = tkc_arena_array(j->arena, most, sizeof *data, j->err);
    size_t n = 0;
    while (data && tkc_json_item(j))
        data[n++] = tkc_json_null(j) ? NAN : (float)tkc_json_double(j);
    assert(n <= most);
    if (!tkc_failed(j->err))
        out = (tinkc_f32s){ data, n };
    return out;
}
