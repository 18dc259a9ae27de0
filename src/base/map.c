/* map.c - open addressing over an array that keeps the order of insertion. May touch: mem. */
#include "base/map.h"

#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/str.h"

static uint64_t hash_key(const tkc_map *map, tinkc_str key)
{
    /* FNV of the key, then mixed with the seed so that crafted keys do not collide. */
    uint64_t h = map->seed;
    for (size_t i = 0; i < key.len; i++) {
        h = (h ^ (unsigned char)key.data[i]) * 0x9FB21C651E98DF25u;
        h ^= h >> 32;
    }
    return h;
}

void tkc_map_init(tkc_map *map, const tinkc_allocator *a)
{
    *map = (tkc_map){ .a = a };
}

void tkc_map_free(tkc_map *map)
{
    assert(map->n_live <= map->n_entries && map->n_entries <= map->cap_entries);
    for (size_t i = 0; i < map->n_entries; i++)
        if (!map->entries[i].removed)
            tkc_release(map->a, map->entries[i].key, map->entries[i].key_len + 1);
    tkc_release(map->a, map->entries, map->cap_entries * sizeof *map->entries);
    tkc_release(map->a, map->slots, map->n_slots * sizeof *map->slots);
    tkc_map_init(map, map->a);
}

static tkc_map_entry *find_entry(const tkc_map *map, tinkc_str key, uint64_t hash)
{
    if (!map->n_slots)
        return NULL;
    assert((map->n_slots & (map->n_slots - 1)) == 0 && map->n_entries < map->n_slots);
    for (size_t i = hash & (map->n_slots - 1); map->slots[i]; i = (i + 1) & (map->n_slots - 1)) {
        tkc_map_entry *e = &map->entries[map->slots[i] - 1];
        if (!e->removed && e->hash == hash && tkc_str_eq(tkc_strn(e->key, e->key_len), key))
            return e;
    }
    return NULL;
}

void *tkc_map_get(const tkc_map *map, tinkc_str key)
{
    const tkc_map_entry *e = find_entry(map, key, hash_key(map, key));
    return e ? e->value : NULL;
}

bool tkc_map_has(const tkc_map *map, tinkc_str key)
{
    return find_entry(map, key, hash_key(map, key)) != NULL;
}

static void put_slot(tkc_map *map, size_t index)
{
    assert(index < map->n_slots); /* else the search for a free slot would not end */
    size_t i = map->entries[index].hash & (map->n_slots - 1);
    while (map->slots[i])
        i = (i + 1) & (map->n_slots - 1);
    assert(index < UINT32_MAX);
    map->slots[i] = (uint32_t)(index + 1);
}

/* Drops removed entries, then makes the table twice as large as the rest needs. */
static bool rebuild(tkc_map *map, tinkc_error *err)
{
    size_t n_slots = 16;
    while (n_slots < (map->n_live + 1) * 4)
        n_slots *= 2;
    uint32_t *slots = tkc_zalloc(map->a, n_slots * sizeof *slots, err);
    if (!slots)
        return false;
    tkc_release(map->a, map->slots, map->n_slots * sizeof *map->slots);
    map->slots = slots;
    map->n_slots = n_slots;
    size_t n = 0;
    for (size_t i = 0; i < map->n_entries; i++)
        if (!map->entries[i].removed)
            map->entries[n++] = map->entries[i];
    map->n_entries = n;
    assert(n == map->n_live);
    for (size_t i = 0; i < n; i++)
        put_slot(map, i);
    return true;
}

bool tkc_map_set(tkc_map *map, tinkc_str key, void *value, void **old, tinkc_error *err)
{
    if (old)
        *old = NULL;
    if (!map->n_slots)
        map->seed = tkc_random(tkc_clock_real());
    uint64_t hash = hash_key(map, key);
    tkc_map_entry *e = find_entry(map, key, hash);
    if (e) {
        if (old)
            *old = e->value;
        e->value = value;
        return true;
    }
    if ((map->n_entries + 1) * 2 > map->n_slots && !rebuild(map, err))
        return false;
    tkc_map_entry *grown =
        tkc_grow(map->a, map->entries, &map->cap_entries, map->n_entries + 1, sizeof *grown, err);
    if (!grown)
        return false;
    map->entries = grown;
    char *copy = tkc_copy_str(map->a, key, err);
    if (!copy)
        return false;
    grown[map->n_entries] = (tkc_map_entry){ copy, key.len, value, hash, false };
    put_slot(map, map->n_entries++);
    map->n_live++;
    return true;
}

void *tkc_map_remove(tkc_map *map, tinkc_str key)
{
    tkc_map_entry *e = find_entry(map, key, hash_key(map, key));
    if (!e)
        return NULL;
    tkc_release(map->a, e->key, e->key_len + 1);
    e->key = NULL;
    e->removed = true;
    assert(map->n_live > 0);
    map->n_live--;
    return e->value;
}

const tkc_map_entry *tkc_map_next(const tkc_map *map, size_t *place)
{
    assert(*place <= map->n_entries); /* else the map was rebuilt during the walk */
    while (*place < map->n_entries) {
        const tkc_map_entry *e = &map->entries[(*place)++];
        if (!e->removed)
            return e;
    }
    return NULL;
}
