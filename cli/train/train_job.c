/* train_job.c - a training run's outside: model, folder, trainer, checkpoints, metrics, events.
 *
 * What every recipe shares. May touch: the log directory, the service through the client. Must not:
 * know how a step is made.
 */
#include "base/platform.h"
#include "cli/store/logged_runs.h"
#include "cli/train/train_job.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/train/adapter_start.h"
#include "cli/main/config_file.h"
#include "cli/track/chosen_commands.h"
#include "cli/track/metric_exports.h"
#include "cli/models/model_folder.h"
#include "cli/models/models.h"
#include "cli/output/out.h"
#include "cli/manage/recent_ids.h"
#include "cli/output/term.h"
#include "cli/output/text.h"
#include "cli/train/train_config.h"
#include "cli/train/train_start.h"
#include "cli/models/weights.h"

/* ---- the model and its renderer ---- */

static void warn_unusual(const cli_job *j, const char *given)
{
    const cli_model_facts *m = cli_model_find(j->model);
    const char *name;
    if (!m || !m->renderer)
        return;
    for (size_t i = 0; (name = cli_model_renderer(m, i)); i++)
        if (strcmp(name, given) == 0)
            return;
    cli_warn(j->app, "renderer %s is not recommended for %s; %s is", given, j->model, m->renderer);
}

/* The one given, else that of the weights to start from, else the model's. */
static int choose_renderer(cli_job *j, const char *given)
{
    tinkc_error err = { 0 };
    const char *from = cli_text(j->app, "from");
    char *theirs = NULL;
    if (from && !cli_flag(j->app, "dry-run")) {
        int bad = cli_connect(j->app);
        if (bad)
            return bad;
        theirs = cli_run_renderer(j->app, from, &err);
        if (err.code)
            return cli_fail_error(j->app, &err, from);
    }
    const char *renderer = given ? given : theirs ? theirs : tinkc_chat_renderer(j->model);
    j->renderer = renderer ? strdup(renderer) : NULL;
    if (given && theirs && strcmp(given, theirs) != 0)
        cli_warn(j->app, "%s was trained with renderer %s, not %s", from, theirs, given);
    if (given)
        warn_unusual(j, given);
    free(theirs);
    return 0;
}

/* From here on the adapter is weights like any others: --from. */
static int start_from_adapter(cli_app *app)
{
    if (!cli_has_adapter(app) || cli_flag(app, "dry-run"))
        return 0;
    if (cli_text(app, "from"))
        return cli_fail(app, "usage", NULL, "--from and --from-adapter exclude each other");
    int bad = cli_connect(app);
    char *path = bad ? NULL : cli_adapter_path(app, true, &bad);
    return path ? cli_give_value(app, "from", path, CLI_FROM_PROGRAM, "the adapter") : bad;
}

static int find_model(cli_job *j)
{
    tinkc_error err = { 0 };
    cli_app *app = j->app;
    int bad = cli_adapter_model(app);
    if (bad)
        return bad;
    j->model = cli_model(app);
    if (!j->model)
        return cli_fail(app, "usage", "name one with -m", "no model was named");
    if (strncmp(j->model, "tinker://", 9) == 0)
        return cli_fail(app, "usage", "name its base model with -m, and the weights with --from",
                        "%s is not a base model", j->model);
    bad = start_from_adapter(app);
    if (bad)
        return bad;
    const char *given = cli_text(app, "renderer");
    if (!given)
        given = cli_config_get(app, "renderer", NULL);
    bad = choose_renderer(j, given);
    if (bad)
        return bad;
    j->tokenizer = cli_tokenizer(app, j->model, &err);
    if (!j->tokenizer)
        return cli_fail_error(app, &err, err.code == TINKC_E_NOT_FOUND ? NULL : j->model);
    if (given && !tinkc_chat_stops(j->tokenizer, given, &err) && err.code == TINKC_E_ARGUMENT)
        return cli_fail(app, "usage", "see: tinkc model info NAME", "%s", err.message);
    return 0;
}

/* ---- the seed ---- */

/* A seed that was not given is the one of the run that is continued, else drawn once. It is kept with
 * the settings, so that the run can be repeated. A run whose settings have none (of the cookbook, or of
 * an older version) keeps none: it is not known. */
static int settle_seed(cli_app *app, const tkc_tree *earlier)
{
    if (cli_given(app, "seed"))
        return 0;
    const tkc_tree *options = tkc_tree_get(tkc_tree_get(earlier, "tinkc"), "options");
    const char *theirs = tkc_tree_get_text(options, "seed");
    char *seed = theirs    ? strdup(theirs)
                 : earlier ? NULL
                           : cli_printf("%lld", (long long)(cli_now_us() % 1000000007));
    return cli_give_value(app, "seed", seed, CLI_FROM_PROGRAM, "drawn");
}

/* Recipes differ in their options. */
static bool has_option(const cli_app *app, const char *name)
{
    return cli_find_option(app->command, name, strlen(name)) != NULL;
}

