/* test_rest_call.c - raw calls, forms, streams and event streams, on the mock and over a real
 * connection. */
#include <poll.h>
#include <unistd.h>

#include "support/client/api_support.h"
#include "support/client/stub_server.h"

typedef struct world {
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_error err;
} world;

static void open_world(world *w)
{
    *w = (world){ 0 };
    w->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &w->err);
    w->client = mock_client(w->mock, &(tinkc_client_options){ .base_url = "https://service.example/x" }, &w->err);
    assert_true(tinkc_client_connect(w->client, PATIENCE_MS, &w->err));
    assert_ok(&w->err);
    tinkc_mock_forget(w->mock);
}

static void close_world(world *w)
{
    tinkc_client_free(w->client);
    tinkc_mock_free(w->mock);
}

TEST(strangers_get_no_credential)
{
    static const char *const query[] = { "team", "blue", NULL };
    world w;
    w = (world){ 0 };
    w.mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &w.err);
    w.client = mock_client(
        w.mock,
        &(tinkc_client_options){ .base_url = "https://service.example/x", .api_key = "tml-secret", .query = query },
        &w.err);
    assert_true(tinkc_client_connect(w.client, PATIENCE_MS, &w.err));
    tinkc_mock_forget(w.mock);
    tinkc_mock_always(w.mock, NULL, "/y*", &(tinkc_mock_answer){ .body = "ok" }, &w.err);
    static const char *const urls[] = { "https://other.example/y", "https://service.example/y",
                                        "http://service.example/y", "https://service.example:8443/y" };
    for (size_t i = 0; i < 4; i++) {
        tinkc_future *f = tinkc_http_call(w.client, &(tinkc_http_options){ .path = urls[i] }, &w.err);
        assert_true(tinkc_future_wait(f, PATIENCE_MS, &w.err));
        tinkc_future_free(f);
        const tinkc_request *q = tinkc_mock_request(w.mock, i);
        if (i == 1)
            assert_string_equal(request_header(q, "x-api-key"), "tml-secret");
        else
            assert_null(request_header(q, "x-api-key"));
        assert_string_equal(q->path, i == 1 ? "/y?team=blue" : "/y");
    }
    close_world(&w);
}

TEST(forms_are_sent_whole)
{
    char file[] = "/tmp/tinkc-form-XXXXXX", name[64];
    world w;
    open_world(&w);
    int fd = mkstemp(file);
    assert_int_equal(write(fd, "in a file", 9), 9);
    close(fd);
    tinkc_form *form = tinkc_form_new(w.client, &w.err);
    assert_true(tinkc_form_add_text(form, "text", "hällo", &w.err));
    assert_true(tinkc_form_add_bytes(form, "bytes", "\0\1\2", 3, "b.bin", NULL, &w.err));
    assert_true(tinkc_form_add_file(form, "file", file, "text/plain", &w.err));
    tinkc_error err = { 0 };
    assert_false(tinkc_form_add_text(form, "a\r\nb", "x", &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    err = (tinkc_error){ 0 };
    assert_false(tinkc_form_add_file(form, "x", "/no/such", NULL, &err));
    assert_int_equal(err.code, TINKC_E_FILE);
    tinkc_mock_once(w.mock, "POST", "/form", &(tinkc_mock_answer){ .body = "ok" }, &w.err);
    tinkc_future *f = tinkc_http_call(w.client, &(tinkc_http_options){ .path = "/form", .form = form }, &w.err);
    tinkc_form_free(form); /* nothing of it is needed any more */
    unlink(file);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &w.err));
    const tinkc_request *q = tinkc_mock_request(w.mock, 0);
    const char *type = request_header(q, "content-type");
    assert_memory_equal(type, "multipart/form-data; boundary=", 30);
    snprintf(name, sizeof name, "--%s--\r\n", type + 30);
    assert_memory_equal(q->body.data + q->body.len - strlen(name), name, strlen(name));
    assert_non_null(memmem(q->body.data, q->body.len, "name=\"text\"\r\n\r\nhällo\r\n", 23));
    assert_non_null(memmem(q->body.data, q->body.len, "filename=\"b.bin\"", 16));
    assert_non_null(memmem(q->body.data, q->body.len, "\r\n\r\n\0\1\2\r\n", 9));
    assert_non_null(memmem(q->body.data, q->body.len, "in a file", 9));
    assert_non_null(memmem(q->body.data, q->body.len, "text/plain", 10));
    tinkc_future_free(f);
    close_world(&w);
}

