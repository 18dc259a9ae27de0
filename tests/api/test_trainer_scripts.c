/* test_trainer_scripts.c - trainers in rare situations, word for word: conflicts, requests that are lost and sent
 * again, answers to polls that come in an unusual order, other ways to open and to unload. Records as in
 * test_client_scripts.c. */
#include "support/script_steps.h"

static const tinkc_client_options few_attempts = { .max_retries = 1, .retry_window_ms = 1500 };

/* Another client, with this config of the service and a trainer; nothing of it is written down. */
static tinkc_trainer *begin_again(script *s, const char *config, const tinkc_client_options *o)
{
    answer_always(s, API "client/config", 200, NULL, config);
    hush(s, true);
    script_renew(s, o);
    tinkc_trainer *t = open_trainer(s, NULL);
    hush(s, false);
    return t;
}

/* Answers that were given for requests to this path, and not used: n, since there were `before` requests. */
static void use_up(script *s, const char *path, size_t before, size_t n)
{
    hush(s, true);
    for (size_t used = tinkc_mock_count(script_mock(s), path) - before; used < n; used++) {
        tinkc_future *f =
            follow(s, "rest",
                   tinkc_http_call(script_client(s),
                                   &(tinkc_http_options){
                                       .path = path, .any_status = true, .no_retries = true },
                                   script_err(s)));
        finish_it(s, f, 100000);
        let_go(s, f);
    }
    hush(s, false);
}

static tinkc_future *start(script *s, tinkc_trainer *t, int which)
{
    tinkc_error *e = script_err(s);
    switch (which) {
    case 0:
        return follow(s, "step", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, e));
    case 1:
        return follow(s, "dimuon", tinkc_dimuon_step(t, &(tinkc_dimuon){ 0.5, 0.75, 3, { 0 } }, e));
    case 2:
        return follow(s, "save", tinkc_trainer_save(t, "one", NULL, e));
    case 3:
        return follow(s, "save for sampler", tinkc_trainer_save_for_sampler(t, "one", NULL, e));
    case 4:
        return follow(s, "save external", tinkc_trainer_save_external(t, "one", NULL, e));
    case 5:
        return follow(
            s, "load",
            tinkc_trainer_load(t, &(tinkc_state_options){ .path = "tinker://r/weights/c" }, e));
    case 6:
        return follow(s, "open sampler", tinkc_trainer_open_sampler(t, NULL, e));
    default:
        return follow(s, "unload", tinkc_trainer_unload(t, e));
    }
}

/* A 409 to a repeated save may mean that it was done; to anything else it does not. */
static void conflicts(void **state)
{
    (void)state;
    static const char *const paths[] = {
        API "optim_step",
        API "optim_step",
        API "save_weights",
        API "save_weights_for_sampler",
        API "save_weights_external",
        API "load_weights",
        API "save_weights_for_sampler",
        API "unload_model",
    };
    script *s = script_begin("conflicts", TINKC_MOCK_SERVICE, NULL);
    for (int recovers = 0; recovers < 2; recovers++)
        for (int which = 0; which < 8; which++)
            for (int before = 0; before < 2; before++) {
                tinkc_client_options o = few_attempts;
                o.conflict_recovery = recovers;
                o.max_retries = 2;
                note(s, "recovery %d, operation %d, %s", recovers, which,
                     before ? "repeated" : "the first attempt");
                tinkc_trainer *t = begin_again(s, "{}", &o);
                const char *path = paths[which];
                size_t sent = tinkc_mock_count(script_mock(s), path);
                for (int k = 0; k < 6; k++)
                    answer_once(s, path, before && !k ? 500 : 409, NULL, "{\"detail\":\"exists\"}");
                tinkc_future *f = start(s, t, which);
                finish_it(s, f, 4000);
                if (which >= 2 && which <= 5) {
                    const char *made = tinkc_future_path(f, 0, script_err(s));
                    note(s, "path %s", made ? made : "none");
                    *script_err(s) = (tinkc_error){ 0 };
                }
                let_go(s, f);
                tinkc_trainer_free(t);
                use_up(s, path, sent, 6);
            }
    script_end(s);
}

