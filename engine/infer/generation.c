/* generation.c - one request: its samples, stop rules and results.
 *
 * May touch: the request and the blocks its sequences hold. Must not: decide what runs.
 */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/str.h"
#include "infer/infer_state.h"

/* ---- making one ---- */

static bool check_request(const tke_infer *e, const tke_gen_request *r, tinkc_error *err)
{
    const tke_config *c = tke_model_config(e->model);
    if (!r->n_prompt)
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "the prompt is empty");
    if (r->n_samples < 1)
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "num_samples must be at least 1");
    if (r->max_tokens > c->context || r->n_prompt > c->context - r->max_tokens)
        return tkc_fail(err, TINKC_E_BAD_REQUEST,
                        "Prompt length plus max_tokens exceeds the model's context window: "
                        "%zu + %zu > %zu",
                        r->n_prompt, r->max_tokens, c->context);
    for (size_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || (size_t)r->prompt[i] >= c->vocab)
            return tkc_fail(err, TINKC_E_BAD_REQUEST,
                            "prompt token %d at %zu is outside the vocabulary of %zu",
                            (int)r->prompt[i], i, c->vocab);
    for (size_t i = 0; i < (r->n_prompt - 1) * r->n_targets; i++)
        if (r->target_tokens[i] < -1 || r->target_tokens[i] >= (int64_t)c->vocab)
            return tkc_fail(err, TINKC_E_BAD_REQUEST,
                            "target_prompt_logprobs: token %d at %zu is outside the vocabulary of "
                            "%zu",
                            (int)r->target_tokens[i], i, c->vocab);
    if (!(r->rule.temperature >= 0) || !isfinite(r->rule.temperature))
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "temperature must be at least 0");
    if (!(r->rule.top_p > 0 && r->rule.top_p <= 1))
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "top_p must be above 0 and at most 1");
    for (size_t i = 0; i < r->n_biases; i++)
        if (r->biases[i].token < 0 || (size_t)r->biases[i].token >= c->vocab)
            return tkc_fail(err, TINKC_E_BAD_REQUEST,
                            "logit_bias: token %d is outside the vocabulary of %zu",
                            (int)r->biases[i].token, c->vocab);
    if (r->n_stop_strings && !r->token_bytes)
        return tkc_fail(err, TINKC_E_BAD_REQUEST,
                        "stop strings need tokenizer.json in the model folder");
    if (r->constraint && tke_token_order_size(r->constraint->tokens) > c->vocab)
        return tkc_fail(err, TINKC_E_STATE, "the constraint is for another vocabulary");
    if (r->snapshot && tke_snapshot_model(r->snapshot) != e->model)
        return tkc_fail(err, TINKC_E_STATE, "the snapshot belongs to another model");
    return true;
}

static void *copy(tkc_arena *arena, const void *from, size_t n, size_t size, tinkc_error *err)
{
    void *to = tkc_arena_array(arena, n ? n : 1, size, err);
    if (to && n)
        memcpy(to, from, n * size);
    return to;
}

static bool copy_request(tke_gen *g, tinkc_error *err)
{
    tke_gen_request *r = &g->r;
    r->prompt = copy(&g->arena, r->prompt, r->n_prompt, sizeof *r->prompt, err);
    r->stop_tokens = copy(&g->arena, r->stop_tokens, r->n_stop_tokens, sizeof *r->stop_tokens, err);
    r->target_tokens = copy(&g->arena, r->target_tokens, (r->n_prompt - 1) * r->n_targets,
                            sizeof *r->target_tokens, err);
    r->biases = copy(&g->arena, r->biases, r->n_biases, sizeof *r->biases, err);
    tinkc_str *strings = copy(&g->arena, r->stop_strings, r->n_stop_strings, sizeof *strings, err);
    for (size_t i = 0; strings && i < r->n_stop_strings; i++) {
        strings[i].data = tkc_arena_str(&g->arena, strings[i], err);
        if (strings[i].len > g->longest_stop)
            g->longest_stop = strings[i].len;
    }
    r->stop_strings = strings;
    return !tkc_failed(err);
}

static float *fill(tkc_arena *arena, size_t n, float value, tinkc_error *err)
{
    float *to = tkc_arena_array(arena, n ? n : 1, sizeof *to, err);
    for (size_t i = 0; to && i < n; i++)
        to[i] = value;
    return to;
}

