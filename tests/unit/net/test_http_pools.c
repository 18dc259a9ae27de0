/* test_http_pools.c - pools, queues, silence, sockets and timers of the transport. */
#include "support/client/http_script.h"

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/platform.h"

/* Every wait of the transport: how long the last one may last, as epoll_wait and poll understand it. */
static atomic_int last_wait_ms;
static atomic_bool in_epoll; /* then what waits in poll is not the transport */

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout_ms)
{
    atomic_store(&in_epoll, true);
    atomic_store(&last_wait_ms, timeout_ms);
    return epoll_pwait(epoll, events, most, timeout_ms, NULL);
}

int poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    struct timespec limit = { timeout_ms / 1000, timeout_ms % 1000 * 1000000L };
    if (!atomic_load(&in_epoll))
        atomic_store(&last_wait_ms, timeout_ms);
    return ppoll(fds, n, timeout_ms < 0 ? NULL : &limit, NULL);
}

/* The loop is at rest, so the wait that it is in, or about to begin, is the last one. */
static void assert_waits(int ms)
{
    wait_until(atomic_load(&last_wait_ms) == ms);
    assert_int_equal(atomic_load(&last_wait_ms), ms);
}

/* ---- silence, on the test's clock ---- */

TEST_WITH(silence_is_a_failure, setup, teardown)
{
    char want[100];
    (void)snprintf(want, sizeof want, "fail %d the peer was silent for 1000 ms;", TINKC_E_NET_TIMEOUT);
    open_with(&(tkc_http_options){ .proxy = "" });
    exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN)); /* connected, nothing comes */
    assert_int_equal(play(0, be_connected, NULL), 1000);
    advance(999);
    assert_string_equal(x->log, "");
    advance(1);
    assert_string_equal(x->log, want);

    x = sent(make("GET", "http://h", TINKC_POOL_TRAIN)); /* still connecting: that has its own limit */
    advance(1000);
    assert_string_equal(x->log, "");
    advance(999);
    assert_string_equal(x->log, "");
    advance(1);
    assert_string_equal(x->log, want);

    x = sent(make("GET", "http://h", TINKC_POOL_TRAIN)); /* upload progress, then silence */
    advance(600);
    assert_int_equal(play(2, see_progress, "5"), 400);
    advance(400);
    advance(599);
    assert_string_equal(x->log, "");
    advance(1);
    assert_string_equal(x->log, want);

    x = sent(make("GET", "http://h", TINKC_POOL_TRAIN)); /* the same count is not progress */
    advance(600);
    play(3, see_progress, "0");
    play(3, be_connected, NULL);
    advance(400);
    assert_string_equal(x->log, want);

    x = sent(make("GET", "http://h", TINKC_POOL_TRAIN)); /* header lines and bodies are signs of life */
    advance(900);
    play(4, head_only, "HTTP/1.1 200 OK\r\n\r\n");
    advance(900);
    play(4, body_only, "x");
    advance(999);
    assert_string_equal(x->log, "200;head;body x;");
    advance(1);
    assert_non_null(strstr(x->log, want));
}

static void see_both(scripted_easy *e, const char *unused)
{
    (void)unused;
    assert_int_equal(e->progress_fn(e->progress_data, 0, 5, 0, 5), 0);
}

static void fail_to_know(scripted_easy *e, const char *unused)
{
    (void)e, (void)unused;
    scripted_curl_fails = "easy_getinfo";
}

