/* tape.h - losses of your own without writing gradients.
 *
 * A tape records what you compute from the log-probabilities and then walks back through it (reverse
 * mode): you write the loss, it fills in the gradients. Inside a tinkc_loss_fn (train.h):
 *
 *     // GRPO: clipped importance ratio times advantage, summed over the weighted tokens.
 *     bool grpo(tinkc_loss *loss, void *user, tinkc_error *err)
 *     {
 *         const struct rollouts *r = user;
 *         tinkc_tape *t = tinkc_tape_new(loss, err);
 *         tinkc_var ratio = tinkc_tape_exp(t, tinkc_tape_sub(t, tinkc_tape_logprobs(t),
 *                                                            tinkc_tape_tokens(t, r->sampled)));
 *         tinkc_var gain = tinkc_tape_sequences(t, r->advantages);
 *         tinkc_var safe = tinkc_tape_clamp(t, ratio, 0.8, 1.2);
 *         tinkc_var best = tinkc_tape_min(t, tinkc_tape_mul(t, ratio, gain),
 *                                            tinkc_tape_mul(t, safe, gain));
 *         tinkc_var sum = tinkc_tape_sum(t, tinkc_tape_mul(t, best, tinkc_tape_weights(t)));
 *         return tinkc_tape_backward(t, tinkc_tape_neg(t, sum), err);
 *     }
 *
 *     // DPO, examples in pairs (chosen, rejected), reference sums in user:
 *     //     margin = slice(d, 0, 2) - slice(d, 1, 2),  d = sum_tokens(logprobs * weights) - reference
 *     //     loss = mean(softplus(-beta * margin))
 *     // KL to a reference (the k3 estimate): mean of exp(x) - x - 1,  x = reference - logprobs
 *     // Entropy bonus: add coefficient * sum(logprobs * weights) to the loss
 *
 * A value is a number, one number per sequence, or one number per token of each sequence. Two
 * values of different kinds broadcast: a number to everything, a sequence's number to all its
 * tokens. Values that cannot be combined, and any other mistake, are recorded and reported by
 * tinkc_tape_backward; until then every call accepts what the one before returned.
 *
 * tinkc_loss_record (train.h) runs the same function at the service, where it can be computed
 * example by example.
 */
#ifndef TINKC_TAPE_H
#define TINKC_TAPE_H

#include "train.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tinkc_tape tinkc_tape; /* one evaluation [one thread] */

typedef struct tinkc_var { /* a value on a tape; copy it freely */
    int32_t index;         /* below 0 = a mistake was made      */
} tinkc_var;

/* Valid until the loss function returns; nothing to free. NULL without memory: the calls below take
 * it, and tinkc_tape_backward fails. */
TINKC_API tinkc_tape *tinkc_tape_new(tinkc_loss *, tinkc_error *);

/* ---- inputs ---- */

/* The log-probabilities, one for each token: gradients are taken with respect to them. */
TINKC_API tinkc_var tinkc_tape_logprobs(tinkc_tape *);
/* The batch's weights, one for each token; 1 where an example has none. */
TINKC_API tinkc_var tinkc_tape_weights(tinkc_tape *);
/* The examples' input of this name: one number for each token, or one for each example. */
TINKC_API tinkc_var tinkc_tape_token_input(tinkc_tape *, const char *name);
TINKC_API tinkc_var tinkc_tape_sequence_input(tinkc_tape *, const char *name);
/* rows[i] has as many numbers as example i has log-probabilities. Copied. */
TINKC_API tinkc_var tinkc_tape_tokens(tinkc_tape *, const float *const *rows);
/* One number for each example. Copied. */
TINKC_API tinkc_var tinkc_tape_sequences(tinkc_tape *, const double *values);
TINKC_API tinkc_var tinkc_tape_number(tinkc_tape *, double value);

/* ---- element by element ---- */

TINKC_API tinkc_var tinkc_tape_add(tinkc_tape *, tinkc_var a, tinkc_var b);
TINKC_API tinkc_var tinkc_tape_sub(tinkc_tape *, tinkc_var a, tinkc_var b);
TINKC_API tinkc_var tinkc_tape_mul(tinkc_tape *, tinkc_var a, tinkc_var b);
TINKC_API tinkc_var tinkc_tape_div(tinkc_tape *, tinkc_var a, tinkc_var b);
TINKC_API tinkc_var tinkc_tape_min(tinkc_tape *, tinkc_var a, tinkc_var b); /* equal: a's gradient */
TINKC_API tinkc_var tinkc_tape_max(tinkc_tape *, tinkc_var a, tinkc_var b); /* likewise            */
TINKC_API tinkc_var tinkc_tape_neg(tinkc_tape *, tinkc_var a);
TINKC_API tinkc_var tinkc_tape_exp(tinkc_tape *, tinkc_var a);
TINKC_API tinkc_var tinkc_tape_log(tinkc_tape *, tinkc_var a);
TINKC_API tinkc_var tinkc_tape_sigmoid(tinkc_tape *, tinkc_var a);
TINKC_API tinkc_var tinkc_tape_softplus(tinkc_tape *, tinkc_var a); /* ln(1 + e^a), without overflow */
/* Between low and high; no gradient outside. */
TINKC_API tinkc_var tinkc_tape_clamp(tinkc_tape *, tinkc_var a, double low, double high);
/* The same value, through which no gradient passes. */
TINKC_API tinkc_var tinkc_tape_constant(tinkc_tape *, tinkc_var a);

/* ---- reductions ---- */

/* Over the tokens of each sequence; the mean of none is 0. */
TINKC_API tinkc_var tinkc_tape_sum_tokens(tinkc_tape *, tinkc_var a);
TINKC_API tinkc_var tinkc_tape_mean_tokens(tinkc_tape *, tinkc_var a);
/* Over everything, to one number. */
TINKC_API tinkc_var tinkc_tape_sum(tinkc_tape *, tinkc_var a);
TINKC_API tinkc_var tinkc_tape_mean(tinkc_tape *, tinkc_var a);
/* Of one number a sequence: those of sequences first, first + step, ... */
TINKC_API tinkc_var tinkc_tape_slice(tinkc_tape *, tinkc_var a, size_t first, size_t step);

/* ---- the end ---- */

/* The value of a number; NAN of anything else, and while tinkc_loss_record records. For metrics. */
TINKC_API double tinkc_tape_value(const tinkc_tape *, tinkc_var);

/* Sets the loss to this number and the gradients of every log-probability. Call it once, last.
 * Errors: ARGUMENT (the first mistake made on the tape, by the name of its call), MEMORY. */
TINKC_API bool tinkc_tape_backward(tinkc_tape *, tinkc_var loss, tinkc_error *);

#ifdef __cplusplus
}
#endif
#endif
