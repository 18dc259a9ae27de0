/* test_schema_pattern.c - "pattern" in schemas: which strings are allowed, held against the C library's
 * regular expressions, and which patterns are refused, and why. */
#include <locale.h>
#include <regex.h>

#include "constrain/json_grammar.h"
#include "support/check.h"
#include "support/json_trees.h"

static bool compile(tke_grammar *g, tkc_arena *arena, const char *pattern, tinkc_error *err)
{
    tkc_tree *schema = tkc_tree_pack(&json_arena, "{s:s,s:s}", "type", "string", "pattern", pattern);
    char *text = json_print(schema);
    const char *kept = tkc_arena_str(arena, tkc_str(text), err);
    bool ok = tke_json_grammar(g, arena, tkc_str(kept), err);
    return ok;
}

static bool allows(const char *pattern, const char *text)
{
    tkc_arena arena;
    tinkc_error err = { 0 };
    tke_grammar g;
    tke_grammar_state s;
    tkc_arena_init(&arena, NULL, 0);
    if (!compile(&g, &arena, pattern, &err))
        fail_msg("%s: %s", pattern, err.message);
    tke_grammar_start(&g, &s);
    bool ok = true;
    for (const char *at = text; ok && *at; at++)
        ok = tke_grammar_step(&g, &s, (uint8_t)*at);
    ok = ok && tke_grammar_may_end(&g, &s);
    tkc_arena_free(&arena);
    return ok;
}

TEST(strings_that_match)
{
    static const struct {
        const char *pattern, *text; /* the text as JSON */
        bool allowed;
    } rows[] = {
        { "^ab$", "\"ab\"", true },
        { "^ab$", "\"abc\"", false },
        { "^ab$", "\"a\"", false },
        { "ab", "\"xxabyy\"", true }, /* without anchors it may be anywhere */
        { "ab", "\"xxay\"", false },
        { "^ab", "\"abyy\"", true },
        { "ab$", "\"yyab\"", true },
        { "ab$", "\"yyabz\"", false },
        { "^a|b$", "\"ax\"", true }, /* an anchor is of its alternative */
        { "^a|b$", "\"xb\"", true },
        { "^a|b$", "\"xax\"", false },
        { "^(a|bc)$", "\"bc\"", true },
        { "^(?:a|bc)+$", "\"abca\"", true },
        { "^(?:a|bc)+$", "\"\"", false },
        { "^[A-Z]{2}-\\d{3,4}$", "\"AB-1234\"", true },
        { "^[A-Z]{2}-\\d{3,4}$", "\"AB-12345\"", false },
        { "^[A-Z]{2}-\\d{3,4}$", "\"Ab-123\"", false },
        { "^\\d{2,}$", "\"1\"", false },
        { "^\\d{2,}$", "\"123456\"", true },
        { "^a{0}$", "\"\"", true },
        { "^x?y*$", "\"xyyy\"", true },
        { "^[^a-c]$", "\"d\"", true },
        { "^[^a-c]$", "\"b\"", false },
        { "^[^a-c]$", "\"\xc3\xa4\"", true },
        { "^[^a-c]$", "\"\xed\xa0\x80\"", false }, /* half a surrogate is not a character */
        { "^.$", "\"\xf0\x9f\x98\x80\"", true },
        { "^.$", "\"\\n\"", false },
        { "^.$", "\"\\r\"", false },
        { "^.$", "\"\\t\"", true },
        { "^\\s$", "\"\\n\"", true },
        { "^\\S$", "\"x\"", true },
        { "^[\\w.]+@\\w+$", "\"a.b@c\"", true },
        { "^[a-]$", "\"-\"", true },
        { "^\xc3\xa9+$", "\"\xc3\xa9\xc3\xa9\"", true },
        /* what JSON escapes */
        { "^a\"b$", "\"a\\\"b\"", true },
        { "^a\"b$", "\"a\"", false },
        { "^\\\\$", "\"\\\\\"", true },
        { "^\\.\\*$", "\".*\"", true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (allows(rows[i].pattern, rows[i].text) != rows[i].allowed)
            fail_msg("%s: %s", rows[i].pattern, rows[i].text);
}

static uint64_t seed = 1;

static uint32_t dice(uint32_t n)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)(seed >> 33) % n;
}

