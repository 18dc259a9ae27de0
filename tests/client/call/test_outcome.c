/* test_outcome.c - combining parts of a pass: the reductions and their vectors. */
#include "client/call/outcome.h"

#include <math.h>

#include "support/client/api_support.h"

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
    assert_true(tkc_fwdbwd_combine(&out, parts, b ? 2 : 1, &arena, NULL, &err));
    assert_ok(&err);
    return out;
}

static double get(const tinkc_fwdbwd *p, const char *name)
{
    return tinkc_fwdbwd_metric(p, name, -777);
}

TEST(metrics_follow_their_reduction)
{
    const metric first[] = { { "a:mean", 1 }, { "u:unique", 7 },       { "only:sum", 1 }, { "x:foo", 1 },
                             { "s:sum", 2 },  { "m:min", 4 },          { "M:max", 4 },    { "k:slack", 1 },
                             { "plain", 5 },  { "two:colons:mean", 5 } };
    const metric second[] = { { "a:mean", 2 },   { "u:unique", 9 },       { "x:foo", 1 },   { "s:sum", 3 },
                              { "m:min", 3 },    { "M:max", NAN },        { "k:slack", 2 }, { "plain", 6 },
                              { "late:sum", 1 }, { "two:colons:mean", 5 } };
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

TEST(no_weight_is_an_ordinary_mean)
{
    tinkc_fwdbwd a = make_part(0, &(metric){ "a:mean", 1 }, 1);
    tinkc_fwdbwd b = make_part(0, &(metric){ "a:mean", 2 }, 1);
    tinkc_fwdbwd all = combine(&a, &b);
    assert_true(get(&all, "a:mean") == 1.5);
}

TEST(hashes_are_those_of_python)
{
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
        { { 4.611686018427388e+18 }, 1, INT64_C(6909455589863252355) },
        { { -4.611686018427388e+18 }, 1, INT64_C(8078679518589016365) },
        { { 2.305843009213694e+18 }, 1, INT64_C(-6644214454873602895) },
        { { -2.305843009213694e+18 }, 1, INT64_C(8078679518589016365) },
        { { -2.0 }, 1, INT64_C(8078679518589016365) },
        { { 1.0, 1.0 }, 2, INT64_C(8389048192121911274) },
        { { -5.0, 7.0 }, 2, INT64_C(-5576467919967662750) },
        { { 9.1e+18 }, 1, INT64_C(3508265400270956188) },
        { { 2.0, 2.0, 1.0 }, 3, INT64_C(-1579939305822132846) },
        { { 6180511050148703232.0, -1999896 }, 2, 1546275796 }, /* would be -1 */
    };
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        tinkc_error err = { 0 };
        int64_t hash;
        assert_true(tkc_hash_unordered(vectors[i].v, vectors[i].n, &hash, &arena, &err));
        assert_true(hash == vectors[i].hash);
    }
    tinkc_error err = { 0 };
    int64_t hash;
    static const double bad[] = { NAN, INFINITY, -INFINITY, 9.2e18, -9.2e18 };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(tkc_hash_unordered(&bad[i], 1, &hash, &arena, &err));
    assert_ok(&err);
}

TEST(one_example_weighs_one)
{
    const metric first[] = { { "a:mean", 1 }, { "h:hash_unordered", 3 }, { "n:hash_unordered", NAN }, { "m:min", 1 },
                             { "M:max", 9 },  { "p:min", NAN } };
    const metric second[] = {
        { "a:mean", 2 }, { "h:hash_unordered", 1 }, { "n:hash_unordered", 1 }, { "m:min", 5 }, { "M:max", 2 },
        { "p:min", 1 }
    };
    tinkc_fwdbwd a = make_part(1, first, 6), b = make_part(0, second, 6), all = combine(&a, &b);
    assert_true(get(&all, "a:mean") == 1); /* all the weight is the first's */
    assert_true(get(&all, "m:min") == 1 && get(&all, "M:max") == 9 && isnan(get(&all, "p:min")));
    assert_true(get(&all, "h:hash_unordered") == (double)INT64_C(-1440771752368011620));
    assert_true(get(&all, "n:hash_unordered") == -777);
}

/* ---- reading a part ---- */

static const char part_json[] = "{\"loss_fn_output_type\":\"T\",\"loss_fn_outputs\":["
                                "{\"logprobs\":{\"data\":[1,2],\"dtype\":\"float32\",\"shape\":[2]},"
                                "\"n\":{\"data\":[3],\"dtype\":\"int64\",\"shape\":[1]}},"
                                "{\"logprobs\":{\"data\":[4],\"dtype\":\"float32\",\"shape\":[1]},"
                                "\"n\":{\"data\":[5],\"dtype\":\"int64\",\"shape\":[1]}}],"
                                "\"metrics\":{\"a:sum\":1,\"b:sum\":2,\"c:sum\":3}}";

