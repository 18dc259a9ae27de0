/* handlers_anthropic.c - the Anthropic API: /v1/messages and /v1/messages/count_tokens.
 *
 * A request is translated into a chat: its system text and blocks become messages with the roles that
 * templates know, its tools the form that templates take. Members and blocks that could change the
 * result and are not supported are refused by name. Thread: any front thread. May touch: the call.
 */
#include "base/str.h"
#include "service/chat/chat_paths.h"
#include "service/chat/chat_state.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/unknown_fields.h"

#include <stdio.h>

#include "service/chat/chat_translate.h"

typedef struct message_body { /* as received; data NULL = not given */
    tinkc_str system, messages, tools, tool_choice, thinking, output_config, context_management,
        thread;
} message_body;

/* ---- blocks ---- */

typedef struct block {
    tinkc_str type, text, thinking, id, name, input, tool_use_id, content;
    bool is_error;
} block;

/* Hints to caches, proofs of origin and source notes tell the model nothing. */
static bool is_hint(tinkc_str key)
{
    return tkc_str_is(key, "cache_control") || tkc_str_is(key, "signature") ||
           tkc_str_is(key, "caller");
}

static void read_block(tkc_json *j, block *b, const char *where)
{
    tinkc_str key;
    *b = (block){ 0 };
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key))
        if (tkc_str_is(key, "type"))
            b->type = tkc_json_string(j);
        else if (tkc_str_is(key, "text"))
            b->text = tkc_json_string(j);
        else if (tkc_str_is(key, "thinking"))
            b->thinking = tkc_json_string(j);
        else if (tkc_str_is(key, "id"))
            b->id = tkc_json_string(j);
        else if (tkc_str_is(key, "name"))
            b->name = tkc_json_string(j);
        else if (tkc_str_is(key, "input"))
            b->input = tkc_json_skip(j);
        else if (tkc_str_is(key, "tool_use_id"))
            b->tool_use_id = tkc_json_string(j);
        else if (tkc_str_is(key, "content"))
            b->content = tkc_json_skip(j);
        else if (tkc_str_is(key, "is_error"))
            b->is_error = !tkc_json_null(j) && tkc_json_bool(j);
        else if (tkc_json_is_set(j) && !is_hint(key)) /* which passes the value */
            tke_chat_wrong_member(j->err, where, key);
}

static tinkc_str text_block(tkc_json *j, const char *where)
{
    block b;
    read_block(j, &b, where);
    if (!(tkc_str_is(b.type, "text") && b.text.data))
        tke_chat_wrong_member(j->err, where,
                              b.type.data ? b.type : tkc_str("a block without type"));
    return b.text;
}

/* ---- messages ---- */

typedef struct translation {
    tke_chat_writer out;
    const char *role; /* of the message that is being gathered */
    size_t index;
} translation;

/* A result becomes a message of its own; what the user says beside it stays in order. */
static void add_result(translation *t, const block *b, const char *where)
{
    tkc_buf text;
    tke_chat_writer *out = &t->out;
    tke_chat_flush(out, t->role);
    tkc_buf_init(&text, out->arena->a, TKC_BUF_NO_MAX);
    /* OpenAI's messages, which the templates read, have no member for it: the text says it. */
    if (b->is_error)
        tkc_buf_cstr(&text, "Error: ", out->err);
    if (tke_chat_texts(b->content, where, out->arena, text_block, &text, out->err))
        tke_chat_message(out, "tool", b->tool_use_id, tkc_buf_view(&text));
    tkc_buf_free(&text);
}

