/* jinja_format.c - printf-style formatting ('%s' % x) and str.format, as Python does them.
 *
 * Numbers go through snprintf with checked widths; nothing from a template reaches it as a format.
 * May touch: the run.
 */
#include "jinja/jinja_func.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_WIDTH = 10000, MAX_PRECISION = 300 };

/* One conversion, of either kind. */
typedef struct spec {
    char fill[4];
    size_t n_fill;
    char align; /* < > ^ = or 0 */
    char sign;  /* + space or 0 */
    bool alternate;
    bool zero;                /* a 0 before the width */
    char group;               /* , or _ between thousands, or 0 */
    int64_t width, precision; /* -1 = none */
    char type;
} spec;

/* Writes text of `chars` characters, filled up to the width. */
static bool put_padded(tkc_jev *ev, const spec *f, tinkc_str sign, tinkc_str text, size_t chars,
                       char usual_align)
{
    char align = f->align ? f->align : usual_align;
    int64_t missing = f->width - (int64_t)(chars + sign.len);
    missing = missing < 0 ? 0 : missing;
    int64_t left = align == '>' ? missing : align == '^' ? missing / 2 : 0;
    for (int64_t i = 0; i < left; i++)
        if (!tkc_j_put(ev, f->fill, f->n_fill))
            return false;
    if (!tkc_j_put(ev, sign.data, sign.len))
        return false;
    for (int64_t i = 0; align == '=' && i < missing; i++)
        if (!tkc_j_put(ev, f->fill, f->n_fill))
            return false;
    if (!tkc_j_put(ev, text.data, text.len))
        return false;
    for (int64_t i = left; (align == '<' || align == '^') && i < missing; i++)
        if (!tkc_j_put(ev, f->fill, f->n_fill))
            return false;
    return true;
}

static bool put_text(tkc_jev *ev, const spec *f, tkc_jv v, char usual_align)
{
    tkc_jv s = tkc_jv_str(ev, v);
    if (tkc_jv_failed(s))
        return false;
    size_t chars = tkc_jstr_chars(s.s), len = s.s->len;
    if (f->precision >= 0 && (size_t)f->precision < chars) {
        chars = (size_t)f->precision;
        len = tkc_j_place(s.s, chars);
    }
    return put_padded(ev, f, tkc_str(""), tkc_strn(s.s->data, len), chars, usual_align);
}

/* ---- numbers ---- */

static tinkc_str sign_text(const spec *f, bool negative)
{
    return tkc_str(negative ? "-" : f->sign == '+' ? "+" : f->sign == ' ' ? " " : "");
}

/* Inserts a mark between groups of digits before the point. */
static size_t group_digits(const char *in, size_t n, char mark, size_t each, char *out)
{
    size_t whole = 0, len = 0;
    while (whole < n && ((in[whole] >= '0' && in[whole] <= '9') || each == 4))
        whole++;
    for (size_t i = 0; i < n; i++) {
        if (i && i < whole && (whole - i) % each == 0)
            out[len++] = mark;
        out[len++] = in[i];
    }
    return len;
}

static bool put_integer(tkc_jev *ev, const spec *f, tkc_i128 value, char usual_align)
{
    __extension__ typedef unsigned __int128 u128;
    char digits[160], grouped[220], text[164];
    size_t n = 0, len = 0;
    u128 rest = value < 0 ? (u128)0 - (u128)value : (u128)value;
    unsigned base = f->type == 'x' || f->type == 'X' ? 16
                    : f->type == 'o'                 ? 8
                    : f->type == 'b'                 ? 2
                                                     : 10;
    const char *set = f->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    do {
        digits[n++] = set[(size_t)(rest % base)];
        rest /= base;
    } while (rest);
    if (f->alternate && base != 10) {
        text[len++] = '0';
        text[len++] = f->type;
    }
    size_t body = len;
    while (n)
        text[len++] = digits[--n];
    if (f->group) {
        memcpy(grouped, text, body);
        len = body +
              group_digits(text + body, len - body, f->group, base == 10 ? 3 : 4, grouped + body);
        return put_padded(ev, f, sign_text(f, value < 0), tkc_strn(grouped, len), len, usual_align);
    }
    /* printf's precision: at least so many digits */
    spec inner = *f;
    char zeros[MAX_PRECISION + 164];
    if (f->precision > (int64_t)(len - body)) {
        size_t extra = (size_t)f->precision - (len - body);
        memcpy(zeros, text, body);
        memset(zeros + body, '0', extra);
        memcpy(zeros + body + extra, text + body, len - body);
        return put_padded(ev, &inner, sign_text(f, value < 0), tkc_strn(zeros, len + extra),
                          len + extra, usual_align);
    }
    return put_padded(ev, &inner, sign_text(f, value < 0), tkc_strn(text, len), len, usual_align);
}

