/* test_cpu_parts.c - the CPU device's parts that larger tests reach only in one form: tables of
 * rotation, sizes of work space, chunks of the head, steps with more rows than a chunk of logits. */
#include <math.h>
#include <stdatomic.h>

#include "base/str.h"
#include "cpu/block.h"
#include "cpu/cpu_device.h"
#include "cpu/experts.h"
#include "cpu/sampling.h"
#include "infer/infer.h"
#include "model/philox.h"
#include "support/engine/numbers.h"
#include "support/engine/tiny_world.h"
#include "support/test_case.h"
#include "train/training.h"

static tiny_world w;

static int setup(void **state)
{
    (void)state;
    w = tiny_world_open(&(tiny_model){ .family = "qwen3", .tied = true, .layers = 2, .context = 2048 }, 2);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tiny_world_close(&w);
    return 0;
}

/* ---- tables and sizes ---- */

TEST(the_rotation_table_grows_without_changing)
{
    tinkc_error err = { 0 };
    tke_model scaled = *w.model;
    tke_rope_table t = { 0 };
    size_t half = w.model->config.head_dim / 2;
    scaled.rope_scale = 1.25;
    static const size_t sizes[] = { 1, 1024, 1025, 3000 }, rounded[] = { 1024, 1024, 2048, 3072 };
    for (int i = 0; i < 4; i++) {
        assert_true(tke_rope_table_grow(&t, &scaled, sizes[i], &err));
        assert_int_equal(t.n, rounded[i]);
        for (size_t p = 0; p < t.n; p += p + 7 < t.n || p + 1 == t.n ? 7 : t.n - 1 - p) /* the last, too */
            for (size_t j = 0; j < half; j++) {
                double angle = (double)p * w.model->rope_frequency[j];
                assert_true(fabs((double)t.cos_table[p * half + j] - 1.25 * cos(angle)) < 1e-6);
                assert_true(fabs((double)t.sin_table[p * half + j] - 1.25 * sin(angle)) < 1e-6);
            }
    }
    const tke_real *kept = t.cos_table;
    assert_true(tke_rope_table_grow(&t, &scaled, 3072, &err)); /* large enough */
    assert_ptr_equal(t.cos_table, kept);
    tke_rope_table_free(&t);
    assert_null(t.cos_table);
}

