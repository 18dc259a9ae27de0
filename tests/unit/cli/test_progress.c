/* test_progress.c - what the command draws on a terminal, its width and colours, and what signals leave behind. */
#include <signal.h>

#include "cli/main/commands.h"
#include "cli/doctor/doctor.h"
#include "cli/output/records.h"
#include "support/cli/held_output.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

static bool scripted_export(const tinkc_adapter_options *, tinkc_progress_fn *, void *user, tinkc_error *);
#define tinkc_adapter_export scripted_export
#include "../../../cli/models/adapter_forms.c"
#include "support/json_trees.h"
#include "support/test_case.h"

#define HALF  "━━━━━━━━━━━━━━──────────────"
#define WHOLE "━━━━━━━━━━━━━━━━━━━━━━━━━━━━"
#define NONE  "────────────────────────────"
#define NEVER (INT64_MAX / 2) /* a time at which something was said, long before which it is not said again */

static void assert_shown(const char *wanted)
{
    char *shown = release_output();
    assert_string_equal(shown, wanted);
    free(shown);
}

/* A bar that was begun an hour ago and drawn and said long ago. */
static cli_progress begun(const cli_app *app, bool bytes)
{
    cli_progress p;
    cli_progress_begin(&p, app, "Reading", -1, bytes);
    assert_true(p.begun_ms > 0 && p.said_ms >= p.begun_ms && p.total == -1 && p.done == 0 && p.app == app);
    p.begun_ms = cli_now_ms() - 3600000;
    p.drawn_ms = p.said_ms = -NEVER;
    return p;
}

TEST(a_bar_shows_its_share)
{
    const cli_app app = { .draws = true, .progress = true, .utf8 = true };
    const cli_app plain = { .draws = true, .progress = true };
    hold_output();
    cli_progress p = begun(&app, false);
    cli_progress_step(&p, 5, 10, "x");
    assert_shown("^MReading " HALF " 5/10 ETA 1h00m x^[[K");
    assert_true(p.done == 5 && p.total == 10);
    hold_output();
    p.drawn_ms = NEVER;
    cli_progress_step(&p, 6, 10, "y");   /* too soon */
    cli_progress_step(&p, 10, 10, NULL); /* but the last is always drawn */
    assert_shown("^MReading " WHOLE " 10/10  ^[[K");
    hold_output();
    p = begun(&app, false);
    cli_progress_step(&p, 0, 1234567, NULL);
    assert_shown("^MReading " NONE " 0/1,234,567  ^[[K");
    hold_output();
    p = begun(&app, false);
    cli_progress_step(&p, 5, -1, "x"); /* nobody knows how many */
    assert_shown("^MReading  5  x^[[K");
    hold_output();
    p = begun(&app, true);
    cli_progress_step(&p, 1024, 2048, NULL);
    assert_shown("^MReading " HALF " 1.0 KB/2.0 KB ETA 1h00m ^[[K");
    hold_output();
    p = begun(&plain, false);
    cli_progress_step(&p, 7, 14, NULL);
    assert_shown("^MReading ##############-------------- 7/14 ETA 1h00m ^[[K");
    assert_true(p.drawn_ms > 0 && p.said_ms == -NEVER);
    hold_output();
    p = begun(&app, false);
    cli_progress_step(&p, 0, 1, NULL);
    assert_shown("^MReading " NONE " 0/1  ^[[K");
    hold_output();
    p.drawn_ms = NEVER;
    cli_progress_step(&p, 0, 0, NULL); /* nothing to do, and it is done */
    cli_progress_step(&p, -1, -1, NULL);
    assert_shown("^MReading  0/0  ^[[K");
    hold_output();
    cli_progress_end(&p);
    cli_progress_end(&p); /* there is none any more */
    assert_shown("^M^[[K");
}

