/* model_build.c - finds the tensors of a model: shapes, groups, small vectors to numbers.
 *
 * May touch: the tensors it is shown. Must not: know a family, or widen a matrix.
 */
#include "model/model_build.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/str.h"
#include "math/format.h"
#include "model/family.h"

enum { PATH_LEN = 200, LAYER_GROUPS = 8 /* at most */, MOST_BAD = 1000 };

/* ---- tensors ---- */

static void complain(tke_builder *b, const char *name, const char *fault)
{
    b->n_bad++;
    if (b->used < sizeof b->list - 1) {
        int n = snprintf(b->list + b->used, sizeof b->list - b->used, "%s%s (%s)",
                         b->used ? ", " : "", name, fault);
        b->used = n < 0 ? sizeof b->list : b->used + (size_t)n;
    }
}

/* The tensor of that name; "model." stands for the prefix that the files have. */
static const tke_file_tensor *look_up(const tke_builder *b, const char *name)
{
    static const char ours[] = "model.";
    char full[PATH_LEN + 40];
    if (strncmp(name, ours, sizeof ours - 1) != 0)
        return b->find(b->files, name);
    snprintf(full, sizeof full, "%s%s", b->config->prefix, name + sizeof ours - 1);
    return b->find(b->files, full);
}

static bool has_shape(const tke_file_tensor *t, const int64_t *dims, int32_t n_dims)
{
    bool same = t->n_dims == n_dims;
    for (int32_t i = 0; same && i < n_dims; i++)
        same = t->dims[i] == dims[i];
    return same;
}

/* A tensor of numbers with this shape; NULL and noted otherwise. */
static const tke_file_tensor *find(tke_builder *b, const char *name, const int64_t *dims,
                                   int32_t n_dims)
{
    const tke_file_tensor *t = look_up(b, name);
    bool same = t && has_shape(t, dims, n_dims);
    if (!same || (t->packed ? n_dims != 2 : t->dtype > TKE_FILE_F16)) {
        complain(b, name, !t ? "missing" : !same ? "wrong shape" : "neither BF16, F16 nor F32");
        return NULL;
    }
    b->model->n_bytes += t->n_bytes;
    assert((t->packed || tke_tensor_is_real(t)) && t->data);
    return t;
}

/* Rows of `in` numbers from row `first` on. A packed row is whole blocks: its tensor was checked. */
static tke_matrix matrix_of(const tke_file_tensor *t, size_t first, size_t in)
{
    enum { SIDE = 128 }; /* of FP8; first is a multiple */
    tke_dtype dtype = (tke_dtype)(t->packed ? t->packed : t->dtype);
    size_t skipped = dtype == TKE_FP8   ? first / SIDE * ((in + SIDE - 1) / SIDE)
                     : dtype == TKE_NF4 ? first * in / (size_t)tke_format_nf4.block
                                        : 0;
    return (tke_matrix){ .data = t->data + tke_format_bytes(tke_format_of(dtype), first * in),
                         .ld = (int64_t)in,
                         .dtype = dtype,
                         .factors = t->factors ? t->factors + skipped : NULL };
}

/* Its elements as numbers; t may be NULL. */
static tke_real *numbers_of(tke_builder *b, const tke_file_tensor *t)
{
    size_t n = t ? tke_tensor_count(t) : 0;
    tke_real *out = t ? tkc_arena_array(b->arena, n, sizeof *out, b->err) : NULL;
    if (out)
        tke_widen((tke_dtype)t->dtype, t->data, n, out);
    return out;
}

static const tke_real *find_vector(tke_builder *b, const char *name, size_t n)
{
    return numbers_of(b, find(b, name, (int64_t[]){ (int64_t)n }, 1));
}

static void find_weight(tke_builder *b, const char *path, const tke_module *of, tke_weight *w)
{
    char name[PATH_LEN + 8];
    size_t rows = of->tensor ? of->rows : of->out;
    assert(of->out > 0 && of->in > 0 && strlen(path) < PATH_LEN && of->first + of->out <= rows);
    if (of->tensor)
        snprintf(name, sizeof name, "model.layers.%zu.%s.weight", b->index, of->tensor);
    else
        snprintf(name, sizeof name, "%s.weight", path);
    const tke_file_tensor *t = find(b, name, (int64_t[]){ (int64_t)rows, (int64_t)of->in }, 2);
    if (t && t->packed == TKE_FP8 && of->first % 128) {
        complain(b, name, "FP8 that is cut inside of a square");
        t = NULL;
    }
    *w = (tke_weight){ .out = of->out, .in = of->in };
    w->path = tkc_arena_cstr(b->arena, path, b->err);
    if (t) {
        w->m = matrix_of(t, of->first, of->in);
        if (of->first) /* counted with the first part */
            b->model->n_bytes -= t->n_bytes;
    }
    if (of->bias) {
        snprintf(name, sizeof name, "%s.bias", path);
        w->bias = find_vector(b, name, of->out);
    }
}