/* Eight million logits, within bounds, and never more rows than there are. */
TEST(rows_of_a_chunk)
{
    tke_model m = *w.model;
    static const struct {
        size_t vocab, least, most, n, want;
    } cases[] = { { 101, 8, 128, 1000, 128 },   { 101, 8, 128, 100, 100 },    { 131072, 8, 128, 1000, 64 },
                  { 128256, 8, 128, 1000, 65 }, { 4 << 20, 8, 128, 1000, 8 }, { 4 << 20, 8, 128, 5, 5 },
                  { 131072, 64, 64, 64, 64 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        m.config.vocab = cases[i].vocab;
        assert_int_equal(tke_chunk_rows(&m, cases[i].least, cases[i].most, cases[i].n), cases[i].want);
    }
}

/* Kept activations cost the same for each layer, and only where gradients go through the layers. */
TEST(bytes_of_microbatches)
{
    tinkc_error err = { 0 };
    const tke_device_ops *ops = w.device->ops;
    for (int32_t keep = TKE_KEEP_AUTO; keep <= TKE_KEEP_ALL; keep++) {
        tke_device_trainer *t = ops->trainer_new(w.loaded, &(tke_device_trainer_options){ .keep = keep }, &err);
        assert_int_equal(ops->trainer_memory(t), (size_t)1 << 30); /* where none is given */
        for (int32_t depth = TKE_DEPTH_NONE; depth <= TKE_DEPTH_ALL; depth++) {
            tke_microbatch_size size = { .n = 64, .max_rank = 4, .max_k = 1, .depth = depth };
            size_t least = ops->microbatch_bytes(t, &size, TKE_KEEP_NONE);
            size_t all = ops->microbatch_bytes(t, &size, TKE_KEEP_ALL);
            assert_int_equal(ops->microbatch_bytes(t, &size, TKE_KEEP_AUTO), least);
            assert_int_equal(all > least, depth == TKE_DEPTH_ALL && keep != TKE_KEEP_NONE);
            size.n = 128;
            assert_true(ops->microbatch_bytes(t, &size, TKE_KEEP_NONE) > least);
            size.n = 64;
            size.max_rank = 8;
            assert_true(ops->microbatch_bytes(t, &size, TKE_KEEP_NONE) > least);
        }
        ops->trainer_set_memory(t, 12345);
        assert_int_equal(ops->trainer_memory(t), 12345);
        ops->trainer_set_memory(t, 0);
        assert_int_equal(ops->trainer_memory(t), (size_t)1 << 30);
        ops->trainer_free(t);
    }
    ops->trainer_free(NULL);
    ops->sampler_free(NULL);
    ops->model_free(NULL);
    ops->block_free(w.device, NULL);
}

static size_t padded(size_t n)
{
    return (n + 15) / 16 * 16;
}

/* The numbers of every buffer of a microbatch, each padded to 16. */
static size_t numbers_of(const tke_model *m, const tke_microbatch_size *s, size_t kept)
{
    const tke_config *c = tke_model_config(m);
    bool all = s->depth == TKE_DEPTH_ALL;
    size_t h = padded(s->n * c->hidden), inner = padded(s->n * c->inner);
    size_t q = padded(s->n * c->n_heads * c->head_dim);
    size_t kv = padded(s->n * c->n_kv_heads * c->head_dim), lse = padded(s->n * c->n_heads);
    size_t layer = 3 * q + 3 * kv + lse + h + 2 * inner; /* q and k also before their norm */
    static const size_t matrices[] = { 3, 1, 2, 1 };     /* qkv, o, gate and up, down */
    for (size_t g = 0; g < 4; g++)
        layer += padded(s->n * s->max_rank * matrices[g]);
    size_t sum = 3 * h + inner + (kept < c->n_layers ? layer : 0);
    if (all)
        sum += c->n_layers * h + kept * layer + 2 * h + 2 * q + 2 * kv + lse + padded(s->n * s->max_rank * 3);
    size_t rows = s->n; /* of the head: all, where there are so few */
    sum += padded(rows * c->vocab) + 3 * padded(rows * c->hidden) + 3 * padded(rows * s->max_rank);
    return sum + 4 * padded(rows) + 2 * padded(rows * s->max_k);
}

TEST(numbers_of_microbatches)
{
    tinkc_error err = { 0 };
    const tke_device_ops *ops = w.device->ops;
    tke_device_trainer *t = ops->trainer_new(w.loaded, &(tke_device_trainer_options){ 0 }, &err);
    for (int32_t depth = TKE_DEPTH_NONE; depth <= TKE_DEPTH_ALL; depth++) {
        tke_microbatch_size size = { .n = 37, .max_rank = 5, .max_k = 3, .depth = depth };
        assert_int_equal(ops->microbatch_bytes(t, &size, TKE_KEEP_NONE),
                         numbers_of(w.model, &size, 0) * sizeof(tke_real));
        assert_int_equal(ops->microbatch_bytes(t, &size, TKE_KEEP_ALL),
                         numbers_of(w.model, &size, depth == TKE_DEPTH_ALL ? 2 : 0) * sizeof(tke_real));
    }
    ops->trainer_free(t);
}

/* ---- linear layers ---- */

enum { ROWS = 5, WIDEST = 128 };

/* W x + bias + scale B (A x), by plain loops. */
static double linear(const tke_weight *m, const tke_lora *lora, const tke_real *weights, const tke_lora_group *g,
                     size_t i, size_t out, const tke_real *x)
{
    double y = m->bias ? (double)m->bias[out] : 0;
    for (size_t k = 0; k < m->in; k++)
        y += (double)((const float *)m->m.data)[out * (size_t)m->m.ld + k] * (double)x[k];
    for (size_t r = 0; lora && r < g->rank; r++) {
        double low = 0;
        for (size_t k = 0; k < m->in; k++)
            low += (double)weights[g->a + (i * g->rank + r) * m->in + k] * (double)x[k];
        y += (double)lora->scale * (double)weights[g->b[i] + out * g->rank + r] * low;
    }
    return y;
}

/* Every group of a model with biases, without an adapter in its first rows and with one in the others. */
TEST(each_linear_group_has_bias_and_adapter)
{
    tinkc_error err = { 0 };
    uint64_t r = 12;
    tiny_world own = tiny_world_open(&(tiny_model){ .family = "llama", .bias = true, .layers = 1, .seed = 5 }, 1);
    tke_adapter *a = tke_adapter_new(own.device, own.model, &(tke_adapter_spec){ .rank = 3, .train = 7 }, &err);
    const tke_lora *lora = tke_adapter_lora(a);
    for (size_t i = 0; i < lora->layout->n_floats; i++)
        adapter_weights(a)[i] = 0.1f * tiny_normal(&r);
    static tke_real x[ROWS * WIDEST], y[TKE_GROUP_MAX][ROWS * WIDEST], low[ROWS * 9];
    tke_real *to[TKE_GROUP_MAX] = { y[0], y[1], y[2] };
    tke_segment segments[2] = { { 0, 2, NULL, NULL }, { 2, ROWS, lora, NULL } };
    tke_rows rows = { .cpu = ((tke_cpu_model *)own.loaded)->cpu,
                      .model = own.model,
                      .n = ROWS,
                      .segments = segments,
                      .n_segments = 2,
                      .max_rank = 3 };
    for (size_t at = 0; at < own.model->n_groups; at++) {
        const tke_group *group = own.model->groups[at];
        const tke_lora_group *g = &lora->layout->groups[group->index];
        for (size_t i = 0; i < ROWS * group->w[0].in; i++)
            x[i] = tiny_normal(&r);
        memset(y, 0xff, sizeof y); /* NaN */
        tke_group_forward(&rows, group, x, to, low);
        for (size_t i = 0; i < group->n; i++)
            for (size_t k = 0; k < ROWS * group->w[i].out; k++) {
                size_t row = k / group->w[i].out;
                double want = linear(&group->w[i], row < 2 ? NULL : lora, adapter_weights(a), g, i, k % group->w[i].out,
                                     x + row * group->w[i].in);
                assert_true(group->w[i].out <= WIDEST && fabs((double)y[i][k] - want) < 1e-4);
            }
    }
    tke_adapter_free(a);
    tiny_world_close(&own);
}

/* Sigmoids lie between 0 and 1, so a bias decides; experts 0 to 2, 3 to 5 and 6 to 8 are groups, two are chosen in one group. */
TEST(the_group_with_the_best_two_experts_is_kept)
{
    static const struct {
        tke_real bias[9];
        int32_t chosen[2];
    } rows[] = {
        { { 10, 1, 1, 6, 7, 1, 1, 1, 1 }, { 3, 4 } },   /* 13 of two before 11 with the single best */
        { { 1, 7, 6, 10, 1, 1, 1, 1, 1 }, { 1, 2 } },   /* the best is not the first, the next comes behind it */
        { { 6, 7, 1, 10, 1, 1, 1, 1, 1 }, { 0, 1 } },   /* the next comes before it */
        { { 5, 6, 7, 10, 2, 1, 1, 1, 1 }, { 1, 2 } },   /* 13 before 12, not all of a group: 18 and 13 */
        { { 5, 5, 5, 9, 2, 1, 1, 1, 1 }, { 3, 4 } },    /* 11 before 10, though three together are 15 and 12 */
        { { 5, 6, 7, 10, 3.5f, 1, 1, 1, 1 }, { 3, 4 } }, /* 13.5 before 13, where the best comes last */
        { { 4, 1, 4, 1, 1, 1, 7, 1, 1 }, { 0, 2 } },    /* equal sums: the lower group */
        { { 1, 1, 1, 1, 1, 1, -9, -9, -9 }, { 0, 1 } }, /* equal experts: the lower ones */
    };
    tke_cpu *cpu = cpu_new(TKE_ISA_REF, 1, TKE_PRECISION_F32);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const tke_real logits[9] = { 0 }; /* every sigmoid is 1/2 */
        int32_t chosen[2], pair_of[2], slot_of[2], start[10];
        tke_real weight[2];
        tke_experts x = { .n = 9, .top = 2, .route = TKE_ROUTE_SIGMOID,
                          .sigmoid = { .bias = rows[i].bias, .n_groups = 3, .kept_groups = 1, .normalised = true, .scale = 3 } };
        tke_pairs p = { .n = 1, .top = 2, .n_experts = 9, .chosen = chosen, .pair_of = pair_of, .slot_of = slot_of, .start = start, .weight = weight };
        tke_route(cpu, &x, logits, &p);
        if (chosen[0] != rows[i].chosen[0] || chosen[1] != rows[i].chosen[1])
            fail_msg("row %zu: %d and %d", i, (int)chosen[0], (int)chosen[1]);
        assert_true(weight[0] == 1.5f && weight[1] == 1.5f); /* the bias weighs nothing */
    }
    tke_cpu_free(cpu);
}

