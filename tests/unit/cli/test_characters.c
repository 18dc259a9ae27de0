/* test_characters.c - widths in cells, bytes that are not text, and the nearest of some names. */
#include <math.h>
#include <time.h>

#include "cli/output/out.h"
#include "cli/output/text.h"
#include "support/test_case.h"

#define N(list) (sizeof(list) / sizeof *(list))

/* Swapped, doubled, missing and wrong letters; a word of a longer name; never a far one. */
TEST(a_mistyped_name_finds_the_nearest)
{
    static const char *const names[] = { "sto",
                                         "limit",
                                         "offset",
                                         "columns",
                                         "checkpoint",
                                         "run",
                                         "runs",
                                         "lora-rank",
                                         "max-steps",
                                         "warmup-steps",
                                         "log-dir",
                                         "json",
                                         "a",
                                         "temperature-of-the-sampler-that-has-a-name-of-more-than-sixty-four-letters",
                                         "tags-tags",
                                         "sixty-three-letters-are-the-most-that-are-compared-with-a-word1",
                                         "sixty-four-letters-are-one-more-than-can-be-compared-with-a-wor2",
                                         "min-lr" };
    static const struct {
        const char *typed, *nearest;
    } rows[] = {
        { "limit", "limit" },
        { "limt", "limit" },
        { "limti", "limit" },
        { "ilmit", "limit" },
        { "limits", "limit" },
        { "lmit", "limit" },
        { "lim", "limit" },
        { "li", "limit" },
        { "l", NULL },
        { "liimmit", "limit" },
        { "xlimitx", "limit" },
        { "abcde", NULL },
        { "offst", "offset" },
        { "ofset", "offset" },
        { "osffet", "offset" },
        { "column", "columns" },
        { "clomuns", "columns" },
        { "checkpiont", "checkpoint" },
        { "chckpnt", NULL },
        { "chkpt", NULL },
        { "chekcpiont", "checkpoint" },
        { "rum", "run" },
        { "rn", "run" },
        { "nru", "run" },
        { "rank", "run" },
        { "lora", "lora-rank" },
        { "steps", NULL },
        { "max", "max-steps" },
        { "dir", "log-dir" },
        { "log", "log-dir" },
        { "or", NULL },
        { "og", NULL },
        { "ra", "run" },
        { "k", NULL },
        { "", NULL },
        { "x", NULL },
        { "b", NULL },
        { "jsno", "json" },
        { "josn", "json" },
        { "jsonnn", "json" },
        { "nojs", NULL },
        { "warmup", "warmup-steps" },
        { "warmup-step", "warmup-steps" },
        { "up-steps", NULL },
        { "tags", "tags-tags" },
        { "temperature-of-the-sampler-that-has-a-name-of-more-than-sixty-four-letter",
          "temperature-of-the-sampler-that-has-a-name-of-more-than-sixty-four-letters" },
        { "emperature-of-the-sampler-that-has-a-name-of-more-than-sixty-four-letters", NULL },
        { "checkpointcheckpointcheckpointcheckpointcheckpointcheckpointcheck", NULL },
        { "lr", "min-lr" },
        { "min-lt", "min-lr" },
        { "lo", "lora-rank" },
        { "runx", "run" },
        { "samp", NULL },
        { "sampler", "temperature-of-the-sampler-that-has-a-name-of-more-than-sixty-four-letters" },
        { "chexxxoint", "checkpoint" },
        { "chexxxxint", NULL },
        { "sixty-three-letters-are-the-most-that-are-compared-with-a-wordx",
          "sixty-three-letters-are-the-most-that-are-compared-with-a-word1" },
        { "xsixty-three-letters-are-the-most-that-are-compared-with-a-word1", NULL },
        { "ixty-four-letters-are-one-more-than-can-be-compared-with-a-wor2",
          "sixty-three-letters-are-the-most-that-are-compared-with-a-word1" },
    };
    for (size_t i = 0; i < N(rows); i++) {
        const char *near = cli_nearest(rows[i].typed, names, N(names));
        if (!near != !rows[i].nearest || (near && strcmp(near, rows[i].nearest) != 0))
            fail_msg("%s: wanted %s, is %s", rows[i].typed, rows[i].nearest ? rows[i].nearest : "none",
                     near ? near : "none");
    }
    assert_null(cli_nearest("run", names, 0));
}

