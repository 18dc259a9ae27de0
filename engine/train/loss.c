/* loss.c - losses token by token, and the checks of their inputs.
 *
 * May touch: its arguments. Must not: know the model. A token whose weight or advantage is zero
 * gives exactly zero without any exponential.
 */
#include "train/loss.h"

#include <assert.h>
#include <math.h>

static const struct {
    const char *name;
    float low, high;
    bool clips;
} losses[] = {
    [TKE_CROSS_ENTROPY] = { "cross_entropy", 0, 0, false },
    [TKE_IMPORTANCE_SAMPLING] = { "importance_sampling", 0, 0, false },
    [TKE_PPO] = { "ppo", 0.8f, 1.2f, true },
    [TKE_CISPO] = { "cispo", 0.0f, 4.0f, true },
    [TKE_DRO] = { "dro", 0, 0, false },
};
enum { N_LOSSES = sizeof losses / sizeof *losses };

const char *tke_loss_name(const tke_loss *loss)
{
    assert(loss->kind >= 0 && loss->kind < N_LOSSES);
    return losses[loss->kind].name;
}

static bool set_key(tke_loss *loss, const tke_loss_key *key, tinkc_error *err)
{
    int len = (int)(key->name.len < 60 ? key->name.len : 60);
    if (!isfinite(key->value))
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "loss_fn_config '%.*s' is not finite", len,
                        key->name.data);
    if (losses[loss->kind].clips && tkc_str_is(key->name, "clip_low_threshold")) {
        loss->clip_low = (tke_real)key->value;
    } else if (losses[loss->kind].clips && tkc_str_is(key->name, "clip_high_threshold")) {
        loss->clip_high = (tke_real)key->value;
    } else if (loss->kind == TKE_DRO && tkc_str_is(key->name, "beta")) {
        loss->beta = (tke_real)key->value;
        loss->beta_defaulted = false;
    } else {
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "loss_fn_config has no key '%.*s' for %s", len,
                        key->name.data, losses[loss->kind].name);
    }
    return true;
}

bool tke_loss_parse(tke_loss *loss, tinkc_str name, const tke_loss_key *keys, size_t n_keys,
                    bool strict, tinkc_error *err)
{
    if (tkc_failed(err))
        return false;
    for (int i = 0; i < N_LOSSES; i++) {
        if (!tkc_str_is(name, losses[i].name))
            continue;
        *loss = (tke_loss){ .kind = i,
                            .clip_low = losses[i].low,
                            .clip_high = losses[i].high,
                            .beta = (tke_real)0.05,
                            .beta_defaulted = i == TKE_DRO,
                            .strict = strict };
        for (size_t k = 0; k < n_keys; k++)
            if (!set_key(loss, &keys[k], err))
                return false;
        if (losses[i].clips && loss->clip_low > loss->clip_high)
            return tkc_fail(err, TINKC_E_BAD_REQUEST,
                            "clip_low_threshold is above clip_high_threshold");
        return true;
    }
    return tkc_fail(
        err, TINKC_E_BAD_REQUEST,
        "unknown loss_fn '%.*s'; known: cross_entropy, importance_sampling, ppo, cispo, dro",
        (int)(name.len < 60 ? name.len : 60), name.data ? name.data : "");
}

/* ---- inputs ---- */

enum { TARGETS, WEIGHTS, LOGPROBS, ADVANTAGES, CLIP_LOW, CLIP_HIGH, N_INPUTS };
static const struct {
    const char *name;
    bool is_float;
} inputs_known[N_INPUTS] = {
    [TARGETS] = { "target_tokens", false },      [WEIGHTS] = { "weights", true },
    [LOGPROBS] = { "logprobs", true },           [ADVANTAGES] = { "advantages", true },
    [CLIP_LOW] = { "clip_low_threshold", true }, [CLIP_HIGH] = { "clip_high_threshold", true },
};

/* 0 = unknown to this loss, 1 = may be there, 2 = must. */
static int wanted(const tke_loss *loss, int input, bool forward_only)
{
    if (input == TARGETS)
        return 2;
    if (input == WEIGHTS)
        return loss->kind != TKE_CROSS_ENTROPY ? 0 : forward_only ? 1 : 2;
    if (loss->kind == TKE_CROSS_ENTROPY)
        return 0;
    if (input == LOGPROBS || input == ADVANTAGES)
        return 2;
    return losses[loss->kind].clips ? 1 : 0;
}

