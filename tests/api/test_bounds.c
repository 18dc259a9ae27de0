/* test_bounds.c - how much is under way at once, and what is sent when nothing is said. */
#include <stdlib.h>
#include <string.h>

#include "support/api_support.h"

#define SAMPLE "/api/v1/asample"
enum { MANY = 450, PROMPT = 10 };

static const int32_t prompt[PROMPT] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };

/* How many of MANY samples are sent before one of them is answered. `accepted`: they are, but no
 * result comes. */
static size_t submits_with(const char *config, bool accepted, int32_t first_status)
{
    tinkc_error err = { 0 };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    tinkc_future *f[MANY];
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    if (config)
        tinkc_mock_always(mock, NULL, "/api/v1/client/config",
                          &(tinkc_mock_answer){ .body = config }, &err);
    tinkc_client *client = mock_client(mock, NULL, &err);
    tinkc_sampler *s =
        tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &err);
    tinkc_mock_always(mock, NULL, accepted ? "/api/v1/retrieve_future" : SAMPLE,
                      &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &err);
    o.max_tokens = 1;
    size_t n = 0;
    if (first_status) { /* one sample alone meets it; the others come when its back-off is over */
        tinkc_mock_once(mock, NULL, SAMPLE, &(tinkc_mock_answer){ .status = first_status }, &err);
        f[n++] = tinkc_sample(s, prompt, PROMPT, 1, &o, &err);
        tinkc_mock_settle(mock, 5000, &err);
        tinkc_mock_advance(mock, 2000);
        tinkc_mock_settle(mock, 5000, &err);
        tinkc_mock_forget(mock);
    }
    for (; n < MANY; n++)
        f[n] = tinkc_sample(s, prompt, PROMPT, 1, &o, &err);
    tinkc_mock_settle(mock, 20000, &err);
    assert_ok(&err);
    size_t sent = tinkc_mock_count(mock, SAMPLE);
    while (n--)
        tinkc_future_free(f[n]);
    tinkc_sampler_free(s);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
    return sent;
}

static void samples_under_way(void **state)
{
    (void)state;
    assert_int_equal(submits_with(NULL, false, 0), 400);  /* submits of an account */
    assert_int_equal(submits_with(NULL, true, 0), MANY);  /* they count until they are accepted */
    assert_int_equal(submits_with(NULL, false, 429), 10); /* soon after a 429 */
    assert_int_equal(submits_with("{\"sample_max_concurrent_requests\":7}", true, 0),
                     7); /* slots */
    /* Ten tokens count 100 bytes: two fill a budget of 100, as the last may overdraw it. */
    assert_int_equal(submits_with("{\"sample_dispatch_bytes_semaphore_size\":100}", false, 0), 2);
    /* Soon after a 429 they count twenty times that. */
    assert_int_equal(submits_with("{\"sample_dispatch_bytes_semaphore_size\":1000}", false, 429),
                     1);
}

static void defaults_of_a_new_lora(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_client *client = mock_client(mock, NULL, &err);
    tinkc_trainer *t =
        tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &err);
    assert_ok(&err);
    const char *body = (const char *)nth_request(mock, "/api/v1/create_model", 0)->body.data;
    assert_non_null(strstr(body, "\"rank\":32"));
    assert_non_null(strstr(body, "\"train_mlp\":true"));
    assert_non_null(strstr(body, "\"train_attn\":true"));
    assert_non_null(strstr(body, "\"train_unembed\":true"));
    assert_null(strstr(body, "\"seed\":0"));
    tinkc_trainer_free(t);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_under_way),
        cmocka_unit_test(defaults_of_a_new_lora),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
