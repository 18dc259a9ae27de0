/* test_store_link.c - a command's link to the process that has the store: what it says and waits for, whatever comes
 * back. The other process, the clock and signals are scripts: a connection is one end of a pair whose other end the
 * test holds, a wait in which nothing comes moves the clock, and no process is started.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <tinkc/tinkc.h>

static int script_poll(struct pollfd *, nfds_t, int ms);
static int script_socket(int domain, int type, int protocol);
static int script_connect(int fd, const struct sockaddr *, socklen_t);
static bool script_pipe(int ends[2]);
static pid_t script_fork(void);
static bool script_program(char out[4096]);
#define poll             script_poll
#define tkc_socket       script_socket
#define connect          script_connect
#define tkc_pipe         script_pipe
#define tkc_program_path script_program
#define fork             script_fork
/* What other files of the command would do: the headers declare these instead. */
#define cli_now_ms      script_now
#define cli_status      script_line
#define cli_stop_signal script_signal
#define cli_stop_count  script_signals
#include "../../../cli/store/store_link.c"

#include "cli/main/commands.h"
#include "support/cli/held_output.h"
#include "support/cli/own_folder.h"
#include "support/json_trees.h"
#include "support/test_case.h"

#define HELLO    "tinkc-store 1 9.9 7\n"
#define CONFLICT "error\t63\t409\tin use\n"

enum { MOST = 16 };

static struct script {
    const char *heard[MOST]; /* what is there to be read on each connection, in turn; NULL = nobody listens */
    const char *host[MOST];  /* what each process that is started says; NULL = it says nothing */
    size_t n_links, n_hosts, n_polls, n_rests, n_lines;
    int64_t waited_ms, attempt_ms; /* in waits; what starting a process takes */
    int faults;                    /* so many waits fail, with this number */
    int fault;
    bool no_socket, no_pipe, no_process, no_program;
    int signal, signals;
    int64_t signal_at_ms, line_at_ms;
    char line[200];
} script;

static int theirs[MOST]; /* the other ends of the connections */
static int ready_fd;
static int64_t clock_ms;
static cli_app app;
static const char store[] = "store"; /* the folder */

int64_t script_now(void)
{
    return clock_ms;
}

void script_line(const cli_app *a, bool now, const char *format, ...)
{
    va_list args;
    assert_ptr_equal(a, &app);
    assert_false(now);
    script.line_at_ms = script.n_lines++ ? script.line_at_ms : clock_ms;
    va_start(args, format);
    (void)vsnprintf(script.line, sizeof script.line, format, args);
    va_end(args);
}

int script_signal(void)
{
    return script.signal && clock_ms >= script.signal_at_ms ? script.signal : 0;
}

int script_signals(void)
{
    return script.signals;
}

#undef poll
#undef connect
#undef fork

static int script_poll(struct pollfd *fds, nfds_t n, int ms)
{
    assert_true(n <= 1);
    if (n == 0) { /* a pause between two attempts */
        assert_int_equal(ms, 50);
        clock_ms += ms;
        script.n_rests++;
        return 0;
    }
    script.n_polls++;
    fds->revents = 0;
    if (script.faults > 0) {
        script.faults--;
        errno = script.fault;
        return -1;
    }
    int met = poll(fds, 1, 0);
    if (met == 0) {
        assert_true(ms >= 0);
        int step = ms > 7000 ? 7000 : ms; /* it ends early, too */
        clock_ms += step;
        script.waited_ms += step;
    }
    return met;
}

static int script_socket(int domain, int type, int protocol)
{
    int ends[2];
    assert_true(domain == AF_UNIX && type == SOCK_STREAM && protocol == 0);
    if (script.no_socket)
        return -1;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    theirs[script.n_links] = ends[1];
    return ends[0];
}

