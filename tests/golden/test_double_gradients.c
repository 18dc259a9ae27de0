/* test_double_gradients.c - gradients of every loss, family and train flag against central
 * differences. Linked with the maths in double (reference kernels), so the differences are good to
 * about nine digits; what is tested is the code of model/ and train/. */
#include <math.h>

#include "support/engine/on_device.h"
#include "support/engine/tiny_model.h"
#include "support/test_case.h"
#include "train/training.h"

enum { VOCAB = 101, N_DATA = 2, MAX_LEN = 9, K = 3, N_FAMILIES = 10, N_LOSSES = 8 };
static const size_t lengths[N_DATA] = { 9, 5 };

static const tiny_model families[N_FAMILIES] = {
    { .family = "llama",
      .seed = 1,
      .rope = "\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, "
              "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 256" },
    { .family = "qwen2", .seed = 2, .tied = true },
    { .family = "qwen3", .seed = 3, .hidden = 24 }, /* n d is not the width */
    { .family = "llama",
      .seed = 4,
      .bias = true,
      .tied = true,
      .kv_heads = 4,
      .old_rope = true,
      .rope = "\"type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 64" },
    { .family = "qwen3_moe", .seed = 5 },
    { .family = "qwen3_5_text", .seed = 7, .layers = 2 },
    { .family = "qwen3_5_moe_text", .seed = 9, .layers = 2 },
    { .family = "nemotron_h", .seed = 10, .layers = 5 },
    { .family = "qwen3_moe", .seed = 6, .extra = "\"norm_topk_prob\": false" },
    { .family = "gpt_oss",
      .seed = 7,
      .rope = "\"rope_type\": \"yarn\", \"factor\": 8.0, "
              "\"original_max_position_embeddings\": 64, \"truncate\": false" },
};
static const char *const losses[N_LOSSES] = { "cross_entropy", "soft targets", "importance_sampling", "ppo",
                                              "cispo",         "dro",          "cispo, clipped",      "gspo" };

typedef struct world {
    char *folder;
    tke_model *model;
    tke_device_model *loaded;
    tke_trainer *trainer;
    tke_adapter *adapter;
    int32_t tokens[N_DATA][MAX_LEN];
    int64_t targets[N_DATA][MAX_LEN * K];
    float weights[N_DATA][MAX_LEN * K], q[N_DATA][MAX_LEN], advantages[N_DATA][MAX_LEN];
    tke_datum data[N_DATA];
    uint64_t random;
} world;

static tke_device *device;

static tke_loss loss_of(const char *name)
{
    tinkc_error err = { 0 };
    tke_loss loss;
    assert_true(tke_loss_parse(&loss, tkc_str(name), NULL, 0, false, &err));
    return loss;
}

static double evaluate(world *w, const tke_loss *loss, bool backward, double lp[N_DATA][MAX_LEN])
{
    tke_pass p = { .adapter = w->adapter, .backward = backward, .loss = *loss, .data = w->data, .n_data = N_DATA };
    tke_pass *list[1] = { &p };
    tke_trainer_run(w->trainer, list, 1);
    if (p.err.code)
        fail_msg("%s", p.err.message);
    for (size_t d = 0; lp && d < N_DATA; d++)
        for (size_t i = 0; i < lengths[d]; i++)
            lp[d][i] = (double)p.out.logprobs[p.out.logprobs_at[d] + i * w->data[d].k];
    double value = p.out.metrics[0].value;
    tke_pass_free(&p);
    return value;
}

