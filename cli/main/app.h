/* app.h - one run of the program: what was asked, how to answer, what it stands on.
 *
 * Commands get a cli_app and nothing else; there are no globals but the signal flag.
 */
#ifndef CLI_APP_H
#define CLI_APP_H

#include <stdint.h>
#include <stdio.h>
#include <tinkc/tinkc.h>
#include <tinkc/engine.h>

#include "base/json_tree.h"
#include "cli/main/command_table.h"

enum { /* exit codes: stable, documented in `tinkc help exit-codes` */
       CLI_OK = 0,
       CLI_EXIT_FAILED = 1,
       CLI_EXIT_USAGE = 2,
       CLI_EXIT_NOT_FOUND = 3,
       CLI_EXIT_AUTH = 4,
       CLI_EXIT_CONFLICT = 5,
       CLI_EXIT_INPUT = 6,
       CLI_EXIT_LIMITED = 7,
       CLI_EXIT_NETWORK = 8,
       CLI_EXIT_SERVER = 9,
       CLI_EXIT_PARTLY = 10,
       CLI_EXIT_DECLINED = 11,
       CLI_EXIT_CHECK = 12,
       CLI_EXIT_UNSUPPORTED = 13,
       CLI_EXIT_TIMEOUT = 124,
       CLI_EXIT_SIGINT = 130,
       CLI_EXIT_SIGTERM = 143
};

enum { CLI_TABLE, CLI_TSV, CLI_CSV, CLI_JSON, CLI_JSONL, CLI_ID };
enum { CLI_TIME_RELATIVE, CLI_TIME_ISO, CLI_TIME_LOCAL, CLI_TIME_EPOCH };

/* Who has chosen a value. It stays with the value: a file that another one names has that one's
 * source, so nothing gains rights on the way. */
typedef enum cli_source {
    CLI_FROM_LINE,
    CLI_FROM_ENVIRONMENT,
    CLI_FROM_USER, /* a file of the user or the system, or one named on the line */
    CLI_FROM_PROGRAM,
    CLI_FROM_PROJECT /* .tinkc.toml, or a file that it names: cli_project_may_set */
} cli_source;

typedef struct cli_value { /* one option as given */
    const cli_option *option;
    const char *text; /* NULL for a flag */
    double number;    /* parsed: INT, COUNT, NUMBER; DURATION in seconds; SIZE in bytes */
    int64_t integer;  /* likewise; DATE in microseconds since 1970 */
    bool on;          /* flags: false after --no-X */
    cli_source source;
    const char *origin; /* in words: "command line", "environment", a file */
} cli_value;

typedef struct cli_config cli_config; /* config_file.h */

enum { CLI_COMPAT_OLD = 25, CLI_COMPAT_NEW = 36 }; /* releases whose output differs */

struct cli_app {
    const cli_command *command;
    const char *program; /* argv[0]'s last part */
    char **command_line; /* argv, ended by NULL; NULL = not known */
    cli_value *values;
    size_t n_values;
    const char **args;
    size_t n_args;
    char **kept; /* texts that values point to and that nothing else owns */
    size_t n_kept;
    cli_config *config;

    int format;         /* CLI_TABLE, ... */
    const char *fields; /* of --json=FIELDS, or NULL */
    int time_style;
    int verbose;
    bool quiet, color, progress, headers, truncate, yes, offline;
    /* Whose output is printed: 0 = our own, else the Python command's of release 0.N. */
    int compat;
    bool stdout_tty, stderr_tty, stdin_tty, utf8;
    bool draws; /* stderr is a terminal on which a line can be rewritten */
    int64_t started_ms;
    int64_t deadline_ms; /* of the machine's clock; INT64_MAX = none */

    tinkc_client *client; /* after cli_connect */
    tinkc_engine *engine; /* with the local engine */
    tinkc_queue *events;  /* of the client: failed attempts, for the waiting call */
    char failing[240];    /* the last one in words; "" = none since the last wait began */
    /* The library fetches a result for as long as it takes; we give up after --retry-for. */
    int64_t retry_window_ms;
    int64_t trouble_ms, next_try_ms; /* since when attempts fail, 0 = they do not; the next one */
    char trouble[200];
    /* Called for each failed attempt as well, or NULL; runs during a wait. */
    void (*on_retry)(const tinkc_event *, void *user);
    void *on_retry_user;

    bool stop_said;                /* the user knows that the command is ending */
    char status_line[400];         /* stays on the screen while the command waits; "" = none */
    const char *store;             /* of the link below; NULL = none. Borrowed */
    int store_fd, store_folder_fd; /* store_link.c */

    const char *const *session_metadata; /* pairs for a session that is made; NULL = none */
    tkc_arena arena; /* of JSON that is made once; what is made in a loop has one of its own */
    FILE *log_file; /* notes, warnings and errors go there too, or NULL; borrowed */
};

