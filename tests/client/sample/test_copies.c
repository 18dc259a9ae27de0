/* test_copies.c - samplers that are exported and imported elsewhere: what the text holds is what the copy uses, and the block of
 * numbers that it samples under. */
#include "support/client/client_scene.h"

#define JOIN    API "join_sampling_session"
#define JOINING "{\"sample_join_sampling_session\":true}"

static const int32_t ids[] = { 1, 2, 3 };

/* A copy of a sampler of a client with these options. The text stays until the next one. */
static tinkc_sampler *copy_of(scene *s, const tinkc_client_options *o, tinkc_text *text)
{
    scene_renew(s, o);
    tinkc_sampler *original = open_sampler(s, NULL);
    assert_non_null(tinkc_sampler_export(original, text, scene_err(s)));
    tinkc_sampler_free(original);
    scene_renew(s, NULL);                                                      /* one client at a time */
    assert_int_equal(setenv("TINKER_CREDENTIAL_CMD", "echo tml-other", 1), 0); /* the copy's is the original's: none */
    tinkc_sampler *copy =
        tinkc_sampler_import(text->data,
                             &(tinkc_client_options){ .transport = tinkc_mock_transport(scene_mock(s)),
                                                      .clock = tinkc_mock_clock(scene_mock(s)) },
                             scene_err(s));
    assert_int_equal(unsetenv("TINKER_CREDENTIAL_CMD"), 0);
    assert_ok(scene_err(s));
    settle(s);
    scene_forget(s);
    return copy;
}

/* Address, credential, headers and settings are the original's; so are its session, whose heartbeats the copy sends, too, and the
 * interval of its settings. */
TEST(a_copy_uses_what_it_holds)
{
    static const struct {
        const char *config, *dynamic, *seen;
    } rows[] = {
        { "{}", "{\"refresh_interval_sec\":15}",
          "asample {to https://there.test/base/} {X-Own: 1} {Y: 2} {X-API-Key: tml-key}; poll {to "
          "https://there.test/base/} {X-Own: 1} {Y: 2} {X-API-Key: tml-key}; sample: done; +10000 "
          "session_heartbeat {to https://there.test/base/} {X-Own: 1} {Y: 2} {X-API-Key: tml-key}; "
          "+5000 client/dynamic_config {to https://there.test/base/} {X-Own: 1} {Y: 2} {X-API-Key: "
          "tml-key}; +5000 session_heartbeat {to https://there.test/base/} {X-Own: 1} {Y: 2} "
          "{X-API-Key: tml-key}" },
        { "{\"sample_enable_stuck_detection\":true,\"extra\":[1]}", "{\"refresh_interval_sec\":1000}",
          "asample {to https://there.test/base/} {X-Own: 1} {Y: 2} {X-API-Key: tml-key}; poll {to "
          "https://there.test/base/} {X-Own: 1} {Y: 2} {X-API-Key: tml-key}; sample: done; +10000 "
          "session_heartbeat {to https://there.test/base/} {X-Own: 1} {Y: 2} {X-API-Key: tml-key}; "
          "+10000 session_heartbeat {to https://there.test/base/} {X-Own: 1} {Y: 2} {X-API-Key: "
          "tml-key}" },
    };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(rows); i++) {
        tinkc_text text = { 0 }, again = { 0 };
        answer_always(s, CONFIG, 200, rows[i].config);
        answer_always(s, API "client/dynamic_config", 200, rows[i].dynamic);
        scene_shows(s, SHOW_HEARTBEATS | HIDE_NUMBERS);
        tinkc_sampler *copy = copy_of(s,
                                      &(tinkc_client_options){ .api_key = "tml-key",
                                                               .base_url = "https://there.test/base",
                                                               .headers = PAIRS("X-Own", "1", "Y", "2") },
                                      &text);
        assert_string_equal(text.data, tinkc_sampler_export(copy, &again, scene_err(s)));
        tinkc_text_free(&again);
        finish(s, begin_sample(s, "sample", copy), 10000);
        live(s, 20000);
        EXPECT_ROW(s, i, rows[i].seen);
        const char *number =
            strstr((const char *)nth_request(scene_mock(s), API "asample", i)->body.data, "\"seq_id\":");
        assert_true(number && strncmp(number, "\"seq_id\":0", 10) != 0 &&
                    strstr(number, "000000000,") != NULL); /* a block by chance */
        tinkc_sampler_free(copy);
        settle(s);
        tinkc_text_free(&text);
    }
    scene_end(s);
}

/* Where the settings say so, a copy asks for its place before its first sample, and samples in the block of that place. A place
 * that cannot be makes the sample fail, and the next one asks again. */
