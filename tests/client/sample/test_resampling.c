/* test_resampling.c - samples and their repetitions (docs/failures.md, "resample"): what each answer to a submit or a poll leads
 * to, the back-off that all samples of an account share, and samples that nobody waits for any more. */
#include "support/client/client_scene.h"

#define SAMPLE API "asample"

static const tinkc_client_options one_attempt = { .max_retries = TINKC_ZERO, .retry_window_ms = TINKC_ZERO };

/* One answer of this kind to a submit, and one to a poll; then all goes well. */
TEST(each_answer_to_a_sample_or_its_poll_has_its_consequence)
{
    static const struct {
        outcome o;
        const char *submit, *poll;
    } rows[] = {
        { { 400, 0, NULL, NULL, "{\"detail\":\"bad\"}" },
          "asample #0; BAD_REQUEST 400 \"HTTP 400: bad\"",
          "asample #0; poll; BAD_REQUEST 400, may have run, in retrieval \"HTTP 400: bad\"" },
        { { 400, 0, NULL, NULL, "" },
          "asample #0; +1000 asample #0; poll; done",
          "asample #0; poll; +1000 poll 1; done" },
        { { 402, 0, NULL, NULL, "{\"detail\":\"pay\"}" },
          "asample #0; +1000 asample #0; poll; done",
          "asample #0; poll; +5000 poll 1; done" },
        { { 403, 0, NULL, NULL, "plain text" },
          "asample #0; FORBIDDEN 403 \"HTTP 403: plain text\"",
          "asample #0; poll; FORBIDDEN 403, may have run, in retrieval \"HTTP 403: plain text\"" },
        { { 404, 0, NULL, NULL, "" },
          "asample #0; NOT_FOUND 404 \"HTTP 404\"",
          "asample #0; poll; NOT_FOUND 404, may have run, in retrieval \"HTTP 404\"" },
        { { 408, 0, NULL, NULL, "" },
          "asample #0; +1000 asample #0; poll; done",
          "asample #0; poll; +100 poll 1; done" },
        { { 409, 0, NULL, NULL, "" },
          "asample #0; +1000 asample #0; poll; done",
          "asample #0; poll; CONFLICT 409, may have run, in retrieval \"HTTP 409\"" },
        { { 410, 0, NULL, NULL, "" },
          "asample #0; GONE 410 \"HTTP 410\"",
          "asample #0; poll; +375 asample #1; poll; done" },
        { { 422, 0, NULL, NULL, "{\"detail\":[{\"loc\":[\"body\",\"x\"],\"msg\":\"missing\"}]}" },
          "asample #0; UNPROCESSABLE 422 \"HTTP 422: body.x: missing\"",
          "asample #0; poll; UNPROCESSABLE 422, may have run, in retrieval \"HTTP 422: body.x: "
          "missing\"" },
        { { 429, 0, "Retry-After", "7", "" },
          "asample #0; +7000 asample #0; poll; done",
          "asample #0; poll; +7000 poll 1; done" },
        { { 429, 0, "retry-after-ms", "250", "" },
          "asample #0; +1000 asample #0; poll; done",
          "asample #0; poll; +250 poll 1; done" },
        { { 429, 0, NULL, NULL, "" },
          "asample #0; +1000 asample #0; poll; done",
          "asample #0; poll; +1000 poll 1; done" },
        { { 500, 0, NULL, NULL, "" },
          "asample #0; +1000 asample #0; poll; done",
          "asample #0; poll; +100 poll 1; done" },
        { { 500, 0, "x-should-retry", "false", "" },
          "asample #0; +1000 asample #0; poll; done",
          "asample #0; poll; +100 poll 1; done" },
        { { 503, 0, "Retry-After", "61", "" },
          "asample #0; +1000 asample #0; poll; done",
          "asample #0; poll; +60000 poll 1; done" },
        { { 600, 0, NULL, NULL, "" },
          "asample #0; SERVER 600, may have run \"HTTP 600\"",
          "asample #0; poll; +100 poll 1; done" },
        { { 302, 0, "Location", "/elsewhere", "" },
          "asample #0; HTTP 302 \"HTTP 302\"",
          "asample #0; poll; HTTP 302, may have run, in retrieval \"HTTP 302\"" },
        { { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL },
          "asample #0; +1000 asample #0; poll; done",
          "asample #0; poll; +1000 poll 1; done" },
        { { 200, TINKC_FAULT_RESET, NULL, NULL, "{}" },
          "asample #0; +1000 asample #0; poll; done",
          "asample #0; poll; +1000 poll 1; done" },
        { { 200, TINKC_FAULT_SILENT, NULL, NULL, "{}" },
          "asample #0; +61000 asample #0; poll; done",
          "asample #0; poll; +46000 poll 1; done" },
        { { 200, 0, NULL, NULL, "{}" },
          "asample #0; BAD_RESPONSE, may have run \"request_id: JSON: is missing at byte 2\"",
          "asample #0; poll; BAD_RESPONSE, may have run, in retrieval \"JSON: a sample result "
          "without sequences at byte 2\"" },
    };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    scene_shows(s, HIDE_KEYS);
    for (size_t i = 0; i < LEN(rows); i++)
        for (int poll = 0; poll < 2; poll++) {
            scene_renew(s, NULL); /* a back-off would last */
            tinkc_sampler *sampler = open_sampler(s, NULL);
            answer_with(s, poll ? POLL : SAMPLE, &rows[i].o);
            tinkc_future *f = begin_sample(s, "", sampler);
            finish(s, f, 300000);
            EXPECT_ROW(s, i, poll ? rows[i].poll : rows[i].submit);
            tinkc_sampler_free(sampler);
        }
    scene_end(s);
}

