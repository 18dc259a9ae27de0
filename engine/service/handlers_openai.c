/* handlers_openai.c - the OpenAI API: /v1/models, /v1/completions and /v1/chat/completions.
 *
 * A request becomes an ordinary sample, with the same queue and limits. Known members are checked;
 * others are ignored if they cannot change the result, and refused by name if they can. A model's
 * tokenizer is opened at its first request with text, and kept. Thread: any front thread. May
 * touch: svc under its lock, the model's folder (to open its tokenizer, under tokenizer_lock only).
 */
#include <stdio.h>

#include "codec/url.h"
#include "service/openai.h"
#include "tinkc/tokenizer.h"

#define MODEL_PATH "/v1/models/"

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
    tke_openai_error(&body, status, code, param, text, &err);
    if (tkc_failed(&err))
        tke_send_json(call->reply, 503, tkc_str("{\"error\":{\"message\":\"out of memory\"}}"));
    else
        tke_send_json(call->reply, status, tkc_buf_view(&body));
    tkc_buf_free(&body);
}

static bool refuse(tke_call *call, const char *param, const char *text)
{
    tke_openai_refuse(call, 400, "bad_request", param, text);
    return false;
}

/* Refuses with call->err; 404 becomes 400. */
static bool refuse_failure(tke_call *call, const char *param)
{
    const char *code;
    int32_t status = tke_failure_status(&call->err, &code);
    tke_openai_refuse(call, status == 404 ? 400 : status, status == 404 ? "bad_request" : code,
                      param, call->err.message);
    return false;
}

/* ---- tokenizers ---- */

#ifdef TINKC_WITH_TOKENIZER

bool tke_openai_possible(tinkc_error *err)
{
    (void)err;
    return true;
}

void tke_base_free_tokenizer(tke_base *base)
{
    tke_token_order_free(base->order);
    tinkc_tokenizer_free(base->tokenizer);
}

/* Clients see the model's name where a message names its folder, which is the server's affair. */
static void hide_folder(const tke_base *base, tinkc_error *err)
{
    tinkc_error seen = *err;
    if (!tkc_starts_with(tkc_str(seen.message), base->model->folder))
        return;
    *err = (tinkc_error){ 0 };
    tkc_fail(err, seen.code, "%.150s%.240s", base->name,
             seen.message + strlen(base->model->folder));
}

/* The tokenizer of a model; NULL: err says why. It stays until the service ends. */
static const tinkc_tokenizer *tokenizer_of(tke_service *svc, tke_base *base, tinkc_error *err)
{
    pthread_mutex_lock(&svc->tokenizer_lock);
    if (!base->tokenizer)
        base->tokenizer = tinkc_tokenizer_open(
            base->model->folder, &(tinkc_tokenizer_options){ .allocator = svc->a }, err);
    const tinkc_tokenizer *tok = base->tokenizer;
    pthread_mutex_unlock(&svc->tokenizer_lock);
    if (!tok)
        hide_folder(base, err);
    return tok;
}

/* tke_token_bytes_fn: special tokens are not text. */
static size_t token_bytes(void *user, int32_t token, const char **bytes)
{
    const tinkc_tokenizer *tok = user;
    if (tinkc_tokenizer_is_special(tok, token))
        return 0;
    tinkc_bytes b = tinkc_tokenizer_bytes(tok, token);
    *bytes = (const char *)b.data;
    return b.len;
}

/* The model's tokens by their bytes; NULL: err says why. It stays until the service ends. */
static tke_token_order *order_of(tke_service *svc, tke_base *base, const tinkc_tokenizer *tok,
                                 tinkc_error *err)
{
    pthread_mutex_lock(&svc->tokenizer_lock);
    if (!base->order)
        base->order = tke_token_order_new(tke_model_config(base->model)->vocab, token_bytes,
                                          (void *)(uintptr_t)tok, err);
    tke_token_order *order = base->order;
    pthread_mutex_unlock(&svc->tokenizer_lock);
    return order;
}

/* ---- the request ---- */

enum { MOST_STOPS = 4, MOST_STOP_BYTES = 4096, DEFAULT_MAX_TOKENS = 16 };

