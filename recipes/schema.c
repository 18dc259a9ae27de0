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
    const tkc_tree *root;
    tkc_arena *arena;
    tinkc_error *err;
} run;

static bool conforms(const run *r, const tkc_tree *schema, const tkc_tree *v, int depth);

/* ---- references ---- */

static const tkc_tree *resolve(const tkc_tree *root, const char *ref)
{
    char part[200];
    if (strcmp(ref, "#") == 0)
        return root;
    if (strncmp(ref, "#/", 2) != 0)
        return NULL;
    const tkc_tree *at = root;
    for (const char *p = ref + 2; at; p++) {
        size_t n = 0;
        for (; *p && *p != '/' && n + 1 < sizeof part; p++) {
            if (*p == '~' && (p[1] == '0' || p[1] == '1'))
                part[n++] = *++p == '0' ? '~' : '/';
            else
                part[n++] = *p;
        }
        part[n] = '\0';
        at = tkc_tree_get(at, part);
        if (!*p)
            return at;
    }
    return NULL;
}

/* ---- one kind of value each ---- */

static bool is_type(const tkc_tree *v, const char *type)
{
    if (strcmp(type, "integer") == 0)
        return tkc_tree_is_i64(v) ||
               (tkc_tree_is_real(v) && tkc_tree_number(v) == floor(tkc_tree_number(v)));
    return strcmp(type, "object") == 0    ? tkc_tree_is_object(v)
           : strcmp(type, "array") == 0   ? tkc_tree_is_array(v)
           : strcmp(type, "string") == 0  ? tkc_tree_is_text(v)
           : strcmp(type, "number") == 0  ? tkc_tree_is_number(v)
           : strcmp(type, "boolean") == 0 ? tkc_tree_is_bool(v)
           : strcmp(type, "null") == 0    ? tkc_tree_is_null(v)
                                          : false;
}

static bool type_fits(const tkc_tree *type, const tkc_tree *v)
{
    if (tkc_tree_is_text(type))
        return is_type(v, tkc_tree_text(type));
    for (size_t i = 0; i < tkc_tree_length(type); i++)
        if (tkc_tree_is_text(tkc_tree_at(type, i)) &&
            is_type(v, tkc_tree_text(tkc_tree_at(type, i))))
            return true;
    return !tkc_tree_is_array(type);
}

/* 1 and 1.0 are the same number in JSON Schema. */
static bool equal(const tkc_tree *a, const tkc_tree *b)
{
    if (tkc_tree_is_number(a) && tkc_tree_is_number(b))
        return tkc_tree_number(a) == tkc_tree_number(b);
    return tkc_tree_equal(a, b) != 0;
}

static bool among(const tkc_tree *list, const tkc_tree *v)
{
    for (size_t i = 0; i < tkc_tree_length(list); i++)
        if (equal(tkc_tree_at(list, i), v))
            return true;
    return !tkc_tree_is_array(list);
}

static bool limit(const tkc_tree *schema, const char *key, double *out)
{
    return tkr_json_number(schema, key, out);
}

static bool number_fits(const tkc_tree *s, double x)
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

static bool string_fits(const run *r, const tkc_tree *s, const tkc_tree *v)
{
    double n;
    size_t len = characters(tkc_tree_text(v), tkc_tree_str(v).len);
    if ((limit(s, "minLength", &n) && (double)len < n) ||
        (limit(s, "maxLength", &n) && (double)len > n))
        return false;
    const char *pattern = tkc_tree_get_text(s, "pattern");
    return !pattern || tkr_pattern_found(pattern, tkc_tree_text(v), r->err);
}

static bool unique(const tkc_tree *list)
{
    for (size_t i = 0; i < tkc_tree_length(list); i++)
        for (size_t k = 0; k < i; k++)
            if (equal(tkc_tree_at(list, i), tkc_tree_at(list, k)))
                return false;
    return true;
}

