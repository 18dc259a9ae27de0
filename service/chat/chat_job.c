/* chat_job.c - a chat request becomes samples: its tokens, stops, constraint and jobs.
 *
 * Shared by all forms: OpenAI's completions, chats and responses, Anthropic's messages. A model's
 * tokenizer is opened at its first request with text, and kept. Thread: any front thread. May touch:
 * svc under its lock, the model's folder (to open its tokenizer, under tokenizer_lock only).
 */
#include <stdio.h>

#include "service/chat/chat_paths.h"
#include "service/chat/chat_state.h"
#include "service/core/base_models.h"
#include "service/core/service_state.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/sample_request.h"
#include "service/worker/jobs.h"
#include "tinkc/tokenizer.h"

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
    /* Not svc->lock: opening one reads files and takes long, and only requests that need a text
     * should wait for it. */
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

/* ---- from request to sample ---- */

/* The model's template, which tells its roles and how it writes tool calls; NULL = it has none. */
static const char *template_of(const tinkc_tokenizer *tok)
{
    const char *tools = tinkc_tokenizer_template(tok, "tool_use");
    return tools ? tools : tinkc_tokenizer_template(tok, NULL);
}

/* How much the model is to think, in the words of its template: Qwen's switch, or the word itself. */
static bool take_effort(tke_call *call, const tke_chat_request *in, const char *template,
                        tinkc_chat_options *how)
{
    static const char *const known[] = { "none", "minimal", "low", "medium", "high", "xhigh" };
    const char *word = NULL, *text = template ? template : "";
    char why[200];
    if (!in->effort.data)
        return true;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (tkc_str_is(in->effort, known[i]))
            word = known[i];
    if (!word) {
        (void)snprintf(why, sizeof why, "%s must be none, minimal, low, medium, high or xhigh",
                       in->effort_name);
        return tke_chat_refuse(call, in->effort_name, why);
    }
    if (strstr(text, "reasoning_effort"))
        how->variables_json =
            tkc_arena_printf(&call->arena, &call->err, "{\"reasoning_effort\":\"%s\"}", word);
    else if (strstr(text, "enable_thinking"))
        how->variables_json = tkc_cstr_eq(word, "none") ? "{\"enable_thinking\":false}"
                                                        : "{\"enable_thinking\":true}";
    else if (!tkc_cstr_eq(word, "none") || strstr(text, "<think>")) {
        (void)snprintf(why, sizeof why,
                       "%s: the chat template of this model has no setting for how much it thinks",
                       in->effort_name);
        return tke_chat_refuse(call, in->effort_name, why);
    }
    return !tkc_failed(&call->err) || tke_chat_refuse_failure(call, NULL);
}

/* The tokens of a conversation, in *space. */
static bool encode_chat(tke_call *call, const tke_chat_request *in, const tinkc_tokenizer *tok,
                        tinkc_tokens *space)
{
    tinkc_chat_options how = { .generation_prompt = !in->prefill,
                               .openai_calls = true,
                               .continue_field = in->prefill ? "content" : NULL };
    if (!take_effort(call, in, template_of(tok), &how))
        return false;
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
        return tke_chat_refuse(call, "messages", why);
    }
    return tkc_failed(&call->err) ? tke_chat_refuse_failure(call, "messages") : true;
}

/* The tokens of one prompt; if it is text, they are in *space. */
static bool encode_prompt(tke_call *call, const tke_chat_request *in, const tke_chat_prompt *p,
                          const tinkc_tokenizer *tok, tinkc_tokens *space, tinkc_i32s *out)
{
    space->len = 0;
    *out = p->ids;
    if (!in->chat && !p->text.data)
        return true;
    if (!in->chat) {
        const tinkc_encode_options plain = { .add_special = true };
        if (!tinkc_encode_span(tok, p->text.data, p->text.len, &plain, space, NULL, &call->err))
            return tke_chat_refuse_failure(call, "prompt");
    } else if (!encode_chat(call, in, tok, space)) {
        return false;
    }
    *out = (tinkc_i32s){ space->data, space->len };
    return true;
}

/* Stops at the model's end tokens and at the strings; a string that is a special token stops as
 * one. */
