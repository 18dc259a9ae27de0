/* test_shown.c - the command's own texts, whole: what its pure functions make of many inputs. See support/cli/sheet.h. */
#include <math.h>
#include <time.h>
#include <unistd.h>

#include "cli/main/commands.h"
#include "cli/data/dataset.h"
#include "cli/output/list.h"
#include "cli/models/models.h"
#include "cli/output/out.h"
#include "support/cli/held_output.h"
#include "support/cli/sheet.h"
#include "cli/output/term.h"
#include "cli/output/text.h"
#include "support/json_trees.h"
#include "support/test_case.h"

/* ---- JSON ---- */

static const char *const json_texts[] = {
    /* words and numbers */
    "", " ", "null", " null ", "nul", "nulll", "true", "tru", "false", "fals", "x", "nullx", "null x", "0", "-0", "-",
    "01", "1", "10", "1.5", "1.", ".5", "-1.5e10", "1e", "1e+", "1E+5", "1e-5", "1e5.", "1.e5", "+1", "1 2", "--1",
    "-a", "1e400", "9", "-9", "99", "1.9", "1e9", "1e-9", "0.0", "1:", "1/", "[9]", "/", ":",
    /* texts */
    "\"\"", "\"a", "\"a\\\"", "\"\\\\\"", "\"\\/\\b\\f\\n\\r\\t\\\"\"", "\"\\x\"", "\"\\", "\"\\u12\"", "\"\\u12G4\"",
    "\"\\u00aF\"", "\"\\u00:0\"", "\"\\u00/0\"", "\"\\u00`0\"", "\"\\u00g0\"", "\"\\u00@0\"", "\"\\uD7FF\"",
    "\"\\uD800\"", "\"\\uD83D\\uDE00\"", "\"\\uD83D\\uDBFF\"", "\"\\uD83D\\uE000\"", "\"\\uD83D\\uDC00\"",
    "\"\\uDBFF\\uDFFF\"", "\"\\uDC00\"", "\"\\uDFFF\"", "\"\\uE000\"", "\"\\uD83D\\n\"", "\"\\uD83Dxxxxxx\"",
    "\"\\uD83D", "\"a\x1f\"", "\"a\x7f\"", "\"a\nb\"", "\"a b\"", "\"\xc2\x80\"", "\"\xc1\x80\"", "\"\xc2\"",
    "\"\xdf\xbf\"", "\"\xe0\xa0\x80\"", "\"\xe0\x9f\x80\"", "\"\xed\x9f\xbf\"", "\"\xed\xa0\x80\"", "\"\xef\xbf\xbf\"",
    "\"\xf0\x90\x80\x80\"", "\"\xf0\x8f\x80\x80\"", "\"\xf4\x8f\xbf\xbf\"", "\"\xf4\x90\x80\x80\"",
    "\"\xf5\x80\x80\x80\"", "\"\xe0\xa0\"", "\"\xe6\x97", "\"\xf0\x9f\x98\x41\"", "\"\xc2\x80", "\"\\x0041\"",
    "\"\\uD83DxuDE00\"", "\"\\u0099\"", "\"\\u0000\"",
    /* arrays */
    "[]", "[ ]", "[1]", "[1,]", "[,1]", "[1,2]", "[1 2]", "[1", "[", "]", "[1]]", "[1],", "[[],[[]]]", "[\t1\r\n,2 ]",
    "[1;2]",
    /* objects */
    "{}", "{ }", "{\"a\":1}", "{\"a\" : 1 , \"b\":[{}]}", "{\"a\":1,}", "{,\"a\":1}", "{\"a\"}", "{\"a\" 1}",
    "{\"a\":}", "{a:1}", "{1:1}", "{\"a\":1", "{\"a\"", "{\"a\":", "{\"a\":1}}", "{\"a\":1 \"b\":2}",
    "{\"a\":{\"b\":{\"c\":null}}}"
};

TEST_WITH(json_is_read_as_its_grammar_says, open_sheet, close_sheet)
{
    for (size_t i = 0; i < N(json_texts); i++) {
        cli_scan s;
        cli_scan_open(&s, json_texts[i], strlen(json_texts[i]));
        bool skipped = cli_scan_skip(&s), good = cli_scan_close(&s);
        put_input(json_texts[i]);
        fprintf(sheet, "%s%s %s at %zu, depth %d\n", skipped ? "value" : "no value",
                good ? "" : ", refused:", s.fault ? s.fault : "", (size_t)(s.at - s.begin), (int)s.depth);
    }
    for (size_t depth = 127; depth < 130; depth++) {
        char text[300];
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        cli_scan s;
        cli_scan_open(&s, text, 2 * depth);
        fprintf(sheet, "%zu deep: %s\n", depth, cli_scan_skip(&s) && cli_scan_close(&s) ? "good" : s.fault);
    }
    compare("json-read");
}

