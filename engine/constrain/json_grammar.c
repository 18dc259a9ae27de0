/* json_grammar.c - JSON schemas that can be sampled under: the documented subset (docs/server.md).
 *
 *     type (also a list), properties, required, additionalProperties, items, minItems, maxItems, enum,
 *     const, minLength, maxLength, pattern (schema_pattern.h), minimum, maximum, exclusiveMinimum, exclusiveMaximum (integers),
 *     anyOf (schemas that begin differently), $ref to $defs or definitions
 *
 * Keywords that only describe are ignored; any other is refused by name. Members are written in the
 * order of the schema, and only those that it names. Must not: know of tokens or requests.
 */
#include "constrain/json_grammar.h"

#include <stdlib.h>
#include <string.h>

#include "base/json_read.h"
#include "base/json_write.h"
#include "base/str.h"

enum {
    MOST_NODES = 4096,
    MOST_OPTIONS = 4096,
    MOST_MEMBERS = 256,
    MOST_DEPTH = 32,
    MOST_DEFS = 256,
    MOST_PATTERNS = 32
};
static const int64_t largest_integer = 999999999999999; /* 15 digits, as numbers have */

typedef struct def { /* a named schema */
    tinkc_str name, text;
    uint32_t node;
    bool made;
} def;

typedef struct maker {
    tke_grammar *g;
    tkc_arena *arena;
    tinkc_error *err;
    def *defs;
    size_t n_defs;
    uint32_t any; /* 0 = not made yet: node 0 is a map's key */
    int depth, n_patterns;
} maker;

typedef struct schema { /* one object, taken apart; data NULL = not given */
    tinkc_str type, properties, required, additional, items, values, constant, any_of, ref, pattern;
    int64_t min_length, max_length, min_items, max_items, minimum, maximum;
    bool has_length, has_items, has_range;
} schema;

static bool make(maker *m, uint32_t at, tinkc_str text);

static bool refuse(maker *m, const char *what, tinkc_str name)
{
    return tkc_fail(m->err, TINKC_E_BAD_REQUEST, "%s: '%.*s'", what,
                    (int)(name.len < 100 ? name.len : 100), name.data);
}

static uint32_t add_node(maker *m, tke_node node)
{
    tke_grammar *g = m->g;
    if (tkc_failed(m->err))
        return 0;
    if (g->n == MOST_NODES) {
        tkc_fail(m->err, TINKC_E_BAD_REQUEST, "the schema has more than %d parts", MOST_NODES);
        return 0;
    }
    if (g->n == g->cap) {
        size_t cap = g->cap ? 2 * g->cap : 32;
        tke_node *grown = tkc_arena_array(m->arena, cap, sizeof *grown, m->err);
        if (!grown)
            return 0;
        if (g->n)
            memcpy(grown, g->nodes, g->n * sizeof *grown);
        g->nodes = grown;
        g->cap = cap;
    }
    g->nodes[g->n] = node;
    return (uint32_t)g->n++;
}

static void *room(maker *m, size_t n, size_t size)
{
    return tkc_arena_array(m->arena, n ? n : 1, size, m->err);
}

static tkc_json reader(maker *m, tinkc_str text)
{
    tkc_json j;
    tkc_json_open(&j, text, m->arena, m->err);
    j.code = TINKC_E_BAD_REQUEST;
    return j;
}

/* A string as JSON writes it. */
static tinkc_str quoted(maker *m, tinkc_str s)
{
    tkc_buf out;
    tkc_jsonw w;
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&w, &out, m->err);
    tkc_jsonw_str(&w, s);
    tinkc_str copy = tkc_strn(NULL, 0);
    if (!tkc_failed(m->err))
        copy = tkc_strn(tkc_arena_str(m->arena, tkc_buf_view(&out), m->err), out.len);
    tkc_buf_free(&out);
    return copy;
}

/* ---- choices ---- */

