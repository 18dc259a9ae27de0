/* test_memory_shortage.c - a client whose own threads get no memory for a while: what was due then fails or waits, and all works
 * again afterwards. The caller's thread always gets memory. */
#include <pthread.h>

#include "support/client/api_support.h"
#include "support/counting.h"

#define API "/api/v1/"

typedef struct world {
    counting memory; /* first: released as counting.h does it */
    pthread_t caller;
    atomic_bool dry;
    tinkc_allocator allocator;
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_error err;
} world;

static const int32_t ids[] = { 1, 2, 3 };

static bool is_dry(world *w)
{
    return atomic_load(&w->dry) && !pthread_equal(pthread_self(), w->caller);
}

static void *dry_alloc(size_t size, void *user)
{
    return is_dry(user) ? NULL : counting_alloc(size, user);
}

static void *dry_resize(void *ptr, size_t old_size, size_t new_size, void *user)
{
    return is_dry(user) ? NULL : counting_resize(ptr, old_size, new_size, user);
}

static void settle(world *w)
{
    tinkc_mock_settle(w->mock, PATIENCE_MS, &w->err);
    assert_ok(&w->err);
}

static void begin(world *w, const char *config)
{
    *w = (world){ .caller = pthread_self() };
    w->allocator = (tinkc_allocator){ dry_alloc, dry_resize, counting_release, w };
    w->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &w->err);
    assert_true(tinkc_mock_always(w->mock, NULL, API "client/config", &(tinkc_mock_answer){ .body = config }, &w->err));
    assert_true(tinkc_mock_always(w->mock, NULL, API "client/dynamic_config",
                                  &(tinkc_mock_answer){ .body = "{\"refresh_interval_sec\":33}" }, &w->err));
    w->client = mock_client(
        w->mock,
        &(tinkc_client_options){ .allocator = &w->allocator, .max_retries = TINKC_ZERO, .retry_window_ms = TINKC_ZERO },
        &w->err);
    assert_ok(&w->err);
}

static void end(world *w)
{
    tinkc_client_free(w->client);
    assert_true(counting_is_empty_soon(&w->memory));
    tinkc_mock_free(w->mock);
}

static void drought(world *w, bool on)
{
    settle(w);
    atomic_store(&w->dry, on);
}

static size_t count(world *w, const char *path)
{
    return tinkc_mock_count(w->mock, path);
}

static void advance(world *w, int64_t ms)
{
    settle(w);
    tinkc_mock_advance(w->mock, ms);
    settle(w);
}

/* Code of the future's end; it must be at its end soon. */
static int32_t end_of(world *w, tinkc_future *f)
{
    tinkc_error why = { 0 };
    assert_ok(&w->err);
    assert_non_null(f);
    assert_true(run_until_done(w->mock, f, 60000));
    (void)tinkc_future_wait(f, 0, &why);
    tinkc_future_free(f);
    return why.code;
}

static tinkc_future *step(world *w, tinkc_trainer *t)
{
    return tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, &w->err);
}

static tinkc_future *sample(world *w, tinkc_sampler *s)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 1;
    return tinkc_sample(s, ids, 3, 1, &o, &w->err);
}

static const tinkc_lora_options lora = { .base_model = "mock/nano" };
static const tinkc_sampler_options base = { .base_model = "mock/nano" };

/* ---- what repeats by itself ---- */

TEST(heartbeats_and_settings_come_again)
{
    world w;
    begin(&w, "{}");
    tinkc_sampler *s = tinkc_sampler_new(w.client, &base, &w.err);
    settle(&w);
    size_t settings = count(&w, API "client/dynamic_config");
    drought(&w, true);
    advance(&w, 10000);
    assert_int_equal(count(&w, API "session_heartbeat"), 0);
    drought(&w, false);
    advance(&w, 9999);
    assert_int_equal(count(&w, API "session_heartbeat"), 0);
    advance(&w, 1);
    assert_int_equal(count(&w, API "session_heartbeat"), 1);
    drought(&w, true);
    advance(&w, 13000); /* the settings are due at 33 s */
    assert_int_equal(count(&w, API "client/dynamic_config"), settings);
    drought(&w, false);
    for (int64_t at = 33000; at < 66000; at += 1000)
        advance(&w, 1000);
    assert_int_equal(count(&w, API "client/dynamic_config"), settings + 1);
    tinkc_sampler_free(s);
    end(&w);
}

