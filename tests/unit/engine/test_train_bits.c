/* test_train_bits.c - the bits of a pass depend on weights and request alone; failures change
 * nothing. Each test computes the same thing in two ways and compares every bit. */
#include <math.h>
#include <stdatomic.h>

#include "support/engine/on_device.h"
#include "support/engine/tiny_model.h"
#include "support/test_case.h"
#include "train/training.h"

enum { N_DATA = 5, MAX_LEN = 150 };

typedef struct world {
    char *folder;
    tke_model *model;
    tke_device *device;
    tke_device_model *loaded;
} world;

typedef struct example { /* random data for one datum */
    int32_t tokens[MAX_LEN];
    int64_t targets[MAX_LEN];
    float weights[MAX_LEN], q[MAX_LEN], advantages[MAX_LEN];
    size_t n;
} example;

/* All tests run on the first, those of bits on every one. */
static const tiny_model families[] = {
    { .family = "qwen3", .tied = true, .seed = 3, .hidden = 48, .inner = 80, .layers = 3, .dtype = "BF16" },
    { .family = "qwen3_moe", .seed = 4, .layers = 3, .dtype = "BF16", .fused = true },
    { .family = "gpt_oss",
      .seed = 7,
      .layers = 3,
      .dtype = "BF16",
      .mxfp4 = true,
      .rope = "\"rope_type\": \"yarn\", \"factor\": 8.0, "
              "\"original_max_position_embeddings\": 64, \"truncate\": false" },
    { .family = "qwen3_5_text", .seed = 5, .layers = 3, .dtype = "BF16" },
    { .family = "qwen3_5_moe_text", .seed = 6, .layers = 2, .dtype = "BF16", .fused = true },
    { .family = "nemotron_h", .seed = 7, .layers = 5, .dtype = "BF16", .fused = true },
};
static const tiny_model *family = &families[0];

static int setup(void **state)
{
    static world w;
    tinkc_error err = { 0 };
    w.folder = tiny_model_make(family);
    w.model = tke_model_open(w.folder, &err);
    assert_string_equal(err.message, "");
    w.device = device_cpu(2);
    w.loaded = device_load(w.device, w.model);
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    device_unload(w->loaded);
    tke_device_close(w->device);
    tke_model_drop(w->model);
    tiny_model_remove(w->folder);
    return 0;
}

static void fill(example *e, uint64_t seed, size_t n)
{
    uint64_t r = seed;
    e->n = n;
    for (size_t i = 0; i < n; i++) {
        e->tokens[i] = (int32_t)(tiny_random(&r) % 101);
        e->targets[i] = (int64_t)(tiny_random(&r) % 101);
        e->weights[i] = tiny_random(&r) % 4 ? tiny_normal(&r) : 0;
        e->q[i] = -4.5f + 0.3f * tiny_normal(&r);
        e->advantages[i] = tiny_normal(&r);
    }
}

static tke_datum datum_of(const example *e, bool rl)
{
    tke_datum d = { .tokens = e->tokens, .n = e->n, .k = 1, .targets = e->targets };
    if (rl) {
        d.logprobs = e->q;
        d.advantages = e->advantages;
    } else {
        d.weights = e->weights;
    }
    return d;
}

/* An adapter whose B is not zero. */
static tke_adapter *adapter_of(const world *w, int32_t rank, uint32_t train, uint64_t seed)
{
    tinkc_error err = { 0 };
    tke_adapter_spec spec = { .rank = rank, .train = train, .seed = seed };
    tke_adapter *a = tke_adapter_new(w->device, w->model, &spec, &err);
    assert_non_null(a);
    const tke_lora_layout *l = tke_adapter_lora(a)->layout;
    uint64_t r = seed * 77 + 5;
    for (size_t g = 0; g < l->n_groups; g++)
        for (size_t i = 0; i < l->groups[g].n; i++)
            for (size_t k = 0; k < l->groups[g].n_b * l->groups[g].out[i] * l->rank; k++)
                adapter_weights(a)[l->groups[g].b[i] + k] = 0.05f * tiny_normal(&r);
    return a;
}

static tke_trainer *trainer_of(const world *w, tke_trainer_options o)
{
    tinkc_error err = { 0 };
    tke_trainer *t = tke_trainer_new(w->loaded, &o, &err);
    assert_non_null(t);
    return t;
}

static tke_loss loss_of(const char *name)
{
    tinkc_error err = { 0 };
    tke_loss loss;
    assert_true(tke_loss_parse(&loss, tkc_str(name), NULL, 0, false, &err));
    return loss;
}

static void run(tke_trainer *t, tke_pass *p)
{
    tke_pass *list[1] = { p };
    tke_trainer_run(t, list, 1);
}

