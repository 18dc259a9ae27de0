/* eval_choice.c - multiple choice: which of the given answers does the model find most likely? */
#include "cli/eval/eval_choice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output/out.h"
#include "cli/output/text.h"

enum { MOST_CHOICES = 64 };

/* Which choice is right; -1 = the row does not say. */
static int right_choice(const json_t *choices, const char *answer)
{
    int64_t number;
    size_t n = json_array_size(choices);
    if (!answer)
        return -1;
    for (size_t i = 0; i < n; i++)
        if (strcmp(json_string_value(json_array_get(choices, i)), answer) == 0)
            return (int)i;
    if (cli_parse_int(answer, &number) && number >= 0 && (size_t)number < n)
        return (int)number;
    if (answer[0] >= 'A' && (size_t)(answer[0] - 'A') < n && !answer[1])
        return answer[0] - 'A';
    return -1;
}

static bool are_choices(const json_t *choices)
{
    size_t n = json_array_size(choices);
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(json_array_get(choices, i)) ||
            !*json_string_value(json_array_get(choices, i)))
            return false;
    return n >= 2 && n <= MOST_CHOICES;
}

int cli_eval_check_choices(cli_app *app, const cli_prompts *p)
{
    cli_bad_lines bad;
    cli_bad_lines_begin(&bad, app);
    for (size_t i = 0; i < p->n; i++) {
        json_t *row = json_loads(p->items[i].row_json, 0, NULL);
        const json_t *choices = json_object_get(row, "choices");
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
        json_decref(row);
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

json_t *cli_eval_choose(cli_app *app, const cli_asked *m, const tinkc_task *t,
                        const char *benchmark, size_t index, const char *example_id,
                        tinkc_error *err)
{
    tinkc_tokens prompt = { 0 }, all[MOST_CHOICES] = { { 0 } };
    tinkc_future *f[MOST_CHOICES] = { 0 };
    json_t *row = json_loads(t->row_json, 0, NULL), *sums = json_array(), *v = NULL;
    const json_t *choices = json_object_get(row, "choices");
    size_t n = json_array_size(choices), best = 0, best_by_length = 0;
    double most = -INFINITY, most_by_length = -INFINITY;
    tinkc_chat_options chat = { .renderer = m->renderer, .generation_prompt = true };
    tinkc_chat_encode(m->tokenizer, t->messages_json, &chat, &prompt, err);
    for (size_t i = 0; i < n && !err->code; i++)
        f[i] = ask(app, m, &prompt, json_string_value(json_array_get(choices, i)), &all[i], err);
    for (size_t i = 0; i < n && !err->code && cli_wait(app, f[i], "scoring", err); i++) {
        tinkc_f32s lp = tinkc_future_logprobs(f[i], 0, err);
        double sum = 0;
        for (size_t k = prompt.len; k < lp.len; k++)
            sum += (double)lp.data[k];
        double by_length = sum / (double)json_string_length(json_array_get(choices, i));
        best = sum > most ? i : best;
        most = fmax(most, sum);
        best_by_length = by_length > most_by_length ? i : best_by_length;
        most_by_length = fmax(most_by_length, by_length);
        json_array_append_new(sums, json_real(sum));
    }
    int right = right_choice(choices, t->answer);
    if (!err->code) {
        json_t *asked = json_loads(t->messages_json, 0, NULL);
        json_t *turns = json_is_object(asked) ? json_object_get(asked, "messages") : asked;
        v = json_pack("{s:I,s:s,s:s,s:i,s:O?,s:O,s:O,s:f,s:{s:f},s:n,s:s,s:O}", "idx",
                      (json_int_t)index, "benchmark", benchmark, "example_id", example_id, "sample",
                      0, "turns", turns, "text", json_array_get(choices, best), "answer",
                      json_array_get(choices, (size_t)right), "reward",
                      (double)((int)best == right), "metrics", "acc_norm",
                      (double)((int)best_by_length == right), "error", "stop_reason", "stop",
                      "choice_logprobs", sums);
        json_decref(asked);
    }
    for (size_t i = 0; i < n; i++) {
        tinkc_future_free(f[i]);
        tinkc_tokens_free(&all[i]);
    }
    tinkc_tokens_free(&prompt);
    json_decref(sums);
    json_decref(row);
    return v;
}
