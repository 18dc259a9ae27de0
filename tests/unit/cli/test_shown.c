/* test_shown.c - the command's own texts, whole: what its pure functions make of many inputs. See support/sheet.h. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "cli/main/commands.h"
#include "cli/data/dataset.h"
#include "cli/output/list.h"
#include "cli/models/models.h"
#include "cli/output/out.h"
#include "support/held_output.h"
#include "support/sheet.h"
#include "cli/output/term.h"
#include "cli/output/text.h"

static int set_up(void **state)
{
    setenv("TZ", "XYZ-02:30", 1);
    tzset();
    return open_sheet(state);
}

/* ---- times ---- */

#define TEXT_63 "2024-01-01T00:00:00.0000000000000000000000000000000000000000000"

static void test_dates(void **state)
{
    static const char *const texts[] = {
        "1000-01-01", "0000-01-01", "9999-12-31", "1900-02-28", "1900-02-29", "2000-02-29",
        "2000-03-01", "2100-02-29", "2023-01-31", "2023-01-32", "2023-02-28", "2023-03-31",
        "2023-03-32", "2023-04-30", "2023-04-31", "2023-05-31", "2023-05-32", "2023-06-30",
        "2023-06-31", "2023-07-31", "2023-07-32", "2023-08-31", "2023-08-32", "2023-09-30",
        "2023-09-31", "2023-10-31", "2023-10-32", "2023-11-30", "2023-11-31", "2023-12-31",
        "2023-12-32", "2024-12-31", "2024-03-01", "2024-01-00", "2024-00-01", "2024-12-01",
        "0001-01-01", "0002-01-01", "0000", "20241231", "2024123", "2024-1231", "202412-31",
        "2024/12/31", "24-12-31", "2024-12-3x",
        /* weeks: years that begin on each day of the week, and those with 53 weeks */
        "2018-W01-1", "2019-W01-1", "2020-W01-1", "2021-W01-1", "2022-W01-1", "2023-W01-1",
        "2024-W01-1", "2015-W53-7", "2020-W53-5", "2024-W00-1", "2024-W54-1", "2024-W10-0",
        "2024-W10-8", "2024-W10-7", "2024W107", "2024-W107", "2024W10-7", "2024-W1-1", "1960-W01-1",
        "1965-W02-3",
        /* clocks */
        "2024-01-01T00:00:00", "2024-01-01t23:59:59", "2024-01-01T24:00:00", "2024-01-01T12:59",
        "2024-01-01T12:60", "2024-01-01T12:00:59", "2024-01-01T12:00:60", "2024-01-01T1",
        "2024-01-01T12:", "2024-01-01T12:0", "2024-01-01T12:00:", "2024-01-01T", "2024-01-01 ",
        "2024-01-01 09:08:07", "2024-01-01_09:08", "2024-01-01T09:08:07.1", "2024-01-01T09:08:07.9",
        "2024-01-01T09:08:07.123456", "2024-01-01T09:08:07.1234567", "2024-01-01T09:08:07.",
        "2024-01-01T09:08.5", "2024-01-01T09:08:07.0x", "1969-12-31T23:59:59.25",
        /* zones */
        "2024-01-01T12:00Z", "2024-01-01T12:00z", "2024-01-01T12:00Zx", "2024-01-01T12:00+00:00",
        "2024-01-01T12:00+23:59", "2024-01-01T12:00-23:59", "2024-01-01T12:00+24:00",
        "2024-01-01T12:00+23:60", "2024-01-01T12:00+02", "2024-01-01T12:00-05",
        "2024-01-01T12:00+0530", "2024-01-01T12:00+05:3", "2024-01-01T12:00+5", "2024-01-01T12:00+",
        "2024-01-01T12:00*02:00", "2024-01-01T12:00 +02:00", "2024-01-01+02:00", "2024-01-01Z",
        /* words and distances */
        "now", "today", "yesterday", " today  ", "Today", "tomorrow", "-90", "-1.5h", "-1w", "-",
        "-x", "--1", "", " ", TEXT_63, TEXT_63 "0"
    };
    (void)state;
    for (size_t i = 0; i < N(texts); i++) {
        int64_t us = 0, now = INT64_C(1700000123456789);
        put_input(texts[i]);
        if (cli_parse_date(texts[i], now, &us)) {
            char iso[CLI_SHORT_TEXT];
            cli_format_iso(us, iso);
            fprintf(sheet, "%lld %s\n", (long long)us, iso);
        } else {
            fputs("refused\n", sheet);
        }
    }
    int64_t us = 0;
    assert_true(cli_parse_date("today", -1, &us) && us == -INT64_C(86400000000));
    assert_true(cli_parse_date("yesterday", INT64_C(86400000000), &us) && us == 0);
    assert_true(cli_parse_date("today", INT64_C(86400000000), &us) && us == INT64_C(86400000000));
    compare("dates");
}

