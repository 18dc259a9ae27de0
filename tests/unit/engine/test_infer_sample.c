/* test_infer_sample.c - the rules of one draw, and the blocks of the cache. */
#include <math.h>

#include "infer/kv_cache.h"
#include "cpu/sampling.h"
#include "model/philox.h"
#include "support/engine/tiny_model.h"
#include "support/test_case.h"

TEST(philox_has_its_published_values)
{
    uint32_t zero[4] = { 0 }, ones[4] = { ~0u, ~0u, ~0u, ~0u }, x[4];
    tke_philox(zero, zero, x);
    assert_int_equal(x[0], 0x6627e8d5u);
    assert_int_equal(x[3], 0x9b00dbd8u);
    tke_philox(ones, ones, x);
    assert_int_equal(x[0], 0x408f276du);
    assert_int_equal(x[3], 0x6d5451fdu);
    assert_true(tke_uniform(0, 0, 0) * 0x1p53 == 7931020870206717.0);
    assert_true(tke_uniform(1ull << 63, 3, 4) == tke_uniform(0, 3, 4)); /* folded */
}

static tke_norm norm_of(const float *z, size_t n)
{
    double max = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        max = z[i] > max ? z[i] : max;
    for (size_t i = 0; i < n; i++)
        sum += exp(z[i] - max);
    return (tke_norm){ (float)max, (float)log(sum) };
}

/* Which of the logits are kept, as bits. */
static unsigned kept(const float *z, size_t n, double temperature, int64_t top_k, double top_p)
{
    tinkc_error err = { 0 };
    tke_sample_space s;
    tke_sample_rule rule = { temperature, top_p, top_k, 0 };
    unsigned bits = 0;
    assert_true(tke_sample_space_init(&s, n, &err));
    if (!tke_sample_filter(z, n, &rule, &s, &err))
        bits = ~0u;
    for (size_t i = 0; i < n && bits != ~0u; i++)
        bits |= (s.mass[i] > 0 ? 1u : 0u) << i;
    tke_sample_space_free(&s);
    return bits;
}

TEST(top_k_and_top_p_keep_the_most_likely_tokens)
{
    const float inf = INFINITY;
    float z[5] = { 1, 3, 2, 3, 0 }, equal[4] = { 7, 7, 7, 7 }, holes[4] = { -inf, 1, -inf, 2 };
    assert_int_equal(kept(z, 5, 1, -1, 1), 31);
    assert_int_equal(kept(z, 5, 1, 0, 1), 31);
    assert_int_equal(kept(z, 5, 1, 1, 1), 2); /* the tie goes to the lower id */
    assert_int_equal(kept(z, 5, 1, 2, 1), 2 + 8);
    assert_int_equal(kept(z, 5, 1, 3, 1), 2 + 4 + 8);
    assert_int_equal(kept(z, 5, 1, 99, 1), 31);
    assert_int_equal(kept(z, 5, 0, 3, 0.5), 2); /* greedy ignores the rest */
    assert_int_equal(kept(equal, 4, 1, -1, 0.5), 1 + 2);
    assert_int_equal(kept(equal, 4, 1, -1, 0.51), 1 + 2 + 4);
    assert_int_equal(kept(equal, 4, 1, -1, 0), 1);
    assert_int_equal(kept(equal, 4, 1, 2, 0.6), 1 + 2); /* of what top_k left */
    float shares[3] = { logf(0.5f), logf(0.3f), logf(0.2f) };
    assert_int_equal(kept(shares, 3, 1, -1, 0.75), 1 + 2);
    assert_int_equal(kept(shares, 3, 1, -1, 0.9), 1 + 2 + 4); /* the last one, too */
    float halves[5] = { logf(1), logf(8), logf(4), logf(2), logf(1) };
    assert_int_equal(kept(halves, 5, 1, 3, 0.85), 2 + 4); /* 8 + 4 of 8 + 4 + 2 */
    assert_int_equal(kept(halves, 5, 1, 3, 0.86), 2 + 4 + 8);
    assert_int_equal(kept(holes, 4, 1, 3, 1), 2 + 8);
    assert_int_equal(kept(holes, 4, 1e-30, -1, 1), 8);
    float tail[3] = { 0, -45, -50 }; /* top_p of 1 keeps what a sum would not show */
    assert_int_equal(kept(tail, 3, 1, -1, 1), 7);
    assert_int_equal(kept(tail, 3, 1, -1, 0.999999), 1);
    float nothing[2] = { -inf, -inf }, nan[2] = { 0, NAN }, above[2] = { 0, inf };
    assert_int_equal(kept(nothing, 2, 1, -1, 1), ~0u);
    assert_int_equal(kept(nan, 2, 1, -1, 1), ~0u);
    assert_int_equal(kept(above, 2, 0, -1, 1), ~0u);
}

