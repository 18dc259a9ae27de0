/* store_link.c - the commands' side of store_host.h: connect, start a host, speak its lines.
 *
 * Touches the control socket, and starts this program again as the host. Nothing here outlives the
 * command but a host that others use.
 */
#include "cli/store/store_link.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/main/config_file.h"
#include "cli/store/store_host.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

enum {
    LINE = 2048,
    ANSWER_MS = 60000, /* a model's files are read meanwhile */
    START_MS = 30000,  /* until a host must be there */
    END_MS = 60000     /* until the last one has written the store */
};

const char *cli_store_not_shared(const cli_app *app)
{
    const char *env = getenv("TINKC_SHARE_STORE");
    const char *value = env && *env ? env : cli_config_get(app, "share_store", NULL);
    if (value && (strcmp(value, "0") == 0 || strcmp(value, "false") == 0))
        return "share_store";
    /* The host is this program started again. */
    char self[TKC_PATH];
    return tkc_program_path(self) ? NULL : "/proc is not mounted";
}

bool cli_store_shared(const cli_app *app)
{
    return !cli_store_not_shared(app);
}

/* ---- the time that --timeout gives, to each wait here and to all of them; app NULL = no limit ---- */

static int64_t within(const cli_app *app, int64_t most_ms)
{
    int64_t left = app ? app->deadline_ms - cli_now_ms() : most_ms;
    return left < most_ms ? left : most_ms;
}

static bool too_late(const cli_app *app, tinkc_error *err)
{
    bool late = app && cli_now_ms() >= app->deadline_ms;
    if (late)
        cli_run_out(err);
    return late;
}

/* ---- lines ---- */

/* One line into out, without its end. False at the end of the connection or of the time; what has arrived by then
 * is read. */
static bool read_line(int fd, char out[LINE], int64_t wait_ms)
{
    int64_t until = cli_now_ms() + wait_ms;
    for (size_t n = 0; n < LINE - 1;) {
        struct pollfd p = { fd, POLLIN, 0 };
        int64_t left = until - cli_now_ms();
        if (poll(&p, 1, left > 0 ? (int)left : 0) < 0 && errno != EINTR)
            return false;
        if (!p.revents) {
            if (left <= 0)
                return false;
            continue;
        }
        if (read(fd, out + n, 1) != 1)
            return false;
        if (out[n] == '\n') {
            out[n] = '\0';
            return true;
        }
        n++;
    }
    return false;
}

static bool write_line(int fd, const char *text)
{
    size_t n = strlen(text);
    return send(fd, text, n, MSG_NOSIGNAL) == (ssize_t)n && send(fd, "\n", 1, MSG_NOSIGNAL) == 1;
}

/* "error<TAB>code<TAB>cause<TAB>message". */
static void read_error(char *line, tinkc_error *err)
{
    char *code = strchr(line, '\t'), *cause = code ? strchr(code + 1, '\t') : NULL;
    char *message = cause ? strchr(cause + 1, '\t') : NULL;
    int64_t number = TINKC_E_STORE, why = 0;
    if (message) {
        *cause = *message = '\0';
        (void)cli_parse_int(code + 1, &number);
        (void)cli_parse_int(cause + 1, &why);
    }
    tinkc_error_set(err, (int32_t)number,
                    message ? message + 1 : "the store's process gave no answer");
    err->cause = (int32_t)why;
}

static bool ask(const cli_app *app, int fd, const char *request, char line[LINE], tinkc_error *err)
{
    if (!write_line(fd, request) || !read_line(fd, line, within(app, ANSWER_MS))) {
        if (!too_late(app, err))
            tinkc_error_set(err, TINKC_E_CONNECTION,
                            "the process that has the store open has ended");
        return false;
    }
    if (strncmp(line, "error\t", 6) == 0)
        read_error(line, err);
    return !err->code;
}

/* ---- connecting ---- */

/* The control connection of a host that is there; -1 = none. */
static int connect_host(const cli_app *app, const char *store, int *folder_fd)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    char path[TKC_SOCKET_PATH], hello[LINE];
    if (!tkc_socket_path(store, "control.sock", folder_fd, path))
        return -1;
    (void)snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    int fd = tkc_socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0 &&
        read_line(fd, hello, within(app, 5000)) &&
        strncmp(hello, CLI_STORE_PROTOCOL " ", sizeof CLI_STORE_PROTOCOL) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static const char *device_of(const cli_app *app)
{
    const char *device = cli_text(app, "device");
    return device ? device : "auto";
}

