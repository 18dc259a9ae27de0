/* test_background_work.c - what a client does without being asked: heartbeats, refreshed settings, renewed
 * tokens, pauses for billing; and what it says about them in events and in the log.
 *
 * The mock's clock is exact, so the moments are compared to the millisecond.
 */
#include "support/client/api_support.h"

#define BEAT     "/api/v1/session_heartbeat"
#define SETTINGS "/api/v1/client/dynamic_config"
#define CONFIG   "/api/v1/client/config"
#define TOKEN    "/api/v1/auth/token"
#define SESSION  "/api/v1/create_session"
#define SAVE     "/api/v1/save_weights"
#define STEP     "/api/v1/optim_step"
#define SAMPLE   "/api/v1/asample"
#define POLL     "/api/v1/retrieve_future"
#define HEALTH   "/api/v1/healthz"

enum { KEPT = 400, TEXT = 200, WALL_BEGIN_S = 1767225600 };

typedef struct kept_event {
    uint32_t kind;
    int32_t http_status;
    int64_t elapsed_ms, wait_ms, left_ms;
    char text[TEXT];
} kept_event;

typedef struct kept_line {
    int32_t level;
    char text[TEXT];
} kept_line;

/* A client on a mock, with all its events and log lines. */
typedef struct scene {
    tinkc_error err;
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_queue *queue;
    kept_event events[KEPT];
    size_t n_events;
    kept_line lines[KEPT];
    size_t n_lines;
} scene;

static void keep_event(const tinkc_event *e, void *user)
{
    scene *x = user;
    if (x->n_events == KEPT)
        return;
    kept_event *k = &x->events[x->n_events++];
    *k = (kept_event){ .kind = e->kind,
                       .http_status = e->http_status,
                       .elapsed_ms = e->elapsed_ms,
                       .wait_ms = e->wait_ms,
                       .left_ms = e->left_ms };
    (void)snprintf(k->text, sizeof k->text, "%s", e->text);
}

/* Called on the client's thread; read only while the mock is settled. */
static void keep_line(int32_t level, const char *line, void *user)
{
    scene *x = user;
    if (x->n_lines == KEPT)
        return;
    x->lines[x->n_lines].level = level;
    (void)snprintf(x->lines[x->n_lines++].text, TEXT, "%s", line);
}

static void open_scene(scene *x, const char *config, const tinkc_client_options *more)
{
    memset(x, 0, sizeof *x);
    tinkc_client_options o = { 0 };
    if (more)
        o = *more;
    o.log = keep_line;
    o.log_user = x;
    o.log_level = TINKC_LOG_INFO;
    x->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x->err);
    if (config)
        tinkc_mock_always(x->mock, NULL, CONFIG, &(tinkc_mock_answer){ .body = config }, &x->err);
    x->client = mock_client(x->mock, &o, &x->err);
    assert_ok(&x->err);
    x->queue = tinkc_queue_new(x->client, &x->err);
    tinkc_client_on_event(x->client, x->queue, ~0u, keep_event, x, &x->err);
    assert_ok(&x->err);
}

static void close_scene(scene *x)
{
    tinkc_queue_free(x->queue);
    tinkc_client_free(x->client);
    tinkc_mock_free(x->mock);
}

static void take_events(scene *x)
{
    while (tinkc_queue_run(x->queue, 0, &x->err) > 0)
        ;
}

/* Lets so much of the mock's time pass, timer by timer. */
static void pass_time(scene *x, int64_t ms)
{
    while (true) {
        int64_t next = tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
        assert_ok(&x->err);
        take_events(x);
        if (next == TINKC_FOREVER || next > ms)
            break;
        tinkc_mock_advance(x->mock, next);
        ms -= next;
    }
    tinkc_mock_advance(x->mock, ms);
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    take_events(x);
}

static size_t count_events(const scene *x, uint32_t kind)
{
    size_t n = 0;
    for (size_t i = 0; i < x->n_events; i++)
        n += x->events[i].kind == kind;
    return n;
}

static const kept_event *nth_event(const scene *x, uint32_t kind, size_t nth)
{
    for (size_t i = 0; i < x->n_events; i++)
        if (x->events[i].kind == kind && nth-- == 0)
            return &x->events[i];
    fail_msg("no such event");
    return NULL;
}

static size_t count_lines(const scene *x, int32_t level, const char *part)
{
    size_t n = 0;
    for (size_t i = 0; i < x->n_lines; i++)
        n += x->lines[i].level == level && strstr(x->lines[i].text, part) != NULL;
    return n;
}

static void always(scene *x, const char *path, int32_t status, const char *body)
{
    tinkc_mock_always(x->mock, NULL, path, &(tinkc_mock_answer){ .status = status, .body = body },
                      &x->err);
}

