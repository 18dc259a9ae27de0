/* test_job_steps.c - what a training run does by its step alone: rates, when it saves, the line after a step, times. */
#include <math.h>
#include <signal.h>

#include "cli/main/commands.h"
#include "support/cli/held_output.h"
#include "cli/output/term.h"
#include "cli/output/text.h"
#include "cli/train/train_job.h"
#include "support/json_trees.h"
#include "support/test_case.h"

/* The run's begin in the tests of what is left: 100 hours ago, and a little more, so that a slow machine shows the same. */
enum { HOUR_MS = 3600000, LONG_MS = 100 * HOUR_MS + 12 * 60000 };

static cli_app app;

static int setup(void **state)
{
    (void)state;
    app = (cli_app){ .progress = true, .command = cli_find("train", "sft") };
    return app.command ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    cli_parse_free(&app);
    return 0;
}

static void given(const char *option, const char *value)
{
    assert_int_equal(cli_set_value(&app, option, value, CLI_FROM_PROGRAM, "test"), 0);
}

static void assert_shown(const char *wanted)
{
    char *shown = release_output();
    assert_string_equal(shown, wanted);
    free(shown);
}

TEST_WITH(each_schedule_scales_the_rate, setup, teardown)
{
    static const struct {
        const char *schedule, *warm;
        size_t step;
        double scale;
    } rows[] = {
        { "constant", "0", 0, 1 },      { "constant", "0", 9, 1 },      { "linear", "0", 0, 1 },
        { "linear", "0", 1, 0.9 },      { "linear", "0", 9, 0.1 },      { "cosine", "0", 0, 1 },
        { "cosine", "0", 5, 0.5 },      { "linear", "2", 0, 0 },        { "linear", "2", 1, 0.5 },
        { "linear", "2", 2, 1 },        { "linear", "2", 4, 0.75 },     { "linear", "2", 9, 0.125 },
        { "constant", "4", 3, 0.75 },   { "constant", "4", 4, 1 },      { "cosine", "2", 2, 1 },
        { "cosine", "2", 6, 0.5 },      { "cosine", "2", 4, 0.853553 }, { "cosine", "0", 9, 0.024472 },
        { "cosine", "2", 8, 0.146447 },
    };
    const cli_job j = { .app = &app, .total_steps = 10 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        given("lr-schedule", rows[i].schedule);
        given("warmup-steps", rows[i].warm);
        double rate = cli_job_rate(&j, 4, rows[i].step);
        if (fabs(rate - 4 * rows[i].scale) > 1e-5)
            fail_msg("%s, warm-up %s, step %zu: %g", rows[i].schedule, rows[i].warm, rows[i].step, rate);
    }
}

TEST_WITH(options_set_the_optimizer, setup, teardown)
{
    tinkc_adam a = cli_job_adam(&app, 0.25);
    assert_true(a.learning_rate == 0.25 && a.beta1 == 0.9 && a.beta2 == 0.95 && a.eps == 1e-8 && a.weight_decay == 0 &&
                a.grad_clip_norm == 0);
    given("adam-beta1", "0.1");
    given("adam-beta2", "0.2");
    given("adam-eps", "0.3");
    given("weight-decay", "0.4");
    given("grad-clip", "0.5");
    a = cli_job_adam(&app, 2);
    assert_true(a.learning_rate == 2 && a.beta1 == 0.1 && a.beta2 == 0.2 && a.eps == 0.3 && a.weight_decay == 0.4 &&
                a.grad_clip_norm == 0.5);
}

