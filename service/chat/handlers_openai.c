/* handlers_openai.c - the OpenAI API: /v1/completions and /v1/chat/completions; the routes of all chat APIs.
 *
 * A request becomes an ordinary sample, with the same queue and limits. Known members are checked;
 * others are ignored if they cannot change the result, and refused by name if they can. Thread: any
 * front thread. May touch: svc under its lock.
 */
#include <stdio.h>
#include <stdlib.h>

#include "service/chat/chat_paths.h"
#include "service/chat/chat_state.h"
#include "service/core/service_state.h"
#include "service/core/settings.h"
#include "service/handlers/handler_call.h"
#include "tinkc/tokenizer.h"

/* ---- refusals ---- */

void tke_openai_refuse(tke_call *call, int32_t status, const char *code, const char *param,
                       const char *text)
{
    tinkc_error err = { 0 };
    tkc_buf body;
    if (tkc_cstr_eq(code, "unknown_model") || tkc_cstr_eq(code, "not_found")) {
        status = 404; /* the status and code that OpenAI's clients check */
        code = "model_not_found";
        param = "model";
    } else if (tkc_cstr_eq(code, "prompt_too_long")) {
        code = "context_length_exceeded";
    }
    tkc_buf_init(&body, call->svc->a, TKC_BUF_NO_MAX);
    if (call->anthropic)
        tke_anthropic_error(&body, status, code, text, &err);
    else
        tke_openai_error(&body, status, code, param, text, &err);
    if (tkc_failed(&err))
        tke_send_json(call->reply, 503, tkc_str("{\"error\":{\"message\":\"out of memory\"}}"));
    else
        tke_send_json(call->reply, status, tkc_buf_view(&body));
    tkc_buf_free(&body);
}

bool tke_chat_refuse(tke_call *call, const char *param, const char *text)
{
    tke_openai_refuse(call, 400, "bad_request", param, text);
    return false;
}

/* Refuses with call->err; 404 becomes 400. */
bool tke_chat_refuse_failure(tke_call *call, const char *param)
{
    const char *code;
    int32_t status = tke_failure_status(&call->err, &code);
    tke_openai_refuse(call, status == 404 ? 400 : status, status == 404 ? "bad_request" : code,
                      param, call->err.message);
    return false;
}

/* ---- the request ---- */

enum { MOST_STOPS = 4, MOST_STOP_BYTES = 4096, DEFAULT_MAX_TOKENS = 16 };

static bool wants(tkc_json *j, int kind, const char *what)
{
    return tkc_json_peek(j) == kind || tkc_json_fail(j, what);
}

static void read_stop(tkc_json *j, tke_chat_request *in)
{
    if (tkc_json_peek(j) == TKC_JSON_STRING) {
        in->stops[in->n_stops++] = tkc_json_string(j);
        return;
    }
    if (!wants(j, TKC_JSON_ARRAY, "a string or a list of strings is expected") ||
        !tkc_json_array(j))
        return;
    while (tkc_json_item(j)) {
        tinkc_str one = tkc_json_string(j);
        if (in->n_stops == MOST_STOPS)
            tkc_json_fail(j, "at most 4 strings are allowed");
        else
            in->stops[in->n_stops++] = one;
    }
}

static tke_chat_prompt *add_prompt(tkc_json *j, tke_chat_request *in, size_t *cap)
{
    if (in->n_prompts == *cap) {
        size_t more = *cap ? 2 * *cap : 4;
        tke_chat_prompt *grown = tkc_arena_array(j->arena, more, sizeof *grown, j->err);
        if (!grown)
            return NULL;
        if (in->n_prompts)
            memcpy(grown, in->prompts, in->n_prompts * sizeof *grown);
        in->prompts = grown;
        *cap = more;
    }
    return &in->prompts[in->n_prompts++];
}