/* A text that ends where its length says, whatever stands behind. */
TEST(a_json_text_ends_where_its_length_says)
{
    static const struct {
        const char *text;
        size_t len, at;
        bool good;
    } rows[] = { { "-0", 1, 1, false },  { "1.5", 1, 1, true },   { "1.5", 2, 2, false }, { "1e5", 1, 1, true },
                 { "1e5", 2, 2, false }, { "1e+5", 2, 2, false }, { "105", 2, 2, true },  { "true", 3, 0, false } };
    cli_span text;
    cli_scan s;
    for (size_t i = 0; i < N(rows); i++) {
        cli_scan_open(&s, rows[i].text, rows[i].len);
        assert_int_equal(cli_scan_skip(&s), rows[i].good);
        assert_int_equal(s.at - s.begin, rows[i].at);
    }
    cli_scan_open(&s, "\"\\x\"", 4);
    assert_false(cli_scan_string(&s, &text));
    cli_scan_open(&s, "truefalse", 4);
    assert_true(cli_scan_skip(&s) && cli_scan_close(&s));
    cli_scan_open(&s, "12345", 3);
    assert_true(cli_scan_skip(&s) && cli_scan_close(&s) && s.at == s.end);
    cli_scan_open(&s, "\"ab\"", 3);
    assert_false(cli_scan_skip(&s));
    cli_scan_open(&s, "\"\\u0041\"", 6);
    assert_false(cli_scan_skip(&s));
    cli_scan_open(&s, "\"abcd", 3);
    assert_false(cli_scan_skip(&s));
    assert_string_equal(s.fault, "a string without end");
    assert_true(cli_span_is((cli_span){ "abc", 3 }, "abc"));
    assert_false(cli_span_is((cli_span){ "abc", 2 }, "abc"));
    assert_false(cli_span_is((cli_span){ "abd", 3 }, "abc"));
}

/* What comes next, by its first character. */
TEST(the_first_character_says_what_comes_next)
{
    static const struct {
        const char *text;
        size_t len;
        char next;
        const char *fault;
    } rows[] = { { "{", 1, '{', NULL },
                 { "[", 1, '[', NULL },
                 { "\"", 1, '"', NULL },
                 { "t", 1, 't', NULL },
                 { "f", 1, 'f', NULL },
                 { "n", 1, 'n', NULL },
                 { "0", 1, '0', NULL },
                 { "9", 1, '0', NULL },
                 { "-", 1, '0', NULL },
                 { " \t\r\n5", 5, '0', NULL },
                 { "", 0, 0, "ends early" },
                 { "  ", 2, 0, "ends early" },
                 { "/", 1, 0, "a value is needed" },
                 { ":", 1, 0, "a value is needed" },
                 { "}", 1, 0, "a value is needed" },
                 { "\0", 1, 0, "a value is needed" } };
    cli_span text;
    cli_scan s;
    for (size_t i = 0; i < N(rows); i++) {
        cli_scan_open(&s, rows[i].text, rows[i].len);
        for (int again = 0; again < 2; again++)
            assert_int_equal(cli_scan_peek(&s), rows[i].next);
        assert_true(s.fault ? rows[i].fault && strcmp(s.fault, rows[i].fault) == 0 : !rows[i].fault);
    }
    /* After a fault there is nothing any more. */
    assert_false(cli_scan_object(&s) || cli_scan_array(&s) || cli_scan_item(&s) || cli_scan_key(&s, &text) ||
                 cli_scan_string(&s, &text) || cli_scan_skip(&s) || cli_scan_close(&s));
    assert_true(s.at == s.begin && s.depth == 0 && text.len == 0 && *text.data == '\0');
    cli_scan_open(&s, "\"\\\0\"", 4); /* a NUL behind a backslash */
    assert_false(cli_scan_skip(&s));
    assert_string_equal(s.fault, "a bad escape");
    /* Values of another kind. */
    cli_scan_open(&s, "[1]", 3);
    assert_false(cli_scan_object(&s));
    assert_string_equal(s.fault, "an object is needed");
    cli_scan_open(&s, "{}", 2);
    assert_false(cli_scan_array(&s));
    assert_string_equal(s.fault, "an array is needed");
    cli_scan_open(&s, "1", 1);
    assert_false(cli_scan_string(&s, &text));
    assert_string_equal(s.fault, "a string is needed");
    /* Step by step. */
    cli_scan_open(&s, " { \"a\" : [ 1 , {} ] } ", 22);
    assert_true(cli_scan_object(&s) && s.depth == 1 && cli_scan_key(&s, &text));
    assert_true(text.len == 1 && text.data[0] == 'a' && cli_scan_array(&s) && s.depth == 2);
    assert_true(cli_scan_item(&s) && cli_scan_peek(&s) == '0' && cli_scan_skip(&s));
    assert_true(cli_scan_item(&s) && cli_scan_peek(&s) == '{' && cli_scan_skip(&s));
    assert_true(!cli_scan_item(&s) && s.depth == 1 && !cli_scan_key(&s, &text) && s.depth == 0);
    assert_true(cli_scan_close(&s) && s.at == s.end);
}

