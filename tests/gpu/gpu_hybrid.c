/* gpu_hybrid.c - made-up models of layers with a state: Nemotron-H's, of one part each (state spaces, attention without rotation,
 * experts beside a shared one, squared ReLU), and Qwen3.5's (the delta rule, gated attention). */
#include "gpu_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KERNEL = 4, GROUPS = 5 }; /* taps; groups of matrices of a layer at most */

typedef struct builder {
    world *w;
    const shape *s;
    bool own;
    uint64_t seed; /* of the layer */
    tke_layer *layer;
} builder;

/* The layer's next group, of matrices out[0 .. n - 1] with `in` columns. */
static tke_group *group(builder *b, uint32_t train, size_t n, const size_t *out, size_t in)
{
    tke_group *g = &b->layer->groups[b->layer->n_groups++];
    *g = (tke_group){ .index = b->w->model.n_groups, .train = train, .n = n };
    for (size_t i = 0; i < n; i++)
        g->w[i] = world_weight(b->w, out[i], in, false, b->own, b->seed + g->index * 10 + i);
    b->w->model.groups[b->w->model.n_groups++] = g;
    return g;
}

/* Numbers in low .. high. */
static float *between(size_t n, uint64_t seed, float low, float high)
{
    float *v = malloc(n * sizeof *v);
    random_floats(v, n, seed, (high - low) / 2);
    for (size_t i = 0; i < n; i++)
        v[i] += (high + low) / 2;
    return v;
}

static void make_space(builder *b)
{
    const shape *s = b->s;
    size_t inner = s->space_heads * s->space_dim, gn = s->groups * s->state;
    size_t channels = inner + 2 * gn;
    tke_space *x = calloc(1, sizeof *x);
    *x = (tke_space){ .in = group(b, TKE_TRAIN_ATTN, 2, (size_t[]){ inner, inner }, s->hidden),
                      .vectors = group(b, 0, 3, (size_t[]){ gn, gn, s->space_heads }, s->hidden),
                      .out = group(b, TKE_TRAIN_ATTN, 1, &s->hidden, inner),
                      .conv = between(KERNEL * channels, b->seed + 1, -0.5f, 0.5f),
                      .conv_bias = between(channels, b->seed + 2, -0.1f, 0.1f),
                      .decay = between(s->space_heads, b->seed + 3, 1, 16),
                      .dt_bias = between(s->space_heads, b->seed + 4, -5, -1),
                      .skip = world_vector(s->space_heads, b->seed + 5),
                      .norm = world_vector(inner, b->seed + 6),
                      .n_heads = s->space_heads,
                      .head_dim = s->space_dim,
                      .state_dim = s->state,
                      .n_groups = s->groups,
                      .kernel = KERNEL,
                      .step_max = INFINITY };
    b->layer->mixer = TKE_MIX_SPACE;
    b->layer->space = x;
}

static void make_delta(builder *b)
{
    const shape *s = b->s;
    size_t kd = s->key_heads * s->key_dim, vd = s->value_heads * s->value_dim;
    const size_t in[] = { kd, kd, vd, vd }, gates[] = { s->value_heads, s->value_heads };
    tke_delta *x = calloc(1, sizeof *x);
    *x = (tke_delta){ .in = group(b, TKE_TRAIN_ATTN, 4, in, s->hidden),
                      .gates = group(b, 0, 2, gates, s->hidden),
                      .out = group(b, TKE_TRAIN_ATTN, 1, &s->hidden, vd),
                      .conv = between(KERNEL * (2 * kd + vd), b->seed + 1, -0.5f, 0.5f),
                      .decay = between(s->value_heads, b->seed + 3, 1, 16),
                      .dt_bias = between(s->value_heads, b->seed + 4, -5, -1),
                      .norm = world_vector(s->value_dim, b->seed + 6),
                      .n_key_heads = s->key_heads,
                      .n_value_heads = s->value_heads,
                      .key_dim = s->key_dim,
                      .value_dim = s->value_dim,
                      .kernel = KERNEL };
    b->layer->mixer = TKE_MIX_DELTA;
    b->layer->delta = x;
}

static void make_attention(builder *b)
{
    const shape *s = b->s;
    size_t q = s->heads * s->d, k = s->kv_heads * s->d, rows = s->gate ? 2 * q : q;
    tke_attn *x = calloc(1, sizeof *x);
    *x = (tke_attn){ .qkv = group(b, TKE_TRAIN_ATTN, 3, (size_t[]){ rows, k, k }, s->hidden),
                     .q_norm = s->qk_norm ? world_vector(s->d, b->seed + 10) : NULL,
                     .k_norm = s->qk_norm ? world_vector(s->d, b->seed + 11) : NULL,
                     .gate = s->gate,
                     .o = group(b, TKE_TRAIN_ATTN, 1, &s->hidden, q),
                     .n_heads = s->heads,
                     .n_kv_heads = s->kv_heads,
                     .head_dim = s->d };
    b->layer->mixer = TKE_MIX_ATTENTION;
    b->layer->attn = x;
}

