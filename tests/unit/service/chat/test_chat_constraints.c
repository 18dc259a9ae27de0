/* test_chat_constraints.c - answers under a constraint, on the shipped model: response_format and required
 * calls. Every answer fits, whatever the seed; its bits do not depend on company; its log-probs are the
 * model's own. */
#include <math.h>
#include <unistd.h>

#include "recipes/schema.h"
#include "support/check.h"
#include "support/json_trees.h"
#include "support/service/service_call.h"
#include "support/service/tool_model.h"

static const char schema[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},\"age\":{"
    "\"type\":\"integer\","
    "\"minimum\":0,\"maximum\":130},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"new\","
    "\"n\\u00f6\"]},\"minItems\":1,"
    "\"maxItems\":3},\"more\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"object\","
    "\"additionalProperties\":{\"type\":"
    "\"number\"}}]}},\"required\":[\"name\",\"age\",\"more\"],\"additionalProperties\":false}";
static const char question[] = "[{\"role\":\"user\",\"content\":\"What is 7 + 5?\"}]";
static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":"
                            "{\"type\":\"object\",\"properties\":{\"a\":{"
                            "\"type\":\"integer\"},\"b\":{\"type\":\"integer\"}},\"required\":["
                            "\"a\",\"b\"]}}},{\"type\":\"function\",\"function\":{"
                            "\"name\":\"look_up\",\"parameters\":{\"type\":\"object\","
                            "\"properties\":{\"word\":{\"type\":\"string\"}}}}}]";
static tkc_tree *ask(const char *model, const char *rest)
{
    tkc_tree *v = json_of(service_json(t, 200, "POST", "/v1/chat/completions", "{\"model\":\"%s\",\"messages\":%s,%s}",
                                       model, question, rest));
    assert_non_null(v);
    return v;
}

static const tkc_tree *choice(const tkc_tree *v, size_t i)
{
    return tkc_tree_at(tkc_tree_get(v, "choices"), i);
}

static const char *text_of(const tkc_tree *v, size_t i)
{
    return tkc_tree_get_text(tkc_tree_get(choice(v, i), "message"), "content");
}

static void expect_fits(const tkc_tree *rules, const char *text)
{
    tinkc_error err = { 0 };
    tkc_tree *v = json_of_any(text ? text : "", text ? strlen(text) : 0);
    if (!v)
        fail_msg("not JSON: %s", text);
    if (!tkr_schema_conforms(rules, v, &err) || err.code)
        fail_msg("does not fit (%s): %s", err.message, text);
}

/* 200 seeds, at temperatures up to 2 and with as few tokens as can be. */
TEST(whatever_the_seed_the_text_fits_its_schema)
{
    char rest[1600];
    tkc_tree *rules = json_of(schema);
    for (int i = 0; i < 25; i++) {
        snprintf(rest, sizeof rest,
                 "\"seed\":%d,\"n\":8,\"max_tokens\":%d,\"temperature\":%g,\"response_format\":{"
                 "\"type\":\"json_schema\","
                 "\"json_schema\":{\"name\":\"x\",\"schema\":%s}}",
                 i, 36 + i, 0.25 * (i % 9), schema);
        tkc_tree *v = ask("nano", rest);
        for (size_t k = 0; k < 8; k++) {
            expect_fits(rules, text_of(v, k));
            assert_string_equal(tkc_tree_get_text(choice(v, k), "finish_reason"), "stop");
        }
    }
}

TEST(json_object_gives_an_object)
{
    tkc_tree *rules = json_of("{\"type\":\"object\"}");
    for (int i = 0; i < 8; i++) {
        char rest[200];
        snprintf(rest, sizeof rest,
                 "\"seed\":%d,\"n\":4,\"temperature\":1.7,\"max_tokens\":%d,\"response_format\":{"
                 "\"type\":\"json_object\"}",
                 i, 2 + 6 * i);
        tkc_tree *v = ask("nano", rest);
        for (size_t k = 0; k < 4; k++)
            expect_fits(rules, text_of(v, k));
    }
}

static double first_logprob(const tkc_tree *v, size_t top)
{
    const tkc_tree *token = tkc_tree_at(tkc_tree_get(tkc_tree_get(choice(v, 0), "logprobs"), "content"), 0);
    const tkc_tree *at = top ? tkc_tree_at(tkc_tree_get(token, "top_logprobs"), top - 1) : token;
    assert_non_null(at);
    return tkc_tree_get_number(at, "logprob");
}

/* The likeliest tokens and their log-probs are the model's own; what is drawn has its own too, however
 * unlikely the constraint makes it. */
