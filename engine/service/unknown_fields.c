/* unknown_fields.c - finds fields and query parameters of a request that this server does not know.
 *
 * No field is ignored silently: an unknown field with a value is refused by name. A field without
 * one (null, false, 0, an empty string, list or object) is a newer client's default, and harmless.
 * Protobuf does not send defaults, and has numbers instead of names.
 */
#include <stdio.h>

#include "codec/pb.h"
#include "codec/query.h"
#include "codec/url.h"
#include "service/service_state.h"

/* Known everywhere: they change nothing. Spans say which sample a datum's tokens come from. */
static const char *const harmless[] = { "type", "model_input_spans", "loss_fn_input_spans", NULL };

static const tkc_field *field_of(const tkc_message *type, tinkc_str key)
{
    for (size_t i = 0; i < type->n_fields; i++)
        if (type->fields[i].name && tkc_str_is(key, type->fields[i].name))
            return &type->fields[i];
    return NULL;
}

static bool is_listed(const char *const *names, tinkc_str key)
{
    for (; names && *names; names++)
        if (tkc_str_is(key, *names))
            return true;
    return false;
}

/* Reads a value; false if it is null, false, 0 or empty. */
static bool says_something(tkc_json *j)
{
    tinkc_str key;
    switch (tkc_json_peek(j)) {
    case TKC_JSON_NULL:
        tkc_json_skip(j);
        return false;
    case TKC_JSON_TRUE:
    case TKC_JSON_FALSE:
        return tkc_json_bool(j);
    case TKC_JSON_NUMBER: {
        double number = tkc_json_double(j);
        return number < 0 || number > 0;
    }
    case TKC_JSON_STRING:
        return tkc_json_string(j).len > 0;
    default:
        break;
    }
    tkc_json ahead = *j;
    bool any = tkc_json_peek(j) == TKC_JSON_ARRAY
                   ? tkc_json_array(&ahead) && tkc_json_item(&ahead)
                   : tkc_json_object(&ahead) && tkc_json_key(&ahead, &key);
    tkc_json_skip(j);
    return any;
}

/* The message that describes the objects in a field; NULL = it has none. */
static const tkc_message *inside(const tkc_field *field, bool *is_map)
{
    const tkc_custom *custom = field->kind == TKC_CUSTOM ? field->type : NULL;
    *is_map = field->kind == TKC_MAP || (custom && custom->is_map);
    switch (field->kind) {
    case TKC_OBJECT:
    case TKC_OBJECT_PTR:
    case TKC_OBJECTS:
    case TKC_MAP:
        return field->type;
    default:
        return custom ? custom->members : NULL;
    }
}

static const char *find_in(tkc_json *j, const tkc_message *type, const char *const *more,
                           tkc_arena *arena);

/* The first unknown member in the value that comes next: an object, a list or a map of them. */
static const char *find_below(tkc_json *j, const tkc_field *field, tkc_arena *arena)
{
    bool is_map;
    const tkc_message *type = inside(field, &is_map);
    const char *found = NULL;
    tinkc_str key;
    int kind = tkc_json_peek(j);
    if (type && kind == TKC_JSON_ARRAY && tkc_json_array(j)) {
        while (!found && tkc_json_item(j))
            found = find_in(j, type, NULL, arena);
    } else if (type && is_map && kind == TKC_JSON_OBJECT && tkc_json_object(j)) {
        while (!found && tkc_json_key(j, &key))
            found = find_in(j, type, NULL, arena);
    } else if (type && kind == TKC_JSON_OBJECT) {
        found = find_in(j, type, NULL, arena);
    } else {
        tkc_json_skip(j);
    }
    return found;
}

/* The first unknown member of the object that comes next, or of an object inside it. */
static const char *find_in(tkc_json *j, const tkc_message *type, const char *const *more,
                           tkc_arena *arena)
{
    tinkc_str key;
    const char *found = NULL;
    if (tkc_json_peek(j) != TKC_JSON_OBJECT) {
        tkc_json_skip(j); /* the decoder has refused it, or takes it */
        return NULL;
    }
    (void)tkc_json_object(j);
    while (!found && tkc_json_key(j, &key)) {
        const tkc_field *field = field_of(type, key);
        if (field)
            found = find_below(j, field, arena);
        else if (is_listed(harmless, key) || is_listed(more, key))
            tkc_json_skip(j);
        else if (says_something(j))
            found = tkc_arena_str(arena, key, j->err);
    }
    return found;
}

const char *tke_unknown_field(tkc_arena *arena, tinkc_str body, const tkc_message *type,
                              const char *const *more)
{
    tinkc_error err = { 0 };
    tkc_json j;
    tkc_json_open(&j, body, arena, &err);
    const char *found = find_in(&j, type, more, arena);
    return tkc_failed(&err) ? NULL : found;
}

/* ---- protobuf ---- */