TEST_WITH(when_it_saves, setup, teardown)
{
    static const struct {
        const char *option, *value;
        size_t step;
        bool due, rolling;
    } rows[] = {
        { "save-every", "4", 8, true, false },
        { "save-every", "4", 7, false, false },
        { "save-every", "4", 4, false, false }, /* where this process began */
        { "save-every", "0", 8, false, false },
        { "save-every-tokens", "100", 7, true, false },
        { "save-every-tokens", "101", 7, false, false },
        { "save-every-tokens", "0", 7, false, false },
        { "save-every-seconds", "3600", 7, true, false },
        { "save-every-seconds", "7200", 7, false, false },
        { "rolling-save-every", "3", 6, false, true },
        { "rolling-save-every", "3", 7, false, false },
        { "rolling-save-every", "2", 4, false, false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_parse_free(&app);
        setup(NULL);
        given("save-every", "0");
        given(rows[i].option, rows[i].value);
        const cli_job j = { .app = &app,
                            .first_step = 4,
                            .elapsed_tokens = 150,
                            .last_save_tokens = 50,
                            .last_save_ms = cli_now_ms() - HOUR_MS };
        if (cli_job_save_due(&j, rows[i].step) != rows[i].due ||
            cli_job_rolling_due(&j, rows[i].step) != rows[i].rolling)
            fail_msg("--%s %s, step %zu", rows[i].option, rows[i].value, rows[i].step);
    }
    assert_false(cli_job_every(&app, "rolling-save-every", 0));
}

TEST_WITH(lines_of_steps, setup, teardown)
{
    cli_job j = { .app = &app, .total_steps = 12, .first_step = 2, .begun_ms = cli_now_ms() - LONG_MS };
    hold_output();
    cli_job_show_step(&j, 2, "loss %d", 5); /* the first of this process: one of ten */
    assert_true(j.last_line_ms >= j.begun_ms + LONG_MS);
    cli_job_show_step(&j, 3, "too soon");
    j.last_line_ms = cli_now_ms() - 30000;
    cli_job_show_step(&j, 5, "x");
    j.last_line_ms = cli_now_ms() + HOUR_MS;
    cli_job_show_step(&j, 11, "last");
    app.progress = false;
    cli_job_show_step(&j, 11, "hidden");
    assert_shown("step 3/12  loss 5  ETA 37d13h\nstep 6/12  x  ETA 6d06h\nstep 12/12  last  ETA 0.0s\n");
    assert_string_equal(app.status_line, "");
}

TEST_WITH(bars_of_steps, setup, teardown)
{
    cli_job j = { .app = &app, .total_steps = 10, .begun_ms = cli_now_ms() - LONG_MS };
    app.draws = true;
    hold_output();
    cli_job_show_step(&j, 4, "half");
    assert_string_equal(app.status_line, "##########---------- step 5/10  half  ETA 4d04h");
    app.utf8 = true;
    cli_job_show_step(&j, 9, "whole");
    assert_string_equal(app.status_line, "━━━━━━━━━━━━━━━━━━━━ step 10/10  whole  ETA 0.0s");
    j.total_steps = 40;
    cli_job_show_step(&j, 1, "%s", "few");
    assert_string_equal(app.status_line, "━─────────────────── step 2/40  few  ETA 79d07h");
    char *shown = release_output();
    assert_non_null(strstr(shown, "^M━━━━━━━━━━━━━━━━━━━━ step 10/10  whole  ETA 0.0s^[[K"));
    free(shown);
}

static double member(const tkc_tree *v, const char *name)
{
    assert_true(tkc_tree_is_real(tkc_tree_get(v, name)));
    return tkc_tree_get_number(v, name);
}

TEST_WITH(times_and_numbers, setup, teardown)
{
    cli_job j = { .app = &app };
    double now = (double)cli_now_us() / 1e6;
    int64_t now_ms = cli_now_ms();
    cli_job_span(&j, "step", now_ms - 5 * HOUR_MS, now_ms - 2 * HOUR_MS);
    assert_int_equal(tkc_tree_length(j.spans), 1);
    const tkc_tree *v = tkc_tree_at(j.spans, 0);
    assert_string_equal(tkc_tree_get_text(v, "name"), "step");
    assert_true(fabs(member(v, "duration") - 3 * 3600) < 0.01);
    assert_true(fabs(member(v, "wall_start") - (now - 5 * 3600)) < 600);
    assert_true(fabs(member(v, "wall_end") - (now - 2 * 3600)) < 600);
    cli_job_note_time(&j, "time/evals", now_ms - HOUR_MS);
    assert_true(fabs(member(j.pending, "time/evals") - 3600) < 600);
    v = tkc_tree_at(j.spans, 1);
    assert_string_equal(tkc_tree_get_text(v, "name"), "evals");
    assert_true(fabs(member(v, "duration") - 3600) < 600);
    assert_true(cli_job_speed(50, 2000) == 25 && cli_job_speed(3, 1) == 3000 && cli_job_speed(3, 0) == 0 &&
                cli_job_speed(3, -1) == 0);
    const double odd[] = { NAN, INFINITY, -INFINITY, 0.5 };
    for (size_t i = 0; i < 4; i++) {
        tkc_tree *row = tkc_tree_object(&json_arena);
        cli_job_set(row, "n", odd[i]);
        const tkc_tree *n = tkc_tree_get(row, "n");
        assert_true(i < 3 ? tkc_tree_is_null(n) : tkc_tree_number(n) == 0.5);
    }
    tkc_arena_free(&j.arena);
}

/* A signal before the first step: there is nothing to save. A second one: nothing is saved any more. */
TEST_WITH(a_signal_before_the_first_step_saves_nothing, setup, teardown)
{
    cli_progress_clear(); /* of another test */
    for (int i = 0; i < 2; i++) {
        char folder[] = "run";
        cli_job j = { .app = &app, .first_step = 3, .step = i ? 4 : 3, .log_dir = folder };
        cli_catch_signals();
        raise(SIGINT);
        assert_int_equal(cli_stop_count(), i + 1);
        hold_output();
        int code = cli_job_stop_early(&j);
        assert_shown("to continue: tinkc train resume run\n");
        assert_int_equal(code, CLI_EXIT_SIGINT);
        cli_forget_signal();
    }
}

/* Data, model, rank, rate and what the recipe adds; then the minute. */
TEST_WITH(names_of_folders, setup, teardown)
{
    static const struct {
        const char *data, *model, *name;
    } rows[] = {
        { "-", "m", "tinkc-runs/stdin-m-32rank-0.001lr-x-" },
        { "a/b.c.jsonl", "o/m:1", "tinkc-runs/b.c-o-m-1-32rank-0.001lr-x-" },
        { "b", "/h/m", "tinkc-runs/b-h-m-32rank-0.001lr-x-" },
        { "--", "./m", "tinkc-runs/---m-32rank-0.001lr-x-" },
    };
    given("lora-rank", "32");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const cli_job j = { .app = &app, .model = rows[i].model };
        char *name = cli_job_log_dir(&j, rows[i].data, 1e-3, "x");
        size_t n = strlen(rows[i].name);
        assert_int_equal(strlen(name), n + strlen("2026-01-02-03-04"));
        assert_int_equal(strspn(name + n, "0123456789-"), strlen("2026-01-02-03-04"));
        assert_true(name[n + 10] == '-' && name[n + 13] == '-');
        name[n] = '\0';
        assert_string_equal(name, rows[i].name);
        free(name);
    }
    given("log-dir", "mine");
    const cli_job j = { .app = &app, .model = "m" };
    char *name = cli_job_log_dir(&j, "-", 1, "x");
    assert_string_equal(name, "mine");
    free(name);
}

