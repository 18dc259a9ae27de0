/* test_sample.c - samplers on the mock: samples, scores, streams, copies, backoff. */
#include <math.h>

#include "support/client/api_support.h"

typedef struct fixture {
    tinkc_error err;
    tinkc_mock *mock;
    tinkc_client *client;
    tinkc_sampler *sampler;
} fixture;

static const int32_t prompt[] = { 1, 2, 3, 4, 5 };

static int setup(void **state)
{
    fixture *x = calloc(1, sizeof *x);
    x->mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &x->err);
    x->client = mock_client(x->mock, NULL, &x->err);
    x->sampler = tinkc_sampler_new(x->client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &x->err);
    assert_ok(&x->err);
    *state = x;
    return 0;
}

static int teardown(void **state)
{
    fixture *x = *state;
    tinkc_sampler_free(x->sampler);
    tinkc_client_free(x->client);
    tinkc_mock_free(x->mock);
    free(x);
    return 0;
}

static tinkc_sampling short_answer(void)
{
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 6;
    return o;
}

TEST_WITH(samples_come_with_logprobs, setup, teardown)
{
    fixture *x = *state;
    tinkc_sampling o = short_answer();
    o.topk_prompt_logprobs = 3;
    o.prompt_logprobs = true;
    tinkc_future *f = tinkc_sample(x->sampler, prompt, 5, 2, &o, &x->err);
    const tinkc_samples *s = tinkc_future_samples(f, PATIENCE_MS, &x->err);
    assert_ok(&x->err);
    assert_int_equal(tinkc_samples_count(s), 2);
    assert_int_equal(tinkc_samples_at(s, 1)->tokens.len, 6);
    assert_int_equal(tinkc_samples_at(s, 1)->logprobs.len, 6);
    assert_int_equal(tinkc_samples_at(s, 0)->stop_reason, TINKC_STOP_LENGTH);
    assert_true(isnan(tinkc_samples_prompt_logprobs(s).data[0]));
    const int32_t *ids;
    assert_int_equal(tinkc_samples_topk(s, 0, &ids, NULL), 0);
    assert_int_equal(tinkc_samples_topk(s, 1, &ids, NULL), 3);
    assert_string_equal((const char *)nth_request(x->mock, "/api/v1/asample", 0)->body.data,
                        "{\"num_samples\":2,\"prompt\":{\"chunks\":[{\"tokens\":[1,2,3,4,"
                        "5],\"type\":\"encoded_text\"}]},\"sampling_params\":{\"max_tokens\":6,\"temperature\":1.0,"
                        "\"top_k\":-1,\"top_p\":1.0}"
                        ",\"sampling_session_id\":\"mock-session-1:sample:0\",\"seq_id\":0,\"prompt_logprobs\":true"
                        ",\"topk_prompt_logprobs\":3,\"type\":\"sample\"}");
    assert_string_equal(request_header(nth_request(x->mock, "/api/v1/asample", 0), "X-Tinker-Sampling-Backpressure"),
                        "1");
    tinkc_future_free(f);
}

TEST_WITH(new_tokens_have_candidates_too, setup, teardown)
{
    fixture *x = *state;
    tinkc_sampling o = short_answer();
    o.topk_sample_logprobs = 2;
    o.prompt_logprobs = true;
    o.prompt_logprobs_last_n = 2;
    tinkc_future *f = tinkc_sample(x->sampler, prompt, 5, 3, &o, &x->err);
    const tinkc_samples *s = tinkc_future_samples(f, PATIENCE_MS, &x->err);
    assert_ok(&x->err);
    const int32_t *ids, *first = NULL;
    const float *logprobs;
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < 6; i++) {
            assert_int_equal(tinkc_samples_sampled_topk(s, k, i, &ids, &logprobs), 2);
            assert_true(ids && logprobs && logprobs[0] > logprobs[1]);
            assert_true(i || k || (first = ids));
            assert_true(i || !k || ids != first); /* each sequence has its own */
        }
    assert_int_equal(tinkc_samples_sampled_topk(s, 2, 6, &ids, NULL), 0);
    assert_null(ids);
    assert_int_equal(tinkc_samples_sampled_topk(s, 3, 0, NULL, &logprobs), 0);
    assert_null(logprobs);
    assert_int_equal(tinkc_samples_sampled_topk(NULL, 0, 0, NULL, NULL), 0);
    assert_int_equal(tinkc_samples_topk(s, 1, NULL, NULL), 0);
    tinkc_f32s p = tinkc_samples_prompt_logprobs(s);
    assert_true(p.len == 5 && isnan(p.data[2]) && !isnan(p.data[3]) && !isnan(p.data[4]));
    assert_non_null(strstr((const char *)nth_request(x->mock, "/api/v1/asample", 0)->body.data,
                           ",\"topk_prompt_logprobs\":0,\"topk_sample_logprobs\":2,"
                           "\"prompt_logprobs_last_n\":2,\"type\":\"sample\"}"));
    tinkc_future_free(f);
    o.prompt_logprobs = false;
    assert_null(tinkc_sample(x->sampler, prompt, 5, 1, &o, &x->err));
    assert_non_null(strstr(x->err.message, "prompt_logprobs_last_n: needs"));
    x->err = (tinkc_error){ 0 };
    o = short_answer();
    o.topk_sample_logprobs = -1;
    assert_null(tinkc_sample(x->sampler, prompt, 5, 1, &o, &x->err));
    assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
    x->err = (tinkc_error){ 0 };
}

