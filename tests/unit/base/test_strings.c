/* Spans, numbers to and from text, the JSON reader and writer. */
#include "support/check.h"
#include "support/scratch.h"

#include <locale.h>
#include <math.h>

#include "base/json_read.h"
#include "base/json_write.h"

/* ---- spans ---- */

TEST(spans_compare)
{
    tinkc_str none = tkc_str(NULL);
    assert_true(none.data == NULL && none.len == 0);
    assert_true(tkc_str_eq(none, tkc_str("")));
    assert_true(tkc_str_is(tkc_str("ab"), "ab") && !tkc_str_is(tkc_str("ab"), "abc"));
    assert_true(tkc_str_is_nocase(tkc_str("Retry-AFTER"), "retry-after"));
    assert_false(tkc_str_is_nocase(tkc_str("\xC3\x89"), "\xC3\xA9"));
    assert_true(tkc_cstr_eq(NULL, NULL) && !tkc_cstr_eq(NULL, "") && tkc_cstr_eq("a", "a"));
    assert_true(tkc_starts_with(tkc_str("abc"), "ab") && !tkc_starts_with(tkc_str("a"), "ab"));
    assert_true(tkc_ends_with(tkc_str("abc"), "bc") && !tkc_ends_with(tkc_str("c"), "bc"));
    assert_true(tkc_str_compare(tkc_str("a"), tkc_str("ab")) < 0);
    assert_true(tkc_str_compare(tkc_str("b"), tkc_str("ab")) > 0);
    assert_true(tkc_str_compare(tkc_str("\xFF"), tkc_str("a")) > 0);
    assert_int_equal(tkc_str_compare(none, none), 0);
    assert_true(tkc_equal_secret(tkc_str("tml-x"), tkc_str("tml-x")));
    assert_false(tkc_equal_secret(tkc_str("tml-x"), tkc_str("tml-y")));
    assert_false(tkc_equal_secret(tkc_str("tml-x"), tkc_str("tml-xtml-x")));
    assert_false(tkc_equal_secret(tkc_str("x"), tkc_str("")));
    assert_true(tkc_equal_secret(tkc_str(""), tkc_str("")));
    assert_true(tkc_hash("", 0) == 0xCBF29CE484222325u && tkc_hash("a", 1) == 0xAF63DC4C8601EC8Cu);
}

TEST(spans_are_cut_and_trimmed)
{
    tinkc_str rest = tkc_str("a,,b"), part;
    assert_true(tkc_str_cut(&rest, ',', &part));
    assert_str(part, "a");
    assert_true(tkc_str_cut(&rest, ',', &part));
    assert_str(part, "");
    assert_true(tkc_str_cut(&rest, ',', &part));
    assert_str(part, "b");
    assert_false(tkc_str_cut(&rest, ',', &part));
    rest = tkc_str("");
    assert_true(tkc_str_cut(&rest, ',', &part) && part.len == 0);
    assert_false(tkc_str_cut(&rest, ',', &part));
    assert_str(tkc_str_trim(tkc_str(" \t\r\n x y \v\f")), "x y");
    assert_int_equal(tkc_str_trim(tkc_str("  ")).len, 0);
    assert_int_equal(tkc_str_find(tkc_str("abc"), 'c'), 2);
    assert_int_equal(tkc_str_find(tkc_str("abc"), 'x'), 3);
    assert_int_equal(tkc_str_find(tkc_str(NULL), 'x'), 0);
}

TEST(characters_are_measured)
{
    assert_int_equal(tkc_utf8_length("a", 1), 1);
    assert_int_equal(tkc_utf8_length("\xE2\x82\xAC", 3), 3);
    assert_int_equal(tkc_utf8_length("\xE2\x82\xAC", 2), 0);
    assert_int_equal(tkc_utf8_length("\xED\xA0\x80", 3), 0);
    assert_int_equal(tkc_utf8_length("\xF4\x90\x80\x80", 4), 0);
}

/* ---- integers ---- */

TEST(integers_are_parsed_whole)
{
    int64_t i = 7;
    uint64_t u = 7;
    assert_true(tkc_parse_i64(tkc_str("-9223372036854775808"), &i) && i == INT64_MIN);
    assert_true(tkc_parse_i64(tkc_str("9223372036854775807"), &i) && i == INT64_MAX);
    assert_true(tkc_parse_u64(tkc_str("18446744073709551615"), &u) && u == UINT64_MAX);
    assert_true(tkc_parse_i64(tkc_str("-0"), &i) && i == 0);
    static const char *const bad[] = { "",
                                       "-",
                                       "+1",
                                       " 1",
                                       "1 ",
                                       "0x1",
                                       "1.0",
                                       "1e3",
                                       "--1",
                                       "9223372036854775808",
                                       "-9223372036854775809",
                                       "99999999999999999999999" };
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++)
        if (tkc_parse_i64(tkc_str(bad[k]), &i))
            fail_msg("%s was read", bad[k]);
    assert_false(tkc_parse_u64(tkc_str("18446744073709551616"), &u));
    assert_false(tkc_parse_u64(tkc_str("-1"), &u));
    assert_true(u == UINT64_MAX);
}

