/* test_wait.c - waiting for a future that completes at every moment: before the first look, during
 * a wait, and between a look and the wait; and all that a wait shows meanwhile. The future, the clock,
 * the terminal and the queue of events are scripts, so no test takes time.
 */
#include <signal.h>

#include <tinkc/tinkc.h>

static bool script_done(const tinkc_future *);
static bool script_wait(tinkc_future *, int64_t timeout_ms, tinkc_error *);
static void script_cancel(tinkc_future *);
static const char *script_status(tinkc_future *, tinkc_text *, tinkc_error *);
static const char *script_operation(const tinkc_future *);
static bool script_progress(const tinkc_future *, int64_t *done, int64_t *total);
static bool script_run(tinkc_queue *, int64_t timeout_ms, tinkc_error *);
struct pollfd;
static int script_poll(struct pollfd *, unsigned long n, int ms);
#define poll                   script_poll
#define tinkc_future_done      script_done
#define tinkc_future_wait      script_wait
#define tinkc_future_cancel    script_cancel
#define tinkc_future_status    script_status
#define tinkc_future_operation script_operation
#define tinkc_future_progress  script_progress
#define tinkc_queue_run        script_run
/* What other files of the command would do: the headers declare these instead. */
#define cli_now_ms          script_now
#define cli_status          script_line
#define cli_say_at          script_say
#define cli_progress_clear  script_clear
#define cli_progress_begin  script_begin
#define cli_progress_step   script_step
#define cli_store_link_keep script_keep
#include "../../../cli/main/wait.c"

#undef poll

#include "support/cli/noted.h"
#include "support/test_case.h"

static struct script {
    int32_t outcome;
    int done_at; /* the future is complete from this moment on; looks and waits are moments */
    int moment, waits;
    bool cancelled;
    int raise_at;        /* a signal comes at this moment; 0 = never */
    int64_t have, total; /* bytes that have come, from the second wait on */
    bool fails;          /* the queue has a failed attempt at every look */
} script;

static bool raise_by_hand;         /* a signal comes at moment 3, too */
static int64_t clock_ms = 1000000; /* each wait moves it by what it may last */
static cli_app *waiting;           /* for the events of the queue */

int64_t script_now(void)
{
    return clock_ms;
}

void script_line(const cli_app *app, bool now, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    note("line%s[%s]\n", now ? " at once " : "", text);
    assert_true(app->draws);
}

void script_say(const cli_app *app, const char *file, int line, const char *level, const char *format, ...)
{
    char text[512];
    va_list args;
    (void)file, (void)line;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    note("%s[%s]\n", level, text);
    assert_false(app->draws);
}

void script_clear(void)
{
    note("wiped\n");
}

void script_begin(cli_progress *p, const cli_app *app, const char *label, int64_t total, bool bytes)
{
    note("bar %s of %lld%s\n", label, (long long)total, bytes ? " bytes" : "");
    *p = (cli_progress){ .app = app };
}

void script_step(cli_progress *p, int64_t done, int64_t total, const char *text)
{
    note("bar at %lld of %lld\n", (long long)done, (long long)total);
    assert_null(text);
    p->done = done;
}

void script_keep(cli_app *app)
{
    note("store kept\n");
    assert_ptr_equal(app, waiting);
}

static const char *script_operation(const tinkc_future *f)
{
    (void)f;
    return "the operation";
}

static bool script_progress(const tinkc_future *f, int64_t *done, int64_t *total)
{
    (void)f;
    assert_true(*done == 0 && *total == -1);
    if (script.waits > 1) {
        *done = script.have;
        *total = script.total;
    }
    return true;
}

static const tinkc_event lasting = { .text = "connection refused", .left_ms = TINKC_FOREVER, .wait_ms = 4000 };

static bool script_run(tinkc_queue *queue, int64_t timeout_ms, tinkc_error *err)
{
    assert_true(queue && timeout_ms <= 1 && !err);
    if (script.fails)
        cli_note_retry(&lasting, waiting);
    return true;
}

static bool complete_now(void)
{
    script.moment++;
    if (script.moment == script.raise_at || (raise_by_hand && script.moment == 3))
        raise(SIGINT);
    return script.moment >= script.done_at;
}

static bool script_done(const tinkc_future *f)
{
    (void)f;
    return complete_now();
}

static bool script_wait(tinkc_future *f, int64_t timeout_ms, tinkc_error *err)
{
    (void)f;
    script.waits++;
    clock_ms += timeout_ms;
    assert_int_equal(timeout_ms, 100);
    assert_true(script.waits < 1000); /* nobody waits forever */
    if (!complete_now()) {
        tinkc_error_set(err, TINKC_E_TIMEOUT, "not complete yet");
        return false;
    }
    if (script.outcome != TINKC_OK)
        tinkc_error_set(err, script.outcome, "the outcome");
    return script.outcome == TINKC_OK;
}

