/* message_codec.c - the one encoder and the one decoder of JSON messages. May touch: what it was given.
 * Must not depend on any particular message. */
#include "wire/message_codec.h"

#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/str.h"
#include "codec/utf8.h"

/* The decoder stores "array of T" and "array of U" through this; their layouts are the same. */
typedef struct raw_array {
    const void *data;
    size_t len;
} raw_array;

void tkc_message_init(const tkc_message *m, void *msg)
{
    assert(m->size > 0);
    if (m->defaults)
        memcpy(msg, m->defaults, m->size);
    else
        memset(msg, 0, m->size);
}

double tkc_numbers_get(const tkc_numbers *n, const char *name, double if_absent)
{
    for (size_t i = n->len; i-- > 0;)
        if (strcmp(n->names[i], name) == 0)
            return n->values[i];
    return if_absent;
}

/* ---- encoding ---- */

void tkc_write_text(tkc_jsonw *w, const char *text)
{
    if (text && !tkc_utf8_valid(text, strlen(text)))
        tkc_fail(w->err, TINKC_E_ARGUMENT, "text to be sent is not UTF-8");
    else
        tkc_jsonw_cstr(w, text);
}

static const char *name_text(const tkc_name *name, const tkc_name *table)
{
    assert(table);
    if (name->text)
        return name->text;
    for (; table->text; table++)
        if (table->value == name->value)
            return table->text;
    return NULL;
}

static bool time_given(const tkc_time *t)
{
    return t->text || (t->us != 0 && t->us != TINKC_NO_TIME);
}

/* TKC_ABSENT, TKC_NULL or TKC_GIVEN. */
static uint8_t optional_state(uint8_t kind, const void *member)
{
    switch (kind) {
    case TKC_OPT_I64:
        return ((const tkc_opt_i64 *)member)->is;
    case TKC_OPT_BOOL:
        return ((const tkc_opt_bool *)member)->is;
    case TKC_OPT_F32:
        return ((const tkc_opt_f32 *)member)->is;
    case TKC_OPT_F64:
        return ((const tkc_opt_f64 *)member)->is;
    default:
        assert(kind == TKC_OPT_SEED);
        return ((const tkc_opt_seed *)member)->is;
    }
}

/* Whether there is something to write. Members that cannot be absent are always written. */
static bool is_given(const tkc_field *f, const void *member)
{
    const void *pointer;
    raw_array items;
    switch (f->kind) {
    case TKC_STR:
    case TKC_STRS:
    case TKC_OBJECT_PTR:
        memcpy(&pointer, member, sizeof pointer);
        return pointer != NULL;
    case TKC_OPT_I64:
    case TKC_OPT_BOOL:
    case TKC_OPT_F32:
    case TKC_OPT_F64:
    case TKC_OPT_SEED:
        return optional_state(f->kind, member) != TKC_ABSENT;
    case TKC_NAME:
        return name_text(member, f->type) != NULL;
    case TKC_TIME:
        return time_given(member);
    case TKC_METADATA:
        return ((const tkc_metadata *)member)->pairs || ((const tkc_metadata *)member)->json.data;
    case TKC_NUMBERS:
        return ((const tkc_numbers *)member)->names != NULL;
    case TKC_RAW:
        return ((const tinkc_str *)member)->data != NULL;
    case TKC_CUSTOM:
        return ((const tkc_custom *)f->type)->given(member);
    case TKC_OBJECTS: /* where null is allowed, an empty array is left out */
        memcpy(&items, member, sizeof items);
        return items.len || !(f->flags & TKC_NULLABLE);
    case TKC_SELF:
        return false;
    default:
        return true;
    }
}

static void write_strs(tkc_jsonw *w, const char *const *list)
{
    tkc_jsonw_array(w);
    for (; list && *list; list++)
        tkc_write_text(w, *list);
    tkc_jsonw_end(w);
}

static void write_metadata(tkc_jsonw *w, const tkc_metadata *m)
{
    if (m->json.data) {
        tkc_jsonw_raw(w, m->json);
        return;
    }
    tkc_jsonw_object(w);
    for (const char *const *p = m->pairs; p && p[0] && p[1]; p += 2) {
        if (!tkc_utf8_valid(p[0], strlen(p[0])))
            tkc_fail(w->err, TINKC_E_ARGUMENT, "text to be sent is not UTF-8");
        tkc_jsonw_key(w, p[0]);
        tkc_write_text(w, p[1]);
    }
    tkc_jsonw_end(w);
}

