/* shuffle.c - Fisher and Yates over splitmix64. */
#include "cli/data/shuffle.h"

#include <stdlib.h>

static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

size_t *cli_shuffled(size_t n, uint64_t seed)
{
    size_t *order = malloc((n ? n : 1) * sizeof *order);
    uint64_t state = seed;
    for (size_t i = 0; order && i < n; i++)
        order[i] = i;
    for (size_t i = n; order && i > 1; i--) {
        size_t k = (size_t)(next(&state) % i);
        size_t kept = order[i - 1];
        order[i - 1] = order[k];
        order[k] = kept;
    }
    return order;
}
