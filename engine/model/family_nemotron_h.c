/* family_nemotron_h.c - Nemotron-H: each layer is one part, a state space (Mamba-2), attention without
 * rotation, a feed-forward with squared ReLU, or experts with a sigmoid router. Heads that predict
 * several tokens are passed over. */
#include "model/family.h"

#include <math.h>
#include <string.h>
#include "base/str.h"

enum { MAX_HEADS = 4096 };

typedef struct own {
    char *kinds; /* [n_layers] M, E, *, - */
    tke_space space;
    tke_experts_spec experts;
    bool conv_bias;
} own;

static bool has_kind(const tke_config *c, const own *o, char kind)
{
    return memchr(o->kinds, kind, c->n_layers) != NULL;
}

/* ---- configuration ---- */

/* A whole number that has two spellings. */
static int64_t either(const tke_config_keys *k, const char *name, const char *other,
                      int64_t otherwise)
{
    int64_t value = tke_key_i64(k, name, tke_key_i64(k, other, otherwise));
    if (tke_key_i64(k, other, value) != value)
        tkc_fail(k->err, TINKC_E_MODEL, "%s: %s and %s differ", k->what, name, other);
    return value;
}

static char kind_of(tinkc_str name)
{
    static const struct {
        const char *name;
        char kind;
    } names[] = { { "mamba", 'M' },     { "linear_attention", 'M' }, { "moe", 'E' },
                  { "attention", '*' }, { "full_attention", '*' },   { "mlp", '-' } };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tkc_str_is(name, names[i].name))
            return names[i].kind;
    return 0;
}

/* A list of names as letters; false if there is none or it is faulty. */
static bool read_list(const tke_config_keys *k, const char *key, char *kinds, size_t *n)
{
    tinkc_str names[TKE_MAX_LAYERS];
    int64_t count = tke_key_strings(k, key, names, TKE_MAX_LAYERS);
    if (count < 0 || !tke_keys_size(k, key, count, TKE_MAX_LAYERS))
        return false;
    for (size_t i = 0; i < (size_t)count; i++) {
        kinds[i] = kind_of(names[i]);
        if (!kinds[i])
            return tke_keys_refuse(k, key, names[i]);
    }
    *n = (size_t)count;
    return true;
}

static bool read_pattern(const tke_config_keys *k, char *kinds, size_t *n)
{
    tinkc_str text = tke_key_str(k, "hybrid_override_pattern");
    if (!text.data)
        return false;
    if (!tke_keys_size(k, "hybrid_override_pattern", (int64_t)text.len, TKE_MAX_LAYERS))
        return false;
    for (size_t i = 0; i < text.len; i++) {
        if (!memchr("ME*-", text.data[i], 4))
            return tke_keys_refuse(k, "hybrid_override_pattern", text);
        kinds[i] = text.data[i];
    }
    *n = text.len;
    return true;
}

/* The kinds of layers, as a pattern or a list, or as both if they agree. */
static bool read_kinds(const tke_config_keys *k, tke_config *c, own *o)
{
    char listed[TKE_MAX_LAYERS];
    size_t n = 0;
    o->kinds = tkc_arena_array(k->arena, TKE_MAX_LAYERS, 1, k->err);
    bool pattern = o->kinds && read_pattern(k, o->kinds, &c->n_layers);
    const char *key = tke_key_given(k, "layers_block_type") ? "layers_block_type" : "layer_types";
    bool list = o->kinds && read_list(k, key, pattern ? listed : o->kinds, &n);
    if (tkc_failed(k->err))
        return false;
    if (pattern && list && (n != c->n_layers || memcmp(listed, o->kinds, n) != 0))
        return tkc_fail(k->err, TINKC_E_MODEL, "%s: hybrid_override_pattern and %s differ", k->what,
                        key);
    if (!pattern && !list)
        return tke_keys_bad(k, "hybrid_override_pattern is missing or not a text");
    c->n_layers = pattern ? c->n_layers : n;
    if (tke_key_i64(k, "num_hidden_layers", (int64_t)c->n_layers) != (int64_t)c->n_layers)
        return tke_keys_bad(k, "num_hidden_layers is not the number of layers in the pattern");
    return true;
}

/* Limits of the time step. */
static bool read_limits(const tke_config_keys *k, own *o)
{
    double limits[2] = { 0, INFINITY };
    const char *key = tke_key_given(k, "time_step_limit") ? "time_step_limit" : "mamba_dt_limit";
    int64_t n = tke_key_limits(k, key, limits, 2);
    if (tkc_failed(k->err))
        return false;
    if ((tke_key_given(k, key) && n != 2) || !(limits[0] >= 0 && limits[0] <= limits[1]) ||
        isinf(limits[0]))
        return tkc_fail(k->err, TINKC_E_MODEL, "%s: %s must be two numbers, 0 <= low <= high",
                        k->what, key);
    o->space.step_min = limits[0];
    o->space.step_max = limits[1];
    return true;
}

