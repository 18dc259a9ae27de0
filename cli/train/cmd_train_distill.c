/* cmd_train_distill.c - `tinkc train distill`: learning from a teacher's log-probabilities.
 *
 * On policy the student answers and the teacher says how likely each token would have been for it; the
 * loop is train_rl.c's. With --off-policy the texts are given, and the teacher's most likely tokens at
 * each place become soft targets.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/main/commands.h"
#include "cli/data/examples.h"
#include "cli/track/gitinfo.h"
#include "cli/output/term.h"
#include "cli/output/text.h"
#include "cli/train/train_config.h"
#include "cli/train/train_epochs.h"
#include "cli/train/train_rl.h"

/* ---- on policy ---- */

/* What the run would refuse, found before anything is opened. A name that only the service or a hub knows
 * is left to them. */
static int check_teacher(const cli_job *j, const char *name)
{
    tinkc_error err = { 0 };
    if (!cli_wants_local(j->app))
        return 0;
    int bad = 0;
    char *folder = cli_named_here(j->app, name, &bad);
    tinkc_tokenizer *t = folder ? tinkc_tokenizer_open(folder, NULL, &err) : NULL;
    if (t)
        bad = cli_check_same_tokens(j, t, name);
    else if (folder && !bad)
        bad = cli_fail_error(j->app, &err, name);
    tinkc_tokenizer_free(t);
    free(folder);
    return bad;
}

static int check_teachers(const cli_job *j, size_t n_files)
{
    const cli_app *app = j->app;
    size_t n = 0;
    while (cli_text_at(app, "teacher", n))
        n++;
    if (n > CLI_MOST_TEACHERS)
        return cli_fail(app, "usage", NULL, "at most %d --teacher models can be given",
                        CLI_MOST_TEACHERS);
    if (n > 1 && n != n_files)
        return cli_fail(app, "usage", "give one --teacher, or one for each file",
                        "%zu teachers for %zu files of prompts", n, n_files);
    int bad = 0;
    for (size_t i = 0; i < n && !bad; i++)
        bad = check_teacher(j, cli_text_at(app, "teacher", i));
    return bad;
}

static int open_teachers(cli_rl *r)
{
    int bad = 0;
    const char *name;
    for (size_t i = 0; !bad && (name = cli_text_at(r->job.app, "teacher", i)); i++)
        bad = cli_rl_add_reference(r, name);
    return bad;
}

static int read_context(cli_app *app, char **out)
{
    int bad = 0;
    size_t len;
    if (!cli_given(app, "context"))
        return 0;
    *out = cli_read_all(app, cli_text(app, "context"), &len, &bad);
    while (!bad && len && (*out)[len - 1] == '\n')
        (*out)[--len] = '\0';
    return !bad && len == 0
               ? cli_fail(app, "data_invalid", NULL, "%s is empty", cli_text(app, "context"))
               : bad;
}

/* `n` of `unit`s in the data, `each` of them in a step; `answers` to each, 0 = they are given. */
static void show_plan(const cli_job *j, const char *unit, size_t n, size_t each, size_t answers)
{
    char rate[CLI_SHORT_TEXT], of_each[60] = "";
    cli_format_number(cli_number(j->app, "lr"), rate);
    if (answers)
        (void)snprintf(of_each, sizeof of_each, ", %zu answer%s each", answers,
                       answers == 1 ? "" : "s");
    cli_note(j->app, "model      %s%s%s", j->model, j->renderer ? ", renderer " : "",
             j->renderer ? j->renderer : "");
    for (size_t i = 0; cli_text_at(j->app, "teacher", i); i++)
        cli_note(j->app, "teacher    %s", cli_text_at(j->app, "teacher", i));
    cli_note(j->app, "data       %zu %s%s", n, unit, n == 1 ? "" : "s");
    cli_note(j->app, "steps      %zu of %zu %s%s%s", j->total_steps, each, unit,
             each == 1 ? "" : "s", of_each);
    cli_note(j->app, "rate       %s", rate);
    cli_note(j->app, "log        %s", j->log_dir);
}

