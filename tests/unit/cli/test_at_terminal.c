/* test_at_terminal.c - the command at a terminal, which is a pseudo-terminal of the test: widths, lines that are cut,
 * questions, secrets, and signals that end it at once. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "cli/data/dataset.h"
#include "cli/output/lineedit.h"
#include "support/cli/held_output.h"
#include "support/patience.h"
#include "cli/output/term.h"
#include "support/test_case.h"

static int ours, theirs; /* the two sides of the terminal */
static int before[3];    /* stdin, stdout and stderr of the test */

static int open_terminal(void **state)
{
    (void)state;
    ours = posix_openpt(O_RDWR | O_NOCTTY);
    if (ours < 0 || grantpt(ours) != 0 || unlockpt(ours) != 0)
        return -1;
    const char *name = ptsname(ours);
    theirs = name ? open(name, O_RDWR | O_NOCTTY) : -1;
    setenv("TERM", "xterm", 1);
    return theirs < 0 ? -1 : 0;
}

static int close_terminal(void **state)
{
    (void)state;
    close(theirs);
    close(ours);
    return 0;
}

/* From here on the standard streams are the terminal. */
static void sit_down(void)
{
    for (int i = 0; i < 3; i++) {
        fflush(i == 2 ? stderr : stdout);
        before[i] = dup(i);
        assert_int_equal(dup2(theirs, i), i);
    }
    clearerr(stdin);
}

static void stand_up(void)
{
    for (int i = 0; i < 3; i++) {
        fflush(i == 2 ? stderr : stdout);
        dup2(before[i], i);
        close(before[i]);
    }
    clearerr(stdin);
}

static void type(const char *text)
{
    assert_int_equal(write(ours, text, strlen(text)), strlen(text));
}

/* What the terminal shows up to `until`; escapes read ^[, line ends without their carriage return. */
static void see(const char *until, char *out, size_t size)
{
    size_t n = 0;
    out[0] = '\0';
    while (!strstr(out, until)) {
        char c;
        struct pollfd in = { .fd = ours, .events = POLLIN };
        assert_int_equal(poll(&in, 1, PATIENCE_MS), 1);
        assert_int_equal(read(ours, &c, 1), 1);
        assert_true(n + 3 < size);
        n += (size_t)snprintf(out + n, 3, c == '\033' ? "^[" : c == '\r' ? "^M" : "%c", c);
    }
}

/* What was shown since the last time. */
static void assert_seen(const char *wanted)
{
    char seen[2000];
    assert_int_equal(write(theirs, "<end>", 5), 5);
    see("<end>", seen, sizeof seen);
    seen[strlen(seen) - 5] = '\0';
    assert_string_equal(seen, wanted);
}

static void set_width(unsigned short columns)
{
    struct winsize size = { .ws_row = 24, .ws_col = columns };
    assert_int_equal(ioctl(ours, TIOCSWINSZ, &size), 0);
}

TEST_WITH(what_it_is, open_terminal, close_terminal)
{
    cli_app app = { 0 }, elsewhere = { 0 };
    setenv("LC_ALL", "C.UTF-8", 1);
    sit_down();
    cli_term_setup(&app);
    stand_up();
    assert_true(app.utf8 && app.stdin_tty && app.stdout_tty && app.stderr_tty && app.draws);
    assert_true(app.color);
    setenv("LC_ALL", "C", 1);
    setenv("TERM", "dumb", 1);
    sit_down();
    cli_term_setup(&elsewhere);
    stand_up();
    assert_true(!elsewhere.utf8 && elsewhere.stderr_tty && !elsewhere.draws && !elsewhere.color);
    unsetenv("LC_ALL");
}

TEST_WITH(the_width_is_that_of_the_terminal_or_of_COLUMNS, open_terminal, close_terminal)
{
    const cli_app at = { .stdout_tty = true }, off = { .stdout_tty = false };
    setenv("COLUMNS", "33", 1);
    set_width(47);
    sit_down();
    size_t width = cli_term_width(&at), other = cli_term_width(&off);
    set_width(0);
    size_t none = cli_term_width(&at);
    stand_up();
    unsetenv("COLUMNS");
    assert_true(width == 47 && other == 33 && none == 33);
}

