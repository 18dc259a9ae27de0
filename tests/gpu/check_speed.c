/* check_speed.c - how long training and decoding of large models take. */
#include "check_steps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "math/format.h"

static const shape large[] = {
    { "0.6B", 1024, 3072, 28, 16, 8, 128, 151936, 40960, true, true, .window = 0 },
    { "4B", 2560, 9728, 36, 32, 8, 128, 151936, 40960, true, true, .window = 0 },
    { "8B", 4096, 12288, 36, 32, 8, 128, 151936, 40960, false, true, .window = 0 },
    { "32B", 5120, 25600, 64, 64, 8, 128, 151936, 40960, false, true, .window = 0 },
    { "30B-A3B", 2048, 768, 48, 32, 4, 128, 151936, 4096, false, true, .experts = 128, .top = 8 },
    { "gpt-oss-20b", 2880, 2880, 24, 64, 8, 64, 201088, 4096, false, .bias = true, .window = 128,
      .experts = 32, .top = 4, .oss = true },
    { "nemotron-30B-A3B", 2688, 1856, 52, 32, 2, 128, 131072, 4096, .experts = 128, .top = 6,
      .pattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", .shared = 3712,
      .space_heads = 64, .space_dim = 64, .state = 128, .groups = 8 },
    { "qwen3.5-4B", 2560, 9216, 32, 16, 4, 256, 248320, 4096, .tied = true, .qk_norm = true,
      .pattern = "DDDGDDDGDDDGDDDGDDDGDDDGDDDGDDDG", .gate = true, .still = 192, .key_heads = 16,
      .value_heads = 32, .key_dim = 128, .value_dim = 128 },
};
enum { LARGE = sizeof large / sizeof *large };
static const double gflop[] = { 3.36, 18.6, 32.9, 128, 15.4, 15.5, 13.6, 18.2 };

static const char *packed_as; /* the format of a large model's matrices; NULL: bf16 */

/* NAME or NAME:FORMAT. */
static int find_shape(const char *name)
{
    size_t n = strcspn(name, ":");
    packed_as = name[n] ? name + n + 1 : NULL;
    for (int i = 0; i < LARGE; i++)
        if (strncmp(large[i].name, name, n) == 0 && !large[i].name[n])
            return i;
    return 0;
}

/* Bytes of a number of the model's matrices. */
static double bytes_each(void)
{
    for (int i = TKE_MXFP4; packed_as && i < TKE_DTYPES; i++)
        if (strcmp(tke_format_of((tke_dtype)i)->name, packed_as) == 0)
            return (double)tcu_coded_bytes(tcu_format_of((tke_dtype)i), 8, 128) / (8 * 128);
    return 2;
}

/* Takes all memory but so many GiB. */
static void leave_memory(double gib)
{
    size_t left = 0, total = 0, leave = (size_t)(gib * 1024) << 20;
    void *ballast = NULL;
    CK(tcu_memory(device, &left, &total) && left > leave);
    RC(cudaMalloc(&ballast, left - leave));
}

static tcu_model *load_large(int which, world **w)
{
    shape s = large[which];
    s.format = packed_as;
    *w = world_new(&s, false, 3);
    double t = seconds_now();
    tcu_model *m = tcu_model_new(device, &(*w)->model, &fault);
    CK(m);
    printf("%s%s%s: %zu MiB of weights on the card in %.2f s\n", large[which].name,
           packed_as ? " " : "", packed_as ? packed_as : "", m->bytes >> 20,
           seconds_now() - t);
    return m;
}

static void start_profile(size_t cap)
{
    tcu_profile *p = calloc(1, sizeof *p);
    p->cap = cap;
    p->marks = calloc(cap, sizeof *p->marks);
    for (size_t i = 0; i < cap; i++)
        cudaEventCreate(&p->marks[i].at);
    device->profile = p;
}