static bool contains_fits(const run *r, const tkc_tree *s, const tkc_tree *v, int depth)
{
    const tkc_tree *wanted = tkc_tree_get(s, "contains");
    double low = 1, high = INFINITY;
    size_t n = 0;
    if (!wanted)
        return true;
    limit(s, "minContains", &low);
    limit(s, "maxContains", &high);
    for (size_t i = 0; i < tkc_tree_length(v); i++)
        n += conforms(r, wanted, tkc_tree_at(v, i), depth);
    return (double)n >= low && (double)n <= high;
}

static bool array_fits(const run *r, const tkc_tree *s, const tkc_tree *v, int depth)
{
    double n;
    size_t len = tkc_tree_length(v);
    const tkc_tree *first = tkc_tree_get(s, "prefixItems"), *rest = tkc_tree_get(s, "items");
    if ((limit(s, "minItems", &n) && (double)len < n) ||
        (limit(s, "maxItems", &n) && (double)len > n) ||
        (tkc_tree_get_true(s, "uniqueItems") && !unique(v)))
        return false;
    for (size_t i = 0; i < len; i++) {
        const tkc_tree *one = i < tkc_tree_length(first) ? tkc_tree_at(first, i) : rest;
        if (one && !conforms(r, one, tkc_tree_at(v, i), depth))
            return false;
    }
    return contains_fits(r, s, v, depth);
}

static bool has_all(const tkc_tree *names, const tkc_tree *v)
{
    for (size_t i = 0; i < tkc_tree_length(names); i++) {
        const char *name = tkc_tree_text(tkc_tree_at(names, i));
        if (name && !tkc_tree_get(v, name))
            return false;
    }
    return true;
}

/* A member, by all that apply: its own schema, those of its name's patterns, else the rest's. */
static bool member_fits(const run *r, const tkc_tree *s, const char *name, const tkc_tree *v,
                        int depth)
{
    const tkc_tree *own = tkc_tree_get(tkc_tree_get(s, "properties"), name);
    tkc_tree *patterns = tkc_tree_get(s, "patternProperties"), *one;
    const char *pattern;
    bool known = own != NULL, ok = !own || conforms(r, own, v, depth);
    TKC_TREE_EACH (patterns, pattern, one) {
        if (tkr_pattern_found(pattern, name, r->err)) {
            known = true;
            ok = ok && conforms(r, one, v, depth);
        }
    }
    const tkc_tree *rest = tkc_tree_get(s, "additionalProperties");
    return ok && (known || !rest || conforms(r, rest, v, depth));
}

static bool object_fits(const run *r, const tkc_tree *s, const tkc_tree *v, int depth)
{
    double n;
    size_t size = tkc_tree_members(v);
    const char *name;
    tkc_tree *member;
    const tkc_tree *names = tkc_tree_get(s, "propertyNames");
    if ((limit(s, "minProperties", &n) && (double)size < n) ||
        (limit(s, "maxProperties", &n) && (double)size > n) ||
        !has_all(tkc_tree_get(s, "required"), v))
        return false;
    TKC_TREE_EACH (v, name, member) {
        tkc_tree *text = names ? tkc_tree_new_text(r->arena, name) : NULL;
        bool ok =
            (!names || conforms(r, names, text, depth)) && member_fits(r, s, name, member, depth);
        if (!ok)
            return false;
    }
    TKC_TREE_EACH (tkc_tree_get(s, "dependentRequired"), name, member) {
        if (tkc_tree_get(v, name) && !has_all(member, v))
            return false;
    }
    return true;
}

/* ---- combinations ---- */

static size_t count_fits(const run *r, const tkc_tree *list, const tkc_tree *v, int depth)
{
    size_t n = 0;
    for (size_t i = 0; i < tkc_tree_length(list); i++)
        n += conforms(r, tkc_tree_at(list, i), v, depth);
    return n;
}

