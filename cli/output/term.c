/* term.c - the terminal: width, progress, prompts, signals. */
#include "cli/output/term.h"

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/main/config_file.h"
#include "cli/output/text.h"

/* The two things a signal handler may touch. */
static volatile sig_atomic_t stop_signal, stop_count;
/* A status line is on the screen and must be wiped before anything else is written; a handler reads
 * it. */
static volatile sig_atomic_t line_shown;
static int64_t line_drawn_ms;

/* ---- signals ---- */

static void on_signal(int number)
{
    stop_signal = number;
    stop_count++;
}

/* Nothing is under way that must be ended well. */
static void leave_at_once(int number)
{
    static const char wipe[] = "\r\033[K";
    if (line_shown)
        (void)!write(STDERR_FILENO, wipe, sizeof wipe - 1);
    _exit(number == SIGTERM ? CLI_EXIT_SIGTERM : CLI_EXIT_SIGINT);
}

static void handle_with(void (*handler)(int))
{
    struct sigaction action = { .sa_handler = handler };
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

void cli_leave_on_signals(void)
{
    handle_with(leave_at_once);
}

void cli_catch_signals(void)
{
    handle_with(on_signal);
}

int cli_stop_signal(void)
{
    return stop_signal;
}
int cli_stop_count(void)
{
    return stop_count;
}
void cli_forget_signal(void)
{
    stop_signal = 0;
}
int cli_stop_exit(void)
{
    return stop_signal == SIGTERM ? CLI_EXIT_SIGTERM : CLI_EXIT_SIGINT;
}

/* ---- streams ---- */

bool cli_term_is_dumb(void)
{
    const char *term = getenv("TERM");
    return !term || !*term || strcmp(term, "dumb") == 0;
}

static bool want_color(const cli_app *app)
{
    const char *when =
        cli_given(app, "color") ? cli_text(app, "color") : cli_config_get(app, "color", NULL);
    const char *no = getenv("NO_COLOR"), *force = getenv("CLICOLOR_FORCE"),
               *force2 = getenv("FORCE_COLOR");
    if (when && (strcmp(when, "always") == 0 || strcmp(when, "never") == 0))
        return when[0] == 'a';
    if (no && *no)
        return false;
    if ((force && *force && strcmp(force, "0") != 0) || (force2 && *force2))
        return true;
    return app->stdout_tty && !cli_term_is_dumb();
}

void cli_term_setup(cli_app *app)
{
    setlocale(LC_CTYPE, "");
    app->utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    app->stdin_tty = isatty(STDIN_FILENO);
    app->stdout_tty = isatty(STDOUT_FILENO);
    app->stderr_tty = isatty(STDERR_FILENO);
    app->draws = app->stderr_tty && !cli_term_is_dumb();
    cli_term_color(app);
}

void cli_term_color(cli_app *app)
{
    app->color = want_color(app);
}

size_t cli_term_width(const cli_app *app)
{
    struct winsize size;
    const char *columns = getenv("COLUMNS");
    int64_t n;
    if (app->stdout_tty && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col)
        return size.ws_col;
    return columns && cli_parse_int(columns, &n) && n > 0 ? (size_t)n : 0;
}

static size_t stderr_width(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}

/* ---- progress ---- */

void cli_progress_clear(void)
{
    if (!line_shown)
        return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    line_shown = false;
}

static void draw_line(const char *text)
{
    size_t width = stderr_width();
    char *safe = cli_escape(text); /* labels may be names of files, which are not ours */
    const char *shown = safe ? safe : text;
    fprintf(stderr, "\r%.*s\033[K", (int)cli_cut(shown, width > 1 ? width - 1 : 1), shown);
    fflush(stderr);
    free(safe);
    line_shown = true;
    line_drawn_ms = cli_now_ms();
}

void cli_status(const cli_app *app, bool now, const char *format, ...)
{
    char text[512];
    if (app->quiet || !app->progress || !app->draws)
        return;
    if (!now && cli_now_ms() - line_drawn_ms < 100)
        return;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    draw_line(text);
}

void cli_progress_begin(cli_progress *p, const cli_app *app, const char *label, int64_t total,
                        bool bytes)
{
    int64_t now = cli_now_ms();
    *p = (cli_progress){ app, label, now, 0, now, 0, total, bytes };
}

static void describe_amount(const cli_progress *p, char out[CLI_SHORT_TEXT * 2])
{
    char done[CLI_SHORT_TEXT], total[CLI_SHORT_TEXT];
    if (p->bytes) {
        cli_format_size(p->done, done);
        cli_format_size(p->total, total);
    } else {
        cli_format_count(p->done, done);
        cli_format_count(p->total, total);
    }
    if (p->total < 0)
        (void)snprintf(out, CLI_SHORT_TEXT * 2, "%s", done);
    else
        (void)snprintf(out, CLI_SHORT_TEXT * 2, "%s/%s", done, total);
}

static void draw_bar(const cli_progress *p, const char *text)
{
    enum { CELLS = 28 };
    char bar[CELLS * 3 + 1] = "", amount[CLI_SHORT_TEXT * 2], left[CLI_SHORT_TEXT] = "", line[512];
    double seconds = (double)(cli_now_ms() - p->begun_ms) / 1000;
    describe_amount(p, amount);
    if (p->total > 0) {
        double part = (double)p->done / (double)p->total;
        size_t full = (size_t)(part * (double)CELLS), at = 0;
        for (size_t i = 0; i < CELLS; i++)
            at += (size_t)snprintf(bar + at, 4, "%s",
                                   p->app->utf8 ? (i < full ? "━" : "─") : (i < full ? "#" : "-"));
        if (part > 0 && part < 1)
            cli_format_duration(seconds / part - seconds, left);
    }
    (void)snprintf(line, sizeof line, "%s %s %s %s%s %s", p->label, bar, amount,
                   left[0] ? "ETA " : "", left, text ? text : "");
    draw_line(line);
}

void cli_progress_step(cli_progress *p, int64_t done, int64_t total, const char *text)
{
    int64_t now = cli_now_ms();
    p->done = done;
    p->total = total;
    if (p->app->quiet || !p->app->progress)
        return;
    if (p->app->draws) {
        if (now - p->drawn_ms >= 100 || (total >= 0 && done == total)) {
            draw_bar(p, text);
            p->drawn_ms = now;
        }
    } else if (now - p->said_ms >= 30000) {
        char amount[CLI_SHORT_TEXT * 2];
        describe_amount(p, amount);
        fprintf(stderr, "%s: %s %s\n", p->label, amount, text ? text : "");
        p->said_ms = now;
    }
}

void cli_progress_end(cli_progress *p)
{
    (void)p;
    cli_progress_clear();
}

/* ---- prompts ---- */

int cli_wait_input(void)
{
    fd_set in;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    FD_ZERO(&in);
    FD_SET(STDIN_FILENO, &in);
    bool ready =
        !stop_signal && pselect(STDIN_FILENO + 1, &in, NULL, NULL, NULL, &before) > 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return stop_signal ? CLI_INPUT_STOPPED : ready ? CLI_INPUT_READY : CLI_INPUT_DISTURBED;
}

bool cli_input_comes(void)
{
    int met;
    do
        met = cli_wait_input();
    while (met == CLI_INPUT_DISTURBED);
    return met == CLI_INPUT_READY;
}

char *cli_ask_line(char *line, size_t size, const char *prompt)
{
    cli_catch_signals();
    cli_progress_clear();
    fputs(prompt, stderr);
    fflush(stderr);
    if (!cli_input_comes() || !fgets(line, (int)size, stdin)) {
        fputc('\n', stderr);
        return NULL;
    }
    line[strcspn(line, "\r\n")] = '\0';
    return line;
}

int cli_confirm(cli_app *app, const char *question, const char *flag)
{
    if (app->yes)
        return 1;
    if (!app->stdin_tty || !app->stderr_tty) {
        char hint[128];
        (void)snprintf(hint, sizeof hint, "to answer in advance, add %s", flag);
        return -cli_fail(app, "usage", hint, "this needs an answer, and there is no terminal");
    }
    for (;;) {
        char line[64], prompt[256];
        (void)snprintf(prompt, sizeof prompt, "%s [y/N]: ", question);
        if (!cli_ask_line(line, sizeof line, prompt))
            return cli_stop_signal() ? -cli_stop_exit() : 0;
        if (!line[0] || strcasecmp(line, "n") == 0 || strcasecmp(line, "no") == 0)
            return 0;
        if (strcasecmp(line, "y") == 0 || strcasecmp(line, "yes") == 0)
            return 1;
    }
}

char *cli_read_secret(const char *prompt)
{
    struct termios before, quiet;
    bool tty = tcgetattr(STDIN_FILENO, &before) == 0;
    char *line = NULL;
    size_t cap = 0;
    cli_catch_signals(); /* an interrupt must not leave the terminal without echo */
    if (tty) {
        /* What is typed once the prompt is there must not be seen, nor lost. */
        quiet = before;
        quiet.c_lflag &= (tcflag_t)~ECHO;
        tcsetattr(STDIN_FILENO, TCSAFLUSH, &quiet);
        fputs(prompt, stderr);
        fflush(stderr);
    }
    ssize_t n = !tty || cli_input_comes() ? getline(&line, &cap, stdin) : -1;
    if (tty) {
        tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
        fputc('\n', stderr);
    }
    if (n < 0) {
        free(line);
        return NULL;
    }
    line[strcspn(line, "\r\n")] = '\0';
    return line;
}

enum { MOST_READ = 1 << 30 };

char *cli_read_all(cli_app *app, const char *path, size_t *len, int *exit_code)
{
    bool standard = strcmp(path, "-") == 0;
    FILE *f = standard ? stdin : fopen(path, "re");
    char *text = NULL;
    size_t n = 0, cap = 0;
    *exit_code = 0;
    if (!f) {
        *exit_code = cli_fail(app, errno == ENOENT ? "not_found" : "local_io", NULL, "%s: %s", path,
                              tkc_errno_text(errno));
        return NULL;
    }
    if (standard && app->stdin_tty)
        cli_note(app, "reading standard input; end it with Ctrl-D");
    for (;;) {
        if (cap - n < 2) {
            cap = cap ? cap * 2 : 65536;
            char *grown = realloc(text, cap);
            if (!grown) {
                *exit_code = cli_fail(app, "internal", NULL, "out of memory");
                break;
            }
            text = grown;
        }
        size_t got = fread(text + n, 1, cap - n - 1, f);
        n += got;
        if (n > MOST_READ) { /* a device without end, for one */
            *exit_code = cli_fail(app, "data_invalid", NULL, "%s: longer than 1 GiB", path);
            break;
        }
        if (got == 0 || feof(f)) /* at a terminal it would take two Ctrl-D */
            break;
    }
    if (!*exit_code && ferror(f))
        *exit_code = cli_fail(app, "local_io", NULL, "%s: %s", path, tkc_errno_text(errno));
    if (!standard)
        fclose(f);
    if (*exit_code) {
        free(text);
        return NULL;
    }
    text[n] = '\0';
    *len = n;
    return text;
}
