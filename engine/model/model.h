/* model.h - a base model: a Hugging Face folder, mapped and immutable.
 *
 *     tke_model *m = tke_model_open("models/nano", &err);
 *     ... tke_trainer_new(m, ...), tke_infer_new(m, ...)
 *     tke_model_drop(m);
 *
 * Matrices stay in the files' own element types and are never widened as a whole; norms and biases
 * are copied to float. After opening nothing changes, so any number of threads may read. Handles
 * are counted: whoever stands on a model keeps it.
 */
#ifndef TKE_MODEL_MODEL_H
#define TKE_MODEL_MODEL_H

#include "model/model_config.h"
#include "model/safetensors.h"

/* The seven linear layers of a block, in this order everywhere. */
enum tke_module { TKE_Q = 0, TKE_K, TKE_V, TKE_O, TKE_GATE, TKE_UP, TKE_DOWN, TKE_MODULES };
const char *tke_module_path(int module); /* "self_attn.q_proj", ..., "mlp.down_proj" */

typedef struct tke_weight { /* [out, in], row-major, as in the file */
    tke_matrix m;
    size_t out, in;
    const tke_real *bias; /* [out] or NULL */
} tke_weight;

typedef struct tke_layer {
    tke_weight module[TKE_MODULES];
    const tke_real *norm_in, *norm_post; /* [H] */
    const tke_real *q_norm, *k_norm;     /* [d] or NULL */
    size_t window;                       /* 0 = attends to everything before */
} tke_layer;

typedef struct tke_model tke_model;

/* Reads the heads of the files, checks every tensor, maps the weights.
 * Errors: MODEL (names the file and the fault), UNSUPPORTED (names the feature), FILE. */
tke_model *tke_model_open(const char *folder, tinkc_error *err);
tke_model *tke_model_keep(const tke_model *); /* one more handle */
void tke_model_drop(tke_model *);             /* NULL allowed */

const tke_config *tke_model_config(const tke_model *);
const tke_layer *tke_model_layer(const tke_model *, size_t layer);
const tke_weight *tke_model_embed(const tke_model *); /* [V, H] */
const tke_weight *tke_model_head(const tke_model *);  /* [V, H]; the embedding if tied */
const tke_real *tke_model_norm(const tke_model *);    /* [H] */
const char *tke_model_folder(const tke_model *);
size_t tke_model_bytes(const tke_model *); /* of all mapped tensors */

/* 64 hex digits over config, index and the first and last tensors' bytes: tells one set of weights
 * from another. */
const char *tke_model_fingerprint(const tke_model *);

/* Is it one of the ids that end a text? */
bool tke_model_is_eos(const tke_model *, int32_t token);

#endif
