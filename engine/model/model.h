/* model.h - a base model: a Hugging Face folder, mapped and immutable.
 *
 *     tke_model *m = tke_model_open("models/nano", &err);
 *     ... tke_trainer_new(m, ...), tke_infer_new(m, ...)
 *     tke_model_drop(m);
 *
 * Matrices stay in the files' own element types and are never widened as a whole; norms and biases
 * are copied to float. After opening nothing changes, so any number of threads may read. A model
 * is reference-counted: what is built on it holds a reference.
 */
#ifndef TKE_MODEL_MODEL_H
#define TKE_MODEL_MODEL_H

#include "model/model_config.h"
#include "model/safetensors.h"

typedef struct tke_weight { /* a linear layer: [out, in], row-major, as in the file */
    tke_matrix m;
    size_t out, in;
    const tke_real *bias; /* [out] or NULL */
    const char *path;     /* "model.layers.0.self_attn.q_proj", "lm_head" */
} tke_weight;

/* What an adapter trains: each group is covered by one flag. */
enum { TKE_TRAIN_ATTN = 1u << 0, TKE_TRAIN_MLP = 1u << 1, TKE_TRAIN_UNEMBED = 1u << 2 };

/* Matrices that read the same input (q, k, v; gate, up). Adapters follow the groups: the A's of a
 * group are contiguous, so that one product computes all of them. */
enum { TKE_GROUP_MAX = 3, TKE_LAYER_GROUPS = 4 /* at most */ };
typedef struct tke_group {
    size_t index;   /* in tke_model.groups, and in every layout */
    size_t slot;    /* in its layer */
    uint32_t train; /* TKE_TRAIN_* */
    size_t n;       /* matrices */
    tke_weight w[TKE_GROUP_MAX];
} tke_group;

typedef struct tke_layer {
    tke_group *groups; /* in the order of files and layouts */
    size_t n_groups;
    const tke_group *qkv, *o, *gate_up, *down; /* of those above */
    const tke_real *norm_in, *norm_post;       /* [H] */
    const tke_real *q_norm, *k_norm;           /* [d] or NULL */
    size_t window;                             /* 0 = attends to everything before */
} tke_layer;

/* Callers read it directly; nothing changes after opening. */
typedef struct tke_model {
    tke_config config;
    tke_layer *layers;        /* [n_layers] */
    const tke_group **groups; /* [n_groups]: of all layers, in order; the last is the head's */
    size_t n_groups;
    tke_weight embed;             /* [V, H] */
    tke_group head;               /* [V, H]; the embedding's numbers if tied */
    const tke_real *norm;         /* [H] */
    const double *rope_frequency; /* [d / 2] */
    double rope_scale;            /* of cos and sin: 1 but for yarn */
    const char *folder;
    size_t n_bytes; /* of all mapped tensors */
    /* 64 hex digits over config, index and the first and last tensors' bytes: tells one set of
     * weights from another. */
    char fingerprint[65];
} tke_model;

/* Reads the headers of the files, checks every tensor, maps the weights.
 * Errors: MODEL (names the file and the problem), UNSUPPORTED (names the feature), FILE. */
tke_model *tke_model_open(const char *folder, tinkc_error *err);
tke_model *tke_model_keep(const tke_model *); /* one more reference */
void tke_model_drop(tke_model *);             /* NULL allowed */

static inline const tke_config *tke_model_config(const tke_model *m)
{
    return &m->config;
}

/* Is it one of the ids that end a text? */
bool tke_model_is_eos(const tke_model *, int32_t token);

#endif
