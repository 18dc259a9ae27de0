/* test_store_host.c - the process that has a store open, where it cannot begin, whom it refuses, and how long it waits. The
 * engine, its server, threads and the clock are scripts; what it says to commands is in tests/cli/transcripts/store*.txt.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <tinkc/engine.h>
#include <tinkc/tinkc.h>

static tinkc_engine *script_engine(const tinkc_engine_options *, tinkc_error *);
static void script_engine_free(tinkc_engine *);
static tinkc_server *script_serve(tinkc_engine *, const tinkc_serve_options *, tinkc_error *);
static void script_server_free(tinkc_server *);
static int script_thread(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
static int script_poll(struct pollfd *, nfds_t, int ms);
static bool script_peer(int fd, uid_t *who);
#define tinkc_engine_new   script_engine
#define tinkc_engine_free  script_engine_free
#define tinkc_engine_serve script_serve
#define tinkc_server_free  script_server_free
#define pthread_create     script_thread
#define poll               script_poll
#define tkc_peer_user      script_peer
/* What other files of the command would do: the headers declare these instead. */
#define cli_now_ms           script_now
#define cli_store_models_add script_models
#include "../../../cli/store/store_host.c"

#include "support/cli/own_folder.h"
#include "support/test_case.h"

#define STORE "store"

static struct script {
    int32_t engine_fault, cause, serve_fault, models_fault;
    size_t n_engines, n_servers, n_pauses;
    size_t busy; /* so many attempts find the store in use */
    int thread_fault, poll_fault;
    uid_t peer;
    char socket[64];
} script;

static int64_t clock_ms;
static char an_engine, a_server; /* nothing looks into them */

int64_t script_now(void)
{
    return clock_ms;
}

static tinkc_engine *script_engine(const tinkc_engine_options *o, tinkc_error *err)
{
    assert_string_equal(o->store, STORE);
    assert_string_equal(o->device, "cpu");
    assert_int_equal(o->durability, TINKC_DURABILITY_JOURNAL);
    assert_int_equal(err->code, 0);
    script.n_engines++;
    if (script.n_engines > script.busy && !script.engine_fault)
        return (tinkc_engine *)&an_engine;
    tinkc_error_set(err, script.engine_fault ? script.engine_fault : TINKC_E_STORE, "no engine");
    err->cause = script.engine_fault ? script.cause : TINKC_E_CONFLICT;
    return NULL;
}

static void script_engine_free(tinkc_engine *engine)
{
    script.n_engines -= engine != NULL;
}

static tinkc_server *script_serve(tinkc_engine *engine, const tinkc_serve_options *o, tinkc_error *err)
{
    assert_ptr_equal(engine, &an_engine);
    (void)snprintf(script.socket, sizeof script.socket, "%s", strrchr(o->unix_socket, '/'));
    if (script.serve_fault)
        tinkc_error_set(err, script.serve_fault, "no server");
    script.n_servers += !script.serve_fault;
    return script.serve_fault ? NULL : (tinkc_server *)&a_server;
}

static void script_server_free(tinkc_server *server)
{
    script.n_servers -= server != NULL;
}

static int script_thread(pthread_t *out, const pthread_attr_t *how, void *(*fn)(void *), void *arg)
{
    assert_true(out && !how && fn == host_loop && arg);
    return script.thread_fault;
}

bool script_models(tinkc_engine *engine, const char *store, tinkc_error *err)
{
    assert_ptr_equal(engine, &an_engine);
    assert_string_equal(store, STORE);
    if (script.models_fault)
        tinkc_error_set(err, script.models_fault, "no model");
    return !script.models_fault;
}

#undef poll
#undef tkc_peer_user
bool tkc_peer_user(int socket, uid_t *user);

static int script_poll(struct pollfd *fds, nfds_t n, int ms)
{
    if (n == 0) { /* before it tries again */
        assert_int_equal(ms, 50);
        clock_ms += ms;
        script.n_pauses++;
        return 0;
    }
    if (script.poll_fault) {
        errno = script.poll_fault;
        script.poll_fault = 0;
        return -1;
    }
    int met = poll(fds, n, 0);
    clock_ms += met ? 0 : ms;
    return met;
}

static bool script_peer(int fd, uid_t *who)
{
    bool known = tkc_peer_user(fd, who);
    *who += script.peer;
    return known;
}

static int setup(void **state)
{
    (void)state;
    script = (struct script){ 0 };
    clock_ms = 3000000;
    return 0;
}

static void assert_error(const tinkc_error *err, int32_t code, const char *message)
{
    assert_string_equal(err->message, message);
    assert_int_equal(err->code, code);
}

/* ---- where it cannot begin ---- */

