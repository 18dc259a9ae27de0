/* cuda_device.c - opening a card, its memory, copies, and error messages.
 *
 * May touch: the CUDA runtime (linked statically; it opens the driver by name). Must not: know of models.
 */
#include <dlfcn.h>
#include <string.h>
#include "base/mem.h"
#include "cuda/cuda_state.h"

enum { NEEDED_DRIVER = 13000, NEEDED_CAPABILITY = 80 };

static const char *const purposes[] = { "weights", "cache", "work space", "adapters", "other" };

const char *tcu_purpose_name(int purpose)
{
    return purposes[purpose];
}

/* ---- opening ---- */

typedef int driver_version_fn(int *);

static bool check_driver(tinkc_error *err)
{
    int version = 0;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver)
        return tkc_fail(err, TINKC_E_UNSUPPORTED, "cuda: no driver (libcuda.so.1 was not found)");
    driver_version_fn *get = (driver_version_fn *)(uintptr_t)dlsym(driver, "cuDriverGetVersion");
    bool known = get && get(&version) == 0;
    dlclose(driver);
    if (!known || version < NEEDED_DRIVER)
        return tkc_fail(err, TINKC_E_UNSUPPORTED,
                        "cuda: the driver is too old: it supports CUDA %d.%d, %d.%d is needed",
                        version / 1000, version % 1000 / 10, NEEDED_DRIVER / 1000,
                        NEEDED_DRIVER % 1000 / 10);
    return true;
}

bool tcu_probe(int index, tinkc_error *err)
{
    int count = 0, major = 0, minor = 0, device = index < 0 ? 0 : index;
    if (tkc_failed(err) || !check_driver(err))
        return false;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e != cudaSuccess || count == 0)
        return tkc_fail(err, TINKC_E_UNSUPPORTED, "cuda: no device (%s)",
                        e == cudaSuccess ? "the driver sees none" : cudaGetErrorString(e));
    if (device >= count)
        return tkc_fail(err, TINKC_E_UNSUPPORTED, "cuda: there is no device %d; the driver sees %d",
                        device, count);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (major * 10 + minor < NEEDED_CAPABILITY)
        return tkc_fail(err, TINKC_E_UNSUPPORTED,
                        "cuda: device %d has compute capability %d.%d, 8.0 is needed", device,
                        major, minor);
    return true;
}

/* What runs beside the stream's work gets the processors that this leaves. */
static int make_stream(cudaStream_t *s)
{
    int least = 0, greatest = 0;
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    return cudaStreamCreateWithPriority(s, cudaStreamNonBlocking, greatest);
}

static bool open_parts(tcu_device *d, tinkc_error *err)
{
    if (!tcu_ok(d, cudaSetDevice(d->index), "choosing the device", err) ||
        !tcu_ok(d, cudaGetDeviceProperties(&d->props, d->index), "reading the device", err) ||
        !tcu_ok(d, make_stream(&d->stream), "making a stream", err) ||
        !tcu_ok(d, cudaStreamCreateWithFlags(&d->side, cudaStreamNonBlocking), "making a stream",
                err) ||
        !tcu_ok(d, cudaEventCreateWithFlags(&d->forked, cudaEventDisableTiming), "making an event",
                err) ||
        !tcu_ok(d, cudaMallocHost((void **)&d->sums, 4 * sizeof *d->sums), "pinning memory", err))
        return false;
    for (int i = 0; i < 2; i++)
        if (!tcu_ok(d, cudaStreamCreateWithFlags(&d->beside[i], cudaStreamNonBlocking),
                    "making a stream", err) ||
            !tcu_ok(d, cudaEventCreateWithFlags(&d->joined[i], cudaEventDisableTiming),
                    "making an event", err))
            return false;
    cudaDriverGetVersion(&d->driver);
    return tcu_gemm_open(d, err);
}

tcu_device *tcu_open(int index, tinkc_error *err)
{
    if (!tcu_probe(index, err))
        return NULL;
    tcu_device *d = tkc_zalloc(NULL, sizeof *d, err);
    if (!d)
        return NULL;
    pthread_mutex_init(&d->lock, NULL);
    tke_residence_init(&d->residence, tcu_block_leave, tcu_block_come);
    d->index = index < 0 ? 0 : index;
    if (open_parts(d, err))
        return d;
    tcu_close(d);
    return NULL;
}

