/* gpu_world.h - models and adapters made up for the checks of the CUDA backend, and their arithmetic in double. */
#ifndef TKE_GPU_WORLD_H
#define TKE_GPU_WORLD_H

#include "cuda/cuda_state.h"

typedef struct world {
    tke_model model;
    tke_group *groups;
    uint16_t *numbers; /* bf16, shared by all matrices of a large model */
    size_t n_numbers;
    const char *format; /* of the shape */
    tke_matrix blocks;  /* packed, shared by all matrices of a large model */
} world;

typedef struct shape {
    const char *name;
    size_t hidden, inner, layers, heads, kv_heads, d, vocab, context;
    bool tied, qk_norm, bias;
    size_t window;
    size_t experts, top; /* inner is an expert's, too; 0: none */
    bool oss;            /* sinks, biases, clamped SwiGLU, packed numbers */
    const char *pattern; /* of layers with one part each: M, E, * and - as Nemotron-H's; or Qwen3.5's: D and G; else NULL */
    size_t shared;       /* inner of the expert of every row; 0: none */
    size_t space_heads, space_dim, state, groups; /* state spaces */
    size_t key_heads, value_heads, key_dim, value_dim; /* of the delta rule */
    bool gate;           /* attention with a gate */
    size_t still;        /* numbers of a head that do not rotate */
    bool squared;        /* squared ReLU, without gates */
    bool shared_gate;    /* a gate weighs it */
    size_t expert_groups, kept; /* of experts that a sigmoid router chooses from; 0: a softmax */
    const char *format;  /* of packed matrices ("NF4"); "mixed": another one for each; NULL: bf16 */
} shape;

/* Blocks of a packed format. wild: scales are any bits, infinities and NaN among them; else numbers about as large as a model's. */
tke_matrix random_packed(tke_dtype, size_t out, size_t in, bool wild, uint64_t seed);

/* own: every matrix has its own numbers; else all share one buffer. */
world *world_new(const shape *, bool own, uint64_t seed);
/* Packed matrices become the bf16 ones that they stand for. */
void world_unpack(world *);
void world_free(world *);

/* gpu_hybrid.c: layers of one part each. Part of world_new. */
world *world_hybrid(const shape *, bool own, uint64_t seed);
/* A matrix, numbers around 1, the buffer that matrices share: for world_hybrid. */
tke_weight world_weight(world *, size_t out, size_t in, bool bias, bool own, uint64_t seed);
float *world_vector(size_t n, uint64_t seed);
void world_numbers(world *, const shape *, uint64_t seed);

tke_lora_layout *layout_new(const world *, size_t rank, uint32_t train);
void random_floats(float *, size_t n, uint64_t seed, float scale);

/* Sum of weights[i] * log-prob of targets[i], in double; lp (may be NULL) gets the log-probs. starts: [n_seqs + 1]. */
double world_loss(const world *, const tke_lora_layout *, const float *adapter, double scale,
                  const int32_t *ids, const int64_t *starts, size_t n_seqs, const int32_t *targets,
                  const float *weights, double *lp);

double seconds_now(void);

#endif
