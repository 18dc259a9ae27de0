/* preference.c - losses over preferences: DPO, IPO, KTO, with sums or means of log-probabilities.
 *
 * With s = sum(w * logp) of an example (divided by sum(w) with by_length), r = s - reference, and
 * m = r_chosen - r_rejected of a pair:
 *
 *     DPO   mean of -log sigmoid(beta * m)
 *     IPO   mean of (m - 1 / (2 beta))^2
 *     KTO   mean of 1 - sigmoid(beta * (r - kl)) for good examples, of 1 - sigmoid(beta * (kl - r))
 *           for bad ones; kl is a constant, the mean of r over mismatched examples, at least 0
 */
#include <math.h>

#include "base/mem.h"
#include "tinkc/recipes.h"

typedef struct sums {
    double value, scale; /* of one example: r, and what its log-probabilities are divided by */
} sums;

static double sigmoid(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

/* log(1 + exp(x)) without overflow. */
static double softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static sums sum_up(tinkc_f32s lp, tinkc_f32s w, double reference, bool by_length)
{
    double value = 0, count = 0;
    for (size_t k = 0; k < lp.len && k < w.len; k++) {
        value += (double)w.data[k] * (double)lp.data[k];
        count += (double)w.data[k];
    }
    double scale = by_length && count > 0 ? count : 1;
    return (sums){ (value - reference) / scale, scale };
}

static sums sum_of(const tinkc_loss *loss, size_t i, const tinkc_preference *how)
{
    return sum_up(tinkc_tensor_f32s(tinkc_loss_logprobs(loss, i)),
                  tinkc_tensor_f32s(tinkc_batch_tensor(tinkc_loss_batch(loss), i, "weights")),
                  how->reference[i], how->by_length);
}

/* d loss / d r, spread over the example's tokens. */
static void push(tinkc_loss *loss, size_t i, double slope, double scale)
{
    tinkc_f32s w = tinkc_tensor_f32s(tinkc_batch_tensor(tinkc_loss_batch(loss), i, "weights"));
    tinkc_f32s lp = tinkc_tensor_f32s(tinkc_loss_logprobs(loss, i));
    float *grad = tinkc_loss_grad(loss, i);
    for (size_t k = 0; grad && k < lp.len && k < w.len; k++)
        grad[k] = (float)(slope * (double)w.data[k] / scale);
}

double tinkc_recipe_kto_kl(const tinkc_fwdbwd *got, const tinkc_batch *batch,
                           const double *reference, size_t n, bool by_length, tinkc_error *err)
{
    double sum = 0;
    if (!tkc_failed(err) && (!got || !reference || !n || tinkc_batch_count(batch) != n))
        tkc_fail(err, TINKC_E_ARGUMENT, "kto_kl: needs a reference for each example");
    for (size_t i = 0; i < n && !tkc_failed(err); i++) {
        sums one = sum_up(tinkc_tensor_f32s(tinkc_fwdbwd_output(got, i, "logprobs")),
                          tinkc_tensor_f32s(tinkc_batch_tensor(batch, i, "weights")), reference[i],
                          by_length);
        sum += one.value;
    }
    if (!tkc_failed(err) && !isfinite(sum))
        tkc_fail(err, TINKC_E_BAD_RESPONSE, "kto_kl: a log-probability is not finite");
    return tkc_failed(err) || sum < 0 ? 0 : sum / (double)n;
}

typedef struct totals {
    double loss, right, margin, chosen, rejected;
    size_t n_chosen, n_rejected, n;
} totals;

static void pair_loss(tinkc_loss *loss, size_t i, const tinkc_preference *how, double n, totals *t)
{
    sums c = sum_of(loss, i, how), r = sum_of(loss, i + 1, how);
    double m = c.value - r.value, slope;
    if (how->kind == TINKC_PREFER_IPO) {
        double off = m - 1 / (2 * how->beta);
        t->loss += off * off;
        slope = 2 * off;
    } else {
        t->loss += softplus(-how->beta * m);
        slope = -how->beta * sigmoid(-how->beta * m);
    }
    push(loss, i, slope / n, c.scale);
    push(loss, i + 1, -slope / n, r.scale);
    t->right += m > 0;
    t->margin += how->beta * m;
    t->chosen += how->beta * c.value;
    t->rejected += how->beta * r.value;
    t->n++;
    t->n_chosen++;
    t->n_rejected++;
}

static void single_loss(tinkc_loss *loss, size_t i, const tinkc_preference *how, double n,
                        totals *t)
{
    sums s = sum_of(loss, i, how);
    double sign = how->good[i] ? 1 : -1, x = how->beta * sign * (s.value - how->kl);
    double p = sigmoid(x);
    t->loss += 1 - p;
    push(loss, i, -how->beta * sign * p * (1 - p) / n, s.scale);
    t->right += x > 0;
    t->margin += x;
    if (how->good[i]) {
        t->chosen += how->beta * s.value;
        t->n_chosen++;
    } else {
        t->rejected += how->beta * s.value;
        t->n_rejected++;
    }
    t->n++;
}

static bool check(const tinkc_loss *loss, const tinkc_preference *how, tinkc_error *err)
{
    size_t n = tinkc_batch_count(tinkc_loss_batch(loss));
    bool singles = how && how->kind == TINKC_PREFER_KTO;
    if (!how || !how->reference || how->n != n || !(how->beta > 0) ||
        how->kind < TINKC_PREFER_DPO || how->kind > TINKC_PREFER_KTO)
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "preference: needs a reference for each example and beta above 0");
    if (singles ? !how->good : n % 2 != 0)
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        singles ? "preference: KTO needs to know which examples are good"
                                : "preference: examples must come in pairs");
    for (size_t i = 0; i < n; i++)
        if (!isfinite(how->reference[i]))
            return tkc_fail(err, TINKC_E_ARGUMENT, "preference: reference %zu is not finite", i);
    return true;
}

bool tinkc_recipe_loss_preference(tinkc_loss *loss, void *user, tinkc_error *err)
{
    const tinkc_preference *how = user;
    totals t = { 0 };
    if (!check(loss, how, err))
        return false;
    bool singles = how->kind == TINKC_PREFER_KTO;
    double n = (double)(singles ? how->n : how->n / 2);
    for (size_t i = 0; i < how->n; i += singles ? 1 : 2)
        if (singles)
            single_loss(loss, i, how, n, &t);
        else
            pair_loss(loss, i, how, n, &t);
    tinkc_loss_set(loss, t.loss / n);
    tinkc_loss_metric(loss, "dpo_loss", t.loss / n, err);
    tinkc_loss_metric(loss, "accuracy", t.right / n, err);
    tinkc_loss_metric(loss, "margin", t.margin / n, err);
    tinkc_loss_metric(loss, "chosen_reward", t.n_chosen ? t.chosen / (double)t.n_chosen : 0, err);
    tinkc_loss_metric(loss, "rejected_reward", t.n_rejected ? t.rejected / (double)t.n_rejected : 0,
                      err);
    return !tkc_failed(err);
}
