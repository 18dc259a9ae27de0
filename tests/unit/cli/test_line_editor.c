/* test_line_editor.c - lines that are typed at a terminal: keys, history, what is pasted, signals; and lines of a pipe. */
#include <dlfcn.h>
#include <fcntl.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "cli/output/lineedit.h"
#include "support/patience.h"
#include "cli/output/term.h"
#include "support/test_case.h"

#define PASTE(text) "\033[200~" text "\033[201~"

static int ours = -1, report; /* our side of the terminal; what the other process says of its lines */
static pid_t other;
static char past[] = "/tmp/tinkc-history-XXXXXX";

/* Reads lines until the end of input and reports each: its text, or how it was interrupted. */
static void read_lines(int to, const char *history)
{
    FILE *out = fdopen(to, "w");
    int how = 0;
    setlocale(LC_ALL, "C.UTF-8");
    cli_catch_signals();
    cli_edit_begin(history);
    for (char *line; (line = cli_edit_line("> ", &how)) || how != CLI_EDIT_NOT;) {
        fprintf(out, "%s\n", line ? line : how == CLI_EDIT_CLEARED ? "(cleared)" : "(empty)");
        fflush(out);
        free(line);
        cli_forget_signal();
    }
    cli_edit_end();
    fprintf(out, "(end)\n");
    fclose(out);
    _exit(0);
}

static void begin(const char *history, const char *term)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    ours = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(ours >= 0 && grantpt(ours) == 0 && unlockpt(ours) == 0);
    struct winsize size = { .ws_row = 24, .ws_col = 80 };
    assert_int_equal(ioctl(ours, TIOCSWINSZ, &size), 0);
    fflush(NULL);
    other = fork();
    assert_true(other >= 0);
    if (other == 0) {
        close(ends[0]);
        setenv("TERM", term, 1);
        setsid(); /* the terminal is its own, and what libedit sends to its group is not for the test */
        int theirs = open(ptsname(ours), O_RDWR);
        for (int i = 0; i < 3; i++)
            dup2(theirs, i);
        read_lines(ends[1], history);
    }
    close(ends[1]);
    report = ends[0];
}

static char next_byte(int from)
{
    char c;
    struct pollfd in = { .fd = from, .events = POLLIN };
    assert_int_equal(poll(&in, 1, PATIENCE_MS), 1);
    assert_int_equal(read(from, &c, 1), 1);
    return c;
}

/* Waits until the terminal shows this. */
static void see(const char *text)
{
    char seen[4000] = "";
    for (size_t n = 0; !strstr(seen, text); n++) {
        assert_true(n + 1 < sizeof seen);
        seen[n] = next_byte(ours);
    }
}

/* Waits until the terminal shows this, and it does not show that before. */
static void see_alone(const char *text, const char *not_this)
{
    char seen[4000] = "";
    for (size_t n = 0; !strstr(seen, text); n++) {
        assert_true(n + 1 < sizeof seen);
        seen[n] = next_byte(ours);
    }
    assert_null(strstr(seen, not_this));
}

static void type(const char *text)
{
    assert_int_equal(write(ours, text, strlen(text)), strlen(text));
}

static void assert_reported(const char *wanted)
{
    char line[4000] = "";
    for (size_t n = 0; n + 1 < sizeof line && (line[n] = next_byte(report)) != '\n'; n++)
        ;
    line[strcspn(line, "\n")] = '\0';
    assert_string_equal(line, wanted);
}

/* libedit shows the prompt before it reads keys; until then the terminal collects lines, and Ctrl-C drops them. */
static bool reads_keys(void)
{
    struct termios now;
    return tcgetattr(ours, &now) == 0 && !(now.c_lflag & ICANON);
}

/* The next line is asked for: behind the mark that it begins with, as a line that a signal ends may be drawn again. */
static void see_prompt(void)
{
    see("\033[?2004h");
    see("> ");
    wait_until(reads_keys());
    assert_true(reads_keys());
}

/* Types a line where the prompt is, and expects it. */
static void say(const char *typed, const char *wanted)
{
    see_prompt();
    type(typed);
    assert_reported(wanted);
}