/* Times by name; with `places` each product of a layer in a line of its own: how many marks after attention it comes. */
static void print_profile(bool places)
{
    tcu_profile *p = device->profile;
    struct {
        const char *what;
        double ms;
        size_t n, place;
    } lines[128] = { { 0 } };
    size_t n = 0, place = 0;
    double all = 0;
    cudaDeviceSynchronize();
    for (size_t i = 1; i < p->n; i++) {
        float ms = 0;
        size_t at = 0;
        cudaEventElapsedTime(&ms, p->marks[i - 1].at, p->marks[i].at);
        place = !places || strcmp(p->marks[i].what, "attention") == 0 ? 0 : place + 1;
        while (at < n &&
               (strcmp(lines[at].what, p->marks[i].what) != 0 || lines[at].place != place))
            at++;
        if (at == 128)
            break;
        n += at == n;
        lines[at].what = p->marks[i].what;
        lines[at].place = place;
        lines[at].ms += ms;
        lines[at].n++;
        all += ms;
    }
    for (size_t i = 0; i < n; i++)
        printf("    %2zu %-34s %6zu calls %9.2f ms %8.2f us each %5.1f %%\n", lines[i].place,
               lines[i].what, lines[i].n, lines[i].ms, 1e3 * lines[i].ms / (double)lines[i].n,
               100 * lines[i].ms / all);
    device->profile = NULL;
}

static bool long_sequence; /* one sequence, not several of 2048 tokens */
static bool with_head;     /* the head has an adapter too, as the Python SDK asks for it */

/* The best of some microbatches and optimizer steps, on a model that is loaded. */
static void train_large(tcu_model *m, world *w, int which, size_t tokens, int turns, bool profile)
{
    const char *name = large[which].name;
    int lengths[64];
    unsigned parts = TKE_TRAIN_ATTN | TKE_TRAIN_MLP | (with_head ? TKE_TRAIN_UNEMBED : 0);
    tke_lora_layout *l = layout_new(w, 32, parts);
    float *theta = malloc(l->n_floats * 4);
    random_floats(theta, l->n_floats, 5, 0.02f);
    tcu_block *weights = tcu_block_new(device, l->n_floats, &fault),
              *g = tcu_block_new(device, l->n_floats, &fault);
    tcu_block *m1 = tcu_block_new(device, l->n_floats, &fault),
              *v1 = tcu_block_new(device, l->n_floats, &fault);
    CK(weights && g && m1 && v1 && tcu_block_write(weights, theta, &fault));
    size_t n_seqs = long_sequence ? 1 : tokens / 2048;
    for (size_t i = 0; i < n_seqs; i++)
        lengths[i] = long_sequence ? (int)tokens : 2048;
    data d = make_data(lengths, n_seqs, large[which].vocab, 3);
    tke_lora lora = { l, (tke_block *)weights, 1 };
    tke_segment segment = { .begin = 0, .end = d.n, .lora = &lora, .grads = (tke_block *)g };
    tke_device_trainer_options o = { 0 };
    tcu_trainer *t = tcu_trainer_new(m, &o, &fault);
    float *lp = malloc(d.n * 4);
    run r = { d.weights, lp, 0 };
    tke_microbatch b = batch_of(&d, &segment, 1, 32, TKE_DEPTH_ALL, &r);
    double t0 = seconds_now(), best = 1e9;
    CK(tcu_trainer_run(t, &b, &fault));
    printf("  first microbatch %.2f s, work space %zu MiB, %zu shapes checked, %zu fallbacks\n",
           seconds_now() - t0, device->used[TCU_FOR_WORK] >> 20, device->gemm.checked,
           device->gemm.fallbacks);
    for (int i = 0; i < turns; i++) {
        double s = seconds_now(), moved;
        CK(tcu_trainer_run(t, &b, &fault));
        tke_adam a = { 1e-4, 0.9, 0.999, 1e-8, 0, 1, i + 1 };
        CK(tcu_block_adam(&a, g, weights, m1, v1, &moved, &fault) && tcu_block_zero(g, &fault));
        best = fmin(best, seconds_now() - s);
    }
    double rate = (double)d.n / best;
    printf("TRAIN %s, %zu tokens: %.0f tokens/s, %.1f TFLOP/s, %.0f %% of 790 (lp %g)\n", name, d.n,
           rate, rate * gflop[which] / 1e3, rate * gflop[which] / 7.9e3, (double)lp[5]);
    if (profile) {
        start_profile(20000);
        CK(tcu_trainer_run(t, &b, &fault));
        print_profile(false);
    }
    tcu_trainer_free(t), tcu_block_free(weights), tcu_block_free(g), tcu_block_free(m1),
        tcu_block_free(v1);
    free(theta), free(lp);
}