/* Evaluations need examples that are not trained on, answers while training need prompts. */
static int check_unused(const cli_app *app)
{
    static const char *const of_tests[] = { "eval-every", "eval-temperature" };
    static const char *const of_prompts[] = { "sample-every", "sample-tokens" };
    bool tests = cli_given(app, "test-data") ||
                 (has_option(app, "test-size") && cli_int(app, "test-size") > 0);
    bool none = cli_on_the_line(app, "eval-every") && cli_int(app, "eval-every") == 0;
    for (size_t i = 0; !tests && !none && i < 2; i++)
        if (cli_on_the_line(app, of_tests[i]))
            return cli_fail(app, "usage", NULL, "--%s needs %s", of_tests[i],
                            !has_option(app, "test-data")   ? "--test-size"
                            : !has_option(app, "test-size") ? "--test-data"
                                                            : "--test-size or --test-data");
    for (size_t i = 0; !cli_given(app, "sample-prompt") && i < 2; i++)
        if (cli_on_the_line(app, of_prompts[i]))
            return cli_fail(app, "usage", NULL, "--%s needs --sample-prompt", of_prompts[i]);
    return 0;
}

/* ---- a log directory that is there already ---- */

/* "ask" on a terminal; otherwise what was given, or "raise". */
static const char *if_exists(const cli_app *app)
{
    if (cli_flag(app, "resume"))
        return "resume";
    const char *given = cli_text(app, "if-exists");
    if (given && strcmp(given, "ask") != 0)
        return given;
    return app->stdin_tty && app->stderr_tty ? "ask" : "raise";
}

static const char *ask_what(const char *folder)
{
    char line[32], prompt[4200];
    (void)snprintf(prompt, sizeof prompt,
                   "%s already holds a run. [resume, delete, exit]: ", folder);
    for (;;) {
        if (!cli_ask_line(line, sizeof line, prompt))
            return "exit";
        if (strcmp(line, "resume") == 0 || strcmp(line, "r") == 0)
            return "resume";
        if (strcmp(line, "delete") == 0 || strcmp(line, "d") == 0)
            return "delete";
        if (strcmp(line, "exit") == 0 || strcmp(line, "e") == 0)
            return "exit";
    }
}

/* Decides about a run that the folder holds: j->resumed, or j->start_over. A plan alone asks nothing: it is
 * that of the run continued. 0, or an exit code after reporting. */
static int settle_folder(cli_job *j, const char *folder)
{
    if (!cli_trainlog_exists(folder))
        return 0;
    const char *what = if_exists(j->app);
    if (strcmp(what, "delete") != 0 && cli_flag(j->app, "dry-run"))
        what = "resume";
    if (strcmp(what, "ask") == 0)
        what = ask_what(folder);
    j->start_over = strcmp(what, "delete") == 0;
    j->resumed = strcmp(what, "resume") == 0;
    if (j->start_over || j->resumed)
        return 0;
    if (cli_stop_signal())
        return cli_stop_exit();
    if (strcmp(what, "exit") == 0)
        return cli_fail(j->app, "declined", NULL, "cancelled");
    return cli_fail(j->app, "exists", "--resume continues it; --if-exists delete starts over",
                    "%s already holds a run", folder);
}

/* Whether it has a checkpoint to continue from; without one a run that is resumed starts over. */
static bool has_states(const char *folder)
{
    tkc_arena arena = { 0 };
    bool some = tkc_tree_length(cli_trainlog_records(&arena, folder, "state_path")) > 0;
    tkc_arena_free(&arena);
    return some;
}

/* A rate that was not given follows from the model. It is kept with the settings, so that a resumed run
 * has the same. */
static int settle_rate(cli_job *j)
{
    char why[96], text[CLI_SHORT_TEXT];
    if (j->rate_share <= 0 || cli_given(j->app, "lr"))
        return 0;
    double rate = j->rate_share * cli_model_default_rate(j->model, j->model, why);
    (void)snprintf(text, sizeof text, "%.2g", rate);
    (void)snprintf(j->rate_why, sizeof j->rate_why, "%g x %s", j->rate_share, why);
    return cli_give_value(j->app, "lr", strdup(text), CLI_FROM_PROGRAM, "the model");
}

int cli_job_settle(cli_job *j)
{
    const char *folder = cli_text(j->app, "log-dir"), *from = NULL;
    int bad = check_unused(j->app);
    if (!bad && folder)
        bad = settle_folder(j, folder);
    tkc_tree *earlier =
        !bad && j->resumed ? cli_trainlog_read_config(cli_arena(j->app), folder) : NULL;
    bad = bad ? bad : settle_seed(j->app, earlier);
    bad = bad ? bad : find_model(j);
    bad = bad ? bad : settle_rate(j);
    if (!bad && j->resumed && has_states(folder))
        bad = cli_start_resumed(j->app, j->model, folder, earlier);
    else if (!bad && !cli_flag(j->app, "dry-run") && (from = cli_text(j->app, "from")))
        bad = cli_start_from(j->app, j->model, from);
    return bad;
}