/* ---- what was asked for ---- */

/* Nothing of a start-up is left half done. */
TEST(a_start_begins_again)
{
    world w;
    begin(&w, "{}");
    for (int i = 0; i < 2; i++) {
        drought(&w, i == 0);
        assert_int_equal(end_of(&w, tinkc_trainer_open(w.client, &lora, &w.err)), i == 0 ? TINKC_E_MEMORY : TINKC_OK);
    }
    assert_int_equal(count(&w, API "create_model"), 1);
    drought(&w, true);
    assert_int_equal(end_of(&w, tinkc_trainer_open(w.client, &lora, &w.err)), TINKC_E_MEMORY);
    assert_int_equal(end_of(&w, tinkc_sampler_open(w.client, &base, &w.err)), TINKC_E_MEMORY);
    assert_int_equal(end_of(&w, tinkc_capabilities_get(w.client, &w.err)), TINKC_E_MEMORY);
    drought(&w, false);
    assert_int_equal(end_of(&w, tinkc_sampler_open(w.client, &base, &w.err)), TINKC_OK);
    assert_int_equal(end_of(&w, tinkc_capabilities_get(w.client, &w.err)), TINKC_OK);
    end(&w);
}

/* The number of a step that was never sent is the next one's. */
TEST(numbers_are_given_back)
{
    world w;
    begin(&w, "{}");
    tinkc_trainer *t = tinkc_trainer_new(w.client, &lora, &w.err);
    for (int i = 0; i < 3; i++) {
        drought(&w, i == 1);
        assert_int_equal(end_of(&w, step(&w, t)), i == 1 ? TINKC_E_MEMORY : TINKC_OK);
    }
    assert_int_equal(count(&w, API "optim_step"), 2);
    const tinkc_request *last = nth_request(w.mock, API "optim_step", 1);
    assert_non_null(memmem(last->body.data, last->body.len, "\"seq_id\":2,", 11));
    tinkc_trainer_free(t);
    end(&w);
}

/* An answer to a poll for which there is no memory is not waited for again. */
TEST(answers_that_do_not_fit)
{
    world w;
    begin(&w, "{}");
    tinkc_trainer *t = tinkc_trainer_new(w.client, &lora, &w.err);
    size_t polls = count(&w, API "retrieve_future");
    assert_true(tinkc_mock_once(w.mock, NULL, API "retrieve_future",
                                &(tinkc_mock_answer){ .body = "{\"metrics\":{}}", .delay_ms = 500 }, &w.err));
    tinkc_future *f = step(&w, t);
    drought(&w, true);
    assert_int_equal(end_of(&w, f), TINKC_E_MEMORY);
    drought(&w, false);
    assert_int_equal(count(&w, API "retrieve_future"), polls + 1);
    assert_int_equal(end_of(&w, step(&w, t)), TINKC_OK);
    tinkc_trainer_free(t);
    end(&w);
}