void tcu_close(tcu_device *d)
{
    if (!d)
        return;
    if (d->stream)
        cudaStreamSynchronize(d->stream);
    tcu_gemm_close(d);
    tcu_give(d, d->parts, d->n_parts * sizeof *d->parts, TCU_FOR_OTHER);
    cudaFreeHost(d->sums);
    if (d->stream)
        cudaStreamDestroy(d->stream);
    if (d->side)
        cudaStreamDestroy(d->side);
    if (d->forked)
        cudaEventDestroy(d->forked);
    for (int i = 0; i < 2; i++) {
        if (d->beside[i])
            cudaStreamDestroy(d->beside[i]);
        if (d->joined[i])
            cudaEventDestroy(d->joined[i]);
    }
    tke_residence_free(&d->residence);
    pthread_mutex_destroy(&d->lock);
    tkc_release(NULL, d, sizeof *d);
}

/* ---- failures ---- */

/* After one of these errors the context is lost and nothing on the card can be trusted. */
static bool is_fatal(int rc)
{
    return rc == cudaErrorIllegalAddress || rc == cudaErrorLaunchFailure ||
           rc == cudaErrorECCUncorrectable || rc == cudaErrorHardwareStackError ||
           rc == cudaErrorIllegalInstruction || rc == cudaErrorMisalignedAddress ||
           rc == cudaErrorAssert || rc == cudaErrorNoDevice || rc == cudaErrorDeviceUninitialized ||
           rc == cudaErrorDevicesUnavailable || rc == cudaErrorLaunchTimeout ||
           rc == cudaErrorUnknown;
}

void tcu_mark(tcu_device *d, const char *what)
{
    tcu_profile *p = d->profile;
    if (!p || p->n == p->cap)
        return;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(d->stream, &status); /* then the graph records the time when it runs */
    cudaEventRecordWithFlags(p->marks[p->n].at, d->stream,
                             status ? cudaEventRecordExternal : cudaEventRecordDefault);
    p->marks[p->n++].what = what;
}

bool tcu_ok(tcu_device *d, int rc, const char *what, tinkc_error *err)
{
    if (rc == cudaSuccess && !d->dead) {
        tcu_mark(d, what);
        return true;
    }
    if (rc == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* clears it: the next call must not report it again */
        return tkc_fail(err, TINKC_E_MEMORY, "cuda: out of memory on the card while %s", what);
    }
    if (is_fatal(rc))
        d->dead = true;
    if (d->dead)
        return tkc_fail(err, TINKC_E_SERVER, "cuda: the card failed (%s); restart the engine",
                        cudaGetErrorString(rc));
    cudaGetLastError();
    return tkc_fail(err, TINKC_E_SERVER, "cuda: %s: %s", what, cudaGetErrorString(rc));
}

bool tcu_fork(tcu_device *d, int ways, tinkc_error *err)
{
    if (!tcu_ok(d, cudaEventRecord(d->forked, d->stream), "fork", err))
        return false;
    for (int i = 0; i < ways; i++)
        if (!tcu_ok(d, cudaStreamWaitEvent(d->beside[i], d->forked, 0), "fork", err))
            return false;
    return true;
}

bool tcu_join(tcu_device *d, int ways, tinkc_error *err)
{
    for (int i = 0; i < ways; i++)
        if (!tcu_ok(d, cudaEventRecord(d->joined[i], d->beside[i]), "join", err) ||
            !tcu_ok(d, cudaStreamWaitEvent(d->stream, d->joined[i], 0), "join", err))
            return false;
    return true;
}

/* ---- memory ---- */

bool tcu_memory(tcu_device *d, size_t *free_bytes, size_t *total_bytes)
{
    cudaSetDevice(d->index);
    return cudaMemGetInfo(free_bytes, total_bytes) == cudaSuccess;
}

/* A full card is not an error that later calls should report. */
static cudaError_t allocate(void **at, size_t bytes)
{
    cudaError_t e = cudaMalloc(at, bytes ? bytes : 16);
    if (e == cudaErrorMemoryAllocation)
        cudaGetLastError();
    return e;
}

