/* test_retry_gaps.c - how long each retry layer waits: its own figures, and what the service asks for.
 *
 * The mock's clock is exact, so gaps between requests are compared to the millisecond where there is
 * no jitter, and to its bounds where there is.
 */
#include <unistd.h>

#include "support/client/mock_fixture.h"

#define HEALTH "/api/v1/healthz"
#define STEP   "/api/v1/optim_step"
#define SAVE   "/api/v1/save_weights"
#define SAMPLE "/api/v1/asample"

static void open_scene(fixture *x, const tinkc_client_options *options, const tinkc_retry_options *r)
{
    open_client(x, NULL, NULL, options);
    x->trainer = tinkc_trainer_new(x->client, &lora, &x->err);
    x->sampler =
        tinkc_sampler_new(x->client, &(tinkc_sampler_options){ .base_model = "mock/nano", .retry = r }, &x->err);
    assert_ok(&x->err);
    tinkc_mock_forget(x->mock);
}

static int64_t gap(fixture *x, const char *path, size_t i)
{
    assert_non_null(nth_request(x->mock, path, i + 1));
    return nth_request_ms(x->mock, path, i + 1) - nth_request_ms(x->mock, path, i);
}

static tinkc_future *step(fixture *x)
{
    tinkc_adam adam = TINKC_ADAM_INIT;
    return tinkc_optim_step(x->trainer, &adam, &x->err);
}

static tinkc_future *sample(fixture *x)
{
    static const int32_t prompt[] = { 1, 2, 3 };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 2;
    return tinkc_sample(x->sampler, prompt, 3, 1, &o, &x->err);
}

/* Doubling from half a second to ten, less up to a quarter; never the same twice in a row by rule,
 * so the spread must show. */
TEST(attempts_are_spread_and_capped)
{
    static const int64_t upper[] = { 500, 1000, 2000, 4000, 8000, 10000, 10000, 10000 };
    int64_t low = INT64_MAX, high = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        tinkc_error err = { 0 };
        fixture x = { .mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err) };
        tinkc_mock_seed(x.mock, seed);
        x.client = mock_client(x.mock, NULL, &err);
        tinkc_mock_always(x.mock, NULL, HEALTH, &(tinkc_mock_answer){ .status = 500 }, &err);
        tinkc_future *f = tinkc_health_check(x.client, &err);
        assert_true(run_until_done(x.mock, f, 600000));
        assert_int_equal(tinkc_mock_count(x.mock, HEALTH), 11);
        for (size_t i = 0; i < 8; i++)
            assert_in_range(gap(&x, HEALTH, i), upper[i] * 3 / 4, upper[i]);
        int64_t last = gap(&x, HEALTH, 7);
        low = last < low ? last : low;
        high = last > high ? last : high;
        tinkc_future_free(f);
        close_all(&x);
    }
    assert_true(low < 8300 && high > 9200); /* 7.5 to 10 s, over twenty seeds */
}

/* "Try again" is answered at once, but never more often than ten times a second, and each quick answer
 * doubles the distance up to a second. An answer that took its second is followed at once. */
TEST(quick_answers_are_spaced)
{
    static const struct {
        int64_t took, gap;
    } polls[] = { { 0, 100 },     { 0, 200 }, { 150, 400 },   { 0, 800 },  { 0, 1000 }, { 0, 1000 },
                  { 1500, 1500 }, { 0, 100 }, { 1000, 1000 }, { 30, 100 }, { 999, 999 } };
    enum { N = sizeof polls / sizeof *polls };
    fixture x;
    open_scene(&x, NULL, NULL);
    for (size_t i = 0; i < N; i++)
        tinkc_mock_once(x.mock, NULL, POLL,
                        &(tinkc_mock_answer){ .body = "{\"type\":\"try_again\"}", .delay_ms = polls[i].took }, &x.err);
    tinkc_future *f = step(&x);
    assert_true(run_until_done(x.mock, f, 600000));
    assert_true(tinkc_future_wait(f, 0, &x.err));
    for (size_t i = 0; i < N; i++)
        if (gap(&x, POLL, i) != polls[i].gap)
            fail_msg("poll %zu: %lld ms", i, (long long)gap(&x, POLL, i));
    tinkc_future_free(f);
    close_all(&x);
}

