/* kv_cache.h - the paged cache: blocks of 16 positions, reference-counted, found by their content.
 *
 * Blocks lie in slabs, whose memory is taken from the device when a block is first needed and given
 * back when the cache must shrink. Where it cannot grow, prefixes are forgotten.
 *
 * A block is free, in use (refs > 0), or kept for its prefix (refs 0, published). A published block
 * is named by (owner, parent, its tokens), where parent is the serial of the block before it: two
 * blocks with one name hold the same bits. Private to engine/infer.
 */
#ifndef TKE_INFER_KV_CACHE_H
#define TKE_INFER_KV_CACHE_H

#include "device/device.h"

typedef struct tke_kv_block {
    int32_t refs;
    bool published;
    uint64_t owner, parent, serial;
    int32_t tokens[TKE_BLOCK_TOKENS];
    int32_t chain;      /* next in its bucket, -1 = none */
    int32_t prev, next; /* among those kept for their prefix, oldest first; -1 = none */
} tke_kv_block;

typedef struct tke_slab {
    uint32_t used; /* its blocks that are in use or kept */
    bool there;    /* it has memory */
} tke_slab;

/* May the cache take so many bytes more? */
typedef bool tke_kv_more_fn(void *user, size_t bytes);

typedef struct tke_kv {
    const tke_device_ops *ops;
    tke_device_sampler *sampler; /* borrowed; holds what is in the blocks */
    size_t n_blocks, n_kept;
    size_t n_free;  /* of blocks with memory */
    size_t n_there; /* blocks with memory */
    size_t limit;   /* n_there may grow to this; below n_blocks after a refusal */
    size_t block_bytes;
    tke_slab *slabs;
    size_t n_slabs, slab_blocks;
    bool grows;           /* false: all memory is there, in one slab */
    tke_kv_more_fn *more; /* NULL = yes */
    void *user;
    tke_kv_block *blocks;
    int32_t *free_ids;
    int32_t *buckets;
    size_t n_buckets;
    int32_t oldest, newest;
    uint64_t next_serial;
} tke_kv;

bool tke_kv_init(tke_kv *, const tke_device_ops *, tke_device_sampler *, tinkc_error *err);
void tke_kv_free(tke_kv *);

/* Blocks that could have memory and have none. */
static inline size_t tke_kv_growth(const tke_kv *kv)
{
    return kv->limit > kv->n_there ? kv->limit - kv->n_there : 0;
}
/* Available blocks: free ones, those kept for prefixes, those that could be had. */
static inline size_t tke_kv_available(const tke_kv *kv)
{
    return kv->n_free + kv->n_kept + tke_kv_growth(kv);
}
/* An empty block with one reference, or -1. Grows, or else forgets the oldest prefix, if
 * necessary. */
int32_t tke_kv_take(tke_kv *);
/* Gives memory back until at most n blocks have any, or none is left that only prefixes hold. */
void tke_kv_shrink(tke_kv *, size_t n);
void tke_kv_keep(tke_kv *, int32_t id);
void tke_kv_drop(tke_kv *, int32_t id);
/* Copies what a block holds, for a sequence that must write into a shared one. */
bool tke_kv_copy(tke_kv *, int32_t to, int32_t from, tinkc_error *err);

/* A published block with these tokens behind `parent`, with one more reference; -1 = none. */
int32_t tke_kv_find(tke_kv *, uint64_t owner, uint64_t parent, const int32_t *tokens);
/* Publishes a full block; returns the serial that its successor uses as parent. */
uint64_t tke_kv_publish(tke_kv *, int32_t id, uint64_t owner, uint64_t parent,
                        const int32_t *tokens);
uint64_t tke_kv_serial(const tke_kv *, int32_t id);
/* Forgets all prefixes. */
void tke_kv_clear(tke_kv *);

#endif
