/* test_format.c - sizes, times, dates, durations and names of the command line. */
#include <math.h>

#include "cli/models/models.h"
#include "cli/serve/serving.h"
#include "cli/data/shuffle.h"
#include "cli/output/text.h"
#include "support/test_case.h"

#define DAY    INT64_C(86400000000)
#define HOUR   INT64_C(3600000000)
#define SECOND INT64_C(1000000)

TEST(sizes_have_binary_units)
{
    static const struct {
        int64_t bytes;
        const char *text;
    } rows[] = { { -1, "N/A" },
                 { 0, "0 B" },
                 { 500, "500 B" },
                 { 1023, "1023 B" },
                 { 1024, "1.0 KB" },
                 { 1536, "1.5 KB" },
                 { 1572864, "1.5 MB" },
                 { 1048575, "1024.0 KB" },
                 { 1048576, "1.0 MB" },
                 { 1610612736, "1.5 GB" },
                 { 1649267441664, "1.5 TB" },
                 { 1125899906842624, "1.0 PB" },
                 { 1152921504606846976, "1.0 EB" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[CLI_SHORT_TEXT];
        cli_format_size(rows[i].bytes, out);
        assert_string_equal(out, rows[i].text);
    }
}

static void check_relative(int64_t distance, const char *past, const char *future)
{
    int64_t now = 20000 * DAY;
    char out[CLI_SHORT_TEXT];
    cli_format_relative(now - distance, now, out);
    assert_string_equal(out, past);
    if (distance > 0) {
        cli_format_relative(now + distance, now, out);
        assert_string_equal(out, future);
    }
}

TEST(relative_times_are_rounded_down)
{
    check_relative(30 * SECOND, "just now", "in less than a minute");
    check_relative(60 * SECOND, "just now", "in less than a minute");
    check_relative(61 * SECOND, "1 minute ago", "in 1 minute");
    check_relative(90 * SECOND, "1 minute ago", "in 1 minute");
    check_relative(3600 * SECOND, "60 minutes ago", "in 60 minutes");
    check_relative(3601 * SECOND, "1 hour ago", "in 1 hour");
    check_relative(23 * HOUR + 59 * 60 * SECOND, "23 hours ago", "in 23 hours");
    check_relative(DAY, "1 day ago", "in 1 day");
    check_relative(DAY + 12 * HOUR, "1 day ago", "in 1 day");
    check_relative(7 * DAY + HOUR, "7 days ago", "in 7 days");
    check_relative(8 * DAY + HOUR, "1 week ago", "in 1 week");
    check_relative(13 * DAY + HOUR, "1 week ago", "in 1 week");
    check_relative(14 * DAY + HOUR, "2 weeks ago", "in 2 weeks");
    check_relative(30 * DAY + HOUR, "4 weeks ago", "in 4 weeks");
    check_relative(31 * DAY + HOUR, "2024-09-02", "2024-11-04");
}

TEST(dates_are_read_in_their_iso_forms)
{
    static const struct {
        const char *text;
        int64_t seconds; /* since 1970 */
    } good[] = { { "2024-01-01", 1704067200 },
                 { "20240101", 1704067200 },
                 { "2024-W01-1", 1704067200 },
                 { "2024-01-01 12:00", 1704110400 },
                 { "2024-01-01T12", 1704110400 },
                 { "2024-01-01T12:00:00+0200", 1704103200 },
                 { "2024-01-01T12:00:00Z", 1704110400 },
                 { "  2024-02-29 ", 1709164800 },
                 { "1970-01-01", 0 } };
    static const char *const bad[] = { "2024-6-1",   "2024-01",    "01/15/2024", "not-a-date",
                                       "",           "2023-02-29", "2024-13-01", "2024-01-01T25:00",
                                       "2024-01-01x" };
    int64_t us;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(cli_parse_date(good[i].text, 0, &us));
        assert_int_equal(us, good[i].seconds * SECOND);
    }
    assert_true(cli_parse_date("2024-01-01T12:00:00.5", 0, &us));
    assert_int_equal(us, 1704110400 * SECOND + 500000);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(cli_parse_date(bad[i], 0, &us));
    assert_true(cli_parse_date("-7d", 10 * DAY, &us));
    assert_int_equal(us, 3 * DAY);
    assert_true(cli_parse_date("today", 10 * DAY + HOUR, &us));
    assert_int_equal(us, 10 * DAY);
    assert_true(cli_parse_date("yesterday", 10 * DAY + HOUR, &us));
    assert_int_equal(us, 9 * DAY);
}

