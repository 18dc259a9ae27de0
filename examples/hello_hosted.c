/* hello_hosted.c - the same as hello.c at the hosted service, or at any server that speaks its protocol. */
#include <stdio.h>
#include <tinkc/tinkc.h>

/* What the library waits for: a service that cannot be reached is tried for five minutes. */
static void say(int32_t level, const char *line, void *user)
{
    (void)level, (void)user;
    fprintf(stderr, "%s\n", line);
}

int main(int argc, char **argv)
{
    const char *model = argc > 1 ? argv[1] : "Qwen/Qwen3-8B";
    tinkc_error err = { 0 }; /* once set, every later call is a no-op: look once, at the end */
    /* $TINKER_API_KEY, $TINKER_BASE_URL */
    tinkc_client *client = tinkc_client_new(&(tinkc_client_options){ .log = say }, &err);
    tinkc_sampler *sampler =
        tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = model }, &err);
    const tinkc_tokenizer *tok = tinkc_sampler_tokenizer(sampler, &err); /* from the hub, once */

    tinkc_tokens prompt = { 0 };
    tinkc_text text = { 0 };
    tinkc_chat_encode(tok, "[{\"role\":\"user\",\"content\":\"What is 7 + 5?\"}]",
                      &(tinkc_chat_options){ .generation_prompt = true }, &prompt, &err);
    tinkc_sampling how = TINKC_SAMPLING_INIT;
    how.max_tokens = 256;
    tinkc_future *f = tinkc_sample(sampler, prompt.data, prompt.len, 1, &how, &err);
    const tinkc_sequence *seq = tinkc_samples_at(tinkc_future_samples(f, 60000, &err), 0);
    if (seq)
        puts(tinkc_decode(tok, seq->tokens.data, seq->tokens.len - 1, &text, &err));
    if (err.code)
        fprintf(stderr, "%s\n", err.message);

    tinkc_future_free(f); /* in any order; NULL is fine */
    tinkc_tokens_free(&prompt);
    tinkc_text_free(&text);
    tinkc_sampler_free(sampler);
    tinkc_client_free(client);
    return err.code != 0;
}
