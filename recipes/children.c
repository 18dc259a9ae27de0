/* children.c - commands that answer lines.
 *
 * A child's standard input is a socket, so that writing to a dead one is an error and not a signal;
 * its outputs are pipes. Its output is untrusted: lines are bounded, must be objects, and must
 * carry the id of a pending request. A child that breaks a rule is killed, because its later output
 * cannot be trusted. May touch: processes it started. Must not: wait.
 */
#include "recipes/children.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/platform.h"
#include "recipes/child_env.h"

enum {
    MOST_LINE = 16 << 20,
    MOST_DEATHS = 10, /* in a row, without an answer between them */
    MOST_PASSED = 64, /* variables beside the usual ones */
    END_TEXT = 180,   /* how a process ended */
    WHY = 300
};

typedef struct ask {
    struct ask *next;
    uint64_t id;
    char *line; /* with its end */
    size_t len;
    int child; /* the process that has it or must get it, or TKR_ANY_CHILD */
    bool sent, bound;
    size_t attempts;
    int64_t deadline_ms; /* once it was sent */
    tkr_answer_fn *fn;
    void *user;
} ask;

typedef struct child {
    pid_t pid; /* 0 = not running */
    int in, out, log;
    tkc_buf sending, reading, logging;
    char last_log[120]; /* the last line of its standard error: why it died, as a rule */
    size_t n_asks, starts;
} child;

struct tkr_children {
    tkr_children_options how;
    char *command;
    char *pass[MOST_PASSED]; /* names of variables */
    size_t n_pass;
    child *all;
    ask *first, **last;
    size_t deaths; /* in a row */
    char why[WHY]; /* of the last death */
};

int64_t tkr_now_ms(void)
{
    return tkc_monotonic_ns() / 1000000;
}

static void say(const tkr_children *c, int32_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void say(const tkr_children *c, int32_t level, const char *format, ...)
{
    char line[600];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (c->how.log)
        c->how.log(level, line, c->how.user);
}

/* ---- one process ---- */

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static bool open_pipes(int in[2], int out[2], int log[2], tinkc_error *err)
{
    in[0] = in[1] = out[0] = out[1] = log[0] = log[1] = -1;
    if (tkc_socketpair(in) && tkc_pipe(out) && tkc_pipe(log) && tkc_set_nonblocking(in[1]) &&
        tkc_set_nonblocking(out[0]) && tkc_set_nonblocking(log[0]))
        return true;
    return tkc_fail_errno(err, "cannot make a pipe for a child process");
}

/* Starts it in its own process group, so that its descendants can be killed too, with default
 * signals. */
static int spawn(pid_t *pid, const char *command, char *const *env, const int in[2],
                 const int out[2], const int log[2])
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none, usual;
    char *const argv[] = { "sh", "-c", (char *)(uintptr_t)command, NULL };
    sigemptyset(&none);
    sigemptyset(&usual);
    sigaddset(&usual, SIGPIPE);
    sigaddset(&usual, SIGINT);
    sigaddset(&usual, SIGTERM);
    int bad = posix_spawn_file_actions_init(&files);
    if (bad)
        return bad;
    bad = posix_spawnattr_init(&how);
    if (!bad) {
        posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                           POSIX_SPAWN_SETSIGDEF);
        posix_spawnattr_setpgroup(&how, 0);
        posix_spawnattr_setsigmask(&how, &none);
        posix_spawnattr_setsigdefault(&how, &usual);
        bad = posix_spawn_file_actions_adddup2(&files, in[0], 0);
        bad = bad ? bad : posix_spawn_file_actions_adddup2(&files, out[1], 1);
        bad = bad ? bad : posix_spawn_file_actions_adddup2(&files, log[1], 2);
        bad = bad ? bad : tkc_spawn_close_rest(&files);
        bad = bad ? bad : posix_spawn(pid, "/bin/sh", &files, &how, argv, env);
        posix_spawnattr_destroy(&how);
    }
    posix_spawn_file_actions_destroy(&files);
    return bad;
}

static bool start(tkr_children *c, child *p, tinkc_error *err)
{
    int in[2], out[2], log[2];
    size_t size = 0;
    char **env = tkr_child_env(c->pass, c->n_pass, &size, err);
    bool ok = open_pipes(in, out, log, err) && env;
    int bad = ok ? spawn(&p->pid, c->command, env, in, out, log) : 0;
    tkc_release(NULL, env, size);
    if (bad) {
        errno = bad;
        ok = tkc_fail_errno(err, "%s: cannot be started", c->how.name);
    }
    close_fd(&in[0]);
    close_fd(&out[1]);
    close_fd(&log[1]);
    if (!ok) {
        p->pid = 0;
        close_fd(&in[1]);
        close_fd(&out[0]);
        close_fd(&log[0]);
        return false;
    }
    p->in = in[1];
    p->out = out[0];
    p->log = log[0];
    p->last_log[0] = '\0';
    p->starts++;
    return true;
}