/* Allocates the requested scores of the prompt's positions, if any. */
static bool make_scores(tke_gen *g, tinkc_error *err)
{
    const tke_gen_request *r = &g->r;
    size_t k = r->topk_prompt_logprobs, last = r->prompt_logprobs_last_n, rows = r->n_prompt - 1;
    size_t n_alternatives = rows * r->n_alternatives;
    if (!r->prompt_logprobs && !k && !r->n_targets && !r->n_alternatives)
        return true;
    g->first_logprob = last && last < r->n_prompt ? r->n_prompt - last : 1; /* 0 has no context */
    g->n_scored = r->n_targets || r->n_alternatives ? 1 : g->first_logprob;
    g->prompt_logprobs = fill(&g->arena, r->n_prompt, NAN, err);
    g->topk_tokens = tkc_arena_array(&g->arena, r->n_prompt * k + 1, sizeof(int32_t), err);
    g->topk_logprobs = fill(&g->arena, r->n_prompt * k, -99999.0f, err);
    g->target_logprobs = fill(&g->arena, rows * r->n_targets, 0, err);
    g->alternatives = tkc_arena_array(&g->arena, n_alternatives + 1, sizeof(int32_t), err);
    g->alternative_logprobs = tkc_arena_array(&g->arena, n_alternatives + 1, sizeof(float), err);
    g->alternatives_bad = tkc_arena_array(&g->arena, n_alternatives + 1, sizeof(bool), err);
    g->alternative_rule = (tke_sample_rule){ .temperature = r->rule.temperature,
                                             .top_p = 1,
                                             .logprobs = TKE_LOGPROBS_RAW };
    return !tkc_failed(err);
}

/* ---- constraints ---- */

static void allow(uint32_t *mask, int32_t token)
{
    mask[token / 32] |= UINT32_C(1) << token % 32;
}

/* The tokens that end a text. */
static void allow_ends(const tke_gen *g, uint32_t *mask)
{
    const tke_config *c = tke_model_config(g->engine->model);
    for (size_t i = 0; i < c->n_eos; i++)
        if ((size_t)c->eos[i] < c->vocab)
            allow(mask, c->eos[i]);
    for (size_t i = 0; i < g->r.n_stop_tokens; i++)
        if (g->r.stop_tokens[i] >= 0 && (size_t)g->r.stop_tokens[i] < c->vocab)
            allow(mask, g->r.stop_tokens[i]);
}

/* Finds the tokens that may follow the text so far. False: none, or err is set. */
static bool find_allowed(tke_gen *g, tke_seq *s, tinkc_error *err)
{
    const tke_constraint *c = g->r.constraint;
    bool end = tke_grammar_may_end(c->grammar, s->grammar);
    bool any =
        tke_constraint_mask(c, s->grammar, g->r.max_tokens - s->n, &g->masks, s->allowed, err);
    if (end && !g->r.never_stop)
        allow_ends(g, s->allowed);
    return !tkc_failed(err) && (any || (end && !g->r.never_stop));
}

static bool make_constraint(tke_gen *g, tinkc_error *err)
{
    const tke_gen_request *r = &g->r;
    size_t words = tke_mask_words(tke_model_config(g->engine->model)->vocab);
    if (!r->constraint || !r->max_tokens)
        return true;
    g->masks.arena = &g->arena;
    for (size_t i = 0; i < r->n_samples && !tkc_failed(err); i++) {
        tke_seq *s = &g->seqs[i];
        s->grammar = tkc_arena_zalloc(&g->arena, sizeof *s->grammar, err);
        s->allowed = tkc_arena_array(&g->arena, words, sizeof *s->allowed, err);
        if (tkc_failed(err))
            break;
        tke_grammar_start(r->constraint->grammar, s->grammar);
        if (!find_allowed(g, s, err) && !tkc_failed(err))
            tkc_fail(err, TINKC_E_BAD_REQUEST,
                     "max_tokens of %zu is too small: the shortest text that fits has %lld bytes",
                     r->max_tokens,
                     (long long)tke_grammar_cost(r->constraint->grammar, s->grammar));
    }
    return !tkc_failed(err);
}

/* Advances the grammar by a drawn token; true = the text is complete. */
static bool follow(tke_seq *s, int32_t token, tinkc_error *err)
{
    tke_gen *g = s->gen;
    if (!tke_constraint_step(g->r.constraint, s->grammar, token))
        return tkc_fail(err, TINKC_E_STATE, "a token was drawn that the constraint does not allow");
    if (s->grammar->depth == 0)
        return true;
    if (s->n >= g->r.max_tokens)
        return tke_grammar_may_end(g->r.constraint->grammar, s->grammar);
    if (!find_allowed(g, s, err) && !tkc_failed(err))
        tkc_fail(err, TINKC_E_SERVER, "no token continues the text under its constraint");
    return false;
}