/* What an unload may be answered with, and whether the model can be used or unloaded after it. */
static void unloads(void **state)
{
    (void)state;
    static const char *const answers[] = {
        "{\"request_id\":\"r-1\"}",
        "{\"model_id\":\"model-1\",\"type\":\"unload_model\"}",
        "{}",
        "not JSON",
        "[]",
    };
    script *s = script_begin("unloads", TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        note(s, "%s", answers[i]);
        tinkc_trainer *t = begin_again(s, "{}", NULL);
        answer_once(s, API "unload_model", 200, NULL, answers[i]);
        size_t polls = tinkc_mock_count(script_mock(s), POLL);
        answer_once(s, POLL, 200, NULL, "{\"model_id\":\"model-1\",\"type\":\"unload_model\"}");
        tinkc_future *f = start(s, t, 7);
        start(s, t, 7);
        finish_it(s, f, 1000);
        use_up(s, POLL, polls, 1);
        start(s, t, 0);
        settle(s);
        tinkc_trainer_free(t);
    }
    script_end(s);
}

/* A number that nobody has confirmed is sent again before the next operation. */
static void resends(void **state)
{
    (void)state;
    static const struct outcome lost = { 200, TINKC_FAULT_RESET, NULL, NULL, "{}" };
    static const int32_t fates[] = { 200, 400, 403, 404, 405, 409, 413, 422, 500 };
    script *s = script_begin("resends", TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < sizeof fates / sizeof *fates; i++) {
        note(s, "a lost step, then %d", (int)fates[i]);
        tinkc_trainer *t = begin_again(s, "{}", &few_attempts);
        size_t sent = tinkc_mock_count(script_mock(s), API "optim_step");
        for (int k = 0; k < 6; k++)
            answer_with(s, API "optim_step", &lost);
        tinkc_future *f = start(s, t, 0);
        finish_it(s, f, 4000);
        use_up(s, API "optim_step", sent, 6);
        answer_once(s, API "optim_step", fates[i], NULL,
                    fates[i] == 200 ? "{\"request_id\":\"r-1\"}" : "");
        for (int k = 0; k < 2; k++) {
            tinkc_future *next = start(s, t, 0);
            finish_it(s, next, 4000);
            let_go(s, next);
        }
        let_go(s, f);
        tinkc_trainer_free(t);
    }
    script_end(s);
}

/* The first of two parts is lost, the second accepted: the number of the first cannot be given up. */
static void lost_parts(void **state)
{
    (void)state;
    static const struct outcome lost = { 200, TINKC_FAULT_RESET, NULL, NULL, "{}" };
    static const char *const how[] = { "confirmed", "one part, as JSON", "refused",
                                       "one part, compressed" };
    script *s = script_begin("lost_parts", TINKC_MOCK_SERVICE, NULL);
    for (int i = 0; i < 4; i++) {
        note(s, "%s", how[i]);
        tinkc_trainer *t =
            begin_again(s,
                        i == 3 ? "{\"fwdbwd_max_chunk_len\":1,\"proto_compress_fwdbwd\":true}"
                               : "{\"fwdbwd_max_chunk_len\":1}",
                        &few_attempts);
        tinkc_batch *b = examples(s, i % 2 ? 1 : 2);
        if (i == 1)
            answer_once(s, API "forward_backward", 415, NULL, "");
        answer_with(s, API "forward_backward", &lost);
        if (i % 2 == 0) {
            answer_once(s, API "forward_backward", 200, NULL, "{\"request_id\":\"r-1\"}");
            assert_true(tinkc_mock_once(script_mock(s), NULL, POLL,
                                        &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT },
                                        script_err(s)));
        }
        size_t before = tinkc_mock_count(script_mock(s), API "forward_backward");
        answer_always(s, API "forward_backward", 503, NULL, "");
        tinkc_future *f = follow(
            s, "pass", tinkc_forward_backward(t, b, TINKC_CROSS_ENTROPY, NULL, script_err(s)));
        finish_it(s, f, 4000);
        note(s, "%zu requests", tinkc_mock_count(script_mock(s), API "forward_backward") - before);
        answer_always(s, API "forward_backward", i == 2 ? 400 : 200, NULL,
                      i == 2 ? "{\"detail\":\"bad\"}" : "{\"request_id\":\"r-2\"}");
        for (int k = 0; k < 2; k++) {
            tinkc_future *next = start(s, t, 0);
            finish_it(s, next, 4000);
            let_go(s, next);
        }
        if (i == 3) { /* what is lost next is sent again as it was */
            size_t sent = tinkc_mock_count(script_mock(s), API "optim_step");
            for (int k = 0; k < 6; k++)
                answer_with(s, API "optim_step", &lost);
            finish_it(s, start(s, t, 0), 4000);
            use_up(s, API "optim_step", sent, 6);
            finish_it(s, start(s, t, 0), 4000);
        }
        let_go(s, f);
        tinkc_batch_free(b);
        tinkc_trainer_free(t);
    }
    script_end(s);
}

