/* eval_choice.c - multiple choice: which of the given answers does the model find most likely? */
#include "cli/eval/eval_choice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output/out.h"
#include "cli/output/text.h"

enum { MOST_CHOICES = 64 };

/* Which choice is right; -1 = the row does not say. */
static int right_choice(const tkc_tree *choices, const char *answer)
{
    int64_t number;
    size_t n = tkc_tree_length(choices);
    if (!answer)
        return -1;
    for (size_t i = 0; i < n; i++)
        if (strcmp(tkc_tree_text(tkc_tree_at(choices, i)), answer) == 0)
            return (int)i;
    if (cli_parse_int(answer, &number) && number >= 0 && (size_t)number < n)
        return (int)number;
    if (answer[0] >= 'A' && (size_t)(answer[0] - 'A') < n && !answer[1])
        return answer[0] - 'A';
    return -1;
}

static bool are_choices(const tkc_tree *choices)
{
    size_t n = tkc_tree_length(choices);
    for (size_t i = 0; i < n; i++)
        if (!tkc_tree_is_text(tkc_tree_at(choices, i)) || !*tkc_tree_text(tkc_tree_at(choices, i)))
            return false;
    return n >= 2 && n <= MOST_CHOICES;
}

int cli_eval_check_choices(cli_app *app, const cli_prompts *p)
{
    cli_bad_lines bad;
    cli_bad_lines_begin(&bad, app);
    for (size_t i = 0; i < p->n; i++) {
        tkc_arena arena = { 0 };
        const tkc_tree *row = tkc_tree_read(&arena, tkc_str(p->items[i].row_json), 0);
        const tkc_tree *choices = tkc_tree_get(row, "choices");
        const char *colon = strrchr(p->items[i].where, ':');
        int64_t line = 0;
        (void)cli_parse_int(colon ? colon + 1 : "0", &line);
        const char *path = p->paths[p->file[i]];
        if (!are_choices(choices))
            cli_bad_line(&bad, path, (size_t)line, "choices",
                         "\"choices\" is not a list of 2 to 64 texts");
        else if (right_choice(choices, p->items[i].answer) < 0)
            cli_bad_line(&bad, path, (size_t)line, "answer",
                         "the answer is none of the choices, nor their number or letter");
        tkc_arena_free(&arena);
    }
    return cli_bad_lines_end(&bad, p->n_paths == 1 ? p->paths[0] : NULL, "nothing was sent");
}

/* The sum over the tokens of one choice behind the prompt. */
static tinkc_future *ask(cli_app *app, const cli_asked *m, const tinkc_tokens *prompt,
                         const char *choice, tinkc_tokens *all, tinkc_error *err)
{
    (void)app;
    tinkc_encode_options how = { .special = TINKC_SPECIAL_NONE };
    tinkc_tokens_append(all, prompt->data, prompt->len, err);
    tinkc_encode_span(m->tokenizer, choice, strlen(choice), &how, all, NULL, err);
    return err->code ? NULL : tinkc_logprobs(m->sampler, all->data, all->len, err);
}

tkc_tree *cli_eval_choose(cli_app *app, tkc_arena *arena, const cli_asked *m, const tinkc_task *t,
                          const char *benchmark, size_t index, const char *example_id,
                          tinkc_error *err)
{
    tinkc_tokens prompt = { 0 }, all[MOST_CHOICES] = { { 0 } };
    tinkc_future *f[MOST_CHOICES] = { 0 };
    tkc_tree *row = tkc_tree_read(arena, tkc_str(t->row_json), 0), *sums = tkc_tree_array(arena),
             *v = NULL;
    const tkc_tree *choices = tkc_tree_get(row, "choices");
    size_t n = tkc_tree_length(choices), best = 0, best_by_length = 0;
    double most = -INFINITY, most_by_length = -INFINITY;
    tinkc_chat_options chat = { .renderer = m->renderer, .generation_prompt = true };
    tinkc_chat_encode(m->tokenizer, t->messages_json, &chat, &prompt, err);
    for (size_t i = 0; i < n && !err->code; i++)
        f[i] = ask(app, m, &prompt, tkc_tree_text(tkc_tree_at(choices, i)), &all[i], err);
    for (size_t i = 0; i < n && !err->code && cli_wait(app, f[i], "scoring", err); i++) {
        tinkc_f32s lp = tinkc_future_logprobs(f[i], 0, err);
        double sum = 0;
        for (size_t k = prompt.len; k < lp.len; k++)
            sum += (double)lp.data[k];
        double by_length = sum / (double)tkc_tree_str(tkc_tree_at(choices, i)).len;
        best = sum > most ? i : best;
        most = fmax(most, sum);
        best_by_length = by_length > most_by_length ? i : best_by_length;
        most_by_length = fmax(most_by_length, by_length);
        tkc_tree_add_real(sums, sum);
    }
    int right = right_choice(choices, t->answer);
    if (!err->code) {
        tkc_tree *asked = tkc_tree_read(arena, tkc_str(t->messages_json), 0);
        tkc_tree *turns = tkc_tree_is_object(asked) ? tkc_tree_get(asked, "messages") : asked;
        v = tkc_tree_pack(arena, "{s:I,s:s,s:s,s:i,s:o?,s:o,s:o,s:f,s:{s:f},s:n,s:s,s:o}", "idx",
                          (int64_t)index, "benchmark", benchmark, "example_id", example_id,
                          "sample", 0, "turns", turns, "text", tkc_tree_at(choices, best), "answer",
                          tkc_tree_at(choices, (size_t)right), "reward",
                          (double)((int)best == right), "metrics", "acc_norm",
                          (double)((int)best_by_length == right), "error", "stop_reason", "stop",
                          "choice_logprobs", sums);
    }
    for (size_t i = 0; i < n; i++) {
        tinkc_future_free(f[i]);
        tinkc_tokens_free(&all[i]);
    }
    tinkc_tokens_free(&prompt);
    return v;
}