/* UTF-8 of a code point, also of those that have none. */
static const char *utf8_of(uint32_t c, char out[5])
{
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char heads[] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(heads[n] | c);
    out[n] = '\0';
    return out;
}

TEST(combining_marks_take_no_cell_and_wide_characters_two)
{
    static const struct {
        uint32_t code;
        size_t cells;
    } rows[] = {
        { 0x0020, 1 },  { 0x007E, 1 },  { 0x00A0, 1 },  { 0x02FF, 1 },  { 0x0300, 0 },   { 0x036F, 0 },  { 0x0370, 1 },
        { 0x10FF, 1 },  { 0x1100, 2 },  { 0x115F, 2 },  { 0x1160, 1 },  { 0x1AAF, 1 },   { 0x1AB0, 0 },  { 0x1AFF, 0 },
        { 0x1B00, 1 },  { 0x200A, 1 },  { 0x200B, 0 },  { 0x200F, 0 },  { 0x2010, 1 },   { 0x20CF, 1 },  { 0x20D0, 0 },
        { 0x20FF, 0 },  { 0x2100, 1 },  { 0x2E7F, 1 },  { 0x2E80, 2 },  { 0x303E, 2 },   { 0x303F, 1 },  { 0x3040, 1 },
        { 0x3041, 2 },  { 0xA4CF, 2 },  { 0xA4D0, 1 },  { 0xABFF, 1 },  { 0xAC00, 2 },   { 0xD7A3, 2 },  { 0xD7A4, 1 },
        { 0xF8FF, 1 },  { 0xF900, 2 },  { 0xFAFF, 2 },  { 0xFB00, 1 },  { 0xFDFF, 1 },   { 0xFE00, 0 },  { 0xFE0F, 0 },
        { 0xFE10, 2 },  { 0xFE19, 2 },  { 0xFE1A, 1 },  { 0xFEFF, 1 },  { 0xFF00, 2 },   { 0xFF60, 2 },  { 0xFF61, 1 },
        { 0xFFFD, 1 },  { 0x10000, 1 }, { 0x1F600, 2 }, { 0x1F64F, 2 }, { 0x1F650, 1 },  { 0x1FA6F, 1 }, { 0x1FAFF, 2 },
        { 0x1FB00, 1 }, { 0x20000, 2 }, { 0x3FFFD, 2 }, { 0x3FFFE, 1 }, { 0x10FFFF, 1 },
    };
    char one[5];
    for (size_t i = 0; i < N(rows); i++)
        if (cli_width(utf8_of(rows[i].code, one)) != rows[i].cells)
            fail_msg("U+%04X: %zu cells", rows[i].code, cli_width(utf8_of(rows[i].code, one)));
}

TEST(a_text_is_cut_between_characters)
{
    static const struct {
        const char *text;
        size_t cells, bytes[8]; /* of what fits into 0 to 7 cells */
    } rows[] = {
        { "", 0, { 0, 0, 0, 0, 0, 0, 0, 0 } },
        { "a", 1, { 0, 1, 1, 1, 1, 1, 1, 1 } },
        { "abc", 3, { 0, 1, 2, 3, 3, 3, 3, 3 } },
        { "\346\227\245\346\234\254\350\252\236", 6, { 0, 0, 3, 3, 6, 6, 9, 9 } },
        { "a\346\227\245b\346\234\254", 6, { 0, 1, 1, 4, 5, 5, 8, 8 } },
        { "e\314\201a", 2, { 0, 3, 4, 4, 4, 4, 4, 4 } },
        { "\314\201", 0, { 2, 2, 2, 2, 2, 2, 2, 2 } },
        { "\377\376", 2, { 0, 1, 2, 2, 2, 2, 2, 2 } },
        { "a\303", 2, { 0, 1, 2, 2, 2, 2, 2, 2 } },
        { "\360\237\230\200!", 3, { 0, 0, 4, 5, 5, 5, 5, 5 } },
        { "\340\214\200", 3, { 0, 1, 2, 3, 3, 3, 3, 3 } },
        { "\354\200X", 3, { 0, 1, 2, 3, 3, 3, 3, 3 } },
    };
    for (size_t i = 0; i < N(rows); i++) {
        assert_int_equal(cli_width(rows[i].text), rows[i].cells);
        for (size_t cells = 0; cells < 8; cells++)
            assert_int_equal(cli_cut(rows[i].text, cells), rows[i].bytes[cells]);
    }
}

