/* kv_cache.c - which block of the cache holds what: references and the table of prefixes.
 *
 * May touch: its own tables. Must not: know of requests, or where the device keeps the blocks.
 */
#include "infer/kv_cache.h"

#include <assert.h>
#include <string.h>
#include "base/str.h"

/* ---- slabs ---- */

static size_t slab_end(const tke_kv *kv, size_t slab)
{
    size_t end = (slab + 1) * kv->slab_blocks;
    return end < kv->n_blocks ? end : kv->n_blocks;
}

/* Its memory is there: its blocks are free, low ids first. */
static void add_slab(tke_kv *kv, size_t slab)
{
    assert(!kv->slabs[slab].there && kv->slabs[slab].used == 0);
    for (size_t id = slab_end(kv, slab); id-- > slab * kv->slab_blocks;)
        kv->free_ids[kv->n_free++] = (int32_t)id;
    kv->slabs[slab].there = true;
    kv->n_there += slab_end(kv, slab) - slab * kv->slab_blocks;
}

static tke_slab *slab_of(tke_kv *kv, int32_t id)
{
    return &kv->slabs[(size_t)id / kv->slab_blocks];
}

/* Takes memory for one more slab. After a refusal nothing is asked for until the limit is lifted. */
static bool grow(tke_kv *kv)
{
    tinkc_error err = { 0 };
    size_t slab = 0;
    while (slab < kv->n_slabs && kv->slabs[slab].there)
        slab++;
    if (slab == kv->n_slabs || kv->n_there >= kv->limit)
        return false;
    size_t bytes = (slab_end(kv, slab) - slab * kv->slab_blocks) * kv->block_bytes;
    if ((kv->more && !kv->more(kv->user, bytes)) ||
        !kv->ops->cache_commit(kv->sampler, slab, &err)) {
        kv->limit = kv->n_there;
        return false;
    }
    add_slab(kv, slab);
    return true;
}

/* Gives back slabs that hold nothing, down to n blocks. */
static void release_slabs(tke_kv *kv, size_t n)
{
    size_t kept = 0, had = kv->n_there;
    for (size_t slab = kv->n_slabs; slab-- > 0 && kv->n_there > n;)
        if (kv->slabs[slab].there && kv->slabs[slab].used == 0) {
            kv->slabs[slab].there = false;
            kv->n_there -= slab_end(kv, slab) - slab * kv->slab_blocks;
            kv->ops->cache_release(kv->sampler, slab);
        }
    for (size_t i = 0; i < kv->n_free && kv->n_there < had; i++)
        if (slab_of(kv, kv->free_ids[i])->there)
            kv->free_ids[kept++] = kv->free_ids[i];
    if (kv->n_there < had)
        kv->n_free = kept;
}

/* ---- life ---- */

bool tke_kv_init(tke_kv *kv, const tke_device_ops *ops, tke_device_sampler *sampler,
                 tinkc_error *err)
{
    const tke_device_cache *cache = ops->sampler_cache(sampler);
    *kv = (tke_kv){ .ops = ops, .sampler = sampler, .oldest = -1, .newest = -1, .next_serial = 1 };
    kv->n_blocks = cache->n_blocks;
    kv->block_bytes = cache->block_bytes;
    kv->n_buckets = kv->n_blocks;
    kv->slab_blocks = cache->slab_blocks ? cache->slab_blocks : kv->n_blocks;
    kv->n_slabs = (kv->n_blocks + kv->slab_blocks - 1) / kv->slab_blocks;
    kv->limit = kv->n_blocks;
    kv->slabs = tkc_zalloc(NULL, kv->n_slabs * sizeof *kv->slabs, err);
    kv->blocks = tkc_zalloc(NULL, kv->n_blocks * sizeof *kv->blocks, err);
    kv->free_ids = tkc_alloc(NULL, kv->n_blocks * sizeof *kv->free_ids, err);
    kv->buckets = tkc_alloc(NULL, kv->n_buckets * sizeof *kv->buckets, err);
    if (!kv->slabs || !kv->blocks || !kv->free_ids || !kv->buckets) {
        tke_kv_free(kv);
        return false;
    }
    memset(kv->buckets, 0xff, kv->n_buckets * sizeof *kv->buckets); /* all -1 */
    kv->grows = cache->slab_blocks > 0;
    if (!kv->grows)
        add_slab(kv, 0);
    return true;
}

void tke_kv_free(tke_kv *kv)
{
    tkc_release(NULL, kv->slabs, kv->n_slabs * sizeof *kv->slabs);
    tkc_release(NULL, kv->blocks, kv->n_blocks * sizeof *kv->blocks);
    tkc_release(NULL, kv->free_ids, kv->n_blocks * sizeof *kv->free_ids);
    tkc_release(NULL, kv->buckets, kv->n_buckets * sizeof *kv->buckets);
    *kv = (tke_kv){ 0 };
}

/* ---- the table of prefixes ---- */

static size_t bucket_of(const tke_kv *kv, uint64_t owner, uint64_t parent, const int32_t *tokens)
{
    struct {
        uint64_t owner, parent;
        int32_t tokens[TKE_BLOCK_TOKENS];
    } name = { .owner = owner, .parent = parent };
    memcpy(name.tokens, tokens, sizeof name.tokens);
    return (size_t)tkc_hash(&name, sizeof name) % kv->n_buckets;
}

