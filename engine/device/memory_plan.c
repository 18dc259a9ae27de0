/* memory_plan.c - dividing the memory of a device. Touches only its arguments. */
#include "device/memory_plan.h"

#include "base/mem.h"

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t minus(size_t a, size_t b)
{
    return a > b ? a - b : 0;
}

/* Bytes of n sequences of the whole context, each with a block more for a copy; 0 = too many. */
static size_t cache_of(const tke_memory_need *in, size_t n)
{
    size_t blocks, bytes;
    if (!in->block_tokens)
        return 0;
    blocks = (in->context + in->block_tokens - 1) / in->block_tokens + 1;
    return tkc_mul_size(blocks, n, &bytes) && tkc_mul_size(bytes, in->block_bytes, &bytes) ? bytes
                                                                                           : 0;
}

tke_memory_plan tke_memory_plan_make(const tke_memory_need *in)
{
    /* Weights of the CPU are mapped files: with more of them than memory it is slow, but works. The
     * same for settings that leave nothing to the others. */
    size_t floor = in->available / 8;
    tke_memory_plan out = { .pool = minus(minus(in->available, in->weights), in->adapters) };
    out.pool = minus(minus(out.pool, in->kv_bytes), in->train_bytes);
    if (out.pool < floor)
        out.pool = floor;
    size_t useful = cache_of(in, in->max_seqs);
    out.cache_need = cache_of(in, 1);
    out.cache_most = in->kv_bytes ? in->kv_bytes : useful ? least(useful, out.pool) : out.pool;
    if (in->addresses_count && !in->kv_bytes)
        out.cache_most = least(out.cache_most, out.pool / 2);
    out.train_most = in->train_bytes       ? in->train_bytes
                     : in->addresses_count ? minus(out.pool, in->kv_bytes ? 0 : out.cache_most)
                                           : out.pool;
    out.train_least = in->train_bytes ? in->train_bytes
                      : in->kv_bytes  ? out.pool
                                      : minus(out.pool, least(out.cache_most, out.pool / 2));
    return out;
}