TEST_WITH(json_is_written_in_one_form, open_sheet, close_sheet)
{
    static const char *const texts[] = {
        "{}",
        "[]",
        "null",
        "{\"a\": 1, \"b\": [1, 2.5, true, false, null, \"x\"], \"c\": {\"d\": {}, \"e\": []}}",
        "[[1], [[2]], {\"a\": [3]}]",
        "\"a\\\"b\\\\c\\n\\t\\r\\b\\f\\u0001\\u001f\\u007f\"",
        "\"\xc3\xa9 \xe6\x97\xa5 \xf0\x9f\x98\x80 \xdf\xbf \xe0\xa0\x80 \xef\xbf\xbd "
        "\xf0\x90\x80\x80 \xf4\x8f\xbf\xbf\"",
        "{\"\xc3\xa9\": -9223372036854775808}",
        "[1e-5, 1e16, 0.1, -0.0, 3.0]"
    };
    for (size_t i = 0; i < N(texts); i++) {
        tkc_tree *v = json_of(texts[i]);
        assert_non_null(v);
        for (int indent = 0; indent < 4; indent += indent ? 1 : 2) {
            cli_write_json(sheet, v, indent);
            fputc('\n', sheet);
            cli_write_python_json(sheet, v, indent);
            fputc('\n', sheet);
        }
    }
    tkc_tree *v = tkc_tree_pack(&json_arena, "{s:{s:{s:i}}, s:i, s:n}", "a", "b", "c", 1, "a.b", 2, "n");
    assert_int_equal(tkc_tree_i64(cli_json_at(v, "a.b.c")), 1);
    assert_int_equal(tkc_tree_i64(cli_json_at(v, "a.b")), 2); /* a key with dots goes first */
    assert_true(tkc_tree_is_object(cli_json_at(v, "a")));
    assert_true(tkc_tree_is_null(cli_json_at(v, "n")));
    assert_null(cli_json_at(v, "a.x"));
    assert_null(cli_json_at(v, "n.x"));
    char name[140];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_null(cli_json_at(v, name));
    compare("json-written");
}

/* ---- conversations ---- */

/* What is said of a conversation, a line for each problem and one of counts. */
typedef struct said {
    FILE *to;
    char *text;
    size_t len, errors;
} said;

static void note_problem(const char *file, size_t line, int level, const char *code, const char *message, void *user)
{
    said *s = user;
    assert_string_equal(file, "f");
    assert_int_equal(line, 7);
    fprintf(s->to, "%s %s: %s\n", level == CLI_LEVEL_ERROR ? "error" : "warning", code, message);
    s->errors += level == CLI_LEVEL_ERROR;
}

static void note_counts(FILE *to, const cli_convo *f)
{
    const struct {
        size_t n;
        const char *name;
    } counts[] = { { f->n_messages, "messages" }, { f->n_user, "user" }, { f->n_assistant, "assistant" },
                   { f->n_system, "system" },     { f->n_tool, "tool" }, { f->n_trainable, "trainable" } },
      flags[] = { { f->reasoning, "reasoning" }, { f->tools, "tools" }, { f->calls, "calls" }, { f->bare, "bare" } };
    const char *between = "counts: ";
    for (size_t i = 0; i < N(counts); i++)
        if (counts[i].n) {
            fprintf(to, "%s%zu %s", between, counts[i].n, counts[i].name);
            between = ", ";
        }
    for (size_t i = 0; i < N(flags); i++)
        if (flags[i].n) {
            fprintf(to, "%s%s", between, flags[i].name);
            between = ", ";
        }
    fputs(*between == ',' ? "\n" : "counts: nothing\n", to);
}

