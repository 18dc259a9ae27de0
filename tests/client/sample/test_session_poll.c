/* test_session_poll.c - one poll for all samples of a sampler (retrieve_futures): what it sends and when,
 * what each sample then does, and every way in which the poll may fail without a sample noticing.
 *
 * The mock's results are ready at once; what a sample waits for here is only to be named. Held polls are
 * answers with a delay.
 */
#include "support/client/mock_fixture.h"

#define FUTURES  API "retrieve_futures"
#define SAMPLE   API "asample"
#define CONFIG   API "client/config"
#define SETTINGS API "client/dynamic_config"
#define ON       "{\"sample_use_retrieve_futures\":true}"

enum { HELD_MS = 30000 };

static const tinkc_mock_answer held = { .status = 408, .delay_ms = HELD_MS, .body = "{}" };

static void open_on(fixture *x, const char *config)
{
    open_client(x, CONFIG, config, &(tinkc_client_options){ .api_key = "tml-key", .telemetry = TINKC_TELEMETRY_OFF });
    assert_true(tinkc_mock_always(x->mock, NULL, FUTURES, &held, &x->err));
    x->sampler = tinkc_sampler_new(x->client, &nano, &x->err);
    assert_ok(&x->err);
    tinkc_mock_forget(x->mock);
}

static tinkc_future *sample(fixture *x)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 2;
    tinkc_future *f = tinkc_sample(x->sampler, ids, 3, 1, &o, &x->err);
    assert_ok(&x->err);
    return f;
}

static int64_t now_ms(fixture *x)
{
    const tinkc_clock *clock = tinkc_mock_clock(x->mock);
    return clock->now_ms(clock->self);
}

/* From timer to timer, until n requests have been sent there. A client that never sends them would do so
 * without end: there is always a next heartbeat. */
static void until_sent(fixture *x, const char *path, size_t n)
{
    int timers = 0;
    for (int64_t next = settle(x); tinkc_mock_count(x->mock, path) < n; next = settle(x)) {
        if (++timers > 5000)
            fail_msg("%s: %zu requests, not %zu", path, tinkc_mock_count(x->mock, path), n);
        tinkc_mock_advance(x->mock, next);
    }
}

/* The next poll is answered like this after delay_ms. */
static void say(fixture *x, int64_t delay_ms, const char *body)
{
    assert_true(
        tinkc_mock_once(x->mock, NULL, FUTURES, &(tinkc_mock_answer){ .delay_ms = delay_ms, .body = body }, &x->err));
}

static void check_counts(fixture *x, size_t samples, size_t futures, size_t polls)
{
    assert_int_equal(tinkc_mock_count(x->mock, SAMPLE), samples);
    assert_int_equal(tinkc_mock_count(x->mock, FUTURES), futures);
    assert_int_equal(tinkc_mock_count(x->mock, POLL), polls);
}

#define NAME(n) "{\"state\":\"finished\",\"request_id\":\"mock-request-" #n "\"}"
#define SIZED(n, len)                                                                                                  \
    "{\"state\":\"finished\",\"request_id\":\"mock-request-" #n "\",\"response_payload_uncompressed_size\":" #len "}"
#define NAMES(list, at) "{\"completions\":[" list "],\"cursor\":" #at "}"

