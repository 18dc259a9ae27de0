/* handlers_responses.c - OpenAI's responses: POST /v1/responses.
 *
 * A request is translated into a chat: instructions and items become messages, tools and the text
 * format their forms in a chat. Nothing is stored, so what refers to an earlier response is refused.
 * Members and items that could change the result and are not supported are refused by name. Thread:
 * any front thread. May touch: the call.
 */
#include "service/chat/chat_state.h"
#include "service/core/service_state.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/unknown_fields.h"

#include <stdio.h>

#include "service/chat/chat_translate.h"

typedef struct response_body { /* as received; data NULL = not given */
    tinkc_str input, instructions, tools, tool_choice, text, reasoning, metadata;
} response_body;

/* ---- items ---- */

typedef struct item {
    tinkc_str type, role, content, call_id, name, arguments, output;
} item;

static void read_item(tkc_json *j, item *it, const char *where)
{
    tinkc_str key;
    *it = (item){ 0 };
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "type"))
            it->type = tkc_json_string(j);
        else if (tkc_str_is(key, "role"))
            it->role = tkc_json_string(j);
        else if (tkc_str_is(key, "content"))
            it->content = tkc_json_skip(j);
        else if (tkc_str_is(key, "call_id"))
            it->call_id = tkc_json_string(j);
        else if (tkc_str_is(key, "name") && !tkc_json_null(j))
            it->name = tkc_json_string(j);
        else if (tkc_str_is(key, "arguments"))
            it->arguments = tkc_json_string(j);
        else if (tkc_str_is(key, "output"))
            it->output = tkc_json_skip(j);
        else if (tkc_str_is(key, "id") || tkc_str_is(key, "status") || tkc_str_is(key, "summary") ||
                 tkc_str_is(key, "phase") || tkc_str_is(key, "encrypted_content"))
            tkc_json_skip(j); /* labels of an answer that comes back */
        else if (tkc_json_is_set(j))
            tke_chat_wrong_member(j->err, where, key);
    }
}

static bool is_text_part(tinkc_str type)
{
    return tkc_str_is(type, "input_text") || tkc_str_is(type, "output_text") ||
           tkc_str_is(type, "text") || tkc_str_is(type, "reasoning_text");
}

static tinkc_str text_part(tkc_json *j, const char *where)
{
    tinkc_str key, type = { 0 }, text = { 0 };
    (void)tkc_json_object(j);
    while (tkc_json_key(j, &key))
        if (tkc_str_is(key, "type"))
            type = tkc_json_string(j);
        else if (tkc_str_is(key, "text"))
            text = tkc_json_string(j);
        else if (tkc_str_is(key, "annotations") || tkc_str_is(key, "logprobs"))
            tkc_json_skip(j);
        else if (tkc_json_is_set(j))
            tke_chat_wrong_member(j->err, where, key);
    if (!(is_text_part(type) && text.data))
        tke_chat_wrong_member(j->err, where, type);
    return text;
}

static bool add_texts(tke_chat_writer *t, tinkc_str value, const char *where, tkc_buf *out)
{
    return tke_chat_texts(value, where, t->arena, text_part, out, t->err);
}

/* ---- messages ---- */

static void add_plain(tke_chat_writer *t, const char *role, tinkc_str call_id, tinkc_str content,
                      const char *where)
{
    tkc_buf text;
    tke_chat_flush(t, "assistant");
    tkc_buf_init(&text, t->arena->a, TKC_BUF_NO_MAX);
    if (add_texts(t, content, where, &text))
        tke_chat_message(t, role, call_id, tkc_buf_view(&text));
    tkc_buf_free(&text);
}

static void add_message(tke_chat_writer *t, const item *it, const char *where)
{
    static const char *const roles[] = { "user", "system", "developer" };
    if (tkc_str_is(it->role, "assistant")) {
        if (t->text.len || t->calls.len)
            tke_chat_flush(t, "assistant");
        t->any = add_texts(t, it->content, where, &t->text);
        return;
    }
    for (size_t i = 0; i < 3; i++)
        if (tkc_str_is(it->role, roles[i])) {
            /* templates know system; developer is its newer name */
            add_plain(t, i ? "system" : "user", (tinkc_str){ 0 }, it->content, where);
            return;
        }
    tkc_fail(t->err, TINKC_E_BAD_REQUEST, "%s: role must be user, assistant, system or developer",
             where);
}