static said check_line(const char *line, bool customized)
{
    said s = { 0 };
    cli_convo f;
    s.to = open_memstream(&s.text, &s.len);
    assert_non_null(s.to);
    bool good = cli_check_conversation("f", 7, (cli_span){ line, strlen(line) }, customized, &f, note_problem, &s);
    assert_int_equal(good, s.errors == 0); /* errors refuse, nothing else */
    note_counts(s.to, &f);
    assert_int_equal(fclose(s.to), 0);
    return s;
}

static bool has_line(const char *text, const char *line, size_t len)
{
    for (; *text; text += strcspn(text, "\n") + 1)
        if (strncmp(text, line, len) == 0)
            return true;
    return false;
}

/* Lines of `text` with a mark before those that `other` does not have. */
static void put_lines(const char *text, const char *other, const char *mark, bool shared)
{
    for (size_t len; *text; text += len) {
        len = strcspn(text, "\n") + 1;
        bool both = has_line(other, text, len);
        if (!both || shared)
            fprintf(sheet, "  %s%.*s", both ? "" : mark, (int)len, text);
    }
}

static void put_conversation(const char *line)
{
    said plain = check_line(line, false), customized = check_line(line, true);
    put_lines(plain.text, customized.text, "plain: ", true);
    put_lines(customized.text, plain.text, "customized: ", false);
    free(plain.text);
    free(customized.text);
}

TEST_WITH(each_form_of_conversation_is_read, open_sheet, close_sheet)
{
    each_row("conversations", put_conversation);
}

TEST_WITH(conversations_with_calls, open_sheet, close_sheet)
{
    each_row("conversations-calls", put_conversation);
}

TEST_WITH(what_is_learnt, open_sheet, close_sheet)
{
    each_row("conversations-learnt", put_conversation);
}

TEST_WITH(lines_end_at_any_line_end, open_sheet, close_sheet)
{
    static const char *const files[] = { "",
                                         "\n",
                                         "a",
                                         "a\n",
                                         "a\nb",
                                         "a\r\n\r\nb \t\r\n\n c",
                                         "\xEF\xBB\xBF"
                                         "a\nb",
                                         "\xEF\xBB\xBF",
                                         "\xEF\xBB",
                                         " \t\r",
                                         "x\xEF\xBB\xBFy\n" };
    for (size_t i = 0; i < N(files); i++) {
        cli_data_file f = { .text = (char *)(uintptr_t)files[i], .len = strlen(files[i]) };
        cli_lines l;
        cli_span line;
        put_input(files[i]);
        for (cli_lines_open(&l, &f); cli_lines_next(&l, &line); fputc(' ', sheet)) {
            fprintf(sheet, "%zu:", l.number);
            put_quoted(line.data, line.len);
        }
        fprintf(sheet, "%zu lines\n", l.number);
    }
    compare("lines");
}

/* Files that are not JSON lines, by their first bytes or their names. */
TEST_WITH(other_files_are_known_by_their_first_bytes, open_sheet, close_sheet)
{
    static const struct {
        const char *path, *text;
        size_t len; /* what stands behind does not count */
    } rows[] = { { "a", "PAR1", 4 },
                 { "a", "PAR1", 3 },
                 { "a", "PAR2", 4 },
                 { "a", "PAR1x", 5 },
                 { "a", "ARROW1", 6 },
                 { "a", "ARROW1", 5 },
                 { "a.gz", "\x1f\x8b", 2 },
                 { "a.gz", "\x1f", 1 },
                 { "a", "\x28\xb5\x2f\xfd", 4 },
                 { "a", "PK\x03\x04", 4 },
                 { "a.csv", "x,y", 3 },
                 { "a.CSV", "x,y", 3 },
                 { ".csv", "x,y", 3 },
                 { "b.csv", "", 0 },
                 { "a.csv", "{}", 2 },
                 { "a.csv", " \t\r\n{}", 6 },
                 { "a.csv", " \t\r\n{}", 4 },
                 { "a.csv", "\xEF\xBB\xBF{}", 5 },
                 { "a.csv", "\xEF\xBB\xBF {", 5 },
                 { "a.csv", "\xEF\xBB\xBFx{", 5 },
                 { "a.csv", "\xEF\xBB{", 3 },
                 { "a.csv", "\xEF\xBB\xBF{", 3 },
                 { "a.csv", "[1]", 3 },
                 { "a.csv", "\0{", 2 },
                 { "a.csv", "x{", 2 },
                 { "a.tsv", "x\ty", 3 },
                 { "a.tsv", "{}", 2 },
                 { "a.tsvx", "x\ty", 3 },
                 { "a.jsonl", "x", 1 } };
    for (size_t i = 0; i < N(rows); i++) {
        cli_app app = { 0 };
        put_input(rows[i].path);
        put_quoted(rows[i].text, rows[i].len);
        hold_output();
        int bad = cli_data_refuse(&app, rows[i].path, rows[i].text, rows[i].len);
        char *shown = release_output();
        fprintf(sheet, " %d\n%s", bad, shown);
        free(shown);
    }
    compare("kinds");
}

