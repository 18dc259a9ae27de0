/* cmd_eval.c - `tinkc eval run`, `show`, `compare`: grading a model, and what came of it. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/main/commands.h"
#include "cli/eval/eval_choice.h"
#include "cli/eval/eval_results.h"
#include "cli/main/files.h"
#include "cli/train/reward_setup.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

typedef struct evaluation {
    cli_app *app;
    cli_asked model;
    cli_rewards rewards;
    cli_prompts prompts;
    char **ids;                 /* of the prompts */
    char *name, *folder, *file; /* benchmark; SAVE_DIR/NAME; its trajectories.jsonl */
    cli_eval before;            /* what an earlier run left */
    FILE *out;
    size_t n, failed; /* answers to each prompt; answers that failed in this process */
    int64_t begun_ms;
} evaluation;

/* ---- before ---- */

static char *bare_name(const char *text)
{
    const char *slash = strrchr(text, '/');
    char *name = strdup(slash ? slash + 1 : text), *dot = name ? strrchr(name, '.') : NULL;
    if (dot && dot > name)
        *dot = '\0';
    return name;
}

static int settle_names(evaluation *e)
{
    const cli_app *app = e->app;
    e->name = bare_name(strcmp(e->prompts.dataset, "-") == 0 ? "stdin" : e->prompts.dataset);
    char *model = bare_name(cli_model(app) ? cli_model(app) : "model");
    const char *save = cli_text(app, "save-dir");
    e->folder = save ? cli_printf("%s/%s", save, e->name)
                     : cli_printf("tinkc-evals/%s-%s/%s", e->name, model, e->name);
    e->file = e->folder ? cli_printf("%s/trajectories.jsonl", e->folder) : NULL;
    free(model);
    return e->name && e->file ? 0 : cli_fail(app, "internal", NULL, "out of memory");
}

/* The row's own id, else where it stands. */
static char *example_id(const tinkc_task *t)
{
    tkc_arena arena = { 0 };
    const tkc_tree *row = tkc_tree_read(&arena, tkc_str(t->row_json), 0);
    const tkc_tree *id = tkc_tree_get(row, "id");
    if (!id)
        id = tkc_tree_get(row, "example_id");
    const char *slash = strrchr(t->where, '/');
    char *text = tkc_tree_is_text(id)  ? strdup(tkc_tree_text(id))
                 : tkc_tree_is_i64(id) ? cli_printf("%lld", (long long)tkc_tree_i64(id))
                                       : strdup(slash ? slash + 1 : t->where);
    tkc_arena_free(&arena);
    return text;
}

/* Answers are kept by id: two prompts with one id would overwrite each other. */
static int settle_ids(evaluation *e)
{
    tkc_tree *seen = cli_object(e->app);
    int bad = 0;
    e->ids = calloc(e->prompts.n + 1, sizeof *e->ids);
    for (size_t i = 0; e->ids && i < e->prompts.n && !bad; i++) {
        const tinkc_task *t = &e->prompts.items[i];
        e->ids[i] = example_id(t);
        const tkc_tree *before = e->ids[i] ? tkc_tree_get(seen, e->ids[i]) : NULL;
        if (!e->ids[i])
            bad = cli_fail(e->app, "internal", NULL, "out of memory");
        else if (before)
            bad = cli_fail(e->app, "data_invalid", "give every row an \"id\" of its own, or none",
                           "%s: id \"%s\" is also that of %s", t->where, e->ids[i],
                           tkc_tree_text(before));
        else
            tkc_tree_set(seen, e->ids[i], cli_json_text(cli_arena(e->app), t->where));
    }
    return e->ids ? bad : cli_fail(e->app, "internal", NULL, "out of memory");
}