TEST(where_nothing_is_drawn)
{
    const cli_app quiet = { .draws = true, .progress = true, .quiet = true }, off = { .draws = true };
    const cli_app file = { .progress = true };
    hold_output();
    cli_progress p = begun(&quiet, false);
    cli_progress_step(&p, 5, 10, "x");
    cli_status(&quiet, true, "status");
    p = begun(&off, false);
    cli_progress_step(&p, 5, 10, "x");
    cli_status(&off, true, "status");
    cli_status(&file, true, "status");
    assert_shown("");
    hold_output();
    p = begun(&file, false);
    cli_progress_step(&p, 5, 10, "x");
    assert_true(p.said_ms > 0 && p.drawn_ms == -NEVER);
    p.said_ms = NEVER;
    cli_progress_step(&p, 10, 10, "y"); /* half a minute has not passed */
    assert_shown("Reading: 5/10 x\n");
    hold_output();
    p.said_ms = cli_now_ms() - 10000;
    cli_progress_step(&p, 6, 10, "z"); /* nor has it here */
    p.said_ms = cli_now_ms() - 30000;
    cli_progress_step(&p, 7, 10, "z");
    assert_shown("Reading: 7/10 z\n");
}

TEST(a_status_line_is_cleared_and_escaped)
{
    const cli_app app = { .draws = true, .progress = true, .utf8 = true };
    char wide[120];
    hold_output();
    cli_status(&app, true, "step %d\033", 3);
    cli_progress_clear();
    assert_shown("^Mstep 3\\x1b^[[K^M^[[K");
    memset(wide, 'a', sizeof wide - 1);
    wide[sizeof wide - 1] = '\0';
    hold_output();
    cli_status(&app, true, "%s", wide); /* 80 columns where the terminal does not say, the last one empty */
    cli_progress_clear();
    char wanted[200];
    (void)snprintf(wanted, sizeof wanted, "^M%.79s^[[K^M^[[K", wide);
    assert_shown(wanted);
}

/* A check of doctor has five seconds, or what --timeout leaves. The clock runs on meanwhile: the times are far apart. */
TEST(time_of_a_check)
{
    cli_app app = { .deadline_ms = INT64_MAX };
    const doctor d = { .app = &app };
    int64_t now = cli_now_ms();
    assert_in_range(cli_doctor_left_ms(&d, now + 3600000), 3605000 - 60000, 3605000);
    assert_int_equal(cli_doctor_left_ms(&d, now - 5000), 0);
    assert_int_equal(cli_doctor_left_ms(&d, now - 3600000), 0);
    app.deadline_ms = now + 1800000;
    assert_in_range(cli_doctor_left_ms(&d, now + 3600000), 1800000 - 60000, 1800000);
    assert_int_equal(cli_doctor_left_ms(&d, now - 5000), 0);
    app.deadline_ms = now - 1;
    assert_int_equal(cli_doctor_left_ms(&d, now + 3600000), 0);
    assert_true(!cli_doctor_is_skewed(30) && !cli_doctor_is_skewed(0) && !cli_doctor_is_skewed(-30));
    assert_true(cli_doctor_is_skewed(31) && cli_doctor_is_skewed(-31));
    double hour = cli_seconds_since(now - 3600000);
    assert_true(hour >= 3600 && hour < 3660);
    assert_int_equal(cli_ms_of(3600.0009), 3600000);
    assert_int_equal(cli_ms_of(0.5), 500);
}

static bool colours(bool tty)
{
    cli_app app = { .stdout_tty = tty };
    cli_term_color(&app);
    return app.color;
}

