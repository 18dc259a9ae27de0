/* family_qwen_moe.c - Qwen3-MoE: Qwen3's attention; experts in most layers, a dense feed-forward in
 * those that mlp_only_layers and decoder_sparse_step name. */
#include "model/family.h"

typedef struct moe {
    tke_experts_spec experts;
    bool *dense; /* per layer */
} moe;

/* Layer i has experts if the list does not name it and i + 1 is a multiple of the step. */
static bool choose_layers(const tke_config_keys *k, tke_config *c, moe *m)
{
    int64_t step = tke_key_i64(k, "decoder_sparse_step", 1);
    int64_t *list = tkc_arena_array(k->arena, c->n_layers, sizeof *list, k->err);
    int64_t n = list ? tke_key_integers(k, "mlp_only_layers", list, c->n_layers) : -1;
    m->dense = tkc_arena_array(k->arena, c->n_layers, sizeof *m->dense, k->err);
    if (tkc_failed(k->err))
        return false;
    if (step < 1 || n > (int64_t)c->n_layers)
        return tke_keys_bad(k, "decoder_sparse_step or mlp_only_layers is out of range");
    bool any = false;
    for (size_t i = 0; i < c->n_layers; i++)
        m->dense[i] = ((int64_t)i + 1) % step != 0;
    for (int64_t i = 0; i < n; i++) {
        if (list[i] < 0 || list[i] >= (int64_t)c->n_layers)
            return tke_keys_bad(k, "mlp_only_layers names a layer that is not there");
        m->dense[list[i]] = true;
    }
    for (size_t i = 0; i < c->n_layers; i++)
        any = any || m->dense[i];
    return !any || tke_config_inner(k, c);
}

static bool config(const tke_config_keys *k, tke_config *c)
{
    int64_t inner = tke_key_i64(k, "moe_intermediate_size", -1);
    moe *m = tkc_arena_array(k->arena, 1, sizeof *m, k->err);
    c->bias_qkv = c->bias_o = tke_key_bool(k, "attention_bias", false);
    c->qk_norm = true;
    if (!m || !tke_config_heads(k, c, 0) || !tke_config_rope(k, c, 10000) ||
        !tke_config_eps(k, c, "rms_norm_eps", 1e-6) ||
        !tke_keys_size(k, "moe_intermediate_size", inner, TKE_MAX_WIDTH) ||
        !tke_config_experts(k, &m->experts.n, &m->experts.top))
        return false;
    m->experts.inner = (size_t)inner;
    m->experts.route = tke_key_bool(k, "norm_topk_prob", false) ? TKE_ROUTE_CHOSEN : TKE_ROUTE_ALL;
    int64_t window = tke_key_i64(k, "sliding_window", 0);
    if (tke_key_bool(k, "use_sliding_window", false) && window > 0)
        c->window = (size_t)window; /* in every layer */
    c->own = m;
    return choose_layers(k, c, m);
}

static void layer(tke_builder *b, size_t i)
{
    const moe *m = b->config->own;
    tke_build_norms(b);
    tke_build_attention(b, &(tke_attn_spec){ .window = tke_config_window_of(b->config, i) });
    if (m->dense[i])
        tke_build_dense(b, false);
    else
        tke_build_experts(b, &m->experts);
}

static const char *const names[] = { "qwen3_moe", "Qwen3MoeForCausalLM", NULL };

const tke_family tke_family_qwen3_moe = {
    .arch = "qwen3moe", .names = names, .config = config, .layer = layer
};
