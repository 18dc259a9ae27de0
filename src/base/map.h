/* map.h - text to pointer, in order of insertion.
 *
 * Keys are copied. The hash is seeded per map, so crafted keys cannot make it slow. [one thread]
 */
#ifndef TKC_BASE_MAP_H
#define TKC_BASE_MAP_H

#include "base/mem.h"

typedef struct tkc_map_entry {
    char *key; /* terminated */
    size_t key_len;
    void *value;
    uint64_t hash;
    bool removed;
} tkc_map_entry;

typedef struct tkc_map {
    const tinkc_allocator *a;
    tkc_map_entry *entries; /* in order of insertion; removed ones stay until the next growth */
    size_t n_entries, cap_entries, n_live;
    uint32_t *slots; /* index + 1 into entries; 0 = free */
    size_t n_slots;  /* a power of two */
    uint64_t seed;
} tkc_map;

/* Allocates nothing yet. */
void tkc_map_init(tkc_map *, const tinkc_allocator *a);
/* Releases keys and table; what the values point to is the caller's. */
void tkc_map_free(tkc_map *);

/* NULL if the key is absent. */
void *tkc_map_get(const tkc_map *, tinkc_str key);
bool tkc_map_has(const tkc_map *, tinkc_str key);
/* Adds or replaces; *old (may be NULL) receives the previous value. */
bool tkc_map_set(tkc_map *, tinkc_str key, void *value, void **old, tinkc_error *err);
/* Returns the removed value, or NULL. */
void *tkc_map_remove(tkc_map *, tinkc_str key);

/* Walks the live entries: start with *place = 0; NULL at the end. Removing the current entry
 * is allowed, adding is not. */
const tkc_map_entry *tkc_map_next(const tkc_map *, size_t *place);

#endif