static void script_cancel(tinkc_future *f)
{
    (void)f;
    script.cancelled = true;
}

static const char *script_status(tinkc_future *f, tinkc_text *room, tinkc_error *err)
{
    (void)f, (void)room, (void)err;
    return "waiting";
}

/* Any address that is not NULL: the script looks at none of it. */
static tinkc_future *some_future(void)
{
    return (tinkc_future *)(uintptr_t)&script;
}

static bool wait_with(const struct script *s, tinkc_error *err)
{
    static const cli_command command = { .noun = "run" };
    cli_app app = { .command = &command, .deadline_ms = INT64_MAX };
    script = *s;
    noted[0] = '\0';
    *err = (tinkc_error){ 0 };
    return cli_wait(&app, some_future(), "a test", err);
}

/* Work that must not be lost half-way takes a second signal. The first test:
 * signals are counted over the life of the program. */
TEST(careful_work_takes_a_second_signal)
{
    tinkc_error err = { 0 };
    cli_app app = { .deadline_ms = INT64_MAX };
    cli_forget_signal();
    script = (struct script){ .done_at = 1000, .raise_at = 9 };
    noted[0] = '\0';
    assert_int_equal(cli_stop_count(), 0);
    raise_by_hand = true;
    assert_false(cli_wait_through(&app, some_future(), "a test", &err));
    raise_by_hand = false;
    assert_noted("INFO[stopping: what is trained is saved first (interrupt again to leave at "
                 "once)]\nwiped\n"); /* after the first, and once */
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    assert_int_equal(cli_stop_count(), 2);
    assert_int_equal(script.waits, 5);
    cli_forget_signal();
}

/* Moments: look 1, wait 2, look 3, wait 4, ... A future that completes at an even moment does so
 * after the look said "not yet". */
TEST(completes_at_every_moment)
{
    static const int32_t outcomes[] = { TINKC_OK, TINKC_E_NOT_FOUND, TINKC_E_TIMEOUT, TINKC_E_CANCELLED };
    for (size_t k = 0; k < sizeof outcomes / sizeof *outcomes; k++) {
        for (int at = 1; at <= 8; at++) {
            tinkc_error err;
            bool ok = wait_with(&(struct script){ .outcome = outcomes[k], .done_at = at }, &err);
            assert_int_equal(ok, outcomes[k] == TINKC_OK);
            assert_int_equal(err.code, outcomes[k]);
            assert_false(script.cancelled);
            /* One wait after it is complete, or two where its own failure reads "time-out". */
            assert_true(script.waits <= (at + 1) / 2 + (outcomes[k] == TINKC_E_TIMEOUT));
        }
    }
}

TEST(a_signal_cancels_the_wait)
{
    tinkc_error err;
    cli_forget_signal();
    assert_false(wait_with(&(struct script){ .done_at = 1000, .raise_at = 3 }, &err));
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    assert_string_equal(err.message, "interrupted");
    assert_true(script.cancelled);
    assert_int_equal(script.waits, 2);
    assert_int_equal(cli_stop_signal(), SIGINT);
    assert_noted("wiped\n");
    cli_forget_signal();
}

/* What has come is not thrown away because a signal came with it. */
TEST(signal_with_the_result)
{
    tinkc_error err;
    cli_forget_signal();
    assert_true(wait_with(&(struct script){ .done_at = 4, .raise_at = 4 }, &err));
    assert_int_equal(err.code, TINKC_OK);
    assert_false(script.cancelled);
    cli_forget_signal();
}

TEST(the_timeout_ends_the_wait)
{
    tinkc_error err = { 0 };
    static const cli_command command = { .noun = "run" };
    cli_app app = { .command = &command, .deadline_ms = cli_now_ms() + 300 };
    script = (struct script){ .done_at = 1000 };
    noted[0] = '\0';
    assert_false(cli_wait(&app, some_future(), "a test", &err));
    assert_int_equal(err.code, TINKC_E_DEADLINE);
    assert_string_equal(err.message, "the time given with --timeout has run out");
    assert_true(script.cancelled);
    assert_int_equal(script.waits, 4); /* at the deadline itself it waits still */
    assert_noted("wiped\n");
}

/* Attempts that fail for longer than --retry-for end the wait, but only while the next one is to
 * come: when it is under way, or has worked, nothing is known. */
