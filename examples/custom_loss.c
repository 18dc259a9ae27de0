/* custom_loss.c - a loss of your own, and the check that its gradients are right.
 *
 * The loss: mean over examples of softplus(-2 s), s = sum of weights * logprobs, plus an entropy
 * term. It is written twice: on a tape, which works the gradients out, and as plain C. Inside the
 * loss function every gradient of the tape is compared with a difference quotient of the plain form.
 */
#include <math.h>
#include <stdio.h>

#include <tinkc/engine.h>
#include <tinkc/tinkc.h>

enum { EXAMPLES = 3, LEN = 6, CONTEXT = 2 };
static const double ENTROPY = 0.05;

/* The formula, once more. `shift` is added to the log-probability of token k of example i. */
static double plain(const tinkc_loss *loss, size_t i, size_t k, double shift)
{
    const tinkc_batch *batch = tinkc_loss_batch(loss);
    double mean = 0, entropy = 0;
    for (size_t e = 0; e < EXAMPLES; e++) {
        tinkc_f32s p = tinkc_tensor_f32s(tinkc_loss_logprobs(loss, e));
        tinkc_f32s w = tinkc_tensor_f32s(tinkc_batch_tensor(batch, e, "weights"));
        double s = 0;
        for (size_t t = 0; t < p.len; t++)
            s += (double)w.data[t] * ((double)p.data[t] + (e == i && t == k ? shift : 0));
        mean += log1p(exp(-2 * s)) / EXAMPLES; /* no overflow: s is a few units */
        entropy += s;
    }
    return mean + ENTROPY * entropy;
}

/* The largest difference between the tape's gradients and difference quotients. */
static double worst_gradient(tinkc_loss *loss)
{
    const double h = 1e-4;
    double worst = 0;
    for (size_t i = 0; i < EXAMPLES; i++) {
        const float *grad = tinkc_loss_grad(loss, i);
        for (size_t k = 0; k < tinkc_tensor_f32s(tinkc_loss_logprobs(loss, i)).len; k++) {
            double quotient = (plain(loss, i, k, h) - plain(loss, i, k, -h)) / (2 * h);
            worst = fmax(worst, fabs(quotient - (double)grad[k]));
        }
    }
    return worst;
}

static bool my_loss(tinkc_loss *loss, void *user, tinkc_error *err)
{
    (void)user;
    tinkc_tape *t = tinkc_tape_new(loss, err);
    tinkc_var weighted = tinkc_tape_mul(t, tinkc_tape_logprobs(t), tinkc_tape_weights(t));
    tinkc_var s = tinkc_tape_sum_tokens(t, weighted);
    tinkc_var main_part =
        tinkc_tape_mean(t, tinkc_tape_softplus(t, tinkc_tape_mul(t, tinkc_tape_number(t, -2), s)));
    tinkc_var entropy =
        tinkc_tape_mul(t, tinkc_tape_number(t, ENTROPY), tinkc_tape_sum(t, weighted));
    tinkc_var whole = tinkc_tape_add(t, main_part, entropy);
    if (!tinkc_tape_backward(t, whole, err))
        return false;
    return tinkc_loss_metric(loss, "my_loss", tinkc_tape_value(t, whole), err) &&
           tinkc_loss_metric(loss, "gradient_error", worst_gradient(loss), err);
}

int main(int argc, char **argv)
{
    static const int32_t ids[EXAMPLES][LEN] = { { 5, 6, 7, 40, 41, 42 },
                                                { 8, 9, 10, 43, 44, 45 },
                                                { 11, 12, 13, 46, 47, 48 } };
    tinkc_error err = { 0 };
    double worst = 0, loss = (double)NAN;
    tinkc_engine *engine = tinkc_engine_new(NULL, &err);
    tinkc_engine_add_model(engine, "nano", argc > 1 ? argv[1] : "models/nano", &err);
    tinkc_client *client = tinkc_client_new(
        &(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, &err);
    tinkc_trainer *trainer =
        tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "nano", .rank = 8 }, &err);
    tinkc_batch *batch = tinkc_batch_new(client, &err);
    for (size_t i = 0; i < EXAMPLES; i++)
        tinkc_batch_add_sft(batch, ids[i], LEN, CONTEXT, &err);

    tinkc_adam adam = TINKC_ADAM_INIT;
    adam.learning_rate = 1e-3;
    for (int step = 0; step < 5 && !err.code; step++) {
        tinkc_future *grads = tinkc_forward_backward_custom(trainer, batch, TINKC_CUSTOM_TOGETHER,
                                                            NULL, my_loss, NULL, &err);
        tinkc_future *moved = tinkc_optim_step(trainer, &adam, &err);
        const tinkc_fwdbwd *out = tinkc_future_fwdbwd(grads, TINKC_FOREVER, &err);
        double error = tinkc_fwdbwd_metric(out, "gradient_error", (double)INFINITY);
        loss = tinkc_fwdbwd_metric(out, "my_loss", loss);
        worst = fmax(worst, error);
        if (tinkc_future_wait(moved, TINKC_FOREVER, &err))
            printf("step %d  loss %.4f  gradient error %.1e\n", step, loss, error);
        tinkc_future_free(moved);
        tinkc_future_free(grads);
    }

    tinkc_batch_free(batch);
    tinkc_trainer_free(trainer);
    tinkc_client_free(client);
    tinkc_engine_free(engine);
    if (err.code)
        fprintf(stderr, "custom_loss: %s (%s)\n", err.message, tinkc_code_name(err.code));
    return err.code != 0 || worst > 1e-4;
}