TEST(colours_need_a_terminal_and_no_NO_COLOR)
{
    static const char *const names[] = { "NO_COLOR", "CLICOLOR_FORCE", "FORCE_COLOR" };
    for (size_t i = 0; i < 3; i++)
        unsetenv(names[i]);
    setenv("TERM", "xterm", 1);
    assert_true(colours(true) && !colours(false) && !cli_term_is_dumb());
    setenv("TERM", "dumb", 1);
    assert_true(!colours(true) && cli_term_is_dumb());
    setenv("TERM", "", 1);
    assert_true(!colours(true) && cli_term_is_dumb());
    unsetenv("TERM");
    assert_true(!colours(true) && cli_term_is_dumb());
    setenv("CLICOLOR_FORCE", "0", 1);
    assert_false(colours(false));
    setenv("CLICOLOR_FORCE", "", 1);
    assert_false(colours(false));
    setenv("CLICOLOR_FORCE", "1", 1);
    assert_true(colours(false));
    setenv("NO_COLOR", "", 1); /* empty is as if it were not set */
    assert_true(colours(false));
    setenv("NO_COLOR", "1", 1);
    assert_false(colours(false));
    unsetenv("NO_COLOR");
    unsetenv("CLICOLOR_FORCE");
    setenv("FORCE_COLOR", "", 1);
    assert_false(colours(false));
    setenv("FORCE_COLOR", "1", 1);
    assert_true(colours(false));
    unsetenv("FORCE_COLOR");
    /* The option wins over all of it. */
    cli_app app = { .command = cli_find("run", "list") };
    assert_int_equal(cli_set_value(&app, "color", "always", CLI_FROM_PROGRAM, "test"), 0);
    setenv("NO_COLOR", "1", 1);
    cli_term_color(&app);
    assert_true(app.color);
    unsetenv("NO_COLOR");
    setenv("FORCE_COLOR", "1", 1);
    assert_int_equal(cli_set_value(&app, "color", "never", CLI_FROM_PROGRAM, "test"), 0);
    cli_term_color(&app);
    assert_false(app.color);
    assert_int_equal(cli_set_value(&app, "color", "auto", CLI_FROM_PROGRAM, "test"), 0);
    cli_term_color(&app);
    assert_true(app.color);
    unsetenv("FORCE_COLOR");
    cli_parse_free(&app);
}

TEST(COLUMNS_is_a_positive_number)
{
    static const struct {
        const char *columns;
        size_t width;
    } rows[] = { { "100", 100 }, { "1", 1 }, { "0", 0 }, { "-5", 0 }, { "x", 0 }, { "", 0 } };
    const cli_app app = { 0 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        setenv("COLUMNS", rows[i].columns, 1);
        assert_int_equal(cli_term_width(&app), rows[i].width);
    }
    unsetenv("COLUMNS");
    assert_int_equal(cli_term_width(&app), 0);
}

TEST(answers_in_advance)
{
    cli_app yes = { .yes = true }, half = { .stdin_tty = true };
    assert_int_equal(cli_confirm(&yes, "Sure?", "--yes"), 1);
    hold_output();
    assert_int_equal(cli_confirm(&half, "Sure?", "--yes"), -CLI_EXIT_USAGE);
    assert_shown("error: this needs an answer, and there is no terminal\nhint: to answer in "
                 "advance, add --yes\n");
}

TEST(signals_are_counted)
{
    cli_catch_signals();
    assert_true(cli_stop_signal() == 0 && cli_stop_count() == 0);
    raise(SIGINT);
    assert_true(cli_stop_signal() == SIGINT && cli_stop_count() == 1 && cli_stop_exit() == 130);
    assert_int_equal(cli_wait_input(), CLI_INPUT_STOPPED);
    assert_false(cli_input_comes());
    cli_forget_signal();
    assert_true(cli_stop_signal() == 0 && cli_stop_count() == 1);
    raise(SIGTERM);
    assert_true(cli_stop_signal() == SIGTERM && cli_stop_count() == 2 && cli_stop_exit() == 143);
    cli_forget_signal();
}

static struct {
    int signal;      /* comes while the export works; 0 = none */
    bool fails;      /* it ends with an error of its own */
    bool goes_on[2]; /* what the two calls of its progress said */
} script;

static bool scripted_export(const tinkc_adapter_options *o, tinkc_progress_fn *fn, void *user, tinkc_error *err)
{
    assert_string_equal(o->target, "there");
    ((cli_progress *)user)->drawn_ms = -NEVER;
    ((cli_progress *)user)->begun_ms = cli_now_ms() - 3600000;
    script.goes_on[0] = fn(1024, 2048, user);
    if (script.signal)
        raise(script.signal);
    script.goes_on[1] = fn(2048, 2048, user);
    if (script.fails || script.signal)
        tinkc_error_set(err, TINKC_E_CANCELLED, "it ends here");
    return !err->code;
}