/* Years have four digits, the early ones too: 999 and 1. */
TEST(years_have_four_digits)
{
    char out[CLI_SHORT_TEXT];
    cli_format_iso(INT64_C(-30610224000) * SECOND, out);
    assert_string_equal(out, "1000-01-01T00:00:00Z");
    cli_format_iso(INT64_C(-30610224000) * SECOND - 1, out);
    assert_string_equal(out, "0999-12-31T23:59:59.999999Z");
    cli_format_python_time(INT64_C(-62135596800) * SECOND, out);
    assert_string_equal(out, "0001-01-01 00:00:00+00:00");
    cli_format_relative(INT64_C(-62135596800) * SECOND, 0, out);
    assert_string_equal(out, "0001-01-01");
    cli_format_local(INT64_C(-62000000000) * SECOND, out);
    assert_memory_equal(out, "0005-04-", 8);
}

TEST(durations_and_sizes_in)
{
    double s;
    int64_t n;
    assert_true(cli_parse_duration("90", &s) && s == 90);
    assert_true(cli_parse_duration("7d", &s) && s == 604800);
    assert_true(cli_parse_duration("1.5h", &s) && s == 5400);
    assert_false(cli_parse_duration("-1", &s));
    assert_false(cli_parse_duration("5 m", &s));
    assert_false(cli_parse_duration("", &s));
    assert_true(cli_parse_size("64K", &n) && n == 65536);
    assert_true(cli_parse_size("4096", &n) && n == 4096);
    assert_true(cli_parse_size("2G", &n) && n == INT64_C(2147483648));
    assert_false(cli_parse_size("1.5", &n));
    assert_false(cli_parse_size("x", &n));
    assert_true(cli_parse_int("-9223372036854775808", &n) && n == INT64_MIN);
    assert_false(cli_parse_int("9223372036854775808", &n));
    assert_false(cli_parse_int("1.0", &n));
}