/* Reads all that is available. False at end of file. */
static bool drain(int fd, tkc_buf *into, tinkc_error *err)
{
    enum { PIECE = 16384 };
    for (;;) {
        char *room = tkc_buf_room(into, PIECE, err);
        ssize_t n = room ? read(fd, room, PIECE) : -1;
        if (n > 0)
            into->len += (size_t)n;
        else if (n == 0 || !room)
            return false;
        else if (errno != EINTR)
            return errno == EAGAIN || errno == EWOULDBLOCK;
    }
}

/* Passes complete lines of a child's standard error to the log. */
static void pass_log(tkr_children *c, child *p, tkc_buf *b, bool all)
{
    size_t from = 0;
    for (size_t i = 0; i < b->len; i++)
        if (b->data[i] == '\n' || (all && i + 1 == b->len)) {
            size_t end = b->data[i] == '\n' ? i : i + 1;
            int len = (int)(end - from > 500 ? 500 : end - from);
            say(c, TINKC_LOG_INFO, "%s %zu: %.*s", c->how.name, (size_t)(p - c->all), len,
                b->data + from);
            if (len)
                (void)snprintf(p->last_log, sizeof p->last_log, "%.*s", len, b->data + from);
            from = i + 1;
        }
    if (from)
        memmove(b->data, b->data + from, b->len - from);
    b->len -= from;
}

static void describe(const child *p, int status, char out[END_TEXT])
{
    bool killed = WIFSIGNALED(status);
    (void)snprintf(
        out, END_TEXT, "%s %d%s%s", killed ? "was killed by signal" : "ended with status",
        killed ? WTERMSIG(status) : WEXITSTATUS(status), p->last_log[0] ? ": " : "", p->last_log);
}

/* Ends the process; `why` NULL = it ended by itself, and its exit status says how. */
static void reap(tkr_children *c, child *p, const char *why)
{
    int status = 0;
    char how[END_TEXT];
    tinkc_error err = { 0 };
    if (!p->pid)
        return;
    if (why)
        (void)kill(-p->pid, SIGKILL);
    close_fd(&p->in);
    while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR)
        ;
    (void)kill(-p->pid, SIGKILL); /* its descendants */
    p->pid = 0;
    if (p->log >= 0)
        (void)drain(p->log, &p->logging, &err); /* what it wrote just before it ended */
    pass_log(c, p, &p->logging, true);
    describe(p, status, how);
    (void)snprintf(c->why, sizeof c->why, "%s %s", c->how.name, why ? why : how);
    close_fd(&p->out);
    close_fd(&p->log);
    tkc_buf_clear(&p->sending);
    tkc_buf_clear(&p->reading);
    c->deaths++;
    say(c, TINKC_LOG_WARN, "%s (process %zu)", c->why, (size_t)(p - c->all));
}

/* ---- asks ---- */

static void release_ask(ask *a)
{
    tkc_release(NULL, a->line, a->len + 1);
    tkc_release(NULL, a, sizeof *a);
}

/* Removes it from the list before the callback, which may ask more. */
static void finish(tkr_children *c, ask *a, const tkc_tree *answer, const char *why)
{
    for (ask **at = &c->first; *at; at = &(*at)->next)
        if (*at == a) {
            *at = a->next;
            if (c->last == &a->next)
                c->last = at;
            break;
        }
    if (a->sent && a->child >= 0)
        c->all[a->child].n_asks--;
    if (a->fn)
        a->fn(a->user, answer, why);
    release_ask(a);
}

/* The process died: its requests go to another, or fail. Steps of an episode cannot move. */
static void orphan(tkr_children *c, child *p)
{
    int index = (int)(p - c->all);
    for (bool again = true; again;) {
        again = false;
        for (ask *a = c->first; a; a = a->next) {
            if (!a->sent || a->child != index)
                continue;
            if (a->bound || a->attempts >= c->how.attempts) {
                finish(c, a, NULL, c->why);
                again = true; /* the list may have changed */
                break;
            } else {
                a->sent = false;
                a->child = TKR_ANY_CHILD;
                p->n_asks--;
            }
        }
    }
}

static void end_child(tkr_children *c, child *p, const char *why)
{
    reap(c, p, why);
    orphan(c, p);
}

bool tkr_children_ask(tkr_children *c, uint64_t id, const char *line, int which, tkr_answer_fn *fn,
                      void *user, tinkc_error *err)
{
    ask *a = tkc_zalloc(NULL, sizeof *a, err);
    size_t len = strlen(line);
    char *copy = a ? tkc_alloc(NULL, len + 2, err) : NULL;
    if (!copy) {
        tkc_release(NULL, a, sizeof *a);
        return false;
    }
    memcpy(copy, line, len);
    copy[len] = '\n';
    copy[len + 1] = '\0';
    *a = (ask){ .id = id, .line = copy, .len = len + 1, .child = which, .fn = fn, .user = user };
    a->bound = which != TKR_ANY_CHILD;
    *c->last = a;
    c->last = &a->next;
    return true;
}

