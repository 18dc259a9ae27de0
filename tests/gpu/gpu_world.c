/* gpu_world.c - see gpu_world.h. Plain loops: it is what the card is held against. */
#include "gpu_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "math/format.h"

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint32_t hash(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return (uint32_t)(x >> 32);
}

void random_floats(float *p, size_t n, uint64_t seed, float scale)
{
    for (size_t i = 0; i < n; i++)
        p[i] = scale * ((float)(hash(i + seed * 0x9e3779b97f4a7c15ull) >> 8) / 8388608.f - 1.f);
}

static void random_bf16(uint16_t *p, size_t n, uint64_t seed, float scale)
{
    for (size_t i = 0; i < n; i++) {
        float x;
        random_floats(&x, 1, seed * 1000003 + i, scale);
        p[i] = tke_f32_to_bf16(x);
    }
}

/* Where a block has its f16 scales. */
static size_t scales_at(tke_dtype dtype, size_t at[2])
{
    at[0] = dtype == TKE_Q6_K ? 208 : 0;
    at[1] = 2;
    if (dtype == TKE_Q4_1 || dtype == TKE_Q5_1 || dtype == TKE_Q4_K || dtype == TKE_Q5_K)
        return 2;
    return dtype != TKE_NF4 && dtype != TKE_FP8 && dtype != TKE_MXFP4 && dtype != TKE_MXFP4_BLOCKS;
}

tke_matrix random_packed(tke_dtype dtype, size_t out, size_t in, bool wild, uint64_t seed)
{
    const tke_format *f = tke_format_of(dtype);
    size_t n = out * in, bytes = tke_format_bytes(f, n), per = (size_t)f->block_bytes, at[2], halves = scales_at(dtype, at);
    uint8_t *codes = malloc(bytes), *scales = malloc(n / 32 + 1);
    float *factors = malloc((n / 32 + 1) * sizeof *factors);
    for (size_t i = 0; i < bytes; i++)
        codes[i] = (uint8_t)hash(seed * 71 + i);
    for (size_t i = 0; i < n / 32 + 1; i++) {
        uint32_t bits = hash(seed * 73 + i);
        scales[i] = (uint8_t)(wild ? bits : 117 + bits % 4);
        factors[i] = wild ? tke_bits_to_f32(bits) : 0.01f * (1 + (float)(bits % 1000) / 500);
    }
    for (size_t b = 0; !wild && b < bytes / per; b++) {
        for (size_t j = 0; j < halves; j++) {
            uint16_t half = tke_f32_to_f16(0.0002f * (1 + (float)(hash(seed * 75 + b * 2 + j) % 100)));
            memcpy(codes + b * per + at[j], &half, 2);
        }
        if (dtype == TKE_MXFP4_BLOCKS)
            codes[b * per] = scales[b];
    }
    return (tke_matrix){ codes, (int64_t)in, dtype, scales, factors };
}

/* The blocks of a small matrix again and again, for matrices of up to n numbers. */
static tke_matrix repeated(tke_dtype dtype, size_t n)
{
    enum { ROWS = 64, IN = 4096, SMALL = ROWS * IN };
    tke_matrix small = random_packed(dtype, ROWS, IN, false, 5);
    size_t one = tke_format_bytes(tke_format_of(dtype), SMALL), times = n / SMALL + 1;
    uint8_t *codes = malloc(one * times), *scales = malloc(SMALL / 32 * times);
    float *factors = malloc(SMALL / 32 * times * sizeof *factors);
    for (size_t i = 0; i < times; i++) {
        memcpy(codes + i * one, small.data, one);
        memcpy(scales + i * (SMALL / 32), small.scales, SMALL / 32);
        memcpy(factors + i * (SMALL / 32), small.factors, SMALL / 32 * sizeof *factors);
    }
    return (tke_matrix){ codes, 0, dtype, scales, factors };
}

/* A format by its name. */
static tke_dtype format_named(const char *name, uint64_t turn)
{
    static const tke_dtype mixed[] = { TKE_Q4_0, TKE_Q6_K, TKE_NF4, TKE_Q4_K, TKE_Q8_0, TKE_BF16, TKE_MXFP4_BLOCKS };
    int i = TKE_MXFP4;
    if (strcmp(name, "mixed") == 0)
        return mixed[turn % (sizeof mixed / sizeof *mixed)];
    while (i + 1 < TKE_DTYPES && strcmp(tke_format_of((tke_dtype)i)->name, name) != 0)
        i++;
    return (tke_dtype)i;
}

