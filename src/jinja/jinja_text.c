/* jinja_text.c - values as text: str(), repr(), JSON in and out, exactly as Python writes them.
 * May touch: the output buffer of the run, its arena. */
#include "jinja/jinja.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json_read.h"

bool tkc_j_put(tkc_jev *ev, const char *data, size_t len)
{
    if (len == 0)
        return !tkc_failed(ev->err);
    if (len > ev->out.max || ev->out.len > ev->out.max - len) {
        tkc_j_fail(ev, "the template writes more than %zu bytes", ev->out.max);
        return false;
    }
    return tkc_j_touch(ev, len) && tkc_buf_add(&ev->out, data, len, ev->err);
}

static bool put(tkc_jev *ev, const char *text)
{
    return tkc_j_put(ev, text, strlen(text));
}

size_t tkc_j_format_i128(tkc_i128 value, char out[48])
{
    __extension__ typedef unsigned __int128 u128;
    char digits[48];
    size_t n = 0, len = 0;
    u128 rest = value < 0 ? (u128)0 - (u128)value : (u128)value;
    do {
        digits[n++] = (char)('0' + (int)(rest % 10));
        rest /= 10;
    } while (rest);
    if (value < 0)
        out[len++] = '-';
    while (n)
        out[len++] = digits[--n];
    out[len] = '\0';
    return len;
}

static bool put_number(tkc_jev *ev, tkc_jv v)
{
    char text[48];
    if (v.kind == TKC_JV_FLOAT) {
        char number[TKC_NUMBER_MAX];
        size_t n = tkc_format_double(v.f, number);
        return tkc_j_put(ev, number, n);
    }
    return tkc_j_put(ev, text, tkc_j_format_i128(tkc_jv_to_i128(v), text));
}

/* ---- repr ---- */

static bool put_escape(tkc_jev *ev, uint32_t c)
{
    char text[16];
    int n;
    if (c == '\n' || c == '\r' || c == '\t')
        n = snprintf(text, sizeof text, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    else if (c < 0x100)
        n = snprintf(text, sizeof text, "\\x%02x", (unsigned)c);
    else if (c < 0x10000)
        n = snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    else
        n = snprintf(text, sizeof text, "\\U%08x", (unsigned)c);
    return tkc_j_put(ev, text, (size_t)n);
}

static bool put_str_repr(tkc_jev *ev, tinkc_str s)
{
    bool single = memchr(s.data, '\'', s.len), both = memchr(s.data, '"', s.len);
    char quote = single && !both ? '"' : '\'';
    if (!tkc_j_charge(ev, s.len / 32) || !tkc_j_put(ev, &quote, 1))
        return false;
    size_t done = 0;
    for (size_t i = 0; i < s.len;) {
        size_t at = i;
        uint32_t c = tkc_j_char(s, &i);
        bool plain = c != '\\' && c != (unsigned char)quote && tkc_j_is_printable(c);
        if (plain)
            continue;
        if (!tkc_j_put(ev, s.data + done, at - done))
            return false;
        char pair[2] = { '\\', (char)c };
        if (!(c == '\\' || c == (unsigned char)quote ? tkc_j_put(ev, pair, 2) : put_escape(ev, c)))
            return false;
        done = i;
    }
    return tkc_j_put(ev, s.data + done, s.len - done) && tkc_j_put(ev, &quote, 1);
}

static bool put_bytes_repr(tkc_jev *ev, tinkc_str s)
{
    if (!put(ev, "b'"))
        return false;
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.data[i];
        char pair[2] = { '\\', (char)c };
        bool ok = c == '\\' || c == '\''  ? tkc_j_put(ev, pair, 2)
                  : c >= 0x20 && c < 0x7F ? tkc_j_put(ev, pair + 1, 1)
                                          : put_escape(ev, c);
        if (!ok)
            return false;
    }
    return put(ev, "'");
}

static bool write_repr(tkc_jev *ev, tkc_jv v, int depth);

static bool put_items(tkc_jev *ev, const tkc_jlist *l, int depth)
{
    for (size_t i = 0; i < l->len; i++)
        if ((i && !put(ev, ", ")) || !write_repr(ev, l->items[i], depth))
            return false;
    return true;
}

