/* cuda_trainer.h - the buffers of a microbatch on the card. Private to cuda_microbatch.c, cuda_logits.c and
 * cuda_backward.c. */
#ifndef TKE_CUDA_TRAINER_H
#define TKE_CUDA_TRAINER_H

#include "cuda/cuda_state.h"

typedef struct tcu_chunk { /* rows of the head at a time; begins and ends between steps */
    int32_t begin, n;
    tcu_lora lora; /* its tables */
} tcu_chunk;

struct tcu_trainer {
    tcu_model *model;
    tke_device_trainer_options o;
    unsigned char *block;
    size_t bytes;
    tcu_feed feed, exchange;
    /* the microbatch at hand */
    const tke_microbatch *batch;
    tcu_rows rows;
    size_t n_kept;
    const tcu_span *spans, *key_spans;
    int32_t n_spans, n_key_spans;
    bool grouped; /* spans are those of attention by warpgroups */
    const int32_t *targets;
    tcu_chunk *chunks; /* on the host */
    size_t n_chunks, cap_chunks;
    bool head_adapters;
    /* buffers; see place() */
    float *h, **h_in; /* h_in: [n_layers], depth ALL */
    tcu_acts shared, *kept;
    tcu_experts_work experts;
    float *dh, *delta;
    tcu_bf16 *dy, *dm, *tmp, *d_o, *dq, *dk, *dqkv, *dlow;
    int32_t chunk; /* rows */
    float *z, *max, *log_sum, *fix, *parts;
    tcu_bf16 *low_head, *dlow_head;
    float *dlow_parts; /* [TCU_DLOW_PARTS][chunk][most] */
};

tcu_acts *tcu_trainer_acts(tcu_trainer *, size_t layer);
/* One layer's forward from h_in; with output, y is what its down projection adds. */
bool tcu_trainer_layer(tcu_trainer *, size_t layer, const float *h, const tcu_bf16 *y, float *h_in,
                       bool output, tinkc_error *err);
/* The normed output (in shared.a), logits chunk by chunk, losses, and down to dh and dy. */
bool tcu_trainer_head(tcu_trainer *, tinkc_error *err);
bool tcu_trainer_backward(tcu_trainer *, tinkc_error *err);
/* Number of parts into which the gradient of the head's input splits the vocabulary: more for narrow models, whose
 * product would leave most of the card idle. Depends on the model alone. */
int32_t tcu_head_parts(const tcu_model *);
bool tcu_trainer_stopped(const tcu_trainer *, tinkc_error *err);
/* The reverse of tcu_group_forward: gradients of the group's adapters; dx = dy W + dlow A unless NULL. */
typedef struct tcu_back {
    tcu_lora lora;
    const tcu_bf16 *x, *dy, *low, *w;
    tcu_bf16 *dlow, *dx;
    int32_t m, valid; /* rows of the product, those that hold numbers */
} tcu_back;
bool tcu_group_back(tcu_device *, const tcu_back *, tinkc_error *err);
/* Of a group of a layer. */
tcu_back tcu_back_of(tcu_trainer *, size_t layer, int of, const tcu_bf16 *x, const tcu_bf16 *dy,
                     tcu_bf16 *dx);

#endif