TEST_WITH(lines_are_cut, open_terminal, close_terminal)
{
    static const struct {
        unsigned short columns;
        const char *shown;
    } rows[] = {
        { 10, "^Mabcdefghi^[[K" }, { 3, "^Mab^[[K" }, { 2, "^Ma^[[K" }, { 1, "^Ma^[[K" }, { 0, "^Mabcdefghijklm^[[K" }
    };
    const cli_app app = { .draws = true, .progress = true };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        set_width(rows[i].columns);
        sit_down();
        cli_status(&app, true, "abcdefghijklm");
        stand_up();
        assert_seen(rows[i].shown);
    }
    sit_down();
    cli_progress_clear();
    cli_progress_clear();
    stand_up();
    assert_seen("^M^[[K");
}

/* Draws a second line only when a tenth of a second has passed, unless it is asked to. */
TEST_WITH(lines_come_slowly, open_terminal, close_terminal)
{
    const cli_app app = { .draws = true, .progress = true };
    set_width(80);
    sit_down();
    int64_t begun = patience_now_ms();
    cli_status(&app, true, "a");
    cli_status(&app, false, "b");
    bool soon = patience_now_ms() - begun < 100;
    cli_status(&app, true, "c");
    cli_progress_clear();
    stand_up();
    if (soon)
        assert_seen("^Ma^[[K^Mc^[[K^M^[[K");
}

TEST_WITH(a_question_is_asked_until_it_is_answered, open_terminal, close_terminal)
{
    static const struct {
        const char *typed;
        int answer;
        const char *seen; /* the echo, then the questions; the input's end shows as nothing */
    } rows[] = {
        { "y\n", 1, "y^M\nSure? [y/N]: " }, { "YES\n", 1, "YES^M\nSure? [y/N]: " },
        { "n\n", 0, "n^M\nSure? [y/N]: " }, { "No\n", 0, "No^M\nSure? [y/N]: " },
        { "\n", 0, "^M\nSure? [y/N]: " },   { "yy\ny\n", 1, "yy^M\ny^M\nSure? [y/N]: Sure? [y/N]: " },
        { "\004", 0, "Sure? [y/N]: ^M\n" },
    };
    cli_app app = { .stdin_tty = true, .stderr_tty = true };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        type(rows[i].typed);
        if (rows[i].typed[0] != '\004') { /* wait for the echo: it comes first */
            char seen[100], echo[100];
            (void)snprintf(echo, sizeof echo, "%.*s", (int)(strstr(rows[i].seen, "Sure?") - rows[i].seen),
                           rows[i].seen);
            see(echo, seen, sizeof seen);
        }
        sit_down();
        int answer = cli_confirm(&app, "Sure?", "--yes");
        stand_up();
        assert_int_equal(answer, rows[i].answer);
        assert_seen(strstr(rows[i].seen, "Sure?"));
    }
}

/* What another process does at the terminal; its exit code. */
static pid_t at_terminal(void (*what)(void))
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        for (int i = 0; i < 3; i++)
            dup2(theirs, i);
        cli_leave_on_signals(); /* as the command does first, whatever other tests have left behind */
        what();
        _exit(99);
    }
    return pid;
}

