/* on_device.h - a model on a device, and the numbers of adapters, for tests, programs and
 * benchmarks. */
#ifndef ON_DEVICE_H
#define ON_DEVICE_H

#include <stdio.h>
#include <stdlib.h>
#include "train/adapter_state.h"

/* The CPU with so many threads (0 = all), in fp32. */
static inline tke_device *device_cpu(int32_t threads)
{
    tinkc_error err = { 0 };
    tke_device *d = tke_device_open("cpu", &(tke_device_options){ .n_threads = threads }, NULL, &err);
    if (!d) {
        fprintf(stderr, "no CPU device: %s\n", err.message);
        abort();
    }
    return d;
}

/* What TINKC_DEVICE names, else the CPU. */
static inline tke_device *device_by_env(const tke_device_options *o, tinkc_error *err)
{
    const char *name = getenv("TINKC_DEVICE");
    return tke_device_open(name ? name : "cpu", o, NULL, err);
}

static inline tke_device_model *device_load(tke_device *d, tke_model *m)
{
    tinkc_error err = { 0 };
    tke_device_model *loaded = d->ops->model_load(d, m, &err);
    if (!loaded) {
        fprintf(stderr, "the model cannot be loaded: %s\n", err.message);
        abort();
    }
    return loaded;
}

static inline void device_unload(tke_device_model *m)
{
    if (m)
        m->device->ops->model_free(m);
}

/* Where the device keeps them in host memory. */
static inline tke_real *adapter_weights(tke_adapter *a)
{
    return a->device->ops->block_host(a->device, a->weights);
}

static inline const tke_real *adapter_grads(const tke_adapter *a)
{
    return a->device->ops->block_host(a->device, a->grads);
}

#endif
