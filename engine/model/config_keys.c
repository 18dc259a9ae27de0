/* config_keys.c - finds members of a JSON object by name. May touch: the text and the arena it was given. */
#include "model/config_keys.h"

#include <math.h>
#include <string.h>
#include "base/json_read.h"
#include "base/str.h"

/* ---- reading ---- */

/* Walks the members; stores them if there is room for them. */
static size_t walk(tinkc_str json, tke_member *out, tkc_arena *arena, tinkc_error *err)
{
    tkc_json j;
    tinkc_str key;
    size_t n = 0;
    tkc_json_open(&j, json, arena, err);
    j.code = TINKC_E_MODEL;
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            tinkc_str value = tkc_json_skip(&j);
            if (out)
                out[n] = (tke_member){ key, value };
            n++;
        }
    tkc_json_close(&j);
    return n;
}

bool tke_keys_read(tke_config_keys *k, tinkc_str json, const char *what, tkc_arena *arena,
                   tinkc_error *err)
{
    *k = (tke_config_keys){ .what = what, .arena = arena, .err = err };
    size_t n = walk(json, NULL, arena, err);
    if (tkc_failed(err))
        return false;
    k->members = tkc_arena_array(arena, n + 1, sizeof *k->members, err);
    if (k->members)
        k->n = walk(json, k->members, arena, err);
    return k->members && !tkc_failed(err);
}

static const tinkc_str *find(const tke_config_keys *k, const char *name)
{
    for (size_t i = k->n; i-- > 0;)
        if (tkc_str_is(k->members[i].key, name))
            return tkc_str_is(k->members[i].value, "null") ? NULL : &k->members[i].value;
    return NULL;
}

bool tke_keys_inside(const tke_config_keys *k, const char *name, tke_config_keys *out)
{
    const tinkc_str *value = find(k, name);
    *out = (tke_config_keys){ .what = k->what, .arena = k->arena, .err = k->err };
    return value && value->len && value->data[0] == '{' &&
           tke_keys_read(out, *value, k->what, k->arena, k->err);
}

/* ---- values ---- */

bool tke_key_given(const tke_config_keys *k, const char *name)
{
    return find(k, name) != NULL;
}

/* Opens the value of a key; false if there is none. */
static bool open_value(const tke_config_keys *k, const char *name, tkc_json *j, tinkc_error *own)
{
    const tinkc_str *value = tkc_failed(k->err) ? NULL : find(k, name);
    *own = (tinkc_error){ 0 };
    if (value)
        tkc_json_open(j, *value, k->arena, own);
    return value != NULL;
}

static void wrong_type(const tke_config_keys *k, const char *name, const char *wanted)
{
    tkc_fail(k->err, TINKC_E_MODEL, "%s: %s is not %s", k->what, name, wanted);
}

int64_t tke_key_i64(const tke_config_keys *k, const char *name, int64_t otherwise)
{
    tkc_json j;
    tinkc_error own;
    if (!open_value(k, name, &j, &own))
        return otherwise;
    int64_t value = tkc_json_i64(&j);
    if (!own.code)
        return value;
    wrong_type(k, name, "a whole number");
    return otherwise;
}

double tke_key_double(const tke_config_keys *k, const char *name, double otherwise)
{
    tkc_json j;
    tinkc_error own;
    if (!open_value(k, name, &j, &own))
        return otherwise;
    double value = tkc_json_double(&j);
    if (!own.code)
        return value;
    wrong_type(k, name, "a number");
    return otherwise;
}

bool tke_key_bool(const tke_config_keys *k, const char *name, bool otherwise)
{
    tkc_json j;
    tinkc_error own;
    if (!open_value(k, name, &j, &own))
        return otherwise;
    bool value = tkc_json_bool(&j);
    if (!own.code)
        return value;
    wrong_type(k, name, "true or false");
    return otherwise;
}

static tinkc_str string_or_skip(tkc_json *j)
{
    if (tkc_json_peek(j) == TKC_JSON_STRING)
        return tkc_json_string(j);
    tkc_json_skip(j);
    return (tinkc_str){ 0 };
}

tinkc_str tke_key_str(const tke_config_keys *k, const char *name)
{
    tkc_json j;
    tinkc_error own;
    return open_value(k, name, &j, &own) ? string_or_skip(&j) : (tinkc_str){ 0 };
}

int64_t tke_key_strings(const tke_config_keys *k, const char *name, tinkc_str *out, size_t room)
{
    tkc_json j;
    tinkc_error own;
    size_t n = 0;
    if (!open_value(k, name, &j, &own) || tkc_json_peek(&j) != TKC_JSON_ARRAY)
        return -1;
    tkc_json_array(&j);
    while (tkc_json_item(&j)) {
        tinkc_str item = string_or_skip(&j);
        if (n < room)
            out[n] = item;
        n++;
    }
    return (int64_t)n;
}

int64_t tke_key_integers(const tke_config_keys *k, const char *name, int64_t *out, size_t room)
{
    tkc_json j;
    tinkc_error own;
    size_t n = 0;
    if (!open_value(k, name, &j, &own) || tkc_json_peek(&j) != TKC_JSON_ARRAY)
        return -1;
    tkc_json_array(&j);
    while (tkc_json_item(&j)) {
        int64_t item = tkc_json_i64(&j);
        if (n < room)
            out[n] = item;
        n++;
    }
    if (own.code)
        wrong_type(k, name, "a list of whole numbers");
    return (int64_t)n;
}

/* Transformers writes {"__float__": "Infinity"}. */
static double limit_item(tkc_json *j)
{
    tinkc_str key, value = { 0 };
    if (tkc_json_null(j))
        return (double)INFINITY;
    if (tkc_json_peek(j) != TKC_JSON_OBJECT)
        return tkc_json_double(j);
    tkc_json_object(j);
    while (tkc_json_key(j, &key))
        value = tkc_str_is(key, "__float__") ? tkc_json_string(j) : tkc_json_skip(j);
    if (!tkc_str_is(value, "Infinity"))
        tkc_json_fail(j, "not a number");
    return (double)INFINITY;
}

int64_t tke_key_limits(const tke_config_keys *k, const char *name, double *out, size_t room)
{
    tkc_json j;
    tinkc_error own;
    size_t n = 0;
    if (!open_value(k, name, &j, &own) || tkc_json_peek(&j) != TKC_JSON_ARRAY)
        return -1;
    tkc_json_array(&j);
    while (tkc_json_item(&j)) {
        double item = limit_item(&j);
        if (n < room)
            out[n] = item;
        n++;
    }
    if (own.code)
        wrong_type(k, name, "a list of numbers");
    return (int64_t)n;
}

/* ---- faults ---- */

bool tke_keys_bad(const tke_config_keys *k, const char *fault)
{
    return tkc_fail(k->err, TINKC_E_MODEL, "%s: %s", k->what, fault);
}

bool tke_keys_refuse(const tke_config_keys *k, const char *feature, tinkc_str name)
{
    return tkc_fail(k->err, TINKC_E_UNSUPPORTED, "%s: %s '%.*s' is not supported", k->what, feature,
                    (int)(name.len < 60 ? name.len : 60), name.data ? name.data : "");
}

bool tke_keys_size(const tke_config_keys *k, const char *name, int64_t value, int64_t max)
{
    if (value >= 1 && value <= max)
        return true;
    return tkc_fail(k->err, TINKC_E_MODEL, "%s: %s is missing or out of range", k->what, name);
}