/* Becomes the host: only async-signal-safe calls, as other threads may hold locks. */
static void become_host(const char *program, const char *store, const char *device, const char *log,
                        int ready)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    (void)setsid();
    int null = open("/dev/null", O_RDWR), out = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    (void)dup2(null, 0);
    (void)dup2(out >= 0 ? out : null, 1);
    (void)dup2(out >= 0 ? out : null, 2);
    (void)dup2(ready, 3); /* never 3 itself: 0 to 2 are open, and it is the second end of a pipe */
    tkc_close_from(4);
    execl(program, "tinkc", "__store-host", store, "3", device, (char *)NULL);
    _exit(127);
}

/* Starts a host. True when it is ready; else err says why (cause CONFLICT: another process has the
 * store). */
static bool start_host(const cli_app *app, const char *store, tinkc_error *err)
{
    static pid_t ended; /* the last one that could not have the store */
    const char *device = device_of(app);
    int ready[2];
    char line[LINE], *log = cli_printf("%s/host.log", store), self[TKC_PATH];
    if (!tkc_program_path(self) || !log || !tkc_pipe(ready)) {
        tinkc_error_set(err, TINKC_E_FILE, "the store's process cannot be started");
        free(log);
        return false;
    }
    if (ended > 0)
        (void)waitpid(ended, NULL, WNOHANG);
    pid_t child = fork();
    if (child == 0)
        become_host(self, store, device, log, ready[1]);
    close(ready[1]);
    bool told = child > 0 && read_line(ready[0], line, within(app, START_MS));
    close(ready[0]);
    if (!told && !too_late(app, err))
        tinkc_error_set(err, TINKC_E_STORE, "the store's process did not start");
    if (told && strncmp(line, "error\t", 6) == 0)
        read_error(line, err);
    ended = err->code ? child : 0;
    free(log);
    return !err->code;
}

static char *what_runs(const cli_app *app)
{
    const cli_command *c = app->command;
    return cli_printf("use %d %s%s%s%s%.40s", (int)getpid(), c->noun, c->verb ? " " : "",
                      c->verb ? c->verb : "", app->n_args ? " " : "",
                      app->n_args ? app->args[0] : "");
}

/* Options of this command that came too late: answer is "DEVICE<TAB>DTYPE" of the process that is there. */
static void warn_of_others(const cli_app *app, char *answer)
{
    char *dtype = strchr(answer, '\t');
    if (dtype)
        *dtype++ = '\0';
    if (cli_given(app, "device") && strcmp(answer, device_of(app)) != 0)
        cli_warn(app, "the store is open already, on device %s: --device %s has no effect", answer,
                 device_of(app));
    if (dtype && cli_given(app, "dtype") && strcmp(dtype, cli_text(app, "dtype")) != 0)
        cli_warn(app, "the store is open already, with dtype %s: --dtype %s has no effect", dtype,
                 cli_text(app, "dtype"));
}

/* One attempt: 1 linked, 0 try again, -1 failed with err set. */
static int try_link(cli_app *app, const char *store, tinkc_error *err)
{
    char line[LINE], *use;
    int fd = connect_host(app, store, &app->store_folder_fd);
    if (fd < 0) {
        if (start_host(app, store, err))
            return 0;
        return err->cause == TINKC_E_CONFLICT ? 0 : -1;
    }
    tinkc_error ended = { 0 };
    use = what_runs(app);
    for (char *p = use; use && *p; p++)
        *p = *p == '\n' || *p == '\t' ? ' ' : *p;
    bool ok = use && ask(app, fd, use, line, &ended);
    free(use);
    if (ok)
        warn_of_others(app, line + 3);
    if (ok) {
        app->store_fd = fd;
        return 1;
    }
    close(fd); /* it was about to end */
    return 0;
}

