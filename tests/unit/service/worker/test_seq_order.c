/* test_seq_order.c - numbers of requests that arrive in any order, queues and results without room, and bits. What
 * each number is answered stands in tests/data/service_rules. */
#include <math.h>
#include <time.h>
#include "support/service/service_world.h"

static const int text_b[] = { 2, 4, 8, 16, 32, 3, 6, 12 };

/* Three passes, then a step; `order` says which arrives when. Returns the loss afterwards. */
static double train_in_order(const tinkc_transport *t, const char *model, const int order[4])
{
    const char *ids[4];
    for (int i = 0; i < 4; i++) {
        int seq = order[i];
        ids[seq - 1] = seq == 4 ? service_step(t, model, 4, 1e-2)
                                : service_pass(t, model, seq, seq == 2 ? text_b : text_a, N, false);
    }
    for (int i = 0; i < 4; i++)
        service_wait(t, ids[i]);
    return service_loss(t, model, 5, text_b, N);
}

TEST(any_order_of_arrival)
{
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = service_session(t);
    double first = train_in_order(t, service_model(t, session, 0, "tiny", 4, 7), (const int[]){ 1, 2, 3, 4 });
    double second = train_in_order(t, service_model(t, session, 1, "tiny", 4, 7), (const int[]){ 4, 3, 2, 1 });
    double third = train_in_order(t, service_model(t, session, 2, "tiny", 4, 7), (const int[]){ 2, 4, 1, 3 });
    assert_true(first == second && second == third);
    tinkc_engine_free(engine);
}

/* Questions about models that are just being made, or released; a race would be seen by a
 * sanitizer.
 */
TEST(asked_while_they_are_made)
{
    enum { MANY = 40 };
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t)), *ids[2 * MANY];
    for (int i = 0; i < MANY; i++) {
        const char *made = service_json(t, 200, "POST", "/api/v1/create_model",
                                        "{\"session_id\":\"%s\",\"model_seq_id\":%d,\"base_model\":"
                                        "\"tiny\",\"lora_config\":{\"rank\":2}}",
                                        session, i);
        const char *model = hold(json_field(made, "model_id"));
        ids[2 * i] = hold(json_field(made, "request_id"));
        service_json(t, 200, "POST", "/api/v1/get_info", "{\"model_id\":\"%s\"}", model);
        service_json(t, 200, "GET", "/status", "%s", "");
        ids[2 * i + 1] = hold(json_field(
            service_json(t, 200, "POST", "/api/v1/unload_model", "{\"model_id\":\"%s\"}", model), "request_id"));
        char body[200];
        snprintf(body, sizeof body, "{\"model_id\":\"%s\"}", model);
        answer a = service_call(t, "POST", "/api/v1/get_info", NULL, body, strlen(body));
        assert_true(a.status == 200 || a.status == 404);
        answer_free(&a);
    }
    for (int i = 0; i < 2 * MANY; i++)
        service_wait(t, ids[i]);
    tinkc_engine_free(engine);
}

/* What waits for an earlier request is kept in memory, but not without end; the one that everybody
 * waits for is taken whatever is there already. */
TEST(a_queue_has_an_end)
{
    const char *const settings[] = { "max_queued_bytes", "70000", NULL };
    tinkc_engine *engine = world_open(NULL, 0, settings);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    const char *ids[200];
    char body[400];
    int n = 0, status = 200;
    while (status == 200 && n < 200) {
        snprintf(body, sizeof body, "{\"model_id\":\"%s\",\"seq_id\":%d,\"adam_params\":{}}", model, n + 2);
        answer a = service_call(t, "POST", "/api/v1/optim_step", NULL, body, strlen(body));
        status = a.status;
        if (status == 200)
            ids[n++] = hold(json_field(a.body.data, "request_id"));
        else
            assert_non_null(strstr(a.body.data, "Too much is queued"));
        answer_free(&a);
    }
    assert_int_equal(status, 429);
    assert_in_range(n, 1, 150);
    service_wait(t, service_step(t, model, 1, 0.0));
    for (int i = 0; i < n; i++)
        service_wait(t, ids[i]);
    service_wait(t, service_step(t, model, n + 2, 0.0));
    service_wait(t, service_step(t, model, n + 3, 0.0)); /* there is room again */
    tinkc_engine_free(engine);
}

TEST(large_results_announce_themselves)
{
    const char *const settings[] = { "metadata_only_threshold", "10", NULL };
    tinkc_engine *engine = world_open(NULL, 0, settings);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = service_model(t, service_session(t), 0, "tiny", 4, 7);
    const char *id = service_pass(t, model, 1, text_a, N, false);
    answer whole = service_result(t, id, true);
    assert_string_equal(whole.type, "application/x-protobuf");
    char body[300];
    snprintf(body, sizeof body, "{\"request_id\":\"%s\",\"allow_metadata_only\":true}", id);
    answer head = service_call(t, "POST", "/api/v1/retrieve_future", NULL, body, strlen(body));
    assert_string_equal(json_field(head.body.data, "status"), "complete_metadata");
    assert_true(json_number(head.body.data, "response_payload_size") == (double)whole.body.len);
    answer_free(&head);
    answer again = service_result(t, id, true);
    assert_int_equal(again.body.len, whole.body.len);
    assert_memory_equal(again.body.data, whole.body.data, whole.body.len);
    answer_free(&again);
    answer_free(&whole);
    tinkc_engine_free(engine);
}