/* Fields 1 to n are known; those of inside[] are messages too. */
typedef struct pb_shape {
    const char *name;
    uint32_t n;
    const struct pb_shape *inside[4];
} pb_shape;

static const pb_shape pb_tensor = { "a tensor", 4, { NULL } };
static const pb_shape pb_input = { "a loss input", 2, { NULL, NULL, &pb_tensor } };
static const pb_shape pb_text = { "a text chunk", 1, { NULL } };
static const pb_shape pb_chunk = { "a chunk", 3, { NULL, &pb_text } };
static const pb_shape pb_datum = { "a datum", 4, { NULL, &pb_chunk, &pb_input } };
static const pb_shape pb_pass = { "the request", 7, { NULL, NULL, NULL, &pb_datum } };

/* The depth is that of the tables above. */
static bool find_in_pb(tinkc_bytes bytes, const pb_shape *shape, char *out, size_t size)
{
    tkc_pb p;
    tkc_pb_open(&p, bytes);
    while (tkc_pb_next(&p)) {
        const pb_shape *below =
            p.field < 4 && p.wire == TKC_PB_BYTES ? shape->inside[p.field] : NULL;
        if (p.field > shape->n) {
            (void)snprintf(out, size, "%lu of %s", (unsigned long)p.field, shape->name);
            return true;
        }
        if (below && find_in_pb(p.bytes, below, out, size))
            return true;
    }
    return false;
}

bool tke_unknown_in_pass(tinkc_str body, char *out, size_t size)
{
    return find_in_pb((tinkc_bytes){ (const unsigned char *)body.data, body.len }, &pb_pass, out,
                      size);
}

bool tke_call_fields_known(tke_call *call, const tkc_message *type)
{
    const char *unknown = tke_unknown_field(&call->arena, call->body, type, NULL);
    if (unknown)
        tke_refuse(call, 400, "unknown_field", "This server does not know the field '%.100s'",
                   unknown);
    return !unknown;
}

/* ---- query parameters ---- */

enum { MOST_PARAMETERS = 4 };

/* Endpoints that are not listed have none. Sessions are never shared, so there access_scope, which
 * clients send, changes nothing. */
static const char *const parameters[TKC_EP_COUNT][MOST_PARAMETERS + 1] = {
    [TKC_EP_TRAINING_RUN] = { "access_scope" },
    [TKC_EP_TRAINING_RUNS] = { "limit", "offset", "access_scope", "project_id" },
    [TKC_EP_CHECKPOINTS] = { "limit", "offset" },
    [TKC_EP_SESSIONS] = { "limit", "offset", "access_scope" },
    [TKC_EP_SESSION] = { "access_scope" },
    [TKC_EP_AUDIT] = { "event_type", "day" },
    [TKC_EP_USAGE] = { "starting_on", "ending_before" },
    [TKC_EP_STORAGE] = { "project_id" },
};
static const char *const of_openai[] = { "api-version", NULL }; /* sent by clients made for Azure */

static bool refuse_parameter(tke_call *call, const char *name, const char *why)
{
    char text[200];
    (void)snprintf(text, sizeof text, "%s '%.100s'", why, name);
    if (call->openai)
        tke_openai_refuse(call, 400, "unknown_parameter", name, text);
    else
        tke_refuse_after(call, tke_front_refused(call), 400, "unknown_parameter", "%s", text);
    return false;
}

static bool is_given_before(tke_call *call, size_t until, const char *name)
{
    return name && tkc_query_find(tkc_strn(call->query.data, until), name, &call->arena,
                                  &call->err) != NULL;
}

bool tke_call_query_known(tke_call *call)
{
    const tkc_endpoint *endpoint = call->route.endpoint;
    tinkc_str rest = call->query, pair;
    if (endpoint && endpoint->id == TKC_EP_HEALTH)
        return true; /* monitors add what defeats caches */
    const char *const *known = endpoint ? parameters[endpoint->id] : of_openai;
    while (tkc_str_cut(&rest, '&', &pair)) {
        size_t equals = tkc_str_find(pair, '=');
        const char *name = tkc_form_decode(tkc_strn(pair.data, equals), &call->arena, &call->err);
        const char *all = tkc_form_decode(pair, &call->arena, &call->err);
        bool again = is_given_before(call, (size_t)(pair.data - call->query.data), name);
        if (tkc_failed(&call->err)) {
            tke_send_failure(call->reply, call->svc->a, &call->err);
            return false;
        }
        if (!name || !all) {
            tke_refuse(call, 400, "bad_request", "The query is not percent-encoded UTF-8");
            return false;
        }
        if (pair.len && !is_listed(known, tkc_str(name)))
            return refuse_parameter(call, name, "This server does not know the query parameter");
        if (pair.len && again)
            return refuse_parameter(call, name, "The query has more than one parameter");
    }
    return true;
}
