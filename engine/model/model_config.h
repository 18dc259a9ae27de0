/* model_config.h - validated values of config.json and generation_config.json; rope frequencies.
 *
 * Unknown features that would change the results are refused by name (TINKC_E_UNSUPPORTED); any
 * other invalid value is TINKC_E_MODEL.
 */
#ifndef TKE_MODEL_MODEL_CONFIG_H
#define TKE_MODEL_MODEL_CONFIG_H

#include "base/arena.h"

typedef struct tke_family tke_family; /* family.h */
enum tke_rope { TKE_ROPE_DEFAULT = 0, TKE_ROPE_LINEAR, TKE_ROPE_LLAMA3, TKE_ROPE_YARN };

enum { TKE_MAX_EOS = 16, TKE_MAX_LAYERS = 1024 };

typedef struct tke_config {
    const tke_family *family;
    const char *arch;  /* its name: "llama", "qwen2", ...: static */
    size_t hidden;     /* H */
    size_t inner;      /* I */
    size_t n_layers;   /* L */
    size_t n_heads;    /* n */
    size_t n_kv_heads; /* k */
    size_t head_dim;   /* d */
    size_t rotary;     /* the first dimensions of a head, which rotate; 0 = none */
    size_t vocab;      /* V */
    size_t context;    /* max_position_embeddings */
    double rms_eps;
    bool tied;
    bool bias_qkv, bias_o, bias_mlp;
    bool qk_norm;
    bool norm_from_one;        /* norms of layers and heads are stored as weight - 1 */
    const char *prefix;        /* of tensors: "model.", or "model.language_model." */
    size_t window;             /* of sliding layers; 0 = none */
    size_t first_window_layer; /* layers from here on slide, unless layer_slides says */
    bool *layer_slides;        /* by layer_types, or NULL */
    int32_t rope;              /* TKE_ROPE_* */
    double rope_theta, rope_factor, rope_low, rope_high, rope_original;
    double rope_beta_fast, rope_beta_slow, rope_attention; /* attention: 0 = by formula */
    bool rope_exact; /* yarn: bounds are not rounded to whole dimensions */
    int32_t eos[TKE_MAX_EOS];
    size_t n_eos;
    const void *own; /* what only the family knows; NULL = nothing */
} tke_config;

/* Reads folder/config.json and, if there, folder/generation_config.json. */
bool tke_config_load(tke_config *, const char *folder, tkc_arena *, tinkc_error *err);
/* The two texts instead; generation may be empty. `what` names the file in messages. */
bool tke_config_parse(tke_config *, tinkc_str config, tinkc_str generation, const char *what,
                      tkc_arena *, tinkc_error *err);

/* Frequencies f'_j for j < rotary/2, in double, and the factor of cos and sin (1 except for yarn). */
void tke_rope_frequencies(const tke_config *, double *out, double *scale);

#endif
