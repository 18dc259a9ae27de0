/* openai_format.c - response_format and tools: makes grammars, finds tool calls in text.
 *
 * With tool_choice auto, calls are looked for in the text that the model writes. With required or a
 * named function, the answer is sampled under a grammar made of the functions' parameters. May
 * touch: its arguments. Must not: take locks, know of jobs.
 */
#include <string.h>

#include "base/str.h"
#include "service/chat/openai_format.h"

#include "base/json_read.h"
#include "base/json_write.h"
#include "constrain/json_grammar.h"

enum { MOST_TOOLS = 128 };
static const char opening[] = "<tool_call>", closing[] = TKE_CALL_END;

static tkc_json reader(tinkc_str text, tkc_arena *arena, tinkc_error *err)
{
    tkc_json j;
    tkc_json_open(&j, text, arena, err);
    j.code = TINKC_E_BAD_REQUEST;
    return j;
}

static bool unknown_key(tinkc_str key, tinkc_error *err)
{
    return tkc_fail(err, TINKC_E_BAD_REQUEST, "the member '%.*s' is not supported",
                    (int)(key.len < 60 ? key.len : 60), key.data);
}

/* ---- tool_choice ---- */

/* {"type": "function", "function": {"name": X}} */
static void read_named(tke_answer_form *f, tkc_arena *arena, tinkc_error *err)
{
    tkc_json j = reader(f->tool_choice, arena, err);
    tinkc_str key, inner, type = { 0 };
    if (!tkc_json_object(&j))
        return;
    while (tkc_json_key(&j, &key))
        if (tkc_str_is(key, "type"))
            type = tkc_json_string(&j);
        else if (tkc_str_is(key, "function") && tkc_json_object(&j)) {
            while (tkc_json_key(&j, &inner))
                if (tkc_str_is(inner, "name"))
                    f->only = tkc_json_string(&j);
                else
                    tkc_json_skip(&j);
        } else if (!tkc_failed(err))
            unknown_key(key, err);
    if (!tkc_failed(err) && (!tkc_str_is(type, "function") || !f->only.data))
        tkc_fail(err, TINKC_E_BAD_REQUEST,
                 "must be none, auto, required, or a function: {\"type\": \"function\", "
                 "\"function\": {\"name\": ...}}");
    f->must_call = true;
}

static void read_choice(tke_answer_form *f, tkc_arena *arena, tinkc_error *err)
{
    tkc_json j = reader(f->tool_choice, arena, err);
    if (!f->tool_choice.data)
        return;
    if (tkc_json_peek(&j) != TKC_JSON_STRING) {
        read_named(f, arena, err);
        return;
    }
    tinkc_str word = tkc_json_string(&j);
    f->must_call = tkc_str_is(word, "required");
    f->offers &= !tkc_str_is(word, "none");
    if (!f->must_call && !tkc_str_is(word, "none") && !tkc_str_is(word, "auto") && !tkc_failed(err))
        tkc_fail(err, TINKC_E_BAD_REQUEST, "must be none, auto, required or a function");
}

bool tke_form_read(tke_answer_form *f, tkc_arena *arena, const char **param, tinkc_error *err)
{
    tkc_json j = reader(f->tools, arena, err);
    *param = "tool_choice";
    f->offers = f->tools.data && tkc_json_array(&j) && tkc_json_item(&j); /* [] offers nothing */
    read_choice(f, arena, err);
    if (!f->offers && f->must_call && !tkc_failed(err))
        tkc_fail(err, TINKC_E_BAD_REQUEST, "a call is required, and tools is empty");
    return !tkc_failed(err);
}

bool tke_form_style(tke_answer_form *f, const char *chat_template, const char **param,
                    tinkc_error *err)
{
    const char *text = chat_template ? chat_template : "";
    *param = "tools";
    f->style = TKE_CALLS_NONE;
    if (!f->offers)
        return true;
    if (!strstr(text, "tools"))
        return tkc_fail(err, TINKC_E_UNSUPPORTED,
                        "the chat template of this model does not take tools");
    if (strstr(text, opening))
        f->style = TKE_CALLS_TAGGED;
    else if (strstr(text, "\"parameters\"") && !strstr(text, opening))
        f->style = TKE_CALLS_BARE;
    if (f->style == TKE_CALLS_NONE && f->must_call) {
        *param = "tool_choice";
        return tkc_fail(
            err, TINKC_E_UNSUPPORTED,
            "how this model writes calls is not known to this server, so they cannot be "
            "required");
    }
    return true;
}

/* ---- grammars ---- */

typedef struct function {
    tinkc_str name, parameters;
} function;

