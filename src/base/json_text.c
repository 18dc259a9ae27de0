/* json_text.c - trees of JSON values from text, and back. May touch: the arena or buffer it was given. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "base/json_tree.h"

/* ---- reading ---- */

typedef struct reading {
    tkc_json j;
    int how;
} reading;

/* In a terminated text NUL would be the end. */
static bool holds_no_nul(reading *r, tinkc_str s)
{
    if (!tkc_failed(r->j.err) && memchr(s.data, '\0', s.len))
        tkc_json_fail(&r->j, "\\u0000 in the text before");
    return !tkc_failed(r->j.err);
}

static tkc_tree *number_value(reading *r)
{
    tinkc_str s = tkc_json_skip(&r->j);
    int64_t integer = 0;
    double real = 0;
    if (tkc_failed(r->j.err))
        return NULL;
    if (tkc_str_find(s, '.') == s.len && tkc_str_find(s, 'e') == s.len &&
        tkc_str_find(s, 'E') == s.len) {
        if (!tkc_parse_i64(s, &integer))
            tkc_json_fail(&r->j, "an integer of more than 64 bits before");
        return tkc_tree_new_i64(r->j.arena, integer);
    }
    if (!tkc_parse_double(s, false, &real) || !isfinite(real))
        tkc_json_fail(&r->j, "too large a number before");
    return tkc_tree_new_real(r->j.arena, real);
}

static tkc_tree *read_value(reading *r);

static tkc_tree *read_object(reading *r)
{
    tkc_tree *v = tkc_tree_object(r->j.arena);
    tinkc_str key;
    (void)tkc_json_object(&r->j);
    while (tkc_json_key(&r->j, &key) && holds_no_nul(r, key)) {
        if (r->how & TKC_TREE_UNIQUE && tkc_tree_get_str(v, key))
            tkc_fail(r->j.err, r->j.code, "JSON: \"%.*s\" twice in one object at byte %zu",
                     (int)(key.len > 60 ? 60 : key.len), key.data, (size_t)(r->j.at - r->j.begin));
        const tkc_tree *member = read_value(r);
        if (member && !tkc_tree_set_str(v, key, member))
            tkc_fail_memory(r->j.err);
    }
    return v;
}

static tkc_tree *read_array(reading *r)
{
    tkc_tree *v = tkc_tree_array(r->j.arena);
    (void)tkc_json_array(&r->j);
    while (tkc_json_item(&r->j)) {
        const tkc_tree *item = read_value(r);
        if (item && !tkc_tree_add(v, item))
            tkc_fail_memory(r->j.err);
    }
    return v;
}

/* Recursion is bounded by TKC_JSON_MAX_DEPTH. */
static tkc_tree *read_value(reading *r)
{
    tkc_tree *v = NULL;
    tinkc_str text;
    switch (tkc_json_peek(&r->j)) {
    case TKC_JSON_OBJECT:
        v = read_object(r);
        break;
    case TKC_JSON_ARRAY:
        v = read_array(r);
        break;
    case TKC_JSON_STRING:
        text = tkc_json_string(&r->j);
        v = r->how & TKC_TREE_NULS || holds_no_nul(r, text) ? tkc_tree_new_str(r->j.arena, text)
                                                            : NULL;
        break;
    case TKC_JSON_NUMBER:
        v = number_value(r);
        break;
    case TKC_JSON_NULL:
        v = tkc_json_null(&r->j) ? tkc_tree_null() : NULL;
        break;
    case TKC_JSON_ERROR:
        return NULL;
    default:
        v = tkc_tree_new_bool(tkc_json_bool(&r->j));
    }
    if (!v && !tkc_failed(r->j.err))
        tkc_fail_memory(r->j.err);
    return tkc_failed(r->j.err) ? NULL : v;
}

tkc_tree *tkc_tree_parse(tkc_arena *arena, tinkc_str text, int how, tinkc_error *err)
{
    reading r = { .how = how };
    if (tkc_failed(err))
        return NULL;
    tkc_json_open(&r.j, text, arena, err);
    int kind = tkc_json_peek(&r.j);
    if (!(how & TKC_TREE_ANY) && kind > TKC_JSON_ARRAY)
        tkc_json_fail(&r.j, "neither an object nor an array");
    tkc_tree *v = read_value(&r);
    if (!(how & TKC_TREE_BEGINS))
        tkc_json_close(&r.j);
    return tkc_failed(err) ? NULL : v;
}

tkc_tree *tkc_tree_read(tkc_arena *arena, tinkc_str text, int how)
{
    tinkc_error why = { 0 };
    return tkc_tree_parse(arena, text, how, &why);
}

/* ---- writing ---- */

typedef struct writing {
    tkc_buf *out;
    tinkc_error *err;
    int how, step;
} writing;

static void put_cstr(writing *w, const char *text)
{
    tkc_buf_cstr(w->out, text, w->err);
}

/* One character from beyond ASCII, or both halves of a pair. */
static void put_ascii(writing *w, const char *s, size_t n)
{
    unsigned c = (unsigned char)s[0] & (n == 2 ? 0x1Fu : n == 3 ? 0x0Fu : 0x07u);
    for (size_t i = 1; i < n; i++)
        c = c << 6 | ((unsigned char)s[i] & 0x3Fu);
    if (c >= 0x10000) {
        tkc_buf_printf(w->out, w->err, "\\u%04X", 0xD800 + ((c - 0x10000) >> 10));
        c = 0xDC00 + (c & 0x3FF);
    }
    tkc_buf_printf(w->out, w->err, "\\u%04X", c);
}

