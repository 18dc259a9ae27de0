/* test_loss.c - the losses' arithmetic, token by token, and the checks of their inputs. */
#include <math.h>

#include "support/engine/gspo_numbers.h"
#include "support/test_case.h"
#include "train/loss.h"

static tke_loss parse(const char *name, const char *key, double value)
{
    tinkc_error err = { 0 };
    tke_loss loss;
    tke_loss_key keys[1] = { { tkc_str(key), value } };
    assert_true(tke_loss_parse(&loss, tkc_str(name), keys, key ? 1 : 0, false, &err));
    return loss;
}

static void refused(const char *name, const char *key, double value, const char *text)
{
    tinkc_error err = { 0 };
    tke_loss loss;
    tke_loss_key keys[1] = { { tkc_str(key), value } };
    assert_false(tke_loss_parse(&loss, tkc_str(name), keys, key ? 1 : 0, false, &err));
    assert_int_equal(err.code, TINKC_E_BAD_REQUEST);
    assert_non_null(strstr(err.message, text));
}

TEST(names_and_keys)
{
    assert_true(parse("ppo", NULL, 0).clip_low == 0.8f);
    assert_true(parse("ppo", "clip_high_threshold", 1.5).clip_high == 1.5f);
    assert_true(parse("cispo", NULL, 0).clip_high == 4.0f);
    assert_true(parse("cispo", NULL, 0).clip_low == 0.0f);
    assert_int_equal(parse("dro", NULL, 0).n_keys_given, 0);
    assert_true(parse("dro", NULL, 0).beta == 0.05f);
    assert_true(parse("gspo", NULL, 0).clip_high == 1.2f);
    assert_true(parse("dro", "beta", 0.1).beta == 0.1f);
    refused("grpo", NULL, 0,
            "unknown loss_fn 'grpo'; known: cross_entropy, importance_sampling, "
            "ppo, cispo, dro, gspo");
    refused("stable_reinforce", NULL, 0, "not supported: its formula is not published");
    refused("custom", NULL, 0, "it needs a loss_id in loss_fn_config");
    refused("cross_entropy", "beta", 1, "no key 'beta'");
    refused("importance_sampling", "clip_low_threshold", 1, "no key");
    refused("ppo", "clip_low_threshold", NAN, "not finite");
    refused("ppo", "clip_low_threshold", 1.3, "above");
    refused("dro", "temperature", 1, "no key 'temperature'");
    refused("ppo", "beta", 1, "no key 'beta' for ppo");
    static const char *const names[] = { "importance_sampling", "ppo", "cispo", "dro", "gspo" };
    for (size_t i = 0; i < 5; i++) { /* losses of ratios have metrics of them */
        tke_loss loss = parse(names[i], NULL, 0);
        assert_true(tke_loss_row_of(&loss)->ratios);
    }
    tke_loss plain = parse("cross_entropy", NULL, 0);
    assert_false(tke_loss_row_of(&plain)->ratios);
    char longest[100];
    memset(longest, 'x', 99); /* of a name 60 characters are shown */
    longest[99] = '\0';
    refused(longest, NULL, 0, "unknown loss_fn 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx';");
    refused("dro", longest, 0, "no key 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' for dro");
    refused("dro", longest, NAN,
            "loss_fn_config 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' is not");
    assert_true(parse("ppo", "clip_low_threshold", 1.2f).clip_low == 1.2f); /* equal bounds are fine */
    assert_int_equal(parse("ppo", "clip_low_threshold", 1).n_keys_given, 1);
    assert_true(parse("ppo", NULL, 0).clip_high == 1.2f);
    assert_true(parse("gspo", NULL, 0).clip_low == 0.8f);
    tke_loss loss;
    tinkc_error before = { .code = TINKC_E_STATE };
    assert_false(tke_loss_parse(&loss, tkc_str("ppo"), NULL, 0, false, &before));
    assert_int_equal(before.code, TINKC_E_STATE); /* the first error stays */
    tinkc_error err = { 0 };
    const tke_loss_key both[2] = { { tkc_str("clip_low_threshold"), 0.5 }, { tkc_str("clip_high_threshold"), 3 } };
    assert_true(tke_loss_parse(&loss, tkc_str("cispo"), both, 2, true, &err));
    assert_true(loss.clip_low == 0.5f && loss.clip_high == 3 && loss.n_keys_given == 2);
    assert_true(loss.strict);
}

