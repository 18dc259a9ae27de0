/* The fetcher of single requests: methods, bodies out of files, headers and tokens along redirects,
 * bounds of answers, and how each failure is named. */
#include "support/check.h"
#include "support/client/stub_server.h"

#include <fcntl.h>
#include <unistd.h>

#include "net/fetch.h"

static stub_server *server, *other;
static atomic_bool stop;
static tkc_fetcher_options options = { .proxy = "", .connect_ms = 5000, .idle_ms = 5000, .stop = &stop };
static tkc_fetcher *fetcher;
static tkc_fetch r;
static tinkc_error err;
static char seen[4096], location[256];

/* What came, as a line for each header that matters, then the body. */
static void describe(const stub_request *q)
{
    static const char *const names[] = { "Authorization", "X-Own", "Range", "Expect", "Content-Length" };
    char value[256];
    size_t n = (size_t)snprintf(seen, sizeof seen, "%s %s\n", q->method, q->path);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (stub_header(q, names[i], value, sizeof value)[0])
            n += (size_t)snprintf(seen + n, sizeof seen - n, "%s: %s\n", names[i], value);
    snprintf(seen + n, sizeof seen - n, "%.*s", (int)q->body_len, q->body_len ? q->body : "");
}

static void answer(const stub_request *q, stub_answer *a, void *user)
{
    (void)user;
    describe(q);
    int status = 0;
    a->body = "hello";
    a->headers = "X-Mark: one\r\n";
    if (sscanf(q->path, "/to/%d", &status) == 1) {
        a->status = status;
        a->headers = location;
    } else if (sscanf(q->path, "/status/%d", &status) == 1) {
        a->status = status;
    } else if (strcmp(q->path, "/reset") == 0) {
        a->behaviour = STUB_RESET_NOW;
    } else if (strcmp(q->path, "/short") == 0) {
        a->behaviour = STUB_TRUNCATE;
        a->after = 2;
    } else if (strcmp(q->path, "/garbage") == 0) {
        a->behaviour = STUB_GARBAGE;
    } else if (strcmp(q->path, "/silent") == 0) {
        a->behaviour = STUB_SILENT;
        atomic_store(&stop, true);
    } else if (strcmp(q->path, "/none") == 0) {
        a->body = NULL;
    }
}