static tke_matrix packed_for(const world *w, size_t out, size_t in, bool own, uint64_t seed)
{
    tke_dtype dtype = format_named(w->format, seed);
    tke_matrix m = w->blocks;
    if (!tke_is_packed(dtype))
        return (tke_matrix){ 0 };
    if (own)
        return random_packed(dtype, out, in, false, seed);
    m.ld = (int64_t)in;
    return m;
}

tke_weight world_weight(world *w, size_t out, size_t in, bool bias, bool own, uint64_t seed)
{
    tke_weight r = { .out = out, .in = in };
    uint16_t *data = w->numbers;
    if (own) {
        data = malloc(out * in * 2);
        random_bf16(data, out * in, seed, 1.7f / sqrtf((float)in));
    }
    r.m = (tke_matrix){ data, (int64_t)in, TKE_BF16, NULL, NULL };
    if (w->format) {
        tke_matrix m = packed_for(w, out, in, own, seed);
        r.m = m.data ? m : r.m;
    }
    if (bias) {
        float *b = malloc(out * sizeof *b);
        random_floats(b, out, seed + 7, 0.1f);
        r.bias = b;
    }
    return r;
}

float *world_vector(size_t n, uint64_t seed)
{
    float *v = malloc(n * sizeof *v);
    random_floats(v, n, seed, 0.2f);
    for (size_t i = 0; i < n; i++)
        v[i] += 1;
    return v;
}

/* Random mxfp4 numbers: scales around 2^-4, so that they are about as large as others. In a small model some blocks have a scale that no
 * number needs: all but one are zero. */
static tke_matrix packed(size_t out, size_t in, bool own, uint64_t seed)
{
    enum { OWN = 1 << 16 }; /* then they repeat */
    uint8_t *blocks = malloc(out * in / 2), *scales = malloc(out * in / 32);
    for (size_t i = 0; i < out * in / 2; i++)
        blocks[i] = i < OWN ? (uint8_t)hash(seed * 77 + i) : blocks[i - OWN];
    for (size_t i = 0; i < out * in / 32; i++)
        scales[i] = i < OWN ? (uint8_t)(121 - hash(seed * 79 + i) % 3) : scales[i - OWN];
    for (size_t i = 0; own && i < out * in / 32; i += 61) {
        memset(blocks + i * 16, 0, 16);
        blocks[i * 16] = 1;
        scales[i] = 129;
    }
    return (tke_matrix){ blocks, (int64_t)in, TKE_MXFP4, scales, NULL };
}

static tke_stack stack(world *w, const shape *s, size_t out, size_t in, bool own, uint64_t seed)
{
    tke_matrix *m = malloc(s->experts * sizeof *m);
    tke_stack r = { .m = m, .out = out, .in = in };
    tke_matrix one = s->oss && !own ? packed(out, in, false, seed) : (tke_matrix){ 0 };
    for (size_t e = 0; e < s->experts; e++)
        m[e] = s->oss ? (own ? packed(out, in, true, seed + e) : one)
                      : world_weight(w, out, in, false, own, seed + e * 13).m;
    if (s->oss) {
        float *b = malloc(s->experts * out * sizeof *b);
        random_floats(b, s->experts * out, seed + 5, 0.1f);
        r.bias = b;
    }
    return r;
}

/* The expert of every row; its groups are g[0] and g[1]. */
static tke_dense *shared_expert(world *w, const shape *s, tke_group *g, bool own, uint64_t seed)
{
    tke_dense *x = calloc(1, sizeof *x);
    *x = (tke_dense){ .gate_up = &g[0], .down = &g[1], .inner = s->shared, .squared = s->squared };
    g[0] = (tke_group){ .n = s->squared ? 1 : 2, .train = TKE_TRAIN_MLP };
    for (size_t j = 0; j < g[0].n; j++)
        g[0].w[j] = world_weight(w, s->shared, s->hidden, false, own, seed + j);
    g[1] = (tke_group){ .n = 1,
                        .train = TKE_TRAIN_MLP,
                        .w = { world_weight(w, s->hidden, s->shared, false, own, seed + 2) } };
    return x;
}

