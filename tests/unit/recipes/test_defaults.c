/* test_defaults.c - the limits and sizes of the recipes where an option says nothing. All times are milliseconds. */
#include "recipes/env.h"
#include "recipes/reward.h"
#include "support/client/api_support.h"

TEST(a_reward_url_has_a_minute)
{
    static const struct {
        int64_t given, used;
    } rows[] = { { 0, 60000 }, { 1, 1 }, { 90000, 90000 } };
    for (size_t i = 0; i < 3; i++) {
        tinkc_error err = { 0 };
        tinkc_reward *r = tinkc_reward_url("http://127.0.0.1:1/", rows[i].given, &err);
        assert_ok(&err);
        assert_int_equal(tkr_reward_timeout_ms(r), rows[i].used);
        tinkc_reward_free(r);
    }
}

static void note_verdict(void *user, size_t which, bool ok, double reward, const tkc_tree *metrics, const char *why)
{
    (void)which, (void)reward, (void)metrics;
    (void)snprintf(user, 400, "%s: %s", ok ? "graded" : "failed", why);
}

/* The prompt of a request, as text. */
static void read_prompt(const tinkc_request *r, const tinkc_tokenizer *tokenizer, tinkc_text *out)
{
    tinkc_error err = { 0 };
    tinkc_tokens ids = { 0 };
    const char *at = memmem(r->body.data, r->body.len, "\"tokens\":[", 10);
    assert_non_null(at);
    for (at += 9; *at != ']';) {
        int32_t id = (int32_t)strtol(at + 1, (char **)(uintptr_t)&at, 10);
        assert_true(tinkc_tokens_append(&ids, &id, 1, &err));
    }
    (void)tinkc_decode(tokenizer, ids.data, ids.len, out, &err);
    assert_ok(&err);
    tinkc_tokens_free(&ids);
}

/* Greedy, at most 512 tokens, and five minutes for them. A row's own rubric goes before the common one. */
TEST(a_rubric_has_five_minutes_for_512_tokens)
{
    tinkc_error err = { 0 };
    tinkc_mock *mock = tinkc_mock_new(TINKC_MOCK_SERVICE, &err);
    tinkc_client *client = mock_client(mock, NULL, &err);
    tinkc_sampler *sampler = tinkc_sampler_new(client, &(tinkc_sampler_options){ .base_model = "mock/nano" }, &err);
    tinkc_tokenizer *tokenizer = tinkc_tokenizer_open("models/nano", NULL, &err);
    tinkc_queue *queue = tinkc_queue_new(client, &err);
    tinkc_reward *r = tinkc_reward_rubric(sampler, tokenizer, NULL, "Is it short?", &err);
    assert_ok(&err);
    assert_int_equal(tkr_reward_timeout_ms(r), 300000);
    tinkc_mock_always(mock, NULL, "/api/v1/asample", &(tinkc_mock_answer){ .fault = TINKC_FAULT_SILENT }, &err);
    tinkc_rollout rollout = { .row_json = "{\"rubric\":\"Is it kind?\"}",
                              .messages_json = "[{\"role\":\"user\",\"content\":\"Hi\"}]",
                              .text = "Ho" };
    char verdict[400] = "";
    tkr_asking asking = { .fn = note_verdict, .user = verdict };
    assert_true(tkr_reward_begin(&asking, r, &rollout, 1, queue, &err));
    (void)tinkc_mock_settle(mock, PATIENCE_MS, &err);
    assert_ok(&err);
    const tinkc_request *sent = nth_request(mock, "/api/v1/asample", 0);
    assert_non_null(sent);
    assert_non_null(memmem(sent->body.data, sent->body.len, "\"max_tokens\":512", 16));
    assert_non_null(memmem(sent->body.data, sent->body.len, "\"temperature\":0", 15));
    tinkc_text prompt = { 0 };
    read_prompt(sent, tokenizer, &prompt);
    assert_true(strstr(prompt.data, "Is it kind?") && !strstr(prompt.data, "Is it short?"));
    tinkc_text_free(&prompt);
    tinkc_mock_advance(mock, 300000);
    assert_int_equal(tinkc_queue_run(queue, PATIENCE_MS, &err), 1);
    assert_non_null(strstr(verdict, "failed: sample: not complete within its time"));
    tinkc_reward_free(r);
    tinkc_queue_free(queue);
    tinkc_tokenizer_free(tokenizer);
    tinkc_sampler_free(sampler);
    tinkc_client_free(client);
    tinkc_mock_free(mock);
}

static void note_first(const char *what, bool passed, const char *why, void *user)
{
    char *first = user;
    if (!first[0])
        snprintf(first, 400, "%s: %s %s", what, passed ? "yes" : "no", why ? why : "");
}

static void note_faults(const char *what, bool passed, const char *why, void *user)
{
    size_t len = strlen(user);
    (void)why;
    if (!passed)
        snprintf((char *)user + len, 400 - len, "%s; ", what);
}

/* One that has a good answer for everything does not pass. */
TEST(a_check_of_an_environment_expects_errors)
{
    tinkc_error err = { 0 };
    char faults[400] = "";
    assert_false(
        tinkc_env_check("while read -r l; do i=${l#*'\"id\":'}; printf '{\"id\":%s,' ${i%%[,\\}]*}; case $l in "
                        "*reset*) echo '\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}';; "
                        "*) echo '\"reward\":1,\"done\":true}';; esac; done",
                        NULL, 0, note_faults, faults, &err));
    assert_string_equal(faults, "a step of an episode that is over is answered with an error; "
                                "an unknown type is answered with an error; "
                                "close ends an episode without an answer; ");
}

/* Ten seconds for each line: one that needs a tenth of a second for its first is in time. */
TEST(a_check_of_an_environment_waits_for_slow_ones)
{
    tinkc_error err = { 0 };
    char first[400] = "";
    (void)tinkc_env_check("read -r l; sleep 0.1; echo '{\"id\":0,\"messages\":[{\"role\":\"user\","
                          "\"content\":\"a\"}]}'",
                          NULL, 0, note_first, first, &err);
    if (strstr(first, "did not answer within"))
        fail_msg("%s", first);
}
