/* test_infer_bits.c - a sample depends on weights, prompt, parameters and seed alone, and its
 * log-probs are the training forward's. Also: stop rules, prompt log-probs, cancelling, memory. */
#include <math.h>

#include "infer/infer_state.h"
#include "support/engine/on_device.h"
#include "support/engine/tiny_model.h"
#include "support/test_case.h"
#include "train/training.h"

enum { VOCAB = 101, PROMPT = 70, TOKENS = 40 };

typedef struct world {
    char *folder;
    tke_model *model;
    tke_device *device;
    tke_device_model *loaded;
    tke_adapter *adapter;
    tke_snapshot *snapshot, *other;
    int32_t prompt[200];
} world;

static tke_adapter *adapter_of(const world *w, int32_t rank, uint64_t seed)
{
    tinkc_error err = { 0 };
    tke_adapter_spec spec = { .rank = rank, .train = 7, .seed = seed };
    tke_adapter *a = tke_adapter_new(w->device, w->model, &spec, &err);
    assert_non_null(a);
    uint64_t r = seed + 1000;
    const tke_lora_layout *l = tke_adapter_lora(a)->layout;
    for (size_t i = 0; i < l->n_floats; i++)
        adapter_weights(a)[i] += 0.03f * tiny_normal(&r);
    return a;
}

/* All tests run on the first, those of bits on every one. */
static const tiny_model families[] = {
    { .family = "llama",
      .seed = 5,
      .layers = 3,
      .dtype = "BF16",
      .rope = "\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, "
              "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 64" },
    { .family = "qwen3_moe", .seed = 6, .layers = 3, .dtype = "BF16" },
    { .family = "gpt_oss",
      .seed = 7,
      .layers = 3,
      .dtype = "BF16",
      .mxfp4 = true,
      .rope = "\"rope_type\": \"yarn\", \"factor\": 8.0, "
              "\"original_max_position_embeddings\": 64, \"truncate\": false" },
    { .family = "qwen3_5_text", .seed = 7, .layers = 3, .dtype = "BF16" },
    { .family = "qwen3_5_moe_text", .seed = 8, .layers = 2, .dtype = "BF16" },
    { .family = "nemotron_h", .seed = 9, .layers = 5, .dtype = "BF16" },
};
static const tiny_model *family = &families[0];

static int setup(void **state)
{
    static world w;
    tinkc_error err = { 0 };
    uint64_t r = 12;
    w.folder = tiny_model_make(family);
    w.model = tke_model_open(w.folder, &err);
    assert_string_equal(err.message, "");
    w.device = device_cpu(2);
    w.loaded = device_load(w.device, w.model);
    w.adapter = adapter_of(&w, 4, 1);
    w.snapshot = tke_snapshot_take(w.adapter, &err);
    tke_adapter *b = adapter_of(&w, 9, 2);
    w.other = tke_snapshot_take(b, &err);
    tke_adapter_free(b);
    for (int i = 0; i < 200; i++)
        w.prompt[i] = (int32_t)(tiny_random(&r) % VOCAB);
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    tke_snapshot_drop(w->snapshot);
    tke_snapshot_drop(w->other);
    tke_adapter_free(w->adapter);
    device_unload(w->loaded);
    tke_device_close(w->device);
    tke_model_drop(w->model);
    tiny_model_remove(w->folder);
    return 0;
}

static tke_infer *engine_of(const world *w, tke_infer_options o)
{
    tinkc_error err = { 0 };
    if (!o.kv_bytes)
        o.kv_bytes = 4 << 20;
    tke_infer *e = tke_infer_new(w->loaded, &o, &err);
    assert_non_null(e);
    return e;
}

static tke_gen_request request_of(const world *w)
{
    return (tke_gen_request){ .snapshot = w->snapshot,
                              .prompt = w->prompt,
                              .n_prompt = PROMPT,
                              .n_samples = 3,
                              .max_tokens = TOKENS,
                              .seed = 42,
                              .never_stop = true,
                              .rule = { .temperature = 1, .top_p = 1 } };
}

static tke_gen *add(tke_infer *e, const tke_gen_request *r)
{
    tinkc_error err = { 0 };
    tke_gen *g = tke_infer_add(e, r, &err);
    assert_string_equal(err.message, "");
    return g;
}

static void finish_all(tke_infer *e)
{
    while (tke_infer_step(e))
        ;
    assert_int_equal(tke_infer_n_unfinished(e), 0);
}

static void assert_same(const tke_gen *a, const tke_gen *b)
{
    assert_int_equal(tke_gen_error(a)->code, 0);
    assert_int_equal(tke_gen_error(b)->code, 0);
    size_t n = tke_gen_n_samples(a) < tke_gen_n_samples(b) ? tke_gen_n_samples(a) : tke_gen_n_samples(b);
    for (size_t i = 0; i < n; i++) {
        tke_sequence x = tke_gen_sequence(a, i), y = tke_gen_sequence(b, i);
        assert_int_equal(x.n, y.n);
        assert_int_equal(x.stopped, y.stopped);
        assert_memory_equal(x.tokens, y.tokens, x.n * sizeof *x.tokens);
        assert_memory_equal(x.logprobs, y.logprobs, x.n * sizeof *x.logprobs);
    }
}