/* All that is known about models by their names. */
TEST_WITH(each_known_model_has_its_facts, open_sheet, close_sheet)
{
    const cli_model_facts *m;
    const char *name;
    for (size_t i = 0; (name = cli_model_name(i)); i++) {
        m = cli_model_find(name);
        assert_non_null(m);
        fprintf(sheet, "%s (%s): hidden %d, mlp %d, attn %d, unembed %d, lr %.4g;", m->name, m->kind, (int)m->hidden,
                (int)m->mlp, (int)m->attn, (int)m->unembed, cli_model_suggested_rate(name));
        for (size_t k = 0; (name = cli_model_renderer(m, k)); k++)
            fprintf(sheet, " %s", name);
        fputc('\n', sheet);
    }
    compare("models");
}

/* ---- problems ---- */

/* What was written since hold_output. */
static void put_held(void)
{
    char *shown = release_output();
    fputs(shown, sheet);
    free(shown);
}

static void put_problems(const cli_app *app)
{
    static const char *const messages[] = {
        "HTTP 400: what?", "HTTP 400 what?", "HTTP : what?", "HTTP 4", "gone\x1b[31m", "HTTP 40:what", ""
    };
    cli_problem p = { .code = "conflict", .retryable = true, .status = 409, .line = 7 };
    (void)snprintf(p.request_id, sizeof p.request_id, "req-1");
    (void)snprintf(p.message, sizeof p.message, "taken");
    (void)snprintf(p.hint, sizeof p.hint, "wait");
    hold_output();
    cli_report(app, &p);
    p = (cli_problem){ .code = "nonsense", .status = 500, .file = "x.c", .line = 8 };
    cli_report(app, &p);
    p = (cli_problem){ .code = "usage", .exit = 77, .request_id = "req-2" };
    int code = cli_report(app, &p);
    put_held();
    fprintf(sheet, "exit %d\n", code);
    for (size_t i = 0; i < N(messages); i++) {
        tinkc_error err = { .code = TINKC_E_BAD_REQUEST };
        (void)snprintf(err.message, sizeof err.message, "%s", messages[i]);
        hold_output();
        cli_fail_error_at(app, "y.c", 9, &err, i % 2 ? "what" : i % 3 ? "" : NULL);
        put_held();
    }
    cli_bad_lines bad;
    for (size_t n = 0; n < 3; n++) {
        cli_bad_lines_begin(&bad, app);
        hold_output();
        for (size_t i = 0; i < n; i++)
            cli_bad_line(&bad, "a\tb", 3 + i, "json", "not\tJSON");
        code = cli_bad_lines_end(&bad, n == 2 ? NULL : "a\tb", "fix it");
        put_held();
        fprintf(sheet, "exit %d\n", code);
    }
    hold_output();
    cli_say_at(app, "z.c", 10, "INFO", "%d\x1b", 5);
    cli_say_at(app, "z.c", 11, "WARNING", "%s", "careful");
    put_held();
}

