/* test_fit_table.c - how a table gives way when the terminal is narrow: cli/output/fit_table.c. */
#include "cli/output/fit_table.h"
#include "cli/output/text.h"
#include "support/cli/held_output.h"
#include "support/test_case.h"

#define N(list) (sizeof(list) / sizeof *(list))

typedef struct sample_table {
    const char *title;
    size_t rows, columns;
    int fit[4];
    bool cut_left[4], spare[4];
    const char *cells[12]; /* header first */
} sample_table;

/* The last two columns may be left out. */
static const sample_table runs = { "2 runs",
                                   2,
                                   4,
                                   { CLI_FIT_CUT },
                                   { false },
                                   { false, false, true, true },
                                   { "Run ID", "Base Model", "LoRA", "Last Update", "run-1", "Qwen/Qwen3-8B-Instruct",
                                     "Rank 32", "3 hours ago", "run-22", "日本語の名前", "No", "just now" } };
static const sample_table paths = { NULL,
                                    1,
                                    3,
                                    { CLI_FIT_CUT, CLI_FIT_CUT, CLI_FIT_LINE },
                                    { false, true, true },
                                    { false },
                                    { "ID", "Folder", "Path", "w/1", "/a/long/way/to/some/folder",
                                      "tinker://run-1/weights/000020" } };
static const sample_table findings = { "findings\t",
                                       2,
                                       4,
                                       { CLI_FIT_CUT, CLI_FIT_CUT, CLI_FIT_WRAP, CLI_FIT_NOTE },
                                       { false },
                                       { false },
                                       { "Status", "Check", "Finding", "Hint", "fail", "service",
                                         "the service did not answer", "check the address, then try again", "ok",
                                         "disk", "fine", "" } };
static const sample_table one_word = { NULL,
                                       1,
                                       2,
                                       { CLI_FIT_CUT, CLI_FIT_WRAP },
                                       { false },
                                       { false },
                                       { "Key", "Value", "a\nb", "much-too-long-a-word and two" } };
static const sample_table nothing = { "nothing", 0, 2, { CLI_FIT_CUT }, { false }, { false }, { "A", "B" } };
static const sample_table all_spare = {
    NULL, 1, 3, { CLI_FIT_CUT }, { false }, { true, true, true }, { "AAAAAAAA", "BBBBBBBB", "CCCCCCCC", "1", "2", "3" }
};

static char *printed(const cli_app *app, const sample_table *s, size_t width)
{
    cli_table *t = cli_table_new(s->rows, s->columns);
    assert_non_null(t);
    for (size_t c = 0; c < s->columns; c++) {
        cli_table_column(t, c, s->fit[c], s->cut_left[c], s->spare[c]);
        for (size_t r = 0; r <= s->rows; r++)
            cli_table_set(t, r, c, strdup(s->cells[r * s->columns + c]));
    }
    hold_output();
    cli_table_print(app, t, s->title, width);
    cli_table_free(t);
    return release_output();
}

static const cli_app usual = { .utf8 = true, .headers = true };
static const cli_app ascii = { .headers = true };
static const cli_app no_header = { .utf8 = true, .color = true };
static const cli_app color = { .utf8 = true, .headers = true, .color = true };
static const cli_app quiet = { .utf8 = true, .headers = true, .quiet = true };

