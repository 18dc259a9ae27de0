/* test_sft_steps.c - the loop of `tinkc train sft`: the order in which steps are sent and waited for, what happens between
 * them, what a step leaves behind, and what ends it. The trainer, the clock, signals and the run's folder are scripts.
 */
#include <math.h>
#include <signal.h>

#include <tinkc/tinkc.h>

#define tinkc_batch_new          script_batch
#define tinkc_batch_add_weighted script_add
#define tinkc_batch_free         script_batch_free
#define tinkc_forward_backward   script_pass
#define tinkc_forward            script_forward
#define tinkc_optim_step         script_optim
#define tinkc_future_free        script_free
#define tinkc_future_fwdbwd      script_got
#define tinkc_future_step        script_moved
#define tinkc_fwdbwd_count       script_count
#define tinkc_fwdbwd_output      script_output
#define tinkc_tensor_f32s        script_values
static tinkc_batch *script_batch(tinkc_client *, tinkc_error *);
static bool script_add(tinkc_batch *, const int32_t *, size_t, const float *, tinkc_error *);
static void script_batch_free(tinkc_batch *);
static tinkc_future *script_pass(tinkc_trainer *, const tinkc_batch *, const char *, const tinkc_loss_options *,
                                 tinkc_error *);
static tinkc_future *script_forward(tinkc_trainer *, const tinkc_batch *, const char *, const tinkc_loss_options *,
                                    tinkc_error *);
static tinkc_future *script_optim(tinkc_trainer *, const tinkc_adam *, tinkc_error *);
static void script_free(tinkc_future *);
static const tinkc_fwdbwd *script_got(tinkc_future *, int64_t, tinkc_error *);
static const tinkc_metrics *script_moved(tinkc_future *, int64_t, tinkc_error *);
static size_t script_count(const tinkc_fwdbwd *);
static const tinkc_tensor *script_output(const tinkc_fwdbwd *, size_t, const char *);
static tinkc_f32s script_values(const tinkc_tensor *);
/* What other files of the command would do: the headers declare these instead. */
#define cli_now_ms           script_now
#define cli_stop_signal      script_signal
#define cli_wait             script_wait
#define cli_wait_through     script_wait_through
#define cli_sft_batch        script_which
#define cli_sft_rate         script_rate
#define cli_job_start        script_start
#define cli_job_save_due     script_save_due
#define cli_job_rolling_due  script_rolling_due
#define cli_job_save_if_due  script_save
#define cli_job_span         script_span
#define cli_job_write_spans  script_spans
#define cli_job_tell         script_tell
#define cli_job_show_step    script_show
#define cli_job_add_metrics  script_add_metrics
#define cli_job_note_time    script_note_time
#define cli_job_stop_early   script_stop
#define cli_job_failed       script_failed
#define cli_job_goodbye      script_goodbye
#define cli_job_checkpoint   script_checkpoint
#define cli_trainlog_metrics script_metrics
#define cli_job_write_row    script_write_row
#define cli_samples_due      script_samples_due
#define cli_samples_take     script_samples
#include "../../../cli/train/train_run.c"

#include "cli/main/commands.h"
#include "support/cli/held_output.h"
#include "support/cli/noted.h"
#include "support/json_trees.h"
#include "support/test_case.h"

enum { STEP_MS = 2000, MOST = 32 };

static cli_app app;
static cli_sft sft;
static int64_t clock_ms;
static char *said; /* by the last run */
static float weights[] = { 0, 0, 1, 0.5F };
static int32_t ids[] = { 1, 2, 3, 4 };
static cli_example examples[] = { { ids, weights, 4, 6, 1, 0, false }, { ids, weights, 3, 2, 2, 0, false } };
static const size_t order[] = { 1, 0 };