/* A text that ends with ! is all that comes: the connection is closed behind it. */
static int script_connect(int fd, const struct sockaddr *to, socklen_t len)
{
    const struct sockaddr_un *at = (const struct sockaddr_un *)to;
    const char *text = script.heard[script.n_links], *name = strrchr(at->sun_path, '/');
    assert_true(fd >= 0 && len == sizeof *at && at->sun_family == AF_UNIX);
    assert_string_equal(name, "/control.sock");
    assert_true(script.n_links + 1 < MOST);
    size_t i = script.n_links++, n = text ? strlen(text) : 0;
    bool closes = n && text[n - 1] == '!';
    if (text)
        assert_int_equal(write(theirs[i], text, n - closes), n - closes);
    if (closes)
        assert_int_equal(shutdown(theirs[i], SHUT_WR), 0);
    return text ? 0 : -1;
}

static bool script_pipe(int ends[2])
{
    if (script.no_pipe || pipe(ends) != 0)
        return false;
    ready_fd = ends[1];
    return true;
}

static bool script_program(char out[4096])
{
    (void)snprintf(out, 4096, "/bin/tinkc");
    return !script.no_program;
}

static int kept_fd = -1; /* of a process that says nothing, so that its end does not show */

static pid_t script_fork(void)
{
    const char *text = script.host[script.n_hosts];
    assert_true(script.n_hosts + 1 < MOST);
    script.n_hosts++;
    clock_ms += script.attempt_ms;
    if (script.no_process)
        return -1;
    if (text)
        assert_int_equal(write(ready_fd, text, strlen(text)), strlen(text));
    else
        kept_fd = dup(ready_fd);
    return 4711;
}

static void all_hosts(const char *text)
{
    for (size_t i = 0; i < MOST; i++)
        script.host[i] = text;
}

static int setup(void **state)
{
    (void)state;
    script = (struct script){ 0 };
    for (size_t i = 0; i < MOST; i++)
        theirs[i] = -1;
    clock_ms = 5000000;
    app = (cli_app){
        .command = cli_find("run", "list"), .store_fd = -1, .store_folder_fd = -1, .deadline_ms = INT64_MAX
    };
    return app.command ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    for (size_t i = 0; i < MOST; i++)
        if (theirs[i] >= 0)
            close(theirs[i]);
    if (kept_fd >= 0)
        close(kept_fd);
    kept_fd = -1;
    if (app.store_fd >= 0)
        close(app.store_fd);
    if (app.store_folder_fd >= 0)
        close(app.store_folder_fd);
    cli_parse_free(&app);
    return 0;
}

/* All that was said on a connection. */
static void assert_said(size_t i, const char *wanted)
{
    char text[400] = "", mine[40];
    ssize_t n = recv(theirs[i], text, sizeof text - 1, MSG_DONTWAIT);
    char *at = strstr(text, (snprintf(mine, sizeof mine, "%d", (int)getpid()), mine));
    if (at) { /* its own number reads PID */
        memcpy(at, "PID", 3);
        memmove(at + 3, at + strlen(mine), strlen(at + strlen(mine)) + 1);
    }
    assert_true(n >= 0 || wanted[0] == '\0');
    assert_string_equal(text, wanted);
}

static void assert_shown(const char *wanted)
{
    char *shown = release_output();
    assert_string_equal(shown, wanted);
    free(shown);
}

/* ---- lines ---- */