/* No token can be drawn: the greedy draw says so as any other. */
TEST(draws_that_fail)
{
    static const float z[][2] = { { 0, NAN }, { 0, INFINITY }, { -INFINITY, -INFINITY } };
    static const char *const said[] = { "a logit is not finite", "a logit is not finite", "no logit is finite" };
    tinkc_error err = { 0 };
    tke_sample_space s;
    assert_true(tke_sample_space_init(&s, 2, &err));
    for (int warm = 0; warm < 2; warm++)
        for (size_t i = 0; i < 3; i++) {
            tke_sample_rule rule = { warm, 1, -1, 0 };
            int32_t token;
            float lp;
            err = (tinkc_error){ 0 };
            assert_false(
                tke_sample_draw(z[i], 2, (tke_norm){ 0, 0 }, &(tke_draw){ .rule = &rule }, &s, &token, &lp, &err));
            assert_string_equal(err.message, said[i]);
        }
    tke_sample_space_free(&s);
}

/* Each token of a vocabulary of three words, allowed alone, is the one that is drawn. */
TEST(a_token_that_alone_is_allowed_is_drawn)
{
    enum { N = 70 };
    tinkc_error err = { 0 };
    tke_sample_space s;
    float z[N], lp;
    for (int i = 0; i < N; i++)
        z[i] = (float)(i * 37 % N) / 8;
    assert_true(tke_sample_space_init(&s, N, &err));
    for (int32_t i = 0; i < N; i++)
        for (int warm = 0; warm < 2; warm++) {
            uint32_t allowed[3] = { 0 };
            int32_t token = -1;
            tke_sample_rule rule = { warm, 1, -1, 0 };
            allowed[i / 32] = UINT32_C(1) << i % 32;
            tke_draw d = { .rule = &rule, .seed = 1, .allowed = allowed };
            assert_true(tke_sample_draw(z, N, norm_of(z, N), &d, &s, &token, &lp, &err));
            assert_int_equal(token, i);
        }
    tke_sample_space_free(&s);
}

/* A bias decides what is drawn, warm or greedy, and is not in the log-prob. */
TEST(a_bias_decides_the_draw_and_not_the_logprob)
{
    tinkc_error err = { 0 };
    tke_sample_space s;
    const float z[3] = { 0, 1, 4 };
    const tke_bias biases[2] = { { 0, -50 }, { 1, 50 } };
    double sum = exp(0) + exp(1) + exp(4);
    assert_true(tke_sample_space_init(&s, 3, &err));
    for (int warm = 0; warm < 2; warm++) {
        tke_sample_rule rule = { warm, 1, -1, TKE_LOGPROBS_RAW };
        tke_draw d = { .rule = &rule, .seed = 1, .biases = biases, .n_biases = 2 };
        int32_t token = -1;
        float lp;
        assert_true(tke_sample_draw(z, 3, norm_of(z, 3), &d, &s, &token, &lp, &err));
        assert_int_equal(token, 1);
        assert_true(fabs((double)lp - (1 - log(sum))) < 1e-6);
        uint32_t allowed[1] = { 5 }; /* no bias allows a token */
        d.allowed = allowed;
        assert_true(tke_sample_draw(z, 3, norm_of(z, 3), &d, &s, &token, &lp, &err));
        assert_int_equal(token, 2);
    }
    tke_sample_space_free(&s);
}