static int32_t health_code(fixture *x)
{
    tinkc_error err = { 0 };
    tinkc_future *f = tinkc_health_check(x->client, &err);
    assert_true(run_until_done(x->mock, f, 600000));
    (void)tinkc_future_wait(f, 0, &err);
    tinkc_future_free(f);
    return err.code;
}

/* A kind of request takes 16 bare 400s for stale connections; each success gives one back. */
TEST(stale_connections_have_a_budget)
{
    fixture x;
    open_scene(&x, NULL, NULL);
    tinkc_mock_always(x.mock, NULL, HEALTH, &(tinkc_mock_answer){ .status = 400 }, &x.err);
    for (size_t i = 0; i < 16; i++)
        assert_int_equal(health_code(&x), TINKC_E_CONNECTION);
    assert_int_equal(health_code(&x), TINKC_E_BAD_REQUEST);
    for (size_t i = 0; i < 2; i++)
        tinkc_mock_once(x.mock, NULL, HEALTH, &(tinkc_mock_answer){ .body = "{\"status\":\"ok\"}" }, &x.err);
    assert_int_equal(health_code(&x), TINKC_OK);
    assert_int_equal(health_code(&x), TINKC_OK);
    assert_int_equal(health_code(&x), TINKC_E_CONNECTION);
    assert_int_equal(health_code(&x), TINKC_E_CONNECTION);
    assert_int_equal(health_code(&x), TINKC_E_BAD_REQUEST);
    close_all(&x);
}

/* Around the delay, and below the longest one: that is spread, too. */
static void samples_are_spread_around(int64_t longest, int64_t from, int64_t to)
{
    int64_t low = INT64_MAX, high = 0, fifth = (to - from) / 5;
    tinkc_retry_options retry = { .max_attempts = 2, .delay_base_ms = 4000, .delay_max_ms = longest };
    for (uint64_t seed = 1; seed <= 20; seed++) {
        fixture x;
        open_scene(&x, &(tinkc_client_options){ .retry_window_ms = TINKC_ZERO }, &retry);
        tinkc_mock_seed(x.mock, seed);
        tinkc_mock_always(x.mock, NULL, SAMPLE, &(tinkc_mock_answer){ .status = 500 }, &x.err);
        tinkc_future *f = sample(&x);
        assert_true(run_until_done(x.mock, f, 600000));
        int64_t took = gap(&x, SAMPLE, 0);
        assert_in_range(took, from, to);
        low = took < low ? took : low;
        high = took > high ? took : high;
        tinkc_future_free(f);
        close_all(&x);
    }
    assert_true(low < from + 2 * fifth && high > to - 2 * fifth);
}

TEST(samples_are_spread)
{
    samples_are_spread_around(0, 3000, 5000);
    samples_are_spread_around(2000, 1500, 2000);
}

/* A second 429 that asks for less does not shorten the pause of the first. */
TEST(the_longest_backoff_holds)
{
    static const char *const headers[] = { "Retry-After", "20", NULL };
    fixture x;
    open_scene(&x, NULL, NULL);
    /* The delays keep both back until both samples are under way. */
    tinkc_mock_once(x.mock, NULL, SAMPLE, &(tinkc_mock_answer){ .status = 429, .headers = headers, .delay_ms = 500 },
                    &x.err);
    tinkc_mock_once(x.mock, NULL, SAMPLE, &(tinkc_mock_answer){ .status = 429, .delay_ms = 1000 }, &x.err);
    tinkc_future *f[] = { sample(&x), sample(&x) };
    for (size_t i = 0; i < 2; i++) {
        assert_true(run_until_done(x.mock, f[i], 600000));
        assert_true(tinkc_future_wait(f[i], 0, &x.err));
        tinkc_future_free(f[i]);
    }
    int64_t first = nth_request_ms(x.mock, SAMPLE, 0);
    for (size_t i = 2; i < 4; i++)
        assert_in_range(nth_request_ms(x.mock, SAMPLE, i) - first, 20500, 20749);
    close_all(&x);
}

