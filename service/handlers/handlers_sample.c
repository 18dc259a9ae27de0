/* handlers_sample.c - sampling sessions and samples.
 *
 * Samples have no order to protect (unlike training requests), so an invalid request is refused at
 * once. Too many requests get 429, which is cheap and makes no future; clients wait and retry.
 */
#include <assert.h>
#include <stdio.h>

#include "service/core/base_models.h"
#include "service/core/registry.h"
#include "service/core/runs.h"
#include "service/core/samplers.h"
#include "service/core/saved_checkpoints.h"
#include "service/core/service_state.h"
#include "service/core/sessions.h"
#include "service/core/settings.h"
#include "service/core/tenants.h"
#include "service/core/usage.h"
#include "service/handlers/handler_call.h"
#include "service/handlers/handlers.h"
#include "service/handlers/request_decode.h"
#include "service/handlers/sample_request.h"
#include "service/handlers/unknown_fields.h"
#include "service/worker/jobs.h"
#include "service/worker/sample_events.h"
#include "service/worker/worker.h"

/* ---- sampling sessions ---- */

typedef struct target { /* what to sample from */
    tke_base *base;
    tke_checkpoint *checkpoint; /* NULL = the bare model */
} target;

/* Finds base and checkpoint; answers and returns false if there are none. */
static bool find_target(tke_call *call, const char *base_model, const char *model_path, target *t)
{
    tke_service *svc = call->svc;
    int64_t expired_us = 0;
    const char *run, *name;
    int32_t kind = 0;
    *t = (target){ 0 };
    if (!model_path && !base_model) {
        tke_refuse(call, 400, "bad_request", "One of base_model and model_path is required");
        return false;
    }
    if (model_path && !tke_path_split(&call->arena, model_path, &run, &kind, &name, &call->err)) {
        tke_refuse(call, 400, "bad_request", "%s", call->err.message);
        return false;
    }
    /* Before svc->lock, which it takes itself. */
    t->base = tke_base_named(call, base_model);
    if (t->base)
        base_model = t->base->name;
    pthread_mutex_lock(&svc->lock);
    bool foreign = false, mismatch = false;
    if (model_path) {
        t->checkpoint = tke_find_checkpoint(svc, model_path, &expired_us);
        foreign = t->checkpoint && !t->checkpoint->is_public &&
                  !tkc_cstr_eq(t->checkpoint->owner, call->owner);
        t->base = t->checkpoint && t->checkpoint->run ? t->checkpoint->run->base : NULL;
        mismatch = base_model && t->base && !tkc_cstr_eq(t->base->name, base_model);
    }
    pthread_mutex_unlock(&svc->lock);
    char when[TKC_TIME_TEXT] = "";
    if (expired_us)
        tkc_format_time(expired_us, false, when);
    if (model_path && !t->checkpoint)
        tke_refuse(call, 404, "not_found", "Checkpoint '%.200s' %s%s", model_path,
                   expired_us ? "expired at " : "does not exist", when);
    else if (foreign)
        tke_refuse(call, 403, "forbidden", "You do not have access to this checkpoint");
    else if (model_path && kind == TKE_CKPT_TRAINING && svc->set.strict)
        tke_refuse(call, 400, "bad_request",
                   "%.200s is a training checkpoint; sample from a sampler_weights path",
                   model_path);
    else if (!t->base && t->checkpoint && t->checkpoint->run)
        tke_refuse(call, 400, "unknown_model", TKE_BASE_MISSING, t->checkpoint->run->base_model);
    else if (!t->base)
        tke_refuse(call, 400, "unknown_model", "Unknown base model '%.100s'",
                   base_model ? base_model : "");
    else if (mismatch)
        tke_refuse(call, 400, "bad_request", "The checkpoint is of '%.100s', not of '%.100s'",
                   t->base->name, base_model);
    else
        return true;
    return false;
}

typedef struct refusal {
    int32_t status; /* 0 = none */
    tinkc_error why;
} refusal;

/* Locks: needs svc->lock. */
static tke_sampler *add_sampler(tke_call *call, const char *id, tke_session *session,
                                const target *t, const char *model_path, tke_hash128 hash,
                                refusal *no)
{
    tke_service *svc = call->svc;
    size_t kept = 0;
    no->status = tke_kept_take(svc, call->owner, TKE_KEPT_SAMPLER, &kept, &no->why);
    tke_sampler *s = no->status ? NULL : tke_sampler_add(svc, id, call->owner, &call->err);
    if (!s) {
        tke_kept_give(svc, call->owner, &kept);
        return NULL;
    }
    s->kept = kept;
    s->session = session;
    s->base = t->base;
    s->checkpoint = t->checkpoint;
    s->hash = hash;
    s->base_model = tke_copy(svc, t->base->name, &call->err);
    s->model_path = tke_copy(svc, model_path, &call->err);
    if (tkc_failed(&call->err)) {
        tke_sampler_undo(svc, s);
        return NULL;
    }
    return s;
}