static struct script {
    size_t n_passes, n_optims, n_freed, n_made, n_added;
    int signal;
    size_t signal_after;                  /* comes when so many steps are done */
    size_t save_at, samples_at, fault_at; /* SIZE_MAX = never */
    bool rolling, add_fails, save_fails, samples_fail, eval_fails, no_metrics, rows;
    float logprob; /* of every token */
} script;

/* A future is its place here; its value is the step. */
static char futures[MOST];

int64_t script_now(void)
{
    return clock_ms;
}

int script_signal(void)
{
    return script.signal && sft.job.step >= script.signal_after ? script.signal : 0;
}

static tinkc_batch *script_batch(tinkc_client *client, tinkc_error *err)
{
    assert_true(client == app.client && !err->code);
    script.n_made++;
    script.n_added = 0;
    clock_ms += 30; /* to make it takes as long */
    return (tinkc_batch *)&script;
}

static bool script_add(tinkc_batch *batch, const int32_t *row, size_t len, const float *w, tinkc_error *err)
{
    assert_true(batch && row == ids && w == weights && (len == 3 || len == 4));
    script.n_added++;
    if (script.add_fails)
        tinkc_error_set(err, TINKC_E_ARGUMENT, "not added");
    return !script.add_fails;
}

static void script_batch_free(tinkc_batch *batch)
{
    assert_ptr_equal(batch, &script);
    script.n_made--;
}

static tinkc_future *new_future(void)
{
    size_t i = script.n_passes + script.n_optims;
    assert_true(i <= MOST);
    return (tinkc_future *)&futures[i - 1];
}

static tinkc_future *script_pass(tinkc_trainer *t, const tinkc_batch *batch, const char *loss,
                                 const tinkc_loss_options *o, tinkc_error *err)
{
    assert_true(!t && batch && !o && !err->code && script.n_added == 2);
    assert_string_equal(loss, TINKC_CROSS_ENTROPY);
    note("send ");
    script.n_passes++;
    return new_future();
}

static tinkc_future *script_forward(tinkc_trainer *t, const tinkc_batch *batch, const char *loss,
                                    const tinkc_loss_options *o, tinkc_error *err)
{
    assert_true(!t && batch && !o && !err->code);
    assert_string_equal(loss, TINKC_CROSS_ENTROPY);
    note("eval at %zu of %zu ", sft.job.step, script.n_added);
    script.n_passes++;
    return new_future();
}

static tinkc_future *script_optim(tinkc_trainer *t, const tinkc_adam *adam, tinkc_error *err)
{
    assert_true(!t && !err->code);
    note("rate %g ", adam->learning_rate);
    script.n_optims++;
    return new_future();
}

static void script_free(tinkc_future *f)
{
    script.n_freed += f != NULL;
}

static const tinkc_fwdbwd *script_got(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    assert_true(f && timeout_ms == 0 && !err->code);
    return (const tinkc_fwdbwd *)f;
}

static const tinkc_metrics *script_moved(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    assert_true(f && timeout_ms == 0);
    (void)err;
    return NULL;
}

static size_t script_count(const tinkc_fwdbwd *got)
{
    assert_non_null(got);
    return 2;
}

static const tinkc_tensor *script_output(const tinkc_fwdbwd *got, size_t i, const char *name)
{
    assert_true(got && i < 2);
    assert_string_equal(name, "logprobs");
    return (const tinkc_tensor *)&script;
}

static tinkc_f32s script_values(const tinkc_tensor *t)
{
    static float values[4]; /* one more than an example has targets */
    assert_non_null(t);
    for (size_t i = 0; i < 4; i++)
        values[i] = script.logprob * (float)(i + 1);
    return (tinkc_f32s){ values, 4 };
}

bool script_wait(cli_app *a, tinkc_future *f, const char *label, tinkc_error *err)
{
    assert_ptr_equal(a, &app);
    assert_string_equal(label, "evaluating");
    clock_ms += STEP_MS;
    if (script.eval_fails)
        tinkc_error_set(err, TINKC_E_CONNECTION, "not evaluated");
    return f && !err->code;
}

