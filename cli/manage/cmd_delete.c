/* cmd_delete.c - `tinkc checkpoint delete`: many at once, nothing by accident.
 *
 * What goes is shown and confirmed on stderr first. One failure does not stop the others; after
 * an interrupt no new deletion starts, those under way are waited for, and all is accounted for.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/manage/checkpoints.h"
#include "cli/main/commands.h"
#include "cli/output/list.h"
#include "cli/output/out.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

typedef struct flight { /* one deletion that was sent */
    tinkc_future *future;
    tinkc_error err; /* why it could not be */
} flight;

typedef struct deletion {
    tkc_tree *items; /* array of checkpoints (by run) or of {"tinker_path"} */
    size_t done, failed, not_attempted;
    tkc_tree *failures;
    int last_exit;
} deletion;

static int check_arguments(cli_app *app)
{
    bool run = cli_given(app, "run-id");
    if (!app->n_args && !run)
        return cli_fail(app, "usage", NULL, "give checkpoint paths or --run-id");
    if (app->n_args && run)
        return cli_fail(app, "usage", NULL, "give either checkpoint paths or --run-id, not both");
    static const char *const filters[] = { "type", "before", "after", "keep-last" };
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (!run && cli_given(app, filters[i]))
            return cli_fail(app, "usage", NULL, "--%s needs --run-id", filters[i]);
    return 0;
}

/* What is asked for: given by path, or by run and narrowed. NULL after reporting. */
static tkc_tree *gather(cli_app *app, int *bad)
{
    tinkc_error err = { 0 };
    if (cli_given(app, "run-id")) {
        int64_t total;
        tinkc_list_options how = { .run_id = cli_text(app, "run-id") };
        tkc_tree *items = cli_collect_checkpoints(app, &how, 0, &total, &err);
        if (err.code) {
            *bad = cli_fail_error(app, &err, NULL);
            return NULL;
        }
        /* Newest first: the ones to keep stand at the front. */
        for (int64_t keep = cli_int(app, "keep-last"); keep > 0 && tkc_tree_length(items); keep--)
            tkc_tree_take_out(items, 0);
        return items;
    }
    char **paths = cli_paths(app, bad);
    tkc_tree *items = paths ? cli_array(app) : NULL;
    for (size_t i = 0; paths && paths[i]; i++)
        tkc_tree_add(items, cli_pack(app, "{s:s}", "tinker_path", paths[i]));
    cli_free_paths(paths);
    return items;
}

static void show_plan(const cli_app *app, const tkc_tree *items)
{
    int64_t size = 0;
    bool known = false;
    fprintf(stderr, "Will delete %zu checkpoint(s):\n", tkc_tree_length(items));
    for (size_t i = 0; i < tkc_tree_length(items); i++) {
        const tkc_tree *c = tkc_tree_at(items, i), *bytes = tkc_tree_get(c, "size_bytes");
        const char *path = tkc_tree_get_text(c, "tinker_path");
        char text[CLI_SHORT_TEXT];
        if (!tkc_tree_get(c, "time")) {
            fprintf(stderr, "  - %s\n", path);
            continue;
        }
        known = true;
        size += tkc_tree_i64(bytes);
        cli_format_size(tkc_tree_is_i64(bytes) ? tkc_tree_i64(bytes) : -1, text);
        char *when = cli_time_text(app, tkc_tree_get_text(c, "time"), true);
        fprintf(stderr, "  - %s (%s, created %s)\n", path, text, when ? when : "");
        free(when);
    }
    if (known) {
        char text[CLI_SHORT_TEXT];
        cli_format_size(size, text);
        fprintf(stderr, "Total size: %s\n", text);
    }
}

static int confirm(cli_app *app, const tkc_tree *items)
{
    char question[128];
    fputs("WARNING: This action is permanent and cannot be undone.\n", stderr);
    (void)snprintf(question, sizeof question, "Are you sure you want to delete %zu checkpoint(s)?",
                   tkc_tree_length(items));
    return cli_confirm(app, question, "--yes");
}

/* Waits for one deletion and books it. False after a second signal: it is not known how it ended.
 */
static bool settle(cli_app *app, deletion *d, flight *f, size_t i)
{
    const char *path = tkc_tree_get_text(tkc_tree_at(d->items, i), "tinker_path");
    bool ok = cli_wait_through(app, f->future, "deleting", &f->err);
    tinkc_future_free(f->future);
    f->future = NULL;
    d->done += ok;
    if (ok || cli_stop_count() > 1)
        return ok;
    cli_problem p;
    cli_problem_of(&f->err, &p);
    d->failed++;
    d->last_exit = cli_exit_of(p.code);
    tkc_tree_add(d->failures,
                 cli_pack(app, "{s:s,s:s}", "tinker_path", path, "error", f->err.message));
    return true;
}