static int check(evaluation *e)
{
    cli_app *app = e->app;
    bool choices = cli_flag(app, "multiple-choice");
    if (!choices && e->rewards.n == 0 && !e->rewards.wants_model && !e->rewards.env)
        return cli_fail(app, "usage", "--grader number, --reward-cmd CMD, or --multiple-choice",
                        "no grader was given");
    e->n = (size_t)cli_int(app, "number");
    if (e->n < 1 || e->n > 65536 || cli_int(app, "concurrency") < 1)
        return cli_fail(app, "usage", NULL, "-n must be from 1 to 65536, and -j above 0");
    cli_prompt_options how = { .need_answer = choices || e->rewards.needs_answer,
                               .need_prompt = !e->rewards.env };
    int bad = cli_prompts_read(app, &how, &e->prompts);
    size_t limit = (size_t)cli_int(app, "limit");
    cli_prompts rest = { 0 };
    if (!bad && limit && limit < e->prompts.n) {
        (void)cli_prompts_split(&e->prompts, e->prompts.n - limit, &rest);
        cli_prompts_free(&rest);
    }
    if (!bad && choices)
        bad = cli_eval_check_choices(app, &e->prompts);
    bad = bad ? bad : settle_names(e);
    return bad ? bad : settle_ids(e);
}

/* What decides the answers and their grades: all options but where results go and how fast. */
static tkc_tree *settings_of(const evaluation *e)
{
    static const char *const free_to_change[] = { "number",    "concurrency", "limit",
                                                  "save-dir",  "min-score",   "reward-procs",
                                                  "env-procs", "data" };
    tkc_tree *v = cli_pack(e->app, "{s:s?,s:s?}", "base_model", e->model.base_model, "model_path",
                           e->model.model_path);
    for (const cli_option *o = e->app->command->options; o->name; o++) {
        bool skip = strcmp(o->name, "model") == 0;
        for (size_t i = 0; i < sizeof free_to_change / sizeof *free_to_change; i++)
            skip = skip || strcmp(o->name, free_to_change[i]) == 0;
        for (size_t i = 0; !skip && o->repeats && cli_text_at(e->app, o->name, i); i++) {
            char *name = cli_printf("%s.%zu", o->name, i);
            tkc_tree_set(v, name,
                         cli_json_text(cli_arena(e->app), cli_text_at(e->app, o->name, i)));
            free(name);
        }
        if (!skip && !o->repeats && cli_text(e->app, o->name))
            tkc_tree_set(v, o->name, cli_json_text(cli_arena(e->app), cli_text(e->app, o->name)));
        if (!skip && o->kind == CLI_FLAG)
            tkc_tree_set_bool(v, o->name, cli_flag(e->app, o->name));
    }
    return v;
}

/* A folder continues an evaluation with the same settings only. */
static int settle_settings(evaluation *e)
{
    char *path = cli_printf("%s/settings.json", e->folder);
    tkc_tree *now = settings_of(e),
             *then = path ? cli_json_load(cli_arena(e->app), path, NULL) : NULL;
    int bad = 0;
    if (then && !tkc_tree_equal(now, then)) {
        bad = cli_fail(e->app, "exists", "give another --save-dir, or remove it",
                       "%s holds an evaluation with other settings", e->folder);
    } else if (!then) {
        cli_save save;
        cli_save_begin(&save, path ? path : "", 0666);
        if (save.f)
            cli_write_json(save.f, now, 2);
        bad = cli_save_end(&save, e->app, true);
    }
    free(path);
    return bad;
}

static int open_output(evaluation *e)
{
    if (!cli_make_folder(e->folder, 0777))
        return cli_fail(e->app, "local_io", NULL, "%s: %s", e->folder, tkc_errno_text(errno));
    int bad = cli_check_links(e->app, e->folder, "--save-dir");
    bad = bad ? bad : settle_settings(e);
    if (bad)
        return bad;
    if (cli_eval_load(e->file, &e->before) && e->before.n)
        cli_note(e->app, "%s has %zu answers already: continuing", e->folder, e->before.n);
    e->out = fopen(e->file, "a+e");
    if (!e->out)
        return cli_fail(e->app, "local_io", NULL, "%s: %s", e->file, tkc_errno_text(errno));
    /* A torn last line ends here, so that it does not swallow the next one. */
    if (fseek(e->out, -1, SEEK_END) == 0 && fgetc(e->out) != '\n') {
        fseek(e->out, 0, SEEK_END);
        fputc('\n', e->out);
    }
    return 0;
}

