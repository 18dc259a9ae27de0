/* auth.c - who we are: API key, credential command, and the JWT they are exchanged for.
 *
 * All of it lives on the I/O thread, but the credential command, which runs on a helper. Callers
 * who need a token wait in a list; concurrent callers share one fetch.
 *
 * May touch: the client's I/O side.
 * Must not:  put a credential into a log line, an error or an event.
 */
#include "client/core/auth.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/platform.h"
#include "base/str.h"
#include "codec/jwt.h"

enum {
    REFRESH_LEAD_MS = 300 * 1000,
    ON_DEMAND_MS = 60 * 1000,
    RETRY_MS = 60 * 1000,
    SHORT_LIFE_MS = 600 * 1000,
    FLOOR_MS = 10 * 1000,
    COMMAND_LIMIT_MS = 30 * 1000,
    COMMAND_GRACE_MS = 2 * 1000,
    CREDENTIAL_MAX = 64 * 1024
};

enum { RAW_NONE = 0, RAW_KEY, RAW_COMMAND };

typedef struct tkc_token_waits {
    tkc_token_wait *first, *last;
} wait_list;

struct tkc_auth {
    tinkc_client *client;
    int32_t raw; /* RAW_*: what the credential itself comes from */
    bool jwt_on;
    bool ended;

    char *jwt; /* NULL = none yet */
    int64_t jwt_exp_us;
    tkc_call *fetch;
    wait_list jwt_waits;
    tkc_timer refresh;
    tkc_auth_done_fn *boot_done; /* the first exchange, for the start-up */
    void *boot_arg;

    tkc_offload command; /* runs when `running` */
    bool running;
    atomic_bool command_stop;
    wait_list raw_waits;
    char *printed; /* what the command said; NULL = nothing */
    tinkc_error command_err;
};

/* ---- waiting lists ---- */

static void list_add(wait_list *list, tkc_token_wait *wait)
{
    wait->prev = list->last; /* next is NULL outside of the list */
    if (list->last)
        list->last->next = wait;
    else
        list->first = wait;
    list->last = wait;
    wait->list = list;
}

static void list_remove(tkc_token_wait *wait)
{
    wait_list *list = wait->list;
    if (wait->prev)
        wait->prev->next = wait->next;
    else
        list->first = wait->next;
    if (wait->next)
        wait->next->prev = wait->prev;
    else
        list->last = wait->prev;
    wait->next = wait->prev = NULL;
    wait->list = NULL;
}

/* Those who are in the list now; who asks again meanwhile waits for the next. */
static void list_tell(wait_list *list, const char *token, const tinkc_error *err)
{
    size_t n = 0;
    for (tkc_token_wait *wait = list->first; wait; wait = wait->next)
        n++;
    while (n-- && list->first) {
        tkc_token_wait *wait = list->first;
        list_remove(wait);
        wait->ready(wait, token, err);
    }
}

/* ---- which provider ---- */

static bool looks_right(const char *key)
{
    return tkc_starts_with(tkc_str(key), "tml-") || tkc_starts_with(tkc_str(key), "eyJ");
}

/* The Python SDK's order: a key that is a token, the command where the service asks for one, any
 * other key, the command. A key with a wrong beginning gives way to a command. */
static bool pick_provider(const tinkc_client *client, bool enforce_command, int32_t *raw,
                          tinkc_error *err)
{
    const char *key = client->api_key, *command = client->credential_cmd;
    bool has_key = key && key[0], has_command = command && command[0];
    /* Even where the service asks for a command: so in the Python SDK. */
    if (has_key && tkc_starts_with(tkc_str(key), "eyJ")) {
        *raw = RAW_KEY;
        return true;
    }
    if (enforce_command) {
        *raw = RAW_COMMAND;
        return has_command || tkc_fail(err, TINKC_E_CREDENTIAL_CMD,
                                       "credential_cmd: the service asks for one, none is given");
    }
    if (has_key && looks_right(key)) {
        *raw = RAW_KEY;
        return true;
    }
    if (has_command) {
        *raw = RAW_COMMAND;
        return true;
    }
    if (has_key)
        return tkc_fail(err, TINKC_E_BAD_CREDENTIAL, "api_key: begins with neither tml- nor eyJ");
    return tkc_fail(err, TINKC_E_NO_CREDENTIAL, "api_key: none given, and no credential command");
}

static void refresh_fired(tkc_timer *timer);

