/* test_rl_steps.c - the loop of `tinkc train rl` around the library's: options at their limits, how many steps, what a
 * step leaves behind and says, and what ends it. The library, the clock, signals and the run's folder are scripts.
 */
#include <signal.h>

#include <tinkc/recipes.h>
#include <tinkc/tinkc.h>

#define tinkc_queue_run     script_run
#define tinkc_rollouts_next script_next
#define tinkc_group_count   script_count
#define tinkc_group_at      script_at
#define tinkc_rl_step       script_rl_step
static size_t script_run(tinkc_queue *, int64_t timeout_ms, tinkc_error *);
static tinkc_group *script_next(tinkc_rollouts *, int64_t timeout_ms, tinkc_error *);
static size_t script_count(const tinkc_group *);
static const tinkc_rollout *script_at(const tinkc_group *, size_t);
static const tinkc_rl_report *script_rl_step(tinkc_rl *, size_t total, tinkc_error *);
#define tinkc_rl_settle script_settle
static bool script_settle(tinkc_rl *, tinkc_error *);
/* What other files of the command would do: the headers declare these instead. */
#define cli_now_ms           script_now
#define cli_status           script_line
#define cli_stop_signal      script_signal
#define cli_job_save_if_due  script_save
#define cli_job_span         script_span
#define cli_job_write_spans  script_spans
#define cli_job_tell         script_tell
#define cli_job_show_step    script_show
#define cli_job_stop_early   script_stop
#define cli_job_failed       script_failed
#define cli_job_goodbye      script_goodbye
#define cli_job_checkpoint   script_checkpoint
#define cli_trainlog_metrics script_metrics
#define cli_job_write_row    script_write_row
#define cli_samples_note     script_sample
#include "../../../cli/train/train_rl.c"

#include "cli/main/commands.h"
#include "support/cli/held_output.h"
#include "support/cli/noted.h"
#include "support/json_trees.h"
#include "support/test_case.h"

enum { MOST = 8 };

static cli_app app;
static cli_rl rl;
static int64_t clock_ms;

static struct script {
    int signal, signal_after; /* comes after so many steps */
    int32_t next[MOST];       /* what each look at the pool brings: 0 = a group, else a code */
    size_t n_next, n_steps, n_runs;
    int32_t step_fault, cause; /* of the step after those that are good */
    size_t good;
    int32_t save_fault;
    bool no_metrics;
    tinkc_rollout rollouts[MOST][2]; /* of each group */
    size_t sizes[MOST];
} script;

static void note_json(const char *what, const tkc_tree *v)
{
    char *text = cli_json_dump(json_rounded(v, 6));
    note("%s %s\n", what, text);
    free(text);
}

int64_t script_now(void)
{
    return clock_ms;
}

void script_line(const cli_app *a, bool now, const char *format, ...)
{
    char text[300];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    assert_true(a == &app && !now);
    note("line[%s]\n", text);
}

int script_signal(void)
{
    return script.signal && (int)script.n_steps >= script.signal_after ? script.signal : 0;
}

bool script_save(cli_job *j, tinkc_error *err)
{
    note("between steps, at %zu\n", j->step);
    if (script.save_fault)
        tinkc_error_set(err, script.save_fault, "not saved");
    return !script.save_fault;
}

void script_span(cli_job *j, const char *name, int64_t begun_ms, int64_t ended_ms)
{
    assert_ptr_equal(j, &rl.job);
    note("span %s of %d ms\n", name, (int)(ended_ms - begun_ms));
}

void script_spans(cli_job *j, size_t step)
{
    assert_ptr_equal(j, &rl.job);
    note("spans of %zu\n", step);
}

void script_tell(cli_job *j, const char *event, const tkc_tree *v)
{
    assert_ptr_equal(j, &rl.job);
    note_json(event, v);
}

void script_show(cli_job *j, size_t step, const char *format, ...)
{
    char text[300];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    assert_ptr_equal(j, &rl.job);
    note("shown for %zu: %s\n", step, text);
}

