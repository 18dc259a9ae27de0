/* test_times.c - dates as people write them, and times as the command shows them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "cli/output/out.h"
#include "cli/output/text.h"

#define N(list) (sizeof(list) / sizeof *(list))

/* Now is 2023-11-14T22:15:23.456789Z; the local zone is 2:30 east. */
static const int64_t now_us = INT64_C(1700000123456789);

static int set_zone(void **state)
{
    (void)state;
    setenv("TZ", "XYZ-02:30", 1);
    tzset();
    return 0;
}

static void a_date_is_a_day_a_week_a_clock_or_a_distance(void **state)
{
    static const struct {
        const char *text, *iso;
    } rows[] = {
        { "1000-01-01", "1000-01-01T00:00:00Z" },
        { "9999-12-31", "9999-12-31T00:00:00Z" },
        { "1900-02-28", "1900-02-28T00:00:00Z" },
        { "2000-02-29", "2000-02-29T00:00:00Z" },
        { "2000-03-01", "2000-03-01T00:00:00Z" },
        { "2023-01-31", "2023-01-31T00:00:00Z" },
        { "2023-02-28", "2023-02-28T00:00:00Z" },
        { "2023-03-31", "2023-03-31T00:00:00Z" },
        { "2023-04-30", "2023-04-30T00:00:00Z" },
        { "2023-05-31", "2023-05-31T00:00:00Z" },
        { "2023-06-30", "2023-06-30T00:00:00Z" },
        { "2023-07-31", "2023-07-31T00:00:00Z" },
        { "2023-08-31", "2023-08-31T00:00:00Z" },
        { "2023-09-30", "2023-09-30T00:00:00Z" },
        { "2023-10-31", "2023-10-31T00:00:00Z" },
        { "2023-11-30", "2023-11-30T00:00:00Z" },
        { "2023-12-31", "2023-12-31T00:00:00Z" },
        { "2024-12-31", "2024-12-31T00:00:00Z" },
        { "2024-03-01", "2024-03-01T00:00:00Z" },
        { "2024-12-01", "2024-12-01T00:00:00Z" },
        { "0001-01-01", "0001-01-01T00:00:00Z" },
        { "0002-01-01", "0002-01-01T00:00:00Z" },
        { "20241231", "2024-12-31T00:00:00Z" },
        { "2018-W01-1", "2018-01-01T00:00:00Z" },
        { "2019-W01-1", "2018-12-31T00:00:00Z" },
        { "2020-W01-1", "2019-12-30T00:00:00Z" },
        { "2021-W01-1", "2021-01-04T00:00:00Z" },
        { "2022-W01-1", "2022-01-03T00:00:00Z" },
        { "2023-W01-1", "2023-01-02T00:00:00Z" },
        { "2024-W01-1", "2024-01-01T00:00:00Z" },
        { "2015-W53-7", "2016-01-03T00:00:00Z" },
        { "2020-W53-5", "2021-01-01T00:00:00Z" },
        { "2024-W10-7", "2024-03-10T00:00:00Z" },
        { "2024W107", "2024-03-10T00:00:00Z" },
        { "1960-W01-1", "1960-01-04T00:00:00Z" },
        { "1965-W02-3", "1965-01-13T00:00:00Z" },
        { "2024-01-01T00:00:00", "2024-01-01T00:00:00Z" },
        { "2024-01-01t23:59:59", "2024-01-01T23:59:59Z" },
        { "2024-01-01T12:59", "2024-01-01T12:59:00Z" },
        { "2024-01-01T12:00:59", "2024-01-01T12:00:59Z" },
        { "2024-01-01 ", "2024-01-01T00:00:00Z" },
        { "2024-01-01 09:08:07", "2024-01-01T09:08:07Z" },
        { "2024-01-01T09:08:07.1", "2024-01-01T09:08:07.100000Z" },
        { "2024-01-01T09:08:07.9", "2024-01-01T09:08:07.900000Z" },
        { "2024-01-01T09:08:07.123456", "2024-01-01T09:08:07.123456Z" },
        { "2024-01-01T09:08:07.1234567", "2024-01-01T09:08:07.123456Z" },
        { "2024-01-01T09:08:07.", "2024-01-01T09:08:07Z" },
        { "2024-01-01T09:08.5", "2024-01-01T09:08:00.500000Z" },
        { "1969-12-31T23:59:59.25", "1969-12-31T23:59:59.250000Z" },
        { "2024-01-01T12:00Z", "2024-01-01T12:00:00Z" },
        { "2024-01-01T12:00z", "2024-01-01T12:00:00Z" },
        { "2024-01-01T12:00+00:00", "2024-01-01T12:00:00Z" },
        { "2024-01-01T12:00+23:59", "2023-12-31T12:01:00Z" },
        { "2024-01-01T12:00-23:59", "2024-01-02T11:59:00Z" },
        { "2024-01-01T12:00+02", "2024-01-01T10:00:00Z" },
        { "2024-01-01T12:00-05", "2024-01-01T17:00:00Z" },
        { "2024-01-01T12:00+0530", "2024-01-01T06:30:00Z" },
        { "now", "2023-11-14T22:15:23.456789Z" },
        { "today", "2023-11-14T00:00:00Z" },
        { "yesterday", "2023-11-13T00:00:00Z" },
        { " today  ", "2023-11-14T00:00:00Z" },
        { "-90", "2023-11-14T22:13:53.456789Z" },
        { "-1.5h", "2023-11-14T20:45:23.456789Z" },
        { "-1w", "2023-11-07T22:15:23.456789Z" },
        { "2024-01-01T00:00:00.0000000000000000000000000000000000000000000",
          "2024-01-01T00:00:00Z" },
    };
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        int64_t us = 0;
        char iso[CLI_SHORT_TEXT];
        if (!cli_parse_date(rows[i].text, now_us, &us))
            fail_msg("%s is refused", rows[i].text);
        cli_format_iso(us, iso);
        if (strcmp(iso, rows[i].iso) != 0)
            fail_msg("%s: wanted %s, is %s", rows[i].text, rows[i].iso, iso);
    }
}

