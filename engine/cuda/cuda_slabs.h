/* cuda_slabs.h - an array on the card that has addresses from the beginning and memory in parts.
 *
 * For the cache: kernels see one array, slabs of it get memory when blocks of them are first used
 * and give it back for training. The first always has memory: rows that pad a step may read it.
 * Private to engine/cuda. Thread: the worker. */
#ifndef TCU_SLABS_H
#define TCU_SLABS_H

#include "cuda/cuda_state.h"

typedef struct tcu_slabs {
    tcu_device *device;
    unsigned char *at;           /* NULL = no array */
    size_t bytes;                /* of addresses */
    size_t slab_bytes;           /* 0 = all memory is there, by tcu_take */
    unsigned long long *handles; /* [n_slabs]: 0 = no memory */
    size_t n_slabs;
} tcu_slabs;

/* An array of n blocks. *slab_blocks: how many make a slab; 0 where this driver cannot do it: then
 * all memory is taken now, for as many blocks as half of what is free holds, and *n is lowered. */
bool tcu_slabs_make(tcu_slabs *, tcu_device *, size_t block_bytes, size_t *n, size_t *slab_blocks,
                    tinkc_error *err);
void tcu_slabs_free(tcu_slabs *);
/* MEMORY: the card is full, even without the adapters that nobody uses now. */
bool tcu_slabs_commit(tcu_slabs *, size_t slab, tinkc_error *err);
void tcu_slabs_release(tcu_slabs *, size_t slab); /* waits for what still reads it */

#endif
