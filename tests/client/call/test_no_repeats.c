/* test_no_repeats.c - what is sent once: every layer with no_retries, and answers that no repetition can improve. */
#include "support/client/mock_fixture.h"

#define HEALTH    "/api/v1/healthz"
#define SAVE      "/api/v1/save_weights"
#define SAMPLE    "/api/v1/asample"
#define TELEMETRY "/api/v1/telemetry"

static void open_scene(fixture *x, const tinkc_client_options *options)
{
    open_client(x, NULL, NULL, options);
    open_work(x, 0);
}

static tinkc_future *health(fixture *x)
{
    return tinkc_health_check(x->client, &x->err);
}

static tinkc_future *save(fixture *x)
{
    return tinkc_trainer_save(x->trainer, "a", NULL, &x->err);
}

static tinkc_future *step(fixture *x)
{
    tinkc_adam adam = TINKC_ADAM_INIT;
    return tinkc_optim_step(x->trainer, &adam, &x->err);
}

static tinkc_future *sample(fixture *x)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 1;
    return tinkc_sample(x->sampler, (int32_t[]){ 1, 2 }, 2, 1, &o, &x->err);
}

typedef struct once_case {
    const char *path;
    tinkc_future *(*start)(fixture *);
    tinkc_mock_answer answer;
    int32_t code;
} once_case;

#define ANSWER(...)                                                                                                    \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

static void check_once(const once_case *c, size_t row, const tinkc_client_options *options)
{
    fixture x;
    open_scene(&x, options);
    tinkc_mock_always(x.mock, NULL, c->path, &c->answer, &x.err);
    tinkc_future *f = c->start(&x);
    assert_ok(&x.err);
    bool done = run_until_done(x.mock, f, 600000);
    (void)tinkc_future_wait(f, 0, &x.err);
    size_t n = tinkc_mock_count(x.mock, c->path);
    if (!done || x.err.code != c->code || n != 1)
        fail_msg("row %zu: %d, %zu requests", row, (int)x.err.code, n);
    tinkc_future_free(f);
    close_all(&x);
}

