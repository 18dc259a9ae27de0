/* row_turns.c - turns as messages. Pure: JSON in, JSON out; called by many threads. */
#include "cli/data/row_turns.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output/out.h"

tkc_tree *cli_row_fault_set(cli_row_fault *why, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!why->text[0])
        (void)vsnprintf(why->text, sizeof why->text, format, args);
    va_end(args);
    return NULL;
}

static const char *text_of(const tkc_tree *v, const char *key)
{
    return tkc_tree_get_text(v, key);
}

static tkc_tree *message(tkc_arena *arena, const char *role, const char *content, size_t len)
{
    return tkc_tree_pack(arena, "{s:s,s:o}", "role", role, "content",
                         tkc_tree_new_str(arena, tkc_strn(content, len)));
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
static tkc_tree *tool_call(tkc_arena *arena, const tkc_tree *v)
{
    const tkc_tree *given = tkc_tree_get(v, "arguments");
    char *dumped = tkc_tree_is_object(given) ? cli_json_dump(given) : NULL;
    const char *arguments = dumped ? dumped : tkc_tree_text(given), *name = text_of(v, "name");
    tkc_tree *call = name && arguments
                         ? tkc_tree_pack(arena, "{s:s,s:{s:s,s:s}}", "type", "function", "function",
                                         "name", name, "arguments", arguments)
                         : NULL;
    free(dumped);
    return call;
}

/* One call, or a list of them; NULL = something else is among them. */
static tkc_tree *tool_calls(tkc_arena *arena, const tkc_tree *v)
{
    tkc_tree *calls = tkc_tree_array(arena);
    size_t n = tkc_tree_is_array(v) ? tkc_tree_length(v) : 1;
    for (size_t i = 0; i < n; i++) {
        tkc_tree *call = tool_call(arena, tkc_tree_is_array(v) ? tkc_tree_at(v, i) : v);
        if (!call)
            return NULL;
        tkc_tree_add(calls, call);
    }
    return n ? calls : NULL;
}

/* ---- contents ---- */

static bool is_text_part(const tkc_tree *part)
{
    const char *type = text_of(part, "type");
    return type && strcmp(type, "text") == 0 && text_of(part, "text") &&
           tkc_tree_members(part) == 2;
}

/* Parts of text as one text, which every template takes; other contents as they are. */
static const tkc_tree *content_of(tkc_arena *arena, const tkc_tree *v)
{
    size_t len = 0, n = tkc_tree_length(v);
    for (size_t i = 0; i < n; i++)
        if (!is_text_part(tkc_tree_at(v, i)))
            n = 0;
        else
            len += tkc_tree_str(tkc_tree_get(tkc_tree_at(v, i), "text")).len;
    char *all = n ? malloc(len + 1) : NULL, *end = all;
    if (!all)
        return v;
    for (size_t i = 0; i < n; i++) {
        const tkc_tree *text = tkc_tree_get(tkc_tree_at(v, i), "text");
        memcpy(end, tkc_tree_text(text), tkc_tree_str(text).len);
        end += tkc_tree_str(text).len;
    }
    tkc_tree *out = tkc_tree_new_str(arena, tkc_strn(all, len));
    free(all);
    return out;
}

/* ---- turns ---- */

static bool fill_turn(tkc_arena *arena, tkc_tree *m, const tkc_tree *given, bool calling)
{
    const tkc_tree *content = tkc_tree_get(given, "value"),
                   *old = tkc_tree_get(given, "function_call");
    content = content ? content : tkc_tree_get(given, "content");
    const tkc_tree *text = calling ? tkc_tree_read(arena, tkc_tree_str(content), 0) : NULL;
    const tkc_tree *calls = calling || old ? tool_calls(arena, calling ? text : old) : NULL;
    bool ok = calls || (!calling && !old && (content || tkc_tree_get(given, "tool_calls")));
    if (calls && !tkc_tree_is_text(old ? content : NULL))
        tkc_tree_set_text(m, "content", "");
    else if (ok && content)
        tkc_tree_set(m, "content", content_of(arena, content));
    if (calls)
        tkc_tree_set(m, "tool_calls", calls);
    return ok;
}

/* {"from", "value"} or {"role", "content"}, with members of their own; NULL = not a turn. */
static tkc_tree *turn(tkc_arena *arena, const tkc_tree *given, bool openai)
{
    static const char *const spelt[] = { "from", "value", "function_call" };
    const char *from = text_of(given, "from"), *who = from ? from : text_of(given, "role");
    bool calling = who && strcmp(who, CALL) == 0;
    tkc_tree *m = who ? tkc_tree_pack(arena, "{s:s}", "role",
                                      calling ? "assistant" : role_of(who, openai && !from))
                      : NULL;
    if (!m || !fill_turn(arena, m, given, calling))
        return NULL;
    tkc_tree_update_missing(m, given);
    for (size_t i = 0; i < sizeof spelt / sizeof *spelt; i++)
        tkc_tree_remove(m, spelt[i]);
    return m;
}

static void put_trimmed(tkc_arena *arena, tkc_tree *out, const char *role, const char *from,
                        const char *to)
{
    while (from < to && isspace((unsigned char)*from))
        from++;
    while (from < to && isspace((unsigned char)to[-1]))
        to--;
    tkc_tree_add(out, message(arena, role, from, (size_t)(to - from)));
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
static tkc_tree *turns_in_text(tkc_arena *arena, const char *text)
{
    const char *role, *at = text, *next;
    size_t len;
    tkc_tree *out = tkc_tree_array(arena);
    while ((at = next_speaker(at, &role, &len))) {
        const char *said = at + len, *unused;
        next = next_speaker(said, &unused, &len);
        put_trimmed(arena, out, role, said, next ? next : said + strlen(said));
        at = said;
    }
    size_t n = tkc_tree_length(out);
    if (n && tkc_tree_str(tkc_tree_get(tkc_tree_at(out, n - 1), "content")).len == 0)
        tkc_tree_take_out(out, n - 1);
    return tkc_tree_length(out) ? out : NULL;
}

static tkc_tree *turns_of_text(tkc_arena *arena, const char *text, const char *role)
{
    static const char start[] = "\n\nHuman:";
    tkc_tree *turns =
        strncmp(text, start, sizeof start - 1) == 0 ? turns_in_text(arena, text) : NULL;
    return turns ? turns : tkc_tree_pack(arena, "[o]", message(arena, role, text, strlen(text)));
}

static tkc_tree *turns_of_number(tkc_arena *arena, const tkc_tree *v, const char *role)
{
    char *text = cli_json_dump(v);
    tkc_tree *out = text ? turns_of_text(arena, text, role) : NULL;
    free(text);
    return out;
}

tkc_tree *cli_turns_of(tkc_arena *arena, const tkc_tree *v, const char *role, bool openai)
{
    if (tkc_tree_is_text(v))
        return turns_of_text(arena, tkc_tree_text(v), role);
    if (tkc_tree_is_number(v))
        return turns_of_number(arena, v, role);
    size_t n = tkc_tree_is_array(v) ? tkc_tree_length(v) : tkc_tree_is_object(v);
    tkc_tree *out = tkc_tree_array(arena);
    for (size_t i = 0; i < n; i++) {
        tkc_tree *m = turn(arena, tkc_tree_is_array(v) ? tkc_tree_at(v, i) : v, openai);
        if (!m)
            return NULL;
        tkc_tree_add(out, m);
    }
    return n ? out : NULL;
}

const char *cli_turns_begin(const tkc_tree *messages)
{
    const char *role = text_of(tkc_tree_at(messages, 0), "role");
    return role ? role : "";
}

/* ---- tools ---- */

/* Some data sets leave OpenAI's wrapper out. */
static const tkc_tree *tool(tkc_arena *arena, const tkc_tree *v)
{
    return tkc_tree_is_object(v) && text_of(v, "name") && !tkc_tree_get(v, "function")
               ? tkc_tree_pack(arena, "{s:s,s:o}", "type", "function", "function", v)
               : v;
}

tkc_tree *cli_turns_tools(tkc_arena *arena, const tkc_tree *row, cli_row_fault *why)
{
    const tkc_tree *v = tkc_tree_get(row, "tools");
    v = v ? v : tkc_tree_get(row, "functions");
    v = v ? v : tkc_tree_get(tkc_tree_get(row, "input"), "tools");
    if (!v || tkc_tree_is_null(v) || (tkc_tree_is_text(v) && tkc_tree_str(v).len == 0))
        return NULL;
    const tkc_tree *list = tkc_tree_is_text(v) ? tkc_tree_read(arena, tkc_tree_str(v), 0) : v;
    tkc_tree *out = tkc_tree_is_array(list) ? tkc_tree_array(arena) : NULL;
    for (size_t i = 0; i < tkc_tree_length(list); i++)
        tkc_tree_add(out, tool(arena, tkc_tree_at(list, i)));
    if (!out)
        return cli_row_fault_set(why, "\"tools\" must be a list, or a list as JSON in a text");
    return tkc_tree_length(out) ? out : NULL;
}
