/* family_llama.c - Llama 2 and 3: attention and a dense feed-forward, biases on request. */
#include "model/family.h"

static bool config(const tke_config_keys *k, tke_config *c)
{
    if (!tke_config_heads(k, c, 0) || !tke_config_inner(k, c) || !tke_config_rope(k, c, 10000) ||
        !tke_config_eps(k, c, "rms_norm_eps", 1e-6))
        return false;
    c->bias_qkv = c->bias_o = tke_key_bool(k, "attention_bias", false);
    c->bias_mlp = tke_key_bool(k, "mlp_bias", false);
    return true;
}

static void layer(tke_builder *b, size_t i)
{
    (void)i;
    tke_build_norms(b);
    tke_build_attention(b, &(tke_attn_spec){ 0 });
    tke_build_dense(b, false);
}

static const char *const names[] = { "llama", "LlamaForCausalLM", NULL };

const tke_family tke_family_llama = {
    .arch = "llama", .names = names, .config = config, .layer = layer, .gguf_pairs = true
};