TEST(one_poll_serves_all_samples)
{
    fixture x;
    open_on(&x, ON);
    say(&x, 1000, NAMES(SIZED(1, 100) "," SIZED(3, 100), 2));
    say(&x, 500, NAMES(NAME(2), 3));
    tinkc_future *f[3] = { sample(&x), sample(&x), sample(&x) };
    assert_true(run_until_done(x.mock, f[0], 1000));
    assert_true(run_until_done(x.mock, f[2], 0));
    assert_false(tinkc_future_done(f[1]));
    complete(&x, f[1]);
    complete(&x, f[0]);
    complete(&x, f[2]);
    (void)settle(&x);
    check_counts(&x, 3, 2, 3);
    const tinkc_request *first = nth_request(x.mock, FUTURES, 0), *second = nth_request(x.mock, FUTURES, 1);
    assert_int_equal(first->pool, TINKC_POOL_FUTURES);
    assert_int_equal(first->idle_timeout_ms, 45000);
    char want[300];
    (void)snprintf(want, sizeof want,
                   "{\"target\":{\"sampling_session_id\":\"%s\",\"cloned_sampler_id\":0,"
                   "\"type\":\"sampling_session\"},\"prev_cursor\":0,\"retrieved_request_ids\":[]}",
                   tinkc_sampler_id(x.sampler));
    assert_int_equal(first->body.len, strlen(want));
    assert_memory_equal(first->body.data, want, strlen(want));
    assert_true(body_has(second, "\"prev_cursor\":2"));
    /* A size that was named makes the peek at it unnecessary. */
    assert_true(body_has(nth_request(x.mock, POLL, 0), "\"allow_metadata_only\":false"));
    assert_true(body_has(nth_request(x.mock, POLL, 2), "\"allow_metadata_only\":true"));
    assert_int_equal(nth_request_ms(x.mock, FUTURES, 1) - nth_request_ms(x.mock, FUTURES, 0), 1000);

    /* What has been fetched is reported with the next poll, once. */
    say(&x, 10, NAMES(NAME(4), 4));
    complete(&x, sample(&x));
    say(&x, 10, NAMES(NAME(5), 5));
    complete(&x, sample(&x));
    assert_true(body_has(nth_request(x.mock, FUTURES, 2),
                         "\"retrieved_request_ids\":[\"mock-request-1\",\"mock-request-3\","
                         "\"mock-request-2\"]"));
    assert_true(
        body_has(nth_request(x.mock, FUTURES, 3), "\"prev_cursor\":4,\"retrieved_request_ids\":[\"mock-request-4\"]"));
    check_counts(&x, 5, 4, 5);
    close_all(&x);
}

/* Without the setting nothing of this happens. */
TEST(the_setting_decides)
{
    static const char *const off[] = { "{}", "{\"sample_use_retrieve_futures\":false}" };
    for (size_t i = 0; i < 2; i++) {
        fixture x;
        open_on(&x, off[i]);
        complete(&x, sample(&x));
        check_counts(&x, 1, 0, 1);
        close_all(&x);
    }
}

TEST(strange_names_are_passed_over)
{
    fixture x;
    open_on(&x, ON);
    say(&x, 1000, NAMES(NAME(77) ",{\"state\":\"new\",\"request_id\":\"\"}", 9));
    say(&x, 1000, NAMES(NAME(1) "," NAME(1), -3));
    once(&x, POLL, 200, "{\"error\":\"too hot\",\"category\":\"user\"}");
    tinkc_future *f = sample(&x);
    check_failure(&x, f, TINKC_E_REQUEST_FAILED, "too hot");
    check_counts(&x, 1, 2, 1);
    assert_true(body_has(nth_request(x.mock, FUTURES, 1), "\"prev_cursor\":9"));
    say(&x, 0, NAMES("{\"state\":\"failed\",\"request_id\":\"mock-request-2\"}", 1));
    complete(&x, sample(&x)); /* its failure counts as fetched, too */
    assert_true(
        body_has(nth_request(x.mock, FUTURES, 2), "\"prev_cursor\":-3,\"retrieved_request_ids\":[\"mock-request-1\"]"));
    close_all(&x);
}

/* ---- failures of the poll ---- */

typedef struct gap_row {
    int32_t status, fault;
    const char *header, *value, *body;
    int64_t gaps[3];
    int32_t code; /* that the sample shows meanwhile */
} gap_row;

static const gap_row gap_rows[] = {
    { 429, 0, "Retry-After", "7", "{}", { 7000, 7000, 7000 }, TINKC_E_RATE_LIMITED },
    { 429, 0, NULL, NULL, "{}", { 1000, 2000, 4000 }, TINKC_E_RATE_LIMITED },
    { 503, 0, "Retry-After", "4", "{}", { 4000, 4000, 4000 }, TINKC_E_SERVER },
    { 503, 0, NULL, NULL, "{}", { 100, 200, 400 }, TINKC_E_SERVER },
    { 500, 0, "Retry-After", "4", "{}", { 100, 200, 400 }, TINKC_E_SERVER },
    { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL, { 1000, 2000, 4000 }, TINKC_E_CONNECTION },
    { 400, 0, NULL, NULL, "<html>", { 100, 200, 400 }, TINKC_E_BAD_REQUEST },
    { 402, 0, NULL, NULL, "{}", { 5000, 5000, 5000 }, TINKC_E_BILLING },
    { 408, 0, NULL, NULL, "{}", { 100, 200, 400 }, 0 },
    { 200, 0, NULL, NULL, "{\"completions\":[],\"cursor\":0}", { 100, 200, 400 }, 0 },
    { 200, 0, NULL, NULL, NAMES(NAME(77), 0), { 100, 200, 400 }, 0 },
};