TEST(the_cpu_fills_the_table_of_a_device)
{
    tinkc_error err = { 0 };
    tke_device_info info;
    const tke_device_ops *ops = w.device->ops;
    tke_real x[3] = { 1, 2, 3 }, y[3] = { 0 };
    double squares = 0;
    bool finite = false;
    ops->info(w.device, &info);
    assert_string_equal(info.name, "cpu");
    assert_non_null(strstr(info.text, ", 2 threads"));
    assert_int_equal(info.microbatch_tokens, 8192);
    assert_int_equal(ops->memory(w.device, NULL, 0), 0);
    assert_int_equal(ops->model_bytes(w.device, w.model), 0);
    tke_block *a = ops->block_new(w.device, 3, &err), *b = ops->block_new(w.device, 3, &err);
    assert_true(ops->block_read(w.device, a, y, 3, &err) && y[0] == 0 && y[2] == 0);
    assert_true(ops->block_write(w.device, a, x, 3, &err) && ops->block_copy(w.device, b, a, 3, &err));
    assert_true(ops->block_read(w.device, b, y, 3, &err));
    assert_memory_equal(x, y, sizeof x);
    assert_true(ops->block_squares(w.device, b, 3, &squares, &err) && squares == 14);
    assert_true(ops->block_squares(w.device, b, 2, &squares, &err) && squares == 5);
    assert_true(ops->block_finite(w.device, b, 3, &finite, &err) && finite);
    x[2] = NAN;
    assert_true(ops->block_write(w.device, b, x, 3, &err));
    assert_true(ops->block_finite(w.device, b, 3, &finite, &err) && !finite);
    assert_true(ops->block_finite(w.device, b, 2, &finite, &err) && finite);
    assert_true(ops->block_zero(w.device, b, 3, &err) && ops->block_read(w.device, b, y, 3, &err));
    assert_true(y[0] == 0 && y[1] == 0 && y[2] == 0);
    ops->block_free(w.device, a);
    ops->block_free(w.device, b);
    tke_device_sampler *s = ops->sampler_new(
        w.loaded, &(tke_device_sampler_options){ .cache_bytes = 1, .max_rows = 4, .max_seqs = 2 }, &err);
    size_t block = 2 * 16 * 2 * 2 * 8 * sizeof(tke_real); /* layers, positions, k and v, heads, size */
    assert_int_equal(ops->sampler_cache(s)->block_bytes, block);
    assert_int_equal(ops->sampler_cache(s)->n_blocks, 2); /* at least */
    ops->sampler_free(s);
    s = ops->sampler_new(
        w.loaded, &(tke_device_sampler_options){ .cache_bytes = 5 * block + block / 2, .max_rows = 4, .max_seqs = 2 },
        &err);
    assert_int_equal(ops->sampler_cache(s)->n_blocks, 5);
    ops->sampler_free(s);
}