static int by_text(const void *a, const void *b)
{
    tinkc_str x = ((const tke_option *)a)->text, y = ((const tke_option *)b)->text;
    int order = memcmp(x.data, y.data, x.len < y.len ? x.len : y.len);
    return order ? order : (x.len > y.len) - (x.len < y.len);
}

static bool set_choice(maker *m, uint32_t at, tke_option *options, size_t n)
{
    size_t kept = 0;
    if (tkc_failed(m->err))
        return false;
    qsort(options, n, sizeof *options, by_text);
    for (size_t i = 0; i < n; i++)
        if (!kept || !tkc_str_eq(options[kept - 1].text, options[i].text))
            options[kept++] = options[i];
    m->g->nodes[at].kind = TKE_NODE_CHOICE;
    m->g->nodes[at].options = options;
    m->g->nodes[at].n = kept;
    return true;
}

static bool set_words(maker *m, uint32_t at, const char *const *words, size_t n)
{
    tke_option *options = room(m, n, sizeof *options);
    for (size_t i = 0; options && i < n; i++)
        options[i].text = tkc_str(words[i]);
    return set_choice(m, at, options, n);
}

static const char *kind_name(int kind, tinkc_str text)
{
    return kind == TKC_JSON_OBJECT   ? "object"
           : kind == TKC_JSON_ARRAY  ? "array"
           : kind == TKC_JSON_STRING ? "string"
           : kind == TKC_JSON_NULL   ? "null"
           : kind == TKC_JSON_NUMBER ? memchr(text.data, '.', text.len) ? "number" : "integer"
                                     : "boolean";
}

/* Whether "type" (a string or a list) allows a value; no type allows all. */
static bool type_allows(maker *m, tinkc_str type, const char *name)
{
    tkc_json j = reader(m, type);
    bool found = !type.data, list = type.data && tkc_json_peek(&j) == TKC_JSON_ARRAY;
    if (list)
        tkc_json_array(&j);
    while (type.data && !tkc_failed(m->err) && (!list || tkc_json_item(&j))) {
        tinkc_str one = tkc_json_string(&j);
        found |=
            tkc_str_is(one, name) || (tkc_str_is(one, "number") && strcmp(name, "integer") == 0);
        if (!list)
            break;
    }
    return found;
}

static size_t count_items(maker *m, tinkc_str text)
{
    tkc_json j = reader(m, text);
    size_t n = 0;
    if (tkc_json_array(&j))
        for (; tkc_json_item(&j); n++)
            tkc_json_skip(&j);
    if (n > MOST_OPTIONS)
        tkc_fail(m->err, TINKC_E_BAD_REQUEST, "enum: more than %d values", MOST_OPTIONS);
    return n;
}

static bool make_values(maker *m, uint32_t at, const schema *s)
{
    size_t most = s->values.data ? count_items(m, s->values) : 1;
    tke_option *options = tkc_failed(m->err) ? NULL : room(m, most, sizeof *options);
    tkc_json j = reader(m, s->values.data ? s->values : s->constant);
    size_t n = 0;
    bool list = s->values.data != NULL;
    if (s->properties.data || s->items.data || s->any_of.data || s->has_length || s->pattern.data ||
        s->has_items || s->has_range || (list && s->constant.data))
        return tkc_fail(m->err, TINKC_E_BAD_REQUEST,
                        "enum and const are supported with type alone beside them");
    if (list)
        tkc_json_array(&j);
    while (!tkc_failed(m->err) && options && (!list || tkc_json_item(&j))) {
        int kind = tkc_json_peek(&j);
        tinkc_str text =
            kind == TKC_JSON_STRING ? quoted(m, tkc_json_string(&j)) : tkc_json_skip(&j);
        if (!tkc_failed(m->err) && type_allows(m, s->type, kind_name(kind, text)))
            options[n++].text = text;
        if (!list)
            break;
    }
    if (!tkc_failed(m->err) && n == 0)
        return tkc_fail(m->err, TINKC_E_BAD_REQUEST, "enum: no value of it has the schema's type");
    return set_choice(m, at, options, n);
}