/* A string, or a list of strings, of token ids, or of lists of those. */
static void read_prompt(tkc_json *j, tke_chat_request *in)
{
    static const char wanted[] = "a string, a list of token ids, or a list of either is expected";
    size_t cap = 0;
    tke_chat_prompt *p;
    in->n_prompts = 0;
    int kind = tkc_json_peek(j);
    if (kind != TKC_JSON_STRING && kind != TKC_JSON_ARRAY) {
        tkc_json_fail(j, wanted);
        return;
    }
    tkc_json ahead = *j; /* the first item tells what the list holds */
    int inside = kind == TKC_JSON_ARRAY && tkc_json_array(&ahead) && tkc_json_item(&ahead)
                     ? tkc_json_peek(&ahead)
                     : TKC_JSON_NUMBER;
    if (inside != TKC_JSON_STRING && inside != TKC_JSON_ARRAY) {
        if ((p = add_prompt(j, in, &cap)) && kind == TKC_JSON_STRING)
            p->text = tkc_json_string(j);
        else if (p)
            p->ids = tkc_json_i32s(j);
        return;
    }
    tkc_json_array(j);
    while (tkc_json_item(j) && (p = add_prompt(j, in, &cap))) {
        if (tkc_json_peek(j) == TKC_JSON_STRING)
            p->text = tkc_json_string(j);
        else if (tkc_json_peek(j) == TKC_JSON_ARRAY)
            p->ids = tkc_json_i32s(j);
        else
            tkc_json_fail(j, wanted);
    }
}

static void read_stream_options(tkc_json *j, tke_chat_request *in)
{
    tinkc_str key;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        bool on = !tkc_json_null(j) && tkc_json_bool(j);
        if (tkc_str_is(key, "include_usage"))
            in->usage = on;
        else if (on && !tkc_str_is(key, "include_obfuscation")) /* padding, which hides lengths */
            tkc_json_fail(j, "include_usage is the only option that this server supports");
    }
}

static tinkc_str read_array(tkc_json *j)
{
    return wants(j, TKC_JSON_ARRAY, "a list is expected") ? tkc_json_skip(j) : (tinkc_str){ 0 };
}

static tkc_opt_i64 read_i64(tkc_json *j)
{
    return (tkc_opt_i64)TKC_SOME(tkc_json_i64(j));
}

/* A chat has two names for it, and a client may send both. */
static void read_max_tokens(tkc_json *j, tke_chat_request *in)
{
    tkc_opt_i64 one = read_i64(j);
    in->two_limits = in->max_tokens.is == TKC_GIVEN && in->max_tokens.value != one.value;
    in->max_tokens = one;
}

static int by_token(const void *a, const void *b)
{
    int32_t x = ((const tke_bias *)a)->token, y = ((const tke_bias *)b)->token;
    return (x > y) - (x < y);
}

/* {"TOKEN": bias from -100 to 100, ...} */
static void read_biases(tkc_json *j, tke_chat_request *in)
{
    tinkc_str key;
    tke_bias *list = NULL;
    size_t n = 0, cap = 0;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key)) {
        int64_t token = -1;
        double by = tkc_json_double(j);
        if (!tkc_parse_i64(key, &token) || token < 0 || token > INT32_MAX)
            tkc_json_fail(j, "its names must be token ids");
        else if (!(by >= -100 && by <= 100))
            tkc_json_fail(j, "biases must be from -100 to 100");
        if (n == cap) {
            tke_bias *grown = tkc_arena_array(j->arena, cap = 2 * cap + 16, sizeof *list, j->err);
            if (!grown)
                return;
            if (n)
                memcpy(grown, list, n * sizeof *list);
            list = grown;
        }
        list[n++] = (tke_bias){ (int32_t)token, (float)by };
    }
    if (n)
        qsort(list, n, sizeof *list, by_token);
    for (size_t i = 1; i < n; i++)
        if (list[i].token == list[i - 1].token)
            tkc_json_fail(j, "a token is named twice");
    in->biases = list;
    in->n_biases = n;
}