/* Work space is given back when the budget falls below it, and only then. */
TEST(work_space_is_given_back)
{
    tinkc_error err = { 0 };
    static int32_t tokens[64];
    static int64_t targets[64];
    tke_trainer *t = tke_trainer_new(w.loaded, &(tke_trainer_options){ 0 }, &err);
    tke_datum d = { .tokens = tokens, .n = 64, .k = 1, .targets = targets };
    tke_pass p = { .data = &d, .n_data = 1 }, *list[1] = { &p };
    size_t before = tkc_pages_held();
    tke_trainer_run(t, list, 1);
    assert_string_equal(p.err.message, "");
    tke_pass_free(&p);
    size_t held = tkc_pages_held() - before, least = tke_trainer_bytes(t, 64, 1, NULL);
    assert_true(held >= least);
    tke_trainer_set_memory(t, least);
    assert_int_equal(tkc_pages_held(), before + held);
    tke_trainer_set_memory(t, least - 1);
    assert_int_equal(tkc_pages_held(), before);
    tke_trainer_set_memory(t, 0);
    for (d.n = 8; d.n <= 64; d.n += 56) { /* a larger one replaces the smaller */
        tke_trainer_run(t, list, 1);
        assert_string_equal(p.err.message, "");
        tke_pass_free(&p);
    }
    assert_int_equal(tkc_pages_held(), before + held);
    tke_trainer_free(t);
    assert_int_equal(tkc_pages_held(), before);
}

