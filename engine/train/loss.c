/* loss.c - the table of losses: names, inputs, arithmetic.
 *
 * A loss is one row: its name, keys and inputs as data, and its functions. No code outside the row
 * depends on which loss it is. May touch: its arguments. Must not: know the model. A token whose
 * weight or advantage is zero gives exactly zero without any exponential.
 */
#include "train/loss.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

/* ---- arithmetic ---- */

static tke_real cross_entropy(const tke_loss *loss, const tke_token *t, tke_real *g,
                              tke_loss_sums *sums)
{
    const tke_datum *d = t->datum;
    tke_real l = 0;
    bool any = false;
    (void)loss;
    for (size_t j = 0; j < d->k; j++) {
        tke_real w = d->weights ? (tke_real)d->weights[t->i * d->k + j] : 0;
        g[j] = w == 0 ? 0 : -w;
        if (w != 0) {
            l += -w * t->lp[j];
            any = true;
        }
    }
    sums->n_loss_tokens += any;
    return l;
}

/* Ratio statistics of a token that carries loss. A ratio that overflows where the loss clips it
 * away must not make a metric NaN or infinite. */
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

/* A token of a policy loss: advantage a, log-prob q of the sampler, ratio r, and r within the
 * bounds. False if it carries no loss. */
typedef struct policy {
    tke_real a, q, r, clipped;
} policy;

static void clip(const tke_loss *loss, const tke_token *t, policy *p)
{
    const tke_datum *d = t->datum;
    tke_real low = d->clip_low ? (tke_real)d->clip_low[t->i] : loss->clip_low;
    tke_real high = d->clip_high ? (tke_real)d->clip_high[t->i] : loss->clip_high;
    p->clipped = p->r < low ? low : p->r;
    if (p->clipped > high)
        p->clipped = high;
}

static void count(tke_loss_sums *sums, const tke_token *t, const policy *p)
{
    sums->n_loss_tokens++;
    count_ratio(sums, (double)p->r, (double)p->q - (double)t->lp[0], p->clipped != p->r);
}

static bool policy_of(const tke_token *t, policy *p)
{
    const tke_datum *d = t->datum;
    assert(d->advantages && d->logprobs); /* tke_datum_bind refuses a datum without them */
    *p = (policy){ .a = (tke_real)d->advantages[t->i], .q = (tke_real)d->logprobs[t->i] };
    return p->a != 0;
}

static tke_real importance_sampling(const tke_loss *loss, const tke_token *t, tke_real *g,
                                    tke_loss_sums *sums)
{
    policy p;
    (void)loss;
    if (!policy_of(t, &p))
        return 0;
    p.r = p.clipped = tke_real_exp(t->lp[0] - p.q);
    count(sums, t, &p);
    return g[0] = -(p.r * p.a);
}

/* -min(r A, clip(r) A); the gradient is nonzero only where the first is chosen. */
static tke_real clipped_surrogate(const tke_loss *loss, const tke_token *t, policy *p, tke_real *g,
                                  tke_loss_sums *sums)
{
    clip(loss, t, p);
    count(sums, t, p);
    bool free_side = p->r * p->a <= p->clipped * p->a;
    g[0] = free_side ? -(p->r * p->a) : 0;
    return -(free_side ? p->r * p->a : p->clipped * p->a);
}

static tke_real ppo(const tke_loss *loss, const tke_token *t, tke_real *g, tke_loss_sums *sums)
{
    policy p;
    if (!policy_of(t, &p))
        return 0;
    p.r = tke_real_exp(t->lp[0] - p.q);
    return clipped_surrogate(loss, t, &p, g, sums);
}

/* The ratio of a whole sequence, exp(mean(lp - q)) over its tokens with loss, in place of each
 * token's own; no gradient through it (arXiv 2507.18071, the form with an advantage per token). */