void *tcu_take(tcu_device *d, size_t bytes, int purpose, tinkc_error *err)
{
    void *at = NULL;
    size_t left = 0, total = 0;
    if (tkc_failed(err))
        return NULL;
    cudaSetDevice(d->index);
    cudaError_t e = allocate(&at, bytes);
    while (e == cudaErrorMemoryAllocation && tke_residence_make_room(&d->residence))
        e = allocate(&at, bytes); /* adapters that nobody uses now make room */
    if (e == cudaErrorMemoryAllocation) {
        tcu_memory(d, &left, &total);
        tkc_fail(err, TINKC_E_MEMORY,
                 "cuda: %zu MiB for %s do not fit on the card: %zu of %zu MiB are free",
                 bytes >> 20, purposes[purpose], left >> 20, total >> 20);
        return NULL;
    }
    if (!tcu_ok(d, e, "taking memory", err))
        return NULL;
    pthread_mutex_lock(&d->lock);
    d->used[purpose] += bytes;
    pthread_mutex_unlock(&d->lock);
    return at;
}

void tcu_give(tcu_device *d, void *at, size_t bytes, int purpose)
{
    if (!at)
        return;
    cudaSetDevice(d->index);
    cudaFree(at); /* waits for what still reads it */
    pthread_mutex_lock(&d->lock);
    d->used[purpose] -= bytes;
    pthread_mutex_unlock(&d->lock);
}

bool tcu_upload(tcu_device *d, void *to, const void *from, size_t bytes, tinkc_error *err)
{
    return tcu_ok(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, d->stream),
                  "copying to the card", err);
}

bool tcu_download(tcu_device *d, void *to, const void *from, size_t bytes, tinkc_error *err)
{
    return tcu_ok(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, d->stream),
                  "copying from the card", err) &&
           tcu_wait(d, err);
}

bool tcu_fetch(tcu_device *d, void *to, const void *from, size_t bytes, tinkc_error *err)
{
    cudaSetDevice(d->index);
    return tcu_ok(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, d->side),
                  "copying from the card", err) &&
           tcu_ok(d, cudaStreamSynchronize(d->side), "copying from the card", err);
}

bool tcu_wait(tcu_device *d, tinkc_error *err)
{
    return tcu_ok(d, cudaStreamSynchronize(d->stream), "waiting for the card", err);
}

/* ---- tables ---- */

enum { FEED_ALIGN = 256 };

bool tcu_feed_reserve(tcu_device *d, tcu_feed *f, size_t bytes, tinkc_error *err)
{
    f->used = 0;
    if (bytes <= f->size)
        return true;
    bytes += bytes / 2;
    if (!tcu_wait(d, err))
        return false;
    tcu_feed_free(d, f);
    f->card = tcu_take(d, bytes, TCU_FOR_OTHER, err);
    if (!f->card || !tcu_ok(d, cudaMallocHost((void **)&f->host, bytes), "pinning memory", err))
        return false;
    f->size = bytes;
    return true;
}

void tcu_feed_free(tcu_device *d, tcu_feed *f)
{
    tcu_give(d, f->card, f->size, TCU_FOR_OTHER);
    cudaFreeHost(f->host);
    *f = (tcu_feed){ 0 };
}

void *tcu_feed_put(tcu_feed *f, size_t bytes, void *card)
{
    size_t at = f->used, room = (bytes + FEED_ALIGN - 1) / FEED_ALIGN * FEED_ALIGN;
    if (room > f->size - at)
        return NULL;
    f->used += room;
    void *where = f->card + at;
    memcpy(card, &where, sizeof where);
    return f->host + at;
}

bool tcu_feed_send(tcu_device *d, tcu_feed *f, tinkc_error *err)
{
    return tcu_upload(d, f->card, f->host, f->used, err);
}

bool tcu_results_reserve(tcu_device *d, tcu_results *r, size_t bytes, tinkc_error *err)
{
    if (bytes <= r->size)
        return true;
    bytes += bytes / 2;
    if (!tcu_wait(d, err))
        return false;
    tcu_results_free(r);
    if (!tcu_ok(d, cudaMallocHost((void **)&r->at, bytes), "pinning memory", err))
        return false;
    r->size = bytes;
    return true;
}

void tcu_results_free(tcu_results *r)
{
    cudaFreeHost(r->at);
    *r = (tcu_results){ 0 };
}