TEST(files_are_bodies)
{
    char file[] = "/tmp/tinkc-body-XXXXXX";
    world w;
    open_world(&w);
    int fd = mkstemp(file);
    assert_int_equal(write(fd, "{\"a\":1}", 7), 7);
    close(fd);
    tinkc_mock_once(w.mock, "PUT", "/f", &(tinkc_mock_answer){ .body = "ok" }, &w.err);
    tinkc_future *f =
        tinkc_http_call(w.client, &(tinkc_http_options){ .path = "/f", .method = "PUT", .body_file = file }, &w.err);
    unlink(file);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &w.err));
    assert_int_equal(tinkc_mock_request(w.mock, 0)->body.len, 7);
    tinkc_future_free(f);
    close_world(&w);
}

/* ---- streams ---- */

TEST(a_stream_on_the_mock)
{
    world w;
    char buf[4];
    size_t n, all = 0;
    open_world(&w);
    tinkc_mock_once(w.mock, "GET", "/s", &(tinkc_mock_answer){ .body = "0123456789" }, &w.err);
    tinkc_stream *s = tinkc_stream_open(w.client, &(tinkc_http_options){ .path = "/s" }, &w.err);
    assert_int_equal(tinkc_response_status(tinkc_stream_head(s, PATIENCE_MS, &w.err)), 200);
    while ((n = tinkc_stream_read(s, buf, sizeof buf, PATIENCE_MS, &w.err)) > 0) {
        assert_memory_equal(buf, &"0123456789"[all], n);
        all += n;
    }
    assert_ok(&w.err);
    assert_int_equal(all, 10);
    assert_int_equal(tinkc_stream_read(s, buf, sizeof buf, PATIENCE_MS, &w.err), 0);
    assert_ok(&w.err);
    tinkc_stream_free(s);

    tinkc_mock_once(w.mock, "GET", "/s", &(tinkc_mock_answer){ .status = 403, .body = "no" }, &w.err);
    s = tinkc_stream_open(w.client, &(tinkc_http_options){ .path = "/s" }, &w.err);
    assert_null(tinkc_stream_head(s, PATIENCE_MS, &w.err));
    assert_int_equal(w.err.code, TINKC_E_FORBIDDEN);
    tinkc_stream_free(s);
    w.err = (tinkc_error){ 0 };
    tinkc_mock_once(w.mock, "GET", "/s", &(tinkc_mock_answer){ .status = 403, .body = "no" }, &w.err);
    s = tinkc_stream_open(w.client, &(tinkc_http_options){ .path = "/s", .any_status = true }, &w.err);
    assert_int_equal(tinkc_response_status(tinkc_stream_head(s, PATIENCE_MS, &w.err)), 403);
    assert_int_equal(tinkc_stream_read(s, buf, sizeof buf, PATIENCE_MS, &w.err), 2);
    tinkc_stream_free(s);
    close_world(&w);
}

/* Bytes that have been read cannot be taken back: no second attempt then. */
TEST(a_stream_is_tried_again_until_its_first_byte)
{
    world w;
    char buf[16];
    open_world(&w);
    tinkc_mock_once(w.mock, "GET", "/s",
                    &(tinkc_mock_answer){ .body = "0123456789", .fault = TINKC_FAULT_RESET, .fault_after = 5 }, &w.err);
    tinkc_mock_always(w.mock, "GET", "/s", &(tinkc_mock_answer){ .body = "again" }, &w.err);
    tinkc_stream *s = tinkc_stream_open(w.client, &(tinkc_http_options){ .path = "/s" }, &w.err);
    size_t all = 0, n;
    while ((n = tinkc_stream_read(s, buf + all, sizeof buf - all, PATIENCE_MS, &w.err)) > 0)
        all += n;
    assert_int_equal(w.err.code, TINKC_E_CONNECTION);
    assert_int_equal(all, 5);
    assert_int_equal(tinkc_mock_count(w.mock, "/s"), 1);
    tinkc_stream_free(s);
    close_world(&w);
}

