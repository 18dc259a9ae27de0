/* store_host.c - the process that has the store open: an engine, its HTTP socket, the control socket.
 *
 * One thread polls the control socket and its connections. Lines from a command:
 *
 *     use TEXT            it uses the store from now on; TEXT says what it does  -> ok DEVICE<TAB>DTYPE
 *     model NAME<TAB>DIR  makes a folder's model known, and remembers it     -> ok | error ...
 *     adapter BASE<TAB>DIR  takes a PEFT adapter into the store   -> ok PATH<TAB>PATH | error ...
 *     status              -> one line of JSON
 *     leave               -> "others" if somebody else uses the store; else "ended" once the engine has
 *                            written everything down
 *
 * An error line is: error<TAB>code<TAB>cause<TAB>message. A connection that closes without "leave" (a
 * command that was killed) counts as having left. Must not: print.
 */
#include "cli/store/store_host.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/platform.h"
#include "cli/main/files.h"
#include "cli/store/store_models.h"
#include "cli/output/text.h"

enum {
    MAX_USERS = 256,
    LINE = 8192,
    FIRST_USE_MS = 15000, /* the command that started us must come by then */
    HELD_MS = 500, /* then it reports that somebody has the store, and the command tries again */
    GRACE_MS = 10000
};

typedef struct user {
    int fd;
    bool uses, leaving;
    char what[80];
    char line[LINE];
    size_t n;
} user;

struct cli_store_host {
    tinkc_engine *engine;
    tinkc_server *server;
    char *store;
    int folder_fd, listen_fd, wake[2];
    pthread_t thread;
    user users[MAX_USERS];
    size_t n;
    int64_t since_s;
    char device[64]; /* as it was asked for */
    bool once;       /* ends with its last user */
    bool had_one;
};

/* ---- answers ---- */

