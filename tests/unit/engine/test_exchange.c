/* test_exchange.c - an answer on its way out while the server stops: it is sent whole or not at all.
 *
 * libmicrohttpd is a table of functions here, so each order of "the server stops" and "the service
 * answers" can be tried one by one.
 */
#include <stdlib.h>

#include "server/http_server.h"
#include "support/check.h"

static tinkc_engine *engine;
static tke_http http;

/* ---- what the library would have been given ---- */

static struct {
    bool queued, resumed, suspended;
    unsigned int status;
    size_t len;
    char body[64];
    MHD_ContentReaderCallback reader;
    void *reader_user;
} sent;

static struct MHD_Response *fake_buffer(size_t size, void *buffer, enum MHD_ResponseMemoryMode mode)
{
    (void)mode;
    assert_true(size < sizeof sent.body);
    sent.len = size;
    memcpy(sent.body, size ? buffer : "", size);
    sent.body[size] = '\0';
    return (struct MHD_Response *)&sent;
}

static struct MHD_Response *fake_callback(uint64_t size, size_t block,
                                          MHD_ContentReaderCallback reader, void *user,
                                          MHD_ContentReaderFreeCallback end)
{
    (void)size, (void)block, (void)end;
    sent.reader = reader;
    sent.reader_user = user;
    return (struct MHD_Response *)&sent;
}

static enum MHD_Result fake_header(struct MHD_Response *r, const char *name, const char *value)
{
    (void)r, (void)name, (void)value;
    return MHD_YES;
}

static enum MHD_Result fake_queue(struct MHD_Connection *c, unsigned int status,
                                  struct MHD_Response *r)
{
    (void)c, (void)r;
    sent.queued = true;
    sent.status = status;
    return MHD_YES;
}

static void fake_destroy(struct MHD_Response *r)
{
    (void)r;
}

static void fake_suspend(struct MHD_Connection *c)
{
    (void)c;
    sent.suspended = true;
}

static void fake_resume(struct MHD_Connection *c)
{
    (void)c;
    sent.resumed = true;
}

static const tke_mhd library = { .from_buffer = fake_buffer,
                                 .from_callback = fake_callback,
                                 .add_header = fake_header,
                                 .queue = fake_queue,
                                 .destroy = fake_destroy,
                                 .suspend = fake_suspend,
                                 .resume = fake_resume };

static int setup(void **state)
{
    tinkc_error err = { 0 };
    (void)state;
    engine = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1 }, &err);
    assert_ok(err);
    http = (tke_http){ .svc = tke_engine_service(engine), .mhd = &library };
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
    return 0;
}

/* A request that is with the service, its connection suspended. */
static tke_exchange *waiting(const tinkc_allocator *a)
{
    memset(&sent, 0, sizeof sent);
    tke_exchange *x = tke_exchange_new(&http, &library, a, "/api/v1/retrieve_future");
    assert_non_null(x);
    tke_exchange_keep(x); /* the service's count */
    tke_exchange_open_reply(x);
    assert_int_equal(tke_exchange_wait(x), MHD_YES);
    assert_true(sent.suspended);
    return x;
}

/* The service had its answer ready when the server began to stop: the asker gets all of it. */
static void answers_that_are_ready_are_whole(void **state)
{
    static const char body[] = "{\"type\":\"optim_step\"}";
    (void)state;
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
        assert_true(sent.resumed);
        assert_int_equal(tke_exchange_answer(x), MHD_YES);
        assert_true(sent.queued);
        assert_int_equal(sent.status, 200);
        assert_string_equal(sent.body, body);
        tke_exchange_drop(x);
    }
}

/* A poll that the stop has ended is closed without a status line. */
static void cancelled_polls_have_no_status(void **state)
{
    (void)state;
    tke_exchange *x = waiting(NULL);
    tke_exchange_cut(x);
    (x->reply.fail)(&x->reply, TINKC_E_CONNECTION, "the poll was cancelled");
    assert_int_equal(tke_exchange_answer(x), MHD_NO);
    assert_false(sent.queued);
    tke_exchange_drop(x);
}

/* What is streamed and cut off ends with an error, so that its reader sees that a part is missing. */
static void cut_streams_end_with_an_error(void **state)
{
    char piece[64];
    (void)state;
    tke_exchange *x = waiting(NULL);
    tinkc_reply *r = &x->reply;
    r->status(r, 200);
    r->header(r, "Content-Type", "text/event-stream");
    assert_true(r->write(r, "data: 1\n\n", 9));
    assert_int_equal(tke_exchange_answer(x), MHD_YES);
    assert_int_equal(sent.reader(sent.reader_user, 0, piece, sizeof piece), 9);
    tke_exchange_cut(x);
    assert_false(r->write(r, "data: 2\n\n", 9));
    r->end(r);
    assert_int_equal(sent.reader(sent.reader_user, 9, piece, sizeof piece),
                     MHD_CONTENT_READER_END_WITH_ERROR);
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
static void answers_without_memory_have_no_status(void **state)
{
    static const tinkc_allocator allocator = { scarce_alloc, scarce_resize, scarce_release, NULL };
    (void)state;
    tke_exchange *x = waiting(&allocator);
    tinkc_reply *r = &x->reply;
    r->status(r, 200);
    no_memory = true;
    assert_false(r->write(r, "{}", 2));
    no_memory = false;
    r->end(r);
    assert_int_equal(tke_exchange_answer(x), MHD_NO);
    assert_false(sent.queued);
    tke_exchange_drop(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_that_are_ready_are_whole),
        cmocka_unit_test(cancelled_polls_have_no_status),
        cmocka_unit_test(cut_streams_end_with_an_error),
        cmocka_unit_test(answers_without_memory_have_no_status),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
