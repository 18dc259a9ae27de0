/* hello.c - the README's program: ask the shipped model one question, on this machine. */
#include <stdio.h>
#include <tinkc/engine.h>
#include <tinkc/tinkc.h>

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : "models/nano";
    tinkc_error err = { 0 }; /* once set, every later call is a no-op: look once, at the end */
    tinkc_engine *engine = tinkc_engine_new(NULL, &err);
    tinkc_engine_add_model(engine, "nano", folder, &err);
    tinkc_client *client = tinkc_client_new(
        &(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, &err);
    tinkc_sampler *sampler =
        tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "nano" }, &err);
    tinkc_tokenizer *tok = tinkc_tokenizer_open(folder, NULL, &err);

    tinkc_tokens prompt = { 0 };
    tinkc_text text = { 0 };
    tinkc_chat_encode(tok, "[{\"role\":\"user\",\"content\":\"What is 7 + 5?\"}]",
                      &(tinkc_chat_options){ .generation_prompt = true }, &prompt, &err);
    tinkc_sampling how = TINKC_SAMPLING_INIT;
    how.temperature = 0;
    how.max_tokens = 256;
    tinkc_future *f = tinkc_sample(sampler, prompt.data, prompt.len, 1, &how, &err);
    const tinkc_sequence *seq = tinkc_samples_at(tinkc_future_samples(f, 60000, &err), 0);
    bool cut = seq && seq->stop_reason == TINKC_STOP_LENGTH; /* else a token ended it: not shown */
    if (seq)
        puts(tinkc_decode(tok, seq->tokens.data, seq->tokens.len - !cut, &text, &err));
    if (cut)
        fprintf(stderr, "cut after %zu tokens\n", seq->tokens.len);
    if (err.code)
        fprintf(stderr, "%s\n", err.message);

    tinkc_future_free(f); /* in any order; NULL is fine */
    tinkc_tokens_free(&prompt);
    tinkc_text_free(&text);
    tinkc_tokenizer_free(tok);
    tinkc_sampler_free(sampler);
    tinkc_client_free(client);
    tinkc_engine_free(engine);
    return err.code != 0;
}