static bool put_float(tkc_jev *ev, const spec *f, double value, char usual_align)
{
    char text[MAX_PRECISION + 400], grouped[MAX_PRECISION + 600];
    char type = f->type ? f->type : 'g';
    int precision = f->precision < 0 ? 6 : (int)f->precision;
    bool negative = signbit(value) && !isnan(value);
    double size = negative ? -value : value;
    bool percent = type == '%';
    if (percent)
        size *= 100;
    int n;
    if (isnan(value) || isinf(value)) {
        bool upper = type == 'F' || type == 'E' || type == 'G';
        n = snprintf(text, sizeof text, "%s",
                     isnan(value) ? (upper ? "NAN" : "nan") : (upper ? "INF" : "inf"));
    } else if (!f->type && f->precision < 0) {
        n = (int)tkc_format_double(size, text);
    } else if (type == 'e') {
        n = snprintf(text, sizeof text, f->alternate ? "%#.*e" : "%.*e", precision, size);
    } else if (type == 'E') {
        n = snprintf(text, sizeof text, f->alternate ? "%#.*E" : "%.*E", precision, size);
    } else if (type == 'g') {
        n = snprintf(text, sizeof text, f->alternate ? "%#.*g" : "%.*g", precision, size);
    } else if (type == 'G') {
        n = snprintf(text, sizeof text, f->alternate ? "%#.*G" : "%.*G", precision, size);
    } else {
        n = snprintf(text, sizeof text, f->alternate ? "%#.*f" : "%.*f", precision, size);
    }
    for (int i = 0; i < n; i++) /* whatever the host's locale says */
        if (text[i] == ',')
            text[i] = '.';
    if (percent && n > 0 && n + 1 < (int)sizeof text)
        text[n++] = '%';
    if (n <= 0 || n >= (int)sizeof text) {
        tkc_j_fail(ev, "a number is too long to format");
        return false;
    }
    size_t len = (size_t)n;
    if (f->group) {
        len = group_digits(text, len, f->group, 3, grouped);
        return put_padded(ev, f, sign_text(f, negative), tkc_strn(grouped, len), len, usual_align);
    }
    return put_padded(ev, f, sign_text(f, negative), tkc_strn(text, len), len, usual_align);
}

/* Escapes non-ASCII characters in a representation, as Python's ascii() does. */
static tkc_jv escape_ascii(tkc_jev *ev, tkc_jv v)
{
    if (tkc_jv_failed(v))
        return v;
    tinkc_str s = tkc_jv_text(v);
    size_t mark = ev->out.len;
    for (size_t i = 0; i < s.len;) {
        char text[12];
        uint32_t c = tkc_j_char(s, &i);
        int n = snprintf(text, sizeof text,
                         c < 0x80      ? "%c"
                         : c < 0x100   ? "\\x%02x"
                         : c < 0x10000 ? "\\u%04x"
                                       : "\\U%08x",
                         (unsigned)c);
        if (n <= 0 || !tkc_j_put(ev, text, (size_t)n))
            return tkc_jv_fail;
    }
    return tkc_jv_take(ev, mark);
}

/* ---- '%s' % args ---- */

typedef struct percent {
    tkc_jev *ev;
    tinkc_str s;
    size_t at;
    tkc_jv args;
    size_t used;
    bool keyed;
    bool markup; /* inserted values are escaped */
} percent;

static tkc_jv next_arg(percent *p)
{
    if (p->args.kind != TKC_JV_TUPLE)
        return p->used++ == 0 ? p->args
                              : tkc_j_fail(p->ev, "not enough arguments for format string");
    if (p->used >= p->args.l->len)
        return tkc_j_fail(p->ev, "not enough arguments for format string");
    return p->args.l->items[p->used++];
}