/* ---- arithmetic ---- */

static void token(const tke_loss *loss, float a, float q, float lp, double want_l, double want_g)
{
    tke_datum d = { .n = 1, .k = 1, .logprobs = &q, .advantages = &a };
    tke_loss_sums sums = { 0 };
    float g = NAN;
    float l = tke_loss_token(loss, &(tke_token){ &d, 0, &lp, NULL }, &g, &sums);
    if (!(fabs((double)l - want_l) < 1e-5 && fabs((double)g - want_g) < 1e-5))
        fail_msg("%s(a %g, q %g, lp %g): %g, %g; wanted %g, %g", tke_loss_row_of(loss)->name, (double)a, (double)q,
                 (double)lp, (double)l, (double)g, want_l, want_g);
    assert_true(sums.loss == (double)l);
    assert_int_equal(sums.n_tokens, 1);
}

TEST(each_loss_has_its_formula)
{
    float up = logf(1.5f), down = logf(0.5f), in = logf(1.1f);
    tke_loss is = parse("importance_sampling", NULL, 0), ppo = parse("ppo", NULL, 0);
    tke_loss cispo = parse("cispo", "clip_high_threshold", 1.2), dro = parse("dro", "beta", 0.1);
    token(&is, 2, -1, -1 + up, -3, -3);
    token(&is, 0, 0, -1000, 0, 0); /* no exponential for what carries nothing */
    token(&is, 0, -1000, 0, 0, 0);
    token(&ppo, 2, -1, -1 + in, -2.2, -2.2);
    token(&ppo, 2, -1, -1 + up, -2.4, 0);   /* above the band, A > 0: no gradient */
    token(&ppo, 2, -1, -1 + down, -1, -1);  /* below, A > 0: gradient */
    token(&ppo, -2, -1, -1 + down, 1.6, 0); /* below, A < 0: none */
    token(&ppo, -2, -1, -1 + up, 3, 3);
    token(&ppo, 1, -1, -1, -1, -1); /* the tie lets it through */
    token(&ppo, 0, 0, -200, 0, 0);
    token(&cispo, 2, -1, -1 + up, -1.2 * 2 * (-1 + up), -2.4);
    token(&cispo, 2, -1, -1 + in, -1.1 * 2 * (-1 + in), -2.2);
    token(&cispo, 0, -1, -3, 0, 0);
    tke_loss gspo = parse("gspo", NULL, 0);
    token(&gspo, 0, -1, -3, 0, 0);
    token(&dro, 2, -1, -0.5f, -(2 * -0.5 - 0.05 * 0.25), -2 + 0.05);
    token(&dro, 0, 0, -7, 0, 0); /* masked */
    token(&dro, 0, -1, -2, 0.05, -0.1);
    dro.strict = true;
    token(&dro, 0, 0, -7, 0.05 * 49, -0.7);
}

TEST(cross_entropy_sums_weighted_log_probs)
{
    tke_loss ce = parse("cross_entropy", NULL, 0);
    float w[6] = { 2, 0, -0.5f, 0, 0, 0 }, lp[3] = { -1, -1e30f, -4 }, g[3];
    tke_datum d = { .n = 2, .k = 3, .weights = w };
    tke_loss_sums sums = { 0 };
    assert_true(tke_loss_token(&ce, &(tke_token){ &d, 0, lp, NULL }, g, &sums) == 2 - 2);
    assert_true(g[0] == -2 && g[1] == 0 && g[2] == 0.5f);
    lp[0] = -INFINITY; /* weight 0 hides anything */
    assert_true(tke_loss_token(&ce, &(tke_token){ &d, 1, lp, NULL }, g, &sums) == 0);
    assert_int_equal(sums.n_loss_tokens, 1);
    assert_int_equal(sums.n_tokens, 2);
    d.weights = NULL;
    assert_true(tke_loss_token(&ce, &(tke_token){ &d, 0, lp, NULL }, g, &sums) == 0);
}