static void once(scene *x, const char *path, int32_t status, const char *body)
{
    tinkc_mock_once(x->mock, NULL, path, &(tinkc_mock_answer){ .status = status, .body = body },
                    &x->err);
}

/* ---- heartbeats ---- */

TEST(heartbeats_that_fail_are_told_after_two_minutes)
{
    static scene x;
    open_scene(&x, NULL, NULL);
    assert_non_null(tinkc_client_session_id(x.client, PATIENCE_MS, &x.err));
    always(&x, BEAT, 500, "{}");
    pass_time(&x, 120000);
    assert_int_equal(tinkc_mock_count(x.mock, BEAT), 12); /* once each: the next is the retry */
    assert_int_equal(count_events(&x, TINKC_EVENT_HEARTBEAT), 0);
    assert_int_equal(count_lines(&x, TINKC_LOG_WARN, "no heartbeat"), 0);
    pass_time(&x, 30000);
    assert_int_equal(count_events(&x, TINKC_EVENT_HEARTBEAT), 3);
    assert_int_equal(count_lines(&x, TINKC_LOG_WARN, "no heartbeat of session mock-session-1"), 3);
    const kept_event *first = nth_event(&x, TINKC_EVENT_HEARTBEAT, 0);
    assert_int_equal(first->elapsed_ms, 130000);
    assert_int_equal(first->http_status, 500);
    assert_non_null(strstr(first->text, "500"));
    always(&x, BEAT, 200, "{}");
    pass_time(&x, 20000); /* said once */
    assert_int_equal(count_events(&x, TINKC_EVENT_HEARTBEAT), 4);
    const kept_event *well = nth_event(&x, TINKC_EVENT_HEARTBEAT, 3);
    assert_string_equal(well->text, "heartbeats work again");
    assert_int_equal(well->elapsed_ms, 160000);
    close_scene(&x);
}

TEST(a_good_heartbeat_begins_the_count_again)
{
    static scene x;
    open_scene(&x, NULL, NULL);
    assert_non_null(tinkc_client_session_id(x.client, PATIENCE_MS, &x.err));
    always(&x, BEAT, 500, "{}");
    pass_time(&x, 100000);
    once(&x, BEAT, 200, "{}"); /* at 110 s */
    pass_time(&x, 130000);
    assert_int_equal(count_events(&x, TINKC_EVENT_HEARTBEAT), 0);
    pass_time(&x, 10000); /* 130 s after the good one */
    assert_int_equal(count_events(&x, TINKC_EVENT_HEARTBEAT), 1);
    close_scene(&x);
}

/* ---- settings ---- */

TEST(settings_are_refreshed_as_they_say)
{
    static scene x;
    open_scene(&x, NULL, NULL);
    always(&x, SETTINGS, 200, "{\"refresh_interval_sec\":40}");
    assert_non_null(tinkc_client_session_id(x.client, PATIENCE_MS, &x.err));
    pass_time(&x, 39000);
    assert_int_equal(tinkc_mock_count(x.mock, SETTINGS), 1);
    pass_time(&x, 2000);
    assert_int_equal(tinkc_mock_count(x.mock, SETTINGS), 2);
    always(&x, SETTINGS, 200, "{\"refresh_interval_sec\":3}");
    pass_time(&x, 39500); /* now at 80.5 s: the third, which says 3 and means at least 10 */
    assert_int_equal(tinkc_mock_count(x.mock, SETTINGS), 3);
    pass_time(&x, 30000);
    assert_int_equal(tinkc_mock_count(x.mock, SETTINGS), 6);
    assert_int_equal(nth_request_ms(x.mock, SETTINGS, 5) - nth_request_ms(x.mock, SETTINGS, 4),
                     10000);
    close_scene(&x);
}

/* Failures leave the last value; only the next refresh is another try. */
TEST(settings_that_cannot_be_refreshed_stay)
{
    static scene x;
    tinkc_client_options o = { .max_retries = TINKC_ZERO };
    open_scene(&x, NULL, &o);
    once(&x, SETTINGS, 200, "{\"refresh_interval_sec\":40}");
    once(&x, SETTINGS, 500, "{}");
    once(&x, SETTINGS, 200, "{\"refresh_interval_sec\":\"soon\"}");
    always(&x, SETTINGS, 200, "{\"refresh_interval_sec\":300}");
    assert_non_null(tinkc_client_session_id(x.client, PATIENCE_MS, &x.err));
    pass_time(&x, 121000);
    assert_int_equal(tinkc_mock_count(x.mock, SETTINGS), 4);
    for (size_t i = 1; i < 4; i++)
        assert_int_equal(nth_request_ms(x.mock, SETTINGS, i) - nth_request_ms(x.mock, SETTINGS, 0),
                         (int64_t)i * 40000);
    close_scene(&x);
}

