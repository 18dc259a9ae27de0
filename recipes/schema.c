/* schema.c - JSON Schema (draft 2020-12): the keywords that graders use.
 *
 * References lead into the same schema only ("#/$defs/x"). Depth is bounded, so that a reference to
 * itself ends. Unknown keywords are refused when a schema is read; "format" and comments only
 * describe.
 */
#include "recipes/schema.h"

#include <math.h>
#include <string.h>

#include "recipes/pattern.h"

enum { MOST_DEPTH = 64 };

typedef struct run {
    const json_t *root;
    tinkc_error *err;
} run;

static bool conforms(const run *r, const json_t *schema, const json_t *v, int depth);

/* ---- references ---- */

static const json_t *resolve(const json_t *root, const char *ref)
{
    char part[200];
    if (strcmp(ref, "#") == 0)
        return root;
    if (strncmp(ref, "#/", 2) != 0)
        return NULL;
    const json_t *at = root;
    for (const char *p = ref + 2; at; p++) {
        size_t n = 0;
        for (; *p && *p != '/' && n + 1 < sizeof part; p++) {
            if (*p == '~' && (p[1] == '0' || p[1] == '1'))
                part[n++] = *++p == '0' ? '~' : '/';
            else
                part[n++] = *p;
        }
        part[n] = '\0';
        at = json_object_get(at, part);
        if (!*p)
            return at;
    }
    return NULL;
}

/* ---- one kind of value each ---- */

static bool is_type(const json_t *v, const char *type)
{
    if (strcmp(type, "integer") == 0)
        return json_is_integer(v) ||
               (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)));
    return strcmp(type, "object") == 0    ? json_is_object(v)
           : strcmp(type, "array") == 0   ? json_is_array(v)
           : strcmp(type, "string") == 0  ? json_is_string(v)
           : strcmp(type, "number") == 0  ? json_is_number(v)
           : strcmp(type, "boolean") == 0 ? json_is_boolean(v)
           : strcmp(type, "null") == 0    ? json_is_null(v)
                                          : false;
}

static bool type_fits(const json_t *type, const json_t *v)
{
    if (json_is_string(type))
        return is_type(v, json_string_value(type));
    for (size_t i = 0; i < json_array_size(type); i++)
        if (json_is_string(json_array_get(type, i)) &&
            is_type(v, json_string_value(json_array_get(type, i))))
            return true;
    return !json_is_array(type);
}

/* 1 and 1.0 are the same number in JSON Schema. */
static bool equal(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal((json_t *)(uintptr_t)a, (json_t *)(uintptr_t)b) != 0;
}

static bool among(const json_t *list, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (equal(json_array_get(list, i), v))
            return true;
    return !json_is_array(list);
}

static bool limit(const json_t *schema, const char *key, double *out)
{
    return tkr_json_number(schema, key, out);
}

static bool number_fits(const json_t *s, double x)
{
    double n;
    return !(limit(s, "minimum", &n) && x < n) && !(limit(s, "maximum", &n) && x > n) &&
           !(limit(s, "exclusiveMinimum", &n) && x <= n) &&
           !(limit(s, "exclusiveMaximum", &n) && x >= n) &&
           !(limit(s, "multipleOf", &n) && n > 0 && fabs(x / n - nearbyint(x / n)) > 1e-9);
}

static size_t characters(const char *s, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)s[i] & 0xC0) != 0x80;
    return n;
}

static bool string_fits(const run *r, const json_t *s, const json_t *v)
{
    double n;
    size_t len = characters(json_string_value(v), json_string_length(v));
    if ((limit(s, "minLength", &n) && (double)len < n) ||
        (limit(s, "maxLength", &n) && (double)len > n))
        return false;
    const char *pattern = tkr_json_string(s, "pattern");
    return !pattern || tkr_pattern_found(pattern, json_string_value(v), r->err);
}

static bool unique(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        for (size_t k = 0; k < i; k++)
            if (equal(json_array_get(list, i), json_array_get(list, k)))
                return false;
    return true;
}

