/* stub_server.c - epoll, one thread, one connection object for each socket.
 *
 * A connection reads one request, asks the test's function, then writes what the answer's behaviour
 * says. Pipelined requests wait in the input buffer. Errors of the test machine itself (no socket,
 * no memory) end the program: a test cannot continue then.
 */
#include "support/client/stub_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { READ_SIZE = 64 * 1024, MAX_EVENTS = 256, ENDLESS_PIECE = 16 * 1024 };

typedef struct connection connection;
struct connection {
    connection *next, **link;
    int fd;
    uint64_t number;
    char *in;
    size_t in_len, in_cap;
    char *out; /* what is left to send: out_at .. out_len */
    size_t out_len, out_at, out_cap;
    int64_t due_ms; /* nothing is sent before it; -1 = send */
    int64_t drip_ms;
    bool busy; /* an answer is under way */
    bool reset_after, close_after, silent_after, endless, want_out, dead;
};

struct stub_server {
    int listener, epoll, stop_fd, port;
    char url[64];
    char unix_path[108];
    pthread_t thread;
    stub_fn *fn;
    void *user;
    atomic_ullong requests, accepted, most_open, sent;

    /* the server's thread only */
    connection *all;
    uint64_t open;
    int64_t next_due_ms; /* -1 = none */
};

static void die(const char *what)
{
    perror(what);
    exit(99);
}