TEST(statistics_ignore_what_is_masked)
{
    tke_loss ppo = parse("ppo", NULL, 0);
    float a[3] = { 1, 1, 0 }, q[3] = { -1, -1, 0 }, g;
    float low[3] = { 0.1f, 0.1f, 0.1f };
    tke_datum d = { .n = 3, .k = 1, .logprobs = q, .advantages = a, .clip_low = low };
    tke_loss_sums sums = { 0 };
    float lps[3] = { -1 + logf(2.0f), -1 + logf(0.5f), -5 };
    for (size_t i = 0; i < 3; i++)
        tke_loss_token(&ppo, &(tke_token){ &d, i, &lps[i], NULL }, &g, &sums);
    assert_int_equal(sums.n_clipped, 1); /* 2.0; 0.5 is inside by its own threshold */
    assert_int_equal(sums.n_ratio, 2);
    assert_true(fabs(sums.ratio - 2.5) < 1e-5 && fabs(sums.ratio_max - 2) < 1e-5);
    assert_true(fabs(sums.kl) < 1e-6);
    float far = 500; /* the ratio overflows, the clipped loss does not */
    assert_true(isfinite(tke_loss_token(&ppo, &(tke_token){ &d, 0, &far, NULL }, &g, &sums)) && g == 0);
    assert_true(isfinite(sums.ratio) && isfinite(sums.ratio_max));
}

/* What each loss counts: tokens with loss, ratios, clipped ones, KL. */
TEST(each_loss_counts_its_tokens_and_ratios)
{
    static const char *const names[] = { "importance_sampling", "ppo", "cispo", "dro" };
    float a[4] = { 1, 0, -2, 0.5f }, q[4] = { -1, -1, -2, -1 };
    float lp[4] = { -1 + logf(1.5f), -3, -2 + logf(0.5f), -1 + logf(1.1f) };
    static const int64_t clipped[4] = { 0, 2, 0, 0 };
    for (int i = 0; i < 4; i++) {
        tke_loss loss = parse(names[i], NULL, 0);
        tke_datum d = { .n = 4, .k = 1, .logprobs = q, .advantages = a };
        tke_loss_sums sums = { 0 };
        bool dro = i == 3; /* a token with a log-prob takes part without an advantage */
        for (size_t k = 0; k < 4; k++) {
            float g;
            tke_loss_token(&loss, &(tke_token){ &d, k, &lp[k], NULL }, &g, &sums);
        }
        double masked = exp(-2);
        assert_int_equal(sums.n_tokens, 4);
        assert_int_equal(sums.n_loss_tokens, 3);
        assert_int_equal(sums.n_ratio, dro ? 4 : 3);
        assert_int_equal(sums.n_clipped, clipped[i]);
        assert_true(fabs(sums.ratio - 3.1 - (dro ? masked : 0)) < 1e-5);
        assert_true(fabs(sums.ratio_max - 1.5) < 1e-5);
        assert_true(fabs(sums.kl + log(1.5 * 0.5 * 1.1) - (dro ? 2 : 0)) < 1e-5);
    }
    for (int i = 0; i < 3; i++) { /* of dro's tokens those with an advantage carry loss, 1 or any */
        static const float of[3] = { 0, 1, -3 };
        tke_loss dro = parse("dro", NULL, 0);
        tke_datum one = { .n = 1, .k = 1, .logprobs = q, .advantages = &of[i] };
        tke_loss_sums counted = { 0 };
        float g;
        tke_loss_token(&dro, &(tke_token){ &one, 0, &lp[0], NULL }, &g, &counted);
        assert_int_equal(counted.n_loss_tokens, i > 0);
    }
    tke_loss_sums sums = { 0 }; /* a first ratio below zero's default is the largest so far */
    tke_loss is = parse("importance_sampling", NULL, 0);
    float one = 1, zero = 0, far = 1000, g;
    tke_datum d = { .n = 1, .k = 1, .logprobs = &zero, .advantages = &one };
    float low = -3;
    tke_loss_token(&is, &(tke_token){ &d, 0, &low, NULL }, &g, &sums);
    assert_true(fabs(sums.ratio_max - exp(-3)) < 1e-6);
    tke_loss_token(&is, &(tke_token){ &d, 0, &far, NULL }, &g, &sums);
    assert_true(sums.ratio_max == 1e30);
}