/* Up to 131,072 bytes a prompt is small: an image counts as long as it is. */
TEST(where_large_prompts_begin)
{
    static const char image[131073];
    for (size_t more = 0; more < 2; more++) {
        tinkc_sampling o = TINKC_SAMPLING_INIT;
        fixture x;
        open_scene(&x, NULL, NULL);
        o.max_tokens = 1;
        tinkc_input *input = tinkc_input_new(x.client, &x.err);
        tinkc_input_add_image(input, image, 131072 + more, "png", -1, &x.err);
        tinkc_mock_once(x.mock, NULL, SAMPLE, &(tinkc_mock_answer){ .status = 429 }, &x.err);
        tinkc_future *f = tinkc_sample_input(x.sampler, input, 1, &o, &x.err);
        assert_true(run_until_done(x.mock, f, 600000));
        int64_t least = more ? 5000 : 1000;
        assert_in_range(gap(&x, SAMPLE, 0), least, least + 249);
        tinkc_future_free(f);
        tinkc_input_free(input);
        close_all(&x);
    }
}

/* Those that were held back do not come all at once. */
TEST(held_back_samples_are_spread)
{
    int64_t low = INT64_MAX, high = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        fixture x;
        open_scene(&x, NULL, NULL);
        tinkc_mock_seed(x.mock, seed);
        tinkc_mock_once(x.mock, NULL, SAMPLE, &(tinkc_mock_answer){ .status = 429 }, &x.err);
        tinkc_future *f = sample(&x);
        assert_true(run_until_done(x.mock, f, 600000));
        int64_t took = gap(&x, SAMPLE, 0);
        low = took < low ? took : low;
        high = took > high ? took : high;
        tinkc_future_free(f);
        close_all(&x);
    }
    assert_in_range(low, 1000, 1080);
    assert_in_range(high, 1170, 1249);
}

/* ---- downloads: a thread of their own, on the client's clock ---- */

/* Waits until the download has sent request `n` and then sleeps: how long. -1 = it has ended. */
static int64_t pause_behind(fixture *x, const tinkc_future *f, size_t n)
{
    int64_t next = TINKC_FOREVER;
    wait_until(tinkc_mock_count(x->mock, "/store/x") >= n || tinkc_future_done(f));
    wait_until(tinkc_future_done(f) || (next = tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err)) != TINKC_FOREVER);
    return tinkc_future_done(f) ? -1 : next;
}

static bool count_written(void *user, const void *data, size_t len)
{
    (void)data;
    *(size_t *)user += len;
    return true;
}

static void open_download(fixture *x, const tinkc_client_options *o)
{
    *x = (fixture){ 0 };
    x->mock = tinkc_mock_new(TINKC_MOCK_EMPTY, &x->err);
    x->client = mock_client(x->mock, o, &x->err);
    assert_ok(&x->err);
}

TEST(downloads_give_up_after_seven_attempts)
{
    static const int64_t pauses[] = { 100, 200, 400, 800, 1600, 3200, -1 };
    fixture x;
    size_t written = 0;
    open_download(&x, NULL);
    tinkc_mock_always(x.mock, NULL, "/store/x", &(tinkc_mock_answer){ .fault = TINKC_FAULT_REFUSED }, &x.err);
    tinkc_future *f =
        tinkc_url_download(x.client, "http://files.test/store/x",
                           &(tinkc_download_options){ .write = count_written, .write_user = &written }, &x.err);
    for (size_t i = 0; i < 7; i++) {
        int64_t pause = pause_behind(&x, f, i + 1);
        assert_int_equal(pause, pauses[i]);
        assert_int_equal(tinkc_mock_count(x.mock, "/store/x"), i + 1);
        if (pause > 0)
            tinkc_mock_advance(x.mock, pause);
    }
    assert_false(tinkc_future_wait(f, PATIENCE_MS, &x.err));
    assert_int_equal(x.err.code, TINKC_E_CONNECTION);
    assert_int_equal(written, 0);
    tinkc_future_free(f);
    close_all(&x);
}

