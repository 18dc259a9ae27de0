/* sample_op.h - what the files of sampling share: the request (sample_request.c), the operation
 * (sample_op.c), the result (sample_result.c) and streams (sample_stream.c). */
#ifndef TKC_API_SAMPLE_OP_H
#define TKC_API_SAMPLE_OP_H

#include "client/sample/sampler.h"
#include "wire/sample_message.h"

bool tkc_sampler_check(tinkc_sampler *, tinkc_error *err); /* NULL, forked, closed */
bool tkc_prompt_check(const int32_t *prompt, size_t len, tinkc_error *err);
bool tkc_sampling_check(const tinkc_sampling *, tinkc_error *err);

/* A whole request but for its number, copied into the arena. The options have been checked. */
bool tkc_sample_fill(tkc_sample_request *to, tinkc_sampler *, const tinkc_chunk *chunks,
                     size_t n_chunks, size_t n_samples, const tinkc_sampling *, tkc_arena *,
                     tinkc_error *err);

/* What a sample's future has as its result. */
struct tinkc_samples {
    tkc_sample_response r;
    tkc_buf bytes;                   /* what r points into */
    const char *const *sequence_ids; /* one for each sequence; NULL = the service gave none */
    tinkc_f32s targets;
    const int32_t *alt_ids; /* alt_k for each prompt token after the first; NULL = none */
    tinkc_f32s alt_logprobs;
    size_t alt_k;
};

/* Tokens of the prompt; 0 = only the service knows, because of images. */
size_t tkc_prompt_tokens(const tkc_sample_request *);

/* Checks s->r against what was asked for and fills in the rest. Every list has the length that the
 * request decides: callers index by their own counts. */
void tkc_samples_check(tinkc_samples *s, const tkc_sample_request *, tkc_arena *, tinkc_error *err);

#endif