/* Without attempts of the call itself, the sampler repeats what may be repeated, under a new number. */
TEST(what_is_sampled_again)
{
    static const struct {
        outcome o;
        const char *submit, *poll;
    } rows[] = {
        { { 0, TINKC_FAULT_REFUSED, NULL, NULL, NULL },
          "asample #0; +75 asample #1; poll; done",
          "asample #0; poll; +1000 poll 1; done" },
        { { 200, TINKC_FAULT_SILENT, NULL, NULL, "{}" },
          "asample #0; +60075 asample #1; poll; done",
          "asample #0; poll; +46000 poll 1; done" },
        { { 408, 0, NULL, NULL, "" }, "asample #0; +75 asample #1; poll; done", "asample #0; poll; +100 poll 1; done" },
        { { 409, 0, NULL, NULL, "" },
          "asample #0; +75 asample #1; poll; done",
          "asample #0; poll; CONFLICT 409, may have run, in retrieval \"HTTP 409\"" },
        { { 404, 0, NULL, NULL, "" },
          "asample #0; NOT_FOUND 404 \"HTTP 404\"",
          "asample #0; poll; NOT_FOUND 404, may have run, in retrieval \"HTTP 404\"" },
        { { 410, 0, NULL, NULL, "{\"detail\":\"gone\"}" },
          "asample #0; GONE 410 \"HTTP 410: gone\"",
          "asample #0; poll; +75 asample #1; poll; done" },
        { { 500, 0, NULL, NULL, "" }, "asample #0; +75 asample #1; poll; done", "asample #0; poll; +100 poll 1; done" },
        { { 599, 0, NULL, NULL, "" }, "asample #0; +75 asample #1; poll; done", "asample #0; poll; +100 poll 1; done" },
        { { 600, 0, NULL, NULL, "" },
          "asample #0; SERVER 600, may have run \"HTTP 600\"",
          "asample #0; poll; +100 poll 1; done" },
        { { 200, 0, NULL, NULL, "not JSON" },
          "asample #0; BAD_RESPONSE, may have run \"JSON: an object is needed at byte 0\"",
          "asample #0; poll; BAD_RESPONSE, may have run, in retrieval \"JSON: an object is needed "
          "at byte 0\"" },
    };
    static const tinkc_retry_options retry = { .max_attempts = 3, .delay_base_ms = 100, .delay_max_ms = 150 };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(rows); i++)
        for (int poll = 0; poll < 2; poll++) {
            scene_renew(s, &one_attempt);
            tinkc_sampler *sampler = open_sampler(s, &retry);
            answer_with(s, poll ? POLL : SAMPLE, &rows[i].o);
            tinkc_future *f = begin_sample(s, "", sampler);
            finish(s, f, 100000);
            EXPECT_ROW(s, i, poll ? rows[i].poll : rows[i].submit);
            tinkc_sampler_free(sampler);
        }
    scene_end(s);
}