#define METADATA(size) "{\"status\":\"complete_metadata\",\"response_payload_size\":" size "}"
#define PAUSED(reason) QUEUE("paused_capacity", ",\"queue_state_reason\":\"" reason "\"")

/* Answers to polls, one after the other; the mock's own answer is the last. */
static void poll_orders(void **state)
{
    (void)state;
    static const struct outcome rows[][6] = {
        { { 429, 0, "retry-after-ms", "1", "" }, { 429, 0, NULL, NULL, "" } },
        { { 503, 0, "retry-after-ms", "1", "" }, { 503, 0, "retry-after-ms", "2", "" } },
        { { 503, 0, "retry-after-ms", "0", "" }, { 429, 0, "retry-after-ms", "0", "" } },
        /* what comes in between begins the pauses again */
        { { 429, 0, NULL, NULL, "" },
          { 429, 0, NULL, NULL, "" },
          { 200, 0, NULL, NULL, METADATA("7") },
          { 429, 0, NULL, NULL, "" } },
        { { 429, 0, NULL, NULL, "" }, { 408, 0, NULL, NULL, "" }, { 429, 0, NULL, NULL, "" } },
        { { 429, 0, NULL, NULL, "" }, { 500, 0, NULL, NULL, "" }, { 429, 0, NULL, NULL, "" } },
        { { 429, 0, NULL, NULL, "" }, { 400, 0, NULL, NULL, "" }, { 429, 0, NULL, NULL, "" } },
        { { 429, 0, NULL, NULL, "" },
          { 200, 0, NULL, NULL, QUEUE("active", "") },
          { 429, 0, NULL, NULL, "" } },
        /* a result that was asked for is withheld */
        { { 200, 0, NULL, NULL, METADATA("7") }, { 200, 0, NULL, NULL, METADATA("7") } },
        { { 200, 0, NULL, NULL, METADATA("0") } },
        /* the body of an earlier answer is not that of the last */
        { { 500, 0, NULL, NULL, "{\"detail\":\"earlier\"}" }, { 200, 0, NULL, NULL, "not JSON" } },
        { { 200, 0, NULL, NULL, METADATA("-5") } },
        /* a reason that becomes shorter is news once */
        { { 200, 0, NULL, NULL, PAUSED("full house") },
          { 200, 0, NULL, NULL, PAUSED("full") },
          { 200, 0, NULL, NULL, PAUSED("full") },
          { 200, 0, NULL, NULL, PAUSED("") },
          { 200, 0, NULL, NULL, QUEUE("unheard_of", "") } },
    };
    script *s = script_begin("poll_orders", TINKC_MOCK_SERVICE, NULL);
    tinkc_trainer *t = begin_again(s, "{}", NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        note(s, "row %zu", i);
        for (size_t k = 0; k < 6 && rows[i][k].status; k++)
            answer_with(s, POLL, &rows[i][k]);
        tinkc_future *f = start(s, t, 0);
        finish_it(s, f, 100000);
        let_go(s, f);
    }
    tinkc_trainer_free(t);
    script_end(s);
}

/* The error of a pass names the request of the part that failed. */
static void failed_parts(void **state)
{
    (void)state;
    static const struct outcome fates[] = {
        { 200, 0, NULL, NULL, "{\"error\":\"it\\nfailed\",\"category\":\"user\"}" },
        { 200, 0, NULL, NULL, "{\"error\":\"it failed\",\"category\":\"server\"}" },
        { 200, 0, NULL, NULL, "{\"error\":\"odd\",\"category\":\"unknown\"}" },
        { 404, 0, NULL, NULL, "{\"detail\":\"gone\"}" },
        { 410, 0, NULL, NULL, "{\"detail\":\"gone\"}" },
        { 200, 0, NULL, NULL, "not JSON" },
    };
    script *s = script_begin("failed_parts", TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < 2 * (sizeof fates / sizeof *fates); i++) {
        note(s, "fate %zu of the %s", i / 2, i % 2 ? "second poll" : "first poll");
        tinkc_trainer *t = begin_again(s, "{\"fwdbwd_max_chunk_len\":1}", NULL);
        tinkc_batch *b = examples(s, 2);
        size_t polls = tinkc_mock_count(script_mock(s), POLL);
        if (i % 2)
            answer_once(s, POLL, 200, NULL, QUEUE("active", ""));
        answer_with(s, POLL, &fates[i / 2]);
        if (i % 2 == 0)
            answer_once(s, POLL, 200, NULL, QUEUE("active", ""));
        tinkc_future *f = follow(
            s, "pass", tinkc_forward_backward(t, b, TINKC_CROSS_ENTROPY, NULL, script_err(s)));
        finish_it(s, f, 4000);
        use_up(s, POLL, polls, 2);
        let_go(s, f);
        tinkc_batch_free(b);
        tinkc_trainer_free(t);
    }
    note(s, "an id that is too long");
    tinkc_trainer *t = begin_again(s, "{}", NULL);
    char body[400], id[300];
    memset(id, 'r', sizeof id - 1);
    id[sizeof id - 1] = '\0';
    (void)snprintf(body, sizeof body, "{\"request_id\":\"%s\"}", id);
    answer_once(s, API "optim_step", 200, NULL, body);
    answer_once(s, POLL, 404, NULL, "{\"detail\":\"gone\"}");
    tinkc_future *f = start(s, t, 0);
    finish_it(s, f, 1000);
    let_go(s, f);
    tinkc_trainer_free(t);
    script_end(s);
}

