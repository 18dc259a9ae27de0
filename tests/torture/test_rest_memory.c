/* test_rest_memory.c - the n-th allocation of a client fails, for every n, while it makes REST
 * calls, reads lists, pulls streams and downloads. Nothing may crash, hang or leak, and what fails
 * says so. */
#include <stdatomic.h>
#include <unistd.h>

#include "support/client/api_support.h"
#include "support/client/stub_server.h"

/* ---- an allocator that fails once, and counts ---- */

static atomic_long countdown, live;
static atomic_bool failed;

static bool fails_now(void)
{
    if (atomic_fetch_sub(&countdown, 1) != 1)
        return false;
    atomic_store(&failed, true);
    return true;
}

static void *take(size_t size, void *user)
{
    (void)user;
    if (fails_now())
        return NULL;
    atomic_fetch_add(&live, 1);
    return malloc(size ? size : 1);
}

static void *resize(void *ptr, size_t old_size, size_t new_size, void *user)
{
    (void)user;
    (void)old_size;
    if (fails_now())
        return NULL;
    if (!ptr)
        atomic_fetch_add(&live, 1);
    return realloc(ptr, new_size ? new_size : 1);
}

static void give(void *ptr, size_t size, void *user)
{
    (void)user;
    (void)size;
    if (ptr)
        atomic_fetch_sub(&live, 1);
    free(ptr);
}

static const tinkc_allocator allocator = { .alloc = take, .resize = resize, .release = give };

/* ---- what is done while memory is short ---- */

typedef struct world {
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_error err;
    const char *dir, *url;
} world;

typedef void scenario_fn(world *);

static const char run_json[] = "{\"training_run_id\":\"R\",\"base_model\":\"B\",\"model_owner\":\"o\",\"is_lora\":true,"
                               "\"last_request_time\":\"2026-03-04T05:06:07Z\",\"last_checkpoint\":{\"checkpoint_id\":"
                               "\"weights/x\",\"checkpoint_type\":\"training\",\"time\":\"2026-03-04T05:06:07Z\","
                               "\"tinker_path\":\"tinker://R/weights/x\"},\"user_metadata\":{\"a\":\"b\"}}";

static void one_record(world *w)
{
    tinkc_mock_always(w->mock, NULL, "/api/v1/training_runs/R*", &(tinkc_mock_answer){ .body = run_json }, NULL);
    tinkc_future *f = tinkc_run_get(w->client, "R", TINKC_OWNED, &w->err);
    const tinkc_run *run = tinkc_future_run(f, PATIENCE_MS, &w->err);
    assert_true(run || w->err.code);
    tinkc_future_free(f);
    f = tinkc_checkpoint_set_ttl(w->client, "tinker://R/weights/x", 5, &w->err);
    tinkc_future_wait(f, PATIENCE_MS, &w->err);
    tinkc_future_free(f);
}

static void a_list(world *w)
{
    static char page[1000];
    snprintf(page, sizeof page, "{\"training_runs\":[%s],\"cursor\":{\"offset\":0,\"limit\":100,\"total_count\":1}}",
             run_json);
    tinkc_mock_always(w->mock, NULL, "/api/v1/training_runs?*", &(tinkc_mock_answer){ .body = page }, NULL);
    tinkc_runs *runs = tinkc_runs_list(w->client, NULL, &w->err);
    int n = 0;
    while (tinkc_runs_next(runs, &w->err))
        n++;
    assert_true(n == 1 || w->err.code);
    tinkc_runs_free(runs);
}

static void jobs(world *w)
{
    static const char *const headers[] = { "Location", "https://x/y", NULL };
    tinkc_mock_always(w->mock, NULL, "/api/v1/training_runs/R/checkpoints/weights/x/archive",
                      &(tinkc_mock_answer){ .status = 302, .headers = headers }, NULL);
    tinkc_mock_always(w->mock, NULL, "/api/v1/sessions/s/trace_export",
                      &(tinkc_mock_answer){ .body = "{\"status\":\"ready\",\"url\":\"https://x\"}" }, NULL);
    tinkc_future *f = tinkc_checkpoint_archive(w->client, "tinker://R/weights/x", &w->err);
    tinkc_future_archive(f, PATIENCE_MS, &w->err);
    tinkc_future_free(f);
    f = tinkc_session_trace(w->client, "s", &w->err);
    tinkc_future_url(f, PATIENCE_MS, &w->err);
    tinkc_future_free(f);
}

static void a_call_with_a_form(world *w)
{
    static const char *const query[] = { "a", "b", NULL };
    tinkc_mock_always(w->mock, NULL, "/form*", &(tinkc_mock_answer){ .body = "ok" }, NULL);
    tinkc_form *form = tinkc_form_new(w->client, &w->err);
    tinkc_form_add_text(form, "a", "b", &w->err);
    tinkc_form_add_bytes(form, "c", "d", 1, "e", NULL, &w->err);
    tinkc_form_add_file(form, "f", "/etc/hostname", NULL, &w->err);
    tinkc_future *f =
        tinkc_http_call(w->client, &(tinkc_http_options){ .path = "/form", .form = form, .query = query }, &w->err);
    const tinkc_response *r = tinkc_future_response(f, PATIENCE_MS, &w->err);
    assert_true(tinkc_response_status(r) == 200 || w->err.code);
    tinkc_future_free(f);
    tinkc_form_free(form);
}