static tke_real gspo(const tke_loss *loss, const tke_token *t, tke_real *g, tke_loss_sums *sums)
{
    const double most = 10; /* exp of more says only "far away" */
    policy p;
    if (!policy_of(t, &p))
        return 0;
    assert(t->whole && t->whole->n > 0);
    p.r = (tke_real)exp(fmin(t->whole->log_ratio / (double)t->whole->n, most));
    return clipped_surrogate(loss, t, &p, g, sums);
}

static void gspo_gather(const tke_token *t, tke_loss_whole *whole)
{
    policy p;
    if (!policy_of(t, &p))
        return;
    whole->log_ratio += (double)t->lp[0] - (double)p.q;
    whole->n++;
}

static tke_real cispo(const tke_loss *loss, const tke_token *t, tke_real *g, tke_loss_sums *sums)
{
    policy p;
    if (!policy_of(t, &p))
        return 0;
    p.r = tke_real_exp(t->lp[0] - p.q);
    clip(loss, t, &p);
    count(sums, t, &p);
    g[0] = -(p.clipped * p.a);
    return -(p.clipped * p.a * t->lp[0]);
}

static tke_real dro(const tke_loss *loss, const tke_token *t, tke_real *g, tke_loss_sums *sums)
{
    policy p;
    if (!policy_of(t, &p) && !loss->strict && p.q == 0)
        return 0;
    tke_real off = t->lp[0] - p.q;
    g[0] = -p.a + loss->beta * off;
    sums->n_loss_tokens += p.a != 0;
    count_ratio(sums, exp((double)off), -(double)off, false);
    return -(p.a * t->lp[0] - loss->beta / 2 * off * off);
}

/* ---- the table ---- */

#define KEY(name, field)                                                                           \
    {                                                                                              \
        name, offsetof(tke_loss, field)                                                            \
    }
#define CLIP_KEYS     KEY("clip_low_threshold", clip_low), KEY("clip_high_threshold", clip_high)
#define INPUT(which)  (1u << TKE_INPUT_##which)
#define POLICY_INPUTS (INPUT(TARGETS) | INPUT(LOGPROBS) | INPUT(ADVANTAGES))
#define CLIP_INPUTS   (INPUT(CLIP_LOW) | INPUT(CLIP_HIGH))

static const tke_loss_row rows[] = {
    [TKE_CROSS_ENTROPY] = { .name = "cross_entropy",
                            .needs = INPUT(TARGETS) | INPUT(WEIGHTS),
                            .needs_forward = INPUT(TARGETS),
                            .takes = INPUT(WEIGHTS),
                            .soft = true,
                            .token = cross_entropy },
    [TKE_IMPORTANCE_SAMPLING] = { .name = "importance_sampling",
                                  .needs = POLICY_INPUTS,
                                  .needs_forward = POLICY_INPUTS,
                                  .ratios = true,
                                  .token = importance_sampling },
    [TKE_PPO] = { .name = "ppo",
                  .keys = { CLIP_KEYS },
                  .clip_low = 0.8f,
                  .clip_high = 1.2f,
                  .needs = POLICY_INPUTS,
                  .needs_forward = POLICY_INPUTS,
                  .takes = CLIP_INPUTS,
                  .ratios = true,
                  .token = ppo },
    [TKE_CISPO] = { .name = "cispo",
                    .keys = { CLIP_KEYS },
                    .clip_low = 0.0f,
                    .clip_high = 4.0f,
                    .needs = POLICY_INPUTS,
                    .needs_forward = POLICY_INPUTS,
                    .takes = CLIP_INPUTS,
                    .ratios = true,
                    .token = cispo },
    [TKE_DRO] = { .name = "dro",
                  .keys = { KEY("beta", beta) },
                  .beta = 0.05,
                  .needs = POLICY_INPUTS,
                  .needs_forward = POLICY_INPUTS,
                  .ratios = true,
                  .carry = TKE_CARRY_LOGPROBS,
                  .token = dro },
    [TKE_GSPO] = { .name = "gspo",
                   .keys = { CLIP_KEYS },
                   .clip_low = 0.8f,
                   .clip_high = 1.2f,
                   .needs = POLICY_INPUTS,
                   .needs_forward = POLICY_INPUTS,
                   .takes = CLIP_INPUTS,
                   .ratios = true,
                   .token = gspo,
                   .gather = gspo_gather },
    [TKE_CUSTOM] = { .name = "custom", .soft = true }, /* pass_losses.c runs its graph */
};
enum { N_ROWS = sizeof rows / sizeof *rows };

