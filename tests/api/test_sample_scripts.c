/* test_sample_scripts.c - sampling, request by request and word for word: every outcome of a submit and of a
 * poll, the shared back-off, repeats, samples that nobody waits for. Records as in test_client_scripts.c. */
#include "support/script_steps.h"

static void opened_samplers(void **state)
{
    (void)state;
    static const struct outcome rows[] = {
        { 404, 0, NULL, NULL, "{\"detail\":\"no model\"}" },
        { 200, 0, NULL, NULL, "{}" },
        { 200, 0, NULL, NULL, "" },
        { 409, 0, NULL, NULL, "" },
        { 0, TINKC_FAULT_SILENT, NULL, NULL, NULL },
    };
    script *s = script_begin("opened_samplers", TINKC_MOCK_SERVICE,
                             &(tinkc_client_options){ .max_retries = 1 });
    tinkc_error *e = script_err(s);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        note(s, "row %zu", i);
        answer_with(s, API "create_sampling_session", &rows[i]);
        tinkc_future *f = follow(
            s, "open",
            tinkc_sampler_open(script_client(s),
                               &(tinkc_sampler_options){
                                   .base_model = i ? "mock/nano" : "",
                                   .model_path = i < 2 ? "tinker://r/sampler_weights/a" : NULL },
                               e));
        if (rows[i].fault)
            tinkc_future_cancel(f);
        finish_it(s, f, 5000);
    }
    script_end(s);
}

/* Each outcome of a submit, then of a poll. */
static void samples(void **state)
{
    (void)state;
    script *s = script_begin("samples", TINKC_MOCK_SERVICE, NULL);
    tinkc_sampler *sampler = open_sampler(s, NULL);
    tinkc_future *f = sample_it(s, "plain", sampler, 2);
    finish_it(s, f, 1000);
    show_samples(s, f);
    f = follow(s, "scores", tinkc_logprobs(sampler, ids, 5, script_err(s)));
    finish_it(s, f, 1000);
    tinkc_f32s p = tinkc_future_logprobs(f, 0, script_err(s));
    note(s, "%zu scores, last %.6g", p.len, (double)p.data[p.len - 1]);
    for (size_t i = 0; i < N_OUTCOMES; i++)
        for (int poll = 0; poll < 2; poll++) {
            note(s, "outcome %zu: %d of a %s", i, (int)outcomes[i].status,
                 poll ? "poll" : "submit");
            answer_with(s, poll ? POLL : API "asample", &outcomes[i]);
            f = sample_it(s, "sample", sampler, 1);
            finish_it(s, f, 300000);
            let_go(s, f);
        }
    tinkc_sampler_free(sampler);
    script_end(s);
}

/* The shared back-off: how long, for whom, and how many may go while it is recent. */
static void slow_down(void **state)
{
    (void)state;
    script *s = script_begin("slow_down", TINKC_MOCK_SERVICE, NULL);
    answer_always(
        s, API "client/config", 200, NULL,
        "{\"sample_dispatch_bytes_semaphore_size\":1000,\"sample_max_concurrent_requests\":14}");
    tinkc_sampler *sampler = open_sampler(s, NULL);
    for (int round = 0; round < 3; round++) {
        note(s, "round %d", round);
        answer_once(s, API "asample", 429, round == 1 ? PAIRS("Retry-After", "4") : NULL,
                    "{\"detail\":\"full\"}");
        tinkc_future *f = sample_it(s, "first", sampler, 1);
        tinkc_future *g = sample_it(s, "second", sampler, 1);
        finish_it(s, f, 100000);
        finish_it(s, g, 100000);
        if (round == 1)
            live(s, 9000);
    }
    note(s, "many, while the service is silent");
    tinkc_mock_always(script_mock(s), NULL, API "asample",
                      &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, script_err(s));
    tinkc_future *many[18];
    for (size_t i = 0; i < 18; i++) {
        char name[20];
        (void)snprintf(name, sizeof name, "one of many %zu", i);
        many[i] = sample_it(s, name, sampler, 1);
    }
    note(s, "%zu submits", tinkc_mock_count(script_mock(s), API "asample"));
    for (size_t i = 0; i < 18; i += 2) {
        tinkc_future_cancel(many[i]);
        settle(s);
    }
    note(s, "%zu submits", tinkc_mock_count(script_mock(s), API "asample"));
    tinkc_sampler_free(sampler);
    script_end(s);
}

