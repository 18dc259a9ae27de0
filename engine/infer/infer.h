/* infer.h - generation: continuous batching over a paged cache, many adapters in one batch.
 *
 *     tke_infer *e = tke_infer_new(device_model, &options, &err);
 *     tke_gen *g = tke_infer_add(e, &request, &err);
 *     while (tke_infer_step(e)) {
 *         ... stream from tke_gen_sequence(g, i) what has come ...
 *         while ((g = tke_infer_next_done(e))) { ... tke_gen_free(g); }
 *     }
 *
 * A sequence depends only on its weights, prompt, parameters and seed: not on other requests,
 * chunks, prefix cache hits, or preemption for lack of memory. [one thread: the worker]
 */
#ifndef TKE_INFER_INFER_H
#define TKE_INFER_INFER_H

#include "constrain/token_mask.h"
#include "train/adapter.h"

typedef struct tke_infer_options {
    size_t kv_bytes;      /* of the cache, at most: memory is taken as needed; 0 = 256 MiB */
    size_t prefill_chunk; /* most prompt tokens in one step; 0 = 512 */
    size_t max_running;   /* most sequences decoded in one step; 0 = 256 */
    size_t max_rows;      /* most tokens in one step, of prompts and all; 0 = the two together */
    bool no_prefix_cache;
    /* May the cache take so many bytes more? Where not, prefixes are forgotten and sequences
     * preempted. NULL = yes. */
    bool (*more)(void *user, size_t bytes);
    void *user;
} tke_infer_options;

typedef struct tke_infer tke_infer;
typedef struct tke_gen tke_gen; /* one request: a prompt and its samples */

/* The model is borrowed. */
tke_infer *tke_infer_new(tke_device_model *, const tke_infer_options *, tinkc_error *err);
void tke_infer_free(tke_infer *); /* free its requests before */

typedef struct tke_gen_request {
    const tke_snapshot *snapshot; /* kept until the request ends; NULL = the bare model */
    const int32_t *prompt;        /* copied */
    size_t n_prompt;
    size_t n_samples;
    size_t max_tokens; /* of each sample; 0 = only prompt log-probs */
    /* max_tokens is not the caller's: where the cache has no room for as many, fewer are sampled
     * and the end is one of length. See tke_gen_capped. */
    bool may_cap;
    tke_sample_rule rule;
    uint64_t seed;
    const int32_t *stop_tokens; /* copied */
    size_t n_stop_tokens;
    const tinkc_str *stop_strings; /* copied; need token_bytes */
    size_t n_stop_strings;
    bool never_stop; /* stop = []: not even at the model's own ends */
    bool prompt_logprobs;
    size_t prompt_logprobs_last_n; /* only of this many tokens at its end; 0 = of all */
    size_t topk_prompt_logprobs;
    /* Ids to score at each prompt position after the first: [n_prompt - 1, n_targets], row i is
     * position i + 1; -1 = none. Copied. */
    const int32_t *target_tokens;
    size_t n_targets;
    /* This many tokens are drawn at each prompt position after the first, at the rule's temperature
     * and with no other filter. Their random numbers are not those of the samples. */
    size_t n_alternatives;
    size_t topk_sample_logprobs;     /* the likeliest tokens, for each drawn one */
    tke_token_bytes_fn *token_bytes; /* for stop strings */
    void *token_user;
    /* What may be sampled; both parts are borrowed until the request is done. NULL = anything. A
     * sample always matches it completely: near max_tokens only tokens that allow an end are
     * drawn. */
    const tke_constraint *constraint;
    /* Added to the logits of these tokens before every draw. Copied; sorted by token, each once. */
    const tke_bias *biases;
    size_t n_biases;
    /* Subtracted from the logit of each token that the sample has: once, and for each time. */
    double presence_penalty, frequency_penalty;
    uint64_t tenant; /* whose request it is: rows of a step are shared between tenants */
    void *user;      /* for you: tke_gen_user */
} tke_gen_request;

/* Queues a request; it runs in later steps. Errors: BAD_REQUEST (also: can never fit, with what it
 * needs and what there is), MEMORY. */
tke_gen *tke_infer_add(tke_infer *, const tke_gen_request *, tinkc_error *err);
/* Ends it at the next step, as done with TINKC_E_CANCELLED; its samples so far stay readable. */
void tke_gen_cancel(tke_gen *);
/* Ends it if it is not done, and removes it from the engine. NULL allowed. */
void tke_gen_free(tke_gen *);

/* One iteration: a chunk of prompts, one token for each running sequence. False when there is
 * nothing to do. */
bool tke_infer_step(tke_infer *);
/* Finished requests, each once, in the order they finished; NULL = none. */
tke_gen *tke_infer_next_done(tke_infer *);
size_t tke_infer_n_unfinished(const tke_infer *); /* requests queued or running */

/* ---- results so far ---- */

typedef struct tke_sequence {
    const int32_t *tokens;
    const float *logprobs;
    size_t n;
    bool done;
    bool stopped; /* by a stop rule; else by length */
    const int32_t
        *topk_tokens; /* [n, topk_sample_logprobs], at temperature 1; NULL if not asked for */
    const float *topk_logprobs;
} tke_sequence;

void *tke_gen_user(const tke_gen *);
bool tke_gen_done(const tke_gen *);
const tinkc_error *tke_gen_error(const tke_gen *); /* code 0 = fine */
size_t tke_gen_n_samples(const tke_gen *);
tke_sequence tke_gen_sequence(const tke_gen *, size_t sample);
/* [n_prompt], entry 0 and those not asked for NaN; NULL if not asked for or not there yet. */
const float *tke_gen_prompt_logprobs(const tke_gen *);
/* [n_prompt, k]; row 0 and what is missing: token 0, -99999. */
const int32_t *tke_gen_topk_tokens(const tke_gen *);
const float *tke_gen_topk_logprobs(const tke_gen *);
/* [n_prompt - 1, n_targets]: 0 where there is no target. */
const float *tke_gen_target_logprobs(const tke_gen *);
/* [n_prompt - 1, n_alternatives], with the model's own log-probs. */
const int32_t *tke_gen_alternatives(const tke_gen *);
const float *tke_gen_alternative_logprobs(const tke_gen *);
bool tke_gen_capped(const tke_gen *); /* the cache, not the request, ended a sample */
size_t tke_gen_cache_hits(const tke_gen *); /* prompt tokens served from the cache */

/* ---- memory ---- */

typedef struct tke_infer_stats {
    size_t n_blocks, n_free, n_cached; /* blocks of the cache: all, empty, held for prefixes only */
    size_t n_running, n_waiting;
    uint64_t tokens_decoded, tokens_prefilled, preemptions;
} tke_infer_stats;
tke_infer_stats tke_infer_get_stats(const tke_infer *);
size_t tke_infer_bytes(const tke_infer *); /* of the cache, now */
/* Makes the cache give back memory until it holds at most so many bytes: drops prefixes, then
 * preempts sequences, which are computed again. Between two steps. */
void tke_infer_shrink(tke_infer *, size_t bytes);
/* Forgets cached prefixes, for instance when a snapshot is gone. */
void tke_infer_clear_cache(tke_infer *);

#endif