static void a_stream_of_events(world *w)
{
    tinkc_mock_always(w->mock, NULL, "/e", &(tinkc_mock_answer){ .body = "data: 1\n\ndata: 2\n\n" }, NULL);
    tinkc_queue *queue = tinkc_queue_new(w->client, &w->err);
    tinkc_stream *s = tinkc_stream_open(w->client, &(tinkc_http_options){ .path = "/e" }, &w->err);
    tinkc_stream_head(s, PATIENCE_MS, &w->err);
    while (tinkc_stream_event(s, PATIENCE_MS, &w->err))
        ;
    tinkc_stream_free(s);
    tinkc_queue_free(queue);
}

static void reports(world *w)
{
    for (int i = 0; i < 3; i++)
        tinkc_client_report(w->client, "x", "{\"a\":1}", TINKC_LOG_INFO, &w->err);
    tinkc_client_session_id(w->client, PATIENCE_MS, &w->err);
    tinkc_client_close(w->client, 2000, NULL);
}

static void a_file(world *w)
{
    tinkc_future *f =
        tinkc_url_download(w->client, w->url, &(tinkc_download_options){ .dir = w->dir, .replace = true }, &w->err);
    const tinkc_download *d = tinkc_future_download(f, PATIENCE_MS, &w->err);
    assert_true(tinkc_download_count(d) == 1 || w->err.code);
    tinkc_future_free(f);
}

static void a_tokenizer(world *w)
{
    tinkc_future *f = tinkc_tokenizer_fetch(
        w->client, "org/model", NULL,
        &(tinkc_tokenizer_options){ .cache_dir = w->dir, .hub_url = w->url, .offline = true }, &w->err);
    tinkc_tokenizer *t = tinkc_future_tokenizer(f, PATIENCE_MS, &w->err);
    assert_null(t);
    assert_true(w->err.code == TINKC_E_OFFLINE || w->err.code == TINKC_E_MEMORY);
    w->err = (tinkc_error){ 0 };
    tinkc_future_free(f);
}

/* ---- over and over ---- */

static void one_round(scenario_fn *run, long n, int32_t telemetry, const char *dir, const char *url)
{
    world w = { .dir = dir, .url = url };
    bool real = run == a_file;
    atomic_store(&failed, false);
    atomic_store(&live, 0);
    w.mock = tinkc_mock_new(TINKC_MOCK_SERVICE, NULL);
    atomic_store(&countdown, n);
    tinkc_client_options options = { .allocator = &allocator,
                                     .api_key = "tml-test",
                                     .proxy = "",
                                     .telemetry = telemetry,
                                     .base_url = "http://127.0.0.1:1",
                                     .no_retries = true };
    w.client = real ? tinkc_client_new(&options, &w.err) : mock_client(w.mock, &options, &w.err);
    if (w.client)
        run(&w);
    if (!w.client)
        assert_true(w.err.code != 0);
    if (!atomic_load(&failed) && w.err.code)
        fail_msg("without a shortage: %s", w.err.message);
    atomic_store(&countdown, 0);
    tinkc_client_free(w.client);
    tinkc_mock_free(w.mock);
    wait_until(!atomic_load(&live)); /* a worker on its way out */
    if (atomic_load(&live))
        fail_msg("allocation %ld: %ld blocks are left", n, atomic_load(&live));
}

static void serve(const stub_request *r, stub_answer *a, void *user)
{
    (void)r;
    (void)user;
    a->body = "the bytes of a file";
}

static void torture(scenario_fn *run, int32_t telemetry)
{
    char dir[] = "/tmp/tinkc-memory-XXXXXX", url[80], command[80];
    stub_server *s = stub_start(NULL, serve, NULL);
    assert_non_null(mkdtemp(dir));
    snprintf(url, sizeof url, "%s/file", stub_url(s));
    long n = 0;
    do
        one_round(run, ++n, telemetry, dir, url);
    while (atomic_load(&failed));
    print_message("%ld allocations failed, one at a time\n", n - 1);
    assert_true(n > 10);
    stub_stop(s);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

#define TORTURE(name, run, telemetry)                                                                                  \
    TEST(name)                                                                                                         \
    {                                                                                                                  \
        torture(run, telemetry);                                                                                       \
    }
TORTURE(records, one_record, TINKC_TELEMETRY_OFF)
TORTURE(lists, a_list, TINKC_TELEMETRY_OFF)
TORTURE(long_jobs, jobs, TINKC_TELEMETRY_OFF)
TORTURE(calls, a_call_with_a_form, TINKC_TELEMETRY_OFF)
TORTURE(streams, a_stream_of_events, TINKC_TELEMETRY_OFF)
TORTURE(telemetry, reports, TINKC_TELEMETRY_ON)
TORTURE(downloads, a_file, TINKC_TELEMETRY_OFF)
TORTURE(tokenizers, a_tokenizer, TINKC_TELEMETRY_OFF)
