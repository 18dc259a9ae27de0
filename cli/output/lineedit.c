/* lineedit.c - libedit, opened with dlopen so that only chat pays. It reads from the terminal and
 * writes to stderr: stdout is data. Must not: be used by more than one thread.
 */
#include "cli/output/lineedit.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "base/platform.h"
#include "cli/main/app.h"
#include "cli/main/files.h"
#include "cli/output/term.h"

/* ---- libedit's own names, as <histedit.h> has them ---- */

typedef struct editline editline;
typedef struct history history;
typedef struct event {
    int number;
    const char *text;
} event;
typedef struct line_info {
    const char *buffer, *cursor, *last;
} line_info;
enum {
    EL_PROMPT = 0,
    EL_EDITOR = 2,
    EL_SIGNAL = 3,
    EL_BIND = 4,
    EL_ADDFN = 9,
    EL_HIST = 10,
    EL_GETCFN = 13,
    EL_PREP_TERM = 16,
    EL_REFRESH = 20
};
enum { H_SETSIZE = 1, H_ENTER = 10, H_LOAD = 17, H_SAVE = 18 };
enum { CC_REFRESH = 4 };
enum { HISTORY_LINES = 1000, PASTE_MOST = 1 << 20, LINE_MOST = 1 << 30 };

static struct {
    editline *(*init)(const char *, FILE *, FILE *, FILE *);
    void (*end)(editline *);
    int (*set)(editline *, int, ...);
    const char *(*gets)(editline *, int *);
    const line_info *(*line)(editline *);
    int (*wgetc)(editline *, wchar_t *);
    int (*winsertstr)(editline *, const wchar_t *);
    void (*resize)(editline *);
    history *(*history_init)(void);
    void (*history_end)(history *);
    int (*history)(history *, event *, int, ...);
} lib;
static struct {
    editline *el; /* NULL = plain lines */
    history *past;
    char *file;
    const char *prompt;
    int ahead;   /* bytes that were typed before the line was asked for; -1 = not counted yet */
    bool pastes; /* the terminal marks what is pasted */
} edit;

static bool load(void *library, const char *name, void *slot)
{
    void *found = dlsym(library, name);
    memcpy(slot, &found, sizeof found);
    return found != NULL;
}

static bool open_library(void)
{
    void *library = tkc_library_open("libedit.so.2");
    return library && load(library, "el_init", (void *)&lib.init) &&
           load(library, "el_end", (void *)&lib.end) && load(library, "el_set", (void *)&lib.set) &&
           load(library, "el_gets", (void *)&lib.gets) &&
           load(library, "el_line", (void *)&lib.line) &&
           load(library, "el_wgetc", (void *)&lib.wgetc) &&
           load(library, "el_winsertstr", (void *)&lib.winsertstr) &&
           load(library, "el_resize", (void *)&lib.resize) &&
           load(library, "history_init", (void *)&lib.history_init) &&
           load(library, "history_end", (void *)&lib.history_end) &&
           load(library, "history", (void *)&lib.history);
}

/* ---- keys ---- */

/* The terminal has another size, or is ours again. */
static volatile sig_atomic_t screen_changed;

static void on_screen_changed(int number)
{
    (void)number;
    screen_changed = true;
}

static void watch_screen(void (*handler)(int))
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
    sigemptyset(&action.sa_mask);
    sigaction(SIGWINCH, &action, NULL);
    sigaction(SIGCONT, &action, NULL);
}

static void redraw(editline *el)
{
    screen_changed = false;
    lib.set(el, EL_PREP_TERM, 1);
    lib.resize(el);
    lib.set(el, EL_REFRESH);
}

/* A Ctrl-D that was typed during an answer, when the terminal read lines: it arrives as a NUL. */
static char as_typed(char byte)
{
    enum { CTRL_D = 4 };
    if (edit.ahead <= 0)
        return byte;
    edit.ahead--;
    return byte ? byte : CTRL_D;
}

/* The next character, in place of libedit's own function, which sleeps on when a signal came just
 * before, and takes a key that was typed after the signal for one of the line that it ended. */
static int read_key(editline *el, wchar_t *out)
{
    mbstate_t state = { 0 };
    if (edit.ahead < 0 && ioctl(STDIN_FILENO, FIONREAD, &edit.ahead) != 0)
        edit.ahead = 0;
    for (;;) {
        char byte;
        int met = cli_wait_input();
        if (met == CLI_INPUT_STOPPED)
            return -1;
        if (screen_changed)
            redraw(el);
        if (met != CLI_INPUT_READY)
            continue;
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0)
            return (int)n;
        byte = as_typed(byte);
        size_t len = mbrtowc(out, &byte, 1, &state);
        if (len <= 1)
            return 1;
        if (len == (size_t)-1)
            state = (mbstate_t){ 0 }; /* part of no character: left out */
    }
}

/* ---- what is pasted ---- */

static const wchar_t paste_end[] = L"\033[201~";

/* Bound to the mark that begins a paste: everything up to the mark that ends it is text, line ends
 * too, so that a pasted page is one message. */
