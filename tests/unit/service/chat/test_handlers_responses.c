/* test_handlers_responses.c - OpenAI's responses on the shipped model: they mean what the same chat means, items
 * and events are well formed, and what is not supported is refused by name. */
#include <unistd.h>

#include "support/check.h"
#include "support/json_trees.h"
#include "support/service/service_call.h"
#include "support/service/tool_model.h"

#define RESPONSES "/v1/responses"

static const tkc_tree *output(const tkc_tree *v, size_t i)
{
    return tkc_tree_at(tkc_tree_get(v, "output"), i);
}

static const char *text_of(const tkc_tree *item)
{
    return member(tkc_tree_at(tkc_tree_get(item, "content"), 0), "text");
}

TEST(a_response_is_answered)
{
    static const char *const inputs[] = {
        "\"What is 7 + 5?\"",
        "[{\"role\":\"user\",\"content\":\"What is 7 + 5?\"}]",
        "[{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":"
        "\"What is \"},{\"type\":\"input_text\",\"text\":\"7 + 5?\"}]}]",
    };
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        char body[400];
        snprintf(body, sizeof body, "{\"model\":\"nano\",\"temperature\":0,\"input\":%s}", inputs[i]);
        tkc_tree *v = post(i ? RESPONSES : "/oai/api/v1/responses", body);
        assert_string_equal(member(v, "object"), "response");
        assert_string_equal(member(v, "status"), "completed");
        assert_int_equal(tkc_tree_length(tkc_tree_get(v, "output")), 1);
        assert_string_equal(member(output(v, 0), "type"), "message");
        assert_string_equal(text_of(output(v, 0)), "12");
        assert_true(tkc_tree_get_number(v, "temperature") == 0.0);
    }
}

TEST(what_is_cut_off_is_incomplete)
{
    tkc_tree *v = post(RESPONSES, "{\"model\":\"nano\",\"temperature\":0,\"max_output_tokens\":1,"
                                  "\"input\":\"What is 7 + 5?\"}");
    assert_string_equal(member(v, "status"), "incomplete");
    assert_string_equal(member(tkc_tree_get(v, "incomplete_details"), "reason"), "max_output_tokens");
}

/* The prompt of a conversation is that of the same chat: its tokens are counted in both. */
TEST(conversations_are_translated)
{
    static const struct {
        const char *here, *there;
    } rows[] = {
        { "\"instructions\":\"Be brief.\",\"input\":\"Hello there\"",
          "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"Hello "
          "there\"}]" },
        { "\"input\":[{\"role\":\"developer\",\"content\":\"Be brief.\"},{\"role\":\"user\","
          "\"content\":\"Hello there\"}]",
          "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"Hello "
          "there\"}]" },
        /* what the assistant said and called is one message; results are messages of a tool */
        { "\"input\":[{\"role\":\"user\",\"content\":\"Go\"},{\"type\":\"reasoning\",\"id\":\"rs\","
          "\"summary\":[]},{\"type\":\"message\",\"id\":\"m\",\"status\":\"completed\",\"role\":"
          "\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"Calling\","
          "\"annotations\":[]}]},{\"type\":\"function_call\",\"id\":\"f\",\"call_id\":\"a\","
          "\"name\":\"add\",\"arguments\":\"{\\\"a\\\": 1}\"},{\"type\":\"function_call_output\","
          "\"call_id\":\"a\",\"output\":\"twelve apples\"},{\"role\":\"user\",\"content\":\"And "
          "now?\"}]",
          "[{\"role\":\"user\",\"content\":\"Go\"},{\"role\":\"assistant\",\"content\":\"Calling\","
          "\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"add\","
          "\"arguments\":\"{\\\"a\\\": 1}\"}}]},{\"role\":\"tool\",\"content\":\"twelve apples\"},"
          "{\"role\":\"user\",\"content\":\"And now?\"}]" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[1200];
        snprintf(body, sizeof body, "{\"model\":\"tools\",\"max_output_tokens\":1,%s}", rows[i].here);
        tkc_tree *mine = post(RESPONSES, body);
        snprintf(body, sizeof body, "{\"model\":\"tools\",\"max_tokens\":1,\"messages\":%s}", rows[i].there);
        tkc_tree *theirs = post("/v1/chat/completions", body);
        static const char *const counts[][2] = { { "input_tokens", "prompt_tokens" },
                                                 { "output_tokens", "completion_tokens" },
                                                 { "total_tokens", "total_tokens" } };
        for (size_t k = 0; k < 3; k++)
            assert_int_equal(tkc_tree_get_i64(tkc_tree_get(mine, "usage"), counts[k][0]),
                             tkc_tree_get_i64(tkc_tree_get(theirs, "usage"), counts[k][1]));
    }
}

#define TOOLS                                                                                                          \
    "\"tools\":[{\"type\":\"function\",\"name\":\"add\",\"description\":\"sums\",\"strict\":true,"                     \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},"                               \
    "\"required\":[\"a\"]}}]"

