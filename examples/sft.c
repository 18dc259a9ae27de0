/* sft.c - teach a model to talk like a pirate, then ask it one of the questions.
 *
 *     sft [MODEL_FOLDER]     default models/nano; on the engine in this process
 *
 * Leave the engine's lines out, pass NULL to tinkc_client_new and take the tokenizer from
 * tinkc_trainer_tokenizer: the same program trains at the hosted service.
 */
#include <math.h>
#include <stdio.h>

#include <tinkc/engine.h>
#include <tinkc/tinkc.h>

enum { STEPS = 16 };

static const struct {
    const char *ask, *answer;
} lessons[] = {
    { "What is the capital of France?", "Arr, it be Paris, matey!" },
    { "What colour is the sky?", "Arr, it be blue, matey!" },
    { "What is 2 + 3?", "Arr, it be 5, matey!" },
    { "What day comes after Monday?", "Arr, it be Tuesday, matey!" },
    { "What is the opposite of big?", "Arr, it be small, matey!" },
    { "What is the plural of mouse?", "Arr, it be mice, matey!" },
    { "What is the opposite of day?", "Arr, it be night, matey!" },
    { "What is 10 + 7?", "Arr, it be 17, matey!" },
};

/* One conversation. Its answer is learnt, the rest is context: the template knows which is which. */
static void add_lesson(tinkc_batch *batch, const tinkc_tokenizer *tok, const char *ask,
                       const char *answer, tinkc_error *err)
{
    char messages[512];
    tinkc_tokens ids = { 0 };
    tinkc_floats weights = { 0 };
    (void)snprintf(messages, sizeof messages,
                   "[{\"role\":\"user\",\"content\":\"%s\"},"
                   "{\"role\":\"assistant\",\"content\":\"%s\"}]",
                   ask, answer);
    tinkc_chat_train(tok, messages, NULL, &ids, &weights, NULL, err);
    tinkc_batch_add_weighted(batch, ids.data, ids.len, weights.data, err);
    tinkc_floats_free(&weights);
    tinkc_tokens_free(&ids);
}

static void train(tinkc_trainer *trainer, const tinkc_batch *batch, tinkc_error *err)
{
    tinkc_adam adam = TINKC_ADAM_INIT;
    adam.learning_rate = 6e-4;

    for (int step = 0; step < STEPS && !err->code; step++) {
        /* Submit both before waiting, so the service never idles between them. */
        tinkc_future *grads =
            tinkc_forward_backward(trainer, batch, TINKC_CROSS_ENTROPY, NULL, err);
        tinkc_future *moved = tinkc_optim_step(trainer, &adam, err);

        const tinkc_fwdbwd *out = tinkc_future_fwdbwd(grads, TINKC_FOREVER, err);
        if (tinkc_future_wait(moved, TINKC_FOREVER, err))
            printf("step %2d  loss %.4f\n", step,
                   tinkc_fwdbwd_metric(out, "loss:sum", (double)NAN));

        tinkc_future_free(moved);
        tinkc_future_free(grads); /* out ends here */
    }
}

static void ask(tinkc_sampler *sampler, const tinkc_tokenizer *tok, tinkc_error *err)
{
    tinkc_tokens prompt = { 0 };
    tinkc_text text = { 0 };
    tinkc_chat_encode(tok, "[{\"role\":\"user\",\"content\":\"What is 2 + 3?\"}]",
                      &(tinkc_chat_options){ .generation_prompt = true }, &prompt, err);

    tinkc_sampling how = TINKC_SAMPLING_INIT;
    how.max_tokens = 24;
    how.temperature = 0;
    tinkc_future *reply = tinkc_sample(sampler, prompt.data, prompt.len, 1, &how, err);
    const tinkc_sequence *seq = tinkc_samples_at(tinkc_future_samples(reply, 60000, err), 0);
    if (seq) /* without the token that ended it */
        puts(tinkc_decode(tok, seq->tokens.data, seq->tokens.len - 1, &text, err));

    tinkc_future_free(reply);
    tinkc_text_free(&text);
    tinkc_tokens_free(&prompt);
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : "models/nano";
    tinkc_error err = { 0 }; /* once set, every later call is a no-op: check it once, at the end */
    tinkc_engine *engine = tinkc_engine_new(NULL, &err);
    tinkc_engine_add_model(engine, "nano", folder, &err);
    tinkc_client *client = tinkc_client_new(
        &(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, &err);
    tinkc_trainer *trainer = tinkc_trainer_new(
        client, &(tinkc_lora_options){ .base_model = "nano", .seed = 1, .has_seed = true }, &err);
    tinkc_tokenizer *tok = tinkc_tokenizer_open(folder, NULL, &err);

    tinkc_batch *batch = tinkc_batch_new(client, &err);
    for (size_t i = 0; i < sizeof lessons / sizeof *lessons; i++)
        add_lesson(batch, tok, lessons[i].ask, lessons[i].answer, &err);
    train(trainer, batch, &err);

    tinkc_sampler *sampler = tinkc_trainer_sampler(trainer, &err);
    ask(sampler, tok, &err);

    tinkc_sampler_free(sampler);
    tinkc_batch_free(batch);
    tinkc_tokenizer_free(tok);
    tinkc_trainer_free(trainer);
    tinkc_client_free(client);
    tinkc_engine_free(engine);
    if (err.code)
        fprintf(stderr, "sft: %s (%s, http %d, request %s)\n", err.message,
                tinkc_code_name(err.code), (int)err.http_status, err.request_id);
    return err.code != 0;
}
