/* family_qwen3_5.c - Qwen3.5, 3.6 and 3.8, dense and with experts: layers of the gated delta rule, every fourth one of gated
 * attention that rotates a quarter of each head. Norms are stored as weight - 1. Vision towers and
 * heads that predict several tokens are passed over. */
#include "model/family.h"

#include "base/str.h"

enum { MAX_HEADS = 1024 };

typedef struct own {
    bool *linear; /* [n_layers] */
    size_t key_heads, value_heads, key_dim, value_dim, kernel;
    tke_experts_spec experts; /* n 0 = dense */
} own;

static bool read_types(const tke_config_keys *k, tke_config *c, own *o)
{
    tinkc_str *types = tkc_arena_array(k->arena, c->n_layers, sizeof *types, k->err);
    o->linear = tkc_arena_array(k->arena, c->n_layers, sizeof *o->linear, k->err);
    int64_t every = tke_key_i64(k, "full_attention_interval", 4);
    if (!types || !o->linear || !tke_keys_size(k, "full_attention_interval", every, 1 << 20))
        return false;
    int64_t n = tke_key_strings(k, "layer_types", types, c->n_layers);
    if (n >= 0 && n != (int64_t)c->n_layers)
        return tke_keys_bad(k, "layer_types has the wrong length");
    for (size_t i = 0; i < c->n_layers; i++) {
        o->linear[i] =
            n < 0 ? (i + 1) % (size_t)every != 0 : tkc_str_is(types[i], "linear_attention");
        if (n >= 0 && !o->linear[i] && !tkc_str_is(types[i], "full_attention"))
            return tke_keys_refuse(k, "layer type", types[i]);
    }
    return !tkc_failed(k->err);
}

static bool read_delta(const tke_config_keys *k, own *o)
{
    int64_t key_heads = tke_key_i64(k, "linear_num_key_heads", 16);
    int64_t value_heads = tke_key_i64(k, "linear_num_value_heads", 32);
    int64_t key_dim = tke_key_i64(k, "linear_key_head_dim", 128);
    int64_t value_dim = tke_key_i64(k, "linear_value_head_dim", 128);
    int64_t kernel = tke_key_i64(k, "linear_conv_kernel_dim", 4);
    if (!tke_keys_size(k, "linear_num_key_heads", key_heads, MAX_HEADS) ||
        !tke_keys_size(k, "linear_num_value_heads", value_heads, MAX_HEADS) ||
        !tke_keys_size(k, "linear_key_head_dim", key_dim, TKE_DELTA_MAX_DIM) ||
        !tke_keys_size(k, "linear_value_head_dim", value_dim, TKE_DELTA_MAX_DIM) ||
        !tke_keys_size(k, "linear_conv_kernel_dim", kernel, TKE_DELTA_MAX_KERNEL))
        return false;
    if (value_heads % key_heads)
        return tke_keys_bad(k, "linear_num_value_heads is not a multiple of linear_num_key_heads");
    o->key_heads = (size_t)key_heads;
    o->value_heads = (size_t)value_heads;
    o->key_dim = (size_t)key_dim;
    o->value_dim = (size_t)value_dim;
    o->kernel = (size_t)kernel;
    return true;
}

static bool refuse_others(const tke_config_keys *k)
{
    tinkc_str gate = tke_key_str(k, "output_gate_type");
    if (!tke_key_bool(k, "attn_output_gate", true))
        return tke_keys_refuse(k, "feature", tkc_str("attn_output_gate: false"));
    if (gate.data && !tkc_str_is(gate, "swish") && !tkc_str_is(gate, "silu"))
        return tke_keys_refuse(k, "output_gate_type", gate);
    return !tkc_failed(k->err);
}

/* Every layer has experts and one more for all rows; their weights are always normalised. */
static bool read_experts(const tke_config_keys *k, own *o)
{
    int64_t inner = tke_key_i64(k, "moe_intermediate_size", -1);
    int64_t shared = tke_key_i64(k, "shared_expert_intermediate_size", -1);
    int64_t unused;
    if (!tke_config_experts(k, &o->experts.n, &o->experts.top) ||
        !tke_keys_size(k, "moe_intermediate_size", inner, TKE_MAX_WIDTH) ||
        !tke_keys_size(k, "shared_expert_intermediate_size", shared, TKE_MAX_WIDTH))
        return false;
    if (!tke_key_bool(k, "norm_topk_prob", true))
        return tke_keys_refuse(k, "feature", tkc_str("norm_topk_prob: false"));
    if (tke_key_i64(k, "decoder_sparse_step", 1) != 1 ||
        tke_key_integers(k, "mlp_only_layers", &unused, 1) > 0)
        return tke_keys_refuse(k, "feature", tkc_str("mlp_only_layers or decoder_sparse_step"));
    o->experts.inner = (size_t)inner;
    o->experts.shared = (size_t)shared;
    o->experts.shared_gate = true;
    o->experts.route = TKE_ROUTE_CHOSEN;
    return !tkc_failed(k->err);
}