static void store_sampler(tke_txn *txn, const tke_sampler *s, int64_t number)
{
    tke_txn_exec(txn,
                 "INSERT OR REPLACE INTO samplers(id, session_id, seq, owner, base_model, "
                 "model_path, ephemeral, hash) VALUES(?, ?, ?, ?, ?, ?, 0, ?)",
                 "ttitttb", s->id, s->session->id, number, s->owner, s->base_model, s->model_path,
                 (tinkc_bytes){ (const unsigned char *)&s->hash, sizeof s->hash });
}

void tke_handle_create_sampling_session(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_create_sampling_session_request in;
    target t;
    char id[128];
    int32_t status = 200;
    const char *finished = NULL;
    tke_txn *txn = NULL;
    refusal no = { 0 };
    if (!tke_call_decode(call, &tkc_create_sampling_session_request_type, &in) ||
        !find_target(call, in.base_model, in.model_path, &t))
        return;
    if (in.sampling_session_seq_id < 0) {
        tke_refuse(call, 400, "bad_request", "sampling_session_seq_id must not be negative");
        return;
    }
    tke_hasher h;
    tke_hash_begin(&h);
    tke_hash_str(&h, in.base_model);
    tke_hash_str(&h, in.model_path);
    tke_hash128 hash = tke_hash_end(&h);
    (void)snprintf(id, sizeof id, "%.64s:sample:%lld", in.session_id,
                   (long long)in.sampling_session_seq_id);
    pthread_mutex_lock(&svc->lock);
    tke_session *session = tke_find_session(svc, in.session_id);
    const tke_sampler *s = tke_find_sampler(svc, id);
    bool known = s != NULL;
    if (!session)
        status = 404;
    else if (!tkc_cstr_eq(session->owner, call->owner))
        status = 403;
    else if ((finished = session->finished))
        status = 410;
    else if (s && (s->ephemeral || !tke_hash_eq(s->hash, hash)))
        status = 400;
    else if (known || (s = add_sampler(call, id, session, &t, in.model_path, hash, &no))) {
        /* Of a known one too: its row may have failed to be written the first time. */
        txn = tke_txn_new(svc->store, &call->err);
        store_sampler(txn, s, in.sampling_session_seq_id);
    }
    tke_session_touch(svc, session);
    pthread_mutex_unlock(&svc->lock);
    if (status == 404 || status == 403 || status == 410)
        tke_refuse_session(call, status, in.session_id, finished);
    else if (status == 400)
        tke_refuse(call, 400, "bad_request",
                   "sampling_session_seq_id was reused with different parameters");
    if (status != 200)
        return;
    if (no.status) {
        tke_refuse_kept(call, NULL, no.status, &no.why);
        return;
    }
    if (t.checkpoint && !known && txn)
        tke_audit_add(svc, call->owner, "checkpoint_read", t.checkpoint->run_id, t.checkpoint->path,
                      "sampling");
    tke_answer_stored(call, txn, &tkc_create_sampling_session_response_type,
                      &(tkc_create_sampling_session_response){ .sampling_session_id = id });
}

bool tke_call_is_python(tke_call *call)
{
    const char *runtime = tke_call_header(call, "X-Stainless-Runtime");
    return runtime && (strstr(runtime, "CPython") || strstr(runtime, "PyPy"));
}

/* Who reads the record of a sampler, and who wants to open its tokenizer: the Python SDK's REST
 * client sends X-SDK-Method ("get_sampler", since 0.38 "RestClient.get_sampler"); its other clients
 * send none before 0.38, and then one that begins with their class. */
static bool reads_record(tke_call *call)
{
    const char *method = tke_call_header(call, "X-SDK-Method");
    tinkc_str name = tkc_str(method ? method : "");
    return method && !tkc_starts_with(name, "ServiceClient.") &&
           !tkc_starts_with(name, "TrainingClient.") && !tkc_starts_with(name, "SamplingClient.");
}

/* The Python SDK's SamplingClient loads its tokenizer by the name of the base model: a folder, or a
 * repository on the Hugging Face hub. A name without an owner ("nano") is neither, so a client that
 * may open the folder gets its path; requests accept the path as a name too. Other callers, and
 * programs that do not report Python, get the name. */