bool script_wait_through(cli_app *a, tinkc_future *f, const char *label, tinkc_error *err)
{
    assert_ptr_equal(a, &app);
    assert_non_null(f);
    assert_string_equal(label, "training");
    clock_ms += STEP_MS / 2;
    if (sft.job.step == script.fault_at)
        tinkc_error_set(err, TINKC_E_CONNECTION, "lost");
    return !err->code;
}

const size_t *script_which(cli_sft *s, size_t step, size_t *n)
{
    assert_true(s == &sft && step < sft.job.total_steps);
    *n = 2;
    return order;
}

double script_rate(const cli_sft *s, size_t step)
{
    assert_ptr_equal(s, &sft);
    return (double)step + 1;
}

void script_start(cli_job *j)
{
    note("start at %zu ", j->step);
    j->first_step = j->step;
}

bool script_save_due(const cli_job *j, size_t step)
{
    (void)j;
    return !script.rolling && step == script.save_at;
}

bool script_rolling_due(const cli_job *j, size_t step)
{
    (void)j;
    return script.rolling && step == script.save_at;
}

bool script_save(cli_job *j, tinkc_error *err)
{
    if (j->step != script.save_at)
        return true;
    note("save at %zu ", j->step);
    if (script.save_fails)
        tinkc_error_set(err, TINKC_E_FILE, "not saved");
    return !script.save_fails;
}

void script_span(cli_job *j, const char *name, int64_t begun_ms, int64_t ended_ms)
{
    assert_ptr_equal(j, &sft.job);
    if (script.rows)
        note("%s %d ms\n", name, (int)(ended_ms - begun_ms));
}

void script_spans(cli_job *j, size_t step)
{
    assert_true(j == &sft.job && step == sft.job.step);
}

void script_tell(cli_job *j, const char *event, const tkc_tree *v)
{
    assert_ptr_equal(j, &sft.job);
    char *text = cli_json_dump(json_rounded(v, 5));
    if (script.rows)
        note("%s %s\n", event, text);
    free(text);
}

void script_show(cli_job *j, size_t step, const char *format, ...)
{
    char text[300];
    va_list args;
    assert_ptr_equal(j, &sft.job);
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (script.rows)
        note("shown for %zu: %s\n", step, text);
    else
        note("done %zu ", step);
}

void script_add_metrics(tkc_tree *v, const tinkc_metrics *m)
{
    assert_null(m);
    tkc_tree_set_i64(v, "grad", 4);
}

void script_note_time(cli_job *j, const char *name, int64_t begun_ms)
{
    assert_string_equal(name, "time/evals");
    if (!j->pending)
        j->pending = tkc_tree_object(&json_arena);
    tkc_tree_set_i64(j->pending, name, clock_ms - begun_ms);
}

int script_stop(cli_job *j)
{
    note("stopped at %zu", j->step);
    return CLI_EXIT_SIGINT;
}

int script_failed(cli_job *j, const tinkc_error *err)
{
    note("failed at %zu: %s", j->step, err->message);
    return CLI_EXIT_FAILED;
}

void script_goodbye(cli_job *j)
{
    note("goodbye at %zu", j->step);
}

bool script_checkpoint(cli_job *j, bool final, bool rolling, tinkc_error *err)
{
    assert_true(final && !rolling && !err->code);
    note("final at %zu ", j->step);
    if (script.save_fails)
        tinkc_error_set(err, TINKC_E_FILE, "not saved");
    return !script.save_fails;
}

bool script_metrics(cli_trainlog *log, const tkc_tree *v)
{
    assert_ptr_equal(log, &sft.job.log);
    char *text = cli_json_dump(json_rounded(v, 5));
    if (script.rows)
        note("row %s\n", text);
    free(text);
    return !script.no_metrics;
}

void script_write_row(cli_job *j, const tkc_tree *row)
{
    if (!script_metrics(&j->log, row))
        cli_warn(j->app, "%s/metrics.jsonl cannot be written", j->log_dir);
}