static bool percent_number(percent *p, int64_t max, int64_t *out)
{
    *out = 0;
    if (p->at < p->s.len && p->s.data[p->at] == '*') {
        p->at++;
        tkc_jv v = next_arg(p);
        if (!tkc_jv_failed(v) && !tkc_jv_i64(v, out))
            tkc_j_fail(p->ev, "* wants int");
    } else {
        while (p->at < p->s.len && p->s.data[p->at] >= '0' && p->s.data[p->at] <= '9' &&
               *out <= max)
            *out = *out * 10 + (p->s.data[p->at++] - '0');
    }
    if (*out > max || *out < -max)
        tkc_j_fail(p->ev, "a width or precision is too large");
    return !tkc_failed(p->ev->err);
}

/* "%(name)-5.2f": everything up to the type, and the value. */
static bool percent_spec(percent *p, spec *f, tkc_jv *value)
{
    *f = (spec){ .fill = " ", .n_fill = 1, .precision = -1 };
    *value = tkc_jv_missing;
    if (p->at < p->s.len && p->s.data[p->at] == '(') {
        size_t begin = ++p->at;
        while (p->at < p->s.len && p->s.data[p->at] != ')')
            p->at++;
        if (p->args.kind != TKC_JV_DICT || p->at >= p->s.len) {
            tkc_j_fail(p->ev, "format requires a mapping");
            return false;
        }
        const tkc_jv *v =
            tkc_jdict_str(p->ev, p->args.d, tkc_strn(p->s.data + begin, p->at - begin));
        if (!v) {
            tkc_j_fail(p->ev, "a key of the format string is missing");
            return false;
        }
        *value = *v;
        p->keyed = true;
        p->at++;
    }
    for (; p->at < p->s.len && p->s.data[p->at] && strchr("-+ #0", p->s.data[p->at]); p->at++) {
        char c = p->s.data[p->at];
        if (c == '-')
            f->align = '<';
        else if (c == '0' && !f->align) {
            f->fill[0] = '0';
            f->align = '=';
        } else if (c == '+' || (c == ' ' && !f->sign))
            f->sign = c;
        else if (c == '#')
            f->alternate = true;
    }
    if (!percent_number(p, MAX_WIDTH, &f->width))
        return false;
    if (f->width < 0) {
        f->align = '<';
        f->width = -f->width;
    }
    if (f->align == '<')
        f->fill[0] = ' ';
    if (p->at < p->s.len && p->s.data[p->at] == '.') {
        p->at++;
        if (!percent_number(p, MAX_PRECISION, &f->precision))
            return false;
    }
    while (p->at < p->s.len && p->s.data[p->at] && strchr("hlL", p->s.data[p->at]))
        p->at++;
    if (p->at >= p->s.len) {
        tkc_j_fail(p->ev, "incomplete format");
        return false;
    }
    f->type = p->s.data[p->at++];
    return true;
}

static bool percent_char(percent *p, spec *f, tkc_jv v)
{
    int64_t code;
    char text[4];
    f->precision = -1; /* neither has a meaning here */
    if (f->align == '=') {
        f->align = '>';
        f->fill[0] = ' ';
    }
    if (v.kind == TKC_JV_STR && tkc_jstr_chars(v.s) == 1)
        return put_text(p->ev, f, v, '>');
    if (!tkc_jv_i64(v, &code) || code < 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
        tkc_j_fail(p->ev, "%%c requires an int or a character");
        return false;
    }
    size_t n = tkc_j_encode((uint32_t)code, text);
    return put_padded(p->ev, f, tkc_str(""), tkc_strn(text, n), 1, '>');
}

/* %s, %r and %a: text, or the text of anything. */
static bool percent_text(percent *p, spec *f, tkc_jv v)
{
    if (f->align == '=') {
        f->align = '>';
        f->fill[0] = ' ';
    }
    size_t mark = p->ev->out.len;
    if (f->type != 's') {
        if (!tkc_j_write_repr(p->ev, v))
            return false;
        v = tkc_jv_take(p->ev, mark);
        if (f->type == 'a')
            v = escape_ascii(p->ev, v);
    }
    if (p->markup && !tkc_jv_failed(v))
        v = tkc_jv_escape(p->ev, v);
    return !tkc_jv_failed(v) && put_text(p->ev, f, v, '>');
}