/* Results that nobody fetched are not dropped for new ones: passes wait. */
TEST(unfetched_results_hold_passes_back)
{
    const char *const settings[] = { "long_poll_s", "0", "result_store_bytes", "150", NULL };
    tinkc_engine *engine = world_open(NULL, 0, settings);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *model = hold(service_model(t, service_session(t), 0, "tiny", 4, 7));
    const char *first = hold(service_pass(t, model, 1, text_a, N, false));
    service_wait(t, service_step(t, model, 2, 1e-2));
    const char *second = hold(service_pass(t, model, 3, text_a, N, false));
    service_wait_paused(t, second, "not fetched");
    service_wait(t, first);
    service_wait(t, second);
    tinkc_engine_free(engine);
}

/* ---- bits ---- */

/* Ten steps; sampling from an old snapshot in between must change nothing. */
static double train_alone(const tinkc_transport *t, const char *model, const int *text, const char *sampler)
{
    for (int i = 0; i < 10; i++) {
        service_wait(t, service_pass(t, model, 2 * i + 1, text, N, false));
        service_wait(t, service_step(t, model, 2 * i + 2, 1e-2));
        if (sampler) {
            const char *promise =
                service_json(t, 200, "POST", "/api/v1/asample",
                             "{\"sampling_session_id\":\"%s\",\"seq_id\":%d,\"prompt\":{\"chunks\":[{\"type\":"
                             "\"encoded_text\",\"tokens\":[1,2]}]},\"sampling_params\":{\"max_tokens\":4}}",
                             sampler, i);
            service_wait(t, json_field(promise, "request_id"));
        }
    }
    return service_loss(t, model, 21, text, N);
}

TEST(two_clients_equal_each_alone)
{
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *sessions[2] = { hold(service_session(t)), hold(service_session(t)) };
    double alone[2], together[2];
    alone[0] = train_alone(t, service_model(t, sessions[0], 0, "tiny", 3, 1), text_a, NULL);
    alone[1] = train_alone(t, service_model(t, sessions[0], 1, "tiny", 8, 2), text_b, NULL);
    const char *models[2] = { hold(service_model(t, sessions[0], 2, "tiny", 3, 1)),
                              hold(service_model(t, sessions[1], 0, "tiny", 8, 2)) };
    for (int i = 0; i < 10; i++) /* everything is sent before anything is waited for */
        for (int m = 0; m < 2; m++) {
            service_pass(t, models[m], 2 * i + 1, m ? text_b : text_a, N, false);
            service_step(t, models[m], 2 * i + 2, 1e-2);
        }
    together[0] = service_loss(t, models[0], 21, text_a, N);
    together[1] = service_loss(t, models[1], 21, text_b, N);
    assert_true(alone[0] == together[0] && alone[1] == together[1]);
    assert_true(alone[0] != alone[1]);
    /* and sampling from an old snapshot between the steps */
    const char *model = hold(service_model(t, sessions[0], 3, "tiny", 3, 1));
    const char *promise = service_json(t, 200, "POST", "/api/v1/create_sampling_session",
                                       "{\"session_id\":\"%s\",\"sampling_session_seq_id\":0,"
                                       "\"base_model\":\"tiny\"}",
                                       sessions[0]);
    const char *sampler = hold(json_field(promise, "sampling_session_id"));
    assert_true(train_alone(t, model, text_a, sampler) == alone[0]);
    tinkc_engine_free(engine);
}

/* One client with many requests does not keep another waiting. */
TEST(a_short_queue_is_not_starved)
{
    const char *const settings[] = { "microbatch_tokens", "8", NULL };
    tinkc_engine *engine = world_open(NULL, 0, settings);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = hold(service_session(t));
    const char *greedy = hold(service_model(t, session, 0, "tiny", 4, 1));
    const char *modest = hold(service_model(t, session, 1, "tiny", 4, 2));
    enum { MANY = 600 };
    for (int i = MANY; i > 1; i--) /* all wait for the first */
        service_pass(t, greedy, i, text_a, N, false);
    const char *last = hold(service_pass(t, greedy, MANY + 1, text_a, N, false));
    service_pass(t, greedy, 1, text_a, N, false);
    service_wait(t, service_pass(t, modest, 1, text_b, N, false));
    assert_true(status_of(engine, "queued_training_requests") > MANY / 2);
    service_wait(t, last);
    tinkc_engine_free(engine);
}

TEST(a_failed_pass_changes_nothing)
{
    tinkc_engine *engine = world_open(NULL, 0, NULL);
    const tinkc_transport *t = tinkc_engine_transport(engine);
    const char *session = service_session(t);
    const char *a = hold(service_model(t, session, 0, "tiny", 4, 7));
    const char *b = hold(service_model(t, session, 1, "tiny", 4, 7));
    const int bad[] = { 1, 2, 99, 4 };
    service_pass(t, a, 1, text_a, N, false);
    service_wait_failure(t, service_pass(t, a, 2, bad, 4, false), "user", "99");
    const char *step = service_wait(t, service_step(t, a, 3, 1e-2));
    assert_true(json_number(step, "failed_fwdbwd_since_last_step") == 1.0);
    service_pass(t, b, 1, text_a, N, false);
    service_wait(t, service_step(t, b, 2, 1e-2));
    assert_true(service_loss(t, a, 4, text_a, N) == service_loss(t, b, 3, text_a, N));
    tinkc_engine_free(engine);
}

RUN_TESTS(setup, teardown)
