/* sample_result.c - the answer to a sample: its counts checked, and what callers read of it.
 *
 * May touch: the response. Must not: wait, other than for the future it is given.
 */
#include "client/sample/sample_op.h"

#include <math.h>

/* ---- counts: the first that is wrong is the error ---- */

static void check_count(const char *what, size_t got, size_t want, tinkc_error *err)
{
    if (got != want)
        tkc_fail(err, TINKC_E_BAD_RESPONSE, "sample result: expected %zu %s, got %zu", want, what,
                 got);
}

size_t tkc_prompt_tokens(const tkc_sample_request *q)
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
static void check_topk(const tkc_topk *t, size_t rows, int64_t k, const char *what,
                       tinkc_error *err)
{
    if (!t->ids.data)
        return;
    if (rows)
        check_count(what, t->rows, rows, err);
    if (t->k > k)
        check_count("candidates a token", (size_t)t->k, (size_t)k, err);
}

static void check_counts(const tkc_sample_request *q, const tkc_sample_response *r,
                         tinkc_error *err)
{
    size_t prompt = tkc_prompt_tokens(q);
    check_count("sequences", r->sequences.len, (size_t)q->num_samples, err);
    if (r->prompt_logprobs.data && prompt)
        check_count("log-probs of the prompt", r->prompt_logprobs.len, prompt, err);
    check_topk(&r->topk, prompt, q->topk_prompt_logprobs, "top-k rows of the prompt", err);
    for (size_t i = 0; i < r->sequences.len; i++) {
        const tinkc_sequence *s = &r->sequences.data[i];
        if (s->logprobs.data)
            check_count("log-probs of a sequence", s->logprobs.len, s->tokens.len, err);
        if (r->sampled_topk)
            check_topk(&r->sampled_topk[i], s->tokens.len, q->topk_sample_logprobs.value,
                       "top-k rows of a sequence", err);
    }
}

/* A service that does not know prompt_logprobs_last_n scores the whole prompt, and is paid for it: that
 * must not look like an answer to what was asked. */
static void check_last_n(const tkc_sample_request *q, const tkc_sample_response *r,
                         tinkc_error *err)
{
    int64_t n = q->prompt_logprobs_last_n.value;
    if (q->prompt_logprobs_last_n.is != TKC_GIVEN)
        return;
    for (size_t i = 0; i + (size_t)n < r->prompt_logprobs.len; i++)
        if (!isnan(r->prompt_logprobs.data[i])) {
            tkc_fail(err, TINKC_E_BAD_RESPONSE,
                     "sample result: log-probs before the last %lld tokens; the service may not "
                     "know prompt_logprobs_last_n",
                     (long long)n);
            return;
        }
}

/* A dense tensor of log-probabilities with this many cells. A service that does not know the request's
 * field answers without it: that must not look like an answer. */
static void take_logprobs(const tkc_tensor *t, size_t cells, const char *field, tinkc_f32s *out,
                          tinkc_error *err)
{
    if (!t->dtype)
        tkc_fail(err, TINKC_E_BAD_RESPONSE,
                 "sample result: nothing for %s; the service may not know it", field);
    else if (t->dtype != TINKC_F32 || t->sparse || t->count != cells)
        tkc_fail(err, TINKC_E_BAD_RESPONSE,
                 "sample result: %s: expected %zu 32-bit floats, got %zu cells of another layout",
                 field, cells, t->count);
    *out = (tinkc_f32s){ t->data, t->count };
}

static void take_alt_tokens(const tkc_sample_request *q, tinkc_samples *s, tkc_arena *arena,
                            tinkc_error *err)
{
    size_t k = (size_t)q->prompt_alt_tokens_k.value, cells = (tkc_prompt_tokens(q) - 1) * k;
    const tkc_tensor *t = &s->r.alt_tokens;
    take_logprobs(&s->r.alt_logprobs, cells, "prompt_alt_tokens", &s->alt_logprobs, err);
    if (t->dtype != TINKC_I64 || t->sparse || t->count != cells)
        tkc_fail(err, TINKC_E_BAD_RESPONSE,
                 "sample result: prompt_alt_tokens: expected %zu ids, got %zu", cells, t->count);
    if (tkc_failed(err))
        return;
    int32_t *ids = tkc_arena_array(arena, cells, sizeof *ids, err);
    for (size_t i = 0; ids && i < cells; i++) {
        int64_t id = ((const int64_t *)t->data)[i];
        if (id < 0 || id > INT32_MAX)
            tkc_fail(err, TINKC_E_BAD_RESPONSE,
                     "sample result: prompt_alt_tokens: an id is out of range");
        ids[i] = (int32_t)id;
    }
    s->alt_ids = ids;
    s->alt_k = k;
}

void tkc_samples_check(tinkc_samples *s, const tkc_sample_request *q, tkc_arena *arena,
                       tinkc_error *err)
{
    const tkc_tensor *targets = &q->target_prompt_logprobs;
    check_counts(q, &s->r, err);
    check_last_n(q, &s->r, err);
    if (s->sequence_ids) {
        size_t n = 0;
        while (s->sequence_ids[n])
            n++;
        check_count("names of sequences", n, s->r.sequences.len, err);
    }
    if (targets->dtype)
        take_logprobs(&s->r.target_prompt_logprobs, targets->count, "target_tokens", &s->targets,
                      err);
    if (q->prompt_alt_tokens_k.is == TKC_GIVEN)
        take_alt_tokens(q, s, arena, err);
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

const char *tinkc_samples_sequence_id(const tinkc_samples *s, size_t k)
{
    return s && s->sequence_ids && k < s->r.sequences.len ? s->sequence_ids[k] : "";
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

tinkc_f32s tinkc_samples_target_logprobs(const tinkc_samples *s)
{
    return s ? s->targets : (tinkc_f32s){ 0 };
}

size_t tinkc_samples_alt_tokens(const tinkc_samples *s, size_t i, const int32_t **ids,
                                const float **logprobs)
{
    bool any = s && s->alt_k && i > 0 && i <= s->alt_logprobs.len / s->alt_k;
    if (ids)
        *ids = any ? s->alt_ids + (i - 1) * s->alt_k : NULL;
    if (logprobs)
        *logprobs = any ? s->alt_logprobs.data + (i - 1) * s->alt_k : NULL;
    return any ? s->alt_k : 0;
}

tinkc_f32s tinkc_future_logprobs(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    const tinkc_samples *s = tkc_future_get(f, "logprobs", timeout_ms, err);
    return s ? s->r.prompt_logprobs : (tinkc_f32s){ 0 };
}