static void what_is_not_a_date_is_refused(void **state)
{
    static const char *const texts[] = {
        "0000-01-01",
        "1900-02-29",
        "2100-02-29",
        "2023-01-32",
        "2023-03-32",
        "2023-04-31",
        "2023-05-32",
        "2023-06-31",
        "2023-07-32",
        "2023-08-32",
        "2023-09-31",
        "2023-10-32",
        "2023-11-31",
        "2023-12-32",
        "2024-01-00",
        "2024-00-01",
        "0000",
        "2024123",
        "2024-1231",
        "202412-31",
        "2024/12/31",
        "24-12-31",
        "2024-12-3x",
        "2024-W00-1",
        "2024-W54-1",
        "2024-W10-0",
        "2024-W10-8",
        "2024-W107",
        "2024W10-7",
        "2024-W1-1",
        "2024-01-01T24:00:00",
        "2024-01-01T12:60",
        "2024-01-01T12:00:60",
        "2024-01-01T1",
        "2024-01-01T12:",
        "2024-01-01T12:0",
        "2024-01-01T12:00:",
        "2024-01-01T",
        "2024-01-01_09:08",
        "2024-01-01T09:08:07.0x",
        "2024-01-01T12:00Zx",
        "2024-01-01T12:00+24:00",
        "2024-01-01T12:00+23:60",
        "2024-01-01T12:00+05:3",
        "2024-01-01T12:00+5",
        "2024-01-01T12:00+",
        "2024-01-01T12:00*02:00",
        "2024-01-01T12:00 +02:00",
        "2024-01-01+02:00",
        "2024-01-01Z",
        "Today",
        "tomorrow",
        "-",
        "-x",
        "--1",
        "",
        " ",
        "2024-01-01T00:00:00.00000000000000000000000000000000000000000000",
    };
    (void)state;
    for (size_t i = 0; i < N(texts); i++)
        if (cli_parse_date(texts[i], now_us, &(int64_t){ 0 }))
            fail_msg("%s is accepted", texts[i]);
}

/* Also before 1970. */
static void today_begins_at_midnight_utc(void **state)
{
    const int64_t day = INT64_C(86400000000);
    int64_t us = 0;
    (void)state;
    assert_true(cli_parse_date("today", -1, &us) && us == -day);
    assert_true(cli_parse_date("yesterday", day, &us) && us == 0);
    assert_true(cli_parse_date("today", day, &us) && us == day);
}

static void times_are_shown_in_utc_as_python_does_and_local(void **state)
{
    static const struct {
        int64_t us;
        const char *iso, *python, *local;
    } rows[] = {
        { INT64_C(0), "1970-01-01T00:00:00Z", "1970-01-01 00:00:00+00:00",
          "1970-01-01 02:30:00 +0230" },
        { INT64_C(1), "1970-01-01T00:00:00.000001Z", "1970-01-01 00:00:00.000001+00:00",
          "1970-01-01 02:30:00 +0230" },
        { INT64_C(-1), "1969-12-31T23:59:59.999999Z", "1969-12-31 23:59:59.999999+00:00",
          "1970-01-01 02:30:00 +0230" },
        { INT64_C(999999), "1970-01-01T00:00:00.999999Z", "1970-01-01 00:00:00.999999+00:00",
          "1970-01-01 02:30:00 +0230" },
        { INT64_C(1000000), "1970-01-01T00:00:01Z", "1970-01-01 00:00:01+00:00",
          "1970-01-01 02:30:01 +0230" },
        { INT64_C(-1000000), "1969-12-31T23:59:59Z", "1969-12-31 23:59:59+00:00",
          "1970-01-01 02:29:59 +0230" },
        { INT64_C(-1500000), "1969-12-31T23:59:58.500000Z", "1969-12-31 23:59:58.500000+00:00",
          "1970-01-01 02:29:59 +0230" },
        { INT64_C(1500000), "1970-01-01T00:00:01.500000Z", "1970-01-01 00:00:01.500000+00:00",
          "1970-01-01 02:30:01 +0230" },
        { INT64_C(1700000123456789), "2023-11-14T22:15:23.456789Z",
          "2023-11-14 22:15:23.456789+00:00", "2023-11-15 00:45:23 +0230" },
        { INT64_C(1700000123000000), "2023-11-14T22:15:23Z", "2023-11-14 22:15:23+00:00",
          "2023-11-15 00:45:23 +0230" },
        { INT64_C(1709164799000010), "2024-02-28T23:59:59.000010Z",
          "2024-02-28 23:59:59.000010+00:00", "2024-02-29 02:29:59 +0230" },
        { INT64_C(253402300799999999), "9999-12-31T23:59:59.999999Z",
          "9999-12-31 23:59:59.999999+00:00", "10000-01-01 02:29:59 +0230" },
        { INT64_C(-30610224000000000), "1000-01-01T00:00:00Z", "1000-01-01 00:00:00+00:00",
          "1000-01-01 02:30:00 +0230" },
    };
    char iso[CLI_SHORT_TEXT], python[CLI_SHORT_TEXT], local[CLI_SHORT_TEXT];
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        cli_format_iso(rows[i].us, iso);
        cli_format_python_time(rows[i].us, python);
        cli_format_local(rows[i].us, local);
        assert_string_equal(iso, rows[i].iso);
        assert_string_equal(python, rows[i].python);
        assert_string_equal(local, rows[i].local);
    }
}

