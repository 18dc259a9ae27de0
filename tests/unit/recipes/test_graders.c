/* test_graders.c - what each grader takes for right, and what it refuses to grade. */
#include "recipes/mathtext.h"
#include "support/check.h"
#include "tinkc/recipes.h"

static double grade(const char *spec, const char *text, const char *answer, const char *row)
{
    tinkc_error err = { 0 };
    double out = -1;
    tinkc_reward *r = tinkc_reward_grader(spec, &err);
    tinkc_reward_grade(r, text, answer, row, &out, &err);
    tinkc_reward_free(r);
    if (err.code)
        fail_msg("%s: %s", spec, err.message);
    return out;
}

TEST(each_grader_compares_as_it_says)
{
    static const struct {
        const char *spec, *text, *answer;
        double right;
    } rows[] = {
        { "exact", " 42\n", "42", 1 },
        { "exact", "42.", "42", 0 },
        { "contains", "it is Paris, of course", "Paris", 1 },
        { "contains", "it is London", "Paris", 0 },
        { "contains", "anything", "", 0 },
        { "regex", "abc123", "[0-9]+$", 1 },
        { "regex:^yes\\b", "yes, sir", NULL, 1 },
        { "regex:^yes\\b", "yesterday", NULL, 0 },
        { "number", "So 3 + 4 = 7.", "7", 1 },
        { "number", "The answer is 1,234.50", "1234.5", 1 },
        { "number", "-3e2", "-300", 1 },
        { "number", "5-3", "3", 1 },
        { "number", "7 or 8", "7", 0 },
        { "number", "none", "7", 0 },
        { "boxed-math", "thus \\boxed{\\frac{1}{2}}", "0.5", 1 },
        { "boxed-math", "\\boxed{1} then \\boxed{2}", "2", 1 },
        { "boxed-math", "\\boxed{x^{2}+1}", "x^{2} + 1", 1 },
        { "boxed-math", "\\boxed{\\left(1,2\\right)}", "(1, 2)", 1 },
        { "boxed-math", "\\boxed{\\text{yes}}", "\\boxed{{yes}}", 1 },
        { "boxed-math", "\\boxed{50\\%}", "50", 1 },
        { "boxed-math", "42", "42", 0 },
        { "boxed-math", "\\boxed{4", "4", 0 },
        { "boxed-math", "\\boxed{-\\frac{3}{4}}", "-3/4", 1 },
        { "boxed-math", "\\boxed{3}", "4", 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (grade(rows[i].spec, rows[i].text, rows[i].answer, NULL) != rows[i].right)
            fail_msg("%s: \"%s\" against \"%s\"", rows[i].spec, rows[i].text, rows[i].answer ? rows[i].answer : "");
}

TEST(the_json_grader_checks_a_schema)
{
    static const struct {
        const char *schema, *text;
        double right;
    } rows[] = {
        { "{\"type\":\"object\",\"required\":[\"a\"],\"properties\":{\"a\":{\"type\":\"integer\"}}"
          "}",
          "{\"a\":3}", 1 },
        { "{\"type\":\"object\",\"required\":[\"a\"]}", "{\"b\":3}", 0 },
        { "{\"properties\":{\"a\":{\"type\":\"integer\"}}}", "{\"a\":3.5}", 0 },
        { "{\"properties\":{\"a\":{\"type\":\"integer\"}}}", "{\"a\":3.0}", 1 },
        { "{\"additionalProperties\":false,\"properties\":{\"a\":true}}", "{\"a\":1,\"b\":2}", 0 },
        { "{\"minProperties\":1,\"maxProperties\":1}", "{\"a\":1}", 1 },
        { "{\"minProperties\":2}", "{\"a\":1}", 0 },
        { "{\"exclusiveMinimum\":3}", "3", 0 },
        { "{\"exclusiveMaximum\":3}", "3", 0 },
        { "{\"minimum\":3,\"maximum\":3,\"exclusiveMinimum\":2,\"exclusiveMaximum\":4}", "3", 1 },
        { "{\"maxProperties\":1}", "{\"a\":1,\"b\":1}", 0 },
        { "{\"enum\":[1,\"x\"]}", "1.0", 1 },
        { "{\"const\":[1,2]}", "[1,2]", 1 },
        { "{\"type\":[\"string\",\"null\"]}", "null", 1 },
        { "{\"minLength\":2,\"pattern\":\"^a\"}", "\"ab\"", 1 },
        { "{\"minLength\":2}", "\"\xC3\xA4\"", 0 },
        { "{\"items\":{\"minimum\":0},\"maxItems\":2}", "[1,2,3]", 0 },
        { "{\"prefixItems\":[{\"type\":\"string\"}],\"items\":{\"type\":\"number\"}}", "[\"a\",1]", 1 },
        { "{\"uniqueItems\":true}", "[1,1.0]", 0 },
        { "{\"contains\":{\"const\":3}}", "[1,2]", 0 },
        { "{\"oneOf\":[{\"type\":\"number\"},{\"minimum\":0}]}", "5", 0 },
        { "{\"anyOf\":[{\"type\":\"string\"},{\"minimum\":3}]}", "5", 1 },
        { "{\"not\":{\"type\":\"string\"}}", "\"x\"", 0 },
        { "{\"if\":{\"type\":\"number\"},\"then\":{\"minimum\":2},\"else\":{\"minLength\":3}}", "1", 0 },
        { "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"multipleOf\":0.1}}}", "0.3", 1 },
        { "{\"$ref\":\"#\"}", "1", 0 }, /* forever: ends at its depth */
        { "{\"patternProperties\":{\"^x\":{\"type\":\"string\"}}}", "{\"xa\":1}", 0 },
        { "{\"dependentRequired\":{\"a\":[\"b\"]}}", "{\"a\":1}", 0 },
        { "{}", "{\"a\":1", 0 }, /* not JSON */
        { "{}", "  {\"a\":1}\n", 1 },
    };
    char row[600];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        (void)snprintf(row, sizeof row, "{\"schema\":%s}", rows[i].schema);
        if (grade("json-schema", rows[i].text, NULL, row) != rows[i].right)
            fail_msg("%s against %s", rows[i].text, rows[i].schema);
    }
}

static void refuse(const char *spec, const char *answer, const char *row, const char *word)
{
    tinkc_error err = { 0 };
    double out;
    tinkc_reward *r = tinkc_reward_grader(spec, &err);
    if (r)
        tinkc_reward_grade(r, "text", answer, row, &out, &err);
    tinkc_reward_free(r);
    if (!err.code || !strstr(err.message, word))
        fail_msg("%s: \"%s\" does not say %s", spec, err.message, word);
}

TEST(graders_that_cannot_work_are_refused)
{
    refuse("excat", "x", "{}", "excat");
    refuse("regex:(", "x", "{}", "regular expression");
    refuse("exact:5", "x", "{}", "takes no setting");
    refuse("exact", NULL, "{}", "needs an answer");
    refuse("number", "none", "{}", "holds no number");
    refuse("json-schema", NULL, "{}", "no \"schema\"");
    refuse("json-schema", NULL, "{\"schema\":{\"unevaluatedItems\":false}}", "unevaluatedItems");
    refuse("json-schema", NULL, "{\"schema\":{\"$ref\":\"#/a\"}}", "$ref");
    refuse("json-schema:/nowhere", NULL, "{}", "/nowhere");
}

/* A pattern that would run for years gives up instead. */
TEST(a_pattern_without_end_gives_up)
{
    assert_true(grade("regex:^(a+)+$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", NULL, NULL) == 0);
}

TEST(a_weight_is_finite)
{
    tinkc_error err = { 0 };
    tinkc_reward *r = tinkc_reward_grader("exact", &err);
    assert_true(tinkc_reward_weigh(r, 0.5, &err));
    assert_true(tinkc_reward_needs_answer(r));
    assert_false(tinkc_reward_weigh(r, 1.0 / 0.0, &err));
    assert_int_equal(err.code, TINKC_E_ARGUMENT);
    tinkc_reward_free(r);
}

/* What a grading model may say: numbers, scales, two grades at once, anything else. */
TEST(a_grading_models_answer_becomes_a_grade)
{
    static const struct {
        const char *text;
        double grade; /* -1 = none */
    } rows[] = {
        { "7", 7 },
        { " 7.5\n", 7.5 },
        { "0", 0 },
        { "10", 10 },
        { "10/10", 10 },
        { "7/10", 7 },
        { "Grade: 8 out of 10.", 8 },
        { "**9**", 9 },
        { "<think>3? no, 5</think>\n6", 6 },
        { "It has 3 faults.\n\n4\n", 4 },
        { "7 7", 7 },
        { "7 or 8", -1 },
        { "between 5 and 6", -1 },
        { "5-6", -1 },
        { "11", -1 },
        { "-1", -1 },
        { "100", -1 },
        { "1e9", -1 },
        { "good", -1 },
        { "", -1 },
        { "/10", 10 },
        { "\xff\xfe", -1 },
        { "nan", -1 },
        { "7\nthanks", -1 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double grade = -1;
        if (!tkr_read_grade(rows[i].text, &grade))
            grade = -1;
        if (grade != rows[i].grade)
            fail_msg("\"%s\": %g instead of %g", rows[i].text, grade, rows[i].grade);
    }
}
