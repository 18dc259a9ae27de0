/* main.c - one run of the program: parse, configure, run the command, check what was written. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/main/commands.h"
#include "cli/main/config_file.h"
#include "cli/output/out.h"
#include "cli/main/plugin.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

static const char *setting(const cli_app *app, const char *option, const char *key)
{
    const char *text = cli_text(app, option);
    return text ? text : cli_config_get(app, key, NULL);
}

static int format_of(const char *name)
{
    static const char *const names[] = { "table", "tsv", "csv", "json", "jsonl", "id" };
    for (int i = 0; i < 6; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return CLI_TABLE;
}

/* Before anything can fail: how errors are to look. */
static void settle_format(cli_app *app)
{
    const cli_value *json = cli_value_of(app, "json");
    const char *format = setting(app, "format", "format");
    if (json) {
        app->format = CLI_JSON;
        app->fields = json->text;
        if (cli_given(app, "format") && strcmp(cli_text(app, "format"), "jsonl") == 0)
            app->format = CLI_JSONL;
    } else if (format) {
        app->format = format_of(format);
    } else {
        app->format = app->stdout_tty || app->compat ? CLI_TABLE : CLI_TSV;
    }
}

static void settle_rest(cli_app *app)
{
    static const char *const styles[] = { "relative", "iso", "local", "epoch" };
    const char *style = setting(app, "time", "time"), *log = getenv("TINKER_LOG");
    app->time_style = CLI_TIME_RELATIVE;
    for (int i = 0; style && i < 4; i++)
        if (strcmp(style, styles[i]) == 0)
            app->time_style = i;
    app->quiet = cli_flag(app, "quiet");
    app->progress = !cli_flag(app, "no-progress");
    app->headers = !cli_flag(app, "no-headers");
    app->truncate = !cli_flag(app, "no-trunc");
    app->yes = cli_flag(app, "yes");
    app->offline = cli_flag(app, "offline");
    for (size_t i = 0; i < app->n_values; i++)
        app->verbose += strcmp(app->values[i].option->name, "verbose") == 0;
    if (!app->verbose && log)
        app->verbose = strcmp(log, "debug") == 0 ? 2 : strcmp(log, "info") == 0;
    app->deadline_ms = INT64_MAX;
    const char *timeout = setting(app, "timeout", "timeout");
    double seconds;
    if (timeout && cli_parse_duration(timeout, &seconds) && seconds > 0)
        app->deadline_ms = app->started_ms + (int64_t)(seconds * 1000);
}

static int show_help(const cli_app *app)
{
    if (app->command)
        cli_help_command(app, app->command, false);
    else if (app->n_args && cli_is_noun(app->args[0]))
        cli_help_noun(app->args[0]);
    else
        cli_help_program();
    return 0;
}

static int check_profile(const cli_app *app)
{
    const cli_config *config = app->config;
    if (app->command->any_profile || cli_config_has_profile(app, config->profile))
        return 0;
    return cli_config_no_profile(app, config->profile, config->profile_origin);
}

static int run(cli_app *app, int argc, char **argv)
{
    int bad = cli_parse(app, argc, argv);
    cli_term_setup(app);
    if (bad)
        return bad;
    if (cli_flag(app, "version")) {
        settle_format(app);
        return cli_version(app);
    }
    if (cli_flag(app, "help") || !app->command)
        return show_help(app);
    bad = cli_config_load(app);
    if (!bad && !app->command->any_config)
        bad = cli_config_report(app);
    bad = bad ? bad : check_profile(app);
    bad = bad ? bad : cli_config_defaults(app);
    cli_term_color(app);
    settle_format(app);
    settle_rest(app);
    if (bad)
        return bad;
    bad = cli_check_columns(app);
    return bad ? (bad < 0 ? 0 : bad) : app->command->run(app);
}

static bool is_json(const char *format)
{
    return format && (strcmp(format, "json") == 0 || strcmp(format, "jsonl") == 0);
}

/* Whether errors of the parser itself are to be JSON, wherever on the line that is asked for. */
static bool wants_json(int argc, char **argv)
{
    bool json = is_json(getenv("TINKC_FORMAT"));
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *word = argv[i];
        if (strcmp(word, "--json") == 0 || strncmp(word, "--json=", 7) == 0)
            return true;
        if (strcmp(word, "-f") == 0 || strcmp(word, "--format") == 0)
            json = is_json(argv[i + 1]);
        else if (strncmp(word, "--format=", 9) == 0)
            json = is_json(word + 9);
        else if (strncmp(word, "-f", 2) == 0)
            json = is_json(word + 2);
    }
    return json;
}

/* A standard stream that was closed must not become a file or a socket of ours: using it fails. */
static void guard_streams(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) == -1)
            (void)!open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

/* TINKC_COMPAT: "1" is the newest release we know, "0.25.0" that one or the nearest before. */
static int compat_release(const char *program)
{
    const char *asked = getenv("TINKC_COMPAT");
    double minor = 0; /* of any number of digits */
    for (const char *p = asked && strncmp(asked, "0.", 2) == 0 ? asked + 2 : "";
         *p >= '0' && *p <= '9'; p++)
        minor = 10 * minor + (*p - '0');
    if (minor > 0)
        return minor < (double)CLI_COMPAT_NEW ? CLI_COMPAT_OLD : CLI_COMPAT_NEW;
    return strcmp(program, "tinker") == 0 || (asked && strcmp(asked, "1") == 0) ? CLI_COMPAT_NEW
                                                                                : 0;
}

int main(int argc, char **argv)
{
    guard_streams();
    const char *name = argc > 0 && argv[0] ? argv[0] : "tinkc", *slash = strrchr(name, '/');
    cli_app app = { .program = slash ? slash + 1 : name,
                    .command_line = argv,
                    .started_ms = cli_now_ms() };
    app.compat = compat_release(app.program);
    app.headers = app.truncate = app.progress = true;
    app.format = wants_json(argc, argv) ? CLI_JSON : CLI_TABLE;
    signal(SIGPIPE, SIG_DFL);
    cli_leave_on_signals();
    if (argc > 1)
        cli_try_plugin(argv);
    int code = cli_finish_output(&app, run(&app, argc, argv));
    cli_disconnect(&app);
    cli_config_free(app.config);
    cli_parse_free(&app);
    code = cli_exit_code(&app, code);
#ifdef NDEBUG
    /* Everything of ours has ended. What libraries would do now is to take their tables apart, page
     * by page: a millisecond and 2 MB for nothing. */
    (void)fflush(NULL);
    _exit(code);
#endif
    return code;
}
