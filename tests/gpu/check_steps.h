/* check_steps.h - rows, microbatches, steps and adapters made up for the checks of whole models. */
#ifndef TKE_CHECK_STEPS_H
#define TKE_CHECK_STEPS_H

#include "check_card.h"

typedef struct run { /* a microbatch and what comes of it */
    const float *weights;
    float *lp;
    size_t calls;
} run;

typedef struct data {
    size_t n, n_seqs;
    int32_t *ids, *positions, *targets;
    int64_t starts[64];
    float *weights;
} data;

data make_data(const int *lengths, size_t n_seqs, size_t vocab, uint64_t seed);
tke_microbatch batch_of(const data *, const tke_segment *, size_t n_segments, size_t rank,
                        int32_t depth, run *);
/* A step of pure decoding: one row, one wanted row and one draw of each of n sequences. */
tke_step decoding(size_t n, const int32_t *ids, const int32_t *positions,
                  const tke_segment *segment, const tke_step_seq *seqs, const size_t *wants,
                  const tke_draw *draws);
/* Where the sequence's state is, if the model has one. */
int32_t slot_of(tcu_sampler *, size_t seq);
/* A sampler whose cache has all its memory; NULL: fault says why. */
tcu_sampler *full_sampler(tcu_model *, const tke_device_sampler_options *);
/* An adapter with random numbers. */
tke_lora random_lora(const world *, size_t rank, uint32_t train, uint64_t seed);
/* How many of n numbers differ in their bits. */
size_t count_bits(const float *a, const float *b, size_t n);

#endif