static void make_data(world *w)
{
    for (size_t d = 0; d < N_DATA; d++) {
        for (size_t i = 0; i < lengths[d]; i++) {
            w->tokens[d][i] = (int32_t)(tiny_random(&w->random) % VOCAB);
            w->advantages[d][i] = i % 4 == 3 ? 0 : tiny_normal(&w->random);
            for (size_t k = 0; k < K; k++) {
                w->targets[d][i * K + k] = (int64_t)(tiny_random(&w->random) % VOCAB);
                w->weights[d][i * K + k] = (i + k) % 5 == 2 ? 0 : tiny_normal(&w->random);
            }
        }
        w->targets[d][1] = w->targets[d][0]; /* a token named twice in one row */
        w->data[d] = (tke_datum){
            .tokens = w->tokens[d], .n = lengths[d], .k = 1, .targets = w->targets[d], .weights = w->weights[d]
        };
    }
}

/* Ratios inside, below and above the band, none near an edge. */
static void choose_q(world *w)
{
    static const double ratios[5] = { 0.5, 1.5, 0.9, 1.1, 1.0 };
    double lp[N_DATA][MAX_LEN];
    tke_loss loss = loss_of("cross_entropy");
    evaluate(w, &loss, false, lp);
    for (size_t d = 0; d < N_DATA; d++)
        for (size_t i = 0; i < lengths[d]; i++) {
            w->q[d][i] = (float)(lp[d][i] - log(ratios[(d + i) % 5]));
            w->data[d].weights = NULL;
            w->data[d].logprobs = w->q[d];
            w->data[d].advantages = w->advantages[d];
        }
}

/* cispo stops the gradient at its factor, so its own value tells nothing. Within the band its
 * gradient is importance_sampling's; where every factor is clipped to 2 it is that of cross_entropy
 * with weights 2 A. */
static tke_loss surrogate_of_cispo(world *w, bool clipped)
{
    if (!clipped)
        return loss_of("importance_sampling");
    for (size_t d = 0; d < N_DATA; d++) {
        for (size_t i = 0; i < lengths[d]; i++)
            w->weights[d][i] = 2 * w->advantages[d][i];
        w->data[d].weights = w->weights[d];
        w->data[d].logprobs = w->data[d].advantages = NULL;
        w->data[d].clip_low = w->data[d].clip_high = NULL;
    }
    return loss_of("cross_entropy");
}

/* gspo's gradient is that of its value where a sequence has one advantage. */
static void equal_advantages(world *w)
{
    for (size_t d = 0; d < N_DATA; d++)
        for (size_t i = 0; i < lengths[d]; i++)
            if (w->advantages[d][i] != 0)
                w->advantages[d][i] = d % 2 ? -0.7f : 1.3f;
}

static void open_world(world *w, const tiny_model *t, uint32_t train)
{
    tinkc_error err = { 0 };
    *w = (world){ .random = t->seed * 1000 + train };
    w->folder = tiny_model_make(t);
    w->model = tke_model_open(w->folder, &err);
    if (!w->model)
        fail_msg("%s", err.message);
    w->loaded = device_load(device, w->model);
    w->trainer = tke_trainer_new(w->loaded, &(tke_trainer_options){ .keep = train & 1 ? TKE_KEEP_NONE : 0 }, &err);
    tke_adapter_spec spec = { .rank = 3, .train = train, .seed = 9 };
    w->adapter = tke_adapter_new(device, w->model, &spec, &err);
    assert_non_null(w->adapter);
    tke_real *weights = adapter_weights(w->adapter);
    for (size_t i = 0; i < tke_adapter_lora(w->adapter)->layout->n_floats; i++)
        weights[i] += 0.05 * (double)tiny_normal(&w->random);
    make_data(w);
}

static void close_world(world *w)
{
    tke_adapter_free(w->adapter);
    tke_trainer_free(w->trainer);
    device_unload(w->loaded);
    tke_model_drop(w->model);
    tiny_model_remove(w->folder);
}

/* A random tensor's random element: an offset in the block. */
static size_t random_place(world *w)
{
    const tke_lora_layout *l = tke_adapter_lora(w->adapter)->layout;
    for (;;) {
        const tke_lora_group *g = &l->groups[tiny_random(&w->random) % l->n_groups];
        if (!g->n)
            continue;
        if (tiny_random(&w->random) % 2)
            return g->a + tiny_random(&w->random) % (g->n_a * g->n * g->rank * g->in);
        size_t i = tiny_random(&w->random) % g->n;
        return g->b[i] + tiny_random(&w->random) % (g->n_b * g->out[i] * g->rank);
    }
}