TEST(without_settings_defaults_hold)
{
    static scene x;
    open_scene(&x, NULL, NULL);
    always(&x, SETTINGS, 404, "{}");
    assert_non_null(tinkc_client_session_id(x.client, PATIENCE_MS, &x.err));
    pass_time(&x, 299999);
    assert_int_equal(tinkc_mock_count(x.mock, SETTINGS), 1);
    pass_time(&x, 1);
    assert_int_equal(tinkc_mock_count(x.mock, SETTINGS), 2);
    assert_int_equal(nth_request_ms(x.mock, SETTINGS, 1) - nth_request_ms(x.mock, SETTINGS, 0),
                     300 * 1000);
    close_scene(&x);
}

TEST(flags_without_sense_are_refused)
{
    static const char *const configs[][2] = {
        { "{\"fwdbwd_max_chunk_len\":0}", "fwdbwd_max_chunk_len" },
        { "{\"fwdbwd_max_chunk_len\":-4}", "fwdbwd_max_chunk_len" },
        { "{\"sample_max_concurrent_requests\":0}", "sample_max_concurrent_requests" },
    };
    static scene x;
    for (size_t i = 0; i < 3; i++) {
        open_scene(&x, configs[i][0], NULL);
        assert_false(tinkc_client_connect(x.client, PATIENCE_MS, &x.err));
        assert_int_equal(x.err.code, TINKC_E_BAD_RESPONSE);
        assert_non_null(strstr(x.err.message, configs[i][1]));
        close_scene(&x);
    }
}

/* ---- start-up ---- */

TEST(what_the_service_says_to_a_session_is_passed_on)
{
    static scene x;
    static const struct {
        const char *text;
        int32_t level;
    } said[] = { { "new model for tml-**************************",
                   TINKC_LOG_INFO }, /* a key is nothing to show */
                 { "old SDK", TINKC_LOG_WARN },
                 { "quota gone", TINKC_LOG_ERROR },
                 { "session s-7", TINKC_LOG_INFO } };
    open_scene(&x, NULL, NULL);
    always(
        &x, SESSION, 200,
        "{\"session_id\":\"s-7\",\"info_message\":\"new model for tml-0123456789abcdef0123456789\","
        "\"warning_message\":\"old SDK\","
        "\"error_message\":\"quota gone\"}");
    assert_string_equal(tinkc_client_session_id(x.client, PATIENCE_MS, &x.err), "s-7");
    pass_time(&x, 1000);
    assert_int_equal(count_events(&x, TINKC_EVENT_SESSION), 4);
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(nth_event(&x, TINKC_EVENT_SESSION, i)->text, said[i].text);
        assert_int_equal(count_lines(&x, said[i].level, said[i].text), 1);
    }
    close_scene(&x);
}

TEST(a_failed_start_is_tried_again_by_the_next_call)
{
    static scene x;
    static const char *const paths[] = { CONFIG, SETTINGS, SESSION };
    for (size_t i = 0; i < 3; i++) {
        open_scene(&x, NULL, NULL);
        once(&x, paths[i], 403, "{}");
        assert_null(tinkc_client_session_id(x.client, PATIENCE_MS, &x.err));
        assert_int_equal(x.err.code, TINKC_E_FORBIDDEN);
        x.err = (tinkc_error){ 0 };
        assert_non_null(tinkc_client_session_id(x.client, PATIENCE_MS, &x.err));
        assert_int_equal(tinkc_mock_count(x.mock, paths[i]), 2);
        assert_int_equal(tinkc_mock_count(x.mock, CONFIG), i == 0 ? 2 : 1); /* not from scratch */
        close_scene(&x);
    }
}

/* ---- tokens ---- */

/* {"jwt": ...}: ends so many seconds after the mock's beginning; 0 = it does not say. */
static const char *token_answer(int64_t ends_s)
{
    char claims[100] = "{\"sub\":\"u\"}";
    if (ends_s)
        (void)snprintf(claims, sizeof claims, "{\"sub\":\"u\",\"exp\":%lld}",
                       (long long)(WALL_BEGIN_S + ends_s));
    return token_answer_of(claims, "x");
}

static void open_with_token(scene *x, int64_t ends_s, const tinkc_client_options *more)
{
    tinkc_client_options o = { 0 };
    if (more)
        o = *more;
    o.api_key = "tml-k";
    open_scene(x, "{\"pjwt_auth_enabled\":true}", &o);
    once(x, TOKEN, 200, token_answer(ends_s));
}

/* A renewal that fails is repeated after a minute and not before; one that a request needs, because
 * less than a minute is left, is tried at once. */
