/* jinja_ops.c - operators, attributes, items and slices, with Python's rules.
 *
 * The sandbox is here: names that begin with an underscore and methods that change their object
 * yield an undefined value that cannot be used. May touch: the run.
 */
#include "jinja/jinja.h"

#include <math.h>
#include <string.h>

static tkc_jv bad_operands(tkc_jev *ev, const char *op, tkc_jv a, tkc_jv b)
{
    if (a.kind == TKC_JV_UNDEFINED || b.kind == TKC_JV_UNDEFINED)
        return tkc_j_fail_undefined(ev, a.kind == TKC_JV_UNDEFINED ? a : b);
    return tkc_j_fail(ev, "unsupported operand type(s) for %s: '%s' and '%s'", op, tkc_jv_type(a),
                      tkc_jv_type(b));
}

static tkc_jv too_large(tkc_jev *ev)
{
    return tkc_j_fail(ev, "an integer of more than 127 bits");
}

/* ---- arithmetic ---- */

static tkc_jv integer_power(tkc_jev *ev, tkc_i128 base, tkc_i128 exponent)
{
    tkc_i128 result = 1;
    if (exponent < 0) {
        if (base == 0)
            return tkc_j_fail(ev, "0.0 cannot be raised to a negative power");
        return tkc_jv_float(pow((double)base, (double)exponent));
    }
    while (exponent > 0) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result))
            return too_large(ev);
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base))
            return too_large(ev);
    }
    return tkc_jv_i128(ev, result);
}

static tkc_jv integer_math(tkc_jev *ev, int op, tkc_i128 a, tkc_i128 b)
{
    tkc_i128 r = 0;
    bool over = false;
    if (b == 0 && (op == TKC_JOP_DIV || op == TKC_JOP_FLOORDIV || op == TKC_JOP_MOD))
        return tkc_j_fail(ev, "division by zero");
    switch (op) {
    case TKC_JOP_ADD:
        over = __builtin_add_overflow(a, b, &r);
        break;
    case TKC_JOP_SUB:
        over = __builtin_sub_overflow(a, b, &r);
        break;
    case TKC_JOP_MUL:
        over = __builtin_mul_overflow(a, b, &r);
        break;
    case TKC_JOP_DIV:
        return tkc_jv_float((double)a / (double)b);
    case TKC_JOP_FLOORDIV:
        if (b == -1) {
            over = __builtin_sub_overflow((tkc_i128)0, a, &r);
            break;
        }
        r = a / b;
        if (a % b != 0 && (a < 0) != (b < 0))
            r--;
        break;
    case TKC_JOP_MOD:
        r = b == -1 ? 0 : a % b;
        if (r != 0 && (r < 0) != (b < 0))
            r += b;
        break;
    default:
        return integer_power(ev, a, b);
    }
    return over ? too_large(ev) : tkc_jv_i128(ev, r);
}

static double float_modulo(double a, double b)
{
    double m = fmod(a, b);
    if (m != 0 && (m < 0) != (b < 0))
        m += b;
    else if (m == 0)
        m = copysign(0.0, b);
    return m;
}

/* Computed from the remainder, as in Python, so that both are consistent. */
static double float_floor_div(double a, double b)
{
    double rest = fmod(a, b), q = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0))
        q -= 1;
    if (q == 0)
        return copysign(0.0, a / b);
    double f = floor(q);
    return q - f > 0.5 ? f + 1 : f;
}

