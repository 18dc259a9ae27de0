/* test_prompt_files.c - files of prompts: which member is the prompt, which the answer, what is refused; their order
 * and parts. How a model is asked, and what is made of its answer. */
#include <unistd.h>

#include "cli/sample/ask.h"
#include "cli/main/commands.h"
#include "cli/sample/prompts.h"
#include "support/cli/held_output.h"
#include "support/json_trees.h"
#include "support/test_case.h"

static cli_app app;
static const cli_prompt_options both = { .need_answer = true, .need_prompt = true }, prompt = { .need_prompt = true },
                                none = { 0 };

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

TEST_WITH(a_prompt_and_its_answer_have_several_member_names, begin, end)
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
        { "{\"messages\":[{\"role\":\"assistant\",\"content\":\"b\"}]}", "[{\"role\":\"assistant\",\"content\":\"b\"}]",
          NULL },
        { "{\"messages\":[{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\","
          "\"content\":\"a\"}]}",
          "[{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"a\"}]", NULL },
        { "{\"prompt\":\"a\",\"tools\":[{\"name\":\"f\"}]}",
          "{\"messages\":" ASK("a") ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}", NULL },
        { "{\"prompt\":\"a\",\"tools\":[]}", ASK("a"), NULL },
    };
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

TEST_WITH(a_row_without_a_prompt_is_refused, begin, end)
{
    static const struct {
        const char *line;
        const cli_prompt_options *how;
        const char *why; /* NULL = it is taken */
    } rows[] = {
        { "{\"x\":1}", &prompt, "the row has no prompt: messages, prompt, question, problem or input" },
        { "{\"x\":1}", &none, NULL },
        { "{\"prompt\":5}", &prompt, "the prompt is neither a text nor a list of messages" },
        { "{\"prompt\":5}", &none, "the prompt is neither a text nor a list of messages" },
        { "{\"messages\":[]}", &prompt, "the prompt is neither a text nor a list of messages" },
        { "{\"messages\":[{\"content\":\"a\"}]}", &prompt, "the prompt is neither a text nor a list of messages" },
        { "{\"messages\":[{\"role\":\"user\"}]}", &prompt, "the prompt is neither a text nor a list of messages" },
        { "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},5]}", &prompt,
          "the prompt is neither a text nor a list of messages" },
        { "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[]},{\"role\":\"user\","
          "\"content\":\"a\"}]}",
          &prompt, "the prompt is neither a text nor a list of messages" },
        { "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[1]},{\"role\":\"user\","
          "\"content\":\"a\"}]}",
          &prompt, NULL },
        { "{\"prompt\":\"a\"}", &both, "the row has no answer to grade against: answer, solution, target or label" },
        { "{\"prompt\":\"a\",\"answer\":\"b\"}", &both, NULL },
        { "{\"prompt\":\"a\",\"tools\":5}", &prompt, "\"tools\" must be a list, or a list as JSON in a text" },
        { "{\"prompt\":\"a\",\"tools\":5}", &none, NULL },
        { "[1]", &none, "" },
        { "{\"torn", &none, "" },
    };
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

TEST_WITH(options_name_the_members, begin, end)
{
    cli_prompts p;
    char *said;
    assert_int_equal(cli_set_value(&app, "prompt-field", "ask", CLI_FROM_PROGRAM, "test"), 0);
    assert_int_equal(cli_set_value(&app, "answer-field", "say", CLI_FROM_PROGRAM, "test"), 0);
    assert_int_equal(cli_set_value(&app, "tag-field", "kind", CLI_FROM_PROGRAM, "test"), 0);
    assert_int_equal(take("{\"prompt\":\"a\",\"ask\":\"b\",\"answer\":\"c\",\"say\":\"d\",\"kind\":5}\n"
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
TEST_WITH(arguments_come_before_data, begin, end)
{
    char paths[3][30] = { "/tmp/tinkc-prompts-XXXXXX", "/tmp/tinkc-prompts-XXXXXX", "/tmp/tinkc-prompts-XXXXXX" };
    const char *args[] = { paths[0], paths[1] };
    cli_prompts p;
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
    assert_int_equal(cli_set_value(&app, "data", paths[2], CLI_FROM_PROGRAM, "test"), 0);
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
    assert_true(p.n == 1 && strncmp(said, "error: ", 7) == 0 && strcspn(said, "\n") + 1 == strlen(said));
    free(said);
    cli_prompts_free(&p);
    unlink(paths[0]);
    unlink(paths[2]);
    app.args = NULL;
    app.n_args = 0;
}

/* Many: all are kept, shuffled by the seed alone, and the last ones can be split off. */
TEST_WITH(the_seed_alone_decides_the_order, begin, end)
{
    enum { MANY = 200 };
    cli_prompts p, rest;
    char *said, lines[MANY * 20] = "";
    size_t at = 0, moved = 0;
    bool seen[MANY] = { false };
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
    p.file[MANY - 2] = 7; /* as if it were of another file */
    char *first = strdup(p.items[0].row_json), *last = strdup(p.items[MANY - 1].row_json);
    assert_true(cli_prompts_split(&p, 3, &rest));
    assert_true(p.n == MANY - 3 && rest.n == 3);
    assert_string_equal(rest.items[0].row_json, last);
    assert_true(rest.file[0] == 0 && rest.file[1] == 7 && rest.file[2] == 0);
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

/* ---- how a model is asked ---- */

static tinkc_tokenizer *nano;

static int open_nano(void **state)
{
    tinkc_error err = { 0 };
    (void)state;
    nano = tinkc_tokenizer_open("models/nano", NULL, &err);
    app = (cli_app){ .command = cli_find("sample", NULL) };
    return nano && app.command ? 0 : -1;
}

static int close_nano(void **state)
{
    tinkc_tokenizer_free(nano);
    return end(state);
}

static void given(const char *option, const char *value)
{
    assert_int_equal(cli_set_value(&app, option, value, CLI_FROM_PROGRAM, "test"), 0);
}

static void assert_said(char *said, const char *wanted)
{
    assert_string_equal(said, wanted);
    free(said);
}

#define TOKENS "max_tokens must be at least 1 and fit 31 bits"
#define TOP_P  "top_p must be above 0 and at most 1"
#define TOP_K  "top_k must be -1 (all) or more, and fit 31 bits"

TEST_WITH(numbers_of_a_line, open_nano, close_nano)
{
    static const struct {
        const char *line, *why; /* NULL: nothing is wrong */
        int32_t max_tokens, top_k;
        double temperature, top_p;
    } rows[] = {
        { "{}", NULL, 5, 6, 0.5, 0.25 },
        { "{\"max_tokens\":null,\"seed\":null}", NULL, 5, 6, 0.5, 0.25 },
        { "{\"max_tokens\":1}", NULL, 1, 6, 0.5, 0.25 },
        { "{\"max_tokens\":2147483647}", NULL, INT32_MAX, 6, 0.5, 0.25 },
        { "{\"max_tokens\":2147483648}", TOKENS, 0, 0, 0, 0 },
        { "{\"max_tokens\":4294967297}", TOKENS, 0, 0, 0, 0 },
        { "{\"max_tokens\":0}", TOKENS, 0, 0, 0, 0 },
        { "{\"max_tokens\":-4294967295}", TOKENS, 0, 0, 0, 0 },
        { "{\"max_tokens\":1.5}", "max_tokens: not a whole number", 0, 0, 0, 0 },
        { "{\"max_tokens\":\"9\"}", "max_tokens: not a whole number", 0, 0, 0, 0 },
        { "{\"temperature\":0}", NULL, 5, 6, 0, 0.25 },
        { "{\"temperature\":2.5}", NULL, 5, 6, 2.5, 0.25 },
        { "{\"temperature\":-0.5}", "temperature must not be negative", 0, 0, 0, 0 },
        { "{\"temperature\":true}", "temperature: not a number", 0, 0, 0, 0 },
        { "{\"top_p\":1}", NULL, 5, 6, 0.5, 1 },
        { "{\"top_p\":0}", TOP_P, 0, 0, 0, 0 },
        { "{\"top_p\":1.5}", TOP_P, 0, 0, 0, 0 },
        { "{\"top_p\":[]}", "top_p: not a number", 0, 0, 0, 0 },
        { "{\"top_k\":-1}", NULL, 5, -1, 0.5, 0.25 },
        { "{\"top_k\":0}", NULL, 5, 0, 0.5, 0.25 },
        { "{\"top_k\":2147483647}", NULL, 5, INT32_MAX, 0.5, 0.25 },
        { "{\"top_k\":2147483648}", TOP_K, 0, 0, 0, 0 },
        { "{\"top_k\":-2}", TOP_K, 0, 0, 0, 0 },
        { "{\"top_k\":-4294967297}", TOP_K, 0, 0, 0, 0 },
        { "{\"top_k\":1.5}", "top_k: not a whole number", 0, 0, 0, 0 },
        { "{\"seed\":1.5}", "seed: not a whole number", 0, 0, 0, 0 },
    };
    char why[CLI_WHY];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_sampling s = { .max_tokens = 5, .top_k = 6, .temperature = 0.5F, .top_p = 0.25F };
        tkc_tree *v = json_of(rows[i].line);
        bool ok = cli_sampling_members(v, &s, why);
        assert_true(ok == !rows[i].why && !s.has_seed);
        if (!ok)
            assert_string_equal(why, rows[i].why);
        else if (s.max_tokens != rows[i].max_tokens || s.top_k != rows[i].top_k ||
                 (double)s.temperature != rows[i].temperature || (double)s.top_p != rows[i].top_p)
            fail_msg("%s", rows[i].line);
    }
    tinkc_sampling s = { .max_tokens = 5, .top_p = 1 };
    tkc_tree *v = json_of("{\"seed\":7}");
    assert_true(cli_sampling_members(v, &s, why) && s.has_seed && s.seed == 7);
}

TEST_WITH(numbers_of_sampling_have_bounds, open_nano, close_nano)
{
    static const struct {
        const char *option, *value, *said;
    } rows[] = {
        { "max-tokens", "1", "" },
        { "max-tokens", "2147483647", "" },
        { "max-tokens", "2147483648", "error: --max-tokens must be at least 1 and fit 31 bits\n" },
        { "max-tokens", "0", "error: --max-tokens must be at least 1 and fit 31 bits\n" },
        { "temperature", "0", "" },
        { "temperature", "-1", "error: --temperature must not be negative\n" },
        { "top-p", "1", "" },
        { "top-p", "0", "error: --top-p must be above 0 and at most 1\n" },
        { "top-p", "1.5", "error: --top-p must be above 0 and at most 1\n" },
        { "top-k", "-1", "" },
        { "top-k", "-2", "error: --top-k must be -1 (all) or more, and fit 31 bits\n" },
        { "top-k", "2147483647", "" },
        { "top-k", "2147483648", "error: --top-k must be -1 (all) or more, and fit 31 bits\n" },
        { "stop-token", "2147483647", "" },
        { "stop-token", "0", "" },
        { "stop-token", "2147483648", "error: --stop-token: '2147483648' is not a token id\n" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_parse_free(&app);
        app = (cli_app){ .command = cli_find("sample", NULL) };
        given(rows[i].option, rows[i].value);
        hold_output();
        int code = cli_check_sampling(&app);
        assert_said(release_output(), rows[i].said);
        assert_int_equal(code, *rows[i].said ? CLI_EXIT_USAGE : 0);
    }
}

TEST_WITH(the_end_of_a_turn_and_of_a_text_stop_a_sample, open_nano, close_nano)
{
    cli_asked asked = { .tokenizer = nano, .chat = true };
    tinkc_sampling s = { 0 };
    /* The end of a turn and that of a text, as tokens. */
    assert_true(cli_stop_as_usual(&asked, false, &s));
    assert_true(!s.stop && s.n_stop_tokens == 2 && s.stop_tokens[0] == 4095 &&
                s.stop_tokens[1] == tinkc_tokenizer_id(nano, "<|endoftext|>"));
    cli_free_sampling(&s);
    assert_true(!s.stop && !s.stop_tokens);
    /* A format whose ends are not single tokens of this tokenizer: as texts. */
    s = (tinkc_sampling){ 0 };
    asked.renderer = "role_colon";
    assert_true(cli_stop_as_usual(&asked, false, &s));
    assert_true(s.stop && s.stop[0] && s.n_stop_tokens == 0);
    assert_string_equal(s.stop[0], "\n\nUser:");
    assert_null(s.stop[1]);
    cli_free_sampling(&s);
    /* A text ends where the tokenizer says. */
    s = (tinkc_sampling){ 0 };
    assert_true(cli_stop_as_usual(&asked, true, &s));
    tinkc_i32s ends = tinkc_tokenizer_ends(nano);
    assert_true(!s.stop && s.n_stop_tokens == ends.len);
    for (size_t i = 0; i < ends.len; i++)
        assert_int_equal(s.stop_tokens[i], ends.data[i]);
    cli_free_sampling(&s);
    /* What was given comes instead. */
    given("max-tokens", "9");
    given("temperature", "0.5");
    given("top-p", "0.25");
    given("top-k", "3");
    given("stop", "a");
    assert_int_equal(cli_sampling_options(&app, &asked, false, &s), 0);
    assert_true(s.max_tokens == 9 && s.temperature == 0.5F && s.top_p == 0.25F && s.top_k == 3 && !s.has_seed &&
                s.n_stop_tokens == 0 && s.stop && s.stop[0]);
    assert_string_equal(s.stop[0], "a");
    assert_null(s.stop[1]);
    cli_free_sampling(&s);
    cli_parse_free(&app);
    app = (cli_app){ .command = cli_find("sample", NULL) };
    given("stop-token", "17");
    given("seed", "5");
    assert_int_equal(cli_sampling_options(&app, &asked, false, &s), 0);
    assert_true(!s.stop && s.n_stop_tokens == 1 && s.stop_tokens[0] == 17 && s.has_seed && s.seed == 5);
    cli_free_sampling(&s);
}

/* The context is known: nobody is asked. */
TEST_WITH(room_for_an_answer, open_nano, close_nano)
{
    static const struct {
        int64_t context;
        size_t prompt;
        int32_t wanted, left;
    } rows[] = {
        { 1000, 24, 1000, 1000 }, /* fits into any model */
        { 1000, 25, 1000, 975 },  { 2000, 25, 1000, 1000 }, { 1025, 25, 1000, 1000 },
        { 1024, 25, 1000, 999 },  { 2000, 1999, 50, 1 },    { 2000, 2000, 50, 50 }, /* the service refuses it */
        { 2000, 3000, 50, 50 },   { -1, 3000, 50, 50 },     { -1, 5000, 5000, 5000 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_asked asked = { .context = rows[i].context };
        tinkc_sampling s = { .max_tokens = rows[i].wanted };
        hold_output();
        cli_clamp_tokens(&app, &asked, rows[i].prompt, &s);
        char *said = release_output(), wanted[200] = "";
        if (rows[i].left != rows[i].wanted)
            (void)snprintf(wanted, sizeof wanted,
                           "--max-tokens lowered from %d to %d: the model's context is %d tokens, "
                           "the prompt has %d\n",
                           (int)rows[i].wanted, (int)rows[i].left, (int)rows[i].context, (int)rows[i].prompt);
        assert_said(said, wanted);
        assert_int_equal(s.max_tokens, rows[i].left);
    }
}

TEST_WITH(messages_are_checked_before_they_are_sent, open_nano, close_nano)
{
    static const struct {
        const char *text;
        size_t len;
        const char *said;
    } texts[] = {
        { "x", 1, "" },
        { "", 0, "error: the prompt is empty\n" },
        { "a\0b", 3, "error: the prompt is not UTF-8 text\n" },
        { "\xff", 1, "error: the prompt is not UTF-8 text\n" },
        { "\xc3\xa4", 2, "" },
        { "a\xc3\xa4", 2, "error: the prompt is not UTF-8 text\n" },
    };
    static const struct {
        const char *text, *left;
    } lines[] = { { "", "" },         { "\n", "" },     { "\r\n", "" },     { "\r", "" },
                  { "a\n", "a" },     { "a\r\n", "a" }, { "a\n\n", "a\n" }, { "a\n\r", "a\n" },
                  { "a\r\r", "a\r" }, { "a", "a" },     { "\na", "\na" } };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        hold_output();
        int code = cli_check_message(&app, texts[i].text, texts[i].len);
        assert_said(release_output(), texts[i].said);
        assert_int_equal(code, *texts[i].said ? CLI_EXIT_INPUT : 0);
    }
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char text[8];
        (void)snprintf(text, sizeof text, "%s", lines[i].text);
        assert_int_equal(cli_strip_newline(text, strlen(text)), strlen(lines[i].left));
        assert_string_equal(text, lines[i].left);
    }
}

TEST_WITH(a_list_of_tokens_holds_ids, open_nano, close_nano)
{
    static const struct {
        const char *list;
        size_t n;
    } rows[] = {
        { "[1,2,0]", 3 }, { "[2147483647]", 1 }, { "[]", 0 },    { "[2147483648]", 0 }, { "[-1]", 0 },
        { "[1,-1]", 0 },  { "[1,\"2\"]", 0 },    { "[1.0]", 0 }, { "{}", 0 },           { "[4294967297]", 0 }
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_tokens ids = { 0 };
        assert_true(tinkc_tokens_append(&ids, (const int32_t[]){ 9 }, 1, NULL));
        tkc_tree *v = json_of(rows[i].list);
        bool ok = cli_token_list(v, &ids);
        if (ok != (rows[i].n > 0) || ids.len != 1 + rows[i].n)
            fail_msg("%s: %zu", rows[i].list, ids.len);
        for (size_t k = 0; k < rows[i].n; k++)
            assert_int_equal(ids.data[1 + k], tkc_tree_i64(tkc_tree_at(v, k)));
        tinkc_tokens_free(&ids);
    }
}

TEST_WITH(a_system_prompt_replaces_none_of_the_files, open_nano, close_nano)
{
    static const char own[] = "[{\"role\":\"system\",\"content\":\"o\"},{\"role\":\"user\"}]",
                      user[] = "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"system\"}]",
                      head[] = "{\"role\":\"system\",\"content\":\"s\"}";
    static const struct {
        bool given;
        const char *messages, *first;
    } rows[] = { { false, own, "" },   { false, user, "" },  { false, "[]", "" },  { true, own, "" },
                 { true, user, head }, { true, "[]", head }, { true, "[5]", head } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char wanted[300];
        if (rows[i].given)
            given("system", "s");
        tkc_tree *v = json_of(rows[i].messages), *all = cli_with_system(&app, &json_arena, v);
        char *text = json_print(all);
        (void)snprintf(wanted, sizeof wanted, "[%s%s%s", rows[i].first, *rows[i].first && tkc_tree_length(v) ? "," : "",
                       rows[i].messages + 1);
        assert_string_equal(text, wanted);
    }
}

/* ---- what is made of an answer ---- */

TEST_WITH(thoughts_are_hidden_or_shown_alone, open_nano, close_nano)
{
    static const struct {
        const char *text, *hidden, *only;
    } rows[] = {
        { "a", "a", "a" },
        { "<think>a", "<think>a", "<think>a" },
        { "<think>a</think>b", "b", "a" },
        { "<think>a</think>\n\r\nb\n", "b\n", "a" },
        { "x<think>a</think>b", "b", "a" },
        { "a</think> b", " b", "a" },
        { "</think><think>b", "<think>b", "" },
        { "a</think>b<think>c</think>", "b<think>c</think>", "a" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *shown = cli_thinking(rows[i].text, "show"), *hidden = cli_thinking(rows[i].text, "hide"),
             *only = cli_thinking(rows[i].text, "only");
        assert_string_equal(shown, rows[i].text);
        assert_string_equal(hidden, rows[i].hidden);
        assert_string_equal(only, rows[i].only);
        free(shown);
        free(hidden);
        free(only);
    }
}

/* 15 is "0", 16 "1", 198 the end of a line, 4095 the end of a turn. */
TEST_WITH(an_answer_ends_before_its_stop, open_nano, close_nano)
{
    static const int32_t ids[] = { 15, 16, 198, 4095 };
    static const float logprobs[] = { -0.5F, -0.25F };
    static const char *const ends_in_1[] = { "x", "1", "0", NULL }, *const empty[] = { "", NULL },
                             *const longer[] = { "9901", "01", NULL };
    static const struct {
        size_t from, n;
        int32_t reason;
        const char *const *stops;
        const char *text, *termination;
    } rows[] = {
        { 0, 2, TINKC_STOP, NULL, "01", "stop_sequence" },
        { 0, 4, TINKC_STOP, NULL, "01\n", "eos" },
        { 3, 1, TINKC_STOP, NULL, "", "eos" },
        { 0, 0, TINKC_STOP, NULL, "", "malformed" },
        { 0, 2, TINKC_STOP, ends_in_1, "0", "stop_sequence" },
        { 0, 3, TINKC_STOP, ends_in_1, "01\n", "stop_sequence" },
        { 0, 2, TINKC_STOP, empty, "01", "stop_sequence" },
        { 0, 2, TINKC_STOP, longer, "", "stop_sequence" },
        { 0, 2, TINKC_STOP_LENGTH, ends_in_1, "01", "malformed" },
        { 0, 4, TINKC_STOP_LENGTH, NULL, "01\n<|im_end|>", "malformed" },
    };
    const cli_asked asked = { .tokenizer = nano };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const tinkc_sequence seq = { .tokens = { ids + rows[i].from, rows[i].n }, .stop_reason = rows[i].reason };
        const tinkc_sampling how = { .stop = rows[i].stops };
        char *text = cli_answer_text(&asked, &seq, &how);
        assert_string_equal(text, rows[i].text);
        assert_string_equal(cli_termination(&asked, &seq), rows[i].termination);
        free(text);
    }
    const tinkc_sequence seq = { .tokens = { ids + 2, 2 }, .logprobs = { logprobs, 2 }, .stop_reason = TINKC_STOP },
                         bare = { .tokens = { ids, 1 }, .stop_reason = TINKC_STOP_LENGTH };
    const tinkc_sampling how = { 0 };
    static const char *const wanted[] = {
        "{\"text\":\"\\n\",\"message\":{\"role\":\"assistant\",\"content\":\"\\n\"},"
        "\"termination\":\"eos\",\"tokens\":[198,4095],\"logprobs\":[-0.5,-0.25],"
        "\"stop_reason\":\"stop\"}",
        "{\"text\":\"0\",\"termination\":\"malformed\",\"tokens\":[15],\"logprobs\":null,"
        "\"stop_reason\":\"length\"}"
    };
    for (size_t i = 0; i < 2; i++) {
        tkc_tree *v = cli_sequence_json(&json_arena, &asked, i ? &bare : &seq, &how, i == 0);
        char *text = json_print(v);
        assert_string_equal(text, wanted[i]);
    }
}