/* A router of sigmoids; its bias is large and its differences are small. */
static tke_sigmoid_route sigmoids(const shape *s, uint64_t seed)
{
    float *bias = malloc(s->experts * sizeof *bias);
    random_floats(bias, s->experts, seed, 0.1f);
    for (size_t e = 0; e < s->experts; e++)
        bias[e] += 64;
    return (tke_sigmoid_route){ .bias = bias,
                                .n_groups = s->expert_groups,
                                .kept_groups = s->kept,
                                .normalised = true,
                                .scale = 2.5 };
}

/* Its groups are g[2] and g[3], and those of the expert of every row. */
static tke_experts *experts(world *w, const shape *s, tke_group *g, bool own, uint64_t seed)
{
    tke_experts *x = calloc(1, sizeof *x);
    *x = (tke_experts){ .n = s->experts,
                        .top = s->top,
                        .inner = s->inner,
                        .route = s->expert_groups                      ? TKE_ROUTE_SIGMOID
                                 : s->oss || s->top == s->experts ? TKE_ROUTE_CHOSEN
                                                                       : TKE_ROUTE_ALL,
                        .router = world_weight(w, s->experts, s->hidden, s->oss, own, seed + 21),
                        .gate_up = &g[2],
                        .down = &g[3],
                        .paired = s->oss,
                        .squared = s->squared,
                        .limit = s->oss ? 1.5 : 0,
                        .alpha = s->oss ? 1.702 : 0 };
    x->gate = stack(w, s, s->oss ? 2 * s->inner : s->inner, s->hidden, own, seed * 1000 + 1);
    if (s->expert_groups)
        x->sigmoid = sigmoids(s, seed + 22);
    if (s->shared)
        x->shared = shared_expert(w, s, g + 4, own, seed + 23);
    if (s->shared_gate)
        x->shared_gate = world_weight(w, 1, s->hidden, false, own, seed + 28);
    x->up = s->oss || s->squared ? x->gate : stack(w, s, s->inner, s->hidden, own, seed * 1000 + 300);
    x->out = stack(w, s, s->hidden, s->inner, own, seed * 1000 + 600);
    return x;
}

void world_numbers(world *w, const shape *s, uint64_t seed)
{
    w->n_numbers = s->vocab * s->hidden;
    size_t most = 2 * s->inner * s->hidden;
    w->n_numbers = w->n_numbers > most ? w->n_numbers : most;
    w->numbers = malloc(w->n_numbers * 2);
    random_bf16(w->numbers, 1 << 20, seed, 0.03f);
    for (size_t i = 1 << 20; i < w->n_numbers; i += 1 << 20)
        memcpy(w->numbers + i, w->numbers,
               2 * (w->n_numbers - i < 1 << 20 ? w->n_numbers - i : 1 << 20));
}

