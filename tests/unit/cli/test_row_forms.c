/* test_row_forms.c - rows of every form against tests/data/cli/row_forms_*.txt: the conversation, what is said of it, and which of
 * its text is learnt:
 *
 *   sft ROW      one row for `train sft`
 *   = JSON       the conversation, where it has more than the roles and texts that > shows
 *   ? TEXT       a warning of `data check`
 *   > TEXT       as the template writes it; what is learnt is in [[ ]]
 *   pair ROW     for `train dpo`: > is the chosen side, < the rejected one; "tie" if it is one
 *   mark ROW     for `train dpo --loss kto`: + is a good answer, - a bad one
 *   ! TEXT       the row is refused with this
 */
#include <sys/mman.h>
#include <unistd.h>

#include "cli/data/dataset.h"
#include "cli/output/out.h"
#include "cli/data/row_forms.h"
#include "support/json_trees.h"
#include "support/test_case.h"

/* Writes all that a row may bring. A weight is a mark for training, which it must not see. */
static const char shape[] = "{% for t in tools or [] %}{{ t.function.name }} {{ t.function.parameters|tojson }};"
                            "{% endfor %}{% for m in messages %}{{ m.role }}:{{ m.content or '' }}"
                            "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments }})"
                            "{% endfor %}{{ m.weight }};{% endfor %}"
                            "{% if add_generation_prompt %}assistant:{% endif %}";

static tinkc_tokenizer *tokenizer;
static tinkc_template *template;

static int set_up(void **state)
{
    tinkc_error err = { 0 };
    (void)state;
    tokenizer = tinkc_tokenizer_open("models/nano", NULL, &err);
    template = tinkc_template_parse(shape, sizeof shape - 1, NULL, &err);
    if (err.code)
        print_error("%s\n", err.message);
    return tokenizer && template ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    tinkc_template_free(template);
    tinkc_tokenizer_free(tokenizer);
    return 0;
}

/* ---- what the program says ---- */

static FILE *sheet;

static void put_learnt(const tinkc_tokens *ids, const tinkc_floats *weights)
{
    tinkc_text text = { 0 };
    for (size_t from = 0, to = 0; from < ids->len; from = to) {
        bool learnt = weights->data[from] > 0;
        while (to < ids->len && (weights->data[to] > 0) == learnt)
            to++;
        tinkc_text_append(&text, "[[", learnt ? 2 : 0, NULL);
        tinkc_decode_span(tokenizer, ids->data + from, to - from, NULL, &text, NULL);
        tinkc_text_append(&text, "]]", learnt ? 2 : 0, NULL);
    }
    for (size_t i = 0; i < text.len; i++) /* a line of its own */
        fputc(text.data[i] == '\n' ? '|' : text.data[i], sheet);
    fputc('\n', sheet);
    tinkc_text_free(&text);
}

static void put_rendered(char mark, const char *row, int32_t train_on)
{
    tinkc_error err = { 0 };
    tinkc_tokens ids = { 0 };
    tinkc_floats weights = { 0 };
    tinkc_chat_options how = { .chat_template = template, .train_on = train_on };
    if (tinkc_chat_train(tokenizer, row, &how, &ids, &weights, NULL, &err)) {
        fprintf(sheet, "%c ", mark);
        put_learnt(&ids, &weights);
    } else {
        fprintf(sheet, "! %s\n", err.message);
    }
    tinkc_tokens_free(&ids);
    tinkc_floats_free(&weights);
}

static void put_side(char mark, const tkc_tree *conversation)
{
    char *text = cli_json_dump(conversation);
    put_rendered(mark, text, TINKC_TRAIN_LAST_ASSISTANT);
    free(text);
}

static void put_problem(const char *file, size_t line, int level, const char *code, const char *message, void *user)
{
    (void)file, (void)line, (void)code, (void)user;
    fprintf(sheet, "%c %s\n", level == CLI_LEVEL_ERROR ? '!' : '?', message);
}