static int on_policy(cli_app *app)
{
    char what[100];
    cli_rl r = { .job = { .app = app } };
    int bad = cli_rl_prepare(app, &r);
    bad = bad ? bad : read_context(app, &r.context);
    bad = bad ? bad : check_teachers(&r.job, r.prompts.n_paths);
    if (!bad) {
        r.how.distill = true;
        r.how.kl_coef = cli_number(app, "kl-coef");
        r.how.kl_discount = cli_number(app, "kl-discount");
        (void)snprintf(what, sizeof what, "%zugroup-%zubatch-distill", r.group_size,
                       r.groups_per_batch);
        r.job.log_dir = cli_rl_log_dir(&r, what);
        show_plan(&r.job, "prompt", r.prompts.n, r.groups_per_batch, r.group_size);
    }
    if (!bad && !cli_flag(app, "dry-run")) {
        bad = open_teachers(&r);
        tkc_tree *config =
            bad ? NULL
                : cli_job_config(&r.job, (const char *const *)r.prompts.paths, r.prompts.n_paths);
        bad = bad ? bad : cli_rl_run(&r, config);
    }
    cli_rl_free(&r);
    return bad;
}

/* ---- off policy ---- */

typedef struct soft { /* one conversation with its targets */
    cli_example e;
    int64_t *targets; /* [len - 1, K] */
    float *weights;   /* likewise: the teacher's probabilities, renormalised */
} soft;

typedef struct off {
    cli_job job;
    cli_data_file file;
    cli_examples set;
    soft *items;
    size_t k;
    cli_asked teacher;
    cli_epochs loop;
} off;

static int read_conversations(off *o)
{
    cli_app *app = o->job.app;
    cli_lines lines;
    cli_span line;
    cli_bad_lines bad_lines;
    const char *path = app->n_args ? app->args[0] : cli_text_at(app, "data", 0);
    if (!path)
        return cli_fail(app, "usage", "tinkc train distill FILE.jsonl --off-policy",
                        "no conversations were given");
    if (app->n_args > 1 || cli_text_at(app, "data", app->n_args ? 0 : 1))
        return cli_fail(app, "usage", NULL, "--off-policy takes one file");
    int bad = cli_data_open(app, path, &o->file);
    if (bad)
        return bad;
    cli_example_options how = { .tokenizer = o->job.tokenizer,
                                .renderer = o->job.renderer,
                                .max_length = (size_t)cli_int(app, "max-length") };
    cli_bad_lines_begin(&bad_lines, app);
    cli_lines_open(&lines, &o->file);
    while (cli_lines_next(&lines, &line)) {
        tinkc_error err = { 0 };
        if (!cli_examples_add(&o->set, &how, line, (uint32_t)lines.number, &err))
            cli_bad_line(&bad_lines, path, lines.number, "render", err.message);
    }
    bad = cli_bad_lines_end(&bad_lines, path, "nothing was sent; see: tinkc data check");
    if (!bad && o->set.n == 0)
        bad = cli_fail(app, "data_invalid", NULL, "%s holds no conversation with a trained token",
                       path);
    return bad;
}

/* The teacher's candidates for token i + 1, as a distribution over K. */
static void fill_row(const off *o, soft *s, size_t i, const tinkc_samples *got)
{
    const int32_t *ids = NULL;
    const float *lp = NULL;
    size_t n = tinkc_samples_topk(got, i + 1, &ids, &lp);
    double total = 0;
    n = n < o->k ? n : o->k;
    for (size_t k = 0; k < n; k++)
        total += exp((double)lp[k]);
    for (size_t k = 0; k < n; k++) {
        s->targets[i * o->k + k] = ids[k];
        s->weights[i * o->k + k] = total > 0 && s->e.weights[i + 1] > 0
                                       ? (float)(exp((double)lp[k]) / total) * s->e.weights[i + 1]
                                       : 0;
    }
}

static bool take_targets(const off *o, soft *s, tinkc_future *f, tinkc_error *err)
{
    const tinkc_samples *got = tinkc_future_samples(f, 0, err);
    size_t rows = s->e.len - 1;
    s->targets = calloc(rows * o->k, sizeof *s->targets);
    s->weights = calloc(rows * o->k, sizeof *s->weights);
    if (!s->targets || !s->weights)
        tinkc_error_set(err, TINKC_E_MEMORY, "out of memory");
    else if (got && tinkc_samples_topk(got, rows, NULL, NULL) == 0)
        tinkc_error_set(err, TINKC_E_UNSUPPORTED,
                        "--off-policy needs top-k log-probabilities of prompt tokens, and the "
                        "service returns none");
    for (size_t i = 0; !err->code && i < rows; i++)
        fill_row(o, s, i, got);
    return !err->code;
}

