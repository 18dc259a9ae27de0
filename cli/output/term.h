/* term.h - the terminal: width, progress, prompts, signals. Progress and prompts go to stderr. */
#ifndef CLI_TERM_H
#define CLI_TERM_H

#include "cli/main/app.h"

/* Fills in the app's knowledge of its streams. */
void cli_term_setup(cli_app *);
/* Settles colours: the option, else the configuration, else the environment and the terminal. */
void cli_term_color(cli_app *);
/* The terminal says that it knows no escapes, or nothing at all. */
bool cli_term_is_dumb(void);
/* Columns of the terminal, else $COLUMNS, else 0 = no limit. */
size_t cli_term_width(const cli_app *);

/* A bar or a status line on stderr: at most 10 redraws a second on a terminal; elsewhere one line
 * at the start and one every 30 s. total < 0 = not known. `text` (may be NULL) stands behind. */
typedef struct cli_progress {
    const cli_app *app;
    const char *label;
    int64_t begun_ms, drawn_ms, said_ms;
    int64_t done, total;
    bool bytes; /* done and total are sizes */
} cli_progress;
void cli_progress_begin(cli_progress *, const cli_app *, const char *label, int64_t total,
                        bool bytes);
void cli_progress_step(cli_progress *, int64_t done, int64_t total, const char *text);
void cli_progress_end(cli_progress *);
/* Wipes whatever status line is on the screen. */
void cli_progress_clear(void);
/* One line in the place of the bar. Drawn at most 10 times a second unless `now`. */
void cli_status(const cli_app *, bool now, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Waits until stdin has something or a signal comes, also one that comes just before the wait. */
enum {
    CLI_INPUT_READY = 1, /* or at its end */
    CLI_INPUT_STOPPED,   /* cli_stop_signal */
    CLI_INPUT_DISTURBED  /* by another signal, or an error: look again */
};
int cli_wait_input(void);
/* The same, whatever else disturbs. False after a stop signal. */
bool cli_input_comes(void);
/* Asks on stderr and reads a line without its end. NULL at the end of input or after a signal. */
char *cli_ask_line(char *line, size_t size, const char *prompt);
/* Asks [y/N]. 1 yes, 0 no; an exit code below 0 (negated) if it cannot ask: no terminal, and the
 * problem names `flag` ("--yes"). */
int cli_confirm(cli_app *, const char *question, const char *flag);
/* Reads a line without echo. Yours; NULL at the end of input. */
char *cli_read_secret(const char *prompt);
/* All of a stream or file ("-" = stdin); a NUL is put behind. Yours; NULL after reporting in
 * *exit_code. */
char *cli_read_all(cli_app *, const char *path, size_t *len, int *exit_code);

#endif