static const char *openable_name(tke_call *call, const tke_base *base, const char *name)
{
    if (!base || !tke_call_is_python(call) || reads_record(call) || strchr(name, '/'))
        return name;
    const char *folder = tke_shared_folder(call, base);
    if (!folder || strchr(folder, ':')) /* the SDK cuts names at a colon */
        return name;
    size_t slashes = 0;
    for (const char *at = folder; *at; at++)
        slashes += *at == '/';
    /* With exactly two slashes the SDK drops the last part, as in "owner/model/variant". */
    return slashes == 2 ? tkc_arena_printf(&call->arena, &call->err, "%s/", folder) : folder;
}

void tke_handle_sampler(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_sampler_response out = { 0 };
    const tke_base *base = NULL;
    pthread_mutex_lock(&svc->lock);
    const tke_sampler *s = tke_find_sampler(svc, call->route.id);
    bool mine = s && tkc_cstr_eq(s->owner, call->owner);
    if (mine) { /* copied: its session may be forgotten meanwhile */
        base = s->base;
        out.sampler_id = tkc_arena_str(&call->arena, tkc_str(s->id), &call->err);
        out.base_model = tkc_arena_str(&call->arena, tkc_str(s->base_model), &call->err);
        out.model_path =
            s->model_path ? tkc_arena_str(&call->arena, tkc_str(s->model_path), &call->err) : NULL;
    }
    pthread_mutex_unlock(&svc->lock);
    if (!mine) {
        tke_refuse(call, 404, "not_found", "Unknown sampler '%.100s'", call->route.id);
        return;
    }
    if (!tkc_failed(&call->err))
        out.base_model = openable_name(call, base, out.base_model);
    if (tkc_failed(&call->err))
        tke_send_failure(call->reply, svc->a, &call->err);
    else
        tke_answer(call, &tkc_sampler_response_type, &out);
}

/* ---- samples ---- */

static bool refuse(tke_call *call, const char *text)
{
    tke_refuse(call, 400, "bad_request", "%s", text);
    return false;
}

static bool refuse_memory(tke_call *call)
{
    tke_refuse(call, 503, "memory", "out of memory");
    return false;
}

const char *tke_chunk_name(int32_t kind)
{
    return kind == TINKC_CHUNK_DMEL ? "audio" : "an image";
}

static bool refuse_chunk(tke_call *call, size_t index, int32_t kind)
{
    tke_refuse(call, 400, "bad_request",
               "chunk %zu of the prompt is %s; this model accepts text only", index,
               tke_chunk_name(kind));
    return false;
}

/* Concatenates the prompt's tokens in the job's arena. */
static bool take_prompt(tke_call *call, const tkc_sample_request *in, tke_job *job)
{
    tke_gen_request *gen = &job->in.sample.gen;
    const tke_config *config = tke_model_config(job->in.sample.base->model);
    size_t n = 0;
    for (size_t c = 0; c < in->prompt.chunks.len; c++) {
        if (in->prompt.chunks.data[c].kind != TINKC_CHUNK_TOKENS)
            return refuse_chunk(call, c, in->prompt.chunks.data[c].kind);
        n += in->prompt.chunks.data[c].tokens.len;
    }
    if (n == 0)
        return refuse(call, "The prompt is empty");
    int32_t *tokens = tkc_arena_array(&job->arena, n, sizeof *tokens, &call->err);
    if (!tokens)
        return refuse_memory(call);
    gen->prompt = tokens;
    gen->n_prompt = n;
    for (size_t c = 0; c < in->prompt.chunks.len; c++) {
        tinkc_i32s part = in->prompt.chunks.data[c].tokens;
        if (part.len)
            memcpy(tokens, part.data, part.len * sizeof *tokens);
        tokens += part.len;
    }
    for (size_t i = 0; i < n; i++)
        if (gen->prompt[i] < 0 || (size_t)gen->prompt[i] >= config->vocab) {
            tke_refuse(call, 400, "bad_request",
                       "prompt token %zu is %ld; the vocabulary has %zu tokens", i,
                       (long)gen->prompt[i], config->vocab);
            return false;
        }
    return true;
}