/* The request alone, with defaults. Its engine is kept so that results stay readable. */
static tke_gen *alone(const world *w, const tke_gen_request *r, tke_infer **e)
{
    *e = engine_of(w, (tke_infer_options){ .no_prefix_cache = true });
    tke_gen *g = add(*e, r);
    finish_all(*e);
    return g;
}

/* ---- against the trainer ---- */

static void forward(const world *w, const int32_t *tokens, size_t n, float *out)
{
    tinkc_error err = { 0 };
    int64_t targets[256];
    for (size_t i = 0; i < n; i++)
        targets[i] = i + 1 < n ? tokens[i + 1] : 0;
    tke_trainer *t = tke_trainer_new(w->loaded, &(tke_trainer_options){ 0 }, &err);
    tke_datum d = { .tokens = tokens, .n = n, .k = 1, .targets = targets };
    tke_pass p = { .adapter = w->adapter, .data = &d, .n_data = 1 }, *list[1] = { &p };
    tke_trainer_run(t, list, 1);
    assert_string_equal(p.err.message, "");
    memcpy(out, p.out.logprobs, n * sizeof *out);
    tke_pass_free(&p);
    tke_trainer_free(t);
}

TEST(log_probs_are_the_trainers)
{
    world *w = *state;
    tke_infer *e;
    tke_gen_request r = request_of(w);
    r.prompt_logprobs = true;
    tke_gen *g = alone(w, &r, &e);
    for (size_t i = 0; i < 3; i++) {
        int32_t tokens[PROMPT + TOKENS];
        float lp[PROMPT + TOKENS];
        tke_sequence s = tke_gen_sequence(g, i);
        assert_int_equal(s.n, TOKENS);
        memcpy(tokens, w->prompt, PROMPT * sizeof *tokens);
        memcpy(tokens + PROMPT, s.tokens, TOKENS * sizeof *tokens);
        forward(w, tokens, PROMPT + TOKENS, lp);
        assert_memory_equal(s.logprobs, lp + PROMPT - 1, TOKENS * sizeof *lp);
        assert_true(isnan(tke_gen_prompt_logprobs(g)[0]));
        assert_memory_equal(tke_gen_prompt_logprobs(g) + 1, lp, (PROMPT - 1) * sizeof *lp);
    }
    tke_infer_free(e);
}

/* ---- against itself in other circumstances ---- */

static void compare(const world *w, const tke_gen_request *r, tke_infer_options o)
{
    tke_infer *e, *f = engine_of(w, o);
    tke_gen *want = alone(w, r, &e), *got = add(f, r);
    finish_all(f);
    assert_same(want, got);
    tke_infer_free(e);
    tke_infer_free(f);
}

TEST(chunks_change_no_bit)
{
    world *w = *state;
    tke_gen_request r = request_of(w);
    for (size_t chunk = 1; chunk < 80; chunk = chunk * 2 + 3)
        compare(w, &r, (tke_infer_options){ .prefill_chunk = chunk });
}

/* However few rows a step may have: the same bits, and never more rows. */
TEST(rows_of_a_step_are_bounded)
{
    world *w = *state;
    tke_gen_request r = request_of(w);
    for (size_t rows = 1; rows < 80; rows = rows * 2 + 3)
        compare(w, &r, (tke_infer_options){ .max_rows = rows });
    enum { ROWS = 5, SAMPLES = 8 };
    tke_infer *e = engine_of(w, (tke_infer_options){ .max_rows = ROWS });
    r.n_samples = SAMPLES;
    add(e, &r);
    add(e, &r);
    for (uint64_t prefilled = 0, decoded = 0; tke_infer_step(e);) {
        tke_infer_stats now = tke_infer_get_stats(e);
        assert_true(now.tokens_prefilled - prefilled <= ROWS);
        /* the last row of each of the two prompts gives its samples their first tokens */
        assert_true(now.tokens_decoded - decoded <= ROWS - 2 + 2 * SAMPLES);
        /* (where prompts are cut at an edge, one may end in a single row, which counts as decoded) */
        if (now.tokens_prefilled == prefilled && w->model->layers[0].mixer == TKE_MIX_ATTENTION)
            assert_true(now.tokens_decoded - decoded <= ROWS || decoded < 2 * SAMPLES);
        prefilled = now.tokens_prefilled;
        decoded = now.tokens_decoded;
    }
    assert_int_equal(tke_infer_get_stats(e).tokens_decoded, 2 * SAMPLES * TOKENS);
    tke_infer_free(e);
}