/* ---- biases and penalties ---- */

static bool has_penalties(const tke_gen *g)
{
    return g->r.presence_penalty != 0 || g->r.frequency_penalty != 0;
}

static bool grow_biases(tke_seq *s, size_t n, tinkc_error *err)
{
    tke_bias *biases = tkc_grow(NULL, s->biases, &s->cap_biases, n, sizeof *biases, err);
    if (biases)
        s->biases = biases;
    uint32_t *counts = tkc_grow(NULL, s->counts, &s->cap_counts, n, sizeof *counts, err);
    if (counts)
        s->counts = counts;
    return biases && counts;
}

static bool make_biases(tke_gen *g, tinkc_error *err)
{
    const tke_gen_request *r = &g->r;
    for (size_t i = 0; i < r->n_samples; i++) {
        tke_seq *s = &g->seqs[i];
        s->n_biases = r->n_biases;
        if (!has_penalties(g)) {
            s->biases = (tke_bias *)(uintptr_t)r->biases;
            continue;
        }
        if (!grow_biases(s, r->n_biases + 1, err))
            return false;
        memset(s->counts, 0, r->n_biases * sizeof *s->counts);
        if (r->n_biases)
            memcpy(s->biases, r->biases, r->n_biases * sizeof *s->biases);
    }
    return true;
}

/* Where the token is, or would be, in a list that is sorted by token. */
static size_t place_of(const tke_bias *list, size_t n, int32_t token)
{
    size_t low = 0;
    while (low < n) {
        size_t middle = low + (n - low) / 2;
        if (list[middle].token < token)
            low = middle + 1;
        else
            n = middle;
    }
    return low;
}

/* Counts a drawn token. Its bias is computed from the count, not by adding to the last one, so that
 * it depends only on the tokens of the sample. */
static void penalize(tke_seq *s, int32_t token, tinkc_error *err)
{
    const tke_gen_request *r = &s->gen->r;
    size_t at = place_of(s->biases, s->n_biases, token);
    if (at == s->n_biases || s->biases[at].token != token) {
        size_t after = s->n_biases - at;
        if (!grow_biases(s, s->n_biases + 1, err))
            return;
        memmove(s->biases + at + 1, s->biases + at, after * sizeof *s->biases);
        memmove(s->counts + at + 1, s->counts + at, after * sizeof *s->counts);
        s->biases[at].token = token;
        s->counts[at] = 0;
        s->n_biases++;
    }
    size_t given = place_of(r->biases, r->n_biases, token);
    double by = given < r->n_biases && r->biases[given].token == token ? r->biases[given].by : 0;
    s->counts[at]++;
    s->biases[at].by =
        (float)(by - r->presence_penalty - r->frequency_penalty * (double)s->counts[at]);
}

static bool make_results(tke_gen *g, tinkc_error *err)
{
    tke_gen_request *r = &g->r;
    size_t top = r->topk_sample_logprobs;
    g->seqs = tkc_arena_array(&g->arena, r->n_samples, sizeof *g->seqs, err);
    for (size_t i = 0; g->seqs && i < r->n_samples; i++) {
        g->seqs[i].gen = g;
        g->seqs[i].sample = (uint32_t)i;
        g->seqs[i].slot = -1;
        tkc_buf_init(&g->seqs[i].tail, NULL, TKC_BUF_NO_MAX);
        if (top) {
            g->seqs[i].next_topk = tkc_arena_array(&g->arena, top, sizeof(int32_t), err);
            g->seqs[i].next_topk_logprobs = tkc_arena_array(&g->arena, top, sizeof(float), err);
        }
    }
    return !tkc_failed(err) && make_scores(g, err) && make_constraint(g, err) &&
           make_biases(g, err);
}

tke_gen *tke_gen_new(tke_infer *e, const tke_gen_request *r, tinkc_error *err)
{
    if (tkc_failed(err) || !check_request(e, r, err))
        return NULL;
    tke_gen *g = tkc_zalloc(NULL, sizeof *g, err);
    if (!g)
        return NULL;
    g->engine = e;
    g->r = *r;
    g->r.snapshot = r->snapshot ? tke_snapshot_keep(r->snapshot) : NULL;
    tkc_arena_init(&g->arena, NULL, 0);
    if (copy_request(g, err) && make_results(g, err))
        return g;
    tke_gen_destroy(g);
    return NULL;
}