/* ---- any value ---- */

static uint32_t any_node(maker *m)
{
    static const char *const words[] = { "true", "false", "null" };
    if (m->any || tkc_failed(m->err))
        return m->any;
    uint32_t any = add_node(m, (tke_node){ .kind = TKE_NODE_EITHER }),
             *branches = room(m, 5, sizeof *branches);
    if (tkc_failed(m->err))
        return 0;
    m->any = any;
    branches[0] = 0; /* strings of any length */
    branches[1] = add_node(m, (tke_node){ .kind = TKE_NODE_NUMBER });
    branches[2] = add_node(m, (tke_node){ .kind = TKE_NODE_CHOICE });
    branches[3] = add_node(m, (tke_node){ .kind = TKE_NODE_MAP, .item = any });
    branches[4] = add_node(m, (tke_node){ .kind = TKE_NODE_ARRAY, .item = any, .max = INT32_MAX });
    if (set_words(m, branches[2], words, 3)) {
        m->g->nodes[any].branches = branches;
        m->g->nodes[any].n = 5;
    }
    return any;
}

/* The node of a schema; 0 with err set. */
static uint32_t child(maker *m, tinkc_str text)
{
    uint32_t at = add_node(m, (tke_node){ .kind = TKE_NODE_EITHER });
    return make(m, at, text) ? at : 0;
}

/* ---- objects ---- */

static size_t count_members(maker *m, tinkc_str text)
{
    tkc_json j = reader(m, text);
    tinkc_str key;
    size_t n = 0;
    if (tkc_json_object(&j))
        for (; tkc_json_key(&j, &key); n++)
            tkc_json_skip(&j);
    if (n > MOST_MEMBERS)
        tkc_fail(m->err, TINKC_E_BAD_REQUEST, "properties: more than %d members", MOST_MEMBERS);
    return n;
}

static bool mark_required(maker *m, tinkc_str required, tke_member *members, size_t n)
{
    tkc_json j = reader(m, required);
    if (!required.data || !tkc_json_array(&j))
        return !tkc_failed(m->err);
    while (tkc_json_item(&j)) {
        tinkc_str name = tkc_json_string(&j);
        tinkc_str key = tkc_failed(m->err) ? name : quoted(m, name);
        size_t i = 0;
        while (i < n && !tkc_failed(m->err) && !tkc_str_eq(members[i].key, key))
            i++;
        if (i == n && !tkc_failed(m->err))
            return refuse(m, "required names a member that properties does not have", name);
        if (!tkc_failed(m->err))
            members[i].required = true;
    }
    return !tkc_failed(m->err);
}

static bool make_members(maker *m, uint32_t at, const schema *s)
{
    size_t n = count_members(m, s->properties), i = 0;
    tke_member *members = tkc_failed(m->err) ? NULL : room(m, n, sizeof *members);
    tkc_json j = reader(m, s->properties);
    tinkc_str key;
    if (members && tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            members[i].key = quoted(m, key);
            members[i++].node = child(m, tkc_json_skip(&j));
        }
    if (!mark_required(m, s->required, members, n))
        return false;
    m->g->nodes[at].kind = TKE_NODE_OBJECT;
    m->g->nodes[at].members = members;
    m->g->nodes[at].n = n;
    return true;
}

static bool make_object(maker *m, uint32_t at, const schema *s)
{
    bool open = !s->additional.data || !tkc_str_is(s->additional, "false");
    bool bare = !s->properties.data || count_members(m, s->properties) == 0;
    bool typed = open && s->additional.data && !tkc_str_is(s->additional, "true");
    if (typed && !bare)
        return tkc_fail(m->err, TINKC_E_BAD_REQUEST,
                        "additionalProperties: a schema is supported without properties only");
    if (!bare)
        return make_members(m, at, s);
    if (!mark_required(m, s->required, NULL, 0))
        return false;
    uint32_t item = !open ? 0 : typed ? child(m, s->additional) : any_node(m);
    if (tkc_failed(m->err))
        return false;
    m->g->nodes[at].kind = open ? TKE_NODE_MAP : TKE_NODE_OBJECT;
    m->g->nodes[at].item = item;
    return true;
}

