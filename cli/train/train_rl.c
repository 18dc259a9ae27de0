/* train_rl.c - the RL loop in a run directory: steps, evaluation, checkpoints, recorded rollouts.
 *
 * The loop itself is the library's. Here it gets its prompts and rewards, and what it sampled is kept
 * in iteration_NNNNNN/train_rollout_summaries.jsonl, so that a run that was killed trains on the very
 * same rollouts when it is resumed. A checkpoint is taken with no batch half sampled.
 */
#include "cli/train/train_rl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/main/files.h"
#include "cli/models/models.h"
#include "cli/output/out.h"
#include "cli/output/term.h"
#include "cli/output/text.h"
#include "cli/train/train_samples.h"

/* ---- preparing ---- */

static int check_options(const cli_app *app)
{
    if (cli_int(app, "group-size") < 1 || cli_int(app, "groups-per-batch") < 1 ||
        cli_int(app, "epochs") < 1 || cli_int(app, "max-tokens") < 1)
        return cli_fail(
            app, "usage", NULL,
            "--group-size, --groups-per-batch, --epochs and --max-tokens must be above 0");
    if (cli_given(app, "max-steps") && cli_int(app, "max-steps") < 1)
        return cli_fail(app, "usage", NULL, "--max-steps must be at least 1");
    if (cli_int(app, "num-substeps") < 1 || cli_int(app, "num-substeps") > 64)
        return cli_fail(app, "usage", NULL, "--num-substeps must be from 1 to 64");
    if (cli_given(app, "lr") && cli_number(app, "lr") <= 0)
        return cli_fail(app, "usage", NULL, "--lr must be above 0");
    if (cli_number(app, "temperature") < 0)
        return cli_fail(app, "usage", NULL, "--temperature must not be below 0");
    if (cli_on_the_line(app, "kl-reference") && cli_number(app, "kl-coef") <= 0)
        return cli_fail(app, "usage", NULL, "--kl-reference needs --kl-coef above 0");
    return 0;
}

static int hold_out(cli_rl *r)
{
    cli_app *app = r->job.app;
    size_t held = (size_t)cli_int(app, "test-size");
    cli_prompt_options how = { .need_answer = r->rewards.needs_answer,
                               .need_prompt = !r->rewards.env };
    if (cli_given(app, "test-data") && cli_on_the_line(app, "test-size") && held)
        return cli_fail(app, "usage", NULL, "give either --test-size or --test-data");
    if (cli_given(app, "test-data"))
        return cli_prompts_read_file(app, cli_text(app, "test-data"), &how, &r->test);
    if (held >= r->prompts.n && held)
        return cli_fail(app, "data_invalid", NULL,
                        "%zu prompts are too few to hold %zu of them out", r->prompts.n, held);
    return cli_prompts_split(&r->prompts, held, &r->test)
               ? 0
               : cli_fail(app, "internal", NULL, "out of memory");
}

static void settle_steps(cli_rl *r)
{
    const cli_app *app = r->job.app;
    r->group_size = (size_t)cli_int(app, "group-size");
    r->groups_per_batch = (size_t)cli_int(app, "groups-per-batch");
    /* An environment makes another episode of the same row; an answer twice in a batch teaches nothing. */
    if (r->groups_per_batch > r->prompts.n && !r->rewards.env) {
        if (cli_on_the_line(app, "groups-per-batch"))
            cli_warn(app, "--groups-per-batch %zu is more than the prompts: all %zu are one batch",
                     r->groups_per_batch, r->prompts.n);
        r->groups_per_batch = r->prompts.n;
    }
    size_t all = r->prompts.n * (size_t)cli_int(app, "epochs");
    r->job.total_steps = all / r->groups_per_batch;
    if (r->job.total_steps == 0)
        r->job.total_steps = 1;
    if (cli_given(app, "max-steps") && (size_t)cli_int(app, "max-steps") < r->job.total_steps)
        r->job.total_steps = (size_t)cli_int(app, "max-steps");
}

int cli_rl_prepare(cli_app *app, cli_rl *r)
{
    r->job.app = app;
    int bad = check_options(app);
    bad = bad ? bad : cli_rewards_open(app, &r->rewards);
    bad = bad ? bad : cli_job_settle(&r->job);
    cli_prompt_options how = { .need_answer = r->rewards.needs_answer,
                               .need_prompt = !r->rewards.env };
    bad = bad ? bad : cli_prompts_read(app, &how, &r->prompts);
    if (!bad && !cli_prompts_shuffle(&r->prompts, (uint64_t)cli_int(app, "shuffle-seed")))
        bad = cli_fail(app, "internal", NULL, "out of memory");
    bad = bad ? bad : hold_out(r);
    if (!bad)
        settle_steps(r);
    return bad;
}