static int ask_teacher(off *o)
{
    enum { AHEAD = 64 };
    tinkc_error err = { 0 };
    tinkc_future *ring[AHEAD] = { 0 };
    cli_progress bar;
    size_t n = o->set.n, sent = 0;
    o->items = calloc(n + 1, sizeof *o->items);
    cli_progress_begin(&bar, o->job.app, "Teacher", (int64_t)n, false);
    for (size_t i = 0; o->items && i < n && !err.code; i++) {
        for (; sent < n && sent < i + AHEAD && !err.code; sent++) {
            tinkc_sampling how = TINKC_SAMPLING_INIT;
            how.max_tokens = 1;
            how.prompt_logprobs = true;
            how.topk_prompt_logprobs = (int32_t)o->k;
            o->items[sent].e = o->set.items[sent];
            ring[sent % AHEAD] = tinkc_sample(o->teacher.sampler, o->set.items[sent].ids,
                                              o->set.items[sent].len, 1, &how, &err);
        }
        if (cli_wait(o->job.app, ring[i % AHEAD], "asking the teacher", &err))
            take_targets(o, &o->items[i], ring[i % AHEAD], &err);
        tinkc_future_free(ring[i % AHEAD]);
        ring[i % AHEAD] = NULL;
        cli_progress_step(&bar, (int64_t)i + 1, (int64_t)n, NULL);
    }
    for (size_t i = 0; i < AHEAD; i++)
        tinkc_future_free(ring[i]);
    cli_progress_end(&bar);
    return err.code ? cli_fail_error(o->job.app, &err, NULL) : 0;
}

static bool add_soft(const off *o, tinkc_batch *b, const soft *s, tinkc_error *err)
{
    int64_t shape[2] = { (int64_t)s->e.len - 1, (int64_t)o->k };
    size_t count = (s->e.len - 1) * o->k;
    tinkc_array targets = {
        .data = s->targets, .count = count, .shape = shape, .ndim = 2, .dtype = TINKC_I64
    };
    tinkc_array weights = {
        .data = s->weights, .count = count, .shape = shape, .ndim = 2, .dtype = TINKC_F32
    };
    return tinkc_batch_add_tokens(b, s->e.ids, s->e.len - 1, err) &&
           tinkc_batch_set(b, "target_tokens", &targets, err) &&
           tinkc_batch_set(b, "weights", &weights, err);
}

/* Of the teacher's distributions, weighted as the loss is: loss less entropy is the KL. */
static double entropy_of(const off *o, const soft *s)
{
    double sum = 0;
    for (size_t i = 0; i + 1 < s->e.len; i++) {
        double w = (double)s->e.weights[i + 1];
        for (size_t k = 0; w > 0 && k < o->k; k++) {
            double p = (double)s->weights[i * o->k + k] / w;
            sum -= p > 0 ? w * p * log(p) : 0;
        }
    }
    return sum;
}

static bool step(void *user, const size_t *which, size_t n, double rate, tkc_tree *row,
                 tinkc_error *err)
{
    off *o = user;
    size_t tokens = 0;
    tinkc_batch *b = tinkc_batch_new(o->job.app->client, err);
    double weight = 0, entropy = 0;
    for (size_t i = 0; i < n && !err->code; i++) {
        const soft *s = &o->items[which[i]];
        add_soft(o, b, s, err);
        tokens += s->e.len;
        for (size_t k = 0; k < (s->e.len - 1) * o->k; k++)
            weight += (double)s->weights[k];
        entropy += entropy_of(o, s);
    }
    tinkc_adam adam = cli_job_adam(o->job.app, rate);
    tinkc_future *pass =
        err->code ? NULL
                  : tinkc_forward_backward(o->job.trainer, b, TINKC_CROSS_ENTROPY, NULL, err);
    tinkc_future *moved = err->code ? NULL : tinkc_optim_step(o->job.trainer, &adam, err);
    bool ok = cli_wait_through(o->job.app, pass, "training", err) &&
              cli_wait_through(o->job.app, moved, "training", err);
    if (ok) {
        double loss = tinkc_fwdbwd_metric(tinkc_future_fwdbwd(pass, 0, err), "loss:sum", NAN);
        cli_job_add_metrics(row, tinkc_future_step(moved, 0, err));
        tkc_tree_set_real(row, "progress/done_frac",
                          (double)(o->job.step + 1) / (double)o->job.total_steps);
        tkc_tree_set_real(row, "optim/lr", rate);
        tkc_tree_set_i64(row, "batch_size", (int64_t)n);
        tkc_tree_set_i64(row, "num_tokens", (int64_t)tokens);
        cli_job_set(row, "train/loss", loss / weight);
        cli_job_set(row, "teacher_kl", (loss - entropy) / weight);
        o->job.elapsed_tokens += tokens;
    }
    tinkc_future_free(pass);
    tinkc_future_free(moved);
    tinkc_batch_free(b);
    return ok && !err->code;
}

