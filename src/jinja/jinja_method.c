/* jinja_method.c - methods of lists, dicts and the rest, and the functions every template has.
 *
 * Methods that change their object are known and rejected: templates run in a sandbox. strftime_now
 * is the only access to the outside, and it only reads the clock. May touch: the run.
 */
#include "jinja/jinja_func.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

const tkc_jfunc *tkc_j_find_func(const tkc_jfunc *table, size_t n, tinkc_str name)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        int order = tkc_str_compare(name, tkc_str(table[mid].name));
        if (order == 0)
            return &table[mid];
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

/* ---- dict ---- */

static tkc_jv view(const tkc_jv *self, uint32_t which)
{
    return (tkc_jv){ .kind = TKC_JV_VIEW, .aux = which, .d = self->d };
}

static tkc_jv dict_items(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    return tkc_j_bind(ev, args, "items", NULL, 0, 0, NULL) ? view(self, TKC_JVIEW_ITEMS)
                                                           : tkc_jv_fail;
}
static tkc_jv dict_keys(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    return tkc_j_bind(ev, args, "keys", NULL, 0, 0, NULL) ? view(self, TKC_JVIEW_KEYS)
                                                          : tkc_jv_fail;
}
static tkc_jv dict_values(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    return tkc_j_bind(ev, args, "values", NULL, 0, 0, NULL) ? view(self, TKC_JVIEW_VALUES)
                                                            : tkc_jv_fail;
}

static tkc_jv dict_get(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    static const char *const params[] = { "key", "default" };
    tkc_jv a[2];
    if (args->n_kw)
        return tkc_j_fail(ev, "dict.get() takes no keyword arguments");
    if (!tkc_j_bind(ev, args, "get", params, 2, 1, a))
        return tkc_jv_fail;
    if (!tkc_jv_hashable(ev, a[0]))
        return tkc_j_fail(ev, "unhashable type: '%s'", tkc_jv_type(a[0]));
    const tkc_jv *v = tkc_jdict_find(ev, self->d, a[0]);
    return v ? *v : a[1].kind == TKC_JV_MISSING ? tkc_jv_none : a[1];
}

static tkc_jv dict_copy(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    (void)ev;
    (void)args;
    return *self; /* nothing can change it */
}

/* ---- list, tuple ---- */

static tkc_jv list_index(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    static const char *const params[] = { "value", "start", "stop" };
    tkc_jv a[3];
    int64_t n = (int64_t)self->l->len, start = 0, stop = n;
    if (!tkc_j_bind(ev, args, "index", params, 3, 1, a))
        return tkc_jv_fail;
    if ((a[1].kind != TKC_JV_MISSING && !tkc_jv_i64(a[1], &start)) ||
        (a[2].kind != TKC_JV_MISSING && !tkc_jv_i64(a[2], &stop)))
        return tkc_j_fail(ev, "index: expected an integer");
    start = start < 0 ? (start + n < 0 ? 0 : start + n) : start;
    stop = stop < 0 ? stop + n : stop > n ? n : stop;
    for (int64_t i = start; i < stop; i++)
        if (tkc_jv_equal(ev, self->l->items[i], a[0]))
            return tkc_jv_int(i);
    return tkc_j_fail(ev, "value is not in list");
}

static tkc_jv list_count(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    static const char *const params[] = { "value" };
    tkc_jv a;
    int64_t n = 0;
    if (!tkc_j_bind(ev, args, "count", params, 1, 1, &a))
        return tkc_jv_fail;
    for (size_t i = 0; i < self->l->len; i++)
        n += tkc_jv_equal(ev, self->l->items[i], a);
    return tkc_failed(ev->err) ? tkc_jv_fail : tkc_jv_int(n);
}

static tkc_jv list_copy(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    (void)args;
    return tkc_j_list(ev, *self, self->kind);
}

/* ---- loop, bytes, numbers ---- */

static tkc_jv loop_cycle(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    if (args->n_pos == 0)
        return tkc_j_fail(ev, "no items for cycling given");
    return args->pos[(uint64_t)self->loop->index0 % args->n_pos];
}