char *cli_rl_log_dir(const cli_rl *r, const char *what)
{
    char text[200];
    (void)snprintf(text, sizeof text, "%s-seed%lld", what, (long long)cli_int(r->job.app, "seed"));
    return cli_job_log_dir(&r->job, r->prompts.paths[0], cli_number(r->job.app, "lr"), text);
}

/* ---- references ---- */

/* Whether every id stands for the same bytes. */
static bool same_vocabulary(const tinkc_tokenizer *a, const tinkc_tokenizer *b)
{
    int32_t n = tinkc_tokenizer_size(a);
    for (int32_t i = 0; i < n; i++) {
        tinkc_bytes x = tinkc_tokenizer_bytes(a, i), y = tinkc_tokenizer_bytes(b, i);
        if (x.len != y.len || (x.len && memcmp(x.data, y.data, x.len) != 0))
            return false;
    }
    return n == tinkc_tokenizer_size(b);
}

/* The same text must become the same tokens, or its log-probabilities mean nothing. */
static bool same_tokens(const tinkc_tokenizer *a, const tinkc_tokenizer *b)
{
    static const char text[] =
        "The quick brown fox, 12345 + 678 = \xC3\xA4\xE2\x82\xAC\n\tdef f(x):";
    tinkc_error err = { 0 };
    tinkc_tokens x = { 0 }, y = { 0 };
    bool same = tinkc_encode(a, text, &x, &err) && tinkc_encode(b, text, &y, &err) &&
                x.len == y.len && memcmp(x.data, y.data, x.len * sizeof *x.data) == 0;
    tinkc_tokens_free(&x);
    tinkc_tokens_free(&y);
    return same && same_vocabulary(a, b);
}

int cli_check_same_tokens(const cli_job *j, const tinkc_tokenizer *other, const char *name)
{
    if (same_tokens(j->tokenizer, other))
        return 0;
    return cli_fail(j->app, "data_invalid", "both must be of one family, with one tokenizer",
                    "%s has another tokenizer than %s, so its log-probabilities cannot be compared",
                    name, j->model);
}

int cli_rl_add_reference(cli_rl *r, const char *name)
{
    cli_app *app = r->job.app;
    cli_asked *one = &r->references[r->n_references];
    int bad = cli_open_named(app, name, one);
    if (bad)
        return bad;
    r->samplers[r->n_references++] = one->sampler;
    return cli_check_same_tokens(&r->job, one->tokenizer, name);
}

/* ---- recorded rollouts ---- */

static char *rollouts_path(const cli_rl *r, size_t batch, bool folder)
{
    return cli_printf("%s/iteration_%06zu%s", r->job.log_dir, batch,
                      folder ? "" : "/train_rollout_summaries.jsonl");
}

static bool record(void *user, size_t batch, const tinkc_group *const *groups, size_t n,
                   tinkc_error *err)
{
    cli_rl *r = user;
    tinkc_text text = { 0 };
    cli_save save;
    char *folder = rollouts_path(r, batch, true), *path = rollouts_path(r, batch, false);
    for (size_t i = 0; i < n; i++)
        tinkc_group_write(groups[i], &text, err);
    if (!err->code && folder && path && cli_make_folder(folder, 0777)) {
        cli_save_begin(&save, path, 0666);
        if (save.f && text.len)
            (void)fwrite(text.data, 1, text.len, save.f);
        if (cli_save_end(&save, r->job.app, true) != 0)
            tinkc_error_set(err, TINKC_E_FILE, "the rollouts of a step could not be recorded");
    } else {
        tinkc_error_set(err, TINKC_E_FILE, "the folder for rollouts could not be made");
    }
    tinkc_text_free(&text);
    free(folder);
    free(path);
    return !err->code;
}

static const char *recall(void *user, size_t batch, tinkc_error *err)
{
    cli_rl *r = user;
    int bad = 0;
    size_t len;
    char *path = rollouts_path(r, batch, false);
    free(r->recalled);
    r->recalled =
        path && access(path, R_OK) == 0 ? cli_read_all(r->job.app, path, &len, &bad) : NULL;
    free(path);
    if (bad)
        tinkc_error_set(err, TINKC_E_FILE, "recorded rollouts could not be read");
    return r->recalled ? r->recalled : "";
}