static bool percent_not_a_number(percent *p, const spec *f, tkc_jv v)
{
    if (v.kind == TKC_JV_UNDEFINED)
        tkc_j_fail_undefined(p->ev, v);
    else
        tkc_j_fail(p->ev, "%%%c format: a number is required, not %s", f->type, tkc_jv_type(v));
    return false;
}

static bool percent_one(percent *p)
{
    spec f;
    tkc_jv v;
    if (!percent_spec(p, &f, &v))
        return false;
    if (f.type == '%')
        return tkc_j_put(p->ev, "%", 1);
    if (v.kind == TKC_JV_MISSING)
        v = next_arg(p);
    if (tkc_jv_failed(v))
        return false;
    char usual = f.align == '=' ? '=' : '>';
    switch (f.type) {
    case 's':
    case 'r':
    case 'a':
        return percent_text(p, &f, v);
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        if (v.kind == TKC_JV_FLOAT && f.type != 'x' && f.type != 'X' && f.type != 'o' &&
            fabs(v.f) < 1e30)
            return put_integer(p->ev, &f, (tkc_i128)v.f, usual);
        if (tkc_jv_is_integer(v))
            return put_integer(p->ev, &f, tkc_jv_to_i128(v), usual);
        return percent_not_a_number(p, &f, v);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (tkc_jv_is_number(v))
            return put_float(p->ev, &f, tkc_jv_to_double(v), usual);
        return percent_not_a_number(p, &f, v);
    case 'c':
        return percent_char(p, &f, v);
    default:
        tkc_j_fail(p->ev, "unsupported format character '%c'",
                   f.type >= 0x20 && f.type < 0x7F ? f.type : '?');
        return false;
    }
}

tkc_jv tkc_j_percent(tkc_jev *ev, tkc_jv format, tkc_jv args)
{
    percent p = {
        .ev = ev, .s = tkc_jv_text(format), .args = args, .markup = format.flag & TKC_JV_MARKUP
    };
    size_t mark = ev->out.len;
    while (p.at < p.s.len) {
        const char *hit = memchr(p.s.data + p.at, '%', p.s.len - p.at);
        size_t end = hit ? (size_t)(hit - p.s.data) : p.s.len;
        if (!tkc_j_put(ev, p.s.data + p.at, end - p.at))
            return tkc_jv_fail;
        p.at = end;
        if (hit) {
            p.at++;
            if (!tkc_j_charge(ev, 1) || !percent_one(&p))
                return tkc_jv_fail;
        }
    }
    /* an indexable argument might have been a mapping, so it may stay unused */
    bool indexed = args.kind == TKC_JV_LIST || args.kind == TKC_JV_DICT ||
                   args.kind == TKC_JV_UNDEFINED || args.kind == TKC_JV_RANGE;
    size_t given = args.kind == TKC_JV_TUPLE ? args.l->len : indexed ? 0 : 1;
    if (!p.keyed && p.used < given)
        return tkc_j_fail(ev, "not all arguments converted during string formatting");
    tkc_jv v = tkc_jv_take(ev, mark);
    if (p.markup && !tkc_jv_failed(v))
        v.flag = TKC_JV_MARKUP;
    return v;
}

/* ---- str.format ---- */

/* "[[fill]align][sign][#][0][width][,][.precision][type]" */
static bool parse_spec(tkc_jev *ev, tinkc_str s, spec *f)
{
    size_t i = 0, first = 0;
    bool filled = false;
    *f = (spec){ .fill = " ", .n_fill = 1, .precision = -1 };
    if (s.len)
        (void)tkc_j_char(s, &first);
    if (s.len > first && s.data[first] && strchr("<>=^", s.data[first])) {
        memcpy(f->fill, s.data, first);
        f->n_fill = first;
        f->align = s.data[first];
        filled = true;
        i = first + 1;
    } else if (s.len && s.data[0] && strchr("<>=^", s.data[0])) {
        f->align = s.data[0];
        i = 1;
    }
    if (i < s.len && s.data[i] && strchr("+- ", s.data[i]))
        f->sign = s.data[i++];
    if (i < s.len && s.data[i] == '#') {
        f->alternate = true;
        i++;
    }
    if (i < s.len && s.data[i] == '0') {
        if (!filled) {
            f->fill[0] = '0';
            f->n_fill = 1;
        }
        f->zero = !f->align; /* numbers: between sign and digits */
        i++;
    }
    for (; i < s.len && s.data[i] >= '0' && s.data[i] <= '9' && f->width <= MAX_WIDTH; i++)
        f->width = f->width * 10 + (s.data[i] - '0');
    if (i < s.len && (s.data[i] == ',' || s.data[i] == '_'))
        f->group = s.data[i++];
    if (i < s.len && s.data[i] == '.') {
        f->precision = 0;
        for (i++;
             i < s.len && s.data[i] >= '0' && s.data[i] <= '9' && f->precision <= MAX_PRECISION;
             i++)
            f->precision = f->precision * 10 + (s.data[i] - '0');
    }
    if (i < s.len)
        f->type = s.data[i++];
    if (i < s.len || f->width > MAX_WIDTH || f->precision > MAX_PRECISION) {
        tkc_j_fail(ev, "invalid format specifier");
        return false;
    }
    return true;
}

