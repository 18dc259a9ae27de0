/* test_exchange.c - an answer on its way out while the server stops: it is sent whole or not at all.
 *
 * libmicrohttpd is a table of functions here, so each order of "the server stops" and "the service
 * answers" can be tried one by one.
 */
#include <sys/socket.h>
#include <unistd.h>

#include "support/check.h"
#include "support/service/scripted_mhd.h"

static tinkc_engine *engine;
static tke_http http;

static int setup(void **state)
{
    tinkc_error err = { 0 };
    (void)state;
    engine = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1 }, &err);
    assert_ok(err);
    mhd_begin(&mhd_sent);
    http = (tke_http){ .svc = tke_engine_service(engine), .mhd = &scripted_mhd };
    pthread_mutex_init(&http.lock, NULL);
    assert_true(tkc_cond_init(&http.changed, &err));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    pthread_cond_destroy(&http.changed);
    pthread_mutex_destroy(&http.lock);
    tinkc_engine_free(engine);
    mhd_end(&mhd_sent);
    return 0;
}

/* A request that is with the service, its connection suspended. */
static tke_exchange *waiting(const tinkc_allocator *a)
{
    mhd_end(&mhd_sent);
    mhd_begin(&mhd_sent);
    tke_exchange *x = tke_exchange_new(&http, &scripted_mhd, a, "/api/v1/retrieve_future");
    assert_non_null(x);
    tke_exchange_keep(x); /* the service's count */
    tke_exchange_open_reply(x);
    assert_int_equal(tke_exchange_wait(x), MHD_YES);
    assert_true(mhd_sent.suspended);
    return x;
}

/* The service had its answer ready when the server began to stop: the asker gets all of it. */
TEST(answers_that_are_ready_are_whole)
{
    static const char body[] = "{\"type\":\"optim_step\"}";
    for (int when = 0; when < 4; when++) { /* before which of the service's calls the stop comes */
        tke_exchange *x = waiting(NULL);
        tinkc_reply *r = &x->reply;
        if (when == 0)
            tke_exchange_cut(x);
        r->status(r, 200);
        if (when == 1)
            tke_exchange_cut(x);
        r->header(r, "Content-Type", "application/json");
        if (when == 2)
            tke_exchange_cut(x);
        r->write(r, body, sizeof body - 1);
        if (when == 3)
            tke_exchange_cut(x);
        r->end(r);
        assert_true(mhd_sent.resumed);
        assert_int_equal(tke_exchange_answer(x), MHD_YES);
        assert_true(mhd_sent.queued);
        assert_int_equal(mhd_sent.status, 200);
        assert_string_equal(mhd_sent.body.data, body);
        tke_exchange_drop(x);
    }
}

/* A poll that the stop has ended is closed without a status line. */
TEST(cancelled_polls_have_no_status)
{
    tke_exchange *x = waiting(NULL);
    tke_exchange_cut(x);
    (x->reply.fail)(&x->reply, TINKC_E_CONNECTION, "the poll was cancelled");
    assert_int_equal(tke_exchange_answer(x), MHD_NO);
    assert_false(mhd_sent.queued);
    tke_exchange_drop(x);
}

/* What is streamed and cut off ends with an error, so that its reader sees that a part is missing. */
TEST(cut_streams_end_with_an_error)
{
    char piece[64];
    tke_exchange *x = waiting(NULL);
    tinkc_reply *r = &x->reply;
    r->status(r, 200);
    r->header(r, "Content-Type", "text/event-stream");
    assert_true(r->write(r, "data: 1\n\n", 9));
    assert_int_equal(tke_exchange_answer(x), MHD_YES);
    assert_int_equal(mhd_sent.reader(mhd_sent.reader_user, 0, piece, sizeof piece), 9);
    tke_exchange_cut(x);
    assert_false(r->write(r, "data: 2\n\n", 9));
    r->end(r);
    assert_int_equal(mhd_sent.reader(mhd_sent.reader_user, 9, piece, sizeof piece), MHD_CONTENT_READER_END_WITH_ERROR);
    tke_exchange_drop(x);
}

/* ---- what goes out ---- */