static bool contains_fits(const run *r, const json_t *s, const json_t *v, int depth)
{
    const json_t *wanted = json_object_get(s, "contains");
    double low = 1, high = INFINITY;
    size_t n = 0;
    if (!wanted)
        return true;
    limit(s, "minContains", &low);
    limit(s, "maxContains", &high);
    for (size_t i = 0; i < json_array_size(v); i++)
        n += conforms(r, wanted, json_array_get(v, i), depth);
    return (double)n >= low && (double)n <= high;
}

static bool array_fits(const run *r, const json_t *s, const json_t *v, int depth)
{
    double n;
    size_t len = json_array_size(v);
    const json_t *first = json_object_get(s, "prefixItems"), *rest = json_object_get(s, "items");
    if ((limit(s, "minItems", &n) && (double)len < n) ||
        (limit(s, "maxItems", &n) && (double)len > n) ||
        (json_is_true(json_object_get(s, "uniqueItems")) && !unique(v)))
        return false;
    for (size_t i = 0; i < len; i++) {
        const json_t *one = i < json_array_size(first) ? json_array_get(first, i) : rest;
        if (one && !conforms(r, one, json_array_get(v, i), depth))
            return false;
    }
    return contains_fits(r, s, v, depth);
}

static bool has_all(const json_t *names, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        if (name && !json_object_get(v, name))
            return false;
    }
    return true;
}

/* A member, by all that apply: its own schema, those of its name's patterns, else the rest's. */
static bool member_fits(const run *r, const json_t *s, const char *name, const json_t *v, int depth)
{
    const json_t *own = json_object_get(json_object_get(s, "properties"), name);
    json_t *patterns = json_object_get(s, "patternProperties"), *one;
    const char *pattern;
    bool known = own != NULL, ok = !own || conforms(r, own, v, depth);
    json_object_foreach(patterns, pattern, one)
    {
        if (tkr_pattern_found(pattern, name, r->err)) {
            known = true;
            ok = ok && conforms(r, one, v, depth);
        }
    }
    const json_t *rest = json_object_get(s, "additionalProperties");
    return ok && (known || !rest || conforms(r, rest, v, depth));
}

static bool object_fits(const run *r, const json_t *s, const json_t *v, int depth)
{
    double n;
    size_t size = json_object_size(v);
    const char *name;
    json_t *member;
    const json_t *names = json_object_get(s, "propertyNames");
    if ((limit(s, "minProperties", &n) && (double)size < n) ||
        (limit(s, "maxProperties", &n) && (double)size > n) ||
        !has_all(json_object_get(s, "required"), v))
        return false;
    json_object_foreach((json_t *)(uintptr_t)v, name, member)
    {
        json_t *text = names ? json_string(name) : NULL;
        bool ok =
            (!names || conforms(r, names, text, depth)) && member_fits(r, s, name, member, depth);
        json_decref(text);
        if (!ok)
            return false;
    }
    json_object_foreach(json_object_get(s, "dependentRequired"), name, member)
    {
        if (json_object_get(v, name) && !has_all(member, v))
            return false;
    }
    return true;
}

/* ---- combinations ---- */

static size_t count_fits(const run *r, const json_t *list, const json_t *v, int depth)
{
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        n += conforms(r, json_array_get(list, i), v, depth);
    return n;
}

static bool combinations_fit(const run *r, const json_t *s, const json_t *v, int depth)
{
    const json_t *all = json_object_get(s, "allOf"), *any = json_object_get(s, "anyOf"),
                 *one = json_object_get(s, "oneOf"), *not_this = json_object_get(s, "not"),
                 *when = json_object_get(s, "if");
    if ((all && count_fits(r, all, v, depth) != json_array_size(all)) ||
        (any && count_fits(r, any, v, depth) == 0) || (one && count_fits(r, one, v, depth) != 1) ||
        (not_this && conforms(r, not_this, v, depth)))
        return false;
    const json_t *then =
        when ? json_object_get(s, conforms(r, when, v, depth) ? "then" : "else") : NULL;
    return !then || conforms(r, then, v, depth);
}