tkc_auth *tkc_auth_new(tinkc_client *client, bool needed, tinkc_error *err)
{
    tkc_auth *auth = tkc_zalloc(client->a, sizeof *auth, err);
    if (!auth)
        return NULL;
    auth->client = client;
    auth->refresh.fire = refresh_fired;
    tinkc_error why = { 0 };
    /* A transport of the caller's own needs none, but one that is given must be right. */
    if (!pick_provider(client, false, &auth->raw, &why) && (needed || client->api_key)) {
        tkc_error_copy(err, &why);
        tkc_release(client->a, auth, sizeof *auth);
        return NULL;
    }
    return auth;
}

void tkc_auth_free(tkc_auth *auth)
{
    if (!auth)
        return;
    tkc_release_str(auth->client->a, auth->jwt);
    tkc_release_str(auth->client->a, auth->printed);
    tkc_release(auth->client->a, auth, sizeof *auth);
}

/* ---- the credential command ---- */

/* On a helper, because it may ask a password manager or the network: on the I/O thread
 * heartbeats would stop meanwhile. Its failure is final; the Python SDK takes it for a lost
 * connection and repeats it for minutes. */

/* Reads what comes until the end, the limit, or the stop. */
static bool read_output(tkc_auth *auth, int fd, tkc_buf *out, tinkc_error *err)
{
    const tinkc_clock *clock = auth->client->clock;
    int64_t deadline = tkc_now_ms(clock) + COMMAND_LIMIT_MS;
    for (;;) {
        if (atomic_load(&auth->command_stop))
            return tkc_fail(err, TINKC_E_CLOSED, "credential command: the client was closed");
        if (tkc_now_ms(clock) > deadline)
            return tkc_fail(err, TINKC_E_CREDENTIAL_CMD, "credential command: took over 30 s");
        struct pollfd p = { .fd = fd, .events = POLLIN };
        /* Short pieces: in between the end of the client is noticed. */
        if (poll(&p, 1, 100) <= 0)
            continue;
        char piece[4096];
        ssize_t n = read(fd, piece, sizeof piece);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return true;
        if (out->len + (size_t)n > CREDENTIAL_MAX)
            return tkc_fail(err, TINKC_E_CREDENTIAL_CMD, "credential command: printed over 64 KiB");
        if (!tkc_buf_add(out, piece, (size_t)n, err))
            return false;
    }
}

static bool spawn_shell(const char *command, int out_fd, pid_t *pid, tinkc_error *err)
{
    char *argv[] = { (char *)"sh", (char *)"-c", (char *)command, NULL };
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, out_fd, 1);
    /* Ignored, as in the Python SDK. */
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    (void)tkc_spawn_close_rest(&files);
    posix_spawnattr_init(&how);
    /* A group of its own, so that what the shell has started can be ended with it. */
    posix_spawnattr_setpgroup(&how, 0);
    /* Our threads run with all signals blocked, which a program would inherit. */
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    int bad = posix_spawn(pid, "/bin/sh", &files, &how, argv, tkc_environment());
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    return bad == 0 ||
           tkc_fail(err, TINKC_E_CREDENTIAL_CMD, "credential command: could not be started");
}

/* Its output has ended. One that runs on nevertheless is ended after a while. Returns its exit status; 0
 * where it was ended here. */
static int end_command(const tkc_auth *auth, pid_t pid, bool now)
{
    int status = 0;
    bool ended_here = now;
    int64_t deadline = tkc_monotonic_ns() + (int64_t)COMMAND_GRACE_MS * 1000000;
    for (;;) {
        pid_t gone = waitpid(pid, &status, now ? 0 : WNOHANG);
        if (gone == pid || (gone < 0 && errno != EINTR))
            return gone != pid || ended_here ? 0
                   : WIFEXITED(status)       ? WEXITSTATUS(status)
                                             : 128 + WTERMSIG(status);
        if (now)
            continue;
        ended_here = now = atomic_load(&auth->command_stop) || tkc_monotonic_ns() > deadline;
        if (now)
            kill(-pid, SIGKILL);
        else
            (void)poll(NULL, 0, 5);
    }
}

static void run_command(tkc_offload *o)
{
    tkc_auth *auth = TKC_OWNER(o, tkc_auth, command);
    tinkc_error *err = &auth->command_err;
    tkc_buf out;
    int fds[2];
    pid_t pid;
    tkc_buf_init(&out, auth->client->a, CREDENTIAL_MAX);
    *err = (tinkc_error){ 0 };
    if (!tkc_pipe(fds)) {
        tkc_fail(err, TINKC_E_CREDENTIAL_CMD, "credential command: no pipe for it");
        return;
    }
    bool started = spawn_shell(auth->client->credential_cmd, fds[1], &pid, err);
    /* Ours: while it is open the output has no end. */
    close(fds[1]);
    if (started) {
        bool ended = read_output(auth, fds[0], &out, err);
        if (!ended)
            kill(-pid, SIGKILL);
        int status = end_command(auth, pid, !ended);
        /* The Python SDK ignores it and takes what was printed for a key. */
        if (status)
            tkc_fail(err, TINKC_E_CREDENTIAL_CMD, "credential command: failed with exit status %d",
                     status);
    }
    close(fds[0]);
    tinkc_str text = tkc_str_trim(tkc_buf_view(&out));
    if (!tkc_failed(err) && (text.len == 0 || memchr(text.data, '\n', text.len)))
        tkc_fail(err, TINKC_E_CREDENTIAL_CMD, "credential command: printed %s",
                 text.len ? "more than one line" : "nothing");
    if (!tkc_failed(err))
        auth->printed = tkc_copy_str(auth->client->a, text, err);
    tkc_buf_free(&out);
}