/* ---- the other types ---- */

static bool make_array(maker *m, uint32_t at, const schema *s)
{
    uint32_t item = s->items.data ? child(m, s->items) : any_node(m);
    if (tkc_failed(m->err))
        return false;
    if (s->min_items > s->max_items)
        return tkc_fail(m->err, TINKC_E_BAD_REQUEST, "minItems is above maxItems");
    m->g->nodes[at] = (tke_node){
        .kind = TKE_NODE_ARRAY, .item = item, .min = s->min_items, .max = s->max_items
    };
    return true;
}

static bool make_pattern(maker *m, uint32_t at, const schema *s)
{
    tke_pattern *pattern = room(m, 1, sizeof *pattern);
    if (s->has_length)
        return tkc_fail(m->err, TINKC_E_BAD_REQUEST,
                        "minLength and maxLength are not supported beside pattern");
    if (m->n_patterns++ == MOST_PATTERNS)
        return tkc_fail(m->err, TINKC_E_BAD_REQUEST, "more than %d patterns", MOST_PATTERNS);
    if (!pattern || !tke_pattern_compile(pattern, m->arena, s->pattern, m->err))
        return false;
    m->g->nodes[at] = (tke_node){ .kind = TKE_NODE_PATTERN, .pattern = pattern };
    return true;
}

static bool make_string(maker *m, uint32_t at, const schema *s)
{
    if (s->pattern.data)
        return make_pattern(m, at, s);
    if (s->min_length > s->max_length)
        return tkc_fail(m->err, TINKC_E_BAD_REQUEST, "minLength is above maxLength");
    m->g->nodes[at] =
        (tke_node){ .kind = TKE_NODE_STRING, .min = s->min_length, .max = s->max_length };
    return true;
}

static bool make_integer(maker *m, uint32_t at, const schema *s)
{
    if (s->minimum > s->maximum)
        return tkc_fail(m->err, TINKC_E_BAD_REQUEST, "no integer is between minimum and maximum");
    m->g->nodes[at] = (tke_node){ .kind = TKE_NODE_INTEGER, .min = s->minimum, .max = s->maximum };
    return true;
}

static bool make_type(maker *m, uint32_t at, const schema *s, tinkc_str type)
{
    static const char *const words[] = { "true", "false", "null" };
    if (tkc_str_is(type, "object"))
        return make_object(m, at, s);
    if (tkc_str_is(type, "array"))
        return make_array(m, at, s);
    if (tkc_str_is(type, "string"))
        return make_string(m, at, s);
    if (tkc_str_is(type, "integer"))
        return make_integer(m, at, s);
    if (tkc_str_is(type, "boolean"))
        return set_words(m, at, words, 2);
    if (tkc_str_is(type, "null"))
        return set_words(m, at, words + 2, 1);
    if (!tkc_str_is(type, "number"))
        return refuse(m, "type is not one of JSON schema's", type);
    if (s->has_range)
        return tkc_fail(m->err, TINKC_E_BAD_REQUEST,
                        "minimum and maximum are supported for integers only");
    m->g->nodes[at].kind = TKE_NODE_NUMBER;
    return true;
}

/* "type": a string, or a list of them. */
static bool make_types(maker *m, uint32_t at, const schema *s)
{
    tkc_json j = reader(m, s->type);
    uint32_t *branches = room(m, 8, sizeof *branches);
    size_t n = 0;
    if (tkc_json_peek(&j) != TKC_JSON_ARRAY)
        return make_type(m, at, s, tkc_json_string(&j)) && !tkc_failed(m->err);
    tkc_json_array(&j);
    while (branches && tkc_json_item(&j)) {
        tinkc_str type = tkc_json_string(&j);
        if (n == 8)
            return tkc_fail(m->err, TINKC_E_BAD_REQUEST, "type: more than 8 in the list");
        branches[n] = add_node(m, (tke_node){ 0 });
        if (tkc_failed(m->err) || !make_type(m, branches[n++], s, type))
            return false;
    }
    if (!tkc_failed(m->err)) {
        m->g->nodes[at].branches = branches;
        m->g->nodes[at].n = n;
    }
    return !tkc_failed(m->err);
}

