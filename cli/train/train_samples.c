/* train_samples.c - asks the model that is being trained, and keeps its answers. */
#include "cli/train/train_samples.h"

#include <stdlib.h>
#include <string.h>

#include "cli/sample/ask.h"
#include "cli/output/out.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

/* Whether the recipe has such prompts, and some were given. */
static bool has_prompts(const cli_job *j)
{
    static const char name[] = "sample-prompt";
    return cli_find_option(j->app->command, name, sizeof name - 1) && cli_text_at(j->app, name, 0);
}

bool cli_samples_due(const cli_job *j, size_t step)
{
    int64_t every = has_prompts(j) ? cli_int(j->app, "sample-every") : 0;
    return every > 0 && step % (size_t)every == 0; /* also before the first: that is the base */
}

void cli_samples_note(cli_job *j, size_t step, const tkc_tree *prompt, const char *completion,
                      const double *reward)
{
    tkc_arena arena = { 0 };
    tkc_tree *v = tkc_tree_pack(&arena, "{s:I,s:o,s:o}", "step", (int64_t)step, "prompt",
                                prompt ? prompt : tkc_tree_null(), "completion",
                                cli_json_text(&arena, completion ? completion : ""));
    if (reward)
        cli_job_set(v, "reward", *reward);
    if (v && !cli_trainlog_sample(&j->log, v))
        cli_warn(j->app, "%s/samples.jsonl cannot be written", j->log_dir);
    tkc_arena_free(&arena);
}

static tinkc_future *ask_prompt(const cli_asked *asked, const tinkc_sampling *how, const char *text,
                                tinkc_error *err)
{
    tinkc_tokens prompt = { 0 };
    tkc_arena arena = { 0 };
    const tkc_tree *messages = tkc_tree_pack(&arena, "[{s:s,s:o}]", "role", "user", "content",
                                             cli_json_text(&arena, text));
    tinkc_future *f = NULL;
    if (cli_render_prompt(asked, messages, NULL, &prompt, err))
        f = tinkc_sample(asked->sampler, prompt.data, prompt.len, 1, how, err);
    tinkc_tokens_free(&prompt);
    tkc_arena_free(&arena);
    return f;
}

/* All prompts at once, then their answers in order. */
static void ask_all(cli_job *j, const cli_asked *asked, const tinkc_sampling *how, tinkc_error *err)
{
    size_t n = 0;
    while (cli_text_at(j->app, "sample-prompt", n))
        n++;
    tinkc_future **futures = calloc(n, sizeof *futures);
    if (!futures)
        tinkc_error_set(err, TINKC_E_MEMORY, "out of memory");
    for (size_t i = 0; futures && i < n; i++)
        futures[i] = ask_prompt(asked, how, cli_text_at(j->app, "sample-prompt", i), err);
    for (size_t i = 0; futures && i < n; i++) {
        if (!err->code && cli_wait(j->app, futures[i], "sampling", err)) {
            const tinkc_samples *got = tinkc_future_samples(futures[i], 0, err);
            char *answer = got ? cli_answer_text(asked, tinkc_samples_at(got, 0), how) : NULL;
            cli_samples_note(
                j, j->step,
                cli_json_text(cli_arena(j->app), cli_text_at(j->app, "sample-prompt", i)), answer,
                NULL);
            free(answer);
        }
        tinkc_future_free(futures[i]);
    }
    free(futures);
}

bool cli_samples_take(cli_job *j)
{
    tinkc_error err = { 0 };
    int64_t begun_ms = cli_now_ms();
    cli_asked asked = { .tokenizer = j->tokenizer, .renderer = j->renderer, .chat = true };
    tinkc_sampling how = TINKC_SAMPLING_INIT;
    if (!has_prompts(j))
        return true;
    how.max_tokens = (int32_t)cli_int(j->app, "sample-tokens");
    how.temperature = 0; /* so that answers differ by the weights alone */
    if (!cli_stop_as_usual(&asked, false, &how))
        tinkc_error_set(&err, TINKC_E_MEMORY, "out of memory");
    tinkc_future *opened = tinkc_trainer_open_sampler(j->trainer, NULL, &err);
    if (cli_wait(j->app, opened, "saving for samples", &err))
        asked.sampler = tinkc_future_sampler(opened, 0, &err);
    if (asked.sampler)
        ask_all(j, &asked, &how, &err);
    tinkc_future_free(opened);
    tinkc_sampler_free(asked.sampler);
    cli_free_sampling(&how);
    if (err.code && !cli_stop_signal())
        cli_warn(j->app, "step %zu: no samples: %s", j->step, err.message);
    cli_job_note_time(j, "time/samples", begun_ms);
    return !cli_stop_signal();
}