static unsigned char take_paste(editline *el, int key)
{
    enum { END = sizeof paste_end / sizeof *paste_end - 1 };
    (void)key;
    wchar_t c, *text = NULL;
    size_t n = 0, cap = 0;
    while (n < PASTE_MOST && lib.wgetc(el, &c) == 1) {
        if (n + 2 > cap) {
            cap = cap ? cap * 2 : 256;
            wchar_t *grown = realloc(text, cap * sizeof *grown);
            if (!grown)
                break;
            text = grown;
        }
        text[n++] = c == L'\r' ? L'\n' : c;
        if (n >= END && wmemcmp(text + n - END, paste_end, END) == 0) {
            n -= END;
            break;
        }
    }
    while (n && text[n - 1] == L'\n') /* it waits for Enter */
        n--;
    if (n) {
        text[n] = L'\0';
        (void)lib.winsertstr(el, text);
    }
    free(text);
    return CC_REFRESH;
}

static void mark_pastes(bool on)
{
    if (!edit.pastes)
        return;
    fputs(on ? "\033[?2004h" : "\033[?2004l", stderr);
    fflush(stderr);
}

/* ---- begin and end ---- */

static char *show_prompt(editline *el)
{
    (void)el;
    return (char *)(uintptr_t)edit.prompt;
}

void cli_edit_begin(const char *history_file)
{
    event e;
    const char *term = getenv("TERM");
    if (!isatty(STDIN_FILENO) || !open_library())
        return;
    edit.el = lib.init("tinkc", stdin, stderr, stderr);
    if (!edit.el)
        return;
    edit.pastes = isatty(STDERR_FILENO) && term && *term && !cli_term_is_dumb();
    lib.set(edit.el, EL_PROMPT, show_prompt);
    lib.set(edit.el, EL_EDITOR, "emacs");
    lib.set(edit.el, EL_SIGNAL, 1);
    lib.set(edit.el, EL_GETCFN, read_key);
    watch_screen(on_screen_changed);
    lib.set(edit.el, EL_ADDFN, "tinkc-paste", "take what is pasted as it is", take_paste);
    lib.set(edit.el, EL_BIND, "\\e[200~", "tinkc-paste", NULL);
    edit.past = lib.history_init();
    if (!edit.past)
        return;
    lib.history(edit.past, &e, H_SETSIZE, HISTORY_LINES);
    lib.set(edit.el, EL_HIST, lib.history, edit.past);
    edit.file = history_file ? strdup(history_file) : NULL;
    if (edit.file)
        lib.history(edit.past, &e, H_LOAD, edit.file);
}

void cli_edit_end(void)
{
    event e;
    if (edit.file && cli_make_parents(edit.file, 0700)) {
        lib.history(edit.past, &e, H_SAVE, edit.file);
        (void)chmod(edit.file, 0600);
    }
    if (edit.past)
        lib.history_end(edit.past);
    if (edit.el) {
        lib.end(edit.el);
        watch_screen(SIG_DFL);
    }
    free(edit.file);
    memset(&edit, 0, sizeof edit);
}

/* ---- one line ---- */

/* The next byte of a pipe, a file or a plain terminal; -1 at the end or after a signal, also one that
 * comes just before the wait. */
static int next_byte(void)
{
    static struct {
        char bytes[4096];
        ssize_t at, n;
    } in;
    while (in.at == in.n) {
        if (!cli_input_comes())
            return -1;
        in.at = 0;
        in.n = read(STDIN_FILENO, in.bytes, sizeof in.bytes);
        if (in.n < 0 && (errno == EINTR || errno == EAGAIN))
            in.n = 0;
        else if (in.n <= 0)
            return in.n = 0, -1;
    }
    return (unsigned char)in.bytes[in.at++];
}

/* A NUL must not end the line early, and a line has a longest length: either is marked by a byte that no
 * text has, so that the line is refused. */
static char *plain_line(const char *prompt)
{
    enum { NO_TEXT = 0xff };
    char *line = NULL;
    size_t size;
    if (isatty(STDIN_FILENO)) {
        fputs(prompt, stderr);
        fflush(stderr);
    }
    FILE *f = open_memstream(&line, &size);
    if (!f)
        return NULL;
    long n = 0;
    int c = next_byte();
    for (; n < LINE_MOST && c >= 0 && c != '\n'; n++, c = next_byte())
        putc(c ? c : NO_TEXT, f);
    if (n == LINE_MOST)
        putc(NO_TEXT, f);
    if (fclose(f) != 0 || (c < 0 && n == 0))
        return free(line), NULL;
    if (n && line[n - 1] == '\r')
        line[n - 1] = '\0';
    return line;
}

static char *edited_line(const char *prompt)
{
    event e;
    int n = 0;
    edit.prompt = prompt;
    edit.ahead = -1;
    mark_pastes(true);
    const char *got = lib.gets(edit.el, &n);
    mark_pastes(false);
    if (!got || n <= 0)
        return NULL;
    size_t len = strlen(got);
    char *line = strndup(got, len - (len && got[len - 1] == '\n'));
    if (line && line[0] && edit.past)
        lib.history(edit.past, &e, H_ENTER, line);
    return line;
}

/* Whether something stood on the line that a signal ended. */
static bool had_text(void)
{
    const line_info *now = edit.el ? lib.line(edit.el) : NULL;
    return now && now->last > now->buffer;
}

char *cli_edit_line(const char *prompt, int *interrupted)
{
    *interrupted = CLI_EDIT_NOT;
    if (cli_stop_signal()) { /* it came while something was being said */
        *interrupted = CLI_EDIT_EMPTY;
        return NULL;
    }
    char *line = edit.el ? edited_line(prompt) : plain_line(prompt);
    if (cli_stop_signal()) {
        *interrupted = had_text() ? CLI_EDIT_CLEARED : CLI_EDIT_EMPTY;
        free(line);
        return NULL;
    }
    return line;
}
