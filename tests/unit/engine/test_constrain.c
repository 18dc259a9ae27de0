/* test_constrain.c - texts that a grammar allows are those that fit the schema: walked at random byte by
 * byte and token by token, and held against a validator that knows nothing of grammars. */
#include "constrain/json_grammar.h"
#include "constrain/token_mask.h"
#include "recipes/schema.h"
#include "support/json_trees.h"
#include "support/check.h"
#include "support/scratch.h"

static uint64_t seed;

static uint32_t dice(uint32_t n)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)(seed >> 33) % n;
}

static const char *const schemas[] = {
    "{\"type\":\"object\"}",
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":5},\"na\":{"
    "\"type\":"
    "\"integer\"},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"ab\",\"\\u00e4\"]},"
    "\"minItems\":2,"
    "\"maxItems\":3}},\"required\":[\"name\",\"tags\"],\"additionalProperties\":false}",
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"number\"},\"b\":{\"type\":[\"string\","
    "\"null\"]},\"c\":"
    "{\"type\":\"boolean\"}}}",
    "{\"type\":\"integer\",\"minimum\":-7,\"maximum\":123}",
    "{\"type\":\"integer\",\"exclusiveMinimum\":99,\"maximum\":104}",
    "{\"type\":\"integer\",\"minimum\":-20,\"maximum\":-11}",
    "{\"type\":\"string\",\"minLength\":3,\"maxLength\":4}",
    "{\"enum\":[1,10,\"x\",null,[1,{\"a\":2}]]}",
    "{\"const\":\"yes\"}",
    "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"x\":{\"const\":1}},"
    "\"required\":[\"x\"]},"
    "\"minItems\":1,\"maxItems\":2}",
    "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"items\":{\"type\":\"integer\"}},{"
    "\"type\":\"null\"}]}",
    "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
    "{\"type\":\"object\",\"additionalProperties\":false}",
    "{\"type\":\"array\",\"maxItems\":0}",
    "{\"type\":\"array\"}",
    "{}",
    "{\"type\":\"number\"}",
};

/* A text of at most `most` bytes; its length. Bytes are tried in a random order; the nearest end is
 * never farther than what is left. */
static size_t wander(const tke_grammar *g, size_t most, char *text)
{
    tke_grammar_state s, next;
    size_t n = 0;
    tke_grammar_start(g, &s);
    while (s.depth > 0) {
        uint32_t first = dice(256), i = 0;
        int64_t cost = tke_grammar_cost(g, &s);
        if (tke_grammar_may_end(g, &s) && (n == most || dice(4) == 0))
            break;
        for (; i < 256; i++) {
            uint8_t b = (uint8_t)(first + i);
            tke_grammar_copy(&next, &s);
            if (tke_grammar_step(g, &next, b) && tke_grammar_cost(g, &next) <= (int64_t)(most - n) - 1) {
                text[n++] = (char)b;
                break;
            }
        }
        if (i == 256 && tke_grammar_may_end(g, &s))
            break;
        if (i == 256)
            fail_msg("stuck after \"%.*s\", %zu of %zu bytes, the end is said to be %lld away", (int)n, text, n, most,
                     (long long)cost);
        tke_grammar_copy(&s, &next);
    }
    text[n] = '\0';
    return n;
}

static void expect_valid(const char *schema, const char *text, size_t n)
{
    tinkc_error err = { 0 };
    tkc_tree *s = json_of(schema);
    tkc_tree *v = json_of_any(text, n);
    if (!v)
        fail_msg("%s\nnot JSON: %s", schema, text);
    if (!tkr_schema_conforms(s, v, &err) || err.code)
        fail_msg("%s\ndoes not fit (%s): %s", schema, err.message, text);
}