/* ---- the head in chunks ---- */

enum { LEN = 100, N = 7 };

typedef struct example {
    int32_t tokens[LEN];
    int64_t targets[LEN];
    float weights[LEN];
} example;

static tke_adapter *adapter_of(int32_t rank, uint32_t train)
{
    tinkc_error err = { 0 };
    uint64_t r = 4;
    tke_adapter *a = tke_adapter_new(w.device, w.model, &(tke_adapter_spec){ .rank = rank, .train = train }, &err);
    assert_non_null(a);
    for (size_t i = 0; i < tke_adapter_lora(a)->layout->n_floats; i++)
        adapter_weights(a)[i] = 0.1f * tiny_normal(&r);
    return a;
}

static void run_one(tke_trainer *t, tke_adapter *a, const tke_datum *data, size_t n)
{
    tinkc_error err = { 0 };
    tke_pass p = { .adapter = a, .backward = true, .data = data, .n_data = n }, *list[1] = { &p };
    assert_true(tke_loss_parse(&p.loss, tkc_str("cross_entropy"), NULL, 0, false, &err));
    tke_trainer_run(t, list, 1);
    assert_string_equal(p.err.message, "");
    tke_pass_free(&p);
}

/* Of 700 rows only those of one datum carry loss: chunks of the head without any are as if they had
 * not been there, wherever the datum is. For each depth. */
TEST(rows_without_loss)
{
    static const uint32_t trains[] = { 7, TKE_TRAIN_UNEMBED, TKE_TRAIN_MLP };
    tinkc_error err = { 0 };
    uint64_t r = 8;
    example *e = test_calloc(N, sizeof *e);
    tke_trainer *t = tke_trainer_new(w.loaded, &(tke_trainer_options){ 0 }, &err);
    for (size_t k = 0; k < 3; k++)
        for (size_t with = 0; with < N; with += 3) {
            tke_datum data[N];
            for (size_t i = 0; i < N; i++) {
                for (size_t p = 0; p < LEN; p++) {
                    e[i].tokens[p] = (int32_t)(tiny_random(&r) % 101);
                    e[i].targets[p] = (int64_t)(tiny_random(&r) % 101);
                    e[i].weights[p] = i == with && p % 5 == 2 ? tiny_normal(&r) : 0;
                }
                data[i] = (tke_datum){
                    .tokens = e[i].tokens, .n = LEN, .k = 1, .targets = e[i].targets, .weights = e[i].weights
                };
            }
            tke_adapter *a = adapter_of(3, trains[k]), *b = adapter_of(3, trains[k]);
            run_one(t, a, data, N);
            run_one(t, b, data + with, 1);
            double size = 0;
            size_t n = tke_adapter_lora(a)->layout->n_floats;
            for (size_t i = 0; i < n; i++)
                size += fabs((double)adapter_grads(a)[i]);
            assert_true(size > 0.01);
            assert_memory_equal(adapter_grads(a), adapter_grads(b), n * sizeof(tke_real));
            tke_adapter_free(a);
            tke_adapter_free(b);
        }
    tke_trainer_free(t);
    test_free(e);
}

