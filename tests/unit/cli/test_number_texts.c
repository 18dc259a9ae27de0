/* test_number_texts.c - numbers, durations and sizes as options take them and as the command shows them. */
#include <math.h>
#include <time.h>

#include "cli/output/out.h"
#include "cli/output/text.h"
#include "support/test_case.h"

#define N(list) (sizeof(list) / sizeof *(list))

#define NONE NAN /* refused */

/* One text, read as each kind of number. */
TEST(each_kind_reads_its_own_form)
{
    static const struct {
        const char *text;
        bool is_int;
        int64_t integer;
        double number, duration_s, size;
    } rows[] = {
        { "", false, 0, NONE, NONE, NONE },
        { " ", false, 0, NONE, NONE, NONE },
        { " 1", false, 0, NONE, NONE, NONE },
        { "1 ", false, 0, NONE, NONE, NONE },
        { "0", true, 0, 0.0, 0.0, 0.0 },
        { "-0", true, 0, -0.0, -0.0, 0.0 },
        { "+0", true, 0, 0.0, 0.0, 0.0 },
        { "1", true, 1, 1.0, 1.0, 1.0 },
        { "-1", true, -1, -1.0, NONE, NONE },
        { "+1", true, 1, 1.0, 1.0, 1.0 },
        { "+", false, 0, NONE, NONE, NONE },
        { "-", false, 0, NONE, NONE, NONE },
        { "--1", false, 0, NONE, NONE, NONE },
        { "+-1", false, 0, NONE, NONE, NONE },
        { "1.0", false, 0, 1.0, 1.0, 1.0 },
        { "1.5", false, 0, 1.5, 1.5, NONE },
        { ".5", false, 0, 0.5, 0.5, NONE },
        { "5.", false, 0, 5.0, 5.0, 5.0 },
        { "1e3", false, 0, 1000.0, 1000.0, 1000.0 },
        { "1E3", false, 0, 1000.0, 1000.0, 1000.0 },
        { "1e-3", false, 0, 0.001, 0.001, NONE },
        { "0x10", false, 0, NONE, NONE, NONE },
        { "0X1", false, 0, NONE, NONE, NONE },
        { "1p3", false, 0, NONE, NONE, NONE },
        { "1P3", false, 0, NONE, NONE, NONE },
        { "inf", false, 0, NONE, NONE, NONE },
        { "-inf", false, 0, NONE, NONE, NONE },
        { "nan", false, 0, NONE, NONE, NONE },
        { "1e308", false, 0, 1e+308, NONE, NONE },
        { "1e309", false, 0, NONE, NONE, NONE },
        { "1e-400", false, 0, 0.0, 0.0, 0.0 },
        { "1,5", false, 0, NONE, NONE, NONE },
        { "1_000", false, 0, NONE, NONE, NONE },
        { "1a", false, 0, NONE, NONE, NONE },
        { "a1", false, 0, NONE, NONE, NONE },
        { "/", false, 0, NONE, NONE, NONE },
        { ":", false, 0, NONE, NONE, NONE },
        { "9", true, 9, 9.0, 9.0, 9.0 },
        { "10", true, 10, 10.0, 10.0, 10.0 },
        { "9223372036854775807", true, INT64_C(9223372036854775807), 9.2233720368547758e+18, NONE, NONE },
        { "9223372036854775808", false, 0, 9.2233720368547758e+18, NONE, NONE },
        { "-9223372036854775808", true, INT64_MIN, -9.2233720368547758e+18, NONE, NONE },
        { "-9223372036854775809", false, 0, -9.2233720368547758e+18, NONE, NONE },
        { "99999999999999999999", false, 0, 1e+20, NONE, NONE },
        { "1s", false, 0, NONE, 1.0, NONE },
        { "90s", false, 0, NONE, 90.0, NONE },
        { "2m", false, 0, NONE, 120.0, NONE },
        { "1.5m", false, 0, NONE, 90.0, NONE },
        { "3h", false, 0, NONE, 10800.0, NONE },
        { "7d", false, 0, NONE, 604800.0, NONE },
        { "2w", false, 0, NONE, 1209600.0, NONE },
        { "1y", false, 0, NONE, NONE, NONE },
        { "s", false, 0, NONE, NONE, NONE },
        { "1ss", false, 0, NONE, NONE, NONE },
        { "1 s", false, 0, NONE, NONE, NONE },
        { "-1s", false, 0, NONE, NONE, NONE },
        { "1S", false, 0, NONE, NONE, NONE },
        { "1e12", false, 0, 1000000000000.0, NONE, 1000000000000.0 },
        { "999999999999", true, INT64_C(999999999999), 999999999999.0, 999999999999.0, 999999999999.0 },
        { "999999999999s", false, 0, NONE, 999999999999.0, NONE },
        { "1000000000000", true, INT64_C(1000000000000), 1000000000000.0, NONE, 1000000000000.0 },
        { "16666666666m", false, 0, NONE, 999999999960.0, NONE },
        { "16666666667m", false, 0, NONE, NONE, NONE },
        { "1653439w", false, 0, NONE, 999999907200.0, NONE },
        { "1653440w", false, 0, NONE, NONE, NONE },
        { "1K", false, 0, NONE, NONE, 1024.0 },
        { "1.5K", false, 0, NONE, NONE, 1536.0 },
        { "64K", false, 0, NONE, NONE, 65536.0 },
        { "1M", false, 0, NONE, NONE, 1048576.0 },
        { "1G", false, 0, NONE, NONE, 1073741824.0 },
        { "1T", false, 0, NONE, NONE, 1099511627776.0 },
        { "2T", false, 0, NONE, NONE, 2199023255552.0 },
        { "0K", false, 0, NONE, NONE, 0.0 },
        { "1k", false, 0, NONE, NONE, NONE },
        { "K", false, 0, NONE, NONE, NONE },
        { "1KB", false, 0, NONE, NONE, NONE },
        { "0.5K", false, 0, NONE, NONE, 512.0 },
        { "0.0001K", false, 0, NONE, NONE, 0.0 },
        { "8185452T", false, 0, NONE, NONE, 8999999652602314752.0 },
        { "8185453T", false, 0, NONE, NONE, NONE },
        { "8e18", false, 0, 8e+18, NONE, 8000000000000000000.0 },
        { "9e18", false, 0, 9e+18, NONE, NONE },
        { "1e18K", false, 0, NONE, NONE, NONE },
        { "111111111111111111111111111111111111111111111111111111111111111", false, 0, 1.1111111111111112e+62, NONE,
          NONE },
        { "1111111111111111111111111111111111111111111111111111111111111111", false, 0, 1.1111111111111112e+63, NONE,
          NONE },
        { "000000000000000000000000000000000000000000000000000000000000001", true, 1, 1.0, 1.0, 1.0 },
        { "0000000000000000000000000000000000000000000000000000000000000001", true, 1, 1.0, NONE, NONE },
        { "00000000000000000000000000000000000000000000000000000000000000001", true, 1, 1.0, NONE, NONE },
    };
    for (size_t i = 0; i < N(rows); i++) {
        int64_t integer = 0, size = 0;
        double number = 0, duration = 0;
        bool ok[] = { cli_parse_int(rows[i].text, &integer), cli_parse_number(rows[i].text, &number),
                      cli_parse_duration(rows[i].text, &duration), cli_parse_size(rows[i].text, &size) };
        bool right = ok[0] == rows[i].is_int && (!ok[0] || integer == rows[i].integer) &&
                     ok[1] == !isnan(rows[i].number) && (!ok[1] || number == rows[i].number) &&
                     ok[2] == !isnan(rows[i].duration_s) && (!ok[2] || duration == rows[i].duration_s) &&
                     ok[3] == !isnan(rows[i].size) && (!ok[3] || (double)size == rows[i].size);
        if (!right)
            fail_msg("\"%s\": int %d %lld, number %d %.17g, duration %d %.17g, size %d %lld", rows[i].text, ok[0],
                     (long long)integer, ok[1], number, ok[2], duration, ok[3], (long long)size);
    }
}