/* Only roles and texts: what is learnt shows all of it. */
static bool is_plain(const tkc_tree *conversation)
{
    const tkc_tree *messages = tkc_tree_get(conversation, "messages"), *m;
    size_t i;
    for (i = 0; (m = tkc_tree_at(messages, i)); i++)
        if (tkc_tree_members(m) != 2 || !tkc_tree_is_text(tkc_tree_get(m, "content")))
            return false;
    return tkc_tree_members(conversation) == 1;
}

static void put_conversation(const char *line, const char *wanted)
{
    cli_row_fault why;
    tkc_tree *row = json_of(line), *want = json_of(wanted);
    tkc_tree *made = cli_row_conversation(&json_arena, row, NULL, &why);
    char *text = cli_json_dump(made);
    if (made && (want || !is_plain(made)))
        fprintf(sheet, "= %s\n", want && tkc_tree_equal(made, want) ? wanted : text);
    free(text);
}

/* As training reads it. `wanted`: the conversation as the sheet writes it. */
static void put_sft(const char *line, const char *wanted, bool refused)
{
    cli_row_fault why;
    cli_convo facts;
    char *owned, *text;
    cli_span row = cli_row_line((cli_span){ line, strlen(line) }, &owned, &why);
    text = strndup(row.data, row.len);
    if (why.text[0]) {
        fprintf(sheet, "! %s\n", why.text);
    } else if (!refused) {
        put_conversation(line, wanted);
        if (cli_check_conversation("f", 1, row, false, &facts, put_problem, NULL))
            put_rendered('>', text, TINKC_TRAIN_ALL_ASSISTANT);
    } else {
        assert_false(cli_check_conversation("f", 1, row, false, &facts, put_problem, NULL));
    }
    free(text);
    free(owned);
}

static void put_pair(const char *line)
{
    cli_row_fault why;
    tkc_tree *row = json_of(line);
    cli_row_sides s = cli_row_preference(&json_arena, row, &why);
    if (s.tie)
        fputs("tie\n", sheet);
    else if (!s.chosen || !s.rejected)
        fprintf(sheet, "! %s\n", why.text);
    else {
        put_side('>', s.chosen);
        put_side('<', s.rejected);
    }
}

static void put_mark(const char *line)
{
    cli_row_fault why;
    bool good;
    tkc_tree *row = json_of(line), *made = cli_row_marked(&json_arena, row, &good, &why);
    if (made)
        put_side(good ? '+' : '-', made);
    else
        fprintf(sheet, "! %s\n", why.text);
}

/* ---- against the sheet ---- */

typedef struct a_case {
    char *row, *wanted; /* what follows the row, up to the blank line */
    size_t len;
    size_t line;
} a_case;

static bool is_right(const a_case *c)
{
    char *got = NULL, conversation[4096] = "";
    size_t len;
    assert_true(c->wanted[0] != '\0');
    if (c->wanted[0] == '=')
        (void)snprintf(conversation, sizeof conversation, "%.*s", (int)strcspn(c->wanted + 2, "\n"), c->wanted + 2);
    sheet = open_memstream(&got, &len);
    assert_non_null(sheet);
    if (strncmp(c->row, "sft ", 4) == 0)
        put_sft(c->row + 4, conversation, c->wanted[0] == '!');
    else if (strncmp(c->row, "pair ", 5) == 0)
        put_pair(c->row + 5);
    else if (strncmp(c->row, "mark ", 5) == 0)
        put_mark(c->row + 5);
    else
        fputs("the sheet is broken\n", sheet);
    assert_int_equal(fclose(sheet), 0);
    bool right = strcmp(got, c->wanted) == 0;
    if (!right)
        print_error("line %zu: %s\nwanted:\n%sgot:\n%s", c->line, c->row, c->wanted, got);
    free(got);
    return right;
}

/* The next case of the sheet; false at its end. Comments and blank lines are between cases. */
static bool next_case(FILE *f, size_t *number, a_case *c)
{
    char line[4096];
    FILE *wanted = NULL;
    *c = (a_case){ 0 };
    while (fgets(line, sizeof line, f)) {
        ++*number;
        assert_non_null(strchr(line, '\n'));
        if (wanted && line[0] == '\n')
            break;
        if (wanted) {
            fputs(line, wanted);
        } else if (line[0] != '#' && line[0] != '\n') {
            c->row = strndup(line, strcspn(line, "\n"));
            c->line = *number;
            wanted = open_memstream(&c->wanted, &c->len);
            assert_non_null(wanted);
        }
    }
    return wanted && fclose(wanted) == 0;
}

