/* sampling.h - from logits to a token: temperature, top-k, top-p, the draw, the log-probs.
 *
 * All masses and sums are double. Independent of batches: the token depends only on the logits,
 * the parameters and (seed, sample, position).
 */
#ifndef TKE_CPU_SAMPLING_H
#define TKE_CPU_SAMPLING_H

#include "device/device.h"

/* Work space for one vocabulary; zeroed = empty. */
typedef struct tke_sample_space {
    double *mass;     /* [V]: e_v of what is kept, else 0 */
    int32_t *order;   /* [V] */
    tke_real *masked; /* [V]: logits, -inf for what may not be drawn */
    size_t n;
} tke_sample_space;
bool tke_sample_space_init(tke_sample_space *, size_t vocab, tinkc_error *err);
void tke_sample_space_free(tke_sample_space *);

/* Fills space->mass. Fails (BAD_REQUEST) on NaN, +inf, or no finite logit. */
bool tke_sample_filter(const tke_real *logits, size_t n, const tke_sample_rule *,
                       tke_sample_space *, tinkc_error *err);
/* The log-sum-exp of logits in two parts, as the training forward has it, so that log-probs at
 * temperature 1 agree with its own in every bit. */
typedef struct tke_norm {
    tke_real max, log_sum;
} tke_norm;
static inline tke_real tke_log_prob(tke_real logit, tke_norm norm)
{
    return (logit - norm.max) - norm.log_sum;
}

/* Draws one token and its log-prob by the rule in d; does not use d's want and result pointers. */
bool tke_sample_draw(const tke_real *logits, size_t n, tke_norm, const tke_draw *d,
                     tke_sample_space *, int32_t *token, float *logprob, tinkc_error *err);

/* The k most probable tokens, descending, lower id first on ties; beyond n: token 0, -99999. */
void tke_top_k(const tke_real *logits, size_t n, tke_norm, size_t k, int32_t *tokens,
               float *logprobs);

#endif
