/* test_option_bounds.c - every option at both sides of its bounds: what is sent, byte for byte, or the exact
 * words of the refusal. */
#include <math.h>

#include "support/client/api_support.h"

static tinkc_mock *mock;
static tinkc_client *client;
static tinkc_error err;
static const int32_t ids[] = { 1, 2, 3, 4 };

static int setup(void **state)
{
    (void)state;
    err = (tinkc_error){ 0 };
    mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    client = mock_client(mock, NULL, &err);
    return err.code;
}

static int teardown(void **state)
{
    (void)state;
    tinkc_client_free(client);
    tinkc_mock_free(mock);
    return 0;
}

static void settle(void)
{
    tinkc_error ignored = { 0 };
    tinkc_mock_settle(mock, 20000, &ignored);
    assert_ok(&ignored);
}

/* The call was refused in exactly these words, or, with why NULL, accepted. */
static void assert_why(const void *made, const char *why, size_t row)
{
    if ((made != NULL) != (why == NULL) || strcmp(err.message, why ? why : "") != 0 ||
        err.code != (why ? TINKC_E_ARGUMENT : 0))
        fail_msg("row %zu: %d %s", row, (int)err.code, err.message);
    err = (tinkc_error){ 0 };
}

/* ---- handles that are not there ---- */

TEST_WITH(nothing_has_nothing, setup, teardown)
{
    assert_int_equal(tinkc_capabilities_count(NULL), 0);
    assert_null(tinkc_capabilities_at(NULL, 0));
    assert_int_equal(tinkc_links_count(NULL), 0);
    assert_null(tinkc_links_at(NULL, 0));
    assert_int_equal(tinkc_download_count(NULL), 0);
    assert_null(tinkc_download_at(NULL, 0));
    assert_int_equal(tinkc_audit_count(NULL), 0);
    assert_null(tinkc_audit_at(NULL, 0));
    assert_int_equal(tinkc_usage_count(NULL), 0);
    assert_null(tinkc_usage_at(NULL, 0));
    assert_int_equal(tinkc_usage_session_count(NULL), 0);
    assert_null(tinkc_usage_session_at(NULL, 0));
    assert_int_equal(tinkc_storage_count(NULL), 0);
    assert_null(tinkc_storage_at(NULL, 0));
    assert_int_equal(tinkc_samples_count(NULL), 0);
    assert_null(tinkc_samples_at(NULL, 0));
    assert_int_equal(tinkc_input_count(NULL), 0);
    assert_null(tinkc_input_at(NULL, 0));
    assert_int_equal(tinkc_batch_count(NULL), 0);
    assert_int_equal(tinkc_batch_bytes(NULL), 0);
    assert_int_equal(tinkc_metrics_count(NULL), 0);
    assert_int_equal(tinkc_fwdbwd_count(NULL), 0);
    assert_int_equal(tinkc_fwdbwd_first(NULL), 0);
    assert_int_equal(tinkc_future_part_count(NULL), 0);
    assert_int_equal(tinkc_response_status(NULL), 0);
    assert_string_equal(tinkc_future_operation(NULL), "");
    assert_string_equal(tinkc_future_request_id(NULL), "");
    assert_string_equal(tinkc_sampler_id(NULL), "");
    assert_int_equal(tinkc_future_stage(NULL), TINKC_STAGE_DONE);
    assert_int_equal(tinkc_future_queue_state(NULL), TINKC_QUEUE_UNKNOWN);
    int64_t done = 7, total = 7, for_ms = 7;
    int32_t attempts = 7;
    tinkc_future_progress(NULL, &done, &total);
    assert_true(done == 0 && total == -1);
    assert_int_equal(tinkc_future_retry_state(NULL, &attempts, &for_ms), TINKC_OK);
    assert_true(attempts == 0 && for_ms == 0);
    assert_int_equal(tinkc_future_error_body(NULL).len, 0);
    tinkc_future_progress(NULL, NULL, NULL);
    (void)tinkc_future_retry_state(NULL, NULL, NULL);
}

/* ---- sampling ---- */

static const int32_t targets[] = { 5, -1, 7, 8, 9, 10 }, low_targets[] = { 5, -2, 7 };
static const char *const stops[] = { "a", "b", NULL };
static const char *const too_empty[] = { "", NULL };