world *world_new(const shape *s, bool own, uint64_t seed)
{
    if (s->pattern)
        return world_hybrid(s, own, seed);
    world *w = calloc(1, sizeof *w);
    tke_model *m = &w->model;
    size_t q = s->heads * s->d, k = s->kv_heads * s->d, index = 0;
    w->format = s->format;
    if (!own && s->format) {
        size_t n = s->vocab * s->hidden, most = 2 * s->inner * s->hidden;
        w->blocks = repeated(format_named(s->format, 0), n > most ? n : most);
    } else if (!own) {
        world_numbers(w, s, seed);
    }
    m->config = (tke_config){ .arch = "qwen3",
                              .hidden = s->hidden,
                              .inner = (s->inner + 7) / 8 * 8, /* of dense layers */
                              .n_layers = s->layers,
                              .n_heads = s->heads,
                              .n_kv_heads = s->kv_heads,
                              .head_dim = s->d,
                              .rotary = s->d - s->still,
                              .vocab = s->vocab,
                              .context = s->context,
                              .rms_eps = 1e-6,
                              .tied = s->tied,
                              .qk_norm = s->qk_norm };
    m->layers = calloc(s->layers, sizeof *m->layers);
    enum { GROUPS = 6 }; /* of a layer at most */
    m->n_groups = s->layers * GROUPS + 1;
    w->groups = calloc(m->n_groups, sizeof *w->groups);
    m->groups = calloc(m->n_groups, sizeof *m->groups);
    for (size_t i = 0; i < s->layers; i++) {
        tke_layer *l = &m->layers[i];
        tke_group *g = &w->groups[i * GROUPS];
        uint64_t base = seed + i * 100;
        l->groups = g;
        g[0] = (tke_group){ .n = 3,
                            .train = TKE_TRAIN_ATTN,
                            .w = { world_weight(w, s->gate ? 2 * q : q, s->hidden, s->bias, own, base + 1),
                                   world_weight(w, k, s->hidden, s->bias, own, base + 2),
                                   world_weight(w, k, s->hidden, s->bias, own, base + 3) } };
        g[1] = (tke_group){ .n = 1,
                            .train = TKE_TRAIN_ATTN,
                            .w = { world_weight(w, s->hidden, q, false, own, base + 4) } };
        bool sparse = s->experts && (i != 1 || !own); /* a small model has a dense layer, too */
        size_t inner = sparse ? s->inner : m->config.inner;
        l->n_groups = sparse && s->shared ? GROUPS : 4;
        g[2] = (tke_group){ .n = s->squared ? 1 : 2,
                            .train = TKE_TRAIN_MLP,
                            .shared = sparse ? TKE_SHARED_A : TKE_OWN_FACTORS,
                            .n_experts = sparse ? s->experts : 0,
                            .w = { world_weight(w, inner, s->hidden, false, own, base + 5),
                                   world_weight(w, inner, s->hidden, false, own, base + 6) } };
        g[3] = (tke_group){ .n = 1,
                            .train = TKE_TRAIN_MLP,
                            .shared = sparse ? TKE_SHARED_B : TKE_OWN_FACTORS,
                            .n_experts = sparse ? s->experts : 0,
                            .w = { world_weight(w, s->hidden, inner, false, own, base + 7) } };
        tke_attn *a = calloc(1, sizeof *a);
        tke_dense *dense = calloc(1, sizeof *dense);
        *a = (tke_attn){ .qkv = &g[0],
                         .o = &g[1],
                         .q_norm = s->qk_norm ? world_vector(s->d, base + 10) : NULL,
                         .k_norm = s->qk_norm ? world_vector(s->d, base + 11) : NULL,
                         .n_heads = s->heads,
                         .n_kv_heads = s->kv_heads,
                         .head_dim = s->d,
                         .window = i % 2 ? s->window : 0,
                         .gate = s->gate,
                         .sinks = s->oss ? world_vector(s->heads, base + 12) : NULL };
        *dense = (tke_dense){
            .gate_up = &g[2], .down = &g[3], .inner = inner, .squared = s->squared
        };
        l->mixer = TKE_MIX_ATTENTION;
        l->feed = sparse ? TKE_FEED_EXPERTS : TKE_FEED_DENSE;
        l->attn = a;
        l->dense = sparse ? NULL : dense;
        l->experts = sparse ? experts(w, s, g, own, base + 31) : NULL;
        for (size_t j = 0; j < l->n_groups; j++, index++) {
            g[j].index = index;
            m->groups[index] = &g[j];
        }
        l->mixer_norm = world_vector(s->hidden, base + 8);
        l->feed_norm = world_vector(s->hidden, base + 9);
    }
    m->embed = world_weight(w, s->vocab, s->hidden, false, own, seed + 91);
    m->head = (tke_group){ .index = index, .n = 1, .train = TKE_TRAIN_UNEMBED };
    m->head.w[0] = s->tied ? m->embed : world_weight(w, s->vocab, s->hidden, false, own, seed + 92);
    m->groups[index] = &m->head;
    m->n_groups = index + 1;
    m->norm = world_vector(s->hidden, seed + 93);
    double *f = malloc(s->d / 2 * sizeof *f);
    for (size_t j = 0; j < s->d / 2; j++)
        f[j] = pow(10000.0, -2.0 * (double)j / (double)s->d);
    m->rope_frequency = f;
    m->rope_scale = 1;
    return w;
}

static void unpack_weight(tke_weight *w)
{
    const tke_format *f = tke_format_of(w->m.dtype);
    if (!tke_is_packed(w->m.dtype))
        return;
    uint16_t *numbers = malloc(w->out * w->in * 2);
    for (size_t i = 0; i < w->out; i++)
        f->unpack[TKE_UNPACK_REF](&w->m, (int64_t)i, 0, (int64_t)w->in, numbers + i * w->in);
    w->m = (tke_matrix){ numbers, (int64_t)w->in, TKE_BF16, NULL, NULL };
}

