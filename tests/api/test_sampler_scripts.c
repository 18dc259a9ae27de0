/* test_sampler_scripts.c - samplers in rare situations, word for word: copies in another process, attempts that are
 * repeated by the sampler itself, streams that come byte by byte; and what a new session says. Records as in
 * test_client_scripts.c. */
#include <stdlib.h>

#include "support/script_steps.h"

/* What the exported text has is what the copy uses: address, credential, settings, session. */
static void imports(void **state)
{
    (void)state;
    static const char *const configs[] = {
        "{}",
        "{\"sample_join_sampling_session\":true}",
        "{\"sample_enable_stuck_detection\":true,\"extra\":[1]}",
    };
    static const int refresh_s[] = { 33, 1, 1000 };
    script *s = script_begin("imports", TINKC_MOCK_SERVICE, NULL);
    tinkc_error *e = script_err(s);
    for (size_t i = 0; i < 3; i++) {
        char dynamic[60];
        (void)snprintf(dynamic, sizeof dynamic, "{\"refresh_interval_sec\":%d}", refresh_s[i]);
        note(s, "copy %zu", i);
        answer_always(s, API "client/config", 200, NULL, configs[i]);
        answer_always(s, API "client/dynamic_config", i == 2 ? 404 : 200, NULL, dynamic);
        hush(s, true);
        script_renew(s, &(tinkc_client_options){ .api_key = "tml-key",
                                                 .base_url = "https://there.test/base",
                                                 .credential_cmd = i ? "printf x" : NULL,
                                                 .headers = PAIRS("X-Own", "1", "Y", "2") });
        tinkc_sampler *original = open_sampler(s, NULL);
        tinkc_text text = { 0 }, again = { 0 };
        assert_non_null(tinkc_sampler_export(original, &text, e));
        tinkc_sampler_free(original);
        script_renew(s, NULL); /* one client at a time */
        hush(s, false);
        note(s, "%s", text.data);
        tinkc_sampler *copy = tinkc_sampler_import(
            text.data,
            &(tinkc_client_options){ .transport = tinkc_mock_transport(script_mock(s)),
                                     .clock = tinkc_mock_clock(script_mock(s)) },
            e);
        assert_ok(e);
        note(s, "%s", tinkc_sampler_export(copy, &again, e));
        answer_once(s, API "join_sampling_session", 200, NULL, "{\"client_counter\":1}");
        for (int k = 0; k < 2; k++) {
            tinkc_future *f = sample_it(s, "sample", copy, 1);
            finish_it(s, f, 10000);
            let_go(s, f);
        }
        live(s, 40000); /* heartbeats, and the settings again */
        tinkc_sampler_free(copy);
        settle(s);
        tinkc_text_free(&text);
        tinkc_text_free(&again);
    }
    script_end(s);
}

/* A text without an interval: the usual one holds. A place that does not come, a prompt that is gone meanwhile, and a
 * token that is refused. */