bool script_samples_due(const cli_job *j, size_t step)
{
    (void)j;
    return step == script.samples_at;
}

bool script_samples(cli_job *j)
{
    note("samples at %zu ", j->step);
    if (script.samples_fail) /* as they do after a signal alone */
        script.signal = SIGINT;
    return !script.samples_fail;
}

/* ---- set-up ---- */

static int setup(void **state)
{
    (void)state;
    app = (cli_app){ .command = cli_find("train", "sft"), .quiet = true };
    sft = (cli_sft){ .job = { .app = &app, .total_steps = 3, .n_batches = 2 }, .train = { .items = examples, .n = 2 } };
    script = (struct script){ .save_at = SIZE_MAX, .samples_at = SIZE_MAX, .fault_at = SIZE_MAX, .logprob = -0.25F };
    clock_ms = 9000000;
    noted[0] = '\0';
    return app.command ? cli_set_value(&app, "submit-ahead", "0", CLI_FROM_PROGRAM, "test") : -1;
}

static int teardown(void **state)
{
    (void)state;
    free(said);
    said = NULL;
    tkc_arena_free(&sft.job.arena);
    cli_parse_free(&app);
    return 0;
}

static void given(const char *option, const char *value)
{
    assert_int_equal(cli_set_value(&app, option, value, CLI_FROM_PROGRAM, "test"), 0);
}

/* Runs it all, and expects that nothing is left of batches and futures. */
static void run(int exit, const char *wanted)
{
    hold_output();
    int code = cli_sft_run(&sft);
    said = release_output();
    assert_noted(wanted);
    assert_int_equal(code, exit);
    assert_int_equal(script.n_made, 0);
    assert_int_equal(script.n_freed, script.n_passes + script.n_optims);
}

#define AGAIN() (teardown(NULL), setup(NULL))

/* ---- the order ---- */

TEST_WITH(steps_are_sent_ahead_and_finish_in_order, setup, teardown)
{
    given("submit-ahead", "0");
    run(0, "start at 0 send rate 1 done 0 send rate 2 done 1 send rate 3 done 2 samples at 3 "
           "final at 3 goodbye at 3");
    AGAIN();
    given("submit-ahead", "1");
    run(0, "start at 0 send rate 1 send rate 2 done 0 send rate 3 done 1 done 2 samples at 3 "
           "final at 3 goodbye at 3");
    AGAIN();
    given("submit-ahead", "8");
    sft.job.total_steps = 12;
    sft.job.step = 1;
    run(0, "start at 1 send rate 2 send rate 3 send rate 4 send rate 5 send rate 6 send rate 7 send "
           "rate 8 send rate 9 send rate 10 done 1 send rate 11 done 2 send rate 12 done 3 done 4 "
           "done 5 done 6 done 7 done 8 done 9 done 10 done 11 samples at 12 final at 12 goodbye "
           "at 12");
    AGAIN();
    sft.job.step = 3; /* nothing is left */
    run(0, "start at 3 goodbye at 3");
}

/* What happens between steps happens with none under way. */
TEST_WITH(saves_and_evaluations_run_between_steps, setup, teardown)
{
    for (int i = 0; i < 2; i++) {
        AGAIN();
        given("submit-ahead", "2");
        script.save_at = 1;
        script.rolling = i == 1;
        run(0, "start at 0 send rate 1 done 0 save at 1 send rate 2 send rate 3 done 1 done 2 "
               "samples at 3 final at 3 goodbye at 3");
    }
    AGAIN();
    given("submit-ahead", "2");
    script.samples_at = 2;
    run(0, "start at 0 send rate 1 send rate 2 done 0 done 1 samples at 2 send rate 3 done 2 "
           "samples at 3 final at 3 goodbye at 3");
    AGAIN();
    given("submit-ahead", "1");
    given("eval-every", "2");
    sft.test = (cli_examples){ .items = examples, .n = 2 };
    run(0, "start at 0 eval at 0 of 2 send rate 1 send rate 2 done 0 done 1 eval at 2 of 2 send rate "
           "3 done 2 eval at 3 of 2 samples at 3 final at 3 goodbye at 3");
    AGAIN();
    given("eval-every", "0");
    sft.test = (cli_examples){ .items = examples, .n = 2 };
    run(0, "start at 0 send rate 1 done 0 send rate 2 done 1 send rate 3 done 2 samples at 3 final "
           "at 3 goodbye at 3");
}