/* Options of samples and their evaluation, of which there are none with --off-policy. */
static int check_unused(const cli_app *app)
{
    static const char *const of_samples[] = {
        "group-size",           "groups-per-batch", "kl-coef",   "kl-discount", "num-substeps",
        "max-steps-off-policy", "test-data",        "test-size", "eval-every",  "eval-temperature"
    };
    for (size_t i = 0; i < sizeof of_samples / sizeof *of_samples; i++)
        if (cli_on_the_line(app, of_samples[i]))
            return cli_fail(app, "usage", NULL, "--%s works without --off-policy only",
                            of_samples[i]);
    return 0;
}

static int off_policy(cli_app *app)
{
    off o = { .job = { .app = app }, .k = (size_t)cli_int(app, "targets") };
    size_t most = cli_wants_local(app) ? 128 : 1000; /* the engine's limit; a service says its own */
    if (o.k < 1 || o.k > most)
        return cli_fail(app, "usage", NULL, "--targets must be from 1 to %zu", most);
    if (cli_given(app, "context"))
        return cli_fail(app, "usage", NULL, "--context works without --off-policy only");
    if (cli_text_at(app, "teacher", 1))
        return cli_fail(app, "usage", NULL, "--off-policy takes one --teacher");
    int bad = check_unused(app);
    bad = bad ? bad : cli_job_settle(&o.job);
    bad = bad ? bad : check_teachers(&o.job, 1);
    bad = bad ? bad : read_conversations(&o);
    o.loop = (cli_epochs){
        .job = &o.job, .n = o.set.n, .watch = "teacher_kl", .user = &o, .step = step
    };
    bad = bad ? bad : cli_epochs_plan(&o.loop);
    if (!bad) {
        o.job.log_dir = cli_job_log_dir(&o.job, o.file.path, o.loop.rate, "off-policy-distill");
        show_plan(&o.job, "conversation", o.set.n, o.loop.batch_size, 0);
    }
    if (!bad && !cli_flag(app, "dry-run")) {
        tkc_tree *config = cli_job_config(&o.job, (const char *const *)&o.file.path, 1);
        bad = cli_open_named(app, cli_text_at(app, "teacher", 0), &o.teacher);
        bad = bad ? bad : ask_teacher(&o);
        bad = bad ? bad : cli_job_open(&o.job, config);
        bad = bad ? bad : cli_epochs_run(&o.loop);
    }
    for (size_t i = 0; o.items && i < o.set.n; i++) {
        free(o.items[i].targets);
        free(o.items[i].weights);
    }
    free(o.items);
    cli_examples_free(&o.set);
    cli_data_close(&o.file);
    cli_asked_free(&o.teacher);
    cli_job_free(&o.job);
    return bad;
}

int cli_train_distill(cli_app *app)
{
    int bad = cli_train_config_take(app);
    if (bad)
        return bad;
    if (!cli_text_at(app, "teacher", 0))
        return cli_fail(app, "usage", "name the model to learn from: --teacher M",
                        "no teacher was given");
    char *commit = cli_flag(app, "dry-run") ? NULL : cli_git_commit();
    const char *const about[] = { "recipe_name", "distill", commit ? "git_rev" : NULL, commit,
                                  NULL };
    app->session_metadata = about;
    bad = cli_flag(app, "off-policy") ? off_policy(app) : on_policy(app);
    cli_disconnect(app);
    app->session_metadata = NULL;
    free(commit);
    return bad;
}
