/* sample_request.c - the arguments of a sample: checked, and copied into a request.
 *
 * Runs on the caller's thread, before anything is queued, so that a wrong argument fails at once and
 * names itself. May touch: its arguments and the arena it is given.
 */
#include <math.h>
#include <string.h>

#include "client/sample/sample_op.h"
#include "client/train/train_batch.h"
#include "base/str.h"

static bool check_stop(const tinkc_sampling *o, tinkc_error *err)
{
    bool texts = o->stop && o->stop[0];
    if (texts && o->n_stop_tokens)
        return tkc_fail(err, TINKC_E_ARGUMENT, "stop: strings and tokens exclude each other");
    if (o->never_stop && (texts || o->n_stop_tokens))
        return tkc_fail(err, TINKC_E_ARGUMENT, "never_stop: excludes stop and stop_tokens");
    if (o->n_stop_tokens && !o->stop_tokens)
        return tkc_fail(err, TINKC_E_ARGUMENT, "stop_tokens: must not be NULL");
    for (size_t i = 0; i < o->n_stop_tokens; i++)
        if (o->stop_tokens[i] < 0)
            return tkc_fail(err, TINKC_E_ARGUMENT, "stop_tokens: token %zu is negative", i);
    for (size_t i = 0; texts && o->stop[i]; i++)
        if (!o->stop[i][0])
            return tkc_fail(err, TINKC_E_ARGUMENT, "stop: text %zu is empty", i);
    return true;
}

bool tkc_sampling_check(const tinkc_sampling *o, tinkc_error *err)
{
    if (!o)
        return tkc_fail(err, TINKC_E_ARGUMENT, "sampling: must not be NULL");
    if (!tkc_all_zero(o->reserved, sizeof o->reserved) || o->reserved_bools[0])
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved: must be zero");
    if (!isfinite(o->temperature) || o->temperature < 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "temperature: must be a number of 0 or more");
    if (!(o->top_p > 0 && o->top_p <= 1))
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "top_p: must lie above 0 and up to 1; start from TINKC_SAMPLING_INIT");
    if (o->top_k < -1 || o->top_k == 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "top_k: must be 1 or more, or -1");
    if (o->max_tokens < -1)
        return tkc_fail(err, TINKC_E_ARGUMENT, "max_tokens: must be 0 or more, or -1");
    if (o->topk_prompt_logprobs < 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "topk_prompt_logprobs: must not be negative");
    if (o->topk_sample_logprobs < 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "topk_sample_logprobs: must not be negative");
    if (o->prompt_logprobs_last_n < 0 || (o->prompt_logprobs_last_n && !o->prompt_logprobs))
        return tkc_fail(err, TINKC_E_ARGUMENT, "prompt_logprobs_last_n: %s",
                        o->prompt_logprobs_last_n < 0 ? "must not be negative"
                                                      : "needs prompt_logprobs");
    if (o->targets_each < 0 || (o->target_tokens != NULL) != (o->targets_each > 0))
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "target_tokens: comes with targets_each, of 1 or more");
    if (o->prompt_alt_tokens < 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "prompt_alt_tokens: must not be negative");
    if (o->has_seed && o->seed > INT64_MAX)
        return tkc_fail(err, TINKC_E_ARGUMENT, "seed: must be below 2^63");
    return check_stop(o, err);
}

static bool copy_stop(tkc_stop *to, const tinkc_sampling *o, tkc_arena *arena, tinkc_error *err)
{
    size_t n = 0;
    while (o->stop && o->stop[n])
        n++;
    if (o->n_stop_tokens) {
        int32_t *ids = tkc_arena_array(arena, o->n_stop_tokens, sizeof *ids, err);
        if (ids)
            memcpy(ids, o->stop_tokens, o->n_stop_tokens * sizeof *ids);
        *to = (tkc_stop){ .kind = TKC_STOP_TOKENS, .tokens = { ids, o->n_stop_tokens } };
    } else if (n || o->never_stop) { /* an empty list: stop at nothing */
        const char **texts = tkc_arena_array(arena, n + 1, sizeof *texts, err);
        for (size_t i = 0; texts && i < n; i++)
            texts[i] = tkc_arena_cstr(arena, o->stop[i], err);
        *to = (tkc_stop){ .kind = TKC_STOP_STRINGS, .strings = (const char *const *)texts };
    }
    return !tkc_failed(err);
}