/* A byte makes them patient again; a Range asks for the rest, under the same ETag. */
TEST(downloads_count_failures_since_the_last_byte)
{
    static const char *const etag[] = { "ETag", "\"v1\"", NULL };
    static const char *const rest[] = { "ETag", "\"v1\"", "Content-Range", "bytes 4-9/10", NULL };
    fixture x;
    size_t written = 0;
    open_download(&x, NULL);
    for (int i = 0; i < 5; i++)
        tinkc_mock_once(x.mock, NULL, "/store/x", &(tinkc_mock_answer){ .status = 503 }, &x.err);
    tinkc_mock_once(
        x.mock, NULL, "/store/x",
        &(tinkc_mock_answer){ .headers = etag, .body = "0123456789", .fault = TINKC_FAULT_RESET, .fault_after = 4 },
        &x.err);
    for (int i = 0; i < 3; i++)
        tinkc_mock_once(x.mock, NULL, "/store/x", &(tinkc_mock_answer){ .status = 503 }, &x.err);
    tinkc_mock_once(x.mock, NULL, "/store/x", &(tinkc_mock_answer){ .status = 206, .headers = rest, .body = "456789" },
                    &x.err);
    tinkc_future *f =
        tinkc_url_download(x.client, "http://files.test/store/x",
                           &(tinkc_download_options){ .write = count_written, .write_user = &written }, &x.err);
    static const int64_t pauses[] = { 100, 200, 400, 800, 1600, 100, 200, 400, 800 };
    for (size_t i = 0; i < 9; i++) {
        assert_int_equal(pause_behind(&x, f, i + 1), pauses[i]);
        tinkc_mock_advance(x.mock, pauses[i]);
    }
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x.err));
    assert_int_equal(written, 10);
    assert_null(request_header(nth_request(x.mock, "/store/x", 5), "Range"));
    for (size_t i = 6; i < 10; i++) {
        assert_string_equal(request_header(nth_request(x.mock, "/store/x", i), "Range"), "bytes=4-");
        assert_string_equal(request_header(nth_request(x.mock, "/store/x", i), "If-Range"), "\"v1\"");
    }
    assert_null(request_header(nth_request(x.mock, "/store/x", 9), "X-API-Key"));
    tinkc_future_free(f);
    close_all(&x);
}

/* What nobody may repeat, and for how long the client repeats at all. */
TEST(downloads_know_their_limits)
{
    static const struct {
        tinkc_client_options o;
        int32_t status;
        size_t requests;
        int64_t pause; /* the first; -1 = it ends at once */
    } rows[] = {
        { { 0 }, 404, 1, -1 },
        { { 0 }, 400, 1, -1 },
        { { 0 }, 408, 2, 100 },
        { { 0 }, 429, 2, 100 },
        { { 0 }, 500, 2, 100 },
        { { 0 }, 499, 1, -1 },
        { { .no_retries = true }, 503, 1, -1 },
        { { .retry_window_ms = 100 }, 503, 2, 100 },
        { { .retry_window_ms = TINKC_ZERO }, 503, 1, -1 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fixture x;
        size_t written = 0;
        open_download(&x, &rows[i].o);
        tinkc_mock_always(x.mock, NULL, "/store/x", &(tinkc_mock_answer){ .status = rows[i].status, .body = "no" },
                          &x.err);
        tinkc_future *f =
            tinkc_url_download(x.client, "http://files.test/store/x",
                               &(tinkc_download_options){ .write = count_written, .write_user = &written }, &x.err);
        assert_int_equal(pause_behind(&x, f, 1), rows[i].pause);
        if (rows[i].pause > 0) {
            tinkc_mock_advance(x.mock, rows[i].pause);
            (void)pause_behind(&x, f, 2);
        }
        assert_int_equal(tinkc_mock_count(x.mock, "/store/x"), rows[i].requests);
        assert_int_equal(tinkc_future_done(f), rows[i].pause < 0 || rows[i].o.retry_window_ms > 0);
        tinkc_future_cancel(f); /* in the middle of a pause */
        (void)tinkc_future_wait(f, PATIENCE_MS, &x.err);
        assert_int_equal(x.err.http_status,
                         tinkc_future_done(f) && x.err.code != TINKC_E_CANCELLED ? rows[i].status : 0);
        tinkc_future_free(f);
        close_all(&x);
    }
}