static bool put_dict(tkc_jev *ev, const tkc_jdict *d, int depth)
{
    if (!put(ev, "{"))
        return false;
    for (size_t i = 0; i < d->len; i++)
        if ((i && !put(ev, ", ")) || !write_repr(ev, d->entries[i].key, depth) || !put(ev, ": ") ||
            !write_repr(ev, d->entries[i].value, depth))
            return false;
    return put(ev, "}");
}

static bool put_view(tkc_jev *ev, tkc_jv v, int depth)
{
    if (!put(ev, tkc_jv_type(v)) || !put(ev, "(["))
        return false;
    for (size_t i = 0; i < v.d->len; i++) {
        const tkc_jentry *e = &v.d->entries[i];
        bool items = v.aux == TKC_JVIEW_ITEMS;
        if ((i && !put(ev, ", ")) || (items && !put(ev, "(")) ||
            (v.aux != TKC_JVIEW_VALUES && !write_repr(ev, e->key, depth)) ||
            (items && !put(ev, ", ")) ||
            (v.aux != TKC_JVIEW_KEYS && !write_repr(ev, e->value, depth)) ||
            (items && !put(ev, ")")))
            return false;
    }
    return put(ev, "])");
}

static bool put_range(tkc_jev *ev, const tkc_jrange *r)
{
    char text[96];
    int n = r->step == 1 ? snprintf(text, sizeof text, "range(%lld, %lld)", (long long)r->start,
                                    (long long)r->stop)
                         : snprintf(text, sizeof text, "range(%lld, %lld, %lld)",
                                    (long long)r->start, (long long)r->stop, (long long)r->step);
    return tkc_j_put(ev, text, (size_t)n);
}

/* Objects that Python prints with an address, and the loop variable. */
static bool put_object(tkc_jev *ev, tkc_jv v)
{
    if (v.kind == TKC_JV_LOOP) {
        char text[64];
        int64_t length = tkc_j_loop_length(ev, v.loop);
        int n = snprintf(text, sizeof text, "<LoopContext %lld/%lld>",
                         (long long)v.loop->index0 + 1, (long long)length);
        return length >= 0 && tkc_j_put(ev, text, (size_t)n);
    }
    if (v.kind == TKC_JV_MACRO) {
        const tkc_jstr *name = v.macro->node->name;
        return put(ev, "<Macro '") && tkc_j_put(ev, name->data, name->len) && put(ev, "'>");
    }
    return put(ev, "<") && put(ev, tkc_jv_type(v)) && put(ev, " object>");
}

static bool write_repr(tkc_jev *ev, tkc_jv v, int depth)
{
    if (depth >= TKC_JINJA_MAX_VALUE_DEPTH) {
        tkc_j_fail(ev, "a value is nested more than %d deep", TKC_JINJA_MAX_VALUE_DEPTH);
        return false;
    }
    if (!tkc_j_charge(ev, 1))
        return false;
    switch (v.kind) {
    case TKC_JV_UNDEFINED:
        return put(ev, "Undefined");
    case TKC_JV_NONE:
        return put(ev, "None");
    case TKC_JV_BOOL:
        return put(ev, v.i ? "True" : "False");
    case TKC_JV_INT:
    case TKC_JV_BIG:
    case TKC_JV_FLOAT:
        return put_number(ev, v);
    case TKC_JV_STR:
        if (!(v.flag & TKC_JV_MARKUP))
            return put_str_repr(ev, tkc_jv_text(v));
        return put(ev, "Markup(") && put_str_repr(ev, tkc_jv_text(v)) && put(ev, ")");
    case TKC_JV_BYTES:
        return put_bytes_repr(ev, tkc_jv_text(v));
    case TKC_JV_LIST:
        return put(ev, "[") && put_items(ev, v.l, depth + 1) && put(ev, "]");
    case TKC_JV_TUPLE:
        return put(ev, "(") && put_items(ev, v.l, depth + 1) && put(ev, v.l->len == 1 ? ",)" : ")");
    case TKC_JV_DICT:
        return put_dict(ev, v.d, depth + 1);
    case TKC_JV_NAMESPACE:
        return put(ev, "<Namespace ") && put_dict(ev, v.d, depth + 1) && put(ev, ">");
    case TKC_JV_RANGE:
        return put_range(ev, v.range);
    case TKC_JV_VIEW:
        return put_view(ev, v, depth + 1);
    case TKC_JV_FAIL:
        return false;
    default:
        return put_object(ev, v);
    }
}