/* 1 + stored, rounded once, as the families that store norms so compute it. */
static const tke_real *from_one(tke_builder *b, const tke_real *stored, size_t n)
{
    tke_real *out = tkc_arena_array(b->arena, n, sizeof *out, b->err);
    for (size_t i = 0; out && i < n; i++)
        out[i] = 1 + stored[i];
    return out;
}

/* ---- pieces ---- */

const tke_group *tke_build_group(tke_builder *b, uint32_t train, const tke_module *list, size_t n)
{
    char path[PATH_LEN];
    tke_layer *layer = b->layer;
    tke_group *g = &layer->groups[layer->n_groups];
    assert(layer->n_groups < LAYER_GROUPS && n <= TKE_GROUP_MAX);
    *g = (tke_group){ .index = b->model->n_groups, .train = train, .n = n };
    for (size_t k = 0; k < n; k++) {
        snprintf(path, sizeof path, "model.layers.%zu.%s", b->index, list[k].name);
        find_weight(b, path, &list[k], &g->w[k]);
    }
    layer->n_groups++;
    b->model->groups[b->model->n_groups++] = g;
    return g;
}

/* By its whole name. */
static const tke_real *layer_vector(tke_builder *b, const char *name, size_t n)
{
    char path[PATH_LEN];
    snprintf(path, sizeof path, "model.layers.%zu.%s", b->index, name);
    return find_vector(b, path, n);
}

const tke_real *tke_build_vector(tke_builder *b, const char *name, size_t n)
{
    char whole[PATH_LEN / 2];
    snprintf(whole, sizeof whole, "%s.weight", name);
    return layer_vector(b, whole, n);
}

void tke_build_weight(tke_builder *b, const tke_module *of, tke_weight *out)
{
    char path[PATH_LEN];
    snprintf(path, sizeof path, "model.layers.%zu.%s", b->index, of->name);
    find_weight(b, path, of, out);
}

bool tke_build_has(const tke_builder *b, const char *name)
{
    char path[PATH_LEN];
    snprintf(path, sizeof path, "model.layers.%zu.%s", b->index, name);
    return look_up(b, path) != NULL;
}

const tke_real *tke_build_norm(tke_builder *b, const char *name, size_t n)
{
    const tke_real *stored = tke_build_vector(b, name, n);
    if (!stored || !b->config->norm_from_one)
        return stored;
    return from_one(b, stored, n);
}

tke_real *tke_build_numbers(tke_builder *b, const char *name, const int64_t *dims, int32_t n_dims)
{
    char path[PATH_LEN];
    snprintf(path, sizeof path, "model.layers.%zu.%s", b->index, name);
    return numbers_of(b, find(b, path, dims, n_dims));
}

const tke_real *tke_build_conv(tke_builder *b, const char *name, size_t channels, size_t kernel)
{
    const int64_t dims[] = { (int64_t)channels, 1, (int64_t)kernel };
    const tke_real *stored = tke_build_numbers(b, name, dims, 3);
    tke_real *out = tkc_arena_array(b->arena, channels * kernel, sizeof *out, b->err);
    for (size_t i = 0; stored && out && i < channels * kernel; i++)
        out[i % kernel * channels + i / kernel] = stored[i];
    return out;
}

const tke_real *tke_build_exp(tke_builder *b, const char *name, size_t n)
{
    tke_real *x = tke_build_numbers(b, name, (int64_t[]){ (int64_t)n }, 1);
    for (size_t i = 0; x && i < n; i++)
        x[i] = (tke_real)exp((double)x[i]);
    return x;
}

/* ---- parts ---- */

void tke_build_norms(tke_builder *b)
{
    b->layer->mixer_norm = tke_build_norm(b, "input_layernorm", b->config->hidden);
    b->layer->feed_norm = tke_build_norm(b, "post_attention_layernorm", b->config->hidden);
}

