/* cmd_store.c - `tinkc store check|repair`: is everything in the engine's store as it was written? */
#include <stdlib.h>
#include <string.h>

#include <tinkc/engine.h>

#include "cli/main/commands.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

static void report(const char *line, bool bad, void *user)
{
    const bool *all = user; /* also what is in order */
    if (bad || *all)
        fprintf(stdout, "%s%s\n", bad ? "damaged: " : "", line);
}

static int run(cli_app *app, bool repair)
{
    tinkc_error err = { 0 };
    bool all = repair || app->verbose > 0;
    const char *folder = app->n_args ? app->args[0] : cli_store_folder(app);
    char *key = NULL;
    int bad = 0;
    if (!folder)
        return cli_fail(app, "usage", "tinkc store check DIR", "which store?");
    if (repair && cli_given(app, "key-file")) {
        size_t len;
        key = cli_read_all(app, cli_text(app, "key-file"), &len, &bad);
        if (key)
            key[strcspn(key, " \r\n")] = '\0';
    }
    if (!bad && tinkc_store_check(
                    folder, &(tinkc_store_check_options){ .repair = repair, .owner_key = key },
                    report, &all, &err))
        cli_note(app, "%s: the store is intact", folder);
    else if (!bad) {
        cli_problem p;
        cli_problem_of(&err, &p);
        if (!repair && err.code == TINKC_E_STORE && err.cause != TINKC_E_CONFLICT)
            (void)snprintf(p.hint, sizeof p.hint,
                           "tinkc store repair %s moves what is damaged aside", folder);
        bad = cli_report(app, &p);
    }
    free(key);
    return bad;
}

int cli_store_check(cli_app *app)
{
    return run(app, false);
}

int cli_store_repair(cli_app *app)
{
    return run(app, true);
}
