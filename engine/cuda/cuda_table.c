/* cuda_table.c - the table of device functions that the module exports (device/device.h).
 *
 * May touch: only the functions of cuda_state.h. Must not: launch kernels.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "cuda/cuda_state.h"

#define EXPORT __attribute__((visibility("default")))
enum { GOOD_TOKENS = 16384 };

static tcu_device *device_of(tke_device *d)
{
    return (tcu_device *)d;
}

static tcu_block *block_of(const tke_block *b)
{
    return (tcu_block *)(uintptr_t)b;
}

/* ---- the device ---- */

static const tke_device_ops ops;

static tke_device *device_open(const tke_device_options *o, tinkc_error *err)
{
    tcu_device *d = tcu_open(o->index, err);
    if (d)
        d->base.ops = &ops;
    return d ? &d->base : NULL;
}

static void device_close(tke_device *d)
{
    tcu_close(device_of(d));
}

static void device_info(tke_device *base, tke_device_info *out)
{
    tcu_device *d = device_of(base);
    *out = (tke_device_info){ .microbatch_tokens = GOOD_TOKENS,
                              .capability = d->props.major * 10 + d->props.minor };
    snprintf(out->name, sizeof out->name, "cuda:%d", d->index);
    snprintf(out->text, sizeof out->text, "%.80s, CUDA %d.%d driver, cuBLASLt %zu", d->props.name,
             d->driver / 1000, d->driver % 1000 / 10, d->gemm.version);
    tcu_memory(d, &out->memory_free, &out->memory_bytes);
}

static size_t device_memory(tke_device *base, tke_memory_use *out, size_t room)
{
    tcu_device *d = device_of(base);
    size_t n = 0;
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < TCU_PURPOSES && n < room; i++)
        out[n++] = (tke_memory_use){ tcu_purpose_name(i), d->used[i] };
    pthread_mutex_unlock(&d->lock);
    if (n < room)
        out[n++] = (tke_memory_use){ "adapters on the host", tke_residence_away(&d->residence) };
    return n;
}

/* ---- models ---- */

static size_t model_bytes(tke_device *d, const tke_model *m)
{
    (void)d;
    return tcu_model_bytes(m);
}

static tke_device_model *model_load(tke_device *d, tke_model *m, tinkc_error *err)
{
    tcu_model *made = tcu_model_new(device_of(d), m, err);
    return made ? &made->base : NULL;
}

static void model_free(tke_device_model *m)
{
    tcu_model_free((tcu_model *)m);
}

/* ---- blocks ---- */

static tke_block *block_new(tke_device *d, size_t n, tinkc_error *err)
{
    return (tke_block *)tcu_block_new(device_of(d), n, err);
}

static void block_free(tke_device *d, tke_block *b)
{
    (void)d;
    tcu_block_free(block_of(b));
}

static bool block_zero(tke_device *d, tke_block *b, size_t n, tinkc_error *err)
{
    (void)d, (void)n;
    return tcu_block_zero(block_of(b), err);
}

static bool block_copy(tke_device *d, tke_block *to, const tke_block *from, size_t n,
                       tinkc_error *err)
{
    (void)d, (void)n;
    return tcu_block_copy(block_of(to), block_of(from), err);
}

static bool block_write(tke_device *d, tke_block *to, const tke_real *from, size_t n,
                        tinkc_error *err)
{
    (void)d, (void)n;
    return tcu_block_write(block_of(to), from, err);
}

static bool block_read(tke_device *d, const tke_block *from, tke_real *to, size_t n,
                       tinkc_error *err)
{
    (void)d, (void)n;
    return tcu_block_read(block_of(from), to, err);
}

static tke_real *block_host(tke_device *d, const tke_block *b)
{
    (void)d, (void)b;
    return NULL;
}

static bool block_squares(tke_device *d, const tke_block *b, size_t n, double *out,
                          tinkc_error *err)
{
    (void)d, (void)n;
    return tcu_block_squares(block_of(b), out, err);
}

/* Squares of floats cannot overflow a double, so the sum is finite exactly if all numbers are. */
static bool block_finite(tke_device *d, const tke_block *b, size_t n, bool *out, tinkc_error *err)
{
    double sum = 0;
    (void)d, (void)n;
    if (!tcu_block_squares(block_of(b), &sum, err))
        return false;
    *out = isfinite(sum);
    return true;
}

