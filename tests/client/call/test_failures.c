/* test_failures.c - every kind of request meets every kind of bad weather.
 *
 * Each case is a fresh client on a fresh mock: one path answers badly, always or once, and the
 * table says how the future must end, or that it must still be trying, how many requests that takes,
 * and how far apart they are. Time is the mock's. test_retry_gaps.c has the figures of each layer.
 */
#include "support/client/api_support.h"

/* ---- the weather ---- */

typedef struct weather {
    const char *name;
    tinkc_mock_answer answer;
    int32_t code; /* of the call when it gives up */
    bool retried; /* by layers attempt and window */
} weather;

#define JSON_ERROR "{\"detail\":\"no good\"}"
static const char *const wait_ms[] = { "retry-after-ms", "1500", NULL };
static const char *const wait_s[] = { "Retry-After", "7", NULL };
static const char *const wait_date[] = { "Retry-After", "Thu, 01 Jan 2026 00:00:20 GMT", NULL };
static const char *const wait_junk[] = { "Retry-After", "soon", NULL };
static const char *const protobuf[] = { "Content-Type", "application/x-protobuf", NULL };
static char oversized[200 * 1024];

#define FAULT(f)                                                                                                       \
    {                                                                                                                  \
        .fault = f, .body = "{}"                                                                                       \
    }
#define STATUS(s)                                                                                                      \
    {                                                                                                                  \
        .status = s, .body = JSON_ERROR                                                                                \
    }

static const weather all_weather[] = {
    { "refused", FAULT(TINKC_FAULT_REFUSED), TINKC_E_CONNECTION, true },
    { "dns", FAULT(TINKC_FAULT_DNS), TINKC_E_CONNECTION, true },
    { "tls", FAULT(TINKC_FAULT_TLS), TINKC_E_CONNECTION, true },
    { "reset before", FAULT(TINKC_FAULT_RESET), TINKC_E_CONNECTION, true },
    { "reset inside",
      { .fault = TINKC_FAULT_RESET, .fault_after = 4, .body = "{\"request_id\":\"a\"}" },
      TINKC_E_CONNECTION,
      true },
    { "truncated", { .fault = TINKC_FAULT_TRUNCATED, .body = "{\"request_id\":\"a\"}" }, TINKC_E_CONNECTION, true },
    { "silent", FAULT(TINKC_FAULT_SILENT), TINKC_E_NET_TIMEOUT, true },
    { "bare 400", { .status = 400 }, TINKC_E_BAD_REQUEST, false }, /* see expect() */
    { "400", STATUS(400), TINKC_E_BAD_REQUEST, false },
    { "401", STATUS(401), TINKC_E_AUTH, false },
    { "402", STATUS(402), TINKC_E_BILLING, false }, /* see expect() */
    { "403", STATUS(403), TINKC_E_FORBIDDEN, false },
    { "404", STATUS(404), TINKC_E_NOT_FOUND, false },
    { "408",
      { .status = 408, .body = "{\"type\":\"try_again\",\"queue_state\":\"paused_capacity\"}" },
      TINKC_E_REQUEST_TIMEOUT,
      true },
    { "409", STATUS(409), TINKC_E_CONFLICT, true },
    { "410", STATUS(410), TINKC_E_GONE, false },
    { "418", STATUS(418), TINKC_E_HTTP, false },
    { "422", STATUS(422), TINKC_E_UNPROCESSABLE, false },
    { "429", STATUS(429), TINKC_E_RATE_LIMITED, true },
    { "429 ms", { .status = 429, .headers = wait_ms }, TINKC_E_RATE_LIMITED, true },
    { "429 s", { .status = 429, .headers = wait_s }, TINKC_E_RATE_LIMITED, true },
    { "429 date", { .status = 429, .headers = wait_date }, TINKC_E_RATE_LIMITED, true },
    { "429 junk", { .status = 429, .headers = wait_junk }, TINKC_E_RATE_LIMITED, true },
    { "500", STATUS(500), TINKC_E_SERVER, true },
    { "502", { .status = 502, .body = "<html>bad gateway</html>" }, TINKC_E_SERVER, true },
    { "503", STATUS(503), TINKC_E_SERVER, true },
    { "invalid json", { .body = "{\"request_id\":" }, TINKC_E_BAD_RESPONSE, false },
    { "no json", { .body = "hello" }, TINKC_E_BAD_RESPONSE, false },
    { "oversized", { .body = oversized, .body_len = sizeof oversized }, TINKC_E_BAD_RESPONSE, false },
    { "drip",
      { .status = 403, .body = JSON_ERROR, .fault = TINKC_FAULT_DRIP, .drip_ms = 500 },
      TINKC_E_FORBIDDEN,
      false },
    { "drip too slow", { .body = "{}", .fault = TINKC_FAULT_DRIP, .drip_ms = 600000 }, TINKC_E_NET_TIMEOUT, true },
    { "protobuf junk", { .headers = protobuf, .body = "\xff\xff\xff" }, TINKC_E_BAD_RESPONSE, false },
};
enum { N_WEATHER = sizeof all_weather / sizeof *all_weather };

