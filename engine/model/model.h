/* model.h - a base model: a Hugging Face folder or a GGUF file, mapped and immutable.
 *
 *     tke_model *m = tke_model_open("models/nano", &err);
 *     ... tke_trainer_new(m, ...), tke_infer_new(m, ...)
 *     tke_model_drop(m);
 *
 * Matrices stay in the files' own formats and are never widened as a whole; norms and biases
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
 * group are contiguous, so that one product computes all of them. The matrices of a group of
 * experts stand for E matrices each; of their adapters one factor is shared by all experts: A
 * where the input is shared, B where the output is. */
enum { TKE_GROUP_MAX = 4 };
enum { TKE_OWN_FACTORS = 0, TKE_SHARED_A, TKE_SHARED_B };
typedef struct tke_group {
    size_t index;     /* in tke_model.groups, and in every layout */
    uint32_t train;   /* TKE_TRAIN_* */
    int32_t shared;   /* TKE_OWN_FACTORS, or which factor all experts share */
    size_t n_experts; /* 0 unless a factor is shared */
    size_t n;         /* matrices */
    tke_weight w[TKE_GROUP_MAX];
} tke_group;

/* ---- the parts of a layer ----
 *
 * A layer is h += mixer(norm(h)), then h += feed-forward(norm(h)); either may be missing. A device
 * has one object for each kind of part; a family (family.h) says which parts a layer has.
 */
enum { TKE_MIX_NONE = 0, TKE_MIX_ATTENTION, TKE_MIX_DELTA, TKE_MIX_SPACE, TKE_MIX_KINDS };
enum { TKE_FEED_NONE = 0, TKE_FEED_DENSE, TKE_FEED_EXPERTS, TKE_FEED_KINDS };

typedef struct tke_attn { /* causal attention with grouped heads */
    const tke_group *qkv, *o;
    const tke_real *q_norm, *k_norm; /* [d] or NULL */
    size_t n_heads, n_kv_heads, head_dim;
    size_t window;         /* 0 = attends to everything before */
    const tke_real *sinks; /* [n_heads] or NULL: one more score in each softmax, without a value */
    bool gate; /* q_proj has a gate behind each head's query: o is multiplied by its sigmoid */
} tke_attn;

enum { TKE_DELTA_MAX_KERNEL = 8, TKE_DELTA_MAX_DIM = 256 };
typedef struct tke_delta {  /* linear attention by the gated delta rule */
    const tke_group *in;    /* q, k, v, z */
    const tke_group *gates; /* strength and decay: without adapters */
    const tke_group *out;
    const tke_real *conv;    /* [kernel][q, k and v]: the last row is the position's own */
    const tke_real *decay;   /* [value heads]: exp(A_log) */
    const tke_real *dt_bias; /* [value heads] */
    const tke_real *norm;    /* [value_dim] */
    size_t n_key_heads, n_value_heads, key_dim, value_dim, kernel;
} tke_delta;

enum { TKE_SPACE_MAX_KERNEL = 8, TKE_SPACE_MAX_DIM = 256 };
typedef struct tke_space {    /* a state space: Mamba-2 */
    const tke_group *in;      /* z, x */
    const tke_group *vectors; /* B, C and the time step: without adapters */
    const tke_group *out;
    const tke_real *conv;      /* [kernel][x, B and C]: the last row is the position's own */
    const tke_real *conv_bias; /* [x, B and C] or NULL */
    const tke_real *decay;     /* [heads]: exp(A_log) */
    const tke_real *dt_bias;   /* [heads] */
    const tke_real *skip;      /* [heads]: D, what y gets of x */
    const tke_real *norm;      /* [heads * head_dim], over each group's part */
    size_t n_heads, head_dim, state_dim, n_groups, kernel;
    double step_min, step_max; /* of the time step */
} tke_space;

/* down(silu(gate x) * up x); squared: down(max(up x, 0)^2), and gate_up has only one matrix. */
typedef struct tke_dense {
    const tke_group *gate_up, *down;
    size_t inner;
    bool squared;
} tke_dense;

typedef struct tke_stack { /* one matrix of each expert: [out, in] */
    const tke_matrix *m;   /* [E] */
    size_t out, in;
    bool transposed;      /* stored as [in, out] */
    const tke_real *bias; /* [E, out] or NULL */
} tke_stack;

