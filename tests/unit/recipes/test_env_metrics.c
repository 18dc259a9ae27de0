/* test_env_metrics.c - what a batch of groups is summed up to, against numbers worked out by hand. */
#include <math.h>

#include "support/check.h"
#include "tinkc/recipes.h"

typedef struct seen {
    size_t n;
    char names[64][100];
    double values[64];
} seen;

static void note(const char *name, double value, void *user)
{
    seen *s = user;
    assert_true(s->n < 64);
    snprintf(s->names[s->n], sizeof s->names[0], "%s", name);
    s->values[s->n++] = value;
}

static bool has(const seen *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->names[i], name) == 0)
            return true;
    return false;
}

static void expect(const seen *s, const char *name, double value)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->names[i], name) == 0) {
            if (fabs(s->values[i] - value) > 1e-9)
                fail_msg("%s: %.9g is not %.9g", name, s->values[i], value);
            return;
        }
    fail_msg("no metric %s", name);
}

/* A group of two; `rest` of each: reward, error, turns, metrics. Two tokens read, then one sampled. */
#define ONE(id, index, tag, rest)                                                                                      \
    "{\"group_idx\":" #id ",\"traj_idx\":" #index ",\"group_size\":2,\"tags\":[\"" tag "\"]," rest                     \
    ",\"text\":\"x\",\"tokens\":[1,2,3],\"logprobs\":[0,0,-1],\"mask\":[0,0,1],\"ends\":[3]}\n"

static tinkc_group *group(const char *lines)
{
    tinkc_error err = { 0 };
    size_t len;
    tinkc_group *g = tinkc_group_read(lines, &len, &err);
    assert_ok(err);
    return g;
}

/* Group 0 (tag a): rewards 1 and 0. Group 1 (b): both 1. Group 2 (b): 0.25, and one that failed. */
TEST(a_batch_is_summed_up_by_tag_without_what_failed)
{
    tinkc_error err = { 0 };
    seen s = { 0 };
    tinkc_group *all[] = {
        group(ONE(0, 0, "a", "\"total_reward\":1,\"turns\":2,\"trajectory_metrics\":{\"good\":4}")
                  ONE(0, 1, "a", "\"total_reward\":0,\"turns\":1,\"trajectory_metrics\":{\"good\":1}")),
        group(ONE(1, 0, "b", "\"total_reward\":1,\"turns\":1") ONE(1, 1, "b", "\"total_reward\":1,\"turns\":1")),
        group(ONE(2, 0, "b", "\"total_reward\":0.25,\"turns\":1") ONE(2, 1, "b",
                                                                      "\"total_reward\":9,\"turns\":7,\"error\":\"it "
                                                                      "broke\",\"trajectory_metrics\":{\"good\":"
                                                                      "70}")),
    };
    assert_true(tinkc_recipe_metrics((const tinkc_group *const *)all, 3, "env", note, &s, &err));
    expect(&s, "env/all/reward/total", (1 + 0 + 1 + 1 + 0.25) / 5);
    expect(&s, "env/all/total_episodes", 5);
    expect(&s, "env/all/total_turns", 2 + 1 + 1 + 1 + 1);
    expect(&s, "env/all/turns_per_episode", 6.0 / 5);
    expect(&s, "env/all/total_ac_tokens", 5);
    expect(&s, "env/all/total_ob_tokens", 10);
    expect(&s, "env/all/ac_tokens_per_turn", 5.0 / 6);
    expect(&s, "env/all/ob_tokens_per_turn", 10.0 / 6);
    expect(&s, "env/all/by_group/frac_mixed", 1.0 / 3);
    expect(&s, "env/all/by_group/frac_all_good", 1.0 / 3);
    expect(&s, "env/all/by_group/frac_all_bad", 1.0 / 3);
    expect(&s, "env/all/good", (4 + 1) / 2.0);
    expect(&s, "env/a/reward/total", 0.5);
    expect(&s, "env/a/by_group/frac_mixed", 1);
    expect(&s, "env/b/reward/total", (1 + 1 + 0.25) / 3);
    expect(&s, "env/b/by_group/frac_all_good", 0.5);
    expect(&s, "env/b/by_group/frac_all_bad", 0.5);
    assert_false(has(&s, "env/b/good"));
    s.n = 0;
    assert_true(tinkc_recipe_metrics((const tinkc_group *const *)all + 1, 2, "test", note, &s, &err));
    expect(&s, "test/all/total_episodes", 3);
    assert_false(has(&s, "test/b/total_episodes")); /* one tag says nothing that "all" does not */
    for (size_t i = 0; i < 3; i++)
        tinkc_group_free(all[i]);
}

static void count_tags(const char *name, double value, void *user)
{
    (void)value;
    *(size_t *)user += strstr(name, "/total_turns") != NULL;
}

/* A turn is what a rollout says; one that says nothing sensible has none. */
TEST(a_batch_has_numbers_of_32_tags)
{
    enum { N = 34 };
    tinkc_error err = { 0 };
    tinkc_group *all[N];
    size_t tags = 0;
    for (size_t i = 0; i < N; i++) {
        char lines[400];
        (void)snprintf(lines, sizeof lines,
                       ONE(0, 0, "t%zu", "\"total_reward\":1,\"turns\":-3")
                           ONE(0, 1, "t%zu", "\"total_reward\":1,\"turns\":0"),
                       i, i);
        all[i] = group(lines);
        assert_true(tinkc_group_at(all[i], 0)->turns == 0 && tinkc_group_at(all[i], 1)->turns == 0);
    }
    assert_true(tinkc_recipe_metrics((const tinkc_group *const *)all, N, "env", count_tags, &tags, &err));
    assert_int_equal(tags, 1 + 32);
    for (size_t i = 0; i < N; i++)
        tinkc_group_free(all[i]);
}
