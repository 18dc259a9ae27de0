/* Trees of JSON values: read, looked up, changed, made, written. */
#include "base/json_tree.h"

#include <locale.h>
#include <math.h>

#include "support/check.h"

static tkc_arena arena;

static void end_arena(void)
{
    tkc_arena_free(&arena);
}

static tkc_tree *parsed(const char *text)
{
    return tkc_tree_read(&arena, tkc_str(text), TKC_TREE_ANY);
}

static const char *print(const tkc_tree *v, int how)
{
    const char *text = tkc_tree_print(&arena, v, how);
    return text ? text : "(none)";
}

static void expect(const tkc_tree *v, const char *text)
{
    assert_string_equal(print(v, TKC_TREE_COMPACT), text);
}

TEST(what_is_read_is_written_again_in_order)
{
    static const char *const texts[] = { "{}",
                                         "[]",
                                         "null",
                                         "[true,false,null,-1,\"\",{\"a\":[[]]}]",
                                         "{\"z\":1,\"a\":{\"y\":2,\"b\":3},\"m\":[]}",
                                         "[9223372036854775807,-9223372036854775808]",
                                         "\"\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001F /\x7F\xC3\xA9\"" };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        expect(parsed(texts[i]), texts[i]);
    end_arena();
}

TEST(reals_are_written_with_seventeen_digits_whatever_the_locale)
{
    (void)setlocale(LC_NUMERIC, "de_DE.UTF-8");
    expect(parsed("[0.1,1.0,1e22,1e-7,-2.5,1E300,123456789.125]"),
           "[0.10000000000000001,1.0,1e22,9.9999999999999995e-8,-2.5,1.0000000000000001e300,"
           "123456789.125]");
    (void)setlocale(LC_NUMERIC, "C");
    end_arena();
}

TEST(layouts)
{
    const tkc_tree *v = parsed("{\"b\":[1,2],\"a\":{},\"c\":\"\xC3\xA9\xF0\x9F\x90\x99\"}");
    assert_string_equal(print(v, TKC_TREE_SPACED), "{\"b\": [1, 2], \"a\": {}, \"c\": \"\xC3\xA9\xF0\x9F\x90\x99\"}");
    assert_string_equal(print(v, TKC_TREE_SORTED | TKC_TREE_ASCII),
                        "{\"a\":{},\"b\":[1,2],\"c\":\"\\u00E9\\uD83D\\uDC19\"}");
    assert_string_equal(print(parsed("{\"b\":[1,{}],\"a\":[]}"), 2),
                        "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": []\n}");
    end_arena();
}