static void put_string(writing *w, tinkc_str s)
{
    static const char marks[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    size_t from = 0;
    put_cstr(w, "\"");
    for (size_t i = 0, n; i <= s.len; i += n) {
        unsigned char c = i < s.len ? (unsigned char)s.data[i] : 0;
        n = c < 0x80 ? 1 : tkc_utf8_length(s.data + i, s.len - i);
        if (c >= 0x80 ? !(w->how & TKC_TREE_ASCII) : c >= 0x20 && c != '"' && c != '\\')
            continue;
        tkc_buf_add(w->out, s.data + from, i - from, w->err);
        from = i + n;
        const char *mark = c ? strchr(marks, c) : NULL;
        if (c >= 0x80)
            put_ascii(w, s.data + i, n);
        else if (mark)
            put_cstr(w, (char[]){ '\\', names[mark - marks], '\0' });
        else if (i < s.len)
            tkc_buf_printf(w->out, w->err, "\\u%04X", (unsigned)c);
    }
    put_cstr(w, "\"");
}

/* 17 digits, so that it is read back as the same number: 0.5, 1.0, 1e22, 1e-7. */
static void put_real(writing *w, double value)
{
    char text[TKC_NUMBER_MAX];
    (void)snprintf(text, sizeof text, "%.17g", value);
    char *at = text + strspn(text, "-0123456789");
    if (*at && *at != 'e') /* whatever the locale's point is */
        *at = '.';
    char *e = strchr(text, 'e');
    if (!e) {
        put_cstr(w, text);
        put_cstr(w, *at ? "" : ".0");
        return;
    }
    size_t zeros = strspn(e + 2, "0");
    tkc_buf_add(w->out, text, (size_t)(e - text), w->err);
    put_cstr(w, e[1] == '-' ? "e-" : "e");
    put_cstr(w, e + 2 + zeros);
}

static void put_value(writing *w, const tkc_tree *v, int depth);

/* Before a member, or before the closing bracket. */
static void put_break(writing *w, bool first, int depth, bool closes)
{
    if (!first && !closes)
        put_cstr(w, w->step || !(w->how & TKC_TREE_SPACED) ? "," : ", ");
    if (w->step)
        tkc_buf_printf(w->out, w->err, "\n%*s", depth * w->step, "");
}

static void put_member(writing *w, const char *key, const tkc_tree *v, int depth)
{
    put_string(w, tkc_str(key));
    put_cstr(w, w->step || w->how & TKC_TREE_SPACED ? ": " : ":");
    put_value(w, v, depth);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void put_sorted(writing *w, const tkc_tree *v, int depth)
{
    size_t n = tkc_tree_members(v);
    const char **keys = tkc_zalloc(w->out->a, n * sizeof *keys, w->err);
    tkc_tree *value;
    for (size_t i = 0; keys && i < n; i++)
        (void)tkc_tree_member(v, i, &keys[i], &value);
    if (keys)
        qsort(keys, n, sizeof *keys, by_text);
    for (size_t i = 0; keys && i < n; i++) {
        put_break(w, i == 0, depth, false);
        put_member(w, keys[i], tkc_tree_get(v, keys[i]), depth);
    }
    tkc_release(w->out->a, keys, n * sizeof *keys);
}

static void put_object(writing *w, const tkc_tree *v, int depth)
{
    const char *key;
    tkc_tree *value;
    put_cstr(w, "{");
    if (w->how & TKC_TREE_SORTED)
        put_sorted(w, v, depth + 1);
    else
        TKC_TREE_EACH (v, key, value) {
            put_break(w, key_at == 0, depth + 1, false);
            put_member(w, key, value, depth + 1);
        }
    if (tkc_tree_members(v))
        put_break(w, false, depth, true);
    put_cstr(w, "}");
}

static void put_array(writing *w, const tkc_tree *v, int depth)
{
    put_cstr(w, "[");
    for (size_t i = 0; i < tkc_tree_length(v); i++) {
        put_break(w, i == 0, depth + 1, false);
        put_value(w, tkc_tree_at(v, i), depth + 1);
    }
    if (tkc_tree_length(v))
        put_break(w, false, depth, true);
    put_cstr(w, "]");
}

static void put_value(writing *w, const tkc_tree *v, int depth)
{
    switch (tkc_tree_kind(v)) {
    case TKC_TREE_OBJECT:
        put_object(w, v, depth);
        break;
    case TKC_TREE_ARRAY:
        put_array(w, v, depth);
        break;
    case TKC_TREE_TEXT:
        put_string(w, tkc_tree_str(v));
        break;
    case TKC_TREE_I64:
        tkc_buf_i64(w->out, tkc_tree_i64(v), w->err);
        break;
    case TKC_TREE_REAL:
        put_real(w, tkc_tree_number(v));
        break;
    case TKC_TREE_BOOL:
        put_cstr(w, tkc_tree_is_true(v) ? "true" : "false");
        break;
    default:
        put_cstr(w, "null");
    }
}

bool tkc_tree_write(tkc_buf *out, const tkc_tree *v, int how, tinkc_error *err)
{
    writing w = { out, err, how, how & 15 };
    if (!tkc_tree_whole(v))
        return tkc_fail_memory(err);
    put_value(&w, v, 0);
    return !tkc_failed(err);
}

char *tkc_tree_print(tkc_arena *arena, const tkc_tree *v, int how)
{
    tinkc_error why = { 0 };
    tkc_buf text;
    tkc_buf_init(&text, arena->a, TKC_BUF_NO_MAX);
    char *copy = tkc_tree_write(&text, v, how, &why)
                     ? tkc_arena_str(arena, tkc_buf_view(&text), &why)
                     : NULL;
    if (v && !copy)
        arena->failed = true;
    tkc_buf_free(&text);
    return copy;
}