static function read_function(tkc_json *j)
{
    function f = { 0 };
    tinkc_str key, inner;
    if (!tkc_json_object(j))
        return f;
    while (tkc_json_key(j, &key)) {
        if (!tkc_str_is(key, "function")) {
            tkc_json_skip(j);
            continue;
        }
        if (!tkc_json_object(j))
            break;
        while (tkc_json_key(j, &inner))
            if (tkc_str_is(inner, "name"))
                f.name = tkc_json_string(j);
            else if (tkc_str_is(inner, "parameters"))
                f.parameters = tkc_json_skip(j);
            else
                tkc_json_skip(j);
    }
    return f;
}

static tinkc_str call_text(int32_t style, tinkc_str name, tkc_arena *arena, tinkc_error *err)
{
    tkc_buf out;
    tkc_jsonw w;
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    tkc_buf_cstr(&out, style == TKE_CALLS_TAGGED ? "<tool_call>\n{\"name\": " : "{\"name\": ", err);
    tkc_jsonw_open(&w, &out, err);
    tkc_jsonw_str(&w, name);
    tkc_buf_cstr(&out, style == TKE_CALLS_TAGGED ? ", \"arguments\": " : ", \"parameters\": ", err);
    tinkc_str text = { 0 };
    if (!tkc_failed(err))
        text = tkc_strn(tkc_arena_str(arena, tkc_buf_view(&out), err), out.len);
    tkc_buf_free(&out);
    return text;
}

/* The functions that may be called, as the model writes calls; NULL: err says why. */
static tke_called *read_calls(const tke_answer_form *f, tkc_arena *arena, size_t *count,
                              tinkc_error *err)
{
    tkc_json j = reader(f->tools, arena, err);
    tke_called *calls = tkc_arena_array(arena, MOST_TOOLS, sizeof *calls, err);
    size_t n = 0;
    if (!calls || !tkc_json_array(&j))
        return NULL;
    while (tkc_json_item(&j)) {
        function one = read_function(&j);
        if (!one.name.data && !tkc_failed(err))
            tkc_fail(err, TINKC_E_BAD_REQUEST, "tools: a function has no name");
        if (!tkc_failed(err) && f->only.data && !tkc_str_eq(f->only, one.name))
            continue;
        if (n == MOST_TOOLS && !tkc_failed(err))
            tkc_fail(err, TINKC_E_BAD_REQUEST, "tools: more than %d", MOST_TOOLS);
        if (tkc_failed(err))
            return NULL;
        calls[n++] =
            (tke_called){ .text = call_text(f->style, one.name, arena, err),
                          .schema = one.parameters,
                          .tail = tkc_str(f->style == TKE_CALLS_TAGGED ? "}\n</tool_call>" : "}") };
    }
    if (!tkc_failed(err) && n == 0)
        tkc_fail(err, TINKC_E_BAD_REQUEST, "tool_choice: no tool is called '%.*s'",
                 (int)(f->only.len < 60 ? f->only.len : 60), f->only.data ? f->only.data : "");
    *count = n;
    return tkc_failed(err) ? NULL : calls;
}

/* {"name", "schema", "strict", "description"} */
static tinkc_str read_schema(tkc_json *j, tinkc_error *err)
{
    tinkc_str key, found = { 0 };
    if (!tkc_json_object(j))
        return found;
    while (tkc_json_key(j, &key))
        if (tkc_str_is(key, "schema"))
            found = tkc_json_skip(j);
        else if (tkc_str_is(key, "name") || tkc_str_is(key, "strict") ||
                 tkc_str_is(key, "description"))
            tkc_json_skip(j);
        else if (!tkc_failed(err))
            unknown_key(key, err);
    if (!found.data && !tkc_failed(err))
        tkc_fail(err, TINKC_E_BAD_REQUEST, "json_schema needs a schema");
    return found;
}

/* False without err: plain text, which needs no grammar. *schema: data NULL = any object. */
static bool read_format(const tke_answer_form *f, tkc_arena *arena, tinkc_str *schema,
                        tinkc_error *err)
{
    tkc_json j = reader(f->response_format, arena, err);
    tinkc_str key, type = { 0 };
    *schema = (tinkc_str){ 0 };
    if (tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            if (tkc_str_is(key, "type"))
                type = tkc_json_string(&j);
            else if (tkc_str_is(key, "json_schema"))
                *schema = read_schema(&j, err);
            else if (!tkc_failed(err))
                unknown_key(key, err);
        }
    if (tkc_failed(err) || tkc_str_is(type, "text"))
        return false;
    if (tkc_str_is(type, "json_object")) {
        *schema = (tinkc_str){ 0 };
        return true;
    }
    if (!tkc_str_is(type, "json_schema"))
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "type must be text, json_object or json_schema");
    return schema->data ||
           tkc_fail(err, TINKC_E_BAD_REQUEST, "json_schema is required with this type");
}