/* ---- the requests ---- */

typedef struct scene {
    tinkc_error err;
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_trainer *trainer;
    tinkc_sampler *sampler;
    tinkc_batch *batch;
} scene;

enum { CALL, POLL, SAMPLE }; /* how the request is repeated */

typedef struct request_kind {
    const char *name, *path;
    int family;
    int retries; /* layer attempt */
    bool window; /* layer window */
    bool needs_trainer, needs_sampler;
    tinkc_future *(*start)(scene *);
} request_kind;

static const tinkc_lora_options lora = { .base_model = "mock/nano" };
static const tinkc_sampler_options sampler_options = { .base_model = "mock/nano" };

static tinkc_future *capabilities(scene *x)
{
    return tinkc_capabilities_get(x->client, &x->err);
}
static tinkc_future *health(scene *x)
{
    return tinkc_health_check(x->client, &x->err);
}
static tinkc_future *open_trainer(scene *x)
{
    return tinkc_trainer_open(x->client, &lora, &x->err);
}
static tinkc_future *open_sampler(scene *x)
{
    return tinkc_sampler_open(x->client, &sampler_options, &x->err);
}
static tinkc_future *step(scene *x)
{
    tinkc_adam adam = TINKC_ADAM_INIT;
    return tinkc_optim_step(x->trainer, &adam, &x->err);
}
static tinkc_future *pass(scene *x)
{
    return tinkc_forward_backward(x->trainer, x->batch, TINKC_CROSS_ENTROPY, NULL, &x->err);
}
static tinkc_future *save(scene *x)
{
    return tinkc_trainer_save(x->trainer, "a", NULL, &x->err);
}
static tinkc_future *save_sampler(scene *x)
{
    return tinkc_trainer_save_for_sampler(x->trainer, "a", NULL, &x->err);
}
static tinkc_future *load(scene *x)
{
    tinkc_state_options o = { .path = "tinker://r/weights/a" };
    return tinkc_trainer_load(x->trainer, &o, &x->err);
}
static tinkc_future *info(scene *x)
{
    return tinkc_trainer_info(x->trainer, &x->err);
}
static tinkc_future *get_sampler(scene *x)
{
    return tinkc_sampler_get(x->client, "s", &x->err);
}
static tinkc_future *get_run(scene *x)
{
    return tinkc_run_get(x->client, "r", 0, &x->err);
}
static tinkc_future *sample(scene *x)
{
    static const int32_t prompt[] = { 1, 2, 3 };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    return tinkc_sample(x->sampler, prompt, 3, 1, &o, &x->err);
}