TEST(threads_change_no_bit)
{
    world *w = *state;
    tke_gen_request r = request_of(w);
    for (int32_t n = 1; n <= 4; n++) {
        world other = *w;
        other.device = device_cpu(n);
        other.loaded = device_load(other.device, w->model);
        compare(&other, &r, (tke_infer_options){ 0 });
        device_unload(other.loaded);
        tke_device_close(other.device);
    }
}

/* Samples of a request do not depend on how many there are, and differ from each other. */
TEST(samples_have_the_prefix_property)
{
    world *w = *state;
    tke_infer *e, *f;
    tke_gen_request few = request_of(w), many = few;
    few.n_samples = 2;
    many.n_samples = 7;
    tke_gen *a = alone(w, &few, &e), *b = alone(w, &many, &f);
    assert_same(a, b);
    assert_memory_not_equal(tke_gen_sequence(b, 5).tokens, tke_gen_sequence(b, 6).tokens, TOKENS * sizeof(int32_t));
    tke_infer_free(e);
    tke_infer_free(f);
}

/* Other requests of other adapters come and go meanwhile, in two orders of arrival. */
TEST(company_changes_no_bit)
{
    world *w = *state;
    tke_infer *e;
    tke_gen_request r = request_of(w), noise = r;
    tke_gen *want = alone(w, &r, &e), *got = NULL;
    for (int order = 0; order < 2; order++) {
        tke_infer *f = engine_of(w, (tke_infer_options){ .prefill_chunk = 32 });
        if (order == 0)
            got = add(f, &r);
        for (size_t i = 0; i < 6; i++) {
            noise.snapshot = i % 3 == 0 ? NULL : i % 3 == 1 ? w->other : w->snapshot;
            noise.prompt = w->prompt + i;
            noise.n_prompt = 5 + 20 * i;
            noise.max_tokens = 3 + 9 * i;
            noise.seed = i;
            noise.rule.temperature = i % 2 ? 0.7 : 0;
            noise.topk_prompt_logprobs = i % 2 ? 3 : 0;
            noise.n_samples = 1 + i % 3;
            add(f, &noise);
            tke_infer_step(f);
            if (order == 1 && i == 3)
                got = add(f, &r);
        }
        finish_all(f);
        assert_same(want, got);
        tke_infer_free(f);
    }
    tke_infer_free(e);
}

/* Two tokens far above all others: what follows shows the penalty of each draw before it. */
TEST(penalties_count_the_tokens_of_a_sample)
{
    world *w = *state;
    enum { A = 40, B = 7 };
    static const tke_bias two[2] = { { B, 1000 }, { A, 2000 } };
    static const struct {
        double presence, frequency;
        int32_t wanted[6];
    } rows[] = { { 0, 0, { A, A, A, A, A, A } },
                 { 600, 0, { A, A, A, A, A, A } }, /* once, however often the token came */
                 { 1200, 0, { A, B, A, A, A, A } },
                 { 0, 600, { A, A, B, A, B, A } },
                 { -600, 600, { A, A, A, B, B, A } } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tke_infer *e;
        tke_gen_request r = request_of(w);
        r.rule.temperature = 0;
        r.max_tokens = 6;
        r.biases = two;
        r.n_biases = 2;
        r.presence_penalty = rows[i].presence;
        r.frequency_penalty = rows[i].frequency;
        tke_gen *g = alone(w, &r, &e);
        for (size_t k = 0; k < r.n_samples; k++)
            assert_memory_equal(tke_gen_sequence(g, k).tokens, rows[i].wanted, sizeof rows[i].wanted);
        tke_infer_free(e);
    }
}

/* Samples of one request do not count each other's tokens, nor those of other requests. */
TEST(company_changes_no_penalty)
{
    world *w = *state;
    tke_infer *e, *f = engine_of(w, (tke_infer_options){ .prefill_chunk = 32 });
    tke_gen_request r = request_of(w), noise = r;
    r.presence_penalty = 1;
    r.frequency_penalty = 0.5;
    noise.seed = 3;
    noise.frequency_penalty = -2;
    tke_gen *want = alone(w, &r, &e);
    add(f, &noise);
    tke_infer_step(f);
    tke_gen *got = add(f, &r);
    finish_all(f);
    assert_same(want, got);
    for (size_t k = 0; k < r.n_samples; k++) { /* each count is that of its token */
        const tke_seq *s = &got->seqs[k];
        for (size_t i = 0; i < s->n_biases; i++) {
            uint32_t n = 0;
            for (size_t at = 0; at < s->n; at++)
                n += s->tokens[at] == s->biases[i].token;
            assert_int_equal(s->counts[i], n);
        }
    }
    r.presence_penalty = r.frequency_penalty = 0;
    tke_infer *h;
    tke_gen *plain = alone(w, &r, &h);
    assert_memory_not_equal(tke_gen_sequence(plain, 0).tokens, tke_gen_sequence(want, 0).tokens,
                            TOKENS * sizeof(int32_t));
    tke_infer_free(e);
    tke_infer_free(f);
    tke_infer_free(h);
}