void tke_gen_destroy(tke_gen *g)
{
    for (size_t i = 0; g->seqs && i < g->r.n_samples; i++) {
        tke_seq *s = &g->seqs[i];
        assert(!s->n_blocks && s->state != TKE_SEQ_RUNNING);
        tkc_release(NULL, s->tokens, s->cap * sizeof *s->tokens);
        tkc_release(NULL, s->logprobs, s->cap_logprobs * sizeof *s->logprobs);
        tkc_release(NULL, s->topk, s->cap_topk * sizeof *s->topk);
        tkc_release(NULL, s->topk_logprobs, s->cap_topk_logprobs * sizeof *s->topk_logprobs);
        tkc_release(NULL, s->blocks, s->cap_blocks * sizeof *s->blocks);
        if (has_penalties(g)) {
            tkc_release(NULL, s->biases, s->cap_biases * sizeof *s->biases);
            tkc_release(NULL, s->counts, s->cap_counts * sizeof *s->counts);
        }
        tkc_buf_free(&s->tail);
    }
    tke_snapshot_drop((tke_snapshot *)(uintptr_t)g->r.snapshot);
    tkc_arena_free(&g->arena);
    tkc_release(NULL, g, sizeof *g);
}

/* ---- sequences ---- */

size_t tke_seq_length(const tke_seq *s)
{
    return s->gen->r.n_prompt + s->n;
}

int32_t tke_seq_token(const tke_seq *s, size_t pos)
{
    size_t n_prompt = s->gen->r.n_prompt;
    assert(pos < n_prompt + s->n);
    return pos < n_prompt ? s->gen->r.prompt[pos] : s->tokens[pos - n_prompt];
}

void tke_seq_release_blocks(tke_seq *s)
{
    for (size_t i = 0; i < s->n_blocks; i++)
        tke_kv_drop(&s->gen->engine->kv, s->blocks[i]);
    tke_states_drop(&s->gen->engine->states, s->slot);
    s->slot = -1;
    s->n_blocks = 0;
    s->n_computed = s->n_published = 0;
    s->serial = 0;
}

void tke_seq_finish(tke_seq *s, bool stopped)
{
    if (s->state == TKE_SEQ_DONE)
        return;
    tke_seq_release_blocks(s);
    if (s->state == TKE_SEQ_WAITING) {
        assert(s->gen->engine->n_waiting > 0);
        s->gen->engine->n_waiting--;
    }
    s->state = TKE_SEQ_DONE;
    s->stopped = stopped;
    assert(s->gen->n_done < s->gen->r.n_samples);
    if (++s->gen->n_done == s->gen->r.n_samples)
        tke_gen_finish(s->gen, &(tinkc_error){ 0 });
}

void tke_gen_finish(tke_gen *g, const tinkc_error *err)
{
    tke_infer *e = g->engine;
    if (g->done)
        return;
    g->done = true;
    tkc_error_copy(&g->err, err);
    for (size_t i = 0; i < g->r.n_samples; i++)
        tke_seq_finish(&g->seqs[i], false);
    assert(g->n_done == g->r.n_samples && e->n_unfinished > 0 && !g->next_done);
    e->n_unfinished--;
    if (e->done_last)
        e->done_last->next_done = g;
    else
        e->done_first = g;
    e->done_last = g;
}

/* ---- stop rules ---- */

static bool stops_at_token(const tke_gen *g, int32_t token)
{
    if (g->r.never_stop)
        return false;
    if (tke_model_is_eos(g->engine->model, token))
        return true;
    for (size_t i = 0; i < g->r.n_stop_tokens; i++)
        if (g->r.stop_tokens[i] == token)
            return true;
    return false;
}

/* Looks for stop strings in the bytes generated so far. What came before the last longest - 1 bytes
 * has been searched already. */
static bool stops_at_bytes(tke_seq *s, int32_t token, tinkc_error *err)
{
    const tke_gen_request *r = &s->gen->r;
    const char *bytes = NULL;
    bool found = false;
    if (!r->n_stop_strings)
        return false;
    size_t n = r->token_bytes(r->token_user, token, &bytes);
    if (n)
        tkc_buf_add(&s->tail, bytes, n, err);
    for (size_t i = 0; i < r->n_stop_strings && !found; i++)
        found = r->stop_strings[i].len && s->tail.len >= r->stop_strings[i].len &&
                memmem(s->tail.data, s->tail.len, r->stop_strings[i].data, r->stop_strings[i].len);
    size_t keep = s->gen->longest_stop ? s->gen->longest_stop - 1 : 0;
    assert(!found || s->gen->longest_stop > 0);
    if (s->tail.len > keep) {
        memmove(s->tail.data, s->tail.data + s->tail.len - keep, keep);
        s->tail.len = keep;
    }
    return found;
}