static bool take_stop(tke_call *call, const tkc_stop *stop, tke_job *job)
{
    tke_gen_request *gen = &job->in.sample.gen;
    if (stop->kind == TKC_STOP_NONE)
        return true;
    if (stop->kind == TKC_STOP_TOKENS && stop->tokens.len) {
        size_t vocab = tke_model_config(job->in.sample.base->model)->vocab;
        if (stop->tokens.len > vocab)
            return refuse(call, "stop has more tokens than the vocabulary");
        for (size_t i = 0; i < stop->tokens.len; i++)
            if ((size_t)stop->tokens.data[i] >= vocab) { /* or negative */
                tke_refuse(call, 400, "bad_request",
                           "stop token %zu is %ld; the vocabulary has %zu tokens", i,
                           (long)stop->tokens.data[i], vocab);
                return false;
            }
        int32_t *ids = tkc_arena_array(&job->arena, stop->tokens.len, sizeof *ids, &call->err);
        if (!ids)
            return refuse_memory(call);
        memcpy(ids, stop->tokens.data, stop->tokens.len * sizeof *ids);
        gen->stop_tokens = ids;
        gen->n_stop_tokens = stop->tokens.len;
        return true;
    }
    enum { MOST_STRINGS = 1024, MOST_BYTES = 1 << 16 };
    size_t n = 0, bytes = 0;
    for (; stop->strings && stop->strings[n]; n++)
        bytes += strlen(stop->strings[n]);
    if (n > MOST_STRINGS || bytes > MOST_BYTES)
        return refuse(call, "stop may have 1024 strings, and 65536 bytes in all");
    if (n == 0) {
        gen->never_stop = true;
        return true;
    }
    if (!job->in.sample.base->vocab)
        return refuse(call, "stop strings need tokenizer.json in the model folder");
    tinkc_str *strings = tkc_arena_array(&job->arena, n, sizeof *strings, &call->err);
    for (size_t i = 0; strings && i < n; i++) {
        if (!stop->strings[i][0])
            return refuse(call, "a stop string must not be empty");
        strings[i] = tkc_str(tkc_arena_cstr(&job->arena, stop->strings[i], &call->err));
    }
    if (tkc_failed(&call->err))
        return refuse_memory(call);
    gen->stop_strings = strings;
    gen->n_stop_strings = n;
    gen->token_bytes = tke_vocab_token_bytes;
    gen->token_user = job->in.sample.base->vocab;
    return true;
}

/* Copies into the arena; NULL data stays NULL. */
static bool keep_i64s(tkc_arena *arena, tinkc_i64s in, tinkc_i64s *out, tinkc_error *err)
{
    *out = (tinkc_i64s){ 0 };
    if (!in.data)
        return true;
    int64_t *copy = tkc_arena_array(arena, in.len + 1, sizeof *copy, err);
    if (!copy)
        return false;
    memcpy(copy, in.data, in.len * sizeof *copy);
    *out = (tinkc_i64s){ copy, in.len };
    return true;
}

/* Token ids to score at each position of the prompt: [prompt - 1, K], -1 = none; a sparse tensor
 * lists only some cells. The answer has the same layout, so the layout is kept. */
static bool take_targets(tke_call *call, const tkc_sample_request *in, tke_job *job)
{
    const tkc_tensor *t = &in->target_prompt_logprobs;
    tke_gen_request *gen = &job->in.sample.gen;
    int64_t rows = (int64_t)gen->n_prompt - 1;
    const tke_config *config = tke_model_config(job->in.sample.base->model);
    if (!t->dtype)
        return true;
    if (!tkc_tensor_check(t, "target_prompt_logprobs", &call->err))
        return refuse(call, call->err.message);
    if (t->dtype != TINKC_I64 || t->shape.len != 2 || t->shape.data[0] != rows ||
        t->shape.data[1] < 1 || t->shape.data[1] > call->svc->set.max_topk) {
        tke_refuse(call, 400, "bad_request",
                   "target_prompt_logprobs must be int64, with %lld rows (the prompt's length less "
                   "one) and 1 to %lld columns",
                   (long long)rows, (long long)call->svc->set.max_topk);
        return false;
    }
    size_t k = (size_t)t->shape.data[1], cells = (size_t)rows * k;
    int32_t *ids = tkc_arena_array(&job->arena, cells + 1, sizeof *ids, &call->err);
    tkc_tensor *kept = tkc_arena_alloc(&job->arena, sizeof *kept, &call->err);
    if (!ids || !kept)
        return refuse_memory(call);
    memset(ids, 0xff, cells * sizeof *ids);
    for (size_t i = 0, row = 0; i < t->count; i++) {
        int64_t id = ((const int64_t *)t->data)[i];
        while (t->sparse && (int64_t)i >= t->crow.data[row + 1])
            row++;
        size_t cell = t->sparse ? row * k + (size_t)t->col.data[i] : i;
        if (id < -1 || id >= (int64_t)config->vocab)
            return refuse(call, "target_prompt_logprobs has an id that is not in the vocabulary");
        ids[cell] = (int32_t)id;
    }
    *kept = (tkc_tensor){ .shape = t->shape, .count = t->count, .sparse = t->sparse };
    if (!keep_i64s(&job->arena, t->shape, &kept->shape, &call->err) ||
        !keep_i64s(&job->arena, t->crow, &kept->crow, &call->err) ||
        !keep_i64s(&job->arena, t->col, &kept->col, &call->err))
        return refuse_memory(call);
    job->in.sample.targets = kept;
    gen->target_tokens = ids;
    gen->n_targets = k;
    return true;
}

