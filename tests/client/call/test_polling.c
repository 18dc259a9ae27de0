/* test_polling.c - the layer "poll" (docs/failures.md): what each answer to a poll leads to, how long the next one waits, and
 * what is said about the service's queue. */
#include "support/client/client_scene.h"

#define METADATA(size)   "{\"status\":\"complete_metadata\",\"response_payload_size\":" size "}"
#define PAUSED(reason)   QUEUE("paused_capacity", ",\"queue_state_reason\":\"" reason "\"")
#define FAILED(text, by) "{\"error\":\"" text "\",\"category\":\"" by "\"}"

/* A step that is accepted; its polls are answered like this, then as usual. */
TEST(each_answer_to_a_poll_has_its_consequence)
{
    static const struct {
        outcome o[4];
        const char *seen;
    } rows[] = {
        { { { 400, 0, NULL, NULL, "{\"detail\":\"bad\"}" } },
          "optim_step; poll; BAD_REQUEST 400, may have run, in retrieval \"HTTP 400: bad\"" },
        { { { 400, 0, NULL, NULL, "" } }, "optim_step; poll; +1000 poll 1; done" },
        { { { 400, 0, NULL, NULL, "<html>" } }, "optim_step; poll; +100 poll 1; done" },
        { { { 401, 0, NULL, NULL, "{\"error\":\"x\",\"category\":\"user\"}" } },
          "optim_step; poll; AUTH 401, may have run, in retrieval \"HTTP 401: x\"" },
        { { { 402, 0, NULL, NULL, "{\"detail\":\"pay\"}" } }, "optim_step; poll; +5000 poll 1; done" },
        { { { 403, 0, NULL, NULL, "plain text" } },
          "optim_step; poll; FORBIDDEN 403, may have run, in retrieval \"HTTP 403: plain text\"" },
        { { { 404, 0, NULL, NULL, "" } }, "optim_step; poll; NOT_FOUND 404, may have run, in retrieval \"HTTP 404\"" },
        { { { 408, 0, NULL, NULL, "" } }, "optim_step; poll; +100 poll 1; done" },
        { { { 409, 0, NULL, NULL, "" } }, "optim_step; poll; CONFLICT 409, may have run, in retrieval \"HTTP 409\"" },
        { { { 410, 0, NULL, NULL, "" } },
          "optim_step; poll; PROMISE_EXPIRED 410, may have run, in retrieval \"the result is gone: "
          "HTTP 410\"" },
        { { { 422, 0, NULL, NULL, "{\"detail\":[{\"loc\":[\"body\",\"x\"],\"msg\":\"missing\"}]}" } },
          "optim_step; poll; UNPROCESSABLE 422, may have run, in retrieval \"HTTP 422: body.x: "
          "missing\"" },
        { { { 429, 0, "Retry-After", "7", "" } }, "optim_step; poll; +7000 poll 1; done" },
        { { { 429, 0, "Retry-After", "Thu, 01 Jan 2026 00:00:01 GMT", "" } }, "optim_step; poll; +1000 poll 1; done" },
        { { { 429, 0, "retry-after-ms", "250", "" } }, "optim_step; poll; +250 poll 1; done" },
        { { { 429, 0, NULL, NULL, "" } }, "optim_step; poll; +1000 poll 1; done" },
        { { { 500, 0, NULL, NULL, "{\"detail\":\"earlier\"}" }, { 200, 0, NULL, NULL, "not JSON" } },
          "optim_step; poll; +100 poll 1; BAD_RESPONSE, may have run, in retrieval \"JSON: an "
          "object is needed at byte 0\"" },
        { { { 500, 0, "x-should-retry", "false", "" } }, "optim_step; poll; +100 poll 1; done" },
        { { { 404, 0, "x-should-retry", "true", "" } },
          "optim_step; poll; NOT_FOUND 404, may have run, in retrieval \"HTTP 404\"" },
        { { { 503, 0, "Retry-After", "61", "" } }, "optim_step; poll; +60000 poll 1; done" },
        { { { 503, 0, "Retry-After", "-1", "" } }, "optim_step; poll; +100 poll 1; done" },
        { { { 503, 0, "retry-after-ms", "1", "" } }, "optim_step; poll; +1 poll 1; done" },
        { { { 503, 0, NULL, NULL, "" } }, "optim_step; poll; +100 poll 1; done" },
        { { { 503, TINKC_FAULT_TRUNCATED, "Retry-After", "7", "{\"detail\":\"cut\"}" } },
          "optim_step; poll; +1000 poll 1; done" },
        { { { 599, 0, NULL, NULL, "" } }, "optim_step; poll; +100 poll 1; done" },
        { { { 600, 0, NULL, NULL, "" } }, "optim_step; poll; +100 poll 1; done" },
        { { { 302, 0, "Location", "/elsewhere", "" } },
          "optim_step; poll; HTTP 302, may have run, in retrieval \"HTTP 302\"" },
        { { { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL } }, "optim_step; poll; +1000 poll 1; done" },
        { { { 200, TINKC_FAULT_RESET, NULL, NULL, "{\"status\":\"ok\"}" } }, "optim_step; poll; +1000 poll 1; done" },
        { { { 200, TINKC_FAULT_SILENT, NULL, NULL, "{\"status\":\"ok\"}" } }, "optim_step; poll; +46000 poll 1; done" },
        { { { 408, 0, NULL, NULL, QUEUE("active", "") } }, "optim_step; poll; +100 poll 1; done" },
        { { { 200, 0, NULL, NULL, QUEUE("unheard_of", "") } }, "optim_step; poll; +100 poll 1; done" },
        { { { 200, 0, NULL, NULL, "" } }, "optim_step; poll; +1000 poll 1; done" },
        { { { 200, 0, NULL, NULL, FAILED("it failed", "user") } },
          "optim_step; poll; REQUEST_FAILED 200, by the caller, not retriable \"it failed\"" },
        { { { 200, 0, NULL, NULL, FAILED("it\\nfailed", "server") } },
          "optim_step; poll; REQUEST_FAILED 200, by the server \"it failed\"" },
        { { { 200, 0, NULL, NULL, FAILED("odd", "unknown") } },
          "optim_step; poll; REQUEST_FAILED 200, by nobody \"odd\"" },
        { { { 200, 0, "Content-Type", "application/x-protobuf", "\x08" } },
          "optim_step; poll; BAD_RESPONSE, may have run, in retrieval \"JSON: no value at byte "
          "0\"" },
        { { { 500, 0, "Retry-After", "9", "" } }, "optim_step; poll; +100 poll 1; done" },
        { { { 429, 0, "Retry-After", "1e300", "" } }, "optim_step; poll; +60000 poll 1; done" },
        { { { 503, 0, "Retry-After", "nan", "" } }, "optim_step; poll; +100 poll 1; done" },
        /* only the size of the result: it is asked for */
        { { { 200, 0, NULL, NULL, METADATA("1000") } }, "optim_step; poll; poll 1; done" },
        { { { 200, 0, NULL, NULL, METADATA("7") }, { 200, 0, NULL, NULL, METADATA("7") } },
          "optim_step; poll; poll 1; BAD_RESPONSE, may have run, in retrieval \"the service "
          "withholds a result that was asked for\"" },
        { { { 200, 0, NULL, NULL, METADATA("-5") } }, "optim_step; poll; poll 1; done" },
        /* pauses grow while nothing else comes in between */
        { { { 429, 0, NULL, NULL, "" }, { 429, 0, NULL, NULL, "" }, { 429, 0, NULL, NULL, "" } },
          "optim_step; poll; +1000 poll 1; +2000 poll 2; +4000 poll 3; done" },
        { { { 429, 0, NULL, NULL, "" }, { 408, 0, NULL, NULL, "" }, { 429, 0, NULL, NULL, "" } },
          "optim_step; poll; +1000 poll 1; +100 poll 2; +1000 poll 3; done" },
        { { { 429, 0, NULL, NULL, "" }, { 500, 0, NULL, NULL, "" }, { 429, 0, NULL, NULL, "" } },
          "optim_step; poll; +1000 poll 1; +100 poll 2; +1000 poll 3; done" },
        { { { 429, 0, NULL, NULL, "" }, { 400, 0, NULL, NULL, "" }, { 429, 0, NULL, NULL, "" } },
          "optim_step; poll; +1000 poll 1; +2000 poll 2; +4000 poll 3; done" },
        { { { 429, 0, NULL, NULL, "" }, { 200, 0, NULL, NULL, METADATA("7") }, { 429, 0, NULL, NULL, "" } },
          "optim_step; poll; +1000 poll 1; poll 2; +1000 poll 3; done" },
        { { { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL },
            { 500, 0, NULL, NULL, "" },
            { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL } },
          "optim_step; poll; +1000 poll 1; +100 poll 2; +1000 poll 3; done" },
        { { { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL },
            { 400, 0, NULL, NULL, "<html>" },
            { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL } },
          "optim_step; poll; +1000 poll 1; +100 poll 2; +1000 poll 3; done" },
        { { { 200, 0, NULL, NULL, "" }, { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL } },
          "optim_step; poll; +1000 poll 1; +2000 poll 2; done" },
        { { { 503, 0, "retry-after-ms", "0", "" }, { 429, 0, "retry-after-ms", "0", "" } },
          "optim_step; poll; +100 poll 1; +1000 poll 2; done" },
    };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_trainer *t = open_trainer(s);
    scene_shows(s, HIDE_NUMBERS);
    for (size_t i = 0; i < LEN(rows); i++) {
        for (size_t k = 0; k < LEN(rows[i].o) && (rows[i].o[k].status || rows[i].o[k].fault); k++)
            answer_with(s, POLL, &rows[i].o[k]);
        complete(s, "", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
        EXPECT_ROW(s, i, rows[i].seen);
        use_up(s, POLL);
    }
    tinkc_trainer_free(t);
    scene_end(s);
}

/* A poll says what was asked for, how often before, and how long the request took to be accepted. */
TEST(what_a_poll_says)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_trainer *t = open_trainer(s);
    tinkc_mock_once(scene_mock(s), NULL, API "optim_step",
                    &(tinkc_mock_answer){ .body = "{\"request_id\":\"mock-session-1:train:0:1\"}", .delay_ms = 1500 },
                    scene_err(s));
    answer(s, POLL, 408, "");
    answer(s, POLL, 200, METADATA("1000"));
    answer(s, POLL, 200, "{\"metrics\":{}}");
    size_t before = tinkc_mock_count(scene_mock(s), POLL);
    scene_shows(s, SHOW_BODIES);
    complete(s, "step", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
    EXPECT(s, "optim_step #1 "
              "{\"adam_params\":{\"learning_rate\":0.0001,\"beta1\":0.9,\"beta2\":0.95,\"eps\":1e-12,"
              "\"weight_decay\":0.0,\"grad_clip_norm\":0.0},\"model_id\":\"mock-session:train:0\","
              "\"seq_id\":1,\"type\":\"optim_step\"}; +1500 poll "
              "{\"request_id\":\"mock-session:train:0:1\",\"allow_metadata_only\":true}; +100 poll 1 "
              "{\"request_id\":\"mock-session:train:0:1\",\"allow_metadata_only\":true}; poll 2 "
              "{\"request_id\":\"mock-session:train:0:1\",\"allow_metadata_only\":false}; step: done");
    const tinkc_request *r = nth_request(scene_mock(s), POLL, before);
    assert_string_equal(request_header(r, "X-Tinker-Request-Type"), "OptimStep");
    assert_string_equal(request_header(r, "X-Tinker-Create-Promise-Roundtrip-Time"), "1.5");
    assert_string_equal(request_header(r, "Accept"), "application/json");
    scene_shows(s, 0);
    tinkc_batch *b = make_batch(s, 1);
    tinkc_mock_once(scene_mock(s), NULL, API "forward_backward",
                    &(tinkc_mock_answer){ .body = "{\"request_id\":\"mock-session-1:train:0:2\"}", .delay_ms = 2500 },
                    scene_err(s));
    tinkc_future *pass = follow(s, "pass", tinkc_forward_backward(t, b, TINKC_CROSS_ENTROPY, NULL, scene_err(s)));
    live(s, 2500);
    tinkc_future_cancel(pass);
    scene_forget(s);
    r = nth_request(scene_mock(s), POLL, before + 3);
    assert_string_equal(request_header(r, "X-Tinker-Request-Type"), "ForwardBackward");
    assert_string_equal(request_header(r, "X-Tinker-Create-Promise-Roundtrip-Time"), "2.5");
    tinkc_batch_free(b);
    tinkc_trainer_free(t);
    scene_end(s);
}

/* Answers that cost nothing are asked for at most ten times a second, then less and less, down to once; after a 429 from a second to
 * thirty. */
TEST(the_pace_of_polls)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_trainer *t = open_trainer(s);
    for (int i = 0; i < 8; i++)
        answer(s, POLL, 408, "");
    complete(s, "step", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
    EXPECT(s, "optim_step #1; poll; +100 poll 1; +200 poll 2; +400 poll 3; +800 poll 4; +1000 poll "
              "5; +1000 poll 6; +1000 poll 7; +1000 poll 8; step: done");
    for (int i = 0; i < 3; i++) { /* an answer begins the pauses again */
        answer(s, POLL, 429, "");
        answer(s, POLL, 429, "");
        answer(s, POLL, i ? 408 : 200, i ? "" : "{\"type\":\"try_again\"}");
    }
    complete(s, "step", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
    EXPECT(s, "optim_step #2; poll; +1000 poll 1; +2000 poll 2; +100 poll 3; +1000 poll 4; +2000 poll 5; "
              "+200 poll 6; +1000 poll 7; +2000 poll 8; +400 poll 9; step: done");
    for (int i = 0; i < 7; i++)
        answer(s, POLL, 429, "");
    complete(s, "step", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
    EXPECT(s, "optim_step #3; poll; +1000 poll 1; +2000 poll 2; +4000 poll 3; +8000 poll 4; +16000 "
              "poll 5; +30000 poll 6; +30000 poll 7; step: done");
    tinkc_trainer_free(t);
    scene_end(s);
}

/* No connection: 1 s, doubling to 30 s, without end; what comes in between begins it again. */
TEST(without_a_connection)
{
    static const outcome refused = { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_trainer *t = open_trainer(s);
    for (int i = 0; i < 8; i++)
        answer_with(s, POLL, &refused);
    answer(s, POLL, 408, QUEUE("active", ""));
    answer_with(s, POLL, &refused);
    complete(s, "step", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
    EXPECT(s, "optim_step #1; poll; +1000 poll 1; +2000 poll 2; +4000 poll 3; +8000 poll 4; +16000 poll "
              "5; +30000 poll 6; +30000 poll 7; +30000 poll 8; +100 poll 9; +1000 poll 10; step: done");
    tinkc_trainer_free(t);
    scene_end(s);
}

/* 400s of a proxy: 16 without a body for the pool, then 3 more for the request. */
TEST(budgets_of_400s)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_trainer *t = open_trainer(s);
    for (int i = 0; i < 30; i++)
        answer(s, POLL, 400, "");
    size_t before = tinkc_mock_count(scene_mock(s), POLL);
    tinkc_future *f = tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s));
    while (!tinkc_future_done(f))
        pass(s, settle(s));
    assert_int_equal(tinkc_mock_count(scene_mock(s), POLL) - before, 20);
    scene_forget(s);
    follow(s, "step", f);
    EXPECT(s, "step: BAD_REQUEST 400, may have run, in retrieval \"HTTP 400\"");
    use_up(s, POLL);
    for (int i = 0; i < 5; i++)
        answer(s, POLL, 400, "<html>");
    complete(s, "step", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
    EXPECT(s, "optim_step #2; poll; +100 poll 1; +200 poll 2; +400 poll 3; step: BAD_REQUEST 400, "
              "may have run, in retrieval \"HTTP 400: <html>\"");
    use_up(s, POLL);
    for (int i = 0; i < 7; i++) /* three more after a word of the service itself */
        answer(s, POLL, i == 3 ? 408 : 400, i == 3 ? QUEUE("active", "") : "<html>");
    complete(s, "step", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
    EXPECT(s, "optim_step #3; poll; +100 poll 1; +200 poll 2; +400 poll 3; +800 poll 4; +1000 poll "
              "5; +1000 poll 6; +1000 poll 7; step: done");
    tinkc_trainer_free(t);
    scene_end(s);
}

/* The state of the queue and its reason are events when they change; a pause is logged once a minute. */
TEST(the_queue_is_told)
{
    static const char *const answers[] = { QUEUE("active", ""),    QUEUE("paused_rate_limit", ""),
                                           PAUSED("full house"),   PAUSED("full"),
                                           PAUSED("full"),         PAUSED(""),
                                           QUEUE("unheard_of", "") };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_trainer *t = open_trainer(s);
    for (size_t i = 0; i < LEN(answers); i++)
        answer(s, POLL, 200, answers[i]);
    scene_shows(s, SHOW_EVENTS | SHOW_LOGS | SHOW_STATUS);
    complete(s, "step", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
    EXPECT(s, "optim_step #1; poll; [queue queue 1: unknown]; step is at stage 2, queue 1, 0 of 1, \"the "
              "service works on it\"; +100 poll 1; [queue queue 2: concurrent training clients rate "
              "limit hit]; warning: Training for mock-session:train:0 is paused. Reason: concurrent "
              "training clients rate limit hit.; step is at stage 2, queue 2, 0 of 1, \"paused by the "
              "service: concurrent training clients rate limit hit\"; +200 poll 2; [queue queue 3: full "
              "house]; step is at stage 2, queue 3, 0 of 1, \"paused by the service: full house\"; +400 "
              "poll 3; [queue queue 3: full]; step is at stage 2, queue 3, 0 of 1, \"paused by the "
              "service: full\"; +800 poll 4; +1000 poll 5; [queue queue 3: Tinker backend is running "
              "short on capacity, please wait]; step is at stage 2, queue 3, 0 of 1, \"paused by the "
              "service: Tinker backend is running short on capacity, please wait\"; +1000 poll 6; +1000 "
              "poll 7; step is at stage 4, queue 3, 1 of 1, \"done\"; step: done");
    tinkc_trainer_free(t);
    scene_end(s);
}

TEST(a_pause_is_logged_each_minute)
{
    static const struct {
        int64_t later_ms;
        const char *seen;
    } rows[] = { { 0, "optim_step; poll; warning: Training for mock-session:train:0 is paused. "
                      "Reason: full." },
                 { 59999, "optim_step; poll" },
                 { 1, "optim_step; poll; warning: Training for mock-session:train:0 is paused. "
                      "Reason: full." },
                 { 59999, "optim_step; poll" },
                 { 1, "optim_step; poll; warning: Training for mock-session:train:0 is paused. "
                      "Reason: full." } };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_trainer *t = open_trainer(s);
    for (size_t i = 0; i < LEN(rows); i++) {
        pass(s, rows[i].later_ms);
        scene_forget(s);
        scene_shows(s, SHOW_LOGS | HIDE_NUMBERS);
        answer(s, POLL, 408, PAUSED("full"));
        tinkc_future *f = begin_step(s, t);
        EXPECT_ROW(s, i, rows[i].seen);
        tinkc_future_cancel(f);
        scene_shows(s, 0);
        release(s, f);
    }
    tinkc_trainer_free(t);
    scene_end(s);
}

/* A repetition of a poll is an event of its future, and the future says what went wrong and for how long. */
TEST(a_failing_poll_is_seen)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_trainer *t = open_trainer(s);
    answer_with(s, POLL, &(outcome){ 503, 0, "Retry-After", "2", "{\"detail\":\"busy\"}" });
    answer_with(s, POLL, &(outcome){ 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL });
    scene_shows(s, SHOW_EVENTS | SHOW_STATUS);
    complete(s, "step", tinkc_optim_step(t, &(tinkc_adam)TINKC_ADAM_INIT, scene_err(s)));
    EXPECT(s, "optim_step #1; poll; [retry status 503 attempt 1 wait 2000 left -1: HTTP 503: "
              "busy]; step is at stage 2, queue 0, 0 of 1, SERVER x1 for 0, \"the result cannot be "
              "fetched: HTTP 503: busy, next try in 2.0 s\"; +2000 poll 1; [retry attempt 2 wait "
              "1000 left -1: connection refused]; step is at stage 2, queue 0, 0 of 1, CONNECTION "
              "x2 for 2000, \"the result cannot be fetched: connection refused, next try in 1.0 "
              "s\"; +1000 poll 2; step is at stage 4, queue 0, 1 of 1, \"done\"; step: done");
    tinkc_trainer_free(t);
    scene_end(s);
}

/* A large result waits until there is room for it (settings); a small one does not. */
TEST(room_for_results)
{
    static const struct {
        const char *metadata, *seen;
    } rows[] = { { METADATA("100"), "optim_step #1; poll; poll 1; optim_step #2; poll; +500 poll "
                                    "2; poll 1; step: done; step: done" },
                 { METADATA("4"), "optim_step #3; poll; poll 1; optim_step #4; poll; poll 1; step: "
                                  "done; +500 poll 2; step: done" } };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    answer_always(s, CONFIG, 200, "{\"inflight_response_bytes_semaphore_size\":10}");
    tinkc_trainer *t = open_trainer(s);
    for (size_t i = 0; i < LEN(rows); i++) {
        answer(s, POLL, 200, rows[i].metadata);
        tinkc_mock_once(scene_mock(s), NULL, POLL, &(tinkc_mock_answer){ .body = QUEUE("active", ""), .delay_ms = 500 },
                        scene_err(s));
        tinkc_future *f = begin_step(s, t);
        answer(s, POLL, 200, rows[i].metadata);
        tinkc_future *g = begin_step(s, t);
        finish(s, f, 4000);
        finish(s, g, 4000);
        EXPECT_ROW(s, i, rows[i].seen);
    }
    tinkc_trainer_free(t);
    scene_end(s);
}