void tkr_children_tell(tkr_children *c, const char *line, int which)
{
    tinkc_error err = { 0 };
    if (c->all[which].pid && tkc_buf_cstr(&c->all[which].sending, line, &err))
        tkc_buf_char(&c->all[which].sending, '\n', &err);
}

void tkr_children_forget(tkr_children *c, const void *user)
{
    for (ask *a = c->first; a; a = a->next)
        if (a->user == user)
            a->fn = NULL;
}

size_t tkr_children_starts(const tkr_children *c, int which)
{
    return c->all[which].starts;
}

/* ---- sending ---- */

static child *pick(tkr_children *c, const ask *a)
{
    child *best = NULL;
    for (size_t i = 0; i < c->how.processes; i++) {
        child *p = &c->all[i];
        if (a->child >= 0 && (size_t)a->child != i)
            continue;
        if (p->n_asks < c->how.asks_each && (!best || p->n_asks < best->n_asks))
            best = p;
    }
    return best;
}

static bool send_asks(tkr_children *c, tinkc_error *err)
{
    for (ask *a = c->first; a; a = a->next) {
        child *p = a->sent ? NULL : pick(c, a);
        if (!p)
            continue;
        if (!p->pid && !start(c, p, err))
            return false;
        if (!tkc_buf_add(&p->sending, a->line, a->len, err))
            return false;
        a->sent = true;
        a->attempts++;
        a->child = (int)(p - c->all);
        a->deadline_ms = tkr_now_ms() + c->how.timeout_ms;
        p->n_asks++;
    }
    return true;
}

static void flush_child(child *p)
{
    while (p->pid && p->sending.len) {
        ssize_t n = send(p->in, p->sending.data, p->sending.len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n <= 0)
            return; /* full, or dead: the end of its output will show it */
        memmove(p->sending.data, p->sending.data + n, p->sending.len - (size_t)n);
        p->sending.len -= (size_t)n;
    }
}

/* ---- receiving ---- */

static ask *waiting_for(const tkr_children *c, const child *p, const tkc_tree *id)
{
    if (!tkc_tree_is_i64(id) || tkc_tree_i64(id) < 0)
        return NULL;
    for (ask *a = c->first; a; a = a->next)
        if (a->sent && a->child == (int)(p - c->all) && a->id == (uint64_t)tkc_tree_i64(id))
            return a;
    return NULL;
}

/* One line of a child. False if it breaks the rules; *why then says how. */
static bool take_line(tkr_children *c, child *p, const char *line, size_t len, char why[WHY])
{
    tkc_arena arena = { 0 };
    const tkc_tree *v = tkc_tree_read(&arena, (tinkc_str){ line, len }, TKC_TREE_UNIQUE);
    ask *a = tkc_tree_is_object(v) ? waiting_for(c, p, tkc_tree_get(v, "id")) : NULL;
    if (a) {
        c->deaths = 0;
        finish(c, a, v, NULL);
    } else if (!tkc_tree_is_object(v)) {
        (void)snprintf(why, WHY, "wrote a line that is not a JSON object: %.*s",
                       (int)(len > 80 ? 80 : len), line);
    } else {
        (void)snprintf(why, WHY, "answered an unknown id, or one that has its answer already: %.*s",
                       (int)(len > 80 ? 80 : len), line);
    }
    tkc_arena_free(&arena);
    return a != NULL;
}

static void take_lines(tkr_children *c, child *p)
{
    size_t from = 0;
    char why[WHY];
    bool ok = true;
    while (ok && p->pid) {
        const char *at = p->reading.data + from;
        const char *end = p->reading.len > from ? memchr(at, '\n', p->reading.len - from) : NULL;
        if (!end)
            break;
        size_t len = (size_t)(end - at);
        from += len + 1;
        if (len)
            ok = take_line(c, p, at, len, why);
    }
    if (from && p->reading.len >= from) {
        memmove(p->reading.data, p->reading.data + from, p->reading.len - from);
        p->reading.len -= from;
    }
    if (!ok)
        end_child(c, p, why);
}

static void receive(tkr_children *c, child *p)
{
    tinkc_error err = { 0 };
    bool quiet = p->log >= 0 && !drain(p->log, &p->logging, &err);
    pass_log(c, p, &p->logging, quiet || p->logging.len > MOST_LINE / 2);
    if (quiet)
        close_fd(&p->log);
    err = (tinkc_error){ 0 };
    bool open = drain(p->out, &p->reading, &err);
    take_lines(c, p);
    if (!p->pid)
        return;
    if (err.code)
        end_child(c, p, "wrote a line of more than 16 MiB");
    else if (!open)
        end_child(c, p, NULL);
}