TEST(failed_polls_are_repeated_as_others_are)
{
    for (size_t i = 0; i < sizeof gap_rows / sizeof *gap_rows; i++) {
        const gap_row *row = &gap_rows[i];
        fixture x;
        open_on(&x, ON);
        const char *headers[] = { row->header, row->value, NULL };
        for (int k = 0; k < 3; k++)
            assert_true(tinkc_mock_once(x.mock, NULL, FUTURES,
                                        &(tinkc_mock_answer){ .status = row->status,
                                                              .fault = row->fault,
                                                              .headers = row->header ? headers : NULL,
                                                              .body = row->body },
                                        &x.err));
        say(&x, 10, NAMES(NAME(1), 1));
        tinkc_future *f = sample(&x);
        for (int k = 0; k < 3; k++) {
            int32_t attempts = 0;
            (void)settle(&x);
            assert_int_equal(tinkc_future_retry_state(f, &attempts, NULL), row->code);
            assert_int_equal(attempts, row->code ? k + 1 : 0);
            until_sent(&x, FUTURES, (size_t)k + 2);
        }
        (void)settle(&x);
        tinkc_mock_advance(x.mock, 10); /* the fourth names it: the trouble is over */
        (void)settle(&x);
        assert_true(tinkc_future_done(f));
        complete(&x, f);
        check_counts(&x, 1, 4, 1);
        for (size_t k = 0; k < 3; k++)
            assert_int_equal(nth_request_ms(x.mock, FUTURES, k + 1) - nth_request_ms(x.mock, FUTURES, k), row->gaps[k]);
        close_all(&x);
    }
}

/* What was fetched is reported until a poll that says so has been answered: a service that never heard it
 * keeps the results. */
TEST(what_was_fetched_is_reported_again_after_a_failed_poll)
{
    for (size_t i = 0; i < sizeof gap_rows / sizeof *gap_rows; i++) {
        const gap_row *row = &gap_rows[i];
        bool answered = row->status == 200;
        fixture x;
        open_on(&x, ON);
        say(&x, 0, NAMES(NAME(1), 1));
        complete(&x, sample(&x));
        assert_true(tinkc_mock_once(
            x.mock, NULL, FUTURES,
            &(tinkc_mock_answer){ .status = row->status, .fault = row->fault, .body = row->body }, &x.err));
        say(&x, 0, NAMES(NAME(2), 2));
        complete(&x, sample(&x));
        assert_true(body_has(nth_request(x.mock, FUTURES, 1), "\"retrieved_request_ids\":[\"mock-request-1\"]"));
        assert_true(body_has(nth_request(x.mock, FUTURES, 2), answered
                                                                  ? "\"retrieved_request_ids\":[]"
                                                                  : "\"retrieved_request_ids\":[\"mock-request-1\"]"));
        close_all(&x);
    }
}

/* An answer ends the trouble: the pauses of the next failures begin at a second, and three more answers
 * of a proxy are allowed. */