/* What lies before the last tokens is not scored; a service that scores it has not read the number. */
TEST_WITH(scores_that_were_not_asked_for_are_an_error, setup, teardown)
{
    fixture *x = *state;
    static const struct {
        const char *logprobs, *message;
    } rows[] = {
        { "[null,null,null,-1,-2]", NULL },
        { "[null,null,-3,-1,-2]", "before the last 2 tokens" },
        { "[0,null,null,-1,-2]", "before the last 2 tokens" },
    };
    tinkc_sampling o = short_answer();
    o.prompt_logprobs = true;
    o.prompt_logprobs_last_n = 2;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        char body[200];
        (void)snprintf(body, sizeof body,
                       "{\"sequences\":[{\"stop_reason\":\"stop\",\"tokens\":[7]}],"
                       "\"prompt_logprobs\":%s,\"type\":\"sample\"}",
                       rows[i].logprobs);
        tinkc_mock_always(x->mock, NULL, "/api/v1/retrieve_future", &(tinkc_mock_answer){ .body = body }, &x->err);
        tinkc_future *f = tinkc_sample(x->sampler, prompt, 5, 1, &o, &x->err);
        assert_int_equal(tinkc_future_wait(f, PATIENCE_MS, &err), !rows[i].message);
        assert_int_equal(err.code, rows[i].message ? TINKC_E_BAD_RESPONSE : TINKC_OK);
        assert_non_null(strstr(err.message, rows[i].message ? rows[i].message : ""));
        tinkc_future_free(f);
    }
}

TEST_WITH(a_sample_streams_its_tokens, setup, teardown)
{
    fixture *x = *state;
    tinkc_sampling o = short_answer();
    tinkc_deltas *d = tinkc_sample_stream(x->sampler, prompt, 5, &o, &x->err);
    assert_ok(&x->err);
    size_t n = 0;
    const tinkc_delta *delta;
    bool last = false;
    while ((delta = tinkc_deltas_next(d, PATIENCE_MS, &x->err)) != NULL) {
        n += delta->tokens.len;
        assert_int_equal(delta->logprobs.len, delta->tokens.len);
        last = delta->last;
    }
    assert_ok(&x->err);
    assert_true(last);
    assert_int_equal(n, 6);
    tinkc_deltas_free(d);
    tinkc_mock_always(x->mock, "POST", "/api/v1/stream_sample", &(tinkc_mock_answer){ .status = 404 }, &x->err);
    d = tinkc_sample_stream(x->sampler, prompt, 5, &o, &x->err);
    assert_null(tinkc_deltas_next(d, PATIENCE_MS, &x->err));
    assert_int_equal(x->err.code, TINKC_E_UNSUPPORTED);
    tinkc_deltas_free(d);
}

/* What other services put around the tokens: named events without data, and an end of their own. */
TEST_WITH(streams_with_pings_and_done, setup, teardown)
{
    static const char body[] = ": hello\n\nevent: ping\n\n"
                               "data: {\"event_type\":\"token\",\"token_id\":7,\"logprob\":-0.5}\n\n"
                               "event: ping\ndata:\n\ndata: [DONE]\n\n";
    fixture *x = *state;
    tinkc_sampling o = short_answer();
    tinkc_mock_always(x->mock, "POST", "/api/v1/stream_sample", &(tinkc_mock_answer){ .body = body }, &x->err);
    tinkc_deltas *d = tinkc_sample_stream(x->sampler, prompt, 5, &o, &x->err);
    const tinkc_delta *delta;
    size_t n = 0;
    bool last = false;
    while ((delta = tinkc_deltas_next(d, PATIENCE_MS, &x->err)) != NULL) {
        n += delta->tokens.len;
        last = delta->last;
    }
    assert_ok(&x->err);
    assert_true(last);
    assert_int_equal(n, 1);
    tinkc_deltas_free(d);
}