void tkc_write_numbers(tkc_jsonw *w, const tkc_numbers *n, const char *text_key, const char *text)
{
    tkc_jsonw_object(w);
    for (size_t i = 0; i < n->len; i++) {
        if (!tkc_utf8_valid(n->names[i], strlen(n->names[i])))
            tkc_fail(w->err, TINKC_E_ARGUMENT, "text to be sent is not UTF-8");
        tkc_jsonw_key(w, n->names[i]);
        tkc_jsonw_double(w, n->values[i]);
    }
    if (text) {
        tkc_jsonw_key(w, text_key);
        tkc_write_text(w, text);
    }
    tkc_jsonw_end(w);
}

static void write_time(tkc_jsonw *w, const tkc_time *t)
{
    char text[TKC_TIME_TEXT];
    if (!t->text)
        tkc_format_time(t->us, t->us % 1000000 != 0, text);
    tkc_write_text(w, t->text ? t->text : text);
}

static void write_objects(tkc_jsonw *w, const tkc_message *m, const raw_array *items)
{
    assert(items->data || !items->len);
    tkc_jsonw_array(w);
    for (size_t i = 0; i < items->len; i++)
        tkc_message_write(m, (const char *)items->data + i * m->size, w);
    tkc_jsonw_end(w);
}

static void write_map(tkc_jsonw *w, const tkc_message *m, const raw_array *items)
{
    assert(m->size >= sizeof(const char *)); /* an item begins with its key */
    tkc_jsonw_object(w);
    for (size_t i = 0; i < items->len; i++) {
        const char *item = (const char *)items->data + i * m->size, *key;
        memcpy(&key, item, sizeof key);
        if (!key || !tkc_utf8_valid(key, strlen(key)))
            tkc_fail(w->err, TINKC_E_ARGUMENT, "a key to be sent is missing or not UTF-8");
        tkc_jsonw_key(w, key ? key : "");
        tkc_message_write(m, item, w);
    }
    tkc_jsonw_end(w);
}

static void write_seed(tkc_jsonw *w, const tkc_opt_seed *seed)
{
    if (seed->negative)
        tkc_jsonw_i64(w, (int64_t)seed->value);
    else
        tkc_jsonw_u64(w, seed->value);
}

static void write_optional(tkc_jsonw *w, const tkc_field *f, const void *member)
{
    if (optional_state(f->kind, member) != TKC_GIVEN) {
        tkc_jsonw_null(w);
        return;
    }
    switch (f->kind) {
    case TKC_OPT_I64:
        tkc_jsonw_i64(w, ((const tkc_opt_i64 *)member)->value);
        break;
    case TKC_OPT_BOOL:
        tkc_jsonw_bool(w, ((const tkc_opt_bool *)member)->value);
        break;
    case TKC_OPT_F32:
        tkc_jsonw_float(w, ((const tkc_opt_f32 *)member)->value);
        break;
    case TKC_OPT_F64:
        tkc_jsonw_double(w, ((const tkc_opt_f64 *)member)->value);
        break;
    default:
        write_seed(w, member);
        break;
    }
}

/* Kinds that point elsewhere or nest. */
static void write_compound(tkc_jsonw *w, const tkc_field *f, const void *member)
{
    const void *pointer;
    raw_array items;
    switch (f->kind) {
    case TKC_METADATA:
        write_metadata(w, member);
        break;
    case TKC_NUMBERS:
        tkc_write_numbers(w, member, NULL, NULL);
        break;
    case TKC_RAW:
        tkc_jsonw_raw(w, *(const tinkc_str *)member);
        break;
    case TKC_OBJECT:
        tkc_message_write(f->type, member, w);
        break;
    case TKC_OBJECT_PTR:
        memcpy(&pointer, member, sizeof pointer);
        tkc_message_write(f->type, pointer, w);
        break;
    case TKC_OBJECTS:
        memcpy(&items, member, sizeof items);
        write_objects(w, f->type, &items);
        break;
    case TKC_MAP:
        memcpy(&items, member, sizeof items);
        write_map(w, f->type, &items);
        break;
    case TKC_CUSTOM:
        ((const tkc_custom *)f->type)->write(w, member);
        break;
    default:
        write_optional(w, f, member);
        break;
    }
}