/* ---- doubles ---- */

/* What Python's repr says. */
static const struct {
    double value;
    const char *text;
} doubles[] = {
    { 0x0.0p+0, "0.0" },
    { -0x0.0p+0, "-0.0" },
    { 0x1.0000000000000p+0, "1.0" },
    { -0x1.0000000000000p+0, "-1.0" },
    { 0x1.999999999999ap-4, "0.1" },
    { 0x1.999999999999ap-3, "0.2" },
    { 0x1.3333333333333p-2, "0.3" },
    { 0x1.5555555555555p-2, "0.3333333333333333" },
    { 0x1.5555555555555p-1, "0.6666666666666666" },
    { 0x1.c6bf526340000p+49, "1000000000000000.0" },
    { 0x1.1c37937e08000p+53, "1e+16" },
    { 0x1.6345785d8a000p+56, "1e+17" },
    { 0x1.b69b4ba630f35p+56, "1.2345678901234568e+17" },
    { 0x1.0000000000000p+53, "9007199254740992.0" },
    { 0x0.0000000000001p-1022, "5e-324" },
    { 0x1.0000000000000p-1022, "2.2250738585072014e-308" },
    { 0x1.fffffffffffffp+1023, "1.7976931348623157e+308" },
    { 0x1.a36e2eb1c432dp-14, "0.0001" },
    { 0x1.4f8b588e368f1p-17, "1e-05" },
    { 0x1.02e4b6ce5dc68p-13, "0.00012345" },
    { 0x1.0f0cf064dd592p+73, "1e+22" },
    { 0x1.52d02c7e14af6p+76, "1e+23" },
    { 0x1.921fb54442d18p+1, "3.141592653589793" },
    { 0x1.9000000000000p+6, "100.0" },
    { 0x1.249ad2594c37dp+332, "1e+100" },
    { 0x1.421f5f40d8376p-23, "1.5e-07" },
    { 0x1.3333333333334p-2, "0.30000000000000004" },
    { 0x1.1666666666666p+2, "4.35" },
    { 0x1.4000000000000p+1, "2.5" },
    { 0x1.c6bf52633ffffp+49, "999999999999999.9" },
    { 0x1.19799812dea11p-40, "1e-12" },
    { 0x1.78c29dccccccdp+23, "12345678.9" },
    { 0x1.4d8399f767c45p+23, "10928588.983213553" },
    { 0x1.8fbbcbde5c099p+445, "1.4186613525849614e+134" },
    { -0x1.11fdecb91ce37p-243, "-7.571968556055867e-74" },
    { -0x1.d4330f1446beap+375, "-1.4074705188261364e+113" },
    { -0x1.b8c9ebd69fe29p-401, "-3.3339745473042614e-121" },
    { -0x1.0b125ec1d7da0p-900, "-1.2342180766211395e-271" },
    { -0x1.10dff076ce2efp+371, "-5.126864004244935e+111" },
    { -0x1.5387777330bdbp+107, "-2.1520217579844227e+32" },
    { 0x1.1ea36f17fd374p-3, "0.1399601630397701" },
    { 0x1.64138a6233255p-811, "1.01853664031722e-244" },
    { 0x1.7688de6a16a3bp-381, "2.9704598186234577e-115" },
    { 0x1.dd97f1cfb10f6p+499, "3.0534183338726823e+150" },
    { -0x1.271007814e8a2p+486, "-2.3027782228163463e+146" },
    { 0x1.959ce3f1f65a8p+536, "3.56409621163656e+161" },
    { 0x1.afe878b33e968p-606, "6.352929017207453e-183" },
    { 0x1.4235992edcf45p-2, "0.3146575865605324" },
    { -0x1.edb20035b7399p-77, "-1.2761724801771812e-23" },
    { 0x1.c966c377b9aa2p+648, "2.0868668176225336e+195" },
    { 0x1.c82b1478c281dp-278, "3.66898827745704e-84" },
    { -0x1.1cc9dea959c21p+482, "-1.389122273370197e+145" },
    { 0x1.229f1c4069545p+572, "1.7548715433165102e+172" },
    { -0x1.d8b7628dbd25ep+49, "-1039514241563211.8" },
    { 0x1.a1e48cc11d357p-729, "5.7804021771411506e-220" },
    { -0x1.0691c238642eap-540, "-2.8497478716107576e-163" },
    { 0x1.0c07e9e115e4bp+799, "3.490691392124745e+240" },
    { 0x1.a8978206f5c66p-482, "1.3282314387596086e-145" },
    { -0x1.b18b900745130p+911, "-2.9317061175715426e+274" },
    { 0x1.c33b2df1461aap-1002, "4.1124768973349897e-302" },
    { -0x1.a3cab359eeefbp+97, "-2.5983853818656714e+29" },
    { -0x1.ae3bf3729c619p+861, "-2.5839922981649337e+259" },
    { 0x1.59159fb7ff337p-344, "3.7615508677292285e-104" },
    { 0x1.eba0cdf561d80p-342, "2.1435728770450893e-103" },
    { 0x1.b74ba4a0fe75dp+261, "6.3583676891104784e+78" },
    { 0x1.a6928f6236bf2p-209, "2.0062829023357212e-63" },
    { -0x1.9548e8a0a8c96p+517, "-6.792475937705741e+155" },
    { -0x1.fdaa1ad864c44p-509, "-1.1878910286585398e-153" },
    { 0x1.1d66d346c6e2bp-279, "1.1477511623364303e-84" },
    { -0x1.35634f0e3cd97p+896, "-6.384685499984821e+269" },
    { 0x1.6aa3bb0cde917p-217, "6.725524671613862e-66" },
    { -0x1.08e96f770c226p+882, "-3.3367034274052276e+265" },
    { 0x1.aef57e4cc4132p+546, "3.877694405952627e+164" },
    { 0x1.5a01c4c7d6df0p-935, "4.653705104647486e-282" },
    { 0x1.753915c76f18ap+676, "4.570939674669643e+203" },
    { -0x1.01b932a7c1880p+762, "-2.4421404212946136e+229" },
    { 0x1.92dfc254cb864p+57, "2.26797932753915e+17" },
    { 0x1.46a6910acff00p+336, "1.7861671810658467e+101" },
    { -0x1.125844d25deb3p+277, "-2.602349164887994e+83" },
    { -0x1.d5a8f9a656aafp-671, "-1.8724773489262678e-202" },
    { -0x1.2139600ddb74dp-630, "-2.535696537529436e-190" },
    { -0x1.a43abad8d194ap-173, "-1.3710624349377491e-52" },
    { 0x1.6d8e6568068b9p-753, "3.013890678074884e-227" },
    { 0x1.84e6b4f596727p+432, "1.6848352620292958e+130" },
    { 0x1.a3a26d18a669ap+230, "2.8283307810991783e+69" },
    { -0x1.891917b121dc5p-219, "-1.8226019816232835e-66" },
    { 0x1.d4c8650d7d13fp-267, "7.721876539108463e-81" },
    { 0x1.845f57b3120dfp+912, "5.2524808150207456e+274" },
    { 0x1.634b4b4653252p-302, "1.7032929977986795e-91" },
    { 0x1.521fe0e979cf3p+26, "88637315.64805965" },
};