static void add_item(tke_chat_writer *t, const item *it, const char *where)
{
    if (tkc_failed(t->err))
        return;
    if ((!it->type.data || tkc_str_is(it->type, "message")) && it->content.data)
        add_message(t, it, where);
    else if (tkc_str_is(it->type, "function_call") && it->call_id.data && it->name.data &&
             it->arguments.data)
        tke_chat_call(t, it->call_id, it->name, it->arguments, true);
    else if (tkc_str_is(it->type, "function_call_output") && it->call_id.data && it->output.data)
        add_plain(t, "tool", it->call_id, it->output, where);
    else if (tkc_str_is(it->type, "reasoning")) {
        tke_chat_flush(t, "assistant");
        t->any = add_texts(t, it->content, where, &t->thought) && t->thought.len;
    } else
        tkc_fail(t->err, TINKC_E_BAD_REQUEST,
                 "%s: an item of type '%.*s' is not supported here, or lacks a member", where,
                 (int)(it->type.len < 40 ? it->type.len : 40), it->type.data ? it->type.data : "");
}

static void add_input(tke_chat_writer *t, tinkc_str input)
{
    tkc_json j = tke_chat_reader(input, t->arena, t->err);
    char where[40];
    item it;
    size_t n = 0;
    if (tkc_json_peek(&j) == TKC_JSON_STRING) {
        add_plain(t, "user", (tinkc_str){ 0 }, input, "input");
        return;
    }
    if (tkc_json_array(&j))
        for (; tkc_json_item(&j); n++) {
            (void)snprintf(where, sizeof where, "input[%zu]", n);
            read_item(&j, &it, where);
            add_item(t, &it, where);
        }
    if (!n)
        tke_chat_wrong(t->err, "input: at least one item is needed");
    tke_chat_flush(t, "assistant");
}

static tinkc_str translate(const response_body *in, tkc_arena *arena, tinkc_error *err)
{
    tke_chat_writer t;
    tke_chat_writer_open(&t, arena, err);
    if (in->instructions.data)
        add_plain(&t, "system", (tinkc_str){ 0 }, in->instructions, "instructions");
    add_input(&t, in->input);
    return tke_chat_writer_close(&t);
}

/* ---- tools ---- */

/* {"type": "function", "name", "description", "parameters", "strict"} */
static void write_tool(tkc_json *j, tkc_jsonw *w, tinkc_error *err)
{
    tinkc_str key, name = { 0 }, about = { 0 }, schema = { 0 }, type = { 0 };
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key))
        if (tkc_str_is(key, "type"))
            type = tkc_json_string(j);
        else if (tkc_str_is(key, "name"))
            name = tkc_json_string(j);
        else if (tkc_str_is(key, "description") && !tkc_json_null(j))
            about = tkc_json_string(j);
        else if (tkc_str_is(key, "parameters") && !tkc_json_null(j))
            schema = tkc_json_skip(j);
        else if (tkc_str_is(key, "strict"))
            tkc_json_skip(j);
        else if (tkc_json_is_set(j))
            tke_chat_wrong_member(err, "tools", key);
    if (!tkc_str_is(type, "function"))
        tke_chat_wrong_member(err, "tools", type);
    if (!name.data)
        tke_chat_wrong(err, "tools: a function has no name");
    tke_chat_tool(w, name, about, schema);
}

/* A word is as in a chat; {"type": "function", "name"} has its name one level higher. */
static tinkc_str translate_choice(tinkc_str choice, tkc_arena *arena, tinkc_error *err)
{
    tkc_json j = tke_chat_reader(choice, arena, err);
    tinkc_str key, name = { 0 };
    if (tkc_json_peek(&j) != TKC_JSON_OBJECT)
        return choice;
    (void)tkc_json_object(&j);
    while (tkc_json_key(&j, &key))
        if (tkc_str_is(key, "name"))
            name = tkc_json_string(&j);
        else if (!tkc_str_is(key, "type"))
            tke_chat_wrong_member(err, "tool_choice", key);
        else if (!tkc_str_is(tkc_json_string(&j), "function"))
            tke_chat_wrong(err, "tool_choice: type must be function");
    if (!name.data)
        tke_chat_wrong(err,
                       "tool_choice: must be none, auto, required, or a function with its name");
    return tke_chat_named_choice(name, arena, err);
}

/* ---- the form of the answer ---- */