static void write_value(tkc_jsonw *w, const tkc_field *f, const void *member)
{
    switch (f->kind) {
    case TKC_STR:
        tkc_write_text(w, *(const char *const *)member);
        break;
    case TKC_CONST:
        tkc_write_text(w, f->type);
        break;
    case TKC_BOOL:
        tkc_jsonw_bool(w, *(const bool *)member);
        break;
    case TKC_I64:
        tkc_jsonw_i64(w, *(const int64_t *)member);
        break;
    case TKC_F32:
        tkc_jsonw_float(w, *(const float *)member);
        break;
    case TKC_F64:
        tkc_jsonw_double(w, *(const double *)member);
        break;
    case TKC_NAME:
        tkc_write_text(w, name_text(member, f->type));
        break;
    case TKC_TIME:
        write_time(w, member);
        break;
    case TKC_STRS:
        write_strs(w, *(const char *const *const *)member);
        break;
    default:
        write_compound(w, f, member);
        break;
    }
}

void tkc_message_write(const tkc_message *m, const void *msg, tkc_jsonw *w)
{
    assert(msg);
    tkc_jsonw_object(w);
    for (size_t i = 0; i < m->n_fields && !tkc_failed(w->err); i++) {
        const tkc_field *f = &m->fields[i];
        const void *member = (const char *)msg + f->offset;
        assert(f->offset < m->size);
        bool empty_list = f->kind == TKC_STRS && (f->flags & TKC_MUST);
        /* What is absent is left out. null is sent only where a message says so (an expiry that is
         * to end); elsewhere a service may refuse it. */
        if (is_given(f, member) || empty_list) {
            tkc_jsonw_key(w, f->name);
            write_value(w, f, member);
        } else if (f->flags & (TKC_MUST | TKC_SENT)) {
            tkc_fail(w->err, TINKC_E_ARGUMENT, "%s: %s is missing", m->name, f->name);
        }
    }
    tkc_jsonw_end(w);
}

bool tkc_message_encode(const tkc_message *m, const void *msg, tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw w;
    tkc_jsonw_open(&w, out, err);
    tkc_message_write(m, msg, &w);
    return !tkc_failed(err);
}

/* ---- decoding ---- */

const char *tkc_read_cstr(tkc_json *j)
{
    tinkc_str s = tkc_json_string(j);
    if (tkc_failed(j->err))
        return NULL;
    if (s.len && memchr(s.data, '\0', s.len)) {
        tkc_json_fail(j, "U+0000 in a string");
        return NULL;
    }
    return tkc_arena_str(j->arena, s, j->err);
}

void tkc_read_unknown(tkc_json *j, tinkc_str key)
{
    if (!j->unknown || *j->unknown || tkc_str_is(key, "type"))
        (void)tkc_json_skip(j);
    else if (tkc_json_is_set(j))
        *j->unknown = tkc_arena_str(j->arena, key, j->err);
}

static tinkc_str keep_span(tkc_json *j, tinkc_str s)
{
    char *copy = tkc_failed(j->err) ? NULL : tkc_arena_str(j->arena, s, j->err);
    return (tinkc_str){ copy, copy ? s.len : 0 };
}

void *tkc_read_grow(tkc_json *j, void *items, size_t len, size_t *cap, size_t size)
{
    if (len < *cap)
        return items;
    assert(len <= *cap); /* the source of the copy below is valid */
    size_t wanted = *cap ? *cap * 2 : 4;
    void *more = tkc_arena_array(j->arena, wanted, size, j->err);
    if (!more)
        return NULL;
    if (len)
        memcpy(more, items, len * size);
    *cap = wanted;
    return more;
}

const char *const *tkc_read_strs(tkc_json *j)
{
    size_t n = 0, cap = 0;
    const char **list = tkc_read_grow(j, NULL, 0, &cap, sizeof *list);
    if (!tkc_json_array(j))
        return NULL;
    while (list && tkc_json_item(j)) {
        const char **more =
            tkc_read_grow(j, list, n + 1, &cap, sizeof *list); /* room for the NULL */
        if (!more)
            return NULL;
        list = more;
        list[n++] = tkc_read_cstr(j);
    }
    return tkc_failed(j->err) ? NULL : list;
}

/* Values of free-form maps: strings as they are, anything else as its JSON text. */
static const char *read_loose(tkc_json *j)
{
    if (tkc_json_peek(j) == TKC_JSON_STRING)
        return tkc_read_cstr(j);
    return keep_span(j, tkc_json_skip(j)).data;
}

static const char *read_key(tkc_json *j, tinkc_str key)
{
    if (key.len && memchr(key.data, '\0', key.len)) {
        tkc_json_fail(j, "U+0000 in a key");
        return NULL;
    }
    return tkc_arena_str(j->arena, key, j->err);
}

