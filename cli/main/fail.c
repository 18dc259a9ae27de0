/* fail.c - problems as people and scripts read them. Writes to stderr only. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli/main/app.h"
#include "cli/output/out.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

static const struct {
    const char *code;
    int exit;
} exits[] = {
    { "usage", CLI_EXIT_USAGE },
    { "config_invalid", CLI_EXIT_USAGE },
    { "auth_missing", CLI_EXIT_AUTH },
    { "auth_rejected", CLI_EXIT_AUTH },
    { "permission_denied", CLI_EXIT_AUTH },
    { "not_found", CLI_EXIT_NOT_FOUND },
    { "conflict", CLI_EXIT_CONFLICT },
    { "exists", CLI_EXIT_CONFLICT },
    { "invalid_request", CLI_EXIT_INPUT },
    { "data_invalid", CLI_EXIT_INPUT },
    { "rate_limited", CLI_EXIT_LIMITED },
    { "billing_blocked", CLI_EXIT_LIMITED },
    { "network", CLI_EXIT_NETWORK },
    { "timeout", CLI_EXIT_TIMEOUT },
    { "server_error", CLI_EXIT_SERVER },
    { "request_failed", CLI_EXIT_SERVER },
    { "local_io", CLI_EXIT_FAILED },
    { "unsafe_archive", CLI_EXIT_FAILED },
    { "partial_failure", CLI_EXIT_PARTLY },
    { "check_failed", CLI_EXIT_CHECK },
    { "unsupported", CLI_EXIT_UNSUPPORTED },
    { "declined", CLI_EXIT_DECLINED },
    { "interrupted", CLI_EXIT_SIGINT },
    { "internal", CLI_EXIT_FAILED },
};

int cli_exit_of(const char *code)
{
    for (size_t i = 0; i < sizeof exits / sizeof *exits; i++)
        if (strcmp(exits[i].code, code) == 0)
            return exits[i].exit;
    return CLI_EXIT_FAILED;
}

/* What each failure of the library is called here, and what helps. */
static const struct {
    int32_t code;
    const char *name, *hint;
} rows[] = {
    { TINKC_E_ARGUMENT, "usage", NULL },
    { TINKC_E_PATH, "usage", "paths look like tinker://RUN/weights/NAME" },
    { TINKC_E_UNSUPPORTED, "unsupported", NULL },
    { TINKC_E_TENSOR, "data_invalid", NULL },
    { TINKC_E_NOT_LORA, "data_invalid", NULL },
    { TINKC_E_FILE, "local_io", NULL },
    { TINKC_E_TIMEOUT, "timeout", NULL },
    { TINKC_E_DEADLINE, "timeout", "give it more time with --timeout" },
    { TINKC_E_CANCELLED, "interrupted", NULL },
    { TINKC_E_CONNECTION, "network", "check the network and the address: tinkc doctor" },
    { TINKC_E_NET_TIMEOUT, "network", "read timed out; try again, or: tinkc doctor" },
    { TINKC_E_BAD_RESPONSE, "server_error", "is TINKER_BASE_URL a Tinker server? tinkc doctor" },
    { TINKC_E_NO_PROGRESS, "server_error", NULL },
    { TINKC_E_OFFLINE, "network", "leave --offline (or HF_HUB_OFFLINE) out" },
    { TINKC_E_REQUEST_FAILED, "request_failed", NULL },
    { TINKC_E_PROMISE_EXPIRED, "request_failed", NULL },
    { TINKC_E_EXPORT_FAILED, "request_failed", NULL },
    { TINKC_E_NO_CREDENTIAL, "auth_missing",
      "create a key in the console, then: tinkc auth login" },
    { TINKC_E_BAD_CREDENTIAL, "auth_rejected", "a key begins with tml-, a token with eyJ" },
    { TINKC_E_CREDENTIAL_CMD, "auth_rejected",
      "run the command of TINKER_CREDENTIAL_CMD yourself to see why" },
    { TINKC_E_TOKEN, "auth_rejected", NULL },
    { TINKC_E_NO_IDENTITY, "auth_missing", NULL },
    { TINKC_E_TOKENIZER, "data_invalid", NULL },
    { TINKC_E_TEMPLATE, "data_invalid", NULL },
    { TINKC_E_EXISTS, "exists", NULL },
    { TINKC_E_UNSAFE_ARCHIVE, "unsafe_archive", NULL },
    { TINKC_E_MODEL, "data_invalid", NULL },
    { TINKC_E_STORE, "local_io", NULL },
    { TINKC_E_BAD_REQUEST, "invalid_request", NULL },
    { TINKC_E_AUTH, "auth_rejected", "check the key: tinkc auth status" },
    { TINKC_E_BILLING, "billing_blocked", "see the billing page of the console" },
    { TINKC_E_FORBIDDEN, "permission_denied", NULL },
    { TINKC_E_NOT_FOUND, "not_found", NULL },
    { TINKC_E_REQUEST_TIMEOUT, "server_error", NULL },
    { TINKC_E_CONFLICT, "conflict", NULL },
    { TINKC_E_GONE, "not_found", NULL },
    { TINKC_E_UNPROCESSABLE, "invalid_request", NULL },
    { TINKC_E_RATE_LIMITED, "rate_limited", "wait a moment and try again" },
    { TINKC_E_SERVER, "server_error", "try again later" },
};