static bool put_code_point(tkc_jev *ev, const spec *f, tkc_jv v)
{
    int64_t code;
    char text[4];
    if (!tkc_jv_i64(v, &code) || code < 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
        tkc_j_fail(ev, "format: %%c arg not in range(0x110000)");
        return false;
    }
    size_t n = tkc_j_encode((uint32_t)code, text);
    return put_padded(ev, f, tkc_str(""), tkc_strn(text, n), 1, '<');
}

static bool put_formatted(tkc_jev *ev, tkc_jv v, tinkc_str text)
{
    spec f;
    if (text.len == 0)
        return tkc_j_write(ev, v);
    if (!parse_spec(ev, text, &f))
        return false;
    bool is_text = v.kind == TKC_JV_STR && (f.type == 0 || f.type == 's') && f.align != '=';
    if (is_text && (f.sign || f.group || f.alternate)) {
        tkc_j_fail(ev, "format: a sign, groups or the alternate form of a string");
        return false;
    }
    if (is_text)
        return put_text(ev, &f, v, '<');
    if (f.group && f.type && strchr(f.group == ',' ? "boxXcn" : "cn", f.type)) {
        tkc_j_fail(ev, "format: cannot specify '%c' with '%c'", f.group, f.type);
        return false;
    }
    if (f.zero)
        f.align = '=';
    if (f.type && strchr("eEfFgG%", f.type) && tkc_jv_is_number(v))
        return put_float(ev, &f, tkc_jv_to_double(v), '>');
    if (v.kind == TKC_JV_FLOAT && (!f.type || f.type == 'n')) {
        f.type = f.type ? 'g' : 0;
        return put_float(ev, &f, v.f, '>');
    }
    if (tkc_jv_is_integer(v) && f.type == 'c' && !f.sign && f.precision < 0)
        return put_code_point(ev, &f, v);
    if (tkc_jv_is_integer(v) && (!f.type || strchr("dxXobn", f.type)) && f.precision < 0)
        return put_integer(ev, &f, tkc_jv_to_i128(v), '>');
    if (v.kind == TKC_JV_UNDEFINED)
        tkc_j_fail_undefined(ev, v);
    else
        tkc_j_fail(ev, "unsupported format string passed to %s.__format__", tkc_jv_type(v));
    return false;
}

static tkc_jv format_argument(tkc_jev *ev, tinkc_str name, const tkc_jargs *args, size_t *next)
{
    int64_t i = 0;
    bool numbered = name.len && tkc_parse_i64(name, &i);
    if ((name.len == 0 && *next == SIZE_MAX) || (numbered && *next && *next != SIZE_MAX))
        return tkc_j_fail(ev, "format: cannot switch between numbered and plain fields");
    if (numbered)
        *next = SIZE_MAX; /* from now on all must be */
    if (name.len == 0)
        i = (int64_t)(*next)++;
    else if (!numbered) {
        for (size_t k = 0; k < args->n_kw; k++)
            if (tkc_str_eq(name, (tinkc_str){ args->kw[k].name->data, args->kw[k].name->len }))
                return args->kw[k].value;
        return tkc_j_fail(ev, "format: a named argument is missing");
    }
    if (i < 0 || (uint64_t)i >= args->n_pos)
        return tkc_j_fail(ev, "format: replacement index %lld out of range", (long long)i);
    return args->pos[i];
}