/* What the weights of a row's experts are: a softmax over the chosen ones, or over all; or sigmoids
 * of their own. */
enum { TKE_ROUTE_CHOSEN = 0, TKE_ROUTE_ALL, TKE_ROUTE_SIGMOID };
enum { TKE_MAX_EXPERTS = 4096, TKE_MAX_GROUPS = 256 };

typedef struct tke_sigmoid_route {
    const tke_real *bias; /* [n]: added for the choice only */
    /* Experts lie in n_groups groups, of which kept_groups may be chosen from: those with the
     * largest sums of their two best. */
    size_t n_groups, kept_groups;
    bool normalised; /* weights are divided by their sum */
    double scale;    /* and then multiplied by this */
} tke_sigmoid_route;

/* A router sends each row to `top` of n experts; y is the sum of their weighted results. */
typedef struct tke_experts {
    size_t n, top, inner;            /* inner: of one expert */
    int32_t route;                   /* TKE_ROUTE_* */
    tke_sigmoid_route sigmoid;       /* of TKE_ROUTE_SIGMOID */
    tke_weight router;               /* [n, H], not adapted */
    const tke_group *gate_up, *down; /* for the adapters; the numbers are in the stacks */
    /* paired: gate has all 2 * inner outputs, gates at even places, ups at odd ones; up is unused */
    bool paired;
    bool squared; /* max(gate, 0)^2, where gate is called up in files; up is unused */
    tke_stack gate, up, out;
    const tke_dense *shared; /* an expert of every row, or NULL */
    tke_weight shared_gate;  /* [1, H]: its result is weighted by the sigmoid; without data: by 1 */
    /* 0: silu(gate) * up. Else gate is at most limit, up within -limit .. limit, and the result
     * (up + 1) * gate * sigmoid(alpha * gate). */
    double limit, alpha;
} tke_experts;

typedef struct tke_layer {
    tke_group *groups; /* in the order of files and layouts */
    size_t n_groups;
    int32_t mixer, feed;                    /* TKE_MIX_*, TKE_FEED_* */
    const tke_real *mixer_norm, *feed_norm; /* [H]; NULL where the part is missing */
    const tke_attn *attn;                   /* what belongs to the kinds above; else NULL */
    const tke_delta *delta;
    const tke_space *space;
    const tke_dense *dense;
    const tke_experts *experts;
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
    const double *rope_frequency; /* [rotary / 2] */
    double rope_scale;            /* of cos and sin: 1 but for yarn */
    const char *folder; /* or the GGUF file */
    size_t n_bytes; /* of all mapped tensors */
    /* 64 hex digits over config, index and the first and last tensors' bytes: tells one set of
     * weights from another. */
    char fingerprint[65];
    int32_t packed_bits; /* of the layers, if they were packed as it was opened; else 0 */
    char pack_key[65];   /* what packed matrices in the cache are of; "" = as stored */
} tke_model;

/* Reads the headers of the files, checks every tensor, maps the weights.
 * Errors: MODEL (names the file and the problem), UNSUPPORTED (names the feature), FILE. */
tke_model *tke_model_open(const char *folder, tinkc_error *err);
/* The same, and reports the packing of "FOLDER#4bit" and "FOLDER#8bit"; progress may be NULL, and stops it by
 * returning false (CANCELLED). */
typedef bool tke_progress(int64_t done, int64_t total, void *user);
tke_model *tke_model_open_watched(const char *folder, tke_progress *, void *user, tinkc_error *err);
tke_model *tke_model_keep(const tke_model *); /* one more reference */
void tke_model_drop(tke_model *);             /* NULL allowed */

/* The tensor files of a folder; 0 of a GGUF file. */
size_t tke_model_files(const tke_model *, const tke_tensor_file **);

/* "#4bit" or "#8bit" behind a path or name asks for packed layers: cuts it off. 0 = as stored. */
int32_t tke_model_bits(tinkc_str *name);

/* Keys and values that a position has in the cache: of the layers that attend, and of no others. */
size_t tke_model_cache_numbers(const tke_model *);

static inline const tke_config *tke_model_config(const tke_model *m)
{
    return &m->config;
}

/* Is it one of the ids that end a text? */
bool tke_model_is_eos(const tke_model *, int32_t token);

#endif