static void command_ended(tkc_offload *o)
{
    tkc_auth *auth = TKC_OWNER(o, tkc_auth, command);
    auth->running = false;
    /* Taken out first: a waiter may start the next command, which writes here. */
    char *printed = auth->printed;
    auth->printed = NULL;
    tinkc_error err = auth->command_err;
    list_tell(&auth->raw_waits, printed, err.code ? &err : NULL);
    tkc_release_str(auth->client->a, printed);
}

static void start_command(tkc_auth *auth)
{
    if (auth->running)
        return;
    auth->running = true;
    auth->command.work = run_command;
    auth->command.after = command_ended;
    tkc_offload_start(auth->client, &auth->command);
}

/* ---- the JWT ---- */

static int64_t jwt_left_ms(const tkc_auth *auth)
{
    if (!auth->jwt || auth->jwt_exp_us == TINKC_NO_TIME)
        return 0;
    return (auth->jwt_exp_us - tkc_wall_us(auth->client->clock)) / 1000;
}

/* Refreshed five minutes before its end; short-lived ones at half time, never in a tight loop. */
static void arm_refresh(tkc_auth *auth)
{
    int64_t left = jwt_left_ms(auth), delay;
    if (auth->jwt_exp_us == TINKC_NO_TIME)
        delay = RETRY_MS;
    else
        delay = left < SHORT_LIFE_MS ? left / 2 : left - REFRESH_LEAD_MS;
    tkc_loop_arm(auth->client->loop, &auth->refresh, delay > FLOOR_MS ? delay : FLOOR_MS);
}

static bool take_jwt(tkc_auth *auth, const char *jwt, tinkc_error *err)
{
    tkc_arena arena;
    tkc_jwt claims = { 0 };
    tinkc_error unread = { 0 };
    char *copy = tkc_copy_str(auth->client->a, tkc_str(jwt), err);
    if (!copy)
        return false;
    tkc_arena_init(&arena, NULL, 1 << 20);
    bool read = tkc_jwt_read(jwt, &arena, &claims, &unread);
    tkc_arena_free(&arena);
    /* Requests under way have copies of the old one. */
    tkc_release_str(auth->client->a, auth->jwt);
    auth->jwt = copy;
    /* Used all the same, but as one that is about to end: the next request asks for another. */
    auth->jwt_exp_us = read ? claims.exp_us : TINKC_NO_TIME;
    return true;
}

static bool read_token_answer(tkc_auth *auth, const tkc_call *call, tinkc_error *err)
{
    tkc_arena arena;
    tkc_auth_token_response answer = { 0 };
    if (call->err.code) {
        /* Where nobody answered the code says what could not be done; an answer keeps the code
         * of its status. */
        bool unreachable = (call->err.flags & TINKC_RETRIABLE) && !call->err.http_status;
        if (unreachable) {
            tkc_fail(err, TINKC_E_TOKEN, "token exchange: %.300s", call->err.message);
            err->cause = call->err.code;
            return false;
        }
        tkc_error_copy(err, &call->err);
        return false;
    }
    tkc_arena_init(&arena, NULL, 1 << 20);
    tinkc_error bad = { 0 };
    bool ok = tkc_message_decode(&tkc_auth_token_response_type,
                                 tkc_strn((const char *)call->body.data, call->body.len),
                                 TINKC_E_TOKEN, &arena, &answer, &bad);
    if (ok && !answer.jwt[0])
        ok = tkc_fail(&bad, TINKC_E_TOKEN, "token exchange: the answer holds no token");
    ok = ok && take_jwt(auth, answer.jwt, &bad);
    tkc_error_copy(err, &bad);
    tkc_arena_free(&arena);
    return ok;
}