TEST(cache_hits_change_no_bit)
{
    world *w = *state;
    tke_infer *e, *f = engine_of(w, (tke_infer_options){ 0 });
    tke_gen_request r = request_of(w), other = r;
    tke_gen *want = alone(w, &r, &e);
    tke_gen *first = add(f, &r);
    finish_all(f);
    assert_int_equal(tke_gen_cache_hits(first), 0);
    tke_gen *second = add(f, &r);
    finish_all(f);
    assert_int_equal(tke_gen_cache_hits(second), (PROMPT - 1) / 16 * 16);
    assert_same(want, first);
    assert_same(want, second);
    other.snapshot = w->other; /* other weights, same tokens: nothing may be reused */
    tke_gen *third = add(f, &other);
    finish_all(f);
    assert_int_equal(tke_gen_cache_hits(third), 0);
    tke_infer_clear_cache(f);
    assert_int_equal(tke_infer_get_stats(f).n_free, tke_infer_get_stats(f).n_blocks);
    tke_infer_free(e);
    tke_infer_free(f);
}

/* Two prompts leave something in the cache; each continues from what is its own. */
TEST(a_prompt_continues_from_its_own_snapshot)
{
    world *w = *state;
    tke_infer *e, *f = engine_of(w, (tke_infer_options){ 0 });
    tke_gen_request first = request_of(w), second = first;
    second.prompt = w->prompt + 50;
    tke_gen *want = alone(w, &second, &e);
    add(f, &first);
    finish_all(f);
    add(f, &second);
    finish_all(f);
    tke_gen *again = add(f, &second);
    finish_all(f);
    assert_true(tke_gen_cache_hits(again) > 0);
    assert_same(want, again);
    tke_infer_free(e);
    tke_infer_free(f);
}

/* Of the cache: keys and values of the layers that attend. */
static size_t block_bytes(world *w)
{
    size_t bytes = (size_t)64 << 20;
    tke_infer *e = engine_of(w, (tke_infer_options){ .kv_bytes = bytes });
    size_t n = tke_infer_get_stats(e).n_blocks;
    tke_infer_free(e);
    return bytes / n;
}

/* So few blocks that sequences push each other out again and again. */
TEST(preemption_changes_no_bit)
{
    world *w = *state;
    tke_infer *e;
    tke_gen_request r = request_of(w), second = r;
    second.seed = 7;
    second.prompt = w->prompt + 50;
    tke_gen *want = alone(w, &r, &e);
    tke_infer *f = engine_of(w, (tke_infer_options){ .kv_bytes = 11 * block_bytes(w) });
    tke_gen *got = add(f, &r), *also = add(f, &second);
    finish_all(f);
    assert_true(tke_infer_get_stats(f).preemptions > 0);
    assert_same(want, got);
    tke_infer *h;
    tke_gen *want2 = alone(w, &second, &h);
    assert_same(want2, also);
    tke_infer_free(e);
    tke_infer_free(f);
    tke_infer_free(h);
}

TEST(snapshots_do_not_follow_training)
{
    world *w = *state;
    tinkc_error err = { 0 };
    tke_infer *e, *f;
    tke_gen_request r = request_of(w);
    tke_gen *before = alone(w, &r, &e);
    tke_adapter *a = adapter_of(w, 4, 1);
    tke_snapshot *s = tke_snapshot_take(a, &err);
    adapter_weights(a)[3] = 100;
    r.snapshot = s;
    tke_gen *after = alone(w, &r, &f);
    assert_same(before, after);
    tke_infer_free(e);
    tke_infer_free(f);
    tke_snapshot_drop(s);
    tke_adapter_free(a);
}

/* ---- stop rules ---- */

/* Token t stands for one letter, so any text is easy to find. */
static size_t letter(void *user, int32_t token, const char **bytes)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz"
                                  "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz";
    (void)user;
    *bytes = &letters[token];
    return 1;
}

TEST(stop_strings_span_tokens)
{
    world *w = *state;
    tke_infer *e, *f;
    tke_gen_request r = request_of(w);
    tke_gen *free_run = alone(w, &r, &e);
    tke_sequence all = tke_gen_sequence(free_run, 1);
    char stop[4];
    const char *bytes;
    for (int i = 0; i < 3; i++) {
        letter(NULL, all.tokens[10 + i], &bytes);
        stop[i] = *bytes;
    }
    tinkc_str strings[2] = { { "no such thing", 13 }, { stop, 3 } };
    r.never_stop = false;
    r.stop_strings = strings;
    r.n_stop_strings = 2;
    r.token_bytes = letter;
    tke_gen *g = alone(w, &r, &f);
    tke_sequence cut = tke_gen_sequence(g, 1);
    assert_true(cut.stopped);
    assert_true(cut.n <= 13 && cut.n > 0);
    assert_memory_equal(cut.tokens, all.tokens, cut.n * sizeof *cut.tokens);
    tke_infer_free(e);
    tke_infer_free(f);
}