static tkc_jv float_math(tkc_jev *ev, int op, double a, double b)
{
    if (b == 0 && (op == TKC_JOP_DIV || op == TKC_JOP_FLOORDIV || op == TKC_JOP_MOD))
        return tkc_j_fail(ev, "float division by zero");
    switch (op) {
    case TKC_JOP_ADD:
        return tkc_jv_float(a + b);
    case TKC_JOP_SUB:
        return tkc_jv_float(a - b);
    case TKC_JOP_MUL:
        return tkc_jv_float(a * b);
    case TKC_JOP_DIV:
        return tkc_jv_float(a / b);
    case TKC_JOP_FLOORDIV:
        return tkc_jv_float(float_floor_div(a, b));
    case TKC_JOP_MOD:
        return tkc_jv_float(float_modulo(a, b));
    default:
        if (a == 0 && b < 0)
            return tkc_j_fail(ev, "0.0 cannot be raised to a negative power");
        if (a < 0 && b != floor(b) && isfinite(b))
            return tkc_j_fail(ev, "the result of ** is not a real number");
        return tkc_jv_float(pow(a, b));
    }
}

/* ---- sequences ---- */

static bool put_escaped(tkc_jev *ev, tinkc_str s)
{
    static const char from[] = "&<>'\"";
    static const char *const to[] = { "&amp;", "&lt;", "&gt;", "&#39;", "&#34;" };
    if (!tkc_j_decode(ev, s.len))
        return false;
    for (size_t i = 0; i < s.len; i++) {
        const char *hit = s.data[i] ? strchr(from, s.data[i]) : NULL;
        bool ok = hit ? tkc_j_put(ev, to[hit - from], strlen(to[hit - from]))
                      : tkc_j_put(ev, s.data + i, 1);
        if (!ok)
            return false;
    }
    return true;
}

tkc_jv tkc_jv_escape(tkc_jev *ev, tkc_jv v)
{
    v = tkc_jv_str(ev, v);
    if (tkc_jv_failed(v) || (v.flag & TKC_JV_MARKUP))
        return v;
    size_t mark = ev->out.len;
    v = put_escaped(ev, tkc_jv_text(v)) ? tkc_jv_take(ev, mark) : tkc_jv_fail;
    v.flag = TKC_JV_MARKUP;
    return v;
}

static tkc_jv join_strings(tkc_jev *ev, tkc_jv a, tkc_jv b)
{
    uint8_t markup = (a.flag | b.flag) & TKC_JV_MARKUP;
    if (markup) {
        a = tkc_jv_escape(ev, a);
        b = tkc_jv_escape(ev, b);
        if (tkc_jv_failed(a) || tkc_jv_failed(b))
            return tkc_jv_fail;
    }
    char *data = tkc_j_alloc(ev, a.s->len + b.s->len);
    if (!data || !tkc_j_charge(ev, (a.s->len + b.s->len) / 64))
        return tkc_jv_fail;
    memcpy(data, a.s->data, a.s->len);
    memcpy(data + a.s->len, b.s->data, b.s->len);
    tkc_jv v = tkc_jv_view(ev, data, a.s->len + b.s->len);
    v.flag = markup;
    return v;
}

static tkc_jv join_lists(tkc_jev *ev, tkc_jv a, tkc_jv b)
{
    tkc_jv v = tkc_jv_list(ev, a.kind, a.l->len + b.l->len);
    if (tkc_jv_failed(v) || !tkc_j_charge(ev, a.l->len + b.l->len))
        return tkc_jv_fail;
    if (a.l->len)
        memcpy(v.l->items, a.l->items, a.l->len * sizeof *v.l->items);
    if (b.l->len)
        memcpy(v.l->items + a.l->len, b.l->items, b.l->len * sizeof *v.l->items);
    v.l->len = a.l->len + b.l->len;
    return v;
}