#define PARAMS(text) "\"sampling_params\":{" text "}"
#define USUAL        "\"temperature\":1.0,\"top_k\":-1,\"top_p\":1.0"

/* max_tokens, temperature, top_p, top_k, and what else is given */
#define ALL(m, t, p, k, ...)                                                                                           \
    {                                                                                                                  \
        .max_tokens = (m), .temperature = (t), .top_p = (p), .top_k = (k), __VA_ARGS__                                 \
    }
#define WITH(...) ALL(-1, 1, 1, -1, __VA_ARGS__)
static const struct {
    tinkc_sampling o;
    const char *sent; /* part of the request, or NULL */
    const char *why;
} sampling_rows[] = {
    { WITH(.seed = 0), PARAMS(USUAL), NULL },
    { ALL(0, 1, 1, -1, .seed = 0), PARAMS("\"max_tokens\":0," USUAL), NULL },
    { ALL(1, 1, 1, -1, .seed = 0), PARAMS("\"max_tokens\":1," USUAL), NULL },
    { ALL(-2, 1, 1, -1, .seed = 0), NULL, "max_tokens: must be 0 or more, or -1" },
    { ALL(-1, 0, 1, -1, .seed = 0), PARAMS("\"temperature\":0.0,\"top_k\":-1,\"top_p\":1.0"), NULL },
    { ALL(-1, -0.5f, 1, -1, .seed = 0), NULL, "temperature: must be a number of 0 or more" },
    { ALL(-1, INFINITY, 1, -1, .seed = 0), NULL, "temperature: must be a number of 0 or more" },
    { ALL(-1, 1, 0.5f, -1, .seed = 0), PARAMS("\"temperature\":1.0,\"top_k\":-1,\"top_p\":0.5"), NULL },
    { ALL(-1, 1, 0, -1, .seed = 0), NULL, "top_p: must lie above 0 and up to 1; start from TINKC_SAMPLING_INIT" },
    { ALL(-1, 1, 1.5f, -1, .seed = 0), NULL, "top_p: must lie above 0 and up to 1; start from TINKC_SAMPLING_INIT" },
    { ALL(-1, 1, 1, 1, .seed = 0), PARAMS("\"temperature\":1.0,\"top_k\":1,\"top_p\":1.0"), NULL },
    { ALL(-1, 1, 1, 0, .seed = 0), NULL, "top_k: must be 1 or more, or -1" },
    { ALL(-1, 1, 1, -2, .seed = 0), NULL, "top_k: must be 1 or more, or -1" },
    { WITH(.has_seed = true), PARAMS("\"seed\":0," USUAL), NULL },
    { WITH(.has_seed = true, .seed = INT64_MAX), PARAMS("\"seed\":9223372036854775807," USUAL), NULL },
    { WITH(.has_seed = true, .seed = (uint64_t)INT64_MAX + 1), NULL, "seed: must be below 2^63" },
    { WITH(.seed = UINT64_MAX), PARAMS(USUAL), NULL }, /* not used */
    { WITH(.stop = stops), PARAMS("\"stop\":[\"a\",\"b\"]," USUAL), NULL },
    { WITH(.stop_tokens = ids, .n_stop_tokens = 2), PARAMS("\"stop\":[1,2]," USUAL), NULL },
    { WITH(.stop_tokens = low_targets, .n_stop_tokens = 2), NULL, "stop_tokens: token 1 is negative" },
    { WITH(.never_stop = true), PARAMS("\"stop\":[]," USUAL), NULL },
    { WITH(.prompt_logprobs = true), "\"prompt_logprobs\":true,\"topk_prompt_logprobs\":0,\"type\"", NULL },
    { WITH(.topk_prompt_logprobs = 1), "\"prompt_logprobs\":false,\"topk_prompt_logprobs\":1,\"type\"", NULL },
    { WITH(.topk_prompt_logprobs = -1), NULL, "topk_prompt_logprobs: must not be negative" },
    { WITH(.topk_sample_logprobs = 1), "\"topk_prompt_logprobs\":0,\"topk_sample_logprobs\":1,", NULL },
    { WITH(.topk_sample_logprobs = -1), NULL, "topk_sample_logprobs: must not be negative" },
    { WITH(.prompt_logprobs = true, .prompt_logprobs_last_n = 1), "\"prompt_logprobs_last_n\":1,", NULL },
    { WITH(.prompt_logprobs_last_n = 1), NULL, "prompt_logprobs_last_n: needs prompt_logprobs" },
    { WITH(.prompt_logprobs = true, .prompt_logprobs_last_n = -1), NULL,
      "prompt_logprobs_last_n: must not be negative" },
    { WITH(.prompt_alt_tokens = 1), "\"prompt_alt_tokens_k\":1", NULL },
    { WITH(.prompt_alt_tokens = -1), NULL, "prompt_alt_tokens: must not be negative" },
    { WITH(.target_tokens = targets, .targets_each = 1),
      "\"target_prompt_logprobs\":{\"data\":[5,-1,7],\"dtype\":\"int64\",\"shape\":[3,1]}", NULL },
    { WITH(.target_tokens = targets, .targets_each = 2),
      "\"data\":[5,-1,7,8,9,10],\"dtype\":\"int64\",\"shape\":[3,2]}", NULL },
    { WITH(.target_tokens = low_targets, .targets_each = 1), NULL, "target_tokens: 1 is below -1" },
    { WITH(.targets_each = 1), NULL, "target_tokens: comes with targets_each, of 1 or more" },
    { WITH(.target_tokens = targets), NULL, "target_tokens: comes with targets_each, of 1 or more" },
    { WITH(.target_tokens = targets, .targets_each = -1), NULL,
      "target_tokens: comes with targets_each, of 1 or more" },
    { WITH(.reserved = { 1 }), NULL, "reserved: must be zero" },
    { WITH(.reserved_bools = { true }), NULL, "reserved: must be zero" },
};