/* For what lives as long as the app. */
static inline tkc_arena *cli_arena(const cli_app *app)
{
    return (tkc_arena *)(uintptr_t)&app->arena;
}

/* JSON that lives as long. */
#define cli_array(app)     tkc_tree_array(cli_arena(app))
#define cli_object(app)    tkc_tree_object(cli_arena(app))
#define cli_pack(app, ...) tkc_tree_pack(cli_arena(app), __VA_ARGS__)

/* ---- options ---- */

/* What was given for an option; NULL if nothing was, nor an environment variable or a
 * configuration key that stands in for it. */
const cli_value *cli_value_of(const cli_app *, const char *name);
bool cli_given(const cli_app *, const char *name);
/* On the command line, not by the configuration or the environment. */
bool cli_on_the_line(const cli_app *, const char *name);
bool cli_flag(const cli_app *, const char *name);
/* The value, else the option's default, else NULL / 0. */
const char *cli_text(const cli_app *, const char *name);
int64_t cli_int(const cli_app *, const char *name);
double cli_number(const cli_app *, const char *name);
/* The i-th of a repeated option; NULL past the end. */
const cli_value *cli_value_at(const cli_app *, const char *name, size_t i);
const char *cli_text_at(const cli_app *, const char *name, size_t i);

/* Fills app from argv. 0, or an exit code after the problem has been reported. */
int cli_parse(cli_app *, int argc, char **argv);

enum { CLI_WHY = 256 };
/* Reports that there is no such command (or verb of a noun), with the nearest one; its exit code.
 * */
int cli_unknown_command(const cli_app *, const char *noun, const char *verb);
/* Whether an option takes this value; if not, *why says what it takes: "'x' is not a number". */
bool cli_check_value(const cli_option *, const char *text, char why[CLI_WHY]);
/* Adds a value as if it had been given; `text` must outlive the app. `source` and `origin` as in
 * cli_value. 0, or an exit code after reporting a value that is wrong or that its source may not
 * set. */
int cli_set_value(cli_app *, const char *name, const char *text, cli_source, const char *origin);
/* The same with a text that the app takes over and frees at its end. NULL: nothing happens. */
int cli_give_value(cli_app *, const char *name, char *text, cli_source, const char *origin);
/* Frees what parsing made. */
void cli_parse_free(cli_app *);

/* ---- problems ---- */

typedef struct cli_problem {
    const char *code; /* "not_found"; the exit code follows from it unless exit is set */
    int exit;
    int status;
    bool retryable;
    char request_id[64];
    char message[512];
    char hint[512];
    const char *file; /* the place in the source that found it, or NULL */
    int line;
    tkc_tree *problems; /* each thing that is wrong, for JSON; borrowed, or NULL */
} cli_problem;

#ifndef __FILE_NAME__
#define __FILE_NAME__ __FILE__
#endif

/* Prints it (text or JSON, on stderr) and returns its exit code. */
int cli_report(const cli_app *, const cli_problem *);
/* A problem of our own finding: code, hint (may be NULL), then a format and what belongs to it. */
#define cli_fail(app, code, ...) cli_fail_at((app), __FILE_NAME__, __LINE__, (code), __VA_ARGS__)
/* Wrong arguments that a command finds, not the parser: the Python command leaves with 1 then. */
#define cli_fail_checked(app, ...)                                                                 \
    ((void)cli_fail((app), "usage", __VA_ARGS__), (app)->compat ? CLI_EXIT_FAILED : CLI_EXIT_USAGE)
int cli_fail_at(const cli_app *, const char *file, int line, const char *code, const char *hint,
                const char *format, ...) __attribute__((format(printf, 6, 7)));
/* A failure of the library; `what` says what was being done, or NULL. */
#define cli_fail_error(app, err, what)                                                             \
    cli_fail_error_at((app), __FILE_NAME__, __LINE__, (err), (what))
int cli_fail_error_at(const cli_app *, const char *file, int line, const tinkc_error *,
                      const char *what);
/* The row of a tinkc_error in the table of problems, without printing it. */
void cli_problem_of(const tinkc_error *, cli_problem *out);
/* Sets the failure of a command that --timeout has ended. */
void cli_run_out(tinkc_error *err);
int cli_exit_of(const char *code);
/* The code to leave with: in compatibility mode all failures but usage and signals are 1. */
int cli_exit_code(const cli_app *, int code);

/* Lines of input that cannot be used: printed as FILE:LINE: message where they are found, or in
 * JSON part of the error. Of many the first ones: a whole file of them says no more. */
enum { CLI_MOST_BAD_LINES = 20 };
typedef struct cli_bad_lines {
    const cli_app *app;
    size_t n; /* found; the first CLI_MOST_BAD_LINES are shown */
    tkc_tree *problems; /* NULL = they are printed */
} cli_bad_lines;
void cli_bad_lines_begin(cli_bad_lines *, const cli_app *);
void cli_bad_line(cli_bad_lines *, const char *path, size_t line, const char *code,
                  const char *message);