static void assert_same_grads(const tke_adapter *a, const tke_adapter *b)
{
    size_t n = tke_adapter_lora(a)->layout->n_floats;
    assert_int_equal(n, tke_adapter_lora(b)->layout->n_floats);
    assert_memory_equal(adapter_grads(a), adapter_grads(b), n * sizeof(float));
}

static double size_of_grads(const tke_adapter *a)
{
    double sum = 0;
    for (size_t i = 0; i < tke_adapter_lora(a)->layout->n_floats; i++)
        sum += fabs((double)adapter_grads(a)[i]);
    return sum;
}

typedef struct batch {
    example examples[N_DATA];
    tke_datum data[N_DATA];
} batch;

static batch *batch_of(uint64_t seed, bool rl)
{
    static const size_t lengths[N_DATA] = { 40, 7, 130, 1, 65 };
    batch *b = test_malloc(sizeof *b);
    for (size_t i = 0; i < N_DATA; i++) {
        fill(&b->examples[i], seed + i, lengths[i]);
        b->data[i] = datum_of(&b->examples[i], rl);
    }
    return b;
}

/* ---- one way against another ---- */

/* The reference: one call, one thread, everything kept. */
static tke_adapter *reference(const world *w, const batch *b, tke_pass *out)
{
    tke_adapter *a = adapter_of(w, 5, 7, 1);
    world one = *w;
    one.device = device_cpu(1);
    one.loaded = device_load(one.device, w->model);
    tke_trainer *t = trainer_of(&one, (tke_trainer_options){ .keep = TKE_KEEP_ALL });
    *out = (tke_pass){
        .adapter = a, .backward = true, .loss = loss_of("cross_entropy"), .data = b->data, .n_data = N_DATA
    };
    run(t, out);
    assert_string_equal(out->err.message, "");
    assert_true(size_of_grads(a) > 1e-3);
    tke_trainer_free(t);
    device_unload(one.loaded);
    tke_device_close(one.device);
    return a;
}

static void compare_options(world *w, tke_trainer_options o)
{
    batch *b = batch_of(10, false);
    tke_pass want, got;
    tke_adapter *a = reference(w, b, &want), *c = adapter_of(w, 5, 7, 1);
    tke_trainer *t = trainer_of(w, o);
    got = (tke_pass){ .adapter = c, .backward = true, .loss = want.loss, .data = b->data, .n_data = N_DATA };
    run(t, &got);
    assert_string_equal(got.err.message, "");
    assert_same_grads(a, c);
    assert_memory_equal(want.out.logprobs, got.out.logprobs, want.out.logprobs_at[N_DATA] * 4);
    assert_memory_equal(want.out.elementwise, got.out.elementwise, want.out.elementwise_at[N_DATA] * 4);
    assert_true(want.out.metrics[0].value == got.out.metrics[0].value);
    tke_pass_free(&want);
    tke_pass_free(&got);
    tke_trainer_free(t);
    tke_adapter_free(a);
    tke_adapter_free(c);
    test_free(b);
}

TEST(threads_change_no_bit)
{
    world *w = *state;
    for (int32_t n = 2; n <= 5; n++) {
        world other = *w;
        other.device = device_cpu(n);
        other.loaded = device_load(other.device, w->model);
        compare_options(&other, (tke_trainer_options){ 0 });
        device_unload(other.loaded);
        tke_device_close(other.device);
    }
}

TEST(recomputing_changes_no_bit)
{
    compare_options(*state, (tke_trainer_options){ .keep = TKE_KEEP_NONE });
}

TEST(unit_size_changes_no_bit)
{
    compare_options(*state, (tke_trainer_options){ .microbatch_tokens = 1 });
    compare_options(*state, (tke_trainer_options){ .microbatch_tokens = 100 });
    compare_options(*state, (tke_trainer_options){ .microbatch_tokens = 180, .keep = TKE_KEEP_NONE });
}

/* A budget between nothing and everything: some layers are kept, some not. */
TEST(memory_budget_changes_no_bit)
{
    world *w = *state;
    tke_trainer *t = trainer_of(w, (tke_trainer_options){ 0 });
    size_t least = tke_trainer_bytes(t, 130, 1, &(tke_adapter_spec){ .rank = 5, .train = 7 });
    tke_trainer_free(t);
    for (size_t more = 0; more < 5; more++)
        compare_options(w, (tke_trainer_options){ .memory_bytes = least + more * 150000 });
}

