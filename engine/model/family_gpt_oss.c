/* family_gpt_oss.c - gpt-oss: attention with sinks, windows in every other layer and biases; experts
 * with clamped SwiGLU in bf16 or MXFP4, which stays packed. */
#include "base/str.h"
#include "model/family.h"

/* Without any key of the rotation: yarn as published. */
static bool rope(const tke_config_keys *k, tke_config *c)
{
    static const char *const keys[] = { "rope_parameters", "rope_scaling", "rope_theta" };
    bool any = false;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        any = any || tke_key_given(k, keys[i]);
    if (any)
        return tke_config_rope(k, c, 150000);
    c->rope = TKE_ROPE_YARN;
    c->rope_theta = 150000;
    c->rope_factor = c->rope_beta_fast = 32;
    c->rope_beta_slow = 1;
    c->rope_original = 4096;
    c->rope_exact = true;
    return true;
}

static bool windows(const tke_config_keys *k, tke_config *c)
{
    int64_t window = tke_key_i64(k, "sliding_window", 128);
    if (!tke_keys_size(k, "sliding_window", window, INT32_MAX) || !tke_config_layer_types(k, c))
        return false;
    c->window = (size_t)window;
    if (!c->layer_slides)
        c->layer_slides = tkc_arena_array(k->arena, c->n_layers, sizeof *c->layer_slides, k->err);
    else
        return true;
    for (size_t i = 0; c->layer_slides && i < c->n_layers; i++)
        c->layer_slides[i] = i % 2 == 0;
    return c->layer_slides != NULL;
}

static bool config(const tke_config_keys *k, tke_config *c)
{
    tke_experts_spec *x = tkc_arena_array(k->arena, 1, sizeof *x, k->err);
    if (!x || !tke_config_heads(k, c, 64) || !tke_config_inner(k, c) || !rope(k, c) ||
        !tke_config_eps(k, c, "rms_norm_eps", 1e-5) || !windows(k, c) ||
        !tke_config_experts(k, &x->n, &x->top))
        return false;
    c->bias_qkv = c->bias_o = tke_key_bool(k, "attention_bias", true);
    x->inner = c->inner;
    x->route = TKE_ROUTE_CHOSEN;
    x->paired = true;
    x->limit = tke_key_double(k, "swiglu_limit", 7);
    x->alpha = tke_key_double(k, "swiglu_alpha", 1.702);
    if (!(x->limit > 0 && x->alpha > 0))
        return tke_keys_bad(k, "swiglu_limit and swiglu_alpha must be above 0");
    if (tke_key_given(k, "quantization_config") &&
        (c->hidden % TKE_MXFP4_BLOCK || x->inner % TKE_MXFP4_BLOCK))
        return tke_keys_bad(k, "mxfp4: hidden_size or intermediate_size is not a multiple of 32");
    c->own = x;
    return true;
}

static void layer(tke_builder *b, size_t i)
{
    tke_build_norms(b);
    tke_build_attention(
        b, &(tke_attn_spec){ .window = tke_config_window_of(b->config, i), .sinks = true });
    tke_build_experts(b, b->config->own);
}

static const char *const names[] = { "gpt_oss", "GptOssForCausalLM", NULL };

const tke_family tke_family_gpt_oss = {
    .arch = "gpt-oss", .names = names, .config = config, .layer = layer, .quant_method = "mxfp4"
};