TEST(attempts_that_fail_for_retry_for_end_the_wait)
{
    tinkc_error err = { 0 };
    static const struct {
        int64_t since_ms, next_ms; /* trouble began so long ago; the next attempt comes in */
        bool enough;
    } rows[] = { { 999, 1, false }, { 1000, 1, true }, { 5000, 1, true }, { 1000, 0, false }, { 1000, -1, false } };
    cli_app app = { .retry_window_ms = 1000, .deadline_ms = INT64_MAX };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        app.trouble_ms = clock_ms - rows[i].since_ms;
        app.next_try_ms = clock_ms + rows[i].next_ms;
        assert_int_equal(tried_enough(&app), rows[i].enough);
    }
    app.trouble_ms = 0;
    app.next_try_ms = clock_ms + 1;
    assert_false(tried_enough(&app));

    /* A whole wait: what it said last time is forgotten; the first attempt fails at 0.1 s. */
    app.events = (tinkc_queue *)(uintptr_t)&script;
    app.trouble_ms = 1;
    app.status_line[0] = '\0';
    waiting = &app;
    script = (struct script){ .done_at = 10000, .fails = true };
    noted[0] = '\0';
    assert_false(cli_wait(&app, some_future(), "a test", &err));
    assert_int_equal(err.code, TINKC_E_CONNECTION);
    assert_string_equal(err.message, "connection refused");
    assert_true(script.cancelled);
    assert_int_equal(script.waits, 11);
    assert_non_null(strstr(noted, "store kept\nwiped\n"));
}
static void retried(const tinkc_event *e, void *user)
{
    note("retried: %s, %s\n", e->text, (const char *)user);
}

/* What a failed attempt leaves for the wait to show. */
TEST(a_failed_attempt_is_shown)
{
    char long_text[300], cut[300];
    cli_app app = { .on_retry = retried, .on_retry_user = "as given" };
    waiting = &app;
    noted[0] = '\0';
    cli_note_retry(&(tinkc_event){ .text = "busy", .left_ms = 1, .wait_ms = 10 }, &app);
    assert_string_equal(app.failing, "busy; trying again for 0.0s");
    cli_note_retry(&(tinkc_event){ .text = "busy", .left_ms = 90000, .wait_ms = 10 }, &app);
    assert_string_equal(app.failing, "busy; trying again for 1m30s");
    cli_note_retry(&(tinkc_event){ .text = "slow", .left_ms = 0 }, &app);
    assert_string_equal(app.failing, "slow; trying again");
    assert_true(app.trouble_ms == 0 && app.next_try_ms == 0 && !app.trouble[0]);
    assert_noted("store kept\nretried: busy, as given\nstore kept\nretried: busy, as given\n"
                 "store kept\nretried: slow, as given\n");

    /* Only what is tried without end has a time since which it fails: that of the first attempt. A
     * short wait before the next one says that it had worked meanwhile. */
    static const struct {
        int64_t at, wait, since;
    } rows[] = { { 50, 4000, 50 }, { 70, 1001, 50 }, { 90, 1000, 90 }, { 95, 8000, 90 } };
    app.on_retry = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        clock_ms = rows[i].at;
        cli_note_retry(&(tinkc_event){ .text = "refused", .left_ms = TINKC_FOREVER, .wait_ms = rows[i].wait }, &app);
        assert_string_equal(app.failing, "refused; trying again");
        assert_string_equal(app.trouble, "refused");
        assert_int_equal(app.trouble_ms, rows[i].since);
        assert_int_equal(app.next_try_ms, rows[i].at + rows[i].wait);
    }
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    cli_note_retry(&(tinkc_event){ .text = long_text, .left_ms = 2000 }, &app);
    (void)snprintf(cut, sizeof cut, "%.120s; trying again for 2.0s", long_text);
    assert_string_equal(app.failing, cut);
    clock_ms = 1000000;
}