TEST(headers_go_out)
{
    char name[20], want[600] = "", *at = want;
    tke_exchange *x = waiting(NULL);
    tinkc_reply *r = &x->reply;
    r->status(r, 418);
    r->header(r, "X-Tinker-Request-Id", "1-run:2");
    at += sprintf(at, "X-Tinker-Request-Id: 1-run:2\n");
    for (int i = 1; i < 14; i++) { /* twelve fit */
        snprintf(name, sizeof name, "X-%d", i);
        r->header(r, name, "v");
        at += i < 12 ? sprintf(at, "X-%d: v\n", i) : 0;
    }
    r->end(r);
    assert_int_equal(tke_exchange_answer(x), MHD_YES);
    assert_int_equal(mhd_sent.status, 418);
    assert_string_equal(mhd_sent.headers, want);
    assert_string_equal(x->future, "1-run:2");
    assert_int_equal(mhd_sent.body.len, 0);
    tke_exchange_drop(x);
}

/* The id of a future is kept if it fits, and never in part. */
TEST(futures_are_kept)
{
    enum { ROOM = sizeof((tke_exchange *)0)->future };
    for (size_t len = ROOM - 2; len <= ROOM + 1; len++) {
        char id[ROOM + 2];
        tke_exchange *x = waiting(NULL);
        tinkc_reply *r = &x->reply;
        memset(id, 'i', len);
        id[len] = '\0';
        r->header(r, TKE_FUTURE_HEADER, id);
        assert_string_equal(x->future, len < ROOM ? id : "");
        r->end(r);
        tke_exchange_drop(x);
    }
}

/* 0 is a length, too. */
TEST(answers_of_no_bytes)
{
    char piece[4];
    tke_exchange *x = waiting(NULL);
    tinkc_reply *r = &x->reply;
    r->header(r, "Content-Length", "0");
    assert_true(r->write(r, "", 0));
    assert_true(mhd_sent.resumed);
    r->end(r);
    assert_int_equal(tke_exchange_answer(x), MHD_YES);
    assert_int_equal(mhd_sent.length, 0);
    assert_int_equal(mhd_sent.reader(mhd_sent.reader_user, 0, piece, sizeof piece), MHD_CONTENT_READER_END_OF_STREAM);
    tke_exchange_drop(x);
}

/* A length that is given makes a stream of it; the library writes the header. */
TEST(lengths_go_out)
{
    char piece[64];
    for (int given = 0; given < 3; given++) {
        tke_exchange *x = waiting(NULL);
        tinkc_reply *r = &x->reply;
        if (given)
            r->header(r, "content-length", given == 1 ? "7" : "seven");
        assert_true(r->write(r, "1234", 4));
        assert_int_equal(mhd_sent.resumed, given == 1); /* what is gathered waits for its end */
        assert_true(r->write(r, "567", 3));
        r->end(r);
        assert_true(mhd_sent.resumed);
        assert_int_equal(tke_exchange_answer(x), MHD_YES);
        assert_string_equal(mhd_sent.headers, "");
        if (given == 1) {
            assert_int_equal(mhd_sent.length, 7);
            assert_int_equal(mhd_sent.reader(mhd_sent.reader_user, 0, piece, 5), 5);
            assert_memory_equal(piece, "12345", 5);
            assert_int_equal(x->n_sent, 5);
            assert_int_equal(mhd_sent.reader(mhd_sent.reader_user, 5, piece, 5), 2);
            assert_memory_equal(piece, "67", 2);
            assert_int_equal(mhd_sent.reader(mhd_sent.reader_user, 7, piece, 5), MHD_CONTENT_READER_END_OF_STREAM);
        } else {
            assert_string_equal(mhd_sent.body.data, "1234567");
        }
        assert_int_equal(x->n_sent, 7);
        tke_exchange_drop(x);
    }
}