/* Reads one member; false: not one that we support. */
static bool read_member(tkc_json *j, tinkc_str key, tke_chat_request *in)
{
    if (tkc_str_is(key, "model"))
        in->model = tkc_json_string(j);
    else if (tkc_str_is(key, "prompt") && !in->chat)
        read_prompt(j, in);
    else if (tkc_str_is(key, "messages") && in->chat)
        in->messages = read_array(j);
    else if (tkc_str_is(key, "tools") && in->chat)
        in->form.tools = read_array(j);
    else if (tkc_str_is(key, "tool_choice") && in->chat)
        in->form.tool_choice = tkc_json_skip(j);
    else if (tkc_str_is(key, "response_format") && in->chat)
        in->form.response_format = tkc_json_skip(j);
    else if (tkc_str_is(key, "max_tokens") ||
             (in->chat && tkc_str_is(key, "max_completion_tokens")))
        read_max_tokens(j, in);
    else if (tkc_str_is(key, "seed"))
        in->seed = read_i64(j);
    else if (tkc_str_is(key, "n"))
        in->n = tkc_json_i64(j);
    else if (tkc_str_is(key, "temperature"))
        in->temperature = tkc_json_double(j);
    else if (tkc_str_is(key, "presence_penalty"))
        in->presence_penalty = tkc_json_double(j);
    else if (tkc_str_is(key, "frequency_penalty"))
        in->frequency_penalty = tkc_json_double(j);
    else if (tkc_str_is(key, "logit_bias"))
        read_biases(j, in);
    else if (tkc_str_is(key, "parallel_tool_calls") && in->chat)
        in->one_call = !tkc_json_bool(j);
    else if (tkc_str_is(key, "reasoning_effort") && in->chat)
        in->effort = tkc_json_string(j);
    else if (tkc_str_is(key, "top_p"))
        in->top_p = tkc_json_double(j);
    else if (tkc_str_is(key, "stop"))
        read_stop(j, in);
    else if (tkc_str_is(key, "stream"))
        in->stream = tkc_json_bool(j);
    else if (tkc_str_is(key, "stream_options"))
        read_stream_options(j, in);
    else if (tkc_str_is(key, "echo") && !in->chat)
        in->echo = tkc_json_bool(j);
    else if (tkc_str_is(key, "logprobs") && in->chat)
        in->logprobs = tkc_json_bool(j);
    else if (tkc_str_is(key, "logprobs"))
        in->logprobs = true, in->top = tkc_json_i64(j);
    else if (tkc_str_is(key, "top_logprobs") && in->chat)
        in->top = tkc_json_i64(j);
    else
        return false;
    return true;
}

/* Members that clients send and this server does not act on: accepted with these values (any value
 * if none are listed), refused by name with others. */
static const struct {
    const char *name, *values; /* without white space, divided by '|' */
} neutral[] = {
    { "user", NULL },
    { "metadata", NULL },
    { "store", "false" }, /* nothing could be fetched later */
    { "service_tier", "\"auto\"|\"default\"" },
    { "safety_identifier", NULL },
    { "prompt_cache_key", NULL },
    { "response_format", "{\"type\":\"text\"}" },
    { "tool_choice", "\"auto\"|\"none\"" },
    { "parallel_tool_calls", "true" },
    { "modalities", "[\"text\"]" },
    { "best_of", "1" },
    { "suffix", "\"\"" },
    { "top_k", "-1|0" },
    { "min_p", "0|0.0" },
    { "repetition_penalty", "1|1.0" },
};

static bool is_listed(const char *values, tinkc_str value)
{
    tinkc_str rest = tkc_str(values), one;
    while (tkc_str_cut(&rest, '|', &one))
        if (tkc_str_eq(one, value))
            return true;
    return tkc_str_eq(rest, value);
}

