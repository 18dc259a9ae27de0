/* row_turns.c - turns as messages. Pure: JSON in, JSON out; called by many threads. */
#include "cli/data/row_turns.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output/out.h"

json_t *cli_row_fault_set(cli_row_fault *why, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!why->text[0])
        (void)vsnprintf(why->text, sizeof why->text, format, args);
    va_end(args);
    return NULL;
}

static const char *text_of(const json_t *v, const char *key)
{
    return json_string_value(json_object_get(v, key));
}

static json_t *message(const char *role, const char *content, size_t len)
{
    return json_pack("{s:s,s:s%}", "role", role, "content", content, len);
}

/* ---- roles ---- */

#define CALL "function_call" /* ShareGPT's: its text is a tool call */

static const char *role_of(const char *given, bool openai)
{
    static const char *const roles[][2] = {
        { "function", "tool" }, /* OpenAI's, before tools; the others are not OpenAI's */
        { "human", "user" },        { "prompter", "user" },    { "gpt", "assistant" },
        { "chatgpt", "assistant" }, { "bing", "assistant" },   { "bard", "assistant" },
        { "model", "assistant" },   { "observation", "tool" }, { "function_response", "tool" },
    };
    for (size_t i = 0; i < (openai ? 1 : sizeof roles / sizeof *roles); i++)
        if (strcmp(given, roles[i][0]) == 0)
            return roles[i][1];
    return given; /* the check flags those that no template knows */
}

/* ---- tool calls ---- */

/* {"name", "arguments"} as a tool call of a message; NULL = it is not one. */
static json_t *tool_call(const json_t *v)
{
    const json_t *given = json_object_get(v, "arguments");
    char *dumped = json_is_object(given) ? cli_json_dump(given) : NULL;
    const char *arguments = dumped ? dumped : json_string_value(given), *name = text_of(v, "name");
    json_t *call = name && arguments ? json_pack("{s:s,s:{s:s,s:s}}", "type", "function",
                                                 "function", "name", name, "arguments", arguments)
                                     : NULL;
    free(dumped);
    return call;
}

/* One call, or a list of them; NULL = something else is among them. */
static json_t *tool_calls(const json_t *v)
{
    json_t *calls = json_array();
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++) {
        json_t *call = tool_call(json_is_array(v) ? json_array_get(v, i) : v);
        if (!call)
            return json_decref(calls), NULL;
        json_array_append_new(calls, call);
    }
    return n ? calls : (json_decref(calls), NULL);
}

/* ---- contents ---- */

static bool is_text_part(const json_t *part)
{
    const char *type = text_of(part, "type");
    return type && strcmp(type, "text") == 0 && text_of(part, "text") &&
           json_object_size(part) == 2;
}

/* Parts of text as one text, which every template takes; other contents as they are. */
static json_t *content_of(const json_t *v)
{
    size_t len = 0, n = json_array_size(v);
    for (size_t i = 0; i < n; i++)
        if (!is_text_part(json_array_get(v, i)))
            n = 0;
        else
            len += json_string_length(json_object_get(json_array_get(v, i), "text"));
    char *all = n ? malloc(len + 1) : NULL, *end = all;
    if (!all)
        return json_incref((json_t *)(uintptr_t)v);
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_object_get(json_array_get(v, i), "text");
        memcpy(end, json_string_value(text), json_string_length(text));
        end += json_string_length(text);
    }
    json_t *out = json_stringn(all, len);
    free(all);
    return out;
}

/* ---- turns ---- */

static bool fill_turn(json_t *m, const json_t *given, bool calling)
{
    const json_t *content = json_object_get(given, "value"),
                 *old = json_object_get(given, "function_call");
    content = content ? content : json_object_get(given, "content");
    json_t *text = calling
                       ? json_loads(json_string_value(content) ? json_string_value(content) : "", 0,
                                    NULL)
                       : NULL,
           *calls = calling || old ? tool_calls(calling ? text : old) : NULL;
    bool ok = calls || (!calling && !old && (content || json_object_get(given, "tool_calls")));
    if (calls && !json_is_string(old ? content : NULL))
        json_object_set_new(m, "content", json_string(""));
    else if (ok && content)
        json_object_set_new(m, "content", content_of(content));
    if (calls)
        json_object_set(m, "tool_calls", calls);
    json_decref(calls);
    json_decref(text);
    return ok;
}

