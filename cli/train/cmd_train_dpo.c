/* cmd_train_dpo.c - `tinkc train dpo`: preferences against a reference that never moves.
 *
 * The reference's log-probabilities are asked for once and kept in reference_logprobs.json in the log
 * directory, so a resumed run has the very same ones.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tinkc/recipes.h>

#include "cli/main/commands.h"
#include "cli/main/files.h"
#include "cli/track/gitinfo.h"
#include "cli/data/pairs.h"
#include "cli/manage/prices.h"
#include "cli/data/shuffle.h"
#include "cli/output/term.h"
#include "cli/output/text.h"
#include "cli/train/train_config.h"
#include "cli/train/train_epochs.h"
#include "cli/models/weights.h"

enum { MOST_PAIRS = 4096 }; /* in one step */

typedef struct dpo {
    cli_job job;
    cli_pairs pairs;
    size_t *train, *test; /* indices into pairs */
    size_t n_train, n_test;
    int32_t kind;
    cli_epochs loop;
} dpo;

/* ---- the reference ---- */

static size_t n_sides(const dpo *d)
{
    return 2 * d->pairs.n;
}

static cli_side *side(const dpo *d, size_t i)
{
    return i % 2 ? &d->pairs.items[i / 2].rejected : &d->pairs.items[i / 2].chosen;
}

static double weigh(const cli_side *s, tinkc_f32s lp)
{
    double sum = 0;
    for (size_t i = 1; i < s->len && i < lp.len; i++)
        if (s->weights[i] > 0)
            sum += (double)s->weights[i] * (double)lp.data[i];
    return sum;
}

static bool ask_reference(dpo *d, tinkc_sampler *sampler, tinkc_error *err)
{
    enum { AHEAD = 256 };
    tinkc_future *ring[AHEAD] = { 0 };
    cli_progress bar;
    size_t n = n_sides(d), sent = 0;
    cli_progress_begin(&bar, d->job.app, "Reference", (int64_t)n, false);
    for (size_t i = 0; i < n && !err->code; i++) {
        for (; sent < n && sent < i + AHEAD && !err->code; sent++)
            ring[sent % AHEAD] =
                tinkc_logprobs(sampler, side(d, sent)->ids, side(d, sent)->len, err);
        if (cli_wait(d->job.app, ring[i % AHEAD], "asking the reference", err))
            side(d, i)->reference =
                weigh(side(d, i), tinkc_future_logprobs(ring[i % AHEAD], 0, err));
        tinkc_future_free(ring[i % AHEAD]);
        ring[i % AHEAD] = NULL;
        if (!err->code && !isfinite(side(d, i)->reference))
            tinkc_error_set(err, TINKC_E_BAD_RESPONSE, "the reference gave no log-probability");
        cli_progress_step(&bar, (int64_t)i + 1, (int64_t)n, NULL);
    }
    for (size_t i = 0; i < AHEAD; i++)
        tinkc_future_free(ring[i]);
    cli_progress_end(&bar);
    return !err->code;
}

static char *cache_path(const dpo *d)
{
    return cli_printf("%s/reference_logprobs.json", d->job.log_dir);
}

/* True if the file is there and fits. */
static bool read_cache(dpo *d)
{
    char *path = cache_path(d);
    tkc_arena arena = { 0 };
    const tkc_tree *v = path ? cli_json_load(&arena, path, NULL) : NULL;
    const tkc_tree *sums = tkc_tree_get(v, "sums");
    bool ok = tkc_tree_length(sums) == n_sides(d) && tkc_tree_length(sums) > 0;
    for (size_t i = 0; ok && i < n_sides(d); i++)
        side(d, i)->reference = tkc_tree_number(tkc_tree_at(sums, i));
    tkc_arena_free(&arena);
    free(path);
    return ok;
}

static int write_cache(const dpo *d, const char *reference)
{
    cli_save save;
    char *path = cache_path(d);
    tkc_arena arena = { 0 };
    tkc_tree *sums = tkc_tree_array(&arena);
    const tkc_tree *v = tkc_tree_pack(&arena, "{s:s,s:o}", "reference", reference, "sums", sums);
    for (size_t i = 0; i < n_sides(d); i++)
        tkc_tree_add_real(sums, side(d, i)->reference);
    cli_save_begin(&save, path ? path : "", 0666);
    const char *text = tkc_tree_print(&arena, v, TKC_TREE_COMPACT);
    if (save.f && text)
        fputs(text, save.f);
    tkc_arena_free(&arena);
    free(path);
    return cli_save_end(&save, d->job.app, true);
}