static bool read_space(const tke_config_keys *k, own *o)
{
    int64_t heads = tke_key_i64(k, "mamba_num_heads", -1);
    int64_t head_dim = tke_key_i64(k, "mamba_head_dim", -1);
    int64_t state = tke_key_i64(k, "ssm_state_size", -1);
    int64_t groups = either(k, "n_groups", "mamba_n_groups", -1);
    int64_t kernel = either(k, "conv_kernel", "mamba_d_conv", 4);
    if (!tke_keys_size(k, "mamba_num_heads", heads, MAX_HEADS) ||
        !tke_keys_size(k, "mamba_head_dim", head_dim, TKE_SPACE_MAX_DIM) ||
        !tke_keys_size(k, "ssm_state_size", state, TKE_SPACE_MAX_DIM) ||
        !tke_keys_size(k, "n_groups", groups, heads) ||
        !tke_keys_size(k, "conv_kernel", kernel, TKE_SPACE_MAX_KERNEL))
        return false;
    if (heads % groups)
        return tke_keys_bad(k, "mamba_num_heads is not a multiple of n_groups");
    o->space = (tke_space){ .n_heads = (size_t)heads,
                            .head_dim = (size_t)head_dim,
                            .state_dim = (size_t)state,
                            .n_groups = (size_t)groups,
                            .kernel = (size_t)kernel };
    o->conv_bias = tke_key_bool(k, "use_conv_bias", tke_key_bool(k, "mamba_conv_bias", true));
    return read_limits(k, o);
}

/* n_group and topk_group are the router's; n_groups is the state space's. */
static bool read_groups(const tke_config_keys *k, tke_experts_spec *x)
{
    int64_t groups = tke_key_i64(k, "n_group", 1), kept = tke_key_i64(k, "topk_group", 1);
    if (!tke_keys_size(k, "n_group", groups, TKE_MAX_GROUPS) ||
        !tke_keys_size(k, "topk_group", kept, groups))
        return false;
    size_t size = x->n / (size_t)groups;
    if (x->n % (size_t)groups || (groups > 1 && size < 2))
        return tke_keys_bad(k, "n_routed_experts does not divide into n_group groups of 2 or more");
    if (x->top > (size_t)kept * size)
        return tke_keys_bad(k, "num_experts_per_tok is more than topk_group groups have");
    x->sigmoid = (tke_sigmoid_route){ .n_groups = (size_t)groups,
                                      .kept_groups = (size_t)kept,
                                      .normalised = tke_key_bool(k, "norm_topk_prob", true),
                                      .scale = tke_key_double(k, "routed_scaling_factor", 1) };
    if (!(x->sigmoid.scale > 0 && isfinite(x->sigmoid.scale)))
        return tke_keys_bad(k, "routed_scaling_factor must be above 0");
    return !tkc_failed(k->err);
}

static bool read_experts(const tke_config_keys *k, tke_experts_spec *x)
{
    int64_t n = either(k, "n_routed_experts", "num_local_experts", -1);
    int64_t top = tke_key_i64(k, "num_experts_per_tok", -1);
    int64_t inner = tke_key_i64(k, "moe_intermediate_size", -1);
    int64_t shared = tke_key_i64(k, "moe_shared_expert_intermediate_size", -1);
    if (!tke_keys_size(k, "n_routed_experts", n, TKE_MAX_EXPERTS) ||
        !tke_keys_size(k, "num_experts_per_tok", top, n < TKE_MAX_TOP ? n : TKE_MAX_TOP) ||
        !tke_keys_size(k, "moe_intermediate_size", inner, TKE_MAX_WIDTH) ||
        !tke_keys_size(k, "moe_shared_expert_intermediate_size", shared, TKE_MAX_WIDTH))
        return false;
    if (tke_key_i64(k, "n_shared_experts", 1) != 1)
        return tke_keys_refuse(k, "feature", tkc_str("n_shared_experts other than 1"));
    *x = (tke_experts_spec){ .n = (size_t)n,
                             .top = (size_t)top,
                             .inner = (size_t)inner,
                             .route = TKE_ROUTE_SIGMOID,
                             .shared = (size_t)shared,
                             .shared_name = "shared_experts",
                             .squared = true };
    return read_groups(k, x);
}

static bool refuse_act(const tke_config_keys *k, const char *key, const char *wanted)
{
    tinkc_str act = tke_key_str(k, key);
    return !act.data || tkc_str_is(act, wanted) || tke_keys_refuse(k, key, act);
}

