/* test_openai_format.c - calls of functions in the text of an answer, and what tool_choice asks for. */
#include "service/chat/openai_format.h"
#include "support/check.h"
#include "support/scratch.h"

TEST_WITH(calls_are_found_in_each_style, set_up, tear_down)
{
    static const struct {
        int32_t style;
        const char *text;
        size_t n, before;
        const char *name, *arguments; /* of the last */
    } rows[] = {
        { TKE_CALLS_TAGGED, "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>", 1, 0, "add",
          "{\"a\": 1}" },
        { TKE_CALLS_TAGGED,
          "Let me see.\n<tool_call>{\"name\":\"a\"}</tool_call>\n<tool_call>{\"name\":\"b\","
          "\"arguments\":{}}</tool_call>",
          2, 12, "b", "{}" },
        { TKE_CALLS_TAGGED, "<tool_call>{\"name\":\"a\"}", 1, 0, "a", "{}" }, /* stopped by the mark */
        { TKE_CALLS_TAGGED, "no call", 0, 7, NULL, NULL },
        { TKE_CALLS_TAGGED, "<tool_call <tool_call>{\"name\":\"a\"}</tool_call>", 1, 11, "a", "{}" },
        { TKE_CALLS_TAGGED, "<tool_call>{\"name\":\"a\"}</tool_call><tool_call x", 1, 0, "a", "{}" },
        { TKE_CALLS_TAGGED, "<tool_call>{\"name\":\"a\"", 0, 0, NULL, NULL },
        { TKE_CALLS_TAGGED, "<tool_call>{\"name\":\"a\"} x</tool_call>", 0, 0, NULL, NULL },
        { TKE_CALLS_TAGGED, "<tool_call>{\"nam\":\"a\"}</tool_call>", 0, 0, NULL, NULL },
        { TKE_CALLS_TAGGED, "<tool_call>{\"name\":\"a\",\"arguments\":\"x\"}</tool_call>", 0, 0, NULL, NULL },
        { TKE_CALLS_TAGGED, "<tool_call>{\"name\":\"\"}</tool_call>", 0, 0, NULL, NULL },
        { TKE_CALLS_TAGGED, "<tool_call>{\"name\":\"a\"}</tool_call", 0, 0, NULL, NULL },
        { TKE_CALLS_TAGGED, "<tool_call{\"name\":\"a\"}</tool_call>", 0, 36, NULL, NULL },
        { TKE_CALLS_BARE, " {\"name\": \"add\", \"parameters\": {\"a\": \"}\"}} ", 1, 0, "add", "{\"a\": \"}\"}" },
        { TKE_CALLS_BARE, "{\"a\": 1}", 0, 8, NULL, NULL },
        { TKE_CALLS_BARE, "hello", 0, 5, NULL, NULL },
        { TKE_CALLS_NONE, "{\"name\":\"a\"}", 0, 12, NULL, NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tke_tool_call calls[TKE_MOST_CALLS];
        size_t before,
            n = tke_calls_read(rows[i].style, (tinkc_str){ 0 }, tkc_str(rows[i].text), &arena, calls, &before);
        if (n != rows[i].n || (n && before != rows[i].before))
            fail_msg("%s: %zu calls behind %zu bytes", rows[i].text, n, before);
        if (n &&
            (!tkc_str_is(calls[n - 1].name, rows[i].name) || !tkc_str_is(calls[n - 1].arguments, rows[i].arguments)))
            fail_msg("%s: %.*s", rows[i].text, (int)calls[n - 1].arguments.len, calls[n - 1].arguments.data);
    }
}

/* Qwen3-Coder writes values without quotes: the function's schema tells which of them are strings. */
TEST_WITH(calls_with_parameters_as_elements, set_up, tear_down)
{
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
        "\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},"
        "\"o\":{\"type\":\"object\"}}}}}]";
    static const struct {
        const char *text, *name, *arguments; /* NULL: stays text */
    } rows[] = {
        { "<tool_call>\n<function=f>\n<parameter=s>\n7\n</parameter>\n<parameter=n>\n7\n"
          "</parameter>\n</function>\n</tool_call>",
          "f", "{\"s\":\"7\",\"n\":7}" },
        { "<tool_call><function=f><parameter=o>{\"a\": [1]}</parameter></function></tool_call>", "f",
          "{\"o\":{\"a\": [1]}}" },
        { "<tool_call><function=f><parameter=s>\n\"a\n\n b\n</parameter></function></tool_call>", "f",
          "{\"s\":\"\\\"a\\n\\n b\"}" },
        { "<tool_call><function=f></function>", "f", "{}" },
        /* not declared: JSON if it is, else a string */
        { "<tool_call><function=g><parameter=x>true</parameter><parameter=y>so</parameter>"
          "</function></tool_call>",
          "g", "{\"x\":true,\"y\":\"so\"}" },
        { "<tool_call><function=f><parameter=n>seven</parameter></function></tool_call>", NULL, NULL },
        { "<tool_call><function=f><parameter=s>cut off", NULL, NULL },
        { "<tool_call><function=></function></tool_call>", NULL, NULL },
        { "<tool_call><function=f>stray</function></tool_call>", NULL, NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tke_tool_call calls[TKE_MOST_CALLS];
        size_t before;
        size_t n = tke_calls_read(TKE_CALLS_TAGGED, tkc_str(tools), tkc_str(rows[i].text), &arena, calls, &before);
        assert_int_equal(n, rows[i].name != NULL);
        if (n && (!tkc_str_is(calls[0].name, rows[i].name) || !tkc_str_is(calls[0].arguments, rows[i].arguments)))
            fail_msg("%s: %.*s", rows[i].text, (int)calls[0].arguments.len, calls[0].arguments.data);
    }
}

/* As many calls as there is room for; the others are left out. */
TEST_WITH(calls_beyond_the_room_are_left_out, set_up, tear_down)
{
    static const char one[] = "<tool_call>{\"name\":\"a\"}</tool_call>";
    enum { N = sizeof one - 1 };
    static char text[(TKE_MOST_CALLS + 1) * N];
    for (int i = 0; i <= TKE_MOST_CALLS; i++)
        memcpy(text + i * N, one, N);
    for (size_t n = TKE_MOST_CALLS - 1; n <= TKE_MOST_CALLS + 1; n++) {
        tke_tool_call calls[TKE_MOST_CALLS];
        size_t before;
        assert_int_equal(
            tke_calls_read(TKE_CALLS_TAGGED, (tinkc_str){ 0 }, tkc_strn(text, n * N), &arena, calls, &before),
            n < TKE_MOST_CALLS ? n : TKE_MOST_CALLS);
    }
}

TEST_WITH(text_is_held_back_while_a_call_may_begin, set_up, tear_down)
{
    assert_int_equal(tke_calls_certain(TKE_CALLS_NONE, tkc_str("a<tool")), 6);
    assert_int_equal(tke_calls_certain(TKE_CALLS_TAGGED, tkc_str("a<tool")), 1);
    assert_int_equal(tke_calls_certain(TKE_CALLS_TAGGED, tkc_str("a<tool_call>{")), 1);
    assert_int_equal(tke_calls_certain(TKE_CALLS_TAGGED, tkc_str("a < b")), 5);
    static const char opening[] = "ab<tool_call>"; /* held back from its first byte on */
    for (size_t n = 0; n < sizeof opening; n++)
        assert_int_equal(tke_calls_certain(TKE_CALLS_TAGGED, tkc_strn(opening, n)), n < 2 ? n : 2);
    assert_int_equal(tke_calls_certain(TKE_CALLS_BARE, tkc_str("\n ")), 0);
    assert_int_equal(tke_calls_certain(TKE_CALLS_BARE, tkc_str("\n{\"a")), 0);
    assert_int_equal(tke_calls_certain(TKE_CALLS_BARE, tkc_str("Yes {")), 5);
}

static void expect_refused(tke_answer_form f, const char *chat_template, const char *param, const char *words)
{
    tinkc_error err = { 0 };
    const char *named = "";
    if (tke_form_read(&f, &arena, &named, &err) && tke_form_style(&f, chat_template, &named, &err))
        (void)tke_form_grammar(&f, &arena, &named, &err);
    if (!err.code || strcmp(named, param) != 0 || !strstr(err.message, words))
        fail_msg("%s: \"%s\"", named, err.message);
}

TEST_WITH(tools_and_formats_need_a_model_that_takes_them, set_up, tear_down)
{
    static const char tagged[] = "{% if tools %}<tool_call>{% endif %}";
    const tinkc_str tools = tkc_str("[{\"type\":\"function\",\"function\":{\"name\":\"add\"}}]");
    const tinkc_str object = tkc_str("{\"type\":\"json_object\"}");
    expect_refused((tke_answer_form){ .tools = tools }, NULL, "tools", "does not take tools");
    expect_refused((tke_answer_form){ .tools = tools, .tool_choice = tkc_str("\"sometimes\"") }, tagged, "tool_choice",
                   "must be none, auto");
    expect_refused((tke_answer_form){ .tools = tools, .tool_choice = tkc_str("{\"type\":\"x\"}") }, tagged,
                   "tool_choice", "must be none, auto");
    expect_refused((tke_answer_form){ .tools = tools,
                                      .tool_choice = tkc_str("{\"type\":\"function\",\"function\":{\"name\":"
                                                             "\"sub\"}}") },
                   tagged, "tools", "no tool is called 'sub'");
    expect_refused((tke_answer_form){ .tools = tools, .tool_choice = tkc_str("\"required\"") },
                   "{{ tools }}<function=", "tool_choice", "not known");
    static const char bare[] = "{{ tools }} {\"name\": x, \"parameters\": y}";
    expect_refused((tke_answer_form){ .tools = tools, .response_format = object }, bare, "response_format",
                   "cannot be combined with tools for this model");
    expect_refused((tke_answer_form){ .tools = tools, .response_format = object },
                   "{{ tools }}<function=", "response_format", "cannot be combined with tools for this model");
    expect_refused((tke_answer_form){ .response_format = tkc_str("{\"type\":\"xml\"}") }, NULL, "response_format",
                   "type must be");
    expect_refused((tke_answer_form){ .response_format = tkc_str("{\"type\":\"json_schema\"}") }, NULL,
                   "response_format", "json_schema is required");
    expect_refused((tke_answer_form){ .response_format = tkc_str("{\"type\":\"text\",\"x\":1}") }, NULL,
                   "response_format", "'x'");
}

/* What must be said for each mistake, whole. */
TEST_WITH(each_mistake_is_named_with_its_parameter, set_up, tear_down)
{
    static const char tagged[] = "{% if tools %}<tool_call>{% endif %}";
    static const char function[] =
        "must be none, auto, required, or a function: {\"type\": \"function\", \"function\": "
        "{\"name\": ...}}";
    static const struct {
        const char *tools, *choice, *format, *param, *text;
    } rows[] = {
        { "[{\"function\":{\"name\":\"a\"}}]", "{\"type\":\"function\",\"more\":1}", NULL, "tool_choice",
          "the member 'more' is not supported" },
        { "[{\"function\":{\"name\":\"a\"}}]", "{\"type\":\"function\",\"function\":{\"x\":1}}", NULL, "tool_choice",
          function },
        { "[{\"function\":{\"name\":\"a\"}}]", "{\"function\":{\"name\":\"a\"}}", NULL, "tool_choice", function },
        { "[{\"function\":{\"name\":\"a\"}}]", "{\"type\":\"other\",\"function\":{\"name\":\"a\"}}", NULL,
          "tool_choice", function },
        { "[{\"function\":{\"name\":\"a\"}}]", "\"any\"", NULL, "tool_choice",
          "must be none, auto, required or a function" },
        { "[]", "\"required\"", NULL, "tool_choice", "a call is required, and tools is empty" },
        { NULL, "\"required\"", NULL, "tool_choice", "a call is required, and tools is empty" },
        { "[{\"function\":{\"name\":\"a\"}}]", "\"required\"", "{}", "response_format",
          "type must be text, json_object or json_schema" },
        { "[{\"type\":\"function\",\"function\":{\"parameters\":{}}}]", "\"required\"", NULL, "tools",
          "tools: a function has no name" },
        { "[{\"function\":{\"name\":\"a\"}},7]", "\"required\"", NULL, "tools",
          "JSON: an object is needed at byte 27" },
        { "[{\"function\":7}]", "\"required\"", NULL, "tools", "JSON: an object is needed at byte 13" },
        { "[{\"function\":{\"name\":\"a\"}}]", "{\"type\":\"function\",\"function\":7}", NULL, "tool_choice",
          "JSON: an object is needed at byte 30" },
        { "[{\"function\":{\"name\":\"a\"}}]", "7", NULL, "tool_choice", "JSON: an object is needed at byte 0" },
        { NULL, NULL, "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{},\"more\":1}}",
          "response_format", "the member 'more' is not supported" },
        { NULL, NULL, "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\"}}", "response_format",
          "json_schema needs a schema" },
        { NULL, NULL, "{\"type\":\"json_schema\",\"json_schema\":[]}", "response_format",
          "JSON: an object is needed at byte 36" },
        { NULL, NULL, "{\"type\":\"json_schema\"}", "response_format", "json_schema is required with this type" },
        { NULL, NULL, "{}", "response_format", "type must be text, json_object or json_schema" },
        { "[{\"function\":{\"parameters\":{}}}]", "\"auto\"", "{\"type\":\"json_object\"}", "tools",
          "tools: a function has no name" },
        { "[{\"function\":{\"name\":\"a\"}}]", "\"auto\"",
          "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"format\":\"date\"}}}", "response_format",
          "this keyword of JSON schema is not supported: 'format'" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        const char *param = "";
        tke_answer_form f = { .response_format = tkc_str(rows[i].format),
                              .tools = tkc_str(rows[i].tools),
                              .tool_choice = tkc_str(rows[i].choice) };
        if (tke_form_read(&f, &arena, &param, &err) && tke_form_style(&f, tagged, &param, &err))
            assert_null(tke_form_grammar(&f, &arena, &param, &err));
        assert_string_equal(param, rows[i].param);
        assert_string_equal(err.message, rows[i].text);
    }
}

static bool accepts(const tke_grammar *g, const char *text)
{
    tke_grammar_state s;
    tke_grammar_start(g, &s);
    for (; *text; text++)
        if (!s.depth || !tke_grammar_step(g, &s, (uint8_t)*text))
            return false;
    return tke_grammar_may_end(g, &s);
}

/* The answers that a request allows. */
TEST_WITH(a_request_becomes_the_grammar_of_its_answers, set_up, tear_down)
{
    static const char tagged[] = "{% if tools %}<tool_call>{% endif %}", bare[] = "{{ tools }} \"parameters\"",
                      tools[] = "[{\"type\":\"function\",\"function\":{\"description\":\"d\","
                                "\"name\":\"a\",\"parameters\":{\"type\":\"object\",\"properties\":"
                                "{\"x\":{\"const\":1}},\"required\":[\"x\"]}}},{\"function\":{"
                                "\"name\":\"b\"}}]",
                      only_a[] = "{\"type\":\"function\",\"function\":{\"more\":1,\"name\":\"a\"}}",
                      call_a[] = "<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": 1}}\n"
                                 "</tool_call>",
                      call_b[] = "<tool_call>\n{\"name\": \"b\", \"arguments\": {}}\n</tool_call>",
                      bare_a[] = "{\"name\": \"a\", \"parameters\": {\"x\": 1}}",
                      schema[] = "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\","
                                 "\"strict\":true,\"description\":\"d\",\"schema\":{\"const\":5}}}";
    static const struct {
        const char *chat_template, *choice, *format, *text;
        bool fits;
    } rows[] = {
        { tagged, "\"required\"", NULL, call_a, true },
        { tagged, "\"required\"", NULL, call_b, true },
        { tagged, "\"required\"", NULL, bare_a, false },
        { tagged, "\"required\"", NULL, "{}", false },
        { tagged, only_a, NULL, call_a, true },
        { tagged, only_a, NULL, call_b, false },
        { bare, "\"required\"", NULL, bare_a, true },
        { bare, "\"required\"", NULL, call_a, false },
        { NULL, NULL, schema, "5", true },
        { NULL, NULL, schema, "6", false },
        { NULL, NULL, "{\"type\":\"json_object\"}", "{\"a\": [1]}", true },
        { NULL, NULL, "{\"type\":\"json_object\"}", "5", false },
        { tagged, "\"none\"", "{\"type\":\"json_object\"}", "{}", true },
        /* a call, or a text of the form; if a call is required, there is no text */
        { tagged, "\"auto\"", schema, call_a, true },
        { tagged, NULL, schema, call_b, true },
        { tagged, "\"auto\"", schema, "5", true },
        { tagged, "\"auto\"", schema, "6", false },
        { tagged, "\"auto\"", "{\"type\":\"json_object\"}", "{}", true },
        { tagged, "\"required\"", schema, call_a, true },
        { tagged, "\"required\"", schema, "5", false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        const char *param = "";
        tke_answer_form f = { .response_format = tkc_str(rows[i].format),
                              .tools = tkc_str(rows[i].chat_template ? tools : NULL),
                              .tool_choice = tkc_str(rows[i].choice) };
        assert_true(tke_form_read(&f, &arena, &param, &err));
        assert_true(tke_form_style(&f, rows[i].chat_template, &param, &err));
        const tke_grammar *g = tke_form_grammar(&f, &arena, &param, &err);
        assert_ok(err);
        assert_non_null(g);
        if (accepts(g, rows[i].text) != rows[i].fits)
            fail_msg("row %zu: %s", i, rows[i].text);
    }
    static const char *const free_forms[][2] = {
        { NULL, NULL }, { "\"auto\"", NULL }, { "\"none\"", NULL }, { "\"auto\"", "{\"type\":\"text\"}" }
    };
    for (size_t i = 0; i < sizeof free_forms / sizeof *free_forms; i++) {
        tinkc_error err = { 0 };
        const char *param = "";
        tke_answer_form f = { .tools = tkc_str(tools),
                              .tool_choice = tkc_str(free_forms[i][0]),
                              .response_format = tkc_str(free_forms[i][1]) };
        assert_true(tke_form_read(&f, &arena, &param, &err));
        assert_int_equal(f.offers, i != 2);
        assert_false(f.must_call);
        assert_true(tke_form_style(&f, tagged, &param, &err));
        assert_int_equal(f.style, i != 2 ? TKE_CALLS_TAGGED : TKE_CALLS_NONE);
        assert_null(tke_form_grammar(&f, &arena, &param, &err));
        assert_ok(err);
    }
}

/* 128 tools, and not one more. */
TEST_WITH(there_are_at_most_128_tools, set_up, tear_down)
{
    for (int n = 128; n <= 129; n++) {
        tinkc_error err = { 0 };
        const char *param = "";
        tkc_buf tools;
        tkc_buf_init(&tools, NULL, TKC_BUF_NO_MAX);
        for (int i = 0; i < n; i++)
            tkc_buf_printf(&tools, &err, "%s{\"function\":{\"name\":\"f%d\"}}", i ? "," : "[", i);
        tkc_buf_char(&tools, ']', &err);
        tke_answer_form f = { .tools = tkc_buf_view(&tools), .tool_choice = tkc_str("\"required\"") };
        assert_true(tke_form_read(&f, &arena, &param, &err));
        assert_true(tke_form_style(&f, "tools<tool_call>", &param, &err));
        const tke_grammar *g = tke_form_grammar(&f, &arena, &param, &err);
        assert_int_equal(g != NULL, n == 128);
        assert_string_equal(err.message, n == 128 ? "" : "tools: more than 128");
        tkc_buf_free(&tools);
    }
}