static void places(void **state)
{
    (void)state;
    script *s = script_begin("places", TINKC_MOCK_SERVICE, NULL);
    tinkc_error *e = script_err(s);
    answer_always(s, API "client/config", 200, NULL, "{\"sample_join_sampling_session\":true}");
    hush(s, true);
    script_renew(s, &(tinkc_client_options){ .api_key = "tml-key" });
    tinkc_sampler *original = open_sampler(s, NULL);
    tinkc_text text = { 0 }, again = { 0 };
    assert_non_null(tinkc_sampler_export(original, &text, e));
    tinkc_sampler_free(original);
    script_renew(s, NULL); /* one client at a time */
    hush(s, false);
    char *interval = strstr(text.data, "\"refresh_interval_sec\":");
    assert_non_null(interval);
    for (char *c = interval + 23; *c >= '0' && *c <= '9'; c++)
        *c = c == interval + 23 ? '0' : ' ';
    note(s, "%s", text.data);
    tinkc_sampler *copy = tinkc_sampler_import(
        text.data,
        &(tinkc_client_options){ .transport = tinkc_mock_transport(script_mock(s)),
                                 .clock = tinkc_mock_clock(script_mock(s)) },
        e);
    assert_ok(e);
    note(s, "%s", tinkc_sampler_export(copy, &again, e));
    fault_once(s, API "join_sampling_session", TINKC_FAULT_SILENT);
    tinkc_future *f = sample_it(s, "waits", copy, 1);
    settle(s);
    tinkc_future_cancel(f);
    settle(s);
    assert_true(tinkc_mock_once(
        script_mock(s), NULL, API "join_sampling_session",
        &(tinkc_mock_answer){ .body = "{\"client_counter\":2}", .delay_ms = 500 }, e));
    tinkc_input *input = tinkc_input_new(script_client(s), e);
    char place[] = "the place";
    tinkc_input_add_tokens(input, ids, 3, e);
    tinkc_input_add_image(input, "picture", 7, "png", 4, e);
    tinkc_input_add_image_pointer(input, place, "jpeg", -1, e);
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 1;
    f = follow(s, "sample", tinkc_sample_input(copy, input, 1, &o, e));
    tinkc_input_free(input);
    memset(place, 'x', sizeof place - 1);
    fault_once(s, POLL, TINKC_FAULT_SILENT);
    live(s, 600);
    tinkc_future_cancel(f); /* it has its place by now */
    settle(s);
    f = sample_it(s, "another", copy, 1);
    finish_it(s, f, 10000);
    tinkc_sampler_free(copy);
    settle(s);
    tinkc_text_free(&text);
    tinkc_text_free(&again);
    script_end(s);
}

/* Without attempts of the call itself, the sampler repeats what may be repeated. */
static void resamples(void **state)
{
    (void)state;
    static const struct outcome rows[] = {
        { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL },
        { 200, TINKC_FAULT_RESET, NULL, NULL, "{}" },
        { 200, TINKC_FAULT_SILENT, NULL, NULL, "{}" },
        { 408, 0, NULL, NULL, "" },
        { 409, 0, NULL, NULL, "" },
        { 404, 0, NULL, NULL, "" },
        { 500, 0, NULL, NULL, "" },
        { 599, 0, NULL, NULL, "" },
        { 600, 0, NULL, NULL, "" },
        { 200, 0, NULL, NULL, "not JSON" },
        { 200, 0, NULL, NULL, "{}" },
    };
    static const tinkc_retry_options retry = { .max_attempts = 3,
                                               .delay_base_ms = 100,
                                               .delay_max_ms = 150 };
    script *s = script_begin("resamples", TINKC_MOCK_SERVICE, NULL);
    hush(s, true);
    script_renew(
        s, &(tinkc_client_options){ .max_retries = TINKC_ZERO, .retry_window_ms = TINKC_ZERO });
    tinkc_sampler *sampler = open_sampler(s, &retry);
    hush(s, false);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int polls = 0; polls < 2; polls++) {
            note(s, "row %zu, %s", i, polls ? "polls" : "submits");
            answer_with(s, polls ? POLL : API "asample", &rows[i]);
            tinkc_future *f = sample_it(s, "sample", sampler, 1);
            finish_it(s, f, 100000);
            let_go(s, f);
        }
    note(s, "a promise that is lost, again and again");
    for (int k = 0; k < 3; k++)
        answer_once(s, POLL, 410, NULL, "{\"detail\":\"gone\"}");
    tinkc_future *f = sample_it(s, "sample", sampler, 1);
    finish_it(s, f, 100000);
    let_go(s, f);
    note(s, "cancelled before it is sampled again");
    answer_once(s, POLL, 410, NULL, "{\"detail\":\"gone\"}");
    f = sample_it(s, "cancelled", sampler, 1);
    settle(s);
    tinkc_future_cancel(f);
    settle(s);
    note(s, "cancelled in a back-off");
    answer_once(s, API "asample", 429, NULL, "");
    f = sample_it(s, "cancelled", sampler, 1);
    settle(s);
    tinkc_future_cancel(f);
    settle(s);
    live(s, 20000);
    note(s, "at the end of a back-off");
    answer_once(s, API "asample", 429, NULL, "");
    f = sample_it(s, "held back", sampler, 1);
    settle(s);
    pass(s, 999);
    tinkc_future *g = sample_it(s, "too early", sampler, 1);
    settle(s);
    pass(s, 1);
    tinkc_future *h = sample_it(s, "in time", sampler, 1);
    settle(s);
    finish_it(s, f, 10000);
    finish_it(s, g, 10000);
    finish_it(s, h, 10000);
    tinkc_sampler_free(sampler);
    script_end(s);
}

