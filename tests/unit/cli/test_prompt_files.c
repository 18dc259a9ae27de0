/* test_prompt_files.c - files of prompts: which member is the prompt, which the answer, what is refused; their order
 * and parts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "commands.h"
#include "prompts.h"
#include "support/held_output.h"

static cli_app app;
static const cli_prompt_options both = { .need_answer = true, .need_prompt = true },
                                prompt = { .need_prompt = true }, none = { 0 };

static int begin(void **state)
{
    (void)state;
    app = (cli_app){ .command = cli_find("eval", "run") };
    return app.command ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    cli_parse_free(&app);
    return 0;
}

/* Reads these lines as a file; its exit code, and what was said. */
static int take(const char *lines, const cli_prompt_options *how, cli_prompts *out, char **said)
{
    char path[] = "/tmp/tinkc-prompts-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, lines, strlen(lines)), strlen(lines));
    close(fd);
    hold_output();
    int code = cli_prompts_read_file(&app, path, how, out);
    *said = release_output();
    unlink(path);
    return code;
}

static void assert_text(const char *is, const char *wanted)
{
    if (wanted)
        assert_string_equal(is, wanted);
    else
        assert_null(is);
}

#define ASK(text) "[{\"role\":\"user\",\"content\":\"" text "\"}]"

static void test_members(void **state)
{
    static const struct {
        const char *line, *messages, *answer;
    } rows[] = {
        { "{\"prompt\":\"a\",\"answer\":\"1\"}", ASK("a"), "1" },
        { "{\"question\":\"a\",\"solution\":\"1\"}", ASK("a"), "1" },
        { "{\"problem\":\"a\",\"target\":\"1\"}", ASK("a"), "1" },
        { "{\"input\":\"a\",\"label\":\"1\"}", ASK("a"), "1" },
        { "{\"prompt\":\"a\",\"answer\":5}", ASK("a"), "5" },
        { "{\"prompt\":\"a\",\"answer\":[1]}", ASK("a"), "[1]" },
        { "{\"prompt\":\"a\",\"answer\":null}", ASK("a"), NULL },
        { "{\"prompt\":\"a\",\"reward_model\":{\"ground_truth\":\"7\"}}", ASK("a"), "7" },
        { "{\"prompt\":\"a\",\"question\":\"b\",\"answer\":\"1\",\"label\":\"2\"}", ASK("a"), "1" },
        { "{\"messages\":" ASK("m") ",\"prompt\":\"p\"}", ASK("m"), NULL },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
          "\"content\":\"b\"}]}",
          ASK("a"), "b" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
          "\"content\":\"b\"}],"
          "\"answer\":\"c\"}",
          ASK("a"), "c" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
          "\"content\":[]}]}",
          ASK("a"), NULL },
        { "{\"messages\":[{\"role\":\"assistant\",\"content\":\"b\"}]}",
          "[{\"role\":\"assistant\",\"content\":\"b\"}]", NULL },
        { "{\"messages\":[{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\","
          "\"content\":\"a\"}]}",
          "[{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"a\"}]",
          NULL },
        { "{\"prompt\":\"a\",\"tools\":[{\"name\":\"f\"}]}",
          "{\"messages\":" ASK(
              "a") ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}",
          NULL },
        { "{\"prompt\":\"a\",\"tools\":[]}", ASK("a"), NULL },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_prompts p;
        char *said;
        assert_int_equal(take(rows[i].line, &prompt, &p, &said), 0);
        assert_string_equal(said, "");
        free(said);
        assert_int_equal(p.n, 1);
        assert_text(p.items[0].messages_json, rows[i].messages);
        assert_text(p.items[0].answer, rows[i].answer);
        assert_string_equal(p.items[0].row_json, rows[i].line);
        assert_null(p.items[0].tag);
        cli_prompts_free(&p);
        assert_true(!p.items && !p.paths && p.n == 0);
    }
}