/* The service names each sequence when it accepts a sample; the names of the attempt that succeeded
 * count. */
TEST_WITH(sequences_have_names, setup, teardown)
{
    fixture *x = *state;
    static const struct {
        const char *accepted; /* the answer to asample, less its beginning */
        const char *names[2];
        const char *error; /* NULL = the sample succeeds */
    } rows[] = {
        { "\"sample_sequence_ids\":[\"s/0\",\"s/1\"]", { "s/0", "s/1" }, NULL },
        { "\"sample_sequence_ids\":null", { "", "" }, NULL },
        { "\"sample_sequence_ids\":[]", { "", "" }, NULL },
        { "\"x\":0", { "", "" }, NULL },
        { "\"sample_sequence_ids\":[\"s/0\"]", { NULL }, "sample result: expected 2 names of sequences, got 1" },
    };
    tinkc_sampling o = short_answer();
    tinkc_future *f = tinkc_sample(x->sampler, prompt, 5, 2, &o, &x->err); /* mock-request-1 */
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    tinkc_future_free(f);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char accepted[200];
        (void)snprintf(accepted, sizeof accepted, "{\"request_id\":\"mock-request-1\",%s}", rows[i].accepted);
        if (i < 2) { /* an attempt that is lost; its names are not those of the next */
            tinkc_mock_once(x->mock, NULL, "/api/v1/asample",
                            &(tinkc_mock_answer){ .body = "{\"request_id\":\"lost\","
                                                          "\"sample_sequence_ids\":[\"l\"]}" },
                            &x->err);
            tinkc_mock_once(x->mock, NULL, "/api/v1/retrieve_future", &(tinkc_mock_answer){ .status = 410 }, &x->err);
        }
        tinkc_mock_once(x->mock, NULL, "/api/v1/asample", &(tinkc_mock_answer){ .body = accepted }, &x->err);
        f = tinkc_sample(x->sampler, prompt, 5, 2, &o, &x->err);
        assert_true(run_until_done(x->mock, f, 60000));
        const tinkc_samples *s = tinkc_future_samples(f, 0, &x->err);
        if (rows[i].error) {
            assert_string_equal(x->err.message, rows[i].error);
            assert_int_equal(x->err.code, TINKC_E_BAD_RESPONSE);
            x->err = (tinkc_error){ 0 };
        } else {
            assert_ok(&x->err);
            for (size_t k = 0; k < 2; k++)
                assert_string_equal(tinkc_samples_sequence_id(s, k), rows[i].names[k]);
        }
        assert_string_equal(tinkc_samples_sequence_id(s, 2), "");
        tinkc_future_free(f);
    }
}

/* A property of the sampler: every sample asks for it, a copy's too. */
TEST_WITH(stability_info_is_asked_for, setup, teardown)
{
    fixture *x = *state;
    static const char field[] = "\"record_stability_info\"";
    tinkc_sampling o = short_answer();
    tinkc_text text = { 0 };
    tinkc_client_options options = { .transport = tinkc_mock_transport(x->mock), .clock = tinkc_mock_clock(x->mock) };
    tinkc_sampler *with = tinkc_sampler_new(
        x->client, &(tinkc_sampler_options){ .base_model = "mock/nano", .record_stability_info = true }, &x->err);
    tinkc_sampler *copy = tinkc_sampler_import(tinkc_sampler_export(with, &text, &x->err), &options, &x->err);
    tinkc_trainer *trainer = tinkc_trainer_new(x->client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &x->err);
    tinkc_future *opened =
        tinkc_trainer_open_sampler(trainer, &(tinkc_sampler_options){ .record_stability_info = true }, &x->err);
    tinkc_sampler *trained = tinkc_future_sampler(opened, PATIENCE_MS, &x->err);
    tinkc_sampler *all[] = { with, copy, trained, x->sampler };
    assert_ok(&x->err);
    tinkc_mock_forget(x->mock);
    for (size_t i = 0; i < 4; i++) {
        tinkc_future *f = tinkc_sample(all[i], prompt, 5, 1, &o, &x->err);
        assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
        const char *body = (const char *)nth_request(x->mock, "/api/v1/asample", i)->body.data;
        assert_int_equal(strstr(body, field) != NULL, i < 3);
        assert_true(i == 3 || strstr(body, "\"record_stability_info\":true,\"type\""));
        tinkc_future_free(f);
    }
    assert_null(tinkc_sampler_open(x->client, &(tinkc_sampler_options){ .base_model = "a", .reserved_bools = { true } },
                                   &x->err));
    assert_string_equal(x->err.message, "reserved: must be zero");
    tinkc_future_free(opened);
    tinkc_trainer_free(trainer);
    tinkc_sampler_free(trained);
    tinkc_sampler_free(copy);
    tinkc_sampler_free(with);
    tinkc_text_free(&text);
}