static bool write_line(evaluation *e, const tkc_tree *v)
{
    if (tkc_tree_is_text(tkc_tree_get(v, "error")))
        e->failed++;
    cli_write_json(e->out, v, 0);
    return v && fputc('\n', e->out) != EOF && fflush(e->out) == 0;
}

/* ---- asking ---- */

/* A group is one answer; its id is prompt * n + sample. */
static bool take(evaluation *e, tinkc_group *g, tinkc_error *err)
{
    size_t i = (size_t)tinkc_group_id(g) / e->n, sample = (size_t)tinkc_group_id(g) % e->n;
    tkc_arena arena = { 0 };
    bool ok =
        write_line(e, cli_eval_line(&arena, e->name, i, e->ids[i], sample, tinkc_group_at(g, 0)));
    tkc_arena_free(&arena);
    tinkc_group_free(g);
    if (!ok)
        tinkc_error_set(err, TINKC_E_FILE, "trajectories.jsonl cannot be written");
    return ok;
}

static bool is_missing(const evaluation *e, size_t answer)
{
    return !cli_eval_has(&e->before, e->ids[answer / e->n], answer % e->n);
}

/* Adds missing answers from *at on until `most` are in the pool. Each has a seed of its own, whatever is
 * asked beside it: a continued evaluation gives the answers of an undisturbed one. */
static size_t top_up(const evaluation *e, tinkc_rollouts *pool, size_t *at, size_t most,
                     tinkc_error *err)
{
    size_t added = 0;
    uint64_t seed = (uint64_t)cli_int(e->app, "seed");
    for (; *at < e->prompts.n * e->n && added < most && !err->code; ++*at)
        if (is_missing(e, *at))
            added +=
                tinkc_rollouts_add(pool, e->model.sampler, &e->prompts.items[*at / e->n], 1, *at,
                                   tinkc_recipe_seed(seed, *at / e->n, *at % e->n, 0), err);
    return added;
}

static bool run_pool(evaluation *e, tinkc_error *err)
{
    cli_progress bar;
    tinkc_rollout_options o =
        cli_rollout_options(e->app, &e->rewards, e->model.tokenizer, e->model.renderer);
    o.max_concurrent = (int32_t)cli_int(e->app, "concurrency");
    o.no_logprobs = true;
    o.context_length = (int32_t)cli_context_length(e->app, e->model.base_model, err);
    tinkc_rollouts *pool = tinkc_rollouts_new(e->app->client, &o, err);
    size_t total = 0, at = 0, begun = 0, done = 0, window = 2 * (size_t)o.max_concurrent;
    for (size_t i = 0; i < e->prompts.n * e->n; i++)
        total += is_missing(e, i);
    cli_progress_begin(&bar, e->app, "Evaluating", (int64_t)total, false);
    while (done < total && !err->code) {
        begun += top_up(e, pool, &at, window - (begun - done), err);
        tinkc_group *g = tinkc_rollouts_next(pool, 100, err);
        if (g && take(e, g, err))
            done++;
        if (err->code == TINKC_E_TIMEOUT) /* none yet */
            *err = (tinkc_error){ 0 };
        if (cli_stop_signal())
            tinkc_error_set(err, TINKC_E_CANCELLED, "interrupted; run it again to continue");
        if (cli_now_ms() > e->app->deadline_ms)
            tinkc_error_set(err, TINKC_E_DEADLINE,
                            "the time of --timeout is over; run it again to continue");
        cli_progress_step(&bar, (int64_t)done, (int64_t)total, NULL);
    }
    cli_progress_end(&bar);
    tinkc_rollouts_free(pool);
    return !err->code;
}