/* --reference, else the weights that the trainer has before its first step. */
static int settle_reference(dpo *d)
{
    tinkc_error err = { 0 };
    cli_app *app = d->job.app;
    const char *named = cli_text(app, "reference");
    cli_asked asked = { 0 };
    if (d->job.resumed && read_cache(d))
        return 0;
    if (d->job.step > 0 && !named)
        return cli_fail(app, "data_invalid",
                        "name it with --reference, or begin again with --if-exists delete",
                        "%s/reference_logprobs.json is missing and cannot be computed again from "
                        "the trained weights",
                        d->job.log_dir);
    int bad = named ? cli_open_named(app, named, &asked) : 0;
    tinkc_sampler *own = NULL;
    if (!named) {
        tinkc_future *f = tinkc_trainer_open_sampler(d->job.trainer, NULL, &err);
        own = cli_wait(app, f, "preparing the reference", &err) ? tinkc_future_sampler(f, 0, &err)
                                                                : NULL;
        tinkc_future_free(f);
    }
    if (!bad && !err.code)
        ask_reference(d, named ? asked.sampler : own, &err);
    tinkc_sampler_free(own);
    cli_asked_free(&asked);
    if (!bad && err.code)
        bad = cli_fail_error(app, &err, NULL);
    return bad ? bad : write_cache(d, named ? named : "start");
}

/* ---- steps ---- */

typedef struct filled {
    tinkc_batch *batch;
    double *reference;
    bool *good;
    size_t n, tokens;
} filled;

/* Which side of each pair goes into a batch. */
enum { BOTH, FIRST, SECOND };

static bool fill(const dpo *d, const size_t *which, size_t n, int sides, filled *out,
                 tinkc_error *err)
{
    size_t each = sides == BOTH ? 2 : 1;
    *out = (filled){ .batch = tinkc_batch_new(d->job.app->client, err), .n = n * each };
    out->reference = calloc(out->n + 1, sizeof *out->reference);
    out->good = calloc(out->n + 1, sizeof *out->good);
    if (!out->reference || !out->good)
        tinkc_error_set(err, TINKC_E_MEMORY, "out of memory");
    for (size_t i = 0; i < out->n && !err->code; i++) {
        const cli_side *s = side(d, which[i / each] * 2 + (sides == SECOND ? 1 : i % each));
        out->reference[i] = s->reference;
        out->good[i] = d->pairs.items[which[i / each]].good;
        out->tokens += s->len;
        tinkc_batch_add_weighted(out->batch, s->ids, s->len, s->weights, err);
    }
    return !err->code;
}

static void empty(filled *f)
{
    tinkc_batch_free(f->batch);
    free(f->reference);
    free(f->good);
}

/* KTO: how far the policy is from the reference, from answers that belong to other prompts. 0 for the
 * losses that do not need it, or with err set. */
static double estimate_kl(dpo *d, const size_t *which, size_t n, tkc_tree *row, tinkc_error *err)
{
    filled f;
    double kl = 0;
    if (d->kind != TINKC_PREFER_KTO)
        return 0;
    tinkc_future *pass = NULL;
    if (fill(d, which, n, SECOND, &f, err))
        pass = tinkc_forward(d->job.trainer, f.batch, TINKC_CROSS_ENTROPY, NULL, err);
    if (cli_wait_through(d->job.app, pass, "estimating the KL", err)) {
        kl = tinkc_recipe_kto_kl(tinkc_future_fwdbwd(pass, 0, err), f.batch, f.reference, f.n,
                                 cli_flag(d->job.app, "length-normalized"), err);
        d->job.elapsed_tokens += f.tokens;
        cli_job_set(row, "kl", kl);
    }
    tinkc_future_free(pass);
    empty(&f);
    return kl;
}

static tinkc_preference loss_of(const dpo *d, const filled *f, double kl)
{
    return (tinkc_preference){ .reference = f->reference,
                               .good = f->good,
                               .n = f->n,
                               .beta = cli_number(d->job.app, "dpo-beta"),
                               .kl = kl,
                               .kind = d->kind,
                               .by_length = cli_flag(d->job.app, "length-normalized") };
}

