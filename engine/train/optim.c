/* optim.c - the optimizer step: clipping, AdamW, its metrics.
 *
 * A step is a transaction: weights, moments and the count of steps change together or not at all.
 *
 * May touch: the adapter it is given. Must not: change it if the gradient is not finite, except to
 * zero that gradient so that the run can continue.
 */
#include <assert.h>
#include <math.h>
#include "train/adapter_state.h"
#include "train/training.h"

bool tke_adam_check(const tke_adam_params *p, tinkc_error *err)
{
    const struct {
        const char *name;
        double value;
        bool ok;
    } rules[] = {
        { "learning_rate must be a number of at least 0", p->learning_rate, p->learning_rate >= 0 },
        { "beta1 must be at least 0 and below 1", p->beta1, p->beta1 >= 0 && p->beta1 < 1 },
        { "beta2 must be at least 0 and below 1", p->beta2, p->beta2 >= 0 && p->beta2 < 1 },
        { "eps must be a number above 0", p->eps, p->eps > 0 },
        { "weight_decay must be a number of at least 0", p->weight_decay, p->weight_decay >= 0 },
        { "grad_clip_norm must be a number of at least 0", p->grad_clip_norm,
          p->grad_clip_norm >= 0 },
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (!rules[i].ok || !isfinite(rules[i].value))
            return tkc_fail(err, TINKC_E_BAD_REQUEST, "%s", rules[i].name);
    return true;
}

static bool forget_gradient(tke_adapter *a, tinkc_error *err)
{
    a->n_fwdbwd = a->n_tokens = a->n_failed = 0;
    return a->device->ops->block_zero(a->device, a->grads, a->layout->n_floats, err);
}

static void metric(tke_metric *list, size_t *n, const char *name, double value)
{
    assert(*n < TKE_MAX_METRICS);
    list[(*n)++] = (tke_metric){ name, value };
}

/* The square root of a block's sum of squares. */
static bool norm_of(tke_adapter *a, const tke_block *b, double *out, tinkc_error *err)
{
    double squares;
    if (!a->device->ops->block_squares(a->device, b, a->layout->n_floats, &squares, err))
        return false;
    *out = sqrt(squares);
    return true;
}

/* Trained weights of LoRA are far below 1. */
bool tke_adapter_is_huge(tke_adapter *a, double *rms)
{
    enum { HUGE_RMS = 1000 };
    tinkc_error ignored = { 0 };
    double norm = 0;
    if (!norm_of(a, a->weights, &norm, &ignored))
        return false;
    *rms = norm / sqrt((double)a->layout->n_floats);
    return *rms > (double)HUGE_RMS;
}

static bool gradient_is_lost(tke_adapter *a, tinkc_error *err)
{
    double rms;
    bool huge = tke_adapter_is_huge(a, &rms);
    forget_gradient(a, err);
    if (!huge)
        return tkc_fail(err, TINKC_E_SERVER,
                        "the accumulated gradient is not finite; it was dropped, nothing changed");
    return tkc_fail(err, TINKC_E_BAD_REQUEST,
                    "the accumulated gradient is not finite; it was dropped, nothing changed. The "
                    "weights are very large (root mean square %.3g): an earlier learning_rate was "
                    "too high; load an earlier checkpoint",
                    rms);
}

bool tke_optim_step(tke_adapter *a, const tke_adam_params *p, tke_metric *metrics,
                    size_t *n_metrics, tinkc_error *err)
{
    double norm = 0, moved = 0, param_norm = 0, clip = 1, rms = 0;
    *n_metrics = 0;
    if (tkc_failed(err) || !tke_adam_check(p, err) || !norm_of(a, a->grads, &norm, err))
        return false;
    if (!isfinite(norm))
        return gradient_is_lost(a, err);
    if (p->grad_clip_norm > 0)
        clip = fmin(1.0, p->grad_clip_norm / (norm + 1e-6));
    assert(clip >= 0 && clip <= 1 && a->step >= 0);
    tke_adam step = { .lr = p->learning_rate,
                      .beta1 = p->beta1,
                      .beta2 = p->beta2,
                      .eps = p->eps,
                      .weight_decay = p->weight_decay,
                      .clip = clip,
                      .t = a->step + 1 };
    if (!a->device->ops->adam(a->device, &step, a->layout->n_floats, a->grads, a->weights, a->m,
                              a->v, &moved, err))
        return false;
    if (isnan(moved))
        return tkc_fail(
            err, TINKC_E_BAD_REQUEST,
            "the step would make weights that are not finite (learning_rate %g, gradient "
            "norm %g); nothing changed and the gradient is kept: try again with a smaller "
            "learning_rate or with grad_clip_norm",
            p->learning_rate, norm);
    a->step++;
    if (!norm_of(a, a->weights, &param_norm, err))
        return false;
    metric(metrics, n_metrics, "optim/grad_norm", norm);
    metric(metrics, n_metrics, "optim/clip_coef", clip);
    metric(metrics, n_metrics, "optim/learning_rate", p->learning_rate);
    metric(metrics, n_metrics, "optim/step", (double)a->step);
    metric(metrics, n_metrics, "optim/param_norm", param_norm);
    metric(metrics, n_metrics, "optim/update_norm", sqrt(moved));
    metric(metrics, n_metrics, "optim/num_fwdbwd", (double)a->n_fwdbwd);
    metric(metrics, n_metrics, "optim/num_tokens", (double)a->n_tokens);
    if (tke_adapter_is_huge(a, &rms)) /* a warning: only then it is there */
        metric(metrics, n_metrics, "optim/weights_too_large", rms);
    if (a->n_failed)
        metric(metrics, n_metrics, "failed_fwdbwd_since_last_step", (double)a->n_failed);
    return forget_gradient(a, err);
}
