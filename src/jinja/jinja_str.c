/* jinja_str.c - the methods of strings, as Python's. May touch: the run. */
#include "jinja/jinja_func.h"

#include <string.h>

static bool need_str(tkc_jev *ev, tkc_jv v, const char *what)
{
    if (v.kind == TKC_JV_STR)
        return true;
    if (v.kind == TKC_JV_UNDEFINED)
        tkc_j_fail_undefined(ev, v);
    else
        tkc_j_fail(ev, "%s: expected a string, not %s", what, tkc_jv_type(v));
    return false;
}

static bool need_int(tkc_jev *ev, tkc_jv v, const char *what, int64_t fallback, int64_t *out)
{
    *out = fallback;
    if (v.kind == TKC_JV_MISSING || v.kind == TKC_JV_NONE || tkc_jv_i64(v, out))
        return true;
    tkc_j_fail(ev, "%s: expected an integer, not %s", what, tkc_jv_type(v));
    return false;
}

/* A part of `whole`; it is markup if `whole` is. */
static tkc_jv part_of(tkc_jev *ev, tkc_jv whole, tinkc_str part)
{
    tkc_jv v = tkc_jv_view(ev, part.data, part.len);
    v.flag = whole.flag;
    return v;
}

/* ---- cases and classes ---- */