/* For an unsupported member: true if it changes nothing, else the call is answered. */
static bool may_ignore(tke_call *call, tinkc_str key, tinkc_str value)
{
    char plain[64], text[200];
    size_t n = 0;
    for (size_t i = 0; i < value.len && n < sizeof plain; i++)
        if (!strchr(" \t\r\n", value.data[i]))
            plain[n++] = value.data[i];
    for (size_t i = 0; i < sizeof neutral / sizeof *neutral; i++)
        if (tkc_str_is(key, neutral[i].name)) {
            if (!neutral[i].values || is_listed(neutral[i].values, tkc_strn(plain, n)))
                return true;
            (void)snprintf(
                text, sizeof text, "%s: this value is not supported by this server%s",
                neutral[i].name,
                tkc_str_is(key, "response_format") ? " here; /v1/chat/completions takes more" : "");
            return tke_chat_refuse(call, neutral[i].name, text);
        }
    char *name = tkc_arena_str(&call->arena, tkc_strn(key.data, key.len < 60 ? key.len : 60),
                               &(tinkc_error){ 0 });
    (void)snprintf(text, sizeof text, "the parameter '%s' is not supported by this server",
                   name ? name : "");
    return tke_chat_refuse(call, name, text);
}

static bool read_body(tke_call *call, tke_chat_request *in)
{
    tkc_json j;
    tinkc_str key;
    const char *wrong = NULL; /* the member in which reading failed */
    tkc_json_open(&j, call->body, &call->arena, &call->err);
    if (tkc_json_object(&j))
        while (!wrong && tkc_json_key(&j, &key)) {
            if (tkc_json_null(&j))
                continue;
            if (!read_member(&j, key, in)) {
                tinkc_str value = tkc_json_skip(&j);
                if (!tkc_failed(&call->err) && !may_ignore(call, key, value))
                    return false;
            } else if (tkc_failed(&call->err))
                wrong = tkc_arena_str(&call->arena, key, &(tinkc_error){ 0 });
        }
    tkc_json_close(&j);
    if (!tkc_failed(&call->err))
        return true;
    if (call->err.code == TINKC_E_MEMORY)
        return tke_chat_refuse_failure(call, NULL);
    char text[400];
    (void)snprintf(text, sizeof text, "%s%s%.300s", wrong ? wrong : "the body", ": ",
                   call->err.message);
    return tke_chat_refuse(call, wrong, text);
}

static bool check_stop(tke_call *call, const tke_chat_request *in)
{
    size_t bytes = 0;
    for (size_t i = 0; i < in->n_stops; i++) {
        bytes += in->stops[i].len;
        if (in->stops[i].len == 0)
            return tke_chat_refuse(call, "stop", "a stop string must not be empty");
    }
    return bytes <= MOST_STOP_BYTES ||
           tke_chat_refuse(call, "stop", "stop may have 4096 bytes in all");
}

static bool refuse_range(tke_call *call, const char *param, const char *what, int64_t from,
                         int64_t to)
{
    char text[160];
    (void)snprintf(text, sizeof text, "%s must be from %lld to %lld", what, (long long)from,
                   (long long)to);
    return tke_chat_refuse(call, param, text);
}

static bool check(tke_call *call, const tke_chat_request *in)
{
    const tke_settings *set = &call->svc->set;
    int64_t least = in->echo ? 0 : 1; /* an echo alone gives log-probs of a text */
    if (!in->model.data)
        return tke_chat_refuse(call, "model", "model is required");
    if (in->chat && !in->messages.data)
        return tke_chat_refuse(call, "messages", "messages is required");
    if (!in->chat && !in->n_prompts)
        return tke_chat_refuse(call, "prompt", "prompt is required");
    if (in->n < 1 || in->n > set->max_num_samples)
        return refuse_range(call, "n", "n", 1, set->max_num_samples);
    if (in->n_prompts > (size_t)(set->max_num_samples / in->n))
        return refuse_range(call, "prompt", "n times the number of prompts", 1,
                            set->max_num_samples);
    if (in->top < 0 || in->top > set->max_topk)
        return refuse_range(call, in->chat ? "top_logprobs" : "logprobs",
                            in->chat ? "top_logprobs" : "logprobs", 0, set->max_topk);
    if (in->top && !in->logprobs)
        return tke_chat_refuse(call, "top_logprobs", "top_logprobs needs logprobs");
    if (!(in->temperature >= 0 && in->temperature <= (double)set->max_temperature))
        return refuse_range(call, "temperature", "temperature", 0, set->max_temperature);
    if (!(in->presence_penalty >= -2 && in->presence_penalty <= 2))
        return refuse_range(call, "presence_penalty", "presence_penalty", -2, 2);
    if (!(in->frequency_penalty >= -2 && in->frequency_penalty <= 2))
        return refuse_range(call, "frequency_penalty", "frequency_penalty", -2, 2);
    if (!(in->top_p > 0 && in->top_p <= 1))
        return tke_chat_refuse(call, "top_p", "top_p must be above 0 and at most 1");
    if (in->two_limits)
        return tke_chat_refuse(call, "max_completion_tokens",
                               "max_tokens and max_completion_tokens differ; send one of them");
    if (in->max_tokens.is == TKC_GIVEN && in->max_tokens.value < least)
        return tke_chat_refuse(call, "max_tokens", "max_tokens must be 1 or more, or 0 with echo");
    return check_stop(call, in);
}

