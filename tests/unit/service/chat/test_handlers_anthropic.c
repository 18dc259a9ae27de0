/* test_handlers_anthropic.c - Anthropic's form on the shipped model: messages mean what the same chat means in
 * OpenAI's form, blocks and events are well formed, and what is not supported is refused by name. */
#include <unistd.h>

#include "support/check.h"
#include "support/json_trees.h"
#include "support/service/service_call.h"
#include "support/service/tool_model.h"

#define MESSAGES "/v1/messages"

static const tkc_tree *block(const tkc_tree *v, size_t i)
{
    return tkc_tree_at(tkc_tree_get(v, "content"), i);
}

#define QUESTION "\"messages\":[{\"role\":\"user\",\"content\":\"What is 7 + 5?\"}]"

TEST(a_message_is_answered)
{
    static const char *const paths[] = { MESSAGES, "/anthropic/api/v1/messages" };
    for (size_t i = 0; i < 2; i++) {
        tkc_tree *v = post(paths[i], "{\"model\":\"nano\",\"max_tokens\":9,\"temperature\":0," QUESTION "}");
        assert_string_equal(member(v, "type"), "message");
        assert_string_equal(member(v, "role"), "assistant");
        assert_string_equal(member(v, "model"), "nano");
        assert_string_equal(member(v, "stop_reason"), "end_turn");
        assert_int_equal(tkc_tree_length(tkc_tree_get(v, "content")), 1);
        assert_string_equal(member(block(v, 0), "type"), "text");
        assert_string_equal(member(block(v, 0), "text"), "12");
    }
}

TEST(an_answer_that_was_begun_is_continued)
{
    tkc_tree *v = post(MESSAGES, "{\"model\":\"nano\",\"max_tokens\":9,\"temperature\":0,\"messages\":["
                                 "{\"role\":\"user\",\"content\":\"What is 8 + 8?\"},"
                                 "{\"role\":\"assistant\",\"content\":\"1\"}]}");
    assert_string_equal(member(block(v, 0), "text"), "6");
}