/* Both need a token before the one they look at. */
static void prompts_that_are_too_short(tinkc_sampler *s)
{
    static const tinkc_sampling scored = WITH(.target_tokens = targets, .targets_each = 1),
                                drawn = WITH(.prompt_alt_tokens = 1), empty = WITH(.stop = too_empty);
    assert_why(tinkc_sample(s, ids, 1, 1, &scored, &err), "target_tokens: the prompt must be two tokens or more", 100);
    assert_why(tinkc_sample(s, ids, 1, 1, &drawn, &err), "prompt_alt_tokens: the prompt must be two tokens or more",
               101);
    tinkc_future *f = tinkc_sample(s, ids, 2, 1, &drawn, &err);
    assert_why(f, NULL, 102);
    tinkc_future_free(f);
    assert_null(tinkc_sample(s, ids, 2, 1, &empty, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
}

TEST_WITH(sampling_options_have_bounds, setup, teardown)
{
    tinkc_sampler *s = tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &err);
    assert_ok(&err);
    tinkc_mock_always(mock, NULL, "/api/v1/asample", &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &err);
    for (size_t i = 0; i < sizeof sampling_rows / sizeof *sampling_rows; i++) {
        tinkc_future *f = tinkc_sample(s, ids, 4, 1, &sampling_rows[i].o, &err);
        assert_why(f, sampling_rows[i].why, i);
        settle();
        const tinkc_request *r = nth_request(mock, "/api/v1/asample", 0);
        assert_int_equal(r != NULL, f != NULL);
        if (r && !strstr((const char *)r->body.data, sampling_rows[i].sent))
            fail_msg("row %zu: %s", i, (const char *)r->body.data);
        tinkc_mock_forget(mock);
        tinkc_future_free(f);
    }
    prompts_that_are_too_short(s);
    tinkc_sampler_free(s);
}

/* Scores are one sample of one token, whichever way the prompt is given. */
TEST_WITH(scores_are_one_sample, setup, teardown)
{
    tinkc_sampler *sampler = tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &err);
    tinkc_input *input = tinkc_input_new(client, &err);
    tinkc_input_add_tokens(input, ids, 4, &err);
    tinkc_future *f[] = { tinkc_logprobs(sampler, ids, 4, &err), tinkc_logprobs_input(sampler, input, &err) };
    settle();
    assert_ok(&err);
    for (size_t i = 0; i < 2; i++) {
        const char *body = (const char *)nth_request(mock, "/api/v1/asample", i)->body.data;
        assert_non_null(strstr(body, "\"num_samples\":1,"));
        assert_non_null(strstr(body, "\"max_tokens\":1,"));
        assert_non_null(strstr(body, "\"prompt_logprobs\":true"));
        tinkc_future_free(f[i]);
    }
    tinkc_input_free(input);
    tinkc_sampler_free(sampler);
}

