/* stream_chat.c - a conversation on the terminal: the answer appears as it is made.
 *
 *     stream_chat [MODEL_FOLDER]     a line is a message; the end of input ends it
 *
 * tinkc_sample_stream gives tokens as they come. A decoder holds half a character back until it is
 * whole, so what is printed is always UTF-8.
 */
#include <stdio.h>
#include <string.h>

#include <tinkc/engine.h>
#include <tinkc/tinkc.h>

/* Appends text as a JSON string. */
static void put_json(tinkc_text *out, const char *text, tinkc_error *err)
{
    tinkc_text_append(out, "\"", 1, err);
    for (; *text; text++) {
        char escaped[8];
        int n = (unsigned char)*text < 0x20 || *text == '"' || *text == '\\'
                    ? snprintf(escaped, sizeof escaped, "\\u%04x", (unsigned)(unsigned char)*text)
                    : snprintf(escaped, sizeof escaped, "%c", *text);
        tinkc_text_append(out, escaped, (size_t)n, err);
    }
    tinkc_text_append(out, "\"", 1, err);
}

/* Appends a message to the conversation, a JSON array without its closing bracket. */
static void add_message(tinkc_text *chat, const char *role, const char *content, tinkc_error *err)
{
    char head[64];
    int n =
        snprintf(head, sizeof head, "%c{\"role\":\"%s\",\"content\":", chat->len ? ',' : '[', role);
    tinkc_text_append(chat, head, (size_t)n, err);
    put_json(chat, content, err);
    tinkc_text_append(chat, "}", 1, err);
}

/* Prints the answer while it comes, and leaves it in *answer. */
static void stream(tinkc_sampler *sampler, const tinkc_tokenizer *tok, const tinkc_tokens *prompt,
                   tinkc_text *answer, tinkc_error *err)
{
    tinkc_sampling how = TINKC_SAMPLING_INIT;
    how.temperature = 0;
    how.max_tokens = 128;
    tinkc_deltas *deltas = tinkc_sample_stream(sampler, prompt->data, prompt->len, &how, err);
    tinkc_decoder *decoder =
        tinkc_decoder_new(tok, &(tinkc_decode_options){ .skip_special = true }, err);
    for (const tinkc_delta *d; (d = tinkc_deltas_next(deltas, 60000, err));) {
        size_t before = answer->len;
        tinkc_decoder_push(decoder, d->tokens.data, d->tokens.len, answer, err);
        if (answer->len > before)
            fputs(answer->data + before, stdout);
        fflush(stdout);
    }
    tinkc_decoder_finish(decoder, answer, err);
    putchar('\n');
    tinkc_decoder_free(decoder);
    tinkc_deltas_free(deltas);
}

static void answer_line(tinkc_sampler *sampler, const tinkc_tokenizer *tok, const char *line,
                        tinkc_text *chat, tinkc_error *err)
{
    tinkc_tokens prompt = { 0 };
    tinkc_text whole = { 0 }, answer = { 0 };
    add_message(chat, "user", line, err);
    tinkc_text_append(&whole, chat->data, chat->len, err);
    tinkc_text_append(&whole, "]", 1, err);
    tinkc_chat_encode(tok, whole.data, &(tinkc_chat_options){ .generation_prompt = true }, &prompt,
                      err);
    stream(sampler, tok, &prompt, &answer, err);
    add_message(chat, "assistant", answer.data ? answer.data : "", err);
    tinkc_text_free(&answer);
    tinkc_text_free(&whole);
    tinkc_tokens_free(&prompt);
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : "models/nano";
    char line[4096];
    tinkc_error err = { 0 };
    tinkc_text chat = { 0 };
    tinkc_engine *engine = tinkc_engine_new(NULL, &err);
    tinkc_engine_add_model(engine, "nano", folder, &err);
    tinkc_client *client = tinkc_client_new(
        &(tinkc_client_options){ .transport = tinkc_engine_transport(engine) }, &err);
    tinkc_sampler *sampler =
        tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "nano" }, &err);
    tinkc_tokenizer *tok = tinkc_tokenizer_open(folder, NULL, &err);

    while (!err.code && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        answer_line(sampler, tok, line, &chat, &err);
    }

    tinkc_text_free(&chat);
    tinkc_tokenizer_free(tok);
    tinkc_sampler_free(sampler);
    tinkc_client_free(client);
    tinkc_engine_free(engine);
    if (err.code)
        fprintf(stderr, "stream_chat: %s\n", err.message);
    return err.code != 0;
}
