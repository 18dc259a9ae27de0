/* adapter.h - a LoRA adapter: its weights, gradients and optimizer state; files; snapshots.
 *
 *     y = W x + (alpha / rank) B (A x)
 *
 * All tensors of an adapter are in one block of numbers on a device, in the order of layers and
 * modules, so that gradients and moments are blocks of the same layout. The device must outlive
 * them. Only the worker uses an adapter; snapshots are immutable, reference-counted, and share
 * nothing with it.
 */
#ifndef TKE_TRAIN_ADAPTER_H
#define TKE_TRAIN_ADAPTER_H

#include "device/device.h"

typedef struct tke_adapter_spec {
    int32_t rank;   /* >= 1 */
    uint32_t train; /* TKE_TRAIN_*; at least one */
    double alpha;   /* 0 = 32 */
    uint64_t seed;  /* folded to 63 bits */
} tke_adapter_spec;

typedef struct tke_adapter tke_adapter;
typedef struct tke_snapshot tke_snapshot;

/* ---- life ---- */

/* A seeded, B zero, gradients and moments zero. Errors: ARGUMENT, MEMORY. */
tke_adapter *tke_adapter_new(tke_device *, tke_model *, const tke_adapter_spec *, tinkc_error *err);
void tke_adapter_free(tke_adapter *); /* NULL allowed */
/* The memory of an adapter: weights, gradients, moments. SIZE_MAX if it overflows. */
size_t tke_adapter_bytes(const tke_model *, const tke_adapter_spec *);

const tke_adapter_spec *tke_adapter_get_spec(const tke_adapter *);
int64_t tke_adapter_step(const tke_adapter *); /* t of Adam */
/* Trained parameters: the sum of rank * (in + out) over the adapted matrices. */
size_t tke_adapter_n_params(const tke_adapter *);

/* Element `e` (row * in + column) of a seeded A; hash: tkc_hash of the module's path. */
float tke_lora_init(uint64_t hash, uint64_t seed, size_t in, uint64_t e);

/* ---- snapshots: what sampling reads ---- */

tke_snapshot *tke_snapshot_take(const tke_adapter *, tinkc_error *err); /* a copy, count 1 */
tke_snapshot *tke_snapshot_keep(const tke_snapshot *);
void tke_snapshot_drop(tke_snapshot *); /* any thread; NULL allowed */
size_t tke_snapshot_bytes(const tke_snapshot *);
/* Never reused in a process: the prefix cache uses it as a key. */
uint64_t tke_snapshot_id(const tke_snapshot *);
const tke_lora *tke_snapshot_lora(const tke_snapshot *);
const tke_model *tke_snapshot_model(const tke_snapshot *);

/* The blocks that passes read and change, laid out as tke_adapter_lora(a)->layout. */
const tke_lora *tke_adapter_lora(const tke_adapter *);

/* ---- files (folders of engine.md 4.4) ---- */

enum { TKE_NAMES_PEFT = 0, TKE_NAMES_HOSTED = 1 };

#define TKE_WEIGHTS_FILE "adapter_model.safetensors"

typedef struct tke_adapter_save {
    const char *base_name; /* "org/name" for base_model_name_or_path */
    int32_t names;         /* TKE_NAMES_* */
    int32_t dtype;         /* TKE_F32 or TKE_BF16, of the weights */
} tke_adapter_save;

/* Into an existing folder: adapter_model.safetensors, adapter_config.json. Not checkpoint_complete:
 * the caller writes that last. A snapshot may be written on any thread. */
bool tke_snapshot_write(const tke_snapshot *, const char *folder, const tke_adapter_save *,
                        tinkc_error *err);

/* What a training checkpoint holds: weights, moments, step, pending gradients. An immutable copy in
 * host memory, so that it can be written on another thread. */
typedef struct tke_state tke_state;
tke_state *tke_state_take(const tke_adapter *, tinkc_error *err);
void tke_state_free(tke_state *); /* NULL allowed */
const tke_adapter_spec *tke_state_spec(const tke_state *);
/* adapter_model.safetensors, adapter_config.json, optimizer.safetensors. train_state.json is the
 * caller's: it must keep step, alpha, rank, flags, seed (tke_state_step and tke_state_spec). */
bool tke_state_write(const tke_state *, const char *folder, const tke_adapter_save *,
                     tinkc_error *err);
int64_t tke_state_step(const tke_state *);

/* Rank, alpha and flags of an adapter folder, without its weights: for weights_info and for making
 * a fitting adapter. Accepts PEFT and hosted names. seed is 0. */
bool tke_adapter_probe(const tke_model *, const char *folder, tke_adapter_spec *out,
                       tinkc_error *err);

/* Replaces the weights by a folder's; with `optimizer` also moments, step (from the file's
 * metadata) and pending gradients, else those become zero. Rank, alpha and modules must agree
 * (MODEL, listing both sides). On failure the adapter is unchanged. */
bool tke_adapter_load(tke_adapter *, const char *folder, bool optimizer, tinkc_error *err);
/* Reads a folder as a snapshot, for sampling. */
tke_snapshot *tke_snapshot_read(tke_device *, tke_model *, const char *folder, tinkc_error *err);
/* Writes a folder's adapter into another, complete and with our own tensor names: missing matrices
 * get a fresh A (from `seed`) and a zero B, so that training can continue from it. Fills *spec. */
bool tke_adapter_convert(const tke_model *, const char *from, const char *to, uint64_t seed,
                         const tke_adapter_save *, tke_adapter_spec *spec, tinkc_error *err);
/* Would tke_snapshot_read accept the folder? Needs no device. */
bool tke_adapter_check(const tke_model *, const char *folder, tinkc_error *err);

#endif
