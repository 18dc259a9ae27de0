/* test_lists.c - what list commands print: formats, columns, order, filters, fields. */
#include "cli/main/commands.h"
#include "cli/output/list.h"
#include "cli/output/out.h"
#include "support/cli/held_output.h"
#include "support/json_trees.h"
#include "support/test_case.h"

#define N(list) (sizeof(list) / sizeof *(list))

static const cli_column columns[] = {
    { .name = "id", .header = "ID", .path = "id", .is_default = true },
    { .name = "size", .header = "Size", .path = "n", .kind = CLI_CELL_SIZE, .is_default = true },
    { .name = "when",
      .header = "When",
      .path = "at",
      .kind = CLI_CELL_TIME,
      .none = "never",
      .is_default = true,
      .spare = true },
    { .name = "yes", .header = "Yes", .path = "b", .kind = CLI_CELL_BOOL, .none = "-" },
    { .name = "rate", .header = "Rate", .path = "x", .kind = CLI_CELL_NUMBER, .is_default = true },
    { .name = "path", .header = "A, \"b\"", .path = "in.side", .is_default = true, .is_id = true },
    { 0 }
};

/* The first has every member; a member of the others is null, of another type, empty, or missing. */
static const char items[] =
    "[{\"id\":\"a\",\"n\":5,\"at\":\"2025-01-02T03:04:05Z\",\"b\":true,\"x\":99.96,"
    "\"in\":{\"side\":\"p\\tq\\r\\n\\\"\"}},"
    "{\"id\":\"b\",\"n\":2048,\"at\":null,\"b\":false,\"x\":100.4,\"in\":null},"
    "{\"id\":\"a,b\",\"n\":10,\"at\":\"soon\",\"b\":null,\"x\":0.00012345,\"in\":{\"side\":[1]}},"
    "{\"id\":\"c\",\"n\":9,\"at\":\"\",\"x\":1e15,\"in\":{\"side\":7}},"
    "{\"id\":\"d\",\"x\":-999.6}]";

typedef struct list_case {
    int format;
    const char *fields, *name, *value, *name2, *value2; /* --json=FIELDS; --NAME VALUE, twice */
    const char *wanted;
    int status;
    bool compat;
} list_case;

/* As list commands do: filtered, arranged, printed. */
static int print_items(cli_app *app)
{
    tkc_tree *all = json_of(items), *kept = tkc_tree_array(&json_arena), *item;
    size_t k;
    int bad = cli_check_filters(app);
    bad = bad ? bad : cli_check_keys(app, tkc_tree_at(all, 0));
    for (k = 0; (item = tkc_tree_at(all, k)); k++)
        if (!bad && cli_passes(app, item)) {
            if (!cli_print_early(app, item, &bad))
                tkc_tree_add(kept, item);
        }
    cli_arrange(app, kept);
    char *title = cli_list_title("thing", (int64_t)tkc_tree_length(kept), 7, "");
    const cli_list list = { .key = "things", .title = title, .columns = columns, .total = 7 };
    bad = bad ? bad : cli_print_list(app, &list, kept);
    free(title);
    return bad;
}

static int list_differs(const list_case *c)
{
    cli_app app = { .command = cli_find("run", "list"),
                    .format = c->format,
                    .fields = c->fields,
                    .compat = c->compat,
                    .headers = true,
                    .time_style = CLI_TIME_EPOCH };
    cli_command command = *app.command;
    command.columns = columns;
    app.command = &command;
    const char *const options[] = { c->name, c->value, c->name2, c->value2 };
    for (int i = 0; i < 4 && options[i]; i += 2)
        assert_int_equal(cli_set_value(&app, options[i], options[i + 1], CLI_FROM_PROGRAM, "test"), 0);
    hold_output();
    int status = print_items(&app);
    char *shown = release_output();
    cli_parse_free(&app);
    bool same = status == c->status && strcmp(shown, c->wanted) == 0;
    if (!same)
        print_error("format %d --%s %s: wanted %d\n%s-- is %d\n%s\n", c->format, c->name ? c->name : "",
                    c->value ? c->value : "", c->status, c->wanted, status, shown);
    free(shown);
    return same ? 0 : 1;
}

static void expect_lists(const list_case *cases, size_t n)
{
    int differ = 0;
    for (size_t i = 0; i < n; i++)
        differ += list_differs(&cases[i]);
    assert_int_equal(differ, 0);
}