static void read_metadata(tkc_json *j, tkc_metadata *out)
{
    size_t n = 0, cap = 0;
    const char **pairs = tkc_read_grow(j, NULL, 0, &cap, sizeof *pairs);
    tinkc_str key;
    tkc_json_peek(j);
    const char *from = j->at;
    if (!tkc_json_object(j))
        return;
    while (pairs && tkc_json_key(j, &key)) {
        const char **more = tkc_read_grow(j, pairs, n + 2, &cap, sizeof *pairs); /* and a NULL */
        if (!more)
            return;
        pairs = more;
        pairs[n++] = read_key(j, key);
        pairs[n++] = read_loose(j);
    }
    *out = (tkc_metadata){ pairs, keep_span(j, tkc_strn(from, (size_t)(j->at - from))) };
}

void tkc_read_numbers(tkc_json *j, const char *text_key, tkc_numbers *out, const char **text)
{
    size_t n = 0, cap_names = 0, cap_values = 0;
    const char **names = tkc_read_grow(j, NULL, 0, &cap_names, sizeof *names);
    double *values = tkc_read_grow(j, NULL, 0, &cap_values, sizeof *values);
    tinkc_str key;
    if (!tkc_json_object(j))
        return;
    while (names && values && tkc_json_key(j, &key)) {
        if (text_key && tkc_str_is(key, text_key)) {
            if (tkc_json_peek(j) != TKC_JSON_STRING)
                tkc_fail(j->err, j->code, "%s: a text is needed", text_key);
            *text = tkc_read_cstr(j);
            continue;
        }
        names = tkc_read_grow(j, names, n, &cap_names, sizeof *names);
        values = tkc_read_grow(j, values, n, &cap_values, sizeof *values);
        if (!names || !values)
            return;
        names[n] = read_key(j, key);
        if (names[n] && tkc_json_peek(j) == TKC_JSON_STRING)
            tkc_fail(j->err, j->code, "%.60s: a number is needed, not a text", names[n]);
        values[n++] = tkc_json_double(j);
    }
    *out = (tkc_numbers){ names, values, n };
}

static void read_name(tkc_json *j, const tkc_field *f, tkc_name *out)
{
    const char *text = tkc_read_cstr(j);
    if (!text)
        return;
    *out = (tkc_name){ text, TKC_UNKNOWN };
    for (const tkc_name *known = f->type; known->text; known++) {
        bool same = f->flags & TKC_NOCASE ? tkc_str_is_nocase(tkc_str(text), known->text)
                                          : strcmp(text, known->text) == 0;
        if (same)
            out->value = known->value;
    }
}

static void read_const(tkc_json *j, const tkc_field *f)
{
    tinkc_str text = tkc_json_string(j);
    if (!tkc_failed(j->err) && !tkc_str_is(text, f->type))
        tkc_json_fail(j, "not the text that belongs here");
}

/* RFC 3339 text, or a number of seconds (milliseconds if it is very large). */
static void read_time(tkc_json *j, tkc_time *out)
{
    int kind = tkc_json_peek(j);
    if (kind == TKC_JSON_STRING) {
        out->text = tkc_read_cstr(j);
        if (out->text && !tkc_parse_time(out->text, strlen(out->text), &out->us))
            out->us = TINKC_NO_TIME;
        return;
    }
    const char *from = j->at;
    double seconds = tkc_json_double(j);
    out->text = keep_span(j, tkc_strn(from, (size_t)(j->at - from))).data;
    if (seconds > 2e10 || seconds < -2e10)
        seconds /= 1000;
    bool fits = seconds > -9e12 && seconds < 9e12;
    out->us = fits ? (int64_t)(seconds * 1e6) : TINKC_NO_TIME;
}

/* An integer, or a string that holds one. */
static int64_t read_i64(tkc_json *j)
{
    int64_t value = 0;
    if (tkc_json_peek(j) != TKC_JSON_STRING)
        return tkc_json_i64(j);
    if (!tkc_parse_i64(tkc_json_string(j), &value))
        tkc_json_fail(j, "an integer is needed");
    return value;
}

static void read_seed(tkc_json *j, tkc_opt_seed *out)
{
    tkc_json_peek(j);
    const char *from = j->at;
    tkc_json_double(j);
    tinkc_str span = tkc_strn(from, (size_t)(j->at - from));
    /* Above 2^63 it fits only an unsigned number, below 0 only a signed one. */
    uint64_t large;
    if (!tkc_failed(j->err) && tkc_parse_u64(span, &large)) {
        *out = (tkc_opt_seed){ large, false, TKC_GIVEN };
        return;
    }
    j->at = from;
    int64_t value = tkc_json_i64(j);
    *out = (tkc_opt_seed){ (uint64_t)value, value < 0, TKC_GIVEN };
}