/* Features that published folders do not use, or that other models of this name have. */
static bool refuse_others(const tke_config_keys *k, const tke_config *c)
{
    static const char *const switches[] = { "use_bias", "mlp_bias", "attention_bias",
                                            "mamba_proj_bias" };
    static const char *const values[] = { "moe_latent_size", "sliding_window", "vision_config" };
    tinkc_str type = tke_key_str(k, "model_type");
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
        if (tke_key_bool(k, switches[i], false))
            return tke_keys_refuse(k, "feature", tkc_str(switches[i]));
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (tke_key_given(k, values[i]))
            return tke_keys_refuse(k, "feature", tkc_str(values[i]));
    if (type.data && !tkc_str_is(type, "nemotron_h"))
        return tke_keys_refuse(k, "model_type", type);
    if (c->tied)
        return tke_keys_refuse(k, "feature", tkc_str("tie_word_embeddings: true"));
    return refuse_act(k, "mlp_hidden_act", "relu2") && refuse_act(k, "mamba_hidden_act", "silu") &&
           !tkc_failed(k->err);
}

static bool read_heads(const tke_config_keys *k, tke_config *c)
{
    if (!tke_key_given(k, "head_dim"))
        return tke_keys_bad(k, "head_dim is missing or out of range");
    return tke_config_heads(k, c, 0);
}

static bool config(const tke_config_keys *k, tke_config *c)
{
    own *o = tkc_arena_array(k->arena, 1, sizeof *o, k->err);
    if (!o || !refuse_others(k, c) || !read_kinds(k, c, o) ||
        !tke_config_eps(k, c, "layer_norm_epsilon", 1e-5))
        return false;
    c->own = o;
    return (!has_kind(c, o, 'M') || read_space(k, o)) &&
           (!has_kind(c, o, '*') || read_heads(k, c)) &&
           (!has_kind(c, o, 'E') || read_experts(k, &o->experts)) &&
           (!has_kind(c, o, '-') || tke_config_inner(k, c));
}

/* ---- layers ---- */

static tke_real *head_numbers(tke_builder *b, const char *name, size_t n)
{
    return tke_build_numbers(b, name, (int64_t[]){ (int64_t)n }, 1);
}

/* in_proj has rows z, x, B, C and of the time step, in this order. */
static void build_space(tke_builder *b, const own *o)
{
    size_t h = b->config->hidden, heads = o->space.n_heads, inner = heads * o->space.head_dim;
    size_t gn = o->space.n_groups * o->space.state_dim, all = 2 * inner + 2 * gn + heads;
    static const char rows[] = "mixer.in_proj";
    const tke_module in[] = { { "mixer.gate_proj", inner, h, false, rows, all, 0 },
                              { "mixer.x_proj", inner, h, false, rows, all, inner } };
    const tke_module vectors[] = { { "mixer.in_proj_b", gn, h, false, rows, all, 2 * inner },
                                   { "mixer.in_proj_c", gn, h, false, rows, all, 2 * inner + gn },
                                   { "mixer.in_proj_dt", heads, h, false, rows, all,
                                     2 * inner + 2 * gn } };
    const tke_module out[] = { { .name = "mixer.out_proj", .out = h, .in = inner } };
    tke_space *m = tkc_arena_array(b->arena, 1, sizeof *m, b->err);
    if (!m)
        return;
    *m = o->space;
    m->in = tke_build_group(b, TKE_TRAIN_ATTN, in, 2);
    m->vectors = tke_build_group(b, 0, vectors, 3);
    m->out = tke_build_group(b, TKE_TRAIN_ATTN, out, 1);
    m->conv = tke_build_conv(b, "mixer.conv1d.weight", inner + 2 * gn, o->space.kernel);
    if (o->conv_bias)
        m->conv_bias = head_numbers(b, "mixer.conv1d.bias", inner + 2 * gn);
    m->decay = tke_build_exp(b, "mixer.A_log", heads);
    m->skip = head_numbers(b, "mixer.D", heads);
    m->dt_bias = head_numbers(b, "mixer.dt_bias", heads);
    m->norm = tke_build_vector(b, "mixer.norm", inner);
    b->layer->mixer = TKE_MIX_SPACE;
    b->layer->space = m;
}

static void layer(tke_builder *b, size_t i)
{
    const own *o = b->config->own;
    const tke_real *norm = tke_build_norm(b, "norm", b->config->hidden);
    bool mixes = o->kinds[i] == 'M' || o->kinds[i] == '*';
    *(mixes ? &b->layer->mixer_norm : &b->layer->feed_norm) = norm;
    b->mixer_at = b->feed_at = "mixer";
    if (o->kinds[i] == 'M')
        build_space(b, o);
    else if (o->kinds[i] == '*')
        tke_build_attention(b, &(tke_attn_spec){ 0 });
    else if (o->kinds[i] == 'E')
        tke_build_experts(b, &o->experts);
    else
        tke_build_dense(b, true);
}

static const char *const names[] = { "nemotron_h", "NemotronHForCausalLM", NULL };

const tke_family tke_family_nemotron_h = { .arch = "nemotron_h",
                                           .names = names,
                                           .config = config,
                                           .layer = layer,
                                           .counts_layers = true,
                                           .prefix = "backbone.",
                                           .embed = "embeddings",
                                           .norm = "norm_f" };