/* ---- the log directory's name ---- */

char *cli_job_log_dir(const cli_job *j, const char *data_path, double rate, const char *what)
{
    char when[CLI_SHORT_TEXT], number[CLI_SHORT_TEXT];
    if (cli_given(j->app, "log-dir"))
        return strdup(cli_text(j->app, "log-dir"));
    const char *slash = strrchr(data_path, '/');
    char *data = strdup(strcmp(data_path, "-") == 0 ? "stdin" : slash ? slash + 1 : data_path);
    char *model = strdup(j->model), *dot = data ? strrchr(data, '.') : NULL;
    if (dot)
        *dot = '\0';
    for (char *p = model; p && *p; p++)
        if (*p == '/' || *p == ':')
            *p = '-';
    const char *short_model = model;
    while (short_model && (*short_model == '-' || *short_model == '.'))
        short_model++;
    cli_format_iso(cli_now_us(), when);
    when[10] = when[13] = '-';
    when[16] = '\0';
    cli_format_number(rate, number);
    char *out = cli_printf("tinkc-runs/%s-%s-%lldrank-%slr-%s-%s", data, short_model,
                           (long long)cli_int(j->app, "lora-rank"), number, what, when);
    free(data);
    free(model);
    return out;
}

/* ---- the trainer ---- */

/* renderer_name, then --metadata K=V. A list of pairs; yours with what it points to. */
static const char **metadata(cli_job *j, char **storage)
{
    size_t n = 0;
    while (cli_text_at(j->app, "metadata", n))
        n++;
    const char **pairs = calloc(2 * n + 3, sizeof *pairs);
    size_t at = 0, used = 0, cap = 1;
    for (size_t i = 0; i < n; i++)
        cap += strlen(cli_text_at(j->app, "metadata", i)) + 1;
    *storage = malloc(cap);
    if (!pairs || !*storage)
        return free(pairs), NULL;
    if (j->renderer) {
        pairs[at++] = "renderer_name";
        pairs[at++] = j->renderer;
    }
    for (size_t i = 0; i < n; i++) {
        const char *text = cli_text_at(j->app, "metadata", i);
        size_t len = strlen(text), name = strcspn(text, "=");
        memcpy(*storage + used, text, len + 1);
        (*storage)[used + name] = '\0';
        pairs[at++] = *storage + used;
        pairs[at++] = *storage + used + name + (name < len);
        used += len + 1;
    }
    return pairs;
}

static tinkc_trainer *wait_trainer(cli_job *j, tinkc_future *f, const char *label, tinkc_error *err)
{
    tinkc_trainer *t = cli_wait(j->app, f, label, err) ? tinkc_future_trainer(f, 0, err) : NULL;
    tinkc_future_free(f);
    return t;
}

/* Adapters on experts are large: of a known model on this machine, says so before memory is taken. */
static void note_memory(const cli_job *j, const tinkc_lora_options *o)
{
    char size[CLI_SHORT_TEXT], count[CLI_SHORT_TEXT];
    const cli_model_facts *m = cli_wants_local(j->app) ? cli_model_find(j->model) : NULL;
    if (!m)
        return;
    int64_t n = o->rank * ((o->freeze & TINKC_FREEZE_MLP ? 0 : m->mlp) +
                           (o->freeze & TINKC_FREEZE_ATTN ? 0 : m->attn) +
                           (o->freeze & TINKC_FREEZE_UNEMBED ? 0 : m->unembed));
    if (CLI_ADAPTER_BYTES * n < INT64_C(1) << 30)
        return;
    cli_format_size(CLI_ADAPTER_BYTES * n, size);
    cli_format_count(n, count);
    cli_note(j->app, "the LoRA has %s parameters; training it takes %s of memory", count, size);
}

static tinkc_trainer *new_trainer(cli_job *j, const char *const *pairs, tinkc_error *err)
{
    cli_app *app = j->app;
    tinkc_lora_options o = { .base_model = j->model,
                             .user_metadata = pairs,
                             .rank = (int32_t)cli_int(app, "lora-rank"),
                             .freeze =
                                 (cli_flag(app, "train-mlp") ? 0 : TINKC_FREEZE_MLP) |
                                 (cli_flag(app, "train-attn") ? 0 : TINKC_FREEZE_ATTN) |
                                 (cli_flag(app, "train-unembed") ? 0 : TINKC_FREEZE_UNEMBED) };
    if (cli_given(app, "seed")) {
        o.has_seed = true;
        o.seed = (uint64_t)cli_int(app, "seed");
    }
    note_memory(j, &o);
    return wait_trainer(j, tinkc_trainer_open(app->client, &o, err), "placing the model", err);
}

static tinkc_trainer *from_path(cli_job *j, const char *path, bool optimizer,
                                const char *const *pairs, tinkc_error *err)
{
    tinkc_state_options o = { .path = path, .user_metadata = pairs, .with_optimizer = optimizer };
    return wait_trainer(j, tinkc_trainer_open_from(j->app->client, &o, err),
                        "loading the checkpoint", err);
}

