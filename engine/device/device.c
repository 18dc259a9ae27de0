/* device.c - chooses the device: the CPU, or one whose module is opened at run time.
 *
 * A module is looked for at $TINKC_CUDA_MODULE, beside this library or program, in ../lib, where pip
 * installs the wheel tinkc-cuda for a program in bin, then by name; one of another version is passed
 * over. It stays open until the process ends. May touch: the module. Must not: use any symbol of it except the one it exports.
 */
#include "device/device.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/platform.h"

static const char module_name[] = "libtinkc-engine-cuda.so";

/* ---- names ---- */

/* 0 for "cuda", N for "cuda:N", -1 for anything else. */
static int32_t cuda_index(const char *name)
{
    int32_t index = 0;
    if (strcmp(name, "cuda") == 0)
        return 0;
    if (strncmp(name, "cuda:", 5) != 0 || name[5] == 0 || strlen(name + 5) > 3)
        return -1;
    for (const char *p = name + 5; *p; p++) {
        if (*p < '0' || *p > '9')
            return -1;
        index = index * 10 + (*p - '0');
    }
    return index;
}

bool tke_device_name_check(const char *name, tinkc_error *err)
{
    if (!name || !*name || strcmp(name, "auto") == 0 || strcmp(name, "cpu") == 0 ||
        cuda_index(name) >= 0)
        return true;
    return tkc_fail(err, TINKC_E_ARGUMENT, "unknown device '%.40s'; use auto, cpu, cuda or cuda:N",
                    name);
}

/* ---- modules ---- */

/* The folder that this code is in, with the slash. */
static bool own_folder(char out[TKC_PATH])
{
    if (!tkc_library_path(module_name, out))
        return false;
    char *slash = strrchr(out, '/');
    if (slash)
        slash[1] = 0;
    return slash;
}

/* The functions of a module that was built for this engine; NULL for any other. */
static const tke_device_ops *ops_of(void *module)
{
    tke_device_module_fn *entry = NULL;
    *(void **)&entry = dlsym(module, "tinkc_engine_cuda");
    const tke_device_ops *ops = entry ? entry(TKE_DEVICE_ABI) : NULL;
    return ops && ops->abi == TKE_DEVICE_ABI ? ops : NULL;
}

/* One place. Notes a module of another version, so that a right one further on is found and the error says
 * what was there. */
static const tke_device_ops *try_module(const char *path, bool *other_version)
{
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const tke_device_ops *ops = module ? ops_of(module) : NULL;
    if (module && !ops) {
        *other_version = true;
        dlclose(module);
    }
    return ops;
}

/* The first module that a pattern below this folder matches and that fits. */
static const tke_device_ops *try_matching(const char *folder, const char *pattern,
                                          bool *other_version)
{
    char path[TKC_PATH + 64];
    glob_t found = { 0 };
    const tke_device_ops *ops = NULL;
    int n = snprintf(path, sizeof path, "%s%s%s", folder, pattern, module_name);
    if (n < 0 || (size_t)n >= sizeof path)
        return NULL;
    if (!strchr(pattern, '*')) /* the folder may have characters that a pattern understands */
        return try_module(path, other_version);
    if (glob(path, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc && !ops; i++)
            ops = try_module(found.gl_pathv[i], other_version);
    globfree(&found);
    return ops;
}

static const tke_device_ops *find_ops(bool *other_version)
{
    char folder[TKC_PATH];
    const tke_device_ops *ops = NULL;
    static const char *const beside[] = { "", "../lib/",
                                          "../lib/python3*/site-packages/tinkc_cuda/",
                                          "../lib/python3*/dist-packages/tinkc_cuda/",
                                          "../tinkc_cuda/" };
    for (size_t i = 0; i < sizeof beside / sizeof *beside && !ops && own_folder(folder); i++)
        ops = try_matching(folder, beside[i], other_version);
    return ops ? ops : try_module(module_name, other_version);
}

static const tke_device_ops *cuda_ops(tinkc_error *err)
{
    const char *set = getenv("TINKC_CUDA_MODULE");
    bool other_version = false, named = set && *set;
    const tke_device_ops *ops = named ? try_module(set, &other_version) : find_ops(&other_version);
    if (ops)
        return ops;
    if (other_version)
        tkc_fail(err, TINKC_E_UNSUPPORTED, "cuda: %s belongs to another version of the engine",
                 module_name);
    else if (named)
        tkc_fail(err, TINKC_E_UNSUPPORTED, "cuda: TINKC_CUDA_MODULE cannot be opened: %.200s",
                 dlerror());
    else
        tkc_fail(err, TINKC_E_UNSUPPORTED,
                 "cuda: no module (%s not found next to the engine or in TINKC_CUDA_MODULE)",
                 module_name);
    return NULL;
}

static tke_device *open_cuda(const tke_device_options *o, int32_t index, tinkc_error *err)
{
    tke_device_options mine = *o;
    const tke_device_ops *ops = cuda_ops(err);
    mine.index = index;
    return ops ? ops->open(&mine, err) : NULL;
}

/* ---- the choice ---- */

static void say(tke_device_reason *why, const char *text)
{
    if (why)
        snprintf(why->text, sizeof why->text, "%.255s", text);
}

tke_device *tke_device_open(const char *name, const tke_device_options *o, tke_device_reason *why,
                            tinkc_error *err)
{
    say(why, "");
    if (tkc_failed(err) || !tke_device_name_check(name, err))
        return NULL;
    bool chosen = name && *name && strcmp(name, "auto") != 0;
    if (chosen && strcmp(name, "cpu") == 0) {
        say(why, "asked for by name");
        return tke_cpu_device.open(o, err);
    }
    tinkc_error no = { 0 };
    tke_device *d = open_cuda(o, chosen ? cuda_index(name) : 0, &no);
    if (d) {
        say(why, chosen ? "asked for by name" : "the first card that can be used");
        return d;
    }
    if (chosen) {
        tkc_error_copy(err, &no);
        return NULL;
    }
    say(why, no.message);
    return tke_cpu_device.open(o, err);
}

void tke_device_close(tke_device *d)
{
    if (d)
        d->ops->close(d);
}

/* ---- views ---- */

bool tke_view_open(tke_view *v, tke_device *d, const tke_block *b, size_t n, tinkc_error *err)
{
    *v = (tke_view){ .data = d->ops->block_host(d, b), .n = n };
    if (v->data)
        return true;
    v->data = tkc_alloc(NULL, n * sizeof *v->data, err);
    v->copied = v->data != NULL;
    if (v->data && d->ops->block_read(d, b, v->data, n, err))
        return true;
    tke_view_close(v, d, NULL, err);
    return false;
}

bool tke_view_close(tke_view *v, tke_device *d, tke_block *to, tinkc_error *err)
{
    bool ok = true;
    if (v->copied) {
        ok = !to || d->ops->block_write(d, to, v->data, v->n, err);
        tkc_release(NULL, v->data, v->n * sizeof *v->data);
    }
    *v = (tke_view){ 0 };
    return ok;
}