/* The upper layers are kept, the lower ones computed again, from theirs alone. */
static void compare_layers_kept(size_t layers)
{
    tinkc_error err = { 0 };
    tiny_model what = { .family = "qwen2", .tied = true, .seed = 8, .hidden = 16, .inner = 16, .layers = layers };
    tke_microbatch_size size = { .n = 130, .max_rank = 5, .max_k = 1, .depth = TKE_DEPTH_ALL };
    world w = { .folder = tiny_model_make(&what), .device = device_cpu(1) };
    w.model = tke_model_open(w.folder, &err);
    assert_string_equal(err.message, "");
    w.loaded = device_load(w.device, w.model);
    const tke_device_ops *ops = w.device->ops;
    tke_device_trainer *t = ops->trainer_new(w.loaded, &(tke_device_trainer_options){ 0 }, &err);
    size_t least = ops->microbatch_bytes(t, &size, TKE_KEEP_NONE);
    size_t each = (ops->microbatch_bytes(t, &size, TKE_KEEP_ALL) - least) / layers;
    ops->trainer_free(t);
    for (size_t kept = 0; kept <= layers; kept++)
        compare_options(&w, (tke_trainer_options){ .memory_bytes = least + kept * (each + 64) });
    device_unload(w.loaded);
    tke_device_close(w.device);
    tke_model_drop(w.model);
    tiny_model_remove(w.folder);
}

TEST(layers_kept_change_no_bit)
{
    compare_layers_kept(1);
    compare_layers_kept(6);
}

TEST(split_calls_equal_one)
{
    world *w = *state;
    batch *b = batch_of(10, false);
    tke_pass want;
    tke_adapter *a = reference(w, b, &want), *c = adapter_of(w, 5, 7, 1);
    tke_trainer *t = trainer_of(w, (tke_trainer_options){ 0 });
    size_t cuts[4] = { 0, 2, 3, N_DATA };
    for (int i = 0; i < 3; i++) {
        tke_pass part = { .adapter = c,
                          .backward = true,
                          .loss = want.loss,
                          .data = b->data + cuts[i],
                          .n_data = cuts[i + 1] - cuts[i] };
        run(t, &part);
        assert_string_equal(part.err.message, "");
        assert_memory_equal(part.out.logprobs, want.out.logprobs + want.out.logprobs_at[cuts[i]],
                            part.out.logprobs_at[part.n_data] * 4);
        tke_pass_free(&part);
    }
    assert_same_grads(a, c);
    tke_pass_free(&want);
    tke_trainer_free(t);
    tke_adapter_free(a);
    tke_adapter_free(c);
    test_free(b);
}

/* Three adapters of different rank, flags and loss in one unit, and each alone. */
TEST(company_changes_no_bit)
{
    world *w = *state;
    static const int32_t ranks[3] = { 1, 8, 3 };
    static const uint32_t flags[3] = { TKE_TRAIN_MLP, 7, TKE_TRAIN_ATTN | TKE_TRAIN_UNEMBED };
    static const char *const losses[3] = { "gspo", "cross_entropy", "dro" };
    batch *b[3];
    tke_pass alone[3], both[4];
    tke_adapter *x[3], *y[3];
    tke_trainer *t = trainer_of(w, (tke_trainer_options){ 0 });
    tke_pass *list[4];
    for (int i = 0; i < 3; i++) {
        b[i] = batch_of((uint64_t)(100 * i + 50), i != 1);
        x[i] = adapter_of(w, ranks[i], flags[i], (uint64_t)i);
        y[i] = adapter_of(w, ranks[i], flags[i], (uint64_t)i);
        alone[i] = (tke_pass){
            .adapter = x[i], .backward = true, .loss = loss_of(losses[i]), .data = b[i]->data, .n_data = N_DATA
        };
        run(t, &alone[i]);
        assert_string_equal(alone[i].err.message, "");
        both[i] = alone[i];
        both[i].adapter = y[i];
        list[i] = &both[i];
    }
    both[3] = (tke_pass){ .loss = loss_of("cross_entropy"), .data = b[1]->data, .n_data = 2 };
    list[3] = &both[3];
    tke_trainer_run(t, list, 4);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(both[i].err.message, "");
        assert_same_grads(x[i], y[i]);
        assert_memory_equal(alone[i].out.logprobs, both[i].out.logprobs, alone[i].out.logprobs_at[N_DATA] * 4);
        assert_int_equal(alone[i].out.n_metrics, both[i].out.n_metrics);
        for (size_t k = 0; k < alone[i].out.n_metrics; k++)
            assert_true(alone[i].out.metrics[k].value == both[i].out.metrics[k].value);
        tke_pass_free(&alone[i]);
        tke_pass_free(&both[i]);
        tke_adapter_free(x[i]);
        tke_adapter_free(y[i]);
    }
    tke_pass_free(&both[3]);
    for (int i = 0; i < 3; i++)
        test_free(b[i]);
    tke_trainer_free(t);
}