TEST(answers_begin_the_pauses_again)
{
    static const struct {
        int32_t status;
        const char *body;
    } answers[] = { { 408, "{}" }, { 200, "{\"completions\":[],\"cursor\":0}" } };
    static const struct {
        int32_t status;
        const char *body;
        size_t times;
        int64_t first_ms, again_ms; /* after the first failure, and after the first behind the answer */
    } failures[] = { { 429, "{}", 2, 1000, 1000 }, { 400, "<html>", 3, 100, 1000 } };
    for (size_t i = 0; i < 4; i++) {
        fixture x;
        size_t how = i / 2, times = failures[how].times;
        open_on(&x, ON);
        for (size_t k = 0; k < times; k++)
            once(&x, FUTURES, failures[how].status, failures[how].body);
        once(&x, FUTURES, answers[i % 2].status, answers[i % 2].body);
        for (size_t k = 0; k < times; k++)
            once(&x, FUTURES, failures[how].status, failures[how].body);
        say(&x, 0, NAMES(NAME(1), 1));
        complete(&x, sample(&x));
        check_counts(&x, 1, 2 * times + 2, 1);
        assert_int_equal(nth_request_ms(x.mock, FUTURES, 1) - nth_request_ms(x.mock, FUTURES, 0),
                         failures[how].first_ms);
        assert_int_equal(nth_request_ms(x.mock, FUTURES, times + 2) - nth_request_ms(x.mock, FUTURES, times + 1),
                         failures[how].again_ms);
        close_all(&x);
    }
}

typedef struct seen_event {
    size_t n;
    int32_t http_status;
    int64_t wait_ms, left_ms;
    char request[100];
} seen_event;

static void see_event(const tinkc_event *e, void *user)
{
    seen_event *seen = user;
    seen->n++;
    seen->http_status = e->http_status;
    seen->wait_ms = e->wait_ms;
    seen->left_ms = e->left_ms;
    (void)snprintf(seen->request, sizeof seen->request, "%s", e->request);
}

static void check_status(fixture *x, tinkc_future *f, const char *want)
{
    tinkc_text text = { 0 };
    assert_string_equal(tinkc_future_status(f, &text, &x->err), want);
    tinkc_text_free(&text);
}

/* Each sample says why it waits; the poll itself is one event, however many wait. */
TEST(a_failed_poll_is_shown)
{
    static const char *const headers[] = { "Retry-After", "4", NULL };
    fixture x;
    seen_event seen = { 0 };
    open_on(&x, ON);
    tinkc_queue *queue = tinkc_queue_new(x.client, &x.err);
    tinkc_client_on_event(x.client, queue, TINKC_EVENT_RETRY, see_event, &seen, &x.err);
    tinkc_future *f[2] = { sample(&x), sample(&x) };
    until_sent(&x, FUTURES, 1); /* held */
    tinkc_mock_once(x.mock, NULL, FUTURES, &(tinkc_mock_answer){ .status = 503, .headers = headers, .body = "{}" },
                    &x.err);
    say(&x, 10, NAMES(NAME(1) "," NAME(2), 1));
    until_sent(&x, FUTURES, 2);
    (void)settle(&x);
    while (tinkc_queue_run(queue, 0, &x.err) > 0)
        ;
    assert_ok(&x.err);
    assert_int_equal(seen.n, 1);
    assert_int_equal(seen.http_status, 503);
    assert_int_equal(seen.wait_ms, 4000);
    assert_int_equal(seen.left_ms, TINKC_FOREVER);
    assert_string_equal(seen.request, "POST " FUTURES);
    for (size_t i = 0; i < 2; i++)
        check_status(&x, f[i], "results cannot be asked for: HTTP 503, next try in 4.0 s");
    complete(&x, f[0]);
    complete(&x, f[1]);
    check_counts(&x, 2, 3, 2);
    tinkc_queue_free(queue);
    close_all(&x);
}

typedef struct refusal {
    int32_t status;
    const char *body;
    size_t times; /* that the poll is sent */
} refusal;

static const refusal refusals[] = {
    { 404, "{\"detail\":\"no such path\"}", 1 },
    { 405, "{}", 1 },
    { 422, "{\"detail\":\"what target?\"}", 1 },
    { 401, "{}", 1 },
    { 410, "{}", 1 },
    { 400, "{\"detail\":\"no\"}", 1 },
    { 400, "<html>", 4 },
    { 200, "not JSON", 1 },
    { 200, "[]", 1 },
    { 200, "{\"completions\":[]}", 1 },
    { 200, "{\"completions\":[{}],\"cursor\":1}", 1 },
    { 200, "{\"completions\":[{\"request_id\":7}],\"cursor\":1}", 1 },
};