/* how: "profile", "head", "head-profile" or NULL; gib: memory that there is; 0: all of the card's. */
void speed_train(const char *name, size_t tokens, const char *how, double gib)
{
    int which = find_shape(name);
    world *w;
    bool profile = how && strstr(how, "profile");
    with_head = how && strncmp(how, "head", 4) == 0;
    long_sequence = gib > 0;
    if (gib > 0)
        leave_memory(gib);
    tcu_model *m = load_large(which, &w);
    train_large(m, w, which, tokens, 4, profile);
    for (int i = 0; gib > 0 && i < TCU_PURPOSES; i++)
        printf("  %s: %zu MiB\n", tcu_purpose_name(i), device->used[i] >> 20);
    tcu_model_free(m);
    world_free(w);
}

/* How many feed-forwards of a layer a step reads: experts are chosen evenly. */
static double feeds_read(const shape *s, size_t batch)
{
    if (!s->experts)
        return 1;
    double others = 1 - (double)s->top / (double)s->experts;
    return (double)s->experts * (1 - pow(others, (double)batch));
}

/* What attention and feed-forward of so many layers read in a step. */
static double attention_bytes(const shape *s, size_t layers, size_t batch, size_t context)
{
    size_t heads = (s->gate ? 3 : 2) * s->heads + 2 * s->kv_heads;
    return (double)(layers * s->hidden * s->d * heads) * bytes_each() +
           (double)batch * (double)context * (double)(layers * 2 * s->kv_heads * s->d) * 2;
}

static double feed_bytes(const shape *s, size_t layers, size_t batch)
{
    size_t matrices = s->pattern && !s->gate ? 2 : 3;
    return (double)(layers * matrices * s->hidden * s->inner) * feeds_read(s, batch) *
               (s->oss ? 0.53125 : bytes_each()) +
           (double)(layers * matrices * s->hidden * s->shared) * 2;
}

static double space_bytes(const shape *s, size_t layers, size_t batch)
{
    size_t inner = s->space_heads * s->space_dim;
    double weights = (double)s->hidden * (double)(3 * inner + 2 * s->groups * s->state);
    return (double)layers * (2 * weights + 4 * (double)(batch * inner * s->state));
}

static double delta_bytes(const shape *s, size_t layers, size_t batch)
{
    size_t kd = s->key_heads * s->key_dim, vd = s->value_heads * s->value_dim;
    return (double)layers * ((double)(s->hidden * (2 * kd + 3 * vd)) * 2 +
                             4 * (double)(batch * vd * s->key_dim));
}

static double step_bytes(const shape *s, size_t batch, size_t context)
{
    size_t spaces = 0, deltas = 0, feeds = s->pattern ? 0 : s->layers, attentions = feeds;
    for (const char *p = s->pattern; p && *p; p++) {
        spaces += *p == 'M';
        deltas += *p == 'D';
        feeds += *p == 'E' || *p == 'D' || *p == 'G';
        attentions += *p == '*' || *p == 'G';
    }
    return (double)(s->vocab * s->hidden) * bytes_each() +
           attention_bytes(s, attentions, batch, context) +
           feed_bytes(s, feeds, batch) + space_bytes(s, spaces, batch) +
           delta_bytes(s, deltas, batch);
}

/* All sequences begin with nothing in their states: the last slot is never used. */
static void clear_states(tcu_sampler *s, size_t batch)
{
    size_t n = tcu_sampler_cache(s)->n_states;
    CK(!n || batch < n);
    for (size_t i = 0; n && i < batch; i++)
        CK(tcu_sampler_copy_state(s, (int32_t)i, (int32_t)n - 1, &fault));
}

/* A number that stands for all bits. */
static uint64_t bits_of(const float *x, size_t n)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    const unsigned char *bytes = (const void *)x;
    for (size_t i = 0; i < n * sizeof *x; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    return hash;
}

/* Rows have n_loras adapters, as many of each. last: the log-probs of the last step, or NULL. With `profile` the times of the last
 * replay of the graph, which is captured in the second step, are printed. */