static tkc_jv repeat(tkc_jev *ev, tkc_jv seq, tkc_jv times)
{
    int64_t n = 0;
    if (!tkc_jv_i64(times, &n))
        return tkc_j_fail(ev, "cannot repeat that often");
    n = n < 0 ? 0 : n;
    bool text = seq.kind == TKC_JV_STR;
    size_t unit = text ? seq.s->len : seq.l->len, total, bytes;
    if (!tkc_mul_size(unit, (size_t)n, &total) ||
        !tkc_mul_size(total, text ? 1 : sizeof(tkc_jv), &bytes) || bytes > ev->mem_left)
        return tkc_j_fail(ev, "the template needs more than %zu bytes of memory", ev->max_mem);
    if (!(text ? tkc_j_touch(ev, total) : tkc_j_charge(ev, total)))
        return tkc_jv_fail;
    if (text) {
        char *data = tkc_j_alloc(ev, total);
        for (size_t i = 0; data && unit && i < (size_t)n; i++)
            memcpy(data + i * unit, seq.s->data, unit);
        tkc_jv v = data ? tkc_jv_view(ev, data, total) : tkc_jv_fail;
        v.flag = seq.flag;
        return v;
    }
    tkc_jv v = tkc_jv_list(ev, seq.kind, total);
    if (tkc_jv_failed(v))
        return v;
    for (size_t i = 0; unit && i < (size_t)n; i++)
        memcpy(v.l->items + i * unit, seq.l->items, unit * sizeof *v.l->items);
    v.l->len = total;
    return v;
}

static bool repeatable(tkc_jv v)
{
    return v.kind == TKC_JV_STR || v.kind == TKC_JV_LIST || v.kind == TKC_JV_TUPLE;
}

tkc_jv tkc_j_binary(tkc_jev *ev, int op, tkc_jv a, tkc_jv b)
{
    static const char *const names[] = { "+", "-", "*", "/", "//", "%", "** or pow()" };
    if (tkc_jv_failed(a) || tkc_jv_failed(b))
        return tkc_jv_fail;
    if (tkc_jv_is_integer(a) && tkc_jv_is_integer(b))
        return integer_math(ev, op, tkc_jv_to_i128(a), tkc_jv_to_i128(b));
    if (tkc_jv_is_number(a) && tkc_jv_is_number(b))
        return float_math(ev, op, tkc_jv_to_double(a), tkc_jv_to_double(b));
    if (op == TKC_JOP_ADD && a.kind == b.kind) {
        if (a.kind == TKC_JV_STR)
            return join_strings(ev, a, b);
        if (a.kind == TKC_JV_LIST || a.kind == TKC_JV_TUPLE)
            return join_lists(ev, a, b);
    }
    if (op == TKC_JOP_MUL && repeatable(a) && tkc_jv_is_integer(b))
        return repeat(ev, a, b);
    if (op == TKC_JOP_MUL && repeatable(b) && tkc_jv_is_integer(a))
        return repeat(ev, b, a);
    if (op == TKC_JOP_MOD && a.kind == TKC_JV_STR)
        return tkc_j_percent(ev, a, b);
    if (op == TKC_JOP_ADD && a.kind == TKC_JV_STR && b.kind != TKC_JV_UNDEFINED)
        return tkc_j_fail(ev, "can only concatenate str (not \"%s\") to str", tkc_jv_type(b));
    return bad_operands(ev, names[op], a, b);
}

/* ---- attributes and items ---- */

static tkc_jv lacks(tkc_jv object, tkc_jstr *name)
{
    return (tkc_jv){ .kind = TKC_JV_UNDEFINED, .aux = object.kind, .s = name };
}

static tkc_jv loop_attr(tkc_jev *ev, tkc_jloop *loop, tinkc_str name, bool *found);

static tkc_jv bind_method(tkc_jev *ev, tkc_jv object, const tkc_jfunc *fn)
{
    struct tkc_jbound *bound = tkc_j_alloc(ev, sizeof *bound);
    if (!bound)
        return tkc_jv_fail;
    *bound = (struct tkc_jbound){ object, fn };
    return (tkc_jv){ .kind = TKC_JV_METHOD, .bound = bound };
}

