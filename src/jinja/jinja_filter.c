/* jinja_filter.c - filters on text and numbers, and the table of all filters. May touch: the run.
 */
#include "jinja/jinja_func.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The text of a value: the first step of most string filters. */
static bool as_text(tkc_jev *ev, const tkc_jv *v, tkc_jv *out)
{
    *out = tkc_jv_str(ev, *v);
    return !tkc_jv_failed(*out);
}

static bool int_arg(tkc_jev *ev, tkc_jv v, const char *what, int64_t fallback, int64_t *out)
{
    *out = fallback;
    if (v.kind == TKC_JV_MISSING || tkc_jv_i64(v, out))
        return true;
    tkc_j_fail(ev, "%s: expected an integer, not %s", what, tkc_jv_type(v));
    return false;
}

/* ---- text ---- */

#define CASE_FILTER(name, how)                                                                     \
    static tkc_jv filter_##name(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)               \
    {                                                                                              \
        tkc_jv s;                                                                                  \
        if (!tkc_j_bind(ev, args, #name, NULL, 0, 0, NULL) || !as_text(ev, v, &s))                 \
            return tkc_jv_fail;                                                                    \
        return tkc_jv_case(ev, s, how);                                                            \
    }
CASE_FILTER(upper, TKC_JCASE_UPPER)
CASE_FILTER(lower, TKC_JCASE_LOWER)
CASE_FILTER(capitalize, TKC_JCASE_CAPITAL)

static bool is_word_break(uint32_t c)
{
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || tkc_j_is_space(c);
}

static tkc_jv filter_title(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    tkc_jv s;
    if (!tkc_j_bind(ev, args, "title", NULL, 0, 0, NULL) || !as_text(ev, v, &s))
        return tkc_jv_fail;
    tinkc_str t = tkc_jv_text(s);
    size_t mark = ev->out.len, i = 0;
    if (!tkc_j_decode(ev, t.len))
        return tkc_jv_fail;
    while (i < t.len) {
        size_t begin = i, first = i, end;
        uint32_t c = tkc_j_char(t, &i);
        end = first = i;
        while (!is_word_break(c) && i < t.len) {
            if (is_word_break(tkc_j_char(t, &i)))
                break;
            end = i;
        }
        if (!tkc_j_write_case(ev, tkc_strn(t.data + begin, first - begin), TKC_JCASE_UPPER) ||
            !tkc_j_write_case(ev, tkc_strn(t.data + first, end - first), TKC_JCASE_LOWER))
            return tkc_jv_fail;
        i = end;
    }
    return tkc_jv_take(ev, mark);
}

static tkc_jv filter_trim(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    static const char *const params[] = { "chars" };
    tkc_jv a, s;
    if (!tkc_j_bind(ev, args, "trim", params, 1, 0, &a) || !as_text(ev, v, &s))
        return tkc_jv_fail;
    const tkc_jfunc *strip = tkc_j_str_method(tkc_str("strip"));
    tkc_jargs inner = { &a, a.kind == TKC_JV_MISSING ? 0 : 1, NULL, 0 };
    return strip->call(ev, &s, &inner);
}

static tkc_jv filter_string(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    return tkc_j_bind(ev, args, "string", NULL, 0, 0, NULL) ? tkc_jv_str(ev, *v) : tkc_jv_fail;
}

static tkc_jv filter_safe(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    tkc_jv s;
    if (!tkc_j_bind(ev, args, "safe", NULL, 0, 0, NULL) || !as_text(ev, v, &s))
        return tkc_jv_fail;
    s.flag |= TKC_JV_MARKUP;
    return s;
}

static tkc_jv filter_escape(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    return tkc_j_bind(ev, args, "escape", NULL, 0, 0, NULL) ? tkc_jv_escape(ev, *v) : tkc_jv_fail;
}

static tkc_jv filter_replace(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    static const char *const params[] = { "old", "new", "count" };
    tkc_jv a[3], s, from, to;
    int64_t limit = -1;
    if (!tkc_j_bind(ev, args, "replace", params, 3, 2, a) || !as_text(ev, v, &s) ||
        !as_text(ev, &a[0], &from) || !as_text(ev, &a[1], &to))
        return tkc_jv_fail;
    if (a[2].kind != TKC_JV_NONE && !int_arg(ev, a[2], "replace", -1, &limit))
        return tkc_jv_fail;
    s.flag = 0;
    return tkc_j_replace(ev, s, from, to, limit < 0 ? -1 : limit);
}

static tkc_jv filter_format(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    tkc_jv s;
    if (!as_text(ev, v, &s))
        return tkc_jv_fail;
    if (args->n_pos && args->n_kw)
        return tkc_j_fail(ev, "format: can't handle positional and keyword arguments at once");
    tkc_jv with =
        args->n_kw ? tkc_jv_dict(ev, TKC_JV_DICT) : tkc_jv_list(ev, TKC_JV_TUPLE, args->n_pos);
    for (size_t i = 0; !tkc_jv_failed(with) && i < args->n_kw; i++)
        if (!tkc_jdict_set(ev, with.d, (tkc_jv){ .kind = TKC_JV_STR, .s = args->kw[i].name },
                           args->kw[i].value))
            return tkc_jv_fail;
    for (size_t i = 0; !tkc_jv_failed(with) && i < args->n_pos; i++)
        if (!tkc_jv_push(ev, with.l, args->pos[i]))
            return tkc_jv_fail;
    return tkc_jv_failed(with) ? with : tkc_j_percent(ev, s, with);
}

static tkc_jv filter_indent(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    static const char *const params[] = { "width", "first", "blank" };
    tkc_jv a[3];
    int64_t width = 0;
    if (!tkc_j_bind(ev, args, "indent", params, 3, 0, a))
        return tkc_jv_fail;
    if (v->kind != TKC_JV_STR)
        return v->kind == TKC_JV_UNDEFINED
                   ? tkc_j_fail_undefined(ev, *v)
                   : tkc_j_fail(ev, "indent: expected a string, not %s", tkc_jv_type(*v));
    tinkc_str indent = tkc_str("");
    if (a[0].kind == TKC_JV_STR)
        indent = tkc_jv_text(a[0]);
    else if (!int_arg(ev, a[0], "indent", 4, &width))
        return tkc_jv_fail;
    tkc_jv spaces = tkc_j_pad(ev, tkc_jv_view(ev, indent.data, indent.len), width, 0, tkc_str(" "));
    tkc_jv lines = tkc_j_splitlines(ev, *v, false);
    if (tkc_jv_failed(spaces) || tkc_jv_failed(lines))
        return tkc_jv_fail;
    size_t mark = ev->out.len;
    tinkc_str t = tkc_jv_text(*v);
    bool ends = t.len && t.data[t.len - 1] == '\n'; /* then an empty line follows */
    if (tkc_jv_truth(a[1]) && !tkc_j_write(ev, spaces))
        return tkc_jv_fail;
    size_t n = lines.l->len + (ends || t.len == 0);
    for (size_t i = 0; i < n; i++) {
        bool empty = i >= lines.l->len || lines.l->items[i].s->len == 0;
        if (i && (!tkc_j_put(ev, "\n", 1) ||
                  ((!empty || tkc_jv_truth(a[2])) && !tkc_j_write(ev, spaces))))
            return tkc_jv_fail;
        if (!empty && !tkc_j_write(ev, lines.l->items[i]))
            return tkc_jv_fail;
    }
    tkc_jv out = tkc_jv_take(ev, mark);
    out.flag = v->flag;
    return out;
}

static tkc_jv filter_truncate(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    static const char *const params[] = { "length", "killwords", "end", "leeway" };
    tkc_jv a[4];
    int64_t length, leeway;
    if (!tkc_j_bind(ev, args, "truncate", params, 4, 0, a) ||
        !int_arg(ev, a[0], "truncate", 255, &length))
        return tkc_jv_fail;
    a[3] = a[3].kind == TKC_JV_NONE ? tkc_jv_missing : a[3];
    tkc_jv end = a[2].kind == TKC_JV_MISSING ? tkc_jv_cstr(ev, "...") : a[2];
    if (!int_arg(ev, a[3], "truncate", 5, &leeway) || tkc_jv_failed(end))
        return tkc_jv_fail;
    if (end.kind != TKC_JV_STR)
        return tkc_j_fail(ev, "truncate: expected a string, not %s", tkc_jv_type(end));
    int64_t n_end = (int64_t)tkc_jstr_chars(end.s), n = tkc_jv_length(ev, *v);
    if (n < 0)
        return tkc_jv_fail;
    if (length < n_end || leeway < 0)
        return tkc_j_fail(ev, "truncate: the length is too small");
    if (n <= leeway || n - leeway <= length)
        return *v; /* whatever it is */
    if (v->kind != TKC_JV_STR)
        return tkc_j_fail(ev, "truncate: expected a string, not %s", tkc_jv_type(*v));
    tinkc_str s = tkc_strn(v->s->data, tkc_j_place(v->s, (size_t)(length - n_end)));
    if (!tkc_jv_truth(a[1]))
        for (size_t i = s.len; i-- > 0;)
            if (s.data[i] == ' ') {
                s.len = i;
                break;
            }
    size_t mark = ev->out.len;
    if (!tkc_j_put(ev, s.data, s.len) || !tkc_j_write(ev, end))
        return tkc_jv_fail;
    return tkc_jv_take(ev, mark);
}

static tkc_jv filter_center(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    static const char *const params[] = { "width" };
    tkc_jv a, s;
    if (!tkc_j_bind(ev, args, "center", params, 1, 0, &a) || !as_text(ev, v, &s))
        return tkc_jv_fail;
    if (a.kind == TKC_JV_MISSING)
        a = tkc_jv_int(80);
    tkc_jargs inner = { &a, 1, NULL, 0 };
    return tkc_j_str_method(tkc_str("center"))->call(ev, &s, &inner);
}

static tkc_jv filter_wordcount(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    tkc_jv s;
    int64_t n = 0;
    bool inside = false;
    (void)args;
    if (!as_text(ev, v, &s))
        return tkc_jv_fail;
    tinkc_str t = tkc_jv_text(s);
    if (!tkc_j_charge(ev, t.len / 16))
        return tkc_jv_fail;
    for (size_t i = 0; i < t.len;) {
        uint32_t c = tkc_j_char(t, &i);
        bool word = c == '_' || tkc_j_is(c, TKC_JCHAR_ALPHA) || tkc_j_is(c, TKC_JCHAR_NUMERIC);
        n += word && !inside;
        inside = word;
    }
    return tkc_jv_int(n);
}

static bool put_url(tkc_jev *ev, tkc_jv v, bool query)
{
    tkc_jv s = tkc_jv_str(ev, v);
    if (tkc_jv_failed(s) || !tkc_j_decode(ev, s.s->len))
        return false;
    for (size_t i = 0; i < s.s->len; i++) {
        unsigned char c = (unsigned char)s.s->data[i];
        char text[4];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     (c && strchr("_.-~", c)) || (c == '/' && !query);
        int n = plain               ? snprintf(text, sizeof text, "%c", c)
                : query && c == ' ' ? snprintf(text, sizeof text, "+")
                                    : snprintf(text, sizeof text, "%%%02X", c);
        if (!tkc_j_put(ev, text, (size_t)n))
            return false;
    }
    return true;
}

static tkc_jv filter_urlencode(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    size_t mark = ev->out.len, n = 0;
    (void)args;
    if (v->kind == TKC_JV_STR || !tkc_jv_iterable(*v))
        return put_url(ev, *v, false) ? tkc_jv_take(ev, mark) : tkc_jv_fail;
    tkc_jv over = *v;
    if (over.kind == TKC_JV_DICT)
        over = (tkc_jv){ .kind = TKC_JV_VIEW, .aux = TKC_JVIEW_ITEMS, .d = over.d };
    tkc_jiter *it = tkc_j_iter(ev, over);
    tkc_jv pair;
    while (it && tkc_j_next(ev, it, &pair)) {
        pair = tkc_j_list(ev, pair, TKC_JV_LIST);
        if (tkc_jv_failed(pair) || pair.l->len != 2)
            return tkc_j_fail(ev, "urlencode: an item is not a pair");
        if ((n++ && !tkc_j_put(ev, "&", 1)) || !put_url(ev, pair.l->items[0], true) ||
            !tkc_j_put(ev, "=", 1) || !put_url(ev, pair.l->items[1], true))
            return tkc_jv_fail;
    }
    return tkc_jv_take(ev, mark);
}

static size_t entity(tinkc_str s, char *out)
{
    static const struct {
        const char *name;
        char c;
    } known[] = { { "&amp;", '&' },  { "&lt;", '<' },   { "&gt;", '>' },
                  { "&quot;", '"' }, { "&#39;", '\'' }, { "&#34;", '"' } };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (tkc_starts_with(s, known[i].name)) {
            *out = known[i].c;
            return strlen(known[i].name);
        }
    return 0;
}

/* After these positions nothing closes a tag or a comment, so no search runs to the end
 * repeatedly. */
typedef struct markup_ends {
    size_t tag, comment;
} markup_ends;

static void find_ends(tinkc_str t, markup_ends *ends)
{
    ends->tag = t.len;
    while (ends->tag > 0 && t.data[ends->tag - 1] != '>')
        ends->tag--;
    for (ends->comment = ends->tag; ends->comment >= 3; ends->comment--)
        if (memcmp(t.data + ends->comment - 3, "-->", 3) == 0)
            return;
    ends->comment = 0;
}

/* The end of the tag or comment that begins at i; 0 if none does. */
static size_t markup_end(tinkc_str t, size_t i, const markup_ends *ends)
{
    tinkc_str rest = tkc_strn(t.data + i, t.len - i);
    if (rest.data[0] != '<')
        return 0;
    if (tkc_starts_with(rest, "<!--")) {
        const char *close = i < ends->comment ? memmem(rest.data, rest.len, "-->", 3) : NULL;
        return close ? (size_t)(close - t.data) + 3 : 0;
    }
    const char *close = i < ends->tag ? memchr(rest.data, '>', rest.len) : NULL;
    return close ? (size_t)(close - t.data) + 1 : 0;
}

static tkc_jv filter_striptags(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    tkc_jv s;
    (void)args;
    if (!as_text(ev, v, &s) || !tkc_j_charge(ev, s.s->len / 8))
        return tkc_jv_fail;
    tinkc_str t = tkc_jv_text(s);
    size_t mark = ev->out.len;
    bool gap = false;
    markup_ends ends = { t.len, t.len };
    find_ends(t, &ends);
    for (size_t i = 0; i < t.len;) {
        tinkc_str rest = tkc_strn(t.data + i, t.len - i);
        size_t end = markup_end(t, i, &ends);
        if (end) {
            i = end;
            continue;
        }
        size_t at = i;
        char c;
        size_t skip = rest.data[0] == '&' ? entity(rest, &c) : 0;
        bool space = skip == 0 && tkc_j_is_space(tkc_j_char(t, &i));
        if (space) {
            gap = ev->out.len > mark;
            continue;
        }
        if (gap && !tkc_j_put(ev, " ", 1))
            return tkc_jv_fail;
        gap = false;
        i = skip ? at + skip : i;
        if (!(skip ? tkc_j_put(ev, &c, 1) : tkc_j_put(ev, t.data + at, i - at)))
            return tkc_jv_fail;
    }
    return tkc_jv_take(ev, mark);
}

/* ---- numbers ---- */

/* Normalises a number's text for int() and float(): no white space around it, every decimal digit
 * in ASCII, underscores only between two digits. data NULL = not a number, or no memory. */
static tinkc_str plain_number(tkc_jev *ev, tinkc_str s)
{
    size_t whole = s.len;
    s = tkc_j_strip(s, NULL, true, true);
    char *text = tkc_j_alloc(ev, s.len + 1);
    size_t n = 0;
    if (!text || !tkc_j_decode(ev, whole))
        return (tinkc_str){ 0 };
    for (size_t i = 0; i < s.len;) {
        uint32_t c = tkc_j_char(s, &i);
        int digit = c < 0x80 ? -1 : tkc_j_decimal(c);
        bool joins = c == '_' && n && text[n - 1] != '_' && text[n - 1] != '.' && i < s.len;
        if ((c >= 0x80 && digit < 0) || (c == '_' && !joins))
            return (tinkc_str){ 0 };
        text[n++] = digit < 0 ? (char)c : (char)('0' + digit);
    }
    return (tinkc_str){ text, n };
}

/* Python's int(text, base): one sign, underscores between digits. */
static bool parse_int(tinkc_str s, int64_t base, tkc_i128 *out)
{
    if (!s.data)
        return false;
    bool negative = s.len && s.data[0] == '-';
    size_t i = s.len && (s.data[0] == '-' || s.data[0] == '+');
    if (s.len - i > 2 && s.data[i] == '0') {
        char mark = (char)(s.data[i + 1] | 0x20);
        int64_t named = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
        if (named && (base == named || base == 0)) {
            base = named;
            i += 2;
        }
    }
    base = base == 0 ? 10 : base;
    tkc_i128 value = 0;
    size_t digits = 0;
    for (; i < s.len; i++) {
        char c = s.data[i];
        if (c == '_' && digits && i + 1 < s.len && s.data[i - 1] != '_')
            continue;
        int d = c >= '0' && c <= '9'                     ? c - '0'
                : (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? (c | 0x20) - 'a' + 10
                                                         : 99;
        if (d >= base || __builtin_mul_overflow(value, (tkc_i128)base, &value) ||
            __builtin_add_overflow(value, (tkc_i128)d, &value))
            return false;
        digits++;
    }
    *out = negative ? -value : value;
    return digits > 0;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Python's float(text). */
static bool parse_float(tkc_jev *ev, tinkc_str s, double *out)
{
    char *text = s.len ? tkc_j_alloc(ev, s.len + 4) : NULL;
    if (!text)
        return false;
    size_t n = 0, i = s.data[0] == '+' || s.data[0] == '-';
    if (s.data[0] == '-')
        text[n++] = '-';
    if (i < s.len && s.data[i] == '.')
        text[n++] = '0';
    for (; i < s.len; i++) {
        bool digits = s.data[i] != '_' || (i > 0 && i + 1 < s.len && is_digit(s.data[i - 1]) &&
                                           is_digit(s.data[i + 1]));
        if (!digits)
            return false;
        if (s.data[i] == '_')
            continue;
        text[n++] = s.data[i];
        bool bare = s.data[i] == '.' && (i + 1 == s.len || (s.data[i + 1] | 0x20) == 'e');
        if (bare)
            text[n++] = '0';
    }
    tinkc_str t = { text, n };
    while (t.len > 1 && t.data[0] == '0' && t.data[1] >= '0' && t.data[1] <= '9') {
        t.data++;
        t.len--;
    }
    if (t.len == 8 && tkc_str_is_nocase(t, "infinity"))
        t.len = 3;
    return tkc_parse_double(t, true, out);
}

static tkc_jv float_to_int(tkc_jev *ev, double f)
{
    if (fabs(f) >= 1e38)
        return tkc_j_fail(ev, "an integer of more than 127 bits");
    return tkc_jv_i128(ev, (tkc_i128)f);
}

static tkc_jv filter_int(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    static const char *const params[] = { "default", "base" };
    tkc_jv a[2];
    int64_t base;
    tkc_i128 i;
    double f;
    if (!tkc_j_bind(ev, args, "int", params, 2, 0, a) || !int_arg(ev, a[1], "int", 10, &base))
        return tkc_jv_fail;
    tkc_jv fallback = a[0].kind == TKC_JV_MISSING ? tkc_jv_int(0) : a[0];
    if (v->kind == TKC_JV_UNDEFINED)
        return tkc_j_fail_undefined(ev, *v);
    if (v->kind == TKC_JV_BOOL)
        return tkc_jv_int(v->i);
    if (tkc_jv_is_integer(*v))
        return *v;
    if (v->kind == TKC_JV_FLOAT)
        return isnan(v->f) ? fallback : float_to_int(ev, v->f);
    if (v->kind != TKC_JV_STR)
        return fallback;
    tinkc_str text = plain_number(ev, tkc_jv_text(*v));
    if (parse_int(text, base, &i))
        return tkc_jv_i128(ev, i);
    if (parse_float(ev, text, &f) && !isnan(f) && !isinf(f))
        return float_to_int(ev, f);
    return tkc_failed(ev->err) ? tkc_jv_fail : fallback;
}

static tkc_jv filter_float(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    static const char *const params[] = { "default" };
    tkc_jv a;
    double f;
    if (!tkc_j_bind(ev, args, "float", params, 1, 0, &a))
        return tkc_jv_fail;
    tkc_jv fallback = a.kind == TKC_JV_MISSING ? tkc_jv_float(0) : a;
    if (v->kind == TKC_JV_UNDEFINED)
        return tkc_j_fail_undefined(ev, *v);
    if (tkc_jv_is_number(*v))
        return tkc_jv_float(tkc_jv_to_double(*v));
    if (v->kind == TKC_JV_STR && parse_float(ev, plain_number(ev, tkc_jv_text(*v)), &f))
        return tkc_jv_float(f);
    return tkc_failed(ev->err) ? tkc_jv_fail : fallback;
}

static tkc_jv filter_abs(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    (void)args;
    if (v->kind == TKC_JV_FLOAT)
        return tkc_jv_float(fabs(v->f));
    if (!tkc_jv_is_integer(*v))
        return v->kind == TKC_JV_UNDEFINED
                   ? tkc_j_fail_undefined(ev, *v)
                   : tkc_j_fail(ev, "bad operand type for abs(): '%s'", tkc_jv_type(*v));
    tkc_i128 i = tkc_jv_to_i128(*v);
    return i < 0 ? tkc_j_binary(ev, TKC_JOP_SUB, tkc_jv_int(0), *v) : tkc_jv_i128(ev, i);
}

static tkc_jv round_common(tkc_jev *ev, tkc_jv v, int64_t precision)
{
    char text[800];
    if (tkc_jv_is_integer(v)) {
        if (precision >= 0)
            return v.kind == TKC_JV_BOOL ? tkc_jv_int(v.i) : v;
        if (precision < -30)
            return tkc_jv_int(0);
        tkc_i128 unit = 1, i = tkc_jv_to_i128(v);
        for (int64_t k = 0; k < -precision; k++)
            unit *= 10;
        tkc_i128 rest = i % unit, base = i - rest;
        tkc_i128 size = rest < 0 ? -rest : rest;
        bool up = size * 2 > unit || (size * 2 == unit && (base / unit) % 2 != 0);
        return tkc_jv_i128(ev, up ? base + (rest < 0 ? -unit : unit) : base);
    }
    if (!isfinite(v.f) || precision > 323)
        return v;
    if (precision < 0) {
        double unit = pow(10, (double)-precision);
        return tkc_jv_float(precision < -308 ? 0.0 : nearbyint(v.f / unit) * unit);
    }
    int n = snprintf(text, sizeof text, "%.*f", (int)precision, v.f);
    double f = v.f;
    for (int i = 0; i < n; i++)
        if (text[i] == ',')
            text[i] = '.';
    if (n <= 0 || n >= (int)sizeof text || !tkc_parse_double(tkc_strn(text, (size_t)n), false, &f))
        return v;
    return tkc_jv_float(f);
}

static tkc_jv filter_round(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    static const char *const params[] = { "precision", "method" };
    tkc_jv a[2];
    int64_t precision;
    if (!tkc_j_bind(ev, args, "round", params, 2, 0, a) ||
        !int_arg(ev, a[0], "round", 0, &precision))
        return tkc_jv_fail;
    tinkc_str method = a[1].kind == TKC_JV_STR ? tkc_jv_text(a[1]) : tkc_str("common");
    if (v->kind == TKC_JV_UNDEFINED)
        return tkc_j_fail_undefined(ev, *v);
    if (!tkc_jv_is_number(*v))
        return tkc_j_fail(ev, "round: expected a number, not %s", tkc_jv_type(*v));
    if (tkc_str_is(method, "common"))
        return round_common(ev, *v, precision);
    if (!tkc_str_is(method, "ceil") && !tkc_str_is(method, "floor"))
        return tkc_j_fail(ev, "round: method must be common, ceil or floor");
    double unit = pow(10, (double)precision), scaled = tkc_jv_to_double(*v) * unit;
    double whole = tkc_str_is(method, "ceil") ? ceil(scaled) : floor(scaled);
    return tkc_jv_float((whole == 0 ? 0.0 : whole) / unit); /* an integer in Python: no -0.0 */
}

/* ---- others ---- */

static tkc_jv filter_default(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    static const char *const params[] = { "default_value", "boolean" };
    tkc_jv a[2];
    if (!tkc_j_bind(ev, args, "default", params, 2, 0, a))
        return tkc_jv_fail;
    bool use = v->kind == TKC_JV_UNDEFINED || (tkc_jv_truth(a[1]) && !tkc_jv_truth(*v));
    if (!use)
        return *v;
    return a[0].kind == TKC_JV_MISSING ? tkc_jv_view(ev, "", 0) : a[0];
}

static tkc_jv filter_attr(tkc_jev *ev, const tkc_jv *v, const tkc_jargs *args)
{
    static const char *const params[] = { "name" };
    tkc_jv a;
    bool found;
    if (!tkc_j_bind(ev, args, "attr", params, 1, 1, &a))
        return tkc_jv_fail;
    if (v->kind == TKC_JV_UNDEFINED)
        return tkc_j_fail_undefined(ev, *v);
    if (a.kind != TKC_JV_STR)
        return tkc_j_fail(ev, "attr: expected a name");
    return tkc_j_own_attr(ev, *v, a.s, &found);
}

TKC_J_LEFT_OUT(filter, "filter", filesizeformat)
TKC_J_LEFT_OUT(filter, "filter", forceescape)
TKC_J_LEFT_OUT(filter, "filter", pprint)
TKC_J_LEFT_OUT(filter, "filter", random)
TKC_J_LEFT_OUT(filter, "filter", urlize)
TKC_J_LEFT_OUT(filter, "filter", wordwrap)
TKC_J_LEFT_OUT(filter, "filter", xmlattr)

tkc_jv tkc_j_ignore_case(tkc_jev *ev, tkc_jv v)
{
    return v.kind == TKC_JV_STR ? tkc_jv_case(ev, v, TKC_JCASE_LOWER) : v;
}

const tkc_jfunc *tkc_j_find_filter(tinkc_str name)
{
    static const tkc_jfunc table[] = {
        /* sorted */
        { "abs", filter_abs },
        { "attr", filter_attr },
        { "capitalize", filter_capitalize },
        { "center", filter_center },
        { "d", filter_default },
        { "default", filter_default },
        { "e", filter_escape },
        { "escape", filter_escape },
        { "filesizeformat", filter_filesizeformat },
        { "float", filter_float },
        { "forceescape", filter_forceescape },
        { "format", filter_format },
        { "indent", filter_indent },
        { "int", filter_int },
        { "lower", filter_lower },
        { "pprint", filter_pprint },
        { "random", filter_random },
        { "replace", filter_replace },
        { "round", filter_round },
        { "safe", filter_safe },
        { "string", filter_string },
        { "striptags", filter_striptags },
        { "title", filter_title },
        { "tojson", tkc_jfilter_tojson },
        { "trim", filter_trim },
        { "truncate", filter_truncate },
        { "upper", filter_upper },
        { "urlencode", filter_urlencode },
        { "urlize", filter_urlize },
        { "wordcount", filter_wordcount },
        { "wordwrap", filter_wordwrap },
        { "xmlattr", filter_xmlattr },

    };
    const tkc_jfunc *f = tkc_j_find_func(table, sizeof table / sizeof *table, name);
    return f ? f : tkc_j_list_filter(name);
}