static bool step(void *user, const size_t *which, size_t n, double rate, tkc_tree *row,
                 tinkc_error *err)
{
    static const char *const names[] = { "dpo_loss", "accuracy", "margin", "chosen_reward",
                                         "rejected_reward" };
    dpo *d = user;
    filled f;
    size_t picked[MOST_PAIRS];
    for (size_t i = 0; i < n; i++)
        picked[i] = d->train[which[i]];
    tinkc_future *pass = NULL, *moved = NULL;
    double kl = estimate_kl(d, picked, n, row, err);
    if (fill(d, picked, n, d->pairs.unpaired ? FIRST : BOTH, &f, err)) {
        tinkc_preference loss = loss_of(d, &f, kl);
        tinkc_adam adam = cli_job_adam(d->job.app, rate);
        pass = tinkc_forward_backward_custom(d->job.trainer, f.batch, TINKC_CUSTOM_TOGETHER, NULL,
                                             tinkc_recipe_loss_preference, &loss, err);
        moved = tinkc_optim_step(d->job.trainer, &adam, err);
    }
    bool ok = cli_wait_through(d->job.app, pass, "training", err) &&
              cli_wait_through(d->job.app, moved, "training", err);
    if (ok) {
        const tinkc_fwdbwd *got = tinkc_future_fwdbwd(pass, 0, err);
        cli_job_add_metrics(row, tinkc_future_step(moved, 0, err));
        tkc_tree_set_i64(row, "num_pairs", (int64_t)n);
        tkc_tree_set_i64(row, "num_tokens", (int64_t)f.tokens);
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            cli_job_set(row, names[i], tinkc_fwdbwd_metric(got, names[i], NAN));
        d->job.elapsed_tokens += f.tokens;
    }
    tinkc_future_free(pass);
    tinkc_future_free(moved);
    empty(&f);
    return !err->code;
}

/* Accuracy, margin and the chosen answers' loss on what was held out. */
static bool evaluate(void *user, tkc_tree *row, tinkc_error *err)
{
    dpo *d = user;
    filled f;
    tinkc_future *pass = NULL;
    if (fill(d, d->test, d->n_test, BOTH, &f, err))
        pass = tinkc_forward(d->job.trainer, f.batch, TINKC_CROSS_ENTROPY, NULL, err);
    bool ok = cli_wait(d->job.app, pass, "evaluating", err);
    double right = 0, margin = 0, nll = 0, tokens = 0, beta = cli_number(d->job.app, "dpo-beta");
    bool by_length = cli_flag(d->job.app, "length-normalized");
    const tinkc_fwdbwd *got = ok ? tinkc_future_fwdbwd(pass, 0, err) : NULL;
    for (size_t i = 0; ok && i + 1 < f.n; i += 2) {
        double r[2];
        for (size_t k = 0; k < 2; k++) {
            tinkc_f32s lp = tinkc_tensor_f32s(tinkc_fwdbwd_output(got, i + k, "logprobs"));
            tinkc_f32s w = tinkc_tensor_f32s(tinkc_batch_tensor(f.batch, i + k, "weights"));
            double sum = 0, count = 0;
            for (size_t t = 0; t < lp.len && t < w.len; t++) {
                sum += (double)w.data[t] * (double)lp.data[t];
                count += (double)w.data[t];
            }
            r[k] = (sum - f.reference[i + k]) / (by_length ? count : 1);
            nll -= k == 0 ? sum : 0;
            tokens += k == 0 ? count : 0;
        }
        right += r[0] > r[1];
        margin += beta * (r[0] - r[1]);
    }
    if (ok) {
        double n = (double)d->n_test;
        tkc_tree_set_real(row, "test/accuracy", right / n);
        tkc_tree_set_real(row, "test/margin", margin / n);
        cli_job_set(row, "test/nll", nll / tokens);
        cli_note(d->job.app, "step %zu: test accuracy %.3f, margin %.4f", d->job.step, right / n,
                 margin / n);
    }
    tinkc_future_free(pass);
    empty(&f);
    return ok;
}

/* ---- the command ---- */

static int split(dpo *d)
{
    cli_app *app = d->job.app;
    size_t held = (size_t)cli_int(app, "test-size");
    if (held >= d->pairs.n && held)
        return cli_fail(app, "data_invalid", NULL, "%zu pairs are too few to hold %zu of them out",
                        d->pairs.n, held);
    if (held && d->pairs.unpaired)
        return cli_fail(app, "usage", NULL, "--test-size works with pairs only");
    size_t *order = cli_shuffled(d->pairs.n, (uint64_t)cli_int(app, "shuffle-seed"));
    if (!order)
        return cli_fail(app, "internal", NULL, "out of memory");
    d->test = order; /* one block: the held-out ones first */
    d->train = order + held;
    d->n_test = held;
    d->n_train = d->pairs.n - held;
    d->loop = (cli_epochs){ .job = &d->job,
                            .n = d->n_train,
                            .watch = "dpo_loss",
                            .user = d,
                            .step = step,
                            .evaluate = held ? evaluate : NULL };
    if (cli_int(app, "batch-size") > MOST_PAIRS)
        return cli_fail(app, "usage", NULL, "--batch-size must be at most %d", MOST_PAIRS);
    return cli_epochs_plan(&d->loop);
}