static bool run_choices(evaluation *e, tinkc_error *err)
{
    cli_progress bar;
    cli_progress_begin(&bar, e->app, "Evaluating", (int64_t)e->prompts.n, false);
    for (size_t i = 0; i < e->prompts.n && !err->code; i++) {
        if (!cli_eval_has(&e->before, e->ids[i], 0)) {
            tkc_arena arena = { 0 };
            const tkc_tree *v = cli_eval_choose(e->app, &arena, &e->model, &e->prompts.items[i],
                                                e->name, i, e->ids[i], err);
            if (v && !write_line(e, v))
                tinkc_error_set(err, TINKC_E_FILE, "trajectories.jsonl cannot be written");
            tkc_arena_free(&arena);
        }
        cli_progress_step(&bar, (int64_t)i + 1, (int64_t)e->prompts.n, NULL);
    }
    cli_progress_end(&bar);
    return !err->code;
}

/* ---- after ---- */

static void add_row(const cli_app *app, tkc_tree *rows, const char *label, double value,
                    const char *format)
{
    char text[64];
    (void)snprintf(text, sizeof text, format, value);
    cli_row(app, rows, label, text);
}

static int show_result(cli_app *app, const char *title, const tkc_tree *v)
{
    tkc_tree *rows = cli_array(app);
    const tkc_tree *ci = tkc_tree_get(v, "interval_95"), *score = tkc_tree_get(v, "score");
    char text[100];
    const char *k;
    tkc_tree *value;
    (void)snprintf(text, sizeof text, "%.4f (95%% interval %.4f to %.4f)", tkc_tree_number(score),
                   tkc_tree_number(tkc_tree_at(ci, 0)), tkc_tree_number(tkc_tree_at(ci, 1)));
    cli_row(app, rows, "Score", tkc_tree_is_null(score) ? "none: no answer could be graded" : text);
    add_row(app, rows, "Examples", tkc_tree_get_number(v, "num_examples"), "%.0f");
    add_row(app, rows, "Right", tkc_tree_get_number(v, "num_correct"), "%.0f");
    add_row(app, rows, "Errors", tkc_tree_get_number(v, "num_errors"), "%.0f");
    add_row(app, rows, "Cut off", tkc_tree_get_number(v, "num_truncated"), "%.0f");
    TKC_TREE_EACH (tkc_tree_get(v, "pass_at_k"), k, value) {
        (void)snprintf(text, sizeof text, "pass@%s", k);
        add_row(app, rows, text, tkc_tree_number(value), "%.4f");
    }
    return cli_print_record(app, title, rows, v);
}

static int write_result(evaluation *e, const tkc_tree *v)
{
    cli_save save;
    char *path = cli_printf("%s/result.json", e->folder);
    cli_save_begin(&save, path ? path : "", 0666);
    if (save.f) {
        cli_write_json(save.f, v, 2);
        fputc('\n', save.f);
    }
    free(path);
    return cli_save_end(&save, e->app, true);
}

static int finish(evaluation *e)
{
    cli_eval all;
    fclose(e->out);
    e->out = NULL;
    (void)cli_eval_load(e->file, &all);
    tkc_tree *v = cli_eval_result(cli_arena(e->app), &all, cli_seconds_since(e->begun_ms));
    int bad = write_result(e, v);
    bad = bad ? bad : show_result(e->app, e->folder, v);
    double score = tkc_tree_get_number(v, "score");
    size_t errors = 0;
    for (size_t i = 0; i < all.n; i++)
        if (all.rows[i].error && errors++ == 0)
            cli_warn(e->app, "%s", all.rows[i].error);
    if (!bad && cli_given(e->app, "min-score") && !(score >= cli_number(e->app, "min-score")))
        bad = cli_fail(e->app, "check_failed", NULL, "the score %.4f is below --min-score %g",
                       score, cli_number(e->app, "min-score"));
    if (!bad && e->failed)
        bad = cli_fail(e->app, "partial_failure", "run it again to try them again",
                       "%zu answer%s could not be graded", e->failed, e->failed == 1 ? "" : "s");
    cli_eval_free(&all);
    return bad;
}