/* The shortest limit; bytes both ways, as many; a connection that libcurl knows nothing of. */
TEST_WITH(silence_at_its_edges, setup, teardown)
{
    open_with(&(tkc_http_options){ .proxy = "" });
    exchange *x = make("GET", "http://h", TINKC_POOL_TRAIN);
    x->request.idle_timeout_ms = 1;
    sent(x);
    assert_int_equal(play(0, be_connected, NULL), 1);
    advance(1);
    assert_string_equal(x->log, failed_as(TINKC_E_NET_TIMEOUT, "the peer was silent for 1 ms"));
    x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    play(1, be_connected, NULL);
    advance(600);
    play(1, see_both, NULL);
    advance(999);
    assert_string_equal(x->log, "");
    x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    play(2, fail_to_know, NULL);
    advance(1000);
    assert_string_equal(x->log, ""); /* still connecting, as far as anybody knows */
    assert_null(scripted_curl_fails);
}

TEST_WITH(no_limit_of_silence, setup, teardown)
{
    static const int64_t limits[] = { 0, TINKC_FOREVER };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < 2; i++) {
        exchange *x = make("GET", "http://h", TINKC_POOL_TRAIN);
        x->request.idle_timeout_ms = limits[i];
        post(x, send_now);
        assert_int_equal(settle(), TINKC_FOREVER);
    }
}

/* A reader without room pauses the transfer; the time until it continues is not the peer's silence. */
TEST_WITH(pauses_are_not_silence, setup, teardown)
{
    open_with(&(tkc_http_options){ .proxy = "" });
    exchange *x = make("GET", "http://h", TINKC_POOL_TRAIN);
    x->reply.room = on_room;
    sent(x);
    play(0, head_only, "HTTP/1.1 200 OK\r\n\r\n");
    x->room = 1;
    play(0, body_only, "a");
    x->room = 0;
    play(0, body_only, "b");
    assert_string_equal(x->log, "200;head;body a;");
    assert_int_equal(settle(), 1000);
    advance(1000);
    assert_int_equal(settle(), 1000);
    advance(700);
    assert_string_equal(x->log, "200;head;body a;");
    x->room = 1;
    post(x, resume_now);
    assert_int_equal(settle(), 300); /* looks again, and counts from the resumption */
    assert_int_equal(scripted_nth(0)->pauses, 1);
    post(x, resume_now); /* nothing is paused: nothing happens */
    settle();
    assert_int_equal(scripted_nth(0)->pauses, 1);
    advance(300);
    assert_string_equal(x->log, "200;head;body a;");
    assert_int_equal(settle(), 700);
    advance(700);
    assert_non_null(strstr(x->log, "silent for 1000 ms"));
}

/* ---- pools ---- */

TEST_WITH(kinds_have_shares_of_the_connections, setup, teardown)
{
    static const struct {
        int32_t kind, limit;
        size_t want;
    } rows[] = {
        { TINKC_POOL_RETRIEVE, 128, 60 },
        { TINKC_POOL_SAMPLE, 128, 32 },
        { TINKC_POOL_TRAIN, 128, 16 },
        { TINKC_POOL_REST, 256, 16 },
        { TINKC_POOL_SESSION, 640, 10 },
        { TINKC_POOL_TELEMETRY, 640, 10 },
        { TINKC_POOL_CONFIG, 640, 10 },
        { TINKC_POOL_AUTH, 640, 10 },
        { TINKC_POOL_AUTH, 1, 8 }, /* every kind may have eight */
        { TINKC_POOL_RETRIEVE, 1, 8 },
        { TINKC_POOL_RETRIEVE, 20, 9 },
        { TINKC_POOL_FUTURES, 320, 10 },
        { -1, 256, 16 },
        { 9, 256, 16 }, /* unknown kinds are plain calls */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char want[64];
        if (i)
            setup(NULL);
        open_with(&(tkc_http_options){ .proxy = "", .max_connections = rows[i].limit });
        for (size_t k = 0; k < rows[i].want + 2; k++)
            post(make("GET", "http://h", rows[i].kind), send_now);
        settle();
        if (scripted_added() != rows[i].want)
            fail_msg("row %zu: %zu at once", i, scripted_added());
        bool single = rows[i].kind == TINKC_POOL_TRAIN;
        (void)snprintf(want, sizeof want, "PIPELINING=%d\nMAX_CONCURRENT_STREAMS=50\nMAXCONNECTS=%zu\n", single ? 0 : 2,
                       rows[i].want);
        assert_string_equal(scripted_multi_nth(0)->settings, want);
        /* one ends, the next in line begins */
        play(0, head_and_end, "HTTP/1.1 200 OK\r\n\r\n");
        assert_int_equal(scripted_added(), rows[i].want + 1);
        assert_memory_equal(all[0].log, "200;", 4);
        if (i + 1 < sizeof rows / sizeof *rows)
            assert_int_equal(teardown(NULL), 0);
    }
}