static void end(void)
{
    int status = 0;
    see_prompt();
    type("\004");
    assert_reported("(end)");
    while (other && waitpid(other, &status, WNOHANG) == 0) { /* it may still have something to show */
        char c;
        struct pollfd in = { .fd = ours, .events = POLLIN };
        if (poll(&in, 1, 10) == 1 && (in.revents & POLLIN))
            (void)!read(ours, &c, 1);
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(ours);
    close(report);
}

static bool no_editor(void)
{
    void *library = dlopen("libedit.so.2", RTLD_NOW | RTLD_LOCAL);
    return !library;
}

TEST(keys_edit_the_line)
{
    if (no_editor())
        skip();
    begin(NULL, "xterm");
    say("hello\n", "hello");
    say("\n", "");
    say("bc\001a\n", "abc");  /* to the beginning */
    say("abX\177c\n", "abc"); /* backspace */
    say("\xc3\xa9\xe2\x82\xac\n", "\xc3\xa9\xe2\x82\xac");
    say("a\xff"
        "b\n",
        "ab"); /* a byte of no character is left out */
    say("a\xc3"
        "bc\n",
        "ac");                        /* nor one that is not whole, with what came instead */
    say("\020\020\020\020\n", "abc"); /* four lines back */
    say("a b \xe6\x97\xa5\n", "a b \xe6\x97\xa5");
    end();
}

TEST(what_is_pasted)
{
    if (no_editor())
        skip();
    begin(NULL, "xterm");
    say(PASTE("one\rtwo\nthree") "\n", "one");
    assert_reported("two");
    assert_reported("three");
    say("a" PASTE("b") "c\n", "abc");
    say(PASTE("x\r\r\n") "y\n", "xy"); /* ends at its end, and waits for Enter */
    say(PASTE("") "z\n", "z");
    say(PASTE("\033[201") "\n", "\033[201");
    end();
}

/* Marks of pastes are asked for, and given back, where the terminal knows them. */
TEST(paste_marks_are_switched_on_and_off)
{
    if (no_editor())
        skip();
    begin(NULL, "xterm");
    see_prompt();
    type("a\n");
    see("\033[?2004l");
    assert_reported("a");
    end();
}

TEST(signals_end_a_line)
{
    if (no_editor())
        skip();
    begin(NULL, "xterm");
    say("\003", "(empty)"); /* Ctrl-C */
    see_prompt();
    type("half");
    see("half");
    type("\003");
    assert_reported("(cleared)");
    see_prompt();
    assert_int_equal(kill(other, SIGTERM), 0);
    assert_reported("(empty)");
    say("whole\n", "whole");
    see_prompt();
    type("ab");
    see("ab");
    struct winsize size = { .ws_row = 24, .ws_col = 20 };
    assert_int_equal(ioctl(ours, TIOCSWINSZ, &size), 0);
    see("ab"); /* drawn again */
    type("c");
    see("c");
    type("d"); /* and not at every key */
    see_alone("d", "> ");
    type("\n");
    assert_reported("abcd");
    end();
}

TEST(the_history_is_kept_in_a_file)
{
    struct stat st;
    if (no_editor())
        skip();
    int fd = mkstemp(past);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(unlink(past), 0);
    begin(past, "xterm");
    say("first\n", "first");
    say("second\n", "second");
    say("\n", "");
    end();
    assert_true(stat(past, &st) == 0 && (st.st_mode & 0777) == 0600);
    begin(past, "xterm");
    say("\020\020\n", "first"); /* an empty line is not kept */
    say("\020\020\n", "second");
    end();
    assert_int_equal(unlink(past), 0);
}

/* What is typed before the line is asked for belongs to it. */
TEST(what_is_typed_ahead_belongs_to_the_line)
{
    if (no_editor())
        skip();
    begin(NULL, "xterm");
    see_prompt();
    type("one\ntwo\n");
    assert_reported("one");
    assert_reported("two");
    see_prompt();
    /* A NUL is an end of input only among what was typed before the line was asked for. */
    type("three\nz\177");
    assert_reported("three");
    see_prompt();
    see("z");
    assert_int_equal(write(ours, "", 1), 1);
    type("four\n");
    assert_reported("four");
    end();
}

/* ---- without a terminal ---- */

TEST(lines_of_a_pipe)
{
    static const char text[] = "one\r\n\ntwo\0x\n\r\nlast\r";
    static const char *const lines[] = { "one", "", "two\xffx", "", "last" };
    int ends[2], before = dup(0), how = 9;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], text, sizeof text - 1), sizeof text - 1);
    close(ends[1]);
    dup2(ends[0], 0);
    close(ends[0]);
    cli_edit_begin(NULL);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char *line = cli_edit_line("> ", &how);
        assert_non_null(line);
        assert_string_equal(line, lines[i]);
        assert_int_equal(how, CLI_EDIT_NOT);
        free(line);
    }
    assert_null(cli_edit_line("> ", &how));
    assert_int_equal(how, CLI_EDIT_NOT);
    cli_edit_end();
    /* After a signal nothing is read. */
    cli_catch_signals();
    raise(SIGINT);
    assert_null(cli_edit_line("> ", &how));
    assert_int_equal(how, CLI_EDIT_EMPTY);
    cli_forget_signal();
    dup2(before, 0);
    close(before);
}