/* Pauses, attempts and progress of the sampler's own repetitions, where every submit fails. Pauses vary by a quarter, or as the
 * option says: here they are the shortest. */
TEST(how_often_and_how_long)
{
    static const struct {
        tinkc_retry_options o;
        const char *config, *seen;
    } rows[] = {
        { { .max_attempts = 3 },
          "{}",
          "asample; +375 asample; +750 asample; SERVER 500, may have run \"HTTP 500: no\"" },
        { { .delay_base_ms = 100, .delay_max_ms = 350, .max_attempts = 5 },
          "{}",
          "asample; +75 asample; +150 asample; +262 asample; +262 asample; SERVER 500, may have "
          "run \"HTTP 500: no\"" },
        { { .delay_base_ms = 1000, .delay_max_ms = 1000, .max_attempts = 4, .jitter = 0.9, .has_jitter = true },
          "{}",
          "asample; +100 asample; +100 asample; +100 asample; SERVER 500, may have run \"HTTP 500: "
          "no\"" },
        { { .delay_base_ms = TINKC_ZERO, .max_attempts = 3 },
          "{}",
          "asample; asample; asample; SERVER 500, may have run \"HTTP 500: no\"" },
        { { .has_jitter = true, .max_attempts = 9 },
          "{}",
          "asample; +500 asample; +1000 asample; +2000 asample; +4000 asample; +8000 asample; "
          "+10000 asample; +10000 asample; +10000 asample; SERVER 500, may have run \"HTTP 500: "
          "no\"" },
        { { .progress_timeout_ms = 20000 },
          "{}",
          "asample; +375 asample; +750 asample; +1500 asample; +3000 asample; +6000 asample; +7500 "
          "asample; +875 NO_PROGRESS, may have run \"no sample has finished within 20 s\"" },
        { { .progress_timeout_ms = 20000, .no_stuck_detection = true, .max_attempts = 8 },
          "{}",
          "asample; +375 asample; +750 asample; +1500 asample; +3000 asample; +6000 asample; +7500 "
          "asample; +7500 asample; SERVER 500, may have run \"HTTP 500: no\"" },
        { { .progress_timeout_ms = 20000, .max_attempts = 8 },
          "{\"sample_enable_stuck_detection\":false}",
          "asample; +375 asample; +750 asample; +1500 asample; +3000 asample; +6000 asample; +7500 "
          "asample; +7500 asample; SERVER 500, may have run \"HTTP 500: no\"" },
        { { .no_retries = true }, "{}", "asample; SERVER 500, may have run \"HTTP 500: no\"" },
        { { .max_attempts = 3 }, "{\"sample_no_retries\":true}", "asample; SERVER 500, may have run \"HTTP 500: no\"" },
    };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    answer_always(s, SAMPLE, 500, "{\"detail\":\"no\"}");
    scene_shows(s, HIDE_NUMBERS);
    for (size_t i = 0; i < LEN(rows); i++) {
        answer_always(s, CONFIG, 200, rows[i].config);
        scene_renew(s, &one_attempt);
        tinkc_sampler *sampler = open_sampler(s, &rows[i].o);
        tinkc_future *f = begin_sample(s, "", sampler);
        finish(s, f, 100000);
        EXPECT_ROW(s, i, rows[i].seen);
        tinkc_sampler_free(sampler);
    }
    scene_end(s);
}

