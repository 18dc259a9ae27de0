/* sample_result.c - the answer to a sample: its counts checked, and what callers read of it.
 *
 * May touch: the response. Must not: wait, other than for the future it is given.
 */
#include "api/sample_op.h"

/* ---- counts ---- */

static bool bad_count(tinkc_error *err, const char *what, size_t got, size_t want)
{
    return tkc_fail(err, TINKC_E_BAD_RESPONSE, "sample result: %zu %s where %zu are due", got, what,
                    want);
}

/* Tokens of the prompt; 0 = only the service knows, because of images. */
static size_t prompt_tokens(const tkc_sample_request *q)
{
    size_t n = 0;
    for (size_t i = 0; i < q->prompt.chunks.len; i++) {
        if (q->prompt.chunks.data[i].kind != TINKC_CHUNK_TOKENS)
            return 0;
        n += q->prompt.chunks.data[i].tokens.len;
    }
    return n;
}

/* Fewer candidates a row are possible where the vocabulary is small; more were not asked for. */
static bool check_topk(const tkc_topk *t, size_t rows, int64_t k, const char *what,
                       tinkc_error *err)
{
    if (!t->ids.data)
        return true;
    if (rows && t->rows != rows)
        return bad_count(err, what, t->rows, rows);
    return t->k <= k || bad_count(err, "candidates a token", t->k, (size_t)k);
}

bool tkc_sample_check_counts(const tkc_sample_request *q, const tkc_sample_response *r,
                             tinkc_error *err)
{
    size_t prompt = prompt_tokens(q);
    if (r->sequences.len != (uint64_t)q->num_samples)
        return bad_count(err, "sequences", r->sequences.len, (size_t)q->num_samples);
    if (r->prompt_logprobs.data && prompt && r->prompt_logprobs.len != prompt)
        return bad_count(err, "log-probs of the prompt", r->prompt_logprobs.len, prompt);
    if (!check_topk(&r->topk, prompt, q->topk_prompt_logprobs, "top-k rows of the prompt", err))
        return false;
    for (size_t i = 0; i < r->sequences.len; i++) {
        const tinkc_sequence *s = &r->sequences.data[i];
        if (s->logprobs.data && s->logprobs.len != s->tokens.len)
            return bad_count(err, "log-probs of a sequence", s->logprobs.len, s->tokens.len);
        if (r->sampled_topk &&
            !check_topk(&r->sampled_topk[i], s->tokens.len, q->topk_sample_logprobs.value,
                        "top-k rows of a sequence", err))
            return false;
    }
    return true;
}

/* ---- what callers read ---- */

const tinkc_samples *tinkc_future_samples(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    return tkc_future_get(f, "samples", timeout_ms, err);
}

size_t tinkc_samples_count(const tinkc_samples *s)
{
    return s ? s->r.sequences.len : 0;
}

const tinkc_sequence *tinkc_samples_at(const tinkc_samples *s, size_t i)
{
    return s && i < s->r.sequences.len ? &s->r.sequences.data[i] : NULL;
}

tinkc_f32s tinkc_samples_prompt_logprobs(const tinkc_samples *s)
{
    return s ? s->r.prompt_logprobs : (tinkc_f32s){ 0 };
}

int64_t tinkc_samples_cached_tokens(const tinkc_samples *s)
{
    return s ? s->r.prompt_cache_hit_tokens : 0;
}

static size_t candidates(const tkc_topk *topk, size_t i, const int32_t **ids,
                         const float **logprobs)
{
    const int32_t *row_ids = NULL;
    const float *row_logprobs = NULL;
    size_t n = topk ? tkc_topk_row(topk, i, &row_ids, &row_logprobs) : 0;
    if (ids)
        *ids = n ? row_ids : NULL;
    if (logprobs)
        *logprobs = n ? row_logprobs : NULL;
    return n;
}

size_t tinkc_samples_topk(const tinkc_samples *s, size_t i, const int32_t **ids,
                          const float **logprobs)
{
    return candidates(s ? &s->r.topk : NULL, i, ids, logprobs);
}

size_t tinkc_samples_sampled_topk(const tinkc_samples *s, size_t k, size_t i, const int32_t **ids,
                                  const float **logprobs)
{
    bool any = s && s->r.sampled_topk && k < s->r.sequences.len;
    return candidates(any ? &s->r.sampled_topk[k] : NULL, i, ids, logprobs);
}

tinkc_f32s tinkc_future_logprobs(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    const tinkc_samples *s = tkc_future_get(f, "logprobs", timeout_ms, err);
    return s ? s->r.prompt_logprobs : (tinkc_f32s){ 0 };
}