/* A string of three tokens is found although a shorter one is listed behind it. */
TEST(the_longest_stop_string_decides_what_is_remembered)
{
    world *w = *state;
    tke_infer *e, *f;
    tke_gen_request r = request_of(w);
    tke_gen *free_run = alone(w, &r, &e);
    tke_sequence all = tke_gen_sequence(free_run, 1);
    char stop[3];
    const char *bytes;
    for (int i = 0; i < 3; i++) {
        letter(NULL, all.tokens[10 + i], &bytes);
        stop[i] = *bytes;
    }
    tinkc_str strings[3] = { { "??", 2 }, { stop, 3 }, { "!", 1 } };
    r.never_stop = false;
    r.stop_strings = strings;
    r.n_stop_strings = 3;
    r.token_bytes = letter;
    tke_gen *g = alone(w, &r, &f);
    tke_sequence cut = tke_gen_sequence(g, 1);
    assert_true(cut.stopped);
    assert_true(cut.n <= 13);
    tke_infer_free(e);
    tke_infer_free(f);
}

TEST(stop_tokens_and_length)
{
    world *w = *state;
    tke_infer *e, *f;
    tke_gen_request r = request_of(w);
    tke_gen *free_run = alone(w, &r, &e);
    tke_sequence all = tke_gen_sequence(free_run, 0);
    assert_false(all.stopped);
    assert_int_equal(all.n, TOKENS);
    int32_t stop = all.tokens[6];
    size_t first = 0;
    while (all.tokens[first] != stop)
        first++;
    r.never_stop = false;
    r.stop_tokens = &stop;
    r.n_stop_tokens = 1;
    r.max_tokens = first + 1; /* both on one token: stop wins */
    tke_gen *g = alone(w, &r, &f);
    tke_sequence cut = tke_gen_sequence(g, 0);
    assert_true(cut.n <= first + 1);
    assert_true(cut.stopped);
    assert_memory_equal(cut.tokens, all.tokens, cut.n * sizeof *cut.tokens);
    tke_infer_free(e);
    tke_infer_free(f);
}

/* ---- prompts ---- */

TEST(top_k_of_prompts)
{
    world *w = *state;
    tke_infer *e;
    tke_gen_request r = request_of(w);
    r.topk_prompt_logprobs = 5;
    r.n_prompt = 30;
    r.max_tokens = 0;
    tke_gen *g = alone(w, &r, &e);
    const float *lp = tke_gen_prompt_logprobs(g), *top = tke_gen_topk_logprobs(g);
    const int32_t *ids = tke_gen_topk_tokens(g);
    assert_non_null(lp);
    assert_int_equal(ids[0], 0);
    assert_true(top[4] == -99999.0f);
    for (size_t i = 1; i < 30; i++)
        for (size_t k = 0; k < 5; k++) {
            assert_true(k == 0 || top[i * 5 + k] <= top[i * 5 + k - 1]);
            if (ids[i * 5 + k] == w->prompt[i])
                assert_true(top[i * 5 + k] == lp[i]);
            assert_true(lp[i] <= top[i * 5] && top[i * 5] <= 0);
        }
    assert_int_equal(tke_gen_sequence(g, 0).n, 0);
    assert_true(tke_gen_sequence(g, 2).done);
    tke_infer_free(e);
}

/* What stands beside a drawn token is what stands beside it in a prompt, in every bit; and asking
 * for it changes nothing. */
TEST(top_k_of_samples)
{
    enum { K = 4 };
    world *w = *state;
    tke_infer *e, *f, *p;
    tke_gen_request r = request_of(w);
    tke_gen *plain = alone(w, &r, &e);
    r.topk_sample_logprobs = K;
    tke_gen *g = alone(w, &r, &f);
    for (size_t i = 0; i < r.n_samples; i++) {
        tke_sequence q = tke_gen_sequence(g, i), same = tke_gen_sequence(plain, i);
        int32_t all[PROMPT + TOKENS];
        assert_null(same.topk_tokens);
        assert_int_equal(q.n, TOKENS);
        assert_memory_equal(q.tokens, same.tokens, TOKENS * sizeof *q.tokens);
        assert_memory_equal(q.logprobs, same.logprobs, TOKENS * sizeof *q.logprobs);
        memcpy(all, w->prompt, PROMPT * sizeof *all);
        memcpy(all + PROMPT, q.tokens, TOKENS * sizeof *all);
        tke_gen_request whole = request_of(w);
        whole.prompt = all;
        whole.n_prompt = PROMPT + TOKENS;
        whole.n_samples = 1;
        whole.max_tokens = 0;
        whole.topk_prompt_logprobs = K;
        tke_gen *read = alone(w, &whole, &p);
        assert_memory_equal(q.topk_tokens, tke_gen_topk_tokens(read) + PROMPT * K, TOKENS * K * sizeof(int32_t));
        assert_memory_equal(q.topk_logprobs, tke_gen_topk_logprobs(read) + PROMPT * K, TOKENS * K * sizeof(float));
        tke_infer_free(p);
    }
    tke_infer_free(e);
    tke_infer_free(f);
}