static void answer(const user *u, const char *text)
{
    (void)!send(u->fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void answer_error(const user *u, const tinkc_error *err)
{
    char line[600];
    char message[420];
    (void)snprintf(message, sizeof message, "%s", err->message);
    for (char *p = message; *p; p++)
        *p = *p == '\n' || *p == '\t' ? ' ' : *p;
    (void)snprintf(line, sizeof line, "error\t%d\t%d\t%s\n", (int)err->code, (int)err->cause,
                   message);
    answer(u, line);
}

static size_t n_using(const cli_store_host *h)
{
    size_t n = 0;
    for (size_t i = 0; i < h->n; i++)
        n += h->users[i].uses;
    return n;
}

static void answer_status(const cli_store_host *h, const user *u)
{
    tkc_arena arena = { 0 };
    tkc_tree *who = tkc_tree_array(&arena);
    for (size_t i = 0; i < h->n; i++)
        if (h->users[i].uses)
            tkc_tree_add_text(who, h->users[i].what);
    const tkc_tree *all = tkc_tree_pack(&arena, "{s:i, s:I, s:o}", "pid", (int)getpid(), "since",
                                        (int64_t)h->since_s, "users", who);
    const char *text = tkc_tree_print(&arena, all, TKC_TREE_COMPACT);
    char *line = text ? cli_printf("%s\n", text) : NULL;
    if (line)
        answer(u, line);
    free(line);
    tkc_arena_free(&arena);
}

/* ---- lines ---- */

static void take_model(cli_store_host *h, const user *u, char *rest)
{
    tinkc_error err = { 0 };
    char *tab = strchr(rest, '\t');
    if (!tab) {
        tinkc_error_set(&err, TINKC_E_ARGUMENT, "model: a name and a folder are needed");
    } else {
        *tab = '\0';
        char *known = cli_store_models_get(h->store, rest);
        if (tinkc_engine_add_model(h->engine, rest, tab + 1, &err))
            (void)cli_store_models_set(h->store, rest, tab + 1);
        else if (err.code == TINKC_E_EXISTS && known && strcmp(known, tab + 1) == 0)
            err = (tinkc_error){ 0 }; /* it was remembered */
        else if (err.code == TINKC_E_EXISTS && known)
            tinkc_error_set(
                (err = (tinkc_error){ 0 }, &err), TINKC_E_EXISTS,
                "the model is open from another folder; wait until no command uses the store");
        free(known);
    }
    if (err.code)
        answer_error(u, &err);
    else
        answer(u, "ok\n");
}

/* Answers with the paths of its weights for training and for sampling. */
static void take_adapter(cli_store_host *h, const user *u, char *rest)
{
    tinkc_error err = { 0 };
    tinkc_text weights = { 0 }, sampler = { 0 };
    char *tab = strchr(rest, '\t'), *line = NULL;
    if (tab)
        *tab = '\0';
    tinkc_import_options o = { .adapter = tab ? tab + 1 : NULL, .base_model = rest };
    if (tinkc_engine_import(h->engine, &o, &weights, &sampler, &err))
        line = cli_printf("ok %s\t%s\n", weights.data, sampler.data);
    if (line)
        answer(u, line);
    else
        answer_error(u, &err);
    free(line);
    tinkc_text_free(&weights);
    tinkc_text_free(&sampler);
}

static void take_line(cli_store_host *h, user *u, char *line)
{
    if (strncmp(line, "use ", 4) == 0) {
        u->uses = h->had_one = true;
        (void)snprintf(u->what, sizeof u->what, "%s", line + 4);
        char ok[80];
        const char *dtype = getenv("TINKC_DTYPE");
        (void)snprintf(ok, sizeof ok, "ok %.60s\t%.8s\n", h->device,
                       dtype && *dtype ? dtype : "auto");
        answer(u, ok);
    } else if (strncmp(line, "model ", 6) == 0) {
        take_model(h, u, line + 6);
    } else if (strncmp(line, "adapter ", 8) == 0) {
        take_adapter(h, u, line + 8);
    } else if (strcmp(line, "status") == 0) {
        answer_status(h, u);
    } else if (strcmp(line, "leave") == 0) {
        u->uses = false;
        u->leaving = h->once && n_using(h) == 0;
        if (!u->leaving)
            answer(u, "others\n");
    } else {
        answer(u, "error\t1\t0\tunknown request\n");
    }
}

/* False when the connection has ended or sends nonsense. */
static bool read_user(cli_store_host *h, user *u)
{
    ssize_t got = recv(u->fd, u->line + u->n, sizeof u->line - 1 - u->n, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (got <= 0)
        return false;
    u->n += (size_t)got;
    u->line[u->n] = '\0';
    for (char *end; (end = memchr(u->line, '\n', u->n)) != NULL;) {
        *end = '\0';
        take_line(h, u, u->line);
        size_t used = (size_t)(end - u->line) + 1;
        memmove(u->line, u->line + used, u->n - used + 1);
        u->n -= used;
    }
    return u->n < sizeof u->line - 1;
}

static bool is_same_user(int fd)
{
    uid_t who;
    return tkc_peer_user(fd, &who) && who == geteuid();
}

static void accept_user(cli_store_host *h)
{
    char hello[120];
    int fd = tkc_accept(h->listen_fd);
    if (fd < 0)
        return;
    if (h->n == MAX_USERS || !is_same_user(fd)) {
        close(fd);
        return;
    }
    user *u = &h->users[h->n++];
    *u = (user){ .fd = fd };
    (void)snprintf(hello, sizeof hello, CLI_STORE_PROTOCOL " %s %d\n", TINKC_VERSION,
                   (int)getpid());
    answer(u, hello);
}

static void drop_user(cli_store_host *h, size_t i)
{
    close(h->users[i].fd);
    if (i != --h->n)
        h->users[i] = h->users[h->n];
}

/* ---- the loop ---- */

/* Whether the last user has gone, or nobody ever came. */
static bool is_over(const cli_store_host *h, int64_t begun_ms)
{
    if (!h->once || n_using(h) > 0)
        return false;
    return h->had_one || cli_now_ms() - begun_ms > FIRST_USE_MS;
}

static void *host_loop(void *arg)
{
    cli_store_host *h = arg;
    struct pollfd fds[MAX_USERS + 2];
    int64_t begun_ms = cli_now_ms();
    while (!is_over(h, begun_ms)) {
        size_t n = h->n;
        fds[0] = (struct pollfd){ h->wake[0], POLLIN, 0 };
        fds[1] = (struct pollfd){ h->listen_fd, POLLIN, 0 };
        for (size_t i = 0; i < n; i++)
            fds[2 + i] = (struct pollfd){ h->users[i].fd, POLLIN, 0 };
        if (poll(fds, (nfds_t)(2 + n), 1000) < 0 && errno != EINTR)
            break;
        if (fds[0].revents)
            break;
        for (size_t i = n; i-- > 0;)
            if (fds[2 + i].revents && !read_user(h, &h->users[i]))
                drop_user(h, i);
        if (fds[1].revents)
            accept_user(h);
    }
    return NULL;
}

/* ---- life ---- */

static bool listen_control(cli_store_host *h)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    char path[TKC_SOCKET_PATH];
    if (!tkc_socket_path(h->store, "control.sock", &h->folder_fd, path))
        return false;
    (void)snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    (void)unlinkat(h->folder_fd, "control.sock",
                   0); /* of a host that was killed: the store is ours */
    h->listen_fd = tkc_socket(AF_UNIX, SOCK_STREAM, 0);
    mode_t before = umask(0177);
    bool ok = h->listen_fd >= 0 && bind(h->listen_fd, (struct sockaddr *)&at, sizeof at) == 0 &&
              listen(h->listen_fd, 64) == 0;
    umask(before);
    return ok;
}

static void free_host(cli_store_host *h)
{
    tinkc_server_free(h->server);
    for (size_t i = 0; i < h->n; i++)
        close(h->users[i].fd);
    int fds[] = { h->listen_fd, h->folder_fd, h->wake[0], h->wake[1] };
    for (size_t i = 0; i < 4; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(h->store);
    free(h);
}

/* Everything but the thread. */
static cli_store_host *open_host(tinkc_engine *engine, const char *store, tinkc_error *err)
{
    cli_store_host *h = calloc(1, sizeof *h);
    char path[TKC_SOCKET_PATH];
    if (!h)
        return tinkc_error_set(err, TINKC_E_MEMORY, "out of memory"), NULL;
    *h = (cli_store_host){ .engine = engine,
                           .store = strdup(store),
                           .folder_fd = -1,
                           .listen_fd = -1,
                           .wake = { -1, -1 },
                           .since_s = (int64_t)time(NULL) };
    if (!h->store || !tkc_pipe(h->wake) || !listen_control(h) ||
        !tkc_socket_path(store, "engine.sock", &h->folder_fd, path)) {
        char why[200];
        (void)snprintf(why, sizeof why, "the store's sockets: %s", tkc_errno_text(errno));
        tinkc_error_set(err, TINKC_E_FILE, why);
    } else {
        h->server = tinkc_engine_serve(engine, &(tinkc_serve_options){ .unix_socket = path }, err);
    }
    if (h->server)
        return h;
    free_host(h);
    return NULL;
}

cli_store_host *cli_store_host_start(tinkc_engine *engine, const char *store, const char *device,
                                     tinkc_error *err)
{
    cli_store_host *h = open_host(engine, store, err);
    if (h)
        (void)snprintf(h->device, sizeof h->device, "%s", device ? device : "auto");
    if (h && pthread_create(&h->thread, NULL, host_loop, h) != 0) {
        tinkc_error_set(err, TINKC_E_MEMORY, "a thread could not be started");
        free_host(h);
        h = NULL;
    }
    return h;
}

static void stop_listening(const cli_store_host *h)
{
    (void)unlinkat(h->folder_fd, "control.sock", 0);
}

void cli_store_host_stop(cli_store_host *h, int64_t grace_ms)
{
    if (!h)
        return;
    stop_listening(h);
    (void)!write(h->wake[1], "x", 1);
    pthread_join(h->thread, NULL);
    tinkc_server_stop(h->server, grace_ms, NULL);
    free_host(h);
}

/* ---- as a process of its own ---- */

static int stop_pipe = -1;

static void on_stop(int number)
{
    (void)number;
    (void)!write(stop_pipe, "x", 1);
}

/* Another host may be on its way out: its store is free in a moment. */
static tinkc_engine *open_engine(const char *store, const char *device, int64_t wait_ms,
                                 tinkc_error *err)
{
    int64_t until = cli_now_ms() + wait_ms;
    for (;;) {
        *err = (tinkc_error){ 0 };
        tinkc_engine *engine = tinkc_engine_new(
            &(tinkc_engine_options){ .store = store,
                                     .device = device,
                                     .durability = TINKC_DURABILITY_JOURNAL,
                                     .log = cli_log_line, /* host.log of the store */
                                     .log_level = TINKC_LOG_WARN },
            err);
        if (engine || err->cause != TINKC_E_CONFLICT || cli_now_ms() > until)
            return engine;
        (void)poll(NULL, 0, 50);
    }
}

/* Tells the command that started us; it reads one line. */
static void report(int fd, const tinkc_error *err)
{
    char line[600];
    if (err->code)
        (void)snprintf(line, sizeof line, "error\t%d\t%d\t%s\n", (int)err->code, (int)err->cause,
                       err->message);
    else
        (void)snprintf(line, sizeof line, "ready\n");
    (void)!write(fd, line, strlen(line));
    close(fd);
}

/* Those that left last get their word when nothing is left to write. */
static void end_host(cli_store_host *h)
{
    stop_listening(h);
    tinkc_server_stop(h->server, GRACE_MS, NULL);
    tinkc_server_free(h->server);
    h->server = NULL;
    tinkc_engine_free(h->engine); /* writes what durability asks for */
    for (size_t i = 0; i < h->n; i++)
        if (h->users[i].leaving)
            answer(&h->users[i], "ended\n");
    free_host(h);
}

int cli_store_host_main(cli_app *app)
{
    tinkc_error err = { 0 };
    const char *store = app->n_args == 3 ? app->args[0] : NULL;
    int64_t ready = -1;
    if (!store || !cli_parse_int(app->args[1], &ready) || ready < 3 || ready > 1000)
        return CLI_EXIT_USAGE;
    tinkc_engine *engine = open_engine(store, app->args[2], HELD_MS, &err);
    cli_store_host *h = NULL;
    if (engine && cli_store_models_add(engine, store, &err))
        h = open_host(engine, store, &err);
    if (h) {
        h->once = true;
        (void)snprintf(h->device, sizeof h->device, "%s", app->args[2]);
        stop_pipe = h->wake[1];
        signal(SIGINT, SIG_IGN);
        signal(SIGHUP, SIG_IGN);
        signal(SIGTERM, on_stop);
    }
    report((int)ready, &err);
    if (!h) {
        tinkc_engine_free(engine);
        return CLI_EXIT_FAILED;
    }
    host_loop(h);
    end_host(h);
    return 0;
}