TEST(permuted_data_permute_outputs)
{
    world *w = *state;
    batch *b = batch_of(10, true);
    tke_trainer *t = trainer_of(w, (tke_trainer_options){ 0 });
    tke_adapter *a = adapter_of(w, 4, 7, 9);
    tke_datum reversed[N_DATA];
    for (size_t i = 0; i < N_DATA; i++)
        reversed[i] = b->data[N_DATA - 1 - i];
    tke_pass p = { .adapter = a, .loss = loss_of("cispo"), .data = b->data, .n_data = N_DATA };
    tke_pass q = p;
    q.data = reversed;
    run(t, &p);
    run(t, &q);
    for (size_t i = 0; i < N_DATA; i++)
        assert_memory_equal(p.out.logprobs + p.out.logprobs_at[i], q.out.logprobs + q.out.logprobs_at[N_DATA - 1 - i],
                            b->data[i].n * 4);
    assert_true(size_of_grads(a) == 0); /* forward touches nothing */
    tke_pass_free(&p);
    tke_pass_free(&q);
    tke_adapter_free(a);
    tke_trainer_free(t);
    test_free(b);
}

/* ---- properties ---- */

TEST(fresh_adapter_is_the_base_model)
{
    world *w = *state;
    batch *b = batch_of(30, false);
    tinkc_error err = { 0 };
    tke_adapter_spec spec = { .rank = 6, .train = 7, .seed = 4 };
    tke_adapter *a = tke_adapter_new(w->device, w->model, &spec, &err);
    tke_trainer *t = trainer_of(w, (tke_trainer_options){ 0 });
    tke_pass with = {
        .adapter = a, .backward = true, .loss = loss_of("cross_entropy"), .data = b->data, .n_data = N_DATA
    };
    tke_pass bare = { .loss = with.loss, .data = b->data, .n_data = N_DATA };
    run(t, &with);
    run(t, &bare);
    assert_memory_equal(with.out.logprobs, bare.out.logprobs, with.out.logprobs_at[N_DATA] * 4);
    const tke_lora_layout *l = tke_adapter_lora(a)->layout;
    double db = 0;
    for (size_t g = 0; g < l->n_groups; g++) {
        for (size_t k = 0; k < l->groups[g].n * l->rank * l->groups[g].in; k++)
            assert_true(adapter_grads(a)[l->groups[g].a + k] == 0); /* dA, as B is zero */
        for (size_t k = 0; k < l->groups[g].out[0] * l->rank; k++)
            db += fabs((double)adapter_grads(a)[l->groups[g].b[0] + k]);
    }
    assert_true(db > 1e-3);
    tke_pass_free(&with);
    tke_pass_free(&bare);
    tke_adapter_free(a);
    tke_trainer_free(t);
    test_free(b);
}

/* ---- gradients ---- */

static double loss_at(tke_trainer *t, tke_pass p)
{
    p.backward = false;
    run(t, &p);
    assert_string_equal(p.err.message, "");
    double value = p.out.metrics[0].value;
    tke_pass_free(&p);
    return value;
}

/* The derivative of the loss along the gradient of part of an adapter is that gradient's length. The step is wide, because
 * the losses are sums in single precision. */
static void check_part(tke_trainer *t, const tke_pass *p, const float *grads, size_t begin, size_t end)
{
    enum { MOST = 1 << 14 };
    static float kept[MOST];
    float *x = adapter_weights(p->adapter) + begin;
    double length = 0, value[2];
    assert_true(end - begin <= MOST);
    for (size_t i = begin; i < end; i++)
        length += (double)grads[i] * (double)grads[i];
    length = sqrt(length);
    assert_true(length > 0.5);
    double h = 0.05 / length;
    memcpy(kept, x, (end - begin) * sizeof *x);
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < end - begin; i++)
            x[i] = kept[i] + (float)((side ? -h : h) / length) * grads[begin + i];
        value[side] = loss_at(t, *p);
    }
    memcpy(x, kept, (end - begin) * sizeof *x);
    double slope = (value[0] - value[1]) / (2 * h);
    if (!(fabs(slope - length) <= 0.01 * length))
        fail_msg("numbers %zu to %zu: the gradient's length is %g, the slope of the loss %g", begin, end, length,
                 slope);
}

/* Each matrix by itself, A and B. golden.double_gradients does this for every loss and family, in double. */
TEST(gradients_are_slopes)
{
    world *w = *state;
    batch *b = batch_of(50, false);
    tke_adapter *a = adapter_of(w, 3, 7, 6);
    tke_trainer *t = trainer_of(w, (tke_trainer_options){ 0 });
    const tke_lora_layout *l = tke_adapter_lora(a)->layout;
    tke_pass p = { .adapter = a, .backward = true, .loss = loss_of("cross_entropy"), .data = b->data, .n_data = 2 };
    run(t, &p);
    assert_string_equal(p.err.message, "");
    tke_pass_free(&p);
    float *grads = test_malloc(l->n_floats * sizeof *grads);
    memcpy(grads, adapter_grads(a), l->n_floats * sizeof *grads);
    for (size_t g = 0; g < l->n_groups; g++)
        for (size_t i = 0; i < l->groups[g].n; i++) {
            size_t size = l->rank * l->groups[g].in, at = l->groups[g].a + i * size;
            check_part(t, &p, grads, at, at + size);
            at = l->groups[g].b[i];
            check_part(t, &p, grads, at, at + l->rank * l->groups[g].out[i]);
        }
    test_free(grads);
    tke_adapter_free(a);
    tke_trainer_free(t);
    test_free(b);
}

