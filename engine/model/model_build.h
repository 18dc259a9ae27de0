/* model_build.h - what a family lists the parts of a layer with: finds their tensors, makes groups.
 *
 * Names are relative to the layer ("self_attn.q_proj"). A tensor that is missing or has another
 * shape is noted, so that one message lists all; the functions then return NULL or empty parts.
 */
#ifndef TKE_MODEL_MODEL_BUILD_H
#define TKE_MODEL_MODEL_BUILD_H

#include "model/model.h"

typedef struct tke_builder {
    const tke_config *config;
    tke_model *model;
    tke_layer *layer;               /* the one being built */
    size_t index;                   /* and its number */
    const char *mixer_at, *feed_at; /* where its tensors lie: "self_attn", "mlp" unless changed */
    const tke_file_tensor *(*find)(void *files, const char *name); /* NULL = missing */
    void *files;
    tkc_arena *arena;
    char list[300]; /* of what cannot be used */
    size_t used, n_bad;
    tinkc_error *err;
} tke_builder;

typedef struct tke_module { /* one matrix, by its name */
    const char *name;
    size_t out, in;
    bool bias;
    /* Where it is a part of a larger tensor: the tensor's name, all of its rows, our first. */
    const char *tensor;
    size_t rows, first;
} tke_module;

/* ---- pieces ---- */

/* The next group of the layer: matrices with one input, covered by one train flag. */
const tke_group *tke_build_group(tke_builder *, uint32_t train, const tke_module *list, size_t n);
/* NAME.weight [n] as numbers. */
const tke_real *tke_build_vector(tke_builder *, const char *name, size_t n);
/* The same of a norm, which may be stored as weight - 1. */
const tke_real *tke_build_norm(tke_builder *, const char *name, size_t n);
/* A tensor of n numbers in any shape, by its whole name in the layer; NULL = noted. */
tke_real *tke_build_numbers(tke_builder *, const char *name, const int64_t *dims, int32_t n_dims);

/* [channels][1][kernel] as [kernel][channels]: rows of channels are what a convolution adds. */
const tke_real *tke_build_conv(tke_builder *, const char *name, size_t channels, size_t kernel);
/* exp of n numbers. */
const tke_real *tke_build_exp(tke_builder *, const char *name, size_t n);

/* NAME.weight [out, in], not adapted. */
void tke_build_weight(tke_builder *, const tke_module *, tke_weight *out);
/* Is there a tensor of that whole name in the layer? */
bool tke_build_has(const tke_builder *, const char *name);

/* ---- parts that several families have ---- */

/* input_layernorm before the mixer, post_attention_layernorm before the feed-forward. */
void tke_build_norms(tke_builder *);

typedef struct tke_attn_spec { /* beyond heads, biases and norms, which the configuration has */
    size_t window;
    bool sinks; /* one number for each head */
    bool gate;  /* q_proj has a gate behind each head's query */
} tke_attn_spec;
/* q_proj, k_proj, v_proj, o_proj. */
void tke_build_attention(tke_builder *, const tke_attn_spec *);
/* gate_proj, up_proj, down_proj; squared: without gate_proj. */
void tke_build_dense(tke_builder *, bool squared);

typedef struct tke_experts_spec {
    size_t n, top, inner;
    int32_t route;
    bool paired; /* gpt-oss: router with a bias, one matrix for gate and up, MXFP4 */
    double limit, alpha;
    size_t shared;             /* inner of the expert of every row; 0 = none */
    const char *shared_name;   /* "shared_expert" */
    bool shared_gate;          /* shared_expert_gate weighs it */
    bool squared;              /* no gate_proj; one tensor up_proj where experts are fused */
    tke_sigmoid_route sigmoid; /* its bias is found here: gate.e_score_correction_bias */
} tke_experts_spec;
/* The router "gate", and experts in separate tensors or in two of three dimensions; paired ones:
 * the router "router", and tensors [E, in, out] or blocks and scales. */
void tke_build_experts(tke_builder *, const tke_experts_spec *);

/* ---- the model: for model.c ---- */

/* All tensors of the model. MODEL if some cannot be used. */
bool tke_build_model(tke_builder *);

/* The window of layer i; 0 = none. */
size_t tke_config_window_of(const tke_config *, size_t i);

#endif
