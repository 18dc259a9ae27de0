/* state_slots.c - which slot holds what. May touch: the slots of one sampler. Slots are few: lists are
 * walked. */
#include "infer/state_slots.h"

#include <assert.h>
#include "base/mem.h"

enum { FREE = 0, SEQUENCE, SNAPSHOT };

bool tke_states_init(tke_states *t, const tke_device_ops *ops, tke_device_sampler *sampler,
                     tinkc_error *err)
{
    const tke_device_cache *cache = ops->sampler_cache(sampler);
    *t = (tke_states){ .ops = ops, .sampler = sampler };
    if (!cache->state_bytes)
        return true;
    t->slots = tkc_zalloc(NULL, cache->n_states * sizeof *t->slots, err);
    t->n = t->slots ? cache->n_states : 0;
    return t->slots != NULL;
}

void tke_states_free(tke_states *t)
{
    tkc_release(NULL, t->slots, t->n * sizeof *t->slots);
    *t = (tke_states){ 0 };
}

/* A free slot, else that of the snapshot unused for longest; -1 = none. */
static int32_t available(const tke_states *t)
{
    int32_t oldest = -1;
    for (size_t i = 0; i < t->n; i++) {
        if (t->slots[i].use == FREE)
            return (int32_t)i;
        if (t->slots[i].use == SNAPSHOT && (oldest < 0 || t->slots[i].used < t->slots[oldest].used))
            oldest = (int32_t)i;
    }
    return oldest;
}

int32_t tke_states_take(tke_states *t)
{
    int32_t slot = available(t);
    if (slot >= 0)
        t->slots[slot] = (tke_state_slot){ .use = SEQUENCE };
    return slot;
}

void tke_states_drop(tke_states *t, int32_t slot)
{
    if (slot < 0)
        return;
    assert((size_t)slot < t->n && t->slots[slot].use == SEQUENCE);
    t->slots[slot] = (tke_state_slot){ 0 };
}

bool tke_states_copy(tke_states *t, int32_t to, int32_t from, tinkc_error *err)
{
    return t->ops->state_copy(t->sampler, to, from, err);
}

bool tke_states_save(tke_states *t, int32_t slot, uint64_t serial, tinkc_error *err)
{
    int32_t to = tke_states_find(t, serial) < 0 ? available(t) : -1;
    if (to < 0)
        return true;
    t->slots[to] = (tke_state_slot){ 0 };
    if (!tke_states_copy(t, to, slot, err))
        return false;
    t->slots[to] = (tke_state_slot){ .use = SNAPSHOT, .serial = serial, .used = ++t->clock };
    return true;
}

int32_t tke_states_find(tke_states *t, uint64_t serial)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->slots[i].use == SNAPSHOT && t->slots[i].serial == serial) {
            t->slots[i].used = ++t->clock;
            return (int32_t)i;
        }
    return -1;
}

void tke_states_clear(tke_states *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->slots[i].use == SNAPSHOT)
            t->slots[i] = (tke_state_slot){ 0 };
}
