/* test_asked_of_models.c - what a request asks of a template and of an answer: at most one call, where the model would write one after the
 * other; how much to think, where the template asks for it. */
#include "support/check.h"
#include "support/json_trees.h"
#include "support/service/one_word_model.h"
#include "support/service/service_call.h"

static tinkc_engine *engine;
static const tinkc_transport *t;
static char *model;

#define TEMPLATE "{% if tools %}<tool_call>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}" \
                 "{% for c in reasoning_effort or '' %} 7{% endfor %}"
#define CALL     "<tool_call>{\\\"name\\\":\\\"add\\\",\\\"arguments\\\":{\\\"a\\\":1}}</tool_call>"

static int setup(void **state)
{
    static const char *const on[] = { "openai", "true", NULL };
    tinkc_error err = { 0 };
    (void)state;
    model = one_word_model("\"" CALL "\"", "\"" TEMPLATE "\"");
    engine = tinkc_engine_new(&(tinkc_engine_options){ .threads = 1, .settings = on }, &err);
    tinkc_engine_add_model(engine, "caller", model, &err);
    assert_ok(err);
    t = tinkc_engine_transport(engine);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tinkc_engine_free(engine);
    tiny_model_remove(model);
    return 0;
}

/* How often a word stands in a text. */
static size_t count(const char *text, const char *word)
{
    size_t n = 0;
    for (; (text = strstr(text, word)); text += strlen(word))
        n++;
    return n;
}

#define FUNCTION "\"name\":\"add\",\"parameters\":{\"type\":\"object\"}"
#define CHAT                                                                                       \
    "/v1/chat/completions",                                                                        \
        "\"max_tokens\":3,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":["        \
        "{\"type\":\"function\",\"function\":{" FUNCTION "}}]"
#define RESPONSES                                                                                  \
    "/v1/responses",                                                                               \
        "\"max_output_tokens\":3,\"input\":\"x\",\"tools\":[{\"type\":\"function\"," FUNCTION "}]"
#define MESSAGES                                                                                   \
    "/v1/messages",                                                                                \
        "\"max_tokens\":3,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":["        \
        "{\"name\":\"add\",\"input_schema\":{\"type\":\"object\"}}]"
#define ONE_USE ",\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":true}"
#define ANY_USE ",\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":false}"

TEST(an_answer_ends_at_its_first_call_where_one_is_asked_for)
{
    static const struct {
        const char *path, *body, *one, *all, *a_call, *a_call_event, *end;
    } rows[] = { { CHAT, ",\"parallel_tool_calls\":false", ",\"parallel_tool_calls\":true",
                   "\"id\":\"call_", "\"id\":\"call_", "\"finish_reason\":\"tool_calls\"" },
                 { RESPONSES, ",\"parallel_tool_calls\":false", ",\"parallel_tool_calls\":true",
                   "\"call_id\":\"call_", "event: response.function_call_arguments.done",
                   "\"status\":\"completed\"" },
                 { MESSAGES, ONE_USE, ANY_USE, "\"id\":\"toolu_", "\"id\":\"toolu_",
                   "\"stop_reason\":\"tool_use\"" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < 6; k++) { /* asked for, refused, not said; whole and as events */
            const char *how = k % 3 == 0 ? rows[i].one : k % 3 == 1 ? rows[i].all : "";
            char body[600];
            snprintf(body, sizeof body, "{\"model\":\"caller\",\"stream\":%s,%s%s}", k < 3 ? "false" : "true",
                     rows[i].body, how);
            answer a = service_call(t, "POST", rows[i].path, NULL, body, strlen(body));
            assert_int_equal(a.status, 200);
            size_t n = count(a.body.data, k < 3 ? rows[i].a_call : rows[i].a_call_event);
            if (n != (k % 3 == 0 ? 1u : 3u))
                fail_msg("%s: %zu calls: %s", body, n, a.body.data);
            if (k % 3 == 0 && !strstr(a.body.data, rows[i].end))
                fail_msg("%s: %s", body, a.body.data);
            assert_null(strstr(a.body.data, "tool_call>")); /* no mark is text */
            answer_free(&a);
        }
}

/* This template writes " 7" for each letter of the word, so the prompt is that of a message which ends with as many. */
TEST(a_template_that_knows_the_effort_is_given_its_word)
{
    static const struct {
        const char *path, *member, *word;
    } rows[] = { { "/v1/chat/completions", ",\"reasoning_effort\":\"none\"", "none" },
                 { "/v1/chat/completions", ",\"reasoning_effort\":\"minimal\"", "minimal" },
                 { "/v1/chat/completions", ",\"reasoning_effort\":\"xhigh\"", "xhigh" },
                 { "/v1/messages", ",\"output_config\":{\"effort\":\"low\"}", "low" },
                 { "/v1/messages", ",\"output_config\":{\"effort\":\"max\"}", "xhigh" },
                 { "/v1/messages", ",\"thinking\":{\"type\":\"enabled\"}", "medium" },
                 { "/v1/messages", ",\"thinking\":{\"type\":\"disabled\"}", "none" },
                 { "/v1/messages", "", "" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *count = strstr(rows[i].path, "chat") ? "prompt_tokens" : "input_tokens";
        char sevens[40] = "";
        double tokens[2];
        for (size_t k = 0; rows[i].word[k]; k++)
            strcat(sevens, " 7");
        for (size_t k = 0; k < 2; k++)
            tokens[k] = json_number(
                service_json(t, 200, "POST", rows[i].path,
                             "{\"model\":\"caller\",\"max_tokens\":1,\"messages\":[{\"role\":\"user\","
                             "\"content\":\"a%s\"}]%s}", k ? sevens : "", k ? "" : rows[i].member), count);
        if (tokens[0] != tokens[1] || tokens[0] < 1)
            fail_msg("%s: %g tokens, not %g", rows[i].member, tokens[0], tokens[1]);
    }
}

RUN_TESTS(setup, teardown)