const tke_grammar *tke_form_grammar(const tke_answer_form *f, tkc_arena *arena, const char **param,
                                    tinkc_error *err)
{
    tinkc_str schema = { 0 };
    size_t n = 0;
    *param = "response_format";
    bool form = f->response_format.data && read_format(f, arena, &schema, err);
    if (tkc_failed(err) || !(form || f->must_call))
        return NULL;
    bool either = form && f->offers && !f->must_call; /* a call that is required has no text */
    if (either && f->style != TKE_CALLS_TAGGED) {
        tkc_fail(err, TINKC_E_BAD_REQUEST,
                 "a type other than text cannot be combined with tools for this model, whose calls "
                 "look like JSON or are not known to this server; leave the tools out, or set "
                 "tool_choice to none or required");
        return NULL;
    }
    tke_grammar *g = tkc_arena_zalloc(arena, sizeof *g, err);
    if (g && form && !f->must_call && !tke_json_grammar(g, arena, schema, err))
        return NULL;
    if (form && !f->offers)
        return g;
    *param = "tools";
    const tke_called *calls = g ? read_calls(f, arena, &n, err) : NULL;
    bool ok = calls && (either ? tke_call_or_json_grammar(g, arena, calls, n, schema, err)
                               : tke_call_grammar(g, arena, calls, n, err));
    return ok ? g : NULL;
}

/* ---- answers ---- */

/* How many bytes at the end of the text are a prefix of the word. */
static size_t begins_word(tinkc_str text, tinkc_str word)
{
    size_t n = word.len < text.len ? word.len : text.len;
    while (n && memcmp(text.data + text.len - n, word.data, n) != 0)
        n--;
    return n;
}

size_t tke_calls_certain(int32_t style, tinkc_str text)
{
    if (style == TKE_CALLS_NONE)
        return text.len;
    if (style == TKE_CALLS_BARE)
        return tkc_str_trim(text).len == 0 || tkc_str_trim(text).data[0] == '{' ? 0 : text.len;
    const char *at = memmem(text.data, text.len, opening, sizeof opening - 1);
    return at ? (size_t)(at - text.data) : text.len - begins_word(text, tkc_str(opening));
}

/* Reads one call: exactly {"name": X, "arguments" or "parameters": {...}}. */
static bool read_call(tinkc_str text, tkc_arena *arena, tke_tool_call *out)
{
    tinkc_error err = { 0 };
    tkc_json j = reader(text, arena, &err);
    tinkc_str key;
    *out = (tke_tool_call){ .arguments = tkc_str("{}") };
    if (!tkc_json_object(&j))
        return false;
    while (tkc_json_key(&j, &key))
        if (tkc_str_is(key, "name"))
            out->name = tkc_json_string(&j);
        else if ((tkc_str_is(key, "arguments") || tkc_str_is(key, "parameters")) &&
                 tkc_json_peek(&j) == TKC_JSON_OBJECT)
            out->arguments = tkc_json_skip(&j);
        else
            tkc_json_fail(&j, "not a call");
    return tkc_json_close(&j) && !tkc_failed(&err) && out->name.data && out->name.len;
}

/* ---- Qwen3-Coder's calls: <function=NAME> <parameter=KEY> VALUE </parameter> ... </function> ---- */

/* The text up to a mark, which is passed; false: there is none. */
static bool cut_at(tinkc_str *rest, const char *mark, tinkc_str *before)
{
    size_t n = strlen(mark);
    const char *at = rest->len ? memmem(rest->data, rest->len, mark, n) : NULL;
    if (!at)
        return false;
    *before = tkc_strn(rest->data, (size_t)(at - rest->data));
    *rest = tkc_strn(at + n, rest->len - before->len - n);
    return true;
}

/* The member of an object; data NULL = there is none. */
static tinkc_str member(tinkc_str object, tinkc_str name, tkc_arena *arena)
{
    tinkc_error err = { 0 };
    tkc_json j = reader(object, arena, &err);
    tinkc_str key, found = { 0 };
    if (object.data && tkc_json_peek(&j) == TKC_JSON_OBJECT && tkc_json_object(&j))
        while (tkc_json_key(&j, &key)) {
            tinkc_str value = tkc_json_skip(&j);
            if (tkc_str_eq(key, name))
                found = value;
        }
    return tkc_failed(&err) ? (tinkc_str){ 0 } : found;
}