static size_t step_of(const cli_job *j, const tkc_tree *record)
{
    return (size_t)tkc_tree_get_i64(record, "epoch") * j->n_batches +
           (size_t)tkc_tree_get_i64(record, "batch");
}

/* Whether the folder's run has taken all its steps and saved the last one; then j->step says so. Loading
 * its weights would make a run at the service that nobody trains. */
static bool is_finished(cli_job *j)
{
    tkc_tree *records = cli_trainlog_records(cli_arena(j->app), j->log_dir, "state_path");
    size_t n = tkc_tree_length(records);
    const tkc_tree *last = n ? tkc_tree_at(records, n - 1) : NULL;
    bool done = last && tkc_tree_get_true(last, "final") && step_of(j, last) >= j->total_steps;
    if (done)
        j->step = step_of(j, last);
    return done;
}

/* The newest record whose state can still be loaded; older ones are tried in turn. */
static bool resume_state(cli_job *j, const char *const *pairs, tinkc_error *err)
{
    tkc_tree *records = cli_trainlog_records(cli_arena(j->app), j->log_dir, "state_path");
    bool found = false;
    for (size_t i = tkc_tree_length(records); i-- > 0 && !found;) {
        const tkc_tree *r = tkc_tree_at(records, i);
        const char *path = tkc_tree_get_text(r, "state_path");
        *err = (tinkc_error){ 0 };
        j->trainer = from_path(j, path, true, pairs, err);
        if (j->trainer) {
            j->step = step_of(j, r);
            j->elapsed_tokens = (size_t)tkc_tree_get_i64(r, "elapsed_tokens");
            j->saved = true;
            j->saved_step = j->step;
            j->state_path = strdup(path);
            if (tkc_tree_get_true(r, "rolling"))
                j->last_rolling = strdup(path);
            const char *sampler = tkc_tree_get_text(r, "sampler_path");
            j->sampler_path = sampler ? strdup(sampler) : NULL;
            found = true;
        } else if (err->code == TINKC_E_NOT_FOUND || err->code == TINKC_E_REQUEST_FAILED ||
                   err->code == TINKC_E_GONE) {
            cli_warn(j->app, "%s cannot be loaded (%s); trying the previous one", path,
                     err->message);
        } else {
            break;
        }
    }
    return found;
}

static int open_trainer(cli_job *j)
{
    tinkc_error err = { 0 };
    char *storage = NULL;
    const char **pairs = metadata(j, &storage);
    bool resumed = j->resumed && resume_state(j, pairs, &err);
    if (resumed)
        cli_note(j->app, "resumed    after step %zu of %zu, from %s", j->step, j->total_steps,
                 j->state_path);
    if (j->resumed && !resumed && !err.code)
        cli_note(j->app, "there is no checkpoint to continue from: starting over");
    if (!resumed && !err.code) {
        const char *from = cli_text(j->app, "from");
        j->trainer = from ? from_path(j, from, false, pairs, &err) : new_trainer(j, pairs, &err);
    }
    free(pairs);
    free(storage);
    return j->trainer ? 0 : cli_fail_error(j->app, &err, NULL);
}

/* The old run's files go when the new one has a trainer, not before. */
static int open_log(cli_job *j, const tkc_tree *config)
{
    bool ok = j->start_over ? cli_trainlog_remove(j->log_dir)
              : j->resumed  ? cli_trainlog_rewind(j->log_dir, j->step)
                            : true;
    if (!ok)
        return cli_fail(j->app, "local_io", NULL, "%s: %s", j->log_dir, tkc_errno_text(errno));
    int bad = cli_trainlog_open(j->app, j->log_dir, cli_text(j->app, "hook"), &j->log);
    if (!bad && cli_given(j->app, "seed"))
        cli_trainlog_info(&j->log, "seed", cli_text(j->app, "seed"));
    bad = bad ? bad : cli_trainlog_config(j->app, j->log_dir, config);
    bad = bad ? bad : cli_train_config_write(j->app, j->log_dir, config);
    if (!bad)
        cli_choices_note(j->app, j->log_dir, config);
    bad = bad ? bad : cli_exports_open(j->app, j->log_dir, config, j->step, &j->log.exports);
    const char *store = bad ? NULL : cli_store_folder(j->app);
    if (store && !cli_logged_runs_add(store, j->log_dir, tinkc_trainer_id(j->trainer)))
        cli_warn(j->app, "%s cannot note where the run is; name it by its folder", store);
    return bad ? bad : cli_trainlog_code(j->app, j->log_dir);
}

int cli_job_open(cli_job *j, const tkc_tree *config)
{
    int bad = cli_trainlog_claim(j->app, j->log_dir, &j->claim);
    if (!bad && !j->resumed && !j->start_over) /* it may be there by now */
        bad = settle_folder(j, j->log_dir);
    if (!bad && j->resumed && is_finished(j))
        return 0;
    bad = bad ? bad : cli_connect(j->app);
    bad = bad ? bad : open_trainer(j);
    return bad ? bad : open_log(j, config);
}