/* Models that are there: the next number is the service's. */
static void live_models(void **state)
{
    (void)state;
    static const char *const infos[] = {
        "{\"model_data\":{\"model_name\":\"m\"},\"model_id\":\"x\",\"next_seq_id\":1}",
        "{\"model_data\":{},\"model_id\":\"x\",\"model_name\":\"n\",\"next_seq_id\":2}",
        "{\"model_data\":{},\"model_id\":\"x\",\"next_seq_id\":-1}",
        "{\"model_data\":{},\"model_id\":\"x\"}",
        "not JSON",
    };
    static const char *const runs[] = {
        "{\"training_run_id\":\"x\",\"base_model\":\"m\",\"model_owner\":\"o\",\"is_lora\":true,"
        "\"last_request_time\":\"2026-01-01T00:00:00Z\"}",
        "not JSON",
    };
    script *s = script_begin("live_models", TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < sizeof infos / sizeof *infos; i++) {
        note(s, "%s", infos[i]);
        hush(s, true);
        script_renew(s, NULL);
        hush(s, false);
        answer_once(s, API "get_info", 200, NULL, infos[i]);
        answer_once(s, API "training_runs/x", 200, NULL, runs[i % 2]);
        tinkc_future *f =
            follow(s, "live", tinkc_trainer_open_live(script_client(s), "x", script_err(s)));
        finish_it(s, f, 1000);
        use_up(s, API "training_runs/x", i, 1);
        tinkc_trainer *t = tinkc_future_trainer(f, 0, NULL);
        note(s, "trainer %s", tinkc_trainer_id(t));
        if (t)
            finish_it(s, start(s, t, 0), 1000);
        tinkc_trainer_free(t);
    }
    script_end(s);
}

/* A model made by loading a checkpoint: pauses have its name, and an answer without an id means the usual one. */
static void made_by_loading(void **state)
{
    (void)state;
    static const char *const results[] = {
        "{\"path\":\"tinker://r/weights/c\",\"type\":\"load_weights\"}",
        "{\"path\":\"tinker://r/weights/c\",\"model_id\":\"m-7\",\"type\":\"load_weights\"}",
        "{\"model_id\":\"\",\"type\":\"load_weights\"}",
    };
    script *s = script_begin("made_by_loading", TINKC_MOCK_SERVICE, NULL);
    answer_always(s, API "client/config", 200, NULL, "{\"create_model_via_load_weights\":true}");
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        note(s, "%s", results[i]);
        hush(s, true);
        script_renew(s, NULL);
        hush(s, false);
        answer_once(s, POLL, 200, NULL, PAUSED("full house"));
        answer_once(s, POLL, 200, NULL, results[i]);
        tinkc_future *f =
            follow(s, "from",
                   tinkc_trainer_open_from(script_client(s),
                                           &(tinkc_state_options){ .path = "tinker://r/weights/c" },
                                           script_err(s)));
        finish_it(s, f, 4000);
        tinkc_trainer *t = tinkc_future_trainer(f, 0, NULL);
        note(s, "trainer %s", tinkc_trainer_id(t));
        tinkc_trainer_free(t);
        let_go(s, f);
    }
    script_end(s);
}