#define CASE_METHOD(name, how)                                                                     \
    static tkc_jv str_##name(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)               \
    {                                                                                              \
        return tkc_j_bind(ev, args, #name, NULL, 0, 0, NULL) ? tkc_jv_case(ev, *self, how)         \
                                                             : tkc_jv_fail;                        \
    }
CASE_METHOD(upper, TKC_JCASE_UPPER)
CASE_METHOD(lower, TKC_JCASE_LOWER)
CASE_METHOD(title, TKC_JCASE_TITLE)
CASE_METHOD(swapcase, TKC_JCASE_SWAP)
CASE_METHOD(capitalize, TKC_JCASE_CAPITAL)

static bool is_alnum(uint32_t c)
{
    return tkc_j_is(c, TKC_JCHAR_ALPHA) || tkc_j_is(c, TKC_JCHAR_NUMERIC);
}
static bool is_alpha(uint32_t c)
{
    return tkc_j_is(c, TKC_JCHAR_ALPHA);
}
static bool is_decimal(uint32_t c)
{
    return tkc_j_is(c, TKC_JCHAR_DECIMAL);
}
static bool is_digit(uint32_t c)
{
    return tkc_j_is(c, TKC_JCHAR_DIGIT);
}
static bool is_numeric(uint32_t c)
{
    return tkc_j_is(c, TKC_JCHAR_NUMERIC);
}

/* All characters are of a class, and there is at least one (or `empty` is the answer). */
static tkc_jv all_chars(tkc_jev *ev, tkc_jv s, bool (*is)(uint32_t), bool empty)
{
    tinkc_str text = tkc_jv_text(s);
    if (!tkc_j_charge(ev, text.len / 16))
        return tkc_jv_fail;
    for (size_t i = 0; i < text.len;)
        if (!is(tkc_j_char(text, &i)))
            return tkc_jv_bool(false);
    return tkc_jv_bool(text.len || empty);
}

#define CLASS_METHOD(name, is, empty)                                                              \
    static tkc_jv str_##name(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)               \
    {                                                                                              \
        return tkc_j_bind(ev, args, #name, NULL, 0, 0, NULL) ? all_chars(ev, *self, is, empty)     \
                                                             : tkc_jv_fail;                        \
    }
CLASS_METHOD(isalnum, is_alnum, false)
CLASS_METHOD(isalpha, is_alpha, false)
CLASS_METHOD(isdecimal, is_decimal, false)
CLASS_METHOD(isdigit, is_digit, false)
CLASS_METHOD(isnumeric, is_numeric, false)
CLASS_METHOD(isspace, tkc_j_is_space, false)

static tkc_jv str_isascii(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    (void)args;
    return tkc_j_touch(ev, self->s->len) ? tkc_jv_bool(tkc_jstr_chars(self->s) == self->s->len)
                                         : tkc_jv_fail;
}

tkc_jv tkc_jv_is_case(tkc_jev *ev, tkc_jv s, bool upper)
{
    tinkc_str text = tkc_jv_text(s);
    bool cased = false;
    if (!tkc_j_charge(ev, text.len / 16))
        return tkc_jv_fail;
    for (size_t i = 0; i < text.len;) {
        uint32_t c = tkc_j_char(text, &i);
        if (!tkc_j_is(c, TKC_JCHAR_CASED))
            continue;
        if (!tkc_j_is(c, upper ? TKC_JCHAR_UPPER : TKC_JCHAR_LOWER))
            return tkc_jv_bool(false);
        cased = true;
    }
    return tkc_jv_bool(cased);
}

static tkc_jv str_isupper(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    (void)args;
    return tkc_jv_is_case(ev, *self, true);
}

static tkc_jv str_islower(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    (void)args;
    return tkc_jv_is_case(ev, *self, false);
}

/* ---- stripping ---- */

static tkc_jv strip(tkc_jev *ev, tkc_jv self, const tkc_jargs *args, bool left, bool right)
{
    static const char *const params[] = { "chars" };
    tkc_jv a;
    if (!tkc_j_bind(ev, args, "strip", params, 1, 0, &a))
        return tkc_jv_fail;
    tinkc_str chars = { 0 };
    bool given = a.kind != TKC_JV_MISSING && a.kind != TKC_JV_NONE;
    if (given) {
        if (!need_str(ev, a, "strip"))
            return tkc_jv_fail;
        chars = tkc_jv_text(a);
        /* each character may be looked for in the whole set */
        size_t work;
        if (!tkc_mul_size(chars.len + 1, self.s->len / 8 + 1, &work) || !tkc_j_charge(ev, work / 8))
            return tkc_jv_fail;
    }
    tinkc_str part = tkc_j_strip(tkc_jv_text(self), given ? &chars : NULL, left, right);
    return tkc_j_decode(ev, self.s->len - part.len) ? part_of(ev, self, part) : tkc_jv_fail;
}

static tkc_jv str_strip(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    return strip(ev, *self, args, true, true);
}
static tkc_jv str_lstrip(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    return strip(ev, *self, args, true, false);
}
static tkc_jv str_rstrip(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    return strip(ev, *self, args, false, true);
}

static tkc_jv str_removeprefix(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    static const char *const params[] = { "prefix" };
    tkc_jv a;
    if (!tkc_j_bind(ev, args, "removeprefix", params, 1, 1, &a) || !need_str(ev, a, "removeprefix"))
        return tkc_jv_fail;
    tinkc_str s = tkc_jv_text(*self);
    if (!tkc_j_touch(ev, a.s->len))
        return tkc_jv_fail;
    if (s.len >= a.s->len && memcmp(s.data, a.s->data, a.s->len) == 0)
        return part_of(ev, *self, tkc_strn(s.data + a.s->len, s.len - a.s->len));
    return *self;
}

static tkc_jv str_removesuffix(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    static const char *const params[] = { "suffix" };
    tkc_jv a;
    if (!tkc_j_bind(ev, args, "removesuffix", params, 1, 1, &a) || !need_str(ev, a, "removesuffix"))
        return tkc_jv_fail;
    tinkc_str s = tkc_jv_text(*self);
    if (!tkc_j_touch(ev, a.s->len))
        return tkc_jv_fail;
    if (s.len >= a.s->len && memcmp(s.data + s.len - a.s->len, a.s->data, a.s->len) == 0)
        return part_of(ev, *self, tkc_strn(s.data, s.len - a.s->len));
    return *self;
}

/* ---- looking for parts ---- */

/* Compares at every position, so a long needle in a long text is charged for. */
static const char *find_last(tkc_jev *ev, tinkc_str s, tinkc_str needle)
{
    if (needle.len > s.len ||
        !tkc_j_charge(ev, ((s.len - needle.len) / 16) * (needle.len / 32 + 1)))
        return NULL;
    for (size_t i = s.len - needle.len + 1; i-- > 0;)
        if (memcmp(s.data + i, needle.data, needle.len) == 0)
            return s.data + i;
    return NULL;
}

static const char *find_first(tinkc_str s, tinkc_str needle)
{
    return needle.len ? memmem(s.data, s.len, needle.data, needle.len) : s.data;
}

/* (needle, start, end) of find and similar methods: the part of self to look in, as bytes. */
static bool window(tkc_jev *ev, tkc_jv self, const tkc_jargs *args, const char *what,
                   tkc_jv *needle, tinkc_str *out)
{
    static const char *const params[] = { "sub", "start", "end" };
    tkc_jv a[3];
    int64_t start, end;
    if (!tkc_j_bind(ev, args, what, params, 3, 1, a))
        return false;
    *needle = a[0];
    *out = tkc_jv_text(self);
    int64_t n = (int64_t)tkc_jstr_chars(self.s);
    if (!need_int(ev, a[1], what, 0, &start) || !need_int(ev, a[2], what, n, &end) ||
        !tkc_j_charge(ev, self.s->len / 32))
        return false;
    if (a[1].kind == TKC_JV_MISSING && a[2].kind == TKC_JV_MISSING)
        return true;
    start = start < 0 ? (start + n < 0 ? 0 : start + n) : start;
    end = end < 0 ? (end + n < 0 ? 0 : end + n) : end > n ? n : end;
    if (start > end) {
        *out = (tinkc_str){ NULL, 0 }; /* nothing can be found here, not even "" */
        return true;
    }
    size_t begin = tkc_j_place(self.s, (size_t)start), stop = tkc_j_place(self.s, (size_t)end);
    *out = tkc_strn(self.s->data + begin, stop - begin);
    return true;
}

static tkc_jv find(tkc_jev *ev, tkc_jv self, const tkc_jargs *args, const char *what, bool last,
                   bool must)
{
    tkc_jv needle;
    tinkc_str in;
    if (!window(ev, self, args, what, &needle, &in) || !need_str(ev, needle, what))
        return tkc_jv_fail;
    const char *hit = !in.data ? NULL
                      : last   ? find_last(ev, in, tkc_jv_text(needle))
                               : find_first(in, tkc_jv_text(needle));
    if (tkc_failed(ev->err))
        return tkc_jv_fail;
    if (!hit)
        return must ? tkc_j_fail(ev, "substring not found") : tkc_jv_int(-1);
    tkc_jstr before = { self.s->data, (size_t)(hit - self.s->data), SIZE_MAX };
    return tkc_jv_int((int64_t)tkc_jstr_chars(&before));
}

static tkc_jv str_find(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    return find(ev, *self, args, "find", false, false);
}
static tkc_jv str_rfind(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    return find(ev, *self, args, "rfind", true, false);
}
static tkc_jv str_index(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    return find(ev, *self, args, "index", false, true);
}
static tkc_jv str_rindex(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    return find(ev, *self, args, "rindex", true, true);
}

static tkc_jv str_count(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    tkc_jv needle;
    tinkc_str in;
    if (!window(ev, *self, args, "count", &needle, &in) || !need_str(ev, needle, "count"))
        return tkc_jv_fail;
    int64_t n = 0;
    if (needle.s->len == 0) {
        tkc_jstr s = { in.data, in.len, SIZE_MAX };
        return tkc_jv_int(in.data ? (int64_t)tkc_jstr_chars(&s) + 1 : 0);
    }
    const char *hit;
    while (in.len && (hit = memmem(in.data, in.len, needle.s->data, needle.s->len))) {
        n++;
        size_t skip = (size_t)(hit - in.data) + needle.s->len;
        in = tkc_strn(in.data + skip, in.len - skip);
    }
    return tkc_jv_int(n);
}

static bool has_edge(tinkc_str s, tinkc_str edge, bool at_end)
{
    return s.data && s.len >= edge.len &&
           memcmp(at_end ? s.data + s.len - edge.len : s.data, edge.data, edge.len) == 0;
}

static tkc_jv test_edge(tkc_jev *ev, tkc_jv self, const tkc_jargs *args, const char *what,
                        bool at_end)
{
    tkc_jv edge;
    tinkc_str in;
    if (!window(ev, self, args, what, &edge, &in))
        return tkc_jv_fail;
    if (edge.kind != TKC_JV_TUPLE)
        return need_str(ev, edge, what) ? tkc_jv_bool(has_edge(in, tkc_jv_text(edge), at_end))
                                        : tkc_jv_fail;
    for (size_t i = 0; i < edge.l->len; i++) {
        if (!need_str(ev, edge.l->items[i], what))
            return tkc_jv_fail;
        if (has_edge(in, tkc_jv_text(edge.l->items[i]), at_end))
            return tkc_jv_bool(true);
    }
    return tkc_jv_bool(false);
}

static tkc_jv str_startswith(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    return test_edge(ev, *self, args, "startswith", false);
}
static tkc_jv str_endswith(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    return test_edge(ev, *self, args, "endswith", true);
}

/* ---- splitting and joining ---- */

static tkc_jv split_spaces(tkc_jev *ev, tkc_jv self, int64_t limit)
{
    tkc_jv out = tkc_jv_list(ev, TKC_JV_LIST, 0);
    tinkc_str rest = tkc_j_strip(tkc_jv_text(self), NULL, true, false);
    while (!tkc_jv_failed(out) && rest.len) {
        size_t i = 0, end = 0;
        if (limit == 0)
            end = rest.len; /* unchanged, including white space at its end */
        while (limit != 0 && i < rest.len) {
            end = i;
            if (tkc_j_is_space(tkc_j_char(rest, &i)))
                break;
            end = i;
        }
        if (!tkc_jv_push(ev, out.l, part_of(ev, self, tkc_strn(rest.data, end))))
            return tkc_jv_fail;
        rest = tkc_j_strip(tkc_strn(rest.data + end, rest.len - end), NULL, true, false);
        limit -= limit > 0;
    }
    return out;
}

static tkc_jv split_at(tkc_jev *ev, tkc_jv self, tinkc_str sep, int64_t limit)
{
    tkc_jv out = tkc_jv_list(ev, TKC_JV_LIST, 0);
    tinkc_str rest = tkc_jv_text(self);
    const char *hit;
    while (!tkc_jv_failed(out) && limit != 0 && rest.len &&
           (hit = memmem(rest.data, rest.len, sep.data, sep.len))) {
        size_t n = (size_t)(hit - rest.data);
        if (!tkc_jv_push(ev, out.l, part_of(ev, self, tkc_strn(rest.data, n))))
            return tkc_jv_fail;
        rest = tkc_strn(rest.data + n + sep.len, rest.len - n - sep.len);
        limit -= limit > 0;
    }
    if (tkc_jv_failed(out) || !tkc_jv_push(ev, out.l, part_of(ev, self, rest)))
        return tkc_jv_fail;
    return out;
}

static void reverse_items(tkc_jlist *l)
{
    for (size_t i = 0; i + 1 < l->len - i; i++) {
        tkc_jv t = l->items[i];
        l->items[i] = l->items[l->len - 1 - i];
        l->items[l->len - 1 - i] = t;
    }
}

/* From the right: parts are found last first, then reversed. */
static tkc_jv rsplit_at(tkc_jev *ev, tkc_jv self, const tinkc_str *sep, int64_t limit)
{
    tkc_jv out = tkc_jv_list(ev, TKC_JV_LIST, 0);
    tinkc_str rest = tkc_jv_text(self);
    if (!sep)
        rest = tkc_j_strip(rest, NULL, false, true);
    while (!tkc_jv_failed(out) && limit != 0 && rest.len) {
        size_t begin = rest.len, cut = 0; /* the part is rest[begin..], the separator ends there */
        if (sep) {
            const char *hit = find_last(ev, rest, *sep);
            if (!hit)
                break;
            cut = (size_t)(hit - rest.data);
            begin = cut + sep->len;
        } else {
            while (begin > 0) {
                size_t at = begin - 1, next;
                while (at > 0 && ((unsigned char)rest.data[at] & 0xC0) == 0x80)
                    at--;
                next = at;
                if (tkc_j_is_space(tkc_j_char(rest, &next)))
                    break;
                begin = at;
            }
            cut = begin;
        }
        if (!tkc_jv_push(ev, out.l,
                         part_of(ev, self, tkc_strn(rest.data + begin, rest.len - begin))))
            return tkc_jv_fail;
        rest.len = cut;
        if (!sep)
            rest = tkc_j_strip(rest, NULL, false, true);
        limit -= limit > 0;
    }
    if (!tkc_jv_failed(out) && (sep || rest.len) &&
        !tkc_jv_push(ev, out.l, part_of(ev, self, rest)))
        return tkc_jv_fail;
    if (!tkc_jv_failed(out) && out.l->len)
        reverse_items(out.l);
    return out;
}

static bool split_args(tkc_jev *ev, tkc_jv self, const tkc_jargs *args, tkc_jv *sep, int64_t *limit)
{
    static const char *const params[] = { "sep", "maxsplit" };
    tkc_jv a[2];
    if (!tkc_j_bind(ev, args, "split", params, 2, 0, a) || !need_int(ev, a[1], "split", -1, limit))
        return false;
    *limit = *limit < 0 ? -1 : *limit;
    *sep = a[0].kind == TKC_JV_NONE ? tkc_jv_missing : a[0];
    if (!tkc_j_charge(ev, self.s->len / 16))
        return false;
    if (sep->kind == TKC_JV_MISSING)
        return true;
    if (!need_str(ev, *sep, "split"))
        return false;
    if (sep->s->len == 0) {
        tkc_j_fail(ev, "empty separator");
        return false;
    }
    return true;
}

static tkc_jv str_split(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    tkc_jv sep;
    int64_t limit;
    if (!split_args(ev, *self, args, &sep, &limit))
        return tkc_jv_fail;
    return sep.kind == TKC_JV_MISSING ? split_spaces(ev, *self, limit)
                                      : split_at(ev, *self, tkc_jv_text(sep), limit);
}

static tkc_jv str_rsplit(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    tkc_jv sep;
    int64_t limit;
    if (!split_args(ev, *self, args, &sep, &limit))
        return tkc_jv_fail;
    tinkc_str text = sep.kind == TKC_JV_MISSING ? (tinkc_str){ 0 } : tkc_jv_text(sep);
    return rsplit_at(ev, *self, sep.kind == TKC_JV_MISSING ? NULL : &text, limit);
}

static bool is_line_end(uint32_t c)
{
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

tkc_jv tkc_j_splitlines(tkc_jev *ev, tkc_jv self, bool keep_ends)
{
    tkc_jv out = tkc_jv_list(ev, TKC_JV_LIST, 0);
    tinkc_str s = tkc_jv_text(self);
    size_t begin = 0, i = 0;
    if (tkc_jv_failed(out) || !tkc_j_charge(ev, s.len / 16))
        return tkc_jv_fail;
    while (i < s.len) {
        size_t end = i;
        uint32_t c = tkc_j_char(s, &i);
        if (!is_line_end(c))
            continue;
        if (c == '\r' && i < s.len && s.data[i] == '\n')
            i++;
        if (!tkc_jv_push(
                ev, out.l,
                part_of(ev, self, tkc_strn(s.data + begin, (keep_ends ? i : end) - begin))))
            return tkc_jv_fail;
        begin = i;
    }
    if (begin < s.len &&
        !tkc_jv_push(ev, out.l, part_of(ev, self, tkc_strn(s.data + begin, s.len - begin))))
        return tkc_jv_fail;
    return out;
}

static tkc_jv str_splitlines(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    static const char *const params[] = { "keepends" };
    tkc_jv a;
    if (!tkc_j_bind(ev, args, "splitlines", params, 1, 0, &a))
        return tkc_jv_fail;
    return tkc_j_splitlines(ev, *self, tkc_jv_truth(a));
}

static tkc_jv partition(tkc_jev *ev, tkc_jv self, const tkc_jargs *args, bool last)
{
    static const char *const params[] = { "sep" };
    tkc_jv sep, out = tkc_jv_list(ev, TKC_JV_TUPLE, 3);
    if (tkc_jv_failed(out) || !tkc_j_bind(ev, args, "partition", params, 1, 1, &sep) ||
        !need_str(ev, sep, "partition") || !tkc_j_charge(ev, self.s->len / 32))
        return tkc_jv_fail;
    if (sep.s->len == 0)
        return tkc_j_fail(ev, "empty separator");
    tinkc_str s = tkc_jv_text(self), none = { "", 0 };
    const char *hit = last ? find_last(ev, s, tkc_jv_text(sep)) : find_first(s, tkc_jv_text(sep));
    tinkc_str parts[3] = { s, none, none };
    if (hit) {
        size_t n = (size_t)(hit - s.data);
        parts[0] = tkc_strn(s.data, n);
        parts[1] = tkc_jv_text(sep);
        parts[2] = tkc_strn(hit + sep.s->len, s.len - n - sep.s->len);
    } else if (last) {
        parts[0] = none;
        parts[2] = s;
    }
    for (int i = 0; i < 3; i++)
        if (!tkc_jv_push(ev, out.l, part_of(ev, self, parts[i])))
            return tkc_jv_fail;
    return out;
}

static tkc_jv str_partition(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    return partition(ev, *self, args, false);
}
static tkc_jv str_rpartition(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    return partition(ev, *self, args, true);
}

static tkc_jv str_join(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    static const char *const params[] = { "iterable" };
    tkc_jv a, item;
    if (!tkc_j_bind(ev, args, "join", params, 1, 1, &a))
        return tkc_jv_fail;
    tkc_jv items = tkc_j_list(ev, a, TKC_JV_LIST);
    if (tkc_jv_failed(items))
        return items;
    size_t mark = ev->out.len;
    for (size_t i = 0; i < items.l->len; i++) {
        item = items.l->items[i];
        if (item.kind != TKC_JV_STR)
            return tkc_j_fail(ev, "sequence item %zu: expected str instance, %s found", i,
                              tkc_jv_type(item));
        if ((i && !tkc_j_write(ev, *self)) || !tkc_j_write(ev, item))
            return tkc_jv_fail;
    }
    return tkc_jv_take(ev, mark);
}

tkc_jv tkc_j_replace(tkc_jev *ev, tkc_jv self, tkc_jv from, tkc_jv to, int64_t limit)
{
    if (!need_str(ev, from, "replace") || !need_str(ev, to, "replace") ||
        !tkc_j_charge(ev, self.s->len / 16))
        return tkc_jv_fail;
    tinkc_str rest = tkc_jv_text(self), needle = tkc_jv_text(from);
    size_t mark = ev->out.len;
    bool first = true;
    while (limit != 0) {
        size_t at = 0;
        if (needle.len) {
            const char *hit =
                rest.len ? memmem(rest.data, rest.len, needle.data, needle.len) : NULL;
            if (!hit)
                break;
            at = (size_t)(hit - rest.data);
        } else if (!first) { /* "" matches before each character and at the end */
            if (rest.len == 0)
                break;
            (void)tkc_j_char(rest, &at);
        }
        if (!tkc_j_put(ev, rest.data, at) || !tkc_j_write(ev, to) || !tkc_j_charge(ev, 1))
            return tkc_jv_fail;
        rest = tkc_strn(rest.data + at + needle.len, rest.len - at - needle.len);
        first = false;
        limit -= limit > 0;
    }
    if (!tkc_j_put(ev, rest.data, rest.len))
        return tkc_jv_fail;
    tkc_jv v = tkc_jv_take(ev, mark);
    v.flag = self.flag;
    return v;
}

static tkc_jv str_replace(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    static const char *const params[] = { "old", "new", "count" };
    tkc_jv a[3];
    int64_t limit;
    if (!tkc_j_bind(ev, args, "replace", params, 3, 2, a) ||
        !need_int(ev, a[2], "replace", -1, &limit))
        return tkc_jv_fail;
    return tkc_j_replace(ev, *self, a[0], a[1], limit < 0 ? -1 : limit);
}

/* ---- padding ---- */

static bool put_times(tkc_jev *ev, tinkc_str fill, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!tkc_j_put(ev, fill.data, fill.len))
            return false;
    return true;
}

tkc_jv tkc_j_pad(tkc_jev *ev, tkc_jv self, int64_t left, int64_t right, tinkc_str fill)
{
    left = left < 0 ? 0 : left;
    right = right < 0 ? 0 : right;
    size_t mark = ev->out.len;
    if (left > (int64_t)ev->max_mem || right > (int64_t)ev->max_mem)
        return tkc_j_fail(ev, "the template needs more than %zu bytes of memory", ev->max_mem);
    if (!tkc_j_charge(ev, (size_t)(left + right) / 8) || !put_times(ev, fill, left) ||
        !tkc_j_write(ev, self) || !put_times(ev, fill, right))
        return tkc_jv_fail;
    tkc_jv v = tkc_jv_take(ev, mark);
    v.flag = self.flag;
    return v;
}

static bool pad_args(tkc_jev *ev, tkc_jv self, const tkc_jargs *args, int64_t *missing,
                     tinkc_str *fill)
{
    static const char *const params[] = { "width", "fillchar" };
    tkc_jv a[2];
    int64_t width;
    if (!tkc_j_bind(ev, args, "pad", params, 2, 1, a) || !need_int(ev, a[0], "pad", 0, &width))
        return false;
    *fill = tkc_str(" ");
    if (a[1].kind != TKC_JV_MISSING) {
        if (!need_str(ev, a[1], "pad"))
            return false;
        if (tkc_jstr_chars(a[1].s) != 1) {
            tkc_j_fail(ev, "the fill character must be exactly one character long");
            return false;
        }
        *fill = tkc_jv_text(a[1]);
    }
    int64_t n = (int64_t)tkc_jstr_chars(self.s);
    *missing = width > n ? width - n : 0;
    return true;
}

static tkc_jv str_ljust(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    int64_t n;
    tinkc_str fill;
    return pad_args(ev, *self, args, &n, &fill) ? tkc_j_pad(ev, *self, 0, n, fill) : tkc_jv_fail;
}

static tkc_jv str_rjust(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    int64_t n;
    tinkc_str fill;
    return pad_args(ev, *self, args, &n, &fill) ? tkc_j_pad(ev, *self, n, 0, fill) : tkc_jv_fail;
}

static tkc_jv str_center(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    int64_t n;
    tinkc_str fill;
    if (!pad_args(ev, *self, args, &n, &fill))
        return tkc_jv_fail;
    int64_t width = n + (int64_t)tkc_jstr_chars(self->s);
    int64_t left = n / 2 + (n & width & 1);
    return tkc_j_pad(ev, *self, left, n - left, fill);
}

static tkc_jv str_zfill(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    int64_t n;
    tinkc_str fill;
    if (!pad_args(ev, *self, args, &n, &fill))
        return tkc_jv_fail;
    size_t sign = self->s->len && (self->s->data[0] == '-' || self->s->data[0] == '+');
    size_t mark = ev->out.len;
    tkc_jv digits = tkc_jv_view(ev, self->s->data + sign, self->s->len - sign);
    if (tkc_jv_failed(digits) || !tkc_j_put(ev, self->s->data, sign) ||
        tkc_jv_failed(digits = tkc_j_pad(ev, digits, n, 0, tkc_str("0"))) ||
        !tkc_j_write(ev, digits))
        return tkc_jv_fail;
    return tkc_jv_take(ev, mark);
}

static tkc_jv str_encode(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    static const char *const params[] = { "encoding", "errors" };
    tkc_jv a[2];
    if (!tkc_j_bind(ev, args, "encode", params, 2, 0, a))
        return tkc_jv_fail;
    if (a[0].kind == TKC_JV_STR && !tkc_str_is_nocase(tkc_jv_text(a[0]), "utf-8") &&
        !tkc_str_is_nocase(tkc_jv_text(a[0]), "utf8"))
        return tkc_j_fail(ev, "encode: only utf-8 is supported");
    return (tkc_jv){ .kind = TKC_JV_BYTES, .s = self->s };
}

static tkc_jv str_format(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    return tkc_j_format(ev, *self, args);
}

TKC_J_LEFT_OUT(str, "string method", casefold)
TKC_J_LEFT_OUT(str, "string method", expandtabs)
TKC_J_LEFT_OUT(str, "string method", format_map)
TKC_J_LEFT_OUT(str, "string method", isidentifier)
TKC_J_LEFT_OUT(str, "string method", isprintable)
TKC_J_LEFT_OUT(str, "string method", istitle)
TKC_J_LEFT_OUT(str, "string method", maketrans)
TKC_J_LEFT_OUT(str, "string method", translate)

static const tkc_jfunc methods[] = {
    /* sorted */
    { "capitalize", str_capitalize },
    { "casefold", str_casefold },
    { "center", str_center },
    { "count", str_count },
    { "encode", str_encode },
    { "endswith", str_endswith },
    { "expandtabs", str_expandtabs },
    { "find", str_find },
    { "format", str_format },
    { "format_map", str_format_map },
    { "index", str_index },
    { "isalnum", str_isalnum },
    { "isalpha", str_isalpha },
    { "isascii", str_isascii },
    { "isdecimal", str_isdecimal },
    { "isdigit", str_isdigit },
    { "isidentifier", str_isidentifier },
    { "islower", str_islower },
    { "isnumeric", str_isnumeric },
    { "isprintable", str_isprintable },
    { "isspace", str_isspace },
    { "istitle", str_istitle },
    { "isupper", str_isupper },
    { "join", str_join },
    { "ljust", str_ljust },
    { "lower", str_lower },
    { "lstrip", str_lstrip },
    { "maketrans", str_maketrans },
    { "partition", str_partition },
    { "removeprefix", str_removeprefix },
    { "removesuffix", str_removesuffix },
    { "replace", str_replace },
    { "rfind", str_rfind },
    { "rindex", str_rindex },
    { "rjust", str_rjust },
    { "rpartition", str_rpartition },
    { "rsplit", str_rsplit },
    { "rstrip", str_rstrip },
    { "split", str_split },
    { "splitlines", str_splitlines },
    { "startswith", str_startswith },
    { "strip", str_strip },
    { "swapcase", str_swapcase },
    { "title", str_title },
    { "translate", str_translate },
    { "upper", str_upper },
    { "zfill", str_zfill },

};

const tkc_jfunc *tkc_j_str_method(tinkc_str name)
{
    return tkc_j_find_func(methods, sizeof methods / sizeof *methods, name);
}