TEST(renewals_that_fail_are_repeated_every_minute)
{
    static scene x;
    tinkc_client_options o = { .max_retries = TINKC_ZERO };
    open_with_token(&x, 3600, &o);
    always(&x, TOKEN, 500, "{}");
    assert_true(tinkc_client_connect(x.client, PATIENCE_MS, &x.err));
    pass_time(&x, 3490 * 1000);
    assert_int_equal(tinkc_mock_count(x.mock, TOKEN), 5);
    for (size_t i = 1; i < 5; i++)
        assert_int_equal(nth_request_ms(x.mock, TOKEN, i) - nth_request_ms(x.mock, TOKEN, 0),
                         (3300 + 60 * ((int64_t)i - 1)) * 1000);
    tinkc_future *f = tinkc_health_check(x.client, &x.err); /* 110 s are enough */
    assert_true(run_until_done(x.mock, f, 1000));
    tinkc_future_free(f);
    assert_int_equal(tinkc_mock_count(x.mock, TOKEN), 5);
    pass_time(&x, 55 * 1000);
    assert_int_equal(tinkc_mock_count(x.mock, TOKEN), 6);
    f = tinkc_health_check(x.client, &x.err); /* 55 s are not */
    assert_true(run_until_done(x.mock, f, 1000));
    assert_true(tinkc_future_wait(f, 0, &x.err));
    tinkc_future_free(f);
    assert_int_equal(tinkc_mock_count(x.mock, TOKEN), 7);
    close_scene(&x);
}

TEST(tokens_of_unknown_or_middling_life)
{
    static scene x;
    static const struct {
        int64_t ends_s, renewed_s;
    } lives[] = { { 0, 60 }, { 400, 200 }, { 600, 300 }, { 900, 600 } };
    for (size_t i = 0; i < sizeof lives / sizeof *lives; i++) {
        open_with_token(&x, lives[i].ends_s, NULL);
        always(&x, TOKEN, 200, token_answer(999999));
        assert_true(tinkc_client_connect(x.client, PATIENCE_MS, &x.err));
        pass_time(&x, (lives[i].renewed_s + 1) * 1000);
        assert_int_equal(tinkc_mock_count(x.mock, TOKEN), 2);
        int64_t at = nth_request_ms(x.mock, TOKEN, 1) - nth_request_ms(x.mock, TOKEN, 0);
        assert_in_range(at, lives[i].renewed_s * 1000 - 500, lives[i].renewed_s * 1000 + 500);
        close_scene(&x);
    }
}

TEST(the_first_exchange_has_the_window)
{
    static scene x;
    tinkc_client_options o = { .api_key = "tml-k", .max_retries = TINKC_ZERO };
    open_scene(&x, "{\"pjwt_auth_enabled\":true}", &o);
    once(&x, TOKEN, 500, "{}");
    once(&x, TOKEN, 200, token_answer(3600));
    tinkc_future *f = tinkc_health_check(x.client, &x.err);
    assert_true(run_until_done(x.mock, f, 60000));
    assert_true(tinkc_future_wait(f, 0, &x.err));
    assert_int_equal(nth_request_ms(x.mock, TOKEN, 1) - nth_request_ms(x.mock, TOKEN, 0), 1000);
    tinkc_future_free(f);
    close_scene(&x);
}