TEST_WITH(names_of_sockets, setup, NULL)
{
    char path[TKC_SOCKET_PATH];
    int fd = -1, file = open(STORE "/x.sock", O_WRONLY | O_CREAT, 0600);
    assert_false(tkc_socket_path("nowhere", "x.sock", &fd, path));
    assert_true(fd == -1 && errno == ENOENT);
    assert_true(tkc_socket_path(STORE, "x.sock", &fd, path));
    assert_int_equal(access(path, F_OK), 0); /* the name leads to it */
    close(file);
    assert_int_equal(unlink(STORE "/x.sock"), 0);
    int same = fd;
    assert_true(tkc_socket_path(STORE, "y.sock", &fd, path)); /* it is open */
    assert_true(fd == same && strstr(path, "/y.sock"));
    close(fd);
}

TEST_WITH(hosts_that_do_not_start, setup, NULL)
{
    tinkc_error err = { 0 };
    tinkc_engine *engine = (tinkc_engine *)&an_engine;
    assert_null(cli_store_host_start(engine, "nowhere", "cpu", &err));
    assert_error(&err, TINKC_E_FILE, "the store's sockets: No such file or directory");
    err = (tinkc_error){ 0 };
    script.serve_fault = TINKC_E_STORE;
    assert_null(cli_store_host_start(engine, STORE, "cpu", &err));
    assert_error(&err, TINKC_E_STORE, "no server");
    assert_string_equal(script.socket, "/engine.sock");
    err = (tinkc_error){ 0 };
    script.serve_fault = 0;
    script.thread_fault = EAGAIN;
    assert_null(cli_store_host_start(engine, STORE, "cpu", &err));
    assert_error(&err, TINKC_E_MEMORY, "a thread could not be started");
    assert_int_equal(script.n_servers, 0);
    cli_store_host_stop(NULL, 1);
}

TEST_WITH(a_host_keeps_the_device_that_was_asked_for, setup, NULL)
{
    static const char *const asked[] = { "cuda:1", NULL };
    for (size_t i = 0; i < 2; i++) {
        tinkc_error err = { 0 };
        cli_store_host *h = cli_store_host_start((tinkc_engine *)&an_engine, STORE, asked[i], &err);
        assert_non_null(h);
        assert_string_equal(h->device, asked[i] ? asked[i] : "auto");
        assert_false(h->once);
        free_host(h);
    }
}