static bool copy_prompt(tkc_sample_request *to, const tinkc_chunk *chunks, size_t n,
                        tkc_arena *arena, tinkc_error *err)
{
    tinkc_chunk *copies = tkc_arena_array(arena, n, sizeof *copies, err);
    if (!copies)
        return false;
    for (size_t i = 0; i < n; i++) {
        copies[i] = chunks[i];
        int32_t *ids = tkc_arena_array(arena, chunks[i].tokens.len, sizeof *ids, err);
        unsigned char *bytes = tkc_arena_alloc(arena, chunks[i].bytes.len, err);
        if (!ids || !bytes)
            return false;
        if (chunks[i].tokens.len)
            memcpy(ids, chunks[i].tokens.data, chunks[i].tokens.len * sizeof *ids);
        if (chunks[i].bytes.len)
            memcpy(bytes, chunks[i].bytes.data, chunks[i].bytes.len);
        copies[i].tokens.data = ids;
        copies[i].bytes.data = bytes;
        copies[i].location = tkc_arena_cstr(arena, chunks[i].location, err);
    }
    to->prompt.chunks.data = copies;
    to->prompt.chunks.len = n;
    return !tkc_failed(err);
}

/* Both need to know where each prompt token is. */
static bool fill_prompt_work(tkc_sample_request *to, const tinkc_sampling *o, tkc_arena *arena,
                             tinkc_error *err)
{
    size_t tokens = tkc_prompt_tokens(to), each = (size_t)o->targets_each, cells;
    const char *field = each ? "target_tokens" : "prompt_alt_tokens";
    if (!each && !o->prompt_alt_tokens)
        return true;
    if (tokens < 2)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: the prompt must be two tokens or more%s", field,
                        tokens ? "" : ", without images or audio");
    if (o->prompt_alt_tokens)
        to->prompt_alt_tokens_k = (tkc_opt_i64)TKC_SOME(o->prompt_alt_tokens);
    if (!each)
        return true;
    if (!tkc_mul_size(tokens - 1, each, &cells))
        return tkc_fail_memory(err);
    int64_t *ids = tkc_arena_array(arena, cells, sizeof *ids, err);
    int64_t *shape = tkc_arena_array(arena, 2, sizeof *shape, err);
    if (!ids || !shape)
        return false;
    for (size_t i = 0; i < cells; i++) {
        if (o->target_tokens[i] < -1)
            return tkc_fail(err, TINKC_E_ARGUMENT, "target_tokens: %zu is below -1", i);
        ids[i] = o->target_tokens[i];
    }
    shape[0] = (int64_t)(tokens - 1);
    shape[1] = (int64_t)each;
    to->target_prompt_logprobs =
        (tkc_tensor){ .data = ids, .count = cells, .shape = { shape, 2 }, .dtype = TINKC_I64 };
    return true;
}

bool tkc_sample_fill(tkc_sample_request *to, tinkc_sampler *sampler, const tinkc_chunk *chunks,
                     size_t n_chunks, size_t n_samples, const tinkc_sampling *o, tkc_arena *arena,
                     tinkc_error *err)
{
    tkc_message_init(&tkc_sample_request_type, to);
    to->sampling_session_id = sampler->id;
    to->num_samples = (int64_t)n_samples;
    /* Always sent, as by the Python SDK: a service refuses null. */
    to->prompt_logprobs = (tkc_opt_bool)TKC_SOME(o->prompt_logprobs);
    to->topk_prompt_logprobs = o->topk_prompt_logprobs;
    if (sampler->record_stability_info)
        to->record_stability_info = (tkc_opt_bool)TKC_SOME(true);
    if (o->topk_sample_logprobs)
        to->topk_sample_logprobs = (tkc_opt_i64)TKC_SOME(o->topk_sample_logprobs);
    if (o->prompt_logprobs_last_n)
        to->prompt_logprobs_last_n = (tkc_opt_i64)TKC_SOME(o->prompt_logprobs_last_n);
    tkc_sampling_params *p = &to->sampling_params;
    if (o->max_tokens >= 0)
        p->max_tokens = (tkc_opt_i64)TKC_SOME(o->max_tokens);
    if (o->has_seed)
        p->seed = (tkc_opt_seed)TKC_SOME(o->seed);
    p->temperature = o->temperature;
    p->top_p = o->top_p;
    p->top_k = o->top_k;
    return copy_stop(&p->stop, o, arena, err) && copy_prompt(to, chunks, n_chunks, arena, err) &&
           fill_prompt_work(to, o, arena, err);
}

bool tkc_sampler_check(tinkc_sampler *sampler, tinkc_error *err)
{
    if (!sampler)
        return tkc_fail(err, TINKC_E_ARGUMENT, "sampler: must not be NULL");
    return tkc_client_check_open(sampler->client, err);
}

bool tkc_prompt_check(const int32_t *prompt, size_t len, tinkc_error *err)
{
    if (!prompt || !len)
        return tkc_fail(err, TINKC_E_ARGUMENT, "prompt: must not be empty");
    for (size_t i = 0; i < len; i++)
        if (prompt[i] < 0)
            return tkc_fail(err, TINKC_E_ARGUMENT, "prompt: token %zu is negative", i);
    return true;
}