/* A status is reported as it is; without one it is the exchange that failed. */
TEST(exchanges_that_fail)
{
    static scene x;
    static const struct {
        tinkc_mock_answer answer;
        int32_t code, cause;
    } rows[] = {
        { { .status = 500 }, TINKC_E_SERVER, 0 },
        { { .status = 429 }, TINKC_E_RATE_LIMITED, 0 },
        { { .status = 403 }, TINKC_E_FORBIDDEN, 0 },
        { { .fault = TINKC_FAULT_REFUSED }, TINKC_E_TOKEN, TINKC_E_CONNECTION },
        { { .fault = TINKC_FAULT_SILENT }, TINKC_E_TOKEN, TINKC_E_NET_TIMEOUT },
        { { .body = "{\"jwt\":\"\"}" }, TINKC_E_TOKEN, 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error why = { 0 };
        tinkc_client_options o = { .api_key = "tml-k", .no_retries = true };
        open_scene(&x, "{\"pjwt_auth_enabled\":true}", &o);
        tinkc_mock_always(x.mock, NULL, TOKEN, &rows[i].answer, &x.err);
        tinkc_future *f = tinkc_health_check(x.client, &x.err);
        assert_true(run_until_done(x.mock, f, 600000));
        assert_false(tinkc_future_wait(f, 0, &why));
        if (why.code != rows[i].code || why.cause != rows[i].cause)
            fail_msg("row %zu: %d, cause %d", i, (int)why.code, (int)why.cause);
        tinkc_future_free(f);
        close_scene(&x);
    }
}

/* A key that is a token itself is used whatever the service prefers. */
TEST(a_token_as_key_needs_no_command)
{
    static scene x;
    tinkc_client_options o = { .api_key = "eyJhIjoxfQ.e30.x" };
    open_scene(&x, "{\"pjwt_auth_enabled\":true,\"credential_default_source\":\"credential_cmd\"}",
               &o);
    once(&x, TOKEN, 200, token_answer(3600));
    assert_true(tinkc_client_connect(x.client, PATIENCE_MS, &x.err));
    assert_string_equal(request_header(nth_request(x.mock, TOKEN, 0), "X-API-Key"), o.api_key);
    close_scene(&x);
}

TEST(a_command_that_prints_without_end_is_stopped)
{
    static scene x;
    tinkc_client_options o = { .credential_cmd = "yes tml-x | tr -d '\\n' | head -c 70000" };
    open_scene(&x, "{\"pjwt_auth_enabled\":true}", &o);
    once(&x, TOKEN, 200, token_answer(3600));
    assert_false(tinkc_client_connect(x.client, PATIENCE_MS, &x.err));
    assert_int_equal(x.err.code, TINKC_E_CREDENTIAL_CMD);
    assert_int_equal(tinkc_mock_count(x.mock, TOKEN), 0);
    close_scene(&x);
}

/* 64 KiB are a credential; one more byte is not, whatever it is. */
TEST(credentials_have_a_length)
{
    static scene x;
    static const char *const commands[] = { "head -c 65535 /dev/zero | tr '\\0' a; echo",
                                            "head -c 65536 /dev/zero | tr '\\0' a; echo" };
    for (size_t i = 0; i < 2; i++) {
        tinkc_client_options o = { .credential_cmd = commands[i] };
        open_scene(&x, "{\"pjwt_auth_enabled\":true}", &o);
        once(&x, TOKEN, 200, token_answer(3600));
        assert_int_equal(tinkc_client_connect(x.client, PATIENCE_MS, &x.err), i == 0);
        assert_int_equal(x.err.code, i ? TINKC_E_CREDENTIAL_CMD : 0);
        assert_int_equal(tinkc_mock_count(x.mock, TOKEN), i == 0);
        if (i == 0)
            assert_int_equal(strlen(request_header(nth_request(x.mock, TOKEN, 0), "X-API-Key")),
                             65535);
        close_scene(&x);
    }
}

/* ---- billing ---- */

static tinkc_trainer *new_trainer(scene *x)
{
    tinkc_trainer *t = tinkc_trainer_new(
        x->client, &(tinkc_lora_options){ .base_model = "mock/nano", .rank = 8 }, &x->err);
    assert_ok(&x->err);
    tinkc_mock_forget(x->mock);
    return t;
}

static size_t save_under_402(scene *x, tinkc_trainer *t, size_t refusals, int32_t code)
{
    tinkc_error err = { 0 };
    char name[24];
    size_t before = tinkc_mock_count(x->mock, SAVE);
    (void)snprintf(name, sizeof name, "save-%zu", before);
    for (size_t i = 0; i < refusals; i++)
        once(x, SAVE, 402, "{\"detail\":\"card expired\"}");
    tinkc_future *f = tinkc_trainer_save(t, name, NULL, &x->err);
    while (!tinkc_future_done(f))
        pass_time(x, 1000);
    (void)tinkc_future_wait(f, 0, &err);
    assert_int_equal(err.code, code);
    tinkc_future_free(f);
    return tinkc_mock_count(x->mock, SAVE) - before;
}

TEST(billing_pauses_are_events_and_logged_each_minute)
{
    static scene x;
    open_scene(&x, NULL, NULL);
    tinkc_trainer *t = new_trainer(&x);
    assert_int_equal(save_under_402(&x, t, 27, TINKC_OK), 28); /* 130 s */
    for (size_t i = 0; i < 27; i++)
        assert_int_equal(nth_request_ms(x.mock, SAVE, i + 1) - nth_request_ms(x.mock, SAVE, i),
                         5000);
    assert_int_equal(count_events(&x, TINKC_EVENT_BILLING), 27);
    const kept_event *third = nth_event(&x, TINKC_EVENT_BILLING, 2);
    assert_int_equal(third->http_status, 402);
    assert_int_equal(third->wait_ms, 5000);
    assert_int_equal(third->elapsed_ms, 10000);
    assert_int_equal(third->left_ms, 3590000);
    assert_non_null(strstr(third->text, "card expired"));
    /* At 0, 65 and 130 s. */
    assert_int_equal(count_lines(&x, TINKC_LOG_WARN, "paused because of billing"), 3);
    tinkc_trainer_free(t);
    close_scene(&x);
}

TEST(the_service_says_how_long_a_billing_pause_may_be)
{
    static scene x;
    open_scene(&x, "{\"billing_exception_max_pause_duration_sec\":20}", NULL);
    tinkc_trainer *t = new_trainer(&x);
    assert_int_equal(save_under_402(&x, t, 6, TINKC_E_BILLING), 6); /* 0, 5, 10, 15, 20, 25 s */
    assert_int_equal(count_lines(&x, TINKC_LOG_ERROR, "giving up"), 1);
    tinkc_trainer_free(t);
    close_scene(&x);
}

/* Five minutes without trouble, and the next pause has its whole time again. */
TEST(billing_pauses_begin_again_after_a_while)
{
    static scene x;
    tinkc_client_options o = { .billing_pause_ms = 20000 };
    open_scene(&x, NULL, &o);
    tinkc_trainer *t = new_trainer(&x);
    assert_int_equal(save_under_402(&x, t, 2, TINKC_OK), 3);
    pass_time(&x, 200 * 1000);
    assert_int_equal(save_under_402(&x, t, 1, TINKC_E_BILLING), 1); /* still the same trouble */
    pass_time(&x, 300 * 1000);
    assert_int_equal(save_under_402(&x, t, 4, TINKC_OK), 5);
    tinkc_trainer_free(t);
    close_scene(&x);
}

TEST(no_retries_means_no_billing_pause)
{
    static scene x;
    tinkc_client_options o = { .no_retries = true };
    open_scene(&x, NULL, &o);
    tinkc_trainer *t = new_trainer(&x);
    assert_int_equal(save_under_402(&x, t, 1, TINKC_E_BILLING), 1);
    assert_int_equal(count_events(&x, TINKC_EVENT_BILLING), 0);
    tinkc_trainer_free(t);
    close_scene(&x);
}

/* A pause for billing is not an attempt: those after it have their short pauses again. */
TEST(attempts_begin_again_after_a_billing_pause)
{
    static scene x;
    static const int32_t statuses[] = { 500, 500, 402, 500, 500 };
    static const int64_t most[] = { 500, 1000, 5000, 500, 1000 };
    tinkc_adam adam = TINKC_ADAM_INIT;
    open_scene(&x, NULL, NULL);
    tinkc_trainer *t = new_trainer(&x);
    for (size_t i = 0; i < 5; i++)
        once(&x, STEP, statuses[i], "{}");
    tinkc_future *f = tinkc_optim_step(t, &adam, &x.err);
    assert_true(run_until_done(x.mock, f, 600000));
    assert_true(tinkc_future_wait(f, 0, &x.err));
    for (size_t i = 0; i < 5; i++)
        assert_in_range(nth_request_ms(x.mock, STEP, i + 1) - nth_request_ms(x.mock, STEP, i),
                        statuses[i] == 402 ? most[i] : most[i] * 3 / 4, most[i]);
    tinkc_future_free(f);
    tinkc_trainer_free(t);
    close_scene(&x);
}

/* Polls pause like calls; a sample's 402 holds everybody back, as a 429 does. */
TEST(polls_and_samples_pause_for_billing)
{
    static scene x;
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    tinkc_adam adam = TINKC_ADAM_INIT;
    open_scene(&x, NULL, NULL);
    tinkc_trainer *t = new_trainer(&x);
    tinkc_sampler *s =
        tinkc_sampler_new(x.client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &x.err);
    once(&x, POLL, 402, "{}");
    once(&x, POLL, 402, "{}");
    tinkc_future *f = tinkc_optim_step(t, &adam, &x.err);
    assert_true(run_until_done(x.mock, f, 60000));
    assert_true(tinkc_future_wait(f, 0, &x.err));
    assert_int_equal(nth_request_ms(x.mock, POLL, 2) - nth_request_ms(x.mock, POLL, 0), 10000);
    tinkc_future_free(f);
    o.max_tokens = 1;
    once(&x, SAMPLE, 402, "{}");
    f = tinkc_sample(s, (int32_t[]){ 1, 2 }, 2, 1, &o, &x.err);
    assert_true(run_until_done(x.mock, f, 60000));
    assert_true(tinkc_future_wait(f, 0, &x.err));
    take_events(&x);
    assert_int_equal(count_events(&x, TINKC_EVENT_BILLING), 3);
    assert_int_equal(count_events(&x, TINKC_EVENT_BACKOFF), 1);
    assert_int_equal(nth_event(&x, TINKC_EVENT_BACKOFF, 0)->wait_ms, 1000);
    assert_non_null(strstr((const char *)nth_request(x.mock, SAMPLE, 1)->body.data,
                           "\"seq_id\":0,")); /* the same sample, not a new one */
    tinkc_future_free(f);
    tinkc_sampler_free(s);
    tinkc_trainer_free(t);
    close_scene(&x);
}

/* ---- what is repeated is reported ---- */

static void check_event(const kept_event *e, int32_t status, int64_t wait_ms, int64_t left_ms)
{
    assert_int_equal(e->http_status, status);
    assert_int_equal(e->wait_ms, wait_ms);
    assert_int_equal(e->left_ms, left_ms);
}

TEST(each_layer_tells_of_its_retries)
{
    static scene x;
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    tinkc_retry_options plain = { .has_jitter = true, .max_attempts = 2 };
    tinkc_client_options few = { .max_retries = TINKC_ZERO, .retry_window_ms = 10000 };
    open_scene(&x, NULL, &few);
    tinkc_trainer *t = new_trainer(&x);
    tinkc_sampler *s = tinkc_sampler_new(
        x.client, &(tinkc_sampler_options){ .base_model = "mock/nano", .retry = &plain }, &x.err);
    take_events(&x);
    x.n_events = 0;
    once(&x, SAVE, 500, "{}");
    once(&x, SAVE, 503, "{}");
    tinkc_future *f = tinkc_trainer_save(t, "a", NULL, &x.err);
    assert_true(run_until_done(x.mock, f, 60000));
    tinkc_future_free(f);
    take_events(&x);
    assert_int_equal(count_events(&x, TINKC_EVENT_RETRY), 2);
    check_event(nth_event(&x, TINKC_EVENT_RETRY, 0), 500, 1000, 10000);
    check_event(nth_event(&x, TINKC_EVENT_RETRY, 1), 503, 2000, 9000);
    assert_int_equal(nth_event(&x, TINKC_EVENT_RETRY, 1)->elapsed_ms, 1000);
    assert_int_equal(count_events(&x, TINKC_EVENT_EXCHANGE), 4); /* three submits, one poll */
    assert_int_equal(nth_event(&x, TINKC_EVENT_EXCHANGE, 1)->http_status, 503);
    x.n_events = 0;
    once(&x, POLL, 429, "{}");
    o.max_tokens = 1;
    f = tinkc_sample(s, (int32_t[]){ 1 }, 1, 1, &o, &x.err);
    assert_true(run_until_done(x.mock, f, 60000));
    tinkc_future_free(f);
    take_events(&x);
    assert_int_equal(count_events(&x, TINKC_EVENT_RETRY), 1);
    check_event(nth_event(&x, TINKC_EVENT_RETRY, 0), 429, 1000, TINKC_FOREVER);
    x.n_events = 0;
    once(&x, SAMPLE, 429, "{}");
    once(&x, POLL, 410, "{}");
    f = tinkc_sample(s, (int32_t[]){ 1 }, 1, 1, &o, &x.err);
    assert_true(run_until_done(x.mock, f, 60000));
    assert_true(tinkc_future_wait(f, 0, &x.err));
    tinkc_future_free(f);
    take_events(&x);
    assert_int_equal(count_events(&x, TINKC_EVENT_BACKOFF), 1);
    check_event(nth_event(&x, TINKC_EVENT_BACKOFF, 0), 429, 1000, TINKC_FOREVER);
    assert_int_equal(count_events(&x, TINKC_EVENT_RETRY), 1); /* sampled again */
    check_event(nth_event(&x, TINKC_EVENT_RETRY, 0), 410, 500, TINKC_FOREVER);
    tinkc_sampler_free(s);
    tinkc_trainer_free(t);
    close_scene(&x);
}

/* ---- the queue at the service ---- */

TEST(pauses_of_the_queue_are_logged_each_minute)
{
    static scene x;
    static const char rate[] = "{\"type\":\"try_again\",\"queue_state\":\"paused_rate_limit\"}";
    static const char active[] = "{\"type\":\"try_again\",\"queue_state\":\"active\"}";
    static const char said[] = "{\"type\":\"try_again\",\"queue_state\":\"paused_capacity\","
                               "\"queue_state_reason\":\"maintenance\"}";
    tinkc_adam adam = TINKC_ADAM_INIT;
    open_scene(&x, NULL, NULL);
    tinkc_trainer *t = new_trainer(&x);
    always(&x, POLL, 200, rate);
    tinkc_future *f = tinkc_optim_step(t, &adam, &x.err);
    pass_time(&x, 130 * 1000); /* a poll each second */
    assert_int_equal(tinkc_future_queue_state(f), TINKC_QUEUE_PAUSED_RATE);
    assert_int_equal(count_lines(&x, TINKC_LOG_WARN, "is paused. Reason: "), 3);
    assert_int_equal(count_lines(&x, TINKC_LOG_WARN, "concurrent training clients rate limit hit"),
                     3);
    assert_int_equal(count_events(&x, TINKC_EVENT_QUEUE), 1);
    always(&x, POLL, 200, active);
    pass_time(&x, 70 * 1000);
    assert_int_equal(tinkc_future_queue_state(f), TINKC_QUEUE_ACTIVE);
    assert_int_equal(count_lines(&x, TINKC_LOG_WARN, "is paused"), 3);
    always(&x, POLL, 200, said);
    pass_time(&x, 2000);
    assert_int_equal(count_lines(&x, TINKC_LOG_WARN, "Reason: maintenance."), 1);
    assert_int_equal(count_events(&x, TINKC_EVENT_QUEUE), 3);
    tinkc_future_free(f);
    tinkc_trainer_free(t);
    close_scene(&x);
}

/* The same state for another reason is news; the same reason once more is not. */
TEST(reasons_of_a_pause_are_events)
{
    static scene x;
    static const char *const reasons[] = { "one", "two", "two", "three" };
    tinkc_adam adam = TINKC_ADAM_INIT;
    open_scene(&x, NULL, NULL);
    tinkc_trainer *t = new_trainer(&x);
    for (size_t i = 0; i < 4; i++) {
        char body[120];
        (void)snprintf(body, sizeof body,
                       "{\"type\":\"try_again\",\"queue_state\":\"paused_capacity\","
                       "\"queue_state_reason\":\"%s\"}",
                       reasons[i]);
        once(&x, POLL, 200, body);
    }
    tinkc_future *f = tinkc_optim_step(t, &adam, &x.err);
    pass_time(&x, 20 * 1000);
    assert_true(tinkc_future_wait(f, 0, &x.err));
    assert_int_equal(count_events(&x, TINKC_EVENT_QUEUE), 3);
    assert_string_equal(nth_event(&x, TINKC_EVENT_QUEUE, 0)->text, "one");
    assert_string_equal(nth_event(&x, TINKC_EVENT_QUEUE, 1)->text, "two");
    assert_string_equal(nth_event(&x, TINKC_EVENT_QUEUE, 2)->text, "three");
    tinkc_future_free(f);
    tinkc_trainer_free(t);
    close_scene(&x);
}

/* ---- what will go away ---- */

TEST(notices_are_logged_each_minute)
{
    static const char *const soon[] = { "X-Deprecation-Note", "load_state\x1b[1m goes away", NULL };
    static const char *const now[] = { "x-deprecation-note", "load_state has gone",
                                       "x-deprecation-level", " Error ", NULL };
    static const char *const nothing[] = { "x-deprecation-note", " ", NULL };
    static const struct {
        const char *const *headers;
        int64_t after_ms;
        int32_t status;
        size_t warnings, errors; /* logged so far */
    } steps[] = {
        { soon, 0, 200, 1, 0 },       { soon, 1000, 200, 1, 0 }, { soon, 59000, 404, 2, 0 },
        { nothing, 1000, 200, 2, 0 }, { now, 1000, 200, 2, 1 },  { NULL, 70000, 200, 2, 1 },
        { soon, 1000, 200, 3, 1 },
    };
    static scene x;
    open_scene(&x, NULL, NULL);
    assert_true(tinkc_client_connect(x.client, PATIENCE_MS, &x.err));
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        pass_time(&x, steps[i].after_ms);
        tinkc_mock_once(x.mock, NULL, "/api/v1/healthz",
                        &(tinkc_mock_answer){ .status = steps[i].status,
                                              .headers = steps[i].headers,
                                              .body = "{\"status\":\"ok\"}" },
                        &x.err);
        tinkc_future *f = tinkc_health_check(x.client, &x.err);
        (void)tinkc_future_wait(f, PATIENCE_MS, NULL);
        tinkc_future_free(f);
        assert_int_equal(
            count_lines(&x, TINKC_LOG_WARN, "deprecation notice: load_state [1m goes away"),
            steps[i].warnings);
        assert_int_equal(
            count_lines(&x, TINKC_LOG_ERROR, "deprecation notice: load_state has gone"),
            steps[i].errors);
        assert_int_equal(count_lines(&x, TINKC_LOG_WARN, "deprecation notice:"), steps[i].warnings);
    }
    tinkc_mock_always(x.mock, NULL, "/y", &(tinkc_mock_answer){ .headers = now, .body = "ok" },
                      &x.err);
    pass_time(&x, 70000);
    tinkc_future *f = tinkc_http_call(
        x.client, &(tinkc_http_options){ .path = "https://other.example/y" }, &x.err);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x.err));
    tinkc_future_free(f);
    assert_int_equal(count_lines(&x, TINKC_LOG_ERROR, "deprecation notice:"), 1);
    close_scene(&x);
}