static tke_dense *make_dense(builder *b, size_t inner)
{
    tke_dense *x = calloc(1, sizeof *x);
    bool squared = !b->s->gate; /* Qwen3.5's have gates */
    *x = (tke_dense){ .gate_up = group(b, TKE_TRAIN_MLP, squared ? 1 : 2,
                                       (size_t[]){ inner, inner }, b->s->hidden),
                      .down = group(b, TKE_TRAIN_MLP, 1, &b->s->hidden, inner),
                      .inner = inner,
                      .squared = squared };
    return x;
}

static tke_stack stack(builder *b, size_t out, size_t in, uint64_t seed)
{
    tke_matrix *m = malloc(b->s->experts * sizeof *m);
    for (size_t e = 0; e < b->s->experts; e++)
        m[e] = world_weight(b->w, out, in, false, b->own, seed + e * 13).m;
    return (tke_stack){ .m = m, .out = out, .in = in };
}

static void make_experts(builder *b)
{
    const shape *s = b->s;
    tke_experts *x = calloc(1, sizeof *x);
    tke_group *up = group(b, TKE_TRAIN_MLP, 1, &s->inner, s->hidden);
    tke_group *down = group(b, TKE_TRAIN_MLP, 1, &s->hidden, s->inner);
    up->shared = TKE_SHARED_A;
    down->shared = TKE_SHARED_B;
    up->n_experts = down->n_experts = s->experts;
    *x = (tke_experts){ .n = s->experts,
                        .top = s->top,
                        .inner = s->inner,
                        .route = TKE_ROUTE_SIGMOID,
                        .sigmoid = { .bias = between(s->experts, b->seed + 7, 63.9f, 64.1f),
                                     .n_groups = 1,
                                     .kept_groups = 1,
                                     .normalised = true,
                                     .scale = 2.5 },
                        .router = world_weight(b->w, s->experts, s->hidden, false, b->own,
                                               b->seed + 8),
                        .gate_up = up,
                        .down = down,
                        .squared = true,
                        .gate = stack(b, s->inner, s->hidden, b->seed * 1000 + 1),
                        .out = stack(b, s->hidden, s->inner, b->seed * 1000 + 600),
                        .shared = s->shared ? make_dense(b, s->shared) : NULL };
    b->layer->feed = TKE_FEED_EXPERTS;
    b->layer->experts = x;
}

static void make_layer(builder *b, char kind)
{
    const float *norm = world_vector(b->s->hidden, b->seed + 9);
    b->layer->groups = b->w->groups + b->w->model.n_groups;
    bool both = kind == 'D' || kind == 'G'; /* mixer and feed-forward */
    if (kind == 'M' || kind == '*' || both)
        b->layer->mixer_norm = norm;
    if (kind == 'E' || kind == '-' || both)
        b->layer->feed_norm = norm;
    if (kind == 'D')
        make_delta(b);
    if (kind == 'G')
        make_attention(b);
    if (kind == 'M') {
        make_space(b);
    } else if (kind == '*') {
        make_attention(b);
    } else if (kind == 'E') {
        make_experts(b);
    } else {
        b->layer->feed = TKE_FEED_DENSE;
        b->layer->dense = make_dense(b, b->s->inner);
    }
}

world *world_hybrid(const shape *s, bool own, uint64_t seed)
{
    world *w = calloc(1, sizeof *w);
    tke_model *m = &w->model;
    size_t layers = strlen(s->pattern);
    if (!own)
        world_numbers(w, s, seed);
    m->config = (tke_config){ .arch = "nemotron_h",
                              .hidden = s->hidden,
                              .inner = s->inner,
                              .n_layers = layers,
                              .n_heads = s->heads,
                              .n_kv_heads = s->kv_heads,
                              .head_dim = s->d,
                              .rotary = s->gate ? s->d - s->still : 0,
                              .qk_norm = s->qk_norm,
                              .tied = s->tied,
                              .vocab = s->vocab,
                              .context = s->context,
                              .rms_eps = 1e-5 };
    m->layers = calloc(layers, sizeof *m->layers);
    w->groups = calloc(layers * GROUPS, sizeof *w->groups);
    m->groups = calloc(layers * GROUPS + 1, sizeof *m->groups);
    for (size_t i = 0; i < layers; i++)
        make_layer(&(builder){ w, s, own, seed + i * 100, &m->layers[i] }, s->pattern[i]);
    m->embed = world_weight(w, s->vocab, s->hidden, false, own, seed + 91);
    m->head = (tke_group){ .index = m->n_groups, .n = 1, .train = TKE_TRAIN_UNEMBED };
    m->head.w[0] = s->tied ? m->embed : world_weight(w, s->vocab, s->hidden, false, own, seed + 92);
    m->groups[m->n_groups++] = &m->head;
    m->norm = world_vector(s->hidden, seed + 93);
    double *f = malloc((m->config.rotary / 2 + 1) * sizeof *f);
    for (size_t j = 0; j < m->config.rotary / 2; j++)
        f[j] = pow(10000.0, -2.0 * (double)j / (double)m->config.rotary);
    m->rope_frequency = f;
    m->rope_scale = 1;
    return w;
}
