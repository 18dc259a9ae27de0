/* cpu_device.c - the CPU's table of device functions: opening it, blocks, the optimizer.
 *
 * A block is an array of numbers in host memory. Weights of a model stay mapped from their files.
 * Blocks may be freed and read on any thread: nothing here is shared between them.
 */
#include "cpu/cpu_device.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include "base/mem.h"

enum { ALIGN = 64, MICROBATCH_TOKENS = 8192 };

typedef struct cpu_device {
    tke_device base;
    tke_cpu *cpu;
} cpu_device;

static tke_cpu *cpu_of(tke_device *d)
{
    return ((cpu_device *)d)->cpu;
}

static tke_device *cpu_open(const tke_device_options *o, tinkc_error *err)
{
    cpu_device *d = tkc_zalloc(NULL, sizeof *d, err);
    if (!d)
        return NULL;
    d->base.ops = &tke_cpu_device;
    d->cpu = tke_cpu_new(
        &(tke_cpu_options){ .n_threads = o->n_threads, .precision = o->precision, .isa = o->isa },
        err);
    if (d->cpu)
        return &d->base;
    tkc_release(NULL, d, sizeof *d);
    return NULL;
}

static void cpu_close(tke_device *d)
{
    tke_cpu_free(cpu_of(d));
    tkc_release(NULL, d, sizeof(cpu_device));
}

static void cpu_info(tke_device *d, tke_device_info *out)
{
    *out = (tke_device_info){ .microbatch_tokens = MICROBATCH_TOKENS };
    snprintf(out->name, sizeof out->name, "cpu");
    snprintf(out->text, sizeof out->text, "%s, %d threads", tke_cpu_name(cpu_of(d)),
             (int)tke_threads_count(tke_cpu_threads(cpu_of(d))));
}

static size_t cpu_memory(tke_device *d, tke_memory_use *out, size_t room)
{
    (void)d, (void)out, (void)room; /* the host's memory is counted by the service */
    return 0;
}

/* ---- models ---- */

static size_t cpu_model_bytes(tke_device *d, const tke_model *m)
{
    (void)d, (void)m;
    return 0;
}

static tke_device_model *cpu_model_load(tke_device *d, tke_model *m, tinkc_error *err)
{
    tke_cpu_model *loaded = tkc_zalloc(NULL, sizeof *loaded, err);
    if (!loaded)
        return NULL;
    *loaded = (tke_cpu_model){ .base = { d, m }, .cpu = cpu_of(d) };
    return &loaded->base;
}

static void cpu_model_free(tke_device_model *m)
{
    if (m)
        tkc_release(NULL, m, sizeof(tke_cpu_model));
}

/* ---- blocks ---- */

static tke_block *cpu_block_new(tke_device *d, size_t n, tinkc_error *err)
{
    (void)d;
    assert(n > 0);
    tke_real *block = tkc_alloc_aligned(ALIGN, n * sizeof *block, err);
    if (block)
        memset(block, 0, n * sizeof *block);
    return (tke_block *)block;
}

static void cpu_block_free(tke_device *d, tke_block *b)
{
    (void)d;
    tkc_release_aligned(b);
}

static bool cpu_block_zero(tke_device *d, tke_block *b, size_t n, tinkc_error *err)
{
    (void)d, (void)err;
    memset(tke_block_reals(b), 0, n * sizeof(tke_real));
    return true;
}

static bool cpu_block_copy(tke_device *d, tke_block *to, const tke_block *from, size_t n,
                           tinkc_error *err)
{
    (void)d, (void)err;
    memcpy(tke_block_reals(to), tke_block_reals(from), n * sizeof(tke_real));
    return true;
}

static bool cpu_block_write(tke_device *d, tke_block *to, const tke_real *from, size_t n,
                            tinkc_error *err)
{
    (void)d, (void)err;
    memcpy(tke_block_reals(to), from, n * sizeof *from);
    return true;
}

static bool cpu_block_read(tke_device *d, const tke_block *from, tke_real *to, size_t n,
                           tinkc_error *err)
{
    (void)d, (void)err;
    memcpy(to, tke_block_reals(from), n * sizeof *to);
    return true;
}

static tke_real *cpu_block_host(tke_device *d, const tke_block *b)
{
    (void)d;
    return tke_block_reals(b);
}

static bool cpu_block_finite(tke_device *d, const tke_block *b, size_t n, bool *out,
                             tinkc_error *err)
{
    (void)err;
    *out = tke_all_finite(cpu_of(d), (int64_t)n, tke_block_reals(b));
    return true;
}

static bool cpu_block_squares(tke_device *d, const tke_block *b, size_t n, double *out,
                              tinkc_error *err)
{
    (void)err;
    *out = tke_sum_squares(cpu_of(d), (int64_t)n, tke_block_reals(b));
    return true;
}

static bool cpu_adam(tke_device *d, const tke_adam *step, size_t n, const tke_block *g,
                     tke_block *theta, tke_block *m, tke_block *v, double *moved, tinkc_error *err)
{
    (void)err;
    *moved = tke_adam_step(cpu_of(d), step, (int64_t)n, tke_block_reals(g), tke_block_reals(theta),
                           tke_block_reals(m), tke_block_reals(v));
    return true;
}

const tke_device_ops tke_cpu_device = {
    .abi = TKE_DEVICE_ABI,
    .kind = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .info = cpu_info,
    .memory = cpu_memory,
    .model_bytes = cpu_model_bytes,
    .model_load = cpu_model_load,
    .model_free = cpu_model_free,
    .block_new = cpu_block_new,
    .block_free = cpu_block_free,
    .block_zero = cpu_block_zero,
    .block_copy = cpu_block_copy,
    .block_write = cpu_block_write,
    .block_read = cpu_block_read,
    .block_host = cpu_block_host,
    .block_finite = cpu_block_finite,
    .block_squares = cpu_block_squares,
    .adam = cpu_adam,
    .trainer_new = tke_cpu_trainer_new,
    .trainer_free = tke_cpu_trainer_free,
    .trainer_set_memory = tke_cpu_trainer_set_memory,
    .trainer_memory = tke_cpu_trainer_memory,
    .trainer_held = tke_cpu_trainer_held,
    .microbatch_bytes = tke_cpu_microbatch_bytes,
    .microbatch_run = tke_cpu_microbatch_run,
    .sampler_new = tke_cpu_sampler_new,
    .sampler_free = tke_cpu_sampler_free,
    .sampler_cache = tke_cpu_sampler_cache,
    .cache_copy = tke_cpu_cache_copy,
    .state_copy = tke_cpu_state_copy,
    .cache_commit = tke_cpu_cache_commit,
    .cache_release = tke_cpu_cache_release,
    .step_run = tke_cpu_step_run,
};