TEST(logprobs_are_the_models_own)
{
    tkc_tree *freely = ask("nano", "\"temperature\":0,\"max_tokens\":40,\"logprobs\":true,\"top_logprobs\":3");
    tkc_tree *bound = ask("nano", "\"temperature\":0,\"max_tokens\":40,\"logprobs\":true,\"top_logprobs\":3,"
                                  "\"response_format\":{\"type\":\"json_object\"}");
    for (size_t i = 1; i <= 3; i++)
        assert_true(first_logprob(freely, i) == first_logprob(bound, i));
    assert_true(first_logprob(freely, 0) == first_logprob(freely, 1));
    assert_true(first_logprob(bound, 0) < first_logprob(bound, 3)); /* not renormalised */
}

/* The same sample alone and among others, each with a state of its own. */
TEST(a_constraint_has_a_state_of_its_own)
{
    char one[1500], many[1500];
    for (int i = 0; i < 4; i++) {
        static const char form[] =
            "\"seed\":%d,\"n\":%d,\"max_tokens\":60,\"response_format\":{\"type\":\"json_schema\","
            "\"json_schema\":{\"name\":\"x\",\"schema\":%s}}";
        snprintf(one, sizeof one, form, i, 1, schema);
        snprintf(many, sizeof many, form, i, 7, schema);
        tkc_tree *a = ask("nano", one), *b = ask("nano", many);
        assert_string_equal(text_of(a, 0), text_of(b, 0));
    }
}

static const tkc_tree *call_of(const tkc_tree *message, const char *name)
{
    const tkc_tree *f = tkc_tree_get(tkc_tree_at(tkc_tree_get(message, "tool_calls"), 0), "function");
    const char *called = tkc_tree_get_text(f, "name");
    assert_non_null(called);
    if (name)
        assert_string_equal(called, name);
    return f;
}

TEST(a_required_call_fits_its_parameters)
{
    char rest[1500];
    tkc_tree *rules = json_of("{\"type\":\"object\",\"required\":[\"a\",\"b\"],\"properties\":{"
                              "\"a\":{\"type\":\"integer\"},"
                              "\"b\":{\"type\":\"integer\"}}}");
    for (int i = 0; i < 10; i++) {
        const char *how = i % 2 ? "\"required\"" : "{\"type\":\"function\",\"function\":{\"name\":\"add\"}}";
        snprintf(rest, sizeof rest, "\"seed\":%d,\"max_tokens\":90,\"tools\":%s,\"tool_choice\":%s", i, tools, how);
        tkc_tree *v = ask("tools", rest);
        const tkc_tree *message = tkc_tree_get(choice(v, 0), "message");
        assert_true(tkc_tree_is_null(tkc_tree_get(message, "content")));
        assert_string_equal(tkc_tree_get_text(choice(v, 0), "finish_reason"), "tool_calls");
        const tkc_tree *f = call_of(message, i % 2 ? NULL : "add");
        if (strcmp(tkc_tree_get_text(f, "name"), "add") == 0)
            expect_fits(rules, tkc_tree_get_text(f, "arguments"));
    }
    tkc_tree *v = ask("tools", "\"max_tokens\":4,\"tools\":[{\"type\":\"function\",\"function\":{"
                               "\"name\":\"a\"}}],\"tool_choice\":"
                               "\"none\"");
    assert_non_null(text_of(v, 0));
}

/* As events: the role, one delta with the call, the reason, the end. */
TEST(a_call_is_streamed_as_one_delta)
{
    char body[1600];
    snprintf(body, sizeof body,
             "{\"model\":\"tools\",\"messages\":%s,\"stream\":true,\"seed\":3,\"max_tokens\":90,"
             "\"tools\":%s,\"tool_choice\":"
             "\"required\"}",
             question, tools);
    answer a = service_call(t, "POST", "/v1/chat/completions", NULL, body, strlen(body));
    assert_int_equal(a.status, 200);
    const char *call = strstr(a.body.data, "\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_");
    assert_non_null(call);
    assert_non_null(strstr(call, "\"finish_reason\":\"tool_calls\""));
    assert_non_null(strstr(call, "data: [DONE]"));
    assert_null(strstr(a.body.data, "<tool_call>")); /* no part of it is text */
    answer_free(&a);
}

TEST(a_schema_that_cannot_be_met_is_refused)
{
    static const char *const rows[][2] = {
        { "\"max_tokens\":5,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{"
          "\"schema\":{\"type\":\"string\","
          "\"minLength\":9}}}",
          "the shortest text that fits has 11 bytes" },
        { "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":"
          "\"string\",\"format\":\"a\"}}}",
          "'format'" },
        { "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}}]", "does not take tools" },
        { "\"tool_choice\":\"required\",\"tools\":[]", "tools is empty" },
    };
    char body[900];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(body, sizeof body, "{\"model\":\"nano\",\"messages\":%s,%s}", question, rows[i][0]);
        answer a = service_call(t, "POST", "/v1/chat/completions", NULL, body, strlen(body));
        if (a.status != 400 || !strstr(a.body.data, rows[i][1]))
            fail_msg("%s: %d %s", rows[i][0], (int)a.status, a.body.data);
        answer_free(&a);
    }
}

RUN_TESTS(setup, teardown)
