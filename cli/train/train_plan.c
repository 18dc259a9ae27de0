/* train_plan.c - before the first request: data, batches, steps, learning rate, the plan. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/main/config_file.h"
#include "cli/data/conversations.h"
#include "cli/models/model_folder.h"
#include "cli/models/models.h"
#include "cli/output/out.h"
#include "cli/data/shuffle.h"
#include "cli/output/term.h"
#include "cli/output/text.h"
#include "cli/train/train_run.h"
#include "cli/train/train_on.h"
#include "cli/models/weights.h"

static const char *plural(size_t n)
{
    return n == 1 ? "" : "s";
}

/* ---- data ---- */

/* All files as they are read. */
typedef struct data_reading {
    cli_sft *s;
    cli_examples *into;
    const cli_data_file *file;
    uint16_t index;
    cli_bad_lines bad;
    bool no_memory;
} data_reading;

static void take_block(cli_block *b, size_t before, void *user)
{
    data_reading *r = user;
    for (size_t i = 0; i < b->n_said; i++)
        if (b->said[i].level == CLI_LEVEL_ERROR)
            cli_bad_line(&r->bad, r->file->path, before + b->said[i].line, b->said[i].code,
                         b->said[i].message);
    r->s->n_turning += b->n_turning;
    if (!cli_examples_move(r->into, &b->set, before, r->index))
        r->no_memory = true;
}

static int read_examples(data_reading *r, const cli_data_file *f, uint16_t index,
                         cli_examples *into)
{
    cli_sft *s = r->s;
    size_t lines;
    cli_app *app = s->job.app;
    cli_example_options how = { .tokenizer = s->job.tokenizer,
                                .renderer = s->job.renderer,
                                .max_length = s->max_length,
                                .split_turns = cli_flag(app, "split-turns"),
                                .mean = strcmp(cli_text(app, "reduction"), "mean") == 0 };
    int bad = cli_train_on(app, cli_text(app, "train-on"), &how.train_on);
    if (bad)
        return bad;
    r->file = f;
    r->index = index;
    r->into = into;
    cli_convos convos = {
        .app = app, .file = f, .label = "Reading", .how = &how, .deliver = take_block, .user = r
    };
    bad = cli_convos_read(&convos, &lines);
    return !bad && r->no_memory ? cli_fail(app, "internal", NULL, "out of memory") : bad;
}

static size_t count_data(const cli_app *app)
{
    size_t n = app->n_args;
    while (cli_text_at(app, "data", n - app->n_args))
        n++;
    return n;
}

static const char *data_name(const cli_app *app, size_t i)
{
    return i < app->n_args ? app->args[i] : cli_text_at(app, "data", i - app->n_args);
}

static int read_all_data(cli_sft *s)
{
    cli_app *app = s->job.app;
    int bad = 0;
    s->n_files = count_data(app);
    if (s->n_files == 0)
        return cli_fail(app, "usage", "tinkc train sft FILE.jsonl", "no training data was given");
    s->files = calloc(s->n_files + 1, sizeof *s->files);
    data_reading r = { .s = s };
    cli_bad_lines_begin(&r.bad, app);
    for (size_t i = 0; !bad && s->files && i < s->n_files; i++) {
        bad = cli_data_open(app, data_name(app, i), &s->files[i]);
        if (!bad)
            bad = read_examples(&r, &s->files[i], (uint16_t)i, &s->train);
    }
    if (!bad && cli_given(app, "test-data")) {
        cli_data_file f;
        bad = cli_data_open(app, cli_text(app, "test-data"), &f);
        if (!bad)
            bad = read_examples(&r, &f, 0, &s->test);
        cli_data_close(&f);
    }
    if (bad) /* already reported, with the lines */
        r.bad.n = 0;
    const char *only = s->n_files == 1 ? s->files[0].path : NULL;
    int unusable = cli_bad_lines_end(&r.bad, only, "nothing was sent; see: tinkc data check");
    return bad ? bad : unusable;
}

