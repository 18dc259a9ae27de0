/* test_chat_translate.c - what requests in other forms become: messages and tools as templates take them. */
#include "base/str.h"
#include "service/chat/chat_translate.h"
#include "support/check.h"

static tkc_arena arena;
static tinkc_error err;

static int setup(void **state)
{
    (void)state;
    err = (tinkc_error){ 0 };
    tkc_arena_init(&arena, NULL, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tkc_arena_free(&arena);
    return 0;
}

static void gather(tke_chat_writer *t, const char *text, const char *thought)
{
    tkc_buf_cstr(&t->text, text, &err);
    tkc_buf_cstr(&t->thought, thought, &err);
    t->any = true;
}

static void expect_text(tinkc_str made, const char *wanted)
{
    assert_ok(err);
    assert_string_equal(made.data, wanted);
    assert_int_equal(made.len, strlen(wanted));
}

/* Thoughts are not said, calls are beside what is said, and a message leaves nothing for the next. */
TEST_WITH(a_message_has_what_was_gathered_for_it, setup, teardown)
{
    tke_chat_writer t;
    tke_chat_writer_open(&t, &arena, &err);
    gather(&t, "said", "thought");
    tke_chat_call(&t, tkc_str("1"), tkc_str("f"), tkc_str("{}"), false);
    tke_chat_flush(&t, "assistant");
    gather(&t, "next", "");
    tke_chat_flush(&t, "user");
    tke_chat_flush(&t, "user"); /* nothing was gathered */
    expect_text(tke_chat_writer_close(&t),
                "[{\"role\":\"assistant\",\"content\":\"said\",\"reasoning_content\":\"thought\","
                "\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
                "\"arguments\":{}}}]},{\"role\":\"user\",\"content\":\"next\"}]");
}

TEST_WITH(a_call_alone_is_a_message_without_text, setup, teardown)
{
    tke_chat_writer t;
    tke_chat_writer_open(&t, &arena, &err);
    tke_chat_call(&t, tkc_str("1"), tkc_str("f"), tkc_str("{\"a\":1}"), true);
    tke_chat_call(&t, tkc_str("2"), tkc_str("g"), tkc_str("{\"a\":1}"), false);
    tke_chat_flush(&t, "assistant");
    expect_text(tke_chat_writer_close(&t), "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":["
                                           "{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
                                           "\"arguments\":\"{\\\"a\\\":1}\"}},"
                                           "{\"id\":\"2\",\"type\":\"function\",\"function\":{\"name\":\"g\","
                                           "\"arguments\":{\"a\":1}}}]}]");
}

TEST_WITH(a_result_names_its_call, setup, teardown)
{
    tke_chat_writer t;
    tke_chat_writer_open(&t, &arena, &err);
    tke_chat_message(&t, "tool", tkc_str("7"), tkc_str("12"));
    tke_chat_message(&t, "user", (tinkc_str){ 0 }, (tinkc_str){ 0 });
    expect_text(tke_chat_writer_close(&t), "[{\"role\":\"tool\",\"content\":\"12\",\"tool_call_id\":\"7\"},"
                                           "{\"role\":\"user\",\"content\":\"\"}]");
}

static void write_named(tkc_json *j, tkc_jsonw *w, tinkc_error *e)
{
    tinkc_str name = tkc_json_string(j);
    bool bare = tkc_str_is(name, "bare");
    (void)e;
    tke_chat_tool(w, name, bare ? (tinkc_str){ 0 } : tkc_str("adds"),
                  bare ? (tinkc_str){ 0 } : tkc_str("{\"type\":\"object\"}"));
}

TEST_WITH(a_tool_without_parameters_takes_none, setup, teardown)
{
    expect_text(tke_chat_tools(tkc_str("[\"add\",\"bare\"]"), &arena, write_named, &err),
                "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"description\":\"adds\","
                "\"parameters\":{\"type\":\"object\"}}},"
                "{\"type\":\"function\",\"function\":{\"name\":\"bare\",\"parameters\":{}}}]");
    expect_text(tke_chat_named_choice(tkc_str("a\"b"), &arena, &err),
                "{\"type\":\"function\",\"function\":{\"name\":\"a\\\"b\"}}");
}

/* The first failure wins, and what was written until then is not used. */
TEST_WITH(after_a_failure_there_are_no_messages, setup, teardown)
{
    tke_chat_writer t;
    tke_chat_writer_open(&t, &arena, &err);
    tke_chat_message(&t, "user", (tinkc_str){ 0 }, tkc_str("a"));
    assert_false(tke_chat_wrong_member(&err, "tools", tkc_str("x")));
    assert_false(tke_chat_wrong(&err, "later"));
    assert_null(tke_chat_writer_close(&t).data);
    assert_int_equal(err.code, TINKC_E_BAD_REQUEST);
    assert_string_equal(err.message, "tools: this server does not support 'x'");
}