/* How samples are repeated: pauses, attempts, progress. */
static void repeats(void **state)
{
    (void)state;
    static const struct {
        tinkc_retry_options o;
        const char *config;
    } rows[] = {
        { { .max_attempts = 3 }, "{}" },
        { { .delay_base_ms = 100, .delay_max_ms = 350, .max_attempts = 5 }, "{}" },
        { { .delay_base_ms = 1000,
            .delay_max_ms = 1000,
            .max_attempts = 4,
            .jitter = 0.9,
            .has_jitter = true },
          "{}" },
        { { .delay_base_ms = TINKC_ZERO, .max_attempts = 3 }, "{}" },
        { { .has_jitter = true, .max_attempts = 9 }, "{}" },
        { { .progress_timeout_ms = 20000 }, "{}" },
        { { .progress_timeout_ms = 20000, .no_stuck_detection = true, .max_attempts = 8 }, "{}" },
        { { .progress_timeout_ms = 20000, .max_attempts = 8 },
          "{\"sample_enable_stuck_detection\":false}" },
        { { .no_retries = true }, "{}" },
        { { .max_attempts = 3 }, "{\"sample_no_retries\":true}" },
    };
    script *s = script_begin("repeats", TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        note(s, "row %zu", i);
        answer_always(s, API "client/config", 200, NULL, rows[i].config);
        hush(s, true);
        script_renew(
            s, &(tinkc_client_options){ .max_retries = TINKC_ZERO, .retry_window_ms = TINKC_ZERO });
        tinkc_sampler *sampler = open_sampler(s, &rows[i].o);
        hush(s, false);
        answer_always(s, API "asample", 500, NULL, "{\"detail\":\"no\"}");
        tinkc_future *f = sample_it(s, "sample", sampler, 1);
        finish_it(s, f, 100000);
        f = follow(s, "scores", tinkc_logprobs(sampler, ids, 5, script_err(s)));
        finish_it(s, f, 100000);
        tinkc_sampler_free(sampler);
    }
    script_end(s);
}

/* Samples that nobody waits for any more: the service learns of it where it wants to. */
static void forgotten(void **state)
{
    (void)state;
    script *s = script_begin("forgotten", TINKC_MOCK_SERVICE, NULL);
    answer_always(s, API "client/dynamic_config", 200, NULL,
                  "{\"refresh_interval_sec\":50,\"sample_cancel_enabled\":true,\"sample_cancel_max_"
                  "batch_size\":2}");
    tinkc_sampler *sampler = open_sampler(s, NULL);
    tinkc_mock_always(script_mock(s), NULL, POLL,
                      &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, script_err(s));
    tinkc_mock_always(script_mock(s), NULL, API "cancel_future",
                      &(tinkc_mock_answer){ .body = "{}", .delay_ms = 100 }, script_err(s));
    tinkc_future *f[6];
    for (size_t i = 0; i < 6; i++) {
        char name[20];
        (void)snprintf(name, sizeof name, "sample %zu", i);
        f[i] = sample_it(s, name, sampler, 1);
    }
    for (size_t i = 0; i < 5; i++) {
        tinkc_future_cancel(f[i]);
        settle(s);
    }
    live(s, 1000);
    note(s, "refused");
    answer_once(s, API "cancel_future", 500, NULL, "");
    tinkc_future_cancel(f[5]);
    live(s, 3000);
    note(s, "no longer wanted");
    answer_always(s, API "client/dynamic_config", 200, NULL,
                  "{\"refresh_interval_sec\":50,\"sample_cancel_enabled\":false}");
    live(s, 50000);
    f[0] = sample_it(s, "sample", sampler, 1);
    tinkc_future_cancel(f[0]);
    settle(s);
    tinkc_sampler_free(sampler);
    script_end(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opened_samplers), cmocka_unit_test(samples),   cmocka_unit_test(slow_down),
        cmocka_unit_test(repeats),         cmocka_unit_test(forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