int script_stop(cli_job *j)
{
    note("stopped at %zu\n", j->step);
    return CLI_EXIT_SIGINT;
}

int script_failed(cli_job *j, const tinkc_error *err)
{
    note("failed at %zu: %s\n", j->step, err->message);
    return CLI_EXIT_FAILED;
}

void script_goodbye(cli_job *j)
{
    note("goodbye at %zu\n", j->step);
}

bool script_checkpoint(cli_job *j, bool final, bool rolling, tinkc_error *err)
{
    assert_true(final && !rolling);
    note("final checkpoint at %zu\n", j->step);
    if (script.save_fault)
        tinkc_error_set(err, script.save_fault, "not saved");
    return !script.save_fault;
}

bool script_metrics(cli_trainlog *log, const tkc_tree *v)
{
    assert_ptr_equal(log, &rl.job.log);
    note_json("row", v);
    return !script.no_metrics;
}

void script_write_row(cli_job *j, const tkc_tree *row)
{
    if (!script_metrics(&j->log, row))
        cli_warn(j->app, "%s/metrics.jsonl cannot be written", j->log_dir);
}

void script_sample(cli_job *j, size_t step, const tkc_tree *prompt, const char *completion, const double *reward)
{
    assert_ptr_equal(j, &rl.job);
    note("sample of %zu, reward %g: %s after", step, *reward, completion);
    note_json("", prompt ? prompt : tkc_tree_null());
}

static size_t script_run(tinkc_queue *queue, int64_t timeout_ms, tinkc_error *err)
{
    assert_true(queue == app.events && timeout_ms == 0 && !err);
    return script.n_runs++;
}

static tinkc_group *script_next(tinkc_rollouts *pool, int64_t timeout_ms, tinkc_error *err)
{
    assert_true(!pool && timeout_ms == 100 && script.n_next < MOST);
    int32_t code = script.next[script.n_next++];
    if (code)
        tinkc_error_set(err, code, "the pool");
    return code ? NULL : (tinkc_group *)&script.rollouts[script.n_next - 1];
}

/* A group is the row of its rollouts. */
static size_t group_of(const tinkc_group *g)
{
    for (size_t i = 0; i < MOST; i++)
        if ((const void *)g == (const void *)&script.rollouts[i])
            return i;
    fail();
    return 0;
}

static size_t script_count(const tinkc_group *g)
{
    return script.sizes[group_of(g)];
}

static const tinkc_rollout *script_at(const tinkc_group *g, size_t i)
{
    assert_true(i < script_count(g));
    return &script.rollouts[group_of(g)][i];
}

static const tinkc_rl_report *script_rl_step(tinkc_rl *loop, size_t total, tinkc_error *err)
{
    static const char *const names[] = { "env/all/reward", "kl", NULL };
    static const double values[] = { 0.25, 0.5 };
    static const tinkc_group *groups[3];
    static tinkc_rl_report report;
    assert_true(!loop && total == rl.job.total_steps);
    for (size_t i = 0; i < 3; i++)
        groups[i] = (const tinkc_group *)&script.rollouts[i];
    clock_ms += 2000;
    if (script.n_steps == script.good) {
        tinkc_error_set(err, script.step_fault, "the step");
        err->cause = script.cause;
        return NULL;
    }
    report = (tinkc_rl_report){ .step = rl.job.step,
                                .metric_names = names,
                                .metric_values = values,
                                .groups = groups,
                                .n_groups = 3,
                                .reward = 0.125 * (double)(script.n_steps + 1),
                                .trained = 5,
                                .failed = 2,
                                .staleness = 1,
                                .tokens = 300 };
    script.n_steps++;
    return &report;
}

static size_t n_settled;

static bool script_settle(tinkc_rl *loop, tinkc_error *err)
{
    assert_true(loop && !err->code);
    return ++n_settled;
}