/* {"type": "text" | "json_object"}, or {"type": "json_schema", "name", "schema", "strict", ...} */
static void read_format(tkc_json *j, tkc_arena *arena, tke_chat_request *out, tinkc_error *err)
{
    tinkc_str key, type = { 0 }, schema = { 0 };
    const char *made = NULL;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key))
        if (tkc_str_is(key, "type"))
            type = tkc_json_string(j);
        else if (tkc_str_is(key, "schema"))
            schema = tkc_json_skip(j);
        else if (tkc_str_is(key, "name") || tkc_str_is(key, "strict") ||
                 tkc_str_is(key, "description"))
            tkc_json_skip(j);
        else if (tkc_json_is_set(j))
            tke_chat_wrong_member(err, "text.format", key);
    if (tkc_str_is(type, "text"))
        return;
    if (tkc_str_is(type, "json_object"))
        made = "{\"type\":\"json_object\"}";
    else if (tkc_str_is(type, "json_schema") && schema.data)
        made = tkc_arena_printf(arena, err,
                                "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":%.*s}}",
                                (int)schema.len, schema.data);
    else
        tke_chat_wrong(err,
                       "text.format: type must be text, json_object, or json_schema with a schema");
    if (made)
        out->form.response_format = tkc_str(made);
}

static void read_text(tinkc_str text, tkc_arena *arena, tke_chat_request *out, tinkc_error *err)
{
    tkc_json j = tke_chat_reader(text, arena, err);
    tinkc_str key;
    if (!tkc_json_object(&j))
        return;
    while (tkc_json_key(&j, &key)) {
        if (tkc_json_null(&j))
            continue;
        if (tkc_str_is(key, "format"))
            read_format(&j, arena, out, err);
        else if (!tkc_str_is(key, "verbosity") || !tkc_str_is(tkc_json_string(&j), "medium"))
            tke_chat_wrong_member(err, "text", key);
    }
}

/* {"effort", "summary"} */
static void read_reasoning(tinkc_str text, tkc_arena *arena, tke_chat_request *out,
                           tinkc_error *err)
{
    tkc_json j = tke_chat_reader(text, arena, err);
    tinkc_str key;
    if (!tkc_json_object(&j))
        return;
    while (tkc_json_key(&j, &key)) {
        if (tkc_json_null(&j))
            continue;
        if (tkc_str_is(key, "effort"))
            out->effort = tkc_json_string(&j);
        else if (tkc_str_is(key, "summary"))
            tkc_json_skip(&j); /* thoughts are shown as they are */
        else if (tkc_json_is_set(&j))
            tke_chat_wrong_member(err, "reasoning", key);
    }
}

/* ---- the request ---- */