TEST(each_format_shows_the_same_items)
{
    static const list_case cases[] = {
        { .format = CLI_TABLE, /* for people: units, rounded numbers, words for what is not there */
          .wanted = "5 things (2 more not shown, use --limit to see more)\n"
                    "ID   Size    When        Rate      A, \"b\"\n"
                    "---  ------  ----------  --------  -----------\n"
                    "a    5 B     1735787045  100       p\\tq\\x0d\\n\"\n"
                    "b    2.0 KB  never       100       \n"
                    "a,b  10 B    soon        0.000123  [1]\n"
                    "c    9 B     N/A         1e+15     7\n"
                    "d            never       -1000     \n" },
        { .format = CLI_TSV, /* for programs: as the service said it, tabs and line ends escaped */
          .wanted = "ID\tSize\tWhen\tRate\tA, \"b\"\n"
                    "a\t5\t2025-01-02T03:04:05Z\t99.96\tp\\tq\\r\\n\"\n"
                    "b\t2048\t\t100.4\t\n"
                    "a,b\t10\tsoon\t0.00012345\t[1]\n"
                    "c\t9\t\t1000000000000000.0\t7\n"
                    "d\t\t\t-999.6\t\n" },
        { .format = CLI_CSV, /* quoted where a comma, a quote or a line end makes it necessary */
          .wanted = "ID,Size,When,Rate,\"A, \"\"b\"\"\"\n"
                    "a,5,2025-01-02T03:04:05Z,99.96,\"p\tq^M\n\"\"\"\n"
                    "b,2048,,100.4,\n"
                    "\"a,b\",10,soon,0.00012345,[1]\n"
                    "c,9,,1000000000000000.0,7\n"
                    "d,,,-999.6,\n" },
        { .format = CLI_JSONL,
          .wanted = "{\"id\":\"a\",\"n\":5,\"at\":\"2025-01-02T03:04:05Z\",\"b\":true,\"x\":99.96,"
                    "\"in\":{\"side\":\"p\\tq\\r\\n\\\"\"}}\n"
                    "{\"id\":\"b\",\"n\":2048,\"at\":null,\"b\":false,\"x\":100.4,\"in\":null}\n"
                    "{\"id\":\"a,b\",\"n\":10,\"at\":\"soon\",\"b\":null,\"x\":0.00012345,"
                    "\"in\":{\"side\":[1]}}\n"
                    "{\"id\":\"c\",\"n\":9,\"at\":\"\",\"x\":1000000000000000.0,"
                    "\"in\":{\"side\":7}}\n"
                    "{\"id\":\"d\",\"x\":-999.6}\n" },
        { .format = CLI_ID, .wanted = "p\\tq\\r\\n\"\n\n[1]\n7\n\n" }, /* the column that is the id */
        { .format = CLI_JSON,
          .fields = "id,in.side", /* without the member: null */
          .name = "filter",
          .value = "n<10",
          .wanted = "{\n  \"things\": [\n"
                    "    {\n      \"id\": \"a\",\n      \"in.side\": \"p\\tq\\r\\n\\\"\"\n    },\n"
                    "    {\n      \"id\": \"c\",\n      \"in.side\": 7\n    }\n  ],\n"
                    "  \"total_count\": 7,\n  \"shown_count\": 2\n}\n" },
        { .format = CLI_JSON, /* the Python command has no counts */
          .fields = "id",
          .compat = true,
          .name = "filter",
          .value = "n=9",
          .wanted = "{\n  \"things\": [\n    {\n      \"id\": \"c\"\n    }\n  ]\n}\n" },
    };
    expect_lists(cases, N(cases));
}

#define IDS(option, text, ids)                                                                                         \
    {                                                                                                                  \
        .format = CLI_TSV, .name = option, .value = text, .name2 = "columns", .value2 = "id", .wanted = "ID\n" ids     \
    }

TEST(filters_compare_by_the_type_of_the_member)
{
    static const list_case cases[] = {
        IDS("filter", "n>9", "b\na,b\n"), /* a number, not "10" < "9" */
        IDS("filter", "n<10", "a\nc\n"),
        IDS("filter", "size=10", "a,b\n"),      /* by the name of a column */
        IDS("filter", "n!=10", "a\nb\nc\nd\n"), /* d has none */
        IDS("filter", "n=", "d\n"),
        IDS("filter", "id~a*", "a\na,b\n"),
        IDS("filter", "b=true", "a\n"),
        IDS("filter", "b=false", "b\n"),
        IDS("filter", "at>2025-01-02", "a\na,b\n"),
        IDS("filter", "x=99.96", "a\n"),
        IDS("filter", "in.side=7", "c\n"),
    };
    expect_lists(cases, N(cases));
}

