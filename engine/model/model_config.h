/* model_config.h - validated values of config.json and generation_config.json; rope frequencies.
 *
 * Unknown features that would change the results are refused by name (TINKC_E_UNSUPPORTED); any
 * other invalid value is TINKC_E_MODEL.
 */
#ifndef TKE_MODEL_MODEL_CONFIG_H
#define TKE_MODEL_MODEL_CONFIG_H

#include "base/arena.h"

enum tke_family { TKE_LLAMA = 0, TKE_QWEN2, TKE_QWEN3 };
enum tke_rope { TKE_ROPE_DEFAULT = 0, TKE_ROPE_LINEAR, TKE_ROPE_LLAMA3, TKE_ROPE_YARN };

enum { TKE_MAX_EOS = 16 };

typedef struct tke_config {
    int32_t family;    /* TKE_LLAMA ... */
    const char *arch;  /* "llama", "qwen2", "qwen3": static */
    size_t hidden;     /* H */
    size_t inner;      /* I */
    size_t n_layers;   /* L */
    size_t n_heads;    /* n */
    size_t n_kv_heads; /* k */
    size_t head_dim;   /* d */
    size_t vocab;      /* V */
    size_t context;    /* max_position_embeddings */
    double rms_eps;
    bool tied;
    bool bias_qkv, bias_o, bias_mlp;
    bool qk_norm;
    size_t window;             /* of sliding layers; 0 = none */
    size_t first_window_layer; /* layers from here on slide, unless layer_slides says */
    bool *layer_slides;        /* by layer_types, or NULL */
    int32_t rope;              /* TKE_ROPE_* */
    double rope_theta, rope_factor, rope_low, rope_high, rope_original;
    double rope_beta_fast, rope_beta_slow, rope_attention; /* attention: 0 = by formula */
    int32_t eos[TKE_MAX_EOS];
    size_t n_eos;
} tke_config;

/* Reads folder/config.json and, if there, folder/generation_config.json. */
bool tke_config_load(tke_config *, const char *folder, tkc_arena *, tinkc_error *err);
/* The two texts instead; generation may be empty. `what` names the file in messages. */
bool tke_config_parse(tke_config *, tinkc_str config, tinkc_str generation, const char *what,
                      tkc_arena *, tinkc_error *err);

/* Frequencies f'_j for j < d/2, in double, and the factor of cos and sin (1 except for yarn). */
void tke_rope_frequencies(const tke_config *, double *out, double *scale);

#endif
