/* tool_calls.c - a model that calls a tool: the program runs it and gives the result back.
 *
 *     tool_calls [MODEL_FOLDER]
 *
 * The shipped model knows no multiplication and no tools. It first learns from a few conversations
 * to write "calculate: A * B" and to repeat what the tool says; then the loop below plays the part
 * that every program with tools has: sample, look for a call, run it, continue the conversation.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tinkc/engine.h>
#include <tinkc/tinkc.h>

enum { STEPS = 16, LESSONS = 12, MOST_TURNS = 4 };

static void add_lesson(tinkc_batch *batch, const tinkc_tokenizer *tok, int a, int b,
                       tinkc_error *err)
{
    char messages[512];
    tinkc_tokens ids = { 0 };
    tinkc_floats weights = { 0 };
    (void)snprintf(messages, sizeof messages,
                   "[{\"role\":\"user\",\"content\":\"What is %d times %d?\"},"
                   "{\"role\":\"assistant\",\"content\":\"calculate: %d * %d\"},"
                   "{\"role\":\"tool\",\"content\":\"%d\"},"
                   "{\"role\":\"assistant\",\"content\":\"It is %d.\"}]",
                   a, b, a, b, a * b, a * b);
    tinkc_chat_train(tok, messages, NULL, &ids, &weights, NULL, err); /* both answers are learnt */
    tinkc_batch_add_weighted(batch, ids.data, ids.len, weights.data, err);
    tinkc_floats_free(&weights);
    tinkc_tokens_free(&ids);
}

static void train(tinkc_client *client, tinkc_trainer *trainer, const tinkc_tokenizer *tok,
                  tinkc_error *err)
{
    tinkc_adam adam = TINKC_ADAM_INIT;
    tinkc_batch *batch = tinkc_batch_new(client, err);
    adam.learning_rate = 1e-3;
    for (int i = 0; i < LESSONS; i++)
        add_lesson(batch, tok, i * 37 % 89 + 10, i * 53 % 89 + 10, err);
    for (int step = 0; step < STEPS && !err->code; step++) {
        tinkc_future *grads =
            tinkc_forward_backward(trainer, batch, TINKC_CROSS_ENTROPY, NULL, err);
        tinkc_future *moved = tinkc_optim_step(trainer, &adam, err);
        tinkc_future_wait(moved, TINKC_FOREVER, err);
        tinkc_future_free(moved);
        tinkc_future_free(grads);
    }
    tinkc_batch_free(batch);
}

/* The model's next message; borrowed from *text. */
static const char *sample(tinkc_sampler *sampler, const tinkc_tokenizer *tok, const char *chat,
                          tinkc_text *text, tinkc_error *err)
{
    char messages[2048];
    const char *answer = "";
    tinkc_tokens prompt = { 0 };
    tinkc_sampling how = TINKC_SAMPLING_INIT;
    how.temperature = 0;
    how.max_tokens = 32;
    (void)snprintf(messages, sizeof messages, "[%s]", chat);
    tinkc_chat_encode(tok, messages, &(tinkc_chat_options){ .generation_prompt = true }, &prompt,
                      err);
    tinkc_future *f = tinkc_sample(sampler, prompt.data, prompt.len, 1, &how, err);
    const tinkc_sequence *seq = tinkc_samples_at(tinkc_future_samples(f, 60000, err), 0);
    if (seq)
        answer = tinkc_decode(tok, seq->tokens.data, seq->tokens.len - 1, text, err);
    tinkc_future_free(f);
    tinkc_tokens_free(&prompt);
    return answer;
}

/* Until an answer is not a call: the messages so far are a JSON array without its brackets. What the
 * model writes comes from outside: here it has neither quotes nor line ends, else it is refused. */
static bool converse(tinkc_sampler *sampler, const tinkc_tokenizer *tok, const char *question,
                     tinkc_error *err)
{
    char chat[1536];
    tinkc_text text = { 0 };
    bool answered = false;
    int used = snprintf(chat, sizeof chat, "{\"role\":\"user\",\"content\":\"%s\"}", question);
    for (int turn = 0; turn < MOST_TURNS && !answered && !err->code; turn++) {
        const char *said = sample(sampler, tok, chat, &text, err);
        long a, b;
        printf("model  %s\n", said);
        if (strpbrk(said, "\"\\\n"))
            break;
        if (sscanf(said, "calculate: %5ld * %5ld", &a, &b) != 2) {
            answered = turn > 0;
            break;
        }
        printf("tool   %ld\n", a * b);
        used += snprintf(chat + used, sizeof chat - (size_t)used,
                         ",{\"role\":\"assistant\",\"content\":\"%s\"},"
                         "{\"role\":\"tool\",\"content\":\"%ld\"}",
                         said, a * b);
    }
    tinkc_text_free(&text);
    return answered;
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : "models/nano";
    tinkc_error err = { 0 };
    tinkc_engine *engine = tinkc_engine_new(NULL, &err);
    tinkc_engine_add_model(engine, "nano", folder, &err);
    tinkc_client *client = tinkc_client_new(
        &(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, &err);
    tinkc_lora_options lora = { .base_model = "nano", .seed = 1, .has_seed = true };
    tinkc_trainer *trainer = tinkc_trainer_new(client, &lora, &err);
    tinkc_tokenizer *tok = tinkc_tokenizer_open(folder, NULL, &err);

    train(client, trainer, tok, &err);
    tinkc_sampler *sampler = tinkc_trainer_sampler(trainer, &err);
    bool answered = converse(sampler, tok, "What is 47 times 63?", &err);

    tinkc_sampler_free(sampler);
    tinkc_tokenizer_free(tok);
    tinkc_trainer_free(trainer);
    tinkc_client_free(client);
    tinkc_engine_free(engine);
    if (err.code)
        fprintf(stderr, "tool_calls: %s\n", err.message);
    return err.code != 0 || !answered;
}