TEST(a_number_is_written_as_python_writes_it)
{
    static const struct {
        double value;
        const char *wanted;
    } rows[] = {
        { 0.0, "0.0" },
        { -0.0, "-0.0" },
        { 1.0, "1.0" },
        { -1.0, "-1.0" },
        { 0.10000000000000001, "0.1" },
        { -0.10000000000000001, "-0.1" },
        { 0.30000000000000004, "0.30000000000000004" },
        { 0.33333333333333331, "0.3333333333333333" },
        { 0.66666666666666663, "0.6666666666666666" },
        { 100.0, "100.0" },
        { 100000000000000.0, "100000000000000.0" },
        { 1000000000000000.0, "1000000000000000.0" },
        { -1000000000000000.0, "-1000000000000000.0" },
        { 10000000000000000.0, "1e+16" },
        { 1e+17, "1e+17" },
        { 1.2345678901234568e+17, "1.2345678901234568e+17" },
        { 999999999999999.0, "999999999999999.0" },
        { 1e+22, "1e+22" },
        { 0.0001, "0.0001" },
        { 1.0000000000000001e-05, "1e-05" },
        { 1.5e-05, "1.5e-05" },
        { 1.0000000000000001e+300, "1e+300" },
        { 4.9406564584124654e-324, "5e-324" },
        { 1.7976931348623157e+308, "1.7976931348623157e+308" },
        { NAN, "null" },
        { INFINITY, "null" },
        { -INFINITY, "null" },
        { 12345.678, "12345.678" },
        { 3.0000000000000004, "3.0000000000000004" },
        { 1000000000000000.5, "1000000000000000.5" },
    };
    char text[CLI_SHORT_TEXT];
    for (size_t i = 0; i < N(rows); i++) {
        cli_format_number(rows[i].value, text);
        assert_string_equal(text, rows[i].wanted);
    }
}