/* A text of at most `most` bytes, by bytes at random; the end is never farther than what is left. */
static size_t wander(const tke_grammar *g, size_t most, char *text)
{
    tke_grammar_state s, next;
    size_t n = 0;
    tke_grammar_start(g, &s);
    while (s.depth > 0) {
        uint32_t first = dice(256), i = 0;
        for (; i < 256; i++) {
            uint8_t b = (uint8_t)(first + i);
            tke_grammar_copy(&next, &s);
            if (tke_grammar_step(g, &next, b) && tke_grammar_cost(g, &next) <= (int64_t)(most - n) - 1) {
                text[n++] = (char)b;
                break;
            }
        }
        if (i == 256)
            fail_msg("stuck after %.*s", (int)n, text);
        tke_grammar_copy(&s, &next);
    }
    text[n] = '\0';
    return n;
}

TEST(what_is_written_matches)
{
    static const char *const patterns[] = {
        "^(a|bc)*d{2,3}$", "x[0-9]+y|^z", "^[^ab]{3}$", "(foo|ba[rz])?qux", "^$", "a\"b", "^([a-c]{2}-)+$", "^.{0,5}$",
    };
    assert_non_null(setlocale(LC_CTYPE, "C.UTF-8"));
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        tkc_arena arena;
        tinkc_error err = { 0 };
        tke_grammar g;
        regex_t regex;
        char text[200];
        tkc_arena_init(&arena, NULL, 0);
        assert_true(compile(&g, &arena, patterns[i], &err));
        assert_int_equal(regcomp(&regex, patterns[i], REG_EXTENDED | REG_NOSUB), 0);
        for (int k = 0; k < 60; k++) {
            size_t n = wander(&g, 30, text);
            tkc_tree *v = tkc_tree_read(&json_arena, tkc_strn(text, n), TKC_TREE_ANY);
            assert_non_null(v);
            if (regexec(&regex, tkc_tree_text(v), 0, NULL, 0) != 0)
                fail_msg("%s: %s", patterns[i], text);
        }
        regfree(&regex);
        tkc_arena_free(&arena);
    }
}

TEST(patterns_that_are_refused)
{
    static const struct {
        const char *pattern, *says;
    } rows[] = {
        { "a(?=b)", "looking ahead is not supported" },
        { "(?<x>a)", "named groups" },
        { "(a)\\1", "back references" },
        { "\\bword", "\\b is not supported" },
        { "\\p{L}", "\\p classes" },
        { "\\u0041", "\\u and \\x" },
        { "a^b", "^ and $ are supported at the ends" },
        { "(^a)", "^ and $ are supported at the ends" },
        { "a*?", "a repetition of a repetition" },
        { "*a", "nothing to repeat" },
        { "(a", "a group is not closed" },
        { "a)", "closes no group" },
        { "[a", "a class is not closed" },
        { "[z-a]", "must go upwards" },
        { "[\xc3\xa9]", "ASCII characters only" },
        { "a{3,1}", "{n,m}" },
        { "a{999}", "at most 256" },
        { "a{x}", "a number is expected" },
        { "\\", "this escape is not supported" },
        { "^[^\\d\\D]$", "no string matches" },
        { "(a{200}){200}", "too large" },
        { "^(a|b)*a(a|b){20}$", "too large" }, /* 2^20 sets of states */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tkc_arena arena;
        tinkc_error err = { 0 };
        tke_grammar g;
        tkc_arena_init(&arena, NULL, 0);
        if (compile(&g, &arena, rows[i].pattern, &err) || !strstr(err.message, rows[i].says))
            fail_msg("%s: %s", rows[i].pattern, err.message);
        assert_int_equal(err.code, TINKC_E_BAD_REQUEST);
        tkc_arena_free(&arena);
    }
}

/* Any bytes are a pattern or an error. */
TEST(noise_is_answered)
{
    static const char marks[] = "ab0^$.*+?()[]{}|\\-,19dws\"\xc3\xa9";
    for (int i = 0; i < 3000; i++) {
        char text[24];
        tkc_arena arena;
        tinkc_error err = { 0 };
        tke_pattern p;
        size_t n = dice(sizeof text);
        for (size_t k = 0; k < n; k++)
            text[k] = marks[dice(sizeof marks - 1)];
        tkc_arena_init(&arena, NULL, 0);
        bool ok = tke_pattern_compile(&p, &arena, tkc_strn(text, n), &err);
        assert_true(ok == (err.code == 0));
        tkc_arena_free(&arena);
    }
}