static bool check_input(const tke_input *in, int which, const tke_loss *loss, size_t n,
                        size_t index, tinkc_error *err)
{
    const char *name = inputs_known[which].name;
    bool soft = loss->kind == TKE_CROSS_ENTROPY && (which == TARGETS || which == WEIGHTS);
    if (in->is_float != inputs_known[which].is_float)
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "datum %zu: '%s' must be %s", index, name,
                        inputs_known[which].is_float ? "float32" : "int64");
    if (in->rows != n)
        return tkc_fail(err, TINKC_E_BAD_REQUEST,
                        "datum %zu: '%s' has length %zu, model_input has %zu", index, name,
                        in->rows, n);
    if (in->cols == 0 || (!soft && in->cols != 1))
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "datum %zu: '%s' must have one column, not %zu",
                        index, name, in->cols);
    if (!in->is_float)
        return true;
    const float *x = in->data;
    for (size_t i = 0; i < in->rows * in->cols; i++)
        if (!isfinite(x[i]))
            return tkc_fail(err, TINKC_E_BAD_REQUEST,
                            "NonFiniteInTensor: datum %zu: '%s' holds NaN or infinity at %zu",
                            index, name, i);
    return true;
}

static void bind_one(tke_datum *d, int which, const tke_input *in)
{
    assert(in->rows == d->n && which >= 0 && which < N_INPUTS);
    switch (which) {
    case TARGETS:
        d->targets = in->data;
        d->k = in->cols;
        break;
    case WEIGHTS:
        d->weights = in->data;
        break;
    case LOGPROBS:
        d->logprobs = in->data;
        break;
    case ADVANTAGES:
        d->advantages = in->data;
        break;
    case CLIP_LOW:
        d->clip_low = in->data;
        break;
    default:
        d->clip_high = in->data;
        break;
    }
}

bool tke_datum_bind(tke_datum *d, const tke_loss *loss, const tke_input *inputs, size_t n_inputs,
                    bool forward_only, size_t index, tinkc_error *err)
{
    const tke_input *found[N_INPUTS] = { 0 };
    *d = (tke_datum){ .tokens = d->tokens, .n = d->n, .k = 1 };
    for (size_t i = 0; i < n_inputs; i++) {
        int which = 0;
        while (which < N_INPUTS && !tkc_str_is(inputs[i].name, inputs_known[which].name))
            which++;
        if (which == N_INPUTS && !loss->strict && tkc_str_is(inputs[i].name, "mask"))
            continue;
        if (which == N_INPUTS || !wanted(loss, which, forward_only))
            return tkc_fail(err, TINKC_E_BAD_REQUEST, "datum %zu: %s takes no input '%.*s'", index,
                            tke_loss_name(loss),
                            (int)(inputs[i].name.len < 60 ? inputs[i].name.len : 60),
                            inputs[i].name.data);
        if (found[which])
            return tkc_fail(err, TINKC_E_BAD_REQUEST, "datum %zu: '%s' is given twice", index,
                            inputs_known[which].name);
        if (!check_input(&inputs[i], which, loss, d->n, index, err))
            return false;
        found[which] = &inputs[i];
        bind_one(d, which, &inputs[i]);
    }
    for (int which = 0; which < N_INPUTS; which++)
        if (wanted(loss, which, forward_only) == 2 && !found[which])
            return tkc_fail(err, TINKC_E_BAD_REQUEST, "datum %zu: '%s' is missing; %s needs it",
                            index, inputs_known[which].name, tke_loss_name(loss));
    if (found[WEIGHTS] && found[WEIGHTS]->cols != d->k)
        return tkc_fail(err, TINKC_E_BAD_REQUEST,
                        "datum %zu: 'weights' has %zu columns, 'target_tokens' has %zu", index,
                        found[WEIGHTS]->cols, d->k);
    return true;
}

/* May position i, target j carry gradient? Only then must its target be a token. */
static bool carries(const tke_datum *d, size_t i, size_t j)
{
    if (d->weights)
        return d->weights[i * d->k + j] != 0;
    return d->advantages && d->advantages[i] != 0;
}