/* Large results wait until there is room for them; the service's settings say how much. */
static void room(void **state)
{
    (void)state;
    script *s = script_begin("room", TINKC_MOCK_SERVICE, NULL);
    tinkc_trainer *t = begin_again(s, "{\"inflight_response_bytes_semaphore_size\":10}", NULL);
    for (int small = 0; small < 2; small++) {
        const char *metadata = small ? METADATA("4") : METADATA("100");
        note(s, "%s", metadata);
        answer_once(s, POLL, 200, NULL, metadata);
        assert_true(tinkc_mock_once(
            script_mock(s), NULL, POLL,
            &(tinkc_mock_answer){ .body = QUEUE("active", ""), .delay_ms = 500 }, script_err(s)));
        tinkc_future *f = start(s, t, 0);
        settle(s);
        answer_once(s, POLL, 200, NULL, metadata);
        tinkc_future *g = start(s, t, 0);
        settle(s);
        finish_it(s, f, 4000);
        finish_it(s, g, 4000);
    }
    tinkc_trainer_free(t);
    script_end(s);
}

/* A pass that fails while its next part waits for room gives its turn up at once. */
static void room_for_parts(void **state)
{
    (void)state;
    static const char request[] = "{\"request_id\":\"r-1\"}";
    script *s = script_begin("room_for_parts", TINKC_MOCK_SERVICE, NULL);
    tinkc_trainer *t = begin_again(s,
                                   "{\"fwdbwd_max_chunk_len\":1,\"parallel_fwdbwd_chunks\":false,"
                                   "\"fwdbwd_dispatch_bytes_semaphore_size\":1}",
                                   NULL);
    hush(s, true);
    tinkc_trainer *other = open_trainer(s, NULL);
    hush(s, false);
    tinkc_batch *two = examples(s, 2), *one = examples(s, 1);
    tinkc_mock_answer answers[] = { { .body = request, .delay_ms = 100 },
                                    { .fault = TINKC_FAULT_SILENT } };
    for (size_t i = 0; i < 2; i++)
        assert_true(tinkc_mock_once(script_mock(s), NULL, API "forward_backward", &answers[i],
                                    script_err(s)));
    answer_once(s, POLL, 200, NULL, "{\"error\":\"it failed\",\"category\":\"user\"}");
    tinkc_future *f =
        follow(s, "pass", tinkc_forward_backward(t, two, TINKC_CROSS_ENTROPY, NULL, script_err(s)));
    settle(s);
    tinkc_future *g = follow(
        s, "other", tinkc_forward_backward(other, one, TINKC_CROSS_ENTROPY, NULL, script_err(s)));
    finish_it(s, f, 1000);
    tinkc_future *step = start(s, t, 0);
    finish_it(s, step, 1000);
    tinkc_future_cancel(g);
    settle(s);
    tinkc_batch_free(one);
    tinkc_batch_free(two);
    tinkc_trainer_free(other);
    tinkc_trainer_free(t);
    script_end(s);
}

/* The token of somebody else is exchanged before it is used. */
static void foreign_tokens(void **state)
{
    (void)state;
    static const struct outcome rows[] = {
        { 200, 0, NULL, NULL, "{\"jwt\":\"theirs.short.lived\"}" },
        { 200, 0, NULL, NULL, "{\"jwt\":\"\"}" },
        { 200, 0, NULL, NULL, "{\"jwt\":null}" },
        { 200, 0, NULL, NULL, "{}" },
        { 200, 0, NULL, NULL, "not JSON" },
        { 403, 0, NULL, NULL, "{\"detail\":\"no\"}" },
    };
    script *s = script_begin("foreign_tokens", TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        note(s, "row %zu", i);
        answer_once(s, API "auth/token", 200, NULL,
                    "{\"jwt\":\"e30.eyJleHAiOjQwMDAwMDAwMDB9.x\"}"); /* the client's own */
        tinkc_client_options o = few_attempts;
        o.api_key = "tml-key";
        tinkc_trainer *t = begin_again(s, "{\"pjwt_auth_enabled\":true}", &o);
        tinkc_trainer_free(t);
        answer_with(s, API "auth/token", &rows[i]);
        answer_always(s, API "weights_info", 200, NULL,
                      "{\"base_model\":\"mock/nano\",\"is_lora\":true,\"lora_rank\":4}");
        tinkc_future *f =
            follow(s, "from",
                   tinkc_trainer_open_from(script_client(s),
                                           &(tinkc_state_options){ .path = "tinker://r/weights/c",
                                                                   .access_token = "theirs" },
                                           script_err(s)));
        finish_it(s, f, 4000);
        let_go(s, f);
    }
    script_end(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conflicts),       cmocka_unit_test(unloads),
        cmocka_unit_test(resends),         cmocka_unit_test(lost_parts),
        cmocka_unit_test(poll_orders),     cmocka_unit_test(failed_parts),
        cmocka_unit_test(live_models),     cmocka_unit_test(foreign_tokens),
        cmocka_unit_test(made_by_loading), cmocka_unit_test(room),
        cmocka_unit_test(room_for_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