static int setup(void **state)
{
    (void)state;
    server = stub_start(NULL, answer, NULL);
    other = stub_start(NULL, answer, NULL);
    atomic_store(&stop, false);
    err = (tinkc_error){ 0 };
    seen[0] = location[0] = 0;
    fetcher = tkc_fetcher_new(NULL, &options, &err);
    assert_non_null(fetcher);
    tkc_fetch_init(&r, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tkc_fetch_end(&r);
    tkc_fetcher_free(fetcher);
    stub_stop(server);
    stub_stop(other);
    return 0;
}

static bool fetch(const char *method, const char *path)
{
    static char url[512];
    snprintf(url, sizeof url, "%s%s", stub_url(server), path);
    err = (tinkc_error){ 0 };
    r.method = method;
    r.url = url;
    return tkc_fetch_run(fetcher, &r, &err);
}

static void assert_text(const char *text)
{
    assert_int_equal(r.text.len, strlen(text));
    assert_memory_equal(r.text.data, text, strlen(text));
}

TEST_WITH(a_get_brings_status_headers_and_body, setup, teardown)
{
    const char *const headers[] = { "X-Own", "mine", "Range", "bytes=3-", NULL };
    r.headers = headers;
    r.token = "secret";
    assert_true(fetch("GET", "/a?b=c"));
    assert_string_equal(seen, "GET /a?b=c\nAuthorization: Bearer secret\nX-Own: mine\nRange: bytes=3-\n");
    assert_int_equal(r.status, 200);
    assert_text("hello");
    assert_string_equal(tkc_fetch_header(&r, "x-mark"), "one");
    assert_string_equal(tkc_fetch_header(&r, "CONTENT-LENGTH"), "5");
    assert_null(tkc_fetch_header(&r, "x-mar"));
    assert_null(tkc_fetch_header(&r, "one"));
}

/* The second answer replaces the first, and both came over one connection. */
TEST_WITH(a_fetcher_is_used_again, setup, teardown)
{
    assert_true(fetch("GET", "/a"));
    assert_true(fetch("GET", "/status/404"));
    assert_int_equal(r.status, 404);
    assert_text("hello");
    assert_true(fetch("GET", "/none"));
    assert_int_equal(r.text.len, 0);
    assert_int_equal(stub_connections(server), 1);
    assert_int_equal(stub_requests(server), 3);
}

TEST_WITH(bodies_are_sent_as_they_are, setup, teardown)
{
    static const char *const methods[] = { "POST", "PUT", "PATCH" };
    for (size_t i = 0; i < 3; i++) {
        char wanted[128];
        r.body = (tinkc_bytes){ (const unsigned char *)"some\nbytes", 10 };
        assert_true(fetch(methods[i], "/up"));
        snprintf(wanted, sizeof wanted, "%s /up\nContent-Length: 10\nsome\nbytes", methods[i]);
        assert_string_equal(seen, wanted);
        r.body = (tinkc_bytes){ NULL, 0 };
        assert_true(fetch(methods[i], "/up"));
        snprintf(wanted, sizeof wanted, "%s /up\nContent-Length: 0\n", methods[i]);
        assert_string_equal(seen, wanted);
    }
}

static int64_t sent_last;
static void on_sent(tkc_fetch *f, int64_t bytes)
{
    (void)f;
    assert_true(bytes > sent_last);
    sent_last = bytes;
}

static int file_with(const char *text)
{
    char path[] = "/tmp/tinkc-fetch-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    return fd;
}

TEST_WITH(a_part_of_a_file_is_a_body, setup, teardown)
{
    static const char *const methods[] = { "PUT", "POST" };
    r.body_fd = file_with("0123456789");
    r.body_from = 2;
    r.body_size = 5;
    r.sent = on_sent;
    for (size_t i = 0; i < 2; i++) {
        char wanted[128];
        sent_last = 0;
        assert_true(fetch(methods[i], "/file"));
        snprintf(wanted, sizeof wanted, "%s /file\nContent-Length: 5\n23456", methods[i]);
        assert_string_equal(seen, wanted);
        assert_int_equal(sent_last, 5);
        assert_int_equal(r.status, 200);
    }
    r.body_size = 20; /* more than there is */
    sent_last = 0;
    assert_false(fetch("PUT", "/file"));
    assert_int_equal(err.code, TINKC_E_FILE);
    assert_non_null(strstr(err.message, "become shorter"));
    close(r.body_fd);
    assert_false(fetch("PUT", "/file")); /* no longer open */
    assert_int_equal(err.code, TINKC_E_FILE);
    assert_null(strstr(err.message, "become shorter"));
}

/* 307 and 308 repeat the request with its body from the start; 301 to 303 do so only for GET and
 * HEAD, and other requests end with the redirect itself. */
TEST_WITH(redirects_repeat_what_they_may, setup, teardown)
{
    static const struct {
        int status;
        bool get, put;
    } rows[] = { { 300, false, false }, { 301, true, false }, { 302, true, false }, { 303, true, false },
                 { 304, false, false }, { 307, true, true },  { 308, true, true } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[32];
        snprintf(path, sizeof path, "/to/%d", rows[i].status);
        snprintf(location, sizeof location, "Location: /there\r\n");
        r.body_fd = -1;
        assert_true(fetch("GET", path));
        assert_int_equal(r.status, rows[i].get ? 200 : rows[i].status);
        assert_true(fetch("HEAD", path));
        assert_int_equal(r.status, rows[i].get ? 200 : rows[i].status);
        r.body_fd = file_with("abc");
        r.body_from = 0;
        r.body_size = 3;
        assert_true(fetch("PUT", path));
        assert_int_equal(r.status, rows[i].put ? 200 : rows[i].status);
        close(r.body_fd);
        if (rows[i].put)
            assert_string_equal(seen, "PUT /there\nContent-Length: 3\nabc");
    }
}

/* The token and headers of the caller's own stay with the first origin; what describes the transfer
 * goes along. Once away, coming back does not bring them back. */
TEST_WITH(another_origin_gets_no_token, setup, teardown)
{
    const char *const headers[] = { "X-Own", "mine", "Range", "bytes=1-", NULL };
    r.headers = headers;
    r.token = "secret";
    snprintf(location, sizeof location, "Location: /there\r\n");
    assert_true(fetch("GET", "/to/302"));
    assert_string_equal(seen, "GET /there\nAuthorization: Bearer secret\nX-Own: mine\nRange: bytes=1-\n");
    snprintf(location, sizeof location, "Location: %s/there\r\n", stub_url(other));
    assert_true(fetch("GET", "/to/302"));
    assert_string_equal(seen, "GET /there\nRange: bytes=1-\n");
    assert_int_equal(stub_requests(other), 1);
}

static int heads;
static bool wanted_head, wanted_body;
static char taken[64];
static bool on_head(tkc_fetch *f, tinkc_error *e)
{
    assert_int_equal(f->status, 200);
    heads++;
    return wanted_head || tkc_fail(e, TINKC_E_STATE, "not this one");
}
static bool on_take(tkc_fetch *f, const void *bytes, size_t len, tinkc_error *e)
{
    (void)f;
    strncat(taken, bytes, len);
    return wanted_body || tkc_fail(e, TINKC_E_STATE, "enough");
}

TEST_WITH(good_answers_go_to_the_caller, setup, teardown)
{
    r.head = on_head;
    r.take = on_take;
    wanted_head = wanted_body = true;
    heads = 0;
    taken[0] = 0;
    assert_true(fetch("GET", "/a"));
    assert_int_equal(heads, 1);
    assert_string_equal(taken, "hello");
    assert_int_equal(r.text.len, 0);
    assert_true(fetch("GET", "/none")); /* an answer without a body has a head, too */
    assert_int_equal(heads, 2);
    assert_true(fetch("GET", "/status/404")); /* an error's text is kept instead */
    assert_int_equal(heads, 2);
    assert_text("hello");
    assert_string_equal(taken, "hello");
    wanted_body = false;
    assert_false(fetch("GET", "/a"));
    assert_string_equal(err.message, "enough");
    wanted_head = false;
    taken[0] = 0;
    assert_false(fetch("GET", "/a"));
    assert_string_equal(err.message, "not this one");
    assert_string_equal(taken, "");
}

TEST_WITH(a_stop_ends_the_transfer, setup, teardown)
{
    assert_false(fetch("GET", "/silent")); /* the server sets the stop once the request has come */
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    assert_int_equal(stub_requests(server), 1);
    assert_false(fetch("GET", "/a")); /* still set: not even begun */
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    assert_int_equal(stub_requests(server), 1);
}

TEST_WITH(failures_have_names, setup, teardown)
{
    const char *const broken[] = { "X-Own", "a\r\nX-Other: b", NULL };
    assert_false(fetch("GET", "/reset"));
    assert_int_equal(err.code, TINKC_E_CONNECTION);
    assert_false(r.nobody_there);
    assert_false(fetch("GET", "/short"));
    assert_int_equal(err.code, TINKC_E_CONNECTION);
    assert_false(fetch("GET", "/garbage"));
    assert_true(err.code == TINKC_E_CONNECTION || err.code == TINKC_E_BAD_RESPONSE);
    r.headers = broken;
    assert_false(fetch("GET", "/a"));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    assert_non_null(strstr(err.message, "X-Own"));
    r.headers = NULL;
    char url[64];
    snprintf(url, sizeof url, "http://127.0.0.1:%d/", stub_dead_port());
    err = (tinkc_error){ 0 };
    r.url = url;
    assert_false(tkc_fetch_run(fetcher, &r, &err));
    assert_int_equal(err.code, TINKC_E_CONNECTION);
    assert_true(r.nobody_there);
    assert_true(fetch("GET", "/a"));
    assert_false(r.nobody_there);
}