int cli_eval_run(cli_app *app)
{
    tinkc_error err = { 0 };
    evaluation e = { .app = app, .begun_ms = cli_now_ms() };
    int bad = cli_rewards_open(app, &e.rewards);
    bad = bad ? bad : check(&e);
    bad = bad ? bad : cli_open_sampler(app, &e.model);
    bad = bad ? bad : cli_rewards_connect(app, &e.rewards);
    bad = bad ? bad : open_output(&e);
    if (!bad) {
        bool ok = cli_flag(app, "multiple-choice") ? run_choices(&e, &err) : run_pool(&e, &err);
        bad = ok                  ? finish(&e)
              : cli_stop_signal() ? cli_stop_exit()
                                  : cli_fail_error(app, &err, NULL);
    }
    if (e.out)
        fclose(e.out);
    cli_rewards_close(&e.rewards);
    cli_asked_free(&e.model);
    for (size_t i = 0; e.ids && i < e.prompts.n; i++)
        free(e.ids[i]);
    free(e.ids);
    cli_prompts_free(&e.prompts);
    cli_eval_free(&e.before);
    free(e.name);
    free(e.folder);
    free(e.file);
    return bad;
}

/* ---- show and compare ---- */

static void show_text(const cli_app *app, const char *label, const char *text)
{
    printf("  %-8s ", label);
    cli_put_text(app, stdout, text, strlen(text));
    putchar('\n');
}

int cli_eval_show(cli_app *app)
{
    cli_eval e;
    int bad = cli_eval_read(app, app->args[0], &e);
    if (bad)
        return bad;
    tkc_tree *v = cli_eval_result(cli_arena(app), &e, 0);
    bad = show_result(app, e.name, v);
    bool people = app->format != CLI_JSON && app->format != CLI_JSONL;
    size_t shown = 0, most = (size_t)cli_int(app, "number");
    for (size_t i = 0; i < e.n && shown < most && people && !bad; i++) {
        const cli_eval_row *r = &e.rows[i];
        if (cli_flag(app, "wrong") && !r->error && r->reward >= 0.5)
            continue;
        printf("\n%s  reward %g\n", r->example_id, r->reward);
        show_text(app, "asked", r->prompt);
        show_text(app, "said", r->error ? r->error : r->text);
        if (r->answer)
            show_text(app, "answer", r->answer);
        shown++;
    }
    cli_eval_free(&e);
    return bad;
}

typedef struct comparison {
    size_t both, only_first, only_second, neither, common;
    double *differences; /* second minus first */
    bool graded;         /* some score is neither 0 nor 1 */
    tkc_arena *arena;    /* of the examples */
    tkc_tree *examples;
} comparison;

/* By the mean over an example's answers; the first answer of each is shown. */
static void compare_examples(comparison *c, const cli_eval_example *a, const cli_eval_example *b,
                             bool all)
{
    bool x = a->mean >= 0.5, y = b->mean >= 0.5;
    c->both += x && y;
    c->only_first += x && !y;
    c->only_second += !x && y;
    c->neither += !x && !y;
    c->differences[c->common++] = b->mean - a->mean;
    c->graded = c->graded || !cli_eval_is_binary((double[]){ a->mean, b->mean }, 2);
    if (all || x != y)
        tkc_tree_add(c->examples,
                     tkc_tree_pack(c->arena, "{s:s,s:s,s:s?,s:f,s:f,s:s,s:s}", "example_id",
                                   a->first->example_id, "prompt", a->first->prompt, "answer",
                                   a->first->answer, "first_reward", a->mean, "second_reward",
                                   b->mean, "first", a->first->text, "second", b->first->text));
}