/* ---- while it waits ---- */

/* What a step is looked at by: a teacher gives no reward. */
static const char *watched(const cli_rl *r)
{
    return r->how.distill ? "KL" : "reward";
}

static bool tick(void *user)
{
    cli_rl *r = user;
    cli_app *app = r->job.app;
    if (app->events)
        (void)tinkc_queue_run(app->events, 0, NULL);
    cli_status(app, false, "step %zu/%zu  %s %.3f%s", r->job.step + 1, r->job.total_steps,
               watched(r), r->last_watched,
               r->job.step == r->job.first_step ? "  (sampling)" : "");
    return !cli_stop_signal() && cli_now_ms() < app->deadline_ms;
}

/* ---- evaluation ---- */

static void set_metric(const char *name, double value, void *user)
{
    cli_job_set(user, name, value);
}

static bool take_groups(cli_rl *r, tinkc_rollouts *pool, tinkc_group **groups, size_t n,
                        tinkc_error *err)
{
    for (size_t got = 0; got < n && !err->code;) {
        tinkc_error slice = { 0 };
        tinkc_group *g = tinkc_rollouts_next(pool, 100, &slice);
        if (g)
            groups[got++] = g;
        else if (slice.code != TINKC_E_TIMEOUT)
            *err = slice;
        if (!tick(r))
            tinkc_error_set(err, TINKC_E_CANCELLED, "interrupted");
    }
    return !err->code;
}

static void report_eval(cli_rl *r, const tinkc_group *const *groups, size_t n, int64_t begun_ms,
                        tinkc_error *err)
{
    tkc_tree *v = tkc_tree_pack(&r->job.arena, "{s:I}", "step", (int64_t)r->job.step);
    tinkc_recipe_metrics(groups, n, "test/env", set_metric, v, err);
    const tkc_tree *right = tkc_tree_get(v, "test/env/all/correct");
    r->last_eval = tkc_tree_number(right ? right : tkc_tree_get(v, "test/env/all/reward/total"));
    cli_job_tell(&r->job, "eval", v);
    if (r->job.step >= r->job.total_steps)
        cli_trainlog_metrics(&r->job.log, v);
    cli_job_note_time(&r->job, "time/evals", begun_ms);
    tkc_tree_update_missing(r->job.pending, v);
    cli_note(r->job.app, "step %zu: test %s %.3f", r->job.step, right ? "score" : "reward",
             r->last_eval);
}

static bool evaluate(cli_rl *r, tinkc_error *err)
{
    int64_t begun_ms = cli_now_ms();
    size_t n = r->test.n;
    tinkc_group **groups = calloc(n + 1, sizeof *groups);
    tinkc_rollout_options o = r->how.rollouts;
    o.temperature = cli_number(r->job.app, "eval-temperature");
    tinkc_sampler *s = tinkc_rl_sampler(r->rl, err);
    tinkc_rollouts *pool = s ? tinkc_rollouts_new(r->job.app->client, &o, err) : NULL;
    for (size_t i = 0; pool && i < n && !err->code; i++)
        tinkc_rollouts_add(pool, s, &r->test.items[i], 1, i,
                           tinkc_recipe_seed(r->how.seed, i, 0, 3), err);
    if (pool && groups && take_groups(r, pool, groups, n, err))
        report_eval(r, (const tinkc_group *const *)groups, n, begun_ms, err);
    tinkc_rollouts_free(pool);
    for (size_t i = 0; groups && i < n; i++)
        tinkc_group_free(groups[i]);
    free(groups);
    return !err->code;
}

static bool eval_due(const cli_rl *r)
{
    int64_t n = cli_int(r->job.app, "eval-every");
    return r->test.n && n > 0 && r->job.step % (size_t)n == 0;
}

/* ---- steps ---- */

static void warn_failed(const cli_rl *r, const tinkc_rl_report *report)
{
    for (size_t g = 0; g < report->n_groups; g++)
        for (size_t i = 0; i < tinkc_group_count(report->groups[g]); i++) {
            const tinkc_rollout *one = tinkc_group_at(report->groups[g], i);
            if (one->error) {
                cli_warn(r->job.app,
                         "step %zu: %zu of the rollouts failed and were not trained on; "
                         "the first: %s",
                         report->step, report->failed, one->error);
                return;
            }
        }
}