/* The number of the first sample that x's service has got since the last call. */
static int64_t first_number(fixture *x)
{
    const char *body = (const char *)nth_request(x->mock, "/api/v1/asample", 0)->body.data;
    const char *at = strstr(body, "\"seq_id\":");
    assert_non_null(at);
    int64_t number = strtoll(at + strlen("\"seq_id\":"), NULL, 10);
    tinkc_mock_forget(x->mock);
    return number;
}

/* Where the service gives copies no place, their numbers begin far away from each other's. */
TEST_WITH(copies_have_numbers_of_their_own, setup, teardown)
{
    fixture *x = *state;
    tinkc_sampling o = short_answer();
    tinkc_text text = { 0 };
    tinkc_client_options options = { .transport = tinkc_mock_transport(x->mock), .clock = tinkc_mock_clock(x->mock) };
    int64_t numbers[3];
    for (size_t i = 0; i < 3; i++) { /* two copies, then the original */
        tinkc_sampler *copy =
            i < 2 ? tinkc_sampler_import(tinkc_sampler_export(x->sampler, &text, &x->err), &options, &x->err) : NULL;
        tinkc_future *f = tinkc_sample(copy ? copy : x->sampler, prompt, 5, 1, &o, &x->err);
        assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
        numbers[i] = first_number(x);
        tinkc_future_free(f);
        tinkc_sampler_free(copy);
    }
    assert_int_equal(numbers[2], 0);
    assert_true(llabs(numbers[0] - numbers[1]) >= 1000000000);
    assert_true(numbers[0] >= 1000000000 && numbers[1] >= 1000000000);
    tinkc_text_free(&text);
}

TEST_WITH(travels_to_another_client, setup, teardown)
{
    fixture *x = *state;
    tinkc_sampling o = short_answer();
    tinkc_text text = { 0 };
    const char *exported = tinkc_sampler_export(x->sampler, &text, &x->err);
    assert_ok(&x->err);
    tinkc_client_options options = { .transport = tinkc_mock_transport(x->mock), .clock = tinkc_mock_clock(x->mock) };
    tinkc_mock_forget(x->mock);
    tinkc_sampler *copy = tinkc_sampler_import(exported, &options, &x->err);
    assert_ok(&x->err);
    assert_int_equal(tinkc_mock_count(x->mock, NULL), 0);
    assert_string_equal(tinkc_sampler_id(copy), tinkc_sampler_id(x->sampler));
    tinkc_future *f = tinkc_sample(copy, prompt, 5, 1, &o, &x->err);
    assert_true(tinkc_future_wait(f, PATIENCE_MS, &x->err));
    assert_ok(&x->err);
    assert_int_equal(tinkc_mock_count(x->mock, "/api/v1/client/config"), 0);
    assert_int_equal(tinkc_mock_count(x->mock, "/api/v1/create_session"), 0);
    assert_int_equal(tinkc_mock_count(x->mock, "/api/v1/asample"), 1);
    tinkc_future_free(f);
    tinkc_sampler_free(copy);
    tinkc_text_free(&text);
}

/* A copy of x->sampler for a service that hands out the copies' places. */
static tinkc_sampler *copy_that_asks(fixture *x)
{
    tinkc_error *err = &x->err;
    tinkc_text text = { 0 };
    tinkc_mock_always(x->mock, "POST", "/api/v1/client/config",
                      &(tinkc_mock_answer){ .body = "{\"sample_join_sampling_session\":true}" }, err);
    tinkc_client *other = mock_client(x->mock, NULL, err);
    tinkc_sampler *original = tinkc_sampler_new(other, &(tinkc_sampler_options){ .base_model = "mock/nano" }, err);
    tinkc_client_options o = { .transport = tinkc_mock_transport(x->mock), .clock = tinkc_mock_clock(x->mock) };
    tinkc_sampler *copy = tinkc_sampler_import(tinkc_sampler_export(original, &text, err), &o, err);
    assert_ok(err);
    tinkc_sampler_free(original);
    tinkc_client_free(other);
    tinkc_text_free(&text);
    tinkc_mock_forget(x->mock);
    return copy;
}