/* A 429 holds all samples of the account back: for a second, or as long as it says; who comes meanwhile waits, too. */
TEST(a_shared_back_off)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_sampler *sampler = open_sampler(s, NULL);
    scene_shows(s, SHOW_EVENTS | SHOW_LOGS | HIDE_KEYS);
    answer(s, SAMPLE, 429, "{\"detail\":\"full\"}");
    tinkc_future *f = begin_sample(s, "first", sampler);
    pass(s, 999);
    tinkc_future *g = begin_sample(s, "too early", sampler);
    pass(s, 1);
    tinkc_future *h = begin_sample(s, "in time", sampler);
    finish(s, f, 100000);
    finish(s, g, 100000);
    finish(s, h, 100000);
    EXPECT(s, "asample #0; [backoff status 429 wait 1000 left -1: HTTP 429: full]; +1000 asample #0; "
              "asample #1; poll; poll; first: done; too early: done; asample #2; poll; in time: done");
    scene_shows(s, HIDE_KEYS);
    answer_with(s, SAMPLE, &(outcome){ 429, 0, "Retry-After", "4", "" });
    f = begin_sample(s, "first", sampler);
    g = begin_sample(s, "second", sampler);
    finish(s, f, 100000);
    finish(s, g, 100000);
    EXPECT(s, "asample #3; +4000 asample #3; asample #4; poll; poll; first: done; second: done");
    answer(s, SAMPLE, 429, "");
    f = begin_sample(s, "cancelled", sampler);
    tinkc_future_cancel(f);
    settle(s);
    live(s, 5000);
    EXPECT(s, "asample #5; cancelled: CANCELLED \"sample: cancelled\"");
    answer(s, POLL, 410, "{\"detail\":\"gone\"}"); /* and before it is sampled again */
    f = begin_sample(s, "cancelled", sampler);
    tinkc_future_cancel(f);
    live(s, 5000);
    EXPECT(s, "asample #6; poll; cancelled: CANCELLED \"sample: cancelled\"");
    tinkc_sampler_free(sampler);
    scene_end(s);
}

/* How many submits may be out: what the settings say; while a back-off is recent, fewer bytes. One that ends makes room. */
TEST(how_many_at_once)
{
    static const size_t wanted[2][2] = { { 14, 18 }, { 2, 4 } }; /* before and after nine were cancelled */
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    answer_always(s, CONFIG, 200,
                  "{\"sample_dispatch_bytes_semaphore_size\":1000,\"sample_max_concurrent_requests\":14}");
    for (int recent = 0; recent < 2; recent++) {
        scene_renew(s, NULL);
        tinkc_sampler *sampler = open_sampler(s, NULL);
        if (recent) {
            answer(s, SAMPLE, 429, "");
            answer(s, SAMPLE, 403, "");
            finish(s, begin_sample(s, "first", sampler), 10000);
        }
        answer_always_with(s, SAMPLE, &(outcome){ 0, TINKC_FAULT_SILENT, NULL, NULL, NULL });
        size_t before = tinkc_mock_count(scene_mock(s), SAMPLE);
        tinkc_future *many[18];
        for (size_t i = 0; i < LEN(many); i++)
            many[i] = begin_sample(s, "many", sampler);
        assert_int_equal(tinkc_mock_count(scene_mock(s), SAMPLE) - before, wanted[recent][0]);
        for (size_t i = 0; i < LEN(many); i += 2) {
            tinkc_future_cancel(many[i]);
            settle(s);
        }
        assert_int_equal(tinkc_mock_count(scene_mock(s), SAMPLE) - before, wanted[recent][1]);
        tinkc_sampler_free(sampler);
    }
    scene_end(s);
}

/* Samples that are cancelled while they are polled are reported where the service wants it, so many at a time, and as long as
 * it does. */
