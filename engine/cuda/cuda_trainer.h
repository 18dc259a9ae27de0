/* cuda_trainer.h - the buffers of a microbatch on the card. Private to cuda_microbatch.c, cuda_logits.c and
 * cuda_backward.c. */
#ifndef TKE_CUDA_TRAINER_H
#define TKE_CUDA_TRAINER_H

#include "cuda/cuda_part.h"

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
    size_t n_kept, n_whole; /* the last layers keep activations, the last of these also what they would make again */
    tcu_packed packed;
    const int32_t *targets;
    tcu_chunk *chunks; /* on the host */
    size_t n_chunks, cap_chunks;
    bool head_adapters;
    /* buffers; see place() */
    float *h, **h_in; /* h_in: [n_layers], depth ALL */
    unsigned char *shared, **kept; /* what layers keep that keep nothing, and what others do */
    unsigned char *work;           /* of the part at hand */
    tcu_bf16 *a, *y;               /* normed inputs and results of parts; a also of the head */
    float *wide;
    float *dh;
    tcu_bf16 *dy, *tmp, *dlow;
    int32_t chunk; /* rows */
    float *z, *max, *log_sum, *fix, *parts;
    tcu_bf16 *low_head, *dlow_head;
    float *dlow_parts; /* [TCU_DLOW_PARTS][chunk][most] */
};

/* A layer's buffers, and where and on what its parts compute. */
void tcu_trainer_acts(const tcu_trainer *, size_t layer, tcu_acts *out);
tcu_turn tcu_trainer_turn(const tcu_trainer *, size_t layer);
tcu_place tcu_trainer_place(const tcu_trainer *, size_t layer, const tcu_acts *);
/* One layer's forward pass; not `output`: what only its result needs is left out. */
bool tcu_trainer_layer(tcu_trainer *, size_t layer, tcu_residual *, bool output, tinkc_error *err);
/* The normed output (in a), logits chunk by chunk, losses, and down to dh and dy. */
bool tcu_trainer_head(tcu_trainer *, tinkc_error *err);
bool tcu_trainer_backward(tcu_trainer *, tinkc_error *err);
/* Number of parts into which the gradient of the head's input splits the vocabulary: more for narrow models, whose
 * product would leave most of the card idle. Depends on the model alone. */
int32_t tcu_head_parts(const tcu_model *);
bool tcu_trainer_stopped(const tcu_trainer *, tinkc_error *err);

#endif