static bool conforms(const run *r, const json_t *schema, const json_t *v, int depth)
{
    if (!json_is_object(schema))
        return !json_is_false(schema);
    if (depth >= MOST_DEPTH || tkc_failed(r->err))
        return false;
    depth++;
    const char *ref = tkr_json_string(schema, "$ref");
    const json_t *type = json_object_get(schema, "type"),
                 *constant = json_object_get(schema, "const"),
                 *listed = json_object_get(schema, "enum");
    if ((ref && !conforms(r, resolve(r->root, ref), v, depth)) || (type && !type_fits(type, v)) ||
        (constant && !equal(constant, v)) || (listed && !among(listed, v)))
        return false;
    bool ok = json_is_number(v)   ? number_fits(schema, json_number_value(v))
              : json_is_string(v) ? string_fits(r, schema, v)
              : json_is_array(v)  ? array_fits(r, schema, v, depth)
              : json_is_object(v) ? object_fits(r, schema, v, depth)
                                  : true;
    return ok && combinations_fit(r, schema, v, depth);
}

bool tkr_schema_conforms(const json_t *schema, const json_t *value, tinkc_error *err)
{
    run r = { schema, err };
    return conforms(&r, schema, value, 0) && !tkc_failed(err);
}

/* ---- reading a schema ---- */

static const char *const keywords[] = {
    "type",
    "enum",
    "const",
    "properties",
    "required",
    "items",
    "prefixItems",
    "additionalProperties",
    "minItems",
    "maxItems",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "minLength",
    "maxLength",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minProperties",
    "maxProperties",
    "patternProperties",
    "propertyNames",
    "dependentRequired",
    "anyOf",
    "allOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "$ref",
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "format",
    "deprecated",
    "readOnly",
    "writeOnly",
};

static bool check(const json_t *root, const json_t *s, int depth, tinkc_error *err);

static bool check_each(const json_t *root, json_t *many, int depth, tinkc_error *err)
{
    const char *name;
    json_t *one;
    size_t i;
    json_array_foreach(many, i, one)
    {
        if (!check(root, one, depth, err))
            return false;
    }
    json_object_foreach(many, name, one)
    {
        if (!check(root, one, depth, err))
            return false;
    }
    return true;
}

static bool known(const char *name)
{
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (strcmp(keywords[i], name) == 0)
            return true;
    return false;
}

static bool holds_schema(const char *name)
{
    static const char *const names[] = {
        "items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else"
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static bool holds_schemas(const char *name)
{
    static const char *const names[] = { "properties",  "patternProperties",
                                         "prefixItems", "anyOf",
                                         "allOf",       "oneOf",
                                         "$defs",       "definitions" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static bool check(const json_t *root, const json_t *s, int depth, tinkc_error *err)
{
    const char *name;
    json_t *member;
    if (json_is_boolean(s))
        return true;
    if (!json_is_object(s))
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "JSON schema: a schema must be an object or a boolean");
    if (depth >= MOST_DEPTH)
        return tkc_fail(err, TINKC_E_ARGUMENT, "JSON schema: nested deeper than %d", MOST_DEPTH);
    json_object_foreach((json_t *)(uintptr_t)s, name, member)
    {
        if (!known(name))
            return tkc_fail(err, TINKC_E_UNSUPPORTED, "JSON schema: keyword %s is not supported",
                            name);
        if (strcmp(name, "$ref") == 0 &&
            (!json_is_string(member) || !resolve(root, json_string_value(member))))
            return tkc_fail(err, TINKC_E_ARGUMENT, "JSON schema: $ref leads nowhere: %s",
                            json_is_string(member) ? json_string_value(member) : "not a string");
        if (strcmp(name, "pattern") == 0 && json_is_string(member))
            (void)tkr_pattern_found(json_string_value(member), "", err);
        if ((holds_schema(name) && !check(root, member, depth + 1, err)) ||
            (holds_schemas(name) && !check_each(root, member, depth + 1, err)) || tkc_failed(err))
            return false;
    }
    return true;
}

bool tkr_schema_check(const json_t *schema, tinkc_error *err)
{
    return check(schema, schema, 0, err);
}
