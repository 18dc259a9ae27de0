/* cmd_train_rl.c - `tinkc train rl`: settings and plan, then train_rl.c. */
#include <stdlib.h>
#include <string.h>

#include "cli/main/commands.h"
#include "cli/track/gitinfo.h"
#include "cli/manage/prices.h"
#include "cli/output/text.h"
#include "cli/train/train_config.h"
#include "cli/train/train_rl.h"

static int settle_rewards(const cli_rl *r)
{
    const cli_app *app = r->job.app;
    if (r->rewards.n == 0 && !r->rewards.wants_model && !r->rewards.env)
        return cli_fail(app, "usage",
                        "--grader number, --reward-cmd CMD, --reward-url URL or --env-cmd CMD",
                        "no grader was given");
    if (cli_int(app, "group-size") < 2)
        return cli_fail(app, "usage", NULL,
                        "--group-size must be at least 2: answers are compared within their group");
    return 0;
}

/* --loss-config K=X */
static int settle_loss(cli_rl *r)
{
    const cli_app *app = r->job.app;
    size_t n = 0;
    while (cli_text_at(app, "loss-config", n))
        n++;
    r->loss_names = calloc(n + 1, sizeof *r->loss_names);
    r->loss_values = calloc(n + 1, sizeof *r->loss_values);
    for (size_t i = 0; i < n && r->loss_names && r->loss_values; i++) {
        char *text = (char *)(uintptr_t)cli_text_at(app, "loss-config", i), *is = strchr(text, '=');
        if (!is || is == text || !cli_parse_number(is + 1, &r->loss_values[i]))
            return cli_fail(app, "usage", "clip_low_threshold=0.8",
                            "--loss-config: '%s' is not NAME=NUMBER", text);
        char *name = strndup(text, (size_t)(is - text));
        r->loss_names[i] = name;
    }
    r->how.loss = cli_text(app, "loss");
    r->how.loss_names = n ? r->loss_names : NULL;
    r->how.loss_values = r->loss_values;
    return 0;
}

static void settle_advantage(cli_rl *r)
{
    const char *how = cli_text(r->job.app, "advantage");
    r->how.advantage = strcmp(how, "std") == 0             ? TINKC_ADVANTAGE_STD
                       : strcmp(how, "leave-one-out") == 0 ? TINKC_ADVANTAGE_LEAVE_ONE_OUT
                                                           : TINKC_ADVANTAGE_MEAN;
    r->how.remove_constant = cli_flag(r->job.app, "remove-constant-groups");
    r->how.kl_coef = cli_number(r->job.app, "kl-coef");
    r->how.kl_discount = cli_number(r->job.app, "kl-discount");
}

static int open_reference(cli_rl *r)
{
    const cli_app *app = r->job.app;
    const char *name = cli_text(app, "kl-reference"), *from = cli_text(app, "from");
    if (r->how.kl_coef <= 0)
        return 0;
    if (!name && from)
        return cli_fail(app, "usage",
                        "name sampler weights: --kl-reference tinker://RUN/sampler_weights/NAME",
                        "--kl-coef with --from needs --kl-reference");
    return cli_rl_add_reference(r, name ? name : r->job.model);
}

static void show_plan(const cli_rl *r)
{
    const cli_app *app = r->job.app;
    char rate[CLI_SHORT_TEXT];
    cli_format_number(cli_number(app, "lr"), rate);
    cli_note(app, "model      %s%s%s", r->job.model, r->job.renderer ? ", renderer " : "",
             r->job.renderer ? r->job.renderer : "");
    cli_note(app, "prompts    %zu%s", r->prompts.n, r->rewards.env ? ", in an environment" : "");
    if (r->test.n)
        cli_note(app, "test       %zu prompts", r->test.n);
    cli_note(app, "steps      %zu of %zu prompt%s, %zu answers each", r->job.total_steps,
             r->groups_per_batch, r->groups_per_batch == 1 ? "" : "s", r->group_size);
    cli_note(app, "loss       %s, advantage %s, rate %s%s%s", cli_text(app, "loss"),
             cli_text(app, "advantage"), rate, r->job.rate_why[0] ? "; " : "", r->job.rate_why);
    cli_note(app, "ahead      sampling runs up to %lld step%s ahead of training",
             (long long)cli_int(app, "max-steps-off-policy"),
             cli_int(app, "max-steps-off-policy") == 1 ? "" : "s");
    cli_note(app, "log        %s", r->job.log_dir);
    if (cli_number(app, "temperature") == 0)
        cli_warn(app, "--temperature 0: the answers of a group are equal, so there is nothing to "
                      "compare and to learn");
}

/* Upper bounds: every answer as long as it may be. */
static int show_cost(const cli_rl *r)
{
    tinkc_error err = { 0 };
    cli_tokens_planned t = { 0 };
    size_t prompt = 0, rollouts = r->job.total_steps * r->groups_per_batch * r->group_size;
    tinkc_chat_options chat = { .renderer = r->job.renderer,
                                .generation_prompt = true,
                                .openai_calls = true };
    for (size_t i = 0; i < r->prompts.n && !err.code; i++) {
        tinkc_tokens ids = { 0 };
        if (r->prompts.items[i].messages_json)
            tinkc_chat_encode(r->job.tokenizer, r->prompts.items[i].messages_json, &chat, &ids,
                              &err);
        prompt += ids.len;
        tinkc_tokens_free(&ids);
    }
    if (err.code)
        return cli_fail_error(r->job.app, &err, "the prompts cannot be rendered");
    t.prefill = (int64_t)(prompt / r->prompts.n * rollouts);
    t.sample = (int64_t)rollouts * cli_int(r->job.app, "max-tokens");
    t.train = t.prefill + t.sample;
    return cli_show_cost(r->job.app, r->job.model, &t);
}

static int train(cli_rl *r)
{
    int bad = open_reference(r);
    if (bad)
        return bad;
    tkc_tree *config =
        cli_job_config(&r->job, (const char *const *)r->prompts.paths, r->prompts.n_paths);
    bad = cli_rl_run(r, config);
    return bad;
}

int cli_train_rl(cli_app *app)
{
    cli_rl r = { .job = { .app = app, .rate_share = 0.2 } };
    char *commit = cli_flag(app, "dry-run") ? NULL : cli_git_commit();
    const char *const about[] = { "recipe_name", "rl", commit ? "git_rev" : NULL, commit, NULL };
    app->session_metadata = about;
    int bad = cli_train_config_take(app);
    bad = bad ? bad : cli_rl_prepare(app, &r);
    bad = bad ? bad : settle_rewards(&r);
    bad = bad ? bad : settle_loss(&r);
    if (!bad) {
        char what[160];
        settle_advantage(&r);
        (void)snprintf(what, sizeof what, "%zugroup-%zubatch-%s", r.group_size, r.groups_per_batch,
                       cli_text(app, "loss"));
        r.job.log_dir = cli_rl_log_dir(&r, what);
        show_plan(&r);
    }
    if (!bad)
        bad = cli_flag(app, "dry-run") ? show_cost(&r) : train(&r);
    for (size_t i = 0; r.loss_names && r.loss_names[i]; i++)
        free((char *)(uintptr_t)r.loss_names[i]);
    cli_rl_free(&r);
    cli_disconnect(app);
    app->session_metadata = NULL;
    free(commit);
    return bad;
}