/* Bounds of a token of its own, above and below; where they cross, the upper one. */
TEST(bounds_of_tokens)
{
    tke_loss cispo = parse("cispo", NULL, 0);
    float a = 1, q = 0, low[3] = { 0.5f, 2, 3 }, high[3] = { 1.5f, 4, 1 }, lp = logf(1.75f);
    static const float want[3] = { 1.5f, 2, 1 };
    for (int i = 0; i < 3; i++) {
        tke_datum d = { .n = 1, .k = 1, .logprobs = &q, .advantages = &a, .clip_low = &low[i], .clip_high = &high[i] };
        tke_loss_sums sums = { 0 };
        float g;
        tke_loss_token(&cispo, &(tke_token){ &d, 0, &lp, NULL }, &g, &sums);
        assert_true(g == -want[i]);
        assert_int_equal(sums.n_clipped, 1);
    }
}

/* Whole sequences against numbers that a script computed in float64. */
TEST(gspo_agrees_with_its_float64_numbers)
{
    enum { N = sizeof gspo_numbers / sizeof *gspo_numbers };
    tke_loss gspo = parse("gspo", NULL, 0);
    float lp[N], q[N], a[N];
    for (size_t first = 0, n; first < N; first += n) {
        tke_loss_whole whole = { 0 };
        tke_loss_sums sums = { 0 };
        for (n = 0; first + n < N && gspo_numbers[first + n].sequence == gspo_numbers[first].sequence; n++) {
            lp[n] = gspo_numbers[first + n].lp;
            q[n] = gspo_numbers[first + n].q;
            a[n] = gspo_numbers[first + n].a;
        }
        tke_datum d = { .n = n, .k = 1, .logprobs = q, .advantages = a };
        for (size_t i = 0; i < n; i++)
            tke_loss_row_of(&gspo)->gather(&(tke_token){ &d, i, &lp[i], NULL }, &whole);
        for (size_t i = 0; i < n; i++) {
            float g = NAN;
            float l = tke_loss_token(&gspo, &(tke_token){ &d, i, &lp[i], &whole }, &g, &sums);
            assert_true(fabs((double)l - gspo_numbers[first + i].loss) < 2e-6);
            assert_true(fabs((double)g - gspo_numbers[first + i].g) < 2e-6);
        }
        assert_int_equal(sums.n_clipped == 0, gspo_numbers[first].sequence == 0);
    }
    float far = 400, zero = 0, one = 1, g; /* a ratio that would overflow is bounded */
    tke_datum d = { .n = 1, .k = 1, .logprobs = &zero, .advantages = &one };
    tke_loss_whole whole = { .log_ratio = 400, .n = 1 };
    tke_loss_sums sums = { 0 };
    assert_true(tke_loss_token(&gspo, &(tke_token){ &d, 0, &far, &whole }, &g, &sums) == -1.2f);
    assert_true(g == 0);
    float minus = -1; /* a bad one counts e^10 times, not more */
    d.advantages = &minus;
    float most = tke_loss_token(&gspo, &(tke_token){ &d, 0, &far, &whole }, &g, &sums);
    assert_true(fabs((double)most - 22026.4658) < 0.01 && g == most);
}

/* ---- inputs ---- */