static void add_block(translation *t, const block *b, const char *where)
{
    bool user = tkc_cstr_eq(t->role, "user");
    if (tkc_failed(t->out.err))
        return;
    if (tkc_str_is(b->type, "text") && b->text.data)
        t->out.any = tkc_buf_add(&t->out.text, b->text.data, b->text.len, t->out.err);
    else if (tkc_str_is(b->type, "thinking") && b->thinking.data && !user)
        t->out.any = tkc_buf_add(&t->out.thought, b->thinking.data, b->thinking.len, t->out.err);
    else if (tkc_str_is(b->type, "tool_use") && b->id.data && b->name.data && b->input.data &&
             !user)
        tke_chat_call(&t->out, b->id, b->name, b->input, false);
    else if (tkc_str_is(b->type, "tool_result") && b->tool_use_id.data && user)
        add_result(t, b, where);
    else
        tkc_fail(t->out.err, TINKC_E_BAD_REQUEST,
                 "%s: a block of type '%.*s' is not supported here, or lacks a member", where,
                 (int)(b->type.len < 40 ? b->type.len : 40), b->type.data ? b->type.data : "");
}

static void add_content(translation *t, tinkc_str content)
{
    tkc_json j = tke_chat_reader(content, t->out.arena, t->out.err);
    char where[64];
    block b;
    if (!content.data) {
        tke_chat_wrong(t->out.err, "messages: content is missing");
        return;
    }
    if (tkc_json_peek(&j) == TKC_JSON_STRING) {
        tinkc_str s = tkc_json_string(&j);
        t->out.any = tkc_buf_add(&t->out.text, s.data, s.len, t->out.err);
    } else if (tkc_json_array(&j))
        for (size_t i = 0; tkc_json_item(&j); i++) {
            (void)snprintf(where, sizeof where, "messages[%zu].content[%zu]", t->index, i);
            read_block(&j, &b, where);
            add_block(t, &b, where);
        }
    tke_chat_flush(&t->out, t->role);
}

static void add_message(translation *t, tkc_json *j)
{
    tinkc_str key, role = { 0 }, content = { 0 };
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key))
        if (tkc_str_is(key, "role"))
            role = tkc_json_string(j);
        else if (tkc_str_is(key, "content"))
            content = tkc_json_skip(j);
        else if (tkc_json_is_set(j))
            tke_chat_wrong_member(t->out.err, "messages", key);
    t->role = tkc_str_is(role, "user")        ? "user"
              : tkc_str_is(role, "assistant") ? "assistant"
                                              : NULL;
    if (!t->role)
        tke_chat_wrong(t->out.err, "messages: role must be user or assistant");
    else
        add_content(t, content);
}

/* OpenAI's messages for the system text and the messages. *prefill: the last one is to be continued. */
static tinkc_str translate(const message_body *in, tkc_arena *arena, bool *prefill,
                           tinkc_error *err)
{
    translation t = { .role = "system" };
    tkc_json j = tke_chat_reader(in->messages, arena, err);
    tke_chat_writer_open(&t.out, arena, err);
    t.out.any =
        tke_chat_texts(in->system, "system", arena, text_block, &t.out.text, err) && t.out.text.len;
    tke_chat_flush(&t.out, t.role);
    t.role = NULL;
    if (tkc_json_array(&j))
        for (; tkc_json_item(&j); t.index++)
            add_message(&t, &j);
    if (!tkc_failed(err) && !t.index)
        tke_chat_wrong(err, "messages: at least one message is needed");
    *prefill = t.role && tkc_cstr_eq(t.role, "assistant");
    return tke_chat_writer_close(&t.out);
}

/* ---- tools ---- */

static void write_tool(tkc_json *j, tkc_jsonw *w, tinkc_error *err)
{
    tinkc_str key, name = { 0 }, about = { 0 }, schema = { 0 }, type = { 0 };
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key))
        if (tkc_str_is(key, "name"))
            name = tkc_json_string(j);
        else if (tkc_str_is(key, "description") && !tkc_json_null(j))
            about = tkc_json_string(j);
        else if (tkc_str_is(key, "input_schema"))
            schema = tkc_json_skip(j);
        else if (tkc_str_is(key, "type") && !tkc_json_null(j))
            type = tkc_json_string(j);
        else if (is_hint(key) || tkc_str_is(key, "strict") ||
                 tkc_str_is(key, "eager_input_streaming"))
            tkc_json_skip(j); /* an input is sent in one piece, when it is complete */
        else if (tkc_json_is_set(j))
            tke_chat_wrong_member(err, "tools", key);
    if (type.data && !tkc_str_is(type, "custom"))
        tke_chat_wrong_member(err, "tools", type);
    if (!name.data || !schema.data)
        tke_chat_wrong(err, "tools: each needs a name and an input_schema");
    tke_chat_tool(w, name, about, schema);
}