/* The conversation up to its last answer, which is apart; NULL = it cannot be read. */
static tkc_tree *prompt_of(tkc_arena *arena, const tinkc_rollout *one)
{
    tkc_tree *messages = tkc_tree_read(arena, tkc_str(one->messages_json), 0);
    size_t n = tkc_tree_length(messages);
    if (n)
        tkc_tree_take_out(messages, n - 1);
    return messages;
}

/* A few answers of each step are kept for people to look at. */
static void note_samples(cli_rl *r, const tinkc_rl_report *report)
{
    enum { GROUPS = 2 };
    for (size_t g = 0; g < report->n_groups && g < GROUPS; g++) {
        const tinkc_rollout *one =
            tinkc_group_count(report->groups[g]) ? tinkc_group_at(report->groups[g], 0) : NULL;
        if (one && !one->error)
            cli_samples_note(&r->job, report->step, prompt_of(&r->job.arena, one), one->text,
                             &one->reward);
    }
}

static void record_step(cli_rl *r, const tinkc_rl_report *report, int64_t begun_ms)
{
    cli_job *j = &r->job;
    tkc_tree *v = tkc_tree_pack(&j->arena, "{s:I}", "step", (int64_t)report->step);
    for (size_t i = 0; report->metric_names[i]; i++)
        set_metric(report->metric_names[i], report->metric_values[i], v);
    if (j->pending)
        tkc_tree_update(v, j->pending);
    j->elapsed_tokens += report->tokens;
    const tkc_tree *kl = tkc_tree_get(v, "teacher_kl");
    r->last_watched = r->how.distill ? tkc_tree_number(kl) : report->reward;
    cli_job_span(j, "step", begun_ms, cli_now_ms());
    cli_job_write_spans(j, report->step);
    cli_job_write_row(j, v);
    cli_job_tell(j, "step", v);
    note_samples(r, report);
    warn_failed(r, report);
    cli_job_show_step(j, report->step, "%s %.3f  trained %zu  %zu steps old  %.0f tok/s",
                      watched(r), r->last_watched, report->trained, report->staleness,
                      cli_job_speed(report->tokens, cli_now_ms() - begun_ms));
    cli_job_end_row(j);
}

/* No batch may be half sampled in a checkpoint: its rollouts could not be made again. */
static bool settle(void *user, tinkc_error *err)
{
    cli_rl *r = user;
    return !r->rl || tinkc_rl_settle(r->rl, err);
}

static bool between_steps(cli_rl *r, tinkc_error *err)
{
    cli_job *j = &r->job;
    if (eval_due(r) && !evaluate(r, err))
        return false;
    return cli_job_save_if_due(j, err);
}

static bool train(cli_rl *r, tinkc_error *err)
{
    cli_job *j = &r->job;
    while (j->step < j->total_steps && !cli_stop_signal()) {
        if (!between_steps(r, err))
            return false;
        int64_t begun_ms = cli_now_ms();
        const tinkc_rl_report *report = tinkc_rl_step(r->rl, j->total_steps, err);
        if (!report)
            return false;
        record_step(r, report, begun_ms);
        j->step++;
    }
    return true;
}

/* ---- the loss ---- */

/* A service that lacks a loss is found out before anything is sampled: one forward pass over two
 * tokens, which changes nothing. */
static int probe_loss(cli_rl *r)
{
    tinkc_error err = { 0 };
    const int32_t ids[3] = { 1, 2, 3 };
    const float zeros[2] = { 0 };
    const char *loss = r->how.loss ? r->how.loss : TINKC_IMPORTANCE_SAMPLING;
    tinkc_batch *b = tinkc_batch_new(r->job.app->client, &err);
    tinkc_loss_options o = { .names = r->how.loss_names, .values = r->how.loss_values };
    tinkc_batch_add_rl(b, ids, 3, 1, zeros, zeros, &err);
    tinkc_future *f = err.code ? NULL : tinkc_forward(r->job.trainer, b, loss, &o, &err);
    bool ok = cli_wait(r->job.app, f, "asking for the loss", &err);
    tinkc_future_free(f);
    tinkc_batch_free(b);
    if (ok)
        return 0;
    if (err.code == TINKC_E_BAD_REQUEST || err.code == TINKC_E_UNPROCESSABLE ||
        err.code == TINKC_E_REQUEST_FAILED)
        return cli_fail(r->job.app, "unsupported",
                        r->how.loss_names ? "see --loss and --loss-config"
                                          : "importance_sampling is the most common one",
                        "the service does not accept --loss %s with these settings: %s", loss,
                        err.message);
    return cli_fail_error(r->job.app, &err, NULL);
}