static int exit_of(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void read_a_secret(void)
{
    char *text = cli_read_secret("Key: ");
    _exit(!text ? 1 : strcmp(text, "tml-x") == 0 ? 0 : 2);
}

/* What is typed is not shown; afterwards it is again. */
TEST_WITH(a_secret_is_not_echoed, open_terminal, close_terminal)
{
    static const struct {
        const char *typed;
        int exit;
    } rows[] = { { "tml-x\n", 0 }, { "tml-x\r", 0 }, { "other\n", 2 }, { "\004", 1 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char seen[100];
        struct termios now;
        pid_t pid = at_terminal(read_a_secret);
        see("Key: ", seen, sizeof seen);
        assert_string_equal(seen, "Key: ");
        assert_int_equal(tcgetattr(theirs, &now), 0);
        assert_false(now.c_lflag & ECHO);
        type(rows[i].typed);
        assert_int_equal(exit_of(pid), rows[i].exit);
        assert_int_equal(tcgetattr(theirs, &now), 0);
        assert_true(now.c_lflag & ECHO);
        assert_seen("^M\n");
    }
}

static void ask(void)
{
    cli_app app = { .stdin_tty = true, .stderr_tty = true };
    _exit(-cli_confirm(&app, "Sure?", "--yes"));
}

/* A signal at a question or a secret ends it as the end of input does; the terminal stays usable. */
TEST_WITH(a_signal_ends_a_question_as_the_end_of_input_does, open_terminal, close_terminal)
{
    static const struct {
        void (*what)(void);
        const char *prompt;
        int number, exit;
    } rows[] = { { read_a_secret, "Key: ", SIGINT, 1 },
                 { ask, "Sure? [y/N]: ", SIGINT, 130 },
                 { ask, "Sure? [y/N]: ", SIGTERM, 143 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char seen[100];
        struct termios now;
        pid_t pid = at_terminal(rows[i].what);
        see(rows[i].prompt, seen, sizeof seen);
        kill(pid, rows[i].number);
        assert_int_equal(exit_of(pid), rows[i].exit);
        assert_int_equal(tcgetattr(theirs, &now), 0);
        assert_true(now.c_lflag & ECHO);
        assert_seen("^M\n");
    }
}

/* ---- lines without an editor ---- */

static void read_plain_lines(void)
{
    int how = 9;
    cli_catch_signals();
    for (int i = 0; i < 4; i++) {
        char *line = cli_edit_line("> ", &how);
        printf("(%s %d)\n", line ? line : "none", how);
        fflush(stdout);
        free(line);
        cli_forget_signal();
    }
    _exit(0);
}

/* The end of input ends a line, not the input; a signal ends the wait. */
TEST_WITH(the_end_of_input_ends_a_line_and_a_signal_the_wait, open_terminal, close_terminal)
{
    char seen[200];
    pid_t pid = at_terminal(read_plain_lines);
    see("> ", seen, sizeof seen);
    type("a b\n");
    see("(a b 0)^M\n", seen, sizeof seen);
    assert_string_equal(seen, "a b^M\n(a b 0)^M\n");
    see("> ", seen, sizeof seen);
    assert_string_equal(seen, "> ");
    type("\004");
    see("(none 0)^M\n", seen, sizeof seen);
    see("> ", seen, sizeof seen);
    kill(pid, SIGINT);
    see(")^M\n", seen, sizeof seen);
    assert_string_equal(seen, "(none 2)^M\n");
    see("> ", seen, sizeof seen);
    type("c\n");
    see("(c 0)^M\n", seen, sizeof seen);
    assert_int_equal(exit_of(pid), 0);
}

/* The standard input of the test is this text, from a pipe. */
static void feed(const char *text)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], text, strlen(text)), strlen(text));
    close(ends[1]);
    before[0] = dup(0);
    dup2(ends[0], 0);
    close(ends[0]);
    clearerr(stdin);
}

static void starve(void)
{
    dup2(before[0], 0);
    close(before[0]);
    clearerr(stdin);
}

TEST(without_a_terminal)
{
    cli_app app = { 0 };
    size_t len = 9;
    int bad = 9;
    feed("abc\r\n");
    hold_output();
    char *secret = cli_read_secret("Key: "), *shown = release_output();
    starve();
    assert_string_equal(secret, "abc");
    assert_string_equal(shown, "");
    free(secret);
    free(shown);
    feed("");
    assert_null(cli_read_secret("Key: "));
    starve();
    feed("one\ntwo");
    char *all = cli_read_all(&app, "-", &len, &bad);
    starve();
    assert_true(len == 7 && bad == 0);
    assert_string_equal(all, "one\ntwo");
    free(all);
}