TEST(numbers_are_printed_as_python_prints_them)
{
    static const struct {
        double value;
        const char *text;
    } rows[] = { { 0.0001, "0.0001" }, { 1e-05, "1e-05" },
                 { 0.1, "0.1" },       { 3, "3.0" },
                 { -0.5, "-0.5" },     { 0.0004990818286656736, "0.0004990818286656736" },
                 { 5e-324, "5e-324" }, { 9999999999999998.0, "9999999999999998.0" },
                 { 1e16, "1e+16" },    { 12345678901234568.0, "1.2345678901234568e+16" },
                 { -1e16, "-1e+16" },  { -1.7976931348623157e308, "-1.7976931348623157e+308" },
                 { 1e100, "1e+100" },  { 1.5e22, "1.5e+22" },
                 { NAN, "null" },      { -INFINITY, "null" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[CLI_SHORT_TEXT];
        cli_format_number(rows[i].value, out);
        assert_string_equal(out, rows[i].text);
    }
}

/* Digits tell models apart; case, punctuation and a letter or two do not. */
TEST(a_misspelt_model_finds_the_one_that_was_meant)
{
    static const struct {
        const char *name, *meant;
    } rows[] = {
        { "Qwen/Qwen3-8B", NULL },
        { "qwen/qwen3-8b", "Qwen/Qwen3-8B" },
        { "Qwen/Qwen-3-8B", "Qwen/Qwen3-8B" },
        { "Qwne/Qwen3-8B", "Qwen/Qwen3-8B" },
        { "Qwen3-8B", "Qwen/Qwen3-8B" },
        { "Qwen/Qwen3-4B", NULL },
        { "Qwen/Qwen3-8B-GGUF", NULL },
        { "Qwen/Qwen3-8B-Bse", "Qwen/Qwen3-8B-Base" },
        { "Qwen/Qwen3-8B:peft:x", NULL },
        { "Llama-3.2-1B", "meta-llama/Llama-3.2-1B" },
        { "nanoo", "nano" },
        { "nan", "nano" },
        { "no", NULL },
        { "mine", NULL },
        { "", NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *meant = cli_model_meant(rows[i].name);
        if (!meant != !rows[i].meant || (meant && strcmp(meant, rows[i].meant) != 0))
            fail_msg("%s: %s", rows[i].name, meant ? meant : "none");
    }
}

TEST(a_misspelt_word_finds_the_nearest)
{
    static const char *const names[] = { "limit", "offset", "columns", "checkpoint", "run" };
    assert_string_equal(cli_nearest("limt", names, 5), "limit");
    assert_string_equal(cli_nearest("chekcpoint", names, 5), "checkpoint");
    assert_null(cli_nearest("zzzzzz", names, 5));
    static const char *const options[] = { "lora-rank", "max-steps", "warmup-steps", "log-dir" };
    assert_string_equal(cli_nearest("rank", options, 4), "lora-rank");
    assert_null(cli_nearest("steps", options, 4)); /* two have it */
}

TEST(widths_are_those_of_the_terminals_cells)
{
    assert_int_equal(cli_width("abc"), 3);
    assert_int_equal(cli_width("\xe6\x97\xa5\xe6\x9c\xac"), 4); /* two wide characters */
    assert_int_equal(cli_width("e\xcc\x81"), 1);                /* a combining accent */
    assert_int_equal(cli_cut("\xe6\x97\xa5\xe6\x9c\xac", 3), 3);
    char *safe = cli_escape("a\033[31mb\n\xff");
    assert_string_equal(safe, "a\\x1b[31mb\\n\\xff");
    free(safe);
}

TEST(the_recommended_learning_rate_follows_from_the_model)
{
    static const struct {
        int64_t hidden;
        double qwen, llama;
    } rows[] = { { 2048, 0.0004990818286656736, 0.0004908239409722158 },
                 { 4096, 0.00047297908091376354, 0.0002856415043086949 },
                 { 5120, 0.000464869878799652, 0 },
                 { 8192, 0, 0.0001662328630957161 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].qwen > 0)
            assert_true(cli_model_rate("Qwen/x", rows[i].hidden, true) / rows[i].qwen - 1 < 1e-12 &&
                        1 - cli_model_rate("Qwen/x", rows[i].hidden, true) / rows[i].qwen < 1e-12);
        if (rows[i].llama > 0)
            assert_true(
                cli_model_rate("meta-llama/x", rows[i].hidden, true) / rows[i].llama - 1 < 1e-12 &&
                1 - cli_model_rate("meta-llama/x", rows[i].hidden, true) / rows[i].llama < 1e-12);
    }
    assert_true(cli_model_rate("openai/gpt-oss-20b", 2880, true) == 0);
    assert_true(cli_model_rate("Qwen/x", 0, true) == 0 && cli_model_rate("Qwen/x", -1, true) == 0);
    assert_true(cli_model_rate("Qwen/x", 1, true) > 0 &&
                cli_model_rate("Qwen/x", 2000, true) == 5e-4 &&
                cli_model_rate("Qwen/x", 2000, false) == 5e-5);
    assert_non_null(cli_model_find("Qwen/Qwen3-8B:peft:131072"));
}

TEST(a_shuffle_is_a_permutation_by_its_seed)
{
    size_t *a = cli_shuffled(100, 1), *b = cli_shuffled(100, 1), *c = cli_shuffled(100, 2);
    bool seen[100] = { false }, same = true;
    for (size_t i = 0; i < 100; i++) {
        assert_true(a[i] < 100 && !seen[a[i]]);
        seen[a[i]] = true;
        same = same && a[i] == c[i];
    }
    assert_memory_equal(a, b, 100 * sizeof *a);
    assert_false(same);
    free(a);
    free(b);
    free(c);
}

/* Where an engine computes, by its status. */
TEST(a_device_is_shown_with_its_reason)
{
    static const struct {
        const char *status, *line; /* NULL: it does not say */
    } rows[] = {
        { "{\"device\":{\"name\":\"cpu\",\"text\":\"8 threads\",\"reason\":\"no card\"}}",
          "cpu (8 threads): no card" },
        { "{\"device\":{\"name\":\"cuda:0\",\"text\":\"X\",\"reason\":\"asked for\","
          "\"memory_bytes\":85899345920,\"memory_free_bytes\":1610612736}}",
          "cuda:0 (X): asked for; 1.5 of 80.0 GiB free" },
        { "{\"device\":{\"name\":\"cuda:0\",\"text\":\"X\",\"reason\":\"r\",\"memory_bytes\":"
          "1073741824}}",
          "cuda:0 (X): r; 0.0 of 1.0 GiB free" },
        { "{\"device\":{\"name\":\"cpu\",\"text\":\"t\"}}", NULL },
        { "{\"device\":5}", NULL },
        { "{}", NULL },
        { "", NULL },
    };
    char line[CLI_DEVICE_TEXT];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_true(cli_device_line(rows[i].status, line) == (rows[i].line != NULL));
        if (rows[i].line)
            assert_string_equal(line, rows[i].line);
    }
}