static bool read_part(tinkc_fwdbwd *out, const char *json, const tkc_fwdbwd_expected *want, tkc_arena *to,
                      tinkc_error *err)
{
    return tkc_fwdbwd_read(out, (tinkc_bytes){ (const unsigned char *)json, strlen(json) }, false, want, to, err);
}

static float first_float(const tinkc_fwdbwd *p, size_t i, const char *name)
{
    const tinkc_tensor *t = tinkc_fwdbwd_output(p, i, name);
    return t ? ((const float *)t->data)[0] : -1;
}

TEST(a_part_is_read)
{
    tinkc_error err = { 0 };
    tinkc_fwdbwd p;
    const size_t targets[] = { 2, 1 };
    tkc_fwdbwd_expected want = { .first = 7, .n = 2, .targets = targets };
    assert_true(read_part(&p, part_json, &want, &arena, &err));
    assert_ok(&err);
    assert_string_equal(tinkc_fwdbwd_output_type(&p), "T");
    assert_int_equal(tinkc_fwdbwd_first(&p), 7);
    assert_int_equal(tinkc_fwdbwd_count(&p), 2);
    assert_string_equal(tinkc_fwdbwd_output_name(&p, 0), "logprobs");
    assert_string_equal(tinkc_fwdbwd_output_name(&p, 1), "n");
    assert_null(tinkc_fwdbwd_output_name(&p, 2));
    assert_true(first_float(&p, 0, "logprobs") == 1 && first_float(&p, 1, "logprobs") == 4);
    assert_true(*(const int64_t *)tinkc_fwdbwd_output(&p, 1, "n")->data == 5);
    assert_null(tinkc_fwdbwd_output(&p, 2, "n"));
    assert_null(tinkc_fwdbwd_output(&p, 0, "other"));
    assert_null(tinkc_fwdbwd_output(&p, 0, NULL));
    const tinkc_metrics *m = tinkc_fwdbwd_metrics(&p);
    assert_int_equal(tinkc_metrics_count(m), 3);
    assert_string_equal(tinkc_metrics_name(m, 2), "c:sum");
    assert_true(tinkc_metrics_value(m, 2) == 3 && isnan(tinkc_metrics_value(m, 3)));
    assert_null(tinkc_metrics_name(m, 3));
    assert_true(tinkc_metrics_get(m, NULL, 9) == 9 && tinkc_metrics_get(m, "d", 9) == 9);
    assert_true(tinkc_metrics_get(m, "b:sum", 9) == 2);
    /* examples without targets may have any number of log-probs */
    const size_t none[] = { 0, 0 };
    want.targets = none;
    assert_true(read_part(&p, part_json, &want, &arena, &err));
}

/* Names that differ by one letter are two, in whichever order they come. */
TEST(names_beside_each_other)
{
    static const char json[] = "{\"loss_fn_output_type\":\"T\",\"loss_fn_outputs\":["
                               "{\"b\":{\"data\":[1],\"dtype\":\"float32\",\"shape\":[1]},"
                               "\"a\":{\"data\":[2],\"dtype\":\"float32\",\"shape\":[1]},"
                               "\"c\":{\"data\":[3],\"dtype\":\"float32\",\"shape\":[1]}}],"
                               "\"metrics\":{\"b:sum\":1,\"a:sum\":2,\"c:sum\":3}}";
    tinkc_error err = { 0 };
    tinkc_fwdbwd p, all;
    const size_t targets[] = { 0 };
    assert_true(read_part(&p, json, &(tkc_fwdbwd_expected){ 0, 1, targets }, &arena, &err));
    const tinkc_fwdbwd *parts[] = { &p, &p };
    assert_true(tkc_fwdbwd_combine(&all, parts, 2, &arena, NULL, &err));
    for (int i = 0; i < 2; i++) {
        const tinkc_fwdbwd *r = i ? &all : &p;
        assert_true(first_float(r, 0, "b") == 1 && first_float(r, 0, "a") == 2);
        assert_true(first_float(r, 0, "c") == 3);
        assert_string_equal(tinkc_fwdbwd_output_name(r, 2), "c");
        assert_null(tinkc_fwdbwd_output_name(r, 3));
        assert_int_equal(tinkc_metrics_count(tinkc_fwdbwd_metrics(r)), 3);
        assert_true(get(r, "b:sum") == 1 + i && get(r, "a:sum") == 2 + 2 * i);
        assert_true(get(r, "c:sum") == 3 + 3 * i);
    }
}

TEST(nothing_is_an_empty_part)
{
    assert_int_equal(tinkc_fwdbwd_count(NULL), 0);
    assert_int_equal(tinkc_fwdbwd_first(NULL), 0);
    assert_null(tinkc_fwdbwd_output(NULL, 0, "n"));
    assert_null(tinkc_fwdbwd_output_name(NULL, 0));
    assert_string_equal(tinkc_fwdbwd_output_type(NULL), "");
    assert_null(tinkc_fwdbwd_metrics(NULL));
    assert_true(tinkc_fwdbwd_metric(NULL, "a", 3) == 3);
    assert_int_equal(tinkc_metrics_count(NULL), 0);
    assert_null(tinkc_metrics_name(NULL, 0));
    assert_true(tinkc_metrics_get(NULL, "a", 3) == 3);
}