/* A store in use is waited for, ten seconds and not longer; nothing else is. */
TEST_WITH(a_store_in_use_is_waited_for_ten_seconds, setup, NULL)
{
    static const struct {
        size_t busy;
        int32_t fault, cause;
        size_t tried;
    } rows[] = {
        { 0, 0, 0, 1 },
        { 3, 0, 0, 4 },
        { 201, 0, 0, 202 },
        { 999, 0, 0, 202 },
        { 0, TINKC_E_STORE, 0, 1 },
        { 0, TINKC_E_FILE, TINKC_E_CONFLICT, 202 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { .code = 7 }; /* of before */
        setup(NULL);
        script.busy = rows[i].busy;
        script.engine_fault = rows[i].fault;
        script.cause = rows[i].cause;
        tinkc_engine *engine = open_engine(STORE, "cpu", GRACE_MS, &err);
        bool ok = !rows[i].fault && rows[i].busy < rows[i].tried;
        if (!engine != !ok || (err.code != 0) == ok || script.n_engines != rows[i].tried ||
            script.n_pauses != rows[i].tried - 1)
            fail_msg("row %zu: %zu attempts", i, script.n_engines);
    }
}

/* What it reports to the command that started it. */
TEST_WITH(a_host_reports_to_the_command_that_started_it, setup, NULL)
{
    static const struct {
        const char *args[3];
        size_t n_args;
        struct script how;
        int exit;
        const char *said;
    } rows[] = {
        { { STORE, "x", "cpu" }, 3, { 0 }, CLI_EXIT_USAGE, "" },
        { { STORE, "2", "cpu" }, 3, { 0 }, CLI_EXIT_USAGE, "" },
        { { STORE, "1001", "cpu" }, 3, { 0 }, CLI_EXIT_USAGE, "" },
        { { STORE, "FD", "cpu" }, 2, { 0 }, CLI_EXIT_USAGE, "" },
        { { STORE, "FD", "cpu" },
          3,
          { .engine_fault = TINKC_E_STORE, .cause = 9 },
          CLI_EXIT_FAILED,
          "error\t63\t9\tno engine\n" },
        { { STORE, "FD", "cpu" }, 3, { .models_fault = TINKC_E_MODEL }, CLI_EXIT_FAILED, "error\t62\t0\tno model\n" },
        { { STORE, "FD", "cpu" }, 3, { .serve_fault = TINKC_E_STORE }, CLI_EXIT_FAILED, "error\t63\t0\tno server\n" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int ends[2];
        char number[12], text[100] = "";
        const char *args[3];
        assert_int_equal(pipe(ends), 0);
        (void)snprintf(number, sizeof number, "%d", ends[1]);
        for (size_t k = 0; k < 3; k++)
            args[k] = strcmp(rows[i].args[k], "FD") == 0 ? number : rows[i].args[k];
        setup(NULL);
        script = rows[i].how;
        cli_app app = { .args = args, .n_args = rows[i].n_args };
        assert_int_equal(cli_store_host_main(&app), rows[i].exit);
        if (rows[i].exit == CLI_EXIT_USAGE)
            close(ends[1]);
        (void)!read(ends[0], text, sizeof text - 1); /* to the end: its other end is closed */
        assert_string_equal(text, rows[i].said);
        assert_int_equal(script.n_servers, 0);
        if (!script.engine_fault)
            assert_int_equal(script.n_engines, 0);
        close(ends[0]);
    }
}

/* ---- who comes ---- */

static cli_store_host *new_host(void)
{
    tinkc_error err = { 0 };
    cli_store_host *h = cli_store_host_start((tinkc_engine *)&an_engine, STORE, "cpu", &err);
    assert_non_null(h);
    return h;
}

static int come(const cli_store_host *h)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), folder = h->folder_fd;
    assert_true(tkc_socket_path(STORE, "control.sock", &folder, at.sun_path));
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

TEST_WITH(another_user_is_refused, setup, NULL)
{
    char text[200] = "", wanted[200];
    cli_store_host *h = new_host();
    int fd = come(h);
    script.peer = 1; /* somebody else */
    accept_user(h);
    assert_int_equal(h->n, 0);
    assert_int_equal(read(fd, text, sizeof text), 0);
    close(fd);
    fd = come(h);
    script.peer = 0;
    accept_user(h);
    assert_int_equal(h->n, 1);
    assert_true(read(fd, text, sizeof text - 1) > 0);
    (void)snprintf(wanted, sizeof wanted, "tinkc-store 1 %s %d\n", TINKC_VERSION, (int)getpid());
    assert_string_equal(text, wanted);
    /* Nothing has come: the user is still there. */
    assert_true(read_user(h, &h->users[0]));
    close(fd);
    assert_false(read_user(h, &h->users[0]));
    assert_int_equal(fcntl(h->listen_fd, F_SETFL, O_NONBLOCK), 0);
    accept_user(h); /* who has left again */
    assert_int_equal(h->n, 1);
    drop_user(h, 0);
    assert_int_equal(h->n, 0);
    free_host(h);
}

TEST_WITH(when_it_is_over, setup, NULL)
{
    static const struct {
        bool once, had_one, uses;
        int64_t after_ms;
        bool over;
    } rows[] = {
        { true, false, false, 15000, false },  { true, false, false, 15001, true },
        { false, false, false, 15001, false }, { true, true, false, 0, true },
        { true, true, true, 99999, false },    { false, true, false, 99999, false },
    };
    cli_store_host *h = new_host();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        h->n = 2;
        h->users[0].uses = false;
        h->users[1].uses = rows[i].uses;
        h->once = rows[i].once;
        h->had_one = rows[i].had_one;
        assert_int_equal(is_over(h, clock_ms - rows[i].after_ms), rows[i].over);
    }
    h->n = 0;
    free_host(h);
}

/* The loop ends by itself, by a word, and where it cannot wait; a signal that disturbs it is none of these. */
TEST_WITH(the_loop_ends_by_itself_by_a_word_or_by_an_error, setup, NULL)
{
    int64_t begun_ms = clock_ms;
    cli_store_host *h = new_host();
    h->once = true;
    script.poll_fault = EINTR;
    assert_int_equal(fcntl(h->listen_fd, F_SETFL, O_NONBLOCK), 0);
    host_loop(h); /* nobody comes */
    assert_int_equal(clock_ms - begun_ms, 16000);
    h->once = false;
    script.poll_fault = EINVAL;
    host_loop(h);
    assert_int_equal(clock_ms - begun_ms, 16000);
    assert_int_equal(write(h->wake[1], "x", 1), 1);
    host_loop(h);
    assert_int_equal(clock_ms - begun_ms, 16000);
    free_host(h);
}

static int begin(void **state)
{
    return enter_folder(state) == 0 && cli_make_folder(STORE, 0700) ? 0 : -1;
}

RUN_TESTS(begin, leave_folder)