void world_unpack(world *w)
{
    for (size_t i = 0; i + 1 < w->model.n_groups; i++)
        for (size_t j = 0; j < w->groups[i].n; j++)
            unpack_weight(&w->groups[i].w[j]);
    unpack_weight(&w->model.embed);
    if (w->model.config.tied)
        w->model.head.w[0] = w->model.embed;
    else
        unpack_weight(&w->model.head.w[0]);
}

void world_free(world *w)
{
    free(w->numbers); /* the rest ends with the program */
    free(w);
}

tke_lora_layout *layout_new(const world *w, size_t rank, uint32_t train)
{
    tke_lora_layout *l = calloc(1, sizeof *l);
    l->rank = rank;
    l->n_groups = w->model.n_groups;
    l->groups = calloc(l->n_groups, sizeof *l->groups);
    for (size_t i = 0; i < l->n_groups; i++) {
        const tke_group *g = w->model.groups[i];
        tke_lora_group *to = &l->groups[i];
        if (!(g->train & train))
            continue;
        *to = (tke_lora_group){ .of = g,
                                .n = g->n,
                                .in = g->w[0].in,
                                .rank = rank,
                                .n_a = g->shared == TKE_SHARED_B ? g->n_experts : 1,
                                .n_b = g->shared == TKE_SHARED_A ? g->n_experts : 1,
                                .a = l->n_floats };
        l->n_floats += (to->n_a * g->n * rank * to->in + 15) / 16 * 16;
        for (size_t j = 0; j < g->n; j++) {
            to->out[j] = g->w[j].out;
            to->b[j] = l->n_floats;
            l->n_floats += (to->n_b * to->out[j] * rank + 15) / 16 * 16;
        }
    }
    return l;
}

/* ---- arithmetic in double ---- */

static double at(const tke_weight *w, size_t i)
{
    return tke_bf16_to_f32(((const uint16_t *)w->m.data)[i]);
}

/* y[o] = W x + bias + scale B (A x) for matrix j of a group */
static void linear(const tke_group *g, size_t j, const tke_lora_layout *l, const float *adapter,
                   double scale, const double *x, double *y)
{
    const tke_weight *w = &g->w[j];
    const tke_lora_group *a = l ? &l->groups[g->index] : NULL;
    double *low = calloc(l ? l->rank : 1, sizeof *low);
    for (size_t r = 0; a && a->n && r < a->rank; r++)
        for (size_t i = 0; i < w->in; i++)
            low[r] += adapter[a->a + (j * a->rank + r) * w->in + i] * x[i];
    for (size_t o = 0; o < w->out; o++) {
        double sum = w->bias ? w->bias[o] : 0, extra = 0;
        for (size_t i = 0; i < w->in; i++)
            sum += at(w, o * w->in + i) * x[i];
        for (size_t r = 0; a && a->n && r < a->rank; r++)
            extra += adapter[a->b[j] + o * a->rank + r] * low[r];
        y[o] = sum + scale * extra;
    }
    free(low);
}

static void rms(const double *x, const float *w, size_t n, double *y)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    double rho = 1 / sqrt(sum / (double)n + 1e-6);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * rho * w[i];
}

static void rotate(const world *w, double *x, size_t pos)
{
    size_t half = w->model.config.rotary / 2;
    for (size_t j = 0; j < half; j++) {
        double c = cos((double)pos * w->model.rope_frequency[j]),
               s = sin((double)pos * w->model.rope_frequency[j]);
        double a = x[j], b = x[half + j];
        x[j] = a * c - b * s;
        x[half + j] = b * c + a * s;
    }
}

/* Element i, j of expert e's matrix. */
static double expert_at(const tke_stack *s, size_t e, size_t row, size_t col)
{
    const tke_matrix *m = &s->m[e];
    static const double codes[8] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
    size_t i = row * s->in + col;
    if (m->dtype != TKE_MXFP4)
        return tke_bf16_to_f32(((const uint16_t *)m->data)[i]);
    unsigned byte = ((const uint8_t *)m->data)[i / 2], code = i % 2 ? byte >> 4 : byte & 15;
    double x = ldexp(codes[code & 7], m->scales[i / 32] - 127);
    return code & 8 ? -x : x;
}

