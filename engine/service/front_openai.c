/* front_openai.c - /v1/models, /v1/completions and /v1/chat/completions, as OpenAI's clients ask.
 *
 * A request becomes a sample like any other: the same queue, the same limits. Members that are not
 * known are ignored, those that are known are checked. Tokenizers are opened when a model is first
 * asked for text, and kept. Thread: any front thread. May touch: svc under its lock, the model's
 * folder (to open its tokenizer, under tokenizer_lock alone).
 */
#include <stdio.h>

#include "service/openai.h"
#include "tinkc/tokenizer.h"

/* ---- refusals ---- */

void tke_openai_refuse(tke_call *call, int32_t status, const char *code, const char *param,
                       const char *text)
{
    tinkc_error err = { 0 };
    tkc_buf body;
    if (tkc_cstr_eq(code, "unknown_model") || tkc_cstr_eq(code, "not_found")) {
        status = 404; /* what a client of this form looks for */
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

/* What call->err says; by the caller's fault if its code says so. */
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
    tinkc_tokenizer_free(base->tokenizer);
}

/* The tokenizer of a model; NULL: err says why. It stays until the service ends. */
static const tinkc_tokenizer *tokenizer_of(tke_service *svc, tke_base *base, tinkc_error *err)
{
    pthread_mutex_lock(&svc->tokenizer_lock);
    if (!base->tokenizer)
        base->tokenizer = tinkc_tokenizer_open(
            tke_model_folder(base->model), &(tinkc_tokenizer_options){ .allocator = svc->a }, err);
    const tinkc_tokenizer *tok = base->tokenizer;
    pthread_mutex_unlock(&svc->tokenizer_lock);
    return tok;
}

/* tke_token_bytes_fn: marks are no text. */
static size_t token_bytes(void *user, int32_t token, const char **bytes)
{
    const tinkc_tokenizer *tok = user;
    if (tinkc_tokenizer_is_special(tok, token))
        return 0;
    tinkc_bytes b = tinkc_tokenizer_bytes(tok, token);
    *bytes = (const char *)b.data;
    return b.len;
}

/* ---- what is asked ---- */

enum { MOST_STOPS = 4, MOST_STOP_BYTES = 4096, DEFAULT_MAX_TOKENS = 16 };

typedef struct asked {
    bool chat;
    tinkc_str model, text, messages, tools; /* data NULL = not given */
    tinkc_i32s ids;
    bool has_ids, stream, usage, echo;
    tkc_opt_i64 max_tokens, seed;
    int64_t n;
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

static void read_prompt(tkc_json *j, asked *in)
{
    if (tkc_json_peek(j) == TKC_JSON_STRING) {
        in->text = tkc_json_string(j);
        return;
    }
    if (!wants(j, TKC_JSON_ARRAY, "a string or a list of token ids is expected"))
        return;
    in->ids = tkc_json_i32s(j);
    in->has_ids = true;
}

static void read_stream_options(tkc_json *j, asked *in)
{
    tinkc_str key;
    if (!tkc_json_object(j))
        return;
    while (tkc_json_key(j, &key))
        if (tkc_str_is(key, "include_usage") && !tkc_json_null(j))
            in->usage = tkc_json_bool(j);
        else
            tkc_json_skip(j);
}

static tinkc_str read_array(tkc_json *j)
{
    return wants(j, TKC_JSON_ARRAY, "a list is expected") ? tkc_json_skip(j) : (tinkc_str){ 0 };
}

static tkc_opt_i64 read_i64(tkc_json *j)
{
    return (tkc_opt_i64)TKC_SOME(tkc_json_i64(j));
}

/* One member; false: it is none of ours. */
static bool read_member(tkc_json *j, tinkc_str key, asked *in)
{
    if (tkc_str_is(key, "model"))
        in->model = tkc_json_string(j);
    else if (tkc_str_is(key, "prompt") && !in->chat)
        read_prompt(j, in);
    else if (tkc_str_is(key, "messages") && in->chat)
        in->messages = read_array(j);
    else if (tkc_str_is(key, "tools") && in->chat)
        in->tools = read_array(j);
    else if (tkc_str_is(key, "max_tokens") ||
             (in->chat && tkc_str_is(key, "max_completion_tokens")))
        in->max_tokens = read_i64(j);
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
    else
        return false;
    return true;
}

static bool read_body(tke_call *call, asked *in)
{
    tkc_json j;
    tinkc_str key;
    const char *wrong = NULL; /* the member in which reading failed */
    tkc_json_open(&j, call->body, &call->arena, &call->err);
    j.code = TINKC_E_BAD_REQUEST;
    if (tkc_json_object(&j))
        while (!wrong && tkc_json_key(&j, &key)) {
            if (tkc_json_null(&j))
                continue;
            if (!read_member(&j, key, in))
                tkc_json_skip(&j);
            else if (tkc_failed(&call->err))
                wrong = tkc_arena_str(&call->arena, key, &(tinkc_error){ 0 });
        }
    tkc_json_close(&j);
    if (!tkc_failed(&call->err))
        return true;
    char text[400];
    (void)snprintf(text, sizeof text, "%s%s%.300s", wrong ? wrong : "the body", ": ",
                   call->err.message);
    return refuse(call, wrong, text);
}

static bool check(tke_call *call, const asked *in)
{
    char text[100];
    size_t bytes = 0;
    if (!in->model.data)
        return refuse(call, "model", "model is required");
    if (in->chat && !in->messages.data)
        return refuse(call, "messages", "messages is required");
    if (!in->chat && !in->text.data && !in->has_ids)
        return refuse(call, "prompt", "prompt is required");
    if (in->n < 1 || in->n > call->svc->set.max_num_samples) {
        (void)snprintf(text, sizeof text, "n must be from 1 to %lld",
                       (long long)call->svc->set.max_num_samples);
        return refuse(call, "n", text);
    }
    if (in->stream && in->n != 1)
        return refuse(call, "n", "n must be 1 where stream is true");
    if (in->echo)
        return refuse(call, "echo", "echo is not supported");
    if (!(in->temperature >= 0) || in->temperature > 1e30)
        return refuse(call, "temperature", "temperature must be a finite number, 0 or more");
    if (!(in->top_p > 0 && in->top_p <= 1))
        return refuse(call, "top_p", "top_p must be above 0 and at most 1");
    if (in->max_tokens.is == TKC_GIVEN && in->max_tokens.value < 1)
        return refuse(call, "max_tokens", "max_tokens must be 1 or more");
    for (size_t i = 0; i < in->n_stops; i++) {
        bytes += in->stops[i].len;
        if (in->stops[i].len == 0)
            return refuse(call, "stop", "a stop string must not be empty");
    }
    return bytes <= MOST_STOP_BYTES || refuse(call, "stop", "stop may have 4096 bytes in all");
}

/* ---- from what is asked to a sample ---- */

static bool encode_prompt(tke_call *call, const asked *in, const tinkc_tokenizer *tok,
                          tinkc_tokens *out)
{
    if (!in->chat) {
        if (in->has_ids)
            return true;
        const tinkc_encode_options plain = { .add_special = true };
        return tinkc_encode_span(tok, in->text.data, in->text.len, &plain, out, NULL, &call->err) ||
               refuse_failure(call, "prompt");
    }
    tinkc_chat_options how = { .generation_prompt = true };
    const char *messages = tkc_arena_str(&call->arena, in->messages, &call->err);
    if (in->tools.data)
        how.tools_json = tkc_arena_str(&call->arena, in->tools, &call->err);
    if (!tkc_failed(&call->err))
        (void)tinkc_chat_encode(tok, messages, &how, out, &call->err);
    return !tkc_failed(&call->err) || refuse_failure(call, "messages");
}

/* The model's ends, and strings; one that is exactly a mark stops as the token that it is. */
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

static bool fill(tke_call *call, const asked *in, tkc_sample_request *out, tinkc_i32s prompt,
                 tke_job *job)
{
    int64_t context = (int64_t)job->in.sample.base->context;
    int64_t left = context - (int64_t)prompt.len;
    const tinkc_chunk chunk = { .kind = TINKC_CHUNK_TOKENS, .tokens = prompt };
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
    return tke_sample_fill(call, out, job);
}

static void start(tke_call *call, const asked *in, tke_job *job)
{
    tke_openai_answer *a = tkc_arena_alloc(&job->arena, sizeof *a, &call->err);
    const char *model = tkc_arena_str(&job->arena, in->model, &call->err);
    if (tkc_failed(&call->err)) {
        refuse_failure(call, NULL);
        return;
    }
    *a = (tke_openai_answer){ .job = job,
                              .model = model,
                              .created_s = tkc_wall_us(call->svc->clock) / 1000000,
                              .chat = in->chat,
                              .usage = in->usage };
    (void)snprintf(a->id, sizeof a->id, "%s-%016llx", in->chat ? "chatcmpl" : "cmpl",
                   (unsigned long long)tkc_random(call->svc->clock));
    tkc_buf_init(&a->held, call->svc->a, TKC_BUF_NO_MAX);
    tke_sample_stream(call, job, in->stream ? &tke_openai_events : &tke_openai_whole, a);
}

static void complete(tke_call *call, bool chat)
{
    tke_service *svc = call->svc;
    asked in = { .chat = chat, .n = 1, .temperature = 1, .top_p = 1 };
    tkc_sample_request request = { 0 };
    tinkc_tokens tokens = { .a = svc->a };
    if (!read_body(call, &in) || !check(call, &in))
        return;
    char *model = tkc_arena_str(&call->arena, in.model, &call->err);
    *(tkc_starts_with(in.model, "tinker://") ? &request.model_path : &request.base_model) = model;
    tke_job *job = tke_job_new(svc, TKE_JOB_SAMPLE, NULL, call->owner, &call->err);
    if (tkc_failed(&call->err)) {
        refuse_failure(call, NULL);
    } else if (tke_sample_target(call, &request, job)) {
        const tinkc_tokenizer *tok = tokenizer_of(svc, job->in.sample.base, &call->err);
        if (!tok)
            refuse_failure(call, "model");
        else if (encode_prompt(call, &in, tok, &tokens) &&
                 fill(call, &in, &request,
                      in.has_ids ? in.ids : (tinkc_i32s){ tokens.data, tokens.len }, job) &&
                 take_stops(call, &in, tok, job))
            start(call, &in, job);
    }
    tinkc_tokens_free(&tokens);
    tke_job_drop(job);
}

#else /* without the tokenizer the setting is refused, so nobody gets here */

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
        if (c->kind == TKE_CKPT_SAMPLER && tkc_cstr_eq(c->owner, call->owner) && c->run &&
            c->run->base && tke_checkpoint_visible(svc, c))
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

/* ---- routing ---- */

tke_front_fn *tke_openai_find(tke_call *call, tinkc_str path)
{
    static const struct {
        const char *path, *method;
        tke_front_fn *fn;
    } paths[] = {
        { "/v1/models", "GET", front_models },
        { "/v1/completions", "POST", front_completions },
        { "/v1/chat/completions", "POST", front_chat },
    };
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        if (!tkc_str_is(path, paths[i].path))
            continue;
        if (tkc_cstr_eq(call->request->method, paths[i].method))
            return paths[i].fn;
        tke_openai_refuse(call, 405, "method_not_allowed", NULL, "method not allowed");
        return NULL;
    }
    tke_openai_refuse(call, 404, "unknown_endpoint", NULL, "no such endpoint");
    return NULL;
}