static void test_times_out(void **state)
{
    static const int64_t times[] = { 0,
                                     1,
                                     -1,
                                     999999,
                                     1000000,
                                     -1000000,
                                     -1500000,
                                     1500000,
                                     INT64_C(1700000123456789),
                                     INT64_C(1700000123000000),
                                     INT64_C(1709164799000010),
                                     INT64_C(253402300799999999),
                                     INT64_C(-30610224000000000) };
    static const int64_t away_s[] = { 0,      1,       60,      61,      119,    120,
                                      3599,   3600,    3601,    7199,    7200,   86399,
                                      86400,  172799,  172800,  604799,  604800, 691199,
                                      691200, 1209599, 1209600, 2678399, 2678400 };
    static const double durations[] = { -1,     -0.001, 0,    0.04,  9.94, 9.99,    10,    59.9,
                                        60,     61,     3599, 3600,  3661, 86399,   86400, 172799,
                                        172800, 180000, 1e9,  1.1e9, NAN,  INFINITY };
    (void)state;
    char a[CLI_SHORT_TEXT], b[CLI_SHORT_TEXT], c[CLI_SHORT_TEXT];
    for (size_t i = 0; i < N(times); i++) {
        cli_format_iso(times[i], a);
        cli_format_python_time(times[i], b);
        cli_format_local(times[i], c);
        fprintf(sheet, "%lld: %s, %s, %s\n", (long long)times[i], a, b, c);
    }
    for (size_t i = 0; i < N(away_s); i++) {
        int64_t now = INT64_C(1700000123456789), away = away_s[i] * 1000000;
        cli_format_relative(now - away, now, a);
        cli_format_relative(now + away, now, b);
        fprintf(sheet, "%lld s: %s, %s\n", (long long)away_s[i], a, b);
    }
    cli_format_relative(1999999, 0, a); /* parts of a second do not count */
    cli_format_relative(INT64_C(61999999), 1000000, b);
    fprintf(sheet, "%s, %s\n", a, b);
    for (size_t i = 0; i < N(durations); i++) {
        cli_format_duration(durations[i], a);
        fprintf(sheet, "%g s: %s\n", durations[i], a);
    }
    compare("times");
}

/* ---- numbers ---- */

static void test_numbers_in(void **state)
{
    static const char *const texts[] = {
        "", " ", " 1", "1 ", "0", "-0", "+0", "1", "-1", "+1", "+", "-", "--1", "+-1", "1.0", "1.5",
        ".5", "5.", "1e3", "1E3", "1e-3", "0x10", "0X1", "1p3", "1P3", "inf", "-inf", "nan",
        "1e308", "1e309", "1e-400", "1,5", "1_000", "1a", "a1", "/", ":", "9", "10",
        "9223372036854775807", "9223372036854775808", "-9223372036854775808",
        "-9223372036854775809", "99999999999999999999",
        /* durations */
        "1s", "90s", "2m", "1.5m", "3h", "7d", "2w", "1y", "s", "1ss", "1 s", "-1s", "1S", "1e12",
        "999999999999", "999999999999s", "1000000000000", "16666666666m", "16666666667m",
        "1653439w", "1653440w",
        /* sizes */
        "1K", "1.5K", "64K", "1M", "1G", "1T", "2T", "0K", "1k", "K", "1KB", "0.5K", "0.0001K",
        "8185452T", "8185453T", "8e18", "9e18", "1e18K",
        "111111111111111111111111111111111111111111111111111111111111111",
        "1111111111111111111111111111111111111111111111111111111111111111",
        "000000000000000000000000000000000000000000000000000000000000001",
        "0000000000000000000000000000000000000000000000000000000000000001",
        "00000000000000000000000000000000000000000000000000000000000000001"
    };
    (void)state;
    for (size_t i = 0; i < N(texts); i++) {
        int64_t n = 0;
        double d = 0;
        put_input(texts[i]);
        fputs(cli_parse_int(texts[i], &n) ? "int " : "", sheet);
        fprintf(sheet, "%lld ", (long long)n);
        fputs(cli_parse_number(texts[i], &d) ? "number " : "no number ", sheet);
        if (cli_parse_number(texts[i], &d))
            fprintf(sheet, "%.17g ", d);
        if (cli_parse_duration(texts[i], &d))
            fprintf(sheet, "duration %.17g ", d);
        if (cli_parse_size(texts[i], &n))
            fprintf(sheet, "size %lld", (long long)n);
        fputc('\n', sheet);
    }
    compare("numbers");
}

