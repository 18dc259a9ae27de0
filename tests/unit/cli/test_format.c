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
            assert_true(cli_model_rate("meta-llama/x", rows[i].hidden, true) / rows[i].llama - 1 < 1e-12 &&
                        1 - cli_model_rate("meta-llama/x", rows[i].hidden, true) / rows[i].llama < 1e-12);
    }
    assert_true(cli_model_rate("openai/gpt-oss-20b", 2880, true) == 0);
    assert_true(cli_model_rate("Qwen/x", 0, true) == 0 && cli_model_rate("Qwen/x", -1, true) == 0);
    assert_true(cli_model_rate("Qwen/x", 1, true) > 0 && cli_model_rate("Qwen/x", 2000, true) == 5e-4 &&
                cli_model_rate("Qwen/x", 2000, false) == 5e-5);
    assert_non_null(cli_model_find("Qwen/Qwen3-8B:peft:131072"));
}

/* Where an engine computes, by its status. */
TEST(a_device_is_shown_with_its_reason)
{
    static const struct {
        const char *status, *line; /* NULL: it does not say */
    } rows[] = {
        { "{\"device\":{\"name\":\"cpu\",\"text\":\"8 threads\",\"reason\":\"no card\"}}", "cpu (8 threads): no card" },
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

TEST(a_device_and_its_plan_are_one_line)
{
#define DEVICE "{\"device\":{\"name\":\"cuda:0\",\"text\":\"a card\",\"reason\":\"asked for\""
    static const struct {
        const char *status, *line;
    } rows[] = {
        { DEVICE "}}", "cuda:0 (a card): asked for" },
        { DEVICE ",\"memory_bytes\":8589934592,\"memory_free_bytes\":1610612736}}",
          "cuda:0 (a card): asked for; 1.5 of 8.0 GiB free" },
        { DEVICE "},\"plan\":{\"available_bytes\":4294967296,\"shared_bytes\":536870912,\"bounded_by\":\"RAM\"}}",
          "cuda:0 (a card): asked for; memory: 4.0 GiB (RAM), of these 0.5 for samples and training" },
        { "{\"device\":{\"name\":\"cpu\"}}", NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char line[CLI_DEVICE_TEXT];
        assert_int_equal(cli_device_line(rows[i].status, line), rows[i].line != NULL);
        if (rows[i].line)
            assert_string_equal(line, rows[i].line);
    }
}