static bool config(const tke_config_keys *k, tke_config *c)
{
    own *o = tkc_arena_array(k->arena, 1, sizeof *o, k->err);
    bool experts = c->family == &tke_family_qwen3_5_moe;
    if (!o || !tke_config_heads(k, c, 256) ||
        !(experts ? read_experts(k, o) : tke_config_inner(k, c)))
        return false;
    c->own = o;
    c->qk_norm = c->norm_from_one = true;
    c->bias_qkv = c->bias_o = tke_key_bool(k, "attention_bias", false);
    c->rotary = c->head_dim / 4;
    return tke_config_rope(k, c, 10000) && tke_config_eps(k, c, "rms_norm_eps", 1e-6) &&
           read_types(k, c, o) && read_delta(k, o) && refuse_others(k);
}

static void build_delta(tke_builder *b, const own *o)
{
    size_t h = b->config->hidden, kd = o->key_heads * o->key_dim,
           vd = o->value_heads * o->value_dim;
    static const char qkv[] = "linear_attn.in_proj_qkv";
    size_t all = 2 * kd + vd;
    const tke_module in[] = { { "linear_attn.in_proj_q", kd, h, false, qkv, all, 0 },
                              { "linear_attn.in_proj_k", kd, h, false, qkv, all, kd },
                              { "linear_attn.in_proj_v", vd, h, false, qkv, all, 2 * kd },
                              { .name = "linear_attn.in_proj_z", .out = vd, .in = h } };
    const tke_module gates[] = {
        { .name = "linear_attn.in_proj_b", .out = o->value_heads, .in = h },
        { .name = "linear_attn.in_proj_a", .out = o->value_heads, .in = h }
    };
    const tke_module out[] = { { .name = "linear_attn.out_proj", .out = h, .in = vd } };
    tke_delta *d = tkc_arena_array(b->arena, 1, sizeof *d, b->err);
    if (!d)
        return;
    *d = (tke_delta){ .in = tke_build_group(b, TKE_TRAIN_ATTN, in, 4),
                      .gates = tke_build_group(b, 0, gates, 2),
                      .out = tke_build_group(b, TKE_TRAIN_ATTN, out, 1),
                      .conv = tke_build_conv(b, "linear_attn.conv1d.weight", all, o->kernel),
                      .decay = tke_build_exp(b, "linear_attn.A_log", o->value_heads),
                      .dt_bias = tke_build_numbers(b, "linear_attn.dt_bias",
                                                   (int64_t[]){ (int64_t)o->value_heads }, 1),
                      .norm = tke_build_vector(b, "linear_attn.norm", o->value_dim),
                      .n_key_heads = o->key_heads,
                      .n_value_heads = o->value_heads,
                      .key_dim = o->key_dim,
                      .value_dim = o->value_dim,
                      .kernel = o->kernel };
    b->layer->mixer = TKE_MIX_DELTA;
    b->layer->delta = d;
}

static void layer(tke_builder *b, size_t i)
{
    const own *o = b->config->own;
    tke_build_norms(b);
    if (o->linear[i])
        build_delta(b, o);
    else
        tke_build_attention(b, &(tke_attn_spec){ .gate = true });
    if (o->experts.n)
        tke_build_experts(b, &o->experts);
    else
        tke_build_dense(b, false);
}

static const char *const names[] = { "qwen3_5", "qwen3_5_text", "Qwen3_5ForConditionalGeneration",
                                     "Qwen3_5ForCausalLM", NULL };

const tke_family tke_family_qwen3_5 = {
    .arch = "qwen3_5", .names = names, .config = config, .layer = layer, .nested = true
};

static const char *const moe_names[] = { "qwen3_5_moe", "qwen3_5_moe_text",
                                         "Qwen3_5MoeForConditionalGeneration",
                                         "Qwen3_5MoeForCausalLM", NULL };

const tke_family tke_family_qwen3_5_moe = {
    .arch = "qwen3_5_moe", .names = moe_names, .config = config, .layer = layer, .nested = true
};