/* Loss names of the protocol that are not supported, and why. */
static const struct {
    const char *name, *why;
} refused[] = {
    { "stable_reinforce", "its formula is not published; use importance_sampling, ppo or gspo" },
    { "custom", "it needs a loss_id in loss_fn_config (create_custom_loss)" },
};

const tke_loss_row *tke_loss_row_of(const tke_loss *loss)
{
    assert(loss->kind >= 0 && loss->kind < N_ROWS);
    return &rows[loss->kind];
}

static bool set_key(tke_loss *loss, const tke_loss_key *key, tinkc_error *err)
{
    const tke_loss_row *row = tke_loss_row_of(loss);
    int len = (int)(key->name.len < 60 ? key->name.len : 60);
    if (!isfinite(key->value))
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "loss_fn_config '%.*s' is not finite", len,
                        key->name.data);
    for (size_t i = 0; i < TKE_LOSS_KEYS && row->keys[i].name; i++)
        if (tkc_str_is(key->name, row->keys[i].name)) {
            *(tke_real *)((char *)loss + row->keys[i].offset) = (tke_real)key->value;
            loss->n_keys_given++;
            return true;
        }
    return tkc_fail(err, TINKC_E_BAD_REQUEST, "loss_fn_config has no key '%.*s' for %s", len,
                    key->name.data, row->name);
}

static bool fail_unknown(tinkc_str name, tinkc_error *err)
{
    char known[160] = "";
    size_t used = 0;
    int len = (int)(name.len < 60 ? name.len : 60);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (tkc_str_is(name, refused[i].name))
            return tkc_fail(err, TINKC_E_BAD_REQUEST, "loss_fn '%s' is not supported: %s",
                            refused[i].name, refused[i].why);
    for (size_t i = 0; i < TKE_CUSTOM; i++) {
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "",
                                 rows[i].name);
        assert(used < sizeof known);
    }
    return tkc_fail(err, TINKC_E_BAD_REQUEST, "unknown loss_fn '%.*s'; known: %s", len,
                    name.data ? name.data : "", known);
}

bool tke_loss_parse(tke_loss *loss, tinkc_str name, const tke_loss_key *keys, size_t n_keys,
                    bool strict, tinkc_error *err)
{
    int32_t kind = 0;
    if (tkc_failed(err))
        return false;
    while (kind < TKE_CUSTOM && !tkc_str_is(name, rows[kind].name))
        kind++;
    if (kind == TKE_CUSTOM) /* one with a graph is not made from its name */
        return fail_unknown(name, err);
    *loss = (tke_loss){ .kind = kind,
                        .clip_low = rows[kind].clip_low,
                        .clip_high = rows[kind].clip_high,
                        .beta = (tke_real)rows[kind].beta,
                        .strict = strict };
    for (size_t k = 0; k < n_keys; k++)
        if (!set_key(loss, &keys[k], err))
            return false;
    if (loss->clip_low > loss->clip_high)
        return tkc_fail(err, TINKC_E_BAD_REQUEST,
                        "clip_low_threshold is above clip_high_threshold");
    return true;
}

tke_loss tke_loss_custom(const tke_graph *graph)
{
    assert(graph);
    return (tke_loss){ .kind = TKE_CUSTOM, .graph = graph };
}

tke_real tke_loss_token(const tke_loss *loss, const tke_token *t, tke_real *g, tke_loss_sums *sums)
{
    const tke_loss_row *row = tke_loss_row_of(loss);
    assert(t->i < t->datum->n && (row->soft || t->datum->k == 1));
    sums->n_tokens++;
    g[0] = 0;
    tke_real l = row->token(loss, t, g, sums);
    sums->loss += (double)l;
    return l;
}