static void check_sheet(const char *path)
{
    FILE *f = fopen(path, "r");
    a_case c;
    size_t n = 0, wrong = 0, number = 0;
    assert_non_null(f);
    for (; next_case(f, &number, &c); n++) {
        wrong += !is_right(&c);
        free(c.row);
        free(c.wanted);
    }
    fclose(f);
    assert_int_equal(wrong, 0);
    assert_true(n > 20);
}

TEST(rows_of_turns_are_learnt_as_their_form_says)
{
    check_sheet("tests/data/cli/row_forms_turns.txt");
}
TEST(rows_of_requests_and_answers_are_learnt_as_their_form_says)
{
    check_sheet("tests/data/cli/row_forms_answers.txt");
}
TEST(rows_of_preferences_are_learnt_as_their_form_says)
{
    check_sheet("tests/data/cli/row_forms_pairs.txt");
}

/* Every form is found by its name, and its example is of that form. */
TEST(forms_by_name)
{
    const char *name, *example;
    size_t n = 0;
    for (; cli_row_form_at(n, &name, &example); n++) {
        cli_row_fault why;
        tkc_tree *row = json_of(example);
        const cli_row_form *form = cli_row_form_named(name);
        assert_non_null(form);
        tkc_tree *made = cli_row_conversation(&json_arena, row, form, &why);
        assert_non_null(made);
    }
    assert_int_equal(n, 7);
    assert_null(cli_row_form_named("pair"));
}

/* What an earlier form found wrong is forgotten when a later one takes the row, as is what was there before. */
TEST(no_fault_is_left)
{
    static const char *const rows[] = {
        "{\"instruction\":\"a\",\"prompt\":\"b\",\"completion\":\"c\"}",
        "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"}]}",
        "{\"instruction\":\"a\",\"prompt\":\"b\",\"chosen\":\"c\",\"rejected\":\"d\"}",
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_row_fault why = { "of another row" };
        tkc_tree *row = json_of(rows[i]), *made = cli_row_conversation(&json_arena, row, NULL, &why);
        assert_non_null(made);
        assert_string_equal(why.text, "");
    }
    cli_row_fault why = { "of another row" };
    tkc_tree *row = json_of(rows[2]);
    cli_row_sides s = cli_row_preference(&json_arena, row, &why);
    assert_true(s.chosen && s.rejected && !s.tie);
    assert_string_equal(why.text, "");
    row = json_of("{\"x\":1}");
    why = (cli_row_fault){ "of another row" };
    assert_null(cli_row_conversation(&json_arena, row, NULL, &why));
    assert_string_equal(why.text, "");
    why = (cli_row_fault){ "of another row" };
    s = cli_row_preference(&json_arena, row, &why);
    assert_true(!s.chosen && !s.rejected);
    assert_string_equal(why.text, "needs \"chosen\" and \"rejected\": texts with a \"prompt\", or messages");
}

/* A line is often the end of a mapped file: nothing behind it may be looked at, wherever it is torn. */
TEST(nothing_behind_a_line)
{
    static const char whole[] =
        "{\"messages\" : [{\"role\":\"user\", \"content\" : \t[{\"text\":\"a\"}]}], \"from\": 1}";
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *room = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(room != MAP_FAILED && mprotect(room + page, page, PROT_NONE) == 0);
    for (size_t n = 0; n < sizeof whole; n++) {
        cli_span line = { memcpy(room + page - n, whole, n), n };
        cli_row_fault why;
        char *owned = NULL;
        cli_span got = cli_row_line(line, &owned, &why);
        assert_string_equal(why.text, "");
        assert_true(owned ? n == sizeof whole - 1 : got.data == line.data && got.len == n);
        free(owned);
    }
    assert_int_equal(munmap(room, 2 * page), 0);
}

RUN_TESTS(set_up, tear_down)