/* The end of a prompt is scored as if all of it were, and the rest may come from the cache. */
TEST(scores_of_a_prompts_end)
{
    enum { K = 3 };
    world *w = *state;
    tke_infer *e, *f;
    tke_gen_request r = request_of(w);
    r.n_samples = 1;
    r.max_tokens = 0;
    r.prompt_logprobs = true;
    r.topk_prompt_logprobs = K;
    tke_gen *all = alone(w, &r, &e);
    static const size_t lasts[] = { 1, 2, 15, 16, 17, 33, PROMPT - 1, PROMPT, PROMPT + 9 };
    f = engine_of(w, (tke_infer_options){ 0 });
    for (size_t i = 0; i < sizeof lasts / sizeof *lasts; i++) {
        r.prompt_logprobs_last_n = lasts[i];
        tke_gen *g = add(f, &r);
        while (tke_infer_step(f))
            ;
        assert_ptr_equal(tke_infer_next_done(f), g);
        size_t none = lasts[i] < PROMPT ? PROMPT - lasts[i] : 1;
        const float *lp = tke_gen_prompt_logprobs(g), *want = tke_gen_prompt_logprobs(all);
        for (size_t k = 0; k < none; k++)
            assert_true(isnan(lp[k]));
        assert_memory_equal(lp + none, want + none, (PROMPT - none) * sizeof *lp);
        assert_memory_equal(tke_gen_topk_tokens(g) + none * K, tke_gen_topk_tokens(all) + none * K,
                            (PROMPT - none) * K * sizeof(int32_t));
        assert_memory_equal(tke_gen_topk_logprobs(g) + none * K, tke_gen_topk_logprobs(all) + none * K,
                            (PROMPT - none) * K * sizeof(float));
        assert_true(i == 0 || lasts[i] > 20 || tke_gen_cache_hits(g) > 0);
        tke_gen_free(g);
    }
    tke_infer_free(e);
    tke_infer_free(f);
}

static void refused(const world *w, const tke_gen_request *r, int32_t code, const char *text)
{
    tinkc_error err = { 0 };
    tke_infer *e = engine_of(w, (tke_infer_options){ .kv_bytes = 1 });
    assert_null(tke_infer_add(e, r, &err));
    assert_int_equal(err.code, code);
    assert_non_null(strstr(err.message, text));
    tke_infer_free(e);
}

/* Ids of the request's own at prompt positions: scored as the prompt's own are. */
TEST(targets_at_prompt_positions)
{
    enum { K = 3 };
    world *w = *state;
    tke_infer *e, *f;
    int32_t targets[(PROMPT - 1) * K];
    tke_gen_request r = request_of(w);
    r.n_samples = 1;
    r.topk_prompt_logprobs = 1;
    tke_gen *plain = alone(w, &r, &e);
    for (size_t i = 0; i < PROMPT - 1; i++) {
        targets[i * K] = w->prompt[i + 1];
        targets[i * K + 1] = -1;
        targets[i * K + 2] = tke_gen_topk_tokens(plain)[i + 1];
    }
    r.topk_prompt_logprobs = 0;
    r.target_tokens = targets;
    r.n_targets = K;
    r.prompt_logprobs = true;
    r.prompt_logprobs_last_n = 2; /* says nothing about targets */
    tke_gen *g = alone(w, &r, &f);
    const float *lp = tke_gen_target_logprobs(g);
    for (size_t i = 0; i < PROMPT - 1; i++) {
        assert_true(lp[i * K] == tke_gen_prompt_logprobs(plain)[i + 1]);
        assert_true(lp[i * K + 1] == 0);
        assert_true(lp[i * K + 2] == tke_gen_topk_logprobs(plain)[i + 1]);
        assert_true(i < PROMPT - 3 ? isnan(tke_gen_prompt_logprobs(g)[i + 1])
                                   : tke_gen_prompt_logprobs(g)[i + 1] == lp[i * K]);
    }
    assert_null(tke_gen_alternatives(g));
    assert_same(plain, g);
    targets[7] = VOCAB;
    refused(w, &r, TINKC_E_BAD_REQUEST, "outside the vocabulary");
    targets[7] = -2;
    refused(w, &r, TINKC_E_BAD_REQUEST, "outside the vocabulary");
    tke_infer_free(e);
    tke_infer_free(f);
}

/* Tokens drawn at prompt positions: the same in chunks and in company, with the model's log-probs;
 * samples are as without them. */
