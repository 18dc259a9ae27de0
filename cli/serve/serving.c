/* serving.c - keys, signals and messages of `tinkc serve` and `tinkc ui`. */
#include "cli/serve/serving.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/main/files.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

enum { GRACE_MS = 10000 };

static sigset_t stop_signals(void)
{
    sigset_t stops;
    sigemptyset(&stops);
    sigaddset(&stops, SIGINT);
    sigaddset(&stops, SIGTERM);
    sigaddset(&stops, SIGHUP); /* reads the keys again */
    return stops;
}

void cli_serving_block_signals(bool block)
{
    sigset_t stops = stop_signals();
    pthread_sigmask(block ? SIG_BLOCK : SIG_UNBLOCK, &stops, NULL);
}

char **cli_serving_keys(cli_app *app, int *bad)
{
    size_t len, n = 0;
    if (*bad || !cli_given(app, "auth-token-file"))
        return NULL;
    if ((*bad = cli_check_secret_file(app, cli_text(app, "auth-token-file"))))
        return NULL;
    char *text = cli_read_all(app, cli_text(app, "auth-token-file"), &len, bad);
    char **keys = text ? calloc(len / 2 + 2, sizeof *keys) : NULL;
    for (char *p = text; keys && *p;) {
        size_t line = strcspn(p, "\r\n");
        if (line && *p != '#')
            keys[n++] = strndup(p, line);
        p += line + strspn(p + line, "\r\n");
    }
    if (text)
        tkc_wipe(text, len);
    free(text);
    if (!*bad && n == 0)
        *bad =
            cli_fail(app, "usage", NULL, "there is no key in %s", cli_text(app, "auth-token-file"));
    return keys;
}

void cli_serving_free(char **list)
{
    for (size_t i = 0; list && list[i]; i++) {
        tkc_wipe(list[i], strlen(list[i]));
        free(list[i]);
    }
    free(list);
}

/* A file that cannot be read, or holds no key, leaves the keys as they were. */
static void reload_keys(cli_app *app, tinkc_server *server)
{
    tinkc_error err = { 0 };
    int bad = 0;
    size_t n = 0;
    if (!cli_given(app, "auth-token-file") || strcmp(cli_text(app, "auth-token-file"), "-") == 0) {
        cli_note(app, "SIGHUP: no keys to read again; --auth-token-file names no file");
        return;
    }
    char **keys = cli_serving_keys(app, &bad);
    while (keys && keys[n])
        n++;
    if (!bad && tinkc_server_set_keys(server, (const char *const *)keys, &err))
        cli_note(app, "SIGHUP: %zu keys are accepted from now on", n);
    else
        cli_note(app, "SIGHUP: the keys stay as they were%s%s", err.code ? ": " : "", err.message);
    cli_serving_free(keys);
}

/* Nothing is ever written to the descriptor; what comes is skipped. */
static void read_to_end(int fd)
{
    char skipped[256];
    struct pollfd wait = { .fd = fd, .events = POLLIN };
    ssize_t n;
    do {
        (void)poll(&wait, 1, -1);
        n = read(fd, skipped, sizeof skipped);
    } while (n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN)));
}

/* The first signal stops the server in good order; the second ends a program that does not get there,
 * because nobody may be left who would. */
static void *stop_at_end(void *arg)
{
    enum { MOST_S = 6 * GRACE_MS / 1000 };
    read_to_end((int)(intptr_t)arg);
    (void)kill(getpid(), SIGTERM);
    (void)sleep(MOST_S);
    (void)kill(getpid(), SIGTERM);
    return NULL;
}

int cli_serving_watch_stop(cli_app *app)
{
    pthread_t thread;
    int64_t given = cli_int(app, "stop-fd");
    int fd = given > INT_MAX ? -1 : (int)given;
    if (!cli_given(app, "stop-fd"))
        return 0;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) == O_WRONLY)
        return cli_fail(app, "usage", NULL, "--stop-fd %lld is not open for reading",
                        (long long)given);
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (pthread_create(&thread, NULL, stop_at_end, (void *)(intptr_t)fd) != 0)
        return cli_fail(app, "internal", NULL, "no thread can be started");
    (void)pthread_detach(thread);
    return 0;
}

int cli_serving_run(cli_app *app, tinkc_server *server)
{
    sigset_t stops = stop_signals();
    int number = 0;
    while (sigwait(&stops, &number) != 0 || number == SIGHUP)
        if (number == SIGHUP)
            reload_keys(app, server);
    pthread_sigmask(SIG_UNBLOCK, &stops, NULL); /* a second signal ends the program */
    cli_note(app, "stopping; requests under way have %d s", GRACE_MS / 1000);
    tinkc_server_stop(server, GRACE_MS, NULL);
    return 0;
}

int cli_serving_failed(cli_app *app, const tinkc_error *err)
{
    if (err->cause != TINKC_E_NO_CREDENTIAL)
        return cli_fail_error(app, err, NULL);
    return cli_fail(app, "usage", "--auth-token-file FILE, with one key a line",
                    "--host %s can be reached from other machines: it needs keys",
                    cli_text(app, "host"));
}

void cli_serving_ready(const cli_app *app, const char *url)
{
    if (cli_given(app, "ready-fd"))
        dprintf((int)cli_int(app, "ready-fd"), "%s\n", url);
}