/* Samples then poll one by one, at once and for good. */
TEST(a_service_that_refuses_it_is_polled_as_before)
{
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        fixture x;
        open_on(&x, ON);
        assert_true(tinkc_mock_always(x.mock, NULL, FUTURES,
                                      &(tinkc_mock_answer){ .status = refusals[i].status, .body = refusals[i].body },
                                      &x.err));
        int64_t begin = now_ms(&x);
        tinkc_future *a = sample(&x), *b = sample(&x);
        complete(&x, a);
        complete(&x, b);
        assert_true(now_ms(&x) - begin <= 700);
        complete(&x, sample(&x));
        check_counts(&x, 3, refusals[i].times, 3);
        close_all(&x);
    }
}

/* no_retries: no poll is repeated, and the sample's own has the last word. */
TEST(without_retries_the_samples_own_poll_decides)
{
    fixture x;
    open_client(&x, CONFIG, ON, &(tinkc_client_options){ .api_key = "tml-key", .no_retries = true });
    x.sampler = tinkc_sampler_new(x.client, &nano, &x.err);
    once(&x, FUTURES, 503, "{}");
    once(&x, POLL, 503, "{\"detail\":\"full\"}");
    check_failure(&x, sample(&x), TINKC_E_SERVER, "HTTP 503: full");
    check_counts(&x, 1, 1, 1);
    close_all(&x);
}

/* ---- what is not named ---- */

TEST(a_sample_that_is_not_named_looks_for_itself)
{
    fixture x;
    open_on(&x, ON);
    say(&x, 0, NAMES(NAME(1), 40));
    complete(&x, sample(&x));
    tinkc_mock_forget(x.mock);
    tinkc_future *f = sample(&x), *other = sample(&x);
    once(&x, POLL, 200, "{\"type\":\"try_again\",\"queue_state\":\"paused_capacity\"}");
    once(&x, POLL, 200, "{\"type\":\"try_again\"}");
    until_sent(&x, POLL, 2);
    int64_t first = nth_request_ms(x.mock, POLL, 0) - nth_request_ms(x.mock, SAMPLE, 0);
    assert_true(first >= 45000 && first <= 60000);
    assert_false(tinkc_future_done(f) || tinkc_future_done(other));
    /* The order of the two depends on chance: the one that was answered first is paused. */
    assert_true(tinkc_future_queue_state(f) == TINKC_QUEUE_PAUSED_CAPACITY ||
                tinkc_future_queue_state(other) == TINKC_QUEUE_PAUSED_CAPACITY);
    assert_true(run_until_done(x.mock, f, 130000) && run_until_done(x.mock, other, 130000));
    int64_t second = nth_request_ms(x.mock, POLL, 2) - nth_request_ms(x.mock, POLL, 0);
    assert_true(second >= 90000 && second <= 120000 + 15000);
    complete(&x, f);
    complete(&x, other);
    assert_int_equal(tinkc_mock_count(x.mock, POLL), 4);
    for (size_t i = 0; i < tinkc_mock_count(x.mock, FUTURES); i++)
        if (nth_request_ms(x.mock, FUTURES, i) < nth_request_ms(x.mock, POLL, 2))
            assert_true(body_has(nth_request(x.mock, FUTURES, i), "\"prev_cursor\":40"));
    /* The list had lacked them: it is read from its start. */
    tinkc_mock_forget(x.mock);
    say(&x, 0, NAMES(NAME(4), 41));
    complete(&x, sample(&x));
    assert_true(body_has(nth_request(x.mock, FUTURES, 0), "\"prev_cursor\":0"));
    tinkc_mock_forget(x.mock); /* once */
    say(&x, 0, NAMES(NAME(5), 42));
    complete(&x, sample(&x));
    assert_true(body_has(nth_request(x.mock, FUTURES, 0), "\"prev_cursor\":41"));
    close_all(&x);
}