static const char join[] = "/api/v1/join_sampling_session";
static const tinkc_mock_answer place = { .body = "{\"type\":\"join_sampling_session\",\"client_counter\":7}",
                                         .delay_ms = 50 };

TEST_WITH(a_copy_asks_for_its_place, setup, teardown)
{
    enum { N = 5 };
    fixture *x = *state;
    tinkc_sampling o = short_answer();
    tinkc_future *all[N];
    tinkc_sampler *copy = copy_that_asks(x);
    assert_int_equal(tinkc_mock_count(x->mock, NULL), 0);
    tinkc_mock_once(x->mock, "POST", join, &place, &x->err);
    for (int i = 0; i < N; i++)
        all[i] = tinkc_sample(copy, prompt, 5, 1, &o, &x->err);
    (void)tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    assert_int_equal(tinkc_mock_count(x->mock, "/api/v1/asample"), 0);
    tinkc_future_cancel(all[1]); /* while the others wait on */
    for (int i = 0; i < N; i++)
        assert_true(run_until_done(x->mock, all[i], 60 * 1000));
    assert_int_equal(tinkc_mock_count(x->mock, join), 1);
    assert_non_null(
        strstr((const char *)nth_request(x->mock, join, 0)->body.data, "\"type\":\"join_sampling_session\""));
    for (int i = 0; i < N; i++) {
        tinkc_error err = { 0 };
        assert_int_equal(tinkc_future_wait(all[i], 0, &err), i != 1);
        assert_int_equal(err.code, i == 1 ? TINKC_E_CANCELLED : 0);
        tinkc_future_free(all[i]);
    }
    for (int i = 0; i < N - 1; i++) { /* in the order of the calls */
        char number[40];
        snprintf(number, sizeof number, "\"seq_id\":70000000%02d,", i);
        assert_non_null(strstr((const char *)nth_request(x->mock, "/api/v1/asample", (size_t)i)->body.data, number));
    }
    tinkc_sampler_free(copy);
}

TEST_WITH(a_copy_without_a_place_asks_again, setup, teardown)
{
    static const tinkc_mock_answer bad[] = {
        { .status = 403, .body = "{\"error\":\"no\"}" },
        { .body = "{\"client_counter\":0}" },
        { .body = "{\"client_counter\":9223372037}" },
        { .body = "[]" },
    };
    fixture *x = *state;
    tinkc_sampling o = short_answer();
    tinkc_sampler *copy = copy_that_asks(x);
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        tinkc_mock_answer answer = bad[k];
        answer.delay_ms = 50;
        tinkc_mock_once(x->mock, "POST", join, &answer, &x->err);
        tinkc_future *two[2];
        for (int i = 0; i < 2; i++)
            two[i] = tinkc_sample(copy, prompt, 5, 1, &o, &x->err);
        for (int i = 0; i < 2; i++) {
            tinkc_error err = { 0 };
            assert_true(run_until_done(x->mock, two[i], 60 * 1000));
            assert_false(tinkc_future_wait(two[i], 0, &err));
            assert_int_equal(err.code, k ? TINKC_E_BAD_RESPONSE : TINKC_E_FORBIDDEN);
            tinkc_future_free(two[i]);
        }
    }
    assert_int_equal(tinkc_mock_count(x->mock, join), 4);
    assert_int_equal(tinkc_mock_count(x->mock, "/api/v1/asample"), 0);
    /* The only one who waits goes: so does the question. */
    tinkc_mock_once(x->mock, "POST", join, &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &x->err);
    tinkc_future *f = tinkc_sample(copy, prompt, 5, 1, &o, &x->err);
    (void)tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    tinkc_future_free(f);
    tinkc_mock_once(x->mock, "POST", join, &place, &x->err);
    f = tinkc_sample(copy, prompt, 5, 1, &o, &x->err);
    assert_true(run_until_done(x->mock, f, 60 * 1000));
    assert_true(tinkc_future_wait(f, 0, &x->err));
    assert_ok(&x->err);
    tinkc_future_free(f);
    tinkc_sampler_free(copy);
}