/* Three targets for each position, of which one or none counts: gradients are those of the one alone, and a
 * place without a target has the log-prob 0. */
TEST(rows_of_several_targets)
{
    enum { K = 3, POSITIONS = 40 };
    tinkc_error err = { 0 };
    uint64_t r = 9;
    int32_t tokens[POSITIONS];
    int64_t one[POSITIONS], all[POSITIONS * K];
    float weight[POSITIONS], weights[POSITIONS * K] = { 0 };
    for (size_t p = 0; p < POSITIONS; p++) {
        size_t mine = tiny_random(&r) % K;
        tokens[p] = (int32_t)(tiny_random(&r) % 101);
        one[p] = (int64_t)(tiny_random(&r) % 101);
        weight[p] = p % 3 == 1 ? tiny_normal(&r) : 0;
        for (size_t j = 0; j < K; j++)
            all[p * K + j] = j == mine ? one[p] : -100;
        weights[p * K + mine] = weight[p];
    }
    tke_datum single = { .tokens = tokens, .n = POSITIONS, .k = 1, .targets = one, .weights = weight };
    tke_datum several = { .tokens = tokens, .n = POSITIONS, .k = K, .targets = all, .weights = weights };
    tke_trainer *t = tke_trainer_new(w.loaded, &(tke_trainer_options){ 0 }, &err);
    tke_adapter *a = adapter_of(3, 7), *b = adapter_of(3, 7);
    run_one(t, a, &single, 1);
    run_one(t, b, &several, 1);
    size_t n = tke_adapter_lora(a)->layout->n_floats;
    for (size_t i = 0; i < n; i++)
        assert_true(fabs((double)(adapter_grads(a)[i] - adapter_grads(b)[i])) < 1e-5);
    tke_pass p = { .adapter = a, .data = &several, .n_data = 1 }, *list[1] = { &p };
    assert_true(tke_loss_parse(&p.loss, tkc_str("cross_entropy"), NULL, 0, false, &err));
    tke_trainer_run(t, list, 1);
    for (size_t i = 0; i < POSITIONS * K; i++)
        assert_int_equal(p.out.logprobs[i] < 0, all[i] >= 0);
    for (size_t i = 0; i < POSITIONS * K; i++)
        assert_true(all[i] >= 0 || p.out.logprobs[i] == 0);
    tke_pass_free(&p);
    tke_adapter_free(a);
    tke_adapter_free(b);
    tke_trainer_free(t);
}

/* More adapters than a chunk of the head has segments for. */
TEST(a_microbatch_may_have_many_adapters)
{
    enum { MANY = 70 };
    tinkc_error err = { 0 };
    uint64_t r = 8;
    tke_trainer *t = tke_trainer_new(w.loaded, &(tke_trainer_options){ 0 }, &err);
    tke_adapter *a[MANY], *b[MANY];
    tke_pass p[MANY], *list[MANY];
    tke_datum data[MANY];
    example *e = test_calloc(MANY, sizeof *e);
    for (size_t i = 0; i < MANY; i++) {
        for (size_t k = 0; k < 3; k++) {
            e[i].tokens[k] = (int32_t)(tiny_random(&r) % 101);
            e[i].targets[k] = (int64_t)(tiny_random(&r) % 101);
            e[i].weights[k] = 1;
        }
        data[i] = (tke_datum){
            .tokens = e[i].tokens, .n = 1 + i % 3, .k = 1, .targets = e[i].targets, .weights = e[i].weights
        };
        a[i] = adapter_of(1 + (int32_t)i % 3, 7);
        b[i] = adapter_of(1 + (int32_t)i % 3, 7);
        p[i] = (tke_pass){ .adapter = a[i], .backward = true, .data = &data[i], .n_data = 1 };
        assert_true(tke_loss_parse(&p[i].loss, tkc_str("cross_entropy"), NULL, 0, false, &err));
        list[i] = &p[i];
    }
    tke_trainer_run(t, list, MANY);
    for (size_t i = 0; i < MANY; i++) {
        assert_string_equal(p[i].err.message, "");
        run_one(t, b[i], &data[i], 1);
        assert_memory_equal(adapter_grads(a[i]), adapter_grads(b[i]),
                            tke_adapter_lora(a[i])->layout->n_floats * sizeof(tke_real));
        tke_pass_free(&p[i]);
        tke_adapter_free(a[i]);
        tke_adapter_free(b[i]);
    }
    tke_trainer_free(t);
    test_free(e);
}