/* Weights of -1 give the gradient of weights of 1, with the other sign. */
TEST(opposite_weights_give_opposite_gradients)
{
    world *w = *state;
    batch *b = batch_of(60, false);
    tke_adapter *a[2] = { adapter_of(w, 3, 7, 6), adapter_of(w, 3, 7, 6) };
    tke_trainer *t = trainer_of(w, (tke_trainer_options){ 0 });
    for (int side = 0; side < 2; side++) {
        tke_pass p = {
            .adapter = a[side], .backward = true, .loss = loss_of("cross_entropy"), .data = b->data, .n_data = 2
        };
        for (size_t i = 0; i < 2; i++)
            for (size_t k = 0; k < b->examples[i].n; k++)
                b->examples[i].weights[k] = side ? -1 : 1;
        run(t, &p);
        assert_string_equal(p.err.message, "");
        tke_pass_free(&p);
    }
    assert_true(size_of_grads(a[0]) > 1);
    for (size_t i = 0; i < tke_adapter_lora(a[0])->layout->n_floats; i++)
        assert_true(adapter_grads(a[0])[i] == -adapter_grads(a[1])[i]);
    tke_adapter_free(a[0]);
    tke_adapter_free(a[1]);
    tke_trainer_free(t);
    test_free(b);
}

/* The custom-loss path: cross_entropy with weights -g gives any loss's gradient. */
TEST(cross_entropy_with_minus_g_equals_ppo)
{
    world *w = *state;
    batch *b = batch_of(70, true);
    tke_trainer *t = trainer_of(w, (tke_trainer_options){ 0 });
    tke_adapter *x = adapter_of(w, 4, 7, 2), *y = adapter_of(w, 4, 7, 2);
    tke_pass p = { .adapter = x, .backward = true, .loss = loss_of("ppo"), .data = b->data, .n_data = N_DATA };
    run(t, &p);
    for (size_t i = 0; i < N_DATA; i++)
        for (size_t k = 0; k < b->data[i].n; k++) {
            tke_loss_sums sums = { 0 };
            float g;
            const tke_real *lp = p.out.logprobs + p.out.logprobs_at[i] + k;
            tke_loss_token(&p.loss, &(tke_token){ &b->data[i], k, lp, NULL }, &g, &sums);
            b->examples[i].weights[k] = -g;
        }
    tke_datum data[N_DATA];
    for (size_t i = 0; i < N_DATA; i++)
        data[i] = datum_of(&b->examples[i], false);
    tke_pass q = { .adapter = y, .backward = true, .loss = loss_of("cross_entropy"), .data = data, .n_data = N_DATA };
    run(t, &q);
    assert_same_grads(x, y);
    tke_pass_free(&p);
    tke_pass_free(&q);
    tke_adapter_free(x);
    tke_adapter_free(y);
    tke_trainer_free(t);
    test_free(b);
}

/* Soft targets with one heavy column are dense targets; doubled tokens add up. */
TEST(soft_targets_agree_with_dense)
{
    world *w = *state;
    example e;
    int64_t targets[MAX_LEN * 3];
    float weights[MAX_LEN * 3];
    fill(&e, 5, 33);
    for (size_t i = 0; i < e.n; i++) {
        targets[3 * i] = targets[3 * i + 2] = e.targets[i];
        targets[3 * i + 1] = 0;
        weights[3 * i] = e.weights[i] / 2;
        weights[3 * i + 1] = 0;
        weights[3 * i + 2] = e.weights[i] / 2;
    }
    tke_datum dense = datum_of(&e, false), soft = dense;
    soft.k = 3;
    soft.targets = targets;
    soft.weights = weights;
    tke_trainer *t = trainer_of(w, (tke_trainer_options){ 0 });
    tke_adapter *x = adapter_of(w, 4, 7, 2), *y = adapter_of(w, 4, 7, 2);
    tke_pass p = { .adapter = x, .backward = true, .loss = loss_of("cross_entropy"), .data = &dense, .n_data = 1 };
    tke_pass q = p;
    q.adapter = y;
    q.data = &soft;
    run(t, &p);
    run(t, &q);
    assert_string_equal(q.err.message, "");
    assert_true(fabs(p.out.metrics[0].value - q.out.metrics[0].value) < 1e-3);
    for (size_t i = 0; i < e.n; i++)
        assert_true(p.out.logprobs[i] == q.out.logprobs[3 * i]);
    double off = 0, norm = 0;
    for (size_t i = 0; i < tke_adapter_lora(x)->layout->n_floats; i++) {
        double d = (double)adapter_grads(x)[i] - adapter_grads(y)[i];
        off += d * d;
        norm += (double)adapter_grads(x)[i] * adapter_grads(x)[i];
    }
    assert_true(off < 1e-10 * norm);
    tke_pass_free(&p);
    tke_pass_free(&q);
    tke_adapter_free(x);
    tke_adapter_free(y);
    tke_trainer_free(t);
}