/* Members with one value that this server can keep. */
static bool is_neutral(tinkc_str key, tinkc_str value)
{
    static const struct {
        const char *name, *value; /* NULL = any */
    } rows[] = {
        { "user", NULL },
        { "metadata", NULL },
        { "safety_identifier", NULL },
        { "prompt_cache_key", NULL },
        { "prompt_cache_retention", NULL },
        { "max_tool_calls", NULL }, /* of tools that a server runs itself: there are none */
        { "include", "[]" },
        { "store", "false" },
        { "background", "false" },
        { "truncation", "\"disabled\"" },
        { "service_tier", "\"auto\"" },
        { "service_tier", "\"default\"" },
        { "top_logprobs", "0" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (tkc_str_is(key, rows[i].name) &&
            (!rows[i].value || tkc_str_is(tkc_str_trim(value), rows[i].value)))
            return true;
    return false;
}

static bool read_member(tkc_json *j, tinkc_str key, response_body *in, tke_chat_request *out)
{
    const struct {
        const char *name;
        tinkc_str *to;
    } raw[] = { { "input", &in->input }, { "instructions", &in->instructions },
                { "tools", &in->tools }, { "tool_choice", &in->tool_choice },
                { "text", &in->text },   { "reasoning", &in->reasoning } };
    for (size_t i = 0; i < sizeof raw / sizeof *raw; i++)
        if (tkc_str_is(key, raw[i].name)) {
            *raw[i].to = tkc_json_skip(j);
            return true;
        }
    if (tkc_str_is(key, "model"))
        out->model = tkc_json_string(j);
    else if (tkc_str_is(key, "max_output_tokens"))
        out->max_tokens = (tkc_opt_i64)TKC_SOME(tkc_json_i64(j));
    else if (tkc_str_is(key, "temperature"))
        out->temperature = tkc_json_double(j);
    else if (tkc_str_is(key, "top_p"))
        out->top_p = tkc_json_double(j);
    else if (tkc_str_is(key, "stream"))
        out->stream = tkc_json_bool(j);
    else if (tkc_str_is(key, "parallel_tool_calls"))
        out->one_call = !tkc_json_bool(j);
    else if (tkc_str_is(key, "stream_options"))
        tkc_json_skip(j); /* padding, which hides lengths */
    else
        return false;
    return true;
}

static void check_numbers(tke_call *call, const tke_chat_request *in)
{
    tinkc_error *err = &call->err;
    if (!in->model.data)
        tke_chat_wrong(err, "model is required");
    else if (in->max_tokens.is == TKC_GIVEN && in->max_tokens.value < 1)
        tke_chat_wrong(err, "max_output_tokens must be 1 or more");
    else if (!(in->temperature >= 0 && in->temperature <= (double)call->svc->set.max_temperature))
        tkc_fail(err, TINKC_E_BAD_REQUEST, "temperature must be from 0 to %lld",
                 (long long)call->svc->set.max_temperature);
    else if (!(in->top_p > 0 && in->top_p <= 1))
        tke_chat_wrong(err, "top_p must be above 0 and at most 1");
}

/* What an answer repeats of its request. */
static const char *repeat(const response_body *in, const tke_chat_request *out, tkc_arena *arena,
                          tinkc_error *err)
{
    tkc_buf b;
    tkc_jsonw w;
    const struct {
        const char *name;
        tinkc_str value;
        const char *usual;
    } raw[] = { { "instructions", in->instructions, "null" },
                { "tools", in->tools, "[]" },
                { "tool_choice", in->tool_choice, "\"auto\"" },
                { "text", in->text, "{\"format\":{\"type\":\"text\"}}" },
                { "reasoning", in->reasoning, "{\"effort\":null,\"summary\":null}" },
                { "metadata", in->metadata, "{}" } };
    tkc_buf_init(&b, arena->a, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&w, &b, err);
    tkc_jsonw_object(&w);
    for (size_t i = 0; i < sizeof raw / sizeof *raw; i++) {
        tkc_jsonw_key(&w, raw[i].name);
        tkc_jsonw_raw(&w, raw[i].value.data ? raw[i].value : tkc_str(raw[i].usual));
    }
    tkc_jsonw_key(&w, "max_output_tokens");
    if (out->max_tokens.is == TKC_GIVEN)
        tkc_jsonw_i64(&w, out->max_tokens.value);
    else
        tkc_jsonw_null(&w);
    tkc_jsonw_key(&w, "temperature");
    tkc_jsonw_double(&w, out->temperature);
    tkc_jsonw_key(&w, "top_p");
    tkc_jsonw_double(&w, out->top_p);
    tkc_jsonw_key(&w, "parallel_tool_calls");
    tkc_jsonw_bool(&w, !out->one_call);
    tkc_jsonw_end(&w);
    if (!tkc_failed(err)) { /* the members without their braces */
        tinkc_str all = tkc_buf_view(&b);
        const char *made = tkc_arena_str(arena, tkc_strn(all.data + 1, all.len - 2), err);
        tkc_buf_free(&b);
        return made;
    }
    tkc_buf_free(&b);
    return NULL;
}

/* False: call->err says why. */
static bool read_request(tke_call *call, tke_chat_request *out)
{
    response_body in = { 0 };
    tkc_arena *arena = &call->arena;
    tinkc_error *err = &call->err;
    tkc_json j = tke_chat_reader(call->body, arena, err);
    tinkc_str key;
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            if (tkc_json_null(&j) || read_member(&j, key, &in, out))
                continue;
            tinkc_str value = tkc_json_skip(&j);
            if (!is_neutral(key, value))
                tke_chat_wrong_member(err, "this value of the request", key);
            if (tkc_str_is(key, "metadata"))
                in.metadata = value;
        }
    tkc_json_close(&j);
    if (!tkc_failed(err))
        check_numbers(call, out);
    if (!in.input.data)
        tke_chat_wrong(err, "input is required");
    if (!tkc_failed(err))
        out->messages = translate(&in, arena, err);
    if (!tkc_failed(err) && in.tools.data)
        out->form.tools = tke_chat_tools(in.tools, arena, write_tool, err);
    if (!tkc_failed(err) && in.tool_choice.data)
        out->form.tool_choice = translate_choice(in.tool_choice, arena, err);
    if (!tkc_failed(err) && in.text.data)
        read_text(in.text, arena, out, err);
    if (!tkc_failed(err) && in.reasoning.data)
        read_reasoning(in.reasoning, arena, out, err);
    out->settings = tkc_failed(err) ? NULL : repeat(&in, out, arena, err);
    return !tkc_failed(err);
}

void tke_front_responses(tke_call *call)
{
    tke_chat_prompt only = { 0 };
    tke_chat_request in = { .chat = true,
                            .prompts = &only,
                            .n_prompts = 1,
                            .n = 1,
                            .temperature = 1,
                            .top_p = 1,
                            .effort_name = "reasoning.effort",
                            .prefix = "resp_",
                            .whole = &tke_responses_whole,
                            .events = &tke_responses_events };
    if (read_request(call, &in))
        tke_chat_complete(call, &in);
    else
        tke_chat_refuse_failure(call, NULL);
}
