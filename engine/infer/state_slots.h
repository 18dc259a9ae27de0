/* state_slots.h - slots of the device for the states of sequences, and snapshots of prompts.
 *
 * Layers that do not attend to keys keep a state for each sequence instead. A running sequence has
 * a slot; the other slots hold snapshots, each taken where a prompt crossed an edge and named by
 * the serial of the cache block that ends there (kv_cache.h): equal serials mean equal bits. A
 * slot that is wanted evicts the snapshot that was unused for longest. Models without such layers
 * have no slots. Private to engine/infer.
 */
#ifndef TKE_INFER_STATE_SLOTS_H
#define TKE_INFER_STATE_SLOTS_H

#include "device/device.h"

typedef struct tke_state_slot {
    int32_t use;     /* free, of a sequence, a snapshot */
    uint64_t serial; /* of a snapshot */
    uint64_t used;   /* when it was used last */
} tke_state_slot;

typedef struct tke_states {
    const tke_device_ops *ops;
    tke_device_sampler *sampler; /* borrowed; holds what is in the slots */
    tke_state_slot *slots;
    size_t n;
    uint64_t clock;
} tke_states;

bool tke_states_init(tke_states *, const tke_device_ops *, tke_device_sampler *, tinkc_error *err);
void tke_states_free(tke_states *);

/* A slot for a sequence, or -1 if sequences have them all. */
int32_t tke_states_take(tke_states *);
void tke_states_drop(tke_states *, int32_t slot); /* -1 allowed */
bool tke_states_copy(tke_states *, int32_t to, int32_t from, tinkc_error *err);

/* Takes a snapshot where a slot is free for it, or held by another snapshot. */
bool tke_states_save(tke_states *, int32_t slot, uint64_t serial, tinkc_error *err);
/* The snapshot of that name, or -1. */
int32_t tke_states_find(tke_states *, uint64_t serial);
/* Forgets all snapshots. */
void tke_states_clear(tke_states *);

#endif