/* Everything goes while the question is out. */
TEST_WITH(a_copy_ends_while_it_asks, setup, teardown)
{
    fixture *x = *state;
    tinkc_sampling o = short_answer();
    tinkc_sampler *copy = copy_that_asks(x);
    tinkc_mock_always(x->mock, "POST", join, &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &x->err);
    tinkc_future *f = tinkc_sample(copy, prompt, 5, 1, &o, &x->err);
    tinkc_future *g = tinkc_sample(copy, prompt, 5, 1, &o, &x->err);
    (void)tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
    tinkc_sampler_free(copy);
    tinkc_future_free(f);
    tinkc_future_free(g);
}

TEST_WITH(sampler_of_a_trainer, setup, teardown)
{
    fixture *x = *state;
    tinkc_trainer *t = tinkc_trainer_new(x->client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &x->err);
    tinkc_sampler *s = tinkc_trainer_sampler(t, &x->err);
    assert_ok(&x->err);
    assert_non_null(strstr((const char *)nth_request(x->mock, "/api/v1/save_weights_for_sampler", 0)->body.data,
                           "\"sampling_session_seq_id\":1"));
    tinkc_future *f = tinkc_sampler_info(s, &x->err);
    assert_string_equal(tinkc_future_sampler_record(f, PATIENCE_MS, &x->err)->base_model, "mock/nano");
    tinkc_future_free(f);
    tinkc_sampler_free(s);
    tinkc_trainer_free(t);
}

typedef struct listening {
    tinkc_deltas *deltas;
    size_t events, tokens;
    bool last;
    int32_t code; /* how it ended */
} listening;

static void take_tokens(const tinkc_event *event, void *user)
{
    listening *l = user;
    tinkc_error err = { 0 };
    const tinkc_delta *delta;
    assert_int_equal(event->kind, TINKC_EVENT_TOKENS);
    l->events++;
    while ((delta = tinkc_deltas_next(l->deltas, 0, &err)) != NULL) {
        l->tokens += delta->tokens.len;
        l->last |= delta->last;
    }
    if (err.code != TINKC_E_TIMEOUT)
        l->code = err.code ? err.code : -1; /* -1: a clean end */
}

/* Two tokens a second apart and the end: each is an event, and no call waits. */
TEST_WITH(tokens_are_events, setup, teardown)
{
    fixture *x = *state;
    static const char body[] = "data: {\"event_type\":\"token\",\"token_id\":7}\n\n"
                               "data: {\"event_type\":\"token\",\"token_id\":8}\n\n"
                               "data: {\"event_type\":\"done\",\"finish_reason\":\"stop\"}\n\n";
    tinkc_sampling o = short_answer();
    tinkc_mock_always(x->mock, "POST", "/api/v1/stream_sample",
                      &(tinkc_mock_answer){ .body = body, .drip_ms = 20, .delay_ms = 1000 }, &x->err);
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    listening l = { .deltas = tinkc_sample_stream(x->sampler, prompt, 5, &o, &x->err) };
    assert_true(tinkc_deltas_on_event(l.deltas, queue, TINKC_EVENT_TOKENS, take_tokens, &l, &x->err));
    assert_int_equal(tinkc_queue_run(queue, 0, &x->err), 0);
    size_t seen_one = 0;
    for (int i = 0; i < 400 && !l.last; i++) {
        tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
        tinkc_mock_advance(x->mock, 20);
        tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err);
        tinkc_queue_run(queue, 0, &x->err);
        seen_one += l.tokens == 1;
    }
    assert_ok(&x->err);
    assert_true(l.last && l.tokens == 2 && seen_one > 0);
    assert_true(l.events > 2);
    tinkc_deltas_free(l.deltas);
    tinkc_queue_free(queue);
}

/* A late subscriber gets what is there already; an error is an event, too. */
TEST_WITH(the_end_of_a_stream_is_an_event, setup, teardown)
{
    fixture *x = *state;
    tinkc_sampling o = short_answer();
    tinkc_mock_always(x->mock, "POST", "/api/v1/stream_sample",
                      &(tinkc_mock_answer){ .status = 403, .body = "{\"detail\":\"no\"}" }, &x->err);
    tinkc_queue *queue = tinkc_queue_new(x->client, &x->err);
    listening l = { .deltas = tinkc_sample_stream(x->sampler, prompt, 5, &o, &x->err) };
    tinkc_mock_settle(x->mock, PATIENCE_MS, &x->err); /* it is over */
    assert_true(tinkc_deltas_on_event(l.deltas, queue, TINKC_EVENT_TOKENS, take_tokens, &l, &x->err));
    assert_int_equal(tinkc_queue_run(queue, PATIENCE_MS, &x->err), 1);
    assert_int_equal(l.code, TINKC_E_FORBIDDEN);
    tinkc_deltas_free(l.deltas);
    assert_false(tinkc_deltas_on_event(NULL, queue, 1, take_tokens, &l, &x->err));
    assert_int_equal(x->err.code, TINKC_E_ARGUMENT);
    x->err = (tinkc_error){ 0 };
    tinkc_queue_free(queue);
}