static tkc_jv loop_changed(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    tkc_jv now = tkc_jv_list(ev, TKC_JV_TUPLE, args->n_pos);
    for (size_t i = 0; !tkc_jv_failed(now) && i < args->n_pos; i++)
        if (!tkc_jv_push(ev, now.l, args->pos[i]))
            return tkc_jv_fail;
    if (tkc_jv_failed(now))
        return now;
    bool same =
        self->loop->changed.kind == TKC_JV_TUPLE && tkc_jv_equal(ev, self->loop->changed, now);
    self->loop->changed = now;
    return tkc_failed(ev->err) ? tkc_jv_fail : tkc_jv_bool(!same);
}

static tkc_jv bytes_decode(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    (void)ev;
    (void)args;
    return (tkc_jv){ .kind = TKC_JV_STR, .s = self->s };
}

static tkc_jv float_is_integer(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    (void)ev;
    (void)args;
    return tkc_jv_bool(self->kind != TKC_JV_FLOAT ||
                       (self->f - self->f == 0 && self->f == (double)(tkc_i128)self->f));
}

/* What Python has and the sandbox forbids. */
static bool is_forbidden(tkc_jv object, tinkc_str name)
{
    static const char *const list_names[] = { "append", "clear",  "extend",  "insert",
                                              "pop",    "remove", "reverse", "sort" };
    static const char *const dict_names[] = { "clear", "pop", "popitem", "setdefault", "update" };
    if (object.kind == TKC_JV_LIST)
        for (size_t i = 0; i < 8; i++)
            if (tkc_str_is(name, list_names[i]))
                return true;
    if (object.kind == TKC_JV_DICT)
        for (size_t i = 0; i < 5; i++)
            if (tkc_str_is(name, dict_names[i]))
                return true;
    return name.len > 1 && name.data[0] == '_' && name.data[1] == '_' && object.kind != TKC_JV_DICT;
}

const tkc_jfunc *tkc_j_find_method(tkc_jv object, tinkc_str name, bool *unsafe)
{
    static const tkc_jfunc dict_table[] = { { "copy", dict_copy },
                                            { "get", dict_get },
                                            { "items", dict_items },
                                            { "keys", dict_keys },
                                            { "values", dict_values } };
    static const tkc_jfunc list_table[] = { { "copy", list_copy },
                                            { "count", list_count },
                                            { "index", list_index } };
    static const tkc_jfunc loop_table[] = { { "changed", loop_changed }, { "cycle", loop_cycle } };
    static const tkc_jfunc bytes_table[] = { { "decode", bytes_decode } };
    static const tkc_jfunc number_table[] = { { "is_integer", float_is_integer } };
    *unsafe = is_forbidden(object, name);
    if (*unsafe)
        return NULL;
    switch (object.kind) {
    case TKC_JV_STR:
        return tkc_j_str_method(name);
    case TKC_JV_DICT:
        return tkc_j_find_func(dict_table, 5, name);
    case TKC_JV_LIST:
        return tkc_j_find_func(list_table, 3, name);
    case TKC_JV_TUPLE:
        return tkc_j_find_func(list_table + 1, 2, name);
    case TKC_JV_LOOP:
        return tkc_j_find_func(loop_table, 2, name);
    case TKC_JV_BYTES:
        return tkc_j_find_func(bytes_table, 1, name);
    case TKC_JV_FLOAT:
        return tkc_j_find_func(number_table, 1, name);
    default:
        return NULL;
    }
}

/* ---- functions of the environment ---- */