typedef struct prompt {
    tinkc_str text; /* data NULL: ids */
    tinkc_i32s ids;
} prompt;

typedef struct asked {
    bool chat;
    tinkc_str model, messages; /* data NULL = not given */
    tke_answer_form form;      /* of a chat */
    prompt *prompts;           /* of a chat: one, left empty */
    size_t n_prompts;
    bool stream, usage, echo, logprobs;
    bool two_limits; /* max_tokens and max_completion_tokens, which differ */
    tkc_opt_i64 max_tokens, seed;
    int64_t n, top;
    double temperature, top_p;
    tinkc_str stops[MOST_STOPS];
    size_t n_stops;
} asked;

static bool wants(tkc_json *j, int kind, const char *what)
{
    return tkc_json_peek(j) == kind || tkc_json_fail(j, what);
}

static void read_stop(tkc_json *j, asked *in)
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

static prompt *add_prompt(tkc_json *j, asked *in, size_t *cap)
{
    if (in->n_prompts == *cap) {
        size_t more = *cap ? 2 * *cap : 4;
        prompt *grown = tkc_arena_array(j->arena, more, sizeof *grown, j->err);
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
static void read_prompt(tkc_json *j, asked *in)
{
    static const char wanted[] = "a string, a list of token ids, or a list of either is expected";
    size_t cap = 0;
    prompt *p;
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

static void read_stream_options(tkc_json *j, asked *in)
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
static void read_max_tokens(tkc_json *j, asked *in)
{
    tkc_opt_i64 one = read_i64(j);
    in->two_limits = in->max_tokens.is == TKC_GIVEN && in->max_tokens.value != one.value;
    in->max_tokens = one;
}

/* Reads one member; false: not one that we support. */
static bool read_member(tkc_json *j, tinkc_str key, asked *in)
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
    { "frequency_penalty", "0|0.0" },
    { "presence_penalty", "0|0.0" },
    { "logit_bias", "{}" },
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
            return refuse(call, neutral[i].name, text);
        }
    char *name = tkc_arena_str(&call->arena, tkc_strn(key.data, key.len < 60 ? key.len : 60),
                               &(tinkc_error){ 0 });
    (void)snprintf(text, sizeof text, "the parameter '%s' is not supported by this server",
                   name ? name : "");
    return refuse(call, name, text);
}

static bool read_body(tke_call *call, asked *in)
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
        return refuse_failure(call, NULL);
    char text[400];
    (void)snprintf(text, sizeof text, "%s%s%.300s", wrong ? wrong : "the body", ": ",
                   call->err.message);
    return refuse(call, wrong, text);
}

static bool check_stop(tke_call *call, const asked *in)
{
    size_t bytes = 0;
    for (size_t i = 0; i < in->n_stops; i++) {
        bytes += in->stops[i].len;
        if (in->stops[i].len == 0)
            return refuse(call, "stop", "a stop string must not be empty");
    }
    return bytes <= MOST_STOP_BYTES || refuse(call, "stop", "stop may have 4096 bytes in all");
}

static bool refuse_range(tke_call *call, const char *param, const char *what, int64_t from,
                         int64_t to)
{
    char text[160];
    (void)snprintf(text, sizeof text, "%s must be from %lld to %lld", what, (long long)from,
                   (long long)to);
    return refuse(call, param, text);
}

static bool check(tke_call *call, const asked *in)
{
    const tke_settings *set = &call->svc->set;
    int64_t least = in->echo ? 0 : 1; /* an echo alone gives log-probs of a text */
    if (!in->model.data)
        return refuse(call, "model", "model is required");
    if (in->chat && !in->messages.data)
        return refuse(call, "messages", "messages is required");
    if (!in->chat && !in->n_prompts)
        return refuse(call, "prompt", "prompt is required");
    if (in->n < 1 || in->n > set->max_num_samples)
        return refuse_range(call, "n", "n", 1, set->max_num_samples);
    if (in->n_prompts > (size_t)(set->max_num_samples / in->n))
        return refuse_range(call, "prompt", "n times the number of prompts", 1,
                            set->max_num_samples);
    if (in->top < 0 || in->top > set->max_topk)
        return refuse_range(call, in->chat ? "top_logprobs" : "logprobs",
                            in->chat ? "top_logprobs" : "logprobs", 0, set->max_topk);
    if (in->top && !in->logprobs)
        return refuse(call, "top_logprobs", "top_logprobs needs logprobs");
    if (!(in->temperature >= 0) || in->temperature > 1e30)
        return refuse(call, "temperature", "temperature must be a finite number, 0 or more");
    if (!(in->top_p > 0 && in->top_p <= 1))
        return refuse(call, "top_p", "top_p must be above 0 and at most 1");
    if (in->two_limits)
        return refuse(call, "max_completion_tokens",
                      "max_tokens and max_completion_tokens differ; send one of them");
    if (in->max_tokens.is == TKC_GIVEN && in->max_tokens.value < least)
        return refuse(call, "max_tokens", "max_tokens must be 1 or more, or 0 with echo");
    return check_stop(call, in);
}