bool tke_datum_check(const tke_datum *d, size_t vocab, size_t context, size_t index,
                     tinkc_error *err)
{
    if (d->n == 0)
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "datum %zu: model_input is empty", index);
    if (d->n > context)
        return tkc_fail(err, TINKC_E_BAD_REQUEST,
                        "PromptTooLong: datum %zu has %zu tokens, the context is %zu", index, d->n,
                        context);
    for (size_t i = 0; i < d->n; i++)
        if (d->tokens[i] < 0 || (size_t)d->tokens[i] >= vocab)
            return tkc_fail(err, TINKC_E_BAD_REQUEST,
                            "datum %zu: token %d at %zu is outside the vocabulary of %zu", index,
                            (int)d->tokens[i], i, vocab);
    for (size_t i = 0; i < d->n; i++)
        for (size_t j = 0; j < d->k; j++) {
            int64_t t = d->targets[i * d->k + j];
            if ((t < 0 || (uint64_t)t >= vocab) && carries(d, i, j))
                return tkc_fail(err, TINKC_E_BAD_REQUEST,
                                "datum %zu: target %lld at %zu is outside the vocabulary of %zu",
                                index, (long long)t, i, vocab);
        }
    return true;
}

/* ---- arithmetic ---- */

static tke_real cross_entropy(const tke_datum *d, size_t i, const tke_real *lp, tke_real *g,
                              tke_loss_sums *sums)
{
    tke_real loss = 0;
    bool any = false;
    for (size_t j = 0; j < d->k; j++) {
        tke_real w = d->weights ? (tke_real)d->weights[i * d->k + j] : 0;
        g[j] = w == 0 ? 0 : -w;
        if (w != 0) {
            loss += -w * lp[j];
            any = true;
        }
    }
    sums->n_loss_tokens += any;
    return loss;
}

/* Ratio statistics of a token that carries loss. A ratio that overflows where the loss clips it
 * away must not make a metric that is no number. */
static void count_ratio(tke_loss_sums *sums, double ratio, double kl, bool clipped)
{
    const double most = 1e30;
    ratio = ratio < most ? ratio : most;
    sums->ratio += ratio;
    sums->kl += kl;
    if (sums->n_ratio == 0 || ratio > sums->ratio_max)
        sums->ratio_max = ratio;
    sums->n_clipped += clipped;
    sums->n_ratio++;
    assert(sums->n_clipped <= sums->n_ratio && sums->n_ratio <= sums->n_tokens);
}

static tke_real dro(const tke_loss *loss, tke_real a, tke_real q, tke_real lp, tke_real *g,
                    tke_loss_sums *sums)
{
    if (!loss->strict && a == 0 && q == 0)
        return 0;
    tke_real off = lp - q;
    *g = -a + loss->beta * off;
    sums->n_loss_tokens += a != 0;
    count_ratio(sums, exp((double)off), -(double)off, false);
    return -(a * lp - loss->beta / 2 * off * off);
}

tke_real tke_loss_token(const tke_loss *loss, const tke_datum *d, size_t i, const tke_real *lp,
                        tke_real *g, tke_loss_sums *sums)
{
    assert(i < d->n && (loss->kind == TKE_CROSS_ENTROPY || d->k == 1));
    sums->n_tokens++;
    if (loss->kind == TKE_CROSS_ENTROPY) {
        tke_real l = cross_entropy(d, i, lp, g, sums);
        sums->loss += (double)l;
        return l;
    }
    assert(d->advantages && d->logprobs); /* tke_datum_bind refuses a datum without */
    tke_real a = (tke_real)d->advantages[i], q = (tke_real)d->logprobs[i], l = 0;
    g[0] = 0;
    if (loss->kind == TKE_DRO) {
        l = dro(loss, a, q, lp[0], g, sums);
        sums->loss += (double)l;
        return l;
    }
    if (a == 0)
        return 0;
    tke_real r = tke_real_exp(lp[0] - q), c = r;
    tke_real low = d->clip_low ? (tke_real)d->clip_low[i] : loss->clip_low;
    tke_real high = d->clip_high ? (tke_real)d->clip_high[i] : loss->clip_high;
    bool clips = losses[loss->kind].clips;
    if (clips)
        c = r < low ? low : r > high ? high : r;
    switch (loss->kind) {
    case TKE_PPO:
        l = -(r * a <= c * a ? r * a : c * a);
        g[0] = r * a <= c * a ? -(r * a) : 0;
        break;
    case TKE_CISPO:
        l = -(c * a * lp[0]);
        g[0] = -(c * a);
        break;
    default:
        l = g[0] = -(r * a);
        break;
    }
    sums->n_loss_tokens++;
    count_ratio(sums, (double)r, (double)q - (double)lp[0], clips && (r < low || r > high));
    sums->loss += (double)l;
    return l;
}