static void *must(void *p)
{
    if (!p)
        die("memory");
    return p;
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void raise_to(atomic_ullong *most, uint64_t value)
{
    if (atomic_load(most) < value)
        atomic_store(most, value);
}

/* ---- output ---- */

static void out_add(connection *c, const void *data, size_t len)
{
    if (c->out_len + len > c->out_cap) {
        c->out_cap = (c->out_len + len) * 2;
        c->out = must(realloc(c->out, c->out_cap));
    }
    if (len)
        memcpy(c->out + c->out_len, data, len);
    c->out_len += len;
}

static void out_text(connection *c, const char *text)
{
    out_add(c, text, strlen(text));
}

static void write_head(connection *c, const stub_answer *a, size_t body_len)
{
    char line[160];
    int status = a->status ? a->status : 200;
    snprintf(line, sizeof line, "HTTP/1.1 %d Stub\r\n", status);
    out_text(c, line);
    if (a->chunked || a->behaviour == STUB_ENDLESS)
        out_text(c, "Transfer-Encoding: chunked\r\n");
    else if (!a->until_close && status != 204 && status != 304) {
        snprintf(line, sizeof line, "Content-Length: %zu\r\n", body_len);
        out_text(c, line);
    }
    if (a->close || a->until_close)
        out_text(c, "Connection: close\r\n");
    if (a->headers)
        out_text(c, a->headers);
    out_text(c, "\r\n");
}

static void write_body(connection *c, const stub_answer *a, const char *body, size_t len)
{
    char line[32];
    if (!a->chunked) {
        out_add(c, body, len);
        return;
    }
    /* Two chunks, so that the seam is tested. */
    size_t half = len / 2;
    for (int i = 0; i < 2; i++) {
        size_t from = i ? half : 0, to = i ? len : half;
        if (to == from)
            continue;
        snprintf(line, sizeof line, "%zx\r\n", to - from);
        out_text(c, line);
        out_add(c, body + from, to - from);
        out_text(c, "\r\n");
    }
    out_text(c, "0\r\n\r\n");
}

static void prepare(connection *c, const stub_answer *a, bool head_request)
{
    const char *body = a->body ? a->body : "";
    size_t len = a->body_len ? a->body_len : strlen(body);
    size_t cut = a->after < len ? a->after : len;
    c->drip_ms = 0;
    c->close_after = a->close || a->until_close;
    switch (a->behaviour) {
    case STUB_RESET_NOW:
        c->reset_after = true;
        break;
    case STUB_GARBAGE:
        out_text(c, "\x01\x02 this is not http\r\n\r\n");
        c->close_after = true;
        break;
    case STUB_RESET:
    case STUB_TRUNCATE:
    case STUB_SILENT:
        if (a->behaviour != STUB_SILENT || a->after) {
            write_head(c, a, len);
            out_add(c, body, cut);
        }
        c->reset_after = a->behaviour == STUB_RESET;
        c->close_after = a->behaviour == STUB_TRUNCATE;
        c->silent_after = a->behaviour == STUB_SILENT;
        break;
    case STUB_ENDLESS:
        write_head(c, a, 0);
        c->endless = true;
        break;
    default:
        write_head(c, a, len);
        if (!head_request)
            write_body(c, a, body, len);
        if (a->behaviour == STUB_DRIP)
            c->drip_ms = a->drip_ms;
    }
}

/* ---- input ---- */

static size_t content_length(const char *headers)
{
    const char *at = strcasestr(headers, "\ncontent-length:");
    return at ? (size_t)strtoull(at + 16, NULL, 10) : 0;
}

/* Answers the request at the front of the input if it is whole. */
static bool serve_one(stub_server *s, connection *c)
{
    char *end = c->in_len ? memmem(c->in, c->in_len, "\r\n\r\n", 4) : NULL;
    if (!end)
        return false;
    size_t head = (size_t)(end - c->in) + 4;
    end[2] = 0; /* the headers end behind their last \r\n */
    size_t body_len = content_length(c->in);
    if (c->in_len - head < body_len) {
        end[2] = '\r';
        return false;
    }
    char *line_end = strstr(c->in, "\r\n");
    char *space = strchr(c->in, ' '), *second = space ? strchr(space + 1, ' ') : NULL;
    stub_answer a = { 0 };
    if (!second || second > line_end) {
        a.status = 400;
        prepare(c, &a, false);
    } else {
        *space = *second = 0;
        stub_request r = { .method = c->in,
                           .path = space + 1,
                           .headers = line_end + 2,
                           .body = c->in + head,
                           .body_len = body_len,
                           .index = atomic_fetch_add(&s->requests, 1),
                           .connection = c->number };
        s->fn(&r, &a, s->user);
        prepare(c, &a, strcmp(r.method, "HEAD") == 0);
    }
    c->busy = true;
    c->due_ms = a.delay_ms > 0 ? now_ms() + a.delay_ms : -1;
    c->in_len -= head + body_len;
    memmove(c->in, c->in + head + body_len, c->in_len);
    return true;
}

/* ---- one connection ---- */

static void end_connection(stub_server *s, connection *c, bool reset)
{
    if (reset) {
        struct linger hard = { .l_onoff = 1, .l_linger = 0 };
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    }
    close(c->fd);
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    s->open--;
    free(c->in);
    free(c->out);
    free(c);
}

static void watch(stub_server *s, connection *c, bool out)
{
    if (out == c->want_out)
        return;
    c->want_out = out;
    struct epoll_event e = { .events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c };
    epoll_ctl(s->epoll, EPOLL_CTL_MOD, c->fd, &e);
}

static void remember_due(stub_server *s, int64_t due)
{
    if (due >= 0 && (s->next_due_ms < 0 || due < s->next_due_ms))
        s->next_due_ms = due;
}

/* How many bytes may go now: all, or one at a time for a drip (the head goes at once). */
static size_t allowance(const connection *c)
{
    size_t left = c->out_len - c->out_at;
    if (c->drip_ms <= 0 || !left)
        return left;
    char *head_end = memmem(c->out, c->out_len, "\r\n\r\n", 4);
    size_t head = head_end ? (size_t)(head_end - c->out) + 4 : 0;
    return c->out_at < head ? head - c->out_at : 1;
}

static void add_endless(connection *c)
{
    static const char piece[ENDLESS_PIECE];
    char line[32];
    snprintf(line, sizeof line, "%x\r\n", ENDLESS_PIECE);
    c->out_len = c->out_at = 0;
    out_text(c, line);
    out_add(c, piece, sizeof piece);
    out_text(c, "\r\n");
}

/* Writes what may be written. False: the connection has ended. */
static bool advance(stub_server *s, connection *c)
{
    while (c->busy) {
        if (c->due_ms >= 0 && now_ms() < c->due_ms) {
            remember_due(s, c->due_ms);
            watch(s, c, false);
            return true;
        }
        c->due_ms = -1;
        size_t want = allowance(c);
        if (want) {
            ssize_t n = send(c->fd, c->out + c->out_at, want, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
                watch(s, c, true);
                return true;
            }
            if (n < 0) {
                end_connection(s, c, false);
                return false;
            }
            atomic_fetch_add(&s->sent, (uint64_t)n);
            c->out_at += (size_t)n;
            if (c->drip_ms > 0)
                c->due_ms = now_ms() + c->drip_ms;
            continue;
        }
        if (c->endless) {
            add_endless(c);
            continue;
        }
        if (c->reset_after || c->close_after) {
            end_connection(s, c, c->reset_after);
            return false;
        }
        if (c->silent_after)
            break;
        c->busy = false;
        c->out_len = c->out_at = 0;
        serve_one(s, c);
    }
    watch(s, c, false);
    return true;
}

static void read_some(stub_server *s, connection *c)
{
    if (c->in_cap - c->in_len < READ_SIZE) {
        c->in_cap = (c->in_len + READ_SIZE) * 2;
        c->in = must(realloc(c->in, c->in_cap));
    }
    ssize_t n = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        end_connection(s, c, false);
        return;
    }
    c->in_len += (size_t)n;
    if (!c->busy && c->in[0] == 0x16) { /* somebody tries TLS */
        prepare(c, &(stub_answer){ .status = 400, .close = true }, false);
        c->busy = true;
        advance(s, c);
        return;
    }
    if (!c->busy && serve_one(s, c))
        advance(s, c);
}

