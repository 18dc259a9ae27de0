/* cpu_device.h - the CPU as a device: its model and the functions that fill its table. Private to
 * engine/cpu.
 */
#ifndef TKE_CPU_CPU_DEVICE_H
#define TKE_CPU_CPU_DEVICE_H

#include "cpu/block.h"

typedef struct tke_cpu_model { /* weights stay mapped: nothing is copied */
    tke_device_model base;
    tke_cpu *cpu;
} tke_cpu_model;

/* ---- cpu_trainer.c ---- */
tke_device_trainer *tke_cpu_trainer_new(tke_device_model *, const tke_device_trainer_options *,
                                        tinkc_error *err);
void tke_cpu_trainer_free(tke_device_trainer *);
void tke_cpu_trainer_set_memory(tke_device_trainer *, size_t memory_bytes);
size_t tke_cpu_trainer_memory(const tke_device_trainer *);
size_t tke_cpu_trainer_held(const tke_device_trainer *);
size_t tke_cpu_microbatch_bytes(const tke_device_trainer *, const tke_microbatch_size *,
                                int32_t keep);
bool tke_cpu_microbatch_run(tke_device_trainer *, const tke_microbatch *, tinkc_error *err);

/* ---- decode_step.c ---- */
tke_device_sampler *tke_cpu_sampler_new(tke_device_model *, const tke_device_sampler_options *,
                                        tinkc_error *err);
void tke_cpu_sampler_free(tke_device_sampler *);
const tke_device_cache *tke_cpu_sampler_cache(const tke_device_sampler *);
bool tke_cpu_cache_copy(tke_device_sampler *, int32_t to, int32_t from, tinkc_error *err);
bool tke_cpu_state_copy(tke_device_sampler *, int32_t to, int32_t from, tinkc_error *err);
bool tke_cpu_cache_commit(tke_device_sampler *, size_t slab, tinkc_error *err);
void tke_cpu_cache_release(tke_device_sampler *, size_t slab);
bool tke_cpu_step_run(tke_device_sampler *, const tke_step *, tinkc_error *err);

#endif