static bool combinations_fit(const run *r, const tkc_tree *s, const tkc_tree *v, int depth)
{
    const tkc_tree *all = tkc_tree_get(s, "allOf"), *any = tkc_tree_get(s, "anyOf"),
                   *one = tkc_tree_get(s, "oneOf"), *not_this = tkc_tree_get(s, "not"),
                   *when = tkc_tree_get(s, "if");
    if ((all && count_fits(r, all, v, depth) != tkc_tree_length(all)) ||
        (any && count_fits(r, any, v, depth) == 0) || (one && count_fits(r, one, v, depth) != 1) ||
        (not_this && conforms(r, not_this, v, depth)))
        return false;
    const tkc_tree *then =
        when ? tkc_tree_get(s, conforms(r, when, v, depth) ? "then" : "else") : NULL;
    return !then || conforms(r, then, v, depth);
}

static bool conforms(const run *r, const tkc_tree *schema, const tkc_tree *v, int depth)
{
    if (!tkc_tree_is_object(schema))
        return !(tkc_tree_is_bool(schema) && !tkc_tree_is_true(schema));
    if (depth >= MOST_DEPTH || tkc_failed(r->err))
        return false;
    depth++;
    const char *ref = tkc_tree_get_text(schema, "$ref");
    const tkc_tree *type = tkc_tree_get(schema, "type"), *constant = tkc_tree_get(schema, "const"),
                   *listed = tkc_tree_get(schema, "enum");
    if ((ref && !conforms(r, resolve(r->root, ref), v, depth)) || (type && !type_fits(type, v)) ||
        (constant && !equal(constant, v)) || (listed && !among(listed, v)))
        return false;
    bool ok = tkc_tree_is_number(v)   ? number_fits(schema, tkc_tree_number(v))
              : tkc_tree_is_text(v)   ? string_fits(r, schema, v)
              : tkc_tree_is_array(v)  ? array_fits(r, schema, v, depth)
              : tkc_tree_is_object(v) ? object_fits(r, schema, v, depth)
                                      : true;
    return ok && combinations_fit(r, schema, v, depth);
}

bool tkr_schema_conforms(const tkc_tree *schema, const tkc_tree *value, tinkc_error *err)
{
    tkc_arena arena = { 0 };
    run r = { schema, &arena, err };
    bool ok = conforms(&r, schema, value, 0) && !tkc_failed(err);
    tkc_arena_free(&arena);
    return ok;
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

static bool check(const tkc_tree *root, const tkc_tree *s, int depth, tinkc_error *err);

static bool check_each(const tkc_tree *root, tkc_tree *many, int depth, tinkc_error *err)
{
    const char *name;
    tkc_tree *one;
    size_t i;
    for (i = 0; (one = tkc_tree_at(many, i)); i++) {
        if (!check(root, one, depth, err))
            return false;
    }
    TKC_TREE_EACH (many, name, one) {
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

static bool check(const tkc_tree *root, const tkc_tree *s, int depth, tinkc_error *err)
{
    const char *name;
    tkc_tree *member;
    if (tkc_tree_is_bool(s))
        return true;
    if (!tkc_tree_is_object(s))
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "JSON schema: a schema must be an object or a boolean");
    if (depth >= MOST_DEPTH)
        return tkc_fail(err, TINKC_E_ARGUMENT, "JSON schema: nested deeper than %d", MOST_DEPTH);
    TKC_TREE_EACH (s, name, member) {
        if (!known(name))
            return tkc_fail(err, TINKC_E_UNSUPPORTED, "JSON schema: keyword %s is not supported",
                            name);
        if (strcmp(name, "$ref") == 0 &&
            (!tkc_tree_is_text(member) || !resolve(root, tkc_tree_text(member))))
            return tkc_fail(err, TINKC_E_ARGUMENT, "JSON schema: $ref leads nowhere: %s",
                            tkc_tree_is_text(member) ? tkc_tree_text(member) : "not a string");
        if (strcmp(name, "pattern") == 0 && tkc_tree_is_text(member))
            (void)tkr_pattern_found(tkc_tree_text(member), "", err);
        if ((holds_schema(name) && !check(root, member, depth + 1, err)) ||
            (holds_schemas(name) && !check_each(root, member, depth + 1, err)) || tkc_failed(err))
            return false;
    }
    return true;
}

bool tkr_schema_check(const tkc_tree *schema, tinkc_error *err)
{
    return check(schema, schema, 0, err);
}