/* After a minute, then after twice the time up to ten minutes, each less up to a quarter. */
TEST(looks_are_spread_and_capped)
{
    static const int64_t upper[] = { 60000, 120000, 240000, 480000, 600000, 600000 };
    enum { LOOKS = sizeof upper / sizeof *upper, SEEDS = 60 };
    int64_t low[LOOKS], high[LOOKS] = { 0 };
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        fixture x;
        open_on(&x, ON);
        tinkc_mock_seed(x.mock, seed);
        always(&x, POLL, "{\"type\":\"try_again\"}");
        tinkc_future *f = sample(&x);
        until_sent(&x, POLL, LOOKS);
        int64_t before = nth_request_ms(x.mock, SAMPLE, 0);
        for (size_t i = 0; i < LOOKS; i++) {
            int64_t at = nth_request_ms(x.mock, POLL, i), took = at - before;
            assert_in_range(took, upper[i] * 3 / 4, upper[i]);
            low[i] = seed == 1 || took < low[i] ? took : low[i];
            high[i] = took > high[i] ? took : high[i];
            before = at;
        }
        tinkc_future_free(f);
        close_all(&x);
    }
    for (size_t i = 0; i < LOOKS; i++) /* over so many seeds both ends are come near to */
        if (low[i] > upper[i] * 77 / 100 || high[i] <= upper[i] * 987 / 1000)
            fail_msg("look %zu: after %lld to %lld ms", i, (long long)low[i], (long long)high[i]);
}

/* It is named while its own poll is out, and that poll has missed the moment: it asks again at once, not
 * two minutes later. */
TEST(named_while_it_looks_for_itself)
{
    fixture x;
    open_on(&x, ON);
    tinkc_mock_once(x.mock, NULL, POLL, &(tinkc_mock_answer){ .delay_ms = 20000, .status = 408 }, &x.err);
    tinkc_future *f = sample(&x);
    until_sent(&x, POLL, 1);
    say(&x, 0, NAMES(NAME(1), 1));
    assert_true(run_until_done(x.mock, f, 45000));
    assert_int_equal(tinkc_mock_count(x.mock, POLL), 2);
    assert_int_equal(nth_request_ms(x.mock, POLL, 1) - nth_request_ms(x.mock, POLL, 0), 20000);
    complete(&x, f);
    close_all(&x);
}

/* A promise that the service has forgotten is sampled again, and found by its new name. */
TEST(a_forgotten_sample_is_sampled_again)
{
    fixture x;
    open_on(&x, ON);
    say(&x, 0, NAMES(NAME(1), 1));
    once(&x, POLL, 410, "{\"detail\":\"expired\"}");
    tinkc_future *f = sample(&x);
    (void)settle(&x);
    say(&x, 0, NAMES(NAME(2), 2));
    assert_true(run_until_done(x.mock, f, 40000));
    complete(&x, f);
    check_counts(&x, 2, 2, 2);
    close_all(&x);
}

/* ---- ends ---- */

TEST(stopping_a_sample_leaves_the_others)
{
    fixture x;
    open_on(&x, ON);
    tinkc_future *a = sample(&x), *b = sample(&x), *c = sample(&x);
    (void)settle(&x);
    tinkc_future_cancel(a);
    (void)settle(&x);
    assert_false(tinkc_future_wait(a, 0, &x.err));
    assert_int_equal(x.err.code, TINKC_E_CANCELLED);
    x.err = (tinkc_error){ 0 };
    assert_true(tinkc_future_limit(b, 5000, &x.err));
    (void)settle(&x);
    tinkc_mock_advance(x.mock, 5000);
    (void)settle(&x);
    assert_false(tinkc_future_wait(b, 0, &x.err));
    assert_int_equal(x.err.code, TINKC_E_DEADLINE);
    x.err = (tinkc_error){ 0 };
    say(&x, 0, NAMES(NAME(1) "," NAME(2) "," NAME(3), 3));
    complete(&x, c);
    tinkc_future_free(a);
    tinkc_future_free(b);
    assert_int_equal(tinkc_mock_count(x.mock, POLL), 1);
    /* Nobody waits: no poll is out or to come. */
    size_t polls = tinkc_mock_count(x.mock, FUTURES);
    tinkc_future *d = sample(&x);
    (void)settle(&x);
    tinkc_future_cancel(d);
    (void)settle(&x);
    tinkc_future_free(d);
    for (int i = 0; i < 10; i++)
        tinkc_mock_advance(x.mock, HELD_MS);
    (void)settle(&x);
    assert_int_equal(tinkc_mock_count(x.mock, FUTURES), polls + 1);
    close_all(&x);
}