static bool make_any_of(maker *m, uint32_t at, tinkc_str text)
{
    enum { MOST = 64 };
    uint32_t *branches = room(m, MOST, sizeof *branches);
    tkc_json j = reader(m, text);
    size_t n = 0;
    if (branches && tkc_json_array(&j))
        while (tkc_json_item(&j)) {
            tinkc_str one = tkc_json_skip(&j);
            if (n == MOST)
                return tkc_fail(m->err, TINKC_E_BAD_REQUEST, "anyOf: more than %d schemas", MOST);
            branches[n++] = child(m, one);
        }
    if (!tkc_failed(m->err)) {
        m->g->nodes[at].branches = branches;
        m->g->nodes[at].n = n;
    }
    return !tkc_failed(m->err);
}

/* ---- references ---- */

static bool cut_prefix(tinkc_str *s, const char *prefix)
{
    if (!tkc_starts_with(*s, prefix))
        return false;
    *s = tkc_strn(s->data + strlen(prefix), s->len - strlen(prefix));
    return true;
}

/* Makes the node an alias of the definition's: an either with one branch. */
static bool make_ref(maker *m, uint32_t at, tinkc_str ref)
{
    tinkc_str name = ref;
    uint32_t *branch = room(m, 1, sizeof *branch);
    if (!cut_prefix(&name, "#/$defs/") && !cut_prefix(&name, "#/definitions/"))
        return refuse(m, "$ref: only #/$defs/NAME and #/definitions/NAME are supported", ref);
    for (size_t i = 0; branch && i < m->n_defs; i++) {
        def *d = &m->defs[i];
        if (!tkc_str_eq(d->name, name))
            continue;
        if (!d->made) {
            d->made = true; /* before its parts, which may refer to it */
            d->node = add_node(m, (tke_node){ .kind = TKE_NODE_EITHER });
            if (tkc_failed(m->err) || !make(m, d->node, d->text))
                return false;
        }
        *branch = d->node;
        m->g->nodes[at].branches = branch;
        m->g->nodes[at].n = 1;
        return true;
    }
    return refuse(m, "$ref names no definition", ref);
}

static void read_defs(maker *m, tinkc_str text)
{
    tkc_json j = reader(m, text);
    tinkc_str key;
    if (!tkc_json_object(&j))
        return;
    while (tkc_json_key(&j, &key)) {
        def one = { .name = key, .text = tkc_json_skip(&j) };
        if (m->n_defs < MOST_DEFS && m->defs)
            m->defs[m->n_defs++] = one;
        else
            tkc_fail(m->err, TINKC_E_BAD_REQUEST, "more than %d definitions", MOST_DEFS);
    }
}

/* ---- one schema ---- */

static bool is_annotation(tinkc_str key)
{
    static const char *const names[] = { "title",     "description", "$schema",  "$id",
                                         "$comment",  "default",     "examples", "readOnly",
                                         "writeOnly", "deprecated" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tkc_str_is(key, names[i]))
            return true;
    return false;
}

static int64_t count_of(tkc_json *j, bool *has)
{
    int64_t n = tkc_json_i64(j);
    *has = true;
    if (n < 0)
        tkc_json_fail(j, "a count must not be negative");
    return n < INT32_MAX ? n : INT32_MAX;
}

static int64_t bound_of(tkc_json *j, schema *s, int64_t past)
{
    int64_t n = tkc_json_i64(j);
    s->has_range = true;
    if (n > largest_integer || n < -largest_integer)
        tkc_json_fail(j, "integers of at most 15 digits are supported");
    return n + past;
}

