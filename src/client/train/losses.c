/* losses.c - losses for tinkc_forward_backward_custom that are ready to use.
 *
 * Pure maths: log-probabilities in, a number and its gradients out. Formulas stand above the loops;
 * tests compare the gradients with finite differences.
 */
#include <math.h>

#include "client/core/client_priv.h"
#include "tinkc/train.h"

/* ln(1 + e^x) without overflow. */
static double softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static double sigmoid(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

static double weight_at(const tinkc_tensor *weights, size_t k)
{
    tinkc_f32s w = tinkc_tensor_f32s(weights);
    return k < w.len ? (double)w.data[k] : weights ? 0.0 : 1.0;
}

/* sum_k w_k logprob_k of example i */
static double weighted_sum(const tinkc_loss *loss, size_t i)
{
    tinkc_f32s p = tinkc_tensor_f32s(tinkc_loss_logprobs(loss, i));
    const tinkc_tensor *w = tinkc_batch_tensor(tinkc_loss_batch(loss), i, "weights");
    double sum = 0;
    for (size_t k = 0; k < p.len; k++)
        sum += weight_at(w, k) * (double)p.data[k];
    return sum;
}

static void add_gradient(tinkc_loss *loss, size_t i, double factor)
{
    size_t n = tinkc_loss_logprobs(loss, i)->count;
    const tinkc_tensor *w = tinkc_batch_tensor(tinkc_loss_batch(loss), i, "weights");
    float *grad = tinkc_loss_grad(loss, i);
    for (size_t k = 0; k < n; k++)
        grad[k] += (float)(factor * weight_at(w, k));
}

static bool check_dpo(const tinkc_loss *loss, const tinkc_dpo *dpo, tinkc_error *err)
{
    size_t n = tinkc_batch_count(tinkc_loss_batch(loss));
    if (!dpo)
        return tkc_fail(err, TINKC_E_ARGUMENT, "user: must be a tinkc_dpo");
    if (!tkc_all_zero(dpo->reserved, sizeof dpo->reserved))
        return tkc_fail(err, TINKC_E_ARGUMENT, "reserved: must be zero");
    if (n % 2 || dpo->n != n || !dpo->reference)
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "n: must be the number of examples, which come in pairs");
    if (!isfinite(dpo->beta) || dpo->beta <= 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "beta: must be above 0");
    for (size_t i = 0; i < n; i++)
        if (!isfinite(dpo->reference[i]))
            return tkc_fail(err, TINKC_E_ARGUMENT, "reference: number %zu is not finite", i);
    return true;
}

/* With r_c, r_r = sum(w logprob) - reference of chosen and rejected, and m = beta (r_c - r_r):
 *
 *     loss = mean over pairs of -ln sigmoid(m) = mean of softplus(-m)
 *     d loss / d logprob_c,k = -beta sigmoid(-m) w_k / pairs      (rejected: the opposite sign)
 */
bool tinkc_loss_dpo(tinkc_loss *loss, void *user, tinkc_error *err)
{
    const tinkc_dpo *dpo = user;
    if (!check_dpo(loss, dpo, err))
        return false;
    size_t pairs = dpo->n / 2;
    double total = 0, right = 0, margin = 0, chosen = 0, rejected = 0;
    for (size_t i = 0; i < pairs; i++) {
        double c = weighted_sum(loss, 2 * i) - dpo->reference[2 * i];
        double r = weighted_sum(loss, 2 * i + 1) - dpo->reference[2 * i + 1];
        double m = dpo->beta * (c - r);
        double pull = dpo->beta * sigmoid(-m) / (double)pairs;
        total += softplus(-m);
        right += c > r;
        margin += m;
        chosen += dpo->beta * c;
        rejected += dpo->beta * r;
        add_gradient(loss, 2 * i, -pull);
        add_gradient(loss, 2 * i + 1, pull);
    }
    double n = (double)pairs; /* no batch is empty */
    tinkc_loss_set(loss, total / n);
    return tinkc_loss_metric(loss, "dpo_loss", total / n, err) &&
           tinkc_loss_metric(loss, "accuracy", right / n, err) &&
           tinkc_loss_metric(loss, "margin", margin / n, err) &&
           tinkc_loss_metric(loss, "chosen_reward", chosen / n, err) &&
           tinkc_loss_metric(loss, "rejected_reward", rejected / n, err);
}

/* One position: K log-probabilities l of the student, K teacher probabilities t, of which those
 * above 0 count. The student is renormalised over them: s_k = exp(l_k) / sum_j exp(l_j).
 *
 *     KL = sum_k s_k (ln s_k - ln t_k)
 *     d KL / d l_k = s_k (ln s_k - ln t_k - KL)
 */
static double position_kl(const float *l, const float *t, size_t n, float *grad)
{
    /* Relative to the largest: exp of the values themselves could overflow or vanish. */
    double top = -INFINITY, sum = 0, kl = 0;
    for (size_t k = 0; k < n; k++)
        if (t[k] > 0 && (double)l[k] > top)
            top = (double)l[k];
    for (size_t k = 0; k < n; k++)
        if (t[k] > 0)
            sum += exp((double)l[k] - top);
    double norm = top + log(sum);
    for (size_t k = 0; k < n; k++)
        if (t[k] > 0)
            kl += exp((double)l[k] - norm) * ((double)l[k] - norm - log((double)t[k]));
    for (size_t k = 0; k < n; k++)
        if (t[k] > 0) {
            double ln_s = (double)l[k] - norm;
            grad[k] = (float)(exp(ln_s) * (ln_s - log((double)t[k]) - kl));
        }
    return kl;
}

static bool any_positive(const float *t, size_t n)
{
    for (size_t k = 0; k < n; k++)
        if (t[k] > 0)
            return true;
    return false;
}

/* Summed over positions that count; the metric is the mean. */
bool tinkc_loss_reverse_kl(tinkc_loss *loss, void *user, tinkc_error *err)
{
    const tinkc_batch *batch = tinkc_loss_batch(loss);
    size_t n = tinkc_batch_count(batch);
    double total = 0, positions = 0;
    if (user)
        return tkc_fail(err, TINKC_E_ARGUMENT, "user: must be NULL");
    for (size_t i = 0; i < n; i++) {
        const tinkc_tensor *targets = tinkc_batch_tensor(batch, i, "target_tokens");
        tinkc_f32s l = tinkc_tensor_f32s(tinkc_loss_logprobs(loss, i));
        tinkc_f32s t = tinkc_tensor_f32s(tinkc_batch_tensor(batch, i, "weights"));
        if (!targets || targets->ndim != 2 || t.len != l.len || targets->shape[1] < 1)
            return tkc_fail(err, TINKC_E_TENSOR,
                            "example %zu: target_tokens and weights must be matrices of one shape",
                            i);
        size_t k = (size_t)targets->shape[1];
        float *grad = tinkc_loss_grad(loss, i);
        for (size_t at = 0; at + k <= l.len; at += k)
            if (any_positive(t.data + at, k)) {
                total += position_kl(l.data + at, t.data + at, k, grad + at);
                positions++;
            }
    }
    tinkc_loss_set(loss, total);
    return tinkc_loss_metric(loss, "reverse_kl", positions > 0 ? total / positions : 0, err);
}