/* {"type": "auto" | "any" | "none" | "tool", "name", "disable_parallel_tool_use"} */
static void read_tool_choice(tinkc_str text, tkc_arena *arena, tke_chat_request *out,
                             tinkc_error *err)
{
    tkc_json j = tke_chat_reader(text, arena, err);
    tinkc_str key, type = { 0 }, name = { 0 };
    if (!tkc_json_object(&j))
        return;
    while (tkc_json_key(&j, &key))
        if (tkc_str_is(key, "type"))
            type = tkc_json_string(&j);
        else if (tkc_str_is(key, "name"))
            name = tkc_json_string(&j);
        else if (tkc_str_is(key, "disable_parallel_tool_use"))
            out->one_call = tkc_json_bool(&j);
        else if (tkc_json_is_set(&j))
            tke_chat_wrong_member(err, "tool_choice", key);
    if (tkc_str_is(type, "auto") || tkc_str_is(type, "none"))
        out->form.tool_choice = tkc_str(tkc_str_is(type, "auto") ? "\"auto\"" : "\"none\"");
    else if (tkc_str_is(type, "any"))
        out->form.tool_choice = tkc_str("\"required\"");
    else if (tkc_str_is(type, "tool") && name.data) {
        out->form.tool_choice = tke_chat_named_choice(name, arena, err);
    } else
        tke_chat_wrong(err, "tool_choice: type must be auto, any, none, or tool with a name");
}

/* ---- thinking and the form of the answer ---- */

/* {"type": "enabled" | "adaptive" | "disabled", "budget_tokens", "display"} */
static void read_thinking(tinkc_str text, tkc_arena *arena, tke_chat_request *out, tinkc_error *err)
{
    tkc_json j = tke_chat_reader(text, arena, err);
    tinkc_str key, type = { 0 };
    if (!tkc_json_object(&j))
        return;
    while (tkc_json_key(&j, &key))
        if (tkc_str_is(key, "type"))
            type = tkc_json_string(&j);
        else if (tkc_str_is(key, "budget_tokens") || tkc_str_is(key, "display"))
            tkc_json_skip(&j); /* thoughts count as tokens of the answer, and are always shown */
        else if (tkc_json_is_set(&j))
            tke_chat_wrong_member(err, "thinking", key);
    out->effort_name = "thinking";
    if (tkc_str_is(type, "disabled"))
        out->effort = tkc_str("none");
    else if (tkc_str_is(type, "enabled"))
        out->effort = tkc_str("medium");
    else if (!tkc_str_is(type, "adaptive"))
        tke_chat_wrong(err, "thinking: type must be enabled, adaptive or disabled");
}

/* {"effort", "format": {"type": "json_schema", "schema"}} */
static void read_output_config(tinkc_str text, tkc_arena *arena, tke_chat_request *out,
                               tinkc_error *err)
{
    tkc_json j = tke_chat_reader(text, arena, err);
    tinkc_str key, inner, type = { 0 }, schema = { 0 };
    if (!tkc_json_object(&j))
        return;
    while (tkc_json_key(&j, &key)) {
        if (tkc_json_null(&j))
            continue;
        if (tkc_str_is(key, "effort")) {
            out->effort = tkc_json_string(&j);
            out->effort = tkc_str_is(out->effort, "max") ? tkc_str("xhigh") : out->effort;
            out->effort_name = "output_config.effort";
        } else if (tkc_str_is(key, "format") && tkc_json_object(&j)) {
            while (tkc_json_key(&j, &inner))
                if (tkc_str_is(inner, "type"))
                    type = tkc_json_string(&j);
                else if (tkc_str_is(inner, "schema"))
                    schema = tkc_json_skip(&j);
                else
                    tke_chat_wrong_member(err, "output_config.format", inner);
        } else
            tke_chat_wrong_member(err, "output_config", key);
    }
    if (!type.data && !schema.data)
        return;
    if (!tkc_str_is(type, "json_schema") || !schema.data) {
        tke_chat_wrong(err, "output_config.format: type must be json_schema, with a schema");
        return;
    }
    const char *made =
        tkc_arena_printf(arena, err, "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":%.*s}}",
                         (int)schema.len, schema.data);
    if (made)
        out->form.response_format = tkc_str(made);
}