/* "-" is the standard input, also where a file has this name. */
TEST(data_from_a_pipe)
{
    char place[] = "/tmp/tinkc-test-XXXXXX", *start = getcwd(NULL, 0);
    cli_app app = { 0 };
    cli_data_file f;
    assert_non_null(mkdtemp(place));
    assert_int_equal(chdir(place), 0);
    FILE *other = fopen("-", "w");
    assert_non_null(other);
    fputs("{\"of\": \"the file\"}\n", other);
    assert_int_equal(fclose(other), 0);
    feed("{\"of\": \"the pipe\"}\n");
    int piped = cli_data_open(&app, "-", &f);
    starve();
    assert_true(piped == 0 && !f.mapped && f.len == 19);
    assert_string_equal(f.text, "{\"of\": \"the pipe\"}\n");
    assert_string_equal(f.path, "-");
    cli_data_close(&f);
    assert_int_equal(cli_data_open(&app, "./-", &f), 0);
    assert_true(f.mapped && f.len == 19 && memcmp(f.text, "{\"of\": \"the file\"}\n", 19) == 0);
    cli_data_close(&f);
    assert_true(!f.text && !f.path && !f.mapped);
    assert_int_equal(truncate("./-", 0), 0);
    assert_int_equal(cli_data_open(&app, "./-", &f), 0); /* nothing to map */
    assert_true(!f.mapped && f.len == 0 && f.text[0] == '\0');
    cli_data_close(&f);
    assert_int_equal(unlink("./-"), 0);
    assert_int_equal(chdir(start), 0);
    assert_int_equal(rmdir(place), 0);
    free(start);
}

/* Reads a file of so many bytes whole, with a NUL behind. */
static void expect_whole(size_t size)
{
    char path[] = "/tmp/tinkc-test-XXXXXX";
    cli_app app = { 0 };
    size_t len = 9;
    int bad = 9, fd = mkstemp(path);
    assert_true(fd >= 0);
    char *text = malloc(size + 1);
    for (size_t i = 0; i < size; i++)
        text[i] = (char)('a' + i * 7 / 5 % 26);
    assert_int_equal(write(fd, text, size), size);
    close(fd);
    char *got = cli_read_all(&app, path, &len, &bad);
    unlink(path);
    assert_non_null(got);
    assert_true(bad == 0 && len == size && got[size] == '\0');
    assert_memory_equal(got, text, size);
    free(text);
    free(got);
}

TEST(files_are_read_whole_or_not_at_all)
{
    static const size_t sizes[] = { 0, 1, 65534, 65535, 65536, 131071, 200000 };
    cli_app app = { 0 };
    size_t len;
    int bad = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        expect_whole(sizes[i]);
    hold_output();
    assert_null(cli_read_all(&app, "/nowhere/at/all", &len, &bad));
    assert_int_equal(bad, CLI_EXIT_NOT_FOUND);
    assert_null(cli_read_all(&app, "/", &len, &bad)); /* opens, and cannot be read */
    char *shown = release_output();
    assert_int_equal(bad, CLI_EXIT_FAILED);
    assert_string_equal(shown, "error: /nowhere/at/all: No such file or directory\n"
                               "error: /: Is a directory\n");
    free(shown);
}

static int to_raise;
static bool with_line;

static void leave(void)
{
    const cli_app app = { .draws = true, .progress = true };
    cli_leave_on_signals();
    if (with_line)
        cli_status(&app, true, "at work");
    raise(to_raise);
}

/* Before anything is under way a signal ends the command; a line on the screen is wiped. */
TEST_WITH(leaving_at_once, open_terminal, close_terminal)
{
    set_width(80);
    to_raise = SIGINT;
    assert_int_equal(exit_of(at_terminal(leave)), 130);
    assert_seen("");
    to_raise = SIGTERM;
    with_line = true;
    assert_int_equal(exit_of(at_terminal(leave)), 143);
    assert_seen("^Mat work^[[K^M^[[K");
}