TEST(events_go_out)
{
    char piece[64];
    tke_exchange *x = waiting(NULL);
    tinkc_reply *r = &x->reply;
    r->header(r, "Content-Type", "text/event-stream");
    assert_true(r->write(r, "data: 1\n\n", 9));
    assert_true(mhd_sent.resumed);
    assert_int_equal(tke_exchange_answer(x), MHD_YES);
    assert_true(mhd_sent.length == MHD_SIZE_UNKNOWN);
    assert_int_equal(mhd_sent.reader(mhd_sent.reader_user, 0, piece, sizeof piece), 9);
    mhd_sent.suspended = mhd_sent.resumed = false;
    assert_int_equal(mhd_sent.reader(mhd_sent.reader_user, 9, piece, sizeof piece), 0); /* nothing yet */
    assert_true(mhd_sent.suspended);
    assert_true(r->write(r, "data: 2\n\n", 9)); /* into the room of what was sent */
    assert_true(mhd_sent.resumed);
    assert_int_equal(x->out.len, 9);
    assert_int_equal(mhd_sent.reader(mhd_sent.reader_user, 9, piece, sizeof piece), 9);
    assert_memory_equal(piece, "data: 2\n\n", 9);
    r->end(r);
    assert_int_equal(mhd_sent.reader(mhd_sent.reader_user, 18, piece, sizeof piece), MHD_CONTENT_READER_END_OF_STREAM);
    tke_exchange_drop(x);
}

/* Up to a mebibyte is written ahead of the connection; only what comes then waits for it, and
 * nothing does on the connection's own thread. */
TEST(a_mebibyte_is_written_ahead)
{
    static char much[1 << 20];
    for (int inside = 0; inside < 2; inside++) {
        tke_exchange *x = waiting(NULL);
        tinkc_reply *r = &x->reply;
        r->status(r, 200);
        r->header(r, "Content-Length", "4194304");
        x->inside = inside;
        assert_true(r->write(r, much, sizeof much));
        assert_true(r->write(r, much, 1)); /* a mebibyte is ahead: it does not wait yet */
        assert_true(!inside || r->write(r, much, sizeof much));
        assert_int_equal(x->out.len, (size_t)(1 + inside) * sizeof much + 1);
        (r->fail)(r, TINKC_E_CONNECTION, "no more");
        tke_exchange_drop(x);
    }
}

/* A page's events look at the room first: a mebibyte that is not sent yet. */
TEST(events_of_a_page_wait_for_room)
{
    enum { MOST = 1 << 20 };
    static char half[MOST / 2];
    tke_exchange *x = tke_exchange_new(&http, &scripted_mhd, NULL, "/ui/events");
    tke_exchange_open_reply(x);
    assert_null(x->reply.room);
    x->to_page = true;
    tke_exchange_open_reply(x);
    tinkc_reply *r = &x->reply;
    r->header(r, "Content-Type", "text/event-stream");
    assert_int_equal(r->room(r), MOST);
    assert_true(r->write(r, half, sizeof half));
    assert_int_equal(r->room(r), MOST / 2);
    assert_true(r->write(r, half, sizeof half));
    assert_int_equal(r->room(r), 0);
    assert_true(r->write(r, half, 1));
    assert_int_equal(r->room(r), 0);
    x->taken = 100; /* were sent */
    assert_int_equal(r->room(r), 99);
    tke_exchange_drop(x);
}

TEST(peers_that_went)
{
    tke_exchange *x = waiting(NULL);
    tinkc_reply *r = &x->reply;
    tke_exchange_closed(x);
    assert_true(tke_exchange_peer_gone(r));
    assert_false(r->write(r, "x", 1));
    r->end(r);
    assert_false(mhd_sent.resumed); /* its connection is not there any more */
    tke_exchange_drop(x);
}

static union MHD_ConnectionInfo its_info;

static const union MHD_ConnectionInfo *info_of(struct MHD_Connection *c, enum MHD_ConnectionInfoType what, ...)
{
    (void)c;
    assert_int_equal(what, MHD_CONNECTION_INFO_CONNECTION_FD);
    return its_info.connect_fd < 0 ? NULL : &its_info;
}

/* A look at the connection neither waits nor takes what the peer has sent. */
TEST(looks_at_peers)
{
    int ends[2];
    char bytes[4];
    tke_mhd mhd = scripted_mhd;
    mhd.info = info_of;
    tke_exchange *x = waiting(NULL);
    tinkc_reply *r = &x->reply;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    x->mhd = &mhd;
    its_info.connect_fd = -1;
    assert_false(tke_exchange_peer_gone(r)); /* nothing is known of it */
    its_info.connect_fd = ends[0];
    assert_false(tke_exchange_peer_gone(r));
    assert_int_equal(write(ends[1], "GET", 3), 3);
    assert_false(tke_exchange_peer_gone(r));
    assert_int_equal(read(ends[0], bytes, sizeof bytes), 3);
    close(ends[1]);
    assert_true(tke_exchange_peer_gone(r));
    x->mhd = &scripted_mhd;
    r->end(r);
    close(ends[0]);
    tke_exchange_drop(x);
}