bool tkc_j_write_repr(tkc_jev *ev, tkc_jv v)
{
    return write_repr(ev, v, 0);
}

bool tkc_j_write(tkc_jev *ev, tkc_jv v)
{
    if (v.kind == TKC_JV_STR)
        return tkc_j_put(ev, v.s->data, v.s->len);
    if (v.kind == TKC_JV_UNDEFINED)
        return true;
    return write_repr(ev, v, 0);
}

tkc_jv tkc_jv_str(tkc_jev *ev, tkc_jv v)
{
    if (v.kind == TKC_JV_STR || v.kind == TKC_JV_FAIL)
        return v;
    size_t mark = ev->out.len;
    return tkc_j_write(ev, v) ? tkc_jv_take(ev, mark) : tkc_jv_fail;
}

/* ---- tojson ---- */

typedef struct dumper {
    tkc_jev *ev;
    bool ascii, sort_keys, pretty;
    tinkc_str item, key, indent;
    int64_t n_indent; /* how many times `indent` is written per level */
} dumper;

static bool put_json_escape(dumper *j, uint32_t c)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    char text[16];
    const char *simple = c && c < 0x80 ? strchr(from, (int)c) : NULL;
    int n;
    if (simple)
        n = snprintf(text, sizeof text, "\\%c", to[simple - from]);
    else if (c < 0x10000)
        n = snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    else
        n = snprintf(text, sizeof text, "\\u%04x\\u%04x",
                     (unsigned)(0xD800 + ((c - 0x10000) >> 10)),
                     (unsigned)(0xDC00 + ((c - 0x10000) & 0x3FF)));
    return tkc_j_put(j->ev, text, (size_t)n);
}

static bool put_json_string(dumper *j, tinkc_str s)
{
    if (!tkc_j_charge(j->ev, s.len / 32) || !put(j->ev, "\""))
        return false;
    size_t done = 0;
    for (size_t i = 0; i < s.len;) {
        unsigned char byte = (unsigned char)s.data[i];
        if (byte >= 0x20 && byte != '"' && byte != '\\' && (byte < 0x7F || !j->ascii)) {
            i++;
            continue;
        }
        size_t at = i;
        uint32_t c = tkc_j_char(s, &i);
        if (!tkc_j_put(j->ev, s.data + done, at - done) || !put_json_escape(j, c))
            return false;
        done = i;
    }
    return tkc_j_put(j->ev, s.data + done, s.len - done) && put(j->ev, "\"");
}

static bool new_line(dumper *j, int depth)
{
    if (!j->pretty)
        return true;
    if (!put(j->ev, "\n"))
        return false;
    for (int64_t i = 0; i < depth * j->n_indent; i++)
        if (!tkc_j_put(j->ev, j->indent.data, j->indent.len))
            return false;
    return true;
}

static bool dump(dumper *j, tkc_jv v, int depth);

static bool dump_number(dumper *j, tkc_jv v)
{
    if (v.kind == TKC_JV_FLOAT && isnan(v.f))
        return put(j->ev, "NaN");
    if (v.kind == TKC_JV_FLOAT && isinf(v.f))
        return put(j->ev, v.f > 0 ? "Infinity" : "-Infinity");
    return put_number(j->ev, v);
}

static bool dump_list(dumper *j, const tkc_jlist *l, int depth)
{
    if (l->len == 0)
        return put(j->ev, "[]");
    if (!put(j->ev, "["))
        return false;
    for (size_t i = 0; i < l->len; i++)
        if ((i && !tkc_j_put(j->ev, j->item.data, j->item.len)) || !new_line(j, depth + 1) ||
            !dump(j, l->items[i], depth + 1))
            return false;
    return new_line(j, depth) && put(j->ev, "]");
}

static bool dump_key(dumper *j, tkc_jv key)
{
    switch (key.kind) {
    case TKC_JV_STR:
        return put_json_string(j, tkc_jv_text(key));
    case TKC_JV_NONE:
        return put(j->ev, "\"null\"");
    case TKC_JV_BOOL:
        return put(j->ev, key.i ? "\"true\"" : "\"false\"");
    case TKC_JV_INT:
    case TKC_JV_BIG:
    case TKC_JV_FLOAT:
        return put(j->ev, "\"") && dump_number(j, key) && put(j->ev, "\"");
    default:
        tkc_j_fail(j->ev, "keys must be str, int, float, bool or None, not %s", tkc_jv_type(key));
        return false;
    }
}