/* ---- transactions ---- */

/* The second of three passes overflows: it fails, the others are as if it had not been there. */
TEST(a_failing_pass_changes_nothing)
{
    world *w = *state;
    batch *good = batch_of(10, true), *more = batch_of(20, true), *bad = batch_of(30, true);
    bad->examples[2].q[17] = -3e38f; /* the ratio overflows */
    tke_trainer *t = trainer_of(w, (tke_trainer_options){ 0 });
    tke_adapter *x = adapter_of(w, 4, 7, 2), *y = adapter_of(w, 4, 7, 2);
    tke_loss loss = loss_of("importance_sampling");
    tke_pass p[3], q[2], *list[3];
    const batch *order[3] = { good, bad, more };
    for (int i = 0; i < 3; i++) {
        p[i] = (tke_pass){ .adapter = x, .backward = true, .loss = loss, .data = order[i]->data, .n_data = N_DATA };
        list[i] = &p[i];
    }
    tke_trainer_run(t, list, 3);
    assert_int_equal(p[1].err.code, TINKC_E_BAD_REQUEST);
    assert_non_null(strstr(p[1].err.message, "datum 2"));
    assert_non_null(strstr(p[1].err.message, "17"));
    assert_int_equal(p[0].err.code, 0);
    assert_int_equal(p[2].err.code, 0);
    for (int i = 0; i < 2; i++) {
        q[i] = (tke_pass){ .adapter = y, .backward = true, .loss = loss, .data = order[2 * i]->data, .n_data = N_DATA };
        run(t, &q[i]);
        assert_int_equal(q[i].err.code, 0);
        assert_memory_equal(p[2 * i].out.logprobs, q[i].out.logprobs, q[i].out.logprobs_at[N_DATA] * 4);
        tke_pass_free(&q[i]);
    }
    assert_same_grads(x, y);
    for (int i = 0; i < 3; i++)
        tke_pass_free(&p[i]);
    tke_adapter_free(x);
    tke_adapter_free(y);
    tke_trainer_free(t);
    test_free(good);
    test_free(more);
    test_free(bad);
}

/* Weights so large that only the gradient overflows. */
TEST(a_gradient_that_overflows_fails_its_pass)
{
    world *w = *state;
    batch *good = batch_of(10, false), *bad = batch_of(30, false);
    for (size_t i = 0; i < bad->examples[0].n; i++)
        bad->examples[0].weights[i] = 1e37f;
    tke_trainer *t = trainer_of(w, (tke_trainer_options){ 0 });
    tke_adapter *x = adapter_of(w, 4, 7, 2), *y = adapter_of(w, 4, 7, 2);
    tke_adapter *big = adapter_of(w, 4, 7, 2);
    (void)big;
    for (size_t i = 0; i < tke_adapter_lora(x)->layout->n_floats; i++) {
        adapter_weights(x)[i] *= 8;
        adapter_weights(y)[i] *= 8;
    }
    tke_pass p[2] = {
        { .adapter = x, .backward = true, .loss = loss_of("cross_entropy"), .data = bad->data, .n_data = N_DATA },
        { .adapter = x, .backward = true, .loss = loss_of("cross_entropy"), .data = good->data, .n_data = N_DATA }
    };
    tke_pass *list[2] = { &p[0], &p[1] };
    tke_trainer_run(t, list, 2);
    assert_int_not_equal(p[0].err.code, 0);
    assert_int_equal(p[1].err.code, 0);
    tke_pass q = { .adapter = y, .backward = true, .loss = p[1].loss, .data = good->data, .n_data = N_DATA };
    run(t, &q);
    assert_same_grads(x, y);
    tke_pass_free(&p[0]);
    tke_pass_free(&p[1]);
    tke_pass_free(&q);
    tke_adapter_free(x);
    tke_adapter_free(y);
    tke_adapter_free(big);
    tke_trainer_free(t);
    test_free(good);
    test_free(bad);
}