/* The library does not look at a suspended connection. Requests without a body in memory may wait: only
 * the next write shows that nobody reads. */
TEST(requests_of_gone_clients_with_a_body_are_cancelled)
{
    tke_mhd mhd = scripted_mhd;
    mhd.info = info_of;
    for (int row = 0; row < 4; row++) { /* bit 0: it holds its body; bit 1: its client is gone */
        int ends[2];
        tke_exchange *x = waiting(NULL);
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
        x->mhd = &mhd;
        its_info.connect_fd = ends[0];
        x->holds_body = row & 1;
        x->listed = true;
        http.active = x;
        http.n_active = 1;
        if (row & 2)
            shutdown(ends[1], SHUT_RDWR);
        tke_requests_cancel_gone(&http);
        assert_int_equal(x->cancelled, row == 3);
        x->mhd = &scripted_mhd;
        x->reply.end(&x->reply);
        assert_null(http.active);
        close(ends[0]);
        close(ends[1]);
        tke_exchange_drop(x);
    }
}

static bool is_cancelled(const tke_exchange *x)
{
    pthread_mutex_lock(&http.lock);
    bool cancelled = x->cancelled;
    pthread_mutex_unlock(&http.lock);
    return cancelled;
}

TEST(a_server_looks_for_clients_that_went)
{
    int ends[2];
    tinkc_error err = { 0 };
    tke_mhd mhd = scripted_mhd;
    mhd.info = info_of;
    tke_exchange *x = waiting(NULL);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    close(ends[1]);
    its_info.connect_fd = ends[0];
    x->mhd = &mhd;
    x->holds_body = x->listed = true;
    http.active = x;
    http.n_active = 1;
    assert_true(tkc_cond_init(&http.tick, &err) && tke_peers_watch(&http, &err));
    wait_until(is_cancelled(x));
    tke_peers_unwatch(&http);
    pthread_cond_destroy(&http.tick);
    x->mhd = &scripted_mhd;
    x->reply.end(&x->reply);
    close(ends[0]);
    tke_exchange_drop(x);
}

TEST(headers_that_came)
{
    tke_exchange *x = tke_exchange_new(&http, &scripted_mhd, NULL, "/a?b");
    assert_string_equal(x->uri, "/a?b");
    x->headers[0] = "X-One", x->headers[1] = "1", x->headers[2] = "x-two", x->headers[3] = "2";
    x->n_headers = 4;
    assert_string_equal(tke_exchange_header(x, "x-ONE"), "1");
    assert_string_equal(tke_exchange_header(x, "X-Two"), "2");
    assert_null(tke_exchange_header(x, "1"));
    assert_null(tke_exchange_header(x, "X-Three"));
    tke_exchange_drop(x);
}

/* ---- memory ---- */

static bool no_memory;

static void *scarce_alloc(size_t size, void *user)
{
    (void)user;
    return no_memory ? NULL : malloc(size);
}

static void *scarce_resize(void *old, size_t old_size, size_t size, void *user)
{
    (void)old_size, (void)user;
    return no_memory ? NULL : realloc(old, size);
}

static void scarce_release(void *old, size_t size, void *user)
{
    (void)size, (void)user;
    free(old);
}

/* An answer for which there was no memory is not an empty answer. */
TEST(answers_without_memory_have_no_status)
{
    static const tinkc_allocator allocator = { scarce_alloc, scarce_resize, scarce_release, NULL };
    static char large[1 << 20]; /* more than is left of what the exchange has */
    memset(large, 'v', sizeof large - 1);
    for (int at_header = 0; at_header < 2; at_header++) {
        tke_exchange *x = waiting(&allocator);
        tinkc_reply *r = &x->reply;
        r->status(r, 200);
        no_memory = true;
        if (at_header)
            r->header(r, "X-Large", large);
        else
            assert_false(r->write(r, "{}", 2));
        no_memory = false;
        assert_true(!at_header || r->write(r, "{}", 2));
        r->end(r);
        assert_int_equal(tke_exchange_answer(x), MHD_NO);
        assert_false(mhd_sent.queued);
        tke_exchange_drop(x);
    }
}

RUN_TESTS(setup, teardown)