static int link_up(cli_app *app, const char *store, tinkc_error *err)
{
    int64_t begun = cli_now_ms();
    tinkc_error before = { 0 };
    for (;;) {
        *err = (tinkc_error){ 0 };
        int linked = try_link(app, store, err);
        if (linked > 0)
            return 1;
        bool late = too_late(app, err);
        if (err->code == TINKC_E_DEADLINE && before.code) /* it says what took the time */
            *err = before;
        if (linked < 0 || late || cli_stop_signal() || cli_now_ms() - begun > START_MS)
            return late ? -1 : linked;
        before = *err;
        if (cli_now_ms() - begun > 1000)
            cli_status(app, false, "waiting for the store: another process has it open");
        (void)poll(NULL, 0, 50);
    }
}

int cli_store_link_open(cli_app *app, const char *store)
{
    tinkc_error err = { 0 };
    app->store_fd = app->store_folder_fd = -1;
    app->store = store;
    int linked = link_up(app, store, &err);
    cli_progress_clear();
    if (linked > 0)
        return 0;
    if (cli_stop_signal())
        return cli_stop_exit();
    if (linked == 0 || err.cause == TINKC_E_CONFLICT)
        return cli_fail(app, "local_io",
                        "wait until it ends, or name another folder: XDG_DATA_HOME=DIR tinkc ...",
                        "the store %s is in use by a process that does not share it", store);
    return cli_fail_error(app, &err, "local engine");
}

/* The host has closed the connection: it ends, or was killed. */
static bool has_gone(int fd)
{
    struct pollfd p = { fd, POLLIN, 0 };
    char byte;
    return poll(&p, 1, 0) > 0 && recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

void cli_store_link_keep(cli_app *app)
{
    tinkc_error err = { 0 };
    if (!app->store || (app->store_fd >= 0 && !has_gone(app->store_fd)))
        return;
    if (app->store_fd >= 0)
        close(app->store_fd);
    app->store_fd = -1;
    if (link_up(app, app->store, &err) > 0)
        cli_note(
            app,
            "the process that had the store open has ended; this command continues with another");
}

bool cli_store_link_model(cli_app *app, const char *name, const char *folder, tinkc_error *err)
{
    char line[LINE], *request = cli_printf("model %s\t%s", name, folder);
    bool ok = request && !strpbrk(name, "\t\n") && !strchr(folder, '\n');
    if (!ok)
        tinkc_error_set(err, TINKC_E_ARGUMENT, "the model's name or folder has control characters");
    ok = ok && ask(app, app->store_fd, request, line, err);
    free(request);
    return ok;
}

char *cli_store_link_adapter(cli_app *app, const char *base, const char *folder, bool training,
                             tinkc_error *err)
{
    char line[LINE], *request = cli_printf("adapter %s\t%s", base, folder), *tab;
    bool ok = request && !strpbrk(base, "\t\n") && !strchr(folder, '\n');
    if (!ok)
        tinkc_error_set(err, TINKC_E_ARGUMENT, "the adapter's folder has control characters");
    ok = ok && ask(app, app->store_fd, request, line, err);
    free(request);
    if (!ok || strncmp(line, "ok ", 3) != 0 || !(tab = strchr(line, '\t'))) {
        tinkc_error_set(err, TINKC_E_STORE, "the store's process gave no usable answer");
        return NULL;
    }
    *tab = '\0';
    return strdup(training ? line + 3 : tab + 1);
}

void cli_store_link_close(cli_app *app)
{
    char line[LINE];
    if (!app->store)
        return;
    if (app->store_fd >= 0 && write_line(app->store_fd, "leave"))
        (void)read_line(app->store_fd, line, cli_stop_count() > 1 ? 0 : END_MS);
    if (app->store_fd >= 0)
        close(app->store_fd);
    close(app->store_folder_fd);
    app->store = NULL;
}

tkc_tree *cli_store_link_status(tkc_arena *arena, const char *store)
{
    char line[LINE];
    tinkc_error err = { 0 };
    int folder_fd = -1, fd = connect_host(NULL, store, &folder_fd);
    tkc_tree *status = fd >= 0 && ask(NULL, fd, "status", line, &err)
                           ? tkc_tree_read(arena, tkc_str(line), 0)
                           : NULL;
    if (fd >= 0)
        close(fd);
    if (folder_fd >= 0)
        close(folder_fd);
    return status;
}