/* ---- from request to sample ---- */

/* The model's template, which tells its roles and how it writes tool calls; NULL = it has none. */
static const char *template_of(const tinkc_tokenizer *tok)
{
    const char *tools = tinkc_tokenizer_template(tok, "tool_use");
    return tools ? tools : tinkc_tokenizer_template(tok, NULL);
}

/* The tokens of a conversation, in *space. */
static bool encode_chat(tke_call *call, const asked *in, const tinkc_tokenizer *tok,
                        tinkc_tokens *space)
{
    tinkc_chat_options how = { .generation_prompt = true };
    tkc_buf messages;
    tkc_buf_init(&messages, call->svc->a, TKC_BUF_NO_MAX);
    if (in->form.offers)
        how.tools_json = tkc_arena_str(&call->arena, in->form.tools, &call->err);
    if (tke_openai_messages(in->messages, template_of(tok), &call->arena, &messages, &call->err) &&
        tkc_buf_terminate(&messages, &call->err))
        (void)tinkc_chat_encode(tok, messages.data, &how, space, &call->err);
    tkc_buf_free(&messages);
    if (call->err.code == TINKC_E_TEMPLATE) { /* its lines are the template's */
        char why[sizeof call->err.message + 64];
        (void)snprintf(why, sizeof why, "the model's chat template refuses these messages: %s",
                       call->err.message);
        return refuse(call, "messages", why);
    }
    return tkc_failed(&call->err) ? refuse_failure(call, "messages") : true;
}

/* The tokens of one prompt; if it is text, they are in *space. */
static bool encode_prompt(tke_call *call, const asked *in, const prompt *p,
                          const tinkc_tokenizer *tok, tinkc_tokens *space, tinkc_i32s *out)
{
    space->len = 0;
    *out = p->ids;
    if (!in->chat && !p->text.data)
        return true;
    if (!in->chat) {
        const tinkc_encode_options plain = { .add_special = true };
        if (!tinkc_encode_span(tok, p->text.data, p->text.len, &plain, space, NULL, &call->err))
            return refuse_failure(call, "prompt");
    } else if (!encode_chat(call, in, tok, space)) {
        return false;
    }
    *out = (tinkc_i32s){ space->data, space->len };
    return true;
}

/* Stops at the model's end tokens and at the strings; a string that is a special token stops as
 * one. */
static bool take_stops(tke_call *call, const asked *in, const tinkc_tokenizer *tok, tke_job *job)
{
    tke_gen_request *gen = &job->in.sample.gen;
    tinkc_i32s ends = tinkc_tokenizer_ends(tok);
    int32_t *ids = tkc_arena_array(&job->arena, ends.len + MOST_STOPS, sizeof *ids, &call->err);
    tinkc_str *strings = tkc_arena_array(&job->arena, MOST_STOPS, sizeof *strings, &call->err);
    if (ids && ends.len)
        memcpy(ids, ends.data, ends.len * sizeof *ids);
    size_t n_ids = ends.len, n_strings = 0;
    for (size_t i = 0; i < in->n_stops && ids && strings; i++) {
        char *copy = tkc_arena_str(&job->arena, in->stops[i], &call->err);
        int32_t id = copy && strlen(copy) == in->stops[i].len ? tinkc_tokenizer_id(tok, copy) : -1;
        if (id >= 0 && tinkc_tokenizer_is_special(tok, id))
            ids[n_ids++] = id;
        else
            strings[n_strings++] = tkc_strn(copy, in->stops[i].len);
    }
    gen->stop_tokens = ids;
    gen->n_stop_tokens = n_ids;
    gen->stop_strings = strings;
    gen->n_stop_strings = n_strings;
    gen->token_bytes = token_bytes;
    gen->token_user = (void *)(uintptr_t)tok;
    return !tkc_failed(&call->err) || refuse_failure(call, NULL);
}

