/* template_render.c - what it costs to render a conversation, once its template is parsed.
 *
 *     template [TEMPLATE.jinja ...]
 *
 * Without arguments: the templates of tests/data. For each: parsing, and a chat of 20 messages from
 * JSON text to prompt. Prints "NAME parse_us render_us bytes" and, at the end, the slowest
 * rendering. The best of several rounds counts, since other programs run on the machine as well.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "tinkc/tokenizer.h"
#include "chat/chat.h"

enum { MESSAGES = 20, ROUNDS = 30, TIMES = 20 };

static char *conversation(tkc_arena *arena, tinkc_error *err)
{
    static const char *const texts[2] = {
        "Could you explain how the tides work, and why there are two of them each day?",
        "The moon pulls the near side of the ocean more than the Earth's centre, and the centre "
        "more "
        "than the far side.\\n\\nSo the water bulges on both sides, and the Earth turns below them."
    };
    tkc_buf buf;
    tkc_buf_init(&buf, NULL, TKC_BUF_NO_MAX);
    tkc_buf_char(&buf, '[', err);
    for (int i = 0; i < MESSAGES; i++)
        tkc_buf_printf(&buf, err, "%s{\"role\": \"%s\", \"content\": \"%s\"}", i ? ", " : "",
                       i % 2 ? "assistant" : "user", texts[i % 2]);
    tkc_buf_char(&buf, ']', err);
    char *text = tkc_arena_str(arena, tkc_buf_view(&buf), err);
    tkc_buf_free(&buf);
    return text;
}

static double best_parse(tinkc_str text, tinkc_error *err)
{
    double best = 1e9;
    for (int r = 0; r < ROUNDS; r++) {
        int64_t begin = tkc_monotonic_ns();
        tinkc_template *t = tinkc_template_parse(text.data, text.len, NULL, err);
        double us = (double)(tkc_monotonic_ns() - begin) / 1e3;
        tinkc_template_free(t);
        best = us < best ? us : best;
    }
    return best;
}

static double best_render(const tkc_chat_source *source, const char *messages, size_t *bytes,
                          tinkc_error *err)
{
    double best = 1e9;
    tinkc_chat_options o = { .generation_prompt = true };
    tinkc_text out = { 0 };
    for (int r = 0; r < ROUNDS && !err->code; r++) {
        int64_t begin = tkc_monotonic_ns();
        for (int i = 0; i < TIMES; i++) {
            out.len = 0;
            tkc_chat_text(source, messages, &o, &out, err);
        }
        double us = (double)(tkc_monotonic_ns() - begin) / 1e3 / TIMES;
        best = us < best ? us : best;
    }
    *bytes = out.len;
    tinkc_text_free(&out);
    return best;
}

int main(int argc, char **argv)
{
    static char *own[] = { "tests/data/templates/chatml.jinja",
                           "tests/data/templates/thinking.jinja", "tests/data/templates/inst.jinja",
                           "tests/data/templates/blocks.jinja" };
    char **files = argc > 1 ? argv + 1 : own;
    int n = argc > 1 ? argc - 1 : 4;
    tkc_arena arena = { 0 };
    tinkc_error err = { 0 };
    double worst = 0;
    const char *messages = conversation(&arena, &err);
    for (int i = 0; i < n; i++) {
        err = (tinkc_error){ 0 };
        tinkc_bytes file = tkc_read_file(&arena, files[i], 1 << 24, &err);
        tinkc_str text = { (const char *)file.data, file.len };
        const char *slash = strrchr(files[i], '/');
        tinkc_template *t = tinkc_template_parse(text.data, text.len, NULL, &err);
        tkc_chat_source source = { .t = t,
                                   .names = { { "bos_token", tkc_str("<s>") },
                                              { "eos_token", tkc_str("</s>") } },
                                   .n_names = 2 };
        size_t bytes = 0;
        double parse = t ? best_parse(text, &err) : 0;
        double render = t ? best_render(&source, messages, &bytes, &err) : 0;
        if (err.code)
            printf("%-50s refuses: %s\n", slash ? slash + 1 : files[i], err.message);
        else
            printf("%-50s parse_us %8.1f render_us %8.1f bytes %zu\n", slash ? slash + 1 : files[i],
                   parse, render, bytes);
        worst = !err.code && render > worst ? render : worst;
        tinkc_template_free(t);
    }
    printf("slowest rendering of %d messages: %.1f us (goal: under 100)\n", MESSAGES, worst);
    tkc_arena_free(&arena);
    return worst < 100 ? 0 : 1;
}