TEST(nobody_waits_any_more)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    answer_always(s, API "client/dynamic_config", 200,
                  "{\"refresh_interval_sec\":50,\"sample_cancel_enabled\":true,\"sample_cancel_max_"
                  "batch_size\":2}");
    tinkc_sampler *sampler = open_sampler(s, NULL);
    answer_always_with(s, POLL, &(outcome){ 0, TINKC_FAULT_SILENT, NULL, NULL, NULL });
    tinkc_mock_always(scene_mock(s), NULL, API "cancel_future", &(tinkc_mock_answer){ .body = "{}", .delay_ms = 100 },
                      scene_err(s));
    tinkc_future *f[6];
    for (size_t i = 0; i < LEN(f); i++)
        f[i] = begin_sample(s, "", sampler);
    scene_forget(s);
    scene_shows(s, SHOW_BODIES);
    for (size_t i = 0; i < 5; i++) {
        tinkc_future_cancel(f[i]);
        settle(s);
    }
    live(s, 1000);
    EXPECT(s, "cancel_future {\"request_id\":\"mock-request-1\"}; CANCELLED, may have run "
              "\"sample: cancelled\"; cancel_future {\"request_id\":\"mock-request-2\"}; "
              "CANCELLED, may have run \"sample: cancelled\"; CANCELLED, may have run \"sample: "
              "cancelled\"; CANCELLED, may have run \"sample: cancelled\"; CANCELLED, may have run "
              "\"sample: cancelled\"; +100 cancel_future {\"request_id\":\"mock-request-3\"}; "
              "cancel_future {\"request_id\":\"mock-request-4\"}; +100 cancel_future "
              "{\"request_id\":\"mock-request-5\"}");
    answer(s, API "cancel_future", 500, "");
    tinkc_future_cancel(f[5]);
    live(s, 3000);
    EXPECT(s, "cancel_future {\"request_id\":\"mock-request-6\"}; CANCELLED, may have run \"sample: "
              "cancelled\"; +1000 cancel_future again {\"request_id\":\"mock-request-6\"}");
    scene_shows(s, 0);
    answer_always(s, API "client/dynamic_config", 200, "{\"refresh_interval_sec\":50,\"sample_cancel_enabled\":false}");
    live(s, 50000);
    scene_forget(s);
    tinkc_future_cancel(begin_sample(s, "", sampler));
    EXPECT(s, "asample #6; poll; CANCELLED, may have run \"sample: cancelled\"");
    silence(s, SAMPLE); /* nor is it known what became of one that was being sent */
    tinkc_future_cancel(begin_sample(s, "", sampler));
    EXPECT(s, "asample #7; CANCELLED, may have run \"sample: cancelled\"");
    tinkc_sampler_free(sampler);
    scene_end(s);
}

/* What opening a sampler may be answered with. */
TEST(each_answer_to_opening_a_sampler_has_its_consequence)
{
    static const struct {
        tinkc_sampler_options o;
        outcome a;
        const char *seen;
    } rows[] = {
        { { .model_path = "tinker://r/sampler_weights/a" },
          { 404, 0, NULL, NULL, "{\"detail\":\"no model\"}" },
          "client/dynamic_config {\"sdk_version\":\"0.25.0\"}; create_session "
          "{\"tags\":[],\"user_metadata\":{},\"sdk_version\":\"0.25.0\",\"type\":\"create_"
          "session\"}; create_sampling_session "
          "{\"session_id\":\"mock-session\",\"sampling_session_seq_id\":0,\"model_path\":"
          "\"tinker://r/sampler_weights/a\",\"type\":\"create_sampling_session\"}; NOT_FOUND 404 "
          "\"HTTP 404: no model\"" },
        { { .base_model = "mock/nano", .model_path = "tinker://r/sampler_weights/a" },
          { 200, 0, NULL, NULL, "{}" },
          "client/dynamic_config {\"sdk_version\":\"0.25.0\"}; create_session "
          "{\"tags\":[],\"user_metadata\":{},\"sdk_version\":\"0.25.0\",\"type\":\"create_"
          "session\"}; create_sampling_session "
          "{\"session_id\":\"mock-session\",\"sampling_session_seq_id\":0,\"base_model\":\"mock/"
          "nano\",\"model_path\":\"tinker://r/sampler_weights/"
          "a\",\"type\":\"create_sampling_session\"}; BAD_RESPONSE \"sampling_session_id: JSON: is "
          "missing at byte 2\"" },
        { { .base_model = "mock/nano" },
          { 200, 0, NULL, NULL, "" },
          "client/dynamic_config {\"sdk_version\":\"0.25.0\"}; create_session "
          "{\"tags\":[],\"user_metadata\":{},\"sdk_version\":\"0.25.0\",\"type\":\"create_"
          "session\"}; create_sampling_session "
          "{\"session_id\":\"mock-session\",\"sampling_session_seq_id\":0,\"base_model\":\"mock/"
          "nano\",\"type\":\"create_sampling_session\"}; BAD_RESPONSE \"JSON: ends early at byte "
          "0\"" },
        { { .base_model = "mock/nano" },
          { 409, 0, NULL, NULL, "" },
          "client/dynamic_config {\"sdk_version\":\"0.25.0\"}; create_session "
          "{\"tags\":[],\"user_metadata\":{},\"sdk_version\":\"0.25.0\",\"type\":\"create_"
          "session\"}; create_sampling_session "
          "{\"session_id\":\"mock-session\",\"sampling_session_seq_id\":0,\"base_model\":\"mock/"
          "nano\",\"type\":\"create_sampling_session\"}; +500 create_sampling_session again (1) "
          "{\"session_id\":\"mock-session\",\"sampling_session_seq_id\":0,\"base_model\":\"mock/"
          "nano\",\"type\":\"create_sampling_session\"}; done" },
    };
    const tinkc_client_options o = { .max_retries = 1 };
    scene *s = scene_new(TINKC_MOCK_SERVICE, &o);
    for (size_t i = 0; i < LEN(rows); i++) {
        scene_renew(s, &o);
        complete(s, "", tinkc_health_check(scene_client(s), scene_err(s)));
        scene_forget(s);
        answer_with(s, API "create_sampling_session", &rows[i].a);
        scene_shows(s, SHOW_BODIES);
        complete(s, "", tinkc_sampler_open(scene_client(s), &rows[i].o, scene_err(s)));
        EXPECT_ROW(s, i, rows[i].seen);
    }
    scene_end(s);
}