/* The code, status and hint of every error of the library. */
TEST_WITH(each_error_has_an_exit_status_and_a_hint, open_sheet, close_sheet)
{
    static const int exits[] = {
        0, 1, CLI_EXIT_USAGE, CLI_EXIT_NOT_FOUND, CLI_EXIT_DECLINED, CLI_EXIT_SIGINT, CLI_EXIT_SIGTERM
    };
    const cli_app plain = { 0 }, compat = { .compat = true };
    for (int32_t code = 0; code < 600; code++) {
        cli_problem p, theirs;
        tinkc_error err = { .code = code,
                            .http_status = 7,
                            .category = TINKC_BY_CALLER,
                            .flags = TINKC_RETRIABLE,
                            .request_id = "r",
                            .message = "m" };
        cli_problem_of(&err, &p);
        err.category = 0;
        err.flags = 0;
        cli_problem_of(&err, &theirs);
        assert_true(p.status == 7 && p.retryable && !theirs.retryable && p.exit == 0);
        assert_string_equal(p.request_id, "r");
        assert_string_equal(p.message, "m");
        if (strcmp(p.code, "internal") != 0)
            fprintf(sheet, "%d %s %d %s%s%s\n", (int)code, p.code, cli_exit_of(p.code),
                    strcmp(p.code, theirs.code) == 0 ? "" : theirs.code, *p.hint ? ": " : "", p.hint);
    }
    for (size_t i = 0; i < N(exits); i++)
        fprintf(sheet, "exit %d, compatible %d\n", cli_exit_code(&plain, exits[i]), cli_exit_code(&compat, exits[i]));
    compare("problems");
}

/* What is printed of problems, by terminal and verbosity. */
TEST_WITH(problems_are_printed_for_the_terminal_and_verbosity, open_sheet, close_sheet)
{
    static const cli_app apps[] = {
        { 0 },
        { .verbose = 1, .store = "s" },
        { .color = true, .stderr_tty = true, .quiet = true },
        { .color = true },
        { .stderr_tty = true, .compat = true },
    };
    for (size_t i = 0; i < N(apps); i++) {
        fprintf(sheet, "--- %zu\n", i);
        put_problems(&apps[i]);
    }
    compare("reports");
}

TEST_WITH(reports_as_json, open_sheet, close_sheet)
{
    cli_app json = { .format = CLI_JSON }, lines = { .format = CLI_JSONL, .quiet = true, .compat = true };
    put_problems(&json);
    fputs("--- lines, quiet, compatible\n", sheet);
    put_problems(&lines);
    cli_parse_free(&json);
    cli_parse_free(&lines);
    compare("reports-json");
}

/* With a log, which hears all of it, and a line on the screen, which is wiped. */
TEST_WITH(reports_beside_others, open_sheet, close_sheet)
{
    char *log = NULL;
    size_t len;
    const cli_app logged = { .log_file = open_memstream(&log, &len), .quiet = true },
                  drawn = { .draws = true, .progress = true };
    assert_non_null(logged.log_file);
    put_problems(&logged);
    fclose(logged.log_file);
    fprintf(sheet, "--- log\n%s--- lines\n", log);
    free(log);
    hold_output();
    cli_status(&drawn, true, "line");
    cli_fail_at(&drawn, "a.c", 1, "usage", "hint", "fault");
    cli_status(&drawn, true, "line");
    cli_say_at(&drawn, "a.c", 1, "INFO", "note");
    put_held();
    compare("reports-logged");
}

/* ---- records ---- */

/* Records, times in them, and what a command without a result says. */
TEST_WITH(records_are_printed_in_every_format, open_sheet, close_sheet)
{
    static const char *const keys[] = { "at", "time", NULL };
    static const char *const times[] = { "2025-01-02T03:04:05Z", "soon", "", NULL };
    static const char text[] = "{\"at\":\"2025-01-02 03:04:05\",\"x\":[{\"time\":\"2025-01-02\",\"other\":"
                               "\"2025-01-02\"},{\"at\":7,\"time\":\"soon\"}],\"in\":{\"at\":"
                               "\"2025-01-02T03:04:05.5+02:00\"}}";
    for (int format = CLI_TABLE; format <= CLI_ID; format++)
        for (int compat = 0; compat < 2; compat++) {
            cli_app app = { .command = cli_find("run", "info"),
                            .format = format,
                            .compat = compat,
                            .headers = format != CLI_TSV,
                            .time_style = CLI_TIME_ISO };
            tkc_tree *rows = tkc_tree_array(&json_arena), *object = json_of(text);
            fprintf(sheet, "--- format %d%s\n", format, compat ? " compatible" : "");
            cli_row(&app, rows, "Name", "a\tb\xff");
            cli_row(&app, rows, "Nothing", NULL);
            for (size_t i = 0; i < N(times); i++)
                cli_row_time(&app, rows, "Time", times[i]);
            cli_normalise_times(&app, object, keys);
            hold_output();
            assert_int_equal(cli_show_record(&app, strdup("A record"), rows, object), 0);
            assert_int_equal(cli_print_done(&app, tkc_tree_pack(&json_arena, "{s:i}", "n", 1), "%d done", 1), 0);
            put_held();
            cli_parse_free(&app);
        }
    compare("records");
}