static void a_distance_has_one_unit_rounded_down(void **state)
{
    static const struct {
        int64_t seconds;
        const char *ago, *ahead;
    } rows[] = {
        { 0, "just now", "just now" },
        { 1, "just now", "in less than a minute" },
        { 60, "just now", "in less than a minute" },
        { 61, "1 minute ago", "in 1 minute" },
        { 119, "1 minute ago", "in 1 minute" },
        { 120, "2 minutes ago", "in 2 minutes" },
        { 3599, "59 minutes ago", "in 59 minutes" },
        { 3600, "60 minutes ago", "in 60 minutes" },
        { 3601, "1 hour ago", "in 1 hour" },
        { 7199, "1 hour ago", "in 1 hour" },
        { 7200, "2 hours ago", "in 2 hours" },
        { 86399, "23 hours ago", "in 23 hours" },
        { 86400, "1 day ago", "in 1 day" },
        { 172799, "1 day ago", "in 1 day" },
        { 172800, "2 days ago", "in 2 days" },
        { 604799, "6 days ago", "in 6 days" },
        { 604800, "7 days ago", "in 7 days" },
        { 691199, "7 days ago", "in 7 days" },
        { 691200, "1 week ago", "in 1 week" },
        { 1209599, "1 week ago", "in 1 week" },
        { 1209600, "2 weeks ago", "in 2 weeks" },
        { 2678399, "4 weeks ago", "in 4 weeks" },
        { 2678400, "2023-10-14", "2023-12-15" },
    };
    char ago[CLI_SHORT_TEXT], ahead[CLI_SHORT_TEXT];
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        cli_format_relative(now_us - rows[i].seconds * 1000000, now_us, ago);
        cli_format_relative(now_us + rows[i].seconds * 1000000, now_us, ahead);
        assert_string_equal(ago, rows[i].ago);
        assert_string_equal(ahead, rows[i].ahead);
    }
    cli_format_relative(1999999, 0, ahead); /* parts of a second do not count */
    assert_string_equal(ahead, "in less than a minute");
    cli_format_relative(INT64_C(61999999), 1000000, ahead);
    assert_string_equal(ahead, "in less than a minute");
}

static void a_duration_has_two_units(void **state)
{
    static const struct {
        double seconds;
        const char *wanted;
    } rows[] = {
        { -1, "?" },         { -0.001, "?" },     { 0, "0.0s" },          { 0.04, "0.0s" },
        { 9.94, "9.9s" },    { 9.99, "10.0s" },   { 10, "10s" },          { 59.9, "59s" },
        { 60, "1m00s" },     { 61, "1m01s" },     { 3599, "59m59s" },     { 3600, "1h00m" },
        { 3661, "1h01m" },   { 86399, "23h59m" }, { 86400, "24h00m" },    { 172799, "47h59m" },
        { 172800, "2d00h" }, { 180000, "2d02h" }, { 1e+09, "11574d01h" }, { 1.1e+09, "?" },
        { NAN, "?" },        { INFINITY, "?" },
    };
    char text[CLI_SHORT_TEXT];
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        cli_format_duration(rows[i].seconds, text);
        assert_string_equal(text, rows[i].wanted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_date_is_a_day_a_week_a_clock_or_a_distance),
        cmocka_unit_test(what_is_not_a_date_is_refused),
        cmocka_unit_test(today_begins_at_midnight_utc),
        cmocka_unit_test(times_are_shown_in_utc_as_python_does_and_local),
        cmocka_unit_test(a_distance_has_one_unit_rounded_down),
        cmocka_unit_test(a_duration_has_two_units),
    };
    return cmocka_run_group_tests(tests, set_zone, NULL);
}