TEST_WITH(what_ends_it, setup, teardown)
{
    given("submit-ahead", "1");
    script.fault_at = 1;
    run(CLI_EXIT_FAILED, "start at 0 send rate 1 send rate 2 done 0 send rate 3 failed at 1: lost");
    AGAIN();
    script.add_fails = true;
    run(CLI_EXIT_FAILED, "start at 0 failed at 0: not added");
    assert_int_equal(script.n_added, 1);
    AGAIN();
    script.save_at = 1;
    script.save_fails = true;
    run(CLI_EXIT_FAILED, "start at 0 send rate 1 done 0 save at 1 failed at 1: not saved");
    AGAIN();
    script.save_fails = true;
    run(CLI_EXIT_FAILED, "start at 0 send rate 1 done 0 send rate 2 done 1 send rate 3 done 2 samples "
                         "at 3 final at 3 failed at 3: not saved");
    AGAIN();
    given("eval-every", "1");
    sft.test = (cli_examples){ .items = examples, .n = 1 };
    script.eval_fails = true;
    run(CLI_EXIT_FAILED, "start at 0 eval at 0 of 1 failed at 0: not evaluated");
    AGAIN();
    given("eval-every", "5"); /* at the begin, and at the end */
    sft.job.step = 2;
    sft.test = (cli_examples){ .items = examples, .n = 1 };
    script.eval_fails = true;
    run(CLI_EXIT_FAILED, "start at 2 send rate 3 done 2 eval at 3 of 1 failed at 3: not evaluated");
    AGAIN();
    script.logprob = -INFINITY;
    run(CLI_EXIT_FAILED, "start at 0 send rate 1 done 0 failed at 1: loss is NaN or infinite: lower --lr");
}

/* After a signal no step is sent; those under way are waited for. */
TEST_WITH(after_a_signal_no_step_is_sent, setup, teardown)
{
    given("submit-ahead", "1");
    script.signal = SIGINT;
    script.signal_after = 1;
    run(CLI_EXIT_SIGINT, "start at 0 send rate 1 send rate 2 done 0 done 1 stopped at 2");
    AGAIN();
    script.signal = SIGINT;
    run(CLI_EXIT_SIGINT, "start at 0 stopped at 0");
    AGAIN();
    script.samples_at = 0;
    script.samples_fail = true;
    run(CLI_EXIT_SIGINT, "start at 0 samples at 0 stopped at 0");
    AGAIN();
    sft.job.step = 2;
    script.samples_fail = true;
    run(CLI_EXIT_SIGINT, "start at 2 send rate 3 done 2 samples at 3 stopped at 3");
}

/* ---- what is left behind ---- */