static tkc_jv macro_attr(tkc_jev *ev, tkc_jv object, tkc_jstr *name)
{
    const tkc_jnode *n = object.macro->node;
    tinkc_str s = { name->data, name->len };
    if (tkc_str_is(s, "name"))
        return (tkc_jv){ .kind = TKC_JV_STR, .s = n->name };
    if (tkc_str_is(s, "catch_kwargs") || tkc_str_is(s, "catch_varargs") || tkc_str_is(s, "caller"))
        return tkc_jv_bool((tkc_str_is(s, "caller")         ? n->caller_slot
                            : tkc_str_is(s, "catch_kwargs") ? n->kwargs_slot
                                                            : n->varargs_slot) >= 0);
    if (!tkc_str_is(s, "arguments"))
        return lacks(object, name);
    tkc_jv v = tkc_jv_list(ev, TKC_JV_TUPLE, n->list.len);
    for (size_t i = 0; !tkc_jv_failed(v) && i < n->list.len; i++)
        if (!tkc_jv_push(ev, v.l, (tkc_jv){ .kind = TKC_JV_STR, .s = n->list.items[i]->name }))
            return tkc_jv_fail;
    return v;
}

/* The object's own attributes, before its items are tried. */
tkc_jv tkc_j_own_attr(tkc_jev *ev, tkc_jv object, tkc_jstr *name, bool *found)
{
    tinkc_str s = { name->data, name->len };
    bool unsafe = false;
    *found = true;
    if (object.kind == TKC_JV_NAMESPACE) {
        const tkc_jv *v = tkc_jdict_str(ev, object.d, s);
        return v ? *v : lacks(object, name);
    }
    if (object.kind == TKC_JV_TUPLE && (object.flag & TKC_JV_GROUP) &&
        (tkc_str_is(s, "grouper") || tkc_str_is(s, "list")))
        return object.l->items[tkc_str_is(s, "list")];
    if (object.kind == TKC_JV_LOOP) {
        tkc_jv v = loop_attr(ev, object.loop, s, found);
        if (*found)
            return v;
    }
    const tkc_jfunc *fn = tkc_j_find_method(object, s, &unsafe);
    if (unsafe) {
        tkc_jv v = lacks(object, name);
        v.flag = TKC_JV_UNSAFE;
        return v;
    }
    if (fn)
        return bind_method(ev, object, fn);
    if (tkc_jv_is_number(object) && (tkc_str_is(s, "real") || tkc_str_is(s, "imag")))
        return tkc_str_is(s, "imag")
                   ? (object.kind == TKC_JV_FLOAT ? tkc_jv_float(0) : tkc_jv_int(0))
               : object.kind == TKC_JV_BOOL ? tkc_jv_int(object.i)
                                            : object;
    if (object.kind == TKC_JV_MACRO)
        return macro_attr(ev, object, name);
    *found = false;
    return lacks(object, name);
}

tkc_jv tkc_j_attr(tkc_jev *ev, tkc_jv object, tkc_jstr *name)
{
    bool found = false;
    if (object.kind == TKC_JV_UNDEFINED)
        return tkc_j_fail_undefined(ev, object);
    if (object.kind == TKC_JV_DICT) {
        /* most names are not methods of a dict: then only its keys need a lookup */
        bool unsafe = false;
        tinkc_str s = { name->data, name->len };
        if (!tkc_j_find_method(object, s, &unsafe) && !unsafe) {
            const tkc_jv *v =
                tkc_jdict_find(ev, object.d, (tkc_jv){ .kind = TKC_JV_STR, .s = name });
            return v ? *v : lacks(object, name);
        }
    }
    return tkc_j_own_attr(ev, object, name, &found);
}

static tkc_jv index_item(tkc_jev *ev, tkc_jv object, int64_t i, bool *found)
{
    int64_t n = object.kind == TKC_JV_RANGE ? object.range->len : tkc_jv_length(ev, object);
    *found = true;
    if (i < 0)
        i += n;
    if (i < 0 || i >= n)
        return lacks(object, NULL);
    switch (object.kind) {
    case TKC_JV_LIST:
    case TKC_JV_TUPLE:
        return object.l->items[i];
    case TKC_JV_RANGE:
        return tkc_jv_int(object.range->start + i * object.range->step);
    case TKC_JV_BYTES:
        return tkc_jv_int((unsigned char)object.s->data[i]);
    default: {
        size_t at = tkc_j_place(object.s, (size_t)i), end = at;
        if (!tkc_j_decode(ev, at))
            return tkc_jv_fail;
        (void)tkc_j_char(tkc_jv_text(object), &end);
        tkc_jv v = tkc_jv_view(ev, object.s->data + at, end - at);
        v.flag = object.flag;
        return v;
    }
    }
}