/* "self_attn.q_proj": in the arena; "" if memory is lacking, which err says. */
static const char *join(tke_builder *b, const char *at, const char *name)
{
    const char *whole = tkc_arena_printf(b->arena, b->err, "%s.%s", at, name);
    return whole ? whole : "";
}

void tke_build_attention(tke_builder *b, const tke_attn_spec *spec)
{
    const tke_config *c = b->config;
    const char *at = b->mixer_at;
    size_t h = c->hidden, qd = c->n_heads * c->head_dim, kd = c->n_kv_heads * c->head_dim;
    size_t queries = spec->gate ? 2 * qd : qd;
    const tke_module qkv[] = {
        { .name = join(b, at, "q_proj"), .out = queries, .in = h, .bias = c->bias_qkv },
        { .name = join(b, at, "k_proj"), .out = kd, .in = h, .bias = c->bias_qkv },
        { .name = join(b, at, "v_proj"), .out = kd, .in = h, .bias = c->bias_qkv }
    };
    const tke_module o[] = {
        { .name = join(b, at, "o_proj"), .out = h, .in = qd, .bias = c->bias_o }
    };
    tke_attn *a = tkc_arena_array(b->arena, 1, sizeof *a, b->err);
    if (!a)
        return;
    *a = (tke_attn){ .qkv = tke_build_group(b, TKE_TRAIN_ATTN, qkv, 3),
                     .o = tke_build_group(b, TKE_TRAIN_ATTN, o, 1),
                     .n_heads = c->n_heads,
                     .n_kv_heads = c->n_kv_heads,
                     .head_dim = c->head_dim,
                     .window = spec->window,
                     .gate = spec->gate };
    if (c->qk_norm) {
        a->q_norm = tke_build_norm(b, join(b, at, "q_norm"), c->head_dim);
        a->k_norm = tke_build_norm(b, join(b, at, "k_norm"), c->head_dim);
    }
    if (spec->sinks)
        a->sinks = layer_vector(b, join(b, at, "sinks"), c->n_heads);
    b->layer->mixer = TKE_MIX_ATTENTION;
    b->layer->attn = a;
}

static const tke_dense *build_dense(tke_builder *b, const char *at, size_t inner, bool squared)
{
    const tke_config *c = b->config;
    const tke_module up = {
        .name = join(b, at, "up_proj"), .out = inner, .in = c->hidden, .bias = c->bias_mlp
    };
    const tke_module gate_up[] = {
        { .name = join(b, at, "gate_proj"), .out = inner, .in = c->hidden, .bias = c->bias_mlp }, up
    };
    const tke_module down[] = {
        { .name = join(b, at, "down_proj"), .out = c->hidden, .in = inner, .bias = c->bias_mlp }
    };
    tke_dense *d = tkc_arena_array(b->arena, 1, sizeof *d, b->err);
    if (d)
        *d = (tke_dense){ .gate_up = squared ? tke_build_group(b, TKE_TRAIN_MLP, &up, 1)
                                             : tke_build_group(b, TKE_TRAIN_MLP, gate_up, 2),
                          .down = tke_build_group(b, TKE_TRAIN_MLP, down, 1),
                          .inner = inner,
                          .squared = squared };
    return d;
}

void tke_build_dense(tke_builder *b, bool squared)
{
    b->layer->dense = build_dense(b, b->feed_at, b->config->inner, squared);
    if (b->layer->dense)
        b->layer->feed = TKE_FEED_DENSE;
}

/* ---- experts ---- */

/* experts.E.NAME.bias, where they have one. */
static const tke_real *separate_biases(tke_builder *b, const char *name, size_t n, size_t out)
{
    char path[PATH_LEN / 2];
    snprintf(path, sizeof path, "%s.experts.0.%s.bias", b->feed_at, name);
    tke_real *all = tke_build_has(b, path) ? tkc_arena_array(b->arena, n * out, sizeof *all, b->err)
                                           : NULL;
    for (size_t e = 0; all && e < n && b->n_bad < MOST_BAD; e++) {
        snprintf(path, sizeof path, "%s.experts.%zu.%s.bias", b->feed_at, e, name);
        const tke_real *one = layer_vector(b, path, out);
        if (one)
            memcpy(all + e * out, one, out * sizeof *all);
    }
    return all;
}