static void kill_slow(tkr_children *c)
{
    int64_t now = tkr_now_ms();
    for (bool again = true; again;) {
        again = false;
        for (ask *a = c->first; a; a = a->next)
            if (a->sent && now >= a->deadline_ms) {
                char why[WHY];
                (void)snprintf(why, sizeof why, "did not answer within %lld ms and was killed",
                               (long long)c->how.timeout_ms);
                a->attempts = c->how.attempts; /* timed out: do not retry */
                end_child(c, &c->all[a->child], why);
                again = true;
                break;
            }
    }
}

/* ---- the whole ---- */

bool tkr_children_pass(tkr_children *c, const char *name, tinkc_error *err)
{
    if (!name || !*name || strchr(name, '='))
        return tkc_fail(err, TINKC_E_ARGUMENT, "'%.60s' is not the name of a variable",
                        name ? name : "");
    if (c->n_pass == MOST_PASSED)
        return tkc_fail(err, TINKC_E_ARGUMENT, "more than %d variables to pass on", MOST_PASSED);
    c->pass[c->n_pass] = tkc_copy_str(NULL, (tinkc_str){ name, strlen(name) }, err);
    return c->pass[c->n_pass] && ++c->n_pass;
}

tkr_children *tkr_children_new(const tkr_children_options *how, tinkc_error *err)
{
    tkr_children *c = tkc_zalloc(NULL, sizeof *c, err);
    if (!c)
        return NULL;
    c->how = *how;
    c->last = &c->first;
    c->command = tkc_copy_str(NULL, (tinkc_str){ how->command, strlen(how->command) }, err);
    c->all = tkc_zalloc(NULL, how->processes * sizeof *c->all, err);
    for (size_t i = 0; c->all && i < how->processes; i++) {
        child *p = &c->all[i];
        p->in = p->out = p->log = -1;
        tkc_buf_init(&p->sending, NULL, TKC_BUF_NO_MAX);
        tkc_buf_init(&p->reading, NULL, MOST_LINE);
        tkc_buf_init(&p->logging, NULL, MOST_LINE);
    }
    if (!tkc_failed(err))
        return c;
    tkr_children_free(c);
    return NULL;
}

void tkr_children_free(tkr_children *c)
{
    if (!c)
        return;
    for (ask *a = c->first, *next; a; a = next) {
        next = a->next;
        release_ask(a);
    }
    c->first = NULL;
    c->how.log = NULL; /* its owner may be freed, and a requested end needs no log line */
    for (size_t i = 0; c->all && i < c->how.processes; i++) {
        reap(c, &c->all[i], "is not needed any more");
        tkc_buf_free(&c->all[i].sending);
        tkc_buf_free(&c->all[i].reading);
        tkc_buf_free(&c->all[i].logging);
    }
    tkc_release(NULL, c->all, c->how.processes * sizeof *c->all);
    for (size_t i = 0; i < c->n_pass; i++)
        tkc_release_str(NULL, c->pass[i]);
    tkc_release_str(NULL, c->command);
    tkc_release(NULL, c, sizeof *c);
}

size_t tkr_children_poll(const tkr_children *c, struct pollfd *out, size_t max,
                         int64_t *deadline_ms)
{
    size_t n = 0;
    for (size_t i = 0; i < c->how.processes && n + 3 <= max; i++) {
        const child *p = &c->all[i];
        if (!p->pid)
            continue;
        out[n++] = (struct pollfd){ .fd = p->out, .events = POLLIN };
        if (p->log >= 0)
            out[n++] = (struct pollfd){ .fd = p->log, .events = POLLIN };
        if (p->sending.len)
            out[n++] = (struct pollfd){ .fd = p->in, .events = POLLOUT };
    }
    for (const ask *a = c->first; a; a = a->next)
        if (a->sent && a->deadline_ms < *deadline_ms)
            *deadline_ms = a->deadline_ms;
    return n;
}

bool tkr_children_run(tkr_children *c, tinkc_error *err)
{
    if (!send_asks(c, err))
        return false;
    for (size_t i = 0; i < c->how.processes; i++) {
        child *p = &c->all[i];
        flush_child(p);
        if (p->pid)
            receive(c, p);
    }
    kill_slow(c);
    if (c->deaths >= MOST_DEATHS)
        return tkc_fail(err, TINKC_E_FILE, "%s (%d times in a row): %s", c->why, MOST_DEATHS,
                        c->command);
    if (!send_asks(c, err))
        return false;
    for (size_t i = 0; i < c->how.processes; i++)
        flush_child(&c->all[i]);
    return true;
}