static bool fill(tke_call *call, const asked *in, tkc_sample_request *out, tinkc_i32s tokens,
                 tke_job *job)
{
    int64_t context = (int64_t)job->in.sample.base->context;
    int64_t left = context - (int64_t)tokens.len;
    const tinkc_chunk chunk = { .kind = TINKC_CHUNK_TOKENS, .tokens = tokens };
    tkc_sampling_params *p = &out->sampling_params;
    out->prompt.chunks.data = &chunk;
    out->prompt.chunks.len = 1;
    out->num_samples = in->n;
    p->temperature = (float)in->temperature;
    p->top_p = (float)in->top_p;
    p->top_k = -1;
    p->max_tokens = in->max_tokens;
    if (!in->chat && in->max_tokens.is != TKC_GIVEN && left > DEFAULT_MAX_TOKENS)
        p->max_tokens = (tkc_opt_i64)TKC_SOME(DEFAULT_MAX_TOKENS);
    if (in->seed.is == TKC_GIVEN)
        p->seed = (tkc_opt_seed)TKC_SOME((uint64_t)in->seed.value);
    if (in->echo && in->logprobs) {
        out->prompt_logprobs = (tkc_opt_bool)TKC_SOME(true);
        out->topk_prompt_logprobs = in->top;
    }
    if (!tke_sample_fill(call, out, job))
        return false;
    job->in.sample.gen.topk_sample_logprobs = in->logprobs ? (size_t)in->top : 0;
    job->in.sample.gen.rule.logprobs =
        TKE_LOGPROBS_RAW; /* the top log-probs beside them are raw too */
    return true;
}

/* Refuses with call->err, prefixed by the name of the member. */
static bool refuse_form(tke_call *call, const char *param)
{
    char text[400];
    const char *code;
    int32_t status = tke_failure_status(&call->err, &code);
    bool theirs = call->err.code == TINKC_E_BAD_REQUEST || call->err.code == TINKC_E_UNSUPPORTED;
    (void)snprintf(text, sizeof text, "%s: %.300s", param, call->err.message);
    tke_openai_refuse(call, theirs ? 400 : status, theirs ? "bad_request" : code, param, text);
    return false;
}

/* The constraint from response_format and tool_choice, if any. */
static bool take_constraint(tke_call *call, const asked *in, const tinkc_tokenizer *tok,
                            tke_job *job)
{
    const char *param;
    tke_service *svc = call->svc;
    const tke_grammar *g = tke_form_grammar(&in->form, &job->arena, &param, &call->err);
    if (tkc_failed(&call->err))
        return refuse_form(call, param);
    if (!g)
        return true;
    tke_constraint *c = tkc_arena_alloc(&job->arena, sizeof *c, &call->err);
    if (c)
        *c = (tke_constraint){ g, order_of(svc, job->in.sample.base, tok, &call->err) };
    if (tkc_failed(&call->err))
        return refuse_form(call, param);
    job->in.sample.gen.constraint = c;
    return true;
}

static bool settle_form(tke_call *call, asked *in, const tinkc_tokenizer *tok)
{
    const char *param = NULL;
    return !in->chat || tke_form_style(&in->form, template_of(tok), &param, &call->err) ||
           refuse_form(call, param);
}

/* tke_token_bytes_fn that includes special tokens. */
static size_t token_name(void *user, int32_t token, const char **bytes)
{
    tinkc_bytes b = tinkc_tokenizer_bytes(user, token);
    *bytes = (const char *)b.data;
    return b.len;
}