static bool take_stops(tke_call *call, const tke_chat_request *in, const tinkc_tokenizer *tok,
                       tke_job *job)
{
    tke_gen_request *gen = &job->in.sample.gen;
    tinkc_i32s ends = tinkc_tokenizer_ends(tok);
    int32_t *ids = tkc_arena_array(&job->arena, ends.len + TKE_CHAT_STOPS, sizeof *ids, &call->err);
    tinkc_str *strings =
        tkc_arena_array(&job->arena, TKE_CHAT_STOPS + 1, sizeof *strings, &call->err);
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
    if (strings && in->one_call && in->form.style != TKE_CALLS_BARE &&
        in->form.style != TKE_CALLS_NONE)
        strings[n_strings++] = tkc_str(TKE_CALL_END); /* nothing follows the first call */
    gen->stop_tokens = ids;
    gen->n_stop_tokens = n_ids;
    gen->stop_strings = strings;
    gen->n_stop_strings = n_strings;
    gen->token_bytes = token_bytes;
    gen->token_user = (void *)(uintptr_t)tok;
    return !tkc_failed(&call->err) || tke_chat_refuse_failure(call, NULL);
}

static bool fill(tke_call *call, const tke_chat_request *in, tkc_sample_request *out,
                 tinkc_i32s tokens, tke_job *job)
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
    p->top_k = in->top_k ? in->top_k : -1;
    p->max_tokens = in->max_tokens;
    if (in->usual_tokens && in->max_tokens.is != TKC_GIVEN && left > in->usual_tokens)
        p->max_tokens = (tkc_opt_i64)TKC_SOME(in->usual_tokens);
    if (in->seed.is == TKC_GIVEN)
        p->seed = (tkc_opt_seed)TKC_SOME((uint64_t)in->seed.value);
    if (in->echo && in->logprobs) {
        out->prompt_logprobs = (tkc_opt_bool)TKC_SOME(true);
        out->topk_prompt_logprobs = in->top;
    }
    if (!tke_sample_fill(call, out, job))
        return false;
    tke_gen_request *gen = &job->in.sample.gen;
    tke_bias *biases = tkc_arena_array(&job->arena, in->n_biases + 1, sizeof *biases, &call->err);
    if (!biases)
        return tke_chat_refuse_failure(call, NULL);
    if (in->n_biases)
        memcpy(biases, in->biases, in->n_biases * sizeof *biases);
    gen->biases = biases;
    gen->n_biases = in->n_biases;
    gen->presence_penalty = in->presence_penalty;
    gen->frequency_penalty = in->frequency_penalty;
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
static bool take_constraint(tke_call *call, const tke_chat_request *in, const tinkc_tokenizer *tok,
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

static bool settle_form(tke_call *call, tke_chat_request *in, const tinkc_tokenizer *tok)
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

/* Does the prompt open a thought, which the answer continues? */
static bool ends_in_thought(const tke_job *job)
{
    const tke_gen_request *r = &job->in.sample.gen;
    char tail[32];
    size_t have = 0; /* of bytes, from the end */
    for (size_t i = r->n_prompt; i > 0 && have < sizeof tail; i--) {
        const char *bytes;
        size_t n = token_name(r->token_user, r->prompt[i - 1], &bytes);
        for (size_t k = n; k > 0 && have < sizeof tail; k--)
            tail[sizeof tail - ++have] = bytes[k - 1];
    }
    return tkc_ends_with(tkc_str_trim(tkc_strn(tail + sizeof tail - have, have)), "<think>");
}

static void start(tke_call *call, const tke_chat_request *in, tke_job *const *jobs)
{
    tke_chat_answer like = { .created_s = tkc_wall_us(call->svc->clock) / 1000000,
                             .chat = in->chat,
                             .echo = in->echo,
                             .logprobs = in->logprobs,
                             .top = (size_t)in->top,
                             .usage = in->usage,
                             .calls = in->form.style,
                             .tools = in->form.offers ? in->form.tools : (tinkc_str){ 0 },
                             .settings = in->settings,
                             .names = token_name };
    like.model = tkc_arena_str(&call->arena, in->model, &call->err);
    like.thinks = in->chat && ends_in_thought(jobs[0]);
    (void)snprintf(like.id, sizeof like.id, "%s%016llx", in->prefix,
                   (unsigned long long)tkc_random(call->svc->clock));
    tke_chat_answer *a = like.model ? tke_chat_answer_new(call->svc->a, &like, in->n_prompts,
                                                          (size_t)in->n, &call->err)
                                    : NULL;
    if (!a) {
        tke_chat_refuse_failure(call, NULL);
        return;
    }
    for (size_t i = 0; i < in->n_prompts; i++) {
        a->parts[i].job = jobs[i];
        jobs[i]->in.sample.stream_user = &a->parts[i];
    }
    tke_sample_stream(call, jobs, in->n_prompts, in->stream ? in->events : in->whole);
}

/* The weights that the model string names. NAME;tinker://PATH is a checkpoint, of that model. */
static bool find_weights(tke_call *call, const tke_chat_request *in, tke_job *job)
{
    static const char mark[] = ";tinker://";
    tkc_sample_request request = { 0 };
    char *model = tkc_arena_str(&call->arena, in->model, &call->err);
    char *divide = model ? strstr(model, mark) : NULL;
    if (!model)
        return tke_chat_refuse_failure(call, NULL);
    const char *path = divide ? divide + 1 : model;
    if (divide)
        *divide = '\0';
    *(tkc_starts_with(tkc_str(path), "tinker://") ? &request.model_path : &request.base_model) =
        path;
    if (!tke_sample_target(call, &request, job))
        return false;
    if (divide && !tkc_cstr_eq(job->in.sample.base->name, model)) {
        char text[400];
        (void)snprintf(text, sizeof text, "model: %.150s is a checkpoint of %.80s, not of %.80s",
                       path, job->in.sample.base->name, model);
        return tke_chat_refuse(call, "model", text);
    }
    return true;
}

/* One prompt becomes a job, not yet in a queue. NULL: answered. */
static tke_job *make_job(tke_call *call, tke_chat_request *in, const tke_chat_prompt *p,
                         tinkc_tokens *space)
{
    tke_service *svc = call->svc;
    tkc_sample_request request = { 0 };
    tinkc_i32s tokens;
    tke_job *job = tke_job_new(svc, TKE_JOB_SAMPLE, NULL, call->owner, &call->err);
    if (!job) {
        tke_chat_refuse_failure(call, NULL);
        return NULL;
    }
    if (find_weights(call, in, job)) {
        const tinkc_tokenizer *tok = tokenizer_of(svc, job->in.sample.base, &call->err);
        if (!tok)
            tke_chat_refuse_failure(call, "model");
        else if (settle_form(call, in, tok) && encode_prompt(call, in, p, tok, space, &tokens) &&
                 fill(call, in, &request, tokens, job) && take_stops(call, in, tok, job) &&
                 take_constraint(call, in, tok, job))
            return job;
    }
    tke_job_drop(job);
    return NULL;
}

void tke_chat_complete(tke_call *call, tke_chat_request *in)
{
    tinkc_tokens space = { .a = call->svc->a };
    const char *param = NULL;
    if (!tke_form_read(&in->form, &call->arena, &param, &call->err)) {
        refuse_form(call, param);
        return;
    }
    tke_job **jobs = tkc_arena_array(&call->arena, in->n_prompts, sizeof(tke_job *), &call->err);
    if (!jobs) {
        tke_chat_refuse_failure(call, NULL);
        return;
    }
    size_t n = 0;
    /* All prompts become jobs before any is queued: a request with one bad prompt must not be
     * answered in part. */
    while (n < in->n_prompts && (jobs[n] = make_job(call, in, &in->prompts[n], &space)))
        n++;
    if (n == in->n_prompts)
        start(call, in, jobs);
    while (n > 0)
        tke_job_drop(jobs[--n]);
    tinkc_tokens_free(&space);
}

void tke_chat_count(tke_call *call, tke_chat_request *in)
{
    const char *param = NULL;
    char text[64];
    tinkc_tokens space = { .a = call->svc->a };
    tke_job *job = tke_job_new(call->svc, TKE_JOB_SAMPLE, NULL, call->owner, &call->err);
    if (!job) {
        tke_chat_refuse_failure(call, NULL);
        return;
    }
    if (!tke_form_read(&in->form, &call->arena, &param, &call->err))
        refuse_form(call, param);
    else if (find_weights(call, in, job)) {
        const tinkc_tokenizer *tok = tokenizer_of(call->svc, job->in.sample.base, &call->err);
        if (!tok)
            tke_chat_refuse_failure(call, "model");
        else if (settle_form(call, in, tok) && encode_chat(call, in, tok, &space)) {
            (void)snprintf(text, sizeof text, "{\"input_tokens\":%zu}", space.len);
            tke_send_json(call->reply, 200, tkc_str(text));
        }
    }
    tke_job_drop(job);
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

void tke_chat_complete(tke_call *call, tke_chat_request *in)
{
    (void)in;
    tke_chat_refuse(call, NULL, "this build has no tokenizer");
}

void tke_chat_count(tke_call *call, tke_chat_request *in)
{
    tke_chat_complete(call, in);
}

#endif