static bool adam(tke_device *d, const tke_adam *a, size_t n, const tke_block *g, tke_block *theta,
                 tke_block *m, tke_block *v, double *moved, tinkc_error *err)
{
    (void)d, (void)n;
    return tcu_block_adam(a, block_of(g), block_of(theta), block_of(m), block_of(v), moved, err);
}

/* ---- training and sampling ---- */

static tke_device_trainer *trainer_new(tke_device_model *m, const tke_device_trainer_options *o,
                                       tinkc_error *err)
{
    return (tke_device_trainer *)tcu_trainer_new((tcu_model *)m, o, err);
}

static void trainer_free(tke_device_trainer *t)
{
    tcu_trainer_free((tcu_trainer *)t);
}

static void trainer_set_memory(tke_device_trainer *t, size_t bytes)
{
    tcu_trainer_set_memory((tcu_trainer *)t, bytes);
}

static size_t trainer_memory(const tke_device_trainer *t)
{
    return tcu_trainer_memory((const tcu_trainer *)t);
}

static size_t trainer_held(const tke_device_trainer *t)
{
    return tcu_trainer_held((const tcu_trainer *)t);
}

static size_t microbatch_bytes(const tke_device_trainer *t, const tke_microbatch_size *s,
                               int32_t keep)
{
    return tcu_trainer_bytes((const tcu_trainer *)t, s, keep);
}

static bool microbatch_run(tke_device_trainer *t, const tke_microbatch *b, tinkc_error *err)
{
    return tcu_trainer_run((tcu_trainer *)t, b, err);
}

static tke_device_sampler *sampler_new(tke_device_model *m, const tke_device_sampler_options *o,
                                       tinkc_error *err)
{
    tke_residence_turn(&((tcu_model *)m)->device->residence);
    return (tke_device_sampler *)tcu_sampler_new((tcu_model *)m, o, err);
}

static void sampler_free(tke_device_sampler *s)
{
    tcu_sampler_free((tcu_sampler *)s);
}

static const tke_device_cache *sampler_cache(const tke_device_sampler *s)
{
    return tcu_sampler_cache((const tcu_sampler *)s);
}

static bool cache_copy(tke_device_sampler *s, int32_t to, int32_t from, tinkc_error *err)
{
    return tcu_sampler_copy((tcu_sampler *)s, to, from, err);
}

static bool state_copy(tke_device_sampler *s, int32_t to, int32_t from, tinkc_error *err)
{
    return tcu_sampler_copy_state((tcu_sampler *)s, to, from, err);
}

static bool cache_commit(tke_device_sampler *s, size_t slab, tinkc_error *err)
{
    return tcu_sampler_commit((tcu_sampler *)s, slab, err);
}

static void cache_release(tke_device_sampler *s, size_t slab)
{
    tcu_sampler_release((tcu_sampler *)s, slab);
}

static bool step_run(tke_device_sampler *s, const tke_step *j, tinkc_error *err)
{
    return tcu_sampler_run((tcu_sampler *)s, j, err);
}

static const tke_device_ops ops = {
    .abi = TKE_DEVICE_ABI,
    .kind = "cuda",
    .open = device_open,
    .close = device_close,
    .info = device_info,
    .memory = device_memory,
    .model_bytes = model_bytes,
    .model_load = model_load,
    .model_free = model_free,
    .block_new = block_new,
    .block_free = block_free,
    .block_zero = block_zero,
    .block_copy = block_copy,
    .block_write = block_write,
    .block_read = block_read,
    .block_host = block_host,
    .block_finite = block_finite,
    .block_squares = block_squares,
    .adam = adam,
    .trainer_new = trainer_new,
    .trainer_free = trainer_free,
    .trainer_set_memory = trainer_set_memory,
    .trainer_memory = trainer_memory,
    .trainer_held = trainer_held,
    .microbatch_bytes = microbatch_bytes,
    .microbatch_run = microbatch_run,
    .sampler_new = sampler_new,
    .sampler_free = sampler_free,
    .sampler_cache = sampler_cache,
    .cache_copy = cache_copy,
    .state_copy = state_copy,
    .cache_commit = cache_commit,
    .cache_release = cache_release,
    .step_run = step_run,
};

EXPORT tke_device_module_fn tinkc_engine_cuda;

const tke_device_ops *tinkc_engine_cuda(uint32_t abi)
{
    return abi == TKE_DEVICE_ABI ? &ops : NULL;
}
