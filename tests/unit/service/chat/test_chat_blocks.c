/* test_chat_blocks.c - thoughts and text are divided, wherever the pieces of an answer are cut. */
#include "service/chat/chat_state.h"
#include "support/check.h"

typedef struct gathered {
    char text[2][100]; /* thinking, text */
    bool mixed;        /* a thought came after text */
} gathered;

static void gather(const tke_chat_part *p, tke_chat_choice *c, int32_t kind, tinkc_str text, void *arg)
{
    gathered *g = arg;
    (void)p, (void)c;
    assert_true(text.len > 0);
    g->mixed |= kind == TKE_BLOCK_THINKING && g->text[1][0];
    strncat(g->text[kind == TKE_BLOCK_TEXT], text.data, text.len);
}

TEST(thoughts_come_first)
{
    static const struct {
        bool open; /* by the prompt */
        const char *said, *thought, *text;
    } rows[] = {
        { false, "12", "", "12" },
        { false, "<think>\nhm\n</think>\n\n12", "hm\n", "12" },
        { false, "\n<think>a < b</thin b</think>x", "a < b</thin b", "x" },
        { false, "<thin air", "", "<thin air" },
        { false, "a <think>b</think>", "", "a <think>b</think>" }, /* not at the beginning */
        { true, "hm</think>12", "hm", "12" },
        { true, "cut off", "cut off", "" },
        { false, "<think></think>\n\n12", "", "12" },
        { false, "", "", "" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t cut = 0; cut <= strlen(rows[i].said); cut++) {
            tinkc_error err = { 0 };
            tke_chat_answer a = { .thinks = rows[i].open };
            tke_chat_part p = { .answer = &a };
            tke_chat_choice c = { 0 };
            gathered g = { 0 };
            tkc_buf_init(&c.unsent, NULL, TKC_BUF_NO_MAX);
            tinkc_str all = tkc_str(rows[i].said);
            tke_chat_blocks(&p, &c, tkc_strn(all.data, cut), false, gather, &g, &err);
            tke_chat_blocks(&p, &c, tkc_strn(all.data + cut, all.len - cut), true, gather, &g, &err);
            assert_string_equal(g.text[0], rows[i].thought);
            assert_string_equal(g.text[1], rows[i].text);
            assert_false(g.mixed);
            tkc_buf_free(&c.unsent);
        }
}
