/* philox.h - Philox4x32-10: random words from a counter and a key, without state. */
#ifndef TKE_MODEL_PHILOX_H
#define TKE_MODEL_PHILOX_H

#include <stdint.h>

void tke_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Seeds of any 64 bits are folded to 63. */
static inline uint64_t tke_fold_seed(uint64_t seed)
{
    return seed & 0x7fffffffffffffffu;
}

/* The uniform in [0, 1) for one token: sample index and generated position. */
double tke_uniform(uint64_t seed, uint32_t sample, uint32_t position);

#endif