/* Reads a keyword with a number; false = it is not one. */
static bool read_count(tkc_json *j, tinkc_str key, schema *s)
{
    if (tkc_str_is(key, "minLength"))
        s->min_length = count_of(j, &s->has_length);
    else if (tkc_str_is(key, "maxLength"))
        s->max_length = count_of(j, &s->has_length);
    else if (tkc_str_is(key, "minItems"))
        s->min_items = count_of(j, &s->has_items);
    else if (tkc_str_is(key, "maxItems"))
        s->max_items = count_of(j, &s->has_items);
    else if (tkc_str_is(key, "minimum"))
        s->minimum = bound_of(j, s, 0);
    else if (tkc_str_is(key, "maximum"))
        s->maximum = bound_of(j, s, 0);
    else if (tkc_str_is(key, "exclusiveMinimum"))
        s->minimum = bound_of(j, s, 1);
    else if (tkc_str_is(key, "exclusiveMaximum"))
        s->maximum = bound_of(j, s, -1);
    else
        return false;
    return true;
}

static tinkc_str *part_of(schema *s, tinkc_str key)
{
    return tkc_str_is(key, "type")                   ? &s->type
           : tkc_str_is(key, "properties")           ? &s->properties
           : tkc_str_is(key, "required")             ? &s->required
           : tkc_str_is(key, "additionalProperties") ? &s->additional
           : tkc_str_is(key, "items")                ? &s->items
           : tkc_str_is(key, "enum")                 ? &s->values
           : tkc_str_is(key, "const")                ? &s->constant
           : tkc_str_is(key, "anyOf")                ? &s->any_of
                                                     : NULL;
}

static bool read_schema(maker *m, tinkc_str text, schema *s)
{
    tkc_json j = reader(m, text);
    tinkc_str key, *part;
    *s = (schema){ .max_length = INT32_MAX,
                   .max_items = INT32_MAX,
                   .minimum = -largest_integer,
                   .maximum = largest_integer };
    if (!tkc_json_object(&j))
        return false;
    while (tkc_json_key(&j, &key)) {
        if ((part = part_of(s, key)))
            *part = tkc_json_skip(&j);
        else if (tkc_str_is(key, "$ref"))
            s->ref = tkc_json_string(&j);
        else if (tkc_str_is(key, "pattern"))
            s->pattern = tkc_json_string(&j);
        else if (tkc_str_is(key, "$defs") || tkc_str_is(key, "definitions"))
            tkc_json_skip(&j); /* read from the root, before */
        else if (is_annotation(key))
            tkc_json_skip(&j);
        else if (!read_count(&j, key, s) && !tkc_failed(m->err))
            return refuse(m, "this keyword of JSON schema is not supported", key);
    }
    return !tkc_failed(m->err);
}

static bool make_untyped(maker *m, uint32_t at, const schema *s)
{
    const char *type = s->properties.data || s->required.data || s->additional.data ? "object"
                       : s->items.data || s->has_items                              ? "array"
                       : s->has_length || s->pattern.data                           ? "string"
                                                                                    : NULL;
    if (type)
        return make_type(m, at, s, tkc_str(type));
    if (s->has_range)
        return tkc_fail(m->err, TINKC_E_BAD_REQUEST,
                        "minimum and maximum need \"type\": \"integer\"");
    uint32_t any = any_node(m), *branch = room(m, 1, sizeof *branch);
    if (tkc_failed(m->err))
        return false;
    *branch = any;
    m->g->nodes[at].branches = branch;
    m->g->nodes[at].n = 1;
    return true;
}