TEST(alternatives_at_prompt_positions)
{
    enum { K = 4 };
    world *w = *state;
    tke_infer *e, *f, *h, *plain_engine, *cold_engine;
    tke_gen_request r = request_of(w), scoring = r, cold;
    tke_gen *plain = alone(w, &r, &plain_engine);
    r.n_alternatives = K;
    tke_gen *g = alone(w, &r, &e);
    const int32_t *tokens = tke_gen_alternatives(g);
    assert_same(plain, g);
    size_t differ = 0;
    for (size_t i = 0; i < (PROMPT - 1) * K; i++) {
        assert_true(tokens[i] >= 0 && tokens[i] < VOCAB);
        differ += tokens[i] != tokens[i / K * K];
    }
    assert_true(differ > PROMPT); /* draws are independent of each other */
    scoring.max_tokens = 0;
    scoring.n_samples = 1;
    scoring.target_tokens = tokens;
    scoring.n_targets = K;
    tke_gen *scores = alone(w, &scoring, &f);
    assert_memory_equal(tke_gen_target_logprobs(scores), tke_gen_alternative_logprobs(g),
                        (PROMPT - 1) * K * sizeof(float));
    h = engine_of(w, (tke_infer_options){ .prefill_chunk = 7 });
    tke_gen_request noise = request_of(w);
    noise.prompt = w->prompt + 3;
    add(h, &noise);
    tke_gen *again = add(h, &r);
    finish_all(h);
    assert_memory_equal(tke_gen_alternatives(again), tokens, (PROMPT - 1) * K * sizeof *tokens);
    cold = r;
    cold.rule.temperature = 0;
    cold.topk_prompt_logprobs = 1;
    tke_gen *best = alone(w, &cold, &cold_engine);
    for (size_t i = 0; i < (PROMPT - 1) * K; i++)
        assert_int_equal(tke_gen_alternatives(best)[i], tke_gen_topk_tokens(best)[i / K + 1]);
    tke_infer_free(e);
    tke_infer_free(f);
    tke_infer_free(h);
    tke_infer_free(plain_engine);
    tke_infer_free(cold_engine);
}

TEST(prompt_of_one_token)
{
    world *w = *state;
    tke_infer *e, *f;
    tke_gen_request r = request_of(w);
    r.n_prompt = 1;
    r.prompt_logprobs = true;
    r.n_alternatives = 3;
    r.n_targets = 2;
    tke_gen *g = alone(w, &r, &e);
    assert_true(isnan(tke_gen_prompt_logprobs(g)[0]));
    assert_int_equal(tke_gen_sequence(g, 0).n, TOKENS);
    r.max_tokens = 0;
    assert_int_equal(tke_gen_error(alone(w, &r, &f))->code, 0);
    tke_infer_free(e);
    tke_infer_free(f);
}

/* ---- errors ---- */

TEST(faulty_requests_are_refused_with_their_reason)
{
    world *w = *state;
    tke_gen_request good = request_of(w), r = good;
    refused(w, &r, TINKC_E_BAD_REQUEST, "cache");
    r.n_prompt = 0;
    refused(w, &r, TINKC_E_BAD_REQUEST, "empty");
    r = good;
    r.max_tokens = 250;
    refused(w, &r, TINKC_E_BAD_REQUEST, "context window: 70 + 250 > 256");
    r = good;
    r.n_samples = 0;
    refused(w, &r, TINKC_E_BAD_REQUEST, "num_samples");
    r = good;
    r.rule.top_p = 0;
    refused(w, &r, TINKC_E_BAD_REQUEST, "top_p");
    r = good;
    r.rule.temperature = -1;
    refused(w, &r, TINKC_E_BAD_REQUEST, "temperature");
    r = good;
    r.n_stop_strings = 1;
    r.stop_strings = &(tinkc_str){ "x", 1 };
    refused(w, &r, TINKC_E_BAD_REQUEST, "tokenizer.json");
    int32_t bad[2] = { 3, VOCAB };
    r = good;
    r.prompt = bad;
    r.n_prompt = 2;
    refused(w, &r, TINKC_E_BAD_REQUEST, "outside the vocabulary");
    bad[1] = -1;
    refused(w, &r, TINKC_E_BAD_REQUEST, "token -1 at 1");
    r = good;
    r.biases = &(tke_bias){ VOCAB, 1 };
    r.n_biases = 1;
    refused(w, &r, TINKC_E_BAD_REQUEST, "logit_bias: token");
}

/* The largest values that are taken, and the first beyond them. */
TEST(edges_of_requests)
{
    world *w = *state;
    tke_gen_request good = request_of(w), r = good;
    tke_infer *e = engine_of(w, (tke_infer_options){ 0 });
    static const int32_t last[2] = { 0, VOCAB - 1 };
    int32_t targets[2] = { -1, VOCAB - 1 };
    good.n_samples = 1;
    good.max_tokens = 1;
    r = good;
    r.max_tokens = 256 - PROMPT;
    tke_gen_free(add(e, &r));
    r.max_tokens++;
    refused(w, &r, TINKC_E_BAD_REQUEST, "context window");
    r.n_prompt = 1;
    r.max_tokens = 257;
    refused(w, &r, TINKC_E_BAD_REQUEST, "context window: 1 + 257 > 256");
    r = good;
    r.prompt = last;
    r.n_prompt = 2;
    tke_gen_free(add(e, &r));
    r = good;
    r.rule.temperature = 0;
    tke_gen_free(add(e, &r));
    r.rule.temperature = INFINITY;
    refused(w, &r, TINKC_E_BAD_REQUEST, "temperature");
    r.rule.temperature = NAN;
    refused(w, &r, TINKC_E_BAD_REQUEST, "temperature");
    r = good;
    r.rule.top_p = 1.001f;
    refused(w, &r, TINKC_E_BAD_REQUEST, "top_p");
    r.rule.top_p = NAN;
    refused(w, &r, TINKC_E_BAD_REQUEST, "top_p");
    r = good;
    r.n_prompt = 3;
    r.target_tokens = targets;
    r.n_targets = 1;
    tke_gen_free(add(e, &r));
    targets[0] = -2;
    refused(w, &r, TINKC_E_BAD_REQUEST, "token -2 at 0");
    targets[0] = 0;
    targets[1] = VOCAB;
    refused(w, &r, TINKC_E_BAD_REQUEST, "at 1 is outside the vocabulary");
    tke_infer_free(e);
}