static void test_numbers_out(void **state)
{
    static const double values[] = { 0,
                                     -0.0,
                                     1,
                                     -1,
                                     0.1,
                                     -0.1,
                                     0.30000000000000004,
                                     1.0 / 3,
                                     2.0 / 3,
                                     100,
                                     1e14,
                                     1e15,
                                     -1e15,
                                     1e16,
                                     1e17,
                                     123456789012345680,
                                     999999999999999,
                                     1e22,
                                     1e-4,
                                     1e-5,
                                     1.5e-5,
                                     1e300,
                                     5e-324,
                                     1.7976931348623157e308,
                                     NAN,
                                     INFINITY,
                                     -INFINITY,
                                     12345.678,
                                     3.0000000000000004,
                                     1e15 + 0.5 };
    static const int64_t counts[] = { 0,      1,       12,        123, 999,  1000,  12345,
                                      999999, 1000000, INT64_MAX, -1,  -999, -1000, -1234567 };
    static const int64_t sizes[] = { INT64_MIN,
                                     -1,
                                     0,
                                     1,
                                     1023,
                                     1024,
                                     1025,
                                     1023 * 1024 + 1023,
                                     1024 * 1024,
                                     INT64_C(1) << 30,
                                     INT64_C(1) << 40,
                                     INT64_C(1) << 50,
                                     INT64_C(1) << 60,
                                     INT64_MAX };
    char out[CLI_SHORT_TEXT];
    (void)state;
    for (size_t i = 0; i < N(values); i++) {
        cli_format_number(values[i], out);
        fprintf(sheet, "%.17g: %s\n", values[i], out);
    }
    for (size_t i = 0; i < N(counts); i++) {
        cli_format_count(counts[i], out);
        fprintf(sheet, "%lld: %s\n", (long long)counts[i], out);
    }
    for (size_t i = 0; i < N(sizes); i++) {
        cli_format_size(sizes[i], out);
        fprintf(sheet, "%lld bytes: %s\n", (long long)sizes[i], out);
    }
    assert_in_range(cli_now_us() / 1000000, 1700000000, INT64_C(1) << 40);
    compare("numbers-out");
}

/* ---- names and characters ---- */