/* What was written, with NOW for each time. */
static void assert_events(const char *wanted)
{
    static const char time[] = "\"time\":", now[] = "NOW";
    char *shown = release_output(), plain[1000];
    size_t n = 0;
    for (size_t i = 0; shown[i] && n + sizeof now < sizeof plain;) {
        plain[n++] = shown[i++];
        if (n >= sizeof time - 1 && memcmp(plain + n - (sizeof time - 1), time, sizeof time - 1) == 0) {
            memcpy(plain + n, now, sizeof now - 1);
            n += sizeof now - 1;
            i += strcspn(shown + i, ",");
        }
    }
    plain[n] = '\0';
    free(shown);
    assert_string_equal(plain, wanted);
}

/* What a run's begin settles, and that its end takes it back. */
TEST_WITH(begin_and_end, setup, teardown)
{
    const tinkc_event failed = {
        .operation = "forward", .text = "refused", .http_status = 503, .attempt = 2, .wait_ms = 1500
    };
    cli_job j = { .app = &app, .step = 3, .total_steps = 9, .log_dir = strdup("run"), .elapsed_tokens = 77 };
    app.format = CLI_JSONL;
    app.log_file = stderr;
    int64_t before_ms = cli_now_ms();
    cli_leave_on_signals(); /* which the run takes back */
    hold_output();
    cli_job_start(&j);
    j.step = 5;
    app.on_retry(&failed, app.on_retry_user);
    assert_events("{\"event\":\"start\",\"time\":NOW,\"step\":3,\"total_steps\":9,\"log_path\":\"run\"}\n"
                  "{\"event\":\"retry\",\"time\":NOW,\"step\":5,\"operation\":\"forward\",\"message\":"
                  "\"refused\","
                  "\"status\":503,\"attempt\":2,\"wait_s\":1.5}\n");
    assert_true(j.first_step == 3 && j.last_save_tokens == 77);
    assert_true(j.begun_ms >= before_ms && j.begun_ms <= cli_now_ms());
    assert_int_equal(j.last_save_ms, j.begun_ms);
    assert_string_equal(app.status_line, "step 3/9");
    raise(SIGTERM);
    assert_int_equal(cli_stop_signal(), SIGTERM);
    cli_forget_signal();
    cli_job_free(&j);
    assert_string_equal(app.status_line, "");
    assert_true(!app.log_file && !app.on_retry);
}

