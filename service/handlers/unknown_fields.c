/* unknown_fields.c - refuses fields and query parameters of a request that this server does not know,
 * and those given twice. The decoder notes unknown fields of JSON (wire/message_codec.h).
 *
 * No field is ignored silently: an unknown field with a value is refused by name. A field without
 * one (null, false, 0, an empty string, list or object) is a newer client's default, and harmless.
 * Protobuf does not send defaults, and has numbers instead of names; there the wrong type would be
 * ignored, too. Of two fields with one name only one would count.
 */
#include <stdio.h>

#include "codec/pb.h"
#include "codec/query.h"
#include "codec/url.h"
#include "codec/utf8.h"
#include "service/chat/chat_paths.h"
#include "service/core/service_state.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/handlers.h"
#include "service/handlers/unknown_fields.h"
#include "wire/bulk.h"

/* Length of a name in a message. */
static int shown(tinkc_str name)
{
    if (!tkc_utf8_valid(name.data, name.len))
        return 0;
    return (int)(name.len <= 60 ? name.len : tkc_utf8_prefix(name.data, 60));
}

static bool is_listed(const char *const *names, tinkc_str key)
{
    for (; names && *names; names++)
        if (tkc_str_is(key, *names))
            return true;
    return false;
}

/* ---- protobuf ---- */

struct pb_shape;

/* once: 0 = may be repeated; fields with one number exclude each other. */
typedef struct pb_field {
    uint8_t wire, once;
    const struct pb_shape *inside; /* a message too */
} pb_field;

/* Fields 1 to n are known. */
typedef struct pb_shape {
    const char *name;
    uint32_t n;
    pb_field fields[8];
} pb_shape;

enum { NUMBER = TKC_PB_VARINT, DOUBLE = TKC_PB_FIXED64, BYTES = TKC_PB_BYTES };

static const pb_shape pb_sparse = {
    "a sparse tensor", 3, { [1] = { BYTES, 1, NULL }, { BYTES, 2, NULL }, { BYTES, 3, NULL } }
};
static const pb_shape pb_tensor = {
    "a tensor",
    4,
    { [1] = { BYTES, 1, NULL }, { BYTES, 1, &pb_sparse }, { NUMBER, 2, NULL }, { BYTES, 0, NULL } }
};
static const pb_shape pb_input = { "a loss input",
                                   2,
                                   { [1] = { BYTES, 1, NULL }, { BYTES, 2, &pb_tensor } } };
static const pb_shape pb_text = { "a text chunk", 1, { [1] = { BYTES, 1, NULL } } };
static const pb_shape pb_image = {
    "an image", 3, { [1] = { BYTES, 1, NULL }, { BYTES, 2, NULL }, { NUMBER, 3, NULL } }
};
static const pb_shape pb_dmel = { "a dmel chunk", 1, { [1] = { BYTES, 1, NULL } } };
static const pb_shape pb_chunk = {
    "a chunk", 3, { [1] = { BYTES, 1, &pb_text }, { BYTES, 1, &pb_image }, { BYTES, 1, &pb_dmel } }
};
static const pb_shape pb_datum = { "a datum",
                                   4,
                                   { [1] = { BYTES, 0, &pb_chunk },
                                     { BYTES, 0, &pb_input },
                                     { BYTES, 0, NULL },
                                     { BYTES, 0, NULL } } };
static const pb_shape pb_config = { "loss_fn_config",
                                    2,
                                    { [1] = { BYTES, 1, NULL }, { DOUBLE, 2, NULL } } };
static const pb_shape pb_value = { "a value of loss_fn_config_v2",
                                   2,
                                   { [1] = { DOUBLE, 1, NULL }, { BYTES, 1, NULL } } };
static const pb_shape pb_config_v2 = { "loss_fn_config_v2",
                                       2,
                                       { [1] = { BYTES, 1, NULL }, { BYTES, 2, &pb_value } } };