static bool is_indexed(tkc_jv v)
{
    return v.kind == TKC_JV_LIST || v.kind == TKC_JV_TUPLE || v.kind == TKC_JV_STR ||
           v.kind == TKC_JV_RANGE || v.kind == TKC_JV_BYTES;
}

tkc_jv tkc_j_item(tkc_jev *ev, tkc_jv object, tkc_jv key)
{
    int64_t i;
    bool found = false;
    if (tkc_jv_failed(object) || tkc_jv_failed(key))
        return tkc_jv_fail;
    if (object.kind == TKC_JV_UNDEFINED)
        return tkc_j_fail_undefined(ev, object);
    if (object.kind == TKC_JV_DICT && tkc_jv_hashable(ev, key)) {
        const tkc_jv *v = tkc_jdict_find(ev, object.d, key);
        if (v)
            return *v;
    }
    if (is_indexed(object) && tkc_jv_i64(key, &i)) {
        tkc_jv v = index_item(ev, object, i, &found);
        if (found)
            return v;
    }
    if (key.kind == TKC_JV_STR)
        return tkc_j_own_attr(ev, object, key.s, &found);
    return lacks(object, NULL);
}

/* ---- slices ---- */

static bool slice_bound(tkc_jev *ev, tkc_jv v, int64_t fallback, int64_t *out)
{
    *out = fallback;
    if (v.kind == TKC_JV_NONE || v.kind == TKC_JV_MISSING)
        return true;
    if (v.kind == TKC_JV_BIG) {
        *out = *v.big < 0 ? INT64_MIN / 4 : INT64_MAX / 4;
        return true;
    }
    if (!tkc_jv_i64(v, out)) {
        if (v.kind == TKC_JV_UNDEFINED)
            tkc_j_fail_undefined(ev, v);
        else
            tkc_j_fail(ev, "slice indices must be integers or None, not %s", tkc_jv_type(v));
        return false;
    }
    if (*out > INT64_MAX / 4)
        *out = INT64_MAX / 4;
    if (*out < INT64_MIN / 4)
        *out = INT64_MIN / 4;
    return true;
}

static int64_t clamp_bound(int64_t i, int64_t n, bool backward)
{
    if (i < 0)
        i += n;
    if (i < 0)
        return backward ? -1 : 0;
    if (i >= n)
        return backward ? n - 1 : n;
    return i;
}

/* Start, step and count of a slice over n items. */
static bool slice_range(tkc_jev *ev, int64_t n, const tkc_jv part[3], int64_t out[3])
{
    int64_t start, stop, step;
    if (!slice_bound(ev, part[2], 1, &step))
        return false;
    if (step == 0) {
        tkc_j_fail(ev, "slice step cannot be zero");
        return false;
    }
    bool back = step < 0;
    if (!slice_bound(ev, part[0], back ? n - 1 : 0, &start) ||
        !slice_bound(ev, part[1], back ? INT64_MIN / 4 : n, &stop))
        return false;
    start = clamp_bound(start, n, back);
    bool whole_back = back && (part[1].kind == TKC_JV_NONE || part[1].kind == TKC_JV_MISSING);
    stop = whole_back ? -1 : clamp_bound(stop, n, back);
    int64_t count = back ? (start - stop + -step - 1) / -step : (stop - start + step - 1) / step;
    out[0] = start;
    out[1] = step;
    out[2] = count < 0 ? 0 : count;
    out[3] = stop;
    return true;
}