/* A form that is made: its bar, and how it ends by itself, by an error and by signals. */
TEST(a_form_ends_by_itself_an_error_or_a_signal)
{
    static const struct {
        int signal;
        bool fails;
        int code;
        const char *says;
    } cases[] = { { 0, false, 0, "" },
                  { 0, true, 130, "error: it ends here\n" },
                  { SIGINT, false, 130, "" },
                  { SIGTERM, false, 143, "" },
                  { SIGTERM, true, 143, "" } };
    const cli_app app = { .draws = true, .progress = true, .command = cli_find("export", NULL) };
    const tinkc_adapter_options o = { .target = "there" };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char wanted[300];
        signal(SIGINT, SIG_DFL); /* unless they are caught, the test ends here */
        signal(SIGTERM, SIG_DFL);
        script.signal = cases[i].signal;
        script.fails = cases[i].fails;
        hold_output();
        int code = cli_make_form(&app, &o, "Making");
        (void)snprintf(wanted, sizeof wanted,
                       "^MMaking ##############-------------- 1.0 KB/2.0 KB ETA 1h00m ^[[K"
                       "^MMaking ############################ 2.0 KB/2.0 KB  ^[[K^M^[[K%s",
                       cases[i].says);
        assert_shown(wanted);
        assert_int_equal(code, cases[i].code);
        assert_true(script.goes_on[0] && script.goes_on[1] == !cases[i].signal);
        cli_forget_signal();
    }
}

/* Pages of a list: how many are wanted, what ends it, and what is shown after each hundred. */
TEST(pages_are_fetched_until_enough_are_shown)
{
    cli_app app = { .command = cli_find("run", "list"), .deadline_ms = INT64_MAX, .draws = true, .progress = true };
    cli_pager p;
    tinkc_error err = { 0 };
    cli_pager_begin(&p, &app, 2, "runs");
    assert_string_equal(p.label, "Fetching 2 runs");
    for (int i = 0; i < 2; i++) {
        assert_true(cli_pager_go(&p, -1, &err) && p.found == i);
        cli_pager_add(&p, tkc_tree_pack(&json_arena, "{s:i}", "n", i));
    }
    assert_true(!cli_pager_go(&p, -1, &err) && !err.code); /* there are as many */
    assert_true(tkc_tree_length(p.items) == 2 && p.bad == 0);
    cli_pager_begin(&p, &app, 0, "runs");
    assert_string_equal(p.label, "Fetching all runs");
    hold_output();
    for (int i = 0; i < 101; i++) {
        assert_true(cli_pager_go(&p, 200, &err));
        p.bar.drawn_ms = -NEVER;
        cli_pager_add(&p, tkc_tree_pack(&json_arena, "{s:i}", "n", i));
    }
    cli_pager_end(&p);
    char *shown = release_output();
    static const char bar[] = "^MFetching all runs ##############-------------- 100/200 ETA ";
    assert_int_equal(strncmp(shown, bar, strlen(bar)), 0);
    assert_null(strstr(shown + 2, "^MFetching")); /* once */
    assert_string_equal(shown + strlen(shown) - strlen("^M^[[K"), "^M^[[K");
    free(shown);
    app.deadline_ms = 1; /* long ago */
    assert_false(cli_pager_go(&p, -1, &err));
    assert_int_equal(err.code, TINKC_E_DEADLINE);
    app.deadline_ms = INT64_MAX;
    err = (tinkc_error){ 0 };
    cli_catch_signals();
    raise(SIGINT);
    assert_false(cli_pager_go(&p, -1, &err));
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    cli_forget_signal();
    /* A filter that names nothing ends it at the first item. */
    assert_int_equal(cli_set_value(&app, "filter", "nope=1", CLI_FROM_PROGRAM, "test"), 0);
    err = (tinkc_error){ 0 };
    cli_pager_begin(&p, &app, 0, "runs");
    hold_output();
    cli_pager_add(&p, tkc_tree_pack(&json_arena, "{s:i}", "n", 1));
    assert_shown("error: unknown field 'nope'\nhint: known fields: n\n");
    assert_true(!cli_pager_go(&p, -1, &err) && p.bad == CLI_EXIT_USAGE && !err.code);
    assert_int_equal(tkc_tree_length(p.items), 0);
    cli_parse_free(&app);
}