TEST(nothing_is_tried_twice)
{
    static const once_case cases[] = {
        { HEALTH, health, ANSWER(.status = 500), TINKC_E_SERVER },
        { HEALTH, health, ANSWER(.fault = TINKC_FAULT_REFUSED), TINKC_E_CONNECTION },
        { SAVE, save, ANSWER(.status = 503), TINKC_E_SERVER },
        { SAVE, save, ANSWER(.status = 429), TINKC_E_RATE_LIMITED },
        { SAVE, save, ANSWER(.status = 402), TINKC_E_BILLING },
        { SAVE, save, ANSWER(.status = 400), TINKC_E_CONNECTION }, /* without a body */
        { SAVE, save, ANSWER(.fault = TINKC_FAULT_SILENT), TINKC_E_NET_TIMEOUT },
        { POLL, step, ANSWER(.status = 500), TINKC_E_SERVER },
        { POLL, step, ANSWER(.status = 503), TINKC_E_SERVER },
        { POLL, step, ANSWER(.status = 429), TINKC_E_RATE_LIMITED },
        { POLL, step, ANSWER(.status = 402), TINKC_E_BILLING },
        { POLL, step, ANSWER(.status = 400, .body = "<html>"), TINKC_E_BAD_REQUEST },
        { POLL, step, ANSWER(.fault = TINKC_FAULT_RESET), TINKC_E_CONNECTION },
        { POLL, sample, ANSWER(.status = 410), TINKC_E_PROMISE_EXPIRED },
        { POLL, sample, ANSWER(.status = 500), TINKC_E_SERVER },
        { SAMPLE, sample, ANSWER(.status = 500), TINKC_E_SERVER },
        { SAMPLE, sample, ANSWER(.status = 429), TINKC_E_RATE_LIMITED },
        { SAMPLE, sample, ANSWER(.status = 402), TINKC_E_BILLING },
        { SAMPLE, sample, ANSWER(.fault = TINKC_FAULT_REFUSED), TINKC_E_CONNECTION },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_once(&cases[i], i, &(tinkc_client_options){ .no_retries = true });
}

/* Telemetry that is lost stays lost. */
TEST(telemetry_is_sent_once)
{
    static const size_t want[] = { 3, 1 };
    for (size_t i = 0; i < 2; i++) {
        tinkc_error err = { 0 };
        tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
        tinkc_mock_always(mock, NULL, TELEMETRY, &(tinkc_mock_answer){ .status = 500 }, &err);
        tinkc_client_options o = { .telemetry = TINKC_TELEMETRY_ON, .no_retries = i == 1 };
        tinkc_client *client = mock_client(mock, &o, &err);
        assert_true(tinkc_client_report(client, "tick", NULL, TINKC_LOG_INFO, &err));
        for (size_t k = 0; k < 20; k++) {
            tinkc_mock_settle(mock, PATIENCE_MS, &err);
            tinkc_mock_advance(mock, 1000);
        }
        tinkc_mock_settle(mock, PATIENCE_MS, &err);
        assert_ok(&err);
        assert_int_equal(tinkc_mock_count(mock, TELEMETRY), want[i]);
        tinkc_client_free(client);
        tinkc_mock_free(mock);
    }
}

/* A result that is not ready is asked for again all the same: a poll that waits has not failed. */
TEST(results_are_awaited_nevertheless)
{
    static const tinkc_mock_answer waits[] = { { .status = 408 }, { .body = "{\"type\":\"try_again\"}" } };
    for (size_t i = 0; i < 2; i++) {
        fixture x;
        open_scene(&x, &(tinkc_client_options){ .no_retries = true });
        for (size_t k = 0; k < 3; k++)
            tinkc_mock_once(x.mock, NULL, POLL, &waits[i], &x.err);
        tinkc_future *f = step(&x);
        assert_true(run_until_done(x.mock, f, 600000));
        assert_true(tinkc_future_wait(f, 0, &x.err));
        assert_int_equal(tinkc_mock_count(x.mock, POLL), 4);
        tinkc_future_free(f);
        close_all(&x);
    }
}

/* An answer that is too large would be so again, even one with a status that is repeated otherwise. */
TEST(large_answers_are_not_asked_for_again)
{
    enum { MOST = 65536 };
    static char body[MOST + 1];
    static const int32_t statuses[] = { 200, 408, 429, 500, 503 };
    static const struct {
        const char *path;
        tinkc_future *(*start)(fixture *);
    } kinds[] = { { HEALTH, health }, { SAVE, save }, { POLL, step }, { SAMPLE, sample } };
    memset(body, ' ', sizeof body);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
            once_case c = { kinds[k].path,
                            kinds[k].start,
                            { .status = statuses[i], .body = body, .body_len = sizeof body },
                            TINKC_E_BAD_RESPONSE };
            check_once(&c, k * 10 + i, &(tinkc_client_options){ .max_response_bytes = MOST });
        }
}

/* Memory with no block of 100 KB or more. */
static void *small_alloc(size_t size, void *user)
{
    (void)user;
    return size < 100000 ? malloc(size) : NULL;
}

static void *small_resize(void *ptr, size_t old, size_t size, void *user)
{
    (void)old, (void)user;
    return size < 100000 ? realloc(ptr, size) : NULL;
}

static void small_release(void *ptr, size_t size, void *user)
{
    (void)size, (void)user;
    free(ptr);
}

/* Nor is an answer that memory has no room for. */
TEST(memory_is_not_waited_for)
{
    static const tinkc_allocator small = { small_alloc, small_resize, small_release, NULL };
    static char body[400000];
    static const int32_t statuses[] = { 200, 429, 500 };
    memset(body, ' ', sizeof body);
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        once_case c = {
            SAMPLE, sample, { .status = statuses[i], .body = body, .body_len = sizeof body }, TINKC_E_MEMORY
        };
        check_once(&c, i, &(tinkc_client_options){ .allocator = &small });
    }
}