#define EVENT(json) "data: " json "\n\n"

/* Bytes one by one: each delta stands for itself. */
static void drops(void **state)
{
    (void)state;
    static const char body[] =
        EVENT("{\"event_type\":\"token\",\"index\":0,\"token_id\":5,\"logprob\":-0.5}")
            EVENT("{\"event_type\":\"token\",\"index\":1,\"token_id\":6}")
                EVENT("{\"event_type\":\"token\",\"index\":2,\"token_id\":0,\"logprob\":-1}") EVENT(
                    "{\"event_type\":\"done\",\"finish_reason\":\"length\",\"total_tokens\":3}");
    script *s = script_begin("drops", TINKC_MOCK_SERVICE, NULL);
    tinkc_error *e = script_err(s);
    hush(s, true);
    tinkc_sampler *sampler = open_sampler(s, NULL);
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    assert_true(tinkc_mock_once(script_mock(s), NULL, API "stream_sample",
                                &(tinkc_mock_answer){ .body = body, .drip_ms = 1 }, e));
    tinkc_deltas *d = tinkc_sample_stream(sampler, ids, 3, &o, e);
    assert_ok(e);
    settle(s);
    bool over = false;
    for (size_t i = 0; i < 2 * sizeof body && !over; i++) {
        tinkc_error why = { 0 };
        const tinkc_delta *x = tinkc_deltas_next(d, 0, &why);
        hush(s, false);
        if (x)
            note(s, "byte %zu: %zu tokens, last %d, %zu log-probabilities, stop %d, last %d", i,
                 x->tokens.len, x->tokens.len ? (int)x->tokens.data[x->tokens.len - 1] : -1,
                 x->logprobs.len, (int)x->stop_reason, x->last);
        else if (why.code != TINKC_E_TIMEOUT)
            note(s, "byte %zu: %s", i, why.code ? why.message : "the end");
        over = !x && why.code != TINKC_E_TIMEOUT;
        hush(s, true);
        if (!x)
            pass(s, 1);
    }
    assert_true(over);
    tinkc_deltas_free(d);
    settle(s);
    tinkc_sampler_free(sampler);
    hush(s, false);
    script_end(s);
}

/* A message of a session is shown however short it is; an empty one is none. */
static void messages(void **state)
{
    (void)state;
    static const char *const answers[] = {
        "{\"session_id\":\"s\",\"info_message\":\"i\",\"warning_message\":\"w\",\"error_message\":"
        "\"e\"}",
        "{\"session_id\":\"s\",\"info_message\":\"\",\"warning_message\":null,\"error_message\":"
        "\"\"}",
        "{\"session_id\":\"\"}",
    };
    script *s = script_begin("messages", TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        note(s, "%s", answers[i]);
        hush(s, true);
        script_renew(s, NULL);
        hush(s, false);
        answer_once(s, API "create_session", 200, NULL, answers[i]);
        if (i == 1) /* as good as never */
            answer_once(s, API "client/dynamic_config", 200, NULL,
                        "{\"refresh_interval_sec\":9223372036854775807}");
        tinkc_future *f =
            follow(s, "sampler",
                   tinkc_sampler_open(script_client(s),
                                      &(tinkc_sampler_options){ .base_model = "mock/nano" },
                                      script_err(s)));
        finish_it(s, f, 1000);
        live(s, 100);
        let_go(s, f);
    }
    script_end(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(imports), cmocka_unit_test(places),   cmocka_unit_test(resamples),
        cmocka_unit_test(drops),   cmocka_unit_test(messages),
    };
    unsetenv("TINKER_API_KEY");
    unsetenv("TINKER_BASE_URL");
    unsetenv("TINKER_CREDENTIAL_CMD");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