static const request_kind all_kinds[] = {
    { "client config", "/api/v1/client/config", CALL, 10, true, false, false, capabilities },
    { "dynamic config", "/api/v1/client/dynamic_config", CALL, 0, true, false, false, open_trainer },
    { "create session", "/api/v1/create_session", CALL, 10, false, false, false, open_trainer },
    { "create model", "/api/v1/create_model", CALL, 10, false, false, false, open_trainer },
    { "sampling session", "/api/v1/create_sampling_session", CALL, 10, false, false, false, open_sampler },
    { "capabilities", "/api/v1/get_server_capabilities", CALL, 10, true, false, false, capabilities },
    { "health", "/api/v1/healthz", CALL, 10, false, false, false, health },
    { "get sampler", "/api/v1/samplers/s", CALL, 10, true, false, false, get_sampler },
    { "get run", "/api/v1/training_runs/r", CALL, 10, true, false, false, get_run },
    { "optim step", "/api/v1/optim_step", CALL, 10, true, true, false, step },
    { "forward backward", "/api/v1/forward_backward", CALL, 10, true, true, false, pass },
    { "save", "/api/v1/save_weights", CALL, 0, true, true, false, save },
    { "save for sampler", "/api/v1/save_weights_for_sampler", CALL, 0, true, true, false, save_sampler },
    { "load", "/api/v1/load_weights", CALL, 10, true, true, false, load },
    { "info", "/api/v1/get_info", CALL, 10, true, true, false, info },
    { "sample", "/api/v1/asample", SAMPLE, 0, true, false, true, sample },
    { "poll of a step", "/api/v1/retrieve_future", POLL, 0, false, true, false, step },
    { "poll of a pass", "/api/v1/retrieve_future", POLL, 0, false, true, false, pass },
    { "poll of a sample", "/api/v1/retrieve_future", POLL, 0, false, false, true, sample },
};
enum { N_KINDS = sizeof all_kinds / sizeof *all_kinds };

static void open_scene(scene *x, const request_kind *kind)
{
    *x = (scene){ 0 };
    x->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x->err);
    x->client = mock_client(x->mock, &(tinkc_client_options){ .max_response_bytes = 65536 }, &x->err);
    if (kind->needs_trainer) {
        int32_t ids[] = { 1, 2, 3, 4 };
        x->trainer = tinkc_trainer_new(x->client, &lora, &x->err);
        x->batch = tinkc_batch_new(x->client, &x->err);
        tinkc_batch_add_sft(x->batch, ids, 4, 1, &x->err);
    }
    if (kind->needs_sampler)
        x->sampler = tinkc_sampler_new(x->client, &sampler_options, &x->err);
    assert_ok(&x->err);
    tinkc_mock_forget(x->mock);
}

static void close_scene(scene *x)
{
    tinkc_batch_free(x->batch);
    tinkc_trainer_free(x->trainer);
    tinkc_sampler_free(x->sampler);
    tinkc_client_free(x->client);
    tinkc_mock_free(x->mock);
}

/* ---- what must happen ---- */

enum { KEEPS_TRYING = -1, SUCCEEDS = 0 };

static bool named(const weather *w, const char *name)
{
    return strcmp(w->name, name) == 0;
}

/* The table of polls in docs/failures.md. */
static int32_t expect_poll(const request_kind *kind, const weather *w)
{
    if (named(w, "410"))
        return kind->needs_sampler ? KEEPS_TRYING : TINKC_E_PROMISE_EXPIRED;
    if (named(w, "409"))
        return TINKC_E_CONFLICT;
    if (named(w, "bare 400"))
        return TINKC_E_BAD_REQUEST; /* after 16 and 3 more */
    return w->retried ? KEEPS_TRYING : w->code;
}

static int32_t expect(const request_kind *kind, const weather *w)
{
    if (kind->family == POLL)
        return expect_poll(kind, w);
    if (kind->family == SAMPLE) {
        if (named(w, "bare 400"))
            return TINKC_E_BAD_REQUEST; /* the budget of 16 runs out inside the window */
        return w->retried ? KEEPS_TRYING : w->code;
    }
    if (named(w, "404") && strstr(kind->path, "dynamic"))
        return SUCCEEDS;
    if (named(w, "bare 400"))
        return TINKC_E_CONNECTION;
    return w->code;
}

/* Rounds of a window of 300 s whose exchanges take no time: 0, 1, 3, 7, 15, 31, 61, ... 271, 300 s. */
enum { WINDOW_ROUNDS = 15, BARE_400S = 16, BILLING_POLLS = 3600 / 5 + 2 };

static bool takes_time(const weather *w)
{
    return w->answer.fault == TINKC_FAULT_SILENT || w->answer.fault == TINKC_FAULT_DRIP;
}

/* How often the request must have been sent; 0 = it depends on the spread of the pauses, which
 * check_gaps bounds. */