/* ---- the learning rate ---- */

int cli_job_check_warmup(const cli_job *j)
{
    int64_t warm = cli_int(j->app, "warmup-steps");
    if (warm == 0 || (size_t)warm < j->total_steps)
        return 0;
    return cli_fail(j->app, "usage", NULL, "--warmup-steps must be below the number of steps, %zu",
                    j->total_steps);
}

/* First the warm-up, in a line from 0; what steps are left are the schedule's, from its beginning.
 * */
double cli_job_rate(const cli_job *j, double rate, size_t step)
{
    const char *schedule = cli_text(j->app, "lr-schedule");
    size_t warm = (size_t)cli_int(j->app, "warmup-steps");
    if (step < warm)
        return rate * ((double)step / (double)warm);
    double t = (double)(step - warm) / (double)(j->total_steps - warm), scale = 1;
    if (strcmp(schedule, "linear") == 0)
        scale = 1 - t;
    else if (strcmp(schedule, "cosine") == 0)
        scale = 0.5 * (1 + cos(3.14159265358979323846 * t));
    return rate * scale;
}

tinkc_adam cli_job_adam(const cli_app *app, double rate)
{
    tinkc_adam adam = TINKC_ADAM_INIT;
    adam.learning_rate = rate;
    adam.beta1 = cli_number(app, "adam-beta1");
    adam.beta2 = cli_number(app, "adam-beta2");
    adam.eps = cli_number(app, "adam-eps");
    adam.weight_decay = cli_number(app, "weight-decay");
    adam.grad_clip_norm = cli_number(app, "grad-clip");
    return adam;
}

/* ---- telling ---- */

void cli_job_tell(cli_job *j, const char *event, const tkc_tree *v)
{
    tkc_arena arena = { 0 };
    char now[CLI_SHORT_TEXT];
    tkc_tree *out = tkc_tree_pack(&arena, "{s:s}", "event", event);
    cli_format_iso(cli_now_us(), now);
    tkc_tree_set_text(out, "time", now);
    tkc_tree_update_missing(out, v);
    if (j->app->format == CLI_JSON || j->app->format == CLI_JSONL) {
        cli_write_json(stdout, out, 0);
        fputc('\n', stdout);
        fflush(stdout);
    }
    cli_trainlog_event(j->app, &j->log, out);
    tkc_arena_free(&arena);
}

void cli_job_set(tkc_tree *v, const char *key, double value)
{
    if (!tkc_tree_set_real(v, key, value))
        tkc_tree_set(v, key, tkc_tree_null());
}

/* While a step is waited for: why it takes longer. */
static void tell_retry(const tinkc_event *e, void *user)
{
    cli_job *j = user;
    tkc_arena arena = { 0 };
    const tkc_tree *v =
        tkc_tree_pack(&arena, "{s:I,s:s,s:s,s:i,s:i,s:f}", "step", (int64_t)j->step, "operation",
                      e->operation, "message", e->text, "status", (int)e->http_status, "attempt",
                      (int)e->attempt, "wait_s", (double)e->wait_ms / 1000);
    cli_job_tell(j, "retry", v);
    tkc_arena_free(&arena);
}

void cli_job_add_metrics(tkc_tree *v, const tinkc_metrics *m)
{
    for (size_t i = 0; i < tinkc_metrics_count(m); i++)
        cli_job_set(v, tinkc_metrics_name(m, i), tinkc_metrics_value(m, i));
}

/* Without a terminal to draw on, a line: for the first step, for the last, and every half a minute. */
static void print_step(cli_job *j, size_t step, bool first, const char *text)
{
    enum { PAUSE_MS = 30000 };
    bool last = step + 1 == j->total_steps;
    if (!j->app->progress || (!first && !last && cli_now_ms() - j->last_line_ms < PAUSE_MS))
        return;
    j->last_line_ms = cli_now_ms();
    cli_note(j->app, "%s", text);
}

void cli_job_show_step(cli_job *j, size_t step, const char *format, ...)
{
    enum { CELLS = 20 };
    char left[CLI_SHORT_TEXT], bar[CELLS * 3 + 1], text[200], line[300];
    size_t done = step + 1 - j->first_step, rest = j->total_steps - step - 1;
    double seconds = (double)(cli_now_ms() - j->begun_ms) / 1000;
    va_list args;
    cli_format_duration(seconds / (double)done * (double)rest, left);
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)snprintf(line, sizeof line, "step %zu/%zu  %s  ETA %s", step + 1, j->total_steps, text,
                   left);
    if (!j->app->draws) {
        print_step(j, step, done == 1, line);
        return;
    }
    size_t full = CELLS * (step + 1) / j->total_steps, at = 0;
    for (size_t i = 0; i < CELLS; i++)
        at += (size_t)snprintf(bar + at, sizeof bar - at, "%s",
                               j->app->utf8 ? (i < full ? "━" : "─") : (i < full ? "#" : "-"));
    (void)snprintf(j->app->status_line, sizeof j->app->status_line, "%s %s", bar, line);
    cli_status(j->app, step + 1 == j->total_steps, "%s", j->app->status_line);
}