static tkc_jv global_range(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    enum { MAX_RANGE = 100000 };
    static const char *const params[] = { "start", "stop", "step" };
    tkc_jv a[3];
    int64_t v[3] = { 0, 0, 1 };
    (void)self;
    if (!tkc_j_bind(ev, args, "range", params, 3, 1, a))
        return tkc_jv_fail;
    for (int i = 0; i < 3; i++) {
        if (a[i].kind == TKC_JV_UNDEFINED)
            return tkc_j_fail_undefined(ev, a[i]);
        if (a[i].kind != TKC_JV_MISSING && !tkc_jv_i64(a[i], &v[i]))
            return tkc_j_fail(ev, "range: expected an integer, not %s", tkc_jv_type(a[i]));
    }
    if (a[1].kind == TKC_JV_MISSING) {
        v[1] = v[0];
        v[0] = 0;
    }
    if (v[2] == 0)
        return tkc_j_fail(ev, "range() arg 3 must not be zero");
    tkc_i128 span = v[2] > 0 ? (tkc_i128)v[1] - v[0] : (tkc_i128)v[0] - v[1];
    tkc_i128 step = v[2] > 0 ? v[2] : -(tkc_i128)v[2];
    tkc_i128 n = span <= 0 ? 0 : (span + step - 1) / step;
    if (n > MAX_RANGE)
        return tkc_j_fail(ev, "range too big: the sandbox blocks ranges larger than %d", MAX_RANGE);
    struct tkc_jrange *r = tkc_j_alloc(ev, sizeof *r);
    if (!r)
        return tkc_jv_fail;
    *r = (struct tkc_jrange){ v[0], v[1], v[2], (int64_t)n };
    return (tkc_jv){ .kind = TKC_JV_RANGE, .range = r };
}

/* Builds the result of dict() and namespace() from their arguments. */
static tkc_jv build_dict(tkc_jev *ev, const tkc_jargs *args, uint8_t kind, const char *what)
{
    tkc_jv out = tkc_jv_dict(ev, kind);
    if (tkc_jv_failed(out) || args->n_pos > 1)
        return args->n_pos > 1 ? tkc_j_fail(ev, "%s: takes at most one argument", what) : out;
    if (args->n_pos && args->pos[0].kind == TKC_JV_DICT) {
        const tkc_jdict *d = args->pos[0].d;
        for (size_t i = 0; i < d->len; i++)
            if (!tkc_jdict_set(ev, out.d, d->entries[i].key, d->entries[i].value))
                return tkc_jv_fail;
    } else if (args->n_pos) {
        tkc_jiter *it = tkc_j_iter(ev, args->pos[0]);
        tkc_jv pair;
        while (it && tkc_j_next(ev, it, &pair)) {
            pair = tkc_j_list(ev, pair, TKC_JV_LIST);
            if (tkc_jv_failed(pair) || pair.l->len != 2)
                return tkc_j_fail(ev, "%s: an item is not a pair", what);
            if (!tkc_jdict_set(ev, out.d, pair.l->items[0], pair.l->items[1]))
                return tkc_jv_fail;
        }
    }
    for (size_t i = 0; i < args->n_kw; i++)
        if (!tkc_jdict_set(ev, out.d, (tkc_jv){ .kind = TKC_JV_STR, .s = args->kw[i].name },
                           args->kw[i].value))
            return tkc_jv_fail;
    return tkc_failed(ev->err) ? tkc_jv_fail : out;
}

static tkc_jv global_dict(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    (void)self;
    return build_dict(ev, args, TKC_JV_DICT, "dict");
}

static tkc_jv global_namespace(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    (void)self;
    return build_dict(ev, args, TKC_JV_NAMESPACE, "namespace");
}

static tkc_jv global_raise(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    static const char *const params[] = { "message" };
    tkc_jv a;
    (void)self;
    if (!tkc_j_bind(ev, args, "raise_exception", params, 1, 1, &a))
        return tkc_jv_fail;
    a = tkc_jv_str(ev, a);
    if (tkc_jv_failed(a))
        return a;
    char *text = tkc_arena_str(ev->arena, tkc_jv_text(a), ev->err);
    if (text)
        tkc_fail_text(ev->err, TINKC_E_TEMPLATE, text, strlen(text));
    return tkc_jv_fail;
}

/* The time a template sees: the caller's, read as UTC, or the machine's local time. */
static bool broken_down(const tkc_jev *ev, struct tm *tm, int64_t *micros)
{
    int64_t us = ev->now_us == INT64_MIN ? tkc_wall_us(tkc_clock_real()) : ev->now_us;
    int64_t seconds = us / 1000000;
    *micros = us % 1000000;
    if (*micros < 0) {
        *micros += 1000000;
        seconds--;
    }
    time_t t = (time_t)seconds;
    return (ev->now_us == INT64_MIN ? localtime_r(&t, tm) : gmtime_r(&t, tm)) != NULL;
}

