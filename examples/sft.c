/* sft.c - teach a model pig latin, then ask it for some.
 *
 * With $TINKER_API_KEY it trains at the service. Without, or with --mock, it talks to the mock that
 * comes with the library: the same calls, a loss that falls, and answers that mean nothing. There a
 * token is a byte, because a mock has no tokenizer.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tinkc/sys/mock.h>
#include <tinkc/tinkc.h>

static const struct {
    const char *ask, *answer;
} lessons[] = {
    { "English: banana split\nPig Latin:", " anana-bay plit-say\n" },
    { "English: quantum physics\nPig Latin:", " uantum-qay ysics-phay\n" },
};

/* tok NULL: one token for each byte. */
static void encode(const tinkc_tokenizer *tok, const char *text, tinkc_tokens *ids,
                   tinkc_error *err)
{
    if (tok)
        tinkc_encode(tok, text, ids, err);
    else
        for (const char *c = text; *c; c++)
            tinkc_tokens_append(ids, &(int32_t){ (unsigned char)*c }, 1, err);
}

/* The question is context; only the answer is learnt. */
static void add_lesson(tinkc_batch *batch, const tinkc_tokenizer *tok, const char *ask,
                       const char *answer, tinkc_error *err)
{
    tinkc_tokens ids = { 0 };
    encode(tok, ask, &ids, err);
    size_t context = ids.len;
    encode(tok, answer, &ids, err);
    tinkc_batch_add_sft(batch, ids.data, ids.len, context, err);
    tinkc_tokens_free(&ids);
}

static void train(tinkc_trainer *trainer, const tinkc_batch *batch, tinkc_error *err)
{
    tinkc_adam adam = TINKC_ADAM_INIT;
    adam.learning_rate = 2e-4;

    for (int step = 0; step < 20 && !err->code; step++) {
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

static void show(const tinkc_tokenizer *tok, size_t i, const tinkc_sequence *seq, tinkc_error *err)
{
    tinkc_text text = { 0 };
    if (tok)
        printf("%zu:%s\n", i, tinkc_decode(tok, seq->tokens.data, seq->tokens.len, &text, err));
    else
        printf("%zu: %zu tokens, the first %d\n", i, seq->tokens.len, (int)seq->tokens.data[0]);
    tinkc_text_free(&text);
}

static void ask(tinkc_sampler *sampler, const tinkc_tokenizer *tok, const char *question,
                tinkc_error *err)
{
    tinkc_tokens prompt = { 0 };
    encode(tok, question, &prompt, err);

    tinkc_sampling how = TINKC_SAMPLING_INIT;
    how.max_tokens = 24;
    how.temperature = 0.7f;

    tinkc_future *reply = tinkc_sample(sampler, prompt.data, prompt.len, 4, &how, err);
    const tinkc_samples *got = tinkc_future_samples(reply, 60 * 1000, err);
    for (size_t i = 0; i < tinkc_samples_count(got); i++)
        show(tok, i, tinkc_samples_at(got, i), err);

    tinkc_future_free(reply);
    tinkc_tokens_free(&prompt);
}

int main(int argc, char **argv)
{
    tinkc_error err = { 0 }; /* once set, every later call is a no-op: check it once, at the end */
    bool pretend = !getenv("TINKER_API_KEY") || (argc > 1 && strcmp(argv[1], "--mock") == 0);

    tinkc_client_options options = { 0 }; /* $TINKER_API_KEY */
    tinkc_mock *mock = pretend ? tinkc_mock_new(TINKC_MOCK_SERVICE, &err) : NULL;
    if (mock)
        options.transport = tinkc_mock_transport(mock);
    tinkc_client *client = tinkc_client_new(&options, &err);
    tinkc_trainer *trainer = tinkc_trainer_new(
        client, &(tinkc_lora_options){ .base_model = "Qwen/Qwen3-8B", .rank = 16 }, &err);
    const tinkc_tokenizer *tok = pretend ? NULL : tinkc_trainer_tokenizer(trainer, &err);

    tinkc_batch *batch = tinkc_batch_new(client, &err);
    for (size_t i = 0; i < sizeof lessons / sizeof *lessons; i++)
        add_lesson(batch, tok, lessons[i].ask, lessons[i].answer, &err);
    train(trainer, batch, &err);

    tinkc_sampler *sampler = tinkc_trainer_sampler(trainer, &err);
    ask(sampler, tok, "English: coffee break\nPig Latin:", &err);

    tinkc_sampler_free(sampler);
    tinkc_batch_free(batch);
    tinkc_trainer_free(trainer);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
    if (err.code)
        fprintf(stderr, "sft: %s (%s, http %d, request %s)\n", err.message,
                tinkc_code_name(err.code), (int)err.http_status, err.request_id);
    return err.code != 0;
}
