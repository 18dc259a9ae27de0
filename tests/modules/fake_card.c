/* fake_card.c - a device module for tests: no card, one that opens and closes, or built for another
 * engine. FAKE_CARD says which; FAKE_CARD_CLOSED is set when the card is closed. A module in a folder whose
 * name ends with FAKE_CARD_OLD is built for another engine; with FAKE_CARD_ROOT the card's text is
 * the module's folder below that one. */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "device/device.h"

static tke_device_ops ops;
static tke_device card = { .ops = &ops };
static int32_t index_of_card;

static tke_device *open_card(const tke_device_options *o, tinkc_error *err)
{
    const char *mode = getenv("FAKE_CARD");
    index_of_card = o->index;
    if (mode && strcmp(mode, "works") == 0)
        return &card;
    err->code = TINKC_E_UNSUPPORTED;
    if (o->index)
        snprintf(err->message, sizeof err->message, "cuda: no device %d", (int)o->index);
    else
        strcpy(err->message, "cuda: no driver");
    return NULL;
}

static void close_card(tke_device *d)
{
    (void)d;
    setenv("FAKE_CARD_CLOSED", "1", 1);
}

static void own_folder(char out[1000])
{
    Dl_info where = { 0 };
    char real[PATH_MAX] = "";
    dladdr(&ops, &where);
    if (realpath(where.dli_fname, real))
        *strrchr(real, '/') = 0;
    snprintf(out, 1000, "%.999s", real);
}

static void describe(tke_device *d, tke_device_info *out)
{
    const char *root = getenv("FAKE_CARD_ROOT");
    char folder[1000];
    (void)d;
    own_folder(folder);
    snprintf(out->name, sizeof out->name, "card %d", (int)index_of_card);
    if (root && strlen(folder) > strlen(root))
        snprintf(out->text, sizeof out->text, "%.150s", folder + strlen(root) + 1);
}

static int is_old(const char *mode)
{
    const char *ending = getenv("FAKE_CARD_OLD");
    char folder[1000];
    own_folder(folder);
    size_t n = strlen(folder), k = ending ? strlen(ending) : 0;
    return (mode && strcmp(mode, "old") == 0) || (k && n >= k && strcmp(folder + n - k, ending) == 0);
}

__attribute__((visibility("default"))) const tke_device_ops *tinkc_engine_cuda(uint32_t abi);

const tke_device_ops *tinkc_engine_cuda(uint32_t abi)
{
    const char *mode = getenv("FAKE_CARD");
    ops = (tke_device_ops){ .kind = "cuda", .open = open_card, .close = close_card, .info = describe };
    ops.abi = is_old(mode) ? abi - 1 : abi;
    return mode && strcmp(mode, "refuse") == 0 ? NULL : &ops;
}