static bool is_leap(long year)
{
    return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
}

/* ISO 8601: weeks begin on Monday, the first one has the year's first Thursday. */
static int format_iso_week(char *out, size_t cap, char c, const struct tm *tm)
{
    long year = tm->tm_year + 1900L;
    int thursday = tm->tm_yday - (tm->tm_wday + 6) % 7 + 3; /* of the same week */
    if (thursday < 0) {
        year--;
        thursday += 365 + is_leap(year);
    } else if (thursday >= 365 + is_leap(year)) {
        thursday -= 365 + is_leap(year);
        year++;
    }
    if (c == 'V')
        return snprintf(out, cap, "%02d", thursday / 7 + 1);
    return c == 'G' ? snprintf(out, cap, "%ld", year) : snprintf(out, cap, "%02ld", year % 100);
}

/* The conversions that combine others; NULL = not one of them. */
static const char *compound_time(char c)
{
    static const struct {
        char c;
        const char *format;
    } table[] = {
        { 'c', "%a %b %e %H:%M:%S %Y" },
        { 'D', "%m/%d/%y" },
        { 'x', "%m/%d/%y" },
        { 'F', "%Y-%m-%d" },
        { 'h', "%b" },
        { 'r', "%I:%M:%S %p" },
        { 'R', "%H:%M" },
        { 'T', "%H:%M:%S" },
        { 'X', "%H:%M:%S" },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].c == c)
            return table[i].format;
    return NULL;
}

/* The conversions that are one number. -1 = not one of them. */
static int format_time_number(char *out, size_t cap, char c, const struct tm *tm, int64_t micros)
{
    const int day = tm->tm_wday, hour = tm->tm_hour, hour12 = hour % 12 ? hour % 12 : 12;
    const long year = tm->tm_year + 1900L;
    const struct {
        char c, pad;
        int width;
        long value;
    } table[] = {
        { 'd', '0', 2, tm->tm_mday },
        { 'e', ' ', 2, tm->tm_mday },
        { 'f', '0', 6, (long)micros },
        { 'H', '0', 2, hour },
        { 'k', ' ', 2, hour },
        { 'I', '0', 2, hour12 },
        { 'l', ' ', 2, hour12 },
        { 'j', '0', 3, tm->tm_yday + 1 },
        { 'm', '0', 2, tm->tm_mon + 1 },
        { 'M', '0', 2, tm->tm_min },
        { 'S', '0', 2, tm->tm_sec },
        { 'u', '0', 1, day ? day : 7 },
        { 'w', '0', 1, day },
        { 'U', '0', 2, (tm->tm_yday + 7 - day) / 7 },
        { 'W', '0', 2, (tm->tm_yday + 7 - (day + 6) % 7) / 7 },
        { 'y', '0', 2, year % 100 },
        { 'Y', '0', 1, year },
        { 'C', '0', 2, year / 100 },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].c == c)
            return table[i].pad == '0' ? snprintf(out, cap, "%0*ld", table[i].width, table[i].value)
                                       : snprintf(out, cap, "%*ld", table[i].width, table[i].value);
    return -1;
}

/* One conversion that does not combine others; names of days and months are English in every
 * locale. -1 = no such conversion. */