/* 0 if there were none, else an exit code after reporting how many; `path` NULL = of several files.
 */
int cli_bad_lines_end(cli_bad_lines *, const char *path, const char *hint);

/* stderr, unless --quiet. */
#define cli_note(app, ...) cli_say_at((app), __FILE_NAME__, __LINE__, "INFO", __VA_ARGS__)
#define cli_warn(app, ...) cli_say_at((app), __FILE_NAME__, __LINE__, "WARNING", __VA_ARGS__)
void cli_say_at(const cli_app *, const char *file, int line, const char *level, const char *format,
                ...) __attribute__((format(printf, 5, 6)));

/* ---- what a command stands on ---- */

/* Opens the client: the service, or the engine in this process with --local or when no key is
 * configured (which it says). 0, or an exit code after reporting. */
int cli_connect(cli_app *);
/* The same with this credential instead of the configured one; one of the two is NULL. */
int cli_connect_as(cli_app *, const char *key, const char *command);
/* Whether the service takes the credential: one call that needs it. False with err set. */
bool cli_prove_credential(cli_app *, tinkc_error *err);
/* Whether cli_connect will open the engine in this process. */
bool cli_wants_local(const cli_app *);
/* Waits for a future while showing why it waits, obeying --timeout and signals. True if it
 * succeeded; otherwise *err holds why (CANCELLED after a signal). From then on signals no longer end the
 * command: cli_stop_signal() says that one has come. */
bool cli_wait(cli_app *, tinkc_future *, const char *label, tinkc_error *err);
/* Waits so long. False before that, with why in *err: a signal, or --timeout. */
bool cli_rest(const cli_app *, int64_t ms, tinkc_error *err);
/* As cli_wait, but the first signal does not end it and is answered with a line: for work that must not
 * be lost half-way. */
bool cli_wait_through(cli_app *, tinkc_future *, const char *label, tinkc_error *err);
/* As cli_wait, with a bar of the bytes that have come. */
bool cli_wait_bytes(cli_app *, tinkc_future *, const char *label, tinkc_error *err);
/* An attempt has failed, and another comes: what the wait shows and how long it lasts. The `user` of
 * the event is the app; runs inside tinkc_queue_run, while somebody waits. */
void cli_note_retry(const tinkc_event *, void *user);
/* The model to use: -m, else the profile's, else nano on the local engine; NULL = none. */
const char *cli_model(const cli_app *);
/* The chat format to use with a model: --renderer, else the profile's, else the one recommended for
 * it; NULL = the tokenizer's own. */
const char *cli_renderer(const cli_app *, const char *model);
/* The tokenizer of a model name or folder. Yours; NULL with err set. */
tinkc_tokenizer *cli_tokenizer(cli_app *, const char *model, tinkc_error *err);
/* Makes a folder known to the local engine under a name, now and later. 0, or an exit code after
 * reporting. */
int cli_add_model(cli_app *, const char *name, const char *folder);
/* A second model beside the command's own (a teacher, a reference, a grader): on the local engine a
 * folder or a name of the hub is made known. What the service calls it; yours. */
char *cli_add_named(cli_app *, const char *model, int *bad);
/* The folder of a model that is found without the service or a hub; yours. NULL: it cannot, or *bad is
 * an exit code after reporting that the name leads nowhere. */
char *cli_named_here(cli_app *, const char *model, int *bad);
/* What is written like a path, but is neither a model nor a log directory, cannot be what was meant: says what it is.
 * 0, or an exit code after reporting. */
int cli_check_model_path(const cli_app *, const char *model);
/* Where the shipped model lies; NULL if it was not installed. */
const char *cli_nano_folder(void);
/* Logs of the library and of an engine: a line on stderr. user: the app, or NULL. */
void cli_log_line(int32_t level, const char *line, void *user);
int32_t cli_log_level(const cli_app *, int32_t quietest);
/* The user's data folder for the local store, made if missing; NULL = cannot. */
const char *cli_store_folder(const cli_app *);
void cli_disconnect(cli_app *);

/* ---- signals ---- */

/* 0, SIGINT or SIGTERM: what asked us to stop; and how often. */
int cli_stop_signal(void);
int cli_stop_count(void);
/* As if none had come: the next one counts again. */
void cli_forget_signal(void);
/* Answers the first signal, once: the command ends when what is trained is saved. */
void cli_say_stopping(cli_app *);
/* Exit code for the signal that came. */
int cli_stop_exit(void);
/* Until somebody catches them, signals end the program with their exit code. */
void cli_leave_on_signals(void);
/* Lets signals set the flag instead of ending the program (long work, prompts). */
void cli_catch_signals(void);

#endif