/* One edit of context_management; true: it leaves the messages as they were sent. */
static bool changes_nothing(tkc_json *j)
{
    tinkc_str key, type = { 0 }, keep = { 0 };
    bool other = false;
    if (!tkc_json_object(j))
        return false;
    while (tkc_json_key(j, &key)) {
        if (tkc_str_is(key, "type"))
            type = tkc_json_string(j);
        else if (tkc_str_is(key, "keep"))
            keep = tkc_json_skip(j);
        else
            other = tkc_json_is_set(j) || other;
    }
    return !other && tkc_str_is(type, "clear_thinking_20251015") && tkc_str_is(keep, "\"all\"");
}

static void check_edits(tinkc_str text, tkc_arena *arena, tinkc_error *err)
{
    tkc_json j = tke_chat_reader(text, arena, err);
    tinkc_str key;
    if (!tkc_json_object(&j))
        return;
    while (tkc_json_key(&j, &key)) {
        bool edits = tkc_str_is(key, "edits");
        if (!edits && tkc_json_is_set(&j))
            tke_chat_wrong_member(err, "context_management", key);
        if (!edits || tkc_json_null(&j) || !tkc_json_array(&j))
            continue;
        while (tkc_json_item(&j))
            if (!changes_nothing(&j))
                tke_chat_wrong(err, "context_management: this server does not edit messages; send "
                                    "those that the model is to see");
    }
}

/* ---- the request ---- */

static void read_stops(tkc_json *j, tke_chat_request *out)
{
    if (!tkc_json_array(j))
        return;
    while (tkc_json_item(j)) {
        tinkc_str one = tkc_json_string(j);
        if (!tkc_failed(j->err) && (one.len == 0 || one.len > 4096))
            tke_chat_wrong(j->err, "stop_sequences: each must have 1 to 4096 bytes");
        else if (out->n_stops == TKE_CHAT_STOPS)
            tke_chat_wrong(j->err, "stop_sequences: at most 16 are supported");
        else
            out->stops[out->n_stops++] = one;
    }
}

/* False: not one of ours. */
static bool read_member(tkc_json *j, tinkc_str key, message_body *in, tke_chat_request *out)
{
    const struct {
        const char *name;
        tinkc_str *to;
    } raw[] = { { "system", &in->system },     { "messages", &in->messages },
                { "tools", &in->tools },       { "tool_choice", &in->tool_choice },
                { "thinking", &in->thinking }, { "output_config", &in->output_config },
                { "thread", &in->thread },     { "context_management", &in->context_management } };
    for (size_t i = 0; i < sizeof raw / sizeof *raw; i++)
        if (tkc_str_is(key, raw[i].name)) {
            *raw[i].to = tkc_json_skip(j);
            return true;
        }
    if (tkc_str_is(key, "model"))
        out->model = tkc_json_string(j);
    else if (tkc_str_is(key, "max_tokens"))
        out->max_tokens = (tkc_opt_i64)TKC_SOME(tkc_json_i64(j));
    else if (tkc_str_is(key, "temperature"))
        out->temperature = tkc_json_double(j);
    else if (tkc_str_is(key, "top_p"))
        out->top_p = tkc_json_double(j);
    else if (tkc_str_is(key, "top_k"))
        out->top_k = tkc_json_i64(j);
    else if (tkc_str_is(key, "stop_sequences"))
        read_stops(j, out);
    else if (tkc_str_is(key, "stream"))
        out->stream = tkc_json_bool(j);
    else if (tkc_str_is(key, "metadata") || tkc_str_is(key, "service_tier") ||
             tkc_str_is(key, "cache_control"))
        tkc_json_skip(j); /* a label, and hints */
    else
        return false;
    return true;
}