TEST(why_a_message_ends)
{
    static const struct {
        const char *rest, *reason, *sequence;
    } rows[] = { { "\"max_tokens\":1", "max_tokens", "" },
                 { "\"max_tokens\":9", "end_turn", "" },
                 { "\"max_tokens\":9,\"stop_sequences\":[\"x\",\"2\"]", "stop_sequence", "2" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[300];
        snprintf(body, sizeof body, "{\"model\":\"nano\",\"temperature\":0," QUESTION ",%s}", rows[i].rest);
        tkc_tree *v = post(MESSAGES, body);
        assert_string_equal(member(v, "stop_reason"), rows[i].reason);
        assert_string_equal(member(v, "stop_sequence"), rows[i].sequence);
    }
}

/* The prompt of a conversation is the same in both forms: its tokens are counted in both. */
TEST(conversations_are_translated)
{
    static const struct {
        const char *here, *there;
    } rows[] = {
        { "\"system\":\"Be brief.\"," QUESTION,
          "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"What "
          "is 7 + 5?\"}]" },
        { "\"system\":[{\"type\":\"text\",\"text\":\"Be "
          "\",\"cache_control\":{\"type\":\"ephemeral\"}},"
          "{\"type\":\"text\",\"text\":\"brief.\"}]," QUESTION,
          "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"What "
          "is 7 + 5?\"}]" },
        /* results are messages of a tool, between what the user says before and after them */
        { "\"messages\":[{\"role\":\"user\",\"content\":\"Go\"},{\"role\":\"assistant\","
          "\"content\":[{\"type\":"
          "\"thinking\",\"thinking\":\"hm\",\"signature\":\"\"},{\"type\":\"text\",\"text\":"
          "\"Calling\"}]},"
          "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Here\"},"
          "{\"type\":\"tool_result\",\"tool_use_id\":\"a\","
          "\"content\":[{\"type\":"
          "\"text\",\"text\":\"twelve "
          "apples\"}]},{\"type\":\"tool_result\",\"tool_use_id\":\"b\",\"is_error\":true,"
          "\"content\":\"none\"},{\"type\":\"text\",\"text\":\"And now?\"}]}]",
          "[{\"role\":\"user\",\"content\":\"Go\"},{\"role\":\"assistant\",\"content\":\"Calling\"}"
          ",{\"role\":\"user\",\"content\":\"Here\"},{\"role\":"
          "\"tool\",\"content\":\"twelve apples\"},{\"role\":\"tool\",\"content\":\"Error: "
          "none\"},{\"role\":"
          "\"user\",\"content\":\"And now?\"}]" },
        /* calls: OpenAI's clients send null as the content, and the arguments as text */
        { "\"messages\":[{\"role\":\"user\",\"content\":\"Go\"},{\"role\":\"assistant\","
          "\"content\":[{\"type\":\"tool_use\",\"id\":\"c\",\"name\":\"add\",\"input\":{\"a\": "
          "1}}]},"
          "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"c\","
          "\"content\":\"2\"}]}]",
          "[{\"role\":\"user\",\"content\":\"Go\"},{\"role\":\"assistant\",\"content\":null,"
          "\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"add\","
          "\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":\"tool\",\"content\":\"2\"}]" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[1200];
        snprintf(body, sizeof body, "{\"model\":\"tools\",%s}", rows[i].here);
        tkc_tree *mine = post("/v1/messages/count_tokens", body);
        snprintf(body, sizeof body, "{\"model\":\"tools\",\"max_tokens\":1,\"messages\":%s}", rows[i].there);
        tkc_tree *theirs = post("/v1/chat/completions", body);
        assert_int_equal(tkc_tree_get_i64(mine, "input_tokens"),
                         tkc_tree_get_i64(tkc_tree_get(theirs, "usage"), "prompt_tokens"));
    }
}

#define TOOLS                                                                                                          \
    "\"tools\":[{\"name\":\"add\",\"description\":\"sums\",\"input_schema\":{\"type\":\"object\","                     \
    "\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}}]"

TEST(calls_are_blocks)
{
    static const char *const choices[] = { "{\"type\":\"any\"}",
                                           "{\"type\":\"any\",\"disable_parallel_tool_use\":true}",
                                           "{\"type\":\"tool\",\"name\":\"add\"}" };
    for (size_t i = 0; i < 3; i++) {
        char body[700];
        snprintf(body, sizeof body, "{\"model\":\"tools\",\"max_tokens\":90," QUESTION "," TOOLS ",\"tool_choice\":%s}",
                 choices[i]);
        tkc_tree *v = post(MESSAGES, body);
        assert_string_equal(member(v, "stop_reason"), "tool_use");
        assert_string_equal(member(block(v, 0), "type"), "tool_use");
        assert_string_equal(member(block(v, 0), "name"), "add");
        assert_memory_equal(member(block(v, 0), "id"), "toolu_", 6);
        assert_true(tkc_tree_is_i64(tkc_tree_get(tkc_tree_get(block(v, 0), "input"), "a")));
    }
}

TEST(of_one_token_there_is_no_other)
{
    static const char *const rows[] = { "\"temperature\":0", "\"temperature\":1,\"top_k\":1" };
    tkc_tree *texts[2];
    for (size_t i = 0; i < 2; i++) {
        char body[300];
        snprintf(body, sizeof body,
                 "{\"model\":\"nano\",\"max_tokens\":30,%s,\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a "
                 "story\"}]}",
                 rows[i]);
        tkc_tree *v = post(MESSAGES, body);
        texts[i] = tkc_tree_clone(&json_arena, tkc_tree_get(v, "content"));
    }
    assert_true(tkc_tree_length(texts[0]) == 1 && tkc_tree_equal(texts[0], texts[1]));
}

/* Where the prompt opens a thought, the answer begins with what the model thinks. */
TEST(a_prompt_that_opens_a_thought_is_continued_as_one)
{
    static const char *const rows[][2] = { { "enabled", "thinking" }, { "disabled", "text" } };
    for (size_t i = 0; i < 2; i++) {
        char body[300];
        snprintf(body, sizeof body,
                 "{\"model\":\"tools\",\"max_tokens\":9,\"temperature\":0,\"thinking\":{\"type\":\"%s\"},"
                 "\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story\"}]}",
                 rows[i][0]);
        tkc_tree *v = post(MESSAGES, body);
        assert_string_equal(member(block(v, 0), "type"), rows[i][1]);
    }
}

/* ---- events ---- */

/* The names of the events, in order, and the text or JSON of the deltas. Each says of which block it is. */
static void events_of(const char *body, char *names, size_t size, char *deltas)
{
    answer a = service_call(t, "POST", MESSAGES, NULL, body, strlen(body));
    char *rest = NULL;
    int n_blocks = 0;
    assert_int_equal(a.status, 200);
    assert_string_equal(a.type, "text/event-stream");
    names[0] = deltas[0] = '\0';
    for (char *line = strtok_r(a.body.data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        if (strncmp(line, "event: ", 7) == 0) {
            if (strncmp(line + 7, "content_block_delta", 19) != 0 || !strstr(names, "delta ")) {
                strncat(names, line + 7, size - strlen(names) - 2);
                strcat(names, " ");
            }
        } else if (strncmp(line, "data: ", 6) == 0) {
            tkc_tree *v = json_of(line + 6), *delta = tkc_tree_get(v, "delta");
            const tkc_tree *index = tkc_tree_get(v, "index");
            n_blocks += strcmp(member(v, "type"), "content_block_start") == 0;
            if (index)
                assert_int_equal(tkc_tree_i64(index), n_blocks - 1);
            strcat(deltas, member(delta, "text"));
            strcat(deltas, member(delta, "partial_json"));
            strcat(deltas, member(delta, "stop_reason"));
        }
    answer_free(&a);
}

TEST(events_in_order)
{
    char names[600], deltas[600];
    events_of("{\"model\":\"nano\",\"max_tokens\":9,\"temperature\":0,\"stream\":true," QUESTION "}", names,
              sizeof names, deltas);
    assert_string_equal(names, "message_start content_block_start content_block_delta "
                               "content_block_stop message_delta message_stop ");
    assert_string_equal(deltas, "12end_turn");
    events_of("{\"model\":\"tools\",\"max_tokens\":90,\"stream\":true," QUESTION "," TOOLS
              ",\"tool_choice\":{\"type\":\"any\"}}",
              names, sizeof names, deltas);
    assert_string_equal(names, "message_start content_block_start content_block_delta "
                               "content_block_stop message_delta message_stop ");
    assert_true(deltas[0] == '{' && strstr(deltas, "\"a\""));
    assert_non_null(strstr(deltas, "}tool_use"));
}

TEST(each_mistake_has_its_error)
{
    static const struct {
        int32_t status;
        const char *rest, *type, *words;
    } rows[] = {
        { 400, "\"model\":\"nano\"," QUESTION, "invalid_request_error", "max_tokens is required" },
        { 400, "\"max_tokens\":4," QUESTION, "invalid_request_error", "model is required" },
        { 400, "\"model\":\"nano\",\"max_tokens\":4", "invalid_request_error", "messages is required" },
        { 400, "\"model\":\"nano\",\"max_tokens\":4,\"messages\":[]", "invalid_request_error", "at least one" },
        { 400, "\"model\":\"nano\",\"max_tokens\":4,\"top_p\":1.5," QUESTION, "invalid_request_error",
          "top_p must be" },
        { 404, "\"model\":\"other\",\"max_tokens\":4," QUESTION, "not_found_error", "other" },
        { 400, "\"model\":\"nano\",\"max_tokens\":4,\"temperature\":1.1," QUESTION, "invalid_request_error",
          "from 0 to 1" },
        { 400, "\"model\":\"nano\",\"max_tokens\":4,\"mcp_servers\":[{}]," QUESTION, "invalid_request_error",
          "mcp_servers" },
        { 400,
          "\"model\":\"nano\",\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":[{"
          "\"type\":"
          "\"image\"}]}]",
          "invalid_request_error", "messages[0].content[0]: a block of type 'image'" },
        { 400,
          "\"model\":\"tools\",\"max_tokens\":4,\"tools\":[{\"type\":\"web_search\",\"name\":\"w\"}"
          "]," QUESTION,
          "invalid_request_error", "web_search" },
        { 400, "\"model\":\"nano\",\"max_tokens\":4,\"thinking\":{\"type\":\"enabled\"}," QUESTION,
          "invalid_request_error", "thinking" },
        { 400,
          "\"model\":\"nano\",\"max_tokens\":4,\"context_management\":{\"edits\":[{\"type\":"
          "\"clear_thinking_20251015\",\"keep\":1}]}," QUESTION,
          "invalid_request_error", "context_management" },
        { 400,
          "\"model\":\"nano\",\"max_tokens\":4,\"context_management\":{\"edits\":[{\"type\":"
          "\"clear_tool_uses_20250919\",\"keep\":\"all\"}]}," QUESTION,
          "invalid_request_error", "context_management" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[500];
        snprintf(body, sizeof body, "{%s}", rows[i].rest);
        tkc_tree *v = json_of(service_json(t, rows[i].status, "POST", MESSAGES, "%s", body));
        const tkc_tree *e = tkc_tree_get(v, "error");
        assert_string_equal(member(v, "type"), "error");
        assert_string_equal(member(e, "type"), rows[i].type);
        if (!strstr(member(e, "message"), rows[i].words))
            fail_msg("%s: %s", rows[i].rest, member(e, "message"));
    }
}

/* What other servers act on, and what changes nothing here. */
TEST(hints_are_accepted)
{
    static const char *const rows[] = {
        "\"context_management\":{\"edits\":[{\"type\":\"clear_thinking_20251015\",\"keep\":\"all\"}"
        "]}",
        "\"context_management\":{\"edits\":[]}",
        "\"thread\":null",
        "\"tools\":[{\"name\":\"f\",\"input_schema\":{},\"eager_input_streaming\":true,\"strict\":"
        "true}]",
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[400];
        snprintf(body, sizeof body, "{\"model\":\"tools\",\"max_tokens\":2," QUESTION ",%s}", rows[i]);
        post(MESSAGES, body);
    }
}

/* A client that asks for it sends the whole conversation when the refusal has this code. */
TEST(a_conversation_that_the_server_is_to_store_is_refused_by_code)
{
    tkc_tree *v = json_of(service_json(t, 400, "POST", MESSAGES,
                                       "{\"model\":\"nano\",\"max_tokens\":4,\"thread\":{\"type\":"
                                       "\"create\"}," QUESTION "}"));
    const tkc_tree *error = tkc_tree_get(v, "error");
    assert_string_equal(member(tkc_tree_get(error, "details"), "error_code"), "thread_unsupported_request");
}

/* ---- models ---- */

#define MODELS "/anthropic/api/v1/models"

static tkc_tree *get(int32_t status, const char *path)
{
    return json_of(service_json(t, status, "GET", path, "%s", ""));
}

static void expect_model(const tkc_tree *m, const char *id)
{
    assert_string_equal(member(m, "type"), "model");
    assert_string_equal(member(m, "id"), id);
    assert_string_equal(member(m, "display_name"), id);
    assert_string_equal(member(m, "lifecycle"), "active");
    assert_int_equal(strlen(member(m, "created_at")), strlen("2026-01-01T00:00:00Z"));
    assert_int_equal(tkc_tree_get_i64(m, "max_input_tokens"), 2048);
    assert_int_equal(tkc_tree_get_i64(m, "max_tokens"), 2048);
}

TEST(models_below_its_path_have_its_form)
{
    tkc_tree *list = get(200, MODELS);
    expect_model(tkc_tree_at(tkc_tree_get(list, "data"), 0), "nano");
    assert_string_equal(member(list, "first_id"), "nano");
    assert_string_equal(member(list, "last_id"), "tools");
    expect_model(get(200, MODELS "/tools"), "tools");
    assert_string_equal(member(tkc_tree_get(get(404, MODELS "/none"), "error"), "type"),
                        "not_found_error");
}

/* Of its clients every request says so, and other clients' do not. */
TEST(a_client_that_names_its_version_gets_its_form_at_the_root)
{
    static const char *const headers[] = { "anthropic-version", "2023-06-01", NULL };
    const char *const *const ways[] = { headers, NULL };
    for (size_t i = 0; i < 2; i++) {
        answer a = service_call(t, "GET", "/v1/models", ways[i], NULL, 0);
        const tkc_tree *first = tkc_tree_at(tkc_tree_get(json_of(a.body.data), "data"), 0);
        assert_string_equal(member(first, i ? "object" : "type"), "model");
        assert_string_equal(member(first, i ? "display_name" : "owned_by"), "");
        answer_free(&a);
    }
}

TEST(models_come_in_pages)
{
    static const struct {
        const char *query, *ids;
        bool more;
    } rows[] = { { "", "nano tools ", false },
                 { "?limit=2", "nano tools ", false },
                 { "?limit=1", "nano ", true },
                 { "?limit=1&after_id=nano", "tools ", false },
                 { "?before_id=tools", "nano ", false },
                 { "?after_id=tools", "", false },
                 { "?after_id=none", "", false },
                 { "?before_id=none", "", false },
                 { "?before_id=nano", "", false } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[80], ids[80] = "";
        snprintf(path, sizeof path, MODELS "%s", rows[i].query);
        tkc_tree *v = get(200, path);
        const tkc_tree *data = tkc_tree_get(v, "data");
        for (size_t k = 0; k < tkc_tree_length(data); k++) {
            strcat(ids, member(tkc_tree_at(data, k), "id"));
            strcat(ids, " ");
        }
        assert_string_equal(ids, rows[i].ids);
        assert_int_equal(tkc_tree_is_true(tkc_tree_get(v, "has_more")), rows[i].more);
    }
}

TEST(a_page_that_cannot_be_is_refused)
{
    static const char *const queries[] = { "limit=0", "limit=1001", "limit=x",
                                           "after_id=nano&before_id=tools", "offset=1" };
    for (size_t i = 0; i < sizeof queries / sizeof *queries; i++) {
        char path[80];
        snprintf(path, sizeof path, MODELS "?%s", queries[i]);
        assert_string_equal(member(tkc_tree_get(get(400, path), "error"), "type"),
                            "invalid_request_error");
    }
    get(400, "/v1/models?limit=1"); /* OpenAI's has no pages */
}

RUN_TESTS(setup, teardown)