static const pb_shape pb_pass = { "the request",
                                  7,
                                  { [1] = { BYTES, 1, NULL },
                                    { NUMBER, 2, NULL },
                                    { BYTES, 0, &pb_datum },
                                    { BYTES, 3, NULL },
                                    { BYTES, 0, &pb_config },
                                    { NUMBER, 4, NULL },
                                    { BYTES, 0, &pb_config_v2 } } };

/* The shape of a tensor is a list of numbers, which may be packed into bytes or not. */
static bool has_type(const pb_shape *shape, const tkc_pb *p)
{
    return p->wire == shape->fields[p->field].wire ||
           (shape == &pb_tensor && tkc_pb_is(p, 4, TKC_PB_VARINT));
}

/* The depth is that of the tables above. */
static bool find_in_pb(tinkc_bytes bytes, const pb_shape *shape, char *out, size_t size)
{
    tkc_pb p;
    uint32_t seen = 0;
    tkc_pb_open(&p, bytes);
    while (tkc_pb_next(&p)) {
        bool known = p.field <= shape->n;
        uint32_t once = known ? shape->fields[p.field].once : 0;
        const char *why = !known                 ? ""
                          : !has_type(shape, &p) ? " has the wrong type"
                          : once && seen >> once & 1
                              ? " is given twice, or with one that excludes it"
                              : NULL;
        if (why) {
            (void)snprintf(out, size, "%s protobuf field %lu of %s%s",
                           known ? "the" : "this server does not know the", (unsigned long)p.field,
                           shape->name, why);
            return true;
        }
        seen |= (uint32_t)1 << once;
        if (shape->fields[p.field].inside &&
            find_in_pb(p.bytes, shape->fields[p.field].inside, out, size))
            return true;
    }
    return false;
}

/* ---- names in maps of protobuf ---- */

static tinkc_str text_of(tinkc_bytes bytes)
{
    return bytes.len ? tkc_strn((const char *)bytes.data, bytes.len) : tkc_str("");
}

/* Key and value of an entry; the value's `wire` and `field` are 0 if it has none. */
static tinkc_str entry_of(tinkc_bytes entry, tkc_pb *value)
{
    tkc_pb p;
    tinkc_str key = tkc_str("");
    *value = (tkc_pb){ 0 };
    tkc_pb_open(&p, entry);
    while (tkc_pb_next(&p))
        if (p.field == 1)
            key = text_of(p.bytes);
        else
            *value = p;
    return key;
}

/* A name that two entries of this map have; data NULL: none. */
static tinkc_str repeated_in(tinkc_bytes message, uint32_t field, tkc_arena *arena,
                             tinkc_error *err)
{
    tkc_pb p, value;
    size_t n = tkc_bulk_count(message, field), i = 0;
    tinkc_str *names = tkc_arena_array(arena, n, sizeof *names, err);
    tkc_pb_open(&p, message);
    while (names && tkc_pb_next(&p))
        if (tkc_pb_is(&p, field, TKC_PB_BYTES))
            names[i++] = entry_of(p.bytes, &value);
    return names ? tkc_repeated_name(names, i) : (tinkc_str){ NULL, 0 };
}

/* SDKs since 0.36 send the numbers of loss_fn_config a second time, in loss_fn_config_v2. One that
 * is only there, or differs, would be ignored. Texts are only there: decoding takes or refuses them. */
static bool agrees(const tkc_numbers *config, tinkc_bytes entry)
{
    tkc_pb value, number;
    double there = 0;
    tinkc_str name = entry_of(entry, &value);
    tkc_pb_open(&number, value.bytes);
    while (tkc_pb_next(&number)) {
        if (tkc_pb_is(&number, 2, TKC_PB_BYTES))
            return true;
        if (tkc_pb_is(&number, 1, TKC_PB_FIXED64))
            memcpy(&there, &number.number, sizeof there);
    }
    for (size_t i = 0; i < config->len; i++)
        if (tkc_str_is(name, config->names[i]))
            return memcmp(&there, &config->values[i], sizeof there) == 0;
    return false;
}