/* A sampler of a trainer's weights repeats as its options say. */
TEST_WITH(samplers_of_a_trainer_repeat, setup, teardown)
{
    tinkc_trainer *t = tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &err);
    tinkc_retry_options retry = { .max_attempts = 2, .delay_base_ms = 3000, .has_jitter = true };
    tinkc_future *f = tinkc_trainer_open_sampler(t, &(tinkc_sampler_options){ .retry = &retry }, &err);
    retry = (tinkc_retry_options){ .no_retries = true }; /* it has its own copy */
    assert_true(run_until_done(mock, f, 60000));
    tinkc_sampler *sampler = tinkc_future_sampler(f, 0, &err);
    tinkc_future_free(f);
    assert_ok(&err);
    tinkc_mock_always(mock, NULL, "/api/v1/retrieve_future", &(tinkc_mock_answer){ .status = 410, .body = "{}" }, &err);
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 1;
    f = tinkc_sample(sampler, ids, 4, 1, &o, &err);
    assert_true(run_until_done(mock, f, 60000));
    assert_int_equal(tinkc_mock_count(mock, "/api/v1/asample"), 2);
    assert_int_equal(nth_request_ms(mock, "/api/v1/asample", 1) - nth_request_ms(mock, "/api/v1/asample", 0), 3000);
    tinkc_future_free(f);
    tinkc_sampler_free(sampler);
    tinkc_trainer_free(t);
}

/* ---- saving ---- */

TEST_WITH(names_of_checkpoints, setup, teardown)
{
    static const char control[] = "name: holds a control character";
    static const char segment[] = "name: must be one segment of a path";
    static const struct {
        const char *name;
        tinkc_save_options o;
        const char *sent, *why;
    } rows[] = {
        { "a b", { 0 }, "\"path\":\"a b\",", NULL },
        { " ", { 0 }, "\"path\":\" \",", NULL },
        { "~", { 0 }, "\"path\":\"~\",", NULL },
        { "..a", { 0 }, "\"path\":\"..a\",", NULL },
        { "\xC3\xA9", { 0 }, "\"path\":\"\xC3\xA9\",", NULL },
        { "a\x1F", { 0 }, NULL, control },
        { "\x7F", { 0 }, NULL, control },
        { ".", { 0 }, NULL, segment },
        { "..", { 0 }, NULL, segment },
        { "a/", { 0 }, NULL, segment },
        { "", { 0 }, NULL, "name: must not be empty" },
        { NULL, { 0 }, NULL, "name: must not be empty" },
        { "a", { .ttl_s = 1 }, "\"ttl_seconds\":1,", NULL },
        { "a", { .ttl_s = -1 }, NULL, "ttl_s: must not be negative" },
        { "a", { .overwrite = true }, "\"overwrite\":true", NULL },
        { "a", { .overwrite = false }, "\"overwrite\":false", NULL },
        { "a", { .reserved = { 0, 0, 1 } }, NULL, "reserved: must be zero" },
        { "a", { .reserved_bools = { [6] = true } }, NULL, "reserved: must be zero" },
    };
    tinkc_trainer *t = tinkc_trainer_new(client, &(tinkc_lora_options){ .base_model = "mock/nano" }, &err);
    assert_ok(&err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_mock_forget(mock);
        tinkc_future *f = tinkc_trainer_save(t, rows[i].name, &rows[i].o, &err);
        assert_why(f, rows[i].why, i);
        if (f)
            assert_true(run_until_done(mock, f, 60000));
        const tinkc_request *r = nth_request(mock, "/api/v1/save_weights", 0);
        assert_int_equal(r != NULL, f != NULL);
        if (r && !strstr((const char *)r->body.data, rows[i].sent))
            fail_msg("row %zu: %s", i, (const char *)r->body.data);
        if (r && !rows[i].o.ttl_s)
            assert_null(strstr((const char *)r->body.data, "ttl_seconds"));
        tinkc_future_free(f);
    }
    tinkc_trainer_free(t);
}