/* The first --test-size of the first shuffle become the test set; the rest is trained on. */
static int hold_out(cli_sft *s)
{
    size_t held = (size_t)cli_int(s->job.app, "test-size");
    size_t *order = cli_shuffled(s->train.n, (uint64_t)cli_int(s->job.app, "shuffle-seed"));
    if (!order)
        return cli_fail(s->job.app, "internal", NULL, "out of memory");
    if (cli_given(s->job.app, "test-data") && cli_on_the_line(s->job.app, "test-size") && held) {
        free(order);
        return cli_fail(s->job.app, "usage", NULL, "give either --test-size or --test-data");
    }
    if (cli_given(s->job.app, "test-data"))
        held = 0;
    if (held && held >= s->train.n) {
        free(order);
        return cli_fail(s->job.app, "data_invalid", NULL,
                        "%zu examples are too few to hold %zu of them out", s->train.n, held);
    }
    for (size_t i = 0; i < held; i++) {
        cli_examples *t = &s->test;
        cli_example *grown = realloc(t->items, (t->n + 1) * sizeof *grown);
        if (!grown)
            break;
        t->items = grown;
        t->items[t->n++] = s->train.items[order[i]];
        s->train.items[order[i]].ids = NULL; /* owned by the test set now */
    }
    s->n_kept = s->train.n - held;
    s->kept = malloc((s->n_kept + 1) * sizeof *s->kept);
    if (s->kept)
        memcpy(s->kept, order + held, s->n_kept * sizeof *s->kept);
    free(order);
    return s->kept ? 0 : cli_fail(s->job.app, "internal", NULL, "out of memory");
}

const size_t *cli_sft_batch(cli_sft *s, size_t step, size_t *n)
{
    size_t epoch = step / s->job.n_batches, batch = step % s->job.n_batches;
    if (s->order_epoch != epoch) {
        free(s->order);
        size_t *order = cli_shuffled(s->n_kept, (uint64_t)epoch);
        for (size_t i = 0; order && i < s->n_kept; i++)
            order[i] = s->kept[order[i]];
        s->order = order;
        s->order_epoch = epoch;
    }
    size_t from = batch * s->batch_size;
    *n = s->n_kept - from < s->batch_size ? s->n_kept - from : s->batch_size;
    return s->order ? s->order + from : NULL;
}

/* ---- numbers ---- */

/* Why there is nothing to train on: it is never the batch size. */
static int fail_no_examples(const cli_sft *s)
{
    const cli_app *app = s->job.app;
    char hint[160];
    if (s->train.n_empty == 0)
        return cli_fail(app, "data_invalid", NULL, "there are no conversations in %s%s",
                        s->files[0].path, s->n_files > 1 ? ", nor in the other files" : "");
    (void)snprintf(hint, sizeof hint,
                   "see: tinkc data preview %.60s; --train-on %s and --max-length %lld decide",
                   s->files[0].path, cli_text(app, "train-on"),
                   (long long)cli_int(app, "max-length"));
    return cli_fail(app, "data_invalid", hint,
                    "none of %zu conversations has a token that is trained on", s->train.n_empty);
}

static int settle_batch(cli_sft *s)
{
    cli_app *app = s->job.app;
    const char *text = cli_text(app, "batch-size");
    int64_t size = 128;
    size_t epochs = s->job.epochs;
    if (s->train.n == 0)
        return fail_no_examples(s);
    if (strcmp(text, "auto") == 0) {
        while (size > 8 && (size_t)s->n_kept * epochs / (size_t)size < 100)
            size /= 2;
        if ((size_t)size > s->n_kept)
            size = (int64_t)s->n_kept;
    } else if (!cli_parse_int(text, &size) || size < 1) {
        return cli_fail(app, "usage", NULL, "--batch-size: '%s' is not a number above 0", text);
    }
    s->batch_size = (size_t)size;
    s->job.n_batches = s->batch_size ? s->n_kept / s->batch_size : 0;
    if (cli_flag(app, "keep-last") && s->batch_size && s->n_kept % s->batch_size)
        s->job.n_batches++;
    s->job.total_steps = s->job.n_batches * epochs;
    if (cli_given(app, "max-steps") && (size_t)cli_int(app, "max-steps") < s->job.total_steps)
        s->job.total_steps = (size_t)cli_int(app, "max-steps");
    if (s->job.total_steps == 0)
        return cli_fail(app, "data_invalid", "make --batch-size smaller, or add data",
                        "%zu example%s less than one batch of %zu", s->n_kept,
                        s->n_kept == 1 ? " is" : "s are", s->batch_size);
    return cli_job_check_warmup(&s->job);
}