/* What the adapters of matrix j add for expert e: scale B (A x). */
static double expert_part(const tke_group *g, size_t j, size_t e, const tke_lora_layout *l,
                          const float *adapter, double scale, size_t row, const double *low)
{
    const tke_lora_group *a = l ? &l->groups[g->index] : NULL;
    double sum = 0;
    if (!a || !a->n)
        return 0;
    size_t b = a->b[j] + (a->n_b > 1 ? e : 0) * a->out[j] * a->rank + row * a->rank;
    for (size_t r = 0; r < a->rank; r++)
        sum += adapter[b + r] * low[r];
    return scale * sum;
}

static void expert_low(const tke_group *g, size_t j, size_t e, const tke_lora_layout *l,
                       const float *adapter, const double *x, double *low)
{
    const tke_lora_group *a = l ? &l->groups[g->index] : NULL;
    for (size_t r = 0; a && a->n && r < a->rank; r++) {
        size_t at = a->a + (((a->n_a > 1 ? e : 0) * a->n + j) * a->rank + r) * a->in;
        low[r] = 0;
        for (size_t i = 0; i < a->in; i++)
            low[r] += adapter[at + i] * x[i];
    }
}

static void run_expert(const tke_experts *x, size_t e, const tke_lora_layout *l,
                       const float *adapter, double scale, const double *b, double *y)
{
    size_t f = x->inner, H = x->out.out;
    double *low[2] = { calloc(256, 8), calloc(256, 8) }, *h = malloc(f * 8);
    size_t parts = x->squared ? 1 : 2;
    for (size_t j = 0; j < parts; j++)
        expert_low(x->gate_up, j, e, l, adapter, b, low[j]);
    for (size_t i = 0; i < f; i++) {
        double gu[2];
        for (size_t j = 0; j < parts; j++) {
            const tke_stack *s = j && !x->paired ? &x->up : &x->gate;
            size_t row = x->paired ? 2 * i + j : i;
            gu[j] = s->bias ? s->bias[e * s->out + row] : 0;
            for (size_t c = 0; c < s->in; c++)
                gu[j] += expert_at(s, e, row, c) * b[c];
            gu[j] += expert_part(x->gate_up, j, e, l, adapter, scale, i, low[j]);
        }
        if (x->squared) {
            h[i] = gu[0] > 0 ? gu[0] * gu[0] : 0;
        } else if (x->limit > 0) {
            double g = fmin(gu[0], x->limit), u = fmax(fmin(gu[1], x->limit), -x->limit);
            h[i] = (u + 1) * g / (1 + exp(-x->alpha * g));
        } else {
            h[i] = gu[0] / (1 + exp(-gu[0])) * gu[1];
        }
    }
    expert_low(x->down, 0, e, l, adapter, h, low[0]);
    for (size_t i = 0; i < H; i++) {
        y[i] = x->out.bias ? x->out.bias[e * H + i] : 0;
        for (size_t c = 0; c < f; c++)
            y[i] += expert_at(&x->out, e, i, c) * h[c];
        y[i] += expert_part(x->down, 0, e, l, adapter, scale, i, low[0]);
    }
    free(low[0]), free(low[1]), free(h);
}