/* What a sample and scores of a prompt ask for, and what comes back. */
TEST(a_sample_and_scores)
{
    static const int32_t ids[] = { 1, 2, 3, 4, 5 };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 3;
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_sampler *sampler = open_sampler(s, NULL);
    scene_shows(s, SHOW_BODIES);
    tinkc_future *f = follow(s, "sample", tinkc_sample(sampler, ids, 4, 2, &o, scene_err(s)));
    finish(s, f, 1000);
    const tinkc_samples *r = tinkc_future_samples(f, 0, scene_err(s));
    assert_int_equal(tinkc_samples_count(r), 2);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(tinkc_samples_at(r, i)->tokens.len, 3);
        assert_int_equal(tinkc_samples_at(r, i)->logprobs.len, 3);
        assert_int_equal(tinkc_samples_at(r, i)->stop_reason, TINKC_STOP_LENGTH);
    }
    f = follow(s, "scores", tinkc_logprobs(sampler, ids, 5, scene_err(s)));
    finish(s, f, 1000);
    assert_int_equal(tinkc_future_logprobs(f, 0, scene_err(s)).len, 5);
    EXPECT(s, "asample #0 "
              "{\"num_samples\":2,\"prompt\":{\"chunks\":[{\"tokens\":[1,2,3,4],\"type\":\"encoded_"
              "text\"}]},\"sampling_params\":{\"max_tokens\":3,\"temperature\":1.0,\"top_k\":-1,\"top_"
              "p\":1.0},\"sampling_session_id\":\"mock-session:sample:0\",\"seq_id\":0,\"prompt_"
              "logprobs\":false,\"topk_prompt_logprobs\":0,\"type\":\"sample\"}; poll "
              "{\"request_id\":\"mock-request-1\",\"allow_metadata_only\":true}; sample: done; "
              "asample #1 "
              "{\"num_samples\":1,\"prompt\":{\"chunks\":[{\"tokens\":[1,2,3,4,5],\"type\":\"encoded_"
              "text\"}]},\"sampling_params\":{\"max_tokens\":1,\"temperature\":1.0,\"top_k\":-1,\"top_"
              "p\":1.0},\"sampling_session_id\":\"mock-session:sample:0\",\"seq_id\":1,\"prompt_"
              "logprobs\":true,\"topk_prompt_logprobs\":0,\"type\":\"sample\"}; poll "
              "{\"request_id\":\"mock-request-2\",\"allow_metadata_only\":true}; scores: done");
    const tinkc_request *poll = nth_request(scene_mock(s), POLL, 0);
    assert_string_equal(request_header(poll, "Accept"), "application/x-protobuf");
    assert_string_equal(request_header(poll, "X-Tinker-Request-Type"), "Sample");
    tinkc_sampler_free(sampler);
    scene_end(s);
}
