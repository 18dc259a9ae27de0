/* family_qwen.c - Qwen2 and Qwen3, dense: Qwen2 has biases on q, k and v, Qwen3 norms of q and k.
 * Both may have sliding windows. */
#include "model/family.h"

static bool config(const tke_config_keys *k, tke_config *c, int64_t head_dim)
{
    return tke_config_heads(k, c, head_dim) && tke_config_inner(k, c) &&
           tke_config_rope(k, c, 10000) && tke_config_eps(k, c, "rms_norm_eps", 1e-6) &&
           tke_config_window(k, c);
}

static bool qwen2_config(const tke_config_keys *k, tke_config *c)
{
    c->bias_qkv = true;
    return config(k, c, 0);
}

static bool qwen3_config(const tke_config_keys *k, tke_config *c)
{
    c->bias_qkv = c->bias_o = tke_key_bool(k, "attention_bias", false);
    c->qk_norm = true;
    return config(k, c, 128);
}

static void layer(tke_builder *b, size_t i)
{
    const tke_config *c = b->config;
    tke_build_norms(b);
    tke_build_attention(b, &(tke_attn_spec){ .window = tke_config_window_of(c, i) });
    tke_build_dense(b, false);
}

static const char *const qwen2_names[] = { "qwen2", "Qwen2ForCausalLM", NULL };
static const char *const qwen3_names[] = { "qwen3", "Qwen3ForCausalLM", NULL };

const tke_family tke_family_qwen2 = {
    .arch = "qwen2", .names = qwen2_names, .config = qwen2_config, .layer = layer
};
const tke_family tke_family_qwen3 = {
    .arch = "qwen3", .names = qwen3_names, .config = qwen3_config, .layer = layer
};