/* The fewest digits that read back as the same 32-bit float. */
static const struct {
    float value;
    const char *text;
} floats[] = {
    { 0x1.6666660000000p-1f, "0.7" },
    { 0x1.99999a0000000p-4f, "0.1" },
    { 0x1.0000000000000p+0f, "1.0" },
    { -0x1.4000000000000p+1f, "-2.5" },
    { 0x1.0000000000000p-149f, "1e-45" },
    { 0x1.fffffe0000000p+127f, "3.4028235e+38" },
    { 0x1.0000000000000p+24f, "16777216.0" },
    { 0x1.3333340000000p-2f, "0.3" },
    { 0x1.5555560000000p-2f, "0.33333334" },
    { 0x1.1c37940000000p+53f, "1e+16" },
    { 0x1.4f8b580000000p-17f, "1e-05" },
    { 0x1.e666660000000p-1f, "0.95" },
    { -0x1.869f000000000p+16f, "-99999.0" },
    { 0x1.2a05f20000000p+33f, "10000000000.0" },
    { -0x1.30abfc0000000p+23f, "-9983486.0" },
    { -0x1.cbbfd00000000p-90f, "-1.4507129e-27" },
    { -0x1.d7292c0000000p+37f, "-252952540000.0" },
    { 0x1.406ad20000000p-86f, "1.6176938e-26" },
    { 0x1.56757c0000000p+121f, "3.5562968e+36" },
    { -0x1.4148e60000000p+7f, "-160.64238" },
    { 0x1.f340720000000p+6f, "124.812935" },
    { 0x1.da6e6e0000000p-109f, "2.85538e-33" },
    { 0x1.d9a8800000000p-129f, "2.718665e-39" },
    { 0x1.89338e0000000p-53f, "1.7052392e-16" },
    { -0x1.5cf4680000000p-44f, "-7.748351e-14" },
    { -0x1.47af9e0000000p-83f, "-1.3235132e-25" },
    { 0x1.c52a440000000p+113f, "1.838256e+34" },
    { -0x1.58584c0000000p+111f, "-3.4920723e+33" },
    { -0x1.fb69d80000000p+5f, "-63.42668" },
    { -0x1.3c75820000000p-7f, "-0.009657563" },
    { 0x1.0ee0620000000p+64f, "1.9518709e+19" },
    { 0x1.8684a00000000p+36f, "104828895000.0" },
    { -0x1.4fc4f20000000p+11f, "-2686.1545" },
    { 0x1.3523c20000000p-116f, "1.4535678e-35" },
    { 0x1.9f15480000000p+12f, "6641.33" },
    { 0x1.49672c0000000p+123f, "1.3682866e+37" },
    { -0x1.94aaae0000000p+27f, "-212161900.0" },
    { 0x1.6e451e0000000p-26f, "2.131972e-08" },
    { -0x1.ab99840000000p-10f, "-0.0016311633" },
    { -0x1.b9465c0000000p+63f, "-1.5898602e+19" },
};