void cli_job_write_row(cli_job *j, const tkc_tree *row)
{
    const tkc_tree *rms = tkc_tree_get(row, "optim/weights_too_large");
    if (!cli_trainlog_metrics(&j->log, row))
        cli_warn(j->app, "%s/metrics.jsonl cannot be written", j->log_dir);
    if (!tkc_tree_is_number(rms) || j->warned_of_weights)
        return;
    j->warned_of_weights = true;
    cli_warn(j->app,
             "step %lld made very large weights (root mean square %.3g): the learning rate is too "
             "high; begin again with a lower --lr",
             (long long)tkc_tree_get_i64(row, "step") + 1, tkc_tree_number(rms));
}

double cli_job_speed(size_t tokens, int64_t ms)
{
    return ms > 0 ? (double)tokens * 1000 / (double)ms : 0;
}

/* ---- where the time goes ---- */

void cli_job_span(cli_job *j, const char *name, int64_t begun_ms, int64_t ended_ms)
{
    /* The machine's own clock counts from anywhere: the wall's is that much further. */
    double offset = (double)cli_now_us() / 1e6 - (double)cli_now_ms() / 1000;
    double begun = (double)begun_ms / 1000, ended = (double)ended_ms / 1000;
    if (!j->spans)
        j->spans = tkc_tree_array(&j->arena);
    tkc_tree_add(j->spans, tkc_tree_pack(&j->arena, "{s:s,s:f,s:f,s:f}", "name", name, "duration",
                                         ended - begun, "wall_start", begun + offset, "wall_end",
                                         ended + offset));
}

void cli_job_write_spans(cli_job *j, size_t step)
{
    const tkc_tree *v =
        tkc_tree_pack(&j->arena, "{s:I,s:o}", "step", (int64_t)step, "spans", j->spans);
    if (!cli_trainlog_spans(&j->log, v))
        cli_warn(j->app, "%s/timing_spans.jsonl cannot be written", j->log_dir);
    j->spans = NULL;
}

/* For the row of the step that comes next. */
void cli_job_note_time(cli_job *j, const char *name, int64_t begun_ms)
{
    int64_t now_ms = cli_now_ms();
    if (!j->pending)
        j->pending = tkc_tree_object(&j->arena);
    tkc_tree_set_real(j->pending, name, (double)(now_ms - begun_ms) / 1000);
    cli_job_span(j, name + strlen("time/"), begun_ms, now_ms);
}

/* ---- checkpoints ---- */

/* Called at once after the record could not be written. */
static void log_fault(const cli_job *j, tinkc_error *err)
{
    char text[512];
    (void)snprintf(text, sizeof text, "%.300s/checkpoints.jsonl: %s", j->log_dir,
                   tkc_errno_text(errno));
    tinkc_error_set(err, TINKC_E_FILE, text);
}

static char *save(cli_job *j, const char *name, bool state, int64_t ttl_s, tinkc_error *err)
{
    tinkc_save_options how = { .ttl_s = ttl_s, .overwrite = state };
    tinkc_future *f = state ? tinkc_trainer_save(j->trainer, name, &how, err)
                            : tinkc_trainer_save_for_sampler(j->trainer, name, &how, err);
    char *path = cli_wait(j->app, f, "saving", err) ? strdup(tinkc_future_path(f, 0, err)) : NULL;
    tinkc_future_free(f);
    return path;
}

static void drop_rolling(cli_job *j)
{
    if (!j->last_rolling)
        return;
    tinkc_error err = { 0 };
    tinkc_future *f = tinkc_checkpoint_delete(j->app->client, j->last_rolling, &err);
    (void)cli_wait(j->app, f, NULL, &err);
    tinkc_future_free(f);
    free(j->last_rolling);
    j->last_rolling = NULL;
}

static tkc_tree *checkpoint_record(tkc_arena *arena, const cli_job *j, const char *name, bool final,
                                   bool rolling)
{
    tkc_tree *v;
    if (j->n_batches) {
        bool done = j->step >= j->n_batches * j->epochs;
        v = tkc_tree_pack(arena, "{s:s,s:I,s:I}", "name", name, "batch",
                          (int64_t)(done ? 0 : j->step % j->n_batches), "epoch",
                          (int64_t)(done ? j->epochs : j->step / j->n_batches));
    } else {
        v = tkc_tree_pack(arena, "{s:s,s:I}", "name", name, "batch", (int64_t)j->step);
    }
    if (final)
        tkc_tree_set_bool(v, "final", true);
    if (j->state_path)
        tkc_tree_set_text(v, "state_path", j->state_path);
    if (!rolling && j->sampler_path)
        tkc_tree_set_text(v, "sampler_path", j->sampler_path);
    tkc_tree_set_i64(v, "elapsed_tokens", (int64_t)j->elapsed_tokens);
    if (rolling)
        tkc_tree_set_bool(v, "rolling", true);
    return v;
}