/* Once an answer has come over HTTP/2, fifty requests share a connection, but for training. Kinds that
 * talk to the service alone open no more connections than they need. */
TEST_WITH(http2_shares_connections, setup, teardown)
{
    static const struct {
        int32_t kind;
        size_t want;
        bool limited;
    } rows[] = { { TINKC_POOL_RETRIEVE, 400, true },
                 { TINKC_POOL_SAMPLE, 400, true },
                 { TINKC_POOL_REST, 400, false },
                 { TINKC_POOL_TRAIN, 8, false } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (i)
            setup(NULL);
        open_with(&(tkc_http_options){ .proxy = "", .max_connections = 16 });
        sent(make("GET", "http://h", rows[i].kind));
        play(0, answer_http2, "HTTP/2 200\r\n\r\n");
        const char *limits = scripted_multi_nth(0)->settings;
        for (size_t k = 0; k < rows[i].want + 1; k++) {
            post(make("GET", "http://h", rows[i].kind), send_now);
            if (k == 49) {
                settle();
                assert_int_equal(strstr(limits, "MAX_HOST_CONNECTIONS=1\n") != NULL, rows[i].limited);
                assert_null(strstr(limits, "MAX_HOST_CONNECTIONS=2\n"));
            }
        }
        settle();
        assert_int_equal(scripted_added(), 1 + rows[i].want);
        assert_int_equal(strstr(limits, "MAX_HOST_CONNECTIONS=1\nMAX_HOST_CONNECTIONS=2\n"
                                        "MAX_HOST_CONNECTIONS=3\nMAX_HOST_CONNECTIONS=4\n"
                                        "MAX_HOST_CONNECTIONS=5\nMAX_HOST_CONNECTIONS=6\n"
                                        "MAX_HOST_CONNECTIONS=7\nMAX_HOST_CONNECTIONS=8\n") != NULL,
                         rows[i].limited);
        assert_null(strstr(limits, "MAX_HOST_CONNECTIONS=9\n"));
        if (i + 1 < sizeof rows / sizeof *rows)
            assert_int_equal(teardown(NULL), 0);
    }
}