static const struct {
    const char *rule;
    const cli_app *app;
    const sample_table *table;
    size_t width; /* 0 = no terminal */
    const char *wanted;
} rows[] = {
    { "without a terminal nothing is cut; wide characters take two cells", &usual, &runs, 0,
      "2 runs\n"
      "Run ID  Base Model              LoRA     Last Update\n"
      "──────  ──────────────────────  ───────  ───────────\n"
      "run-1   Qwen/Qwen3-8B-Instruct  Rank 32  3 hours ago\n"
      "run-22  日本語の名前            No       just now\n" },
    { "the widest column shrinks first", &usual, &runs, 45,
      "2 runs\n"
      "Run ID  Base Model       LoRA     Last Update\n"
      "──────  ───────────────  ───────  ───────────\n"
      "run-1   Qwen/Qwen3-8B-…  Rank 32  3 hours ago\n"
      "run-22  日本語の名前     No       just now\n" },
    { "spare columns go from the right while another would be unreadable, and are named", &usual, &runs, 31,
      "2 runs\n"
      "Run ID  Base Model      LoRA\n"
      "──────  ──────────────  ───────\n"
      "run-1   Qwen/Qwen3-8B…  Rank 32\n"
      "run-22  日本語の名前    No\n"
      "not shown at this width: Last Update (--no-trunc shows all)\n" },
    { "a column of twelve cells is readable: all stay", &usual, &runs, 42,
      "2 runs\n"
      "Run ID  Base Model    LoRA     Last Update\n"
      "──────  ────────────  ───────  ───────────\n"
      "run-1   Qwen/Qwen3-…  Rank 32  3 hours ago\n"
      "run-22  日本語の名前  No       just now\n" },
    { "one cell less, and the last column goes", &usual, &runs, 41,
      "2 runs\n"
      "Run ID  Base Model              LoRA\n"
      "──────  ──────────────────────  ───────\n"
      "run-1   Qwen/Qwen3-8B-Instruct  Rank 32\n"
      "run-22  日本語の名前            No\n"
      "not shown at this width: Last Update (--no-trunc shows all)\n" },
    { "no column shrinks below four cells, and the first never does", &usual, &runs, 6,
      "2 runs\n"
      "Run ID  Bas…\n"
      "──────  ────\n"
      "run-1   Qwe…\n"
      "run-22  日…\n"
      "not shown at this width: LoRA, Last Update (--no-trunc shows all)\n" },
    { "the first column stays even if it is spare", &usual, &all_spare, 8,
      "AAAAAAAA\n"
      "────────\n"
      "1\n"
      "not shown at this width: BBBBBBBB, CCCCCCCC (--no-trunc shows all)\n" },
    { "without UTF-8: ~ and -", &ascii, &runs, 30,
      "2 runs\n"
      "Run ID  Base Model     LoRA\n"
      "------  -------------  -------\n"
      "run-1   Qwen/Qwen3-8~  Rank 32\n"
      "run-22  日本語の名前   No\n"
      "not shown at this width: Last Update (--no-trunc shows all)\n" },
    { "a column with a line of its own goes below, name and cells", &usual, &paths, 33,
      "ID   Folder\n"
      "  Path\n"
      "───  ──────────────────────────\n"
      "w/1  /a/long/way/to/some/folder\n"
      "  tinker://run-1/weights/000020\n" },
    { "the line below is indented as long as it has room for that", &usual, &paths, 30,
      "ID   Folder\n"
      "Path\n"
      "───  ─────────────────────────\n"
      "w/1  …/long/way/to/some/folder\n"
      "tinker://run-1/weights/000020\n" },
    { "paths are cut on the left; a line below is not indented where it has no room", &usual, &paths, 20,
      "ID   Folder\n"
      "Path\n"
      "───  ───────────────\n"
      "w/1  …to/some/folder\n"
      "…un-1/weights/000020\n" },
    { "text is wrapped at blanks; a note follows behind an arrow; the title is escaped", &usual, &findings, 34,
      "findings\\t\n"
      "Status  Check    Finding\n"
      "                 → Hint\n"
      "──────  ───────  ─────────────────\n"
      "fail    service  the service did\n"
      "                 not answer\n"
      "                 → check the\n"
      "                   address, then\n"
      "                   try again\n"
      "ok      disk     fine\n" },
    { "a word that does not fit is broken anywhere; line breaks are escaped", &usual, &one_word, 14,
      "Key   Value\n"
      "────  ────────\n"
      "a\\nb  much-too\n"
      "      -long-a-\n"
      "      word and\n"
      "      two\n" },
    { "no rows: the title alone", &usual, &nothing, 80, "nothing\n" },
    { "--no-header leaves out names and rule", &no_header, &runs, 0,
      "2 runs\n"
      "run-1   Qwen/Qwen3-8B-Instruct  Rank 32  3 hours ago\n"
      "run-22  日本語の名前            No       just now\n" },
    { "in color the header is bold", &color, &all_spare, 8,
      "^[[1mAAAAAAAA^[[0m\n"
      "────────\n"
      "1\n"
      "not shown at this width: BBBBBBBB, CCCCCCCC (--no-trunc shows all)\n" },
    { "--quiet does not say what is left out", &quiet, &all_spare, 8,
      "AAAAAAAA\n"
      "────────\n"
      "1\n" },
};

TEST(a_table_gives_way_by_these_rules)
{
    int differ = 0;
    for (size_t i = 0; i < N(rows); i++) {
        char *shown = printed(rows[i].app, rows[i].table, rows[i].width);
        if (strcmp(shown, rows[i].wanted) != 0) {
            print_error("%s:\n%s-- is\n%s\n", rows[i].rule, rows[i].wanted, shown);
            differ++;
        }
        free(shown);
    }
    assert_int_equal(differ, 0);
}

/* But for the note about what is left out, which a terminal may wrap. */
TEST(no_line_is_wider_than_the_terminal)
{
    static const sample_table *const all[] = { &runs, &paths, &findings, &one_word, &all_spare };
    static const size_t least[] = { 12, 9, 21, 10, 8 }; /* first column, then four cells each */
    for (size_t i = 0; i < N(all); i++)
        for (size_t width = least[i]; width < 90; width++) {
            char *shown = printed(&usual, all[i], width), *at = shown;
            for (char *line; (line = strsep(&at, "\n"));)
                if (strncmp(line, "not shown", 9) != 0 && cli_width(line) > width)
                    fail_msg("table %zu, width %zu: %s", i, width, line);
            free(shown);
        }
}
