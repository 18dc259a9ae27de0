/* fake_card.c - a device module for tests: no card, or built for another engine. FAKE_CARD says. */
#include <stdlib.h>
#include <string.h>
#include "device/device.h"

static tke_device *no_driver(const tke_device_options *o, tinkc_error *err)
{
    err->code = TINKC_E_UNSUPPORTED;
    strcpy(err->message, o->index ? "cuda: no device 7" : "cuda: no driver");
    return NULL;
}

__attribute__((visibility("default"))) const tke_device_ops *tinkc_engine_cuda(uint32_t abi);

const tke_device_ops *tinkc_engine_cuda(uint32_t abi)
{
    static tke_device_ops ops = { .kind = "cuda", .open = no_driver };
    const char *mode = getenv("FAKE_CARD");
    ops.abi = mode && strcmp(mode, "old") == 0 ? abi - 1 : abi;
    return mode && strcmp(mode, "refuse") == 0 ? NULL : &ops;
}