static int32_t lookup(const tke_kv *kv, uint64_t owner, uint64_t parent, const int32_t *tokens)
{
    int32_t id = kv->buckets[bucket_of(kv, owner, parent, tokens)];
    while (id >= 0) {
        const tke_kv_block *b = &kv->blocks[id];
        if (b->owner == owner && b->parent == parent &&
            memcmp(b->tokens, tokens, sizeof b->tokens) == 0)
            return id;
        id = b->chain;
    }
    return -1;
}

static void unpublish(tke_kv *kv, int32_t id)
{
    tke_kv_block *b = &kv->blocks[id];
    int32_t *at = &kv->buckets[bucket_of(kv, b->owner, b->parent, b->tokens)];
    assert(b->published);
    while (*at != id) {
        assert(*at >= 0); /* it is in its bucket */
        at = &kv->blocks[*at].chain;
    }
    *at = b->chain;
    b->published = false;
}

/* ---- blocks kept for their prefix: a list, oldest first ---- */

static void list_add(tke_kv *kv, int32_t id)
{
    tke_kv_block *b = &kv->blocks[id];
    assert(b->refs == 0 && b->published);
    b->prev = kv->newest;
    b->next = -1;
    if (kv->newest >= 0)
        kv->blocks[kv->newest].next = id;
    else
        kv->oldest = id;
    kv->newest = id;
    kv->n_kept++;
}

static void list_remove(tke_kv *kv, int32_t id)
{
    tke_kv_block *b = &kv->blocks[id];
    if (b->prev >= 0)
        kv->blocks[b->prev].next = b->next;
    else
        kv->oldest = b->next;
    if (b->next >= 0)
        kv->blocks[b->next].prev = b->prev;
    else
        kv->newest = b->prev;
    assert(kv->n_kept > 0);
    kv->n_kept--;
}

/* ---- references ---- */

static void set_free(tke_kv *kv, int32_t id)
{
    assert(kv->n_free < kv->n_there && slab_of(kv, id)->there && slab_of(kv, id)->used > 0);
    slab_of(kv, id)->used--;
    kv->free_ids[kv->n_free++] = id;
}

static void forget_oldest(tke_kv *kv)
{
    int32_t id = kv->oldest;
    assert(id >= 0);
    list_remove(kv, id);
    unpublish(kv, id);
    set_free(kv, id);
}

void tke_kv_shrink(tke_kv *kv, size_t n)
{
    if (!kv->grows)
        return;
    release_slabs(kv, n);
    while (kv->n_there > n && kv->n_kept) {
        for (size_t i = 0; i < kv->slab_blocks && kv->n_kept; i++)
            forget_oldest(kv);
        release_slabs(kv, n);
    }
    kv->limit = kv->n_blocks; /* who asked for it decides whether it may grow again */
}

int32_t tke_kv_take(tke_kv *kv)
{
    if (!kv->n_free && !grow(kv) && kv->n_kept)
        forget_oldest(kv);
    if (!kv->n_free)
        return -1;
    int32_t id = kv->free_ids[--kv->n_free];
    slab_of(kv, id)->used++;
    assert(kv->blocks[id].refs == 0 && !kv->blocks[id].published);
    kv->blocks[id] = (tke_kv_block){ .refs = 1 };
    return id;
}

void tke_kv_keep(tke_kv *kv, int32_t id)
{
    assert(id >= 0 && (size_t)id < kv->n_blocks);
    tke_kv_block *b = &kv->blocks[id];
    assert(b->refs > 0 || b->published);
    if (b->refs++ == 0)
        list_remove(kv, id);
}

void tke_kv_drop(tke_kv *kv, int32_t id)
{
    assert(id >= 0 && (size_t)id < kv->n_blocks);
    tke_kv_block *b = &kv->blocks[id];
    assert(b->refs > 0);
    if (--b->refs > 0)
        return;
    if (b->published)
        list_add(kv, id);
    else
        set_free(kv, id);
    assert(kv->n_free + kv->n_kept <= kv->n_there);
}

bool tke_kv_copy(tke_kv *kv, int32_t to, int32_t from, tinkc_error *err)
{
    assert(to != from && kv->blocks[to].refs == 1 && !kv->blocks[to].published);
    return kv->ops->cache_copy(kv->sampler, to, from, err);
}

int32_t tke_kv_find(tke_kv *kv, uint64_t owner, uint64_t parent, const int32_t *tokens)
{
    int32_t id = lookup(kv, owner, parent, tokens);
    if (id >= 0)
        tke_kv_keep(kv, id);
    return id;
}

uint64_t tke_kv_publish(tke_kv *kv, int32_t id, uint64_t owner, uint64_t parent,
                        const int32_t *tokens)
{
    tke_kv_block *b = &kv->blocks[id];
    assert(b->refs > 0);
    if (b->published)
        return b->serial;
    int32_t same = lookup(kv, owner, parent, tokens);
    if (same >= 0)
        return kv->blocks[same].serial;
    b->owner = owner;
    b->parent = parent;
    b->serial = kv->next_serial++;
    memcpy(b->tokens, tokens, sizeof b->tokens);
    int32_t *bucket = &kv->buckets[bucket_of(kv, owner, parent, tokens)];
    b->chain = *bucket;
    *bucket = id;
    b->published = true;
    return b->serial;
}

uint64_t tke_kv_serial(const tke_kv *kv, int32_t id)
{
    assert(kv->blocks[id].published && kv->blocks[id].serial > 0);
    return kv->blocks[id].serial;
}

void tke_kv_clear(tke_kv *kv)
{
    while (kv->n_kept)
        forget_oldest(kv);
}