TEST(thousands_are_separated_in_counts)
{
    static const struct {
        int64_t value;
        const char *wanted;
    } rows[] = {
        { 0, "0" },
        { 1, "1" },
        { 12, "12" },
        { 123, "123" },
        { 999, "999" },
        { 1000, "1,000" },
        { 12345, "12,345" },
        { 999999, "999,999" },
        { 1000000, "1,000,000" },
        { INT64_C(9223372036854775807), "9,223,372,036,854,775,807" },
        { -1, "-1" },
        { -999, "-999" },
        { -1000, "-1,000" },
        { -1234567, "-1,234,567" },
    };
    char text[CLI_SHORT_TEXT];
    for (size_t i = 0; i < N(rows); i++) {
        cli_format_count(rows[i].value, text);
        assert_string_equal(text, rows[i].wanted);
    }
}

TEST(a_size_has_one_binary_unit)
{
    static const struct {
        int64_t value;
        const char *wanted;
    } rows[] = {
        { INT64_MIN, "N/A" },
        { -1, "N/A" },
        { 0, "0 B" },
        { 1, "1 B" },
        { 1023, "1023 B" },
        { 1024, "1.0 KB" },
        { 1025, "1.0 KB" },
        { 1048575, "1024.0 KB" },
        { 1048576, "1.0 MB" },
        { 1073741824, "1.0 GB" },
        { INT64_C(1099511627776), "1.0 TB" },
        { INT64_C(1125899906842624), "1.0 PB" },
        { INT64_C(1152921504606846976), "1.0 EB" },
        { INT64_C(9223372036854775807), "8.0 EB" },
    };
    char text[CLI_SHORT_TEXT];
    for (size_t i = 0; i < N(rows); i++) {
        cli_format_size(rows[i].value, text);
        assert_string_equal(text, rows[i].wanted);
    }
}