static void start(tke_call *call, const asked *in, tke_job *const *jobs)
{
    tke_openai_answer like = { .created_s = tkc_wall_us(call->svc->clock) / 1000000,
                               .chat = in->chat,
                               .echo = in->echo,
                               .logprobs = in->logprobs,
                               .top = (size_t)in->top,
                               .usage = in->usage,
                               .calls = in->form.style,
                               .names = token_name };
    like.model = tkc_arena_str(&call->arena, in->model, &call->err);
    (void)snprintf(like.id, sizeof like.id, "%s-%016llx", in->chat ? "chatcmpl" : "cmpl",
                   (unsigned long long)tkc_random(call->svc->clock));
    tke_openai_answer *a = like.model ? tke_openai_answer_new(call->svc->a, &like, in->n_prompts,
                                                              (size_t)in->n, &call->err)
                                      : NULL;
    if (!a) {
        refuse_failure(call, NULL);
        return;
    }
    for (size_t i = 0; i < in->n_prompts; i++) {
        a->parts[i].job = jobs[i];
        jobs[i]->in.sample.stream_user = &a->parts[i];
    }
    tke_sample_stream(call, jobs, in->n_prompts,
                      in->stream ? &tke_openai_events : &tke_openai_whole);
}

/* One prompt becomes a job, not yet in a queue. NULL: answered. */
static tke_job *make_job(tke_call *call, asked *in, const prompt *p, const char *model,
                         tinkc_tokens *space)
{
    tke_service *svc = call->svc;
    tkc_sample_request request = { 0 };
    tinkc_i32s tokens;
    *(tkc_starts_with(in->model, "tinker://") ? &request.model_path : &request.base_model) = model;
    tke_job *job = tke_job_new(svc, TKE_JOB_SAMPLE, NULL, call->owner, &call->err);
    if (!job) {
        refuse_failure(call, NULL);
        return NULL;
    }
    if (tke_sample_target(call, &request, job)) {
        const tinkc_tokenizer *tok = tokenizer_of(svc, job->in.sample.base, &call->err);
        if (!tok)
            refuse_failure(call, "model");
        else if (settle_form(call, in, tok) && encode_prompt(call, in, p, tok, space, &tokens) &&
                 fill(call, in, &request, tokens, job) && take_stops(call, in, tok, job) &&
                 take_constraint(call, in, tok, job))
            return job;
    }
    tke_job_drop(job);
    return NULL;
}

static void complete(tke_call *call, bool chat)
{
    prompt only = { 0 };
    asked in = { .chat = chat, .n = 1, .temperature = 1, .top_p = 1 };
    tinkc_tokens space = { .a = call->svc->a };
    if (chat) {
        in.prompts = &only;
        in.n_prompts = 1;
    }
    const char *param = NULL;
    if (!read_body(call, &in) || !check(call, &in))
        return;
    if (!tke_form_read(&in.form, &call->arena, &param, &call->err)) {
        refuse_form(call, param);
        return;
    }
    char *model = tkc_arena_str(&call->arena, in.model, &call->err);
    tke_job **jobs = tkc_arena_array(&call->arena, in.n_prompts, sizeof(tke_job *), &call->err);
    if (!model || !jobs) {
        refuse_failure(call, NULL);
        return;
    }
    size_t n = 0;
    while (n < in.n_prompts && (jobs[n] = make_job(call, &in, &in.prompts[n], model, &space)))
        n++;
    if (n == in.n_prompts)
        start(call, &in, jobs);
    while (n > 0)
        tke_job_drop(jobs[--n]);
    tinkc_tokens_free(&space);
}

#else /* without a tokenizer the setting is refused, so this is not reached */

bool tke_openai_possible(tinkc_error *err)
{
    return tkc_fail(err, TINKC_E_UNSUPPORTED, "openai: this build has no tokenizer");
}

void tke_base_free_tokenizer(tke_base *base)
{
    (void)base;
}

static void complete(tke_call *call, bool chat)
{
    (void)chat;
    refuse(call, NULL, "this build has no tokenizer");
}

#endif

static void front_completions(tke_call *call)
{
    complete(call, false);
}

static void front_chat(tke_call *call)
{
    complete(call, true);
}

/* ---- models ---- */