static bool take_alternatives(tke_call *call, const tkc_sample_request *in, tke_job *job)
{
    int64_t k = in->prompt_alt_tokens_k.value;
    if (k < 0 || k > call->svc->set.max_topk) {
        tke_refuse(call, 400, "bad_request", "prompt_alt_tokens_k must be from 0 to %lld",
                   (long long)call->svc->set.max_topk);
        return false;
    }
    if (k && job->in.sample.gen.n_prompt < 2)
        return refuse(call, "prompt_alt_tokens_k needs a prompt of two tokens or more");
    job->in.sample.gen.n_alternatives = (size_t)k;
    return true;
}

static bool take_params(tke_call *call, const tkc_sample_request *in, tke_job *job)
{
    const tke_settings *set = &call->svc->set;
    const tkc_sampling_params *p = &in->sampling_params;
    tke_gen_request *gen = &job->in.sample.gen;
    int64_t context = (int64_t)job->in.sample.base->context;
    int64_t n = (int64_t)gen->n_prompt;
    int64_t max_tokens = p->max_tokens.is == TKC_GIVEN ? p->max_tokens.value : context - n;
    if (in->num_samples < 1 || in->num_samples > set->max_num_samples) {
        tke_refuse(call, 400, "bad_request", "num_samples must be from 1 to %lld",
                   (long long)set->max_num_samples);
        return false;
    }
    if (in->record_stability_info.value)
        return refuse(call, "record_stability_info: this server records none; it does not have the "
                            "loss that uses it (stable_reinforce)");
    /* Written so that NaN is refused, too. */
    if (!(p->temperature >= 0) || p->temperature > 1e30f)
        return refuse(call, "temperature must be a finite number, 0 or more");
    if (!(p->top_p > 0 && p->top_p <= 1))
        return refuse(call, "top_p must be above 0 and at most 1");
    if (p->top_k < -1)
        return refuse(call, "top_k must be -1 (off), 0 (off) or positive");
    if (in->topk_prompt_logprobs < 0 || in->topk_prompt_logprobs > set->max_topk) {
        tke_refuse(call, 400, "bad_request", "topk_prompt_logprobs must be from 0 to %lld",
                   (long long)set->max_topk);
        return false;
    }
    if (in->topk_sample_logprobs.value < 0 || in->topk_sample_logprobs.value > set->max_topk) {
        tke_refuse(call, 400, "bad_request", "topk_sample_logprobs must be from 0 to %lld",
                   (long long)set->max_topk);
        return false;
    }
    if (in->prompt_logprobs_last_n.is == TKC_GIVEN &&
        (in->prompt_logprobs_last_n.value < 1 || in->prompt_logprobs_last_n.value > n - 1))
        return refuse(call,
                      "prompt_logprobs_last_n must be from 1 to the prompt's length less one");
    if (p->max_tokens.is == TKC_GIVEN && max_tokens < 0)
        return refuse(call, "max_tokens must not be negative");
    if (max_tokens < 0 || max_tokens > context - n) {
        tke_refuse(call, 400, "prompt_too_long",
                   "Prompt length plus max_tokens exceeds the model's context window: %lld + %lld "
                   "> %lld",
                   (long long)n, (long long)(max_tokens < 0 ? 0 : max_tokens), (long long)context);
        return false;
    }
    gen->n_samples = (size_t)in->num_samples;
    gen->max_tokens = (size_t)max_tokens;
    gen->may_cap = p->max_tokens.is != TKC_GIVEN;
    gen->rule = (tke_sample_rule){ .temperature = (double)p->temperature,
                                   .top_p = (double)p->top_p,
                                   .top_k = p->top_k,
                                   .logprobs = set->sample_logprobs };
    gen->topk_prompt_logprobs = (size_t)in->topk_prompt_logprobs;
    gen->prompt_logprobs = (in->prompt_logprobs.is == TKC_GIVEN && in->prompt_logprobs.value) ||
                           in->topk_prompt_logprobs > 0;
    gen->prompt_logprobs_last_n = (size_t)in->prompt_logprobs_last_n.value;
    gen->topk_sample_logprobs = (size_t)in->topk_sample_logprobs.value;
    uint64_t seed = p->seed.is == TKC_GIVEN ? p->seed.value : tkc_random(call->svc->clock);
    gen->seed = seed & 0x7fffffffffffffffu;
    return take_stop(call, &p->stop, job) && take_targets(call, in, job) &&
           take_alternatives(call, in, job);
}