/* Separate tensors: experts.E.NAME.weight. */
static void stack_separate(tke_builder *b, const char *name, size_t n, tke_stack *s)
{
    char path[PATH_LEN];
    tke_matrix *m = tkc_arena_array(b->arena, n, sizeof *m, b->err);
    s->bias = separate_biases(b, name, n, s->out);
    for (size_t e = 0; m && e < n && b->n_bad < MOST_BAD; e++) {
        snprintf(path, sizeof path, "model.layers.%zu.%s.experts.%zu.%s.weight", b->index,
                 b->feed_at, e, name);
        const tke_file_tensor *t = find(b, path, (int64_t[]){ (int64_t)s->out, (int64_t)s->in }, 2);
        if (t)
            m[e] = matrix_of(t, 0, s->in);
    }
    s->m = m;
}

/* Rows first .. first + out - 1 of each expert's part of a tensor [n, rows, in]. */
static void stack_fused(tke_builder *b, const tke_file_tensor *t, size_t n, size_t first,
                        tke_stack *s)
{
    tke_matrix *m = tkc_arena_array(b->arena, n, sizeof *m, b->err);
    for (size_t e = 0; m && t && e < n; e++)
        m[e] = matrix_of(t, e * (size_t)t->dims[1] + first, s->in);
    s->m = m;
}

static const tke_file_tensor *find_fused(tke_builder *b, const char *name, size_t n, size_t rows,
                                         size_t cols)
{
    char path[PATH_LEN];
    snprintf(path, sizeof path, "model.layers.%zu.%s.experts.%s", b->index, b->feed_at, name);
    return find(b, path, (int64_t[]){ (int64_t)n, (int64_t)rows, (int64_t)cols }, 3);
}

/* The group of adapters of some experts' matrices: names alone, the numbers are in stacks. */
static const tke_group *experts_group(tke_builder *b, int32_t shared, size_t n_experts,
                                      const tke_module *list, size_t n)
{
    char path[PATH_LEN];
    tke_layer *layer = b->layer;
    tke_group *g = &layer->groups[layer->n_groups];
    assert(layer->n_groups < LAYER_GROUPS && n <= TKE_GROUP_MAX);
    *g = (tke_group){ .index = b->model->n_groups,
                      .train = TKE_TRAIN_MLP,
                      .shared = shared,
                      .n_experts = n_experts,
                      .n = n };
    for (size_t k = 0; k < n; k++) {
        snprintf(path, sizeof path, "model.layers.%zu.%s", b->index, list[k].name);
        g->w[k] = (tke_weight){ .out = list[k].out,
                                .in = list[k].in,
                                .path = tkc_arena_cstr(b->arena, path, b->err) };
    }
    layer->n_groups++;
    b->model->groups[b->model->n_groups++] = g;
    return g;
}

/* Biases of all experts, [n, out]. */
static const tke_real *stack_bias(tke_builder *b, const char *name, size_t n, size_t out)
{
    char path[PATH_LEN];
    snprintf(path, sizeof path, "model.layers.%zu.%s.experts.%s_bias", b->index, b->feed_at, name);
    return numbers_of(b, find(b, path, (int64_t[]){ (int64_t)n, (int64_t)out }, 2));
}

/* Blocks [n, out, in / 32, 16] or scales [n, out, in / 32] of an MXFP4 tensor. */
static const uint8_t *find_packed(tke_builder *b, const char *name, const char *part, size_t n,
                                  const tke_stack *s, int32_t n_dims)
{
    char path[PATH_LEN];
    snprintf(path, sizeof path, "model.layers.%zu.%s.experts.%s_%s", b->index, b->feed_at, name,
             part);
    const tke_file_tensor *t = look_up(b, path);
    const int64_t dims[4] = { (int64_t)n, (int64_t)s->out, (int64_t)s->in / TKE_MXFP4_BLOCK,
                              TKE_MXFP4_BLOCK / 2 };
    if (!t || !has_shape(t, dims, n_dims) || t->dtype != TKE_FILE_U8) {
        complain(b, path, t ? "wrong shape or not U8" : "missing");
        return NULL;
    }
    b->model->n_bytes += t->n_bytes;
    uint8_t most = 0;
    for (size_t i = 0; n_dims == 3 && i < t->n_bytes; i++)
        most = t->data[i] > most ? t->data[i] : most;
    if (most > TKE_MXFP4_MAX_SCALE) {
        complain(b, path, "a scale is NaN or overflows");
        return NULL;
    }
    return t->data;
}