static char *log_dir_of(const dpo *d)
{
    char what[60];
    (void)snprintf(what, sizeof what, "%zubatch-%s", d->loop.batch_size,
                   cli_text(d->job.app, "loss"));
    return cli_job_log_dir(&d->job, d->pairs.paths[0], d->loop.rate, what);
}

static int prepare(cli_app *app, dpo *d)
{
    const char *loss = cli_text(app, "loss");
    d->kind = strcmp(loss, "ipo") == 0   ? TINKC_PREFER_IPO
              : strcmp(loss, "kto") == 0 ? TINKC_PREFER_KTO
                                         : TINKC_PREFER_DPO;
    if (cli_number(app, "dpo-beta") <= 0)
        return cli_fail(app, "usage", NULL, "--dpo-beta must be above 0");
    int bad = cli_job_settle(&d->job);
    bad = bad ? bad
              : cli_pairs_read(app, d->job.tokenizer, d->job.renderer, d->kind == TINKC_PREFER_KTO,
                               &d->pairs);
    bad = bad ? bad : split(d);
    if (!bad)
        d->job.log_dir = log_dir_of(d);
    return bad;
}

static void show_plan(const dpo *d)
{
    const cli_app *app = d->job.app;
    char tokens[CLI_SHORT_TEXT];
    cli_format_count((int64_t)d->pairs.n_tokens, tokens);
    cli_note(app, "model      %s%s%s", d->job.model, d->job.renderer ? ", renderer " : "",
             d->job.renderer ? d->job.renderer : "");
    cli_note(app, "data       %zu %s, %s tokens, %zu cut", d->pairs.n,
             d->pairs.unpaired ? "answers" : "pairs", tokens, d->pairs.n_cut);
    if (d->n_test)
        cli_note(app, "test       %zu pairs held out", d->n_test);
    cli_note(app, "steps      %zu of %zu %s, %zu epoch%s", d->job.total_steps, d->loop.batch_size,
             d->pairs.unpaired ? "answers" : "pairs", d->job.epochs, d->job.epochs == 1 ? "" : "s");
    cli_note(app, "loss       %s, beta %g, rate %g%s%s", cli_text(app, "loss"),
             cli_number(app, "dpo-beta"), cli_number(app, "lr"), d->job.rate_why[0] ? "; " : "",
             d->job.rate_why);
    cli_note(app, "log        %s", d->job.log_dir);
}

static int train(dpo *d)
{
    tkc_tree *config =
        cli_job_config(&d->job, (const char *const *)d->pairs.paths, d->pairs.n_paths);
    int bad = cli_job_open(&d->job, config);
    if (!bad && d->job.step < d->job.total_steps)
        bad = settle_reference(d);
    return bad ? bad : cli_epochs_run(&d->loop);
}

static int show_cost(const dpo *d)
{
    int64_t each = (int64_t)(d->pairs.n_tokens / d->pairs.n * d->loop.batch_size);
    cli_tokens_planned t = { .prefill = (int64_t)d->pairs.n_tokens,
                             .train = 2 * each * (int64_t)d->job.total_steps };
    return cli_show_cost(d->job.app, d->job.model, &t);
}

int cli_train_dpo(cli_app *app)
{
    dpo d = { .job = { .app = app, .rate_share = 0.1 } };
    char *commit = cli_flag(app, "dry-run") ? NULL : cli_git_commit();
    const char *const about[] = { "recipe_name", "dpo", commit ? "git_rev" : NULL, commit, NULL };
    app->session_metadata = about;
    int bad = cli_train_config_take(app);
    bad = bad ? bad : prepare(app, &d);
    if (!bad)
        show_plan(&d);
    if (!bad)
        bad = cli_flag(app, "dry-run") ? show_cost(&d) : train(&d);
    free(d.test);
    cli_pairs_free(&d.pairs);
    cli_job_free(&d.job);
    cli_disconnect(app);
    app->session_metadata = NULL;
    free(commit);
    return bad;
}