/* Is this parameter a string, by the function's schema? One without a type is, unless it is JSON. */
static bool is_string(tinkc_str schema, tinkc_str key, tinkc_str value, tkc_arena *arena)
{
    tinkc_error err = { 0 };
    tinkc_str of = member(member(schema, tkc_str("properties"), arena), key, arena);
    tinkc_str type = member(of, tkc_str("type"), arena);
    if (type.data)
        return tkc_str_is(type, "\"string\"");
    tkc_json j = reader(value, arena, &err);
    (void)tkc_json_skip(&j);
    return !tkc_json_close(&j) || tkc_failed(&err);
}

static tinkc_str schema_of(tinkc_str tools, tinkc_str name, tkc_arena *arena)
{
    tinkc_error err = { 0 };
    tkc_json j = reader(tools, arena, &err);
    tinkc_str found = { 0 };
    if (tools.data && tkc_json_array(&j))
        while (tkc_json_item(&j)) {
            function one = read_function(&j);
            if (one.name.data && tkc_str_eq(one.name, name))
                found = one.parameters;
        }
    return found;
}

/* A value stands on lines of its own: one line break before it and one after it are not part of it. */
static tinkc_str without_breaks(tinkc_str s)
{
    if (s.len && s.data[0] == '\n')
        s = tkc_strn(s.data + 1, s.len - 1);
    return s.len && s.data[s.len - 1] == '\n' ? tkc_strn(s.data, s.len - 1) : s;
}

static bool read_parameters(tinkc_str rest, tinkc_str schema, tkc_arena *arena, tkc_jsonw *w)
{
    tinkc_str between, key, value;
    while (cut_at(&rest, "<parameter=", &between)) {
        if (tkc_str_trim(between).len || !cut_at(&rest, ">", &key) ||
            !cut_at(&rest, "</parameter>", &value))
            return false;
        value = without_breaks(value);
        tkc_jsonw_key_str(w, key);
        if (is_string(schema, key, value, arena))
            tkc_jsonw_str(w, value);
        else
            tkc_jsonw_raw(w, tkc_str_trim(value));
    }
    return tkc_str_trim(rest).len == 0;
}

static bool read_xml_call(tinkc_str text, tinkc_str tools, tkc_arena *arena, tke_tool_call *out)
{
    tinkc_error err = { 0 };
    tinkc_str body;
    tkc_buf json;
    tkc_jsonw w;
    if (!tkc_starts_with(text, "<function="))
        return false;
    text = tkc_strn(text.data + 10, text.len - 10);
    if (!cut_at(&text, ">", &out->name) || !out->name.len || !cut_at(&text, "</function>", &body) ||
        tkc_str_trim(text).len)
        return false;
    tkc_buf_init(&json, NULL, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&w, &json, &err);
    tkc_jsonw_object(&w);
    bool ok = read_parameters(body, schema_of(tools, out->name, arena), arena, &w);
    tkc_jsonw_end(&w);
    if (ok && !tkc_failed(&err))
        out->arguments = tkc_strn(tkc_arena_str(arena, tkc_buf_view(&json), &err), json.len);
    tkc_buf_free(&json);
    /* A value that is not what its type says makes no JSON, and then this is text. */
    tkc_json j = reader(out->arguments, arena, &err);
    if (ok && !tkc_failed(&err))
        (void)tkc_json_skip(&j);
    return ok && !tkc_failed(&err) && tkc_json_close(&j);
}

static size_t read_tagged(tinkc_str text, tinkc_str tools, tkc_arena *arena, tke_tool_call *out,
                          size_t *before)
{
    const char *at, *end = text.data + text.len, *stop;
    size_t n = 0;
    const char *from = memmem(text.data, text.len, opening, sizeof opening - 1);
    if (from)
        *before = (size_t)(from - text.data);
    for (at = from; at && n < TKE_MOST_CALLS;) {
        at += sizeof opening - 1;
        stop = memmem(at, (size_t)(end - at), closing, sizeof closing - 1);
        /* The last call may lack its closing mark, if that is what stopped the sample. */
        tinkc_str body = tkc_strn(at, (size_t)((stop ? stop : end) - at));
        body = tkc_str_trim(body);
        if (!read_call(body, arena, &out[n]) && !read_xml_call(body, tools, arena, &out[n]))
            return 0;
        n++;
        at = stop ? memmem(stop, (size_t)(end - stop), opening, sizeof opening - 1) : NULL;
    }
    return n;
}

size_t tke_calls_read(int32_t style, tinkc_str tools, tinkc_str text, tkc_arena *arena,
                      tke_tool_call *out, size_t *before)
{
    if (style == TKE_CALLS_TAGGED)
        return read_tagged(text, tools, arena, out, before);
    if (style != TKE_CALLS_BARE || !read_call(tkc_str_trim(text), arena, &out[0]))
        return 0;
    *before = 0;
    return 1;
}