static void decode_once(tcu_sampler *s, const char *name, int which, size_t batch, size_t context,
                        const tke_lora *lora, size_t n_loras, bool profile, float *last)
{
    size_t steps = 48, per = (context + steps + 16) / 16;
    int32_t *ids = malloc(batch * 4), *positions = malloc(batch * 4), *tokens = malloc(batch * 4),
            *blocks = malloc(batch * per * 4);
    float *lp = malloc(batch * 4);
    bool *bad = malloc(batch);
    size_t *wants = malloc(batch * sizeof *wants);
    tke_step_seq *seqs = malloc(batch * sizeof *seqs);
    tke_draw *draws = malloc(batch * sizeof *draws);
    tke_sample_rule rule = { .temperature = 1, .top_p = 1 };
    double times[64];
    for (size_t i = 0; i < batch * per; i++)
        blocks[i] = (int32_t)(i % tcu_sampler_cache(s)->n_blocks);
    clear_states(s, batch);
    for (size_t step = 0; step < steps; step++) {
        for (size_t i = 0; i < batch; i++) {
            ids[i] = (int32_t)(i * 37 + step), positions[i] = (int32_t)(context + step),
            wants[i] = i;
            seqs[i] = (tke_step_seq){ i, 1, context + step, blocks + i * per,
                                      tcu_sampler_cache(s)->n_states ? (int32_t)i : -1 };
            draws[i] = (tke_draw){ i,       &rule, i,    0, (uint32_t)step, &tokens[i], &lp[i],
                                   &bad[i], NULL,  NULL, 0 };
        }
        tke_segment segments[8] = { { .begin = 0, .end = batch } };
        for (size_t i = 0; i < n_loras; i++)
            segments[i] = (tke_segment){ .begin = batch * i / n_loras,
                                         .end = batch * (i + 1) / n_loras,
                                         .lora = &lora[i] };
        tke_step j = decoding(batch, ids, positions, segments, seqs, wants, draws);
        j.n_segments = n_loras ? n_loras : 1;
        double t = seconds_now();
        if (profile && step == 1)
            start_profile(4000);
        CK(tcu_sampler_run(s, &j, &fault));
        times[step] = seconds_now() - t;
    }
    if (last)
        memcpy(last, lp, batch * sizeof *lp);
    double best = 1e9, sum = 0;
    for (size_t i = 8; i < steps; i++) {
        sum += times[i];
        best = fmin(best, times[i]);
    }
    const shape *sh = &large[which];
    double bytes = step_bytes(sh, batch, context);
    double rate = (double)batch * (double)(steps - 8) / sum;
    char adapters[64] = "";
    if (n_loras)
        snprintf(adapters, sizeof adapters, " rank 32 adapters %zu%s", n_loras,
                 device->apart ? " apart" : "");
    printf("DECODE %s batch %zu context %zu%s: %.0f tokens/s, %.0f us a step (best %.0f), %.0f %% "
           "of the limit by bytes\n",
           name, batch, context, adapters, rate, 1e6 * sum / (double)(steps - 8), 1e6 * best,
           100 * bytes / 4.3e12 / (sum / (double)(steps - 8)));
    printf("  log-probs: %016llx\n", (unsigned long long)bits_of(lp, batch));
    if (profile)
        print_profile(true);
    free(ids), free(positions), free(tokens), free(blocks), free(lp), free(bad), free(wants),
        free(seqs), free(draws);
}

/* An adapter's part beside what reads it next, and in a launch of its own: the same log-probs. */
static void compare_apart(tcu_sampler *s, const char *name, int which, size_t batch,
                          const tke_lora *loras, size_t n)
{
    float here[256], apart[256];
    char what[96];
    size_t finite = 0;
    decode_once(s, name, which, batch, 1024, loras, n, false, here);
    device->apart = true;
    decode_once(s, name, which, batch, 1024, loras, n, false, apart);
    device->apart = false;
    for (size_t i = 0; i < batch; i++)
        finite += isfinite(here[i]) != 0;
    snprintf(what, sizeof what, "bits: %s, %zu rows, %zu adapters, fused = apart (%zu finite)",
             name, batch, n, finite);
    verdict(count_bits(here, apart, batch) == 0, what, (double)count_bits(here, apart, batch));
}

/* A sampler of its own for each, so that the graph is captured again. */
static void profile_decode(tcu_model *m, const char *name, int which, const tke_lora *loras,
                           size_t n)
{
    tke_device_sampler_options so = { .cache_bytes = (size_t)48 << 30,
                                      .max_rows = 768,
                                      .max_seqs = 256 };
    for (size_t batch = 64; batch <= 256; batch *= 4)
        for (size_t i = 0; i < 3; i++) {
            tcu_sampler *s = full_sampler(m, &so);
            CK(s);
            decode_once(s, name, which, batch, 1024, loras, i == 2 ? n : i, true, NULL);
            tcu_sampler_free(s);
        }
}