enum { MANY_NAMES = 64 }; /* no valid request has more, and comparing takes quadratic time */

static bool find_in_names(tinkc_bytes bytes, const tkc_numbers *config, tkc_arena *arena, char *out,
                          size_t size, tinkc_error *err)
{
    tkc_pb p, value;
    tinkc_str twice = repeated_in(bytes, 5, arena, err);
    if (!twice.data)
        twice = repeated_in(bytes, 7, arena, err);
    if (twice.data) {
        (void)snprintf(out, size, "loss_fn_config has '%.*s' twice", shown(twice), twice.data);
        return true;
    }
    tkc_pb_open(&p, bytes);
    while (tkc_pb_next(&p) && !tkc_failed(err)) {
        if (p.field == 3 && (twice = repeated_in(p.bytes, 2, arena, err)).data) {
            (void)snprintf(out, size, "loss_fn_inputs has '%.*s' twice", shown(twice), twice.data);
            return true;
        }
        if (p.field == 7 && config->len <= MANY_NAMES && !agrees(config, p.bytes)) {
            tinkc_str name = entry_of(p.bytes, &value);
            (void)snprintf(out, size, "loss_fn_config_v2 '%.*s' differs from loss_fn_config",
                           shown(name), name.data);
            return true;
        }
    }
    return false;
}

bool tke_bad_field_in_pass(tinkc_str body, const tkc_numbers *config, tkc_arena *arena, char *out,
                           size_t size, tinkc_error *err)
{
    tinkc_bytes bytes = { (const unsigned char *)body.data, body.len };
    return find_in_pb(bytes, &pb_pass, out, size) ||
           (config && find_in_names(bytes, config, arena, out, size, err));
}

/* ---- names that an object has twice ---- */

bool tke_call_names_unique(tke_call *call)
{
    if (!call->body.len || tke_call_is_protobuf(call))
        return true;
    tinkc_str twice = tkc_json_repeated(call->body, &call->arena, &call->err);
    if (tkc_failed(&call->err)) {
        tke_send_failure(call->reply, call->svc->a, &call->err);
        return false;
    }
    if (!twice.data)
        return true;
    tke_refuse_after(call, tke_handle_refused(call), 400, "repeated_field",
                     "An object of the request has the field '%.*s' twice", shown(twice),
                     twice.data);
    return false;
}

bool tke_call_fields_known(tke_call *call)
{
    if (call->unknown)
        tke_refuse(call, 400, "unknown_field", "This server does not know the field '%.100s'",
                   call->unknown);
    return !call->unknown;
}

bool tke_call_bodiless(tke_call *call)
{
    const tkc_endpoint *endpoint = call->route.endpoint;
    tkc_empty nothing;
    if (!endpoint || endpoint->request_encoding != TKC_ENC_NONE || !call->body.len)
        return true;
    return tke_call_decode(call, &tkc_empty_type, &nothing);
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
/* Sent by clients made for Azure, and by Anthropic's for what is in beta. */
static const char *const of_openai[] = { "api-version", "beta", NULL };
static const char *const of_models[] = { "beta", "limit", "after_id", "before_id", NULL };

static const char *const *known_parameters(const tke_call *call)
{
    if (call->route.endpoint)
        return parameters[call->route.endpoint->id];
    if (call->anthropic && tkc_str_is(call->path, TKE_CHAT_MODELS))
        return of_models;
    return call->openai ? of_openai : NULL;
}

static bool refuse_parameter(tke_call *call, const char *name, const char *why)
{
    char text[200];
    (void)snprintf(text, sizeof text, "%s '%.100s'", why, name);
    if (call->openai)
        tke_openai_refuse(call, 400, "unknown_parameter", name, text);
    else
        tke_refuse_after(call, tke_handle_refused(call), 400, "unknown_parameter", "%s", text);
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
    const char *const *known = known_parameters(call);
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