static int open_loop(cli_rl *r)
{
    tinkc_error err = { 0 };
    const cli_app *app = r->job.app;
    tinkc_adam adam = cli_job_adam(app, cli_number(app, "lr"));
    r->how.adam = adam;
    r->how.rollouts = cli_rollout_options(app, &r->rewards, r->job.tokenizer, r->job.renderer);
    r->how.rollouts.context_length = (int32_t)cli_context_length(r->job.app, r->job.model, &err);
    r->how.references = r->samplers;
    r->how.n_references = r->n_references;
    r->how.reference_system = r->context;
    r->how.seed = (uint64_t)cli_int(app, "seed");
    r->how.group_size = r->group_size;
    r->how.groups_per_batch = r->groups_per_batch;
    r->how.substeps = (size_t)cli_int(app, "num-substeps");
    r->how.max_steps_off_policy = (size_t)cli_int(app, "max-steps-off-policy");
    r->how.first_step = r->job.step;
    if (err.code)
        return cli_fail_error(app, &err, NULL);
    tinkc_rl_hooks hooks = { .user = r, .tick = tick, .record = record, .recall = recall };
    r->rl = tinkc_rl_new(app->client, r->job.trainer, &r->how, &hooks, &err);
    for (size_t i = 0; i < r->prompts.n && !err.code; i++)
        tinkc_rl_add(r->rl, &r->prompts.items[i],
                     r->how.distill && r->n_references > 1 ? r->prompts.file[i] : 0, &err);
    return err.code ? cli_fail_error(app, &err, NULL) : 0;
}

/* Samples, rewards or the environment failed for a whole step: nothing was trained in it. */
static int fail_step(const cli_rl *r, const tinkc_error *err)
{
    char hint[200];
    (void)snprintf(hint, sizeof hint, "remove the cause, then: tinkc train resume %.100s",
                   r->job.log_dir);
    return cli_fail(r->job.app, "partial_failure", hint, "%s", err->message);
}

static int finish(cli_rl *r, bool ok, tinkc_error *err)
{
    if (cli_stop_signal())
        return cli_job_stop_early(&r->job);
    if (err->code == TINKC_E_REQUEST_FAILED && err->cause == TINKC_E_CALLBACK)
        return fail_step(r, err);
    if (ok && r->job.step > r->job.first_step) {
        bool wanted = r->test.n && cli_int(r->job.app, "eval-every") > 0;
        ok = (!wanted || evaluate(r, err)) && cli_job_checkpoint(&r->job, true, false, err);
        if (cli_stop_signal())
            return cli_job_stop_early(&r->job);
    }
    if (!ok)
        return cli_job_failed(&r->job, err);
    cli_job_goodbye(&r->job);
    return 0;
}

int cli_rl_run(cli_rl *r, tkc_tree *config)
{
    tinkc_error err = { 0 };
    cli_job *j = &r->job;
    j->before_save = settle;
    j->before_save_user = r;
    int bad = cli_job_open(j, config);
    if (!bad && j->step >= j->total_steps) {
        cli_note(j->app, "nothing is left to do: %zu of %zu steps are done", j->step,
                 j->total_steps);
        return 0;
    }
    bad = bad ? bad : cli_rewards_connect(j->app, &r->rewards);
    bad = bad ? bad : probe_loss(r);
    bad = bad ? bad : open_loop(r);
    if (bad)
        return bad;
    cli_job_start(j);
    bool ok = train(r, &err);
    return finish(r, ok, &err);
}

void cli_rl_free(cli_rl *r)
{
    tinkc_rl_free(r->rl);
    r->rl = NULL;
    for (size_t i = 0; i < r->n_references; i++)
        cli_asked_free(&r->references[i]);
    cli_rewards_close(&r->rewards);
    cli_prompts_free(&r->prompts);
    cli_prompts_free(&r->test);
    cli_job_free(&r->job);
    free(r->recalled);
    free(r->context);
    free(r->loss_names);
    free(r->loss_values);
}