static tinkc_interval difference_of(const comparison *c)
{
    if (c->graded)
        return tinkc_recipe_bootstrap(c->differences, c->common, 0.95, 0);
    return tinkc_recipe_paired_difference(c->both, c->only_first, c->only_second, c->neither, 0.95);
}

static int show_comparison(cli_app *app, const comparison *c)
{
    tinkc_interval d = difference_of(c);
    tkc_tree *v =
        cli_pack(app, "{s:I,s:I,s:I,s:I,s:I,s:f,s:[ff],s:o}", "common", (int64_t)c->common, "both",
                 (int64_t)c->both, "only_first", (int64_t)c->only_first, "only_second",
                 (int64_t)c->only_second, "neither", (int64_t)c->neither, "difference", d.mean,
                 "interval_95", d.low, d.high, "examples", c->examples);
    tkc_tree *rows = cli_array(app);
    char text[100];
    (void)snprintf(text, sizeof text, "%+.4f (95%% interval %+.4f to %+.4f)", d.mean, d.low,
                   d.high);
    cli_row(app, rows, "Second minus first", text);
    add_row(app, rows, "Examples in both", (double)c->common, "%.0f");
    add_row(app, rows, "Both right", (double)c->both, "%.0f");
    add_row(app, rows, "Only the first right", (double)c->only_first, "%.0f");
    add_row(app, rows, "Only the second right", (double)c->only_second, "%.0f");
    add_row(app, rows, "Neither right", (double)c->neither, "%.0f");
    int bad = cli_print_record(app, "Comparison", rows, v);
    bool people = app->format != CLI_JSON && app->format != CLI_JSONL;
    for (size_t i = 0;
         people && !bad && i < tkc_tree_length(c->examples) && i < (size_t)cli_int(app, "number");
         i++) {
        const tkc_tree *one = tkc_tree_at(c->examples, i);
        printf("\n%s\n", tkc_tree_get_text(one, "example_id"));
        show_text(app, "asked", tkc_tree_get_text(one, "prompt"));
        show_text(app, tkc_tree_get_number(one, "first_reward") >= 0.5 ? "first +" : "first -",
                  tkc_tree_get_text(one, "first"));
        show_text(app, tkc_tree_get_number(one, "second_reward") >= 0.5 ? "second +" : "second -",
                  tkc_tree_get_text(one, "second"));
    }
    return bad;
}

int cli_eval_compare(cli_app *app)
{
    cli_eval a, b = { 0 };
    int bad = cli_eval_read(app, app->args[0], &a);
    bad = bad ? bad : cli_eval_read(app, app->args[1], &b);
    size_t n_a = 0, n_b = 0;
    cli_eval_example *first = bad ? NULL : cli_eval_examples(&a, &n_a);
    cli_eval_example *second = bad ? NULL : cli_eval_examples(&b, &n_b);
    comparison c = { .arena = cli_arena(app), .examples = cli_array(app) };
    c.differences = calloc(n_a + 1, sizeof *c.differences);
    for (size_t i = 0, k = 0; i < n_a && k < n_b && c.differences;) {
        int order = strcmp(first[i].first->example_id, second[k].first->example_id);
        if (order == 0)
            compare_examples(&c, &first[i], &second[k], cli_flag(app, "all"));
        i += order <= 0;
        k += order >= 0;
    }
    if (!bad && c.common == 0)
        bad = cli_fail(app, "data_invalid", NULL, "%s and %s have no example in common",
                       app->args[0], app->args[1]);
    bad = bad ? bad : show_comparison(app, &c);
    free(c.differences);
    free(first);
    free(second);
    cli_eval_free(&a);
    cli_eval_free(&b);
    return bad;
}