/* Draws come as often as they should. */
TEST(draws_come_as_often_as_their_probability)
{
    enum { N = 20000 };
    tinkc_error err = { 0 };
    float z[4] = { 0, logf(2), logf(3), logf(4) }, lp;
    double count[4] = { 0 };
    tke_sample_space s;
    tke_sample_rule rule = { 1, 1, -1, 0 };
    assert_true(tke_sample_space_init(&s, 4, &err));
    for (uint32_t i = 0; i < N; i++) {
        int32_t token;
        assert_true(tke_sample_draw(z, 4, norm_of(z, 4),
                                    &(tke_draw){ .rule = &rule, .seed = 5, .sample = i % 7, .position = i }, &s, &token,
                                    &lp, &err));
        count[token]++;
        assert_true(fabs(exp((double)lp) - (token + 1) / 10.0) < 1e-6);
    }
    for (int i = 0; i < 4; i++)
        assert_true(fabs(count[i] / N - (i + 1) / 10.0) < 0.015);
    tke_sample_space_free(&s);
}

/* A log-prob counts every token of the vocabulary, the last one as well, and of what is kept all. */
static void rule_of_last(const float z[3])
{
    tinkc_error err = { 0 };
    tke_sample_space s;
    static const float high[2][3] = { { 0, 1, 4 }, { 4, 1, 3.5f } };
    assert_true(tke_sample_space_init(&s, 3, &err));
    assert_memory_equal(z, high[0], sizeof high[0]);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 3; k += 2) {
            tke_sample_rule rule = { 2, 1, -1, k };
            double sum = 0;
            float lp;
            int32_t token;
            for (int t = 0; t < 3; t++)
                sum += exp((double)high[i][t] / 2);
            assert_true(tke_sample_draw(high[i], 3, norm_of(high[i], 3), &(tke_draw){ .rule = &rule, .seed = 1 }, &s,
                                        &token, &lp, &err));
            assert_true(fabs((double)lp - ((double)high[i][token] / 2 - log(sum))) < 1e-6);
        }
    tke_sample_space_free(&s);
}

TEST(log_prob_settings)
{
    tinkc_error err = { 0 };
    float z[3] = { 0, 1, 4 }, lp;
    int32_t token;
    tke_sample_space s;
    double half = exp(0) + exp(0.5) + exp(2), whole = exp(0) + exp(1) + exp(4);
    assert_true(tke_sample_space_init(&s, 3, &err));
    double want[3] = { 2 - log(half), 4 - log(whole), 0 };
    for (int k = 0; k < 3; k++) {
        tke_sample_rule rule = { 2, 1, 1, k };
        assert_true(
            tke_sample_draw(z, 3, norm_of(z, 3), &(tke_draw){ .rule = &rule, .seed = 1 }, &s, &token, &lp, &err));
        assert_int_equal(token, 2);
        assert_true(fabs((double)lp - want[k]) < 1e-6);
        rule.temperature = 0; /* raw under every setting */
        assert_true(
            tke_sample_draw(z, 3, norm_of(z, 3), &(tke_draw){ .rule = &rule, .seed = 1 }, &s, &token, &lp, &err));
        assert_true(fabs((double)lp - want[1]) < 1e-6);
    }
    double other[3] = { 0.5 - log(half), 1 - log(whole), 0 }; /* of a token that is not the best */
    for (int k = 0; k < 3; k++) {
        tke_sample_rule rule = { 2, 1, -1, k };
        uint32_t allowed[1] = { 2 };
        tke_draw d = { .rule = &rule, .seed = 1, .allowed = allowed };
        assert_true(tke_sample_draw(z, 3, norm_of(z, 3), &d, &s, &token, &lp, &err));
        assert_int_equal(token, 1);
        assert_true(fabs((double)lp - other[k]) < 1e-6);
    }
    rule_of_last(z);
    tke_sample_space_free(&s);
}

TEST(top_logprobs_are_sorted_and_padded)
{
    float z[5] = { 1, 3, 2, 3, 0 }, lp[7];
    int32_t ids[7];
    tke_top_k(z, 5, norm_of(z, 5), 7, ids, lp);
    const int32_t want[7] = { 1, 3, 2, 0, 4, 0, 0 };
    assert_memory_equal(ids, want, sizeof want);
    assert_true(lp[0] == lp[1] && lp[1] > lp[2] && lp[5] == -99999.0f);
    tke_top_k(z, 5, norm_of(z, 5), 2, ids, lp);
    assert_memory_equal(ids, want, 2 * sizeof *want);
    tke_top_k(z, 5, norm_of(z, 5), 1, ids, lp);
    assert_int_equal(ids[0], 1); /* of equals the first */
}

/* ---- blocks ---- */