static tkc_jv slice_string(tkc_jev *ev, tkc_jv object, const int64_t r[3])
{
    tkc_jstr *s = object.s;
    tkc_jv v;
    if (!tkc_j_charge(ev, s->len / 64))
        return tkc_jv_fail;
    if (r[2] == 0) {
        v = tkc_jv_view(ev, "", 0);
    } else if (r[1] == 1) {
        size_t begin = tkc_j_place(s, (size_t)r[0]), end = tkc_j_place(s, (size_t)(r[0] + r[2]));
        v = tkc_jv_view(ev, s->data + begin, end - begin);
    } else {
        bool ascii = tkc_jstr_chars(s) == s->len;
        size_t mark = ev->out.len, *places = NULL;
        if (!ascii) { /* one pass to find where each character begins */
            size_t n = tkc_jstr_chars(s), k = 0;
            places = tkc_j_alloc(ev, (n + 1) * sizeof *places);
            if (!places)
                return tkc_jv_fail;
            for (size_t i = 0; i < s->len; i++)
                if (((unsigned char)s->data[i] & 0xC0) != 0x80)
                    places[k++] = i;
            places[k] = s->len;
        }
        for (int64_t i = 0; i < r[2]; i++) {
            size_t c = (size_t)(r[0] + i * r[1]);
            size_t at = ascii ? c : places[c], end = ascii ? c + 1 : places[c + 1];
            if (!tkc_j_put(ev, s->data + at, end - at))
                return tkc_jv_fail;
        }
        v = tkc_jv_take(ev, mark);
    }
    v.flag = object.flag;
    return v;
}

/* A range again; r[3] is where it stops. */
static tkc_jv slice_of_range(tkc_jev *ev, const struct tkc_jrange *from, const int64_t r[4])
{
    struct tkc_jrange *to = tkc_j_alloc(ev, sizeof *to);
    if (!to)
        return tkc_jv_fail;
    *to = (struct tkc_jrange){ from->start + r[0] * from->step, from->start + r[3] * from->step,
                               from->step * r[1], r[2] };
    return (tkc_jv){ .kind = TKC_JV_RANGE, .range = to };
}

tkc_jv tkc_j_slice(tkc_jev *ev, tkc_jv object, tkc_jv start, tkc_jv stop, tkc_jv step)
{
    const tkc_jv part[3] = { start, stop, step };
    int64_t r[4];
    if (tkc_jv_failed(object))
        return object;
    if (object.kind == TKC_JV_UNDEFINED)
        return tkc_j_fail_undefined(ev, object);
    if (!is_indexed(object) || object.kind == TKC_JV_BYTES)
        return tkc_j_fail(ev, "'%s' object cannot be sliced", tkc_jv_type(object));
    if (!slice_range(ev, tkc_jv_length(ev, object), part, r))
        return tkc_jv_fail;
    if (object.kind == TKC_JV_STR)
        return slice_string(ev, object, r);
    if (object.kind == TKC_JV_RANGE)
        return slice_of_range(ev, object.range, r);
    uint8_t kind = object.kind == TKC_JV_TUPLE ? TKC_JV_TUPLE : TKC_JV_LIST;
    tkc_jv v = tkc_jv_list(ev, kind, (size_t)r[2]);
    bool found;
    for (int64_t i = 0; !tkc_jv_failed(v) && i < r[2]; i++)
        if (!tkc_jv_push(ev, v.l, index_item(ev, object, r[0] + i * r[1], &found)))
            return tkc_jv_fail;
    return v;
}

/* ---- attribute paths ---- */