static void fetched(tkc_call *call)
{
    tkc_auth *auth = call->owner;
    tinkc_error err = { 0 };
    bool ok = read_token_answer(auth, call, &err);
    auth->fetch = NULL;
    tkc_call_free(call);
    if (ok) {
        arm_refresh(auth);
    } else if (!auth->ended) {
        tkc_client_log(auth->client, auth->jwt_waits.first ? TINKC_LOG_WARN : TINKC_LOG_DEBUG,
                       "the token could not be renewed: %s", err.message);
        /* Where there is none yet, the next request asks by itself. */
        if (auth->jwt)
            tkc_loop_arm(auth->client->loop, &auth->refresh, RETRY_MS);
    }
    tkc_auth_done_fn *boot_done = auth->boot_done;
    auth->boot_done = NULL;
    /* An old token is better than none, and none lets the service say what it thinks. */
    list_tell(&auth->jwt_waits, auth->jwt, NULL);
    if (boot_done)
        boot_done(auth->boot_arg, ok ? NULL : &err);
}

static void fetch_jwt(tkc_auth *auth, bool window)
{
    /* One exchange at a time: those who ask meanwhile are in the list. */
    if (auth->fetch || auth->ended)
        return;
    tinkc_error err = { 0 };
    tkc_call_spec spec = tkc_call_to(TKC_EP_AUTH_TOKEN);
    spec.window = window;
    auth->fetch = tkc_call_with(auth->client, &spec, &tkc_empty_type, &(tkc_empty){ 0 }, &err);
    if (auth->fetch) {
        auth->fetch->owner = auth;
        auth->fetch->done = fetched;
        tkc_call_start(auth->fetch);
        return;
    }
    tkc_auth_done_fn *boot_done = auth->boot_done;
    auth->boot_done = NULL;
    list_tell(&auth->jwt_waits, auth->jwt, auth->jwt ? NULL : &err);
    if (boot_done)
        boot_done(auth->boot_arg, &err);
}

static void refresh_fired(tkc_timer *timer)
{
    /* Without the window: a renewal that fails has a next time. */
    fetch_jwt(TKC_OWNER(timer, tkc_auth, refresh), false);
}

/* ---- for the start-up ---- */

bool tkc_auth_begin(tkc_auth *auth, tkc_auth_done_fn *done, void *arg, tinkc_error *err)
{
    tinkc_client *client = auth->client;
    const tkc_config_response *flags = &client->io.flags;
    if (client->transport->flags & TINKC_TRANSPORT_LOCAL)
        return true;
    auth->jwt_on = flags->pjwt_auth_enabled;
    if (!auth->jwt_on) {
        /* Without exchange the service wants the key itself; a command cannot stand in for it. */
        if (auth->raw == RAW_COMMAND)
            return tkc_fail(err, TINKC_E_NO_CREDENTIAL,
                            "api_key: none given, and the service takes no other credential");
        return true;
    }
    bool enforce = tkc_cstr_eq(flags->credential_default_source, "credential_cmd");
    if (!pick_provider(client, enforce, &auth->raw, err))
        return false;
    if (jwt_left_ms(auth) > ON_DEMAND_MS) { /* a seed from a snapshot */
        arm_refresh(auth);
        return true;
    }
    auth->boot_done = done;
    auth->boot_arg = arg;
    fetch_jwt(auth, true);
    return false;
}

void tkc_auth_seed(tkc_auth *auth, const char *jwt)
{
    tinkc_error ignored = { 0 };
    (void)take_jwt(auth, jwt, &ignored);
}

const char *tkc_auth_current_jwt(const tkc_auth *auth)
{
    return auth->jwt_on ? auth->jwt : NULL;
}

void tkc_auth_stop(tkc_auth *auth)
{
    auth->ended = true;
    /* The exchange ends with all other calls, the command when its helper sees this. */
    atomic_store(&auth->command_stop, true);
    tkc_loop_disarm(auth->client->loop, &auth->refresh);
}

/* ---- for every request ---- */

bool tkc_auth_token(tinkc_client *client, tkc_token_wait *wait, const char **token)
{
    tkc_auth *auth = client->io.auth;
    *token = NULL;
    if (auth->jwt_on && !wait->raw) {
        /* No layer repeats a 401, so a token that may end under way is renewed before the
         * request. */
        if (jwt_left_ms(auth) > ON_DEMAND_MS) {
            *token = auth->jwt;
            return true;
        }
        list_add(&auth->jwt_waits, wait);
        fetch_jwt(auth, false);
        return false;
    }
    /* For each request, as in the Python SDK; those that come while it runs share its answer. */
    if (auth->raw == RAW_COMMAND) {
        list_add(&auth->raw_waits, wait);
        start_command(auth);
        return false;
    }
    if (auth->raw == RAW_KEY)
        *token = client->api_key;
    return true;
}

void tkc_auth_token_end(tkc_token_wait *wait)
{
    if (wait->list)
        list_remove(wait);
}