/* One look at a wait that began so long ago. */
TEST(what_is_shown)
{
    static const struct {
        bool draws, verbose;
        const char *status_line, *label, *failing;
        int64_t since_ms, said_ms; /* said: how long ago; -1 = when it began */
        const char *wanted;
    } rows[] = {
        { true, false, "", "a test", "", 999, -1, "" },
        { true, false, "", "a test", "", 1000, -1, "line[a test 1.0s]\n" },
        { true, false, "", NULL, "", 1000, -1, "line[the operation 1.0s]\n" },
        { true, false, "", "a test", "refused", 61000, -1, "line[a test: refused 1m01s]\n" },
        { true, true, "", "a test", "", 2000, -1, "line[a test: waiting 2.0s]\n" },
        { true, true, "", "a test", "refused", 2000, -1, "line[a test: refused 2.0s]\n" },
        { true, false, "step 3", "a test", "", 999, -1, "line[step 3]\n" },
        { true, false, "step 3", "a test", "", 1000, -1, "line[step 3  (a test 1.0s)]\n" },
        { true, true, "step 3", NULL, "", 3000, -1, "line[step 3  (the operation: waiting 3.0s)]\n" },
        { true, false, "step 3", "a test", "refused", 3000, -1, "line[step 3  (a test: refused 3.0s)]\n" },
        { false, false, "", "a test", "", 29999, -1, "" },
        { false, false, "", "a test", "", 30000, -1, "INFO[a test 30s]\n" },
        { false, false, "step 3", "a test", "", 30000, -1, "INFO[a test 30s]\n" },
        { false, true, "", "a test", "", 30000, -1, "INFO[a test: waiting 30s]\n" },
        { false, false, "", "a test", "", 60000, 29999, "" },
        { false, false, "", "a test", "", 60000, 30000, "INFO[a test 1m00s]\n" },
        { false, false, "", "a test", "refused", 1999, -1, "" },
        { false, false, "", "a test", "refused", 2000, -1, "INFO[a test: refused 2.0s]\n" },
        { false, false, "", "a test", "refused", 4000, 1000, "" }, /* it was said */
        { false, true, "", "a test", "", 2000, -1, "" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_app app = { .draws = rows[i].draws, .verbose = rows[i].verbose };
        int64_t begun = clock_ms - rows[i].since_ms;
        int64_t said = rows[i].said_ms < 0 ? begun : clock_ms - rows[i].said_ms, before = said;
        (void)snprintf(app.status_line, sizeof app.status_line, "%s", rows[i].status_line);
        (void)snprintf(app.failing, sizeof app.failing, "old"); /* of which more may be left than the end */
        (void)snprintf(app.failing, sizeof app.failing, "%s", rows[i].failing);
        script = (struct script){ 0 };
        noted[0] = '\0';
        show_wait(&app, some_future(), rows[i].label, begun, &said);
        assert_noted(rows[i].wanted);
        assert_int_equal(said, !rows[i].draws && rows[i].wanted[0] ? clock_ms : before);
    }
}

/* A line of the command's own stays on the screen when the wait is over; bytes take the place of words. */
TEST(what_is_left)
{
    tinkc_error err = { 0 };
    cli_app app = { .draws = true, .deadline_ms = INT64_MAX, .status_line = "step 3", .failing = "old" };
    app.trouble_ms = 9;
    script = (struct script){ .done_at = 4 };
    noted[0] = '\0';
    assert_true(cli_wait(&app, some_future(), "a test", &err));
    assert_true(app.trouble_ms == 0 && !app.failing[0]);
    assert_noted("line[step 3]\n");
    app.status_line[0] = '\0';
    script = (struct script){ .done_at = 8, .have = 7, .total = 9 };
    assert_true(cli_wait_bytes(&app, some_future(), "Reading", &err));
    assert_noted("bar Reading of -1 bytes\nbar at 7 of 9\nbar at 7 of 9\nbar at 7 of 9\nwiped\n");
    script = (struct script){ .done_at = 24, .have = 0, .total = 9 };
    assert_true(cli_wait_bytes(&app, some_future(), "Reading", &err));
    assert_noted("bar Reading of -1 bytes\nline[Reading 1.0s]\nline[Reading 1.1s]\nwiped\n");
    assert_string_equal(app.failing, "");
}

static int script_poll(struct pollfd *fds, unsigned long n, int ms)
{
    assert_true(!fds && n == 0 && ms > 0 && ms <= 100);
    (void)complete_now();
    clock_ms += ms;
    return 0;
}

/* A rest takes its time, and ends early for a signal and for --timeout. */
TEST(a_rest_ends_early_for_a_signal_and_the_timeout)
{
    static const struct {
        int64_t ms, given_ms, took_ms;
        int raise_at;
        int32_t code;
    } rows[] = {
        { 0, 0, 0, 0, TINKC_OK },
        { 1, 50, 1, 0, TINKC_OK },
        { 250, 1000, 250, 0, TINKC_OK },
        { 250, 250, 250, 0, TINKC_OK },
        { 250, 50, 100, 0, TINKC_E_DEADLINE },
        { 250, 200, 200, 0, TINKC_E_DEADLINE },
        { 1, 0, 0, 0, TINKC_E_DEADLINE },
        { 900, 2000, 300, 3, TINKC_E_CANCELLED },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        int64_t begun_ms = clock_ms;
        cli_app app = { .deadline_ms = clock_ms + rows[i].given_ms };
        script = (struct script){ .done_at = 1000, .raise_at = rows[i].raise_at };
        bool whole = cli_rest(&app, rows[i].ms, &err);
        if (whole != !rows[i].code || err.code != rows[i].code || clock_ms - begun_ms != rows[i].took_ms)
            fail_msg("row %zu: %d after %d ms", i, (int)err.code, (int)(clock_ms - begun_ms));
        cli_forget_signal();
    }
}

TEST(nothing_to_wait_for)
{
    tinkc_error err = { 0 };
    cli_app app = { .deadline_ms = INT64_MAX };
    noted[0] = '\0';
    assert_false(cli_wait(&app, NULL, "a test", &err));
    assert_noted("wiped\n");
    assert_int_equal(err.code, 0);
}