/* Connections that nobody has used for a minute are closed; the next request opens its own. */
TEST_WITH(idle_pools_are_closed, setup, teardown)
{
    open_with(&(tkc_http_options){ .proxy = "" });
    sent(make("GET", "http://h", TINKC_POOL_RETRIEVE));
    exchange *x = make("GET", "http://h", TINKC_POOL_REST);
    x->request.idle_timeout_ms = TINKC_FOREVER;
    sent(x);
    assert_int_equal(scripted_multis_open(), 2);
    play(0, answer_http2, "HTTP/2 200\r\n\r\n");
    sent(make("GET", "http://h", TINKC_POOL_RETRIEVE)); /* this one knows of HTTP/2 */
    assert_non_null(strstr(scripted_multi_nth(0)->settings, "MAX_HOST_CONNECTIONS=1\n"));
    assert_int_equal(play(2, answer_http2, "HTTP/2 200\r\n\r\n"), 60000);
    advance(59999);
    assert_int_equal(scripted_multis_open(), 2);
    advance(1);
    assert_int_equal(scripted_multis_open(), 1); /* the other one is in use */
    assert_int_equal(settle(), TINKC_FOREVER);
    sent(make("GET", "http://h", TINKC_POOL_RETRIEVE));
    assert_int_equal(scripted_multis_open(), 2);
    assert_string_equal(scripted_multi_nth(2)->settings,
                        "PIPELINING=2\nMAX_CONCURRENT_STREAMS=50\nMAXCONNECTS=468\n"
                        "MAX_HOST_CONNECTIONS=1\n"); /* set again: it is another pool */
    play(3, head_and_end, "HTTP/1.1 200 OK\r\n\r\n");
    advance(30000);
    x = make("GET", "http://h", TINKC_POOL_RETRIEVE); /* used in between: the minute begins again */
    x->request.idle_timeout_ms = TINKC_FOREVER;
    sent(x);
    assert_int_equal(settle(), TINKC_FOREVER);
    assert_int_equal(play(4, head_and_end, "HTTP/1.1 200 OK\r\n\r\n"), 60000);
    /* a failure and a cancelled request leave an idle pool, too */
    sent(make("GET", "http://h", TINKC_POOL_RETRIEVE));
    post(&all[n_sent - 1], cancel_now);
    assert_int_equal(settle(), 60000);
    char want[64];
    (void)snprintf(want, sizeof want, "fail %d no longer wanted;", TINKC_E_CONNECTION);
    assert_string_equal(all[n_sent - 1].log, want);
    post(&all[n_sent - 1], cancel_now); /* it has ended: nothing more is said */
    settle();
    assert_string_equal(all[n_sent - 1].log, want);
}

/* ---- the queue ---- */

/* Requests wait in order; those that are cancelled leave it, wherever they stand. */
TEST_WITH(the_queue_keeps_its_order, setup, teardown)
{
    static const size_t cancelled[] = { 14, 10, 8 }; /* the last, one between, the first */
    static const size_t order[] = { 9, 11, 12, 13, 15 };
    open_with(&(tkc_http_options){ .proxy = "", .max_connections = 1 });
    for (size_t i = 0; i < 15; i++) {
        exchange *x = make("GET", "http://h", TINKC_POOL_REST);
        x->request.idle_timeout_ms = TINKC_FOREVER;
        sent(x);
    }
    assert_int_equal(scripted_added(), 8);
    for (size_t i = 0; i < 3; i++) {
        post(&all[cancelled[i]], cancel_now);
        settle();
        assert_string_equal(all[cancelled[i]].log, failed_as(TINKC_E_CONNECTION, "no longer wanted"));
    }
    assert_int_equal(scripted_added(), 8); /* none of them was sent */
    sent(make("GET", "http://h", TINKC_POOL_REST));
    for (size_t i = 0; i < 5; i++) {
        play(i, head_and_end, "HTTP/1.1 200 OK\r\n\r\n");
        assert_int_equal(scripted_added(), 9 + i);
        play(8 + i, head_only, "HTTP/1.1 201 x\r\n\r\n");
        assert_string_equal(all[order[i]].log, "201;:url=http://h/p;:version=;head;");
    }
}

static void end_both(scripted_easy *e, const char *unused)
{
    (void)unused;
    (void)scripted_head(e, "HTTP/1.1 200 OK\r\n\r\n");
    (void)scripted_head(scripted_nth(1), "HTTP/1.1 200 OK\r\n\r\n");
    scripted_end(scripted_nth(1), CURLE_OK);
    scripted_end(e, CURLE_OK);
}

static void cancel_three(void)
{
    for (size_t i = 0; i < 3; i++)
        cancel_now(&all[i].task);
    cancel_now(&all[2].task); /* again */
}

static void send_last(void)
{
    send_now(&all[n_sent - 1].task);
}

