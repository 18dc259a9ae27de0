/* test_reward_answers.c - what a grader outside of this program answers, and what becomes of it. */
#include "../../../recipes/reward.c"
#include "support/json_trees.h"
#include "support/test_case.h"

typedef struct graded {
    bool ok;
    double value;
    char why[300];
} graded;

static void note(void *user, size_t which, bool ok, double value, const tkc_tree *metrics, const char *why)
{
    graded *g = user;
    (void)which, (void)metrics;
    *g = (graded){ .ok = ok, .value = value };
    if (!ok)
        (void)snprintf(g->why, sizeof g->why, "%s", why);
}

TEST(an_answer_has_a_number_and_metrics_of_numbers)
{
    static const struct {
        const char *answer;
        bool ok;
        double value;
        const char *why;
    } rows[] = {
        { "{\"reward\":0.5}", true, 0.5, "" },
        { "{\"reward\":1,\"metrics\":{\"a\":2,\"b\":0.5}}", true, 1, "" },
        { "{\"reward\":1,\"metrics\":{\"a\":2,\"b\":\"x\"}}", false, 0, "metric b in the answer is not a number" },
        { "{\"reward\":1,\"metrics\":[1]}", false, 0, "\"metrics\" in the answer is not an object" },
        { "{\"reward\":\"1\"}", false, 0, "the answer has no finite number under \"reward\"" },
        { "{\"score\":1}", false, 0, "the answer has no finite number under \"reward\"" },
        { "{\"error\":\"no luck\",\"reward\":1}", false, 0, "the grader reports: no luck" },
        { NULL, false, 0, "gone" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        graded g = { 0 };
        tkr_asking a = { .fn = note, .user = &g, .waits = true };
        deliver(&a, rows[i].answer ? json_of(rows[i].answer) : NULL, "gone");
        assert_int_equal(g.ok, rows[i].ok);
        assert_true(!g.ok || g.value == rows[i].value);
        assert_string_equal(g.why, rows[i].why);
        assert_false(a.waits);
    }
}