bool tke_sample_fill(tke_call *call, const tkc_sample_request *in, tke_job *job)
{
    bool soon;
    if (!take_prompt(call, in, job) || !take_params(call, in, job))
        return false;
    const tke_gen_request *gen = &job->in.sample.gen;
    int64_t most = (int64_t)(gen->n_prompt + gen->n_samples * gen->max_tokens);
    if (tke_quota_tokens(call->svc, call->owner, job, most, call->held_tokens, &soon, &call->err)) {
        call->held_tokens += job->held_tokens;
        return true;
    }
    /* 429, which clients repeat, while requests in progress may give some of it back; 403 when it
     * is used up. */
    if (soon)
        tke_refuse_for(call, 1, "quota_tokens", "%s", call->err.message);
    else
        tke_refuse(call, 403, "quota_tokens", "%s", call->err.message);
    return false;
}

static tke_hash128 hash_sample(const tkc_sample_request *in, const tke_gen_request *gen)
{
    tke_hasher h;
    const tkc_sampling_params *p = &in->sampling_params;
    tke_hash_begin(&h);
    tke_hash_add(&h, gen->prompt, gen->n_prompt * sizeof *gen->prompt);
    tke_hash_i64(&h, in->num_samples);
    tke_hash_i64(&h, (int64_t)gen->max_tokens);
    tke_hash_i64(&h, p->seed.is == TKC_GIVEN ? (int64_t)p->seed.value : -1);
    tke_hash_f64(&h, (double)p->temperature);
    tke_hash_f64(&h, (double)p->top_p);
    tke_hash_i64(&h, p->top_k);
    tke_hash_i64(&h, p->stop.kind);
    tke_hash_add(&h, p->stop.tokens.data, p->stop.tokens.len * sizeof(int32_t));
    for (const char *const *s = p->stop.strings; s && *s; s++)
        tke_hash_str(&h, *s);
    tke_hash_i64(&h, gen->prompt_logprobs);
    tke_hash_i64(&h, in->topk_prompt_logprobs);
    tke_hash_i64(&h, in->topk_sample_logprobs.value);
    tke_hash_i64(&h, in->prompt_logprobs_last_n.value);
    if (gen->n_targets)
        tke_hash_add(&h, gen->target_tokens,
                     (gen->n_prompt - 1) * gen->n_targets * sizeof(int32_t));
    if (gen->n_alternatives)
        tke_hash_i64(&h, (int64_t)gen->n_alternatives);
    return tke_hash_end(&h);
}

/* Is the sampling session over what else the request names? Answers and returns false if not. */
static bool agrees(tke_call *call, const tkc_sample_request *in, const tke_job *job)
{
    const tke_sampler *s = job->in.sample.sampler; /* neither its path nor its base changes */
    if (in->model_path && !tkc_cstr_eq(s->model_path, in->model_path))
        tke_refuse(call, 400, "bad_request",
                   "model_path: the sampling session is not of '%.200s'; leave it out",
                   in->model_path);
    else if (in->base_model && tke_base_named(call, in->base_model) != job->in.sample.base &&
             !tkc_failed(&call->err))
        tke_refuse(call, 400, "bad_request",
                   "base_model: the sampling session is of '%.100s', not of '%.100s'",
                   job->in.sample.base->name, in->base_model);
    else
        return !tkc_failed(&call->err) || refuse_memory(call);
    return false;
}

