/* test_wait.c - waiting for a future that completes at every moment: before the first look, during
 * a wait, and between a look and the wait. The future is a script of what each look and wait sees.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <tinkc/tinkc.h>

static bool script_done(const tinkc_future *);
static bool script_wait(tinkc_future *, int64_t timeout_ms, tinkc_error *);
static void script_cancel(tinkc_future *);
static const char *script_status(tinkc_future *, tinkc_text *, tinkc_error *);
#define tinkc_future_done   script_done
#define tinkc_future_wait   script_wait
#define tinkc_future_cancel script_cancel
#define tinkc_future_status script_status
#include "../../../cli/wait.c"

static struct script {
    int32_t outcome;
    int done_at; /* the future is complete from this moment on; looks and waits are moments */
    int moment, waits;
    bool cancelled;
    int raise_at; /* a signal comes at this moment; 0 = never */
} script;

static bool complete_now(void)
{
    if (++script.moment == script.raise_at)
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
    (void)f, (void)timeout_ms;
    script.waits++;
    assert_true(script.waits < 50); /* nobody waits forever */
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
    cli_app app = { .command = &command, .quiet = true, .deadline_ms = INT64_MAX };
    script = *s;
    *err = (tinkc_error){ 0 };
    return cli_wait(&app, some_future(), "a test", err);
}

/* Moments: look 1, wait 2, look 3, wait 4, ... A future that completes at an even moment does so
 * after the look said "not yet". */
static void test_completes_at_every_moment(void **state)
{
    (void)state;
    static const int32_t outcomes[] = { TINKC_OK, TINKC_E_NOT_FOUND, TINKC_E_TIMEOUT,
                                        TINKC_E_CANCELLED };
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

static void test_signal_cancels(void **state)
{
    (void)state;
    tinkc_error err;
    cli_forget_signal();
    assert_false(wait_with(&(struct script){ .done_at = 1000, .raise_at = 3 }, &err));
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    assert_true(script.cancelled);
    assert_int_equal(cli_stop_signal(), SIGINT);
    cli_forget_signal();
}

/* What has come is not thrown away because a signal came with it. */
static void test_signal_with_the_result(void **state)
{
    (void)state;
    tinkc_error err;
    cli_forget_signal();
    assert_true(wait_with(&(struct script){ .done_at = 4, .raise_at = 4 }, &err));
    assert_int_equal(err.code, TINKC_OK);
    assert_false(script.cancelled);
    cli_forget_signal();
}

static void test_deadline(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    static const cli_command command = { .noun = "run" };
    cli_app app = { .command = &command, .quiet = true, .deadline_ms = cli_now_ms() - 1 };
    script = (struct script){ .done_at = 1000 };
    assert_false(cli_wait(&app, some_future(), "a test", &err));
    assert_int_equal(err.code, TINKC_E_DEADLINE);
    assert_true(script.cancelled);
}

/* Attempts that fail for longer than --retry-for end the wait, but only while the next one is to
 * come: when it is under way, or has worked, nothing is known. */
static void test_gives_up(void **state)
{
    (void)state;
    static const cli_command command = { .noun = "run" };
    for (int due = 0; due < 2; due++) {
        int64_t now = cli_now_ms();
        cli_app app = { .command = &command,
                        .quiet = true,
                        .deadline_ms = INT64_MAX,
                        .retry_window_ms = 1000,
                        .trouble_ms = now - 2000,
                        .next_try_ms = due ? now - 1 : now + 60000,
                        .trouble = "connection refused" };
        assert_int_equal(tried_enough(&app), !due);
        app.trouble_ms = now - 500;
        assert_false(tried_enough(&app));
        app.trouble_ms = 0;
        assert_false(tried_enough(&app));
    }
}

static void test_nothing_to_wait_for(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    cli_app app = { .quiet = true, .deadline_ms = INT64_MAX };
    assert_false(cli_wait(&app, NULL, "a test", &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_completes_at_every_moment),
        cmocka_unit_test(test_signal_cancels),
        cmocka_unit_test(test_signal_with_the_result),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_gives_up),
        cmocka_unit_test(test_nothing_to_wait_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