static size_t expect_count(const request_kind *kind, const weather *w)
{
    bool polls = kind->family == POLL, sample = kind->family == SAMPLE;
    if (named(w, "402"))
        return polls || kind->window ? sample ? 0 : BILLING_POLLS : 1;
    if (named(w, "bare 400"))
        return polls ? BARE_400S + 3 + 1 : sample ? BARE_400S + 1 : kind->window ? WINDOW_ROUNDS : 1;
    if (!w->retried || (polls && named(w, "409")))
        return 1;
    if (!kind->window)
        return (size_t)kind->retries + 1;
    bool plain = kind->retries == 0 && !w->answer.headers && !takes_time(w);
    return plain ? WINDOW_ROUNDS : 0;
}

/* The shortest pause before a repetition, in milliseconds. */
static int64_t least_gap(const request_kind *kind, const weather *w)
{
    bool lost = w->code == TINKC_E_CONNECTION || w->code == TINKC_E_NET_TIMEOUT;
    bool full = w->answer.status == 429;
    int64_t own = kind->family == CALL   ? kind->retries ? 375 : 1000
                  : kind->family == POLL ? lost || full ? 1000 : 100
                  : full                 ? 1000
                                         : 375;
    if (named(w, "402") && kind->family != SAMPLE)
        return 5000;
    if (named(w, "402") || (named(w, "bare 400") && kind->family != POLL))
        return 375;
    if (named(w, "bare 400"))
        return 100;
    if (named(w, "410")) /* of a sample's promise: sampled again, which takes another poll */
        return 0;
    int64_t asked = named(w, "429 ms") ? 1500 : named(w, "429 s") ? 7000 : 0;
    return asked > own ? asked : own;
}

/* Every pause lies between what its layer waits at least, and its cap; an exchange that the peer lets
 * hang takes up to a minute of its own. The last of a window may be cut short. */
static void check_gaps(scene *x, const request_kind *kind, const weather *w, size_t count, bool done)
{
    static const int64_t CAP_MS = 30 * 1000 + 250, HANG_MS = 65 * 1000;
    int64_t least = least_gap(kind, w), most = CAP_MS + (takes_time(w) ? HANG_MS : 0), last = 0;
    size_t n = 0;
    for (size_t i = 0; tinkc_mock_request(x->mock, i); i++) {
        if (!request_is_to(tinkc_mock_request(x->mock, i), kind->path))
            continue;
        int64_t at = tinkc_mock_request_ms(x->mock, i), gap = at - last;
        last = at;
        if (n++ == 0)
            continue;
        bool cut = done && n == count;
        bool as_json = n == 2 && kind->start == pass && named(w, "500"); /* not a repetition */
        if ((gap < least && !cut && !as_json) || gap > most) {
            print_error("%s x %s: request %zu came after %lld ms\n", kind->name, w->name, n, (long long)gap);
            fail();
        }
    }
}

static void fail_case(const request_kind *kind, const weather *w, const char *what, const tinkc_error *err,
                      size_t count)
{
    char line[600];
    tinkc_error_line(err, line, sizeof line);
    print_error("%s x %s: %s (%s), %zu requests\n", kind->name, w->name, what, line, count);
    fail();
}