static void complete(tke_call *call, bool chat)
{
    tke_chat_prompt only = { 0 };
    tke_chat_request in = { .chat = chat,
                            .effort_name = "reasoning_effort",
                            .prefix = chat ? "chatcmpl-" : "cmpl-",
                            .n = 1,
                            .temperature = 1,
                            .top_p = 1,
                            .whole = &tke_openai_whole,
                            .events = &tke_openai_events };
    if (chat) {
        in.prompts = &only;
        in.n_prompts = 1;
    }
    if (!read_body(call, &in) || !check(call, &in))
        return;
    if (!chat && in.max_tokens.is != TKC_GIVEN)
        in.usual_tokens = DEFAULT_MAX_TOKENS;
    tke_chat_complete(call, &in);
}

static void front_completions(tke_call *call)
{
    complete(call, false);
}

static void front_chat(tke_call *call)
{
    complete(call, true);
}

/* ---- what is not there ---- */

/* What a vector of a text is (the mean of the hidden states, or the last) is not the server's to
 * choose: models that are made for it say so, and those here are not. */
static void front_embeddings(tke_call *call)
{
    tke_openai_refuse(
        call, 400, "unsupported_endpoint", NULL,
        "This server has no embeddings: its models are trained to continue texts, not "
        "to compare them");
}

/* ---- routing ---- */

typedef struct openai_path {
    const char *path, *method;
    tke_handle_fn *fn;
} openai_path;

static const openai_path *find_path(tinkc_str path)
{
    static const openai_path paths[] = {
        { TKE_CHAT_MODELS, "GET", tke_front_models },
        { TKE_CHAT_MODELS "/", "GET", tke_front_model }, /* and what follows it */
        { "/v1/completions", "POST", front_completions },
        { "/v1/chat/completions", "POST", front_chat },
        { "/v1/embeddings", "POST", front_embeddings },
        { "/v1/responses", "POST", tke_front_responses },
        { "/v1/messages", "POST", tke_front_messages },
        { "/v1/messages/count_tokens", "POST", tke_front_count_tokens },
    };
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        bool prefix = tkc_ends_with(tkc_str(paths[i].path), "/");
        if (prefix ? tkc_starts_with(path, paths[i].path) && path.len > strlen(paths[i].path)
                   : tkc_str_is(path, paths[i].path))
            return &paths[i];
    }
    return NULL;
}

tinkc_str tke_openai_path(tinkc_str path)
{
    static const char *const prefixes[] = { "/oai/api", "/anthropic/api" };
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(prefixes[i]);
        if (tkc_starts_with(path, prefixes[i]))
            return tkc_strn(path.data + n, path.len - n);
    }
    return path;
}

bool tke_openai_knows(tinkc_str path)
{
    return find_path(tke_openai_path(path)) != NULL;
}

tke_handle_fn *tke_openai_find(tke_call *call, tinkc_str path)
{
    const openai_path *found = find_path(path);
    if (found && tkc_cstr_eq(call->request->method, found->method))
        return found->fn;
    tke_openai_refuse(call, found ? 405 : 404, found ? "method_not_allowed" : "unknown_endpoint",
                      NULL, found ? "method not allowed" : "no such endpoint");
    return NULL;
}