/* The order of keys: as inserted, or sorted (insertion sort: few keys, and charged). */
static bool key_order(dumper *j, const tkc_jdict *d, size_t *order)
{
    for (size_t i = 0; i < d->len; i++) {
        size_t k = i;
        while (j->sort_keys && k > 0 &&
               tkc_jv_less(j->ev, d->entries[i].key, d->entries[order[k - 1]].key, "<", false)) {
            order[k] = order[k - 1];
            k--;
        }
        order[k] = i;
    }
    return !tkc_failed(j->ev->err);
}

static bool dump_dict(dumper *j, const tkc_jdict *d, int depth)
{
    if (d->len == 0)
        return put(j->ev, "{}");
    size_t *order = tkc_j_alloc(j->ev, d->len * sizeof *order);
    if (!order || !key_order(j, d, order) || !put(j->ev, "{"))
        return false;
    for (size_t i = 0; i < d->len; i++) {
        const tkc_jentry *e = &d->entries[order[i]];
        if ((i && !tkc_j_put(j->ev, j->item.data, j->item.len)) || !new_line(j, depth + 1) ||
            !dump_key(j, e->key) || !tkc_j_put(j->ev, j->key.data, j->key.len) ||
            !dump(j, e->value, depth + 1))
            return false;
    }
    return new_line(j, depth) && put(j->ev, "}");
}

static bool dump(dumper *j, tkc_jv v, int depth)
{
    if (depth >= TKC_JINJA_MAX_VALUE_DEPTH) {
        tkc_j_fail(j->ev, "a value is nested more than %d deep", TKC_JINJA_MAX_VALUE_DEPTH);
        return false;
    }
    if (!tkc_j_charge(j->ev, 1))
        return false;
    switch (v.kind) {
    case TKC_JV_NONE:
        return put(j->ev, "null");
    case TKC_JV_BOOL:
        return put(j->ev, v.i ? "true" : "false");
    case TKC_JV_INT:
    case TKC_JV_BIG:
    case TKC_JV_FLOAT:
        return dump_number(j, v);
    case TKC_JV_STR:
        return put_json_string(j, tkc_jv_text(v));
    case TKC_JV_LIST:
    case TKC_JV_TUPLE:
        return dump_list(j, v.l, depth);
    case TKC_JV_DICT:
        return dump_dict(j, v.d, depth);
    default:
        tkc_j_fail(j->ev, "Object of type %s is not JSON serializable", tkc_jv_type(v));
        return false;
    }
}

static bool set_separators(dumper *j, tkc_jv v)
{
    j->item = tkc_str(j->pretty ? "," : ", ");
    j->key = tkc_str(": ");
    if (v.kind == TKC_JV_MISSING || v.kind == TKC_JV_NONE)
        return true;
    if ((v.kind != TKC_JV_TUPLE && v.kind != TKC_JV_LIST) || v.l->len != 2 ||
        v.l->items[0].kind != TKC_JV_STR || v.l->items[1].kind != TKC_JV_STR) {
        tkc_j_fail(j->ev, "tojson: separators must be two strings");
        return false;
    }
    j->item = tkc_jv_text(v.l->items[0]);
    j->key = tkc_jv_text(v.l->items[1]);
    return true;
}

static bool set_indent(dumper *j, tkc_jv v)
{
    if (v.kind == TKC_JV_MISSING || v.kind == TKC_JV_NONE)
        return true;
    j->pretty = true;
    if (v.kind == TKC_JV_STR) {
        j->indent = tkc_jv_text(v);
        j->n_indent = 1;
        return true;
    }
    j->indent = tkc_str(" ");
    if (!tkc_jv_i64(v, &j->n_indent) || j->n_indent > 1000) {
        tkc_j_fail(j->ev, "tojson: indent must be a small number or a string");
        return false;
    }
    return true;
}