/* Any loss; stops the trainer as soon as it is asked for. */
static void stop_it(void *user, size_t first, size_t n, const tke_real *lp, tke_real *g)
{
    (void)first, (void)lp;
    for (size_t i = 0; g && i < n; i++)
        g[i] = -1;
    atomic_store((_Atomic(bool) *)user, true);
}

/* A pass that is stopped says so, wherever it was; its results are not taken for complete. */
TEST(stop_at_each_point)
{
    tinkc_error err = { 0 };
    _Atomic(bool) stop = true;
    static int32_t tokens[4];
    static const int32_t positions[4] = { 0, 1, 2, 3 };
    static int64_t targets[4];
    static float weights[4] = { 1, 1, 1, 1 };
    static const uint32_t trains[] = { 7, TKE_TRAIN_UNEMBED, 7 };
    tke_datum d = { .tokens = tokens, .n = 4, .k = 1, .targets = targets, .weights = weights };
    for (int i = 0; i < 3; i++) { /* through all layers, the head alone, forward */
        tke_adapter *a = adapter_of(1, trains[i]);
        tke_trainer *t = tke_trainer_new(w.loaded, &(tke_trainer_options){ .stop = &stop }, &err);
        tke_pass p = { .adapter = a, .backward = i < 2, .data = &d, .n_data = 1 };
        tke_pass *list[1] = { &p };
        assert_true(tke_loss_parse(&p.loss, tkc_str("cross_entropy"), NULL, 0, false, &err));
        atomic_store(&stop, true);
        tke_trainer_run(t, list, 1);
        assert_int_equal(p.err.code, TINKC_E_CANCELLED);
        assert_string_equal(p.err.message, "the engine is stopping");
        tke_pass_free(&p);
        atomic_store(&stop, false);
        tke_trainer_run(t, list, 1);
        assert_string_equal(p.err.message, "");
        tke_pass_free(&p);
        tke_trainer_free(t);
        tke_adapter_free(a);
    }
    /* Between the head and the layers below it. */
    tke_adapter *a = adapter_of(1, 7);
    const tke_device_ops *ops = w.device->ops;
    tke_device_trainer *t = ops->trainer_new(w.loaded, &(tke_device_trainer_options){ .stop = &stop }, &err);
    const int64_t starts[2] = { 0, 4 };
    const tke_segment segment = { 0, 4, tke_adapter_lora(a), a->grads };
    tke_microbatch job = { .size = { .n = 4, .max_rank = 1, .max_k = 1, .depth = TKE_DEPTH_ALL },
                           .n_seqs = 1,
                           .ids = tokens,
                           .positions = positions,
                           .starts = starts,
                           .targets = tokens,
                           .segments = &segment,
                           .n_segments = 1,
                           .attn = true,
                           .losses = stop_it,
                           .user = &stop };
    assert_false(ops->microbatch_run(t, &job, &err));
    assert_int_equal(err.code, TINKC_E_CANCELLED);
    ops->trainer_free(t);
    tke_adapter_free(a);
}

/* ---- steps ---- */