/* ---- searching and reading ---- */

TEST_WITH(search_options_have_bounds, setup, teardown)
{
    static const char *const ten[] = { "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", NULL };
    static const char *const eleven[] = { "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", NULL };
    static const char *const none[] = { NULL }, *const odd[] = { "a", "b", "c", NULL };
    static const char *const pair[] = { "a", "b", NULL };
    static const struct {
        tinkc_search_options o;
        const char *sent, *why;
    } rows[] = {
        { { 0 }, "\"limit\":50", NULL },
        { { .page_size = 1 }, "\"limit\":1", NULL },
        { { .page_size = 200 }, "\"limit\":200", NULL },
        { { .page_size = 201 }, NULL, "page_size: must be from 1 to 200, or 0" },
        { { .page_size = -1 }, NULL, "page_size: must be from 1 to 200, or 0" },
        { { .owners = ten }, "\"owner\":{\"type\":\"user\",\"owner_urns\":[\"1\",", NULL },
        { { .owners = eleven }, NULL, "owners: must be from 1 to 10" },
        { { .owners = none }, NULL, "owners: must be from 1 to 10" },
        { { .scope = TINKC_OWNED }, "\"owner\":{\"type\":\"own\"}", NULL },
        { { .scope = TINKC_ACCESSIBLE }, "\"owner\":{\"type\":\"accessible\"}", NULL },
        { { .user_metadata = pair }, "\"user_metadata\":{\"a\":\"b\"}", NULL },
        { { .user_metadata = odd }, NULL, "user_metadata: a name without a value" },
        { { .states = TINKC_SESSION_ACTIVE }, "\"statuses\":[{\"type\":\"active\"}]", NULL },
        { { .states = TINKC_SESSION_CANCELLED | TINKC_SESSION_FINISHED },
          "\"statuses\":[{\"type\":\"cancelled\"},{\"type\":\"client_finished\"}]",
          NULL },
        { { .states = 1u << 30 }, NULL, "states: unknown bits" },
        { { .states = TINKC_SESSION_ACTIVE | TINKC_SESSION_FINISHED, .finished_as = 1u << TINKC_FINISH_ERRORED },
          "\"statuses\":[{\"type\":\"active\"},{\"type\":\"client_finished\",\"reasons\":["
          "\"errored\"]}]",
          NULL },
        { { .states = TINKC_SESSION_FINISHED,
            .finished_as = 1u << TINKC_FINISH_SUCCESS | 1u << TINKC_FINISH_INTERRUPTED },
          "\"reasons\":[\"success\",\"interrupted\"]",
          NULL },
        { { .states = TINKC_SESSION_FINISHED, .finished_as = 8 }, NULL, "finished_as: unknown bits" },
        { { .finished_as = 1 }, NULL, "finished_as: needs TINKC_SESSION_FINISHED in states" },
        { { .states = TINKC_SESSION_ACTIVE, .finished_as = 1 },
          NULL,
          "finished_as: needs TINKC_SESSION_FINISHED in states" },
        { { .limit = -1 }, NULL, "limit is negative" },
        { { .reserved = { 0, 0, 1 } }, NULL, "search options: reserved must be zero" },
        { { .reserved_int = 1 }, NULL, "search options: reserved must be zero" },
        { { .reserved_bools = { [3] = true } }, NULL, "search options: reserved must be zero" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_mock_forget(mock);
        tinkc_mock_once(mock, NULL, "/api/v1/sessions/search", &(tinkc_mock_answer){ .body = "{\"sessions\":[]}" },
                        &err);
        tinkc_search *s = tinkc_search_list(client, &rows[i].o, &err);
        if (s)
            (void)tinkc_search_next(s, &err);
        assert_why(s, rows[i].why, i);
        const tinkc_request *r = nth_request(mock, "/api/v1/sessions/search", 0);
        assert_int_equal(r != NULL, s != NULL);
        if (r && !strstr((const char *)r->body.data, rows[i].sent))
            fail_msg("row %zu: %s", i, (const char *)r->body.data);
        tinkc_search_free(s);
    }
}

#define EVENT_TYPES "event_type must be \"all\", \"checkpoints\", \"projects\", \"teams\" or \"organizations\""

TEST_WITH(an_audit_has_a_type_and_a_day, setup, teardown)
{
    static const struct {
        const char *type, *day, *path, *why;
    } rows[] = {
        { NULL, NULL, "/api/v1/audit?event_type=all", NULL },
        { "all", NULL, "/api/v1/audit?event_type=all", NULL },
        { "checkpoints", "2026-02-28", "/api/v1/audit?event_type=checkpoints&day=2026-02-28", NULL },
        { "projects", NULL, "/api/v1/audit?event_type=projects", NULL },
        { "teams", NULL, "/api/v1/audit?event_type=teams", NULL },
        { "organizations", NULL, "/api/v1/audit?event_type=organizations", NULL },
        { "al", NULL, NULL, EVENT_TYPES },
        { "checkpointsx", NULL, NULL, EVENT_TYPES },
        { "a", NULL, NULL, EVENT_TYPES },
        { "zz", NULL, NULL, EVENT_TYPES },
        { NULL, "2026-02-29", NULL, "day must have the form YYYY-MM-DD" },
        { NULL, "2026-2-28", NULL, "day must have the form YYYY-MM-DD" },
        { NULL, "2026-02-28T", NULL, "day must have the form YYYY-MM-DD" },
        { NULL, "", NULL, "day must have the form YYYY-MM-DD" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_mock_forget(mock);
        tinkc_future *f = tinkc_audit_get(client, rows[i].type, rows[i].day, &err);
        assert_why(f, rows[i].why, i);
        if (f)
            assert_true(run_until_done(mock, f, 60000));
        const tinkc_request *r = nth_request(mock, "/api/v1/audit", 0);
        assert_int_equal(r != NULL, f != NULL);
        if (r)
            assert_string_equal(r->path, rows[i].path);
        tinkc_future_free(f);
    }
}

TEST_WITH(list_options_are_not_negative, setup, teardown)
{
    static const struct {
        tinkc_list_options o;
        const char *why;
    } rows[] = { { { .limit = -1 }, "limit is negative" },
                 { { .offset = -1 }, "offset is negative" },
                 { { .page_size = -1 }, "page_size is negative" },
                 { { .limit = -1, .offset = -1, .page_size = -1 }, "limit is negative" },
                 { { .limit = 1, .offset = -1, .page_size = -1 }, "offset is negative" },
                 { { .limit = 1, .offset = 1, .page_size = 1 }, NULL } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_runs *runs = tinkc_runs_list(client, &rows[i].o, &err);
        assert_why(runs, rows[i].why, i);
        tinkc_runs_free(runs);
    }
}

/* ---- calls of one's own ---- */

TEST_WITH(parts_of_a_form, setup, teardown)
{
    tinkc_form *form = tinkc_form_new(client, &err);
    static const struct {
        const char *name, *why;
    } rows[] = {
        { "a", NULL }, { NULL, "name is empty" }, { "", "name is empty" }, { "a\nb", "name holds a line break" }
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool done = tinkc_form_add_text(form, rows[i].name, "v", &err);
        assert_why(done ? form : NULL, rows[i].why, i);
    }
    assert_false(tinkc_form_add_text(NULL, "a", "v", &err));
    assert_string_equal(err.message, "the form is NULL");
    err = (tinkc_error){ 0 };
    tinkc_form_free(form);
}

TEST_WITH(paths_and_headers, setup, teardown)
{
    static const char escaping[] = "path: a character in it needs escaping";
    static const char *const bad[][3] = { { "A", NULL, NULL },  { "", "x", NULL },    { "A B", "x", NULL },
                                          { "A:", "x", NULL },  { "A", "x\n", NULL }, { "A", "\x7F", NULL },
                                          { "A", "\x1F", NULL } };
    static const char *const good[] = { "A", "x\ty", "B", " ", NULL };
    static const struct {
        tinkc_http_options o;
        const char *why;
    } rows[] = {
        { { .path = "/x" }, NULL },
        { { .path = "/x~!" }, NULL },
        { { .path = "/a/...?b=.." }, NULL },
        { { .path = "/ " }, escaping },
        { { .path = "/\x7F" }, escaping },
        { { .path = "/\xC3\xA9" }, escaping },
        { { .path = "/#" }, escaping },
        { { .path = "/a\\b" }, escaping },
        { { .path = "/a?b c" }, escaping },
        { { .path = "x" }, "path must begin with one slash or be a whole URL" },
        { { .path = "//x" }, "path must begin with one slash or be a whole URL" },
        { { .path = "/." }, "path leads elsewhere" },
        { { .path = "/a/../b" }, "path leads elsewhere" },
        { { .path = NULL }, "path is NULL" },
        { { .path = "/x", .headers = good }, NULL },
        { { .path = "/x", .headers = bad[0] }, "headers: \"A\" has no value" },
        { { .path = "/x", .headers = bad[1] }, "headers: \"\" is not a valid header name" },
        { { .path = "/x", .headers = bad[2] }, "headers: \"A B\" is not a valid header name" },
        { { .path = "/x", .headers = bad[3] }, "headers: \"A:\" is not a valid header name" },
        { { .path = "/x", .headers = bad[4] }, "headers: the value of A holds a control character" },
        { { .path = "/x", .headers = bad[5] }, "headers: the value of A holds a control character" },
        { { .path = "/x", .headers = bad[6] }, "headers: the value of A holds a control character" },
        { { .path = "/x", .content_type = "a\nb" }, "content_type holds a line break" },
        { { .path = "/x", .idempotency_key = "a\rb" }, "idempotency_key holds a line break" },
        { { .path = "/x", .body_len = 1 }, "body is NULL but body_len is not 0" },
        { { .path = "/x", .max_retries = -5 }, "max_retries: must not be negative" },
        { { .path = "/x", .idle_timeout_ms = -5 }, "idle_timeout_ms: must not be negative" },
        { { .path = "/x", .reserved = { 0, 0, 0, 1 } }, "call options: reserved must be zero" },
        { { .path = "/x", .reserved_bools = { true } }, "call options: reserved must be zero" },
        { { .path = "/x", .method = "get" }, "method \"get\" is not known" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_future *f = tinkc_http_call(client, &rows[i].o, &err);
        assert_why(f, rows[i].why, i);
        tinkc_future_free(f);
    }
    assert_why(tinkc_http_call(client, NULL, &err), "options are NULL", 100);
}

/* ---- options of a client ---- */

TEST_WITH(numbers_of_a_client, setup, teardown)
{
    static const char zero[] = "TINKC_ZERO makes no sense here";
    static const char forever[] = "TINKC_FOREVER makes no sense here";
    static const char negative[] = "must not be negative";
    static const struct {
        const char *name;
        size_t at;
        bool wide;
        const char *zero, *forever; /* NULL = allowed */
    } rows[] = {
#define AT(member, wide, a, b) { #member, offsetof(tinkc_client_options, member), wide, a, b }
        AT(connect_timeout_ms, true, zero, forever), AT(idle_timeout_ms, true, zero, NULL),
        AT(retry_window_ms, true, NULL, NULL),       AT(operation_timeout_ms, true, zero, forever),
        AT(billing_pause_ms, true, NULL, NULL),      AT(max_retries, false, NULL, forever),
        AT(max_connections, false, zero, forever),   AT(max_response_bytes, true, zero, forever),
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct {
            int64_t value;
            const char *why;
        } values[] = {
            { 1, NULL }, { TINKC_ZERO, rows[i].zero }, { TINKC_FOREVER, rows[i].forever }, { -1000, negative }
        };
        for (size_t k = 0; k < 4; k++) {
            tinkc_client_options o = { 0 };
            char why[100];
            char *at = (char *)&o + rows[i].at;
            if (rows[i].wide)
                memcpy(at, &values[k].value, sizeof(int64_t));
            else
                memcpy(at, &(int32_t){ (int32_t)values[k].value }, sizeof(int32_t));
            tinkc_client *c = mock_client(mock, &o, &err);
            (void)snprintf(why, sizeof why, "%s: %s", rows[i].name, values[k].why ? values[k].why : "");
            assert_why(c, values[k].why ? why : NULL, i * 10 + k);
            tinkc_client_free(c);
        }
    }
}

TEST_WITH(parts_of_a_client, setup, teardown)
{
    tinkc_transport other = *tinkc_mock_transport(mock);
    other.abi++;
    tinkc_transport mute = *tinkc_mock_transport(mock);
    mute.send = NULL;
    static const char versions[] = "transport: of another version, or without send";
    static const char clocks[] = "clock: a function is missing";
    static const char allocators[] = "allocator: a function is missing";
    const struct {
        tinkc_client_options o;
        const char *why;
    } rows[] = {
        { { .transport = &other }, versions },
        { { .transport = &mute }, versions },
        { { .transport = tinkc_mock_transport(mock), .log_level = TINKC_LOG_DEBUG }, NULL },
        { { .transport = tinkc_mock_transport(mock), .log_level = TINKC_LOG_DEBUG + 1 }, "log_level: unknown value 5" },
        { { .transport = tinkc_mock_transport(mock), .log_level = -1 }, "log_level: unknown value -1" },
        { { .transport = tinkc_mock_transport(mock), .telemetry = TINKC_TELEMETRY_OFF }, NULL },
        { { .transport = tinkc_mock_transport(mock), .telemetry = TINKC_TELEMETRY_OFF + 1 },
          "telemetry: unknown value 3" },
        { { .transport = tinkc_mock_transport(mock), .telemetry = -1 }, "telemetry: unknown value -1" },
        { { .transport = tinkc_mock_transport(mock), .reserved = { 0, 0, 0, 0, 0, 0, 1 } }, "reserved: must be zero" },
        { { .transport = tinkc_mock_transport(mock), .reserved_bools = { [4] = true } }, "reserved: must be zero" },
        { { .transport = tinkc_mock_transport(mock), .base_url = "ftp://x" },
          "base_url: URL: its scheme must be http or https" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_client *c = tinkc_client_new(&rows[i].o, &err);
        assert_why(c, rows[i].why, i);
        tinkc_client_free(c);
    }
    for (size_t i = 0; i < 7; i++) { /* each function of a clock is needed */
        tinkc_clock clock = *tinkc_mock_clock(mock);
        void (*none)(void) = NULL;
        const size_t at[] = { offsetof(tinkc_clock, acquire), offsetof(tinkc_clock, release),
                              offsetof(tinkc_clock, now_ms),  offsetof(tinkc_clock, wall_us),
                              offsetof(tinkc_clock, random),  offsetof(tinkc_clock, attach),
                              offsetof(tinkc_clock, detach) };
        memcpy((char *)&clock + at[i], &none, sizeof none);
        assert_why(
            tinkc_client_new(&(tinkc_client_options){ .transport = tinkc_mock_transport(mock), .clock = &clock }, &err),
            clocks, i);
    }
    for (size_t i = 0; i < 3; i++) {
        tinkc_allocator a = { (void *(*)(size_t, void *))1, (void *(*)(void *, size_t, size_t, void *))1,
                              (void (*)(void *, size_t, void *))1, NULL };
        void (*none)(void) = NULL;
        const size_t at[] = { offsetof(tinkc_allocator, alloc), offsetof(tinkc_allocator, resize),
                              offsetof(tinkc_allocator, release) };
        memcpy((char *)&a + at[i], &none, sizeof none);
        assert_why(
            tinkc_client_new(&(tinkc_client_options){ .transport = tinkc_mock_transport(mock), .allocator = &a }, &err),
            allocators, i);
    }
}

/* A transport inside the process: no telemetry is sent, even where it is switched on. */
TEST_WITH(a_local_transport_sends_no_telemetry, setup, teardown)
{
    for (uint32_t local = 0; local < 2; local++) {
        tinkc_transport t = *tinkc_mock_transport(mock);
        t.flags = local ? TINKC_TRANSPORT_LOCAL : 0;
        tinkc_client *c = tinkc_client_new(&(tinkc_client_options){ .transport = &t,
                                                                    .clock = tinkc_mock_clock(mock),
                                                                    .telemetry = TINKC_TELEMETRY_ON },
                                           &err);
        tinkc_mock_forget(mock);
        assert_string_equal(tinkc_client_session_id(c, 10000, &err), "mock-session-1");
        assert_ok(&err);
        settle();
        tinkc_mock_advance(mock, 10000);
        settle();
        assert_int_equal(tinkc_mock_count(mock, "/api/v1/telemetry") > 0, !local);
        tinkc_client_free(c);
        teardown(NULL);
        setup(NULL);
    }
}