static const int64_t targets[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
static const float floats[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };

static bool bind(const char *name, const tke_input *inputs, size_t n, bool forward_only, tinkc_error *err)
{
    tke_loss loss = parse(name, NULL, 0);
    tke_datum d = { .n = 4 };
    *err = (tinkc_error){ 0 };
    return tke_datum_bind(&d, &loss, inputs, n, forward_only, 7, err);
}

static void bind_fails(const char *name, const tke_input *inputs, size_t n, const char *text)
{
    tinkc_error err;
    assert_false(bind(name, inputs, n, false, &err));
    assert_int_equal(err.code, TINKC_E_BAD_REQUEST);
    if (!strstr(err.message, text) || !strstr(err.message, "datum 7"))
        fail_msg("wanted '%s', got '%s'", text, err.message);
}

static tke_input input(const char *name, bool is_float, size_t rows, size_t cols)
{
    return (tke_input){ tkc_str(name), is_float, is_float ? (const void *)floats : targets, rows, cols, 0 };
}

TEST(each_loss_names_its_inputs)
{
    tinkc_error err;
    tke_input t = input("target_tokens", false, 4, 1), w = input("weights", true, 4, 1);
    tke_input q = input("logprobs", true, 4, 1), a = input("advantages", true, 4, 1);
    assert_true(bind("cross_entropy", (tke_input[]){ t, w }, 2, false, &err));
    assert_true(bind("cross_entropy", &t, 1, true, &err));
    assert_true(bind("ppo", (tke_input[]){ t, q, a }, 3, false, &err));
    assert_true(bind("ppo", (tke_input[]){ t, q, a, input("mask", true, 9, 1) }, 4, false, &err));
    assert_true(bind("cispo", (tke_input[]){ a, t, input("clip_low_threshold", true, 4, 1), q }, 4, false, &err));
    bind_fails("cross_entropy", &t, 1, "'weights' is missing");
    bind_fails("cross_entropy", &w, 1, "'target_tokens' is missing");
    bind_fails("ppo", (tke_input[]){ t, q }, 2, "'advantages' is missing");
    bind_fails("cross_entropy", (tke_input[]){ t, w, q }, 3, "takes no input 'logprobs'");
    char longest[100];
    memset(longest, 'x', 99); /* of a name 60 characters are shown */
    longest[99] = '\0';
    bind_fails("cross_entropy", (tke_input[]){ t, w, input(longest, true, 4, 1) }, 3,
               "no input 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'");
    bind_fails("dro", (tke_input[]){ t, q, a, input("clip_low_threshold", true, 4, 1) }, 4, "takes no input");
    bind_fails("cross_entropy", (tke_input[]){ t, w, w }, 3, "twice");
    bind_fails("cross_entropy", (tke_input[]){ t, input("weights", true, 3, 1) }, 2,
               "'weights' has length 3, model_input has 4");
    bind_fails("cross_entropy", (tke_input[]){ t, input("weights", false, 4, 1) }, 2, "must be float32");
    bind_fails("cross_entropy", (tke_input[]){ input("target_tokens", true, 4, 1), w }, 2, "must be int64");
    bind_fails("ppo", (tke_input[]){ input("target_tokens", false, 4, 2), q, a }, 3, "one column");
    bind_fails("cross_entropy", (tke_input[]){ t, input("weights", true, 4, 2) }, 2, "columns");
    bind_fails("cross_entropy", (tke_input[]){ t, input("weights", true, 4, 0) }, 2, "one column, not 0");
    bind_fails("ppo", (tke_input[]){ t, q, input("advantages", true, 4, 2) }, 3, "one column, not 2");
    assert_true(bind("cross_entropy",
                     (tke_input[]){ input("target_tokens", false, 4, 2), input("weights", true, 4, 2) }, 2, false,
                     &err));
    for (int i = 0; i < 2; i++) /* thresholds of tokens */
        assert_true(bind(
            i ? "ppo" : "gspo",
            (tke_input[]){ t, q, a, input("clip_low_threshold", true, 4, 1), input("clip_high_threshold", true, 4, 1) },
            5, false, &err));
    bind_fails("importance_sampling", (tke_input[]){ t, q, a, input("clip_high_threshold", true, 4, 1) }, 4,
               "importance_sampling takes no input 'clip_high_threshold'");
    bind_fails("ppo", (tke_input[]){ t, a }, 2, "'logprobs' is missing; ppo needs it");
    bind_fails("ppo", (tke_input[]){ q, a }, 2, "'target_tokens' is missing; ppo needs it");
    assert_false(bind("ppo", (tke_input[]){ t, q }, 2, true, &err)); /* forward as well */
    float bad[8] = { 1, 2, 3, 4, 5, 6, 7, NAN };
    tke_input last = input("weights", true, 4, 2);
    last.data = bad;
    bind_fails("cross_entropy", (tke_input[]){ input("target_tokens", false, 4, 2), last }, 2,
               "'weights' holds NaN or infinity at 7");
    tke_loss strict = parse("ppo", NULL, 0);
    strict.strict = true;
    tke_loss plain = parse("cross_entropy", NULL, 0);
    tke_datum d = { .n = 4 };
    err = (tinkc_error){ 0 };
    assert_false(tke_datum_bind(&d, &strict, (tke_input[]){ t, q, a, input("mask", true, 4, 1) }, 4, false, 0, &err));
    assert_string_equal(err.message, "datum 0: ppo takes no input 'mask'");
    strict.strict = false;
    err = (tinkc_error){ 0 };
    assert_true(tke_datum_bind(
        &d, &strict,
        (tke_input[]){ t, q, a, input("clip_low_threshold", true, 4, 1), input("clip_high_threshold", true, 4, 1) }, 5,
        false, 0, &err));
    assert_true(d.targets == targets && d.logprobs == floats && d.advantages == floats && d.clip_low == floats &&
                d.clip_high == floats && !d.weights && d.k == 1);
    tke_input two[] = { input("target_tokens", false, 4, 2), input("weights", true, 4, 2) };
    assert_true(tke_datum_bind(&d, &plain, two, 2, false, 0, &err));
    assert_true(d.targets == targets && d.weights == floats && !d.logprobs && d.k == 2);
    bad[2] = NAN;
    w.data = bad;
    bind_fails("cross_entropy", (tke_input[]){ t, w }, 2, "NonFiniteInTensor");
}

TEST(targets_without_weight_may_be_anything)
{
    tinkc_error err = { 0 };
    int32_t tokens[2] = { 0, 1 };
    int64_t t[2] = { -100, 5 };
    float w[2] = { 0, 1 };
    tke_datum d = { .tokens = tokens, .n = 2, .k = 1, .targets = t, .weights = w };
    assert_true(tke_datum_check(&d, 10, 100, 0, &err));
    d.weights = NULL; /* a forward pass without weights */
    assert_true(tke_datum_check(&d, 10, 100, 0, &err));
    d.weights = w;
    w[0] = 0.1f;
    assert_false(tke_datum_check(&d, 10, 100, 0, &err));
    assert_non_null(strstr(err.message, "target -100"));
    err = (tinkc_error){ 0 };
    t[0] = 9; /* the last number of the vocabulary, and the last target */
    t[1] = 10;
    assert_false(tke_datum_check(&d, 10, 100, 3, &err));
    assert_string_equal(err.message, "datum 3: target 10 at 1 is outside the vocabulary of 10");
    err = (tinkc_error){ 0 };
    assert_false(tke_datum_check(&d, 10, 1, 0, &err));
    assert_non_null(strstr(err.message, "PromptTooLong"));
}

/* Without an advantage only dro has a gradient: where there is a log-prob, and if it is strict
 * everywhere. A target outside the vocabulary there would be computed as one with log-prob 0. */
TEST(targets_of_dro)
{
    static const struct {
        const char *loss;
        bool strict, ok[2];
    } rows[] = { { "ppo", false, { true, true } },
                 { "importance_sampling", true, { true, true } },
                 { "dro", false, { true, false } },
                 { "dro", true, { false, false } } };
    int32_t tokens[2] = { 0, 1 };
    int64_t wrong[2] = { -100, 5 };
    float advantages[2] = { 0, 1 }, logprobs[2] = { 0, -1 };
    tke_input t = input("target_tokens", false, 2, 1), q = input("logprobs", true, 2, 1),
              a = input("advantages", true, 2, 1);
    t.data = wrong;
    q.data = logprobs;
    a.data = advantages;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int with = 0; with < 2; with++) { /* a log-prob of the first */
            tinkc_error err = { 0 };
            tke_loss loss = parse(rows[i].loss, NULL, 0);
            tke_datum d = { .tokens = tokens, .n = 2 };
            loss.strict = rows[i].strict;
            logprobs[0] = with ? -1 : 0;
            assert_true(tke_datum_bind(&d, &loss, (tke_input[]){ t, q, a }, 3, false, 0, &err));
            if (tke_datum_check(&d, 10, 100, 0, &err) != rows[i].ok[with])
                fail_msg("%s %d %d: %s", rows[i].loss, rows[i].strict, with, err.message);
            wrong[0] = 9; /* a token is always right */
            err = (tinkc_error){ 0 };
            assert_true(tke_datum_check(&d, 10, 100, 0, &err));
            wrong[0] = -100;
        }
}
