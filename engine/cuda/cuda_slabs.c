/* cuda_slabs.c - addresses and memory apart, through the driver's functions for virtual memory.
 *
 * The driver is reached by cudaGetDriverEntryPointByVersion, so nothing is linked against it. A slab
 * is a whole number of blocks and of the driver's pages.
 */
#include "cuda/cuda_slabs.h"

#include <cuda.h>
#include <string.h>

#include "base/mem.h"

enum { VMM_VERSION = 12000, LEAST_SLAB = 64 << 20 };

typedef struct driver {
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *,
                            CUmemAllocationGranularity_flags);
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*free_addresses)(CUdeviceptr, size_t);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                       unsigned long long);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
} driver;

static bool find(const char *name, void *out)
{
    enum cudaDriverEntryPointQueryResult found;
    void *at = NULL;
    cudaError_t e =
        cudaGetDriverEntryPointByVersion(name, &at, VMM_VERSION, cudaEnableDefault, &found);
    memcpy(out, &at, sizeof at);
    return e == cudaSuccess && found == cudaDriverEntryPointSuccess && at;
}

static bool find_driver(driver *v)
{
    return find("cuMemGetAllocationGranularity", &v->granularity) &&
           find("cuMemAddressReserve", &v->reserve) &&
           find("cuMemAddressFree", &v->free_addresses) && find("cuMemCreate", &v->create) &&
           find("cuMemRelease", &v->release) && find("cuMemMap", &v->map) &&
           find("cuMemUnmap", &v->unmap) && find("cuMemSetAccess", &v->access);
}

static CUmemAllocationProp memory_of(const tcu_device *d)
{
    return (
        CUmemAllocationProp){ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = d->index } };
}

static void count_cache(tcu_device *d, size_t more, size_t less)
{
    pthread_mutex_lock(&d->lock);
    d->used[TCU_FOR_CACHE] += more;
    d->used[TCU_FOR_CACHE] -= less;
    pthread_mutex_unlock(&d->lock);
}

/* Blocks of a slab: the fewest that fill whole pages and are not too small to be worth a call. */
static size_t blocks_of_slab(size_t block_bytes, size_t page)
{
    size_t n = 1;
    while (n < 4096 && (n * block_bytes % page || n * block_bytes < LEAST_SLAB))
        n *= 2;
    return n * block_bytes % page ? 0 : n;
}

static bool make_growing(tcu_slabs *s, size_t block_bytes, size_t n, size_t *slab_blocks)
{
    driver v;
    size_t page = 0;
    CUdeviceptr at = 0;
    CUmemAllocationProp memory = memory_of(s->device);
    tinkc_error ignored = { 0 };
    if (!find_driver(&v) ||
        v.granularity(&page, &memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS || !page)
        return false;
    *slab_blocks = blocks_of_slab(block_bytes, page);
    if (!*slab_blocks)
        return false;
    s->slab_bytes = *slab_blocks * block_bytes;
    s->n_slabs = (n + *slab_blocks - 1) / *slab_blocks;
    s->bytes = s->n_slabs * s->slab_bytes;
    s->handles = tkc_zalloc(NULL, s->n_slabs * sizeof *s->handles, &ignored);
    if (!s->handles || v.reserve(&at, s->bytes, 0, 0, 0) != CUDA_SUCCESS) {
        tkc_release(NULL, s->handles, s->n_slabs * sizeof *s->handles);
        return false;
    }
    s->at = (unsigned char *)(uintptr_t)at; /* NOLINT(performance-no-int-to-ptr) */
    return true;
}

bool tcu_slabs_make(tcu_slabs *s, tcu_device *d, size_t block_bytes, size_t *n, size_t *slab_blocks,
                    tinkc_error *err)
{
    size_t left = 0, total = 0;
    *s = (tcu_slabs){ .device = d };
    if (tkc_failed(err) || make_growing(s, block_bytes, *n, slab_blocks))
        return !tkc_failed(err) && tcu_slabs_commit(s, 0, err);
    *s = (tcu_slabs){ .device = d };
    *slab_blocks = 0;
    if (tcu_memory(d, &left, &total) && *n > left / 2 / block_bytes && left / 2 / block_bytes >= 2)
        *n = left / 2 / block_bytes;
    s->bytes = *n * block_bytes;
    s->at = tcu_take(d, s->bytes, TCU_FOR_CACHE, err);
    return s->at != NULL;
}

static CUdeviceptr address_of(const tcu_slabs *s, size_t slab)
{
    return (CUdeviceptr)(uintptr_t)s->at + slab * s->slab_bytes;
}

bool tcu_slabs_commit(tcu_slabs *s, size_t slab, tinkc_error *err)
{
    driver v;
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp memory = memory_of(s->device);
    CUmemAccessDesc access = { .location = memory.location,
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    if (tkc_failed(err) || s->handles[slab])
        return !tkc_failed(err);
    if (!find_driver(&v))
        return tkc_fail(err, TINKC_E_SERVER, "cuda: the driver has lost its functions");
    CUresult e = v.create(&handle, s->slab_bytes, &memory, 0);
    while (e == CUDA_ERROR_OUT_OF_MEMORY && tke_residence_make_room(&s->device->residence))
        e = v.create(&handle, s->slab_bytes, &memory, 0);
    if (e != CUDA_SUCCESS)
        return tkc_fail(err, TINKC_E_MEMORY, "cuda: %zu MiB for the cache do not fit on the card",
                        s->slab_bytes >> 20);
    if (v.map(address_of(s, slab), s->slab_bytes, 0, handle, 0) != CUDA_SUCCESS) {
        v.release(handle);
        return tkc_fail(err, TINKC_E_MEMORY, "cuda: memory of the cache cannot be mapped");
    }
    if (v.access(address_of(s, slab), s->slab_bytes, &access, 1) != CUDA_SUCCESS) {
        v.unmap(address_of(s, slab), s->slab_bytes);
        v.release(handle);
        return tkc_fail(err, TINKC_E_MEMORY, "cuda: memory of the cache cannot be used");
    }
    s->handles[slab] = handle;
    count_cache(s->device, s->slab_bytes, 0);
    return true;
}

static void unmap(tcu_slabs *s, size_t slab)
{
    driver v;
    if (!s->handles[slab] || !find_driver(&v))
        return;
    cudaSetDevice(s->device->index);
    cudaStreamSynchronize(s->device->stream);
    v.unmap(address_of(s, slab), s->slab_bytes);
    v.release(s->handles[slab]);
    s->handles[slab] = 0;
    count_cache(s->device, 0, s->slab_bytes);
}

void tcu_slabs_release(tcu_slabs *s, size_t slab)
{
    if (slab > 0)
        unmap(s, slab);
}

void tcu_slabs_free(tcu_slabs *s)
{
    driver v;
    if (!s->slab_bytes) {
        tcu_give(s->device, s->at, s->bytes, TCU_FOR_CACHE);
        return;
    }
    for (size_t i = 0; i < s->n_slabs; i++)
        unmap(s, i);
    if (s->at && find_driver(&v))
        v.free_addresses((CUdeviceptr)(uintptr_t)s->at, s->bytes);
    tkc_release(NULL, s->handles, s->n_slabs * sizeof *s->handles);
}
