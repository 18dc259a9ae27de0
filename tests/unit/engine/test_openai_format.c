/* test_openai_format.c - calls of functions in the text of an answer, and what tool_choice asks for. */
#include "service/openai_format.h"
#include "support/check.h"
#include "support/scratch.h"

static void test_calls(void **state)
{
    static const struct {
        int32_t style;
        const char *text;
        size_t n, before;
        const char *name, *arguments; /* of the last */
    } rows[] = {
        { TKE_CALLS_TAGGED,
          "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>", 1, 0, "add",
          "{\"a\": 1}" },
        { TKE_CALLS_TAGGED,
          "Let me see.\n<tool_call>{\"name\":\"a\"}</tool_call>\n<tool_call>{\"name\":\"b\","
          "\"arguments\":{}}</tool_call>",
          2, 12, "b", "{}" },
        { TKE_CALLS_TAGGED, "<tool_call>{\"name\":\"a\"}", 1, 0, "a",
          "{}" }, /* stopped by the mark */
        { TKE_CALLS_TAGGED, "no call", 0, 7, NULL, NULL },
        { TKE_CALLS_TAGGED, "<tool_call>{\"name\":\"a\"", 0, 0, NULL, NULL },
        { TKE_CALLS_TAGGED, "<tool_call>{\"name\":\"a\"} x</tool_call>", 0, 0, NULL, NULL },
        { TKE_CALLS_TAGGED, "<tool_call>{\"nam\":\"a\"}</tool_call>", 0, 0, NULL, NULL },
        { TKE_CALLS_TAGGED, "<tool_call>{\"name\":\"a\",\"arguments\":\"x\"}</tool_call>", 0, 0,
          NULL, NULL },
        { TKE_CALLS_TAGGED, "<tool_call>{\"name\":\"\"}</tool_call>", 0, 0, NULL, NULL },
        { TKE_CALLS_BARE, " {\"name\": \"add\", \"parameters\": {\"a\": \"}\"}} ", 1, 0, "add",
          "{\"a\": \"}\"}" },
        { TKE_CALLS_BARE, "{\"a\": 1}", 0, 8, NULL, NULL },
        { TKE_CALLS_BARE, "hello", 0, 5, NULL, NULL },
        { TKE_CALLS_NONE, "{\"name\":\"a\"}", 0, 12, NULL, NULL },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tke_tool_call calls[TKE_MOST_CALLS];
        size_t before,
            n = tke_calls_read(rows[i].style, tkc_str(rows[i].text), &arena, calls, &before);
        if (n != rows[i].n || (n && before != rows[i].before))
            fail_msg("%s: %zu calls behind %zu bytes", rows[i].text, n, before);
        if (n && (!tkc_str_is(calls[n - 1].name, rows[i].name) ||
                  !tkc_str_is(calls[n - 1].arguments, rows[i].arguments)))
            fail_msg("%s: %.*s", rows[i].text, (int)calls[n - 1].arguments.len,
                     calls[n - 1].arguments.data);
    }
}

static void test_certain(void **state)
{
    (void)state;
    assert_int_equal(tke_calls_certain(TKE_CALLS_NONE, tkc_str("a<tool")), 6);
    assert_int_equal(tke_calls_certain(TKE_CALLS_TAGGED, tkc_str("a<tool")), 1);
    assert_int_equal(tke_calls_certain(TKE_CALLS_TAGGED, tkc_str("a<tool_call>{")), 1);
    assert_int_equal(tke_calls_certain(TKE_CALLS_TAGGED, tkc_str("a < b")), 5);
    assert_int_equal(tke_calls_certain(TKE_CALLS_BARE, tkc_str("\n ")), 0);
    assert_int_equal(tke_calls_certain(TKE_CALLS_BARE, tkc_str("\n{\"a")), 0);
    assert_int_equal(tke_calls_certain(TKE_CALLS_BARE, tkc_str("Yes {")), 5);
}

static void expect_refused(tke_answer_form f, const char *chat_template, const char *param,
                           const char *words)
{
    tinkc_error err = { 0 };
    const char *named = "";
    if (tke_form_read(&f, &arena, &named, &err) && tke_form_style(&f, chat_template, &named, &err))
        (void)tke_form_grammar(&f, &arena, &named, &err);
    if (!err.code || strcmp(named, param) != 0 || !strstr(err.message, words))
        fail_msg("%s: \"%s\"", named, err.message);
}

static void test_refused(void **state)
{
    static const char tagged[] = "{% if tools %}<tool_call>{% endif %}";
    const tinkc_str tools = tkc_str("[{\"type\":\"function\",\"function\":{\"name\":\"add\"}}]");
    const tinkc_str object = tkc_str("{\"type\":\"json_object\"}");
    (void)state;
    expect_refused((tke_answer_form){ .tools = tools }, NULL, "tools", "does not take tools");
    expect_refused((tke_answer_form){ .tools = tools, .tool_choice = tkc_str("\"sometimes\"") },
                   tagged, "tool_choice", "must be none, auto");
    expect_refused((tke_answer_form){ .tools = tools, .tool_choice = tkc_str("{\"type\":\"x\"}") },
                   tagged, "tool_choice", "must be none, auto");
    expect_refused(
        (tke_answer_form){ .tools = tools,
                           .tool_choice = tkc_str("{\"type\":\"function\",\"function\":{\"name\":"
                                                  "\"sub\"}}") },
        tagged, "tools", "no tool is called 'sub'");
    expect_refused((tke_answer_form){ .tools = tools, .tool_choice = tkc_str("\"required\"") },
                   "{{ tools }}<function=", "tool_choice", "not known");
    expect_refused((tke_answer_form){ .tools = tools, .response_format = object }, tagged,
                   "response_format", "cannot be combined with tools");
    expect_refused((tke_answer_form){ .response_format = tkc_str("{\"type\":\"xml\"}") }, NULL,
                   "response_format", "type must be");
    expect_refused((tke_answer_form){ .response_format = tkc_str("{\"type\":\"json_schema\"}") },
                   NULL, "response_format", "json_schema is required");
    expect_refused((tke_answer_form){ .response_format = tkc_str("{\"type\":\"text\",\"x\":1}") },
                   NULL, "response_format", "'x'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_calls, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_certain, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refused, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