static int64_t ttl_of(const cli_app *app)
{
    double seconds;
    const char *text = cli_text(app, "ttl");
    return strcmp(text, "never") == 0 || !cli_parse_duration(text, &seconds) ? 0 : (int64_t)seconds;
}

/* Saves state and sampler weights (a rolling one: state alone) and writes the record. */
bool cli_job_checkpoint(cli_job *j, bool final, bool rolling, tinkc_error *err)
{
    char name[32];
    int64_t begun_ms = cli_now_ms();
    int64_t ttl = final ? 0 : rolling ? cli_int(j->app, "rolling-ttl") : ttl_of(j->app);
    if (final)
        (void)snprintf(name, sizeof name, "final");
    else
        (void)snprintf(name, sizeof name, "%06zu", j->step);
    if (j->before_save && !j->before_save(j->before_save_user, err))
        return false;
    char *state = save(j, name, true, ttl, err);
    char *sampler = state && !rolling ? save(j, name, false, ttl, err) : NULL;
    bool ok = state && (rolling || sampler);
    if (ok) {
        free(j->state_path);
        j->state_path = state;
        if (sampler) {
            free(j->sampler_path);
            j->sampler_path = sampler;
        }
        const tkc_tree *v = checkpoint_record(&j->arena, j, name, final, rolling);
        ok = cli_trainlog_checkpoint(&j->log, v);
        if (!ok)
            log_fault(j, err);
        cli_job_tell(j, "checkpoint", v);
        if (ok) { /* else the one before is the last that a resumed run finds */
            drop_rolling(j);
            j->saved = true;
            j->saved_step = j->step;
        }
        cli_job_note_time(j, "time/save_checkpoint", begun_ms);
        cli_ids_add(j->app, "checkpoint", sampler ? sampler : state);
        if (rolling) {
            free(j->last_rolling); /* still there if this one could not be recorded; it expires */
            j->last_rolling = strdup(state);
        } else {
            cli_note(j->app, "step %zu: saved %s", j->step, sampler);
        }
        j->last_save_ms = cli_now_ms();
        j->last_save_tokens = j->elapsed_tokens;
    } else {
        free(state);
        free(sampler);
    }
    return ok && !err->code;
}

bool cli_job_every(const cli_app *app, const char *option, size_t step)
{
    int64_t n = cli_int(app, option);
    return n > 0 && step > 0 && step % (size_t)n == 0;
}

bool cli_job_save_due(const cli_job *j, size_t step)
{
    const cli_app *app = j->app;
    int64_t tokens = cli_int(app, "save-every-tokens"),
            seconds = cli_int(app, "save-every-seconds");
    return step > j->first_step &&
           (cli_job_every(app, "save-every", step) ||
            (tokens > 0 && j->elapsed_tokens - j->last_save_tokens >= (size_t)tokens) ||
            (seconds > 0 && (cli_now_ms() - j->last_save_ms) / 1000 >= seconds));
}

bool cli_job_rolling_due(const cli_job *j, size_t step)
{
    return step > j->first_step && cli_job_every(j->app, "rolling-save-every", step);
}

bool cli_job_save_if_due(cli_job *j, tinkc_error *err)
{
    bool whole = cli_job_save_due(j, j->step);
    if (!whole && !cli_job_rolling_due(j, j->step))
        return true;
    return cli_job_checkpoint(j, false, !whole, err);
}

/* ---- the beginning and the end ---- */

void cli_job_start(cli_job *j)
{
    const tkc_tree *start =
        cli_pack(j->app, "{s:I,s:I,s:s}", "step", (int64_t)j->step, "total_steps",
                 (int64_t)j->total_steps, "log_path", j->log_dir);
    j->begun_ms = j->last_save_ms = cli_now_ms();
    (void)snprintf(j->app->status_line, sizeof j->app->status_line, "step %zu/%zu", j->step,
                   j->total_steps);
    j->first_step = j->step;
    j->last_save_tokens = j->elapsed_tokens;
    j->app->on_retry = tell_retry;
    j->app->on_retry_user = j;
    cli_job_tell(j, "start", start);
    cli_catch_signals();
}

/* After a signal: the trained weights are saved, and the command to continue is printed. */
int cli_job_stop_early(cli_job *j)
{
    tinkc_error err = { 0 };
    int code = cli_stop_exit();
    if (j->step > j->first_step && cli_stop_count() < 2) {
        cli_say_stopping(j->app);
        cli_forget_signal();
        if (!cli_job_checkpoint(j, false, false, &err))
            cli_warn(j->app, "not saved: %s", err.message);
    }
    cli_note(j->app, "to continue: tinkc train resume %s", j->log_dir);
    return code;
}