static int settle_rate(cli_sft *s)
{
    const char *text = cli_text(s->job.app, "lr");
    if (strcmp(text, "auto") == 0) {
        s->rate = cli_model_default_rate(s->job.model, s->job.model, s->rate_why);
        return 0;
    }
    if (!cli_parse_number(text, &s->rate) || s->rate <= 0)
        return cli_fail(s->job.app, "usage", NULL, "--lr: '%s' is not a number above 0", text);
    return 0;
}

double cli_sft_rate(const cli_sft *s, size_t step)
{
    return cli_job_rate(&s->job, s->rate, step);
}

enum { MOST_EPOCHS = 1000000 }; /* so that steps can be counted */

static int check_options(cli_app *app)
{
    int64_t rank = cli_int(app, "lora-rank");
    if (rank < 1 || (rank & (rank - 1)) != 0)
        return cli_fail(app, "usage", "8, 16, 32, 64, 128", "--lora-rank must be a power of two");
    if (!cli_flag(app, "train-mlp") && !cli_flag(app, "train-attn") &&
        !cli_flag(app, "train-unembed"))
        return cli_fail(app, "usage", NULL,
                        "nothing to train: attention, MLP and unembedding are all off");
    if (cli_given(app, "max-steps") && cli_int(app, "max-steps") < 1)
        return cli_fail(app, "usage", NULL, "--max-steps must be at least 1");
    if (cli_int(app, "epochs") < 1 || cli_int(app, "epochs") > MOST_EPOCHS)
        return cli_fail(app, "usage", NULL, "--epochs must be from 1 to %d", MOST_EPOCHS);
    if (cli_int(app, "submit-ahead") > CLI_MOST_AHEAD)
        return cli_fail(app, "usage", NULL, "--submit-ahead must be at most %d", CLI_MOST_AHEAD);
    double seconds;
    const char *ttl = cli_text(app, "ttl");
    if (strcmp(ttl, "never") != 0 && (!cli_parse_duration(ttl, &seconds) || seconds < 1))
        return cli_fail(app, "usage", "7d, 3600, or never", "--ttl: '%s' is not a duration", ttl);
    if (cli_int(app, "rolling-ttl") < 1)
        return cli_fail(app, "usage", NULL, "--rolling-ttl must be above 0");
    for (size_t i = 0; cli_text_at(app, "metadata", i); i++)
        if (strcspn(cli_text_at(app, "metadata", i), "=") == 0 ||
            !strchr(cli_text_at(app, "metadata", i), '='))
            return cli_fail(app, "usage", NULL, "--metadata: '%s' is not K=V",
                            cli_text_at(app, "metadata", i));
    return 0;
}

/* --max-length 0 is the model's own limit, which the service knows. */
static int settle_length(cli_sft *s)
{
    tinkc_error err = { 0 };
    s->max_length = (size_t)cli_int(s->job.app, "max-length");
    if (s->max_length || cli_flag(s->job.app, "dry-run"))
        return 0;
    int bad = cli_connect(s->job.app);
    if (bad)
        return bad;
    s->max_length = (size_t)cli_context_length(s->job.app, s->job.model, &err);
    return err.code ? cli_fail_error(s->job.app, &err, NULL) : 0;
}

/* ---- names ---- */

static char *log_dir_of(const cli_sft *s)
{
    char what[40];
    (void)snprintf(what, sizeof what, "%zubatch", s->batch_size);
    return cli_job_log_dir(&s->job, s->files[0].path, s->rate, what);
}

/* ---- the renderer ---- */

/* Formats in which each turn's prompt begins with the whole turn before it. */
static bool extends(const char *renderer)
{
    static const char *const names[] = { "tml_v0",
                                         "llama3",
                                         "qwen3_instruct",
                                         "deepseekv3",
                                         "deepseekv3_disable_thinking",
                                         "nemotron3_preserve_thinking",
                                         "nemotron3_ultra_preserve_thinking",
                                         "role_colon" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], renderer) == 0)
            return true;
    return false;
}

static void suggest_splitting(const cli_sft *s)
{
    const cli_app *app = s->job.app;
    if (s->n_turning && s->job.renderer && !extends(s->job.renderer) &&
        !cli_flag(app, "split-turns") &&
        strcmp(cli_text(app, "train-on"), "all_assistant_messages") == 0)
        cli_warn(app,
                 "in %zu conversation%s the assistant speaks more than once, and %s renders "
                 "earlier turns differently later: --split-turns makes one example of each answer",
                 s->n_turning, s->n_turning == 1 ? "" : "s", s->job.renderer);
}