/* MXFP4 where the file has blocks, else [n, in, out] with gates and ups in turn. */
static void stack_paired(tke_builder *b, const char *name, size_t n, tke_stack *s)
{
    char blocks[64];
    tke_matrix *m = tkc_arena_array(b->arena, n, sizeof *m, b->err);
    snprintf(blocks, sizeof blocks, "%s.experts.%s_blocks", b->feed_at, name);
    s->bias = stack_bias(b, name, n, s->out);
    s->m = m;
    if (m && tke_build_has(b, blocks)) {
        const uint8_t *data = find_packed(b, name, "blocks", n, s, 4);
        const uint8_t *scales = find_packed(b, name, "scales", n, s, 3);
        size_t count = s->out * s->in;
        for (size_t e = 0; data && scales && e < n; e++)
            m[e] = (tke_matrix){ .data = data + e * count / 2,
                                 .ld = (int64_t)s->in,
                                 .dtype = TKE_MXFP4,
                                 .scales = scales + e * count / TKE_MXFP4_BLOCK };
    } else if (m) {
        const tke_file_tensor *t = find_fused(b, name, n, s->in, s->out);
        size_t step = t ? s->in * s->out * tke_file_dtype_size(t->dtype) : 0;
        s->transposed = true;
        for (size_t e = 0; t && e < n; e++)
            m[e] = (tke_matrix){ .data = t->data + e * step,
                                 .ld = (int64_t)s->out,
                                 .dtype = (tke_dtype)t->dtype };
    }
}

/* Names decide the layout, never shapes, which can be ambiguous. */
static void find_stacks(tke_builder *b, size_t hidden, tke_experts *x)
{
    x->gate = x->up = (tke_stack){ .out = x->inner, .in = hidden };
    x->out = (tke_stack){ .out = hidden, .in = x->inner };
    if (x->paired && tke_build_has(b, join(b, b->feed_at, "experts.0.gate_proj.weight")))
        x->paired = false; /* GGUF files keep gates and ups apart */
    if (x->paired) {
        x->gate.out = 2 * x->inner;
        stack_paired(b, "gate_up_proj", x->n, &x->gate);
        stack_paired(b, "down_proj", x->n, &x->out);
        return;
    }
    const char *first = x->squared ? "up_proj" : "gate_up_proj";
    if (tke_build_has(b, join(b, b->feed_at, join(b, "experts", first)))) {
        size_t rows = x->squared ? x->inner : 2 * x->inner;
        const tke_file_tensor *t = find_fused(b, first, x->n, rows, hidden);
        stack_fused(b, t, x->n, 0, &x->gate);
        if (!x->squared)
            stack_fused(b, t, x->n, x->inner, &x->up);
        stack_fused(b, find_fused(b, "down_proj", x->n, hidden, x->inner), x->n, 0, &x->out);
        return;
    }
    stack_separate(b, x->squared ? "up_proj" : "gate_proj", x->n, &x->gate);
    if (!x->squared)
        stack_separate(b, "up_proj", x->n, &x->up);
    stack_separate(b, "down_proj", x->n, &x->out);
}

static void find_shared(tke_builder *b, const tke_experts_spec *spec, tke_experts *x)
{
    const char *name = spec->shared_name ? spec->shared_name : "shared_expert";
    const tke_module gate = { .name = join(b, b->feed_at, "shared_expert_gate"),
                              .out = 1,
                              .in = b->config->hidden };
    x->shared = build_dense(b, join(b, b->feed_at, name), spec->shared, spec->squared);
    if (spec->shared_gate)
        tke_build_weight(b, &gate, &x->shared_gate);
}

static void find_router(tke_builder *b, const tke_experts_spec *spec, tke_experts *x)
{
    const tke_module router = { .name = join(b, b->feed_at, spec->paired ? "router" : "gate"),
                                .out = spec->n,
                                .in = b->config->hidden,
                                .bias = spec->paired };
    tke_build_weight(b, &router, &x->router);
    x->sigmoid = spec->sigmoid;
    if (spec->route == TKE_ROUTE_SIGMOID)
        x->sigmoid.bias =
            layer_vector(b, join(b, b->feed_at, "gate.e_score_correction_bias"), spec->n);
}

