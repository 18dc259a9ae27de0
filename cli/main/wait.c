/* wait.c - waiting for the service: says why it waits, sees signals and --timeout.
 *
 * Touches futures, the clock and stderr. Must not: print results, or ask the service anything.
 */
#include <poll.h>
#include <string.h>

#include "cli/main/app.h"
#include "cli/store/store_link.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

enum { SLICE_MS = 100 }; /* signals may come to another thread */

void cli_note_retry(const tinkc_event *e, void *user)
{
    cli_app *app = user;
    char left[CLI_SHORT_TEXT];
    cli_store_link_keep(app);
    cli_format_duration((double)e->left_ms / 1000, left);
    (void)snprintf(app->failing, sizeof app->failing, "%.120s; trying again%s%s", e->text,
                   e->left_ms > 0 ? " for " : "", e->left_ms > 0 ? left : "");
    if (e->left_ms == TINKC_FOREVER) {
        int64_t now = cli_now_ms();
        if (!app->trouble_ms || e->wait_ms <= 1000) /* the first wait: it had worked before */
            app->trouble_ms = now;
        app->next_try_ms = now + e->wait_ms;
        (void)snprintf(app->trouble, sizeof app->trouble, "%s", e->text);
    }
    if (app->on_retry)
        app->on_retry(e, app->on_retry_user);
}

/* On a terminal the command's own line, else a status line after a second; what the service says about
 * a request that merely takes its time is for -v. Elsewhere a line when an attempt has failed, and one
 * every 30 s. */
static void show_wait(cli_app *app, tinkc_future *f, const char *label, int64_t begun_ms,
                      int64_t *said_ms)
{
    char took[CLI_SHORT_TEXT];
    tinkc_text why = { 0 };
    int64_t now = cli_now_ms();
    const char *what = label ? label : tinkc_future_operation(f);
    cli_format_duration((double)(now - begun_ms) / 1000, took);
    if (app->events)
        (void)tinkc_queue_run(app->events, 0, NULL);
    const char *status = app->failing[0] ? app->failing
                         : app->verbose  ? tinkc_future_status(f, &why, NULL)
                                         : "";
    /* A failed attempt is reported soon, and once; a long wait every half minute. */
    bool failing = *said_ms == begun_ms && now - begun_ms >= 2000 && app->failing[0];
    const char *colon = status[0] ? ": " : "";
    if (app->status_line[0] && app->draws) {
        if (now - begun_ms < 1000)
            cli_status(app, false, "%s", app->status_line);
        else
            cli_status(app, false, "%s  (%s%s%s %s)", app->status_line, what, colon, status, took);
    } else if (now - begun_ms >= 1000 && app->draws) {
        cli_status(app, false, "%s%s%s %s", what, colon, status, took);
    } else if (failing || now - *said_ms >= 30000) {
        cli_note(app, "%s%s%s %s", what, colon, status, took);
        *said_ms = now;
    }
    tinkc_text_free(&why);
}

/* Attempts have failed for --retry-for, and the last one did: the next is still to come. */
static bool tried_enough(const cli_app *app)
{
    int64_t now = cli_now_ms();
    return app->trouble_ms && now - app->trouble_ms >= app->retry_window_ms &&
           now < app->next_try_ms;
}

static void show_bytes(cli_progress *bar, tinkc_future *f)
{
    int64_t have = 0, total = -1;
    tinkc_future_progress(f, &have, &total);
    if (have > 0)
        cli_progress_step(bar, have, total, NULL);
}

bool cli_rest(const cli_app *app, int64_t ms, tinkc_error *err)
{
    int64_t until = cli_now_ms() + ms, left;
    while (!err->code && (left = until - cli_now_ms()) > 0) {
        if (cli_stop_signal())
            tinkc_error_set(err, TINKC_E_CANCELLED, "interrupted");
        else if (cli_now_ms() >= app->deadline_ms)
            cli_run_out(err);
        else
            (void)poll(NULL, 0, (int)(left < SLICE_MS ? left : SLICE_MS));
    }
    return !err->code;
}

void cli_say_stopping(cli_app *app)
{
    if (!app->stop_said)
        cli_note(app, "stopping: what is trained is saved first (interrupt again to leave at once)");
    app->stop_said = true;
}

/* `patience`: how many signals it takes to give up. `bar`: shows bytes instead of why it waits. */
static bool wait_for(cli_app *app, tinkc_future *f, const char *label, int patience,
                     cli_progress *bar, tinkc_error *err)
{
    int64_t begun_ms = cli_now_ms(), said_ms = begun_ms;
    app->failing[0] = '\0';
    app->trouble_ms = 0;
    cli_catch_signals();
    while (f && !err->code) {
        tinkc_error slice = { 0 };
        bool over = tinkc_future_done(f); /* asked first: then a time-out is the future's own */
        bool done = tinkc_future_wait(f, SLICE_MS, &slice);
        if (bar)
            show_bytes(bar, f);
        if (done) {
            if (!app->status_line[0]) /* it stays until the next one replaces it */
                cli_progress_clear();
            return true;
        }
        if (over || slice.code != TINKC_E_TIMEOUT) {
            *err = slice;
        } else if (cli_stop_signal() && cli_stop_count() >= patience) {
            tinkc_future_cancel(f);
            tinkc_error_set(err, TINKC_E_CANCELLED, "interrupted");
        } else if (cli_now_ms() > app->deadline_ms) {
            tinkc_future_cancel(f);
            cli_run_out(err);
        } else if (tried_enough(app)) {
            tinkc_future_cancel(f);
            tinkc_error_set(err, TINKC_E_CONNECTION, app->trouble);
        } else if (cli_stop_signal() && !app->stop_said) {
            cli_say_stopping(app);
        } else if (!bar || bar->done == 0) {
            show_wait(app, f, label, begun_ms, &said_ms);
        }
    }
    cli_progress_clear();
    return false;
}

bool cli_wait(cli_app *app, tinkc_future *f, const char *label, tinkc_error *err)
{
    return wait_for(app, f, label, 1, NULL, err);
}

bool cli_wait_bytes(cli_app *app, tinkc_future *f, const char *label, tinkc_error *err)
{
    cli_progress bar;
    cli_progress_begin(&bar, app, label, -1, true);
    return wait_for(app, f, label, 1, &bar, err);
}

bool cli_wait_through(cli_app *app, tinkc_future *f, const char *label, tinkc_error *err)
{
    return wait_for(app, f, label, 2, NULL, err);
}