/* A lost request that cannot be sent again for lack of memory is tried again with the next operation. */
TEST(lost_requests_stay)
{
    world w;
    begin(&w, "{}");
    tinkc_trainer *t = tinkc_trainer_new(w.client, &lora, &w.err);
    assert_true(tinkc_mock_once(w.mock, NULL, API "optim_step",
                                &(tinkc_mock_answer){ .fault = TINKC_FAULT_RESET, .body = "{}" }, &w.err));
    assert_int_equal(end_of(&w, step(&w, t)), TINKC_E_CONNECTION);
    drought(&w, true);
    assert_int_equal(end_of(&w, step(&w, t)), TINKC_E_SEQUENCE);
    assert_int_equal(count(&w, API "optim_step"), 1);
    drought(&w, false);
    assert_int_equal(end_of(&w, step(&w, t)), TINKC_OK);
    assert_int_equal(count(&w, API "optim_step"), 3); /* the lost one first */
    const tinkc_request *again = nth_request(w.mock, API "optim_step", 1);
    assert_non_null(memmem(again->body.data, again->body.len, "\"seq_id\":1,", 11));
    tinkc_trainer_free(t);
    end(&w);
}

/* ---- samples ---- */

TEST(samples_fail_and_work_again)
{
    world w;
    begin(&w, "{}");
    tinkc_sampler *s = tinkc_sampler_new(w.client, &base, &w.err);
    for (int i = 0; i < 3; i++) {
        drought(&w, i == 1);
        assert_int_equal(end_of(&w, sample(&w, s)), i == 1 ? TINKC_E_MEMORY : TINKC_OK);
    }
    tinkc_sampler_free(s);
    end(&w);
}

/* A copy's place is asked for again. */
TEST(places_are_asked_for_again)
{
    world w;
    begin(&w, "{\"sample_join_sampling_session\":true}");
    tinkc_text text = { 0 };
    tinkc_sampler *original = tinkc_sampler_new(w.client, &base, &w.err);
    assert_non_null(tinkc_sampler_export(original, &text, &w.err));
    tinkc_sampler *copy = tinkc_sampler_import(text.data,
                                               &(tinkc_client_options){ .allocator = &w.allocator,
                                                                        .transport = tinkc_mock_transport(w.mock),
                                                                        .clock = tinkc_mock_clock(w.mock) },
                                               &w.err);
    assert_ok(&w.err);
    assert_true(tinkc_mock_always(w.mock, NULL, API "join_sampling_session",
                                  &(tinkc_mock_answer){ .body = "{\"client_counter\":1}" }, &w.err));
    for (int i = 0; i < 2; i++) {
        drought(&w, i == 0);
        assert_int_equal(end_of(&w, sample(&w, copy)), i == 0 ? TINKC_E_MEMORY : TINKC_OK);
    }
    assert_int_equal(count(&w, API "join_sampling_session"), 1);
    tinkc_sampler_free(copy);
    tinkc_sampler_free(original);
    tinkc_text_free(&text);
    end(&w);
}

/* ---- telemetry ---- */

/* What could not be sent is dropped; what comes later is sent. */
TEST(reports_are_dropped)
{
    world w;
    begin(&w, "{}");
    tinkc_client *c = mock_client(
        w.mock, &(tinkc_client_options){ .allocator = &w.allocator, .telemetry = TINKC_TELEMETRY_ON }, &w.err);
    assert_true(tinkc_client_report(c, "early", NULL, TINKC_LOG_INFO, &w.err));
    drought(&w, true);
    advance(&w, 10000);
    assert_int_equal(count(&w, API "telemetry"), 0);
    drought(&w, false);
    assert_true(tinkc_client_report(c, "late", NULL, TINKC_LOG_INFO, &w.err));
    advance(&w, 10000);
    assert_int_equal(count(&w, API "telemetry"), 1);
    const tinkc_request *sent = nth_request(w.mock, API "telemetry", 0);
    assert_non_null(memmem(sent->body.data, sent->body.len, "\"late\"", 6));
    assert_null(memmem(sent->body.data, sent->body.len, "\"early\"", 7));
    assert_true(tinkc_client_report(c, "last", NULL, TINKC_LOG_INFO, &w.err));
    drought(&w, true);
    (void)tinkc_client_close(c, PATIENCE_MS, &w.err); /* it does not wait for what cannot be sent */
    w.err = (tinkc_error){ 0 };
    atomic_store(&w.dry, false);
    tinkc_client_free(c);
    end(&w);
}
