/* test_outcome.c - combining parts of a pass: the reductions and their vectors. */
#include "api/outcome.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/api_support.h"

static tkc_arena arena;

typedef struct metric {
    const char *name;
    double value;
} metric;

static tinkc_fwdbwd make_part(size_t weight, const metric *metrics, size_t n)
{
    tinkc_error err = { 0 };
    tinkc_fwdbwd p = { .type = "ArrayRecord", .n = weight };
    static const char *no_names[1];
    p.names = no_names;
    for (size_t i = 0; i < n; i++)
        tkc_metrics_put(&p.metrics, metrics[i].name, metrics[i].value, &arena, &err);
    assert_ok(&err);
    return p;
}

static tinkc_fwdbwd combine(const tinkc_fwdbwd *a, const tinkc_fwdbwd *b)
{
    tinkc_error err = { 0 };
    tinkc_fwdbwd out;
    const tinkc_fwdbwd *parts[2] = { a, b };
    tkc_fwdbwd_combine(&out, parts, b ? 2 : 1, &arena, NULL, &err);
    assert_ok(&err);
    return out;
}

static double get(const tinkc_fwdbwd *p, const char *name)
{
    return tinkc_fwdbwd_metric(p, name, -777);
}

static void metrics_follow_their_reduction(void **state)
{
    (void)state;
    const metric first[] = { { "a:mean", 1 },         { "u:unique", 7 }, { "only:sum", 1 },
                             { "x:foo", 1 },          { "s:sum", 2 },    { "m:min", 4 },
                             { "M:max", 4 },          { "k:slack", 1 },  { "plain", 5 },
                             { "two:colons:mean", 5 } };
    const metric second[] = { { "a:mean", 2 },         { "u:unique", 9 }, { "x:foo", 1 },
                              { "s:sum", 3 },          { "m:min", 3 },    { "M:max", NAN },
                              { "k:slack", 2 },        { "plain", 6 },    { "late:sum", 1 },
                              { "two:colons:mean", 5 } };
    tinkc_fwdbwd a = make_part(3, first, 10), b = make_part(1, second, 10), all = combine(&a, &b);
    assert_true(get(&all, "a:mean") == 1.25);
    assert_true(get(&all, "k:slack") == 0.75);
    assert_true(get(&all, "u:unique") == 7 && get(&all, "u:unique_1") == 9);
    assert_true(get(&all, "s:sum") == 5 && get(&all, "m:min") == 3);
    assert_true(isnan(get(&all, "M:max")));
    assert_true(get(&all, "only:sum") == -777 && get(&all, "late:sum") == -777);
    assert_true(get(&all, "x:foo") == -777 && get(&all, "plain") == -777);
    assert_int_equal(tinkc_fwdbwd_count(&all), 4);
    all = combine(&a, NULL);
    assert_true(get(&all, "plain") == 5 && get(&all, "two:colons:mean") == 5);
}

static void no_weight_is_an_ordinary_mean(void **state)
{
    (void)state;
    tinkc_fwdbwd a = make_part(0, &(metric){ "a:mean", 1 }, 1);
    tinkc_fwdbwd b = make_part(0, &(metric){ "a:mean", 2 }, 1);
    tinkc_fwdbwd all = combine(&a, &b);
    assert_true(get(&all, "a:mean") == 1.5);
}

static void hashes_are_those_of_python(void **state)
{
    (void)state;
    static const struct {
        double v[3];
        size_t n;
        int64_t hash;
    } vectors[] = {
        { { 0 }, 0, 5740354900026072187 },
        { { 0 }, 1, -8753497827991233192 },
        { { 5 }, 1, -7813438383599366905 },
        { { -1 }, 1, 8078679518589016365 },
        { { 3, 1, 2 }, 3, 529344067295497451 },
        { { 987654321, 123456789 }, 2, 7222972920610024825 },
    };
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        tinkc_error err = { 0 };
        int64_t hash;
        assert_true(tkc_hash_unordered(vectors[i].v, vectors[i].n, &hash, &arena, &err));
        assert_true(hash == vectors[i].hash);
    }
    tinkc_error err = { 0 };
    int64_t hash;
    double bad = NAN;
    assert_false(tkc_hash_unordered(&bad, 1, &hash, &arena, &err));
}

static int end(void **state)
{
    (void)state;
    tkc_arena_free(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metrics_follow_their_reduction),
        cmocka_unit_test(no_weight_is_an_ordinary_mean),
        cmocka_unit_test(hashes_are_those_of_python),
    };
    return cmocka_run_group_tests(tests, NULL, end);
}