static void test_refused(void **state)
{
    static const struct {
        const char *line;
        const cli_prompt_options *how;
        const char *why; /* NULL = it is taken */
    } rows[] = {
        { "{\"x\":1}", &prompt,
          "the row has no prompt: messages, prompt, question, problem or input" },
        { "{\"x\":1}", &none, NULL },
        { "{\"prompt\":5}", &prompt, "the prompt is neither a text nor a list of messages" },
        { "{\"prompt\":5}", &none, "the prompt is neither a text nor a list of messages" },
        { "{\"messages\":[]}", &prompt, "the prompt is neither a text nor a list of messages" },
        { "{\"messages\":[{\"content\":\"a\"}]}", &prompt,
          "the prompt is neither a text nor a list of messages" },
        { "{\"messages\":[{\"role\":\"user\"}]}", &prompt,
          "the prompt is neither a text nor a list of messages" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},5]}", &prompt,
          "the prompt is neither a text nor a list of messages" },
        { "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[]},{\"role\":\"user\","
          "\"content\":\"a\"}]}",
          &prompt, "the prompt is neither a text nor a list of messages" },
        { "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[1]},{\"role\":\"user\","
          "\"content\":\"a\"}]}",
          &prompt, NULL },
        { "{\"prompt\":\"a\"}", &both,
          "the row has no answer to grade against: answer, solution, target or label" },
        { "{\"prompt\":\"a\",\"answer\":\"b\"}", &both, NULL },
        { "{\"prompt\":\"a\",\"tools\":5}", &prompt,
          "\"tools\" must be a list, or a list as JSON in a text" },
        { "{\"prompt\":\"a\",\"tools\":5}", &none, NULL },
        { "[1]", &none, "" },
        { "{\"torn", &none, "" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_prompts p;
        char *said;
        int code = take(rows[i].line, rows[i].how, &p, &said);
        assert_int_equal(code, rows[i].why ? CLI_EXIT_INPUT : 0);
        if (rows[i].why)
            assert_non_null(strstr(said, rows[i].why));
        free(said);
        cli_prompts_free(&p);
    }
    cli_prompts p;
    char *said;
    assert_int_equal(take("\n", &none, &p, &said), CLI_EXIT_INPUT);
    assert_non_null(strstr(said, "holds no prompts"));
    free(said);
    cli_prompts_free(&p);
}

static void test_named_members(void **state)
{
    cli_prompts p;
    char *said;
    (void)state;
    assert_int_equal(cli_set_value(&app, "prompt-field", "ask", "test"), 0);
    assert_int_equal(cli_set_value(&app, "answer-field", "say", "test"), 0);
    assert_int_equal(cli_set_value(&app, "tag-field", "kind", "test"), 0);
    assert_int_equal(
        take("{\"prompt\":\"a\",\"ask\":\"b\",\"answer\":\"c\",\"say\":\"d\",\"kind\":5}\n"
             "{\"ask\":\"e\"}\n",
             &prompt, &p, &said),
        0);
    free(said);
    assert_string_equal(p.items[0].messages_json, ASK("b"));
    assert_string_equal(p.items[0].answer, "d");
    assert_string_equal(p.items[0].tag, "5");
    assert_null(p.items[1].answer);
    assert_null(p.items[1].tag);
    assert_true(strncmp(p.dataset, "tinkc-prompts-", 14) == 0);
    assert_true(strncmp(p.items[1].where, "/tmp/tinkc-prompts-", 19) == 0 &&
                strcmp(strchr(p.items[1].where, ':'), ":2") == 0);
    assert_true(p.n_paths == 1 && p.file[0] == 0 && p.file[1] == 0);
    cli_prompts_free(&p);
}