TEST(bad_data_are_named)
{
    world *w = *state;
    batch *b = batch_of(10, false);
    tke_trainer *t = trainer_of(w, (tke_trainer_options){ 0 });
    tke_adapter *a = adapter_of(w, 4, 7, 2);
    tke_pass p = {
        .adapter = a, .backward = true, .loss = loss_of("cross_entropy"), .data = b->data, .n_data = N_DATA
    };
    int32_t kept = b->examples[2].tokens[5];
    b->examples[2].tokens[5] = 101;
    run(t, &p);
    assert_int_equal(p.err.code, TINKC_E_BAD_REQUEST);
    assert_non_null(strstr(p.err.message, "datum 2: token 101 at 5"));
    tke_pass_free(&p);
    b->examples[2].tokens[5] = kept;
    b->data[1].n = 0;
    run(t, &p);
    assert_non_null(strstr(p.err.message, "datum 1: model_input is empty"));
    tke_pass_free(&p);
    p.n_data = 0;
    run(t, &p);
    assert_non_null(strstr(p.err.message, "data is empty"));
    tke_pass_free(&p);
    assert_true(size_of_grads(a) == 0);
    tke_adapter_free(a);
    tke_trainer_free(t);
    test_free(b);
}

TEST(too_little_memory_is_an_error)
{
    world *w = *state;
    batch *b = batch_of(10, false);
    tke_trainer *t = trainer_of(w, (tke_trainer_options){ .memory_bytes = 1000 });
    tke_adapter *a = adapter_of(w, 4, 7, 2);
    tke_pass p = {
        .adapter = a, .backward = true, .loss = loss_of("cross_entropy"), .data = b->data, .n_data = N_DATA
    };
    run(t, &p);
    assert_int_equal(p.err.code, TINKC_E_BAD_REQUEST);
    tke_pass_free(&p);
    tke_trainer_set_memory(t, 64 << 20);
    run(t, &p);
    assert_int_equal(p.err.code, 0);
    tke_pass_free(&p);
    tke_adapter_free(a);
    tke_trainer_free(t);
    test_free(b);
}

TEST(a_stop_cancels_a_pass)
{
    world *w = *state;
    batch *b = batch_of(10, false);
    _Atomic(bool) stop = true;
    tke_trainer *t = trainer_of(w, (tke_trainer_options){ .stop = &stop });
    tke_adapter *a = adapter_of(w, 4, 7, 2);
    tke_pass p = {
        .adapter = a, .backward = true, .loss = loss_of("cross_entropy"), .data = b->data, .n_data = N_DATA
    };
    run(t, &p);
    assert_int_equal(p.err.code, TINKC_E_CANCELLED);
    assert_true(size_of_grads(a) == 0);
    tke_pass_free(&p);
    tke_adapter_free(a);
    tke_trainer_free(t);
    test_free(b);
}

/* ---- the optimizer ---- */

static const tke_adam_params adam = { 1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0 };

static void step(tke_adapter *a)
{
    tinkc_error err = { 0 };
    tke_metric metrics[TKE_MAX_METRICS];
    size_t n;
    assert_true(tke_optim_step(a, &adam, metrics, &n, &err));
    assert_int_equal(n, 8);
    assert_string_equal(metrics[0].name, "optim/grad_norm");
}

/* save -> load (optimizer, pending gradients) -> step equals step without the detour. */
TEST(saved_state_goes_on_with_equal_bits)
{
    world *w = *state;
    tinkc_error err = { 0 };
    batch *b = batch_of(10, false), *c = batch_of(60, false);
    tke_trainer *t = trainer_of(w, (tke_trainer_options){ 0 });
    tke_adapter *a = adapter_of(w, 4, 7, 2), *fresh = adapter_of(w, 4, 7, 99);
    tke_loss loss = loss_of("cross_entropy");
    tke_pass p = { .adapter = a, .backward = true, .loss = loss, .data = b->data, .n_data = N_DATA };
    run(t, &p);
    step(a);
    tke_pass_free(&p);
    run(t, &p); /* pending gradients */
    tke_pass_free(&p);
    char *folder = tiny_folder();
    tke_state *s = tke_state_take(a, &err);
    tke_adapter_save how = { .base_name = "org/tiny" };
    assert_true(tke_state_write(s, folder, &how, &err));
    assert_true(tke_adapter_load(fresh, folder, true, &err));
    assert_int_equal(tke_adapter_step(fresh), 1);
    assert_same_grads(a, fresh);
    tke_adapter *both[2] = { a, fresh };
    for (int i = 0; i < 2; i++) {
        tke_pass q = { .adapter = both[i], .backward = true, .loss = loss, .data = c->data, .n_data = N_DATA };
        run(t, &q);
        tke_pass_free(&q);
        step(both[i]);
    }
    assert_memory_equal(adapter_weights(a), adapter_weights(fresh),
                        tke_adapter_lora(a)->layout->n_floats * sizeof(float));
    /* weights only: moments and step start from zero */
    assert_true(tke_adapter_load(fresh, folder, false, &err));
    assert_int_equal(tke_adapter_step(fresh), 0);
    assert_true(size_of_grads(fresh) == 0);
    tke_state_free(s);
    tiny_model_remove(folder);
    tke_adapter_free(a);
    tke_adapter_free(fresh);
    tke_trainer_free(t);
    test_free(b);
    test_free(c);
}