TEST(counts_must_be_right)
{
    static const struct {
        size_t n, targets[3];
        const char *why;
    } rows[] = {
        { 3, { 2, 1, 1 }, "forward_backward result: 2 outputs for 3 examples" },
        { 1, { 2 }, "forward_backward result: 2 outputs for 1 examples" },
        { 2, { 3, 1 }, "forward_backward result: example 7 has 3 targets and 2 log-probs" },
        { 2, { 2, 2 }, "forward_backward result: example 8 has 2 targets and 1 log-probs" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tinkc_error err = { 0 };
        tinkc_fwdbwd p;
        tkc_fwdbwd_expected want = { .first = 7, .n = rows[i].n, .targets = rows[i].targets };
        assert_false(read_part(&p, part_json, &want, &arena, &err));
        assert_int_equal(err.code, TINKC_E_BAD_RESPONSE);
        assert_string_equal(err.message, rows[i].why);
    }
}

/* ---- parts together ---- */

TEST(outputs_stand_one_after_the_other)
{
    static const char other[] =
        "{\"loss_fn_output_type\":\"U\",\"loss_fn_outputs\":[{\"extra\":{\"data\":[8],\"dtype\":"
        "\"float32\",\"shape\":[1]},\"logprobs\":{\"data\":[6],\"dtype\":\"float32\",\"shape\":[1]}"
        "}],"
        "\"metrics\":{\"a:sum\":10}}";
    tinkc_error err = { 0 };
    tinkc_fwdbwd p, q, all;
    const size_t targets[] = { 2, 1 }, one[] = { 1 };
    assert_true(read_part(&p, part_json, &(tkc_fwdbwd_expected){ 0, 2, targets }, &arena, &err));
    assert_true(read_part(&q, other, &(tkc_fwdbwd_expected){ 2, 1, one }, &arena, &err));
    const tinkc_fwdbwd *parts[] = { &p, &q };
    assert_true(tkc_fwdbwd_combine(&all, parts, 2, &arena, NULL, &err));
    assert_string_equal(tinkc_fwdbwd_output_type(&all), "T");
    assert_int_equal(tinkc_fwdbwd_count(&all), 3);
    static const char *const names[] = { "logprobs", "n", "extra" };
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(tinkc_fwdbwd_output_name(&all, i), names[i]);
    assert_null(tinkc_fwdbwd_output_name(&all, 3));
    static const float logprobs[] = { 1, 4, 6 };
    for (size_t i = 0; i < 3; i++)
        assert_true(first_float(&all, i, "logprobs") == logprobs[i]);
    assert_null(tinkc_fwdbwd_output(&all, 0, "extra"));
    assert_null(tinkc_fwdbwd_output(&all, 2, "n"));
    assert_null(tinkc_fwdbwd_output(&all, 3, "extra"));
    assert_true(first_float(&all, 2, "extra") == 8);
    assert_true(get(&all, "a:sum") == 11 && get(&all, "b:sum") == -777);
    assert_true(tkc_fwdbwd_combine(&all, parts, 0, &arena, NULL, &err)); /* of nothing, nothing */
    assert_int_equal(tinkc_fwdbwd_count(&all), 0);
    assert_string_equal(tinkc_fwdbwd_output_type(&all), "");
}

/* With every size of memory below what it needs, reading and combining fail with MEMORY. */
TEST(memory_that_ends)
{
    tinkc_error err = { 0 };
    tinkc_fwdbwd p, q, all;
    const size_t targets[] = { 2, 1 };
    const metric unique[] = { { "u:unique", 1 }, { "h:hash_unordered", 1 }, { "m:mean", 1 } };
    bool done = false;
    for (size_t max = 16; !done; max += 16) {
        tkc_arena small;
        tkc_arena_init(&small, NULL, max);
        err = (tinkc_error){ 0 };
        done = read_part(&p, part_json, &(tkc_fwdbwd_expected){ 0, 2, targets }, &small, &err);
        assert_int_equal(err.code, done ? 0 : TINKC_E_MEMORY);
        tkc_arena_free(&small);
    }
    done = false;
    q = make_part(1, unique, 3);
    const tinkc_fwdbwd *parts[] = { &q, &q, &q };
    for (size_t max = 16; !done; max += 16) {
        tkc_arena small;
        tkc_arena_init(&small, NULL, max);
        err = (tinkc_error){ 0 };
        done = tkc_fwdbwd_combine(&all, parts, 3, &small, NULL, &err);
        assert_int_equal(err.code, done ? 0 : TINKC_E_MEMORY);
        if (done)
            assert_int_equal(all.metrics.len, 5);
        tkc_arena_free(&small);
    }
}

static int end(void **state)
{
    (void)state;
    tkc_arena_free(&arena);
    return 0;
}

RUN_TESTS(NULL, end)