TEST(what_is_refused_names_its_place)
{
    static const struct {
        const char *text;
        int how;
        const char *why;
    } rows[] = {
        { "[1", 0, "JSON: ends early at byte 2" },
        { "", 0, "JSON: ends early at byte 0" },
        { "7", 0, "JSON: neither an object nor an array at byte 0" },
        { "[1] x", 0, "JSON: text after the value at byte 4" },
        { "{\"a\":1,\"a\":2}", TKC_TREE_UNIQUE, "JSON: \"a\" twice in one object at byte 11" },
        { "[01]", 0, "JSON: a malformed number at byte 3" },
        { "[1e999]", 0, "JSON: too large a number before at byte 6" },
        { "[9223372036854775808]", 0, "JSON: an integer of more than 64 bits before at byte 20" },
        { "[\"\\u0000\"]", 0, "JSON: \\u0000 in the text before at byte 9" },
        { "{\"\\u0000\":1}", 0, "JSON: \\u0000 in the text before at byte 10" },
        { "[\"\xFF\"]", 0, "JSON: not UTF-8 at byte 2" },
        { "[\"\\ud800\"]", 0, "JSON: a bad escape in the string before at byte 9" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        assert_null(tkc_tree_parse(&arena, tkc_str(rows[i].text), rows[i].how, &err));
        assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
        assert_string_equal(err.message, rows[i].why);
    }
    char deep[600];
    memset(deep, '[', sizeof deep);
    assert_null(tkc_tree_read(&arena, tkc_strn(deep, sizeof deep), 0));
    expect(tkc_tree_read(&arena, tkc_str("[1] x"), TKC_TREE_BEGINS), "[1]");
    end_arena();
}

TEST(the_last_of_two_members_counts_in_the_place_of_the_first)
{
    expect(parsed("{\"a\":1,\"b\":2,\"a\":3}"), "{\"a\":3,\"b\":2}");
    end_arena();
}

TEST(what_is_not_there_is_looked_up_without_harm)
{
    const tkc_tree *v = parsed("{\"t\":\"x\",\"n\":7,\"r\":1.5,\"y\":true,\"l\":[3]}");
    assert_string_equal(tkc_tree_get_text(v, "t"), "x");
    assert_null(tkc_tree_get_text(v, "n"));
    assert_int_equal(tkc_tree_get_i64(v, "n"), 7);
    assert_int_equal(tkc_tree_get_i64(v, "r"), 0);
    assert_true(tkc_tree_get_number(v, "n") == 7 && tkc_tree_get_number(v, "r") == 1.5);
    assert_true(tkc_tree_get_number(v, "t") == 0);
    assert_true(tkc_tree_get_true(v, "y") && !tkc_tree_get_true(v, "n"));
    assert_null(tkc_tree_get(tkc_tree_get(v, "no"), "no"));
    assert_null(tkc_tree_at(tkc_tree_get(v, "l"), 1));
    assert_int_equal(tkc_tree_length(v) + tkc_tree_members(tkc_tree_get(v, "l")), 0);
    assert_int_equal(tkc_tree_kind(NULL), 0);
    tkc_tree_add(NULL, v);
    tkc_tree_set_i64(NULL, "a", 1);
    tkc_tree_remove(NULL, "a");
    end_arena();
}

TEST(members_are_set_replaced_and_removed_however_many_there_are)
{
    char key[16];
    tkc_tree *v = tkc_tree_object(&arena);
    for (int i = 0; i < 1000; i++) {
        (void)snprintf(key, sizeof key, "k%d", i);
        assert_true(tkc_tree_set_i64(v, key, i));
    }
    for (int i = 0; i < 1000; i += 2) {
        (void)snprintf(key, sizeof key, "k%d", i);
        tkc_tree_remove(v, key);
        assert_null(tkc_tree_get(v, key));
    }
    tkc_tree_set_i64(v, "k1", -1);
    assert_int_equal(tkc_tree_members(v), 500);
    for (int i = 3; i < 1000; i += 2) {
        (void)snprintf(key, sizeof key, "k%d", i);
        assert_int_equal(tkc_tree_get_i64(v, key), i);
    }
    assert_int_equal(tkc_tree_get_i64(v, "k1"), -1);
    const char *first;
    tkc_tree *value;
    assert_true(tkc_tree_member(v, 0, &first, &value));
    assert_string_equal(first, "k1");
    end_arena();
}

TEST(lists_grow_and_shrink_anywhere)
{
    tkc_tree *v = parsed("[1,2,3]");
    tkc_tree_insert(v, 0, tkc_tree_null());
    tkc_tree_insert(v, 4, tkc_tree_new_bool(true));
    assert_false(tkc_tree_insert(v, 9, tkc_tree_null()));
    tkc_tree_take_out(v, 2);
    tkc_tree_put(v, 1, parsed("\"one\""));
    tkc_tree_add_all(v, parsed("[5,6]"));
    expect(v, "[null,\"one\",3,true,5,6]");
    end_arena();
}

TEST(objects_take_over_all_members_or_those_they_lack)
{
    tkc_tree *v = parsed("{\"a\":1,\"b\":2}");
    tkc_tree_update_missing(v, parsed("{\"b\":3,\"c\":4}"));
    expect(v, "{\"a\":1,\"b\":2,\"c\":4}");
    tkc_tree_update(v, parsed("{\"b\":5,\"d\":6}"));
    expect(v, "{\"a\":1,\"b\":5,\"c\":4,\"d\":6}");
    end_arena();
}

TEST(a_copy_shares_its_members_and_a_clone_shares_nothing)
{
    tkc_arena other = { 0 };
    tkc_tree *v = parsed("{\"a\":[1],\"b\":\"x\"}");
    tkc_tree *copy = tkc_tree_copy(&arena, v), *clone = tkc_tree_clone(&other, v);
    tkc_tree_remove(copy, "b");
    tkc_tree_add_i64(tkc_tree_get(v, "a"), 2);
    expect(v, "{\"a\":[1,2],\"b\":\"x\"}");
    expect(copy, "{\"a\":[1,2]}");
    end_arena();
    assert_string_equal(tkc_tree_print(&other, clone, 0), "{\"a\":[1],\"b\":\"x\"}");
    tkc_arena_free(&other);
}

TEST(values_are_equal_whatever_the_order_of_members)
{
    assert_true(tkc_tree_equal(parsed("{\"a\":[1,\"x\",null],\"b\":2.5}"), parsed("{\"b\":2.5,\"a\":[1,\"x\",null]}")));
    static const char *const pairs[][2] = {
        { "1", "1.0" },      { "[1]", "[1,2]" }, { "true", "false" },          { "\"a\"", "\"b\"" },
        { "null", "false" }, { "[1]", "[2]" },   { "{\"a\":1}", "{\"b\":1}" }, { "{}", "[]" }
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        assert_false(tkc_tree_equal(parsed(pairs[i][0]), parsed(pairs[i][1])));
    assert_false(tkc_tree_equal(NULL, NULL));
    end_arena();
}

TEST(what_json_cannot_hold_is_not_made)
{
    tkc_tree *v = tkc_tree_object(&arena);
    assert_false(tkc_tree_set_text(v, "a", NULL));
    assert_false(tkc_tree_set_text(v, "a", "\xFF"));
    assert_false(tkc_tree_set_text(v, "\xFF", "a"));
    assert_false(tkc_tree_set_real(v, "a", NAN));
    assert_false(tkc_tree_set_str(v, tkc_strn("a\0b", 3), tkc_tree_null()));
    expect(v, "{}");
    end_arena();
}

/* As bytes have it that are decoded. What is read may hold one only where that was asked for. */
TEST(texts_may_hold_nul_bytes)
{
    expect(tkc_tree_new_str(&arena, tkc_strn("a\0b", 3)), "\"a\\u0000b\"");
    const tkc_tree *v = tkc_tree_read(&arena, tkc_str("[\"\\u0000\"]"), TKC_TREE_NULS);
    assert_int_equal(tkc_tree_str(tkc_tree_at(v, 0)).len, 1);
    expect(v, "[\"\\u0000\"]");
    end_arena();
}

TEST(packed)
{
    const char *none = NULL;
    expect(tkc_tree_pack(&arena, "{s:s,s:i,s:I,s:f,s:b,s:n,s:{s:[i,i]}}", "t", "x", "i", -1, "I", INT64_MIN, "f", 0.5,
                         "b", 1, "n", "in", "l", 1, 2),
           "{\"t\":\"x\",\"i\":-1,\"I\":-9223372036854775808,\"f\":0.5,\"b\":true,\"n\":null,"
           "\"in\":{\"l\":[1,2]}}");
    expect(tkc_tree_pack(&arena, "[s?,o?,{s:o*,s:i}]", none, none, "a", none, "b", 1), "[null,null,{\"b\":1}]");
    assert_null(tkc_tree_pack(&arena, "{s:s,s:i}", "a", none, "b", 1));
    assert_null(tkc_tree_pack(&arena, "[{s:o}]", "a", none));
    assert_null(tkc_tree_pack(&arena, "[f]", NAN));
    end_arena();
}

TEST(a_tree_that_lacked_memory_is_not_written)
{
    tinkc_error err = { 0 };
    tkc_arena small;
    tkc_buf out;
    tkc_arena_init(&small, NULL, 2048);
    tkc_buf_init(&out, NULL, TKC_BUF_NO_MAX);
    tkc_tree *v = tkc_tree_array(&small);
    for (int i = 0; i < 100; i++)
        tkc_tree_add_i64(v, i);
    assert_false(tkc_tree_whole(v));
    assert_false(tkc_tree_write(&out, v, 0, &err));
    assert_int_equal(err.code, TINKC_E_MEMORY);
    err = (tinkc_error){ 0 };
    tkc_arena_reset(&small);
    assert_null(tkc_tree_parse(&small,
                               tkc_str("[\"a\",\"b\",\"c\",[[[[[[[[[[[[[[[[[[[[[[[[[[[["
                                       "[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"),
                               0, &err));
    assert_int_equal(err.code, TINKC_E_MEMORY);
    tkc_buf_free(&out);
    tkc_arena_free(&small);
}

RUN_TESTS(NULL, NULL)
