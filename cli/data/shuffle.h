/* shuffle.h - the order of examples: the same seed gives the same order on every machine. */
#ifndef CLI_SHUFFLE_H
#define CLI_SHUFFLE_H

#include <stddef.h>
#include <stdint.h>

/* 0 .. n-1 in an order that depends on the seed alone. Yours; NULL if memory is short. */
size_t *cli_shuffled(size_t n, uint64_t seed);

#endif