TEST(numbers_are_written_as_python_does)
{
    char text[TKC_NUMBER_MAX];
    for (size_t i = 0; i < sizeof doubles / sizeof doubles[0]; i++) {
        size_t n = tkc_format_double(doubles[i].value, text);
        assert_string_equal(text, doubles[i].text);
        assert_int_equal(n, strlen(text));
        double back;
        assert_true(tkc_parse_double(tkc_str(text), false, &back));
        assert_memory_equal(&back, &doubles[i].value, sizeof back);
    }
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        size_t n = tkc_format_float(floats[i].value, text);
        assert_string_equal(text, floats[i].text);
        assert_int_equal(n, strlen(text));
    }
    tkc_format_double(INFINITY, text);
    assert_string_equal(text, "inf");
    tkc_format_double(-INFINITY, text);
    assert_string_equal(text, "-inf");
    tkc_format_double(NAN, text);
    assert_string_equal(text, "nan");
    tkc_format_float(-INFINITY, text);
    assert_string_equal(text, "-inf");
}

static uint64_t next_bits(uint64_t *seed)
{
    uint64_t z = *seed += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

TEST(random_numbers_survive)
{
    uint64_t seed = 42;
    char text[TKC_NUMBER_MAX];
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = next_bits(&seed);
        double value, back;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value))
            continue;
        tkc_format_double(value, text);
        assert_true(tkc_parse_double(tkc_str(text), false, &back));
        assert_memory_equal(&back, &value, sizeof value);
        float narrow, again;
        memcpy(&narrow, &bits, sizeof narrow);
        if (!isfinite(narrow))
            continue;
        tkc_format_float(narrow, text);
        assert_true(tkc_parse_double(tkc_str(text), false, &back));
        again = (float)back;
        assert_memory_equal(&again, &narrow, sizeof again);
    }
}

/* Texts as people write them, against the C library. */
TEST(decimals_are_read_as_the_c_library_does)
{
    uint64_t seed = 7;
    for (int i = 0; i < 20000; i++) {
        char text[64];
        uint64_t a = next_bits(&seed), b = next_bits(&seed);
        snprintf(text, sizeof text, "%s%llu.%0*llue%d", a & 1 ? "-" : "",
                 (unsigned long long)(a >> 1) % (1ull << (b % 60)), (int)((b >> 8) % 12) + 1,
                 (unsigned long long)(b >> 20) % 1000, (int)((a >> 40) % 60) - 30);
        double got, want = strtod(text, NULL);
        if (!tkc_parse_double(tkc_str(text), false, &got))
            fail_msg("%s was not read", text);
        if (memcmp(&got, &want, sizeof got) != 0)
            fail_msg("%s: %a instead of %a", text, got, want);
    }
}

TEST(malformed_numbers_are_refused)
{
    static const char *const bad[] = { "",   "-",  ".5",  "5.",  "1e",  "1e+", "+1",   "01",  "0x10",
                                       "1 ", " 1", "1_0", "inf", "nan", "--1", "1.e5", "1,5", "-01" };
    double value;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (tkc_parse_double(tkc_str(bad[i]), false, &value))
            fail_msg("%s was read", bad[i]);
    char longest[2049] = { 0 };
    memset(longest, '1', 2048);
    assert_false(tkc_is_number(tkc_strn(longest, 2048)));
    assert_true(tkc_is_number(tkc_strn(longest, 2047)));
    assert_true(tkc_parse_double(tkc_strn(longest, 2047), false, &value) && isinf(value));
    assert_true(tkc_parse_double(tkc_str("INF"), true, &value) && value == INFINITY);
    assert_true(tkc_parse_double(tkc_str("-Infinity"), true, &value) && value == -INFINITY);
    assert_true(tkc_parse_double(tkc_str("NaN"), true, &value) && isnan(value));
    assert_false(tkc_parse_double(tkc_str("infx"), true, &value));
    assert_true(tkc_parse_double(tkc_str("-0.0"), false, &value) && value == 0 && signbit(value));
    assert_true(tkc_parse_double(tkc_str("1e400"), false, &value) && isinf(value));
    assert_true(tkc_parse_double(tkc_str("1e-400"), false, &value) && value == 0);
    char digits[3000];
    memset(digits, '1', sizeof digits);
    assert_false(tkc_parse_double(tkc_strn(digits, sizeof digits), false, &value));
}

