/* dpo.c - preferences instead of answers: direct preference optimisation with a loss of one's own.
 *
 * Examples come in pairs, the better one first. A reference model's log-probabilities say how
 * likely both were before; the loss pulls the pair apart from there. On the engine in this process.
 */
#include <stdio.h>

#include <tinkc/engine.h>
#include <tinkc/tinkc.h>

enum { PAIRS = 2, LEN = 6 };

/* sum(weights * logprobs) of each example under the model as it is now. */
static void score(tinkc_trainer *trainer, const tinkc_batch *batch, double *sums, tinkc_error *err)
{
    tinkc_future *f = tinkc_forward(trainer, batch, TINKC_CROSS_ENTROPY, NULL, err);
    const tinkc_fwdbwd *out = tinkc_future_fwdbwd(f, TINKC_FOREVER, err);
    for (size_t i = 0; i < tinkc_fwdbwd_count(out); i++) {
        tinkc_f32s p = tinkc_tensor_f32s(tinkc_fwdbwd_output(out, i, "logprobs"));
        tinkc_f32s w = tinkc_tensor_f32s(tinkc_batch_tensor(batch, i, "weights"));
        sums[i] = 0;
        for (size_t k = 0; k < p.len && k < w.len; k++)
            sums[i] += (double)w.data[k] * (double)p.data[k];
    }
    tinkc_future_free(f);
}

static void train(tinkc_trainer *trainer, const tinkc_batch *batch, tinkc_dpo *dpo,
                  tinkc_error *err)
{
    tinkc_adam adam = TINKC_ADAM_INIT;
    for (int step = 0; step < 5 && !err->code; step++) {
        /* Waits for the first pass, computes the loss here, returns the future of the second. */
        tinkc_future *grads = tinkc_forward_backward_custom(trainer, batch, TINKC_CUSTOM_TOGETHER,
                                                            NULL, tinkc_loss_dpo, dpo, err);
        tinkc_future *moved = tinkc_optim_step(trainer, &adam, err);
        const tinkc_fwdbwd *out = tinkc_future_fwdbwd(grads, TINKC_FOREVER, err);
        if (tinkc_future_wait(moved, TINKC_FOREVER, err))
            printf("step %d  dpo_loss %.4f  margin %.4f\n", step,
                   tinkc_fwdbwd_metric(out, "dpo_loss", 0), tinkc_fwdbwd_metric(out, "margin", 0));
        tinkc_future_free(moved);
        tinkc_future_free(grads);
    }
}

int main(int argc, char **argv)
{
    static const int32_t examples[2 * PAIRS][LEN] = {
        { 5, 6, 7, 40, 41, 42 },
        { 5, 6, 7, 50, 51, 52 },
        { 8, 9, 10, 43, 44, 45 },
        { 8, 9, 10, 53, 54, 55 },
    };
    tinkc_error err = { 0 };
    double reference[2 * PAIRS] = { 0 };
    tinkc_dpo dpo = { .reference = reference, .n = 2 * PAIRS, .beta = 0.1 };
    tinkc_engine *engine = tinkc_engine_new(NULL, &err);
    tinkc_engine_add_model(engine, "nano", argc > 1 ? argv[1] : "models/nano", &err);
    tinkc_client *client = tinkc_client_new(
        &(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, &err);
    tinkc_trainer *trainer =
        tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "nano", .rank = 8 }, &err);
    tinkc_batch *batch = tinkc_batch_new(client, &err);
    for (size_t i = 0; i < 2 * PAIRS; i++)
        tinkc_batch_add_sft(batch, examples[i], LEN, 3, &err); /* three tokens of question */

    score(trainer, batch, reference, &err);
    train(trainer, batch, &dpo, &err);

    tinkc_batch_free(batch);
    tinkc_trainer_free(trainer);
    tinkc_client_free(client);
    tinkc_engine_free(engine);
    if (err.code)
        fprintf(stderr, "dpo: %s (%s)\n", err.message, tinkc_code_name(err.code));
    return err.code != 0;
}