static bool make_one(maker *m, uint32_t at, tinkc_str text)
{
    schema s;
    if (tkc_str_is(text, "true"))
        return make_untyped(m, at, &(schema){ 0 });
    if (!read_schema(m, text, &s))
        return false;
    if (s.ref.data)
        return make_ref(m, at, s.ref);
    if (s.values.data || s.constant.data)
        return make_values(m, at, &s);
    if (s.any_of.data && (s.type.data || s.properties.data))
        return tkc_fail(m->err, TINKC_E_BAD_REQUEST, "anyOf is supported with nothing beside it");
    if (s.any_of.data)
        return make_any_of(m, at, s.any_of);
    return s.type.data ? make_types(m, at, &s) : make_untyped(m, at, &s);
}

/* Fills the node in. */
static bool make(maker *m, uint32_t at, tinkc_str text)
{
    if (tkc_failed(m->err))
        return false;
    if (m->depth == MOST_DEPTH)
        return tkc_fail(m->err, TINKC_E_BAD_REQUEST, "the schema is nested more than %d deep",
                        MOST_DEPTH);
    m->depth++;
    bool ok = make_one(m, at, text);
    m->depth--;
    return ok && !tkc_failed(m->err);
}

/* ---- whole grammars ---- */

static maker begin(tke_grammar *g, tkc_arena *arena, tinkc_error *err)
{
    *g = (tke_grammar){ 0 };
    maker m = { .g = g, .arena = arena, .err = err };
    m.defs = room(&m, MOST_DEFS, sizeof *m.defs);
    g->key = add_node(&m, (tke_node){ .kind = TKE_NODE_STRING, .max = INT32_MAX });
    return m;
}

static void find_defs(maker *m, tinkc_str text)
{
    tkc_json j = reader(m, text);
    tinkc_str key;
    m->n_defs = 0;
    if (tkc_json_peek(&j) != TKC_JSON_OBJECT || !tkc_json_object(&j))
        return;
    while (tkc_json_key(&j, &key))
        if (tkc_str_is(key, "$defs") || tkc_str_is(key, "definitions"))
            read_defs(m, tkc_json_skip(&j));
        else
            tkc_json_skip(&j);
}

/* The texts of a schema; data NULL = any object. */
static uint32_t add_schema(maker *m, tinkc_str text)
{
    if (text.data)
        find_defs(m, text);
    return child(m, text.data ? text : tkc_str("{\"type\":\"object\"}"));
}

static uint32_t add_calls(maker *m, const tke_called *calls, size_t n)
{
    tke_option *options = room(m, n, sizeof *options);
    uint32_t at = add_node(m, (tke_node){ .kind = TKE_NODE_CHOICE });
    for (size_t i = 0; options && i < n && !tkc_failed(m->err); i++) {
        options[i] =
            (tke_option){ .text = calls[i].text, .has_value = true, .tail = calls[i].tail };
        options[i].node = add_schema(m, calls[i].schema);
    }
    (void)set_choice(m, at, options, n);
    return at;
}

bool tke_json_grammar(tke_grammar *g, tkc_arena *arena, tinkc_str text, tinkc_error *err)
{
    maker m = begin(g, arena, err);
    g->root = add_schema(&m, text);
    return !tkc_failed(err) && tke_grammar_settle(g, err);
}

bool tke_call_grammar(tke_grammar *g, tkc_arena *arena, const tke_called *calls, size_t n,
                      tinkc_error *err)
{
    maker m = begin(g, arena, err);
    g->root = add_calls(&m, calls, n);
    return !tkc_failed(err) && tke_grammar_settle(g, err);
}

bool tke_call_or_json_grammar(tke_grammar *g, tkc_arena *arena, const tke_called *calls, size_t n,
                              tinkc_str text, tinkc_error *err)
{
    maker m = begin(g, arena, err);
    uint32_t *branches = room(&m, 2, sizeof *branches);
    g->root = add_node(&m, (tke_node){ .kind = TKE_NODE_EITHER });
    if (!branches || tkc_failed(err))
        return false;
    branches[0] = add_calls(&m, calls, n);
    branches[1] = add_schema(&m, text);
    if (tkc_failed(err))
        return false;
    g->nodes[g->root].branches = branches;
    g->nodes[g->root].n = 2;
    return tke_grammar_settle(g, err);
}