/* What is not UTF-8 and what a terminal would obey. */
TEST(bytes_that_are_not_text_are_escaped)
{
    static const struct {
        const char *text;
        size_t len;
        bool is_utf8;
        const char *safe;
    } rows[] = {
        { "", 0, true, "" },
        { "abc", 3, true, "abc" },
        { "a\000b", 3, true, "a" },
        { "\177", 1, true, "\\x7f" },
        { "\200", 1, false, "\\x80" },
        { "\277", 1, false, "\\xbf" },
        { "\300\200", 2, false, "\\xc0\\x80" },
        { "\301\277", 2, false, "\\xc1\\xbf" },
        { "\302\200", 2, true, "\\u0080" },
        { "\302\237", 2, true, "\\u009f" },
        { "\302\240", 2, true, "\302\240" },
        { "\302", 1, false, "\\xc2" },
        { "\302A", 2, false, "\\xc2A" },
        { "\302\300", 2, false, "\\xc2\\xc0" },
        { "\337\277", 2, true, "\337\277" },
        { "\340\237\277", 3, false, "\\xe0\\x9f\\xbf" },
        { "\340\240\200", 3, true, "\340\240\200" },
        { "\340\240", 2, false, "\\xe0\\xa0" },
        { "\355\237\277", 3, true, "\355\237\277" },
        { "\355\240\200", 3, false, "\\xed\\xa0\\x80" },
        { "\355\277\277", 3, false, "\\xed\\xbf\\xbf" },
        { "\356\200\200", 3, true, "\356\200\200" },
        { "\357\277\275", 3, true, "\357\277\275" },
        { "\357\277A", 3, false, "\\xef\\xbfA" },
        { "\360\217\277\277", 4, false, "\\xf0\\x8f\\xbf\\xbf" },
        { "\360\220\200\200", 4, true, "\360\220\200\200" },
        { "\360\220\200", 3, false, "\\xf0\\x90\\x80" },
        { "\364\217\277\277", 4, true, "\364\217\277\277" },
        { "\364\220\200\200", 4, false, "\\xf4\\x90\\x80\\x80" },
        { "\365\200\200\200", 4, false, "\\xf5\\x80\\x80\\x80" },
        { "\377", 1, false, "\\xff" },
        { "\346\227\245\346\234\254", 6, true, "\346\227\245\346\234\254" },
        { "\346\227\245\346\234", 5, false, "\346\227\245\\xe6\\x9c" },
        { "a\012\011\015\033\037 z\134\042", 10, true, "a\\n\\t\\x0d\\x1b\\x1f z\\\"" },
        { "\360\237\230\200", 4, true, "\360\237\230\200" },
        { "a\200", 2, false, "a\\x80" },
        { "\370\220\200\200", 4, false, "\\xf8\\x90\\x80\\x80" },
    };
    for (size_t i = 0; i < N(rows); i++) {
        char *safe = cli_escape(rows[i].text);
        assert_int_equal(cli_is_utf8(rows[i].text, rows[i].len), rows[i].is_utf8);
        assert_string_equal(safe, rows[i].safe);
        free(safe);
    }
}
