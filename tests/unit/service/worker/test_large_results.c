/* test_large_results.c - results that are too large for memory, and too many of them. */
#include <time.h>
#include <unistd.h>

#include "support/service/service_world.h"

/* How many files of results there are in a store. */
static int count_files(const char *store)
{
    char command[400];
    int n = -1;
    snprintf(command, sizeof command, "find '%s' \\( -path '*/tmp/*/result' -o -path '*/results/*' \\) -type f | wc -l",
             store);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d", &n), 1);
    pclose(f);
    return n;
}

static const char *sample(const tinkc_transport *t, int seed)
{
    const char *promise =
        service_json(t, 200, "POST", "/api/v1/asample",
                     "{\"base_model\":\"tiny\",\"prompt\":{\"chunks\":[{\"type\":\"encoded_text\",\"tokens\":"
                     "[1,5]}]},\"sampling_params\":{\"max_tokens\":8,\"seed\":%d}}",
                     seed);
    return hold(json_field(promise, "request_id"));
}

/* The same bytes as from memory, in both forms, as often as one asks; announced first if allowed.
 */
TEST(large_results_are_files)
{
    static const char *const small[] = {
        "result_spill_bytes", "64", "disk_reserve", "0", "metadata_only_threshold", "64", NULL
    };
    static const char *const never[] = { "result_spill_bytes", "1000000", "disk_reserve", "0", NULL };
    static const int32_t levels[] = { 0, TINKC_DURABILITY_SNAPSHOT, TINKC_DURABILITY_JOURNAL };
    const char *expected = NULL, *expected_sample = NULL;
    for (int i = -1; i < 3; i++) {
        char *store = tiny_folder();
        tinkc_engine *engine = i < 0 ? world_open(NULL, 0, never) : world_open(i ? store : NULL, levels[i], small);
        const tinkc_transport *t = tinkc_engine_transport(engine);
        const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
        const char *pass = hold(service_pass(t, model, 1, text_a, N, false));
        const char *json = hold(service_wait(t, pass));
        const char *id = sample(t, 3);
        const char *text = hold(service_wait(t, id));
        if (i < 0) {
            expected = json;
            expected_sample = text;
        } else {
            assert_string_equal(json, expected);
            assert_string_equal(text, expected_sample);
            answer one = service_result(t, pass, true), two = service_result(t, pass, true);
            assert_int_equal(one.status, 200);
            assert_true(one.body.len > 64 && one.body.len == two.body.len);
            assert_memory_equal(one.body.data, two.body.data, one.body.len);
            const char *meta = service_json(t, 200, "POST", "/api/v1/retrieve_future",
                                            "{\"request_id\":\"%s\",\"allow_metadata_only\":true}", pass);
            assert_non_null(strstr(meta, "\"complete_metadata\""));
            assert_true(json_number(meta, "response_payload_size") == (double)one.body.len);
            answer_free(&one);
            answer_free(&two);
        }
        if (i > 0)
            assert_int_equal(count_files(store), 2);
        tinkc_engine_free(engine);
        tiny_model_remove(store);
    }
}

/* With a journal the answer to a pass is there after a restart although an image lies behind it. */
TEST(they_outlive_a_restart_with_a_journal)
{
    static const char *const settings[] = { "result_spill_bytes", "64", "disk_reserve", "0", NULL };
    char *store = tiny_folder();
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_JOURNAL, settings);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    const char *pass = hold(service_pass(t, model, 1, text_a, N, false));
    const char *expected = hold(service_wait(t, pass));
    tinkc_engine_free(engine); /* writes an image */
    engine = world_open(store, TINKC_DURABILITY_JOURNAL, settings);
    t = tinkc_engine_transport(engine);
    assert_string_equal(service_wait(t, pass), expected);
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

/* What nobody has fetched stays, and new passes wait until something was fetched. */
TEST(too_many_results)
{
    static const char *const settings[] = {
        "result_spill_bytes", "64", "result_store_bytes", "900", "long_poll_s", "0", "disk_reserve", "0", NULL
    };
    char *store = tiny_folder();
    tinkc_engine *engine = world_open(store, TINKC_DURABILITY_SNAPSHOT, settings);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    const char *ids[8];
    int n = 0;
    for (; n < 5 && status_of(engine, "result_bytes") <= 900; n++) {
        double before = status_of(engine, "result_bytes");
        ids[n] = hold(service_pass(t, model, 1 + n, text_a, N, false));
        wait_until(status_of(engine, "result_bytes") > before);
    }
    assert_in_range(n, 2, 4);
    for (int i = 0; i < 2; i++) /* one that waits, and one behind it */
        ids[n + i] = hold(service_pass(t, model, 1 + n + i, text_a, N, false));
    service_wait_paused(t, ids[n + 1], "not fetched");
    for (int i = 0; i < n; i++)
        assert_non_null(strstr(service_wait(t, ids[i]), "loss:sum")); /* none was dropped */
    for (int i = 0; i < 2; i++)
        assert_non_null(strstr(service_wait(t, ids[n + i]), "loss:sum"));
    wait_until(count_files(store) < n);
    assert_true(count_files(store) < n); /* dropped ones leave no file */
    tinkc_engine_free(engine);
    tiny_model_remove(store);
}

RUN_TESTS(setup, teardown)