/* The files of the command line: arguments, then --data. */
static void test_several_files(void **state)
{
    char paths[3][30] = { "/tmp/tinkc-prompts-XXXXXX", "/tmp/tinkc-prompts-XXXXXX",
                          "/tmp/tinkc-prompts-XXXXXX" };
    const char *args[] = { paths[0], paths[1] };
    cli_prompts p;
    (void)state;
    hold_output();
    int code = cli_prompts_read(&app, &prompt, &p);
    char *said = release_output();
    assert_int_equal(code, CLI_EXIT_USAGE);
    assert_string_equal(said, "error: no prompts were given\nhint: name a file of JSON lines\n");
    free(said);
    for (int i = 0; i < 3; i++) {
        char text[40];
        int fd = mkstemp(paths[i]);
        assert_true(fd >= 0);
        int n = snprintf(text, sizeof text, "{\"prompt\":\"%d\"}\n", i);
        assert_int_equal(write(fd, text, (size_t)n), n);
        close(fd);
    }
    app.args = args;
    app.n_args = 2;
    assert_int_equal(cli_set_value(&app, "data", paths[2], "test"), 0);
    assert_int_equal(cli_prompts_read(&app, &prompt, &p), 0);
    assert_true(p.n == 3 && p.n_paths == 3);
    assert_string_equal(p.dataset, paths[0] + 5);
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(p.paths[i], paths[i]);
        assert_true(p.file[i] == i && p.items[i].row_json[11] == (char)('0' + i));
    }
    cli_prompts_free(&p);
    assert_int_equal(unlink(paths[1]), 0); /* one that is not there ends it */
    hold_output();
    code = cli_prompts_read(&app, &prompt, &p);
    said = release_output();
    assert_int_equal(code, CLI_EXIT_NOT_FOUND);
    assert_true(p.n == 1 && strncmp(said, "error: ", 7) == 0 &&
                strcspn(said, "\n") + 1 == strlen(said));
    free(said);
    cli_prompts_free(&p);
    unlink(paths[0]);
    unlink(paths[2]);
    app.args = NULL;
    app.n_args = 0;
}

/* Many: all are kept, shuffled by the seed alone, and the last ones can be split off. */
static void test_order(void **state)
{
    enum { MANY = 200 };
    cli_prompts p, rest;
    char *said, lines[MANY * 20] = "";
    size_t at = 0, moved = 0;
    bool seen[MANY] = { false };
    (void)state;
    for (int i = 0; i < MANY; i++)
        at += (size_t)snprintf(lines + at, sizeof lines - at, "{\"prompt\":\"%d\"}\n", i);
    assert_int_equal(take(lines, &prompt, &p, &said), 0);
    free(said);
    assert_int_equal(p.n, MANY);
    assert_true(cli_prompts_shuffle(&p, 5));
    for (size_t i = 0; i < MANY; i++) {
        size_t number = (size_t)strtoul(p.items[i].row_json + 11, NULL, 10);
        assert_true(number < MANY && !seen[number] && p.file[i] == 0);
        seen[number] = true;
        moved += number != i;
    }
    assert_true(moved > MANY / 2);
    char *first = strdup(p.items[0].row_json), *last = strdup(p.items[MANY - 1].row_json);
    assert_true(cli_prompts_split(&p, 3, &rest));
    assert_true(p.n == MANY - 3 && rest.n == 3);
    assert_string_equal(rest.items[0].row_json, last);
    assert_string_equal(p.items[0].row_json, first);
    cli_prompts_free(&rest);
    assert_true(cli_prompts_split(&p, 0, &rest));
    assert_true(p.n == MANY - 3 && rest.n == 0);
    assert_true(cli_prompts_split(&p, MANY, &rest)); /* all there are */
    assert_true(p.n == 0 && rest.n == MANY - 3);
    cli_prompts_free(&rest);
    cli_prompts_free(&p);
    free(first);
    free(last);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = { TEST(test_members), TEST(test_refused),
                                        TEST(test_named_members), TEST(test_order),
                                        TEST(test_several_files) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