/* What the run is called, if that means this run and not a folder here; yours, NULL = it does not. */
static char *name_of(const cli_job *j)
{
    struct stat st;
    const char *store = cli_store_folder(j->app);
    char *whole = realpath(j->log_dir, NULL), *slash = whole ? strrchr(whole, '/') : NULL;
    char *name = slash ? strdup(slash + 1) : NULL;
    char *found = name && store && stat(name, &st) != 0 ? cli_logged_run_folder(store, name) : NULL;
    if (!found || strcmp(found, whole) != 0)
        name = (free(name), NULL);
    free(found);
    free(whole);
    return name;
}

void cli_job_goodbye(cli_job *j)
{
    const tkc_tree *v = cli_pack(j->app, "{s:I,s:s?,s:s?}", "step", (int64_t)j->step, "state_path",
                                 j->state_path, "sampler_path", j->sampler_path);
    cli_job_tell(j, "end", v);
    char *name = name_of(j);
    cli_note(j->app, "state      %s", j->state_path);
    cli_note(j->app, "sampler    %s", j->sampler_path);
    cli_note(j->app, "to talk    tinkc chat -m %s", name ? name : j->log_dir);
    free(name);
}

int cli_job_failed(cli_job *j, const tinkc_error *err)
{
    int code = cli_fail_error(j->app, err, NULL);
    if (j->saved)
        cli_note(j->app, "saved up to step %zu; to continue from there: tinkc train resume %s",
                 j->saved_step, j->log_dir);
    else
        cli_note(j->app, "nothing was saved yet; to begin again: tinkc train resume %s",
                 j->log_dir);
    return code;
}

void cli_job_end_row(cli_job *j)
{
    j->pending = j->spans = NULL;
    tkc_arena_reset(&j->arena);
}

void cli_job_free(cli_job *j)
{
    tkc_arena_free(&j->arena);
    j->app->status_line[0] = '\0';
    cli_progress_clear();
    tinkc_trainer_free(j->trainer);
    tinkc_tokenizer_free(j->tokenizer);
    j->app->log_file = NULL;
    j->app->on_retry = NULL;
    cli_trainlog_close(&j->log);
    cli_trainlog_release(&j->claim, j->log_dir);
    free(j->renderer);
    free(j->log_dir);
    free(j->last_rolling);
    free(j->state_path);
    free(j->sampler_path);
}

/* ---- settings ---- */

static void set_option(tkc_tree *v, const cli_app *app, const cli_option *o)
{
    const char *key = o->cookbook ? o->cookbook : o->name;
    const char *text = cli_text(app, o->name);
    int64_t whole;
    double number;
    if (o->kind == CLI_FLAG)
        tkc_tree_set_bool(v, key, cli_flag(app, o->name));
    else if (!text)
        tkc_tree_set(v, key, tkc_tree_null());
    else if ((o->kind == CLI_COUNT || o->kind == CLI_INT) && cli_parse_int(text, &whole))
        tkc_tree_set_i64(v, key, whole);
    else if (o->kind == CLI_NUMBER && cli_parse_number(text, &number))
        tkc_tree_set_real(v, key, number);
    else
        tkc_tree_set(v, key, cli_json_text(cli_arena(app), text));
}

tkc_tree *cli_job_config(const cli_job *j, const char *const *files, size_t n)
{
    tkc_arena *arena = cli_arena(j->app);
    tkc_tree *v = tkc_tree_object(arena), *given = tkc_tree_object(arena),
             *paths = tkc_tree_array(arena);
    for (const cli_option *o = j->app->command->options; o->name; o++) {
        set_option(v, j->app, o);
        const cli_value *value = cli_value_of(j->app, o->name);
        if (value && !o->repeats)
            tkc_tree_set(given, o->name,
                         o->kind == CLI_FLAG ? tkc_tree_new_bool(value->on)
                                             : cli_json_text(arena, value->text));
        else if (value) {
            tkc_tree *all = tkc_tree_array(arena);
            for (size_t i = 0; cli_text_at(j->app, o->name, i); i++)
                tkc_tree_add(all, cli_json_text(arena, cli_text_at(j->app, o->name, i)));
            tkc_tree_set(given, o->name, all);
        }
    }
    for (size_t i = 0; i < n; i++) {
        char *whole = realpath(files[i], NULL);
        tkc_tree_add(paths, cli_json_text(arena, whole ? whole : files[i]));
        free(whole);
    }
    tkc_tree_set(v, "model_name", cli_json_text(arena, j->model));
    tkc_tree_set(v, "dataset", tkc_tree_at(paths, 0));
    tkc_tree_set(v, "log_path", cli_json_text(arena, j->log_dir));
    tkc_tree_set(v, "tinkc",
                 tkc_tree_pack(arena, "{s:s,s:s,s:o,s:o}", "version", tinkc_version(), "recipe",
                               j->app->command->verb, "files", paths, "options", given));
    return v;
}
