/* tiny_world.h - a small random model, opened and loaded on the CPU: what tests of the maths begin with. */
#ifndef TESTS_TINY_WORLD_H
#define TESTS_TINY_WORLD_H

#include "support/engine/on_device.h"
#include "support/engine/tiny_model.h"

typedef struct tiny_world {
    char *folder;
    tke_model *model;
    tke_device *device;
    tke_device_model *loaded;
} tiny_world;

static inline tiny_world tiny_world_open(const tiny_model *what, int32_t threads)
{
    tinkc_error err = { 0 };
    tiny_world w = { .folder = tiny_model_make(what), .device = device_cpu(threads) };
    w.model = tke_model_open(w.folder, &err);
    if (!w.model) {
        fprintf(stderr, "the model cannot be opened: %s\n", err.message);
        abort();
    }
    w.loaded = device_load(w.device, w.model);
    return w;
}

static inline void tiny_world_close(tiny_world *w)
{
    device_unload(w->loaded);
    tke_device_close(w->device);
    tke_model_drop(w->model);
    tiny_model_remove(w->folder);
    *w = (tiny_world){ 0 };
}

#endif