TEST_WITH(lines_are_read_one_by_one_and_bounded, setup, teardown)
{
    int ends[2];
    char line[LINE], long_one[LINE + 8];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    memset(long_one, 'x', sizeof long_one);
    assert_int_equal(write(ends[1], "one\n\ntwo", 8), 8);
    assert_true(read_line(ends[0], line, 10));
    assert_string_equal(line, "one");
    assert_true(read_line(ends[0], line, 10));
    assert_string_equal(line, "");
    assert_false(read_line(ends[0], line, 15000)); /* half a line: the rest never comes */
    assert_int_equal(script.waited_ms, 15000);
    long_one[2046] = '\n';
    assert_int_equal(write(ends[1], long_one, 2047), 2047);
    assert_true(read_line(ends[0], line, 10)); /* the longest */
    assert_int_equal(strlen(line), 2046);
    long_one[2046] = 'x';
    long_one[2047] = '\n';
    assert_int_equal(write(ends[1], long_one, 2048), 2048);
    assert_false(read_line(ends[0], line, 10));
    assert_true(read_line(ends[0], line, 10));
    assert_string_equal(line, ""); /* what is left of it */
    int64_t waited_ms = script.waited_ms;
    assert_false(read_line(ends[0], line, 0)); /* no time at all: only what is there */
    assert_false(read_line(ends[0], line, -5));
    assert_int_equal(script.waited_ms, waited_ms);
    assert_int_equal(write(ends[1], "late\n", 5), 5);
    assert_true(read_line(ends[0], line, -5));
    assert_string_equal(line, "late");
    /* A wait that a signal disturbs continues; one that fails does not. */
    assert_int_equal(write(ends[1], "a\nb\n", 4), 4);
    script.faults = 3;
    script.fault = EINTR;
    assert_true(read_line(ends[0], line, 10));
    assert_string_equal(line, "a");
    script.faults = 1;
    script.fault = EBADF;
    assert_false(read_line(ends[0], line, 10));
    assert_true(read_line(ends[0], line, 10));
    assert_string_equal(line, "b");
    close(ends[1]);
    assert_false(read_line(ends[0], line, 10));
    close(ends[0]);
}

TEST_WITH(errors_of_the_other_side, setup, teardown)
{
    static const struct {
        const char *line;
        int code, cause;
        const char *message;
    } rows[] = {
        { "error\t62\t5\ta b", 62, 5, "a b" },
        { "error\t62\t5\t", 62, 5, "" },
        { "error\tx\t5\tm", TINKC_E_STORE, 5, "m" },
        { "error\t62\tx\tm", 62, 0, "m" },
        { "error\t62\t5", TINKC_E_STORE, 0, "the store's process gave no answer" },
        { "error\t62", TINKC_E_STORE, 0, "the store's process gave no answer" },
        { "error", TINKC_E_STORE, 0, "the store's process gave no answer" },
        { "error\t62\t5\tone\ttwo", 62, 5, "one two" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char line[80];
        tinkc_error err = { 0 };
        (void)snprintf(line, sizeof line, "%s", rows[i].line);
        read_error(line, &err);
        assert_string_equal(err.message, rows[i].message);
        if (err.code != rows[i].code || err.cause != rows[i].cause)
            fail_msg("%s: %d, cause %d", rows[i].line, (int)err.code, (int)err.cause);
    }
}

TEST_WITH(a_question_gets_an_answer_or_an_error, setup, teardown)
{
    int ends[2];
    char line[LINE];
    tinkc_error err = { 0 };
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    theirs[0] = ends[1];
    assert_int_equal(write(ends[1], "ok fine\nerror\t9\t0\tno\nerrors\n", 28), 28);
    assert_true(ask(&app, ends[0], "how", line, &err));
    assert_string_equal(line, "ok fine");
    assert_said(0, "how\n");
    assert_false(ask(&app, ends[0], "what", line, &err));
    assert_true(err.code == 9 && strcmp(err.message, "no") == 0);
    err = (tinkc_error){ 0 };
    assert_true(ask(&app, ends[0], "when", line, &err)); /* it only begins like an error */
    assert_said(0, "what\nwhen\n");
    assert_false(ask(&app, ends[0], "silence", line, &err));
    assert_int_equal(script.waited_ms, 60000);
    assert_int_equal(err.code, TINKC_E_CONNECTION);
    assert_string_equal(err.message, "the process that has the store open has ended");
    close(ends[1]);
    theirs[0] = -1;
    err = (tinkc_error){ 0 };
    size_t polls = script.n_polls;
    assert_false(ask(&app, ends[0], "gone", line, &err)); /* known when it is sent, without a wait */
    assert_int_equal(script.n_polls, polls);
    assert_int_equal(err.code, TINKC_E_CONNECTION);
    close(ends[0]);
}

/* ---- connecting and starting ---- */

TEST_WITH(whether_it_is_shared, setup, teardown)
{
    static const struct {
        const char *value;
        bool shared;
    } rows[] = { { "0", false },      { "false", false }, { "1", true }, { "true", true },
                 { "falsely", true }, { "fals", true },   { "", true },  { NULL, true } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].value)
            setenv("TINKC_SHARE_STORE", rows[i].value, 1);
        else
            unsetenv("TINKC_SHARE_STORE");
        if (cli_store_shared(&app) != rows[i].shared)
            fail_msg("TINKC_SHARE_STORE=%s", rows[i].value ? rows[i].value : "(not set)");
    }
}