static void check_numbers(const tke_chat_request *in, bool count, tinkc_error *err)
{
    if (!in->model.data)
        tke_chat_wrong(err, "model is required");
    else if (!count && in->max_tokens.is != TKC_GIVEN)
        tke_chat_wrong(err, "max_tokens is required");
    else if (in->max_tokens.is == TKC_GIVEN && in->max_tokens.value < 1)
        tke_chat_wrong(err, "max_tokens must be 1 or more");
    else if (!(in->temperature >= 0 && in->temperature <= 1))
        tke_chat_wrong(err, "temperature must be from 0 to 1");
    else if (!(in->top_p > 0 && in->top_p <= 1))
        tke_chat_wrong(err, "top_p must be above 0 and at most 1");
    else if (in->top_k < 0)
        tke_chat_wrong(err, "top_k must be 0 or more");
}

/* False: call->err says why, or the call is answered. */
static bool read_request(tke_call *call, bool count, tke_chat_request *out)
{
    message_body in = { 0 };
    tkc_json j = tke_chat_reader(call->body, &call->arena, &call->err);
    tinkc_str key;
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key))
            if (!tkc_json_null(&j) && !read_member(&j, key, &in, out) && tkc_json_is_set(&j))
                tke_chat_wrong_member(&call->err, "the request", key);
    tkc_json_close(&j);
    if (!tkc_failed(&call->err) && in.thread.data) {
        tke_openai_refuse(call, 400, TKE_THREAD_UNSUPPORTED, NULL,
                          "thread: this server stores no messages; send the whole conversation");
        return false;
    }
    if (!tkc_failed(&call->err))
        check_numbers(out, count, &call->err);
    if (!tkc_failed(&call->err) && !in.messages.data)
        tke_chat_wrong(&call->err, "messages is required");
    if (!tkc_failed(&call->err) && in.context_management.data)
        check_edits(in.context_management, &call->arena, &call->err);
    if (!tkc_failed(&call->err))
        out->messages = translate(&in, &call->arena, &out->prefill, &call->err);
    if (!tkc_failed(&call->err) && in.tools.data)
        out->form.tools = tke_chat_tools(in.tools, &call->arena, write_tool, &call->err);
    if (!tkc_failed(&call->err) && in.tool_choice.data)
        read_tool_choice(in.tool_choice, &call->arena, out, &call->err);
    if (!tkc_failed(&call->err) && in.thinking.data)
        read_thinking(in.thinking, &call->arena, out, &call->err);
    if (!tkc_failed(&call->err) && in.output_config.data)
        read_output_config(in.output_config, &call->arena, out, &call->err);
    return !tkc_failed(&call->err) || tke_chat_refuse_failure(call, NULL);
}

static void handle(tke_call *call, bool count)
{
    tke_chat_prompt only = { 0 };
    tke_chat_request in = { .chat = true,
                            .prompts = &only,
                            .n_prompts = 1,
                            .n = 1,
                            .temperature = 1,
                            .top_p = 1,
                            .effort_name = "thinking",
                            .prefix = "msg_",
                            .whole = &tke_anthropic_whole,
                            .events = &tke_anthropic_events };
    if (!read_request(call, count, &in))
        return;
    if (count)
        tke_chat_count(call, &in);
    else
        tke_chat_complete(call, &in);
}

void tke_front_messages(tke_call *call)
{
    handle(call, false);
}

void tke_front_count_tokens(tke_call *call)
{
    handle(call, true);
}