TEST(step_checks_its_numbers)
{
    tinkc_error err = { 0 };
    tke_adam_params p = adam;
    p.beta2 = 1;
    assert_false(tke_adam_check(&p, &err));
    assert_int_equal(err.code, TINKC_E_BAD_REQUEST);
    assert_non_null(strstr(err.message, "beta2"));
    p = adam;
    p.eps = 0;
    err = (tinkc_error){ 0 };
    assert_false(tke_adam_check(&p, &err));
    p = adam;
    p.learning_rate = NAN;
    err = (tinkc_error){ 0 };
    assert_false(tke_adam_check(&p, &err));
}

/* Eight short sequences, learnt by heart. */
TEST(eight_sequences_are_learnt_by_heart)
{
    world *w = *state;
    tinkc_error err = { 0 };
    example e[8];
    tke_datum data[8];
    size_t tokens = 0;
    for (size_t i = 0; i < 8; i++) {
        fill(&e[i], i, 12);
        for (size_t k = 0; k < 12; k++) {
            e[i].weights[k] = 1;
            e[i].targets[k] = k + 1 < 12 ? e[i].tokens[k + 1] : 1;
        }
        data[i] = datum_of(&e[i], false);
        tokens += 12;
    }
    tke_adapter_spec spec = { .rank = 8, .train = 7, .seed = 1 };
    tke_adapter *a = tke_adapter_new(w->device, w->model, &spec, &err);
    tke_trainer *t = trainer_of(w, (tke_trainer_options){ 0 });
    tke_adam_params how = { 1e-2, 0.9, 0.95, 1e-12, 0, 0 };
    double loss = 0;
    for (int i = 0; i < 60; i++) {
        tke_pass p = { .adapter = a, .backward = true, .loss = loss_of("cross_entropy"), .data = data, .n_data = 8 };
        tke_metric metrics[TKE_MAX_METRICS];
        size_t n;
        run(t, &p);
        assert_int_equal(p.err.code, 0);
        loss = p.out.metrics[0].value / (double)tokens;
        tke_pass_free(&p);
        assert_true(tke_optim_step(a, &how, metrics, &n, &err));
    }
    assert_true(loss < 0.05);
    tke_adapter_free(a);
    tke_trainer_free(t);
}

/* A step that would overflow is refused; the next gives the bits of one that never saw it. */
TEST(a_failing_step_changes_nothing)
{
    world *w = *state;
    batch *b = batch_of(10, false);
    tke_trainer *t = trainer_of(w, (tke_trainer_options){ 0 });
    tke_adapter *x = adapter_of(w, 4, 7, 2), *y = adapter_of(w, 4, 7, 2), *both[2] = { x, y };
    size_t n_floats = tke_adapter_lora(x)->layout->n_floats;
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 2; i++) {
            tke_pass p = { .adapter = both[i],
                           .backward = true,
                           .loss = loss_of("cross_entropy"),
                           .data = b->data,
                           .n_data = N_DATA };
            run(t, &p);
            assert_int_equal(p.err.code, 0);
            tke_pass_free(&p);
            if (i == 0) {
                tinkc_error err = { 0 };
                tke_metric metrics[TKE_MAX_METRICS];
                size_t n;
                tke_adam_params wild = { 1e38, 0.9, 0.95, 1e-8, 1e3, 0 };
                assert_false(tke_optim_step(x, &wild, metrics, &n, &err));
                assert_int_equal(err.code, TINKC_E_BAD_REQUEST);
                assert_non_null(strstr(err.message, "nothing changed"));
                assert_int_equal(n, 0);
                assert_int_equal(tke_adapter_step(x), round);
            }
            step(both[i]);
            assert_int_equal(tke_adapter_step(both[i]), round + 1);
        }
    assert_memory_equal(adapter_weights(x), adapter_weights(y), n_floats * sizeof(float));
    tke_adapter_free(x);
    tke_adapter_free(y);
    tke_trainer_free(t);
    test_free(b);
}

int main(void)
{
    const struct CMUnitTest bits[] = {
        cmocka_unit_test(threads_change_no_bit),           cmocka_unit_test(recomputing_changes_no_bit),
        cmocka_unit_test(unit_size_changes_no_bit),        cmocka_unit_test(memory_budget_changes_no_bit),
        cmocka_unit_test(layers_kept_change_no_bit),       cmocka_unit_test(split_calls_equal_one),
        cmocka_unit_test(company_changes_no_bit),          cmocka_unit_test(permuted_data_permute_outputs),
        cmocka_unit_test(fresh_adapter_is_the_base_model), cmocka_unit_test(saved_state_goes_on_with_equal_bits),
    };
    int failed = test_cases_run(setup, teardown);
    for (size_t i = 1; i < sizeof families / sizeof *families; i++) {
        family = &families[i];
        failed += cmocka_run_group_tests_name(family->family, bits, setup, teardown);
    }
    return failed;
}
