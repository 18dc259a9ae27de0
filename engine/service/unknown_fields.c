/* unknown_fields.c - finds fields of a request that this server does not know.
 *
 * No field is ignored silently: an unknown field with a value is refused by name. A field without
 * one (null, false, 0, an empty string, list or object) is a newer client's default, and harmless.
 */
#include "service/service_state.h"

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

/* The first unknown member of the object that comes next, or of an object inside it. */
static const char *find_in(tkc_json *j, const tkc_message *type, const char *const *more,
                           tkc_arena *arena)
{
    tinkc_str key;
    const char *found = NULL;
    if (!tkc_json_object(j))
        return NULL;
    while (!found && tkc_json_key(j, &key)) {
        const tkc_field *field = field_of(type, key);
        bool nested = field && (field->kind == TKC_OBJECT || field->kind == TKC_OBJECT_PTR) &&
                      tkc_json_peek(j) == TKC_JSON_OBJECT;
        if (nested)
            found = find_in(j, field->type, NULL, arena);
        else if (field || is_listed(more, key))
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

bool tke_call_fields_known(tke_call *call, const tkc_message *type)
{
    const char *unknown = tke_unknown_field(&call->arena, call->body, type, NULL);
    if (unknown)
        tke_refuse(call, 400, "unknown_field", "This server does not know the field '%.100s'",
                   unknown);
    return !unknown;
}