/* A device that has four blocks and remembers what was copied. */
static int32_t copied_to, copied_from;

static const tke_device_cache *four_blocks(const tke_device_sampler *s)
{
    static const tke_device_cache cache = { .n_blocks = 4, .block_bytes = 64 };
    (void)s;
    return &cache;
}

static bool note_copy(tke_device_sampler *s, int32_t to, int32_t from, tinkc_error *err)
{
    (void)s, (void)err;
    copied_to = to;
    copied_from = from;
    return true;
}

TEST(blocks_are_found_by_content_even_if_names_collide)
{
    static const tke_device_ops ops = { .sampler_cache = four_blocks, .cache_copy = note_copy };
    tinkc_error err = { 0 };
    tke_kv kv;
    int32_t a[16] = { 1 }, b[16] = { 2 };
    assert_true(tke_kv_init(&kv, &ops, NULL, &err));
    assert_int_equal(kv.n_blocks, 4);
    size_t n_buckets = kv.n_buckets;
    kv.n_buckets = 1; /* all names collide */
    int32_t x = tke_kv_take(&kv), y = tke_kv_take(&kv);
    assert_int_equal(x, 0);
    uint64_t first = tke_kv_publish(&kv, x, 9, 0, a), second = tke_kv_publish(&kv, y, 9, first, b);
    assert_true(first != second);
    assert_int_equal(tke_kv_publish(&kv, x, 9, 0, a), first);
    int32_t z = tke_kv_take(&kv); /* a second block of the same name stays nameless */
    assert_int_equal(tke_kv_publish(&kv, z, 9, 0, a), first);
    assert_false(kv.blocks[z].published);
    tke_kv_drop(&kv, z);
    /* found only under its full name */
    assert_int_equal(tke_kv_find(&kv, 8, 0, a), -1);
    assert_int_equal(tke_kv_find(&kv, 9, second, a), -1);
    assert_int_equal(tke_kv_find(&kv, 9, 0, b), -1);
    assert_int_equal(tke_kv_find(&kv, 9, 0, a), x);
    tke_kv_drop(&kv, x);
    tke_kv_drop(&kv, x);
    tke_kv_drop(&kv, y);
    assert_int_equal(kv.n_kept, 2);
    assert_int_equal(tke_kv_available(&kv), 4);
    int32_t p = tke_kv_take(&kv), q = tke_kv_take(&kv), r = tke_kv_take(&kv);
    assert_true(p >= 0 && q >= 0);
    assert_int_equal(r, x); /* the oldest prefix is forgotten */
    assert_int_equal(tke_kv_find(&kv, 9, 0, a), -1);
    assert_int_equal(tke_kv_find(&kv, 9, first, b), y);
    assert_int_equal(tke_kv_take(&kv), -1);
    assert_true(tke_kv_copy(&kv, p, y, &err));
    assert_true(copied_to == p && copied_from == y);
    assert_int_equal(kv.blocks[y].refs, 1);
    tke_kv_drop(&kv, y);
    tke_kv_clear(&kv);
    assert_int_equal(kv.n_kept, 0);
    assert_int_equal(tke_kv_find(&kv, 9, first, b), -1);
    kv.n_buckets = n_buckets;
    tke_kv_free(&kv);
}

/* Prefixes are forgotten in the order of their last use. */
TEST(order_of_prefixes)
{
    static const tke_device_ops ops = { .sampler_cache = four_blocks, .cache_copy = note_copy };
    tinkc_error err = { 0 };
    tke_kv kv;
    int32_t names[3][16] = { { 1 }, { 2 }, { 3 } };
    assert_true(tke_kv_init(&kv, &ops, NULL, &err));
    for (int32_t i = 0; i < 4; i++)
        assert_int_equal(tke_kv_take(&kv), i);
    for (int32_t i = 0; i < 3; i++) {
        tke_kv_publish(&kv, i, 9, 0, names[i]);
        tke_kv_drop(&kv, i);
    }
    assert_int_equal(tke_kv_find(&kv, 9, 0, names[1]), 1); /* out of the middle, to the end */
    tke_kv_drop(&kv, 1);
    static const int32_t order[3] = { 0, 2, 1 };
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(tke_kv_take(&kv), order[i]);
    assert_int_equal(tke_kv_take(&kv), -1);
    tke_kv_free(&kv);
}