static void test_names(void **state)
{
    static const char *const names[] = {
        "sto",
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
        "min-lr"
    };
    static const char *const words[] = {
        "limit",
        "limt",
        "limti",
        "ilmit",
        "limits",
        "lmit",
        "lim",
        "li",
        "l",
        "liimmit",
        "xlimitx",
        "abcde",
        "offst",
        "ofset",
        "osffet",
        "column",
        "clomuns",
        "checkpiont",
        "chckpnt",
        "chkpt",
        "chekcpiont",
        "rum",
        "rn",
        "nru",
        "rank",
        "lora",
        "steps",
        "max",
        "dir",
        "log",
        "or",
        "og",
        "ra",
        "k",
        "",
        "x",
        "b",
        "jsno",
        "josn",
        "jsonnn",
        "nojs",
        "warmup",
        "warmup-step",
        "up-steps",
        "tags",
        "temperature-of-the-sampler-that-has-a-name-of-more-than-sixty-four-letter",
        "emperature-of-the-sampler-that-has-a-name-of-more-than-sixty-four-letters",
        "checkpointcheckpointcheckpointcheckpointcheckpointcheckpointcheck",
        "lr",
        "min-lt",
        "lo",
        "runx",
        "samp",
        "sampler",
        "chexxxoint",
        "chexxxxint",
        "sixty-three-letters-are-the-most-that-are-compared-with-a-wordx",
        "xsixty-three-letters-are-the-most-that-are-compared-with-a-word1",
        "ixty-four-letters-are-one-more-than-can-be-compared-with-a-wor2"
    };
    (void)state;
    for (size_t i = 0; i < N(words); i++) {
        const char *near = cli_nearest(words[i], names, N(names));
        put_input(words[i]);
        fprintf(sheet, "%s\n", near ? near : "-");
    }
    assert_null(cli_nearest("run", names, 0));
    compare("names");
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

static void test_widths(void **state)
{
    static const uint32_t codes[] = { 0x20,    0x7E,    0xA0,    0x2FF,   0x300,   0x36F,   0x370,
                                      0x10FF,  0x1100,  0x115F,  0x1160,  0x1AAF,  0x1AB0,  0x1AFF,
                                      0x1B00,  0x200A,  0x200B,  0x200F,  0x2010,  0x20CF,  0x20D0,
                                      0x20FF,  0x2100,  0x2E7F,  0x2E80,  0x303E,  0x303F,  0x3040,
                                      0x3041,  0xA4CF,  0xA4D0,  0xABFF,  0xAC00,  0xD7A3,  0xD7A4,
                                      0xF8FF,  0xF900,  0xFAFF,  0xFB00,  0xFDFF,  0xFE00,  0xFE0F,
                                      0xFE10,  0xFE19,  0xFE1A,  0xFEFF,  0xFF00,  0xFF60,  0xFF61,
                                      0xFFFD,  0x10000, 0x1F600, 0x1F64F, 0x1F650, 0x1FA6F, 0x1FAFF,
                                      0x1FB00, 0x20000, 0x3FFFD, 0x3FFFE, 0x10FFFF };
    static const char *const texts[] = { "",
                                         "a",
                                         "abc",
                                         "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e",
                                         "a\xe6\x97\xa5"
                                         "b\xe6\x9c\xac",
                                         "e\xcc\x81"
                                         "a",
                                         "\xcc\x81",
                                         "\xff\xfe",
                                         "a\xc3",
                                         "\xf0\x9f\x98\x80!",
                                         "\xe0\x8c\x80", /* a longer form of U+0300 */
                                         "\xec\x80X" };
    char one[5];
    (void)state;
    for (size_t i = 0; i < N(codes); i++)
        fprintf(sheet, "U+%04X %zu\n", codes[i], cli_width(utf8_of(codes[i], one)));
    for (size_t i = 0; i < N(texts); i++) {
        put_input(texts[i]);
        fprintf(sheet, "%zu cells; bytes cut at 0 to 7:", cli_width(texts[i]));
        for (size_t cells = 0; cells < 8; cells++)
            fprintf(sheet, " %zu", cli_cut(texts[i], cells));
        fputc('\n', sheet);
    }
    compare("widths");
}

static void test_bytes(void **state)
{
    static const struct {
        const char *text;
        size_t len;
    } rows[] = { { "", 0 },
                 { "abc", 3 },
                 { "a\0b", 3 },
                 { "\x7f", 1 },
                 { "\x80", 1 },
                 { "\xbf", 1 },
                 { "\xc0\x80", 2 },
                 { "\xc1\xbf", 2 },
                 { "\xc2\x80", 2 },
                 { "\xc2\x9f", 2 },
                 { "\xc2\xa0", 2 },
                 { "\xc2", 1 },
                 { "\xc2\x41", 2 },
                 { "\xc2\xc0", 2 },
                 { "\xdf\xbf", 2 },
                 { "\xe0\x9f\xbf", 3 },
                 { "\xe0\xa0\x80", 3 },
                 { "\xe0\xa0", 2 },
                 { "\xed\x9f\xbf", 3 },
                 { "\xed\xa0\x80", 3 },
                 { "\xed\xbf\xbf", 3 },
                 { "\xee\x80\x80", 3 },
                 { "\xef\xbf\xbd", 3 },
                 { "\xef\xbf\x41", 3 },
                 { "\xf0\x8f\xbf\xbf", 4 },
                 { "\xf0\x90\x80\x80", 4 },
                 { "\xf0\x90\x80", 3 },
                 { "\xf4\x8f\xbf\xbf", 4 },
                 { "\xf4\x90\x80\x80", 4 },
                 { "\xf5\x80\x80\x80", 4 },
                 { "\xff", 1 },
                 { "\xe6\x97\xa5\xe6\x9c\xac", 6 },
                 { "\xe6\x97\xa5\xe6\x9c", 5 },
                 { "a\n\t\r\x1b\x1f z\\\"", 10 },
                 { "\xf0\x9f\x98\x80", 4 },
                 { "a\x80", 2 },
                 { "\xf8\x90\x80\x80", 4 } };
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        char *safe = cli_escape(rows[i].text);
        put_quoted(rows[i].text, rows[i].len);
        fprintf(sheet, " %s ", cli_is_utf8(rows[i].text, rows[i].len) ? "UTF-8" : "other bytes");
        put_quoted(safe, strlen(safe));
        fputc('\n', sheet);
        free(safe);
    }
    compare("bytes");
}

