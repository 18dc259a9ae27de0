/* reward_setup.c - from options to rewards and environments. */
#include "cli/train/reward_setup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/output/out.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

/* What children say goes to the run's log, and to the screen with -v. */
static void take_log(int32_t level, const char *line, void *user)
{
    cli_app *app = user;
    if (level <= TINKC_LOG_WARN)
        cli_warn(app, "%s", line);
    else if (app->verbose)
        cli_note(app, "%s", line);
    else if (app->log_file)
        fprintf(app->log_file, "%s\n", line);
}

static bool add(cli_rewards *out, tinkc_reward *r)
{
    tinkc_reward **grown = r ? realloc(out->items, (out->n + 1) * sizeof *grown) : NULL;
    if (!grown)
        return false;
    out->items = grown;
    out->items[out->n++] = r;
    out->needs_answer = out->needs_answer || tinkc_reward_needs_answer(r);
    return true;
}

/* "number@0.5": the name and its weight. */
static int add_grader(cli_app *app, cli_rewards *out, const char *text)
{
    tinkc_error err = { 0 };
    double weight = 1;
    char *spec = strdup(text), *at = spec ? strrchr(spec, '@') : NULL;
    if (at && cli_parse_number(at + 1, &weight))
        *at = '\0';
    int bad = 0;
    if (spec && strcmp(spec, "rubric") == 0) {
        out->wants_model = true;
        out->rubric_weight = weight;
    } else {
        tinkc_reward *r = spec ? tinkc_reward_grader(spec, &err) : NULL;
        if (r)
            tinkc_reward_weigh(r, weight, &err);
        if (err.code || !add(out, r))
            bad = cli_fail(app, "usage", "see: tinkc help train rl", "--grader: %s",
                           err.code ? err.message : "out of memory");
    }
    free(spec);
    return bad;
}

static int64_t milliseconds(const cli_app *app, const char *option)
{
    return (int64_t)(cli_number(app, option) * 1000);
}

/* What --pass-env names, for the command of one of the two. */
static int pass_variables(const cli_app *app, tinkc_reward *r, tinkc_env *e)
{
    tinkc_error err = { 0 };
    const char *name;
    for (size_t i = 0; (name = cli_text_at(app, "pass-env", i)) && !err.code; i++)
        (void)(r ? tinkc_reward_pass_env(r, name, &err) : tinkc_env_pass_env(e, name, &err));
    return err.code ? cli_fail(app, "usage", NULL, "--pass-env: %s", err.message) : 0;
}

static int add_outside(cli_app *app, cli_rewards *out)
{
    tinkc_error err = { 0 };
    const char *command = cli_text(app, "reward-cmd"), *url = cli_text(app, "reward-url");
    int bad = 0;
    if (command) {
        tinkc_reward *r =
            tinkc_reward_command(command, (size_t)cli_int(app, "reward-procs"),
                                 milliseconds(app, "reward-timeout"), take_log, app, &err);
        bad = r ? pass_variables(app, r, NULL) : 0;
        add(out, r);
    }
    if (bad)
        return bad;
    if (url && !err.code)
        add(out, tinkc_reward_url(url, milliseconds(app, "reward-timeout"), &err));
    return err.code ? cli_fail_error(app, &err, command ? "--reward-cmd" : "--reward-url") : 0;
}

static int add_env(cli_app *app, cli_rewards *out)
{
    tinkc_error err = { 0 };
    const char *command = cli_text(app, "env-cmd");
    if (!command)
        return 0;
    out->env = tinkc_env_command(command, (size_t)cli_int(app, "env-procs"),
                                 milliseconds(app, "env-timeout"), take_log, app, &err);
    return out->env ? pass_variables(app, NULL, out->env) : cli_fail_error(app, &err, "--env-cmd");
}

static int read_rubric(cli_app *app, cli_rewards *out)
{
    int bad = 0;
    size_t len;
    if (!out->wants_model)
        return 0;
    if (!cli_given(app, "grader-model"))
        return cli_fail(app, "usage", "name the model that grades: --grader-model M",
                        "--grader rubric needs a model");
    if (cli_given(app, "rubric"))
        out->rubric = cli_read_all(app, cli_text(app, "rubric"), &len, &bad);
    return bad;
}

/* Options of a grader that was not chosen would have no effect. */
static int check_unused(const cli_app *app, const cli_rewards *r)
{
    const bool outside = cli_given(app, "reward-cmd") || cli_given(app, "reward-url");
    const struct {
        const char *option, *needs;
        bool used;
    } rows[] = {
        { "rubric", "--grader rubric", r->wants_model },
        { "grader-model", "--grader rubric", r->wants_model },
        { "reward-procs", "--reward-cmd", cli_given(app, "reward-cmd") },
        { "reward-timeout", "--reward-cmd or --reward-url", outside },
        { "env-procs", "--env-cmd", r->env != NULL },
        { "env-timeout", "--env-cmd", r->env != NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!rows[i].used && cli_on_the_line(app, rows[i].option))
            return cli_fail(app, "usage", NULL, "--%s needs %s", rows[i].option, rows[i].needs);
    return 0;
}

int cli_rewards_open(cli_app *app, cli_rewards *out)
{
    int bad = 0;
    *out = (cli_rewards){ 0 };
    for (size_t i = 0; cli_text_at(app, "grader", i) && !bad; i++)
        bad = add_grader(app, out, cli_text_at(app, "grader", i));
    bad = bad ? bad : add_outside(app, out);
    bad = bad ? bad : add_env(app, out);
    bad = bad ? bad : check_unused(app, out);
    return bad ? bad : read_rubric(app, out);
}

int cli_rewards_connect(cli_app *app, cli_rewards *r)
{
    tinkc_error err = { 0 };
    if (!r->wants_model)
        return 0;
    int bad = cli_open_named(app, cli_text(app, "grader-model"), &r->grader);
    if (bad)
        return bad;
    tinkc_reward *one = tinkc_reward_rubric(r->grader.sampler, r->grader.tokenizer,
                                            r->grader.renderer, r->rubric, &err);
    if (one)
        tinkc_reward_weigh(one, r->rubric_weight, &err);
    if (err.code || !add(r, one))
        return cli_fail_error(app, &err, "--grader rubric");
    return 0;
}

void cli_rewards_close(cli_rewards *r)
{
    for (size_t i = 0; i < r->n; i++)
        tinkc_reward_free(r->items[i]);
    free(r->items);
    tinkc_env_free(r->env);
    cli_asked_free(&r->grader);
    free(r->rubric);
    *r = (cli_rewards){ 0 };
}

tinkc_rollout_options cli_rollout_options(const cli_app *app, const cli_rewards *r,
                                          const tinkc_tokenizer *tokenizer, const char *renderer)
{
    return (tinkc_rollout_options){ .tokenizer = tokenizer,
                                    .renderer = renderer,
                                    .system = cli_text(app, "system"),
                                    .rewards = r->items,
                                    .n_rewards = r->n,
                                    .env = r->env,
                                    .sample_timeout_ms = milliseconds(app, "sample-timeout"),
                                    .temperature = cli_number(app, "temperature"),
                                    .top_p = cli_number(app, "top-p"),
                                    .max_tokens = (int32_t)cli_int(app, "max-tokens"),
                                    .max_concurrent = (int32_t)cli_int(app, "max-concurrent"),
                                    .max_turns = (int32_t)cli_int(app, "max-turns"),
                                    .max_episode_tokens =
                                        (int32_t)cli_int(app, "max-episode-tokens") };
}