TEST_WITH(texts_of_a_grammar_are_accepted_byte_by_byte, set_up, tear_down)
{
    char text[600];
    for (size_t k = 0; k < sizeof schemas / sizeof *schemas; k++) {
        tke_grammar g;
        tinkc_error err = { 0 };
        tke_json_grammar(&g, &arena, tkc_str(schemas[k]), &err);
        assert_ok(err);
        size_t least = (size_t)g.nodes[g.root].cost;
        for (size_t i = 0; i < 300; i++) {
            size_t n = wander(&g, least + dice(i % 3 ? 40 : 400), text);
            expect_valid(schemas[k], text, n);
        }
        assert_true(wander(&g, least, text) <= least); /* as short as it is said to be */
    }
}

TEST_WITH(each_schema_accepts_its_texts_and_no_others, set_up, tear_down)
{
    static const struct {
        const char *schema, *text;
        bool right;
    } rows[] = {
        { "{}", "{\"a\": [1, -2.5e+3, true, null, \"\\u00e9\\n\"]}", true },
        { "{}", "{\n  \"a\": 1,\n  \"b\": {}\n}", true },
        { "{}", "[01]", false },
        { "{}", "[1.]", false },
        { "{}", "[,]", false },
        { "{}", "\"\\ud800\"", false },
        { "{}", "\"\xc3\"", false },
        { "{}", "\"\xed\xa0\x80\"", false },
        { "{}", "\"\xf0\x9f\x98\x80\"", true },
        { "{}", "{\"a\"  :1}", false }, /* one blank, or a new line */
        { "{}", "{\"a\" :1}", false },
        { "{}", "{\"a\":1 ,\"b\":2}", false },
        { "{}", "[ 1, 2 ]", true },
        { "{}", "[1 ,2]", false },
        { "{\"type\":\"integer\"}", "12", true },
        { "{\"type\":\"integer\"}", "1.5", false },
        { "{\"type\":\"integer\",\"minimum\":3,\"maximum\":12}", "11", true },
        { "{\"type\":\"integer\",\"minimum\":3,\"maximum\":12}", "13", false },
        { "{\"type\":\"integer\",\"minimum\":3,\"maximum\":12}", "1", false },
        { "{\"type\":\"integer\",\"minimum\":-5,\"maximum\":3}", "-2", true },
        { "{\"type\":\"integer\",\"minimum\":-5,\"maximum\":3}", "2", true },
        { "{\"type\":\"integer\",\"minimum\":0,\"maximum\":3}", "-2", false },
        { "{\"type\":\"integer\",\"minimum\":-5,\"maximum\":-1}", "-3", true },
        { "{\"type\":\"integer\",\"minimum\":-5,\"maximum\":-1}", "3", false },
        /* a type keeps those of the listed values that are of it; each whole number is a number */
        { "{\"type\":\"number\",\"enum\":[1,2.5,\"a\"]}", "1", true },
        { "{\"type\":\"number\",\"enum\":[1,2.5,\"a\"]}", "2.5", true },
        { "{\"type\":\"number\",\"enum\":[1,2.5,\"a\"]}", "\"a\"", false },
        { "{\"type\":\"integer\",\"enum\":[1,2.5]}", "2.5", false },
        { "{\"type\":[\"null\",\"string\"],\"enum\":[1,\"a\",null]}", "null", true },
        { "{\"type\":[\"null\",\"string\"],\"enum\":[1,\"a\",null]}", "1", false },
        { "{\"properties\":{\"a\":{},\"b\":{}},\"required\":[\"a\"]}", "{\"b\":1}", false },
        { "{\"properties\":{\"a\":{},\"b\":{}},\"required\":[\"b\"]}", "{\"b\":1}", true },
        { "{\"properties\":{\"a\":{},\"b\":{}}}", "{\"b\":1,\"a\":1}", false }, /* the schema's order */
        { "{\"properties\":{\"a\":{}}}", "{\"a\":1,}", false },
        { "{\"enum\":[1,12]}", "12", true },
        { "{\"enum\":[1,12]}", "1", true },
        { "{\"$defs\":{\"t\":{\"properties\":{\"t\":{\"anyOf\":[{\"$ref\":\"#/$defs/"
          "t\"},{\"type\":\"null\"}]}},"
          "\"required\":[\"t\"]}},\"$ref\":\"#/$defs/t\"}",
          "{\"t\":{\"t\":null}}", true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tke_grammar g;
        tke_grammar_state s;
        tinkc_error err = { 0 };
        tke_json_grammar(&g, &arena, tkc_str(rows[i].schema), &err);
        assert_ok(err);
        tke_grammar_start(&g, &s);
        bool right = true;
        for (const char *p = rows[i].text; *p && right; p++)
            right = tke_grammar_step(&g, &s, (uint8_t)*p);
        right = right && tke_grammar_may_end(&g, &s);
        if (right != rows[i].right)
            fail_msg("%s: %s is %s", rows[i].schema, rows[i].text, right ? "taken" : "refused");
    }
}

TEST_WITH(schemas_beyond_the_subset_are_refused_by_name, set_up, tear_down)
{
    static const char *const rows[][2] = {
        { "{\"type\":\"string\",\"format\":\"date\"}", "'format'" },
        { "{\"oneOf\":[]}", "'oneOf'" },
        { "{\"type\":\"number\",\"minimum\":1}", "integers only" },
        { "{\"type\":\"integer\",\"minimum\":2,\"maximum\":1}", "no integer" },
        { "{\"type\":\"thing\"}", "'thing'" },
        { "{\"type\":\"string\",\"minLength\":2,\"maxLength\":1}", "minLength" },
        { "{\"type\":\"array\",\"minItems\":2,\"maxItems\":1}", "minItems" },
        { "{\"properties\":{\"a\":{}},\"required\":[\"b\"]}", "'b'" },
        { "{\"anyOf\":[{\"type\":\"string\"},{\"const\":\"a\"}]}", "anyOf" },
        { "{\"$ref\":\"#/a\"}", "'#/a'" },
        { "{\"$ref\":\"#/$defs/a\"}", "names no definition" },
        { "{\"$defs\":{\"a\":{\"$ref\":\"#/$defs/a\"}},\"$ref\":\"#/$defs/a\"}", "finite" },
        { "{\"properties\":{\"a\":{}},\"additionalProperties\":{\"type\":\"string\"}}", "additionalProperties" },
        { "{\"enum\":[],\"type\":\"string\"}", "enum" },
        { "{\"enum\":[\"a\"],\"maxLength\":3}", "enum" },
        { "false", "object" },
        { "{", "" },
        { "{\"type\":\"integer\",\"maximum\":1e300}", "" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tke_grammar g;
        tinkc_error err = { 0 };
        tke_json_grammar(&g, &arena, tkc_str(rows[i][0]), &err);
        if (err.code != TINKC_E_BAD_REQUEST || !strstr(err.message, rows[i][1]))
            fail_msg("%s: %d \"%s\"", rows[i][0], (int)err.code, err.message);
    }
}

/* ---- tokens ---- */

/* Single bytes, and some that cross the borders of characters, strings and members. */
static const char *const longer[] = { "{\"",  "\": ",     "\", \"", "\"}",   "}]", "\xc3\xa4\"",
                                      "\xc3", "\xa4\xc3", "name",   "na",    "[1", ", ",
                                      "null", "true}",    "12",     "\\n\"", "{}" };
enum { N_LONGER = sizeof longer / sizeof *longer, VOCAB = 256 + N_LONGER + 1 };

static size_t token_bytes(void *user, int32_t token, const char **bytes)
{
    static char one[256];
    (void)user;
    if (token >= 256 + N_LONGER)
        return 0; /* a mark */
    if (token >= 256) {
        *bytes = longer[token - 256];
        return strlen(*bytes);
    }
    one[token] = (char)token;
    *bytes = &one[token];
    return 1;
}

/* The mask is what walking every token by itself gives, and a text drawn from masks fits. */
TEST_WITH(a_mask_holds_the_tokens_that_may_follow, set_up, tear_down)
{
    tinkc_error err = { 0 };
    tke_token_order *order = tke_token_order_new(VOCAB, token_bytes, NULL, &err);
    assert_ok(err);
    for (size_t k = 0; k < sizeof schemas / sizeof *schemas; k++) {
        tke_grammar g;
        tke_json_grammar(&g, &arena, tkc_str(schemas[k]), &err);
        tke_constraint c = { &g, order };
        for (size_t round = 0; round < 20; round++) {
            char text[900] = "";
            size_t n = 0, left = (size_t)g.nodes[g.root].cost + dice(30);
            tke_mask_cache cache = { .arena = &arena };
            tke_grammar_state s, t;
            tke_grammar_start(&g, &s);
            while (s.depth > 0 && left > 0) {
                uint32_t mask[(VOCAB + 31) / 32], pick = dice(VOCAB), drawn = VOCAB;
                bool any = tke_constraint_mask(&c, &s, left, &cache, mask, &err);
                assert_ok(err);
                for (uint32_t i = 0; i < VOCAB; i++) {
                    uint32_t token = (pick + i) % VOCAB;
                    bool allowed = mask[token / 32] >> token % 32 & 1;
                    tke_grammar_copy(&t, &s);
                    bool fits =
                        tke_constraint_step(&c, &t, (int32_t)token) && tke_grammar_cost(&g, &t) <= (int64_t)left - 1;
                    if (fits != allowed)
                        fail_msg("%s: token %u after \"%s\" with %zu left: %d", schemas[k], token, text, left, allowed);
                    drawn = allowed && drawn == VOCAB ? token : drawn;
                }
                assert_true(any == (drawn < VOCAB));
                if (drawn == VOCAB || (tke_grammar_may_end(&g, &s) && dice(3) == 0))
                    break;
                const char *bytes = "";
                size_t len = token_bytes(NULL, (int32_t)drawn, &bytes);
                memcpy(text + n, bytes, len);
                n += len;
                text[n] = '\0';
                assert_true(tke_constraint_step(&c, &s, (int32_t)drawn));
                left--;
            }
            assert_true(tke_grammar_may_end(&g, &s));
            expect_valid(schemas[k], text, n);
        }
    }
    tke_token_order_free(order);
}

static size_t no_brace(void *user, int32_t token, const char **bytes)
{
    return token == '{' ? 0 : token_bytes(user, token, bytes);
}

TEST_WITH(a_vocabulary_without_braces_is_refused, set_up, tear_down)
{
    tinkc_error err = { 0 };
    assert_null(tke_token_order_new(VOCAB, no_brace, NULL, &err));
    assert_int_equal(err.code, TINKC_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "'{'"));
}

/* One call of one of two functions, with its arguments. */
TEST_WITH(a_call_names_one_function_and_fits_its_arguments, set_up, tear_down)
{
    const tinkc_str tail = tkc_str("}</c>");
    const tke_called calls[] = {
        { tkc_str("<c>{\"name\": \"add\", \"arguments\": "),
          tkc_str("{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}"), tail },
        { tkc_str("<c>{\"name\": \"ask\", \"arguments\": "), { NULL, 0 }, tail },
    };
    char text[600];
    tke_grammar g;
    tinkc_error err = { 0 };
    tke_call_grammar(&g, &arena, calls, 2, &err);
    assert_ok(err);
    for (int i = 0; i < 200; i++) {
        size_t n = wander(&g, (size_t)g.nodes[g.root].cost + dice(60), text);
        assert_true(n > 8 && memcmp(text, "<c>", 3) == 0 && strcmp(text + n - 4, "</c>") == 0);
        text[n - 4] = '\0';
        expect_valid(strstr(text, "add") ? "{\"properties\":{\"arguments\":{\"required\":[\"a\"]}}}" : "{}", text + 3,
                     n - 7);
    }
}