/* ---- what else a prompt can be asked for ---- */

#define SEQUENCE                                                                                                       \
    "\"type\":\"sample\",\"sequences\":[{\"stop_reason\":\"length\",\"tokens\":[7],"                                   \
    "\"logprobs\":[-0.5]}]"
#define TARGETS                                                                                                        \
    "\"target_prompt_logprobs\":{\"data\":[-1.0,0.0,-2.0,-3.0],\"dtype\":\"float32\",\"shape\":["                      \
    "2,2]}"
#define ALT(ids)                                                                                                       \
    "\"prompt_alt_tokens\":{\"tokens\":{\"data\":" ids ",\"dtype\":\"int64\",\"shape\":[2,2]},"                        \
    "\"logprobs\":{\"data\":[-0.1,-0.2,-0.3,-0.4],\"dtype\":\"float32\",\"shape\":[2,2]}}"

static tinkc_sampling prompt_work(void)
{
    static const int32_t targets[] = { 5, -1, 6, 7 };
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 1;
    o.target_tokens = targets;
    o.targets_each = 2;
    o.prompt_alt_tokens = 2;
    return o;
}

TEST_WITH(prompts_are_scored_and_drawn_from, setup, teardown)
{
    fixture *x = *state;
    tinkc_sampling o = prompt_work();
    const int32_t *ids;
    const float *logprobs;
    tinkc_mock_always(x->mock, NULL, "/api/v1/retrieve_future",
                      &(tinkc_mock_answer){ .body = "{" SEQUENCE "," TARGETS "," ALT("[11,12,13,14]") "}" }, &x->err);
    tinkc_future *f = tinkc_sample(x->sampler, (int32_t[]){ 1, 2, 3 }, 3, 1, &o, &x->err);
    const tinkc_samples *s = tinkc_future_samples(f, PATIENCE_MS, &x->err);
    assert_ok(&x->err);
    const char *sent = (const char *)nth_request(x->mock, "/api/v1/asample", 0)->body.data;
    assert_non_null(strstr(sent, "\"prompt_alt_tokens_k\":2"));
    const char *tensor = strstr(sent, "\"target_prompt_logprobs\":{");
    assert_non_null(tensor);
    assert_non_null(strstr(tensor, "[5,-1,6,7]"));
    assert_non_null(strstr(tensor, "[2,2]"));
    assert_non_null(strstr(tensor, "\"int64\""));
    tinkc_f32s targets = tinkc_samples_target_logprobs(s);
    assert_int_equal(targets.len, 4);
    assert_true(targets.data[0] == -1 && targets.data[1] == 0 && targets.data[3] == -3);
    assert_int_equal(tinkc_samples_alt_tokens(s, 0, &ids, &logprobs), 0);
    assert_null(ids);
    assert_int_equal(tinkc_samples_alt_tokens(s, 2, &ids, &logprobs), 2);
    assert_true(ids[0] == 13 && ids[1] == 14 && logprobs[1] == -0.4f);
    assert_int_equal(tinkc_samples_alt_tokens(s, 3, &ids, NULL), 0);
    tinkc_future_free(f);
    /* The first and the last id that there can be. */
    tinkc_mock_always(x->mock, NULL, "/api/v1/retrieve_future",
                      &(tinkc_mock_answer){ .body = "{" SEQUENCE "," TARGETS "," ALT("[0,2147483647,13,14]") "}" },
                      &x->err);
    f = tinkc_sample(x->sampler, (int32_t[]){ 1, 2, 3 }, 3, 1, &o, &x->err);
    s = tinkc_future_samples(f, PATIENCE_MS, &x->err);
    assert_ok(&x->err);
    assert_int_equal(tinkc_samples_alt_tokens(s, 1, &ids, &logprobs), 2);
    assert_true(ids[0] == 0 && ids[1] == INT32_MAX);
    tinkc_future_free(f);
}