/* A reply's end may cancel others, one of which has ended in the same round, and send another. */
TEST_WITH(replies_act_from_inside_their_end, setup, teardown)
{
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < 3; i++)
        sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    all[0].at_end = cancel_three;
    play(0, end_both, NULL);
    assert_string_equal(all[0].log, "200;head;end;");
    assert_string_equal(all[1].log, "200;head;end;");
    assert_string_equal(all[2].log, failed_as(TINKC_E_CONNECTION, "no longer wanted"));
    exchange *x = sent(make("GET", "http://h", TINKC_POOL_TRAIN));
    x->at_end = send_last;
    exchange *next = make("GET", "http://h", TINKC_POOL_TRAIN);
    play(3, head_and_end, "HTTP/1.1 200 OK\r\n\r\n");
    assert_int_equal(scripted_added(), 5);
    play(4, head_and_end, "HTTP/1.1 204 x\r\n\r\n");
    assert_string_equal(next->log, "204;head;end;");
    post(x, resume_now); /* it has ended */
    settle();
}

static void resume_and_cancel(tkc_task *task)
{
    resume_now(task);
    cancel_now(task);
}

TEST_WITH(a_paused_one_is_cancelled, setup, teardown)
{
    open_with(&(tkc_http_options){ .proxy = "" });
    exchange *x = make("GET", "http://h", TINKC_POOL_TRAIN);
    x->reply.room = on_room;
    sent(x);
    play(0, head_only, "HTTP/1.1 200 OK\r\n\r\n");
    for (int i = 1; i <= 2; i++) { /* it may pause again */
        play(0, body_only, "a");
        post(x, resume_now);
        settle();
        assert_int_equal(scripted_nth(0)->pauses, i);
    }
    play(0, body_only, "a");
    post(x, resume_and_cancel);
    settle();
    char want[300];
    (void)snprintf(want, sizeof want, "200;head;%s", failed_as(TINKC_E_CONNECTION, "no longer wanted"));
    assert_string_equal(x->log, want);
    assert_int_equal(scripted_easies_open(), 0);
}

/* ---- limits of the process ---- */

static char logged[256];
static void keep_log(int32_t level, const char *text, void *user)
{
    (void)user;
    (void)snprintf(logged, sizeof logged, "%d %s", (int)level, text);
}

TEST_WITH(files_limit_connections, setup, teardown)
{
    static const struct {
        rlim_t files;
        int32_t wanted;
        const char *share, *log;
    } rows[] = {
        { 264, 200, "MAXCONNECTS=93\n", "" },
        { 264, 201, "MAXCONNECTS=93\n", "at most 200 connections instead of 201: the process may open no more files" },
        { 264, 0, "MAXCONNECTS=93\n", "at most 200 connections instead of 1000: the process may open no more files" },
        { 130, 1000, "MAXCONNECTS=30\n", "at most 66 connections instead of 1000: the process may open no more files" },
        { 100, 1000, "MAXCONNECTS=23\n", "at most 50 connections instead of 1000: the process may open no more files" },
    };
    struct rlimit before, low;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (i)
            setup(NULL);
        tkc_log log = { .fn = keep_log, .level = TINKC_LOG_INFO };
        logged[0] = 0;
        low.rlim_cur = rows[i].files;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
        open_with(&(tkc_http_options){ .proxy = "", .max_connections = rows[i].wanted, .log = &log });
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        sent(make("GET", "http://h", TINKC_POOL_RETRIEVE));
        assert_non_null(strstr(scripted_multi_nth(0)->settings, rows[i].share));
        assert_int_equal(logged[0] != 0, rows[i].log[0] != 0);
        assert_non_null(strstr(logged, rows[i].log));
        if (i + 1 < sizeof rows / sizeof *rows)
            assert_int_equal(teardown(NULL), 0);
    }
}

static bool needs_descriptor(void)
{
    tinkc_error err = { 0 };
    tkc_watch *watch = tkc_watch_new(NULL, &err);
    tkc_watch_free(watch);
    return !watch;
}