/* Appends the alternatives of the token that is about to be appended. */
static void append_topk(tke_seq *s, tinkc_error *err)
{
    size_t k = s->gen->r.topk_sample_logprobs, n = s->n * k;
    int32_t *tokens = tkc_grow(NULL, s->topk, &s->cap_topk, n + k, sizeof *tokens, err);
    if (tokens)
        s->topk = tokens;
    float *logprobs =
        tkc_grow(NULL, s->topk_logprobs, &s->cap_topk_logprobs, n + k, sizeof *logprobs, err);
    if (logprobs)
        s->topk_logprobs = logprobs;
    if (!tokens || !logprobs)
        return;
    memcpy(tokens + n, s->next_topk, k * sizeof *tokens);
    memcpy(logprobs + n, s->next_topk_logprobs, k * sizeof *logprobs);
}

/* Appends a token for which there is room. True: the text ends with it. */
static bool append(tke_seq *s, int32_t token, float logprob, tinkc_error *err)
{
    s->tokens[s->n] = token;
    s->logprobs[s->n++] = logprob;
    if (has_penalties(s->gen))
        penalize(s, token, err);
    bool stop = stops_at_token(s->gen, token);
    stop = stops_at_bytes(s, token, err) || stop;
    return stop || (s->grammar && !tkc_failed(err) && follow(s, token, err));
}

void tke_seq_append(tke_seq *s, int32_t token, float logprob)
{
    tke_gen *g = s->gen;
    tinkc_error err = { 0 };
    assert(s->state == TKE_SEQ_RUNNING && s->n < g->r.max_tokens);
    int32_t *tokens = tkc_grow(NULL, s->tokens, &s->cap, s->n + 1, sizeof *tokens, &err);
    if (tokens)
        s->tokens = tokens;
    float *logprobs =
        tkc_grow(NULL, s->logprobs, &s->cap_logprobs, s->n + 1, sizeof *logprobs, &err);
    if (logprobs)
        s->logprobs = logprobs;
    if (s->next_topk)
        append_topk(s, &err);
    bool stop = !tkc_failed(&err) && append(s, token, logprob, &err);
    if (tkc_failed(&err))
        tke_gen_finish(g, &err);
    else if (stop || s->n >= g->r.max_tokens)
        tke_seq_finish(s, stop);
}

/* ---- results ---- */

void *tke_gen_user(const tke_gen *g)
{
    return g->r.user;
}

bool tke_gen_done(const tke_gen *g)
{
    return g->done;
}

const tinkc_error *tke_gen_error(const tke_gen *g)
{
    return &g->err;
}

size_t tke_gen_n_samples(const tke_gen *g)
{
    return g->r.n_samples;
}

tke_sequence tke_gen_sequence(const tke_gen *g, size_t sample)
{
    if (sample >= g->r.n_samples)
        return (tke_sequence){ 0 };
    const tke_seq *s = &g->seqs[sample];
    return (tke_sequence){ s->tokens, s->logprobs,     s->n, s->state == TKE_SEQ_DONE, s->stopped,
                           s->topk,   s->topk_logprobs };
}

static bool scored(const tke_gen *g)
{
    return g->prompt_logprobs && g->n_scored == g->r.n_prompt;
}

const float *tke_gen_prompt_logprobs(const tke_gen *g)
{
    return scored(g) ? g->prompt_logprobs : NULL;
}

const int32_t *tke_gen_topk_tokens(const tke_gen *g)
{
    return scored(g) && g->r.topk_prompt_logprobs ? g->topk_tokens : NULL;
}

const float *tke_gen_topk_logprobs(const tke_gen *g)
{
    return scored(g) && g->r.topk_prompt_logprobs ? g->topk_logprobs : NULL;
}

const float *tke_gen_target_logprobs(const tke_gen *g)
{
    return scored(g) && g->r.n_targets ? g->target_logprobs : NULL;
}

const int32_t *tke_gen_alternatives(const tke_gen *g)
{
    return scored(g) && g->r.n_alternatives ? g->alternatives : NULL;
}

const float *tke_gen_alternative_logprobs(const tke_gen *g)
{
    return scored(g) && g->r.n_alternatives ? g->alternative_logprobs : NULL;
}

bool tke_gen_capped(const tke_gen *g)
{
    bool ran_out = false; /* what ended by itself was not cut */
    for (size_t i = 0; i < g->r.n_samples; i++)
        ran_out = ran_out || !g->seqs[i].stopped;
    return g->capped && ran_out;
}

size_t tke_gen_cache_hits(const tke_gen *g)
{
    return g->cache_hits;
}

void tke_gen_cancel(tke_gen *g)
{
    g->cancelled = true;
}