TEST(what_has_no_member_comes_first_in_the_order)
{
    static const list_case cases[] = {
        IDS("sort", "n", "d\na\nc\na,b\nb\n"),
        IDS("sort", "size", "d\na\nc\na,b\nb\n"),
        IDS("sort", "id", "a\na,b\nb\nc\nd\n"),
        IDS("sort", "x", "d\na,b\na\nb\nc\n"),
    };
    expect_lists(cases, N(cases));
}

TEST(columns_are_shown_in_the_order_that_was_asked_for)
{
    static const list_case cases[] = {
        { .format = CLI_TSV,
          .name = "columns",
          .value = " rate , yes,when,size",
          .name2 = "filter",
          .value2 = "id~a*",
          .wanted = "Rate\tYes\tWhen\tSize\n99.96\ttrue\t2025-01-02T03:04:05Z\t5\n"
                    "0.00012345\t\tsoon\t10\n" },
    };
    expect_lists(cases, N(cases));
}

TEST(what_cannot_be_listed_is_named)
{
#define KNOWN       "hint: known fields: id, n, at, b, x, in\n"
#define FILTER_HINT "hint: KEY=VALUE, or with != < > ~\n"
    static const struct {
        const char *option, *value, *wanted;
    } rows[] = {
        { "columns", "id,nope", "error: unknown column 'nope'\nhint: available: id, size, when, yes, rate, path\n" },
        { "columns", ",", "error: unknown column ''\nhint: available: id, size, when, yes, rate, path\n" },
        { "sort", "nope", "error: unknown field 'nope'\n" KNOWN },
        { "filter", "nope=1", "error: unknown field 'nope'\n" KNOWN },
        { "filter", "=1", "error: --filter: '=1' is not KEY=VALUE\n" FILTER_HINT },
        { "filter", "n", "error: --filter: 'n' is not KEY=VALUE\n" FILTER_HINT },
        { "filter", "n!1", "error: --filter: 'n!1' is not KEY=VALUE\n" FILTER_HINT },
    };
    int differ = 0;
    for (size_t i = 0; i < N(rows); i++)
        differ += list_differs(&(list_case){
            .format = CLI_TSV, .name = rows[i].option, .value = rows[i].value, .wanted = rows[i].wanted, .status = 2 });
    assert_int_equal(differ, 0);
}

TEST(fields_are_checked_before_anything_is_printed)
{
    static const list_case cases[] = {
        { .format = CLI_JSONL,
          .fields = "n,nope",
          .wanted = "{\"error\":{\"code\":\"usage\",\"message\":\"unknown field 'nope'\",\"hint\":"
                    "\"known fields: id, n, at, b, x, in\",\"retryable\":false,\"exit_code\":2}}\n",
          .status = 2 },
        { .format = CLI_TSV,
          .name = "columns",
          .value = "help",
          .wanted = "id\tID\nsize\tSize\nwhen\tWhen\nyes\tYes\nrate\tRate\npath\tA, \"b\"\n" },
    };
    expect_lists(cases, N(cases));
}

TEST(members_that_users_choose_may_be_missing)
{
    static const struct {
        const char *field;
        int status;
    } rows[] = { { "user_metadata", 0 }, { "user_metadata.any.thing", 0 }, { "in", 0 },  { "in.side", 0 },
                 { "in.any", 2 },        { "none.user_metadata", 2 },      { "a.b", 0 }, { "null.any", 0 } };
    const tkc_tree *item = json_of("{\"user_metadata\":{},\"in\":{\"side\":{}},\"a.b\":1,\"null\":null}");
    for (size_t i = 0; i < N(rows); i++) {
        cli_app app = { .command = cli_find("run", "list") };
        hold_output();
        int status = cli_check_field(&app, item, rows[i].field);
        free(release_output());
        if (status != rows[i].status)
            fail_msg("%s: %d", rows[i].field, status);
    }
}

TEST(the_title_counts)
{
    static const struct {
        int64_t shown, total; /* -1: not known */
        const char *title;
    } rows[] = {
        { 0, 5, "No runs found of S" }, { 1, -1, "1 run of S" },
        { 1, 1, "1 run of S" },         { 1, 2, "1 run of S (1 more not shown, use --limit to see more)" },
        { 2, 1, "2 runs of S" },        { 2, 12, "2 runs of S (10 more not shown, use --limit to see more)" }
    };
    for (size_t i = 0; i < N(rows); i++) {
        char *title = cli_list_title("run", rows[i].shown, rows[i].total, " of S");
        assert_string_equal(title, rows[i].title);
        free(title);
    }
}