/* Without a descriptor to wait with, where one is needed, a request fails; the next one tries again. */
TEST_WITH(no_descriptor_to_wait_with, setup, teardown)
{
    struct rlimit before, none;
    open_with(&(tkc_http_options){ .proxy = "" });
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    bool needed = needs_descriptor();
    exchange *x = needed ? sent(make("GET", "http://h", TINKC_POOL_TRAIN)) : NULL;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    if (!needed)
        return;
    const char *want = failed_as(TINKC_E_CONNECTION, "epoll: ");
    assert_memory_equal(x->log, want, strlen(want) - 1);
    x->log[0] = 0;
    sent(x);
    play(0, head_and_end, "HTTP/1.1 200 OK\r\n\r\n");
    assert_string_equal(x->log, "200;head;end;");
}

/* ---- sockets ---- */

static int ends[2];
static int asked;
static char actions[256];

static void ask_socket(scripted_easy *e, const char *unused)
{
    (void)unused;
    scripted_multi *m = e->multi;
    assert_int_equal(m->socket_fn(e, ends[0], asked, m->socket_data, NULL), 0);
}

static void copy_actions(scripted_easy *e, const char *unused)
{
    (void)unused;
    (void)snprintf(actions, sizeof actions, "%s", e->multi->actions);
}

/* One event is enough: a socket that is always ready would never be quiet. */
static void remove_socket(scripted_multi *m, curl_socket_t s)
{
    if (s != CURL_SOCKET_TIMEOUT)
        (void)m->socket_fn(NULL, s, CURL_POLL_REMOVE, m->socket_data, NULL);
}

static void forget_actions(scripted_easy *e, const char *unused)
{
    (void)unused;
    e->multi->actions[0] = 0;
}

static bool acted(size_t nth)
{
    play(nth, copy_actions, NULL);
    return actions[0] != 0;
}

/* What libcurl asks for is watched, and each event goes to the pool that the socket is of. */
TEST_WITH(sockets_are_watched, setup, teardown)
{
    enum { QUIET = -1 };
    static const struct {
        int first, then; /* asked for; QUIET = nothing before */
        bool data, closed;
        const char *want;
    } rows[] = {
        { QUIET, CURL_POLL_IN, true, false, " in;" },
        { QUIET, CURL_POLL_OUT, true, false, " out;" },
        { QUIET, CURL_POLL_INOUT, true, false, " in out;" },
        { QUIET, CURL_POLL_INOUT, false, false, " out;" },
        { QUIET, CURL_POLL_IN, false, true, " in err;" },
        { CURL_POLL_IN, CURL_POLL_OUT, false, false, " out;" },
        { CURL_POLL_NONE, CURL_POLL_OUT, true, false, " out;" },
    };
    static const int32_t kinds[] = { TINKC_POOL_SAMPLE, TINKC_POOL_REST };
    open_with(&(tkc_http_options){ .proxy = "" });
    scripted_curl_acts = remove_socket;
    for (size_t k = 0; k < 2; k++)
        sent(make("GET", "http://h", kinds[k]));
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        size_t row = i / 2, nth = i % 2;
        char want[64];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
        asked = rows[row].first;
        if (rows[row].data)
            assert_int_equal(write(ends[1], "x", 1), 1);
        play(0, forget_actions, NULL);
        play(1, forget_actions, NULL);
        if (asked != QUIET)
            play(nth, ask_socket, NULL);
        if (rows[row].closed)
            close(ends[1]);
        asked = rows[row].then;
        play(nth, ask_socket, NULL);
        wait_until(acted(nth));
        (void)snprintf(want, sizeof want, "%d%s", ends[0], rows[row].want);
        (void)acted(nth);
        assert_string_equal(actions, want);
        (void)acted(1 - nth);
        assert_null(strchr(actions, ' ')); /* the other pool heard nothing of it */
        close(ends[0]);
        if (!rows[row].closed)
            close(ends[1]);
    }
    play(0, forget_actions, NULL);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    asked = CURL_POLL_IN;
    play(0, ask_socket, NULL);
    asked = CURL_POLL_REMOVE;
    play(0, ask_socket, NULL);
    assert_int_equal(write(ends[1], "x", 1), 1);
    asked = CURL_POLL_OUT; /* ready, but not to be read */
    play(0, ask_socket, NULL);
    wait_until(acted(0));
    assert_non_null(strstr(actions, " out;"));
    assert_null(strstr(actions, "in"));
    close(ends[0]);
    close(ends[1]);
}