void tke_build_experts(tke_builder *b, const tke_experts_spec *spec)
{
    size_t h = b->config->hidden, f = spec->inner;
    const tke_module in[] = { { .name = join(b, b->feed_at, "experts.w1"), .out = f, .in = h },
                              { .name = join(b, b->feed_at, "experts.w3"), .out = f, .in = h } };
    const tke_module out[] = { { .name = join(b, b->feed_at, "experts.w2"), .out = h, .in = f } };
    tke_experts *x = tkc_arena_array(b->arena, 1, sizeof *x, b->err);
    if (!x)
        return;
    *x = (tke_experts){ .n = spec->n,
                        .top = spec->top,
                        .inner = f,
                        .route = spec->route,
                        .paired = spec->paired,
                        .squared = spec->squared,
                        .limit = spec->limit,
                        .alpha = spec->alpha,
                        .gate_up =
                            experts_group(b, TKE_SHARED_A, spec->n, in, spec->squared ? 1 : 2),
                        .down = experts_group(b, TKE_SHARED_B, spec->n, out, 1) };
    find_router(b, spec, x);
    find_stacks(b, h, x);
    if (spec->shared)
        find_shared(b, spec, x);
    b->layer->feed = TKE_FEED_EXPERTS;
    b->layer->experts = x;
}

/* ---- the model ---- */

static void find_head(tke_builder *b)
{
    tke_model *m = b->model;
    const tke_module head = {
        .name = "lm_head", .out = m->config.vocab, .in = m->config.hidden, .bias = false
    };
    m->head = (tke_group){ .index = m->n_groups, .train = TKE_TRAIN_UNEMBED, .n = 1 };
    if (m->config.tied)
        m->head.w[0] = m->embed;
    else
        find_weight(b, "lm_head", &head, &m->head.w[0]);
    m->head.w[0].path = "lm_head";
    m->groups[m->n_groups++] = &m->head;
}

static void build_layer(tke_builder *b, size_t i)
{
    b->index = i;
    b->layer = &b->model->layers[i];
    b->mixer_at = "self_attn";
    b->feed_at = "mlp";
    b->layer->groups = tkc_arena_array(b->arena, LAYER_GROUPS, sizeof *b->layer->groups, b->err);
    if (b->layer->groups)
        b->config->family->layer(b, i);
}

/* Paths of embedding and last norm; the family's other prefix, if the files have that. */
static void choose_prefix(tke_builder *b, char embed[PATH_LEN], char norm[PATH_LEN])
{
    const tke_family *f = b->config->family;
    const char *name = f->embed ? f->embed : "embed_tokens";
    char other[PATH_LEN];
    snprintf(embed, PATH_LEN, "model.%s", name);
    snprintf(norm, PATH_LEN, "model.%s.weight", f->norm ? f->norm : "norm");
    snprintf(other, sizeof other, "%s%s.weight", f->prefix ? f->prefix : "", name);
    if (f->prefix && b->find(b->files, other))
        b->model->config.prefix = f->prefix;
}

bool tke_build_model(tke_builder *b)
{
    tke_model *m = b->model;
    const tke_config *c = b->config;
    const tke_module embed = { .out = c->vocab, .in = c->hidden };
    char embed_path[PATH_LEN], norm_path[PATH_LEN];
    choose_prefix(b, embed_path, norm_path);
    m->layers = tkc_arena_array(b->arena, c->n_layers, sizeof *m->layers, b->err);
    m->groups =
        tkc_arena_array(b->arena, c->n_layers * LAYER_GROUPS + 1, sizeof *m->groups, b->err);
    if (!m->layers || !m->groups)
        return false;
    find_weight(b, embed_path, &embed, &m->embed);
    for (size_t i = 0; i < c->n_layers && !tkc_failed(b->err) && b->n_bad < MOST_BAD; i++)
        build_layer(b, i);
    m->norm = find_vector(b, norm_path, c->hidden);
    if (m->norm && c->norm_from_one)
        m->norm = from_one(b, m->norm, c->hidden);
    find_head(b);
    if (b->n_bad)
        return tkc_fail(b->err, TINKC_E_MODEL, "%s: %zu tensors cannot be used: %s", m->folder,
                        b->n_bad, b->list);
    return !tkc_failed(b->err);
}

size_t tke_config_window_of(const tke_config *c, size_t i)
{
    bool slides = c->layer_slides ? c->layer_slides[i] : i >= c->first_window_layer;
    return slides ? c->window : 0;
}