tkc_jv tkc_j_path(tkc_jev *ev, tkc_jv attribute)
{
    tkc_jv path = tkc_jv_list(ev, TKC_JV_LIST, 0);
    if (tkc_jv_failed(path) || attribute.kind == TKC_JV_NONE || attribute.kind == TKC_JV_MISSING)
        return path;
    if (attribute.kind != TKC_JV_STR)
        return tkc_jv_push(ev, path.l, attribute) ? path : tkc_jv_fail;
    tinkc_str rest = tkc_jv_text(attribute), part;
    while (tkc_str_cut(&rest, '.', &part)) {
        int64_t i;
        bool digits = part.len > 0;
        for (size_t k = 0; k < part.len; k++)
            digits = digits && part.data[k] >= '0' && part.data[k] <= '9';
        tkc_jv step = digits && tkc_parse_i64(part, &i) ? tkc_jv_int(i)
                                                        : tkc_jv_view(ev, part.data, part.len);
        if (!tkc_jv_push(ev, path.l, step))
            return tkc_jv_fail;
    }
    return path;
}

tkc_jv tkc_j_follow(tkc_jev *ev, tkc_jv item, tkc_jv path, const tkc_jv *fallback)
{
    for (size_t i = 0; i < path.l->len && !tkc_jv_failed(item); i++) {
        item = tkc_j_item(ev, item, path.l->items[i]);
        if (fallback && item.kind == TKC_JV_UNDEFINED)
            item = *fallback;
    }
    return item;
}

/* ---- the loop variable ---- */

static void peek_next(tkc_jev *ev, tkc_jloop *loop)
{
    if (loop->after.kind == TKC_JV_MISSING && !tkc_j_next(ev, loop->iter, &loop->after))
        loop->after = tkc_jv_missing;
}

int64_t tkc_j_loop_length(tkc_jev *ev, tkc_jloop *loop)
{
    if (loop->length >= 0)
        return loop->length;
    if (loop->whole.kind != TKC_JV_MISSING) {
        loop->length = tkc_jv_length(ev, loop->whole);
        return loop->length;
    }
    /* unknown: read the rest now and continue with the resulting list */
    tkc_jv rest = tkc_jv_list(ev, TKC_JV_LIST, 0), item;
    while (!tkc_jv_failed(rest) && tkc_j_next(ev, loop->iter, &item))
        if (!tkc_jv_push(ev, rest.l, item))
            return -1;
    if (tkc_failed(ev->err))
        return -1;
    loop->iter = tkc_j_iter(ev, rest);
    loop->length = (int64_t)rest.l->len + loop->index0 + 1 + (loop->after.kind != TKC_JV_MISSING);
    return loop->length;
}

static tkc_jv loop_attr(tkc_jev *ev, tkc_jloop *loop, tinkc_str name, bool *found)
{
    tkc_jv v = tkc_jv_undefined();
    *found = true;
    if (tkc_str_is(name, "index0"))
        v = tkc_jv_int(loop->index0);
    else if (tkc_str_is(name, "index"))
        v = tkc_jv_int(loop->index0 + 1);
    else if (tkc_str_is(name, "first"))
        v = tkc_jv_bool(loop->index0 == 0);
    else if (tkc_str_is(name, "last")) {
        peek_next(ev, loop);
        v = tkc_jv_bool(loop->after.kind == TKC_JV_MISSING);
    } else if (tkc_str_is(name, "length"))
        v = tkc_jv_int(tkc_j_loop_length(ev, loop));
    else if (tkc_str_is(name, "revindex"))
        v = tkc_jv_int(tkc_j_loop_length(ev, loop) - loop->index0);
    else if (tkc_str_is(name, "revindex0"))
        v = tkc_jv_int(tkc_j_loop_length(ev, loop) - loop->index0 - 1);
    else if (tkc_str_is(name, "depth"))
        v = tkc_jv_int(loop->depth0 + 1);
    else if (tkc_str_is(name, "depth0"))
        v = tkc_jv_int(loop->depth0);
    else if (tkc_str_is(name, "previtem"))
        v = loop->index0 == 0 ? tkc_jv_undefined() : loop->before;
    else if (tkc_str_is(name, "nextitem")) {
        peek_next(ev, loop);
        v = loop->after.kind == TKC_JV_MISSING ? tkc_jv_undefined() : loop->after;
    } else
        *found = false;
    return tkc_failed(ev->err) ? tkc_jv_fail : v;
}