/* ---- JSON ---- */

static const char *const json_texts[] = {
    /* words and numbers */
    "", " ", "null", " null ", "nul", "nulll", "true", "tru", "false", "fals", "x", "nullx",
    "null x", "0", "-0", "-", "01", "1", "10", "1.5", "1.", ".5", "-1.5e10", "1e", "1e+", "1E+5",
    "1e-5", "1e5.", "1.e5", "+1", "1 2", "--1", "-a", "1e400", "9", "-9", "99", "1.9", "1e9",
    "1e-9", "0.0", "1:", "1/", "[9]", "/", ":",
    /* texts */
    "\"\"", "\"a", "\"a\\\"", "\"\\\\\"", "\"\\/\\b\\f\\n\\r\\t\\\"\"", "\"\\x\"", "\"\\",
    "\"\\u12\"", "\"\\u12G4\"", "\"\\u00aF\"", "\"\\u00:0\"", "\"\\u00/0\"", "\"\\u00`0\"",
    "\"\\u00g0\"", "\"\\u00@0\"", "\"\\uD7FF\"", "\"\\uD800\"", "\"\\uD83D\\uDE00\"",
    "\"\\uD83D\\uDBFF\"", "\"\\uD83D\\uE000\"", "\"\\uD83D\\uDC00\"", "\"\\uDBFF\\uDFFF\"",
    "\"\\uDC00\"", "\"\\uDFFF\"", "\"\\uE000\"", "\"\\uD83D\\n\"", "\"\\uD83Dxxxxxx\"", "\"\\uD83D",
    "\"a\x1f\"", "\"a\x7f\"", "\"a\nb\"", "\"a b\"", "\"\xc2\x80\"", "\"\xc1\x80\"", "\"\xc2\"",
    "\"\xdf\xbf\"", "\"\xe0\xa0\x80\"", "\"\xe0\x9f\x80\"", "\"\xed\x9f\xbf\"", "\"\xed\xa0\x80\"",
    "\"\xef\xbf\xbf\"", "\"\xf0\x90\x80\x80\"", "\"\xf0\x8f\x80\x80\"", "\"\xf4\x8f\xbf\xbf\"",
    "\"\xf4\x90\x80\x80\"", "\"\xf5\x80\x80\x80\"", "\"\xe0\xa0\"", "\"\xe6\x97",
    "\"\xf0\x9f\x98\x41\"", "\"\xc2\x80", "\"\\x0041\"", "\"\\uD83DxuDE00\"", "\"\\u0099\"",
    "\"\\u0000\"",
    /* arrays */
    "[]", "[ ]", "[1]", "[1,]", "[,1]", "[1,2]", "[1 2]", "[1", "[", "]", "[1]]", "[1],",
    "[[],[[]]]", "[\t1\r\n,2 ]", "[1;2]",
    /* objects */
    "{}", "{ }", "{\"a\":1}", "{\"a\" : 1 , \"b\":[{}]}", "{\"a\":1,}", "{,\"a\":1}", "{\"a\"}",
    "{\"a\" 1}", "{\"a\":}", "{a:1}", "{1:1}", "{\"a\":1", "{\"a\"", "{\"a\":", "{\"a\":1}}",
    "{\"a\":1 \"b\":2}", "{\"a\":{\"b\":{\"c\":null}}}"
};

static void test_json_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(json_texts); i++) {
        cli_scan s;
        cli_scan_open(&s, json_texts[i], strlen(json_texts[i]));
        bool skipped = cli_scan_skip(&s), good = cli_scan_close(&s);
        put_input(json_texts[i]);
        fprintf(sheet, "%s%s %s at %zu, depth %d\n", skipped ? "value" : "no value",
                good ? "" : ", refused:", s.fault ? s.fault : "", (size_t)(s.at - s.begin),
                (int)s.depth);
    }
    for (size_t depth = 127; depth < 130; depth++) {
        char text[300];
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        cli_scan s;
        cli_scan_open(&s, text, 2 * depth);
        fprintf(sheet, "%zu deep: %s\n", depth,
                cli_scan_skip(&s) && cli_scan_close(&s) ? "good" : s.fault);
    }
    compare("json-read");
}