static void read_objects(tkc_json *j, const tkc_message *m, raw_array *out)
{
    size_t n = 0, cap = 0;
    char *items = tkc_read_grow(j, NULL, 0, &cap, m->size);
    if (!tkc_json_array(j))
        return;
    while (items && tkc_json_item(j)) {
        items = tkc_read_grow(j, items, n, &cap, m->size);
        if (items)
            tkc_message_read(m, j, items + n++ * m->size);
    }
    *out = (raw_array){ items, n };
}

static void read_map(tkc_json *j, const tkc_message *m, raw_array *out)
{
    size_t n = 0, cap = 0;
    char *items = tkc_read_grow(j, NULL, 0, &cap, m->size);
    tinkc_str key;
    if (!tkc_json_object(j))
        return;
    while (items && tkc_json_key(j, &key)) {
        const char *name = read_key(j, key);
        items = tkc_read_grow(j, items, n, &cap, m->size);
        if (!items)
            return;
        tkc_message_read(m, j, items + n * m->size);
        memcpy(items + n++ * m->size, &name, sizeof name);
    }
    *out = (raw_array){ items, n };
}

static void read_pointer(tkc_json *j, const tkc_message *m, void *member)
{
    void *made = tkc_arena_array(j->arena, 1, m->size, j->err);
    if (!made)
        return;
    tkc_message_read(m, j, made);
    memcpy(member, &made, sizeof made);
}

static void read_compound(tkc_json *j, const tkc_field *f, void *member)
{
    raw_array items = { NULL, 0 };
    switch (f->kind) {
    case TKC_METADATA:
        read_metadata(j, member);
        break;
    case TKC_NUMBERS:
        tkc_read_numbers(j, NULL, member, NULL);
        break;
    case TKC_RAW:
        *(tinkc_str *)member = keep_span(j, tkc_json_skip(j));
        break;
    case TKC_OBJECT:
        tkc_message_read(f->type, j, member);
        break;
    case TKC_OBJECT_PTR:
        read_pointer(j, f->type, member);
        break;
    case TKC_OBJECTS:
        read_objects(j, f->type, &items);
        memcpy(member, &items, sizeof items);
        break;
    case TKC_MAP:
        read_map(j, f->type, &items);
        memcpy(member, &items, sizeof items);
        break;
    default:
        assert(f->kind == TKC_CUSTOM);
        ((const tkc_custom *)f->type)->read(j, member);
        break;
    }
}

static void read_scalar(tkc_json *j, const tkc_field *f, void *member)
{
    switch (f->kind) {
    case TKC_BOOL:
        *(bool *)member = tkc_json_bool(j);
        break;
    case TKC_I64:
        *(int64_t *)member = read_i64(j);
        break;
    case TKC_F32:
        *(float *)member = (float)tkc_json_double(j);
        break;
    case TKC_F64:
        *(double *)member = tkc_json_double(j);
        break;
    case TKC_OPT_I64:
        *(tkc_opt_i64 *)member = (tkc_opt_i64){ read_i64(j), TKC_GIVEN };
        break;
    case TKC_OPT_BOOL:
        *(tkc_opt_bool *)member = (tkc_opt_bool){ tkc_json_bool(j), TKC_GIVEN };
        break;
    case TKC_OPT_F32:
        *(tkc_opt_f32 *)member = (tkc_opt_f32){ (float)tkc_json_double(j), TKC_GIVEN };
        break;
    case TKC_OPT_F64:
        *(tkc_opt_f64 *)member = (tkc_opt_f64){ tkc_json_double(j), TKC_GIVEN };
        break;
    case TKC_OPT_SEED:
        read_seed(j, member);
        break;
    default:
        read_compound(j, f, member);
        break;
    }
}

static void read_value(tkc_json *j, const tkc_field *f, void *member)
{
    switch (f->kind) {
    case TKC_STR:
        *(const char **)member = tkc_read_cstr(j);
        break;
    case TKC_CONST:
        read_const(j, f);
        break;
    case TKC_NAME:
        read_name(j, f, member);
        break;
    case TKC_TIME:
        read_time(j, member);
        break;
    case TKC_STRS:
        *(const char *const **)member = tkc_read_strs(j);
        break;
    default:
        read_scalar(j, f, member);
        break;
    }
}

