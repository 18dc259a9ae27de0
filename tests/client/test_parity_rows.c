/* test_parity_rows.c - behaviour that rows of docs/parity.md state and that has no test elsewhere. */
#include "client/core/options.h"
#include "support/client/api_support.h"

#define POLL   "/api/v1/retrieve_future"
#define CANCEL "/api/v1/cancel_future"

static const int32_t prompt[] = { 1, 2, 3 };

/* A262, A267 */
TEST(machines_have_the_names_of_the_python_sdk)
{
    static const char *const rows[][2] = {
        { "x86_64", "x64" }, { "aarch64", "arm64" },         { "arm64", "arm64" },
        { "arm", "arm" },    { "riscv64", "other:riscv64" }, { "unknown", "unknown" },
    };
    tinkc_error err = { 0 };
    tkc_arena arena;
    tkc_arena_init(&arena, NULL, 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_string_equal(tkc_arch_name(rows[i][0], &arena, &err), rows[i][1]);
    assert_ok(&err);
    tkc_arena_free(&arena);
}

/* A228: the client's own query stands behind that of a call. */
TEST(queries_of_client_and_call_come_together)
{
    static const char *const query[] = { "team", "a b", "x", "1", NULL };
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_client *client = mock_client(mock, &(tinkc_client_options){ .query = query }, &err);
    tinkc_future *run = tinkc_run_get(client, "r", TINKC_OWNED, &err);
    tinkc_future *health = tinkc_health_check(client, &err);
    assert_true(tinkc_future_wait(health, PATIENCE_MS, &err));
    (void)tinkc_future_wait(run, PATIENCE_MS, NULL);
    bool seen[2] = { false };
    for (size_t i = 0; tinkc_mock_request(mock, i); i++) {
        const char *path = tinkc_mock_request(mock, i)->path;
        seen[0] |= strcmp(path, "/api/v1/training_runs/r?access_scope=owned&team=a+b&x=1") == 0;
        seen[1] |= strcmp(path, "/api/v1/healthz?team=a+b&x=1") == 0;
    }
    assert_true(seen[0] && seen[1]);
    tinkc_future_free(run);
    tinkc_future_free(health);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
}

/* A312: a seed of 0 is a seed. */
TEST(a_seed_of_zero_is_sent)
{
    for (int given = 0; given < 2; given++) {
        tinkc_error err = { 0 };
        tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
        tinkc_client *client = mock_client(mock, NULL, &err);
        tinkc_trainer *t =
            tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "mock/nano", .has_seed = given }, &err);
        assert_ok(&err);
        const char *body = (const char *)nth_request(mock, "/api/v1/create_model", 0)->body.data;
        assert_int_equal(strstr(body, "\"seed\":0") != NULL, given);
        assert_int_equal(strstr(body, "\"seed\"") != NULL, given);
        tinkc_trainer_free(t);
        tinkc_client_free(client);
        tinkc_mock_free(mock);
    }
}

enum { BY_LIMIT, BY_CANCEL, BY_FREE, BY_CLOSE, N_ENDS };

/* N13: whatever ends an accepted sample, the service hears of it where it wants to. */
TEST(every_end_of_a_sample_is_reported)
{
    static const char on[] = "{\"refresh_interval_sec\":300,\"sample_cancel_enabled\":true,"
                             "\"sample_cancel_max_batch_size\":3}";
    for (int end = 0; end < N_ENDS; end++) {
        tinkc_error err = { 0 };
        tinkc_sampling o = TINKC_SAMPLING_INIT;
        tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
        tinkc_mock_always(mock, NULL, "/api/v1/client/dynamic_config", &(tinkc_mock_answer){ .body = on }, &err);
        tinkc_mock_always(mock, NULL, POLL, &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &err);
        tinkc_mock_always(mock, NULL, CANCEL, &(tinkc_mock_answer){ .body = "{}" }, &err);
        tinkc_client *client = mock_client(mock, NULL, &err);
        tinkc_sampler *s = tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &err);
        tinkc_future *f = tinkc_sample(s, prompt, 3, 1, &o, &err);
        tinkc_mock_settle(mock, PATIENCE_MS, &err);
        assert_ok(&err);
        assert_int_equal(tinkc_mock_count(mock, POLL), 1);
        if (end == BY_LIMIT)
            tinkc_future_limit(f, 0, &err);
        else if (end == BY_CANCEL)
            tinkc_future_cancel(f);
        else if (end == BY_FREE)
            tinkc_future_free(f);
        else
            assert_false(tinkc_client_close(client, 0, &err));
        wait_until(tinkc_mock_count(mock, CANCEL) == 1);
        assert_ok(&err);
        assert_int_equal(tinkc_mock_count(mock, CANCEL), 1);
        if (end != BY_FREE)
            tinkc_future_free(f);
        tinkc_sampler_free(s);
        tinkc_client_free(client);
        tinkc_mock_free(mock);
    }
}