/* "name.attr[item]" */
static tkc_jv format_field(tkc_jev *ev, tinkc_str field, const tkc_jargs *args, size_t *next)
{
    size_t n = 0;
    while (n < field.len && field.data[n] != '.' && field.data[n] != '[')
        n++;
    tkc_jv v = format_argument(ev, tkc_strn(field.data, n), args, next);
    while (n < field.len && !tkc_jv_failed(v)) {
        bool item = field.data[n] == '[';
        size_t begin = ++n;
        while (n < field.len &&
               (item ? field.data[n] != ']' : field.data[n] != '.' && field.data[n] != '['))
            n++;
        tinkc_str part = tkc_strn(field.data + begin, n - begin);
        int64_t index;
        tkc_jv key = tkc_jv_view(ev, part.data, part.len);
        if (tkc_jv_failed(key))
            return key;
        if (item && part.len && part.data[0] != '-' && tkc_parse_i64(part, &index))
            key = tkc_jv_int(index);
        v = item ? tkc_j_item(ev, v, key) : tkc_j_attr(ev, v, key.s);
        n += item;
    }
    return v;
}

static tkc_jv format_text(tkc_jev *ev, tinkc_str s, const tkc_jargs *args, size_t *next,
                          bool nested);

/* "{field!r:spec}" without its braces. nested: fields may stand in the spec. */
static bool format_one(tkc_jev *ev, tinkc_str inner, const tkc_jargs *args, size_t *next,
                       bool nested)
{
    size_t end = 0;
    while (end < inner.len && inner.data[end] != '!' && inner.data[end] != ':')
        end++;
    tkc_jv v = format_field(ev, tkc_strn(inner.data, end), args, next);
    if (tkc_jv_failed(v))
        return false;
    if (end + 1 < inner.len && inner.data[end] == '!') {
        size_t mark = ev->out.len;
        bool repr = inner.data[end + 1] == 'r' || inner.data[end + 1] == 'a';
        if (repr ? !tkc_j_write_repr(ev, v) : !tkc_j_write(ev, v))
            return false;
        v = tkc_jv_take(ev, mark);
        if (inner.data[end + 1] == 'a')
            v = escape_ascii(ev, v);
        end += 2;
    }
    tinkc_str rest = end < inner.len ? tkc_strn(inner.data + end + 1, inner.len - end - 1)
                                     : (tinkc_str){ "", 0 };
    if (rest.len && memchr(rest.data, '{', rest.len)) { /* a width given as a field */
        if (!nested) {
            tkc_j_fail(ev, "format: max string recursion exceeded");
            return false;
        }
        tkc_jv inner_spec = format_text(ev, rest, args, next, false);
        if (tkc_jv_failed(inner_spec))
            return false;
        rest = tkc_jv_text(inner_spec);
    }
    return !tkc_jv_failed(v) && put_formatted(ev, v, rest);
}

static tkc_jv format_text(tkc_jev *ev, tinkc_str s, const tkc_jargs *args, size_t *next,
                          bool nested)
{
    size_t mark = ev->out.len;
    for (size_t i = 0; i < s.len; i++) {
        char c = s.data[i];
        bool twice = i + 1 < s.len && s.data[i + 1] == c;
        if ((c == '{' || c == '}') && !twice) {
            size_t end = i + 1;
            int depth = 1;
            while (c == '{' && end < s.len && depth > 0) {
                depth += s.data[end] == '{' ? 1 : s.data[end] == '}' ? -1 : 0;
                end++;
            }
            if (c == '}' || depth > 0)
                return tkc_j_fail(ev, "format: single '%c' encountered", c);
            if (!tkc_j_charge(ev, 1) ||
                !format_one(ev, tkc_strn(s.data + i + 1, end - i - 2), args, next, nested))
                return tkc_jv_fail;
            i = end - 1;
            continue;
        }
        i += (c == '{' || c == '}');
        if (!tkc_j_put(ev, &c, 1))
            return tkc_jv_fail;
    }
    return tkc_jv_take(ev, mark);
}

tkc_jv tkc_j_format(tkc_jev *ev, tkc_jv format, const tkc_jargs *args)
{
    size_t next = 0;
    return format_text(ev, tkc_jv_text(format), args, &next, true);
}