void cli_problem_of(const tinkc_error *err, cli_problem *out)
{
    *out = (cli_problem){ .code = "internal", .status = err->http_status };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].code != err->code)
            continue;
        out->code = rows[i].name;
        if (rows[i].hint)
            (void)snprintf(out->hint, sizeof out->hint, "%s", rows[i].hint);
    }
    if (err->code == TINKC_E_REQUEST_FAILED && err->category == TINKC_BY_CALLER)
        out->code = "invalid_request";
    if (strstr(err->message, "No space left on device") || strstr(err->message, "disk is full"))
        (void)snprintf(out->hint, sizeof out->hint, "free some space on that disk, then try again");
    out->retryable = (err->flags & TINKC_RETRIABLE) != 0;
    (void)snprintf(out->request_id, sizeof out->request_id, "%s", err->request_id);
    (void)snprintf(out->message, sizeof out->message, "%s", err->message);
}

void cli_run_out(tinkc_error *err)
{
    tinkc_error_set(err, TINKC_E_DEADLINE, "the time given with --timeout has run out");
}

int cli_exit_code(const cli_app *app, int code)
{
    if (!app->compat || code == 0 || code == CLI_EXIT_USAGE || code == CLI_EXIT_SIGINT)
        return code;
    return code == CLI_EXIT_DECLINED ? 0 : CLI_EXIT_FAILED;
}

static void print_json(const cli_problem *p, int exit_code)
{
    tkc_arena arena = { 0 };
    tkc_tree *inner = tkc_tree_object(&arena);
    tkc_tree_set_text(inner, "code", p->code);
    tkc_tree_set(inner, "message", cli_json_text(&arena, p->message));
    if (p->hint[0])
        tkc_tree_set(inner, "hint", cli_json_text(&arena, p->hint));
    if (p->status)
        tkc_tree_set_i64(inner, "status", p->status);
    if (p->request_id[0])
        tkc_tree_set_text(inner, "request_id", p->request_id);
    if (p->problems)
        tkc_tree_set(inner, "problems", p->problems);
    tkc_tree_set_bool(inner, "retryable", p->retryable);
    tkc_tree_set_i64(inner, "exit_code", exit_code);
    tkc_tree *outer = tkc_tree_pack(&arena, "{s:o}", "error", inner);
    cli_write_json(stderr, outer, 0);
    fputc('\n', stderr);
    tkc_arena_free(&arena);
}

static void print_text(const cli_app *app, const cli_problem *p)
{
    bool color = app->color && app->stderr_tty;
    char *message = cli_escape(p->message);
    fprintf(stderr, "%serror:%s %s\n", color ? "\033[1;31m" : "", color ? "\033[0m" : "",
            message ? message : p->message);
    free(message);
    if (app->verbose && (p->request_id[0] || p->status))
        fprintf(stderr, "  status %d, request %s\n", p->status,
                p->request_id[0] ? p->request_id : "not known");
    if (app->verbose && p->file)
        fprintf(stderr, "  found at %s:%d\n", p->file, p->line);
    if (p->hint[0])
        fprintf(stderr, "%shint:%s %s\n", color ? "\033[36m" : "", color ? "\033[0m" : "", p->hint);
}

/* A line for a run's log: "train_run:120 [INFO] text", as the cookbook's log files have them. Names of files and what
 * a server says are not ours: they are escaped. */