TEST(a_closed_client_ends_its_streams)
{
    world w;
    char buf[16];
    open_world(&w);
    tinkc_mock_once(w.mock, "GET", "/s", &(tinkc_mock_answer){ .body = "01", .fault = TINKC_FAULT_SILENT }, &w.err);
    tinkc_stream *s = tinkc_stream_open(w.client, &(tinkc_http_options){ .path = "/s" }, &w.err);
    assert_int_equal(tinkc_stream_read(s, buf, 1, 20, &w.err), 0);
    assert_int_equal(w.err.code, TINKC_E_TIMEOUT);
    w.err = (tinkc_error){ 0 };
    tinkc_client_close(w.client, 0, &w.err);
    tinkc_error err = { 0 };
    assert_int_equal(tinkc_stream_read(s, buf, 1, PATIENCE_MS, &err), 0);
    assert_int_equal(err.code, TINKC_E_CLOSED);
    tinkc_stream_free(s);
    close_world(&w);
}

TEST(events_are_pulled)
{
    world w;
    open_world(&w);
    tinkc_mock_once(w.mock, "GET", "/e",
                    &(tinkc_mock_answer){ .body = "event: a\ndata: 1\ndata: 2\nid: 7\n\n: note\n\n"
                                                  "data: last\n\ndata: torn" },
                    &w.err);
    tinkc_stream *s = tinkc_stream_open(w.client, &(tinkc_http_options){ .path = "/e" }, &w.err);
    const tinkc_sse *e = tinkc_stream_event(s, PATIENCE_MS, &w.err);
    assert_ok(&w.err);
    assert_string_equal(e->event, "a");
    assert_string_equal(e->data, "1\n2");
    assert_string_equal(e->id, "7");
    e = tinkc_stream_event(s, PATIENCE_MS, &w.err);
    assert_string_equal(e->data, "last");
    assert_null(tinkc_stream_event(s, PATIENCE_MS, &w.err));
    assert_ok(&w.err);
    tinkc_stream_free(s);
    close_world(&w);
}

/* ---- over a real connection ---- */

static void script(const stub_request *r, stub_answer *a, void *user)
{
    static char large[4 * 1024 * 1024];
    (void)user;
    a->headers = "Content-Type: application/json\r\n";
    if (strstr(r->path, "/client/config")) {
        a->body = "{}";
    } else if (strstr(r->path, "/large")) {
        memset(large, 'x', sizeof large);
        a->body = large;
        a->body_len = sizeof large;
    } else if (strstr(r->path, "/endless")) {
        a->behaviour = STUB_ENDLESS;
    } else if (strstr(r->path, "/moved")) {
        a->status = 302;
        a->headers = "Location: /landed\r\n";
    } else {
        a->body = "ok";
    }
}

static tinkc_client *real_client(const stub_server *s, tinkc_error *err)
{
    return tinkc_client_new(
        &(tinkc_client_options){
            .api_key = "tml-test", .proxy = "", .base_url = stub_url(s), .telemetry = TINKC_TELEMETRY_OFF },
        err);
}

TEST(notes_of_a_real_exchange)
{
    tinkc_error err = { 0 };
    char url[64];
    stub_server *s = stub_start(NULL, script, NULL);
    tinkc_client *client = real_client(s, &err);
    tinkc_future *f = tinkc_http_call(client, &(tinkc_http_options){ .path = "/moved" }, &err);
    const tinkc_response *r = tinkc_future_response(f, PATIENCE_MS, &err);
    assert_ok(&err);
    snprintf(url, sizeof url, "%s/landed", stub_url(s));
    assert_string_equal(tinkc_response_url(r), url);
    assert_string_equal(tinkc_response_http_version(r), "1.1");
    assert_null(tinkc_response_header(r, ":url"));
    tinkc_future_free(f);
    f = tinkc_http_call(client, &(tinkc_http_options){ .path = "/moved", .no_redirects = true, .any_status = true },
                        &err);
    r = tinkc_future_response(f, PATIENCE_MS, &err);
    assert_int_equal(tinkc_response_status(r), 302);
    tinkc_future_free(f);
    tinkc_client_free(client);
    stub_stop(s);
}