static atomic_int n_socket_acts, n_timer_acts;
static void count_acts(scripted_multi *m, curl_socket_t s)
{
    remove_socket(m, s);
    atomic_fetch_add(s == CURL_SOCKET_TIMEOUT ? &n_timer_acts : &n_socket_acts, 1);
}

/* An event is served when nothing else wakes the loop, and several in one round. */
TEST_WITH(events_alone_are_served, setup, teardown)
{
    int pairs[3][2];
    open_with(&(tkc_http_options){ .proxy = "" });
    scripted_curl_acts = count_acts;
    atomic_store(&n_socket_acts, 0);
    sent(make("GET", "http://h", TINKC_POOL_SAMPLE));
    asked = CURL_POLL_IN;
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]), 0);
        ends[0] = pairs[i][0];
        play(0, ask_socket, NULL);
    }
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(write(pairs[i][1], "x", 1), 1);
    wait_until(atomic_load(&n_socket_acts) == 3);
    assert_int_equal(atomic_load(&n_socket_acts), 3);
    for (size_t i = 0; i < 3; i++) {
        close(pairs[i][0]);
        close(pairs[i][1]);
    }
}

/* ---- libcurl's timers, in real time ---- */

static void ask_timer(scripted_easy *e, const char *ms)
{
    assert_int_equal(e->multi->timer_fn((CURLM *)e->multi, atol(ms), e->multi->timer_data), 0);
}

/* The nearest timer of all pools counts, whichever pool it is of and whichever was asked for first;
 * one that is far away or taken back does not. */
TEST_WITH(the_nearest_timer_of_all_pools_counts, setup, teardown)
{
    static const struct {
        const char *first, *second; /* ms asked for by the pools */
        int fires;
    } rows[] = { { "3600000", "-1", 0 }, { "-1", "3600000", 0 }, { "3600000", "3600000", 0 }, { "20", "3600000", 1 },
                 { "3600000", "20", 1 }, { "20", "-1", 1 },      { "-1", "20", 1 },           { "0", "0", 2 } };
    open_with(&(tkc_http_options){ .proxy = "" });
    scripted_curl_acts = count_acts;
    for (size_t k = 0; k < 2; k++) {
        exchange *x = make("GET", "http://h", k ? TINKC_POOL_REST : TINKC_POOL_SAMPLE);
        x->request.idle_timeout_ms = TINKC_FOREVER;
        sent(x);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        atomic_store(&n_timer_acts, 0);
        int64_t began = patience_now_ms();
        play(0, ask_timer, rows[i].first);
        play(1, ask_timer, rows[i].second);
        wait_until(atomic_load(&n_timer_acts) >= rows[i].fires);
        assert_int_equal(atomic_load(&n_timer_acts), rows[i].fires);
        if (rows[i].fires == 1)
            assert_true(patience_now_ms() - began >= 20); /* not before its time */
        settle();
        assert_int_equal(atomic_load(&n_timer_acts), rows[i].fires); /* once */
    }
}

/* A transport with nothing to do does nothing. */
TEST_WITH(an_idle_transport_sleeps, setup, teardown)
{
    open_with(&(tkc_http_options){ .proxy = "" });
    for (int i = 0; i < 2; i++) {
        exchange *x = make("GET", "http://h", TINKC_POOL_REST);
        x->request.idle_timeout_ms = i ? 3600 * 1000 : TINKC_FOREVER;
        sent(x);
        assert_waits(i ? 3600 * 1000 : -1);
    }
}