static void log_line(const cli_app *app, const char *file, int line, const char *level,
                     const char *text)
{
    if (!app->log_file)
        return;
    char *safe = cli_escape(text);
    fprintf(app->log_file, "%.*s:%d [%s] %s\n", (int)strcspn(file, "."), file, line, level,
            safe ? safe : "out of memory");
    (void)fflush(app->log_file);
    free(safe);
}

int cli_report(const cli_app *app, const cli_problem *p)
{
    int code = cli_exit_code(app, p->exit ? p->exit : cli_exit_of(p->code));
    cli_progress_clear();
    log_line(app, p->file ? p->file : "tinkc", p->line, "ERROR", p->message);
    if (app->format == CLI_JSON || app->format == CLI_JSONL)
        print_json(p, code);
    else
        print_text(app, p);
    return code;
}

int cli_fail_at(const cli_app *app, const char *file, int line, const char *code, const char *hint,
                const char *format, ...)
{
    cli_problem p = { .code = code, .file = file, .line = line };
    va_list args;
    va_start(args, format);
    (void)vsnprintf(p.message, sizeof p.message, format, args);
    va_end(args);
    if (hint)
        (void)snprintf(p.hint, sizeof p.hint, "%s", hint);
    return cli_report(app, &p);
}

void cli_bad_lines_begin(cli_bad_lines *b, const cli_app *app)
{
    bool json = app->format == CLI_JSON || app->format == CLI_JSONL;
    *b = (cli_bad_lines){ .app = app, .problems = json ? cli_array(app) : NULL };
}

void cli_bad_line(cli_bad_lines *b, const char *path, size_t line, const char *code,
                  const char *message)
{
    if (b->n++ >= CLI_MOST_BAD_LINES)
        return;
    if (b->problems) {
        tkc_tree_add(b->problems, cli_pack(b->app, "{s:o,s:I,s:s,s:s,s:o}", "path",
                                           cli_json_text(cli_arena(b->app), path), "line",
                                           (int64_t)line, "level", "error", "code", code, "message",
                                           cli_json_text(cli_arena(b->app), message)));
        return;
    }
    char *file = cli_escape(path), *text = cli_escape(message);
    fprintf(stderr, "%s:%zu: %s\n", file ? file : path, line, text ? text : message);
    free(file);
    free(text);
}

int cli_bad_lines_end(cli_bad_lines *b, const char *path, const char *hint)
{
    int bad = 0;
    if (b->n) {
        cli_problem p = { .code = "data_invalid", .problems = b->problems };
        if (b->n > CLI_MOST_BAD_LINES && !b->problems)
            fprintf(stderr, "... and %zu more\n", b->n - CLI_MOST_BAD_LINES);
        (void)snprintf(p.hint, sizeof p.hint, "%s", hint);
        (void)snprintf(p.message, sizeof p.message, "%.300s%s%zu line%s cannot be used",
                       path ? path : "", path ? ": " : "", b->n, b->n == 1 ? "" : "s");
        bad = cli_report(b->app, &p);
    }
    b->problems = NULL;
    return bad;
}

/* "HTTP 400: " says nothing to a user whose engine is on this machine. */
static const char *without_status(const char *message)
{
    const char *digits = strncmp(message, "HTTP ", 5) == 0 ? message + 5 : "";
    size_t n = strspn(digits, "0123456789");
    return n && strncmp(digits + n, ": ", 2) == 0 ? digits + n + 2 : message;
}

int cli_fail_error_at(const cli_app *app, const char *file, int line, const tinkc_error *err,
                      const char *what)
{
    cli_problem p;
    if (cli_stop_signal())
        return cli_stop_exit();
    cli_problem_of(err, &p);
    p.file = file;
    p.line = line;
    const char *text = app->engine || app->store ? without_status(err->message) : err->message;
    if (text != err->message)
        (void)snprintf(p.message, sizeof p.message, "%s", text);
    if (what && what[0])
        (void)snprintf(p.message, sizeof p.message, "%.200s: %.300s", what, text);
    return cli_report(app, &p);
}

void cli_say_at(const cli_app *app, const char *file, int line, const char *level,
                const char *format, ...)
{
    char *text;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    if (n < 0)
        return;
    char *safe = cli_escape(text); /* names of files and what a server says are not ours */
    log_line(app, file, line, level, text);
    if (!app->quiet) {
        cli_progress_clear();
        fprintf(stderr, "%s%s\n", strcmp(level, "WARNING") == 0 ? "warning: " : "",
                safe ? safe : text);
    }
    free(safe);
    free(text);
}