/* An answer without them, or with other counts, is none. */
TEST_WITH(prompt_work_that_is_missing_is_an_error, setup, teardown)
{
    fixture *x = *state;
    static const char *const bodies[][2] = {
        { "{" SEQUENCE "," ALT("[11,12,13,14]") "}", "target_tokens; the service may not know it" },
        { "{" SEQUENCE "," TARGETS "}", "prompt_alt_tokens; the service may not know it" },
        { "{" SEQUENCE "," TARGETS "," ALT("[11,12,13]") "}", "" },
        { "{" SEQUENCE "," TARGETS "," ALT("[11,12,13,-1]") "}", "out of range" },
        { "{" SEQUENCE "," TARGETS "," ALT("[11,12,13,2147483648]") "}", "out of range" },
        { "{" SEQUENCE ",\"target_prompt_logprobs\":{\"data\":[1,2,3,4],\"dtype\":\"int64\",\"shape\":"
          "[2,2]}," ALT("[11,12,13,14]") "}",
          "expected 4 32-bit floats, got 4 cells of another layout" },
        { "{" SEQUENCE ",\"target_prompt_logprobs\":{\"data\":[-1.0],\"dtype\":\"float32\",\"shape\":"
          "[1,1]}," ALT("[11,12,13,14]") "}",
          "expected 4 32-bit floats, got 1 cells of another layout" },
    };
    tinkc_sampling o = prompt_work();
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        tinkc_error err = { 0 };
        tinkc_mock_always(x->mock, NULL, "/api/v1/retrieve_future", &(tinkc_mock_answer){ .body = bodies[i][0] },
                          &x->err);
        tinkc_future *f = tinkc_sample(x->sampler, (int32_t[]){ 1, 2, 3 }, 3, 1, &o, &x->err);
        assert_false(tinkc_future_wait(f, PATIENCE_MS, &err));
        assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
        assert_non_null(strstr(err.message, bodies[i][1]));
        tinkc_future_free(f);
    }
}

TEST_WITH(prompt_work_is_checked, setup, teardown)
{
    fixture *x = *state;
    static const int32_t bad[] = { 5, -2 };
    tinkc_sampling rows[5];
    for (size_t i = 0; i < 5; i++)
        tinkc_sampling_init(&rows[i]);
    rows[0].targets_each = 1;
    rows[1].target_tokens = bad;
    rows[2].prompt_alt_tokens = -1;
    rows[3].target_tokens = bad, rows[3].targets_each = 2;
    rows[4].prompt_alt_tokens = 1;
    for (size_t i = 0; i < 5; i++) {
        tinkc_error err = { 0 };
        size_t len = i == 4 ? 1 : 2;
        assert_null(tinkc_sample(x->sampler, (int32_t[]){ 1, 2 }, len, 1, &rows[i], &err));
        assert_int_equal(err.code, TINKC_E_ARGUMENT);
    }
    tinkc_error err = { 0 };
    assert_null(tinkc_sample_stream(x->sampler, (int32_t[]){ 1, 2 }, 2, &rows[4], &err));
    assert_non_null(strstr(err.message, "prompt_alt_tokens"));
    assert_int_equal(tinkc_mock_count(x->mock, "/api/v1/asample"), 0);
}

/* Servers without protobuf answer in JSON, whatever was asked for. */
TEST_WITH(results_may_be_json, setup, teardown)
{
    fixture *x = *state;
    static const char json[] = "{\"type\":\"sample\",\"sequences\":[{\"stop_reason\":\"length\",\"tokens\":[7,8],"
                               "\"logprobs\":[-0.5,-0.25]}],\"prompt_logprobs\":[null,-1.5,-2.0]}";
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 2;
    o.prompt_logprobs = true;
    tinkc_mock_always(x->mock, NULL, "/api/v1/retrieve_future", &(tinkc_mock_answer){ .body = json }, &x->err);
    tinkc_future *f = tinkc_sample(x->sampler, (int32_t[]){ 1, 2, 3 }, 3, 1, &o, &x->err);
    const tinkc_samples *s = tinkc_future_samples(f, PATIENCE_MS, &x->err);
    assert_ok(&x->err);
    assert_int_equal(tinkc_samples_at(s, 0)->tokens.data[1], 8);
    assert_true(tinkc_samples_at(s, 0)->logprobs.data[1] == -0.25f);
    assert_true(tinkc_samples_prompt_logprobs(s).data[1] == -1.5f);
    tinkc_future_free(f);
}