/* A text that ends where its length says, whatever stands behind. */
static void test_json_ends(void **state)
{
    static const struct {
        const char *text;
        size_t len, at;
        bool good;
    } rows[] = { { "-0", 1, 1, false }, { "1.5", 1, 1, true },  { "1.5", 2, 2, false },
                 { "1e5", 1, 1, true }, { "1e5", 2, 2, false }, { "1e+5", 2, 2, false },
                 { "105", 2, 2, true }, { "true", 3, 0, false } };
    cli_span text;
    (void)state;
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
static void test_json_peek(void **state)
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
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        cli_scan_open(&s, rows[i].text, rows[i].len);
        for (int again = 0; again < 2; again++)
            assert_int_equal(cli_scan_peek(&s), rows[i].next);
        assert_true(s.fault ? rows[i].fault && strcmp(s.fault, rows[i].fault) == 0
                            : !rows[i].fault);
    }
    /* After a fault there is nothing any more. */
    assert_false(cli_scan_object(&s) || cli_scan_array(&s) || cli_scan_item(&s) ||
                 cli_scan_key(&s, &text) || cli_scan_string(&s, &text) || cli_scan_skip(&s) ||
                 cli_scan_close(&s));
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

static void test_json_written(void **state)
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
    (void)state;
    for (size_t i = 0; i < N(texts); i++) {
        json_t *v = json_loads(texts[i], JSON_DECODE_ANY, NULL);
        assert_non_null(v);
        for (int indent = 0; indent < 4; indent += indent ? 1 : 2) {
            cli_write_json(sheet, v, indent);
            fputc('\n', sheet);
            cli_write_python_json(sheet, v, indent);
            fputc('\n', sheet);
        }
        json_decref(v);
    }
    json_t *v = json_pack("{s:{s:{s:i}}, s:i, s:n}", "a", "b", "c", 1, "a.b", 2, "n");
    assert_int_equal(json_integer_value(cli_json_at(v, "a.b.c")), 1);
    assert_int_equal(json_integer_value(cli_json_at(v, "a.b")), 2); /* a key with dots goes first */
    assert_true(json_is_object(cli_json_at(v, "a")));
    assert_true(json_is_null(cli_json_at(v, "n")));
    assert_null(cli_json_at(v, "a.x"));
    assert_null(cli_json_at(v, "n.x"));
    char name[140];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_null(cli_json_at(v, name));
    json_decref(v);
    compare("json-written");
}

/* ---- conversations ---- */

static void note_problem(const char *file, size_t line, int level, const char *code,
                         const char *message, void *user)
{
    (void)user;
    fprintf(sheet, "    %s:%zu: %s %s: %s\n", file, line,
            level == CLI_LEVEL_ERROR ? "error" : "warning", code, message);
}