/* {"from", "value"} or {"role", "content"}, with members of their own; NULL = not a turn. */
static json_t *turn(const json_t *given, bool openai)
{
    static const char *const spelt[] = { "from", "value", "function_call" };
    const char *from = text_of(given, "from"), *who = from ? from : text_of(given, "role");
    bool calling = who && strcmp(who, CALL) == 0;
    json_t *m =
        who ? json_pack("{s:s}", "role", calling ? "assistant" : role_of(who, openai && !from))
            : NULL;
    if (!m || !fill_turn(m, given, calling))
        return json_decref(m), NULL;
    json_object_update_missing(m, (json_t *)(uintptr_t)given);
    for (size_t i = 0; i < sizeof spelt / sizeof *spelt; i++)
        json_object_del(m, spelt[i]);
    return m;
}

static void put_trimmed(json_t *out, const char *role, const char *from, const char *to)
{
    while (from < to && isspace((unsigned char)*from))
        from++;
    while (from < to && isspace((unsigned char)to[-1]))
        to--;
    json_array_append_new(out, message(role, from, (size_t)(to - from)));
}

/* The nearer of the two beginnings of a turn in hh-rlhf's texts; NULL = there is none. */
static const char *next_speaker(const char *text, const char **role, size_t *len)
{
    static const char human[] = "\n\nHuman:", assistant[] = "\n\nAssistant:";
    const char *h = strstr(text, human), *a = strstr(text, assistant);
    bool first = h && (!a || h < a);
    *role = first ? "user" : "assistant";
    *len = first ? sizeof human - 1 : sizeof assistant - 1;
    return first ? h : a;
}

/* A prompt may end with "\n\nAssistant:" and nothing behind it. */
static json_t *turns_in_text(const char *text)
{
    const char *role, *at = text, *next;
    size_t len;
    json_t *out = json_array();
    while ((at = next_speaker(at, &role, &len))) {
        const char *said = at + len, *unused;
        next = next_speaker(said, &unused, &len);
        put_trimmed(out, role, said, next ? next : said + strlen(said));
        at = said;
    }
    size_t n = json_array_size(out);
    if (n && json_string_length(json_object_get(json_array_get(out, n - 1), "content")) == 0)
        json_array_remove(out, n - 1);
    return json_array_size(out) ? out : (json_decref(out), NULL);
}

static json_t *turns_of_text(const char *text, const char *role)
{
    static const char start[] = "\n\nHuman:";
    json_t *turns = strncmp(text, start, sizeof start - 1) == 0 ? turns_in_text(text) : NULL;
    return turns ? turns : json_pack("[o]", message(role, text, strlen(text)));
}

static json_t *turns_of_number(const json_t *v, const char *role)
{
    char *text = cli_json_dump(v);
    json_t *out = text ? turns_of_text(text, role) : NULL;
    free(text);
    return out;
}

json_t *cli_turns_of(const json_t *v, const char *role, bool openai)
{
    if (json_is_string(v))
        return turns_of_text(json_string_value(v), role);
    if (json_is_number(v))
        return turns_of_number(v, role);
    size_t n = json_is_array(v) ? json_array_size(v) : json_is_object(v);
    json_t *out = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *m = turn(json_is_array(v) ? json_array_get(v, i) : v, openai);
        if (!m)
            return json_decref(out), NULL;
        json_array_append_new(out, m);
    }
    return n ? out : (json_decref(out), NULL);
}

const char *cli_turns_begin(const json_t *messages)
{
    const char *role = text_of(json_array_get(messages, 0), "role");
    return role ? role : "";
}

/* ---- tools ---- */

/* Some data sets leave OpenAI's wrapper out. */
static json_t *tool(const json_t *v)
{
    return json_is_object(v) && text_of(v, "name") && !json_object_get(v, "function")
               ? json_pack("{s:s,s:O}", "type", "function", "function", v)
               : json_incref((json_t *)(uintptr_t)v);
}

json_t *cli_turns_tools(const json_t *row, cli_row_fault *why)
{
    const json_t *v = json_object_get(row, "tools");
    v = v ? v : json_object_get(row, "functions");
    v = v ? v : json_object_get(json_object_get(row, "input"), "tools");
    if (!v || json_is_null(v) || (json_is_string(v) && json_string_length(v) == 0))
        return NULL;
    json_t *list = json_is_string(v) ? json_loads(json_string_value(v), 0, NULL)
                                     : json_incref((json_t *)(uintptr_t)v);
    json_t *out = json_is_array(list) ? json_array() : NULL;
    for (size_t i = 0; i < json_array_size(list); i++)
        json_array_append_new(out, tool(json_array_get(list, i)));
    json_decref(list);
    if (!out)
        return cli_row_fault_set(why, "\"tools\" must be a list, or a list as JSON in a text");
    return json_array_size(out) ? out : (json_decref(out), NULL);
}