static void compare(world *w, const tke_loss *loss, size_t place, const char *what)
{
    const double h = 1e-5;
    tke_real *x = &adapter_weights(w->adapter)[place], kept = *x;
    *x = kept + h;
    double up = evaluate(w, loss, false, NULL);
    *x = kept - h;
    double down = evaluate(w, loss, false, NULL);
    *x = kept;
    double fd = (up - down) / (2 * h), g = (double)adapter_grads(w->adapter)[place];
    if (!(fabs(g - fd) <= 1e-7 + 1e-5 * fabs(fd)))
        fail_msg("%s: at %zu the gradient is %.12g, the difference %.12g", what, place, g, fd);
}

/* The derivative along a random direction of the whole adapter. */
static void compare_direction(world *w, const tke_loss *loss, const char *what)
{
    const double h = 1e-5;
    size_t n = tke_adapter_lora(w->adapter)->layout->n_floats;
    tke_real *x = adapter_weights(w->adapter);
    double *kept = test_malloc(n * sizeof *kept), *way = test_malloc(n * sizeof *way), want = 0;
    double value[2];
    for (size_t i = 0; i < n; i++) {
        kept[i] = x[i];
        way[i] = (double)tiny_normal(&w->random) / sqrt((double)n); /* of length 1 */
        want += way[i] * (double)adapter_grads(w->adapter)[i];
    }
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < n; i++)
            x[i] = kept[i] + (side ? -h : h) * way[i];
        value[side] = evaluate(w, loss, false, NULL);
    }
    memcpy(x, kept, n * sizeof *kept);
    double fd = (value[0] - value[1]) / (2 * h);
    if (!(fabs(want - fd) <= 1e-7 + 1e-5 * fabs(fd)))
        fail_msg("%s: along a direction %.12g, the difference %.12g", what, want, fd);
    test_free(kept);
    test_free(way);
}

static void check(const tiny_model *t, uint32_t train, int which, int coordinates)
{
    world w;
    char what[80];
    snprintf(what, sizeof what, "%s %u, train %u, %s", t->family, (unsigned)t->seed, train, losses[which]);
    open_world(&w, t, train);
    static const float two[MAX_LEN] = { 2, 2, 2, 2, 2, 2, 2, 2, 2 };
    tke_loss loss = loss_of(which == 1 ? "cross_entropy" : which == 6 ? "cispo" : losses[which]);
    if (which == 1)
        for (size_t d = 0; d < N_DATA; d++)
            w.data[d].k = K;
    if (which > 1)
        choose_q(&w);
    for (size_t d = 0; which == 6 && d < N_DATA; d++)
        w.data[d].clip_low = w.data[d].clip_high = two;
    if (which == 7)
        equal_advantages(&w);
    evaluate(&w, &loss, true, NULL);
    if (which == 4 || which == 6)
        loss = surrogate_of_cispo(&w, which == 6);
    for (int i = 0; i < coordinates; i++)
        compare(&w, &loss, random_place(&w), what);
    compare_direction(&w, &loss, what);
    close_world(&w);
}

TEST(every_loss_and_family)
{
    for (int f = 0; f < N_FAMILIES; f++)
        for (int which = 0; which < N_LOSSES; which++)
            check(&families[f], 7, which, 200);
}

TEST(every_train_flag)
{
    for (uint32_t train = 1; train < 7; train++)
        for (int which = 0; which < N_LOSSES; which++)
            check(&families[(train + (uint32_t)which) % N_FAMILIES], train, which, 40);
}

int main(void)
{
    device = device_cpu(1); /* in double there is the reference only */
    int failed = test_cases_run(NULL, NULL);
    tke_device_close(device);
    return failed;
}