static void test_conversations(void **state)
{
    static const char *const lines[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"b\"}]}",
        "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":"
        "\"a\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":"
        "\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"content\":\"r\"}]}",
        "{\"id\":1,\"messages\":[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":"
        "\"assistant\",\"content\":\"<think>x</think>y\"}],\"more\":{}}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{"
        "\"type\":\"image\",\"image\":\"i\"},{\"type\":\"audio\",\"audio\":\"u\"}]},{\"role\":"
        "\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\"},{\"type\":\"text\","
        "\"text\":\"b\"}]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"image\":\"a\"}]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"video\",\"video\":\"a\"}]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":5}]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"text\":\"a\"}]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":7,\"text\":\"a\",\"x\":[1]}]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[\"a\"]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":5}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":{}}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":null}]}",
        "{\"messages\":[{\"role\":\"user\"}]}",
        "{\"messages\":[{\"content\":\"a\"}]}",
        "{\"messages\":[{\"role\":5,\"content\":\"a\"}]}",
        "{\"messages\":[5,{\"role\":\"user\",\"content\":\"a\"},\"x\"]}",
        "{\"messages\":[]}",
        "{\"messages\":{}}",
        "{\"messages\":null}",
        "{}",
        "{\"prompt\":\"a\",\"completion\":\"b\"}",
        "{\"a\":1,\"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\":2,"
        "\"cccccccccccccccccccccccccccccccccccccccc\":3,\"ddddddddddddddddddddddddddd\":4,\"e\":5,"
        "\"ffffffffffffffffff\":6,\"g\":7}",
        "[1]",
        "5",
        "\"a\"",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]} x",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\ud800\"}]}",
        "{bad",
        "{\"messages\":[{\"role\":\"usr\",\"content\":\"a\"},{\"role\":\"asistant\",\"content\":"
        "\"b\"}]}",
        "{\"messages\":[{\"role\":\"narrator\",\"content\":\"a\"},{\"role\":\"a-role-of-a-model-"
        "that-has-a-very-long-name\",\"content\":\"b\"},{\"role\":\"assistant\",\"content\":\"c\"}]"
        "}",
        "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":null},{\"role\":"
        "\"assistant\",\"tool_calls\":{}},{\"role\":\"assistant\",\"tool_calls\":[]}]}",
        "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[5]},{\"role\":\"assistant\",\"tool_"
        "calls\":[{}]},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":5}]}]}",
        "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]},{"
        "\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"\"}}]},{\"role\":"
        "\"assistant\",\"tool_calls\":[{\"function\":{\"name\":5,\"arguments\":\"\"}}]}]}",
        "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"x\",\"function\":{"
        "\"name\":\"f\",\"arguments\":{\"a\":1},\"more\":\"m\"}}]}]}",
        "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
        "\"arguments\":\"\"}},{\"function\":{\"name\":\"f\"",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"trainable\":true},{\"role\":"
        "\"assistant\",\"content\":\"b\",\"trainable\":false}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"b\",\"trainable\":true}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"trainable\":1},{\"role\":"
        "\"assistant\",\"content\":\"b\",\"trainable\":null}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"messages\":5}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"b\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"b\"}], \"more\": {}, \"other\" : 5}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"b\"}],\"nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn\":1,"
        "\"mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm\":2}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"b\"}],\"k0\":1,\"k1\":1,\"k2\":1,\"k3\":1,\"k4\":1,\"k5\":1,\"k6\":1,\"k7\":1,\"k8\":1,"
        "\"k9\":1,\"k10\":1,\"k11\":1,\"k12\":1,\"k13\":1,\"k14\":1,\"k15\":1,\"k16\":1,\"k17\":1,"
        "\"k18\":1,\"k19\":1}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"b\"}],\"tools\":[1]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"b\"}],\"tools\":[]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "null,\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":["
        "],\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"c\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"c\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":"
        "\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{"
        "\"role\":\"assistant\",\"content\":\"b\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"image\":\"i\"}]},{"
        "\"role\":\"assistant\",\"content\":\"b\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":["
        "{\"type\":\"thinking\",\"thinking\":\"t\"}]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"b\",\"weight\": 0},{\"role\":\"assistant\",\"content\":\"b\",\"weight\": "
        "1},{\"role\":\"assistant\",\"content\":\"b\",\"weight\": "
        "0.0},{\"role\":\"assistant\",\"content\":\"b\",\"weight\": "
        "1.0},{\"role\":\"assistant\",\"content\":\"b\",\"weight\": null}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"b\",\"weight\":2}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"b\",\"weight\":2.0}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"b\",\"weight\":0.5}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"b\",\"weight\":-1}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"b\",\"weight\":\"1\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"b\",\"weight\":true}]}",
        "{\"messages\":[{\"role\":\"rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr\",\"content\":\"a\"},{"
        "\"role\":\"ssssssssssssssssssssssssssssssssssssssss\",\"content\":\"a\"},{\"role\":"
        "\"assistant\",\"content\":\"b\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"function_"
        "call\":{}}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"mood\":\"x\",\"name\":\"y\","
        "\"empty\":\"\"},{\"role\":\"assistant\",\"content\":\"b\"}]}"
    };
    (void)state;
    for (size_t i = 0; i < N(lines); i++)
        for (int customized = 0; customized < 2; customized++) {
            cli_convo f;
            fprintf(sheet, "%s%s\n", customized ? "customized " : "", lines[i]);
            bool good = cli_check_conversation("f", 7, (cli_span){ lines[i], strlen(lines[i]) },
                                               customized, &f, note_problem, NULL);
            fprintf(sheet,
                    "  %s: %zu messages, %zu user, %zu assistant, %zu system, %zu tool, %zu "
                    "trainable%s%s%s%s\n",
                    good ? "good" : "refused", f.n_messages, f.n_user, f.n_assistant, f.n_system,
                    f.n_tool, f.n_trainable, f.reasoning ? ", reasoning" : "",
                    f.tools ? ", tools" : "", f.calls ? ", calls" : "", f.bare ? ", bare" : "");
        }
    compare("conversations");
}