/* 300 positions scored in one step, whose logits come in chunks of 128, and in steps of 50. */
TEST(scores_of_many_rows)
{
    enum { LONG = 300, TOP = 2 };
    tinkc_error err = { 0 };
    uint64_t r = 6;
    int32_t prompt[LONG], scored[(LONG - 1) * 2];
    static const size_t chunks[2] = { 512, 50 };
    tke_gen *g[2];
    tke_infer *e[2];
    tke_adapter *a = adapter_of(3, 7);
    tke_snapshot *s = tke_snapshot_take(a, &err);
    for (size_t i = 0; i < LONG; i++)
        prompt[i] = (int32_t)(tiny_random(&r) % 101);
    for (size_t i = 0; i < (LONG - 1) * 2; i++)
        scored[i] = (int32_t)(tiny_random(&r) % 102) - 1;
    for (int i = 0; i < 2; i++) {
        e[i] = tke_infer_new(w.loaded, &(tke_infer_options){ .kv_bytes = 4 << 20, .prefill_chunk = chunks[i] }, &err);
        tke_gen_request q = { .snapshot = s,
                              .prompt = prompt,
                              .n_prompt = LONG,
                              .n_samples = 2,
                              .max_tokens = 3,
                              .rule = { 1, 1, 0, 0 },
                              .seed = 3,
                              .never_stop = true,
                              .prompt_logprobs = true,
                              .topk_prompt_logprobs = TOP,
                              .target_tokens = scored,
                              .n_targets = 2,
                              .n_alternatives = 2 };
        g[i] = tke_infer_add(e[i], &q, &err);
        while (tke_infer_step(e[i]))
            ;
        assert_int_equal(tke_gen_error(g[i])->code, 0);
    }
    assert_memory_equal(tke_gen_prompt_logprobs(g[0]) + 1, tke_gen_prompt_logprobs(g[1]) + 1, (LONG - 1) * 4);
    assert_memory_equal(tke_gen_topk_tokens(g[0]), tke_gen_topk_tokens(g[1]), LONG * TOP * 4);
    assert_memory_equal(tke_gen_topk_logprobs(g[0]), tke_gen_topk_logprobs(g[1]), LONG * TOP * 4);
    assert_memory_equal(tke_gen_target_logprobs(g[0]), tke_gen_target_logprobs(g[1]), (LONG - 1) * 2 * 4);
    assert_memory_equal(tke_gen_alternatives(g[0]), tke_gen_alternatives(g[1]), (LONG - 1) * 2 * 4);
    assert_memory_equal(tke_gen_sequence(g[0], 1).tokens, tke_gen_sequence(g[1], 1).tokens, 3 * 4);
    for (int i = 0; i < 2; i++)
        tke_infer_free(e[i]);
    tke_snapshot_drop(s);
    tke_adapter_free(a);
}

/* ---- sampling ---- */

/* The token whose interval of the masses' sum holds u; intervals in the order of ids. */
TEST(a_draw_is_the_token_whose_interval_holds_u)
{
    tinkc_error err = { 0 };
    tke_sample_space s;
    float z[6] = { 0.5f, -INFINITY, 1, -2, 1, 0.25f };
    double mass[6], sum = 0;
    uint32_t allowed[1] = { 0x2d };
    assert_true(tke_sample_space_init(&s, 6, &err));
    tke_sample_rule rule = { .temperature = 0.7, .top_p = 1 };
    for (int masked = 0; masked < 2; masked++) {
        sum = 0;
        for (int i = 0; i < 6; i++) {
            mass[i] = masked && !(allowed[0] >> i & 1) ? 0 : exp(((double)z[i] - 1) / 0.7);
            sum += mass[i];
        }
        for (uint32_t k = 0; k < 400; k++) {
            tke_draw d = { .rule = &rule, .seed = 4, .sample = 1, .position = k, .allowed = masked ? allowed : NULL };
            int32_t got, want = 0;
            float lp;
            double u = tke_uniform(4, 1, k) * sum, passed = mass[0];
            while (!(passed > u))
                passed += mass[++want];
            assert_true(tke_sample_draw(z, 6, (tke_norm){ 1, 0 }, &d, &s, &got, &lp, &err));
            assert_int_equal(got, want);
        }
    }
    tke_sample_space_free(&s);
    assert_null(s.mass);
}

RUN_TESTS(setup, teardown)