TEST(closing_the_client_ends_all)
{
    fixture x;
    open_on(&x, ON);
    tinkc_future *f[2] = { sample(&x), sample(&x) };
    (void)settle(&x);
    assert_false(tinkc_client_close(x.client, 0, &x.err)); /* the samples are not over */
    for (size_t i = 0; i < 2; i++) {
        assert_false(tinkc_future_wait(f[i], 0, &x.err));
        assert_int_equal(x.err.code, TINKC_E_CLOSED);
        x.err = (tinkc_error){ 0 };
        tinkc_future_free(f[i]);
    }
    close_all(&x);
}

/* ---- settings ---- */

TEST(refreshed_settings_turn_it_off_and_on)
{
    fixture x;
    open_client(&x, CONFIG, ON, &(tinkc_client_options){ .api_key = "tml-key" });
    always(&x, SETTINGS, "{\"refresh_interval_sec\":10}");
    assert_true(tinkc_mock_always(x.mock, NULL, FUTURES, &held, &x.err));
    x.sampler = tinkc_sampler_new(x.client, &nano, &x.err);
    tinkc_future *f = sample(&x);
    (void)settle(&x);
    always(&x, SETTINGS, "{\"refresh_interval_sec\":10,\"sample_use_retrieve_futures\":false}");
    assert_true(run_until_done(x.mock, f, HELD_MS)); /* when the poll that is out has ended */
    complete(&x, f);
    check_counts(&x, 1, 1, 1);
    complete(&x, sample(&x));
    check_counts(&x, 2, 1, 2);
    always(&x, SETTINGS, "{\"refresh_interval_sec\":10,\"sample_use_retrieve_futures\":true}");
    for (int i = 0; i < 30; i++) {
        tinkc_mock_advance(x.mock, 1000);
        (void)settle(&x);
    }
    say(&x, 0, NAMES(NAME(3), 3));
    complete(&x, sample(&x));
    check_counts(&x, 3, 2, 3);
    close_all(&x);
}

/* A sample that waits here holds no connection: the limit of those under way does not count. */
TEST(the_limit_of_samples_under_way_does_not_count)
{
    for (int on = 0; on < 2; on++) {
        fixture x;
        open_on(&x, on ? "{\"sample_use_retrieve_futures\":true,\"sample_max_concurrent_requests\":1}"
                       : "{\"sample_max_concurrent_requests\":1}");
        assert_true(tinkc_mock_always(x.mock, NULL, POLL, &held, &x.err));
        tinkc_future *f[3] = { sample(&x), sample(&x), sample(&x) };
        (void)settle(&x);
        assert_int_equal(tinkc_mock_count(x.mock, SAMPLE), on ? 3 : 1);
        for (size_t i = 0; i < 3; i++)
            tinkc_future_free(f[i]);
        close_all(&x);
    }
}

/* A copy asks for its own numbers only. */
TEST(a_copy_names_itself)
{
    fixture x;
    tinkc_text text = { 0 };
    open_on(&x, "{\"sample_use_retrieve_futures\":true,\"sample_join_sampling_session\":true}");
    const char *exported = tinkc_sampler_export(x.sampler, &text, &x.err);
    tinkc_sampler *original = x.sampler;
    x.sampler = tinkc_sampler_import(
        exported,
        &(tinkc_client_options){ .transport = tinkc_mock_transport(x.mock), .clock = tinkc_mock_clock(x.mock) },
        &x.err);
    assert_ok(&x.err);
    always(&x, API "join_sampling_session", "{\"client_counter\":12}");
    say(&x, 0, NAMES(NAME(1), 1));
    complete(&x, sample(&x));
    assert_true(body_has(nth_request(x.mock, FUTURES, 0), "\"cloned_sampler_id\":12"));
    assert_true(body_has(nth_request(x.mock, SAMPLE, 0), "\"seq_id\":12000000000"));
    tinkc_sampler_free(original);
    tinkc_text_free(&text);
    close_all(&x);
}