/* The best `n` of `count` scores. */
static void take_best(const double *score, size_t count, size_t n, bool *taken)
{
    for (size_t k = 0; k < n; k++) {
        size_t best = count;
        for (size_t e = 0; e < count; e++)
            if (!taken[e] && (best == count || score[e] > score[best]))
                best = e;
        taken[best] = true;
    }
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* The weights of a row's experts; 0 for the others. Scores may be changed. */
static void sigmoid_weights(const tke_experts *x, const double *z, double *weights)
{
    const tke_sigmoid_route *r = &x->sigmoid;
    size_t size = x->n / r->n_groups;
    double *score = malloc(x->n * 8), *groups = calloc(r->n_groups, 8), sum = 0;
    bool *kept = calloc(r->n_groups, 1), *taken = calloc(x->n, 1);
    for (size_t e = 0; e < x->n; e++)
        score[e] = sigmoid(z[e]) + r->bias[e];
    for (size_t g = 0; g < r->n_groups; g++)
        for (size_t i = 0; i < size; i++)
            for (size_t j = 0; j < i; j++)
                groups[g] = fmax(groups[g], score[g * size + i] + score[g * size + j]);
    take_best(groups, r->n_groups, r->kept_groups, kept);
    for (size_t e = 0; e < x->n; e++)
        score[e] = kept[e / size] ? score[e] : -1e300;
    take_best(score, x->n, x->top, taken);
    for (size_t e = 0; e < x->n; e++)
        sum += weights[e] = taken[e] ? sigmoid(z[e]) : 0;
    for (size_t e = 0; e < x->n; e++)
        weights[e] *= r->scale / (r->normalised ? sum : 1);
    free(score), free(groups), free(kept), free(taken);
}

static void softmax_weights(const tke_experts *x, const double *z, double *weights)
{
    bool *taken = calloc(x->n, 1);
    double top = -1e300, sum = 0;
    for (size_t e = 0; e < x->n; e++)
        top = fmax(top, z[e]);
    take_best(z, x->n, x->top, taken);
    for (size_t e = 0; e < x->n; e++)
        sum += x->route == TKE_ROUTE_ALL || taken[e] ? exp(z[e] - top) : 0;
    for (size_t e = 0; e < x->n; e++)
        weights[e] = taken[e] ? exp(z[e] - top) / sum : 0;
    free(taken);
}

static void run_dense(const tke_dense *x, const tke_lora_layout *l, const float *adapter,
                      double scale, const double *b, double *y)
{
    double *g = malloc(x->inner * 8), *u = malloc(x->inner * 8);
    linear(x->gate_up, 0, l, adapter, scale, b, g);
    if (!x->squared)
        linear(x->gate_up, 1, l, adapter, scale, b, u);
    for (size_t i = 0; i < x->inner; i++)
        g[i] = x->squared ? fmax(g[i], 0) * fmax(g[i], 0) : g[i] * sigmoid(g[i]) * u[i];
    linear(x->down, 0, l, adapter, scale, g, y);
    free(g), free(u);
}

static void run_experts(const tke_experts *x, const tke_lora_layout *l, const float *adapter,
                        double scale, const double *b, double *y)
{
    size_t H = x->out.out;
    double *z = malloc(x->n * 8), *weights = malloc(x->n * 8), *one = malloc(H * 8), gate = 0;
    for (size_t e = 0; e < x->n; e++) {
        z[e] = x->router.bias ? x->router.bias[e] : 0;
        for (size_t i = 0; i < H; i++)
            z[e] += at(&x->router, e * H + i) * b[i];
    }
    (x->route == TKE_ROUTE_SIGMOID ? sigmoid_weights : softmax_weights)(x, z, weights);
    memset(y, 0, H * 8);
    for (size_t e = 0; e < x->n; e++) {
        if (weights[e] == 0)
            continue;
        run_expert(x, e, l, adapter, scale, b, one);
        for (size_t i = 0; i < H; i++)
            y[i] += weights[e] * one[i];
    }
    if (x->shared) {
        run_dense(x->shared, l, adapter, scale, b, one);
        for (size_t i = 0; x->shared_gate.m.data && i < H; i++)
            gate += at(&x->shared_gate, i) * b[i];
        for (size_t i = 0; i < H; i++)
            y[i] += (x->shared_gate.m.data ? sigmoid(gate) : 1) * one[i];
    }
    free(z), free(one), free(weights);
}

static void attend(const tke_config *c, const tke_layer *l, const double *q, const double *k,
                   const double *v, size_t pos, double *o)
{
    size_t d = c->head_dim, group = c->n_heads / c->n_kv_heads, kd = c->n_kv_heads * d;
    size_t first = l->attn->window && pos + 1 > l->attn->window ? pos + 1 - l->attn->window : 0;
    double *s = malloc((pos + 1) * sizeof *s);
    for (size_t h = 0; h < c->n_heads; h++) {
        double top = -1e300, sum = 0;
        for (size_t t = first; t <= pos; t++) {
            s[t] = 0;
            for (size_t e = 0; e < d; e++)
                s[t] += q[h * d + e] * k[t * kd + h / group * d + e];
            s[t] /= sqrt((double)d);
            top = s[t] > top ? s[t] : top;
        }
        if (l->attn->sinks) {
            top = fmax(top, l->attn->sinks[h]);
            sum = exp(l->attn->sinks[h] - top);
        }
        for (size_t t = first; t <= pos; t++)
            sum += s[t] = exp(s[t] - top);
        for (size_t e = 0; e < d; e++) {
            o[h * d + e] = 0;
            for (size_t t = first; t <= pos; t++)
                o[h * d + e] += s[t] / sum * v[t * kd + h / group * d + e];
        }
    }
    free(s);
}

static void run_layer(const world *w, size_t layer, const tke_lora_layout *lora,
                      const float *adapter, double scale, size_t n, double *h)
{
    const tke_config *c = &w->model.config;
    const tke_layer *l = &w->model.layers[layer];
    size_t H = c->hidden, d = c->head_dim, qd = c->n_heads * d, kd = c->n_kv_heads * d,
           both = l->attn->gate ? 2 : 1;
    double *a = malloc(H * 8), *q = malloc(n * qd * 8), *k = malloc(n * kd * 8),
           *v = malloc(n * kd * 8), *o = malloc(qd * 8);
    double *wide = malloc(2 * qd * 8), *gate = malloc(n * qd * 8), *y = malloc(H * 8);
    for (size_t t = 0; t < n; t++) {
        rms(h + t * H, l->mixer_norm, H, a);
        linear(l->attn->qkv, 0, lora, adapter, scale, a, wide);
        for (size_t i = 0; i < qd; i++) {
            const double *from = wide + i / d * both * d + i % d;
            q[t * qd + i] = from[0];
            gate[t * qd + i] = l->attn->gate ? from[d] : 0;
        }
        linear(l->attn->qkv, 1, lora, adapter, scale, a, k + t * kd);
        linear(l->attn->qkv, 2, lora, adapter, scale, a, v + t * kd);
        for (size_t i = 0; i < c->n_heads + c->n_kv_heads; i++) {
            double *x = i < c->n_heads ? q + t * qd + i * d : k + t * kd + (i - c->n_heads) * d;
            if (c->qk_norm)
                rms(x, i < c->n_heads ? l->attn->q_norm : l->attn->k_norm, d, x);
            rotate(w, x, t);
        }
    }
    for (size_t t = 0; t < n; t++) {
        attend(c, l, q + t * qd, k, v, t, o);
        for (size_t i = 0; l->attn->gate && i < qd; i++)
            o[i] *= sigmoid(gate[t * qd + i]);
        linear(l->attn->o, 0, lora, adapter, scale, o, y);
        for (size_t i = 0; i < H; i++)
            h[t * H + i] += y[i];
        rms(h + t * H, l->feed_norm, H, a);
        if (l->experts) {
            run_experts(l->experts, lora, adapter, scale, a, y);
        } else {
            run_dense(l->dense, lora, adapter, scale, a, y);
        }
        for (size_t i = 0; i < H; i++)
            h[t * H + i] += y[i];
    }
    free(a), free(q), free(k), free(v), free(o), free(wide), free(gate), free(y);
}

double world_loss(const world *w, const tke_lora_layout *lora, const float *adapter, double scale,
                  const int32_t *ids, const int64_t *starts, size_t n_seqs, const int32_t *targets,
                  const float *weights, double *lp)
{
    const tke_config *c = &w->model.config;
    size_t H = c->hidden;
    double loss = 0, *a = malloc(H * 8), *z = malloc(c->vocab * 8);
    for (size_t s = 0; s < n_seqs; s++) {
        size_t n = (size_t)(starts[s + 1] - starts[s]), row = (size_t)starts[s];
        double *h = malloc(n * H * 8);
        for (size_t i = 0; i < n * H; i++)
            h[i] = at(&w->model.embed, (size_t)ids[row + i / H] * H + i % H);
        for (size_t l = 0; l < c->n_layers; l++)
            run_layer(w, l, lora, adapter, scale, n, h);
        for (size_t t = 0; t < n; t++) {
            double top = -1e300, sum = 0;
            rms(h + t * H, w->model.norm, H, a);
            linear(&w->model.head, 0, lora, adapter, scale, a, z);
            for (size_t i = 0; i < c->vocab; i++)
                top = z[i] > top ? z[i] : top;
            for (size_t i = 0; i < c->vocab; i++)
                sum += exp(z[i] - top);
            double p = z[targets[row + t]] - top - log(sum);
            if (lp)
                lp[row + t] = p;
            loss -= weights[row + t] * p;
        }
        free(h);
    }
    free(a), free(z);
    return loss;
}