static void accept_all(stub_server *s)
{
    int fd;
    while ((fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        connection *c = must(calloc(1, sizeof *c));
        c->fd = fd;
        c->due_ms = -1;
        c->number = atomic_fetch_add(&s->accepted, 1);
        c->next = s->all;
        c->link = &s->all;
        if (s->all)
            s->all->link = &c->next;
        s->all = c;
        raise_to(&s->most_open, ++s->open);
        struct epoll_event e = { .events = EPOLLIN, .data.ptr = c };
        if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &e) != 0)
            die("epoll_ctl");
    }
}

static void run_due(stub_server *s)
{
    if (s->next_due_ms < 0 || now_ms() < s->next_due_ms)
        return;
    s->next_due_ms = -1;
    for (connection *c = s->all, *next; c; c = next) {
        next = c->next;
        if (c->busy && c->due_ms >= 0)
            advance(s, c);
    }
}

static void *serve(void *arg)
{
    stub_server *s = arg;
    struct epoll_event events[MAX_EVENTS];
    for (;;) {
        int64_t wait = s->next_due_ms < 0 ? -1 : s->next_due_ms - now_ms();
        if (wait < 0 && s->next_due_ms >= 0)
            wait = 0;
        int n = epoll_wait(s->epoll, events, MAX_EVENTS, (int)wait);
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr == &s->stop_fd)
                goto done;
            if (events[i].data.ptr == &s->listener) {
                accept_all(s);
                continue;
            }
            connection *c = events[i].data.ptr;
            if ((events[i].events & EPOLLOUT) && !advance(s, c))
                continue;
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                read_some(s, c);
        }
        run_due(s);
    }
done:
    while (s->all)
        end_connection(s, s->all, false);
    return NULL;
}

/* ---- life ---- */

static void listen_tcp(stub_server *s)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof a;
    int one = 1;
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listener < 0 || setsockopt(s->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(s->listener, (struct sockaddr *)&a, sizeof a) != 0 ||
        getsockname(s->listener, (struct sockaddr *)&a, &len) != 0)
        die("stub server");
    s->port = ntohs(a.sin_port);
    snprintf(s->url, sizeof s->url, "http://127.0.0.1:%d", s->port);
}

static void listen_unix(stub_server *s, const char *path)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    snprintf(s->unix_path, sizeof s->unix_path, "%s", path);
    unlink(path);
    s->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listener < 0 || bind(s->listener, (struct sockaddr *)&a, sizeof a) != 0)
        die("stub server");
    snprintf(s->url, sizeof s->url, "http://localhost");
}

static void add_own(stub_server *s, int *fd)
{
    struct epoll_event e = { .events = EPOLLIN, .data.ptr = fd };
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, *fd, &e) != 0)
        die("epoll_ctl");
}

stub_server *stub_start(const char *unix_path, stub_fn *fn, void *user)
{
    stub_server *s = must(calloc(1, sizeof *s));
    s->fn = fn;
    s->user = user;
    s->next_due_ms = -1;
    if (unix_path)
        listen_unix(s, unix_path);
    else
        listen_tcp(s);
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (s->epoll < 0 || s->stop_fd < 0 || listen(s->listener, 4096) != 0)
        die("stub server");
    add_own(s, &s->listener);
    add_own(s, &s->stop_fd);
    if (pthread_create(&s->thread, NULL, serve, s) != 0)
        die("stub server");
    return s;
}

void stub_stop(stub_server *s)
{
    if (!s)
        return;
    uint64_t one = 1;
    if (write(s->stop_fd, &one, sizeof one) != sizeof one)
        die("stub server");
    pthread_join(s->thread, NULL);
    close(s->listener);
    close(s->epoll);
    close(s->stop_fd);
    if (s->unix_path[0])
        unlink(s->unix_path);
    free(s);
}

const char *stub_url(const stub_server *s)
{
    return s->url;
}

int stub_port(const stub_server *s)
{
    return s->port;
}

uint64_t stub_requests(const stub_server *s)
{
    return atomic_load(&s->requests);
}

uint64_t stub_connections(const stub_server *s)
{
    return atomic_load(&s->accepted);
}

uint64_t stub_most_open(const stub_server *s)
{
    return atomic_load(&s->most_open);
}

uint64_t stub_sent(const stub_server *s)
{
    return atomic_load(&s->sent);
}

int stub_dead_port(void)
{
    stub_server s = { 0 };
    listen_tcp(&s); /* bound and never closed, so that no other process gets it */
    return s.port;
}

const char *stub_header(const stub_request *r, const char *name, char *out, size_t cap)
{
    size_t name_len = strlen(name);
    out[0] = 0;
    for (const char *line = r->headers; line && *line;) {
        const char *end = strstr(line, "\r\n");
        size_t len = end ? (size_t)(end - line) : strlen(line);
        if (len > name_len && line[name_len] == ':' && !strncasecmp(line, name, name_len)) {
            const char *value = line + name_len + 1;
            while (*value == ' ')
                value++;
            snprintf(out, cap, "%.*s", (int)(line + len - value), value);
            return out;
        }
        line = end ? end + 2 : NULL;
    }
    return out;
}