bool tke_sample_target(tke_call *call, const tkc_sample_request *in, tke_job *job)
{
    tke_service *svc = call->svc;
    target t = { 0 };
    if (!in->sampling_session_id) {
        if (in->base_model && in->model_path)
            return refuse(call, "Only one of base_model and model_path may be given");
        if (!find_target(call, in->base_model, in->model_path, &t))
            return false;
        job->in.sample.base = t.base;
        job->in.sample.checkpoint = t.checkpoint;
        return true;
    }
    char base_model[101] = "";
    const char *finished = NULL;
    pthread_mutex_lock(&svc->lock);
    tke_sampler *s = tke_find_sampler(svc, in->sampling_session_id);
    bool known = s != NULL, mine = s && tkc_cstr_eq(s->owner, call->owner);
    if (mine) {
        tke_session_touch(svc, s->session);
        finished = s->session->finished;
        (void)snprintf(base_model, sizeof base_model, "%s", s->base_model);
    }
    /* It was opened while the checkpoint was public: that may have ended, also before a restart. */
    bool withdrawn = mine && s->checkpoint && !s->checkpoint->is_public &&
                     !tkc_cstr_eq(s->checkpoint->owner, s->owner);
    bool usable = mine && !finished && s->base && !withdrawn;
    if (usable) {
        atomic_fetch_add(&s->session->pins, 1); /* until the job is dropped */
        job->in.sample.sampler = s;
        job->in.sample.base = s->base;
        job->in.sample.checkpoint = s->checkpoint;
    }
    pthread_mutex_unlock(&svc->lock);
    if (!known)
        tke_refuse(call, 404, "not_found", "Unknown sampling session '%.150s'",
                   in->sampling_session_id);
    else if (!mine)
        tke_refuse(call, 403, "forbidden", "You do not have access to this sampling session");
    else if (withdrawn)
        tke_refuse(call, 403, "forbidden", "You do not have access to this checkpoint");
    else if (!usable && !tke_session_over(call, in->sampling_session_id, finished))
        tke_refuse(call, 400, "unknown_model",
                   "The base model '%s' is not registered on this server now", base_model);
    return usable && agrees(call, in, job);
}

/* The SDK (from 0.30) expects a name for each sequence in the future. */
static void send_promise(tke_call *call, const char *id, int64_t n_samples)
{
    char name[240];
    tkc_buf body;
    tkc_jsonw w;
    tkc_buf_init(&body, call->svc->a, TKC_BUF_NO_MAX);
    tkc_jsonw_open(&w, &body, &call->err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "request_id");
    tkc_jsonw_cstr(&w, id);
    tkc_jsonw_key(&w, "sample_sequence_ids");
    tkc_jsonw_array(&w);
    for (int64_t i = 0; i < n_samples; i++) {
        (void)snprintf(name, sizeof name, "%s/%lld", id, (long long)i);
        tkc_jsonw_cstr(&w, name);
    }
    tkc_jsonw_end(&w);
    tkc_jsonw_end(&w);
    tke_answer_text(call, &body);
}

static void submit_sample(tke_call *call, const tkc_sample_request *in, tke_job *job)
{
    tke_service *svc = call->svc;
    int32_t status = 200;
    bool numbered = in->sampling_session_id && in->seq_id.is == TKC_GIVEN;
    char id[200];
    if (numbered)
        (void)snprintf(id, sizeof id, "%lld-%.120s:%lld", (long long)svc->epoch,
                       in->sampling_session_id, (long long)in->seq_id.value);
    else
        (void)snprintf(id, sizeof id, "%lld-%016llx", (long long)svc->epoch,
                       (unsigned long long)tkc_random(svc->clock));
    job->request_id = tke_copy(svc, id, &call->err);
    job->hash = hash_sample(in, &job->in.sample.gen);
    pthread_mutex_lock(&svc->lock);
    /* A repetition whose answer was lost must not be sampled a second time: it would take a slot,
     * and its tokens would count twice. */
    const tke_job *before = numbered ? tke_find_job(svc, id) : NULL;
    if (before) {
        status = tke_hash_eq(before->hash, job->hash) ? 200 : 400;
    } else if (job->request_id && tke_samples_have_room(svc, 1)) {
        tke_samples_push(svc, job);
        tke_job_keep(job);
        /* It is in the queue already, and without a name nobody could fetch its result: the worker
         * then fails it at once. */
        if (!tke_job_publish(job, &call->err))
            job->in.sample.cancelled = true;
    } else if (job->request_id) {
        status = 429;
    }
    pthread_mutex_unlock(&svc->lock);
    if (status == 429)
        tke_refuse(call, 429, "busy", "Too many samples are waiting; slow down");
    else if (status == 400)
        tke_refuse(call, 400, "seq_id_reused",
                   "seq_id %lld was already used for a different request",
                   (long long)in->seq_id.value);
    else
        send_promise(call, id, in->num_samples); /* or the error in call->err */
}

/* Frees the jobs' user data when no stream exists to do it: only the style knows how. */
static void give_up(tke_job *const *jobs, size_t n, const tke_stream_style *style,
                    const tinkc_error *why)
{
    tinkc_error ignored = { 0 };
    tkc_buf unsent;
    tkc_buf_init(&unsent, jobs[0]->svc->a, TKC_BUF_NO_MAX);
    for (size_t i = 0; i < n; i++)
        (void)style->end(jobs[i]->in.sample.stream_user, NULL, why, &unsent, &ignored);
    tkc_buf_free(&unsent);
}

