/* openai_messages.c - the messages of a chat request, as chat templates take them.
 *
 * OpenAI's clients may send a content as a list of parts. Templates of text models take a string,
 * so parts of text are joined; other parts are refused by place and type. A template may drop a
 * message whose role it does not know, so such a role is refused, and so is a member that it does not
 * name. All else is kept as sent: templates read members of their own. Pure.
 */
#include <string.h>

#include "base/str.h"
#include "service/chat/chat_state.h"
#include "service/handlers/unknown_fields.h"

/* They tell the model nothing: labels, hints to other services, and what a model has thought or
 * refused before, which templates leave out on purpose. */
static bool is_harmless(tinkc_str key)
{
    static const char *const names[] = { "name",
                                         "tool_call_id",
                                         "cache_control",
                                         "id",
                                         "annotations",
                                         "refusal",
                                         "reasoning",
                                         "phase",
                                         "reasoning_content",
                                         "provider_specific_fields" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tkc_str_is(key, names[i]))
            return true;
    return false;
}

/* The text of the part that comes next, after those in `out`. */
static bool add_part(tkc_json *j, tkc_buf *out, size_t message, size_t part)
{
    tinkc_str key, type = { 0 }, text = { 0 }, unknown = { 0 };
    if (tkc_json_peek(j) == TKC_JSON_STRING) {
        tinkc_str plain = tkc_json_string(j);
        return tkc_buf_add(out, plain.data, plain.len, j->err);
    }
    bool object = tkc_json_peek(j) == TKC_JSON_OBJECT;
    if (object)
        (void)tkc_json_object(j);
    else
        (void)tkc_json_skip(j);
    while (object && tkc_json_key(j, &key)) {
        bool string = tkc_json_peek(j) == TKC_JSON_STRING;
        if (string && tkc_str_is(key, "type"))
            type = tkc_json_string(j);
        else if (string && tkc_str_is(key, "text"))
            text = tkc_json_string(j);
        else if (tkc_json_is_set(j) && !is_harmless(key) && !unknown.data)
            unknown = key;
    }
    if (!tkc_failed(j->err) && (!tkc_str_is(type, "text") || !text.data))
        return tkc_fail(j->err, TINKC_E_BAD_REQUEST,
                        "messages[%zu].content[%zu]: type '%.*s': this server takes parts of type "
                        "text, with their text, only",
                        message, part, (int)(type.len < 40 ? type.len : 40),
                        type.data ? type.data : "");
    if (!tkc_failed(j->err) && unknown.data)
        return tkc_fail(j->err, TINKC_E_BAD_REQUEST,
                        "messages[%zu].content[%zu].%.*s: this server does not know it", message,
                        part, (int)(unknown.len < 40 ? unknown.len : 40), unknown.data);
    return !tkc_failed(j->err) && tkc_buf_add(out, text.data, text.len, j->err);
}

static void write_parts(tkc_json *j, tkc_jsonw *w, size_t message)
{
    tkc_buf text;
    tkc_buf_init(&text, w->out->a, TKC_BUF_NO_MAX);
    bool ok = tkc_json_array(j);
    for (size_t i = 0; ok && tkc_json_item(j); i++)
        ok = add_part(j, &text, message, i);
    if (ok)
        tkc_jsonw_str(w, tkc_buf_view(&text));
    tkc_buf_free(&text);
}

/* One of OpenAI's, or one that the template names in quotes. */
static bool is_role(tinkc_str role, const char *template)
{
    static const char *const roles[] = { "system",    "developer", "user",
                                         "assistant", "tool",      "function" };
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (tkc_str_is(role, roles[i]))
            return true;
    const char *at = role.len ? template : NULL;
    while (at && (at = memmem(at, strlen(at), role.data, role.len))) {
        if (at > template && strchr("'\"", at[-1]) && at[role.len] == at[-1])
            return true;
        at++;
    }
    return false;
}

static void write_role(tkc_json *j, tkc_jsonw *w, const char *template, size_t i)
{
    bool string = tkc_json_peek(j) == TKC_JSON_STRING;
    tinkc_str role = string ? tkc_json_string(j) : tkc_json_skip(j);
    if (!tkc_failed(j->err) && !(string && is_role(role, template)))
        tkc_fail(j->err, TINKC_E_BAD_REQUEST,
                 "messages[%zu].role: '%.*s' is neither a role of this API nor of the model's chat "
                 "template",
                 i, (int)(role.len < 40 ? role.len : 40), role.data);
    tkc_jsonw_str(w, role);
}

/* A member that is neither harmless nor named by the template would be dropped. */
static void check_member(tkc_json *j, tinkc_str key, const char *template, size_t i)
{
    tkc_json ahead = *j;
    bool named = !template || tkc_str_is(key, "content") || is_harmless(key) ||
                 (key.len && memmem(template, strlen(template), key.data, key.len));
    if (!named && tkc_json_is_set(&ahead) && !tkc_failed(j->err))
        tkc_fail(j->err, TINKC_E_BAD_REQUEST,
                 "messages[%zu].%.*s: the model's chat template has no place for it", i,
                 (int)(key.len < 40 ? key.len : 40), key.data);
}

static void write_message(tkc_json *j, tkc_jsonw *w, const char *template, size_t i)
{
    tinkc_str key;
    bool has_role = false;
    (void)tkc_json_object(j);
    tkc_jsonw_object(w);
    while (tkc_json_key(j, &key)) {
        tkc_jsonw_key_str(w, key);
        if (!tkc_str_is(key, "role"))
            check_member(j, key, template, i);
        if (tkc_str_is(key, "role")) {
            write_role(j, w, template, i);
            has_role = true;
        } else if (tkc_str_is(key, "content") && tkc_json_peek(j) == TKC_JSON_ARRAY)
            write_parts(j, w, i);
        else
            tkc_jsonw_raw(w, tkc_json_skip(j));
    }
    if (!has_role && !tkc_failed(j->err))
        tkc_fail(j->err, TINKC_E_BAD_REQUEST, "messages[%zu]: role is missing", i);
    tkc_jsonw_end(w);
}

bool tke_openai_messages(tinkc_str messages, const char *template, tkc_arena *arena, tkc_buf *out,
                         tinkc_error *err)
{
    tkc_json j;
    tkc_jsonw w;
    tkc_json_open(&j, messages, arena, err);
    tkc_jsonw_open(&w, out, err);
    (void)tkc_json_array(&j);
    tkc_jsonw_array(&w);
    for (size_t i = 0; !tkc_failed(err) && tkc_json_item(&j); i++)
        if (tkc_json_peek(&j) == TKC_JSON_OBJECT)
            write_message(&j, &w, template, i);
        else
            tkc_jsonw_raw(&w, tkc_json_skip(&j)); /* refused with the template's other needs */
    tkc_jsonw_end(&w);
    return !tkc_failed(err);
}