/* Batches of 1 and 64 without and with an adapter, then where the time of those without goes. */
static void decode_few(tcu_model *m, const char *name, int which, const tke_lora *lora)
{
    tke_device_sampler_options so = { .cache_bytes = (size_t)16 << 30,
                                      .max_rows = 512,
                                      .max_seqs = 256 };
    tcu_sampler *s = full_sampler(m, &so);
    CK(s);
    for (size_t batch = 1; batch <= 64; batch *= 8)
        for (size_t n = 0; n < 2; n++)
            decode_once(s, name, which, batch, 1024, lora, n, false, NULL);
    tcu_sampler_free(s);
    for (size_t batch = 1; batch <= 64; batch *= 64) {
        s = full_sampler(m, &so);
        CK(s);
        decode_once(s, name, which, batch, 1024, NULL, 0, true, NULL);
        tcu_sampler_free(s);
    }
}

static void decode_batches(tcu_sampler *s, const char *name, int which, const tke_lora *loras,
                           size_t n)
{
    decode_once(s, name, which, 1, 1024, NULL, 0, false, NULL);
    decode_once(s, name, which, 1, 1024, loras, 1, false, NULL);
    size_t states = tcu_sampler_cache(s)->n_states;
    for (size_t batch = 64; batch <= 256 && (!states || batch < states); batch *= 4) {
        decode_once(s, name, which, batch, 1024, NULL, 0, false, NULL);
        compare_apart(s, name, which, batch, loras, 1);
        compare_apart(s, name, which, batch, loras, n);
    }
}

/* how: "profile" (times of the launches of batches of 64 and 256), "one" (batch 1 alone, in one launch and layer by layer), "few" or
 * NULL. */
void speed_decode(const char *name, const char *how)
{
    bool profile = how && strcmp(how, "profile") == 0, one = how && strcmp(how, "one") == 0;
    bool few = how && strcmp(how, "few") == 0;
    int which = find_shape(name);
    world *w;
    tcu_model *m = load_large(which, &w);
    enum { LORAS = 8 };
    tke_lora loras[LORAS];
    for (size_t i = 0; i < (few ? 1 : LORAS); i++) /* as the SDK makes them */
        loras[i] = random_lora(w, 32, TKE_TRAIN_ATTN | TKE_TRAIN_MLP | TKE_TRAIN_UNEMBED, 5 + i);
    tke_device_sampler_options so = { .cache_bytes = (size_t)48 << 30,
                                      .max_rows = 768,
                                      .max_seqs = 256 };
    if (large[which].key_heads) /* a quarter of it is for states, which lie beside the weights */
        so.cache_bytes = (size_t)100 << 30;
    tcu_sampler *s = profile || few ? NULL : full_sampler(m, &so);
    CK(profile || few || s);
    if (few)
        decode_few(m, name, which, loras);
    for (int i = 0; one && i < 4; i++) {
        device->layered = i % 2;
        decode_once(s, name, which, 1, 1024, NULL, 0, false, NULL);
        decode_once(s, name, which, 1, 1024, loras, 1, false, NULL);
    }
    if (profile)
        profile_decode(m, name, which, loras, LORAS);
    else if (!one && !few)
        decode_batches(s, name, which, loras, LORAS);
    for (size_t i = 0; i < (few ? 1 : LORAS); i++)
        tcu_block_free((tcu_block *)(uintptr_t)loras[i].weights);
    tcu_sampler_free(s), tcu_model_free(m);
    world_free(w);
}

/* Training, then decoding without and with an adapter, of a model with experts. */
void speed_experts(const char *name)
{
    int which = find_shape(name);
    world *w;
    tcu_model *m = load_large(which, &w);
    train_large(m, w, which, 16384, 2, true);
    tke_device_sampler_options so = { .cache_bytes = (size_t)16 << 30,
                                      .max_rows = 512,
                                      .max_seqs = 256 };
    if (large[which].key_heads) /* a quarter of it is for states */
        so.cache_bytes = (size_t)40 << 30;
    tcu_sampler *s = full_sampler(m, &so);
    tke_lora lora = random_lora(w, 32, TKE_TRAIN_ATTN | TKE_TRAIN_MLP, 5);
    CK(s);
    for (size_t batch = 1; batch <= 64; batch *= 64)
        for (size_t n = 0; n < 2; n++)
            decode_once(s, name, which, batch, 1024, &lora, n, false, NULL);
    tcu_sampler_free(s);
    s = full_sampler(m, &so);
    CK(s);
    decode_once(s, name, which, 1, 1024, NULL, 0, true, NULL);
    tcu_sampler_free(s), tcu_model_free(m);
    world_free(w);
}