static int setup(void **state)
{
    (void)state;
    app = (cli_app){ .command = cli_find("train", "rl"), .deadline_ms = INT64_MAX };
    rl = (cli_rl){ .job = { .app = &app, .total_steps = 2 } };
    script = (struct script){ .good = MOST };
    clock_ms = 7000000;
    noted[0] = '\0';
    return app.command ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    tkc_arena_free(&rl.job.arena);
    cli_parse_free(&app);
    return 0;
}

static void given(const char *option, const char *value)
{
    assert_int_equal(cli_set_value(&app, option, value, CLI_FROM_PROGRAM, "test"), 0);
}

static void assert_said(const char *wanted)
{
    char *text = release_output();
    assert_string_equal(text, wanted);
    free(text);
}

/* ---- what is saved ---- */

/* What is sampled ahead is whole before a checkpoint is made. */
TEST_WITH(a_checkpoint_waits_for_batches, setup, teardown)
{
    tinkc_error err = { 0 };
    n_settled = 0;
    assert_true(settle(&rl, &err)); /* before there are any */
    rl.rl = (tinkc_rl *)(void *)&rl;
    assert_true(settle(&rl, &err));
    rl.rl = NULL;
    assert_int_equal(n_settled, 1);
}

/* A resumed run would sample again what it cannot read. */
TEST_WITH(rollouts_that_cannot_be_written_are_an_error, setup, teardown)
{
    tinkc_error err = { 0 };
    char folder[] = "/tmp/tinkc-rollouts-XXXXXX", command[100];
    assert_non_null(mkdtemp(folder));
    rl.job.log_dir = folder;
    (void)snprintf(command, sizeof command, "mkdir -p %s/iteration_000001/train_rollout_summaries.jsonl", folder);
    assert_int_equal(system(command), 0);
    assert_true(record(&rl, 0, NULL, 0, &err));
    hold_output();
    assert_false(record(&rl, 1, NULL, 0, &err)); /* a folder has its name */
    free(release_output());
    assert_int_equal(err.code, TINKC_E_FILE);
    rl.job.log_dir = NULL;
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* ---- options ---- */

TEST_WITH(options_of_rl_have_bounds, setup, teardown)
{
    static const char counts[] = "error: --group-size, --groups-per-batch, --epochs and "
                                 "--max-tokens must be above 0\n",
                      substeps[] = "error: --num-substeps must be from 1 to 64\n";
    static const struct {
        const char *option, *value, *said;
    } rows[] = {
        { "group-size", "0", counts },
        { "groups-per-batch", "0", counts },
        { "epochs", "0", counts },
        { "max-tokens", "0", counts },
        { "group-size", "1", "" },
        { "groups-per-batch", "1", "" },
        { "epochs", "1", "" },
        { "max-tokens", "1", "" },
        { "max-steps", "0", "error: --max-steps must be at least 1\n" },
        { "max-steps", "1", "" },
        { "num-substeps", "0", substeps },
        { "num-substeps", "1", "" },
        { "num-substeps", "64", "" },
        { "num-substeps", "65", substeps },
        { "lr", "0", "error: --lr must be above 0\n" },
        { "lr", "-1", "error: --lr must be above 0\n" },
        { "lr", "0.00001", "" },
        { "temperature", "0", "" },
        { "temperature", "-0.5", "error: --temperature must not be below 0\n" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        teardown(NULL);
        setup(NULL);
        given(rows[i].option, rows[i].value);
        hold_output();
        int bad = check_options(&app);
        assert_said(rows[i].said);
        assert_int_equal(bad, rows[i].said[0] ? CLI_EXIT_USAGE : 0);
    }
}

/* Prompts for tests have answers where a grader compares with them, and need none for one that asks a model. */
TEST_WITH(prompts_for_tests_have_what_the_rewards_need, setup, teardown)
{
    char path[] = "/tmp/tinkc-prompts-XXXXXX.jsonl";
    int fd = mkstemps(path, 6);
    assert_int_equal(write(fd, "{\"prompt\":\"a\"}\n", 15), 15);
    close(fd);
    given("test-data", path);
    for (int i = 0; i < 2; i++) {
        rl.rewards.needs_answer = i == 0;
        rl.rewards.wants_model = i == 1;
        hold_output();
        int bad = hold_out(&rl);
        free(release_output());
        assert_int_equal(bad != 0, i == 0);
        assert_int_equal(rl.test.n, i);
        cli_prompts_free(&rl.test);
        rl.test = (cli_prompts){ 0 };
    }
    unlink(path);
}

TEST_WITH(numbers_of_steps, setup, teardown)
{
    static const struct {
        size_t prompts;
        const char *epochs, *groups, *most;
        size_t steps, groups_in_each;
        bool env;
    } rows[] = {
        { 7, "2", "4", NULL, 3, 4, false }, { 8, "1", "4", NULL, 2, 4, false },
        { 3, "1", "4", NULL, 1, 3, false }, /* none is asked twice in a step */
        { 3, "5", "4", NULL, 5, 3, false }, /* and each once in an epoch */
        { 3, "1", "4", NULL, 1, 4, true },  /* but one row makes many episodes */
        { 7, "2", "4", "2", 2, 4, false },  { 7, "2", "4", "3", 3, 4, false },
        { 7, "2", "4", "4", 3, 4, false },  { 7, "2", "4", "1", 1, 4, false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        teardown(NULL);
        setup(NULL);
        given("epochs", rows[i].epochs);
        given("groups-per-batch", rows[i].groups);
        given("group-size", "9");
        if (rows[i].most)
            given("max-steps", rows[i].most);
        rl.prompts.n = rows[i].prompts;
        rl.rewards.env = rows[i].env ? (void *)&rl : NULL;
        settle_steps(&rl);
        rl.rewards.env = NULL;
        assert_int_equal(rl.job.total_steps, rows[i].steps);
        assert_true(rl.group_size == 9 && rl.groups_per_batch == rows[i].groups_in_each);
    }
}

TEST_WITH(when_it_evaluates, setup, teardown)
{
    static const struct {
        const char *every;
        size_t step, tests;
        bool due;
    } rows[] = { { "0", 0, 1, false }, { "0", 4, 1, false }, { "1", 0, 1, true },
                 { "2", 3, 1, false }, { "2", 4, 1, true },  { "2", 4, 0, false } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        given("eval-every", rows[i].every);
        rl.job.step = rows[i].step;
        rl.test.n = rows[i].tests;
        assert_int_equal(eval_due(&rl), rows[i].due);
    }
}

/* ---- while it waits ---- */

TEST_WITH(the_line_meanwhile, setup, teardown)
{
    rl.job.first_step = rl.job.step = 3;
    rl.job.total_steps = 9;
    rl.last_watched = 0.5;
    assert_true(tick(&rl));
    assert_noted("line[step 4/9  reward 0.500  (sampling)]\n");
    assert_int_equal(script.n_runs, 0); /* nobody listens */
    app.events = (tinkc_queue *)&app;
    rl.job.step = 4;
    app.deadline_ms = clock_ms + 1;
    assert_true(tick(&rl));
    assert_noted("line[step 5/9  reward 0.500]\n");
    assert_int_equal(script.n_runs, 1);
    rl.how.distill = true; /* a teacher gives no reward */
    assert_true(tick(&rl));
    assert_noted("line[step 5/9  KL 0.500]\n");
    rl.how.distill = false;
    app.deadline_ms = clock_ms;
    assert_false(tick(&rl));
    app.deadline_ms = INT64_MAX;
    script.signal = SIGINT;
    assert_false(tick(&rl));
}

TEST_WITH(groups_that_are_waited_for, setup, teardown)
{
    tinkc_group *groups[4] = { 0 };
    tinkc_error err = { 0 };
    script.next[0] = script.next[2] = script.next[3] = TINKC_E_TIMEOUT;
    assert_true(take_groups(&rl, NULL, groups, 2, &err));
    assert_true(script.n_next == 5 && !err.code);
    assert_ptr_equal(groups[0], &script.rollouts[1]);
    assert_ptr_equal(groups[1], &script.rollouts[4]);
    assert_null(groups[2]);
    script.n_next = 0;
    script.next[0] = 0;
    script.next[1] = TINKC_E_CONNECTION;
    assert_false(take_groups(&rl, NULL, groups, 3, &err));
    assert_int_equal(script.n_next, 2);
    assert_int_equal(err.code, TINKC_E_CONNECTION);
    assert_string_equal(err.message, "the pool");
    err = (tinkc_error){ 0 };
    script.n_next = 0;
    script.signal = SIGINT;
    assert_false(take_groups(&rl, NULL, groups, 3, &err));
    assert_int_equal(script.n_next, 1);
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    assert_string_equal(err.message, "interrupted");
    err = (tinkc_error){ 0 };
    assert_true(take_groups(&rl, NULL, groups, 0, &err));
}

/* ---- steps ---- */

static const char first_step[] = "between steps, at 0\n"
                                 "span step of 2000 ms\nspans of 0\n"
                                 "row {\"step\":0,\"env/all/reward\":0.25,\"kl\":0.5,\"time/evals\":3}\n"
                                 "step {\"step\":0,\"env/all/reward\":0.25,\"kl\":0.5,\"time/evals\":3}\n"
                                 "sample of 0, reward 0.5: 12 after [{\"role\":\"user\"}]\n"
                                 "sample of 0, reward 1: 13 after null\n"
                                 "shown for 0: reward 0.125  trained 5  1 steps old  150 tok/s\n";
static const char second_step[] = "between steps, at 1\n"
                                  "span step of 2000 ms\nspans of 1\n"
                                  "row {\"step\":1,\"env/all/reward\":0.25,\"kl\":0.5}\n"
                                  "step {\"step\":1,\"env/all/reward\":0.25,\"kl\":0.5}\n"
                                  "sample of 1, reward 0.5: 12 after [{\"role\":\"user\"}]\n"
                                  "sample of 1, reward 1: 13 after null\n"
                                  "shown for 1: reward 0.250  trained 5  1 steps old  150 tok/s\n";

static void fill_groups(void)
{
    script.sizes[0] = 2;
    script.sizes[1] = 1;
    script.sizes[2] = 1; /* one more than are kept */
    script.rollouts[0][0] = (tinkc_rollout){ .text = "12",
                                             .reward = 0.5,
                                             .messages_json = "[{\"role\":\"user\"},{\"role\":\"assistant\"}]" };
    script.rollouts[0][1] = (tinkc_rollout){ .text = "not the first" };
    script.rollouts[1][0] = (tinkc_rollout){ .text = "13", .reward = 1 };
    script.rollouts[2][0] = (tinkc_rollout){ .text = "14", .reward = 1 };
}

TEST_WITH(a_step_trains_on_its_groups, setup, teardown)
{
    tinkc_error err = { 0 };
    fill_groups();
    rl.job.pending = tkc_tree_pack(&json_arena, "{s:i}", "time/evals", 3);
    rl.job.elapsed_tokens = 1000;
    hold_output();
    bool ok = train(&rl, &err);
    assert_said("");
    assert_true(ok && !err.code);
    char wanted[4096];
    (void)snprintf(wanted, sizeof wanted, "%s%s", first_step, second_step);
    assert_noted(wanted);
    assert_true(rl.job.step == 2 && rl.job.elapsed_tokens == 1600 && rl.last_watched == 0.25);
    assert_null(rl.job.pending);
    assert_true(train(&rl, &err)); /* nothing is left */
    assert_noted("");
}

/* Rollouts that failed are reported once a step, and not kept. A row that is not written is reported, too. */
TEST_WITH(steps_with_trouble, setup, teardown)
{
    tinkc_error err = { 0 };
    char folder[] = "run";
    fill_groups();
    script.sizes[0] = 0;
    script.rollouts[1][0].error = "no reward";
    script.rollouts[2][0].error = "nor here";
    script.no_metrics = true;
    rl.job.log_dir = folder;
    rl.job.total_steps = 1;
    hold_output();
    bool ok = train(&rl, &err);
    assert_said("warning: run/metrics.jsonl cannot be written\n"
                "warning: step 0: 2 of the rollouts failed and were not trained on; the first: no "
                "reward\n");
    assert_true(ok);
    assert_null(strstr(noted, "sample of"));
}

TEST_WITH(what_ends_the_steps, setup, teardown)
{
    tinkc_error err = { 0 };
    fill_groups();
    rl.job.pending = tkc_tree_pack(&json_arena, "{s:i}", "time/evals", 3);
    script.good = 1;
    script.step_fault = TINKC_E_CONNECTION;
    assert_false(train(&rl, &err));
    assert_true(err.code == TINKC_E_CONNECTION && rl.job.step == 1);
    char wanted[4096];
    (void)snprintf(wanted, sizeof wanted, "%sbetween steps, at 1\n", first_step);
    assert_noted(wanted);
    err = (tinkc_error){ 0 };
    script.save_fault = TINKC_E_FILE;
    assert_false(train(&rl, &err));
    assert_noted("between steps, at 1\n");
    assert_int_equal(err.code, TINKC_E_FILE);
    err = (tinkc_error){ 0 };
    script.signal = SIGTERM;
    assert_true(train(&rl, &err));
    assert_noted("");
}

/* ---- the end ---- */

TEST_WITH(the_end_of_a_run_saves_what_it_can, setup, teardown)
{
    static const struct {
        bool ok;
        int32_t code, cause;
        size_t step;
        int signal;
        int32_t save_fault;
        int exit;
        const char *done, *said;
    } rows[] = {
        { true, 0, 0, 2, 0, 0, 0, "final checkpoint at 2\ngoodbye at 2\n", "" },
        { true, 0, 0, 1, 0, 0, 0, "goodbye at 1\n", "" }, /* no step was taken */
        { true, 0, 0, 2, 0, TINKC_E_FILE, 1, "final checkpoint at 2\nfailed at 2: not saved\n", "" },
        { false, TINKC_E_FILE, 0, 2, 0, 0, 1, "failed at 2: why\n", "" },
        { false, TINKC_E_REQUEST_FAILED, 0, 2, 0, 0, 1, "failed at 2: why\n", "" },
        { false, TINKC_E_FILE, TINKC_E_CALLBACK, 2, 0, 0, 1, "failed at 2: why\n", "" },
        { false, TINKC_E_REQUEST_FAILED, TINKC_E_CALLBACK, 2, 0, 0, CLI_EXIT_PARTLY, "",
          "error: why\nhint: remove the cause, then: tinkc train resume run\n" },
        { false, TINKC_E_REQUEST_FAILED, TINKC_E_CALLBACK, 2, SIGINT, 0, CLI_EXIT_SIGINT, "stopped at 2\n", "" },
        { true, 0, 0, 2, SIGINT, 0, CLI_EXIT_SIGINT, "stopped at 2\n", "" },
    };
    char folder[] = "run";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { .code = rows[i].code, .cause = rows[i].cause };
        (void)snprintf(err.message, sizeof err.message, "%s", rows[i].code ? "why" : "");
        teardown(NULL);
        setup(NULL);
        rl.job.log_dir = folder;
        rl.job.first_step = 1;
        rl.job.step = rows[i].step;
        script.signal = rows[i].signal;
        script.save_fault = rows[i].save_fault;
        hold_output();
        int code = finish(&rl, rows[i].ok, &err);
        assert_said(rows[i].said);
        assert_noted(rows[i].done);
        assert_int_equal(code, rows[i].exit);
    }
}