/* Keeps up to --jobs in flight; waits for the oldest first. */
static void delete_all(cli_app *app, deletion *d)
{
    size_t n = tkc_tree_length(d->items), sent = 0, settled = 0;
    size_t jobs = cli_int(app, "jobs") > 0 ? (size_t)cli_int(app, "jobs") : 1;
    flight *flights = calloc(n + 1, sizeof *flights);
    cli_progress bar;
    cli_progress_begin(&bar, app, "Deleting checkpoints", (int64_t)n, false);
    cli_catch_signals();
    while (flights && settled < n) {
        while (sent < n && sent - settled < jobs && !cli_stop_signal()) {
            const char *path = tkc_tree_get_text(tkc_tree_at(d->items, sent), "tinker_path");
            flights[sent].future = tinkc_checkpoint_delete(app->client, path, &flights[sent].err);
            sent++;
        }
        if (settled == sent || !settle(app, d, &flights[settled], settled))
            break;
        cli_progress_step(&bar, (int64_t)++settled, (int64_t)n, NULL);
    }
    for (size_t i = settled; i < sent; i++)
        tinkc_future_free(flights[i].future);
    d->not_attempted = n - settled;
    cli_progress_end(&bar);
    free(flights);
}

static int report(cli_app *app, const deletion *d, bool cancelled)
{
    if (app->format == CLI_JSON || app->format == CLI_JSONL) {
        tkc_tree *v =
            cli_pack(app, "{s:I,s:o}", "deleted_count", (int64_t)d->done, "failed", d->failures);
        if (!app->compat) {
            tkc_tree_set_bool(v, "cancelled", cancelled);
            tkc_tree_set_i64(v, "not_attempted", (int64_t)d->not_attempted);
        }
        if (app->compat)
            cli_write_python_json(stdout, v, 0);
        else
            cli_write_json(stdout, v, app->format == CLI_JSONL ? 0 : 2);
        fputc('\n', stdout);
    } else if (!cancelled) {
        cli_note(app, "Deleted %zu checkpoint(s)", d->done);
        if (d->failed)
            fprintf(stderr, "Failed to delete %zu checkpoint(s):\n", d->failed);
        for (size_t i = 0; i < tkc_tree_length(d->failures); i++) {
            const tkc_tree *f = tkc_tree_at(d->failures, i);
            fprintf(stderr, "  - %s: %s\n", tkc_tree_get_text(f, "tinker_path"),
                    tkc_tree_get_text(f, "error"));
        }
        if (d->not_attempted)
            fprintf(stderr, "Not attempted: %zu\n", d->not_attempted);
    }
    if (cancelled)
        return app->compat ? 0 : CLI_EXIT_DECLINED;
    if (cli_stop_signal())
        return cli_stop_exit();
    if (!d->failed || app->compat) /* the Python command leaves with 0 whatever has failed */
        return 0;
    return d->done ? CLI_EXIT_PARTLY : d->last_exit;
}

int cli_checkpoint_delete(cli_app *app)
{
    deletion d = { .failures = cli_array(app) };
    int bad = check_arguments(app);
    if (!bad)
        bad = cli_connect(app);
    if (!bad)
        d.items = gather(app, &bad);
    if (!bad && tkc_tree_length(d.items) == 0 && app->compat) {
        printf("No checkpoints found for run %s matching filters\n", cli_text(app, "run-id"));
    } else if (!bad && tkc_tree_length(d.items) == 0) {
        if (app->format != CLI_JSON && app->format != CLI_JSONL)
            cli_note(app, "No checkpoints found for %s matching filters",
                     cli_text(app, "run-id") ? cli_text(app, "run-id") : "these paths");
        bad = report(app, &d, false);
    } else if (!bad && cli_flag(app, "dry-run")) {
        show_plan(app, d.items);
        d.not_attempted = tkc_tree_length(d.items);
        bad = app->format == CLI_JSON || app->format == CLI_JSONL ? report(app, &d, false) : 0;
    } else if (!bad) {
        if (!app->yes)
            show_plan(app, d.items);
        int answer = app->yes ? 1 : confirm(app, d.items);
        if (answer == 1)
            delete_all(app, &d);
        if (answer == 0) {
            fputs("Deletion cancelled.\n", stderr);
            d.not_attempted = tkc_tree_length(d.items);
        }
        bad = answer < 0 ? -answer : report(app, &d, answer == 0);
    }
    return bad;
}
