/* test_upload.c - bodies out of files, over a real connection: memory stays constant, attempts read
 * the file again, and a file that changes meanwhile is an error with its name. */
#include <fcntl.h>
#include <unistd.h>

#include "support/client/api_support.h"
#include "support/counting.h"
#include "support/client/stub_server.h"

enum { LARGE = 24 << 20, FEW = 1 << 20 };

typedef struct world {
    tinkc_error err;
    counting memory;
    tinkc_allocator allocator;
    stub_server *server;
    tinkc_client *client;
    char file[40];
    /* what the server does and has seen */
    int failures; /* so many answers are 503 */
    bool redirect, shrink;
    size_t seen, len;
    bool whole; /* of the last body */
} world;

/* Byte i of the test file. */
static unsigned char byte_at(size_t i)
{
    return (unsigned char)(i * 31 + i / 997);
}

static bool is_file(const char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)bytes[i] != byte_at(i))
            return false;
    return true;
}

static void serve(const stub_request *r, stub_answer *a, void *user)
{
    world *w = user;
    if (strcmp(r->path, "/upload") != 0 && strcmp(r->path, "/landed") != 0) {
        a->body = "{}"; /* settings */
        return;
    }
    w->seen++;
    w->len = r->body_len;
    const char *content = r->body;
    size_t len = r->body_len;
    if (r->body_len > LARGE) { /* a form: the file is what stands behind the first empty line */
        const char *at = memmem(r->body, r->body_len, "\r\n\r\n", 4);
        content = at ? at + 4 : r->body;
        len = LARGE;
    }
    w->whole = is_file(content, len);
    if (w->shrink && truncate(w->file, 1000) != 0)
        abort();
    if (w->failures && w->failures--)
        a->status = 503;
    else if (w->redirect && strcmp(r->path, "/upload") == 0) {
        a->status = 307;
        a->headers = "Location: /landed\r\n";
    }
    a->body = "ok";
}

static int setup(void **state)
{
    world *w = calloc(1, sizeof *w);
    unsigned char *bytes = malloc(LARGE);
    strcpy(w->file, "/tmp/tinkc-upload-XXXXXX");
    int fd = mkstemp(w->file);
    for (size_t i = 0; i < LARGE; i++)
        bytes[i] = byte_at(i);
    assert_int_equal(write(fd, bytes, LARGE), LARGE);
    close(fd);
    free(bytes);
    w->allocator = counting_allocator(&w->memory);
    w->server = stub_start(NULL, serve, w);
    w->client = tinkc_client_new(&(tinkc_client_options){ .base_url = stub_url(w->server),
                                                          .api_key = "tml-x",
                                                          .proxy = "",
                                                          .telemetry = TINKC_TELEMETRY_OFF,
                                                          .allocator = &w->allocator },
                                 &w->err);
    assert_ok(&w->err);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    tinkc_client_free(w->client);
    assert_true(counting_is_empty_soon(&w->memory));
    stub_stop(w->server);
    unlink(w->file);
    free(w);
    return 0;
}

static tinkc_future *upload(world *w)
{
    return tinkc_http_call(w->client, &(tinkc_http_options){ .path = "/upload", .method = "PUT", .body_file = w->file },
                           &w->err);
}

TEST_WITH(a_large_file_is_sent_in_little_memory, setup, teardown)
{
    world *w = *state;
    tinkc_future *f = upload(w);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &w->err));
    assert_ok(&w->err);
    assert_int_equal(w->len, LARGE);
    assert_true(w->whole);
    assert_true(atomic_load(&w->memory.peak) < FEW);
    tinkc_future_free(f);
}

TEST_WITH(a_form_with_a_large_file_too, setup, teardown)
{
    world *w = *state;
    tinkc_form *form = tinkc_form_new(w->client, &w->err);
    tinkc_form_add_file(form, "file", w->file, NULL, &w->err);
    tinkc_form_add_text(form, "text", "behind it", &w->err);
    tinkc_future *f = tinkc_http_call(w->client, &(tinkc_http_options){ .path = "/upload", .form = form }, &w->err);
    tinkc_form_free(form);
    unlink(w->file); /* it is open already */
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &w->err));
    assert_ok(&w->err);
    assert_true(w->len > LARGE && w->len < LARGE + 1000);
    assert_true(w->whole);
    assert_true(atomic_load(&w->memory.peak) < FEW);
    tinkc_future_free(f);
}

TEST_WITH(each_attempt_reads_it_again, setup, teardown)
{
    world *w = *state;
    w->failures = 1;
    w->redirect = true;
    tinkc_future *f = upload(w);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &w->err));
    assert_ok(&w->err);
    assert_int_equal(w->seen, 3); /* 503, then 307, then there */
    assert_int_equal(w->len, LARGE);
    assert_true(w->whole);
    tinkc_future_free(f);
}

TEST_WITH(a_file_that_shrinks_is_an_error, setup, teardown)
{
    world *w = *state;
    w->failures = 1;
    w->shrink = true;
    tinkc_future *f = upload(w);
    assert_false(tinkc_future_wait(f, PATIENCE_MS, &w->err));
    assert_int_equal(w->err.code, TINKC_E_FILE);
    assert_non_null(strstr(w->err.message, w->file));
    assert_non_null(strstr(w->err.message, "changed while it was sent"));
    assert_int_equal(w->seen, 1); /* not a third time */
    tinkc_future_free(f);
}

TEST_WITH(what_is_no_file_is_refused_at_once, setup, teardown)
{
    world *w = *state;
    static const char *const paths[] = { "/no/such/file", "/tmp", "/dev/null" };
    for (size_t i = 0; i < 3; i++) {
        tinkc_error err = { 0 };
        assert_null(
            tinkc_http_call(w->client, &(tinkc_http_options){ .path = "/upload", .body_file = paths[i] }, &err));
        assert_int_equal(err.code, TINKC_E_FILE);
        assert_non_null(strstr(err.message, paths[i]));
    }
    assert_int_equal(w->seen, 0);
}

TEST_WITH(an_empty_file_is_an_empty_body, setup, teardown)
{
    world *w = *state;
    assert_int_equal(truncate(w->file, 0), 0);
    tinkc_future *f = upload(w);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &w->err));
    assert_int_equal(w->seen, 1);
    assert_int_equal(w->len, 0);
    tinkc_future_free(f);
}