static void test_lines(void **state)
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
    (void)state;
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
static void test_kinds(void **state)
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
    (void)state;
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
static void test_models(void **state)
{
    const cli_model_facts *m;
    const char *name;
    (void)state;
    for (size_t i = 0; (name = cli_model_name(i)); i++) {
        m = cli_model_find(name);
        assert_non_null(m);
        fprintf(sheet, "%s (%s): hidden %d, mlp %d, attn %d, unembed %d, lr %.4g;", m->name,
                m->kind, (int)m->hidden, (int)m->mlp, (int)m->attn, (int)m->unembed,
                cli_model_suggested_rate(name));
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
    static const char *const messages[] = { "HTTP 400: what?",
                                            "HTTP 400 what?",
                                            "HTTP : what?",
                                            "HTTP 4",
                                            "gone\x1b[31m",
                                            "HTTP 40:what",
                                            "" };
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

static void test_problems(void **state)
{
    static const cli_app apps[] = {
        { 0 },
        { .verbose = 1, .store = "s" },
        { .format = CLI_JSON },
        { .format = CLI_JSONL, .quiet = true, .compat = true },
        { .color = true, .stderr_tty = true, .quiet = true },
        { .color = true },
        { .stderr_tty = true, .compat = true },
    };
    static const int exits[] = { 0,
                                 1,
                                 CLI_EXIT_USAGE,
                                 CLI_EXIT_NOT_FOUND,
                                 CLI_EXIT_DECLINED,
                                 CLI_EXIT_SIGINT,
                                 CLI_EXIT_SIGTERM };
    const cli_app plain = { 0 }, compat = { .compat = true };
    (void)state;
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
                    strcmp(p.code, theirs.code) == 0 ? "" : theirs.code, *p.hint ? ": " : "",
                    p.hint);
    }
    for (size_t i = 0; i < N(exits); i++)
        fprintf(sheet, "exit %d, compatible %d\n", cli_exit_code(&plain, exits[i]),
                cli_exit_code(&compat, exits[i]));
    for (size_t i = 0; i < N(apps); i++) {
        fprintf(sheet, "--- %zu\n", i);
        put_problems(&apps[i]);
    }
    /* With a log, which hears all of it, and a line on the screen, which is wiped. */
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
    compare("problems");
}

/* ---- records ---- */

/* Records, times in them, and what a command without a result says. */
static void test_records(void **state)
{
    static const char *const keys[] = { "at", "time", NULL };
    static const char *const times[] = { "2025-01-02T03:04:05Z", "soon", "", NULL };
    static const char text[] =
        "{\"at\":\"2025-01-02 03:04:05\",\"x\":[{\"time\":\"2025-01-02\",\"other\":"
        "\"2025-01-02\"},{\"at\":7,\"time\":\"soon\"}],\"in\":{\"at\":"
        "\"2025-01-02T03:04:05.5+02:00\"}}";
    (void)state;
    for (int format = CLI_TABLE; format <= CLI_ID; format++)
        for (int compat = 0; compat < 2; compat++) {
            const cli_app app = { .command = cli_find("run", "info"),
                                  .format = format,
                                  .compat = compat,
                                  .headers = format != CLI_TSV,
                                  .time_style = CLI_TIME_ISO };
            json_t *rows = json_array(), *object = json_loads(text, 0, NULL);
            fprintf(sheet, "--- format %d%s\n", format, compat ? " compatible" : "");
            cli_row(rows, "Name", "a\tb\xff");
            cli_row(rows, "Nothing", NULL);
            for (size_t i = 0; i < N(times); i++)
                cli_row_time(&app, rows, "Time", times[i]);
            cli_normalise_times(&app, object, keys);
            hold_output();
            assert_int_equal(cli_show_record(&app, strdup("A record"), rows, object), 0);
            assert_int_equal(cli_print_done(&app, json_pack("{s:i}", "n", 1), "%d done", 1), 0);
            put_held();
        }
    compare("records");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, close_sheet)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_dates),
        TEST(test_times_out),
        TEST(test_numbers_in),
        TEST(test_numbers_out),
        TEST(test_names),
        TEST(test_widths),
        TEST(test_bytes),
        TEST(test_json_read),
        TEST(test_json_written),
        TEST(test_conversations),
        TEST(test_lines),
        TEST(test_kinds),
        TEST(test_models),
        TEST(test_problems),
        TEST(test_records),
        cmocka_unit_test(test_json_ends),
        cmocka_unit_test(test_json_peek),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