TEST_WITH(only_a_host_of_this_version_answers, setup, teardown)
{
    static const struct {
        const char *heard;
        bool taken;
        int64_t waited_ms;
    } rows[] = {
        { HELLO, true, 0 },
        { "tinkc-store 2 9.9 7\n", false, 0 },
        { "tinkc-store 10 9.9 7\n", false, 0 },
        { "tinkc-store 1\n", false, 0 },
        { "tinkc-store 1 x!", false, 0 }, /* it ends in its greeting */
        { "tinkc-store 1 x", false, 5000 },
        { NULL, false, 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        script.heard[script.n_links] = rows[i].heard;
        script.waited_ms = 0;
        int fd = connect_host(&app, store, &app.store_folder_fd);
        if ((fd >= 0) != rows[i].taken || script.waited_ms != rows[i].waited_ms)
            fail_msg("%s: %d after %d ms", rows[i].heard ? rows[i].heard : "nobody", fd, (int)script.waited_ms);
        if (fd >= 0)
            close(fd);
    }
    script.no_socket = true;
    assert_int_equal(connect_host(&app, store, &app.store_folder_fd), -1);
    script.no_socket = false;
    int none = -1;
    assert_int_equal(connect_host(&app, "/nowhere/at/all", &none), -1);
    assert_int_equal(none, -1);
    assert_int_equal(script.n_links, sizeof rows / sizeof *rows);
}

TEST_WITH(processes_that_are_started, setup, teardown)
{
    static const struct {
        const char *says;
        int code, cause;
        const char *message;
        int64_t waited_ms;
    } rows[] = {
        { "ready\n", 0, 0, "", 0 },
        { "error\t51\t52\tin use\n", 51, 52, "in use", 0 },
        { "", TINKC_E_STORE, 0, "the store's process did not start", 0 }, /* it has ended */
        { "read", TINKC_E_STORE, 0, "the store's process did not start", 0 },
        { NULL, TINKC_E_STORE, 0, "the store's process did not start", 30000 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        script.host[script.n_hosts] = rows[i].says;
        script.waited_ms = 0;
        bool ok = start_host(&app, store, &err);
        assert_string_equal(err.message, rows[i].message);
        if (ok != (rows[i].code == 0) || err.code != rows[i].code || err.cause != rows[i].cause ||
            script.waited_ms != rows[i].waited_ms)
            fail_msg("row %zu: %d, cause %d, after %d ms", i, (int)err.code, (int)err.cause, (int)script.waited_ms);
    }
    tinkc_error err = { 0 };
    script.no_process = true;
    assert_false(start_host(&app, store, &err));
    assert_string_equal(err.message, "the store's process did not start");
    assert_int_equal(err.code, TINKC_E_STORE);
    err = (tinkc_error){ 0 };
    script.no_pipe = true;
    assert_false(start_host(&app, store, &err));
    assert_string_equal(err.message, "the store's process cannot be started");
    assert_int_equal(err.code, TINKC_E_FILE);
    err = (tinkc_error){ 0 };
    script.no_pipe = script.no_process = false;
    script.no_program = true;
    assert_false(start_host(&app, store, &err));
    assert_string_equal(err.message, "the store's process cannot be started");
}

/* --timeout ends each of the waits, and is then what the command says. */
TEST_WITH(no_longer_than_it_may_take, setup, teardown)
{
    static const struct {
        const char *host;  /* what the process says that is started; NULL = nothing */
        const char *heard; /* from one that is there; NULL = none is there */
        int64_t given_ms, waited_ms;
    } rows[] = {
        { "", NULL, 0, 0 },
        { NULL, NULL, 300, 300 },                       /* it starts, and says nothing */
        { NULL, "tinkc-store 1 x", 4999, 4999 },        /* in its greeting */
        { NULL, HELLO, 300, 300 },                      /* after the question */
        { NULL, HELLO "error\t1\t0\tending\n", 49, 0 }, /* after a pause */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(setup(NULL), 0);
        script.heard[0] = rows[i].heard;
        script.host[0] = rows[i].host;
        app.deadline_ms = clock_ms + rows[i].given_ms;
        hold_output();
        int bad = cli_store_link_open(&app, store);
        assert_shown("error: local engine: the time given with --timeout has run out\n"
                     "hint: give it more time with --timeout\n");
        if (bad != CLI_EXIT_TIMEOUT || script.waited_ms != rows[i].waited_ms)
            fail_msg("row %zu: exit code %d after %d ms", i, bad, (int)script.waited_ms);
        assert_int_equal(teardown(NULL), 0);
    }
}

/* If somebody has the store, that is said, also when the last attempt has no time left. */
TEST_WITH(who_took_the_time, setup, teardown)
{
    script.host[0] = CONFLICT;
    app.deadline_ms = clock_ms + 51; /* the second attempt begins a millisecond before the end */
    hold_output();
    int bad = cli_store_link_open(&app, store);
    char *shown = release_output();
    assert_non_null(strstr(shown, "is in use by a process that does not share it\n"));
    free(shown);
    assert_int_equal(bad, CLI_EXIT_FAILED);
    assert_true(script.n_hosts == 2 && script.waited_ms == 1);
}

TEST_WITH(linked_at_once, setup, teardown)
{
    const char *args[] = { "a\tb\nc" };
    script.heard[0] = HELLO "ok auto\n";
    app.args = args;
    app.n_args = 1;
    hold_output();
    int bad = cli_store_link_open(&app, store);
    assert_shown("");
    assert_int_equal(bad, 0);
    assert_true(app.store_fd >= 0 && app.store_folder_fd >= 0 && app.store == store);
    assert_said(0, "use PID run list a b c\n");
    app.args = NULL;
    assert_true(script.n_hosts == 0 && script.n_rests == 0 && script.n_lines == 0);
}

/* Nobody is there: a process is started, and reached after a pause. One that ends while it is asked is not taken. */
TEST_WITH(linked_to_one_that_is_started, setup, teardown)
{
    script.heard[1] = HELLO "error\t1\t0\tending\n";
    script.heard[2] = HELLO "!";
    script.heard[3] = HELLO "ok cpu\n";
    script.host[0] = "ready\n";
    assert_int_equal(cli_set_value(&app, "device", "cuda", CLI_FROM_PROGRAM, "test"), 0);
    hold_output();
    int bad = cli_store_link_open(&app, store);
    assert_shown("warning: the store is open already, on device cpu: --device cuda has no effect\n");
    assert_int_equal(bad, 0);
    assert_true(script.n_links == 4 && script.n_hosts == 1 && script.n_rests == 3);
    assert_int_equal(script.n_lines, 0);
}

TEST_WITH(a_store_that_is_not_shared, setup, teardown)
{
    all_hosts(CONFLICT);
    app.deadline_ms = clock_ms + 120; /* three attempts */
    hold_output();
    int bad = cli_store_link_open(&app, store);
    char *shown = release_output();
    assert_non_null(strstr(shown, "is in use by a process that does not share it\nhint: wait until "
                                  "it ends, or name another folder: XDG_DATA_HOME=DIR tinkc ..."));
    free(shown);
    assert_int_equal(bad, CLI_EXIT_FAILED);
    assert_true(script.n_hosts == 4 && script.n_rests == 3 && script.n_lines == 0);
    /* A signal ends it, without a word. */
    script.signal = 15;
    script.signal_at_ms = clock_ms + 50;
    app.deadline_ms = INT64_MAX;
    hold_output();
    (void)cli_store_link_open(&app, store);
    assert_shown("");
    assert_int_equal(script.n_hosts, 6);
}

/* What it waits for is said after a second. It is given up after half a minute. */
TEST_WITH(how_long_it_waits, setup, teardown)
{
    static const struct {
        int64_t attempt_ms;
        size_t attempts, lines;
        int64_t first_line_ms;
    } rows[] = { { 1000, 0, 0, 2050 }, { 1001, 0, 0, 1001 }, { 3707, 8, 7, 3707 }, { 3706, 9, 8, 3706 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(setup(NULL), 0);
        all_hosts(CONFLICT);
        script.attempt_ms = rows[i].attempt_ms;
        int64_t begun_ms = clock_ms;
        app.deadline_ms = rows[i].attempts ? INT64_MAX : begun_ms + 3000;
        hold_output();
        int bad = cli_store_link_open(&app, "store");
        free(release_output());
        assert_int_equal(bad, CLI_EXIT_FAILED);
        assert_int_equal(script.line_at_ms - begun_ms, rows[i].first_line_ms);
        assert_string_equal(script.line, "waiting for the store: another process has it open");
        if (rows[i].attempts)
            assert_true(script.n_hosts == rows[i].attempts && script.n_lines == rows[i].lines);
        assert_int_equal(teardown(NULL), 0);
    }
}

/* Any other failure is not tried again. */
TEST_WITH(a_store_that_fails, setup, teardown)
{
    script.host[0] = "error\t62\t0\tdamaged\n";
    hold_output();
    int bad = cli_store_link_open(&app, store);
    assert_shown("error: local engine: damaged\n");
    assert_int_equal(bad, CLI_EXIT_INPUT);
    assert_true(script.n_links == 1 && script.n_hosts == 1 && script.n_rests == 0);
}

/* ---- while it is used ---- */

static void link_to(const char *answers)
{
    script.heard[script.n_links] = answers;
    app.store_fd = script_socket(AF_UNIX, SOCK_STREAM, 0);
    app.store = store;
    struct sockaddr_un at = { .sun_family = AF_UNIX, .sun_path = "/control.sock" };
    assert_int_equal(script_connect(app.store_fd, (struct sockaddr *)&at, sizeof at), 0);
}

static void unlink_it(void)
{
    close(app.store_fd);
    app.store_fd = -1;
}

TEST_WITH(another_one_is_taken, setup, teardown)
{
    cli_store_link_keep(&app); /* without a link */
    link_to("others\n");
    int fd = app.store_fd;
    cli_store_link_keep(&app); /* it is there, and has even said something */
    assert_true(app.store_fd == fd && script.n_links == 1);
    unlink_it();
    link_to("!");
    script.heard[2] = HELLO "ok auto\n";
    hold_output();
    cli_store_link_keep(&app);
    assert_shown("the process that had the store open has ended; this command continues with another\n");
    assert_said(2, "use PID run list\n");
    /* There is no other one: without a link, which the next call tries again. */
    unlink_it();
    link_to("!");
    script.host[0] = "error\t62\t0\tdamaged\n";
    hold_output();
    cli_store_link_keep(&app);
    assert_shown("");
    assert_true(app.store_fd == -1 && script.n_hosts == 1);
    script.heard[5] = HELLO "ok auto\n";
    hold_output();
    cli_store_link_keep(&app);
    assert_shown("the process that had the store open has ended; this command continues with another\n");
    assert_true(app.store_fd >= 0);
}

TEST_WITH(models_and_adapters, setup, teardown)
{
    static const struct {
        const char *answer, *training, *sampling, *message;
    } rows[] = {
        { "ok a/b\tc\n", "a/b", "c", "" },
        { "ok \t\n", "", "", "" },
        { "ok a/b\n", NULL, NULL, "the store's process gave no usable answer" },
        { "okay\tb\n", NULL, NULL, "the store's process gave no usable answer" },
        { "error\t9\t0\tno\n", NULL, NULL, "no" },
    };
    for (size_t i = 0; i < 2 * (sizeof rows / sizeof *rows); i++) {
        bool training = i % 2 == 0;
        const char *wanted = training ? rows[i / 2].training : rows[i / 2].sampling;
        tinkc_error err = { 0 };
        link_to(rows[i / 2].answer);
        char *path = cli_store_link_adapter(&app, "b", "/f", training, &err);
        assert_true(!path == !wanted && (!path || strcmp(path, wanted) == 0));
        assert_string_equal(err.message, rows[i / 2].message);
        assert_said(i, "adapter b\t/f\n");
        free(path);
        unlink_it();
    }
    static const char *const bad[][2] = { { "a\tb", "/f" }, { "a\nb", "/f" }, { "a", "/f\n" } };
    link_to("ok\n");
    for (size_t i = 0; i < 3; i++) {
        tinkc_error err = { 0 };
        assert_false(cli_store_link_model(&app, bad[i][0], bad[i][1], &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
        assert_string_equal(err.message, "the model's name or folder has control characters");
        err = (tinkc_error){ 0 };
        assert_null(cli_store_link_adapter(&app, bad[i][0], bad[i][1], true, &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
        assert_string_equal(err.message, "the adapter's folder has control characters");
    }
    tinkc_error err = { 0 };
    assert_true(cli_store_link_model(&app, "m", "/a\tb", &err)); /* a tab in a folder is harmless */
    assert_said(script.n_links - 1, "model m\t/a\tb\n");
}

TEST_WITH(closing_a_link_ends_what_it_started, setup, teardown)
{
    cli_store_link_close(&app); /* without a link */
    link_to("ended\n");
    app.store_folder_fd = open(store, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int fd = app.store_folder_fd;
    cli_store_link_close(&app);
    assert_said(0, "leave\n");
    assert_true(!app.store && script.waited_ms == 0 && script.n_polls == 6);
    assert_true(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
    /* The last one waits until the store is written, if nobody is in a hurry. */
    for (int signals = 1; signals <= 2; signals++) {
        link_to("");
        app.store_folder_fd = dup(STDERR_FILENO);
        script.signals = signals;
        script.waited_ms = 0;
        cli_store_link_close(&app);
        assert_int_equal(script.waited_ms, signals > 1 ? 0 : 60000);
    }
    app.store_fd = app.store_folder_fd = -1;
}

TEST_WITH(the_status_of_a_host_is_asked_for, setup, teardown)
{
    script.heard[0] = HELLO "{\"pid\": 7}\n";
    script.heard[1] = HELLO "error\t1\t0\tno\n";
    script.heard[2] = HELLO "nonsense\n";
    tkc_tree *status = cli_store_link_status(&json_arena, store);
    assert_int_equal(tkc_tree_get_i64(status, "pid"), 7);
    assert_said(0, "status\n");
    assert_null(cli_store_link_status(&json_arena, store));
    assert_null(cli_store_link_status(&json_arena, store));
    assert_null(cli_store_link_status(&json_arena, store)); /* nobody there */
    assert_null(cli_store_link_status(&json_arena, "/nowhere/at/all"));
    assert_int_equal(script.n_hosts, 0);
}

static int begin(void **state)
{
    return enter_folder(state) == 0 && cli_make_folder(store, 0700) ? 0 : -1;
}

RUN_TESTS(begin, leave_folder)