static void run_case(const request_kind *kind, const weather *w)
{
    scene x;
    open_scene(&x, kind);
    tinkc_mock_always(x.mock, NULL, kind->path, &w->answer, &x.err);
    tinkc_future *f = kind->start(&x);
    assert_ok(&x.err);
    int32_t wanted = expect(kind, w);
    /* The window closes after 300 s between attempts that may take 11 minutes; billing after an
     * hour; what keeps trying does so without end. */
    bool done = run_until_done(x.mock, f, wanted == KEEPS_TRYING ? 1800000 : 5400000);
    size_t count = tinkc_mock_count(x.mock, kind->path);
    check_gaps(&x, kind, w, count, done);
    if (wanted == KEEPS_TRYING) {
        if (done)
            (void)tinkc_future_wait(f, 0, &x.err);
        if (done || count < 10)
            fail_case(kind, w, done ? "has ended" : "does not try", &x.err, count);
        tinkc_future_cancel(f);
        tinkc_mock_settle(x.mock, PATIENCE_MS, &x.err);
        assert_true(tinkc_future_done(f));
        assert_false(tinkc_future_wait(f, 0, &x.err));
        assert_int_equal(x.err.code, TINKC_E_CANCELLED);
    } else {
        bool ok = done && tinkc_future_wait(f, 0, &x.err);
        if (!done || x.err.code != wanted || ok != (wanted == SUCCEEDS))
            fail_case(kind, w, done ? "ended otherwise" : "has not ended", &x.err, count);
        size_t least = expect_count(kind, w);
        if (least && count != least)
            fail_case(kind, w, "wrong number of requests", &x.err, count);
        if (kind->family == POLL && wanted && !(x.err.flags & TINKC_IN_RETRIEVAL))
            fail_case(kind, w, "not marked as lost in retrieval", &x.err, count);
        tinkc_error again = { 0 }; /* the same at every call */
        (void)tinkc_future_wait(f, 0, &again);
        assert_memory_equal(&again, &x.err, sizeof again);
    }
    tinkc_future_free(f);
    close_scene(&x);
}

TEST(c11_every_request_in_every_weather)
{
    static const char good[] = "{\"request_id\":\"a\",\"status\":\"ok\"}";
    memset(oversized, ' ', sizeof oversized);
    memcpy(oversized, good, sizeof good - 1); /* only its size is wrong */
    for (size_t k = 0; k < N_KINDS; k++)
        for (size_t w = 0; w < N_WEATHER; w++)
            run_case(&all_kinds[k], &all_weather[w]);
}

/* ---- once, then fine ---- */

/* What is repeated succeeds the second time; what is not has failed. */
TEST(one_bad_answer_is_survived)
{
    for (size_t k = 0; k < N_KINDS; k++)
        for (size_t w = 0; w < N_WEATHER; w++) {
            const request_kind *kind = &all_kinds[k];
            scene x;
            if (!all_weather[w].retried)
                continue;
            open_scene(&x, kind);
            tinkc_mock_once(x.mock, NULL, kind->path, &all_weather[w].answer, &x.err);
            tinkc_future *f = kind->start(&x);
            bool done = run_until_done(x.mock, f, 600000);
            (void)tinkc_future_wait(f, 0, &x.err);
            bool poll_conflict = kind->family == POLL && named(&all_weather[w], "409");
            if (!done || (x.err.code && x.err.http_status != 404 && !poll_conflict))
                fail_case(kind, &all_weather[w], "not survived", &x.err, tinkc_mock_count(x.mock, kind->path));
            tinkc_future_free(f);
            close_scene(&x);
        }
}

/* ---- exact delays ---- */

/* The attempts of one exchange do not continue beyond the window of the operation. */
TEST(attempts_end_with_the_window)
{
    static const int32_t faults[] = { TINKC_FAULT_REFUSED, TINKC_FAULT_SILENT };
    for (size_t i = 0; i < 2; i++) {
        tinkc_error err = { 0 };
        tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
        tinkc_client_options o = { .retry_window_ms = 30000, .idle_timeout_ms = 4000 };
        tinkc_client *client = mock_client(mock, &o, &err);
        assert_true(tinkc_client_connect(client, PATIENCE_MS, &err));
        tinkc_mock_always(mock, NULL, "/api/v1/get_server_capabilities", &(tinkc_mock_answer){ .fault = faults[i] },
                          &err);
        int64_t begun = tinkc_mock_clock(mock)->now_ms(tinkc_mock_clock(mock)->self);
        tinkc_future *f = tinkc_capabilities_get(client, &err);
        assert_true(run_until_done(mock, f, 600000));
        int64_t took = tinkc_mock_clock(mock)->now_ms(tinkc_mock_clock(mock)->self) - begun;
        assert_in_range(took, 30000, 30000 + 4000); /* the last attempt may be silent too */
        assert_false(tinkc_future_wait(f, 0, &err));
        assert_int_equal(err.code, i ? TINKC_E_NET_TIMEOUT : TINKC_E_CONNECTION);
        tinkc_future_free(f);
        tinkc_client_free(client);
        tinkc_mock_free(mock);
    }
}