TEST(a_locale_with_commas_changes_nothing)
{
    char text[TKC_NUMBER_MAX];
    double value;
    bool set = setlocale(LC_ALL, "de_DE.UTF-8") || setlocale(LC_ALL, "fr_FR.UTF-8");
    tkc_format_double(0.30000000000000004, text);
    bool same = strcmp(text, "0.30000000000000004") == 0;
    bool read = tkc_parse_double(tkc_str("0.30000000000000004"), false, &value) && value == 0.30000000000000004;
    setlocale(LC_ALL, "C");
    assert_true(same && read);
    if (!set)
        print_message("no locale with decimal commas is installed: checked in \"C\" only\n");
}

/* ---- JSON: reading ---- */

static bool accepts(const char *text, size_t len)
{
    tinkc_error err = { 0 };
    tkc_json j;
    char *copy = exact_copy(text, len);
    tkc_json_open(&j, tkc_strn(copy, len), &arena, &err);
    (void)tkc_json_skip(&j);
    bool good = tkc_json_close(&j);
    if (!good)
        assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
    free_copy(copy, len);
    return good;
}

TEST(json_is_read_strictly)
{
    static const char *const good[] = {
        "0",
        "-0",
        "1.5e+3",
        "\"\"",
        "[]",
        "{}",
        "null",
        "true",
        "false",
        " [ 1 , 2 ] ",
        "{\"a\":{\"b\":[{}]}}",
        "\"\\u0000\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
        "\"\\ud83d\\ude00\"",
        "\"\xF0\x9F\x98\x80\"",
        "\"\x7F\"",
        "{\"a\":1,\"a\":2}",
    };
    static const char *const bad[] = {
        "",
        " ",
        "nul",
        "nulll",
        "tru",
        "True",
        "NaN",
        "Infinity",
        "-",
        "01",
        "1.",
        ".5",
        "+1",
        "1e",
        "[",
        "]",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,}",
        "{a:1}",
        "{\"a\" 1}",
        "{1:1}",
        "\"",
        "\"\\\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\ud800\"",
        "\"\\ud800\\u0041\"",
        "\"\\udc00\"",
        "\"\n\"",
        "\"\xFF\"",
        "\"\xC0\x80\"",
        "\"\xED\xA0\x80\"",
        "1 2",
        "[] []",
        "'a'",
        "// c\n1",
        "[1}",
        "{]",
        "\"\\",
        "\"\\u",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        if (!accepts(good[i], strlen(good[i])))
            fail_msg("%s was refused", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (accepts(bad[i], strlen(bad[i])))
            fail_msg("%s was accepted", bad[i]);
    assert_false(accepts("[\0]", 3));
    assert_false(accepts("1\0", 2));
}

TEST(json_depth_is_limited)
{
    char text[2 * TKC_JSON_MAX_DEPTH + 2];
    memset(text, '[', TKC_JSON_MAX_DEPTH);
    memset(text + TKC_JSON_MAX_DEPTH, ']', TKC_JSON_MAX_DEPTH);
    assert_true(accepts(text, 2 * TKC_JSON_MAX_DEPTH));
    memset(text, '[', TKC_JSON_MAX_DEPTH + 1);
    memset(text + TKC_JSON_MAX_DEPTH + 1, ']', TKC_JSON_MAX_DEPTH + 1);
    assert_false(accepts(text, 2 * TKC_JSON_MAX_DEPTH + 2));
}

TEST(json_is_pulled_value_by_value)
{
    tinkc_error err = { 0 };
    tkc_json j;
    tinkc_str key;
    const char *text = "{\"s\":\"a\\u00e9\\n\",\"i\":-5,\"e\":1e3,\"d\":0.25,\"b\":true,\"n\":null,"
                       "\"x\":[1,{\"y\":2}],\"f\":false}";
    tkc_json_open(&j, tkc_str(text), &arena, &err);
    assert_true(tkc_json_object(&j));
    while (tkc_json_key(&j, &key)) {
        if (tkc_str_is(key, "s"))
            assert_str(tkc_json_string(&j), "a\xC3\xA9\n");
        else if (tkc_str_is(key, "i"))
            assert_int_equal(tkc_json_i64(&j), -5);
        else if (tkc_str_is(key, "e"))
            assert_int_equal(tkc_json_i64(&j), 1000);
        else if (tkc_str_is(key, "d"))
            assert_true(tkc_json_double(&j) == 0.25);
        else if (tkc_str_is(key, "b"))
            assert_true(tkc_json_bool(&j));
        else if (tkc_str_is(key, "f"))
            assert_false(tkc_json_bool(&j));
        else if (tkc_str_is(key, "n"))
            assert_true(tkc_json_null(&j));
        else
            assert_str(tkc_json_skip(&j), "[1,{\"y\":2}]");
    }
    assert_true(tkc_json_close(&j));
    assert_ok(err);
    assert_int_equal(j.depth, 0);
}

TEST(json_of_the_wrong_kind_is_an_error)
{
    for (int k = 0; k < 7; k++) {
        tinkc_error err = { 0 };
        tkc_json j;
        tkc_json_open(&j, tkc_str(k == 6 ? "1.5" : k == 0 ? "1" : k == 1 ? "[]" : "\"x\""), &arena, &err);
        j.code = TINKC_E_UNPROCESSABLE;
        switch (k) {
        case 0:
            (void)tkc_json_string(&j);
            break;
        case 1:
            assert_false(tkc_json_object(&j));
            break;
        case 2:
            assert_false(tkc_json_array(&j));
            break;
        case 3:
            (void)tkc_json_bool(&j);
            break;
        case 4:
            (void)tkc_json_double(&j);
            break;
        default:
            (void)tkc_json_i64(&j);
            break;
        }
        assert_int_equal(err.code, TINKC_E_UNPROCESSABLE);
        assert_int_equal(tkc_json_peek(&j), TKC_JSON_ERROR);
        assert_false(tkc_json_close(&j));
    }
}

TEST(number_arrays_are_read_at_once)
{
    tinkc_error err = { 0 };
    tkc_json j;
    tkc_json_open(&j, tkc_str("[1,-2, 3 ,4.0,5e0,2147483647,-2147483648]"), &arena, &err);
    tinkc_i32s a = tkc_json_i32s(&j);
    assert_true(tkc_json_close(&j));
    const int32_t want[] = { 1, -2, 3, 4, 5, INT32_MAX, INT32_MIN };
    assert_int_equal(a.len, 7);
    assert_memory_equal(a.data, want, sizeof want);
    tkc_json_open(&j, tkc_str("[-9223372036854775808,9223372036854775807,123456789012345678,0]"), &arena, &err);
    tinkc_i64s b = tkc_json_i64s(&j);
    assert_true(tkc_json_close(&j));
    assert_true(b.len == 4 && b.data[0] == INT64_MIN && b.data[1] == INT64_MAX);
    assert_true(b.data[2] == 123456789012345678);
    tkc_json_open(&j, tkc_str("[0.5,null,-1]"), &arena, &err);
    tinkc_f32s c = tkc_json_f32s(&j);
    assert_true(tkc_json_close(&j) && c.len == 3 && c.data[0] == 0.5f && isnan(c.data[1]));
    tkc_json_open(&j, tkc_str("[]"), &arena, &err);
    a = tkc_json_i32s(&j);
    assert_true(tkc_json_close(&j) && a.len == 0 && a.data != NULL);
    static const char *const bad[] = { "[1.5]",
                                       "[2147483648]",
                                       "[-2147483649]",
                                       "[1,]",
                                       "[1",
                                       "[01]",
                                       "[-]",
                                       "[\"1\"]",
                                       "[9223372036854775808]",
                                       "[99999999999999999999]",
                                       "[1,[2]]",
                                       "[null]",
                                       "[--1]",
                                       "[00]",
                                       "1",
                                       "[1 2]",
                                       "[,]" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        size_t n = strlen(bad[i]);
        char *copy = exact_copy(bad[i], n);
        err = (tinkc_error){ 0 };
        tkc_json_open(&j, tkc_strn(copy, n), &arena, &err);
        if (strstr(bad[i], "[214748") || strstr(bad[i], "[-214748")) /* too wide for 32 bits only */
            (void)tkc_json_i32s(&j);
        else
            (void)tkc_json_i64s(&j);
        if (tkc_json_close(&j))
            fail_msg("%s was read", bad[i]);
        free_copy(copy, n);
    }
}

/* ---- JSON: writing ---- */

TEST(json_is_written_compactly)
{
    tinkc_error err = { 0 };
    tkc_jsonw w;
    tkc_buf_clear(&out);
    tkc_jsonw_open(&w, &out, &err);
    tkc_jsonw_object(&w);
    tkc_jsonw_key(&w, "s\"");
    tkc_jsonw_str(&w, tkc_strn("\x00\x1f\b\t\n\f\r\v\"\\/\x7F\xE2\x82\xAC", 15));
    tkc_jsonw_key(&w, "n");
    tkc_jsonw_cstr(&w, NULL);
    tkc_jsonw_key(&w, "a");
    tkc_jsonw_array(&w);
    tkc_jsonw_i64(&w, INT64_MIN);
    tkc_jsonw_u64(&w, UINT64_MAX);
    tkc_jsonw_double(&w, 0.1);
    tkc_jsonw_float(&w, 0.7f);
    tkc_jsonw_bool(&w, true);
    tkc_jsonw_raw(&w, tkc_str("{ }"));
    tkc_jsonw_array(&w);
    tkc_jsonw_end(&w);
    tkc_jsonw_end(&w);
    tkc_jsonw_key(&w, "e");
    tkc_jsonw_str(&w, (tinkc_str){ NULL, 0 });
    tkc_jsonw_end(&w);
    assert_ok(err);
    assert_str(tkc_buf_view(&out),
               "{\"s\\\"\":\"\\u0000\\u001f\\b\\t\\n\\f\\r\\u000b\\\"\\\\/\x7F\xE2\x82\xAC\",\"n\":"
               "null,\"a\":[-9223372036854775808,18446744073709551615,0.1,0.7,true,{ },[]],\"e\":\"\"}");
    tkc_jsonw_open(&w, &out, &err); /* one writer, one value */
    tkc_jsonw_double(&w, NAN);
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
}

TEST(number_arrays_are_written_at_once)
{
    int32_t narrow[1000];
    int64_t wide[1000];
    uint64_t seed = 3;
    for (size_t i = 0; i < 1000; i++) {
        wide[i] = (int64_t)next_bits(&seed) >> (i % 64);
        narrow[i] = (int32_t)wide[i];
    }
    wide[0] = INT64_MIN;
    for (size_t n = 0; n <= 1000; n += n < 5 ? 1 : 199) {
        tinkc_error err = { 0 };
        tkc_jsonw w;
        tkc_json j;
        tkc_buf_clear(&out);
        tkc_jsonw_open(&w, &out, &err);
        tkc_jsonw_array(&w);
        tkc_jsonw_i32s(&w, narrow, n);
        tkc_jsonw_i64s(&w, wide, n);
        tkc_jsonw_end(&w);
        assert_ok(err);
        tkc_json_open(&j, tkc_buf_view(&out), &arena, &err);
        tkc_json_array(&j);
        tkc_json_item(&j);
        tinkc_i32s a = tkc_json_i32s(&j);
        tkc_json_item(&j);
        tinkc_i64s b = tkc_json_i64s(&j);
        assert_false(tkc_json_item(&j));
        assert_true(tkc_json_close(&j));
        assert_true(a.len == n && b.len == n);
        if (n) {
            assert_memory_equal(a.data, narrow, n * sizeof *narrow);
            assert_memory_equal(b.data, wide, n * sizeof *wide);
        }
    }
    tinkc_error err = { 0 };
    tkc_jsonw w;
    tkc_buf_clear(&out);
    tkc_jsonw_open(&w, &out, &err);
    tkc_jsonw_f32s(&w, (const float[]){ 1, NAN, 0.5f }, 3);
    assert_str(tkc_buf_view(&out), "[1.0,null,0.5]");
}

/* What fits a buffer exactly is written, one byte less is an error. */
TEST(a_tight_buffer_is_enough)
{
    const int32_t values[] = { 10, 20, 30 };
    for (size_t max = 9; max <= 10; max++) {
        tinkc_error err = { 0 };
        tkc_buf small;
        tkc_jsonw w;
        tkc_buf_init(&small, NULL, max);
        tkc_jsonw_open(&w, &small, &err);
        tkc_jsonw_i32s(&w, values, 3);
        assert_int_equal(err.code, max == 10 ? TINKC_OK : TINKC_E_ARGUMENT);
        tkc_buf_free(&small);
    }
}

TEST(nesting_too_deep_is_an_error)
{
    tinkc_error err = { 0 };
    tkc_jsonw w;
    tkc_buf_clear(&out);
    tkc_jsonw_open(&w, &out, &err);
    for (int i = 0; i < TKC_JSONW_MAX_DEPTH; i++)
        tkc_jsonw_array(&w);
    assert_ok(err);
    tkc_jsonw_array(&w);
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    tkc_jsonw_end(&w);
}

/* ---- names given twice ---- */

TEST(names_given_twice_are_found)
{
    static const struct {
        const char *text, *twice;
    } rows[] = {
        { "", NULL },
        { "3", NULL },
        { "[]", NULL },
        { "{}", NULL },
        { "{\"a\":1,\"b\":2}", NULL },
        { "{\"a\":1,\"b\":2,\"a\":null}", "a" },
        { "{\"\":1,\"\":1}", "" },
        { "{\"a\":1,\"\\u0061\":1}", "a" }, /* the name counts, not its spelling */
        { "{\"a\":{\"a\":{\"a\":1}},\"b\":{\"a\":1}}", NULL },
        { "{\"a\":{\"b\":{\"x\":1,\"x\":1}}}", "x" },
        { "[{\"a\":1},{\"a\":1}]", NULL },
        { "[1,-2.5e+3 , 4,{\"a\":1,\"a\":1}]", "a" }, /* behind numbers that are passed over */
        { "[ 1 , 2 , \"x\" , {\"a\":1,\"a\":1} , 5 ]", "a" },
        { "{\"n\":[1,2,3 ],\"a\":1,\"m\":[[],[0],[1 ,\n2]],\"a\":[]}", "a" },
        { "{\"a\":\"\\\"a\\\":1\",\"b\":\"a\"}", NULL },
        { "{\"a\":\"\\\"\",\"a\":1}", "a" },          /* behind a text "\"" */
        { "{\"a\":\"\\\\\",\"a\":1}", "a" },          /* "\\" */
        { "{\"a\":\"\\\\\\\",\\\"a\\\":1\"}", NULL }, /* all of it is one text */
        /* if it ended at the quote behind three backslashes, "," would be there twice */
        { "{\"a\":\"\\\\\\\",\",\":1,\":\":1,\",\":1}\":0}", NULL },
        { "{\"a\":[\"\",\"\\\\\"],\"a\":\"\"}", "a" },
        { "{\"a\":1,\"a\":\"x", NULL },
        { "{\"a\":1,\"a\":\"", NULL },
        { "{\"a\":1,\"a\":1", NULL }, /* malformed: the reader says so */
        { "[1 2,{\"a\":1,\"a\":", NULL },
        { "[1,]", NULL },
        { "[1,", NULL },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tinkc_str twice = tkc_json_repeated(tkc_str(rows[i].text), &arena, &err);
        assert_int_equal(err.code, 0);
        if (!twice.data != !rows[i].twice || !tkc_str_eq(twice, tkc_str(rows[i].twice)))
            fail_msg("%s: '%.*s'", rows[i].text, (int)twice.len, twice.data ? twice.data : "none");
    }
}

/* More names than the stack has at first, in one object and in nested ones. */
TEST(one_of_many_names_is_found)
{
    enum { NAMES = 1000, ROOM = 40 * NAMES };
    char *text = malloc(ROOM);
    for (int again = 0; again <= NAMES; again += NAMES / 4) { /* NAMES: none */
        tinkc_error err = { 0 };
        size_t n = 0;
        for (int i = 0; i < NAMES; i++)
            n += (size_t)snprintf(text + n, ROOM - n, "%s\"name-%d\":%s", i % 100 ? "," : "{", i,
                                  i % 100 == 99 && i + 1 < NAMES ? "" : "{}");
        n += (size_t)snprintf(text + n, ROOM - n, ",\"name-%d\":1}}}}}}}}}}", again);
        tinkc_str twice = tkc_json_repeated(tkc_strn(text, n), &arena, &err);
        assert_int_equal(err.code, 0);
        /* the innermost object has the last hundred */
        assert_true(!twice.data);
    }
    for (int again = 0; again <= NAMES; again += NAMES / 4) {
        tinkc_error err = { 0 };
        char name[20];
        size_t n = 1;
        text[0] = '{';
        for (int i = 0; i < NAMES; i++)
            n += (size_t)snprintf(text + n, ROOM - n, "\"name-%d\":%d,", i, i);
        n += (size_t)snprintf(text + n, ROOM - n, "\"name-%d\":1}", again);
        (void)snprintf(name, sizeof name, "name-%d", again);
        tinkc_str twice = tkc_json_repeated(tkc_strn(text, n), &arena, &err);
        assert_int_equal(err.code, 0);
        assert_true(again == NAMES ? !twice.data : tkc_str_is(twice, name));
    }
    free(text);
}

/* "None is twice" would let the request through. */
TEST(names_that_find_no_memory_are_an_error)
{
    tinkc_error err = { 0 };
    tkc_arena small;
    char text[2000] = "{";
    size_t n = 1;
    for (int i = 0; i < 100; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "\"%d\":0,", i);
    n += (size_t)snprintf(text + n, sizeof text - n, "\"7\":0}");
    tkc_arena_init(&small, NULL, 1);
    assert_true(!tkc_json_repeated(tkc_strn(text, n), &small, &err).data);
    assert_int_equal(err.code, TINKC_E_MEMORY);
    tkc_arena_free(&small);
}

RUN_TESTS(set_up, tear_down)