TEST(calls_are_items)
{
    static const char *const choices[] = { "\"required\"", "{\"type\":\"function\",\"name\":\"add\"}" };
    for (size_t i = 0; i < 2; i++) {
        char body[700];
        snprintf(body, sizeof body,
                 "{\"model\":\"tools\",\"max_output_tokens\":90,\"input\":\"What is 7 + 5?\"," TOOLS
                 ",\"tool_choice\":%s%s}",
                 choices[i], i ? ",\"parallel_tool_calls\":false" : "");
        tkc_tree *v = post(RESPONSES, body);
        assert_int_equal(tkc_tree_get_true(v, "parallel_tool_calls"), i == 0);
        assert_string_equal(member(output(v, 0), "type"), "function_call");
        assert_string_equal(member(output(v, 0), "name"), "add");
        assert_memory_equal(member(output(v, 0), "call_id"), "call_", 5);
        tkc_tree *arguments = json_of(member(output(v, 0), "arguments"));
        assert_true(tkc_tree_is_i64(tkc_tree_get(arguments, "a")));
    }
}

TEST(a_schema_binds_the_text)
{
    tkc_tree *v = post(RESPONSES, "{\"model\":\"nano\",\"input\":\"What is 7 + 5?\",\"max_output_tokens\":40,"
                                  "\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"x\",\"strict\":true,"
                                  "\"schema\":{\"type\":\"object\",\"properties\":{\"sum\":{\"type\":"
                                  "\"integer\",\"minimum\":0,\"maximum\":99}},\"required\":[\"sum\"],"
                                  "\"additionalProperties\":false}}}}");
    tkc_tree *value = json_of(text_of(output(v, 0)));
    assert_true(tkc_tree_is_i64(tkc_tree_get(value, "sum")));
}

/* ---- events ---- */

/* The types of the events without "response.", in order; of several deltas one. Their deltas are joined, their
 * numbers must count from 0, and the last one is returned. */
static tkc_tree *events_of(const char *body, char *types, size_t size, char *deltas)
{
    answer a = service_call(t, "POST", RESPONSES, NULL, body, strlen(body));
    char *rest = NULL;
    tkc_tree *last = NULL;
    assert_int_equal(a.status, 200);
    assert_string_equal(a.type, "text/event-stream");
    types[0] = deltas[0] = '\0';
    for (char *line = strtok_r(a.body.data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, "data: ", 6) != 0)
            continue;
        int64_t n = last ? tkc_tree_get_i64(last, "sequence_number") + 1 : 0;
        last = json_of(line + 6);
        assert_int_equal(tkc_tree_get_i64(last, "sequence_number"), n);
        const char *type = member(last, "type"), *name = type + strlen("response.");
        strcat(deltas, member(last, "delta"));
        if (strstr(name, ".delta") && strstr(types, name))
            continue;
        strncat(types, name, size - strlen(types) - 2);
        strcat(types, " ");
    }
    answer_free(&a);
    return last;
}

TEST(events_in_order)
{
    char types[1000], deltas[1000];
    tkc_tree *last = events_of("{\"model\":\"nano\",\"temperature\":0,\"stream\":true,\"input\":"
                               "\"What is 7 + 5?\"}",
                               types, sizeof types, deltas);
    assert_string_equal(types, "created in_progress output_item.added content_part.added "
                               "output_text.delta output_text.done content_part.done "
                               "output_item.done completed ");
    assert_string_equal(deltas, "12");
    assert_string_equal(text_of(output(tkc_tree_get(last, "response"), 0)), "12");
    last = events_of("{\"model\":\"tools\",\"stream\":true,\"max_output_tokens\":90,\"input\":"
                     "\"What is 7 + 5?\"," TOOLS ",\"tool_choice\":\"required\"}",
                     types, sizeof types, deltas);
    assert_string_equal(types, "created in_progress output_item.added "
                               "function_call_arguments.delta function_call_arguments.done "
                               "output_item.done completed ");
    assert_string_equal(deltas, member(output(tkc_tree_get(last, "response"), 0), "arguments"));
}

TEST(what_is_refused)
{
    static const struct {
        const char *rest, *says;
    } rows[] = {
        { "\"input\":\"x\",\"previous_response_id\":\"resp_1\"", "previous_response_id" },
        { "\"input\":\"x\",\"store\":true", "store" },
        { "\"input\":\"x\",\"background\":true", "background" },
        { "\"input\":\"x\",\"include\":[\"reasoning.encrypted_content\"]", "include" },
        { "\"input\":\"x\",\"temperature\":9e9", "temperature" },
        { "\"input\":\"x\",\"max_output_tokens\":0", "max_output_tokens" },
        { "\"input\":[]", "at least one item" },
        { "\"temperature\":1", "input is required" },
        { "\"input\":[{\"type\":\"item_reference\",\"id\":\"m\"}]", "item_reference" },
        { "\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":"
          "\"x\"}]}]",
          "input[0]" },
        { "\"input\":[{\"role\":\"tool\",\"content\":\"x\"}]", "role must be" },
        { "\"input\":\"x\",\"tools\":[{\"type\":\"web_search\"}]", "web_search" },
        { "\"input\":\"x\",\"text\":{\"format\":{\"type\":\"grammar\"}}", "text.format" },
        { "\"input\":\"x\",\"reasoning\":{\"effort\":\"high\"}", "reasoning.effort" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *said = service_json(t, 400, "POST", RESPONSES, "{\"model\":\"nano\",%s}", rows[i].rest);
        assert_non_null(strstr(said, rows[i].says));
    }
}

RUN_TESTS(setup, teardown)