TEST(the_block_of_a_copy)
{
    static const struct {
        const char *place, *seen;
    } rows[] = {
        { "{\"client_counter\":3}",
          "join_sampling_session {X-API-Key: tml-key}; asample #3000000000 {X-API-Key: tml-key}; "
          "poll {X-API-Key: tml-key}; done; asample #3000000001 {X-API-Key: tml-key}; poll "
          "{X-API-Key: tml-key}; done" },
        { "{\"client_counter\":0}",
          "join_sampling_session {X-API-Key: tml-key}; BAD_RESPONSE \"join_sampling_session: no "
          "place is left\"; join_sampling_session {X-API-Key: tml-key}; NOT_FOUND 404 \"HTTP 404: "
          "not part of the mock service\"" },
        { "{}", "join_sampling_session {X-API-Key: tml-key}; BAD_RESPONSE \"client_counter: JSON: "
                "is missing at byte 2\"; join_sampling_session {X-API-Key: tml-key}; NOT_FOUND 404 "
                "\"HTTP 404: not part of the mock service\"" },
        { "{\"client_counter\":9223372036854775807}",
          "join_sampling_session {X-API-Key: tml-key}; BAD_RESPONSE \"join_sampling_session: no "
          "place is left\"; join_sampling_session {X-API-Key: tml-key}; NOT_FOUND 404 \"HTTP 404: "
          "not part of the mock service\"" },
    };
    const tinkc_client_options o = { .api_key = "tml-key", .no_retries = true };
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    for (size_t i = 0; i < LEN(rows); i++) {
        tinkc_text text = { 0 };
        answer_always(s, CONFIG, 200, JOINING);
        tinkc_sampler *copy = copy_of(s, &o, &text);
        answer(s, JOIN, 200, rows[i].place);
        for (int k = 0; k < 2; k++) {
            tinkc_future *f = begin_sample(s, "", copy);
            finish(s, f, 10000);
        }
        EXPECT_ROW(s, i, rows[i].seen);
        tinkc_sampler_free(copy);
        settle(s);
        tinkc_text_free(&text);
    }
    scene_end(s);
}

/* A sample that is cancelled while it waits for the place takes nothing with it; a prompt that is freed meanwhile was copied. */
TEST(a_place_that_takes_its_time)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_error *e = scene_err(s);
    tinkc_text text = { 0 };
    answer_always(s, CONFIG, 200, JOINING);
    tinkc_sampler *copy = copy_of(s, &(tinkc_client_options){ .api_key = "tml-key" }, &text);
    silence(s, JOIN);
    tinkc_future *f = begin_sample(s, "waits", copy);
    tinkc_future_cancel(f);
    EXPECT(s, "join_sampling_session {X-API-Key: tml-key}; waits: CANCELLED \"sample: cancelled\"");
    tinkc_mock_once(scene_mock(s), NULL, JOIN,
                    &(tinkc_mock_answer){ .body = "{\"client_counter\":2}", .delay_ms = 500 }, e);
    tinkc_input *input = tinkc_input_new(scene_client(s), e);
    char place[] = "the place";
    tinkc_input_add_tokens(input, ids, 3, e);
    tinkc_input_add_image(input, "picture", 7, "png", 4, e);
    tinkc_input_add_image_pointer(input, place, "jpeg", -1, e);
    tinkc_sampling o = TINKC_SAMPLING_INIT;
    o.max_tokens = 1;
    f = follow(s, "sample", tinkc_sample_input(copy, input, 1, &o, e));
    tinkc_input_free(input);
    memset(place, 'x', sizeof place - 1);
    silence(s, POLL);
    scene_shows(s, SHOW_BODIES);
    live(s, 600);
    tinkc_future_cancel(f);
    EXPECT(s, "join_sampling_session {X-API-Key: tml-key}; +500 asample #2000000000 {X-API-Key: tml-key} "
              "{\"num_samples\":1,\"prompt\":{\"chunks\":[{\"tokens\":[1,2,3],\"type\":\"encoded_text\"},"
              "{\"data\":\"cGljdHVyZQ==\",\"format\":\"png\",\"expected_tokens\":4,\"type\":\"image\"},{"
              "\"format\":\"jpeg\",\"location\":\"the "
              "place\",\"type\":\"image_asset_pointer\"}]},\"sampling_params\":{\"max_tokens\":1,"
              "\"temperature\":1.0,\"top_k\":-1,\"top_p\":1.0},\"sampling_session_id\":\"mock-session:"
              "sample:0\",\"seq_id\":2000000000,\"prompt_logprobs\":false,\"topk_prompt_logprobs\":0,"
              "\"type\":\"sample\"}; poll {X-API-Key: tml-key} "
              "{\"request_id\":\"mock-request-1\",\"allow_metadata_only\":true}; +100 sample: CANCELLED, "
              "may have run \"sample: cancelled\"");
    scene_shows(s, 0);
    finish(s, begin_sample(s, "another", copy), 10000);
    EXPECT(s, "asample #2000000001 {X-API-Key: tml-key}; poll {X-API-Key: tml-key}; another: done");
    tinkc_sampler_free(copy);
    settle(s);
    tinkc_text_free(&text);
    scene_end(s);
}

int main(void)
{
    unsetenv("TINKER_API_KEY");
    unsetenv("TINKER_BASE_URL");
    unsetenv("TINKER_CREDENTIAL_CMD");
    return test_cases_run(NULL, NULL);
}