/* The timer of a pool that was closed keeps nobody awake. */
TEST_WITH(a_closed_pool_asks_for_nothing, setup, teardown)
{
    open_with(&(tkc_http_options){ .proxy = "" });
    exchange *x = make("GET", "http://h", TINKC_POOL_REST);
    x->request.idle_timeout_ms = TINKC_FOREVER;
    sent(x);
    sent(make("GET", "http://h", TINKC_POOL_SAMPLE));
    play(1, head_and_end, "HTTP/1.1 200 OK\r\n\r\n");
    scripted_multi *m = scripted_multi_nth(1);
    assert_int_equal(m->timer_fn((CURLM *)m, 1, m->timer_data), 0); /* the loop is at rest */
    advance(60000);
    assert_int_equal(scripted_multis_open(), 1);
    assert_waits(-1);
}

static size_t descriptors(void)
{
    size_t n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) != -1;
    return n;
}

/* A transport opens a descriptor with its first request and closes no other than that. */
TEST(descriptors_come_back)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC); /* 0, where nothing else is */
    size_t before = descriptors();
    for (int i = 0; i < 2; i++) {
        setup(NULL);
        open_with(&(tkc_http_options){ .proxy = "" });
        if (i)
            sent(make("GET", "http://h", TINKC_POOL_REST));
        assert_int_equal(teardown(NULL), 0);
        assert_int_equal(descriptors(), before);
    }
    if (null > 2)
        close(null);
}

/* ---- signs of life ---- */

static void see_download(scripted_easy *e, const char *bytes)
{
    assert_int_equal(e->progress_fn(e->progress_data, 0, atoi(bytes), 0, 0), 0);
}

static void read_one(scripted_easy *e, const char *unused)
{
    char to[1];
    (void)unused;
    assert_int_equal(e->read_fn(to, 1, 1, e->read_data), 1);
}

TEST_WITH(signs_of_life, setup, teardown)
{
    static void (*const signs[])(scripted_easy *, const char *) = { see_download, see_progress, read_one, head_only };
    open_with(&(tkc_http_options){ .proxy = "" });
    for (size_t i = 0; i < 4; i++) {
        exchange *x = make("POST", "http://h", TINKC_POOL_TRAIN);
        x->request.read_body = read_some;
        x->request.body_size = 10;
        sent(x);
        play(i, be_connected, NULL);
        advance(600);
        play(i, signs[i], signs[i] == head_only ? "HTTP/1.1 100 x\r\n" : "3");
        advance(999);
        assert_string_equal(x->log, "");
        advance(1);
        assert_string_equal(x->log, failed_as(TINKC_E_NET_TIMEOUT, "the peer was silent for 1000 ms"));
    }
}

/* ---- HTTP/2 ---- */

/* A service that answers over HTTP/1.1 again has a connection for each request again. */
TEST_WITH(http2_may_end, setup, teardown)
{
    open_with(&(tkc_http_options){ .proxy = "", .max_connections = 1 });
    sent(make("GET", "http://h", TINKC_POOL_SAMPLE));
    play(0, answer_http2, "HTTP/2 200\r\n\r\n");
    sent(make("GET", "http://h", TINKC_POOL_SAMPLE));
    play(1, head_and_end, "HTTP/1.1 200 OK\r\n\r\n");
    for (size_t i = 0; i < 10; i++)
        post(make("GET", "http://h", TINKC_POOL_SAMPLE), send_now);
    settle();
    assert_int_equal(scripted_added(), 2 + 8);
    assert_non_null(strstr(scripted_multi_nth(0)->settings, "MAX_HOST_CONNECTIONS=1\nMAX_HOST_CONNECTIONS=0\n"));
}

int main(void)
{
    clear_environment();
    return test_cases_run(NULL, NULL);
}
