/* chat_calls.c - tool calls of OpenAI's clients in the forms that a template reads.
 *
 * OpenAI's API has the arguments of a call as JSON text, and null as the content of a message that only
 * calls. Templates differ: most take the arguments as an object (given a text they fail, or write it
 * once more as a string), some add a text to others; some need a content, some tell by null that there
 * is none. What a template takes is found by rendering a small conversation. Touches the chat's own
 * values only, before they are rendered.
 */
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "chat/chat.h"

#define KEY   "probe_key"
#define VALUE "probe_value"

static const char as_object[] = "{\"" KEY "\":\"" VALUE "\"}";
static const char as_text[] = "\"{\\\"" KEY "\\\":\\\"" VALUE "\\\"}\"";

static bool holds(tinkc_str s, const char *part)
{
    return memmem(s.data, s.len, part, strlen(part)) != NULL;
}

/* Does the template write such a call, and not as Python shows an object or none, or a text in quotes? */
static bool writes(tkc_chat *c, bool null, const char *arguments)
{
    tinkc_error err = { 0 };
    tkc_rendered out;
    const char *json = tkc_arena_printf(
        &c->arena, c->err,
        "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":%s,\"tool_"
        "calls\":"
        "[{\"id\":\"call00000\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":%"
        "s}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"call00000\",\"name\":\"f\",\"content\":\"y\"}]",
        null ? "null" : "\"\"", arguments);
    if (!json)
        return false;
    tkc_jv messages = tkc_jv_from_json(&c->reader, tkc_str(json), TINKC_E_ARGUMENT, "messages");
    bool ok = tkc_chat_run(c, messages, false, &out, &err);
    if (err.code == TINKC_E_MEMORY)
        tkc_error_copy(c->err, &err);
    return ok && holds(out.text, VALUE) && !holds(out.text, "'" KEY "'") &&
           !holds(out.text, "\\\"" KEY) && !(null && holds(out.text, "None"));
}

/* ---- what the messages have ---- */

static tkc_jv *member(tkc_chat *c, tkc_jv dict, const char *name, uint8_t kind)
{
    tkc_jv *v = dict.kind == TKC_JV_DICT ? tkc_jdict_str(&c->reader, dict.d, tkc_str(name)) : NULL;
    return v && v->kind == kind ? v : NULL;
}

static const tkc_jlist *calls_of(tkc_chat *c, tkc_jv message)
{
    const tkc_jv *calls = member(c, message, "tool_calls", TKC_JV_LIST);
    return calls && calls->l->len ? calls->l : NULL;
}

/* The arguments of a call, if they are text. */
static tkc_jv *text_of(tkc_chat *c, tkc_jv call)
{
    const tkc_jv *function = member(c, call, "function", TKC_JV_DICT);
    return member(c, function ? *function : call, "arguments", TKC_JV_STR);
}

static bool any_text(tkc_chat *c)
{
    for (size_t i = 0; i < c->messages.l->len; i++) {
        const tkc_jlist *calls = calls_of(c, c->messages.l->items[i]);
        for (size_t k = 0; calls && k < calls->len; k++)
            if (text_of(c, calls->items[k]))
                return true;
    }
    return false;
}

/* A text that is not a JSON object stays as it is; an empty one is {}. */
static void parse(tkc_chat *c, tkc_jv *arguments)
{
    tinkc_error err = { 0 }, *outer = c->reader.err;
    tinkc_str text = tkc_str_trim(tkc_jv_text(*arguments));
    c->reader.err = &err;
    tkc_jv v = tkc_jv_from_json(&c->reader, text.len ? text : tkc_str("{}"), TINKC_E_ARGUMENT,
                                "arguments");
    c->reader.err = outer;
    if (v.kind == TKC_JV_DICT)
        *arguments = v;
    else if (err.code == TINKC_E_MEMORY)
        tkc_error_copy(c->err, &err);
}

static void parse_all(tkc_chat *c)
{
    for (size_t i = 0; i < c->messages.l->len; i++) {
        const tkc_jlist *calls = calls_of(c, c->messages.l->items[i]);
        for (size_t k = 0; calls && k < calls->len; k++) {
            tkc_jv *text = text_of(c, calls->items[k]);
            if (text)
                parse(c, text);
        }
    }
}

/* ---- contents ---- */

enum { CONTENT_EMPTY, CONTENT_NULL, CONTENT_TEXT };

static int content_of(tkc_chat *c, tkc_jv message)
{
    const tkc_jv *v = tkc_jdict_str(&c->reader, message.d, tkc_str("content"));
    return !v || v->kind == TKC_JV_NONE                    ? CONTENT_NULL
           : v->kind == TKC_JV_STR && !tkc_jv_text(*v).len ? CONTENT_EMPTY
                                                           : CONTENT_TEXT;
}

static bool is_assistant(tkc_chat *c, tkc_jv message)
{
    const tkc_jv *role = member(c, message, "role", TKC_JV_STR);
    return role && tkc_str_is(tkc_jv_text(*role), "assistant");
}

static bool set_content(tkc_chat *c, tkc_jv message, bool null)
{
    return tkc_jdict_set(&c->reader, message.d, tkc_jv_view(&c->reader, "content", 7),
                         null ? tkc_jv_none : tkc_jv_view(&c->reader, "", 0));
}

/* Where there is no text: null or an empty one, whichever the template takes; as sent if it takes both. */
static bool adapt_contents(tkc_chat *c, const char *arguments)
{
    int takes[2] = { -1, -1 }; /* of CONTENT_*: -1 = not tried */
    for (size_t i = 0; i < c->messages.l->len; i++) {
        tkc_jv message = c->messages.l->items[i];
        int sent = is_assistant(c, message) ? content_of(c, message) : CONTENT_TEXT;
        bool calls = calls_of(c, message) != NULL;
        if (sent == CONTENT_TEXT)
            continue;
        for (int form = 0; calls && form < 2; form++)
            if (takes[form] < 0)
                takes[form] = writes(c, form == CONTENT_NULL, arguments);
        bool null =
            calls && takes[CONTENT_NULL] > 0 && (sent == CONTENT_NULL || takes[CONTENT_EMPTY] == 0);
        if (!set_content(c, message, null))
            return false;
    }
    return true;
}

bool tkc_chat_adapt(tkc_chat *c)
{
    bool texts = any_text(c);
    bool objects = !texts || writes(c, true, as_object) || writes(c, false, as_object);
    if (texts && objects)
        parse_all(c);
    return !tkc_failed(c->err) && adapt_contents(c, objects ? as_object : as_text) &&
           !tkc_failed(c->err);
}