typedef struct reading {
    size_t all;
    bool ended;
    int calls;
} reading;

static void on_ready(tinkc_stream *s, void *user)
{
    reading *r = user;
    tinkc_error err = { 0 };
    static char buf[10000];
    size_t n = tinkc_stream_read(s, buf, sizeof buf, 0, &err);
    r->calls++;
    r->all += n;
    if (!n)
        r->ended = true;
    assert_int_equal(err.code, 0);
}

static void only_a_head(const stub_request *r, stub_answer *a, void *user)
{
    (void)user;
    a->body = "{}";
    if (strcmp(r->path, "/s") != 0)
        return;
    a->headers = "X-Here: already\r\n";
    a->behaviour = STUB_DRIP; /* the first byte comes after a minute */
    a->drip_ms = 60000;
}

TEST(a_head_does_not_wait_for_the_body)
{
    tinkc_error err = { 0 };
    char byte;
    stub_server *s = stub_start(NULL, only_a_head, NULL);
    tinkc_client *client = real_client(s, &err);
    tinkc_queue *queue = tinkc_queue_new(client, &err);
    tinkc_stream *stream = tinkc_stream_open(client, &(tinkc_http_options){ .path = "/s" }, &err);
    reading r = { 0 };
    tinkc_stream_on_ready(stream, queue, on_ready, &r, &err);
    const tinkc_response *head = tinkc_stream_head(stream, PATIENCE_MS, &err);
    assert_ok(&err);
    assert_string_equal(tinkc_response_header(head, "x-here"), "already");
    assert_int_equal(tinkc_response_status(head), 200);
    assert_int_equal(tinkc_queue_run(queue, 0, &err), 0); /* nothing to read yet */
    assert_int_equal(tinkc_stream_read(stream, &byte, 1, 0, &err), 0);
    assert_int_equal(err.code, TINKC_E_TIMEOUT);
    tinkc_stream_free(stream);
    tinkc_queue_free(queue);
    tinkc_client_free(client);
    stub_stop(s);
}

TEST(a_stream_in_a_loop_of_ones_own)
{
    tinkc_error err = { 0 };
    reading r = { 0 };
    stub_server *s = stub_start(NULL, script, NULL);
    tinkc_client *client = real_client(s, &err);
    tinkc_queue *queue = tinkc_queue_new(client, &err);
    tinkc_stream *stream = tinkc_stream_open(client, &(tinkc_http_options){ .path = "/large" }, &err);
    assert_true(tinkc_stream_on_ready(stream, queue, on_ready, &r, &err));
    while (!r.ended) {
        struct pollfd fd = { .fd = tinkc_queue_fd(queue), .events = POLLIN };
        assert_int_equal(poll(&fd, 1, 10000), 1);
        tinkc_queue_run(queue, 0, &err);
        assert_ok(&err);
    }
    assert_int_equal(r.all, 4 * 1024 * 1024);
    tinkc_stream_free(stream);
    tinkc_queue_free(queue);
    tinkc_client_free(client);
    stub_stop(s);
}

static void count_call(tinkc_stream *s, void *user)
{
    (void)s;
    ++*(int *)user;
}

/* Who is called when there is something to read: the function named last, on its queue, once until something
 * is read; a new name begins that again, and none ends it. */