tkc_jv tkc_jfilter_tojson(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    static const char *const params[] = { "ensure_ascii", "indent", "separators", "sort_keys" };
    tkc_jv a[4];
    if (!tkc_j_bind(ev, args, "tojson", params, 4, 0, a))
        return tkc_jv_fail;
    dumper j = { .ev = ev, .ascii = tkc_jv_truth(a[0]), .sort_keys = tkc_jv_truth(a[3]) };
    size_t mark = ev->out.len;
    if (!set_indent(&j, a[1]) || !set_separators(&j, a[2]) || !dump(&j, *self, 0))
        return tkc_jv_fail;
    return tkc_jv_take(ev, mark);
}

/* ---- JSON in ---- */

static tkc_jv read_number(tkc_jev *ev, tkc_json *j)
{
    tinkc_str text = tkc_json_skip(j);
    if (tkc_failed(ev->err))
        return tkc_jv_fail;
    bool whole = true;
    for (size_t i = 0; i < text.len; i++)
        whole = whole && text.data[i] != '.' && text.data[i] != 'e' && text.data[i] != 'E';
    if (!whole) {
        double f;
        if (!tkc_parse_double(text, false, &f))
            f = text.data[0] == '-' ? -INFINITY : INFINITY;
        return tkc_jv_float(f);
    }
    tkc_i128 value = 0;
    bool negative = text.len && text.data[0] == '-';
    for (size_t i = negative; i < text.len; i++)
        if (__builtin_mul_overflow(value, (tkc_i128)10, &value) ||
            __builtin_sub_overflow(value, (tkc_i128)(text.data[i] - '0'), &value)) {
            tkc_json_fail(j, "an integer of more than 127 bits");
            return tkc_jv_fail;
        }
    return tkc_jv_i128(ev, negative ? value : -value);
}

static tkc_jv read_value(tkc_jev *ev, tkc_json *j)
{
    tinkc_str text;
    tkc_jv v;
    switch (tkc_json_peek(j)) {
    case TKC_JSON_OBJECT:
        v = tkc_jv_dict(ev, TKC_JV_DICT);
        tkc_json_object(j);
        while (!tkc_jv_failed(v) && tkc_json_key(j, &text))
            if (!tkc_jdict_set(ev, v.d, tkc_jv_view(ev, text.data, text.len), read_value(ev, j)))
                return tkc_jv_fail;
        break;
    case TKC_JSON_ARRAY:
        v = tkc_jv_list(ev, TKC_JV_LIST, 0);
        tkc_json_array(j);
        while (!tkc_jv_failed(v) && tkc_json_item(j))
            if (!tkc_jv_push(ev, v.l, read_value(ev, j)))
                return tkc_jv_fail;
        break;
    case TKC_JSON_STRING:
        text = tkc_json_string(j);
        v = tkc_jv_view(ev, text.data, text.len);
        break;
    case TKC_JSON_NUMBER:
        return read_number(ev, j);
    case TKC_JSON_TRUE:
    case TKC_JSON_FALSE:
        v = tkc_jv_bool(tkc_json_bool(j));
        break;
    case TKC_JSON_NULL:
        (void)tkc_json_null(j);
        v = tkc_jv_none;
        break;
    default:
        return tkc_jv_fail;
    }
    return tkc_failed(ev->err) ? tkc_jv_fail : v;
}

tkc_jv tkc_jv_from_json(tkc_jev *ev, tinkc_str json, int32_t code, const char *what)
{
    tinkc_error inner = { 0 };
    tkc_json j;
    tinkc_error *outer = ev->err;
    /* The caller's data is not charged to the template: it costs no steps. */
    int64_t steps = ev->steps_left;
    size_t mem = ev->mem_left;
    ev->steps_left = INT64_MAX;
    ev->mem_left = SIZE_MAX;
    ev->err = &inner;
    tkc_json_open(&j, json, ev->arena, &inner);
    j.code = code;
    tkc_jv v = read_value(ev, &j);
    if (!tkc_json_close(&j))
        v = tkc_jv_fail;
    ev->err = outer;
    ev->steps_left = steps;
    ev->mem_left = mem;
    if (tkc_failed(&inner)) {
        if (inner.code == code)
            tkc_fail(outer, code, "%s: %s", what, inner.message);
        else
            tkc_error_copy(outer, &inner);
        return tkc_jv_fail;
    }
    return v;
}
