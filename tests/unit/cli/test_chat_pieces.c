/* test_chat_pieces.c - the text of an answer on its way to the screen: what is thought is shown, or is not. */
#include "../../../cli/sample/cmd_chat.c"
#include "support/cli/held_output.h"
#include "support/test_case.h"

TEST(thoughts_are_shown_dimmed_or_hidden)
{
    static const char *const pieces[] = { "a<think>b", "c</think>d", "e<think>f</think>g" };
    static const struct {
        const char *how;
        bool color;
        const char *shown;
    } rows[] = { { "show", true, "abcdefg" },
                 { "hide", true, "adeg" },
                 { "dim", false, "abcdefg" },
                 { "dim", true, "a^[[2mb^[[0m^[[2mc^[[0mde^[[2mf^[[0mg" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_app app = { .command = cli_find("chat", NULL), .color = rows[i].color, .stdout_tty = true };
        chat c = { .app = &app };
        screen s = { .c = &c };
        assert_int_equal(cli_set_value(&app, "thinking", rows[i].how, CLI_FROM_PROGRAM, "test"), 0);
        hold_output();
        for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++)
            show_piece(pieces[k], strlen(pieces[k]), &s);
        char *shown = release_output();
        assert_string_equal(shown, rows[i].shown);
        free(shown);
        cli_parse_free(&app);
    }
}