TEST(the_last_listener_is_called)
{
    tinkc_error err = { 0 };
    int first = 0, second = 0;
    char byte;
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_EMPTY, &err);
    tinkc_mock_always(mock, NULL, "/api/v1/client/config", &(tinkc_mock_answer){ .body = "{}" }, &err);
    tinkc_mock_always(mock, NULL, "/x",
                      &(tinkc_mock_answer){ .body = "0123456789", .fault = TINKC_FAULT_DRIP, .drip_ms = 100 }, &err);
    tinkc_client *client = mock_client(mock, NULL, &err);
    tinkc_queue *one = tinkc_queue_new(client, &err), *two = tinkc_queue_new(client, &err);
    tinkc_stream *stream = tinkc_stream_open(client, &(tinkc_http_options){ .path = "/x" }, &err);
    assert_false(tinkc_stream_on_ready(stream, NULL, count_call, &first, &err));
    assert_string_equal(err.message, "queue is NULL");
    err = (tinkc_error){ 0 };
    assert_false(tinkc_stream_on_ready(NULL, one, count_call, &first, &err));
    assert_string_equal(err.message, "stream is NULL");
    err = (tinkc_error){ 0 };
    assert_true(tinkc_stream_on_ready(stream, one, count_call, &first, &err));
    tinkc_mock_settle(mock, PATIENCE_MS, &err);
    tinkc_mock_advance(mock, 100);
    tinkc_mock_settle(mock, PATIENCE_MS, &err); /* lined up for the first, which is not run */
    assert_true(tinkc_stream_on_ready(stream, two, count_call, &second, &err));
    assert_int_equal(tinkc_queue_run(one, 0, &err), 0);
    assert_int_equal(tinkc_queue_run(two, 0, &err), 1);
    tinkc_mock_advance(mock, 100);
    tinkc_mock_settle(mock, PATIENCE_MS, &err);
    assert_int_equal(tinkc_queue_run(two, 0, &err), 0);                         /* nothing was read since */
    assert_true(tinkc_stream_on_ready(stream, two, count_call, &second, &err)); /* and again */
    assert_int_equal(tinkc_queue_run(two, 0, &err), 1);
    assert_int_equal(tinkc_stream_read(stream, &byte, 1, 0, &err), 1);
    assert_int_equal(tinkc_queue_run(two, 0, &err), 1); /* there is more */
    assert_true(tinkc_stream_on_ready(stream, one, NULL, NULL, &err));
    assert_int_equal(tinkc_stream_read(stream, &byte, 1, 0, &err), 1);
    tinkc_mock_advance(mock, 100);
    tinkc_mock_settle(mock, PATIENCE_MS, &err);
    assert_int_equal(tinkc_queue_run(one, 0, &err) + tinkc_queue_run(two, 0, &err), 0);
    assert_int_equal(first, 0);
    assert_int_equal(second, 3);
    assert_true(tinkc_stream_on_ready(stream, two, count_call, &second, &err));
    tinkc_stream_free(stream); /* lined up: the queue forgets it */
    assert_int_equal(tinkc_queue_run(two, 0, &err), 0);
    assert_ok(&err);
    tinkc_queue_free(one);
    tinkc_queue_free(two);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
}

TEST(a_slow_reader_holds_the_server)
{
    tinkc_error err = { 0 };
    static char buf[64 * 1024];
    stub_server *s = stub_start(NULL, script, NULL);
    tinkc_client *client = real_client(s, &err);
    tinkc_stream *stream = tinkc_stream_open(client, &(tinkc_http_options){ .path = "/endless" }, &err);
    assert_non_null(tinkc_stream_head(stream, PATIENCE_MS, &err));
    uint64_t before, now = stub_sent(s);
    do { /* until the server is stuck */
        before = now;
        usleep(50000);
        now = stub_sent(s);
    } while (before != now);
    assert_true(now < 16 * 1024 * 1024);
    for (size_t all = 0; all < 32 * 1024 * 1024;) { /* and it continues as we read */
        size_t n = tinkc_stream_read(stream, buf, sizeof buf, PATIENCE_MS, &err);
        assert_true(n > 0);
        all += n;
    }
    tinkc_stream_free(stream);
    tinkc_client_free(client);
    stub_stop(s);
}
