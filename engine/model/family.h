/* family.h - a model family: its configuration keys, and the parts of its layers.
 *
 * A family is one file family_*.c that fills a tke_family, and one line in family.c. It reads its
 * keys with config_keys.h and the helpers below, and lists the parts of each layer with
 * model_build.h. What a part computes is the device's (engine/cpu/part_*.c).
 */
#ifndef TKE_MODEL_FAMILY_H
#define TKE_MODEL_FAMILY_H

#include "model/config_keys.h"
#include "model/model_build.h"

struct tke_family {
    const char *arch;         /* in messages and GGUF files */
    const char *const *names; /* values of model_type and architectures, NULL at the end */
    /* The family's keys, after those of tke_config_common. MODEL or UNSUPPORTED. */
    bool (*config)(const tke_config_keys *, tke_config *);
    /* Lists the parts of layer i; what cannot be used is noted by the builder. */
    void (*layer)(tke_builder *, size_t i);
    const char *quant_method; /* of quantization_config that it can read; NULL = none */
    bool nested;              /* published folders have the keys in text_config */
    bool counts_layers;       /* its own keys say how many layers there are */
    /* Names of tensors, where they are others than model., embed_tokens and norm; prefix: the other
     * one that folders may have. */
    const char *prefix, *embed, *norm;
    bool gguf_pairs; /* llama.cpp rotates neighbouring pairs of its q and k */
};

extern const tke_family tke_family_llama, tke_family_qwen2, tke_family_qwen3, tke_family_qwen3_moe,
    tke_family_gpt_oss, tke_family_qwen3_5, tke_family_qwen3_5_moe, tke_family_nemotron_h;

/* The family of that name, or NULL. */
const tke_family *tke_family_find(tinkc_str name);
/* "A, B and C" for messages. */
const char *tke_family_list(void);

/* ---- keys that many families have ---- */

/* hidden_size, num_hidden_layers (unless the family counts them), vocab_size, max_position_embeddings, tie_word_embeddings, and
 * refusals that hold for all: hidden_act other than silu, quantization_config. */
bool tke_config_common(const tke_config_keys *, tke_config *);
/* num_attention_heads, num_key_value_heads, head_dim (0 = hidden / heads where it is missing). */
bool tke_config_heads(const tke_config_keys *, tke_config *, int64_t head_dim);
/* intermediate_size. */
bool tke_config_inner(const tke_config_keys *, tke_config *);
/* The number in all norms, by its key. */
bool tke_config_eps(const tke_config_keys *, tke_config *, const char *key, double otherwise);
/* rope_parameters, or rope_theta and rope_scaling. Heads come first. */
bool tke_config_rope(const tke_config_keys *, tke_config *, double theta);
/* sliding_window, max_window_layers, layer_types, where use_sliding_window is set. */
bool tke_config_window(const tke_config_keys *, tke_config *);

/* layer_types of sliding and full attention, if it is there. */
bool tke_config_layer_types(const tke_config_keys *, tke_config *);
/* num_experts or num_local_experts, and num_experts_per_tok. */
bool tke_config_experts(const tke_config_keys *, size_t *n, size_t *top);

enum { TKE_MAX_WIDTH = 1 << 20 }; /* generous; keeps every later product far from overflow */

#endif