void tke_sample_stream(tke_call *call, tke_job *const *jobs, size_t n,
                       const tke_stream_style *style)
{
    tke_service *svc = call->svc;
    tinkc_error why = { 0 };
    pthread_mutex_lock(&svc->lock);
    /* Looked at before the stream sends its head with status 200: a refusal can still have a status
     * of its own. */
    bool full = !tke_samples_have_room(svc, n);
    pthread_mutex_unlock(&svc->lock);
    tke_stream *stream = full ? NULL : tke_stream_new(call, style, n);
    if (!stream) {
        give_up(jobs, n, style, &call->err);
        if (full)
            tke_refuse(call, 429, "busy", "Too many samples are waiting; slow down");
        else
            tke_refuse(call, 503, "memory", "out of memory");
        return;
    }
    pthread_mutex_lock(&svc->lock);
    bool room = tke_samples_have_room(svc, n); /* others may have arrived since the first check */
    for (size_t i = 0; i < n; i++) {
        jobs[i]->in.sample.stream = stream;
        if (room) {
            tke_job_keep(jobs[i]);
            tke_samples_push(svc, jobs[i]);
        }
    }
    pthread_mutex_unlock(&svc->lock);
    if (!room)
        tkc_fail(&why, TINKC_E_RATE_LIMITED, "too many samples are waiting");
    for (size_t i = 0; i < n && !room; i++)
        tke_stream_end(jobs[i], NULL, &why);
}

static void start_stream(tke_call *call, const tkc_sample_request *in, tke_job *job)
{
    const tke_gen_request *gen = &job->in.sample.gen;
    if (in->num_samples != 1 || gen->prompt_logprobs || gen->n_targets || gen->n_alternatives) {
        refuse(call, "A stream has one sample and no log-probs of the prompt");
        return;
    }
    if (gen->topk_sample_logprobs) {
        refuse(call, "topk_sample_logprobs: a stream has no field for them");
        return;
    }
    job->in.sample.stream_user = tke_stream_native_user(job, &call->err);
    if (job->in.sample.stream_user)
        tke_sample_stream(call, &job, 1, &tke_stream_native);
    else
        refuse_memory(call);
}

/* Is the body well-formed JSON? */
static bool is_json(tke_call *call)
{
    tinkc_error err = { 0 };
    tkc_json j;
    tkc_json_open(&j, call->body, &call->arena, &err);
    tkc_json_skip(&j);
    return tkc_json_close(&j);
}

void tke_handle_sample(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_sample_request in;
    if (!tkc_message_decode_noting(&tkc_sample_request_type, call->body, TINKC_E_UNPROCESSABLE,
                                   &call->arena, &in, &call->unknown, &call->err)) {
        if (call->err.code == TINKC_E_MEMORY) {
            refuse_memory(call);
            return;
        }
        bool semantic = call->err.code == TINKC_E_UNPROCESSABLE && is_json(call);
        tke_refuse(call, semantic ? 400 : 422, semantic ? "bad_request" : "unprocessable", "%s",
                   call->err.message);
        return;
    }
    if (!tke_call_fields_known(call))
        return;
    tke_job *job = tke_job_new(svc, TKE_JOB_SAMPLE, NULL, call->owner, &call->err);
    if (!job) {
        tke_send_failure(call->reply, svc->a, &call->err);
        return;
    }
    if (tke_sample_target(call, &in, job) && tke_sample_fill(call, &in, job)) {
        if (call->route.endpoint->id == TKC_EP_STREAM_SAMPLE)
            start_stream(call, &in, job);
        else
            submit_sample(call, &in, job);
    }
    tke_job_drop(job);
}

/* A copy of a sampling client gets a number of its own, so that its request ids differ from those
 * of the original. */
void tke_handle_join(tke_call *call)
{
    tke_service *svc = call->svc;
    tkc_join_sampling_session_request in;
    int64_t number = 0;
    if (!tke_call_decode(call, &tkc_join_sampling_session_request_type, &in))
        return;
    pthread_mutex_lock(&svc->lock);
    tke_sampler *s = tke_find_sampler(svc, in.sampling_session_id);
    bool mine = s && tkc_cstr_eq(s->owner, call->owner);
    if (mine)
        number = ++s->n_clients;
    pthread_mutex_unlock(&svc->lock);
    if (!mine)
        tke_refuse(call, 404, "not_found", "Unknown sampling session '%.150s'",
                   in.sampling_session_id ? in.sampling_session_id : "");
    else
        tke_answer(call, &tkc_join_sampling_session_response_type,
                   &(tkc_join_sampling_session_response){ .client_counter = number });
}