static void write_model(tkc_jsonw *w, const char *id, int64_t created_us)
{
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "id");
    tkc_jsonw_cstr(w, id);
    tkc_jsonw_key(w, "object");
    tkc_jsonw_cstr(w, "model");
    tkc_jsonw_key(w, "created");
    tkc_jsonw_i64(w, created_us / 1000000);
    tkc_jsonw_key(w, "owned_by");
    tkc_jsonw_cstr(w, "tinkc");
    tkc_jsonw_end(w);
}

/* Locks: needs svc->lock. May the caller sample from it by this name? */
static bool is_offered(tke_call *call, const tke_checkpoint *c)
{
    return c->kind == TKE_CKPT_SAMPLER && tkc_cstr_eq(c->owner, call->owner) && c->run &&
           c->run->base && tke_checkpoint_visible(call->svc, c);
}

static void front_models(tke_call *call)
{
    tke_service *svc = call->svc;
    const tkc_map_entry *e;
    tkc_jsonw w;
    tkc_buf out;
    tkc_buf_init(&out, svc->a, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&w, &out, &call->err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "object");
    tkc_jsonw_cstr(&w, "list");
    tkc_jsonw_key(&w, "data");
    tkc_jsonw_array(&w);
    pthread_mutex_lock(&svc->lock);
    for (size_t at = 0; (e = tkc_map_next(&svc->bases, &at));)
        write_model(&w, e->key, ((const tke_base *)e->value)->added_us);
    for (size_t at = 0; (e = tkc_map_next(&svc->checkpoints, &at));) {
        const tke_checkpoint *c = e->value;
        if (is_offered(call, c))
            write_model(&w, c->path, c->created_us);
    }
    pthread_mutex_unlock(&svc->lock);
    tkc_jsonw_end(&w);
    tkc_jsonw_end(&w);
    if (tkc_failed(&call->err))
        refuse_failure(call, NULL);
    else
        tke_send_json(call->reply, 200, tkc_buf_view(&out));
    tkc_buf_free(&out);
}

static void front_model(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_jsonw w;
    tkc_buf out;
    size_t n = strlen(MODEL_PATH);
    const char *id = tkc_percent_decode(tkc_strn(call->path.data + n, call->path.len - n),
                                        &call->arena, &call->err);
    if (!id) {
        if (tkc_failed(&call->err))
            refuse_failure(call, "model");
        else
            refuse(call, "model", "the model's name in the path is not percent-encoded text");
        return;
    }
    tkc_buf_init(&out, svc->a, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&w, &out, &call->err);
    pthread_mutex_lock(&svc->lock);
    const tke_base *base = tke_find_base(svc, id);
    const tke_checkpoint *c = tkc_map_get(&svc->checkpoints, tkc_str(id));
    bool found = base || (c && is_offered(call, c));
    if (found)
        write_model(&w, id, base ? base->added_us : c->created_us);
    pthread_mutex_unlock(&svc->lock);
    if (!found)
        tke_openai_refuse(call, 404, "model_not_found", "model", "There is no such model");
    else if (tkc_failed(&call->err))
        refuse_failure(call, NULL);
    else
        tke_send_json(call->reply, 200, tkc_buf_view(&out));
    tkc_buf_free(&out);
}

/* ---- routing ---- */

typedef struct openai_path {
    const char *path, *method;
    tke_front_fn *fn;
} openai_path;

static const openai_path *find_path(tinkc_str path)
{
    static const openai_path paths[] = {
        { "/v1/models", "GET", front_models },
        { MODEL_PATH, "GET", front_model }, /* and what follows it */
        { "/v1/completions", "POST", front_completions },
        { "/v1/chat/completions", "POST", front_chat },
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
    return tkc_starts_with(path, "/oai/api") ? tkc_strn(path.data + 8, path.len - 8) : path;
}

bool tke_openai_knows(tinkc_str path)
{
    return find_path(tke_openai_path(path)) != NULL;
}

tke_front_fn *tke_openai_find(tke_call *call, tinkc_str path)
{
    const openai_path *found = find_path(path);
    if (found && tkc_cstr_eq(call->request->method, found->method))
        return found->fn;
    tke_openai_refuse(call, found ? 405 : 404, found ? "method_not_allowed" : "unknown_endpoint",
                      NULL, found ? "method not allowed" : "no such endpoint");
    return NULL;
}