static void read_null(const tkc_field *f, void *member)
{
    switch (f->kind) {
    case TKC_OPT_I64:
        ((tkc_opt_i64 *)member)->is = TKC_NULL;
        break;
    case TKC_OPT_BOOL:
        ((tkc_opt_bool *)member)->is = TKC_NULL;
        break;
    case TKC_OPT_F32:
        ((tkc_opt_f32 *)member)->is = TKC_NULL;
        break;
    case TKC_OPT_F64:
        ((tkc_opt_f64 *)member)->is = TKC_NULL;
        break;
    case TKC_OPT_SEED:
        ((tkc_opt_seed *)member)->is = TKC_NULL;
        break;
    default:
        break;
    }
}

/* Prefixes the message of a new error with "field: ". */
static void name_field(tinkc_error *err, const char *field, int32_t code)
{
    char text[sizeof err->message];
    size_t n = strlen(field);
    if (err->code != code || n + 2 >= sizeof text / 2)
        return;
    memcpy(text, err->message, sizeof text);
    const char *dot = text[0] == 'J' ? ": " : "."; /* "JSON: ..." is the innermost */
    size_t gap = strlen(dot), left = sizeof text - n - gap - 1, len = strlen(text);
    if (len > left)
        len = tkc_utf8_prefix(text, left);
    memcpy(err->message, field, n);
    memcpy(err->message + n, dot, gap);
    memcpy(err->message + n + gap, text, len);
    assert(n + gap + len < sizeof err->message);
    err->message[n + gap + len] = '\0';
}

static const tkc_field *find_field(const tkc_message *m, tinkc_str key)
{
    for (size_t i = 0; i < m->n_fields; i++)
        if (tkc_str_is(key, m->fields[i].name) && m->fields[i].kind != TKC_SELF)
            return &m->fields[i];
    return NULL;
}

static void read_member(tkc_json *j, const tkc_field *f, void *msg)
{
    void *member = (char *)msg + f->offset;
    assert(f->kind != TKC_SELF && f->kind >= TKC_STR && f->kind <= TKC_CUSTOM);
    if ((f->flags & TKC_NULLABLE) && tkc_json_null(j))
        read_null(f, member);
    else
        read_value(j, f, member);
    if (tkc_failed(j->err))
        name_field(j->err, f->name, j->code);
}

static void check_required(tkc_json *j, const tkc_message *m, uint64_t seen)
{
    for (size_t i = 0; i < m->n_fields && !tkc_failed(j->err); i++)
        if ((m->fields[i].flags & TKC_MUST) && !(seen >> i & 1)) {
            tkc_json_fail(j, "is missing");
            name_field(j->err, m->fields[i].name, j->code);
        }
}

static void keep_self(tkc_json *j, const tkc_message *m, void *msg, const char *from)
{
    for (size_t i = 0; i < m->n_fields; i++)
        if (m->fields[i].kind == TKC_SELF) {
            tinkc_str span = keep_span(j, tkc_strn(from, (size_t)(j->at - from)));
            memcpy((char *)msg + m->fields[i].offset, &span, sizeof span);
        }
}

void tkc_message_read(const tkc_message *m, tkc_json *j, void *msg)
{
    uint64_t seen = 0;
    assert(m->n_fields <= 64); /* one bit each */
    tinkc_str key;
    tkc_message_init(m, msg);
    tkc_json_peek(j);
    const char *from = j->at;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        const tkc_field *f = find_field(m, key);
        if (f) {
            seen |= (uint64_t)1 << (f - m->fields);
            read_member(j, f, msg);
        } else {
            tkc_read_unknown(j, key);
        }
    }
    check_required(j, m, seen);
    keep_self(j, m, msg, from);
}

bool tkc_message_decode(const tkc_message *m, tinkc_str json, int32_t code, tkc_arena *arena,
                        void *msg, tinkc_error *err)
{
    return tkc_message_decode_noting(m, json, code, arena, msg, NULL, err);
}

bool tkc_message_decode_noting(const tkc_message *m, tinkc_str json, int32_t code, tkc_arena *arena,
                               void *msg, const char **unknown, tinkc_error *err)
{
    tkc_json j;
    tkc_json_open(&j, json, arena, err);
    j.code = code;
    j.unknown = unknown;
    if (unknown)
        *unknown = NULL;
    tkc_message_read(m, &j, msg);
    return tkc_json_close(&j);
}