/* A full disk: what to do, what was saved, how to continue. */
TEST_WITH(a_full_disk_is_reported_with_what_was_saved, setup, teardown)
{
    char folder[] = "run";
    cli_job j = { .app = &app, .step = 24, .saved = true, .saved_step = 20, .log_dir = folder };
    static const char *const messages[] = { "state.json: No space left on device", "store /s: the disk is full" };
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        tinkc_error err = { .code = TINKC_E_STORE };
        char wanted[400];
        (void)snprintf(err.message, sizeof err.message, "%s", messages[i]);
        (void)snprintf(wanted, sizeof wanted,
                       "error: %s\nhint: free some space on that disk, then try again\n"
                       "saved up to step 20; to continue from there: tinkc train resume run\n",
                       messages[i]);
        hold_output();
        assert_int_equal(cli_job_failed(&j, &err), CLI_EXIT_FAILED);
        assert_shown(wanted);
    }
}

/* Without a trainer, as far as its words go. */
TEST_WITH(the_last_lines_say_what_was_saved, setup, teardown)
{
    char folder[] = "run", state_path[] = "tinker://a/weights/1", sampler[] = "tinker://a/sampler/1";
    cli_job j = { .app = &app, .step = 4, .log_dir = folder };
    const tinkc_error err = { .code = TINKC_E_FILE, .message = "no room" };
    hold_output();
    int code = cli_job_failed(&j, &err); /* nothing was saved */
    j.state_path = state_path;
    j.saved = true;
    j.saved_step = 3;
    j.sampler_path = sampler;
    assert_int_equal(cli_job_failed(&j, &err), code);
    cli_job_goodbye(&j);
    assert_shown("error: no room\nnothing was saved yet; to begin again: tinkc train resume run\n"
                 "error: no room\n"
                 "saved up to step 3; to continue from there: tinkc train resume run\n"
                 "state      tinker://a/weights/1\nsampler    tinker://a/sampler/1\n"
                 "to talk    tinkc chat -m run\n"); /* its folder: no store knows it */
    assert_int_equal(code, CLI_EXIT_FAILED);
}