static int format_time_part(char *out, size_t cap, char c, const struct tm *tm, int64_t micros,
                            bool utc)
{
    static const char *const days[] = { "Sunday",   "Monday", "Tuesday", "Wednesday",
                                        "Thursday", "Friday", "Saturday" };
    static const char *const months[] = { "January",   "February", "March",    "April",
                                          "May",       "June",     "July",     "August",
                                          "September", "October",  "November", "December" };
    bool morning = tm->tm_hour < 12;
    struct tm copy = *tm; /* mktime and timegm modify it */
    switch (c) {
    case 'a':
        return snprintf(out, cap, "%.3s", days[tm->tm_wday]);
    case 'A':
        return snprintf(out, cap, "%s", days[tm->tm_wday]);
    case 'b':
        return snprintf(out, cap, "%.3s", months[tm->tm_mon]);
    case 'B':
        return snprintf(out, cap, "%s", months[tm->tm_mon]);
    case 'p':
        return snprintf(out, cap, "%s", morning ? "AM" : "PM");
    case 'P':
        return snprintf(out, cap, "%s", morning ? "am" : "pm");
    case 'G':
    case 'g':
    case 'V':
        return format_iso_week(out, cap, c, tm);
    case 's':
        return snprintf(out, cap, "%lld", (long long)(utc ? timegm(&copy) : mktime(&copy)));
    case 'z':
    case 'Z':
        return 0; /* Python's local time without a zone */
    case 'n':
        return snprintf(out, cap, "\n");
    case 't':
        return snprintf(out, cap, "\t");
    case '%':
        return snprintf(out, cap, "%%");
    default:
        return format_time_number(out, cap, c, tm, micros);
    }
}

/* Any conversion. */
static int format_time(char *out, size_t cap, char c, const struct tm *tm, int64_t micros, bool utc)
{
    const char *format = compound_time(c);
    if (!format)
        return format_time_part(out, cap, c, tm, micros, utc);
    size_t n = 0;
    for (; *format && n < cap; format++) {
        int more = *format == '%' ? format_time_part(out + n, cap - n, *++format, tm, micros, utc)
                                  : snprintf(out + n, cap - n, "%c", *format);
        if (more < 0)
            return -1;
        n += (size_t)more;
    }
    return (int)n;
}

static tkc_jv global_strftime(tkc_jev *ev, const tkc_jv *self, const tkc_jargs *args)
{
    static const char *const params[] = { "format" };
    tkc_jv a;
    struct tm tm;
    int64_t micros;
    (void)self;
    if (!tkc_j_bind(ev, args, "strftime_now", params, 1, 1, &a))
        return tkc_jv_fail;
    if (a.kind != TKC_JV_STR)
        return tkc_j_fail(ev, "strftime_now: expected a string, not %s", tkc_jv_type(a));
    if (!broken_down(ev, &tm, &micros))
        return tkc_j_fail(ev, "strftime_now: a time that cannot be written");
    tinkc_str f = tkc_jv_text(a);
    size_t mark = ev->out.len;
    if (!tkc_j_charge(ev, f.len))
        return tkc_jv_fail;
    for (size_t i = 0; i < f.len; i++) {
        char part[64];
        bool flag = i + 2 < f.len && f.data[i] == '%' && f.data[i + 1] == '-';
        if (f.data[i] != '%' || i + 1 + flag >= f.len) {
            if (!tkc_j_put(ev, f.data + i, 1))
                return tkc_jv_fail;
            continue;
        }
        i += 1u + flag;
        int n = format_time(part, sizeof part, f.data[i], &tm, micros, ev->now_us != INT64_MIN);
        if (n < 0 || n >= (int)sizeof part)
            return tkc_j_fail(ev, "strftime_now: %%%c is not supported", f.data[i]);
        int skip = flag && n > 1 && (part[0] == '0' || part[0] == ' '); /* %-d: no padding */
        if (!tkc_j_put(ev, part + skip, (size_t)(n - skip)))
            return tkc_jv_fail;
    }
    return tkc_jv_take(ev, mark);
}

TKC_J_LEFT_OUT(global, "function", cycler)
TKC_J_LEFT_OUT(global, "function", joiner)
TKC_J_LEFT_OUT(global, "function", lipsum)

const tkc_jfunc *tkc_j_find_global(tinkc_str name)
{
    static const tkc_jfunc table[] = {
        /* sorted */
        { "cycler", global_cycler },       { "dict", global_dict },
        { "joiner", global_joiner },       { "lipsum", global_lipsum },
        { "namespace", global_namespace }, { "raise_exception", global_raise },
        { "range", global_range },         { "strftime_now", global_strftime },

    };
    return tkc_j_find_func(table, sizeof table / sizeof *table, name);
}
