/* run_line.h - a command line in this process: parsed, run, and what it shows. */
#ifndef TINKC_TESTS_RUN_LINE_H
#define TINKC_TESTS_RUN_LINE_H

#include "cli/main/commands.h"
#include "support/cli/held_output.h"
#include "support/test_case.h"

/* The words stand between single spaces. As in a pipe: tab-separated values, or JSON with --json; times as they are in the
 * answers; every question is answered with yes. Takes the client (NULL: none is needed). *shown, yours, is what it writes to
 * both streams. The exit code. */
static inline int run_line(const char *line, tinkc_client *client, char **shown)
{
    enum { MOST = 16 };
    char words[400], *argv[MOST + 1] = { NULL }, *rest = words;
    int argc = 0;
    (void)snprintf(words, sizeof words, "tinkc %s", line);
    while (argc < MOST && (argv[argc] = strsep(&rest, " ")))
        argc++;
    cli_app app = { .program = "tinkc",
                    .command_line = argv,
                    .headers = true,
                    .quiet = true,
                    .yes = true,
                    .time_style = CLI_TIME_EPOCH,
                    .deadline_ms = INT64_MAX,
                    .client = client };
    hold_output();
    int code = cli_parse(&app, argc, argv);
    app.format = cli_value_of(&app, "json") ? CLI_JSON : CLI_TSV;
    code = code ? code : app.command->run(&app);
    code = cli_finish_output(&app, code);
    *shown = release_output();
    cli_disconnect(&app);
    cli_parse_free(&app);
    return code;
}

#endif