TEST(a_cancelled_sample_changes_no_other)
{
    world *w = *state;
    tke_gen_request r = request_of(w);
    tke_infer *e, *f = engine_of(w, (tke_infer_options){ 0 });
    tke_gen *want = alone(w, &r, &e), *gone = add(f, &r), *stays = add(f, &r);
    for (int i = 0; i < 10; i++)
        tke_infer_step(f);
    tke_gen_cancel(gone);
    finish_all(f);
    assert_int_equal(tke_gen_error(gone)->code, TINKC_E_CANCELLED);
    assert_true(tke_gen_sequence(gone, 0).n > 0 && tke_gen_sequence(gone, 0).n < TOKENS);
    assert_same(want, stays);
    tke_gen *first = tke_infer_next_done(f), *second = tke_infer_next_done(f);
    assert_ptr_equal(first, gone);
    assert_ptr_equal(second, stays);
    assert_null(tke_infer_next_done(f));
    tke_gen_free(first);
    tke_gen_free(second);
    assert_int_equal(tke_infer_get_stats(f).n_free + tke_infer_get_stats(f).n_cached, tke_infer_get_stats(f).n_blocks);
    tke_gen *dropped = add(f, &r); /* freed while it runs */
    tke_infer_step(f);
    tke_gen_free(dropped);
    assert_false(tke_infer_step(f));
    tke_infer_free(e);
    tke_infer_free(f);
}

/* A small request is done after a few steps, however much a large one before it asks for: whether
 * rows or room in the cache are short. */
TEST(small_requests_do_not_wait)
{
    const world *w = *state;
    static const struct {
        size_t kv_bytes, max_running;
    } cases[] = { { 4 << 20, 16 }, { 300000, 64 } };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        tinkc_error err = { 0 };
        tke_infer *e =
            engine_of(w, (tke_infer_options){ .kv_bytes = cases[c].kv_bytes, .max_running = cases[c].max_running });
        tke_gen_request large = request_of(w), small = request_of(w);
        large.n_samples = 64;
        large.max_tokens = 40;
        large.never_stop = small.never_stop = true;
        large.tenant = 1;
        small.n_prompt = 10;
        small.n_samples = 1;
        small.max_tokens = 4;
        small.tenant = 2;
        tke_gen *hog = tke_infer_add(e, &large, &err);
        for (int i = 0; i < 20; i++)
            assert_true(tke_infer_step(e));
        for (int round = 0; round < 3; round++) {
            int steps = 0;
            tke_gen *g = tke_infer_add(e, &small, &err);
            assert_non_null(g);
            while (!tke_gen_done(g) && steps++ < 100)
                tke_infer_step(e);
            assert_true(steps <= 6);
            assert_int_equal(tke_gen_sequence(g, 0).n, 4);
            assert_false(tke_gen_done(hog));
            tke_gen_free(g);
        }
        while (!tke_gen_done(hog)) /* and the large one is not starved either */
            assert_true(tke_infer_step(e));
        for (size_t i = 0; i < 64; i++)
            assert_int_equal(tke_gen_sequence(hog, i).n, 40);
        tke_gen_free(hog);
        tke_infer_free(e);
    }
}

int main(void)
{
    const struct CMUnitTest bits[] = {
        cmocka_unit_test(log_probs_are_the_trainers),       cmocka_unit_test(chunks_change_no_bit),
        cmocka_unit_test(rows_of_a_step_are_bounded),       cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(samples_have_the_prefix_property), cmocka_unit_test(company_changes_no_bit),
        cmocka_unit_test(cache_hits_change_no_bit),         cmocka_unit_test(a_prompt_continues_from_its_own_snapshot),
        cmocka_unit_test(preemption_changes_no_bit),        cmocka_unit_test(snapshots_do_not_follow_training),
    };
    int failed = test_cases_run(setup, teardown);
    for (size_t i = 1; i < sizeof families / sizeof *families; i++) {
        family = &families[i];
        failed += cmocka_run_group_tests_name(family->family, bits, setup, teardown);
    }
    return failed;
}