int cli_sft_prepare(cli_app *app, cli_sft *s)
{
    *s = (cli_sft){ .job = { .app = app }, .order_epoch = SIZE_MAX };
    s->job.epochs = (size_t)cli_int(app, "epochs");
    int bad = check_options(app);
    bad = bad ? bad : cli_job_settle(&s->job);
    bad = bad ? bad : settle_length(s);
    bad = bad ? bad : read_all_data(s);
    if (!bad)
        suggest_splitting(s);
    bad = bad ? bad : hold_out(s);
    bad = bad ? bad : settle_batch(s);
    bad = bad ? bad : settle_rate(s);
    if (!bad)
        s->job.log_dir = log_dir_of(s);
    return bad;
}

void cli_sft_free(cli_sft *s)
{
    cli_job_free(&s->job);
    cli_examples_free(&s->train);
    cli_examples_free(&s->test);
    for (size_t i = 0; s->files && i < s->n_files; i++)
        cli_data_close(&s->files[i]);
    free(s->files);
    free(s->order);
    free(s->kept);
}

/* ---- the plan ---- */

void cli_sft_show_plan(const cli_sft *s)
{
    char tokens[CLI_SHORT_TEXT], trained[CLI_SHORT_TEXT], first[CLI_SHORT_TEXT],
        last[CLI_SHORT_TEXT], parameters[CLI_SHORT_TEXT];
    const cli_app *app = s->job.app;
    const cli_model_facts *m = cli_model_find(s->job.model);
    int64_t rank = cli_int(app, "lora-rank");
    cli_format_count((int64_t)(s->train.n_tokens + s->train.n), tokens); /* n_tokens: targets */
    cli_format_number(cli_sft_rate(s, 0), first);
    (void)snprintf(last, sizeof last, "%.3g", cli_sft_rate(s, s->job.total_steps - 1));
    cli_note(app, "model      %s%s%s", s->job.model, s->job.renderer ? ", renderer " : "",
             s->job.renderer ? s->job.renderer : "");
    cli_format_count((int64_t)s->train.n_trained, trained);
    cli_note(app, "data       %zu example%s, %s tokens (%s trained), longest %zu%s", s->train.n,
             plural(s->train.n), tokens, trained, s->train.n_longest,
             s->train.n_cut ? "" : ", none cut");
    if (s->train.n_cut)
        cli_note(app, "           %zu longer than --max-length %lld: cut at the right",
                 s->train.n_cut, (long long)s->max_length);
    if (s->train.n_empty)
        cli_note(app, "           %zu without a trained token: left out", s->train.n_empty);
    if (s->test.n)
        cli_note(app, "test       %zu example%s held out", s->test.n, plural(s->test.n));
    cli_note(app, "steps      %zu of %zu example%s, %zu batch%s an epoch, %zu epoch%s",
             s->job.total_steps, s->batch_size, plural(s->batch_size), s->job.n_batches,
             s->job.n_batches == 1 ? "" : "es", s->job.epochs, plural(s->job.epochs));
    cli_note(app, "rate       %s to %s, %s%s%s%s", first, last, cli_text(app, "lr-schedule"),
             cli_int(app, "warmup-steps") ? " after the warm-up" : "", s->rate_why[0] ? "; " : "",
             s->rate_why);
    if (m && m->mlp) {
        cli_format_count(rank * ((cli_flag(app, "train-mlp") ? m->mlp : 0) +
                                 (cli_flag(app, "train-attn") ? m->attn : 0) +
                                 (cli_flag(app, "train-unembed") ? m->unembed : 0)),
                         parameters);
        cli_note(app, "adapter    rank %lld, %s parameters", (long long)rank, parameters);
    } else {
        cli_note(app, "adapter    rank %lld", (long long)rank);
    }
    cli_note(app, "log        %s", s->job.log_dir);
}

tkc_tree *cli_sft_config(const cli_sft *s)
{
    const char **paths = calloc(s->n_files + 1, sizeof *paths);
    for (size_t i = 0; paths && i < s->n_files; i++)
        paths[i] = s->files[i].path;
    tkc_tree *v = cli_job_config(&s->job, paths, paths ? s->n_files : 0);
    free(paths);
    tkc_tree_set_real(v, "learning_rate", s->rate);
    tkc_tree_set_i64(v, "batch_size", (int64_t)s->batch_size);
    return v;
}
