/* cmd_env.c - `tinkc env check`: does a command speak the environment protocol? */
#include <string.h>
#include <tinkc/recipes.h>

#include "cli/main/commands.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

typedef struct checks {
    const cli_app *app;
    tkc_tree *list;
    size_t failed;
} checks;

static void note(const char *name, bool passed, const char *detail, void *user)
{
    checks *c = user;
    c->failed += !passed;
    tkc_tree_add(c->list, cli_pack(c->app, "{s:s,s:b,s:s}", "check", name, "passed", passed,
                                   "detail", detail));
    if (c->app->format == CLI_JSON || c->app->format == CLI_JSONL)
        return;
    printf("%s  %s%s%s\n", passed ? "ok    " : "FAILED", name, *detail ? ": " : "", detail);
    fflush(stdout);
}

enum { MOST_PASSED = 64 }; /* the library takes as many */

int cli_env_check(cli_app *app)
{
    tinkc_error err = { 0 };
    checks c = { .app = app, .list = cli_array(app) };
    int64_t limit_ms = cli_ms_of(cli_number(app, "timeout-each"));
    const char *pass[MOST_PASSED + 1] = { NULL };
    for (size_t i = 0; i < MOST_PASSED && (pass[i] = cli_text_at(app, "pass-env", i)); i++)
        ;
    tinkc_env_check_passing(pass, app->args[0], cli_text(app, "row"), limit_ms, note, &c, &err);
    if (app->format == CLI_JSON || app->format == CLI_JSONL) {
        tkc_tree *v = cli_pack(app, "{s:s,s:b,s:o}", "command", app->args[0], "passed",
                               c.failed == 0 && !err.code, "checks", c.list);
        cli_print_json(app, v);
    }
    if (err.code)
        return cli_fail_error(app, &err, NULL);
    if (c.failed)
        return cli_fail(app, "check_failed", "the protocol is described in docs/protocol.md",
                        "%zu check%s failed", c.failed, c.failed == 1 ? "" : "s");
    return 0;
}