/* Of two examples with log-probabilities -1/4, -2/4, -3/4: 0.5 of weight 1 in both, 0.75 of weight 1/2 in the longer one. */
TEST_WITH(rows_are_scored_by_their_weights, setup, teardown)
{
    script.rows = true;
    script.no_metrics = true;
    given("eval-every", "2");
    app.quiet = false;
    sft.test = (cli_examples){ .items = examples, .n = 2 };
    sft.job.total_steps = 4;
    sft.job.step = 3;
    sft.job.log_dir = strdup("run");
    sft.job.elapsed_tokens = 100;
    sft.job.pending = tkc_tree_pack(&json_arena, "{s:i}", "time/samples", 8);
    run(0, "start at 3 send rate 4 get_batch 30 ms\nstep 2000 ms\n"
           "row {\"step\":3,\"epoch\":1,\"progress\":1.0,\"learning_rate\":4.0,\"grad\":4,"
           "\"num_sequences\":2,\"num_tokens\":5,\"num_loss_tokens\":2.5,\"train_mean_nll\":0.55,"
           "\"train_mean_bpb\":0.31559,\"time/samples\":8,\"time/get_batch\":0.03,"
           "\"time/step\":2.0}\n"
           "step {\"step\":3,\"epoch\":1,\"progress\":1.0,\"learning_rate\":4.0,\"grad\":4,"
           "\"num_sequences\":2,\"num_tokens\":5,\"num_loss_tokens\":2.5,\"train_mean_nll\":0.55,"
           "\"train_mean_bpb\":0.31559,\"time/samples\":8,\"time/get_batch\":0.03,"
           "\"time/step\":2.0}\n"
           "shown for 3: loss 0.5500  lr 4.00e+00  2 tok/s\n"
           "eval at 4 of 2 eval {\"step\":4,\"test/nll\":0.55,\"test/bpb\":0.31559}\n"
           "row {\"step\":4,\"test/nll\":0.55,\"test/bpb\":0.31559}\n"
           "samples at 4 final at 4 goodbye at 4");
    assert_string_equal(said, "warning: run/metrics.jsonl cannot be written\n"
                              "step 4: test loss 0.5500\n");
    char *left = cli_json_dump(json_rounded(sft.job.pending, 5));
    assert_string_equal(left, "{\"time/evals\":2030,\"step\":4,\"test/nll\":0.55,\"test/bpb\":0.31559}");
    free(left);
    free(sft.job.log_dir);
    assert_true(sft.job.elapsed_tokens == 105 && sft.job.step == 4);
    assert_true(sft.settled_ms == clock_ms - 2030 && sft.smooth_tokens_s == 2.5);
}

/* Speeds are smoothed, and steps that overlap are counted once. */
TEST_WITH(speeds_are_smoothed, setup, teardown)
{
    static const score sc = { .loss = 1, .weight = 1, .raw = 1, .tokens = 10, .bytes = 1 };
    flight f = { .begun_ms = 1000, .sent_ms = 2000 };
    clock_ms = 3000;
    record_step(&sft, &f, &sc, NULL);
    assert_true(sft.smooth_tokens_s == 10 && sft.settled_ms == 3000);
    f.sent_ms = 2500; /* while the one before was under way */
    clock_ms = 3500;
    record_step(&sft, &f, &sc, NULL);
    assert_true(fabs(sft.smooth_tokens_s - (8 + 4)) < 1e-9 && sft.settled_ms == 3500);
    f.sent_ms = 4500;
    clock_ms = 5500;
    record_step(&sft, &f, &sc, NULL);
    assert_true(fabs(sft.smooth_tokens_s - (0.8 * 12 + 2)) < 1e-9);
}

/* What is not learnt may be impossible; what is unlearnt counts for the loss alone. */
TEST_WITH(only_what_is_weighed_counts, setup, teardown)
{
    static float signs[] = { 9, 0, -1, 2 };
    const cli_example e = { ids, signs, 4, 5, 1, 0, false };
    score sc = { 0 };
    script.logprob = -1;
    score_example(&e, (const tinkc_tensor *)&script, &sc);
    assert_true(sc.loss == -2 + 6 && sc.weight == 1 && sc.raw == 3);
    assert_true(sc.tokens == 3 && sc.bytes == 5 && sc.sequences == 1);
    assert_true(mean_nll(&sc) == 4 && fabs(bits_per_byte(&sc) - 3 / (5 * log(2))) < 1e-12);
    const score none = { .loss = 1, .raw = 1 }, less = { .loss = 1, .weight = -1 };
    assert_true(isnan(mean_nll(&none)) && isnan(mean_nll(&less)) && isnan(bits_per_byte(&none)));
}
